//! The watchdog: waiting for a lane, with a deadline.
//!
//! Laws:
//! - A wait ends when the lane is done, when the world is poisoned, or when no collective of this rank was
//!   done for the length of the deadline. The last case poisons the world, naming rank, lane, and the last
//!   and the next collective of every rank that waits as well. A rank that waits for long tells the others
//!   how far it is.
//! - A rank of a poisoned world ends what its lanes wait for ([`super::release`]) and drains them before it
//!   returns. Draining has a time limit of its own, but no limit holds for a call of the driver. Where a lane
//!   does not run out, all GPUs of the world in this process are abandoned: what is there is left to the end of
//!   the process, since giving it back would wait for the stream. No other lane is waited for then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::progress::Progress;
use crate::bind::lane::CudaStream;
use crate::world::World;
use warpweft_backend::BackendError;
use warpweft_base::id::RankId;

/// How long a lane is polled without pause, from the beginning and from the end of every collective.
const EAGER: Duration = Duration::from_micros(200);
/// The pause between two polls after that: short compared with a step, long compared with a poll. With what
/// the system adds to a pause, it bounds how late a step's end is seen that is not where the last one was.
/// The deadline bounds what a wait may take in all.
const PAUSE: Duration = Duration::from_micros(50);
/// The time between two polls reaches this only where the process was stopped: suspended with its job, or in
/// a debugger.
const STOPPED: Duration = Duration::from_secs(1);
/// How long a lane of a poisoned world gets to drain.
const DRAIN: Duration = Duration::from_secs(5);

/// The most that is added to the time without pause on either side of a usual end, however long steps are:
/// their ranks share cores with others.
const MARGIN: Duration = Duration::from_millis(2);

/// Whether a wait that has taken `waited` ends soon, if it is like the last one on this lane, which took
/// `usual`. Then the lane is polled without pause: a pause of 50 µs takes the system about 100, and of
/// several ranks the slowest counts.
fn nears_its_end(waited: Duration, usual: Duration) -> bool {
    let margin = EAGER + (usual / 16).min(MARGIN);
    waited + margin >= usual && waited <= usual + margin
}

/// Waits until `stream` has run everything. Between two polls it calls `meanwhile`, which says whether there
/// was something to do: a few microseconds at a time. In a poisoned world it calls `end_waits`, which ends what
/// the lanes of the rank wait for.
pub(crate) fn wait(
    world: &Arc<World>,
    rank: RankId,
    stream: &CudaStream,
    progress: &Progress,
    meanwhile: impl Fn() -> bool,
    end_waits: impl Fn(),
) -> Result<(), BackendError> {
    let started = Instant::now();
    let (mut begun, mut requested) = (started, started);
    let mut moved = progress.moved();
    let mut standing = Standing { world, rank, told: None };
    loop {
        match stream.stream.is_done() {
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
        // A process that was stopped for a while has not waited, and nor have its peers.
        let since = requested.elapsed();
        if since > STOPPED {
            begun += since;
        }
        requested = Instant::now();
        let waited = begun.elapsed();
        if let Err(poisoned) = world.check() {
            drain(world, stream, &end_waits);
            return Err(poisoned);
        }
        if progress.moved() != moved {
            (begun, moved) = (Instant::now(), progress.moved());
        } else if waited > world.options.deadline {
            standing.tell(progress);
            let error = world.poison(stalled(world, rank, stream, progress));
            drain(world, stream, &end_waits);
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

/// What the other ranks know of the progress of a rank that waits for long.
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

    /// The lane made progress after all.
    fn withdraw(&self) {
        if self.told.is_some() {
            self.world.rendezvous.stand(self.rank, "");
        }
    }
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
fn drain(world: &World, stream: &CudaStream, end_waits: &impl Fn()) {
    end_waits();
    let begun = Instant::now();
    while !stream.stream.context().is_abandoned() && matches!(stream.stream.is_done(), Ok(false)) {
        if begun.elapsed() > DRAIN {
            world.abandon();
        }
        std::thread::sleep(PAUSE);
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
