//! Ranks that disagree, misbehave or die: each ends in an error on every rank, never in a hang.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod meddler;
mod trainer;
mod wrapped;

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use meddler::backends;
use trainer::{HANGS, Mischief, Trainer, ended, feed, within_a_minute};
use warpweft::backend::cpu::CpuSurface;
use warpweft::backend::{Backend, Checked};
use warpweft::compute::{Compute, ComputeContext, ComputeError, ComputeFactory};
use warpweft::config::Config;
use warpweft::exec::{CaptureMode, Exchange, ExecError, Pump, Rank, WeightShard, World};
use warpweft::flow::{FlowError, Issuer, Message, Poison, Post, Right, Wiring};
use warpweft::format::Format;
use warpweft::id::{ActorId, ProgramId, RankId, TaskId, Version};
use warpweft::layout::{Content, Lane, Region, Weights};
use warpweft::model::{BufferSpec, Call, Mesh, Role};
use warpweft::plan::{EdgeKind, Policy, ResidentLayout, StepPlan};
use warpweft::session::SessionError;
use wrapped::{Moment, Wrapped};

fn plans(depth: u32, ranks: u32) -> (Arc<StepPlan>, Arc<StepPlan>) {
    let trainer = Trainer::new(2, Format::F32);
    let mut config = Config::default();
    config.prefetch.depth = Some(depth);
    let weights = Weights::new(trainer.model.weights(), Mesh::new(ranks).unwrap());
    let resident = ResidentLayout::new(&weights, &[&trainer.train]).unwrap();
    let policy = Policy::from(&config);
    let prologue = StepPlan::prologue(&weights, &resident, &policy).unwrap();
    let plan = StepPlan::within(&trainer.train, &weights, &resident, &policy).unwrap();
    (Arc::new(prologue), Arc::new(plan))
}

fn closures() -> ComputeFactory<CpuSurface> {
    Arc::new(|_| {
        let halves = |call: &Call, context: &ComputeContext<'_, CpuSurface>| -> Result<(), ComputeError> {
            for gradient in &call.gradients {
                context.gradient(gradient.weight)?.fill(0.5);
            }
            for access in call.buffers.iter().filter(|access| access.access.writes()) {
                context.write_bytes(access.buffer)?.fill(0);
            }
            Ok(())
        };
        Ok(Box::new(halves) as Box<dyn Compute<CpuSurface>>)
    })
}

/// Sets every rank up with a plan of its own, and returns what became of it.
fn set_up(plans_of: impl Fn(u32) -> (Arc<StepPlan>, Arc<StepPlan>) + Sync) -> Vec<Result<(), ExecError>> {
    let world = Arc::new(World::new(2, Duration::from_secs(60)));
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
fn ranks_that_disagree_on_order_are_refused_before_anything_runs() {
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
    let error = ended(|| {
        let world = World::new(3, Duration::from_millis(50));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| world.exchange(RankId::new(2), 7));
            let error = world.exchange(RankId::new(0), 7).unwrap_err();
            assert!(other.join().unwrap().is_err());
            error
        })
    });
    // Where rank 2 is slower than the deadline, it is missed as well.
    let missing = ["rank 1 did not come", "rank 1, rank 2 did not come"];
    assert!(missing.iter().any(|words| error.to_string().contains(words)), "{error}");
}

#[test]
fn a_rank_that_is_not_of_the_world_is_refused() {
    let world = World::new(2, Duration::from_millis(50));
    let error = world.exchange(RankId::new(2), 7).unwrap_err();
    assert!(error.to_string().contains("rank 2") && error.to_string().contains("the 2 ranks"), "{error}");
}

