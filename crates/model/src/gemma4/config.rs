//! Gemma 4's `config.json`, as transformers and mlx-vlm write it, read once into a form that cannot be
//! wrong. A field that changes the result and is not supported refuses to load, by name.

use plan::Rope;
use serde_json::{Map, Value};

use crate::ModelError;
use crate::json::{Object, short};

/// The text model of a Gemma 4 checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Gemma4Config {
    /// Numbers a residual row.
    pub hidden: usize,
    /// Entries of the vocabulary.
    pub vocabulary: usize,
    /// Decoder layers, in order.
    pub layers: Vec<LayerConfig>,
    /// A row of a sliding layer sees itself and the `window - 1` keys before it.
    pub window: usize,
    /// Query heads of every layer.
    pub heads: usize,
    /// Added to the mean of squares in norms.
    pub eps: f32,
    /// `cap * tanh(x / cap)` of the logits.
    pub softcap: Option<f32>,
    /// Per-layer inputs, where the model has them.
    pub per_layer: Option<PerLayerInput>,
    /// Experts, where the model has them.
    pub moe: Option<Moe>,
    /// The head is the embedding table.
    pub tied: bool,
    /// The most positions.
    pub context: usize,
    /// The id of padding.
    pub pad: u32,
    /// The id that begins a text.
    pub bos: Option<u32>,
}

/// The two kinds of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttentionKind {
    /// Within the window.
    Sliding,
    /// The whole sequence.
    Full,
}

/// One decoder layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerConfig {
    /// What it sees.
    pub kind: AttentionKind,
    /// Numbers a head.
    pub head_dim: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Frequencies of its positions.
    pub rope: Rope,
    /// Values are the raw key projection.
    pub k_is_v: bool,
    /// The layer whose cache it reads instead of keeping one.
    pub shares: Option<usize>,
    /// Columns of gate and up.
    pub intermediate: usize,
}

/// Per-layer inputs: a second table whose rows are split over the layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerLayerInput {
    /// Numbers a layer.
    pub columns: usize,
    /// Entries of the table.
    pub vocabulary: usize,
}

/// Experts beside the dense feed-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moe {
    /// Experts of a layer.
    pub experts: usize,
    /// Experts a row.
    pub top_k: usize,
    /// Columns of an expert's gate and up.
    pub intermediate: usize,
}

/// Fields that say nothing about the result of a forward step.
const WITHOUT_EFFECT: &[&str] = &[
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "eos_token_id",
    "exact_speculative_verify",
    "id2label",
    "initializer_range",
    "is_encoder_decoder",
    "label2id",
    "max_position_embeddings",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "problem_type",
    "return_dict",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    // Only beside a text model that stands alone at the top level.
    "quantization",
    "quantization_config",
];

/// Fields that are read below.
const READ: &[&str] = &[
    "attention_bias",
    "attention_k_eq_v",
    "enable_moe_block",
    "expert_intermediate_size",
    "final_logit_softcapping",
    "global_head_dim",
    "head_dim",
    "hidden_activation",
    "hidden_size",
    "hidden_size_per_layer_input",
    "intermediate_size",
    "layer_types",
    "moe_intermediate_size",
    "num_attention_heads",
    "num_experts",
    "num_global_key_value_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_kv_shared_layers",
    "per_layer_config",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_traditional",
    "sliding_window",
    "sliding_window_pattern",
    "tie_word_embeddings",
    "top_k_experts",
    "use_bidirectional_attention",
    "use_double_wide_mlp",
    "use_second_mlp_block",
    "vocab_size",
    "vocab_size_per_layer_input",
];

/// Far above every Gemma, and low enough that sizes multiply without overflow.
const MOST_LAYERS: usize = 1_000;
const MOST_COLUMNS: usize = 1 << 20;
const MOST_TOKENS: usize = 1 << 24;

