//! A model's folder, opened: every file found, every tensor's size proved, the configuration read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{CheckpointError, quoted};
use crate::folder::{CONFIG, Folder, INDEX};
use crate::header::{self, is_name};
use crate::quantization::Quantization;
use crate::source::{Source, kind_of};
use crate::storage::Storage;
use crate::tensor::{TensorInfo, TensorView};

const SINGLE: &str = "model.safetensors";

/// An opened model: its configuration and its tensors by name.
pub struct Checkpoint {
    name: String,
    folder: Folder,
    config: Map<String, Value>,
    quantization: Quantization,
    files: Vec<WeightFile>,
    tensors: Vec<TensorInfo>, // by name
    warnings: Vec<String>,
}

/// One safetensors file of a checkpoint.
pub struct WeightFile {
    name: String,
    storage: Storage,
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checkpoint({}, {} tensors in {} files)", self.name, self.tensors.len(), self.files.len())
    }
}

impl WeightFile {
    /// Its name in the folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its size in bytes, header included.
    pub fn bytes(&self) -> u64 {
        self.storage.bytes().len() as u64
    }
}

impl Checkpoint {
    /// Opens a folder that holds `config.json` and either `model.safetensors` or the shards that
    /// `model.safetensors.index.json` lists.
    ///
    /// Weight files are mapped, not read. They must not be shortened while the checkpoint lives: a
    /// read of pages that are gone ends the process with SIGBUS. Replacing a file by renaming
    /// another over it is safe.
    pub fn open(dir: impl AsRef<Path>) -> Result<Checkpoint, CheckpointError> {
        Checkpoint::read(Folder::open(dir)?)
    }

    /// A model that is part of the program: its files by name, under the same proofs as a folder.
    pub fn from_memory(name: &str, files: &[(&str, &'static [u8])]) -> Result<Checkpoint, CheckpointError> {
        Checkpoint::read(Folder::from_memory(name, files))
    }

    fn read(folder: Folder) -> Result<Checkpoint, CheckpointError> {
        let source = &folder.source;
        let names = source.names()?;
        let Some(config) = folder.json(CONFIG)? else {
            return Err(CheckpointError::NoConfig { folder: source.place(), hint: hint_of_config(&names) });
        };
        let mut warnings = Vec::new();
        let quantization = Quantization::read(&config, &mut warnings)?;
        let index = Index::read(&folder)?;
        let weight_names = match &index {
            Some(index) => index.shards(),
            None if names.iter().any(|name| name == SINGLE) => vec![SINGLE.to_owned()],
            None => {
                return Err(CheckpointError::NoWeights { folder: source.place(), hint: hint_of_weights(&names) });
            }
        };
        let mut files = Vec::new();
        let mut missing = Vec::new();
        for name in weight_names {
            match source.weights(&name)? {
                Some(storage) => files.push(WeightFile { name, storage }),
                None => missing.push(name),
            }
        }
        if !missing.is_empty() {
            let has_single = !missing.iter().any(|name| name == SINGLE) && names.iter().any(|name| name == SINGLE);
            return Err(CheckpointError::MissingShards {
                index: source.path_of(INDEX),
                hint: if has_single {
                    format!(", or delete the index if {SINGLE} is the whole model")
                } else {
                    String::new()
                },
                files: missing,
            });
        }
        let tensors = list_tensors(source, &files)?;
        if let Some(index) = &index {
            index.prove(source, &files, &tensors, &mut warnings)?;
        }
        for name in names.iter().filter(|name| name.ends_with(".safetensors")) {
            if files.iter().all(|file| file.name != *name) {
                warnings.push(format!("{name}: in the folder, but not part of the model; not read"));
            }
        }
        Ok(Checkpoint { name: folder.name(), folder, config, quantization, files, tensors, warnings })
    }

    /// The folder's name, or the name given to [`Checkpoint::from_memory`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `config.json` as it stands.
    pub fn config(&self) -> &Map<String, Value> {
        &self.config
    }

    /// What `config.json` says of quantization.
    pub fn quantization(&self) -> &Quantization {
        &self.quantization
    }

    /// The weight files, in the order that [`TensorInfo::file`] counts.
    pub fn files(&self) -> &[WeightFile] {
        &self.files
    }

    /// What is odd, though not wrong: a sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The files beside the weights.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Every tensor, by name.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    /// The tensor of this full name.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let info = self.info(name)?;
        let bytes = &self.files[info.file].storage.bytes()[info.start..info.end];
        Some(TensorView { info, bytes })
    }

    pub(crate) fn info(&self, name: &str) -> Option<&TensorInfo> {
        let index = self.tensors.binary_search_by(|info| info.name.as_str().cmp(name)).ok()?;
        Some(&self.tensors[index])
    }

    /// Gives the memory that holds this tensor's part of the mapped file back to the system, as far
    /// as whole pages lie inside it. The tensor stays readable: a later read brings the pages back
    /// from the file. Does nothing for a model in memory or an unknown name.
    pub fn release(&self, tensor: &str) {
        if let Some(info) = self.info(tensor) {
            self.files[info.file].storage.release(info.start..info.end);
        }
    }

    /// Asks the system to read this tensor ahead. Does nothing for a model in memory or an unknown
    /// name.
    pub fn prefetch(&self, tensor: &str) {
        if let Some(info) = self.info(tensor) {
            self.files[info.file].storage.prefetch(info.start..info.end);
        }
    }
}

/// The tensors of all files by name; no name twice.
fn list_tensors(source: &Source, files: &[WeightFile]) -> Result<Vec<TensorInfo>, CheckpointError> {
    let mut tensors = Vec::new();
    for (index, file) in files.iter().enumerate() {
        let listed = header::read(file.storage.bytes(), index)
            .map_err(|fault| CheckpointError::Header { file: source.path_of(&file.name), fault })?;
        tensors.extend(listed);
    }
    tensors.sort_by(|a, b| (&a.name, a.file).cmp(&(&b.name, b.file)));
    if let Some(pair) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(CheckpointError::DuplicateTensor {
            tensor: pair[0].name.clone(),
            first: files[pair[0].file].name.clone(),
            second: files[pair[1].file].name.clone(),
        });
    }
    Ok(tensors)
}

