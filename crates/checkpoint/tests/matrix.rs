//! Matrices and vectors proved: dense or quantized, by the file, the configuration, and all sizes.

mod common;

use common::{Spec, model};
use markbase_checkpoint::{Checkpoint, CheckpointError, DType, MatrixSource, Problem, ProblemKind, QuantFormat};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The tensors of module `m`, 4 rows of 128 columns, at 4 bits in groups of 64.
const Q4: [Spec; 3] = [("m.weight", "U32", &[4, 16]), ("m.scales", "BF16", &[4, 2]), ("m.biases", "BF16", &[4, 2])];

fn quantized(block: Value, tensors: &[Spec]) -> Checkpoint {
    model(&json!({ "quantization": block }), tensors).unwrap()
}

fn format_of(checkpoint: &Checkpoint, module: &str) -> Result<String, Problem> {
    checkpoint.matrix(module, &[4, 128]).map(|source| source.to_string())
}

fn problem(block: Value, tensors: &[Spec]) -> (ProblemKind, String) {
    let problem = quantized(block, tensors).matrix("m", &[4, 128]).expect_err("a problem");
    (problem.kind(), problem.to_string())
}

fn affine(bits: u64, group_size: u64) -> Value {
    json!({"bits": bits, "group_size": group_size, "mode": "affine"})
}

#[test]
fn dense_matrices_are_proved() {
    let checkpoint = model(
        &json!({}),
        &[("m.weight", "BF16", &[4, 128]), ("u.weight", "U32", &[4, 16]), ("f.weight", "F64", &[2, 2])],
    )
    .unwrap();
    let source = checkpoint.matrix("m", &[4, 128]).unwrap();
    assert_eq!(source, MatrixSource::Dense { tensor: "m.weight".into(), dtype: DType::BF16 });
    assert_eq!(source.tensors().collect::<Vec<_>>(), ["m.weight"]);
    let sentence = |module: &str, shape: &[usize]| checkpoint.matrix(module, shape).unwrap_err().to_string();
    assert_eq!(sentence("m", &[4, 64]), "m.weight: shape [4, 128], wanted [4, 64]");
    assert_eq!(sentence("m", &[1, 4, 128]), "m.weight: shape [4, 128], wanted [1, 4, 128]");
    assert_eq!(sentence("n", &[4, 64]), "n.weight: not in the checkpoint, wanted a matrix of [4, 64]");
    assert_eq!(sentence("u", &[4, 128]), "u.weight: packed values (U32) without the scales that belong to them");
    assert_eq!(sentence("f", &[2, 2]), "f.weight: elements of type F64, wanted F32, F16 or BF16");
}

#[test]
fn vectors_are_proved() {
    let checkpoint =
        model(&json!({}), &[("norm.weight", "F16", &[8]), ("layer_scalar", "F32", &[]), ("i", "I32", &[8])]).unwrap();
    assert_eq!(checkpoint.vector("norm.weight", &[8]).unwrap().dtype, DType::F16);
    assert_eq!(checkpoint.vector("layer_scalar", &[]).unwrap().tensor, "layer_scalar");
    let sentence = |tensor: &str, shape: &[usize]| checkpoint.vector(tensor, shape).unwrap_err().to_string();
    assert_eq!(sentence("norm.weight", &[9]), "norm.weight: shape [8], wanted [9]");
    assert_eq!(sentence("layer_scalar", &[1]), "layer_scalar: shape [], wanted [1]");
    assert_eq!(sentence("i", &[8]), "i: elements of type I32, wanted F32, F16 or BF16");
    assert_eq!(sentence("gone", &[8]), "gone: not in the checkpoint, wanted shape [8]");
}

#[test]
fn quantized_matrices_are_proved() {
    let checkpoint = quantized(affine(4, 64), &Q4);
    assert_eq!(
        checkpoint.matrix("m", &[4, 128]).unwrap(),
        MatrixSource::Quantized {
            format: QuantFormat::affine(4, 64).unwrap(),
            weight: "m.weight".into(),
            scales: "m.scales".into(),
            biases: Some("m.biases".into()),
            scale_dtype: DType::BF16,
        }
    );
    for (mode, weight, scales) in [("mxfp4", 16, 4), ("mxfp8", 32, 4), ("nvfp4", 16, 8)] {
        let tensors: [Spec; 2] = [("m.weight", "U32", &[4, weight]), ("m.scales", "U8", &[4, scales])];
        assert_eq!(format_of(&quantized(json!({"mode": mode}), &tensors), "m").unwrap(), mode);
    }
}

