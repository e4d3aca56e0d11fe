//! A whole weight, one element at a time.

use super::{E2M1_MAGNITUDES, e2m1, e4m3, e4m3_value, e5m2, e5m2_value, e8m0, e8m0_value};
use crate::{Epsilon, Format, Fp8Element, Fp8Tile, Nvfp4Block, Orientation, OwnedPlanes, ScaleRule, Shape};

/// The planes of a weight of `shape` and its tensor scale. Columnwise planes of a format other than MXFP8 are
/// the rowwise planes of the transposed weight: pass that, and [`Orientation::Rowwise`].
#[must_use]
pub fn quantize(
    format: Format,
    orientation: Orientation,
    shape: Shape,
    weight: &[f32],
) -> (OwnedPlanes, f32) {
    // FO-6.
    let shape = format.whole_blocks(shape);
    let mut filled = weight.to_vec();
    filled.resize(shape.elements(), 0.0);
    let weight = filled.as_slice();
    let mut planes = OwnedPlanes::zeroed(format, orientation, shape);
    let tensor_amax = weight.iter().fold(0.0f32, |amax, x| amax.max(x.abs()));
    let blocks = Blocks::new(format, orientation, shape);
    let mut amaxes = vec![0.0f32; blocks.count()];
    for (at, x) in weight.iter().enumerate() {
        let amax = &mut amaxes[blocks.of(at)];
        *amax = amax.max(x.abs());
    }
    let scales: Vec<Scale> = amaxes.into_iter().map(|amax| scale(format, tensor_amax, amax)).collect();
    let mut tensor_scale = 1.0;
    for (at, x) in weight.iter().enumerate() {
        let scale = &scales[blocks.of(at)];
        tensor_scale = scale.of_tensor;
        let stored = &scale.stored;
        let index = scale_index(format, orientation, shape, at) * stored.len();
        planes.scale[index..index + stored.len()].copy_from_slice(stored);
        let scaled = x * scale.factor;
        match format {
            Format::F32 => planes.data[at * 4..][..4].copy_from_slice(&x.to_le_bytes()),
            Format::Bf16 => {
                let rounded = half::bf16::from_f32(*x);
                planes.data[at * 2..][..2].copy_from_slice(&rounded.to_le_bytes());
            }
            Format::Nvfp4(_) => planes.data[at / 2] |= e2m1(scaled) << (at % 2 * 4),
            Format::Fp8Block(block) => planes.data[at] = fp8(block.element, scaled),
            Format::Mxfp8 => planes.data[at] = e4m3(scaled),
            Format::Fp8Tensor(tensor) => planes.data[at] = fp8(tensor.element, scaled),
        }
    }
    (planes, tensor_scale)
}

/// The values of rowwise planes.
#[must_use]
pub fn dequantize(format: Format, shape: Shape, planes: &OwnedPlanes, tensor_scale: f32) -> Vec<f32> {
    let f32_at = |bytes: &[u8], at: usize| {
        let at = 4 * at;
        f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    };
    let value = |at: usize| {
        let scale = scale_index(format, Orientation::Rowwise, shape, at);
        let code = planes.data.get(at).copied().unwrap_or(0);
        match format {
            Format::F32 => f32_at(&planes.data, at),
            Format::Bf16 => {
                half::bf16::from_le_bytes([planes.data[2 * at], planes.data[2 * at + 1]]).to_f32()
            }
            Format::Nvfp4(_) => {
                let code = planes.data[at / 2] >> (at % 2 * 4) & 15;
                let magnitude = E2M1_MAGNITUDES[usize::from(code & 7)];
                let value = if code < 8 { magnitude } else { -magnitude };
                let scale = e4m3_value(planes.scale[scale]) as f32;
                value * ((scale * tensor_scale) * (1.0 / 2688.0))
            }
            Format::Fp8Block(block) => fp8_value(block.element, code) * f32_at(&planes.scale, scale),
            Format::Mxfp8 => e4m3_value(code) as f32 * e8m0_value(planes.scale[scale]) as f32,
            Format::Fp8Tensor(tensor) => fp8_value(tensor.element, code) * tensor_scale,
        }
    };
    (0..shape.elements()).map(value).collect()
}

/// Which elements share a scale.
pub(super) struct Blocks {
    shape: Shape,
    height: usize,
    width: usize,
}

impl Blocks {
    fn new(format: Format, orientation: Orientation, shape: Shape) -> Self {
        let (height, width) = match (format, orientation) {
            (Format::F32 | Format::Bf16 | Format::Fp8Tensor(_), _) => (shape.rows, shape.cols),
            (Format::Nvfp4(Nvfp4Block::Tile16x16), _) => (16, 16),
            (Format::Nvfp4(Nvfp4Block::Row1x16), _) => (1, 16),
            (Format::Fp8Block(block), _) => match block.tile {
                Fp8Tile::Tile128x128 => (128, 128),
                Fp8Tile::Row1x128 => (1, 128),
            },
            (Format::Mxfp8, Orientation::Rowwise) => (1, 32),
            (Format::Mxfp8, Orientation::Columnwise) => (32, 1),
        };
        Self { shape, height, width }
    }

