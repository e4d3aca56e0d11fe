//! The world of CPU ranks: their clock, arenas, communicators and poison.
//!
//! Laws:
//! - No process-global state: ranks meet through the [`CpuWorld`] their backends were made from,
//!   and worlds do not know each other.
//! - A communicator has a meeting place for every group of ranks; groups of the same ranks share one. It has
//!   one roll, on which all its ranks call before they go to any of its places.
//! - A rank is *gone* once its backend and all its lanes are dropped; a rank whose backend can no longer be
//!   made is gone too. Peers that need a rank that is gone are poisoned, never left waiting (see
//!   [`super::rendezvous`]); peers that do not need it run on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use super::CpuBackend;
use super::memory::Arena;
use super::pace::Pace;
use super::rendezvous::Rendezvous;
use super::roll::{Roll, Ticket};
use crate::BackendError;
use crate::bell::lock;
use crate::clock::Clock;
use crate::poison::Poison;
use warpweft_base::id::{CallId, CommId, RankId, WeightId};
use warpweft_plan::model::{Group, Mesh, Strides};

/// Choices of a CPU world.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuOptions {
    /// Paces every collective; `None` runs it as fast as memory allows.
    pub link: Option<Pace>,
}

/// Ranks as threads of this process. One value makes the backends of all its ranks.
#[derive(Debug)]
pub struct CpuWorld {
    shared: Arc<World>,
}

