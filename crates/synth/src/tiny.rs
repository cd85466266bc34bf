//! Models of a few layers with everything that a kind of Gemma 4 has, for tests.

use serde_json::{Map, Value};

use crate::size::{Experts, Heads, Layers, Text};

/// A kind of Gemma 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TinyKind {
    /// As E2B: per-layer inputs, half of the layers sharing the cache of the others, twice as wide.
    PerLayer,
    /// As 12B: the unified model, values equal keys on full layers.
    Unified,
    /// As 26B-A4B: 8 experts of which a token visits 2, beside the dense block.
    Experts,
    /// As 31B: values equal keys on full layers, and nothing else.
    Dense,
}

impl TinyKind {
    /// All kinds.
    pub const ALL: [TinyKind; 4] = [TinyKind::PerLayer, TinyKind::Unified, TinyKind::Experts, TinyKind::Dense];
}

/// Sizes that tests vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TinyOptions {
    /// Decoder layers; every third and the last one see everything. At least 1.
    pub layers: usize,
    /// Tokens; at least 1,024.
    pub vocabulary: usize,
    /// Keys that a sliding layer sees, its own included.
    pub window: usize,
    /// Head dimensions of sliding layers; a multiple of 32.
    pub head_dim: usize,
    /// Head dimensions of full layers; a multiple of 32.
    pub global_head_dim: usize,
}

impl Default for TinyOptions {
    fn default() -> TinyOptions {
        TinyOptions { layers: 6, vocabulary: 1024, window: 16, head_dim: 64, global_head_dim: 128 }
    }
}

/// The whole `config.json` of a tiny model: 128 columns, 4 query heads, and every width that can be
/// quantized a multiple of 128, so that all group sizes divide it.
///
/// Panics if an option is outside of what its comment says.
pub fn tiny_config(kind: TinyKind, options: TinyOptions) -> Map<String, Value> {
    let TinyOptions { layers, vocabulary, window, head_dim, global_head_dim } = options;
    assert!(layers >= 1, "a model has layers");
    assert!(vocabulary >= 1024, "{vocabulary} tokens, at least 1,024 are needed");
    assert!(window >= 1, "a row sees itself");
    for dim in [head_dim, global_head_dim] {
        assert!(dim > 0 && dim.is_multiple_of(32), "{dim} head dimensions, wanted a multiple of 32");
    }
    let per_layer = kind == TinyKind::PerLayer;
    // Both kinds of layers must be among those that keep a cache.
    let shared = if per_layer && layers >= 6 { layers / 2 } else { 0 };
    let experts = Experts { count: 8, visited: 2, intermediate: 128 };
    let text = Text {
        hidden: 128,
        intermediate: 256,
        layers: Layers { count: layers, period: 3 },
        heads: Heads { query: 4, sliding: 2, full: if per_layer { None } else { Some(1) } },
        head_dim,
        global_head_dim,
        window,
        context: 4096,
        vocabulary,
        per_layer: if per_layer { 128 } else { 0 },
        shared,
        doubled: per_layer,
        experts: if kind == TinyKind::Experts { Some(experts) } else { None },
    };
    text.config(kind == TinyKind::Unified)
}
