//! Writes a checkpoint tensor by tensor, in pieces: memory stays the same for any size. The folder
//! is made under a temporary name and takes its own only when everything is in it.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::thread;

use checkpoint::{QuantFormat, TensorSpec, Writer, write_index};
use serde_json::{Map, Value};

use crate::content::PIECE_STEP_BYTES;
use crate::error::SynthError;
use crate::shape::Shape;
use crate::sidecars;
use crate::tensors::{self, ROUTER, Tensor};

/// What is to be written. The same recipe gives the same bytes, on every machine.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// `config.json` without its quantization block: [`config`](crate::config) or
    /// [`tiny_config`](crate::tiny_config).
    pub config: Map<String, Value>,
    /// The format of all matrices; `None` leaves them BF16.
    pub quant: Option<QuantFormat>,
    /// Modules that differ; of two that name one module the last counts.
    pub overrides: Vec<Override>,
    /// Names and stacking of tensors.
    pub layout: Layout,
    /// Of all numbers.
    pub seed: u64,
    /// A file is closed before it would pass this size, unless it holds one tensor alone.
    pub shard_bytes: u64,
}

/// A format of some modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The end of their paths, whole names: `router.proj`, `layers.0.mlp.down_proj`.
    pub suffix: String,
    /// `None` leaves them BF16.
    pub format: Option<QuantFormat>,
}

/// Names and stacking of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// As MLX's converters write: `language_model.model.`, `experts.switch_glu.gate_proj.weight`.
    Mlx,
    /// As first published: `model.language_model.`, `experts.gate_up_proj`; BF16 alone.
    Original,
}

impl Recipe {
    /// A checkpoint in MLX's layout in shards of 5 GB. The router of a quantized one has 8 bits in
    /// groups of 64, as mlx-vlm's converter has it: its scores are compared, not summed.
    pub fn new(config: Map<String, Value>, quant: Option<QuantFormat>, seed: u64) -> Recipe {
        let router = QuantFormat::Affine { bits: 8, group_size: 64 };
        let overrides = quant.map(|_| Override { suffix: ROUTER.to_owned(), format: Some(router) });
        Recipe {
            config,
            quant,
            overrides: overrides.into_iter().collect(),
            layout: Layout::Mlx,
            seed,
            shard_bytes: 5_000_000_000,
        }
    }
}

/// How far the writing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// Bytes of tensors written.
    pub done_bytes: u64,
    /// Bytes of all tensors.
    pub total_bytes: u64,
    /// The tensor being written.
    pub tensor: &'a str,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Bytes of all files.
    pub bytes: u64,
    /// Weights, counted before they are packed.
    pub parameters: u64,
    /// Tensors in the files.
    pub tensors: usize,
    /// Files of weights.
    pub shards: usize,
}

