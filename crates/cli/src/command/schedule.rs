//! Arguments of `warpweft plan`, `simulate` and `trace`.
//!
//! Law: arguments are turned into options here and used elsewhere. No file is replaced without `--force`.

use std::path::PathBuf;

use clap::Args;
use warpweft_base::id::RankId;
use warpweft_base::time::Nanoseconds;
use warpweft_plan::model::Mesh;
use warpweft_plan::policy::ByteSize;
use warpweft_session::config::Prefetch;

use super::super::{
    MeasureError, MeshAxis, ModelOptions, Outputs, PlanView, SimulateOptions, TracePart, plan_model,
    show_trace, simulate_model,
};

/// Plans one step of a model and says what it needs: tasks, memory, bytes on the wire
///
/// MODEL.toml declares a decoder by its sizes:
///
///   name = "8b"              what it is called
///   layers = 32              blocks of attention and MLP
///   hidden = 4096            width of the residual stream
///   ffn = 14336              width of gate and up, each
///   heads = 32               query heads
///   kv_heads = 8             key and value heads; as many as heads when left out
///   vocabulary = 128256      rows of embedding and head
///   tokens = 8192            tokens of one micro-batch of a rank; with --mesh tp or cp, of the ranks
///                            that share texts
///   micro_batches = 4        micro-batches of a step; 1 when left out
///   sequence = 8192          tokens that attend to each other; all of them when left out
///   math = "fp8"             what products are computed in: f32, bf16, fp8, fp4
///   format = "nvfp4_2d"      format of the blocks' matrices; `warpweft formats` explains them
///   embedding_format = "bf16"  that of embedding and head; bf16 when left out
///   experts = 64             experts of an MLP; 1 when left out
///   expert_ffn = 2048        width of gate and up of each expert; ffn when left out
///   dense_layers = 3         first blocks whose MLPs are no experts; 0 when left out
///   experts_per_token = 6    experts that a token passes through; 1 when left out
///   expert_groups = 1        groups of experts that travel as one collective, each expert a weight
///                            of its own; when left out, the experts of a matrix are rows of one
///                            weight
///   tied = true              the head is the embedding; false when left out
///   replays = 1              how often the last block runs again; 0 when left out
///
/// Each block is four calls (qkv, attention, up, down), forward and backward; with --mesh tp or cp
/// the exchanges of its ranks as well, and backward in two parts. Rules that give single
/// weights another format, and everything else that can be chosen, are in the configuration
/// (--config).
///
/// Or it lists weights, buffers and calls of any model, in program order:
///
///   name                     what it is called; needed
///   tokens                   tokens of one rank in one micro-batch, for rates
///   micro_batches            micro-batches of a step (1)
///   math                     that of calls that name none (f32)
///   [[weight]]               name, rows, cols; format (bf16), placement ("sharded"), reuse, group,
///                            frozen (false), expert_parallel (false)
///   [[buffer]]               name, elements; element (f32), role ("internal"), lifetime ("step")
///   [[call]]                 name, phase; uses = [{ weight, orientation, form, reuse }], gradients
///                            (f32), gradients_bf16, reads, writes, updates; flops, bytes, math,
///                            kernels, and further parts of its cost: parts = [{ flops, bytes, math,
///                            kernels }]; dynamic (false); or, in the place of a closure,
///                            collective ("all_gather", "reduce_scatter", "all_to_all", "sum",
///                            "max") of the buffer it reads into the one it writes, among
///                            ("world", "shard", "replicate", "replica", "context", "tensor",
///                            "expert", "expert_shard", "expert_replica", "expert_rows"); with
///                            capacity, rows of a slot, an all-to-all reads rows and their counts
///                            and writes both, of which filled (100) percent are filled for prices;
///                            back or again, in the place of collective, is the name of such a
///                            call, by whose counts rows go back or the same way again
///
/// The gradient of a frozen weight, frozen here or by a rule of the configuration, is left out.
///
/// An item with `numbers = [0, 31]` is repeated for each of them: in its texts `#` is the number,
/// `#-1` and `#+1` are its neighbours. examples/simulate/calls.toml is such a file.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, after_long_help = PLAN_EXAMPLES)]
pub(super) struct Plan {
    #[command(flatten)]
    model: ModelArguments,

    #[command(flatten)]
    mesh: MeshArguments,

