//! Gathers a checkpoint from the shards of ranks, and scatters it over them.
//!
//! Law: what ranks of any mesh hand out gives one checkpoint, and every rank gets its block of it back: its rows, and
//! of a row-parallel weight its columns of them. Ranks of the first replica hand out the weights; all of them get them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::block_copies::{all_taken, put_all};
use super::ranks::{RankPart, WeightShard};
use super::{Carried, CarriedBuffer, Checkpoint, OptimizerIdentity, PlanesState, WeightState};
use warpweft_base::id::RankId;
use warpweft_format::{
    DelayedState, Format, FormatError, Orientation, OwnedPlanes, PlaneKind, PlaneSpec, Shape, expand_scale,
};
use warpweft_plan::layout::{PlaneColumns, PlaneCut, Region, WeightLayout, Weights};
use warpweft_plan::model::Placement;
use warpweft_plan::plan::{StepPlan, carried};

impl Checkpoint {
    /// Puts together what the ranks copied out, and takes it from them. It goes weight by weight: what is in
    /// memory at once is one checkpoint, in parts or whole, and one weight more.
    pub(crate) fn gather(
        programs: &[Arc<StepPlan>],
        optimizer_identity: &OptimizerIdentity,
        ranks: &mut [&mut RankPart],
    ) -> Result<Self, FormatError> {
        let mut weights = Vec::new();
        for plan in programs.iter().take(1) {
            for (weight, place) in plan.weights.in_files() {
                let layout = plan.weights.layout(weight);
                // Ranks between have other experts.
                let of_place = ranks.iter_mut().skip(place.index()).step_by(layout.places().len());
                let taken =
                    of_place.filter_map(|rank| rank.shards.get_mut(weight.index()).map(std::mem::take));
                let mut shards: Vec<WeightShard> = taken.collect();
                let layout = layout.alone(place);
                // Ranks of the first replica come first.
                shards.truncate(layout.shard.owners() as usize);
                weights.push(joined(&layout, &shards)?);
            }
        }
        let optimizer_step = ranks.first().map_or(0, |rank| rank.optimizer_step);
        let buffers = carried(programs).into_iter().enumerate().map(|(number, (name, _))| {
            let taken = ranks.iter_mut().filter_map(|rank| rank.carried.get_mut(number).map(std::mem::take));
            CarriedBuffer { name: name.to_owned(), ranks: taken.collect() }
        });
        let carried = Carried::Buffers(buffers.collect());
        let optimizer_identity = Some(optimizer_identity.clone());
        Ok(Self { optimizer_step, optimizer_identity, weights, carried, notes: BTreeMap::new() })
    }

    /// Cuts out what `rank` owns: everything, or the weights in `taken` for an optimizer that begins anew.
    ///
    /// # Errors
    /// [`FormatError`] for planes that are not those of a frozen weight's shape.
    pub(crate) fn scatter(
        &self,
        programs: &[Arc<StepPlan>],
        rank: RankId,
        taken: Option<&Taken>,
    ) -> Result<RankPart, FormatError> {
        let by_name: HashMap<&str, &WeightState> =
            self.weights.iter().map(|state| (state.name.as_str(), state)).collect();
        let shard = |weights: &Weights, layout: &WeightLayout| match by_name.get(&*layout.name_at(rank)) {
            Some(state) => shard(state, weights, layout, rank, taken.is_some()),
            // A rank refuses rows that are not there.
            None => Ok(WeightShard::default()),
        };
        let buffer = |name: &str, region: Region| match &self.carried {
            Carried::Zeros => Ok(vec![0; region.bytes]),
            Carried::Buffers(buffers) => {
                let mut found = buffers.iter().filter(|buffer| buffer.name == name);
                Ok(found.find_map(|buffer| buffer.ranks.get(rank.index())).cloned().unwrap_or_default())
            }
        };
        let optimizer_step = if taken.is_some() { 0 } else { self.optimizer_step };
        Ok(RankPart { optimizer_step, ..rank_part(programs, rank, taken, shard, buffer)? })
    }
}

/// The names of weights of a session that an import takes; others stay as they are.
pub(crate) type Taken = HashSet<String>;

