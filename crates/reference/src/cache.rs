//! The key/value cache as f32, by group, layer, block and slot.

use plan::{CacheLayout, CacheRef};

/// Keys and values of one layer: `[blocks, block_size, kv_heads * head_dim]` each.
struct LayerStore {
    keys: Vec<f32>,
    values: Vec<f32>,
    columns: usize,
}

/// The whole cache.
pub(crate) struct Cache {
    groups: Vec<Vec<LayerStore>>,
    /// Physical blocks of each group.
    pub blocks: Vec<usize>,
    block_size: usize,
}

impl Cache {
    pub fn new(layout: &CacheLayout, blocks: &[usize]) -> Cache {
        let store = |columns: usize, blocks: usize| {
            // NaN until it is written: a slot read too early shows.
            let numbers = vec![f32::NAN; blocks * layout.block_size * columns];
            LayerStore { keys: numbers.clone(), values: numbers, columns }
        };
        let groups = layout.groups.iter().zip(blocks).map(|(group, &blocks)| {
            group.layers.iter().map(|layer| store(layer.kv_heads * layer.head_dim, blocks)).collect()
        });
        Cache { groups: groups.collect(), blocks: blocks.to_vec(), block_size: layout.block_size }
    }

    fn slot(&self, table: &[u32], position: usize) -> usize {
        table[position / self.block_size] as usize * self.block_size + position % self.block_size
    }

    pub fn append(&mut self, at: CacheRef, table: &[u32], position: usize, k: &[f32], v: &[f32]) {
        let slot = self.slot(table, position);
        let store = &mut self.groups[at.group][at.layer];
        let range = slot * store.columns..(slot + 1) * store.columns;
        store.keys[range.clone()].copy_from_slice(k);
        store.values[range].copy_from_slice(v);
    }

    /// The key and value of one head at one position.
    pub fn read(&self, at: CacheRef, table: &[u32], position: usize, head: usize, head_dim: usize) -> (&[f32], &[f32]) {
        let store = &self.groups[at.group][at.layer];
        let first = self.slot(table, position) * store.columns + head * head_dim;
        (&store.keys[first..first + head_dim], &store.values[first..first + head_dim])
    }
}