#[test]
fn experts_lead_the_shape_in_every_tensor() {
    let tensors: [Spec; 3] =
        [("m.weight", "U32", &[3, 4, 16]), ("m.scales", "BF16", &[3, 4, 2]), ("m.biases", "BF16", &[3, 4, 2])];
    let checkpoint = quantized(affine(4, 64), &tensors);
    assert!(checkpoint.matrix("m", &[3, 4, 128]).is_ok());
    for shape in [&[12, 128][..], &[4, 3, 128], &[3, 4, 64], &[1, 3, 4, 128]] {
        assert_eq!(checkpoint.matrix("m", shape).unwrap_err().kind(), ProblemKind::Packing, "{shape:?}");
    }
}

/// The original layout names the experts' tensors without `.weight`.
#[test]
fn experts_of_the_original_layout_are_found() {
    let checkpoint = model(&json!({}), &[("experts.gate_up_proj", "BF16", &[2, 6, 4])]).unwrap();
    let source = checkpoint.matrix("experts.gate_up_proj", &[2, 6, 4]).unwrap();
    assert_eq!(source, MatrixSource::Dense { tensor: "experts.gate_up_proj".into(), dtype: DType::BF16 });
    let both = model(&json!({}), &[("m", "BF16", &[2, 4]), ("m.weight", "BF16", &[2, 4])]).unwrap();
    let problem = both.matrix("m", &[2, 4]).unwrap_err();
    assert_eq!(problem.to_string(), "m: in the checkpoint as well as m.weight; one of them must be meant");
}

/// Overrides of all sorts in one file; each module's tensors are as its statement says.
#[test]
fn each_module_has_its_own_format() {
    let names: Vec<String> = (0..18).map(|index| format!("language_model.model.layers.{index}.mlp.up_proj")).collect();
    let mut block = affine(4, 64);
    let mut shapes = Vec::new();
    let sizes = [2, 3, 4, 5, 6, 8].into_iter().flat_map(|bits| [32, 64, 128].map(|group| (bits, group)));
    for (name, (bits, group)) in names.iter().zip(sizes.clone()) {
        block[name] = json!({"bits": bits, "group_size": group});
        shapes.push(([4, 128 * bits as usize / 32], [4, 128 / group as usize]));
    }
    let tensor_names: Vec<[String; 3]> =
        names.iter().map(|name| ["weight", "scales", "biases"].map(|end| format!("{name}.{end}"))).collect();
    let mut tensors: Vec<Spec> = Vec::new();
    for (names, (weight, scales)) in tensor_names.iter().zip(&shapes) {
        tensors.push((&names[0], "U32", weight));
        tensors.push((&names[1], "F16", scales));
        tensors.push((&names[2], "F16", scales));
    }
    let checkpoint = quantized(block, &tensors);
    for (name, (bits, group)) in names.iter().zip(sizes) {
        assert_eq!(format_of(&checkpoint, name).unwrap(), format!("q{bits} g{group}"), "{name}");
    }
}

#[test]
fn overrides_are_found_with_and_without_prefixes() {
    let eight: [Spec; 3] =
        [("m.weight", "U32", &[4, 32]), ("m.scales", "BF16", &[4, 2]), ("m.biases", "BF16", &[4, 2])];
    let keys = [
        "layers.0.router.proj",
        "model.layers.0.router.proj",
        "language_model.model.layers.0.router.proj",
        "model.language_model.layers.0.router.proj",
    ];
    for key in keys {
        for module in keys {
            let mut block = affine(4, 64);
            block[key] = json!({"bits": 8, "group_size": 64});
            let names = ["weight", "scales", "biases"].map(|end| format!("{module}.{end}"));
            let tensors: Vec<Spec> =
                names.iter().zip(eight).map(|(name, (_, dtype, shape))| (name.as_str(), dtype, shape)).collect();
            let checkpoint = quantized(block, &tensors);
            assert_eq!(format_of(&checkpoint, module).unwrap(), "q8 g64", "{key} for {module}");
        }
    }
}

#[test]
fn two_statements_of_one_module_must_agree() {
    let mut block = affine(8, 64);
    block["model.m"] = affine(4, 64);
    block["language_model.m"] = affine(4, 64);
    assert_eq!(format_of(&quantized(block.clone(), &Q4), "m").unwrap(), "q4 g64");
    block["language_model.m"] = affine(4, 32);
    let (kind, sentence) = problem(block, &Q4);
    assert_eq!(kind, ProblemKind::Ambiguous);
    assert_eq!(
        sentence,
        r#"m: config.json states two different quantizations for it, as "model.m" and as "language_model.m""#
    );
}

