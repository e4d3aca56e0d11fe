//! The fastest policy on a machine: a sweep, and the tuner.
//!
//! Law: every time is a simulated one, every plan one that a session would run. The tuner here is the one of [`crate::tune`]; this file
//! answers its questions by the simulator.

use std::fmt::Write;

use super::super::text::{Align, Table, duration};
use super::text::size;
use super::{Declaration, ModelOptions, Outputs, ScheduleError, cluster, declare};
use crate::cluster::Cluster;
use crate::config::{ByteSize, Config, Prefetch as Chosen};
use crate::plan::{Costs, Measured, Policy, Prefetch};
use crate::session::{Session, SessionError, Simulation, costs_of};
use crate::trace::{LineChart, Reference, Series};
use crate::tune::{Candidate, Limits, Outcome, Tuner};

/// Depths of the sweep.
const DEPTHS: [u32; 8] = [0, 1, 2, 3, 4, 8, 16, 32];

/// Bytes in flight of the sweep: from the first, in steps of the factor, so many.
const BYTES: (u64, u64, u32) = (64 << 20, 2, 8);

/// What to tune, and what to draw.
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
/// As [`super::simulate_model`]; [`ScheduleError::NothingRuns`] when no policy fits.
pub fn tune_model(options: &TuneOptions) -> Result<String, ScheduleError> {
    options.outputs.check()?;
    let declared = declare(&options.model)?;
    let cluster = cluster(&options.cluster)?;
    let costs = costs_of(&declared.config, &cluster, options.ranks)?;
    let bench = Bench { declared: &declared, cluster: &cluster, ranks: options.ranks, costs: &costs };
    let depths = bench.sweep(DEPTHS.into_iter().map(Chosen::depth));
    let doubled = (0..BYTES.2).map(|step| BYTES.0 * BYTES.1.pow(step));
    let bytes = bench.sweep(doubled.map(|bytes| Chosen::bytes(ByteSize::new(bytes))));
    let auto = bench.sweep([Chosen::auto()].into_iter());
    let (tuner, refusal) = bench.tune();
    let Some(choice) = tuner.choice() else {
        return Err(ScheduleError::NothingRuns { reason: refusal });
    };
    let found = Point {
        prefetch: chosen(choice.candidate.prefetch),
        milliseconds: choice.step as f64 / 1e6,
        bytes: choice.bytes,
        exposed: None,
    };
    let bound = bench.bound(&choice.candidate)?;
    let name = &declared.decoder.name;
    options.outputs.write_picture(&picture(name, &cluster, &bound, &[&depths, &bytes, &auto], &found))?;
    Ok(said(&[depths, bytes, auto].concat(), &tuner, &found, &declared.config))
}

/// What one policy comes to.
#[derive(Clone, Debug)]
struct Point {
    prefetch: Chosen,
    milliseconds: f64,
    bytes: usize,
    /// Share of exposed communication.
    exposed: Option<f64>,
}

/// Where policies are tried.
struct Bench<'a> {
    declared: &'a Declaration,
    cluster: &'a Cluster,
    ranks: u32,
    costs: &'a Costs,
}

