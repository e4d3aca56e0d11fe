//! The price of a collective.
//!
//! The model is α–β (Hockney, Parallel Computing 20, 1994): a message of `m` bytes takes `α + m/β`. With p
//! ranks, g of them per node, n nodes, S bytes gathered or reduced in all, and subscripts i and x for links
//! inside a node and between nodes, a gather or reduce-scatter takes
//!
//! | algorithm | time | source |
//! |---|---|---|
//! | ring | `(p−1)·α + (p−1)/p · S/β` | Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005, §4.1 |
//! | tree (recursive doubling, halving) | `⌈log₂ p⌉·α + (p−1)/p · S/β` | the same, §4.1 and §4.3 |
//! | hierarchical | `(n−1)·αx + (n−1)/n · (S/g)/βx + (g−1)·αi + (g−1)/g · S/βi` | a ring per rail between nodes, then one in each node |
//! | direct | `max(αi + (g−1)·μi + (g−1)/p · S/βi, αx + (p−g)·μx + (p−g)/p · S/βx)` | every rank pulls every peer's part at once, with μ for each message |
//! | best | the least of them | |
//!
//! A flat ring or tree that leaves a node pays αx for every step, and crosses the node's border over all of
//! its g links: `β = min(βi, g·βx)` for the ring (each GPU's link carries one of g rings), `βx` for the tree,
//! whose largest message crosses.
//!
//! In an exchange every rank has another part for each, S bytes in all, and nothing is added on the way. `direct` and
//! `best` take what `direct` takes above; with the others ranks go from one partner to the next (pairwise exchange, in
//! the same paper), which takes `(p−2)·α` longer. So between nodes an exchange takes up to g times as long as a
//! reduce-scatter that adds inside of each node first. An all-reduce is an exchange of slices and a gather of what
//! they add up to, or, where that saves little, a gather of all ranks' values. Sums are not charged: they run at the
//! speed of memory. One rank alone takes no time.

use serde::{Deserialize, Serialize};

use super::{Cluster, Link, Reach};
use crate::model::{Mesh, Strides};

/// How a collective is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// Parts travel once around.
    Ring,
    /// Partners at doubling distances.
    Tree,
    /// A ring between nodes, then one in each.
    Hierarchical,
    /// Every rank reads its peers' memory.
    Direct,
    /// Whichever takes least.
    Best,
}

/// Some ranks of a cluster that meet, and what carries their bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Links {
    ranks: f64,
    per_node: f64,
    nodes: f64,
    inside: Link,
    between: Link,
    algorithm: Algorithm,
}

impl Links {
    /// The links of a group of ranks of `mesh`, which fill node after node; `None` when they need more than
    /// one node of a cluster without links between nodes. Of several such groups it is the one spread over
    /// the most nodes, and of those the one with the fewest ranks on a node.
    #[must_use]
    pub fn new(cluster: &Cluster, mesh: Mesh, group: Strides) -> Option<Self> {
        let (per_node, nodes) = cluster.spread(mesh, group);
        let between = match cluster.between {
            Some(between) => between,
            None if nodes > 1 => return None,
            None => cluster.inside,
        };
        Some(Self {
            ranks: f64::from(group.count()),
            per_node: f64::from(per_node),
            nodes: f64::from(nodes),
            inside: cluster.inside,
            between,
            algorithm: cluster.algorithm,
        })
    }

    /// Which of them a collective takes.
    #[must_use]
    pub fn reach(&self) -> Reach {
        match (self.nodes > 1.0, self.per_node > 1.0) {
            (false, _) => Reach::Inside,
            (true, false) => Reach::Between,
            (true, true) => Reach::Both,
        }
    }

    /// Nanoseconds of a gather or reduce-scatter of `bytes` bytes, all ranks' parts together.
    #[must_use]
    pub fn gather_ns(&self, bytes: u64) -> f64 {
        self.gather_by(self.algorithm, bytes as f64)
    }

    /// Nanoseconds of an exchange in which every rank has parts of `bytes` bytes in all, one for each rank.
    #[must_use]
    pub fn exchange_ns(&self, bytes: u64) -> f64 {
        let one_by_one = match self.algorithm {
            Algorithm::Direct | Algorithm::Best => 0.0,
            Algorithm::Ring | Algorithm::Tree | Algorithm::Hierarchical => (self.ranks - 2.0).max(0.0),
        };
        self.pulls(bytes as f64) + one_by_one * self.latency_us() * 1e3
    }

