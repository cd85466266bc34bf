//! Prompts equal those of Python byte by byte; what a template may cost and call is bounded.

mod common;

use common::{
    built_in_template, golden, message, messages, model_map, official_template, options, renderings, shared_file,
    template, tokenizer,
};
use markbase_chat::{ChatOptions, ChatTemplate, Error, Json, Map, Message, Specials, Tokenizer, read_tools};
use proptest::prelude::*;
use serde_json::{Value, json};

fn assert_renders_all(template: &ChatTemplate) {
    let tokenizer = tokenizer();
    for case in renderings() {
        let text = template.render(&tokenizer, &case.messages, &case.options);
        assert_eq!(text.unwrap(), case.text, "{}: {:?}", case.name, case.options);
    }
}

#[test]
fn built_in_template_renders_every_golden() {
    assert_renders_all(&built_in_template());
}

#[test]
fn official_template_renders_every_golden() {
    if let Some(official) = official_template("e2b_e4b") {
        assert_renders_all(&official);
    }
}

#[test]
fn built_in_and_official_template_render_all_evaluation_cases_alike() {
    let Some(official) = official_template("e2b_e4b") else { return };
    let (tokenizer, built_in) = (tokenizer(), built_in_template());
    let mut compared = 0;
    for name in ["text", "image", "audio", "video"] {
        let Some(lines) = shared_file(&format!("models/eval/{name}.jsonl")) else { return };
        for line in lines.lines() {
            let case: Value = serde_json::from_str(line).unwrap();
            let messages = messages(&case["messages"]);
            let options = options(&case);
            let wanted = official.render(&tokenizer, &messages, &options).unwrap();
            let prompt = built_in.prompt(&tokenizer, &messages, &options).unwrap();
            assert_eq!(prompt.text, wanted, "{}", case["id"]);
            let ids = tokenizer.encode(&wanted, Specials::Parse).unwrap();
            assert_eq!(prompt.ids, ids, "{}", case["id"]);
            compared += 1;
        }
    }
    assert!(compared > 800, "only {compared} cases");
}

/// The conversations of the samples are not spelled out there; these are what their texts say.
#[test]
fn official_templates_differ_by_size_as_sampled() {
    let Some(samples) = shared_file("gemma4/templates/sample_renders.json") else { return };
    let samples: Value = serde_json::from_str(&samples).unwrap();
    let tokenizer = tokenizer();
    let messages = [Message::text("user", "Hi")];
    for (size, file) in [("small", "e2b_e4b"), ("large", "12b_26b_31b")] {
        let official = official_template(file).unwrap();
        let off = official.render(&tokenizer, &messages, &ChatOptions::default()).unwrap();
        assert_eq!(off, samples[format!("{size} off")]);
        let with_system = [&[Message::text("system", "Be brief.")], &messages[..]].concat();
        let on = ChatOptions { enable_thinking: true, ..ChatOptions::default() };
        let on = official.render(&tokenizer, &with_system, &on).unwrap();
        assert_eq!(on, samples[format!("{size} on")]);
    }
}

#[test]
fn every_prompt_begins_with_one_bos() {
    let (tokenizer, built_in) = (tokenizer(), built_in_template());
    let bos = tokenizer.bos().unwrap();
    for case in renderings() {
        let prompt = built_in.prompt(&tokenizer, &case.messages, &case.options).unwrap();
        let count = prompt.ids.iter().filter(|&&id| id == bos).count();
        assert_eq!((prompt.ids[0], count), (bos, 1), "{}", case.name);
    }
    // A template that leaves it to the tokenizer.
    let prompt = template("{{ messages[0].content }}")
        .prompt(&tokenizer, &[Message::text("user", "Hi")], &ChatOptions::default())
        .unwrap();
    assert_eq!(prompt.ids, tokenizer.encode_raw("Hi").unwrap());
}

fn config(value: Value) -> Map {
    serde_json::from_value(value).unwrap()
}

