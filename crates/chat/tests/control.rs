//! Control tokens that people type stay text, whatever the template does with their texts.

mod common;

use std::sync::Arc;

use common::{built_in_template, changed_tokenizer, renderings, template, tokenizer};
use markbase_chat::{ChatOptions, ChatTemplate, Content, ControlText, Error, Json, Message, Part, Specials, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The control tokens of a prompt, in order.
fn control(tokenizer: &Tokenizer, template: &ChatTemplate, messages: &[Message], options: &ChatOptions) -> Vec<u32> {
    let prompt = template.prompt(tokenizer, messages, options).unwrap();
    prompt.ids.into_iter().filter(|&id| tokenizer.is_special(id)).collect()
}

/// The same value with other characters in place of angles, in texts and keys.
fn without_angles(value: &Value) -> Value {
    let clean = |text: &str| text.replace('<', "(").replace('>', ")");
    match value {
        Value::String(text) => json!(clean(text)),
        Value::Array(items) => items.iter().map(without_angles).collect(),
        Value::Object(map) => map.iter().map(|(key, item)| (clean(key), without_angles(item))).collect(),
        other => other.clone(),
    }
}

fn clean_twin(messages: &[Message]) -> Vec<Message> {
    common::messages(&without_angles(&json!(messages)))
}

fn user(text: &str) -> Message {
    Message::text("user", text)
}

#[test]
fn every_golden_has_the_control_tokens_of_its_clean_twin() {
    let (tokenizer, built_in) = (tokenizer(), built_in_template());
    for case in renderings() {
        let twin = clean_twin(&case.messages);
        let tools = case.options.tools.iter().map(|tool| Json::from(&without_angles(&json!(tool)))).collect();
        let clean_options = ChatOptions { tools, ..case.options.clone() };
        assert_eq!(
            control(&tokenizer, &built_in, &case.messages, &case.options),
            control(&tokenizer, &built_in, &twin, &clean_options),
            "{}",
            case.name
        );
    }
}

#[test]
fn ids_spell_the_rendered_text() {
    let (tokenizer, built_in) = (tokenizer(), built_in_template());
    for case in renderings() {
        let prompt = built_in.prompt(&tokenizer, &case.messages, &case.options).unwrap();
        assert_eq!(prompt.text, case.text, "{}", case.name);
        assert_eq!(tokenizer.decode(&prompt.ids, ControlText::Show), case.text, "{}", case.name);
    }
}

#[test]
fn an_image_typed_is_no_image() {
    let (tokenizer, built_in) = (tokenizer(), built_in_template());
    let image = tokenizer.special_id("<|image|>").unwrap();
    for real in [0, 1] {
        let media = json!({"type": "image", "path": "a.png"});
        let mut parts = vec![json!({"type": "text", "text": "See <|image|>?"})];
        parts.extend(std::iter::repeat_n(media, real));
        let messages = [common::message(json!({"role": "user", "content": parts}))];
        let prompt = built_in.prompt(&tokenizer, &messages, &ChatOptions::default()).unwrap();
        assert_eq!(prompt.text.matches("<|image|>").count(), real + 1);
        assert_eq!(prompt.ids.iter().filter(|&&id| id == image).count(), real);
    }
}

#[test]
fn a_control_token_put_together_from_parts_is_text() {
    let (tokenizer, built_in) = (tokenizer(), built_in_template());
    let part = |text: &str| Part::Text(text.to_owned());
    let split = Message { content: Content::Parts(vec![part("<|tu"), part("rn>")]), ..user("") };
    let cut = Message::text("assistant", "<|tu<|channel>thought\n<channel|>rn>");
    for message in [split, cut] {
        let messages = [message, user("<turn|>")];
        let prompt = built_in.prompt(&tokenizer, &messages, &ChatOptions::default()).unwrap();
        assert!(
            prompt.text.contains("<|turn>user\n<|turn><turn|>") || prompt.text.contains("<|turn>model\n<|turn><turn|>")
        );
        let control: Vec<u32> = prompt.ids.into_iter().filter(|&id| tokenizer.is_special(id)).collect();
        assert_eq!(control, [2, 105, 106, 105, 106, 105]);
    }
}

#[test]
fn a_role_may_complete_a_control_token_of_the_template() {
    // The first and last characters are the template's.
    let tokenizer = tokenizer();
    let prompt = template("{% for m in messages %}<|{{ m.role }}>{{ m.content }}{% endfor %}")
        .prompt(&tokenizer, &[Message::text("turn", "<|turn>")], &ChatOptions::default())
        .unwrap();
    assert_eq!(prompt.text, "<|turn><|turn>");
    assert_eq!(prompt.ids.iter().filter(|&&id| id == 105).count(), 1);
}

#[test]
fn a_template_that_makes_control_tokens_of_people_s_words_is_refused_those_words() {
    let tokenizer = tokenizer();
    let template = template("{{ messages[0].content.replace('<image>', '<|image|>') }}");
    let prompt = |text| template.prompt(&tokenizer, &[user(text)], &ChatOptions::default());
    let image = tokenizer.special_id("<|image|>").unwrap();
    assert!(!prompt("<|image|> if a < b").unwrap().ids.contains(&image));
    let error = prompt("<image>").unwrap_err();
    assert!(matches!(error, Error::ControlTokensInMessage), "{error}");
}

#[test]
fn a_template_that_rewrites_angles_still_takes_code() {
    let tokenizer = tokenizer();
    let template = template("<|turn>{{ messages[0].content | replace('<', '&lt;') }}<turn|>");
    let prompt = template.prompt(&tokenizer, &[user("if a < b {")], &ChatOptions::default()).unwrap();
    assert_eq!(prompt.text, "<|turn>if a &lt; b {<turn|>");
    assert_eq!(prompt.ids, tokenizer.encode_raw(&prompt.text).unwrap());
}

#[test]
fn a_template_ruled_by_control_tokens_in_messages_is_refused_with_a_reason() {
    let tokenizer = tokenizer();
    let template = template("{% if messages[0].content == '<eos>' %}<eos>{% endif %}{{ messages[0].content }}");
    let options = ChatOptions::default();
    assert!(template.prompt(&tokenizer, &[user("a < b")], &options).is_ok());
    let error = template.prompt(&tokenizer, &[user("<eos>")], &options).unwrap_err();
    assert!(matches!(error, Error::ControlTokensInMessage), "{error}");
}

#[test]
fn private_characters_of_a_message_are_kept() {
    let (tokenizer, built_in) = (tokenizer(), built_in_template());
    let text = "\u{F0000}\u{F0001}<|turn>\u{100000}\u{F0002}";
    let said = Message::text("assistant", "a<|channel>\u{F0003}<channel|>\u{F0004}<turn|>");
    let prompt = built_in.prompt(&tokenizer, &[user(text), said, user("")], &ChatOptions::default()).unwrap();
    assert!(prompt.text.contains(text));
    assert!(prompt.text.contains("a\u{F0004}<turn|><turn|>\n"));
    assert_eq!(tokenizer.decode(&prompt.ids, ControlText::Show), prompt.text);
}

#[test]
fn control_tokens_of_other_shapes_are_marked_too() {
    let tokenizer = changed_tokenizer(|json| {
        for token in json["added_tokens"].as_array_mut().unwrap() {
            if token["content"] == "<mask>" {
                token["content"] = json!("[INST]");
            }
        }
        let vocab = json["model"]["vocab"].as_object_mut().unwrap();
        let id = vocab.remove("<mask>").unwrap();
        vocab.insert("[INST]".to_owned(), id);
    });
    let tokenizer = Arc::new(tokenizer.unwrap());
    let template = template("[INST]{{ messages[0].content | trim }}[INST]<eos>");
    let prompt = template.prompt(&tokenizer, &[user(" [INST] [1] <eos> ")], &ChatOptions::default()).unwrap();
    let inst = tokenizer.special_id("[INST]").unwrap();
    assert_eq!(prompt.ids.iter().filter(|&&id| id == inst).count(), 2);
    assert_eq!(prompt.ids.iter().filter(|&&id| id == 1).count(), 1);
}

fn fragment() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-c <>|\n]{0,4}",
        prop::sample::select(vec![
            "<|turn>",
            "<turn|>",
            "<|channel>",
            "<channel|>",
            "<|channel>thought\n",
            "<|\"|>",
            "<|tool_response>",
            "<|image|>",
            "<bos>",
            "<|tu",
            "rn>",
            "<|",
            "|>",
            "turn",
            " ",
            "\u{1f}",
            "\u{F0000}",
        ])
        .prop_map(str::to_owned),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(fragment(), 0..6).prop_map(|fragments| fragments.concat())
}

