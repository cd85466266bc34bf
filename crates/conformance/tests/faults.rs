//! Faults that engines of Gemma 4 were found to have, each as a test on the smallest model that shows it.

mod common;

use checkpoint::DType;
use common::{altered, cpu, golden, kept, logits, prompt, read, reference, subject, tensors};
use cpu::Precision;
use cpu::isa::Isa;
use engine::{Engine, EngineOptions, Wanted, Work};
use markbase_conformance::{InvarianceOptions, Subject, TensorSet, finite, invariance};
use plan::{Backend, Op, Plan, Step, Value};

const ORIGINAL: &str = "model.language_model.";
const MLX: &str = "language_model.model.";

fn exact() -> Box<dyn Backend> {
    cpu(Isa::best(), 2, Precision::Exact)
}

fn fast() -> Box<dyn Backend> {
    cpu(Isa::best(), 2, Precision::Fast)
}

/// Logits of 24 rows, the same bits from each backend for both.
fn same_logits(a: &Subject, b: &Subject) {
    let tokens = prompt(24, 320, 7);
    for make in [reference as fn() -> Box<dyn Backend>, exact, fast] {
        assert!(logits(a, make(), &tokens) == logits(b, make(), &tokens), "{}", make().name());
    }
}

/// Whether each row of one value differs.
fn rows_that_differ(a: &[f32], b: &[f32], columns: usize) -> Vec<bool> {
    a.chunks_exact(columns).zip(b.chunks_exact(columns)).map(|(a, b)| a != b).collect()
}

fn step(plan: &Plan, layer: Option<u32>, role: &str) -> Step {
    let found = plan.steps.iter().find(|step| step.site.layer == layer && step.site.role == role);
    found.unwrap_or_else(|| panic!("no step {layer:?} {role}")).clone()
}

fn value(plan: &Plan, layer: Option<u32>, role: &str) -> Value {
    plan.find(layer, role).unwrap_or_else(|| panic!("no value {layer:?} {role}"))
}

/// Copies a module of one layer to another, every float of it no number.
fn with_nan(set: &mut TensorSet, prefix: &str, from: &str, to: &str) {
    let names: Vec<String> = set.names().filter_map(|name| name.strip_prefix(prefix)).map(str::to_owned).collect();
    let mut copied = 0;
    for name in names {
        let Some(part) = name.strip_prefix(from).filter(|part| part.starts_with('.')) else { continue };
        let (dtype, shape, bytes) = set.get(&format!("{prefix}{name}")).unwrap();
        let (dtype, shape, bytes) = (dtype, shape.to_vec(), bytes.to_vec());
        let copy = format!("{prefix}{to}{part}");
        set.insert(&copy, dtype, &shape, bytes);
        set.alter(&copy, |numbers| numbers.fill(f32::NAN));
        copied += 1;
    }
    assert!(copied > 0, "no {from}");
}

#[test]
fn keys_of_layers_that_share_a_cache_may_be_there_or_not() {
    for (name, prefix, shared, donor) in [("e-original", ORIGINAL, 3, 1), ("e-affine4g64", MLX, 2, 0)] {
        let mut set = tensors(name);
        for module in ["k_proj", "v_proj", "k_norm"] {
            let of = |layer: i32| format!("layers.{layer}.self_attn.{module}");
            with_nan(&mut set, prefix, &of(donor), &of(shared));
        }
        let (with, model) = read(&set).unwrap();
        let reasons: Vec<&str> = model.unused.iter().map(|unused| unused.reason).collect();
        assert!(reasons.contains(&"keys and values of layers that read another layer's cache"), "{reasons:?}");
        same_logits(&with, &subject(golden(name)));
    }
}

#[test]
fn keys_of_layers_with_a_cache_of_their_own_are_required_by_name() {
    for module in ["k_proj.weight", "v_proj.weight", "k_norm.weight"] {
        let mut set = tensors("e-original");
        let name = format!("{ORIGINAL}layers.1.self_attn.{module}");
        assert!(set.remove(&name));
        let error = read(&set).unwrap_err().to_string();
        assert!(error.contains(&name), "{error}");
    }
}

