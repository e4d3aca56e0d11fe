//! NCCL communicators.
//!
//! Laws:
//! - **CO-1** A communicator belongs to one lane; its collectives are enqueued in the lane's order, the same
//!   on every rank.
//! - A communicator of a poisoned world is aborted, any other is destroyed: destroying one whose peers are
//!   gone would wait for them.
//! - Aborting ends too. NCCL's call waits for ever where a peer's process is stopped and neither runs nor
//!   ends. So a thread makes the call, and is left with the communicator when it takes longer than
//!   [`LONGEST_ABORT`].
//! - Members are named by their ranks in the world, whatever their numbers in the communicator.
//! - Between hosts, when it is open every member has sent to every other. So steps find connections made and
//!   kernels loaded. Otherwise the driver might wait in a step for streams to load them, and these for a word
//!   of a neighbour.
//! - This library cannot end one wait: NCCL's opening call, for a peer that is stopped just then.
//! - Bytes travel as bytes: the wire knows no formats.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cudarc::nccl::{result, sys};

use crate::device::address::DeviceAddress;
use crate::device::context::Context;
use crate::device::memory::DeviceMemory;
use crate::device::stream::Stream;
use crate::failure::CudaFailure;
use crate::options::Transport;
use crate::shutdown::bounded_wait::wait_until;
use crate::world::World;
use crate::world::members::Members;
use warpweft_base::id::RankId;

/// How long an abort may take before it is no longer waited for.
const LONGEST_ABORT: Duration = Duration::from_secs(3);

/// A communicator on its way to the thread that aborts it.
struct Handle(sys::ncclComm_t);

// SAFETY: the handle is a name; NCCL's abort may be called from any thread.
unsafe impl Send for Handle {}

/// The pause between two polls of a stream while NCCL opens or aborts. All polls together may take the
/// deadline or [`LONGEST_ABORT`].
const PAUSE: Duration = Duration::from_micros(50);

/// One rank's end of a communicator.
pub(crate) struct Communicator {
    handle: sys::ncclComm_t,
    members: Members,
    context: Arc<Context>,
    world: Arc<World>,
    /// Whether a thread got the command to abort.
    aborting: AtomicBool,
    /// Whether it has done so.
    aborted: Arc<AtomicBool>,
}

// SAFETY: a communicator may be used from any thread, one at a time; only the rank's thread uses it, except
// for `abort`, which NCCL allows from others.
unsafe impl Send for Communicator {}
// SAFETY: as above.
unsafe impl Sync for Communicator {}

/// One transfer of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transfer {
    /// `bytes` of every member, one after the other.
    AllGather { from: DeviceAddress, to: DeviceAddress, bytes: usize },
    /// Bytes for one peer.
    Send { from: DeviceAddress, bytes: usize, peer: RankId },
    /// Bytes of one peer.
    Receive { to: DeviceAddress, bytes: usize, peer: RankId },
    /// f32 sums of all members' values, `count` for each member.
    ReduceScatter { from: DeviceAddress, to: DeviceAddress, count: usize },
}

impl Transfer {
    /// Names the peer by another number.
    pub(crate) fn renumber(&mut self, number: impl Fn(RankId) -> RankId) {
        match self {
            Self::Send { peer, .. } | Self::Receive { peer, .. } => *peer = number(*peer),
            Self::AllGather { .. } | Self::ReduceScatter { .. } => {}
        }
    }
}

impl Communicator {
    /// Opens this rank's end; returns when every member has opened its own. Every rank of the world opens
    /// some communicator meanwhile. `stream` is idle.
    pub(crate) fn open(
        world: &Arc<World>,
        rank: RankId,
        members: Members,
        context: &Arc<Context>,
        stream: &Stream,
    ) -> Result<Self, CudaFailure> {
        let id = world.unique_id(rank, members.first())?;
        // Dropped after the communicator if opening fails: giving it back waits for what the greeting
        // enqueued, which waits for peers until the communicator is aborted. And without it no rank begins to
        // open.
        let place = match world.network.transport {
            Transport::Peer => Some(DeviceMemory::zeroed(context, stream, members.count())?),
            Transport::Nccl => None,
        };
        // Opening waits for all ranks and for ever, so it begins when all have come.
        world.gather(rank)?;
        context.make_current()?;
        let (count, own) = (number(members.count()), number(members.number(rank)));
        let mut handle = std::ptr::null_mut();
        // SAFETY: the context is current, `handle` outlives the call, and the id is one NCCL made.
        unsafe { result::comm_init_rank(&raw mut handle, count, id.0, own) }
            .map_err(CudaFailure::nccl("ncclCommInitRank"))?;
        let opened = Self {
            handle,
            members,
            context: Arc::clone(context),
            world: Arc::clone(world),
            aborting: AtomicBool::new(false),
            aborted: Arc::default(),
        };
        if let Some(place) = &place {
            // The world ends first, so that what is dropped here is aborted: peers may be in the middle of
            // their greeting.
            let greeted = opened.greet(rank, stream, place.address());
            greeted.inspect_err(|failure| drop(world.poison(failure.to_string())))?;
        }
        Ok(opened)
    }

