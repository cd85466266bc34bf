//! One step: a team of threads walks the launches, a barrier after each. Within a launch every number has
//! one writer, by row or by column; what a launch reads was written before the last barrier.

use std::sync::OnceLock;

use plan::{LogProbabilities, NonFinite, Op, Plan, Rows, ScaleBy, Slice, Step, StepInputs, Value, WeightId, uniform};

use crate::cache::Cache;
use crate::executable::{ATTENTION_ROWS, Executable, ROWS_OF_ONES_OWN, ThreadScratch, few_pairs};
use crate::fuse::Launch;
use crate::kernels::attention::{Attention, partial_len, splits};
use crate::kernels::{Kernels, route};
use crate::linear::{ActivationLayout, InputRows, LANES, Matrix, OutputRows, Product};
use crate::team::Member;
use crate::weights::Weights;

/// One step's inputs, arranged by the rows that steps have.
pub(crate) struct Run<'a> {
    pub executable: &'a Executable,
    pub weights: &'a Weights,
    pub cache: &'a Cache,
    pub inputs: &'a StepInputs,
    pub kernels: Kernels,
    pub products: crate::linear::Kernels,
    /// Integer activations where the weight's format has them.
    pub is_quantized: bool,
    pub wanted: View,
    pub tokens: View,
    /// The first number of all that was not finite, found by thread 0 where the executable watches.
    pub watched: OnceLock<NonFinite>,
    /// `[wanted]`
    pub findings: Vec<Finding>,
}

/// What a step says of one wanted row beside its token, written by the thread that owns the row.
#[derive(Default)]
pub(crate) struct Finding {
    log_probabilities: OnceLock<LogProbabilities>,
    /// The first column whose logit is not finite.
    not_finite: OnceLock<usize>,
}

/// The rows of one kind, and what each sees.
pub(crate) struct View {
    /// The token row behind each row.
    token_rows: Vec<u32>,
    /// `[groups][rows]`
    from: Vec<Vec<u32>>,
    /// `[groups][rows]`
    until: Vec<Vec<u32>>,
    /// Runs of rows of one sequence, none longer than [`ATTENTION_ROWS`].
    tiles: Vec<std::ops::Range<usize>>,
}

impl View {
    /// The rows `token_rows` of `inputs`.
    pub fn new(inputs: &StepInputs, token_rows: Vec<u32>) -> View {
        let pick = |of: &Vec<u32>| token_rows.iter().map(|&row| of[row as usize]).collect::<Vec<u32>>();
        let sequence = |row: usize| inputs.sequences[token_rows[row] as usize];
        let mut tiles = vec![];
        let mut first = 0;
        for row in 1..=token_rows.len() {
            let ends = row == token_rows.len() || sequence(row) != sequence(first) || row - first == ATTENTION_ROWS;
            if ends {
                tiles.push(first..row);
                first = row;
            }
        }
        View {
            from: inputs.visible_from.iter().map(pick).collect(),
            until: inputs.visible_until.iter().map(pick).collect(),
            tiles,
            token_rows,
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.token_rows.len()
    }
}

impl Run<'_> {
    pub(crate) fn plan(&self) -> &Plan {
        &self.executable.plan
    }

    pub(crate) fn view(&self, rows: Rows) -> &View {
        match rows {
            Rows::Tokens => &self.tokens,
            Rows::Wanted => &self.wanted,
        }
    }

    /// What one thread of the team does.
    pub fn work(&self, member: &Member) {
        let mut scratch =
            self.executable.per_thread[member.thread].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.turn_tables(member);
        member.barrier();
        for launch in &self.executable.launches {
            // SAFETY: the executable's layout was checked, so no value written by the launch shares memory with
            // one that it or a later launch still reads; the barrier below ends the launch.
            unsafe { self.launch(member, launch, &mut scratch) };
            member.barrier();
            if self.executable.options.watch {
                if member.thread == 0 {
                    self.look_at(launch);
                }
                member.barrier();
            }
        }
        for row in member.share(self.wanted.rows(), 1) {
            // SAFETY: the launches are over.
            if let Some(column) = first_not_finite(unsafe { self.row(self.plan().logits, row) }) {
                self.findings[row].not_finite.get_or_init(|| column);
            }
        }
    }

