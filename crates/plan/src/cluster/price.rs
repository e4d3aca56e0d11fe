//! The price of a task by itself.
//!
//! Law: an op costs what it moves ([`Op::moves`]) and the cluster charges for that: a collective what its links take,
//! a local op what memory takes, and its kernels. Nothing here names an op. No price depends on the rank. Planner and
//! simulator both ask here, so a forecast and a simulation differ only by what they do with prices.

use std::collections::BTreeMap;

use super::{Cluster, Links, Reach};
use crate::layout::{SizesOf, Slot, Weights};
use crate::model::{Call, Group, Mesh, Strides};
use crate::op::{Division, Moves, Op};

/// Longest price, some 30 years: sums of prices stay numbers.
const LONGEST: f64 = 1e18;

/// What ops refer to.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// Calls, in the order of their ids.
    pub calls: &'a [Call],
    /// Slots, in the order of their ids; their places do not matter.
    pub slots: &'a [Slot],
    /// Weights, buckets, mesh.
    pub weights: &'a Weights,
}

/// The prices of one cluster for a mesh of ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Prices {
    cluster: Cluster,
    mesh: Mesh,
    links: BTreeMap<Strides, Links>,
}

impl Prices {
    /// For the ranks of `mesh`; `None` when they need more than one node of a cluster without links between nodes.
    #[must_use]
    pub fn new(cluster: &Cluster, mesh: Mesh) -> Option<Self> {
        let links = |strides| Links::new(cluster, mesh, strides).map(|links| (strides, links));
        let links = mesh.groups().map(|group| links(mesh.strides(group))).collect::<Option<_>>()?;
        Some(Self { cluster: cluster.clone(), mesh, links })
    }

    fn links(&self, group: Group) -> Option<&Links> {
        self.links.get(&self.mesh.strides(group))
    }

    /// Which links an op takes; `None` for one that is no collective.
    #[must_use]
    pub fn reach(&self, op: &Op) -> Option<Reach> {
        op.group().map(|group| self.reach_of(group))
    }

    /// Which links the collectives of a group take.
    #[must_use]
    pub fn reach_of(&self, group: Group) -> Reach {
        self.links(group).map_or(Reach::Inside, Links::reach)
    }

    /// The cluster whose prices these are.
    #[must_use]
    pub const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Nanoseconds of an op by itself; `None` for one that names a call, weight or slot that does not exist.
    #[must_use]
    pub fn of(&self, work: &Work<'_>, op: &Op) -> Option<f64> {
        self.uncapped(work, op).map(|nanoseconds| nanoseconds.min(LONGEST))
    }

    fn uncapped(&self, work: &Work<'_>, op: &Op) -> Option<f64> {
        let (cluster, weights) = (&self.cluster, work.weights);
        let sizes = SizesOf { weights, slots: work.slots, bytes: |slot: &Slot| slot.region.bytes };
        let moves = op.moves(&sizes)?;
        match (&moves, op.group()) {
            (Moves::Call(call), _) => Some(cluster.call_ns(&work.calls.get(call.index())?.cost)),
            (Moves::Memory { bytes, kernels }, _) => {
                let moved = cluster.memory_ns(*bytes as u64);
                Some((0..*kernels).fold(moved, |sum, _| sum + cluster.kernels_ns(1)))
            }
            // What a collective waits for is in the link's latency.
            (_, Some(group)) => Some(collective(self.links(group)?, weights.mesh.size(group), &moves)),
            (_, None) => None,
        }
    }
}

/// Nanoseconds of what that many ranks of a group give each other.
fn collective(links: &Links, ranks: u32, moves: &Moves) -> f64 {
    // What a gather takes of `own` bytes of every rank of a group, and an exchange of as many for each.
    let of_all = |own: usize| (own as u64).saturating_mul(u64::from(ranks));
    let gathered = |own: usize| links.gather_ns(of_all(own));
    let exchanged = |own: usize| links.exchange_ns(of_all(own));
    match moves {
        Moves::Call(_) | Moves::Memory { .. } => 0.0,
        Moves::Gathered(own) => gathered(*own),
        Moves::Exchanged(own) => exchanged(*own),
        Moves::Filled { most, fill } => exchanged(most.saturating_mul(usize::from(*fill)).div_ceil(100)),
        // Slices go to those who combine them and come back, or all goes to all.
        Moves::Combined(values) => {
            let sizes = values.iter().copied();
            let division = Division::of(sizes.clone(), ranks);
            if division.is_in_slices() {
                let slices = division.combined(sizes);
                exchanged(slices) + gathered(slices)
            } else {
                gathered(sizes.fold(0, usize::saturating_add))
            }
        }
    }
}
