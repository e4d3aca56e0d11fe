//! Sessions need no particular executor, and neither they nor their futures are bound to a thread.

use std::collections::BTreeMap;

use warpweft_format::Format;
use warpweft_plan::compute::Surface;
use warpweft_session::checkpoint::{Carried, Checkpoint};
use warpweft_session::config::Config;
use warpweft_session::session::{Outcome, Session, SessionBuilder, block_on};
use warpweft_testing::trainer::{Mischief, Trainer, ended, feed};

const fn is_send<T: Send>(_: &T) {}

/// Compiling it is the test: what a user awaits may live in a task of a runtime of several threads.
#[test]
fn a_session_its_builder_and_all_their_futures_are_send() {
    fn builders<S: Surface + 'static>(builder: &SessionBuilder<S>) {
        is_send(builder);
    }
    async fn awaited(mut session: Session, checkpoint: &Checkpoint) {
        is_send(&session);
        is_send(&session.step("train"));
        is_send(&session.export());
        is_send(&session.export_to_first());
        is_send(&session.import(checkpoint));
        is_send(&session.close());
    }
    let trainer = Trainer::new(2, Format::Bf16);
    let builder = || trainer.builder(Config::default(), &Mischief::default());
    builders(&builder());
    is_send(&builder().start_cpu(2));
    is_send(&builder().start(Vec::<warpweft_backend::cpu::CpuBackend>::new()));
    let checkpoint = Checkpoint {
        optimizer_step: 0,
        optimizer_identity: None,
        weights: Vec::new(),
        carried: Carried::Zeros,
        notes: BTreeMap::new(),
    };
    let session = block_on(builder().start_cpu(2)).unwrap();
    let used = awaited(session, &checkpoint);
    is_send(&used);
    block_on(used);
}

/// The same on GPUs; nothing is polled, so no device is opened.
#[test]
fn futures_of_sessions_on_gpus_are_send_too() {
    use warpweft_cuda::{CudaSurface, DeviceOrdinal};
    use warpweft_plan::compute::{ComputeContext, ComputeError, Seat};
    use warpweft_plan::model::Call;

    let factory = |seat: Seat<DeviceOrdinal>| {
        let own = seat.device;
        Ok(move |_: &Call, context: &ComputeContext<'_, CudaSurface>| -> Result<(), ComputeError> {
            assert_eq!(context.handles().device(), own);
            Ok(())
        })
    };
    is_send(&Session::try_builder(Config::default(), factory).start_cuda(Vec::new()));
}

#[test]
fn a_trainer_without_a_runtime_starts_steps_moves_exports_imports_and_closes() {
    ended(|| {
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let start = || block_on(trainer.start(Config::default(), 2)).unwrap();
        let mut session = start();
        feed(&mut session, "train", 2, 0);
        let report = block_on(session.step("train")).unwrap();
        assert!(matches!(report.outcome, Outcome::Updated { .. }), "{:?}", report.outcome);
        let expected = block_on(session.export()).unwrap();
        // To another thread, as the task of a runtime goes.
        let moved = std::thread::spawn(move || {
            let checkpoint = block_on(session.export()).unwrap();
            block_on(session.close()).unwrap();
            checkpoint
        });
        let checkpoint = moved.join().unwrap();
        assert_eq!(checkpoint, expected);
        let mut other = start();
        block_on(other.import(&checkpoint)).unwrap();
        feed(&mut other, "evaluate", 2, 1);
        assert_eq!(block_on(other.step("evaluate")).unwrap().outcome, Outcome::Evaluated);
    });
}
