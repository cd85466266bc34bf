//! Walks a plan step by step, unfused; every value has memory of its own.

use std::collections::HashMap;
use std::sync::Arc;

use checkpoint::Checkpoint;
use plan::{
    Backend, BackendError, CacheLayout, CompileOptions, Element, ExecutableId, LoadProgress, MemoryInfo, NonFinite, Op,
    Plan, Rows, Sampled, ScaleBy, Slice, StepInputs, StepOutputs, Ticket, Value, WeightId, WeightShape, WeightSpec,
};

use crate::cache::Cache;
use crate::ops;
use crate::weights::Weight;

/// The reference backend.
#[derive(Default)]
pub struct Reference {
    weights: Vec<Weight>,
    cache: Option<Cache>,
    executables: Vec<(Plan, CompileOptions)>,
    finished: HashMap<u64, StepOutputs>,
    launches: u64,
}

impl Reference {
    /// A backend with nothing loaded.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Backend for Reference {
    fn name(&self) -> String {
        "reference".into()
    }

    fn memory(&self) -> MemoryInfo {
        // It never refuses: models that it is for are small, and the system says when memory is out.
        MemoryInfo { total_bytes: u64::MAX, free_bytes: u64::MAX }
    }

    fn load(
        &mut self,
        weights: &[WeightSpec],
        from: &Arc<Checkpoint>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(), BackendError> {
        self.weights = weights.iter().map(|spec| Weight::load(spec, from)).collect::<Result<_, _>>()?;
        let total = weights.iter().map(|spec| spec.stored_bytes(spec.shape.elements()) as u64).sum();
        progress(LoadProgress { done_bytes: total, total_bytes: total });
        Ok(())
    }

    fn block_bytes(&self, layout: &CacheLayout) -> Vec<u64> {
        layout.groups.iter().map(|group| 4 * group.elements_per_block(layout.block_size) as u64).collect()
    }

    fn reserve_cache(&mut self, layout: &CacheLayout, blocks: &[usize]) -> Result<(), BackendError> {
        self.cache = Some(Cache::new(layout, blocks));
        Ok(())
    }

    fn compile(&mut self, plan: &Plan, options: &CompileOptions) -> Result<ExecutableId, BackendError> {
        if plan.weights.len() != self.weights.len() {
            return Err(BackendError::Order("compile comes after load, with the weights of the same plan"));
        }
        self.executables.push((plan.clone(), options.clone()));
        Ok(ExecutableId((self.executables.len() - 1) as u32))
    }

    fn launch(&mut self, executable: ExecutableId, inputs: &StepInputs) -> Result<Ticket, BackendError> {
        let Some((plan, options)) = self.executables.get(executable.0 as usize) else {
            return Err(BackendError::Order("launch comes after compile"));
        };
        let Some(cache) = &mut self.cache else {
            return Err(BackendError::Order("launch comes after reserve_cache"));
        };
        inputs.check(plan, &cache.blocks)?;
        let outputs = Run { plan, inputs, weights: &self.weights, cache, values: HashMap::new() }.run(options);
        self.launches += 1;
        self.finished.insert(self.launches, outputs);
        Ok(Ticket(self.launches))
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutputs, BackendError> {
        self.finished.remove(&ticket.0).ok_or(BackendError::Order("a ticket is collected once"))
    }
}

struct Run<'a> {
    plan: &'a Plan,
    inputs: &'a StepInputs,
    weights: &'a [Weight],
    cache: &'a mut Cache,
    values: HashMap<Value, Vec<f32>>,
}

impl Run<'_> {
    fn run(mut self, options: &CompileOptions) -> StepOutputs {
        let mut outputs = StepOutputs::default();
        for step in &self.plan.steps {
            self.step(&step.op);
            for value in step.op.writes() {
                if options.watch && outputs.non_finite.is_empty() {
                    outputs.non_finite.extend(self.not_finite(value).into_iter().next());
                }
            }
        }
        let watched = outputs.non_finite.first().cloned();
        let of_logits = self.not_finite(self.plan.logits);
        outputs.non_finite.extend(of_logits.into_iter().filter(|found| watched.as_ref() != Some(found)));
        for (i, choice) in self.inputs.sampling.iter().enumerate() {
            let Some(choice) = choice else { continue };
            let token = self.row(self.plan.sampled, i)[0].to_bits();
            let logits = self.row(self.plan.logits, i);
            let log_probabilities =
                choice.log_probabilities.map(|count| ops::sample::log_probabilities(logits, token, count));
            outputs.sampled.push(Sampled { row: self.inputs.wanted[i], token, log_probabilities });
        }
        outputs.kept = options.keep.iter().map(|&value| self.numbers(value)).collect();
        outputs
    }

