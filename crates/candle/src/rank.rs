//! The closure of a rank: the calls of its blocks, computed by candle.
//!
//! Law: a call puts what it is lent into tensors, runs the user's closure, and copies out. Weights are in memory
//! while their block runs, forward or backward, and not in between; they leave whatever becomes of the call. A block
//! that keeps its graph keeps it from its forward to its backward, of one step and micro-batch; any other is
//! computed again from its input. Samples that a short batch does not have are not computed.

mod loss;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor};
use warpweft::compute::ComputeError;
use warpweft::format::Orientation;
use warpweft::id::{BufferId, RankId, WeightId};
use warpweft_blocks::{At, Backward, Loss as LossPass, Part, Passes};

use crate::Error;
use crate::blocks::guarded;
use crate::bridge::{Bridge, Lent};
use crate::cut;
use crate::dropout::{self, Place};
use crate::error::{elsewhere, form};
use crate::shared::{Built, Shared};
use crate::values::Form;

/// One rank's blocks.
pub(crate) struct Rank<B> {
    shared: Arc<Shared>,
    rank: RankId,
    blocks: Vec<Built>,
    /// What forward left for backward, by block and micro-batch.
    kept: HashMap<(usize, usize), Ran>,
    /// Of every micro-batch of the step, read once: a GPU's host waits for it.
    parts: HashMap<usize, Part>,
    bridge: B,
}

/// A block that ran.
struct Ran {
    input: Tensor,
    output: Tensor,
}

pub(crate) use loss::scalar;

type Done<T> = std::result::Result<T, Error>;

impl<B: Bridge> Rank<B> {
    /// Builds the blocks that are built once.
    pub(crate) fn new(shared: Arc<Shared>, rank: RankId, mut bridge: B) -> Done<Self> {
        let numbers = 0..shared.blocks.len();
        let blocks = numbers.map(|number| Built::new(&shared, number, &mut bridge)).collect::<Done<_>>()?;
        Ok(Self { shared, rank, blocks, kept: HashMap::new(), parts: HashMap::new(), bridge })
    }

    /// A call's work, ordered with the session's also after it failed: the session goes on to use the memory.
    fn ordered(
        &mut self,
        at: &At<'_, B::Surface>,
        work: impl FnOnce(&mut Self) -> Result<(), ComputeError>,
    ) -> Result<(), ComputeError> {
        let name = |rank: &Self| rank.shared.blocks[at.block].name.clone();
        self.bridge.enter(at.context.handles()).map_err(|source| failed(&name(self), source))?;
        let done = catch_unwind(AssertUnwindSafe(|| work(self)));
        let left = self.bridge.leave(at.context.handles()).map_err(|source| failed(&name(self), source));
        done.unwrap_or_else(|panic| resume_unwind(panic)).and(left)
    }

    /// Work with a block's weights in place. They are taken out also after a failure, and after a panic.
    fn filled<R>(
        &mut self,
        at: &At<'_, B::Surface>,
        part: Part,
        work: impl FnOnce(&mut Self) -> Result<R, ComputeError>,
    ) -> Result<R, ComputeError> {
        let done = catch_unwind(AssertUnwindSafe(|| {
            self.fill(at, part)?;
            work(self)
        }));
        let emptied = self.empty(at.block);
        let done = done.unwrap_or_else(|panic| resume_unwind(panic))?;
        emptied.map(|()| done)
    }

    /// Puts the weights of a block in place.
    fn fill(&mut self, at: &At<'_, B::Surface>, part: Part) -> Result<(), ComputeError> {
        let (shared, block) = (&self.shared, &self.blocks[at.block]);
        let place = Place {
            trains: at.context.program() == crate::TRAIN,
            seed: shared.seed,
            step: part.step,
            rank: self.rank.index() as u32,
            micro_batch: at.context.micro_batch().index() as u32,
        };
        let mut weights = at.weights.iter();
        for (number, slot) in shared.requested[at.block].tensors.iter().zip(&block.slots) {
            let entry = &shared.entries[*number];
            let filled = match entry.is_buffer() {
                true if dropout::is_state(&entry.name) => slot.fill_words(&place.words()),
                true => Ok(()),
                false => {
                    let Some(weight) = weights.next() else { continue };
                    let lent = match shared.in_bf16[at.block] && entry.shape.len() > 1 {
                        true => Lent::Bf16(at.context.dense_bf16(*weight, Orientation::Rowwise)?),
                        false => Lent::F32(at.context.dense(*weight, Orientation::Rowwise)?),
                    };
                    self.bridge.put(slot, lent)
                }
            };
            filled.map_err(|source| failed(&shared.blocks[at.block].name, source))?;
        }
        Ok(())
    }

