//! What the ranks of one world share: the clock, the poison, where everybody's memory lies.
//!
//! Laws:
//! - No process-global state: ranks meet through the [`CudaWorld`] their backends were made from.
//! - Ranks meet on the host when they are set up and never in a step; nobody waits there past the deadline,
//!   and whoever did not come is named.
//! - The first reason poisons the world for good.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::address::DeviceAddress;
use super::backend::CudaBackend;
use super::context::{Context, DeviceOrdinal};
use super::failure::CudaFailure;
use super::library::Library;
use super::nccl::UniqueId;
use super::signal::Signals;
use super::stream::Stream;
use crate::backend::bell::lock;
use crate::backend::clock::Clock;
use crate::backend::poison::Poison;
use crate::config::Reduce;
use crate::id::{CommId, RankId};
use crate::model::Mesh;

/// How bytes get from one GPU to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Kernels read the peers' memory. Needs GPUs that reach each other.
    Peer,
    /// NCCL's collectives. Needs a GPU of its own for each rank.
    Nccl,
}

/// Choices of a CUDA world.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaOptions {
    /// The GPU of every rank, in rank order. Ranks may share one, for tests: they also share its hardware queues, where
    /// a stream of one rank may stand behind a stream of another that waits for the first. Four ranks of
    /// one GPU got on with `CUDA_DEVICE_MAX_CONNECTIONS=32` in the environment.
    pub devices: Vec<DeviceOrdinal>,
    /// `None` takes NCCL where it is installed and each rank has a GPU of its own, and peer reads elsewhere.
    pub transport: Option<Transport>,
    /// How gradients are summed; [`Reduce::Nccl`] needs [`Transport::Nccl`].
    pub reduce: Reduce,
    /// Whether begin and end of every task are measured on the device.
    pub timeline: bool,
    /// How long a rank waits for the others, and for a lane to get on, before it gives up the world.
    pub deadline: Duration,
}

impl CudaOptions {
    /// One rank on each device, everything else as usual.
    #[must_use]
    pub fn new(devices: Vec<DeviceOrdinal>) -> Self {
        Self {
            devices,
            transport: None,
            reduce: Reduce::Ordered,
            timeline: false,
            deadline: Duration::from_secs(30),
        }
    }
}

/// Ranks as GPUs of this process, one thread each. One value makes the backends of all its ranks.
#[derive(Debug)]
pub struct CudaWorld {
    shared: Arc<World>,
}

impl CudaWorld {
    /// A world of as many ranks as devices; its clock starts now.
    ///
    /// # Errors
    /// [`CudaFailure`] when a library or a device is missing, or the devices cannot do what was asked.
    pub fn new(options: CudaOptions) -> Result<Self, CudaFailure> {
        let count = u32::try_from(options.devices.len()).unwrap_or(u32::MAX);
        let mesh = Mesh::new(count).map_err(|error| CudaFailure::Refused(error.to_string()))?;
        let contexts: Vec<_> = options
            .devices
            .iter()
            .map(|device| Context::retain(*device).map(Arc::new))
            .collect::<Result<_, _>>()?;
        let transport = transport(&options, &contexts)?;
        let shared = World {
            mesh,
            transport,
            options,
            clock: Clock::start(),
            poison: Poison::default(),
            contexts,
            taken: mesh.iter().map(|_| AtomicBool::new(false)).collect(),
            meeting: Mutex::default(),
            changed: Condvar::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The backend of one rank; it may move to the thread that drives the rank.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for a rank outside of the mesh, or the second time.
    pub fn backend(&self, rank: RankId) -> Result<CudaBackend, CudaFailure> {
        let taken = self.shared.taken.get(rank.index());
        match taken.map(|taken| taken.swap(true, Ordering::SeqCst)) {
            Some(false) => CudaBackend::new(Arc::clone(&self.shared), rank),
            Some(true) => Err(CudaFailure::Refused(format!("the backend of {rank} was taken before"))),
            None => Err(CudaFailure::Refused(format!(
                "{rank} is not in a world of {} ranks; ranks are counted from 0",
                self.shared.mesh.ranks()
            ))),
        }
    }

    /// The backends of all ranks, in rank order.
    ///
    /// # Errors
    /// As [`CudaWorld::backend`].
    pub fn backends(&self) -> Result<Vec<CudaBackend>, CudaFailure> {
        self.shared.mesh.iter().map(|rank| self.backend(rank)).collect()
    }

    /// How bytes get from one GPU of this world to another.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.shared.transport
    }
}

/// The transport asked for, or the best there is; peers are made reachable.
fn transport(options: &CudaOptions, contexts: &[Arc<Context>]) -> Result<Transport, CudaFailure> {
    let mut devices = options.devices.clone();
    devices.sort_unstable();
    devices.dedup();
    let alone = devices.len() == contexts.len();
    match options.transport {
        Some(Transport::Nccl) if !alone => Err(CudaFailure::Refused(
            "NCCL needs a GPU of its own for each rank; name each GPU once, or set transport = \"peer\""
                .to_owned(),
        )),
        Some(Transport::Nccl) => Library::Nccl.open().map(|()| Transport::Nccl),
        Some(Transport::Peer) if options.reduce == Reduce::Nccl => Err(CudaFailure::Refused(
            "reduce = \"nccl\" and transport = \"peer\" exclude each other; set reduce = \"ordered\""
                .to_owned(),
        )),
        Some(Transport::Peer) => reach_all(contexts).map(|()| Transport::Peer),
        None if options.reduce == Reduce::Nccl => Library::Nccl.open().map(|()| Transport::Nccl),
        None if contexts.len() > 1 && alone && Library::Nccl.open().is_ok() => Ok(Transport::Nccl),
        None => reach_all(contexts).map(|()| Transport::Peer),
    }
}

fn reach_all(contexts: &[Arc<Context>]) -> Result<(), CudaFailure> {
    for (one, other) in contexts.iter().flat_map(|one| contexts.iter().map(move |other| (one, other))) {
        if !one.reach(other)? {
            return Err(CudaFailure::Refused(format!(
                "{} cannot reach the memory of {}; install NCCL and set transport = \"nccl\"",
                one.ordinal(),
                other.ordinal()
            )));
        }
    }
    Ok(())
}

/// Where one rank's memory lies, for its peers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    /// The arena.
    pub(super) arena: DeviceAddress,
    /// The words behind it, with which ranks signal each other.
    pub(super) signals: DeviceAddress,
}

