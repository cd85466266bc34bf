//! The reference against values that transformers and mlx-vlm computed (`goldens/`), site by site.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint::{Checkpoint, TensorView};
use engine::{Engine, EngineOptions};
use model::Model;
use plan::{Backend, Plan, Value};
use reference::Reference;

/// Largest difference of a logit or of a site's value that f32 sums of another order explain: the two
/// oracles differ by up to 7e-5 from each other.
const TOLERANCE: f32 = 2e-4;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens/data")
}

fn folders() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data()).expect("goldens/data is part of the project");
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    assert!(folders.len() >= 13, "{} folders", folders.len());
    folders
}

/// The goldens of one run: a safetensors file read through the checkpoint crate.
struct Goldens(Checkpoint);

impl Goldens {
    fn open(folder: &Path, file: &str) -> Option<Goldens> {
        let bytes: &'static [u8] = std::fs::read(folder.join(file)).ok()?.leak();
        Some(Goldens(Checkpoint::from_memory(file, &[("config.json", b"{}"), ("model.safetensors", bytes)]).unwrap()))
    }

    fn get(&self, name: &str) -> Option<(Vec<usize>, Vec<f32>)> {
        let view: TensorView = self.0.tensor(name)?;
        Some((view.info.shape.clone(), view.to_f32().unwrap()))
    }

    fn ids(&self, name: &str) -> Vec<usize> {
        let view = self.0.tensor(name).unwrap_or_else(|| panic!("no {name}"));
        view.to_i64().unwrap().into_iter().map(|id| id as usize).collect()
    }
}

/// The value of the plan that a golden's name means.
fn site(plan: &Plan, name: &str) -> Option<Value> {
    let parts: Vec<&str> = name.split('.').collect();
    match parts[..] {
        ["embed"] => plan.find(None, "embed_tokens"),
        ["per_layer_inputs"] => plan.find(None, "per_layer_inputs"),
        ["final_norm"] => plan.find(None, "norm"),
        ["logits"] => Some(plan.logits),
        ["layer", layer, what] => {
            let layer = Some(layer.parse().unwrap());
            match what {
                "attention" => plan.find(layer, "o_proj"),
                "hidden" => plan.find(layer, "layer_scalar"),
                _ => None,
            }
        }
        _ => None,
    }
}

fn compare(folder: &Path, file: &str) -> usize {
    let Some(goldens) = Goldens::open(folder, file) else { return 0 };
    let checkpoint = Arc::new(Checkpoint::open(folder).unwrap());
    let model = Model::read(&checkpoint).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let tokens: Vec<u32> = goldens.ids("input_ids").into_iter().map(|id| id as u32).collect();
    let names: Vec<String> = goldens.0.tensors().map(|info| info.name.clone()).collect();
    let sites: Vec<(&String, Value)> = names.iter().filter_map(|name| Some((name, site(&model.plan, name)?))).collect();
    let options = EngineOptions {
        context: tokens.len(),
        sequences: 1,
        max_rows: tokens.len(),
        max_wanted: tokens.len(),
        keep: sites.iter().map(|(_, value)| *value).collect(),
        watch: true,
    };
    let mut backend = Reference::new();
    backend.load(&model.plan.weights, &checkpoint, &mut |_| {}).unwrap();
    let mut engine = Engine::new(Box::new(backend), model.plan, options).unwrap();
    let mut sequence = engine.sequence();
    let mut kept = vec![];
    engine.feed(&mut sequence, &tokens, 0..tokens.len(), |_, outputs| {
        assert_eq!(outputs.non_finite, None);
        kept = outputs.kept;
    })
    .unwrap();
    for ((name, value), got) in sites.iter().zip(&kept) {
        let (shape, want) = goldens.get(name).unwrap();
        let rows = goldens.ids(if *name == "logits" { "logits_rows" } else { "rows" });
        let columns = engine.plan().value(*value).columns;
        assert_eq!(shape, [rows.len(), columns], "{name}");
        for (row, want) in rows.iter().zip(want.chunks_exact(columns)) {
            let got = &got[row * columns..(row + 1) * columns];
            for (column, (got, want)) in got.iter().zip(want).enumerate() {
                let bound = TOLERANCE * want.abs().max(1.0);
                assert!(
                    (got - want).abs() <= bound,
                    "{} {name} row {row} column {column}: {got}, the oracle says {want}",
                    folder.display()
                );
            }
        }
    }
    sites.len()
}

#[test]
fn reference_agrees_with_the_oracles_at_every_site() {
    for folder in folders() {
        let sites = compare(&folder, "goldens.safetensors");
        assert!(sites > 4, "{}: {sites} sites", folder.display());
    }
}

#[test]
fn reference_agrees_with_the_oracles_on_long_prompts() {
    let compared = folders().iter().filter(|folder| compare(folder, "goldens-long.safetensors") > 0).count();
    assert!(compared >= 2, "{compared} long goldens");
}