/// Proportional frequencies: denominators of the whole head, pairs half a head apart, the rest not turned.
#[test]
fn full_layers_turn_the_first_quarter_of_pairs_over_the_whole_head() {
    let subject = subject(golden("e-original"));
    for role in ["q_rope", "k_rope"] {
        let Op::Rope { head_dim, rope, .. } = step(&subject.plan, Some(2), role).op else { panic!("{role}") };
        assert_eq!((head_dim, rope.turned_pairs), (128, 16));
        assert_eq!(rope.frequency(15, head_dim), 1e6f64.powf(-30.0 / 128.0));
        assert_eq!(rope.frequency(16, head_dim), 0.0);
        let Op::Rope { head_dim, rope, .. } = step(&subject.plan, Some(1), role).op else { panic!("{role}") };
        assert_eq!((head_dim, rope.turned_pairs, rope.theta), (64, 32, 1e4));
    }
    // In numbers: lanes 0 and 64 of a head mix, lanes 16 and 80 stay.
    let keep = vec![value(&subject.plan, Some(2), "q_norm"), value(&subject.plan, Some(2), "q_rope")];
    for make in [reference, exact] {
        let found = kept(&subject, make(), &prompt(9, 320, 8), keep.clone());
        for row in 1..9 {
            let [before, after] = [0, 1].map(|value: usize| &found[value][row * 256..row * 256 + 128]);
            let (sin, cos) = (row as f64).sin_cos();
            let turned = f64::from(before[0]) * cos - f64::from(before[64]) * sin;
            assert!((f64::from(after[0]) - turned).abs() < 1e-5, "row {row}");
            assert_eq!((before[16], before[80], before[63]), (after[16], after[80], after[63]));
            assert_ne!(before[15], after[15]);
        }
    }
}

#[test]
fn rows_of_the_per_layer_table_are_scaled_and_only_the_token_s_own_counts() {
    let set = tensors("e-original");
    let sound = altered(&set);
    let name = format!("{ORIGINAL}embed_tokens_per_layer.weight");
    let (shape, table) = set.floats(&name).unwrap();
    let columns = shape[1];
    let tokens = [5, 0, 9];
    for make in [reference, exact, fast] {
        let found = kept(&sound, make(), &tokens, vec![value(&sound.plan, None, "embed_tokens_per_layer")]);
        for (row, token) in tokens.iter().enumerate() {
            let entry = &table[*token as usize * columns..][..columns];
            let want: Vec<f32> = entry.iter().map(|number| number * 32f32.sqrt()).collect();
            assert_eq!(found[0][row * columns..][..columns], want);
        }
    }
    // Another token's entry may hold anything; the token's own may not.
    let marked = |token: usize| {
        let mut set = set.clone();
        assert!(set.alter(&name, |table| table[token * columns..][..columns].fill(30_000.0)));
        altered(&set)
    };
    let want = logits(&sound, exact(), &tokens);
    assert_eq!(logits(&marked(319), exact(), &tokens), want);
    assert_eq!(rows_that_differ(&logits(&marked(0), exact(), &tokens), &want, 320), [false, true, true]);
}

