//! What a task takes by itself.
//!
//! Law: an op costs what its accesses say ([`Op::accesses`]) and the cluster charges for it. Bytes of local
//! ops are those of their slots: read or written once, updated twice. Some ops touch a known part of a slot
//! and cost only that: padding that is zeroed, the plane of a shard that a cast writes and the one that
//! scales go to, gathered planes that are made whole or read together with the rank's own shard, and one slice
//! of its own gradient. Bytes of collectives are those of the parts that ranks exchange, alignment left out. No
//! price depends on the rank. A local op also costs one kernel. Planner and simulator both ask here, so a
//! forecast and a simulation differ only by what they do with prices.

use std::collections::{HashMap, HashSet};

use super::{Cluster, Links, Reach};
use crate::layout::{Slot, Weights};
use crate::model::{Access, Call, ExchangeKind, Group, Mesh};
use crate::op::{Division, Op, SumTarget};
use warpweft_base::id::SlotId;
use warpweft_format::{ElementType, PlaneSpec};

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
    shard: Links,
    replicate: Links,
    world: Links,
}

impl Prices {
    /// For the ranks of `mesh`; `None` when they need more than one node of a cluster without links between nodes.
    #[must_use]
    pub fn new(cluster: &Cluster, mesh: Mesh) -> Option<Self> {
        Some(Self {
            cluster: cluster.clone(),
            shard: Links::new(cluster, mesh, Group::Shard)?,
            replicate: Links::new(cluster, mesh, Group::Replicate)?,
            world: Links::new(cluster, mesh, Group::World)?,
        })
    }

    const fn links(&self, group: Group) -> &Links {
        match group {
            Group::Shard => &self.shard,
            Group::Replicate => &self.replicate,
            Group::World => &self.world,
        }
    }

    /// Which links an op takes; `None` for one that is no collective.
    #[must_use]
    pub fn reach(&self, op: &Op) -> Option<Reach> {
        op.group().map(|group| self.reach_of(group))
    }

    /// Which links the collectives of a group take.
    #[must_use]
    pub fn reach_of(&self, group: Group) -> Reach {
        self.links(group).reach()
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
        // A call says how many kernels it has, and what a collective waits for is in the link's latency.
        let own = if op.is_collective() || matches!(op, Op::Compute { .. }) { 0 } else { 1 };
        Some(self.moved(work, op)? + self.cluster.kernels_ns(own))
    }

