//! Ranks that disagree, misbehave or die: each ends in an error on every rank, never in a hang.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod trainer;

use std::sync::Arc;
use std::time::{Duration, Instant};

use trainer::{Mischief, Trainer, feed, within_a_minute};
use warpweft::backend::cpu::{CpuBackend, CpuOptions, CpuSurface, CpuWorld};
use warpweft::backend::{Backend, BackendError, Checked, ClosureFault, TaskInterval};
use warpweft::compute::{Compute, ComputeContext, ComputeError, ComputeFactory};
use warpweft::config::Config;
use warpweft::exec::{CaptureMode, ExecError, Rank, World};
use warpweft::flow::{FlowError, Issuer, Poison, Post, Wiring};
use warpweft::format::Format;
use warpweft::id::{ActorId, EventId, LaneId, RankId, TaskId};
use warpweft::layout::{Binding, Lane, Region, Weights};
use warpweft::model::{Call, Mesh};
use warpweft::plan::{Policy, ResidentLayout, StepPlan};
use warpweft::session::SessionError;

fn plans(depth: u32, ranks: u32) -> (Arc<StepPlan>, Arc<StepPlan>) {
    let trainer = Trainer::new(2, Format::F32);
    let mut config = Config::default();
    config.prefetch.depth = depth;
    let weights = Weights::new(trainer.model.weights(), Mesh::new(ranks).unwrap());
    let resident = ResidentLayout::new(&weights, &[&trainer.train]).unwrap();
    let policy = Policy::from(&config);
    let prologue = StepPlan::prologue(&weights, &resident, &policy).unwrap();
    let plan = StepPlan::within(&trainer.train, &weights, &resident, &policy).unwrap();
    (Arc::new(prologue), Arc::new(plan))
}

fn closures() -> ComputeFactory<CpuSurface> {
    Arc::new(|_| {
        let nothing = |_: &Call, _: &ComputeContext<'_, CpuSurface>| -> Result<(), ComputeError> { Ok(()) };
        Box::new(nothing) as Box<dyn Compute<CpuSurface>>
    })
}

fn backends(ranks: u32) -> Vec<CpuBackend> {
    let world = CpuWorld::new(Mesh::new(ranks).unwrap(), CpuOptions::default()).unwrap();
    (0..ranks).map(|rank| world.backend(RankId::new(rank)).unwrap()).collect()
}

