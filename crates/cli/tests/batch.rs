//! Many questions from a file: answers in order, each as if asked alone, and an interrupted file goes on.

mod common;

use std::path::Path;

use common::{fails, markbase, succeeds};
use serde_json::{Value, json};

fn write(path: &Path, lines: &[Value]) -> String {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn answers_come_in_order_as_if_each_were_asked_alone() {
    let folder = tempfile::tempdir().unwrap();
    let questions = [
        json!({"id": "a", "prompt": "Tell me a short story about a fox.", "seed": 7}),
        json!({"id": "b", "prompt": "What is 17 + 25?", "temperature": 0}),
        json!({"messages": [{"role": "user", "content": "What is 31 + 34 + 17?"}], "thinking": true, "temperature": 0}),
        json!({"prompt": "Hello!", "temperature": 0, "max_tokens": 2}),
        json!({"prompt": "Hello!", "colour": "red"}),
        json!({"id": 5, "system": "Be brief.", "prompt": "What is the capital of France?", "stop": ["Paris"], "temperature": 0}),
    ];
    let path = write(&folder.path().join("questions.jsonl"), &questions);
    let output = markbase(&["run", "--batch", &path, "--parallel", "3"]);
    assert_eq!(output.status.code(), Some(1), "one line has no answer");
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(told, "markbase: questions without an answer, each with its reason: 1\n");
    let answers = lines(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(answers.len(), questions.len());
    for (index, answer) in answers.iter().enumerate() {
        assert_eq!(answer["index"], index);
        assert_eq!(answer.get("id"), questions[index].get("id"));
    }
    let alone = succeeds(&["run", "--json", "--seed", "7", "Tell me a short story about a fox."]);
    assert_eq!(answers[0]["token_ids"], serde_json::from_str::<Value>(&alone).unwrap()["token_ids"]);
    assert_eq!(answers[1]["text"], "42");
    assert_eq!(
        (&answers[2]["text"], answers[2]["thought"].as_str().unwrap().is_empty()),
        (&json!("The answer is 82."), false)
    );
    assert_eq!(answers[3]["finish_reason"], "length");
    assert_eq!(answers[4]["error"], "unknown field `colour`");
    assert_eq!(answers[5]["text"], "The capital of France is ");
}

#[test]
fn a_file_of_answers_that_was_cut_short_is_completed() {
    let folder = tempfile::tempdir().unwrap();
    let questions: Vec<Value> =
        (1..9).map(|n| json!({"id": n, "prompt": format!("What is {n} + 4?"), "seed": 3})).collect();
    let path = write(&folder.path().join("questions.jsonl"), &questions);
    let out = folder.path().join("answers.jsonl");
    let out_name = out.to_str().unwrap();
    let arguments = ["run", "--batch", &path, "--out", out_name];
    succeeds(&arguments);
    let ids = |text: &str| lines(text).iter().map(|line| line["token_ids"].clone()).collect::<Vec<_>>();
    let whole = std::fs::read_to_string(&out).unwrap();
    assert_eq!(lines(&whole).len(), 8);
    // Three lines and a part of the fourth.
    let third = whole.match_indices('\n').nth(2).unwrap().0 + 1;
    std::fs::write(&out, &whole[..third + 20]).unwrap();
    succeeds(&arguments);
    let completed = std::fs::read_to_string(&out).unwrap();
    assert_eq!(completed[..third], whole[..third], "what was there stays");
    assert_eq!(ids(&completed), ids(&whole));

    let other = write(&folder.path().join("other.jsonl"), &[json!({"id": "x", "prompt": "Hello!"})]);
    let told = fails(&["run", "--batch", &other, "--out", out_name]);
    assert!(told.contains("line 1 answers no such question of --batch: give another file"), "{told}");
    let changed: Vec<Value> =
        (1..9).map(|n| json!({"id": n, "prompt": format!("What is {n} + 5?"), "seed": 3})).collect();
    write(Path::new(&path), &changed);
    let told = fails(&arguments);
    assert!(told.contains("line 1 answers a question that has changed: give another file"), "{told}");
    assert_eq!(std::fs::read_to_string(&out).unwrap(), completed, "nothing is lost");
}

#[test]
fn errors_are_asked_again_and_answers_kept() {
    let folder = tempfile::tempdir().unwrap();
    let long = "Tell me a short story about a fox and a bear, please. ".repeat(3);
    let questions: Vec<Value> = ["What is 1 + 4?", long.as_str(), "What is 3 + 4?"]
        .map(|prompt| json!({"prompt": prompt, "seed": 3, "max_tokens": 4}))
        .to_vec();
    let path = write(&folder.path().join("questions.jsonl"), &questions);
    let out = folder.path().join("answers.jsonl");
    let out_name = out.to_str().unwrap();
    let first = markbase(&["run", "--batch", &path, "--out", out_name, "--context", "30"]);
    assert_eq!(first.status.code(), Some(1));
    let told = String::from_utf8(first.stderr).unwrap();
    assert_eq!(
        told,
        "markbase: questions without an answer, each with its reason: 1; the same command asks them again\n"
    );
    let before = std::fs::read_to_string(&out).unwrap();
    let before: Vec<&str> = before.lines().collect();
    assert!(before[1].contains("leaves no room for an answer"), "{before:?}");
    succeeds(&["run", "--batch", &path, "--out", out_name]);
    let after = std::fs::read_to_string(&out).unwrap();
    let after: Vec<&str> = after.lines().collect();
    assert_eq!((after[0], after[2], after.len()), (before[0], before[2], 3));
    assert!(after[1].contains("token_ids"), "{after:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no other file stays");
}

#[test]
fn a_file_that_holds_no_answers_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder.path().join("questions.jsonl"), &[json!({"prompt": "Hello!"})]);
    let notes = folder.path().join("notes.txt");
    for text in ["my notes\nmore of them\n", "a line", "{\"index\":0}\nnotes\n", "[1]\n"] {
        std::fs::write(&notes, text).unwrap();
        let told = fails(&["run", "--batch", &path, "--out", notes.to_str().unwrap()]);
        assert!(told.ends_with("give another file"), "{told}");
        assert_eq!(std::fs::read_to_string(&notes).unwrap(), text);
    }
    let told = fails(&["run", "--batch", &path, "--out", &path]);
    assert!(told.ends_with("line 1 answers no such question of --batch: give another file"), "{told}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"prompt\":\"Hello!\"}\n");
}

