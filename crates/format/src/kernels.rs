//! The dispatch below the stages: the kernel of each format.
//!
//! Arguments are already validated. A [`Span`] is either a whole row shard or any slice of a weight. This is
//! the one place where a format, an orientation and a rounding meet a loop. The loops are compiled once per
//! instruction set, and the best one the machine has is used. All give the same bits, because every operation
//! is an IEEE operation on one lane.

use multiversion::multiversion;

use super::format::{Format, Fp8Element};
use super::minifloat::{E2m1, E4m3, E5m2};
use super::mxfp8::BLOCK;
use super::shape::{Orientation, Shape};
use super::span::Span;
use super::via::{Via, round_to_bf16};
use super::{amax, cast, dense, fp8_block, nvfp4};

/// One slice of one orientation of a weight, and how to read its master values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    pub(super) format: Format,
    pub(super) orientation: Orientation,
    pub(super) via: Via,
    pub(super) shape: Shape,
    pub(super) span: Span,
}

/// Amax of every block, 0 where the slice has no element of it, and of the slice.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+bmi1+bmi2+fma+lzcnt+popcnt",))]
pub(super) fn amax(slice: Slice, master: &[f32], blocks: &mut [f32]) -> f32 {
    let Slice { format, orientation, via, shape, span } = slice;
    let rounded = |amax| match via {
        Via::Bf16 => round_to_bf16(amax),
        Via::None => amax,
    };
    match format {
        Format::F32 | Format::Bf16 => return 0.0,
        Format::Fp8Tensor(_) => return rounded(amax::of_values(master)),
        Format::Nvfp4(block) => {
            amax::of_tiles::<16>(nvfp4::block_height(block), shape, span, master, blocks);
        }
        Format::Fp8Block(block) => {
            amax::of_tiles::<128>(fp8_block::block_height(block), shape, span, master, blocks);
        }
        Format::Mxfp8 => match orientation {
            Orientation::Rowwise => amax::of_tiles::<BLOCK>(1, shape, span, master, blocks),
            Orientation::Columnwise => amax::of_tiles::<1>(BLOCK, shape, span, master, blocks),
        },
    }
    for block in &mut *blocks {
        *block = rounded(*block);
    }
    amax::of_amaxes(blocks)
}

/// Codes of a slice, starting at the byte of its first element.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+bmi1+bmi2+fma+lzcnt+popcnt",))]
pub(super) fn cast(slice: Slice, master: &[f32], factors: &[f32], data: &mut [u8]) {
    match slice.via {
        Via::Bf16 => cast_through::<true>(slice, master, factors, data),
        Via::None => cast_through::<false>(slice, master, factors, data),
    }
}

#[inline(always)]
fn cast_through<const BF16: bool>(slice: Slice, master: &[f32], factors: &[f32], data: &mut [u8]) {
    let Slice { format, orientation, shape, span, .. } = slice;
    match format {
        Format::F32 => dense::cast_f32(master, data),
        Format::Bf16 => dense::cast_bf16(master, data),
        Format::Nvfp4(block) => {
            let height = nvfp4::block_height(block);
            cast::by_block::<E2m1, 16, BF16>(height, shape, span, master, factors, data);
        }
        Format::Fp8Block(block) => {
            let height = fp8_block::block_height(block);
            match block.element {
                Fp8Element::E4m3 => {
                    cast::by_block::<E4m3, 128, BF16>(height, shape, span, master, factors, data);
                }
                Fp8Element::E5m2 => {
                    cast::by_block::<E5m2, 128, BF16>(height, shape, span, master, factors, data);
                }
            }
        }
        Format::Mxfp8 => match orientation {
            Orientation::Rowwise => {
                cast::by_block::<E4m3, BLOCK, BF16>(1, shape, span, master, factors, data);
            }
            Orientation::Columnwise => {
                cast::by_block::<E4m3, 1, BF16>(BLOCK, shape, span, master, factors, data);
            }
        },
        Format::Fp8Tensor(tensor) => match tensor.element {
            Fp8Element::E4m3 => cast::by_tensor::<E4m3, BF16>(master, factors[0], data),
            Fp8Element::E5m2 => cast::by_tensor::<E5m2, BF16>(master, factors[0], data),
        },
    }
}
