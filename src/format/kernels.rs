//! Which kernel serves which format: the dispatch below the stages.
//!
//! Arguments are validated already; a [`Span`] is either a whole row shard or any slice of a weight. This is
//! the one place where a format, an orientation and a rounding meet a loop.

use super::cast::{columns_to_bytes, slice_to_bytes, tiles_to_bytes, tiles_to_nibbles};
use super::format::{Format, Fp8Element};
use super::minifloat::{E4m3, E5m2};
use super::shape::{Orientation, Shape};
use super::span::Span;
use super::via::Via;
use super::{amax, dense, fp8_block, mxfp8, nvfp4};

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
pub(super) fn amax(slice: Slice, master: &[f32], blocks: &mut [f32]) -> f32 {
    match slice.via {
        Via::Bf16 => amax_through::<true>(slice, master, blocks),
        Via::None => amax_through::<false>(slice, master, blocks),
    }
}

fn amax_through<const BF16: bool>(slice: Slice, master: &[f32], blocks: &mut [f32]) -> f32 {
    let Slice { shape, span, .. } = slice;
    match slice.format {
        Format::F32 | Format::Bf16 => return 0.0,
        Format::Fp8Tensor(_) => return amax::of_values::<BF16>(master),
        Format::Nvfp4(block) => {
            amax::of_tiles::<16, BF16>(nvfp4::block_height(block), shape, span, master, blocks);
        }
        Format::Fp8Block(block) => {
            amax::of_tiles::<128, BF16>(fp8_block::block_height(block), shape, span, master, blocks);
        }
        Format::Mxfp8 => match slice.orientation {
            Orientation::Rowwise => amax::of_tiles::<{ mxfp8::BLOCK }, BF16>(1, shape, span, master, blocks),
            Orientation::Columnwise => amax::of_columns::<BF16>(mxfp8::BLOCK, shape, span, master, blocks),
        },
    }
    amax::of_amaxes(blocks)
}

/// Codes of a slice, at the byte of its first element on.
pub(super) fn cast(slice: Slice, master: &[f32], factors: &[f32], data: &mut [u8]) {
    match slice.via {
        Via::Bf16 => cast_through::<true>(slice, master, factors, data),
        Via::None => cast_through::<false>(slice, master, factors, data),
    }
}

fn cast_through<const BF16: bool>(slice: Slice, master: &[f32], factors: &[f32], data: &mut [u8]) {
    let Slice { shape, span, .. } = slice;
    match slice.format {
        Format::F32 => dense::cast_f32::<BF16>(master, data),
        Format::Bf16 => dense::cast_bf16(master, data),
        Format::Nvfp4(block) => {
            tiles_to_nibbles::<BF16>(nvfp4::block_height(block), shape, span, master, factors, data);
        }
        Format::Fp8Block(block) => {
            let height = fp8_block::block_height(block);
            match block.element {
                Fp8Element::E4m3 => {
                    tiles_to_bytes::<E4m3, 128, BF16>(height, shape, span, master, factors, data);
                }
                Fp8Element::E5m2 => {
                    tiles_to_bytes::<E5m2, 128, BF16>(height, shape, span, master, factors, data);
                }
            }
        }
        Format::Mxfp8 => match slice.orientation {
            Orientation::Rowwise => {
                tiles_to_bytes::<E4m3, { mxfp8::BLOCK }, BF16>(1, shape, span, master, factors, data);
            }
            Orientation::Columnwise => {
                columns_to_bytes::<E4m3, BF16>(mxfp8::BLOCK, shape, span, master, factors, data);
            }
        },
        Format::Fp8Tensor(tensor) => match tensor.element {
            Fp8Element::E4m3 => slice_to_bytes::<E4m3, BF16>(master, factors[0], data),
            Fp8Element::E5m2 => slice_to_bytes::<E5m2, BF16>(master, factors[0], data),
        },
    }
}
