//! A reply is split into text, thought and calls, the same way however it comes.

#[path = "../common/mod.rs"]
mod common;

mod bodies;
mod channels;
mod properties;
mod script;
mod speed;
mod stops;
mod tools;
