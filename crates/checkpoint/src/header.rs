//! The header of a safetensors file, read so that nothing in it is believed before it is proved:
//! lengths against the file, shapes by checked arithmetic, and every byte of the data belonging to
//! exactly one tensor.
//!
//! ```text
//! u64 little-endian: bytes of JSON | JSON | data of all tensors, without gaps
//! {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, "__metadata__": {..}}
//! ```

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::dtype::DType;
use crate::error::quoted;
use crate::tensor::TensorInfo;

/// The longest header that is read, in bytes; the format's own limit.
pub(crate) const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The most dimensions of a tensor; no format that is read has more than four.
const MAX_DIMENSIONS: usize = 8;

/// What does not hold in a weight file's header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // Each variant's sentence tells its fields.
pub enum HeaderFault {
    /// Not even room for the length.
    #[error("{bytes} bytes, too short for a safetensors file; download it anew")]
    TooShort { bytes: u64 },
    /// The length of the header passes the format's limit.
    #[error("a header of {bytes} bytes, where safetensors allows {MAX_HEADER_BYTES}; this is no safetensors file")]
    TooLong { bytes: u64 },
    /// The length of the header passes the end of the file.
    #[error(
        "a header of {bytes} bytes in a file of {file_bytes}; it is cut off or no safetensors file, download it anew"
    )]
    Cut { bytes: u64, file_bytes: u64 },
    /// The header is no JSON of the wanted form.
    #[error("header: {reason}")]
    Json { reason: String },
    /// An element type that is not read.
    #[error("tensor {tensor}: elements of type {dtype}, which is not read")]
    Dtype { tensor: String, dtype: String },
    /// The size of the shape passes what can be counted.
    #[error("tensor {tensor}: shape {shape:?} of {dtype} is larger than any file")]
    Overflow { tensor: String, shape: Vec<u64>, dtype: DType },
    /// The end comes before the start.
    #[error("tensor {tensor}: data from byte {start} to byte {end}")]
    Inverted { tensor: String, start: u64, end: u64 },
    /// The data passes the end of the file.
    #[error("tensor {tensor}: data to byte {end} of {data_bytes}; the file is cut off, download it anew")]
    Outside { tensor: String, end: u64, data_bytes: u64 },
    /// The bytes given are not those of the shape.
    #[error("tensor {tensor}: {found} bytes in the file, {wanted} for shape {shape:?} of {dtype}")]
    Size { tensor: String, shape: Vec<u64>, dtype: DType, wanted: u64, found: u64 },
    /// Two tensors share bytes.
    #[error("tensor {tensor}: data from byte {start}, inside the data of {other} that ends at byte {end}")]
    Overlap { tensor: String, other: String, start: u64, end: u64 },
    /// Bytes that belong to no tensor.
    #[error("bytes {start} to {end} of the data belong to no tensor")]
    Gap { start: u64, end: u64 },
}

/// Proves the header of a whole file and lists its tensors, in the order of their data.
///
/// `file` is the index that the tensors are to carry.
pub(crate) fn read(bytes: &[u8], file: usize) -> Result<Vec<TensorInfo>, HeaderFault> {
    let file_bytes = bytes.len() as u64;
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(HeaderFault::TooShort { bytes: file_bytes });
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(HeaderFault::TooLong { bytes: length });
    }
    // Fits usize: it is below the limit.
    let Some((json, data)) = rest.split_at_checked(length as usize) else {
        return Err(HeaderFault::Cut { bytes: length, file_bytes });
    };
    let Entries(entries) =
        serde_json::from_slice(json).map_err(|error| HeaderFault::Json { reason: error.to_string() })?;
    let data_start = 8 + length as usize;
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        tensors.push(prove(name, entry, data.len() as u64, data_start, file)?);
    }
    // An empty tensor sorts before the one that starts at the same byte.
    tensors.sort_by(|a, b| (a.start, a.end, &a.name).cmp(&(b.start, b.end, &b.name)));
    prove_without_gaps(&tensors, data_start, bytes.len())?;
    Ok(tensors)
}

