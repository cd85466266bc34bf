//! Where a checkpoint's files are: a folder, or the program itself. Both give the same errors and
//! pass the same limits.

use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::CheckpointError;
use crate::storage::Storage;

pub(crate) enum Source {
    Folder(PathBuf),
    Memory { name: String, files: Vec<(String, &'static [u8])> },
}

/// The first bytes of the small text file that stands for a large one in a git repository.
const LFS_POINTER: &[u8] = b"version https://git-lfs";

impl Source {
    /// A folder, proved to be one.
    pub fn folder(path: &Path) -> Result<Source, CheckpointError> {
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => Ok(Source::Folder(path.to_owned())),
            Ok(_) => Err(CheckpointError::NotAFolder { path: path.to_owned() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(CheckpointError::NoFolder { path: path.to_owned() })
            }
            Err(source) => Err(CheckpointError::Io { path: path.to_owned(), source }),
        }
    }

    /// How people call the model: the folder's name, or the repository's where the folder is a
    /// snapshot in a Hugging Face cache (`models--owner--NAME/snapshots/REVISION`).
    pub fn model_name(&self) -> String {
        let path = match self {
            Source::Memory { name, .. } => return name.clone(),
            // Resolved where the path's end is no name, or not in the folder written before it.
            Source::Folder(path)
                if path.file_name().is_none() || path.components().any(|part| part == Component::ParentDir) =>
            {
                fs::canonicalize(path).unwrap_or_else(|_| path.clone())
            }
            Source::Folder(path) => path.clone(),
        };
        let name_of = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let parent = path.parent().unwrap_or(Path::new(""));
        if parent.file_name().is_some_and(|name| name == "snapshots")
            && let Some(repository) = parent.parent().and_then(name_of)
            && let Some((_, name)) = repository.strip_prefix("models--").and_then(|rest| rest.split_once("--"))
        {
            return name.to_owned();
        }
        name_of(&path).unwrap_or_else(|| path.display().to_string())
    }

    /// The folder's path or the built-in model's name, for errors.
    pub fn place(&self) -> String {
        match self {
            Source::Folder(path) => path.display().to_string(),
            Source::Memory { name, .. } => name.clone(),
        }
    }

    /// A file's path, for errors.
    pub fn path_of(&self, name: &str) -> String {
        match self {
            Source::Folder(path) => path.join(name).display().to_string(),
            Source::Memory { name: model, .. } => format!("{model}/{name}"),
        }
    }

    /// The names of all files, sorted.
    pub fn names(&self) -> Result<Vec<String>, CheckpointError> {
        let mut names = match self {
            Source::Memory { files, .. } => files.iter().map(|(name, _)| name.clone()).collect(),
            Source::Folder(path) => {
                let refused = |source| CheckpointError::Io { path: path.clone(), source };
                let mut names = Vec::new();
                for entry in fs::read_dir(path).map_err(refused)? {
                    names.push(entry.map_err(refused)?.file_name().to_string_lossy().into_owned());
                }
                names
            }
        };
        names.sort();
        Ok(names)
    }

    /// A whole small file; `None` if there is none of that name. Refuses names that would leave
    /// the folder and files of more than `limit` bytes.
    pub fn small(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, CheckpointError> {
        prove_file_name(name)?;
        let too_large = |found| CheckpointError::TooLarge { file: self.path_of(name), limit, found };
        let bytes = match self {
            Source::Memory { files, .. } => {
                let Some((_, bytes)) = files.iter().find(|(found, _)| found == name) else { return Ok(None) };
                if bytes.len() as u64 > limit {
                    return Err(too_large(bytes.len() as u64));
                }
                bytes.to_vec()
            }
            Source::Folder(folder) => {
                let path = folder.join(name);
                let refused = |source| CheckpointError::Io { path: path.clone(), source };
                if !self.has(&path, name)? {
                    return Ok(None);
                }
                let found = fs::metadata(&path).map_err(refused)?;
                if !found.is_file() {
                    return Err(CheckpointError::NotAFile { file: self.path_of(name) });
                }
                if found.len() > limit {
                    return Err(too_large(found.len()));
                }
                let mut bytes = Vec::new();
                // The limit again: the file may grow while it is read.
                let mut file = fs::File::open(&path).map_err(refused)?.take(limit + 1);
                file.read_to_end(&mut bytes).map_err(refused)?;
                if bytes.len() as u64 > limit {
                    return Err(too_large(bytes.len() as u64));
                }
                bytes
            }
        };
        if bytes.starts_with(LFS_POINTER) {
            return Err(CheckpointError::LfsPointer { file: self.path_of(name) });
        }
        Ok(Some(bytes))
    }

    /// A small file that is a JSON object; `None` if there is none of that name. Nesting is bounded
    /// by the parser (128 levels).
    pub fn object(&self, name: &str, limit: u64) -> Result<Option<Map<String, Value>>, CheckpointError> {
        let Some(bytes) = self.small(name, limit)? else { return Ok(None) };
        let wrong = |reason| CheckpointError::Json { file: self.path_of(name), reason };
        match serde_json::from_slice(&bytes).map_err(|error| wrong(format!("not valid JSON: {error}")))? {
            Value::Object(object) => Ok(Some(object)),
            other => Err(wrong(format!("{}, wanted an object", kind_of(&other)))),
        }
    }

    /// Whether there is a file of that name. A link that leads nowhere is an error: its name is in
    /// the folder, so that "no such file" would mislead.
    fn has(&self, path: &Path, name: &str) -> Result<bool, CheckpointError> {
        let absent = |found: &io::Result<fs::Metadata>| {
            found.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        if !absent(&fs::metadata(path)) {
            return Ok(true);
        }
        if absent(&fs::symlink_metadata(path)) {
            return Ok(false);
        }
        Err(CheckpointError::BrokenLink { file: self.path_of(name) })
    }

    /// The bytes of a weight file; `None` if there is none of that name.
    pub fn weights(&self, name: &str) -> Result<Option<Storage>, CheckpointError> {
        prove_file_name(name)?;
        let storage = match self {
            Source::Memory { files, .. } => {
                let Some((_, bytes)) = files.iter().find(|(found, _)| found == name) else { return Ok(None) };
                Storage::Static(bytes)
            }
            Source::Folder(folder) => {
                let path = folder.join(name);
                if !self.has(&path, name)? {
                    return Ok(None);
                }
                Storage::map(&path, &self.path_of(name))?
            }
        };
        if storage.bytes().starts_with(LFS_POINTER) {
            return Err(CheckpointError::LfsPointer { file: self.path_of(name) });
        }
        Ok(Some(storage))
    }
}

/// The kind of a JSON value, in words.
pub(crate) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A plain name inside the folder. Links in the folder are followed: caches are made of them.
fn prove_file_name(name: &str) -> Result<(), CheckpointError> {
    let leaves = name.is_empty() || name == "." || name == ".." || name.contains(['/', '\\', ':', '\0']);
    if leaves { Err(CheckpointError::BadName { name: name.to_owned() }) } else { Ok(()) }
}
