//! The text model as a plan. Formulas: transformers 5.24, `models/gemma4/modeling_gemma4.py`.

use plan::{CacheGroup, CacheLayer, CacheLayout, CacheRef, Plan, PlanBuilder, ScaleBy, Site, Slice, Value};

use super::config::{AttentionKind, Gemma4Config, LayerConfig};
use super::weights::{KeyWeights, LayerInputWeights, LayerWeights, MoeWeights, PerLayerWeights, TextWeights};
use crate::ModelError;

/// Tokens a cache block: one vector of keys on every instruction set.
const BLOCK_SIZE: usize = 16;

pub(crate) fn lower(config: &Gemma4Config, weights: TextWeights) -> Result<Plan, ModelError> {
    let (cache, owned) = cache_layout(config);
    let mut text = Text { config, build: PlanBuilder::new(cache), layer: None };
    let TextWeights { embed_tokens, lm_head, norm, per_layer, layers } = weights;

    let table = text.build.weight(embed_tokens);
    let embedded = text.build.embed(text.site("embed_tokens"), table, (config.hidden as f64).sqrt() as f32);
    let per_layer = per_layer.map(|weights| text.per_layer_inputs(embedded, weights));
    let mut stream = Stream { x: embedded, per_layer, first_layer: 0, is_wanted: false };

    // Below the last layer that keeps keys, a row matters only to itself: the rest runs on wanted rows.
    let last_owner = owned.iter().rposition(Option::is_some).unwrap_or(0);
    for (index, weights) in layers.into_iter().enumerate() {
        text.layer = Some(index as u32);
        let layer = config.layers[index];
        let cache = owned[layer.shares.unwrap_or(index)].ok_or_else(|| ModelError::Config {
            field: "text_config.num_kv_shared_layers".into(),
            reason: format!("layer {index} reads a cache that no layer writes"),
        })?;
        stream = text.layer(index, layer, cache, weights, stream, index == last_owner);
    }
    text.layer = None;
    let normed = text.norm("norm", stream.x, norm);
    let head = match lm_head {
        Some(weights) => text.build.weight(weights),
        None => table,
    };
    let mut logits = text.build.linear(text.site("lm_head"), normed, head);
    if let Some(cap) = config.softcap {
        logits = text.build.softcap(text.site("logits"), logits, cap);
    }
    let sampled = text.build.sample(text.site("sample"), logits);
    Ok(text.build.finish(logits, sampled)?)
}

/// The cache, and each layer's place in it.
fn cache_layout(config: &Gemma4Config) -> (CacheLayout, Vec<Option<CacheRef>>) {
    let mut groups: Vec<(AttentionKind, CacheGroup)> = vec![];
    let mut owned = vec![];
    for (index, layer) in config.layers.iter().enumerate() {
        if layer.shares.is_some() {
            owned.push(None);
            continue;
        }
        let group = groups.iter().position(|(kind, _)| *kind == layer.kind).unwrap_or_else(|| {
            let (name, window) = match layer.kind {
                AttentionKind::Sliding => ("sliding", Some(config.window)),
                AttentionKind::Full => ("full", None),
            };
            groups.push((layer.kind, CacheGroup { name: name.into(), window, layers: vec![] }));
            groups.len() - 1
        });
        let layers = &mut groups[group].1.layers;
        layers.push(CacheLayer { layer: index, kv_heads: layer.kv_heads, head_dim: layer.head_dim });
        owned.push(Some(CacheRef { group, layer: layers.len() - 1 }));
    }
    let groups = groups.into_iter().map(|(_, group)| group).collect();
    (CacheLayout { block_size: BLOCK_SIZE, groups }, owned)
}

/// What flows from layer to layer.
struct Stream {
    x: Value,
    /// Per-layer inputs of all layers from `first_layer` on, side by side.
    per_layer: Option<Value>,
    first_layer: usize,
    is_wanted: bool,
}

struct Text<'a> {
    config: &'a Gemma4Config,
    build: PlanBuilder,
    layer: Option<u32>,
}

