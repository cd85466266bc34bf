//! Writing of tiny checkpoints.

use std::ops::ControlFlow;
use std::path::Path;

use checkpoint::{Checkpoint, QuantFormat};
use markbase_synth::{Recipe, Summary, SynthError, TinyKind, TinyOptions, tiny_config, write};

/// Of a tiny model; seed 7.
pub fn recipe(kind: TinyKind, quant: Option<QuantFormat>) -> Recipe {
    Recipe::new(tiny_config(kind, TinyOptions::default()), quant, 7)
}

/// Writes without a look at the progress.
pub fn write_all(recipe: &Recipe, out: &Path) -> Result<Summary, SynthError> {
    write(recipe, out, &mut |_| ControlFlow::Continue(()))
}

/// Writes into a folder and opens it; the folder lives as long as the first of the two.
#[allow(dead_code)] // Not every test file opens what it writes.
pub fn written(recipe: &Recipe) -> (tempfile::TempDir, Checkpoint) {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("model");
    write_all(recipe, &out).unwrap();
    let checkpoint = Checkpoint::open(&out).unwrap();
    (scratch, checkpoint)
}
