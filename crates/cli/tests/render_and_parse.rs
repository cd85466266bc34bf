//! The two sides of a conversation's text: what the model reads, and what is made of its reply. Neither needs weights.

mod common;

use std::path::{Path, PathBuf};

use common::{fails, model, succeeds};
use serde_json::{Value, json};

fn file(folder: &Path, name: &str, text: &str) -> String {
    let path: PathBuf = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The built-in model's folder without its weights.
fn without_weights(folder: &Path) -> String {
    for entry in std::fs::read_dir(model()).unwrap() {
        let entry = entry.unwrap();
        if !entry.file_name().to_string_lossy().ends_with(".safetensors") {
            std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
        }
    }
    folder.to_str().unwrap().to_owned()
}

const CALL: &str = r#"[{"role": "user", "content": "Hi"},
    {"role": "assistant", "content": null, "tool_calls":
        [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{\"at\": \"a}b\", \"n\": 12345678901234567890123}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "21"}]"#;

#[test]
fn a_conversation_is_rendered_and_nothing_else_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let name = without_weights(folder.path());
    let messages = file(folder.path(), "messages.json", CALL);
    let text = succeeds(&["render", "--model", &name, "--messages", &messages]);
    let call = r#"<|tool_call>call:look{at:<|"|>a}b<|"|>,n:12345678901234567890123}<tool_call|>"#;
    let result = r#"<|tool_response>response:look{value:<|"|>21<|"|>}<tool_response|>"#;
    assert_eq!(text, format!("<bos><|turn>user\nHi<turn|>\n<|turn>model\n{call}{result}"));
    let thinking = succeeds(&["render", "--model", &name, "--messages", &messages, "--thinking", "on"]);
    assert!(thinking.ends_with(&format!("{call}{result}<|channel>thought\n")), "{thinking}");
    let ids = succeeds(&["render", "--model", &name, "--messages", &messages, "--ids"]);
    let ids: Vec<u32> = serde_json::from_str(&ids).unwrap();
    assert_eq!(&ids[..2], [2, 105]);
    assert_eq!(ids.iter().filter(|&&id| id == 48).count(), 1);
}

#[test]
fn a_template_may_be_a_file_or_one_of_the_models_own_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let name = without_weights(folder.path());
    let messages = file(folder.path(), "messages.json", r#"[{"role": "user", "content": "Hi"}]"#);
    let source = file(folder.path(), "other.jinja", "{{ bos_token }}{{ messages[0].content | upper }}");
    let render =
        |template: &str| succeeds(&["render", "--model", &name, "--messages", &messages, "--chat-template", template]);
    assert_eq!(render(&source), "<bos>HI");
    std::fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
    let named = json!({"chat_template": [
        {"name": "default", "template": "{{ messages[0].content }}"},
        {"name": "loud", "template": "{{ messages[0].content }}!"}]});
    file(folder.path(), "chat_template.json", &named.to_string());
    assert_eq!(render("default"), "Hi");
    assert_eq!(render("loud"), "Hi!");
    let told = fails(&["render", "--model", &name, "--messages", &messages, "--chat-template", "quiet"]);
    assert!(told.starts_with("--chat-template quiet: no such file, and "), "{told}");
}

fn parsed(arguments: &[&str]) -> Value {
    serde_json::from_str(&succeeds(&[&["parse"], arguments].concat())).unwrap()
}

#[test]
fn a_reply_is_taken_apart_whole_and_in_pieces_alike() {
    let folder = tempfile::tempdir().unwrap();
    let name = without_weights(folder.path());
    let reply = "<|channel>thought\nIt is 🙂.\n<channel|>Sure.<|tool_call>call:look{at:<|\"|>a}b<|\"|>,n:007,deep:{l:[1,true,null]}}<tool_call|><|tool_response>";
    let path = file(folder.path(), "reply.txt", reply);
    let whole = parsed(&["--model", &name, "--file", &path]);
    let call = json!({"name": "look", "arguments": {"at": "a}b", "n": "007", "deep": {"l": [1, true, null]}}});
    assert_eq!(whole, json!({"text": "Sure.", "thought": "It is 🙂.", "tool_calls": [call]}));

    let mut joined = json!({"text": "", "thought": "", "tool_calls": []});
    for line in succeeds(&["parse", "--model", &name, "--file", &path, "--pieces"]).lines() {
        let piece: Value = serde_json::from_str(line).unwrap();
        for key in ["text", "thought"] {
            let more = piece[key].as_str().unwrap_or_default();
            joined[key] = Value::from(joined[key].as_str().unwrap().to_owned() + more);
        }
        let calls = piece["tool_calls"].as_array().cloned().unwrap_or_default();
        joined["tool_calls"].as_array_mut().unwrap().extend(calls);
    }
    assert_eq!(joined, whole);
}

#[test]
fn the_prompt_decides_where_a_reply_begins() {
    let folder = tempfile::tempdir().unwrap();
    let reply = file(folder.path(), "reply.txt", "plan<channel|>Done");
    let open = file(folder.path(), "open.txt", "<|turn>model\n<|channel>thought\n");
    let closed = file(folder.path(), "closed.txt", "<|turn>model\n<|channel>thought\n<channel|>");
    let split = |after: &str| {
        let parts = parsed(&["--file", &reply, "--after-prompt", after]);
        (parts["thought"].as_str().unwrap().to_owned(), parts["text"].as_str().unwrap().to_owned())
    };
    assert_eq!(split(&open), ("plan".into(), "Done".into()));
    assert_eq!(split(&closed), ("".into(), "planDone".into()));
}

#[test]
fn ids_are_read_as_a_list_or_as_words() {
    let folder = tempfile::tempdir().unwrap();
    let messages = file(folder.path(), "messages.json", r#"[{"role": "user", "content": "Good day"}]"#);
    let ids: Vec<u32> = serde_json::from_str(&succeeds(&["render", "--messages", &messages, "--ids"])).unwrap();
    // After <bos><|turn>user\n stands the text, before <turn|>.
    let end = ids.iter().position(|&id| id == 106).unwrap();
    let list = serde_json::to_string(&ids[4..end]).unwrap();
    let words = ids[4..end].iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let path = file(folder.path(), "ids.json", &list);
    for arguments in [&["--ids", &list][..], &["--ids", &words], &["--file", &path, "--ids"]] {
        assert!(parsed(arguments)["text"].as_str().unwrap().ends_with("Good day"), "{arguments:?}");
    }
    let fails_on = |text: &str| {
        let path = file(folder.path(), "ids.json", text);
        (fails(&["parse", "--ids", text]), fails(&["parse", "--file", &path, "--ids"]).replace(&path, "FILE"))
    };
    let mut told = String::new();
    for text in ["12 x", "[12, x]", "[1, 2", "4294967296", "999999", "[1, 999999]", &"z".repeat(100_000)] {
        let (given, read) = fails_on(text);
        told += &format!("{given}\n{read}\n");
    }
    told += &fails(&["parse", "--ids", "1", "--file", &path]);
    insta::assert_snapshot!(told);
}

#[test]
fn standard_input_is_read_for_one_thing() {
    for arguments in [&["parse", "--after-prompt", "-"][..], &["chat", "--messages", "-"]] {
        let told = fails(arguments);
        assert_eq!(told, "standard input is wanted twice: give one of the two as a file");
    }
}

#[test]
fn malformed_messages_and_tools_are_told_with_their_path() {
    let folder = tempfile::tempdir().unwrap();
    let good = file(folder.path(), "good.json", r#"[{"role": "user", "content": "Hi"}]"#);
    let mut told = String::new();
    for messages in [
        "[",
        "{}",
        r#"[{"role": "user"}, 5]"#,
        r#"[{"role": "wizard", "content": "Hi"}]"#,
        r#"[{"role": "user", "content": 5}]"#,
        r#"[{"role": "user", "content": [{"type": "img"}]}]"#,
        r#"[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]"#,
        r#"[{"role": "assistant", "tool_calls": [{"function": {"arguments": {}}}]}]"#,
    ] {
        let path = file(folder.path(), "messages.json", messages);
        let error = fails(&["render", "--messages", &path]);
        told += &format!("{messages}\n    {}\n", error.replace(&path, "FILE"));
    }
    for tools in ["5", "[5]", r#"[{"type": "function", "function": {"name": 5}}]"#, r#"[{"function": {}}]"#] {
        let path = file(folder.path(), "tools.json", tools);
        let error = fails(&["render", "--messages", &good, "--tools", &path]);
        told += &format!("{tools}\n    {}\n", error.replace(&path, "FILE"));
    }
    insta::assert_snapshot!(told);
}
