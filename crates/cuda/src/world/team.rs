//! The ranks that a collective brings together, as one of them sees them.
//!
//! Laws:
//! - Transports number ranks in their team, from 0 in rank order, and know no others: to them a team is a
//!   world. What has places for all ranks of the world (words, homes) or crosses to other libraries
//!   (communicators) is asked by a rank's number in the world. The conversion is made here.
//! - Every rank is in one team per group of the mesh, so teams of a group meet, and open communicators, all
//!   at the same time or none.
//! - A team of one rank meets no other and needs no communicator.

use super::hosts::Hosts;
use super::members::Members;
use super::placement::Network;
use crate::options::Transport;
use warpweft_base::id::RankId;
use warpweft_plan::model::{Group, Mesh};

/// A rank's team.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Team {
    members: Members,
    transport: Transport,
    hosts: Hosts,
    own: RankId,
}

impl Team {
    /// The team of `rank`. Where its ranks are spread unevenly over hosts, all goes by NCCL, as if these were one.
    pub(crate) fn of(network: Network, mesh: Mesh, rank: RankId, group: Group) -> Self {
        let strides = mesh.strides(group);
        let members = Members::of(strides, rank);
        let (transport, hosts) = match network.hosts.of_group(strides) {
            Some(hosts) => (network.transport, hosts),
            None => (Transport::Nccl, Hosts::one(members.count())),
        };
        Self { members, transport, hosts, own: RankId::at(members.number(rank)) }
    }

    /// The number of the rank that sees it.
    pub(crate) const fn own(&self) -> RankId {
        self.own
    }

    /// How bytes get from one of its ranks to another.
    pub(crate) const fn transport(&self) -> Transport {
        self.transport
    }

    /// The hosts that its ranks are on.
    pub(crate) const fn hosts(&self) -> Hosts {
        self.hosts
    }

    /// The rank of the world with this number.
    pub(crate) fn in_world(&self, number: RankId) -> RankId {
        self.members.rank(number.index())
    }

    /// All of it, as ranks of the world.
    pub(crate) fn iter(&self) -> impl Iterator<Item = RankId> {
        self.members.iter()
    }

    /// The ranks with which this one shares an NCCL communicator: all, or its counterparts. `None` where
    /// nothing goes by NCCL.
    pub(crate) fn connected(&self) -> Option<Members> {
        let Self { members, transport, hosts, own } = *self;
        match transport {
            Transport::Nccl => (members.count() > 1).then_some(members),
            Transport::Peer if hosts.count() == 1 => None,
            Transport::Peer => Some(members.part(hosts.place(own), hosts.each(), hosts.count())),
        }
    }
}

/// Worlds on which teams and their transports are tested.
#[cfg(test)]
pub(crate) mod samples {
    use super::*;
    use warpweft_backend::rendezvous::HostName;

    pub(crate) const GROUPS: [Group; 3] = [Group::World, Group::Shard, Group::Replicate];

    /// Hosts, ranks on each, and replicas: several to a host, one per host, or one over several hosts.
    pub(crate) const MESHES: [(usize, usize, u32); 10] = [
        (1, 4, 2),
        (1, 4, 4),
        (1, 6, 3),
        (2, 2, 2),
        (2, 4, 4),
        (2, 4, 2),
        (4, 2, 2),
        (2, 2, 4),
        (4, 1, 2),
        (1, 1, 1),
    ];