impl Gemma4Config {
    /// Reads the whole config.json; the text model is its `text_config`, or the file itself where a text
    /// model stands alone. Returns named warnings beside it.
    pub fn read(root: &Map<String, Value>) -> Result<(Self, Vec<String>), ModelError> {
        let top = Object::new(root, "");
        let nested = top.object("text_config")?;
        let text = match nested {
            Some(map) => Object::new(map, "text_config"),
            None if top.text("model_type")?.is_some_and(|name| name.ends_with("_text")) => top,
            None => return Err(top.error("text_config", "not there, wanted an object")),
        };
        let warnings = refuse_unsupported(text)?;

        let num_layers = text.count("num_hidden_layers", Some(30), MOST_LAYERS)?;
        let hidden = text.count("hidden_size", Some(2304), MOST_COLUMNS)?;
        let vocabulary = text.count("vocab_size", Some(262_144), MOST_TOKENS)?;
        let kinds = layer_kinds(text, num_layers)?;
        let shared = text.natural("num_kv_shared_layers", MOST_LAYERS)?.unwrap_or(0);
        if shared >= num_layers {
            return Err(text.error(
                "num_kv_shared_layers",
                format!("{shared} of {num_layers} layers, so no layer keeps keys: a drafting model, which does not run alone"),
            ));
        }
        let geometry = Geometry::read(text, num_layers)?;
        let unified = top.text("model_type")?.unwrap_or("").starts_with("gemma4_unified");
        // Where a file leaves a field out, transformers' default of its own model type holds.
        let (window, context) = if unified { (1024, 262_144) } else { (512, 131_072) };
        let wide = text.flag("use_double_wide_mlp", false)?;
        let intermediate = text.count("intermediate_size", Some(9216), MOST_COLUMNS)?;
        let first_shared = num_layers - shared;
        let mut layers = Vec::with_capacity(num_layers);
        for (layer, &kind) in kinds.iter().enumerate() {
            let shares = match layer < first_shared {
                true => None,
                false => Some(kinds[..first_shared].iter().rposition(|&other| other == kind).ok_or_else(|| {
                    text.error("layer_types", format!("layer {layer} shares a cache, but no layer of its type has one"))
                })?),
            };
            let (head_dim, kv_heads) = geometry.of_layer(text, layer, kind)?;
            layers.push(LayerConfig {
                kind,
                head_dim,
                kv_heads,
                rope: geometry.rope(text, kind, head_dim)?,
                k_is_v: geometry.k_is_v && kind == AttentionKind::Full,
                shares,
                intermediate: if wide && shares.is_some() { 2 * intermediate } else { intermediate },
            });
        }
        let config = Gemma4Config {
            hidden,
            vocabulary,
            layers,
            window: text.count("sliding_window", Some(window), MOST_TOKENS)?,
            heads: geometry.heads,
            eps: eps(text)?,
            softcap: text.positive("final_logit_softcapping")?.map(|cap| cap as f32),
            per_layer: per_layer(text, unified, vocabulary)?,
            moe: moe(text)?,
            tied: top.flag("tie_word_embeddings", true)? && text.flag("tie_word_embeddings", true)?,
            context: text.count("max_position_embeddings", Some(context), MOST_TOKENS)?,
            pad: text.natural("pad_token_id", vocabulary - 1)?.unwrap_or(0) as u32,
            bos: bos(text, vocabulary),
        };
        Ok((config, warnings))
    }
}

fn eps(text: Object) -> Result<f32, ModelError> {
    let eps = text.positive("rms_norm_eps")?.unwrap_or(1e-6);
    match eps <= 1.0 {
        true => Ok(eps as f32),
        false => Err(text.error("rms_norm_eps", format!("{eps}, wanted at most 1"))),
    }
}

/// A list or a number; what does not name one token of the vocabulary is no bos.
fn bos(text: Object, vocabulary: usize) -> Option<u32> {
    text.get("bos_token_id").and_then(Value::as_u64).filter(|&id| id < vocabulary as u64).map(|id| id as u32)
}

fn refuse_unsupported(text: Object) -> Result<Vec<String>, ModelError> {
    match text.text("hidden_activation")?.unwrap_or("gelu_pytorch_tanh") {
        "gelu_pytorch_tanh" => {}
        other => {
            return Err(text.error("hidden_activation", format!("{other:?} is not supported, gelu_pytorch_tanh is")));
        }
    }
    for field in ["attention_bias", "rope_traditional", "use_second_mlp_block"] {
        if text.flag(field, false)? {
            return Err(text.error(field, "true is not supported"));
        }
    }
    if text.get("rope_scaling").is_some() {
        return Err(text.error("rope_scaling", "not supported; Gemma 4 has rope_parameters"));
    }
    match text.text("use_bidirectional_attention")? {
        None | Some("vision") => {}
        Some(other) => {
            return Err(text
                .error("use_bidirectional_attention", format!("{other:?} is not supported, null and \"vision\" are")));
        }
    }
    // Fields of other models of the family, which would change the result.
    for field in [
        "activation_sparsity_pattern",
        "altup_num_inputs",
        "attn_logit_softcapping",
        "embedding_multiplier",
        "laurel_rank",
        "logit_scale",
        "logits_scaling",
        "query_pre_attn_scalar",
        "residual_multiplier",
    ] {
        if let Some(value) = text.get(field) {
            return Err(text.error(field, format!("{} is not supported; Gemma 4 has no such field", short(value))));
        }
    }
    let unknown = text.map.iter().filter(|(field, value)| {
        !value.is_null() && !READ.contains(&field.as_str()) && !WITHOUT_EFFECT.contains(&field.as_str())
    });
    Ok(unknown
        .map(|(field, value)| {
            format!("config.json: {} = {} is not known and was not applied", text.path(field), short(value))
        })
        .collect())
}

