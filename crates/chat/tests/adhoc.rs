//! x
mod common;
use markbase_chat::*;
use serde_json::{Value, json};
fn paths(v: &Value, p: Vec<String>, out: &mut Vec<Vec<String>>) {
    out.push(p.clone());
    match v {
        Value::Object(m) => for (k, x) in m.iter().take(40) { let mut q = p.clone(); q.push(k.clone()); paths(x, q, out) },
        Value::Array(a) => for (i, x) in a.iter().enumerate().take(12) { let mut q = p.clone(); q.push(i.to_string()); paths(x, q, out) },
        _ => {}
    }
}
#[test]
fn adhoc() {
    let base: Value = serde_json::from_slice(&common::model_file("tokenizer.json")).unwrap();
    let mut small = base.clone();
    let keep = 700;
    let v: serde_json::Map<String, Value> = small["model"]["vocab"].as_object().unwrap().clone().into_iter().filter(|(k, x)| x.as_u64().unwrap() < keep || k.starts_with("<|") || k.ends_with("|>")).collect();
    let merges: Vec<Value> = small["model"]["merges"].as_array().unwrap().iter().filter(|m| { let (a, b) = (m[0].as_str().unwrap(), m[1].as_str().unwrap()); v.contains_key(a) && v.contains_key(b) && v.contains_key(&format!("{a}{b}")) }).cloned().collect();
    small["model"]["vocab"] = Value::Object(v); small["model"]["merges"] = json!(merges);
    let cfg = common::model_map("tokenizer_config.json");
    let mut ps = vec![]; paths(&small, vec![], &mut ps);
    let vals = [json!(null), json!(0), json!(-1), json!(1e30), json!(4294967295u64), json!(""), json!("<0x"), json!("é"), json!([]), json!({}), json!([1]), json!(["a","b"]), json!(true), json!({"type":"Replace","pattern":{"Regex":"("},"content":""}), json!({"type":"Replace","pattern":{"Regex":"(a*)*b"},"content":""}), json!({"type":"Replace","pattern":{"String":""},"content":"x"}), json!({"type":"Split","pattern":{"Regex":""},"behavior":"Isolated","invert":false}), json!({"type":"Precompiled","precompiled_charsmap":"AAAA"}), json!({"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}), json!({"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":{}}), json!({"type":"Unigram","unk_id":5,"vocab":[["a",1.0]]}), json!({"type":"Unigram","unk_id":null,"vocab":[]}), json!({"type":"WordLevel","vocab":{},"unk_token":"x"}), json!({"direction":"Right","max_length":0,"strategy":"LongestFirst","stride":5}), json!({"type":"Truncate"})];
    std::panic::set_hook(Box::new(|_| {}));
    let (mut n, mut ok, mut panics) = (0, 0, std::collections::BTreeMap::new());
    for p in &ps {
        for val in &vals {
            let mut j = small.clone();
            let mut at = &mut j;
            for k in p { at = match at { Value::Object(m) => m.get_mut(k).unwrap(), Value::Array(a) => &mut a[k.parse::<usize>().unwrap()], _ => unreachable!() }; }
            *at = val.clone();
            n += 1;
            let text = j.to_string();
            let r = std::panic::catch_unwind(|| {
                let t = Tokenizer::new(text.as_bytes(), &cfg)?;
                for s in ["Hello there\n\n 🦀 <|turn>x<turn|> é", "", " ", "\u{0}a▁b"] {
                    for m in [Specials::Parse, Specials::AsText] { let _ = t.encode(s, m)?; }
                }
                let t = std::sync::Arc::new(t);
                t.decode(&(0..t.vocab_size() as u32).collect::<Vec<_>>(), ControlText::Show);
                Ok::<_, Error>(())
            });
            match r { Ok(Ok(())) => ok += 1, Ok(Err(_)) => {}, Err(e) => { let m = e.downcast_ref::<String>().cloned().or(e.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default(); *panics.entry(format!("{m:.120}")).or_insert((0, format!("{p:?} {val}"))) = (1, format!("{p:?} {val}")); } }
        }
    }
    println!("{n} ok {ok}");
    for (m, x) in panics { println!("PANIC {m} {x:?}"); }
}
