//! Text and thought.

use markbase_chat::{Delta, ReplyOptions, ReplyParser};

use crate::script::{bytes, control, expect, expect_ids, ids, plain, play, tokenizer};

fn after(prompt: &str) -> ReplyOptions {
    ReplyOptions { after_prompt: ids(prompt), ..ReplyOptions::default() }
}

#[test]
fn what_stands_in_a_channel_is_thought() {
    for (input, text, thought) in [
        ("Hello.", "Hello.", ""),
        ("", "", ""),
        ("<|channel>thought\nplan\n<channel|>Done", "Done", "plan"),
        ("<|channel>thought\nplan<channel|>Done", "Done", "plan"),
        ("<|channel>thought\na\nb\n\n<channel|>\n\nDone\n", "\n\nDone\n", "a\nb\n"),
        // Blocks are joined; empty ones are nothing.
        ("<|channel>thought\na\n<channel|>x<|channel>thought\nb\n<channel|>y", "xy", "a\nb"),
        ("<|channel>thought\n<channel|>x<|channel>thought\nb<channel|>y", "xy", "b"),
        ("<|channel>thought\na<channel|><|channel>thought\n\n<channel|><|channel>thought\nb<channel|>", "", "a\nb"),
        ("<|channel>thought\na<channel|><|channel>thought\n\n\n<channel|>", "", "a\n\n"),
        // The label.
        ("<|channel>thought\n<channel|>x", "x", ""),
        ("<|channel>thought<channel|>x", "x", ""),
        ("<|channel><channel|>x", "x", ""),
        ("<|channel>\n<channel|>x", "x", ""),
        ("<|channel>thoughtful<channel|>x", "x", "thoughtful"),
        ("<|channel>thought: yes<channel|>x", "x", "thought: yes"),
        ("<|channel>thou<channel|>x", "x", "thou"),
        ("<|channel>analysis\nplan<channel|>x", "x", "analysis\nplan"),
        ("<|channel>\nplan<channel|>x", "x", "\nplan"),
        ("<|channel>thought\nthought\nplan<channel|>x", "x", "thought\nplan"),
        ("thought\nabout it", "thought\nabout it", ""),
        ("<|channel>thought\na<channel|>thought\nabout it", "thought\nabout it", "a"),
        // What is not closed, not opened, opened twice.
        ("<|channel>thought\nplan", "", "plan"),
        ("<|channel>thought\nplan\n", "", "plan"),
        ("<|channel>thought", "", ""),
        ("<|channel>tho", "", "tho"),
        ("<|channel>", "", ""),
        ("plan<channel|>Done", "planDone", ""),
        ("a<|channel>thought\nb\n<|channel>thought\nc<channel|>d", "ad", "b\nc"),
        ("a<|channel>thou<|channel>c<channel|>d", "ad", "thou\nc"),
        // Other control tokens are not seen.
        (
            "a<|image|>b<tool_call|>c<tool_response|>d<|\"|>e<|turn>f<turn|>g<pad><eos>h<|tool_response>i",
            "abcdefghi",
            "",
        ),
        ("<|channel>thought\na<|image|>b<turn|>c\n<tool_call|>", "", "abc"),
    ] {
        expect(input, text, thought, &[]);
    }
}

#[test]
fn control_tokens_that_ordinary_ones_spell_are_text() {
    let input = "<|channel>thought\nx<channel|> <|tool_call>call:f{}<tool_call|> <turn|>";
    expect_ids(&ReplyOptions::default(), &plain(input), input, "", &[]);
    let thought = [ids("<|channel>thought\n"), plain("<channel|>"), ids("<channel|>x")].concat();
    expect_ids(&ReplyOptions::default(), &thought, "x", "<channel|>", &[]);
}

#[test]
fn the_prompt_says_where_a_reply_begins() {
    let thinking = "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nhi<turn|>\n<|turn>model\n";
    for (prompt, input, text, thought) in [
        ("", "plan<channel|>Done", "planDone", ""),
        (thinking, "Hello.", "Hello.", ""),
        (thinking, "<|channel>thought\nplan\n<channel|>Hello.", "Hello.", "plan"),
        ("<|turn>model\n<|channel>thought\n", "plan<channel|>Done", "Done", "plan"),
        (
            "<|turn>model\n<|tool_call>call:f{}<tool_call|><|tool_response>response:f{}<tool_response|><|channel>thought\n",
            "plan\n<channel|>Done",
            "Done",
            "plan",
        ),
        ("<|channel>thought\n", "", "", ""),
        ("<|channel>thought\n", "plan", "", "plan"),
        ("<|channel>thought\n", "<channel|>Done", "Done", ""),
        ("<|channel>thought\n", "thought\nplan<channel|>", "", "thought\nplan"),
        ("<|channel>thought\nI think\n", "\nso<channel|>Done", "Done", "\nso"),
        // The label goes on where the prompt left it.
        ("<|channel>", "thought\nplan<channel|>Done", "Done", "plan"),
        ("<|channel>thought", "\nplan<channel|>Done", "Done", "plan"),
        ("<|channel>thou", "ght\nplan<channel|>Done", "Done", "plan"),
        ("<|channel>thou", "gh plan<channel|>Done", "Done", "gh plan"),
        ("<|channel>thou", "g<channel|>Done", "Done", "g"),
        ("<|channel>thought", "<channel|>Done", "Done", ""),
        // Closed, or of another turn.
        ("<|turn>model\n<|channel>thought\n<channel|>", "Done", "Done", ""),
        ("<|channel>thought\nx<turn|>\n<|turn>model\n", "Done", "Done", ""),
        ("<|channel>thought\nx<|turn>model\n", "Done", "Done", ""),
        (
            "<|turn>model\n<|tool_call>call:f{}<tool_call|><|tool_response>response:f{}<tool_response|>",
            "Done",
            "Done",
            "",
        ),
    ] {
        expect_ids(&after(prompt), &ids(input), text, thought, &[]);
    }
}

