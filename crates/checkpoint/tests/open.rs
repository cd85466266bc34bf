//! Opening a folder: what is found, what is refused, and in which words.

mod common;

use std::fs;
use std::path::Path;

use common::{file_of, file_with, fill, leak};
use markbase_checkpoint::{Checkpoint, CheckpointError, DType};
use serde_json::json;
use tempfile::TempDir;

/// The error's text with the folder's changing path cut out.
fn refusal(folder: &Path) -> String {
    let error = Checkpoint::open(folder).expect_err("a refusal").to_string();
    error.replace(&folder.display().to_string(), "FOLDER")
}

fn folder_with(files: &[(&str, &[u8])]) -> TempDir {
    let folder = TempDir::new().unwrap();
    fill(folder.path(), files);
    folder
}

fn index_of(entries: &[(&str, &str)]) -> Vec<u8> {
    let map: serde_json::Map<_, _> = entries.iter().map(|(tensor, file)| (tensor.to_string(), json!(file))).collect();
    json!({"metadata": {}, "weight_map": map}).to_string().into_bytes()
}

#[test]
fn one_file_is_opened_and_its_tensors_are_found_by_name() {
    let data: Vec<u8> = [1.0f32, 2.0, 3.0].iter().flat_map(|value| value.to_le_bytes()).chain([0xfe, 0xff]).collect();
    let header = r#"{"__metadata__":{"format":"mlx"},"b":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"a":{"dtype":"I16","shape":[],"data_offsets":[12,14]}}"#;
    let folder =
        folder_with(&[("config.json", br#"{"model_type":"tiny"}"#), ("model.safetensors", &file_of(header, &data))]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.config()["model_type"], "tiny");
    assert_eq!(checkpoint.tensors().map(|info| info.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let b = checkpoint.tensor("b").unwrap();
    assert_eq!(
        (b.info.dtype, b.info.shape.as_slice(), b.info.bytes(), b.info.elements()),
        (DType::F32, &[3][..], 12, 3)
    );
    assert_eq!(b.to_f32().unwrap(), [1.0, 2.0, 3.0]);
    assert_eq!(checkpoint.tensor("a").unwrap().to_i64().unwrap(), [-2]);
    assert!(checkpoint.tensor("c").is_none());
    assert_eq!(checkpoint.files()[b.info.file].name(), "model.safetensors");
    assert_eq!(checkpoint.files()[0].bytes(), 8 + header.len() as u64 + 14);
    assert!(checkpoint.warnings().is_empty());
}

#[test]
fn a_model_in_memory_is_a_folder_without_a_disk() {
    let weights = leak(file_with(&[("a", "BF16", &[2, 2])]));
    let files: [(&str, &'static [u8]); 3] =
        [("config.json", b"{}"), ("model.safetensors", weights), ("generation_config.json", br#"{"top_k":64}"#)];
    let checkpoint = Checkpoint::from_memory("built-in", &files).unwrap();
    assert_eq!(checkpoint.name(), "built-in");
    assert_eq!(checkpoint.tensor("a").unwrap().to_f32().unwrap(), [0.0; 4]);
    assert_eq!(checkpoint.folder().json("generation_config.json").unwrap().unwrap()["top_k"], 64);
    assert_eq!(checkpoint.folder().file("tokenizer.json").unwrap(), None);
    checkpoint.release("a");
    checkpoint.prefetch("a");
    assert_eq!(checkpoint.tensor("a").unwrap().to_f32().unwrap(), [0.0; 4]);
    let cut = leak(weights[..weights.len() - 1].to_vec());
    let error = Checkpoint::from_memory("built-in", &[("config.json", b"{}"), ("model.safetensors", cut)]);
    assert!(error.unwrap_err().to_string().starts_with("built-in/model.safetensors: tensor a: data to byte 8 of 7"));
}

#[test]
fn shards_are_opened_by_their_index() {
    let folder = folder_with(&[
        ("config.json", b"{}"),
        ("model-00001-of-00002.safetensors", &file_with(&[("a", "F32", &[1])])),
        ("model-00002-of-00002.safetensors", &file_with(&[("b", "F32", &[1]), ("unlisted", "F32", &[1])])),
        ("adapter.safetensors", &file_with(&[])),
        (
            "model.safetensors.index.json",
            &index_of(&[("b", "model-00002-of-00002.safetensors"), ("a", "model-00001-of-00002.safetensors")]),
        ),
    ]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let file_of = |tensor: &str| checkpoint.files()[checkpoint.tensor(tensor).unwrap().info.file].name();
    assert_eq!(file_of("a"), "model-00001-of-00002.safetensors");
    assert_eq!(file_of("unlisted"), "model-00002-of-00002.safetensors");
    assert_eq!(
        checkpoint.warnings(),
        [
            "unlisted: in model-00002-of-00002.safetensors, but not in model.safetensors.index.json",
            "adapter.safetensors: in the folder, but not part of the model; not read",
        ]
    );
}

#[test]
fn folders_that_are_no_models_are_refused_with_what_to_do() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("nothing");
    assert!(matches!(Checkpoint::open(&missing), Err(CheckpointError::NoFolder { .. })));
    assert_eq!(refusal(folder.path()), "FOLDER: no config.json in it; the folder is empty, download the model into it");
    fill(folder.path(), &[("model.gguf", b"GGUF")]);
    assert_eq!(
        refusal(folder.path()),
        "FOLDER: no config.json in it; model.gguf is a GGUF file, take the model in MLX format (safetensors) instead"
    );
    assert!(matches!(Checkpoint::open(folder.path().join("model.gguf")), Err(CheckpointError::NotAFolder { .. })));
    fill(folder.path(), &[("config.json", b"{}")]);
    for name in ["model.gguf", "weights.npz", "pytorch_model.bin"] {
        let folder = folder_with(&[("config.json", b"{}"), (name, b"..")]);
        assert_eq!(
            refusal(folder.path()),
            format!(
                "FOLDER: no model.safetensors in it; {name} is in another format, take or convert the model as safetensors (MLX or original)"
            )
        );
    }
    let shard = "model-00001-of-00002.safetensors";
    let folder = folder_with(&[("config.json", b"{}"), (shard, b"..")]);
    assert!(refusal(folder.path()).contains("no model.safetensors.index.json that tells what belongs together"));
}

#[test]
fn configurations_that_are_no_objects_are_refused() {
    let deep = format!(r#"{{"a":{}1{}}}"#, "[".repeat(1000), "]".repeat(1000));
    let huge = format!(r#"{{"a":"{}"}}"#, "x".repeat(16 << 20));
    for (config, words) in [
        ("[]", "FOLDER/config.json: a list, wanted an object"),
        ("", "FOLDER/config.json: not valid JSON: EOF"),
        ("{} {}", "FOLDER/config.json: not valid JSON: trailing"),
        (&deep, "FOLDER/config.json: not valid JSON: recursion limit exceeded"),
        (&huge, "FOLDER/config.json: 16777224 bytes, and at most 16777216 are read"),
        ("version https://git-lfs.github.com/spec/v1\n", "FOLDER/config.json: a Git LFS pointer"),
    ] {
        let folder = folder_with(&[("config.json", config.as_bytes()), ("model.safetensors", &file_with(&[]))]);
        let refusal = refusal(folder.path());
        assert!(refusal.starts_with(words), "{refusal}");
    }
}

#[test]
fn weight_files_that_are_none_are_refused() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 12345\n";
    for (weights, words) in [
        (&pointer[..], "a Git LFS pointer of a few bytes, not the file itself; run `git lfs pull`"),
        (b"", "0 bytes, too short"),
        (b"1234567", "7 bytes, too short"),
        (b"<html>page not found</html>", "a header of 7021180454484338748 bytes, where safetensors allows 100000000"),
    ] {
        let folder = folder_with(&[("config.json", b"{}"), ("model.safetensors", weights)]);
        let refusal = refusal(folder.path());
        assert!(refusal.starts_with(&format!("FOLDER/model.safetensors: {words}")), "{refusal}");
    }
    let folder = folder_with(&[("config.json", b"{}")]);
    fs::create_dir(folder.path().join("model.safetensors")).unwrap();
    assert_eq!(refusal(folder.path()), "FOLDER/model.safetensors: not a plain file");
}

#[test]
fn indexes_that_do_not_hold_are_refused() {
    let (one, two) = (file_with(&[("a", "F32", &[1])]), file_with(&[("b", "F32", &[1])]));
    let again = file_with(&[("a", "F32", &[1])]);
    let cases: [(Vec<u8>, &str); 9] = [
        (
            index_of(&[("a", "1.safetensors"), ("x", "3.safetensors"), ("y", "4.safetensors")]),
            "FOLDER/model.safetensors.index.json: lists 2 files that the folder lacks: 3.safetensors, 4.safetensors; download the missing files",
        ),
        (
            index_of(&[("a", "1.safetensors"), ("x", "2.safetensors")]),
            "FOLDER/model.safetensors.index.json: promises x in 2.safetensors, which has no such tensor",
        ),
        (
            index_of(&[("a", "1.safetensors"), ("b", "1.safetensors"), ("b2", "2.safetensors")]),
            "FOLDER/model.safetensors.index.json: promises b in 1.safetensors, which has no such tensor; 2.safetensors has it",
        ),
        (
            index_of(&[("a", "1.safetensors"), ("b", "again.safetensors")]),
            "a: in both 1.safetensors and again.safetensors; one name may stand for one tensor only",
        ),
        (index_of(&[("a", "../1.safetensors")]), "\"../1.safetensors\": not the name of a file inside the folder"),
        (index_of(&[("a", "/etc/passwd")]), "\"/etc/passwd\": not the name of a file inside the folder"),
        (index_of(&[]), "FOLDER/model.safetensors.index.json: weight_map lists no tensor"),
        (
            b"{}".to_vec(),
            "FOLDER/model.safetensors.index.json: no weight_map, the object that tells each tensor's file",
        ),
        (
            br#"{"weight_map":{"a":1}}"#.to_vec(),
            "FOLDER/model.safetensors.index.json: weight_map: \"a\" is a number, wanted a file's name",
        ),
    ];
    for (index, words) in cases {
        let folder = folder_with(&[
            ("config.json", b"{}"),
            ("1.safetensors", &one),
            ("2.safetensors", &two),
            ("again.safetensors", &again),
            ("model.safetensors.index.json", &index),
        ]);
        assert_eq!(refusal(folder.path()), words);
    }
}

#[test]
fn a_stale_index_beside_a_whole_model_is_named() {
    let folder = folder_with(&[
        ("config.json", b"{}"),
        ("model.safetensors", &file_with(&[])),
        ("model.safetensors.index.json", &index_of(&[("a", "model-00001-of-00002.safetensors")])),
    ]);
    assert!(refusal(folder.path()).ends_with("or delete the index if model.safetensors is the whole model"));
}

#[test]
fn sidecars_stay_inside_the_folder_and_within_their_limits() {
    let folder = folder_with(&[("config.json", b"{}"), ("model.safetensors", &file_with(&[])), ("list.json", b"[1]")]);
    fs::write(folder.path().join("tokenizer.json"), vec![b' '; (1 << 20) + 1]).unwrap();
    fs::write(folder.path().join("chat_template.jinja"), vec![b' '; (1 << 20) + 1]).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.folder().file("tokenizer.json").unwrap().unwrap().len(), (1 << 20) + 1);
    assert!(matches!(
        checkpoint.folder().file("chat_template.jinja"),
        Err(CheckpointError::TooLarge { found: 1048577, .. })
    ));
    assert!(matches!(checkpoint.folder().json("list.json"), Err(CheckpointError::Json { .. })));
    assert_eq!(checkpoint.folder().json("generation_config.json").unwrap(), None);
    for name in ["", ".", "..", "../config.json", "a/b", "a\\b", "/etc/passwd", "c:config.json", "a\0b"] {
        assert!(matches!(checkpoint.folder().file(name), Err(CheckpointError::BadName { .. })), "{name:?}");
    }
}

#[test]
fn a_model_is_named_by_its_folder_or_its_repository() {
    let base = TempDir::new().unwrap();
    for (path, name) in [
        ("gemma-4-e2b-it-4bit", "gemma-4-e2b-it-4bit"),
        ("models--mlx-community--gemma-4-e2b-it-4bit/snapshots/0123abcd", "gemma-4-e2b-it-4bit"),
        ("snapshots/other", "other"),
    ] {
        let folder = base.path().join(path);
        fs::create_dir_all(&folder).unwrap();
        fill(&folder, &[("config.json", b"{}"), ("model.safetensors", &file_with(&[]))]);
        assert_eq!(Checkpoint::open(&folder).unwrap().name(), name);
        assert_eq!(Checkpoint::open(folder.join("..").join(folder.file_name().unwrap())).unwrap().name(), name);
    }
}

#[cfg(unix)]
#[test]
fn links_in_the_folder_are_followed_and_broken_ones_named() {
    let base = folder_with(&[("blob-config", b"{}"), ("blob-weights", &file_with(&[("a", "F32", &[1])]))]);
    let folder = base.path().join("snapshot");
    fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink("../blob-config", folder.join("config.json")).unwrap();
    std::os::unix::fs::symlink("../blob-weights", folder.join("model.safetensors")).unwrap();
    assert!(Checkpoint::open(&folder).unwrap().tensor("a").is_some());
    fs::remove_file(base.path().join("blob-weights")).unwrap();
    assert_eq!(refusal(&folder), "FOLDER/model.safetensors: a link to a file that is not there; download it anew");
}

/// Offsets are 64 bits wide from the header to the bytes. The file is a hole: it takes no space.
#[cfg(all(unix, target_pointer_width = "64"))]
#[test]
fn a_tensor_beyond_four_gigabytes_is_read() {
    use std::os::unix::fs::FileExt;
    let hole = 5u64 << 30;
    let header = format!(
        r#"{{"hole":{{"dtype":"U8","shape":[{hole}],"data_offsets":[0,{hole}]}},"tail":{{"dtype":"F32","shape":[2],"data_offsets":[{hole},{}]}}}}"#,
        hole + 8
    );
    let folder = folder_with(&[("config.json", b"{}"), ("model.safetensors", &file_of(&header, b""))]);
    let file = fs::OpenOptions::new().write(true).open(folder.path().join("model.safetensors")).unwrap();
    let tail = [7.0f32, -8.0].map(f32::to_le_bytes).concat();
    file.write_all_at(&tail, 8 + header.len() as u64 + hole).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.tensor("hole").unwrap().info.bytes(), hole);
    assert_eq!(checkpoint.tensor("tail").unwrap().to_f32().unwrap(), [7.0, -8.0]);
    checkpoint.prefetch("tail");
    checkpoint.release("hole");
}

/// Released pages leave the process and come back from the file with the same bytes.
#[cfg(target_os = "linux")]
#[test]
fn released_tensors_leave_memory_and_stay_readable() {
    let size = 4 << 20;
    let header = format!(r#"{{"t":{{"dtype":"U8","shape":[{size}],"data_offsets":[0,{size}]}}}}"#);
    let data: Vec<u8> = (0..size).map(|index| (index % 251) as u8).collect();
    let folder = folder_with(&[("config.json", b"{}"), ("model.safetensors", &file_of(&header, &data))]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let resident = || {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let own = maps.split_once(&folder.path().join("model.safetensors").display().to_string()).unwrap().1;
        let line = own.lines().find(|line| line.starts_with("Rss:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
    };
    assert_eq!(checkpoint.tensor("t").unwrap().bytes, data);
    assert!(resident() >= size - (128 << 10), "read once: {} bytes", resident());
    checkpoint.release("t");
    assert!(resident() <= 256 << 10, "released: {} bytes", resident());
    assert_eq!(checkpoint.tensor("t").unwrap().bytes, data);
}

#[test]
fn checkpoints_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Checkpoint>();
}
