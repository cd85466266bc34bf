//! Every field of generation_config.json is honoured, harmless, or refused by name.

mod common;

use common::{golden, model_map};
use markbase_chat::{Map, Result, SamplingDefaults};
use serde_json::{Value, json};

fn read(value: Value) -> Result<SamplingDefaults> {
    let config: Map = serde_json::from_value(value).unwrap();
    SamplingDefaults::read(Some(&config))
}

/// Fields that would change what is generated, with a value that asks for nothing and one that does not.
fn refused() -> Vec<(&'static str, Value, Value)> {
    vec![
        ("num_beams", json!(1), json!(4)),
        ("num_beam_groups", json!(1), json!(2)),
        ("diversity_penalty", json!(0.0), json!(0.5)),
        ("num_return_sequences", json!(1), json!(2)),
        ("max_time", json!(null), json!(2.5)),
        ("typical_p", json!(1.0), json!(0.9)),
        ("top_h", json!(null), json!(0.4)),
        ("epsilon_cutoff", json!(0.0), json!(0.0003)),
        ("eta_cutoff", json!(0), json!(0.0003)),
        ("encoder_repetition_penalty", json!(1.0), json!(1.2)),
        ("no_repeat_ngram_size", json!(0), json!(3)),
        ("encoder_no_repeat_ngram_size", json!(0), json!(3)),
        ("exponential_decay_length_penalty", json!(null), json!([10, 1.1])),
        ("forced_bos_token_id", json!(null), json!(7)),
        ("forced_eos_token_id", json!(null), json!(1)),
        ("force_bos_token_to_be_generated", json!(false), json!(true)),
        ("force_words_ids", json!([]), json!([[7]])),
        ("constraints", json!([]), json!([{}])),
        ("guidance_scale", json!(1), json!(1.5)),
        ("penalty_alpha", json!(0.0), json!(0.6)),
        ("dola_layers", json!(null), json!("low")),
        ("token_healing", json!(false), json!(true)),
        ("watermarking_config", json!(null), json!({"greenlist_ratio": 0.25})),
        ("assistant_ensemble_weight", json!(null), json!(0.5)),
        ("custom_generate", json!(null), json!("code")),
    ]
}

#[test]
fn what_the_file_says_is_read() {
    let built_in = SamplingDefaults::read(Some(&model_map("generation_config.json"))).unwrap();
    let wanted = SamplingDefaults {
        do_sample: Some(true),
        temperature: Some(1.0),
        top_k: Some(64),
        top_p: Some(0.95),
        ..SamplingDefaults::default()
    };
    assert_eq!(built_in, wanted);
    assert_eq!(SamplingDefaults::read(None).unwrap(), SamplingDefaults::default());

    let all = read(json!({
        "do_sample": false, "temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0.05, "repetition_penalty": 1.1,
        "presence_penalty": -0.5, "frequency_penalty": 0.5, "max_new_tokens": 100, "max_length": 8192,
        "min_new_tokens": 2, "min_length": 0, "stop_strings": ["\n\n", "END"], "suppress_tokens": [9, 7],
        "begin_suppress_tokens": [3, 3, 2], "bad_words_ids": [[8], [1], [9]], "eos_token_id": [1, 106],
        "sequence_bias": [[[12], -10.5], [[10], 1], [[12], 2]],
    }));
    let wanted = SamplingDefaults {
        do_sample: Some(false),
        temperature: Some(0.0),
        top_k: Some(0),
        top_p: Some(1.0),
        min_p: Some(0.05),
        repetition_penalty: Some(1.1),
        presence_penalty: Some(-0.5),
        frequency_penalty: Some(0.5),
        max_new_tokens: Some(100),
        max_length: Some(8192),
        min_new_tokens: Some(2),
        min_length: Some(0),
        stop_strings: vec!["\n\n".to_owned(), "END".to_owned()],
        // Without 1, which ends answers.
        suppress_tokens: vec![7, 8, 9],
        begin_suppress_tokens: vec![2, 3],
        bias: vec![(10, 1.0), (12, 2.0)],
        warnings: vec![],
    };
    assert_eq!(all.unwrap(), wanted);
    assert_eq!(read(json!({"stop_strings": "END"})).unwrap().stop_strings, ["END"]);
}

#[test]
fn values_that_mean_nothing_are_refused_by_name() {
    for (field, bad) in [
        ("do_sample", json!(1)),
        ("temperature", json!(-0.1)),
        ("temperature", json!("hot")),
        ("temperature", json!(1e300)),
        ("top_k", json!(1.5)),
        ("top_k", json!(-1)),
        ("top_p", json!(0)),
        ("top_p", json!(1.01)),
        ("min_p", json!(-0.01)),
        ("min_p", json!(1.5)),
        ("repetition_penalty", json!(0)),
        ("presence_penalty", json!("x")),
        ("frequency_penalty", json!(1e39)),
        ("max_new_tokens", json!(0)),
        ("max_length", json!(4294967296_u64)),
        ("min_new_tokens", json!(-1)),
        ("min_length", json!(0.5)),
        ("stop_strings", json!(["a", ""])),
        ("stop_strings", json!([1])),
        ("suppress_tokens", json!([-1])),
        ("suppress_tokens", json!(7)),
        ("begin_suppress_tokens", json!(["a"])),
        ("bad_words_ids", json!([[1, 2]])),
        ("bad_words_ids", json!([7])),
        ("sequence_bias", json!([[[1, 2], 1.0]])),
        ("sequence_bias", json!([[[1], "x"]])),
        ("sequence_bias", json!({"1": 2})),
    ] {
        let error = read(json!({field: bad})).unwrap_err().to_string();
        assert!(error.starts_with(&format!("generation_config.json: {field} is {bad}, wanted ")), "{error}");
    }
}

#[test]
fn what_is_not_supported_is_refused_unless_it_asks_for_nothing() {
    for (field, neutral, other) in refused() {
        for neutral in [neutral, json!(null)] {
            assert_eq!(read(json!({field: neutral})).unwrap(), SamplingDefaults::default(), "{field}");
        }
        let error = read(json!({field: other})).unwrap_err().to_string();
        assert!(error.starts_with(&format!("generation_config.json: {field} is {other}, wanted ")), "{error}");
    }
}

/// Values that no field takes for nothing: each field of transformers either fails on one of them, or is
/// in the list of what is read, or is known to be harmless.
#[test]
fn no_field_of_transformers_is_forgotten() {
    let fields = golden("generation_fields.json");
    let fields: Vec<&str> = fields.as_array().unwrap().iter().map(|field| field.as_str().unwrap()).collect();
    assert!(fields.len() > 60 && refused().iter().filter(|(field, ..)| fields.contains(field)).count() > 20);
    for field in fields {
        for value in [json!(3), json!("x"), json!({"x": 1})] {
            if let Ok(read) = read(json!({field: value})) {
                assert!(read.warnings.is_empty(), "{field} is not known");
            }
        }
    }
}

#[test]
fn what_nobody_knows_is_a_warning() {
    let read = read(json!({"temprature": 0.5, "top_k": 1, "cache_config": {}})).unwrap();
    assert_eq!(read.warnings, ["generation_config.json: temprature is not known and changes nothing"]);
}
