//! A backend with a fault: after one step of the plan it multiplies what the step wrote, so that every later step
//! computes with the faulty value, as after a faulty kernel.

use std::sync::Arc;

use checkpoint::Checkpoint;
use plan::{
    Backend, BackendError, CacheLayout, CompileOptions, ExecutableId, LoadProgress, MemoryInfo, Op, Plan, ScaleBy,
    Site, Slice, Step, StepInputs, StepOutputs, Ticket, Value, ValueSpec, WeightSpec,
};

/// What goes wrong where.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// The value's place: that of the step which writes it.
    pub layer: Option<u32>,
    /// The value's role, or its name where one step writes several.
    pub role: &'static str,
    /// It is multiplied by this.
    pub factor: f32,
    /// In which steps.
    pub when: When,
}

/// Steps that go wrong.
#[derive(Debug, Clone, Copy)]
pub enum When {
    /// All.
    Always,
    /// Those of more token rows than this.
    AboveRows(usize),
    /// Those in which more than one sequence has rows.
    SeveralSequences,
}

impl When {
    fn holds(self, inputs: &StepInputs) -> bool {
        match self {
            When::Always => true,
            When::AboveRows(rows) => inputs.tokens.len() > rows,
            When::SeveralSequences => inputs.sequences.iter().any(|&sequence| sequence > 0),
        }
    }
}

/// The backend with the fault.
pub struct Faulty {
    inner: Box<dyn Backend>,
    fault: Fault,
    /// The executables without and with the fault, and what stands for what in the latter.
    executables: Vec<(ExecutableId, ExecutableId, (Value, Value))>,
    launched: Vec<Option<(Value, Value)>>,
}

impl Faulty {
    pub fn new(inner: Box<dyn Backend>, fault: Fault) -> Faulty {
        Faulty { inner, fault, executables: vec![], launched: vec![] }
    }

    /// The plan with the fault, and the value that takes the place of the sound one.
    fn altered(&self, plan: &Plan) -> (Plan, (Value, Value)) {
        let mut plan = plan.clone();
        let Fault { layer, role, factor, .. } = self.fault;
        let place = plan
            .values
            .iter()
            .position(|spec| spec.site.layer == layer && (spec.site.role == role || spec.name == role));
        let place = place.unwrap_or_else(|| panic!("no value at {layer:?} {role}"));
        let (sound, wrong) = (Value(place as u32), Value(plan.values.len() as u32));
        let site = Site { layer, role: "fault" };
        plan.values.push(ValueSpec { site, name: "fault".into(), ..plan.values[place].clone() });
        let writer = plan.steps.iter().position(|step| step.op.writes().contains(&sound)).expect("a step writes it");
        for step in &mut plan.steps[writer + 1..] {
            step.op = instead(&step.op, sound, wrong);
        }
        if plan.logits == sound {
            plan.logits = wrong;
        }
        let op = Op::Scale { x: sound, by: ScaleBy::Constant(factor), out: wrong };
        plan.steps.insert(writer + 1, Step { site, op });
        plan.check().expect("the faulty plan can run");
        (plan, (sound, wrong))
    }
}

/// The operation reading `wrong` where it read `sound`.
fn instead(op: &Op, sound: Value, wrong: Value) -> Op {
    let value = |read: Value| if read == sound { wrong } else { read };
    let slice = |read: Slice| Slice { value: value(read.value), ..read };
    match *op {
        Op::Embed { .. } => op.clone(),
        Op::RmsNorm { x, weight, group, eps, out } => Op::RmsNorm { x: slice(x), weight, group, eps, out },
        Op::Linear { x, weight, out } => Op::Linear { x: slice(x), weight, out },
        Op::Rope { x, head_dim, rope, out } => Op::Rope { x: value(x), head_dim, rope, out },
        Op::KvAppend { k, v, cache } => Op::KvAppend { k: value(k), v: value(v), cache },
        Op::Attention { q, cache, heads, scale, out } => Op::Attention { q: value(q), cache, heads, scale, out },
        Op::GeluMul { gate, up, out } => Op::GeluMul { gate: slice(gate), up: slice(up), out },
        Op::Add { a, b, out } => Op::Add { a: value(a), b: value(b), out },
        Op::Scale { x, by, out } => Op::Scale { x: value(x), by, out },
        Op::Route { scores, per_expert_scale, top_k, experts, weights } => {
            Op::Route { scores: value(scores), per_expert_scale, top_k, experts, weights }
        }
        Op::Experts { x, experts, weights, gate, up, down, out } => {
            Op::Experts { x: value(x), experts: value(experts), weights: value(weights), gate, up, down, out }
        }
        Op::SelectRows { x, out } => Op::SelectRows { x: slice(x), out },
        Op::Softcap { x, cap, out } => Op::Softcap { x: value(x), cap, out },
        Op::Sample { logits, out } => Op::Sample { logits: value(logits), out },
    }
}

impl Backend for Faulty {
    fn name(&self) -> String {
        format!("faulty {}", self.inner.name())
    }

    fn memory(&self) -> MemoryInfo {
        self.inner.memory()
    }

    fn load(
        &mut self,
        weights: &[WeightSpec],
        from: &Arc<Checkpoint>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(), BackendError> {
        self.inner.load(weights, from, progress)
    }

    fn block_bytes(&self, layout: &CacheLayout) -> Vec<u64> {
        self.inner.block_bytes(layout)
    }

    fn reserve_cache(&mut self, layout: &CacheLayout, blocks: &[usize]) -> Result<(), BackendError> {
        self.inner.reserve_cache(layout, blocks)
    }

    fn compile(&mut self, plan: &Plan, options: &CompileOptions) -> Result<ExecutableId, BackendError> {
        let (altered, replaced) = self.altered(plan);
        let mut of_altered = options.clone();
        for value in of_altered.keep.iter_mut().filter(|value| **value == replaced.0) {
            *value = replaced.1;
        }
        let sound = self.inner.compile(plan, options)?;
        let faulty = self.inner.compile(&altered, &of_altered)?;
        self.executables.push((sound, faulty, replaced));
        Ok(ExecutableId((self.executables.len() - 1) as u32))
    }

    fn launch(&mut self, executable: ExecutableId, inputs: &StepInputs) -> Result<Ticket, BackendError> {
        let (sound, faulty, replaced) = self.executables[executable.0 as usize];
        let is_faulty = self.fault.when.holds(inputs);
        self.launched.push(is_faulty.then_some(replaced));
        self.inner.launch(if is_faulty { faulty } else { sound }, inputs)
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutputs, BackendError> {
        let mut outputs = self.inner.collect(ticket)?;
        // Steps are collected in the order of their launches, one at a time.
        if let Some((sound, wrong)) = self.launched.remove(0) {
            for found in outputs.non_finite.iter_mut().filter(|found| found.value == wrong) {
                found.value = sound;
            }
        }
        Ok(outputs)
    }
}
