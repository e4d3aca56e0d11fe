//! Quantized number formats of weights: NVFP4, MXFP8, FP8 by blocks and by tensors, bf16; from f32 master weights to
//! bytes and back.
//!
//! ```
//! use warpweft_format::{Directions, Format, Shape, Via, quantize};
//!
//! let shape = Shape { rows: 16, cols: 32 };
//! let master: Vec<f32> = (0..shape.elements()).map(|at| (at as f32).sin()).collect();
//! let weight = quantize(Format::NVFP4_2D, Directions::Rowwise, Via::None, shape, &master)?;
//! let planes = weight.rowwise.ok_or("rowwise planes")?;
//! assert_eq!(planes.data.len(), shape.elements() / 2); // four bits for each value
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! It is usable alone. It is not a tensor library and knows no file: `warpweft` shards these weights, moves them
//! between ranks and saves them. No version number promises anything of this crate by itself.
//!
//! Laws:
//! - **FO-1** bytes are the specification's, bit for bit: IEEE f32, round to nearest even, subnormals kept,
//!   no contraction. The golden vectors under `tests/golden` decide.
//! - **FO-2** one kernel per stage. Row shards, flat shards, whole weights, tools and actors share it.
//! - **FO-3** the bytes of a weight depend neither on the number of ranks nor on how it is cut.
//! - **FO-4** padding is zero, and bytes of a neighbour are never touched.
//! - **FO-5** a master split into bf16 and remainder joins to the same bits.
//! - **FO-6** rows that complete a block count as zeros: the planes of a weight whose rows end within a block are those
//!   of the weight with zero rows up to the end of it.
//!
//! The stages ([`partial_amax`], [`fused_scale`], [`partial_cast`], [`transpose()`], [`dequantize`]) work on
//! the caller's memory and allocate nothing. Anyone may call them. This crate knows
//! shapes and bytes, not ranks, streams or plans. The reduction between amax and scale is left to the caller.

mod amax;
mod blocks;
mod cast;
mod delayed;
mod dense;
mod e8m0;
mod element;
mod error;
mod format;
mod fp8;
mod fp8_block;
mod gather;
mod kernels;
mod master_weights;
mod minifloat;
mod mxfp8;
mod names;
mod nvfp4;
mod partial;
mod planes;
mod quantize;
mod quantized;
pub mod reference;
mod remainder;
mod rules;
mod shape;
mod span;
mod stages;
mod swizzle;
mod transpose;
mod via;
mod views;
mod wire;

pub use blocks::{MXFP8_BLOCK, dequantize_mxfp8, quantize_mxfp8};
pub use delayed::{
    AmaxChoice, DelayedScaling, DelayedState, delayed_scale, delayed_scale_of_group, record_amax,
};
pub use element::Element;
pub use error::FormatError;
pub use format::{Epsilon, Format, Fp8Block, Fp8Element, Fp8Tensor, Fp8Tile, Nvfp4Block, ScaleRule};
pub use fp8::Fp8Scale;
pub use master_weights::{MasterWeight, MasterWeightsError, Workspace, quantize_master_weights};
pub use minifloat::{e2m1_values, e4m3_values};
pub use nvfp4::Nvfp4Scale;
pub use partial::{FlatShard, flat_amax, flat_cast, place_fragment};
pub use quantize::{Directions, quantize, quantize_shard, tensor_amax};
pub use quantized::{OwnedPlanes, Quantized};
pub use remainder::{join_master, split_master};
pub use shape::{ElementType, Orientation, PlaneKind, PlaneSpec, Planes, PlanesMut, Shape};
pub use stages::{dequantize, dequantize_bf16, fused_scale, partial_amax, partial_cast, transpose};
pub use swizzle::{ScaleLayout, swizzle_scale};
pub use via::Via;
pub use views::View;
pub use wire::expand_scale;
