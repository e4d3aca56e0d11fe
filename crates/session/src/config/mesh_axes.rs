//! The axes of the mesh: how many ranks share what.
//!
//! Law: the axes multiply to the world. What the configuration leaves out follows from the number of ranks: with
//! `dp_shard` as many replicas as there is room for; without it and `dp_replicate` one replica that is sharded over all
//! ranks, or over more than 64 and where the model is known as many replicas as leave a rank so much room. A shard of
//! fewer rows than a format's tile is padded and every rank more is a message more, so gathers over thousands of ranks
//! move many times a weight. Names are those of
//! torchtitan's and `PyTorch`'s meshes. The levels of sums stand beside them, as they are part of the mesh.

use serde::{Deserialize, Serialize};
use warpweft_plan::model::{DeclareError, Levels, Mesh};

/// The mesh of ranks: replicas (HSDP), shards, context parallelism and tensor parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MeshAxes {
    /// How many replicas of the model there are, 1 to 65,536. Weights are sharded over the ranks of a replica, and
    /// gradients are summed over replicas too. It must divide the number of ranks, of which each replica has as
    /// many, one after the other. When absent, what `dp_shard` leaves; without that, 1, and on more than 64 ranks as
    /// many as leave 64 shards, or more where a rank's masters and optimizer state would not fit 4 GiB.
    pub dp_replicate: Option<u32>,
    /// Over how many ranks weights are sharded that have texts of their own and the same part of a layer, 1 to 65,536.
    /// When absent, what the other axes leave.
    pub dp_shard: Option<u32>,
    /// How many ranks share the tokens of a text, 1 to 65,536: context parallelism. Weights are sharded over these
    /// ranks too.
    pub cp: u32,
    /// How many ranks in a row compute the parts of one layer, 1 to 65,536: tensor parallelism. It must divide the
    /// ranks of a replica. Every weight of the model says what becomes of it
    /// ([`TensorParallel`](warpweft_plan::model::TensorParallel)).
    pub tp: u32,
    /// How many ranks in a row share the experts of a layer, 1 to 65,536: expert parallelism. Experts divide the same
    /// ranks by axes of their own, `ep_replicate · ep_shard · ep`, of which the first is what the others leave.
    pub ep: u32,
    /// Over how many ranks one expert is sharded, 1 to 65,536. `ep · ep_shard` divides the number of ranks. When
    /// absent, what `ep` leaves of a replica.
    pub ep_shard: Option<u32>,
    /// Number of optimizer instances, 1 to 65,536: blocks of replicas, each of which keeps all optimizer state
    /// once. More than 1 needs `optimizer.shard = "replicas"`. It must divide the number of replicas, and of copies
    /// of experts. State is cut in whole row tiles, so over fewer replicas less is padding. Part of the bits of a
    /// run where it is more than 1.
    pub optimizer_instances: u32,
    /// Numbers of ranks of the blocks in which gradients are summed, the smallest first: at most three, each a multiple
    /// of the one before. The ranks of a block are added first, then blocks. Empty for one sum over all ranks of a
    /// replica, and of the world; when absent, 8 where that cuts replicas evenly or into blocks of whole ones, which is
    /// one sum for up to 8 ranks. Part of the bits of a run, and the same in all processes.
    pub levels: Option<Levels>,
}

impl Default for MeshAxes {
    fn default() -> Self {
        let optimizer_instances = 1;
        let (dp_replicate, dp_shard, ep_shard, levels) = (None, None, None, None);
        Self { dp_replicate, dp_shard, cp: 1, tp: 1, ep: 1, ep_shard, optimizer_instances, levels }
    }
}

