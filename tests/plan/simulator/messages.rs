//! EX-1, AC-3: the same messages drive the simulator and the CPU.

use std::cmp::Ordering;
use std::sync::{Arc, Mutex};

use warpweft_backend::cpu::{CpuOptions, CpuWorld};
use warpweft_backend::sim::SimWorld;
use warpweft_backend::{Backend, Checked};
use warpweft_base::id::{RankId, TaskId};
use warpweft_plan::compute::{ComputeContext, ComputeError, Surface};
use warpweft_plan::model::{Call, Mesh, Role, StepProgram};
use warpweft_plan::plan::Piece;
use warpweft_plan::policy::Reduce;
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{Session, simulate_program};
use warpweft_testing::wrapped::{Moment, Request, Wrapped};

use super::programs::{depth, plain, training, training_with};

fn one() -> Mesh {
    Mesh::new(1).unwrap()
}

fn simulated() -> impl Backend {
    let world = SimWorld::new(one(), plain(), Reduce::Ordered).unwrap();
    world.backend().unwrap()
}

/// Requests everything that the call writes, and writes nothing.
fn write_all<S: Surface>(call: &Call, context: &ComputeContext<'_, S>) -> Result<(), ComputeError> {
    for access in call.buffers.iter().filter(|access| access.access.writes()) {
        context.write_bytes(access.buffer)?;
    }
    call.gradients.iter().try_for_each(|gradient| context.gradient(gradient.weight).map(drop))
}

/// The calls that `backend` gets in a session of three steps.
fn requested<B: Backend>(backend: B, program: &StepProgram, config: &Config) -> Vec<Request>
where
    B::Surface: Surface + 'static,
{
    let log = Arc::new(Mutex::new(Vec::new()));
    let book = Arc::clone(&log);
    let logged = Wrapped::new(backend, move |requested| {
        book.lock().unwrap().push(requested);
        Ok(())
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let closures = |_| |call: &Call, context: &ComputeContext<'_, B::Surface>| write_all(call, context);
        let builder = Session::builder(config.clone(), closures).program(program.clone());
        let builder = builder.initialize(|_, _| {});
        let mut session = builder.start(vec![logged]).await.unwrap();
        let program = session.plan("train").unwrap();
        let inputs = program.buffers.iter().filter(|spec| spec.role == Role::Input);
        let inputs: Vec<_> = inputs.map(|spec| (spec.name.clone(), spec.bytes())).collect();
        let micro_batches = program.micro_batches as usize;
        for (name, bytes) in inputs {
            let zeros = vec![0; bytes * micro_batches];
            session.write_input_bytes("train", RankId::new(0), &name, &zeros).unwrap();
        }
        for _ in 0..3 {
            session.step("train").await.unwrap();
        }
        session.close().await.unwrap();
    });
    let log = log.lock().unwrap();
    log.clone()
}

#[test]
fn ex1_the_simulator_and_the_cpu_are_asked_the_same_in_the_same_order() {
    let (plain, dynamic) = (training(3, 8, 1000), training_with(&["forward 1", "backward 2"], 3, 8, 1000));
    for (capture, program) in [
        (Capture::Off, &plain),
        (Capture::Step, &plain),
        (Capture::Segments, &plain),
        (Capture::Segments, &dynamic),
    ] {
        let config = Config { capture, ..depth(2) };
        let cpu = CpuWorld::new(one(), CpuOptions::default()).unwrap().backend(RankId::new(0)).unwrap();
        let on_cpu = requested(cpu, program, &config);
        assert!(on_cpu.iter().any(|requested| requested.moment == Moment::Wait));
        assert_eq!(
            on_cpu.iter().any(|requested| requested.moment == Moment::Launch),
            capture != Capture::Off
        );
        assert_eq!(requested(simulated(), program, &config), on_cpu, "{capture:?}");
    }
}

/// AC-3: the actors request the same tasks, events and waits whether a step is issued, captured or neither (a
/// replay requests none).
#[test]
fn actors_ask_the_same_of_a_step_that_is_captured_as_of_one_that_is_not() {
    let program = training(3, 8, 1000);
    let of_steps = |capture| -> Vec<Request> {
        let all = requested(simulated(), &program, &Config { capture, ..depth(2) });
        let actors = [Moment::Enqueue, Moment::Record, Moment::Wait];
        all.into_iter().filter(|requested| actors.contains(&requested.moment)).collect()
    };
    // A prologue and three steps; of those that are captured one is issued, one captured, one replayed.
    let (issued, captured) = (of_steps(Capture::Off), of_steps(Capture::Step));
    let step = issued.len() - captured.len();
    assert!(step > 40, "{step}");
    assert_eq!(captured, issued[..captured.len()]);
    let (before, last) = captured.split_at(captured.len() - step);
    assert!(before.ends_with(last), "the captured step requests what the one before it requested");
}

/// PL-7. Boundaries cost time in the simulator as they do on a device: a dynamic call begins when everything
/// before it is over, and what follows waits for it.
#[test]
fn a_dynamic_call_runs_alone_between_two_segments() {
    let program = training_with(&["forward 1", "backward 1"], 3, 8, 1000);
    let config = Config { capture: Capture::Segments, ..depth(2) };
    let simulated = simulate_program(&program, &config, &plain(), 4, 2).unwrap();
    let (plan, pieces) = (&simulated.plan, simulated.plan.pieces());
    assert_eq!(pieces.segments(), 3);
    let at = |task: TaskId| simulated.timeline.slices.iter().find(|slice| slice.task == task).unwrap();
    for (number, piece) in pieces.entries() {
        let Piece::Call(call) = piece else { continue };
        for (task, _) in plan.entries() {
            match pieces.of(task).cmp(&number) {
                Ordering::Less => assert!(at(task).end <= at(call).begin, "{task}"),
                Ordering::Equal => assert_eq!(task, call),
                Ordering::Greater => assert!(at(task).begin >= at(call).end, "{task}"),
            }
        }
    }
    let eager = simulate_program(&program, &depth(2), &plain(), 4, 2).unwrap();
    assert!(simulated.step > eager.step, "{:?} is no longer than {:?}", simulated.step, eager.step);
}

#[test]
fn the_checking_layer_finds_nothing_wrong_with_a_simulated_step() {
    for dynamic in [&[][..], &["forward 0", "forward 1", "backward 0"]] {
        let config = Config { capture: Capture::Segments, ..depth(2) };
        assert!(
            !requested(Checked::new(simulated()), &training_with(dynamic, 3, 8, 1000), &config).is_empty()
        );
    }
}
