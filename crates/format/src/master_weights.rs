//! A whole list of flat-sharded weights in one call: one pass per stage, one collective.
//!
//! Laws:
//! - **MW-1** everything is validated before anything is written, for all weights; until the collective has
//!   succeeded only the workspace changes.
//! - **MW-2** there is exactly one collective, over one packed buffer whose length and order follow from the
//!   formats and shapes alone. A rank that owns nothing of a weight, or of any weight, takes part with zeros.
//! - **MW-3** nothing is allocated per weight, and nothing at all once the workspace has its size.
//!
//! The maximum over the ranks is left to the caller: a communicator, or threads in a test. So are the gather
//! of the fragments and the derived columnwise planes. All arithmetic is in the stages, which the actors call
//! for their row shards.

use std::mem::take;

use super::delayed::DelayedScaling;
use super::format::Format;
use super::partial::{FlatShard, flat_amax, flat_cast};
use super::shape::{Orientation, PlanesMut, Shape};
use super::stages::{check_length, check_scale_plane};
use super::via::Via;
use super::{FormatError, amax, fused_scale};

/// One weight, as one rank sees it.
#[derive(Debug)]
pub struct MasterWeight<'a> {
    /// Its format.
    pub format: Format,
    /// The shape of the full weight.
    pub shape: Shape,
    /// The slice of the flattened weight this rank owns; [`FlatShard::EMPTY`] if none.
    pub shard: FlatShard,
    /// The master values of the slice.
    pub master: &'a [f32],
    /// The fragment of the rowwise data plane, and the rowwise scale plane of the full weight.
    pub rowwise: PlanesMut<'a>,
    /// The same columnwise, for MXFP8; `None` for every other format.
    pub columnwise: Option<PlanesMut<'a>>,
    /// What dequantize needs besides the planes; see [`fused_scale`].
    pub tensor_scale: &'a mut f32,
    /// Per-tensor FP8 only: cast with this scale, and record the amax of the step in it afterwards.
    pub delayed: Option<&'a mut DelayedScaling>,
}

/// Memory of [`quantize_master_weights`]; keep it from step to step.
#[derive(Debug, Default)]
pub struct Workspace {
    /// Per weight: the block amaxes of every stored orientation, then the tensor amax if it has no blocks.
    amax: Vec<f32>,
    /// Per weight: the encode factors of every stored orientation.
    encode: Vec<f32>,
}

/// Why [`quantize_master_weights`] changed nothing.
#[derive(thiserror::Error)]
pub enum MasterWeightsError<E> {
    /// A weight of the list cannot be quantized.
    #[error("weight {index}: {source}")]
    Weight {
        /// Position in the list.
        index: usize,
        /// What is wrong with it.
        source: FormatError,
    },
    /// The maximum over the ranks failed.
    #[error("the maximum over the ranks failed: {0}")]
    Collective(#[source] E),
}

/// The message, as of every error; not its causes, because what a collective fails with need not be an error.
impl<E: std::fmt::Display> std::fmt::Debug for MasterWeightsError<E> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, out)
    }
}