impl Text<'_> {
    fn site(&self, role: &'static str) -> Site {
        Site { layer: self.layer, role }
    }

    fn norm(&mut self, role: &'static str, x: Value, weight: plan::WeightSpec) -> Value {
        let (weight, x) = (self.build.weight(weight), self.build.whole(x));
        self.build.rms_norm(self.site(role), x, Some(weight), x.columns, self.config.eps)
    }

    fn norm_heads(&mut self, role: &'static str, x: Value, weight: Option<plan::WeightSpec>, head_dim: usize) -> Value {
        let (weight, x) = (weight.map(|weight| self.build.weight(weight)), self.build.whole(x));
        self.build.rms_norm(self.site(role), x, weight, head_dim, self.config.eps)
    }

    fn linear(&mut self, role: &'static str, x: Value, weight: plan::WeightSpec) -> Value {
        let weight = self.build.weight(weight);
        self.build.linear(self.site(role), x, weight)
    }

    fn add(&mut self, role: &'static str, a: Value, b: Value) -> Value {
        self.build.add(self.site(role), a, b)
    }

    fn scale(&mut self, role: &'static str, x: Value, factor: f64) -> Value {
        self.build.scale(self.site(role), x, ScaleBy::Constant(factor as f32))
    }

    /// `(rms_norm(projection(x) * hidden^-1/2) + table * columns^1/2) * 2^-1/2`, all layers side by side.
    fn per_layer_inputs(&mut self, embedded: Value, weights: PerLayerWeights) -> Value {
        let table = self.build.weight(weights.embed_tokens_per_layer);
        let columns = self.config.per_layer.map_or(0, |input| input.columns);
        let token = self.build.embed(self.site("embed_tokens_per_layer"), table, (columns as f64).sqrt() as f32);
        let projected = self.linear("per_layer_model_projection", embedded, weights.per_layer_model_projection);
        let scaled = self.scale("per_layer_projection_scale", projected, (self.config.hidden as f64).powf(-0.5));
        let norm = Some(weights.per_layer_projection_norm);
        let normed = self.norm_heads("per_layer_projection_norm", scaled, norm, columns);
        let sum = self.add("per_layer_sum", normed, token);
        self.scale("per_layer_inputs", sum, 0.5f64.sqrt())
    }

    fn layer(
        &mut self,
        index: usize,
        layer: LayerConfig,
        cache: CacheRef,
        weights: LayerWeights,
        stream: Stream,
        is_last_owner: bool,
    ) -> Stream {
        let mut stream = stream;
        let mut normed = self.norm("input_layernorm", stream.x, weights.input_layernorm);
        if let Some(keys) = weights.keys {
            self.keys(layer, cache, normed, keys);
        }
        if is_last_owner && !stream.is_wanted {
            normed = self.select("wanted_input_layernorm", normed);
            stream.x = self.select("wanted_hidden", stream.x);
            stream.per_layer = stream.per_layer.map(|value| self.select_per_layer(value, index));
            stream.first_layer = index;
            stream.is_wanted = true;
        }
        let attended = self.attention(layer, cache, normed, weights.q_proj, weights.q_norm);
        let attended = self.linear("o_proj", attended, weights.o_proj);
        let attended = self.norm("post_attention_layernorm", attended, weights.post_attention_layernorm);
        let x = self.add("attention_residual", stream.x, attended);

        let normed = self.norm("pre_feedforward_layernorm", x, weights.pre_feedforward_layernorm);
        let gate = self.linear("gate_proj", normed, weights.gate_proj);
        let up = self.linear("up_proj", normed, weights.up_proj);
        let activated = self.gelu_mul("activated", gate, up);
        let mut fed = self.linear("down_proj", activated, weights.down_proj);
        if let Some(moe) = weights.moe {
            fed = self.experts(x, fed, moe);
        }
        let fed = self.norm("post_feedforward_layernorm", fed, weights.post_feedforward_layernorm);
        let mut x = self.add("feedforward_residual", x, fed);

        if let (Some(weights), Some(inputs), Some(input)) = (weights.per_layer, stream.per_layer, self.config.per_layer)
        {
            let first = (index - stream.first_layer) * input.columns;
            let inputs = Slice { value: inputs, first, columns: input.columns };
            x = self.layer_input(x, inputs, weights);
        }
        let scalar = self.build.weight(weights.layer_scalar);
        let x = self.build.scale(self.site("layer_scalar"), x, ScaleBy::Weight(scalar));
        Stream { x, ..stream }
    }

    fn keys(&mut self, layer: LayerConfig, cache: CacheRef, normed: Value, weights: KeyWeights) {
        let raw = self.linear("k_proj", normed, weights.k_proj);
        let k = self.norm_heads("k_norm", raw, Some(weights.k_norm), layer.head_dim);
        let k = self.build.rope(self.site("k_rope"), k, layer.head_dim, layer.rope);
        // Where K = V, the value is the raw key projection: neither k_norm nor positions touch it.
        let raw_v = match weights.v_proj {
            Some(v_proj) => self.linear("v_proj", normed, v_proj),
            None => raw,
        };
        let v = self.norm_heads("v_norm", raw_v, None, layer.head_dim);
        self.build.kv_append(self.site("kv_append"), k, v, cache);
    }

    fn attention(
        &mut self,
        layer: LayerConfig,
        cache: CacheRef,
        normed: Value,
        q_proj: plan::WeightSpec,
        q_norm: plan::WeightSpec,
    ) -> Value {
        let q = self.linear("q_proj", normed, q_proj);
        let q = self.norm_heads("q_norm", q, Some(q_norm), layer.head_dim);
        let q = self.build.rope(self.site("q_rope"), q, layer.head_dim, layer.rope);
        // q_norm and k_norm set the scale of scores; there is no 1/sqrt(head_dim).
        self.build.attention(self.site("attention"), q, cache, self.config.heads, 1.0)
    }

    fn gelu_mul(&mut self, role: &'static str, gate: Value, up: Value) -> Value {
        let (gate, up) = (self.build.whole(gate), self.build.whole(up));
        self.build.gelu_mul(self.site(role), gate, up)
    }

    /// Experts read the row before the dense feed-forward, and their sum joins the dense one's.
    fn experts(&mut self, x: Value, dense: Value, weights: MoeWeights) -> Value {
        let dense = self.norm("post_feedforward_layernorm_1", dense, weights.post_feedforward_layernorm_1);
        // rms_norm(x) * router.scale is a norm whose weight is router.scale.
        let normed = self.norm("router_norm", x, weights.router_scale);
        let normed = self.scale("router_scale", normed, (self.config.hidden as f64).powf(-0.5));
        let scores = self.linear("router_proj", normed, weights.router_proj);
        let per_expert_scale = self.build.weight(weights.per_expert_scale);
        let top_k = self.config.moe.map_or(0, |moe| moe.top_k);
        let routed = self.build.route(self.site("router"), scores, per_expert_scale, top_k);
        let normed = self.norm("pre_feedforward_layernorm_2", x, weights.pre_feedforward_layernorm_2);
        let matrices = [weights.gate_proj, weights.up_proj, weights.down_proj].map(|weight| self.build.weight(weight));
        let mixed = self.build.experts(self.site("experts"), normed, routed, matrices);
        let mixed = self.norm("post_feedforward_layernorm_2", mixed, weights.post_feedforward_layernorm_2);
        self.add("feedforward_sum", dense, mixed)
    }

    fn layer_input(&mut self, x: Value, inputs: Slice, weights: LayerInputWeights) -> Value {
        let gate = self.linear("per_layer_input_gate", x, weights.per_layer_input_gate);
        let gate = self.build.whole(gate);
        let gated = self.build.gelu_mul(self.site("per_layer_gated"), gate, inputs);
        let projected = self.linear("per_layer_projection", gated, weights.per_layer_projection);
        let normed = self.norm("post_per_layer_input_norm", projected, weights.post_per_layer_input_norm);
        self.add("per_layer_residual", x, normed)
    }

    fn select(&mut self, role: &'static str, x: Value) -> Value {
        let x = self.build.whole(x);
        self.build.select_rows(self.site(role), x)
    }

    /// The inputs of this layer and those after it.
    fn select_per_layer(&mut self, inputs: Value, index: usize) -> Value {
        let columns = self.config.per_layer.map_or(0, |input| input.columns);
        let all = self.build.whole(inputs);
        let rest = Slice { value: inputs, first: index * columns, columns: all.columns - index * columns };
        self.build.select_rows(self.site("wanted_per_layer_inputs"), rest)
    }
}
