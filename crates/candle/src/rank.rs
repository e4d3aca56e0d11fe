//! The closure of a rank: the calls of its blocks, computed by candle.
//!
//! Law: a call copies what it is lent into tensors, runs the user's closure, and copies out. Weights are in memory
//! while their block runs, forward or backward, and not in between. A block that keeps its graph keeps it from its
//! forward to its backward, of one step and micro-batch; any other is computed again from its input. Samples that a
//! short batch does not have are not computed.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor};
use warpweft::compute::ComputeError;
use warpweft::format::Orientation;
use warpweft::id::{BufferId, RankId, WeightId};
use warpweft::prelude::CpuSurface;
use warpweft_blocks::{At, Backward, Loss as LossPass, Passes};

use crate::Error;
use crate::batch::Part;
use crate::blocks::{Loss, guarded};
use crate::cut;
use crate::dropout::{self, Place};
use crate::error::form;
use crate::shared::{Built, Shared};
use crate::slot::Pool;
use crate::values::{self, Form, store};

/// One rank's blocks.
pub(crate) struct Rank {
    shared: Arc<Shared>,
    rank: RankId,
    blocks: Vec<Built>,
    /// What forward left for backward, by block and micro-batch.
    kept: HashMap<(usize, usize), Ran>,
    pool: Pool,
}

/// A block that ran.
struct Ran {
    input: Tensor,
    output: Tensor,
}

type Done<T> = std::result::Result<T, Error>;

impl Rank {
    /// Builds the blocks that are built once.
    pub(crate) fn new(shared: Arc<Shared>, rank: RankId) -> Done<Self> {
        let numbers = 0..shared.blocks.len();
        let blocks = numbers.map(|number| Built::new(&shared, number)).collect::<Done<_>>()?;
        Ok(Self { shared, rank, blocks, kept: HashMap::new(), pool: Pool::default() })
    }

    /// Puts the weights of a block in place.
    fn fill(&mut self, at: &At<'_, CpuSurface>, part: Part) -> Result<(), ComputeError> {
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
                    slot.fill(&at.context.dense(*weight, Orientation::Rowwise)?, &mut self.pool)
                }
            };
            filled.map_err(|source| failed(&shared.blocks[at.block].name, source))?;
        }
        Ok(())
    }

    /// Takes them out again.
    fn empty(&mut self, block: usize) -> Result<(), ComputeError> {
        let name = &self.shared.blocks[block].name;
        for (number, slot) in self.shared.requested[block].tensors.iter().zip(&self.blocks[block].slots) {
            if !self.shared.entries[*number].is_buffer() {
                slot.empty(&mut self.pool).map_err(|source| failed(name, source))?;
            }
        }
        Ok(())
    }

    /// Runs a block whose weights are in place on the input that the call is lent.
    fn run(
        &self,
        at: &At<'_, CpuSurface>,
        input: BufferId,
        (rows, tracks): (usize, bool),
    ) -> Result<Ran, ComputeError> {
        let (shared, block) = (&self.shared, &self.shared.blocks[at.block]);
        let shape = shared.shape(at.context)?;
        let expected = |number: usize| shape.part(&shape.forms[number], rows, &block.name);
        let (form_in, form_out) = (expected(at.block)?, expected(at.block + 1)?);
        let variable = tracks && at.block > 0 && form_in.dtype.is_float();
        let input = values::tensor(&at.context.read_bytes(input)?, &form_in, variable);
        let input = input.map_err(|source| failed(&block.name, source))?;
        let applied = match &self.blocks[at.block].apply {
            Some(apply) => guarded(&block.name, || apply(&input)),
            None => self.blocks[at.block]
                .build(shared, at.block)
                .and_then(|apply| guarded(&block.name, || apply(&input))),
        };
        let output = applied.map_err(ComputeError::closure)?;
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
        at: &At<'_, CpuSurface>,
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
                write_gradient(at, *weight, gradient, name, || match may_be_left {
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
                let stored = gradient.and_then(|gradient| store(&gradient, &mut lent));
                stored.map_err(|source| failed(name, source))
            }
            Some((None, input)) if !shared.may_be_unused(name) => {
                Err(ComputeError::closure(cut::of_input(name, input)))
            }
            Some(_) | None => {
                lent.fill(0);
                Ok(())
            }
        }
    }

    fn part(&self, at: &At<'_, CpuSurface>) -> Result<Part, ComputeError> {
        let missing = || ComputeError::closure("a call of a block that reads no part of a batch");
        let words = at.context.read::<u32>(*at.every.first().ok_or_else(missing)?)?;
        Part::of(&words).ok_or_else(missing)
    }
}

impl Passes<CpuSurface> for Rank {
    fn forward(
        &mut self,
        at: &At<'_, CpuSurface>,
        input: BufferId,
        output: BufferId,
    ) -> Result<(), ComputeError> {
        let part = self.part(at)?;
        if at.block == 0 && at.context.micro_batch().index() == 0 {
            self.kept.clear(); // of a step that failed
        }
        if part.samples == 0 {
            at.context.write_bytes(output)?.fill(0);
            return Ok(());
        }
        self.fill(at, part)?;
        let keeps = at.trains && !self.shared.found[at.block].recomputes;
        let ran = self.run(at, input, (part.samples, keeps)).and_then(|ran| {
            // Before the weights leave: an output may be a view of one.
            let stored = store(&ran.output, &mut at.context.write_bytes(output)?);
            stored.map_err(|source| failed(&self.shared.blocks[at.block].name, source))?;
            Ok(ran)
        });
        self.empty(at.block)?;
        let ran = ran?;
        if keeps {
            self.kept.insert((at.block, at.context.micro_batch().index()), ran);
        }
        Ok(())
    }