#[test]
fn only_what_may_be_label_or_last_newline_is_held_back() {
    let steps = ["<|channel>", "th", "ought", "\n", "a", "\n", "\n", "b", "\n", "<channel|>", "c", "\n"];
    let mut parser = ReplyParser::new(tokenizer(), ReplyOptions::default()).unwrap();
    let mut out = vec![];
    for step in steps {
        let deltas: Vec<Delta> = ids(step).into_iter().flat_map(|id| parser.push(id)).collect();
        out.push(match deltas.as_slice() {
            [] => String::new(),
            [Delta::Thought(text)] => format!("thought {text:?}"),
            [Delta::Text(text)] => format!("text {text:?}"),
            other => panic!("{step:?}: {other:?}"),
        });
    }
    let wanted = [
        "",
        "",
        "",
        "",
        "thought \"a\"",
        "",
        "thought \"\\n\"",
        "thought \"\\nb\"",
        "",
        "",
        "text \"c\"",
        "text \"\\n\"",
    ];
    assert_eq!(out, wanted);
}

#[test]
fn half_characters_wait_for_their_rest_but_not_behind_a_control_token() {
    let crab = bytes("🦀".as_bytes());
    let whole = play(ReplyOptions::default(), &crab);
    assert_eq!(whole.deltas.concat(), [Delta::Text("🦀".into())]);
    let half = |bytes: usize| crab[..bytes].to_vec();
    let in_call = [ids("<|tool_call>call:f{a:<|\"|>"), half(4), half(1), ids("<|\"|>}<tool_call|>")];
    for (parts, text, thought, calls) in [
        (&[half(3)][..], "\u{FFFD}\u{FFFD}\u{FFFD}", "", &[][..]),
        (&[half(2), ids("<|channel>"), crab[2..].to_vec()], "\u{FFFD}\u{FFFD}", "\u{FFFD}\u{FFFD}", &[]),
        (&[ids("<|channel>thought\n"), half(1), ids("<channel|>x")], "x", "\u{FFFD}", &[]),
        (&[bytes(&[0xFF]), ids("a")], "\u{FFFD}a", "", &[]),
        (&in_call, "", "", &["f{\"a\":\"🦀\u{FFFD}\"}"]),
    ] {
        expect_ids(&ReplyOptions::default(), &parts.concat(), text, thought, calls);
    }
}

#[test]
fn tokens_of_thoughts_are_counted_with_their_markers_and_without_calls() {
    for (prompt, input, wanted) in [
        ("", "plan", 0),
        ("", "<|channel>thought\n", 3),
        ("", "x<|channel>thought\n<channel|>x", 4),
        ("", "<|channel>thought\n<channel|>x<|channel>thought\n<channel|>x", 8),
        ("", "<|channel>thought\n<|channel>thought\n<channel|>x", 7),
        ("", "<|channel>thought\n<|tool_call>call:f{a:<|\"|>1<|\"|>}<tool_call|><channel|>x", 4),
        ("", "<|channel>thought\n<|tool_call>call:f{a:<|\"|><tool_call|>\n<channel|>x", 5),
        ("<|channel>thought\n", "\n<channel|>x", 2),
        ("<|channel>thought\n", "<turn|>", 1),
    ] {
        assert_eq!(play(after(prompt), &ids(input)).thought_tokens, wanted, "{prompt:?} {input:?}");
    }
    let ended = ReplyOptions { stop_ids: vec![control("<turn|>")], ..after("<|channel>thought\n") };
    assert_eq!(play(ended, &ids("\n<turn|>")).thought_tokens, 1);
}

#[test]
fn a_call_within_a_thought_leaves_it_open() {
    let input = "<|channel>thought\na\n<|tool_call>call:f{}<tool_call|>b\n<|tool_call>call:g{}<tool_call|><channel|>c";
    expect(input, "c", "a\nb", &["f{}", "g{}"]);
    let mut parser = ReplyParser::new(tokenizer(), ReplyOptions::default()).unwrap();
    for id in ids("<|channel>thought\na<|tool_call>call") {
        parser.push(id);
    }
    assert!(parser.is_in_thought());
}

#[test]
fn the_end_of_a_thought_ends_a_call_in_it() {
    for (input, text, thought, calls) in [
        ("<|channel>thought\nI could <|tool_call> now<channel|>Yes.", "<|tool_call> nowYes.", "I could ", &[][..]),
        ("<|channel>thought\na<|tool_call>call:f{a:1<channel|>Yes.", "Yes.", "a", &["f{\"a\":1}"]),
        // In a string it is a part of that, and in an answer it ends nothing.
        (
            "<|channel>thought\na<|tool_call>call:f{a:<|\"|>x<channel|>y<|\"|>}<tool_call|><channel|>Yes.",
            "Yes.",
            "a",
            &["f{\"a\":\"x<channel|>y\"}"],
        ),
        ("<|tool_call>call:f{a:x<channel|>y}<tool_call|>Yes.", "Yes.", "", &["f{\"a\":\"x<channel|>y\"}"]),
    ] {
        expect(input, text, thought, calls);
    }
}
