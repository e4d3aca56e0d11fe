//! A quantized layer of a model's folder, as values.
//!
//! Law (EN-3): every operation is one of IEEE f32, in the order of the package that defines the dialect.
//!
//! ```text
//! compressed-tensors NVFP4    bf16(code · (scale / global_scale))      global_scale of shape [1]
//!                             bf16(code · bf16(scale / global_scale))  of shape []
//! modelopt NVFP4              bf16(code · (scale · scale_2))
//! FP8 by blocks, tensors, rows    scale's dtype(code · scale)
//! MXFP8                       bf16(code · 2^(byte − 127))
//! ```
//!
//! A scale that is no number, or infinite, is an error when its rows are read.

use half::{bf16, f16};
use safetensors::Dtype;
use warpweft_format::{Shape, e2m1_values, e4m3_values};

use super::dialect::Dialect;
use super::encoding::Encoding;
use crate::checkpoint::safetensors::floats;

/// How the bytes of a layer become values.
#[derive(Clone, Debug)]
pub(crate) struct Decoding {
    pub(crate) dialect: Dialect,
    pub(crate) encoding: Encoding,
    /// Of the weight.
    pub(crate) shape: Shape,
    /// The dtype of the scales of FP8.
    pub(crate) scale_dtype: Dtype,
    /// Has the scale of the tensor no dimensions?
    pub(crate) is_scalar: bool,
}

impl Decoding {
    /// Bytes of a row of codes.
    pub(crate) const fn code_bytes(&self) -> usize {
        match self.encoding {
            Encoding::Nvfp4 => self.shape.cols / 2,
            _ => self.shape.cols,
        }
    }

    /// The bytes of the scales that rows need.
    pub(crate) fn scale_bytes(&self, first_row: usize, rows: usize) -> std::ops::Range<usize> {
        let width = self.scale_dtype.bitsize() / 8;
        let cols = self.shape.cols;
        let (first, last, each) = match self.encoding {
            Encoding::Nvfp4 => (first_row, first_row + rows, cols / 16),
            Encoding::Mxfp8 => (first_row, first_row + rows, cols / 32),
            Encoding::Fp8Channel => (first_row, first_row + rows, width),
            Encoding::Fp8Block => {
                (first_row / 128, (first_row + rows).div_ceil(128), cols.div_ceil(128) * width)
            }
            Encoding::Fp8Tensor => (0, 1, width),
        };
        first * each..last * each
    }

    /// Fills `values` with the rows from `first_row` on whose codes and scales these are.
    ///
    /// # Errors
    /// What is wrong with a scale.
    pub(crate) fn values(
        &self,
        first_row: usize,
        codes: &[u8],
        scales: &[u8],
        tensor_scale: f32,
        values: &mut [f32],
    ) -> Result<(), String> {
        let cols = self.shape.cols;
        let rows = values.chunks_exact_mut(cols).zip(codes.chunks_exact(self.code_bytes())).enumerate();
        match self.encoding {
            Encoding::Nvfp4 => {
                let (mut codes_of, scales_of) = (e2m1_values(), e4m3_values());
                if self.dialect == Dialect::ModelOpt {
                    // It has no negative zero.
                    codes_of[8] = 0.0;
                }
                let factor = |scale: u8| self.nvfp4_factor(scales_of[usize::from(scale)], tensor_scale);
                for ((number, (out, codes)), scales) in rows.zip(scales.chunks_exact(cols / 16)) {
                    for ((out, codes), scale) in
                        out.as_chunks_mut::<16>().0.iter_mut().zip(codes.as_chunks::<8>().0).zip(scales)
                    {
                        let factor = checked(factor(*scale), first_row + number)?;
                        for (out, code) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                            out[0] = to_bf16(codes_of[usize::from(code & 15)] * factor);
                            out[1] = to_bf16(codes_of[usize::from(code >> 4)] * factor);
                        }
                    }
                }
            }
            Encoding::Mxfp8 => {
                let codes_of = e4m3_values();
                for ((number, (out, codes)), scales) in rows.zip(scales.chunks_exact(cols / 32)) {
                    for ((out, codes), byte) in
                        out.chunks_exact_mut(32).zip(codes.chunks_exact(32)).zip(scales)
                    {
                        let scale = checked(power_of_two(*byte), first_row + number)?;
                        for (out, code) in out.iter_mut().zip(codes) {
                            *out = to_bf16(codes_of[usize::from(*code)] * scale);
                        }
                    }
                }
            }
            Encoding::Fp8Block | Encoding::Fp8Tensor | Encoding::Fp8Channel => {
                let codes_of = e4m3_values();
                let scales: Vec<f32> = self.numbers(scales);
                let (height, width) = match self.encoding {
                    Encoding::Fp8Block => (128, 128),
                    Encoding::Fp8Channel => (1, cols),
                    _ => (usize::MAX, cols),
                };
                let across = cols.div_ceil(width);
                for (number, (out, codes)) in rows {
                    let line = (first_row + number) / height - first_row / height;
                    let scales = scales.get(line * across..).unwrap_or_default();
                    for ((out, codes), scale) in out.chunks_mut(width).zip(codes.chunks(width)).zip(scales) {
                        let scale = checked(*scale, first_row + number)?;
                        for (out, code) in out.iter_mut().zip(codes) {
                            *out = self.in_dtype_of_scales(codes_of[usize::from(*code)] * scale);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn nvfp4_factor(&self, scale: f32, tensor_scale: f32) -> f32 {
        match self.dialect {
            Dialect::ModelOpt => scale * tensor_scale,
            _ if self.is_scalar => to_bf16(scale / tensor_scale),
            _ => scale / tensor_scale,
        }
    }

    /// Scales of FP8.
    pub(crate) fn numbers(&self, bytes: &[u8]) -> Vec<f32> {
        floats::values(self.scale_dtype, bytes)
    }

    fn in_dtype_of_scales(&self, value: f32) -> f32 {
        match self.scale_dtype {
            Dtype::BF16 => to_bf16(value),
            Dtype::F16 => f16::from_f32(value).to_f32(),
            _ => value,
        }
    }
}

fn to_bf16(value: f32) -> f32 {
    bf16::from_f32(value).to_f32()
}

/// The value of a byte of E8M0 below 255, which stands for no scale.
fn power_of_two(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(byte) << 23),
    }
}

fn checked(scale: f32, row: usize) -> Result<f32, String> {
    if scale.is_finite() { Ok(scale) } else { Err(format!("a scale of its row {row} is {scale}")) }
}
