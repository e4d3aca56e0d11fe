//! All weights of a session, grouped into buckets.
//!
//! Law: every weight is in exactly one bucket. A bucket has one format, one placement, and either weights that train or
//! weights that are frozen; experts are not among others where they have axes of their own. Weights of a scale group
//! are next to one another in it, so their amaxes are too. The grouping follows from the declaration alone, so it is
//! the same on every rank and for every program of a session.

use std::collections::HashMap;
use std::ops::Range;

use serde::Serialize;

use super::expert_number::ExpertNumber;
use super::state::{Delayed, StateLayout};
use super::weight::WeightLayout;
use crate::model::{Group, Mesh, Placement, ShardLayout, WeightSpec};
use crate::policy::Masters;
use warpweft_base::id::{BucketId, WeightId};
use warpweft_format::{Format, Fp8Tensor, Orientation, Shape};

/// A set of weights of one format and placement that either all train or are all frozen.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Bucket {
    /// Format of all its weights.
    pub format: Format,
    /// Placement of all its weights.
    pub placement: Placement,
    /// Whether its weights stay as they are. No plan quantizes it then.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub frozen: bool,
    /// Whether its weights are those of experts that are sharded by axes of their own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub expert: bool,
    /// The weights, in id order; those of a scale group follow the first of them.
    pub weights: Vec<WeightId>,
}

impl Bucket {
    /// Whether its quantized planes have scales, so that amax and scale precede the cast.
    #[must_use]
    pub fn has_scales(&self) -> bool {
        !matches!(self.format, Format::F32 | Format::Bf16)
    }

    /// Whether its weights are their quantized planes alone: [`Placement::is_planes_alone`].
    #[must_use]
    pub const fn is_planes_alone(&self) -> bool {
        self.placement.is_planes_alone(self.frozen)
    }
}

/// Weights grouped into buckets, shared by all programs of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Weights {
    /// Layout of every weight, in id order.
    pub layouts: Vec<WeightLayout>,
    /// Buckets, in order of their first weight.
    pub buckets: Vec<Bucket>,
    /// The ranks.
    pub mesh: Mesh,
    /// How optimizer state is laid out in memory.
    pub state: StateLayout,
}

impl Weights {
    /// One bucket for every format and placement that occurs, and one more where some of its weights are
    /// frozen. Optimizer state is in f32.
    #[must_use]
    pub fn new(specs: &[WeightSpec], mesh: Mesh) -> Self {
        let state = StateLayout::default();
        let mut weights = Self { layouts: Vec::new(), buckets: Vec::new(), mesh, state };
        for (number, spec) in specs.iter().enumerate() {
            let shard = ShardLayout::new(spec, mesh);
            let expert = shard.expert.is_some();
            let same = |bucket: &Bucket| {
                let kind = (bucket.format, bucket.placement, bucket.frozen, bucket.expert);
                kind == (spec.format, spec.placement, spec.frozen, expert)
            };
            let bucket = weights.buckets.iter().position(same).unwrap_or_else(|| {
                weights.buckets.push(Bucket {
                    format: spec.format,
                    placement: spec.placement,
                    frozen: spec.frozen,
                    expert,
                    weights: Vec::new(),
                });
                weights.buckets.len() - 1
            });
            weights.layouts.push(WeightLayout {
                name: spec.name.clone(),
                format: spec.format,
                placement: spec.placement,
                shard,
                bucket: BucketId::at(bucket),
                position: weights.buckets[bucket].weights.len(),
                reuse: spec.reuse,
                group: spec.group,
                parameters: spec.parameters,
                frozen: spec.frozen,
                scale_group: spec.scale_group.clone(),
                expert: None,
            });
            weights.buckets[bucket].weights.push(WeightId::at(number));
        }
        weights.join_scale_groups();
        weights.number_experts();
        weights
    }

