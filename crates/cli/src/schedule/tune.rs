//! `warpweft tune`: a sweep of prefetch policies and the tuner, on a simulated machine.
//!
//! Law: every time is a simulated one, every plan one that a session would run, and what is printed makes the
//! chosen plan again, by itself and over the configuration that was given, but for the keys that it says it stands
//! in place of: so no plan is tried that is made of measured durations, which no configuration holds. The
//! tuner here is the one of [`warpweft_session::tune`]; this file answers its questions by the simulator. A policy
//! that does not fit is shown as such; any other refusal ends it all.

use std::fmt::Write;

use warpweft_backend::BackendError;
use warpweft_plan::cluster::Cluster;
use warpweft_plan::plan::{Costs, GatherStart, PlanError, Policy};
use warpweft_plan::policy::ByteSize;
use warpweft_session::config::{Config, Prefetch};
use warpweft_session::session::ExecError;
use warpweft_session::session::{SessionError, Simulation, costs_of, simulate_program_with};
use warpweft_session::trace::{LineChart, Mark, Reference, Series};
use warpweft_session::tune::{Candidate, Limits, TrialOutcome, Tuner};

use super::super::text::{Align, Table, duration};
use super::text::size;
use super::{Declaration, MeasureError, ModelOptions, Outputs, declare, way};

/// Depths of the sweep.
const DEPTHS: [u32; 8] = [0, 1, 2, 3, 4, 8, 16, 32];

/// Bytes in flight of the sweep: from the first, in steps of the factor, so many.
const BYTES: (u64, u64, u32) = (64 << 20, 2, 8);

/// Options of tuning a model.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// Which model, and what the tuner begins with.
    pub model: ModelOptions,
    /// A preset, or a file.
    pub cluster: String,
    /// Number of ranks.
    pub ranks: u32,
    /// What is written.
    pub outputs: Outputs,
}

/// Sweeps policies in virtual time, lets the tuner choose one, and says both.
///
/// # Errors
/// As [`super::simulate_model`]; [`MeasureError::NothingRuns`] when no policy fits.
pub fn tune_model(options: &TuneOptions) -> Result<String, MeasureError> {
    options.outputs.check(&options.model.inputs(&options.cluster))?;
    let declared = declare(&options.model, options.ranks)?;
    let cluster = options.model.cluster(&options.cluster)?;
    let costs = costs_of(&declared.config, &cluster, options.ranks)?;
    let bench = Bench { declared: &declared, cluster: &cluster, ranks: options.ranks, costs: &costs };
    let depths = bench.sweep(DEPTHS.into_iter().map(Prefetch::depth))?;
    let (bytes, least) = bench.sweep_bytes()?;
    let auto = bench.sweep([Prefetch::auto()].into_iter())?;
    let (tuner, refusal) = bench.tune()?;
    let Some(choice) = tuner.choice() else {
        return Err(no_choice(&declared.config, &[depths, bytes, auto].concat(), refusal));
    };
    let found = Point {
        prefetch: chosen(choice.candidate.prefetch),
        milliseconds: choice.step as f64 / 1e6,
        bytes: choice.bytes,
        exposed: None,
    };
    let bound = bench.bound(&choice.candidate)?;
    let name = &declared.name;
    let points = [&depths, &bytes, &auto].map(|rows| ran(rows));
    options.outputs.write_picture(&picture(name, &cluster, &bound, &points, &found))?;
    let config = found_over(&declared.config, &found.prefetch, &options.cluster);
    Ok(said(&[depths, bytes, auto].concat(), least, &tuner, &found, &config))
}

/// The configuration that makes the chosen plan: `config`, with the policy that was found on the machine.
fn found_over(config: &Config, prefetch: &Prefetch, cluster: &str) -> Config {
    let mut config = Config { prefetch: config.prefetch.started_as(prefetch.clone()), ..config.clone() };
    config.set_by(way(prefetch).0, "the tuner");
    // Whose steps are trials may end with another plan.
    if config.tune.steps != 0 {
        config.tune.steps = 0;
        config.set_by("tune.steps", "the tuner");
    }
    if prefetch.policy.is_some() {
        config.prefetch.cluster = cluster.to_owned();
        config.set_by("prefetch.cluster", "--cluster");
    }
    config
}

/// Why no policy is the choice: of those over the budget the least is named, else what refused the last.
fn no_choice(config: &Config, rows: &[Row], reason: String) -> MeasureError {
    let over = rows.iter().filter_map(|row| match row {
        Row::Misfit(prefetch, Misfit::Budget(needed)) => Some((prefetch, *needed)),
        Row::Misfit(..) | Row::Ran(_) => None,
    });
    match (config.memory.budget, over.min_by_key(|(_, needed)| *needed)) {
        (Some(budget), Some((least, needed))) => {
            MeasureError::NoneFits { budget, least: least.to_string(), needed: ByteSize::of(needed) }
        }
        _ => MeasureError::NothingRuns { reason },
    }
}

