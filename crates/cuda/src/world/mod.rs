//! The world of GPU ranks: their clock, their meeting place, and the addresses of their memory.
//!
//! Laws:
//! - No process-global state: ranks meet through the [`crate::CudaWorld`] their backends were made from.
//! - Ranks meet on the host when they are set up and in the first step of a plan. Later they do so only where
//!   some share a GPU, within every collective ([`HostMeeting`]). No rank waits there past the deadline, and
//!   those that did not come are named (RV-2 in [`warpweft_backend::rendezvous`]).
//! - The first reason poisons the world for good, in every process (RV-3).
//! - Memory is freed when no rank of any process can reach it any more: at its end a world gives back what
//!   others lent, waits until all have done so, and only then drops its own. A world of several processes
//!   that was poisoned, or in which some process did not do so, leaves its own to the end of the process. So
//!   does one with a GPU that was abandoned: what waits there writes into peers when it is released.

mod description;
pub(crate) mod hosts;
pub(crate) mod members;
pub(crate) mod placement;
pub(crate) mod ranks;
pub(crate) mod team;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::placement::Network;
use self::team::Team;
use crate::device::context::Context;
use crate::device::ipc::{ForeignMemory, HANDLE, lend};
use crate::device::memory::DeviceMemory;
use crate::failure::CudaFailure;
use crate::options::{CudaOptions, Transport};
use crate::shutdown::all_released::Released;
use crate::shutdown::bounded_wait::wait_until;
use crate::timing::source::Times;
use crate::transport::signal::{Home, Signals};
use crate::transport::unique_id::UniqueId;
use warpweft_backend::BackendError;
use warpweft_backend::bell::lock;
use warpweft_backend::clock::Clock;
use warpweft_backend::rendezvous::{Reader, Rendezvous, RendezvousError, Topic, Truncated, Writer};
use warpweft_base::id::RankId;
use warpweft_plan::model::{Group, Mesh};

/// The part of a world that the ranks of this process share.
#[derive(Debug)]
pub(super) struct World {
    pub(super) mesh: Mesh,
    pub(super) options: CudaOptions,
    pub(super) network: Network,
    pub(super) clock: Clock,
    /// What times all tasks, if something does.
    pub(super) times: Option<Times>,
    /// Where ranks meet; it is also what is poisoned.
    pub(super) rendezvous: Arc<Rendezvous>,
    /// Whether a GPU serves several ranks.
    shares_gpus: bool,
    /// The contexts of the ranks of this process.
    contexts: Vec<Arc<Context>>,
    taken: Vec<AtomicBool>,
    /// How far the ranks of this process are with ending their waits.
    pub(super) released: Released,
    homes: Mutex<Homes>,
    /// Held while memory of other processes is opened: two ranks of one context that open the same at once were
    /// an error that it is mapped already.
    opening: Mutex<()>,
}

#[derive(Debug, Default)]
struct Homes {
    /// Where the memory of this process's ranks is.
    own: BTreeMap<RankId, Home>,
    /// Where every rank's memory is, as each rank of this process reaches it.
    seen: BTreeMap<RankId, Vec<Home>>,
    /// What ranks of other processes lent.
    foreign: Vec<ForeignMemory>,
    /// Memory of this process's ranks, kept until no rank has a lane any more: a peer may still reach it when
    /// its owner is gone.
    memory: BTreeMap<RankId, Arc<DeviceMemory>>,
}

impl World {
    pub(super) fn new(
        mesh: Mesh,
        network: Network,
        options: CudaOptions,
        rendezvous: Arc<Rendezvous>,
        contexts: Vec<Arc<Context>>,
        shares_gpus: bool,
        times: Option<Times>,
    ) -> Self {
        Self {
            mesh,
            network,
            options,
            clock: Clock::start(),
            times,
            rendezvous,
            shares_gpus,
            taken: contexts.iter().map(|_| AtomicBool::new(false)).collect(),
            contexts,
            released: Released::default(),
            homes: Mutex::default(),
            opening: Mutex::default(),
        }
    }

    /// The ranks that a collective of `group` brings together, as `rank` sees them.
    pub(super) fn team(&self, rank: RankId, group: Group) -> Team {
        Team::of(self.network, self.mesh, rank, group)
    }

    /// The place of a rank among those of this process.
    fn place(&self, rank: RankId) -> Option<usize> {
        rank.index().checked_sub(self.rendezvous.range().start)
    }

    /// The context of a rank of this process.
    pub(super) fn context(&self, rank: RankId) -> Option<&Arc<Context>> {
        self.contexts.get(self.place(rank)?)
    }

