//! The meshes that are worth planning.
//!
//! Law: axes that were given stay as they are; of all others every number comes up that multiplies to the ranks, but
//! what cannot win. Ranks that compute parts of a layer are on one node; those with other experts are on one, or fill
//! several. And no more ranks share a text than it takes to hold it: each has the same tokens anyway, and attention
//! would exchange more.

use warpweft_session::config::MeshAxes;

/// The axes that were given; the others are to be found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Given {
    pub(super) dp_replicate: Option<u32>,
    pub(super) dp_shard: Option<u32>,
    pub(super) cp: Option<u32>,
    pub(super) tp: Option<u32>,
    pub(super) ep: Option<u32>,
    pub(super) ep_shard: Option<u32>,
    pub(super) optimizer_instances: Option<u32>,
}

/// What every mesh is made for.
#[derive(Clone, Copy, Debug)]
pub(super) struct World {
    pub(super) ranks: u32,
    /// Ranks of one node.
    pub(super) of_node: u32,
    /// The fewest ranks that hold a text together.
    pub(super) of_text: u32,
    /// Experts of a layer that may be on ranks of their own; 1 without any.
    pub(super) experts: u32,
}

/// Every mesh, smallest `tp` and then most shards first.
pub(super) fn meshes(world: World, given: Given) -> Vec<MeshAxes> {
    let World { ranks, of_node, of_text, experts } = world;
    let mut meshes = Vec::new();
    for tp in
        chosen(ranks, given.tp).into_iter().filter(|tp| of_node.is_multiple_of(*tp) || given.tp.is_some())
    {
        let of_context = chosen(ranks / tp, given.cp);
        let holding =
            of_context.into_iter().find(|cp| cp.saturating_mul(tp) >= of_text || given.cp.is_some());
        let Some(cp) = holding else { continue };
        let others = ranks / tp / cp;
        for dp_shard in chosen(others, given.dp_shard).into_iter().rev() {
            let replicas = others / dp_shard;
            let optimizer_instances = given.optimizer_instances.unwrap_or(1);
            let is_even = replicas.is_multiple_of(optimizer_instances);
            if !is_even || given.dp_replicate.is_some_and(|given| given != replicas) {
                continue;
            }
            let (dp_replicate, of_replica) = (Some(replicas), ranks / replicas);
            let spread = |ep: &u32| {
                let is_even = of_node.is_multiple_of(*ep) || ep.is_multiple_of(of_node);
                of_replica.is_multiple_of(*ep) && is_even || given.ep.is_some()
            };
            for ep in chosen(experts, given.ep).into_iter().filter(spread) {
                let (dp_shard, ep_shard) = (Some(dp_shard), given.ep_shard);
                let others = MeshAxes { optimizer_instances, ..MeshAxes::default() };
                meshes.push(MeshAxes { dp_replicate, dp_shard, cp, tp, ep, ep_shard, ..others });
            }
        }
    }
    meshes
}

/// The divisors of a number, smallest first; of them the one that was given, if one was.
fn chosen(of: u32, given: Option<u32>) -> Vec<u32> {
    let wanted = |divisor: &u32| of.is_multiple_of(*divisor) && given.is_none_or(|given| given == *divisor);
    (1..=of).filter(wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(world: World, given: Given) -> Vec<(u32, u32, u32, u32)> {
        let numbers =
            |axes: MeshAxes| (axes.dp_replicate.unwrap_or(0), axes.dp_shard.unwrap_or(0), axes.cp, axes.tp);
        meshes(world, given).into_iter().map(numbers).collect()
    }

    const WORLD: World = World { ranks: 16, of_node: 4, of_text: 1, experts: 1 };

    #[test]
    fn every_mesh_has_all_ranks_and_every_divisor_comes_up() {
        let all = of(WORLD, Given::default());
        assert_eq!(all.len(), 5 + 4 + 3, "16 = shards x replicas for tp 1, 8 for tp 2, 4 for tp 4: {all:?}");
        assert!(all.iter().all(|(replicas, shards, cp, tp)| replicas * shards * cp * tp == 16));
        assert_eq!(all.first(), Some(&(1, 16, 1, 1)));
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn axes_that_were_given_stay() {
        let tp = of(WORLD, Given { tp: Some(8), ..Given::default() });
        assert_eq!(tp, [(1, 2, 1, 8), (2, 1, 1, 8)], "also beyond a node, since it was given");
        let all =
            Given { tp: Some(2), cp: Some(2), dp_shard: Some(2), dp_replicate: Some(2), ..Given::default() };
        assert_eq!(of(WORLD, all), [(2, 2, 2, 2)]);
        assert_eq!(of(WORLD, Given { dp_shard: Some(3), ..Given::default() }), []);
        let instances = Given { optimizer_instances: Some(4), tp: Some(1), ..Given::default() };
        assert_eq!(of(WORLD, instances), [(4, 4, 1, 1), (8, 2, 1, 1), (16, 1, 1, 1)]);
        assert_eq!(
            of(WORLD, Given { dp_replicate: Some(4), tp: Some(1), ..Given::default() }),
            [(4, 4, 1, 1)]
        );
    }

    #[test]
    fn experts_are_on_as_many_ranks_as_divide_them_and_a_replica_and_lie_evenly_on_nodes() {
        let one = Given { tp: Some(1), dp_shard: Some(2), ..Given::default() };
        let of = |experts, given| -> Vec<u32> {
            meshes(World { experts, ..WORLD }, given).into_iter().map(|axes| axes.ep).collect()
        };
        assert_eq!((of(6, one), of(1, one)), (vec![1, 2], vec![1]));
        let sixteen = Given { dp_shard: Some(16), ..one };
        assert_eq!(of(48, sixteen), [1, 2, 4, 8, 16], "over two nodes and four too");
        assert_eq!(of(3, Given { ep: Some(3), ..sixteen }), [3], "since it was given");
    }

    #[test]
    fn as_many_ranks_share_a_text_as_it_takes_to_hold_it() {
        let long = of(World { of_text: 8, ..WORLD }, Given::default());
        assert!(long.iter().all(|(_, _, cp, tp)| cp * tp == 8), "{long:?}");
        assert_eq!(long.len(), 6);
        assert_eq!(of(World { of_text: 32, ..WORLD }, Given::default()), []);
    }
}
