//! The setting with which a session on several hosts is expected to be much faster.
//!
//! Law: it is said once, soon after a session has started, by the process of rank 0, and changes nothing. What it
//! takes to find it, seconds for a large model, no rank waits for: a thread of its own does it. It goes by
//! forecasts, on the machine that `prefetch.cluster` names. So nothing is said on one host of it, where no call
//! says what it costs, where calls are dynamic, which forecasts take for others, and where trials choose
//! (`tune.steps`). Named are settings that fit the same GPU and leave formats and types as they are.

use std::fmt;
use std::sync::Arc;
use std::thread;

use super::costs::costs_of;
use super::plans::{Planner, Plans};
use crate::cluster::named;
use crate::config::{Config, OptimizerShard, Prefetch, PrefetchPolicy};
use warpweft_plan::model::{Group, Mesh, StepProgram};
use warpweft_plan::plan::{Costs, Policy, StepPlan};
use warpweft_plan::policy::ByteSize;

/// A step that takes longer than this many times another is worth a line.
const WORTH: f64 = 1.1;

/// Looks for what is faster, and logs it.
pub(super) fn say_what_is_faster(
    programs: Vec<StepProgram>,
    plans: &Plans,
    config: Config,
    mesh: Mesh,
    costs: Option<&Costs>,
) {
    let Some(comparison) = Comparison::of(programs, plans, config, mesh, costs) else { return };
    let subscriber = tracing::dispatcher::get_default(Clone::clone);
    let look = move || {
        let Some(faster) = comparison.faster() else { return };
        let (program, settings) = (comparison.program().name(), &faster.settings);
        let [step_ms, other_ms] = faster.step_ms;
        tracing::dispatcher::with_default(&subscriber, || {
            tracing::info!(program, step_ms, other_ms, settings, "faster: {faster}");
        });
    };
    // Without a thread nothing is said, as without anybody who listens.
    drop(thread::Builder::new().name("warpweft forecasts".to_owned()).spawn(look));
}

/// The plan of a session's first program that trains, and what it is made of.
struct Comparison {
    programs: Vec<StepProgram>,
    trains: usize,
    plan: Arc<StepPlan>,
    planner: Planner,
    config: Config,
    mesh: Mesh,
    costs: Costs,
}

/// Another setting, and what it is expected to bring.
#[derive(Debug)]
struct Faster {
    settings: String,
    cluster: String,
    /// Milliseconds of a step, and bytes of the arena: as it is, and with the settings.
    step_ms: [f64; 2],
    bytes: [usize; 2],
}

impl fmt::Display for Faster {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { settings, cluster, step_ms: [step, other], .. } = self;
        let [bytes, others] = self.bytes.map(|bytes| ByteSize::of(bytes).rounded());
        write!(
            formatter,
            "a step is expected to take {step:.1} ms on `{cluster}`, and {other:.1} ms with {settings}, in an arena of \
             {others} in place of {bytes}"
        )
    }
}

impl Comparison {
    /// `None` where nothing is to be said.
    fn of(
        programs: Vec<StepProgram>,
        plans: &Plans,
        config: Config,
        mesh: Mesh,
        costs: Option<&Costs>,
    ) -> Option<Self> {
        let trains = programs.iter().position(StepProgram::updates_weights)?;
        let calls = programs.get(trains)?.calls();
        let is_known =
            calls.iter().any(|call| !call.cost.is_empty()) && !calls.iter().any(|call| call.dynamic);
        if !is_known || config.tune.steps > 0 {
            return None;
        }
        let costs = match costs {
            Some(costs) => costs.clone(),
            None => costs_of(&config, &named(&config.prefetch.cluster).ok()?, mesh.ranks()).ok()?,
        };
        let is_on_several = mesh.ranks() > costs.cluster().ranks_of_node();
        let (plan, planner) = (Arc::clone(plans.programs.get(trains)?), plans.planner.clone());
        is_on_several.then_some(Self { programs, trains, plan, planner, config, mesh, costs })
    }

    fn program(&self) -> &StepProgram {
        &self.programs[self.trains]
    }

    /// The fastest of the other settings, if it is by as much as is worth saying.
    fn faster(&self) -> Option<Faster> {
        let found = |plan: &StepPlan| (plan.forecast(&self.costs).step as f64 / 1e6, plan.arena.bytes());
        let fits = |bytes: usize| bytes as u64 <= self.costs.cluster().gpu.memory_bytes;
        let others = [(true, false), (false, true), (true, true)].into_iter().filter_map(|(auto, copies)| {
            let (settings, plan) = self.other(auto, copies)?;
            let (step_ms, bytes) = found(&plan);
            fits(bytes).then_some((step_ms, bytes, settings))
        });
        let (step_ms, bytes, settings) = others.min_by(|one, other| one.0.total_cmp(&other.0))?;
        let (own_ms, own_bytes) = found(&self.plan);
        (own_ms > WORTH * step_ms).then(|| Faster {
            settings,
            cluster: self.costs.cluster().name.clone(),
            step_ms: [own_ms, step_ms],
            bytes: [own_bytes, bytes],
        })
    }

