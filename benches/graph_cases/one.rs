//! One graph of all ranks: their order is edges, and one thread launches it.

use std::time::Instant;

use cudarc::driver::sys;

use super::graph::Graph;
use super::guard;
use super::job::Job;
use super::options::{Options, WARM};
use super::table::{Recording, Replay, Times};
use super::work::{Event, Work};

/// # Errors
/// The driver does not record such a graph.
pub(crate) fn measure(job: &Job<'_>, options: &Options) -> Result<Times, String> {
    let works: Vec<Work<'_>> =
        job.machine.ranks.iter().map(|rank| Work::new(*job, rank)).collect::<Result<_, _>>()?;
    let origin = &job.machine.ranks[0];
    origin.make_current()?;
    let fork = Event::new()?;
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    let graph = Graph::record(origin.compute, mode, || enqueue(&works, &fork));
    // Errors or not, calls go to the origin's context again.
    origin.make_current()?;
    let graph = graph?;
    let mut replays = Vec::new();
    for _ in 0..options.replays() {
        let begin = Instant::now();
        graph.launch(origin.compute).unwrap();
        let launched = Instant::now();
        origin.drain(origin.compute).unwrap();
        replays.push(Replay { begin, launched, end: Instant::now() });
        guard::alive();
    }
    let recording = Recording { graphs: 1, nodes: graph.nodes, instantiate: graph.instantiate };
    Ok(Times::new(&[replays.split_off(WARM)], Some(recording)))
}

/// Puts the rounds of all ranks on their streams: forks from the first rank's compute stream and joins it.
fn enqueue(works: &[Work<'_>], fork: &Event) -> Result<(), String> {
    let [first, others @ ..] = works else { return Err("there is no rank".to_owned()) };
    fork.record(first.rank.compute)?;
    others.iter().try_for_each(|other| fork.hold_back(other.rank.compute))?;
    for round in 0..first.job.rounds {
        for work in works {
            work.rank.make_current()?;
            work.kernel(round)?;
        }
        for work in works {
            work.rank.make_current()?;
            works.iter().try_for_each(|other| work.await_kernel_of(other, round))?;
            work.pull(round)?;
        }
    }
    // A compute stream is joined with its copy stream, which waits for its last kernel.
    works.iter().try_for_each(|work| work.join(first.rank.compute))
}
