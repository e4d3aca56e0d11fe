//! The links that a collective takes.
//!
//! Law: collectives hold each other up only where they want one link. Replicas that fill nodes exchange their
//! gradients over the links inside of nodes, and are summed over those between them: the one takes nothing from
//! the other. What is no collective takes no link.

/// The links that the bytes of a collective take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// Those inside of nodes: its group of ranks that is spread widest is on one node.
    Inside,
    /// Those between nodes: that group has one rank on a node.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_meet_where_one_link_is_wanted_by_both() {
        let all = [Reach::Inside, Reach::Between, Reach::Both];
        let met = all.map(|one| all.map(|other| one.meets(other)));
        assert_eq!(met, [[true, false, true], [false, true, true], [true, true, true]]);
    }
}