impl MeshAxes {
    /// The mesh of `ranks` ranks with these axes.
    ///
    /// # Errors
    /// [`DeclareError::Axes`] for axes that do not multiply to `ranks`; as [`Mesh::of`], [`Mesh::with_context`],
    /// [`Mesh::with_experts`], [`Mesh::with_instances`] and [`Mesh::with_levels`].
    pub(crate) fn of(&self, ranks: u32) -> Result<Mesh, DeclareError> {
        let Self { dp_replicate, dp_shard, cp, tp, ep, ep_shard, optimizer_instances, levels } = *self;
        let replicas = match dp_shard {
            None => dp_replicate.unwrap_or(1),
            Some(dp_shard) => {
                let of_replica = dp_shard.checked_mul(cp).and_then(|shards| shards.checked_mul(tp));
                let left =
                    of_replica.filter(|of| ranks.is_multiple_of(*of)).and_then(|of| ranks.checked_div(of));
                let fits = left.filter(|left| dp_replicate.is_none_or(|replicas| replicas == *left));
                fits.ok_or(DeclareError::Axes { ranks, dp_replicate, dp_shard, cp, tp })?
            }
        };
        // No ranks are in no replicas.
        let mesh =
            Mesh::of(ranks, replicas.max(1), tp, None)?.with_context(cp)?.with_experts(ep, ep_shard)?;
        let mesh = mesh.with_instances(optimizer_instances)?;
        levels.map_or(Ok(mesh), |levels| mesh.with_levels(levels))
    }
}

impl MeshAxes {
    /// Shards of a replica where nobody asks for more, and ranks and the other axes divide so.
    const USUAL_SHARDS: u32 = 64;
    /// The most bytes of a rank's masters, optimizer state and main grads with so few.
    const USUAL_STATE: u64 = 4 << 30;
    /// Those of an element: four lists of f32.
    const STATE_OF_ELEMENT: u64 = 16;

