//! One layout: planned, then simulated.
//!
//! Law: a layout that is refused, or that no GPU holds, is no error: it is an [`Unfit`] with its reason. Whatever has
//! nothing to do with the mesh is an error, and ends the search.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use warpweft_plan::cluster::Cluster;
use warpweft_plan::plan::{Costs, PlanError, StepPlan};
use warpweft_plan::policy::ByteSize;
use warpweft_session::config::{Config, MeshAxes, Prefetch};
use warpweft_session::session::{SessionError, costs_of, plan_program_on, simulate_program};

use super::super::model_file::ModelFile;
use super::super::text::size;
use super::super::{Declaration, MeasureError, declared};

/// Where layouts are planned and simulated.
pub(super) struct Bench<'a> {
    pub(super) file: &'a ModelFile,
    /// Tokens of every rank in a micro-batch.
    pub(super) tokens: usize,
    pub(super) config: &'a Config,
    pub(super) cluster: &'a Cluster,
    pub(super) ranks: u32,
}

/// How far a plan on demand may be over the memory: a plan that looks at what is live, task by task, needs a little
/// less.
const OVER: f64 = 1.05;

/// A layout by its plan on demand.
pub(super) struct Sketch {
    pub(super) axes: MeshAxes,
    /// No schedule of the plan's tasks takes less, nanoseconds.
    pub(super) bound: u64,
}

/// A layout that has a plan.
pub(super) struct Planned {
    pub(super) axes: MeshAxes,
    pub(super) config: Config,
    /// The expected step, nanoseconds.
    pub(super) forecast: u64,
    /// The share of exposed communication that takes links between nodes, from 0 to 1.
    pub(super) between: f64,
}

/// A layout that was simulated.
pub(super) struct Simulated {
    pub(super) axes: MeshAxes,
    pub(super) config: Config,
    pub(super) step: Duration,
    pub(super) micro_batches: u32,
    /// Exposed communication over the step, from 0 to 1.
    pub(super) exposed: f64,
    /// As [`Planned::between`].
    pub(super) between: f64,
    /// Bytes of a rank's arena, and those of them that are transient.
    pub(super) memory: (usize, usize),
}

/// Why a layout is out.
pub(super) enum Unfit {
    /// More bytes of arena than a GPU has, or more transient ones than the budget.
    Memory { needed: usize, of: &'static str },
    /// It cannot be declared or planned.
    Refused(String),
}

impl fmt::Display for Unfit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { needed, of } => write!(formatter, "it needs {} of {of}", size(*needed)),
            Self::Refused(reason) => formatter.write_str(reason),
        }
    }
}

/// What a layout came to, if it is not out; the error has nothing to do with the mesh.
pub(super) type Tried<T> = Result<Result<T, Unfit>, MeasureError>;

/// Both ways in which trying a layout ends early.
enum Refusal {
    Unfit(Unfit),
    Error(Box<MeasureError>),
}

impl<E: Into<MeasureError>> From<E> for Refusal {
    fn from(error: E) -> Self {
        let error = error.into();
        let words = error.to_string();
        match error {
            MeasureError::Session(SessionError::Plan(PlanError::Budget { needed, .. })) => {
                Self::Unfit(Unfit::Memory { needed, of: "memory.budget" })
            }
            MeasureError::Model { .. }
            | MeasureError::Declare(_)
            | MeasureError::Session(SessionError::Declare(_) | SessionError::Plan(_)) => {
                Self::Unfit(Unfit::Refused(words))
            }
            other => Self::Error(Box::new(other)),
        }
    }
}

impl Refusal {
    fn tried<T>(result: Result<T, Self>) -> Tried<T> {
        match result {
            Ok(made) => Ok(Ok(made)),
            Err(Self::Unfit(reason)) => Ok(Err(reason)),
            Err(Self::Error(error)) => Err(*error),
        }
    }
}

