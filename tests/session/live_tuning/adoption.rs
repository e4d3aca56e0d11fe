//! Plans that a rank refuses to run in place of its program's.

use std::sync::Arc;
use std::time::Duration;

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::ProgramId;
use warpweft_format::Format;
use warpweft_plan::compute::{Compute, ComputeContext, ComputeError, ComputeFactory};
use warpweft_plan::layout::Weights;
use warpweft_plan::model::{Call, Mesh, StepProgram};
use warpweft_plan::plan::{GatherStart, Policy, ResidentLayout, StepPlan};
use warpweft_session::config::Config;
use warpweft_session::exec::{Adoption, CaptureMode, ComingStep, ExecError, Handover, Rank, World};
use warpweft_testing::meddler::backends;
use warpweft_testing::trainer::Trainer;

struct Plans {
    prologue: Arc<StepPlan>,
    resident: ResidentLayout,
    weights: Weights,
    policy: Policy,
}

impl Plans {
    fn new(trainer: &Trainer, programs: &[&StepProgram], ranks: u32) -> Self {
        let weights = Weights::new(trainer.model.weights(), Mesh::new(ranks).unwrap());
        let resident = ResidentLayout::new(&weights, programs).unwrap();
        let policy = Policy::from(&Config { reduce_delay: 2, ..Config::default() });
        let prologue = Arc::new(StepPlan::prologue(&weights, &resident, &policy).unwrap());
        Self { prologue, resident, weights, policy }
    }

    fn plan(&self, program: &StepProgram, depth: u32) -> Arc<StepPlan> {
        let policy = Policy { prefetch: GatherStart::Depth(depth), ..self.policy };
        Arc::new(StepPlan::within(program, &self.weights, &self.resident, &policy).unwrap())
    }
}

fn closures() -> ComputeFactory<CpuSurface> {
    Arc::new(|_| {
        let halves = |call: &Call, context: &ComputeContext<'_, CpuSurface>| -> Result<(), ComputeError> {
            for gradient in &call.gradients {
                context.gradient(gradient.weight)?.fill(0.5);
            }
            Ok(())
        };
        Ok(Box::new(halves) as Box<dyn Compute<CpuSurface>>)
    })
}

/// One step of every rank, which adopts what `adopted` says first.
fn step(
    plans: &Plans,
    own: &Arc<StepPlan>,
    later: &[Arc<StepPlan>],
    ranks: u32,
    adopted: impl Fn(u32) -> Arc<StepPlan> + Sync,
) -> Vec<Result<(), ExecError>> {
    let world = Arc::new(World::new(ranks, Duration::from_secs(60)));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .zip(backends(ranks))
            .map(|(rank, backend)| {
                let (world, adopted) = (Arc::clone(&world), &adopted);
                scope.spawn(move || {
                    let (prologue, programs) = (Arc::clone(&plans.prologue), vec![Arc::clone(own)]);
                    let capture = CaptureMode::Captured;
                    let mut owner =
                        Rank::with_room(backend, world, prologue, programs, later, capture, &closures())
                            .unwrap();
                    let staged = own.buffers.iter().map(|buffer| vec![0; buffer.bytes()]).collect();
                    let adoption = Some(Adoption { plan: adopted(rank), trial: true });
                    let coming = ComingStep { adoption, ..ComingStep::default() };
                    let mut handover = Handover { staged: vec![staged], coming, ..Handover::default() };
                    owner.step(ProgramId::new(0), &mut handover)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// TU-7: memory that was not reserved is not taken.
#[test]
fn a_plan_for_which_there_is_no_room_is_refused_and_one_that_was_named_up_front_runs() {
    let trainer = Trainer::new(4, Format::F32);
    let plans = Plans::new(&trainer, &[&trainer.train], 2);
    let (own, deeper) = (plans.plan(&trainer.train, 1), plans.plan(&trainer.train, 4));
    assert!(own.arena.bytes() < deeper.arena.bytes());
    for outcome in step(&plans, &own, &[], 2, |_| Arc::clone(&deeper)) {
        let error = outcome.unwrap_err();
        assert!(matches!(&error, ExecError::Adoption { program, .. } if program == "train"), "{error}");
        assert!(error.to_string().contains("are reserved"), "{error}");
    }
    let room = [Arc::clone(&deeper)];
    assert!(step(&plans, &own, &room, 2, |_| Arc::clone(&deeper)).iter().all(Result::is_ok));
}

/// PL-1, TU-8
#[test]
fn ranks_that_are_told_to_try_different_plans_are_refused_before_anything_is_bound() {
    let trainer = Trainer::new(4, Format::F32);
    let plans = Plans::new(&trainer, &[&trainer.train], 2);
    let deeper = plans.plan(&trainer.train, 4);
    for outcome in step(&plans, &deeper, &[], 2, |rank| plans.plan(&trainer.train, 1 + rank)) {
        assert!(matches!(outcome, Err(ExecError::PlansDiffer { .. })), "{outcome:?}");
    }
}

#[test]
fn a_plan_of_another_program_or_another_resident_region_is_refused() {
    let trainer = Trainer::new(2, Format::F32);
    let programs = [&trainer.train, &trainer.evaluate];
    let plans = Plans::new(&trainer, &programs, 1);
    let alone = Plans::new(&trainer, &programs[..1], 1);
    // As many bytes, but inputs lie elsewhere.
    let turned = Plans::new(&trainer, &[programs[1], programs[0]], 1);
    let own = plans.plan(&trainer.train, 1);
    for (other, words) in [
        (alone.plan(&trainer.train, 1), "resident region"),
        (turned.plan(&trainer.train, 1), "resident region"),
        (plans.plan(&trainer.evaluate, 1), "the plan is one of `evaluate`"),
    ] {
        let error =
            step(&plans, &own, &[Arc::clone(&other)], 1, |_| Arc::clone(&other)).remove(0).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}
