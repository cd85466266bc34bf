//! What a step says of its wanted rows: tokens drawn as transformers draws them (`goldens/data/sampling.json`), the
//! same log-probabilities whatever runs beside a row, and each row whose logits are no numbers.

mod common;

use std::sync::Arc;

use checkpoint::{DType, MatrixSource};
use common::{cpu, data, reference};
use cpu::Precision;
use cpu::isa::Isa;
use cpu::kernels::{Kernels, sample::Sampler};
use markbase_conformance::{Make, TensorSet};
use plan::{
    Adjustment, BackendError, CacheLayout, Choice, CompileOptions, NonFinite, PlanBuilder, Sampling, Site, StepInputs,
    StepOutputs, TokenMask, WeightShape, WeightSource, WeightSpec, WeightUse,
};
use reference::ops::sample;

/// One line of `sampling.json`.
struct Golden {
    logits: Vec<f32>,
    choice: Choice,
    /// The likeliest first.
    kept: Vec<(u32, f64)>,
    /// `[vocabulary]`
    log_probabilities: Vec<f32>,
}

fn goldens() -> Vec<Golden> {
    let text = std::fs::read_to_string(data().join("sampling.json")).expect("goldens/data is part of the project");
    let lines: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    lines.iter().map(golden).collect()
}

fn golden(line: &serde_json::Value) -> Golden {
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let numbers = |name: &str| line[name].as_array().unwrap().iter().map(number).collect::<Vec<f64>>();
    let ids = |value: &serde_json::Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let logits: Vec<f32> = numbers("logits").into_iter().map(|logit| logit as f32).collect();
    let repeated = ids(&line["tokens"]);
    let bias: Vec<(u32, f32)> = line["bias"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| (number(&pair[0]) as u32, pair[1].as_f64().map_or(f32::NEG_INFINITY, |bias| bias as f32)))
        .collect();
    let adjustment = |token: u32| {
        let add = bias.iter().find(|(biased, _)| *biased == token).map(|(_, add)| *add);
        let repeated = repeated.contains(&token);
        (repeated || add.is_some()).then_some(Adjustment { token, repeated, add: add.unwrap_or(0.0) })
    };
    let mask = line["allowed"].is_array().then(|| {
        let mut mask = TokenMask::none(logits.len());
        ids(&line["allowed"]).into_iter().for_each(|token| mask.set(token));
        Arc::new(mask)
    });
    let sampling = Sampling {
        temperature: number(&line["temperature"]) as f32,
        top_k: number(&line["top_k"]) as u32,
        top_p: number(&line["top_p"]) as f32,
        min_p: number(&line["min_p"]) as f32,
        seed: 0,
    };
    let choice = Choice {
        sampling,
        repetition_penalty: number(&line["repetition_penalty"]) as f32,
        adjustments: (0..logits.len() as u32).filter_map(adjustment).collect(),
        mask,
        log_probabilities: None,
    };
    let kept = ids(&line["kept"]).into_iter().zip(numbers("probabilities")).collect();
    let log_probabilities = numbers("log_probabilities").into_iter().map(|x| x as f32).collect();
    Golden { logits, choice, kept, log_probabilities }
}

/// Whether two of the logits are equal: then the oracle tells how many are kept, not which.
fn has_equals(logits: &[f32]) -> bool {
    (1..logits.len()).any(|i| logits[..i].contains(&logits[i]))
}

#[test]
fn the_reference_draws_from_what_transformers_keeps() {
    let goldens = goldens();
    assert!(goldens.len() >= 60 && goldens.iter().filter(|golden| has_equals(&golden.logits)).count() >= 7);
    for (index, Golden { logits, choice, kept, .. }) in goldens.iter().enumerate() {
        let found = sample::distribution(logits, choice);
        let tokens = |of: &[(u32, f64)]| of.iter().map(|(token, _)| *token).collect::<Vec<u32>>();
        match has_equals(logits) {
            true => assert_eq!(found.len(), kept.len(), "case {index}: {choice:?}"),
            false => assert_eq!(tokens(&found), tokens(kept), "case {index}: {choice:?}"),
        }
        for ((token, got), (_, want)) in found.iter().zip(kept) {
            assert!((got - want).abs() < 1e-9, "case {index}: token {token} has {got}, the oracle says {want}");
        }
    }
}

