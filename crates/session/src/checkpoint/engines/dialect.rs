//! Dialects of quantized checkpoints: names and layouts of the tensors of a linear layer.
//!
//! | dialect | format | tensors of the layer `X`, weight `[M, K]` |
//! |---|---|---|
//! | `compressed-tensors` | NVFP4 | `X.weight_packed` U8 `[M, K/2]`, `X.weight_scale` E4M3 `[M, K/16]`, `X.weight_global_scale` F32 `[1]` = 2688 / A |
//! | | FP8 by blocks | `X.weight` E4M3, `X.weight_scale` F32 `[⌈M/128⌉, ⌈K/128⌉]` |
//! | | FP8 by tensors | `X.weight` E4M3, `X.weight_scale` F32 `[1]` |
//! | | MXFP8 | `X.weight` E4M3, `X.weight_scale` U8 `[M, K/32]`, the byte of E8M0 |
//! | `modelopt` | NVFP4 | `X.weight` U8 `[M, K/2]`, `X.weight_scale` E4M3 `[M, K/16]`, `X.weight_scale_2` F32 `[]` = A / 2688 |
//! | | MXFP8 | `X.weight` E4M3, `X.weight_scale` U8 `[M, K/32]`, the byte of E8M0 |
//! | `deepseek-fp8` | FP8 by blocks | `X.weight` E4M3, `X.weight_scale_inv` F32 `[⌈M/128⌉, ⌈K/128⌉]` |
//!
//! A is the largest magnitude of the weight, or of all weights that an engine fuses. Law: the two dialects of NVFP4
//! have scales of the tensor that are each other's inverse, so which one it is comes from the configuration beside the
//! file and is never guessed from the number.

use std::fmt;
use std::str::FromStr;

use safetensors::Dtype;
use warpweft_format::{Format, Shape};

use super::encoding::Encoding;

/// A convention by which inference engines store quantized weights.
///
/// vLLM and SGLang read all three, transformers the first and the last, TensorRT-LLM the second. Names are those of
/// `quantize --to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// `compressed-tensors`, of llm-compressor: NVFP4, FP8 by blocks or tensors, MXFP8, and several of them in one
    /// model.
    CompressedTensors,
    /// `modelopt`, of NVIDIA's Model Optimizer: NVFP4, MXFP8, and both of them in one model.
    ModelOpt,
    /// `deepseek-fp8`, as DeepSeek-V3 was published: FP8 by blocks.
    DeepSeekFp8,
}

/// What a stored tensor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Codes of the elements.
    Codes,
    /// Scales of blocks or rows.
    Scales,
    /// The scale of the tensor.
    TensorScale,
    /// The scale of what the layer is given.
    InputScale,
}

/// One of the tensors that a quantized linear layer is stored as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredTensor {
    /// After the layer's name and a dot.
    pub(crate) suffix: &'static str,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) holds: Holds,
}

impl StoredTensor {
    pub(crate) fn bytes(&self) -> u64 {
        (self.shape.iter().product::<usize>() * (self.dtype.bitsize() / 8)) as u64
    }
}

