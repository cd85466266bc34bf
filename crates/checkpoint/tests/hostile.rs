//! Headers made to mislead: each is an error, in bounded memory, whatever the bytes are.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{file_of, file_with, leak};
use markbase_checkpoint::{Checkpoint, CheckpointError, HeaderFault};
use proptest::prelude::*;
use safetensors::SafeTensors;
use serde_json::json;

/// Counts what the thread holds, to prove that no size from a file is believed before it is proved.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    HELD.set(HELD.get() + bytes);
    MOST.set(MOST.get().max(HELD.get()));
}

// SAFETY: every call goes to the system's allocator unchanged; the counters allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The result of `run`, and the most bytes held meanwhile.
fn measured<T>(run: impl FnOnce() -> T) -> (T, isize) {
    HELD.set(0);
    MOST.set(0);
    let result = run();
    (result, MOST.get())
}

/// Opens a model of this one weight file; the bytes it held at most are a small multiple of the file.
fn open(bytes: Vec<u8>) -> Result<Checkpoint, CheckpointError> {
    let length = bytes.len() as isize;
    let weights = leak(bytes);
    let (result, held) =
        measured(|| Checkpoint::from_memory("m", &[("config.json", b"{}"), ("model.safetensors", weights)]));
    assert!(held < (64 << 10) + 32 * length, "{held} bytes held for a file of {length}");
    result
}

fn fault(bytes: Vec<u8>) -> HeaderFault {
    match open(bytes) {
        Err(CheckpointError::Header { file, fault }) => {
            assert_eq!(file, "m/model.safetensors");
            fault
        }
        other => panic!("wanted a fault of the header, found {other:?}"),
    }
}

/// The fault of a header with this one tensor and 16 bytes of data.
fn fault_of_entry(dtype: &str, shape: &str, offsets: &str) -> HeaderFault {
    let header = format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#);
    fault(file_of(&header, &[0; 16]))
}

fn with_length(length: u64) -> Vec<u8> {
    let mut bytes = file_with(&[("t", "F32", &[2])]);
    bytes[..8].copy_from_slice(&length.to_le_bytes());
    bytes
}

#[test]
fn lengths_of_the_header_are_proved_against_the_file() {
    assert_eq!(fault(with_length(u64::MAX)), HeaderFault::TooLong { bytes: u64::MAX });
    assert_eq!(fault(with_length(i64::MAX as u64)), HeaderFault::TooLong { bytes: i64::MAX as u64 });
    assert_eq!(fault(with_length(u64::MAX - 7)), HeaderFault::TooLong { bytes: u64::MAX - 7 });
    assert_eq!(fault(with_length(100_000_001)), HeaderFault::TooLong { bytes: 100_000_001 });
    assert!(matches!(fault(with_length(100_000_000)), HeaderFault::Cut { bytes: 100_000_000, .. }));
    assert!(matches!(fault(with_length(3)), HeaderFault::Json { .. }));
    assert!(matches!(fault(with_length(0)), HeaderFault::Json { .. }));
    assert_eq!(fault(vec![0; 7]), HeaderFault::TooShort { bytes: 7 });
    let whole = with_length(0).len() as u64 - 8;
    assert!(matches!(fault(with_length(whole + 1)), HeaderFault::Cut { .. }));
}

#[test]
fn shapes_that_wrap_are_refused() {
    let wraps = |shape: &str| matches!(fault_of_entry("F32", shape, "[0,16]"), HeaderFault::Overflow { .. });
    assert!(wraps("[4294967296,4294967296]")); // 2^64 elements: zero, where products wrap
    assert!(wraps("[4611686018427387904]")); // 2^62 elements of 4 bytes: zero again
    assert!(wraps("[4611686018427387905]"));
    assert!(wraps("[18446744073709551615,18446744073709551615]"));
    assert!(matches!(fault_of_entry("F32", "[18446744073709551616]", "[0,16]"), HeaderFault::Json { .. }));
    assert!(matches!(fault_of_entry("F32", "[-1]", "[0,16]"), HeaderFault::Json { .. }));
    assert!(matches!(fault_of_entry("F32", "[2.5]", "[0,16]"), HeaderFault::Json { .. }));
    let ones = format!("[{}]", ["1"; 5000].join(","));
    assert!(matches!(fault_of_entry("F32", &ones, "[0,16]"), HeaderFault::Json { .. }));
}

