//! Optimizer state: how Adam decays weights, in what types moments and master weights are kept, and over which ranks
//! they are sharded.

use serde::{Deserialize, Serialize};

/// How weight decay enters Adam.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AdamMode {
    /// Decoupled (Loshchilov and Hutter, 2019): λ·p is added to the update, past the moments.
    #[default]
    AdamW,
    /// L2 (Kingma and Ba, 2015): λ·p is added to the gradient, so it passes through the moments.
    Adam,
}

/// How the two Adam moments are stored. The arithmetic is f32 either way. In bf16 a decay above 0.996 is refused:
/// what a moment changes by in a step would be rounded away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moments {
    /// As f32: 8 bytes per element for both.
    #[default]
    F32,
    /// Rounded to bfloat16, to nearest even, after every step: 4 bytes per element for both.
    Bf16,
}

/// How the masters of sharded weights are stored. The arithmetic is f32 either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Masters {
    /// As f32, beside the weight's shard.
    #[default]
    F32,
    /// As the bf16 shard and the 16 bits it lacks: 4 bytes per element for weight and master, not 6.
    /// Every sharded weight must be bf16 then. The shard is the nearest bf16 with ties away from
    /// zero, where a cast rounds ties to even. Replicated weights keep f32 masters.
    Bf16Remainder,
}

/// Over which ranks masters and optimizer state of sharded weights are sharded, where a mesh has several replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerShard {
    /// Over those of a replica, like the weight: every replica keeps all of it.
    #[default]
    DpShard,
    /// Over the replicas too: a rank keeps and updates some rows of its part, and the next step gathers what it reads
    /// of the part over the replicas.
    Replicas,
}

impl OptimizerShard {
    /// Whether every replica keeps all of it; a plan then leaves the choice out.
    #[must_use]
    pub const fn is_dp_shard(&self) -> bool {
        matches!(self, Self::DpShard)
    }
}
