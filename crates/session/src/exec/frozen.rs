//! Frozen weights on a rank: their planes, and a digest of the base.
//!
//! Laws:
//! - **FW-1** A sharded weight that is frozen is its planes alone, in memory and in plans. The host quantizes it once,
//!   when a session begins or imports values, to the bytes that a prologue would have made of a master, for any number
//!   of ranks. Planes that are given go in as they are. No step changes them.
//! - **FW-2** The digest of a frozen weight is of its format, its shape, its tensor scale and its planes, and not
//!   of how it is cut: whole row tiles are digested with their numbers, and the ranks' digests are added up.

use super::barrier::{Barrier, Work};
use super::stored_state::StoredState;
use super::world::{failed, misfit};
use super::{ExecError, Rank};
use crate::checkpoint::{FrozenDigest, StatePart};
use warpweft_backend::Backend;
use warpweft_base::digest::Digest;
use warpweft_base::id::{RankId, WeightId};
use warpweft_format::{ElementType, Orientation, OwnedPlanes, PlaneKind, PlaneSpec, quantize_shard};
use warpweft_plan::layout::{Content, PlaneRegions, WeightLayout};
use warpweft_plan::model::{Group, Placement};

impl<B: Backend> Rank<B> {
    /// Quantizes the rank's rows of a frozen weight, and writes the planes. Every rank calls it for the same weight.
    pub(super) fn quantize_frozen(&self, weight: WeightId, mut values: Vec<f32>) -> Result<(), ExecError> {
        let plan = &self.prologue.plan;
        let (layout, via) = (plan.weights.layout(weight), plan.policy.settings.via);
        values.resize(layout.stored_elements(), 0.0);
        let over_ranks = |amax: f32| self.largest(amax);
        let (planes, tensor_scale) =
            quantize_shard(layout.format, via, layout.shard.stored(), &values, over_ranks)?;
        self.write_planes(weight, &planes, tensor_scale)
    }

    /// The maximum over the ranks of a replica of what each of them calls with.
    fn largest(&self, amax: f32) -> Result<f32, ExecError> {
        let all = self.world.exchange(self.id(), amax.to_bits().into())?;
        let replica = self.prologue.plan.weights.mesh.members(self.id(), Group::Replica);
        // A rank that is driven alone, like the simulator's, gets no report of others.
        replica.filter_map(|rank| all.get(rank.index())).try_fold(amax, |largest, told| {
            let bits = u32::try_from(*told);
            let bits = bits.map_err(|_| failed(self.id(), misfit("the amax of a frozen weight")))?;
            Ok(largest.max(f32::from_bits(bits)))
        })
    }

    /// The digest of every frozen weight, by weight. Every rank calls it at the same time: the first call after a start
    /// or an import reads all planes, later ones nothing.
    pub(super) fn frozen_digests(&mut self) -> Result<Vec<Option<FrozenDigest>>, ExecError> {
        if let Some(known) = &self.frozen {
            return Ok(known.clone());
        }
        let barrier = Barrier::new(&self.world, self.id(), Work::DigestsFrozen);
        let weights = &self.prologue.plan.weights;
        let digests = weights.layouts.iter().enumerate().map(|(number, layout)| {
            layout.frozen.then(|| self.frozen_digest(&barrier, WeightId::at(number))).transpose()
        });
        let digests = digests.collect::<Result<Vec<_>, ExecError>>()?;
        drop(barrier);
        self.frozen = Some(digests.clone());
        Ok(digests)
    }

    /// The digest that a weight would have if it were frozen. Every rank calls it for the same weight.
    pub(super) fn digest_of_planes(&self, weight: WeightId) -> Result<FrozenDigest, ExecError> {
        self.frozen_digest(&Barrier::new(&self.world, self.id(), Work::DigestsFrozen), weight)
    }

