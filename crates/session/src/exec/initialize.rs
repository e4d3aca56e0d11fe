//! First values of a rank's masters.
//!
//! Law: weight by weight, so that what is here at once is the rank's rows of one. Only what does not begin with
//! zeros is written: the arena is reserved zeroed ([`Backend::reserve`]), and with it moments, step count and
//! carried buffers. An initializer knows whole rows of the declared weight: of a rank that has some columns of them it
//! gets the rows a piece at a time, and the rank keeps its columns, and of a fused weight it gets each run of rows by
//! itself; so no value depends on the mesh. Replicas begin
//! with the same masters. This is checked and not assumed: nothing would ever bring them together again.

use super::{ExecError, FirstPlanes, Initializer, Rank};
use crate::checkpoint::block_copies::taken;
use crate::checkpoint::ranks::MasterRows;
use warpweft_backend::Backend;
use warpweft_base::digest::Digest;
use warpweft_base::id::{RankId, WeightId};
use warpweft_format::{Orientation, OwnedPlanes, Shape, dequantize};
use warpweft_plan::layout::WeightLayout;
use warpweft_plan::model::{Block, Group, Placement};

/// Values of whole rows that are here at once where a rank has some columns of them, unless a row has more.
const PIECE: usize = 1 << 18;

/// What a rank tells the others of its masters.
#[derive(Default)]
struct ReportedMasters {
    /// Of all sharded weights of whose shards each replica has all.
    sharded: Digest,
    /// Of those of which each has a slice.
    slices: Digest,
    /// Of those of experts that are sharded by axes of their own.
    experts: Digest,
    /// Of each replicated one.
    replicated: Vec<(WeightId, u64)>,
}

impl<B: Backend> Rank<B> {
    /// Fills the masters of the rank's rows. Called once, before any other call to the rank: moments, step
    /// count and carried buffers are the zeros that were reserved.
    ///
    /// # Errors
    /// What the backend refuses; [`ExecError::Initializer`] where the initializer fails; [`ExecError::Master`] for a
    /// value that is not finite, or not any more when it is rounded for the cast; [`ExecError::ReplicasDiffer`] and
    /// [`ExecError::ReplicatedDiffers`] when ranks that hold the same rows were given other values;
    /// [`ExecError::BasesDiffer`] when ranks were given a frozen weight from different bases.
    pub fn initialize(
        &mut self,
        initializer: &Initializer,
        base: Option<&FirstPlanes>,
    ) -> Result<(), ExecError> {
        let plan = std::sync::Arc::clone(&self.prologue.plan);
        let mut told = ReportedMasters::default();
        for (number, layout) in plan.weights.layouts.iter().enumerate() {
            let weight = WeightId::at(number);
            let given = if layout.is_planes_alone() { self.first_planes(layout, base)? } else { None };
            let sharded = match layout.shard.expert {
                Some(_) => &mut told.experts,
                None => &mut told.sharded,
            };
            if let Some((planes, tensor_scale)) = given {
                for planes in &planes {
                    sharded.add(&planes.data);
                    sharded.add(&planes.scale);
                }
                self.set_values(weight, Vec::new(), &planes, tensor_scale)?;
                continue;
            }
            let master = self.first_master(layout, initializer)?;
            let bytes = bytemuck::cast_slice(&master);
            match layout.placement {
                // Without other copies no rank has the same rows.
                Placement::Sharded if plan.weights.mesh.size(layout.shard.copies()) == 1 => {}
                Placement::Sharded if layout.is_in_slices() => told.slices.add(bytes),
                Placement::Sharded => sharded.add(bytes),
                Placement::Replicated => told.replicated.push((weight, Digest::from_iter([bytes]).short())),
            }
            self.set_values(weight, master, &[], 1.0)?;
            self.write_delayed(weight, None)?;
        }
        self.agree_on_masters(told)
    }

    /// Planes of the rank's rows of a frozen weight, if they are given as planes: to all ranks, with one tensor scale.
    fn first_planes(
        &self,
        layout: &WeightLayout,
        base: Option<&FirstPlanes>,
    ) -> Result<Option<(Vec<OwnedPlanes>, f32)>, ExecError> {
        let given = base.map_or(Ok(None), |base| base(layout, self.id())).map_err(|reason| {
            let (rank, weight) = (self.id(), layout.name.clone());
            ExecError::Initializer { rank, weight, reason }
        })?;
        let own = given.as_ref().map_or(0, |(_, scale)| 1 << u32::BITS | u64::from(scale.to_bits()));
        if let Some(other) = self.other_than(own, Group::World)? {
            let (rank, weight) = (self.id(), layout.name.clone());
            return Err(ExecError::BasesDiffer { weight, rank, other });
        }
        for (planes, scale, orientation) in given.iter().flat_map(|(planes, scale)| {
            planes
                .iter()
                .zip(layout.format.stored_orientations())
                .map(|(planes, side)| (planes, *scale, *side))
        }) {
            let shape = layout.shard.stored();
            let mut values = vec![0.0; shape.elements()];
            dequantize(layout.format, orientation, shape, planes.as_planes(), scale, &mut values)?;
            self.check_finite(layout, orientation, &values)?;
        }
        Ok(given)
    }