/// PL-9.
#[test]
fn a_plan_that_needs_other_weights_than_the_rank_holds_is_refused_before_it_runs() {
    let (prologue, plan) = plans(1, 1);
    let made = |plan: StepPlan| {
        let world = Arc::new(World::new(1, Duration::from_secs(60)));
        let programs = vec![Arc::new(plan)];
        let prologue = Arc::clone(&prologue);
        Rank::new(backends(1).remove(0), world, prologue, programs, CaptureMode::Off, &closures()).unwrap()
    };
    let exchange = || Exchange {
        staged: vec![
            plan.buffers
                .iter()
                .map(|spec| if spec.role == Role::Internal { Vec::new() } else { vec![0; spec.bytes()] })
                .collect(),
        ],
        ..Exchange::default()
    };
    let mut ahead = (*plan).clone();
    ahead.entry.shards = ahead.entry.shards.map(Version::next);
    let error = made(ahead).step(ProgramId::new(0), &mut exchange()).unwrap_err();
    assert!(matches!(&error, ExecError::Entry { .. }), "{error}");
    assert!(error.to_string().contains("shards at version 1"), "{error}");

    // A plan that leaves other weights than it promises is caught behind its own step.
    let mut liar = (*plan).clone();
    liar.exit.shards = Some(Version::new(0));
    let error = made(liar).step(ProgramId::new(0), &mut exchange()).unwrap_err();
    assert!(matches!(&error, ExecError::Exit { .. }), "{error}");

    let mut rank = made((*plan).clone());
    for _ in 0..3 {
        rank.step(ProgramId::new(0), &mut exchange()).unwrap();
    }
    let error = rank.step(ProgramId::new(1), &mut exchange()).unwrap_err();
    let ExecError::NoProgram { program, programs: 1, .. } = error else { panic!("{error}") };
    assert_eq!(program, ProgramId::new(1));
}

/// PL-7, PL-4. *Captured step whose warm-up pollutes main grads*. What a warm-up left in main grads reaches
/// no step, because the first contribution of a step overwrites; and the step it counted is missed, eager,
/// recorded and replayed.
#[test]
fn a_captured_step_whose_warm_up_pollutes_main_grads_and_optimizer_is_refused() {
    let (prologue, plan) = plans(1, 1);
    let slots = plan.arena.slots.iter();
    let main_grads: Vec<Region> =
        slots.filter(|slot| matches!(slot.content, Content::MainGrad(_))).map(|slot| slot.region).collect();
    let count = plan.arena.region(plan.arena.find(Content::OptimizerStep).unwrap());
    let run = |pollutes: bool, counts_in: Option<usize>| {
        let (main_grads, step) = (main_grads.clone(), Arc::new(AtomicUsize::new(0)));
        let now = Arc::clone(&step);
        let warmed = Cell::new(false);
        let backend = Wrapped::leaving(backends(1).remove(0), move |backend, memory| {
            for region in main_grads.iter().filter(|_| pollutes) {
                backend.upload(memory, *region, &vec![0x42; region.bytes]).unwrap();
            }
            if counts_in == Some(now.load(Ordering::SeqCst)) && !warmed.replace(true) {
                let mut bytes = [0; 4];
                backend.download(memory, count.part(0, 4).unwrap(), &mut bytes).unwrap();
                let more = (u32::from_ne_bytes(bytes) + 1).to_ne_bytes();
                backend.upload(memory, count.part(0, 4).unwrap(), &more).unwrap();
            }
        });
        let world = Arc::new(World::new(1, Duration::from_secs(60)));
        let programs = vec![Arc::clone(&plan)];
        let mut rank =
            Rank::new(backend, world, Arc::clone(&prologue), programs, CaptureMode::Recorded, &closures())
                .unwrap();
        let staged = |spec: &BufferSpec| {
            if spec.role == Role::Internal { Vec::new() } else { vec![0; spec.bytes()] }
        };
        let staged = vec![plan.buffers.iter().map(staged).collect()];
        let mut exchange = Exchange { staged, learning_rate: 1e-3, loss_scale: 1.0, ..Exchange::default() };
        (0..3).try_for_each(|number| {
            step.store(number, Ordering::SeqCst);
            rank.step(ProgramId::new(0), &mut exchange)
        })?;
        Ok::<_, ExecError>(exchange.vote.unwrap())
    };
    let clean = run(false, None).unwrap();
    assert_eq!(clean.step, 3);
    let polluted = run(true, None).unwrap();
    assert_eq!((polluted.step, polluted.norm.to_bits()), (clean.step, clean.norm.to_bits()));
    for step in 0..3 {
        let error = run(true, Some(step)).unwrap_err();
        assert!(matches!(&error, ExecError::Steps { .. }), "{error}");
        let words = format!("counts {} steps after `train`, but {} were issued", step + 2, step + 1);
        assert!(error.to_string().contains(&words), "{error}");
        assert!(error.to_string().contains("a warm-up of a recording"), "{error}");
    }
}

