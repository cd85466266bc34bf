//! The key/value cache: written by append alone, read by attention alone, addressed by group, block and
//! slot. Layers of one group share their block tables, so they keep and drop the same positions.

/// The cache of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheLayout {
    /// Tokens a block.
    pub block_size: usize,
    /// Groups of layers, each with block tables of its own.
    pub groups: Vec<CacheGroup>,
}

/// Layers that see the same positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheGroup {
    /// `sliding` or `full`.
    pub name: String,
    /// A row sees itself and the `window - 1` keys before it; the whole sequence when `None`.
    pub window: Option<usize>,
    /// The layers that own a cache, in order.
    pub layers: Vec<CacheLayer>,
}

/// Keys and values of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLayer {
    /// The decoder layer that writes it.
    pub layer: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers a head.
    pub head_dim: usize,
}

/// One layer's cache: a group and the place in that group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheRef {
    /// The group, by its place in [`CacheLayout::groups`].
    pub group: usize,
    /// The layer, by its place in [`CacheGroup::layers`].
    pub layer: usize,
}

impl CacheLayout {
    /// The layer that `at` names. Panics if there is none: a checked plan has no such reference.
    pub fn layer(&self, at: CacheRef) -> CacheLayer {
        self.groups[at.group].layers[at.layer]
    }
}

impl CacheGroup {
    /// Numbers (keys and values) that one block of this group holds over all its layers.
    pub fn elements_per_block(&self, block_size: usize) -> usize {
        self.layers.iter().map(|layer| 2 * layer.kv_heads * layer.head_dim * block_size).sum()
    }
}