/// One tensor against the size of the data: nothing in it is used before this.
fn prove(
    name: String,
    entry: Entry,
    data_bytes: u64,
    data_start: usize,
    file: usize,
) -> Result<TensorInfo, HeaderFault> {
    let Entry { dtype, shape: Shape(shape), data_offsets: (start, end) } = entry;
    let Some(dtype) = DType::from_name(&dtype) else {
        return Err(HeaderFault::Dtype { tensor: name, dtype: quoted(&dtype) });
    };
    if end < start {
        return Err(HeaderFault::Inverted { tensor: name, start, end });
    }
    if end > data_bytes {
        return Err(HeaderFault::Outside { tensor: name, end, data_bytes });
    }
    // Each dimension must fit too: one zero among them would hide a dimension beyond usize.
    let sizes: Option<Vec<usize>> = shape.iter().map(|size| usize::try_from(*size).ok()).collect();
    let elements = shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size));
    let wanted = elements.and_then(|count| count.checked_mul(dtype.bytes() as u64));
    let (Some(sizes), Some(wanted)) = (sizes, wanted) else {
        return Err(HeaderFault::Overflow { tensor: name, shape, dtype });
    };
    let found = end - start;
    if found != wanted {
        return Err(HeaderFault::Size { tensor: name, shape, dtype, wanted, found });
    }
    // Both are within the file, which is mapped: they fit usize, and so do the sums.
    let (start, end) = (data_start + start as usize, data_start + end as usize);
    Ok(TensorInfo { name, dtype, shape: sizes, file, start, end })
}

/// Names are printed in errors and listings: no control characters, and no more than a line.
pub(crate) fn is_name(name: &str) -> bool {
    const LONGEST_NAME_BYTES: usize = 512;
    !name.is_empty() && name.len() <= LONGEST_NAME_BYTES && !name.contains(char::is_control)
}

/// Every byte of the data belongs to exactly one tensor. `tensors` are sorted by their data.
fn prove_without_gaps(tensors: &[TensorInfo], data_start: usize, file_bytes: usize) -> Result<(), HeaderFault> {
    let in_data = |byte: usize| (byte - data_start) as u64;
    let mut reached = data_start;
    for (index, tensor) in tensors.iter().enumerate() {
        if tensor.start < reached {
            return Err(HeaderFault::Overlap {
                tensor: tensor.name.clone(),
                other: tensors[index - 1].name.clone(),
                start: in_data(tensor.start),
                end: in_data(reached),
            });
        }
        if tensor.start > reached {
            return Err(HeaderFault::Gap { start: in_data(reached), end: in_data(tensor.start) });
        }
        reached = tensor.end;
    }
    if reached != file_bytes {
        return Err(HeaderFault::Gap { start: in_data(reached), end: in_data(file_bytes) });
    }
    Ok(())
}

/// All entries but `__metadata__`, in the header's order, each name once.
struct Entries(Vec<(String, Entry)>);

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Shape,
    data_offsets: (u64, u64),
}

/// Dimensions, outermost first. A hostile header could otherwise hold millions of ones.
struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors by name")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                let mut names = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !is_name(&name) {
                        return Err(A::Error::custom(format_args!("{} is no name of a tensor", quoted(&name))));
                    }
                    // serde keeps the last of two equal keys without a word; here each must be one tensor.
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format_args!("tensor {name} is listed twice")));
                    }
                    if name == "__metadata__" {
                        // Notes of the writer; nothing that is computed depends on them.
                        map.next_value::<Option<HashMap<String, String>>>()?;
                        continue;
                    }
                    let entry =
                        map.next_value().map_err(|error| A::Error::custom(format_args!("tensor {name}: {error}")))?;
                    entries.push((name, entry));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(EntriesVisitor)
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ShapeVisitor;
        impl<'de> Visitor<'de> for ShapeVisitor {
            type Value = Shape;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX_DIMENSIONS} sizes")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut sizes = Vec::new();
                while let Some(size) = seq.next_element()? {
                    if sizes.len() == MAX_DIMENSIONS {
                        return Err(A::Error::custom(format_args!("a shape of more than {MAX_DIMENSIONS} dimensions")));
                    }
                    sizes.push(size);
                }
                Ok(Shape(sizes))
            }
        }
        deserializer.deserialize_seq(ShapeVisitor)
    }
}
