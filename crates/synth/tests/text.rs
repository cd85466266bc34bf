//! The tokenizer has a token for every id and encodes every text; the templates are of their kinds.

mod common;

use std::collections::BTreeSet;

use common::{recipe, written};
use markbase_synth::{Size, TinyKind, TinyOptions, config, tiny_config, tokenizer_json};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::Tokenizer;

fn load(json: &str) -> Tokenizer {
    Tokenizer::from_bytes(json).unwrap()
}

fn tiny() -> Tokenizer {
    load(&tokenizer_json(&tiny_config(TinyKind::Dense, TinyOptions::default())).unwrap())
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec()
}

#[test]
fn every_id_has_one_token_and_control_tokens_stand_at_gemmas_ids() {
    let tokenizer = load(&tokenizer_json(&config(Size::E2b)).unwrap());
    assert_eq!(tokenizer.get_vocab_size(true), 262_144);
    let ids: BTreeSet<u32> = tokenizer.get_vocab(true).into_values().collect();
    assert_eq!((ids.len(), ids.last()), (262_144, Some(&262_143)));
    let control = [
        ("<pad>", 0),
        ("<eos>", 1),
        ("<bos>", 2),
        ("<|tool_call>", 48),
        ("<|\"|>", 52),
        ("<|channel>", 100),
        ("<turn|>", 106),
        ("\n", 107),
        ("\n\n", 108),
        ("<|image>", 255_999),
        ("<|image|>", 258_880),
        ("<audio|>", 258_883),
        ("<|video|>", 258_884),
    ];
    for (content, id) in control {
        assert_eq!(tokenizer.token_to_id(content), Some(id), "{content}");
    }
    assert_eq!(tokenizer.token_to_id("<unused258900>"), Some(258_900));
    for character in ["é", "Ж", "語", "한", "🎉"] {
        assert!(tokenizer.token_to_id(character).is_some(), "{character}");
    }
}

#[test]
fn common_words_and_runs_are_one_token() {
    let tokenizer = tiny();
    for text in [" the", " and", " with", "\n", "\n\n", "\n\n\n\n\n\n\n", "    ", "ing"] {
        assert_eq!(ids(&tokenizer, text).len(), 1, "{text:?}");
    }
    for length in 1..=31 {
        assert_eq!(ids(&tokenizer, &"\n".repeat(length)).len(), 1, "{length} line ends");
    }
    assert_eq!(ids(&tokenizer, "<|turn>user\nHi<turn|>")[0], 105);
}

proptest! {
    #[test]
    fn any_text_is_encoded_and_comes_back(text in any::<String>()) {
        // Written as a space by Gemma's normalizer, and so read.
        prop_assume!(!text.contains('▁'));
        thread_local!(static TINY: Tokenizer = tiny());
        TINY.with(|tokenizer| {
            let ids = ids(tokenizer, &text);
            prop_assert!(ids.iter().all(|id| *id < 1024 && *id != 3), "{:?}", ids);
            prop_assert_eq!(tokenizer.decode(&ids, false).unwrap(), text.clone());
            Ok(())
        })?;
    }
}

#[test]
fn a_vocabulary_too_small_or_ids_outside_of_it_are_refused() {
    let refusal = |field: &str, value: Value| {
        let mut config = tiny_config(TinyKind::Dense, TinyOptions::default());
        match field {
            "vocab_size" => config["text_config"][field] = value,
            _ => config[field] = value,
        }
        tokenizer_json(&config).unwrap_err().to_string()
    };
    assert_eq!(
        refusal("image_token_id", json!(1024)),
        "config: image_token_id: 1024, wanted an id from 107 to below 1024 tokens"
    );
    assert_eq!(refusal("image_token_id", json!(1023)), "config: video_token_id: 1023 is the id of <|image|> already");
    let mut config = tiny_config(TinyKind::Dense, TinyOptions::default());
    config.retain(|field, _| !field.ends_with("_token_id") && field != "eoa_token_index");
    config["text_config"]["vocab_size"] = json!(300);
    assert_eq!(
        tokenizer_json(&config).unwrap_err().to_string(),
        "config: text_config.vocab_size: 300 tokens, wanted at least 526: control tokens, bytes and characters"
    );
}

#[test]
fn an_answer_without_thinking_begins_with_an_empty_thought_in_models_without_per_layer_inputs() {
    let prompt = |kind: TinyKind, thinking: bool| {
        let (_scratch, checkpoint) = written(&recipe(kind, None));
        let template = checkpoint.folder().file("chat_template.jinja").unwrap().unwrap();
        let template = String::from_utf8(template).unwrap();
        let mut environment = minijinja::Environment::new();
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_template("chat", &template).unwrap();
        let context = json!({
            "messages": [{"role": "user", "content": "Hi"}],
            "bos_token": "<bos>",
            "add_generation_prompt": true,
            "enable_thinking": thinking,
        });
        environment
            .get_template("chat")
            .unwrap()
            .render(minijinja::Value::from(minijinja::value::Serde(context)))
            .unwrap()
    };
    let plain = "<bos><|turn>user\nHi<turn|>\n<|turn>model\n";
    assert_eq!(prompt(TinyKind::PerLayer, false), plain);
    assert_eq!(prompt(TinyKind::Dense, false), format!("{plain}<|channel>thought\n<channel|>"));
    let thinking = "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n";
    assert_eq!(prompt(TinyKind::Dense, true), thinking);
}
