//! `markbase chat`, through a pipe as a test drives it, and Ctrl-C.

mod common;

use std::io::Write;
use std::process::{Child, Command, Stdio};

use common::succeeds;
use serde_json::{Value, json};

fn start(arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_markbase"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn chat(arguments: &[&str], typed: &str) -> String {
    let mut child = start(&[&["chat", "--temperature", "0"], arguments].concat());
    child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_conversation_is_kept_saved_and_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("talk.json");
    let save = format!("/save {}\n", path.display());
    let shown = chat(&[], &format!("What is 17 + 25?\n/thinking on\nWhat is 31 + 34 + 17?\n{save}{save}"));
    let taken = format!("{}: File exists", path.display());
    assert!(shown.starts_with("42\nThinking is on.\nThe answer is 82.\nSaved 4 messages to "), "{shown}");
    assert!(shown.contains(&taken), "nothing is written over: {shown}");
    let saved: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(saved[1], json!({"role": "assistant", "content": "42"}));
    assert_eq!(saved[3]["content"], "The answer is 82.");
    assert!(saved[3]["reasoning"].as_str().unwrap().contains("65"));
    let again = chat(&["--messages", path.to_str().unwrap()], "/undo\n/undo\n/undo\nHello!\n");
    assert_eq!(again, "Taken back.\nTaken back.\nNothing was said yet.\nHello! How can I help you today?\n");
}

#[test]
fn commands_that_are_wrong_are_told_and_cost_nothing() {
    let shown =
        chat(&[], "/bogus\n/set wizard 5\n/set top-p 7\n/tools nowhere.json\n\n/retry\nWhat is 17 + 25?\n/retry\n");
    insta::assert_snapshot!(shown);
}

#[test]
fn what_does_not_fit_is_taken_back() {
    let long = "Tell me a short story about a fox and a bear and a cat and a bird, and make it long. ".repeat(2);
    let shown = chat(&["--context", "30"], &format!("{long}\n/undo\n"));
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].ends_with("tokens leaves no room for an answer: 30 tokens are the most together"), "{shown}");
    assert!(lines[1].starts_with("The conversation is as before; /undo and /new make room"), "{shown}");
    assert_eq!(lines[2], "Nothing was said yet.");
}

#[test]
fn settings_are_left_to_the_model_again() {
    let shown = chat(&[], "/set stop 4\nWhat is 17 + 25?\n/set stop\nWhat is 17 + 25?\n/set wizard\n");
    let told = "there is no setting wizard; /help shows some, `markbase run --help` all";
    assert_eq!(shown, format!("Set.\nSet to the model's own.\n42\n{told}\n"));
}

#[cfg(unix)]
#[test]
fn the_word_to_end_ends_a_conversation_that_waits() {
    for (signal, code) in [("TERM", None), ("HUP", None), ("INT", Some(130))] {
        let mut child = start(&["chat"]);
        // It has read the model once it answers.
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"/undo\n").unwrap();
        let mut told = [0; 22];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut told).unwrap();
        assert_eq!(&told, b"Nothing was said yet.\n");
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), code, "{signal}");
    }
}

#[test]
fn a_retry_that_cannot_be_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let tools = folder.path().join("tools.json");
    std::fs::write(&tools, r#"[{"type": "function", "function": {"name": "f", "description": "More than fits."}}]"#)
        .unwrap();
    let path = folder.path().join("saved.json");
    let typed = format!("Hello!\n/tools {}\n/retry\n/save {}\n", tools.display(), path.display());
    let shown = chat(&["--context", "24"], &typed);
    assert!(shown.contains("The conversation is as before"), "{shown}");
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(saved.as_array().unwrap().len(), 2, "{saved}");
}

#[test]
fn calls_are_shown_and_their_results_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let tools = folder.path().join("tools.json");
    let declared = json!([{"type": "function", "function": {"name": "create_list", "description": "Create a list",
        "parameters": {"type": "object", "properties": {
            "name": {"type": "string", "description": "List name"},
            "items": {"type": "array", "description": "Items", "items": {"type": "string"}}},
        "required": ["name", "items"]}}}]);
    std::fs::write(&tools, declared.to_string()).unwrap();
    let typed = "Create a list called party with flute, bottle.\n{\"status\": \"ok\"}\n/info\n";
    let shown = chat(&["--tools", tools.to_str().unwrap()], typed);
    let call = "→ create_list {\"items\":[\"flute\",\"bottle\"],\"name\":\"party\"}\n";
    assert!(shown.starts_with(call), "{shown}");
    assert!(shown.contains("1 tools, 4 messages"), "the result was answered: {shown}");
}

/// Goes on until it is stopped: nothing may end it.
const ENDLESS: [&str; 8] =
    ["--logit-bias", "1=-inf", "--logit-bias", "106=-inf", "--logit-bias", "50=-inf", "--max-tokens", "8000"];

#[cfg(unix)]
fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Waits until the program has written something.
#[cfg(unix)]
fn first_byte(child: &mut Child) -> u8 {
    let mut byte = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut byte).unwrap();
    byte[0]
}

#[cfg(unix)]
#[test]
fn an_interruption_stops_the_answer_and_not_the_conversation() {
    let mut child = start(&[&["chat", "--temperature", "0"], &ENDLESS[..]].concat());
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"Tell me a short story about a fox.\n").unwrap();
    first_byte(&mut child);
    interrupt(&child);
    stdin.write_all(b"/info\n").unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(shown.contains("\n(stopped)\n") && shown.contains("2 messages"), "{shown}");
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_shows_what_it_has_and_says_so() {
    let mut child = start(&[&["run", "--temperature", "0"], &ENDLESS[..], &["Tell me a story about a cat."]].concat());
    drop(child.stdin.take());
    first_byte(&mut child);
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(!output.stdout.is_empty() && output.stdout.ends_with(b"\n"));
}

#[test]
fn the_best_of_several_answers_is_the_likeliest() {
    let run = |more: &[&str]| -> Value {
        let fixed = [
            "run",
            "--json",
            "--logprobs",
            "--temperature",
            "1.5",
            "--max-tokens",
            "12",
            "Tell me a story about a cat.",
        ];
        serde_json::from_str(&succeeds(&[&fixed[..], more].concat())).unwrap()
    };
    let mean = |answer: &Value| {
        let scores = answer["logprobs"].as_array().unwrap();
        scores.iter().map(|score| score["logprob"].as_f64().unwrap()).sum::<f64>() / scores.len() as f64
    };
    let best = run(&["--best-of", "4", "--seed", "10"]);
    let each: Vec<Value> = (10..14).map(|seed: u32| run(&["--seed", &seed.to_string()])).collect();
    let likeliest = each.iter().map(&mean).fold(f64::NEG_INFINITY, f64::max);
    assert_eq!(mean(&best), likeliest);
    assert!(each.iter().any(|answer| answer["token_ids"] == best["token_ids"]));
}