    /// Sends a byte to every other member, and waits for theirs; at `place` there is one byte for each
    /// member.
    fn greet(&self, rank: RankId, stream: &Stream, place: DeviceAddress) -> Result<(), CudaFailure> {
        let byte = |member: RankId| place.plus(self.members.number(member));
        let others = self.members.iter().filter(|member| *member != rank);
        let transfers = others.flat_map(|peer| {
            let send = Transfer::Send { from: byte(rank), bytes: 1, peer };
            [send, Transfer::Receive { to: byte(peer), bytes: 1, peer }]
        });
        self.enqueue(stream, &transfers.collect::<Vec<_>>())?;
        let begun = Instant::now();
        while !stream.is_done()? {
            let ended = self.world.check().map_err(|error| CudaFailure::Refused(error.to_string()));
            let late = begun.elapsed() > self.world.options.deadline;
            if late && ended.is_ok() {
                let words = format!("{rank}: the first bytes by NCCL did not arrive within the deadline");
                drop(self.world.poison(&words));
            }
            ended?;
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Enqueues `transfers` as one group, which the stream's meter counts as one call.
    pub(crate) fn enqueue(&self, stream: &Stream, transfers: &[Transfer]) -> Result<(), CudaFailure> {
        stream.meter().driver(|| self.group(stream, transfers))
    }

    fn group(&self, stream: &Stream, transfers: &[Transfer]) -> Result<(), CudaFailure> {
        result::group_start().map_err(CudaFailure::nccl("ncclGroupStart"))?;
        let each = transfers.iter().try_for_each(|transfer| self.transfer(stream, *transfer));
        // A group that was begun is ended, whatever its parts said.
        let ended = result::group_end().map_err(CudaFailure::nccl("ncclGroupEnd"));
        each?;
        ended.map(drop)
    }

    fn transfer(&self, stream: &Stream, transfer: Transfer) -> Result<(), CudaFailure> {
        let (comm, stream) = (self.handle, stream.handle().cast());
        let number = |rank: RankId| number(self.members.number(rank));
        let source = |address: DeviceAddress| address.number() as *const std::ffi::c_void;
        let target = |address: DeviceAddress| address.number() as *mut std::ffi::c_void;
        let (bytes_type, f32_type) = (sys::ncclDataType_t::ncclUint8, sys::ncclDataType_t::ncclFloat32);
        // SAFETY: the communicator and the stream are alive; ranges were checked when they were bound.
        let outcome = unsafe {
            match transfer {
                Transfer::AllGather { from, to, bytes } => {
                    result::all_gather(source(from), target(to), bytes, bytes_type, comm, stream)
                }
                Transfer::Send { from, bytes, peer } => {
                    result::send(source(from), bytes, bytes_type, number(peer), comm, stream)
                }
                Transfer::Receive { to, bytes, peer } => {
                    result::recv(target(to), bytes, bytes_type, number(peer), comm, stream)
                }
                Transfer::ReduceScatter { from, to, count } => result::reduce_scatter(
                    source(from),
                    target(to),
                    count,
                    f32_type,
                    sys::ncclRedOp_t::ncclSum,
                    comm,
                    stream,
                ),
            }
        };
        outcome.map(drop).map_err(CudaFailure::nccl("an NCCL transfer"))
    }

    /// Ends every wait on these communicators, which are of no use from then on. Says whether that ended in
    /// time.
    pub(crate) fn abort<'a>(communicators: impl Iterator<Item = &'a Self> + Clone) -> bool {
        communicators.clone().for_each(Self::begin_abort);
        wait_until(LONGEST_ABORT, PAUSE, || {
            communicators.clone().all(|one| one.aborted.load(Ordering::SeqCst))
        })
    }

    /// Lets a thread abort, if none did before.
    pub(crate) fn begin_abort(&self) {
        if self.aborting.swap(true, Ordering::SeqCst) {
            return;
        }
        let (handle, context, aborted) =
            (Handle(self.handle), Arc::clone(&self.context), Arc::clone(&self.aborted));
        let abort = move || {
            let Handle(handle) = { handle };
            if context.make_current().is_ok() {
                // SAFETY: NCCL allows aborting while the communicator is in use, and it is done once: the
                // handle is neither aborted nor destroyed again.
                drop(unsafe { result::comm_abort(handle) });
            }
            aborted.store(true, Ordering::SeqCst);
        };
        // Without a thread the communicator is left as it is; its process is ending anyway.
        drop(std::thread::Builder::new().name("warpweft abort".to_owned()).spawn(abort));
    }
}

pub(crate) fn number(value: usize) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.world.check().is_err() {
            return self.begin_abort();
        }
        if self.context.make_current().is_ok() {
            // SAFETY: opened once, destroyed once; only a poisoned world aborts.
            drop(unsafe { result::comm_destroy(self.handle) });
        }
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Communicator")
    }
}
