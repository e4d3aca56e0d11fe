//! What every op touches.
//!
//! Law: [`Op::accesses`] names every slot an op touches once, with the strongest access to it, and is the
//! only place that says so. Its `match` has no wildcard: a new op does not compile until it is stated here
//! what it touches.

use std::collections::{HashMap, HashSet};

use super::operands::SumTarget;
use super::vocabulary::Op;
use crate::model::Access;
use warpweft_base::id::SlotId;

impl Op {
    /// Every slot the op touches, with what it does to it. No slot appears twice.
    #[must_use]
    pub fn accesses(&self) -> Vec<(SlotId, Access)> {
        use Access::{Read, Update, Write};
        let vote = |slot: &Option<SlotId>| slot.map(|slot| (slot, Read));
        match self {
            Self::Copy { from, to }
            | Self::ExchangeBuffer { from, to, .. }
            | Self::ExchangeRows { from, to, .. }
            | Self::RoundGradient { from, to, .. }
            | Self::GatherRecords { from, to } => {
                vec![(*from, Read), (*to, Write)]
            }
            Self::Transpose { parts } => {
                parts.iter().flat_map(|part| [(part.from, Read), (part.to, Write)]).collect()
            }
            Self::AllGather { parts } => {
                parts.iter().flat_map(|part| [(part.from, Read), (part.to, Write)]).collect()
            }
            // A chunk after others needs what they brought.
            Self::GatherChunk { part, chunk } => {
                vec![(part.from, Read), (part.to, if chunk.begin == 0 { Write } else { Update })]
            }
            Self::Assemble { parts } => {
                parts.iter().flat_map(|part| [(part.from, Read), (part.to, Update)]).collect()
            }
            Self::ReduceScatter { parts, .. } | Self::ExchangeGradient { parts, .. } => {
                parts.iter().flat_map(|part| [(part.from, Read), (part.to, Write)]).collect()
            }
            Self::SumGradient { parts, .. } => {
                let mut all = Vec::with_capacity(3 * parts.len());
                for part in parts {
                    all.push((part.own, Read));
                    all.extend(part.landed.map(|slot| (slot, Read)));
                    all.push((part.into, if part.target == SumTarget::More { Update } else { Write }));
                }
                all
            }
            Self::ClearFault { fault } => vec![(*fault, Write)],
            Self::ZeroPadding { gradient, .. } => vec![(*gradient, Update)],
            Self::Compute { fault, operands, .. } => {
                let operands = operands.iter().map(|operand| (operand.slot, operand.access));
                merged(std::iter::once((*fault, Update)).chain(operands))
            }
            Self::PartialAmax { masters, block_amax, tensor_amax, vote: skip, .. } => {
                let mut all: Vec<_> = masters.iter().map(|slot| (*slot, Read)).collect();
                all.extend([(*block_amax, Write), (*tensor_amax, Write)]);
                all.extend(vote(skip));
                all
            }
            Self::AllReduce { pairs, .. } => {
                pairs.iter().flat_map(|(from, to)| [(*from, Read), (*to, Write)]).collect()
            }
            Self::FusedScale {
                block_amax, tensor_amax, encode, tensor_scale, shards, vote: skip, ..
            } => {
                let mut all =
                    vec![(*block_amax, Read), (*tensor_amax, Read), (*encode, Write), (*tensor_scale, Write)];
                all.extend(shards.iter().map(|shard| (shard.slot, Update)));
                all.extend(vote(skip));
                all
            }
            Self::DelayedScale { history, scale, tensor_scale, vote: skip, .. } => {
                let mut all =
                    vec![(*scale, if history.is_some() { Update } else { Read }), (*tensor_scale, Write)];
                all.extend(history.map(|slot| (slot, Read)));
                all.extend(vote(skip));
                all
            }
            Self::RecordAmax { tensor_amax, history, vote: skip, .. } => {
                let mut all = vec![(*tensor_amax, Read), (*history, Update)];
                all.extend(vote(skip));
                all
            }
            Self::PartialCast { masters, encode, shards, vote: skip, .. } => {
                let mut all: Vec<_> = masters.iter().map(|slot| (*slot, Read)).collect();
                all.extend(encode.map(|slot| (slot, Read)));
                all.extend(shards.iter().map(|shard| (shard.slot, Update)));
                all.extend(vote(skip));
                all
            }
            // Weights of one bucket read the same tensor scales, and values of two types the same planes.
            Self::Dequantize { parts } => {
                let (mut all, mut read) = (Vec::with_capacity(4 * parts.len()), HashSet::new());
                for part in parts {
                    let reads = [Some(part.from), part.own, part.tensor_scale].into_iter().flatten();
                    all.extend(reads.filter(|slot| read.insert(*slot)).map(|slot| (slot, Read)));
                    all.push((part.to, Write));
                }
                all
            }
            Self::AddGradient { from, into, .. } => vec![(*from, Read), (*into, Update)],
            Self::Accumulate { from, into, first, .. } => {
                vec![(*from, Read), (*into, if *first { Write } else { Update })]
            }
            Self::GradNorm { main_grads, fault, record } => {
                let mut all: Vec<_> = main_grads.iter().map(|(_, slot)| (*slot, Read)).collect();
                all.extend([(*fault, Read), (*record, Write)]);
                all
            }
            Self::Vote { records, optimizer_step, gradient_scale, vote } => {
                vec![(*records, Read), (*optimizer_step, Update), (*gradient_scale, Read), (*vote, Write)]
            }
            Self::Prepare { states, vote, hyperparameters, to, .. } => {
                let mut all = vec![(*vote, Read), (*hyperparameters, Read), (*to, Write)];
                for state in states {
                    all.extend(state.kept.iter().map(|slot| (*slot, Update)));
                    all.push((state.main_grad, Read));
                }
                all
            }
            Self::Transform { vote, from, to, .. } => vec![(*vote, Read), (*from, Read), (*to, Write)],
            Self::Update { states, vote, hyperparameters, transformed, .. } => {
                let mut all = vec![(*vote, Read), (*hyperparameters, Read)];
                all.extend(transformed.map(|slot| (slot, Read)));
                for state in states {
                    all.push((state.master, Update));
                    all.extend(state.kept.iter().map(|slot| (*slot, Update)));
                    all.push((state.main_grad, Read));
                }
                all
            }
            Self::Adam { states, vote, hyperparameters, .. } => {
                let mut all = vec![(*vote, Read), (*hyperparameters, Read)];
                for state in states {
                    all.extend(state.master.slots().map(|slot| (slot, Update)));
                    all.extend([
                        (state.exp_avg, Update),
                        (state.exp_avg_sq, Update),
                        (state.main_grad, Read),
                    ]);
                }
                all
            }
        }
    }
}

