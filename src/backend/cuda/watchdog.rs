//! Waiting for a lane, with an end.
//!
//! Laws:
//! - A wait ends when the lane is done, when the world is poisoned, or when for the length of the deadline no
//!   collective of this rank was done; the last poisons the world, naming rank, lane, and the last and the
//!   next collective of every rank that waits as well. Who waits for long tells the others how far it is.
//! - A rank of a poisoned world drains its lanes before it returns: streams and kernels that wait for a
//!   peer's signal are let go, as often as they come to another word, and those that wait in NCCL by aborting
//!   it. Kernels that exchange wait for the words that streams wait for (`kernels/exchange.cu`); their gate,
//!   which the other blocks wait for, is opened by the first. Where a lane does not run out, its GPU is
//!   abandoned: what is there is left to the end of the process, since giving it back would wait for the
//!   stream. Nobody waits for it a second time.
//! - Draining has an end of its own: it waits for no stream, that of its own copies included.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lane::CudaStream;
use super::options::Transport;
use super::progress::Progress;
use super::stream::Stream;
use super::world::World;
use crate::backend::BackendError;
use crate::id::RankId;

/// How long a lane is asked without pause, from the beginning and from the end of every collective on.
const EAGER: Duration = Duration::from_micros(200);
/// The pause between two questions after that: short beside a step, long beside a question. It bounds, with
/// what the system adds to a pause, how late a step's end is seen that is not where the last one was; what a
/// wait may take in all is the deadline.
const PAUSE: Duration = Duration::from_micros(50);
/// Between two questions passes that much only where the process was stopped: suspended with its job, or in a
/// debugger.
const STOPPED: Duration = Duration::from_secs(1);
/// How long a lane of a poisoned world gets to drain.
const DRAIN: Duration = Duration::from_secs(5);

/// The most that is added to the time without pause on either side of a usual end, however long steps are:
/// their ranks share cores with others.
const MARGIN: Duration = Duration::from_millis(2);

/// Does a wait that has taken `waited` end soon, if it is like the last one on this lane, which took `usual`?
/// Then the lane is asked without pause: a pause of 50 µs takes the system about 100, and of several ranks
/// the slowest counts.
fn nears_its_end(waited: Duration, usual: Duration) -> bool {
    let margin = EAGER + (usual / 16).min(MARGIN);
    waited + margin >= usual && waited <= usual + margin
}

/// Waits until `stream` has run everything. Between two questions it does something of `meanwhile`, which
/// says whether there was something to do: a few microseconds at a time.
pub(super) fn wait(
    world: &Arc<World>,
    rank: RankId,
    stream: &CudaStream,
    progress: &Progress,
    transfers: &Stream,
    meanwhile: impl Fn() -> bool,
    begin_aborts: impl Fn(),
) -> Result<(), BackendError> {
    let started = Instant::now();
    let (mut begun, mut asked) = (started, started);
    let mut moved = progress.moved();
    let mut standing = Standing { world, rank, told: None };
    loop {
        match stream.stream.is_done() {
            Ok(true) if progress.scale_failed() => return Err(no_scale(rank, stream)),
            Ok(true) => {
                standing.withdraw();
                return world.check();
            }
            Ok(false) => {}
            Err(failure) => {
                let lane = stream.lane();
                return Err(world.poison(format!("{rank}, {lane} ({}): {failure}", stream.lane.kind)));
            }
        }
        // Who was stopped for a while has not waited, and nor have its peers.
        let since = asked.elapsed();
        if since > STOPPED {
            begun += since;
        }
        asked = Instant::now();
        let waited = begun.elapsed();
        if let Err(poisoned) = world.check() {
            drain(world, rank, stream, transfers, &begin_aborts);
            return Err(poisoned);
        }
        if progress.moved() != moved {
            (begun, moved) = (Instant::now(), progress.moved());
        } else if waited > world.options.deadline {
            standing.tell(progress);
            let error = world.poison(stalled(world, rank, stream, progress));
            drain(world, rank, stream, transfers, &begin_aborts);
            return Err(error);
        }
        if waited > EAGER {
            standing.tell_now_and_then(progress, waited, world.options.deadline / 4);
        }
        if meanwhile() {
            continue;
        }
        if waited > EAGER && !nears_its_end(started.elapsed(), stream.usual_wait) {
            std::thread::sleep(PAUSE);
        } else {
            std::hint::spin_loop();
        }
    }
}