#[test]
fn the_cpu_draws_each_token_over_its_share() {
    for (index, Golden { logits, choice, kept, .. }) in goldens().iter().enumerate() {
        // Of equals the first are kept.
        let kept = if has_equals(logits) { &sample::distribution(logits, choice) } else { kept };
        for isa in Isa::supported() {
            let mut sampler = Sampler::new(Kernels::for_isa(isa), logits.len());
            let mut below = 0.0;
            for (token, probability) in kept {
                // A rounding of f32 inside either border; shares smaller than that have none.
                for uniform in [below + 1e-6, below + probability - 1e-6] {
                    if *probability > 2e-6 {
                        assert_eq!(sampler.choose(logits, choice, uniform), *token, "case {index}, {isa}: {uniform}");
                    }
                }
                below += probability;
            }
        }
    }
}

#[test]
fn log_probabilities_are_those_of_torch() {
    for (index, Golden { logits, log_probabilities, .. }) in goldens().iter().enumerate() {
        let mut likeliest: Vec<usize> = (0..logits.len()).collect();
        likeliest.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        for (token, want) in log_probabilities.iter().enumerate() {
            let mut sampler = Sampler::new(Kernels::for_isa(Isa::best()), logits.len());
            let found = [
                sample::log_probabilities(logits, token as u32, 5),
                sampler.log_probabilities(logits, token as u32, 5),
            ];
            for found in found {
                // One rounding of numbers up to 24, and the golden's last digit.
                assert!((found.chosen - want).abs() < 2e-6, "case {index} token {token}: {found:?}, wanted {want}");
                let tokens: Vec<usize> = found.top.iter().map(|(token, _)| *token as usize).collect();
                assert_eq!(tokens, likeliest[..5.min(logits.len())], "case {index}");
                assert!(found.top.iter().all(|(token, x)| (x - log_probabilities[*token as usize]).abs() < 2e-6));
            }
        }
    }
}

/// A model that is a table and, where there is one, a head.
struct Lookup<'a> {
    /// `[tokens, columns]`: a row of the step is that of its token, and the logits are it where there is no head.
    table: &'a [f32],
    columns: usize,
    /// `[vocabulary, columns]`
    head: Option<&'a [f32]>,
    watch: bool,
}

impl Lookup<'_> {
    fn step(&self, make: &Make, tokens: &[u32], wanted: &[u32], choice: &Choice) -> Result<StepOutputs, BackendError> {
        let &Lookup { table, columns, head, watch } = self;
        let mut tensors = TensorSet::default();
        let mut build = PlanBuilder::new(CacheLayout { block_size: 16, groups: vec![] });
        let site = |role| Site { layer: None, role };
        let mut weight = |build: &mut PlanBuilder, name: &str, numbers: &[f32], gathered| {
            let rows = numbers.len() / columns;
            tensors.insert_floats(name, DType::F32, &[rows, columns], numbers);
            let source = MatrixSource::Dense { tensor: name.into(), dtype: DType::F32 };
            build.weight(WeightSpec {
                name: name.into(),
                shape: WeightShape::Matrix { rows, columns },
                source: WeightSource::Matrix { source, rows: None },
                usage: WeightUse { gathered, multiplied: !gathered },
            })
        };
        let table = weight(&mut build, "table", table, true);
        let rows = build.embed(site("embed"), table, 1.0);
        let rows = build.whole(rows);
        let mut logits = build.select_rows(site("selected"), rows);
        if let Some(head) = head {
            let head = weight(&mut build, "head", head, false);
            logits = build.linear(site("head"), logits, head);
        }
        let sampled = build.sample(site("sampled"), logits);
        let plan = build.finish(logits, sampled).unwrap();
        let checkpoint = tensors.checkpoint("lookup").unwrap();
        let count = tokens.len();
        let options = CompileOptions { max_rows: count, max_wanted: wanted.len(), keep: vec![], watch };
        let inputs = StepInputs {
            tokens: tokens.to_vec(),
            positions: (0..count as u32).collect(),
            sequences: (0..count as u32).collect(),
            wanted: wanted.to_vec(),
            sampling: vec![Some(choice.clone()); wanted.len()],
            ..StepInputs::default()
        };
        let mut backend = make();
        backend.load(&plan.weights, &checkpoint, &mut |_| {}).unwrap();
        backend.reserve_cache(&plan.cache, &[]).unwrap();
        let executable = backend.compile(&plan, &options).unwrap();
        let ticket = backend.launch(executable, &inputs)?;
        backend.collect(ticket)
    }
}

