//! Arguments of `warpweft tune`.
//!
//! Law: arguments are turned into options here and used elsewhere. No file is replaced without `--force`.

use std::path::PathBuf;

use clap::Args;
use warpweft_plan::model::Mesh;

use super::super::{LayoutOptions, MeasureError, MeshChoice, Outputs, TuneOptions, rank_layouts, tune_model};
use super::Interrupts;
use super::schedule::ModelArguments;

/// Finds the prefetch policy that is fastest on a machine, within a budget of memory
///
/// Two things are done, in virtual time. A sweep simulates depths and bytes in flight, and says of
/// each what a step takes, how much of it is exposed communication, and what memory it needs. Then
/// the tuner runs as it would on a real machine: it tries policies for a few steps each, keeps the
/// fastest that fits the budget, and says why. What it ends with is printed as a configuration, which
/// makes the same plan again, by itself or with its keys in place of those of --config, without those
/// that it names as replaced; so no plan is made of measured durations here.
///
/// With --mesh auto it finds the layout in place of the policy. Every rank has the `tokens` of the file,
/// or --rank-tokens, whatever it shares with others. All meshes of so many ranks are planned, and those
/// that may be the fastest simulated. Axes that are given stay (--mesh auto,tp=8). Ranks that compute
/// the parts of one layer are on one node, and no more ranks share a text than it takes to hold it.
/// Gathers start as --depth, --bytes or the configuration say, and else by what tasks take. A layout
/// that does not fit a GPU gets a memory.budget with which it does, if there is one.
///
/// exposed       a collective runs and the compute lane runs nothing, as a share of the step
/// binding link  which links those collectives take; none below 1 %
///
/// MODEL.toml is as for `warpweft plan --help`, the cluster as for `warpweft simulate --help`.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, after_long_help = TUNE_EXAMPLES)]
pub(super) struct Tune {
    #[command(flatten)]
    model: ModelArguments,

    /// Axes of the mesh as for `warpweft plan`, or auto: the axes that are not given are to be found
    #[arg(long, value_name = "auto|AXIS=N", value_delimiter = ',')]
    mesh: Vec<MeshChoice>,

    /// A preset or a file. A policy that is "auto" counts with this machine too, in place of prefetch.cluster
    #[arg(long, value_name = "PRESET|FILE")]
    cluster: String,

    /// Ranks, in all replicas; node after node
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(Mesh::MAX_RANKS)))]
    ranks: u32,

    /// Tokens of every rank in a micro-batch, for --mesh auto; those of the file when left out
    #[arg(long, value_name = "N", requires = "mesh", value_parser = clap::value_parser!(u32).range(1..))]
    rank_tokens: Option<u32>,

    /// Print the layouts of --mesh auto as JSON, the best first, each with its configuration
    #[arg(long, requires = "mesh")]
    json: bool,

    /// Draw step time against memory, with the choice marked
    #[arg(long, value_name = "OUT.svg")]
    picture: Option<PathBuf>,

    /// Replace a file that exists
    #[arg(long, requires = "picture")]
    force: bool,
}

impl Tune {
    pub(super) fn run(self, interrupts: &Interrupts) -> Result<String, MeasureError> {
        let axis = |choice: &MeshChoice| if let MeshChoice::Axis(axis) = choice { Some(*axis) } else { None };
        let is_open = self.mesh.contains(&MeshChoice::Auto);
        let options = TuneOptions {
            model: self.model.options(self.mesh.iter().filter_map(axis).collect()),
            cluster: self.cluster,
            ranks: self.ranks,
            outputs: Outputs { trace: None, picture: self.picture, replace: self.force },
        };
        let Self { rank_tokens, json, .. } = self;
        match is_open {
            true => rank_layouts(&LayoutOptions { tune: options, rank_tokens, json }, interrupts.watch()),
            false if json || rank_tokens.is_some() => Err(MeasureError::NotLayouts),
            false => tune_model(&options),
        }
    }
}

pub(super) const TUNE_EXAMPLES: &str = "\
Examples:
  What is fastest on 64 GPUs in 20 GiB of transient memory:
    warpweft tune 8b.toml --cluster h100x8-ib --ranks 64 --budget 20GiB --picture tune.svg

  Which layout is fastest on 512 GPUs, and which of those with tp 8:
    warpweft tune 70b.toml --cluster h100x8-ib --ranks 512 --mesh auto
    warpweft tune 70b.toml --cluster h100x8-ib --ranks 512 --mesh auto,tp=8 --json";