    /// Counts the experts of a rank: weights whose names differ in the expert's number alone.
    fn number_experts(&mut self) {
        let mut counts: HashMap<(String, String), u32> = HashMap::new();
        let place = |layout: &WeightLayout| {
            layout.shard.expert?;
            let place = ExpertNumber::in_name(&layout.name)?;
            Some((place, place.around(&layout.name)))
        };
        let places: Vec<_> = self.layouts.iter().map(place).collect();
        for (_, around) in places.iter().flatten() {
            *counts.entry(around.clone()).or_default() += 1;
        }
        for (layout, (place, around)) in
            self.layouts.iter_mut().zip(places).filter_map(|(layout, place)| Some((layout, place?)))
        {
            let of_rank = counts.get(&around).copied().unwrap_or(1);
            layout.expert = (place.number < of_rank).then_some(place.among(of_rank));
        }
    }

    /// Moves weights of a scale group to the first of them, where their format has a scale of the tensor.
    fn join_scale_groups(&mut self) {
        for bucket in self.buckets.iter_mut().filter(|bucket| bucket.format.needs_tensor_amax()) {
            let mut firsts: HashMap<&str, usize> = HashMap::new();
            let first = |weight: &WeightId| {
                let WeightLayout { position, scale_group, .. } = &self.layouts[weight.index()];
                match scale_group {
                    Some(group) => (*firsts.entry(group.as_str()).or_insert(*position), *position),
                    None => (*position, *position),
                }
            };
            let mut ordered: Vec<_> = bucket.weights.iter().map(first).zip(&bucket.weights).collect();
            ordered.sort_unstable();
            bucket.weights = ordered.into_iter().map(|(_, weight)| *weight).collect();
            for (position, weight) in bucket.weights.iter().enumerate() {
                self.layouts[weight.index()].position = position;
            }
        }
    }

    /// The positions in its bucket of the weights that share a scale of the tensor with one: its scale group,
    /// or itself alone.
    ///
    /// # Panics
    /// When the id belongs to another model.
    #[must_use]
    pub fn scaled_with(&self, weight: WeightId) -> Range<usize> {
        let WeightLayout { position, scale_group, format, bucket, .. } = self.layout(weight);
        let all = &self.bucket(*bucket).weights;
        let is_alike = |other: &&WeightId| {
            let is_grouped = scale_group.is_some() && format.needs_tensor_amax();
            is_grouped && self.layout(**other).scale_group == *scale_group
        };
        let (before, after) = all.split_at((*position).min(all.len()));
        let before = before.iter().rev().take_while(is_alike).count();
        let after = after.iter().skip(1).take_while(is_alike).count();
        position - before..position + 1 + after
    }

    /// The same weights with optimizer state laid out as `state` says.
    #[must_use]
    pub fn with_state(self, state: StateLayout) -> Self {
        let mut all = Self { state, ..self };
        if state.shard.is_dp_shard() {
            return all;
        }
        for layout in &mut all.layouts {
            // What nobody updates is gathered from the rank's own replica alone.
            if layout.placement == Placement::Sharded && !layout.frozen {
                let replicas = all.mesh.size(layout.shard.slicers(all.mesh));
                layout.shard = layout.shard.over_replicas(replicas, layout.format.row_tile());
            }
        }
        all
    }

    /// How many optimizer instances keep the state of weights that are in slices; 1 where none is.
    #[must_use]
    pub fn instances(&self) -> u32 {
        if self.layouts.iter().any(WeightLayout::is_in_slices) { self.mesh.instances() } else { 1 }
    }

    /// Ranks that have all rows of a bucket's weights together: what holds of a whole tensor is taken over them.
    /// Where replicas have slices of any such weight these are those of all replicas, and of an expert of all its
    /// copies. One optimizer instance of several has all rows too, and would need a group for a few bytes.
    #[must_use]
    pub fn all_rows(&self, bucket: BucketId) -> Group {
        let experts = self.bucket(bucket).expert;
        let of_kind = |layout: &&WeightLayout| layout.shard.expert.is_some() == experts;
        let in_slices = self.layouts.iter().filter(of_kind).any(WeightLayout::is_in_slices);
        match (experts, in_slices) {
            (true, false) => Group::ExpertShard,
            (true, true) => Group::ExpertRows,
            (false, false) => self.mesh.replica_group(),
            (false, true) => Group::World,
        }
    }

    /// The layout of one weight.
    ///
    /// # Panics
    /// When the id belongs to another model.
    #[must_use]
    pub fn layout(&self, weight: WeightId) -> &WeightLayout {
        &self.layouts[weight.index()]
    }

