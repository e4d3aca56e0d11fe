//! Flat (ZeRO) shards: a rank owns a contiguous slice of the flattened weight, at any offset.
//!
//! A slice may begin inside a row, inside a block, or on the odd nibble of a byte; it may be empty. Every
//! rank computes amaxes over the whole block grid (0 where it owns nothing). The maximum over the ranks gives
//! every rank all of them. Every rank then computes all scales with [`super::fused_scale`] on the full shape,
//! and casts its slice into a *fragment*: the bytes of the full data plane that hold its codes.
//!
//! Laws:
//! - **FS-1** a cast changes exactly the codes of its slice. A byte of two nibbles that straddles two slices
//!   is in both fragments, and each rank writes its own nibble of it.
//! - **FS-2** [`place_fragment`] merges exactly the owned codes, so ranks may exchange whole bytes and an odd
//!   boundary needs no special collective.
//! - **FS-3** the kernels are those of the row shards, on another span.

mod fragment;
mod stages;

pub use fragment::{FlatShard, place_fragment};
pub use stages::{flat_amax, flat_cast};
