//! Slots that have their places, found by time and address.
//!
//! Law: [`Shelves::lowest_free`] answers as a search through everything placed would; the shelves only keep
//! it from looking at what is held at quite another time. Time is cut into shelves that reach two spans far
//! and begin one span apart, so a hold of at most one span lies whole on the shelf it begins on, and that
//! shelf knows everything it can meet. Spans are of several lengths, and a hold is looked up on the shortest
//! that is long enough; the last is the whole plan. A shelf is kept in boxes, because a plan with a weight
//! for every expert has tens of thousands of slots: what is put in moves the rest of a box, not of a shelf.

/// Tasks from the beginning of one shelf to that of the next: a few calls, which is as long as most
/// slots are held; then layers, and several of them, of many small weights.
const SPANS: [usize; 3] = [128, 512, 2048];

/// Slots in a box before it is cut in two.
const BOX: usize = 256;

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
    all: Shelf,
    /// For each of [`SPANS`], its shelves.
    near: [Vec<Shelf>; SPANS.len()],
}

impl Shelves {
    /// Empty shelves for a plan of `tasks` tasks.
    pub(super) fn new(tasks: usize) -> Self {
        Self { all: Shelf::default(), near: SPANS.map(|span| vec![Shelf::default(); tasks / span + 1]) }
    }

    /// The lowest address at which `bytes` bytes are free from task `from` up to and with task `to`.
    pub(super) fn lowest_free(&self, bytes: usize, from: usize, to: usize) -> usize {
        let reaching = SPANS.iter().zip(&self.near).find(|(span, _)| to - from <= **span);
        let shelf = reaching.and_then(|(span, shelves)| shelves.get(from / span));
        shelf.unwrap_or(&self.all).lowest_free(bytes, from, to)
    }

    /// Puts a slot in its place.
    pub(super) fn put(&mut self, placed: Placed) {
        for (span, shelves) in SPANS.iter().zip(&mut self.near) {
            let first = (placed.from / span).saturating_sub(1);
            shelves.iter_mut().take(placed.to / span + 1).skip(first).for_each(|shelf| shelf.put(placed));
        }
        self.all.put(placed);
    }
}

/// What is held at one time, by address, in boxes that are never empty.
#[derive(Clone, Debug, Default)]
struct Shelf {
    boxes: Vec<Vec<Placed>>,
}

impl Shelf {
    fn lowest_free(&self, bytes: usize, from: usize, to: usize) -> usize {
        let mut offset = 0;
        for placed in &self.boxes {
            for other in placed {
                if offset + bytes <= other.begin {
                    return offset;
                }
                if other.from <= to && from <= other.to {
                    offset = offset.max(other.end);
                }
            }
        }
        offset
    }

    fn put(&mut self, placed: Placed) {
        let behind = self.boxes.partition_point(|other| other[0].begin < placed.begin);
        let number = behind.saturating_sub(1);
        let Some(chosen) = self.boxes.get_mut(number) else {
            self.boxes.push(vec![placed]);
            return;
        };
        let position = chosen.partition_point(|other| other.begin < placed.begin);
        chosen.insert(position, placed);
        if chosen.len() > BOX {
            let second = chosen.split_off(BOX / 2);
            self.boxes.insert(number + 1, second);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASKS: usize = 10_000;

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
        for round in 0..1000 {
            let from = below(TASKS);
            let longest = [TASKS, 2 * SPANS[0], 2 * SPANS[1], 2 * SPANS[2]][round % 4];
            let to = TASKS.min(from + below(longest));
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
