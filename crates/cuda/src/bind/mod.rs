//! Turns what a rank does for every op into commands: the one `match` on [`LocalOp`].
//!
//! Laws:
//! - Addresses are worked out here, once. Kernels are prepared here, with their tables. A step allocates
//!   nothing.
//! - Commands mean what the CPU backend does for the same local op, bit for bit.

pub(crate) mod bound;
pub(crate) mod command;
pub(crate) mod lane;
mod prepare;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::bound::{BoundTask, CudaBound, Work};
use self::command::Command;
use self::prepare::Preparation;
use crate::device::address::DeviceAddress;
use crate::device::context::Context;
use crate::device::pinned::PinnedSnapshot;
use crate::device::stream::Event;
use crate::failure::CudaFailure;
use crate::kernels::{CountsOperand, KernelLaunch, Kernels, Mark};
use crate::shutdown::collective_names::CollectiveNames;
use crate::shutdown::progress::{CheckedCounts, Progress};
use crate::timing::Timeline;
use crate::timing::cupti::Book;
use crate::timing::source::Times;
use crate::timing::task_events::TaskEvents;
use crate::transport::lane_communicators::LaneCommunicators;
use crate::transport::receive_buffers::ReceiveBuffers;
use crate::transport::signal::Home;
use crate::transport::{Route, View};
use crate::world::{HostMeeting, World};
use warpweft_backend::BackendError;
use warpweft_backend::SignalBy;
use warpweft_backend::closures::fault_word;
use warpweft_backend::local::{Collective, ComputeCall, LocalOp, resolve};
use warpweft_base::id::{CallId, LaneId, RankId, TaskId, WeightId};
use warpweft_plan::layout::{Binding, Region};

/// What binding needs of a backend.
pub(super) struct Binder<'a> {
    pub(super) world: &'a Arc<World>,
    pub(super) context: &'a Arc<Context>,
    pub(super) kernels: &'a Kernels,
    pub(super) homes: &'a [Home],
    pub(super) lanes: &'a BTreeMap<LaneId, Option<LaneCommunicators>>,
    pub(super) progress: &'a Progress,
    pub(super) arena: DeviceAddress,
    pub(super) snapshot: Option<&'a Arc<PinnedSnapshot>>,
}

/// What reports name by numbers that kernels leave.
#[derive(Default)]
struct Named {
    gradients: Vec<(CallId, WeightId)>,
    counts: CheckedCounts,
}

/// Binds every op of a plan to an arena and the room after it, whose sizes in bytes are given.
pub(super) fn bind(
    binder: &Binder<'_>,
    binding: &Binding<'_>,
    (arena_bytes, receive_buffer_bytes): (usize, usize),
) -> Result<CudaBound, BackendError> {
    let ops = resolve(binding, arena_bytes)?;
    let failed = |failure: CudaFailure| BackendError::Device {
        rank: binding.rank,
        doing: "binding a plan".to_owned(),
        reason: failure.to_string(),
    };
    let hosts = |group| binder.world.team(binding.rank, group).hosts();
    let receive_buffer = ReceiveBuffers::of(binding, &ops, hosts);
    if receive_buffer.bytes() > receive_buffer_bytes {
        let (needed, there) = (receive_buffer.bytes(), receive_buffer_bytes);
        let reason = format!("{needed} bytes are needed for what peers send, and {there} were reserved");
        return Err(failed(CudaFailure::Refused(reason)));
    }
    let is_collective = |task: TaskId| matches!(ops.get(task.index()), Some(LocalOp::Collective(_)));
    let script = Arc::new(CollectiveNames::of(binding, is_collective));
    let mut tasks = Vec::with_capacity(ops.len());
    let mut named = Named::default();
    for (position, (op, (planned, lane))) in ops.into_iter().zip(binding.ops).enumerate() {
        let task = TaskId::at(position);
        let work = binder.work(binding, &receive_buffer, (task, *lane), op, &mut named);
        let work = work.map_err(|failure| BackendError::Unsupported {
            rank: binding.rank,
            task,
            op: planned.name(),
            reason: failure.to_string(),
        })?;
        tasks.push(BoundTask { op: planned.name(), work });
    }
    let event = |_| Event::order(Arc::clone(binder.context));
    let events = (0..binding.events).map(event).collect::<Result<_, _>>().map_err(failed)?;
    let timeline = binder.timeline(binding).map_err(failed)?;
    let context = Arc::clone(binder.context);
    let Named { gradients, counts } = named;
    let counts = Arc::new(counts);
    Ok(CudaBound { context, tasks, events, gradients, counts, timeline, script, is_cold: true })
}

