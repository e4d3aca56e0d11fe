//! Errors of ranks that meet.

use std::time::Duration;

use warpweft_base::id::RankId;

/// An error of a rendezvous.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// A variable of the environment is not set.
    #[error("{name} is not set; {advice}")]
    Missing {
        /// The variable.
        name: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// A variable of the environment is not what it should be.
    #[error("{name} is \"{value}\"; it should be {expected}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expected: String,
    },
    /// Nothing tells this machine from others, and there are several processes.
    #[error(
        "cannot tell this machine from others: {path}: {reason}; set WARPWEFT_HOSTID to a name that all processes on this machine share, and no process on another has"
    )]
    Host {
        /// Where the system says which boot this is.
        path: String,
        /// Why it could not be read.
        reason: String,
    },
    /// No usable secret.
    #[error(
        "{reason}; set WARPWEFT_SECRET to the same 16 or more random characters for every process, or WARPWEFT_SECRET_FILE to a file of them, as `openssl rand -hex 16` makes them"
    )]
    Secret {
        /// What is wrong.
        reason: String,
    },
    /// The process of rank 0 cannot listen.
    #[error("cannot listen on {address}: {reason}")]
    Listen {
        /// Where.
        address: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The process of rank 0 was not reached.
    #[error(
        "rank 0 did not answer at {address} within {deadline:?}: {reason}; start its process, or correct MASTER_ADDR and MASTER_PORT"
    )]
    NotReached {
        /// Where.
        address: String,
        /// How long it was tried.
        deadline: Duration,
        /// What the last try said.
        reason: String,
    },
    /// Whoever listens there is no process of this library.
    #[error(
        "what listens at {address} is not warpweft: {reason}; is the port in use by another program? Choose another MASTER_PORT"
    )]
    Stranger {
        /// Where.
        address: String,
        /// What it did.
        reason: String,
    },
    /// The other end holds another secret.
    #[error(
        "the process at {address} holds another secret; give WARPWEFT_SECRET the same value for every process"
    )]
    WrongSecret {
        /// Where.
        address: String,
    },
    /// The other end speaks another version.
    #[error(
        "the process at {address} speaks version {theirs} of the rendezvous, this one version {ours}; run the same build everywhere"
    )]
    Version {
        /// Where.
        address: String,
        /// Its version.
        theirs: u16,
        /// This process's version.
        ours: u16,
    },
    /// Not everybody came.
    #[error(
        "{missing} did not come within {deadline:?}{refused}; see what became of it, and that MASTER_ADDR and MASTER_PORT are the same everywhere"
    )]
    Incomplete {
        /// The processes that are missing.
        missing: String,
        /// How long they were waited for.
        deadline: Duration,
        /// Who came and was refused, and why; begins with a semicolon, or is empty.
        refused: String,
    },
    /// The processes contradict each other.
    #[error("the processes do not fit together: {reason}")]
    Contradiction {
        /// How.
        reason: String,
    },
    /// The process of rank 0 gave up the beginning of the world.
    #[error("the process of rank 0 says: {reason}")]
    OtherProcess {
        /// Its words.
        reason: String,
    },
    /// A rank that is needed has left or did not come.
    #[error("{reason}")]
    Absent {
        /// Who, and what is known.
        reason: String,
    },
    /// The world has ended.
    #[error("the world has ended: {reason}")]
    Ended {
        /// Why.
        reason: String,
    },
    /// A rank of another process or of none.
    #[error("{rank} is not one of the {ranks} ranks that meet here, or belongs to another process")]
    NotOfThisProcess {
        /// The rank.
        rank: RankId,
        /// Ranks of the world.
        ranks: usize,
    },
    /// A contribution larger than a rendezvous carries.
    #[error(
        "{bytes} bytes are too much for one contribution, which may have {most}; make the outputs of the program smaller"
    )]
    TooMuch {
        /// Bytes given.
        bytes: usize,
        /// Bytes allowed.
        most: usize,
    },
    /// The system refused a thread or a connection.
    #[error("the system refused {what}: {reason}")]
    System {
        /// What was requested.
        what: &'static str,
        /// The system's words.
        reason: String,
    },
}

warpweft_base::debug_in_words!(RendezvousError);
