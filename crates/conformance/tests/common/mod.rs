//! The goldens' checkpoints, altered at will, and the backends under test.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod inject;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint::Checkpoint;
use cpu::isa::Isa;
use cpu::{Cpu, CpuOptions, Precision};
use markbase_conformance::{Subject, TensorSet};
use model::{Model, ModelError};
use plan::Backend;
use reference::Reference;

pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens/data")
}

/// Every folder of the goldens.
pub fn folders() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data()).expect("goldens/data is part of the project");
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    assert!(folders.len() >= 13, "{} folders", folders.len());
    folders
}

pub fn open(folder: &Path) -> Arc<Checkpoint> {
    Arc::new(Checkpoint::open(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())))
}

/// The checkpoint of one of the goldens.
pub fn golden(name: &str) -> Arc<Checkpoint> {
    open(&data().join(name))
}

pub fn subject(checkpoint: Arc<Checkpoint>) -> Subject {
    let plan = Model::read(&checkpoint).unwrap_or_else(|error| panic!("{}: {error}", checkpoint.name())).plan;
    Subject { checkpoint, plan }
}

/// One of the goldens, to be altered.
pub fn tensors(name: &str) -> TensorSet {
    TensorSet::of(&golden(name))
}

/// An altered checkpoint read as a model.
pub fn read(set: &TensorSet) -> Result<(Subject, Model), ModelError> {
    let checkpoint = set.checkpoint("altered").expect("a sound file");
    let model = Model::read(&checkpoint)?;
    Ok((Subject { checkpoint, plan: model.plan.clone() }, model))
}

pub fn altered(set: &TensorSet) -> Subject {
    read(set).unwrap_or_else(|error| panic!("{error}")).0
}

pub fn reference() -> Box<dyn Backend> {
    Box::new(Reference::new())
}

pub fn cpu(isa: Isa, threads: usize, precision: Precision) -> Box<dyn Backend> {
    Box::new(Cpu::new(CpuOptions { threads, precision, isa }).unwrap())
}

/// Token ids below `vocabulary` that have no pattern.
pub fn prompt(length: usize, vocabulary: usize, seed: u64) -> Vec<u32> {
    (0..length as u32).map(|position| (plan::uniform(seed, position) * vocabulary as f32) as u32).collect()
}

/// The logits of every row of `tokens` in one step.
pub fn logits(subject: &Subject, backend: Box<dyn Backend>, tokens: &[u32]) -> Vec<f32> {
    kept(subject, backend, tokens, vec![subject.plan.logits]).remove(0)
}

/// Values of every row of `tokens` in one step.
pub fn kept(subject: &Subject, mut backend: Box<dyn Backend>, tokens: &[u32], keep: Vec<plan::Value>) -> Vec<Vec<f32>> {
    backend.load(&subject.plan.weights, &subject.checkpoint, &mut |_| {}).unwrap();
    let options = engine::EngineOptions {
        context: tokens.len(),
        sequences: 1,
        max_rows: tokens.len(),
        max_wanted: tokens.len(),
        keep,
        watch: false,
    };
    let mut engine = engine::Engine::new(backend, subject.plan.clone(), options).unwrap();
    let mut sequence = engine.sequence();
    let work = engine::Work { sequence: &mut sequence, tokens, wanted: engine::Wanted::All, choice: None };
    engine.step(&mut [work]).unwrap().kept
}
