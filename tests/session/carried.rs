//! Carried buffers: they last from step to step, leave a session by export, and come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use safetensors::SafeTensors;
use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::{BufferId, RankId, WeightId};
use warpweft_format::{ElementType, Format};
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Model, Phase, ProgramBuilder, StepProgram};
use warpweft_session::checkpoint::{Carried, Checkpoint, CheckpointStore, FileStore};
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{Outcome, Session, SessionError, initial};
use warpweft_testing::trainer::within_a_minute;

/// What goes wrong in the last call on rank 1: 0 nothing, 1 its gradient is NaN, 2 it fails.
type Trouble = Arc<AtomicU32>;

/// One weight, and two programs that count into one carried buffer: before the gradient, and after it.
struct Counter {
    weight: WeightId,
    programs: [StepProgram; 2],
    before: BufferId,
    after: BufferId,
    outputs: [BufferId; 2],
}

fn carried(program: &mut ProgramBuilder, name: &str) -> BufferId {
    program.carried(name, 3, ElementType::F32).unwrap()
}

/// One name is one buffer, so programs agree on its size and on its type.
#[test]
fn programs_that_carry_a_buffer_in_two_element_types_are_refused() {
    within_a_minute(async {
        let mut model = Model::builder();
        model.sharded("w", 32, 16, Format::F32).unwrap();
        let model = model.build();
        let program = |name: &str, elements, element| {
            let mut program = StepProgram::builder(name, &model);
            let count = program.carried("count", elements, element).unwrap();
            program.call("count", Phase::Forward).updates(count).add().unwrap();
            program.build_evaluation().unwrap()
        };
        let closures = |_: RankId| |_: &Call, _: &ComputeContext<'_, CpuSurface>| Ok(());
        let start = |elements, element| {
            let builder = Session::builder(Config::default(), closures).initialize(initial::zeros());
            let builder = builder.program(program("one", 3, ElementType::F32));
            builder.program(program("other", elements, element)).start_cpu(1)
        };
        start(3, ElementType::F32).await.unwrap();
        for (elements, element, words) in
            [(3, ElementType::U32, "`other` with 3 of u32"), (6, ElementType::Bf16, "`other` with 6 of bf16")]
        {
            let error = start(elements, element).await.unwrap_err().to_string();
            assert!(error.contains("`one` with 3 elements of f32") && error.contains(words), "{error}");
        }
    });
}

impl Counter {
    fn new() -> Self {
        let mut model = Model::builder();
        let weight = model.sharded("w", 32, 16, Format::NVFP4_2D).unwrap();
        let model = model.build();
        let mut ids = None;
        let programs = ["train", "evaluate"].map(|name| {
            let mut program = StepProgram::builder(name, &model);
            let (before, after) = (carried(&mut program, "before"), carried(&mut program, "after"));
            let outputs =
                ["seen before", "seen after"].map(|name| program.output(name, 3, ElementType::F32).unwrap());
            ids = Some((before, after, outputs));
            program.call("count", Phase::Forward).updates(before).writes(outputs[0]).add().unwrap();
            let call = program.call("fit", Phase::Backward).updates(after).writes(outputs[1]);
            if name == "evaluate" {
                call.add().unwrap();
                return program.build_evaluation().unwrap();
            }
            call.gradient(weight).add().unwrap();
            program.build_training().unwrap()
        });
        let (before, after, outputs) = ids.unwrap();
        Self { weight, programs, before, after, outputs }
    }

    async fn start(self, depth: u32, capture: Capture, ranks: u32, trouble: &Trouble) -> Session {
        let mut config = Config { capture, check: true, ..Config::default() };
        config.prefetch.depth = Some(depth);
        let programs = self.programs.clone();
        let (counter, trouble) = (Arc::new(self), Arc::clone(trouble));
        let closures = move |_: RankId| {
            let (counter, trouble) = (Arc::clone(&counter), Arc::clone(&trouble));
            move |call: &Call, context: &ComputeContext<'_, CpuSurface>| counter.run(call, context, &trouble)
        };
        let [train, evaluate] = programs;
        let builder = Session::builder(config, closures).program(train).program(evaluate);
        builder.initialize(initial::zeros()).start_cpu(ranks).await.unwrap()
    }

