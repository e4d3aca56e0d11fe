//! A task of a bound plan as one number, which CUPTI carries for us.

use warpweft_base::id::TaskId;

/// A task of a bound plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The number of the bound plan's book.
    pub(super) book: u32,
    /// The task.
    pub(super) task: TaskId,
}

impl Place {
    /// As the one number that CUPTI carries.
    pub(super) const fn id(self) -> u64 {
        (self.book as u64) << 32 | self.task.number() as u64
    }

    /// The place of a number that [`Place::id`] made.
    pub(super) const fn from_id(id: u64) -> Self {
        Self { book: (id >> 32) as u32, task: TaskId::new(id as u32) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_comes_back_from_its_number() {
        for (book, task) in [(0, 0), (1, u32::MAX), (u32::MAX, 5)] {
            let place = Place { book, task: TaskId::new(task) };
            assert_eq!(Place::from_id(place.id()), place);
        }
    }
}
