//! Tensor parallelism: which part of a weight a rank computes with, and which tokens it computes.
//!
//! Law: a cut weight is one matrix in the declaration, in files and for initializers; each rank of a
//! tensor-parallel group computes with its own part of it, whose rows are sharded over the other ranks of the
//! replica and gathered as any weight's are. A sharded weight that is not cut is sharded over all ranks of the
//! replica. Without tensor parallelism in the mesh none of this changes anything.
//!
//! The words are Megatron's (Shoeybi et al., 2019, arXiv 1909.08053): a linear layer computes `x · Wᵀ` with `W[out,
//! in]`, so a *column-parallel* layer, which has some of the outputs, has some *rows* of `W`.

use serde::Serialize;

use super::{Group, Placement, Segments};
use warpweft_format::Shape;

/// What tensor parallelism does with a weight, or with the tokens that its gradient is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum TensorParallel {
    /// A column-parallel layer: each rank has `rows / tp` rows, which are outputs. Its input is the same on all ranks,
    /// and the gradient of that input is to be summed over them.
    ColumnParallel,
    /// A row-parallel layer: each rank has `cols / tp` columns, which are inputs. Its output is to be summed over the
    /// ranks.
    RowParallel,
    /// Not cut, and the gradients of the ranks of a group add up: each computes with other tokens (sequence
    /// parallelism), or with its own heads or features, as a norm of query and key does.
    SplitTokens,
    /// Not cut, and each rank of a group computes the whole gradient, all the same: their mean is taken. The inputs of
    /// the ranks must be the same, bit for bit.
    AlikeTokens,
}

impl TensorParallel {
    /// Does each rank have its own part?
    #[must_use]
    pub const fn is_cut(self) -> bool {
        matches!(self, Self::ColumnParallel | Self::RowParallel)
    }

    /// The ranks that a weight's rows are sharded over: those with the same part of it, which is all of it if it is not
    /// cut.
    #[must_use]
    pub const fn group(self) -> Group {
        if self.is_cut() { Group::Shard } else { Group::Replica }
    }

    /// The shape of one of `ranks` parts. Rounds down; planning refuses what is not divided evenly.
    #[must_use]
    pub fn part(self, whole: Shape, ranks: u32) -> Shape {
        let Shape { rows, cols } = whole;
        let part = |all: usize| all.checked_div(ranks as usize).unwrap_or(0);
        match self {
            Self::ColumnParallel => Shape { rows: part(rows), cols },
            Self::RowParallel => Shape { rows, cols: part(cols) },
            Self::SplitTokens | Self::AlikeTokens => whole,
        }
    }
}

/// How a weight is cut over the ranks of a tensor-parallel group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct TensorCut {
    /// How; none where the declaration does not say, which planning refuses.
    pub how: Option<TensorParallel>,
    /// Ranks of a group.
    pub ranks: u32,
    /// The shape of the weight, uncut.
    pub whole: Shape,
    /// The segments that are cut each by itself, of a fused weight.
    #[serde(skip_serializing_if = "Segments::is_none")]
    pub segments: Segments,
}

impl TensorCut {
    /// The ranks that the weight's rows are sharded over.
    #[must_use]
    pub fn group(&self) -> Group {
        self.how.map_or(Group::Replica, TensorParallel::group)
    }

    /// By how many a sum of gradients over all ranks counts each token.
    #[must_use]
    pub const fn counts_tokens(&self) -> u32 {
        match self.how {
            Some(TensorParallel::AlikeTokens) => self.ranks,
            _ => 1,
        }
    }

