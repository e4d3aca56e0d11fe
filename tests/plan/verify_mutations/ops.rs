//! The judge's knowledge of every op: the words that edits change, and the op's effect on terms.
//!
//! Law: two matches on an op, without a wildcard, and nothing else here. They are made of the vocabulary's
//! documentation alone and share nothing with the verifier. An op of a plan that a planner made writes only into slots
//! declared for what it writes, so each says for which content that is; the verifier knows contents by what they hold.

use warpweft_base::id::{SlotId, WeightId};
use warpweft_plan::layout::{Content, RoundStage};
use warpweft_plan::op::{
    AmaxesOperand, CountSlots, DequantizePart, MasterOperand, Op, PrepareOperand, SumTarget, UpdateOperand,
};

use super::meaning::{Cell, Memory, Term, term};
use super::operands::Words;

/// The words of an op.
pub(crate) fn words(op: &mut Op) -> Words<'_> {
    match op {
        Op::Copy(op) => Words::of([&mut op.from, &mut op.to]),
        Op::ClearFault(op) => Words::of([&mut op.fault]),
        Op::ZeroPadding(op) => Words::of([&mut op.gradient]).weights([&mut op.weight]),
        Op::Compute(op) => {
            let operands = op.operands.iter_mut().map(|operand| &mut operand.slot);
            Words::of([&mut op.fault].into_iter().chain(operands))
        }
        Op::CollectiveCall(op) => {
            let counts = op.counts.iter_mut().flat_map(|counts| [&mut counts.given, &mut counts.taken]);
            Words::of([&mut op.from, &mut op.to].into_iter().chain(counts))
        }
        Op::PartialAmax(op) => {
            let amaxes = [&mut op.block_amax, &mut op.tensor_amax];
            Words::of(op.masters.iter_mut().chain(amaxes).chain(&mut op.vote)).bucket(&mut op.bucket)
        }
        Op::AllReduce(op) => Words::of(op.pairs.iter_mut().flat_map(|(from, to)| [from, to])),
        Op::FusedScale(op) => {
            let slots = [&mut op.block_amax, &mut op.tensor_amax, &mut op.encode, &mut op.tensor_scale];
            let shards = op.shards.iter_mut().map(|shard| &mut shard.slot);
            Words::of(slots.into_iter().chain(shards).chain(&mut op.vote)).bucket(&mut op.bucket)
        }
        Op::DelayedScale(op) => {
            let scales = [&mut op.scale, &mut op.tensor_scale].into_iter();
            Words::of(scales.chain(&mut op.history).chain(&mut op.vote)).bucket(&mut op.bucket)
        }
        Op::RecordAmax(op) => {
            let amaxes = [&mut op.tensor_amax, &mut op.history].into_iter();
            Words::of(amaxes.chain(&mut op.vote)).bucket(&mut op.bucket)
        }
        Op::PartialCast(op) => {
            let shards = op.shards.iter_mut().map(|shard| &mut shard.slot);
            let slots = op.masters.iter_mut().chain(&mut op.encode).chain(shards).chain(&mut op.vote);
            Words::of(slots).bucket(&mut op.bucket)
        }
        Op::AllGather(op) => Words::of_parts(
            op.parts.iter_mut().map(|part| (&mut part.weight, [&mut part.from, &mut part.to])),
        ),
        Op::GatherChunk(op) => Words::of([&mut op.part.from, &mut op.part.to]).weights([&mut op.part.weight]),
        Op::Assemble(op) => Words::of_parts(
            op.parts.iter_mut().map(|part| (&mut part.weight, [&mut part.from, &mut part.to])),
        ),
        Op::Transpose(op) => Words::of_parts(
            op.parts.iter_mut().map(|part| (&mut part.weight, [&mut part.from, &mut part.to])),
        ),
        Op::Dequantize(op) => {
            let (mut slots, mut weights) = (Vec::new(), Vec::new());
            for part in &mut op.parts {
                slots.extend([&mut part.from, &mut part.to]);
                slots.extend(part.own.iter_mut().chain(&mut part.tensor_scale));
                weights.push(&mut part.weight);
            }
            Words::of(slots).weights(weights.into_iter().take(1))
        }
        Op::ReduceScatter(op) => Words::of_parts(
            op.parts.iter_mut().map(|part| (&mut part.weight, [&mut part.from, &mut part.to])),
        ),
        Op::ExchangeGradient(op) => Words::of_parts(
            op.parts.iter_mut().map(|part| (&mut part.weight, [&mut part.from, &mut part.to])),
        ),
        Op::SumGradient(op) => {
            let (mut slots, mut weights) = (Vec::new(), Vec::new());
            for part in &mut op.parts {
                slots.extend([&mut part.own, &mut part.into].into_iter().chain(&mut part.received));
                slots.extend(&mut part.squares);
                weights.push(&mut part.weight);
            }
            Words::of(slots).weights(weights.into_iter().take(1))
        }
        Op::RoundGradient(op) => Words::of([&mut op.from, &mut op.to]).weights([&mut op.weight]),
        Op::AddGradient(op) => Words::of([&mut op.from, &mut op.into]).weights([&mut op.weight]),
        Op::Accumulate(op) => {
            let slots = [&mut op.from, &mut op.into].into_iter().chain(&mut op.squares);
            Words::of(slots).weights([&mut op.weight])
        }
        Op::GradNorm(op) => {
            let read = op.main_grads.iter_mut().chain(&mut op.squares).map(|(_, slot)| slot);
            Words::of(read.chain([&mut op.fault, &mut op.record]))
        }
        Op::GatherRecords(op) => Words::of([&mut op.from, &mut op.to]),
        Op::Vote(op) => {
            Words::of([&mut op.records, &mut op.optimizer_step, &mut op.gradient_scale, &mut op.vote])
        }
        Op::Prepare(op) => {
            let (mut slots, mut weights) =
                (vec![&mut op.vote, &mut op.hyperparameters, &mut op.to], Vec::new());
            for state in &mut op.states {
                slots.extend([&mut state.main_grad].into_iter().chain(&mut state.kept));
                weights.push(&mut state.weight);
            }
            Words::of(slots).weights(weights).bucket(&mut op.bucket)
        }
        Op::ExchangeRows(op) => Words::of([&mut op.from, &mut op.to]).weights(&mut op.weights),
        Op::Transform(op) => {
            let slots = [&mut op.vote, &mut op.from, &mut op.to];
            Words::of(slots).weights(&mut op.weights).bucket(&mut op.bucket)
        }
        Op::Update(op) => {
            let (mut slots, mut weights) = (vec![&mut op.vote, &mut op.hyperparameters], Vec::new());
            slots.extend(&mut op.transformed);
            for state in &mut op.states {
                slots.extend([&mut state.master, &mut state.main_grad].into_iter().chain(&mut state.kept));
                weights.push(&mut state.weight);
            }
            Words::of(slots).weights(weights).bucket(&mut op.bucket)
        }
        Op::Adam(op) => {
            let mut slots = vec![&mut op.vote, &mut op.hyperparameters];
            slots.extend(&mut op.tensor_scale);
            slots.extend(op.amaxes.iter_mut().flat_map(|both| [&mut both.block_amax, &mut both.tensor_amax]));
            for state in &mut op.states {
                match &mut state.master {
                    MasterOperand::Whole(master) => slots.push(master),
                    MasterOperand::Cast { master, shard } => slots.extend([master, shard]),
                    MasterOperand::Split { shard, remainder } => slots.extend([shard, remainder]),
                }
                slots.extend([&mut state.exp_avg, &mut state.exp_avg_sq, &mut state.main_grad]);
            }
            Words::of(slots).bucket(&mut op.bucket)
        }
        Op::Snapshot(op) => Words::of([&mut op.from]).weights([&mut op.weight]),
    }
}

