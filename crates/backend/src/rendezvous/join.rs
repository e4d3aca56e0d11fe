//! Start-up of a world of processes: the process of rank 0 listens, the others connect, and all begin together.
//!
//! Laws:
//! - **RV-2** a process that is missing at the deadline is named on every process that came, and so is
//!   whoever was refused.
//! - A process that came is never left without a word: it gets word that the world begins, and with whom, or
//!   why it does not.
//! - Processes that came and contradict each other (another number of processes, one process twice) end the
//!   beginning at once.

mod host;
mod member;

use std::ops::Range;
use std::time::{Duration, Instant};

use self::host::host;
use self::member::member;
use super::environment::MOST_PROCESSES;
use super::handshake::Claim;
use super::link::Connection;
use super::{ProcessEnvironment, RendezvousError, Secret};
use warpweft_base::id::{ProcessId, RankId};

/// A pause between two looks at the door, and five between two knocks: nothing beside the seconds in which
/// processes start, and little work for one that waits. What all looks together may take is the deadline,
/// whose end has its error.
const PAUSE: Duration = Duration::from_millis(10);

/// A world as it begins.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) ranks: usize,
    pub(super) own: Range<usize>,
    pub(super) connections: Vec<Connection>,
}

/// Waits until all processes have come.
pub(super) fn join(
    environment: &ProcessEnvironment,
    ranks: u32,
    secret: Option<&Secret>,
    deadline: Duration,
) -> Result<Joined, RendezvousError> {
    let (process, processes) = (environment.process, environment.processes);
    if !(1..=MOST_PROCESSES).contains(&ranks) || process.number() >= processes {
        let reason = format!("{process} of {processes} owns {ranks} ranks");
        return Err(RendezvousError::Contradiction { reason });
    }
    if processes == 1 {
        return Ok(Joined { ranks: ranks as usize, own: 0..ranks as usize, connections: Vec::new() });
    }
    let secret = secret.ok_or_else(|| RendezvousError::Secret {
        reason: format!("this is {process} of {processes}, and they have no secret to know each other by"),
    })?;
    let claim = Claim { process, processes, ranks };
    let until = Instant::now() + deadline;
    if process.number() == 0 {
        host(environment, claim, secret, deadline, until)
    } else {
        member(environment, claim, secret, deadline, until)
    }
}

/// Positions of the ranks of each process.
fn split(ranks: &[u32]) -> Result<Vec<Range<usize>>, RendezvousError> {
    let mut end = 0;
    let ranges: Vec<_> = ranks
        .iter()
        .map(|ranks| {
            let begin = end;
            end += *ranks as usize;
            begin..end
        })
        .collect();
    if end > MOST_PROCESSES as usize || ranks.contains(&0) {
        let reason = format!(
            "together they own {end} ranks; each owns one at least, and all at most {MOST_PROCESSES}"
        );
        return Err(RendezvousError::Contradiction { reason });
    }
    Ok(ranges)
}

fn name(process: ProcessId, ranks: &Range<usize>, address: &str) -> String {
    let first = RankId::at(ranks.start);
    match ranks.len() {
        1 => format!("{process} ({first}, at {address})"),
        _ => format!("{process} ({first} to {}, at {address})", RankId::at(ranks.end.saturating_sub(1))),
    }
}
