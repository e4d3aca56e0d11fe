//! One compute call: what it consumes, what it produces, what it costs.
//!
//! Law: a call is plain data and names weights and buffers by id. Its uses stand in the order in which it
//! consumes them. Phase and cost are hints; no plan and no number depends on them. Whether it is dynamic
//! decides nothing but where the capture of a step is cut.

use serde::{Deserialize, Serialize};

use super::cost::CostHint;
use crate::model::{BufferAccess, Collective};
use warpweft_base::id::{MicroBatchId, WeightId};
use warpweft_format::{ElementType, Orientation};

/// In what shape a call wants to read a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Form {
    /// The quantized planes themselves, padded as a GEMM wants them; of whole blocks, the last of which may
    /// end in codes of zeros ([`Format::whole_blocks`](warpweft_format::Format::whole_blocks)).
    Planes,
    /// Dequantized to f32: `[rows, cols]` rowwise, its transpose `[cols, rows]` columnwise.
    Dense,
    /// Dequantized to bfloat16, nearest even, laid out as [`Form::Dense`]: what a BF16 product reads where a
    /// device has no product of the format's own. A bf16 weight is read as it lies. Sharded weights only.
    DenseBf16,
}

impl Form {
    /// The element type of dense values; `None` for planes.
    #[must_use]
    pub const fn values(self) -> Option<ElementType> {
        match self {
            Self::Planes => None,
            Self::Dense => Some(ElementType::F32),
            Self::DenseBf16 => Some(ElementType::Bf16),
        }
    }
}

/// One consumption event of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Use {
    /// Which weight.
    pub weight: WeightId,
    /// Rowwise as stored, or columnwise as backward wants it.
    pub orientation: Orientation,
    /// Planes or dense.
    pub form: Form,
    /// Whether the planes are kept for it; as the weight says, else the configuration, when not set.
    pub reuse: Option<Reuse>,
}

/// Whether a use reads planes that an earlier use of the step gathered, or its own gather's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reuse {
    /// It has its own gather, unless the planes are still there by themselves: less memory, more traffic.
    Regather,
    /// The planes are kept from the use before to this one.
    Keep,
}

/// One gradient that a call writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Gradient {
    /// Of which weight.
    pub weight: WeightId,
    /// In what the call writes it, [`ElementType::F32`] or [`ElementType::Bf16`]. What was written in bf16 is
    /// reduced in bf16 as it lies, or rounded to MXFP8 where gradients travel so: there are no more bits to send.
    pub element: ElementType,
}

/// Which part of the step a call belongs to. A label for people and tools: no part of planning, running or
/// reporting reads it. What the configuration calls backward is a second use of a weight in its micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Phase {
    /// Activations.
    Forward,
    /// Gradients.
    Backward,
}

/// One compute call of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Call {
    /// Unique name within the program.
    pub name: String,
    /// The repetition this call belongs to; the first in a declaration.
    pub micro_batch: MicroBatchId,
    /// Forward or backward.
    pub phase: Phase,
    /// Weights read, in the order the call consumes them.
    pub uses: Vec<Use>,
    /// Weights whose full gradient `[rows, cols]` the call overwrites, each once; the scheduler reduces
    /// and accumulates every such contribution, in f32.
    pub gradients: Vec<Gradient>,
    /// Buffers accessed.
    pub buffers: Vec<BufferAccess>,
    /// What the call costs, in parts that add up.
    pub cost: Vec<CostHint>,
    /// Is it issued anew in every step, also where steps are captured? For a closure that decides on the host
    /// what it launches, such as shapes that differ from step to step.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dynamic: bool,
    /// What ranks give each other in the call's place: no closure runs then, and the call accesses the two buffers of
    /// the collective and nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collective: Option<Collective>,
}

impl Call {
    /// The element type in which the call writes its gradient of `weight`; `None` if it writes none.
    #[must_use]
    pub fn gradient(&self, weight: WeightId) -> Option<ElementType> {
        self.gradients.iter().find(|gradient| gradient.weight == weight).map(|gradient| gradient.element)
    }
}
