//! Placement of ranks on devices, and the transport between them: decided alike in every process.
//!
//! Laws:
//! - Every rank reports its host, its GPU and what its process was requested; the decision is a function of
//!   all these reports.
//! - Peers' memory is written only within a host; what goes from host to host goes by NCCL.
//! - Peers inside and NCCL between needs hosts with the same number of ranks each, one after the other, and
//!   more than one for it to be of use. Replicas, experts, and the ranks at one place of them, must be spread over them
//!   just as evenly. Other worlds of several hosts use NCCL for everything.

use super::hosts::Hosts;
use crate::device::libraries::Library;
use crate::failure::CudaFailure;
use crate::options::{CudaOptions, Transport};
use warpweft_backend::rendezvous::{HostName, Reader, Truncated, Writer};
use warpweft_base::id::RankId;
use warpweft_plan::model::{Group, Levels, Mesh};
use warpweft_plan::policy::Reduce;

/// What one rank reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Statement {
    pub(crate) host: HostName,
    /// The driver's name of the GPU, the same in every process.
    pub(crate) gpu: [u8; 16],
    pub(crate) has_nccl: bool,
    /// Whether its GPU can reach every other of the world, where one process has all, or else every other that its
    /// process sees.
    pub(crate) reaches: bool,
    pub(crate) wish: Wish,
}

/// What a process was asked for: transport, how gradients are summed, how many replicas, ranks of a text,
/// tensor-parallel ranks, ranks of experts and optimizer instances there are, and in which levels. The levels are those
/// of the mesh, whether the options name them or it has them by itself.
type Wish = (Option<Transport>, Reduce, [u32; 6], [u32; Levels::MOST]);

fn wish(transport: Option<Transport>, reduce: Reduce, mesh: Mesh) -> Wish {
    let mut levels = [0; Levels::MOST];
    levels.iter_mut().zip(mesh.levels().blocks()).for_each(|(level, block)| *level = *block);
    let [ep, ep_shard] = [mesh.expert(), mesh.expert_shards()];
    let axes = [mesh.replicas(), mesh.context(), mesh.tensor(), ep, ep_shard, mesh.instances()];
    (transport, reduce, axes, levels)
}

impl Statement {
    pub(crate) fn new(
        options: &CudaOptions,
        mesh: Mesh,
        host: HostName,
        gpu: [u8; 16],
        reaches: bool,
    ) -> Self {
        let has_nccl = Library::Nccl.open().is_ok();
        Self { host, gpu, has_nccl, reaches, wish: wish(options.transport, options.reduce, mesh) }
    }

    /// Whether both are on one GPU.
    pub(crate) fn shares_gpu_with(&self, other: &Self) -> bool {
        self.gpu == other.gpu && self.host == other.host
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let transport = match self.wish.0 {
            None => 0,
            Some(Transport::Peer) => 1,
            Some(Transport::Nccl) => 2,
        };
        let mut writer = Writer::default();
        writer.raw(&self.gpu).byte(u8::from(self.has_nccl)).byte(u8::from(self.reaches)).byte(transport);
        writer.byte(u8::from(self.wish.1 == Reduce::Nccl));
        for level in self.wish.2.into_iter().chain(self.wish.3) {
            writer.number(level);
        }
        writer.raw(self.host.as_str().as_bytes()).take()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        let gpu = reader.fixed()?;
        let (has_nccl, reaches) = (reader.byte()? != 0, reader.byte()? != 0);
        let transport = match reader.byte()? {
            0 => None,
            1 => Some(Transport::Peer),
            2 => Some(Transport::Nccl),
            _ => return Err(Truncated),
        };
        let reduce = if reader.byte()? == 0 { Reduce::Ordered } else { Reduce::Nccl };
        let mut axes = [0; 6];
        for axis in &mut axes {
            *axis = reader.number()?;
        }
        let mut levels = [0; Levels::MOST];
        for level in &mut levels {
            *level = reader.number()?;
        }
        let host = HostName::new(std::str::from_utf8(reader.rest()).map_err(|_| Truncated)?);
        Ok(Self { host, gpu, has_nccl, reaches, wish: (transport, reduce, axes, levels) })
    }
}

