//! A machine by its numbers: what a simulation is charged.
//!
//! Law: a [`Cluster`] is data that was checked when its file was read, by the configuration. Every number
//! can be measured by itself. Every formula that combines them is in this module and says where it comes from. Nothing
//! here knows a plan.
//!
//! | file | idea |
//! |---|---|
//! | `charges` | what a task takes beside those before it |
//! | `collective` | what a collective takes: α–β formulas |
//! | `contention` | what lanes of one GPU take from each other |
//! | `price` | what every op takes by itself |
//! | `reach` | which links a collective takes |
//! | `traffic` | how much of a link collectives take, and when |
//! | `jitter` | by how much a rank is late: a seed and a hash, no state |
//! | `presets` | files of clusters that come with the library, each number with its source |
//!
//! Deliberately absent: topologies beyond two levels, and congestion between jobs.

mod charges;
mod collective;
mod contention;
mod jitter;
mod price;
mod reach;
mod traffic;

#[doc(hidden)]
pub use charges::Charges;
pub use collective::{Algorithm, Links};
pub use contention::Contention;
pub use jitter::Jitter;
pub use price::{Prices, Work};
pub use reach::Reach;

use serde::{Deserialize, Serialize};

use crate::model::{CostHint, Math, Mesh, Strides};
use warpweft_base::id::RankId;

/// Names and files of the clusters that come with the library. A preset is a file like any other; a comment beside each
/// number names its source, and a guess says that it is one.
pub const PRESETS: [(&str, &str); 3] = [
    ("h200x4", include_str!("presets/h200x4.toml")),
    ("h100x8-ib", include_str!("presets/h100x8-ib.toml")),
    ("gb200-nvl72", include_str!("presets/gb200-nvl72.toml")),
];

/// A cluster of equal nodes of equal GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// GPUs of one node: ranks that reach each other over `inside`.
    pub gpus_per_node: u32,
    /// How many of them are ranks, where a job leaves some out; all where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks_per_node: Option<u32>,
    /// One GPU.
    pub gpu: Gpu,
    /// Links between GPUs of a node.
    pub inside: Link,
    /// Links between GPUs of different nodes; a cluster without them is one node.
    pub between: Option<Link>,
    /// How collectives are carried out.
    pub algorithm: Algorithm,
    /// What lanes of one GPU take from each other.
    #[serde(default)]
    pub contention: Contention,
    /// How late ranks are.
    #[serde(default)]
    pub jitter: Jitter,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Device memory, bytes.
    pub memory_bytes: u64,
    /// Bytes per second of device memory, reads and writes together.
    pub hbm_bytes_per_s: f64,
    /// What a kernel takes on the device besides its operations and bytes, after another one, µs: it is
    /// launched, fills the device and drains it. 0 where a cluster does not say.
    #[serde(default)]
    pub kernel_us: f64,
    /// Host time to enqueue one task, µs.
    pub launch_us: f64,
    /// Host time to replay a captured step, µs.
    pub replay_us: f64,
    /// Floating-point operations per second that large matrix products reach.
    pub flops_per_s: Flops,
}

/// Floating-point operations per second, by the type they are computed in.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flops {
    /// In f32.
    pub f32: f64,
    /// In bf16.
    pub bf16: f64,
    /// In fp8.
    pub fp8: f64,
    /// In fp4; the fp8 number where a GPU has no fp4.
    pub fp4: f64,
}

impl Flops {
    /// Those in `math`.
    #[must_use]
    pub const fn of(&self, math: Math) -> f64 {
        match math {
            Math::F32 => self.f32,
            Math::Bf16 => self.bf16,
            Math::Fp8 => self.fp8,
            Math::Fp4 => self.fp4,
        }
    }
}

/// A link from one GPU, one direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// α: µs from the start of a transfer to its first byte.
    pub latency_us: f64,
    /// 1/β: bytes a GPU receives per second.
    pub bytes_per_s: f64,
    /// µs that each message to a partner takes of a GPU's link and host, in exchanges that go to all at once.
    #[serde(default)]
    pub message_us: f64,
}

impl Cluster {
    /// Nanoseconds that a call of these parts takes by itself: their sum. A part takes the longer of its
    /// operations at the device's speed and its bytes at that of its memory (the roofline model: Williams,
    /// Waterman, Patterson, CACM 52(4), 2009), plus its kernels.
    #[must_use]
    pub fn call_ns(&self, cost: &[CostHint]) -> f64 {
        let part = |part: &CostHint| {
            let computed = part.flops as f64 / self.gpu.flops_per_s.of(part.math) * 1e9;
            computed.max(self.memory_ns(part.bytes)) + self.kernels_ns(part.kernels)
        };
        cost.iter().map(part).sum()
    }

    /// Nanoseconds that this many kernels take besides their operations and bytes.
    #[must_use]
    pub fn kernels_ns(&self, kernels: u32) -> f64 {
        f64::from(kernels) * self.gpu.kernel_us * 1e3
    }

    /// Nanoseconds to read or write `bytes` bytes of device memory.
    #[must_use]
    pub fn memory_ns(&self, bytes: u64) -> f64 {
        bytes as f64 / self.gpu.hbm_bytes_per_s * 1e9
    }

    /// How many ranks a full node has.
    #[must_use]
    pub fn ranks_of_node(&self) -> u32 {
        self.ranks_per_node.unwrap_or(u32::MAX).min(self.gpus_per_node).max(1)
    }

    /// How many of `ranks` ranks share a node, and how many nodes they fill.
    #[must_use]
    pub fn nodes(&self, ranks: u32) -> (u32, u32) {
        (ranks.min(self.ranks_of_node()), ranks.div_ceil(self.ranks_of_node()))
    }

    /// How many ranks of a group share a node at most, and over how many nodes it is spread, where ranks fill
    /// node after node. Of all groups of that kind it is the one on the most nodes, and of those the one with
    /// the fewest ranks on one.
    #[must_use]
    pub fn spread(&self, mesh: Mesh, group: Strides) -> (u32, u32) {
        let firsts = mesh.iter().filter(|rank| group.position(*rank) == 0);
        let of = |first: RankId| {
            let (mut most, mut nodes, mut here, mut last) = (0, 0, 0, None);
            for rank in group.members(first) {
                let node = rank.number() / self.ranks_of_node();
                if last.replace(node) != Some(node) {
                    (nodes, here) = (nodes + 1, 0);
                }
                here += 1;
                most = most.max(here);
            }
            (most, nodes)
        };
        let widest =
            firsts.map(of).max_by_key(|(most, nodes): &(u32, u32)| (*nodes, std::cmp::Reverse(*most)));
        widest.unwrap_or((1, 1))
    }
}

/// The largest memory of a GPU, bytes.
#[doc(hidden)]
pub const MOST_MEMORY: u64 = 1 << 60;