impl Dialect {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::CompressedTensors, Self::ModelOpt, Self::DeepSeekFp8];

    /// Its name, as `quantize --to` takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CompressedTensors => "compressed-tensors",
            Self::ModelOpt => "modelopt",
            Self::DeepSeekFp8 => "deepseek-fp8",
        }
    }

    /// Can a layer in this format be stored so?
    #[must_use]
    pub fn takes(self, format: Format) -> bool {
        Encoding::of(format).is_some_and(|encoding| self.has(encoding))
    }

    /// The formats of [`Format::CANONICAL`] that it takes.
    pub fn formats(self) -> impl Iterator<Item = Format> {
        Format::CANONICAL
            .into_iter()
            .filter(move |format| self.takes(*format) && format.check_weight().is_ok())
    }

    pub(crate) const fn has(self, encoding: Encoding) -> bool {
        match self {
            Self::CompressedTensors => true,
            Self::ModelOpt => matches!(encoding, Encoding::Nvfp4 | Encoding::Mxfp8),
            Self::DeepSeekFp8 => matches!(encoding, Encoding::Fp8Block),
        }
    }

    /// The tensors of a layer whose weight has this shape, codes first. `None` for an encoding that the dialect lacks,
    /// and for columns that no whole blocks cover.
    pub(crate) fn tensors(self, encoding: Encoding, shape: Shape) -> Option<Vec<StoredTensor>> {
        use Holds::{Codes, Scales, TensorScale};
        if !self.has(encoding) {
            return None;
        }
        let Shape { rows, cols } = shape;
        let stored = |suffix, dtype, shape, holds| StoredTensor { suffix, dtype, shape, holds };
        let blocks = || vec![rows.div_ceil(128), cols.div_ceil(128)];
        let codes = stored("weight", Dtype::F8_E4M3, vec![rows, cols], Codes);
        Some(match (self, encoding) {
            (_, Encoding::Nvfp4) if !cols.is_multiple_of(16) => return None,
            (_, Encoding::Mxfp8) if !cols.is_multiple_of(32) => return None,
            (Self::ModelOpt, Encoding::Nvfp4) => vec![
                stored("weight", Dtype::U8, vec![rows, cols / 2], Codes),
                stored("weight_scale", Dtype::F8_E4M3, vec![rows, cols / 16], Scales),
                stored("weight_scale_2", Dtype::F32, vec![], TensorScale),
            ],
            (_, Encoding::Nvfp4) => vec![
                stored("weight_packed", Dtype::U8, vec![rows, cols / 2], Codes),
                stored("weight_scale", Dtype::F8_E4M3, vec![rows, cols / 16], Scales),
                stored("weight_global_scale", Dtype::F32, vec![1], TensorScale),
            ],
            (Self::DeepSeekFp8, _) => {
                vec![codes, stored("weight_scale_inv", Dtype::F32, blocks(), Scales)]
            }
            (_, Encoding::Fp8Block) => vec![codes, stored("weight_scale", Dtype::F32, blocks(), Scales)],
            (_, Encoding::Fp8Tensor) => {
                vec![codes, stored("weight_scale", Dtype::F32, vec![1], TensorScale)]
            }
            (_, Encoding::Fp8Channel) => {
                vec![codes, stored("weight_scale", Dtype::F32, vec![rows, 1], Scales)]
            }
            (_, Encoding::Mxfp8) => {
                vec![codes, stored("weight_scale", Dtype::U8, vec![rows, cols / 32], Scales)]
            }
        })
    }

    /// The tensor that makes a layer of NVFP4 one whose inputs are quantized too.
    pub(crate) fn input_scale(self) -> Option<StoredTensor> {
        let (suffix, shape) = match self {
            Self::CompressedTensors => ("input_global_scale", vec![1]),
            Self::ModelOpt => ("input_scale", vec![]),
            Self::DeepSeekFp8 => return None,
        };
        Some(StoredTensor { suffix, dtype: Dtype::F32, shape, holds: Holds::InputScale })
    }

    /// The scale of a tensor of NVFP4 whose largest magnitude is `amax`, as the dialect has it.
    pub(crate) fn nvfp4_scale(self, amax: f32) -> f32 {
        /// The largest E2M1 times the largest E4M3.
        const LARGEST: f32 = 6.0 * 448.0;
        match self {
            // A weight of zeros, whatever it is multiplied by; and nobody divides by zero.
            _ if amax == 0.0 => 1.0,
            Self::CompressedTensors | Self::DeepSeekFp8 => (LARGEST / amax).min(f32::MAX),
            Self::ModelOpt => amax / LARGEST,
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dialect {
    type Err = String;

    /// # Errors
    /// The names there are.
    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|dialect| dialect.name() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no dialect of this name; choose one of {names}")
        })
    }
}
