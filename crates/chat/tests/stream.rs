//! Text that comes token by token is the text of all tokens, and never breaks a character.

mod common;

use std::sync::Arc;

use common::{changed_tokenizer, tokenizer};
use markbase_chat::{ControlText, Specials, TextStream, Tokenizer};
use proptest::prelude::*;
use serde_json::json;

fn byte_token(tokenizer: &Tokenizer, byte: u8) -> u32 {
    let spelling = format!("<0x{byte:02X}>");
    let mut ids = 0..tokenizer.vocab_size() as u32;
    ids.find(|&id| tokenizer.token_text(id) == Some(&spelling)).expect("a byte token")
}

fn deltas(tokenizer: &Arc<Tokenizer>, ids: &[u32]) -> Vec<String> {
    let mut stream = TextStream::new(Arc::clone(tokenizer), ControlText::Hide);
    let mut deltas: Vec<String> = ids.iter().map(|&id| stream.push(id)).collect();
    deltas.push(stream.finish());
    deltas
}

#[test]
fn a_character_of_four_byte_tokens_comes_whole() {
    let tokenizer = tokenizer();
    let ids: Vec<u32> = "🦀".bytes().map(|byte| byte_token(&tokenizer, byte)).collect();
    assert_eq!(deltas(&tokenizer, &ids), ["", "", "", "🦀", ""]);
}

#[test]
fn a_character_cut_off_is_one_replacement_a_byte_at_the_end() {
    let tokenizer = tokenizer();
    let ids: Vec<u32> = "🦀".bytes().take(3).map(|byte| byte_token(&tokenizer, byte)).collect();
    assert_eq!(deltas(&tokenizer, &ids), ["", "", "", "\u{FFFD}\u{FFFD}\u{FFFD}"]);
}

#[test]
fn bytes_that_begin_nothing_do_not_wait() {
    let tokenizer = tokenizer();
    let ids = [0xFF, 0xC3, 0xA9].map(|byte| byte_token(&tokenizer, byte));
    assert_eq!(deltas(&tokenizer, &ids), ["\u{FFFD}", "", "é", ""]);
}

#[test]
fn a_hidden_control_token_does_not_part_a_character() {
    let tokenizer = tokenizer();
    let [first, second] = [0xC3, 0xA9].map(|byte| byte_token(&tokenizer, byte));
    let turn = tokenizer.special_id("<turn|>").unwrap();
    assert_eq!(tokenizer.decode(&[first, turn, second], ControlText::Hide), "é");
    let shown = tokenizer.decode(&[first, turn, second], ControlText::Show);
    assert_eq!(shown, "\u{FFFD}<turn|>\u{FFFD}");
}

#[test]
fn the_first_space_goes_where_the_decoder_says_so() {
    let tokenizer = changed_tokenizer(|json| {
        let steps = json["decoder"]["decoders"].as_array_mut().unwrap();
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    });
    let tokenizer = Arc::new(tokenizer.unwrap());
    let ids = tokenizer.encode("  the  the", Specials::AsText).unwrap();
    assert_eq!(tokenizer.decode(&ids, ControlText::Hide), " the  the");
    let mut stream = TextStream::new(tokenizer, ControlText::Hide);
    for _ in 0..2 {
        let text: String = ids.iter().map(|&id| stream.push(id)).collect();
        assert_eq!(text + &stream.finish(), " the  the");
    }
}

#[test]
fn ids_without_a_token_add_nothing() {
    let tokenizer = tokenizer();
    let the = tokenizer.encode(" the", Specials::AsText).unwrap();
    let ids = [&[u32::MAX], the.as_slice(), &[9_999]].concat();
    assert_eq!(tokenizer.decode(&ids, ControlText::Hide), " the");
}

/// The text of `ids` worked out over whole runs of byte tokens.
fn decoded_by_runs(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let (mut text, mut run) = (String::new(), Vec::new());
    let end_run = |run: &mut Vec<u8>, text: &mut String| {
        for chunk in run.utf8_chunks() {
            text.push_str(chunk.valid());
            text.extend(chunk.invalid().iter().map(|_| '\u{FFFD}'));
        }
        run.clear();
    };
    for &id in ids.iter().filter(|&&id| !tokenizer.is_special(id)) {
        let spelling = tokenizer.token_text(id).unwrap();
        match spelling.strip_prefix("<0x") {
            Some(hex) => run.push(u8::from_str_radix(&hex[..2], 16).unwrap()),
            None => {
                end_run(&mut run, &mut text);
                text.push_str(&spelling.replace('▁', " "));
            }
        }
    }
    end_run(&mut run, &mut text);
    text
}

proptest! {
    #[test]
    fn deltas_joined_are_the_text_of_whole_runs(
        pieces in prop::collection::vec(
            prop_oneof![
                (0u32..3072).prop_map(|id| vec![id]),
                any::<char>().prop_map(|c| c.to_string().bytes().map(u32::from).map(|b| 5000 + b).collect()),
                (0x80u32..0x100).prop_map(|b| vec![5000 + b]),
            ],
            0..12,
        )
    ) {
        thread_local!(static SETUP: (Arc<Tokenizer>, Vec<u32>) = {
            let tokenizer = tokenizer();
            let bytes = (0..=255).map(|byte| byte_token(&tokenizer, byte)).collect();
            (tokenizer, bytes)
        });
        SETUP.with(|(tokenizer, bytes)| {
            let ids: Vec<u32> = pieces
                .concat()
                .into_iter()
                .map(|id| if id < 5000 { id } else { bytes[id as usize - 5000] })
                .collect();
            let joined = deltas(tokenizer, &ids).concat();
            prop_assert_eq!(joined, decoded_by_runs(tokenizer, &ids));
            Ok(())
        })?;
    }
}
