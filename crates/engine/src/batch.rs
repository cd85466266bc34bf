//! From work on sequences to the inputs of one step.

use plan::{Choice, Plan, StepInputs};

use crate::Sequence;

/// Rows of one sequence in a step, appended to what it has.
#[derive(Debug)]
pub struct Work<'a> {
    /// The sequence.
    pub sequence: &'a mut Sequence,
    /// The tokens at its next positions.
    pub tokens: &'a [u32],
    /// The rows whose result is asked for.
    pub wanted: Wanted,
    /// How the wanted rows choose the token after them, where they do.
    pub choice: Option<Choice>,
}

/// Rows of a piece of work whose result is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// None: the tokens are only cached.
    None,
    /// The last row.
    Last,
    /// Every row.
    All,
    /// Rows of the piece, from 0.
    Range(std::ops::Range<usize>),
}

impl Wanted {
    /// The rows as a range of a piece of `rows`.
    pub fn range(&self, rows: usize) -> std::ops::Range<usize> {
        match self {
            Wanted::None => 0..0,
            Wanted::Last => rows - 1..rows,
            Wanted::All => 0..rows,
            Wanted::Range(range) => range.start.min(rows)..range.end.min(rows),
        }
    }
}

/// The inputs of one step over `work`; each sequence has its blocks already.
pub(crate) fn step_inputs(plan: &Plan, work: &[Work]) -> StepInputs {
    let groups = plan.cache.groups.len();
    let mut inputs = StepInputs {
        visible_from: vec![vec![]; groups],
        visible_until: vec![vec![]; groups],
        block_tables: vec![vec![]; groups],
        ..StepInputs::default()
    };
    for (index, piece) in work.iter().enumerate() {
        let first_row = inputs.tokens.len() as u32;
        for (group, tables) in inputs.block_tables.iter_mut().enumerate() {
            tables.push(piece.sequence.table(group));
        }
        for (offset, &token) in piece.tokens.iter().enumerate() {
            let position = piece.sequence.length() + offset;
            inputs.tokens.push(token);
            inputs.positions.push(position as u32);
            inputs.sequences.push(index as u32);
            for (group, layout) in plan.cache.groups.iter().enumerate() {
                inputs.visible_from[group].push(Sequence::visible_from(position, layout.window) as u32);
                inputs.visible_until[group].push(position as u32 + 1);
            }
        }
        for row in piece.wanted.range(piece.tokens.len()) {
            inputs.wanted.push(first_row + row as u32);
            inputs.sampling.push(piece.choice.clone());
        }
    }
    inputs
}
