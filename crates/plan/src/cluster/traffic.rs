//! Link traffic: how much of a link collectives take, and when.
//!
//! Law: collectives are served in the order in which they are given here, that in which they begin. What one takes
//! of a link is the share of its speed at which it goes: nothing while it stands still, and less than all if the
//! compute lane holds it up. Of its own speed every other loses in proportion to that
//! ([`Contention::lost_beside_collective`]). Where one takes all of a link (f = 2), and wherever two share it, that
//! conserves the link's bytes: of three that want all of it, the third waits for both, once.
//!
//! Deliberately absent: what one that takes both kinds of links takes of each. It is charged, and charges, as if
//! it filled both, though mostly one of them bounds it. And when it is held up by the compute lane: it is so
//! evenly, by as much as it would be if no other collective ran.

use super::Reach;
use super::contention::{Contention, Ran};

/// What was taken of one link: pieces in order, none of which overlap.
#[derive(Clone, Debug, Default)]
struct Taken(Vec<Ran>);

impl Taken {
    /// The first piece that ends after `time`.
    fn first(&self, time: u64) -> usize {
        self.0.partition_point(|piece| piece.to <= time)
    }

    /// How much is taken at `time`, and until when.
    fn at(&self, time: u64) -> (f64, u64) {
        match self.0.get(self.first(time)) {
            None => (0.0, u64::MAX),
            Some(piece) if piece.from > time => (0.0, piece.from),
            Some(piece) => (piece.share, piece.to),
        }
    }

    /// Adds pieces in order, none of which overlap.
    fn add(&mut self, added: &[Ran]) {
        let Some(begin) = added.first().map(|piece| piece.from) else { return };
        let after = self.0.split_off(self.first(begin));
        let mut bounds: Vec<u64> =
            after.iter().chain(added).flat_map(|piece| [piece.from, piece.to]).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let (after, added) = (Self(after), Self(added.to_vec()));
        for bound in bounds.windows(2) {
            let [from, to] = *bound else { continue };
            let share = after.at(from).0 + added.at(from).0;
            if share > 0.0 {
                self.0.push(Ran { from, to, share });
            }
        }
    }
}

/// What was taken of the links inside of nodes and of those between them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic {
    inside: Taken,
    between: Taken,
}

