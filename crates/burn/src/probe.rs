//! The sample step: every block runs once, forward and backward, before anything starts.
//!
//! Law: blocks are tried one after the other, with their first values, so one block's tensors are made at a time. What
//! a step of the session relies on is found out here: which weights a block reads, the forms of what goes between
//! blocks, that gradients reach every weight and every input, and whether a block may be computed again.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Device, TensorData};
use warpweft_base::pattern::pattern_matches;

use crate::Error;
use crate::blocks::{Block, Logits, Loss, LossOf, Lost, Ran, guarded};
use crate::cut;
use crate::error::form;
use crate::lend::{Lent, Used, with_weights};
use crate::module::Known;
use crate::tensors::sealed::Place;
use crate::values::Form;

/// The input of the sample step.
pub(crate) struct Trial<'a, M> {
    pub(crate) blocks: &'a [Block<M>],
    pub(crate) loss: &'a LossOf,
    /// The module without its weights, which trains.
    pub(crate) module: &'a M,
    pub(crate) device: &'a Device,
    pub(crate) first: Arc<HashMap<usize, TensorData>>,
    pub(crate) unused: &'a [String],
    pub(crate) recompute: &'a [String],
}

/// A block, as the sample step found it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BlockInfo {
    /// Its name.
    pub name: String,
    /// The paths of the weights that it reads.
    pub weights: Vec<String>,
    /// Does backward compute it again, in place of keeping its graph?
    pub recomputes: bool,
    /// Does it give other values each time, as with dropout?
    pub random: bool,
}

/// The forms of a program: every block's input and the last one's output.
pub(crate) type Forms = Vec<Form>;

/// The findings of the sample step.
pub(crate) struct Found {
    pub(crate) known: Known,
    pub(crate) reads: Vec<Vec<usize>>,
    pub(crate) blocks: Vec<BlockInfo>,
    /// Of every sample that was given, the first one that of training.
    pub(crate) forms: Vec<Forms>,
    /// Does the loss give a sum with its weight?
    pub(crate) sums: bool,
}

type Done<T> = Result<T, Error>;

impl<M: Module + 'static> Trial<'_, M> {
    /// Runs all blocks on `samples`, the first of which trains with `targets`.
    pub(crate) fn run(
        &self,
        mut known: Known,
        samples: &[Vec<TensorData>],
        targets: &TensorData,
    ) -> Done<Found> {
        let (mut reads, mut blocks) = (Vec::new(), Vec::new());
        // Does a block up to here train?
        let mut trains = false;
        let mut values: Vec<Vec<TensorData>> = samples.to_vec();
        let start = |of: &Vec<TensorData>| of.first().map(Form::of).into_iter().collect();
        let mut forms: Vec<Forms> = values.iter().map(start).collect();
        for (number, block) in self.blocks.iter().enumerate() {
            let tracks = trains && number > 0;
            let (ran, used) = self.output(block, &known, values[0].clone(), (true, tracks))?;
            trains |= used.read.iter().any(|number| known.entries[*number].trains());
            if trains {
                self.gradients_arrive(block, &known, &ran, &used)?;
            }
            let output = ran.output.data().map_err(Error::burn(&block.name))?;
            blocks.push(self.judge(block, (&known, &used), values[0].clone(), &output)?);
            for (values, forms) in values.iter_mut().zip(&mut forms).skip(1) {
                let (other, of_other) = self.output(block, &known, values.clone(), (false, false))?;
                if let Some(stray) = of_other.read.iter().find(|number| !used.read.contains(number)) {
                    let weight = known.entries[*stray].name.clone();
                    return Err(Error::Stray { block: block.name.clone(), weight });
                }
                values[0] = other.output.data().map_err(Error::burn(&block.name))?;
                forms.push(Form::of(&values[0]));
            }
            forms[0].push(Form::of(&output));
            values[0][0] = output;
            for number in &used.read {
                known.entries[*number].blocks.push(block.name.clone());
            }
            reads.push(used.read);
        }
        let sums = self.judge_loss(&values[0], targets)?;
        Ok(Found { known, reads, blocks, forms, sums })
    }