#[test]
fn templates_are_found_in_file_then_config_by_name() {
    let tokenizer = tokenizer();
    let user = [Message::text("user", "Hi")];
    let render = |template: &ChatTemplate, options: &ChatOptions| template.render(&tokenizer, &user, options).unwrap();
    let plain = ChatOptions::default();
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let with_tools = ChatOptions { tools: vec![Json::from(&tool)], ..plain.clone() };

    let text = config(json!({"chat_template": "from config"}));
    assert_eq!(render(&ChatTemplate::new(None, &text).unwrap(), &plain), "from config");
    assert_eq!(render(&ChatTemplate::new(Some("from file"), &text).unwrap(), &plain), "from file");

    let list = config(json!({"chat_template": [
        {"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"},
    ]}));
    let named = ChatTemplate::new(None, &list).unwrap();
    assert_eq!(render(&named, &plain), "plain");
    assert_eq!(render(&named, &with_tools), "tools");

    let names = ["tool_use", "default", "rag"].map(|name| (name.to_owned(), format!("this is {name}")));
    let named = ChatTemplate::from_named(names.to_vec()).unwrap();
    assert_eq!(named.names().collect::<Vec<_>>(), ["tool_use", "default", "rag"]);
    assert_eq!(render(&named, &plain), "this is default");
    assert_eq!(render(&named, &with_tools), "this is tool_use");
    for name in named.names() {
        let one = named.named(name).unwrap();
        for options in [&plain, &with_tools] {
            assert_eq!(render(&one, options), format!("this is {name}"));
        }
    }
    let error = named.named("other").unwrap_err().to_string();
    assert_eq!(error, "no chat template is named \"other\"; the model has tool_use, default, rag");
    let error = ChatTemplate::new(Some("from file"), &text).unwrap().named("rag").unwrap_err().to_string();
    assert_eq!(error, "no chat template is named \"rag\"; the model has one without a name");

    let error = |value| ChatTemplate::new(None, &config(value)).unwrap_err().to_string();
    assert!(error(json!({})).contains("no chat template"));
    assert!(error(json!({"chat_template": 7})).contains("chat_template is 7"));
    assert!(error(json!({"chat_template": [{"name": "rag", "template": ""}]})).contains("default"));
}

#[test]
fn unknown_names_are_found_at_load_in_branches_never_taken() {
    for (source, wanted) in [
        ("{% if false %}{{ x | wiggle }}{% endif %}", "unknown filter `wiggle`"),
        ("{% if false %}{{ x is wobbly }}{% endif %}", "unknown test `wobbly`"),
        ("{% macro m() %}{{ x.explode() }}{% endmacro %}", "unknown method `explode`"),
        ("{% for x in [] %}{{ fetch(x) }}{% endfor %}", "unknown function `fetch`"),
        ("{{ x | map('upper') | nope }}", "unknown filter `nope`"),
    ] {
        let error = ChatTemplate::new(Some(source), &Map::new()).unwrap_err();
        assert_eq!(error.to_string(), format!("chat template: {wanted}"));
    }
    let error = ChatTemplate::new(Some("{% if %}"), &Map::new()).unwrap_err().to_string();
    assert!(error.starts_with("chat template: syntax error"), "{error}");
}

/// Renders a template without messages.
fn evaluate(source: &str) -> String {
    try_evaluate(source).unwrap()
}

fn try_evaluate(source: &str) -> markbase_chat::Result<String> {
    thread_local!(static TOKENIZER: std::sync::Arc<Tokenizer> = tokenizer());
    TOKENIZER
        .with(|tokenizer| ChatTemplate::new(Some(source), &Map::new())?.render(tokenizer, &[], &ChatOptions::default()))
}

#[test]
fn expressions_answer_as_in_python() {
    for case in golden("expressions.json").as_array().unwrap() {
        let (source, wanted) = (case[0].as_str().unwrap(), case[1].as_str().unwrap());
        assert_eq!(evaluate(source), wanted, "{source}");
    }
}

#[test]
fn today_is_printed() {
    let year: u32 = evaluate("{{ strftime_now('%Y') }}").parse().unwrap();
    assert!(year >= 2024);
    let error = try_evaluate("{{ strftime_now('%Q') }}").unwrap_err().to_string();
    assert!(error.contains("%Q is not supported"), "{error}");
}

#[test]
fn an_exception_of_the_template_carries_its_message() {
    let source = "{% macro m() %}{{ raise_exception('roles must ' + 'alternate') }}{% endmacro %}{{ m() }}";
    let error = try_evaluate(source).unwrap_err().to_string();
    assert_eq!(error, "the chat template refuses these messages: roles must alternate");
}

#[test]
fn a_failing_template_says_where() {
    let error = try_evaluate("\n\n{{ 1 + none }}").unwrap_err().to_string();
    assert!(error.contains("chat_template:3"), "{error}");
}

