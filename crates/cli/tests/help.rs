//! What a stranger reads first.

mod common;

use common::succeeds;

#[test]
fn help_texts() {
    let mut text = succeeds(&["--help"]);
    for command in ["run", "chat", "render", "parse", "logits", "plan", "inspect", "synth", "bench", "check"] {
        text.push_str(&format!("\n=== markbase {command} --help\n\n{}", succeeds(&[command, "--help"])));
    }
    insta::assert_snapshot!(text);
}