    /// Runs a block in training, or as it predicts.
    fn output(
        &self,
        block: &Block<M>,
        known: &Known,
        data: Vec<TensorData>,
        (trains, tracks): (bool, bool),
    ) -> Done<(Ran, Used)> {
        let (module, device) = match trains {
            true => (self.module.clone(), self.device.clone().autodiff()),
            false => (self.module.valid(), self.device.clone()),
        };
        let place = Place { device: &device, tracks };
        let run = |module: &M| block.run(module, data, place);
        let (ran, used) = with_weights(module, (known, &device), Lent::all(&self.first), run);
        let ran = ran?;
        let given = ran.output.form();
        if given.flow().is_some() && given.elements() > 0 {
            return Ok((ran, used));
        }
        Err(Error::Output {
            block: block.name.clone(),
            given: form(&given.dims, given.dtype),
            expected: "what goes between blocks is in F32, BF16, F16 or F64, and not empty".to_owned(),
        })
    }

    fn judge(
        &self,
        block: &Block<M>,
        (known, used): (&Known, &Used),
        data: Vec<TensorData>,
        output: &TensorData,
    ) -> Done<BlockInfo> {
        let (again, _) = self.output(block, known, data, (true, false))?;
        let again = again.output.data().map_err(Error::burn(&block.name))?;
        let random = Form::of(&again) != Form::of(output) || again.as_bytes() != output.as_bytes();
        let recomputes = self.recompute.iter().any(|pattern| pattern_matches(pattern, &block.name));
        if random && recomputes {
            return Err(Error::Random { block: block.name.clone() });
        }
        let weights = used.read.iter().map(|number| known.entries[*number].name.clone()).collect();
        Ok(BlockInfo { name: block.name.clone(), weights, recomputes, random })
    }

    /// Every weight that trains has a gradient, and so has the input, where something before trains.
    fn gradients_arrive(&self, block: &Block<M>, known: &Known, ran: &Ran, used: &Used) -> Done<()> {
        let may_be_unused = |name: &str| self.unused.iter().any(|pattern| pattern_matches(pattern, name));
        let mut all = match ran.output.tracks() {
            true => Some(guarded(&block.name, || Ok(ran.output.backward(None)))?),
            false => None,
        };
        for number in &used.read {
            let entry = &known.entries[*number];
            if !entry.trains() || may_be_unused(&entry.name) {
                continue;
            }
            let gradient = match (&mut all, used.tensors.get(number)) {
                (Some(all), Some(tensor)) => tensor.gradient(all).map_err(Error::burn(&entry.name))?,
                _ => None,
            };
            if gradient.is_none() {
                return Err(cut::of_weight(&block.name, entry));
            }
        }
        let Some(input) = ran.input.as_ref().filter(|_| !may_be_unused(&block.name)) else { return Ok(()) };
        let gradient = all.as_mut().map(|all| input.gradient(all)).transpose();
        match gradient.map_err(Error::burn(&block.name))?.flatten() {
            Some(_) => Ok(()),
            None => Err(cut::of_input(&block.name, &input.form())),
        }
    }

    /// The loss is a scalar, and a gradient reaches the logits. Gives whether it is a sum with its weight.
    fn judge_loss(&self, values: &[TensorData], targets: &TensorData) -> Done<bool> {
        const LOSS: &str = "loss";
        let device = self.device.clone().autodiff();
        let Some(logits) = values.first().cloned() else { return Ok(false) };
        let given = Form::of(&logits);
        let place = Place { device: &device, tracks: true };
        let Lost { loss, logits } =
            guarded(LOSS, || (self.loss)(Logits::Values(logits, place), targets.clone()))?;
        let (value, weight) = match loss {
            Loss::Mean(mean) => (mean, None),
            Loss::Sum { sum, weight } => (sum, Some(weight)),
        };
        let scalars = [Some(&value), weight.as_ref()];
        if let Some(scalar) = scalars.into_iter().flatten().find(|scalar| scalar.dims() != [1]) {
            return Err(Error::Output {
                block: LOSS.to_owned(),
                given: form(&scalar.dims(), scalar.dtype()),
                expected: "a loss is one number, or one for the sum with one for its weight".to_owned(),
            });
        }
        let mut all = match value.is_tracked() {
            true => guarded(LOSS, || Ok(value.backward()))?,
            false => return Err(cut::of_input(LOSS, &given)),
        };
        let gradient = logits.map(|logits| logits.gradient(&mut all)).transpose();
        match gradient.map_err(Error::burn(LOSS))?.flatten() {
            Some(_) => Ok(weight.is_some()),
            None => Err(cut::of_input(LOSS, &given)),
        }
    }
}
