//! `warpweft tune --mesh auto`: the layouts of a model on a number of ranks, the fastest first.
//!
//! Law: every rank of every layout has as many tokens, so the shorter step is the better one. Every layout that is
//! shown was simulated by the plan that a session would run, and fits the memory of a GPU: one that does not by itself
//! gets a budget of what its resident bytes leave. Which layouts are simulated follows from the forecasts of all
//! plans: those near the best. A layout that cannot be declared or planned is counted, with the reason of one.
//!
//! | file | idea |
//! |---|---|
//! | `meshes` | the meshes that are worth planning |
//! | `layout` | one layout: planned, then simulated |
//! | `shown` | what was found, for people and as JSON |
//!
//! Deliberately absent: other formats, micro-batches or prefetch policies than the model's and the configuration's.

mod layout;
mod meshes;
mod shown;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use warpweft_plan::model::Mesh;
use warpweft_session::config::{Config, MeshAxes, Prefetch};

use self::layout::{Bench, Planned, Simulated, Unfit};
use self::meshes::{Given, World, meshes};
use super::model_file::ModelFile;
use super::{MeasureError, Measuring, MeshAxis, TuneOptions};

/// How many layouts are simulated at least, where as many fit.
const LEAST: usize = 6;

/// How far a forecast may be above the best simulated step for its layout to be simulated as well: the delays of
/// a cluster and its host's launches make no more of a difference than that.
const NEAR: f64 = 1.1;

/// Options of ranking layouts.
#[derive(Clone, Debug)]
pub struct LayoutOptions {
    /// Which model, on what; its mesh says which axes are not to be found.
    pub tune: TuneOptions,
    /// Tokens of every rank in a micro-batch, in place of those that the model's file names.
    pub rank_tokens: Option<u32>,
    /// Whether what is found is said as JSON.
    pub json: bool,
}

/// What was found.
struct Found {
    name: String,
    cluster: String,
    /// Tokens of one rank in a step, if the file says so.
    tokens: Option<u64>,
    /// Best first.
    layouts: Vec<Simulated>,
    /// Those that fit and were expected to be slower than what was simulated.
    slower: usize,
    /// Those that fit no GPU, and those that cannot be.
    unfit: Vec<(MeshAxes, Unfit)>,
}

/// Plans every layout, simulates those near the best, and says which they are.
///
/// # Errors
/// As [`super::tune_model`]; [`MeasureError::NothingRuns`] when no layout fits; [`MeasureError::Interrupted`].
pub fn rank_layouts(options: &LayoutOptions, stop: &AtomicBool) -> Result<String, MeasureError> {
    let outputs = &options.tune.outputs;
    outputs.check(&options.tune.model.inputs(&options.tune.cluster))?;
    let found = found(&options.tune, options.rank_tokens, stop)?;
    outputs.write_picture(&found.picture())?;
    if options.json { Ok(found.json()) } else { Ok(found.to_string()) }
}

fn found(options: &TuneOptions, rank_tokens: Option<u32>, stop: &AtomicBool) -> Result<Found, MeasureError> {
    let config = planned_by_time(options)?;
    let file = ModelFile::load(&options.model.model)?;
    let cluster = options.model.cluster(&options.cluster)?;
    let given = given(options, &config, &file);
    let known = rank_tokens.map(|tokens| tokens as usize).or(file.tokens(Mesh::new(1)?));
    let tokens = known.unwrap_or(0);
    let world = World {
        ranks: options.ranks,
        of_node: cluster.ranks_of_node(),
        of_text: file.ranks_of_text(tokens),
        experts: file.experts(),
    };
    let bench = Bench { file: &file, tokens, config: &config, cluster: &cluster, ranks: options.ranks };

    let mut search = Search { bench: &bench, stop, unfit: Vec::new() };
    let (planned, unplanned) = search.planned(&meshes(world, given))?;
    let (layouts, slower) = search.simulated(&planned)?;
    let unfit = search.unfit;
    if layouts.is_empty() {
        let reason = unfit.first().map_or_else(
            || format!("no mesh of {} ranks has the axes that were given", options.ranks),
            |(axes, reason)| format!("{}: {reason}", shown::mesh(axes)),
        );
        return Err(MeasureError::NothingRuns { reason });
    }
    let micro_batches = layouts.first().map_or(1, |layout| u64::from(layout.micro_batches));
    Ok(Found {
        name: file.name().to_owned(),
        cluster: cluster.name.clone(),
        tokens: known.map(|tokens| tokens as u64 * micro_batches),
        layouts,
        slower: slower + unplanned,
        unfit,
    })
}

/// The configuration of every layout, but for its mesh: gathers start when they should by what tasks take, unless
/// somebody said when.
fn planned_by_time(options: &TuneOptions) -> Result<Config, MeasureError> {
    let mut config = options.model.config()?;
    if options.model.prefetch.is_none() && config.prefetch == config.prefetch.started_as(Prefetch::default())
    {
        config.prefetch = config.prefetch.started_as(Prefetch::auto());
        config.set_by("prefetch.policy", "the tuner");
    }
    if config.prefetch.policy.is_some() {
        config.prefetch.cluster.clone_from(&options.cluster);
        config.set_by("prefetch.cluster", "--cluster");
    }
    Ok(config)
}