    /// That of a step of the whole group.
    fn latency_us(&self) -> f64 {
        if self.nodes > 1.0 { self.between.latency_us } else { self.inside.latency_us }
    }

    fn gather_by(&self, algorithm: Algorithm, bytes: f64) -> f64 {
        let Self { ranks, per_node, nodes, inside, between, .. } = *self;
        if ranks <= 1.0 {
            return 0.0;
        }
        let leaves = nodes > 1.0;
        let latency = self.latency_us();
        let share = (ranks - 1.0) / ranks;
        match algorithm {
            Algorithm::Ring => {
                let border = if leaves { per_node * between.bytes_per_s } else { f64::INFINITY };
                time((ranks - 1.0) * latency, share * bytes, inside.bytes_per_s.min(border))
            }
            Algorithm::Tree => {
                let speed = if leaves { between.bytes_per_s } else { inside.bytes_per_s };
                time(ranks.log2().ceil() * latency, share * bytes, speed)
            }
            Algorithm::Hierarchical => {
                let rail = (nodes - 1.0) / nodes * bytes / per_node;
                let own = (per_node - 1.0) / per_node * bytes;
                time((nodes - 1.0) * between.latency_us, rail, between.bytes_per_s)
                    + time((per_node - 1.0) * inside.latency_us, own, inside.bytes_per_s)
            }
            Algorithm::Direct => self.pulls(bytes),
            Algorithm::Best => least(|one| self.gather_by(one, bytes)),
        }
    }

    /// Every rank reads its share of `bytes` from each peer, inside and between nodes at once.
    fn pulls(&self, bytes: f64) -> f64 {
        let Self { ranks, per_node, inside, between, .. } = *self;
        let from = |peers: f64, link: Link| match peers > 0.0 {
            true => {
                let messages = peers * link.message_us;
                time(link.latency_us + messages, peers / ranks * bytes, link.bytes_per_s)
            }
            false => 0.0,
        };
        from(per_node - 1.0, inside).max(from(ranks - per_node, between))
    }
}

/// Nanoseconds of `microseconds` and `bytes` at `bytes_per_s`.
fn time(microseconds: f64, bytes: f64, bytes_per_s: f64) -> f64 {
    microseconds * 1e3 + bytes / bytes_per_s * 1e9
}

