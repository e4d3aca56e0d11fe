//! `warpweft plan`, `simulate`, `tune` and `trace`: plans, simulations and traces, for people.
//!
//! Law: nothing is planned or timed here. The plan is the session's, the times are the simulator's or the
//! plan's forecast, the summary is the trace module's; this folder reads files, lays out numbers and writes
//! files.
//!
//! | file | idea |
//! |---|---|
//! | `mesh_axis` | an axis of the mesh, on the command line |
//! | `model_file` | a model, by its sizes or by its calls |
//! | `text` | a plan and a simulation in words |
//! | `outputs` | files that are written, and when they may be replaced |
//! | `shown` | a trace summed up, and which part of it is drawn |
//! | `tune` | a sweep of policies, and the tuner on a simulated machine |
//! | `layouts` | the meshes of a number of ranks, the fastest first |

mod layouts;
mod mesh_axis;
mod model_file;
mod outputs;
mod shown;
mod text;
mod tune;

use std::path::{Path, PathBuf};

pub use layouts::{LayoutOptions, rank_layouts};
pub use mesh_axis::{MeshAxis, MeshChoice};
pub use outputs::Outputs;
pub use shown::{TracePart, show_trace};
pub use tune::{TuneOptions, tune_model};
use warpweft_backend::sim::END;
use warpweft_plan::cluster::Cluster;
use warpweft_plan::model::StepProgram;
use warpweft_plan::policy::ByteSize;
use warpweft_session::cluster::{named, with_ranks_per_node};
use warpweft_session::config::{Config, ConfigError, Prefetch, WeightRule};
use warpweft_session::session::{
    columnwise_saving, costs_of, plan_program, plan_program_on, simulate_program,
};
use warpweft_session::trace::TimelinePicture;

use self::model_file::ModelFile;
use self::text::{columnwise, forecast, outcome, policy, too_large, totals};
use super::text::duration;
use super::{MeasureError, Measuring};

/// The most tasks that are explained at once.
const MOST_REASONS: usize = 50;

/// The level of detail of a printed plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanView {
    /// Tasks by op, bytes by kind.
    Totals,
    /// Every task.
    Tasks,
    /// Graphviz source.
    Dot,
    /// Why a task stands where it stands: its number, or part of its description.
    Why(String),
}

/// A model, and the options of planning it.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// The model's file: a decoder by its sizes, or calls.
    pub model: PathBuf,
    /// The configuration's, if any.
    pub config: Option<PathBuf>,
    /// In place of the configuration's `prefetch`.
    pub prefetch: Option<Prefetch>,
    /// In place of the configuration's `memory.budget`.
    pub budget: Option<ByteSize>,
    /// In place of the configuration's axes of the mesh.
    pub mesh: Vec<MeshAxis>,
    /// In place of the cluster's `ranks_per_node`.
    pub ranks_per_node: Option<u32>,
    /// Lists of f32 state that a custom optimizer keeps beside every master; `None` for Adam.
    pub optimizer_states: Option<u8>,
    /// Patterns of weights whose matrices it takes whole, after the rules of the configuration.
    pub whole_matrices: Vec<String>,
}

/// The key by which it is said when gathers start, and the option that sets it.
fn way(prefetch: &Prefetch) -> (&'static str, &'static str) {
    match prefetch {
        Prefetch { policy: Some(_), .. } => ("prefetch.policy", "--auto"),
        Prefetch { bytes: Some(_), .. } => ("prefetch.bytes", "--bytes"),
        _ => ("prefetch.depth", "--depth"),
    }
}

