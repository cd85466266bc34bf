//! A `tokenizer.json` of Gemma's structure with exactly as many tokens as the model has rows: control
//! tokens at their ids, bytes, characters, some English words, and unused tokens for the rest.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value, json};

use crate::error::SynthError;

/// Control tokens at the ids that all models have.
const CONTROL: [(u32, &str); 17] = [
    (0, "<pad>"),
    (1, "<eos>"),
    (2, "<bos>"),
    (3, "<unk>"),
    (4, "<mask>"),
    (46, "<|tool>"),
    (47, "<tool|>"),
    (48, "<|tool_call>"),
    (49, "<tool_call|>"),
    (50, "<|tool_response>"),
    (51, "<tool_response|>"),
    (52, "<|\"|>"),
    (98, "<|think|>"),
    (100, "<|channel>"),
    (101, "<channel|>"),
    (105, "<|turn>"),
    (106, "<turn|>"),
];

/// Control tokens whose ids config.json tells.
const MEDIA: [(&str, &str); 7] = [
    ("boi_token_id", "<|image>"),
    ("boa_token_id", "<|audio>"),
    ("image_token_id", "<|image|>"),
    ("audio_token_id", "<|audio|>"),
    ("eoi_token_id", "<image|>"),
    ("eoa_token_index", "<audio|>"),
    ("video_token_id", "<|video|>"),
];

/// The first id of ordinary tokens: runs of line ends.
const FIRST_ORDINARY: u32 = 107;
const LONGEST_RUN: usize = 31;

/// Characters that have a token where there is room, most wanted first. ASCII comes before them.
const CHARACTERS: [(char, char); 14] = [
    ('\u{a1}', '\u{17f}'),      // Latin
    ('\u{2013}', '\u{2026}'),   // dashes, quotes, dots
    ('\u{391}', '\u{3c9}'),     // Greek
    ('\u{400}', '\u{45f}'),     // Cyrillic
    ('\u{5d0}', '\u{5ea}'),     // Hebrew
    ('\u{620}', '\u{64a}'),     // Arabic
    ('\u{900}', '\u{97f}'),     // Devanagari
    ('\u{e01}', '\u{e5b}'),     // Thai
    ('\u{2190}', '\u{22ff}'),   // arrows, mathematics
    ('\u{3001}', '\u{30ff}'),   // Japanese
    ('\u{1f300}', '\u{1f64f}'), // pictures
    ('\u{4e00}', '\u{9fff}'),   // Chinese
    ('\u{ac00}', '\u{d7a3}'),   // Korean
    ('\u{ff01}', '\u{ff5e}'),   // wide forms
];

/// Words that have a token of their own after a space, in the order of their wants.
const WORDS: &str = "the of and to in is that it for was on are as with his they be at one have this from or had by \
    not but what all were when we there can an your which their said if do will each about how up out them then she \
    many some so these would other into has more her two like him see time could no make than first been its who now \
    people my made over did down only way find use may water long little very after words called just where most know \
    get through back much before go good new write our used me man too any day same right look think also around \
    another came come work three word must because does part even place well such here take why things help put years \
    different away again off went old number great tell men say small every found still between name should home big \
    give air line set own under read last never us left end along while might next sound below saw something thought \
    both few those always looked show large often together asked house world going want school important until form \
    food keep children feet land side without boy once animals life enough took sometimes four head above kind began \
    almost live page got earth need far hand high year mother light parts country father let night following picture \
    being study second eyes soon times story boys since white days ever paper hard near sentence better best across \
    during today others however sure means knew try told young miles sun ways thing whole hear example heard several \
    change answer room sea against top turned learn point city play toward five using himself usually money seen car \
    morning given order red door become turn model weather question tool";

/// Parts of words that have a token without a space before them, first those that join first.
const PARTS: &str = "in er on an re at en or es th st ti al it ed te ar is ou ng ion ing ent tion and the ver all ly \
    ll ss ch sh The He Th Wh It In I'm 's 't un de con com pro able ment ness ful est ity ous ive";

const SPACE: char = '▁';

/// The whole file for a model of this configuration. It loads in the crate `tokenizers` and encodes
/// any text.
pub fn tokenizer_json(config: &Map<String, Value>) -> Result<String, SynthError> {
    let size = config.get("text_config").and_then(|text| text.get("vocab_size")).and_then(Value::as_u64);
    let size = size.and_then(|size| usize::try_from(size).ok()).unwrap_or(0);
    let control = control_tokens(config, size)?;
    let mut vocabulary = Vocabulary::new(size, &control);
    vocabulary.add_runs('\n', 1);
    vocabulary.add_runs(SPACE, 2);
    for byte in 0..=255u8 {
        vocabulary.add(format!("<0x{byte:02X}>"));
    }
    for ascii in ('!'..='~').chain([SPACE]) {
        vocabulary.add(ascii.to_string());
    }
    if vocabulary.is_full() {
        return Err(SynthError::Vocabulary { found: size, wanted: vocabulary.next as usize + MEDIA.len() });
    }
    // A small vocabulary keeps most of its room for words.
    for (first, last) in CHARACTERS {
        let count = (first..=last).count();
        if count * 4 <= vocabulary.room() {
            (first..=last).for_each(|character| vocabulary.add(character.to_string()));
        }
    }
    // Words join before their parts would, but leave some room for these.
    let kept = vocabulary.room() / 4;
    for word in WORDS.split_whitespace() {
        vocabulary.add_word(&format!("{SPACE}{word}"), kept);
    }
    for part in PARTS.split_whitespace() {
        vocabulary.add_word(part, MEDIA.len());
    }
    Ok(vocabulary.json(&control))
}

