//! The key/value cache: one run of zeroed memory a layer, so that pages come into being as blocks are used.

use plan::{CacheLayout, CacheRef};

use crate::kernels::attention::{KV_BLOCK, KvElement, KvLayer};

/// The whole cache. Only append writes it and only attention reads it, through [`KvLayer`] addresses.
pub(crate) struct Cache {
    /// `[groups][layers]`: keys of all blocks, then values of all blocks.
    stores: Vec<Vec<Store>>,
    /// Physical blocks of each group.
    pub blocks: Vec<usize>,
}

struct Store {
    /// u64, so that any element is aligned.
    memory: Box<[std::cell::UnsafeCell<u64>]>,
    layer: KvLayer,
}

// SAFETY: the memory is reached only through the unsafe kernels, whose contract keeps a slot's writer alone.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Cache {
    /// Zeroed memory for `blocks[group]` blocks of each group. `layout.block_size` is [`KV_BLOCK`].
    pub fn new(layout: &CacheLayout, blocks: &[usize], element: KvElement) -> Cache {
        let store = |kv_heads: usize, head_dim: usize, num_blocks: usize| {
            let half = kv_heads * head_dim * KV_BLOCK * element.bytes();
            let words = (2 * half * num_blocks).div_ceil(8);
            // `vec!` of zeros asks the system for zero pages, which take no memory until they are written.
            let zeros = vec![0u64; words].into_boxed_slice();
            // SAFETY: UnsafeCell<u64> has the memory layout of u64.
            let memory = unsafe { Box::from_raw(Box::into_raw(zeros) as *mut [std::cell::UnsafeCell<u64>]) };
            let keys = memory.as_ptr() as *mut u8;
            let values = keys.wrapping_add(half * num_blocks);
            let layer = KvLayer { keys, values, block_stride_bytes: half, num_blocks, kv_heads, head_dim, element };
            Store { memory, layer }
        };
        let stores = layout.groups.iter().zip(blocks).map(|(group, &num_blocks)| {
            group.layers.iter().map(|layer| store(layer.kv_heads, layer.head_dim, num_blocks)).collect()
        });
        Cache { stores: stores.collect(), blocks: blocks.to_vec() }
    }

    /// The addresses of one layer, valid while the cache lives.
    pub fn layer(&self, at: CacheRef) -> KvLayer {
        let store = &self.stores[at.group][at.layer];
        debug_assert_eq!(store.layer.keys.cast_const(), store.memory.as_ptr().cast());
        store.layer
    }

    /// Bytes of one block of a group.
    pub fn block_bytes(group: &plan::CacheGroup, block_size: usize, element: KvElement) -> u64 {
        (group.elements_per_block(block_size) * element.bytes()) as u64
    }
}
