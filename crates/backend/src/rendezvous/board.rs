//! The bulletin board of a world: contributions of ranks that have not been collected yet.
//!
//! Law: plain state, no waiting. A rank contributes to a round of a topic only after it has collected the
//! round before, so nobody is more than two contributions ahead of a rank of this process; more is refused. A
//! round is kept until every rank of this process has collected it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use warpweft_base::id::RankId;

/// Conversations that do not disturb each other. Within one, a rank's n-th contribution meets the n-th of all
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Topic {
    /// Numbers on which the executor's ranks agree.
    Agreement,
    /// What devices there are, and where.
    Devices,
    /// Where the memory of every rank lies.
    Homes,
    /// Names of communicators.
    Communicators,
    /// Nothing but having come.
    Meeting,
    /// What came of a step.
    Reports,
    /// How much of a checkpoint every rank has for rank 0.
    Amounts,
    /// Parts of a checkpoint; they go to the process of rank 0 alone.
    Shards,
    /// The parts have been taken.
    Taken,
    /// That a rank still works on something long, or how it ended.
    Work,
    /// Nobody touches the memory of others any more. Ranks that left still come here.
    Closing,
}

impl Topic {
    /// How many there are.
    #[cfg(test)]
    pub(super) const COUNT: u8 = Self::ALL.len() as u8;

    const ALL: [Self; 11] = [
        Self::Agreement,
        Self::Devices,
        Self::Homes,
        Self::Communicators,
        Self::Meeting,
        Self::Reports,
        Self::Amounts,
        Self::Shards,
        Self::Taken,
        Self::Work,
        Self::Closing,
    ];

    /// The topic with this number.
    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Do contributions go to the process of rank 0 alone?
    pub(super) fn is_for_first(self) -> bool {
        self == Self::Shards
    }
}

/// Bytes of one contribution.
pub(super) const MOST: usize = 256 << 20;

/// Contributions of one rank that wait at most.
const AHEAD: usize = 2;

/// A contribution that cannot be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unexpected;

#[derive(Debug, Default)]
struct Column {
    /// Round of the first contribution held.
    first: u64,
    held: VecDeque<Arc<[u8]>>,
    /// The beginning of the next one.
    begun: Vec<u8>,
    /// Rounds this rank has collected, if it is of this process.
    collected: u64,
}

impl Column {
    /// Whole contributions so far.
    fn contributions(&self) -> u64 {
        self.first + self.held.len() as u64
    }
}

/// All topics.
#[derive(Debug)]
pub(super) struct Board {
    ranks: usize,
    own: Range<usize>,
    topics: BTreeMap<Topic, Vec<Column>>,
    left: BTreeMap<RankId, String>,
}

impl Board {
    pub(super) fn new(ranks: usize, own: Range<usize>) -> Self {
        Self { ranks, own, topics: BTreeMap::new(), left: BTreeMap::new() }
    }

    fn columns(&mut self, topic: Topic) -> &mut Vec<Column> {
        let ranks = self.ranks;
        self.topics.entry(topic).or_insert_with(|| (0..ranks).map(|_| Column::default()).collect())
    }

    /// A whole contribution; true if its round has everybody's now.
    pub(super) fn post(&mut self, topic: Topic, rank: RankId, bytes: Arc<[u8]>) -> Result<bool, Unexpected> {
        let column = self.columns(topic).get_mut(rank.index()).ok_or(Unexpected)?;
        if column.held.len() >= AHEAD || !column.begun.is_empty() {
            return Err(Unexpected);
        }
        column.held.push_back(bytes);
        let contributions = column.contributions();
        Ok(self.columns(topic).iter().all(|column| column.contributions() >= contributions))
    }

    /// The next part of a contribution; true if it is the last one and the round has everybody's now.
    pub(super) fn post_part(
        &mut self,
        topic: Topic,
        rank: RankId,
        last: bool,
        bytes: &Arc<[u8]>,
    ) -> Result<bool, Unexpected> {
        let column = self.columns(topic).get_mut(rank.index()).ok_or(Unexpected)?;
        if last && column.begun.is_empty() {
            return self.post(topic, rank, Arc::clone(bytes));
        }
        if column.held.len() >= AHEAD || column.begun.len() + bytes.len() > MOST {
            return Err(Unexpected);
        }
        column.begun.extend_from_slice(bytes);
        if last {
            let whole = std::mem::take(&mut column.begun);
            return self.post(topic, rank, whole.into());
        }
        Ok(false)
    }

    /// Everybody's contribution to the next round of `rank`, which has collected it then.
    pub(super) fn collect(&mut self, topic: Topic, rank: RankId) -> Option<Vec<Arc<[u8]>>> {
        let own = self.own.clone();
        let columns = self.columns(topic);
        let round = columns.get(rank.index())?.collected;
        let all = columns.iter().map(|column| {
            let place = usize::try_from(round.checked_sub(column.first)?).ok()?;
            column.held.get(place).cloned()
        });
        let all = all.collect::<Option<Vec<_>>>()?;
        columns[rank.index()].collected += 1;
        let done = columns[own].iter().map(|column| column.collected).min().unwrap_or(0);
        for column in columns {
            while column.first < done && column.held.pop_front().is_some() {
                column.first += 1;
            }
        }
        Some(all)
    }

