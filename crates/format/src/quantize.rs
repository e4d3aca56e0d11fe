//! A whole weight, or a row shard of one, in one call: the stages composed, with memory of their own.
//!
//! For tools, tests and weights that are quantized once. A training step uses the stages on its arena instead; both
//! give the same bytes (ST-3). For the same reason the weight may be cut here into strips that all cores work on.

use std::borrow::Cow;
use std::mem::take;

use rayon::prelude::*;

use super::format::Format;
use super::quantized::{OwnedPlanes, Quantized};
use super::shape::{Orientation, Shape};
use super::swizzle::ScaleLayout;
use super::via::Via;
use super::{FormatError, amax, fused_scale, partial_amax, partial_cast, transpose as derive};

/// Rows of a strip: a multiple of every block height.
const STRIP_ROWS: usize = 128;

/// Which planes to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Directions {
    /// Rowwise planes only.
    Rowwise,
    /// Columnwise planes only.
    Columnwise,
    /// Both.
    Both,
}

/// Quantizes a whole weight (`[rows, cols]`), in any orientation of any format.
///
/// Columnwise planes are derived where the format allows it, and otherwise quantized from the transposed
/// weight.
///
/// # Errors
/// A shape the format cannot quantize, a `weight` of another length, an amax without a scale.
pub fn quantize(
    format: Format,
    directions: Directions,
    via: Via,
    shape: Shape,
    weight: &[f32],
) -> Result<Quantized, FormatError> {
    format.check_shape(shape)?;
    if weight.len() != shape.elements() {
        return Err(FormatError::Length { what: "weight", expected: shape.elements(), actual: weight.len() });
    }
    let rowwise = match directions {
        Directions::Rowwise | Directions::Both => {
            Some(from_master(format, Orientation::Rowwise, via, shape, weight)?)
        }
        Directions::Columnwise => None,
    };
    let columnwise = match (directions, &rowwise) {
        (Directions::Rowwise, _) => None,
        (_, Some(rowwise)) if format.derives_columnwise().is_ok() => {
            let mut planes = OwnedPlanes::zeroed(format, Orientation::Columnwise, shape);
            derive(format, shape, rowwise.planes.as_planes(), planes.as_planes_mut())?;
            Some(FromMaster { planes, ..*rowwise })
        }
        _ if format.stored_orientations().contains(&Orientation::Columnwise) => {
            Some(from_master(format, Orientation::Columnwise, via, shape, weight)?)
        }
        _ => {
            let whole = format.whole_blocks(shape);
            let mut turned = vec![0.0; whole.elements()];
            super::transpose::values(whole, &filled(weight, whole.elements()), &mut turned);
            Some(from_master(format, Orientation::Rowwise, via, whole.transposed(), &turned)?)
        }
    };
    let (amax, tensor_scale) =
        rowwise.as_ref().or(columnwise.as_ref()).map_or((0.0, 1.0), |made| (made.amax, made.tensor_scale));
    Ok(Quantized {
        format,
        shape,
        amax,
        tensor_scale,
        scale_layout: ScaleLayout::RowMajor,
        rowwise: rowwise.map(|made| made.planes),
        columnwise: columnwise.map(|made| made.planes),
    })
}

/// Quantizes a row shard of a weight (`[rows, cols]`, a multiple of [`Format::row_tile`] rows) in the orientations that
/// its format stores: planes as [`Format::compact_planes`] describes them, and what dequantizing needs besides.
///
/// `over_ranks` gives the maximum over all shards of what it gets of this one. It is called once if
/// [`Format::needs_tensor_amax`], and otherwise not.
///
/// # Errors
/// As [`quantize`], and what `over_ranks` fails with.
pub fn quantize_shard<E: From<FormatError>>(
    format: Format,
    via: Via,
    shape: Shape,
    master: &[f32],
    over_ranks: impl Fn(f32) -> Result<f32, E>,
) -> Result<(Vec<OwnedPlanes>, f32), E> {
    let (mut planes, mut tensor_scale) = (Vec::new(), 1.0);
    for orientation in format.stored_orientations() {
        let specs = format.compact_planes(*orientation, shape);
        let mut target = specs.iter().map(|spec| vec![0; spec.bytes()]);
        let mut next = || target.next().unwrap_or_default();
        let target = OwnedPlanes { data: next(), scale: next() };
        let amax = |amax| if format.needs_tensor_amax() { over_ranks(amax) } else { Ok(amax) };
        let made = into_planes(format, *orientation, via, shape, master, target, amax)?;
        tensor_scale = made.tensor_scale;
        planes.push(made.planes);
    }
    Ok((planes, tensor_scale))
}

