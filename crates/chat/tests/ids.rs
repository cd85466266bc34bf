//! Ten thousand texts have the ids of Hugging Face's tokenizers; `make_ids.py` makes the goldens.

mod common;

use common::{golden, model_map, shared_file, tokenizer};
use markbase_chat::{Map, Specials, Tokenizer};
use serde_json::Value;

/// SplitMix64.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

/// Pieces of several kinds, each several times or once; the empty kind is any character.
fn text(numbers: &mut Numbers, kinds: &[Vec<String>]) -> String {
    let mut made = String::new();
    for _ in 0..2 + numbers.below(8) {
        let kind = &kinds[numbers.below(kinds.len())];
        let piece = if kind.is_empty() {
            let code = numbers.below(0x11_0000 - 0x800);
            let code = if code < 0xd800 { code } else { code + 0x800 };
            char::from_u32(code as u32).unwrap().to_string()
        } else {
            kind[numbers.below(kind.len())].clone()
        };
        let times = if numbers.below(16) > 0 { 1 } else { 2 + numbers.below(30) };
        made.push_str(&piece.repeat(times));
        if numbers.below(2) > 0 {
            made.push(' ');
        }
    }
    made
}

fn assert_ids(name: &str, tokenizer: &Tokenizer) {
    let golden = golden("ids.json");
    let number = |key: &str| golden[key].as_u64().unwrap();
    let kinds: Vec<Vec<String>> = serde_json::from_value(golden["kinds"].clone()).unwrap();
    let mut numbers = Numbers(number("seed"));
    let texts: Vec<String> = (0..number("count")).map(|_| text(&mut numbers, &kinds)).collect();
    assert_eq!(texts.len(), 10_000);

    let hashes: &Value = &golden["hashes"][name];
    let hashes = hashes.as_str().unwrap().as_bytes().chunks(16);
    let blocks = texts.chunks(number("block") as usize);
    assert_eq!(hashes.len(), blocks.len());
    for (block, hash) in blocks.zip(hashes) {
        let mut state = 0xcbf2_9ce4_8422_2325_u64;
        for text in block {
            for specials in [Specials::Parse, Specials::AsText] {
                let ids = tokenizer.encode(text, specials).unwrap_or_else(|error| panic!("{error}: {text:?}"));
                let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
                for byte in ids.join(",").bytes().chain([b';']) {
                    state = (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
                }
            }
        }
        assert_eq!(format!("{state:016x}").as_bytes(), hash, "{name}: among {block:#?}");
    }
}

#[test]
fn texts_have_the_ids_of_tokenizers() {
    assert_ids("nano-e-4bit", &tokenizer());
}

#[test]
fn texts_have_the_ids_of_tokenizers_in_another_vocabulary() {
    let Some(json) = shared_file("models/nano-unified/tokenizer.json") else { return };
    let config: Map = model_map("tokenizer_config.json");
    assert_ids("nano-unified", &Tokenizer::new(json.as_bytes(), &config).unwrap());
}
