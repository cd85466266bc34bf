//! Rules that hold for every reply.

use markbase_chat::{Ended, Json, JsonObject, Number, ReplyOptions};
use proptest::prelude::*;

use crate::script::{control, ids, plain, play, spelled, tokenizer};

/// A JSON value as the template writes it in a call.
fn written(value: &Json) -> String {
    quoted(value, "<|\"|>")
}

/// The same with another way of quoting.
fn quoted(value: &Json, quote: &str) -> String {
    match value {
        Json::Text(text) if quote.len() > 1 => format!("{quote}{text}{quote}"),
        Json::Text(text) => {
            format!("{quote}{}{quote}", text.replace('\\', "\\\\").replace(quote, &format!("\\{quote}")))
        }
        Json::List(items) => {
            format!("[{}]", items.iter().map(|item| quoted(item, quote)).collect::<Vec<_>>().join(","))
        }
        Json::Object(object) => {
            let pair = |(key, value): (&String, &Json)| format!("{key}:{}", quoted(value, quote));
            format!("{{{}}}", object.iter().map(pair).collect::<Vec<_>>().join(","))
        }
        scalar => scalar.to_string(),
    }
}

/// Texts of everything that could be taken for grammar. `▁` is a space to the tokenizer.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        prop::sample::select(vec![
            "}",
            "{",
            "]",
            ")",
            ",",
            ":",
            "=",
            "\"",
            "'",
            "\\",
            "\n",
            " ",
            "<",
            "<|",
            "<|\"|",
            "|>",
            "\\\"",
            "a:1",
            "call:f{}",
            "<tool_call|>",
            "<|tool_call>",
            "<|tool_response>",
            "<turn|>",
            "<|channel>thought\n",
            "<channel|>",
            "<bos>",
            "é🦀",
            "BEGIN_ARG:\n",
            "END_ARG",
            "true",
        ])
        .prop_map(str::to_owned),
        any::<String>(),
    ];
    let texts = prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat());
    texts.prop_filter("nothing escapes the delimiter", |text| !text.contains("<|\"|>") && !text.contains('▁'))
}

fn value() -> impl Strategy<Value = Json> {
    let number = "-?(0|[1-9][0-9]{0,25})([.][0-9]{1,5})?([eE][+-]?[0-9]{1,4})?";
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::Bool),
        number.prop_map(|text| Json::Number(Number::new(&text).expect("a number"))),
        text().prop_map(Json::Text),
    ];
    leaf.prop_recursive(4, 30, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::List),
            prop::collection::vec(("[A-Za-z_$é][A-Za-z0-9_.-]{0,8}", inner), 0..4)
                .prop_map(|pairs| Json::Object(pairs.into_iter().collect())),
        ]
    })
}

fn arguments() -> impl Strategy<Value = JsonObject> {
    prop::collection::vec(("[A-Za-z_é][A-Za-z0-9_.-]{0,8}", value()), 0..5)
        .prop_map(|pairs| pairs.into_iter().collect())
}

/// A piece of a reply without calls.
fn spoken() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "<|channel>",
        "<|channel>thought\n",
        "<channel|>",
        "thought",
        "\n",
        "\n\n",
        "a",
        " b",
        "é",
        "<turn|>",
        "<|image|>",
    ])
}

/// What a reply without calls is, worked out from the whole of it: its text and its thought.
fn split(ids: &[u32]) -> (String, String) {
    let tokenizer = tokenizer();
    let [open, close] = ["<|channel>", "<channel|>"].map(control);
    let (mut text, mut blocks, mut is_open) = (String::new(), Vec::<String>::new(), false);
    for &id in ids {
        let spelling = tokenizer.decode(&[id], markbase_chat::ControlText::Hide);
        match blocks.last_mut() {
            _ if id == open => {
                blocks.push(String::new());
                is_open = true;
            }
            _ if id == close => is_open = false,
            Some(block) if is_open => block.push_str(&spelling),
            _ => text.push_str(&spelling),
        }
    }
    let bodies = blocks.iter().map(|block| match block.strip_prefix("thought") {
        Some("") => "",
        Some(body) if body.starts_with('\n') => &body[1..],
        _ => block.as_str(),
    });
    let bodies = bodies.map(|body| body.strip_suffix('\n').unwrap_or(body)).filter(|body| !body.is_empty());
    (text, bodies.collect::<Vec<_>>().join("\n"))
}

/// A piece of a hostile reply; `#` stands for a number of its own.
fn piece() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        4 => Just(" w#x"),
        3 => Just("w#x"),
        3 => Just("k#x:"),
        2 => Just("<|tool_call>call:z#x{"),
        2 => Just("<|tool_call>call:z#x{}"),
        3 => Just("}"),
        6 => Just("<|\"|>"),
        2 => Just("<tool_call|>"),
        12 => prop::sample::select(vec![
            "<|tool_call>", "<|tool_call>call:z#x(", "<|channel>", "<|channel>thought\n", "<channel|>", "<turn|>",
            "<|tool_response>", "{", "[", "]", "(", ")", ",", ":", "=", "\"", "'", "\\", "\n", " ", "-", "1", "<", "<|\"",
            "|>", "#", ";", ".",
        ]),
    ]
}