    fn frozen_digest(&self, barrier: &Barrier<'_>, weight: WeightId) -> Result<FrozenDigest, ExecError> {
        let layout = self.prologue.plan.weights.layout(weight);
        let has_all_columns = layout.shard.shape.cols == layout.shard.whole().cols;
        let own = match has_all_columns {
            true => self.sum_of_tiles(weight, &|| barrier.alive())?,
            false => self.sum_of_joined_tiles(weight)?,
        };
        let told = barrier.agree(Ok(own))?;
        let told = told.map_err(|(other, reason)| ExecError::World {
            rank: self.id(),
            reason: format!("{other} does not digest its frozen weights: {reason}"),
        })?;
        // Those of the first replica have all rows, each once.
        let owners = layout.shard.owners() as usize;
        let sum = told.iter().take(owners).fold(0, |sum: u64, told| sum.wrapping_add(*told));
        let (format, shape) = (layout.format.to_string(), layout.shard.whole().to_string());
        let scale = self.tensor_scale(weight)?.to_bits().to_le_bytes();
        let parts = [format.as_bytes(), shape.as_bytes(), &scale, &sum.to_le_bytes()];
        Ok(FrozenDigest::from_number(Digest::from_iter(parts).short()))
    }

    /// The sum of the digests of the row tiles of a frozen weight that the rank has, with its columns alone.
    pub(super) fn sum_of_tiles(
        &self,
        weight: WeightId,
        alive: &dyn Fn() -> Result<(), ExecError>,
    ) -> Result<u64, ExecError> {
        let layout = self.prologue.plan.weights.layout(weight);
        let mut sum: u64 = 0;
        let mut add = |orientation: Orientation, spec: &PlaneSpec, bytes: &[u8]| {
            for (tile, bytes) in tiles(layout, self.id(), spec, bytes) {
                alive()?;
                sum = sum.wrapping_add(digest_of_tile(orientation, spec.kind, tile, bytes));
            }
            Ok::<(), ExecError>(())
        };
        if layout.placement == Placement::Replicated {
            let spec = PlaneSpec {
                kind: PlaneKind::Data,
                rows: layout.shard.shape.rows,
                cols: layout.shard.shape.cols,
                element: ElementType::F32,
            };
            let values = self.rows(weight, StatePart::Master)?;
            add(Orientation::Rowwise, &spec, bytemuck::cast_slice(&values))?;
            return Ok(sum);
        }
        let planes = self.planes(weight)?;
        for (orientation, planes) in layout.format.stored_orientations().iter().zip(&planes) {
            for spec in layout.shard_planes(*orientation) {
                add(*orientation, &spec, planes.of(spec.kind))?;
            }
        }
        Ok(sum)
    }

    /// Writes the planes of a rank's rows as they are.
    pub(super) fn write_planes(
        &self,
        weight: WeightId,
        planes: &[OwnedPlanes],
        tensor_scale: f32,
    ) -> Result<(), ExecError> {
        let layout = self.prologue.plan.weights.layout(weight);
        for (orientation, planes) in layout.format.stored_orientations().iter().zip(planes) {
            let PlaneRegions { data, scale } = self.regions_of(weight, *orientation)?;
            self.backend.upload(&self.memory, data, &planes.data)?;
            self.backend.upload(&self.memory, scale, &planes.scale)?;
        }
        if let Some(place) = self.own_values(Content::TensorScale(layout.bucket), weight, 1) {
            self.backend.upload(&self.memory, place, &tensor_scale.to_le_bytes())?;
        }
        Ok(())
    }
}

/// The digest of a row tile of a plane, which has this number in the whole weight.
pub(super) fn digest_of_tile(orientation: Orientation, kind: PlaneKind, tile: usize, bytes: &[u8]) -> u64 {
    let place = [orientation as u8, kind as u8];
    Digest::from_iter([&place[..], &(tile as u64).to_le_bytes(), bytes]).short()
}

/// The row tiles of a plane of a rank's shard that have real rows, with their numbers in the whole weight.
fn tiles<'a>(
    layout: &WeightLayout,
    rank: RankId,
    spec: &PlaneSpec,
    plane: &'a [u8],
) -> impl Iterator<Item = (usize, &'a [u8])> {
    let tile = match layout.placement {
        Placement::Sharded => layout.format.row_tile(),
        Placement::Replicated => 1,
    };
    let stored = layout.shard.rows_per_rank / tile;
    let bytes = spec.bytes().checked_div(stored).unwrap_or(0).max(1);
    let numbers = layout.shard.blocks_of(rank).flat_map(move |block| {
        let first = block.first.rows / tile;
        first..first + block.shape.rows.div_ceil(tile)
    });
    numbers.zip(plane.chunks(bytes))
}
