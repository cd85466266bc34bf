//! Generated plans in which one operation is under test: a backend's every operation, format and shape against
//! the reference, with inputs that are the same bits on both sides.

mod attend;
mod draft;
mod inputs;
mod products;
mod row_ops;
mod sampling;

use std::fmt;
use std::sync::Arc;

use checkpoint::Checkpoint;
use plan::{Backend, CompileOptions, Element, LogProbabilities, Plan, Sampled, StepInputs, StepOutputs, Value};
use reference::Reference;
use serde::Serialize;

use crate::random::Random;
use crate::{Arithmetic, CheckError, Make, Quantity, TensorSet, Tolerance, tolerance};
use draft::Draft;

/// A plan around one operation, the steps it runs, and what the reference makes of them.
#[derive(Debug, Clone)]
pub struct Case {
    name: String,
    op: &'static str,
    plan: Plan,
    launches: Vec<StepInputs>,
    /// Physical blocks a cache group.
    blocks: Vec<usize>,
    checks: Vec<Check>,
    want: Vec<StepOutputs>,
}

/// A value that is compared.
#[derive(Debug, Clone, Copy)]
struct Check {
    value: Value,
    quantity: Quantity,
    /// The least size that differences are a share of: what the numbers are to be expected to deviate by, where
    /// few of them may all be small by chance.
    least_size: f32,
}

/// All cases of one seed.
#[derive(Debug, Clone)]
pub struct Suite {
    checkpoint: Arc<Checkpoint>,
    cases: Vec<Case>,
}

/// What a backend made of all cases.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The backend's name.
    pub backend: String,
    /// The bounds that it was held to.
    pub arithmetic: Arithmetic,
    /// Every case, in order.
    pub cases: Vec<CaseReport>,
}

/// What a backend made of one case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CaseReport {
    /// The case: `linear q4 g64 33x192`.
    pub name: String,
    /// The operation under test.
    pub op: &'static str,
    /// Why the backend refused it, if it did.
    pub refused: Option<String>,
    /// What was compared; each value once fused and once step by step.
    pub checked: Vec<Checked>,
}

/// One value compared over all steps of a case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Checked {
    /// The value's name.
    pub value: String,
    /// Whether the backend watched every step, and so did not fuse.
    pub watched: bool,
    /// The bound's name.
    pub tolerance: &'static str,
    /// The bound.
    pub bound: f32,
    /// Numbers compared.
    pub numbers: usize,
    /// The largest difference, as a share of the numbers' size.
    pub largest: f32,
    /// The mean difference.
    pub mean: f32,
    /// Whether both are within their bounds.
    pub passed: bool,
}

impl Suite {
    /// The cases of `seed`, and the reference's answers. The weights stay in memory until the program ends: a few
    /// megabytes a call.
    pub fn new(seed: u64) -> Result<Suite, CheckError> {
        let mut random = Random::new(seed);
        let mut tensors = TensorSet::default();
        let mut cases = vec![];
        let mut draft = Draft::new(&mut random, &mut tensors, &mut cases);
        row_ops::add(&mut draft)?;
        products::add(&mut draft)?;
        attend::add(&mut draft)?;
        sampling::add(&mut draft)?;
        let mut suite = Suite { checkpoint: tensors.checkpoint("cases")?, cases };
        for index in 0..suite.cases.len() {
            let case = &suite.cases[index];
            suite.cases[index].want = case.outputs(&suite.checkpoint, Box::new(Reference::new()), false)?;
        }
        Ok(suite)
    }

    /// The cases.
    pub fn cases(&self) -> &[Case] {
        &self.cases
    }

    /// The cases of one operation alone.
    pub fn of_op(&self, op: &str) -> Suite {
        let cases = self.cases.iter().filter(|case| case.op == op).cloned().collect();
        Suite { checkpoint: self.checkpoint.clone(), cases }
    }

