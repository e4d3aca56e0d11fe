//! Reshard after forward: whether planes are kept or gathered again, in backward, across micro-batches, columnwise.

use serde::{Deserialize, Serialize};

/// Where backward finds a weight that forward gathered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backward {
    /// It is gathered again: less memory, twice the traffic.
    #[default]
    Regather,
    /// Its planes are kept from forward to backward.
    Keep,
}

/// Where a micro-batch finds a weight that the one before gathered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AcrossMicroBatches {
    /// It is gathered again.
    #[default]
    Regather,
    /// Its planes are kept from micro-batch to micro-batch.
    Keep,
    /// All planes are kept if the plan then fits `memory.budget`, and gathered again if not; the plan says which.
    Fit,
}

/// When columnwise planes are derived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Columnwise {
    /// From the rowwise planes, right before the use that reads them.
    #[default]
    OnDemand,
    /// Once after the gather, kept as long as the rowwise planes are.
    Keep,
}