/// How many ranks are on the host of `rank`, including itself, in whatever processes.
pub(crate) fn ranks_beside(statements: &[Statement], rank: RankId) -> usize {
    let own = statements.get(rank.index()).map(|statement| &statement.host);
    statements.iter().filter(|statement| Some(&statement.host) == own).count()
}

/// How bytes get from rank to rank in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) transport: Transport,
    /// The hosts between which NCCL carries what peers cannot. With [`Transport::Nccl`] hosts do not matter,
    /// and it is one.
    pub(crate) hosts: Hosts,
}

/// The network for a world of these statements, which belong to `mesh`. `reach` makes the GPUs of this
/// process reach each other.
pub(crate) fn network(
    statements: &[Statement],
    mesh: Mesh,
    reach: impl FnOnce() -> Result<(), CudaFailure>,
) -> Result<Network, CudaFailure> {
    let Some(first) = statements.first() else { return refused("a world needs a rank") };
    if statements.iter().any(|statement| statement.wish != first.wish) {
        return refused(
            "processes were configured with different transport, reduce, mesh.dp_replicate, mesh.cp, mesh.tp, mesh.ep, mesh.ep_shard, mesh.optimizer_instances or mesh.levels; give all the same",
        );
    }
    let alone = statements.iter().enumerate().all(|(position, statement)| {
        !statements[..position].iter().any(|other| other.shares_gpu_with(statement))
    });
    let one_host = statements.iter().all(|statement| statement.host == first.host);
    let hosts = Hosts::of(&statements.iter().map(|statement| &statement.host).collect::<Vec<_>>());
    let everywhere = statements.iter().all(|statement| statement.has_nccl);
    let reaching = statements.iter().all(|statement| statement.reaches);
    let installed = || {
        if everywhere {
            return Ok(());
        }
        Library::Nccl.open()?;
        refused("NCCL is not installed on every host; install it everywhere")
    };
    let all = Hosts::one(statements.len());
    let nccl = || installed().map(|()| Network { transport: Transport::Nccl, hosts: all });
    let peers = |hosts: Hosts| reach().map(|()| Network { transport: Transport::Peer, hosts });
    let even = |hosts: &Hosts| {
        let dense = [Group::Shard, Group::Replicate, Group::Replica, Group::Context, Group::Tensor];
        let experts = [Group::Expert, Group::ExpertShard, Group::ExpertReplica, Group::ExpertRows];
        // Levels and optimizer instances that lie unevenly go by NCCL alone.
        let groups = dense.into_iter().chain(experts);
        groups.map(|group| mesh.strides(group)).all(|group| hosts.of_group(group).is_some())
    };
    match (first.wish.0, first.wish.1) {
        (None | Some(Transport::Peer), Reduce::Ordered) if !one_host && !alone => {
            refused("over several hosts each rank needs a GPU of its own; name each GPU once")
        }
        (Some(Transport::Nccl), _) | (None, Reduce::Nccl) if !alone => refused(
            "NCCL needs a GPU of its own for each rank; name each GPU once, or set transport = \"peer\"",
        ),
        (Some(Transport::Nccl), _) => nccl(),
        (Some(Transport::Peer), Reduce::Nccl) => {
            refused("reduce = \"nccl\" and transport = \"peer\" exclude each other; set reduce = \"ordered\"")
        }
        (None, Reduce::Nccl) => nccl(),
        (Some(Transport::Peer), _) if !one_host => match hosts {
            Some(hosts) if !even(&hosts) => refused(
                "transport = \"peer\" over several hosts needs replicas of whole hosts, or hosts of whole replicas, and the same of tensor-, context- and expert-parallel groups and of what experts are sharded over; set mesh.dp_replicate, mesh.cp, mesh.tp, mesh.ep and mesh.ep_shard so, or transport = \"auto\" or \"nccl\"",
            ),
            Some(hosts) => installed().and_then(|()| peers(hosts)),
            None => refused(
                "transport = \"peer\" needs equally many ranks on each host, numbered host by host; start the processes so, or set transport = \"auto\" or \"nccl\" (hosts are distinguished by name and boot, or by WARPWEFT_HOSTID or NCCL_HOSTID)",
            ),
        },
        (None, _) if !one_host => match hosts.filter(|hosts| hosts.each() > 1 && even(hosts)) {
            Some(hosts) if everywhere && reaching => peers(hosts),
            _ => nccl(),
        },
        (None, _) if alone && everywhere && !reaching => nccl(),
        (Some(Transport::Peer) | None, _) => peers(all),
    }
}

