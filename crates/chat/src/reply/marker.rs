//! Which ids of a tokenizer mean something in a reply.

use crate::tokenizer::Tokenizer;

/// What a control token means in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// `<|channel>`
    ChannelOpen,
    /// `<channel|>`
    ChannelClose,
    /// `<|tool_call>`
    CallOpen,
    /// `<tool_call|>`
    CallClose,
    /// `<|tool_response>`
    ResponseOpen,
    /// `<|turn>`
    TurnOpen,
    /// `<turn|>`
    TurnClose,
    /// Any other control token: nothing.
    Other,
}

impl Marker {
    /// Whether a call ends with it.
    pub fn ends_call(self) -> bool {
        matches!(self, Marker::CallOpen | Marker::CallClose | Marker::ResponseOpen | Marker::TurnClose)
    }

    fn spelling(self) -> Option<&'static str> {
        Some(match self {
            Marker::ChannelOpen => "<|channel>",
            Marker::ChannelClose => "<channel|>",
            Marker::CallOpen => CALL_OPEN,
            Marker::CallClose => CALL_CLOSE,
            Marker::ResponseOpen => "<|tool_response>",
            Marker::TurnOpen => "<|turn>",
            Marker::TurnClose => "<turn|>",
            Marker::Other => return None,
        })
    }
}

/// How the token that opens a call is spelled.
pub const CALL_OPEN: &str = "<|tool_call>";

/// How the token that closes a call is spelled.
pub const CALL_CLOSE: &str = "<tool_call|>";

/// The marker of a token; `None` if it is an ordinary one.
pub fn marker(tokenizer: &Tokenizer, id: u32) -> Option<Marker> {
    if !tokenizer.is_special(id) {
        return None;
    }
    let spelling = tokenizer.token_text(id);
    let known = [
        Marker::ChannelOpen,
        Marker::ChannelClose,
        Marker::CallOpen,
        Marker::CallClose,
        Marker::ResponseOpen,
        Marker::TurnOpen,
        Marker::TurnClose,
    ];
    Some(known.into_iter().find(|known| known.spelling() == spelling).unwrap_or(Marker::Other))
}