    /// How many replicas of a model of so many elements there are where nobody says, if not one.
    pub(super) fn usual_replicas(&self, ranks: u32, elements: u64) -> Option<u32> {
        let Self { dp_replicate: None, dp_shard: None, tp, .. } = *self else { return None };
        let most = ranks.checked_div(tp)?;
        let is_usual = |shards: &u32| {
            let is_even = most.checked_rem(*shards) == Some(0);
            let of_replica = shards.checked_mul(tp).filter(|_| is_even);
            let state = elements.saturating_mul(Self::STATE_OF_ELEMENT);
            let is_small =
                of_replica.is_some_and(|of_replica| state / u64::from(of_replica) <= Self::USUAL_STATE);
            is_small && Self { dp_replicate: Some(most / shards), ..*self }.of(ranks).is_ok()
        };
        let shards = (Self::USUAL_SHARDS..=most).find(is_usual)?;
        Some(most / shards).filter(|replicas| *replicas > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh(ranks: u32, axes: MeshAxes) -> Result<(u32, u32, u32, u32), String> {
        let mesh = axes.of(ranks).map_err(|error| error.to_string())?;
        Ok((mesh.replicas(), mesh.shards() / mesh.context(), mesh.context(), mesh.tensor()))
    }

    #[test]
    fn what_is_left_out_follows_from_the_number_of_ranks() {
        let none = MeshAxes::default();
        assert_eq!(mesh(16, none), Ok((1, 16, 1, 1)));
        assert_eq!(mesh(16, MeshAxes { dp_replicate: Some(2), ..none }), Ok((2, 8, 1, 1)));
        assert_eq!(mesh(16, MeshAxes { dp_shard: Some(2), ..none }), Ok((8, 2, 1, 1)));
        assert_eq!(mesh(16, MeshAxes { dp_shard: Some(2), tp: 4, ..none }), Ok((2, 2, 1, 4)));
        assert_eq!(mesh(16, MeshAxes { cp: 2, tp: 2, ..none }), Ok((1, 4, 2, 2)));
        let all = MeshAxes { dp_replicate: Some(2), dp_shard: Some(2), cp: 2, tp: 2, ..none };
        assert_eq!(mesh(16, all), Ok((2, 2, 2, 2)));
    }

    #[test]
    fn many_ranks_hold_replicas_of_64_shards_or_of_as_many_as_a_ranks_state_needs() {
        let none = MeshAxes::default();
        let small = |ranks, axes: MeshAxes| axes.usual_replicas(ranks, 1 << 33);
        assert_eq!([1, 8, 64, 100, 127].map(|ranks| small(ranks, none)), [None; 5]);
        assert_eq!([128, 144, 512, 4096].map(|ranks| small(ranks, none)), [2, 2, 8, 64].map(Some));
        // State of 2.8 TB: 5.5 GB a rank of 512 are too many.
        assert_eq!(none.usual_replicas(4096, 175_000_000_000), Some(4));
        assert_eq!(none.usual_replicas(256, 175_000_000_000), None);
        assert_eq!(small(4096, MeshAxes { tp: 8, ..none }), Some(8));
        assert_eq!(small(1024, MeshAxes { cp: 128, ..none }), Some(8));
        assert_eq!(small(192, none), Some(3));
        let of_96 = Levels::new(&[96]).unwrap();
        assert_eq!(
            small(192, MeshAxes { levels: Some(of_96), ..none }),
            Some(2),
            "which cut blocks of 96 evenly"
        );
        assert_eq!(small(4096, MeshAxes { dp_replicate: Some(1), ..none }), None);
        assert_eq!(small(4096, MeshAxes { dp_shard: Some(4096), ..none }), None);
        for odd in [MeshAxes { tp: 0, ..none }, MeshAxes { cp: 0, ..none }, MeshAxes { ep: 0, ..none }] {
            assert_eq!(small(4096, odd), None);
        }
        assert_eq!(none.usual_replicas(u32::MAX, u64::MAX), None);
    }

    #[test]
    fn experts_are_sharded_over_what_they_leave_of_a_replica_or_over_what_is_said() {
        let none = MeshAxes::default();
        let experts = |ranks, axes: MeshAxes| {
            let mesh = axes.of(ranks).map_err(|error| error.to_string())?;
            Ok::<_, String>((mesh.expert(), mesh.expert_shards()))
        };
        assert_eq!(experts(16, none), Ok((1, 16)));
        assert_eq!(experts(16, MeshAxes { ep: 4, ..none }), Ok((4, 4)));
        assert_eq!(experts(16, MeshAxes { dp_shard: Some(8), ep: 4, ..none }), Ok((4, 2)));
        let rails = MeshAxes { dp_shard: Some(64), ep: 64, ep_shard: Some(2), ..none };
        assert_eq!(experts(3072, rails), Ok((64, 2)));
        let unfit = experts(16, MeshAxes { dp_shard: Some(4), ep: 8, ..none }).unwrap_err();
        assert!(unfit.contains("set mesh.ep_shard to 1"), "{unfit}");
        let odd = experts(16, MeshAxes { ep: 3, ..none }).unwrap_err();
        assert!(odd.contains("set mesh.ep to 2"), "{odd}");
        let wide = experts(16, MeshAxes { ep: 4, ep_shard: Some(3), ..none }).unwrap_err();
        assert!(wide.contains("set mesh.ep_shard to 2"), "{wide}");
    }

    #[test]
    fn axes_that_do_not_multiply_to_the_ranks_are_refused_with_what_would() {
        let none = MeshAxes::default();
        let refused = |ranks, axes| mesh(ranks, axes).unwrap_err();
        let shards = refused(16, MeshAxes { dp_shard: Some(3), tp: 2, ..none });
        assert!(shards.contains("dp_shard 3 × cp 1 × tp 2") && shards.contains("16 ranks"), "{shards}");
        let both = refused(16, MeshAxes { dp_replicate: Some(4), dp_shard: Some(2), ..none });
        assert!(both.contains("dp_replicate 4 × dp_shard 2"), "{both}");
        assert!(refused(16, MeshAxes { cp: 3, ..none }).contains("mesh.cp"));
        assert!(refused(16, MeshAxes { dp_replicate: Some(3), ..none }).contains("mesh.dp_replicate"));
        assert!(
            refused(0, MeshAxes { dp_shard: Some(3), ..none }).contains("no ranks"),
            "a world of no ranks"
        );
        assert!(refused(1 << 17, MeshAxes { dp_shard: Some(64), ..none }).contains("is larger than"));
        for huge in [u32::MAX, 1 << 31] {
            assert!(refused(16, MeshAxes { dp_shard: Some(huge), cp: huge, ..none }).contains("16 ranks"));
        }
    }
}
