//! Values: what one step hands to the next. A value is written by exactly one step, whole.

use crate::Site;

/// A value of the plan, by its place in [`Plan::values`](crate::Plan::values).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub u32);

impl Value {
    /// The place in the plan's list.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a value's rows are: a plan knows no other lengths, so there is nothing to infer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rows {
    /// The token rows of the step.
    Tokens,
    /// The token rows whose result is asked for, a subset in the same order; may be empty.
    Wanted,
}

/// What one column of a value holds; four bytes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// A number.
    F32,
    /// An index.
    U32,
}

/// Shape and origin of a value: `[rows, columns]`, row-major, no gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueSpec {
    /// The step that writes it.
    pub site: Site,
    /// Its name in listings, unique in the plan.
    pub name: String,
    /// What its rows are.
    pub rows: Rows,
    /// Numbers a row.
    pub columns: usize,
    /// What a column holds.
    pub element: Element,
}

/// Consecutive columns of a value, all its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slice {
    /// The value read.
    pub value: Value,
    /// The first column.
    pub first: usize,
    /// How many columns.
    pub columns: usize,
}
