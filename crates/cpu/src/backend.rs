//! The backend: weights, cache, executables, and the team that runs them.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use checkpoint::Checkpoint;
use plan::{
    Backend, BackendError, CacheLayout, CompileOptions, ExecutableId, LoadProgress, MemoryInfo, Plan, StepInputs,
    StepOutputs, Ticket, WeightSpec,
};

use crate::cache::Cache;
use crate::executable::{Executable, Place};
use crate::isa::Isa;
use crate::kernels::{Kernels, attention::KvElement};
use crate::run::{Finding, Run, View};
use crate::team::{Team, default_threads};
use crate::weights::Weights;

/// How precisely the CPU computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// Integer activations of 15 bits for quantized weights, keys and values in f16; a router in f32.
    #[default]
    Fast,
    /// Activations, keys and values in f32.
    Exact,
}

/// Steps of fewer multiply-adds than this, some hundred microseconds of one thread, run on one thread.
const SOLO_MULTIPLY_ADDS: f64 = 20e6;

/// How the backend is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads, the caller's included.
    pub threads: usize,
    /// How precisely.
    pub precision: Precision,
    /// Which kernels.
    pub isa: Isa,
}

impl Default for CpuOptions {
    fn default() -> Self {
        CpuOptions { threads: default_threads(), precision: Precision::default(), isa: Isa::best() }
    }
}

/// The CPU as a backend.
pub struct Cpu {
    options: CpuOptions,
    kernels: Kernels,
    products: crate::linear::Kernels,
    team: Team,
    /// Small steps run on the caller's thread alone: a barrier would cost more than the help is worth.
    solo: Team,
    weights: Option<Weights>,
    cache: Option<Cache>,
    executables: Vec<Executable>,
    finished: HashMap<u64, StepOutputs>,
    launches: u64,
}

impl Cpu {
    /// A backend with nothing loaded; an error if the system refuses a thread. Panics if the processor does not
    /// run the instruction set.
    pub fn new(options: CpuOptions) -> std::io::Result<Cpu> {
        Ok(Cpu {
            kernels: Kernels::for_isa(options.isa),
            products: crate::linear::Kernels::for_isa(options.isa),
            team: Team::new(options.threads)?,
            solo: Team::new(1)?,
            options,
            weights: None,
            cache: None,
            executables: vec![],
            finished: HashMap::new(),
            launches: 0,
        })
    }

    fn element(&self) -> KvElement {
        match self.options.precision {
            Precision::Fast => KvElement::F16,
            Precision::Exact => KvElement::F32,
        }
    }
}

impl Backend for Cpu {
    fn name(&self) -> String {
        let threads = match self.options.threads {
            1 => "1 thread".to_owned(),
            threads => format!("{threads} threads"),
        };
        let precision = match self.options.precision {
            Precision::Fast => "",
            Precision::Exact => ", exact",
        };
        format!("cpu ({}, {threads}{precision})", self.options.isa)
    }

    fn memory(&self) -> MemoryInfo {
        let mut system = sysinfo::System::new();
        system.refresh_memory();
        let (mut total_bytes, mut free_bytes) = (system.total_memory(), system.available_memory());
        if let Some(limits) = system.cgroup_limits() {
            (total_bytes, free_bytes) = (total_bytes.min(limits.total_memory), free_bytes.min(limits.free_memory));
        }
        MemoryInfo { total_bytes, free_bytes }
    }

    fn load(
        &mut self,
        weights: &[WeightSpec],
        from: &Arc<Checkpoint>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(), BackendError> {
        self.executables.clear();
        self.weights = None;
        self.weights = Some(Weights::load(weights, from, self.options.threads, progress)?);
        Ok(())
    }

    fn block_bytes(&self, layout: &CacheLayout) -> Vec<u64> {
        let bytes = |group| Cache::block_bytes(group, layout.block_size, self.element());
        layout.groups.iter().map(bytes).collect()
    }

    fn reserve_cache(&mut self, layout: &CacheLayout, blocks: &[usize]) -> Result<(), BackendError> {
        self.cache = None;
        self.cache = Some(Cache::new(layout, blocks, self.element()));
        Ok(())
    }

    fn compile(&mut self, plan: &Plan, options: &CompileOptions) -> Result<ExecutableId, BackendError> {
        let (Some(weights), Some(cache)) = (&self.weights, &self.cache) else {
            return Err(BackendError::Order("compile comes after load and reserve_cache"));
        };
        if weights.specs != plan.weights {
            return Err(BackendError::Order("compile takes the plan whose weights were loaded"));
        }
        let threads = self.options.threads;
        let place = Place { weights, cache, kernels: self.kernels, threads, free_bytes: self.memory().free_bytes };
        self.executables.push(Executable::new(plan, options, &place)?);
        Ok(ExecutableId((self.executables.len() - 1) as u32))
    }

    fn launch(&mut self, executable: ExecutableId, inputs: &StepInputs) -> Result<Ticket, BackendError> {
        let (Some(weights), Some(cache)) = (&self.weights, &self.cache) else {
            return Err(BackendError::Order("launch comes after load and reserve_cache"));
        };
        let Some(executable) = self.executables.get(executable.0 as usize) else {
            return Err(BackendError::Order("launch comes after compile"));
        };
        inputs.check(&executable.plan, &cache.blocks)?;
        let options = &executable.options;
        if inputs.tokens.len() > options.max_rows || inputs.wanted.len() > options.max_wanted {
            return Err(BackendError::Order("a step has no more rows than its executable was compiled for"));
        }
        let run = Run {
            executable,
            weights,
            cache,
            inputs,
            kernels: self.kernels,
            products: self.products,
            is_quantized: self.options.precision == Precision::Fast,
            tokens: View::new(inputs, (0..inputs.tokens.len() as u32).collect()),
            wanted: View::new(inputs, inputs.wanted.clone()),
            watched: OnceLock::new(),
            findings: inputs.wanted.iter().map(|_| Finding::default()).collect(),
        };
        // Results do not depend on the number of threads, so this changes nothing but time.
        let team = if executable.multiply_adds(inputs) < SOLO_MULTIPLY_ADDS { &mut self.solo } else { &mut self.team };
        team.run(&|member| run.work(member));
        let outputs = StepOutputs {
            sampled: run.sampled(),
            kept: options.keep.iter().map(|&value| run.numbers(value)).collect(),
            non_finite: run.non_finite(),
        };
        self.launches += 1;
        self.finished.insert(self.launches, outputs);
        Ok(Ticket(self.launches))
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutputs, BackendError> {
        self.finished.remove(&ticket.0).ok_or(BackendError::Order("a ticket is collected once"))
    }
}
