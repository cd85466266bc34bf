//! What the host gives a launch. Positions, lengths and tables are data here, never shapes of the plan.

use std::collections::HashSet;

use thiserror::Error;

use crate::{Choice, Plan};

/// The inputs of one step. Rows of one sequence stand in ascending position.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepInputs {
    /// `[rows]`: token ids; media rows carry the pad id.
    pub tokens: Vec<u32>,
    /// `[rows]`: from 0 within the sequence.
    pub positions: Vec<u32>,
    /// `[rows]`: the row's sequence, an index into the block tables.
    pub sequences: Vec<u32>,
    /// `[groups][rows]`: the first position that the row sees.
    pub visible_from: Vec<Vec<u32>>,
    /// `[groups][rows]`: one past the last position that the row sees.
    pub visible_until: Vec<Vec<u32>>,
    /// `[groups][sequences][blocks]`: physical block of each run of `block_size` positions;
    /// [`StepInputs::NO_BLOCK`] where the sequence holds none any more.
    pub block_tables: Vec<Vec<Vec<u32>>>,
    /// Rows whose result is asked for, ascending.
    pub wanted: Vec<u32>,
    /// `[wanted]`: how to choose the next token, where one is to be chosen.
    pub sampling: Vec<Option<Choice>>,
}

/// A rule of inputs that a batch breaks. It is a fault of the engine, never of a user's input.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("step inputs: {0}")]
pub struct InputError(pub String);

impl StepInputs {
    /// The entry of a block table where the sequence holds no block.
    pub const NO_BLOCK: u32 = u32::MAX;

    /// Proves that a step with these inputs touches only what exists: `blocks` physical blocks a group.
    pub fn check(&self, plan: &Plan, blocks: &[usize]) -> Result<(), InputError> {
        let rows = self.tokens.len();
        let rule = |holds: bool, broken: &dyn Fn() -> String| if holds { Ok(()) } else { Err(InputError(broken())) };
        rule(rows > 0, &|| "no rows".into())?;
        let groups = plan.cache.groups.len();
        rule(self.positions.len() == rows && self.sequences.len() == rows, &|| {
            format!("{rows} tokens, {} positions, {} sequences", self.positions.len(), self.sequences.len())
        })?;
        rule(
            self.visible_from.len() == groups
                && self.visible_until.len() == groups
                && self.block_tables.len() == groups
                && blocks.len() == groups,
            &|| format!("a list for each of the {groups} cache groups is wanted"),
        )?;
        let entries = plan.entries();
        if let Some(token) = self.tokens.iter().find(|&&token| token as usize >= entries) {
            return Err(InputError(format!("token {token} has no entry in a table of {entries}")));
        }
        rule(self.wanted.windows(2).all(|pair| pair[0] < pair[1]), &|| "wanted rows ascend".into())?;
        rule(self.wanted.last().is_none_or(|&last| (last as usize) < rows), &|| "a wanted row does not exist".into())?;
        rule(self.sampling.len() == self.wanted.len(), &|| "one sampling rule a wanted row".into())?;
        for (row, choice) in self.wanted.iter().zip(&self.sampling) {
            if let Some(fault) = choice.as_ref().and_then(|choice| choice.fault(plan.vocabulary())) {
                return Err(InputError(format!("row {row} chooses with {fault}")));
            }
        }
        let block_size = plan.cache.block_size as u32;
        for (group, &blocks) in blocks.iter().enumerate() {
            let (from, until) = (&self.visible_from[group], &self.visible_until[group]);
            rule(from.len() == rows && until.len() == rows, &|| "visibility of every row is wanted".into())?;
            let mut written = HashSet::with_capacity(rows);
            for row in 0..rows {
                let (position, first, end) = (self.positions[row], from[row], until[row]);
                rule(first <= position && position < end, &|| {
                    format!("row {row} at position {position} sees {first}..{end}, which leaves itself out")
                })?;
                let Some(table) = self.block_tables[group].get(self.sequences[row] as usize) else {
                    return Err(InputError(format!("row {row} has no block table in group {group}")));
                };
                // Two rows of one slot would be written by two threads at once.
                let slot = (table.get((position / block_size) as usize), position % block_size);
                rule(written.insert(slot), &|| {
                    format!("row {row} has the cache slot of another row in group {group}")
                })?;
                let span = (first / block_size) as usize..((end - 1) / block_size) as usize + 1;
                let held = table.get(span.clone());
                rule(held.is_some_and(|held| held.iter().all(|&block| (block as usize) < blocks)), &|| {
                    format!("row {row} sees blocks {span:?} of group {group}, which its table does not hold")
                })?;
            }
        }
        Ok(())
    }
}