    /// Ranks, in all replicas
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..=i64::from(Mesh::MAX_RANKS)))]
    ranks: u32,

    /// Print every task in issue order: lane, bytes received, what it waits for
    #[arg(long, conflicts_with_all = ["dot", "why"])]
    tasks: bool,

    /// Print the plan as Graphviz source; render it with `dot -Tsvg`
    #[arg(long, conflicts_with = "why")]
    dot: bool,

    /// Explain why a task stands where it stands: its number, or part of its name such as "all-gather of head.weight"
    #[arg(long, value_name = "TASK")]
    why: Option<String>,

    /// Say what a step is expected to take on a machine, what no schedule could beat, and whether the plan fits
    /// its memory: a preset or a file. Graphs of --dot say nothing of it. A policy that is "auto" counts with this
    /// machine too, in place of prefetch.cluster, so it may make another plan
    #[arg(long, value_name = "PRESET|FILE")]
    cluster: Option<String>,
}

/// Runs steps of a model in virtual time, on a cluster that need not exist
///
/// The plan is the one a session would run, issued by the same actors with the same messages; only
/// time and memory are counted instead of spent. MODEL.toml is as for `warpweft plan --help`. The
/// cluster is a preset
///
///   h200x4        one host of four H200; measured, with copies that pulled
///   h100x8-ib     hosts of eight H100, one InfiniBand port per GPU
///   gb200-nvl72   racks of 72 GB200 in one NVLink domain
///
/// or a file like them (crates/plan/src/cluster/presets shows every key, and where its number comes from).
///
/// step      mean time of a step on the slowest rank, after one step that is not counted
/// exposed   a collective runs and the compute lane runs nothing, as a share of the step
/// skew      a collective waits for its last rank; needs jitter or stragglers in the cluster
/// idle      neither computes nor communicates: the optimizer, casts, launches
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, after_long_help = SIMULATE_EXAMPLES)]
pub(super) struct Simulate {
    #[command(flatten)]
    model: ModelArguments,

    #[command(flatten)]
    mesh: MeshArguments,

    /// A preset or a file. A policy that is "auto" counts with this machine too, in place of prefetch.cluster
    #[arg(long, value_name = "PRESET|FILE")]
    cluster: String,

    /// Ranks, in all replicas; node after node
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(Mesh::MAX_RANKS)))]
    ranks: u32,

    /// Steps to take the mean of; they differ where the cluster has jitter
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=1000))]
    steps: u32,

    /// Write rank 0's last step as a chrome trace, for Perfetto
    #[arg(long, value_name = "OUT.json")]
    trace: Option<PathBuf>,

    /// Draw rank 0's last step
    #[arg(long, value_name = "OUT.svg")]
    picture: Option<PathBuf>,

    /// Replace files that exist
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
struct MeshArguments {
    /// Axes of the mesh, such as tp=2,dp_shard=4, over the configuration's: dp_replicate (replicas), dp_shard, cp (ranks
    /// that share the tokens of a text), tp (ranks that compute the parts of one layer), ep (ranks that share experts),
    /// ep_shard (ranks that one expert is sharded over), optimizer_instances (blocks of replicas that each keep all
    /// optimizer state). One of dp_replicate and dp_shard follows from the number of ranks
    #[arg(long, value_name = "AXIS=N", value_delimiter = ',')]
    mesh: Vec<MeshAxis>,
}

#[derive(Debug, Args)]
pub(super) struct ModelArguments {
    /// The model: a decoder by its sizes, or a list of calls
    #[arg(value_name = "MODEL.toml")]
    model: PathBuf,

    /// The configuration to plan with; the environment (WARPWEFT_…) is read as well
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// How many calls ahead weights are gathered, over the configuration's policy; 0 is on demand
    #[arg(long, value_name = "D", group = "prefetch", value_parser = clap::value_parser!(u32).range(0..=i64::from(Prefetch::MAX_DEPTH)))]
    depth: Option<u32>,

    /// Gathered planes in flight, over the configuration's policy
    #[arg(long, value_name = "SIZE", group = "prefetch")]
    bytes: Option<ByteSize>,

    /// Let the planner choose by what tasks take on --cluster, or without one on the configuration's prefetch.cluster;
    /// over the configuration's policy
    #[arg(long, group = "prefetch")]
    auto: bool,

    /// Most transient bytes per rank, over the configuration's memory.budget
    #[arg(long, value_name = "SIZE")]
    budget: Option<ByteSize>,

    /// How many GPUs of each node of the cluster are ranks, over its ranks_per_node
    #[arg(long, value_name = "N", requires = "cluster", value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks_per_node: Option<u32>,

    /// Plan for a custom optimizer in place of Adam, which keeps so many lists of f32 state beside every master
    #[arg(long, value_name = "N")]
    optimizer_states: Option<u8>,

    /// Weights whose matrices the custom optimizer takes whole, as Muon does: a pattern of their names
    #[arg(long, value_name = "PATTERN", requires = "optimizer_states")]
    whole_matrices: Vec<String>,
}

