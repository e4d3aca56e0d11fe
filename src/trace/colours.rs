//! The colour of every category of slices.
//!
//! Law: a category has the same colour in every picture, so two of them can be compared. What takes time has a
//! colour of its own; what mostly takes none shares a few.

use std::collections::{BTreeMap, BTreeSet};

use super::svg::{FRAME, PALETTE};
use crate::noise::mixed;

/// Places in the palette of categories that take time. Two ways to do the same share one.
const OWN: [(&str, usize); 18] = [
    ("accumulate", 0),
    ("sum gradient", 0),
    ("adam", 1),
    ("update", 1),
    ("prepare", 1),
    ("transform", 1),
    ("all-gather", 2),
    ("all-gather chunk", 2),
    ("all-reduce", 3),
    ("reduce-scatter", 4),
    ("exchange gradient", 4),
    ("exchange buffer", 4),
    ("exchange rows", 4),
    ("compute", 5),
    ("transpose", 6),
    ("dequantize", 8),
    ("partial cast", 11),
    ("assemble", 12),
];
/// Those of what mostly takes no time: a few places for all. What often stands side by side differs.
const SHARED: [usize; 3] = [7, 9, 10];
const SHARING: [(&str, usize); 12] = [
    ("copy", 7),
    ("clear fault", 7),
    ("grad norm", 7),
    ("record amax", 7),
    ("vote", 9),
    ("partial amax", 9),
    ("zero padding", 9),
    ("add gradient", 9),
    ("fused scale", 10),
    ("delayed scale", 10),
    ("gather records", 10),
    ("round gradient", 10),
];

/// Every category with its colour.
pub(super) fn coloured(categories: BTreeSet<&str>) -> BTreeMap<&str, &'static str> {
    categories.into_iter().map(|name| (name, colour(name))).collect()
}

/// The colour of a category, whatever else there is; one that is not in the tables takes a shared one by its
/// name.
fn colour(category: &str) -> &'static str {
    let known = OWN.iter().chain(&SHARING).find(|(known, _)| *known == category).map(|(_, place)| *place);
    let drawn = || category.bytes().fold(0, |state, byte| mixed(state ^ u64::from(byte)));
    let place = known.unwrap_or_else(|| SHARED[(drawn() % SHARED.len() as u64) as usize]);
    PALETTE.get(place).copied().unwrap_or(FRAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_time_has_a_colour_of_its_own_whatever_else_there_is() {
        let of = |names: &[&'static str]| coloured(names.iter().copied().collect());
        let many =
            of(&["accumulate", "compute", "reduce-scatter", "all-gather", "vote", "copy", "fused scale"]);
        let colours: BTreeSet<&str> = many.values().copied().collect();
        assert_eq!(colours.len(), many.len());
        for name in many.keys().chain(&["assemble", "all_gather"]) {
            assert_eq!(of(&[name])[name], coloured(many.keys().copied().chain([*name]).collect())[name]);
        }
        let places = OWN.iter().chain(&SHARING).map(|(_, place)| *place);
        assert!(places.chain(SHARED).all(|place| place < PALETTE.len()));
        assert!(OWN.iter().all(|(_, place)| !SHARED.contains(place)));
    }
}