    /// Takes them out again, each whatever becomes of the others.
    fn empty(&mut self, block: usize) -> Result<(), ComputeError> {
        let mut done = Ok(());
        for (number, slot) in self.shared.requested[block].tensors.iter().zip(&self.blocks[block].slots) {
            if !self.shared.entries[*number].is_buffer()
                && let Err(source) = self.bridge.take(slot)
            {
                // Nobody may free what is in it.
                std::mem::forget(slot.tensor().clone());
                done = Err(failed(&self.shared.blocks[block].name, source));
            }
        }
        done
    }

    /// Runs a block whose weights are in place on the input that the call is lent.
    fn run(
        &self,
        at: &At<'_, B::Surface>,
        input: BufferId,
        (rows, tracks): (usize, bool),
    ) -> Result<Ran, ComputeError> {
        let (shared, block) = (&self.shared, &self.shared.blocks[at.block]);
        let shape = shared.shape(at.context.program())?;
        let device = self.bridge.device();
        let expected = |number: usize| shape.part(&shape.forms[number], rows, &block.name);
        let (form_in, form_out) = (expected(at.block)?, expected(at.block + 1)?);
        let variable = tracks && at.block > 0 && form_in.dtype.is_float();
        let input = self.bridge.tensor(&at.context.read_bytes(input)?, &form_in, variable);
        let input = input.map_err(|source| failed(&block.name, source))?;
        let applied = match &self.blocks[at.block].apply {
            Some(apply) => guarded(&block.name, || apply(&input)),
            None => self.blocks[at.block]
                .build(shared, at.block, device)
                .and_then(|apply| guarded(&block.name, || apply(&input))),
        };
        let output = applied.map_err(ComputeError::closure)?;
        if !output.device().same_device(device) {
            return Err(ComputeError::closure(elsewhere(&block.name, &output, device)));
        }
        if Form::of(&output) != form_out {
            return Err(ComputeError::closure(Error::Output {
                block: block.name.clone(),
                given: form(output.dims(), output.dtype()),
                expected: format!(
                    "gave {} when it ran on the sample; a block's output follows from the shape of its input alone",
                    form(&form_out.dims, form_out.dtype)
                ),
            }));
        }
        Ok(Ran { input, output })
    }

    /// Writes the gradients of a block's weights and of its input; of a part without samples, zeros.
    fn write(
        &self,
        at: &At<'_, B::Surface>,
        gradients: Option<(&GradStore, &Tensor)>,
        input_gradient: Option<BufferId>,
    ) -> Result<(), ComputeError> {
        let shared = &self.shared;
        let name = &shared.blocks[at.block].name;
        let weights = shared.requested[at.block].tensors.iter().zip(&self.blocks[at.block].slots);
        let weights = weights.filter(|(number, _)| !shared.entries[**number].is_buffer());
        for ((number, slot), weight) in weights.zip(at.weights) {
            let entry = &shared.entries[*number];
            if entry.trains() {
                let gradient = gradients.and_then(|(all, _)| all.get(slot.tensor()));
                let may_be_left = gradients.is_none() || shared.may_be_unused(&entry.name);
                self.write_gradient(at, *weight, gradient, || match may_be_left {
                    true => Ok(()),
                    false => Err(ComputeError::closure(cut::of_weight(name, entry))),
                })?;
            }
        }
        let Some(buffer) = input_gradient else { return Ok(()) };
        let mut lent = at.context.write_bytes(buffer)?;
        match gradients.map(|(all, input)| (all.get(input), input)) {
            Some((Some(gradient), input)) => {
                let gradient = gradient.to_dtype(input.dtype());
                let stored = gradient.and_then(|gradient| self.bridge.store(Some(&gradient), &mut lent));
                stored.map_err(|source| failed(name, source))
            }
            Some((None, input)) if !shared.may_be_unused(name) => {
                Err(ComputeError::closure(cut::of_input(name, input)))
            }
            Some(_) | None => self.bridge.store(None, &mut lent).map_err(|source| failed(name, source)),
        }
    }

    /// Writes the gradient of a weight; where there is none, zeros unless `missing` refuses.
    fn write_gradient(
        &self,
        at: &At<'_, B::Surface>,
        weight: WeightId,
        gradient: Option<&Tensor>,
        missing: impl FnOnce() -> Result<(), ComputeError>,
    ) -> Result<(), ComputeError> {
        let mut lent = at.context.gradient(weight)?;
        let stored = match gradient {
            Some(gradient) => gradient
                .to_dtype(DType::F32)
                .and_then(|gradient| self.bridge.store(Some(&gradient), &mut lent)),
            None => {
                missing()?;
                self.bridge.store(None, &mut lent)
            }
        };
        stored.map_err(|source| failed(&self.shared.blocks[at.block].name, source))
    }

