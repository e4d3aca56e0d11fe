//! The CPU backend, driven task by task in any order that a plan's lanes and fences allow.
//!
//! Law: the driver knows no actor and no executor. One task runs at a time; which one is drawn among those
//! whose predecessors are over, each rank by itself, and a collective once all ranks of its group are there.
//! So ranks run far ahead of each other, and a lane that nothing holds back runs before, between or after
//! the others: every schedule that could break an unordered pair comes up.

use std::sync::Arc;

use warpweft_backend::cpu::{CpuBackend, CpuOptions, CpuSurface, CpuWorld};
use warpweft_backend::{Backend, SnapshotMemory};
use warpweft_base::id::{RankId, TaskId, WeightId};
use warpweft_format::{FormatError, OwnedPlanes, quantize_shard};
use warpweft_plan::compute::ComputeFactory;
use warpweft_plan::layout::{Content, PlaneRegions, Region, Residency, Slot, WeightLayout};
use warpweft_plan::model::{Block, Group, Hyperparameters, Role};
use warpweft_plan::plan::StepPlan;
use warpweft_session::session::initial::MasterRows;
use warpweft_testing::random_programs::Draw;
use warpweft_testing::random_programs::Sample;

use super::closure;
use super::custom_optimizer::Closures;
use super::happens_before::Before;

struct Rank {
    backend: CpuBackend,
    memory: <CpuBackend as Backend>::Memory,
    streams: Vec<<CpuBackend as Backend>::Stream>,
    snapshot: Option<Arc<dyn SnapshotMemory>>,
}

/// What stays after a run: per rank, the bytes of each resident slot, but of no input and of no sum of gradients
/// that the plan leaves alone; and of its snapshot, if it takes one.
pub(crate) type Left = Vec<Vec<Vec<u8>>>;

/// Runs the prologue and a step of each of `plans`, of which there are some, in orders drawn from `draw`. They are of
/// one session: their resident slots are the same ones. If the first goes on with a sum, there is one.
pub(crate) fn run(
    sample: &Sample,
    prologue: &StepPlan,
    plans: &[&StepPlan],
    draw: &mut Draw,
) -> Result<Left, String> {
    let mesh = sample.mesh();
    let world = CpuWorld::new(mesh, CpuOptions::default()).unwrap();
    let bytes = plans.iter().map(|plan| plan.arena.bytes()).fold(prologue.arena.bytes(), usize::max);
    let (plan, last) = (plans[0], plans[plans.len() - 1]);
    let mut ranks: Vec<Rank> = mesh
        .iter()
        .map(|rank| {
            let backend = world.backend(rank).unwrap();
            let memory = backend.reserve(bytes, 0).unwrap();
            let closures = closures(sample);
            let compute = plan.compute_lane();
            let open = |lane: &warpweft_plan::layout::Lane| {
                backend.open(&memory, *lane, (lane.id == compute).then(|| Arc::clone(&closures))).unwrap()
            };
            let most = plans.iter().map(|plan| &plan.lanes).max_by_key(|lanes| lanes.len()).unwrap();
            let streams = most.iter().map(open).collect();
            let copied = plan.snapshot_bytes();
            let takes = plans.iter().any(|plan| plan.takes_snapshot);
            let snapshot = takes.then(|| backend.reserve_snapshot(&memory, copied).unwrap());
            let rank = Rank { backend, memory, streams, snapshot };
            litter(&rank, plan, bytes, draw);
            set_up(&rank, plan);
            rank
        })
        .collect();
    drive(&mut ranks, prologue, &Before::of(prologue), draw)?;
    // Of how many steps main grads hold the gradients after the coming one.
    let mut steps = 1.0f32;
    for (step, plan) in (0..).zip(plans) {
        steps = if plan.accumulation.continues() { steps + 1.0 } else { 1.0 };
        let scale = plan.arena.region(plan.arena.find(Content::GradientScale).unwrap());
        ranks.iter().for_each(|rank| {
            put(rank, scale, &steps.to_ne_bytes());
            stage(rank, plan, step);
        });
        drive(&mut ranks, plan, &Before::of(plan), draw)?;
    }
    ranks.iter().try_for_each(|rank| is_like_its_twins(rank, &ranks, last))?;
    Ok(ranks.iter().map(|rank| left(rank, last)).collect())
}

