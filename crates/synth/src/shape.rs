//! The sizes of a text model, read from its `config.json` with bounds, so that what follows can
//! multiply them.

use serde_json::{Map, Value};

use crate::error::SynthError;

/// Sizes of the text model.
#[derive(Debug)]
pub(crate) struct Shape {
    pub hidden: usize,
    pub vocabulary: usize,
    pub heads: usize,
    pub layers: Vec<Layer>,
    pub per_layer: Option<PerLayer>,
    pub experts: Option<Experts>,
    /// Whether the embedding is the head as well.
    pub tied: bool,
}

#[derive(Debug)]
pub(crate) struct Layer {
    pub head_dim: usize,
    pub intermediate: usize,
    /// `None` where the layer reads another one's cache.
    pub keys: Option<Keys>,
}

#[derive(Debug)]
pub(crate) struct Keys {
    pub heads: usize,
    /// Whether the values are the keys.
    pub are_values: bool,
}

#[derive(Debug)]
pub(crate) struct PerLayer {
    pub columns: usize,
    pub vocabulary: usize,
}

#[derive(Debug)]
pub(crate) struct Experts {
    pub count: usize,
    pub intermediate: usize,
}

const MOST_LAYERS: usize = 1_000;
// Far above every Gemma, and low enough that the bytes of all layers together are below 2^64.
const MOST_COLUMNS: usize = 1 << 18;
const MOST_TOKENS: usize = 1 << 22;
const MOST_HEADS: usize = 1 << 12;
const MOST_EXPERTS: usize = 1 << 12;

impl Shape {
    /// Reads `text_config`. Every field that is not wanted by all models may be absent or null.
    pub fn read(config: &Map<String, Value>) -> Result<Shape, SynthError> {
        let text = match config.get("text_config") {
            Some(Value::Object(text)) => Fields(text),
            Some(_) => return Err(wrong("text_config", "not an object".to_owned())),
            None => return Err(wrong("text_config", "absent, wanted an object".to_owned())),
        };
        let num_layers = text.count("num_hidden_layers", MOST_LAYERS)?;
        let kinds = text.kinds(num_layers)?;
        let shared = text.number("num_kv_shared_layers", MOST_LAYERS)?.unwrap_or(0);
        if shared >= num_layers {
            let reason = format!("{shared} of {num_layers} layers, wanted fewer than all");
            return Err(wrong("text_config.num_kv_shared_layers", reason));
        }
        let head_dim = text.count("head_dim", MOST_COLUMNS)?;
        let global_head_dim = text.count("global_head_dim", MOST_COLUMNS)?;
        let kv_heads = text.count("num_key_value_heads", MOST_HEADS)?;
        let are_values = text.flag("attention_k_eq_v")?;
        let full_kv_heads = text.number("num_global_key_value_heads", MOST_HEADS)?.filter(|_| are_values);
        let intermediate = text.count("intermediate_size", MOST_COLUMNS)?;
        let doubled = text.flag("use_double_wide_mlp")?;
        let layer = |(index, kind): (usize, &Kind)| {
            let full = *kind == Kind::Full;
            let shares = index >= num_layers - shared;
            let heads = if full { full_kv_heads.unwrap_or(kv_heads) } else { kv_heads };
            Layer {
                head_dim: if full { global_head_dim } else { head_dim },
                intermediate: if doubled && shares { 2 * intermediate } else { intermediate },
                keys: if shares { None } else { Some(Keys { heads, are_values: full && are_values }) },
            }
        };
        let columns = text.number("hidden_size_per_layer_input", MOST_COLUMNS)?.unwrap_or(0);
        let vocabulary = text.count("vocab_size", MOST_TOKENS)?;
        let per_layer = match columns {
            0 => None,
            _ => Some(PerLayer { columns, vocabulary: text.count("vocab_size_per_layer_input", MOST_TOKENS)? }),
        };
        let experts = match text.flag("enable_moe_block")? {
            false => None,
            true => Some(Experts {
                count: text.count("num_experts", MOST_EXPERTS)?,
                intermediate: text.count("moe_intermediate_size", MOST_COLUMNS)?,
            }),
        };
        Ok(Shape {
            hidden: text.count("hidden_size", MOST_COLUMNS)?,
            vocabulary,
            heads: text.count("num_attention_heads", MOST_HEADS)?,
            layers: kinds.iter().enumerate().map(layer).collect(),
            per_layer,
            experts,
            tied: config.get("tie_word_embeddings").is_none_or(|tied| *tied != Value::Bool(false)),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sliding,
    Full,
}

/// The fields of `text_config`.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a Map<String, Value>);

impl Fields<'_> {
    /// A number from 1 to `most`.
    fn count(self, field: &str, most: usize) -> Result<usize, SynthError> {
        match self.number(field, most)? {
            Some(number) if number > 0 => Ok(number),
            Some(_) => Err(wrong(&format!("text_config.{field}"), "0, wanted at least 1".to_owned())),
            None => Err(wrong(&format!("text_config.{field}"), "absent, wanted a number".to_owned())),
        }
    }

    /// A number from 0 to `most`; `None` if absent or null.
    fn number(self, field: &str, most: usize) -> Result<Option<usize>, SynthError> {
        match self.0.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64().and_then(|number| usize::try_from(number).ok()) {
                Some(number) if number <= most => Ok(Some(number)),
                _ => {
                    let reason = format!("not a whole number from 0 to {most}");
                    Err(wrong(&format!("text_config.{field}"), reason))
                }
            },
        }
    }

    fn flag(self, field: &str) -> Result<bool, SynthError> {
        match self.0.get(field) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(wrong(&format!("text_config.{field}"), "not true or false".to_owned())),
        }
    }