/// The largest magnitude of rows of a weight, after the rounding of `via`: what a scale of the whole tensor is made of.
///
/// # Errors
/// As [`quantize`].
pub fn tensor_amax(format: Format, via: Via, shape: Shape, master: &[f32]) -> Result<f32, FormatError> {
    format.check_shape(shape)?;
    let orientation = Orientation::Rowwise;
    Strips::of(format, orientation, via, shape, master).amaxes().map(|(_, amax)| amax)
}

/// `values` with zeros after them, `length` in all.
fn filled(values: &[f32], length: usize) -> Cow<'_, [f32]> {
    if values.len() == length {
        return Cow::Borrowed(values);
    }
    let mut filled = Vec::with_capacity(length);
    filled.extend_from_slice(values);
    filled.resize(length, 0.0);
    Cow::Owned(filled)
}

struct FromMaster {
    planes: OwnedPlanes,
    amax: f32,
    tensor_scale: f32,
}

fn from_master(
    format: Format,
    orientation: Orientation,
    via: Via,
    shape: Shape,
    master: &[f32],
) -> Result<FromMaster, FormatError> {
    let planes = OwnedPlanes::zeroed(format, orientation, shape);
    into_planes(format, orientation, via, shape, master, planes, Ok::<_, FormatError>)
}

/// Fills `planes`; `over_ranks` makes the amax of the whole tensor of that of `master`.
fn into_planes<E: From<FormatError>>(
    format: Format,
    orientation: Orientation,
    via: Via,
    shape: Shape,
    master: &[f32],
    planes: OwnedPlanes,
    over_ranks: impl FnOnce(f32) -> Result<f32, E>,
) -> Result<FromMaster, E> {
    // The work of all cores is in what no caller's types make generic, and so compiled once.
    let strips = Strips::of(format, orientation, via, shape, master);
    let (block_amax, amax) = strips.amaxes()?;
    Ok(strips.cast(&block_amax, over_ranks(amax)?, planes)?)
}

/// A weight cut into strips that all cores work on.
struct Strips<'m> {
    format: Format,
    orientation: Orientation,
    via: Via,
    shape: Shape,
    shapes: Vec<Shape>,
    masters: Vec<&'m [f32]>,
}

impl<'m> Strips<'m> {
    fn of(format: Format, orientation: Orientation, via: Via, shape: Shape, master: &'m [f32]) -> Self {
        let shapes = (0..shape.rows)
            .step_by(STRIP_ROWS)
            .map(|top| Shape::new(STRIP_ROWS.min(shape.rows - top), shape.cols))
            .collect();
        let masters = master.chunks(STRIP_ROWS * shape.cols).collect();
        Self { format, orientation, via, shape, shapes, masters }
    }

    /// Amax of every block, and of all.
    fn amaxes(&self) -> Result<(Vec<f32>, f32), FormatError> {
        let Self { format, orientation, via, .. } = *self;
        let mut block_amax = vec![0.0; format.amax_blocks(orientation, self.shape)];
        let blocks = cut(&self.shapes, &mut block_amax, |strip| format.amax_blocks(orientation, strip));
        let amaxes: Vec<f32> = (&self.shapes, &self.masters, blocks)
            .into_par_iter()
            .map(|(&strip, master, blocks)| partial_amax(format, orientation, via, strip, master, blocks))
            .collect::<Result<_, FormatError>>()?;
        Ok((block_amax, amax::of_amaxes(&amaxes)))
    }

    /// Fills `planes`, by the amax of every block and of the whole tensor.
    fn cast(self, block_amax: &[f32], amax: f32, mut planes: OwnedPlanes) -> Result<FromMaster, FormatError> {
        let Self { format, orientation, via, shape, shapes, masters } = self;
        let mut encode = vec![0.0; format.encode_blocks(orientation, shape)];
        let tensor_scale =
            fused_scale(format, orientation, shape, block_amax, amax, &mut encode, &mut planes.scale)?;
        if let (Format::Fp8Tensor(_), [factor]) = (format, encode.as_slice()) {
            // Every strip needs the one factor.
            encode = vec![*factor; shapes.len()];
        }
        let factors = cut(&shapes, &mut encode, |strip| format.encode_blocks(orientation, strip));
        let data = cut(&shapes, &mut planes.data, |strip| format.data_plane(orientation, strip).bytes());
        (&shapes, &masters, factors, data).into_par_iter().try_for_each(
            |(&strip, master, factors, data)| {
                partial_cast(format, orientation, via, strip, master, factors, data)
            },
        )?;
        Ok(FromMaster { planes, amax, tensor_scale })
    }
}

/// Cuts `whole` into one piece per strip.
fn cut<'a, T>(strips: &[Shape], mut whole: &'a mut [T], len: impl Fn(Shape) -> usize) -> Vec<&'a mut [T]> {
    let piece = |&strip: &Shape| {
        let (piece, rest) = take(&mut whole).split_at_mut(len(strip));
        whole = rest;
        piece
    };
    strips.iter().map(piece).collect()
}
