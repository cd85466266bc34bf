//! How an answer is to be made; what is left open is the model's own.

use chat::SamplingDefaults;
use engine::Rules;
use plan::Sampling;

/// How an answer is to be made. What is `None` is taken from the model's `generation_config.json`, and where that
/// does not say, changes nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// The most tokens of the answer; by default until the context is full.
    pub max_tokens: Option<usize>,
    /// 0 always takes the likeliest token.
    pub temperature: Option<f32>,
    /// Choose among so many of the likeliest tokens; 0 among all.
    pub top_k: Option<u32>,
    /// Choose among the likeliest tokens that together have this probability.
    pub top_p: Option<f32>,
    /// Choose among tokens at least so likely, as a share of the likeliest.
    pub min_p: Option<f32>,
    /// Above 1: what was said before becomes less likely.
    pub repetition_penalty: Option<f32>,
    /// Subtracted from the logit of each token that the answer has.
    pub presence_penalty: Option<f32>,
    /// The same for each time that the answer has it.
    pub frequency_penalty: Option<f32>,
    /// Added to logits, by token.
    pub bias: Vec<(u32, f32)>,
    /// The same seed gives the same answer; a new one each time if left open.
    pub seed: Option<u64>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Log-probabilities of the tokens and of so many of the likeliest in their places.
    pub log_probabilities: Option<u32>,
    /// Makes so many answers and gives the one whose tokens are likeliest on average; 0 and 1 make one.
    pub best_of: usize,
}

impl Settings {
    /// The rules of the engine, `stop_ids` being those of a prompt of so many tokens.
    pub(crate) fn rules(
        &self,
        defaults: &SamplingDefaults,
        seed: u64,
        prompt_tokens: usize,
        stop_ids: &[u32],
    ) -> Rules {
        let default_temperature = match defaults.do_sample {
            Some(false) => Some(0.0),
            _ => defaults.temperature,
        };
        let sampling = Sampling {
            temperature: self.temperature.or(default_temperature).unwrap_or(1.0),
            top_k: self.top_k.or(defaults.top_k).unwrap_or(0),
            top_p: self.top_p.or(defaults.top_p).unwrap_or(1.0),
            min_p: self.min_p.or(defaults.min_p).unwrap_or(0.0),
            seed,
        };
        let forbidden = defaults.suppress_tokens.iter().map(|&token| (token, f32::NEG_INFINITY));
        let least_in_all = defaults.min_length.map(|length| (length as usize).saturating_sub(prompt_tokens));
        let least = defaults.min_new_tokens.map(|least| least as usize).or(least_in_all).unwrap_or(0);
        let not_at_first = defaults.begin_suppress_tokens.iter().map(|&token| (token, 1));
        Rules {
            sampling,
            repetition_penalty: self.repetition_penalty.or(defaults.repetition_penalty).unwrap_or(1.0),
            presence_penalty: self.presence_penalty.or(defaults.presence_penalty).unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.or(defaults.frequency_penalty).unwrap_or(0.0),
            bias: self.bias.iter().copied().chain(forbidden).chain(defaults.bias.iter().copied()).collect(),
            not_before: stop_ids.iter().map(|&id| (id, least)).chain(not_at_first).collect(),
        }
    }

    /// The texts that end an answer: the caller's, and the model's own.
    pub(crate) fn stop_texts(&self, defaults: &SamplingDefaults) -> Vec<String> {
        self.stop.iter().chain(&defaults.stop_strings).cloned().collect()
    }
}

/// A seed that a person can type again.
pub(crate) fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() >> 32
}
