//! The closure of a rank: the calls of its blocks, computed by burn.
//!
//! Law: a call copies what it is lent into tensors, runs the user's closure, and copies out. In a program that trains,
//! forward runs on a device for autodiff as backward does, because dropout looks there; elsewhere it does not. A block
//! that keeps its graph keeps it from its forward to its backward, of one step and micro-batch, and the tensors of its
//! weights with it; any other is computed again from its input. Samples that a short batch does not have are not
//! computed.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Device, Gradients, TensorData};
use warpweft::compute::ComputeError;
use warpweft::format::Orientation;
use warpweft::id::BufferId;
use warpweft::prelude::CpuSurface;
use warpweft_blocks::{At, Backward, Loss as LossPass, Part, Passes};

use crate::Error;
use crate::blocks::{Logits, Loss, Ran, guarded};
use crate::cut;
use crate::error::form;
use crate::lend::{Lent, Used, with_weights};
use crate::shared::Shared;
use crate::tensors::AnyRank;
use crate::tensors::sealed::Place;
use crate::values::{self, in_f32, store};

/// One rank's blocks.
pub(crate) struct Rank<M> {
    shared: Arc<Shared<M>>,
    /// The module without its weights, which trains.
    module: M,
    plain: Device,
    autodiff: Device,
    /// What forward left for backward, by block and micro-batch.
    kept: HashMap<(usize, usize), Kept>,
}

/// A block that ran, and the tensors of its weights.
struct Kept {
    ran: Ran,
    tensors: HashMap<usize, Box<dyn AnyRank>>,
}

type Done<T> = Result<T, ComputeError>;