    /// That many hosts, with that many ranks on each.
    pub(crate) fn hosts(count: usize, each: usize) -> Hosts {
        let names: Vec<_> =
            (0..count * each).map(|rank| HostName::new(&format!("{}", rank / each))).collect();
        Hosts::of(&names.iter().collect::<Vec<_>>()).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::samples::{GROUPS, MESHES, hosts};
    use super::*;

    #[test]
    fn counterparts_share_a_communicator_and_number_each_other_alike() {
        let (hosts, mesh) = (hosts(3, 2), Mesh::new(6).unwrap());
        let network = Network { transport: Transport::Peer, hosts };
        for rank in mesh.iter() {
            let members = Team::of(network, mesh, rank, Group::World).connected().unwrap();
            let mut column: Vec<_> = hosts.column(rank).collect();
            column.sort();
            assert_eq!(members.iter().collect::<Vec<_>>(), column);
            assert_eq!(members.number(rank), hosts.host(rank));
            assert_eq!(members.first().index(), hosts.place(rank));
        }
    }

    #[test]
    fn nccl_alone_connects_a_team_and_peers_of_one_host_are_not_connected() {
        let mesh = Mesh::hybrid(6, 3).unwrap();
        let team = |transport, group| {
            let network = Network { transport, hosts: Hosts::one(6) };
            Team::of(network, mesh, RankId::new(3), group)
        };
        let connected = |group| team(Transport::Nccl, group).connected().unwrap().iter().collect::<Vec<_>>();
        let ranks = |ranks: &[u32]| ranks.iter().copied().map(RankId::new).collect::<Vec<_>>();
        assert_eq!(connected(Group::World), ranks(&[0, 1, 2, 3, 4, 5]));
        assert_eq!(connected(Group::Shard), ranks(&[2, 3]));
        assert_eq!(connected(Group::Replicate), ranks(&[1, 3, 5]));
        assert!(GROUPS.iter().all(|group| team(Transport::Peer, *group).connected().is_none()));
        let alone = Team::of(
            Network { transport: Transport::Nccl, hosts: Hosts::one(1) },
            Mesh::new(1).unwrap(),
            RankId::new(0),
            Group::Shard,
        );
        assert_eq!(alone.connected(), None, "a team of one");
    }

    /// Whether a lane opens a communicator for a group, or shares that of an earlier one, is the same on
    /// every rank: they open together. And all members name each other alike.
    #[test]
    fn all_ranks_open_communicators_for_the_same_groups_and_of_the_same_members() {
        for (count, each, replicas) in MESHES {
            let mesh = Mesh::hybrid((count * each) as u32, replicas).unwrap();
            let ways = [
                Network { transport: Transport::Peer, hosts: hosts(count, each) },
                Network { transport: Transport::Nccl, hosts: Hosts::one(count * each) },
            ];
            for network in ways {
                let mut opened = BTreeSet::new();
                for rank in mesh.iter() {
                    let team = |group| Team::of(network, mesh, rank, group);
                    let all = GROUPS.map(|group| team(group).connected());
                    let fresh = (0..3).map(|at| all[at].is_some() && !all[..at].contains(&all[at]));
                    opened.insert(fresh.collect::<Vec<_>>());
                    for members in all.into_iter().flatten() {
                        assert!(members.iter().any(|member| member == rank), "{network:?}, {mesh}, {rank}");
                    }
                    for (group, members) in GROUPS.into_iter().zip(all) {
                        for other in members.into_iter().flat_map(Members::iter) {
                            let theirs = Team::of(network, mesh, other, group).connected();
                            assert_eq!(theirs, members, "{network:?}, {mesh}, {rank}, {other}, {group}");
                        }
                    }
                }
                assert_eq!(opened.len(), 1, "{network:?}, {mesh}");
            }
        }
    }

    #[test]
    fn a_rank_finds_itself_in_its_team() {
        let mesh = Mesh::hybrid(8, 4).unwrap();
        let network = Network { transport: Transport::Peer, hosts: hosts(2, 4) };
        for (rank, group) in mesh.iter().flat_map(|rank| GROUPS.map(|group| (rank, group))) {
            let team = Team::of(network, mesh, rank, group);
            assert_eq!(team.in_world(team.own()), rank);
            assert_eq!(team.iter().collect::<Vec<_>>(), mesh.members(rank, group).collect::<Vec<_>>());
            assert_eq!(team.hosts().ranks(), mesh.size(group) as usize);
        }
    }
}
