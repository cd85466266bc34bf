//! The five sizes of Gemma 4, as `config.json` states them.

use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value, json};

/// A size of Gemma 4. Parses from and prints as `e2b`, `e4b`, `12b`, `26b-a4b`, `31b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Size {
    /// Per-layer inputs, a tail of layers that share the cache, twice as wide there.
    E2b,
    /// Per-layer inputs, a tail of layers that share the cache.
    E4b,
    /// The unified model: dense, values equal keys on full layers.
    B12,
    /// 128 experts, of which a token visits 8.
    A4b26,
    /// Dense, values equal keys on full layers.
    B31,
}

impl Size {
    /// All sizes, smallest first.
    pub const ALL: [Size; 5] = [Size::E2b, Size::E4b, Size::B12, Size::A4b26, Size::B31];

    /// The name that it parses from.
    pub fn name(self) -> &'static str {
        match self {
            Size::E2b => "e2b",
            Size::E4b => "e4b",
            Size::B12 => "12b",
            Size::A4b26 => "26b-a4b",
            Size::B31 => "31b",
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no size of Gemma 4; say e2b, e4b, 12b, 26b-a4b or 31b")]
pub struct UnknownSize(String);

impl FromStr for Size {
    type Err = UnknownSize;

    fn from_str(name: &str) -> Result<Size, UnknownSize> {
        Size::ALL.into_iter().find(|size| size.name() == name).ok_or_else(|| UnknownSize(name.to_owned()))
    }
}

/// The whole `config.json` of a size, without quantization, which [`write`](crate::write) adds, and
/// without towers for images and sound: `audio_config` is null and `vision_config` absent, which is
/// what both transformers and mlx-vlm read as text alone.
pub fn config(size: Size) -> Map<String, Value> {
    let text = match size {
        Size::E2b => Text {
            per_layer: 256,
            shared: 20,
            doubled: true,
            ..Text::small(1536, 6144, Layers { count: 35, period: 5 }, Heads { query: 8, sliding: 1, full: None })
        },
        Size::E4b => Text {
            per_layer: 256,
            shared: 18,
            ..Text::small(2560, 10240, Layers { count: 42, period: 6 }, Heads { query: 8, sliding: 2, full: None })
        },
        Size::B12 => {
            Text::large(3840, 15360, Layers { count: 48, period: 6 }, Heads { query: 16, sliding: 8, full: Some(1) })
        }
        Size::A4b26 => Text {
            experts: Some(Experts { count: 128, visited: 8, intermediate: 704 }),
            ..Text::large(2816, 2112, Layers { count: 30, period: 6 }, Heads { query: 16, sliding: 8, full: Some(2) })
        },
        Size::B31 => {
            Text::large(5376, 21504, Layers { count: 60, period: 6 }, Heads { query: 32, sliding: 16, full: Some(4) })
        }
    };
    text.config(size == Size::B12)
}

/// What tells one Gemma 4 from another.
pub(crate) struct Text {
    pub hidden: usize,
    pub intermediate: usize,
    pub layers: Layers,
    pub heads: Heads,
    pub head_dim: usize,
    pub global_head_dim: usize,
    pub window: usize,
    pub context: usize,
    pub vocabulary: usize,
    /// Columns of per-layer inputs; 0 for none.
    pub per_layer: usize,
    /// Layers at the end that share the cache of earlier ones.
    pub shared: usize,
    /// Whether those are twice as wide.
    pub doubled: bool,
    pub experts: Option<Experts>,
}

/// Every `period`-th layer sees everything.
pub(crate) struct Layers {
    pub count: usize,
    pub period: usize,
}

pub(crate) struct Heads {
    pub query: usize,
    pub sliding: usize,
    /// Of full layers, whose values are then their keys; `None` where they are as the sliding ones.
    pub full: Option<usize>,
}

pub(crate) struct Experts {
    pub count: usize,
    pub visited: usize,
    pub intermediate: usize,
}

/// A vocabulary that has Gemma 4's ids of media tokens.
const WHOLE_VOCABULARY: usize = 262_144;

impl Text {
    fn small(hidden: usize, intermediate: usize, layers: Layers, heads: Heads) -> Text {
        Text { window: 512, context: 131_072, ..Text::large(hidden, intermediate, layers, heads) }
    }

    fn large(hidden: usize, intermediate: usize, layers: Layers, heads: Heads) -> Text {
        Text {
            hidden,
            intermediate,
            layers,
            heads,
            head_dim: 256,
            global_head_dim: 512,
            window: 1024,
            context: 262_144,
            vocabulary: WHOLE_VOCABULARY,
            per_layer: 0,
            shared: 0,
            doubled: false,
            experts: None,
        }
    }

    pub fn config(&self, unified: bool) -> Map<String, Value> {
        let family = if unified { "gemma4_unified" } else { "gemma4" };
        let architecture =
            if unified { "Gemma4UnifiedForConditionalGeneration" } else { "Gemma4ForConditionalGeneration" };
        // The ids of media tokens end Gemma's vocabulary, 258880 to 258884; smaller ones end with them.
        let media = if self.vocabulary == WHOLE_VOCABULARY { 258_880 } else { self.vocabulary - 5 };
        let (boi, boa) = if self.vocabulary == WHOLE_VOCABULARY { (255_999, 256_000) } else { (media - 2, media - 1) };
        let config = json!({
            "architectures": [architecture],
            "audio_config": null,
            "audio_token_id": media + 1,
            "boa_token_id": boa,
            "boi_token_id": boi,
            "dtype": "bfloat16",
            "eoa_token_id": media + 3,
            "eoa_token_index": media + 3,
            "eoi_token_id": media + 2,
            "eos_token_id": [1, 106],
            "image_token_id": media,
            "initializer_range": 0.02,
            "model_type": family,
            "text_config": self.text_config(&format!("{family}_text")),
            "tie_word_embeddings": true,
            "transformers_version": "5.10.0",
            "video_token_id": media + 4,
            "vision_soft_tokens_per_image": 280,
        });
        object(config)
    }

    fn text_config(&self, model_type: &str) -> Value {
        let kinds: Vec<&str> = (1..=self.layers.count)
            .map(|layer| match layer.is_multiple_of(self.layers.period) || layer == self.layers.count {
                true => "full_attention",
                false => "sliding_attention",
            })
            .collect();
        json!({
            "attention_bias": false,
            "attention_dropout": 0.0,
            "attention_k_eq_v": self.heads.full.is_some(),
            "bos_token_id": 2,
            "dtype": "bfloat16",
            "enable_moe_block": self.experts.is_some(),
            "eos_token_id": 1,
            "final_logit_softcapping": 30.0,
            "global_head_dim": self.global_head_dim,
            "head_dim": self.head_dim,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": self.hidden,
            "hidden_size_per_layer_input": self.per_layer,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate,
            "layer_types": kinds,
            "max_position_embeddings": self.context,
            "model_type": model_type,
            "moe_intermediate_size": self.experts.as_ref().map(|experts| experts.intermediate),
            "num_attention_heads": self.heads.query,
            "num_experts": self.experts.as_ref().map(|experts| experts.count),
            "num_global_key_value_heads": self.heads.full,
            "num_hidden_layers": self.layers.count,
            "num_key_value_heads": self.heads.sliding,
            "num_kv_shared_layers": self.shared,
            "pad_token_id": 0,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "full_attention": {
                    "partial_rotary_factor": 0.25,
                    "rope_theta": 1_000_000.0,
                    "rope_type": "proportional"
                },
                "sliding_attention": {"rope_theta": 10_000.0, "rope_type": "default"}
            },
            "sliding_window": self.window,
            "tie_word_embeddings": true,
            "top_k_experts": self.experts.as_ref().map(|experts| experts.visited),
            "use_bidirectional_attention": if self.heads.full.is_some() { Some("vision") } else { None },
            "use_cache": true,
            "use_double_wide_mlp": self.doubled,
            "vocab_size": self.vocabulary,
            "vocab_size_per_layer_input": self.vocabulary,
        })
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        other => unreachable!("{other} is written as an object"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_print_and_parse() {
        for size in Size::ALL {
            assert_eq!(size.to_string().parse(), Ok(size));
        }
        let error = "27b".parse::<Size>().unwrap_err().to_string();
        assert_eq!(error, "\"27b\" is no size of Gemma 4; say e2b, e4b, 12b, 26b-a4b or 31b");
    }

    #[test]
    fn full_layers_come_at_every_period_and_last() {
        let full = |size| {
            let config = config(size);
            let kinds = config["text_config"]["layer_types"].as_array().unwrap().clone();
            kinds.iter().filter(|kind| **kind == "full_attention").count()
        };
        assert_eq!(Size::ALL.map(full), [7, 7, 8, 5, 10]);
    }
}
