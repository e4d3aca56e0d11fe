//! A worklist: an actor's tasks in issue order, and the rights held for them.
//!
//! Law: only the head can fire; it is ready when the turn and all its rights are in. Rights that arrive early
//! are held in a slab, chained per task, so that nothing is allocated once the slab has grown to what a step
//! needs.

use slab::Slab;

use super::{Message, Right};
use warpweft_base::id::TaskId;

/// The tasks of one actor for one plan.
#[derive(Debug)]
pub struct Worklist {
    entries: Vec<Entry>,
    /// The entry of every task up to the last one on the list; `None` for tasks of others.
    places: Vec<Option<u32>>,
    head: usize,
    held: Slab<Held>,
}

#[derive(Debug)]
struct Entry {
    task: TaskId,
    incoming: u32,
    missing: u32,
    turn: bool,
    first: Option<usize>,
}

#[derive(Debug)]
struct Held {
    right: Right,
    next: Option<usize>,
}

impl Worklist {
    /// A worklist for `tasks`, each with the number of rights it needs, in issue order.
    #[must_use]
    pub fn new(tasks: impl Iterator<Item = (TaskId, u32)>) -> Self {
        let entries: Vec<Entry> = tasks
            .map(|(task, incoming)| Entry { task, incoming, missing: incoming, turn: false, first: None })
            .collect();
        let rights = entries.iter().map(|entry| entry.incoming as usize).sum();
        let mut places = vec![None; entries.last().map_or(0, |last| last.task.index() + 1)];
        for (entry, place) in entries.iter().zip(0..) {
            places[entry.task.index()] = Some(place);
        }
        Self { entries, places, head: 0, held: Slab::with_capacity(rights) }
    }

    /// Starts over, for a new step. Rights left from a step that broke off are used up.
    pub fn reset(&mut self) {
        self.head = 0;
        for entry in &mut self.entries {
            entry.missing = entry.incoming;
            entry.turn = false;
            entry.first = None;
        }
        for held in self.held.drain() {
            let _ = held.right.spend();
        }
    }

    /// Takes a message in. Returns it if its task is not on this list.
    ///
    /// # Errors
    /// The message, for a task of another actor or one that needs no further right.
    pub fn deliver(&mut self, message: Message) -> Result<(), Message> {
        let Some(place) = self.places.get(message.task().index()).copied().flatten() else {
            return Err(message);
        };
        let entry = &mut self.entries[place as usize];
        match message {
            Message::Turn(_) => entry.turn = true,
            Message::Right(right) if entry.missing > 0 => {
                entry.missing -= 1;
                entry.first = Some(self.held.insert(Held { right, next: entry.first }));
            }
            Message::Right(_) => return Err(message),
        }
        Ok(())
    }

    /// The head, if it is ready; it leaves the list.
    pub fn ready(&mut self) -> Option<Ready<'_>> {
        let entry = self.entries.get(self.head).filter(|entry| entry.turn && entry.missing == 0)?;
        let (task, first) = (entry.task, entry.first);
        self.head += 1;
        Some(Ready { task, next: first, held: &mut self.held })
    }

    /// The first task that has not fired.
    #[must_use]
    pub fn head(&self) -> Option<TaskId> {
        self.entries.get(self.head).map(|entry| entry.task)
    }
}

/// A task that may be issued, with the rights held for it.
#[derive(Debug)]
pub struct Ready<'a> {
    task: TaskId,
    next: Option<usize>,
    held: &'a mut Slab<Held>,
}

impl<'a> Ready<'a> {
    /// The task.
    #[must_use]
    pub const fn task(&self) -> TaskId {
        self.task
    }

    /// Its rights, handed over one by one.
    pub(super) fn rights(self) -> impl Iterator<Item = Right> + use<'a> {
        let Self { mut next, held, .. } = self;
        std::iter::from_fn(move || {
            let held = held.try_remove(next?)?;
            next = held.next;
            Some(held.right)
        })
    }
}
