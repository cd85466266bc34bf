//! Answers as programs read them.

use std::time::Duration;

use answer::{Answer, TokenScore};
use chat::{Json, ParsedCall};
use serde::Serialize;

/// A tool call, its arguments an object.
#[derive(Serialize)]
pub struct Call {
    pub name: String,
    pub arguments: Json,
}

impl From<&ParsedCall> for Call {
    fn from(call: &ParsedCall) -> Call {
        Call { name: call.name.clone(), arguments: Json::Object(call.arguments.clone()) }
    }
}

/// An answer.
#[derive(Serialize)]
pub struct Whole {
    text: String,
    thought: String,
    tool_calls: Vec<Call>,
    finish_reason: &'static str,
    usage: Usage,
    timings: Timings,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<Score>>,
    seed: u64,
    token_ids: Vec<u32>,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    thought_tokens: usize,
}

#[derive(Serialize)]
struct Timings {
    queue_ms: f64,
    prompt_ms: f64,
    decode_ms: f64,
    prompt_tokens_per_second: f64,
    decode_tokens_per_second: f64,
}

/// A token's log-probability.
#[derive(Serialize)]
struct Score {
    token: String,
    bytes: Vec<u8>,
    logprob: f32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top_logprobs: Vec<Score>,
}

/// JSON has no infinity: what a token without any probability is told to have.
const IMPOSSIBLE: f32 = -9999.0;

impl From<TokenScore> for Score {
    fn from(score: TokenScore) -> Score {
        Score {
            token: score.text,
            bytes: score.bytes,
            logprob: score.log_probability.max(IMPOSSIBLE),
            top_logprobs: score.top.into_iter().map(Score::from).collect(),
        }
    }
}

/// Tokens a second; 0 where no time passed.
pub fn per_second(tokens: usize, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}

impl From<Answer> for Whole {
    fn from(answer: Answer) -> Whole {
        let Answer { usage, timings, .. } = answer;
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        Whole {
            text: answer.text,
            thought: answer.thought,
            tool_calls: answer.calls.iter().map(Call::from).collect(),
            finish_reason: answer.finish.name(),
            usage: Usage {
                prompt_tokens: usage.prompt_tokens,
                completion_tokens: usage.completion_tokens,
                total_tokens: usage.prompt_tokens + usage.completion_tokens,
                thought_tokens: usage.thought_tokens,
            },
            timings: Timings {
                queue_ms: milliseconds(timings.queue),
                prompt_ms: milliseconds(timings.prompt),
                decode_ms: milliseconds(timings.decode),
                prompt_tokens_per_second: per_second(usage.prompt_tokens, timings.prompt),
                decode_tokens_per_second: per_second(timings.decoded, timings.decode),
            },
            logprobs: answer.scores.map(|scores| scores.into_iter().map(Score::from).collect()),
            seed: answer.seed,
            token_ids: answer.ids,
        }
    }
}