/// Joins repeated accesses to one slot into the strongest, where the first of them stands: a call may use a weight
/// twice.
fn merged(all: impl Iterator<Item = (SlotId, Access)>) -> Vec<(SlotId, Access)> {
    /// So many are looked through; of more, their places are kept.
    const FEW: usize = 32;
    let mut list: Vec<(SlotId, Access)> = Vec::with_capacity(all.size_hint().0);
    let mut places: HashMap<SlotId, usize> = HashMap::new();
    for (slot, access) in all {
        let known = if list.len() <= FEW {
            list.iter().position(|(other, _)| *other == slot)
        } else {
            let missing = places.len()..list.len();
            places.extend(missing.map(|place| (list[place].0, place)));
            places.get(&slot).copied()
        };
        match known {
            None => list.push((slot, access)),
            Some(place) if list[place].1 == access => {}
            Some(place) => list[place].1 = Access::Update,
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With few slots, and with more than are looked through one by one.
    #[test]
    fn a_slot_that_is_accessed_twice_is_listed_once_with_the_strongest_access() {
        for count in [1, 2, 31, 32, 33, 34, 100, 1000] {
            let slots = || (0..count).map(SlotId::at);
            let read = slots().map(|slot| (slot, Access::Read));
            let again = slots().rev().map(|slot| {
                let access = if slot.index().is_multiple_of(2) { Access::Read } else { Access::Write };
                (slot, access)
            });
            let found = merged(read.chain(again));
            let strongest = |slot: SlotId| {
                (slot, if slot.index().is_multiple_of(2) { Access::Read } else { Access::Update })
            };
            assert_eq!(found, slots().map(strongest).collect::<Vec<_>>(), "{count}");
        }
    }
}
