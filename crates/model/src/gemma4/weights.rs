//! Every weight of the text model, by the names of both layouts, or everything that is wrong with them.

use checkpoint::{Checkpoint, Problem, ProblemKind};
use plan::{RowRange, WeightSpec};

use super::config::{Gemma4Config, LayerConfig, Moe, PerLayerInput};
use crate::names::{BOTH, Finder, GATHERED, MULTIPLIED};
use crate::{ModelError, Unused};

/// All weights of the text model.
pub(crate) struct TextWeights {
    pub embed_tokens: WeightSpec,
    pub lm_head: Option<WeightSpec>,
    pub norm: WeightSpec,
    pub per_layer: Option<PerLayerWeights>,
    pub layers: Vec<LayerWeights>,
}

pub(crate) struct PerLayerWeights {
    pub embed_tokens_per_layer: WeightSpec,
    pub per_layer_model_projection: WeightSpec,
    pub per_layer_projection_norm: WeightSpec,
}

pub(crate) struct LayerWeights {
    pub input_layernorm: WeightSpec,
    pub q_proj: WeightSpec,
    pub q_norm: WeightSpec,
    /// Of the layers that keep a cache.
    pub keys: Option<KeyWeights>,
    pub o_proj: WeightSpec,
    pub post_attention_layernorm: WeightSpec,
    pub pre_feedforward_layernorm: WeightSpec,
    pub gate_proj: WeightSpec,
    pub up_proj: WeightSpec,
    pub down_proj: WeightSpec,
    pub post_feedforward_layernorm: WeightSpec,
    pub moe: Option<MoeWeights>,
    pub per_layer: Option<LayerInputWeights>,
    pub layer_scalar: WeightSpec,
}

pub(crate) struct KeyWeights {
    pub k_proj: WeightSpec,
    pub k_norm: WeightSpec,
    /// `None` where values are the raw key projection.
    pub v_proj: Option<WeightSpec>,
}

pub(crate) struct MoeWeights {
    pub post_feedforward_layernorm_1: WeightSpec,
    pub pre_feedforward_layernorm_2: WeightSpec,
    pub post_feedforward_layernorm_2: WeightSpec,
    pub router_scale: WeightSpec,
    pub router_proj: WeightSpec,
    pub per_expert_scale: WeightSpec,
    pub gate_proj: WeightSpec,
    pub up_proj: WeightSpec,
    pub down_proj: WeightSpec,
}

pub(crate) struct LayerInputWeights {
    pub per_layer_input_gate: WeightSpec,
    pub per_layer_projection: WeightSpec,
    pub post_per_layer_input_norm: WeightSpec,
}

pub(crate) struct Found {
    pub weights: TextWeights,
    pub unused: Vec<Unused>,
    pub warnings: Vec<String>,
}

/// MLX conversions, the original layout, and a text model that stands alone.
const PREFIXES: &[&str] = &["language_model.model.", "model.language_model.", "model.", "language_model.", ""];
const MEDIA: &[&str] = &["vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.", "vision_embedder."];

pub(crate) fn find(checkpoint: &Checkpoint, config: &Gemma4Config) -> Result<Found, ModelError> {
    let mut finder = Finder::new(checkpoint, PREFIXES, "embed_tokens.weight")
        .map_err(|problem| ModelError::Tensors { problems: vec![problem] })?;
    // Every part is looked for before anything is given up, so that one error names all that is wrong.
    let embed_tokens =
        finder.matrix("embed_tokens", config.vocabulary, config.hidden, if config.tied { BOTH } else { GATHERED });
    let lm_head = if config.tied { Some(None) } else { lm_head(&mut finder, config).map(Some) };
    let norm = finder.vector("norm.weight", config.hidden);
    let per_layer = match config.per_layer {
        None => Some(None),
        Some(input) => per_layer(&mut finder, config, input).map(Some),
    };
    let layers: Vec<Option<LayerWeights>> =
        (0..config.layers.len()).map(|layer| layer_weights(&mut finder, config, layer)).collect();
    let (unused, warnings) = account(&mut finder, config);
    let layers: Option<Vec<LayerWeights>> = layers.into_iter().collect();
    match (embed_tokens, lm_head, norm, per_layer, layers) {
        (Some(embed_tokens), Some(lm_head), Some(norm), Some(per_layer), Some(layers))
            if finder.problems.is_empty() =>
        {
            Ok(Found { weights: TextWeights { embed_tokens, lm_head, norm, per_layer, layers }, unused, warnings })
        }
        _ => Err(ModelError::Tensors { problems: finder.problems }),
    }
}

fn lm_head(finder: &mut Finder, config: &Gemma4Config) -> Option<WeightSpec> {
    let names = ["language_model.lm_head", "lm_head", "model.lm_head"];
    let module = names.iter().find(|name| finder.has(&format!("{name}.weight"))).unwrap_or(&names[1]);
    finder.matrix_at(module, "lm_head", config.vocabulary, config.hidden, MULTIPLIED)
}

