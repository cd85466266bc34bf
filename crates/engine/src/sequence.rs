//! One sequence: how far it is, and the blocks that hold its keys and values.

use plan::{CacheLayout, StepInputs};

use crate::{Block, BlockPool, EngineError};

/// A sequence on the device. Its blocks go back when it is dropped.
#[derive(Debug)]
pub struct Sequence {
    /// Positions whose keys and values are cached.
    length: usize,
    /// `[groups][logical blocks]`; `None` where a sliding window has passed.
    tables: Vec<Vec<Option<Block>>>,
}

impl Sequence {
    pub(crate) fn new(groups: usize) -> Self {
        Sequence { length: 0, tables: (0..groups).map(|_| vec![]).collect() }
    }

    /// Positions whose keys and values are cached: the position of the next token.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The first position that a row at `position` sees.
    pub(crate) fn visible_from(position: usize, window: Option<usize>) -> usize {
        window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// Takes the blocks that `rows` more positions need, in every group; all of them or none.
    /// Blocks of earlier rows that a window has passed are not among them.
    pub(crate) fn grow(&mut self, rows: usize, layout: &CacheLayout, pools: &[BlockPool]) -> Result<(), EngineError> {
        let end = self.length + rows;
        let mut taken: Vec<(usize, usize, Block)> = vec![];
        for (group, table) in self.tables.iter().enumerate() {
            let from = Self::visible_from(self.length, layout.groups[group].window);
            for logical in from / layout.block_size..end.div_ceil(layout.block_size) {
                if table.get(logical).is_some_and(Option::is_some) {
                    continue;
                }
                let pool = &pools[group];
                let block = pool.take().ok_or_else(|| EngineError::NoBlock {
                    group: layout.groups[group].name.clone(),
                    held: pool.total() - pool.free(),
                    total: pool.total(),
                })?;
                taken.push((group, logical, block));
            }
        }
        for (group, logical, block) in taken {
            let table = &mut self.tables[group];
            while table.len() <= logical {
                table.push(None);
            }
            table[logical] = Some(block);
        }
        Ok(())
    }

    /// Counts `rows` positions as cached and gives back the blocks that no later row can see.
    pub(crate) fn advance(&mut self, rows: usize, layout: &CacheLayout) {
        self.length += rows;
        for (table, group) in self.tables.iter_mut().zip(&layout.groups) {
            let passed = Self::visible_from(self.length, group.window) / layout.block_size;
            for block in table.iter_mut().take(passed) {
                *block = None;
            }
        }
    }

    /// Gives back the blocks that were taken for positions that were not reached.
    pub(crate) fn drop_unused(&mut self, layout: &CacheLayout) {
        let used = self.length.div_ceil(layout.block_size);
        for table in &mut self.tables {
            table.truncate(used);
        }
    }

    /// The physical blocks of a group.
    pub(crate) fn table(&self, group: usize) -> Vec<u32> {
        let physical = |block: &Option<Block>| block.as_ref().map_or(StepInputs::NO_BLOCK, Block::index);
        self.tables[group].iter().map(physical).collect()
    }

    /// Blocks held in a group.
    pub fn blocks(&self, group: usize) -> usize {
        self.tables[group].iter().flatten().count()
    }
}
