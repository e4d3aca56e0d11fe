//! Snapshots: a rank's state as one step found it, for a save that training does not wait for.
//!
//! Law: a save begins at a step boundary, where what is small or never changes is copied. The state of weights that
//! train is copied by the next step, whose plan has the copies; or at the boundary, if there is no such step. From then
//! on a snapshot needs no rank: whoever has it reads what a save at that boundary would have read. No other save begins
//! before its reader is done, for the memory is the rank's and there is one.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use super::agreement::agree_on_plan;
use super::barrier::{Barrier, Work};
use super::installed::install;
use super::save_and_import::LiveState;
use super::stored_state::StoredState;
use super::{CaptureMode, ExecError, Handover, Rank};
use crate::checkpoint::ranks::{RankPart, RankState, SaveId, WeightShard};
use crate::checkpoint::{CheckpointError, FrozenDigest, StatePart};
use warpweft_backend::{Backend, SnapshotMemory};
use warpweft_base::id::{CarriedId, LaneId, ProgramId, RankId, WeightId};
use warpweft_format::{DelayedState, OwnedPlanes};
use warpweft_plan::layout::{Content, Lane, LaneKind, Region, Weights};
use warpweft_plan::plan::StepPlan;

/// The state of one rank at one step boundary.
#[derive(Clone, Debug)]
pub struct Snapshot {
    rank: RankId,
    /// Lays the state out.
    prologue: Arc<StepPlan>,
    optimizer_step: u32,
    frozen: Vec<Option<FrozenDigest>>,
    delayed: Vec<Option<DelayedState>>,
    carried: Vec<Vec<u8>>,
    /// Quantized planes and tensor scale of every weight, for whoever needs them.
    planes: Vec<(Vec<OwnedPlanes>, f32)>,
    /// Masters of weights that do not train, as they are stored.
    still: HashMap<Content, Vec<u8>>,
    memory: Arc<dyn SnapshotMemory>,
    /// Where the copies lie.
    layout: BTreeMap<Content, Region>,
}

impl Snapshot {
    /// The same, with the copies that a step of `plan` made.
    pub fn taken_by(&mut self, plan: &StepPlan) {
        self.layout = plan.snapshot_layout();
    }

    /// The rank.
    #[must_use]
    pub const fn rank(&self) -> RankId {
        self.rank
    }

    /// What the rank exports.
    ///
    /// # Errors
    /// What the memory refuses.
    pub fn export(&mut self) -> Result<RankPart, ExecError> {
        let mut part = RankPart { optimizer_step: self.optimizer_step, ..RankPart::default() };
        let planes = std::mem::take(&mut self.planes);
        for (number, (planes, tensor_scale)) in planes.into_iter().enumerate() {
            let weight = WeightId::at(number);
            if self.rank.number() >= self.weights().layout(weight).shard.owners() {
                part.shards.push(WeightShard::default());
                continue;
            }
            part.shards.push(WeightShard {
                master: self.master(weight)?,
                states: self.lists(weight).map(|list| self.moment(list, weight)).collect::<Result<_, _>>()?,
                planes,
                tensor_scale,
                delayed: self.delayed.get_mut(number).and_then(Option::take),
                frozen: self.frozen.get(number).copied().flatten(),
                stays: false,
            });
        }
        part.carried = std::mem::take(&mut self.carried);
        Ok(part)
    }
}

impl StoredState for Snapshot {
    fn owner(&self) -> RankId {
        self.rank
    }

    fn weights(&self) -> &Weights {
        &self.prologue.weights
    }

    fn copy_stored(&self, content: Content, bytes: &mut [u8]) -> Result<(), ExecError> {
        let found = self.layout.get(&content).and_then(|region| region.part(0, bytes.len()));
        if let Some(region) = found {
            return Ok(self.memory.read(region, bytes)?);
        }
        let still = self.still.get(&content).and_then(|all| all.get(..bytes.len()));
        let still = still.ok_or_else(|| ExecError::Misfit {
            rank: self.rank,
            what: format!("bytes of {content:?} in a snapshot"),
            found: self.layout.get(&content).map_or(0, |region| region.bytes),
            expected: bytes.len(),
        })?;
        bytes.copy_from_slice(still);
        Ok(())
    }
}

impl RankState for Snapshot {
    fn rank(&self) -> RankId {
        self.rank
    }

    fn optimizer_step(&self) -> io::Result<u32> {
        Ok(self.optimizer_step)
    }

    fn frozen(&self, weight: WeightId) -> Option<FrozenDigest> {
        self.frozen.get(weight.index()).copied().flatten()
    }

