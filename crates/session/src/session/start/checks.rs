//! Checks before a session plans: its backends are one world, and the one that the configuration means.

use std::sync::Arc;

use super::any_backend::Startable;
use super::plans::Plans;
use crate::config::{ByteSize, Config, Reduce};
use crate::exec::report_bytes;
use crate::session::SessionError;
use warpweft_backend::rendezvous::Rendezvous;
use warpweft_base::id::RankId;
use warpweft_plan::model::Mesh;
use warpweft_plan::plan::StepPlan;

/// The mesh of `backends`, if they are all ranks of this process, in rank order.
pub(super) fn one_world(
    backends: &[Box<dyn Startable>],
    rendezvous: &Rendezvous,
) -> Result<Mesh, SessionError> {
    let Some(first) = backends.first() else {
        return Err(SessionError::Start { reason: "pass one backend per rank".into() });
    };
    let mesh = first.mesh();
    let own = rendezvous.own();
    let misplaced = |(_, (expected, backend)): &(usize, (RankId, &dyn Startable))| {
        backend.rank() != *expected || backend.mesh() != mesh
    };
    let all = backends.iter().map(Box::as_ref);
    let reason = match own.zip(all).enumerate().find(misplaced) {
        Some((position, (_, backend))) => {
            let (rank, ranks) = (backend.rank(), backend.mesh().ranks());
            format!("backend {position} speaks for {rank} of {ranks}")
        }
        None if backends.len() != rendezvous.range().len() || mesh.ranks() != rendezvous.ranks() => {
            format!("the world has {} ranks and {} backends were passed", mesh.ranks(), backends.len())
        }
        None => return Ok(mesh),
    };
    Err(SessionError::Backends { reason })
}

/// The backends' world is the mesh that the configuration says, and sums in the same levels.
pub(super) fn check_mesh(config: &Config, device: &str, mesh: Mesh) -> Result<(), SessionError> {
    let configured = config.mesh_of(mesh.ranks())?;
    match mesh == configured {
        true => Ok(()),
        false => Err(SessionError::Mesh { configured, of_backends: mesh, device: device.to_owned() }),
    }
}

/// What a step reports to other processes must fit into what a rendezvous carries.
pub(super) fn check_outputs(plans: &Plans, rendezvous: &Rendezvous) -> Result<(), SessionError> {
    let most = Rendezvous::MOST_BYTES;
    let too_much = |plan: &&Arc<StepPlan>| report_bytes(plan) > most;
    match plans.programs.iter().find(too_much).filter(|_| !rendezvous.is_whole()) {
        None => Ok(()),
        Some(plan) => Err(SessionError::Start {
            reason: format!(
                "what a step of `{}` tells of its buffers has {}, and processes tell each other {} at most; make \
                 outputs smaller, or declare fewer buffers",
                plan.name,
                ByteSize::of(report_bytes(plan)).in_full(),
                ByteSize::of(most).in_full()
            ),
        }),
    }
}

/// A backend sums as the configuration says, or says that it cannot.
pub(super) fn check_reduce(config: &Config, backends: &[Box<dyn Startable>]) -> Result<(), SessionError> {
    match backends.iter().find(|backend| backend.reduce() != config.reduce) {
        None => Ok(()),
        Some(backend) => Err(match backend.reduce() {
            Reduce::Ordered => SessionError::Unsupported {
                key: "reduce",
                value: "nccl",
                reason: "this backend sums in rank order; use \"ordered\"",
            },
            Reduce::Nccl => SessionError::Unsupported {
                key: "reduce",
                value: "ordered",
                reason: "the backends were made to sum as NCCL does; make them with Reduce::Ordered, or use \"nccl\"",
            },
        }),
    }
}