    fn count(&self) -> usize {
        self.shape.rows.div_ceil(self.height) * self.shape.cols.div_ceil(self.width)
    }

    /// The block of the element at flat index `at`.
    fn of(&self, at: usize) -> usize {
        let (row, column) = (at / self.shape.cols, at % self.shape.cols);
        row / self.height * self.shape.cols.div_ceil(self.width) + column / self.width
    }
}

/// Which scale of the plane serves the element at flat index `at`; 0 without a plane.
fn scale_index(format: Format, orientation: Orientation, shape: Shape, at: usize) -> usize {
    let (row, column) = (at / shape.cols, at % shape.cols);
    match (format, orientation) {
        (Format::F32 | Format::Bf16 | Format::Fp8Tensor(_), _) => 0,
        (Format::Nvfp4(_), _) => row * (shape.cols / 16).next_multiple_of(4) + column / 16,
        (Format::Fp8Block(block), _) => match block.tile {
            Fp8Tile::Tile128x128 => row / 128 * shape.cols.div_ceil(128).next_multiple_of(4) + column / 128,
            Fp8Tile::Row1x128 => column / 128 * shape.rows.next_multiple_of(4) + row,
        },
        (Format::Mxfp8, Orientation::Rowwise) => row * (shape.cols / 32).next_multiple_of(4) + column / 32,
        (Format::Mxfp8, Orientation::Columnwise) => row / 32 * shape.cols.next_multiple_of(128) + column,
    }
}

/// The scale of a block.
struct Scale {
    /// The stored bytes.
    stored: Vec<u8>,
    /// What an element is multiplied by.
    factor: f32,
    /// What dequantize needs besides the planes.
    of_tensor: f32,
}

fn scale(format: Format, tensor_amax: f32, amax: f32) -> Scale {
    match format {
        Format::F32 | Format::Bf16 => Scale { stored: vec![], factor: 1.0, of_tensor: 1.0 },
        Format::Nvfp4(_) => {
            let encode = if tensor_amax == 0.0 { 1.0 } else { (2688.0 / tensor_amax).min(f32::MAX) };
            let multiplier = encode * (1.0f32 / 6.0);
            let code = e4m3((amax * multiplier).min(f32::MAX));
            let factor = (1.0 / (e4m3_value(code) as f32 * (1.0 / encode))).min(f32::MAX);
            Scale { stored: vec![code], factor, of_tensor: tensor_amax }
        }
        Format::Fp8Block(block) => {
            let factor = fp8_scale(block.element, block.scale, block.epsilon, amax);
            Scale { stored: (1.0 / factor).to_le_bytes().to_vec(), factor, of_tensor: 1.0 }
        }
        Format::Mxfp8 => {
            let code = e8m0(amax * (1.0 / 448.0));
            let factor = (1.0 / e8m0_value(code)) as f32;
            Scale { stored: vec![code], factor, of_tensor: 1.0 }
        }
        Format::Fp8Tensor(tensor) => {
            let factor = fp8_scale(tensor.element, tensor.scale, tensor.epsilon, tensor_amax);
            Scale { stored: vec![], factor, of_tensor: 1.0 / factor }
        }
    }
}

/// The encode scale of a block or tensor of FP8 with this amax; its reciprocal is `scale_inv`.
#[must_use]
pub fn fp8_scale(element: Fp8Element, rule: ScaleRule, epsilon: Epsilon, amax: f32) -> f32 {
    let largest = match element {
        Fp8Element::E4m3 => 448.0f32,
        Fp8Element::E5m2 => 57344.0,
    };
    let amax = if amax < epsilon.value() { epsilon.value() } else { amax };
    if amax == 0.0 || !amax.is_finite() {
        return 1.0;
    }
    let scale = (largest / amax).min(f32::MAX);
    match rule {
        ScaleRule::Float32 => scale,
        // The largest power of two that is not above the scale.
        ScaleRule::PowerOfTwo => {
            let mut power = 2f64.powi(127);
            while power > f64::from(scale) {
                power /= 2.0;
            }
            power as f32
        }
    }
}

fn fp8(element: Fp8Element, scaled: f32) -> u8 {
    match element {
        Fp8Element::E4m3 => e4m3(scaled),
        Fp8Element::E5m2 => e5m2(scaled),
    }
}

fn fp8_value(element: Fp8Element, code: u8) -> f32 {
    match element {
        Fp8Element::E4m3 => e4m3_value(code) as f32,
        Fp8Element::E5m2 => e5m2_value(code) as f32,
    }
}
