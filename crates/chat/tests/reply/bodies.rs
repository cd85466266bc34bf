//! Calls, as they should be and as they come.

use std::sync::Arc;

use markbase_chat::{ControlText, Json, Reply, ReplyOptions};
use serde_json::Value;

use crate::common::{changed_tokenizer, golden};
use crate::script::{expect, expect_ids, ids, plain, play, spelled, tokenizer};

/// Bodies of one call `f` and its arguments.
#[test]
fn arguments_are_read() {
    for (body, arguments) in [
        // The grammar.
        ("call:f{}", "{}"),
        (
            "call:f{n:42,x:-1.5e3,ok:true,z:null,code:<|\"|>007<|\"|>,flag:<|\"|>true<|\"|>}",
            r#"{"n":42,"x":-1.5e3,"ok":true,"z":null,"code":"007","flag":"true"}"#,
        ),
        ("call:f{a:12345678901234567890,b:1e400,c:1.0,d:-0}", r#"{"a":12345678901234567890,"b":1e400,"c":1.0,"d":-0}"#),
        (
            "call:f{arguments:{message:<|\"|>How are you?<|\"|>},n:2}",
            r#"{"arguments":{"message":"How are you?"},"n":2}"#,
        ),
        (
            "call:f{a:<|\"|>if (x) { y[\"z\"] = 'q', w: 1; } // \\n \\ <|\"|>}",
            r#"{"a":"if (x) { y[\"z\"] = 'q', w: 1; } // \\n \\ "}"#,
        ),
        ("call:f{a:<|\"|>C:\\new\\table\\u0041<|\"|>}", r#"{"a":"C:\\new\\table\\u0041"}"#),
        ("call:f{a:<|\"|>two\nlines\t\r\n<|\"|>,b:<|\"|><|\"|>}", r#"{"a":"two\nlines\t\r\n","b":""}"#),
        ("call:f{a:<|\"|> {\"k\": [1, \"}\"]} <|\"|>}", r#"{"a":" {\"k\": [1, \"}\"]} "}"#),
        ("call:f{a:[],b:{},c:[[1],[2,{d:[]}]]}", r#"{"a":[],"b":{},"c":[[1],[2,{"d":[]}]]}"#),
        ("call:f{a:1,a:2}", r#"{"a":2}"#),
        // Bare words are texts, and only numbers of JSON are numbers.
        ("call:f{a:word,b:two words,c:12:30,d:1 apple}", r#"{"a":"word","b":"two words","c":"12:30","d":"1 apple"}"#),
        (
            "call:f{a:+1,b:.5,c:1.,d:01,e:0x1F,f:NaN,g:1_000,h:-}",
            r#"{"a":"+1","b":".5","c":"1.","d":"01","e":"0x1F","f":"NaN","g":"1_000","h":"-"}"#,
        ),
        (
            "call:f{a:True,b:False,c:None,d:TRUE,e:nullable}",
            r#"{"a":true,"b":false,"c":null,"d":"TRUE","e":"nullable"}"#,
        ),
        ("call:f{a:don't,b:it's ok,c:'tis}", r#"{"a":"don't","b":"it's ok","c":"'tis"}"#),
        ("call:f{a:say \"hi\" now,b:6\"}", r#"{"a":"say \"hi\" now","b":"6\""}"#),
        ("call:f{a:g(1, 2),b:x[0]}", r#"{"a":"g(1, 2)","b":"x[0]"}"#),
        ("call:f{url:https://x.org/a?b=c&d=e,b:1}", r#"{"url":"https://x.org/a?b=c&d=e","b":1}"#),
        ("call:f{a:,b:}", r#"{"a":"","b":""}"#),
        // Quotes of others.
        ("call:f{a:\"x\",b:'y'}", r#"{"a":"x","b":"y"}"#),
        ("call:f{a:\"007\",b:'true'}", r#"{"a":"007","b":"true"}"#),
        ("call:f{\"a\":1,'b':2,<|\"|>c<|\"|>:3}", r#"{"a":1,"b":2,"c":3}"#),
        ("call:f{a:\"l\\n\\t\\\"q\\\" \\u00e9 \\ud83e\\udd80 \\\\ \\/\"}", r#"{"a":"l\n\t\"q\" é 🦀 \\ /"}"#),
        ("call:f{a:\"C:\\Work\\x \\ud83e \\u12\"}", r#"{"a":"C:\\Work\\x \\ud83e \\u12"}"#),
        ("call:f{a:'don\\'t',b:'it is',c:'say \"hi\"'}", r#"{"a":"don't","b":"it is","c":"say \"hi\""}"#),
        ("call:f{a:'don't, please',b:1}", r#"{"a":"don't, please","b":1}"#),
        ("call:f{filename:'a, b.pdf'}", r#"{"filename":"a, b.pdf"}"#),
        ("call:f{a:\"\",b:''}", r#"{"a":"","b":""}"#),
        // Other signs.
        ("call:f(a:1)", r#"{"a":1}"#),
        ("call:f(command:<|\"|>ls -a<|\"|>)", r#"{"command":"ls -a"}"#),
        ("call:f(a=1, b='x', c=g(1))", r#"{"a":1,"b":"x","c":"g(1)"}"#),
        ("call:f({\"a\": 1})", r#"{"a":1}"#),
        ("call:f{save_as='report.docx'}", r#"{"save_as":"report.docx"}"#),
        ("call:f{a:1,b=2,c:{d=3}}", r#"{"a":1,"b":2,"c":{"d":3}}"#),
        ("call:f{the key:1,naïve_ключ:2}", r#"{"the key":1,"naïve_ключ":2}"#),
        // Spaces and commas.
        ("call:f { a : 1 , b : [ 1 , 2 ] , c : { d : <|\"|> x <|\"|> } } ", r#"{"a":1,"b":[1,2],"c":{"d":" x "}}"#),
        ("\ncall:f{\n  a: 1,\n  b: two,\n}\n", r#"{"a":1,"b":"two"}"#),
        ("call:f{a:1,,b:[1,2,],}", r#"{"a":1,"b":[1,2]}"#),
        (
            "call:f{a:<|\"|>x<|\"|>b:<|\"|>y<|\"|>c:1 d:true\ne:[1 2 3]f:{g:1 h:2}i:\"x\" j:'y' k:z}",
            r#"{"a":"x","b":"y","c":1,"d":true,"e":[1,2,3],"f":{"g":1,"h":2},"i":"x","j":"y","k":"z"}"#,
        ),
        // What is missing at the end.
        ("call:f{a:1", r#"{"a":1}"#),
        ("call:f{a:[1,{b:2", r#"{"a":[1,{"b":2}]}"#),
        ("call:f{a:[1,2}", r#"{"a":[1,2]}"#),
        ("call:f{a:{b:[{c:1]},d:2}", r#"{"a":{"b":[{"c":1}]},"d":2}"#),
        ("call:f(a:1", r#"{"a":1}"#),
        ("call:f{a:<|\"|>x}", r#"{"a":"x"}"#),
        ("call:f{a:[{b:<|\"|>x} }]}", r#"{"a":[{"b":"x} "}]}"#),
        ("call:f{a:[1,{b:2)", r#"{"a":[1,{"b":2}]}"#),
        ("call:f(a:1}", r#"{"a":1}"#),
        ("call:f{a:x)", r#"{"a":"x"}"#),
        ("call:f{a:[x)", r#"{"a":["x"]}"#),
        ("call:f{a:New York<|\"|>,b:42<|\"|>}", r#"{"a":"New York","b":"42"}"#),
        // What is no container is a text.
        ("call:f{a:{ return x; },b:[link](url)}", r#"{"a":"{ return x; }","b":"[link](url)"}"#),
        // A bracket that closes nothing is a character.
        (
            "call:f{cmd:rm -r build :), dry_run:true, why:a] b}",
            r#"{"cmd":"rm -r build :)","dry_run":true,"why":"a] b"}"#,
        ),
        ("call:f(a: x}, b: y])", r#"{"a":"x}","b":"y]"}"#),
        ("call:f{a: :)}", r#"{"a":":)"}"#),
        // The name.
        ("Call:f{a:1}", r#"{"a":1}"#),
        ("call:call:f{a:1}", r#"{"a":1}"#),
        ("f{a:1}", r#"{"a":1}"#),
        (":f{a:1}", r#"{"a":1}"#),
        ("call f{a:1}", r#"{"a":1}"#),
        ("call : f{a:1}", r#"{"a":1}"#),
        ("call:-f:{a:1}", r#"{"a":1}"#),
        ("- f (a:1)", r#"{"a":1}"#),
        ("call:\"f\"{a:1}", r#"{"a":1}"#),
        ("call:<|\"|>f<|\"|>{a:1}", r#"{"a":1}"#),
        ("call:f", "{}"),
        (" call: f \n", "{}"),
        // JSON.
        (r#"{"name": "f", "arguments": {"a": [1, "x"]}}"#, r#"{"a":[1,"x"]}"#),
        (r#"call:{"parameters": {"a": 1.50}, "name": "f"}"#, r#"{"a":1.50}"#),
        (r#"{"name": "f", "arguments": "{\"a\": 1}"}"#, r#"{"a":1}"#),
        (r#"{"name": "f"}"#, "{}"),
        (r#"{"type": "function", "id": "call_1", "function": {"name": "f", "arguments": "{}"}}"#, "{}"),
        (r#"{"function": {"name": "f", "arguments": {"a": 1}}}"#, r#"{"a":1}"#),
        (r#"{"id": null, "type": "function", "name": "f", "parameters": {"a": 1}}"#, r#"{"a":1}"#),
        (r#"[{"name": "f", "arguments": {"a": 1}}]"#, r#"{"a":1}"#),
        (r#"{'name': 'f', 'arguments': {'a': True}}"#, r#"{"a":true}"#),
    ] {
        expect(&format!("<|tool_call>{body}<tool_call|>"), "", "", &[&format!("f{arguments}")]);
    }
}

#[test]
fn containers_mix_their_ways_of_quoting() {
    for (body, arguments) in [
        (r#"{refs:["ds_1"]}"#, r#"{"refs":["ds_1"]}"#),
        (r#"{refs:['ds_1']}"#, r#"{"refs":["ds_1"]}"#),
        (r#"{refs:[ds_1]}"#, r#"{"refs":["ds_1"]}"#),
        (r#"{refs:[<|"|>ds_1<|"|>, "ds_2", 'ds_3', ds_4]}"#, r#"{"refs":["ds_1","ds_2","ds_3","ds_4"]}"#),
        (r#"{opts:{"mode": "fast"}}"#, r#"{"opts":{"mode":"fast"}}"#),
        (r#"{opts:{'mode': 'fast', "n": 2}}"#, r#"{"opts":{"mode":"fast","n":2}}"#),
        (r#"{opts: {mode: fast, 'n' : None}}"#, r#"{"opts":{"mode":"fast","n":null}}"#),
        (r#"{opts:{<|"|>mode<|"|>:<|"|>fast<|"|>}}"#, r#"{"opts":{"mode":"fast"}}"#),
        (r#"{a:[{"b": [1, "2"]}, {c:['3', <|"|>4<|"|>]}]}"#, r#"{"a":[{"b":[1,"2"]},{"c":["3","4"]}]}"#),
        (r#"{a:["x, y", 'z]', <|"|>}"<|"|>]}"#, r#"{"a":["x, y","z]","}\""]}"#),
        (r#"{a:["x" "y"],b:['it's' 'ok']}"#, r#"{"a":["x","y"],"b":["it's","ok"]}"#),
        (r#"{"a" : {"b" = [true , False , "None"]}}"#, r#"{"a":{"b":[true,false,"None"]}}"#),
        (r#"{a:{b:{}},c:[{}],d:[[]],e:["",'',<|"|><|"|>]}"#, r#"{"a":{"b":{}},"c":[{}],"d":[[]],"e":["","",""]}"#),
        ("{a:[\n  \"x\",\n  {\n    \"k\": 'v'\n  },\n]\n}", r#"{"a":["x",{"k":"v"}]}"#),
    ] {
        expect(&format!("<|tool_call>call:f{body}<tool_call|>"), "", "", &[&format!("f{arguments}")]);
    }
}

#[test]
fn what_is_no_call_comes_back_as_it_was_written() {
    for body in [
        "",
        " \n",
        "call:",
        "call",
        "hello",
        "Let me see what the weather is.",
        "hello {world}",
        "call:{}",
        "{}",
        "{a:1}",
        r#"{"arguments": {"a": 1}}"#,
        r#"{"name": 1, "arguments": {}}"#,
        r#"{"name": "f", "arguments": [1]}"#,
        r#"{"name": "f", "arguments": "no JSON"}"#,
        r#"{"name": "f", "arguments": {}, "why": "so"}"#,
        r#"{"name": "f(x)", "arguments": {}}"#,
        r#"{"function": {"name": "f"}, "arguments": {}}"#,
        r#"[{"name": "f"}, 1]"#,
        "[]",
        // The arguments go on behind their bracket.
        "call:f{a:1}, b:2}",
        "call:f{cmd:<|\"|>x<|\"|>},dry_run:true}",
        "call:f{a:1), b:2",
        "call:f{a}",
        "call:f(x)",
        "call:f{:1}",
        "call:f{a:1,<|\"|>x}",
        "call:f{a:<|\"|>x<|\"|> y}",
        "call:f{<|channel>thought\nx<channel|>:1}",
        "call:f and more",
        "call:f<a>1</a>",
        "call:f[1]",
        "<|turn>model",
        "???",
        "call:\"f{}",
    ] {
        let whole = format!("<|tool_call>{body}<tool_call|>");
        expect(&whole, &whole, "", &[]);
        let open = format!("x<|tool_call>{body}");
        let (before, after) = ("<|tool_call>call:ok{}<tool_call|>", "<|tool_call>call:good{n:1}<tool_call|>");
        expect(&open, &open, "", &[]);
        expect(&[before, &whole, after].concat(), &whole, "", &["ok{}", "good{\"n\":1}"]);
        // It is text even within a thought.
        expect(&format!("<|channel>thought\na{whole}b<channel|>c"), &format!("{whole}c"), "ab", &[]);
    }
}

#[test]
fn calls_follow_one_another() {
    for (input, text, calls) in [
        (
            "<|tool_call>call:a{}<tool_call|><|tool_call>call:b{}<tool_call|><|tool_call>call:a{n:1}<tool_call|>",
            "",
            &["a{}", "b{}", "a{\"n\":1}"][..],
        ),
        ("<|tool_call>call:a{}<|tool_call>call:b{}<|tool_call>call:c{}", "", &["a{}", "b{}", "c{}"]),
        (
            "<|tool_call>call:a{}call:b{x:1}\ncall:c{}, call:d(y=2)<tool_call|>",
            "",
            &["a{}", "b{\"x\":1}", "c{}", "d{\"y\":2}"],
        ),
        ("<|tool_call>call:a\ncall:b{}<tool_call|>", "", &["a{}", "b{}"]),
        ("<|tool_call>call:a{n:1,call:b{n:2}<tool_call|>", "", &["a{\"n\":1}", "b{\"n\":2}"]),
        ("<|tool_call>{\"name\": \"a\"}\n{\"name\": \"b\"}, {\"name\": \"c\"}<tool_call|>", "", &["a{}", "b{}", "c{}"]),
        ("<|tool_call>[{\"name\": \"a\"}, {\"name\": \"b\"}]<tool_call|>", "", &["a{}", "b{}"]),
        (
            "<|tool_call>call:terminal(command:<|\"|>ls -a<|\"|>)<tool_call|><|tool_call>call:ok{}<tool_call|>",
            "",
            &["terminal{\"command\":\"ls -a\"}", "ok{}"],
        ),
        ("Two:<|tool_call>call:a{}<tool_call|>\n<|tool_call>call:b{}<tool_call|>.", "Two:\n.", &["a{}", "b{}"]),
        // What is behind the last bracket goes on as reply.
        ("<|tool_call>call:a{} and more<tool_call|>.", " and more.", &["a{}"]),
        ("<|tool_call>call:a{n:1}}<tool_call|>", "}", &["a{\"n\":1}"]),
        ("<|tool_call>call:a{}call:b{x<tool_call|>", "call:b{x", &["a{}"]),
        (
            "<|tool_call>call:a{}\nI called it.<|channel>thought\nplan<channel|>Yes<|tool_call>call:b{}",
            "\nI called it.Yes",
            &["a{}", "b{}"],
        ),
        ("<|tool_call>call:a{}<|turn>model\n<|tool_call>call:b{}<tool_call|>", "model\n", &["a{}", "b{}"]),
        ("<|tool_call>call:a{}<|tool_response>response:a{}<tool_response|>x", "response:a{}x", &["a{}"]),
        ("<|tool_call>call:a{}<turn|>x", "x", &["a{}"]),
    ] {
        let thought = if input.contains("plan") { "plan" } else { "" };
        expect(input, text, thought, calls);
    }
}

#[test]
fn a_marker_within_a_string_is_part_of_it_if_the_grammar_says_so() {
    for (input, text, calls) in [
        ("<|tool_call>call:f{a:<|\"|>x<tool_call|>y<|\"|>}<tool_call|>z", "z", &[r#"f{"a":"x<tool_call|>y"}"#][..]),
        (
            "<|tool_call>call:f{a:<|\"|><|tool_call>call:g{}<tool_call|><turn|><|\"|>,b:1}<tool_call|>",
            "",
            &[r#"f{"a":"<|tool_call>call:g{}<tool_call|><turn|>","b":1}"#],
        ),
        ("<|tool_call>call:f{a:<|\"|><|tool_response><|\"|>}<tool_call|>", "", &[r#"f{"a":"<|tool_response>"}"#]),
        (
            "<|tool_call>call:f{a:<|\"|><|channel>thought\nx<channel|><|image|><|\"|>}<tool_call|>",
            "",
            &[r#"f{"a":"<|channel>thought\nx<channel|><|image|>"}"#],
        ),
        // The string was left open, and the call ended at the marker.
        ("<|tool_call>call:f{a:<|\"|>x}<tool_call|>Done.", "Done.", &[r#"f{"a":"x"}"#]),
        ("<|tool_call>call:f{a:<|\"|>x}<tool_call|>He said <|\"|>no.", "He said no.", &[r#"f{"a":"x"}"#]),
        ("<|tool_call>call:f{a:<|\"|>x<tool_call|>y<|\"|>}z<tool_call|>", "y}z", &[r#"f{"a":"x"}"#]),
        // Its own end marker is missing.
        ("<|tool_call>call:f{a:<|\"|>x<tool_call|>y<|\"|>}", "", &[r#"f{"a":"x<tool_call|>y"}"#]),
        (
            "<|tool_call>call:f{a:<|\"|>x<tool_call|>y<|\"|>}<|tool_call>call:g{}<tool_call|>",
            "",
            &[r#"f{"a":"x<tool_call|>y"}"#, "g{}"],
        ),
        (
            "<|tool_call>call: f {a: 1, b: <|\"|>x<tool_call|>y<|\"|> }\n<tool_call|>",
            "",
            &[r#"f{"a":1,"b":"x<tool_call|>y"}"#],
        ),
        (
            "<|tool_call>call:f{a:<|\"|>x<tool_call|><|tool_call>call:g{b:<|\"|>y<|\"|>}<tool_call|>",
            "",
            &[r#"f{"a":"x"}"#, r#"g{"b":"y"}"#],
        ),
        (
            "<|tool_call>call:f{a:<|\"|>x<|tool_call>call:g{b:<|\"|>y<|\"|>}<tool_call|>",
            "",
            &[r#"f{"a":"x"}"#, r#"g{"b":"y"}"#],
        ),
        // Where the grammar did not hold before, the first marker counts.
        ("<|tool_call>call:f{a=1,b:<|\"|>x<tool_call|>y<|\"|>}<tool_call|>", "y}", &[r#"f{"a":1,"b":"x"}"#]),
    ] {
        expect(input, text, "", calls);
    }
}

#[test]
fn a_delimiter_delimits_however_it_is_spelled() {
    let open = ids("<|tool_call>");
    let close = ids("<tool_call|>");
    for body in ["call:f{a:<|\"|>x } \"y\" <|<|\"|>,b:[<|\"|><|\"|>]}", "call:f(<|\"|>a<|\"|> = <|\"|>x<|\"|>)"] {
        let whole = [open.clone(), ids(body), close.clone()].concat();
        let ordinary = [open.clone(), plain(body), close.clone()].concat();
        assert_ne!(whole, ordinary);
        let reply = |ids: &[u32]| play(ReplyOptions::default(), ids).reply;
        assert_eq!(reply(&whole).calls.len(), 1);
        assert_eq!(reply(&whole), reply(&ordinary), "{body}");
    }
    let mixed = [ids("<|tool_call>call:f{a:<|\"|>"), plain("x<tool_call|><|\"|>}"), close].concat();
    expect_ids(&ReplyOptions::default(), &mixed, "", "", &[r#"f{"a":"x<tool_call|>"}"#]);
}

#[test]
fn a_call_comes_when_it_ends() {
    let input = ids("<|tool_call>call:f{a:1}<tool_call|>x");
    let played = play(ReplyOptions::default(), &input);
    let first = played.deltas.iter().position(|deltas| !deltas.is_empty()).unwrap();
    assert_eq!(tokenizer().decode(&input[first..=first], ControlText::Show), "<tool_call|>");
}

#[test]
fn a_token_may_be_half_of_the_call_and_half_of_the_text() {
    let tokenizer = changed_tokenizer(|json| {
        let vocabulary = json["model"]["vocab"].as_object_mut().unwrap();
        let id = vocabulary.remove("<unused5>").unwrap();
        vocabulary.insert("}.▁So".into(), id);
    });
    let all = [ids("<|tool_call>call:f{a:1"), vec![5], ids(" it is.<tool_call|>x")].concat();
    let reply = Reply::parse(Arc::new(tokenizer.unwrap()), ReplyOptions::default(), &all).unwrap();
    assert_eq!((reply.text.as_str(), spelled(&reply)), (". So it is.x", vec![r#"f{"a":1}"#.to_owned()]));
}

#[test]
fn a_string_without_its_end_goes_to_the_end_of_the_call() {
    let ended = ReplyOptions { stop_ids: vec![106], ..ReplyOptions::default() };
    for (body, arguments) in [
        ("{a:<|\"|>fn main() {}", r#"{"a":"fn main() {"}"#),
        ("{a:[{b:<|\"|>x}", r#"{"a":[{"b":"x}"}]}"#),
        ("{a:<|\"|>x", r#"{"a":"x"}"#),
    ] {
        let input = ids(&format!("<|tool_call>call:f{body}<tool_call|><turn|>"));
        expect_ids(&ended, &input, "", "", &[&format!("f{arguments}")]);
    }
}

/// Half a command is another command: what the end of the reply cut off is text.
#[test]
fn a_call_that_is_cut_off_is_text() {
    for cut in [
        "<|tool_call>call:f{a:<|\"|>rm -rf /",
        "<|tool_call>call:f{a:<|\"|>rm -rf /tmp/x<|\"|>",
        "<|tool_call>call:f{a:[1,2",
        "<|tool_call>call:f{a:{b:1}",
        "<|tool_call>call:f(a:1",
        "<|tool_call>call:f({a:1}",
        "<|tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}",
        "<|tool_call>call:f",
        "<|tool_call>",
        // A string was open that closes nowhere, or at a marker that may be part of it.
        "<|tool_call>call:f{cmd: \"rm -rf {x}",
        "<|tool_call>call:f{cmd: \"rm -rf ${DIR}\" && echo 'a}",
        "<|tool_call>call:f{a:[\"x}]}",
        "<|tool_call>call:f{a:<|\"|>rm -rf /<tool_call|> x",
        "<|tool_call>call:f{a:[<|\"|>rm -rf /}<tool_call|> x",
        "<|tool_call>call:f{a:<|\"|>rm -rf {x}",
        // A wrong bracket at a cut.
        "<|tool_call>call:f{a:x)",
    ] {
        expect(cut, cut, "", &[]);
    }
    // The calls before it are whole, and so is one of which the end marker alone is missing.
    expect("<|tool_call>call:f{a:1}call:g{b:<|\"|>x", "call:g{b:x", "", &["f{\"a\":1}"]);
    expect("<|tool_call>call:f{a:1}", "", "", &["f{\"a\":1}"]);
    // The model's own end is no cut.
    let ended = ReplyOptions { stop_ids: vec![106], ..ReplyOptions::default() };
    let reply = play(ended, &ids("<|tool_call>call:f{a:[1,2<turn|>")).reply;
    assert_eq!(spelled(&reply), ["f{\"a\":[1,2]}"]);
}

#[test]
fn nesting_is_bounded() {
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let call = |value: &str| format!("<|tool_call>call:f{{a:{value}}}<tool_call|>");
    let deepest = nested(100);
    expect(&call(&deepest), "", "", &[&format!("f{{\"a\":{deepest}}}")]);
    // What is deeper is a text.
    let deeper = format!("{}\"[]\"{}", "[".repeat(100), "]".repeat(100));
    expect(&call(&nested(101)), "", "", &[&format!("f{{\"a\":{deeper}}}")]);
}

#[test]
fn calls_that_the_official_template_wrote_come_back() {
    let golden = golden("renders.json");
    let mut num_calls = 0;
    for render in golden["renders"].as_array().unwrap() {
        let messages = golden["conversations"][render["name"].as_str().unwrap()].as_array().unwrap();
        let wanted: Vec<&Value> = messages.iter().filter_map(|m| m["tool_calls"].as_array()).flatten().collect();
        // Names of control tokens cannot be told from the tokens once they are written.
        if wanted.iter().any(|call| call.to_string().contains("<turn|>")) {
            continue;
        }
        let reply = play(ReplyOptions::default(), &ids(render["text"].as_str().unwrap())).reply;
        assert_eq!(reply.calls.len(), wanted.len(), "{render}");
        for (call, wanted) in reply.calls.iter().zip(wanted) {
            // As floats: Python wrote `1e-05`.
            let arguments: Value = serde_json::from_str(&Json::Object(call.arguments.clone()).to_string()).unwrap();
            assert_eq!(call.name, wanted["function"]["name"], "{render}");
            assert_eq!(arguments, wanted["function"]["arguments"], "{render}");
        }
        num_calls += reply.calls.len();
    }
    assert!(num_calls > 50, "{num_calls}");
}
