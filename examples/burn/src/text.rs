//! The training text: a text that stays as it is, as windows of bytes and as lines, from places that the step alone
//! decides.

use burn::tensor::{Device, Int, Tensor, TensorData};

const TEXT: &str = include_str!("../../../LICENSE-APACHE");
/// What a byte can be.
pub const BYTES: usize = 256;

/// `samples` windows of `length` bytes, `[samples, length]`, and the byte after each, `[samples]`.
#[must_use]
pub fn next_bytes(
    step: usize,
    samples: usize,
    length: usize,
    device: &Device,
) -> (Tensor<2, Int>, Tensor<1, Int>) {
    let begin = |sample: usize| (step * samples + sample) * 7919 % (TEXT.len() - length - 1);
    let byte = |at: usize| i64::from(TEXT.as_bytes()[at]);
    let windows = (0..samples).flat_map(|sample| (0..length).map(move |at| byte(begin(sample) + at)));
    let next = (0..samples).map(|sample| byte(begin(sample) + length));
    let windows = TensorData::new(windows.collect::<Vec<i64>>(), [samples, length]);
    let next = TensorData::new(next.collect::<Vec<i64>>(), [samples]);
    (Tensor::from_data(windows, device), Tensor::from_data(next, device))
}

/// `samples` lines of the text, which are of all lengths.
#[must_use]
pub fn lines(step: usize, samples: usize) -> Vec<&'static str> {
    let lines: Vec<&str> = TEXT.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    (0..samples).map(|sample| lines[(step * samples + sample) * 31 % lines.len()]).collect()
}