/// Ranks that hold the same shards hold the same bits of them, whatever replica they are of and however far
/// ahead it ran.
fn is_like_its_twins(rank: &Rank, ranks: &[Rank], plan: &StepPlan) -> Result<(), String> {
    let mesh = plan.weights.mesh;
    let is_of_weights = |content| {
        matches!(
            content,
            Content::Master(_)
                | Content::MasterRemainder(_)
                | Content::State(..)
                | Content::Shard(..)
                | Content::TensorScale(_)
                | Content::AmaxHistory(_)
                | Content::DelayedScale(_)
                | Content::OptimizerStep
        ) || matches!(content, Content::MainGrad(_)) && plan.writes_gradients()
    };
    let bytes = |rank: &Rank, region: Region| {
        let mut bytes = vec![0; region.bytes];
        rank.backend.download(&rank.memory, region, &mut bytes).unwrap();
        bytes
    };
    let own = rank.backend.rank();
    let resident = plan.arena.slots.iter().filter(|slot| slot.residency == Residency::Resident);
    for slot in resident.filter(|slot| is_of_weights(slot.content)) {
        let twins = mesh.members(own, copies(plan, slot.content)).filter(|twin| *twin != own);
        for twin in twins.map(|twin| &ranks[twin.index()]) {
            if bytes(rank, slot.region) != bytes(twin, slot.region) {
                return Err(format!("{own} and {} differ in `{}`", twin.backend.rank(), slot.name));
            }
        }
    }
    Ok(())
}

/// The ranks that hold the same of what is in such a slot.
fn copies(plan: &StepPlan, content: Content) -> Group {
    match content {
        Content::Master(weight)
        | Content::MasterRemainder(weight)
        | Content::State(weight, _)
        | Content::Shard(weight, _)
        | Content::MainGrad(weight) => plan.weights.layout(weight).shard.copies(),
        Content::TensorScale(bucket) | Content::AmaxHistory(bucket) | Content::DelayedScale(bucket)
            if plan.weights.bucket(bucket).expert =>
        {
            Group::ExpertReplica
        }
        _ => Group::Replicate,
    }
}

fn closures(sample: &Sample) -> ComputeFactory<CpuSurface> {
    let sample = sample.clone();
    Arc::new(move |_| Ok(Box::new(Closures::of(&sample))))
}

/// One step of every rank.
fn drive(ranks: &mut [Rank], plan: &StepPlan, before: &Before, draw: &mut Draw) -> Result<(), String> {
    let ops = plan.ops();
    let mut bound = Vec::new();
    for rank in ranks.iter() {
        let mut one = rank
            .backend
            .bind(&rank.memory, &plan.binding(rank.backend.rank(), &ops))
            .map_err(|error| error.to_string())?;
        rank.backend.begin_step(&mut one).map_err(|error| error.to_string())?;
        bound.push(one);
    }
    let mesh = plan.weights.mesh;
    let mut progress = vec![before.progress(); ranks.len()];
    while progress.iter().any(|one| !one.is_over()) {
        let chosen = draw.below(ranks.len());
        let Some(task) = draw.of(progress[chosen].ready()).copied() else { continue };
        let taking: Vec<usize> = match plan.tasks[task].op.group() {
            Some(group) => mesh.members(RankId::at(chosen), group).map(RankId::index).collect(),
            None => vec![chosen],
        };
        if !taking.iter().all(|rank| progress[*rank].ready().contains(&task)) {
            continue;
        }
        let lane = plan.tasks[task].lane.index();
        for rank in taking.iter().copied() {
            let Rank { backend, streams, .. } = &mut ranks[rank];
            backend
                .enqueue(&mut streams[lane], &bound[rank], TaskId::at(task))
                .map_err(|error| error.to_string())?;
        }
        for rank in taking {
            let Rank { backend, streams, .. } = &mut ranks[rank];
            backend.synchronize(&mut streams[lane]).map_err(|error| error.to_string())?;
            progress[rank].end(before, task);
        }
    }
    Ok(())
}

fn put(rank: &Rank, region: Region, bytes: &[u8]) {
    let region = region.part(0, bytes.len()).unwrap();
    rank.backend.upload(&rank.memory, region, bytes).unwrap();
}