    /// The rank's rows of one weight.
    fn first_master(&self, layout: &WeightLayout, initializer: &Initializer) -> Result<Vec<f32>, ExecError> {
        let columns = layout.shard.whole().cols;
        let name = layout.name_at(self.id());
        let fill = |first_row: usize, values: &mut [f32]| {
            let place = MasterRows { weight: &name, first_row, columns };
            initializer(place, values).map_err(|reason| {
                let (rank, weight) = (self.id(), name.clone().into_owned());
                ExecError::Initializer { rank, weight, reason }
            })
        };
        let mut master = vec![0.0; layout.shard.rows_of(self.id()).rows * layout.shard.shape.cols];
        let mut left = master.as_mut_slice();
        for block in layout.shard.blocks_of(self.id()) {
            let (own, others) = left.split_at_mut(block.shape.elements().min(left.len()));
            left = others;
            if block.shape.cols == columns {
                fill(block.first.rows, own)?;
                continue;
            }
            let at_once = (PIECE / columns.max(1)).max(1);
            let mut rows = Vec::new();
            for (piece, own) in own.chunks_mut(at_once * block.shape.cols).enumerate() {
                let shape = Shape { rows: own.len() / block.shape.cols, ..block.shape };
                rows.clear();
                rows.resize(shape.rows * columns, 0.0);
                fill(block.first.rows + piece * at_once, &mut rows)?;
                let first = Shape { rows: 0, ..block.first };
                if let Some(values) = taken(&rows, columns, Block { first, shape }) {
                    own.copy_from_slice(&values);
                }
            }
        }
        self.check_finite(layout, Orientation::Rowwise, &master)?;
        Ok(master)
    }

    /// Values of rows of the rank, from which training can go on: of rows or, columnwise, of columns one after the
    /// other. Padding rows are left out.
    fn check_finite(
        &self,
        layout: &WeightLayout,
        orientation: Orientation,
        values: &[f32],
    ) -> Result<(), ExecError> {
        let (rows, columns) = (layout.shard.rows_of(self.id()).rows, layout.shard.columns_of(self.id()));
        let via = self.prologue.plan.policy.settings.via;
        let place = |at: usize| match orientation {
            Orientation::Rowwise => (at / columns.len(), at % columns.len()),
            Orientation::Columnwise => (at % layout.shard.stored().rows, at / layout.shard.stored().rows),
        };
        let is_bad = |(at, value): &(usize, &f32)| {
            !via.round(layout.format, **value).is_finite() && place(*at).0 < rows
        };
        match values.iter().enumerate().find(is_bad) {
            None => Ok(()),
            Some((at, value)) => {
                let (rank, weight, value) = (self.id(), layout.name.clone(), *value);
                let (row, column) = place(at);
                Err(ExecError::Master {
                    rank,
                    weight,
                    row: layout.shard.row_of(self.id(), row),
                    column: columns.start + column,
                    value,
                })
            }
        }
    }

    /// Checks that all ranks that hold the same rows begin with the same masters. For sharded weights those
    /// are the ranks of other replicas, or with slices of other optimizer instances, for replicated weights all ranks.
    fn agree_on_masters(&self, told: ReportedMasters) -> Result<(), ExecError> {
        let (rank, weights) = (self.id(), &self.prologue.plan.weights);
        let has_experts = weights.layouts.iter().any(|layout| layout.shard.expert.is_some());
        let experts = has_experts.then_some((told.experts, Group::ExpertReplica));
        let others = [(told.sharded, Group::Replicate), (told.slices, Group::Instances)];
        for (digest, copies) in others.into_iter().chain(experts) {
            if weights.mesh.size(copies) > 1
                && let Some(other) = self.other_than(digest.short(), copies)?
            {
                return Err(ExecError::ReplicasDiffer { rank, other });
            }
        }
        // All of them at once, and one by one only where they differ, which every rank sees.
        let mut all = Digest::default();
        told.replicated.iter().for_each(|(_, own)| all.add(&own.to_le_bytes()));
        if self.other_than(all.short(), Group::World)?.is_none() {
            return Ok(());
        }
        for (weight, own) in told.replicated {
            if let Some(other) = self.other_than(own, Group::World)? {
                let weight = weights.layout(weight).name.clone();
                return Err(ExecError::ReplicatedDiffers { weight, rank, other });
            }
        }
        Ok(())
    }

    /// The first rank of the group whose digest differs from this one's.
    fn other_than(&self, own: u64, group: Group) -> Result<Option<RankId>, ExecError> {
        let all = self.world.exchange(self.id(), own)?;
        // A rank that is driven alone, like the simulator's, gets no report of others.
        let differs = |other: &RankId| all.get(other.index()).is_some_and(|told| *told != own);
        Ok(self.prologue.plan.weights.mesh.members(self.id(), group).find(differs))
    }
}