/// Writes a checkpoint into `out`, a folder that does not exist yet or is empty.
///
/// `progress` is called after every piece (some megabytes) and may end the writing with
/// [`ControlFlow::Break`]. Whatever goes wrong, nothing new is left under the name `out`. The
/// temporary folder beside it, `.NAME.0.partial`, outlives only a process that was killed.
pub fn write(
    recipe: &Recipe,
    out: &Path,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Summary, SynthError> {
    let threads = thread::available_parallelism().map_or(1, |count| count.get());
    write_in_pieces(recipe, out, progress, Pieces { bytes: 8 << 20, threads })
}

/// In what portions numbers are drawn; the bytes do not depend on it.
#[derive(Clone, Copy)]
struct Pieces {
    /// A multiple of [`PIECE_STEP_BYTES`].
    bytes: usize,
    threads: usize,
}

fn write_in_pieces(
    recipe: &Recipe,
    out: &Path,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    pieces: Pieces,
) -> Result<Summary, SynthError> {
    let shape = Shape::read(&recipe.config)?;
    let listed = tensors::list(recipe, &shape)?;
    let sidecars = sidecars::files(recipe, &listed.stated)?;
    let target = Target::prove(out)?;
    let total_bytes = listed.tensors.iter().map(Tensor::bytes).sum::<u64>();
    let sidecar_bytes = sidecars.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
    // A tensor's entries in its header and in the index.
    let listing_bytes = 512 * listed.tensors.len() as u64;
    target.prove_space(total_bytes + sidecar_bytes + listing_bytes)?;

    let folder = TemporaryFolder::beside(&target.path)?;
    let notes = match recipe.layout {
        Layout::Mlx => [("format", "mlx")],
        Layout::Original => [("format", "pt")],
    };
    let shards = shards(&listed.tensors, recipe.shard_bytes);
    let mut buffer = vec![0; pieces.bytes];
    let (mut bytes, mut done_bytes) = (sidecar_bytes, 0);
    let mut index: Vec<(String, Vec<TensorSpec>)> = Vec::new();
    for (number, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        };
        let specs: Vec<TensorSpec> = shard.iter().map(|tensor| tensor.spec.clone()).collect();
        let mut writer = Writer::create(folder.path.join(&name), &specs, &notes)?;
        for tensor in *shard {
            let end = tensor.bytes();
            let mut written = 0;
            while written < end {
                let piece_bytes = (end - written).min(buffer.len() as u64) as usize;
                let piece = &mut buffer[..piece_bytes];
                fill(tensor, written, piece, pieces.threads);
                writer.write(&tensor.spec.name, piece)?;
                written += piece_bytes as u64;
                done_bytes += piece_bytes as u64;
                if progress(Progress { done_bytes, total_bytes, tensor: &tensor.spec.name }).is_break() {
                    return Err(SynthError::Stopped { done_bytes, total_bytes });
                }
            }
        }
        bytes += writer.finish()?;
        index.push((name, specs));
    }
    let index: Vec<(&str, &[TensorSpec])> =
        index.iter().map(|(name, specs)| (name.as_str(), specs.as_slice())).collect();
    write_index(&folder.path, &index)?;
    bytes += fs::metadata(folder.path.join("model.safetensors.index.json")).map_or(0, |found| found.len());
    for (name, contents) in &sidecars {
        let path = folder.path.join(name);
        fs::write(&path, contents).map_err(|source| SynthError::Io { path, source })?;
    }
    folder.rename(&target)?;
    let tensors = listed.tensors.len();
    Ok(Summary { bytes, parameters: listed.parameters, tensors, shards: shards.len() })
}

/// Draws a piece of a tensor, by as many threads as it is worth.
fn fill(tensor: &Tensor, first_byte: u64, piece: &mut [u8], threads: usize) {
    const LEAST_BYTES_A_THREAD: usize = 256 << 10; // Some times of what starting a thread costs.
    let part_bytes = piece.len().div_ceil(threads).max(LEAST_BYTES_A_THREAD).next_multiple_of(PIECE_STEP_BYTES);
    if part_bytes >= piece.len() {
        return tensor.content.fill(tensor.stream, first_byte, piece);
    }
    thread::scope(|scope| {
        for (number, part) in piece.chunks_mut(part_bytes).enumerate() {
            let first_byte = first_byte + (number * part_bytes) as u64;
            scope.spawn(move || tensor.content.fill(tensor.stream, first_byte, part));
        }
    });
}

/// Runs of tensors, each of at most `shard_bytes` or of one tensor.
fn shards(tensors: &[Tensor], shard_bytes: u64) -> Vec<&[Tensor]> {
    let mut shards = Vec::new();
    let (mut start, mut bytes) = (0, 0u64);
    for (index, tensor) in tensors.iter().enumerate() {
        bytes += tensor.bytes();
        if bytes > shard_bytes && index > start {
            shards.push(&tensors[start..index]);
            (start, bytes) = (index, tensor.bytes());
        }
    }
    shards.push(&tensors[start..]);
    shards
}

/// Where the folder will stand.
struct Target {
    path: PathBuf,
    /// An empty folder is there and gives way.
    exists: bool,
}

