//! The state that all ranks share: the blocks, the module without its weights, and the forms of programs.
//!
//! Law: what is shared never changes. A rank takes a copy of the module, with running statistics of its own.

use std::collections::HashMap;
use std::sync::Mutex;

use burn::module::Module;
use burn::tensor::{Device, TensorData};
use warpweft::compute::{ComputeContext, ComputeError};
use warpweft::prelude::CpuSurface;
use warpweft_base::pattern::pattern_matches;

use crate::blocks::{Block, LossOf};
use crate::error::form as in_words;
use crate::module::{Known, locked};
use crate::probe::{BlockInfo, Forms};
use crate::values::Form;

/// What all ranks share.
pub(crate) struct Shared<M> {
    pub(crate) blocks: Vec<Block<M>>,
    pub(crate) found: Vec<BlockInfo>,
    /// Of every block, the numbers of the weights that it reads.
    pub(crate) reads: Vec<Vec<usize>>,
    pub(crate) known: Known,
    /// The values of weights that no block reads, by number.
    pub(crate) unread: HashMap<usize, TensorData>,
    /// The module without its weights, on a device without autodiff.
    pub(crate) shell: Mutex<M>,
    pub(crate) device: Device,
    /// Was the user's module on a device for autodiff?
    pub(crate) autodiff: bool,
    pub(crate) loss: LossOf,
    pub(crate) unused: Vec<String>,
    pub(crate) programs: HashMap<&'static str, Parts>,
}

/// The name of an input that all blocks get.
pub(crate) fn beside(number: usize) -> String {
    format!("beside.{number}")
}

/// The forms of a part of one program's batches.
pub(crate) struct Parts {
    /// Samples of the fullest part.
    pub(crate) samples: usize,
    /// Every block's input, and the last one's output.
    pub(crate) forms: Forms,
    /// What all blocks get beside.
    pub(crate) every: Vec<Form>,
    pub(crate) targets: Option<Form>,
}

impl<M> std::fmt::Debug for Shared<M> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shared").field("blocks", &self.found).finish_non_exhaustive()
    }
}

impl<M: Module> Shared<M> {
    /// A copy of the module that is set to train.
    pub(crate) fn module(&self) -> M {
        locked(&self.shell).valid().train()
    }
}

impl<M> Shared<M> {
    /// The forms of the program that a call is of.
    pub(crate) fn parts(&self, context: &ComputeContext<'_, CpuSurface>) -> Result<&Parts, ComputeError> {
        let program = context.program();
        let found = self.programs.get(program);
        found.ok_or_else(|| ComputeError::closure(format!("program `{program}` is not one of these blocks")))
    }

    pub(crate) fn may_be_unused(&self, name: &str) -> bool {
        self.unused.iter().any(|pattern| pattern_matches(pattern, name))
    }
}

impl Parts {
    /// A form for fewer samples.
    pub(crate) fn part(&self, form: &Form, samples: usize, block: &str) -> Result<Form, ComputeError> {
        if samples == self.samples {
            return Ok(form.clone());
        }
        form.part(samples, self.samples).ok_or_else(|| {
            ComputeError::closure(format!(
                "block `{block}`: {} cannot be cut into {} samples, so a batch must be whole here",
                in_words(&form.dims, form.dtype),
                self.samples
            ))
        })
    }
}