/// The ids of the pieces, and the words in them.
fn numbered(pieces: &[&str]) -> (Vec<u32>, Vec<String>) {
    let (mut text, mut words) = (String::new(), vec![]);
    for (number, piece) in pieces.iter().enumerate() {
        let piece = piece.replace('#', &number.to_string());
        if let (Some(start), Some(end)) = (piece.find(['w', 'k', 'z']), piece.find('x')) {
            words.push(piece[start..=end].to_owned());
        }
        text.push_str(&piece);
    }
    (ids(&text), words)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn calls_as_the_template_writes_them_come_back(arguments in arguments(), name in "[A-Za-z_é][A-Za-z0-9_.:/-]{0,9}[a-z]") {
        let body = format!("call:{name}{}", written(&Json::Object(arguments.clone())));
        let wanted = [format!("{name}{}", Json::Object(arguments))];
        let whole = [ids("a<|tool_call>"), ids(&body), ids("<tool_call|>b")].concat();
        let reply = play(ReplyOptions::default(), &whole).reply;
        prop_assert_eq!((spelled(&reply), reply.text.as_str()), (wanted.to_vec(), "ab"));
        let ordinary = [ids("<|tool_call>"), plain(&body), ids("<tool_call|>")].concat();
        let reply = play(ReplyOptions::default(), &ordinary).reply;
        prop_assert_eq!((spelled(&reply), reply.text.as_str()), (wanted.to_vec(), ""));
    }

    #[test]
    fn no_part_of_a_call_is_a_call(
        arguments in arguments(),
        quote in prop::sample::select(vec!["<|\"|>", "\"", "'"]),
        has_parentheses in any::<bool>(),
    ) {
        let mut object = quoted(&Json::Object(arguments.clone()), quote);
        if has_parentheses {
            object = format!("({})", &object[1..object.len() - 1]);
        }
        let whole = [ids("<|tool_call>"), plain(&format!("call:f{object}"))].concat();
        let reply = play(ReplyOptions::default(), &whole).reply;
        prop_assert_eq!(spelled(&reply), [format!("f{}", Json::Object(arguments))]);
        for end in 1..whole.len() {
            let cut = play(ReplyOptions::default(), &whole[..end]).reply;
            prop_assert_eq!(spelled(&cut), Vec::<String>::new(), "{:?}", cut);
            let text = tokenizer().decode(&whole[..end], markbase_chat::ControlText::Show);
            prop_assert_eq!(cut.text, text);
        }
    }

    #[test]
    fn text_and_thought_are_those_of_the_whole_and_of_every_cut(pieces in prop::collection::vec(spoken(), 0..24)) {
        let all: Vec<u32> = pieces.iter().flat_map(|piece| ids(piece)).collect();
        let whole = play(ReplyOptions::default(), &all).reply;
        prop_assert_eq!((whole.text.clone(), whole.thought.clone()), split(&all));
        for end in 0..all.len() {
            let cut = play(ReplyOptions::default(), &all[..end]).reply;
            prop_assert!(whole.text.starts_with(&cut.text), "{:?} of {:?}", cut, whole);
            prop_assert!(whole.thought.starts_with(&cut.thought), "{:?} of {:?}", cut, whole);
        }
    }

    #[test]
    fn no_word_is_lost_or_said_twice_wherever_a_reply_is_cut(pieces in prop::collection::vec(piece(), 0..40)) {
        for end in 0..=pieces.len() {
            let (ids, words) = numbered(&pieces[..end]);
            let reply = play(ReplyOptions::default(), &ids).reply;
            let said = [reply.text.as_str(), &reply.thought, &spelled(&reply).join(" ")].join(" ");
            for word in words {
                prop_assert_eq!(said.matches(&word).count(), 1, "{} in {:?} of {:?}", word, reply, pieces[..end].concat());
            }
        }
    }

    #[test]
    fn any_ids_are_a_reply(
        ids in prop::collection::vec(prop_oneof![3 => 40_u32..110, 3 => 0_u32..3_100, 1 => any::<u32>()], 0..200),
        after_prompt in prop::collection::vec(98_u32..110, 0..4),
        stop in prop::collection::vec("[a-c<|> ]{1,2}", 0..3),
    ) {
        let free = play(ReplyOptions { after_prompt: after_prompt.clone(), ..ReplyOptions::default() }, &ids);
        prop_assert!(free.thought_tokens <= ids.len());
        prop_assert_eq!(free.ended, None);
        let stopped = play(ReplyOptions { after_prompt, stop, stop_ids: vec![1, 106], ..ReplyOptions::default() }, &ids);
        match stopped.ended {
            None => prop_assert_eq!(stopped.reply, free.reply),
            // What a stop id ended may be read otherwise if it is part of a string.
            Some(Ended::StopId(id)) => prop_assert!(ids.contains(&id)),
            Some(Ended::StopString(_)) => prop_assert!(free.reply.text.starts_with(&stopped.reply.text)),
        }
    }
}