    fn rows(&self, weight: WeightId, part: StatePart) -> io::Result<Vec<f32>> {
        StoredState::rows(self, weight, part).map_err(|error| io::Error::other(error.to_string()))
    }

    fn delayed(&self, weight: WeightId) -> io::Result<Option<DelayedState>> {
        Ok(self.delayed.get(weight.index()).cloned().flatten())
    }

    fn carried(&self, buffer: CarriedId) -> io::Result<Vec<u8>> {
        Ok(self.carried.get(buffer.index()).cloned().unwrap_or_default())
    }

    fn alive(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A snapshot whose reader gives signs of life.
struct Living<'s> {
    snapshot: &'s Snapshot,
    live: &'s dyn RankState,
}

impl RankState for Living<'_> {
    fn rank(&self) -> RankId {
        self.snapshot.rank
    }

    fn optimizer_step(&self) -> io::Result<u32> {
        self.snapshot.optimizer_step()
    }

    fn frozen(&self, weight: WeightId) -> Option<FrozenDigest> {
        self.snapshot.frozen(weight)
    }

    fn rows(&self, weight: WeightId, part: StatePart) -> io::Result<Vec<f32>> {
        RankState::rows(self.snapshot, weight, part)
    }

    fn delayed(&self, weight: WeightId) -> io::Result<Option<DelayedState>> {
        self.snapshot.delayed(weight)
    }

    fn carried(&self, buffer: CarriedId) -> io::Result<Vec<u8>> {
        self.snapshot.carried(buffer)
    }

    fn alive(&self) -> io::Result<()> {
        self.live.alive()
    }
}

impl<B: Backend> Rank<B> {
    /// Begins a save that goes on in the background: makes room for a snapshot, lets the writer in `handover` begin, if
    /// there is one, and leaves there the snapshot, whose copies the next step makes, and the save's identity. Or says
    /// there who could not, and nothing has begun.
    ///
    /// # Errors
    /// What the backend refuses, and the end of the world.
    pub fn begin_save(&mut self, handover: &mut Handover) -> Result<(), ExecError> {
        (handover.part.refusal, handover.part.snapshot, handover.part.save) = (None, None, None);
        self.quantize_new_masters()?;
        let frozen = self.frozen_digests()?;
        let begun = self.reserve_snapshot().map_err(CheckpointError::other).and_then(|memory| {
            let number = handover.part.writer.as_ref().map_or(Ok(0), |writer| writer.begin(self.id()))?;
            Ok((memory, number))
        });
        let (memory, own) = match begun {
            Ok((memory, number)) => (Some(memory), Ok(number)),
            Err(reason) => (None, Err(reason)),
        };
        let agreed = Barrier::new(&self.world, self.id(), Work::BeginsASave).agree(own)?;
        match (agreed, memory) {
            (Ok(numbers), Some(memory)) => {
                handover.part.save = Some(SaveId::of(&numbers));
                let planes = handover.part.writer.is_none();
                handover.part.snapshot = Some(self.begin_snapshot(frozen, planes, memory)?);
            }
            (Err(refusal), _) => handover.part.refusal = Some(refusal),
            // A rank whose own word was a refusal does not get the words of all.
            (Ok(_), None) => {}
        }
        Ok(())
    }

    /// Makes a checkpoint of what threads of all processes write, each the parts of its ranks; `handover` has writer,
    /// save and snapshot, and then says who could not save, if anybody could not.
    ///
    /// # Errors
    /// The end of the world.
    pub fn complete_save(&mut self, handover: &mut Handover) -> Result<(), ExecError> {
        let part = &mut handover.part;
        part.refusal = None;
        let taken = (part.writer.take(), part.save.take(), part.snapshot.take(), part.written.take());
        let (Some(writer), Some(save), Some(snapshot), Some(written)) = taken else {
            return Err(ExecError::NoParts { rank: self.id(), what: "writer" });
        };
        let barrier = Barrier::new(&self.world, self.id(), Work::SavesItsPart);
        let written = written.wait(|| barrier.alive())?;
        let live = LiveState::new(self, &barrier);
        let state = Living { snapshot: &snapshot, live: &live };
        handover.part.refusal = self.end_save((writer.as_ref(), save), written, &state, (&barrier, &live))?;
        Ok(())
    }

