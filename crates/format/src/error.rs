//! Errors of formats, and what to do about them.
//!
//! Every stage validates its arguments before it writes the first byte, so an error means that nothing
//! was changed. Building an error never allocates, except for an unknown name, which only parsing makes.

use super::{Format, Orientation, Shape};

/// An argument a format cannot work with. The message says what to change.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// No format has this name.
    #[error("unknown format `{name}`; known formats are {known}")]
    UnknownName {
        /// The name as given.
        name: String,
        /// The canonical names, comma separated, followed by the short names of families.
        known: String,
    },

    /// An epsilon must be a finite number that is not negative.
    #[error("epsilon {value} is not a finite number ≥ 0; use 0 to switch it off")]
    BadEpsilon {
        /// The value as given.
        value: f32,
    },

    /// A weight without elements cannot be quantized.
    #[error("a weight of shape {shape} has no elements; drop it from the model")]
    EmptyShape {
        /// The shape as given.
        shape: Shape,
    },

    /// The number of elements or bytes does not fit in `usize`.
    #[error("a weight of shape {shape} has more elements than this machine can address")]
    ShapeTooLarge {
        /// The shape as given.
        shape: Shape,
    },

    /// The rows do not divide into the format's blocks.
    #[error("{format} needs rows in multiples of {multiple}, but the shape is {shape}; pad the rows to {}, or choose another format", shape.rows.next_multiple_of(*multiple))]
    RowsNotAligned {
        /// The format.
        format: Format,
        /// The shape as given.
        shape: Shape,
        /// What the rows must be a multiple of.
        multiple: usize,
    },

    /// The columns do not divide into the format's blocks.
    #[error("{format} needs columns in multiples of {multiple}, but the shape is {shape}; pad the columns to {}, or choose another format", shape.cols.next_multiple_of(*multiple))]
    ColumnsNotAligned {
        /// The format.
        format: Format,
        /// The shape as given.
        shape: Shape,
        /// What the columns must be a multiple of.
        multiple: usize,
    },

    /// The format is for activations; a sharded weight cannot use it.
    #[error("{format} cannot be used for a sharded weight: {reason}; use {instead}")]
    NotAWeightFormat {
        /// The format.
        format: Format,
        /// Why.
        reason: &'static str,
        /// The format of the same family that can.
        instead: Format,
    },

    /// The stages produce only the orientations a shard stores.
    #[error("{format} does not store {orientation} planes in a shard; {hint}")]
    OrientationNotStored {
        /// The format.
        format: Format,
        /// The orientation requested.
        orientation: Orientation,
        /// How to get them.
        hint: &'static str,
    },

    /// The columnwise planes do not follow from the rowwise ones.
    #[error("columnwise planes of {format} cannot be derived from rowwise planes: {reason}")]
    CannotDeriveColumnwise {
        /// The format.
        format: Format,
        /// Why.
        reason: &'static str,
    },

    /// A slice has the wrong length.
    #[error("{what} has length {actual}, expected {expected}; pass one of that length")]
    Length {
        /// Which argument.
        what: &'static str,
        /// The length it must have.
        expected: usize,
        /// The length it has.
        actual: usize,
    },

    /// A scale plane must have the rows of a shard, or the padded rows of a full weight. Where it is
    /// dequantized or written, one of each group of repeated rows is enough ([`Format::compact_planes`]).
    #[error(
        "the {orientation} scale plane has {actual} bytes, expected {shard} (rows as a shard sends them) or {padded} (padded rows)"
    )]
    ScaleLength {
        /// Orientation of the plane.
        orientation: Orientation,
        /// Bytes without row padding.
        shard: usize,
        /// Bytes with row padding.
        padded: usize,
        /// The length it has.
        actual: usize,
    },

    /// The amax of a tensor must be finite for the format to have a scale.
    #[error(
        "the amax of the tensor is {amax}, so {format} has no scale for it; skip this update of the weight"
    )]
    NonFiniteAmax {
        /// The format.
        format: Format,
        /// The amax after the reduction over ranks.
        amax: f32,
    },

    /// Swizzled scales are for a GEMM only.
    #[error(
        "{format} scales are swizzled for a GEMM and can no longer be {what}; keep a row-major copy of the scale plane for that"
    )]
    Swizzled {
        /// The format.
        format: Format,
        /// What was attempted: gathered, transposed, dequantized, viewed.
        what: &'static str,
    },

    /// The format has no swizzled scale layout.
    #[error("{format} has no swizzled scale layout; only the one-byte scales of nvfp4 and mxfp8 have one")]
    NoSwizzledLayout {
        /// The format.
        format: Format,
    },

    /// The planes of an orientation are absent.
    #[error("the weight has no {orientation} planes; quantize or derive them first")]
    MissingPlanes {
        /// The orientation requested.
        orientation: Orientation,
    },

    /// Shards to be gathered do not belong to the weight.
    #[error("the {orientation} planes of shard {shard} do not fit a weight of shape {shape}: {reason}")]
    ShardMismatch {
        /// Orientation of the planes.
        orientation: Orientation,
        /// Position of the shard among the shards given.
        shard: usize,
        /// Shape of the full weight.
        shape: Shape,
        /// What is wrong.
        reason: &'static str,
    },

    /// A flat shard reaches beyond its weight.
    #[error("the flat shard [{start}, {start} + {len}) does not lie in a weight of {elements} elements")]
    FlatShardOutOfRange {
        /// First element.
        start: usize,
        /// Number of elements.
        len: usize,
        /// Elements of the weight.
        elements: usize,
    },

    /// A delayed scale belongs to one per-tensor format.
    #[error(
        "the delayed scale is for another format than {format}; make one with `DelayedScaling::new` for it"
    )]
    DelayedMismatch {
        /// The format of the weight.
        format: Format,
    },

    /// The bytes cannot be looked at or copied this way.
    #[error("this would need new bytes of a {format} weight of shape {shape}: {reason}; dequantize it first")]
    ViewRefused {
        /// The format.
        format: Format,
        /// Shape of the weight.
        shape: Shape,
        /// Why.
        reason: &'static str,
    },

    /// The device cannot multiply matrices in the format.
    #[error("{format} does not run on this device: {reason}; use {instead}")]
    NotOnDevice {
        /// The format.
        format: Format,
        /// Why.
        reason: &'static str,
        /// The nearest format that does.
        instead: Format,
    },
}

warpweft_base::debug_in_words!(FormatError);
