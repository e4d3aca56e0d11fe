//! What a plan computes, as terms instead of numbers.
//!
//! Law: memory is bytes, and every byte knows the term that was written over it. A task reads its operands'
//! terms and writes new ones made of its op and of all that it read, so two plans that leave equal terms
//! compute equal bits, and a byte of another content makes every term behind it another one. Nothing is
//! expected anywhere: what a plan means is what its closures read, those of calls in order and parts of a
//! rule each as often as it runs, and what lies in memory at the end. This file knows no version, no
//! phase and no rule of PL-2, PL-4 or PL-9.
//!
//! What is told apart beside the bytes: in a shard the codes and the scales, which different ops write, and
//! in a gradient its rows and its padding rows, because a closure writes the rows alone. What is known beside
//! the operands: a sum or maximum over one rank is the value itself, and groups of the same ranks give the
//! same one; scales matter to formats that have some; and nobody reads what a step leaves in an input, which
//! is staged anew before every step.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use warpweft_base::id::{RankId, SlotId, WeightId};
use warpweft_plan::layout::{Content, Region, Residency, Slot};
use warpweft_plan::model::{Group, Role};
use warpweft_plan::op::{
    AdamOperand, DequantizePart, MasterOperand, Op, OperandRole, PrepareOperand, SumTarget, UpdateOperand,
};
use warpweft_plan::plan::StepPlan;

/// A value, as the fingerprint of how it came to be.
type Term = u64;

fn term(made: impl Hash) -> Term {
    let mut hasher = DefaultHasher::new();
    made.hash(&mut hasher);
    hasher.finish()
}

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Cell {
    /// Everything; of a shard the codes.
    value: Term,
    /// Of a shard the scales.
    scales: Term,
    /// Of a gradient: are the padding rows zero?
    zeroed: bool,
}

impl Cell {
    fn of(made: impl Hash) -> Self {
        Self { value: term(made), scales: 0, zeroed: false }
    }
}

/// What a plan does that anybody could notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meaning {
    /// What each call computed with, in the order in which calls ran.
    calls: Vec<Term>,
    /// What each part of a rule worked on, and how often. Which ran first is for the planner to say.
    parts: BTreeMap<Term, usize>,
    /// What lies in the slots that stay, and in fault word and vote, by what they are declared for.
    left: BTreeMap<Content, BTreeSet<Term>>,
    /// What a rank added up by itself, which nobody looks into unless a sum stays open.
    own_sums: BTreeMap<SlotId, Term>,
    /// What the plan says it needs and leaves.
    edges: Term,
}

/// The meaning of `plan` when its tasks run in `order`.
pub(crate) fn meaning(plan: &StepPlan, order: &[usize]) -> Meaning {
    let mut memory = Memory::before_the_step(plan);
    order.iter().for_each(|task| memory.run(&plan.tasks[*task].op));
    let read = |slot: SlotId| (slot, term(memory.read(slot)));
    let mut left: BTreeMap<Content, BTreeSet<Term>> = BTreeMap::new();
    for slot in remaining(plan) {
        left.entry(plan.arena.slot(slot).content).or_default().insert(read(slot).1);
    }
    let own_sums = sums(plan).filter(|slot| is_own_sum(plan, *slot)).map(read).collect();
    let edges = term((plan.entry, plan.exit, plan.micro_batches));
    Meaning { calls: memory.calls, parts: memory.parts, left, own_sums, edges }
}

impl Meaning {
    /// Is this what `expected` means, to whoever goes on from it?
    pub(crate) fn is(&self, expected: &Self, stays_open: bool) -> bool {
        (&self.calls, &self.parts) == (&expected.calls, &expected.parts)
            && (&self.left, self.edges) == (&expected.left, expected.edges)
            && (!stays_open || self.own_sums == expected.own_sums)
    }
}

/// What lies in each slot of a sum of gradients behind a step that found this in all of them.
pub(crate) fn sums_behind(plan: &StepPlan, order: &[usize], found: &str) -> BTreeMap<SlotId, Term> {
    let mut memory = Memory::before_the_step(plan);
    for slot in sums(plan) {
        memory.write(slot, Cell::of((found, plan.arena.slot(slot).content)));
    }
    order.iter().for_each(|task| memory.run(&plan.tasks[*task].op));
    sums(plan).map(|slot| (slot, term(memory.read(slot)))).collect()
}