    /// The same without the kernel of a local op.
    fn moved(&self, work: &Work<'_>, op: &Op) -> Option<f64> {
        let cluster = &self.cluster;
        let of_all = |group: Group, own: u64| own.saturating_mul(u64::from(work.weights.mesh.size(group)));
        // What a gather takes of `own` bytes of every rank of a group, and an exchange of as many for each.
        let gathered = |group: Group, own: u64| self.links(group).gather_ns(of_all(group, own));
        let exchanged = |group: Group, own: u64| self.links(group).exchange_ns(of_all(group, own));
        // Values that ranks combine: slices go to those who do and come back, or all goes to all.
        let combined = |group: Group, values: &[usize]| {
            let sizes = values.iter().copied();
            let division = Division::of(sizes.clone(), work.weights.mesh.size(group));
            if division.is_in_slices() {
                let slices = division.combined(sizes) as u64;
                exchanged(group, slices) + gathered(group, slices)
            } else {
                gathered(group, sizes.fold(0, usize::saturating_add) as u64)
            }
        };
        let bytes = |slot: SlotId| Some(work.slots.get(slot.index())?.region.bytes as u64);
        Some(match op {
            Op::Compute { call, .. } => cluster.call_ns(&work.calls.get(call.index())?.cost),
            Op::AllGather { parts } => {
                let mut own = 0u64;
                for part in parts {
                    let layout = work.weights.layouts.get(part.weight.index())?;
                    own = own.saturating_add(layout.shard_bytes(part.orientation) as u64);
                }
                gathered(Group::Shard, own)
            }
            Op::GatherChunk { chunk, .. } => {
                gathered(Group::Shard, chunk.end.saturating_sub(chunk.begin) as u64)
            }
            // Only the library of collectives adds on the way.
            Op::ReduceScatter { element, parts } | Op::ExchangeGradient { element, parts } => {
                let mut own = 0u64;
                for part in parts {
                    let elements = work.weights.layouts.get(part.weight.index())?.stored_elements();
                    own = own.saturating_add((elements * element.bytes()) as u64);
                }
                match op {
                    Op::ReduceScatter { .. } => gathered(Group::Shard, own),
                    _ => exchanged(Group::Shard, own),
                }
            }
            // One slice of the rank's own gradient is read.
            Op::SumGradient { element, parts } => {
                let mut touched = 0u64;
                for part in parts {
                    let elements = work.weights.layouts.get(part.weight.index())?.stored_elements();
                    let landed = part.landed.map_or(Some(0), bytes)?;
                    let times = if part.target == SumTarget::More { 2 } else { 1 };
                    let own = (elements * element.bytes()) as u64;
                    touched = touched.saturating_add(own).saturating_add(landed);
                    touched = touched.saturating_add(bytes(part.into)?.saturating_mul(times));
                }
                cluster.memory_ns(touched)
            }
            Op::GatherRecords { from, .. } => gathered(Group::World, bytes(*from)?),
            Op::ExchangeBuffer { kind, group, from, .. } => {
                let ranks = work.weights.mesh.size(*group);
                let given = bytes(*from)? as usize;
                let to_each = kind.given_to_each(given, ranks) as u64;
                match kind {
                    ExchangeKind::AllToAll => exchanged(*group, to_each),
                    ExchangeKind::AllGather => gathered(*group, to_each),
                    ExchangeKind::Sum | ExchangeKind::Max => combined(*group, &[given]),
                }
            }
            Op::AllReduce { group, pairs, .. } => {
                let each: Option<Vec<_>> =
                    pairs.iter().map(|(from, _)| Some(bytes(*from)? as usize)).collect();
                combined(*group, &each?)
            }
            // The rank's own shards are read and written, and what no rank sends is written.
            Op::Assemble { parts } => {
                let shards = work.weights.mesh.size(Group::Shard) as usize;
                let mut touched = 0usize;
                for part in parts {
                    let layout = work.weights.layouts.get(part.weight.index())?;
                    let own = layout.shard_bytes(part.orientation);
                    let sent = own.saturating_mul(shards);
                    let unsent = layout.gathered_bytes(part.orientation).saturating_sub(sent);
                    touched = touched.saturating_add(own.saturating_mul(2)).saturating_add(unsent);
                }
                cluster.memory_ns(touched as u64)
            }
            // Of what arrived and of the rank's own shard together, the rows of all shards are read, as they
            // travel.
            Op::Dequantize { parts } => {
                let mut touched = 0u64;
                let owns: HashSet<SlotId> = parts.iter().filter_map(|part| part.own).collect();
                let beside: HashMap<SlotId, _> =
                    parts.iter().filter(|part| part.own.is_some()).map(|part| (part.from, part)).collect();
                for (slot, _) in op.accesses() {
                    let all = bytes(slot)?;
                    touched = touched.saturating_add(match beside.get(&slot) {
                        Some(part) => {
                            let layout = work.weights.layouts.get(part.weight.index())?;
                            let shards = u64::from(work.weights.mesh.size(Group::Shard));
                            (layout.shard_bytes(part.orientation) as u64).saturating_mul(shards)
                        }
                        None if owns.contains(&slot) => 0,
                        None => all,
                    });
                }
                cluster.memory_ns(touched)
            }
            // Only the rows beyond the weight's own are touched.
            Op::ZeroPadding { weight, gradient } => {
                let shard = work.weights.layouts.get(weight.index())?.shard;
                let rows = shard.padded_rows().saturating_sub(shard.shape.rows);
                let content = work.slots.get(gradient.index())?.content;
                let element = content.gradient_element().map_or(0, ElementType::bytes);
                cluster.memory_ns(rows.saturating_mul(shard.shape.cols * element) as u64)
            }
            // Each writes one plane of every shard: its data or its scales.
            Op::PartialCast { shards, .. } | Op::FusedScale { shards, .. } => {
                let plane = usize::from(matches!(op, Op::FusedScale { .. }));
                let mut touched = 0u64;
                let of_shards: HashSet<SlotId> = shards.iter().map(|shard| shard.slot).collect();
                for (slot, _) in op.accesses() {
                    if !of_shards.contains(&slot) {
                        touched = touched.saturating_add(bytes(slot)?);
                    }
                }
                for shard in shards {
                    let planes =
                        work.weights.layouts.get(shard.weight.index())?.shard_planes(shard.orientation);
                    let written = planes.get(plane).map_or(0, PlaneSpec::bytes);
                    touched = touched.saturating_add(written as u64);
                }
                cluster.memory_ns(touched)
            }
            Op::ExchangeRows { weights, .. } => {
                let first = work.weights.layouts.get(weights.first()?.index())?;
                exchanged(Group::Shard, (first.stored_elements() * size_of::<f32>()) as u64)
            }
            // What the rule leaves is read once more, by another kernel. Its own arithmetic nobody knows.
            Op::Update { states, transformed, .. } => {
                let mut touched = transformed.map_or(Some(0), bytes)?;
                for state in states {
                    for slot in state.kept.iter().chain([&state.master]) {
                        touched = touched.saturating_add(bytes(*slot)?.saturating_mul(3));
                    }
                    touched = touched.saturating_add(bytes(state.main_grad)?);
                }
                cluster.memory_ns(touched) + cluster.kernels_ns(1)
            }
            _ => {
                let mut touched = 0u64;
                for (slot, access) in op.accesses() {
                    let times = if access == Access::Update { 2 } else { 1 };
                    touched = touched.saturating_add(bytes(slot)?.saturating_mul(times));
                }
                cluster.memory_ns(touched)
            }
        })
    }
}
