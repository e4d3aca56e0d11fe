//! Merges equal-stride copies into one 2-D memcpy.
//!
//! Law: rows are what the copies they stand for are, byte for byte. All sources are in one allocation and all
//! targets in another, which the driver requires of a copy of rows. None of the copies touches what another writes, so
//! they need no order.
//!
//! Weights of one shape lie at even distances wherever a plan puts them one after the other: those of a group, whose
//! parts travel together, or experts. A command for each would cost the host 1.5 µs, in a captured step too, and the
//! engine 2 to 3 µs.

use crate::device::address::DeviceAddress;
use crate::kernels::CopyOperand;
use warpweft_plan::layout::ALIGNMENT;

/// Several copies, or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StridedCopy {
    /// The first source.
    pub(crate) from: DeviceAddress,
    /// The first target.
    pub(crate) to: DeviceAddress,
    /// Of each.
    pub(crate) bytes: usize,
    /// How many; at least one.
    pub(crate) count: usize,
    /// From the begin of a source to that of the next.
    pub(crate) from_pitch: usize,
    /// From the begin of a target to that of the next.
    pub(crate) to_pitch: usize,
}

/// `CU_DEVICE_ATTRIBUTE_MAX_PITCH` of every device up to now.
const MOST_PITCH: usize = (1 << 31) - 1;

impl StridedCopy {
    /// These copies, in any order, and nothing for those of no bytes. `owner` tells allocations apart.
    pub(crate) fn of<O: PartialEq>(
        copies: Vec<CopyOperand>,
        owner: impl Fn(DeviceAddress) -> O,
    ) -> Vec<Self> {
        let mut owners: Vec<O> = Vec::new();
        let mut numbered = |address| {
            let found = owner(address);
            owners.iter().position(|other| *other == found).unwrap_or_else(|| {
                owners.push(found);
                owners.len() - 1
            })
        };
        // By whose the target is to begin with, so that engines serve peers in the order in which they come here.
        let mut placed: Vec<_> = copies
            .into_iter()
            .filter(|copy| copy.bytes > 0 && copy.from != copy.to)
            .map(|copy| (numbered(copy.to), numbered(copy.from), copy.bytes, copy.from, copy.to))
            .collect();
        placed.sort_unstable();
        let mut all: Vec<Self> = Vec::with_capacity(placed.len());
        let mut before = None;
        for (target, source, bytes, from, to) in placed {
            let together = before.replace((target, source)) == Some((target, source));
            let taken = all.last_mut().is_some_and(|rows| together && rows.take(from, to, bytes));
            if !taken {
                all.push(Self { from, to, bytes, count: 1, from_pitch: bytes, to_pitch: bytes });
            }
        }
        all
    }

    /// Takes a copy that is the next row. The second says how far rows are apart.
    fn take(&mut self, from: DeviceAddress, to: DeviceAddress, bytes: usize) -> bool {
        let Some((from, to)) = self.distance(from, to) else { return false };
        let fits =
            |pitch: usize| pitch.is_multiple_of(ALIGNMENT) && (self.bytes..=MOST_PITCH).contains(&pitch);
        let is_next = match self.count {
            1 => fits(from) && fits(to),
            _ => (from, to) == (self.from_pitch, self.to_pitch),
        };
        if bytes != self.bytes || !is_next {
            return false;
        }
        (self.count, self.from_pitch, self.to_pitch) = (self.count + 1, from, to);
        true
    }