#[test]
fn offsets_are_proved_against_shape_and_file() {
    let fault = |offsets: &str| fault_of_entry("F32", "[4]", offsets);
    assert!(matches!(fault("[16,0]"), HeaderFault::Inverted { start: 16, end: 0, .. }));
    assert!(matches!(fault("[0,17]"), HeaderFault::Outside { end: 17, data_bytes: 16, .. }));
    assert!(matches!(fault("[0,18446744073709551615]"), HeaderFault::Outside { .. }));
    assert!(matches!(fault("[18446744073709551600,18446744073709551615]"), HeaderFault::Outside { .. }));
    assert!(matches!(fault("[0,15]"), HeaderFault::Size { wanted: 16, found: 15, .. }));
    assert!(matches!(fault("[0]"), HeaderFault::Json { .. }));
    assert!(matches!(fault("[0,16,16]"), HeaderFault::Json { .. }));
    assert!(matches!(fault("[-16,0]"), HeaderFault::Json { .. }));
    let zero = fault_of_entry("F32", "[0]", "[0,0]");
    assert_eq!(zero, HeaderFault::Gap { start: 0, end: 16 });
    let short = fault_of_entry("F32", "[3]", "[4,16]");
    assert_eq!(short, HeaderFault::Gap { start: 0, end: 4 });
    let dtype = fault_of_entry("F8_E8M0", "[16]", "[0,16]");
    assert_eq!(dtype.to_string(), "tensor t: elements of type \"F8_E8M0\", which is not read");
}

