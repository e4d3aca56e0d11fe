//! The sample step: every block is recorded, built and run once, forward and backward, before anything starts.
//!
//! Law: blocks are tried one after the other, with their first values, so one block's weights are in memory at a time.
//! What a step of the session relies on is found out here: the forms of what goes between blocks, that gradients reach
//! every weight and every input, and whether a block may be built once and find new values in its tensors.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, Var};
use warpweft::config::Config;
use warpweft_base::pattern::pattern_matches;

use crate::Error;
use crate::blocks::{Apply, Block, Loss, LossOf, guarded};
use crate::cut;
use crate::dropout::{self, Place};
use crate::entry::Entry;
use crate::error::{elsewhere, form};
use crate::record::{Registry, Requested, Served, record};
use crate::slot::{Pool, Slot};
use crate::source::Source;
use crate::values::{Form, same_bits};

/// The input of the sample step.
pub(crate) struct Trial<'a> {
    pub(crate) blocks: &'a [Block],
    pub(crate) loss: &'a LossOf,
    pub(crate) dtype: DType,
    /// That of the first rank, or one like it.
    pub(crate) device: &'a Device,
    pub(crate) source: Arc<Source>,
    pub(crate) config: &'a Config,
    pub(crate) buffers: &'a [String],
    pub(crate) drawn: &'a [String],
    pub(crate) unused: &'a [String],
    pub(crate) recompute: &'a [String],
    pub(crate) seed: u64,
}

/// A block, as the sample step found it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BlockInfo {
    /// Its name.
    pub name: String,
    /// Does backward compute it again, in place of keeping its graph?
    pub recomputes: bool,
    /// Is it built anew for every call, because a constructor that ran before the weights were there gave other values?
    /// That is so where the constructor computes with weights, and where a block is random.
    pub rebuilt: bool,
    /// Tensors that its forward makes of weights alone, such as transposed or rounded copies. A kept graph holds them.
    pub derived: usize,
    /// Their bytes, of one call.
    pub derived_bytes: usize,
}

/// The forms of a program: every block's input and the last one's output.
pub(crate) type Forms = Vec<Form>;

/// The findings of the sample step.
pub(crate) struct Found {
    pub(crate) entries: Vec<Entry>,
    pub(crate) requested: Vec<Requested>,
    pub(crate) blocks: Vec<BlockInfo>,
    /// Of every sample that was given, the first one that of training.
    pub(crate) forms: Vec<Forms>,
    /// Does the loss give a sum with its weight?
    pub(crate) sums: bool,
}

/// A block with its first values.
struct Tried<'a> {
    block: &'a Block,
    entries: &'a [Entry],
    requested: &'a Requested,
    slots: &'a [Slot],
    apply: Apply,
    input: Tensor,
    output: Tensor,
    /// Does it train, or a block before it?
    trains: bool,
}