    fn kinds(self, num_layers: usize) -> Result<Vec<Kind>, SynthError> {
        let field = "text_config.layer_types";
        let Some(Value::Array(listed)) = self.0.get("layer_types") else {
            return Err(wrong(field, "not a list".to_owned()));
        };
        if listed.len() != num_layers {
            return Err(wrong(field, format!("{} entries, wanted one for each of {num_layers} layers", listed.len())));
        }
        let kind = |value: &Value| match value.as_str() {
            Some("sliding_attention") => Ok(Kind::Sliding),
            Some("full_attention") => Ok(Kind::Full),
            _ => Err(wrong(field, "wanted sliding_attention or full_attention in each entry".to_owned())),
        };
        let mut kinds = listed.iter().map(kind).collect::<Result<Vec<Kind>, _>>()?;
        // The rule of transformers: whatever the list says, the last layer sees everything.
        kinds[num_layers - 1] = Kind::Full;
        Ok(kinds)
    }
}

fn wrong(field: &str, reason: String) -> SynthError {
    SynthError::Config { field: field.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Size, config};

    #[test]
    fn keys_are_absent_on_sharing_layers_and_are_the_values_on_full_ones() {
        let shape = Shape::read(&config(Size::E2b)).unwrap();
        assert_eq!(shape.layers.iter().filter(|layer| layer.keys.is_none()).count(), 20);
        assert_eq!([14, 15].map(|layer| shape.layers[layer].intermediate), [6144, 12288]);
        let shape = Shape::read(&config(Size::B31)).unwrap();
        let keys = |layer: usize| shape.layers[layer].keys.as_ref().map(|keys| (keys.heads, keys.are_values));
        assert_eq!([keys(4), keys(5)], [Some((16, false)), Some((4, true))]);
    }

    #[test]
    fn a_wrong_field_is_named() {
        let refusal = |field: &str, value: Value| {
            let mut config = config(Size::E2b);
            config["text_config"][field] = value;
            Shape::read(&config).unwrap_err().to_string()
        };
        assert_eq!(
            refusal("hidden_size", json!(-1)),
            "config: text_config.hidden_size: not a whole number from 0 to 262144"
        );
        assert_eq!(refusal("head_dim", Value::Null), "config: text_config.head_dim: absent, wanted a number");
        assert_eq!(
            refusal("num_kv_shared_layers", json!(35)),
            "config: text_config.num_kv_shared_layers: 35 of 35 layers, wanted fewer than all"
        );
        assert_eq!(
            refusal("layer_types", json!(["full_attention"])),
            "config: text_config.layer_types: 1 entries, wanted one for each of 35 layers"
        );
    }
}