#[test]
fn tensors_that_share_bytes_are_refused() {
    let two = |a: &str, b: &str| {
        let entry = |offsets: &str| format!(r#"{{"dtype":"U8","shape":[8],"data_offsets":{offsets}}}"#);
        fault(file_of(&format!(r#"{{"a":{},"b":{}}}"#, entry(a), entry(b)), &[0; 16]))
    };
    let overlap = two("[0,8]", "[7,15]");
    assert_eq!(overlap.to_string(), "tensor b: data from byte 7, inside the data of a that ends at byte 8");
    assert!(matches!(two("[0,8]", "[0,8]"), HeaderFault::Overlap { .. }));
    assert!(matches!(two("[8,16]", "[4,12]"), HeaderFault::Gap { start: 0, end: 4 }));
}

#[test]
fn headers_of_another_form_are_refused() {
    let cases = [
        "",
        "{",
        "[]",
        "null",
        "1",
        r#"{"t":1}"#,
        r#"{"t":{}}"#,
        r#"{"t":{"dtype":"F32","shape":[4]}}"#,
        r#"{"t":{"dtype":4,"shape":[4],"data_offsets":[0,16]}}"#,
        r#"{"t":{"dtype":"F32","shape":4,"data_offsets":[0,16]}}"#,
        r#"{"t":{"dtype":"F32","shape":[4],"data_offsets":{}}}"#,
        r#"{"":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#,
        "{\"a\\u001b[2J\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}",
        r#"{"t":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}} x"#,
    ];
    for header in cases {
        assert!(matches!(fault(file_of(header, &[0; 16])), HeaderFault::Json { .. }), "{header}");
    }
    let twice = r#"{"t":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"t":{"dtype":"I32","shape":[4],"data_offsets":[0,16]}}"#;
    let sentence = fault(file_of(twice, &[0; 16])).to_string();
    assert!(sentence.starts_with("header: tensor t is listed twice"), "{sentence}");
    let mut bytes = file_with(&[("t", "F32", &[4])]);
    bytes[10] = 0xff; // no UTF-8
    assert!(matches!(fault(bytes), HeaderFault::Json { .. }));
    let deep = format!(r#"{{"__metadata__":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert!(matches!(fault(file_of(&deep, &[])), HeaderFault::Json { .. }));
}

#[test]
fn empty_tensors_are_sound_wherever_they_stand() {
    let header = r#"{"b":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"a":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},"c":{"dtype":"F32","shape":[0],"data_offsets":[16,16]}}"#;
    let checkpoint = open(file_of(header, &[0; 16])).unwrap();
    assert!(checkpoint.tensor("a").unwrap().to_f32().unwrap().is_empty());
    assert_eq!(checkpoint.tensor("b").unwrap().to_f32().unwrap(), [0.0; 4]);
}

/// Memory grows with the header, never with what it says; `open` measures it.
#[test]
fn headers_of_many_tensors_are_read_in_bounded_memory() {
    let names: Vec<String> = (0..20_000).map(|index| format!("{index}")).collect();
    let tensors: Vec<common::Spec> = names.iter().map(|name| (name.as_str(), "U8", &[][..])).collect();
    let mut bytes = file_with(&tensors);
    assert_eq!(open(bytes.clone()).unwrap().tensors().count(), 20_000);
    bytes.pop();
    assert!(matches!(fault(bytes), HeaderFault::Outside { end: 20_000, .. }));
}

/// What the format's own reader makes of the same bytes: names, shapes and bytes, or a refusal.
fn prove_agreement(bytes: &[u8]) -> Result<(), TestCaseError> {
    let ours = open(bytes.to_vec());
    let theirs = SafeTensors::deserialize(bytes);
    if let Ok(ours) = &ours {
        let theirs = match theirs {
            Ok(theirs) => theirs,
            Err(error) => return Err(TestCaseError::fail(format!("taken, though safetensors says {error}"))),
        };
        prop_assert_eq!(ours.tensors().count(), theirs.len());
        for info in ours.tensors() {
            let theirs = theirs.tensor(&info.name).unwrap();
            prop_assert_eq!(theirs.shape(), &info.shape);
            prop_assert_eq!(theirs.dtype().to_string(), info.dtype.name());
            prop_assert_eq!(theirs.data(), ours.tensor(&info.name).unwrap().bytes);
        }
    }
    Ok(())
}

/// Sound files of up to six tensors, in any order of their data.
fn sound_file() -> impl Strategy<Value = Vec<u8>> {
    let dtype =
        prop::sample::select(vec![("F32", 4u64), ("BF16", 2), ("U8", 1), ("I64", 8), ("BOOL", 1), ("F8_E4M3", 1)]);
    let tensor = (dtype, prop::collection::vec(0u64..5, 0..4));
    prop::collection::vec(tensor, 0..6).prop_shuffle().prop_map(|tensors| {
        let mut header = serde_json::Map::new();
        let mut end = 0;
        for (index, ((dtype, size), shape)) in tensors.into_iter().enumerate() {
            let start = end;
            end += size * shape.iter().product::<u64>();
            let name = format!("layers.{}.weight", 7 * index % 11);
            header.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]}));
        }
        let data: Vec<u8> = (0..end).map(|byte| byte as u8).collect();
        file_of(&serde_json::Value::Object(header).to_string(), &data)
    })
}

proptest! {
    #[test]
    fn sound_files_are_read_as_safetensors_reads_them(bytes in sound_file()) {
        open(bytes.clone()).unwrap();
        prove_agreement(&bytes)?;
    }

    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(open(bytes).is_err());
    }

    /// The length is right, so that the JSON itself is reached.
    #[test]
    fn random_headers_are_refused(header in "[\\[\\]{}:,\"0-9a-z_ ]{0,80}", data in prop::collection::vec(any::<u8>(), 0..20)) {
        prove_agreement(&file_of(&header, &data))?;
    }

    /// Bytes of a sound file changed, cut and added: never taken where safetensors refuses.
    #[test]
    fn damaged_files_are_taken_only_if_still_sound(
        mut bytes in sound_file(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in 0usize..3,
        added in prop::collection::vec(any::<u8>(), 0..3),
    ) {
        for (index, value) in changes {
            let index = index.index(bytes.len());
            bytes[index] = value;
        }
        bytes.truncate(bytes.len() - cut);
        bytes.extend(added);
        prove_agreement(&bytes)?;
    }

    /// Digits of a sound header changed: sizes and offsets that almost fit.
    #[test]
    fn headers_with_other_numbers_are_taken_only_if_still_sound(
        bytes in sound_file(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), b'0'..=b'9'), 1..4),
    ) {
        let mut bytes = bytes;
        let digits: Vec<usize> = (8..bytes.len()).filter(|index| bytes[*index].is_ascii_digit()).collect();
        if !digits.is_empty() {
            for (index, digit) in changes {
                bytes[digits[index.index(digits.len())]] = digit;
            }
        }
        prove_agreement(&bytes)?;
    }
}