/// What one policy comes to.
#[derive(Clone, Debug)]
struct Point {
    prefetch: Prefetch,
    milliseconds: f64,
    bytes: usize,
    /// Share of exposed communication.
    exposed: Option<f64>,
}

/// One policy of the sweep.
#[derive(Clone, Debug)]
enum Row {
    Ran(Point),
    /// It does not fit: what it is, and what it needs.
    Misfit(Prefetch, Misfit),
}

/// Why a policy does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Misfit {
    /// Transient bytes beyond the budget.
    Budget(usize),
    /// Bytes in flight, of which there must be more.
    InFlight(usize),
    /// An arena beyond the GPU's memory.
    Memory(usize),
}

impl Misfit {
    /// Of a refusal that says that something does not fit; every other is given back.
    fn of(error: SessionError) -> Result<Self, SessionError> {
        match error {
            SessionError::Plan(PlanError::Budget { needed, .. }) => Ok(Self::Budget(needed)),
            SessionError::Plan(PlanError::Prefetch { needed, .. }) => Ok(Self::InFlight(needed)),
            SessionError::Exec(ExecError::Backend(BackendError::Memory { bytes, .. })) => {
                Ok(Self::Memory(bytes))
            }
            other => Err(other),
        }
    }

    fn words(self) -> String {
        match self {
            Self::Budget(_) => "over the budget".to_owned(),
            Self::InFlight(needed) => format!("needs {} in flight", size(needed)),
            Self::Memory(bytes) => format!("no GPU holds its arena of {}", size(bytes)),
        }
    }
}

/// Those that ran.
fn ran(rows: &[Row]) -> Vec<&Point> {
    let mut points = Vec::new();
    for row in rows {
        if let Row::Ran(point) = row {
            points.push(point);
        }
    }
    points
}

/// Where policies are tried.
struct Bench<'a> {
    declared: &'a Declaration,
    cluster: &'a Cluster,
    ranks: u32,
    costs: &'a Costs,
}

impl Bench<'_> {
    /// What the policy comes to, or why it does not fit.
    fn run(
        &self,
        prefetch: Prefetch,
        steps: u32,
    ) -> Result<Result<Simulation, (Misfit, String)>, SessionError> {
        let Declaration { program, config, .. } = self.declared;
        let config = Config { prefetch: config.prefetch.started_as(prefetch), ..config.clone() };
        match simulate_program_with(program, &config, self.cluster, self.ranks, steps, self.costs) {
            Ok(simulation) => Ok(Ok(simulation)),
            Err(error) => {
                let words = error.to_string();
                Misfit::of(error).map(|misfit| Err((misfit, words)))
            }
        }
    }

    fn sweep(&self, policies: impl Iterator<Item = Prefetch>) -> Result<Vec<Row>, SessionError> {
        let row = |prefetch: Prefetch| {
            Ok(match self.run(prefetch.clone(), 1)? {
                Err((misfit, _)) => Row::Misfit(prefetch, misfit),
                Ok(simulation) => Row::Ran(Point {
                    prefetch,
                    milliseconds: simulation.step.as_secs_f64() * 1e3,
                    bytes: simulation.plan.bounds.transient_bytes,
                    exposed: Some(simulation.exposure.fraction()),
                }),
            })
        };
        policies.map(row).collect()
    }

    /// The sweep of bytes in flight, from the least with which anything can be gathered ahead, rounded up to
    /// whole MiB; and that least, if sizes below it were left out.
    fn sweep_bytes(&self) -> Result<(Vec<Row>, Option<ByteSize>), SessionError> {
        let doubled = (0..BYTES.2).map(|step| BYTES.0 * BYTES.1.pow(step));
        let of = |bytes: u64| Prefetch::bytes(ByteSize::new(bytes));
        let mut rows = self.sweep(doubled.clone().take(1).map(of))?;
        let mut least = None;
        if let [Row::Misfit(_, Misfit::InFlight(needed))] = rows[..] {
            let needed = (needed as u64).next_multiple_of(1 << 20);
            rows = self.sweep([of(needed)].into_iter())?;
            least = Some(ByteSize::new(needed));
        }
        let above = least.map_or(BYTES.0, ByteSize::bytes);
        rows.extend(self.sweep(doubled.filter(|bytes| *bytes > above).map(of))?);
        Ok((rows, least))
    }

    /// The tuner at its end, and why the last policy that did not fit did not. The planner refuses what is
    /// over the budget before anything runs.
    fn tune(&self) -> Result<(Tuner, String), MeasureError> {
        let Policy { prefetch, budget, .. } = Policy::from(&self.declared.config);
        let mut tuner = Tuner::new(prefetch, Limits { budget, by_measurement: false, ..Limits::default() })?;
        let mut refusal = "nothing was tried".to_owned();
        while let Some(candidate) = tuner.next_trial() {
            match self.run(chosen(candidate.prefetch), candidate.steps)? {
                Err((misfit, words)) => {
                    refusal = words;
                    match misfit {
                        Misfit::Budget(bytes) if !tuner.planned(bytes) => {}
                        _ => tuner.report(TrialOutcome::Refused { reason: misfit.words() }),
                    }
                }
                Ok(simulation) => {
                    let nanoseconds =
                        |time: &std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                    let steps = simulation.steps.iter().map(nanoseconds).collect();
                    tuner.report(TrialOutcome::Measured {
                        steps,
                        bytes: simulation.plan.bounds.transient_bytes,
                    });
                }
            }
        }
        Ok((tuner, refusal))
    }

    /// The bound of the chosen plan, milliseconds.
    fn bound(&self, candidate: &Candidate) -> Result<f64, MeasureError> {
        match self.run(chosen(candidate.prefetch), 1)? {
            Ok(simulation) => Ok(simulation.plan.forecast(self.costs).step_bound as f64 / 1e6),
            Err((_, reason)) => Err(MeasureError::NothingRuns { reason }),
        }
    }
}