    fn loss(&mut self, at: &At<'_, CpuSurface>, pass: &LossPass) -> Result<(), ComputeError> {
        let part = self.part(at)?;
        let [of_sum, of_weight] = pass.outputs.as_slice() else {
            return Err(ComputeError::closure("a loss writes a sum and its weight"));
        };
        let (mut sum_lent, mut weight_lent) =
            (at.context.write::<f32>(*of_sum)?, at.context.write::<f32>(*of_weight)?);
        if part.samples == 0 {
            (sum_lent[0], weight_lent[0]) = (0.0, 0.0);
            return if at.trains { self.write(at, None, pass.input_gradient) } else { Ok(()) };
        }
        self.fill(at, part)?;
        let done = self.run(at, pass.input, (part.samples, at.trains)).and_then(|ran| {
            let (value, sum, weight) = self.loss_of(at, &ran.output, pass.targets, part)?;
            (sum_lent[0], weight_lent[0]) = (sum, weight);
            if !at.trains {
                return Ok(());
            }
            let scale = f64::from(part.scale) * f64::from(at.context.loss_scale()?[0]);
            let scaled = if scale == 1.0 { Ok(value) } else { value * scale };
            let gradients = guarded("loss", || scaled?.backward()).map_err(ComputeError::closure)?;
            self.write(at, Some((&gradients, &ran.input)), pass.input_gradient)
        });
        self.empty(at.block)?;
        done
    }

    fn backward(&mut self, at: &At<'_, CpuSurface>, pass: &Backward) -> Result<(), ComputeError> {
        let part = self.part(at)?;
        if part.samples == 0 {
            return self.write(at, None, pass.input_gradient);
        }
        let name = self.shared.blocks[at.block].name.clone();
        let kept = self.kept.remove(&(at.block, at.context.micro_batch().index()));
        self.fill(at, part)?;
        let ran = match (kept, pass.input) {
            (Some(kept), _) => Ok(kept),
            (None, Some(input)) => self.run(at, input, (part.samples, true)),
            (None, None) => Err(ComputeError::closure(format!("block `{name}` kept no graph"))),
        };
        let done = ran.and_then(|ran| {
            let of_output =
                values::tensor(&at.context.read_bytes(pass.output_gradient)?, &Form::of(&ran.output), false);
            let gradients = guarded(&name, || (&ran.output * of_output?)?.sum_all()?.backward());
            let gradients = gradients.map_err(ComputeError::closure)?;
            self.write(at, Some((&gradients, &ran.input)), pass.input_gradient)
        });
        self.empty(at.block)?;
        done
    }
}

impl Rank {
    /// The loss of the last block's output: what is differentiated, its sum, and the sum's weight.
    fn loss_of(
        &self,
        at: &At<'_, CpuSurface>,
        logits: &Tensor,
        targets: BufferId,
        part: Part,
    ) -> Result<(Tensor, f32, f32), ComputeError> {
        let shared = &self.shared;
        let shape = shared.shape(at.context)?;
        let form = shape.part(&shape.targets, part.samples, "loss")?;
        let targets = values::tensor(&at.context.read_bytes(targets)?, &form, false);
        let targets = targets.map_err(|source| failed("loss", source))?;
        let loss = guarded("loss", || (shared.loss)(logits, &targets)).map_err(ComputeError::closure)?;
        let number = |tensor: &Tensor| scalar(tensor).map_err(|source| failed("loss", source));
        let (value, sum, weight) = match loss {
            Loss::Mean(mean) => {
                let samples = part.samples as f32;
                let loss = number(&mean)?;
                (mean, loss * samples, samples)
            }
            Loss::Sum { sum, weight } => {
                let weight = number(&weight)?;
                if at.trains && weight != part.weight {
                    let (given, expected) = (weight, part.weight);
                    return Err(ComputeError::closure(Error::Weight { given, expected }));
                }
                let value = number(&sum)?;
                (sum, value, weight)
            }
        };
        if !sum.is_finite() {
            let block = shared.blocks[at.block].name.clone();
            return Err(ComputeError::closure(Error::Loss { block, loss: sum }));
        }
        let value = value.sum_all().map_err(|source| failed("loss", source))?;
        Ok((value, sum, weight))
    }
}

fn failed(block: &str, source: candle_core::Error) -> ComputeError {
    ComputeError::closure(Error::Block { block: block.to_owned(), source })
}

pub(crate) fn scalar(tensor: &Tensor) -> candle_core::Result<f32> {
    tensor.flatten_all()?.get(0)?.to_dtype(DType::F32)?.to_scalar()
}

/// Writes the gradient of a weight; where there is none, zeros unless `missing` refuses.
fn write_gradient(
    at: &At<'_, CpuSurface>,
    weight: WeightId,
    gradient: Option<&Tensor>,
    block: &str,
    missing: impl FnOnce() -> Result<(), ComputeError>,
) -> Result<(), ComputeError> {
    let mut lent = at.context.gradient(weight)?;
    let Some(gradient) = gradient else {
        missing()?;
        lent.fill(0.0);
        return Ok(());
    };
    let bytes = warpweft::bytemuck::cast_slice_mut(&mut lent);
    let stored = gradient.to_dtype(DType::F32).and_then(|gradient| store(&gradient, bytes));
    stored.map_err(|source| failed(block, source))
}