/// Sums up a trace that warpweft wrote, and draws a step of it, or a part of a step
///
/// Traces come from `warpweft simulate --trace`, from sessions with `trace.enabled`, and from the
/// example `train --trace`. The summary says per rank and per program where step time went, and per
/// lane how busy it was; the picture has a row per lane, with exposed communication shaded.
///
/// mean      mean time of a step; compute, exposed, skew and idle are shares of it
/// compute   the compute lane runs
/// exposed   a communication runs and the compute lane runs nothing
/// skew      the rank waits in a collective for its last rank
/// idle      neither computes nor communicates: the optimizer, casts, launches
/// overlap   the part of all communication that runs behind compute
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Trace {
    /// The trace
    #[arg(value_name = "TRACE.json")]
    trace: PathBuf,

    /// Draw a step
    #[arg(long, value_name = "OUT.svg")]
    picture: Option<PathBuf>,

    /// The step to draw, by its number in the session; the first of the trace when left out
    #[arg(long, value_name = "N", requires = "picture")]
    step: Option<u64>,

    /// The one rank to draw; all of them when left out. What it waits for is known from the others, so a trace
    /// of all ranks tells more than one of its own
    #[arg(long, value_name = "N", requires = "picture")]
    rank: Option<u32>,

    /// Where the picture begins, milliseconds since the begin of the step
    #[arg(long, value_name = "MS", requires = "picture", value_parser = milliseconds)]
    from: Option<Nanoseconds>,

    /// Where it ends, milliseconds since the begin of the step
    #[arg(long, value_name = "MS", requires = "picture", value_parser = milliseconds)]
    to: Option<Nanoseconds>,

    /// Replace a file that exists
    #[arg(long, requires = "picture")]
    force: bool,
}

pub(super) const PLAN_EXAMPLES: &str = "\
Examples:
  What an 8B decoder needs on 64 ranks:
    warpweft plan 8b.toml --ranks 64

  The order of everything, and the picture of it:
    warpweft plan 8b.toml --tasks
    warpweft plan 8b.toml --dot > plan.dot";

pub(super) const SIMULATE_EXAMPLES: &str = "\
Examples:
  What prefetching gains:
    warpweft simulate 8b.toml --cluster h200x4 --ranks 4 --depth 0
    warpweft simulate 8b.toml --cluster h200x4 --ranks 4 --depth 2 --picture depth2.svg

  Four thousand ranks of a cluster of your own:
    warpweft simulate 8b.toml --cluster ours.toml --ranks 4096 --trace step.json";

fn milliseconds(text: &str) -> Result<Nanoseconds, String> {
    let number: Option<f64> = text.parse().ok();
    let nanoseconds = number.map(|number| (number * 1e6).round()).filter(|n| (0.0..1e15).contains(n));
    let wrong = || "give a number of milliseconds from 0 on, such as 22 or 4.5".to_owned();
    nanoseconds.map(|nanoseconds| Nanoseconds::new(nanoseconds as u64)).ok_or_else(wrong)
}

impl ModelArguments {
    pub(super) fn options(self, mesh: Vec<MeshAxis>) -> ModelOptions {
        let Self {
            model,
            config,
            depth,
            bytes,
            auto,
            budget,
            ranks_per_node,
            optimizer_states,
            whole_matrices,
        } = self;
        let prefetch = depth.map(Prefetch::depth).or_else(|| bytes.map(Prefetch::bytes));
        let prefetch = prefetch.or_else(|| auto.then(Prefetch::auto));
        ModelOptions {
            model,
            config,
            prefetch,
            budget,
            mesh,
            ranks_per_node,
            optimizer_states,
            whole_matrices,
        }
    }
}

impl Plan {
    pub(super) fn run(self) -> Result<String, MeasureError> {
        let view = match (self.tasks, self.dot, self.why) {
            (.., Some(task)) => PlanView::Why(task),
            (_, true, None) => PlanView::Dot,
            (true, false, None) => PlanView::Tasks,
            (false, false, None) => PlanView::Totals,
        };
        plan_model(&self.model.options(self.mesh.mesh), self.cluster.as_deref(), self.ranks, &view)
    }
}

impl Simulate {
    pub(super) fn run(self) -> Result<String, MeasureError> {
        simulate_model(&SimulateOptions {
            model: self.model.options(self.mesh.mesh),
            cluster: self.cluster,
            ranks: self.ranks,
            steps: self.steps,
            outputs: Outputs { trace: self.trace, picture: self.picture, replace: self.force },
        })
    }
}

impl Trace {
    pub(super) fn run(self) -> Result<String, MeasureError> {
        let outputs = Outputs { trace: None, picture: self.picture, replace: self.force };
        let rank = self.rank.map(RankId::new);
        let part = TracePart { step: self.step, rank, from: self.from, to: self.to };
        show_trace(&self.trace, &outputs, &part)
    }
}
