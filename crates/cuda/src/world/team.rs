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
    use warpweft_plan::model::Levels;

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

    /// Hosts, ranks on each, and blocks of levels: that fill hosts, are filled by them, or lie across them.
    pub(crate) const LEVELED: [(usize, usize, &[u32]); 6] =
        [(1, 8, &[2, 4]), (2, 4, &[4]), (4, 2, &[4]), (4, 2, &[2, 4]), (2, 6, &[2, 6]), (4, 3, &[4])];

    /// Hosts, ranks on each, replicas, and ranks of a tensor-parallel group: several to a host, or one over two.
    const TENSOR: [(usize, usize, u32, u32); 5] =
        [(1, 4, 1, 2), (1, 8, 2, 2), (2, 4, 1, 2), (2, 4, 2, 4), (2, 4, 1, 8)];

    /// Hosts, ranks on each, replicas, tensor-parallel ranks, expert-parallel ones, optimizer instances, and blocks:
    /// blocks that are whole replicas, and instances of replicas and of copies of experts.
    const DIVIDED: [(usize, usize, [u32; 4], &[u32]); 5] = [
        (4, 2, [4, 1, 1, 1], &[4]),
        (2, 4, [2, 2, 1, 1], &[2]),
        (2, 4, [4, 1, 1, 2], &[2]),
        (2, 4, [4, 2, 1, 2], &[]),
        (2, 4, [4, 1, 2, 2], &[4]),
    ];

    /// Every world of these, with its hosts and the mesh of its ranks.
    pub(crate) fn worlds() -> Vec<(Hosts, Mesh)> {
        let replicated = MESHES.map(|(count, each, replicas)| {
            (hosts(count, each), Mesh::hybrid((count * each) as u32, replicas).unwrap())
        });
        let leveled = LEVELED.map(|(count, each, blocks)| {
            let mesh = Mesh::new((count * each) as u32).unwrap();
            (hosts(count, each), mesh.with_levels(Levels::new(blocks).unwrap()).unwrap())
        });
        let cut = TENSOR.map(|(count, each, replicas, tensor)| {
            (hosts(count, each), Mesh::of((count * each) as u32, replicas, tensor, None).unwrap())
        });
        let divided = DIVIDED.map(|(count, each, [replicas, tensor, ep, instances], blocks)| {
            let mesh = Mesh::of((count * each) as u32, replicas, tensor, None);
            let mesh = mesh.and_then(|mesh| mesh.with_experts(ep, None)).unwrap();
            let mesh = mesh.with_instances(instances).unwrap();
            (hosts(count, each), mesh.with_levels(Levels::new(blocks).unwrap()).unwrap())
        });
        replicated.into_iter().chain(leveled).chain(cut).chain(divided).collect()
    }

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

    use super::samples::{hosts, worlds};
    use super::*;
    use warpweft_base::id::LevelId;
    use warpweft_plan::model::Levels;

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
        assert!(mesh.groups().all(|group| team(Transport::Peer, group).connected().is_none()));
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
        for (hosts, mesh) in worlds() {
            let ways = [
                Network { transport: Transport::Peer, hosts },
                Network { transport: Transport::Nccl, hosts: Hosts::one(hosts.ranks()) },
            ];
            for network in ways {
                let mut opened = BTreeSet::new();
                for rank in mesh.iter() {
                    let team = |group| Team::of(network, mesh, rank, group);
                    let all: Vec<_> = mesh.groups().map(|group| team(group).connected()).collect();
                    let fresh = (0..all.len()).map(|at| all[at].is_some() && !all[..at].contains(&all[at]));
                    opened.insert(fresh.collect::<Vec<_>>());
                    for members in all.iter().flatten() {
                        assert!(members.iter().any(|member| member == rank), "{network:?}, {mesh}, {rank}");
                    }
                    for (group, members) in mesh.groups().zip(all) {
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
        for (hosts, mesh) in worlds() {
            let network = Network { transport: Transport::Peer, hosts };
            for (rank, group) in mesh.iter().flat_map(|rank| mesh.groups().map(move |group| (rank, group))) {
                let team = Team::of(network, mesh, rank, group);
                assert_eq!(team.in_world(team.own()), rank);
                assert_eq!(team.iter().collect::<Vec<_>>(), mesh.members(rank, group).collect::<Vec<_>>());
                assert_eq!(team.hosts().ranks(), mesh.size(group) as usize);
            }
        }
    }

    /// Of 8 ranks on two hosts in blocks of 2, of 4 and of all: a pair and a pair of pairs are on one host, and the two
    /// halves have one rank of each host. Blocks that hosts cut are one team, whose ranks NCCL alone connects.
    #[test]
    fn a_team_of_a_level_has_the_ranks_at_one_place_of_the_blocks_below() {
        let leveled = |blocks: &[u32], ranks| {
            Mesh::new(ranks).unwrap().with_levels(Levels::new(blocks).unwrap()).unwrap()
        };
        let ranks = |team: Team| team.iter().map(RankId::number).collect::<Vec<_>>();
        let mesh = leveled(&[2, 4], 8);
        let network = Network { transport: Transport::Peer, hosts: hosts(2, 4) };
        let team = |level| Team::of(network, mesh, RankId::new(5), Group::Level(LevelId::at(level)));
        assert_eq!([0, 1, 2].map(|level| ranks(team(level))), [vec![4, 5], vec![5, 7], vec![1, 5]]);
        assert_eq!([0, 1, 2].map(|level| team(level).hosts().count()), [1, 1, 2]);
        assert_eq!([0, 1].map(|level| team(level).connected()), [None, None]);
        let connected: Vec<_> = team(2).connected().unwrap().iter().collect();
        assert_eq!(connected, [1, 5].map(RankId::new));
        let network = Network { transport: Transport::Peer, hosts: hosts(4, 3) };
        let across = Team::of(network, leveled(&[4], 12), RankId::new(5), Group::Level(LevelId::at(0)));
        assert_eq!((ranks(across), across.transport()), (vec![4, 5, 6, 7], Transport::Nccl));
    }
}
