//! The markbase command.
fn main() {}