impl<M: Module + 'static> Rank<M> {
    pub(crate) fn new(shared: Arc<Shared<M>>) -> Self {
        let (module, plain) = (shared.module(), shared.device.clone());
        let autodiff = plain.clone().autodiff();
        Self { shared, module, plain, autodiff, kept: HashMap::new() }
    }

    /// The numbers of a block's weights, in the order in which the session has them.
    fn reads(&self, block: usize) -> &[usize] {
        &self.shared.reads[block]
    }

    /// Does the program train?
    fn trains(at: &At<'_, CpuSurface>) -> bool {
        at.context.program() == crate::TRAIN
    }

    /// Runs a block with what the call is lent.
    fn run(&self, at: &At<'_, CpuSurface>, input: BufferId, (part, tracks): (Part, bool)) -> Done<Kept> {
        let shared = &self.shared;
        let (block, known) = (&shared.blocks[at.block], &shared.known);
        let parts = shared.parts(at.context)?;
        let expected = |form| parts.part(form, part.samples, &block.name);
        let form_out = expected(&parts.forms[at.block + 1])?;
        let mut data = Vec::new();
        let beside = parts.every.iter().zip(at.every.iter().skip(1));
        for (form, buffer) in [(&parts.forms[at.block], &input)].into_iter().chain(beside) {
            let values = values::data(&at.context.read_bytes(*buffer)?, &expected(form)?);
            data.push(values.map_err(|reason| failed(&block.name, reason))?);
        }
        let mut lent = HashMap::new();
        for (number, weight) in self.reads(at.block).iter().zip(at.weights) {
            let values = at.context.dense(*weight, Orientation::Rowwise)?.to_vec();
            lent.insert(*number, TensorData::new(values, known.entries[*number].shape.clone()));
        }
        let (module, device) = match Self::trains(at) {
            true => (self.module.clone(), &self.autodiff),
            false => (self.module.valid(), &self.plain),
        };
        let place = Place { device, tracks: tracks && at.block > 0 };
        let (ran, used) = with_weights(module, (known, device), Lent::values(lent), |module| {
            block.run(module, data, place)
        });
        let Used { tensors, strays, .. } = used;
        if let Some(stray) = strays.first() {
            let (block, weight) = (block.name.clone(), known.entries[*stray].name.clone());
            return Err(ComputeError::closure(Error::Stray { block, weight }));
        }
        let ran = ran.map_err(ComputeError::closure)?;
        let given = ran.output.form();
        if given != form_out {
            return Err(ComputeError::closure(Error::Output {
                block: block.name.clone(),
                given: form(&given.dims, given.dtype),
                expected: format!(
                    "gave {} when it ran on the sample; a block's output follows from the shape of its input alone",
                    form(&form_out.dims, form_out.dtype)
                ),
            }));
        }
        Ok(Kept { ran, tensors })
    }

    /// Writes the gradients of a block's weights and of its input; of a part without samples, zeros.
    fn write(
        &self,
        at: &At<'_, CpuSurface>,
        gradients: Option<(Gradients, Kept)>,
        input_gradient: Option<BufferId>,
    ) -> Done<()> {
        let (shared, name) = (&self.shared, &self.shared.blocks[at.block].name);
        let in_block = |reason| failed(name, reason);
        let mut gradients = gradients;
        for (number, weight) in self.reads(at.block).iter().zip(at.weights) {
            let entry = &shared.known.entries[*number];
            if !entry.trains() {
                continue;
            }
            let gradient = match &mut gradients {
                Some((all, kept)) => kept.tensors.get(number).map(|tensor| tensor.gradient(all)),
                None => None,
            };
            let mut lent = at.context.gradient(*weight)?;
            match gradient.transpose().map_err(in_block)?.flatten() {
                Some(gradient) => {
                    let gradient = in_f32(gradient).map_err(in_block)?;
                    let bytes = warpweft::bytemuck::cast_slice_mut(&mut lent);
                    store(&gradient, bytes).map_err(in_block)?;
                }
                None if gradients.is_none() || shared.may_be_unused(&entry.name) => lent.fill(0.0),
                None => return Err(ComputeError::closure(cut::of_weight(name, entry))),
            }
        }
        let Some(buffer) = input_gradient else { return Ok(()) };
        let mut lent = at.context.write_bytes(buffer)?;
        let Some((mut all, kept)) = gradients else {
            lent.fill(0);
            return Ok(());
        };
        let input = kept.ran.input.as_ref();
        let gradient = input.map(|input| input.gradient(&mut all)).transpose().map_err(in_block)?;
        match (gradient.flatten(), input) {
            (Some(gradient), _) => store(&gradient, &mut lent).map_err(in_block),
            (None, Some(input)) if !shared.may_be_unused(name) => {
                Err(ComputeError::closure(cut::of_input(name, &input.form())))
            }
            (None, _) => {
                lent.fill(0);
                Ok(())
            }
        }
    }

    fn part(at: &At<'_, CpuSurface>) -> Done<Part> {
        let missing = || ComputeError::closure("a call of a block that reads no part of a batch");
        let words = at.context.read::<u32>(*at.every.first().ok_or_else(missing)?)?;
        Part::of(&words).ok_or_else(missing)
    }

    /// The loss of the last block's output: what is differentiated, its sum, and the sum's weight.
    fn loss_of(&self, at: &At<'_, CpuSurface>, ran: &Ran, (targets, part): (BufferId, Part)) -> Done<Lost> {
        let (shared, in_loss) = (&self.shared, |reason| failed("loss", reason));
        let parts = shared.parts(at.context)?;
        let form = parts.targets.as_ref().ok_or_else(|| in_loss("the program has no targets".to_owned()))?;
        let form = parts.part(form, part.samples, "loss")?;
        let targets = values::data(&at.context.read_bytes(targets)?, &form).map_err(in_loss)?;
        let device = if Self::trains(at) { &self.autodiff } else { &self.plain };
        let logits = Logits::Of(&*ran.output, device);
        let lost = guarded("loss", || (shared.loss)(logits, targets)).map_err(ComputeError::closure)?;
        let number = |tensor: &dyn AnyRank| scalar(tensor).map_err(in_loss);
        let lost = match lost.loss {
            Loss::Mean(mean) => {
                let samples = part.samples as f32;
                Lost { sum: number(&mean)? * samples, weight: samples, value: mean }
            }
            Loss::Sum { sum, weight } => {
                let weight = number(&weight)?;
                if at.trains && weight != part.weight {
                    let (given, expected) = (weight, part.weight);
                    return Err(ComputeError::closure(Error::Weight { given, expected }));
                }
                Lost { sum: number(&sum)?, weight, value: sum }
            }
        };
        if !lost.sum.is_finite() {
            let block = shared.blocks[at.block].name.clone();
            return Err(ComputeError::closure(Error::Loss { block, loss: lost.sum }));
        }
        Ok(lost)
    }
}