/// Each of the three factors, from the tensors themselves.
#[test]
fn per_layer_inputs_are_made_with_all_their_factors() {
    let set = tensors("e-original");
    let subject = altered(&set);
    let floats = |name: &str| set.floats(&format!("{ORIGINAL}{name}.weight")).unwrap().1;
    let (projection, norm) = (floats("per_layer_model_projection"), floats("per_layer_projection_norm"));
    let (embedding, table) = (floats("embed_tokens"), floats("embed_tokens_per_layer"));
    let (hidden, width, layers) = (64, 32, 5);
    let tokens = prompt(6, 320, 9);
    let columns = layers * width;
    let found = kept(&subject, reference(), &tokens, vec![value(&subject.plan, None, "per_layer_inputs")]).remove(0);
    for (row, token) in tokens.iter().map(|token| *token as usize).enumerate() {
        let x: Vec<f64> = embedding[token * hidden..][..hidden].iter().map(|x| f64::from(*x) * 8.0).collect();
        for layer in 0..layers {
            let projected: Vec<f64> = (layer * width..(layer + 1) * width)
                .map(|out| {
                    let weights = &projection[out * hidden..][..hidden];
                    weights.iter().zip(&x).map(|(weight, x)| f64::from(*weight) * x).sum::<f64>() / 8.0
                })
                .collect();
            let rms = (projected.iter().map(|x| x * x).sum::<f64>() / width as f64 + 1e-6).sqrt();
            for column in 0..width {
                let own = f64::from(table[token * columns + layer * width + column]) * (width as f64).sqrt();
                let want = (projected[column] / rms * f64::from(norm[column]) + own) * 0.5f64.sqrt();
                let got = f64::from(found[row * columns + layer * width + column]);
                assert!((got - want).abs() < 1e-5, "token {token}, layer {layer}, column {column}: {got}, not {want}");
            }
        }
    }
}

#[test]
fn the_per_layer_projection_may_be_quantized_or_plain() {
    let mut set = tensors("e-affine4g64");
    let quantized = altered(&set);
    let module = format!("{MLX}per_layer_model_projection");
    let source = quantized.checkpoint.matrix(&module, &[256, 128]).unwrap();
    assert!(source.format().is_some());
    let mut numbers = vec![0.0; 256 * 128];
    quantized.checkpoint.read_rows(&source, 128, 0..256, &mut numbers);
    for part in ["weight", "scales", "biases"] {
        assert!(set.remove(&format!("{module}.{part}")));
    }
    set.insert_floats(&format!("{module}.weight"), DType::F32, &[256, 128], &numbers);
    let plain = altered(&set);
    let tokens = prompt(12, 320, 10);
    // The same numbers, so the same bits.
    assert_eq!(logits(&quantized, reference(), &tokens), logits(&plain, reference(), &tokens));
    let (a, b) = (logits(&quantized, exact(), &tokens), logits(&plain, exact(), &tokens));
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-3));
}

#[test]
fn prompts_longer_than_the_window_stay_finite_and_agree_however_they_are_cut() {
    for name in ["e-original", "unified-original", "moe-affine4g64"] {
        let mut set = tensors(name);
        set.config["text_config"]["sliding_window"] = 8.into();
        let subject = altered(&set);
        for length in [7, 8, 9, 16, 17, 40] {
            let tokens = prompt(length, 320, 11);
            let options = InvarianceOptions { pieces: vec![3, 8, 9], by_token: true, batches: false };
            let found = invariance(&subject, &exact, &tokens, &options).unwrap();
            assert!(found.first.is_none(), "{name}: {found}");
            assert_eq!(finite(&subject, &exact, &tokens, 9).unwrap(), None);
        }
        assert_eq!(finite(&subject, &reference, &prompt(40, 320, 11), 40).unwrap(), None);
    }
}

#[test]
fn where_values_are_keys_they_are_the_raw_projection() {
    let subject = subject(golden("unified-original"));
    let plan = &subject.plan;
    let full = plan.cache.groups.iter().find(|group| group.window.is_none()).unwrap().layers[0].layer as u32;
    let raw = value(plan, Some(full), "k_proj");
    let Op::RmsNorm { x, weight, .. } = step(plan, Some(full), "v_norm").op else { panic!("v_norm") };
    assert_eq!((x.value, weight), (raw, None));
    let Op::KvAppend { k, v, .. } = step(plan, Some(full), "kv_append").op else { panic!("kv_append") };
    assert_eq!((k, v), (value(plan, Some(full), "k_rope"), value(plan, Some(full), "v_norm")));
    // Sliding layers need values of their own; on full ones a file's are left alone.
    let sliding = format!("{ORIGINAL}layers.0.self_attn.v_proj.weight");
    let mut set = tensors("unified-original");
    assert!(set.remove(&sliding));
    assert!(read(&set).unwrap_err().to_string().contains(&sliding));
    let mut set = tensors("unified-original");
    with_nan(&mut set, ORIGINAL, "layers.0.self_attn.v_proj", &format!("layers.{full}.self_attn.v_proj"));
    same_logits(&altered(&set), &subject);
}

