//! Writes safetensors files that never exist half-written: tensors are announced, then their bytes
//! come in pieces, and only a complete file takes its final name.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::dtype::DType;
use crate::error::{CheckpointError, quoted};
use crate::header::is_name;

/// A tensor that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its full name.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// A tensor of this name, type and shape.
    pub fn new(name: impl Into<String>, dtype: DType, shape: &[usize]) -> TensorSpec {
        TensorSpec { name: name.into(), dtype, shape: shape.to_owned() }
    }

    /// Its bytes in the file; `None` if they are more than can be counted.
    fn bytes(&self) -> Option<u64> {
        self.shape
            .iter()
            .try_fold(self.dtype.bytes() as u64, |product, size| product.checked_mul(u64::try_from(*size).ok()?))
    }
}

/// A safetensors file being written.
///
/// The file is written under a temporary name beside its final one, which it takes in
/// [`finish`](Writer::finish); dropped before that, it is removed.
pub struct Writer {
    path: PathBuf,
    partial: PathBuf,
    file: Option<File>, // until finished
    file_bytes: u64,
    position: u64,
    tensors: Vec<Progress>, // as announced
    current: usize,
}

/// How far a tensor is.
struct Progress {
    name: String,
    start: u64, // in the file
    bytes: u64,
    written: u64,
}

/// The file that `path` means: what a link leads to, and nothing but a plain file or a free name, since a device or
/// a pipe would be replaced.
fn final_place(path: &Path) -> Result<PathBuf, CheckpointError> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => {
            std::fs::canonicalize(path).map_err(|source| CheckpointError::Io { path: path.to_owned(), source })
        }
        Ok(_) => Err(CheckpointError::Write {
            file: path.display().to_string(),
            reason: "there already, and no plain file; give the name of a new file".into(),
        }),
        Err(_) => Ok(path.to_owned()),
    }
}

impl Writer {
    /// Begins a file at `path` that will hold exactly `tensors`; `metadata` are notes such as
    /// `("format", "mlx")`.
    ///
    /// A link is followed; what stands there already must be a plain file, which `finish` replaces.
    ///
    /// In the file, tensors of wider elements come first, so that every tensor is aligned.
    pub fn create(
        path: impl AsRef<Path>,
        tensors: &[TensorSpec],
        metadata: &[(&str, &str)],
    ) -> Result<Writer, CheckpointError> {
        let path = final_place(path.as_ref())?;
        let wrong = |reason| CheckpointError::Write { file: path.display().to_string(), reason };
        let mut order: Vec<usize> = (0..tensors.len()).collect();
        order.sort_by_key(|index| std::cmp::Reverse(tensors[*index].dtype.bytes()));
        let mut header = Map::new();
        if !metadata.is_empty() {
            let notes = metadata.iter().map(|(key, note)| (key.to_string(), json!(note))).collect();
            header.insert("__metadata__".to_owned(), Value::Object(notes));
        }
        let mut starts = vec![0; tensors.len()];
        let mut data_bytes = 0u64;
        for index in order {
            let tensor = &tensors[index];
            let end = tensor.bytes().and_then(|bytes| data_bytes.checked_add(bytes));
            let end = end.ok_or_else(|| wrong(format!("tensor {} is larger than any file", tensor.name)))?;
            starts[index] = data_bytes;
            let entry = json!({"dtype": tensor.dtype.name(), "shape": tensor.shape, "data_offsets": [data_bytes, end]});
            if !is_name(&tensor.name) || tensor.name == "__metadata__" {
                return Err(wrong(format!("{} is no name of a tensor", quoted(&tensor.name))));
            }
            if header.insert(tensor.name.clone(), entry).is_some() {
                return Err(wrong(format!("tensor {} is announced twice", tensor.name)));
            }
            data_bytes = end;
        }
        let mut header = Value::Object(header).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let data_start = 8 + header.len() as u64;
        let progress = |(tensor, start): (&TensorSpec, &u64)| Progress {
            name: tensor.name.clone(),
            start: data_start + start,
            bytes: tensor.bytes().expect("counted above"),
            written: 0,
        };
        let tensors = tensors.iter().zip(&starts).map(progress).collect();
        let (mut file, partial) = create_partial(&path)?;
        let mut writer = Writer {
            path,
            partial,
            file: None,
            file_bytes: data_start + data_bytes,
            position: data_start,
            tensors,
            current: 0,
        };
        let begun = file.write_all(&(header.len() as u64).to_le_bytes()).and_then(|()| file.write_all(&header));
        writer.file = Some(file);
        begun.map_err(|error| writer.refused(error))?;
        Ok(writer)
    }

