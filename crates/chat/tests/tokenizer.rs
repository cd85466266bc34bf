//! Ids and texts equal those of Hugging Face's tokenizer, and control tokens are what the caller says.

mod common;

use common::{changed_tokenizer, golden, model_file, model_map, tokenizer};
use markbase_chat::{ControlText, Map, Specials, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("ids")
}

fn cases(part: &str) -> Vec<Value> {
    golden("tokenizer.json")[part].as_array().expect("a list").clone()
}

#[test]
fn plain_texts_have_the_same_ids_in_both_modes() {
    let tokenizer = tokenizer();
    for case in cases("plain") {
        let text = case[0].as_str().unwrap();
        for specials in [Specials::Parse, Specials::AsText] {
            // "<unk>" among the plain texts is a control token; the next test has those.
            if text.contains("<unk>") && specials == Specials::AsText {
                continue;
            }
            assert_eq!(tokenizer.encode(text, specials).unwrap(), ids(&case[1]), "{text:?}");
        }
    }
}

#[test]
fn control_tokens_are_parsed_or_text_as_asked() {
    let tokenizer = tokenizer();
    for case in cases("control") {
        let text = case[0].as_str().unwrap();
        let parsed = tokenizer.encode(text, Specials::Parse).unwrap();
        let as_text = tokenizer.encode(text, Specials::AsText).unwrap();
        assert_eq!(parsed, ids(&case[1]), "{text:?} parsed");
        assert_eq!(as_text, ids(&case[2]), "{text:?} as text");
        assert!(as_text.iter().all(|&id| !tokenizer.is_special(id)), "{text:?}");
    }
}

#[test]
fn flags_of_control_tokens_take_white_space_and_keep_words() {
    let flags = golden("tokenizer.json")["flags"].clone();
    let tokenizer = changed_tokenizer(|json| {
        for token in json["added_tokens"].as_array_mut().unwrap() {
            let flag = flags[token["content"].as_str().unwrap()].as_str();
            token["lstrip"] = json!(matches!(flag, Some("lstrip" | "both")));
            token["rstrip"] = json!(matches!(flag, Some("rstrip" | "both")));
            token["single_word"] = json!(flag == Some("single_word"));
        }
    })
    .unwrap();
    for case in cases("flagged") {
        let text = case[0].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, Specials::Parse).unwrap(), ids(&case[1]), "{text:?}");
    }
}

#[test]
fn decoded_texts_are_the_same_with_and_without_control_tokens() {
    let tokenizer = tokenizer();
    for case in cases("decoded") {
        let ids = ids(&case[0]);
        assert_eq!(tokenizer.decode(&ids, ControlText::Hide), case[1], "{ids:?}");
        assert_eq!(tokenizer.decode(&ids, ControlText::Show), case[2], "{ids:?}");
    }
}

#[test]
fn literal_byte_spelling_in_a_text_stays_text() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("<0xEA><0xB9><0xB0>", Specials::AsText).unwrap();
    assert_eq!(tokenizer.decode(&ids, ControlText::Hide), "<0xEA><0xB9><0xB0>");
}

#[test]
fn a_literal_lower_block_reads_as_a_space() {
    // The normaliser makes them one; nothing later can tell.
    let tokenizer = tokenizer();
    let block = tokenizer.encode("a▁b", Specials::AsText).unwrap();
    assert_eq!(block, tokenizer.encode("a b", Specials::AsText).unwrap());
    assert_eq!(tokenizer.decode(&block, ControlText::Hide), "a b");
}

#[test]
fn raw_completions_begin_with_bos_exactly_once() {
    let tokenizer = tokenizer();
    let bos = tokenizer.bos().unwrap();
    let plain = tokenizer.encode("Hi", Specials::Parse).unwrap();
    let with_bos: Vec<u32> = std::iter::once(bos).chain(plain.iter().copied()).collect();
    assert_eq!(tokenizer.encode_raw("Hi").unwrap(), with_bos);
    assert_eq!(tokenizer.encode_raw("<bos>Hi").unwrap(), with_bos);
    assert_eq!(tokenizer.encode_raw("").unwrap(), [bos]);

    let mut config = model_map("tokenizer_config.json");
    config.insert("add_bos_token".to_owned(), json!(false));
    let without = Tokenizer::new(&model_file("tokenizer.json"), &config).unwrap();
    assert_eq!(without.encode_raw("Hi").unwrap(), plain);
}

