//! The steady-state test for any backend: over 200 steps nothing is allocated on the host by threads that are not the
//! user's, nothing on a device, and no operand moves.
//!
//! Guards BK-2, TU-10 and the arena's law, of steps whose host time is split as of others, and of steps whose
//! tasks are timed. Such a test has its process for itself (`alone`), so that nothing else there allocates
//! meanwhile. The user's own thread may allocate: it builds reports. What a driver's library takes of the
//! host's memory is not seen: it does not ask Rust for it.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use warpweft_base::id::{RankId, WeightId};
use warpweft_format::Format;
use warpweft_plan::compute::{ComputeContext, ComputeError, Surface};
use warpweft_plan::model::Call;
use warpweft_session::config::{Capture, Config, Scaling, Tune};
use warpweft_session::session::{Session, SessionBuilder, Tuning};

use crate::trainer::{self, Shaped, Trainer, feed, within_a_minute};

static COUNTS: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static USER: Cell<bool> = const { Cell::new(false) };
}

/// Of an allocation.
pub(crate) fn count() {
    if COUNTS.load(Ordering::Relaxed) && !USER.try_with(Cell::get).unwrap_or(true) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Address of the dense weight and of its gradient at every backward call of the middle layer, in order of calls.
pub type Addresses = Arc<Mutex<Vec<(usize, usize)>>>;

/// A session that starts.
pub type Starting = Pin<Box<dyn Future<Output = Session> + Send>>;

/// Where the steps run.
pub trait Place: Clone + Send + Sync + 'static {
    /// What its closures see.
    type Surface: Surface;

    /// How many ranks there are.
    fn ranks(&self) -> u32;

    /// Starts a session here.
    fn start(&self, builder: SessionBuilder<Self::Surface>) -> Starting;

    /// Writes what the call declares, and notes where the operands of the middle layer lie, if this is its
    /// backward call.
    fn touch(
        call: &Call,
        context: &ComputeContext<'_, Self::Surface>,
        middle: WeightId,
        seen: &Addresses,
    ) -> Result<(), ComputeError>;

    /// How often a rank's closure is called for the middle layer's backward call in so many steps of a session.
    fn calls(capture: Capture, steps: usize) -> usize;

    /// Bytes that are free on every device.
    fn free(&self) -> Vec<usize>;
}

/// What a session is requested.
#[derive(Clone, Copy, Debug)]
struct Case {
    format: Format,
    scaling: Scaling,
    capture: Capture,
    trials: u32,
    traced: bool,
}

const CASES: [Case; 9] = {
    const PLAIN: Case = Case {
        format: Format::NVFP4_2D,
        scaling: Scaling::Current,
        capture: Capture::Off,
        trials: 0,
        traced: false,
    };
    [
        Case { format: Format::F32, ..PLAIN },
        PLAIN,
        Case { capture: Capture::Step, ..PLAIN },
        Case { capture: Capture::Segments, ..PLAIN },
        Case { format: Format::FP8_TENSOR_E4M3, scaling: Scaling::Delayed, ..PLAIN },
        Case { trials: Tune::MOST_STEPS, ..PLAIN },
        Case { capture: Capture::Step, trials: Tune::MOST_STEPS, ..PLAIN },
        Case { traced: true, ..PLAIN },
        Case { capture: Capture::Segments, traced: true, ..PLAIN },
    ]
};

/// Steps before anything is counted, after trials.
const WARM: u32 = 10;
const STEPS: u32 = 200;

/// Runs all cases.
pub fn nothing_is_allocated_and_nothing_moves<P: Place>(place: &P) {
    USER.set(true);
    for case in CASES {
        let place = place.clone();
        within_a_minute(async move {
            USER.set(true);
            run(&place, case).await;
        });
    }
}

async fn run<P: Place>(place: &P, case: Case) {
    let Case { format, scaling, capture, trials, traced } = case;
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config { capture, ..Config::default() };
    config.prefetch.depth = Some(2);
    config.quantize.scaling = scaling;
    config.tune.steps = trials;
    config.trace.enabled = traced;
    config.trace.path = folder.path().join("trace.json").display().to_string();
    let dynamic: &[&str] = if capture == Capture::Segments { &["f1", "b1"] } else { &[] };
    let shaped = Shaped { layers: 3, weights: 3, ..Shaped::default() };
    let trainer = Trainer::with_dynamic(dynamic, shaped, format, &config);
    let middle = trainer.model.find("layer1").unwrap();
    let seen: Addresses = Arc::new(Mutex::new(Vec::with_capacity(2048)));
    let shared = Arc::clone(&seen);
    let closures = move |_: RankId| {
        let seen = Arc::clone(&shared);
        move |call: &Call, context: &ComputeContext<'_, P::Surface>| P::touch(call, context, middle, &seen)
    };
    let builder = Session::builder(config, closures);
    let builder = builder.program(trainer.train.clone()).initialize(trainer::initial);
    let mut session = place.start(builder).await;
    let ranks = place.ranks();
    for step in 0..trials {
        feed(&mut session, "train", ranks, step);
        session.step("train").await.unwrap();
    }
    // TU-10: plans that were tried may lie elsewhere; the one that stays does not move.
    let before = if trials > 0 { seen.lock().unwrap().drain(..).count() } else { 0 };
    assert_eq!(before > 0, trials > 0);
    for step in 0..WARM {
        feed(&mut session, "train", ranks, step);
        let report = session.step("train").await.unwrap();
        assert!(report.not_captured.is_empty(), "{case:?}: {:?}", report.not_captured);
    }
    assert!(session.tuning().is_none_or(Tuning::is_frozen));
    let free = place.free();
    COUNTS.store(true, Ordering::SeqCst);
    for step in WARM..WARM + STEPS {
        feed(&mut session, "train", ranks, step);
        session.split_host_time(step % 2 == 0);
        let report = session.step("train").await.unwrap();
        assert_eq!(report.host.is_some(), step % 2 == 0);
        assert_eq!(report.segments > 0, capture != Capture::Off, "{case:?}");
    }
    COUNTS.store(false, Ordering::SeqCst);
    assert_eq!(ALLOCATIONS.load(Ordering::SeqCst), 0, "allocations on the host: {case:?}");
    assert_eq!(place.free(), free, "free bytes of every device: {case:?}");
    let mut addresses = seen.lock().unwrap().clone();
    if trials == 0 {
        let calls = P::calls(capture, (WARM + STEPS) as usize);
        assert_eq!(addresses.len(), ranks as usize * calls, "{case:?}");
    }
    addresses.sort_unstable();
    addresses.dedup();
    let expected = if addresses.is_empty() { 0 } else { ranks as usize };
    assert_eq!(addresses.len(), expected, "one pair of addresses per rank: {case:?}");
    session.close().await.unwrap();
}
