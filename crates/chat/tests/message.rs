//! Messages and tools are read as people's programs spell them, and say what is wrong with them and where.

mod common;

use common::{message, messages};
use markbase_chat::{Content, Conversation, Json, MediaKind, Message, Part, read_tools};
use serde_json::{Value, json};

fn fault(messages: Value) -> String {
    Message::read_list(&messages.to_string()).unwrap_err().to_string()
}

#[test]
fn arguments_written_as_json_text_are_decoded() {
    let arguments = |arguments: Value| {
        let call = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}});
        message(json!({"role": "assistant", "tool_calls": [call]})).tool_calls.remove(0).arguments
    };
    let wanted = arguments(json!({"b": [1.0, null], "a": "x"}));
    assert_eq!(arguments(json!("{\"b\": [1.0, null], \"a\": \"x\"}")), wanted);
    for nothing in [json!(""), json!("  "), json!(null), json!("null"), json!({})] {
        assert!(arguments(nothing).is_empty());
    }
    let flat = message(json!({"role": "assistant", "tool_calls": [{"name": "f"}]}));
    assert_eq!((flat.tool_calls[0].name.as_str(), flat.tool_calls[0].arguments.len()), ("f", 0));
}

#[test]
fn numbers_of_arguments_keep_their_digits() {
    let arguments = r#"{"b":12345678901234567890,"a":[1.0,1e-05,1e400,-0]}"#;
    let spelled = Json::from(arguments).to_string();
    for arguments in [arguments, &spelled] {
        let text = format!(r#"[{{"role":"assistant","tool_calls":[{{"name":"f","arguments":{arguments}}}]}}]"#);
        let call = Message::read_list(&text).unwrap().remove(0).tool_calls.remove(0);
        assert_eq!(Json::Object(call.arguments).to_string(), r#"{"b":12345678901234567890,"a":[1.0,1e-05,1e400,-0]}"#);
    }
}

#[test]
fn content_is_text_parts_or_nothing() {
    let content = |value: Value| message(json!({"role": "user", "content": value})).content;
    assert_eq!(content(json!("Hi")), Content::Text("Hi".to_owned()));
    assert_eq!(content(json!(null)), Content::Empty);
    assert_eq!(message(json!({"role": "tool"})).content, Content::Empty);
    let Content::Parts(parts) = content(json!([
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "input_audio", "input_audio": {}},
        {"type": "video", "frames": ["1", "2"], "fps": 1},
    ])) else {
        panic!("no parts")
    };
    assert_eq!(parts[0], Part::Text("a".to_owned()));
    let kinds: Vec<MediaKind> = parts[1..]
        .iter()
        .map(|part| match part {
            Part::Media(media) => media.kind,
            Part::Text(text) => panic!("{text}"),
        })
        .collect();
    assert_eq!(kinds, [MediaKind::Image, MediaKind::Audio, MediaKind::Video]);
    let Part::Media(video) = &parts[3] else { panic!("no video") };
    assert_eq!(Json::Object(video.fields.clone()), Json::from(&json!({"frames": ["1", "2"], "fps": 1})));
}

#[test]
fn faults_of_messages_say_where_what_and_what_was_wanted() {
    let user = json!({"role": "user", "content": "Hi"});
    let call = |call: Value| json!([user, {"role": "assistant", "tool_calls": [call]}]);
    let content = |content: Value| json!([user, {"role": "user", "content": content}]);
    let roles = "system, developer, user, assistant or tool";
    for (messages, wanted) in [
        (json!(7), "messages: found a number, wanted a list of messages"),
        (json!({}), "messages: found an object, wanted a list of messages"),
        (json!([user, "Hi"]), "messages[1]: found a text, wanted an object with `role` and `content`"),
        (json!([{"content": "Hi"}]), &format!("messages[0].role: missing, wanted {roles}")),
        (json!([{"role": null}]), &format!("messages[0].role: missing, wanted {roles}")),
        (json!([{"role": 7}]), &format!("messages[0].role: found a number, wanted {roles}")),
        (json!([{"role": "critic"}]), &format!("messages[0].role: \"critic\", wanted {roles}")),
        (content(json!(7)), "messages[1].content: found a number, wanted a text, a list of parts or null"),
        (content(json!({})), "messages[1].content: found an object, wanted a text, a list of parts or null"),
        (content(json!(["a"])), "messages[1].content[0]: found a text, wanted an object with `type`"),
        (
            content(json!([{"type": "text", "text": "a"}, {"text": "b"}])),
            "messages[1].content[1]: `type` is missing, wanted text, image, audio or video",
        ),
        (content(json!([{"type": "text"}])), "messages[1].content[0].text: missing, wanted a text"),
        (content(json!([{"type": "text", "text": 1}])), "messages[1].content[0].text: found a number, wanted a text"),
        (content(json!([{"type": "img"}])), "messages[1].content[0]: type \"img\", wanted text, image, audio or video"),
        (
            json!([{"role": "assistant", "tool_calls": {}}]),
            "messages[0].tool_calls: found an object, wanted a list of tool calls",
        ),
        (call(json!("f")), "messages[1].tool_calls[0]: found a text, wanted an object with `function`"),
        (
            call(json!({"arguments": {}})),
            "messages[1].tool_calls[0].function: missing, wanted an object with `name` and `arguments`",
        ),
        (call(json!({"function": {}})), "messages[1].tool_calls[0].function.name: missing, wanted a text"),
        (call(json!({"name": ""})), "messages[1].tool_calls[0].name: empty, wanted a name"),
        (call(json!({"name": "f", "type": "custom"})), "messages[1].tool_calls[0].type: \"custom\", wanted function"),
        (call(json!({"name": "f", "id": 1})), "messages[1].tool_calls[0].id: found a number, wanted a text"),
        (
            call(json!({"function": {"name": "f", "arguments": "{\"a\": "}})),
            "messages[1].tool_calls[0].function.arguments: no JSON: EOF while parsing a value at line 1 column 6",
        ),
        (
            call(json!({"function": {"name": "f", "arguments": "[1]"}})),
            "messages[1].tool_calls[0].function.arguments: found a list, wanted an object",
        ),
        (
            call(json!({"name": "f", "arguments": "\"text\""})),
            "messages[1].tool_calls[0].arguments: found a text, wanted an object",
        ),
        (
            call(json!({"name": "f", "arguments": 7})),
            "messages[1].tool_calls[0].arguments: found a number, wanted an object",
        ),
        (
            json!([{"role": "assistant", "function_call": {"name": "f"}}]),
            "messages[0].function_call: not supported, wanted `tool_calls`",
        ),
        (json!([{"role": "tool", "tool_call_id": 1}]), "messages[0].tool_call_id: found a number, wanted a text"),
        (
            json!([{"role": "assistant", "tool_responses": [1]}]),
            "messages[0].tool_responses[0]: found a number, wanted an object with `name` and `response`",
        ),
        (json!([{"role": "assistant", "reasoning": []}]), "messages[0].reasoning: found a list, wanted a text"),
    ] {
        assert_eq!(fault(messages), wanted);
    }
    let error = Message::read_list("[{").unwrap_err().to_string();
    assert!(error.starts_with("messages: no JSON: "), "{error}");
}

#[test]
fn what_means_nothing_is_accepted() {
    let read = message(json!({
        "role": "model", "content": null, "refusal": null, "function_call": null, "annotations": [],
        "tool_calls": null, "name": null, "tool_call_id": null, "reasoning": null, "tool_responses": null,
    }));
    assert_eq!(read, Message { role: "assistant".to_owned(), ..Message::default() });
    let calls = [json!({"id": "1", "name": "f"}), json!({"id": "1", "name": "f"})];
    assert_eq!(message(json!({"role": "assistant", "tool_calls": calls})).tool_calls.len(), 2);
}

#[test]
fn the_first_thought_that_says_something_counts() {
    let reasoning = |mut value: Value| {
        value["role"] = json!("assistant");
        message(value).reasoning
    };
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(reasoning(json!({"reasoning": "1", "reasoning_content": "2"})), text("1"));
    assert_eq!(reasoning(json!({"reasoning": "", "reasoning_content": "2"})), text("2"));
    assert_eq!(reasoning(json!({"reasoning": null, "thinking": "3"})), text("3"));
    assert_eq!(reasoning(json!({"reasoning": ""})), None);
}

#[test]
fn written_messages_read_back_equal() {
    let read = message(json!({
        "role": "assistant",
        "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}],
        "reasoning_content": "Hm.",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}],
        "refusal": null,
    }));
    let written = serde_json::to_value(&read).unwrap();
    assert_eq!(written["tool_calls"][0]["function"]["arguments"], json!({"x": 1}));
    assert_eq!(messages(&json!([written])), [read]);
    assert_eq!(json!(Message::text("user", "Hi")), json!({"role": "user", "content": "Hi"}));
}