    fn numbers(&self, value: Value) -> Vec<f32> {
        let stored = &self.values[&value];
        match self.plan.value(value).element {
            Element::F32 => stored.clone(),
            Element::U32 => stored.iter().map(|bits| bits.to_bits() as f32).collect(),
        }
    }

    /// The first number of each row that is not finite.
    fn not_finite(&self, value: Value) -> Vec<NonFinite> {
        let columns = self.plan.value(value).columns;
        self.numbers(value)
            .chunks(columns)
            .enumerate()
            .filter_map(|(row, numbers)| {
                let column = numbers.iter().position(|number| !number.is_finite())?;
                Some(NonFinite { value, row, column })
            })
            .collect()
    }

    fn count(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.inputs.tokens.len(),
            Rows::Wanted => self.inputs.wanted.len(),
        }
    }

    /// The token row behind row `row` of a value.
    fn token_row(&self, rows: Rows, row: usize) -> usize {
        match rows {
            Rows::Tokens => row,
            Rows::Wanted => self.inputs.wanted[row] as usize,
        }
    }

    fn weight(&self, weight: WeightId) -> &Weight {
        &self.weights[weight.index()]
    }

    fn row(&self, value: Value, row: usize) -> &[f32] {
        let columns = self.plan.value(value).columns;
        &self.values[&value][row * columns..(row + 1) * columns]
    }

    fn slice(&self, slice: Slice, row: usize) -> &[f32] {
        &self.row(slice.value, row)[slice.first..slice.first + slice.columns]
    }

    /// Computes `out` row by row.
    fn by_row(&mut self, out: Value, mut compute: impl FnMut(&Self, usize, &mut [f32])) {
        let spec = self.plan.value(out);
        // NaN until it is written: a column that an operation forgets shows.
        let mut numbers = vec![f32::NAN; self.count(spec.rows) * spec.columns];
        for (row, out) in numbers.chunks_exact_mut(spec.columns).enumerate() {
            compute(self, row, out);
        }
        self.values.insert(out, numbers);
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Embed { table, scale, out } => self.by_row(out, |run, row, out| {
                let mut entry = vec![0.0; out.len()];
                run.weight(table).read_row(0, run.inputs.tokens[row] as usize, &mut entry);
                ops::embed::embed(out, &entry, scale);
            }),
            Op::RmsNorm { x, weight, group, eps, out } => self.by_row(out, |run, row, out| {
                let weight = weight.map(|weight| run.weight(weight).vector());
                for (out, x) in out.chunks_exact_mut(group).zip(run.slice(x, row).chunks_exact(group)) {
                    ops::rms_norm::rms_norm(out, x, weight, eps);
                }
            }),
            Op::Linear { x, weight, out } => self.linear(x, weight, out),
            Op::Rope { x, head_dim, rope, out } => {
                let rows = self.plan.value(x).rows;
                self.by_row(out, |run, row, out| {
                    let position = run.inputs.positions[run.token_row(rows, row)];
                    for (out, x) in out.chunks_exact_mut(head_dim).zip(run.row(x, row).chunks_exact(head_dim)) {
                        ops::rope::rope(out, x, &rope, position);
                    }
                });
            }
            Op::KvAppend { k, v, cache } => {
                for row in 0..self.inputs.tokens.len() {
                    let table = &self.inputs.block_tables[cache.group][self.inputs.sequences[row] as usize];
                    let columns = self.plan.value(k).columns;
                    let range = row * columns..(row + 1) * columns;
                    let (k, v) = (&self.values[&k][range.clone()], &self.values[&v][range]);
                    self.cache.append(cache, table, self.inputs.positions[row] as usize, k, v);
                }
            }
            Op::Attention { q, cache, heads, scale, out } => {
                let rows = self.plan.value(q).rows;
                let layer = self.plan.cache.layer(cache);
                self.by_row(out, |run, row, out| {
                    let row_of_token = run.token_row(rows, row);
                    let table = &run.inputs.block_tables[cache.group][run.inputs.sequences[row_of_token] as usize];
                    let from = run.inputs.visible_from[cache.group][row_of_token] as usize;
                    let until = run.inputs.visible_until[cache.group][row_of_token] as usize;
                    let (q, width) = (run.row(q, row), layer.head_dim);
                    for head in 0..heads {
                        let kv_head = head / (heads / layer.kv_heads);
                        let visible =
                            (from..until).map(|position| run.cache.read(cache, table, position, kv_head, width));
                        let range = head * width..(head + 1) * width;
                        ops::attention::attention(&mut out[range.clone()], &q[range], scale, visible);
                    }
                });
            }
            Op::GeluMul { gate, up, out } => {
                self.by_row(out, |run, row, out| {
                    ops::gelu_mul::gelu_mul(out, run.slice(gate, row), run.slice(up, row))
                });
            }
            Op::Add { a, b, out } => {
                self.by_row(out, |run, row, out| ops::add::add(out, run.row(a, row), run.row(b, row)))
            }
            Op::Scale { x, by, out } => self.by_row(out, |run, row, out| {
                let factor = match by {
                    ScaleBy::Constant(factor) => factor,
                    ScaleBy::Weight(weight) => run.weight(weight).vector()[0],
                };
                ops::scale::scale(out, run.row(x, row), factor);
            }),
            Op::Route { scores, per_expert_scale, top_k, experts, weights } => {
                let rows = self.count(self.plan.value(scores).rows);
                let (mut ids, mut shares) = (vec![0; rows * top_k], vec![f32::NAN; rows * top_k]);
                for row in 0..rows {
                    let range = row * top_k..(row + 1) * top_k;
                    let scale = self.weight(per_expert_scale).vector();
                    ops::route::route(&mut ids[range.clone()], &mut shares[range], self.row(scores, row), scale);
                }
                self.values.insert(experts, ids.into_iter().map(f32::from_bits).collect());
                self.values.insert(weights, shares);
            }
            Op::Experts { x, experts, weights, gate, up, down, out } => {
                let WeightShape::Experts { rows: intermediate, .. } = self.plan.weight(gate).shape else {
                    unreachable!("a checked plan has stacks here")
                };
                self.by_row(out, |run, row, out| {
                    let ids: Vec<u32> = run.row(experts, row).iter().map(|bits| bits.to_bits()).collect();
                    let mut stacks = ops::experts::Stacks {
                        gate: &mut |expert, row, out: &mut [f32]| run.weight(gate).read_row(expert, row, out),
                        up: &mut |expert, row, out: &mut [f32]| run.weight(up).read_row(expert, row, out),
                        down: &mut |expert, row, out: &mut [f32]| run.weight(down).read_row(expert, row, out),
                        intermediate,
                    };
                    ops::experts::experts(out, run.row(x, row), &ids, run.row(weights, row), &mut stacks);
                });
            }
            Op::SelectRows { x, out } => self.by_row(out, |run, row, out| {
                out.copy_from_slice(run.slice(x, run.inputs.wanted[row] as usize));
            }),
            Op::Softcap { x, cap, out } => {
                self.by_row(out, |run, row, out| ops::softcap::softcap(out, run.row(x, row), cap));
            }
            Op::Sample { logits, out } => self.by_row(out, |run, row, out| {
                let position = run.inputs.positions[run.inputs.wanted[row] as usize] + 1;
                let token = run.inputs.sampling[row]
                    .as_ref()
                    .map_or(0, |choice| ops::sample::sample(run.row(logits, row), choice, position));
                out[0] = f32::from_bits(token);
            }),
        }
    }

    /// Each weight row is decoded once and multiplied with all rows.
    fn linear(&mut self, x: Slice, weight: WeightId, out: Value) {
        let spec = self.plan.value(out);
        let rows = self.count(spec.rows);
        let mut numbers = vec![f32::NAN; rows * spec.columns];
        if rows > 0 {
            let matrix = self.weight(weight);
            let mut weight_row = vec![0.0; x.columns];
            for output in 0..matrix.rows() {
                matrix.read_row(0, output, &mut weight_row);
                for row in 0..rows {
                    numbers[row * spec.columns + output] = ops::linear::dot(&weight_row, self.slice(x, row));
                }
            }
        }
        self.values.insert(out, numbers);
    }
}
