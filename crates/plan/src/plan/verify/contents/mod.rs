//! PL-2, PL-4, PL-9, PL-10: the plan executed in T, on symbols instead of numbers.
//!
//! Law: a slot holds a [`Held`], an op demands certain symbols of the slots it reads and leaves
//! others in the slots it writes, and what it leaves must belong into a slot declared for it. PL-3
//! makes every real order equivalent to T, so one execution in T speaks for all of them; and the
//! plan names no rank, so it speaks for every rank. Versions are those of a step with a clean
//! vote; under any other vote every rewriting task is a no-op and the versions at entry stay.
//!
//! - **PL-2** every use of every call reads exactly the weight, orientation and form it declares, gathered
//!   once from the other ranks, and then assembled with the rank's own shard or dequantized together with it,
//!   all at the version of the step's entry, and scales of the same version.
//! - **PL-4** every gradient reaches its main grad exactly once, in program order, before norm and optimizer.
//! - **PL-9** the step ends with masters, moments and shards one version on, or as they were.
//! - **PL-10** every call runs once, in program order, with exactly the operands it declares;
//!   buffers hold what program order says; fault word, records and vote are this step's.
//!
//! One file for each part of the step: `entry` and `exit` are its edges, `planes` what becomes of gathered
//! weights, `calls` the closures and their buffers, `collective_calls` what ranks give each other of these, `counts`
//! how much of it is filled,
//! `gradients` and `optimizer` what follows them, `main_grads` that none is lost on the way, `matrices` what
//! a whole-matrix optimizer needs for it, `received` gradients that ranks sum by themselves, `quantize` the
//! way from masters to shards, `delayed` what remembers amaxes on it, `snapshot` what is copied for a save.

mod calls;
mod collective_calls;
mod counts;
mod delayed;
mod entry;
mod exit;
mod gradients;
mod held;
mod main_grads;
mod matrices;
mod optimizer;
mod planes;
mod quantize;
mod received;
mod slots;
mod snapshot;

use std::collections::{BTreeMap, HashMap};

use counts::Counted;
use held::{BufferValue, Held};
use slots::Slots;

use super::{Verdict, VerifyError};
use crate::layout::{Region, RoundStage};
use crate::model::Group;
use crate::op::{Op, Reduction};
use crate::plan::StepPlan;
use warpweft_base::id::{CallId, SlotId, TaskId, WeightId};
use warpweft_format::ElementType;

/// What was found right, counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Proven {
    pub(super) uses: usize,
    pub(super) gradients: usize,
    pub(super) buffers: usize,
}

/// Executes the plan and returns what it proves.
pub(super) fn check(plan: &StepPlan) -> Verdict<Proven> {
    let mut run = Run::new(plan);
    run.enter()?;
    for (id, task) in plan.entries() {
        run.execute(id, &task.op)?;
    }
    run.leave()?;
    Ok(run.proven)
}

/// One symbolic execution.
struct Run<'p> {
    plan: &'p StepPlan,
    slots: Slots<'p>,
    /// Calls executed so far; they run in program order, so this is also the next one.
    calls: usize,
    /// Those of them that closures ran: all but collectives.
    closures: usize,
    /// For every weight, the calls that write a gradient of it.
    contributors: Vec<Vec<CallId>>,
    /// In what every gradient is written.
    written_in: HashMap<(WeightId, CallId), ElementType>,
    /// For every buffer, the last call so far that wrote it.
    writers: Vec<Option<CallId>>,
    /// For every call that brought rows by counts, these.
    counted: HashMap<CallId, Counted>,
    /// For every weight of a round and every stage to which it came so far, the task that brought it there.
    stages: HashMap<(WeightId, RoundStage), TaskId>,
    /// Where in the snapshot every slot is that was copied so far.
    copied: BTreeMap<SlotId, Region>,
    proven: Proven,
}

