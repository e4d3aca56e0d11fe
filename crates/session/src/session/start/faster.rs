//! The setting with which a session on several nodes is expected to be much faster.
//!
//! Law: it is said once, when a session has started, by the process of rank 0, and changes nothing. It goes by
//! forecasts, on the machine that `prefetch.cluster` names: so nothing is said on one node of it, where no call
//! says what it costs, or where trials choose (`tune.steps`). Named are settings that fit the same GPU and leave
//! formats and types as they are.

use std::fmt;
use std::slice::from_ref;

use super::costs::costs_of;
use super::plans::Plans;
use crate::cluster::named;
use crate::config::{Config, OptimizerShard, Prefetch, PrefetchPolicy};
use warpweft_plan::model::{Mesh, StepProgram};
use warpweft_plan::plan::StepPlan;
use warpweft_plan::policy::ByteSize;

/// A step that takes longer than this many times another is worth a line.
const WORTH: f64 = 1.1;

/// Another setting, and what it is expected to bring.
#[derive(Debug)]
pub(super) struct Faster {
    program: String,
    cluster: String,
    settings: Vec<&'static str>,
    /// Nanoseconds of a step, and bytes of the arena: as it is, and with the settings.
    step: [u64; 2],
    bytes: [usize; 2],
}

impl fmt::Display for Faster {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [step, other] = self.step.map(|nanoseconds| nanoseconds as f64 / 1e6);
        let [bytes, others] = self.bytes.map(|bytes| ByteSize::of(bytes).rounded());
        write!(
            formatter,
            "a step of `{}` is expected to take {step:.1} ms on `{}`, and {other:.1} ms with {}, in an arena of {others} in \
             place of {bytes}",
            self.program,
            self.cluster,
            self.settings.join(" and "),
        )
    }
}

/// What is expected to be faster for `program` than its `plan`, if it is by as much as is worth saying.
pub(super) fn faster(program: &StepProgram, plan: &StepPlan, config: &Config, mesh: Mesh) -> Option<Faster> {
    let cluster = named(&config.prefetch.cluster).ok()?;
    let is_silent = mesh.ranks() <= cluster.ranks_of_node() || config.tune.steps > 0;
    if is_silent || program.calls().iter().all(|call| call.cost.is_empty()) {
        return None;
    }
    let costs = costs_of(config, &cluster, mesh.ranks()).ok()?;
    let own = plan.forecast(&costs).step;
    let others = others(config, mesh).into_iter().filter_map(|(settings, config)| {
        let plans = Plans::with_costs(from_ref(program), &config, mesh, Some(&costs)).ok()?;
        let plan = plans.programs.first()?;
        let (step, bytes) = (plan.forecast(&costs).step, plan.arena.bytes());
        (bytes as u64 <= cluster.gpu.memory_bytes).then_some((step, bytes, settings))
    });
    let (step, bytes, settings) = others.min_by_key(|(step, ..)| *step)?;
    (own as f64 > WORTH * step as f64).then(|| Faster {
        program: program.name().to_owned(),
        cluster: cluster.name.clone(),
        settings,
        step: [own, step],
        bytes: [plan.arena.bytes(), bytes],
    })
}

/// Other settings for the same model on the same mesh.
fn others(config: &Config, mesh: Mesh) -> Vec<(Vec<&'static str>, Config)> {
    let is_auto = config.prefetch.policy == Some(PrefetchPolicy::Auto);
    let is_over_replicas = config.optimizer.shard == OptimizerShard::Replicas || mesh.replicas() == 1;
    let mut others = Vec::new();
    for (auto, over_replicas) in [(true, false), (false, true), (true, true)] {
        if (auto && is_auto) || (over_replicas && is_over_replicas) {
            continue;
        }
        let (mut settings, mut other) = (Vec::new(), config.clone());
        if auto {
            settings.push("prefetch.policy = \"auto\"");
            other.prefetch = config.prefetch.started_as(Prefetch::auto());
        }
        if over_replicas {
            settings.push("optimizer.shard = \"replicas\"");
            other.optimizer.shard = OptimizerShard::Replicas;
        }
        others.push((settings, other));
    }
    others
}