/// Sets every rank up with a plan of its own, and returns what became of it.
fn set_up(plans_of: impl Fn(u32) -> (Arc<StepPlan>, Arc<StepPlan>) + Sync) -> Vec<Result<(), ExecError>> {
    let world = Arc::new(World::new(2, Duration::from_secs(10)));
    std::thread::scope(|scope| {
        let threads: Vec<_> = backends(2)
            .into_iter()
            .map(|backend| {
                let (world, plans_of) = (Arc::clone(&world), &plans_of);
                scope.spawn(move || {
                    let (prologue, plan) = plans_of(backend.rank().number());
                    let made = Rank::new(backend, world, prologue, vec![plan], CaptureMode::Off, &closures());
                    made.map(|_| ())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// PL-1.
#[test]
fn ranks_with_different_plans_are_refused_before_anything_runs() {
    for outcome in set_up(|rank| plans(rank, 2)) {
        let error = outcome.unwrap_err();
        assert!(matches!(error, ExecError::PlansDiffer { .. }), "{error}");
        assert!(
            error.to_string().contains("rank 0 has") && error.to_string().contains("rank 1 has"),
            "{error}"
        );
    }
    assert!(set_up(|_| plans(1, 2)).iter().all(Result::is_ok));
}

/// PL-1, PL-5: the order of collectives is part of the plan, so of its fingerprint.
#[test]
fn collectives_swapped_on_one_rank_are_refused_before_anything_runs() {
    let swapped = |rank: u32| {
        let (prologue, plan) = plans(2, 2);
        let mut plan = (*plan).clone();
        if rank == 1 {
            let gathers: Vec<usize> = (0..plan.tasks.len())
                .filter(|task| plan.tasks[*task].op.name() == "all-gather")
                .take(2)
                .collect();
            let first = plan.tasks[gathers[0]].op.clone();
            plan.tasks[gathers[0]].op = std::mem::replace(&mut plan.tasks[gathers[1]].op, first);
        }
        (prologue, Arc::new(plan))
    };
    for outcome in set_up(swapped) {
        assert!(matches!(outcome, Err(ExecError::PlansDiffer { .. })), "{outcome:?}");
    }
}

#[test]
fn a_rank_that_never_comes_is_missed_by_name_at_the_deadline() {
    let world = World::new(3, Duration::from_millis(50));
    let begun = Instant::now();
    let error = std::thread::scope(|scope| {
        let other = scope.spawn(|| world.exchange(RankId::new(2), 7));
        let error = world.exchange(RankId::new(0), 7).unwrap_err();
        assert!(other.join().unwrap().is_err());
        error
    });
    assert!(error.to_string().contains("rank 1 did not come"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10));
}

/// AC-2: whoever drives the actors, a lane's tasks are issued in the plan's order.
#[test]
fn a_pump_that_reorders_a_lane_is_stopped_at_the_first_task_out_of_turn() {
    let (_, plan) = plans(1, 1);
    let backend = Checked::new(backends(1).remove(0));
    let memory = backend.reserve(plan.arena.bytes()).unwrap();
    let mut streams: Vec<_> = (plan.lanes.iter())
        .map(|lane| {
            let compute = lane.id == plan.compute_lane();
            backend.open(&memory, *lane, compute.then(closures)).unwrap()
        })
        .collect();
    let ops = plan.ops();
    let bound = backend.bind(&memory, &plan.binding(RankId::new(0), &ops)).unwrap();
    let wiring = Arc::new(Wiring::new(&plan));
    let post = Post::new(RankId::new(0), vec![ActorId::new(0); plan.tasks.len()], &[1000]);
    let mut issuer = Issuer::new(RankId::new(0), Arc::clone(&plan), Arc::clone(&wiring), Poison::default());
    issuer.begin(&post).unwrap();
    let lane = plan.task(wiring.first[0]).lane;
    let second = plan.entries().filter(|(_, task)| task.lane == lane).nth(1).unwrap().0;
    let error = issuer.issue(second, std::iter::empty(), &post, &backend, &mut streams, &bound).unwrap_err();
    assert!(
        matches!(&error, FlowError::OutOfTurn { task, .. } if task.contains(&second.to_string())),
        "{error}"
    );
}

/// FL-4.
#[test]
fn a_right_that_is_lost_poisons_the_rank() {
    let (_, plan) = plans(1, 1);
    let backend = backends(1).remove(0);
    let memory = backend.reserve(plan.arena.bytes()).unwrap();
    let mut streams: Vec<_> = (plan.lanes.iter())
        .map(|lane| {
            let compute = lane.id == plan.compute_lane();
            backend.open(&memory, *lane, compute.then(closures)).unwrap()
        })
        .collect();
    let ops = plan.ops();
    let mut bound = backend.bind(&memory, &plan.binding(RankId::new(0), &ops)).unwrap();
    let poison = Poison::default();
    let wiring = Arc::new(Wiring::new(&plan));
    let post = Post::new(RankId::new(0), vec![ActorId::new(0); plan.tasks.len()], &[1000]);
    let mut issuer = Issuer::new(RankId::new(0), Arc::clone(&plan), Arc::clone(&wiring), poison.clone());
    backend.begin_step(&mut bound).unwrap();
    issuer.begin(&post).unwrap();
    let first = TaskId::new(0);
    assert!(!wiring.tasks[0].grants.is_empty(), "the first task grants something");
    issuer.issue(first, std::iter::empty(), &post, &backend, &mut streams, &bound).unwrap();
    while let Some(message) = post.mailbox(ActorId::new(0)).take() {
        drop(message);
    }
    assert!(poison.reason().unwrap().contains("dropped unspent"));
    assert!(matches!(issuer.begin(&post), Err(FlowError::Poisoned { .. })));
}

/// A backend whose rank thread panics when it enqueues its `fatal`-th task.
struct Dying {
    inner: CpuBackend,
    left: std::cell::Cell<Option<u32>>,
}

impl Backend for Dying {
    type Surface = CpuSurface;
    type Memory = <CpuBackend as Backend>::Memory;
    type Stream = <CpuBackend as Backend>::Stream;
    type Bound = <CpuBackend as Backend>::Bound;
    type Graph = <CpuBackend as Backend>::Graph;

    fn enqueue(
        &self,
        stream: &mut Self::Stream,
        bound: &Self::Bound,
        task: TaskId,
    ) -> Result<(), BackendError> {
        if let Some(left) = self.left.get() {
            assert!(left > 0, "this rank's thread dies here, as the test wants");
            self.left.set(Some(left - 1));
        }
        self.inner.enqueue(stream, bound, task)
    }

    fn rank(&self) -> RankId {
        self.inner.rank()
    }
    fn mesh(&self) -> Mesh {
        self.inner.mesh()
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn origin(&self) -> Instant {
        self.inner.origin()
    }
    fn lane(&self, stream: &Self::Stream) -> LaneId {
        self.inner.lane(stream)
    }
    fn reserve(&self, bytes: usize) -> Result<Self::Memory, BackendError> {
        self.inner.reserve(bytes)
    }
    fn open(
        &self,
        memory: &Self::Memory,
        lane: Lane,
        closures: Option<ComputeFactory<CpuSurface>>,
    ) -> Result<Self::Stream, BackendError> {
        self.inner.open(memory, lane, closures)
    }
    fn bind(&self, memory: &Self::Memory, binding: &Binding<'_>) -> Result<Self::Bound, BackendError> {
        self.inner.bind(memory, binding)
    }
    fn begin_step(&self, bound: &mut Self::Bound) -> Result<(), BackendError> {
        self.inner.begin_step(bound)
    }
    fn record(
        &self,
        stream: &mut Self::Stream,
        bound: &Self::Bound,
        event: EventId,
    ) -> Result<(), BackendError> {
        self.inner.record(stream, bound, event)
    }
    fn wait(
        &self,
        stream: &mut Self::Stream,
        bound: &Self::Bound,
        event: EventId,
    ) -> Result<(), BackendError> {
        self.inner.wait(stream, bound, event)
    }
    fn begin_capture(&self, streams: &mut [Self::Stream], bound: &Self::Bound) -> Result<(), BackendError> {
        self.inner.begin_capture(streams, bound)
    }
    fn end_capture(
        &self,
        streams: &mut [Self::Stream],
        bound: &Self::Bound,
    ) -> Result<Self::Graph, BackendError> {
        self.inner.end_capture(streams, bound)
    }
    fn launch(
        &self,
        streams: &mut [Self::Stream],
        bound: &Self::Bound,
        graph: &Self::Graph,
    ) -> Result<(), BackendError> {
        self.inner.launch(streams, bound, graph)
    }
    fn synchronize(&self, stream: &mut Self::Stream) -> Result<(), BackendError> {
        self.inner.synchronize(stream)
    }
    fn take_fault(&self, stream: &mut Self::Stream) -> Option<ClosureFault> {
        self.inner.take_fault(stream)
    }
    fn upload(&self, memory: &Self::Memory, region: Region, bytes: &[u8]) -> Result<(), BackendError> {
        self.inner.upload(memory, region, bytes)
    }
    fn download(&self, memory: &Self::Memory, region: Region, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.inner.download(memory, region, bytes)
    }
    fn intervals(&self, bound: &Self::Bound, into: &mut Vec<TaskInterval>) {
        self.inner.intervals(bound, into);
    }
    fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }
}

#[test]
fn a_rank_thread_that_dies_in_a_step_ends_the_step_on_every_rank_and_is_named() {
    within_a_minute(async {
        for fatal in [3, 20, 45] {
            let trainer = Trainer::new(3, Format::NVFP4_2D);
            let ranks = backends(3)
                .into_iter()
                .map(|inner| {
                    let dies = inner.rank() == RankId::new(2);
                    Dying { inner, left: std::cell::Cell::new(dies.then_some(fatal)) }
                })
                .collect();
            let mut session =
                trainer.builder(Config::default(), &Mischief::default()).start(ranks).await.unwrap();
            feed(&mut session, "train", 3, 0);
            let error = session.step("train").await.unwrap_err();
            assert!(matches!(&error, SessionError::Poisoned { .. }), "{error}");
            assert!(error.to_string().contains("rank 2"), "{error}");
            assert!(matches!(session.step("train").await, Err(SessionError::Poisoned { .. })));
            session.close().await.unwrap();
        }
    });
}

#[test]
fn closures_that_cannot_be_made_fail_the_start_with_their_rank() {
    within_a_minute(async {
        let trainer = Trainer::new(1, Format::F32);
        let broken = |rank: RankId| {
            assert_ne!(rank, RankId::new(1), "no closures on this rank");
            |_: &Call, _: &ComputeContext<'_, CpuSurface>| -> Result<(), ComputeError> { Ok(()) }
        };
        let builder = warpweft::session::Session::builder(Config::default(), broken);
        let error = builder.program(trainer.train.clone()).start_cpu(2).await.unwrap_err();
        assert!(error.to_string().contains("rank 1"), "{error}");
    });
}