    /// The program's plan with `prefetch.policy = "auto"`, with optimizer state over copies of weights, or both,
    /// and how that is said in a configuration. `None` if it is so already, or cannot be.
    fn other(&self, auto: bool, over_copies: bool) -> Option<(String, Arc<StepPlan>)> {
        let is_auto = self.config.prefetch.policy == Some(PrefetchPolicy::Auto);
        let has_copies = [Group::Replicate, Group::ExpertReplica].map(|group| self.mesh.size(group) > 1);
        let is_over_copies = self.config.optimizer.shard == OptimizerShard::Replicas;
        if (auto && is_auto) || (over_copies && (is_over_copies || has_copies == [false, false])) {
            return None;
        }
        let (mut settings, mut config) = (Vec::new(), self.config.clone());
        if auto {
            settings.push("prefetch.policy = \"auto\"");
            config.prefetch = config.prefetch.started_as(Prefetch::auto());
        }
        let anew = if over_copies {
            settings.push("optimizer.shard = \"replicas\"");
            config.optimizer.shard = OptimizerShard::Replicas;
            Some(Planner::new(&self.programs, &config, self.mesh).ok()?)
        } else {
            None
        };
        let planner = anew.as_ref().unwrap_or(&self.planner);
        let policy = Policy { prefetch: Policy::from(&config).prefetch, ..planner.policy };
        let plan = planner.plan(self.program(), &policy, Some(&self.costs)).ok()?;
        Some((settings.join(" and "), plan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Cluster;
    use crate::config::Declared;
    use crate::session::simulate_program;
    use warpweft_format::{Format, Orientation};
    use warpweft_plan::model::{CostHint, Decoder, Form, Math, Model, Phase};

    fn program(tokens: usize) -> StepProgram {
        let sizes = "layers = 4\nhidden = 4096\nffn = 14336\nheads = 32\nkv_heads = 8\nvocabulary = 128256";
        let text =
            format!("name = \"8b\"\n{sizes}\ntokens = {tokens}\nmath = \"fp8\"\nformat = \"nvfp4_2d\"\n");
        let decoder = Decoder::from_toml(&text, "8b.toml").unwrap();
        decoder.program(&decoder.model().unwrap()).unwrap()
    }

    /// Forward and backward of eight weights, all calls dynamic or none, each with this cost or none.
    fn calls(cost: Option<CostHint>, dynamic: bool) -> StepProgram {
        let mut model = Model::builder();
        let weight = |number| model.sharded(&format!("w{number}"), 4096, 4096, Format::Bf16).unwrap();
        let weights: Vec<_> = (0..8).map(weight).collect();
        let mut draft = StepProgram::builder("train", &model.build());
        for (phase, name) in [(Phase::Forward, "there"), (Phase::Backward, "back")] {
            for (number, weight) in weights.iter().enumerate() {
                let mut call = draft.call(&format!("{name} {number}"), phase);
                call = call.uses(*weight, Orientation::Rowwise, Form::Dense);
                call = if phase == Phase::Backward { call.gradient(*weight) } else { call };
                call = if dynamic { call.dynamic() } else { call };
                cost.into_iter().fold(call, |call, cost| call.cost(cost)).add().unwrap();
            }
        }
        draft.build_training().unwrap()
    }

    fn cluster() -> Cluster {
        let mut cluster = named("h100x8-ib").unwrap();
        cluster.jitter = Default::default();
        cluster
    }

    fn faster(program: &StepProgram, config: &Config, ranks: u32) -> Option<Faster> {
        let mesh = config.mesh_of(ranks).unwrap();
        let costs = costs_of(config, &cluster(), ranks).unwrap();
        let programs = vec![program.clone()];
        let plans = Plans::with_costs(&programs, config, mesh, Some(&costs)).unwrap();
        Comparison::of(programs, &plans, config.clone(), mesh, Some(&costs))?.faster()
    }

    fn in_replicas(dp_replicate: u32) -> Config {
        let mut config = Config::default();
        config.mesh.dp_replicate = Some(dp_replicate);
        config
    }

    /// And the settings bring what is said of them: both times are what the simulator says, but for what waits for the
    /// host.
    #[test]
    fn what_is_said_to_be_faster_is() {
        let (program, ranks, config) = (program(1024), 512, in_replicas(8));
        let said = faster(&program, &config, ranks).unwrap();
        let mut better = config.clone();
        if said.settings.contains("prefetch.policy = \"auto\"") {
            better.prefetch = Prefetch::auto();
        }
        if said.settings.contains("optimizer.shard = \"replicas\"") {
            better.optimizer.shard = OptimizerShard::Replicas;
        }
        assert_ne!(better, config, "{said}");
        for (config, step_ms) in [config, better.clone()].into_iter().zip(said.step_ms) {
            let simulated = simulate_program(&program, &config, &cluster(), ranks, 1).unwrap();
            let off = simulated.step.as_secs_f64() * 1e3 / step_ms - 1.0;
            assert!(off.abs() < 0.02, "{off}: {said}");
        }
        assert!(faster(&program, &better, ranks).is_none(), "{said}");
    }

    /// With `auto` already, what is left to say is where sums over replicas bind.
    #[test]
    fn state_over_replicas_is_named_where_it_is_what_is_faster() {
        let config = Config { prefetch: Prefetch::auto(), ..in_replicas(64) };
        let said = faster(&program(1024), &config, 128).unwrap();
        assert_eq!(said.settings, "optimizer.shard = \"replicas\"");
    }

    #[test]
    fn nothing_is_said_on_one_host_or_of_what_is_not_known() {
        let (known, config) = (program(1024), in_replicas(8));
        assert!(faster(&known, &config, 512).is_some());
        assert!(faster(&known, &Config::default(), 8).is_none(), "one host");
        let mut trying = config.clone();
        trying.tune.steps = 6;
        assert!(faster(&known, &trying, 512).is_none(), "trials choose");
        let on_demand = Config { prefetch: Prefetch::depth(0), ..config };
        let product = Some(CostHint::product(4096, 4096, 4096, Math::Fp8));
        for (hint, dynamic, is_said) in [(product, false, true), (product, true, false), (None, false, false)]
        {
            let program = calls(hint, dynamic);
            assert_eq!(faster(&program, &on_demand, 512).is_some(), is_said, "{hint:?}, {dynamic}");
        }
    }
}