/// What `rank` takes in: what `shard` gives of every weight, and carried buffers; or of the weights in `taken` alone.
pub(super) fn rank_part<E>(
    programs: &[Arc<StepPlan>],
    rank: RankId,
    taken: Option<&Taken>,
    shard: impl Fn(&Weights, &WeightLayout) -> Result<WeightShard, E>,
    buffer: impl Fn(&str, Region) -> Result<Vec<u8>, E>,
) -> Result<RankPart, E> {
    let mut part = RankPart::default();
    for plan in programs.iter().take(1) {
        for layout in &plan.weights.layouts {
            part.shards.push(match taken {
                Some(taken) if !taken.contains(&*layout.name_at(rank)) => {
                    WeightShard::that_stays(&plan.weights, layout, rank)
                }
                _ => shard(&plan.weights, layout)?,
            });
        }
    }
    // Without them, those of the session stay.
    let buffers = if taken.is_none() { carried(programs) } else { Vec::new() };
    let buffers = buffers.into_iter().map(|(name, region)| buffer(name, region));
    part.carried = buffers.collect::<Result<_, E>>()?;
    Ok(part)
}

/// A rank's block of one weight, of a checkpoint in memory; with state that begins `anew`, or with what is there.
fn shard(
    state: &WeightState,
    weights: &Weights,
    layout: &WeightLayout,
    rank: RankId,
    anew: bool,
) -> Result<WeightShard, FormatError> {
    if !state.has_values() {
        let stays = WeightShard::that_stays(weights, layout, rank);
        return Ok(WeightShard { frozen: state.frozen, ..stays });
    }
    if goes_as_planes(state, layout) {
        let (planes, tensor_scale) = (cut(state, layout, rank)?, state.tensor_scale);
        return Ok(WeightShard { planes, tensor_scale, ..WeightShard::default() });
    }
    let elements = layout.shard.rows_of(rank).rows * layout.shard.shape.cols;
    let own = |values: &[f32]| all_taken(values, layout.shard.whole().cols, layout.shard.blocks_of(rank));
    let list = |number: usize| match state.states.get(number).filter(|_| !anew).and_then(|of| own(of)) {
        Some(values) => values,
        None => vec![0.0; elements],
    };
    let delayed = state.delayed.as_ref();
    Ok(WeightShard {
        // A rank refuses rows that are not there.
        master: own(&state.values()?).unwrap_or_default(),
        states: (0..weights.lists_of(layout)).map(list).collect(),
        delayed: delayed.map(|given| delayed_here(given, state.format, layout, weights)),
        ..WeightShard::default()
    })
}

/// Is it put into the session as planes, bit for bit?
pub(super) fn goes_as_planes(state: &WeightState, layout: &WeightLayout) -> bool {
    layout.is_planes_alone() && state.master.is_empty() && state.format == layout.format
}

/// A rank's planes of a frozen weight.
///
/// # Errors
/// [`FormatError`] for planes that are not there, or not those of its shape.
fn cut(state: &WeightState, layout: &WeightLayout, rank: RankId) -> Result<Vec<OwnedPlanes>, FormatError> {
    let stored = layout.format.stored_orientations().iter().map(|orientation| {
        let missing = FormatError::MissingPlanes { orientation: *orientation };
        let found = state.planes.iter().find(|planes| planes.orientation == *orientation);
        let planes = &found.ok_or_else(|| missing.clone())?.planes;
        let read = |spec: &PlaneSpec, range: Range<usize>| {
            let plane = planes.get(usize::from(spec.kind == PlaneKind::Scale));
            plane.and_then(|plane| plane.get(range)).map(<[u8]>::to_vec).ok_or_else(|| missing.clone())
        };
        PlaneCut::new(layout, *orientation, rank).shard(state.tensor_scale, read)
    });
    stored.collect()
}

/// What delayed scaling of the session begins with: a scale is worth nothing in another format, where it may
/// saturate everything, and there follows from the history.
pub(super) fn delayed_here(
    given: &DelayedState,
    format: Format,
    layout: &WeightLayout,
    weights: &Weights,
) -> DelayedState {
    match weights.delayed(layout.bucket) {
        Some((tensor, delayed)) if format != layout.format => {
            given.with_length(delayed.history as usize).for_tensor(tensor, delayed.choice)
        }
        _ => given.clone(),
    }
}

/// A weight of its owners' shards, in the order of their ranks.
fn joined(layout: &WeightLayout, shards: &[WeightShard]) -> Result<WeightState, FormatError> {
    let lists = shards.first().map_or(0, |shard| shard.states.len());
    let list = |number: usize| {
        values(layout, shards, |shard| shard.states.get(number).map_or(&[][..], Vec::as_slice))
    };
    Ok(WeightState {
        name: layout.name.clone(),
        shape: layout.shard.whole(),
        format: layout.format,
        master: values(layout, shards, |shard| &shard.master),
        states: (0..lists).map(list).collect(),
        planes: planes(layout, shards)?,
        tensor_scale: shards.first().map_or(1.0, |shard| shard.tensor_scale),
        delayed: shards.first().and_then(|shard| shard.delayed.clone()),
        frozen: shards.first().and_then(|shard| shard.frozen),
    })
}

