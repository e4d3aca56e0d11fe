//! The hosts of a world's ranks, or of a group's: a number of hosts with the same number of ranks each, numbered host
//! by host.
//!
//! Laws:
//! - The ranks of a group are numbered in it and are spread over hosts as those of a world are, or the group
//!   has no hosts. Where groups neither fill hosts nor are filled by them, some host would have more of a
//!   group's ranks than another.
//! - A *neighbour* is another rank of the same host, a *counterpart* the rank at the same place of another
//!   host, and a rank's *column* are its counterparts and itself. Every rank of the world is in the column of
//!   the rank itself or of exactly one neighbour, so the columns together contain all ranks.
//! - Lists in these orders begin with the rank that follows, so that not all ranks write to the same one at
//!   once.
//! - Where hosts do not matter, a world is one host.

use warpweft_backend::rendezvous::HostName;
use warpweft_base::id::RankId;
use warpweft_plan::model::Strides;

/// Hosts, and ranks of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hosts {
    count: usize,
    each: usize,
}

impl Hosts {
    /// All of `ranks` ranks on one host.
    pub(crate) const fn one(ranks: usize) -> Self {
        Self { count: 1, each: ranks }
    }

    /// The hosts of the ranks, in rank order. `None` unless each has the same number of ranks, one after the
    /// other.
    pub(crate) fn of(names: &[&HostName]) -> Option<Self> {
        let runs: Vec<_> = names.chunk_by(|one, other| one == other).collect();
        let each = runs.first()?.len();
        let again = |run: usize| runs[..run].iter().any(|earlier| earlier[0] == runs[run][0]);
        let even = (0..runs.len()).all(|run| runs[run].len() == each && !again(run));
        even.then_some(Self { count: runs.len(), each })
    }

    /// The hosts of a group of the world, whose ranks are on these hosts: each with as many of its ranks. `None`
    /// where a host would have more of them than another.
    pub(crate) fn of_group(self, group: Strides) -> Option<Self> {
        let (stride, ranks) = (group.stride() as usize, group.count() as usize);
        let all = stride * ranks;
        if self.each.is_multiple_of(all) {
            return Some(Self::one(ranks));
        }
        if stride.is_multiple_of(self.each) {
            return Some(Self { count: ranks, each: 1 });
        }
        let even = self.each.is_multiple_of(stride) && all.is_multiple_of(self.each);
        even.then(|| Self { count: all / self.each, each: self.each / stride })
    }

    pub(crate) const fn count(self) -> usize {
        self.count
    }

    /// Ranks of each host.
    pub(crate) const fn each(self) -> usize {
        self.each
    }

    /// Ranks of all hosts.
    pub(crate) const fn ranks(self) -> usize {
        self.count * self.each
    }

    pub(crate) const fn host(self, rank: RankId) -> usize {
        rank.index() / self.each
    }

    /// Which of the ranks of its host it is.
    pub(crate) const fn place(self, rank: RankId) -> usize {
        rank.index() % self.each
    }

    pub(crate) fn rank(self, host: usize, place: usize) -> RankId {
        RankId::at(host * self.each + place)
    }

    pub(crate) const fn share_host(self, one: RankId, other: RankId) -> bool {
        self.host(one) == self.host(other)
    }

    /// How many hosts after that of `rank` the host of `other` comes, counted cyclically: 0 for its own.
    pub(crate) const fn distance(self, rank: RankId, other: RankId) -> usize {
        (self.host(other) + self.count - self.host(rank)) % self.count
    }

    /// The other ranks of its host.
    pub(crate) fn neighbours(self, rank: RankId) -> impl Iterator<Item = RankId> {
        (1..self.each).map(move |step| self.rank(self.host(rank), (self.place(rank) + step) % self.each))
    }

    /// The ranks at its place on the other hosts.
    pub(crate) fn counterparts(self, rank: RankId) -> impl Iterator<Item = RankId> {
        (1..self.count).map(move |step| self.rank((self.host(rank) + step) % self.count, self.place(rank)))
    }

    /// The rank itself, then its counterparts.
    pub(crate) fn column(self, rank: RankId) -> impl Iterator<Item = RankId> {
        std::iter::once(rank).chain(self.counterparts(rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweft_plan::model::Mesh;

    #[test]
    fn hosts_have_equally_many_ranks_one_after_the_other_or_are_none() {
        let of = |names: &str| {
            let names: Vec<_> = names.chars().map(|name| HostName::new(&name.to_string())).collect();
            Hosts::of(&names.iter().collect::<Vec<_>>()).map(|hosts| (hosts.count(), hosts.each()))
        };
        assert_eq!(of("aaaa"), Some((1, 4)));
        assert_eq!(of("aabb"), Some((2, 2)));
        assert_eq!(of("aabbcc"), Some((3, 2)));
        assert_eq!(of("abc"), Some((3, 1)));
        assert_eq!(of("aab"), None, "unequal");
        assert_eq!(of("abab"), None, "not one after the other");
        assert_eq!(of("aabbaa"), None, "a host that comes again");
        assert_eq!(of(""), None);
    }

    #[test]
    fn the_ranks_of_a_group_lie_on_the_hosts_that_its_members_lie_on() {
        for (count, each, replicas) in [
            (1, 4, 2),
            (2, 4, 2),
            (2, 4, 4),
            (2, 4, 8),
            (4, 2, 2),
            (4, 2, 4),
            (3, 2, 3),
            (2, 2, 1),
            (4, 1, 2),
        ] {
            let hosts = Hosts { count, each };
            let mesh = Mesh::hybrid((count * each) as u32, replicas).unwrap();
            for (rank, group) in mesh.iter().flat_map(|rank| mesh.groups().map(move |group| (rank, group))) {
                let of_group = hosts.of_group(mesh.strides(group)).unwrap();
                let members: Vec<_> = mesh.members(rank, group).collect();
                assert_eq!(of_group.ranks(), members.len());
                for (one, other) in
                    (0..members.len()).flat_map(|one| (0..members.len()).map(move |other| (one, other)))
                {
                    let together = of_group.share_host(RankId::at(one), RankId::at(other));
                    assert_eq!(together, hosts.share_host(members[one], members[other]), "{mesh}, {group}");
                }
            }
        }
        // Three ranks per replica on hosts of two: a host has one of some replica and two of another.
        let (hosts, mesh) = (Hosts { count: 3, each: 2 }, Mesh::hybrid(6, 2).unwrap());
        let of_groups: Vec<_> = mesh.groups().map(|group| hosts.of_group(mesh.strides(group))).collect();
        assert_eq!(of_groups[..3], [Some(hosts), None, None]);
    }

    #[test]
    fn the_columns_of_a_rank_and_its_neighbours_hold_every_rank_once() {
        for (count, each) in [(1, 4), (2, 2), (3, 2), (4, 1)] {
            let hosts = Hosts { count, each };
            for rank in (0..hosts.ranks()).map(RankId::at) {
                let holders = std::iter::once(rank).chain(hosts.neighbours(rank));
                let mut all: Vec<_> = holders.flat_map(|holder| hosts.column(holder)).collect();
                all.sort();
                assert_eq!(all, (0..hosts.ranks()).map(RankId::at).collect::<Vec<_>>());
                assert!(hosts.neighbours(rank).all(|other| hosts.share_host(rank, other)));
                assert!(hosts.counterparts(rank).all(|other| hosts.distance(rank, other) > 0));
            }
        }
    }
}
