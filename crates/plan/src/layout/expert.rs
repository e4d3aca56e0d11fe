//! The names of experts' weights, on every rank and in files.
//!
//! Law: a model declares the experts of one rank, numbered from 0; the rank at place e of an expert-parallel group has
//! those from e times as many on. So every expert of a layer has one name, whatever the mesh, and on a mesh without
//! expert parallelism the name that was declared.

use std::borrow::Cow;

use super::expert_number::{ExpertNumber, expert_named};
use super::weight::WeightLayout;
use super::weights::Weights;
use crate::model::ShardLayout;
use warpweft_base::id::{RankId, WeightId};

impl WeightLayout {
    /// The first ranks that have another weight each in this place: one for all, but for those of experts.
    pub fn places(&self) -> impl ExactSizeIterator<Item = RankId> + use<> {
        (0..self.shard.expert.unwrap_or(1)).map(RankId::new)
    }

    /// The first rank that has the same weight as `rank`.
    #[must_use]
    pub fn place_of(&self, rank: RankId) -> RankId {
        RankId::new(self.shard.expert.and_then(|ranks| rank.number().checked_rem(ranks)).unwrap_or(0))
    }

    /// The weight that the rank at one of its [`places`](Self::places) has, as it would be if there were no others:
    /// with its name, and the n-th shard on the n-th rank.
    #[must_use]
    pub fn alone(&self, place: RankId) -> Self {
        let shard = ShardLayout { expert: None, ..self.shard };
        Self { name: self.name_at(place).into_owned(), shard, expert: None, ..self.clone() }
    }

    /// What the weight is called that `rank` has: the declared name, but for an expert of which other ranks have others
    /// in its place. Initializers and files know it so.
    #[must_use]
    pub fn name_at(&self, rank: RankId) -> Cow<'_, str> {
        let Some(expert) = self.expert.filter(|_| self.shard.expert.is_some()) else {
            return Cow::Borrowed(&self.name);
        };
        let number =
            u64::from(self.place_of(rank).number()) * u64::from(expert.of_rank) + u64::from(expert.number);
        let (before, after) = expert.around(&self.name);
        Cow::Owned(format!("{before}{number}{after}"))
    }
}

impl Weights {
    /// The scale group of the weight that `rank` has, as files name it, where others share its scale of the tensor: the
    /// declared name, with the number of the expert in it as the weight's own. One without such a number is of all
    /// experts of a rank, and says of which.
    #[must_use]
    pub fn scale_group_at(&self, weight: WeightId, rank: RankId) -> Option<String> {
        let layout = self.layout(weight);
        let group = layout.scale_group.as_deref().filter(|_| self.scaled_with(weight).len() > 1)?;
        let Some(expert) = layout.expert.filter(|_| layout.shard.expert.is_some()) else {
            return Some(group.to_owned());
        };
        let first = layout.place_of(rank).number().saturating_mul(expert.of_rank);
        let named = ExpertNumber::in_name(group)
            .and_then(|number| expert_named(group, first.saturating_add(number.number)));
        let last = first.saturating_add(expert.of_rank).saturating_sub(1);
        Some(named.unwrap_or_else(|| format!("{group} of experts {first} to {last}")))
    }

    /// All weights as files know them: each with the first rank that has it, at which it has its name there. Experts
    /// that follow each other in the declaration, without a smaller number after a larger one, follow each other here,
    /// those of the first rank before those of the next.
    #[must_use]
    pub fn in_files(&self) -> Vec<(WeightId, RankId)> {
        let are_a_run = |one: &WeightLayout, other: &WeightLayout| match (one.expert, other.expert) {
            (Some(before), Some(next)) => {
                let layer = |layout: &WeightLayout, expert: ExpertNumber| expert.around(&layout.name).0;
                before.number <= next.number && layer(one, before) == layer(other, next)
            }
            _ => false,
        };
        let mut all = Vec::with_capacity(self.layouts.len());
        let mut before = 0;
        for run in self.layouts.chunk_by(are_a_run) {
            for place in run.first().into_iter().flat_map(WeightLayout::places) {
                all.extend((before..before + run.len()).map(|number| (WeightId::at(number), place)));
            }
            before += run.len();
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Mesh, WeightSpec};
    use warpweft_format::Format;

    #[test]
    fn experts_of_a_layer_have_one_name_each_whatever_the_mesh() {
        let of = |ep: u32, shards: u32, local: usize| {
            let mesh = Mesh::new(8).unwrap().with_experts(ep, Some(shards)).unwrap();
            let declare = |expert| {
                let name = format!("layers.3.experts.{expert}.w1");
                WeightSpec { expert: true, ..WeightSpec::sharded(&name, 32, 16, Format::Bf16) }
            };
            let weights = Weights::new(&(0..local).map(declare).collect::<Vec<_>>(), mesh);
            let mut names: Vec<_> = (0..ep)
                .flat_map(|rank| {
                    weights.layouts.iter().map(move |layout| layout.name_at(RankId::new(rank)).into_owned())
                })
                .collect();
            names.sort();
            names
        };
        let all: Vec<_> = (0..8).map(|expert| format!("layers.3.experts.{expert}.w1")).collect();
        for (ep, shards, local) in [(1, 8, 8), (1, 4, 8), (2, 4, 4), (4, 1, 2), (4, 2, 2), (8, 1, 1)] {
            assert_eq!(of(ep, shards, local), all, "ep {ep}");
        }
    }
}
