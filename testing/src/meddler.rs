//! CPU ranks that a test makes fail or die at a chosen moment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use warpweft_backend::cpu::{CpuBackend, CpuOptions, CpuWorld};
use warpweft_backend::{Backend, BackendError};
use warpweft_base::id::RankId;
use warpweft_plan::model::Mesh;

use crate::wrapped::{Moment, Request, Wrapped};

/// The backends of one world of `ranks` ranks.
pub fn backends(ranks: u32) -> Vec<CpuBackend> {
    let world = CpuWorld::new(Mesh::new(ranks).unwrap(), CpuOptions::default()).unwrap();
    (0..ranks).map(|rank| world.backend(RankId::new(rank)).unwrap()).collect()
}

/// Something a test switches on while a session runs.
#[derive(Clone, Debug, Default)]
pub struct Switch(Arc<AtomicBool>);

impl Switch {
    /// Switches it on, for good.
    pub fn on(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Is it on?
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// A gate before every step: while it is shut, ranks that begin one wait there, so that a test knows
/// of a step that it is under way.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    /// Lets no step begin from now on.
    pub fn shut(&self) {
        *self.0.0.lock().unwrap() = true;
    }

    /// Lets all steps begin again.
    pub fn open(&self) {
        *self.0.0.lock().unwrap() = false;
        self.0.1.notify_all();
    }

    /// Waits where a step begins while the gate is shut.
    pub fn pass(&self, moment: Moment) {
        if moment == Moment::Step {
            self.wait();
        }
    }

    /// Waits while the gate is shut.
    pub fn wait(&self) {
        drop(self.0.1.wait_while(self.0.0.lock().unwrap(), |shut| *shut).unwrap());
    }
}

/// Backends of two ranks, and a gate that is shut until rank 0 has given up: rank 1, if it waits there, is too slow for
/// any deadline, and no slower. The hook is asked of everything that rank 1 does.
pub fn with_one_too_slow(
    hook: impl Fn(Moment, &Gate) + Clone + Send + 'static,
) -> (Vec<Wrapped<CpuBackend>>, Gate) {
    /// It has given up when its backend is ended by force, or dropped because it was never set up.
    struct GivesUp(Gate);
    impl Drop for GivesUp {
        fn drop(&mut self) {
            self.0.open();
        }
    }
    let gate = Gate::default();
    gate.shut();
    let meddle = |inner: CpuBackend| {
        let (hook, gate) = (hook.clone(), gate.clone());
        let first = (inner.rank() == RankId::new(0)).then(|| GivesUp(gate.clone()));
        Wrapped::new(inner, move |Request { moment, .. }| {
            match &first {
                Some(GivesUp(gate)) if moment == Moment::Abort => gate.open(),
                Some(_) => {}
                None => hook(moment, &gate),
            }
            Ok(())
        })
    };
    (backends(2).into_iter().map(meddle).collect(), gate)
}

/// Backends of `ranks` ranks that ask `hook` of everything.
pub fn hooked(
    ranks: u32,
    hook: impl Fn(RankId, Moment) -> Result<(), BackendError> + Clone + Send + 'static,
) -> Vec<Wrapped<CpuBackend>> {
    let meddle = |inner: CpuBackend| {
        let (rank, hook) = (inner.rank(), hook.clone());
        Wrapped::new(inner, move |Request { moment, .. }| hook(rank, moment))
    };
    backends(ranks).into_iter().map(meddle).collect()
}

/// Backends of `ranks` ranks of which `victim` fails with its own words whenever it comes to `moment`
/// and the switch is on.
pub fn failing_at(moment: Moment, victim: RankId, ranks: u32, switch: &Switch) -> Vec<Wrapped<CpuBackend>> {
    failing_at_any(&[moment], victim, ranks, switch)
}

/// The same for several moments.
pub fn failing_at_any(
    moments: &[Moment],
    victim: RankId,
    ranks: u32,
    switch: &Switch,
) -> Vec<Wrapped<CpuBackend>> {
    let (moments, switch) = (moments.to_vec(), switch.clone());
    hooked(ranks, move |rank, moment| {
        if moments.contains(&moment) && rank == victim && switch.is_on() { cut(rank) } else { Ok(()) }
    })
}

/// How a rank fails.
pub fn cut(rank: RankId) -> Result<(), BackendError> {
    Err(BackendError::Host { rank, bytes: 0, reason: "the cable is out".into() })
}
