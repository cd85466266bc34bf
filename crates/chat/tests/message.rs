//! Messages are read as people's programs spell them, and say what is wrong with them.

use markbase_chat::{Content, MediaKind, Message, Part, ToolCall};
use serde_json::{Value, json};

fn read(value: Value) -> Result<Message, String> {
    serde_json::from_value(value).map_err(|e| e.to_string())
}

fn call(arguments: Value) -> Result<ToolCall, String> {
    let call = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}});
    serde_json::from_value(call).map_err(|e| e.to_string())
}

#[test]
fn arguments_written_as_json_text_are_decoded() {
    let wanted = call(json!({"b": [1.0, null], "a": "x"})).unwrap();
    assert_eq!(call(json!("{\"b\": [1.0, null], \"a\": \"x\"}")).unwrap(), wanted);
    for nothing in [json!(""), json!("  "), json!(null), json!("null"), json!({})] {
        assert!(call(nothing).unwrap().arguments.is_empty());
    }
    let flat: ToolCall = serde_json::from_value(json!({"name": "f"})).unwrap();
    assert_eq!(flat, ToolCall { name: "f".to_owned(), ..ToolCall::default() });
}

#[test]
fn arguments_that_are_no_object_are_errors() {
    for (arguments, wanted) in [
        (json!("{\"a\": "), "no JSON"),
        (json!("[1]"), "found a list, wanted an object"),
        (json!("\"text\""), "found a text, wanted an object"),
        (json!(7), "found a number, wanted an object"),
    ] {
        let error = call(arguments).unwrap_err();
        assert!(error.contains("arguments of tool call \"f\"") && error.contains(wanted), "{error}");
    }
    let nameless: Result<ToolCall, _> = serde_json::from_value(json!({"arguments": {}}));
    assert!(nameless.unwrap_err().to_string().contains("function"));
}

#[test]
fn content_is_text_parts_or_nothing() {
    let content = |value: Value| read(json!({"role": "user", "content": value})).map(|m| m.content);
    assert_eq!(content(json!("Hi")), Ok(Content::Text("Hi".to_owned())));
    assert_eq!(content(json!(null)), Ok(Content::Empty));
    assert_eq!(read(json!({"role": "user"})).unwrap().content, Content::Empty);
    let Ok(Content::Parts(parts)) = content(json!([
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
    assert_eq!(Value::from(video.fields.clone()), json!({"frames": ["1", "2"], "fps": 1}));

    for (bad, wanted) in [
        (json!(7), "content: found a number, wanted a text, a list of parts or null"),
        (json!(["a"]), "content[0]: found a text, wanted an object with `type`"),
        (json!([{"type": "text", "text": "a"}, {"text": "b"}]), "content[1]: `type` is missing"),
        (json!([{"type": "text"}]), "content[0]: `text` is missing"),
        (json!([{"type": "hologram"}]), "content[0]: type \"hologram\", wanted text, image, audio or video"),
    ] {
        let error = content(bad).unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn the_first_thought_that_says_something_counts() {
    let reasoning = |value: Value| read(value).unwrap().reasoning;
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(reasoning(json!({"role": "a", "reasoning": "1", "reasoning_content": "2"})), text("1"));
    assert_eq!(reasoning(json!({"role": "a", "reasoning": "", "reasoning_content": "2"})), text("2"));
    assert_eq!(reasoning(json!({"role": "a", "reasoning": null, "thinking": "3"})), text("3"));
    assert_eq!(reasoning(json!({"role": "a", "reasoning": ""})), None);
}

#[test]
fn written_messages_read_back_equal() {
    let message = read(json!({
        "role": "assistant",
        "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}],
        "reasoning_content": "Hm.",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}],
        "refusal": null,
    }))
    .unwrap();
    let written = serde_json::to_value(&message).unwrap();
    assert_eq!(written["tool_calls"][0]["function"]["arguments"], json!({"x": 1}));
    assert_eq!(read(written).unwrap(), message);
    assert_eq!(json!(Message::text("user", "Hi")), json!({"role": "user", "content": "Hi"}));
}
