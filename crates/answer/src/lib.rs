//! From a question in words to an answer in words: where `chat`, which knows text and no engine, meets `engine`, which
//! knows ids and no text. Whoever asks (a terminal, a file of questions, a server) asks through this.
//!
//! [`Texts`] is the text side of a model. It makes a [`Question`] of messages, and of that, with [`Settings`], the
//! requests for a scheduler; a [`Listener`] hears the answer as it grows, and the whole [`Answer`] at the end.

mod answer;
mod best;
mod error;
mod follower;
mod settings;
mod texts;

pub use answer::{Answer, Finish, Piece, TokenScore, Usage};
pub use error::{Error, Result};
pub use settings::Settings;
pub use texts::{Question, Texts};

/// Hears one answer, on the engine's thread: what it does holds up everybody's next step.
pub trait Listener: Send {
    /// A piece of the answer, or how far the prompt is.
    fn piece(&mut self, piece: Piece);

    /// The end, told exactly once; nothing comes after.
    fn answered(&mut self, answer: Result<Answer>);

    /// Whether nobody listens any more; the answer then ends within a step.
    fn is_gone(&self) -> bool {
        false
    }
}
