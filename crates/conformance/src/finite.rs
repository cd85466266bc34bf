//! The first value that is no number.

use std::fmt;

use serde::Serialize;

use crate::divergence::step_of;
use crate::subject::{Extent, Track};
use crate::{CheckError, Make, Subject};

/// The first value of a run that is infinite or no number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FirstNonFinite {
    /// The backend's name.
    pub backend: String,
    /// The step that wrote it: `layer 7 q_norm`.
    pub site: String,
    /// The step's operation.
    pub op: &'static str,
    /// The value's name.
    pub value: String,
    /// The row: a position of the text.
    pub row: usize,
    /// The column.
    pub column: usize,
}

impl fmt::Display for FirstNonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FirstNonFinite { backend, site, op, value, row, column } = self;
        write!(f, "{backend}: first value that is not finite: {site} ({op}): {value}, row {row}, column {column}")
    }
}

/// Runs `tokens` with every value watched, `piece` rows a step and every row wanted; `None` if all are finite.
/// Of several it reports the first step of the first piece.
pub fn finite(
    subject: &Subject,
    backend: &Make,
    tokens: &[u32],
    piece: usize,
) -> Result<Option<FirstNonFinite>, CheckError> {
    let piece = piece.clamp(1, tokens.len().max(1));
    let mut track = Track::new(subject, backend, Extent { tokens: tokens.len(), piece }, vec![], true)?;
    for (index, rows) in tokens.chunks(piece).enumerate() {
        if let Some(found) = track.next(rows)?.non_finite.first() {
            let spec = subject.plan.value(found.value);
            return Ok(Some(FirstNonFinite {
                backend: track.name(),
                site: spec.site.to_string(),
                op: step_of(&subject.plan, found.value).map_or("", |step| step.op.name()),
                value: spec.name.clone(),
                row: index * piece + found.row,
                column: found.column,
            }));
        }
    }
    Ok(None)
}
