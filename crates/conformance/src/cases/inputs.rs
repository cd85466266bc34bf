//! Inputs of a case's steps: several sequences, blocks scattered over the cache, given back as windows pass them
//! and taken again by others.

use plan::{CacheLayout, StepInputs};

use super::draft::{Launches, TOKENS};
use crate::random::Random;

/// The rows that one sequence has in a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub sequence: usize,
    pub rows: usize,
}

/// Which rows of a step are wanted.
#[derive(Debug, Clone, Copy)]
pub(super) enum Want {
    None,
    Some,
    All,
}

/// Two-way visibility in groups with a window: the rows of a piece see each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Spans {
    Causal,
    TwoWay,
}

/// The steps of a case that has no cache: one row; several sequences; no row wanted; two rows.
pub(super) fn without_cache(random: &mut Random) -> Launches {
    let layout = CacheLayout { block_size: 16, groups: vec![] };
    let steps = [
        (vec![(0, 1)], Want::All),
        (vec![(1, 1), (2, 5), (3, 11)], Want::Some),
        (vec![(4, 17)], Want::None),
        (vec![(5, 1), (4, 1)], Want::All),
    ];
    let steps = steps.map(|(pieces, want)| {
        (pieces.into_iter().map(|(sequence, rows)| Piece { sequence, rows }).collect::<Vec<_>>(), want)
    });
    let mut writer = Writer::new(random, &layout, 6, 0);
    for sequence in &mut writer.sequences {
        // Positions mean nothing without a cache but to rope, where far ones are the hard ones.
        sequence.length = writer.random.below(6_000);
    }
    for (pieces, want) in &steps {
        writer.step(pieces, *want, Spans::Causal);
    }
    writer.finish()
}

/// The steps of a case with a cache: prompts, decoding, a sequence that ends and one that takes its blocks.
pub(super) fn with_cache(random: &mut Random, layout: &CacheLayout, spans: Spans) -> Launches {
    let piece = |sequence, rows| Piece { sequence, rows };
    let mut writer = Writer::new(random, layout, 4, 120);
    writer.step(&[piece(0, 9)], Want::None, spans);
    writer.step(&[piece(0, 8), piece(1, 5), piece(2, 33)], Want::Some, spans);
    writer.step(&[piece(2, 1), piece(0, 1), piece(1, 1)], Want::All, Spans::Causal);
    writer.end(2);
    writer.step(&[piece(1, 20), piece(3, 17), piece(0, 1)], Want::All, spans);
    writer.step(&[piece(3, 1)], Want::All, Spans::Causal);
    writer.step(&[piece(0, 1), piece(1, 2), piece(3, 16)], Want::Some, spans);
    writer.finish()
}

/// One sequence of `rows`, then token by token.
pub(super) fn long(random: &mut Random, layout: &CacheLayout, rows: usize) -> Launches {
    let mut writer = Writer::new(random, layout, 1, rows + 2);
    writer.step(&[Piece { sequence: 0, rows }], Want::Some, Spans::Causal);
    for _ in 0..2 {
        writer.step(&[Piece { sequence: 0, rows: 1 }], Want::All, Spans::Causal);
    }
    writer.finish()
}

#[derive(Clone, Default)]
struct Sequence {
    length: usize,
    /// `[groups][logical blocks]`
    tables: Vec<Vec<u32>>,
}

struct Writer<'a> {
    random: &'a mut Random,
    layout: &'a CacheLayout,
    /// `[groups]`, the next one last.
    free: Vec<Vec<u32>>,
    blocks: Vec<usize>,
    sequences: Vec<Sequence>,
    inputs: Vec<StepInputs>,
}

impl<'a> Writer<'a> {
    /// `positions`: the most that all sequences together have.
    fn new(random: &'a mut Random, layout: &'a CacheLayout, sequences: usize, positions: usize) -> Writer<'a> {
        let groups = layout.groups.len();
        let blocks = vec![positions.div_ceil(layout.block_size) + sequences; groups];
        let mut free: Vec<Vec<u32>> = blocks.iter().map(|&blocks| (0..blocks as u32).collect()).collect();
        free.iter_mut().for_each(|blocks| random.shuffle(blocks));
        let sequence = Sequence { length: 0, tables: vec![vec![]; groups] };
        Writer { random, layout, free, blocks, sequences: vec![sequence; sequences], inputs: vec![] }
    }

    fn visible_from(position: usize, window: Option<usize>) -> usize {
        window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    fn step(&mut self, pieces: &[Piece], want: Want, spans: Spans) {
        let groups = self.layout.groups.len();
        let mut inputs = StepInputs {
            visible_from: vec![vec![]; groups],
            visible_until: vec![vec![]; groups],
            ..StepInputs::default()
        };
        for (index, piece) in pieces.iter().enumerate() {
            self.grow(piece);
            let first = self.sequences[piece.sequence].length;
            for position in first..first + piece.rows {
                inputs.tokens.push(self.random.below(TOKENS) as u32);
                inputs.positions.push(position as u32);
                inputs.sequences.push(index as u32);
                for (group, layout) in self.layout.groups.iter().enumerate() {
                    let two_way = spans == Spans::TwoWay && layout.window.is_some();
                    let until = if two_way { first + piece.rows } else { position + 1 };
                    inputs.visible_from[group].push(Self::visible_from(position, layout.window) as u32);
                    inputs.visible_until[group].push(until as u32);
                }
            }
        }
        let table = |piece: &Piece, group: usize| self.sequences[piece.sequence].tables[group].clone();
        inputs.block_tables =
            (0..groups).map(|group| pieces.iter().map(|piece| table(piece, group)).collect()).collect();
        inputs.wanted = match want {
            Want::None => vec![],
            Want::All => (0..inputs.tokens.len() as u32).collect(),
            Want::Some => (0..inputs.tokens.len() as u32).filter(|_| self.random.below(3) == 0).collect(),
        };
        inputs.sampling = vec![None; inputs.wanted.len()];
        self.inputs.push(inputs);
        for piece in pieces {
            self.advance(piece);
        }
    }

    /// Takes the blocks that the piece's rows need and those before them that they see.
    fn grow(&mut self, piece: &Piece) {
        let sequence = &mut self.sequences[piece.sequence];
        let end = (sequence.length + piece.rows).div_ceil(self.layout.block_size);
        for (group, table) in sequence.tables.iter_mut().enumerate() {
            while table.len() < end {
                table.push(self.free[group].pop().expect("blocks for all positions"));
            }
        }
    }

    /// Gives back the blocks that no later row sees.
    fn advance(&mut self, piece: &Piece) {
        let sequence = &mut self.sequences[piece.sequence];
        sequence.length += piece.rows;
        for (group, table) in sequence.tables.iter_mut().enumerate() {
            let window = self.layout.groups[group].window;
            let passed = Self::visible_from(sequence.length, window) / self.layout.block_size;
            for block in table.iter_mut().take(passed).filter(|block| **block != StepInputs::NO_BLOCK) {
                self.free[group].push(*block);
                *block = StepInputs::NO_BLOCK;
            }
        }
    }

    /// Ends a sequence: all its blocks are free, the next to be taken.
    fn end(&mut self, sequence: usize) {
        let tables = std::mem::take(&mut self.sequences[sequence].tables);
        for (free, table) in self.free.iter_mut().zip(tables) {
            free.extend(table.into_iter().filter(|block| *block != StepInputs::NO_BLOCK));
        }
    }

    fn finish(self) -> Launches {
        Launches { inputs: self.inputs, blocks: self.blocks }
    }
}
