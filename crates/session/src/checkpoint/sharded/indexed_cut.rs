//! What the index of a sharded checkpoint says of a weight that tensor parallelism cut, or that is of an expert.
//!
//! Law: rank `n` has rows of part `n % ranks` of the weight, as shard `n / ranks` of that part: so a cut weight is said
//! by its parts alone, and no rank is named.
//! Of an expert, shard `n` is on rank `n · ranks + place`.

use std::fmt;

use serde::{Deserialize, Serialize};

use warpweft_format::Shape;
use warpweft_plan::model::{Segments, ShardLayout, TensorCut, TensorParallel};

/// How tensor parallelism cut a weight into parts of equal size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct IndexedCut {
    /// What each part has some of.
    pub(super) of: CutOf,
    /// How many parts there are.
    pub(super) ranks: u32,
    /// The segments of a fused weight, each of which is cut by itself.
    #[serde(default, skip_serializing_if = "Segments::is_none")]
    pub(super) segments: Segments,
}

/// Of which ranks an expert is, where others have others: of each so many in a row, the one at this place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct IndexedExpert {
    pub(super) ranks: u32,
    pub(super) place: u32,
}

/// What is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CutOf {
    /// The rows, of a column-parallel weight.
    Rows,
    /// The columns, of a row-parallel weight.
    Columns,
}

impl fmt::Display for CutOf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Rows => "rows",
            Self::Columns => "columns",
        })
    }
}

impl IndexedCut {
    /// That of a weight, if there is one.
    pub(super) fn of(shard: &ShardLayout) -> Option<Self> {
        let TensorCut { how, ranks, segments, .. } = shard.tensor?;
        let of = match how? {
            TensorParallel::ColumnParallel => CutOf::Rows,
            TensorParallel::RowParallel => CutOf::Columns,
            TensorParallel::SplitTokens | TensorParallel::AlikeTokens => return None,
        };
        Some(Self { of, ranks, segments })
    }

    /// The shape of a part of a weight of this shape.
    pub(super) fn part(self, whole: Shape) -> Shape {
        self.how().part(whole, self.ranks)
    }

    /// Are parts of a weight of this shape of one size?
    pub(super) fn is_even(self, whole: Shape) -> bool {
        let is_even = |all: usize| all.checked_rem(self.ranks as usize) == Some(0);
        if self.segments.is_none() {
            return is_even(if self.of == CutOf::Rows { whole.rows } else { whole.cols });
        }
        let are_rows = self.of == CutOf::Rows && self.segments.total() == Some(whole.rows);
        are_rows && self.segments.iter().all(is_even)
    }

    /// As a layout has it.
    pub(super) const fn tensor(self, whole: Shape) -> TensorCut {
        TensorCut { how: Some(self.how()), ranks: self.ranks, whole, segments: self.segments }
    }

    const fn how(self) -> TensorParallel {
        match self.of {
            CutOf::Rows => TensorParallel::ColumnParallel,
            CutOf::Columns => TensorParallel::RowParallel,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CK-4: a damaged index is no reason to divide by zero.
    #[test]
    fn parts_are_of_one_size_or_none() {
        let of = |of, ranks| IndexedCut { of, ranks, segments: Segments::NONE };
        let whole = Shape { rows: 12, cols: 10 };
        assert!(of(CutOf::Rows, 4).is_even(whole) && of(CutOf::Columns, 5).is_even(whole));
        assert!(!of(CutOf::Rows, 5).is_even(whole) && !of(CutOf::Columns, 4).is_even(whole));
        assert!(!of(CutOf::Rows, 0).is_even(whole));
        let fused = |of, ranks, segments: &[usize]| {
            let segments = Segments::new(segments).unwrap();
            IndexedCut { of, ranks, segments }.is_even(whole)
        };
        assert!(fused(CutOf::Rows, 2, &[8, 4]) && !fused(CutOf::Rows, 2, &[9, 3]));
        assert!(!fused(CutOf::Rows, 2, &[8, 2]) && !fused(CutOf::Columns, 2, &[8, 4]));
        assert!(!fused(CutOf::Rows, 0, &[8, 4]) && !fused(CutOf::Rows, 2, &[8, usize::MAX]));
        assert_eq!(of(CutOf::Columns, 5).part(whole), Shape { rows: 12, cols: 2 });
    }

    #[test]
    fn a_cut_is_written_as_what_it_is_of_and_how_many_parts_there_are() {
        let cut = IndexedCut { of: CutOf::Columns, ranks: 4, segments: Segments::NONE };
        let text = serde_json::to_string(&cut).unwrap();
        assert_eq!(text, r#"{"of":"columns","ranks":4}"#);
        assert_eq!(serde_json::from_str::<IndexedCut>(&text).unwrap(), cut);
        let fused = IndexedCut { of: CutOf::Rows, ranks: 2, segments: Segments::new(&[8, 4]).unwrap() };
        let text = serde_json::to_string(&fused).unwrap();
        assert_eq!(text, r#"{"of":"rows","ranks":2,"segments":[8,4]}"#);
        assert_eq!(serde_json::from_str::<IndexedCut>(&text).unwrap(), fused);
        assert!(serde_json::from_str::<IndexedCut>(r#"{"of":"diagonals","ranks":4}"#).is_err());
    }
}
