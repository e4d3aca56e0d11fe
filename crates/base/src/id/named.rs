//! Ids that know the name of what they number: those of weights, groups and buffers.
//!
//! Law: two ids are equal if their positions are: in a plan, which is of one program, a position says all. The name
//! is compared where a user hands an id in, so that the id of another owner is an error and no other weight, group or
//! buffer; models and programs that declare alike share ids. The name is not serialized.

use serde::{Deserialize, Serialize};

/// The name of an id that was made by number.
const ANY: u32 = 0;

/// FNV-1a, 32 bits (Fowler, Noll, Vo); never [`ANY`].
fn hash(name: &str) -> u32 {
    let hashed =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hashed.max(1)
}

macro_rules! named {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, Serialize, Deserialize)]
        #[serde(from = "u32", into = "u32")]
        pub struct $name {
            number: u32,
            /// A hash of the name, or [`ANY`].
            name: u32,
        }

        impl $name {
            /// The `number`-th one of any owner, counted from zero.
            #[must_use]
            pub const fn new(number: u32) -> Self {
                Self { number, name: ANY }
            }

            /// The id of position `position` in the list of any owner; it saturates as those of other things do.
            #[must_use]
            pub fn at(position: usize) -> Self {
                Self::new(u32::try_from(position).unwrap_or(u32::MAX))
            }

            /// That of the one called `name`.
            pub fn named(name: &str, position: usize) -> Self {
                Self { name: hash(name), ..Self::at(position) }
            }

            /// May the one of this number be that called `name`? The id of another says no but for a chance of 2^-32.
            pub fn is_named(self, name: &str) -> bool {
                self.name == ANY || self.name == hash(name)
            }

            /// The position in the list this index points into.
            #[must_use]
            pub const fn index(self) -> usize {
                self.number as usize
            }

            /// The bare number, for bytes on a wire and for hashes.
            #[must_use]
            pub const fn number(self) -> u32 {
                self.number
            }
        }

        impl From<u32> for $name {
            fn from(number: u32) -> Self {
                Self::new(number)
            }
        }

        impl From<$name> for u32 {
            fn from(id: $name) -> Self {
                id.number
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.number == other.number
            }
        }

        impl Eq for $name {}

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for $name {
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                self.number.cmp(&other.number)
            }
        }

        impl std::hash::Hash for $name {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                self.number.hash(state);
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.debug_tuple(stringify!($name)).field(&self.number).finish()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(formatter, concat!($kind, " {}"), self.number)
            }
        }
    };
}

named!(
    /// One declared weight of a model.
    ///
    /// One that a model, its builder or the context of a call gave is refused by models, calls and closures of a
    /// model whose weight of that number has another name. One that was made by number names the weight of that
    /// number in any model.
    WeightId, "weight"
);
named!(
    /// A declared group of weights of a model, which are gathered and reduced together. What it knows is what a
    /// [`WeightId`] does.
    GroupId, "group"
);
named!(
    /// One declared buffer of a program.
    ///
    /// One that a program's builder, the program or the context of a call gave is refused by calls and closures of a
    /// program whose buffer of that number has another name. One that was made by number names the buffer of that
    /// number in any program.
    BufferId, "buffer"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_of_what_has_its_name_and_one_made_by_number_of_any() {
        assert!(!WeightId::named("up", 0).is_named("down") && !GroupId::named("up", 0).is_named("down"));
        let own = BufferId::named("loss", 3);
        assert!(own.is_named("loss") && !own.is_named("input"));
        assert!(BufferId::at(3).is_named("loss") && BufferId::at(3).is_named("input"));
        assert!(own == BufferId::at(3) && own != BufferId::named("loss", 2));
    }

    /// PL-1: fingerprints are of what is written, so a plan's do not depend on who made its ids.
    #[test]
    fn what_is_written_of_an_id_is_its_number() {
        assert_eq!(serde_json::to_string(&BufferId::named("loss", 3)).unwrap(), "3");
        assert_eq!(serde_json::from_str::<BufferId>("3").unwrap(), BufferId::new(3));
    }
}