/// `weight_map` of the index: the shard of each tensor.
struct Index(BTreeMap<String, String>);

impl Index {
    fn read(folder: &Folder) -> Result<Option<Index>, CheckpointError> {
        let source = &folder.source;
        let Some(index) = folder.json(INDEX)? else { return Ok(None) };
        let wrong = |reason| CheckpointError::Json { file: source.path_of(INDEX), reason };
        let weight_map = match index.get("weight_map") {
            Some(Value::Object(weight_map)) if !weight_map.is_empty() => weight_map,
            Some(Value::Object(_)) => return Err(wrong("weight_map lists no tensor".to_owned())),
            Some(other) => return Err(wrong(format!("weight_map is {}, wanted an object", kind_of(other)))),
            None => return Err(wrong("no weight_map, the object that tells each tensor's file".to_owned())),
        };
        let mut shards = BTreeMap::new();
        for (tensor, shard) in weight_map {
            let Value::String(shard) = shard else {
                let name = quoted(tensor);
                return Err(wrong(format!("weight_map: {name} is {}, wanted a file's name", kind_of(shard))));
            };
            if !is_name(tensor) {
                return Err(wrong(format!("weight_map: {} is no name of a tensor", quoted(tensor))));
            }
            shards.insert(tensor.clone(), shard.clone());
        }
        Ok(Some(Index(shards)))
    }

    /// Each file once, by name.
    fn shards(&self) -> Vec<String> {
        self.0.values().collect::<BTreeSet<_>>().into_iter().cloned().collect()
    }

    /// Each promised tensor is where it is promised; tensors without a promise are warned of.
    fn prove(
        &self,
        source: &Source,
        files: &[WeightFile],
        tensors: &[TensorInfo],
        warnings: &mut Vec<String>,
    ) -> Result<(), CheckpointError> {
        let found_in: BTreeMap<&str, &str> =
            tensors.iter().map(|info| (info.name.as_str(), files[info.file].name.as_str())).collect();
        for (tensor, shard) in &self.0 {
            let found = found_in.get(tensor.as_str()).copied();
            if found != Some(shard) {
                return Err(CheckpointError::MissingTensor {
                    index: source.path_of(INDEX),
                    tensor: tensor.clone(),
                    file: shard.clone(),
                    elsewhere: found.map(|file| format!("; {file} has it")).unwrap_or_default(),
                });
            }
        }
        for (tensor, file) in found_in {
            if !self.0.contains_key(tensor) {
                warnings.push(format!("{tensor}: in {file}, but not in {INDEX}"));
            }
        }
        Ok(())
    }
}

fn hint_of_config(names: &[String]) -> String {
    if names.is_empty() {
        return "the folder is empty, download the model into it".to_owned();
    }
    match names.iter().find(|name| name.ends_with(".gguf")) {
        Some(name) => format!("{name} is a GGUF file, take the model in MLX format (safetensors) instead"),
        None => "give the folder that holds the model's config.json and model.safetensors".to_owned(),
    }
}

fn hint_of_weights(names: &[String]) -> String {
    if let Some(shard) = names.iter().find(|name| name.ends_with(".safetensors")) {
        return format!("it has {shard}, but no {INDEX} that tells what belongs together: download that file too");
    }
    let other = names.iter().find(|name| {
        [".gguf", ".npz", ".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".h5"].iter().any(|end| name.ends_with(end))
    });
    match other {
        Some(name) => {
            format!("{name} is in another format, take or convert the model as safetensors (MLX or original)")
        }
        None => "download the weights (model.safetensors, or its shards and their index) into it".to_owned(),
    }
}
