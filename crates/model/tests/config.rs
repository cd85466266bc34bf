//! `config.json`: what is refused, by name, and that nothing in it can do worse than be refused.

use markbase_model::{AttentionKind, Gemma4Config, ModelError};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use synth::{Size, TinyKind, TinyOptions};

fn tiny() -> Map<String, Value> {
    synth::tiny_config(TinyKind::PerLayer, TinyOptions::default())
}

fn with(field: &str, value: Value) -> Map<String, Value> {
    let mut config = tiny();
    config.get_mut("text_config").and_then(Value::as_object_mut).unwrap().insert(field.into(), value);
    config
}

fn refusal(config: &Map<String, Value>) -> String {
    match Gemma4Config::read(config) {
        Err(error @ ModelError::Config { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn fields_that_change_the_result_and_are_not_supported_refuse_by_name() {
    for (field, value) in [
        ("attention_bias", json!(true)),
        ("hidden_activation", json!("silu")),
        ("use_bidirectional_attention", json!("all")),
        ("rope_scaling", json!({"factor": 8.0})),
        ("use_second_mlp_block", json!(true)),
        ("num_hidden_layers", json!(0)),
        ("num_hidden_layers", json!(1e18)),
        ("num_hidden_layers", json!("35")),
        ("hidden_size", json!(-1)),
        ("vocab_size", json!(1u64 << 60)),
        ("num_attention_heads", json!(3.5)),
        ("layer_types", json!(["sliding_attention"])),
        ("layer_types", json!("full_attention")),
        ("num_kv_shared_layers", json!(1000)),
        ("rms_norm_eps", json!(0)),
        ("final_logit_softcapping", json!(-30.0)),
        ("vocab_size_per_layer_input", json!(1)),
        ("enable_moe_block", json!("yes")),
        ("rms_norm_eps", json!(1e300)),
        ("rms_norm_eps", json!(1e-300)),
        ("final_logit_softcapping", json!(1e300)),
        ("final_logit_softcapping", json!(1e-60)),
        ("attn_logit_softcapping", json!(50.0)),
        ("logit_scale", json!(2.0)),
        ("per_layer_config", json!({"999": {"head_dim": 64}})),
        ("per_layer_config", json!({"first": {"head_dim": 64}})),
    ] {
        let sentence = refusal(&with(field, value.clone()));
        assert!(sentence.contains(&format!("text_config.{field}")), "{field} = {value}: {sentence}");
        assert!(!sentence.contains('\n'), "one sentence: {sentence}");
    }
}

#[test]
fn rope_parameters_that_are_not_supported_refuse_by_name() {
    let good = json!({"rope_theta": 10_000.0, "rope_type": "default"});
    for (full, named) in [
        (json!({"rope_theta": 1e6, "rope_type": "yarn"}), "rope_type"),
        (json!({"rope_theta": 1e6, "rope_type": "proportional", "beta_fast": 32}), "beta_fast"),
        (json!({"rope_type": "proportional"}), "rope_theta"),
        (
            json!({"rope_theta": 1e6, "rope_type": "proportional", "partial_rotary_factor": 1.5}),
            "partial_rotary_factor",
        ),
    ] {
        let sentence = refusal(&with("rope_parameters", json!({"sliding_attention": good, "full_attention": full})));
        assert!(sentence.contains(named), "{sentence}");
    }
}

#[test]
fn unknown_fields_are_named_warnings() {
    let (_, warnings) = Gemma4Config::read(&with("new_trick", json!(3))).unwrap();
    assert_eq!(warnings, ["config.json: text_config.new_trick = 3 is not known and was not applied"]);
}

#[test]
fn per_layer_config_of_transformers_means_the_same_as_global_fields() {
    let old = synth::tiny_config(TinyKind::Unified, TinyOptions::default());
    let (from_old, _) = Gemma4Config::read(&old).unwrap();
    let mut new = old.clone();
    let text = new.get_mut("text_config").and_then(Value::as_object_mut).unwrap();
    text.remove("global_head_dim");
    text.remove("num_global_key_value_heads");
    let mut overrides = Map::new();
    for (index, layer) in from_old.layers.iter().enumerate() {
        if layer.kind == AttentionKind::Full {
            let entry = json!({"head_dim": layer.head_dim, "num_key_value_heads": layer.kv_heads});
            overrides.insert(index.to_string(), entry);
        }
    }
    text.insert("per_layer_config".into(), Value::Object(overrides));
    assert_eq!(Gemma4Config::read(&new).unwrap().0, from_old);
}

#[test]
fn a_text_model_that_stands_alone_reads_its_own_fields() {
    let config = tiny();
    let mut alone = config["text_config"].as_object().unwrap().clone();
    alone.insert("model_type".into(), json!("gemma4_text"));
    assert_eq!(Gemma4Config::read(&alone).unwrap().0, Gemma4Config::read(&config).unwrap().0);
}

#[test]
fn every_size_has_the_geometry_of_its_table() {
    let read = |size| Gemma4Config::read(&synth::config(size)).unwrap().0;
    let e2b = read(Size::E2b);
    assert_eq!((e2b.layers.len(), e2b.hidden, e2b.window), (35, 1536, 512));
    assert_eq!((e2b.layers[14].shares, e2b.layers[15].shares, e2b.layers[19].shares), (None, Some(13), Some(14)));
    assert_eq!((e2b.layers[14].intermediate, e2b.layers[15].intermediate), (6144, 12288));
    let b12 = read(Size::B12);
    assert_eq!((b12.layers[0].kv_heads, b12.layers[5].kv_heads, b12.layers[5].k_is_v), (8, 1, true));
    assert_eq!((b12.layers[5].head_dim, b12.layers[5].rope.turned_pairs), (512, 64));
    assert_eq!(read(Size::A4b26).moe.map(|moe| (moe.experts, moe.top_k, moe.intermediate)), Some((128, 8, 704)));
    assert_eq!(read(Size::B31).layers.len(), 60);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z_]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-z_]{0,12}", inner), 0..4)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    /// A config with some fields replaced by anything at all is read or refused, never a panic, in little time.
    #[test]
    fn no_field_can_do_worse_than_be_refused(changes in prop::collection::vec((any::<prop::sample::Index>(), any_json()), 1..4)) {
        let mut config = tiny();
        let text = config.get_mut("text_config").and_then(Value::as_object_mut).unwrap();
        let fields: Vec<String> = text.keys().cloned().collect();
        for (index, value) in changes {
            text.insert(index.get(&fields).clone(), value);
        }
        if let Ok((config, _)) = Gemma4Config::read(&config) {
            prop_assert!(config.layers.len() <= 1_000);
        }
    }
}