/// What a statement leaves out is the block's, or mlx's own default; the tensors say which.
#[test]
fn open_fields_are_settled_by_the_tensors() {
    // Groups of 32 come from the block, or are 64 as mlx has it.
    let in_64s = Q4;
    let in_32s: [Spec; 3] =
        [("m.weight", "U32", &[4, 16]), ("m.scales", "BF16", &[4, 4]), ("m.biases", "BF16", &[4, 4])];
    let mut block = affine(8, 32);
    block["m"] = json!({"bits": 4});
    assert_eq!(format_of(&quantized(block.clone(), &in_32s), "m").unwrap(), "q4 g32");
    assert_eq!(format_of(&quantized(block.clone(), &in_64s), "m").unwrap(), "q4 g64");
    let in_128s: [Spec; 3] =
        [("m.weight", "U32", &[4, 16]), ("m.scales", "BF16", &[4, 1]), ("m.biases", "BF16", &[4, 1])];
    let (kind, sentence) = problem(block, &in_128s);
    assert_eq!(kind, ProblemKind::Packing);
    assert_eq!(
        sentence,
        "m.weight: stated as q4 g32 or q4 g64: a matrix of [4, 128] has weight [4, 16] and scales [4, 4] of F32, F16 or BF16, found weight [4, 16] and scales [4, 1] of BF16; the tensors are those of q4 g128, config.json must say so"
    );
    // Without a mode, 8 bits beside a block of mxfp4 are affine.
    let mut block = json!({"mode": "mxfp4", "bits": 4, "group_size": 32});
    block["m"] = json!({"bits": 4, "group_size": 64});
    assert_eq!(format_of(&quantized(block.clone(), &Q4), "m").unwrap(), "q4 g64");
    block["m"] = json!({});
    assert_eq!(format_of(&quantized(block, &Q4), "m").unwrap(), "q4 g64");
    // Sizes are of a mode: 8 bits in groups of 32 of mxfp8 say nothing of an affine module.
    let mut block = json!({"mode": "mxfp8", "bits": 8, "group_size": 32});
    block["m"] = json!({"mode": "affine"});
    let eight: [Spec; 3] =
        [("m.weight", "U32", &[4, 32]), ("m.scales", "BF16", &[4, 4]), ("m.biases", "BF16", &[4, 4])];
    let (_, sentence) = problem(block, &eight);
    assert!(sentence.starts_with("m.weight: stated as q4 g64: "), "{sentence}");
    // A mode of fixed sizes has its own, whatever the block says.
    let mut block = affine(8, 128);
    block["m"] = json!({"mode": "nvfp4"});
    let tensors: [Spec; 2] = [("m.weight", "U32", &[4, 16]), ("m.scales", "U8", &[4, 8])];
    assert_eq!(format_of(&quantized(block, &tensors), "m").unwrap(), "nvfp4");
}

#[test]
fn stated_sizes_must_be_those_of_the_tensors() {
    let (kind, sentence) = problem(affine(8, 64), &Q4);
    assert_eq!(kind, ProblemKind::Packing);
    assert_eq!(
        sentence,
        "m.weight: stated as q8 g64: a matrix of [4, 128] has weight [4, 32] and scales [4, 2] of F32, F16 or BF16, found weight [4, 16] and scales [4, 2] of BF16; the tensors are those of q4 g64, config.json must say so"
    );
    // 2 bits in groups of 128 and 4 bits in groups of 64 look alike if one is free to choose the columns.
    let half = quantized(affine(2, 128), &Q4).matrix("m", &[4, 128]).unwrap_err();
    assert_eq!(half.kind(), ProblemKind::Packing);
    let narrow = quantized(affine(4, 64), &Q4).matrix("m", &[4, 96]).unwrap_err();
    assert_eq!(narrow.to_string(), "m.weight: 96 columns cannot be cut into groups of 64 (q4 g64)");
    let none = quantized(affine(4, 64), &Q4).matrix("m", &[4, 0]).unwrap_err();
    assert_eq!(none.kind(), ProblemKind::Packing);
    // Without columns every format would fit.
    let empty: [Spec; 3] = [("m.weight", "U32", &[4, 0]), ("m.scales", "BF16", &[4, 0]), ("m.biases", "BF16", &[4, 0])];
    assert!(quantized(affine(4, 64), &empty).matrix("m", &[4, 0]).is_err());
}

