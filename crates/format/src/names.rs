//! Names of formats: display, parsing, serde.
//!
//! A name and a format determine each other: parsing and printing gives the canonical spelling. The grammar
//! is described at [`Format`].

use std::fmt;
use std::str::FromStr;

use super::FormatError;
use super::format::{Epsilon, Format, Fp8Block, Fp8Element, Fp8Tensor, Fp8Tile, Nvfp4Block, ScaleRule};

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32 => f.pad("f32"),
            Self::Bf16 => f.pad("bf16"),
            Self::Nvfp4(Nvfp4Block::Tile16x16) => f.pad("nvfp4_2d"),
            Self::Nvfp4(Nvfp4Block::Row1x16) => f.pad("nvfp4_1d"),
            Self::Mxfp8 => f.pad("mxfp8"),
            Self::Fp8Block(block) => {
                f.write_str(match block.tile {
                    Fp8Tile::Tile128x128 => "fp8_block128",
                    Fp8Tile::Row1x128 => "fp8_block1x128",
                })?;
                if block.element == Fp8Element::E5m2 {
                    f.write_str("_e5m2")?;
                }
                f.write_str(match block.scale {
                    ScaleRule::PowerOfTwo => "_pow2",
                    ScaleRule::Float32 => "_f32scale",
                })?;
                write_epsilon(f, block.epsilon)
            }
            Self::Fp8Tensor(tensor) => {
                f.write_str(match tensor.element {
                    Fp8Element::E4m3 => "fp8_tensor_e4m3",
                    Fp8Element::E5m2 => "fp8_tensor_e5m2",
                })?;
                if tensor.scale == ScaleRule::PowerOfTwo {
                    f.write_str("_pow2")?;
                }
                write_epsilon(f, tensor.epsilon)
            }
        }
    }
}

fn write_epsilon(f: &mut fmt::Formatter<'_>, epsilon: Epsilon) -> fmt::Result {
    if epsilon == Epsilon::ZERO { Ok(()) } else { write!(f, "_eps{:e}", epsilon.value()) }
}

impl FromStr for Format {
    type Err = FormatError;

    fn from_str(name: &str) -> Result<Self, FormatError> {
        match name {
            "f32" => return Ok(Self::F32),
            "bf16" => return Ok(Self::Bf16),
            "nvfp4_2d" => return Ok(Self::NVFP4_2D),
            "nvfp4_1d" => return Ok(Self::NVFP4_1D),
            "mxfp8" => return Ok(Self::Mxfp8),
            _ => {}
        }
        if let Some((_, format)) = Self::FAMILIES.into_iter().find(|(family, _)| *family == name) {
            return Ok(format);
        }
        parse_fp8(name).unwrap_or_else(|| Err(unknown(name)))
    }
}

/// Parses the names with options; `None` when the name is not of that form.
fn parse_fp8(name: &str) -> Option<Result<Format, FormatError>> {
    let (name, epsilon) = match name.split_once("_eps") {
        None => (name, Epsilon::ZERO),
        Some((name, digits)) => match Epsilon::new(digits.parse().ok()?) {
            Ok(epsilon) => (name, epsilon),
            Err(error) => return Some(Err(error)),
        },
    };
    let format = if let Some(options) = name.strip_prefix("fp8_block128") {
        let (element, scale) = parse_block_options(options)?;
        Format::Fp8Block(Fp8Block { tile: Fp8Tile::Tile128x128, element, scale, epsilon })
    } else if let Some(options) = name.strip_prefix("fp8_block1x128") {
        let (element, scale) = parse_block_options(options)?;
        Format::Fp8Block(Fp8Block { tile: Fp8Tile::Row1x128, element, scale, epsilon })
    } else {
        let (element, scale) = match name.strip_prefix("fp8_tensor")? {
            "_e4m3" => (Fp8Element::E4m3, ScaleRule::Float32),
            "_e4m3_pow2" => (Fp8Element::E4m3, ScaleRule::PowerOfTwo),
            "_e5m2" => (Fp8Element::E5m2, ScaleRule::Float32),
            "_e5m2_pow2" => (Fp8Element::E5m2, ScaleRule::PowerOfTwo),
            _ => return None,
        };
        Format::Fp8Tensor(Fp8Tensor { element, scale, epsilon })
    };
    Some(Ok(format))
}

