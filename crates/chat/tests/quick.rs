use markbase_chat::*;
use std::sync::Arc;
#[test]
fn quick() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/models/nano-e-4bit/");
    let read = |n: &str| std::fs::read(format!("{dir}{n}")).unwrap();
    let config: Map = serde_json::from_slice(&read("tokenizer_config.json")).unwrap();
    let t = Arc::new(Tokenizer::new(&read("tokenizer.json"), &config).unwrap());
    let template = ChatTemplate::new(Some(&String::from_utf8(read("chat_template.jinja")).unwrap()), &config).unwrap();
    let messages = [Message::text("user", "Hi <|turn> there 🦀"), Message::text("assistant", "<|channel>thought\nx<channel|>Yes <turn|>"), Message::text("user", "ok")];
    let p = template.prompt(&t, &messages, &ChatOptions::default()).unwrap();
    println!("{:?}", p);
    println!("{}", t.decode(&p.ids, ControlText::Hide));
}
