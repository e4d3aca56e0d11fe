//! Waiting for a lane, with an end.
//!
//! Laws:
//! - A wait ends when the lane is done, when the world is poisoned, or when for the length of the deadline no collective
//!   of this rank was done; the last poisons the world, naming rank, lane and the last collective that was done.
//! - A rank of a poisoned world drains its lanes before it returns: streams that wait for a peer's signal are
//!   let go, so freeing their memory does not wait for ever.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lane::CudaStream;
use super::options::Transport;
use super::progress::Progress;
use super::stream::Stream;
use super::world::World;
use crate::backend::BackendError;
use crate::id::RankId;

/// How long a lane is asked without pause.
const EAGER: Duration = Duration::from_micros(200);
/// The pause between two questions after that.
const PAUSE: Duration = Duration::from_micros(50);
/// How long a lane of a poisoned world gets to drain.
const DRAIN: Duration = Duration::from_secs(5);

/// Waits until `stream` has run everything.
pub(super) fn wait(
    world: &Arc<World>,
    rank: RankId,
    stream: &CudaStream,
    progress: &Progress,
    transfers: &Stream,
) -> Result<(), BackendError> {
    let mut begun = Instant::now();
    let mut moved = progress.moved();
    loop {
        match stream.stream.is_done() {
            Ok(true) if progress.scale_failed() => return Err(no_scale(rank, stream)),
            Ok(true) => return world.check(),
            Ok(false) => {}
            Err(failure) => {
                let lane = stream.lane();
                return Err(world.poison(format!("{rank}, {lane} ({}): {failure}", stream.lane.kind)));
            }
        }
        let waited = begun.elapsed();
        if let Err(poisoned) = world.check() {
            drain(world, rank, stream, transfers);
            return Err(poisoned);
        }
        if progress.moved() != moved {
            (begun, moved) = (Instant::now(), progress.moved());
        } else if waited > world.options.deadline {
            let error = world.poison(stalled(world, rank, stream, progress));
            drain(world, rank, stream, transfers);
            return Err(error);
        }
        if waited > EAGER {
            std::thread::sleep(PAUSE);
        } else {
            std::hint::spin_loop();
        }
    }
}

fn no_scale(rank: RankId, stream: &CudaStream) -> BackendError {
    let reason = "the largest magnitude of a weight is not finite, so its blocks have no scale; lower the learning \
                  rate or import the last export";
    BackendError::Lane { rank, lane: stream.lane(), reason: reason.to_owned() }
}

fn stalled(world: &World, rank: RankId, stream: &CudaStream, progress: &Progress) -> String {
    let (lane, kind, deadline) = (stream.lane(), stream.lane.kind, world.options.deadline);
    let last = match progress.last(lane) {
        _ if !stream.communicates() => "a closure or a kernel does not return".to_owned(),
        None => "no collective of it has finished".to_owned(),
        Some(task) => format!("the last collective that finished is {task}"),
    };
    format!(
        "{rank}, {lane} ({kind}) did not get on within {deadline:?}; {last}; see which rank stopped before"
    )
}

/// Lets a lane of a poisoned world run out.
fn drain(world: &World, rank: RankId, stream: &CudaStream, transfers: &Stream) {
    let begun = Instant::now();
    // NCCL's waits end when the rank's communicators are aborted, which is the executor's next call.
    while world.transport == Transport::Peer
        && begun.elapsed() < DRAIN
        && matches!(stream.stream.is_done(), Ok(false))
    {
        if world.release(rank, transfers).is_err() {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}