fn backends() -> Vec<Box<dyn Fn() -> Box<dyn plan::Backend>>> {
    let of_cpu = |(isa, threads)| -> Box<dyn Fn() -> Box<dyn plan::Backend>> {
        Box::new(move || cpu(isa, threads, Precision::Fast))
    };
    let cpus = Isa::supported().into_iter().flat_map(|isa| [(isa, 1), (isa, 3)]).map(of_cpu);
    std::iter::once::<Box<dyn Fn() -> Box<dyn plan::Backend>>>(Box::new(reference)).chain(cpus).collect()
}

#[test]
fn each_wanted_row_that_is_not_finite_is_named_once() {
    let columns = 600;
    let mut table = vec![0.5; 4 * columns];
    for (token, column, number) in
        [(1, 599, f32::NAN), (1, 300, f32::INFINITY), (2, 0, f32::NEG_INFINITY), (3, 256, f32::NAN)]
    {
        table[token * columns + column] = number;
    }
    let (tokens, wanted) = ([3, 0, 1, 0, 2, 2], [1, 2, 3, 5]);
    for make in backends() {
        let step = |watch| {
            let lookup = Lookup { table: &table, columns, head: None, watch };
            let outputs = lookup.step(&make, &tokens, &wanted, &Sampling::GREEDY.into()).unwrap();
            outputs.non_finite.into_iter().map(|NonFinite { value, row, column }| (value.0, row, column)).collect()
        };
        let found: Vec<_> = step(false);
        assert_eq!(found, [(1, 1, 300), (1, 3, 0)], "{}", make().name());
        // The embedding's first row comes before; it is not wanted.
        let found: Vec<_> = step(true);
        assert_eq!(found, [(0, 0, 256), (1, 1, 300), (1, 3, 0)], "{} that watches", make().name());
    }
}

#[test]
fn log_probabilities_do_not_depend_on_threads_or_on_rows_beside() {
    // So many products that a step is not left to one thread.
    let (vocabulary, columns) = (6_000, 512);
    let numbers = |seed, count| (0..count).map(|i| plan::uniform(seed, i as u32) - 0.5).collect::<Vec<f32>>();
    let (table, head) = (numbers(5, 217 * columns), numbers(6, vocabulary * columns));
    let lookup = Lookup { table: &table, columns, head: Some(&head), watch: false };
    let sampling = Sampling { temperature: 1.0, seed: 3, ..Sampling::GREEDY };
    let choice = Choice { log_probabilities: Some(6), ..sampling.into() };
    let tokens: Vec<u32> = (0..7).map(|row| row * 31).collect();
    let wanted: Vec<u32> = (0..7).collect();
    let alone = lookup.step(&|| cpu(Isa::best(), 1, Precision::Fast), &tokens[..1], &[0], &choice).unwrap();
    let mut all: Option<StepOutputs> = None;
    for isa in Isa::supported() {
        for threads in 1..=3 {
            let outputs = lookup.step(&|| cpu(isa, threads, Precision::Fast), &tokens, &wanted, &choice).unwrap();
            assert_eq!(outputs.sampled[0], alone.sampled[0], "{isa}, {threads} threads");
            assert_eq!(outputs.sampled.len(), 7);
            assert!(
                outputs
                    .sampled
                    .iter()
                    .all(|sampled| { sampled.log_probabilities.as_ref().is_some_and(|found| found.top.len() == 6) })
            );
            let first = all.get_or_insert_with(|| outputs.clone());
            assert_eq!(outputs, *first, "{isa}, {threads} threads");
        }
    }
}

#[test]
fn a_choice_that_cannot_be_is_refused_before_the_step() {
    let lookup = Lookup { table: &[0.0; 12], columns: 6, head: None, watch: false };
    let choice = |mask, token| Choice {
        mask: Some(Arc::new(mask)),
        adjustments: vec![Adjustment { token, repeated: false, add: 1.0 }],
        ..Sampling::GREEDY.into()
    };
    let cases = [
        (choice(TokenMask::none(6), 5), "step inputs: row 1 chooses with a mask that allows no token"),
        (choice(TokenMask::all(7), 5), "step inputs: row 1 chooses with a mask of 7 tokens, wanted 6"),
        (choice(TokenMask::all(6), 6), "step inputs: row 1 chooses with an adjustment of token 6, there are 6"),
    ];
    for make in backends() {
        assert!(lookup.step(&make, &[0, 1], &[1], &choice(TokenMask::all(6), 5)).is_ok());
        for (choice, wanted) in &cases {
            let error = lookup.step(&make, &[0, 1], &[1], choice).unwrap_err();
            assert_eq!(error.to_string(), *wanted, "{}", make().name());
        }
    }
}
