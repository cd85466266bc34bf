//! How the rows of a step are shared out.

/// Rows for each sequence of which `remaining[i]` tokens are not cached yet, the oldest first; all are at least 1.
///
/// A sequence that needs one row (it is generating) gets it. Of what is left of `budget`, at most `chunk` while any
/// sequence generates, so that its next token does not wait long, half goes to the oldest prompt, which so comes to
/// its end whatever arrives, and half to the shortest, which so need not wait for a long one.
pub(crate) fn share(remaining: &[usize], budget: usize, chunk: usize) -> Vec<usize> {
    let mut rows = vec![0; remaining.len()];
    let mut left = budget;
    for (rows, _) in rows.iter_mut().zip(remaining).filter(|(_, remaining)| **remaining == 1) {
        *rows = left.min(1);
        left -= *rows;
    }
    if left < budget {
        left = left.min(chunk);
    }
    let mut prompts: Vec<usize> = (0..remaining.len()).filter(|&i| remaining[i] > 1).collect();
    let Some(&oldest) = prompts.first() else { return rows };
    rows[oldest] = remaining[oldest].min(left.div_ceil(2));
    left -= rows[oldest];
    prompts.sort_by_key(|&i| (remaining[i], i));
    for i in prompts.into_iter().chain([oldest]) {
        let more = (remaining[i] - rows[i]).min(left);
        rows[i] += more;
        left -= more;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_long_prompt_stalls_neither_a_token_nor_a_short_prompt() {
        assert_eq!(share(&[1, 1000, 20, 1], 64, 32), [1, 16, 16, 1]);
        assert_eq!(share(&[1000, 20], 64, 32), [44, 20]);
        assert_eq!(share(&[1000], 64, 32), [64]);
        assert_eq!(share(&[1, 1, 1], 2, 1), [1, 1, 0]);
        assert_eq!(share(&[5, 5, 5], 9, 4), [5, 4, 0]);
    }

    proptest! {
        #[test]
        fn nothing_is_wasted_or_promised_twice(
            remaining in prop::collection::vec(prop_oneof![Just(1usize), 1usize..300], 0..20),
            budget in 1usize..200,
            chunk in 1usize..200,
        ) {
            let rows = share(&remaining, budget, chunk);
            prop_assert!(rows.iter().zip(&remaining).all(|(rows, remaining)| rows <= remaining));
            let generating = remaining.iter().filter(|&&r| r == 1).count();
            let prompts: usize = remaining.iter().filter(|&&r| r > 1).sum();
            let for_prompts = budget.saturating_sub(generating).min(if generating > 0 { chunk } else { budget });
            prop_assert_eq!(rows.iter().sum::<usize>(), generating.min(budget) + prompts.min(for_prompts));
            if let Some(oldest) = remaining.iter().position(|&r| r > 1) {
                prop_assert!(rows[oldest] >= remaining[oldest].min(for_prompts.div_ceil(2)));
            }
        }
    }
}
