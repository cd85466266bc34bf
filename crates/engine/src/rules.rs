//! How the tokens of one answer are chosen, and what of it depends on what was said before.

use std::collections::BTreeMap;

use plan::{Adjustment, Sampling};

use crate::EngineError;

/// The rules by which one answer's tokens are chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Temperature and what is kept of the distribution.
    pub sampling: Sampling,
    /// Above 1 makes tokens of the prompt and the answer less likely, as `transformers` does (Keskar et al. 2019);
    /// 1 changes nothing.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of each token that the answer has.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit once for each time that the answer has it.
    pub frequency_penalty: f32,
    /// Added to logits, by token; -inf forbids one.
    pub bias: Vec<(u32, f32)>,
    /// Tokens that may not be among the first so many of the answer.
    pub not_before: Vec<(u32, usize)>,
}

impl From<Sampling> for Rules {
    fn from(sampling: Sampling) -> Rules {
        Rules {
            sampling,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            bias: vec![],
            not_before: vec![],
        }
    }
}

impl Rules {
    /// An error that names the first rule out of its range.
    pub(crate) fn check(&self, vocabulary: usize) -> Result<(), EngineError> {
        let Sampling { temperature, top_p, min_p, .. } = self.sampling;
        let rules = [
            ("temperature", temperature, temperature.is_finite() && temperature >= 0.0, "a number of at least 0"),
            ("top_p", top_p, top_p > 0.0 && top_p <= 1.0, "a number above 0 and at most 1"),
            ("min_p", min_p, (0.0..=1.0).contains(&min_p), "a number from 0 to 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0,
                "a number above 0",
            ),
            ("presence_penalty", self.presence_penalty, self.presence_penalty.is_finite(), "a number"),
            ("frequency_penalty", self.frequency_penalty, self.frequency_penalty.is_finite(), "a number"),
        ];
        for (name, found, holds, wanted) in rules {
            if !holds {
                return Err(EngineError::Rule { name, found: found.to_string(), wanted });
            }
        }
        for &(token, add) in &self.bias {
            if add.is_nan() || add == f32::INFINITY {
                return Err(EngineError::Rule { name: "bias", found: add.to_string(), wanted: "a number or -inf" });
            }
            if token as usize >= vocabulary {
                return Err(EngineError::UnknownToken { token, vocabulary });
            }
        }
        match self.not_before.iter().find(|(token, _)| *token as usize >= vocabulary) {
            Some(&(token, _)) => Err(EngineError::UnknownToken { token, vocabulary }),
            None => Ok(()),
        }
    }
}

/// What the rules make of the tokens so far.
#[derive(Debug)]
pub(crate) struct History {
    rules: Rules,
    /// By token: what the rules say of it.
    tokens: BTreeMap<u32, Seen>,
    generated: usize,
}

#[derive(Debug, Default)]
struct Seen {
    /// In the prompt or the answer, where repetition counts.
    repeated: bool,
    /// Times in the answer.
    generated: u32,
    bias: f32,
    not_before: usize,
}