#[test]
fn layer_scalar_multiplies_the_whole_residual_at_the_layer_s_end() {
    for (name, layer) in [("e-original", 1), ("e-original", 4), ("moe-original", 1)] {
        let mut set = tensors(name);
        let sound = altered(&set);
        assert!(set.alter(&format!("{ORIGINAL}layers.{layer}.layer_scalar"), |scalar| scalar[0] *= 2.0));
        let doubled = altered(&set);
        let tokens = prompt(9, 320, 12);
        let end = value(&sound.plan, Some(layer), "layer_scalar");
        for make in [reference, exact] {
            let want: Vec<f32> = kept(&sound, make(), &tokens, vec![end])[0].iter().map(|x| 2.0 * x).collect();
            assert_eq!(kept(&doubled, make(), &tokens, vec![end])[0], want, "{name} layer {layer}");
        }
        let Op::Scale { x, .. } = step(&sound.plan, Some(layer), "layer_scalar").op else { panic!("layer_scalar") };
        let last = if name == "e-original" { "per_layer_residual" } else { "feedforward_residual" };
        assert_eq!(x, value(&sound.plan, Some(layer), last));
    }
}

#[test]
fn the_scale_of_an_expert_counts_once_after_renormalising() {
    let mut set = tensors("moe-original");
    let sound = altered(&set);
    let name = format!("{ORIGINAL}layers.0.router.per_expert_scale");
    assert!(set.alter(&name, |scale| scale[3] *= 4.0));
    let scaled = altered(&set);
    let tokens = prompt(20, 320, 13);
    let plan = &sound.plan;
    let experts = value(plan, Some(0), "router");
    let weights = Value(experts.0 + 1);
    assert_eq!(plan.value(weights).name, "router_weights.0");
    for make in [reference, exact] {
        let before = kept(&sound, make(), &tokens, vec![experts, weights]);
        let after = kept(&scaled, make(), &tokens, vec![experts, weights]);
        assert_eq!(before[0], after[0]);
        assert!(before[0].contains(&3.0) && before[0].iter().any(|&expert| expert != 3.0));
        for (index, expert) in before[0].iter().enumerate() {
            let factor = if *expert == 3.0 { 4.0 } else { 1.0 };
            assert_eq!(after[1][index], factor * before[1][index]);
        }
    }
}

/// A router's scores are compared: its activations keep full precision where those of other products do not.
#[test]
fn the_router_is_not_rounded() {
    let subject = subject(golden("moe-affine4g64"));
    let source = subject.checkpoint.matrix(&format!("{MLX}layers.0.router.proj"), &[4, 128]).unwrap();
    let mut weights = vec![0.0; 4 * 128];
    subject.checkpoint.read_rows(&source, 128, 0..4, &mut weights);
    let keep = ["router_scale", "router_proj"].map(|role| value(&subject.plan, Some(0), role));
    let found = kept(&subject, fast(), &prompt(20, 320, 13), keep.to_vec());
    for (x, scores) in found[0].chunks_exact(128).zip(found[1].chunks_exact(4)) {
        for (weights, score) in weights.chunks_exact(128).zip(scores) {
            let products = || weights.iter().zip(x).map(|(weight, x)| f64::from(*weight) * f64::from(*x));
            let size = products().map(|product| product * product).sum::<f64>().sqrt();
            // Roundings of f32 are some 1e-7 of this size, those of 15 bits some 5e-5.
            let difference = (f64::from(*score) - products().sum::<f64>()).abs();
            assert!(difference < 5e-6 * size, "{score}: off by {difference:e} of {size:e}");
        }
    }
}