fn refused<T>(words: &str) -> Result<T, CudaFailure> {
    Err(CudaFailure::Refused(words.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(host: &str, gpu: u8, transport: Option<Transport>) -> Statement {
        Statement {
            host: HostName::new(host),
            gpu: [gpu; 16],
            has_nccl: false,
            reaches: true,
            wish: (transport, Reduce::Ordered, [1; 6], [0; Levels::MOST]),
        }
    }

    #[test]
    fn a_statement_is_read_as_it_was_told() {
        for transport in [None, Some(Transport::Peer), Some(Transport::Nccl)] {
            let statement = Statement { has_nccl: true, ..statement("node 7", 3, transport) };
            assert_eq!(Statement::decode(&statement.encode()), Ok(statement));
        }
        assert!(Statement::decode(&[0; 23]).is_err());
    }

    /// For a mesh of one replica.
    fn network_of(
        statements: &[Statement],
        reach: impl FnOnce() -> Result<(), CudaFailure>,
    ) -> Result<Network, CudaFailure> {
        network(statements, Mesh::new(statements.len().max(1) as u32).unwrap(), reach)
    }

    #[test]
    fn replicas_that_lie_unevenly_on_hosts_go_by_nccl_or_are_refused() {
        let replicated = |names: &str, replicas, transport| {
            let mesh = Mesh::hybrid(names.len() as u32, replicas).unwrap();
            network(&statements(names, transport), mesh, || Ok(()))
        };
        for (names, replicas) in [("aabb", 2), ("aabb", 4), ("aaaabbbb", 2), ("aabbccdd", 2)] {
            let network = replicated(names, replicas, None).unwrap();
            assert_eq!(network.transport, Transport::Peer, "{names}, {replicas} replicas");
        }
        // Three ranks per replica, on hosts of two.
        assert_eq!(replicated("aabbcc", 2, None).unwrap().transport, Transport::Nccl);
        let refusal = replicated("aabbcc", 2, Some(Transport::Peer)).unwrap_err().to_string();
        assert!(refusal.contains("replicas of whole hosts"), "{refusal}");
    }

    #[test]
    fn processes_that_want_different_replicas_are_refused() {
        let mut all = statements("aa", None);
        all[1].wish.2 = [2, 1, 1, 1, 1, 1];
        assert!(network_of(&all, || Ok(())).unwrap_err().to_string().contains("mesh.dp_replicate"));
        all[1].wish.2 = [1, 1, 2, 1, 1, 1];
        assert!(network_of(&all, || Ok(())).unwrap_err().to_string().contains("mesh.tp"));
        let mut all = statements("aa", None);
        all[1].wish.3[0] = 2;
        assert!(network_of(&all, || Ok(())).unwrap_err().to_string().contains("mesh.levels"));
    }

    #[test]
    fn processes_agree_whether_the_levels_of_their_mesh_are_named_or_its_own() {
        let wish_of = |ranks, levels: Option<&[u32]>| {
            let levels = levels.map(|blocks| Levels::new(blocks).unwrap());
            wish(None, Reduce::Ordered, Mesh::of(ranks, 1, 1, levels).unwrap())
        };
        assert_eq!(wish_of(16, None), wish_of(16, Some(&[8])));
        assert_eq!(wish_of(8, None), wish_of(8, Some(&[])), "8 ranks have no levels");
        assert_ne!(wish_of(16, None), wish_of(16, Some(&[])));
        assert_ne!(wish_of(16, None), wish_of(16, Some(&[4, 8])));
    }

    const fn peers(hosts: Hosts) -> Result<Network, CudaFailure> {
        Ok(Network { transport: Transport::Peer, hosts })
    }

    #[test]
    fn peers_are_reached_inside_of_a_host_alone() {
        let reached = || Ok(());
        let two =
            |other| [statement("a", 0, Some(Transport::Peer)), statement(other, 0, Some(Transport::Peer))];
        assert_eq!(network_of(&two("a"), reached), peers(Hosts::one(2)), "ranks may share a GPU");
        let error = network_of(&[statement("a", 0, None), statement("a", 1, Some(Transport::Peer))], reached)
            .unwrap_err();
        assert!(error.to_string().contains("different transport"), "{error}");
        let shared = [statement("a", 0, Some(Transport::Nccl)), statement("a", 0, Some(Transport::Nccl))];
        assert!(network_of(&shared, reached).unwrap_err().to_string().contains("GPU of its own"));
        assert!(network_of(&[], reached).is_err());
    }

    /// Statements on the hosts that the letters name, each with a GPU of its own.
    fn statements(hosts: &str, transport: Option<Transport>) -> Vec<Statement> {
        let each = |(gpu, host): (usize, char)| {
            let gpu = u8::try_from(gpu).unwrap();
            Statement { has_nccl: true, ..statement(&host.to_string(), gpu, transport) }
        };
        hosts.chars().enumerate().map(each).collect()
    }

    #[test]
    fn the_ranks_of_a_host_are_counted_over_all_its_processes() {
        let beside = |names: &str| -> Vec<usize> {
            let statements = statements(names, None);
            (0..statements.len()).map(|rank| ranks_beside(&statements, RankId::at(rank))).collect()
        };
        assert_eq!(beside("aaaaaaaa"), [8; 8]);
        assert_eq!(beside("aab"), [2, 2, 1], "hosts of unequal size");
        assert_eq!(beside("aba"), [2, 1, 2], "not one after the other");
    }

    #[test]
    fn equal_hosts_of_several_ranks_have_peers_inside_and_nccl_between() {
        let reached = || Ok(());
        let all = |ranks| Ok(Network { transport: Transport::Nccl, hosts: Hosts::one(ranks) });
        for (names, each) in [("aabb", 2), ("aaabbb", 3), ("aabbcc", 2)] {
            let hosts = Hosts::of(
                &statements(names, None).iter().map(|statement| &statement.host).collect::<Vec<_>>(),
            );
            let hosts = hosts.unwrap();
            assert_eq!(hosts.each(), each);
            for transport in [None, Some(Transport::Peer)] {
                assert_eq!(network_of(&statements(names, transport), reached), peers(hosts), "{names}");
            }
            assert_eq!(network_of(&statements(names, Some(Transport::Nccl)), reached), all(names.len()));
        }
        for names in ["ab", "aab", "abab"] {
            assert_eq!(network_of(&statements(names, None), reached), all(names.len()), "{names}");
        }
        let mut apart = statements("aabb", None);
        apart[3].reaches = false;
        assert_eq!(network_of(&apart, reached), all(4), "one GPU that does not reach its neighbour");
        let uneven = network_of(&statements("aab", Some(Transport::Peer)), reached).unwrap_err().to_string();
        assert!(uneven.contains("equally many") && uneven.contains("NCCL_HOSTID"), "{uneven}");
        let mut shared = statements("aabb", None);
        shared[1].gpu = shared[0].gpu;
        assert!(network_of(&shared, reached).unwrap_err().to_string().contains("GPU of its own"));
    }

    #[test]
    fn the_library_s_own_sums_go_by_the_library_alone() {
        let mut all = statements("aabb", None);
        all.iter_mut().for_each(|statement| statement.wish.1 = Reduce::Nccl);
        assert_eq!(network_of(&all, || Ok(())).unwrap().transport, Transport::Nccl);
    }

    #[test]
    fn without_nccl_everywhere_one_host_takes_peers_and_several_are_refused() {
        let reached = || Ok(());
        let auto =
            |other| [statement("a", 0, None), Statement { has_nccl: true, ..statement(other, 1, None) }];
        assert_eq!(network_of(&auto("a"), reached), peers(Hosts::one(2)));
        assert!(network_of(&auto("b"), reached).is_err());
        let mut partly = statements("aabb", Some(Transport::Peer));
        partly[2].has_nccl = false;
        assert!(network_of(&partly, reached).is_err());
        let unreachable = || Err(CudaFailure::Refused("GPU 0 cannot reach GPU 1".to_owned()));
        assert!(network_of(&auto("a"), unreachable).unwrap_err().to_string().contains("GPU 1"));
        let apart = |gpu| Statement { reaches: false, ..statement("a", gpu, None) };
        assert!(network_of(&[apart(0), apart(1)], unreachable).unwrap_err().to_string().contains("GPU 1"));
    }
}