    /// How far a copy is from the last row, at its source and at its target.
    fn distance(&self, from: DeviceAddress, to: DeviceAddress) -> Option<(usize, usize)> {
        let before = self.count - 1;
        let after = |at: DeviceAddress, first: DeviceAddress, pitch: usize| {
            let distance = at.number().checked_sub(first.plus(pitch * before).number())?;
            usize::try_from(distance).ok()
        };
        Some((after(from, self.from, self.from_pitch)?, after(to, self.to, self.to_pitch)?))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const SPACE: u64 = 1 << 40;

    fn copy(from: u64, rank: u64, to: u64, bytes: usize) -> CopyOperand {
        let address = DeviceAddress::new;
        CopyOperand { from: address(SPACE + from), to: address((rank + 2) * SPACE + to), bytes }
    }

    fn owner(address: DeviceAddress) -> u64 {
        address.number() / SPACE
    }

    fn rows(copies: &[CopyOperand]) -> Vec<StridedCopy> {
        StridedCopy::of(copies.to_vec(), owner)
    }

    /// What these rows copy: target, source and length of each.
    fn copied(rows: &[StridedCopy]) -> Vec<(u64, u64, usize)> {
        let each = |rows: &StridedCopy| {
            let StridedCopy { from, to, bytes, count, from_pitch, to_pitch } = *rows;
            let row = move |at| (to.plus(to_pitch * at).number(), from.plus(from_pitch * at).number(), bytes);
            (0..count).map(row)
        };
        let mut all: Vec<_> = rows.iter().flat_map(each).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn weights_of_one_shape_are_one_copy_to_each_peer() {
        let each = |rank| (0..4).map(move |weight| copy(weight * 1024, rank, weight * 4096, 1024));
        let all: Vec<_> = [3, 1].into_iter().flat_map(each).collect();
        let found = rows(&all);
        let whose: Vec<_> = found.iter().map(|rows| (owner(rows.to) - 2, rows.count)).collect();
        assert_eq!(whose, [(3, 4), (1, 4)], "in the order in which peers were named");
        assert_eq!((found[0].from_pitch, found[0].to_pitch), (1024, 4096));
    }

    #[test]
    fn what_is_not_evenly_apart_stays_apart() {
        let pair = |second: CopyOperand| rows(&[copy(0, 0, 0, 512), second]).len();
        assert_eq!(pair(copy(512, 0, 2048, 512)), 1);
        assert_eq!(pair(copy(512, 0, 2048, 256)), 2, "another length");
        assert_eq!(pair(copy(512, 1, 2048, 512)), 2, "another peer");
        assert_eq!(pair(copy(640, 0, 2048, 512)), 2, "a pitch that is not aligned");
        assert_eq!(pair(copy(1 << 31, 0, 2048, 512)), 2, "too far apart");
        let backwards = [copy(0, 0, 2048, 512), copy(512, 0, 0, 512)];
        assert_eq!(rows(&backwards).len(), 2, "targets the other way round");
        let uneven = [copy(0, 0, 0, 512), copy(512, 0, 512, 512), copy(1024, 0, 4096, 512)];
        assert_eq!(rows(&uneven).iter().map(|rows| rows.count).collect::<Vec<_>>(), [2, 1]);
        assert!(rows(&[copy(0, 0, 0, 0)]).is_empty());
    }

    proptest! {
        #[test]
        fn rows_copy_what_was_asked_for_and_nothing_else(
            places in prop::collection::btree_map((0_u64..3, 0_u64..40), (0_u64..40, 1_usize..4), 0..40)
        ) {
            // Targets are a slot each, so none overlaps another.
            let places: BTreeMap<_, _> = places;
            let all: Vec<_> = places
                .iter()
                .map(|((rank, to), (from, bytes))| copy(from * 256, *rank, to * 1024, bytes * 256))
                .collect();
            let mut expected: Vec<_> =
                all.iter().map(|copy| (copy.to.number(), copy.from.number(), copy.bytes)).collect();
            expected.sort_unstable();
            let found = rows(&all);
            prop_assert_eq!(copied(&found), expected);
            for rows in found.iter().filter(|rows| rows.count > 1) {
                let last = rows.to.plus(rows.to_pitch * (rows.count - 1));
                prop_assert_eq!(owner(rows.to), owner(last));
                prop_assert!(rows.to_pitch >= rows.bytes && rows.from_pitch >= rows.bytes);
            }
        }
    }
}