#[test]
fn templates_that_do_not_end_are_stopped() {
    for (source, wanted) in [
        ("{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}", "did not end"),
        (
            "{% set ns = namespace(x='ab') %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
            "did not end",
        ),
        ("{% for a in range(90000) %}{{ 'a' * 100 }}{% endfor %}", "wrote more than"),
        ("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}", "recursion"),
        (
            "{% set ns = namespace(x=[]) %}{% for a in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
            "nested",
        ),
        (
            "{% set ns = namespace(x=[]) %}{% for b in range(9) %}{% for a in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}{{ ns.x }}",
            "nested",
        ),
        ("{{ [1] | tojson(indent=1000000000) }}", "indent"),
        (&format!("{{% set x = 1 %}}{}", "{% set x = [[[[[[[[x]]]]]]]] %}".repeat(4000)), "nested"),
        (&format!("{{% set x = 1 %}}{}", "{% set x = (((x,),),) %}".repeat(5000)), "nested"),
        (&"a".repeat(1 << 20), "at most 131072"),
    ] {
        let error = try_evaluate(source).unwrap_err().to_string();
        assert!(error.contains(wanted), "{:.100}: {error}", source);
    }
}

#[test]
fn arguments_as_deep_as_json_goes_render_or_are_refused() {
    let (tokenizer, built_in) = (tokenizer(), built_in_template());
    for depth in [15, 60] {
        let nested = (0..depth).fold(json!(1), |inner, _| json!({"k": [inner]}));
        let call = json!({"name": "f", "arguments": {"x": nested}});
        let messages = [message(json!({"role": "assistant", "tool_calls": [call]}))];
        match built_in.render(&tokenizer, &messages, &ChatOptions::default()) {
            Ok(text) => assert!(text.contains(&"{k:[".repeat(depth)) && depth == 15),
            Err(error) => assert!(error.to_string().contains("recursion") && depth == 60, "{error}"),
        }
    }
}

#[test]
fn long_conversations_are_within_the_limits() {
    let tokenizer = tokenizer();
    let turn = [Message::text("user", "Hi"), Message::text("assistant", "Yes.")];
    let messages: Vec<Message> = turn.iter().cycle().take(1001).cloned().collect();
    let templates = [Some(built_in_template()), official_template("e2b_e4b")];
    let texts: Vec<String> = templates
        .iter()
        .flatten()
        .map(|template| template.render(&tokenizer, &messages, &ChatOptions::default()).unwrap())
        .collect();
    assert_eq!(texts[0].matches("<|turn>").count(), 1002);
    assert!(texts.iter().all(|text| *text == texts[0]));
}

#[test]
fn long_arguments_are_within_the_limits() {
    let tokenizer = tokenizer();
    let numbers: Vec<u8> = vec![7; 50_000];
    let call = json!({"name": "f", "arguments": {"x": numbers, "y": {"z": [[[]]]}}});
    let messages = [message(json!({"role": "assistant", "tool_calls": [call]}))];
    for template in [Some(built_in_template()), official_template("e2b_e4b")].into_iter().flatten() {
        let text = template.render(&tokenizer, &messages, &ChatOptions::default()).unwrap();
        assert!(text.contains(&format!("{{x:[{}7],y:", "7,".repeat(49_999))));
    }
}

#[test]
fn tools_without_a_name_are_an_error() {
    let options = ChatOptions { tools: vec![Json::from(&json!({"name": "flat"}))], ..ChatOptions::default() };
    let error = built_in_template().render(&tokenizer(), &[], &options).unwrap_err();
    assert!(error.to_string().starts_with("tools[0]: `function.name` is missing"), "{error}");
}

#[test]
fn a_tool_that_the_template_cannot_write_is_named() {
    let tokenizer = tokenizer();
    let user = [Message::text("user", "Hi")];
    let tools = json!([
        {"name": "good", "parameters": {"properties": {"a": {"type": "string"}}}},
        {"name": "bad", "parameters": {"properties": ["a"]}},
    ]);
    let options = ChatOptions { tools: read_tools(&tools.to_string()).unwrap(), ..ChatOptions::default() };
    for template in [Some(built_in_template()), official_template("12b_26b_31b")].into_iter().flatten() {
        for error in [
            template.render(&tokenizer, &user, &options).unwrap_err().to_string(),
            template.prompt(&tokenizer, &user, &options).unwrap_err().to_string(),
        ] {
            assert!(error.starts_with("tools[1]: the chat template cannot write it: "), "{error}");
            assert!(error.contains("dictsort wants a mapping"), "{error}");
        }
    }
    // What fails without tools too is not their fault.
    let template = template("{{ tools }}{{ 1 + none }}");
    let error = template.render(&tokenizer, &user, &options).unwrap_err().to_string();
    assert!(error.starts_with("chat template failed"), "{error}");
}

