//! Every tensor of a checkpoint: name, shape, and the spread that keeps a forward pass in range.
//!
//! The stream of hidden rows has a deviation of about 1 to 2 in every layer: each block's result
//! passes a norm of weights about 1 before it is added, and `layer_scalar` below 1 then shrinks the
//! sum. It also makes the embedding of the last token fade, which the tied head would otherwise give
//! back as the most likely token for ever.

use checkpoint::{DType, QuantFormat, TensorSpec};

use crate::content::{Content, quantized};
use crate::error::SynthError;
use crate::random::Stream;
use crate::shape::{Keys, Layer, Shape};
use crate::write::{Layout, Recipe};

/// A tensor that is to be written.
pub(crate) struct Tensor {
    pub spec: TensorSpec,
    pub content: Content,
    pub stream: Stream,
}

impl Tensor {
    /// Bytes in the file. The bounds of a [`Shape`] keep the product far below 2^64.
    pub fn bytes(&self) -> u64 {
        self.spec.shape.iter().fold(self.spec.dtype.bytes() as u64, |product, size| product * *size as u64)
    }
}

/// All tensors, in the order of the forward pass, and what config.json must say of modules that
/// differ from the rest.
pub(crate) struct Tensors {
    pub tensors: Vec<Tensor>,
    /// Path and format of modules that are not in the recipe's own format.
    pub stated: Vec<(String, QuantFormat)>,
    /// Weights, counted before they are packed.
    pub parameters: u64,
}

/// Deviation of logits before the soft cap.
const LOGITS: f32 = 2.0;
/// Deviation of attention scores.
const SCORES: f32 = 2.0;
/// Deviation of router scores, which the model has divided by sqrt(hidden).
const ROUTER_SCORES: f32 = 1.0;
/// Weights of a norm, whose mean square is then 13 / 12.
const NORM: (f32, f32) = (0.5, 1.5);
const NORM_SQUARE: f32 = 13.0 / 12.0;

pub(crate) fn list(recipe: &Recipe, shape: &Shape) -> Result<Tensors, SynthError> {
    if let (Layout::Original, Some(format)) = (recipe.layout, recipe.quant) {
        return Err(SynthError::QuantizedOriginal { format });
    }
    if let (None, Some(given)) = (recipe.quant, recipe.overrides.first()) {
        return Err(SynthError::OverrideOfDense { suffix: given.suffix.clone() });
    }
    let prefix = match recipe.layout {
        Layout::Mlx => "language_model.model.",
        Layout::Original => "model.language_model.",
    };
    let mut list = List {
        recipe,
        prefix,
        tensors: Tensors { tensors: Vec::new(), stated: Vec::new(), parameters: 0 },
        overrides_met: vec![false; recipe.overrides.len()],
    };
    let hidden = shape.hidden;
    // The model multiplies rows by sqrt(hidden).
    list.matrix("embed_tokens", &[shape.vocabulary, hidden], 1.0 / root(hidden));
    if let Some(per_layer) = &shape.per_layer {
        let columns = shape.layers.len() * per_layer.columns;
        // The model multiplies rows by sqrt(columns of one layer).
        list.matrix("embed_tokens_per_layer", &[per_layer.vocabulary, columns], 1.0 / root(per_layer.columns));
        list.linear("per_layer_model_projection", columns, hidden);
        list.vector("per_layer_projection_norm.weight", per_layer.columns, NORM);
    }
    for (index, layer) in shape.layers.iter().enumerate() {
        list.layer(shape, index, layer);
    }
    let gain = LOGITS / NORM_SQUARE.sqrt();
    list.vector("norm.weight", hidden, (NORM.0 * gain, NORM.1 * gain));
    if !shape.tied {
        list.prefix = if recipe.layout == Layout::Mlx { "language_model." } else { "" };
        list.matrix("lm_head", &[shape.vocabulary, hidden], 1.0 / root(hidden));
    }
    if let Some(unmet) = list.overrides_met.iter().position(|met| !met) {
        let suffix = recipe.overrides[unmet].suffix.clone();
        return Err(SynthError::UnknownModule { suffix });
    }
    Ok(list.tensors)
}

struct List<'a> {
    recipe: &'a Recipe,
    prefix: &'static str,
    tensors: Tensors,
    overrides_met: Vec<bool>,
}