/// Quantizes this rank's slices of all `weights`.
///
/// `max_over_ranks` replaces every element of its argument by the maximum over the ranks. It is called
/// exactly once, and by every rank, unless validation fails or no weight has an amax. An error before that
/// call means that this rank did not join; the caller must then abort the collective for the others.
///
/// # Errors
/// [`MasterWeightsError::Weight`] with the first weight whose format cannot be sharded, whose shape, shard,
/// slices or targets do not fit, or whose amax is not finite (NVFP4). [`MasterWeightsError::Collective`].
/// In all cases no weight has changed.
pub fn quantize_master_weights<E>(
    weights: &mut [MasterWeight<'_>],
    via: Via,
    workspace: &mut Workspace,
    max_over_ranks: impl FnOnce(&mut [f32]) -> Result<(), E>,
) -> Result<(), MasterWeightsError<E>> {
    let at = |index| move |source| MasterWeightsError::Weight { index, source };
    for (index, weight) in weights.iter().enumerate() {
        weight.check().map_err(at(index))?;
    }
    workspace.resize(weights);

    let mut rest = workspace.amax.as_mut_slice();
    for (index, weight) in weights.iter().enumerate() {
        weight.amax_stage(via, split_off(&mut rest, weight.amax_len())).map_err(at(index))?;
    }
    if !workspace.amax.is_empty() {
        max_over_ranks(&mut workspace.amax).map_err(MasterWeightsError::Collective)?;
    }

    let mut rest = workspace.amax.as_mut_slice();
    for (index, weight) in weights.iter().enumerate() {
        let tensor_amax = amax::of_amaxes(split_off(&mut rest, weight.amax_len()));
        weight.format.check_tensor_amax(tensor_amax).map_err(at(index))?;
    }
    let mut amaxes = workspace.amax.as_mut_slice();
    let mut factors = workspace.encode.as_mut_slice();
    for (index, weight) in weights.iter_mut().enumerate() {
        let amaxes = split_off(&mut amaxes, weight.amax_len());
        let factors = split_off(&mut factors, weight.encode_len());
        weight.scale_stage(amaxes, factors).map_err(at(index))?;
    }
    let mut factors = workspace.encode.as_mut_slice();
    for (index, weight) in weights.iter_mut().enumerate() {
        let factors = split_off(&mut factors, weight.encode_len());
        weight.cast_stage(via, factors).map_err(at(index))?;
    }
    Ok(())
}

impl Workspace {
    fn resize(&mut self, weights: &[MasterWeight<'_>]) {
        self.amax.clear();
        self.amax.resize(weights.iter().map(MasterWeight::amax_len).sum(), 0.0);
        self.encode.clear();
        self.encode.resize(weights.iter().map(MasterWeight::encode_len).sum(), 0.0);
    }
}

impl MasterWeight<'_> {
    fn check(&self) -> Result<(), FormatError> {
        let Self { format, shape, shard, .. } = *self;
        format.check_weight()?;
        format.check_shape(shape)?;
        shard.check(shape)?;
        check_length("master", shard.len, self.master.len())?;
        check_target(format, Orientation::Rowwise, shape, shard, &self.rowwise)?;
        match (&self.columnwise, format.stored_orientations().contains(&Orientation::Columnwise)) {
            (Some(columnwise), true) => {
                check_target(format, Orientation::Columnwise, shape, shard, columnwise)?;
            }
            (None, false) => {}
            (None, true) => {
                return Err(FormatError::MissingPlanes { orientation: Orientation::Columnwise });
            }
            (Some(_), false) => {
                return Err(FormatError::OrientationNotStored {
                    format,
                    orientation: Orientation::Columnwise,
                    hint: "pass none and derive them with `transpose` after the gather",
                });
            }
        }
        match (&self.delayed, format) {
            (None, _) => Ok(()),
            (Some(delayed), Format::Fp8Tensor(tensor)) if delayed.tensor() == tensor => Ok(()),
            (Some(_), _) => Err(FormatError::DelayedMismatch { format }),
        }
    }

    /// Entries of the packed amax buffer.
    fn amax_len(&self) -> usize {
        let blocks = |&orientation| self.format.amax_blocks(orientation, self.shape);
        let tensor = usize::from(matches!(self.format, Format::Fp8Tensor(_)));
        self.format.stored_orientations().iter().map(blocks).sum::<usize>() + tensor
    }

    fn encode_len(&self) -> usize {
        let blocks = |&orientation| self.format.encode_blocks(orientation, self.shape);
        self.format.stored_orientations().iter().map(blocks).sum()
    }

    fn amax_stage(&self, via: Via, mut amaxes: &mut [f32]) -> Result<(), FormatError> {
        let Self { format, shape, shard, master, .. } = *self;
        for &orientation in format.stored_orientations() {
            let blocks = split_off(&mut amaxes, format.amax_blocks(orientation, shape));
            let amax = flat_amax(format, orientation, via, shape, shard, master, blocks)?;
            if let [tensor] = amaxes
                && matches!(format, Format::Fp8Tensor(_))
            {
                *tensor = amax;
            }
        }
        Ok(())
    }

    fn scale_stage(&mut self, mut amaxes: &mut [f32], mut factors: &mut [f32]) -> Result<(), FormatError> {
        let Self { format, shape, .. } = *self;
        let tensor_amax = amax::of_amaxes(amaxes);
        if let Some(delayed) = &mut self.delayed {
            *self.tensor_scale = delayed.scale().decode;
            factors.fill(delayed.scale().encode);
            delayed.record(tensor_amax);
            return Ok(());
        }
        for &orientation in format.stored_orientations() {
            let blocks = split_off(&mut amaxes, format.amax_blocks(orientation, shape));
            let factors = split_off(&mut factors, format.encode_blocks(orientation, shape));
            let Some(target) = target(orientation, &mut self.rowwise, &mut self.columnwise) else { continue };
            let scale = &mut *target.scale;
            *self.tensor_scale =
                fused_scale(format, orientation, shape, blocks, tensor_amax, factors, scale)?;
        }
        Ok(())
    }

    fn cast_stage(&mut self, via: Via, mut factors: &mut [f32]) -> Result<(), FormatError> {
        let Self { format, shape, shard, master, .. } = *self;
        for &orientation in format.stored_orientations() {
            let factors = split_off(&mut factors, format.encode_blocks(orientation, shape));
            let Some(target) = target(orientation, &mut self.rowwise, &mut self.columnwise) else { continue };
            flat_cast(format, orientation, via, shape, shard, master, factors, target.data)?;
        }
        Ok(())
    }
}

fn check_target(
    format: Format,
    orientation: Orientation,
    shape: Shape,
    shard: FlatShard,
    target: &PlanesMut<'_>,
) -> Result<(), FormatError> {
    check_length("the fragment", shard.fragment(format).len(), target.data.len())?;
    check_scale_plane(format, orientation, shape, target.scale.len())
}

fn target<'t, 'a>(
    orientation: Orientation,
    rowwise: &'t mut PlanesMut<'a>,
    columnwise: &'t mut Option<PlanesMut<'a>>,
) -> Option<&'t mut PlanesMut<'a>> {
    match orientation {
        Orientation::Rowwise => Some(rowwise),
        Orientation::Columnwise => columnwise.as_mut(),
    }
}

/// Takes the first `len` elements off `rest`.
fn split_off<'a>(rest: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (first, others) = take(rest).split_at_mut(len);
    *rest = others;
    first
}
