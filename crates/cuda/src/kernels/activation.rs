//! Activations into operands of a product: `kernels/activation.cu` and `kernels/block_scaled.cu`.
//!
//! Law: an [`ActivationQuantizer`] is made once and prepares launches by value, without tables: it allocates
//! nothing, so a closure may use it in every step.

use std::ffi::CStr;

use bytemuck::{Pod, Zeroable};

use super::check::{element_aligned, narrow, present};
use super::launch::{KernelLaunch, THREADS};
use super::module::{Function, Kernels};
use super::source::Family;
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_format::{Epsilon, Format, Fp8Element, Fp8Tile, Nvfp4Block, ScaleRule, Shape};

/// A bf16 matrix that is to be an operand of products.
///
/// For FP8 in 1×128 blocks `scale` and `columnwise_scale` are the scale planes that
/// [`Format::planes`] gives for the matrix and for its transpose. For FP8 with one scale, `scale` is one f32,
/// written, and `columnwise_scale` the word [`ActivationQuantizer::amax`] filled, read. For MXFP8 they are the
/// planes of the matrix and of its transpose as [`swizzle_scale`](warpweft_format::swizzle_scale) leaves them;
/// rows count as if rounded up to 32, with zeros after the last one. For NVFP4 `scale` is such a plane of the
/// matrix, there are no columnwise codes, and `columnwise_scale` is the amax, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivationOperand {
    /// Rows, the tokens, and columns, a multiple of 16, or of 32 for MXFP8 and NVFP4.
    pub shape: Shape,
    /// bf16 `[rows, cols]`, with rows `row_pitch` elements apart.
    pub values: DeviceAddress,
    /// A multiple of 16, at least the columns.
    pub row_pitch: usize,
    /// Codes `[rows, cols]`, two to a byte in NVFP4, written; null if they are not wanted, except in NVFP4.
    pub data: DeviceAddress,
    /// Decode scales; see above.
    pub scale: DeviceAddress,
    /// Codes of the transpose, `[cols, rows rounded up]` ([`ActivationQuantizer::line`]), written, with zeros
    /// after the last row; null if they are not wanted.
    pub columnwise_data: DeviceAddress,
    /// Decode scales of the transpose; see above.
    pub columnwise_scale: DeviceAddress,
}

/// What is quantized of a matrix. Codes and scales are those of the bf16 values that a separate launch would
/// have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationSource {
    /// Its values.
    Values,
    /// Their GELU, in its tanh form.
    Gelu,
    /// The gradient of the values, from that of their GELU, which is bf16 at this address, laid out as the
    /// values are.
    GeluGradient(DeviceAddress),
}

/// `ActivationArguments` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arguments {
    values: DeviceAddress,
    data: DeviceAddress,
    turned: DeviceAddress,
    scale: DeviceAddress,
    turned_scale: DeviceAddress,
    rows: u32,
    cols: u32,
    pitch: u32,
    power_of_two: u32,
    epsilon: f32,
    row_pitch: u32,
    beside: DeviceAddress,
}
const _: () = assert!(size_of::<Arguments>() == 72);

/// `AMAX_TILE` of the kernels.
const AMAX_TILE: usize = 16384;
/// `SIDE` of the kernels.
const SIDE: usize = 128;
/// What rows of values must be a multiple of.
const COLUMNS: usize = 16;

/// Quantizes activations into one format.
#[derive(Clone, Debug)]
pub struct ActivationQuantizer {
    format: Format,
    cast: Function,
    amax: Option<Function>,
    gelu: Option<Gelu>,
    power_of_two: bool,
    epsilon: f32,
}

/// Casts that compute GELU on the way.
#[derive(Clone, Debug)]
struct Gelu {
    value: Function,
    gradient: Function,
}