/// The slots in which gradients are added up, beyond a step: main grads, and what a rank adds up of replicated weights.
fn sums(plan: &StepPlan) -> impl Iterator<Item = SlotId> {
    let is_sum = |content| matches!(content, Content::MainGrad(_) | Content::LocalGrad(_));
    let stays = plan.arena.entries().filter(|(_, slot)| slot.residency == Residency::Resident);
    stays.filter(move |(_, slot)| is_sum(slot.content)).map(|(id, _)| id)
}

fn is_own_sum(plan: &StepPlan, slot: SlotId) -> bool {
    matches!(plan.arena.slot(slot).content, Content::LocalGrad(_))
}

/// The slots that somebody looks into when the step is over, whatever it is of a sum of gradients.
pub(crate) fn remaining(plan: &StepPlan) -> Vec<SlotId> {
    let outcome = plan.tasks.iter().filter_map(|task| match task.op {
        Op::Vote { vote, .. } => Some(vote),
        Op::ClearFault { fault } => Some(fault),
        _ => None,
    });
    let stays = plan.arena.entries().filter(|(_, slot)| slot.residency == Residency::Resident);
    let is_input = |content| match content {
        Content::Buffer(buffer) => plan.buffers[buffer.index()].role == Role::Input,
        _ => false,
    };
    let is_left = |(id, slot): &(SlotId, &Slot)| !is_input(slot.content) && !is_own_sum(plan, *id);
    stays.filter(is_left).map(|(id, _)| id).chain(outcome).collect()
}

/// Bytes that were written together.
#[derive(Clone, Copy, Debug)]
struct Piece {
    end: usize,
    /// Where the slot began through which they were written.
    begin: usize,
    /// That slot. What a plan means does not depend on it.
    through: SlotId,
    cell: Cell,
}

/// The arena of a rank, while a plan runs.
pub(crate) struct Memory<'p> {
    plan: &'p StepPlan,
    /// By first byte.
    pieces: BTreeMap<usize, Piece>,
    calls: Vec<Term>,
    parts: BTreeMap<Term, usize>,
}

impl<'p> Memory<'p> {
    pub(crate) fn before_the_step(plan: &'p StepPlan) -> Self {
        let mut memory = Self { plan, pieces: BTreeMap::new(), calls: Vec::new(), parts: BTreeMap::new() };
        for (id, slot) in plan.arena.entries().filter(|(_, slot)| slot.residency == Residency::Resident) {
            memory.write(id, Cell::of(("before the step", slot.content)));
        }
        memory
    }

    /// Was some byte of the slot written last through another slot?
    pub(crate) fn is_foreign(&self, slot: SlotId) -> bool {
        let Region { offset, bytes } = self.plan.arena.region(slot);
        let end = offset + bytes;
        self.pieces.range(..end).any(|(_, piece)| piece.end > offset && piece.through != slot)
    }

    /// Are the padding rows of a gradient there zero?
    pub(crate) fn is_zeroed(&self, slot: SlotId) -> bool {
        self.read(slot).zeroed
    }

    /// Does the slot hold what it held before the step, and was it declared for `content`?
    pub(crate) fn is_untouched(&self, slot: SlotId, content: Content) -> bool {
        self.read(slot) == Cell::of(("before the step", content))
    }

    /// The content of a slot; a term of its own for bytes of several contents, or of a part of one.
    fn read(&self, slot: SlotId) -> Cell {
        let Region { offset, bytes } = self.plan.arena.region(slot);
        if bytes == 0 {
            return Cell::of("no bytes");
        }
        let end = offset + bytes;
        match self.pieces.get(&offset) {
            Some(piece) if (piece.end, piece.begin) == (end, offset) => piece.cell,
            _ => {
                let torn: Vec<_> = self
                    .pieces
                    .range(..end)
                    .filter(|(_, piece)| piece.end > offset)
                    .map(|(first, piece)| {
                        (
                            first.saturating_sub(offset),
                            piece.end.min(end) - offset,
                            piece.begin.wrapping_sub(offset),
                            piece.cell,
                        )
                    })
                    .collect();
                Cell::of(("torn", bytes, torn))
            }
        }
    }

    fn write(&mut self, slot: SlotId, cell: Cell) {
        let Region { offset, bytes } = self.plan.arena.region(slot);
        if bytes == 0 {
            return;
        }
        let end = offset + bytes;
        let hit: Vec<usize> = self
            .pieces
            .range(..end)
            .filter(|(_, piece)| piece.end > offset)
            .map(|(first, _)| *first)
            .collect();
        for first in hit {
            if let Some(piece) = self.pieces.remove(&first) {
                if first < offset {
                    self.pieces.insert(first, Piece { end: offset, ..piece });
                }
                if piece.end > end {
                    self.pieces.insert(end, piece);
                }
            }
        }
        self.pieces.insert(offset, Piece { end, begin: offset, through: slot, cell });
    }