fn per_layer(finder: &mut Finder, config: &Gemma4Config, input: PerLayerInput) -> Option<PerLayerWeights> {
    let columns = config.layers.len() * input.columns;
    let embed_tokens_per_layer = finder.matrix("embed_tokens_per_layer", input.vocabulary, columns, GATHERED);
    let per_layer_model_projection = finder.matrix("per_layer_model_projection", columns, config.hidden, MULTIPLIED);
    let per_layer_projection_norm = finder.vector("per_layer_projection_norm.weight", input.columns);
    Some(PerLayerWeights {
        embed_tokens_per_layer: embed_tokens_per_layer?,
        per_layer_model_projection: per_layer_model_projection?,
        per_layer_projection_norm: per_layer_projection_norm?,
    })
}

fn layer_weights(finder: &mut Finder, config: &Gemma4Config, index: usize) -> Option<LayerWeights> {
    let layer = config.layers[index];
    let hidden = config.hidden;
    let name = |module: &str| format!("layers.{index}.{module}");
    let attention_columns = config.heads * layer.head_dim;
    let mut norm = |module: &str| finder.vector(&name(&format!("{module}.weight")), hidden);
    let input_layernorm = norm("input_layernorm");
    let post_attention_layernorm = norm("post_attention_layernorm");
    let pre_feedforward_layernorm = norm("pre_feedforward_layernorm");
    let post_feedforward_layernorm = norm("post_feedforward_layernorm");
    let q_proj = finder.matrix(&name("self_attn.q_proj"), attention_columns, hidden, MULTIPLIED);
    let q_norm = finder.vector(&name("self_attn.q_norm.weight"), layer.head_dim);
    let keys = match layer.shares {
        Some(_) => Some(None),
        None => key_weights(finder, index, layer, hidden).map(Some),
    };
    let o_proj = finder.matrix(&name("self_attn.o_proj"), hidden, attention_columns, MULTIPLIED);
    let gate_proj = finder.matrix(&name("mlp.gate_proj"), layer.intermediate, hidden, MULTIPLIED);
    let up_proj = finder.matrix(&name("mlp.up_proj"), layer.intermediate, hidden, MULTIPLIED);
    let down_proj = finder.matrix(&name("mlp.down_proj"), hidden, layer.intermediate, MULTIPLIED);
    let moe = match config.moe {
        None => Some(None),
        Some(moe) => moe_weights(finder, index, moe, hidden).map(Some),
    };
    let per_layer = match config.per_layer {
        None => Some(None),
        Some(input) => layer_input(finder, index, input, hidden).map(Some),
    };
    let layer_scalar = finder.vector(&name("layer_scalar"), 1);
    Some(LayerWeights {
        input_layernorm: input_layernorm?,
        q_proj: q_proj?,
        q_norm: q_norm?,
        keys: keys?,
        o_proj: o_proj?,
        post_attention_layernorm: post_attention_layernorm?,
        pre_feedforward_layernorm: pre_feedforward_layernorm?,
        gate_proj: gate_proj?,
        up_proj: up_proj?,
        down_proj: down_proj?,
        post_feedforward_layernorm: post_feedforward_layernorm?,
        moe: moe?,
        per_layer: per_layer?,
        layer_scalar: layer_scalar?,
    })
}

fn key_weights(finder: &mut Finder, index: usize, layer: LayerConfig, hidden: usize) -> Option<KeyWeights> {
    let columns = layer.kv_heads * layer.head_dim;
    let k_proj = finder.matrix(&format!("layers.{index}.self_attn.k_proj"), columns, hidden, MULTIPLIED);
    let k_norm = finder.vector(&format!("layers.{index}.self_attn.k_norm.weight"), layer.head_dim);
    let v_proj = match layer.k_is_v {
        true => Some(None),
        false => finder.matrix(&format!("layers.{index}.self_attn.v_proj"), columns, hidden, MULTIPLIED).map(Some),
    };
    Some(KeyWeights { k_proj: k_proj?, k_norm: k_norm?, v_proj: v_proj? })
}

