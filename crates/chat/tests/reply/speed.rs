//! A reply of any kind takes linear time.

use std::time::{Duration, Instant};

use markbase_chat::{ReplyOptions, ReplyParser};

use crate::script::{ids, tokenizer, with_tools};

const NUM_TOKENS: usize = 100_000;

/// A machine that is busy takes several times the usual twentieth of a second; quadratic time is far above.
const LIMIT: Duration = Duration::from_secs(3);

#[test]
fn hostile_replies_take_linear_time() {
    for (start, repeated) in [
        ("", "a"),
        ("", "<|channel>"),
        ("", "<|tool_call>"),
        ("<|channel>", "\n"),
        ("<|tool_call>", "call:f{}"),
        ("<|tool_call>", "call:f\n"),
        ("<|tool_call>", "call"),
        ("<|tool_call>", "call:f{} "),
        ("<|tool_call>call:f{}", "x{"),
        ("<|tool_call>call:f{a:", "["),
        ("<|tool_call>call:f{a:", "{a:"),
        ("<|tool_call>call:f{a:", "({["),
        ("<|tool_call>call:f{a:x(", ")]"),
        ("<|tool_call>call:f{a:[", "1 "),
        ("<|tool_call>call:f{a:", "1"),
        ("<|tool_call>call:f{", "a:1 "),
        ("<|tool_call>call:f{", "a:'x,"),
        ("<|tool_call>call:f{a:[", "'x,"),
        ("<|tool_call>call:f{", "a:\"x\\\","),
        ("<|tool_call>call:f{", "a:{\"x},"),
        ("<|tool_call>call:f{", "a:{<|\"|>},"),
        ("<|tool_call>call:f{a:'", "' a"),
        ("<|tool_call>call:f{a:[\"", "\" \n"),
        ("<|tool_call>call:f{a:'", "\\"),
        ("<|tool_call>call:f{a:<|\"|>", "<|\""),
        ("<|tool_call>call:f{a:<|\"|>", "<tool_call|>"),
        ("<|tool_call>call:f{a:<|\"|>", "<tool_call|><|tool_call>call:f{a:<|\"|>"),
        ("<|tool_call>call:f{a:<|\"|>", "<tool_call|><|tool_call>call:f{a:<|\"|>,b:<|\"|>"),
        ("<|tool_call>call:f{a:<|\"|>", "<tool_call|><|\"|>,b:<|\"|><|tool_call>call:f{a:"),
        ("<|tool_call>call:f{a:<|\"|>", "<|tool_call>call:f{a:<|\"|>,b:<|\"|>"),
        ("", "<|tool_call>call:f{a:<|\"|>x"),
        ("", "<|tool_call>call:f{a:<|\"|>x<tool_call|>"),
        ("", "<|tool_call>call:f{a:<|\"|><|\"|>,b:<|\"|>x<tool_call|>"),
        ("<|tool_call>call:f:\n", "BEGIN_ARG:\n"),
        ("<|tool_call>call:f:\n", "BEGIN_ARG:\nx\nEND_ARG\n"),
        ("<|tool_call>call:f:\n", "<|channel>thought\n<channel|>"),
        ("<|tool_call>call:f:\nBEGIN_ARG", "<|channel>thought\n<channel|>"),
        ("<|tool_call>", ":-"),
        ("<|tool_call>{\"name\":", "{\"name\":"),
    ] {
        let mut all = ids(start);
        let repeated_ids = ids(repeated);
        all.extend(repeated_ids.iter().cycle().take(NUM_TOKENS));
        let options = ReplyOptions { stop: vec!["aaaab".into(), "\n\n\n\nx".into()], ..with_tools(&[("f", &[])]) };
        let mut parser = ReplyParser::new(tokenizer(), options).unwrap();
        let started = Instant::now();
        let mut num_deltas: usize = all.iter().map(|&id| parser.push(id).len()).sum();
        num_deltas += parser.finish().len();
        let taken = started.elapsed();
        assert!(taken < LIMIT, "{start:?} and {repeated:?} again and again: {num_deltas} pieces in {taken:?}");
        println!("{taken:?} {start:?} {repeated:?}");
    }
}