    fn all(&self, slots: &[SlotId]) -> Vec<Cell> {
        slots.iter().map(|slot| self.read(*slot)).collect()
    }

    fn maybe(&self, slot: Option<SlotId>) -> Option<Cell> {
        slot.map(|slot| self.read(slot))
    }

    pub(crate) fn run(&mut self, op: &Op) {
        let name = op.name();
        match op {
            Op::Copy { from, to } => self.write(*to, self.read(*from)),
            Op::ClearFault { fault } => self.write(*fault, Cell::of(name)),
            Op::ZeroPadding { weight, gradient } => {
                let rows = self.read(*gradient);
                let is_gradient = matches!(self.plan.arena.slot(*gradient).content, Content::Gradient(of, _) | Content::WireGradient(of, _) if of == *weight);
                let value = if is_gradient { rows.value } else { term((name, weight, rows)) };
                self.write(*gradient, Cell { value, zeroed: true, ..rows });
            }
            Op::Compute { .. } => self.call(op),
            Op::PartialAmax { bucket, masters, block_amax, tensor_amax, vote } => {
                let made = (name, bucket, self.all(masters), self.maybe(*vote));
                self.write(*block_amax, Cell::of((&made, "blocks")));
                self.write(*tensor_amax, Cell::of((&made, "tensors")));
            }
            Op::AllReduce { reduction, group, pairs } => {
                let read: Vec<Cell> = pairs.iter().map(|(from, _)| self.read(*from)).collect();
                for ((_, to), cell) in pairs.iter().zip(read) {
                    self.write(*to, self.among(*group, (name, reduction), cell));
                }
            }
            // What a peer gives came to be as what this rank gives; which of it a rank gets is said by the kind and
            // by who meets. The call is a name: nothing that is moved depends on it.
            Op::ExchangeBuffer { kind, group, from, to, .. } => {
                self.write(*to, self.among(*group, (name, kind), self.read(*from)));
            }
            Op::FusedScale { bucket, block_amax, tensor_amax, encode, tensor_scale, shards, vote } => {
                let tensors = self.plan.weights.bucket(*bucket).format.needs_tensor_amax();
                let tensors = tensors.then(|| self.read(*tensor_amax));
                let made = (name, bucket, self.read(*block_amax), tensors, self.maybe(*vote));
                self.write(*encode, Cell::of((&made, "encode")));
                self.write(*tensor_scale, Cell::of((&made, "tensors")));
                for shard in shards {
                    let planes = self.plan.weights.layout(shard.weight).shard_planes(shard.orientation);
                    if planes.len() > 1 {
                        let scales = term((&made, shard.weight, shard.orientation));
                        self.write(shard.slot, Cell { scales, ..self.read(shard.slot) });
                    }
                }
            }
            Op::DelayedScale { bucket, history, scale, tensor_scale, vote } => {
                let taken =
                    Cell::of((name, bucket, self.read(*scale), self.maybe(*history), self.maybe(*vote)));
                if history.is_some() {
                    self.write(*scale, taken);
                }
                self.write(*tensor_scale, Cell::of((taken, "tensors")));
            }
            Op::RecordAmax { bucket, tensor_amax, history, vote } => {
                let made = (name, bucket, self.read(*tensor_amax), self.read(*history), self.maybe(*vote));
                self.write(*history, Cell::of(made));
            }
            Op::PartialCast { bucket, masters, encode, shards, vote } => {
                let made = (name, bucket, self.all(masters), self.maybe(*encode), self.maybe(*vote));
                for shard in shards {
                    let value = term((&made, shard.weight, shard.orientation));
                    self.write(shard.slot, Cell { value, ..self.read(shard.slot) });
                }
            }
            Op::AllGather { parts } => {
                let read: Vec<Cell> = parts.iter().map(|part| self.read(part.from)).collect();
                for (part, cell) in parts.iter().zip(read) {
                    self.write(part.to, Cell::of((name, part.weight, part.orientation, cell)));
                }
            }
            // The order is part of the op's meaning: each chunk goes behind those before it.
            Op::GatherChunk { part, chunk } => {
                let before = (chunk.begin > 0).then(|| self.read(part.to));
                let made = (name, part.weight, part.orientation, self.read(part.from), chunk, before);
                self.write(part.to, Cell::of(made));
            }
            // It works on what the gather left, so planes that are made whole twice are others.
            Op::Assemble { parts } => {
                for part in parts {
                    let made =
                        (name, part.weight, part.orientation, self.read(part.from), self.read(part.to));
                    self.write(part.to, Cell::of(made));
                }
            }
            // Parts are done at the same time, so all of them read before any writes.
            Op::Transpose { parts } => {
                let read: Vec<_> = parts.iter().map(|part| self.read(part.from)).collect();
                for (part, planes) in parts.iter().zip(read) {
                    self.write(part.to, Cell::of((name, part.weight, planes)));
                }
            }
            Op::Dequantize { parts } => {
                let read = |part: &DequantizePart| {
                    let scaled = self.plan.weights.layout(part.weight).format.needs_tensor_amax();
                    let planes = (self.read(part.from), self.maybe(part.own));
                    (planes, self.maybe(part.tensor_scale.filter(|_| scaled)))
                };
                let read: Vec<_> = parts.iter().map(read).collect();
                for (part, (planes, scale)) in parts.iter().zip(read) {
                    let made = (name, part.weight, part.orientation, part.values, planes, scale);
                    self.write(part.to, Cell::of(made));
                }
            }
            Op::ReduceScatter { element, parts } => {
                let read: Vec<_> = parts.iter().map(|part| self.gradient(part.weight, part.from)).collect();
                for (part, rows) in parts.iter().zip(read) {
                    self.write(part.to, Cell::of((name, element, part.weight, rows)));
                }
            }
            // All ranks do the same, so what peers give is what this rank gives.
            Op::ExchangeGradient { element, parts } => {
                let read: Vec<_> = parts.iter().map(|part| self.gradient(part.weight, part.from)).collect();
                for (part, rows) in parts.iter().zip(read) {
                    self.write(part.to, Cell::of((name, element, part.weight, rows)));
                }
            }
            // Slices of several gradients are a sum of other contributions; the terms of both are in it.
            Op::SumGradient { element, parts } => {
                for part in parts {
                    let own = self.gradient(part.weight, part.own);
                    let sum = Cell::of((name, element, part.weight, own, self.maybe(part.landed)));
                    let made = match part.target {
                        SumTarget::Rows => sum,
                        SumTarget::First => Cell::of(("mean", sum)),
                        SumTarget::More => Cell::of(("mean", sum, self.read(part.into))),
                    };
                    self.write(part.into, made);
                }
            }
            Op::RoundGradient { weight, from, to } => {
                let (rows, zeroed) = self.gradient(*weight, *from);
                self.write(*to, Cell { zeroed, ..Cell::of((name, weight, rows)) });
            }
            Op::AddGradient { weight, from, into } => {
                let (added, sum) = (self.read(*from), self.read(*into));
                let value = term((name, weight, sum.value, added.value));
                self.write(*into, Cell { value, scales: 0, zeroed: sum.zeroed && added.zeroed });
            }
            Op::Accumulate { weight, from, into, first } => {
                let sum = (!first).then(|| self.read(*into));
                self.write(*into, Cell::of((name, weight, self.read(*from).value, sum)));
            }
            Op::GradNorm { main_grads, fault, record } => {
                let read: Vec<_> =
                    main_grads.iter().map(|(weight, slot)| (weight, self.read(*slot))).collect();
                self.write(*record, Cell::of((name, read, self.read(*fault))));
            }
            Op::GatherRecords { from, to } => self.write(*to, Cell::of((name, self.read(*from)))),
            Op::Vote { records, optimizer_step, gradient_scale, vote } => {
                let made =
                    (name, self.read(*records), self.read(*optimizer_step), self.read(*gradient_scale));
                self.write(*optimizer_step, Cell::of((&made, "count")));
                self.write(*vote, Cell::of((&made, "vote")));
            }
            Op::Adam { bucket, states, vote, hyperparameters } => {
                // One parameter group for all of them: that of the first.
                let group = states.first().map(|state| self.plan.weights.layout(state.weight).parameters);
                let by = term((name, bucket, group, self.read(*vote), self.read(*hyperparameters)));
                states.iter().for_each(|state| self.update(by, state));
            }
            // The rows of the n-th weight are the n-th part of what is prepared, whatever weight that is.
            Op::Prepare { bucket, states, vote, hyperparameters, to } => {
                let by = term((name, bucket, self.read(*vote), self.read(*hyperparameters)));
                let prepare = |PrepareOperand { weight, kept, main_grad }: &PrepareOperand| {
                    self.rewrite(by, *weight, kept, *main_grad)
                };
                let rows: Vec<Term> = states.iter().map(prepare).collect();
                self.ran((name, by, &rows));
                self.write(*to, Cell::of((name, rows)));
            }
            // The n-th rank gives and gets other bytes than its peers, which came to be as its own did: from the parts
            // of all places. Each way is one exchange more, so rows that did not go both ways are others.
            Op::ExchangeRows { weights, from, to } => {
                self.write(*to, self.among(Group::Shard, (name, weights), self.read(*from)));
            }
            // The n-th rank takes what it has for the matrix of the n-th weight.
            Op::Transform { bucket, weights, vote, from, to } => {
                let made = (name, bucket, weights, self.read(*vote), self.read(*from));
                self.ran(made);
                self.write(*to, Cell::of(made));
            }
            Op::Update { bucket, states, vote, hyperparameters, transformed } => {
                let group = states.first().map(|state| self.plan.weights.layout(state.weight).parameters);
                let by = (name, bucket, group, self.read(*vote), self.read(*hyperparameters));
                let update = |(place, state): (usize, &UpdateOperand)| {
                    let UpdateOperand { weight, master, kept, main_grad } = state;
                    // The rows of the n-th weight are the n-th part of what came back.
                    let rows = transformed.map(|slot| (place, self.read(slot)));
                    let state: Vec<SlotId> = [master].into_iter().chain(kept).copied().collect();
                    self.rewrite(term((&by, rows)), *weight, &state, *main_grad)
                };
                let updated: Vec<Term> = states.iter().enumerate().map(update).collect();
                self.ran((by, updated));
            }
        }
    }