#[test]
fn decoding_equals_recomputing_where_kinds_of_layers_differ_in_heads() {
    for name in ["unified-original", "dense-original"] {
        let subject = subject(golden(name));
        let shapes: Vec<_> = subject
            .plan
            .cache
            .groups
            .iter()
            .map(|group| (group.layers[0].kv_heads, group.layers[0].head_dim))
            .collect();
        assert_eq!(shapes, [(2, 64), (1, 128)]);
        let options = InvarianceOptions { pieces: vec![], by_token: true, batches: false };
        for make in [exact, fast] {
            let found = invariance(&subject, &make, &prompt(50, 320, 14), &options).unwrap();
            assert!(found.first.is_none(), "{found}");
        }
        assert!(subject.plan.steps.iter().all(|step| !matches!(step.op, Op::Attention { scale, .. } if scale != 1.0)));
    }
}

/// A window of 4 is the row itself and three before it, in a prompt and token by token.
#[test]
fn a_sliding_row_sees_exactly_its_window() {
    let mut set = tensors("dense-original");
    set.config["text_config"]["sliding_window"] = 4.into();
    let subject = altered(&set);
    let value = value(&subject.plan, Some(0), "layer_scalar");
    let columns = subject.plan.value(value).columns;
    let tokens = prompt(7, 320, 15);
    let other: Vec<u32> = std::iter::once((tokens[0] + 1) % 320).chain(tokens[1..].iter().copied()).collect();
    for make in [reference, exact, fast] {
        for piece in [7, 1, 3] {
            let [a, b] = [&tokens, &other].map(|tokens| in_pieces(&subject, make(), tokens, piece, value));
            assert_eq!(rows_that_differ(&a, &b, columns), [true, true, true, true, false, false, false], "{piece}");
        }
    }
}

/// One value of every row, the prompt in pieces.
fn in_pieces(subject: &Subject, backend: Box<dyn Backend>, tokens: &[u32], piece: usize, value: Value) -> Vec<f32> {
    let mut engine = engine(subject, backend, tokens.len(), piece, vec![value]);
    let mut sequence = engine.sequence();
    let mut all = vec![];
    for rows in tokens.chunks(piece) {
        let work = Work { sequence: &mut sequence, tokens: rows, wanted: Wanted::All, choice: None };
        all.extend(engine.step(&mut [work]).unwrap().kept.remove(0));
    }
    all
}

fn engine(subject: &Subject, mut backend: Box<dyn Backend>, context: usize, rows: usize, keep: Vec<Value>) -> Engine {
    backend.load(&subject.plan.weights, &subject.checkpoint, &mut |_| {}).unwrap();
    let options = EngineOptions { context, sequences: 1, max_rows: rows, max_wanted: rows, keep, watch: false };
    Engine::new(backend, subject.plan.clone(), options).unwrap()
}

#[test]
fn experts_count_and_a_tensor_that_nobody_knows_is_refused_by_name() {
    let mut set = tensors("moe-original");
    let sound = altered(&set);
    let tokens = prompt(8, 320, 16);
    let name = format!("{ORIGINAL}layers.1.experts.down_proj");
    assert!(set.alter(&name, |numbers| numbers.iter_mut().for_each(|number| *number = -*number)));
    for make in [reference, exact] {
        let (a, b) = (logits(&sound, make(), &tokens), logits(&altered(&set), make(), &tokens));
        assert!(rows_that_differ(&a, &b, 320).into_iter().all(|differs| differs));
    }
    let mut set = tensors("moe-affine4g64");
    let unknown = format!("{MLX}layers.0.foo.weight");
    set.insert_floats(&unknown, DType::BF16, &[2], &[0.0; 2]);
    let error = read(&set).unwrap_err().to_string();
    assert!(error.contains(&unknown), "{error}");
}