    fn run(
        &self,
        call: &Call,
        context: &ComputeContext<'_, CpuSurface>,
        trouble: &Trouble,
    ) -> Result<(), ComputeError> {
        let trouble = if context.rank() == RankId::new(1) { trouble.load(Ordering::SeqCst) } else { 0 };
        let (counts, output) = match call.name.as_str() {
            "count" => (self.before, self.outputs[0]),
            _ if trouble == 2 => return Err(ComputeError::closure("no fit today")),
            _ => (self.after, self.outputs[1]),
        };
        let mut counts = context.write::<f32>(counts)?;
        counts.iter_mut().for_each(|count| *count += 1.0 + context.rank().number() as f32);
        context.write::<f32>(output)?.copy_from_slice(&counts);
        if !call.gradients.is_empty() {
            context.gradient(self.weight)?.fill(if trouble == 1 { f32::NAN } else { 0.5 });
        }
        Ok(())
    }
}

async fn start(depth: u32, capture: Capture, ranks: u32) -> Session {
    Counter::new().start(depth, capture, ranks, &Trouble::default()).await
}

/// The first count of both buffers on every rank, from the outputs of one more step.
async fn counts(session: &mut Session, program: &str, ranks: u32) -> Vec<[f32; 2]> {
    let report = session.step(program).await.unwrap();
    let of = |rank| {
        ["seen before", "seen after"].map(|name| report.output::<f32>(RankId::new(rank), name).unwrap()[0])
    };
    (0..ranks).map(of).collect()
}

/// The first count of both buffers on every rank, as a checkpoint holds them.
fn held(checkpoint: &Checkpoint) -> Vec<Vec<f32>> {
    let Carried::Buffers(buffers) = &checkpoint.carried else { panic!("an export holds values") };
    assert_eq!(buffers.iter().map(|buffer| buffer.name.as_str()).collect::<Vec<_>>(), ["before", "after"]);
    let first = |rank: &Vec<u8>| f32::from_ne_bytes(rank[..4].try_into().unwrap());
    buffers.iter().map(|buffer| buffer.ranks.iter().map(first).collect()).collect()
}

#[test]
fn a_carried_buffer_goes_from_step_to_step_and_from_program_to_program_at_every_depth() {
    within_a_minute(async {
        for depth in [0, 2] {
            for capture in [Capture::Off, Capture::Step] {
                let mut session = start(depth, capture, 2).await;
                for step in 1..5 {
                    let (train, evaluate) = ((2 * step - 1) as f32, (2 * step) as f32);
                    assert_eq!(counts(&mut session, "train", 2).await, [[train; 2], [2.0 * train; 2]]);
                    assert_eq!(
                        counts(&mut session, "evaluate", 2).await,
                        [[evaluate; 2], [2.0 * evaluate; 2]]
                    );
                }
            }
        }
    });
}

#[test]
fn an_imported_checkpoint_brings_every_ranks_carried_buffers_back_through_a_file_too() {
    within_a_minute(async {
        for depth in [0, 2] {
            let folder = tempfile::tempdir().unwrap();
            let store = FileStore::new(folder.path().join("run.safetensors"));
            let mut first = start(depth, Capture::Off, 2).await;
            counts(&mut first, "train", 2).await;
            let checkpoint = first.export().await.unwrap();
            assert_eq!(held(&checkpoint), [[1.0, 2.0], [1.0, 2.0]]);
            store.save(&checkpoint).await.unwrap();
            let loaded = store.load().await.unwrap();
            assert_eq!(loaded.carried, checkpoint.carried);
            let mut second = start(depth, Capture::Step, 2).await;
            for _ in 0..3 {
                counts(&mut second, "evaluate", 2).await;
            }
            second.import(&loaded).await.unwrap();
            assert_eq!(second.export().await.unwrap(), checkpoint);
            assert_eq!(counts(&mut second, "train", 2).await, [[2.0; 2], [4.0; 2]]);
        }
    });
}