    /// Takes the backend of `rank`; says whether it was taken before. `None` for a rank of another process or
    /// of none.
    pub(super) fn take(&self, rank: RankId) -> Option<bool> {
        self.taken.get(self.place(rank)?).map(|taken| taken.swap(true, Ordering::SeqCst))
    }

    /// Whether steps may be captured. Captures in which ranks of one GPU wait for each other were seen to
    /// stand still.
    pub(super) fn can_capture(&self) -> Result<(), CudaFailure> {
        if self.shares_gpus {
            return Err(CudaFailure::Refused(
                "a world whose ranks share a GPU is not captured, and its steps are issued anew each time; give \
                 each rank a GPU of its own, or set capture = \"off\""
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Says where this rank's memory is.
    pub(super) fn settle(
        &self,
        rank: RankId,
        home: Home,
        memory: Arc<DeviceMemory>,
    ) -> Result<(), CudaFailure> {
        let mut homes = lock(&self.homes);
        if homes.memory.contains_key(&rank) {
            return Err(CudaFailure::Refused(format!("{rank} has an arena already")));
        }
        homes.memory.insert(rank, memory);
        homes.own.insert(rank, home);
        Ok(())
    }

    /// Where every rank's memory is for `rank`, in rank order, once all have some. NCCL needs no addresses of
    /// other processes; for these, and for other hosts, they are null.
    pub(super) fn homes(&self, rank: RankId) -> Result<Vec<Home>, CudaFailure> {
        let own = {
            let homes = lock(&self.homes);
            if let Some(seen) = homes.seen.get(&rank) {
                return Ok(seen.clone());
            }
            self.lent(&homes, rank)?
        };
        let all = self.rendezvous.exchange(rank, Topic::Homes, &own).map_err(refused)?;
        let mut foreign = Vec::new();
        let seen = (all.iter().enumerate())
            .map(|(other, lent)| self.reach(rank, RankId::at(other), lent, &mut foreign))
            .collect::<Result<Vec<_>, _>>()?;
        let mut homes = lock(&self.homes);
        homes.foreign.append(&mut foreign);
        homes.seen.insert(rank, seen.clone());
        Ok(seen)
    }

    /// What ranks of other processes need to reach the memory of `rank`.
    fn lent(&self, homes: &Homes, rank: RankId) -> Result<Vec<u8>, CudaFailure> {
        let missing = || CudaFailure::Refused(format!("{rank} has no arena"));
        let (home, memory) = homes.own.get(&rank).zip(homes.memory.get(&rank)).ok_or_else(missing)?;
        if self.rendezvous.is_whole() || self.network.transport == Transport::Nccl {
            return Ok(Vec::new());
        }
        let after = |address: crate::DeviceAddress| address.number() - home.arena.number();
        let mut writer = Writer::default();
        writer.raw(&lend(memory)?).long(after(home.signals)).long(after(home.receive_buffer));
        Ok(writer.take())
    }

    /// Where the memory of `other` is for `rank`.
    fn reach(
        &self,
        rank: RankId,
        other: RankId,
        lent: &[u8],
        foreign: &mut Vec<ForeignMemory>,
    ) -> Result<Home, CudaFailure> {
        let missing = |rank: RankId| CudaFailure::Refused(format!("{rank} has no arena"));
        if self.rendezvous.range().contains(&other.index()) {
            return lock(&self.homes).own.get(&other).copied().ok_or_else(|| missing(other));
        }
        if self.network.transport == Transport::Nccl || !self.network.hosts.share_host(rank, other) {
            let null = crate::DeviceAddress::NULL;
            return Ok(Home { arena: null, signals: null, receive_buffer: null });
        }
        let (handle, signals, receive_buffer) = read(lent).map_err(|_| missing(other))?;
        let context = self.context(rank).ok_or_else(|| missing(rank))?;
        let one_at_a_time = lock(&self.opening);
        let opened = ForeignMemory::open(context, handle);
        drop(one_at_a_time);
        let opened = opened.map_err(|failure| {
            CudaFailure::Refused(format!(
                "the memory of {other}, in another process, cannot be opened: {failure}; every process must see the \
                 GPUs of the others (CUDA_VISIBLE_DEVICES) and share their IPC namespace, or set transport = \"nccl\""
            ))
        })?;
        let arena = opened.address();
        foreign.push(opened);
        Ok(Home { arena, signals: arena.plus(signals), receive_buffer: arena.plus(receive_buffer) })
    }

    /// Waits until every rank has come here as often as this one.
    pub(super) fn gather(&self, rank: RankId) -> Result<(), CudaFailure> {
        self.rendezvous.exchange(rank, Topic::Meeting, &[]).map(drop).map_err(refused)
    }

    /// Notes that `rank` comes to no meeting any more.
    pub(super) fn depart(&self, rank: RankId) {
        self.rendezvous.leave(rank, &format!("{rank} has gone"));
    }

    /// Where the memory of a rank of this process is, once it has some.
    pub(super) fn home(&self, rank: RankId) -> Option<Home> {
        lock(&self.homes).own.get(&rank).copied()
    }

    /// The words with which ranks of this world signal each other.
    pub(super) const fn signals(&self) -> Signals {
        Signals::new(self.mesh.ranks() as usize)
    }

    /// A lane of some GPU does not run out. What is given back on another, which reaches that one's memory,
    /// might wait for it too, so all GPUs of the world in this process are left as they are.
    pub(super) fn abandon(&self) {
        self.contexts.iter().for_each(|context| context.abandon());
    }

    /// The id under which `rank` opens its next communicator, with others; `first` of them makes it. All
    /// ranks of the world come here together, whichever communicator they open.
    pub(super) fn unique_id(&self, rank: RankId, first: RankId) -> Result<UniqueId, CudaFailure> {
        let made = if rank == first { UniqueId::make()?.to_bytes().to_vec() } else { Vec::new() };
        let all = self.rendezvous.exchange(rank, Topic::Communicators, &made).map_err(refused)?;
        let made = all.get(first.index()).and_then(|bytes| UniqueId::from_bytes(bytes));
        made.ok_or_else(|| CudaFailure::Refused(format!("{first} made no communicator")))
    }

    /// Poisons the world, unless it is, and returns the error that every wait ends in from now on.
    pub(super) fn poison(&self, reason: impl AsRef<str>) -> BackendError {
        BackendError::Poisoned { reason: self.rendezvous.end(reason.as_ref()) }
    }

    /// Waits until the world has ended, `patience` at most.
    pub(super) fn await_end(&self, patience: Duration) {
        const PAUSE: Duration = Duration::from_millis(2);
        wait_until(patience, PAUSE, || self.rendezvous.ended().is_some());
    }

    /// [`BackendError::Poisoned`] if the world is poisoned.
    pub(super) fn check(&self) -> Result<(), BackendError> {
        match self.rendezvous.ended() {
            None => Ok(()),
            Some(reason) => Err(BackendError::Poisoned { reason: reason.to_owned() }),
        }
    }
}

/// Where one rank of a world whose ranks share GPUs meets the others on the host: between the signals of every
/// meeting and the waits for them.
///
/// Streams of one GPU share its hardware queues, and a wait at the head of a queue holds up what is behind it. If
/// that is the signal waited for, neither ends. But if every wait is enqueued after its signal, then of all work
/// that is left the earliest can always run: what it is queued after came earlier, and so did what it waits for.
/// This holds as long as all waits of ranks for each other are those of meetings. No kernel may wait for a peer here.
#[derive(Clone, Debug)]
pub(super) struct HostMeeting {
    world: Arc<World>,
    rank: RankId,
}

impl HostMeeting {
    /// For a rank of `world`; `None` where every rank has a GPU of its own.
    pub(super) fn of(world: &Arc<World>, rank: RankId) -> Option<Self> {
        world.shares_gpus.then(|| Self { world: Arc::clone(world), rank })
    }

    /// Waits until every rank is here. All ranks enqueue all their collectives in one order.
    pub(super) fn attend(&self) -> Result<(), CudaFailure> {
        self.world.gather(self.rank)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let homes = std::mem::take(&mut *lock(&self.homes));
        // Alike in every process, whichever of them borrowed.
        let lent = self.network.transport == Transport::Peer
            && !self.rendezvous.is_whole()
            && !homes.seen.is_empty();
        drop(homes.foreign);
        let is_closed = || {
            let nothing = vec![Vec::new(); self.rendezvous.range().len()];
            self.rendezvous.ended().is_none()
                && self.rendezvous.exchange_all(Topic::Closing, &nothing).is_ok()
        };
        if lent && !is_closed() || self.contexts.iter().any(|context| context.is_abandoned()) {
            // A rank that did not come may still have it open, and copies on their way into it.
            homes.memory.into_values().for_each(std::mem::forget);
        }
    }
}

/// The handle, and the offsets of the words and the receive buffer.
fn read(lent: &[u8]) -> Result<([u8; HANDLE], usize, usize), Truncated> {
    let mut reader = Reader::new(lent);
    let handle = reader.fixed()?;
    let mut after = || reader.long().and_then(|bytes| usize::try_from(bytes).map_err(|_| Truncated));
    let places = (handle, after()?, after()?);
    reader.end()?;
    Ok(places)
}

/// What a rank says when a meeting failed.
pub(super) fn refused(error: RendezvousError) -> CudaFailure {
    CudaFailure::Refused(error.to_string())
}
