//! How far the distributions that two backends predict are apart.

use std::fmt;

use serde::Serialize;

use crate::subject::{Extent, Track};
use crate::{CheckError, Make, Subject};

/// Distance of predictions over the positions of a text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Distribution {
    /// The backend that the other is measured against.
    pub reference: String,
    /// The backend that is measured.
    pub backend: String,
    /// Positions compared.
    pub positions: usize,
    /// Mean of KL(reference || backend) a position, in nats.
    pub mean_kl: f64,
    /// Half of the positions have no more: unlike the mean, it is blind to few positions at which a router chose
    /// another of two experts that nearly tie.
    pub median_kl: f64,
    /// The largest of them.
    pub largest_kl: f64,
    /// Where that was.
    pub largest_at: usize,
    /// Positions at which both find the same token most probable.
    pub agreeing: usize,
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} against {}: KL {:.2e} nats a position (median {:.2e}, largest {:.2e} at {}), the same best token at {} of {}",
            self.backend,
            self.reference,
            self.mean_kl,
            self.median_kl,
            self.largest_kl,
            self.largest_at,
            self.agreeing,
            self.positions
        )
    }
}

/// Runs `tokens` on both backends, `piece` rows a step, and compares the softmax of all logits, in f64.
/// Logits that are not finite give an infinite KL.
pub fn distribution(
    subject: &Subject,
    reference: &Make,
    backend: &Make,
    tokens: &[u32],
    piece: usize,
) -> Result<Distribution, CheckError> {
    let piece = piece.clamp(1, tokens.len().max(1));
    let extent = Extent { tokens: tokens.len(), piece };
    let keep = vec![subject.plan.logits];
    let mut want = Track::new(subject, reference, extent, keep.clone(), false)?;
    let mut got = Track::new(subject, backend, extent, keep, false)?;
    let mut kls: Vec<f64> = Vec::with_capacity(tokens.len());
    let mut agreeing = 0;
    for rows in tokens.chunks(piece) {
        let (want, got) = (want.next(rows)?, got.next(rows)?);
        let columns = subject.plan.vocabulary();
        for (want, got) in want.kept[0].chunks_exact(columns).zip(got.kept[0].chunks_exact(columns)) {
            kls.push(kl(want, got));
            agreeing += usize::from(best(want) == best(got));
        }
    }
    let largest_at = (0..kls.len()).max_by(|&a, &b| kls[a].total_cmp(&kls[b])).unwrap_or(0);
    let mut sorted = kls.clone();
    sorted.sort_by(f64::total_cmp);
    Ok(Distribution {
        reference: want.name(),
        backend: got.name(),
        positions: kls.len(),
        mean_kl: kls.iter().sum::<f64>() / kls.len() as f64,
        median_kl: sorted[(sorted.len() - 1) / 2],
        largest_kl: kls[largest_at],
        largest_at,
        agreeing,
    })
}

/// KL(p || q) of the softmaxes of two rows of logits, in nats.
fn kl(p: &[f32], q: &[f32]) -> f64 {
    if p.iter().chain(q).any(|logit| !logit.is_finite()) {
        return f64::INFINITY;
    }
    let log_total = |logits: &[f32]| {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
        f64::from(largest) + total.ln()
    };
    let (of_p, of_q) = (log_total(p), log_total(q));
    let terms = p.iter().zip(q).map(|(&p, &q)| {
        let (log_p, log_q) = (f64::from(p) - of_p, f64::from(q) - of_q);
        log_p.exp() * (log_p - log_q)
    });
    terms.sum()
}

/// The index of the largest, the first of equals.
fn best(logits: &[f32]) -> usize {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kl_of_known_distributions() {
        let (p, q) = ([0.0, 0.0], [0.0, 3f32.ln()]);
        let want = 0.5 * (0.5f64 / 0.25).ln() + 0.5 * (0.5f64 / 0.75).ln();
        assert!((kl(&p, &q) - want).abs() < 1e-7, "{}", kl(&p, &q));
        assert_eq!(kl(&p, &p), 0.0);
        assert_eq!(kl(&p, &[0.0, f32::NAN]), f64::INFINITY);
    }

    #[test]
    fn the_first_of_equals_is_best() {
        assert_eq!(best(&[0.0, 2.0, 2.0, 1.0]), 1);
    }
}
