//! CPU ranks whose tasks take the times that a test dictates.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use warpweft_backend::cpu::CpuBackend;
use warpweft_backend::{Backend, TaskInterval};
use warpweft_plan::policy::ByteSize;
use warpweft_session::config::{Capture, Config, Tune};
use warpweft_session::session::Session;
use warpweft_testing::meddler::backends;
use warpweft_testing::trainer::{Mischief, Trainer};
use warpweft_testing::wrapped::{Moment, Request, Seen, Wrapped};

/// Nanoseconds of a step on rank 0 by the transient bytes of its plan.
pub(crate) type Machine = fn(usize) -> u64;

/// The more memory, the faster.
pub(crate) fn loves_memory(transient: usize) -> u64 {
    1_000_000_000 - transient as u64
}

/// The less memory, the faster.
pub(crate) fn hates_memory(transient: usize) -> u64 {
    1_000_000 + 1000 * transient as u64
}

/// What the backends of a world were asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    /// The largest arena that was reserved.
    pub(crate) reserved: Arc<AtomicUsize>,
    /// Captures made, on all ranks.
    pub(crate) captures: Arc<AtomicUsize>,
    /// Counts the plans that are bound, rank by rank.
    pub(crate) bound: Arc<Mutex<Vec<Arc<()>>>>,
}

impl Watch {
    pub(crate) fn captures(&self) -> usize {
        self.captures.load(Ordering::SeqCst)
    }

    /// Plans that are bound, of every rank.
    pub(crate) fn bound(&self) -> Vec<usize> {
        self.bound.lock().unwrap().iter().map(|bound| Arc::strong_count(bound) - 2).collect()
    }
}

/// A backend whose steps take what `machine` says, more so on higher ranks; every task an equal share.
pub(crate) fn dictated(inner: CpuBackend, machine: Machine, watch: &Watch) -> Wrapped<CpuBackend> {
    let skew = 1 + u64::from(inner.rank().number());
    let noted = watch.clone();
    let wrapped = Wrapped::new(inner, move |Request { moment, bytes, .. }| {
        match moment {
            Moment::Reserve => drop(noted.reserved.fetch_max(bytes.unwrap_or(0), Ordering::SeqCst)),
            Moment::Captured => drop(noted.captures.fetch_add(1, Ordering::SeqCst)),
            _ => {}
        }
        Ok(())
    });
    watch.bound.lock().unwrap().push(wrapped.bound());
    wrapped.timed_by(move |Seen { transient, tasks, .. }, into| {
        let share = skew * machine(transient) / tasks as u64;
        let interval = |task: u64| {
            let begin = 1 + task * share;
            TaskInterval::new(begin, begin, begin + share)
        };
        into.clear();
        into.extend((0..tasks as u64).map(interval));
    })
}

/// A configuration that tunes, from a depth on.
pub(crate) fn config(depth: u32, budget: Option<usize>) -> Config {
    // Two calls later gradients leave the most of the arena to depth.
    let mut config =
        Config { capture: Capture::Step, deadline_s: 60.0, reduce_delay: 2, ..Config::default() };
    config.prefetch.depth = Some(depth);
    config.optimizer.lr = 3e-3;
    config.tune.steps = Tune::MOST_STEPS;
    config.memory.budget = budget.map(|bytes| ByteSize::new(bytes as u64));
    config
}

/// A session of the trainer on `ranks` such ranks.
pub(crate) async fn start(
    trainer: &Trainer,
    config: Config,
    ranks: u32,
    machine: Machine,
    mischief: &Mischief,
) -> (Session, Watch) {
    let watch = Watch::default();
    let backends = backends(ranks).into_iter().map(|inner| dictated(inner, machine, &watch)).collect();
    (trainer.builder(config, mischief).start(backends).await.unwrap(), watch)
}