    /// One bucket.
    ///
    /// # Panics
    /// When the id belongs to another model.
    #[must_use]
    pub fn bucket(&self, bucket: BucketId) -> &Bucket {
        &self.buckets[bucket.index()]
    }

    /// Every bucket with its id.
    pub fn entries(&self) -> impl Iterator<Item = (BucketId, &Bucket)> {
        self.buckets.iter().enumerate().map(|(position, bucket)| (BucketId::at(position), bucket))
    }

    /// `count` of every weight of a bucket and every stored orientation, in the order in which
    /// block amaxes and encode factors are packed.
    pub fn block_sizes(
        &self,
        bucket: BucketId,
        count: fn(Format, Orientation, Shape) -> usize,
    ) -> impl Iterator<Item = usize> {
        self.bucket(bucket).weights.iter().flat_map(move |weight| {
            let layout = self.layout(*weight);
            layout
                .format
                .stored_orientations()
                .iter()
                .map(move |orientation| count(layout.format, *orientation, layout.shard.stored()))
        })
    }

    /// Whether the bucket's shards are the upper halves of its masters. It then has no f32 masters, nothing
    /// is cast, and its shards are always at the masters' version. A frozen bucket has no masters to split.
    ///
    /// # Panics
    /// When the id belongs to another model.
    #[must_use]
    pub fn splits_masters(&self, bucket: BucketId) -> bool {
        let members = self.bucket(bucket);
        self.state.masters == Masters::Bf16Remainder
            && !members.frozen
            && members.placement == Placement::Sharded
            && members.format == Format::Bf16
    }

    /// Whether the pass that rewrites the bucket's masters casts them too: each block of a master says by itself how
    /// ([`Format::casts_by_blocks`]). Where there are scales, one pass must have all masters.
    ///
    /// # Panics
    /// When the id belongs to another model.
    #[must_use]
    pub fn casts_in_update(&self, bucket: BucketId) -> bool {
        let members = self.bucket(bucket);
        let by_blocks = members.format.casts_by_blocks() && self.is_quantized_after_adam(bucket);
        by_blocks && (!members.has_scales() || self.is_updated_at_once(bucket))
    }

    /// Whether the pass that rewrites the bucket's masters takes their amaxes too: it casts nothing, since scales need
    /// the whole tensor, but one pass has all masters, and they are quantized in one orientation.
    ///
    /// # Panics
    /// When the id belongs to another model.
    #[must_use]
    pub fn amaxes_in_update(&self, bucket: BucketId) -> bool {
        let format = self.bucket(bucket).format;
        let one_way = format.needs_tensor_amax() && format.stored_orientations().len() == 1;
        one_way && self.is_quantized_after_adam(bucket) && self.is_updated_at_once(bucket)
    }

    /// A custom optimizer makes masters by code of its own.
    fn is_quantized_after_adam(&self, bucket: BucketId) -> bool {
        let members = self.bucket(bucket);
        let trained = members.placement == Placement::Sharded && !members.frozen;
        trained && self.state.custom_states.is_none() && !self.splits_masters(bucket)
    }

    /// Weights of one parameter group are updated by one task.
    fn is_updated_at_once(&self, bucket: BucketId) -> bool {
        let mut groups = self.bucket(bucket).weights.iter().map(|weight| self.layout(*weight).parameters);
        let first = groups.next();
        groups.all(|group| Some(group) == first)
    }

    /// How the bucket's scales are delayed, with the format they belong to; `None` for a bucket whose scales
    /// are current, or which has none. Scales of frozen weights are current: no step brings an amax to
    /// remember.
    ///
    /// # Panics
    /// When the id belongs to another model.
    #[must_use]
    pub fn delayed(&self, bucket: BucketId) -> Option<(Fp8Tensor, Delayed)> {
        let members = self.bucket(bucket);
        match (members.format, self.state.delayed) {
            (Format::Fp8Tensor(tensor), Some(delayed)) if !members.frozen => Some((tensor, delayed)),
            _ => None,
        }
    }

    /// Lists of state that are kept beside the master of a weight: none if it is frozen.
    #[must_use]
    pub fn lists_of(&self, weight: &WeightLayout) -> usize {
        if weight.frozen { 0 } else { self.state.lists() }
    }
}