    /// Why the weight cannot be cut so, and what would do; `tiles` are the rows and columns of the blocks of its
    /// format.
    pub(crate) fn problem(&self, placement: Placement, tiles: Shape) -> Option<String> {
        let Self { how, ranks, whole, segments } = *self;
        let Some(how) = how else {
            return Some(
                "says nothing of tensor parallelism; say (ModelBuilder::tensor_parallel, or tensor_parallel in a rule of [[weights]]) that it is column or row parallel, or of what is not cut, whether the ranks of a group have split tokens (sequence parallelism) or alike ones"
                    .to_owned(),
            );
        };
        if how.is_cut() && placement == Placement::Replicated {
            return Some(
                "is replicated, and ranks would have different parts; declare it sharded in f32".to_owned(),
            );
        }
        let (what, all, tile) = match how {
            TensorParallel::ColumnParallel => ("rows", whole.rows, tiles.rows),
            TensorParallel::RowParallel => ("columns", whole.cols, tiles.cols),
            TensorParallel::SplitTokens | TensorParallel::AlikeTokens => return None,
        };
        let part = ranks as usize * tile;
        let is_even = |all: usize, ranks: u32| all.is_multiple_of(ranks as usize * tile);
        // A divisor of tp divides the ranks of a replica as well.
        let fewer = |does: &dyn Fn(u32) -> bool| {
            let mut fewer = (2..ranks).rev().filter(|fewer| ranks.is_multiple_of(*fewer) && does(*fewer));
            fewer.next().map_or_else(String::new, |most| format!(", or take tp = {most}"))
        };
        if !segments.is_none() {
            let uneven = segments.iter().find(|rows| !is_even(*rows, ranks))?;
            let fewer = fewer(&|ranks| segments.iter().all(|rows| is_even(rows, ranks)));
            let next = uneven.next_multiple_of(part);
            return Some(format!(
                "has a segment of {uneven} rows, which tp = {ranks} does not cut into whole blocks of {tile}; the next that do are {next}{fewer}"
            ));
        }
        if is_even(all, ranks) {
            return None;
        }
        if (how, all) == (TensorParallel::ColumnParallel, 1) {
            return Some(
                "has one row, which cannot be cut; declare a bias of a column-parallel layer as [outputs, 1], or this weight as row parallel"
                    .to_owned(),
            );
        }
        let fewer = fewer(&|ranks| is_even(all, ranks));
        let next = all.next_multiple_of(part);
        Some(format!(
            "has {all} {what}, which tp = {ranks} does not cut into whole blocks of {tile}; the next that do are {next}{fewer}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(how: Option<TensorParallel>, rows: usize, cols: usize) -> TensorCut {
        TensorCut { how, ranks: 4, whole: Shape { rows, cols }, segments: Segments::NONE }
    }

    #[test]
    fn what_is_cut_has_parts_and_is_sharded_over_the_ranks_that_have_the_same_one() {
        let whole = Shape { rows: 32, cols: 64 };
        let of = |how: TensorParallel| (how.part(whole, 4), how.group());
        assert_eq!(of(TensorParallel::ColumnParallel), (Shape { rows: 8, cols: 64 }, Group::Shard));
        assert_eq!(of(TensorParallel::RowParallel), (Shape { rows: 32, cols: 16 }, Group::Shard));
        assert_eq!(of(TensorParallel::SplitTokens), (whole, Group::Replica));
        assert_eq!(of(TensorParallel::AlikeTokens), (whole, Group::Replica));
    }

    #[test]
    fn tokens_that_are_alike_are_counted_by_every_rank_of_the_group() {
        let counts = |how| cut(Some(how), 32, 64).counts_tokens();
        assert_eq!(counts(TensorParallel::AlikeTokens), 4);
        for how in [TensorParallel::SplitTokens, TensorParallel::ColumnParallel, TensorParallel::RowParallel]
        {
            assert_eq!(counts(how), 1);
        }
    }

    #[test]
    fn a_cut_through_a_block_is_refused_with_the_sizes_that_would_do() {
        let tiles = Shape { rows: 16, cols: 16 };
        let problem = |how, rows, cols| cut(Some(how), rows, cols).problem(Placement::Sharded, tiles);
        assert_eq!(problem(TensorParallel::ColumnParallel, 128, 20), None);
        assert_eq!(problem(TensorParallel::RowParallel, 20, 128), None);
        assert_eq!(problem(TensorParallel::SplitTokens, 7, 7), None);
        let rows = problem(TensorParallel::ColumnParallel, 96, 64).unwrap();
        assert!(rows.contains("96 rows") && rows.ends_with("next that do are 128, or take tp = 2"), "{rows}");
        let bias = problem(TensorParallel::ColumnParallel, 1, 64).unwrap();
        assert!(bias.contains("[outputs, 1]"), "{bias}");
        let columns = problem(TensorParallel::RowParallel, 64, 8).unwrap();
        assert!(columns.contains("8 columns") && columns.ends_with("next that do are 64"), "{columns}");
    }

    #[test]
    fn a_cut_through_a_block_of_a_segment_is_refused_though_that_of_the_whole_would_do() {
        let tiles = Shape { rows: 16, cols: 16 };
        let problem = |rows: &[usize]| {
            let segments = Segments::new(rows).unwrap();
            let whole = cut(Some(TensorParallel::ColumnParallel), segments.total().unwrap(), 64);
            TensorCut { segments, ..whole }.problem(Placement::Sharded, tiles)
        };
        assert_eq!(problem(&[128, 64, 64]), None);
        let uneven = problem(&[128, 32, 32]).unwrap();
        assert!(
            uneven.starts_with("has a segment of 32 rows, which tp = 4 does not cut into whole blocks of 16"),
            "{uneven}"
        );
        assert!(uneven.ends_with("the next that do are 64, or take tp = 2"), "{uneven}");
        assert!(problem(&[128, 24, 40]).unwrap().ends_with("next that do are 64"));
    }

    #[test]
    fn a_weight_without_a_declaration_and_one_whose_copies_would_differ_are_refused() {
        let tiles = Shape { rows: 1, cols: 1 };
        let undeclared = cut(None, 64, 64).problem(Placement::Sharded, tiles).unwrap();
        assert!(
            undeclared.contains("ModelBuilder::tensor_parallel") && undeclared.contains("split tokens"),
            "{undeclared}"
        );
        let copied = cut(Some(TensorParallel::RowParallel), 64, 64).problem(Placement::Replicated, tiles);
        assert!(copied.unwrap().contains("declare it sharded"));
    }
}
