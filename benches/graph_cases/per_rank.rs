//! A thread per rank, which launches its own graph, or enqueues everything anew.
//!
//! Law: words are zeroed, and all devices idle, before threads meet and times begin.

use std::time::Instant;

use cudarc::driver::sys;

use super::barrier::Barrier;
use super::graph::Graph;
use super::guard;
use super::job::Job;
use super::machine::Rank;
use super::options::{Options, WARM};
use super::table::{Recording, Replay, Times};
use super::words::Words;
use super::work::Work;

#[derive(Clone, Copy)]
pub(crate) struct PerRank {
    pub(crate) recorded: bool,
}

/// What a rank's thread tells.
struct Told {
    replays: Vec<Replay>,
    recording: Option<Recording>,
}

/// # Panics
/// The driver refuses something: the other ranks would wait for this one.
pub(crate) fn measure(job: &Job<'_>, way: PerRank, options: &Options) -> Times {
    let barrier = Barrier::new(job.machine.ranks.len());
    let told: Vec<Told> = std::thread::scope(|scope| {
        let (barrier, replays) = (&barrier, options.replays());
        let spawn = |rank| scope.spawn(move || of_rank(job, rank, way, barrier, replays).unwrap());
        let threads: Vec<_> = job.machine.ranks.iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut recording: Option<Recording> = None;
    let mut replays = Vec::new();
    for mut rank in told {
        recording = recording.into_iter().chain(rank.recording).reduce(Recording::and);
        replays.push(rank.replays.split_off(WARM));
    }
    Times::new(&replays, recording)
}

fn of_rank(
    job: &Job<'_>,
    rank: &Rank,
    way: PerRank,
    barrier: &Barrier,
    replays: usize,
) -> Result<Told, String> {
    let work = Work::new(*job, rank)?;
    let words = Words::new(job, rank);
    // As the library: other threads do what they like meanwhile.
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    let recorded = way.recorded.then(|| Graph::record(rank.compute, mode, || work.enqueue(&words)));
    let graph = recorded.transpose()?;
    if let Some(graph) = &graph {
        graph.upload(rank.compute)?;
    }
    let mut times = Vec::with_capacity(replays);
    for _ in 0..replays {
        // Nobody's streams run any more.
        barrier.meet();
        job.clear_words(rank)?;
        barrier.meet();
        let begin = Instant::now();
        match &graph {
            Some(graph) => graph.launch(rank.compute)?,
            None => work.enqueue(&words)?,
        }
        let launched = Instant::now();
        rank.drain(rank.compute)?;
        times.push(Replay { begin, launched, end: Instant::now() });
        guard::alive();
    }
    // What peers still read or wait for is theirs until all are through.
    barrier.meet();
    let recording = graph.as_ref().map(|graph| Recording {
        graphs: 1,
        nodes: graph.nodes,
        instantiate: graph.instantiate,
    });
    Ok(Told { replays: times, recording })
}
