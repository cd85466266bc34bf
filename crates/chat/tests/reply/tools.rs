//! What is declared decides names, types and the order of parameters.

use markbase_chat::{DeclaredTool, Json, ReplyOptions};
use serde_json::json;

use crate::script::{declared, expect_ids, ids, with_tools};

#[test]
fn declarations_are_read() {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {
        "b": {"type": "STRING"}, "a": {"type": ["null", "integer"]}, "c": {}, "d": {"type": ["string", "number"]}}}}});
    let tool = DeclaredTool::read(&Json::from(&tool)).unwrap();
    let parameters = tool.parameters.iter().map(|p| (p.name.as_str(), p.json_type.as_deref()));
    assert_eq!(tool.name, "f");
    let wanted = [("b", Some("string")), ("a", Some("integer")), ("c", None), ("d", None)];
    assert_eq!(parameters.collect::<Vec<_>>(), wanted);
    assert_eq!(DeclaredTool::read(&Json::from(&json!({"name": "g"}))).unwrap().parameters, []);
    for none in [json!(null), json!({}), json!({"function": {"name": 1}}), json!([])] {
        assert_eq!(DeclaredTool::read(&Json::from(&none)), None);
    }
}

#[test]
fn a_name_means_the_declared_tool_whose_name_ends_it() {
    let one: &[(&str, &[(&str, &str)])] = &[("create-file", &[]), ("other", &[])];
    let sharing: &[(&str, &[(&str, &str)])] = &[("create-file", &[]), ("mcp.create-file", &[])];
    let dotted: &[(&str, &[(&str, &str)])] = &[("a.open", &[]), ("open", &[]), ("b.close", &[]), ("a.b.close", &[])];
    let foreign: &[(&str, &[(&str, &str)])] = &[("mcp.create-file", &[])];
    for (tools, written, name) in [
        (one, "create-file", "create-file"),
        (one, "google:mcp:x:create-file", "create-file"),
        (one, "fs.create-file", "create-file"),
        (one, "fs/create-file", "create-file"),
        (one, "fs-create-file", "fs-create-file"),
        (one, "google:open", "google:open"),
        (sharing, "create-file", "create-file"),
        (sharing, "mcp.create-file", "mcp.create-file"),
        (sharing, "x:create-file", "x:create-file"),
        (foreign, "x:create-file", "x:create-file"),
        (foreign, "default_api.mcp.create-file", "mcp.create-file"),
        (dotted, "x.a.open", "a.open"),
        (dotted, "x.open", "x.open"),
        (dotted, "x.a.b.close", "a.b.close"),
        (dotted, "x.b.close", "x.b.close"),
        (foreign, "create-file", "create-file"),
        (&[], "google:create-file", "google:create-file"),
    ] {
        let input = format!("<|tool_call>call:{written}{{a:1}}<tool_call|>");
        expect_ids(&with_tools(tools), &ids(&input), "", "", &[&format!("{name}{{\"a\":1}}")]);
    }
}

#[test]
fn a_bare_number_for_a_text_is_the_text_of_its_digits() {
    let options = with_tools(&[("f", &[("s", "string"), ("n", "number"), ("b", "boolean")])]);
    for (body, arguments) in [
        ("{s:007}", r#"{"s":"007"}"#),
        ("{s:42}", r#"{"s":"42"}"#),
        ("{s:1.50}", r#"{"s":"1.50"}"#),
        ("{s:null}", r#"{"s":null}"#),
        ("{n:42,other:42}", r#"{"n":42,"other":42}"#),
        ("{n:<|\"|>42<|\"|>,b:<|\"|>true<|\"|>}", r#"{"n":"42","b":"true"}"#),
    ] {
        expect_ids(
            &options,
            &ids(&format!("<|tool_call>call:x:f{body}<tool_call|>")),
            "",
            "",
            &[&format!("f{arguments}")],
        );
    }
}

#[test]
fn a_declared_name_alone_is_a_call() {
    let options = with_tools(&[("now", &[])]);
    expect_ids(&options, &ids("<|tool_call>now<tool_call|>"), "", "", &["now{}"]);
    expect_ids(&options, &ids("<|tool_call>later<tool_call|>"), "<|tool_call>later<tool_call|>", "", &[]);
}

#[test]
fn blocks_of_arguments_go_to_the_parameters_in_their_order() {
    let options = with_tools(&[("write", &[("path", "string"), ("size", "integer"), ("more", "object")])]);
    let thought = "<|channel>thought\n<channel|>";
    let cases: [(String, &[&str]); 8] = [
        (
            "call:write:\nBEGIN_ARG:\na.txt\nEND_ARG\nBEGIN_ARG:\n12\nEND_ARG".into(),
            &[r#"write{"path":"a.txt","size":12}"#],
        ),
        (
            format!(
                "call:fs:write:\n{thought}BEGIN_ARG:\n7{thought}\nEND_ARG\n{thought}\nBEGIN_ARG:\n<|\"|>12<|\"|>\nEND_ARG\n{thought}"
            ),
            &[r#"write{"path":"7","size":"12"}"#],
        ),
        ("call:write:\nBEGIN_ARG:\na\n\n b \nEND_ARG".into(), &[r#"write{"path":"a\n\n b "}"#]),
        ("call:write:\nBEGIN_ARG:\n\nEND_ARG".into(), &[r#"write{"path":""}"#]),
        (
            "call:write\nBEGIN_ARG\na\nEND_ARG\nBEGIN_ARG\nmany of them\nEND_ARG".into(),
            &[r#"write{"path":"a","size":"many of them"}"#],
        ),
        (
            "call:write:\nBEGIN_ARG:\n{a}\nEND_ARG\nBEGIN_ARG:\n1\nEND_ARG\nBEGIN_ARG:\n{a:[1,x]}\nEND_ARG".into(),
            &[r#"write{"path":"{a}","size":1,"more":{"a":[1,"x"]}}"#],
        ),
        ("call:write:\nBEGIN_ARG:\na.txt".into(), &[r#"write{"path":"a.txt"}"#]),
        (format!("{thought}call:write:\nBEGIN_ARG:\na\nEND_ARG"), &[r#"write{"path":"a"}"#]),
    ];
    for (body, calls) in cases {
        expect_ids(&options, &ids(&format!("<|tool_call>{body}<tool_call|>")), "", "", calls);
    }
    // Nothing to give them to: the text.
    for body in [
        "call:read:\nBEGIN_ARG:\na.txt\nEND_ARG",
        "call:write:\nBEGIN_ARG:\n1\nEND_ARG\nBEGIN_ARG:\n2\nEND_ARG\nBEGIN_ARG:\n3\nEND_ARG\nBEGIN_ARG:\n4\nEND_ARG",
        "call:write:\nBEGIN_ARG:\n1\nEND_ARG\nmore",
    ] {
        let whole = format!("<|tool_call>{body}<tool_call|>");
        expect_ids(&options, &ids(&whole), &whole, "", &[]);
    }
    // Cut off: whether they are all is not known.
    let cut = "<|tool_call>call:write:\nBEGIN_ARG:\na.txt\nEND_ARG";
    expect_ids(&options, &ids(cut), cut, "", &[]);
    assert_eq!(declared(&[]), ReplyOptions::default().tools);
}