fn chosen(prefetch: GatherStart) -> Prefetch {
    match prefetch {
        GatherStart::Depth(depth) => Prefetch::depth(depth),
        GatherStart::Bytes(bytes) => Prefetch::bytes(ByteSize::new(bytes as u64)),
        GatherStart::Auto => Prefetch::auto(),
    }
}

fn said(rows: &[Row], least: Option<ByteSize>, tuner: &Tuner, found: &Point, config: &Config) -> String {
    let mut table = Table::new([
        ("policy", Align::Left),
        ("step", Align::Right),
        ("exposed", Align::Right),
        ("transient", Align::Right),
        ("", Align::Left),
    ]);
    for row in rows {
        let none = String::new;
        table.row(match row {
            Row::Ran(point) => [
                point.prefetch.to_string(),
                duration(std::time::Duration::from_secs_f64(point.milliseconds / 1e3)),
                point.exposed.map_or_else(none, |share| format!("{:.1} %", 100.0 * share)),
                size(point.bytes),
                if point.prefetch.to_string() == found.prefetch.to_string() { "chosen" } else { "" }
                    .to_owned(),
            ],
            Row::Misfit(prefetch, misfit) => {
                let bytes = if let Misfit::Budget(bytes) = misfit { size(*bytes) } else { none() };
                [prefetch.to_string(), none(), none(), bytes, misfit.words()]
            }
        });
    }
    let mut text = table.to_string();
    if let Some(least) = least {
        let _ = writeln!(
            text,
            "prefetch.bytes below {least} is left out: it does not hold what must be there at once"
        );
    }
    text.push_str("\ntrials of the tuner:\n");
    for decision in tuner.log() {
        let _ = writeln!(text, "  {decision}");
    }
    let _ = writeln!(
        text,
        "\n# {} a step, {} of transient memory per rank",
        duration(std::time::Duration::from_secs_f64(found.milliseconds / 1e3)),
        size(found.bytes),
    );
    for key in config.taken_away() {
        let _ = writeln!(text, "# in place of {key}");
    }
    let _ = writeln!(text, "{}", config.changes().trim_end());
    text
}

/// The first policy that ran and what the last one says: `prefetch.depth = 0 … 32`.
fn series_name(points: &[&Point]) -> String {
    let [first, last] =
        [points.first(), points.last()].map(|end| end.map(|point| point.prefetch.to_string()));
    let (first, last) = (first.unwrap_or_default(), last.unwrap_or_default());
    match last.split_once(" = ") {
        Some((_, end)) if first != last => {
            format!("{} … {}", first.replace('"', ""), end.replace('"', ""))
        }
        _ => first,
    }
}

fn picture(name: &str, cluster: &Cluster, bound: &f64, groups: &[Vec<&Point>; 3], found: &Point) -> String {
    let at = |point: &Point| (point.bytes as f64 / f64::from(1u32 << 30), point.milliseconds);
    let series = groups
        .iter()
        .filter(|points| !points.is_empty())
        .map(|points| Series {
            name: series_name(points),
            points: points.iter().map(|point| at(point)).collect(),
        })
        .collect();
    LineChart {
        title: format!("{name} on {}: step time against memory", cluster.name),
        x_label: "transient memory per rank, GiB".to_owned(),
        y_label: "time of a step, ms".to_owned(),
        series,
        references: vec![Reference {
            name: "no schedule of the chosen plan's tasks takes less".to_owned(),
            value: *bound,
        }],
        scattered: true,
        mark: Some(Mark { name: format!("chosen: {}", found.prefetch), point: at(found) }),
    }
    .render()
}
