//! The roll call of a communicator: ranks that disagree learn it before they wait.
//!
//! Laws:
//! - **CO-1** Every rank brings a communicator the same collectives in the same order. Groups have their own
//!   meeting places ([`super::rendezvous`]), so ranks that bring collectives of different groups would never
//!   meet. They are compared here instead, whatever place each of them goes to, and both tickets are named.
//! - Two ranks are compared if the group of one of them contains the other. Only then does one wait for the
//!   other; ranks that share no group may be any number of collectives apart.
//! - **Nothing escapes.** Say that a rank waits with its n-th collective for a peer that is alive and never
//!   comes. That peer has brought another n-th collective, or has another before it: no rank gets past a
//!   collective that this rank takes part in without it. Whichever of the two calls last finds the other's
//!   call here. A peer that calls nothing at all does not concern a communicator: it goes, or is aborted.
//! - Nothing here allocates, except to say what went wrong.

use std::fmt;
use std::sync::Mutex;

use crate::bell::lock;
use warpweft_base::id::{CommId, RankId, TaskId};
use warpweft_plan::layout::Region;
use warpweft_plan::model::{Group, Mesh, Strides};

/// What a rank is about to do; the same on every rank, or something is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    /// The task of the plan.
    pub(super) task: TaskId,
    /// Its op's name.
    pub(super) op: &'static str,
    /// Where the (first) source slot is, in every arena.
    pub(super) source: Region,
    /// Bytes every rank receives.
    pub(super) received: u64,
}

impl fmt::Display for Ticket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { task, op, source, received } = self;
        let (begin, end) = (source.offset, source.end());
        write!(formatter, "{task} ({op} from bytes {begin}..{end}, {received} bytes received)")
    }
}

/// The collective a rank brought last.
#[derive(Clone, Copy, Debug)]
struct Called {
    /// How many it brought before.
    number: u64,
    group: Group,
    ticket: Ticket,
}

/// The calls of all ranks on one communicator.
#[derive(Debug)]
pub(super) struct Roll {
    communicator: CommId,
    mesh: Mesh,
    /// By rank.
    called: Mutex<Vec<Option<Called>>>,
}

impl Roll {
    /// No rank has brought anything.
    pub(super) fn new(communicator: CommId, mesh: Mesh) -> Self {
        Self { communicator, mesh, called: Mutex::new(mesh.iter().map(|_| None).collect()) }
    }

    /// The ranks that a group means.
    pub(super) const fn strides(&self, group: Group) -> Strides {
        self.mesh.strides(group)
    }

    /// `rank` brings its next collective, one of `group`.
    ///
    /// # Errors
    /// What to poison the world with when the ranks disagree.
    pub(super) fn call(&self, rank: RankId, group: Group, ticket: Ticket) -> Result<(), String> {
        let mut called = lock(&self.called);
        let last = called.get(rank.index()).copied().flatten();
        let brought = Called { number: last.map_or(0, |last| last.number + 1), group, ticket };
        for (other, theirs) in called.iter().enumerate() {
            let other = RankId::at(other);
            if let Some(theirs) = theirs
                && other != rank
                && !self.agree((rank, &brought), (other, theirs))
            {
                return Err(self.disagreement((rank, &brought), (other, theirs)));
            }
        }
        if let Some(own) = called.get_mut(rank.index()) {
            *own = Some(brought);
        }
        Ok(())
    }

    /// Whether `rank` may bring what it brings, after what `other` brought.
    fn agree(&self, (rank, brought): (RankId, &Called), (other, theirs): (RankId, &Called)) -> bool {
        let waits_for_other = self.takes_part(other, rank, brought.group);
        if brought.number == theirs.number {
            let same = brought.ticket == theirs.ticket && self.mesh.alike(brought.group, theirs.group);
            return same || !(waits_for_other || self.takes_part(rank, other, theirs.group));
        }
        // The one ahead has passed this collective, which it could not have done without `rank`.
        theirs.number < brought.number || !waits_for_other
    }

    /// Whether `peer` is in `rank`'s group.
    fn takes_part(&self, peer: RankId, rank: RankId, group: Group) -> bool {
        self.strides(group).bring_together(peer, rank)
    }