/// Control tokens by id, all of them inside the vocabulary and none twice.
fn control_tokens(config: &Map<String, Value>, size: usize) -> Result<BTreeMap<u32, &'static str>, SynthError> {
    let mut control: BTreeMap<u32, &str> = CONTROL.into_iter().collect();
    for (field, content) in MEDIA {
        let wrong = |reason| SynthError::Config { field: field.to_owned(), reason };
        let Some(value) = config.get(field).filter(|value| !value.is_null()) else { continue };
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        let id = id.filter(|id| (FIRST_ORDINARY..).contains(id) && (*id as usize) < size);
        let Some(id) = id else {
            return Err(wrong(format!("{value}, wanted an id from {FIRST_ORDINARY} to below {size} tokens")));
        };
        if let Some(other) = control.insert(id, content) {
            return Err(wrong(format!("{id} is the id of {other} already")));
        }
    }
    Ok(control)
}

/// Tokens as they are added, up to the size of the vocabulary.
struct Vocabulary {
    size: usize,
    /// The spelling of each id; `None` until it has one.
    spellings: Vec<Option<String>>,
    ids: HashMap<String, u32>,
    /// Pairs that join, first those that join first.
    merges: Vec<(String, String)>,
    next: u32,
}

impl Vocabulary {
    fn new(size: usize, control: &BTreeMap<u32, &str>) -> Vocabulary {
        let mut spellings = vec![None; size];
        for (id, content) in control {
            // Below the first ordinary id and beyond a vocabulary too small for anything.
            if let Some(spelling) = spellings.get_mut(*id as usize) {
                *spelling = Some((*content).to_owned());
            }
        }
        let mut vocabulary =
            Vocabulary { size, spellings, ids: HashMap::new(), merges: Vec::new(), next: FIRST_ORDINARY };
        vocabulary.skip_taken();
        vocabulary
    }

    fn is_full(&self) -> bool {
        self.next as usize >= self.size
    }

    /// Free ids, but for the control tokens among them.
    fn room(&self) -> usize {
        self.size.saturating_sub(self.next as usize)
    }

    fn skip_taken(&mut self) {
        while self.spellings.get(self.next as usize).is_some_and(Option::is_some) {
            self.next += 1;
        }
    }

    /// Gives the spelling the next id. Counts on beyond a full vocabulary.
    fn add(&mut self, spelling: String) {
        if self.ids.contains_key(&spelling) {
            return;
        }
        self.ids.insert(spelling.clone(), self.next);
        if let Some(place) = self.spellings.get_mut(self.next as usize) {
            *place = Some(spelling);
        }
        self.next += 1;
        self.skip_taken();
    }

    /// Runs of a character from `shortest` on, and all pairs that join to them.
    fn add_runs(&mut self, character: char, shortest: usize) {
        let run = |length: usize| character.to_string().repeat(length);
        for length in shortest..=LONGEST_RUN {
            self.add(run(length));
        }
        for length in 2..=LONGEST_RUN {
            // Halves before unequal parts: they join a long run in few steps.
            for shorter in (1..=length / 2).rev() {
                self.merges.push((run(shorter), run(length - shorter)));
                if shorter != length - shorter {
                    self.merges.push((run(length - shorter), run(shorter)));
                }
            }
        }
    }

    /// A word and its beginnings, which join letter by letter; nothing if that would leave fewer than
    /// `kept` free ids.
    fn add_word(&mut self, word: &str, kept: usize) {
        let ends: Vec<usize> = word.char_indices().map(|(start, letter)| start + letter.len_utf8()).collect();
        let new: Vec<(usize, usize)> = ends
            .windows(2)
            .map(|pair| (pair[0], pair[1]))
            .filter(|(_, end)| !self.ids.contains_key(&word[..*end]))
            .collect();
        if new.len() + kept > self.room() {
            return;
        }
        for (start, end) in new {
            self.add(word[..end].to_owned());
            self.merges.push((word[..start].to_owned(), word[start..end].to_owned()));
        }
    }

    /// The file, token by token: as a tree of JSON values it would take ten times the memory.
    fn json(self, control: &BTreeMap<u32, &str>) -> String {
        let added: Vec<Value> = control
            .iter()
            .map(|(id, content)| {
                json!({
                    "id": id,
                    "content": content,
                    "single_word": false,
                    "lstrip": false,
                    "rstrip": false,
                    "normalized": false,
                    "special": true,
                })
            })
            .collect();
        let frame = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"String": " "},
                "behavior": "MergedWithPrevious",
                "invert": false
            },
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {}
            },
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"}
                ]
            },
        });
        let mut text = frame.to_string();
        assert_eq!(text.pop(), Some('}'), "an object, to be continued");
        text += r#","model":{"type":"BPE","dropout":null,"unk_token":"<unk>","continuing_subword_prefix":null,"#;
        text += r#""end_of_word_suffix":null,"fuse_unk":true,"byte_fallback":true,"ignore_merges":false,"vocab":{"#;
        for (id, spelling) in self.spellings.iter().enumerate() {
            let comma = if id == 0 { "" } else { "," };
            match spelling {
                Some(spelling) => text += &format!("{comma}{}:{id}", json!(spelling)),
                None => text += &format!("{comma}\"<unused{id}>\":{id}"),
            }
        }
        text += "},\"merges\":[";
        for (index, (first, second)) in self.merges.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            text += &format!("{comma}[{},{}]", json!(first), json!(second));
        }
        text += "]}}\n";
        text
    }
}