/// What earlier programs, or a warm-up of a capture, may have left: anything, in all transient bytes and where
/// gradients are accumulated, unless the plan goes on with such a sum. The arena has so many bytes.
fn litter(rank: &Rank, plan: &StepPlan, bytes: usize, draw: &mut Draw) {
    let offset = plan.arena.resident_bytes;
    let transient = Region { offset, bytes: bytes - offset };
    let is_sum = |content| matches!(content, Content::MainGrad(_) | Content::LocalGrad(_));
    let resident = plan.arena.slots.iter().filter(|slot| slot.residency == Residency::Resident);
    let sums = resident.filter(|slot| is_sum(slot.content) && !plan.accumulation.continues());
    for region in sums.map(|slot| slot.region).chain([transient]) {
        let mut bytes = vec![0; region.bytes];
        draw.fill(&mut bytes);
        put(rank, region, &bytes);
    }
}

/// Masters, the scalars of the optimizer, and the sum that a plan goes on with; what is neither these nor litter begins
/// as zeros.
fn set_up(rank: &Rank, plan: &StepPlan) {
    for slot in plan.arena.slots.iter().filter(|slot| slot.residency == Residency::Resident) {
        let rows = |weight| {
            let layout = plan.weights.layout(weight);
            closure::initial_rows(layout, rank.backend.rank())
        };
        match slot.content {
            Content::Master(weight) => put(rank, slot.region, bytemuck::cast_slice(&rows(weight))),
            Content::Shard(weight, orientation) if plan.weights.layout(weight).is_planes_alone() => {
                let layout = plan.weights.layout(weight);
                let (planes, _) = frozen(rank, plan, weight);
                let mut stored = layout.format.stored_orientations().iter().zip(planes);
                let (_, planes) = stored.find(|(stored, _)| **stored == orientation).unwrap();
                let regions = PlaneRegions::within(slot.region, &layout.shard_planes(orientation));
                put(rank, regions.data, &planes.data);
                put(rank, regions.scale, &planes.scale);
            }
            Content::TensorScale(bucket) if plan.weights.bucket(bucket).is_planes_alone() => {
                let weights = plan.weights.bucket(bucket).weights.iter();
                let scales: Vec<f32> = weights.map(|weight| frozen(rank, plan, *weight).1).collect();
                put(rank, slot.region, bytemuck::cast_slice(&scales));
            }
            Content::Shard(weight, _) if plan.weights.splits_masters(plan.weights.layout(weight).bucket) => {
                let values: Vec<half::bf16> = rows(weight).into_iter().map(half::bf16::from_f32).collect();
                put(rank, slot.region, bytemuck::cast_slice(&values));
            }
            Content::DelayedScale(_) => {
                put(rank, slot.region, bytemuck::cast_slice(&vec![1.0f32; slot.region.bytes / 4]))
            }
            // Any sum would do that is the same on ranks with the same rows.
            Content::MainGrad(weight) if plan.accumulation.continues() => {
                put(rank, slot.region, bytemuck::cast_slice(&rows(weight)));
            }
            Content::LocalGrad(weight) if plan.accumulation.continues() => {
                let own =
                    rows(weight).into_iter().map(|value| value * (1 + rank.backend.rank().number()) as f32);
                put(rank, slot.region, bytemuck::cast_slice(&own.collect::<Vec<f32>>()));
            }
            Content::Hyperparameters => {
                let all =
                    Hyperparameters { learning_rate: 1e-3, weight_decay: 0.0, beta1: 0.9, beta2: 0.999 };
                let own = |layout: &WeightLayout| all.of_group(&layout.parameters);
                let own: Vec<_> = plan.weights.layouts.iter().map(own).collect();
                let region = slot.region.part(0, size_of_val(&own[..])).unwrap();
                put(rank, region, bytemuck::cast_slice(&own));
            }
            Content::LossScale => put(rank, slot.region, &1.0f32.to_ne_bytes()),
            _ => {}
        }
    }
}