#[test]
fn carried_buffers_that_do_not_fit_are_refused_until_zeros_are_asked_for_through_a_file_too() {
    within_a_minute(async {
        let mut two = start(1, Capture::Off, 2).await;
        counts(&mut two, "train", 2).await;
        let checkpoint = two.export().await.unwrap();
        let mut three = start(1, Capture::Off, 3).await;
        counts(&mut three, "evaluate", 3).await;
        let before = three.export().await.unwrap();
        let none = Checkpoint { carried: Carried::Buffers(Vec::new()), ..checkpoint.clone() };
        let mut short = checkpoint.clone();
        let mut unknown = before.clone();
        let mut twice = before.clone();
        if let (Carried::Buffers(short), Carried::Buffers(unknown), Carried::Buffers(twice)) =
            (&mut short.carried, &mut unknown.carried, &mut twice.carried)
        {
            twice.push(twice[1].clone());
            short[1].ranks[1].pop();
            let mut other = unknown[0].clone();
            other.name = "elsewhere".into();
            unknown.push(other);
        }
        for (given, expected) in [
            (&checkpoint, "`before` is of 2 ranks and the session has 3"),
            (&none, "no carried buffer `before`"),
            (&unknown, "no program carries buffer `elsewhere`"),
            (&twice, "the checkpoint has carried buffer `after` twice"),
        ] {
            let error = three.import(given).await.unwrap_err();
            let said = error.to_string();
            assert!(matches!(error, SessionError::Import { .. }), "{said}");
            assert!(said.contains(expected) && said.contains("Carried::Zeros"), "{said}");
        }
        let said = two.import(&short).await.unwrap_err().to_string();
        assert!(said.contains("`after` does not hold 12 bytes on every rank"), "{said}");
        assert_eq!(three.export().await.unwrap(), before);
        let anew = Checkpoint { carried: Carried::Zeros, ..checkpoint.clone() };
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::new(folder.path().join("anew.safetensors"));
        store.save(&anew).await.unwrap();
        let loaded = store.load().await.unwrap();
        assert_eq!(loaded.carried, Carried::Zeros);
        three.import(&loaded).await.unwrap();
        let after = three.export().await.unwrap();
        assert_eq!(held(&after), [[0.0; 3], [0.0; 3]]);
        assert_eq!(after.weights, checkpoint.weights);
    });
}

/// A file of version 1 says nothing of carried buffers.
#[test]
fn a_file_from_before_carried_buffers_loads_and_is_refused_by_a_session_that_has_some() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("old.safetensors");
        let store = FileStore::new(&path);
        let mut session = start(1, Capture::Off, 2).await;
        let checkpoint = session.export().await.unwrap();
        store.save(&Checkpoint { carried: Carried::Zeros, ..checkpoint.clone() }).await.unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let write = |version: &str| {
            let mut about = SafeTensors::read_metadata(&bytes).unwrap().1.metadata().clone().unwrap();
            about.retain(|key, _| !["carried", "digests", "metadata_digest"].contains(&key.as_str()));
            about.insert("warpweft_checkpoint".to_owned(), version.to_owned());
            let tensors = SafeTensors::deserialize(&bytes).unwrap();
            std::fs::write(&path, safetensors::serialize(tensors.iter(), Some(about)).unwrap()).unwrap();
        };
        write("2");
        let said = store.load().await.unwrap_err().to_string();
        assert!(said.contains("it has no `carried`"), "version 2 has the list: {said}");
        write("1");
        let old = store.load().await.unwrap();
        assert_eq!(old.carried, Carried::Buffers(Vec::new()));
        assert!(matches!(session.import(&old).await, Err(SessionError::Import { .. })));
    });
}

/// The law of [`Lifetime::Carried`]: the vote is about weights, not about carried buffers.
#[test]
fn a_skipped_step_keeps_what_calls_wrote_and_a_failed_one_what_was_written_before_the_failure() {
    within_a_minute(async {
        for capture in [Capture::Off, Capture::Step] {
            let trouble = Trouble::default();
            let mut session = Counter::new().start(2, capture, 2, &trouble).await;
            counts(&mut session, "train", 2).await;
            counts(&mut session, "train", 2).await;
            trouble.store(1, Ordering::SeqCst);
            let report = session.step("train").await.unwrap();
            assert!(matches!(report.outcome, Outcome::Skipped { .. }), "{:?}", report.outcome);
            assert_eq!(held(&session.export().await.unwrap()), [[3.0, 6.0], [3.0, 6.0]]);
            trouble.store(2, Ordering::SeqCst);
            assert!(matches!(session.step("train").await, Err(SessionError::Closure { .. })));
            assert_eq!(held(&session.export().await.unwrap()), [[4.0, 8.0], [4.0, 6.0]]);
        }
    });
}
