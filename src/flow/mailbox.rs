//! Mailboxes: bounded queues between actors.
//!
//! Law: capacities come from the wiring, so a mailbox can hold everything a step may send it; a
//! full mailbox is an error, never a wait. Sending also marks the addressee as having mail.

use crossbeam::queue::ArrayQueue;

use super::{FlowError, Right};
use crate::id::{ActorId, RankId, TaskId};

/// What actors tell each other.
#[derive(Debug)]
pub enum Message {
    /// The lane's turn is at this task.
    Turn(TaskId),
    /// A right for one of the addressee's tasks.
    Right(Right),
}

impl Message {
    /// The task the message is for.
    #[must_use]
    pub const fn task(&self) -> TaskId {
        match self {
            Self::Turn(task) => *task,
            Self::Right(right) => right.to(),
        }
    }
}

/// One actor's queue.
#[derive(Debug)]
pub struct Mailbox {
    queue: ArrayQueue<Message>,
}

impl Mailbox {
    /// A mailbox for at most `capacity` messages at a time.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { queue: ArrayQueue::new(capacity.max(1)) }
    }

    /// The oldest message.
    #[must_use]
    pub fn take(&self) -> Option<Message> {
        self.queue.pop()
    }

    /// Is there mail?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// Every mailbox of a rank, addressed by task.
#[derive(Debug)]
pub struct Post {
    rank: RankId,
    owners: Vec<ActorId>,
    mailboxes: Vec<Mailbox>,
    mail: ArrayQueue<ActorId>,
}

impl Post {
    /// A post office for tasks owned as `owners` says, with these capacities per actor.
    #[must_use]
    pub fn new(rank: RankId, owners: Vec<ActorId>, capacities: &[usize]) -> Self {
        let total: usize = capacities.iter().sum();
        Self {
            rank,
            owners,
            mailboxes: capacities.iter().map(|capacity| Mailbox::new(*capacity)).collect(),
            mail: ArrayQueue::new(total.max(1)),
        }
    }

    /// Sends a message to the actor that owns its task.
    ///
    /// # Errors
    /// [`FlowError::MailboxFull`].
    ///
    /// # Panics
    /// When the task has no owner, or its owner no mailbox: it belongs to another plan.
    pub fn send(&self, message: Message) -> Result<(), FlowError> {
        let actor = self.owners[message.task().index()];
        let mailbox = &self.mailboxes[actor.index()];
        let full = |_| FlowError::MailboxFull { rank: self.rank, actor, capacity: mailbox.queue.capacity() };
        let was_empty = mailbox.is_empty();
        mailbox.queue.push(message).map_err(full)?;
        if was_empty {
            let capacity = self.mail.capacity();
            self.mail.push(actor).map_err(|actor| FlowError::MailboxFull {
                rank: self.rank,
                actor,
                capacity,
            })?;
        }
        Ok(())
    }

    /// The actor that has waited longest with mail.
    #[must_use]
    pub fn next(&self) -> Option<ActorId> {
        self.mail.pop()
    }

    /// One actor's mailbox.
    ///
    /// # Panics
    /// When the actor belongs to another plan.
    #[must_use]
    pub fn mailbox(&self, actor: ActorId) -> &Mailbox {
        &self.mailboxes[actor.index()]
    }

    /// Throws all mail away, after an error.
    pub fn clear(&self) {
        while self.mail.pop().is_some() {}
        for mailbox in &self.mailboxes {
            while let Some(message) = mailbox.take() {
                if let Message::Right(right) = message {
                    let _ = right.spend();
                }
            }
        }
    }
}
