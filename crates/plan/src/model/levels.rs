//! The levels in which ranks sum gradients: sizes of blocks of consecutive ranks.
//!
//! Law: each level is a multiple of the one before, so the blocks of one are whole blocks of the next. What is summed
//! is a fact of the numbers and not of the hosts: members of a block are added first, in rank order, then blocks, in
//! their order. So a sum has the same bits however ranks are placed.

use serde::{Deserialize, Serialize, Serializer};

use super::DeclareError;

/// How many ranks a block of each level has, the smallest first: `mesh.levels` of the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "Vec<u32>")]
pub struct Levels([u32; Levels::MOST]);

impl Levels {
    /// The most levels there are.
    pub const MOST: usize = 3;

    /// None: all ranks that share a sum are added one after the other.
    pub const FLAT: Self = Self([0; Self::MOST]);

    /// What a mesh has where nothing else is said and it fits: blocks of 8.
    pub const USUAL: Self = Self([8, 0, 0]);

    /// Levels of so many ranks each.
    ///
    /// # Errors
    /// [`DeclareError::LevelsList`] unless there are at most [`Levels::MOST`], from 2 ranks up, each a multiple of the
    /// one before.
    pub fn new(blocks: &[u32]) -> Result<Self, DeclareError> {
        let mut levels = Self::FLAT;
        let mut before = 1;
        for (position, block) in blocks.iter().enumerate() {
            match levels.0.get_mut(position) {
                Some(level) if *block > before && block.is_multiple_of(before) => *level = *block,
                _ => return Err(DeclareError::LevelsList { given: blocks.to_vec(), most: Self::MOST }),
            }
            before = *block;
        }
        Ok(levels)
    }

    /// Ranks of a block of each level.
    #[must_use]
    pub fn blocks(&self) -> &[u32] {
        let levels = self.0.iter().take_while(|block| **block > 0).count();
        &self.0[..levels]
    }

    /// Ranks of a block of a level; `None` above the last.
    pub(super) const fn block(self, level: usize) -> Option<u32> {
        if level < Self::MOST && self.0[level] > 0 { Some(self.0[level]) } else { None }
    }

    /// Those whose blocks have more than `ranks` ranks.
    pub(super) const fn above(self, ranks: u32) -> Self {
        let (mut above, mut level, mut kept) = ([0; Self::MOST], 0, 0);
        while level < Self::MOST {
            if self.0[level] > ranks {
                above[kept] = self.0[level];
                kept += 1;
            }
            level += 1;
        }
        Self(above)
    }

    /// Those whose blocks are smaller than `ranks` ranks.
    pub(super) const fn below(self, ranks: u32) -> Self {
        let (mut below, mut level) = (self.0, 0);
        while level < Self::MOST {
            if below[level] >= ranks {
                below[level] = 0;
            }
            level += 1;
        }
        Self(below)
    }
}

impl TryFrom<Vec<u32>> for Levels {
    type Error = DeclareError;

    fn try_from(blocks: Vec<u32>) -> Result<Self, DeclareError> {
        Self::new(&blocks)
    }
}

/// As the list of blocks.
impl Serialize for Levels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.blocks().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_few_and_each_is_made_of_blocks_of_the_one_before() {
        for good in [&[][..], &[8], &[2, 4, 8], &[8, 128]] {
            assert_eq!(Levels::new(good).unwrap().blocks(), good);
        }
        for bad in [&[0][..], &[1], &[8, 8], &[8, 12], &[8, 4], &[2, 4, 8, 16]] {
            let message = Levels::new(bad).unwrap_err().to_string();
            assert!(message.contains(&format!("{bad:?}")), "{message}");
        }
    }

    #[test]
    fn levels_are_written_and_read_as_a_list() {
        let levels: Levels = serde_json::from_str("[8,128]").unwrap();
        assert_eq!(serde_json::to_string(&levels).unwrap(), "[8,128]");
        assert!(serde_json::from_str::<Levels>("[8,12]").unwrap_err().to_string().contains("[8, 12]"));
        assert_eq!((Levels::USUAL.blocks(), Levels::FLAT), (&[8][..], Levels::default()));
    }
}
