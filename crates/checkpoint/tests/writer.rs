//! Files written in pieces: read back by our reader and the format's own, never half there.

mod common;

use std::fs;

use common::fill;
use markbase_checkpoint::{Checkpoint, CheckpointError, DType, TensorSpec, Writer, write_index};
use proptest::prelude::*;
use safetensors::SafeTensors;
use tempfile::TempDir;

fn names_in(folder: &TempDir) -> Vec<String> {
    fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_file_is_there_only_when_it_is_whole() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("model.safetensors");
    let tensors = [TensorSpec::new("a", DType::U8, &[3]), TensorSpec::new("b", DType::F32, &[2])];
    let mut writer = Writer::create(&path, &tensors, &[("format", "mlx")]).unwrap();
    writer.write("a", &[1]).unwrap();
    writer.write("b", &1.5f32.to_le_bytes()).unwrap();
    writer.write("a", &[2, 3]).unwrap();
    assert!(!path.exists());
    assert_eq!(names_in(&folder).len(), 1, "one hidden file");
    writer.write("b", &2.5f32.to_le_bytes()).unwrap();
    let bytes = writer.finish().unwrap();
    assert_eq!(names_in(&folder), ["model.safetensors"]);
    assert_eq!(fs::metadata(&path).unwrap().len(), bytes);

    fill(folder.path(), &[("config.json", b"{}")]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.tensor("a").unwrap().bytes, [1, 2, 3]);
    assert_eq!(checkpoint.tensor("b").unwrap().to_f32().unwrap(), [1.5, 2.5]);
    let bytes = fs::read(&path).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "mlx");
}

#[test]
fn an_abandoned_file_leaves_nothing_behind() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("model.safetensors");
    fs::write(&path, "what was there").unwrap();
    let mut writer = Writer::create(&path, &[TensorSpec::new("a", DType::U8, &[3])], &[]).unwrap();
    writer.write("a", &[1]).unwrap();
    drop(writer);
    assert_eq!(names_in(&folder), ["model.safetensors"]);
    assert_eq!(fs::read(&path).unwrap(), b"what was there");
}

#[test]
fn bytes_other_than_announced_are_refused() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("x.safetensors");
    let refusal = |result: Result<_, CheckpointError>| match result {
        Err(CheckpointError::Write { reason, .. }) => reason,
        Err(other) => panic!("another error: {other}"),
        Ok(()) => panic!("no error"),
    };
    let tensors = [TensorSpec::new("a", DType::F32, &[1]), TensorSpec::new("empty", DType::F32, &[0])];
    let mut writer = Writer::create(&path, &tensors, &[]).unwrap();
    writer.write("a", &[0; 3]).unwrap();
    assert_eq!(refusal(writer.write("b", &[0])), "tensor b was not announced");
    assert_eq!(refusal(writer.write("a", &[0; 2])), "tensor a: 5 bytes given, 4 announced");
    assert_eq!(refusal(writer.write("empty", &[0])), "tensor empty: 1 bytes given, 0 announced");
    assert_eq!(refusal(writer.finish().map(drop)), "tensor a: 3 bytes given, 4 announced");
    assert!(names_in(&folder).is_empty());

    let create = |tensors: &[TensorSpec]| refusal(Writer::create(&path, tensors, &[]).map(drop));
    let twice = TensorSpec::new("a", DType::U8, &[1]);
    assert_eq!(create(&[twice.clone(), twice]), "tensor a is announced twice");
    assert_eq!(create(&[TensorSpec::new("__metadata__", DType::U8, &[1])]), "\"__metadata__\" is no name of a tensor");
    assert_eq!(create(&[TensorSpec::new("h", DType::F32, &[usize::MAX, 2])]), "tensor h is larger than any file");
    assert!(names_in(&folder).is_empty());
    assert!(matches!(
        Writer::create(folder.path().join("no/where"), &[], &[]).map(drop),
        Err(CheckpointError::Io { .. })
    ));
}

#[test]
fn shards_and_their_index_open_as_one_checkpoint() {
    let folder = TempDir::new().unwrap();
    let shards = [
        ("model-00001-of-00002.safetensors", [TensorSpec::new("b", DType::BF16, &[2])]),
        ("model-00002-of-00002.safetensors", [TensorSpec::new("a", DType::U8, &[4])]),
    ];
    for (file, tensors) in &shards {
        let mut writer = Writer::create(folder.path().join(file), tensors, &[]).unwrap();
        writer.write(&tensors[0].name, &[7; 4]).unwrap();
        writer.finish().unwrap();
    }
    let listed: Vec<(&str, &[TensorSpec])> = shards.iter().map(|(file, tensors)| (*file, &tensors[..])).collect();
    write_index(folder.path(), &listed).unwrap();
    fill(folder.path(), &[("config.json", b"{}")]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert!(checkpoint.warnings().is_empty());
    assert_eq!(checkpoint.tensor("a").unwrap().bytes, [7; 4]);
    let index = checkpoint.folder().json("model.safetensors.index.json").unwrap().unwrap();
    assert_eq!(index["metadata"]["total_size"], 8);
    let twice = [("1", &shards[0].1[..]), ("2", &shards[0].1[..])];
    assert!(write_index(folder.path(), &twice).unwrap_err().to_string().ends_with("tensor b is in both 1 and 2"));
}

fn any_tensors() -> impl Strategy<Value = Vec<(DType, Vec<usize>)>> {
    let dtype = prop::sample::select(vec![DType::F32, DType::BF16, DType::U8, DType::I64, DType::Bool, DType::F16]);
    prop::collection::vec((dtype, prop::collection::vec(0usize..4, 0..4)), 0..7)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))] // each brings a file to the disk

    /// Whatever is written, in whatever pieces, is what the format's own reader finds, aligned.
    #[test]
    fn written_files_are_read_by_safetensors(tensors in any_tensors(), piece in 1usize..20) {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("x.safetensors");
        let specs: Vec<TensorSpec> = tensors.iter().enumerate().map(|(index, (dtype, shape))| TensorSpec::new(format!("t{index}"), *dtype, shape)).collect();
        let data: Vec<Vec<u8>> = specs.iter().enumerate().map(|(index, spec)| {
            vec![index as u8; spec.shape.iter().product::<usize>() * spec.dtype.bytes()]
        }).collect();
        let mut writer = Writer::create(&path, &specs, &[]).unwrap();
        // By turns, a piece of each.
        for round in 0..data.iter().map(|bytes| bytes.len().div_ceil(piece)).max().unwrap_or(0) {
            for (spec, bytes) in specs.iter().zip(&data) {
                if let Some(bytes) = bytes.chunks(piece).nth(round) {
                    writer.write(&spec.name, bytes).unwrap();
                }
            }
        }
        writer.finish().unwrap();
        let bytes = fs::read(&path).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        prop_assert_eq!(read.len(), specs.len());
        for (spec, data) in specs.iter().zip(&data) {
            let view = read.tensor(&spec.name).unwrap();
            prop_assert_eq!(view.shape(), &spec.shape);
            prop_assert_eq!(view.data(), data);
            let place = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
            prop_assert!(place.is_multiple_of(spec.dtype.bytes()), "{} at {place}", spec.name);
        }
    }
}
