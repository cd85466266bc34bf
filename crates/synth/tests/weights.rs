//! What is written opens, proves, and has the spread that is stated.

mod common;

use std::collections::BTreeMap;

use checkpoint::{Checkpoint, MatrixSource, QuantFormat, TensorInfo};
use common::{recipe, write_all, written};
use markbase_synth::{Layout, Override, Recipe, TinyKind};

fn every_format() -> Vec<QuantFormat> {
    let affine = [2, 3, 4, 5, 6, 8]
        .into_iter()
        .flat_map(|bits| [32, 64, 128].map(|group_size| QuantFormat::affine(bits, group_size).unwrap()));
    affine.chain([QuantFormat::Mxfp4, QuantFormat::Mxfp8, QuantFormat::Nvfp4]).collect()
}

/// Modules of at least two dimensions and their shapes.
fn matrices(dense: &Checkpoint) -> BTreeMap<String, Vec<usize>> {
    let matrix = |info: &TensorInfo| {
        let module = info.name.strip_suffix(".weight").filter(|_| info.shape.len() >= 2);
        module.map(|module| (module.to_owned(), info.shape.clone()))
    };
    dense.tensors().filter_map(matrix).collect()
}

fn values(checkpoint: &Checkpoint, source: &MatrixSource, shape: &[usize]) -> Vec<f32> {
    let (cols, leading) = shape.split_last().unwrap();
    let rows = leading.iter().product::<usize>();
    let mut values = vec![f32::NAN; rows * cols];
    checkpoint.read_rows(source, *cols, 0..rows, &mut values);
    values
}

