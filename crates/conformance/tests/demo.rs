//! The demo models' greedy answers against those that the oracles gave (`goldens/data/demo.json`).

mod common;

use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use common::{cpu, data, open, reference, subject};
use cpu::Precision;
use cpu::isa::Isa;
use engine::{Engine, EngineOptions, Wanted, Work};
use markbase_conformance::{Subject, distribution};
use plan::Sampling;

/// Nats a position that keys and values in f16 and 15-bit activations may cost.
const FAST_KL: f64 = 1e-5;

/// Tokens of a prompt at most: longer ones would take a test's time.
const LONGEST_PROMPT: usize = 250;

/// Tokens of an answer that are compared at most.
const LONGEST_ANSWER: usize = 40;

struct Answer {
    case: String,
    prompt: Vec<u32>,
    generated: Vec<u32>,
}

/// Eight cases of a model, spread over its tasks.
fn answers(model: &str) -> Vec<Answer> {
    let text = std::fs::read_to_string(data().join("demo.json")).expect("goldens/data is part of the project");
    let all: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let ids = |value: &serde_json::Value| {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect::<Vec<u32>>()
    };
    let of_model: Vec<&serde_json::Value> = all
        .iter()
        .filter(|entry| entry["model"] == model && entry["prompt_ids"].as_array().unwrap().len() <= LONGEST_PROMPT)
        .collect();
    let answers: Vec<Answer> = (0..8)
        .map(|index| of_model[index * of_model.len() / 8])
        .map(|entry| Answer {
            case: entry["case"].as_str().unwrap().to_owned(),
            prompt: ids(&entry["prompt_ids"]),
            generated: ids(&entry["generated_ids"]).into_iter().take(LONGEST_ANSWER).collect(),
        })
        .collect();
    assert_eq!(answers.len(), 8, "{model}");
    answers
}

/// The demo models that are on this machine: all where they lie beside the project, else the built-in one.
fn models() -> Vec<(String, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let beside = root.join("../../../shared/models");
    let names = ["nano-e", "nano-e-4bit", "nano-unified", "nano-dense-8bit", "nano-moe-8bit"];
    let mut models = vec![];
    for name in names {
        let found = [beside.join(name), root.join("../../models").join(name)];
        match found.into_iter().find(|folder| folder.join("config.json").is_file()) {
            Some(folder) => models.push((name.to_owned(), folder)),
            None => {
                // The handle itself: what the macros print is held back while tests pass.
                let _ =
                    writeln!(std::io::stderr(), "SKIPPED: {name} is not on this machine, its answers are not compared");
            }
        }
    }
    models
}

fn engine(subject: &Subject, precision: Precision, context: usize) -> Engine {
    let mut backend = cpu(Isa::best(), 2, precision);
    backend.load(&subject.plan.weights, &subject.checkpoint, &mut |_| {}).unwrap();
    let options = EngineOptions { context, sequences: 1, max_rows: 64, max_wanted: 1, keep: vec![], watch: false };
    Engine::new(backend, subject.plan.clone(), options).unwrap()
}

fn generate(engine: &mut Engine, answer: &Answer) -> Vec<u32> {
    let mut sequence = engine.sequence();
    let (last, before) = answer.prompt.split_last().expect("a prompt has tokens");
    engine.feed(&mut sequence, before, 0..0, |_, _| ControlFlow::Continue(())).unwrap();
    let mut tokens = vec![*last];
    while tokens.len() <= answer.generated.len() {
        let row = &tokens[tokens.len() - 1..];
        let choice = Some(Sampling::GREEDY.into());
        let work = Work { sequence: &mut sequence, tokens: row, wanted: Wanted::Last, choice };
        let outputs = engine.step(&mut [work]).unwrap();
        tokens.push(outputs.sampled[0].token);
    }
    tokens.split_off(1)
}

fn answers_agree(precision: Precision) {
    for (name, folder) in models() {
        let subject = subject(open(&folder));
        let answers = answers(&name);
        let context = answers.iter().map(|answer| answer.prompt.len() + answer.generated.len()).max().unwrap();
        let mut engine = engine(&subject, precision, context);
        for answer in &answers {
            // The smallest lead of a token that the oracle chose is far above what either precision adds.
            assert_eq!(generate(&mut engine, answer), answer.generated, "{name} {} {precision:?}", answer.case);
        }
    }
}

#[test]
fn cpu_exact_gives_the_oracles_answers() {
    answers_agree(Precision::Exact);
}

#[test]
fn cpu_fast_gives_the_oracles_answers() {
    answers_agree(Precision::Fast);
}

#[test]
fn cpu_fast_predicts_nearly_the_distribution_of_the_reference_in_trained_models() {
    for (name, folder) in models() {
        let subject = subject(open(&folder));
        // A prompt and its answer, as the model has learned to write them.
        let answer = &answers(&name)[5];
        let tokens: Vec<u32> = answer.prompt.iter().chain(&answer.generated).copied().collect();
        let make = || cpu(Isa::best(), 2, Precision::Fast);
        let found = distribution(&subject, &reference, &make, &tokens, tokens.len()).unwrap();
        println!("{name}: {found}");
        assert!(found.mean_kl < FAST_KL, "{name}: {found}");
    }
}
