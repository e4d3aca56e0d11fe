//! Slots that have their places, found by time and address.
//!
//! Law: [`Shelves::lowest_free`] answers as a search through everything placed would; the shelves only
//! keep it from looking at what is held at quite another time. Time is cut into shelves that reach
//! two spans far and begin one span apart, so a hold of at most one span lies whole on the shelf it
//! begins on, and that shelf knows everything it can meet. Longer holds are looked up among all.

/// Tasks from the beginning of one shelf to that of the next: a few calls, which is as long as most
/// slots are held.
const SPAN: usize = 128;

/// What a slot occupies: bytes from `begin` up to `end`, from task `from` up to and with task `to`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) begin: usize,
    pub(super) end: usize,
    pub(super) from: usize,
    pub(super) to: usize,
}

/// Everything placed so far, by address.
#[derive(Debug)]
pub(super) struct Shelves {
    all: Vec<Placed>,
    shelves: Vec<Vec<Placed>>,
}

impl Shelves {
    /// Empty shelves for a plan of `tasks` tasks.
    pub(super) fn new(tasks: usize) -> Self {
        Self { all: Vec::new(), shelves: vec![Vec::new(); tasks / SPAN + 1] }
    }

    /// The lowest address at which `bytes` bytes are free from task `from` up to and with task `to`.
    pub(super) fn lowest_free(&self, bytes: usize, from: usize, to: usize) -> usize {
        let near = self.shelves.get(from / SPAN).filter(|_| to - from <= SPAN);
        let mut offset = 0;
        for other in near.unwrap_or(&self.all) {
            if offset + bytes <= other.begin {
                break;
            }
            if other.from <= to && from <= other.to {
                offset = offset.max(other.end);
            }
        }
        offset
    }

    /// Puts a slot in its place.
    pub(super) fn put(&mut self, placed: Placed) {
        let first = (placed.from / SPAN).saturating_sub(1);
        let reached = self.shelves.iter_mut().take(placed.to / SPAN + 1).skip(first);
        for shelf in reached.chain([&mut self.all]) {
            let position = shelf.partition_point(|other| other.begin < placed.begin);
            shelf.insert(position, placed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASKS: usize = 1000;

    /// The law, against a search that tries every address a slot can begin at.
    #[test]
    fn a_shelf_answers_as_a_search_through_everything_placed() {
        let mut state = 7u32;
        let mut below = |limit: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as usize % limit
        };
        let mut shelves = Shelves::new(TASKS);
        let mut placed: Vec<Placed> = Vec::new();
        for round in 0..600 {
            let from = below(TASKS);
            let to = TASKS.min(from + below(if round % 4 == 0 { TASKS } else { 2 * SPAN }));
            let bytes = below(40);
            let is_free = |offset: &usize| {
                placed.iter().all(|other| {
                    other.to < from
                        || to < other.from
                        || other.end <= *offset
                        || offset + bytes <= other.begin
                })
            };
            let begins = placed.iter().map(|other| other.end).chain([0]).filter(is_free);
            let lowest = begins.min();
            assert_eq!(Some(shelves.lowest_free(bytes, from, to)), lowest, "{bytes} bytes, {from} to {to}");
            let begin = lowest.unwrap();
            placed.push(Placed { begin, end: begin + bytes, from, to });
            shelves.put(placed[placed.len() - 1]);
        }
    }
}
