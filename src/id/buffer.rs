//! The id of a buffer, which knows the name it was declared by.
//!
//! Law: two ids are equal if their positions are: in a plan, which is of one program, a position says all. What an
//! id knows of its name is asked for where an embedder hands it in, so that the id of another program is an error
//! and no other buffer; programs that declare their buffers alike share ids. The name is not serialized.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

/// One declared buffer of a program.
///
/// One that a program's builder, the program or the context of a call gave is refused by calls and closures of a
/// program whose buffer of that number has another name. One that was made by number names the buffer of that number
/// in any program.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(from = "u32", into = "u32")]
pub struct BufferId {
    number: u32,
    /// A hash of the buffer's name, or [`ANY`].
    name: u32,
}

/// The name of an id that was made by number.
const ANY: u32 = 0;

impl BufferId {
    /// The `number`-th one of any program, counted from zero.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self { number, name: ANY }
    }

    /// The id of position `position` in the list of any program; it saturates as those of other things do.
    #[must_use]
    pub fn at(position: usize) -> Self {
        Self::new(u32::try_from(position).unwrap_or(u32::MAX))
    }

    /// That of the buffer called `name`.
    pub(crate) fn named(name: &str, position: usize) -> Self {
        Self { name: hash(name), ..Self::at(position) }
    }

    /// May the buffer of this number be the one called `name`? The id of another says no but for a chance of 2^-32.
    pub(crate) fn is_named(self, name: &str) -> bool {
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

/// FNV-1a, 32 bits (Fowler, Noll, Vo); never [`ANY`].
fn hash(name: &str) -> u32 {
    let hashed =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hashed.max(1)
}

impl From<u32> for BufferId {
    fn from(number: u32) -> Self {
        Self::new(number)
    }
}

impl From<BufferId> for u32 {
    fn from(buffer: BufferId) -> Self {
        buffer.number
    }
}

impl PartialEq for BufferId {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for BufferId {}

impl PartialOrd for BufferId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for BufferId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.number.cmp(&other.number)
    }
}

impl Hash for BufferId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

impl std::fmt::Debug for BufferId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("BufferId").field(&self.number).finish()
    }
}

impl std::fmt::Display for BufferId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "buffer {}", self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_of_the_buffer_of_its_name_and_one_made_by_number_of_any() {
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