#[test]
fn a_line_that_is_no_question_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("questions.jsonl");
    std::fs::write(&path, "{\"prompt\": \"Hello!\"}\n\n[1]\n").unwrap();
    let told = fails(&["run", "--batch", path.to_str().unwrap()]);
    assert_eq!(told, "--batch: line 3: found a list, wanted an object");
    let told = fails(&["run", "--batch", path.to_str().unwrap(), "--tools", "nowhere.json"]);
    assert!(told.starts_with("nowhere.json: "), "{told}");
}

#[test]
fn a_line_that_asks_nothing_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let questions = [
        json!({"prompt": " "}),
        json!({"messages": []}),
        json!({"messages": [{"role": "system", "content": "Be brief."}]}),
        json!({"prompt": "Hello!", "logprobs": 4_294_967_295_u32}),
    ];
    let path = write(&folder.path().join("questions.jsonl"), &questions);
    let output = markbase(&["run", "--batch", &path]);
    let told: Vec<Value> =
        lines(&String::from_utf8(output.stdout).unwrap()).iter().map(|line| line["error"].clone()).collect();
    let nothing = "nothing is asked: the prompt is empty, or there are no messages";
    assert_eq!(told, [nothing, nothing, nothing, "logprobs is 4294967295, wanted a number from 0 to 128"]);
}
