//! A compiled plan: its launches, where every value lives, and all memory that a step needs, so that a step
//! allocates nothing that grows with the model.

use std::sync::Mutex;

use plan::{
    BackendError, CompileOptions, Layout, Lifetime, Op, Plan, Rope, RowCounts, Rows, StepInputs, Value, WeightShape,
    lay_out,
};

use crate::cache::Cache;
use crate::fuse::{Launch, fuse};
use crate::kernels::Kernels;
use crate::kernels::attention::{self, MAX_GROUP};
use crate::kernels::sample::Sampler;
use crate::linear::{QuantizedRows, Scratch};
use crate::weights::Weights;

/// Rows of one sequence that a thread attends with at a time.
pub(crate) const ATTENTION_ROWS: usize = 16;

/// A compiled plan.
pub(crate) struct Executable {
    pub plan: Plan,
    pub options: CompileOptions,
    pub launches: Vec<Launch>,
    /// Of the products of a token row, and of a wanted row.
    row_multiply_adds: [f64; 2],
    /// First number of each value in the arena.
    pub offsets: Vec<usize>,
    pub arena: Arena,
    /// Positions turn by few different rules: `(rule, head_dim)`, and each one's tables.
    pub ropes: Vec<(Rope, usize)>,
    /// `[ropes][max_rows][cos of head_dim / 2, sin of head_dim / 2]`
    pub rope_tables: Vec<Arena>,
    pub quantized: QuantizedRows,
    pub experts: Option<ExpertBuffers>,
    /// Partial results of attention with few rows.
    pub partials: Arena,
    pub per_thread: Vec<Mutex<ThreadScratch>>,
}

/// What a plan is compiled for.
pub(crate) struct Place<'a> {
    pub weights: &'a Weights,
    pub cache: &'a Cache,
    pub kernels: Kernels,
    pub threads: usize,
    pub free_bytes: u64,
}

/// What one thread needs for itself.
pub(crate) struct ThreadScratch {
    pub linear: Scratch,
    /// Activations of few rows, which every thread quantizes for itself: that is done sooner than threads meet.
    pub quantized: QuantizedRows,
    pub attention: Vec<f32>,
    pub probabilities: Vec<f32>,
    pub sampler: Sampler,
    /// Which slot of an experts launch comes when, sorted by expert.
    pub slots: Vec<u32>,
    /// Where each slot came.
    pub places: Vec<u32>,
    /// `[experts + 1]`: where each expert's slots begin.
    pub firsts: Vec<u32>,
}

/// Memory of one experts launch; a slot is one row's visit to one expert.
pub(crate) struct ExpertBuffers {
    /// `[slots, hidden]`, in the order of experts.
    pub x: Arena,
    /// `[slots, intermediate]`
    pub gate: Arena,
    /// `[slots, intermediate]`
    pub up: Arena,
    /// `[slots, hidden]`
    pub down: Arena,
    pub quantized: QuantizedRows,
}

/// Numbers that threads write in parts that do not overlap.
pub(crate) struct Arena {
    lines: Box<[Line]>,
    len: usize,
}

#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "read through pointers")] std::cell::UnsafeCell<[f32; 16]>);

// SAFETY: reached through raw pointers alone; each launch gives every number one writer, and a barrier stands
// between a writer and its readers.
unsafe impl Sync for Arena {}

impl Arena {
    /// Room for `len` numbers, zeros: pages that nobody writes take no memory.
    pub fn new(len: usize) -> Arena {
        // SAFETY: a line of zero bytes is a line of zeros.
        let lines = unsafe { Box::<[Line]>::new_zeroed_slice(len.div_ceil(16)).assume_init() };
        Arena { lines, len }
    }

    /// The first number.
    pub fn start(&self) -> *mut f32 {
        self.lines.as_ptr() as *mut f32
    }

    /// How many numbers there is room for.
    pub fn len(&self) -> usize {
        self.len
    }
}

/// Rows that a value has at most.
pub(crate) fn most_rows(rows: Rows, options: &CompileOptions) -> usize {
    match rows {
        Rows::Tokens => options.max_rows,
        Rows::Wanted => options.max_wanted,
    }
}

