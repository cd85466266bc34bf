//! The built-in model answers as recorded, and the forms of output are what programs read.

mod common;

use common::{markbase, model, succeeds};
use serde_json::Value;

#[test]
fn recorded_answers_of_the_built_in_model() {
    for (prompt, answer) in [
        ("What is the capital of France?", "The capital of France is Paris.\n"),
        ("What is 17 + 25?", "42\n"),
        ("Hello!", "Hello! How can I help you today?\n"),
    ] {
        for precision in ["fast", "exact"] {
            let text = succeeds(&["run", "--temperature", "0", "--precision", precision, prompt]);
            assert_eq!(text, answer, "{prompt} {precision}");
        }
    }
}

#[test]
fn folder_and_binary_hold_the_same_model() {
    let folder = model();
    let arguments = ["run", "--temperature", "0", "--json", "Tell me a short story about a fox."];
    let built_in: Value = serde_json::from_str(&succeeds(&arguments)).unwrap();
    let from_folder = [&arguments[..], &["--model", folder.to_str().unwrap()]].concat();
    let from_folder: Value = serde_json::from_str(&succeeds(&from_folder)).unwrap();
    assert_eq!(built_in["token_ids"], from_folder["token_ids"]);
    assert_eq!(built_in["finish_reason"], "stop");
    let count = |name: &str| built_in["usage"][name].as_u64().unwrap();
    assert_eq!(count("prompt_tokens") + count("completion_tokens"), count("total_tokens"));
    assert!(built_in["text"].as_str().unwrap().contains("fox"));
    assert!(built_in["timings"]["decode_tokens_per_second"].as_f64().unwrap() > 0.0);
}

#[test]
fn the_same_seed_gives_the_same_answer() {
    let with = |seed: &str| succeeds(&["run", "--temperature", "1.2", "--seed", seed, "Tell me a story about a cat."]);
    assert_eq!(with("5"), with("5"));
    assert_ne!(with("5"), with("6"));
}

#[test]
fn answers_end_at_max_tokens_and_before_stop_texts() {
    let answer = |more: &[&str]| -> Value {
        let arguments = [&["run", "--temperature", "0", "--json", "What is the capital of France?"], more].concat();
        serde_json::from_str(&succeeds(&arguments)).unwrap()
    };
    let short = answer(&["--max-tokens", "3"]);
    assert_eq!(
        (short["finish_reason"].as_str(), short["usage"]["completion_tokens"].as_u64()),
        (Some("length"), Some(3))
    );
    let stopped = answer(&["--stop", "France"]);
    assert_eq!((stopped["finish_reason"].as_str(), stopped["text"].as_str()), (Some("stop"), Some("The capital of ")));
}

#[test]
fn raw_prompts_are_not_rendered() {
    let raw = "<bos><|turn>user\nWhat is 17 + 25?<turn|>\n<|turn>model\n";
    assert_eq!(succeeds(&["run", "--temperature", "0", "--raw", raw]), "42\n");
    let typed: Value =
        serde_json::from_str(&succeeds(&["run", "--temperature", "0", "--json", "--max-tokens", "1", raw])).unwrap();
    let rendered: Value =
        serde_json::from_str(&succeeds(&["run", "--temperature", "0", "--json", "--max-tokens", "1", "--raw", raw]))
            .unwrap();
    let tokens = |value: &Value| value["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(tokens(&typed) > tokens(&rendered) + 8, "control tokens that a person types stay text");
}

#[test]
fn prompts_come_through_a_pipe() {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut child = Command::new(env!("CARGO_BIN_EXE_markbase"))
        .args(["run", "--temperature", "0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"What is 17 + 25?\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "42\n");
}

#[test]
fn logits_do_not_depend_on_chunks_or_threads() {
    let place = tempfile::tempdir().unwrap();
    let tokens = place.path().join("tokens.json");
    let ids: Vec<String> = (0..100).map(|i| (i * 37 % 3000).to_string()).collect();
    std::fs::write(&tokens, format!("[{}]", ids.join(","))).unwrap();
    let logits = |name: &str, more: &[&str]| {
        let out = place.path().join(name);
        let arguments =
            [&["logits", "--tokens", tokens.to_str().unwrap(), "--out", out.to_str().unwrap()], more].concat();
        assert_eq!(succeeds(&arguments), "");
        std::fs::read(out).unwrap()
    };
    for precision in ["fast", "exact"] {
        let whole = logits("whole", &["--precision", precision]);
        for chunk in ["1", "7", "16", "64"] {
            let piecewise = logits("pieces", &["--precision", precision, "--chunk", chunk, "--threads", "3"]);
            assert!(whole == piecewise, "{precision}, chunks of {chunk}");
        }
        let last = logits("last", &["--precision", precision, "--rows", "last"]);
        assert!(whole.ends_with(&last[last.len() - 3072 * 4..]), "the last row is the last row");
    }
}

#[test]
fn plans_and_inspections_are_json_on_request() {
    let plan: Value = serde_json::from_str(&succeeds(&["plan", "--json", "--rows", "8"])).unwrap();
    assert_eq!(plan["rows"]["tokens"], 8);
    assert!(plan["steps"].as_array().unwrap().len() > 200);
    let inspected: Value = serde_json::from_str(&succeeds(&["inspect", "--json", "--tensors"])).unwrap();
    assert_eq!(inspected["tensors"], inspected["tensor_list"].as_array().unwrap().len());
    assert_eq!(inspected["model"]["formats"][0]["format"], "q4 g64");
}

#[test]
fn inspecting_a_checkpoint_that_cannot_run_says_why_and_fails() {
    let place = tempfile::tempdir().unwrap();
    let folder = common::copy_of_model(place.path());
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    std::fs::write(folder.join("config.json"), config.replace("\"num_hidden_layers\": 10", "\"num_hidden_layers\": 9"))
        .unwrap();
    let output = markbase(&["inspect", "--model", folder.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("cannot run: "), "{text}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    use std::process::{Command, Stdio};
    let mut child = Command::new(env!("CARGO_BIN_EXE_markbase")).arg("plan").stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}
