//! A frozen base from a file that is quantized already.
//!
//! Law: codes and scales go from the file into a rank's planes as they are, bit for bit: of a rank's rows those
//! bytes are read, when the rank begins, and no value is made of them but to see that it is finite. That a file's
//! tensors are what the weights of the session need is judged before it starts.

use std::collections::HashMap;
use std::ops::Range;

use super::{PretrainedFiles, of_weight};
use crate::checkpoint::CheckpointError;
use crate::checkpoint::manifest::{ManifestError, Matrices, Part, VERSION};
use warpweft_base::errors::shown;
use warpweft_base::id::RankId;
use warpweft_format::{Format, OwnedPlanes, PlaneSpec, Shape};
use warpweft_plan::layout::{PlaneCut, WeightLayout};
use warpweft_plan::model::{Model, WeightSpec};

/// The planes that frozen weights of a session begin with, from files that `warpweft quantize` wrote:
/// [`PretrainedFiles::frozen_base`] makes it, and
/// [`SessionBuilder::frozen_base`](crate::session::SessionBuilder::frozen_base) takes it.
#[derive(Clone, Debug)]
pub struct FrozenBase {
    files: PretrainedFiles,
    /// By weight.
    tensors: HashMap<String, Base>,
}

/// The tensor of a weight, which is quantized like this.
#[derive(Clone, Debug)]
struct Base {
    tensor: String,
    format: Format,
    shape: Shape,
}

impl PretrainedFiles {
    /// Planes of frozen weights from these files, bit for bit. Values are made of a rank's rows of one weight at a
    /// time, to see that they are finite.
    ///
    /// `tensor_of` names the tensor of every weight of `model` that is frozen and sharded, as it was called before it
    /// was quantized; of `X` the file has `X.rowwise_data` and so on. A weight for which it gives `None` begins as the
    /// initializer says, like all others, and so does one that rules of the configuration unfreeze or replicate. A
    /// session does not start where they give a weight another format
    /// ([`SessionError::Checkpoint`](crate::session::SessionError::Checkpoint)): pass the model that they were applied
    /// to.
    ///
    /// # Errors
    /// [`CheckpointError::Weight`] with the first weight whose tensor is not there, or is not quantized in the format
    /// and shape of the weight ([`CheckpointError::Quantized`]). Nothing but headers was read then.
    pub fn frozen_base(
        &self,
        model: &Model,
        tensor_of: impl Fn(&str) -> Option<String>,
    ) -> Result<FrozenBase, CheckpointError> {
        let mut tensors = HashMap::new();
        let frozen = model.weights().iter().filter(|spec| spec.placement.is_planes_alone(spec.frozen));
        for spec in frozen {
            let Some(tensor) = tensor_of(&spec.name) else { continue };
            self.check_quantized(&tensor, spec.format, spec.shape)
                .map_err(|error| of_weight(&spec.name, error))?;
            let base = Base { tensor, format: spec.format, shape: spec.shape };
            tensors.insert(spec.name.clone(), base);
        }
        Ok(FrozenBase { files: self.clone(), tensors })
    }

    fn check_quantized(&self, tensor: &str, format: Format, shape: Shape) -> Result<(), CheckpointError> {
        let found = self.find(&data_name(tensor, format))?;
        let refused = |reason: String| {
            let (tensor, path) = (tensor.to_owned(), self.path(found));
            Err(CheckpointError::Quantized { tensor, path, reason })
        };
        let manifest = match &self.opened.files[found.file].quantized {
            Some(Ok(manifest)) => manifest,
            Some(Err(ManifestError::NotUnderstood(error))) => {
                return refused(format!("what the file says of it is not understood: {error}"));
            }
            Some(Err(ManifestError::Version(found))) => {
                let what = "what the file says of it is of version";
                return refused(format!("{what} {found}, and 1 to {VERSION} are read"));
            }
            None => return refused("the file does not say how it is quantized".to_owned()),
        };
        match manifest.tensors.get(tensor).map(|original| original.shape.dimensions()) {
            Some(found) if manifest.format == format && found == [shape.rows, shape.cols] => {}
            Some(found) => return refused(unlike(&found, manifest.format, shape, format)),
            None => return refused("the file does not list it as quantized".to_owned()),
        }
        let stored = format.stored_orientations().iter().flat_map(|orientation| {
            let planes = format.planes(*orientation, shape);
            planes.into_iter().map(|spec| Part::of(*orientation, spec.kind))
        });
        for part in stored.chain(Part::tensor_scale(format)) {
            let (name, found) = (part.name(tensor), self.find(&part.name(tensor))?);
            let (dtype, expected) = part.stored(format, Matrices::One([shape.rows, shape.cols]));
            if (found.dtype, &found.shape) != (dtype, &expected) {
                let found = format!("`{}` is {} {:?}", shown(&name), found.dtype, found.shape);
                return refused(format!("{found} and should be {dtype} {expected:?}"));
            }
        }
        Ok(())
    }
}

impl FrozenBase {
    /// Does the weight of a session begin with planes from here?
    ///
    /// # Errors
    /// [`CheckpointError::Weight`] for a frozen weight of another format or shape than planes are here for.
    pub(crate) fn gives(&self, spec: &WeightSpec) -> Result<bool, CheckpointError> {
        let Some(Base { tensor, format, shape }) = self.tensors.get(&spec.name) else { return Ok(false) };
        if !spec.placement.is_planes_alone(spec.frozen) || (*format, *shape) == (spec.format, spec.shape) {
            return Ok(spec.placement.is_planes_alone(spec.frozen));
        }
        let path = self.files.path(self.files.find(&data_name(tensor, *format))?);
        let reason = unlike(&[shape.rows, shape.cols], *format, spec.shape, spec.format);
        Err(of_weight(&spec.name, CheckpointError::Quantized { tensor: tensor.clone(), path, reason }))
    }

    /// The planes of a rank's rows, one for each stored orientation, and what dequantizing needs besides; `None` for a
    /// weight that begins otherwise.
    pub(crate) fn planes(
        &self,
        layout: &WeightLayout,
        rank: RankId,
    ) -> Result<Option<(Vec<OwnedPlanes>, f32)>, CheckpointError> {
        let Some(Base { tensor, .. }) = self.tensors.get(&layout.name) else { return Ok(None) };
        let mut scale = 1.0f32;
        if let Some(part) = Part::tensor_scale(layout.format) {
            self.files.fill(&part.name(tensor), 0, bytemuck::bytes_of_mut(&mut scale))?;
        }
        let stored = layout.format.stored_orientations().iter().map(|orientation| {
            let read = |spec: &PlaneSpec, range: Range<usize>| {
                let (plane, mut bytes) =
                    (Part::of(*orientation, spec.kind).name(tensor), vec![0; range.len()]);
                self.files.fill(&plane, range.start, &mut bytes).map(|()| bytes)
            };
            PlaneCut::new(layout, *orientation, rank).shard(scale, read)
        });
        Ok(Some((stored.collect::<Result<_, CheckpointError>>()?, scale)))
    }
}

/// The first data plane of a tensor.
fn data_name(tensor: &str, format: Format) -> String {
    let first = format.stored_orientations().first();
    first.map(|orientation| Part::Data(*orientation).name(tensor)).unwrap_or_default()
}

/// How a tensor is quantized, and how the weight needs it.
fn unlike(found: &[usize], there: Format, shape: Shape, format: Format) -> String {
    format!("it is {found:?} in {there}, and the weight {shape} in {format}")
}