    /// The part of a batch that a call computes: the one that the first block's call read, for the other calls of
    /// its micro-batch.
    fn part(&mut self, at: &At<'_, B::Surface>, is_first: bool) -> Result<Part, ComputeError> {
        let missing = || ComputeError::closure("a call of a block that reads no part of a batch");
        let micro_batch = at.context.micro_batch().index();
        if let Some(part) = self.parts.get(&micro_batch).filter(|_| !is_first) {
            return Ok(*part);
        }
        let lent = at.context.read::<u32>(*at.every.first().ok_or_else(missing)?)?;
        let words = self.bridge.read(&lent).map_err(|source| failed("part", source))?;
        let part = Part::of(&words).ok_or_else(missing)?;
        self.parts.insert(micro_batch, part);
        Ok(part)
    }
}

impl<B: Bridge> Passes<B::Surface> for Rank<B> {
    fn forward(
        &mut self,
        at: &At<'_, B::Surface>,
        input: BufferId,
        output: BufferId,
    ) -> Result<(), ComputeError> {
        self.ordered(at, |rank| rank.run_forward(at, input, output))
    }

    fn loss(&mut self, at: &At<'_, B::Surface>, pass: &LossPass) -> Result<(), ComputeError> {
        self.ordered(at, |rank| rank.run_loss(at, pass))
    }

    fn backward(&mut self, at: &At<'_, B::Surface>, pass: &Backward) -> Result<(), ComputeError> {
        self.ordered(at, |rank| rank.run_backward(at, pass))
    }
}

impl<B: Bridge> Rank<B> {
    fn run_forward(
        &mut self,
        at: &At<'_, B::Surface>,
        input: BufferId,
        output: BufferId,
    ) -> Result<(), ComputeError> {
        let part = self.part(at, at.block == 0)?;
        if at.block == 0 && at.context.micro_batch().index() == 0 {
            self.kept.clear(); // of a step that failed
        }
        let shared = Arc::clone(&self.shared);
        let of_candle = |source| failed(&shared.blocks[at.block].name, source);
        if part.samples == 0 {
            return self.bridge.store(None, &mut at.context.write_bytes(output)?).map_err(of_candle);
        }
        let keeps = at.trains && !shared.found[at.block].recomputes;
        let ran = self.filled(at, part, |rank| {
            let ran = rank.run(at, input, (part.samples, keeps))?;
            // Before the weights leave: an output may be a view of one.
            let mut lent = at.context.write_bytes(output)?;
            rank.bridge.store(Some(&ran.output), &mut lent).map_err(of_candle)?;
            Ok(ran)
        })?;
        if keeps {
            self.kept.insert((at.block, at.context.micro_batch().index()), ran);
        }
        Ok(())
    }

    fn run_loss(&mut self, at: &At<'_, B::Surface>, pass: &LossPass) -> Result<(), ComputeError> {
        let part = self.part(at, at.block == 0)?;
        if part.samples == 0 {
            self.write_loss(at, pass, [0.0, 0.0])?;
            return if at.trains { self.write(at, None, pass.input_gradient) } else { Ok(()) };
        }
        self.filled(at, part, |rank| {
            let ran = rank.run(at, pass.input, (part.samples, at.trains))?;
            let (value, sum, weight) = rank.loss_of(at, &ran.output, pass.targets, part)?;
            rank.write_loss(at, pass, [sum, weight])?;
            if !at.trains {
                return Ok(());
            }
            let loss_scale =
                rank.bridge.read(&at.context.loss_scale()?).map_err(|source| failed("loss", source))?;
            let scale = f64::from(part.scale) * f64::from(loss_scale[0]);
            let scaled = if scale == 1.0 { Ok(value) } else { value * scale };
            let gradients = guarded("loss", || scaled?.backward()).map_err(ComputeError::closure)?;
            rank.write(at, Some((&gradients, &ran.input)), pass.input_gradient)
        })
    }

    fn run_backward(&mut self, at: &At<'_, B::Surface>, pass: &Backward) -> Result<(), ComputeError> {
        let part = self.part(at, false)?;
        if part.samples == 0 {
            return self.write(at, None, pass.input_gradient);
        }
        let kept = self.kept.remove(&(at.block, at.context.micro_batch().index()));
        self.filled(at, part, |rank| {
            let name = &rank.shared.blocks[at.block].name;
            let ran = match (kept, pass.input) {
                (Some(kept), _) => kept,
                (None, Some(input)) => rank.run(at, input, (part.samples, true))?,
                (None, None) => {
                    return Err(ComputeError::closure(format!("block `{name}` kept no graph")));
                }
            };
            let lent = at.context.read_bytes(pass.output_gradient)?;
            let of_output = rank.bridge.tensor(&lent, &Form::of(&ran.output), false);
            let gradients = guarded(name, || (&ran.output * of_output?)?.sum_all()?.backward());
            let gradients = gradients.map_err(ComputeError::closure)?;
            rank.write(at, Some((&gradients, &ran.input)), pass.input_gradient)
        })
    }
}

fn failed(block: &str, source: candle_core::Error) -> ComputeError {
    ComputeError::closure(Error::Block { block: block.to_owned(), source })
}