/// What the other ranks know of how far a rank is that waits for long.
struct Standing<'a> {
    world: &'a World,
    rank: RankId,
    told: Option<Instant>,
}

impl Standing<'_> {
    fn tell_now_and_then(&mut self, progress: &Progress, waited: Duration, pause: Duration) {
        if waited > pause && self.told.is_none_or(|told| told.elapsed() > pause) {
            self.tell(progress);
        }
    }

    fn tell(&mut self, progress: &Progress) {
        self.told = Some(Instant::now());
        self.world.rendezvous.stand(self.rank, &progress.standing());
    }

    /// It got on after all.
    fn withdraw(&self) {
        if self.told.is_some() {
            self.world.rendezvous.stand(self.rank, "");
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
    let cause = if stream.communicates() {
        "it waits for a peer"
    } else {
        "it waits for a collective, or a kernel does not return"
    };
    let told = world.rendezvous.standings();
    let others = world.mesh.iter().filter(|other| *other != rank).map(|other| match told.get(&other) {
        Some(words) => format!("{other}: {words}"),
        None => format!("{other} does not wait for its device: it is in a closure, in the host's code, or behind in its steps"),
    });
    let others: Vec<String> = others.collect();
    let own = progress.standing();
    format!(
        "{rank}, {lane} ({kind}) did not get on within {deadline:?}: {cause}; {rank}: {own}. {}",
        others.join(". ")
    )
}

/// Lets a lane of a poisoned world run out.
fn drain(world: &World, rank: RankId, stream: &CudaStream, transfers: &Stream, begin_aborts: &impl Fn()) {
    if stream.stream.context().is_abandoned() {
        return;
    }
    // Between hosts streams wait for NCCL too, before a word and behind one.
    begin_aborts();
    let by_words = world.network.transport == Transport::Peer;
    let words = world.set_words();
    let begun = Instant::now();
    while begun.elapsed() < DRAIN && matches!(stream.stream.is_done(), Ok(false)) {
        let is_free = || matches!(transfers.is_done(), Ok(true));
        // SAFETY: nothing changes `words`; they are given back below only if `transfers` is done.
        let begin_release = || unsafe { world.begin_release(rank, &words, transfers) };
        if by_words && is_free() && begin_release().is_err() {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    // The last copy may be on its way still.
    while begun.elapsed() < DRAIN && matches!(transfers.is_done(), Ok(false)) {
        std::thread::sleep(PAUSE);
    }
    if !matches!((stream.stream.is_done(), transfers.is_done()), (Ok(true), Ok(true))) {
        stream.stream.context().abandon();
        std::mem::forget(words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_nears_its_end_around_that_of_the_last_one() {
        let millis = Duration::from_millis;
        for (usual, near, far) in [
            // No wait before: what is asked eagerly anyway.
            (Duration::ZERO, vec![Duration::ZERO, EAGER], vec![EAGER * 2, millis(10)]),
            (millis(16), vec![millis(15), millis(16), millis(17)], vec![millis(0), millis(14), millis(18)]),
            (EAGER, vec![Duration::ZERO, EAGER, EAGER * 2], vec![EAGER * 3]),
        ] {
            for waited in near {
                assert!(nears_its_end(waited, usual), "{waited:?} of {usual:?}");
            }
            for waited in far {
                assert!(!nears_its_end(waited, usual), "{waited:?} of {usual:?}");
            }
        }
    }
}
