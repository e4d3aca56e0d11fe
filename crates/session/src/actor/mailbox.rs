//! Mailboxes: bounded queues between actors.
//!
//! Law: capacities come from the wiring, so a mailbox can hold everything a step may send it; a full mailbox
//! is an error, never a wait. Sending also marks the addressee as having mail. Actors of a rank live on one
//! thread, and so do their mailboxes: sending and receiving cost no atomic operation, and no message
//! allocates.

use std::cell::RefCell;
use std::collections::VecDeque;

use super::{ExecError, Right};
use warpweft_base::id::{ActorId, RankId, TaskId};

/// A message between actors.
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

/// A bounded queue for one thread.
#[derive(Debug)]
struct Queue<T> {
    waiting: RefCell<VecDeque<T>>,
    capacity: usize,
}

impl<T> Queue<T> {
    fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self { waiting: RefCell::new(VecDeque::with_capacity(capacity)), capacity }
    }

    /// Appends a value, if there is room, and says how many there were before.
    fn push(&self, value: T) -> Option<usize> {
        let mut waiting = self.waiting.borrow_mut();
        let before = waiting.len();
        (before < self.capacity).then(|| waiting.push_back(value))?;
        Some(before)
    }

    fn pop(&self) -> Option<T> {
        self.waiting.borrow_mut().pop_front()
    }

    fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }
}

/// One actor's queue.
#[derive(Debug)]
pub struct Mailbox {
    queue: Queue<Message>,
}

impl Mailbox {
    /// A mailbox for at most `capacity` messages at a time.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { queue: Queue::new(capacity) }
    }

    /// The oldest message.
    #[must_use]
    pub fn take(&self) -> Option<Message> {
        self.queue.pop()
    }

    /// Whether there is mail.
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
    mail: Queue<ActorId>,
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
            mail: Queue::new(total),
        }
    }

    /// Sends a message to the actor that owns its task.
    ///
    /// # Errors
    /// [`ExecError::MailboxFull`].
    ///
    /// # Panics
    /// When the task has no owner, or its owner no mailbox: it belongs to another plan.
    pub fn send(&self, message: Message) -> Result<(), ExecError> {
        let actor = self.owners[message.task().index()];
        let mailbox = &self.mailboxes[actor.index()].queue;
        let full = |capacity| ExecError::MailboxFull { rank: self.rank, actor, capacity };
        let before = mailbox.push(message).ok_or_else(|| full(mailbox.capacity))?;
        if before == 0 {
            self.mail.push(actor).ok_or_else(|| full(self.mail.capacity))?;
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