impl Kernels {
    /// The quantizer for activations in `format`: FP8 in 1×128 blocks, or with one scale; MXFP8; NVFP4 in 1×16 blocks.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for another format.
    pub fn activation_quantizer(&self, format: Format) -> Result<ActivationQuantizer, CudaFailure> {
        let function = |name: &CStr| self.function(Family::Activation, name);
        let (cast, scale, epsilon, gelu) = match format {
            Format::Fp8Block(block) if block.tile == Fp8Tile::Row1x128 => {
                let [cast, value, gradient]: [&CStr; 3] = match block.element {
                    Fp8Element::E4m3 => [
                        c"activation_e4m3_row128",
                        c"activation_e4m3_row128_gelu",
                        c"activation_e4m3_row128_gelu_gradient",
                    ],
                    Fp8Element::E5m2 => [
                        c"activation_e5m2_row128",
                        c"activation_e5m2_row128_gelu",
                        c"activation_e5m2_row128_gelu_gradient",
                    ],
                };
                let gelu = Gelu { value: function(value)?, gradient: function(gradient)? };
                (function(cast)?, block.scale, block.epsilon, Some(gelu))
            }
            Format::Fp8Tensor(tensor) => {
                let name: &CStr = match tensor.element {
                    Fp8Element::E4m3 => c"activation_e4m3_tensor",
                    Fp8Element::E5m2 => c"activation_e5m2_tensor",
                };
                (function(name)?, tensor.scale, tensor.epsilon, None)
            }
            Format::Mxfp8 => {
                let function = |name: &CStr| self.function(Family::BlockScaled, name);
                let gelu = Gelu {
                    value: function(c"activation_mxfp8_gelu")?,
                    gradient: function(c"activation_mxfp8_gelu_gradient")?,
                };
                (function(c"activation_mxfp8")?, ScaleRule::PowerOfTwo, Epsilon::ZERO, Some(gelu))
            }
            Format::Nvfp4(Nvfp4Block::Row1x16) => {
                let cast = self.function(Family::BlockScaled, c"activation_nvfp4")?;
                (cast, ScaleRule::Float32, Epsilon::ZERO, None)
            }
            _ => {
                return Err(CudaFailure::Refused(format!(
                    "activations are quantized to FP8 in 1×128 blocks or with one scale, to MXFP8 or to NVFP4 in 1×16 blocks, not to {format}"
                )));
            }
        };
        let whole = matches!(format, Format::Fp8Tensor(_) | Format::Nvfp4(_));
        Ok(ActivationQuantizer {
            format,
            cast,
            amax: if whole { Some(function(c"activation_amax")?) } else { None },
            gelu,
            power_of_two: scale == ScaleRule::PowerOfTwo,
            epsilon: epsilon.value(),
        })
    }
}

impl ActivationQuantizer {
    /// Elements of a line of transposed codes of `rows` rows: a multiple of 16, or of the blocks that run along
    /// the line where these must be whole.
    #[must_use]
    pub const fn line(format: Format, rows: usize) -> usize {
        rows.next_multiple_of(match format {
            Format::Mxfp8 => 32,
            _ => 16,
        })
    }

    /// Whether a scale depends on the whole matrix, so that [`ActivationQuantizer::amax`] runs before the
    /// cast.
    #[must_use]
    pub const fn needs_amax(&self) -> bool {
        self.amax.is_some()
    }

    /// Raises the word at `columnwise_scale` to the amax of the matrix; the word must hold zero before.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] where blocks have scales of their own, and as [`ActivationQuantizer::cast`].
    pub fn amax(&self, operand: &ActivationOperand) -> Result<KernelLaunch, CudaFailure> {
        let Some(amax) = &self.amax else {
            return Err(CudaFailure::Refused("blocks have amaxes of their own; cast at once".to_owned()));
        };
        let arguments = self.arguments(operand)?;
        let blocks = narrow("blocks", operand.shape.elements().div_ceil(AMAX_TILE))?;
        Ok(KernelLaunch::new(amax.clone(), blocks, THREADS, arguments, None))
    }

