//! Ranks on the CPU that a test makes fail or die at a chosen moment.
#![allow(dead_code, unreachable_pub, reason = "every test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use warpweft::backend::cpu::{CpuBackend, CpuOptions, CpuWorld};
use warpweft::backend::{Backend, BackendError};
use warpweft::id::RankId;
use warpweft::model::Mesh;

use crate::wrapped::{Asked, Moment, Wrapped};

/// The backends of one world of `ranks` ranks.
pub fn backends(ranks: u32) -> Vec<CpuBackend> {
    let world = CpuWorld::new(Mesh::new(ranks).unwrap(), CpuOptions::default()).unwrap();
    (0..ranks).map(|rank| world.backend(RankId::new(rank)).unwrap()).collect()
}

/// Something a test switches on while a session runs.
#[derive(Clone, Debug, Default)]
pub struct Switch(Arc<AtomicBool>);

impl Switch {
    pub fn on(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
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
    let meddle = |inner: CpuBackend| {
        let (rank, switch, moments) = (inner.rank(), switch.clone(), moments.to_vec());
        Wrapped::new(inner, move |Asked { moment, .. }| {
            if moments.contains(&moment) && rank == victim && switch.is_on() {
                return Err(BackendError::Host { rank, bytes: 0, reason: "the cable is out".into() });
            }
            Ok(())
        })
    };
    backends(ranks).into_iter().map(meddle).collect()
}
