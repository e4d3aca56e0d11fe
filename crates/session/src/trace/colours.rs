//! The colour of every category of slices.
//!
//! Law: no two categories of a picture have the same colour, up to a million of them. One that this library writes
//! has the same in every picture, so two of them can be compared. What takes time has a strong colour; what mostly
//! takes none, and other ways to do the same, have lighter and darker shades.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use super::svg::{EXPOSED, SKEW};
use warpweft_base::noise::mixed;

/// Colours that most people tell apart, and that carry dark text.
const KNOWN: [(&str, &str); 30] = [
    ("accumulate", "#c6e4f2"),
    ("sum gradient", "#8ecae6"),
    ("adam", "#ffb703"),
    ("update", "#ffdb81"),
    ("prepare", "#c78f02"),
    ("transform", "#ece9ba"),
    ("all-gather", "#95d5b2"),
    ("all-gather chunk", "#74a68b"),
    ("all-reduce", "#cdb4db"),
    ("reduce-scatter", "#fdc280"),
    ("exchange gradient", "#fb8500"),
    ("collective call", "#c46800"),
    ("exchange rows", "#b4957d"),
    ("compute", "#4f9bc8"),
    ("transpose", "#d9d375"),
    ("dequantize", "#2fa99a"),
    ("partial cast", "#e7bfa0"),
    ("assemble", "#8fae3c"),
    ("copy", "#b08968"),
    ("clear fault", "#d8c4b4"),
    ("grad norm", "#896b51"),
    ("record amax", "#f3dfd0"),
    ("vote", "#8d9bf0"),
    ("partial amax", "#c6cdf8"),
    ("zero padding", "#6e79bb"),
    ("add gradient", "#a7cde4"),
    ("fused scale", "#b9bcc6"),
    ("delayed scale", "#dcdee2"),
    ("gather records", "#90939a"),
    ("round gradient", "#6f9eb3"),
];

/// Every category with its colour.
pub(super) fn coloured(categories: BTreeSet<&str>) -> BTreeMap<&str, String> {
    let known = |name: &str| KNOWN.iter().find(|(other, _)| *other == name).map(|(_, colour)| *colour);
    let mut taken: BTreeSet<String> = KNOWN.iter().map(|(_, colour)| (*colour).to_owned()).collect();
    taken.extend([EXPOSED, SKEW].map(str::to_owned));
    let of = |name| {
        let colour = known(name).map_or_else(|| drawn(name, &mut taken), str::to_owned);
        (name, colour)
    };
    categories.into_iter().map(of).collect()
}

/// Colours that are tried for a category.
const TRIES: usize = 256;

/// A light colour that follows from the name, and is not taken yet: of the first [`TRIES`], the last one if they all
/// are.
fn drawn(name: &str, taken: &mut BTreeSet<String>) -> String {
    let first = name.bytes().fold(0, |state, byte| mixed(state ^ u64::from(byte)));
    let mut colour = String::new();
    for state in iter::successors(Some(first), |state| Some(mixed(*state))).take(TRIES) {
        colour = format!("#{:06x}", (state & 0x7f_7f7f) | 0x80_8080);
        if taken.insert(colour.clone()) {
            break;
        }
    }
    colour
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_category_whose_colours_are_all_taken_shares_one() {
        let mut taken = BTreeSet::new();
        let colours: Vec<String> = (0..TRIES + 2).map(|_| drawn("category", &mut taken)).collect();
        assert_eq!(taken.len(), TRIES);
        assert_eq!(colours[TRIES..], [colours[TRIES - 1].clone(), colours[TRIES - 1].clone()]);
    }

    #[test]
    fn no_two_categories_of_a_picture_have_one_colour_whatever_else_there_is() {
        let foreign: Vec<String> = (0..1000).map(|number| format!("category {number}")).collect();
        let names = || KNOWN.iter().map(|(name, _)| *name);
        let all = coloured(names().chain(foreign.iter().map(String::as_str)).collect());
        let mut colours: BTreeSet<&str> = all.values().map(String::as_str).collect();
        colours.extend([EXPOSED, SKEW]);
        assert_eq!(colours.len(), all.len() + 2, "each its own, and none that of a shade");
        for name in names() {
            assert_eq!(
                coloured(BTreeSet::from([name]))[name],
                all[name],
                "{name}: the same in every picture"
            );
        }
    }
}
