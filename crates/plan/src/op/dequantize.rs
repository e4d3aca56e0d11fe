//! The op that dequantizes planes, for calls that use dense values.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::GatherPart;
use super::operation::{Moves, Named, Operation, Part, Sizes, sum};
use crate::model::Access;
use warpweft_base::id::{SlotId, WeightId};
use warpweft_format::{ElementType, Orientation};

/// Dequantizes planes to f32 or to bf16, of one weight or of several that one gather brought: whole
/// planes, or what arrived of them together with the rank's own shard, if no other reader needs them
/// whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Dequantize {
    /// What is dequantized; at least one.
    pub parts: Vec<DequantizePart>,
}

/// One weight whose planes become values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct DequantizePart {
    /// The weight.
    pub weight: WeightId,
    /// Orientation of planes and values.
    pub orientation: Orientation,
    /// Element type of the values, [`ElementType::F32`] or [`ElementType::Bf16`].
    pub values: ElementType,
    /// Gathered planes, whole or as they arrived (see `own`), or transposed ones.
    pub from: SlotId,
    /// The rank's own shard, rowwise. If it is present, `from` holds what a gather brought, not assembled:
    /// the rank's own rows are read from here, those of the other ranks from there, and scale rows that
    /// travel once are stored once.
    pub own: Option<SlotId>,
    /// Tensor scales of the weight's bucket; absent for formats without.
    pub tensor_scale: Option<SlotId>,
    /// The values.
    pub to: SlotId,
}

impl Operation for Dequantize {
    fn name(&self) -> &'static str {
        "dequantize"
    }

    fn part(&self) -> Part {
        Part::Planes
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        // Weights of one bucket read the same tensor scales, and values of two types the same planes.
        let (mut all, mut read) = (Vec::with_capacity(4 * self.parts.len()), HashSet::new());
        for part in &self.parts {
            let reads = [Some(part.from), part.own, part.tensor_scale].into_iter().flatten();
            all.extend(reads.filter(|slot| read.insert(*slot)).map(|slot| (slot, Access::Read)));
            all.push((part.to, Access::Write));
        }
        all
    }

    fn named(&self) -> Vec<Named> {
        Named::some(self.parts.iter().map(|part| part.weight))
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        // Of what arrived and of the rank's own shard together, the rows of all shards are read, as they travel.
        let owns: HashSet<SlotId> = self.parts.iter().filter_map(|part| part.own).collect();
        let of_others = self.parts.iter().filter(|part| part.own.is_some());
        let beside: HashMap<SlotId, &DequantizePart> = of_others.map(|part| (part.from, part)).collect();
        let touched = self.accesses().into_iter().map(|(slot, _)| {
            let all = sizes.slot(slot)?;
            Some(match beside.get(&slot) {
                Some(part) => {
                    let (weight, orientation, from, to) = (part.weight, part.orientation, part.to, part.from);
                    let gathered = GatherPart { weight, orientation, from, to };
                    sizes.given(&gathered)?.saturating_mul(sizes.gathered(&gathered)?.0)
                }
                None if owns.contains(&slot) => 0,
                None => all,
            })
        });
        sum(touched).map(Moves::memory)
    }
}