    /// Appends bytes to a tensor: all of it, or the next piece. Tensors may come in any order and
    /// by turns; their bytes are little-endian and row-major.
    pub fn write(&mut self, tensor: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        // Tensors mostly come in the order announced: the current one, or the one after it.
        let count = self.tensors.len();
        let found =
            (0..count).map(|step| (self.current + step) % count).find(|index| self.tensors[*index].name == tensor);
        let Some(index) = found else {
            return Err(self.wrong(format!("tensor {tensor} was not announced")));
        };
        let progress = &self.tensors[index];
        let (start, written, wanted) = (progress.start, progress.written, progress.bytes);
        if bytes.len() as u64 > wanted - written {
            let found = written + bytes.len() as u64;
            return Err(self.wrong(format!("tensor {tensor}: {found} bytes given, {wanted} announced")));
        }
        let at = start + written;
        let file = self.file.as_mut().expect("open until finished");
        let moved = if at == self.position { Ok(at) } else { file.seek(SeekFrom::Start(at)) };
        if let Err(error) = moved.and_then(|_| file.write_all(bytes)) {
            self.position = u64::MAX; // Nobody knows where the file stands now.
            return Err(self.refused(error));
        }
        self.position = at + bytes.len() as u64;
        self.tensors[index].written += bytes.len() as u64;
        self.current = index;
        Ok(())
    }

    /// Proves that every tensor is complete, brings the file to the disk and gives it its name,
    /// replacing a file that has it. Returns the file's size in bytes.
    pub fn finish(mut self) -> Result<u64, CheckpointError> {
        let short = self.tensors.iter().find(|tensor| tensor.written != tensor.bytes);
        if let Some(Progress { name, bytes, written, .. }) = short {
            return Err(self.wrong(format!("tensor {name}: {written} bytes given, {bytes} announced")));
        }
        let file = self.file.as_ref().expect("open until finished");
        file.sync_all().map_err(|error| self.refused(error))?;
        self.file = None; // Closed: Windows renames no open file.
        if let Err(error) = fs::rename(&self.partial, &self.path).and_then(|()| sync_folder(&self.path)) {
            let _ = fs::remove_file(&self.partial);
            return Err(self.refused(error));
        }
        Ok(self.file_bytes)
    }

    fn wrong(&self, reason: String) -> CheckpointError {
        CheckpointError::Write { file: self.path.display().to_string(), reason }
    }

    fn refused(&self, source: io::Error) -> CheckpointError {
        CheckpointError::Io { path: self.path.clone(), source }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// Writes `model.safetensors.index.json` into `dir`: which of `files` holds which tensor.
pub fn write_index(dir: impl AsRef<Path>, files: &[(&str, &[TensorSpec])]) -> Result<(), CheckpointError> {
    let path = dir.as_ref().join("model.safetensors.index.json");
    let wrong = |reason| CheckpointError::Write { file: path.display().to_string(), reason };
    let mut entries: Vec<(&str, &str)> = Vec::new();
    let mut total_bytes = 0u64;
    for (file, tensors) in files {
        for tensor in *tensors {
            let total = tensor.bytes().and_then(|bytes| total_bytes.checked_add(bytes));
            total_bytes = total.ok_or_else(|| wrong(format!("tensor {} is larger than any file", tensor.name)))?;
            entries.push((&tensor.name, file));
        }
    }
    entries.sort();
    if let Some(pair) = entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(wrong(format!("tensor {} is in both {} and {}", pair[0].0, pair[0].1, pair[1].1)));
    }
    let weight_map: Map<String, Value> =
        entries.into_iter().map(|(tensor, file)| (tensor.to_owned(), json!(file))).collect();
    let index = json!({"metadata": {"total_size": total_bytes}, "weight_map": weight_map});
    let (mut file, partial) = create_partial(&path)?;
    let written = file.write_all(format!("{index:#}\n").as_bytes()).and_then(|()| file.sync_all());
    drop(file);
    let named = written.and_then(|()| fs::rename(&partial, &path)).and_then(|()| sync_folder(&path));
    named.map_err(|source| {
        let _ = fs::remove_file(&partial);
        CheckpointError::Io { path, source }
    })
}

/// A new file beside `path`, hidden and of this call alone.
fn create_partial(path: &Path) -> Result<(File, PathBuf), CheckpointError> {
    let Some(name) = path.file_name() else {
        let reason = "not a file's name".to_owned();
        return Err(CheckpointError::Write { file: path.display().to_string(), reason });
    };
    let mut attempt = 0;
    loop {
        let partial = path.with_file_name(format!(".{}.{attempt}.partial", name.to_string_lossy()));
        match File::create_new(&partial) {
            Ok(file) => return Ok((file, partial)),
            // Another writer's, or left behind by a process that was killed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < 1000 => attempt += 1,
            Err(source) => return Err(CheckpointError::Io { path: path.to_owned(), source }),
        }
    }
}

/// A rename is on the disk once its folder is.
fn sync_folder(path: &Path) -> io::Result<()> {
    #[cfg(unix)] // Elsewhere folders cannot be opened, and renames are kept by the system.
    {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}