/// The shared part of a world.
#[derive(Debug)]
pub(super) struct World {
    pub(super) mesh: Mesh,
    pub(super) options: CudaOptions,
    pub(super) transport: Transport,
    pub(super) clock: Clock,
    pub(super) poison: Poison,
    pub(super) contexts: Vec<Arc<Context>>,
    taken: Vec<AtomicBool>,
    meeting: Mutex<Meeting>,
    changed: Condvar,
}

/// What ranks tell each other while they are set up.
#[derive(Debug, Default)]
struct Meeting {
    homes: BTreeMap<RankId, Home>,
    ids: BTreeMap<CommId, UniqueId>,
    /// How often each rank has come to [`World::gather`].
    rounds: BTreeMap<RankId, u64>,
    /// A rank whose backend is gone.
    gone: Option<RankId>,
}

impl World {
    /// Tells the others where this rank's memory lies.
    pub(super) fn settle(&self, rank: RankId, home: Home) -> Result<(), CudaFailure> {
        let before = lock(&self.meeting).homes.insert(rank, home);
        self.changed.notify_all();
        match before {
            None => Ok(()),
            Some(_) => Err(CudaFailure::Refused(format!("{rank} has an arena already"))),
        }
    }

    /// Where everybody's memory lies, in rank order, once everybody has some.
    pub(super) fn homes(&self) -> Result<Vec<Home>, CudaFailure> {
        self.meet(
            |meeting| {
                let all = meeting.homes.len() == self.mesh.ranks() as usize;
                all.then(|| meeting.homes.values().copied().collect())
            },
            |meeting| {
                let missing = self.mesh.iter().filter(|rank| !meeting.homes.contains_key(rank));
                format!("{} did not reserve memory", listed(missing))
            },
        )
    }

    /// Waits until every rank has come here as often as this one.
    pub(super) fn gather(&self, rank: RankId) -> Result<(), CudaFailure> {
        let round = {
            let mut meeting = lock(&self.meeting);
            let rounds = meeting.rounds.entry(rank).or_default();
            *rounds += 1;
            *rounds
        };
        self.changed.notify_all();
        let absent = |meeting: &Meeting| {
            let behind = |rank: &RankId| meeting.rounds.get(rank).is_none_or(|rounds| *rounds < round);
            self.mesh.iter().filter(behind).collect::<Vec<_>>()
        };
        self.meet(
            |meeting| absent(meeting).is_empty().then_some(()),
            |meeting| format!("{} did not come", listed(absent(meeting).into_iter())),
        )
    }

    /// `rank` comes to no meeting any more.
    pub(super) fn depart(&self, rank: RankId) {
        lock(&self.meeting).gone.get_or_insert(rank);
        self.changed.notify_all();
    }

    /// Sets every word on which streams of `rank` may wait.
    pub(super) fn release(&self, rank: RankId, transfers: &Stream) -> Result<(), CudaFailure> {
        let home = lock(&self.meeting).homes.get(&rank).copied();
        let Some(home) = home else { return Ok(()) };
        let words = vec![1_u32; Signals::new(self.mesh.ranks() as usize).words()];
        transfers.upload(bytemuck::cast_slice(&words), home.signals)
    }

    /// The id under which all ranks open a communicator; rank 0 makes it.
    pub(super) fn unique_id(&self, rank: RankId, communicator: CommId) -> Result<UniqueId, CudaFailure> {
        if rank.index() == 0 {
            let id = UniqueId::make()?;
            lock(&self.meeting).ids.insert(communicator, id);
            self.changed.notify_all();
            return Ok(id);
        }
        self.meet(
            |meeting| meeting.ids.get(&communicator).copied(),
            |_| format!("rank 0 did not open {communicator}"),
        )
    }

    fn meet<T>(
        &self,
        ready: impl Fn(&Meeting) -> Option<T>,
        missing: impl Fn(&Meeting) -> String,
    ) -> Result<T, CudaFailure> {
        let until = Instant::now() + self.options.deadline;
        let mut meeting = lock(&self.meeting);
        loop {
            if let Some(found) = ready(&meeting) {
                return Ok(found);
            }
            if let Some(reason) = self.poison.reason() {
                return Err(CudaFailure::Refused(format!("the world is poisoned: {reason}")));
            }
            if let Some(rank) = meeting.gone {
                return Err(CudaFailure::Refused(format!("{rank} has gone, and {}", missing(&meeting))));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let (missing, deadline) = (missing(&meeting), self.options.deadline);
                return Err(CudaFailure::Refused(format!("{missing} within {deadline:?}")));
            }
            // Poison has no bell here, so it is looked at a few times a second.
            let pause = left.min(Duration::from_millis(100));
            meeting = self
                .changed
                .wait_timeout(meeting, pause)
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .0;
        }
    }
}

fn listed(ranks: impl Iterator<Item = RankId>) -> String {
    ranks.map(|rank| rank.to_string()).collect::<Vec<_>>().join(", ")
}
