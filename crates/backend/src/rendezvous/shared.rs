//! The state that ranks of one process wait on, and that its connections change.
//!
//! Law: whoever changes what is waited for rings, and nobody else: of the contributions to a round that is the last, or
//! n ranks would wake each other n² times. Every wait also ends with the world, and at the deadline,
//! which ends the world for all (RV-2, RV-3). The deadline is counted while somebody is missing who is not busy. A
//! contribution is on its way to the other processes before its rank waits.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::RendezvousError;
use super::board::{Board, MOST, Topic};
use super::message::{Message, PART};
use super::outgoing::Outgoing;
use warpweft_base::id::{ProcessId, RankId};

/// How long whoever waits sleeps at a time.
const NAP: Duration = Duration::from_millis(250);

/// The state of a world in one process.
#[derive(Debug)]
pub(super) struct Shared {
    ranks: usize,
    own: Range<usize>,
    deadline: Duration,
    board: Mutex<Board>,
    changed: Condvar,
    ended: OnceLock<String>,
    standings: Mutex<BTreeMap<RankId, String>>,
    /// By rank; ranks of other processes never are.
    busy: Vec<AtomicBool>,
    outgoing: OnceLock<Vec<Outgoing>>,
}

/// Nobody leaves the state half-changed, so a panic of one spoils nothing for the others.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(ranks: usize, own: Range<usize>, deadline: Duration) -> Self {
        Self {
            board: Mutex::new(Board::new(ranks, own.clone())),
            ranks,
            own,
            deadline,
            changed: Condvar::new(),
            ended: OnceLock::new(),
            standings: Mutex::default(),
            busy: (0..ranks).map(|_| AtomicBool::new(false)).collect(),
            outgoing: OnceLock::new(),
        }
    }

    pub(super) fn ranks(&self) -> usize {
        self.ranks
    }

    pub(super) fn own(&self) -> Range<usize> {
        self.own.clone()
    }

    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The ways to other processes; set once, before anybody contributes.
    pub(super) fn connect(&self, outgoing: Vec<Outgoing>) {
        // There is no second time: only the function that makes this value calls it.
        let _ = self.outgoing.set(outgoing);
    }

    pub(super) fn outgoing(&self) -> &[Outgoing] {
        self.outgoing.get().map_or(&[], Vec::as_slice)
    }

    /// Tells all other processes, but for the one it came from.
    pub(super) fn spread(&self, message: &Message, from: Option<ProcessId>) {
        for peer in self.outgoing().iter().filter(|peer| Some(peer.process) != from) {
            if !peer.tell(message.clone(), self.deadline) {
                self.end(&format!("{} takes no messages within {:?} (deadline_s)", peer.name, self.deadline));
            }
        }
    }

    pub(super) fn contribute(&self, rank: RankId, topic: Topic, value: &[u8]) -> Result<(), RendezvousError> {
        self.check(rank)?;
        if value.len() > MOST {
            return Err(RendezvousError::TooMuch { bytes: value.len(), most: MOST });
        }
        if !topic.is_for_first() || self.own.start == 0 {
            let posted = lock(&self.board).post(topic, rank, value.into());
            let is_whole = posted.map_err(|_| RendezvousError::Absent {
                reason: format!(
                    "{rank} contributes to {topic:?} again and has not collected what others said"
                ),
            })?;
            if is_whole {
                self.changed.notify_all();
            }
            if topic.is_for_first() {
                return Ok(());
            }
        }
        if self.outgoing().is_empty() {
            return Ok(());
        }
        let mut rest = value;
        loop {
            let (part, more) = rest.split_at(rest.len().min(PART));
            let last = more.is_empty();
            self.spread(&Message::Part { topic, rank, last, bytes: part.into() }, None);
            if last {
                return Ok(());
            }
            rest = more;
        }
    }

    fn check(&self, rank: RankId) -> Result<(), RendezvousError> {
        if self.own.contains(&rank.index()) {
            return Ok(());
        }
        Err(RendezvousError::NotOfThisProcess { rank, ranks: self.ranks })
    }

    pub(super) fn collect(&self, rank: RankId, topic: Topic) -> Result<Vec<Arc<[u8]>>, RendezvousError> {
        self.check(rank)?;
        let mut left = self.deadline;
        let mut board = lock(&self.board);
        loop {
            if let Some(all) = board.collect(topic, rank) {
                return Ok(all);
            }
            if let Some(reason) = self.ended() {
                return Err(RendezvousError::Ended { reason: reason.to_owned() });
            }
            if let Some(reason) = board.abandoned(topic, rank) {
                return Err(RendezvousError::Absent { reason });
            }
            let is_excused = board.missing(topic, rank).all(|missing| self.is_busy(missing));
            if is_excused {
                left = self.deadline;
            }
            if left.is_zero() {
                let missing: Vec<RankId> = board.missing(topic, rank).collect();
                drop(board);
                let reason = self.too_late(&missing);
                return Err(RendezvousError::Absent { reason: self.end(&reason) });
            }
            // A process that is stopped for a while does not wait meanwhile, so a nap counts for no more than
            // it was to take.
            let (nap, begun) = (left.min(NAP), Instant::now());
            board = self.changed.wait_timeout(board, nap).unwrap_or_else(PoisonError::into_inner).0;
            if !is_excused {
                left = left.saturating_sub(begun.elapsed().min(nap));
            }
        }
    }

    /// A rank of this process is busy from now on, or no longer.
    pub(super) fn busy(&self, rank: RankId, is_busy: bool) {
        if let Some(place) = self.busy.get(rank.index()) {
            place.store(is_busy, Ordering::SeqCst);
        }
    }

    fn is_busy(&self, rank: RankId) -> bool {
        self.busy.get(rank.index()).is_some_and(|place| place.load(Ordering::SeqCst))
    }

    /// What is said of ranks that did not come: that, and what they last said that they were doing.
    fn too_late(&self, missing: &[RankId]) -> String {
        let names: Vec<String> = missing.iter().map(RankId::to_string).collect();
        let mut said = format!("{} did not come within {:?} (deadline_s)", names.join(", "), self.deadline);
        let standings = self.standings();
        for (rank, standing) in missing.iter().filter_map(|rank| Some((rank, standings.get(rank)?))) {
            said.push_str(&format!("; {rank}: {standing}"));
        }
        said
    }

    /// A part of what a rank of another process contributes.
    pub(super) fn arrive(&self, topic: Topic, rank: RankId, last: bool, bytes: &Arc<[u8]>) -> bool {
        let posted = lock(&self.board).post_part(topic, rank, last, bytes);
        if posted == Ok(true) {
            self.changed.notify_all();
        }
        posted.is_ok()
    }

    pub(super) fn leave(&self, rank: RankId, reason: &str) {
        self.left(rank, reason);
        self.spread(&Message::Left { rank, reason: reason.to_owned() }, None);
    }

    /// A rank, here or elsewhere, has left.
    pub(super) fn left(&self, rank: RankId, reason: &str) {
        lock(&self.board).leave(rank, reason);
        self.changed.notify_all();
    }

    pub(super) fn end(&self, reason: &str) -> String {
        let first = self.ended.set(reason.to_owned()).is_ok();
        if first {
            // Whoever looks at the board has either seen the reason or sleeps.
            drop(lock(&self.board));
            self.changed.notify_all();
            self.outgoing().iter().for_each(Outgoing::wake);
        }
        self.ended().unwrap_or(reason).to_owned()
    }

    pub(super) fn ended(&self) -> Option<&str> {
        self.ended.get().map(String::as_str)
    }

    /// A rank of this process says how far it is.
    pub(super) fn stand(&self, rank: RankId, text: &str) {
        self.stands(rank, text);
        for peer in self.outgoing() {
            peer.offer(Message::Standing { rank, text: text.to_owned() });
        }
    }

    pub(super) fn stands(&self, rank: RankId, text: &str) {
        let mut standings = lock(&self.standings);
        if text.is_empty() {
            standings.remove(&rank);
        } else if rank.index() < self.ranks {
            standings.insert(rank, text.to_owned());
        }
    }

    pub(super) fn standings(&self) -> BTreeMap<RankId, String> {
        lock(&self.standings).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread::{scope, sleep};

    use super::super::Rendezvous;
    use super::*;

    const DEADLINE: Duration = Duration::from_millis(50);

    fn world() -> Rendezvous {
        Rendezvous::of_threads(2, DEADLINE)
    }

    fn meet(world: &Rendezvous, rank: u32) -> Result<usize, RendezvousError> {
        world.exchange(RankId::new(rank), Topic::Agreement, &[7]).map(|all| all.len())
    }

    /// RV-2.
    #[test]
    fn the_deadline_for_a_rank_that_is_busy_begins_when_it_no_longer_is() {
        let world = world();
        scope(|scope| {
            let busy = world.busy(RankId::new(1));
            let waits = scope.spawn(|| meet(&world, 0));
            sleep(DEADLINE * 10);
            assert!(!waits.is_finished());
            drop(busy);
            let reason = waits.join().unwrap().unwrap_err().to_string();
            assert!(reason.contains("rank 1 did not come within 50ms"), "{reason}");
        });
    }

    /// RV-2.
    #[test]
    fn a_rank_that_was_busy_past_the_deadline_is_met() {
        let world = world();
        scope(|scope| {
            let _busy = world.busy(RankId::new(1));
            // Its thread may come late.
            let _late = world.busy(RankId::new(0));
            let waits = scope.spawn(|| meet(&world, 0));
            sleep(DEADLINE * 10);
            assert_eq!(meet(&world, 1).unwrap(), 2);
            assert_eq!(waits.join().unwrap().unwrap(), 2);
        });
    }

    /// RV-2, RV-3.
    #[test]
    fn a_rank_that_panics_is_not_busy_and_the_end_of_the_world_ends_the_wait_for_one_that_is() {
        let panicking = world();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _busy = panicking.busy(RankId::new(1));
            panic!("the lights went out");
        }));
        assert!(panicked.is_err());
        assert!(matches!(meet(&panicking, 0), Err(RendezvousError::Absent { .. })));

        let ending = world();
        scope(|scope| {
            let _busy = ending.busy(RankId::new(1));
            let waits = scope.spawn(|| meet(&ending, 0));
            ending.end("the cable is out");
            assert!(matches!(waits.join().unwrap(), Err(RendezvousError::Ended { .. })));
        });
    }
}
