//! Medians, and the printed table.

use std::time::{Duration, Instant};

use super::machine::Machine;
use super::options::{Options, WARM};

/// One replay on one rank, or of the graph of all.
#[derive(Clone, Copy)]
pub(crate) struct Replay {
    pub(crate) begin: Instant,
    /// The launch, or enqueuing, has returned.
    pub(crate) launched: Instant,
    /// The streams are empty.
    pub(crate) end: Instant,
}

/// What was recorded, of one rank or of all together.
#[derive(Clone, Copy)]
pub(crate) struct Recording {
    pub(crate) graphs: usize,
    pub(crate) nodes: usize,
    /// Of the slowest graph.
    pub(crate) instantiate: Duration,
}

impl Recording {
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            graphs: self.graphs + other.graphs,
            nodes: self.nodes + other.nodes,
            instantiate: self.instantiate.max(other.instantiate),
        }
    }
}

/// What a way took, medians over the replays.
pub(crate) struct Times {
    /// Inside of the call that launches, or of all calls that enqueue: the largest rank's.
    launch_us: f64,
    /// From before the first launch until the last rank's streams are empty.
    wall_us: f64,
    /// The same, the fastest replay.
    least_us: f64,
    recording: Option<Recording>,
}

impl Times {
    /// Of each rank's replays, equally many.
    pub(crate) fn new(ranks: &[Vec<Replay>], recording: Option<Recording>) -> Self {
        let replays = ranks.iter().map(Vec::len).min().unwrap_or(0);
        let (mut launches, mut walls) = (Vec::new(), Vec::new());
        for replay in 0..replays {
            let all = || ranks.iter().map(|rank| rank[replay]);
            launches.extend(all().map(|one| microseconds(one.launched - one.begin)).reduce(f64::max));
            let begin = all().map(|one| one.begin).min();
            let end = all().map(|one| one.end).max();
            walls.extend(begin.zip(end).map(|(begin, end)| microseconds(end - begin)));
        }
        let least_us = walls.iter().copied().fold(f64::INFINITY, f64::min);
        Self { launch_us: median(launches), wall_us: median(walls), least_us, recording }
    }
}

pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) rounds: usize,
    /// Or why there are none.
    pub(crate) times: Result<Times, String>,
}

pub(crate) fn head(machine: &Machine, options: &Options) {
    println!(
        "{}, {} GPUs, {} rounds of a kernel of about {} us and a pull from each peer; \
         medians of {} replays behind {WARM} warm ones",
        machine.name,
        machine.ranks.len(),
        options.rounds,
        options.kernel_us,
        options.repeats,
    );
    println!(
        "launch: host us inside of the launch, or of enqueuing anew, of the largest rank; \
         wall: us from before the first launch until all streams are empty;\n\
         round: wall / rounds; least: the fastest wall; nodes: of all graphs together; \
         instantiate: ms of the slowest graph (those per rank are made at one time)"
    );
}

pub(crate) fn columns() {
    println!(
        "{:<16}{:>11}{:>11}{:>11}{:>11}{:>8}{:>8}{:>16}",
        "", "launch us", "wall us", "round us", "least us", "graphs", "nodes", "instantiate ms"
    );
}

pub(crate) fn print(row: &Row) {
    match &row.times {
        Err(reason) => println!("{:<16}  not recorded: {reason}", row.name),
        Ok(times) => {
            print!(
                "{:<16}{:>11.1}{:>11.1}{:>11.2}{:>11.1}",
                row.name,
                times.launch_us,
                times.wall_us,
                times.wall_us / row.rounds as f64,
                times.least_us,
            );
            match times.recording {
                None => println!("{:>8}{:>8}{:>16}", "-", "-", "-"),
                Some(Recording { graphs, nodes, instantiate }) => {
                    println!("{graphs:>8}{nodes:>8}{:>16.2}", microseconds(instantiate) / 1e3);
                }
            }
        }
    }
}

fn microseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
