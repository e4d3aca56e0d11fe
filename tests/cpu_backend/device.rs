//! The CPU as the device of the shared test bodies.

use std::sync::Arc;

use warpweft_backend::cpu::{CpuBackend, CpuOptions, CpuSurface, CpuWorld};
use warpweft_plan::compute::{ComputeContext, ComputeError, ComputeFactory};
use warpweft_plan::model::{Call, Mesh};

use crate::bodies::harness::{Plan, RankWork, made_by_ranks, within_limit};

/// Whether the checking layer can look at what a closure wrote.
pub(crate) const HOST_SEES_MEMORY: bool = true;

/// Whether of slots with counts only what is filled is moved.
pub(crate) fn moves_filled_rows_alone() -> bool {
    true
}

/// Ranks whose steps can be captured together.
pub(crate) fn most_captured_ranks() -> u32 {
    4
}

/// Meshes of several replicas.
pub(crate) fn meshes() -> Vec<Mesh> {
    [(6, 3, 1), (6, 2, 1), (4, 2, 1), (3, 3, 1), (2, 2, 1), (4, 4, 2)]
        .map(|(ranks, replicas, instances)| {
            Mesh::hybrid(ranks, replicas).and_then(|mesh| mesh.with_instances(instances)).unwrap()
        })
        .to_vec()
}

pub(crate) type Device = CpuBackend;
pub(crate) type DeviceOptions = CpuOptions;

/// Runs `work` on every rank of a world of its own, each on its thread.
pub(crate) fn on_every_rank<R, F>(plan: Plan, options: CpuOptions, work: F) -> Vec<R>
where
    R: Send + 'static,
    F: Fn(CpuBackend, Arc<Plan>) -> R + Send + Sync + 'static,
{
    made_by_ranks(plan.weights.mesh.ranks(), work, |work| start(plan, options, work))
}

fn start(plan: Plan, options: CpuOptions, work: RankWork) {
    within_limit(move || {
        let world = CpuWorld::new(plan.weights.mesh, options).unwrap();
        let plan = Arc::new(plan);
        std::thread::scope(|scope| {
            let ranks: Vec<_> = plan
                .weights
                .mesh
                .iter()
                .map(|rank| {
                    let backend = world.backend(rank).unwrap();
                    let (plan, work) = (Arc::clone(&plan), &work);
                    scope.spawn(move || work(backend, plan))
                })
                .collect();
            ranks.into_iter().for_each(|rank| rank.join().unwrap());
        });
    });
}

/// A closure for every call of every rank.
pub(crate) fn closures<F>(run: F) -> Option<ComputeFactory<CpuSurface>>
where
    F: Fn(&Call, &ComputeContext<'_, CpuSurface>) -> Result<(), ComputeError> + Send + Sync + Clone + 'static,
{
    Some(Arc::new(move |_| {
        let run = run.clone();
        Ok(Box::new(move |call: &Call, context: &ComputeContext<'_, CpuSurface>| run(call, context)))
    }))
}
