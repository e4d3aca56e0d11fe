//! The planes that were gathered or derived last, by what they were made of.
//!
//! Law: it serves another use if it is kept, or if a new one could begin no later than in the stage after its last
//! use: it is still there then, and a second copy would only cost memory.

use std::collections::HashMap;
use std::hash::Hash;

use super::super::draft::Supply;

/// The latest supply of every key, with the stage of its last use.
pub(super) struct Latest<Key> {
    held: HashMap<Key, (Supply, usize)>,
}

impl<Key: Eq + Hash> Latest<Key> {
    pub(super) fn new() -> Self {
        Self { held: HashMap::new() }
    }

    /// For a use in `stage`: what is held, if it is `kept` or a new one would begin in stage `begin`, too early to be
    /// worth it. Otherwise what `make` gives.
    pub(super) fn serve(
        &mut self,
        key: Key,
        stage: usize,
        begin: usize,
        kept: bool,
        make: impl FnOnce() -> Supply,
    ) -> Supply {
        let held = self.held.get(&key).filter(|(_, last_use)| kept || begin <= last_use + 1);
        let supply = held.map_or_else(make, |(supply, _)| *supply);
        self.held.insert(key, (supply, stage));
        supply
    }
}
