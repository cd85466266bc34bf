//! What ends a reply.

use markbase_chat::{Ended, Error, ReplyOptions, ReplyParser};

use crate::script::{control, ids, play, spelled, tokenizer};

fn options(stop: &[&str]) -> ReplyOptions {
    ReplyOptions {
        stop: stop.iter().map(|stop| stop.to_string()).collect(),
        stop_ids: ["<eos>", "<turn|>", "<|tool_response>"].map(control).to_vec(),
        ..ReplyOptions::default()
    }
}

#[test]
fn a_stop_id_ends_whatever_is_open() {
    for (input, text, thought, calls, stop) in [
        ("Done<turn|>more", "Done", "", &[][..], "<turn|>"),
        ("Done<eos>more<turn|>", "Done", "", &[], "<eos>"),
        ("<|channel>thought\nplan\n<turn|>more", "", "plan", &[], "<turn|>"),
        ("<|tool_call>call:f{}<tool_call|><|tool_response>response:f{}", "", "", &["f{}"], "<|tool_response>"),
        ("<|tool_call>call:f{}<|tool_response>more", "", "", &["f{}"], "<|tool_response>"),
        ("<|tool_call>call:f{a:<|\"|>x<turn|>y<|\"|>}<tool_call|>", "", "", &["f{\"a\":\"x\"}"], "<turn|>"),
        ("<|tool_call>call:f{a:<|\"|>x<tool_call|>y<turn|>z", "y", "", &["f{\"a\":\"x\"}"], "<turn|>"),
        ("<|tool_call>f<eos>", "<|tool_call>f", "", &[], "<eos>"),
        ("<eos>", "", "", &[], "<eos>"),
    ] {
        let played = play(options(&[]), &ids(input));
        assert_eq!((played.reply.text.as_str(), played.reply.thought.as_str()), (text, thought), "{input:?}");
        assert_eq!(spelled(&played.reply), calls, "{input:?}");
        assert_eq!(played.ended, Some(Ended::StopId(control(stop))), "{input:?}");
    }
    assert_eq!(play(options(&[]), &ids("<|channel>thought\nplan")).ended, None);
}

#[test]
fn a_stop_string_ends_the_text_and_nothing_else() {
    for (input, text, thought, num_calls, ended) in [
        ("one STOP two", "one ", "", 0, Some(0)),
        ("one STO two", "one STO two", "", 0, None),
        ("one ST", "one ST", "", 0, None),
        ("a\nUser: b", "a\n", "", 0, Some(1)),
        ("<|channel>thought\nSTOP\n<channel|>one STOP", "one ", "STOP", 0, Some(0)),
        ("<|tool_call>call:f{a:<|\"|>STOP<|\"|>}<tool_call|>x", "x", "", 1, None),
        ("<|tool_call>call:f{}<tool_call|>xSTOP<|tool_call>call:f{}<tool_call|>", "x", "", 1, Some(0)),
        // None spans a control token.
        ("ST<|channel>thought\na<channel|>OP", "STOP", "a", 0, None),
        ("ST<|image|>OP", "STOP", "", 0, None),
        ("ST<|tool_call>call:f{}<tool_call|>OP", "STOP", "", 1, None),
        ("<|tool_call>call:f{}ST<tool_call|>OP", "STOP", "", 1, None),
        ("STSTOP", "ST", "", 0, Some(0)),
        // What comes back from a call is text.
        ("<|tool_call>no call: STOP<tool_call|>x", "<|tool_call>no call: ", "", 0, Some(0)),
        ("<|tool_call>call:f{} STOP<tool_call|>x", " ", "", 1, Some(0)),
        (
            "<|tool_call>call:f{a:<|\"|><tool_call|>STOP<|\"|>x<tool_call|><|tool_call>call:f{}<tool_call|>",
            "",
            "",
            1,
            Some(0),
        ),
    ] {
        let played = play(options(&["STOP", "User:"]), &ids(input));
        assert_eq!((played.reply.text.as_str(), played.reply.thought.as_str()), (text, thought), "{input:?}");
        assert_eq!(played.reply.calls.len(), num_calls, "{input:?}");
        assert_eq!(played.ended, ended.map(Ended::StopString), "{input:?}");
    }
}

#[test]
fn an_empty_stop_string_is_refused() {
    let error = ReplyParser::new(tokenizer(), options(&["a", ""])).unwrap_err();
    assert!(matches!(error, Error::EmptyStop { index: 1 }), "{error}");
}
