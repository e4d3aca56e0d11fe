//! The meaning of a plan: its computation on terms in place of numbers.
//!
//! Law: memory is bytes, and every byte knows the term that was written over it. A task reads its operands'
//! terms and writes new ones made of its op and of all that it read, so two plans that leave equal terms
//! compute equal bits, and a byte of another content makes every term after it another one. Nothing is
//! expected anywhere: what a plan means is what its closures read, those of calls in order and parts of a
//! rule each as often as it runs, and what lies in memory at the end. This file knows no version, no
//! phase and no rule of PL-2, PL-4 or PL-9.
//!
//! What is distinguished beside the bytes: in a shard the codes and the scales, which different ops write, and
//! in a gradient its rows and its padding rows, because a closure writes the rows alone. What is known beside
//! the operands: a sum or maximum over one rank is the value itself, and groups of the same ranks give the
//! same one; scales matter to formats that have some; and nobody reads what a step leaves in an input, which
//! is staged anew before every step.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use warpweft_base::id::{CallId, LevelId, RankId, SlotId, WeightId};
use warpweft_format::{ElementType, Orientation, Shape};
use warpweft_plan::layout::{Content, Region, Residency, Slot};
use warpweft_plan::model::{Group, Role, Strides};
use warpweft_plan::op::{
    AdamOperand, CastVote, ClearFault, Compute, GatherPart, MasterOperand, Op, OperandRole,
};
use warpweft_plan::plan::StepPlan;
use warpweft_plan::policy::Reduce;

/// A value, as the fingerprint of how it came to be.
pub(crate) type Term = u64;

pub(crate) fn term(made: impl Hash) -> Term {
    let mut hasher = DefaultHasher::new();
    made.hash(&mut hasher);
    hasher.finish()
}

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cell {
    /// Everything; of a shard the codes.
    pub(crate) value: Term,
    /// Of a shard the scales.
    pub(crate) scales: Term,
    /// Of a gradient: are the padding rows zero?
    pub(crate) zeroed: bool,
}

impl Cell {
    pub(crate) fn of(made: impl Hash) -> Self {
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
    /// What lies in the snapshot, by what the slots were declared for of which the copies are.
    snapshot: BTreeMap<Content, Term>,
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
    let edges = term((plan.entry, plan.exit, plan.micro_batches, plan.takes_snapshot));
    Meaning {
        calls: memory.calls,
        parts: memory.parts,
        left,
        own_sums,
        snapshot: memory.snapshot.into_values().collect(),
        edges,
    }
}

impl Meaning {
    /// Is this what `expected` means, to whoever goes on from it?
    pub(crate) fn is(&self, expected: &Self, stays_open: bool) -> bool {
        (&self.calls, &self.parts) == (&expected.calls, &expected.parts)
            && (&self.left, self.edges) == (&expected.left, expected.edges)
            && self.snapshot == expected.snapshot
            && (!stays_open || self.own_sums == expected.own_sums)
    }
}

/// What lies in each slot of a sum of gradients after a step that found this in all of them.
pub(crate) fn sums_after(plan: &StepPlan, order: &[usize], found: &str) -> BTreeMap<SlotId, Term> {
    let mut memory = Memory::before_the_step(plan);
    for slot in sums(plan) {
        memory.write(slot, Cell::of((found, plan.arena.slot(slot).content)));
    }
    order.iter().for_each(|task| memory.run(&plan.tasks[*task].op));
    sums(plan).map(|slot| (slot, term(memory.read(slot)))).collect()
}

/// The slots in which gradients are accumulated, beyond a step: main grads, and what a rank adds up of replicated
/// weights.
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
        Op::Vote(CastVote { vote, .. }) => Some(vote),
        Op::ClearFault(ClearFault { fault }) => Some(fault),
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
    pub(crate) plan: &'p StepPlan,
    /// By first byte.
    pieces: BTreeMap<usize, Piece>,
    calls: Vec<Term>,
    parts: BTreeMap<Term, usize>,
    /// By first byte and end.
    snapshot: BTreeMap<(usize, usize), (Content, Term)>,
    /// Did an op write into a slot that was declared for something else?
    is_misplaced: bool,
}

/// Does the op write into a slot that was declared for something else?
pub(crate) fn writes_into_another_s_slot(plan: &StepPlan, op: &Op) -> bool {
    let mut memory = Memory::empty(plan);
    memory.run(op);
    memory.is_misplaced
}

impl<'p> Memory<'p> {
    fn empty(plan: &'p StepPlan) -> Self {
        let (calls, parts) = (Vec::new(), BTreeMap::new());
        let snapshot = BTreeMap::new();
        Self { plan, pieces: BTreeMap::new(), calls, parts, snapshot, is_misplaced: false }
    }

