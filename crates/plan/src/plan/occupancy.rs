//! Occupied addresses over time.
//!
//! Law: [`Occupancy::lowest_free`] answers as a search through everything that was put in would. Time is
//! halved again and again, down to single tasks, and a hold is cut into the fewest of these stretches. A
//! stretch knows which addresses are taken *throughout* it, by holds that were cut into it, and which are taken
//! *within* it, by those and by holds that were cut into parts of it. So what meets a hold is what is taken
//! within its own stretches and throughout the longer ones that they are parts of. Whose an address is, is
//! forgotten: slots lie side by side, and thousands of them are a few ranges.

use std::ops::Range;

/// The addresses that are taken, and from which task to which.
#[derive(Debug)]
pub(super) struct Occupancy {
    /// So many tasks are distinguished: a power of two.
    tasks: usize,
    /// Stretch 1 is the whole time; the halves of stretch `n` are `2n` and `2n + 1`.
    stretches: Vec<Stretch>,
}

/// What is known of one stretch of time.
#[derive(Clone, Debug, Default)]
struct Stretch {
    throughout: Taken,
    within: Taken,
}

impl Occupancy {
    /// All addresses are free from task 0 up to and with task `last`.
    pub(super) fn new(last: usize) -> Self {
        let tasks = (last + 1).next_power_of_two();
        Self { tasks, stretches: vec![Stretch::default(); 2 * tasks] }
    }

    /// The lowest address at which `bytes` bytes are free from task `from` up to and with task `to`.
    pub(super) fn lowest_free(&self, bytes: usize, from: usize, to: usize) -> usize {
        let mut met = Vec::new();
        self.meet(1, 0..self.tasks, &(from..to + 1), &mut met);
        let (mut offset, mut agreed) = (0, 0);
        // Each moves the offset up, until one round of them has left it where it is.
        for taken in met.iter().cycle() {
            if agreed == met.len() {
                break;
            }
            let free = taken.lowest_free(bytes, offset);
            agreed = if free == offset { agreed + 1 } else { 1 };
            offset = free;
        }
        offset
    }

    /// Takes `addresses` from task `from` up to and with task `to`.
    pub(super) fn take(&mut self, addresses: &Range<usize>, from: usize, to: usize) {
        self.cut(1, 0..self.tasks, &(from..to + 1), addresses);
    }

    /// Collects what is taken at some task of `hold`, as far as it is known of stretch `number`, which is the
    /// tasks `time`, and of its parts.
    fn meet<'a>(&'a self, number: usize, time: Range<usize>, hold: &Range<usize>, met: &mut Vec<&'a Taken>) {
        let Stretch { throughout, within } = &self.stretches[number];
        let is_covered = hold.start <= time.start && time.end <= hold.end;
        let known = if is_covered { within } else { throughout };
        if !known.is_empty() {
            met.push(known);
        }
        if is_covered {
            return;
        }
        let middle = usize::midpoint(time.start, time.end);
        if hold.start < middle {
            self.meet(2 * number, time.start..middle, hold, met);
        }
        if middle < hold.end {
            self.meet(2 * number + 1, middle..time.end, hold, met);
        }
    }

    /// Cuts `hold` into stretches, from stretch `number` down, and takes the addresses in each.
    pub(super) fn cut(
        &mut self,
        number: usize,
        time: Range<usize>,
        hold: &Range<usize>,
        addresses: &Range<usize>,
    ) {
        let Stretch { throughout, within } = &mut self.stretches[number];
        within.add(addresses);
        if hold.start <= time.start && time.end <= hold.end {
            throughout.add(addresses);
            return;
        }
        let middle = usize::midpoint(time.start, time.end);
        if hold.start < middle {
            self.cut(2 * number, time.start..middle, hold, addresses);
        }
        if middle < hold.end {
            self.cut(2 * number + 1, middle..time.end, hold, addresses);
        }
    }
}

/// Addresses as ranges, from the lowest upwards, of which no two touch.
#[derive(Clone, Debug, Default)]
struct Taken {
    ranges: Vec<Range<usize>>,
}

impl Taken {
    fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The lowest address from `offset` on at which `bytes` bytes are free.
    fn lowest_free(&self, bytes: usize, mut offset: usize) -> usize {
        let below = self.ranges.partition_point(|range| range.end <= offset);
        for range in &self.ranges[below..] {
            if offset + bytes <= range.start {
                break;
            }
            offset = range.end;
        }
        offset
    }

    /// Adds addresses, which become one with the ranges that they touch.
    fn add(&mut self, addresses: &Range<usize>) {
        let first = self.ranges.partition_point(|range| range.end < addresses.start);
        let touched = self.ranges[first..].partition_point(|range| range.start <= addresses.end);
        match &mut self.ranges[first..first + touched] {
            [] => self.ranges.insert(first, addresses.clone()),
            [range] => *range = range.start.min(addresses.start)..range.end.max(addresses.end),
            [lowest, .., highest] => {
                *lowest = lowest.start.min(addresses.start)..highest.end.max(addresses.end);
                self.ranges.drain(first + 1..first + touched);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASKS: usize = 10_000;

    /// Addresses, and the tasks at which they are taken.
    struct Put {
        addresses: Range<usize>,
        from: usize,
        to: usize,
    }

    /// The law, against a search that tries every address a slot can begin at.
    #[test]
    fn the_lowest_free_address_is_what_a_search_through_everything_put_in_finds() {
        let mut state = 7u32;
        let mut below = |limit: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as usize % limit
        };
        let mut occupancy = Occupancy::new(TASKS);
        let mut all: Vec<Put> = Vec::new();
        for round in 0..1000 {
            let from = below(TASKS);
            let longest = [TASKS, 1, 256, 4096][round % 4];
            let to = TASKS.min(from + below(longest));
            let bytes = below(40);
            let is_free = |offset: &usize| {
                all.iter().all(|put| {
                    put.to < from
                        || to < put.from
                        || put.addresses.end <= *offset
                        || offset + bytes <= put.addresses.start
                })
            };
            let begins = all.iter().map(|put| put.addresses.end).chain([0]).filter(is_free);
            let lowest = begins.min();
            assert_eq!(Some(occupancy.lowest_free(bytes, from, to)), lowest, "{bytes} bytes, {from} to {to}");
            let begin = lowest.unwrap();
            let addresses = begin..begin + bytes;
            occupancy.take(&addresses, from, to);
            all.push(Put { addresses, from, to });
        }
    }
}