#[test]
fn tensors_and_configuration_must_not_contradict_each_other() {
    let mut block = affine(4, 64);
    block["m"] = json!(false);
    let (kind, sentence) = problem(block.clone(), &Q4);
    assert_eq!(kind, ProblemKind::Contradiction);
    assert_eq!(sentence, "m.scales: in the file, though config.json says that this module is not quantized");
    let dense = quantized(block, &[("m.weight", "BF16", &[4, 128])]);
    assert_eq!(format_of(&dense, "m").unwrap(), "BF16");
    let no_block = model(&json!({}), &Q4).unwrap().matrix("m", &[4, 128]).unwrap_err();
    assert_eq!(no_block.kind(), ProblemKind::Contradiction);
    assert!(no_block.to_string().contains("no quantization block"), "{no_block}");

    let (kind, sentence) = problem(affine(4, 64), &Q4[..2]);
    assert_eq!(
        (kind, &*sentence),
        (ProblemKind::Missing, "m.biases: not in the checkpoint, wanted the biases of q4 g64")
    );
    let narrow: [Spec; 3] = [Q4[0], Q4[1], ("m.biases", "BF16", &[4, 1])];
    assert_eq!(problem(affine(4, 64), &narrow).1, "m.biases: shape [4, 1], wanted [4, 2]");
    let mixed: [Spec; 3] = [Q4[0], Q4[1], ("m.biases", "F32", &[4, 2])];
    assert_eq!(problem(affine(4, 64), &mixed).1, "m.biases: elements of type F32, wanted BF16 like the scales");
    let bytes: [Spec; 2] = [Q4[0], ("m.scales", "U8", &[4, 2])];
    assert_eq!(problem(affine(4, 64), &bytes).1, "m.scales: elements of type U8, wanted F32, F16 or BF16 for q4 g64");
    let floats: [Spec; 3] = [("m.weight", "BF16", &[4, 128]), Q4[1], Q4[2]];
    assert_eq!(problem(affine(4, 64), &floats).1, "m.weight: elements of type BF16, wanted packed values of type U32");
    let biased: [Spec; 3] = [Q4[0], ("m.scales", "U8", &[4, 4]), ("m.biases", "U8", &[4, 4])];
    assert_eq!(problem(json!({"mode": "mxfp4"}), &biased).1, "m.biases: in the file, though mxfp4 has no biases");
    let global: [Spec; 3] = [Q4[0], ("m.scales", "U8", &[4, 8]), ("m.weight_global_scale", "F32", &[])];
    let (kind, sentence) = problem(json!({"mode": "nvfp4"}), &global);
    assert_eq!(kind, ProblemKind::Unsupported);
    assert_eq!(sentence, "m.weight_global_scale: a scale for the whole tensor, which is not read");
}

#[test]
fn formats_that_are_not_read_are_refused_by_name_where_they_are_used() {
    for (block, words) in [
        (affine(1, 64), "affine quantization of 1 bits in groups of 64 is not read"),
        (affine(7, 64), "affine quantization of 7 bits in groups of 64 is not read"),
        (affine(4, 256), "affine quantization of 4 bits in groups of 256 is not read"),
        (json!({"mode": "mxfp6"}), "quantization mode \"mxfp6\" is not read; affine, mxfp4, mxfp8 and nvfp4 are"),
        (json!({"mode": "mxfp4", "bits": 8}), "mxfp4 of 8 bits in groups of 32 does not exist"),
    ] {
        let (kind, sentence) = problem(block.clone(), &Q4);
        assert_eq!(kind, ProblemKind::Unsupported);
        assert!(sentence.starts_with(&format!("m: {words}")), "{sentence}");
        // A dense module of the same file does not need it.
        let mut with_dense = Q4.to_vec();
        with_dense.push(("d.weight", "BF16", &[4, 128]));
        assert_eq!(format_of(&quantized(block, &with_dense), "d").unwrap(), "BF16");
    }
}