fn layer_kinds(text: Object, num_layers: usize) -> Result<Vec<AttentionKind>, ModelError> {
    let mut kinds = match text.get("layer_types") {
        None => {
            let pattern = text.count("sliding_window_pattern", Some(6), MOST_LAYERS)?;
            let kind = |layer: usize| match (layer + 1).is_multiple_of(pattern) {
                true => AttentionKind::Full,
                false => AttentionKind::Sliding,
            };
            (0..num_layers).map(kind).collect()
        }
        Some(Value::Array(types)) => {
            let mut kinds = Vec::with_capacity(types.len().min(MOST_LAYERS));
            for value in types.iter().take(MOST_LAYERS + 1) {
                kinds.push(match value.as_str() {
                    Some("sliding_attention") => AttentionKind::Sliding,
                    Some("full_attention") => AttentionKind::Full,
                    _ => {
                        let reason = format!("{} is not sliding_attention or full_attention", short(value));
                        return Err(text.error("layer_types", reason));
                    }
                });
            }
            kinds
        }
        Some(value) => return Err(text.error("layer_types", format!("{}, wanted a list", short(value)))),
    };
    if kinds.len() != num_layers {
        return Err(text.error("layer_types", format!("{} entries for {num_layers} layers", kinds.len())));
    }
    // The rule of transformers: whatever the list says, the last layer sees everything.
    kinds[num_layers - 1] = AttentionKind::Full;
    Ok(kinds)
}

struct Geometry<'a> {
    heads: usize,
    sliding: (usize, usize),
    full: (usize, usize),
    k_is_v: bool,
    overrides: Option<Object<'a>>,
    rope: Option<Object<'a>>,
}

impl<'a> Geometry<'a> {
    fn read(text: Object<'a>, num_layers: usize) -> Result<Self, ModelError> {
        let heads = text.count("num_attention_heads", Some(8), MOST_COLUMNS)?;
        let kv_heads = text.count("num_key_value_heads", Some(4), MOST_COLUMNS)?;
        let head_dim = text.count("head_dim", Some(256), MOST_COLUMNS)?;
        let k_is_v = text.flag("attention_k_eq_v", false)?;
        let global = text.natural("num_global_key_value_heads", MOST_COLUMNS)?.filter(|&count| k_is_v && count > 0);
        let overrides = text.object("per_layer_config")?.map(|map| Object::new(map, "text_config.per_layer_config"));
        for key in overrides.iter().flat_map(|overrides| overrides.map.keys()) {
            if key.parse::<usize>().ok().filter(|&layer| layer < num_layers && *key == layer.to_string()).is_none() {
                let reason = format!("{:?} is none of the {num_layers} layers", short(&Value::from(key.as_str())));
                return Err(text.error("per_layer_config", reason));
            }
        }
        let full = match overrides {
            // transformers 5.24 writes what differs layer by layer, and nothing else then.
            Some(_) => (head_dim, kv_heads),
            None => (text.count("global_head_dim", Some(512), MOST_COLUMNS)?, global.unwrap_or(kv_heads)),
        };
        let rope = text.object("rope_parameters")?.map(|map| Object::new(map, "text_config.rope_parameters"));
        Ok(Geometry { heads, sliding: (head_dim, kv_heads), full, k_is_v, overrides, rope })
    }