fn deviation(values: &[f32]) -> f64 {
    (values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
}

/// 1 / sqrt(inputs), but for tables, whose rows are multiplied by a root, and for the router, whose
/// input is divided by one.
fn stated_deviation(module: &str, shape: &[usize]) -> f64 {
    match module.rsplit('.').next().unwrap() {
        "embed_tokens_per_layer" => 1.0 / 128f64.sqrt(),
        "proj" => (12f64 / 13.0).sqrt(),
        _ => 1.0 / (*shape.last().unwrap() as f64).sqrt(),
    }
}

#[test]
fn every_kind_in_every_format_opens_and_every_matrix_is_proved_and_spreads_as_stated() {
    for kind in TinyKind::ALL {
        let (_scratch, dense) = written(&recipe(kind, None));
        let matrices = matrices(&dense);
        assert!(matrices.len() > 30, "{kind:?}: {} matrices", matrices.len());
        for format in every_format() {
            let (_scratch, checkpoint) = written(&recipe(kind, Some(format)));
            assert_eq!(checkpoint.warnings(), &[] as &[String], "{kind:?} {format}");
            for (module, shape) in &matrices {
                let source = checkpoint.matrix(module, shape).unwrap();
                let router = module.ends_with("router.proj");
                let wanted = if router { QuantFormat::affine(8, 64).unwrap() } else { format };
                assert_eq!(source.format(), Some(wanted), "{kind:?} {module}");
                let values = values(&checkpoint, &source, shape);
                let found = deviation(&values) / stated_deviation(module, shape);
                // The scales of a router's 16 groups differ; other matrices have hundreds.
                let tolerance = if router { 0.3 } else { 0.06 };
                assert!((found - 1.0).abs() < tolerance, "{kind:?} {format} {module}: {found} of what is stated");
                let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / values.len() as f64;
                assert!(mean.abs() < 0.1 * deviation(&values), "{kind:?} {format} {module}: mean {mean}");
            }
        }
    }
}

#[test]
fn dense_matrices_and_vectors_spread_as_stated() {
    let (_scratch, checkpoint) = written(&recipe(TinyKind::Experts, None));
    for (module, shape) in matrices(&checkpoint) {
        let source = checkpoint.matrix(&module, &shape).unwrap();
        let found = deviation(&values(&checkpoint, &source, &shape)) / stated_deviation(&module, &shape);
        assert!((found - 1.0).abs() < 0.1, "{module}: {found} of what is stated");
    }
    let range = |name: &str| {
        let values = checkpoint.tensor(&format!("language_model.model.{name}")).unwrap().to_f32().unwrap();
        values.iter().fold((f32::MAX, f32::MIN), |(low, high), value| (low.min(*value), high.max(*value)))
    };
    for norm in ["input_layernorm.weight", "pre_feedforward_layernorm_2.weight", "router.scale"] {
        let (low, high) = range(&format!("layers.1.{norm}"));
        assert!((0.5..0.7).contains(&low) && (1.3..=1.5).contains(&high), "{norm}: {low} to {high}");
    }
    let (low, high) = range("layers.0.layer_scalar");
    assert!(low >= 0.5 && high <= 1.0, "{low} to {high}");
}

#[test]
fn attention_scores_and_logits_have_a_deviation_of_two() {
    let (_scratch, checkpoint) = written(&recipe(TinyKind::Dense, None));
    let square = |name: &str| {
        let tensor = checkpoint.tensor(&format!("language_model.model.{name}.weight")).unwrap();
        deviation(&tensor.to_f32().unwrap()).powi(2)
    };
    // Layers 0 and 2: a head of 64 and one of 128.
    for (layer, head_dim) in [(0, 64.0), (2, 128.0)] {
        let [queries, keys] = ["q_norm", "k_norm"].map(|norm| square(&format!("layers.{layer}.self_attn.{norm}")));
        let scores = (head_dim * queries * keys).sqrt();
        assert!((scores / 2.0 - 1.0).abs() < 0.2, "layer {layer}: {scores}");
    }
    let logits = (128.0 * square("norm") * square("embed_tokens")).sqrt();
    assert!((logits / 2.0 - 1.0).abs() < 0.1, "{logits}");
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
    let scratch = tempfile::tempdir().unwrap();
    let read = |name: &str, seed: u64| {
        let out = scratch.path().join(name);
        let recipe = Recipe { seed, ..recipe(TinyKind::PerLayer, Some(QuantFormat::Nvfp4)) };
        write_all(&recipe, &out).unwrap();
        let names = ["model.safetensors", "config.json", "tokenizer.json", "model.safetensors.index.json"];
        names.map(|name| std::fs::read(out.join(name)).unwrap())
    };
    let first = read("first", 1);
    assert!(first == read("second", 1), "one seed, two results");
    let other = read("other", 2);
    assert!(first[0] != other[0], "two seeds, one result");
    assert!(first[1..] == other[1..], "the seed is of the weights alone");
}

#[test]
fn tensors_of_one_checkpoint_differ() {
    let (_scratch, checkpoint) = written(&recipe(TinyKind::Dense, None));
    let bytes = |name: &str| checkpoint.tensor(&format!("language_model.model.layers.{name}.weight")).unwrap().bytes;
    assert!(bytes("0.mlp.up_proj") != bytes("0.mlp.gate_proj"));
    assert!(bytes("0.mlp.up_proj") != bytes("1.mlp.up_proj"));
}

#[test]
fn shards_are_closed_before_they_pass_their_size() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("model");
    let recipe = Recipe { shard_bytes: 300_000, ..recipe(TinyKind::Dense, Some(QuantFormat::Mxfp4)) };
    let summary = write_all(&recipe, &out).unwrap();
    let checkpoint = Checkpoint::open(&out).unwrap();
    assert_eq!(checkpoint.warnings(), &[] as &[String]);
    assert_eq!(checkpoint.files().len(), summary.shards);
    assert!(summary.shards >= 3, "{} shards", summary.shards);
    let first = format!("model-00001-of-{:05}.safetensors", summary.shards);
    assert_eq!(checkpoint.files()[0].name(), first);
    for file in checkpoint.files() {
        assert!(file.bytes() < 300_000 + 10_000, "{}: {} bytes and its header", file.name(), file.bytes());
    }
    let on_disk = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum::<u64>();
    assert_eq!(summary.bytes, on_disk);
    assert_eq!(summary.tensors, checkpoint.tensors().count());
}