fn moe_weights(finder: &mut Finder, index: usize, moe: Moe, hidden: usize) -> Option<MoeWeights> {
    let name = |module: &str| format!("layers.{index}.{module}");
    let mut norm = |module: &str| finder.vector(&name(&format!("{module}.weight")), hidden);
    let post_feedforward_layernorm_1 = norm("post_feedforward_layernorm_1");
    let pre_feedforward_layernorm_2 = norm("pre_feedforward_layernorm_2");
    let post_feedforward_layernorm_2 = norm("post_feedforward_layernorm_2");
    let router_scale = finder.vector(&name("router.scale"), hidden);
    let router_proj = finder.matrix(&name("router.proj"), moe.experts, hidden, MULTIPLIED);
    let per_expert_scale = finder.vector(&name("router.per_expert_scale"), moe.experts);

    let fused = name("experts.gate_up_proj");
    let is_fused = [fused.clone(), format!("{fused}.weight")].iter().any(|tensor| finder.has(&finder.full(tensor)));
    let narrow = [moe.experts, moe.intermediate, hidden];
    let wide = [moe.experts, hidden, moe.intermediate];
    let (gate_name, up_name, down_name) =
        (name("experts.gate_proj"), name("experts.up_proj"), name("experts.down_proj"));
    let (gate_proj, up_proj, down_proj) = if is_fused {
        // The original layout: gate above up in one tensor.
        let half = |first| Some(RowRange { first, of: 2 * moe.intermediate });
        let gate = finder.experts(&gate_name, &fused, narrow, half(0));
        let up = finder.experts(&up_name, &fused, narrow, half(moe.intermediate));
        (gate, up, finder.experts(&down_name, &name("experts.down_proj"), wide, None))
    } else {
        let gate = finder.experts(&gate_name, &name("experts.switch_glu.gate_proj"), narrow, None);
        let up = finder.experts(&up_name, &name("experts.switch_glu.up_proj"), narrow, None);
        (gate, up, finder.experts(&down_name, &name("experts.switch_glu.down_proj"), wide, None))
    };
    Some(MoeWeights {
        post_feedforward_layernorm_1: post_feedforward_layernorm_1?,
        pre_feedforward_layernorm_2: pre_feedforward_layernorm_2?,
        post_feedforward_layernorm_2: post_feedforward_layernorm_2?,
        router_scale: router_scale?,
        router_proj: router_proj?,
        per_expert_scale: per_expert_scale?,
        gate_proj: gate_proj?,
        up_proj: up_proj?,
        down_proj: down_proj?,
    })
}

fn layer_input(finder: &mut Finder, index: usize, input: PerLayerInput, hidden: usize) -> Option<LayerInputWeights> {
    let name = |module: &str| format!("layers.{index}.{module}");
    let per_layer_input_gate = finder.matrix(&name("per_layer_input_gate"), input.columns, hidden, MULTIPLIED);
    let per_layer_projection = finder.matrix(&name("per_layer_projection"), hidden, input.columns, MULTIPLIED);
    let post_per_layer_input_norm = finder.vector(&name("post_per_layer_input_norm.weight"), hidden);
    Some(LayerInputWeights {
        per_layer_input_gate: per_layer_input_gate?,
        per_layer_projection: per_layer_projection?,
        post_per_layer_input_norm: post_per_layer_input_norm?,
    })
}

/// Says of every tensor that no weight uses why that is right; what has no reason is a problem in the text
/// model and a warning elsewhere.
fn account(finder: &mut Finder, config: &Gemma4Config) -> (Vec<Unused>, Vec<String>) {
    let mut media = Unused { reason: "media towers, left alone by a load for text", tensors: vec![] };
    let mut shared = Unused { reason: "keys and values of layers that read another layer's cache", tensors: vec![] };
    let mut values = Unused { reason: "value projections of layers whose values are their keys", tensors: vec![] };
    let mut derived = Unused { reason: "computed from the configuration instead", tensors: vec![] };
    let mut head = Unused { reason: "a copy of the embedding table (tie_word_embeddings)", tensors: vec![] };
    let mut foreign = vec![];
    let prefix = finder.prefix().to_owned();
    for tensor in finder.unused() {
        let inner = tensor.strip_prefix("model.").unwrap_or(&tensor);
        let of_text = tensor.strip_prefix(&prefix);
        if MEDIA.iter().any(|family| inner.starts_with(family)) {
            media.tensors.push(tensor);
        } else if config.tied && (inner.starts_with("lm_head.") || inner.starts_with("language_model.lm_head.")) {
            head.tensors.push(tensor);
        } else if tensor.contains("rotary_emb.") {
            derived.tensors.push(tensor);
        } else if of_text.is_some_and(|name| is_key(name, config, |layer| layer.shares.is_some())) {
            shared.tensors.push(tensor);
        } else if of_text.is_some_and(|name| name.contains(".v_") && is_key(name, config, |layer| layer.k_is_v)) {
            values.tensors.push(tensor);
        } else if of_text.is_some() {
            let sentence = "an unknown tensor of the text model; a model that ignores it would be another model";
            finder.problems.push(Problem::new(ProblemKind::Contradiction, &tensor, sentence));
        } else {
            foreign.push(tensor);
        }
    }
    let warnings = match foreign.as_slice() {
        [] => vec![],
        [first, ..] => {
            vec![format!("{} of no known part of the model and not used, {first} first", plural(foreign.len()))]
        }
    };
    let unused =
        [media, shared, values, derived, head].into_iter().filter(|unused| !unused.tensors.is_empty()).collect();
    (unused, warnings)
}

fn plural(tensors: usize) -> String {
    if tensors == 1 { "1 tensor is".into() } else { format!("{tensors} tensors are") }
}

/// `layers.N.self_attn.{k_proj,v_proj,k_norm,v_norm}.*` of a layer for which `holds`.
fn is_key(name: &str, config: &Gemma4Config, holds: impl Fn(&LayerConfig) -> bool) -> bool {
    let mut parts = name.split('.');
    let (Some("layers"), Some(index), Some("self_attn"), Some(module)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let layer = index.parse::<usize>().ok().and_then(|index| config.layers.get(index));
    ["k_proj", "v_proj", "k_norm", "v_norm"].contains(&module) && layer.is_some_and(holds)
}
