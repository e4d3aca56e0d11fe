//! The number of an expert in the name of its weight.
//!
//! Law: it is the part of the name after `experts` or `expert`, so no layer's number is taken for it.

use serde::Serialize;

/// Which of a rank's experts a weight belongs to, and where its name says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ExpertNumber {
    /// Bytes of the name before the number.
    begin: usize,
    /// Bytes of the name up to its end.
    end: usize,
    /// The number among the rank's experts.
    pub number: u32,
    /// How many experts a rank has.
    pub of_rank: u32,
}

impl ExpertNumber {
    /// The number in a name, of one expert alone; `None` if there is none.
    pub(super) fn in_name(name: &str) -> Option<Self> {
        let (mut begin, mut before) = (0, "");
        for part in name.split('.') {
            // No other number is written so.
            let number = part.parse::<u32>().ok().filter(|number| number.to_string() == part);
            if let Some(number) = number.filter(|_| matches!(before, "experts" | "expert")) {
                return Some(Self { begin, end: begin + part.len(), number, of_rank: 1 });
            }
            (begin, before) = (begin + part.len() + 1, part);
        }
        None
    }

    /// The same among so many.
    pub(super) const fn among(self, of_rank: u32) -> Self {
        Self { of_rank, ..self }
    }

    /// What stands before the number and after it.
    pub(super) fn around(self, name: &str) -> (String, String) {
        let part = |range: std::ops::Range<usize>| name.get(range).unwrap_or_default().to_owned();
        (part(0..self.begin), part(self.end..name.len()))
    }
}

/// The name that a weight of an expert has for the expert of this number; `None` for a name without one.
#[must_use]
pub fn expert_named(name: &str, number: u32) -> Option<String> {
    let (before, after) = ExpertNumber::in_name(name)?.around(name);
    Some(format!("{before}{number}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_expert_is_the_one_after_experts() {
        let number = |name| ExpertNumber::in_name(name).map(|found| found.number);
        assert_eq!(number("layers.3.experts.12.w1"), Some(12));
        assert_eq!(number("experts.7"), Some(7));
        assert_eq!(number("layers.3.expert.2.4"), Some(2));
        // Else a layer's number would be taken for it.
        assert_eq!((number("layers.3.moe.w1"), number("3.w1")), (None, None));
        assert_eq!((number("experts.w1"), number("experts.07.w"), number("")), (None, None, None));
    }
}