    /// Cosines and sines of this step's positions.
    fn turn_tables(&self, member: &Member) {
        for (&(rope, head_dim), table) in self.executable.ropes.iter().zip(&self.executable.rope_tables) {
            let half = head_dim / 2;
            for row in member.share(self.tokens.rows(), 1) {
                let position = f64::from(self.inputs.positions[row]);
                // SAFETY: the table has `head_dim` numbers a row, and this thread alone writes this row.
                let numbers = unsafe { std::slice::from_raw_parts_mut(table.start().add(row * head_dim), head_dim) };
                for i in 0..half {
                    let (sin, cos) = (position * rope.frequency(i, head_dim)).sin_cos();
                    (numbers[i], numbers[half + i]) = (cos as f32, sin as f32);
                }
            }
        }
    }

    fn start(&self, value: Value) -> *mut f32 {
        // SAFETY: the layout gave the value this place inside the arena.
        unsafe { self.executable.arena.start().add(self.executable.offsets[value.index()]) }
    }

    /// # Safety
    /// The value was written before the last barrier, or by this thread, and nobody writes it now.
    pub(crate) unsafe fn row(&self, value: Value, row: usize) -> &[f32] {
        let columns = self.plan().value(value).columns;
        // SAFETY: the caller's; the value has this row.
        unsafe { std::slice::from_raw_parts(self.start(value).add(row * columns), columns) }
    }

    /// # Safety
    /// As [`Run::row`].
    unsafe fn slice(&self, slice: Slice, row: usize) -> &[f32] {
        // SAFETY: the caller's.
        unsafe { &self.row(slice.value, row)[slice.first..slice.first + slice.columns] }
    }

    /// # Safety
    /// This thread alone touches this row of the value now.
    #[expect(clippy::mut_from_ref, reason = "the arena is memory that threads share by rows, not a value of its own")]
    pub(crate) unsafe fn row_mut(&self, value: Value, row: usize) -> &mut [f32] {
        let columns = self.plan().value(value).columns;
        // SAFETY: the caller's; the value has this row.
        unsafe { std::slice::from_raw_parts_mut(self.start(value).add(row * columns), columns) }
    }

    /// # Safety
    /// The layout holds (see [`Run::work`]); every thread of the team calls it with the same launch.
    unsafe fn launch(&self, member: &Member, launch: &Launch, scratch: &mut ThreadScratch) {
        match launch {
            Launch::ByRow { rows, steps } => {
                for row in member.share(self.view(*rows).rows(), 1) {
                    for step in steps {
                        // SAFETY: this thread owns the row in every step of the launch.
                        unsafe { self.step(step, *rows, row, scratch) };
                    }
                }
            }
            // SAFETY: the caller's.
            Launch::Linear { x, products, is_exact } => unsafe {
                self.linear(member, *x, products, *is_exact, scratch)
            },
            // SAFETY: the caller's.
            Launch::Attention(step) => unsafe { self.attention(member, step, scratch) },
            // SAFETY: the caller's.
            Launch::Experts(step) => unsafe { self.experts(member, step, scratch) },
        }
    }