impl<'p> Run<'p> {
    fn new(plan: &'p StepPlan) -> Self {
        let mut contributors = vec![Vec::new(); plan.weights.layouts.len()];
        let mut written_in = HashMap::new();
        for (number, call) in plan.calls.iter().enumerate() {
            for gradient in &call.gradients {
                contributors[gradient.weight.index()].push(CallId::at(number));
                written_in.insert((gradient.weight, CallId::at(number)), gradient.element);
            }
        }
        Self {
            plan,
            slots: Slots::new(plan),
            calls: 0,
            closures: 0,
            contributors,
            written_in,
            writers: vec![None; plan.buffers.len()],
            counted: HashMap::new(),
            stages: HashMap::new(),
            copied: BTreeMap::new(),
            proven: Proven::default(),
        }
    }

    fn execute(&mut self, task: TaskId, op: &Op) -> Verdict<()> {
        match op {
            Op::Copy(op) => self.copy(task, op.from, op.to),
            Op::ClearFault(op) => self.fill(task, op.fault, Held::FaultWord { calls: 0 }),
            Op::ZeroPadding(op) => self.zero_padding(task, op.weight, op.gradient),
            Op::Compute(op) => self.compute(task, op.call, op.fault, &op.operands),
            Op::CollectiveCall(op) => self.collective_call(task, op),
            Op::PartialAmax(op) => {
                let amaxes = (op.block_amax, op.tensor_amax);
                self.partial_amax(task, op.bucket, &op.masters, amaxes, op.vote)
            }
            Op::AllReduce(op) => match op.reduction {
                Reduction::Max => self.reduce_amaxes(task, op.group, &op.pairs),
                Reduction::Sum => self.reduce_sums(task, op.group, &op.pairs),
            },
            Op::FusedScale(op) => {
                let (amaxes, factors) = ((op.block_amax, op.tensor_amax), (op.encode, op.tensor_scale));
                self.fused_scale(task, op.bucket, amaxes, factors, &op.shards, op.vote)
            }
            Op::DelayedScale(op) => {
                self.delayed_scale(task, op.bucket, op.history, (op.scale, op.tensor_scale), op.vote)
            }
            Op::RecordAmax(op) => self.record_amax(task, op.bucket, op.tensor_amax, op.history, op.vote),
            Op::PartialCast(op) => {
                self.partial_cast(task, op.bucket, &op.masters, op.encode, &op.shards, op.vote)
            }
            Op::AllGather(op) => op.parts.iter().try_for_each(|part| {
                match self.publishes(*part) {
                    true => self.publishes_over(task, op.group, part.weight)?,
                    false => self.is_over(task, op.group, part.weight)?,
                }
                self.gather(task, *part)
            }),
            Op::GatherChunk(op) => {
                self.is_over(task, op.group, op.part.weight)?;
                self.gather_chunk(task, op.part, op.chunk)
            }
            Op::Assemble(op) => op.parts.iter().try_for_each(|part| self.assemble(task, *part)),
            Op::Transpose(op) => op.parts.iter().try_for_each(|part| self.transpose(task, *part)),
            Op::Dequantize(op) => op.parts.iter().try_for_each(|part| self.dequantize(task, *part)),
            Op::ReduceScatter(op) => op.parts.iter().try_for_each(|part| {
                self.is_over(task, op.group, part.weight)?;
                self.reduce_scatter(task, op.wire, *part)
            }),
            Op::ExchangeGradient(op) => {
                let (wire, group) = (op.wire, op.group);
                op.parts.iter().try_for_each(|part| self.exchange_gradient(task, wire, group, *part))
            }
            Op::SumGradient(op) => {
                let (wire, group) = (op.wire, op.group);
                self.count_tokens_alike(task, &op.parts)?;
                op.parts.iter().try_for_each(|part| self.sum_gradient(task, wire, group, *part))
            }
            Op::RoundGradient(op) => self.round_gradient(task, op),
            Op::AddGradient(op) => self.add_gradient(task, op.weight, op.from, op.into),
            Op::Accumulate(op) => self.accumulate(task, op),
            Op::GradNorm(op) => self.grad_norm(task, op),
            Op::GatherRecords(op) => self.gather_records(task, op.from, op.to),
            Op::Vote(op) => self.vote(task, op.records, op.optimizer_step, op.gradient_scale, op.vote),
            Op::Prepare(op) => {
                self.prepare(task, op.bucket, &op.states, (op.vote, op.hyperparameters), op.to)
            }
            Op::ExchangeRows(op) => {
                op.weights.iter().try_for_each(|weight| self.is_over(task, op.group, *weight))?;
                self.exchange_rows(task, &op.weights, op.from, op.to)
            }
            Op::Transform(op) => self.transform(task, op.bucket, &op.weights, op.vote, (op.from, op.to)),
            Op::Update(op) => {
                self.update(task, op.bucket, &op.states, (op.vote, op.hyperparameters), op.transformed)
            }
            Op::Adam(op) => self.adam(task, op),
            Op::Snapshot(op) => self.snapshot(task, op),
        }
    }

