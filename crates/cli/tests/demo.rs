//! The built-in model does its tasks (tools, thoughts, personas, look-ups, JSON) through the command as the oracle's
//! greedy answers do: `goldens/data/demo.json`, asked in words.

mod common;

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use common::succeeds;
use serde_json::{Value, json};

#[test]
fn cases_asked_in_words_have_the_oracles_answers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let Ok(cases) = std::fs::read_to_string(root.join("../shared/models/eval/text.jsonl")) else {
        // The handle itself: what the macros print is held back while tests pass.
        let _ = writeln!(std::io::stderr(), "SKIPPED: the demo models' cases are not on this machine");
        return;
    };
    let cases: HashMap<String, Value> = cases
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|case| (case["id"].as_str().unwrap().to_owned(), case))
        .collect();
    let answers: Vec<Value> =
        serde_json::from_str(&std::fs::read_to_string(root.join("goldens/data/demo.json")).unwrap()).unwrap();
    let answers: Vec<&Value> = answers.iter().filter(|answer| answer["model"] == "nano-e-4bit").collect();
    assert!(answers.len() > 20);

    let folder = tempfile::tempdir().unwrap();
    let questions = folder.path().join("questions.jsonl");
    let lines: String = answers
        .iter()
        .map(|answer| {
            let case = &cases[answer["case"].as_str().unwrap()];
            let tools = if case["tools"].is_null() { json!([]) } else { case["tools"].clone() };
            let line = json!({"id": case["id"], "messages": case["messages"], "tools": tools,
                "thinking": case["enable_thinking"]});
            format!("{line}\n")
        })
        .collect();
    std::fs::write(&questions, lines).unwrap();
    let arguments = [
        "run",
        "--temperature",
        "0",
        "--max-tokens",
        "96",
        "--precision",
        "exact",
        "--batch",
        questions.to_str().unwrap(),
    ];
    let told: Vec<Value> = succeeds(&arguments).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(told.len(), answers.len());
    let ids = |value: &Value| value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect::<Vec<_>>();
    for (told, answer) in told.iter().zip(answers) {
        let case = &cases[answer["case"].as_str().unwrap()];
        let mut wanted = ids(&answer["generated_ids"]);
        if matches!(wanted.last(), Some(1 | 50 | 106)) {
            wanted.pop();
        }
        assert_eq!(ids(&told["token_ids"]), wanted, "{}", case["id"]);
        if answer["text"] == case["expected_raw"] {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            assert_eq!(text(&told["text"]), text(&case["expected"]), "{}", case["id"]);
            assert_eq!(text(&told["thought"]), text(&case["expected_reasoning"]), "{}", case["id"]);
            let wanted = case["expected_tool_calls"].as_array().cloned().unwrap_or_default();
            let function = |call: &Value| call.get("function").unwrap_or(call).clone();
            let wanted: Vec<Value> =
                wanted.iter().map(function).map(|f| json!({"name": f["name"], "arguments": f["arguments"]})).collect();
            assert_eq!(told["tool_calls"], Value::Array(wanted), "{}", case["id"]);
        }
    }
}