    /// One row of a step that handles each row by itself.
    ///
    /// # Safety
    /// This thread owns row `row` of every value that the step writes; what it reads is finished.
    unsafe fn step(&self, step: &Step, rows: Rows, row: usize, scratch: &mut ThreadScratch) {
        let kernels = &self.kernels;
        let token_row = self.view(rows).token_rows[row] as usize;
        // SAFETY: the caller's, for every access below.
        unsafe {
            match step.op {
                Op::Embed { table, scale, out } => {
                    let out = self.row_mut(out, row);
                    self.weights.gather(table, self.inputs.tokens[token_row] as usize, out);
                    kernels.scale_in_place(out, scale);
                }
                Op::RmsNorm { x, weight, group, eps, out } => {
                    let weight = weight.map(|weight| self.weights.vector(weight));
                    let (out, x) = (self.row_mut(out, row), self.slice(x, row));
                    for (out, x) in out.chunks_exact_mut(group).zip(x.chunks_exact(group)) {
                        kernels.rms_norm(out, x, weight, eps);
                    }
                }
                Op::Rope { x, head_dim, rope, out } => {
                    let place = self.executable.ropes.iter().position(|&known| known == (rope, head_dim));
                    let table = &self.executable.rope_tables[place.expect("compile made a table for every rope")];
                    let numbers = std::slice::from_raw_parts(table.start().add(token_row * head_dim), head_dim);
                    let (cos, sin) = numbers.split_at(head_dim / 2);
                    let out = self.row_mut(out, row);
                    out.copy_from_slice(self.row(x, row));
                    for head in out.chunks_exact_mut(head_dim) {
                        kernels.rope(head, cos, sin);
                    }
                }
                Op::KvAppend { k, v, cache } => {
                    let position = self.inputs.positions[token_row] as usize;
                    let table = &self.inputs.block_tables[cache.group][self.inputs.sequences[token_row] as usize];
                    let block_size = self.plan().cache.block_size;
                    let slot = table[position / block_size] as usize * block_size + position % block_size;
                    kernels.kv_append(&self.cache.layer(cache), slot, self.row(k, row), self.row(v, row));
                }
                Op::GeluMul { gate, up, out } => {
                    kernels.gelu_mul(self.row_mut(out, row), self.slice(gate, row), self.slice(up, row));
                }
                Op::Add { a, b, out } => kernels.add(self.row_mut(out, row), self.row(a, row), self.row(b, row)),
                Op::Scale { x, by, out } => {
                    let factor = match by {
                        ScaleBy::Constant(factor) => factor,
                        ScaleBy::Weight(weight) => self.weights.vector(weight)[0],
                    };
                    kernels.scale(self.row_mut(out, row), self.row(x, row), factor);
                }
                Op::Route { scores, per_expert_scale, experts, weights, .. } => {
                    let ids = self.row_mut(experts, row);
                    // SAFETY: u32 and f32 have the same size and alignment, and every bit pattern is either.
                    let ids = std::slice::from_raw_parts_mut(ids.as_mut_ptr().cast::<u32>(), ids.len());
                    let scales = self.weights.vector(per_expert_scale);
                    let probabilities = &mut scratch.probabilities[..scales.len()];
                    let weights = self.row_mut(weights, row);
                    route::route(self.row(scores, row), scales, ids, weights, probabilities);
                }
                Op::SelectRows { x, out } => self.row_mut(out, row).copy_from_slice(self.slice(x, token_row)),
                Op::Softcap { x, cap, out } => kernels.softcap(self.row_mut(out, row), self.row(x, row), cap),
                Op::Sample { logits, out } => {
                    let mut token = 0;
                    if let Some(choice) = &self.inputs.sampling[row] {
                        let logits = self.row(logits, row);
                        let number = uniform(choice.sampling.seed, self.inputs.positions[token_row] + 1);
                        token = scratch.sampler.choose(logits, choice, f64::from(number));
                        if let Some(count) = choice.log_probabilities {
                            let found = scratch.sampler.log_probabilities(logits, token, count);
                            self.findings[row].log_probabilities.get_or_init(|| found);
                        }
                    }
                    self.row_mut(out, row)[0] = f32::from_bits(token);
                }
                Op::Linear { .. } | Op::Attention { .. } | Op::Experts { .. } => {
                    unreachable!("these have launches of their own")
                }
            }
        }
    }

    pub(crate) fn layout(&self, matrix: &Matrix, is_exact: bool) -> Option<ActivationLayout> {
        if self.is_quantized && !is_exact { matrix.activation_layout() } else { None }
    }