    /// The ranks of `group` must be those that the rows of `weight` are sharded over.
    fn is_over(&self, task: TaskId, group: Group, weight: WeightId) -> Verdict<()> {
        let (mesh, over) = (self.plan.weights.mesh, self.plan.weights.layout(weight).shard.group());
        if mesh.alike(group, over) {
            return Ok(());
        }
        let problem = format!(
            "brings the {group} group together for `{}`, which is sharded over the {over} group",
            self.name(weight)
        );
        self.wrong_program(
            self.plan.describe(task),
            problem,
            "bring those ranks together that share the weight's rows",
        )
    }

    /// Lets `task` write `held`, if the slot was declared, hence sized, for it.
    fn fill(&mut self, task: TaskId, slot: SlotId, held: Held) -> Verdict<()> {
        let declared = self.plan.arena.slot(slot);
        if !held.belongs_in(declared.content) {
            return Err(Box::new(VerifyError::Bytes {
                subject: self.plan.describe(task),
                problem: format!(
                    "writes {} into slot `{}`, which was declared for other content and sized for it",
                    held.describe(self.plan),
                    declared.name
                ),
                remedy: "write it into a slot of its own".into(),
            }));
        }
        self.slots.put(Some(task), slot, held);
        Ok(())
    }

    fn name(&self, weight: WeightId) -> &'p str {
        let plan: &'p StepPlan = self.plan;
        &plan.weights.layout(weight).name
    }

    fn call_name(&self, call: CallId) -> String {
        self.plan.calls[call.index()].label()
    }

    fn slot_name(&self, slot: SlotId) -> String {
        self.plan.arena.slot(slot).name.clone()
    }

    fn finds(&self, slot: SlotId) -> String {
        format!("slot `{}` holds {}", self.slot_name(slot), self.slots.describe(slot))
    }

    /// PL-2: what a weight's way to a call finds is not what it must.
    fn wrong_use<T>(&self, task: TaskId, slot: SlotId, needs: String, remedy: &str) -> Verdict<T> {
        Err(Box::new(VerifyError::Use {
            task: self.plan.describe(task),
            slot: self.slot_name(slot),
            needs,
            holds: self.slots.describe(slot),
            remedy: remedy.into(),
        }))
    }

    /// PL-4: what a gradient's way to its main grad finds is not what it must.
    fn wrong_gradient<T>(&self, task: TaskId, slot: SlotId, needs: String, remedy: &str) -> Verdict<T> {
        Err(Box::new(VerifyError::Gradient {
            task: self.plan.describe(task),
            slot: self.slot_name(slot),
            needs,
            holds: self.slots.describe(slot),
            remedy: remedy.into(),
        }))
    }

    /// PL-9: what the way to the next version finds is not what it must.
    fn wrong_state<T>(&self, task: TaskId, slot: SlotId, needs: String, remedy: &str) -> Verdict<T> {
        Err(Box::new(VerifyError::Edge {
            subject: self.plan.describe(task),
            needs,
            finds: self.finds(slot),
            remedy: remedy.into(),
        }))
    }

    /// PL-10: a closure or the step's bookkeeping finds something else than program order says.
    fn wrong_operand<T>(&self, task: TaskId, slot: SlotId, needs: &str, remedy: &str) -> Verdict<T> {
        let problem = format!("needs {needs}, but {}", self.finds(slot));
        self.wrong_program(self.plan.describe(task), problem, remedy)
    }

    /// PL-10, where no slot is to blame.
    fn wrong_program<T>(&self, task: String, problem: String, remedy: &str) -> Verdict<T> {
        Err(Box::new(VerifyError::Program { task, problem, remedy: remedy.into() }))
    }
}