impl ModelOptions {
    /// The configuration with the options over it; each key that one sets knows which it was.
    fn config(&self) -> Result<Config, ConfigError> {
        let mut config = Config::load(self.config.as_deref())?;
        if let Some(prefetch) = &self.prefetch {
            config.prefetch = config.prefetch.started_as(prefetch.clone());
            let (key, option) = way(prefetch);
            config.set_by(key, option);
        }
        if let Some(budget) = self.budget {
            config.memory.budget = Some(budget);
            config.set_by("memory.budget", "--budget");
        }
        for axis in &self.mesh {
            let key = axis.set(&mut config.mesh);
            config.set_by(key, "--mesh");
        }
        config.optimizer.custom_states = self.optimizer_states;
        for pattern in &self.whole_matrices {
            let (key, whole_matrix) = (format!("weights.{}.match", config.weights.len()), Some(true));
            config.weights.push(WeightRule {
                pattern: pattern.clone(),
                whole_matrix,
                ..WeightRule::default()
            });
            config.set_by(&key, "--whole-matrices");
        }
        Ok(config)
    }

    /// The cluster of that name, with as many ranks on a node as the options say.
    fn cluster(&self, name: &str) -> Result<Cluster, ConfigError> {
        let cluster = named(name)?;
        match self.ranks_per_node {
            None => Ok(cluster),
            Some(ranks) => with_ranks_per_node(cluster, ranks, "--ranks-per-node"),
        }
    }

    /// Every file that is read, on a cluster of that name.
    fn inputs<'a>(&'a self, cluster: &'a str) -> Vec<&'a Path> {
        [self.model.as_path(), Path::new(cluster)].into_iter().chain(self.config.as_deref()).collect()
    }
}

/// Options of a simulation.
#[derive(Clone, Debug)]
pub struct SimulateOptions {
    /// Which model, and how it is planned.
    pub model: ModelOptions,
    /// A preset, or a file.
    pub cluster: String,
    /// Number of ranks.
    pub ranks: u32,
    /// Steps to take the mean of.
    pub steps: u32,
    /// What is written.
    pub outputs: Outputs,
}

/// A model read and declared.
struct Declaration {
    /// What the model is called.
    name: String,
    /// Tokens of one rank in one micro-batch, if the file says so.
    tokens: Option<usize>,
    program: StepProgram,
    config: Config,
}

/// Plans one step of a model, and says what the plan is, and what it is expected to take on a cluster if one
/// is named.
///
/// # Errors
/// [`MeasureError`]: files that declare what cannot be, a plan that does not fit its budget, a task that is
/// not there.
pub fn plan_model(
    model: &ModelOptions,
    cluster_name: Option<&str>,
    ranks: u32,
    view: &PlanView,
) -> Result<String, MeasureError> {
    let Declaration { program, config, .. } = declare(model, ranks)?;
    let (plan, costs, too_large) = match cluster_name {
        None => (plan_program(&program, &config, ranks)?, None, None),
        Some(name) => {
            let cluster = model.cluster(name)?;
            let plan = plan_program_on(&program, &config, &cluster, ranks)?;
            let too_large = too_large(&plan, &cluster);
            (plan, Some(costs_of(&config, &cluster, ranks)?), too_large)
        }
    };
    let expectation = costs.as_ref().map(|costs| plan.forecast(costs));
    if expectation.as_ref().is_some_and(|forecast| forecast.step >= END) {
        return Err(MeasureError::Endless { cluster: cluster_name.unwrap_or_default().to_owned() });
    }
    let expected = || expectation.as_ref().map_or_else(String::new, forecast);
    let machine = cluster_name.unwrap_or(&config.prefetch.cluster);
    let note = |note: &String| format!("note: {note}\n");
    Ok(match view {
        PlanView::Totals => {
            let saving = columnwise_saving(&plan, &program, &config, costs.as_ref())?;
            totals(&plan)
                + &columnwise(saving)
                + &format!("{:<13} {}\n", "prefetch", policy(&config.prefetch, machine))
                + &expected()
                + &plan.notes.iter().chain(&too_large).map(note).collect::<String>()
        }
        PlanView::Tasks => match costs {
            None => plan.to_string(),
            Some(_) => format!("{plan}\n{}", expected() + &too_large.iter().map(note).collect::<String>()),
        },
        PlanView::Dot => plan.to_dot(),
        PlanView::Why(wanted) => {
            let found = plan.find_tasks(wanted);
            if found.is_empty() {
                return Err(MeasureError::NoTask { wanted: wanted.clone() });
            }
            let (told, untold) = found.split_at(found.len().min(MOST_REASONS));
            plan.why_each(told, costs.as_ref()).join("\n") + &more(wanted, untold.len())
        }
    })
}