fn least(time: impl Fn(Algorithm) -> f64) -> f64 {
    let all = [Algorithm::Ring, Algorithm::Tree, Algorithm::Hierarchical, Algorithm::Direct];
    all.into_iter().map(time).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Group;

    fn cluster(algorithm: &str) -> Cluster {
        let text = format!(
            "name = 'test'\ngpus_per_node = 4\nalgorithm = '{algorithm}'\n\
             [gpu]\nmemory_bytes = 1\nhbm_bytes_per_s = 1e12\nlaunch_us = 0\nreplay_us = 0\n\
             [gpu.flops_per_s]\nf32 = 1e12\nbf16 = 1e12\nfp8 = 1e12\nfp4 = 1e12\n\
             [inside]\nlatency_us = 1\nbytes_per_s = 1e9\n[between]\nlatency_us = 10\nbytes_per_s = 1e8\n"
        );
        toml::from_str(&text).unwrap()
    }

    fn links(algorithm: &str, ranks: u32) -> Links {
        among(algorithm, Mesh::new(ranks).unwrap(), Group::World)
    }

    fn among(algorithm: &str, mesh: Mesh, group: Group) -> Links {
        Links::new(&cluster(algorithm), mesh, mesh.strides(group)).unwrap()
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6 * expected.max(1.0), "{found} is not {expected}");
    }

    #[test]
    fn every_formula_gives_what_it_gives_by_hand() {
        // 4 ranks in a node, 8,000 bytes: 6,000 travel at 1 byte per nanosecond.
        close(links("ring", 4).gather_ns(8000), 3000.0 + 6000.0);
        close(links("tree", 4).gather_ns(8000), 2000.0 + 6000.0);
        close(links("hierarchical", 4).gather_ns(8000), 3000.0 + 6000.0);
        close(links("direct", 4).gather_ns(8000), 1000.0 + 6000.0);
        close(links("best", 4).gather_ns(8000), 7000.0);
        // 8 ranks on two nodes: a node's border carries 0.4 bytes per nanosecond.
        close(links("ring", 8).gather_ns(8000), 7.0 * 10_000.0 + 7000.0 / 0.4);
        close(links("tree", 8).gather_ns(8000), 3.0 * 10_000.0 + 7000.0 / 0.1);
        close(links("hierarchical", 8).gather_ns(8000), 10_000.0 + 1000.0 / 0.1 + 3000.0 + 6000.0);
        close(links("direct", 8).gather_ns(8000), 10_000.0 + 4000.0 / 0.1);
    }

    /// What goes between nodes goes undivided: of 8,000 bytes half, which a ring that adds on its way sends once for
    /// all four GPUs of a node.
    #[test]
    fn an_exchange_between_nodes_adds_nothing_on_the_way() {
        for (algorithm, steps_inside, steps_between) in
            [("ring", 3.0, 7.0), ("direct", 1.0, 1.0), ("best", 1.0, 1.0)]
        {
            let inside = steps_inside * 1000.0 + 6000.0;
            close(links(algorithm, 4).exchange_ns(8000), inside);
            close(links(algorithm, 8).exchange_ns(8000), steps_between * 10_000.0 + 4000.0 / 0.1);
        }
        assert!(links("ring", 8).exchange_ns(1 << 30) > 2.0 * links("ring", 8).gather_ns(1 << 30));
    }

    #[test]
    fn a_replica_stays_inside_of_a_node_and_its_copies_meet_between_nodes() {
        // 4 GPUs a node: four replicas of four ranks, one on each node.
        let mesh = Mesh::hybrid(16, 4).unwrap();
        let of = |group| among("ring", mesh, group);
        close(of(Group::Shard).gather_ns(8000), 3000.0 + 6000.0);
        // One rank of each node: every GPU has the links between nodes for its own ring.
        close(of(Group::Replicate).gather_ns(8000), 3.0 * 10_000.0 + 6000.0 / 0.1);
        // Two replicas of two ranks on each node: two ranks of a group share a node.
        let pairs = among("ring", Mesh::hybrid(8, 4).unwrap(), Group::Replicate);
        close(pairs.gather_ns(8000), 3.0 * 10_000.0 + 6000.0 / 0.2);
        // Replicas of 3 ranks do not fill nodes of 4, and a node's border cuts one of them.
        let cut = among("ring", Mesh::hybrid(6, 2).unwrap(), Group::Shard);
        close(cut.gather_ns(9000), 2.0 * 10_000.0 + 6000.0 / 0.2);
    }

    /// A partner on another node costs a message, however little it gives; a step of a ring costs its latency.
    #[test]
    fn messages_to_partners_on_other_nodes_are_charged_one_by_one() {
        let charged = |algorithm: &str, ranks| {
            let mut cluster = cluster(algorithm);
            cluster.between.as_mut().unwrap().message_us = 2.0;
            let mesh = Mesh::new(ranks).unwrap();
            Links::new(&cluster, mesh, mesh.strides(Group::World)).unwrap()
        };
        close(charged("direct", 4).exchange_ns(8000), links("direct", 4).exchange_ns(8000));
        close(charged("direct", 8).exchange_ns(8000), 10_000.0 + 4.0 * 2000.0 + 4000.0 / 0.1);
        close(charged("direct", 64).exchange_ns(6400), 10_000.0 + 60.0 * 2000.0 + 6000.0 / 0.1);
        close(charged("ring", 64).gather_ns(6400), links("ring", 64).gather_ns(6400));
    }

    #[test]
    fn one_rank_alone_waits_for_nobody() {
        for algorithm in ["ring", "tree", "hierarchical", "direct", "best"] {
            assert_eq!(links(algorithm, 1).gather_ns(1 << 30), 0.0, "{algorithm}");
            assert_eq!(links(algorithm, 1).exchange_ns(1 << 30), 0.0, "{algorithm}");
        }
    }
}