/// A loss in a step.
struct Lost {
    value: burn::tensor::Tensor<1>,
    sum: f32,
    weight: f32,
}

impl<M: Module + 'static> Passes<CpuSurface> for Rank<M> {
    fn forward(&mut self, at: &At<'_, CpuSurface>, input: BufferId, output: BufferId) -> Done<()> {
        let part = Self::part(at)?;
        if at.block == 0 && at.context.micro_batch().index() == 0 {
            self.kept.clear(); // of a step that failed
        }
        if part.samples == 0 {
            at.context.write_bytes(output)?.fill(0);
            return Ok(());
        }
        let keeps = at.trains && !self.shared.found[at.block].recomputes;
        let kept = self.run(at, input, (part, keeps))?;
        let in_block = |reason| failed(&self.shared.blocks[at.block].name, reason);
        let data = kept.ran.output.data().map_err(in_block)?;
        store(&data, &mut at.context.write_bytes(output)?).map_err(in_block)?;
        if keeps {
            self.kept.insert((at.block, at.context.micro_batch().index()), kept);
        }
        Ok(())
    }

    fn loss(&mut self, at: &At<'_, CpuSurface>, pass: &LossPass) -> Done<()> {
        let part = Self::part(at)?;
        let [of_sum, of_weight] = pass.outputs.as_slice() else {
            return Err(ComputeError::closure("a loss writes a sum and its weight"));
        };
        let (mut sum_lent, mut weight_lent) =
            (at.context.write::<f32>(*of_sum)?, at.context.write::<f32>(*of_weight)?);
        if part.samples == 0 {
            (sum_lent[0], weight_lent[0]) = (0.0, 0.0);
            return if at.trains { self.write(at, None, pass.input_gradient) } else { Ok(()) };
        }
        let kept = self.run(at, pass.input, (part, at.trains))?;
        let Lost { value, sum, weight } = self.loss_of(at, &kept.ran, (pass.targets, part))?;
        (sum_lent[0], weight_lent[0]) = (sum, weight);
        if !at.trains {
            return Ok(());
        }
        let scale = part.scale * at.context.loss_scale()?[0];
        let gradients = guarded("loss", || {
            let scaled = if scale == 1.0 { value } else { value * scale };
            Ok(scaled.backward())
        });
        self.write(at, Some((gradients.map_err(ComputeError::closure)?, kept)), pass.input_gradient)
    }

    fn backward(&mut self, at: &At<'_, CpuSurface>, pass: &Backward) -> Done<()> {
        let part = Self::part(at)?;
        if part.samples == 0 {
            return self.write(at, None, pass.input_gradient);
        }
        let name = self.shared.blocks[at.block].name.clone();
        let kept = self.kept.remove(&(at.block, at.context.micro_batch().index()));
        let kept = match (kept, pass.input) {
            (Some(kept), _) => kept,
            (None, Some(input)) => self.run(at, input, (part, true))?,
            (None, None) => return Err(failed(&name, "it kept no graph".to_owned())),
        };
        let of_output = values::data(&at.context.read_bytes(pass.output_gradient)?, &kept.ran.output.form());
        let of_output = of_output.map_err(|reason| failed(&name, reason))?;
        let gradients = guarded(&name, || Ok(kept.ran.output.backward(Some(of_output))));
        self.write(at, Some((gradients.map_err(ComputeError::closure)?, kept)), pass.input_gradient)
    }
}

fn failed(block: &str, reason: String) -> ComputeError {
    ComputeError::closure(Error::Block { block: block.to_owned(), reason })
}

/// The first number of a tensor.
pub(crate) fn scalar(tensor: &dyn AnyRank) -> Result<f32, String> {
    let data = in_f32(tensor.data()?)?;
    let values = data.as_slice::<f32>().map_err(|error| format!("{error:?}"))?;
    values.first().copied().ok_or_else(|| "a loss without a number".to_owned())
}