    /// Who has not contributed to the next round of `rank`.
    pub(super) fn missing(&mut self, topic: Topic, rank: RankId) -> impl Iterator<Item = RankId> + '_ {
        let columns = self.columns(topic);
        let round = columns.get(rank.index()).map_or(0, |column| column.collected);
        let is_late = move |column: &Column| column.contributions() <= round;
        (columns.iter().enumerate())
            .filter(move |(_, column)| is_late(column))
            .map(|(rank, _)| RankId::at(rank))
    }

    /// A rank comes no more.
    pub(super) fn leave(&mut self, rank: RankId, reason: &str) {
        if rank.index() < self.ranks {
            self.left.entry(rank).or_insert_with(|| reason.to_owned());
        }
    }

    /// Why the next round of `rank` will never be whole, if somebody left without contributing.
    pub(super) fn abandoned(&mut self, topic: Topic, rank: RankId) -> Option<String> {
        if self.left.is_empty() || topic == Topic::Closing {
            return None;
        }
        let missing: Vec<RankId> = self.missing(topic, rank).collect();
        missing.iter().find_map(|rank| self.left.get(rank).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPIC: Topic = Topic::Agreement;

    fn bytes(value: u8) -> Arc<[u8]> {
        Arc::new([value])
    }

    /// RV-1.
    #[test]
    fn rounds_stay_apart_although_a_quick_rank_is_ahead() {
        let mut board = Board::new(3, 0..2);
        let rank = RankId::new;
        for turn in 0..5 {
            for (who, value) in [(0, 10), (1, 20), (2, 30)] {
                board.post(TOPIC, rank(who), bytes(value + turn)).unwrap();
            }
            let expected = vec![bytes(10 + turn), bytes(20 + turn), bytes(30 + turn)];
            assert_eq!(board.collect(TOPIC, rank(0)).unwrap(), expected);
            // Rank 2 is elsewhere and comes again before rank 1 has looked.
            board.post(TOPIC, rank(2), bytes(31 + turn)).unwrap();
            assert_eq!(board.collect(TOPIC, rank(0)), None);
            assert_eq!(board.collect(TOPIC, rank(1)).unwrap(), expected);
            assert!(board.missing(TOPIC, rank(1)).eq([rank(0), rank(1)]));
            board.columns(TOPIC)[2].held.clear();
        }
    }

    /// RV-1: who waits is woken once in a round.
    #[test]
    fn the_last_contribution_of_a_round_says_that_it_is_whole() {
        let mut board = Board::new(3, 0..2);
        let rank = RankId::new;
        assert_eq!(board.post(TOPIC, rank(2), bytes(1)), Ok(false));
        assert_eq!(board.post(TOPIC, rank(2), bytes(2)), Ok(false), "it is ahead");
        assert_eq!(board.post(TOPIC, rank(0), bytes(1)), Ok(false));
        assert_eq!(board.post_part(TOPIC, rank(1), false, &bytes(1)), Ok(false));
        assert_eq!(board.post_part(TOPIC, rank(1), true, &bytes(1)), Ok(true));
        assert!(board.collect(TOPIC, rank(0)).is_some() && board.collect(TOPIC, rank(1)).is_some());
        assert_eq!(board.post(TOPIC, rank(1), bytes(2)), Ok(false));
        assert_eq!(board.post(TOPIC, rank(0), bytes(2)), Ok(true));
    }

    /// RV-4: a peer cannot fill the memory with rounds nobody requested.
    #[test]
    fn a_rank_that_runs_ahead_is_refused() {
        let mut board = Board::new(2, 0..1);
        let other = RankId::new(1);
        assert!(board.post(TOPIC, other, bytes(1)).is_ok());
        assert!(board.post_part(TOPIC, other, false, &bytes(2)).is_ok());
        assert!(board.post_part(TOPIC, other, true, &bytes(3)).is_ok());
        assert_eq!(board.post(TOPIC, other, bytes(4)), Err(Unexpected));
        assert_eq!(board.post_part(TOPIC, other, false, &bytes(4)), Err(Unexpected));
        assert_eq!(board.post(TOPIC, RankId::new(2), bytes(4)), Err(Unexpected));
        board.post(TOPIC, RankId::new(0), bytes(0)).unwrap();
        board.post(TOPIC, RankId::new(0), bytes(0)).unwrap();
        assert_eq!(board.collect(TOPIC, RankId::new(0)).unwrap()[1], bytes(1));
        assert_eq!(*board.collect(TOPIC, RankId::new(0)).unwrap()[1], [2, 3], "parts are put together");
    }

    #[test]
    fn who_left_is_missed_only_where_it_did_not_contribute_before() {
        let mut board = Board::new(2, 0..1);
        let (own, other) = (RankId::new(0), RankId::new(1));
        board.post(TOPIC, other, bytes(1)).unwrap();
        board.leave(other, "rank 1 was closed");
        assert_eq!(board.abandoned(TOPIC, own), None);
        board.post(TOPIC, own, bytes(0)).unwrap();
        board.collect(TOPIC, own).unwrap();
        assert_eq!(board.abandoned(TOPIC, own).as_deref(), Some("rank 1 was closed"));
        assert_eq!(board.abandoned(Topic::Closing, own), None);
    }
}