fn parse_block_options(options: &str) -> Option<(Fp8Element, ScaleRule)> {
    match options {
        "_pow2" => Some((Fp8Element::E4m3, ScaleRule::PowerOfTwo)),
        "_f32scale" => Some((Fp8Element::E4m3, ScaleRule::Float32)),
        "_e5m2_pow2" => Some((Fp8Element::E5m2, ScaleRule::PowerOfTwo)),
        "_e5m2_f32scale" => Some((Fp8Element::E5m2, ScaleRule::Float32)),
        _ => None,
    }
}

fn unknown(name: &str) -> FormatError {
    let known: Vec<String> = Format::CANONICAL.iter().map(Format::to_string).collect();
    let families = Format::FAMILIES.map(|(family, format)| format!("{family} for {format}"));
    let known = format!("{}; for short {}", known.join(", "), families.join(", "));
    FormatError::UnknownName { name: name.to_owned(), known }
}

impl TryFrom<String> for Format {
    type Error = FormatError;

    fn try_from(name: String) -> Result<Self, FormatError> {
        name.parse()
    }
}

impl From<Format> for String {
    fn from(format: Format) -> Self {
        format.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_back_to_its_format() {
        let epsilon = Epsilon::new(1e-6).unwrap();
        let mut formats = Format::CANONICAL.to_vec();
        for element in [Fp8Element::E4m3, Fp8Element::E5m2] {
            for scale in [ScaleRule::PowerOfTwo, ScaleRule::Float32] {
                for epsilon in [Epsilon::ZERO, epsilon] {
                    for tile in [Fp8Tile::Tile128x128, Fp8Tile::Row1x128] {
                        formats.push(Format::Fp8Block(Fp8Block { tile, element, scale, epsilon }));
                    }
                    formats.push(Format::Fp8Tensor(Fp8Tensor { element, scale, epsilon }));
                }
            }
        }
        for format in formats {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
    }

    #[test]
    fn canonical_names_are_the_documented_ones() {
        let names: Vec<String> = Format::CANONICAL.iter().map(Format::to_string).collect();
        assert_eq!(
            names,
            [
                "f32",
                "bf16",
                "nvfp4_2d",
                "nvfp4_1d",
                "fp8_block128_pow2",
                "fp8_block128_f32scale",
                "fp8_block1x128_pow2",
                "mxfp8",
                "fp8_tensor_e4m3",
                "fp8_tensor_e5m2_pow2"
            ]
        );
    }

    #[test]
    fn a_family_name_means_its_weight_variant() {
        assert_eq!("nvfp4".parse(), Ok(Format::NVFP4_2D));
        assert_eq!("fp8_block".parse(), Ok(Format::FP8_BLOCK128_POW2));
        assert_eq!("fp8_tensor".parse(), Ok(Format::FP8_TENSOR_E4M3));
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        for name in ["", "fp4", "nvfp4_3d", "fp8_block128", "fp8_tensor_e3m4", "fp8_block128_pow2_eps"] {
            let message = name.parse::<Format>().unwrap_err().to_string();
            assert!(message.contains("nvfp4_2d") && message.contains("mxfp8"), "{message}");
            assert!(message.ends_with(
                "for short nvfp4 for nvfp4_2d, fp8_block for fp8_block128_pow2, fp8_tensor for fp8_tensor_e4m3"
            ), "{message}");
        }
    }

    #[test]
    fn an_epsilon_that_bounds_nothing_is_refused() {
        for value in [-1.0, f32::INFINITY, f32::NAN] {
            assert!(matches!(Epsilon::new(value), Err(FormatError::BadEpsilon { .. })));
        }
        assert!(matches!("fp8_block128_pow2_eps-1".parse::<Format>(), Err(FormatError::BadEpsilon { .. })));
        assert_eq!(Epsilon::new(-0.0), Ok(Epsilon::ZERO));
    }
}