    /// Copies now what no step has copied, for the snapshot in `handover`.
    ///
    /// # Errors
    /// What the backend refuses.
    pub fn take_snapshot(&mut self, handover: &mut Handover) -> Result<(), ExecError> {
        let Some(snapshot) = &mut handover.part.snapshot else { return Ok(()) };
        let rank = self.id();
        let plan = self.prologue.plan.with_snapshot();
        let plan = plan.map_err(|error| ExecError::World { rank, reason: error.to_string() })?;
        for (content, region) in plan.snapshot_layout() {
            if self.saves(content) {
                let mut bytes = vec![0; region.bytes];
                self.copy_stored(content, &mut bytes)?;
                snapshot.memory.write(region, &bytes)?;
            }
        }
        snapshot.taken_by(&plan);
        Ok(())
    }

    /// Runs a step of `program` by a plan that takes a snapshot, which is issued whatever the program's own steps are.
    ///
    /// # Errors
    /// As of a step.
    pub(super) fn with_snapshot<T>(
        &mut self,
        program: ProgramId,
        plan: Arc<StepPlan>,
        step: impl FnOnce(&mut Self) -> Result<T, ExecError>,
    ) -> Result<T, ExecError> {
        let is_known = self.copying.get(&program).is_some_and(|known| Arc::ptr_eq(&known.plan, &plan));
        if !is_known {
            agree_on_plan(&self.world, self.id(), &plan)?;
            let off = CaptureMode::Off;
            let installed = install(&self.backend, &self.memory, plan, off, false, &self.poison)?;
            self.copying.insert(program, installed);
            self.world.exchange(self.id(), 0)?;
        }
        self.swap_copying(program);
        let outcome = step(self);
        self.swap_copying(program);
        outcome
    }

    /// Exchanges the plan of a program and the one that copies.
    fn swap_copying(&mut self, program: ProgramId) {
        if let (Some(own), Some(copying)) =
            (self.programs.get_mut(program.index()), self.copying.get_mut(&program))
        {
            std::mem::swap(own, copying);
        }
    }

    /// The rank's memory for snapshots, and the lane on which copies run.
    fn reserve_snapshot(&mut self) -> Result<Arc<dyn SnapshotMemory>, ExecError> {
        if let Some(memory) = &self.snapshot {
            return Ok(Arc::clone(memory));
        }
        let plan = &self.prologue.plan;
        let saves = plan.weights.layouts.iter().any(|layout| self.id().number() < layout.shard.owners());
        let bytes = if saves { plan.snapshot_bytes() } else { 0 };
        let lane = Lane { id: LaneId::at(plan.lanes.len()), kind: LaneKind::Snapshot };
        // Kept once all is there, so that who failed may try again.
        let stream = self.backend.open(&self.memory, lane, None)?;
        let memory = self.backend.reserve_snapshot(&self.memory, bytes)?;
        self.streams.push(stream);
        self.snapshot = Some(Arc::clone(&memory));
        Ok(memory)
    }

    /// A snapshot without the copies of weights that train; with planes, if it needs them.
    fn begin_snapshot(
        &self,
        frozen: Vec<Option<FrozenDigest>>,
        planes: bool,
        memory: Arc<dyn SnapshotMemory>,
    ) -> Result<Snapshot, ExecError> {
        let prologue = Arc::clone(&self.prologue.plan);
        let all = || (0..prologue.weights.layouts.len()).map(WeightId::at);
        let mut still = HashMap::new();
        for weight in all().filter(|weight| self.is_frozen(*weight)) {
            let layout = prologue.weights.layout(weight);
            if !layout.is_planes_alone() {
                let values: Vec<u8> = bytemuck::pod_collect_to_vec(&self.master(weight)?);
                still.insert(Content::Master(weight), values);
            }
        }
        let of_weight = |weight| match planes {
            true => Ok((self.planes(weight)?, self.tensor_scale(weight)?)),
            false => Ok((Vec::new(), 1.0)),
        };
        Ok(Snapshot {
            rank: self.id(),
            optimizer_step: self.steps_taken()?,
            frozen,
            delayed: all().map(|weight| self.delayed(weight)).collect::<Result<_, _>>()?,
            carried: (0..self.carried.len())
                .map(|place| self.carried_bytes(CarriedId::at(place)))
                .collect::<Result<_, _>>()?,
            planes: all().map(of_weight).collect::<Result<_, ExecError>>()?,
            still,
            memory,
            layout: BTreeMap::new(),
            prologue,
        })
    }

    /// Does this rank save what the slot holds? Ranks of the first replica come first.
    fn saves(&self, content: Content) -> bool {
        match content {
            Content::Master(weight)
            | Content::MasterRemainder(weight)
            | Content::State(weight, _)
            | Content::Shard(weight, _) => {
                self.id().number() < self.prologue.plan.weights.layout(weight).shard.owners()
            }
            _ => false,
        }
    }
}
