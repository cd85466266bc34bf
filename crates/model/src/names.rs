//! Finds the tensors of a model under the name families that people's files have, and keeps account of
//! every one, so that nothing is read twice, missed or passed over in silence.

use std::collections::BTreeSet;

use checkpoint::{Checkpoint, MatrixSource, Problem, ProblemKind};
use plan::{RowRange, WeightShape, WeightSource, WeightSpec, WeightUse};

/// Collects weights and, instead of stopping, everything that is wrong with them.
pub(crate) struct Finder<'a> {
    checkpoint: &'a Checkpoint,
    prefix: String,
    used: BTreeSet<String>,
    pub problems: Vec<Problem>,
}

/// Used by products, by gathers, by both.
pub(crate) const MULTIPLIED: WeightUse = WeightUse { gathered: false, multiplied: true };
pub(crate) const GATHERED: WeightUse = WeightUse { gathered: true, multiplied: false };
pub(crate) const BOTH: WeightUse = WeightUse { gathered: true, multiplied: true };

impl<'a> Finder<'a> {
    /// Looks for `landmark` under each prefix; exactly one must have it.
    pub fn new(checkpoint: &'a Checkpoint, prefixes: &[&str], landmark: &str) -> Result<Self, Problem> {
        let holds = |prefix: &&&str| checkpoint.tensor(&format!("{prefix}{landmark}")).is_some();
        let found: Vec<&&str> = prefixes.iter().filter(holds).collect();
        match found[..] {
            [prefix] => Ok(Finder { checkpoint, prefix: (*prefix).into(), used: BTreeSet::new(), problems: vec![] }),
            [] => {
                let wanted: Vec<String> = prefixes.iter().map(|prefix| format!("{prefix}{landmark}")).collect();
                let sentence = format!("under no known name: {} is wanted", wanted.join(" or "));
                Err(Problem::new(ProblemKind::Missing, landmark, sentence))
            }
            _ => {
                let names: Vec<String> = found.iter().map(|prefix| format!("{prefix}{landmark}")).collect();
                let sentence = format!("there more than once: {}; one text model is wanted", names.join(" and "));
                Err(Problem::new(ProblemKind::Ambiguous, landmark, sentence))
            }
        }
    }

    /// The prefix of the text model's tensors.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The full name of a tensor or module of the text model.
    pub fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Whether the checkpoint has a tensor of this full name.
    pub fn has(&self, tensor: &str) -> bool {
        self.checkpoint.tensor(tensor).is_some()
    }

    /// A whole vector.
    pub fn vector(&mut self, name: &str, length: usize) -> Option<WeightSpec> {
        let tensor = self.full(name);
        self.used.insert(tensor.clone());
        match self.checkpoint.vector(&tensor, &[length]) {
            Ok(found) => Some(WeightSpec {
                name: name.strip_suffix(".weight").unwrap_or(name).into(),
                shape: WeightShape::Vector { length },
                source: WeightSource::Vector { tensor, dtype: found.dtype },
                usage: WeightUse { gathered: false, multiplied: false },
            }),
            Err(problem) => self.wrong(problem),
        }
    }

    /// A matrix `[rows, columns]`, quantized or not.
    pub fn matrix(&mut self, name: &str, rows: usize, columns: usize, usage: WeightUse) -> Option<WeightSpec> {
        let module = self.full(name);
        self.matrix_at(&module, name, rows, columns, usage)
    }

    /// The same under a full name of its own.
    pub fn matrix_at(
        &mut self,
        module: &str,
        name: &str,
        rows: usize,
        columns: usize,
        usage: WeightUse,
    ) -> Option<WeightSpec> {
        let source = self.source(module, &[rows, columns])?;
        let shape = WeightShape::Matrix { rows, columns };
        Some(WeightSpec { name: name.into(), shape, source: WeightSource::Matrix { source, rows: None }, usage })
    }

    /// A stack `[experts, rows, columns]`, or the rows `range` of each matrix of such a stack. `module`
    /// is a name inside the text model.
    pub fn experts(
        &mut self,
        name: &str,
        module: &str,
        shape: [usize; 3],
        range: Option<RowRange>,
    ) -> Option<WeightSpec> {
        let [experts, rows, columns] = shape;
        let source = self.source(&self.full(module), &[experts, range.map_or(rows, |range| range.of), columns])?;
        Some(WeightSpec {
            name: name.into(),
            shape: WeightShape::Experts { experts, rows, columns },
            source: WeightSource::Matrix { source, rows: range },
            usage: MULTIPLIED,
        })
    }

    fn source(&mut self, module: &str, shape: &[usize]) -> Option<MatrixSource> {
        // The original layout keeps stacks of experts as plain tensors, without `.weight`.
        self.used.insert(module.into());
        for part in ["weight", "scales", "biases"] {
            self.used.insert(format!("{module}.{part}"));
        }
        match self.checkpoint.matrix(module, shape) {
            Ok(source) => Some(source),
            Err(problem) => self.wrong(problem),
        }
    }

    fn wrong<T>(&mut self, problem: Problem) -> Option<T> {
        // A tensor shared by two weights is reported once.
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
        None
    }

    /// Names of tensors that no weight uses.
    pub fn unused(&self) -> Vec<String> {
        let names = self.checkpoint.tensors().map(|info| info.name.clone());
        names.filter(|name| !self.used.contains(name)).collect()
    }
}
