//! Which links a collective takes, and when lanes took them.
//!
//! Law: collectives hold each other up only where they want one link. Replicas that fill nodes exchange their gradients
//! over the links inside of nodes, and are summed over those between them: the one takes nothing from the other. What is
//! no collective takes no link, and so meets whatever runs.

use super::Links;

/// The links that the bytes of a collective take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// Those inside of nodes: each of its groups of ranks is on one node.
    Inside,
    /// Those between nodes: each of its groups has one rank on a node.
    Between,
    /// Both.
    Both,
}

impl Reach {
    /// Does it take links inside of nodes?
    #[must_use]
    pub const fn is_inside(self) -> bool {
        !matches!(self, Self::Between)
    }

    /// Does it take links between nodes?
    #[must_use]
    pub const fn is_between(self) -> bool {
        !matches!(self, Self::Inside)
    }

    /// Do two want one link?
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        (self.is_inside() && other.is_inside()) || (self.is_between() && other.is_between())
    }
}

impl Links {
    /// Which of them a collective takes.
    #[must_use]
    pub fn reach(&self) -> Reach {
        match (self.nodes > 1.0, self.per_node > 1.0) {
            (false, _) => Reach::Inside,
            (true, false) => Reach::Between,
            (true, true) => Reach::Both,
        }
    }
}

/// When a lane ran something: intervals in order, none of which touch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Busy {
    all: Vec<(u64, u64)>,
    inside: Vec<(u64, u64)>,
    between: Vec<(u64, u64)>,
}

impl Busy {
    pub(crate) fn clear(&mut self) {
        [&mut self.all, &mut self.inside, &mut self.between].into_iter().for_each(Vec::clear);
    }

    /// Adds what ran last, over links of this reach, if it took any.
    pub(crate) fn add(&mut self, reach: Option<Reach>, interval: (u64, u64)) {
        self.all.push(interval);
        if reach.is_none_or(Reach::is_inside) {
            self.inside.push(interval);
        }
        if reach.is_none_or(Reach::is_between) {
            self.between.push(interval);
        }
    }

    /// When something ran that meets what has this reach.
    pub(crate) fn meeting(&self, reach: Option<Reach>) -> &[(u64, u64)] {
        match reach {
            None | Some(Reach::Both) => &self.all,
            Some(Reach::Inside) => &self.inside,
            Some(Reach::Between) => &self.between,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_other_links_is_not_met_and_what_takes_none_is() {
        let mut busy = Busy::default();
        let reaches = [Some(Reach::Inside), Some(Reach::Between), Some(Reach::Both), None];
        reaches.into_iter().zip(0..).for_each(|(reach, at)| busy.add(reach, (at, at + 1)));
        assert_eq!(busy.meeting(Some(Reach::Inside)), [(0, 1), (2, 3), (3, 4)]);
        assert_eq!(busy.meeting(Some(Reach::Between)), [(1, 2), (2, 3), (3, 4)]);
        for all in [Some(Reach::Both), None] {
            assert_eq!(busy.meeting(all), [(0, 1), (1, 2), (2, 3), (3, 4)]);
        }
        busy.clear();
        assert!(busy.meeting(None).is_empty() && busy.meeting(Some(Reach::Inside)).is_empty());
    }
}