impl Executable {
    /// Multiply-adds of the products of a step, about: what a row costs, times rows.
    pub fn multiply_adds(&self, inputs: &StepInputs) -> f64 {
        self.row_multiply_adds[0] * inputs.tokens.len() as f64 + self.row_multiply_adds[1] * inputs.wanted.len() as f64
    }

    /// Compiles `plan`; an error where a step would not fit into free memory.
    pub fn new(plan: &Plan, options: &CompileOptions, place: &Place) -> Result<Executable, BackendError> {
        let &Place { weights, cache, kernels, threads, free_bytes } = place;
        supported(plan)?;
        // Watching looks at every value, so every step must leave its own.
        let launches = fuse(plan, !options.watch);
        let lifetimes = lifetimes(plan, options, &launches);
        let layout: Layout = lay_out(&lifetimes);
        layout.check(&lifetimes)?;
        let partials_len = partials_len(plan, options, cache, threads);
        let kept: usize = options.keep.iter().map(|&value| value_bytes(plan, options, value)).sum();
        let wanted_bytes = (layout.bytes + kept + 4 * partials_len) as u64;
        if wanted_bytes > free_bytes {
            let what = format!("a step of {} rows, {} of them wanted,", options.max_rows, options.max_wanted);
            return Err(BackendError::Memory { what, wanted_bytes, free_bytes });
        }
        let mut ropes: Vec<(Rope, usize)> = vec![];
        for step in &plan.steps {
            if let Op::Rope { rope, head_dim, .. } = step.op
                && !ropes.contains(&(rope, head_dim))
            {
                ropes.push((rope, head_dim));
            }
        }
        let rope_tables = ropes.iter().map(|(_, head_dim)| Arena::new(options.max_rows * head_dim)).collect();
        let most = options.max_rows.max(options.max_wanted);
        let columns = |launch: &Launch| match launch {
            Launch::Linear { x, .. } => x.columns,
            _ => 0,
        };
        let widest = launches.iter().map(columns).max().unwrap_or(0);
        let attention = attention_sizes(plan);
        let scratch_len = attention
            .iter()
            .map(|&(_, _, group, head_dim)| attention::attention_scratch_len(ATTENTION_ROWS, group, head_dim))
            .max();
        let experts_of = |step: &Op| match *step {
            Op::Route { scores, .. } => plan.value(scores).columns,
            _ => 0,
        };
        let experts = plan.steps.iter().map(|step| experts_of(&step.op)).max().unwrap_or(0);
        let buffers = expert_buffers(plan, options);
        let slots = buffers.as_ref().map_or(0, |buffers| buffers.quantized.rows());
        let per_thread = (0..threads).map(|_| {
            Mutex::new(ThreadScratch {
                linear: Scratch::for_matrices(weights.all_matrices()),
                quantized: QuantizedRows::new(most.min(ROWS_OF_ONES_OWN), widest),
                attention: vec![0.0; scratch_len.unwrap_or(0)],
                probabilities: vec![0.0; experts],
                sampler: Sampler::new(kernels, plan.vocabulary()),
                slots: vec![0; slots],
                places: vec![0; slots],
                firsts: vec![0; experts + 1],
            })
        });
        Ok(Executable {
            plan: plan.clone(),
            options: options.clone(),
            launches,
            row_multiply_adds: [(1, 0), (0, 1)]
                .map(|(tokens, wanted)| plan.total_cost(RowCounts { tokens, wanted, context: 1 }).multiply_adds),
            offsets: layout.offsets.iter().map(|offset| offset / 4).collect(),
            arena: Arena::new(layout.bytes / 4),
            ropes,
            rope_tables,
            quantized: QuantizedRows::new(most, widest),
            experts: buffers,
            partials: Arena::new(partials_len),
            per_thread: per_thread.collect(),
        })
    }
}

/// Up to so many rows are quantized by every thread for itself.
pub(crate) const ROWS_OF_ONES_OWN: usize = 2;

/// Pairs of a row and a KV head below which keys are cut among threads instead.
pub(crate) fn few_pairs(threads: usize) -> usize {
    4 * threads
}