    pub(crate) fn before_the_step(plan: &'p StepPlan) -> Self {
        let mut memory = Self::empty(plan);
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
    pub(crate) fn read(&self, slot: SlotId) -> Cell {
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

    pub(crate) fn write(&mut self, slot: SlotId, cell: Cell) {
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

    pub(crate) fn all(&self, slots: &[SlotId]) -> Vec<Cell> {
        slots.iter().map(|slot| self.read(*slot)).collect()
    }

    pub(crate) fn maybe(&self, slot: Option<SlotId>) -> Option<Cell> {
        slot.map(|slot| self.read(slot))
    }

    /// What a slot is declared for.
    pub(crate) fn content(&self, slot: SlotId) -> Content {
        self.plan.arena.slot(slot).content
    }

    /// The call whose gradient, whole, rounded, summed or reduced, a slot is declared for.
    pub(crate) fn call_of(&self, slot: SlotId) -> Option<CallId> {
        match self.content(slot) {
            Content::Gradient(_, call)
            | Content::WireGradient(_, call)
            | Content::QuantizedGradient(_, call)
            | Content::PartialGradient(_, call, ..)
            | Content::ReducedGradient(_, call) => Some(call),
            _ => None,
        }
    }

    /// What a gather, and what goes on with it, makes: a shard of the slices that replicas have, or a whole weight.
    pub(crate) fn gathered(&self, part: GatherPart) -> Content {
        let in_slices = self.plan.weights.layout(part.weight).is_in_slices();
        match self.content(part.to) {
            Content::Published(..) if in_slices => Content::Published(part.weight, part.orientation),
            _ => Content::Gathered(part.weight, part.orientation),
        }
    }

    /// At which level the ranks of a group sum gradients of a weight, and whether nobody sums them after that.
    pub(crate) fn level(&self, weight: WeightId, group: Group) -> Option<(LevelId, bool)> {
        let (mesh, shard) = (self.plan.weights.mesh, self.plan.weights.layout(weight).shard);
        let groups: Vec<Group> = shard.tree(mesh).collect();
        let shape = |of: Group| (shard.summed_over(of), mesh.slices(of));
        let is_it = |of: &Group| mesh.alike(*of, group) && shape(*of) == shape(group);
        let level = groups.iter().position(is_it)?;
        Some((LevelId::at(level), level + 1 == groups.len()))
    }

    /// What a sum over a group leaves of a weight that every rank has whole, after the sums of `below` levels: the main
    /// grad, if these are all ranks or the last blocks there are.
    pub(crate) fn summed_of_world(&self, weight: WeightId, below: usize, group: Group) -> Option<Content> {
        let (mesh, policy) = (self.plan.weights.mesh, &self.plan.policy);
        let levels = mesh.levels();
        let blocks = if policy.reduce == Reduce::Nccl { &[][..] } else { levels.blocks() };
        let ranks = |level: usize| blocks.get(level).copied().unwrap_or(mesh.ranks());
        let before = below.checked_sub(1).map_or(1, ranks);
        let members = mesh.members(RankId::new(0), group).map(RankId::number);
        let is_level = below <= blocks.len() && members.eq((0..ranks(below)).step_by(before as usize));
        let left = || match below == blocks.len() {
            true => Content::MainGrad(weight),
            false => Content::BlockGrad(weight, LevelId::at(below)),
        };
        is_level.then(left)
    }

    /// Whose rows a group sums, what shape they have and how many slices of it: a slice is what replicas sum, and
    /// blocks of a level those of many ranks, by whatever name the same ranks are called elsewhere.
    pub(crate) fn summing(&self, weight: WeightId, group: Group) -> (Strides, Shape, u32) {
        let mesh = self.plan.weights.mesh;
        (mesh.strides(group), self.plan.weights.layout(weight).shard.summed_over(group), mesh.slices(group))
    }

    /// An op writes this content, or one for which there is none.
    pub(crate) fn expect(&mut self, slot: SlotId, content: impl Into<Option<Content>>) {
        let content: Option<Content> = content.into();
        self.is_misplaced |= content != Some(self.content(slot));
    }

    /// What a rule keeps of a weight.
    pub(crate) fn expect_lists(&mut self, weight: WeightId, kept: &[SlotId]) {
        let contents = [Content::first_moment(weight), Content::second_moment(weight)];
        kept.iter().zip(contents).for_each(|(slot, content)| self.expect(*slot, content));
    }

    /// Writes a content, or one for which there is none.
    pub(crate) fn put(&mut self, slot: SlotId, content: impl Into<Option<Content>>, cell: Cell) {
        self.expect(slot, content);
        self.write(slot, cell);
    }

    /// What a rank gets of all of its group, each of which has such a `cell`. The members say who takes part, whatever
    /// the group is called; of one rank alone it is the cell itself.
    pub(crate) fn among(&self, group: Group, made: impl Hash, cell: Cell) -> Cell {
        let mesh = self.plan.weights.mesh;
        let members: Vec<Vec<RankId>> = mesh.iter().map(|rank| mesh.members(rank, group).collect()).collect();
        let alone = members.iter().all(|group| group.len() == 1);
        if alone { cell } else { Cell::of((made, &members, cell)) }
    }

    /// Puts something into the snapshot, over what lay in those bytes.
    pub(crate) fn copy_out(&mut self, from: SlotId, to: usize, copied: (Content, Term)) {
        let end = to + self.plan.arena.region(from).bytes;
        self.snapshot.retain(|(first, last), _| *last <= to || end <= *first);
        self.snapshot.insert((to, end), copied);
    }

    /// The rows of a full gradient, and whether what lies after them is zero.
    pub(crate) fn gradient(&self, weight: WeightId, slot: SlotId) -> (Term, bool) {
        let read = self.read(slot);
        let shard = &self.plan.weights.layout(weight).shard;
        (read.value, read.zeroed || shard.padded_rows() == shard.shape.rows)
    }

    /// A part of a rule ran on this.
    pub(crate) fn ran(&mut self, on: impl Hash) {
        *self.parts.entry(term(on)).or_default() += 1;
    }

    pub(crate) fn call(&mut self, op: &Compute) {
        let mut read: Vec<_> = op
            .operands
            .iter()
            .map(|operand| {
                (operand.role, operand.access, operand.access.reads().then(|| self.read(operand.slot)))
            })
            .collect();
        read.sort_unstable_by_key(|(role, access, _)| (*role, *access));
        let ran = term(("call", op.call, self.read(op.fault), read));
        self.calls.push(ran);
        for operand in op.operands.iter().filter(|operand| operand.access.writes()) {
            let wanted = match operand.role {
                OperandRole::Gradient(weight) => {
                    let bf16 = self.plan.calls[op.call.index()].gradient(weight) == Some(ElementType::Bf16);
                    let content = if bf16 { Content::WireGradient } else { Content::Gradient };
                    Some(content(weight, op.call))
                }
                OperandRole::Buffer(buffer) => Some(Content::Buffer(buffer)),
                OperandRole::Use(_) | OperandRole::TensorScale(_) => None,
            };
            let zeroed = matches!(operand.role, OperandRole::Gradient(_)) && self.read(operand.slot).zeroed;
            self.put(operand.slot, wanted, Cell { zeroed, ..Cell::of((ran, operand.role)) });
        }
        self.put(op.fault, Content::FaultWord, Cell::of(("fault word", ran)));
    }

    /// Rewrites what Adam keeps of a weight and, where it casts, its codes and scales; returns what came of it.
    pub(crate) fn adam(&mut self, by: Term, state: &AdamOperand) -> Term {
        let AdamOperand { weight, master, exp_avg, exp_avg_sq, main_grad } = *state;
        let halves = match master {
            MasterOperand::Whole(master) | MasterOperand::Cast { master, .. } => {
                vec![(master, Content::Master(weight))]
            }
            MasterOperand::Split { shard, remainder } => vec![
                (shard, Content::Shard(weight, Orientation::Rowwise)),
                (remainder, Content::MasterRemainder(weight)),
            ],
        };
        halves.iter().for_each(|(slot, content)| self.expect(*slot, *content));
        self.expect_lists(weight, &[exp_avg, exp_avg_sq]);
        let state: Vec<SlotId> =
            halves.into_iter().map(|(slot, _)| slot).chain([exp_avg, exp_avg_sq]).collect();
        let made = self.rewrite(by, weight, &state, main_grad);
        if let MasterOperand::Cast { shard, .. } = master {
            let planes = self.plan.weights.layout(weight).shard_planes(Orientation::Rowwise);
            let scales = if planes.len() > 1 { term((made, "scales")) } else { self.read(shard).scales };
            let cell = Cell { value: term((made, "codes")), scales, ..self.read(shard) };
            self.put(shard, Content::Shard(weight, Orientation::Rowwise), cell);
        }
        made
    }

    /// Rewrites all state of a weight, and returns what else comes of it.
    pub(crate) fn rewrite(
        &mut self,
        by: Term,
        weight: WeightId,
        state: &[SlotId],
        main_grad: SlotId,
    ) -> Term {
        let made = (by, weight, self.all(state), self.read(main_grad));
        for (position, slot) in state.iter().enumerate() {
            self.write(*slot, Cell::of((&made, position)));
        }
        term(made)
    }
}
