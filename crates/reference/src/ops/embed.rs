//! A row of a table.

/// `out[i] = entry[i] * scale`, `entry` being the token's row of the table, decoded. Panics unless the
/// lengths agree.
pub fn embed(out: &mut [f32], entry: &[f32], scale: f32) {
    super::scale::scale(out, entry, scale);
}
