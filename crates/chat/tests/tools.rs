//! Whatever a schema or a message is, there is a prompt without `None` or one sentence that names the fault.

mod common;

use common::{built_in_template, official_template, tokenizer};
use markbase_chat::{ChatOptions, ChatTemplate, Conversation, Error, Json, Message, Tokenizer, tools_from_json};
use proptest::prelude::*;
use serde_json::{Value, json};

fn render(tokenizer: &Tokenizer, template: &ChatTemplate, tools: &Value) -> markbase_chat::Result<String> {
    let options = ChatOptions { tools: tools_from_json(Json::from(tools))?, ..ChatOptions::default() };
    template.prompt(tokenizer, &[Message::text("user", "Hi")], &options).map(|prompt| prompt.text)
}

fn templates() -> Vec<ChatTemplate> {
    let official = ["12b_26b_31b", "e2b_e4b", "e2b.launch"].map(official_template);
    official.into_iter().flatten().chain([built_in_template()]).collect()
}

#[test]
fn null_fields_of_a_function_are_as_if_absent() {
    let tokenizer = tokenizer();
    let absent = json!([
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}},
        {"type": "function", "function": {"name": "g"}},
    ]);
    let null = json!([
        {"type": "function", "function": {"name": "f", "description": null,
            "parameters": {"type": "object", "required": null, "properties": {"a": {"type": "string", "description": null}}}}},
        {"type": "function", "function": {"name": "g", "description": null, "parameters": null, "response": null}},
    ]);
    for template in templates() {
        let text = render(&tokenizer, &template, &null).unwrap();
        assert_eq!(text, render(&tokenizer, &template, &absent).unwrap());
        assert!(!text.contains("None") && !text.to_lowercase().contains("undefined"), "{text}");
    }
}

/// Keywords of schemas among others, with whatever for a value.
fn schema() -> impl Strategy<Value = Value> {
    let key = prop::sample::select(vec![
        "type",
        "type",
        "description",
        "properties",
        "items",
        "required",
        "enum",
        "nullable",
        "anyOf",
        "default",
        "a",
        "<|\"|>",
    ]);
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(|x| json!(x)),
        any::<i32>().prop_map(|x| json!(x)),
        any::<f64>().prop_filter("finite", |x| x.is_finite()).prop_map(|x| json!(x)),
        prop::sample::select(vec!["string", "array", "object", "ARRAY", "Object", "", "x<turn|>"])
            .prop_map(|x| json!(x)),
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(|x| json!(x)),
            prop::collection::hash_map(key.clone().prop_map(str::to_owned), inner, 0..5).prop_map(|x| json!(x)),
        ]
    })
}

/// Fields of messages among others, with whatever for a value.
fn anything() -> impl Strategy<Value = Value> {
    let key = prop::sample::select(vec![
        "role",
        "content",
        "type",
        "text",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "id",
        "tools",
        "messages",
    ]);
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<i32>().prop_map(|x| json!(x)),
        prop::sample::select(vec!["user", "assistant", "tool", "text", "image", "function", "{", "{}", ""])
            .prop_map(|x| json!(x)),
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(|x| json!(x)),
            prop::collection::hash_map(key.clone().prop_map(str::to_owned), inner, 0..6).prop_map(|x| json!(x)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn every_schema_is_written_or_named(description in schema(), parameters in schema()) {
        thread_local!(static SETUP: (std::sync::Arc<Tokenizer>, Vec<ChatTemplate>) = (tokenizer(), templates()));
        SETUP.with(|(tokenizer, templates)| {
            let good = json!({"name": "good", "description": "d"});
            let tools = json!([good, {"name": "f", "description": description, "parameters": parameters}]);
            for template in templates {
                match render(tokenizer, template, &tools) {
                    Ok(text) => prop_assert!(text.contains("declaration:f"), "{text}"),
                    Err(Error::Tool { index, why }) => prop_assert!(index == 1 && !why.contains('\n'), "{index} {why}"),
                    Err(error) => prop_assert!(false, "{error}"),
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn every_json_is_a_conversation_or_a_fault_with_a_path(value in anything()) {
        match Conversation::from_json(Json::from(&value)) {
            Ok(read) => {
                // What was read is written and read again.
                let written = json!({"messages": read.messages, "tools": read.tools});
                prop_assert_eq!(Conversation::from_json(Json::from(&written)).unwrap(), read);
            }
            Err(error) => {
                let error = error.to_string();
                prop_assert!(error.starts_with("messages") || error.starts_with("tools"), "{error}");
                prop_assert!(!error.contains('\n'));
            }
        }
    }
}