impl Trial<'_> {
    /// Runs all blocks on `samples`, the first of which trains with `targets`.
    pub(crate) fn run(&self, samples: &[Tensor], targets: &Tensor) -> std::result::Result<Found, Error> {
        let mut registry = Registry::new(self.config, self.buffers, self.drawn);
        let (mut requested, mut blocks) = (Vec::new(), Vec::new());
        // Does a block up to here train?
        let mut trains = false;
        let here = |tensor: &Tensor| tensor.to_device(self.device).map_err(Error::candle("the sample"));
        let mut values: Vec<Tensor> = samples.iter().map(here).collect::<std::result::Result<_, _>>()?;
        let mut forms: Vec<Forms> = values.iter().map(|value| vec![Form::of(value)]).collect();
        for block in self.blocks {
            let (recorded, of_block, slots, apply) =
                record(registry, &self.source, (&block.name, self.dtype, self.device), |vb| block.build(vb));
            registry = recorded;
            let apply = apply?;
            self.place(&registry.entries, &of_block, &slots).map_err(in_block(block))?;
            let input = match trains && values[0].dtype().is_float() {
                true => Var::from_tensor(&values[0]).map_err(in_block(block))?.into_inner(),
                false => values[0].clone(),
            };
            let output = self.output(block, &apply, &input)?;
            let entries = registry.entries.as_slice();
            trains |= of_block.tensors.iter().any(|number| entries[*number].trains());
            let tried =
                Tried { block, entries, requested: &of_block, slots: &slots, apply, input, output, trains };
            blocks.push(self.judge(&tried)?);
            for (value, forms) in values.iter_mut().zip(&mut forms).skip(1) {
                *value = self.output(block, &tried.apply, value)?.detach();
                forms.push(Form::of(value));
            }
            values[0] = tried.output.detach();
            forms[0].push(Form::of(&values[0]));
            requested.push(of_block);
        }
        let sums = self.judge_loss(&values[0], &here(targets)?)?;
        Ok(Found { entries: registry.entries, requested, blocks, forms, sums })
    }

    /// Tells the dropouts of a block where they are.
    fn place(&self, entries: &[Entry], requested: &Requested, slots: &[Slot]) -> Result<()> {
        let place = Place { trains: true, seed: self.seed, step: 0, rank: 0, micro_batch: 0 };
        let of_dropouts = requested.tensors.iter().zip(slots);
        for (_, slot) in of_dropouts.filter(|(number, _)| dropout::is_state(&entries[**number].name)) {
            slot.fill_words(&place.words())?;
        }
        Ok(())
    }

    fn output(&self, block: &Block, apply: &Apply, input: &Tensor) -> std::result::Result<Tensor, Error> {
        let output = guarded(&block.name, || apply(input))?;
        if !output.device().same_device(self.device) {
            return Err(elsewhere(&block.name, &output, self.device));
        }
        if output.dtype().is_float() && Form::of(&output).flow().is_some() && output.elem_count() > 0 {
            return Ok(output);
        }
        Err(Error::Output {
            block: block.name.clone(),
            given: form(output.dims(), output.dtype()),
            expected: "what goes between blocks is in F32, BF16, F16 or F64, and not empty".to_owned(),
        })
    }

    fn judge(&self, tried: &Tried<'_>) -> std::result::Result<BlockInfo, Error> {
        let name = &tried.block.name;
        self.gradients_arrive(tried)?;
        let again = self.output(tried.block, &tried.apply, &tried.input)?;
        let random = !same_bits(&tried.output, &again).map_err(in_block(tried.block))?;
        let recomputes = self.recompute.iter().any(|pattern| pattern_matches(pattern, name));
        if random && recomputes {
            return Err(Error::Random { block: name.clone() });
        }
        let rebuilt = random || !self.may_be_built_once(tried)?;
        if rebuilt && recomputes && self.constructor_draws(tried)? {
            return Err(Error::Random { block: name.clone() });
        }
        let (derived, derived_bytes) = cut::derived(&tried.output, &tried.input, tried.slots);
        Ok(BlockInfo { name: name.clone(), recomputes, rebuilt, derived, derived_bytes })
    }

    /// Does a block that was built over zeros give the bits of one that is built over the values? Asked at values other
    /// than the first, which are zeros themselves where an adapter or a bias begins.
    fn may_be_built_once(&self, tried: &Tried<'_>) -> std::result::Result<bool, Error> {
        let fresh = self.built_over(tried, true)?;
        // A constructor may refuse zeros.
        let Ok(once) = self.built_over(tried, false) else { return Ok(false) };
        same_bits(&once, &fresh).map_err(in_block(tried.block))
    }

    /// Do two builds over the same values give other bits, because the constructor draws?
    fn constructor_draws(&self, tried: &Tried<'_>) -> std::result::Result<bool, Error> {
        let (one, other) = (self.built_over(tried, true)?, self.built_over(tried, true)?);
        Ok(!same_bits(&one, &other).map_err(in_block(tried.block))?)
    }

    /// The output on the sample of a block that is built over zeros, or over the values that the others get afterwards:
    /// the first ones, each a little aside.
    fn built_over(&self, tried: &Tried<'_>, filled: bool) -> std::result::Result<Tensor, Error> {
        let (requested, entries) = (&tried.requested.tensors, tried.entries);
        let slots = requested.iter().zip(tried.slots).map(|(number, first)| {
            let entry = &entries[*number];
            match entry.is_buffer() {
                true => Ok(first.clone()),
                false => Slot::zeros(entry.shape.as_slice(), entry.dtype, (entry.trains(), self.device)),
            }
        });
        let slots = slots.collect::<Result<Vec<Slot>>>().map_err(in_block(tried.block))?;
        let fill = || -> Result<()> {
            let both = requested.iter().zip(tried.slots.iter().zip(&slots));
            for (_, (first, slot)) in both.filter(|(number, _)| !entries[**number].is_buffer()) {
                // Drawing them again takes seconds for each hundred million.
                let mut values: Vec<f32> = first.tensor().flatten_all()?.to_dtype(DType::F32)?.to_vec1()?;
                for (at, value) in values.iter_mut().enumerate() {
                    *value += 0.01 * ((at * 37 % 64) as f32 / 64.0 - 0.5);
                }
                slot.fill(&values, &mut Pool::default())?;
            }
            Ok(())
        };
        if filled {
            fill().map_err(in_block(tried.block))?;
        }
        let served = Served::new(entries, tried.requested, &slots);
        let apply = served.build((self.dtype, self.device), |vb| tried.block.build(vb), &tried.block.name)?;
        if !filled {
            fill().map_err(in_block(tried.block))?;
        }
        self.output(tried.block, &apply, &tried.input)
    }

    /// Every weight has a gradient, and so has the input, where something trains. A frozen one too: what cuts it off
    /// cuts off what trains before it, and that may have a gradient by another way.
    fn gradients_arrive(&self, tried: &Tried<'_>) -> std::result::Result<(), Error> {
        let Tried { block, entries, requested, slots, input, output, trains, .. } = tried;
        if !trains {
            return Ok(());
        }
        let gradients = guarded(&block.name, || output.sum_all()?.backward())?;
        let may_be_unused = |name: &str| self.unused.iter().any(|pattern| pattern_matches(pattern, name));
        for (number, slot) in requested.tensors.iter().zip(*slots) {
            let entry = &entries[*number];
            if !entry.is_buffer() && gradients.get(slot.tensor()).is_none() && !may_be_unused(&entry.name) {
                return Err(cut::of_weight(&block.name, entry));
            }
        }
        let is_cut = input.is_variable() && gradients.get(input).is_none();
        match is_cut && !may_be_unused(&block.name) {
            true => Err(cut::of_input(&block.name, input)),
            false => Ok(()),
        }
    }

    /// The loss is a scalar, and a gradient reaches the logits. Gives whether it is a sum with its weight.
    fn judge_loss(&self, logits: &Tensor, targets: &Tensor) -> std::result::Result<bool, Error> {
        const LOSS: &str = "loss";
        let of_candle = |source| Error::Block { block: LOSS.to_owned(), source };
        let logits = Var::from_tensor(logits).map_err(of_candle)?.into_inner();
        let (value, weight) = match guarded(LOSS, || (self.loss)(&logits, targets))? {
            Loss::Mean(mean) => (mean, None),
            Loss::Sum { sum, weight } => (sum, Some(weight)),
        };
        let scalars = [Some(&value), weight.as_ref()];
        if let Some(scalar) = scalars.into_iter().flatten().find(|scalar| scalar.elem_count() != 1) {
            return Err(Error::Output {
                block: LOSS.to_owned(),
                given: form(scalar.dims(), scalar.dtype()),
                expected: "a loss is a scalar, or a scalar sum with a scalar weight".to_owned(),
            });
        }
        let gradients = guarded(LOSS, || value.sum_all()?.backward())?;
        match gradients.get(&logits) {
            Some(_) => Ok(weight.is_some()),
            None => Err(cut::of_input(LOSS, &logits)),
        }
    }
}

fn in_block(block: &Block) -> impl Fn(candle_core::Error) -> Error + '_ {
    |source| Error::Block { block: block.name.clone(), source }
}