/// One list of values of the whole weight; none where its owners have none.
fn values(layout: &WeightLayout, shards: &[WeightShard], list: impl Fn(&WeightShard) -> &[f32]) -> Vec<f32> {
    // Where parts are not cut, their rows are one after the other.
    if layout.shard.owners() == layout.shard.ranks {
        return shards.iter().map(list).collect::<Vec<_>>().concat();
    }
    if shards.iter().all(|shard| list(shard).is_empty()) {
        return Vec::new();
    }
    let whole = layout.shard.whole();
    let mut values = vec![0.0; whole.elements()];
    for (rank, shard) in (0..).map(RankId::new).zip(shards) {
        put_all(list(shard), layout.shard.blocks_of(rank), &mut values, whole.cols);
    }
    values
}

/// Planes of the whole weight, of those of its owners' shards.
fn planes(layout: &WeightLayout, shards: &[WeightShard]) -> Result<Vec<PlanesState>, FormatError> {
    if layout.placement == Placement::Replicated {
        return Ok(Vec::new());
    }
    let parts = (layout.shard.owners() / layout.shard.ranks.max(1)) as usize;
    let stored = layout.format.stored_orientations().iter().enumerate().map(|(number, orientation)| {
        let of_parts = layout.format.planes(*orientation, layout.shard.shape);
        // Those of a part are of every so many-th rank.
        let of_part = |part: usize, spec: &PlaneSpec| {
            let shards = shards.iter().skip(part).step_by(parts.max(1));
            plane(layout, *orientation, spec, shards.filter_map(|shard| shard.planes.get(number)))
        };
        if parts == 1 {
            let planes = of_parts.iter().map(|spec| of_part(0, spec)).collect::<Result<_, _>>()?;
            return Ok(PlanesState { orientation: *orientation, specs: of_parts, planes });
        }
        let (specs, tile) =
            (layout.format.planes(*orientation, layout.shard.whole()), layout.format.row_tile());
        let valid = layout.format.shard_planes(*orientation, layout.shard.shape);
        let of_tile = layout.format.shard_planes(*orientation, Shape { rows: tile, ..layout.shard.shape });
        let planes = specs.iter().zip(&of_parts).zip(valid.iter().zip(&of_tile)).map(
            |((spec, of_parts), (valid, of_tile))| {
                let mut whole = vec![0; spec.bytes()];
                for part in 0..parts {
                    let first = layout.shard.columns_of(RankId::at(part)).start;
                    let columns = PlaneColumns::new(layout, *orientation, spec.kind, first);
                    // Runs of rows are one below the other, without the padding that a part has below.
                    let of_part = of_part(part, of_parts)?;
                    let mut left = of_part.get(..valid.bytes()).unwrap_or_default();
                    for block in layout.shard.blocks_of_part(part) {
                        let held = block.shape.rows.div_ceil(tile) * of_tile.rows;
                        let (own, others) = left.split_at((held * columns.of_part()).min(left.len()));
                        left = others;
                        let above = block.first.rows / tile * of_tile.rows;
                        columns.put(own, whole.get_mut(above * columns.of_whole()..).unwrap_or_default());
                    }
                }
                Ok(whole)
            },
        );
        let planes = planes.collect::<Result<_, FormatError>>()?;
        Ok(PlanesState { orientation: *orientation, specs, planes })
    });
    stored.collect()
}

/// The plane of a part, of its shards one after the other, cut or padded to it.
fn plane<'a>(
    layout: &WeightLayout,
    orientation: Orientation,
    spec: &PlaneSpec,
    shards: impl Iterator<Item = &'a OwnedPlanes>,
) -> Result<Vec<u8>, FormatError> {
    let mut whole = Vec::with_capacity(spec.bytes());
    for shard in shards {
        let part = shard.of(spec.kind);
        let room = spec.bytes() - whole.len();
        whole.extend_from_slice(&part[..part.len().min(room)]);
    }
    whole.resize(spec.bytes(), 0);
    if spec.kind == PlaneKind::Scale {
        expand_scale(layout.format, orientation, layout.shard.shape, &mut whole)?;
    }
    Ok(whole)
}
