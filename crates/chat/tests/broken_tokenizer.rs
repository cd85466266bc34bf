//! Whatever is wrong with a tokenizer's file is an error, never a panic.

mod common;

use std::sync::Arc;

use common::{model_file, model_map};
use markbase_chat::{ControlText, Result, Specials, Tokenizer};
use serde_json::{Value, json};

/// The built-in tokenizer with the lowest ids and its control tokens alone, so that it is read fast.
fn small() -> Value {
    let mut json: Value = serde_json::from_slice(&model_file("tokenizer.json")).unwrap();
    let vocab = json["model"]["vocab"].as_object_mut().unwrap();
    vocab.retain(|spelling, id| id.as_u64().unwrap() < 700 || spelling.contains('|'));
    let vocab = vocab.clone();
    let merges = json["model"]["merges"].as_array_mut().unwrap();
    merges.retain(|merge| {
        let [left, right] = [&merge[0], &merge[1]].map(|part| part.as_str().unwrap());
        [left, right, &format!("{left}{right}")].iter().all(|part| vocab.contains_key(*part))
    });
    json
}

/// JSON pointers to the values of `json`, the first ten of each list and object.
fn pointers(json: &Value, here: &str, all: &mut Vec<String>) {
    all.push(here.to_owned());
    let children: Vec<(String, &Value)> = match json {
        Value::Object(map) => map.iter().map(|(key, item)| (key.clone(), item)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect(),
        _ => Vec::new(),
    };
    for (key, child) in children.into_iter().take(10) {
        let key = key.replace('~', "~0").replace('/', "~1");
        pointers(child, &format!("{here}/{key}"), all);
    }
}

/// Reads a tokenizer and makes it do all that it can.
fn exercise(json: &Value) -> Result<()> {
    let tokenizer = Arc::new(Tokenizer::new(json.to_string().as_bytes(), &model_map("tokenizer_config.json"))?);
    for text in ["Hello there\n\n 🦀 <|turn>x<turn|> é", "", " ", "\u{0}a▁b"] {
        for specials in [Specials::Parse, Specials::AsText] {
            tokenizer.encode(text, specials)?;
        }
    }
    let all: Vec<u32> = (0..tokenizer.vocab_size() as u32).collect();
    tokenizer.decode(&all, ControlText::Show);
    Ok(())
}

#[test]
fn any_field_may_be_wrong() {
    let small = small();
    exercise(&small).unwrap();
    let mut all = Vec::new();
    pointers(&small, "", &mut all);
    assert!(all.len() > 150, "only {} fields", all.len());
    let odd = [
        json!(null),
        json!(0),
        json!(-1),
        json!(1e30),
        json!(u32::MAX),
        json!(""),
        json!("é"),
        json!([]),
        json!({}),
        json!(["a", "b"]),
        json!(true),
        json!({"type": "Replace", "pattern": {"Regex": "("}, "content": ""}),
        json!({"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": ""}),
        json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"}),
        json!({"type": "Split", "pattern": {"Regex": ""}, "behavior": "Isolated", "invert": false}),
        json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        json!({"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": "AAAA"}]}),
        json!({"precompiled_charsmap": "AAAA"}),
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        json!({"type": "Strip", "content": "", "start": 1, "stop": 1}),
        json!({"type": "Unigram", "unk_id": 5, "vocab": [["a", 1.0]]}),
        json!({"type": "WordLevel", "vocab": {}, "unk_token": "x"}),
        json!({"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 5}),
    ];
    let mut refused = 0;
    for pointer in &all {
        for value in &odd {
            let mut json = small.clone();
            *json.pointer_mut(pointer).expect("a pointer into the file") = value.clone();
            let tried = std::panic::catch_unwind(|| exercise(&json).is_err());
            refused += usize::from(tried.unwrap_or_else(|_| panic!("panic with {value} at {pointer:?}")));
        }
    }
    assert!(refused > all.len(), "only {refused} refused");
}

#[test]
fn a_file_cut_short_is_an_error() {
    let whole = small().to_string();
    for kept in (0..whole.len()).step_by(whole.len() / 40) {
        assert!(
            Tokenizer::new(&whole.as_bytes()[..kept], &model_map("tokenizer_config.json")).is_err(),
            "{kept} bytes"
        );
    }
}
