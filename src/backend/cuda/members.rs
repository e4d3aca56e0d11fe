//! Which ranks share a communicator of NCCL.
//!
//! Law: every rank is a member of exactly one communicator per lane, and members number each other alike: in rank order.

use super::hosts::Hosts;
use super::machine::Network;
use super::options::Transport;
use crate::id::RankId;

/// The members: `count` ranks from `first` on, `step` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Members {
    first: RankId,
    step: usize,
    count: usize,
}

impl Members {
    /// With whom `rank` shares communicators: with all, or with its counterparts. `None` where nothing goes by NCCL.
    pub(super) fn of(network: Network, rank: RankId) -> Option<Self> {
        let hosts: Hosts = network.hosts;
        match network.transport {
            Transport::Nccl => Some(Self { first: RankId::new(0), step: 1, count: hosts.ranks() }),
            Transport::Peer if hosts.count() == 1 => None,
            Transport::Peer => {
                let first = hosts.rank(0, hosts.place(rank));
                Some(Self { first, step: hosts.each(), count: hosts.count() })
            }
        }
    }

    /// Who makes the communicator's name.
    pub(super) const fn first(self) -> RankId {
        self.first
    }

    pub(super) const fn count(self) -> usize {
        self.count
    }

    /// In order.
    pub(super) fn iter(self) -> impl Iterator<Item = RankId> {
        (0..self.count).map(move |number| RankId::at(self.first.index() + number * self.step))
    }

    /// The member's number.
    pub(super) const fn number(self, rank: RankId) -> usize {
        (rank.index() - self.first.index()) / self.step
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::HostName;

    #[test]
    fn counterparts_share_a_communicator_and_number_each_other_alike() {
        let (a, b, c) = (HostName::new("a"), HostName::new("b"), HostName::new("c"));
        let hosts = Hosts::of(&[&a, &a, &b, &b, &c, &c]).unwrap();
        let network = Network { transport: Transport::Peer, hosts };
        for rank in (0..6).map(RankId::at) {
            let members = Members::of(network, rank).unwrap();
            let mut column: Vec<_> = hosts.column(rank).collect();
            column.sort();
            assert_eq!(members.iter().collect::<Vec<_>>(), column);
            assert_eq!(members.number(rank), hosts.host(rank));
            assert_eq!(members.first().index(), hosts.place(rank));
        }
    }

    #[test]
    fn nccl_alone_has_one_communicator_of_all_and_peers_of_one_host_have_none() {
        let hosts = Hosts::one(3);
        let all = Members::of(Network { transport: Transport::Nccl, hosts }, RankId::new(2)).unwrap();
        assert_eq!((all.count(), all.number(RankId::new(2))), (3, 2));
        assert_eq!(Members::of(Network { transport: Transport::Peer, hosts }, RankId::new(2)), None);
    }
}