thread_local! {
    /// What a backend may set that its own test's thread drives: backends may move, and poison does not.
    static MARK: RefCell<Option<Poison>> = const { RefCell::new(None) };
}

/// FL-4: poison is looked at before a step and behind it.
#[test]
fn a_poisoned_rank_enqueues_nothing_and_one_poisoned_on_the_way_does_not_end_its_step_well() {
    let (_, plan) = plans(1, 1);
    for (poisoned_at, enqueued) in [(None, 0), (Some(4), plan.tasks.len())] {
        let (poison, seen) = (Poison::default(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&seen);
        MARK.set(Some(poison.clone()));
        let backend = Wrapped::new(backends(1).remove(0), move |asked| {
            if asked.moment == Moment::Enqueue && Some(count.fetch_add(1, Ordering::SeqCst)) == poisoned_at {
                MARK.with_borrow(|mark| mark.as_ref().unwrap().set("a right was lost, as the test wants"));
            }
            Ok(())
        });
        if poisoned_at.is_none() {
            poison.set("a right was lost, as the test wants");
        }
        let memory = backend.reserve(plan.arena.bytes(), 0).unwrap();
        let open = |lane: &Lane| {
            backend.open(&memory, *lane, (lane.id == plan.compute_lane()).then(closures)).unwrap()
        };
        let mut streams: Vec<_> = plan.lanes.iter().map(open).collect();
        let ops = plan.ops();
        let mut bound = backend.bind(&memory, &plan.binding(RankId::new(0), &ops)).unwrap();
        backend.begin_step(&mut bound).unwrap();
        let mut pump = Pump::new(RankId::new(0), &plan, poison);
        let error = pump.run(&backend, &mut streams, &bound).unwrap_err();
        assert!(matches!(&error, FlowError::Poisoned { .. }), "{error}");
        assert_eq!(seen.load(Ordering::SeqCst), enqueued);
        streams.iter_mut().for_each(|stream| backend.synchronize(stream).unwrap());
    }
}

/// AC-2: whoever drives the actors, a lane's tasks are issued in the plan's order.
#[test]
fn the_issuer_refuses_a_task_that_is_not_next_on_its_lane() {
    let (_, plan) = plans(1, 1);
    let backend = Checked::new(backends(1).remove(0));
    let memory = backend.reserve(plan.arena.bytes(), 0).unwrap();
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

/// AC-1: a whole step is issued while its first call stands still on the device, and what the device waits
/// for are the plan's fences alone.
#[test]
fn a_step_is_issued_to_its_end_while_the_device_stands_still() {
    let (_, plan) = plans(1, 1);
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let closed = Arc::new(AtomicUsize::new(0));
    let held: ComputeFactory<CpuSurface> = {
        let (gate, closed) = (Arc::clone(&gate), Arc::clone(&closed));
        Arc::new(move |_| {
            let (gate, closed) = (Arc::clone(&gate), Arc::clone(&closed));
            let waits = move |call: &Call, context: &ComputeContext<'_, CpuSurface>| {
                let (open, bell) = &*gate;
                let shut = |open: &mut bool| !*open;
                let limit = HANGS;
                let waited = bell.wait_timeout_while(open.lock().unwrap(), limit, shut).unwrap().1;
                closed.fetch_add(usize::from(waited.timed_out()), Ordering::SeqCst);
                call.gradients.iter().try_for_each(|gradient| {
                    context.gradient(gradient.weight)?.fill(0.5);
                    Ok::<_, ComputeError>(())
                })
            };
            Ok(Box::new(waits) as Box<dyn Compute<CpuSurface>>)
        })
    };
    let asked = Arc::new(Mutex::new(Vec::new()));
    let book = Arc::clone(&asked);
    let backend = Wrapped::new(backends(1).remove(0), move |asked| {
        book.lock().unwrap().push(asked.moment);
        Ok(())
    });
    let memory = backend.reserve(plan.arena.bytes(), 0).unwrap();
    let open = |lane: &Lane| {
        let closures = (lane.id == plan.compute_lane()).then(|| Arc::clone(&held));
        backend.open(&memory, *lane, closures).unwrap()
    };
    let mut streams: Vec<_> = plan.lanes.iter().map(open).collect();
    let ops = plan.ops();
    let mut bound = backend.bind(&memory, &plan.binding(RankId::new(0), &ops)).unwrap();
    backend.begin_step(&mut bound).unwrap();
    Pump::new(RankId::new(0), &plan, Poison::default()).run(&backend, &mut streams, &bound).unwrap();
    let count = |moment| asked.lock().unwrap().iter().filter(|asked| **asked == moment).count();
    assert_eq!(count(Moment::Enqueue), plan.tasks.len());
    assert_eq!(count(Moment::Wait), plan.tasks.iter().map(|task| task.waits.len()).sum::<usize>());
    assert_eq!(count(Moment::Synchronize), 0);
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    streams.iter_mut().for_each(|stream| backend.synchronize(stream).unwrap());
    assert_eq!(closed.load(Ordering::SeqCst), 0, "the step was issued before the gate opened");
}

/// FL-2.
#[test]
fn a_slot_is_not_written_while_a_lease_on_it_is_open() {
    let (_, plan) = plans(1, 1);
    let backend = backends(1).remove(0);
    let memory = backend.reserve(plan.arena.bytes(), 0).unwrap();
    let open =
        |lane: &Lane| backend.open(&memory, *lane, (lane.id == plan.compute_lane()).then(closures)).unwrap();
    let mut streams: Vec<_> = plan.lanes.iter().map(open).collect();
    let ops = plan.ops();
    let mut bound = backend.bind(&memory, &plan.binding(RankId::new(0), &ops)).unwrap();
    backend.begin_step(&mut bound).unwrap();
    // The first task grants a lease on what it writes; the second, which has no part in it, is wired to write
    // the same slot.
    let sound = Wiring::new(&plan);
    let leases = &sound.grants[sound.tasks[0].grants.clone()];
    let lease = leases.iter().find(|edge| edge.kind == EdgeKind::Lease).unwrap();
    let second = TaskId::new(1);
    assert!(lease.to != second && sound.tasks[1].incoming == 0);
    let mut issue = |wiring: Wiring| {
        let post = Post::new(RankId::new(0), vec![ActorId::new(0); plan.tasks.len()], &[1000]);
        let poison = Poison::default();
        let mut issuer = Issuer::new(RankId::new(0), Arc::clone(&plan), Arc::new(wiring), poison);
        issuer.begin(&post).unwrap();
        issuer.issue(TaskId::new(0), std::iter::empty(), &post, &backend, &mut streams, &bound).unwrap();
        issuer.issue(second, std::iter::empty(), &post, &backend, &mut streams, &bound).map(|_| ())
    };
    let mut wired = sound.clone();
    wired.writes.push(lease.slot);
    wired.tasks[1].writes = sound.writes.len()..sound.writes.len() + 1;
    let error = issue(wired).unwrap_err();
    let granted =
        leases.iter().filter(|edge| (edge.kind, edge.slot) == (EdgeKind::Lease, lease.slot)).count();
    assert!(matches!(&error, FlowError::Occupied { open, .. } if *open as usize == granted), "{error}");
    assert!(error.to_string().contains(&plan.arena.slot(lease.slot).name), "{error}");
    streams.iter_mut().for_each(|stream| backend.synchronize(stream).unwrap());
}

/// FL-3.
#[test]
fn a_lease_that_was_not_granted_in_this_step_is_refused() {
    let (_, plan) = plans(1, 1);
    let backend = backends(1).remove(0);
    let memory = backend.reserve(plan.arena.bytes(), 0).unwrap();
    let open =
        |lane: &Lane| backend.open(&memory, *lane, (lane.id == plan.compute_lane()).then(closures)).unwrap();
    let mut streams: Vec<_> = plan.lanes.iter().map(open).collect();
    let ops = plan.ops();
    let mut bound = backend.bind(&memory, &plan.binding(RankId::new(0), &ops)).unwrap();
    backend.begin_step(&mut bound).unwrap();
    let poison = Poison::default();
    let post = Post::new(RankId::new(0), vec![ActorId::new(0); plan.tasks.len()], &[1000]);
    let mut begun = |wiring: Wiring| {
        let mut issuer = Issuer::new(RankId::new(0), Arc::clone(&plan), Arc::new(wiring), poison.clone());
        issuer.begin(&post).unwrap();
        issuer.issue(TaskId::new(0), std::iter::empty(), &post, &backend, &mut streams, &bound).unwrap();
        issuer
    };
    begun(Wiring::new(&plan));
    let mut rights: Vec<Right> = std::iter::from_fn(|| post.mailbox(ActorId::new(0)).take())
        .filter_map(|message| match message {
            Message::Right(right) => Some(right),
            Message::Turn(_) => None,
        })
        .collect();
    let lease = rights.iter().position(|right| matches!(right, Right::Lease(_))).unwrap();
    let lease = rights.remove(lease);
    let slot = plan.arena.slot(lease.slot()).name.clone();
    // The step after it, in which the first task grants nothing.
    let mut silent = Wiring::new(&plan);
    silent.tasks[0].grants = 0..0;
    let mut issuer = begun(silent);
    let second = TaskId::new(1);
    let error =
        issuer.issue(second, std::iter::once(lease), &post, &backend, &mut streams, &bound).unwrap_err();
    assert!(matches!(&error, FlowError::Unleased { slot: named, .. } if *named == slot), "{error}");
    for right in rights {
        let _ = right.spend();
    }
    streams.iter_mut().for_each(|stream| backend.synchronize(stream).unwrap());
}

/// FL-4.
#[test]
fn a_right_that_is_lost_poisons_the_rank() {
    let (_, plan) = plans(1, 1);
    let backend = backends(1).remove(0);
    let memory = backend.reserve(plan.arena.bytes(), 0).unwrap();
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

#[test]
fn a_rank_thread_that_dies_in_a_step_ends_the_step_on_every_rank_and_is_named() {
    within_a_minute(async {
        for fatal in [3, 20, 45] {
            let trainer = Trainer::new(3, Format::NVFP4_2D);
            let ranks = backends(3)
                .into_iter()
                .map(|inner| {
                    let left = Cell::new((inner.rank() == RankId::new(2)).then_some(fatal));
                    Wrapped::new(inner, move |asked| {
                        if let (Moment::Enqueue, Some(tasks)) = (asked.moment, left.get()) {
                            assert!(tasks > 0, "this rank's thread dies here, as the test wants");
                            left.set(Some(tasks - 1));
                        }
                        Ok(())
                    })
                })
                .collect();
            let mut session =
                trainer.builder(Config::default(), &Mischief::default()).start(ranks).await.unwrap();
            feed(&mut session, "train", 3, 0);
            let error = session.step("train").await.unwrap_err();
            assert!(matches!(&error, SessionError::Poisoned { .. }), "{error}");
            let said = error.to_string();
            assert!(said.contains("rank 2") && said.contains("dies here, as the test wants"), "{said}");
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
        assert!(matches!(&error, SessionError::Exec(ExecError::Backend(_))), "{error:?}");
        let said = error.to_string();
        assert!(said.contains("rank 1") && said.contains("no closures on this rank"), "{said}");
    });
}

/// Nothing is half-changed: a shard of other rows than the rank's is refused before a byte is written.
#[test]
fn weights_of_other_rows_than_a_rank_has_are_refused_before_anything_is_written() {
    ended(|| {
        let (prologue, plan) = plans(1, 1);
        let world = Arc::new(World::new(1, Duration::from_secs(60)));
        let backend = backends(1).remove(0);
        let mut rank =
            Rank::new(backend, world, prologue, vec![plan], CaptureMode::Off, &closures()).unwrap();
        let mut exchange = Exchange::default();
        let ones: warpweft::exec::Initializer = Arc::new(|_, values| {
            values.fill(1.0);
            Ok(())
        });
        rank.initialize(&ones).unwrap();
        rank.export(&mut exchange).unwrap();
        let (whole, first) = (exchange.shards.clone(), exchange.shards[0].master.clone());
        let last = whole.len() - 1;
        for spoil in 0..5 {
            exchange.shards.clone_from(&whole);
            exchange.shards[0].master.fill(9.0);
            match spoil {
                0 => exchange.shards[last].exp_avg.push(2.0),
                1 => exchange.shards[last].master.truncate(3),
                2 => exchange.shards.truncate(last),
                3 => exchange.carried.push(vec![0; 4]),
                _ => exchange.shards.push(WeightShard::default()),
            }
            let error = rank.import(&exchange).unwrap_err();
            assert!(matches!(error, ExecError::Misfit { .. }), "{error}");
            rank.export(&mut exchange).unwrap();
            assert_eq!(exchange.shards[0].master, first, "{error}");
        }
        exchange.shards.clone_from(&whole);
        rank.import(&exchange).unwrap();
    });
}
