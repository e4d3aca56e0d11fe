//! Ranks that disagree, misbehave or die: each ends in an error on every rank, never in a hang.

mod by_hand;
mod frozen;
mod issuing;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use warpweft_backend::Backend;
use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::{ProgramId, RankId, Version};
use warpweft_format::Format;
use warpweft_plan::compute::{Compute, ComputeContext, ComputeError, ComputeFactory};
use warpweft_plan::layout::{Content, Region, Weights};
use warpweft_plan::model::{BufferSpec, Call, Hyperparameters, Mesh, Role};
use warpweft_plan::plan::{Policy, ResidentLayout, StepPlan};
use warpweft_session::checkpoint::ranks::WeightShard;
use warpweft_session::config::Config;
use warpweft_session::exec::{CaptureMode, ComingStep, ExecError, Handover, Rank, World};
use warpweft_session::session::SessionError;
use warpweft_testing::meddler::backends;
use warpweft_testing::trainer::{self, Mischief, Trainer, ended, feed, within_a_minute};
use warpweft_testing::wrapped::{Moment, Wrapped};

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
    let handover = || Handover {
        staged: vec![
            plan.buffers
                .iter()
                .map(|spec| if spec.role == Role::Internal { Vec::new() } else { vec![0; spec.bytes()] })
                .collect(),
        ],
        ..Handover::default()
    };
    let mut ahead = (*plan).clone();
    ahead.entry.shards = ahead.entry.shards.map(Version::next);
    let error = made(ahead).step(ProgramId::new(0), &mut handover()).unwrap_err();
    assert!(matches!(&error, ExecError::Entry { .. }), "{error}");
    assert!(error.to_string().contains("shards at version 1"), "{error}");

    // A plan that leaves other weights than it promises is caught after its own step.
    let mut liar = (*plan).clone();
    liar.exit.shards = Some(Version::new(0));
    let error = made(liar).step(ProgramId::new(0), &mut handover()).unwrap_err();
    assert!(matches!(&error, ExecError::Exit { .. }), "{error}");

    let mut rank = made((*plan).clone());
    for _ in 0..3 {
        rank.step(ProgramId::new(0), &mut handover()).unwrap();
    }
    let error = rank.step(ProgramId::new(1), &mut handover()).unwrap_err();
    let ExecError::NoProgram { program, programs: 1, .. } = error else { panic!("{error}") };
    assert_eq!(program, ProgramId::new(1));
}

/// PL-7, PL-4. *Captured step whose warm-up pollutes main grads*. What a warm-up left in main grads reaches
/// no step, because the first contribution of a step overwrites; and the step it counted is missed, eager,
/// captured and replayed.
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
            Rank::new(backend, world, Arc::clone(&prologue), programs, CaptureMode::Captured, &closures())
                .unwrap();
        let staged = |spec: &BufferSpec| {
            if spec.role == Role::Internal { Vec::new() } else { vec![0; spec.bytes()] }
        };
        let staged = vec![plan.buffers.iter().map(staged).collect()];
        let by = Hyperparameters { learning_rate: 1e-3, weight_decay: 0.0, beta1: 0.9, beta2: 0.999 };
        let mut handover = Handover {
            staged,
            coming: ComingStep {
                hyperparameters: vec![by; plan.weights.layouts.len()].into(),
                loss_scale: 1.0,
                gradient_scale: 1.0,
                ..ComingStep::default()
            },
            ..Handover::default()
        };
        (0..3).try_for_each(|number| {
            step.store(number, Ordering::SeqCst);
            rank.step(ProgramId::new(0), &mut handover)
        })?;
        Ok::<_, ExecError>(handover.last.vote.unwrap())
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
        assert!(error.to_string().contains("a warm-up of a capture"), "{error}");
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
                    let left = Cell::new((inner.rank() == RankId::new(2)).then_some(fatal));
                    Wrapped::new(inner, move |requested| {
                        if let (Moment::Enqueue, Some(tasks)) = (requested.moment, left.get()) {
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
        let builder = warpweft_session::session::Session::builder(Config::default(), broken);
        let error = builder
            .program(trainer.train.clone())
            .initialize(trainer::initial)
            .start_cpu(2)
            .await
            .unwrap_err();
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
        let mut handover = Handover::default();
        let ones: warpweft_session::exec::Initializer = Arc::new(|_, values| {
            values.fill(1.0);
            Ok(())
        });
        rank.initialize(&ones, None).unwrap();
        rank.export(&mut handover).unwrap();
        let (whole, first) =
            (handover.transfer.own.shards.clone(), handover.transfer.own.shards[0].master.clone());
        let last = whole.len() - 1;
        for spoil in 0..5 {
            handover.transfer.own.shards.clone_from(&whole);
            handover.transfer.own.shards[0].master.fill(9.0);
            match spoil {
                0 => handover.transfer.own.shards[last].states[0].push(2.0),
                1 => handover.transfer.own.shards[last].master.truncate(3),
                2 => handover.transfer.own.shards.truncate(last),
                3 => handover.transfer.own.carried.push(vec![0; 4]),
                _ => handover.transfer.own.shards.push(WeightShard::default()),
            }
            let error = rank.import(&mut handover).unwrap_err();
            assert!(matches!(error, ExecError::Misfit { .. }), "{error}");
            rank.export(&mut handover).unwrap();
            assert_eq!(handover.transfer.own.shards[0].master, first, "{error}");
        }
        handover.transfer.own.shards.clone_from(&whole);
        rank.import(&mut handover).unwrap();
    });
}
