//! Errors of sharding a module and of its steps.
//!
//! Law: whatever is wrong with a block names the block, and the tensor where there is one, and says what to do.

use std::fmt;

use burn::tensor::DType;
use warpweft::config::ConfigError;
use warpweft::model::DeclareError;
use warpweft::session::SessionError;

/// An error of a sharded model.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A block's closure does not fit, or what burn says of its tensors.
    #[error("block `{block}`: {reason}")]
    Block {
        /// The block, or `loss`.
        block: String,
        /// Why.
        reason: String,
    },
    /// A block's closure panicked, as burn does where an operation is not possible.
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
        /// The usual cause, and what to declare if it is meant.
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
    /// A weight that no block reads.
    #[error(
        "no block reads weight `{weight}`: add the block that computes with it, or, if it is meant, \
         `may_be_unused(\"{weight}\")`, which leaves it as it is"
    )]
    Unread {
        /// The path of the weight.
        weight: String,
    },
    /// A block read a weight that it did not read on the sample.
    #[error(
        "block `{block}` reads weight `{weight}`, which it did not read on the sample, so it was not gathered for it; \
         a block must read the same weights in every call"
    )]
    Stray {
        /// The block.
        block: String,
        /// The path of the weight.
        weight: String,
    },
    /// A block that is random was to be recomputed in backward.
    #[error(
        "block `{block}` gives other values when it is called again with the same input, as burn's dropout does, so \
         backward cannot compute it again; leave `recompute` away, which keeps its graph, or set its dropout to 0"
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
        what: String,
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
    /// Tensors outside of blocks.
    #[error("{what}: {reason}")]
    Burn {
        /// What was done.
        what: String,
        /// What burn says.
        reason: String,
    },
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The declaration is refused.
    #[error(transparent)]
    Declare(#[from] DeclareError),
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
    /// Burn's error in doing `what` outside of blocks.
    pub(crate) fn burn(what: &str) -> impl FnOnce(String) -> Self {
        let what = what.to_owned();
        move |reason| Self::Burn { what, reason }
    }
}

/// Shape and dtype of a tensor, in words.
pub(crate) fn form(dims: &[usize], dtype: DType) -> String {
    format!("{dims:?} of {dtype:?}")
}