/// The axes that the command line and the configuration give. A list of calls is the program of one rank of one
/// mesh, so what its ranks share is given.
fn given(options: &TuneOptions, config: &Config, file: &ModelFile) -> Given {
    let MeshAxes { dp_replicate, dp_shard, cp, tp, ep, ep_shard, optimizer_instances, .. } = config.mesh;
    let is_said = |said: fn(&MeshAxis) -> bool| options.model.mesh.iter().any(said);
    let fixed = |axis: u32, said: bool| (axis > 1 || said || file.is_of_one_mesh()).then_some(axis);
    Given {
        dp_replicate,
        dp_shard,
        cp: fixed(cp, is_said(|axis| matches!(axis, MeshAxis::Cp(_)))),
        tp: fixed(tp, is_said(|axis| matches!(axis, MeshAxis::Tp(_)))),
        ep: fixed(ep, is_said(|axis| matches!(axis, MeshAxis::Ep(_)))),
        ep_shard,
        optimizer_instances: Some(optimizer_instances),
    }
}

/// The layouts that are still in, and those that are out.
struct Search<'a> {
    bench: &'a Bench<'a>,
    stop: &'a AtomicBool,
    unfit: Vec<(MeshAxes, Unfit)>,
}

impl Search<'_> {
    /// Plans of all layouts that may be the best, by their forecasts. First comes what no schedule of a layout can
    /// beat: once a forecast is below that of all that is left, the rest is left unplanned but for the least number.
    fn planned(&mut self, candidates: &[MeshAxes]) -> Result<(Vec<Planned>, usize), MeasureError> {
        let sketching = bar("sketched", candidates.len());
        let sketched = each(candidates, self.stop, &sketching, |axes| self.bench.sketch(*axes))?;
        let mut sketches = self.still_in(candidates, sketched, |axes| *axes);
        sketches.sort_by_key(|sketch| sketch.bound);
        let bar = bar("planned", sketches.len());
        let mut planned: Vec<Planned> = Vec::new();
        let mut rest = &sketches[..];
        while let Some(next) = rest.first() {
            let best = planned.iter().map(|planned| planned.forecast).min();
            if planned.len() >= LEAST && best.is_some_and(|best| next.bound > best) {
                break;
            }
            let (now, later) = rest.split_at(rest.len().min(cores()));
            let tried = each(now, self.stop, &bar, |sketch| self.bench.plan(sketch.axes))?;
            planned.extend(self.still_in(now, tried, |sketch| sketch.axes));
            rest = later;
        }
        planned.sort_by_key(|planned| planned.forecast);
        Ok((planned, rest.len()))
    }

    /// Those near the best forecast, simulated, and how many are not.
    fn simulated(&mut self, planned: &[Planned]) -> Result<(Vec<Simulated>, usize), MeasureError> {
        let bar = bar("simulated", planned.len());
        let mut layouts: Vec<Simulated> = Vec::new();
        let mut rest = planned;
        while let Some(next) = rest.first() {
            let best = layouts.iter().map(|layout| layout.step.as_nanos()).min().unwrap_or(0) as f64;
            if layouts.len() >= LEAST && next.forecast as f64 > best * NEAR {
                break;
            }
            let (now, later) = rest.split_at(rest.len().min(cores()));
            let tried = each(now, self.stop, &bar, |planned| self.bench.simulate(planned))?;
            layouts.extend(self.still_in(now, tried, |planned| planned.axes));
            rest = later;
        }
        layouts.sort_by_key(|layout| layout.step);
        Ok((layouts, rest.len()))
    }

    /// What was made of those that are not out.
    fn still_in<T, R>(
        &mut self,
        of: &[T],
        tried: Vec<Result<R, Unfit>>,
        axes: impl Fn(&T) -> MeshAxes,
    ) -> Vec<R> {
        let mut made = Vec::new();
        for (item, outcome) in of.iter().zip(tried) {
            match outcome {
                Ok(outcome) => made.push(outcome),
                Err(reason) => self.unfit.push((axes(item), reason)),
            }
        }
        made
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// How far the search is, where somebody looks.
fn bar(what: &str, layouts: usize) -> ProgressBar {
    let template = format!("{{bar:24}} {{pos}} of {{len}} layouts {what} {{eta:>4}}");
    let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    // It is removed where the last of it goes.
    ProgressBar::new(layouts as u64).with_style(style).with_finish(ProgressFinish::AndClear)
}

/// What `work` makes of every item, in their order, on all cores.
fn each<T: Sync, R: Send>(
    items: &[T],
    stop: &AtomicBool,
    bar: &ProgressBar,
    work: impl Fn(&T) -> Result<R, MeasureError> + Sync,
) -> Result<Vec<R>, MeasureError> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..cores().min(items.len()) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(number).filter(|_| !stop.load(Ordering::Relaxed)) else {
                        return;
                    };
                    let made = work(item);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((number, made));
                    bar.inc(1);
                }
            });
        }
    });
    if stop.load(Ordering::Relaxed) {
        return Err(MeasureError::Interrupted(Measuring::Machine));
    }
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, made)| made).collect()
}
