//! A weight as a call's context shows it.

use half::bf16;

use super::spec::LinearSpec;
use crate::CudaFailure;
use crate::gemm::Scaled;
use crate::{CudaSurface, DeviceSlice};
use warpweft_base::id::WeightId;
use warpweft_format::{ElementType, Format, Orientation, Shape};
use warpweft_plan::compute::{ComputeContext, ComputeError, PlanesOf, PlanesView};
use warpweft_plan::model::Form;

/// A weight lent to one call, in the form a [`Recipe`](super::Recipe) requests.
#[derive(Debug)]
pub struct Weight<'a> {
    orientation: Orientation,
    lent: Lent<'a>,
}

#[derive(Debug)]
enum Lent<'a> {
    Values(DeviceSlice<'a, bf16>),
    Planes(Planes<'a>),
}

/// [`PlanesOf`], spelt out so that a weight may be lent for a shorter time.
type Planes<'a> = PlanesView<DeviceSlice<'a, u8>, DeviceSlice<'a, f32>>;

impl<'a> Weight<'a> {
    /// What the context shows of `weight` in `form`, [`Recipe::form`](super::Recipe::form).
    ///
    /// # Errors
    /// [`ComputeError::NotDeclared`] unless the call declares exactly this use; a form no recipe reads.
    pub fn of(
        context: &ComputeContext<'a, CudaSurface>,
        weight: WeightId,
        orientation: Orientation,
        form: Form,
    ) -> Result<Self, ComputeError> {
        match form {
            Form::Planes => Ok(Self::planes(orientation, context.planes(weight, orientation)?)),
            Form::DenseBf16 => Ok(Self::values(orientation, context.dense_bf16(weight, orientation)?)),
            Form::Dense => Err(ComputeError::closure(
                "linear layers read no f32 weights; declare the use in the form of the layer's recipe",
            )),
        }
    }

    /// Values: `[outputs, inputs]` rowwise, `[inputs, outputs]` columnwise.
    #[must_use]
    pub const fn values(orientation: Orientation, values: DeviceSlice<'a, bf16>) -> Self {
        Self { orientation, lent: Lent::Values(values) }
    }

    /// Planes as a gather or a transposition leaves them.
    #[must_use]
    pub const fn planes(orientation: Orientation, planes: PlanesOf<'a, CudaSurface>) -> Self {
        Self { orientation, lent: Lent::Planes(planes) }
    }

    /// The weight as a factor, if it is what the layer reads.
    pub(super) fn factor(
        &self,
        spec: &LinearSpec,
        orientation: Orientation,
    ) -> Result<Scaled<'a>, CudaFailure> {
        let Shape { rows, cols } = spec.weight;
        let wrong = |actual: String| {
            let expected = say(spec.recipe.weight_format(), spec.weight, orientation);
            Err(CudaFailure::Weight { expected, actual })
        };
        match (&self.lent, spec.recipe.weight_format()) {
            (Lent::Values(values), None) => {
                if self.orientation != orientation {
                    return wrong(say(None, spec.weight, self.orientation));
                }
                if values.len() != rows * cols {
                    return Err(CudaFailure::Operand {
                        what: "the weight",
                        actual: values.len(),
                        element: ElementType::Bf16,
                        expected: rows * cols,
                        wanted: ElementType::Bf16,
                    });
                }
                Ok(Scaled { values: (*values).into(), scale: None, amax: None })
            }
            (Lent::Planes(planes), Some(format)) => {
                if (planes.format, planes.shape, self.orientation) != (format, spec.weight, orientation) {
                    return wrong(say(Some(planes.format), planes.shape, self.orientation));
                }
                let scale = match planes.tensor_scale {
                    Some(scale) if planes.scale.is_empty() => Some(scale.into()),
                    _ => Some(planes.scale.into()),
                };
                let amax = match (format, planes.tensor_scale) {
                    (Format::Nvfp4(_), None) => return wrong(format!("{format} planes without their amax")),
                    (Format::Nvfp4(_), Some(amax)) => Some(amax.into()),
                    _ => None,
                };
                Ok(Scaled { values: planes.data.into(), scale, amax })
            }
            (Lent::Values(_), Some(_)) => wrong(say(None, spec.weight, self.orientation)),
            (Lent::Planes(planes), None) => wrong(say(Some(planes.format), planes.shape, self.orientation)),
        }
    }
}

fn say(format: Option<Format>, shape: Shape, orientation: Orientation) -> String {
    match format {
        None => format!("bf16 values of {shape}, {orientation}"),
        Some(format) => format!("{format} planes of {shape}, {orientation}"),
    }
}
