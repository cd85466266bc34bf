//! Where two backends part: every value of a model compared step by step, in the order of the plan, so that
//! the first that differs names the step to look at.

use std::fmt;

use plan::{Element, Plan, Step, Value};
use serde::Serialize;

use crate::subject::{Extent, Track};
use crate::{CheckError, Make, Subject};

/// How backends are compared: what is no divergence yet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DivergenceOptions {
    /// Rows a step. Memory: three times this many rows of every value of the plan.
    pub piece: usize,
    /// Bound of [`StepDifference::relative`].
    pub largest: f32,
    /// Bound of [`StepDifference::mean`].
    pub mean: f32,
}

impl DivergenceOptions {
    /// f32 sums of another order, through all layers.
    pub const F32: DivergenceOptions = DivergenceOptions { piece: 8, largest: 1e-3, mean: 1e-4 };
    /// Keys and values in f16, which round by 2^-12, beside 15-bit activations, which add less; through all layers. A
    /// router whose scores nearly tie may choose another expert, which is no fault, but shows from there on.
    pub const FIFTEEN_BIT: DivergenceOptions = DivergenceOptions { piece: 8, largest: 0.1, mean: 0.01 };
}

/// Two backends compared, with the second one's steps fused and not.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Divergence {
    /// The backend that the other is measured against.
    pub reference: String,
    /// The backend that is measured.
    pub backend: String,
    /// Rows compared.
    pub rows: usize,
    /// The bounds that they were held to.
    pub options: DivergenceOptions,
    /// As the backend runs it, fused.
    pub fused: Comparison,
    /// With every step watched, which keeps a backend from fusing.
    pub watched: Comparison,
}

/// One run against the reference.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Every value that a step writes, in the order of the plan.
    pub steps: Vec<StepDifference>,
    /// The first of them that parts beyond a bound.
    pub first: Option<usize>,
    /// The first of them that is not finite in either backend.
    pub first_non_finite: Option<usize>,
}

/// One value of a plan in two backends.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepDifference {
    /// The step that writes it: `layer 7 q_norm`.
    pub site: String,
    /// The step's operation.
    pub op: &'static str,
    /// The value's name.
    pub value: String,
    /// Rows compared.
    pub rows: usize,
    /// Root mean square of the reference's numbers that are finite.
    pub rms: f32,
    /// The largest difference; `None` where nothing was compared.
    pub largest: Option<Place>,
    /// The largest difference as a share of the root mean square of the reference's row. An index that differs
    /// counts as 1; a number that is finite in one backend alone, or any difference from a row of zeros, as
    /// infinite.
    pub relative: f32,
    /// Where the largest relative difference is.
    pub relative_at: Option<Place>,
    /// Root mean square of all differences as a share of that of the reference's numbers; of indices the share that
    /// differs.
    pub mean: f32,
    /// The first number that is not finite in either backend.
    pub non_finite: Option<Place>,
}

/// One number in two backends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Place {
    /// The row: a position of the text.
    pub row: usize,
    /// The column.
    pub column: usize,
    /// What the reference has.
    pub reference: f32,
    /// What the backend has.
    pub backend: f32,
}

impl Place {
    fn difference(&self) -> f32 {
        if self.reference == self.backend || (self.reference.is_nan() && self.backend.is_nan()) {
            return 0.0;
        }
        let difference = (self.backend - self.reference).abs();
        if difference.is_nan() { f32::INFINITY } else { difference }
    }
}