#[test]
fn tokens_are_spelled_and_stand_for_bytes() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.vocab_size(), 3072);
    let turn = tokenizer.special_id("<|turn>").unwrap();
    assert_eq!((turn, tokenizer.token_text(turn)), (105, Some("<|turn>")));
    assert_eq!(tokenizer.special_id("the"), None);
    assert_eq!((tokenizer.token_text(3072), tokenizer.token_bytes(u32::MAX)), (None, None));

    let ids = tokenizer.encode(" the crab 🦀 is \u{7fff}", Specials::AsText).unwrap();
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap().into_owned()).collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), " the crab 🦀 is \u{7fff}");
    assert_eq!(tokenizer.token_bytes(*ids.last().unwrap()).unwrap().as_ref(), [0xBF]);
}

#[test]
fn broken_files_are_errors() {
    let empty = Map::new();
    for bytes in [&b""[..], b"{}", b"[1]", b"\xff\xfe", b"{\"model\":{\"type\":\"BPE\"}}"] {
        assert!(Tokenizer::new(bytes, &empty).is_err());
    }
    let far = changed_tokenizer(|json| json["model"]["vocab"]["zzz"] = json!(4_000_000_000_u32));
    assert!(far.unwrap_err().to_string().contains("id 4000000000"));
    let decoder =
        changed_tokenizer(|json| json["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true}));
    assert!(decoder.unwrap_err().to_string().contains("WordPiece"));

    let config = serde_json::from_value(json!({"bos_token": 2})).unwrap();
    let error = Tokenizer::new(&model_file("tokenizer.json"), &config).unwrap_err();
    assert_eq!(error.to_string(), "tokenizer_config.json: bos_token is 2, wanted a string, or a map with `content`");
}

#[test]
fn merges_that_lead_to_a_control_token_are_an_error_not_a_token() {
    let tokenizer = changed_tokenizer(|json| {
        for merge in [["<", "e"], ["<e", "o"], ["<eo", "s"], ["<eos", ">"]] {
            let made = merge.concat();
            let next = json["model"]["vocab"].as_object().unwrap().len();
            if json["model"]["vocab"].get(&made).is_none() {
                json["model"]["vocab"][made] = json!(next);
            }
            json["model"]["merges"].as_array_mut().unwrap().insert(0, json!(merge));
        }
    })
    .unwrap();
    let error = tokenizer.encode("a<eos>b", Specials::AsText).unwrap_err().to_string();
    assert!(error.contains("<eos>"), "{error}");
}

#[test]
fn tokens_that_the_configuration_names_are_control_tokens() {
    let named = ["<|turn>", "<|video|>"]; // sot_token, and one of extra_special_tokens
    let tokenizer = changed_tokenizer(|json| {
        for token in json["added_tokens"].as_array_mut().unwrap() {
            if named.contains(&token["content"].as_str().unwrap()) {
                token["special"] = json!(false);
            }
        }
    })
    .unwrap();
    for spelling in named {
        let id = tokenizer.special_id(spelling).expect("a control token");
        assert_eq!(tokenizer.encode(spelling, Specials::Parse).unwrap(), [id]);
        assert!(!tokenizer.encode(spelling, Specials::AsText).unwrap().contains(&id));
    }
    assert_eq!(tokenizer.special_id("<|turn>"), Some(105));
}

#[test]
fn bos_may_be_a_map_with_its_content() {
    let config = serde_json::from_value(json!({"bos_token": {"content": "<bos>"}})).unwrap();
    let tokenizer = Tokenizer::new(&model_file("tokenizer.json"), &config).unwrap();
    assert_eq!(tokenizer.bos(), Some(2));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// What is encoded as text decodes to the same text; only the lower block becomes a space.
    #[test]
    fn texts_survive_the_round_trip(text in "\\PC{0,12}([\n\t <|>a-z]{0,8}|<\\|turn>|\\PC{0,4})") {
        thread_local!(static TOKENIZER: std::sync::Arc<Tokenizer> = tokenizer());
        TOKENIZER.with(|tokenizer| {
            let ids = tokenizer.encode(&text, Specials::AsText).unwrap();
            let decoded = tokenizer.decode(&ids, ControlText::Hide);
            prop_assert_eq!(decoded, text.replace('▁', " "));
            Ok(())
        })?;
    }
}
