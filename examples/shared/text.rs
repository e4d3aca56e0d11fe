//! The training text: bytes of a text that stays as it is, in batches that depend on the step alone.

use crate::sizes::WINDOW;

const TEXT: &[u8] = include_bytes!("../../LICENSE-APACHE");
/// The end of the text is kept for the evaluation.
const HELD_OUT: usize = 2048;

/// Windows of bytes and the byte after each.
pub(crate) struct Batch {
    pub(crate) windows: Vec<u32>,
    pub(crate) targets: Vec<u32>,
}

/// The part of step `step`'s batch that is rank `rank`'s: `samples` windows from anywhere in the text.
pub(crate) fn batch(step: usize, rank: usize, samples: usize) -> Batch {
    let last = TEXT.len() - HELD_OUT - WINDOW - 1;
    // The ranks' parts, one after the other, are the same batch for any number of ranks.
    let place = |sample: usize| {
        let number = (step * 1_000_003 + rank * samples + sample) as u64;
        (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24) as usize % last
    };
    cut((0..samples).map(place))
}

/// Windows of the part that no batch has.
pub(crate) fn held_out() -> Batch {
    cut((TEXT.len() - HELD_OUT..TEXT.len() - WINDOW).step_by(5))
}

fn cut(places: impl Iterator<Item = usize>) -> Batch {
    let mut batch = Batch { windows: Vec::new(), targets: Vec::new() };
    for place in places {
        batch.windows.extend(TEXT[place..place + WINDOW].iter().copied().map(u32::from));
        batch.targets.push(u32::from(TEXT[place + WINDOW]));
    }
    batch
}