impl Binder<'_> {
    /// Where the times of a plan come from, if its tasks are timed.
    fn timeline(&self, binding: &Binding<'_>) -> Result<Option<Timeline>, CudaFailure> {
        match &self.world.times {
            Some(Times::Activities(profiler)) => {
                let lanes = binding.ops.iter().map(|(_, lane)| *lane).collect();
                Ok(Some(Timeline::Activities(Book::new(profiler, lanes))))
            }
            None if !binding.timed => Ok(None),
            Some(Times::Events { .. }) | None => {
                let events = TaskEvents::new(self.context, self.world.clock, binding.ops.len())?;
                Ok(Some(Timeline::Events(Arc::new(events))))
            }
        }
    }

    fn work(
        &self,
        binding: &Binding<'_>,
        receive_buffer: &ReceiveBuffers,
        (task, lane): (TaskId, LaneId),
        op: LocalOp,
        named: &mut Named,
    ) -> Result<Work, CudaFailure> {
        let prepare =
            Preparation { kernels: self.kernels, arena: self.arena, diverged: self.progress.diverged() };
        Ok(Work::Commands(match op {
            LocalOp::Compute(mut call) => {
                let check = self.count_check(&mut call, named)?;
                let mut inspections = Vec::new();
                for (gradient, region) in call.call.written_gradients() {
                    named.gradients.push((call.call.id, gradient.weight));
                    let number = u32::try_from(named.gradients.len()).unwrap_or(u32::MAX);
                    let says = (self.progress.gradients(), number);
                    inspections.push(Command::kernel(prepare.inspect((gradient, region), says)?));
                }
                return Ok(Work::Call { call, check, inspections });
            }
            LocalOp::CustomOptimizer(op) => {
                let check = prepare.finite_check(&op)?.map(Command::kernel);
                return Ok(Work::CustomOptimizer(op.task, check));
            }
            LocalOp::ClearFault { fault } => {
                return Ok(Work::ClearFault(Command::zero(self.arena, fault).into_iter().collect()));
            }
            LocalOp::Copy { from, to } => {
                let (from, target) = (self.arena.plus(from.offset), self.arena.plus(to.offset));
                Command::copy(from, target, to.bytes).into_iter().collect()
            }
            LocalOp::Snapshot { from, to } => self.snapshot(from, to)?,
            LocalOp::Zero { region } => Command::zero(self.arena, region).into_iter().collect(),
            LocalOp::Collective(op) => self.collective(binding, receive_buffer, task, lane, &op)?,
            LocalOp::PartialAmax(op) => kernel(prepare.partial_amax(&op)?),
            LocalOp::FusedScale(op) => kernel(prepare.fused_scale(&op)?),
            LocalOp::DelayedScale(op) => kernel(prepare.delayed_scale(&op)?),
            LocalOp::RecordAmax(op) => kernel(prepare.record_amax(&op)?),
            LocalOp::PartialCast(op) => kernel(prepare.partial_cast(&op)?),
            LocalOp::Assemble(op) => kernels(prepare.assemble(&op)?),
            LocalOp::Transpose(parts) => kernels(prepare.transpose(&parts)?),
            LocalOp::Dequantize(parts) => kernels(prepare.dequantize(&parts)?),
            LocalOp::Round(op) => kernel(prepare.round(&op)?),
            LocalOp::SumGradient(op) => kernels(prepare.sum_gradient(&op)?),
            LocalOp::Accumulate(op) => kernel(prepare.accumulate(&op)?),
            LocalOp::GradNorm(op) => kernel(prepare.grad_norm(&op)?),
            LocalOp::Vote(op) => kernel(prepare.vote(&op)?),
            LocalOp::Adam(op) => kernel(prepare.adam(&op)?),
        }))
    }

    /// Checks the counts that a call writes, if ranks give each other rows by them.
    fn count_check(&self, call: &mut ComputeCall, named: &mut Named) -> Result<Option<Command>, CudaFailure> {
        let before = named.counts.len();
        let id = call.call.id;
        named.counts.extend(call.counts.drain(..).map(|written| (id, written)));
        let operands: Vec<_> = (before..)
            .zip(&named.counts[before..])
            .map(|(place, (_, written))| CountsOperand {
                counts: self.arena.plus(written.region.offset),
                slots: written.region.bytes / size_of::<u32>(),
                capacity: written.capacity,
                number: u32::try_from(place + 1).unwrap_or(u32::MAX),
            })
            .collect();
        if operands.is_empty() {
            return Ok(None);
        }
        let fault = (self.arena.plus(call.fault.offset), fault_word(id));
        self.kernels.count_check(&operands, fault, self.progress.overflow()).map(Command::kernel).map(Some)
    }

    /// The copy of a region of the arena to the snapshot; nothing for no bytes.
    fn snapshot(&self, from: Region, to: Region) -> Result<Vec<Command>, CudaFailure> {
        if to.bytes == 0 {
            return Ok(Vec::new());
        }
        let missing = || {
            CudaFailure::Refused("the rank has no snapshot; reserve it before the plan is bound".to_owned())
        };
        let snapshot = self.snapshot.ok_or_else(missing)?;
        let (from, to, bytes) = (self.arena.plus(from.offset), snapshot.address(to)?, to.bytes);
        Ok(vec![Command::CopyToHost { from, to, bytes, _kept: Arc::clone(snapshot) }])
    }

    fn collective(
        &self,
        binding: &Binding<'_>,
        receive_buffer: &ReceiveBuffers,
        task: TaskId,
        lane: LaneId,
        op: &Collective,
    ) -> Result<Vec<Command>, CudaFailure> {
        let communication = self.lanes.get(&lane).and_then(Option::as_ref);
        let missing =
            || CudaFailure::Refused(format!("{lane} has no communicator; collectives belong on one"));
        let communication = communication.ok_or_else(missing)?;
        let team = self.world.team(binding.rank, op.group);
        let home = |rank: RankId| self.homes.get(rank.index()).copied();
        let homes: Option<Vec<Home>> = team.iter().map(home).collect();
        let homes =
            homes.ok_or_else(|| CudaFailure::Refused("a rank of the mesh has no arena".to_owned()))?;
        let route = Route {
            view: View {
                rank: team.own(),
                homes: &homes,
                hosts: team.hosts(),
                receive_buffer: receive_buffer.place(lane),
            },
            team,
            group: op.group,
            homes: self.homes,
            transport: team.transport(),
            reduce: self.world.options.reduce,
            communication,
            on_host: HostMeeting::of(self.world, binding.rank),
            kernel_bytes: self.world.options.kernel_bytes,
            copies_signals: self.world.options.signal_by == SignalBy::Copy,
            done: Mark { word: self.progress.lane(lane), number: task.number().saturating_add(1) },
        };
        route.collective(self.kernels, op)
    }
}

fn kernel(launch: KernelLaunch) -> Vec<Command> {
    vec![Command::kernel(launch)]
}

fn kernels(launches: Vec<KernelLaunch>) -> Vec<Command> {
    launches.into_iter().map(Command::kernel).collect()
}
