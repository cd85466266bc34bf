//! Cache blocks of one group. A block goes back to its pool when it is dropped, so nobody has to remember.

use std::sync::{Arc, Mutex, PoisonError};

/// The free blocks of one cache group.
#[derive(Debug, Clone)]
pub struct BlockPool {
    free: Arc<Mutex<Vec<u32>>>,
    total: usize,
}

/// One physical block, held.
#[derive(Debug)]
pub struct Block {
    index: u32,
    free: Arc<Mutex<Vec<u32>>>,
}

impl BlockPool {
    /// A pool of the blocks `0..total`.
    pub fn new(total: usize) -> Self {
        // The lowest block is handed out first, so a short sequence stays in few pages.
        BlockPool { free: Arc::new(Mutex::new((0..total as u32).rev().collect())), total }
    }

    /// A free block, if there is one.
    pub fn take(&self) -> Option<Block> {
        let index = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Block { index, free: self.free.clone() })
    }

    /// Blocks that nobody holds.
    pub fn free(&self) -> usize {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Blocks in all.
    pub fn total(&self) -> usize {
        self.total
    }
}

impl Block {
    /// The physical block.
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_block_is_free_again() {
        let pool = BlockPool::new(2);
        let (a, b) = (pool.take(), pool.take());
        assert!(pool.take().is_none());
        assert_ne!(a.as_ref().map(Block::index), b.as_ref().map(Block::index));
        drop(a);
        assert_eq!(pool.free(), 1);
        drop(b);
        assert_eq!((pool.free(), pool.total()), (2, 2));
    }
}