impl History {
    pub fn new(rules: Rules, prompt: &[u32]) -> History {
        let mut tokens = BTreeMap::<u32, Seen>::new();
        if rules.repetition_penalty != 1.0 {
            for &token in prompt {
                tokens.entry(token).or_default().repeated = true;
            }
        }
        for &(token, add) in &rules.bias {
            let seen = tokens.entry(token).or_default();
            seen.bias = (seen.bias + add).min(f32::MAX);
        }
        for &(token, count) in &rules.not_before {
            let seen = tokens.entry(token).or_default();
            seen.not_before = seen.not_before.max(count);
        }
        History { rules, tokens, generated: 0 }
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Tokens of the answer so far.
    pub fn generated(&self) -> usize {
        self.generated
    }

    /// The answer has this token now.
    pub fn add(&mut self, token: u32) {
        self.generated += 1;
        let Rules { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.rules;
        if repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0 {
            let seen = self.tokens.entry(token).or_default();
            seen.repeated = repetition_penalty != 1.0;
            seen.generated += 1;
        }
    }

    /// What is done to logits before the next token is chosen, ascending by token.
    pub fn adjustments(&self) -> Vec<Adjustment> {
        let adjustment = |(&token, seen): (&u32, &Seen)| {
            let mut penalty = 0.0;
            if seen.generated > 0 {
                penalty = self.rules.presence_penalty + self.rules.frequency_penalty * seen.generated as f32;
            }
            let is_forbidden = seen.bias == f32::NEG_INFINITY || self.generated < seen.not_before;
            // Sums of large numbers stay numbers.
            let sum = (seen.bias - penalty).clamp(f32::MIN, f32::MAX);
            let add = if is_forbidden { f32::NEG_INFINITY } else { sum };
            let changes = seen.repeated || add != 0.0;
            changes.then_some(Adjustment { token, repeated: seen.repeated, add })
        };
        self.tokens.iter().filter_map(adjustment).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(history: &History) -> Vec<(u32, bool, f32)> {
        history.adjustments().iter().map(|a| (a.token, a.repeated, a.add)).collect()
    }

    #[test]
    fn neutral_rules_adjust_nothing() {
        let mut history = History::new(Rules::from(Sampling::GREEDY), &[1, 2, 3]);
        history.add(4);
        assert_eq!(added(&history), []);
    }

    #[test]
    fn presence_counts_once_and_frequency_each_time_in_the_answer_alone() {
        let rules = Rules { presence_penalty: 0.5, frequency_penalty: 0.25, ..Rules::from(Sampling::GREEDY) };
        let mut history = History::new(rules, &[7, 7, 7]);
        history.add(9);
        history.add(5);
        history.add(9);
        assert_eq!(added(&history), [(5, false, -0.75), (9, false, -1.0)]);
    }

    #[test]
    fn repetition_is_of_the_prompt_and_the_answer() {
        let rules = Rules { repetition_penalty: 1.2, bias: vec![(7, 1.0)], ..Rules::from(Sampling::GREEDY) };
        let mut history = History::new(rules, &[7, 3]);
        history.add(9);
        assert_eq!(added(&history), [(3, true, 0.0), (7, true, 1.0), (9, true, 0.0)]);
    }

    #[test]
    fn forbidden_beginnings_are_free_later() {
        let rules = Rules { not_before: vec![(1, 2), (6, 1)], ..Rules::from(Sampling::GREEDY) };
        let mut history = History::new(rules, &[7]);
        assert_eq!(added(&history), [(1, false, f32::NEG_INFINITY), (6, false, f32::NEG_INFINITY)]);
        history.add(4);
        assert_eq!(added(&history), [(1, false, f32::NEG_INFINITY)]);
        history.add(4);
        assert_eq!(added(&history), []);
    }

    #[test]
    fn penalties_too_large_for_a_float_stay_numbers() {
        let huge = Rules {
            presence_penalty: -f32::MAX,
            frequency_penalty: -f32::MAX,
            bias: vec![(5, f32::MAX), (5, f32::MAX), (6, f32::NEG_INFINITY)],
            ..Rules::from(Sampling::GREEDY)
        };
        let mut history = History::new(huge, &[]);
        [5, 5, 6].into_iter().for_each(|token| history.add(token));
        assert_eq!(added(&history), [(5, false, f32::MAX), (6, false, f32::NEG_INFINITY)]);
    }

    #[test]
    fn a_rule_out_of_range_is_named() {
        let greedy = Rules::from(Sampling::GREEDY);
        let told = |rules: Rules| rules.check(10).unwrap_err().to_string();
        let hot = Sampling { temperature: f32::NAN, ..Sampling::GREEDY };
        assert_eq!(told(Rules::from(hot)), "temperature is NaN, wanted a number of at least 0");
        assert!(told(Rules { repetition_penalty: 0.0, ..greedy.clone() }).starts_with("repetition_penalty is 0,"));
        assert!(told(Rules { bias: vec![(10, 1.0)], ..greedy.clone() }).starts_with("token id 10 is not in the"));
        assert!(Rules { bias: vec![(9, f32::NEG_INFINITY)], ..greedy }.check(10).is_ok());
    }
}
