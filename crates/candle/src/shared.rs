//! The state that all ranks share, and the blocks of one rank.
//!
//! Law: what is shared never changes. A rank has tensors of its own for the weights of every block, also for one that
//! two blocks share: each block's backward gives a gradient of its own.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use warpweft::compute::ComputeError;
use warpweft_base::pattern::pattern_matches;

use crate::Error;
use crate::blocks::{Apply, Block, LossOf};
use crate::bridge::Bridge;
use crate::entry::Entry;
use crate::error::form as in_words;
use crate::probe::{BlockInfo, Forms};
use crate::record::{Requested, Served};
use crate::slot::Slot;
use crate::values::Form;

/// What all ranks share.
pub(crate) struct Shared {
    pub(crate) blocks: Vec<Block>,
    pub(crate) found: Vec<BlockInfo>,
    pub(crate) requested: Vec<Requested>,
    pub(crate) entries: Vec<Entry>,
    /// The values of buffers, by the number of their entry.
    pub(crate) buffers: HashMap<usize, Tensor>,
    pub(crate) loss: LossOf,
    pub(crate) dtype: DType,
    pub(crate) seed: u64,
    pub(crate) unused: Vec<String>,
    /// Of every block, whether its matrices are lent in bf16.
    pub(crate) in_bf16: Vec<bool>,
    /// Of every program: its samples a part, the forms of its flows, and that of its targets.
    pub(crate) programs: HashMap<&'static str, Shape>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shared").field("blocks", &self.found).finish_non_exhaustive()
    }
}

/// The forms of one program.
pub(crate) struct Shape {
    pub(crate) samples: usize,
    pub(crate) forms: Forms,
    pub(crate) targets: Form,
}

/// A block on a rank.
pub(crate) struct Built {
    /// `None` of a block that is built for every call.
    pub(crate) apply: Option<Apply>,
    /// Of what the block requested, in that order.
    pub(crate) slots: Vec<Slot>,
}

impl Built {
    /// Builds it, also where it is built for every call: its constructor must request the same here.
    pub(crate) fn new(shared: &Shared, number: usize, bridge: &mut impl Bridge) -> Result<Self, Error> {
        let device = bridge.device().clone();
        let name = &shared.blocks[number].name;
        let of_candle = |source| Error::Block { block: name.clone(), source };
        let slot = |number: &usize| {
            let entry = &shared.entries[*number];
            match shared.buffers.get(number) {
                Some(tensor) => Ok(Slot::of(tensor.to_device(&device)?)),
                None => Slot::zeros(entry.shape.as_slice(), entry.dtype, (entry.trains(), &device)),
            }
        };
        let requested = &shared.requested[number];
        let slots =
            requested.tensors.iter().map(slot).collect::<candle_core::Result<_>>().map_err(of_candle)?;
        let mut built = Self { apply: None, slots };
        built.apply = Some(built.build(shared, number, &device)?).filter(|_| !shared.found[number].rebuilt);
        for (number, slot) in requested.tensors.iter().zip(&built.slots) {
            if !shared.entries[*number].is_buffer() {
                bridge.take(slot).map_err(of_candle)?;
            }
        }
        Ok(built)
    }

    /// Its closure over its tensors as they are now.
    pub(crate) fn build(&self, shared: &Shared, number: usize, device: &Device) -> Result<Apply, Error> {
        let block = &shared.blocks[number];
        let served = Served::new(&shared.entries, &shared.requested[number], &self.slots);
        served.build((shared.dtype, device), |vb| block.build(vb), &block.name)
    }
}

impl Shared {
    /// The forms of the program that a call is of.
    pub(crate) fn shape(&self, program: &str) -> Result<&Shape, ComputeError> {
        let found = self.programs.get(program);
        found.ok_or_else(|| ComputeError::closure(format!("program `{program}` is not one of these blocks")))
    }

    pub(crate) fn may_be_unused(&self, name: &str) -> bool {
        self.unused.iter().any(|pattern| pattern_matches(pattern, name))
    }
}

impl Shape {
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
