//! Seven hundred conversations through seven templates, each prompt that of Jinja2 on Python byte by byte.
//! Of the prompts only hashes are kept; `make_corpus.py` makes them and the conversations.

mod common;

use std::path::Path;

use common::{shared_file, template, tokenizer};
use markbase_chat::{ChatOptions, ChatTemplate, ControlText, Conversation, Error, Json, Tokenizer, tools_from_json};

struct Case {
    conversation: Conversation,
    options: ChatOptions,
    spelled: String,
}

struct Corpus {
    cases: Vec<Case>,
    json: Json,
}

fn items(json: &Json) -> &[Json] {
    match json {
        Json::List(items) => items,
        other => panic!("{} instead of a list", other.kind()),
    }
}

impl Corpus {
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/corpus.json");
        let json = Json::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
        let pool = tools_from_json(json.get("tools").unwrap().clone()).unwrap();
        let read = |case: &Json| {
            let [messages, options] = items(case) else { panic!("{case}") };
            let on = |key: &str| options.get(key) == Some(&Json::Bool(true));
            let tools = options.get("tools").map_or(&[][..], items).iter();
            let tools = tools.map(|index| pool[index.to_string().parse::<usize>().unwrap()].clone()).collect();
            Case {
                conversation: Conversation::from_json(messages.clone()).unwrap(),
                options: ChatOptions {
                    tools,
                    enable_thinking: on("thinking"),
                    add_generation_prompt: !on("no_prompt"),
                    preserve_thinking: on("preserve"),
                },
                spelled: case.to_string(),
            }
        };
        let cases = items(json.get("cases").unwrap()).iter().map(read).collect();
        Self { cases, json }
    }

    /// What Jinja2 makes of each case; nothing where it fails.
    fn hashes(&self, name: &str) -> Vec<Option<u64>> {
        let hashes = self.json.get("hashes").and_then(|hashes| hashes.get(name)).and_then(Json::as_str).unwrap();
        hashes
            .as_bytes()
            .chunks(16)
            .map(|hash| u64::from_str_radix(std::str::from_utf8(hash).unwrap(), 16).ok())
            .collect()
    }
}

/// 64 bits of FNV-1a.
fn hashed(text: &str) -> u64 {
    let step = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Renders every case; how many texts there were.
fn assert_as_in_python(corpus: &Corpus, tokenizer: &Tokenizer, name: &str, template: &ChatTemplate) -> usize {
    let hashes = corpus.hashes(name);
    assert_eq!(hashes.len(), corpus.cases.len());
    let mut wrong = Vec::new();
    for (case, wanted) in corpus.cases.iter().zip(&hashes) {
        let rendered = template.render(tokenizer, &case.conversation.messages, &case.options);
        if rendered.as_ref().ok().map(|text| hashed(text)) != *wanted {
            wrong.push(format!("{}\nwanted {wanted:x?}, found {rendered:#?}", case.spelled));
        }
    }
    assert!(wrong.is_empty(), "{name}: {} differ\n{}", wrong.len(), wrong.join("\n\n"));
    hashes.iter().flatten().count()
}

fn official(corpus: &Corpus, name: &str) {
    let name = format!("chat_template.{name}");
    let Some(source) = shared_file(&format!("gemma4/templates/{name}.jinja")) else { return };
    let rendered = assert_as_in_python(corpus, &tokenizer(), &name, &template(&source));
    assert!(rendered > 650, "only {rendered} conversations");
}

#[test]
fn official_template_of_the_large_models_renders_the_corpus() {
    official(&Corpus::read(), "12b_26b_31b");
}

#[test]
fn official_template_of_the_small_models_renders_the_corpus() {
    official(&Corpus::read(), "e2b_e4b");
}

#[test]
fn official_template_of_the_launch_renders_the_corpus() {
    official(&Corpus::read(), "e2b.launch");
}

#[test]
fn built_in_template_renders_the_corpus() {
    let (corpus, built_in) = (Corpus::read(), common::built_in_template());
    let rendered = assert_as_in_python(&corpus, &tokenizer(), "built_in", &built_in);
    assert!(rendered > 650, "only {rendered} conversations");
}

#[test]
fn templates_of_other_shapes_render_the_corpus() {
    let (corpus, tokenizer) = (Corpus::read(), tokenizer());
    for (name, at_least) in [("alternating", 100), ("chatml", 650), ("walker", 650)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/templates/{name}.jinja"));
        let source = std::fs::read_to_string(path).unwrap();
        let rendered = assert_as_in_python(&corpus, &tokenizer, name, &template(&source));
        assert!(rendered >= at_least, "{name}: only {rendered} conversations");
    }
}

/// Every text has ids that spell it.
fn assert_prompts(corpus: &Corpus, template: &ChatTemplate) {
    let tokenizer = tokenizer();
    for case in &corpus.cases {
        let messages = &case.conversation.messages;
        let Ok(text) = template.render(&tokenizer, messages, &case.options) else { continue };
        let prompt = template.prompt(&tokenizer, messages, &case.options);
        let prompt = prompt.unwrap_or_else(|error| panic!("{error}: {}", case.spelled));
        assert_eq!(prompt.text, text, "{}", case.spelled);
        // The normaliser makes these one.
        let decoded = tokenizer.decode(&prompt.ids, ControlText::Show);
        assert_eq!(decoded, text.replace('▁', " "), "{}", case.spelled);
    }
}

#[test]
fn every_conversation_of_the_corpus_has_a_prompt() {
    let corpus = Corpus::read();
    assert_prompts(&corpus, &common::built_in_template());
    for name in ["12b_26b_31b", "e2b_e4b", "e2b.launch"] {
        if let Some(official) = common::official_template(name) {
            assert_prompts(&corpus, &official);
        }
    }
}

/// How many tools a template cannot write.
fn failing_tools(corpus: &Corpus, template: &ChatTemplate) -> usize {
    let tokenizer = tokenizer();
    let mut named = 0;
    for case in &corpus.cases {
        match template.render(&tokenizer, &case.conversation.messages, &case.options) {
            Ok(_) => {}
            Err(Error::Tool { index: 0, why }) if case.options.tools.len() == 1 => {
                assert!(why.starts_with("the chat template cannot write it: ") && !why.contains('\n'), "{why}");
                named += 1;
            }
            Err(error) => panic!("{error}: {}", case.spelled),
        }
    }
    named
}

#[test]
fn tools_that_fail_in_jinja_are_named() {
    let corpus = Corpus::read();
    assert!(failing_tools(&corpus, &common::built_in_template()) > 0);
    if let Some(official) = common::official_template("e2b_e4b") {
        let failures = corpus.hashes("chat_template.e2b_e4b").iter().filter(|hash| hash.is_none()).count();
        assert_eq!(failing_tools(&corpus, &official), failures);
    }
}