#[test]
fn methods_of_other_projects_are_refused_by_name() {
    for method in ["bitsandbytes", "gptq", "awq", "compressed-tensors", "fp8", "modelopt", "mxfp4"] {
        for config in [
            json!({"quantization_config": {"quant_method": method, "bits": 4}}),
            json!({"text_config": {"quantization_config": {"quant_method": method}}}),
            json!({"quantization": {"quant_method": method}}),
        ] {
            let error = model(&config, &[]).expect_err(method);
            assert!(matches!(&error, CheckpointError::ForeignQuantization { .. }));
            assert!(error.to_string().contains(&format!("quantized by {method:?}")), "{error}");
        }
    }
    let own = json!({"quantization": affine(4, 64), "quantization_config": {"quant_method": "gptq"}});
    let checkpoint = model(&own, &Q4).unwrap();
    assert_eq!(checkpoint.warnings(), ["config.json: quantization and quantization_config differ; the first counts"]);
    assert_eq!(format_of(&checkpoint, "m").unwrap(), "q4 g64");
}

#[test]
fn blocks_of_another_form_are_refused() {
    for (block, words) in [
        (json!(4), "config.json: quantization is a number, wanted an object"),
        (json!([1]), "config.json: quantization is a list, wanted an object"),
        (json!({"bits": "4"}), "config.json: quantization: bits is a string, wanted a whole number"),
        (json!({"bits": 4.5}), "config.json: quantization: bits is 4.5, wanted a whole number"),
        (json!({"group_size": -64}), "config.json: quantization: group_size is -64, wanted a whole number"),
        (json!({"mode": 4}), "config.json: quantization: mode is a number, wanted a string"),
        (json!({"a.b": {"bits": []}}), "config.json: quantization of \"a.b\": bits is a list, wanted a whole number"),
    ] {
        assert_eq!(model(&json!({ "quantization": block }), &[]).unwrap_err().to_string(), words);
    }
}

#[test]
fn what_the_block_says_beyond_formats_is_warned_of() {
    let mut block = affine(4, 64);
    block["linear_class"] = json!("nn");
    block["m"] = json!({"bits": 4, "group_size": 64, "rotation": true});
    block["other"] = json!(true);
    block["quantize_input"] = json!(false);
    let checkpoint = quantized(block, &Q4);
    assert_eq!(
        checkpoint.warnings(),
        [
            "config.json: quantization: \"linear_class\" is not known and not followed",
            "config.json: quantization of \"m\": \"rotation\" is not known and not followed",
        ]
    );
    assert_eq!(checkpoint.quantization().default_format(), Some(QuantFormat::affine(4, 64).unwrap()));
}

#[test]
fn read_rows_dequantizes_the_rows_asked_for() {
    let checkpoint = model(
        &json!({"quantization": affine(8, 32)}),
        &[
            ("d.weight", "BF16", &[3, 2]),
            ("m.weight", "U32", &[2, 8]),
            ("m.scales", "F32", &[2, 1]),
            ("m.biases", "F32", &[2, 1]),
        ],
    )
    .unwrap();
    let dense = checkpoint.matrix("d", &[3, 2]).unwrap();
    let mut out = [f32::NAN; 4];
    checkpoint.read_rows(&dense, 2, 1..3, &mut out);
    assert_eq!(out, [0.0; 4]);
    let packed = checkpoint.matrix("m", &[2, 32]).unwrap();
    let mut out = [f32::NAN; 32];
    checkpoint.read_rows(&packed, 32, 1..2, &mut out);
    assert_eq!(out, [0.0; 32]);
}

/// JSON of all forms, with the names that a block uses.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        prop::sample::select(vec![0u64, 1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, u64::MAX]).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec!["affine", "mxfp4", "mxfp8", "nvfp4", "mlx", "gptq", ""]).prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        let keys = vec!["mode", "bits", "group_size", "m", "model.m", "language_model.m", "quant_method", "x"];
        prop_oneof![
            4 => prop::collection::btree_map(prop::sample::select(keys), inner.clone(), 0..6)
                .prop_map(|map| map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Value>()),
            1 => prop::collection::vec(inner, 0..4).prop_map(Value::from),
        ]
    })
}

proptest! {
    /// Any block is refused, or gives a format that fits the tensors exactly, or a problem.
    #[test]
    fn no_block_makes_a_matrix_that_does_not_fit(block in any_json(), key in prop::sample::select(vec!["quantization", "quantization_config"])) {
        if let Ok(checkpoint) = model(&json!({ key: block }), &Q4) {
            match checkpoint.matrix("m", &[4, 128]) {
                Ok(source) => prop_assert_eq!(source.format(), QuantFormat::affine(4, 64).ok()),
                Err(problem) => prop_assert!(problem.to_string().starts_with('m')),
            }
        }
    }
}