#[test]
fn a_template_that_leaves_out_what_the_user_said_is_noticed() {
    let tokenizer = tokenizer();
    let prompt = |source: &str, messages: &[Message]| {
        let prompt = template(source).prompt(&tokenizer, messages, &ChatOptions::default());
        prompt.map(|prompt| prompt.text)
    };
    let said = [Message::text("user", " First. "), Message::text("assistant", "Yes."), Message::text("user", "Last.")];
    for drops in [
        "{% for m in messages %}{% if m.role == 'human' %}{{ m.content }}{% endif %}{% endfor %}",
        "{{ messages[0].content }}",
        "{{ messages[2].text }}{{ messages | length }}",
    ] {
        let error = prompt(drops, &said).unwrap_err();
        assert!(matches!(error, Error::UserTextDropped), "{drops}: {error}");
    }
    for keeps in
        ["{{ messages[2].content }}", "{{ messages[-1].content | upper }}", "{{ messages[-1]['content'][:2] }}"]
    {
        assert!(prompt(keeps, &said).is_ok(), "{keeps}");
    }
    // Where nothing was said, nothing is left out.
    let image = json!({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " "}]});
    for silent in [vec![], vec![Message::text("user", " \n")], vec![message(image)], vec![Message::text("system", "a")]]
    {
        assert_eq!(prompt("-", &silent).unwrap(), "-");
    }
    let parts = json!([{"type": "image"}, {"type": "text", "text": "one"}, {"type": "text", "text": "two"}]);
    let parts = [message(json!({"role": "user", "content": parts}))];
    let source = "{% for part in messages[0].content %}{{ part.TEXT }}{% endfor %}";
    assert!(matches!(prompt(source, &parts).unwrap_err(), Error::UserTextDropped));
    assert_eq!(prompt(&source.replace("TEXT", "text"), &parts).unwrap(), "onetwo");
}

#[test]
fn numbers_of_any_size_are_written_as_in_python() {
    let arguments = r#"{"a":123456789012345678901234567890,"b":1e400,"c":1e-05,"d":-0,"e":[340282366920938463463374607431768211456]}"#;
    let text = format!(r#"[{{"role":"assistant","tool_calls":[{{"name":"f","arguments":{arguments}}}]}}]"#);
    let messages = Message::read_list(&text).unwrap();
    let rendered = built_in_template().render(&tokenizer(), &messages, &ChatOptions::default()).unwrap();
    let wanted =
        "call:f{a:123456789012345678901234567890,b:inf,c:1e-05,d:0,e:[340282366920938463463374607431768211456]}";
    assert!(rendered.contains(wanted), "{rendered}");

    let source = "{% set a = messages[0].tool_calls[0].function.arguments %}{{ a | tojson }}\n{{ a }}\n{{ a.e[0] is number }}\
        {{ a.e[0] is integer }}{{ a.e[0] is float }}{{ a.e[0] is string }}{{ a.e[0] is sequence }}{{ a.e[0] is mapping }}";
    let rendered = template(source).render(&tokenizer(), &messages, &ChatOptions::default()).unwrap();
    let wanted = "{\"a\": 123456789012345678901234567890, \"b\": Infinity, \"c\": 1e-05, \"d\": 0, \"e\": [340282366920938463463374607431768211456]}
{'a': 123456789012345678901234567890, 'b': inf, 'c': 1e-05, 'd': 0, 'e': [340282366920938463463374607431768211456]}
TrueTrueFalseFalseFalseFalse";
    assert_eq!(rendered, wanted);
}

#[test]
fn the_built_in_config_names_its_tokens_to_the_template() {
    let config = model_map("tokenizer_config.json");
    assert_eq!(config["bos_token"], "<bos>");
    let text = template("{{ bos_token }}{{ eot_token }}{{ nothing_token }}").render(
        &tokenizer(),
        &[],
        &ChatOptions::default(),
    );
    assert_eq!(text.unwrap(), "<bos><turn|>");
}

proptest! {
    /// Pieces of templates in any order: an error or a text, within the limits.
    #[test]
    fn no_template_panics(
        pieces in prop::collection::vec(
            prop::sample::select(vec![
                "{{", "}}", "{%", "%}", "{%-", "-%}", "{#", "#}", "{% set x =", "{% set ns.x =", " ns = namespace(x=1)",
                "{% for x in", "{% endfor %}", "{% if", "{% else %}", "{% endif %}", "{% macro m(x) %}", "{% endmacro %}",
                "{% generation %}", "{% endgeneration %}", "{{ messages[0]", ".content", "['role']", " | trim", " | tojson",
                " | dictsort", " | sort(attribute=0)", ".split('<')", ".strip(1)", ".get()", "[", "]", "(", ")", "{", "}",
                "'", "\"", ",", "=", "x", "loop", "range(9)", "none", "1", "~", " is ", " in ", "é", "\n", "<|turn>",
                ".rsplit('', 1)", ".index('z')", "[::-1]", "[1:0:0]", " | join", " | indent(99999999)", " * 999999999",
            ]),
            0..14,
        )
    ) {
        let _ = try_evaluate(&pieces.concat());
    }
}