impl Memory<'_> {
    /// Lets an op read and write.
    pub(crate) fn run(&mut self, op: &Op) {
        let name = op.name();
        match op {
            Op::Copy(op) => {
                let wanted = match (self.content(op.from), self.content(op.to)) {
                    (Content::Staging(buffer, _), _) => Some(Content::Buffer(buffer)),
                    (Content::Buffer(buffer), Content::Staging(of, micro_batch)) if of == buffer => {
                        Some(Content::Staging(buffer, micro_batch))
                    }
                    _ => None,
                };
                self.put(op.to, wanted, self.read(op.from));
            }
            Op::ClearFault(op) => self.put(op.fault, Content::FaultWord, Cell::of(name)),
            Op::ZeroPadding(op) => {
                let (rows, content) = (self.read(op.gradient), self.content(op.gradient));
                let is_gradient = matches!(content, Content::Gradient(of, _) | Content::WireGradient(of, _) if of == op.weight);
                let value = if is_gradient { rows.value } else { term((name, op.weight, rows)) };
                let cell = Cell { value, zeroed: true, ..rows };
                self.put(op.gradient, is_gradient.then_some(content), cell);
            }
            Op::Compute(op) => self.call(op),
            // What a peer gives came to be as what this rank gives; which of it a rank gets is said by the kind and
            // by who meets. The call is a name: nothing that is moved depends on it.
            Op::CollectiveCall(op) => {
                let exchange = self.plan.calls[op.call.index()].collective;
                let wanted = exchange.map(|exchange| Content::Buffer(exchange.to));
                let Some(CountSlots { given, taken, declared }) = op.counts else {
                    self.put(op.to, wanted, self.among(op.group, (name, op.kind), self.read(op.from)));
                    return;
                };
                // Rows are moved by the counts of both sides, which a dispatch makes known to the other, out of slots
                // of the capacity.
                let counts = self.among(op.group, (name, "counts"), self.read(given));
                let both = (self.read(given), if declared.known { self.read(taken) } else { counts });
                let rows = Cell::of((self.read(op.from), declared.capacity, both));
                self.put(op.to, wanted, self.among(op.group, (name, op.kind), rows));
                if !declared.known {
                    let wanted = exchange.and_then(|exchange| exchange.counts);
                    self.put(taken, wanted.map(|counts| Content::Buffer(counts.taken)), counts);
                }
            }
            Op::PartialAmax(op) => {
                let made = (name, op.bucket, self.all(&op.masters), self.maybe(op.vote));
                self.put(op.block_amax, Content::BlockAmax(op.bucket), Cell::of((&made, "blocks")));
                self.put(op.tensor_amax, Content::LocalAmax(op.bucket), Cell::of((&made, "tensors")));
            }
            Op::AllReduce(op) => {
                let read: Vec<Cell> = op.pairs.iter().map(|(from, _)| self.read(*from)).collect();
                for ((from, to), cell) in op.pairs.iter().zip(read) {
                    let wanted = match self.content(*from) {
                        Content::LocalAmax(bucket) => Some(Content::ReducedAmax(bucket)),
                        Content::LocalGrad(weight) => self.summed_of_world(weight, 0, op.group),
                        Content::BlockGrad(weight, below) => {
                            self.summed_of_world(weight, below.index() + 1, op.group)
                        }
                        Content::ReducedGradient(weight, call) => Some(Content::SummedGradient(weight, call)),
                        _ => None,
                    };
                    self.put(*to, wanted, self.among(op.group, (name, op.reduction), cell));
                }
            }
            Op::FusedScale(op) => {
                let tensors = self.plan.weights.bucket(op.bucket).format.needs_tensor_amax();
                let tensors = tensors.then(|| self.read(op.tensor_amax));
                let made = (name, op.bucket, self.read(op.block_amax), tensors, self.maybe(op.vote));
                self.put(op.encode, Content::Encode(op.bucket), Cell::of((&made, "encode")));
                self.put(op.tensor_scale, Content::TensorScale(op.bucket), Cell::of((&made, "tensors")));
                for shard in &op.shards {
                    self.expect(shard.slot, Content::Shard(shard.weight, shard.orientation));
                    let planes = self.plan.weights.layout(shard.weight).shard_planes(shard.orientation);
                    if planes.len() > 1 {
                        let scales = term((&made, shard.weight, shard.orientation));
                        self.write(shard.slot, Cell { scales, ..self.read(shard.slot) });
                    }
                }
            }
            Op::DelayedScale(op) => {
                let read = (self.read(op.scale), self.maybe(op.history), self.maybe(op.vote));
                let taken = Cell::of((name, op.bucket, read.0, read.1, read.2));
                if op.history.is_some() {
                    self.put(op.scale, Content::DelayedScale(op.bucket), taken);
                }
                self.put(op.tensor_scale, Content::TensorScale(op.bucket), Cell::of((taken, "tensors")));
            }
            Op::RecordAmax(op) => {
                let read = (self.read(op.tensor_amax), self.read(op.history), self.maybe(op.vote));
                self.put(op.history, Content::AmaxHistory(op.bucket), Cell::of((name, op.bucket, read)));
            }
            Op::PartialCast(op) => {
                let read = (self.all(&op.masters), self.maybe(op.encode), self.maybe(op.vote));
                for shard in &op.shards {
                    let value = term((name, op.bucket, &read, shard.weight, shard.orientation));
                    let cell = Cell { value, ..self.read(shard.slot) };
                    self.put(shard.slot, Content::Shard(shard.weight, shard.orientation), cell);
                }
            }
            Op::AllGather(op) => {
                let read: Vec<Cell> = op.parts.iter().map(|part| self.read(part.from)).collect();
                for (part, cell) in op.parts.iter().zip(read) {
                    let who = self.plan.weights.mesh.strides(op.group);
                    let made = Cell::of((name, who, part.weight, part.orientation, cell));
                    self.put(part.to, self.gathered(*part), made);
                }
            }
            // The order is part of the op's meaning: each chunk goes after those before it.
            Op::GatherChunk(op) => {
                let (part, before) = (op.part, (op.chunk.begin > 0).then(|| self.read(op.part.to)));
                let who = self.plan.weights.mesh.strides(op.group);
                let made = (name, who, part.weight, part.orientation, self.read(part.from), op.chunk, before);
                self.put(part.to, Content::Gathered(part.weight, part.orientation), Cell::of(made));
            }
            // It works on what the gather left, so planes that are made whole twice are others.
            Op::Assemble(op) => {
                for part in &op.parts {
                    let read = (self.read(part.from), self.read(part.to));
                    let made = Cell::of((name, part.weight, part.orientation, read));
                    self.put(part.to, self.gathered(*part), made);
                }
            }
            // Parts are done at the same time, so all of them read before any writes.
            Op::Transpose(op) => {
                let read: Vec<_> = op.parts.iter().map(|part| self.read(part.from)).collect();
                for (part, planes) in op.parts.iter().zip(read) {
                    let made = Cell::of((name, part.weight, planes));
                    self.put(part.to, Content::Transposed(part.weight), made);
                }
            }
            Op::Dequantize(op) => {
                let read = |part: &DequantizePart| {
                    let scaled = self.plan.weights.layout(part.weight).format.needs_tensor_amax();
                    let planes = (self.read(part.from), self.maybe(part.own));
                    (planes, self.maybe(part.tensor_scale.filter(|_| scaled)))
                };
                let read: Vec<_> = op.parts.iter().map(read).collect();
                for (part, read) in op.parts.iter().zip(read) {
                    let made = Cell::of((name, part.weight, part.orientation, part.values, read));
                    self.put(part.to, Content::Dense(part.weight, part.orientation, part.values), made);
                }
            }
            Op::ReduceScatter(op) => {
                let read: Vec<_> =
                    op.parts.iter().map(|part| self.gradient(part.weight, part.from)).collect();
                for (part, rows) in op.parts.iter().zip(read) {
                    let call = self.call_of(part.from);
                    let wanted = call.map(|call| Content::ReducedGradient(part.weight, call));
                    let who = self.plan.weights.mesh.strides(op.group);
                    self.put(part.to, wanted, Cell::of((name, op.wire, who, part.weight, rows)));
                }
            }
            // All ranks do the same, so what peers give is what this rank gives; how far apart they are says who.
            Op::ExchangeGradient(op) => {
                let read: Vec<_> =
                    op.parts.iter().map(|part| self.gradient(part.weight, part.from)).collect();
                for (part, rows) in op.parts.iter().zip(read) {
                    let who = self.summing(part.weight, op.group);
                    let level = self.level(part.weight, op.group);
                    let received = |call| match level {
                        Some((level, _)) if level.index() > 0 => {
                            Content::ReceivedPartial(part.weight, call, level, op.wire)
                        }
                        _ => Content::ReceivedGradient(part.weight, call, op.wire),
                    };
                    let wanted = self.call_of(part.from).map(received);
                    self.put(part.to, wanted, Cell::of((name, op.wire, who, part.weight, rows)));
                }
            }
            // Slices of several gradients are a sum of other contributions; the terms of both are in it.
            Op::SumGradient(op) => {
                for part in &op.parts {
                    let own = self.gradient(part.weight, part.own);
                    let summed = (own, self.maybe(part.received));
                    let who = self.summing(part.weight, op.group);
                    let sum = Cell::of((name, op.wire, who, part.weight, summed));
                    // What leaves a rank more than its own rows is not summed over all of them.
                    let shard = self.plan.weights.layout(part.weight).shard;
                    let over_all = shard.slices > 1 && self.plan.weights.mesh.size(shard.copies()) == 1;
                    let level = self.level(part.weight, op.group);
                    let rows = |call| match level {
                        Some((level, false)) => {
                            Content::PartialGradient(part.weight, call, level, part.target.wire())
                        }
                        _ if over_all => Content::SummedGradient(part.weight, call),
                        _ => Content::ReducedGradient(part.weight, call),
                    };
                    let main_grad = Some(Content::MainGrad(part.weight));
                    let (wanted, made) = match part.target {
                        SumTarget::Rows => (self.call_of(part.own).map(rows), sum),
                        SumTarget::Rounded => (self.call_of(part.own).map(rows), Cell::of(("rounded", sum))),
                        SumTarget::Quantized => {
                            (self.call_of(part.own).map(rows), Cell::of(("quantized", sum)))
                        }
                        SumTarget::First => (main_grad, Cell::of(("mean", sum))),
                        SumTarget::More => (main_grad, Cell::of(("mean", sum, self.read(part.into)))),
                    };
                    self.put(part.into, wanted, made);
                    if let Some(slot) = part.squares {
                        self.put(slot, Content::Squares(part.weight), squares(made));
                    }
                }
            }
            Op::RoundGradient(op) => {
                let (rows, zeroed) = self.gradient(op.weight, op.from);
                let wanted = self.call_of(op.from).map(|call| Content::travelling(op.weight, call, op.wire));
                let made = Cell::of((name, op.weight, (op.element, op.wire), rows));
                self.put(op.to, wanted, Cell { zeroed, ..made });
            }
            Op::AddGradient(op) => {
                let (added, sum) = (self.read(op.from), self.read(op.into));
                let value = term((name, op.weight, sum.value, added.value));
                let wanted = self.call_of(op.into).map(|call| Content::Gradient(op.weight, call));
                self.put(op.into, wanted, Cell { value, scales: 0, zeroed: sum.zeroed && added.zeroed });
            }
            Op::Accumulate(op) => {
                let sum = (!op.first).then(|| self.read(op.into));
                let wanted = match self.content(op.from) {
                    Content::ReducedGradient(..) | Content::SummedGradient(..) => {
                        Some(Content::MainGrad(op.weight))
                    }
                    Content::Gradient(..) => Some(Content::LocalGrad(op.weight)),
                    _ => None,
                };
                let made = Cell::of((name, op.weight, self.read(op.from).value, sum));
                self.put(op.into, wanted, made);
                if let Some(slot) = op.squares {
                    self.put(slot, Content::Squares(op.weight), squares(made));
                }
            }
            Op::GradNorm(op) => {
                let squared = op.main_grads.iter().map(|(weight, slot)| (weight, squares(self.read(*slot))));
                let taken = op.squares.iter().map(|(weight, slot)| (weight, self.read(*slot)));
                // Weights are added as they are numbered, whoever took their squares.
                let mut read: Vec<_> = squared.chain(taken).collect();
                read.sort_by_key(|(weight, _)| **weight);
                self.put(op.record, Content::NormRecord, Cell::of((name, read, self.read(op.fault))));
            }
            Op::GatherRecords(op) => {
                self.put(op.to, Content::NormRecords, Cell::of((name, self.read(op.from))));
            }
            Op::Vote(op) => {
                let read =
                    (self.read(op.records), self.read(op.optimizer_step), self.read(op.gradient_scale));
                self.put(op.optimizer_step, Content::OptimizerStep, Cell::of((name, read, "count")));
                self.put(op.vote, Content::Vote, Cell::of((name, read, "vote")));
            }
            Op::Adam(op) => {
                // One parameter group for all of them: that of the first.
                let group = op.states.first().map(|state| self.plan.weights.layout(state.weight).parameters);
                let read = (self.read(op.vote), self.read(op.hyperparameters));
                let by = term((name, op.bucket, group, read));
                let updated: Vec<Term> = op.states.iter().map(|state| self.adam(by, state)).collect();
                if let Some(slot) = op.tensor_scale {
                    self.put(slot, Content::TensorScale(op.bucket), Cell::of((by, &updated, "scales")));
                }
                if let Some(AmaxesOperand { block_amax, tensor_amax }) = op.amaxes {
                    let made = (name, by, updated);
                    self.put(block_amax, Content::BlockAmax(op.bucket), Cell::of((&made, "blocks")));
                    self.put(tensor_amax, Content::LocalAmax(op.bucket), Cell::of((&made, "tensors")));
                }
            }
            // The rows of the n-th weight are the n-th part of what is prepared, whatever weight that is.
            Op::Prepare(op) => {
                let by = term((name, op.bucket, self.read(op.vote), self.read(op.hyperparameters)));
                let prepare = |PrepareOperand { weight, kept, main_grad }: &PrepareOperand| {
                    self.expect_lists(*weight, kept);
                    self.rewrite(by, *weight, kept, *main_grad)
                };
                let rows: Vec<Term> = op.states.iter().map(prepare).collect();
                self.ran((name, by, &rows));
                let first = op.states.first().map(|state| state.weight);
                let wanted = first.map(|first| Content::Round(first, RoundStage::Prepared));
                self.put(op.to, wanted, Cell::of((name, rows)));
            }
            // The n-th rank gives and gets other bytes than its peers, which came to be as its own did: from the parts
            // of all places. Each way is one exchange more, so rows that did not go both ways are others.
            Op::ExchangeRows(op) => {
                let stage = match self.content(op.from) {
                    Content::Round(_, RoundStage::Prepared) => Some(RoundStage::Gathered),
                    Content::Round(_, RoundStage::Transformed) => Some(RoundStage::Returned),
                    _ => None,
                };
                let cell = self.among(op.group, (name, &op.weights), self.read(op.from));
                self.put(op.to, round(&op.weights, stage), cell);
            }
            // The n-th rank takes what it has for the matrix of the n-th weight. What it made whole goes back by an
            // exchange, what it had whole is there.
            Op::Transform(op) => {
                let stage = match self.content(op.from) {
                    Content::Round(_, RoundStage::Gathered) => Some(RoundStage::Transformed),
                    Content::Round(_, RoundStage::Prepared) => Some(RoundStage::Returned),
                    _ => None,
                };
                let made = (name, op.bucket, &op.weights, self.read(op.vote), self.read(op.from));
                self.ran(made);
                self.put(op.to, round(&op.weights, stage), Cell::of(made));
            }
            Op::Update(op) => {
                let group = op.states.first().map(|state| self.plan.weights.layout(state.weight).parameters);
                let by = (name, op.bucket, group, self.read(op.vote), self.read(op.hyperparameters));
                let update = |(place, state): (usize, &UpdateOperand)| {
                    let UpdateOperand { weight, master, kept, main_grad } = state;
                    self.expect(*master, Content::Master(*weight));
                    self.expect_lists(*weight, kept);
                    // The rows of the n-th weight are the n-th part of what came back.
                    let rows = op.transformed.map(|slot| (place, self.read(slot)));
                    let state: Vec<SlotId> = [master].into_iter().chain(kept).copied().collect();
                    self.rewrite(term((&by, rows)), *weight, &state, *main_grad)
                };
                let updated: Vec<Term> = op.states.iter().enumerate().map(update).collect();
                self.ran((by, updated));
            }
            // A save looks after the step where the copies say that they lie.
            Op::Snapshot(op) => {
                let copied = term((op.weight, self.read(op.from)));
                self.copy_out(op.from, op.to, (self.content(op.from), copied));
            }
        }
    }
}

/// Squares say of a main grad what it is, and whoever takes them adds them in one order.
fn squares(main_grad: Cell) -> Cell {
    Cell::of(("squares", main_grad.value))
}

/// A round goes by its first weight.
fn round(weights: &[WeightId], stage: Option<RoundStage>) -> Option<Content> {
    weights.first().zip(stage).map(|(first, stage)| Content::Round(*first, stage))
}