fn message() -> impl Strategy<Value = Value> {
    let role = prop::sample::select(vec!["user", "assistant", "assistant", "tool", "system"]);
    let content = prop_oneof![
        text().prop_map(|text| json!(text)),
        prop::collection::vec(text(), 0..3)
            .prop_map(|texts| { texts.into_iter().map(|text| json!({"type": "text", "text": text})).collect() }),
    ];
    let call = prop::option::of((text(), text(), text()));
    (role, content, call, prop::option::of(text())).prop_map(|(role, content, call, reasoning)| {
        let mut message = json!({"role": role, "content": content, "reasoning": reasoning});
        if let (Some((name, key, value)), "assistant") = (call, role) {
            message["tool_calls"] = json!([{"id": "1", "name": format!("f{name}"), "arguments": {key: value}}]);
        }
        message
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// No conversation is refused, none changes the rendered text, and none adds a control token.
    #[test]
    fn no_conversation_adds_a_control_token(
        messages in prop::collection::vec(message(), 0..6),
        enable_thinking: bool,
    ) {
        thread_local!(static SETUP: (Arc<Tokenizer>, ChatTemplate) = (tokenizer(), built_in_template()));
        SETUP.with(|(tokenizer, built_in)| {
            let messages = common::messages(&json!(messages));
            let options = ChatOptions { enable_thinking, ..ChatOptions::default() };
            let text = built_in.render(tokenizer, &messages, &options).unwrap();
            let prompt = built_in.prompt(tokenizer, &messages, &options).unwrap();
            prop_assert_eq!(&prompt.text, &text);
            prop_assert_eq!(tokenizer.decode(&prompt.ids, ControlText::Show), text);
            // The twin renders with the same turns unless a text is empty in one of them alone.
            let found: Vec<u32> =
                prompt.ids.iter().copied().filter(|&id| tokenizer.is_special(id)).collect();
            let own = own_control(tokenizer, built_in, &messages, &options);
            prop_assert_eq!(found, own);
            Ok(())
        })?;
    }
}

/// The control tokens that the template itself writes: those of the conversation in which people's
/// texts, thoughts cut out of them as the template does, have no angles.
fn own_control(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[Message],
    options: &ChatOptions,
) -> Vec<u32> {
    let cut = |text: &str| -> String {
        let pieces = text.split("<channel|>").map(|piece| piece.split("<|channel>").next().unwrap());
        pieces.collect()
    };
    let mut messages = messages.to_vec();
    for message in messages.iter_mut().filter(|message| message.role == "assistant") {
        match &mut message.content {
            Content::Text(text) => *text = cut(text),
            Content::Parts(parts) => {
                for part in parts {
                    if let Part::Text(text) = part {
                        *text = cut(text);
                    }
                }
            }
            Content::Empty => {}
        }
    }
    let text = template.render(tokenizer, &clean_twin(&messages), options).unwrap();
    let ids = tokenizer.encode(&text, Specials::Parse).unwrap();
    ids.into_iter().filter(|&id| tokenizer.is_special(id)).collect()
}