#[test]
fn a_conversation_is_a_list_or_an_object_with_tools() {
    let user = r#"[{"role":"user","content":"Hi"}]"#;
    let bare = Conversation::read(user).unwrap();
    assert_eq!(bare, Conversation { messages: vec![Message::text("user", "Hi")], tools: vec![] });
    let without = Conversation::read(&format!(r#"{{"messages":{user},"tools":null,"model":"m"}}"#)).unwrap();
    assert_eq!(without, bare);
    assert_eq!(Message::read_list(&format!(r#"{{"messages":{user},"tools":7}}"#)).unwrap(), bare.messages);
    let with = Conversation::read(&format!(r#"{{"messages":{user},"tools":[{{"name":"f"}}]}}"#)).unwrap();
    assert_eq!(with.tools, read_tools(r#"[{"name":"f"}]"#).unwrap());

    let error = |text: &str| Conversation::read(text).unwrap_err().to_string();
    assert_eq!(error(r#"{"tools":[]}"#), "messages: missing, wanted a list");
    assert_eq!(
        error(&format!(r#"{{"messages":{user},"tools":[{{}}]}}"#)),
        "tools[0].function: missing, wanted an object with `name`, `description` and `parameters`"
    );
}

#[test]
fn tools_come_whole_bare_or_in_an_object() {
    let whole = r#"[{"type":"function","function":{"name":"f","parameters":{"n":12345678901234567890}}}]"#;
    let bare = r#"[{"name":"f","parameters":{"n":12345678901234567890}}]"#;
    let flat = r#"[{"type":"function","name":"f","parameters":{"n":12345678901234567890}}]"#;
    for text in [whole, bare, flat, &format!(r#"{{"tools":{bare}}}"#)] {
        let tools = read_tools(text).unwrap();
        assert_eq!(format!("[{}]", tools[0]), whole);
    }
    assert!(read_tools("null").unwrap().is_empty());
}

#[test]
fn faults_of_tools_say_where() {
    let good = json!({"type": "function", "function": {"name": "f"}});
    let wanted = "wanted an object with `name`, `description` and `parameters`";
    for (tools, fault) in [
        (json!({}), "tools: found an object, wanted a list of tools"),
        (json!([good, 7]), "tools[1]: found a number, wanted an object with `function`"),
        (json!([good, {"type": "function"}]), &format!("tools[1].function: missing, {wanted}")),
        (json!([good, {"function": []}]), &format!("tools[1].function: found a list, {wanted}")),
        (json!([good, {"function": {"name": 7}}]), "tools[1].function.name: found a number, wanted a text"),
        (json!([{"function": {"name": ""}}]), "tools[0].function.name: empty, wanted a name"),
        (json!([{"function": {}}]), "tools[0].function.name: missing, wanted a text"),
        (json!([{"name": true}]), "tools[0].name: found a boolean, wanted a text"),
        (json!([{"type": "web_search"}]), "tools[0].type: \"web_search\", wanted function"),
    ] {
        assert_eq!(read_tools(&tools.to_string()).unwrap_err().to_string(), fault);
    }
    let error = read_tools("[").unwrap_err().to_string();
    assert!(error.starts_with("tools: no JSON: "), "{error}");
}

#[test]
fn a_hundred_thousand_messages_are_read_in_one_pass() {
    let one =
        r#"{"role":"assistant","content":[{"type":"text","text":"Hi"}],"tool_calls":[{"name":"f","arguments":"{}"}]}"#;
    let text = format!("[{}]", vec![one; 100_000].join(","));
    let started = std::time::Instant::now();
    assert_eq!(Message::read_list(&text).unwrap().len(), 100_000);
    // A quadratic reader would take hours.
    assert!(started.elapsed().as_secs() < 30);
}