    /// Runs every case on a backend of its own, fused and step by step. What the backend refuses is in the
    /// report; other errors end the run.
    pub fn run(&self, backend: &Make, arithmetic: Arithmetic) -> Result<Report, CheckError> {
        let mut reports = vec![];
        for case in &self.cases {
            let mut report = CaseReport { name: case.name.clone(), op: case.op, refused: None, checked: vec![] };
            for watched in [false, true] {
                match case.outputs(&self.checkpoint, backend(), watched) {
                    Ok(got) => report.checked.extend(case.compare(&got, arithmetic, watched)),
                    Err(CheckError::Backend(refusal)) => report.refused = Some(refusal.to_string()),
                    Err(other) => return Err(other),
                }
            }
            reports.push(report);
        }
        Ok(Report { backend: backend().name(), arithmetic, cases: reports })
    }
}

impl Case {
    /// The case: `linear q4 g64 33x192`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The operation under test.
    pub fn op(&self) -> &'static str {
        self.op
    }

    fn outputs(
        &self,
        checkpoint: &Arc<Checkpoint>,
        mut backend: Box<dyn Backend>,
        watch: bool,
    ) -> Result<Vec<StepOutputs>, CheckError> {
        let most = |count: fn(&StepInputs) -> usize| self.launches.iter().map(count).max().unwrap_or(0);
        let options = CompileOptions {
            max_rows: most(|inputs| inputs.tokens.len()),
            max_wanted: most(|inputs| inputs.wanted.len()),
            keep: self.checks.iter().map(|check| check.value).collect(),
            watch,
        };
        backend.load(&self.plan.weights, checkpoint, &mut |_| {})?;
        backend.reserve_cache(&self.plan.cache, &self.blocks)?;
        let executable = backend.compile(&self.plan, &options)?;
        let mut all = vec![];
        for inputs in &self.launches {
            inputs.check(&self.plan, &self.blocks)?;
            let ticket = backend.launch(executable, inputs)?;
            let outputs = backend.collect(ticket)?;
            self.prove(&backend.name(), inputs, &outputs)?;
            all.push(outputs);
        }
        Ok(all)
    }

    fn prove(&self, backend: &str, inputs: &StepInputs, outputs: &StepOutputs) -> Result<(), CheckError> {
        for (place, check) in self.checks.iter().enumerate() {
            let spec = self.plan.value(check.value);
            let rows = match spec.rows {
                plan::Rows::Tokens => inputs.tokens.len(),
                plan::Rows::Wanted => inputs.wanted.len(),
            };
            let found = outputs.kept.get(place).map_or(0, Vec::len);
            if found != rows * spec.columns {
                let (backend, value) = (backend.to_owned(), spec.name.clone());
                return Err(CheckError::Kept { backend, value, wanted: rows * spec.columns, found });
            }
        }
        let wanted = inputs.sampling.iter().flatten().count();
        match outputs.sampled.len() == wanted {
            true => Ok(()),
            false => Err(CheckError::Sampled { backend: backend.to_owned(), wanted, found: outputs.sampled.len() }),
        }
    }

    fn compare(&self, got: &[StepOutputs], arithmetic: Arithmetic, watched: bool) -> Vec<Checked> {
        let both = || self.want.iter().zip(got);
        let mut checked = vec![];
        for (place, check) in self.checks.iter().enumerate() {
            let spec = self.plan.value(check.value);
            let pairs = both().flat_map(|(want, got)| zip(&want.kept[place], &got.kept[place]));
            // An index is another one or not.
            let size = if spec.element == Element::U32 { Size::One } else { Size::AtLeast(check.least_size) };
            let bound = tolerance(check.quantity, arithmetic);
            checked.push(Checked::of(&spec.name, watched, bound, &pairs.collect::<Vec<_>>(), size));
        }
        if self.op == "sample" {
            let ids = |outputs: &StepOutputs| outputs.sampled.iter().flat_map(ids).collect::<Vec<f32>>();
            let logs = |outputs: &StepOutputs| outputs.sampled.iter().flat_map(log_probabilities).collect::<Vec<f32>>();
            let same = tolerance(Quantity::Same, arithmetic);
            let pairs: Vec<(f32, f32)> = both().flat_map(|(want, got)| zip(&ids(want), &ids(got))).collect();
            checked.push(Checked::of("sampled tokens", watched, same, &pairs, Size::One));
            let bound = tolerance(Quantity::LogProbabilities, arithmetic);
            let pairs: Vec<(f32, f32)> = both().flat_map(|(want, got)| zip(&logs(want), &logs(got))).collect();
            checked.push(Checked::of("log-probabilities", watched, bound, &pairs, Size::AtLeast(1.0)));
        }
        if got.iter().any(|outputs| !outputs.non_finite.is_empty()) {
            let same = tolerance(Quantity::Same, arithmetic);
            let broken = Checked::of("a value that is not finite", watched, same, &[], Size::One);
            checked.push(Checked { passed: false, ..broken });
        }
        checked
    }
}