impl List<'_> {
    fn layer(&mut self, shape: &Shape, index: usize, layer: &Layer) {
        let hidden = shape.hidden;
        let name = |module: &str| format!("layers.{index}.{module}");
        let attention_columns = shape.heads * layer.head_dim;
        self.vector(&name("input_layernorm.weight"), hidden, NORM);
        self.linear(&name("self_attn.q_proj"), attention_columns, hidden);
        // A score is a sum over the head of products of normed queries and keys, and is not divided
        // by sqrt(head_dim): the weights of the two norms must make up for that, each by half.
        let gain = (SCORES / root(layer.head_dim) / NORM_SQUARE).sqrt();
        let head_norm = (NORM.0 * gain, NORM.1 * gain);
        self.vector(&name("self_attn.q_norm.weight"), layer.head_dim, head_norm);
        if let Some(Keys { heads, are_values }) = &layer.keys {
            let columns = heads * layer.head_dim;
            self.linear(&name("self_attn.k_proj"), columns, hidden);
            self.vector(&name("self_attn.k_norm.weight"), layer.head_dim, head_norm);
            if !are_values {
                self.linear(&name("self_attn.v_proj"), columns, hidden);
            }
        }
        self.linear(&name("self_attn.o_proj"), hidden, attention_columns);
        for norm in ["post_attention_layernorm", "pre_feedforward_layernorm"] {
            self.vector(&name(&format!("{norm}.weight")), hidden, NORM);
        }
        self.linear(&name("mlp.gate_proj"), layer.intermediate, hidden);
        self.linear(&name("mlp.up_proj"), layer.intermediate, hidden);
        self.linear(&name("mlp.down_proj"), hidden, layer.intermediate);
        self.vector(&name("post_feedforward_layernorm.weight"), hidden, NORM);
        if let Some(experts) = &shape.experts {
            let norms = ["post_feedforward_layernorm_1", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"];
            for norm in norms {
                self.vector(&name(&format!("{norm}.weight")), hidden, NORM);
            }
            self.vector(&name("router.scale"), hidden, NORM);
            self.matrix(&name("router.proj"), &[experts.count, hidden], ROUTER_SCORES / NORM_SQUARE.sqrt());
            self.vector(&name("router.per_expert_scale"), experts.count, (0.8, 1.2));
            self.experts(&name("experts"), [experts.count, experts.intermediate, hidden]);
        }
        if let Some(per_layer) = &shape.per_layer {
            self.linear(&name("per_layer_input_gate"), per_layer.columns, hidden);
            self.linear(&name("per_layer_projection"), hidden, per_layer.columns);
            self.vector(&name("post_per_layer_input_norm.weight"), hidden, NORM);
        }
        self.vector(&name("layer_scalar"), 1, (0.5, 1.0));
    }

    /// `[experts, intermediate, hidden]` of gate and up, turned about in down.
    fn experts(&mut self, module: &str, [count, intermediate, hidden]: [usize; 3]) {
        match self.recipe.layout {
            Layout::Mlx => {
                for (name, rows, columns) in [
                    ("gate_proj", intermediate, hidden),
                    ("up_proj", intermediate, hidden),
                    ("down_proj", hidden, intermediate),
                ] {
                    let module = format!("{module}.switch_glu.{name}");
                    self.matrix(&module, &[count, rows, columns], 1.0 / root(columns));
                }
            }
            // Plain tensors, without `.weight`; gate above up.
            Layout::Original => {
                for (name, rows, columns) in
                    [("gate_up_proj", 2 * intermediate, hidden), ("down_proj", hidden, intermediate)]
                {
                    let content = Content::Normal { deviation: 1.0 / root(columns) };
                    self.push(&format!("{module}.{name}"), DType::BF16, &[count, rows, columns], content);
                    self.tensors.parameters += (count * rows * columns) as u64;
                }
            }
        }
    }

    /// A matrix whose results spread like its inputs.
    fn linear(&mut self, module: &str, rows: usize, columns: usize) {
        self.matrix(module, &[rows, columns], 1.0 / root(columns));
    }

    /// `[.., rows, columns]`, in the format that the recipe has for it. Columns that the format's
    /// groups do not divide stay dense, as in mlx's own conversions.
    fn matrix(&mut self, module: &str, shape: &[usize], deviation: f32) {
        let path = format!("{}{module}", self.prefix);
        let (columns, leading) = shape.split_last().expect("a matrix has columns");
        self.tensors.parameters += shape.iter().map(|size| *size as u64).product::<u64>();
        let weight = format!("{module}.weight");
        let format = self.format_of(&path).filter(|format| columns.is_multiple_of(format.group_size()));
        let Some(format) = format else {
            self.push(&weight, DType::BF16, shape, Content::Normal { deviation });
            return;
        };
        if Some(format) != self.recipe.quant {
            self.tensors.stated.push((path.clone(), format));
        }
        let scales = format!("{module}.scales");
        let parts = quantized(format, deviation, self.stream(&scales));
        let with = |width: usize| [leading, &[width]].concat();
        let groups = with(format.scales_per_row(*columns));
        let scale_dtype = if format.has_biases() { DType::BF16 } else { DType::U8 };
        self.push(&weight, DType::U32, &with(format.bytes_per_row(*columns) / 4), parts.weight);
        self.push(&scales, scale_dtype, &groups, parts.scales);
        if let Some(biases) = parts.biases {
            self.push(&format!("{module}.biases"), DType::BF16, &groups, biases);
        }
    }

    /// The last override that names the module, or the recipe's own format.
    fn format_of(&mut self, path: &str) -> Option<QuantFormat> {
        let mut format = self.recipe.quant;
        for (given, met) in self.recipe.overrides.iter().zip(&mut self.overrides_met) {
            let names = path.strip_suffix(&given.suffix).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
            if names {
                format = given.format;
            }
            // Only models with experts have a router.
            *met |= names || given.suffix == ROUTER;
        }
        format
    }

    /// Evenly spread floats.
    fn vector(&mut self, name: &str, length: usize, (low, high): (f32, f32)) {
        self.tensors.parameters += length as u64;
        self.push(name, DType::BF16, &[length], Content::Uniform { low, high });
    }

    fn push(&mut self, name: &str, dtype: DType, shape: &[usize], content: Content) {
        let spec = TensorSpec::new(format!("{}{name}", self.prefix), dtype, shape);
        self.tensors.tensors.push(Tensor { spec, content, stream: self.stream(name) });
    }

    /// By the name without its prefix: both layouts have the same dense weights.
    fn stream(&self, name: &str) -> Stream {
        Stream::new(self.recipe.seed, name)
    }
}