/// That there are more tasks than were shown, if so.
fn more(wanted: &str, untold: usize) -> String {
    if untold == 0 {
        return String::new();
    }
    format!(
        "\n{untold} more tasks match `{wanted}`: give --why more of a name, or a number; `warpweft plan --tasks` lists \
         them all\n"
    )
}

/// Simulates steps of a model, and says what they came to.
///
/// # Errors
/// As [`plan_model`]; a cluster that does not exist or is too small; files that exist or cannot be written.
pub fn simulate_model(options: &SimulateOptions) -> Result<String, MeasureError> {
    options.outputs.check(&options.model.inputs(&options.cluster))?;
    let declared = declare(&options.model, options.ranks)?;
    let cluster = options.model.cluster(&options.cluster)?;
    let Declaration { name, program, config, .. } = &declared;
    let simulation = simulate_program(program, config, &cluster, options.ranks, options.steps)?;
    options.outputs.write_trace(&simulation.timeline)?;
    let (step, exposed) = (duration(simulation.step), 100.0 * simulation.exposure.fraction());
    let (device, prefetch) = (&simulation.device, &config.prefetch);
    let title = format!("{name}, {device}, {prefetch}: {step} a step, {exposed:.1} % exposed");
    options.outputs.draw(&simulation.timeline, TimelinePicture { title, ..Default::default() })?;
    Ok(outcome(&declared, &cluster, &simulation))
}

fn declare(options: &ModelOptions, ranks: u32) -> Result<Declaration, MeasureError> {
    declared(&ModelFile::load(&options.model)?, options.config()?, ranks)
}

fn declared(file: &ModelFile, config: Config, ranks: u32) -> Result<Declaration, MeasureError> {
    // How many experts a rank has does not depend on the replicas.
    let model = config.apply_weight_rules(&file.model(config.mesh_of(ranks)?)?)?;
    let config = config.with_usual_replicas(ranks, &model);
    let mesh = config.mesh_of(ranks)?;
    Ok(Declaration {
        name: file.name().to_owned(),
        tokens: file.tokens(mesh),
        program: file.program(&model, mesh)?,
        config,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweft_backend::cpu::CpuSurface;
    use warpweft_plan::compute::ComputeContext;
    use warpweft_plan::model::Call;
    use warpweft_session::session::{Session, block_on, initial};

    const MODEL: &str = "name = 'small'\nlayers = 2\nhidden = 256\nffn = 512\nheads = 4\nvocabulary = 512\ntokens = 64\nmath = 'bf16'\nformat = 'nvfp4_2d'\n";

    /// TL-5: what is shown is the plan of a session of the same program and configuration.
    #[test]
    fn the_plan_that_is_shown_is_the_one_a_session_runs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.toml");
        std::fs::write(&path, MODEL).unwrap();
        for depth in [0, 2] {
            let prefetch = Some(Prefetch { depth: Some(depth), ..Prefetch::default() });
            let options = ModelOptions {
                model: path.clone(),
                config: None,
                prefetch,
                budget: None,
                mesh: Vec::new(),
                ranks_per_node: None,
                optimizer_states: None,
                whole_matrices: Vec::new(),
            };
            let shown = plan_model(&options, None, 2, &PlanView::Tasks).unwrap();
            let Declaration { program, config, .. } = declare(&options, 2).unwrap();
            let run = block_on(async {
                let closures = |_| |_: &Call, _: &ComputeContext<'_, CpuSurface>| Ok(());
                let name = program.name().to_owned();
                let builder = Session::builder(config, closures).program(program);
                let session = builder.initialize(initial::zeros()).start_cpu(2).await.unwrap();
                let plan = session.plan(&name).unwrap().to_string();
                session.close().await.unwrap();
                plan
            });
            assert_eq!(shown, run);
        }
    }
}