impl Target {
    fn prove(out: &Path) -> Result<Target, SynthError> {
        let refused = |source| SynthError::Io { path: out.to_owned(), source };
        match fs::metadata(out) {
            Ok(found) if !found.is_dir() => Err(SynthError::NotAFolder { path: out.to_owned() }),
            Ok(_) => {
                if fs::read_dir(out).map_err(refused)?.next().is_some() {
                    return Err(SynthError::NotEmpty { path: out.to_owned() });
                }
                // The folder itself, where the path is a link to it or ends in `..`.
                Ok(Target { path: fs::canonicalize(out).map_err(refused)?, exists: true })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if fs::symlink_metadata(out).is_ok() {
                    return Err(SynthError::NotAFolder { path: out.to_owned() }); // A link that leads nowhere.
                }
                if out.file_name().is_none() {
                    return Err(SynthError::NoName { path: out.to_owned() });
                }
                let parent = parent_of(out);
                fs::create_dir_all(parent).map_err(|source| SynthError::Io { path: parent.to_owned(), source })?;
                Ok(Target { path: out.to_owned(), exists: false })
            }
            Err(source) => Err(refused(source)),
        }
    }

    fn prove_space(&self, wanted: u64) -> Result<(), SynthError> {
        let free = fs4::available_space(parent_of(&self.path))
            .map_err(|source| SynthError::Io { path: parent_of(&self.path).to_owned(), source })?;
        if free < wanted {
            return Err(SynthError::DiskFull { path: self.path.clone(), wanted, free });
        }
        Ok(())
    }
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A folder that is removed unless it gets its name.
struct TemporaryFolder {
    path: PathBuf,
    named: bool,
}

impl TemporaryFolder {
    fn beside(target: &Path) -> Result<TemporaryFolder, SynthError> {
        let Some(name) = target.file_name() else {
            return Err(SynthError::NoName { path: target.to_owned() });
        };
        let mut attempt = 0;
        loop {
            let path = target.with_file_name(format!(".{}.{attempt}.partial", name.to_string_lossy()));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(TemporaryFolder { path, named: false }),
                // Another process's, or left behind by one that was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < 1000 => attempt += 1,
                Err(source) => return Err(SynthError::Io { path, source }),
            }
        }
    }

    fn rename(mut self, target: &Target) -> Result<(), SynthError> {
        let refused = |source| SynthError::Io { path: target.path.clone(), source };
        if target.exists {
            fs::remove_dir(&target.path).map_err(refused)?; // Refuses if something came into it.
        }
        if let Err(source) = fs::rename(&self.path, &target.path) {
            if target.exists {
                let _ = fs::create_dir(&target.path);
            }
            return Err(refused(source));
        }
        self.named = true;
        Ok(())
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        if !self.named {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TinyKind, TinyOptions, tiny_config};

    #[test]
    fn files_do_not_depend_on_pieces_and_threads() {
        let scratch = tempfile::tempdir().unwrap();
        let options = TinyOptions { vocabulary: 1280, ..TinyOptions::default() };
        let recipe = Recipe::new(tiny_config(TinyKind::Experts, options), Some(QuantFormat::Mxfp8), 5);
        let write = |name: &str, bytes: usize, threads: usize| {
            let out = scratch.path().join(name);
            let pieces = Pieces { bytes, threads };
            write_in_pieces(&recipe, &out, &mut |_| ControlFlow::Continue(()), pieces).unwrap();
            fs::read(out.join("model.safetensors")).unwrap()
        };
        let whole = write("whole", 8 << 20, 1);
        assert!(whole == write("small", PIECE_STEP_BYTES * 5, 1), "pieces of 320 bytes give other numbers");
        assert!(whole == write("threads", 8 << 20, 7), "seven threads give other numbers");
    }

    #[test]
    fn parts_of_several_threads_join_without_a_seam() {
        let config = tiny_config(TinyKind::Dense, TinyOptions::default());
        let recipe = Recipe::new(config, None, 5);
        let shape = Shape::read(&recipe.config).unwrap();
        let tensor = &tensors::list(&recipe, &shape).unwrap().tensors[0];
        let (mut alone, mut together) = (vec![0; (1 << 20) + 6], vec![1; (1 << 20) + 6]);
        fill(tensor, 4096, &mut alone, 1);
        fill(tensor, 4096, &mut together, 4); // Three parts and a rest.
        assert!(alone == together);
    }

    #[test]
    fn a_disk_without_room_is_refused_before_anything_is_written() {
        let scratch = tempfile::tempdir().unwrap();
        let target = Target::prove(&scratch.path().join("model")).unwrap();
        let error = target.prove_space(u64::MAX).unwrap_err().to_string();
        assert!(error.contains("18446744073709551615 bytes are needed"), "{error}");
        assert!(target.prove_space(1).is_ok());
    }
}
