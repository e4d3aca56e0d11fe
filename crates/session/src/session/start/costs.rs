//! The cost model that a session's planner uses.
//!
//! Law: costs are needed for `prefetch.policy = "auto"` alone, which trials come to as well (`tune.steps`),
//! and come from the machine that the configuration names; a simulation brings its own. They are the same on
//! every rank, because configuration and cluster files are.

use crate::cluster::named;
use crate::cluster::{Cluster, Prices};
use crate::config::{Capture, Config, ConfigError, Origin, PrefetchPolicy, agreeing};
use crate::session::SessionError;
use warpweft_backend::BackendError;
use warpweft_plan::plan::Costs;

/// The costs of tasks for `ranks` ranks of `cluster`, in as many replicas as `config` says, where steps are captured or
/// not as it says.
///
/// # Errors
/// [`SessionError::Config`] when a node of the cluster has fewer GPUs than ranks, [`SessionError::Declare`] when the
/// replicas do not divide the ranks, [`SessionError::Backend`] when the ranks do not fit the cluster.
pub fn costs_of(config: &Config, cluster: &Cluster, ranks: u32) -> Result<Costs, SessionError> {
    let cluster = &agreeing(cluster.clone(), |_| Origin::Program)?;
    let prices = Prices::new(cluster, config.mesh_of(ranks)?).ok_or_else(|| BackendError::NoLinks {
        ranks,
        cluster: cluster.name.clone(),
        gpus: cluster.ranks_of_node(),
    })?;
    Ok(Costs::new(prices, config.capture != Capture::Off))
}

/// Those of the machine that the configuration names, if its policy or its trials need any.
pub(in crate::session) fn configured(config: &Config, ranks: u32) -> Result<Option<Costs>, SessionError> {
    let prefetch = &config.prefetch;
    if prefetch.policy != Some(PrefetchPolicy::Auto) && config.tune.steps == 0 {
        return Ok(None);
    }
    let cluster = named(&prefetch.cluster).map_err(|error| match error {
        ConfigError::NoCluster { name, presets } => config.refuse(
            "prefetch.cluster".to_owned(),
            format!("is {name:?}, which is neither a file nor a preset"),
            format!("a cluster file or one of {presets}"),
        ),
        other => other,
    })?;
    costs_of(config, &cluster, ranks).map(Some)
}