#[test]
fn the_original_layout_has_its_own_names_and_the_same_numbers() {
    let (_scratch, mlx) = written(&recipe(TinyKind::Experts, None));
    let (_scratch2, original) = written(&Recipe { layout: Layout::Original, ..recipe(TinyKind::Experts, None) });
    let fused = original.matrix("model.language_model.layers.0.experts.gate_up_proj", &[8, 256, 128]);
    assert_eq!(fused.unwrap().to_string(), "BF16");
    let down = original.matrix("model.language_model.layers.0.experts.down_proj", &[8, 128, 128]);
    assert_eq!(down.unwrap().to_string(), "BF16");
    let name = "layers.3.self_attn.q_proj.weight";
    let of_mlx = mlx.tensor(&format!("language_model.model.{name}")).unwrap();
    assert!(of_mlx.bytes == original.tensor(&format!("model.language_model.{name}")).unwrap().bytes);
}

#[test]
fn layers_that_share_a_cache_have_no_keys_and_keys_that_are_values_no_value_projection() {
    let (_scratch, per_layer) = written(&recipe(TinyKind::PerLayer, None));
    let has = |checkpoint: &Checkpoint, layer: usize, module: &str| {
        checkpoint.tensor(&format!("language_model.model.layers.{layer}.self_attn.{module}.weight")).is_some()
    };
    for module in ["k_proj", "v_proj", "k_norm"] {
        assert!(has(&per_layer, 2, module) && !has(&per_layer, 3, module), "{module}");
    }
    let (_scratch, dense) = written(&recipe(TinyKind::Dense, None));
    assert!(has(&dense, 1, "v_proj") && !has(&dense, 2, "v_proj") && has(&dense, 2, "k_proj"));
}

#[test]
fn overrides_name_modules_by_the_end_of_their_path() {
    let six = QuantFormat::affine(6, 32).unwrap();
    let mut recipe = recipe(TinyKind::Dense, Some(QuantFormat::Mxfp4));
    recipe.overrides.push(Override { suffix: "layers.0.mlp.down_proj".into(), format: Some(six) });
    recipe.overrides.push(Override { suffix: "embed_tokens".into(), format: None });
    let (_scratch, checkpoint) = written(&recipe);
    let format = |module: &str, shape: &[usize]| {
        checkpoint.matrix(&format!("language_model.model.{module}"), shape).unwrap().format()
    };
    assert_eq!(format("layers.0.mlp.down_proj", &[128, 256]), Some(six));
    assert_eq!(format("layers.1.mlp.down_proj", &[128, 256]), Some(QuantFormat::Mxfp4));
    assert_eq!(format("embed_tokens", &[1024, 128]), None);

    recipe.overrides.push(Override { suffix: "down_projection".into(), format: None });
    let out = tempfile::tempdir().unwrap();
    let error = write_all(&recipe, &out.path().join("model")).unwrap_err().to_string();
    assert!(error.starts_with("no module's path ends with \"down_projection\""), "{error}");
}

#[test]
fn quantization_that_would_be_lost_is_refused() {
    let out = tempfile::tempdir().unwrap();
    let mut recipe = recipe(TinyKind::Dense, Some(QuantFormat::Mxfp8));
    recipe.layout = Layout::Original;
    let error = write_all(&recipe, &out.path().join("model")).unwrap_err().to_string();
    assert_eq!(error, "the original layout is not quantized; write mxfp8 in the MLX layout");
    (recipe.layout, recipe.quant) = (Layout::Mlx, None);
    let error = write_all(&recipe, &out.path().join("model")).unwrap_err().to_string();
    assert!(error.starts_with("router.proj: given a format of its own"), "{error}");
}