    /// # Safety
    /// As [`Run::launch`].
    unsafe fn linear(
        &self,
        member: &Member,
        x: Slice,
        products: &[(WeightId, Value)],
        is_exact: bool,
        scratch: &mut ThreadScratch,
    ) {
        let spec = self.plan().value(x.value);
        let rows = self.view(spec.rows).rows();
        if rows == 0 {
            return;
        }
        let input = InputRows { start: self.start(x.value).wrapping_add(x.first), stride: spec.columns };
        let is_own = rows <= ROWS_OF_ONES_OWN;
        let ThreadScratch { linear: linear_scratch, quantized: own, .. } = scratch;
        let quantized = if is_own { own } else { &self.executable.quantized };
        let mut layouts: Vec<Option<ActivationLayout>> = vec![];
        for (weight, _) in products {
            let layout = self.layout(&self.weights.matrices(*weight)[0], is_exact);
            if !layouts.contains(&layout) {
                layouts.push(layout);
            }
        }
        for (index, layout) in layouts.iter().enumerate() {
            if let Some(layout) = layout {
                if index > 0 && !is_own {
                    // The rows still hold another layout, which slower threads may be reading.
                    member.barrier();
                }
                let share = if is_own { 0..rows } else { member.share(rows, 1) };
                // SAFETY: this thread alone writes its share of rows; the barrier comes before any other reader.
                unsafe { self.products.quantize_rows(*layout, input, x.columns, share, quantized) };
                if !is_own {
                    member.barrier();
                }
            }
            for (weight, out) in products {
                let matrix = &self.weights.matrices(*weight)[0];
                let outputs = member.share(matrix.rows(), LANES);
                if self.layout(matrix, is_exact) != *layout || outputs.is_empty() {
                    continue;
                }
                let product = Product {
                    matrix,
                    rows: 0..rows,
                    outputs,
                    out: OutputRows { start: self.start(*out), stride: matrix.rows() },
                };
                // SAFETY: each thread writes its own outputs; the input is finished.
                unsafe {
                    match layout {
                        Some(_) => self.products.linear_integer(&product, quantized, linear_scratch),
                        None => self.products.linear_f32(&product, input, linear_scratch),
                    }
                }
            }
        }
    }

    /// # Safety
    /// As [`Run::launch`].
    unsafe fn attention(&self, member: &Member, step: &Step, scratch: &mut ThreadScratch) {
        let Op::Attention { q, cache, heads, scale, out } = step.op else { unreachable!("an attention launch") };
        let view = self.view(self.plan().value(q).rows);
        let layer = self.cache.layer(cache);
        let (kv_heads, head_dim) = (layer.kv_heads, layer.head_dim);
        let (group, stride) = (heads / kv_heads, heads * head_dim);
        let work = |rows: std::ops::Range<usize>, kv_head: usize| {
            let offset = rows.start * stride + kv_head * group * head_dim;
            Attention {
                layer,
                kv_head,
                group,
                scale,
                table: &self.inputs.block_tables[cache.group]
                    [self.inputs.sequences[view.token_rows[rows.start] as usize] as usize],
                from: &view.from[cache.group][rows.clone()],
                until: &view.until[cache.group][rows],
                q: self.start(q).wrapping_add(offset),
                q_stride: stride,
                out: self.start(out).wrapping_add(offset),
                out_stride: stride,
            }
        };
        let pairs = view.rows() * kv_heads;
        if pairs > few_pairs(member.threads) {
            // Neighbouring units have rows of like length, so dealing them out in turn evens the load.
            let units = view.tiles.len() * kv_heads;
            for unit in (member.thread..units).step_by(member.threads) {
                let tile = view.tiles[unit / kv_heads].clone();
                // SAFETY: each unit has its own rows and heads of the result; keys were appended before a barrier.
                unsafe { self.kernels.attention_rows(&work(tile, unit % kv_heads), &mut scratch.attention) };
            }
            return;
        }
        let len = partial_len(group, head_dim);
        let span = |row: usize| splits(view.from[cache.group][row], view.until[cache.group][row]);
        let needed = (0..pairs).map(|pair| span(pair / kv_heads).len()).sum::<usize>() * len;
        assert!(needed <= self.executable.partials.len(), "compile made room for the partial results of few rows");
        let mut unit = 0;
        let mut first = 0;
        for pair in 0..pairs {
            let row = pair / kv_heads;
            for (index, split) in span(row).enumerate() {
                if unit % member.threads == member.thread {
                    // SAFETY: compile sized the partial results for this many pairs of all splits, and each unit
                    // has its own; keys were appended before a barrier.
                    unsafe {
                        let start = self.executable.partials.start().add((first + index) * len);
                        let partial = std::slice::from_raw_parts_mut(start, len);
                        let work = work(row..row + 1, pair % kv_heads);
                        self.kernels.attention_split(&work, 0, split, partial, &mut scratch.attention);
                    }
                }
                unit += 1;
            }
            first += span(row).len();
        }
        member.barrier();
        let mut first = 0;
        for pair in 0..pairs {
            let (row, kv_head) = (pair / kv_heads, pair % kv_heads);
            let count = span(row).len();
            if pair % member.threads == member.thread {
                // SAFETY: the partial results are finished; each pair has its own part of the result.
                unsafe {
                    let start = self.executable.partials.start().add(first * len);
                    let partials = std::slice::from_raw_parts(start, count * len);
                    // Other heads of the row are other threads' part: the row is never borrowed whole.
                    let start = self.start(out).add(row * stride + kv_head * group * head_dim);
                    let out = std::slice::from_raw_parts_mut(start, group * head_dim);
                    self.kernels.attention_merge(partials, group, head_dim, out);
                }
            }
            first += count;
        }
    }

