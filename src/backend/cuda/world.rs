//! What the ranks of one world share: the clock, the poison, where everybody's memory lies.
//!
//! Laws:
//! - No process-global state: ranks meet through the [`super::CudaWorld`] their backends were made from.
//! - Ranks meet on the host when they are set up and in the first step of a plan, never later; nobody waits there
//!   past the deadline, and whoever did not come is named.
//! - The first reason poisons the world for good.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::context::Context;
use super::failure::CudaFailure;
use super::memory::DeviceMemory;
use super::options::{CudaOptions, Transport};
use super::signal::{Home, Signals};
use super::stream::Stream;
use super::unique_id::UniqueId;
use crate::backend::bell::lock;
use crate::backend::clock::Clock;
use crate::backend::poison::Poison;
use crate::id::{CommId, RankId};
use crate::model::Mesh;

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
    /// The memory behind them, kept until no rank has a lane any more: a peer may still read it when its owner is gone.
    memory: Vec<Arc<DeviceMemory>>,
    ids: BTreeMap<CommId, UniqueId>,
    /// How often each rank has come to [`World::gather`].
    rounds: BTreeMap<RankId, u64>,
    /// A rank whose backend is gone.
    gone: Option<RankId>,
}

impl World {
    pub(super) fn new(
        mesh: Mesh,
        transport: Transport,
        options: CudaOptions,
        contexts: Vec<Arc<Context>>,
    ) -> Self {
        Self {
            mesh,
            transport,
            options,
            clock: Clock::start(),
            poison: Poison::default(),
            contexts,
            taken: mesh.iter().map(|_| AtomicBool::new(false)).collect(),
            meeting: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Was the backend of `rank` taken before? It is now. `None` for a rank outside of the mesh.
    pub(super) fn take(&self, rank: RankId) -> Option<bool> {
        self.taken.get(rank.index()).map(|taken| taken.swap(true, Ordering::SeqCst))
    }

    /// May steps be recorded? Recordings in which ranks of one GPU wait for each other were seen to stand still.
    pub(super) fn recordable(&self) -> Result<(), CudaFailure> {
        let mut ordinals: Vec<_> = self.contexts.iter().map(|context| context.ordinal()).collect();
        ordinals.sort_unstable();
        if ordinals.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(CudaFailure::Refused(
                "a world whose ranks share a GPU is not recorded, and its steps are issued anew each time; give \
                 each rank a GPU of its own, or set capture = \"off\""
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Tells the others where this rank's memory lies.
    pub(super) fn settle(
        &self,
        rank: RankId,
        home: Home,
        memory: Arc<DeviceMemory>,
    ) -> Result<(), CudaFailure> {
        let before = {
            let mut meeting = lock(&self.meeting);
            meeting.memory.push(memory);
            meeting.homes.insert(rank, home)
        };
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