#[test]
fn shared_layers_read_the_last_earlier_cache_of_their_kind_with_or_without_steps_before() {
    let subject = subject(golden("e-original"));
    let plan = &subject.plan;
    let cache_of = |layer: u32| {
        let Op::Attention { cache, .. } = step(plan, Some(layer), "attention").op else { panic!("attention") };
        (cache, plan.cache.layer(cache).layer)
    };
    assert_eq!([0, 1, 2, 3, 4].map(|layer| cache_of(layer).1), [0, 1, 2, 1, 2]);
    assert_eq!((cache_of(3).0, cache_of(4).0), (cache_of(1).0, cache_of(2).0));
    // Only the owners write, and there are as many caches as layers that do not share.
    let appends = plan.steps.iter().filter(|step| matches!(step.op, Op::KvAppend { .. })).count();
    let caches: usize = plan.cache.groups.iter().map(|group| group.layers.len()).sum();
    assert_eq!((appends, caches), (3, 3));
    let options = InvarianceOptions { pieces: vec![], by_token: true, batches: false };
    for make in [reference, exact, fast] {
        let found = invariance(&subject, &make, &prompt(40, 320, 17), &options).unwrap();
        assert!(found.first.is_none(), "{found}");
    }
}

#[test]
fn tensors_may_have_any_of_the_prefixes_that_files_have() {
    let sound = subject(golden("unified-original"));
    let mut set = tensors("unified-original");
    // The configuration speaks of a tower that is not in the file.
    set.config.insert("vision_config".into(), serde_json::json!({"model_type": "gemma4_vision", "hidden_size": 32}));
    for prefix in ["language_model.model.", "model.language_model.", "model."] {
        let mut renamed = set.clone();
        renamed.rename(|name| name.strip_prefix(ORIGINAL).map(|name| format!("{prefix}{name}")));
        same_logits(&altered(&renamed), &sound);
        // A head that is tied counts for nothing.
        let head = if prefix == MLX { "language_model.lm_head.weight" } else { "lm_head.weight" };
        renamed.insert_floats(head, DType::BF16, &[320, 64], &[f32::NAN; 320 * 64]);
        let (subject, model) = read(&renamed).unwrap();
        assert!(model.unused.iter().any(|unused| unused.tensors.contains(&head.to_owned())), "{:?}", model.unused);
        same_logits(&subject, &sound);
    }
}

#[test]
fn sliding_caches_hold_their_window_and_one_step() {
    for (name, window) in [("dense-original", 16), ("e-affine4g64", 16)] {
        let subject = subject(golden(name));
        let mut engine = engine(&subject, exact(), 400, 8, vec![]);
        let plan = &subject.plan;
        let block = plan.cache.block_size;
        let blocks = Engine::blocks(plan, 400, engine.options());
        let is_sliding: Vec<bool> = plan.cache.groups.iter().map(|group| group.window == Some(window)).collect();
        assert!(is_sliding.contains(&true) && is_sliding.contains(&false));
        for (blocks, is_sliding) in blocks.iter().zip(&is_sliding) {
            let positions = if *is_sliding { window + 8 } else { 400 };
            assert_eq!(*blocks, positions.div_ceil(block) + 1);
        }
        let mut sequence = engine.sequence();
        for rows in prompt(400, 320, 18).chunks(8) {
            engine
                .step(&mut [Work { sequence: &mut sequence, tokens: rows, wanted: Wanted::None, choice: None }])
                .unwrap();
            for (group, is_sliding) in is_sliding.iter().enumerate() {
                let positions = if *is_sliding { sequence.length().min(window) } else { sequence.length() };
                assert!(sequence.blocks(group) <= positions.div_ceil(block) + 1, "{name} at {}", sequence.length());
            }
        }
        let total = engine.free_blocks();
        drop(sequence);
        assert!(engine.free_blocks() != total && engine.free_blocks() == blocks);
    }
}