    /// What a rank gets of all of its group, each of which has such a `cell`. The members say who takes part, whatever
    /// the group is called; of one rank alone it is the cell itself.
    fn among(&self, group: Group, made: impl Hash, cell: Cell) -> Cell {
        let mesh = self.plan.weights.mesh;
        let members: Vec<Vec<RankId>> = mesh.iter().map(|rank| mesh.members(rank, group).collect()).collect();
        let alone = members.iter().all(|group| group.len() == 1);
        if alone { cell } else { Cell::of((made, &members, cell)) }
    }

    /// The rows of a full gradient, and whether what lies behind them is zero.
    fn gradient(&self, weight: WeightId, slot: SlotId) -> (Term, bool) {
        let read = self.read(slot);
        let shard = &self.plan.weights.layout(weight).shard;
        (read.value, read.zeroed || shard.padded_rows() == shard.shape.rows)
    }

    /// A part of a rule ran on this.
    fn ran(&mut self, on: impl Hash) {
        *self.parts.entry(term(on)).or_default() += 1;
    }

    fn call(&mut self, op: &Op) {
        let Op::Compute { call, fault, operands } = op else { return };
        let mut read: Vec<_> = operands
            .iter()
            .map(|operand| {
                (operand.role, operand.access, operand.access.reads().then(|| self.read(operand.slot)))
            })
            .collect();
        read.sort_unstable_by_key(|(role, access, _)| (*role, *access));
        let ran = term(("call", call, self.read(*fault), read));
        self.calls.push(ran);
        for operand in operands.iter().filter(|operand| operand.access.writes()) {
            let zeroed = matches!(operand.role, OperandRole::Gradient(_)) && self.read(operand.slot).zeroed;
            self.write(operand.slot, Cell { zeroed, ..Cell::of((ran, operand.role)) });
        }
        self.write(*fault, Cell::of(("fault word", ran)));
    }

    fn update(&mut self, by: Term, state: &AdamOperand) {
        let AdamOperand { weight, master, exp_avg, exp_avg_sq, main_grad } = *state;
        let halves = match master {
            MasterOperand::Whole(master) => vec![master],
            MasterOperand::Split { shard, remainder } => vec![shard, remainder],
        };
        let state: Vec<SlotId> = halves.into_iter().chain([exp_avg, exp_avg_sq]).collect();
        self.rewrite(by, weight, &state, main_grad);
    }

    /// Rewrites all state of a weight, and returns what else comes of it.
    fn rewrite(&mut self, by: Term, weight: WeightId, state: &[SlotId], main_grad: SlotId) -> Term {
        let made = (by, weight, self.all(state), self.read(main_grad));
        for (position, slot) in state.iter().enumerate() {
            self.write(*slot, Cell::of((&made, position)));
        }
        term(made)
    }
}
