//! Blocks of the user: closures over the module and tensors, which compute a part of the model each.
//!
//! Law: a closure reads the weights of its block, always the same ones, and leaves the module as it is. burn says what
//! is wrong by panics, so a panic in a closure is an error that names the block, and ends nothing else.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};
use warpweft_base::panics::last_words;

use crate::Error;
use crate::tensors::sealed::{Leaf, Place};
use crate::tensors::{AnyRank, Inputs, Output, Value, one};

/// A block that ran: what of its input is differentiated, and its output.
pub(crate) struct Ran {
    pub(crate) input: Option<Box<dyn AnyRank>>,
    pub(crate) output: Box<dyn AnyRank>,
}

/// A block's closure over a module with its weights, and the values of its inputs.
type Forward<M> = Arc<dyn Fn(&M, Vec<TensorData>, Place<'_>) -> Result<Ran, String> + Send + Sync>;

/// The user's loss closure over the last block's output and the values of the targets.
pub(crate) type LossOf = Arc<dyn Fn(Logits<'_>, TensorData) -> Result<Lost, String> + Send + Sync>;

/// What a loss is computed of.
pub(crate) enum Logits<'a> {
    /// An output.
    Of(&'a dyn AnyRank, &'a Device),
    /// Values, which may be differentiated.
    Values(TensorData, Place<'a>),
}

/// A loss, and its logits where they were values that are differentiated.
pub(crate) struct Lost {
    pub(crate) loss: Loss,
    pub(crate) logits: Option<Box<dyn AnyRank>>,
}

/// The value of a loss closure: a mean over its samples, or a sum with its weight.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[expect(clippy::large_enum_variant, reason = "there is one of it in a call")]
pub enum Loss {
    /// The mean over all samples of its inputs; parts of a batch count by their numbers of samples.
    Mean(Tensor<1>),
    /// A sum, and what it is to be divided by, such as the number of tokens that are not padding. The gradients are
    /// those of Σ sum / Σ weight over all ranks, micro-batches and accumulated steps. The weight must follow from the
    /// targets alone.
    Sum {
        /// The sum.
        sum: Tensor<1>,
        /// Its weight.
        weight: Tensor<1>,
    },
}

impl From<Tensor<1>> for Loss {
    fn from(mean: Tensor<1>) -> Self {
        Self::Mean(mean)
    }
}

impl From<(Tensor<1>, Tensor<1>)> for Loss {
    fn from((sum, weight): (Tensor<1>, Tensor<1>)) -> Self {
        Self::Sum { sum, weight }
    }
}

/// One block of the model.
pub(crate) struct Block<M> {
    pub(crate) name: String,
    forward: Forward<M>,
}

impl<M> Clone for Block<M> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), forward: Arc::clone(&self.forward) }
    }
}

impl<M: 'static> Block<M> {
    pub(crate) fn new<X: Inputs, Y: Output>(
        name: String,
        forward: impl Fn(&M, X) -> Y + Send + Sync + 'static,
    ) -> Self {
        let erased = move |module: &M, data: Vec<TensorData>, place: Place<'_>| {
            let (x, Leaf(input)) = X::of(data, place)?;
            Ok(Ran { input, output: forward(module, x).boxed() })
        };
        Self { name, forward: Arc::new(erased) }
    }

    /// Its output, and its graph if the device is one for autodiff.
    pub(crate) fn run(&self, module: &M, data: Vec<TensorData>, place: Place<'_>) -> Result<Ran, Error> {
        guarded(&self.name, || (self.forward)(module, data, place))
    }
}

/// The loss of closures over logits of one rank.
pub(crate) fn loss_of<Y: Value + Output + Clone, T: Value, R: Into<Loss>>(
    loss: impl Fn(Y, T) -> R + Send + Sync + 'static,
) -> LossOf {
    Arc::new(move |logits, targets| {
        let (logits, leaf, device) = match logits {
            Logits::Of(output, device) => match output.any().downcast_ref::<Y>() {
                Some(logits) => (logits.clone(), None, device),
                None => {
                    let (form, (kind, rank)) = (output.form(), Y::WORDS);
                    let given = crate::error::form(&form.dims, form.dtype);
                    return Err(format!("it takes rank {rank} of {kind}, and the last block gives {given}"));
                }
            },
            Logits::Values(data, place) => {
                let (logits, Leaf(leaf)) = one::<Y>(Some(data), "logits", place)?;
                (logits, leaf, place.device)
            }
        };
        let (targets, _) = one::<T>(Some(targets), "targets", Place { device, tracks: false })?;
        Ok(Lost { loss: loss(logits, targets).into(), logits: leaf })
    })
}

/// What `work` of a block gives, or an error that names the block.
pub(crate) fn guarded<R>(block: &str, work: impl FnOnce() -> Result<R, String>) -> Result<R, Error> {
    let block = block.to_owned();
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|reason| Error::Block { block, reason }),
        Err(panic) => Err(Error::Panicked { block, message: last_words(panic.as_ref()) }),
    }
}