/// What a frozen weight that is sharded is set to: planes of the rank's rows, and the tensor scale.
fn frozen(rank: &Rank, plan: &StepPlan, weight: WeightId) -> (Vec<OwnedPlanes>, f32) {
    let (layout, via) = (plan.weights.layout(weight), plan.policy.settings.via);
    let mut whole = vec![0.0f32; layout.shard.whole().elements()];
    closure::initial(MasterRows::from_the_first(&layout.name, layout.shard.whole().cols), &mut whole);
    let amax = whole.iter().fold(0.0f32, |amax, value| amax.max(via.round(layout.format, *value).abs()));
    let mut values = closure::initial_rows(layout, rank.backend.rank());
    values.resize(layout.stored_elements(), 0.0);
    quantize_shard(layout.format, via, layout.shard.stored(), &values, |_| Ok::<_, FormatError>(amax))
        .unwrap()
}

fn stage(rank: &Rank, plan: &StepPlan, step: u32) {
    for slot in &plan.arena.slots {
        if let Content::Staging(buffer, micro_batch) = slot.content
            && plan.buffers[buffer.index()].role == Role::Input
        {
            let spec = &plan.buffers[buffer.index()];
            let mut values = vec![0.0; spec.elements];
            closure::input(step, rank.backend.rank(), micro_batch.number(), &spec.name, &mut values);
            put(rank, slot.region, bytemuck::cast_slice(&values));
        }
    }
}

/// Slots that somebody reads after the step.
fn kept(plan: &StepPlan) -> impl Iterator<Item = &Slot> {
    let is_read = |content| match content {
        Content::Buffer(buffer) => plan.buffers[buffer.index()].role != Role::Input,
        Content::MainGrad(_) => plan.writes_gradients(),
        Content::LocalGrad(_) => plan.accumulation.stays_open(),
        // What the driver puts there.
        Content::GradientScale => false,
        _ => true,
    };
    let stays = move |slot: &&Slot| slot.residency == Residency::Resident && is_read(slot.content);
    plan.arena.slots.iter().filter(stays)
}

fn left(rank: &Rank, plan: &StepPlan) -> Vec<Vec<u8>> {
    kept(plan)
        .map(|slot| {
            let mut bytes = vec![0; slot.region.bytes];
            rank.backend.download(&rank.memory, slot.region, &mut bytes).unwrap();
            bytes
        })
        .chain(snapshot(rank, plan))
        .collect()
}

/// What a rank copied, of the weights that it saves, one slot after the other.
fn snapshot(rank: &Rank, plan: &StepPlan) -> Option<Vec<u8>> {
    let snapshot = rank.snapshot.as_ref()?;
    let copies = plan.snapshot_layout().into_values().map(|region| {
        let mut bytes = vec![0; region.bytes];
        snapshot.read(region, &mut bytes).unwrap();
        bytes
    });
    Some(copies.collect::<Vec<_>>().concat())
}

/// Bits of every weight's master, whole: of what its owners left after `plan`; once for each expert in its place. None
/// of a weight that is its planes alone.
pub(crate) fn masters(left: &Left, plan: &StepPlan) -> Vec<Vec<u32>> {
    let weights =
        plan.weights.layouts.iter().enumerate().map(|(number, layout)| (WeightId::at(number), layout));
    let places = weights.flat_map(|of| of.1.places().map(move |place| (of, place)));
    let whole = |((weight, layout), expert): ((WeightId, &WeightLayout), RankId)| {
        if layout.is_planes_alone() {
            return Vec::new();
        }
        let place = kept(plan).position(|slot| slot.content == Content::Master(weight)).unwrap();
        let mesh = plan.weights.mesh;
        let mut bits = vec![0; layout.shard.whole().elements()];
        let is_first = |rank: &RankId| mesh.position(*rank, layout.shard.copies()) == 0;
        let with_it = mesh.iter().filter(|rank| layout.place_of(*rank) == expert);
        for rank in with_it.filter(is_first) {
            let values: Vec<u32> = bytemuck::pod_collect_to_vec(&left[rank.index()][place]);
            let rows = layout
                .shard
                .blocks_of(rank)
                .flat_map(|Block { first, shape }| first.rows..first.rows + shape.rows);
            for (row, values) in rows.zip(values.chunks(layout.shard.shape.cols)) {
                let whole = &mut bits[row * layout.shard.whole().cols..(row + 1) * layout.shard.whole().cols];
                whole[layout.shard.columns_of(rank)].copy_from_slice(values);
            }
        }
        bits
    };
    places.map(whole).collect()
}
