//! Answers end at the ids of every file and at the first stop text, however the text is cut.

mod common;

use common::{changed_tokenizer, model_file, model_map, tokenizer};
use markbase_chat::{Map, StopIds, StopStrings, Tokenizer, Watched};
use proptest::prelude::*;
use serde_json::{Value, json};

fn map(value: Value) -> Map {
    serde_json::from_value(value).unwrap()
}

#[test]
fn stop_ids_of_all_files_are_joined() {
    let tokenizer = tokenizer();
    for (config, generation, wanted) in [
        (json!({"eos_token_id": 1}), None, vec![1]),
        (json!({"eos_token_id": [1, 106]}), Some(json!({"eos_token_id": [1, 106, 50]})), vec![1, 50, 106]),
        (json!({"text_config": {"eos_token_id": 1}}), Some(json!({"eos_token_id": 106})), vec![1, 106]),
        (json!({"eos_token_id": null}), Some(json!({"eos_token_id": [50]})), vec![50]),
        (json!({}), None, vec![1, 106]),
        (json!({"eos_token_id": []}), Some(json!({})), vec![1, 106]),
    ] {
        let ids = StopIds::read(&map(config), generation.map(map).as_ref(), &tokenizer).unwrap();
        assert_eq!(ids.ids(), wanted);
        assert!(wanted.iter().all(|&id| ids.contains(id)) && !ids.contains(105));
    }
    let generation = model_map("generation_config.json");
    let ids = StopIds::read(&model_map("config.json"), Some(&generation), &tokenizer).unwrap();
    assert_eq!(ids.ids(), [1, 50, 106]);
}

#[test]
fn stop_ids_that_are_none_are_errors() {
    let tokenizer = tokenizer();
    let error = |config| StopIds::read(&map(config), None, &tokenizer).unwrap_err().to_string();
    assert_eq!(
        error(json!({"eos_token_id": "<eos>"})),
        "config.json: eos_token_id is \"<eos>\", wanted a token id or a list of them"
    );
    assert!(error(json!({"text_config": {"eos_token_id": [1, -1]}})).contains("text_config.eos_token_id is -1"));

    let mut json: Value = serde_json::from_slice(&model_file("tokenizer.json")).unwrap();
    for token in json["added_tokens"].as_array_mut().unwrap() {
        token["special"] = json!(false);
    }
    let nameless = Tokenizer::new(json.to_string().as_bytes(), &Map::new());
    let error = StopIds::read(&Map::new(), None, &nameless.unwrap()).unwrap_err();
    assert!(error.to_string().starts_with("no stop ids"));
}

#[test]
fn turns_of_a_chat_end_where_the_files_do_not_say() {
    let tokenizer = tokenizer();
    let eos = StopIds::read(&map(json!({"eos_token_id": 1})), None, &tokenizer).unwrap();
    assert_eq!(eos.clone().with_turn_ends(&tokenizer).ids(), [1, 50, 106]);
    assert_eq!(eos.clone().with_turn_ends(&tokenizer).with_turn_ends(&tokenizer).ids(), [1, 50, 106]);

    let without = changed_tokenizer(|json| {
        for token in json["added_tokens"].as_array_mut().unwrap() {
            if token["content"] == "<|tool_response>" {
                token["content"] = json!("<|other>");
            }
        }
        let vocab = json["model"]["vocab"].as_object_mut().unwrap();
        let id = vocab.remove("<|tool_response>").unwrap();
        vocab.insert("<|other>".to_owned(), id);
    });
    assert_eq!(eos.with_turn_ends(&without.unwrap()).ids(), [1, 106]);
}

/// Text and end that `pieces` give.
fn watch(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
    let mut watcher = StopStrings::new(stops).unwrap();
    let mut text = String::new();
    for piece in pieces {
        let watched = watcher.push(piece);
        text.push_str(&watched.text);
        if watched.stopped.is_some() {
            return (text, watched.stopped);
        }
    }
    text.push_str(&watcher.finish());
    (text, None)
}

#[test]
fn a_stop_text_across_pieces_is_never_seen() {
    let mut watcher = StopStrings::new(&["END"]).unwrap();
    let shown = |text: &str| Watched { text: text.to_owned(), stopped: None };
    assert_eq!(watcher.push("a E"), shown("a "));
    assert_eq!(watcher.push("N"), shown(""));
    assert_eq!(watcher.push("N E"), shown("ENN "));
    assert_eq!(watcher.push("ND!"), Watched { text: String::new(), stopped: Some(0) });
    assert_eq!(watcher.push("more"), Watched { text: String::new(), stopped: Some(0) });
    assert_eq!(watcher.finish(), "");
}

#[test]
fn the_first_complete_stop_text_ends_and_the_longest_of_those() {
    assert_eq!(watch(&["abcd", "bc"], &["xabc"]), ("xa".to_owned(), Some(1)));
    assert_eq!(watch(&["c", "abc"], &["xab", "c"]), ("x".to_owned(), Some(1)));
    assert_eq!(watch(&["abcd"], &["xab", "c"]), ("xabc".to_owned(), None));
    assert_eq!(watch(&["🦀"], &["é🦀é"]), ("é".to_owned(), Some(0)));
    assert_eq!(watch(&[], &["a", "b"]), ("ab".to_owned(), None));
    let error = StopStrings::new(&["a", ""]).unwrap_err().to_string();
    assert_eq!(error, "stop string 1 is empty; wanted at least one character");
}

/// The rule, on a whole text.
fn stopped_at(stops: &[&str], text: &str) -> (String, Option<usize>) {
    for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
        let complete = |stop: &&str| text[..end].ends_with(*stop);
        if let Some(longest) = stops.iter().filter(|stop| complete(stop)).max_by_key(|s| s.len()) {
            let index = stops.iter().position(|stop| stop == longest);
            return (text[..end - longest.len()].to_owned(), index);
        }
    }
    (text.to_owned(), None)
}

proptest! {
    #[test]
    fn however_the_text_is_cut_it_ends_at_the_same_place(
        stops in prop::collection::vec("[abé]{1,4}", 0..4),
        pieces in prop::collection::vec("[abé]{0,3}", 0..10),
    ) {
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        prop_assert_eq!(watch(&stops, &pieces), stopped_at(&stops, &pieces.concat()));
    }
}
