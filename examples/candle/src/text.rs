//! The training text: the bytes of a text that stays as it is, in windows from places that the step alone decides.

use candle_core::{Device, Result, Tensor};

const TEXT: &[u8] = include_bytes!("../../../LICENSE-APACHE");
/// The end of the text is kept for the evaluation.
const HELD_OUT: usize = 2048;
/// What a byte can be.
pub const BYTES: usize = 256;

/// `samples` windows of `length` bytes, `[samples, length]`, and for each of their bytes the next one, in the same
/// shape.
///
/// # Errors
/// If candle cannot make a tensor.
pub fn windows(step: usize, samples: usize, length: usize) -> Result<(Tensor, Tensor)> {
    cut(places(step, samples, length), length)
}

/// `samples` windows of `length` bytes, `[samples, length]`, and the byte after each, `[samples]`.
///
/// # Errors
/// If candle cannot make a tensor.
pub fn next_bytes(step: usize, samples: usize, length: usize) -> Result<(Tensor, Tensor)> {
    let (windows, next) = windows(step, samples, length)?;
    Ok((windows, next.narrow(1, length - 1, 1)?.flatten_all()?))
}

/// As [`windows`], from the part of the text that these leave out.
///
/// # Errors
/// If candle cannot make a tensor.
pub fn held_out(samples: usize, length: usize) -> Result<(Tensor, Tensor)> {
    let (first, room) = (TEXT.len() - HELD_OUT, HELD_OUT - length);
    cut((0..samples).map(|sample| first + sample * room / samples).collect(), length)
}

/// Where a step's windows begin.
fn places(step: usize, samples: usize, length: usize) -> Vec<usize> {
    let last = TEXT.len() - HELD_OUT - length;
    let place = |sample: usize| {
        let number = (step * samples + sample) as u64 + 1;
        (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24) as usize % last
    };
    (0..samples).map(place).collect()
}

fn cut(places: Vec<usize>, length: usize) -> Result<(Tensor, Tensor)> {
    let bytes = |after: usize| {
        let windows = places.iter().flat_map(|place| &TEXT[place + after..][..length]);
        let bytes: Vec<u32> = windows.map(|byte| u32::from(*byte)).collect();
        Tensor::from_vec(bytes, (places.len(), length), &Device::Cpu)
    };
    Ok((bytes(0)?, bytes(1)?))
}