    /// Codes and scales of the matrix, of its transpose, or of both.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for columns that are not a multiple of 16, or of 32 for MXFP8 and NVFP4, and for an
    /// address that is missing or misaligned.
    pub fn cast(&self, operand: &ActivationOperand) -> Result<KernelLaunch, CudaFailure> {
        self.cast_of(ActivationSource::Values, operand)
    }

    /// The same for what `source` makes of the matrix.
    ///
    /// # Errors
    /// As [`ActivationQuantizer::cast`]; for GELU where one scale holds for the whole matrix, because its
    /// amax has not been found.
    pub fn cast_of(
        &self,
        source: ActivationSource,
        operand: &ActivationOperand,
    ) -> Result<KernelLaunch, CudaFailure> {
        let gelu = || {
            self.gelu.as_ref().ok_or_else(|| {
                CudaFailure::Refused(
                    "GELU is taken on the way to blocks of 128 or 32 alone; take it by a launch of its own"
                        .to_owned(),
                )
            })
        };
        let mut arguments = self.arguments(operand)?;
        let function = match source {
            ActivationSource::Values => &self.cast,
            ActivationSource::Gelu => &gelu()?.value,
            ActivationSource::GeluGradient(gradient) => {
                present("the gradient of GELU", gradient)?;
                element_aligned("the gradient of GELU", gradient, 16)?;
                arguments.beside = gradient;
                &gelu()?.gradient
            }
        };
        let tiles = operand.shape.rows.div_ceil(SIDE).saturating_mul(operand.shape.cols.div_ceil(SIDE));
        Ok(KernelLaunch::new(function.clone(), narrow("tiles", tiles)?, THREADS, arguments, None))
    }

    fn arguments(&self, operand: &ActivationOperand) -> Result<Arguments, CudaFailure> {
        let ActivationOperand { shape, values, row_pitch, data, scale, columnwise_data, columnwise_scale } =
            *operand;
        let format = self.format;
        let block_scaled = matches!(format, Format::Mxfp8 | Format::Nvfp4(_));
        let multiple = if block_scaled { 32 } else { COLUMNS };
        if !shape.cols.is_multiple_of(multiple) {
            return Err(CudaFailure::Refused(format!(
                "activations of {shape} are not quantized to {format}: columns must be a multiple of {multiple}; pad the features"
            )));
        }
        if row_pitch < shape.cols || !row_pitch.is_multiple_of(COLUMNS) {
            return Err(CudaFailure::Refused(format!(
                "activations of {shape} cannot lie {row_pitch} elements a row: a multiple of {COLUMNS} from {} on is needed",
                shape.cols
            )));
        }
        present("the activations", values)?;
        for (what, address, bytes) in [
            ("the activations", values, 16),
            ("rowwise codes", data, 16),
            ("columnwise codes", columnwise_data, 16),
            ("scales", scale, 4),
            ("columnwise scales", columnwise_scale, 4),
        ] {
            element_aligned(what, address, bytes)?;
        }
        let whole = self.needs_amax();
        if matches!(format, Format::Nvfp4(_)) {
            present("rowwise codes", data)?;
            if columnwise_data != DeviceAddress::NULL {
                return Err(CudaFailure::Refused(format!(
                    "activations in {format} have no columnwise codes"
                )));
            }
        }
        if whole || data != DeviceAddress::NULL {
            present("the scales", scale)?;
        }
        if whole || columnwise_data != DeviceAddress::NULL {
            present("the columnwise scales", columnwise_scale)?;
        }
        Ok(Arguments {
            values,
            data,
            turned: columnwise_data,
            scale,
            turned_scale: columnwise_scale,
            rows: narrow("rows", shape.rows)?,
            cols: narrow("columns", shape.cols)?,
            pitch: narrow("rows", Self::line(format, shape.rows))?,
            power_of_two: u32::from(self.power_of_two),
            epsilon: self.epsilon,
            row_pitch: narrow("columns", row_pitch)?,
            beside: DeviceAddress::NULL,
        })
    }
}

#[cfg(test)]
mirrors!(Family::Activation, AMAX_TILE, SIDE);