impl CpuWorld {
    /// A world of the mesh's ranks; its clock starts now.
    ///
    /// # Errors
    /// [`BackendError::Link`] for a link without a speed.
    pub fn new(mesh: Mesh, options: CpuOptions) -> Result<Self, BackendError> {
        if let Some(link) = options.link
            && !link.carries()
        {
            return Err(BackendError::Link { bytes_per_s: link.bytes_per_s });
        }
        let shared = World {
            mesh,
            options,
            clock: Clock::start(),
            poison: Poison::default(),
            ranks: mesh.iter().map(|_| Seat::default()).collect(),
            communicators: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The backend of one rank; it may move to the thread that drives the rank.
    ///
    /// # Errors
    /// [`BackendError::NoSuchRank`]; [`BackendError::Taken`] the second time.
    pub fn backend(&self, rank: RankId) -> Result<CpuBackend, BackendError> {
        let ranks = self.shared.mesh.ranks();
        let seat = self.shared.ranks.get(rank.index()).ok_or(BackendError::NoSuchRank { rank, ranks })?;
        if seat.taken.swap(true, Ordering::SeqCst) {
            return Err(BackendError::Taken { rank });
        }
        Ok(CpuBackend::new(Arc::new(Presence {
            world: Arc::clone(&self.shared),
            rank,
            diverged: AtomicBool::new(false),
            non_finite: Mutex::default(),
        })))
    }

    /// The instant of nanosecond 0 of every interval of every rank.
    #[must_use]
    pub fn origin(&self) -> Instant {
        self.shared.clock.origin()
    }

    /// Why the world is poisoned, if it is.
    #[must_use]
    pub fn poisoned(&self) -> Option<String> {
        self.shared.poison.reason().map(str::to_owned)
    }
}

impl Drop for CpuWorld {
    fn drop(&mut self) {
        for rank in self.shared.mesh.iter() {
            let taken = |seat: &Seat| seat.taken.swap(true, Ordering::SeqCst);
            if !self.shared.ranks.get(rank.index()).is_some_and(taken) {
                self.shared.depart(rank);
            }
        }
    }
}

/// The shared part of a world.
#[derive(Debug)]
pub(super) struct World {
    pub(super) mesh: Mesh,
    pub(super) options: CpuOptions,
    pub(super) clock: Clock,
    pub(super) poison: Poison,
    ranks: Vec<Seat>,
    communicators: Mutex<BTreeMap<CommId, Communicator>>,
}

/// What the ranks of one communicator share.
#[derive(Debug)]
struct Communicator {
    roll: Arc<Roll>,
    /// By the strides of a group, and the first rank of the group.
    places: BTreeMap<(Strides, RankId), Arc<Rendezvous>>,
}

/// Where one rank meets the others of one communicator.
#[derive(Debug)]
pub(super) struct Places {
    roll: Arc<Roll>,
    of: BTreeMap<Strides, Arc<Rendezvous>>,
}

impl Places {
    /// Where the ranks of `group` meet, for the next collective of `rank`.
    ///
    /// # Errors
    /// Poisons the world when ranks bring different collectives (CO-1).
    pub(super) fn call(
        &self,
        rank: RankId,
        group: Group,
        ticket: Ticket,
        poison: &Poison,
    ) -> Result<&Rendezvous, BackendError> {
        self.roll.call(rank, group, ticket).map_err(|reason| poison.set(reason))?;
        let place = self.of.get(&self.roll.strides(group));
        place.map(|place| &**place).ok_or_else(|| poison.set(format!("{group} ranks have no place to meet")))
    }

    /// Notes that `rank` comes to none of them any more.
    pub(super) fn depart(&self, rank: RankId) {
        self.of.values().for_each(|place| place.depart(rank));
    }
}

/// One rank's place in the world.
#[derive(Debug, Default)]
struct Seat {
    taken: AtomicBool,
    gone: AtomicBool,
    arena: OnceLock<Arc<Arena>>,
}

impl World {
    /// The arena of a rank, once it is reserved.
    pub(super) fn arena(&self, rank: RankId) -> Option<&Arc<Arena>> {
        self.ranks.get(rank.index())?.arena.get()
    }

    /// Makes `arena` the memory of `rank`; false if it has one.
    pub(super) fn settle(&self, rank: RankId, arena: Arc<Arena>) -> bool {
        self.ranks.get(rank.index()).is_some_and(|seat| seat.arena.set(arena).is_ok())
    }

    /// Where `rank` meets the others of one communicator. A place is made by the first rank that asks.
    pub(super) fn places(&self, communicator: CommId, rank: RankId) -> Places {
        let mut communicators = lock(&self.communicators);
        let Communicator { roll, places } = communicators.entry(communicator).or_insert_with(|| {
            Communicator { roll: Arc::new(Roll::new(communicator, self.mesh)), places: BTreeMap::new() }
        });
        let place = |strides: Strides| {
            let place = places.entry((strides, strides.first(rank))).or_insert_with(|| {
                let is_gone = |rank: RankId| {
                    self.ranks.get(rank.index()).is_none_or(|seat| seat.gone.load(Ordering::SeqCst))
                };
                let members = strides.members(rank).map(|rank| (rank, is_gone(rank))).collect();
                let place = Arc::new(Rendezvous::new(communicator, members));
                self.poison.watch(Arc::<Rendezvous>::downgrade(&place));
                place
            });
            (strides, Arc::clone(place))
        };
        let of = self.mesh.groups().map(|group| self.mesh.strides(group)).map(place).collect();
        Places { roll: Arc::clone(roll), of }
    }

    /// Notes that `rank` takes part in nothing any more.
    fn depart(&self, rank: RankId) {
        let communicators = lock(&self.communicators);
        if let Some(seat) = self.ranks.get(rank.index()) {
            seat.gone.store(true, Ordering::SeqCst);
        }
        for place in communicators.values().flat_map(|communicator| communicator.places.values()) {
            place.depart(rank);
        }
    }
}

/// A rank's presence in its world, held by its backend and each of its lanes.
#[derive(Debug)]
pub(super) struct Presence {
    pub(super) world: Arc<World>,
    pub(super) rank: RankId,
    /// Has a task met a master or a moment from which no training goes on?
    pub(super) diverged: AtomicBool,
    /// The first call that wrote a gradient which is not finite, and of which weight.
    pub(super) non_finite: Mutex<Option<(CallId, WeightId)>>,
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.world.depart(self.rank);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn world(ranks: u32) -> CpuWorld {
        CpuWorld::new(Mesh::new(ranks).unwrap(), CpuOptions::default()).unwrap()
    }

    #[test]
    fn each_rank_has_one_backend() {
        let world = world(2);
        let first = world.backend(RankId::new(1)).unwrap();
        assert_eq!(world.backend(RankId::new(1)).unwrap_err(), BackendError::Taken { rank: RankId::new(1) });
        drop(first);
        assert_eq!(world.backend(RankId::new(1)).unwrap_err(), BackendError::Taken { rank: RankId::new(1) });
        let outside = world.backend(RankId::new(2)).unwrap_err();
        assert_eq!(outside, BackendError::NoSuchRank { rank: RankId::new(2), ranks: 2 });
    }

    #[test]
    fn a_link_without_a_speed_is_refused() {
        for bytes_per_s in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let link = Some(Pace { bytes_per_s, latency: Duration::ZERO });
            let made = CpuWorld::new(Mesh::new(1).unwrap(), CpuOptions { link });
            assert!(matches!(made, Err(BackendError::Link { .. })), "{bytes_per_s}");
        }
    }
}