impl Traffic {
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The end of a collective, and when and at what share of its speed other collectives let it run. It begins at
    /// `begin` and takes `nanoseconds` alone, and longer by `held_up` for what is no collective. From then on it
    /// is one of those before.
    pub(crate) fn carry(
        &mut self,
        contention: &Contention,
        reach: Reach,
        (begin, nanoseconds, held_up): (u64, f64, f64),
    ) -> (u64, Vec<Ran>) {
        let lost = contention.lost_beside_collective();
        let own = nanoseconds / (nanoseconds + held_up);
        let (mut now, mut left, mut ran) = (begin, nanoseconds, Vec::new());
        while left > 0.0 && now < u64::MAX {
            let links = [(reach.is_inside(), &self.inside), (reach.is_between(), &self.between)];
            let wanted = links.into_iter().filter(|(wanted, _)| *wanted).map(|(_, link)| link.at(now));
            let (taken, until) =
                wanted.fold((0.0f64, u64::MAX), |all, one| (all.0.max(one.0), all.1.min(one.1)));
            let share = own.min(1.0 - lost * taken).max(0.0);
            let moved = share * (until - now) as f64;
            let to = if moved < left { until } else { now.saturating_add((left / share).round() as u64) };
            left = if moved < left { left - moved } else { 0.0 };
            if share > 0.0 && to > now {
                ran.push(Ran { from: now, to, share });
            }
            now = to;
        }
        if lost > 0.0 {
            for (wanted, link) in
                [(reach.is_inside(), &mut self.inside), (reach.is_between(), &mut self.between)]
            {
                if wanted {
                    link.add(&ran);
                }
            }
        }
        ran.iter_mut().for_each(|ran| ran.share /= own);
        (now, ran)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(factor: f64) -> Contention {
        Contention { collective_beside_collective: factor, ..Contention::default() }
    }

    /// When each ends and when it runs, served in this order.
    fn carried(factor: f64, all: &[(Reach, u64, f64)]) -> (Vec<u64>, Vec<Vec<(u64, u64)>>) {
        let mut traffic = Traffic::default();
        let carry = |(reach, begin, length): &(Reach, u64, f64)| {
            let (end, ran) = traffic.carry(&shared(factor), *reach, (*begin, *length, 0.0));
            (end, ran.into_iter().map(|ran| (ran.from, ran.to)).collect())
        };
        all.iter().map(carry).unzip()
    }

    fn ends(factor: f64, all: &[(Reach, u64, f64)]) -> Vec<u64> {
        carried(factor, all).0
    }

    fn ran(factor: f64, all: &[(Reach, u64, f64)]) -> Vec<Vec<(u64, u64)>> {
        carried(factor, all).1
    }

    #[test]
    fn collectives_that_want_all_of_a_link_are_served_one_after_the_other() {
        let inside = |begin, length| (Reach::Inside, begin, length);
        let three = [inside(0, 10.0); 3];
        assert_eq!(ends(2.0, &three), [10, 20, 30]);
        assert_eq!(ran(2.0, &three), [[(0, 10)], [(10, 20)], [(20, 30)]]);
        assert_eq!(ends(1.0, &three), [10; 3]);
        // One that was there before goes on when the one ahead of it is over, and the third goes last.
        let late = [inside(4, 4.0), inside(0, 10.0), inside(0, 1.0)];
        assert_eq!(ran(2.0, &late), [vec![(4, 8)], vec![(0, 4), (8, 14)], vec![(14, 15)]]);
    }

    /// Both together move 2 / f as much as one: for f = 4 / 3 the second goes at half its speed, and takes half as
    /// much from the third.
    #[test]
    fn one_that_is_slowed_takes_less_from_the_next() {
        let of = |length| (Reach::Between, 0, length);
        assert_eq!(ends(4.0 / 3.0, &[of(12.0), of(6.0)]), [12, 12]);
        assert_eq!(ends(4.0 / 3.0, &[of(12.0), of(6.0), of(4.0)]), [12, 12, 13]);
        // One of the two alone is no longer slower than the link.
        assert_eq!(ends(4.0 / 3.0, &[of(12.0), of(8.0)]), [12, 14]);
    }

    #[test]
    fn what_takes_other_links_is_not_held_up_and_what_takes_both_by_either() {
        let all = [(Reach::Inside, 0, 10.0), (Reach::Between, 0, 20.0), (Reach::Both, 0, 5.0)];
        assert_eq!(ends(2.0, &all), [10, 20, 25]);
        let after = [(Reach::Both, 0, 5.0), (Reach::Inside, 0, 10.0), (Reach::Between, 0, 20.0)];
        assert_eq!(ends(2.0, &after), [5, 15, 25]);
    }

    /// One at half its speed leaves half of the link to the next, which is soon through.
    #[test]
    fn what_compute_keeps_a_collective_from_taking_is_left_to_others() {
        let mut traffic = Traffic::default();
        let mut carry = |length, held_up| traffic.carry(&shared(2.0), Reach::Inside, (0, length, held_up));
        assert_eq!(carry(10.0, 10.0), (20, vec![Ran { from: 0, to: 20, share: 1.0 }]));
        assert_eq!(carry(4.0, 0.0).0, 8);
        assert_eq!(
            carry(10.0, 0.0),
            (24, vec![Ran { from: 8, to: 20, share: 0.5 }, Ran { from: 20, to: 24, share: 1.0 }])
        );
    }

    #[test]
    fn a_step_begins_with_links_of_which_nothing_is_taken() {
        let mut traffic = Traffic::default();
        assert_eq!(traffic.carry(&shared(2.0), Reach::Inside, (0, 10.0, 0.0)).0, 10);
        assert_eq!(traffic.carry(&shared(2.0), Reach::Inside, (0, 1.0, 0.0)).0, 11);
        traffic.clear();
        assert_eq!(traffic.carry(&shared(2.0), Reach::Inside, (0, 1.0, 0.0)).0, 1);
    }

    /// A number that no cluster should have must not be one that nothing comes back from.
    #[test]
    fn time_that_has_no_end_ends() {
        assert_eq!(ends(2.0, &[(Reach::Both, 7, 1e300), (Reach::Both, 0, 1e300)]), [u64::MAX; 2]);
        let none = carried(2.0, &[(Reach::Both, u64::MAX, 1.0), (Reach::Both, 3, 0.0)]);
        assert_eq!(none, (vec![u64::MAX, 3], vec![vec![], vec![]]));
    }
}
