//! The small files beside the weights.

use checkpoint::QuantFormat;
use serde_json::{Map, Value, json};

use crate::error::SynthError;
use crate::tokenizer::tokenizer_json;
use crate::write::Recipe;

/// The template of the demo model, which is of the E2B kind.
const TEMPLATE: &str = include_str!("../../../models/nano-e-4bit/chat_template.jinja");

/// Models without per-layer inputs were taught to begin an answer without thinking by an empty thought.
const EMPTY_THOUGHT: &str = "
{#- The larger models begin an answer without thinking by an empty thought. -#}
{%- if add_generation_prompt and not state.ends and not thinking -%}
  {{- '<|channel>thought\\n<channel|>' -}}
{%- endif -%}
";

/// Names and contents. `stated` are the modules that are not in the recipe's own format.
pub(crate) fn files(
    recipe: &Recipe,
    stated: &[(String, QuantFormat)],
) -> Result<Vec<(&'static str, Vec<u8>)>, SynthError> {
    let pretty = |value: Value| format!("{value:#}\n").into_bytes();
    let text = |field: &str| recipe.config.get("text_config").and_then(|text| text.get(field));
    let id = |field: &str, usual: u64| text(field).and_then(Value::as_u64).unwrap_or(usual);
    let generation = json!({
        "bos_token_id": id("bos_token_id", 2),
        "do_sample": true,
        "eos_token_id": [1, 106, 50],
        "pad_token_id": id("pad_token_id", 0),
        "temperature": 1.0,
        "top_k": 64,
        "top_p": 0.95,
    });
    let per_layer = text("hidden_size_per_layer_input").and_then(Value::as_u64).unwrap_or(0) > 0;
    let template = if per_layer { TEMPLATE.to_owned() } else { format!("{}{EMPTY_THOUGHT}", TEMPLATE.trim_end()) };
    Ok(vec![
        ("generation_config.json", pretty(generation)),
        ("tokenizer.json", tokenizer_json(&recipe.config)?.into_bytes()),
        ("tokenizer_config.json", pretty(tokenizer_config())),
        ("chat_template.jinja", template.into_bytes()),
        ("config.json", pretty(Value::Object(config(recipe, stated)))),
    ])
}

/// The configuration with its quantization block, under both of the keys that mlx-vlm writes.
fn config(recipe: &Recipe, stated: &[(String, QuantFormat)]) -> Map<String, Value> {
    let mut config = recipe.config.clone();
    let Some(format) = recipe.quant else { return config };
    let mut block = Map::new();
    for (key, value) in statement(format) {
        block.insert(key.to_owned(), value);
    }
    for (module, own) in stated {
        // mlx-vlm leaves the mode out, and means affine then.
        let same_mode = own.mode() == "affine" && format.mode() == "affine";
        let fields = statement(*own).into_iter().filter(|(key, _)| *key != "mode" || !same_mode);
        block.insert(module.clone(), Value::Object(fields.map(|(key, value)| (key.to_owned(), value)).collect()));
    }
    config.insert("quantization".to_owned(), Value::Object(block.clone()));
    config.insert("quantization_config".to_owned(), Value::Object(block));
    config
}

fn statement(format: QuantFormat) -> [(&'static str, Value); 3] {
    [("group_size", json!(format.group_size())), ("bits", json!(format.bits())), ("mode", json!(format.mode()))]
}

fn tokenizer_config() -> Value {
    json!({
        "audio_token": "<|audio|>",
        "backend": "tokenizers",
        "boa_token": "<|audio>",
        "boi_token": "<|image>",
        "bos_token": "<bos>",
        "eoa_token": "<audio|>",
        "eoc_token": "<channel|>",
        "eoi_token": "<image|>",
        "eos_token": "<eos>",
        "eot_token": "<turn|>",
        "escape_token": "<|\"|>",
        "etc_token": "<tool_call|>",
        "etd_token": "<tool|>",
        "etr_token": "<tool_response|>",
        "extra_special_tokens": ["<|video|>"],
        "image_token": "<|image|>",
        "mask_token": "<mask>",
        "pad_token": "<pad>",
        "padding_side": "left",
        "processor_class": "Gemma4Processor",
        "soc_token": "<|channel>",
        "sot_token": "<|turn>",
        "stc_token": "<|tool_call>",
        "std_token": "<|tool>",
        "str_token": "<|tool_response>",
        "think_token": "<|think|>",
        "tokenizer_class": "GemmaTokenizer",
        "unk_token": "<unk>",
    })
}