/// What differences are a share of.
enum Size {
    One,
    /// The root mean square of the reference's numbers, and at least this.
    AtLeast(f32),
}

impl Checked {
    /// `pairs` of the reference's and the backend's numbers; infinite ones must be equal.
    fn of(value: &str, watched: bool, bound: &Tolerance, pairs: &[(f32, f32)], size: Size) -> Checked {
        let finite = pairs.iter().map(|(want, _)| f64::from(*want)).filter(|want| want.is_finite());
        let (count, squares) = finite.fold((0, 0.0), |(count, sum), want| (count + 1, sum + want * want));
        let size = match size {
            Size::One => 1.0,
            Size::AtLeast(least) => ((squares / f64::from(count.max(1))).sqrt() as f32).max(least),
        };
        let (mut largest, mut sum) = (0.0f32, 0.0f64);
        for (want, got) in pairs {
            let difference = if want == got { 0.0 } else { (got - want).abs() / size };
            largest = if difference.is_nan() { f32::INFINITY } else { largest.max(difference) };
            sum += f64::from(difference);
        }
        let mean = (sum / pairs.len().max(1) as f64) as f32;
        Checked {
            value: value.to_owned(),
            watched,
            tolerance: bound.name,
            bound: bound.largest,
            numbers: pairs.len(),
            largest,
            mean,
            passed: largest <= bound.largest && mean <= bound.mean,
        }
    }
}

/// Numbers of the reference beside those of a backend; one that the other lacks stands beside NaN, and differs.
fn zip(want: &[f32], got: &[f32]) -> Vec<(f32, f32)> {
    let number = |of: &[f32], place: usize| of.get(place).copied().unwrap_or(f32::NAN);
    (0..want.len().max(got.len())).map(|place| (number(want, place), number(got, place))).collect()
}

/// A row, its token, and the likeliest tokens.
fn ids(sampled: &Sampled) -> Vec<f32> {
    let top = sampled.log_probabilities.iter().flat_map(|found| &found.top).map(|(token, _)| *token as f32);
    [sampled.row as f32, sampled.token as f32].into_iter().chain(top).collect()
}

/// The log-probabilities of a row, that of the chosen token first.
fn log_probabilities(sampled: &Sampled) -> Vec<f32> {
    let of = |found: &LogProbabilities| -> Vec<f32> {
        std::iter::once(found.chosen).chain(found.top.iter().map(|(_, number)| *number)).collect()
    };
    sampled.log_probabilities.iter().flat_map(of).collect()
}

impl Report {
    /// Cases that were refused or differ.
    pub fn failures(&self) -> impl Iterator<Item = &CaseReport> {
        self.cases.iter().filter(|case| case.refused.is_some() || case.checked.iter().any(|checked| !checked.passed))
    }
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(refused) = &self.refused {
            return write!(f, "{}: refused: {refused}", self.name);
        }
        write!(f, "{}:", self.name)?;
        for checked in &self.checked {
            let how = if checked.watched { "step by step" } else { "fused" };
            let verdict = if checked.passed { "" } else { " DIFFERS" };
            write!(
                f,
                "\n    {:<24} {how:<12} {:>6} numbers, largest {:.2e} of {:.2e} ({}), mean {:.2e}{verdict}",
                checked.value, checked.numbers, checked.largest, checked.bound, checked.tolerance, checked.mean
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.failures().count();
        writeln!(
            f,
            "{}: {} of {} cases agree with the reference",
            self.backend,
            self.cases.len() - failed,
            self.cases.len()
        )?;
        for case in self.failures() {
            writeln!(f, "  {case}")?;
        }
        Ok(())
    }
}
