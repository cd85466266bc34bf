//! Spoiled checkpoints and arguments: one sentence that names the thing, exit code 1, soon.

mod common;

use std::fs;
use std::path::Path;

use common::{copy_of_model, fails};

/// Spoils a copy of the model and runs it.
fn spoiled(spoil: impl FnOnce(&Path)) -> String {
    let place = tempfile::tempdir().unwrap();
    let folder = copy_of_model(place.path());
    spoil(&folder);
    let sentence = fails(&["run", "--model", folder.to_str().unwrap(), "Hello"]);
    sentence.replace(place.path().to_str().unwrap(), "PLACE")
}

fn weights(folder: &Path) -> Vec<u8> {
    fs::read(folder.join("model.safetensors")).unwrap()
}

fn write_weights(folder: &Path, bytes: &[u8]) {
    fs::write(folder.join("model.safetensors"), bytes).unwrap();
}

fn edit(folder: &Path, file: &str, from: &str, to: &str) {
    let text = fs::read_to_string(folder.join(file)).unwrap();
    assert!(text.contains(from), "{file} has no {from}");
    fs::write(folder.join(file), text.replacen(from, to, 1)).unwrap();
}

#[test]
fn spoiled_weights_are_named() {
    let mut sentences = vec![];
    let mut case = |name: &str, spoil: &dyn Fn(&Path)| sentences.push(format!("{name}: {}", spoiled(spoil)));
    case("cut short", &|folder| write_weights(folder, &weights(folder)[..100_000]));
    case("cut inside the header", &|folder| write_weights(folder, &weights(folder)[..50]));
    case("empty", &|folder| write_weights(folder, b""));
    case("header of 2^64-1 bytes", &|folder| {
        let mut bytes = weights(folder);
        bytes[..8].fill(0xff);
        write_weights(folder, &bytes);
    });
    case("header that is not JSON", &|folder| {
        let mut bytes = weights(folder);
        bytes[8] = b'[';
        write_weights(folder, &bytes);
    });
    case("bytes after the last tensor", &|folder| {
        let mut bytes = weights(folder);
        bytes.extend([0; 8]);
        write_weights(folder, &bytes);
    });
    case("not there", &|folder| fs::remove_file(folder.join("model.safetensors")).unwrap());
    case("a pointer of Git LFS", &|folder| {
        write_weights(folder, b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n");
    });
    case("shards that are not there", &|folder| {
        fs::remove_file(folder.join("model.safetensors")).unwrap();
        let index =
            r#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
        fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
    });
    insta::assert_snapshot!(sentences.join("\n"));
}

#[test]
fn spoiled_configurations_are_named() {
    let mut sentences = vec![];
    let mut case = |name: &str, spoil: &dyn Fn(&Path)| sentences.push(format!("{name}: {}", spoiled(spoil)));
    case("no config", &|folder| fs::remove_file(folder.join("config.json")).unwrap());
    case("config of bad JSON", &|folder| fs::write(folder.join("config.json"), "{\"model_type\": ").unwrap());
    case("config that is a list", &|folder| fs::write(folder.join("config.json"), "[]").unwrap());
    case("config nested without end", &|folder| {
        fs::write(folder.join("config.json"), "[".repeat(1_000_000)).unwrap();
    });
    case("another family", &|folder| edit(folder, "config.json", "\"gemma4\"", "\"llama\""));
    case("a mode that is not read", &|folder| edit(folder, "config.json", "\"affine\"", "\"hqq\""));
    case("other bits than the file", &|folder| edit(folder, "config.json", "\"bits\": 4", "\"bits\": 8"));
    case("another size", &|folder| edit(folder, "config.json", "\"hidden_size\": 192", "\"hidden_size\": 256"));
    case("no tokenizer", &|folder| fs::remove_file(folder.join("tokenizer.json")).unwrap());
    case("tokenizer of bad JSON", &|folder| fs::write(folder.join("tokenizer.json"), "{}").unwrap());
    case("template that fails", &|folder| {
        fs::write(folder.join("chat_template.jinja"), "{{ raise_exception('no such thing') }}").unwrap();
    });
    case("template that never ends", &|folder| {
        let endless = "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}";
        fs::write(folder.join("chat_template.jinja"), endless).unwrap();
    });
    case("stop ids that are none", &|folder| edit(folder, "generation_config.json", "106", "\"x\""));
    insta::assert_snapshot!(sentences.join("\n"));
}

#[test]
fn wrong_arguments_are_named() {
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = place.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let out = place.path().join("out.safetensors");
    let out = out.to_str().unwrap();
    let logits = |tokens: &str, more: &[&str]| fails(&[&["logits", "--tokens", tokens, "--out", out], more].concat());
    let three = file("three.json", "[2, 5, 9]");
    let sentences = [
        fails(&["run", "--model", "/no/such/folder", "Hi"]),
        fails(&["run", "--model", &three, "Hi"]),
        logits(&place.path().join("absent.json").to_string_lossy(), &[]),
        logits(&file("empty.json", "[]"), &[]),
        logits(&file("text.json", "hello"), &[]),
        logits(&file("object.json", "{}"), &[]),
        logits(&file("words.json", "[1, \"two\"]"), &[]),
        logits(&file("negative.json", "[-1]"), &[]),
        logits(&file("large.json", "[1, 3072]"), &[]),
        logits(&three, &["--rows", "2..4"]),
        logits(&three, &["--backend", "reference", "--threads", "2"]),
        fails(&["plan", "--rows", "1", "--wanted", "2"]),
        fails(&["bench", "--prompt-tokens", "0", "--generate", "0"]),
        fails(&["bench", "--prompt-tokens", "900000"]),
    ];
    let text = sentences.join("\n").replace(place.path().to_str().unwrap(), "PLACE");
    insta::assert_snapshot!(text);
    assert!(!Path::new(out).exists(), "a command that fails writes nothing under the final name");
}
