//! Backends against values that transformers and mlx-vlm computed (`goldens/`), site by site.

mod common;

use std::path::Path;

use checkpoint::{Checkpoint, TensorView};
use common::{cpu, folders, open, reference, subject};
use cpu::Precision;
use cpu::isa::Isa;
use engine::{Engine, EngineOptions};
use markbase_conformance::{Make, Subject, distribution};
use plan::{Plan, Value};

/// Largest difference of a logit or of a site's value that f32 sums of another order explain: the two
/// oracles differ by up to 7e-5 from each other.
const REFERENCE_TOLERANCE: f32 = 2e-4;

/// The same where activations and sums are f32 all the way.
const F32_TOLERANCE: f32 = 1e-3;

/// Nats a position that keys and values in f16 and 15-bit activations may cost.
const FAST_KL: f64 = 1e-5;

/// The goldens of one run: a safetensors file read through the checkpoint crate.
struct Goldens(Checkpoint);

impl Goldens {
    fn open(folder: &Path, file: &str) -> Option<Goldens> {
        let bytes: &'static [u8] = std::fs::read(folder.join(file)).ok()?.leak();
        Some(Goldens(Checkpoint::from_memory(file, &[("config.json", b"{}"), ("model.safetensors", bytes)]).unwrap()))
    }

    /// Shape and numbers, ids as numbers.
    fn get(&self, name: &str) -> (Vec<usize>, Vec<f32>) {
        let view: TensorView = self.0.tensor(name).unwrap_or_else(|| panic!("no {name}"));
        let numbers = match view.info.dtype.is_float_weight() {
            true => view.to_f32().unwrap(),
            false => view.to_i64().unwrap().into_iter().map(|id| id as f32).collect(),
        };
        (view.info.shape.clone(), numbers)
    }

    fn ids(&self, name: &str) -> Vec<usize> {
        self.get(name).1.into_iter().map(|id| id as usize).collect()
    }

    fn tokens(&self) -> Vec<u32> {
        self.ids("input_ids").into_iter().map(|id| id as u32).collect()
    }
}

/// The value of the plan that a golden's name means.
fn site(plan: &Plan, name: &str) -> Option<Value> {
    let named = |layer: u32, value: &str| {
        let value = format!("{value}.{layer}");
        plan.values.iter().position(|spec| spec.name == value).map(|place| Value(place as u32))
    };
    let parts: Vec<&str> = name.split('.').collect();
    match parts[..] {
        ["embed"] => plan.find(None, "embed_tokens"),
        ["per_layer_inputs"] => plan.find(None, "per_layer_inputs"),
        ["final_norm"] => plan.find(None, "norm"),
        ["logits"] => Some(plan.logits),
        ["layer", layer, what] => {
            let layer = layer.parse().unwrap();
            match what {
                "attention" => named(layer, "o_proj"),
                "hidden" => named(layer, "layer_scalar"),
                "router_ids" => named(layer, "router_experts"),
                "router_weights" => named(layer, "router_weights"),
                _ => None,
            }
        }
        _ => None,
    }
}

/// How values are computed and compared.
struct Trial<'a> {
    make: &'a Make<'a>,
    watch: bool,
    tolerance: f32,
}

/// Compares every site of one run; returns how many there are.
fn compare(folder: &Path, file: &str, trial: &Trial) -> usize {
    let Some(goldens) = Goldens::open(folder, file) else { return 0 };
    let Subject { checkpoint, plan } = subject(open(folder));
    let tokens = goldens.tokens();
    let mut sites: Vec<(String, Value)> = vec![];
    for info in goldens.0.tensors() {
        match site(&plan, &info.name) {
            Some(value) => sites.push((info.name.clone(), value)),
            None => assert!(["input_ids", "rows", "logits_rows"].contains(&info.name.as_str()), "{}", info.name),
        }
    }
    let options = EngineOptions {
        context: tokens.len(),
        sequences: 1,
        max_rows: tokens.len(),
        max_wanted: tokens.len(),
        keep: sites.iter().map(|(_, value)| *value).collect(),
        watch: trial.watch,
    };
    let mut backend = (trial.make)();
    backend.load(&plan.weights, &checkpoint, &mut |_| {}).unwrap();
    let mut engine = Engine::new(backend, plan, options).unwrap();
    let mut sequence = engine.sequence();
    let mut kept = vec![];
    engine
        .feed(&mut sequence, &tokens, 0..tokens.len(), |_, outputs| {
            assert_eq!(outputs.non_finite, []);
            kept = outputs.kept;
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    for ((name, value), got) in sites.iter().zip(&kept) {
        let (shape, want) = goldens.get(name);
        let rows = goldens.ids(if name == "logits" { "logits_rows" } else { "rows" });
        let columns = engine.plan().value(*value).columns;
        assert_eq!(shape, [rows.len(), columns], "{name}");
        for (row, want) in rows.iter().zip(want.chunks_exact(columns)) {
            let got = &got[row * columns..(row + 1) * columns];
            for (column, (got, want)) in got.iter().zip(want).enumerate() {
                let bound = match name.ends_with("router_ids") {
                    true => 0.0,
                    false => trial.tolerance * want.abs().max(1.0),
                };
                assert!(
                    (got - want).abs() <= bound,
                    "{}: {} {name} row {row} column {column}: {got}, the oracle says {want}",
                    engine.backend_name(),
                    folder.display()
                );
            }
        }
    }
    sites.len()
}

#[test]
fn reference_agrees_with_the_oracles_at_every_site() {
    let trial = Trial { make: &reference, watch: true, tolerance: REFERENCE_TOLERANCE };
    for folder in folders() {
        let sites = compare(&folder, "goldens.safetensors", &trial);
        assert!(sites > 4, "{}: {sites} sites", folder.display());
    }
}

#[test]
fn reference_agrees_with_the_oracles_on_long_prompts() {
    let trial = Trial { make: &reference, watch: true, tolerance: REFERENCE_TOLERANCE };
    let compared = folders().iter().filter(|folder| compare(folder, "goldens-long.safetensors", &trial) > 0).count();
    assert!(compared >= 2, "{compared} long goldens");
}

#[test]
fn cpu_exact_agrees_with_the_oracles_at_every_site() {
    for isa in Isa::supported() {
        for watch in [false, true] {
            let make = || cpu(isa, 2, Precision::Exact);
            let trial = Trial { make: &make, watch, tolerance: F32_TOLERANCE };
            for folder in folders() {
                let sites = compare(&folder, "goldens.safetensors", &trial);
                assert!(sites > 4, "{}: {sites} sites", folder.display());
                compare(&folder, "goldens-long.safetensors", &trial);
            }
        }
    }
}

#[test]
fn cpu_fast_predicts_nearly_the_distribution_of_the_reference() {
    for folder in folders() {
        let subject = subject(open(&folder));
        let tokens = Goldens::open(&folder, "goldens.safetensors").unwrap().tokens();
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        // Results do not depend on the instruction set; each is tried, so that this is known.
        for isa in Isa::supported() {
            let make = || cpu(isa, 2, Precision::Fast);
            let found = distribution(&subject, &reference, &make, &tokens, tokens.len()).unwrap();
            println!("{name:<20} {found}");
            assert!(found.mean_kl < FAST_KL, "{name}: {found}");
            assert_eq!(found.positions, tokens.len());
        }
    }
}
