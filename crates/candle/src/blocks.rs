//! Blocks of the user: a constructor over a `VarBuilder`, which returns a closure over tensors.
//!
//! Law: a constructor is called anew on every rank and must request the same tensors each time. A panic in it or in
//! its closure is an error that names the block, and ends nothing else.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

use crate::Error;

/// The closure that a constructor returns.
pub(crate) type Apply = Box<dyn Fn(&Tensor) -> Result<Tensor>>;

/// A constructor of a block's closure.
pub(crate) type Constructor = Arc<dyn Fn(VarBuilder<'static>) -> Result<Apply> + Send + Sync>;

/// The user's loss closure.
pub(crate) type LossOf = Arc<dyn Fn(&Tensor, &Tensor) -> Result<Loss> + Send + Sync>;

/// The value of a loss closure: a mean over its samples, or a sum with its weight.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Loss {
    /// The mean over all samples of its inputs; parts of a batch count by their numbers of samples.
    Mean(Tensor),
    /// A sum, and what it is to be divided by, such as the number of tokens that are not padding. The gradients are
    /// those of Σ sum / Σ weight over all ranks, micro-batches and accumulated steps. The weight must follow from the
    /// targets alone.
    Sum {
        /// The sum, a scalar.
        sum: Tensor,
        /// Its weight, a scalar.
        weight: Tensor,
    },
}

impl From<Tensor> for Loss {
    fn from(mean: Tensor) -> Self {
        Self::Mean(mean)
    }
}

impl From<(Tensor, Tensor)> for Loss {
    fn from((sum, weight): (Tensor, Tensor)) -> Self {
        Self::Sum { sum, weight }
    }
}

/// One block of the model.
#[derive(Clone)]
pub(crate) struct Block {
    pub(crate) name: String,
    pub(crate) constructor: Constructor,
}

impl Block {
    pub(crate) fn new<C, F>(name: String, constructor: C) -> Self
    where
        C: Fn(VarBuilder<'static>) -> Result<F> + Send + Sync + 'static,
        F: Fn(&Tensor) -> Result<Tensor> + 'static,
    {
        let boxed = move |vb: VarBuilder<'static>| constructor(vb).map(|apply| Box::new(apply) as Apply);
        Self { name, constructor: Arc::new(boxed) }
    }

    /// The closure over tensors that `vb` gives.
    pub(crate) fn build(&self, vb: VarBuilder<'static>) -> std::result::Result<Apply, Error> {
        guarded(&self.name, || (self.constructor)(vb))
    }
}

/// Does the error name the dtype of what slots hold between calls?
fn names_nothing(source: &candle_core::Error) -> bool {
    source.to_string().split(|letter: char| !letter.is_alphanumeric()).any(|word| word == "F4")
}

/// What `work` of a block gives, or an error that names the block.
pub(crate) fn guarded<R>(block: &str, work: impl FnOnce() -> Result<R>) -> std::result::Result<R, Error> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|source| match names_nothing(&source) {
            // What a weight's tensor is between calls; no block has such tensors.
            true => Error::NotLent { block: block.to_owned(), source },
            false => Error::Block { block: block.to_owned(), source },
        }),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let message = text.unwrap_or_else(|| "without a message".to_owned());
            Err(Error::Panicked { block: block.to_owned(), message })
        }
    }
}
