//! The cache: kv_append and attention, over windows, groups of heads, and sequences that come and go.

use plan::{CacheGroup, CacheLayer, CacheLayout, CacheRef};

use super::draft::{Draft, site};
use super::inputs::{Spans, long, with_cache};
use crate::{CheckError, Quantity};

/// Heads, their size, what they see.
#[derive(Clone, Copy)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: Option<usize>,
    spans: Spans,
    is_wanted: bool,
}

pub(super) fn add(draft: &mut Draft) -> Result<(), CheckError> {
    let one_head = Shape { heads: 1, kv_heads: 1, head_dim: 16, window: None, spans: Spans::Causal, is_wanted: false };
    append(draft)?;
    attention(draft, one_head)?;
    for window in [None, Some(1), Some(4), Some(16), Some(17), Some(33)] {
        let shape = Shape { heads: 4, kv_heads: 2, head_dim: 32, window, spans: Spans::Causal, is_wanted: false };
        attention(draft, shape)?;
        attention(draft, Shape { is_wanted: true, ..shape })?;
    }
    for (heads, kv_heads, head_dim) in [(8, 1, 64), (16, 1, 48), (3, 3, 128), (16, 2, 256)] {
        attention(draft, Shape { heads, kv_heads, head_dim, is_wanted: true, ..one_head })?;
    }
    for window in [4, 24] {
        attention(draft, Shape { window: Some(window), spans: Spans::TwoWay, ..one_head })?;
    }
    long_attention(draft)
}

/// A cache of two groups, the second of which has two layers, the second of which is used.
fn layout(shape: Shape) -> (CacheLayout, CacheRef) {
    let layer = CacheLayer { layer: 0, kv_heads: 1, head_dim: 16 };
    let used = CacheLayer { layer: 2, kv_heads: shape.kv_heads, head_dim: shape.head_dim };
    let groups = vec![
        CacheGroup { name: "other".into(), window: Some(8), layers: vec![layer] },
        CacheGroup { name: "used".into(), window: shape.window, layers: vec![CacheLayer { layer: 1, ..layer }, used] },
    ];
    (CacheLayout { block_size: 16, groups }, CacheRef { group: 1, layer: 1 })
}

fn attention(draft: &mut Draft, shape: Shape) -> Result<(), CheckError> {
    let Shape { heads, kv_heads, head_dim, window, spans, is_wanted } = shape;
    let (cache, at) = layout(shape);
    let launches = with_cache(draft.random, &cache, spans);
    let window = window.map_or("all".to_owned(), |window| format!("window {window}"));
    let way = if spans == Spans::TwoWay { ", two-way" } else { "" };
    let rows = if is_wanted { ", wanted rows" } else { "" };
    let name = format!("attention {heads}/{kv_heads} heads of {head_dim}, {window}{way}{rows}");
    let mut case = draft.case(name, cache);
    let k = case.source("k", kv_heads * head_dim, 1.0);
    let v = case.source("v", kv_heads * head_dim, 1.0);
    let q = case.source("q", heads * head_dim, 1.0);
    case.build.kv_append(site("kv_append"), k, v, at);
    let q = if is_wanted { case.wanted("q_wanted", q) } else { q };
    // Scores deviate by 4 in half of the cases, so that many keys count, and by up to 16 in the others.
    let scale = if is_wanted { 4.0 / (head_dim as f32).sqrt() } else { 1.0 };
    let out = case.build.attention(site("attention"), q, at, heads, scale);
    case.check_sized(out, Quantity::Attended, 1.0);
    if is_wanted {
        case.finish_wanted("attention", out, launches)
    } else {
        case.finish_tokens("attention", out, launches)
    }
}

/// A row that sees itself alone reads back the value that it appended.
fn append(draft: &mut Draft) -> Result<(), CheckError> {
    let shape = Shape { heads: 2, kv_heads: 2, head_dim: 32, window: Some(1), spans: Spans::Causal, is_wanted: false };
    let (cache, at) = layout(shape);
    let launches = with_cache(draft.random, &cache, shape.spans);
    let mut case = draft.case("kv_append 2 heads of 32".into(), cache);
    let [k, v, q] = ["k", "v", "q"].map(|role| case.source(role, 64, 1.0));
    case.build.kv_append(site("kv_append"), k, v, at);
    let out = case.build.attention(site("attention"), q, at, 2, 1.0);
    case.check(out, Quantity::Cached);
    case.finish_tokens("kv_append", out, launches)
}

/// More keys than any backend takes in one piece.
fn long_attention(draft: &mut Draft) -> Result<(), CheckError> {
    let shape = Shape { heads: 2, kv_heads: 1, head_dim: 16, window: None, spans: Spans::Causal, is_wanted: true };
    let (cache, at) = layout(shape);
    let launches = long(draft.random, &cache, 1_100);
    let mut case = draft.case("attention 2/1 heads of 16, 1,100 keys, wanted rows".into(), cache);
    let [k, v] = ["k", "v"].map(|role| case.source(role, 16, 1.0));
    let q = case.source("q", 32, 1.0);
    case.build.kv_append(site("kv_append"), k, v, at);
    let q = case.wanted("q_wanted", q);
    let out = case.build.attention(site("attention"), q, at, 2, 0.5);
    case.check(out, Quantity::Attended);
    case.finish_wanted("attention", out, launches)
}