impl Bench<'_> {
    fn run(&self, prefetch: Chosen, costs: &Costs, steps: u32) -> Result<Simulation, SessionError> {
        let Declaration { program, config, .. } = self.declared;
        let config = Config { prefetch, ..config.clone() };
        Session::simulate_with(program, &config, self.cluster, self.ranks, steps, costs)
    }

    /// Those policies that can be planned and fit.
    fn sweep(&self, policies: impl Iterator<Item = Chosen>) -> Vec<Point> {
        let point = |prefetch: Chosen| {
            let simulation = self.run(prefetch.clone(), self.costs, 1).ok()?;
            Some(Point {
                prefetch,
                milliseconds: simulation.step.as_secs_f64() * 1e3,
                bytes: simulation.plan.bounds.transient_bytes,
                exposed: Some(simulation.exposure.fraction()),
            })
        };
        policies.filter_map(point).collect()
    }

    /// The tuner at its end, and why the last policy that was refused was.
    fn tune(&self) -> (Tuner, String) {
        let Policy { prefetch, budget, .. } = Policy::from(&self.declared.config);
        let mut tuner = Tuner::new(prefetch, Limits { budget, ..Limits::default() });
        let mut measured: Option<Measured> = None;
        let mut refusal = "nothing was tried".to_owned();
        while let Some(candidate) = tuner.next_trial() {
            let costs = match (&measured, candidate.by_measurement) {
                (Some(measured), true) => self.costs.clone().with_measured(measured.clone()),
                _ => self.costs.clone(),
            };
            match self.run(chosen(candidate.prefetch), &costs, candidate.steps) {
                Err(error) => {
                    refusal = error.to_string();
                    tuner.report(Outcome::Refused { reason: refusal.clone() });
                }
                Ok(simulation) => {
                    let nanoseconds =
                        |time: &std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                    let steps = simulation.steps.iter().map(nanoseconds).collect();
                    let before = tuner.choice();
                    tuner.report(Outcome::Measured { steps, bytes: simulation.plan.bounds.transient_bytes });
                    if tuner.choice() != before {
                        measured = Some(Measured::new(&simulation.plan, &simulation.durations));
                    }
                }
            }
        }
        (tuner, refusal)
    }

    /// The bound of the chosen plan, milliseconds.
    fn bound(&self, candidate: &Candidate) -> Result<f64, ScheduleError> {
        let simulation = self.run(chosen(candidate.prefetch), self.costs, 1)?;
        Ok(simulation.plan.forecast(self.costs).step_bound as f64 / 1e6)
    }
}

fn chosen(prefetch: Prefetch) -> Chosen {
    match prefetch {
        Prefetch::Depth(depth) => Chosen::depth(depth),
        Prefetch::Bytes(bytes) => Chosen::bytes(ByteSize::new(bytes as u64)),
        Prefetch::Auto => Chosen::auto(),
    }
}

fn said(points: &[Point], tuner: &Tuner, found: &Point, config: &Config) -> String {
    let mut table = Table::new([
        ("policy", Align::Left),
        ("step", Align::Right),
        ("exposed", Align::Right),
        ("transient", Align::Right),
        ("", Align::Left),
    ]);
    let budget = config.memory.budget.map_or(u64::MAX, ByteSize::bytes);
    for point in points {
        let mark = if point.bytes as u64 > budget {
            "over the budget"
        } else if point.prefetch == found.prefetch {
            "chosen"
        } else {
            ""
        };
        table.row([
            point.prefetch.to_string(),
            duration(std::time::Duration::from_secs_f64(point.milliseconds / 1e3)),
            point.exposed.map_or_else(String::new, |share| format!("{:.1} %", 100.0 * share)),
            size(point.bytes),
            mark.to_owned(),
        ]);
    }
    let mut text = format!("{table}\ntrials of the tuner:\n");
    for decision in tuner.log() {
        let _ = writeln!(text, "  {decision}");
    }
    let _ = writeln!(
        text,
        "\n# {} a step, {} of transient memory per rank\n{}",
        duration(std::time::Duration::from_secs_f64(found.milliseconds / 1e3)),
        size(found.bytes),
        found.prefetch
    );
    if let Some(budget) = config.memory.budget {
        let _ = writeln!(text, "memory.budget = \"{budget}\"");
    }
    text
}

fn picture(name: &str, cluster: &Cluster, bound: &f64, groups: &[&Vec<Point>; 3], found: &Point) -> String {
    let at = |point: &Point| (point.bytes as f64 / f64::from(1u32 << 30), point.milliseconds);
    let names = ["prefetch.depth = 0 … 32", "prefetch.bytes = 64 MiB … 8 GiB", "prefetch.policy = \"auto\""];
    let mut series: Vec<Series> = groups
        .iter()
        .zip(names)
        .map(|(points, name)| {
            let mut points: Vec<(f64, f64)> = points.iter().map(at).collect();
            points.sort_by(|one, other| one.0.total_cmp(&other.0));
            Series { name: name.to_owned(), points }
        })
        .collect();
    series.push(Series { name: format!("chosen: {}", found.prefetch), points: vec![at(found)] });
    LineChart {
        title: format!("{name} on {}: step time against memory", cluster.name),
        x_label: "transient memory per rank, GiB".to_owned(),
        y_label: "time of a step, ms".to_owned(),
        series,
        references: vec![Reference { name: "no schedule takes less".to_owned(), value: *bound }],
    }
    .render()
}