    fn disagreement(&self, (rank, brought): (RankId, &Called), (other, theirs): (RankId, &Called)) -> String {
        let communicator = self.communicator;
        let place = |called: &Called| {
            let Called { group, ticket, .. } = called;
            if self.mesh.replicas() > 1 || self.mesh.tensor() > 1 || self.mesh.has_experts() {
                format!("{ticket} over the {group} group")
            } else {
                ticket.to_string()
            }
        };
        let theirs_is = match theirs.number - brought.number {
            0 => format!("brings {}", place(theirs)),
            _ => format!("is past it and brings {} as collective {}", place(theirs), theirs.number),
        };
        format!(
            "the ranks disagree on collective {} of {communicator}: {other} {theirs_is}, {rank} brings {}; \
             they would exchange other bytes than they mean to or wait for ever, so every rank must issue the tasks of the same plan in its order (CO-1)",
            brought.number,
            place(brought),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(task: u32) -> Ticket {
        let source = Region { offset: 0, bytes: 16 };
        Ticket { task: TaskId::new(task), op: "all-gather", source, received: 16 }
    }

    /// Two shards × two replicas.
    fn roll() -> Roll {
        Roll::new(CommId::new(1), Mesh::hybrid(4, 2).unwrap())
    }

    fn call(roll: &Roll, rank: u32, group: Group, task: u32) -> Result<(), String> {
        roll.call(RankId::new(rank), group, ticket(task))
    }

    /// CO-1.
    #[test]
    fn ranks_that_bring_different_collectives_learn_of_both() {
        for (one, other) in
            [(Group::World, Group::World), (Group::Shard, Group::World), (Group::World, Group::Shard)]
        {
            let roll = roll();
            call(&roll, 0, one, 7).unwrap();
            let message = call(&roll, 1, other, 8).unwrap_err();
            for part in ["rank 0 brings task 7", "rank 1 brings task 8", "collective 0 of communicator 1"] {
                assert!(message.contains(part), "{message}");
            }
        }
    }

    /// CO-1. The same task over another group brings other ranks together.
    #[test]
    fn ranks_that_bring_one_task_over_different_groups_disagree() {
        let roll = roll();
        call(&roll, 0, Group::Shard, 7).unwrap();
        let message = call(&roll, 2, Group::World, 7).unwrap_err();
        assert!(
            message.contains("over the shard group") && message.contains("over the world group"),
            "{message}"
        );
    }

    /// With one replica, the shard group is the world.
    #[test]
    fn groups_of_the_same_ranks_agree() {
        let roll = Roll::new(CommId::new(0), Mesh::new(2).unwrap());
        call(&roll, 0, Group::Shard, 7).unwrap();
        call(&roll, 1, Group::World, 7).unwrap();
    }

    #[test]
    fn replicas_may_be_any_number_of_collectives_apart() {
        let roll = roll();
        for task in 0..5 {
            call(&roll, 0, Group::Shard, task).unwrap();
            call(&roll, 1, Group::Shard, task).unwrap();
        }
        call(&roll, 0, Group::World, 5).unwrap();
        for task in 0..5 {
            call(&roll, 2, Group::Shard, task).unwrap();
            call(&roll, 3, Group::Shard, task).unwrap();
        }
        [3, 1, 2].into_iter().for_each(|rank| call(&roll, rank, Group::World, 5).unwrap());
    }

    /// CO-1. Rank 1 leaves out the gather at which rank 0 waits for it, and goes on with its counterpart
    /// in the other replica.
    #[test]
    fn a_rank_that_is_past_a_collective_is_found_by_whom_it_left_out() {
        let roll = roll();
        for task in 0..2 {
            call(&roll, 1, Group::Replicate, task).unwrap();
            call(&roll, 3, Group::Replicate, task).unwrap();
        }
        let message = call(&roll, 0, Group::Shard, 9).unwrap_err();
        for part in [
            "collective 0 of",
            "rank 1 is past it and brings task 1",
            "as collective 1",
            "rank 0 brings task 9",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }
}