    /// Finds the first number that is not finite among what a launch wrote.
    fn look_at(&self, launch: &Launch) {
        if self.watched.get().is_some() {
            return;
        }
        for value in launch.writes() {
            let spec = self.plan().value(value);
            if spec.element != plan::Element::F32 {
                continue;
            }
            for row in 0..self.view(spec.rows).rows() {
                // SAFETY: the launch is over, and nothing writes between the two barriers around this.
                if let Some(column) = first_not_finite(unsafe { self.row(value, row) }) {
                    self.watched.get_or_init(|| NonFinite { value, row, column });
                    return;
                }
            }
        }
    }

    /// A value as numbers, after the step.
    pub fn numbers(&self, value: Value) -> Vec<f32> {
        let spec = self.plan().value(value);
        let mut all = Vec::with_capacity(self.view(spec.rows).rows() * spec.columns);
        for row in 0..self.view(spec.rows).rows() {
            // SAFETY: the step is over.
            let numbers = unsafe { self.row(value, row) };
            match spec.element {
                plan::Element::F32 => all.extend_from_slice(numbers),
                plan::Element::U32 => all.extend(numbers.iter().map(|bits| bits.to_bits() as f32)),
            }
        }
        all
    }

    /// What the watch found, then the first logit that is not finite of each wanted row, none twice.
    pub fn non_finite(&self) -> Vec<NonFinite> {
        let logits = self.plan().logits;
        let mut found: Vec<NonFinite> = self.watched.get().cloned().into_iter().collect();
        for (row, finding) in self.findings.iter().enumerate() {
            let Some(&column) = finding.not_finite.get() else { continue };
            let of_row = NonFinite { value: logits, row, column };
            if self.watched.get() != Some(&of_row) {
                found.push(of_row);
            }
        }
        found
    }

    /// The token that each wanted row chose.
    pub fn sampled(&self) -> Vec<plan::Sampled> {
        let sampled = self.plan().sampled;
        let rows = self.inputs.sampling.iter().enumerate().filter(|(_, choice)| choice.is_some());
        rows.map(|(row, _)| {
            // SAFETY: the step is over.
            let token = unsafe { self.row(sampled, row)[0].to_bits() };
            let log_probabilities = self.findings[row].log_probabilities.get().cloned();
            plan::Sampled { row: self.inputs.wanted[row], token, log_probabilities }
        })
        .collect()
    }
}

/// The first column of a row that is not finite.
fn first_not_finite(row: &[f32]) -> Option<usize> {
    const CHUNK: usize = 256;
    // Hardly any row has one: whole chunks are looked at without branches.
    let chunk = row.chunks(CHUNK).position(|chunk| chunk.iter().fold(false, |any, x| any | !x.is_finite()))?;
    let first = chunk * CHUNK;
    row[first..].iter().position(|x| !x.is_finite()).map(|column| first + column)
}
