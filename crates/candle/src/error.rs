//! Errors of sharding a model and of its steps.
//!
//! Law: whatever is wrong with a block names the block, and the tensor where there is one, and says what to do.

use std::fmt;

use candle_core::{DType, Device, Tensor};
use warpweft::checkpoint::CheckpointError;
use warpweft::config::ConfigError;
use warpweft::model::DeclareError;
use warpweft::session::SessionError;

/// An error of a sharded model.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A block's constructor or closure failed.
    #[error("block `{block}`: {source}")]
    Block {
        /// The block, or `loss`.
        block: String,
        /// What candle or the closure says.
        source: candle_core::Error,
    },
    /// A block reads a weight that it was not lent.
    #[error(
        "block `{block}` reads a weight outside of the calls that are lent it ({source}): a closure that keeps a tensor \
         of another block's builder finds nothing in it; request the weight by its name in this block too, or keep \
         `tensor.copy()`"
    )]
    NotLent {
        /// The block, or `loss`.
        block: String,
        /// What candle says of what is there in its place.
        source: candle_core::Error,
    },
    /// A block's constructor or closure panicked.
    #[error("block `{block}` panicked: {message}")]
    Panicked {
        /// The block, or `loss`.
        block: String,
        /// What it said.
        message: String,
    },
    /// No gradient reaches a weight or the input of a block.
    #[error("block `{block}`: no gradient reaches {what}. {cause}")]
    Cut {
        /// The block.
        block: String,
        /// Which tensor, with its shape.
        what: String,
        /// The usual cause, what replaces it, and what to declare if it is meant.
        cause: String,
    },
    /// A block gives something else than it must.
    #[error("block `{block}` gives {given}, and {expected}")]
    Output {
        /// The block, or `loss`.
        block: String,
        /// Shape and dtype.
        given: String,
        /// What was expected, and what to do.
        expected: String,
    },
    /// A block that is random was to be recomputed in backward.
    #[error(
        "block `{block}` gives other values when it is called again with the same input, so backward cannot compute it \
         again; replace candle's Dropout by `warpweft_candle::Dropout`, or leave `recompute` away, which keeps its \
         graph"
    )]
    Random {
        /// The block.
        block: String,
    },
    /// A tensor is of a dtype that is not supported there.
    #[error("{what} is of dtype {dtype:?}; {advice}")]
    Dtype {
        /// What.
        what: String,
        /// Its dtype.
        dtype: DType,
        /// What to do.
        advice: &'static str,
    },
    /// A batch does not have the form of the sample's.
    #[error("the {what} of program `{program}` is {given}, and the sample's was {expected}; {advice}")]
    Batch {
        /// The program.
        program: &'static str,
        /// Input or targets.
        what: &'static str,
        /// Shape and dtype.
        given: String,
        /// Those of the sample.
        expected: String,
        /// What to do.
        advice: &'static str,
    },
    /// The weight of a loss, which is requested before the step, is another in the step.
    #[error(
        "the loss has weight {given} in the step, and {expected} with logits of zeros: a weight must follow from the \
         targets alone, because gradients are divided by that of the whole batch before it is known otherwise"
    )]
    Weight {
        /// In the step.
        given: f32,
        /// Before it.
        expected: f32,
    },
    /// The loss is not finite.
    #[error(
        "the loss of block `{block}` is {loss}: no weight changes; look at the inputs, or lower the learning rate"
    )]
    Loss {
        /// The last block.
        block: String,
        /// The loss.
        loss: f32,
    },
    /// There is no such tensor, or it has no gradient.
    #[error("tensor `{tensor}`: {reason}")]
    NoGradient {
        /// The tensor.
        tensor: String,
        /// Why there is none.
        reason: String,
    },
    /// What was requested was not declared.
    #[error("{what}; {advice}")]
    Undeclared {
        /// What is missing.
        what: String,
        /// What to do.
        advice: &'static str,
    },
    /// Tensors outside of blocks, or files.
    #[error("{what}: {source}")]
    Candle {
        /// What was done.
        what: String,
        /// What candle says.
        source: candle_core::Error,
    },
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The declaration is refused.
    #[error(transparent)]
    Declare(#[from] DeclareError),
    /// Files of weights are refused.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The session failed.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// As `main` prints what it returns: in words, with the causes.
impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")?;
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let text = error.to_string();
            if !self.to_string().contains(&text) {
                write!(formatter, ": {text}")?;
            }
            cause = error.source();
        }
        Ok(())
    }
}

impl Error {
    /// Candle's error in doing `what` outside of blocks.
    pub(crate) fn candle(what: &str) -> impl FnOnce(candle_core::Error) -> Self {
        let what = what.to_owned();
        move |source| Self::Candle { what, source }
    }
}

/// A block's output on another device than its rank's.
pub(crate) fn elsewhere(block: &str, output: &Tensor, device: &Device) -> Error {
    Error::Output {
        block: block.to_owned(),
        given: format!("a tensor on {:?}", output.device()),
        expected: format!(
            "its rank computes on {device:?}; make tensors on `vb.device()`, and move none elsewhere"
        ),
    }
}

/// Shape and dtype of a tensor, in words.
pub(crate) fn form(dims: &[usize], dtype: DType) -> String {
    format!("{dims:?} of {dtype:?}")
}