/// Numbers of all partial results of attention with few rows.
fn partials_len(plan: &Plan, options: &CompileOptions, cache: &Cache, threads: usize) -> usize {
    let most = options.max_rows.max(options.max_wanted);
    let of_step = |(cache_group, kv_heads, group, head_dim): (usize, usize, usize, usize)| {
        let splits = (cache.blocks[cache_group] * plan.cache.block_size).div_ceil(attention::SPLIT) + 1;
        few_pairs(threads).min(most * kv_heads) * splits * attention::partial_len(group, head_dim)
    };
    attention_sizes(plan).into_iter().map(of_step).max().unwrap_or(0)
}

fn value_bytes(plan: &Plan, options: &CompileOptions, value: Value) -> usize {
    let spec = plan.value(value);
    4 * most_rows(spec.rows, options) * spec.columns
}

/// `(cache group, KV heads, query heads a KV head, head_dim)` of every attention step.
fn attention_sizes(plan: &Plan) -> Vec<(usize, usize, usize, usize)> {
    let size = |op: &Op| match *op {
        Op::Attention { cache, heads, .. } => {
            let layer = plan.cache.layer(cache);
            Some((cache.group, layer.kv_heads, heads / layer.kv_heads, layer.head_dim))
        }
        _ => None,
    };
    plan.steps.iter().filter_map(|step| size(&step.op)).collect()
}

fn supported(plan: &Plan) -> Result<(), BackendError> {
    for step in &plan.steps {
        let Op::Attention { cache, heads, .. } = step.op else { continue };
        let group = heads / plan.cache.layer(cache).kv_heads;
        if group > MAX_GROUP {
            let reason = format!("no attention kernel for {group} query heads a KV head, at most {MAX_GROUP}");
            return Err(BackendError::Unsupported { site: step.site, reason });
        }
    }
    let block_size = plan.cache.block_size;
    if !plan.cache.groups.is_empty() && block_size != attention::KV_BLOCK {
        let site = plan.steps[0].site;
        let reason = format!("cache blocks of {block_size} tokens, this backend has {}", attention::KV_BLOCK);
        return Err(BackendError::Unsupported { site, reason });
    }
    Ok(())
}

/// From the launch that writes a value through the last that reads it; kept values live to the end.
fn lifetimes(plan: &Plan, options: &CompileOptions, launches: &[Launch]) -> Vec<Lifetime> {
    let bytes = |value: usize| value_bytes(plan, options, Value(value as u32));
    let mut lifetimes: Vec<Lifetime> =
        (0..plan.values.len()).map(|value| Lifetime { bytes: bytes(value), written: 0, last_read: 0 }).collect();
    for (index, launch) in launches.iter().enumerate() {
        for value in launch.writes() {
            lifetimes[value.index()].written = index;
            lifetimes[value.index()].last_read = index;
        }
        for value in launch.reads() {
            lifetimes[value.index()].last_read = index;
        }
    }
    let end = launches.len();
    let host: Vec<Value> = options.keep.iter().copied().chain([plan.sampled, plan.logits]).collect();
    for value in host {
        lifetimes[value.index()].last_read = end;
    }
    lifetimes
}

fn expert_buffers(plan: &Plan, options: &CompileOptions) -> Option<ExpertBuffers> {
    let sizes = plan.steps.iter().filter_map(|step| match step.op {
        Op::Experts { experts, gate, .. } => {
            let WeightShape::Experts { rows: intermediate, columns: hidden, .. } = plan.weight(gate).shape else {
                unreachable!("a checked plan has stacks here")
            };
            let spec = plan.value(experts);
            Some((most_rows(spec.rows, options) * spec.columns, hidden, intermediate))
        }
        _ => None,
    });
    let (slots, hidden, intermediate) = sizes.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1), a.2.max(b.2)))?;
    Some(ExpertBuffers {
        x: Arena::new(slots * hidden),
        gate: Arena::new(slots * intermediate),
        up: Arena::new(slots * intermediate),
        down: Arena::new(slots * hidden),
        quantized: QuantizedRows::new(slots, hidden.max(intermediate)),
    })
}