impl Bench<'_> {
    /// Plans the layout on demand, where least is gathered at once: what is far over a GPU's memory fits by no policy.
    pub(super) fn sketch(&self, axes: MeshAxes) -> Tried<Sketch> {
        let sketch = || {
            let mut config = self.config(axes);
            config.prefetch = config.prefetch.started_as(Prefetch::depth(0));
            let most = |bytes: u64| (bytes as f64 * OVER) as u64;
            config.memory.budget = config.memory.budget.map(|budget| ByteSize::new(most(budget.bytes())));
            let plan = self.fitting(&mut config, most(self.cluster.gpu.memory_bytes))?;
            Ok(Sketch { axes, bound: plan.forecast(&self.costs(&config)?).step_bound })
        };
        Refusal::tried(sketch())
    }

    /// Plans the layout, within the memory of a GPU.
    pub(super) fn plan(&self, axes: MeshAxes) -> Tried<Planned> {
        let planned = || {
            let mut config = self.config(axes);
            let plan = self.fitting(&mut config, self.cluster.gpu.memory_bytes)?;
            let forecast = plan.forecast(&self.costs(&config)?);
            let between = forecast.exposed_between as f64 / forecast.exposed.max(1) as f64;
            Ok(Planned { axes, config, forecast: forecast.step, between })
        };
        Refusal::tried(planned())
    }

    /// Simulates a step of the layout.
    pub(super) fn simulate(&self, planned: &Planned) -> Tried<Simulated> {
        let Planned { axes, config, between, .. } = planned;
        let simulated = || {
            let program = self.declare(config)?.program;
            let simulation = simulate_program(&program, config, self.cluster, self.ranks, 1)?;
            Ok(Simulated {
                axes: *axes,
                config: config.clone(),
                step: simulation.step,
                micro_batches: simulation.plan.micro_batches,
                exposed: simulation.exposure.fraction(),
                between: *between,
                memory: (simulation.plan.arena.bytes(), simulation.plan.bounds.transient_bytes),
            })
        };
        Refusal::tried(simulated())
    }

    /// The configuration of every layout, with this mesh.
    fn config(&self, axes: MeshAxes) -> Config {
        let mut config = self.config.clone();
        config.mesh = MeshAxes { levels: config.mesh.levels, ..axes };
        for key in ["mesh.dp_replicate", "mesh.dp_shard", "mesh.cp", "mesh.tp", "mesh.ep"] {
            config.set_by(key, "the tuner");
        }
        config
    }

    fn declare(&self, config: &Config) -> Result<Declaration, MeasureError> {
        let MeshAxes { cp, tp, .. } = config.mesh;
        let file = self.file.shared_by(cp.saturating_mul(tp), self.tokens);
        declared(&file, config.clone(), self.ranks)
    }

    /// The plan within `memory` bytes: by itself, or with a budget of what resident bytes leave.
    fn fitting(&self, config: &mut Config, memory: u64) -> Result<Arc<StepPlan>, Refusal> {
        let program = self.declare(config)?.program;
        let plan = |config: &Config| plan_program_on(&program, config, self.cluster, self.ranks);
        let mut planned = plan(config)?;
        let resident = planned.arena.bytes().saturating_sub(planned.bounds.transient_bytes) as u64;
        if planned.arena.bytes() as u64 > memory && resident < memory && config.memory.budget.is_none() {
            // Whole MiB, as people write them.
            config.memory.budget = Some(ByteSize::new(((memory - resident) >> 20 << 20).max(1)));
            config.set_by("memory.budget", "the tuner");
            planned = plan(config).map_err(|error| match error {
                SessionError::Plan(PlanError::Budget { needed, .. }) => {
                    let needed = needed.saturating_add(usize::try_from(resident).unwrap_or(usize::MAX));
                    Refusal::Unfit(Unfit::Memory { needed, of: "a GPU's memory" })
                }
                other => other.into(),
            })?;
        }
        let needed = planned.arena.bytes();
        match needed as u64 > memory {
            true => Err(Refusal::Unfit(Unfit::Memory { needed, of: "a GPU's memory" })),
            false => Ok(planned),
        }
    }

    fn costs(&self, config: &Config) -> Result<Costs, SessionError> {
        costs_of(config, self.cluster, self.ranks)
    }
}
