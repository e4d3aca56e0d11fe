//! Segments of a fused weight: the matrices whose rows it stacks, such as query, key and value.
//!
//! Law: a fused weight that is column parallel is cut segment by segment: a part has its rows of each, in their order.
//! Segments are said by their numbers of rows, which add up to those of the weight; a weight without them is one.

use serde::{Deserialize, Serialize};

/// The numbers of rows of stacked matrices; of a weight that is not fused there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<usize>", into = "Vec<usize>")]
pub struct Segments {
    /// 0 where there is none any more.
    rows: [usize; Self::MOST],
}

impl Segments {
    /// As many as a weight can have.
    pub const MOST: usize = 8;

    /// None of a weight that is not fused.
    pub const NONE: Self = Self { rows: [0; Self::MOST] };

    /// Those of these numbers of rows; `None` for too many, and for one without rows.
    #[must_use]
    pub fn new(given: &[usize]) -> Option<Self> {
        let mut rows = [0; Self::MOST];
        rows.get_mut(..given.len())?.copy_from_slice(given);
        (!given.contains(&0)).then_some(Self { rows })
    }

    /// Has the weight none?
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// The rows of each, from the first one below.
    pub fn iter(self) -> impl Iterator<Item = usize> + Clone {
        self.rows.into_iter().take_while(|rows| *rows > 0)
    }

    /// The rows of all; `None` if they are too many to count.
    #[must_use]
    pub fn total(self) -> Option<usize> {
        self.iter().try_fold(0, usize::checked_add)
    }

    /// The weight of so many rows as one segment, if it has none.
    #[must_use]
    pub(super) fn or_whole(self, rows: usize) -> Self {
        if !self.is_none() {
            return self;
        }
        let mut whole = Self::NONE;
        whole.rows[0] = rows;
        whole
    }
}

impl TryFrom<Vec<usize>> for Segments {
    type Error = String;

    fn try_from(rows: Vec<usize>) -> Result<Self, String> {
        let problem = || format!("{rows:?} are not the rows of 1 to {} segments", Self::MOST);
        Self::new(&rows).ok_or_else(problem)
    }
}

impl From<Segments> for Vec<usize> {
    fn from(segments: Segments) -> Self {
        segments.iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_up_to_eight_numbers_of_rows() {
        let segments = Segments::new(&[4, 2, 2]).unwrap();
        assert_eq!((segments.iter().collect::<Vec<_>>(), segments.total()), (vec![4, 2, 2], Some(8)));
        assert_eq!(segments.or_whole(9), segments);
        assert_eq!(Segments::NONE.or_whole(9).iter().collect::<Vec<_>>(), [9]);
        assert_eq!(Segments::new(&[1; 8]).unwrap().total(), Some(8));
        assert_eq!(Segments::new(&[usize::MAX, 1]).unwrap().total(), None);
        assert_eq!((Segments::new(&[1; 9]), Segments::new(&[4, 0, 2])), (None, None));
        assert!(Segments::NONE.is_none() && !segments.is_none());
    }

    #[test]
    fn they_are_written_as_a_list() {
        let segments = Segments::new(&[4, 2]).unwrap();
        assert_eq!(serde_json::to_string(&segments).unwrap(), "[4,2]");
        assert_eq!(serde_json::from_str::<Segments>("[4,2]").unwrap(), segments);
        let refused = serde_json::from_str::<Segments>("[4,0]").unwrap_err().to_string();
        assert!(refused.contains("[4, 0] are not the rows of 1 to 8 segments"), "{refused}");
    }
}
