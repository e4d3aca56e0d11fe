//! The parts of a batch: its samples, cut over ranks and micro-batches, and the words of a call's own part.
//!
//! Law: parts are contiguous and in order, rank after rank, and the first ones have a sample more where it does not
//! come out even. A batch may have fewer samples than the fullest; parts then have fewer, or none.

/// A part of a batch, as a call gets it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// How many samples; the rest of its buffers is padding.
    pub samples: usize,
    /// What its loss is multiplied by, so that gradients are those of the whole batch.
    pub scale: f32,
    /// The weight of its loss, where losses are sums.
    pub weight: f32,
    /// The number of the batch, which masks of dropouts may follow.
    pub step: u32,
}

impl Part {
    /// Words of a part, as an input of a program.
    pub const WORDS: usize = 4;

    /// The part of these words; `None` of another number of them.
    #[must_use]
    pub fn of(words: &[u32]) -> Option<Self> {
        let [samples, scale, weight, step] = *<&[u32; Self::WORDS]>::try_from(words).ok()?;
        let (scale, weight) = (f32::from_bits(scale), f32::from_bits(weight));
        Some(Self { samples: samples as usize, scale, weight, step })
    }

    /// What [`Part::of`] reads.
    #[must_use]
    pub fn words(self) -> [u32; Self::WORDS] {
        let samples = u32::try_from(self.samples).unwrap_or(u32::MAX);
        [samples, self.scale.to_bits(), self.weight.to_bits(), self.step]
    }
}

/// How batches are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Samples of the fullest batch.
    pub samples: usize,
    /// Ranks, at least one.
    pub ranks: usize,
    /// Parts that a rank computes one after the other, at least one.
    pub micro_batches: usize,
}

impl Cut {
    /// How many parts there are.
    #[must_use]
    pub const fn parts(&self) -> usize {
        self.ranks * self.micro_batches
    }

    /// The most samples of a part.
    #[must_use]
    pub const fn most(&self) -> usize {
        self.samples.div_ceil(self.parts())
    }

    /// Begin and length of each part of a batch of `samples`.
    #[must_use]
    pub fn of(&self, samples: usize) -> Vec<(usize, usize)> {
        let (each, more) = (samples / self.parts(), samples % self.parts());
        let mut begin = 0;
        let part = |number: usize| {
            let count = each + usize::from(number < more);
            begin += count;
            (begin - count, count)
        };
        (0..self.parts()).map(part).collect()
    }
}

/// The bytes of `parts` of a batch of `samples`, each padded with zeros to `room`. Without samples, zeros.
#[must_use]
pub fn padded(bytes: &[u8], samples: usize, parts: &[(usize, usize)], room: usize) -> Vec<u8> {
    let mut padded = vec![0; room * parts.len()];
    let each = bytes.len().checked_div(samples).unwrap_or(0);
    for (number, (begin, count)) in parts.iter().enumerate() {
        let length = (count * each).min(room);
        let place = padded.get_mut(number * room..number * room + length);
        if let (Some(place), Some(values)) = (place, bytes.get(begin * each..begin * each + length)) {
            place.copy_from_slice(values);
        }
    }
    padded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_in_order_and_lack_nothing_however_many_samples_there_are() {
        let cut = Cut { samples: 10, ranks: 2, micro_batches: 2 };
        assert_eq!(cut.most(), 3);
        for samples in 0..=10 {
            let mut next = 0;
            for (begin, count) in cut.of(samples) {
                assert!(begin == next && count <= cut.most());
                next += count;
            }
            assert_eq!(next, samples);
        }
    }

    #[test]
    fn a_part_is_padded_with_zeros_behind_its_samples() {
        let cut = Cut { samples: 3, ranks: 2, micro_batches: 1 };
        assert_eq!(padded(&[1, 2, 3, 4, 5, 6], 3, &cut.of(3), 4), [1, 2, 3, 4, 5, 6, 0, 0]);
        assert_eq!(padded(&[1, 2], 1, &cut.of(1), 4), [1, 2, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn words_of_a_part_are_that_part() {
        let part = Part { samples: 3, scale: 0.25, weight: 7.0, step: 9 };
        assert_eq!(Part::of(&part.words()), Some(part));
        assert_eq!(Part::of(&[1, 2, 3]), None);
    }
}