/// Runs `tokens` on both backends, every row wanted, every value kept, and compares.
///
/// What a step appends to the cache is no value: a fault there shows in the attention that reads it.
pub fn divergence(
    subject: &Subject,
    reference: &Make,
    backend: &Make,
    tokens: &[u32],
    options: DivergenceOptions,
) -> Result<Divergence, CheckError> {
    let plan = &subject.plan;
    let values: Vec<Value> = plan.steps.iter().flat_map(|step| step.op.writes()).collect();
    let piece = options.piece.clamp(1, tokens.len().max(1));
    let extent = Extent { tokens: tokens.len(), piece };
    let mut want = Track::new(subject, reference, extent, values.clone(), false)?;
    let mut fused = Track::new(subject, backend, extent, values.clone(), false)?;
    let mut watched = Track::new(subject, backend, extent, values.clone(), true)?;
    let mut of_fused: Vec<Tally> = values.iter().map(|_| Tally::default()).collect();
    let mut of_watched = of_fused.clone();
    for (index, rows) in tokens.chunks(piece).enumerate() {
        let want = want.next(rows)?.kept;
        for (track, tallies) in [(&mut fused, &mut of_fused), (&mut watched, &mut of_watched)] {
            let got = track.next(rows)?.kept;
            for (place, tally) in tallies.iter_mut().enumerate() {
                let spec = plan.value(values[place]);
                let shape = Shape { first_row: index * piece, columns: spec.columns, element: spec.element };
                tally.compare(shape, &want[place], &got[place]);
            }
        }
    }
    let comparison = |tallies: Vec<Tally>| {
        let steps: Vec<StepDifference> =
            values.iter().zip(tallies).map(|(&value, tally)| tally.finish(plan, value)).collect();
        Comparison {
            first: steps.iter().position(|step| step.relative > options.largest || step.mean > options.mean),
            first_non_finite: steps.iter().position(|step| step.non_finite.is_some()),
            steps,
        }
    };
    Ok(Divergence {
        reference: want.name(),
        backend: fused.name(),
        rows: tokens.len(),
        options,
        fused: comparison(of_fused),
        watched: comparison(of_watched),
    })
}

/// The step that writes `value`.
pub(crate) fn step_of(plan: &Plan, value: Value) -> Option<&Step> {
    plan.steps.iter().find(|step| step.op.writes().contains(&value))
}

/// Rows of one value of one piece.
#[derive(Clone, Copy)]
struct Shape {
    first_row: usize,
    columns: usize,
    element: Element,
}

/// What is known of one value so far.
#[derive(Debug, Clone, Default)]
struct Tally {
    rows: usize,
    squares: f64,
    finite: usize,
    largest: Option<Place>,
    relative: f32,
    relative_at: Option<Place>,
    squares_of_differences: f64,
    differing: usize,
    non_finite: Option<Place>,
}

impl Tally {
    fn compare(&mut self, shape: Shape, want: &[f32], got: &[f32]) {
        let rows = want.chunks_exact(shape.columns).zip(got.chunks_exact(shape.columns));
        for (index, (want, got)) in rows.enumerate() {
            let row = shape.first_row + index;
            let finite = want.iter().filter(|number| number.is_finite());
            let (squares, count) =
                finite.fold((0.0, 0), |(sum, count), &number| (sum + f64::from(number).powi(2), count + 1));
            let rms = if count == 0 { 0.0 } else { (squares / count as f64).sqrt() as f32 };
            self.rows += 1;
            self.squares += squares;
            self.finite += count;
            for (column, (&reference, &backend)) in want.iter().zip(got).enumerate() {
                self.number(Place { row, column, reference, backend }, rms, shape.element);
            }
        }
    }

    fn number(&mut self, place: Place, rms: f32, element: Element) {
        if self.non_finite.is_none() && !(place.reference.is_finite() && place.backend.is_finite()) {
            self.non_finite = Some(place);
        }
        let difference = place.difference();
        self.squares_of_differences += f64::from(difference).powi(2);
        self.differing += usize::from(difference > 0.0);
        if self.largest.is_none_or(|largest| difference > largest.difference()) {
            self.largest = Some(place);
        }
        let relative = match (difference, element) {
            (0.0, _) => 0.0,
            (_, Element::U32) => 1.0,
            (_, Element::F32) => difference / rms,
        };
        if self.relative_at.is_none() || relative > self.relative {
            (self.relative, self.relative_at) = (relative, Some(place));
        }
    }

    fn finish(self, plan: &Plan, value: Value) -> StepDifference {
        let spec = plan.value(value);
        let mean = match (self.differing, spec.element) {
            (0, _) => 0.0,
            (differing, Element::U32) => differing as f64 / (self.rows * spec.columns) as f64,
            (_, Element::F32) => (self.squares_of_differences / self.squares).sqrt(),
        };
        StepDifference {
            site: spec.site.to_string(),
            op: step_of(plan, value).map_or("", |step| step.op.name()),
            value: spec.name.clone(),
            rows: self.rows,
            rms: (self.squares / self.finite.max(1) as f64).sqrt() as f32,
            largest: self.largest,
            relative: self.relative,
            relative_at: self.relative_at,
            mean: mean as f32,
            non_finite: self.non_finite,
        }
    }
}

impl StepDifference {
    /// The largest difference; 0 where nothing was compared.
    pub fn absolute(&self) -> f32 {
        self.largest.map_or(0.0, |place| place.difference())
    }
}