/// The module that is kept at 8 bits unless the recipe says otherwise.
pub(crate) const ROUTER: &str = "router.proj";

fn root(count: usize) -> f32 {
    (count as f32).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Size, config};

    /// Counted apart from this crate, from the published sizes of each model.
    #[test]
    fn sizes_have_the_parameters_of_the_models_text_parts() {
        let count = |size: Size| {
            let recipe = Recipe::new(config(size), None, 0);
            list(&recipe, &Shape::read(&recipe.config).unwrap()).unwrap().parameters
        };
        let counted = [4_628_569_379, 7_463_013_418, 11_907_350_320, 25_233_141_790, 30_697_345_340];
        assert_eq!(Size::ALL.map(count), counted);
    }

    #[test]
    fn the_largest_sizes_that_are_read_can_be_counted() {
        let mut config = crate::tiny_config(crate::TinyKind::Experts, crate::TinyOptions::default());
        let largest = [
            ("hidden_size", 1 << 18),
            ("intermediate_size", 1 << 18),
            ("moe_intermediate_size", 1 << 18),
            ("hidden_size_per_layer_input", 1 << 18),
            ("head_dim", 1 << 18),
            ("global_head_dim", 1 << 18),
            ("num_attention_heads", 1 << 12),
            ("num_key_value_heads", 1 << 12),
            ("num_experts", 1 << 12),
            ("vocab_size", 1 << 22),
            ("vocab_size_per_layer_input", 1 << 22),
            ("num_hidden_layers", 1000),
        ];
        for (field, most) in largest {
            config["text_config"][field] = most.into();
        }
        config["text_config"]["layer_types"] = vec!["full_attention"; 1000].into();
        let shape = Shape::read(&config).unwrap();
        let listed = list(&Recipe::new(config, None, 0), &shape).unwrap();
        let bytes = listed.tensors.iter().map(|tensor| u128::from(tensor.bytes())).sum::<u128>();
        assert!(bytes < 1 << 63, "{bytes}");
    }

    #[test]
    fn columns_that_groups_do_not_divide_stay_dense() {
        let format = QuantFormat::Affine { bits: 4, group_size: 128 };
        let recipe = Recipe::new(config(Size::A4b26), Some(format), 0);
        let listed = list(&recipe, &Shape::read(&recipe.config).unwrap()).unwrap();
        let dtype = |module: &str| {
            let name = format!("language_model.model.layers.0.{module}.weight");
            listed.tensors.iter().find(|tensor| tensor.spec.name == name).map(|tensor| tensor.spec.dtype)
        };
        // 2816 and 704 columns.
        assert_eq!(dtype("experts.switch_glu.up_proj"), Some(DType::U32));
        assert_eq!(dtype("experts.switch_glu.down_proj"), Some(DType::BF16));
        assert_eq!(listed.stated.len(), 30, "the routers alone");
    }
}