    /// `(head_dim, kv_heads)`
    fn of_layer(&self, text: Object, layer: usize, kind: AttentionKind) -> Result<(usize, usize), ModelError> {
        let (mut head_dim, mut kv_heads) = match kind {
            AttentionKind::Sliding => self.sliding,
            AttentionKind::Full => self.full,
        };
        if let Some(overrides) = self.overrides
            && let Some(map) = overrides.object(&layer.to_string())?
        {
            let path = format!("text_config.per_layer_config.{layer}");
            let of_layer = Object::new(map, &path);
            for (field, value) in map {
                match field.as_str() {
                    "head_dim" => head_dim = of_layer.count(field, None, MOST_COLUMNS)?,
                    "num_key_value_heads" => kv_heads = of_layer.count(field, None, MOST_COLUMNS)?,
                    _ => return Err(of_layer.error(field, format!("{} is not supported a layer", short(value)))),
                }
            }
        }
        if !self.heads.is_multiple_of(kv_heads) {
            return Err(text.error(
                "num_attention_heads",
                format!("{} query heads are no whole multiple of the {kv_heads} KV heads of layer {layer}", self.heads),
            ));
        }
        if head_dim % 2 != 0 {
            return Err(text.error("head_dim", format!("{head_dim} of layer {layer}, wanted an even number")));
        }
        Ok((head_dim, kv_heads))
    }

    fn rope(&self, text: Object, kind: AttentionKind, head_dim: usize) -> Result<Rope, ModelError> {
        let (name, theta, proportion) = match kind {
            AttentionKind::Sliding => ("sliding_attention", 1e4, 1.0),
            AttentionKind::Full => ("full_attention", 1e6, 0.25),
        };
        let Some(parameters) = self.rope else {
            let turned_pairs = (proportion * head_dim as f64) as usize / 2;
            return Ok(Rope { theta, turned_pairs, factor: 1.0 });
        };
        let Some(map) = parameters.object(name)? else {
            return Err(text.error("rope_parameters", format!("no entry {name}")));
        };
        let path = format!("text_config.rope_parameters.{name}");
        let entry = Object::new(map, &path);
        for (field, value) in map {
            if !["rope_theta", "rope_type", "partial_rotary_factor", "factor"].contains(&field.as_str())
                && !value.is_null()
            {
                return Err(entry.error(field, format!("{} is not supported", short(value))));
            }
        }
        let theta =
            entry.positive("rope_theta")?.ok_or_else(|| entry.error("rope_theta", "not there, wanted a number"))?;
        let proportion = entry.positive("partial_rotary_factor")?.unwrap_or(1.0);
        if proportion > 1.0 {
            return Err(entry.error("partial_rotary_factor", format!("{proportion}, wanted at most 1")));
        }
        let factor = entry.positive("factor")?.unwrap_or(1.0);
        match entry.text("rope_type")?.unwrap_or("default") {
            // Proportional: the exponent runs over the whole head, only the first pairs turn.
            "proportional" => Ok(Rope { theta, turned_pairs: (proportion * head_dim as f64) as usize / 2, factor }),
            "default" if proportion == 1.0 && factor == 1.0 => {
                Ok(Rope { theta, turned_pairs: head_dim / 2, factor: 1.0 })
            }
            "default" => {
                Err(entry.error("rope_type", "\"default\" with partial_rotary_factor or factor is not supported"))
            }
            other => Err(entry.error("rope_type", format!("{other:?} is not supported, default and proportional are"))),
        }
    }
}

fn per_layer(text: Object, unified: bool, vocabulary: usize) -> Result<Option<PerLayerInput>, ModelError> {
    // The unified model has none unless its file says so; transformers' default elsewhere is 256.
    let default = if unified { 0 } else { 256 };
    let columns = text.natural("hidden_size_per_layer_input", MOST_COLUMNS)?;
    let columns = match text.map.contains_key("hidden_size_per_layer_input") {
        true => columns.unwrap_or(0),
        false => default,
    };
    if columns == 0 {
        return Ok(None);
    }
    let entries = text.count("vocab_size_per_layer_input", Some(262_144), MOST_TOKENS)?;
    if entries < vocabulary {
        return Err(text.error(
            "vocab_size_per_layer_input",
            format!("{entries}, wanted at least the vocabulary's {vocabulary}: a token would have no entry"),
        ));
    }
    Ok(Some(PerLayerInput { columns, vocabulary: entries }))
}

fn moe(text: Object) -> Result<Option<Moe>, ModelError> {
    if !text.flag("enable_moe_block", false)? {
        return Ok(None);
    }
    let experts = text.count("num_experts", None, 1 << 14)?;
    let top_k = text.count("top_k_experts", None, experts)?;
    let intermediate = match text.natural("expert_intermediate_size", MOST_COLUMNS)? {
        Some(columns) if text.get("moe_intermediate_size").is_none() => columns,
        _ => text.count("moe_intermediate_size", None, MOST_COLUMNS)?,
    };
    Ok(Some(Moe { experts, top_k, intermediate }))
}