impl Divergence {
    /// Whether no step parts beyond the bound and every number is finite.
    pub fn agrees(&self) -> bool {
        [&self.fused, &self.watched].iter().all(|run| run.first.is_none() && run.first_non_finite.is_none())
    }

    fn verdict(&self, f: &mut fmt::Formatter<'_>, how: &str, run: &Comparison) -> fmt::Result {
        match run.first.and_then(|first| run.steps[first].relative_at.map(|at| (&run.steps[first], at))) {
            Some((step, at)) => writeln!(
                f,
                "{how}: first differs at {} ({}): by {:.2e} in the mean, at most by {:.2e} of its row's size, at row {}, \
                 column {}: {} instead of {}",
                step.site, step.op, step.mean, step.relative, at.row, at.column, at.backend, at.reference
            )?,
            None => writeln!(
                f,
                "{how}: no step differs by more than {} in the mean, nor anywhere by more than {} of its row's size",
                self.options.mean, self.options.largest
            )?,
        }
        if let Some((step, at)) =
            run.first_non_finite.and_then(|first| run.steps[first].non_finite.map(|at| (&run.steps[first], at)))
        {
            writeln!(
                f,
                "{how}: first value that is not finite: {} ({}), row {}, column {}: {}, the reference has {}",
                step.site, step.op, at.row, at.column, at.backend, at.reference
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} against {}, {} rows", self.backend, self.reference, self.rows)?;
        self.verdict(f, "fused", &self.fused)?;
        self.verdict(f, "step by step", &self.watched)?;
        let heads = ["site", "op", "rms", "fused", "largest", "mean", "by step", "largest", "mean"];
        let [site, op, rms, fused, largest, mean, watched, of_largest, of_mean] = heads;
        writeln!(
            f,
            "\n  {site:<36} {op:<11} {rms:>8} {fused:>8} {largest:>8} {mean:>8} {watched:>8} {of_largest:>8} {of_mean:>8}"
        )?;
        for (index, (fused, watched)) in self.fused.steps.iter().zip(&self.watched.steps).enumerate() {
            let mark = match [self.fused.first, self.watched.first].contains(&Some(index)) {
                true => '>',
                false => ' ',
            };
            writeln!(
                f,
                "{mark} {:<36} {:<11} {:>8.1e} {:>8.1e} {:>8.1e} {:>8.1e} {:>8.1e} {:>8.1e} {:>8.1e}",
                fused.site,
                fused.op,
                fused.rms,
                fused.absolute(),
                fused.relative,
                fused.mean,
                watched.absolute(),
                watched.relative,
                watched.mean
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(want: &[f32], got: &[f32], element: Element) -> Tally {
        let mut tally = Tally::default();
        tally.compare(Shape { first_row: 4, columns: want.len(), element }, want, got);
        tally
    }

    #[test]
    fn a_difference_is_measured_by_the_size_of_its_row() {
        let tally = tally(&[3.0, -3.0], &[3.0, -3.3], Element::F32);
        assert!((tally.relative - 0.1).abs() < 1e-6, "{tally:?}");
        let at = tally.relative_at.unwrap();
        assert_eq!((at.row, at.column, at.backend), (4, 1, -3.3));
    }

    #[test]
    fn no_number_hides_behind_nan_zero_or_infinity() {
        let relative = |want: &[f32], got: &[f32]| tally(want, got, Element::F32).relative;
        assert_eq!(relative(&[1.0, 1.0], &[1.0, f32::NAN]), f32::INFINITY);
        assert_eq!(relative(&[1.0, f32::NAN], &[1.0, 1.0]), f32::INFINITY);
        assert_eq!(relative(&[0.0, 0.0], &[0.0, 1e-9]), f32::INFINITY);
        assert_eq!(relative(&[f32::INFINITY, 1.0], &[f32::NEG_INFINITY, 1.0]), f32::INFINITY);
        assert_eq!(relative(&[0.0, f32::NAN], &[-0.0, f32::NAN]), 0.0);
        assert!(tally(&[0.0, f32::NAN], &[0.0, f32::NAN], Element::F32).non_finite.is_some());
    }

    #[test]
    fn another_index_is_a_whole_difference() {
        assert_eq!(tally(&[7.0, 8.0], &[8.0, 7.0], Element::U32).relative, 1.0);
    }
}
