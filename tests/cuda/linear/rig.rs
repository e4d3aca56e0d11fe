//! A rig for one layer with its operands on the GPU, outside of a session.

#![allow(unsafe_code, reason = "slices of memory that the tests own")]

use bytemuck::Pod;
use cudarc::driver::result;
use half::bf16;
use warpweft_cuda::CudaFailure;
use warpweft_cuda::linear::{BackwardOperands, Device, Linear, LinearSpec, Output, Recipe, Weight};
use warpweft_cuda::{CudaHandles, DeviceOrdinal, DeviceSlice, DeviceSliceMut};
use warpweft_format::{
    Directions, ElementType, Format, Fp8Element, Orientation, OwnedPlanes, Quantized, Shape, Via, quantize,
};
use warpweft_plan::compute::PlanesView;

use super::reference::{Matrix, noise};
use crate::gpu::{Buffer, Gpu};

pub(crate) const GPU: DeviceOrdinal = DeviceOrdinal::new(0);

/// Handles for the legacy stream of the first GPU, whose context `Gpu` made current.
pub(crate) fn handles(_: &Gpu) -> CudaHandles {
    // SAFETY: the legacy stream is always there, and the context is current while the test has its turn.
    unsafe { CudaHandles::new(std::ptr::null_mut(), GPU) }
}

pub(crate) fn lend<T: Pod>(buffer: &Buffer<T>, len: usize) -> DeviceSlice<'_, T> {
    // SAFETY: tests wait for the device before a buffer is dropped.
    unsafe { DeviceSlice::from_address(buffer.address(), len) }
}

pub(crate) fn lend_mut<T: Pod>(buffer: &Buffer<T>, len: usize) -> DeviceSliceMut<'_, T> {
    // SAFETY: as above; each result is lent to one product at a time.
    unsafe { DeviceSliceMut::from_address(buffer.address(), len) }
}

/// A weight on the GPU: its planes, or its values in bf16.
pub(crate) struct OnDevice {
    format: Option<Format>,
    shape: Shape,
    values: Buffer<bf16>,
    planes: Vec<(Orientation, Buffer<u8>, Buffer<f32>, usize)>,
    tensor_scale: Buffer<f32>,
}

impl OnDevice {
    /// Planes of both orientations, as a gather and a transposition leave them.
    pub(crate) fn planes(gpu: &Gpu, quantized: &Quantized) -> Self {
        let place = |orientation, planes: &OwnedPlanes| {
            let scale: Vec<f32> = bytemuck::pod_collect_to_vec(&planes.scale);
            (orientation, gpu.buffer(&planes.data), gpu.buffer(&scale), scale.len())
        };
        Self {
            format: Some(quantized.format),
            shape: quantized.shape,
            values: gpu.buffer(&[]),
            planes: vec![
                place(Orientation::Rowwise, quantized.rowwise.as_ref().unwrap()),
                place(Orientation::Columnwise, quantized.columnwise.as_ref().unwrap()),
            ],
            tensor_scale: gpu.buffer(&[quantized.tensor_scale]),
        }
    }

    /// Values `[outputs, inputs]`.
    pub(crate) fn values(gpu: &Gpu, shape: Shape, values: &[bf16]) -> Self {
        let (format, planes) = (None, Vec::new());
        Self { format, shape, values: gpu.buffer(values), planes, tensor_scale: gpu.buffer(&[1.0]) }
    }

    pub(crate) fn weight(&self, orientation: Orientation) -> Weight<'_> {
        let Some(format) = self.format else {
            return Weight::values(orientation, lend(&self.values, self.shape.elements()));
        };
        let (_, data, scale, scales) = self.planes.iter().find(|(of, ..)| *of == orientation).unwrap();
        let view = PlanesView {
            format,
            shape: self.shape,
            data: lend(data, format.planes(orientation, self.shape)[0].bytes()),
            // SAFETY: the same bytes, four to a scale.
            scale: unsafe { DeviceSlice::from_address(scale.address(), scales * size_of::<f32>()) },
            tensor_scale: Some(lend(&self.tensor_scale, 1)),
        };
        Weight::planes(orientation, view)
    }
}

/// The three results.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Results {
    pub(crate) y: Vec<f32>,
    pub(crate) dx: Vec<f32>,
    pub(crate) dw: Vec<f32>,
}

/// A layer and its operands: what the GPU reads, and the numbers that stand for.
pub(crate) struct Rig {
    pub(crate) spec: LinearSpec,
    layer: Linear,
    weight: OnDevice,
    /// dx of bf16 columnwise reads the transposed values.
    turned: OnDevice,
    x: Buffer<bf16>,
    dy: Buffer<bf16>,
    pub(crate) seen: Seen,
}

/// The operands of the products as they are multiplied, each with its lines along the contraction.
pub(crate) struct Seen {
    pub(crate) weight: Matrix,
    pub(crate) weight_turned: Matrix,
    pub(crate) x: Matrix,
    pub(crate) x_turned: Matrix,
    pub(crate) dy: Matrix,
    pub(crate) dy_turned: Matrix,
}

fn round(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|value| bf16::from_f32(*value)).collect()
}

fn widen(values: &[bf16]) -> Vec<f32> {
    values.iter().map(|value| value.to_f32()).collect()
}

/// `matrix` as the recipe multiplies it along its lines. Blocks that are not full are filled with zeros.
pub(crate) fn as_multiplied(recipe: Recipe, element: Fp8Element, matrix: &Matrix) -> Matrix {
    let Some(format) = recipe.activation_format(element) else { return matrix.clone() };
    let multiple = if matches!(format, Format::Mxfp8 | Format::Nvfp4(_)) { 32 } else { 1 };
    let (shape, filled) = (matrix.shape, matrix.filled(multiple));
    let quantized = quantize(format, Directions::Rowwise, Via::None, filled.shape, &filled.values).unwrap();
    Matrix::new(filled.shape, quantized.dequantize(Orientation::Rowwise).unwrap()).cut(shape)
}

impl Rig {
    pub(crate) fn new(gpu: &Gpu, device: &Device, spec: LinearSpec) -> Result<Self, CudaFailure> {
        let layer = Linear::new(device, spec)?;
        let Shape { rows: outputs, cols: inputs } = spec.weight;
        let (x_shape, dy_shape) = (Shape::new(spec.tokens, inputs), Shape::new(spec.tokens, outputs));
        let x = round(&noise(x_shape, 1));
        let dy: Vec<bf16> = round(&noise(dy_shape, 2).iter().map(|value| value * 1e-3).collect::<Vec<_>>());
        let values: Vec<f32> = noise(spec.weight, 3).iter().map(|value| value * 0.02).collect();
        let rounded = round(&values);
        let (weight, turned, weight_values, weight_turned) = match spec.recipe.weight_format() {
            None => {
                let values = Matrix::new(spec.weight, widen(&rounded));
                let turned = values.transposed();
                (
                    OnDevice::values(gpu, spec.weight, &rounded),
                    OnDevice::values(gpu, spec.weight, &round(&turned.values)),
                    values,
                    turned,
                )
            }
            Some(format) => {
                let quantized = quantize(format, Directions::Both, Via::Bf16, spec.weight, &values).unwrap();
                // Columnwise planes of MXFP8 are numbers of their own.
                let [values, turned] = [
                    (spec.weight, Orientation::Rowwise),
                    (spec.weight.transposed(), Orientation::Columnwise),
                ]
                .map(|(shape, of)| Matrix::new(shape, quantized.dequantize(of).unwrap()));
                let placed = || OnDevice::planes(gpu, &quantized);
                (placed(), placed(), values, turned)
            }
        };
        let (x_seen, dy_seen) = (Matrix::new(x_shape, widen(&x)), Matrix::new(dy_shape, widen(&dy)));
        let of_x = |matrix: &Matrix| as_multiplied(spec.recipe, Fp8Element::E4m3, matrix);
        let of_dy = |matrix: &Matrix| as_multiplied(spec.recipe, spec.gradients, matrix);
        let (x_turned, dy_turned) = (x_seen.transposed(), dy_seen.transposed());
        // The weight's gradient of NVFP4 is that of the values.
        let (x_turned, dy_turned) = match spec.recipe {
            Recipe::Nvfp4 => (x_turned, dy_turned),
            _ => (of_x(&x_turned), of_dy(&dy_turned)),
        };
        Ok(Self {
            spec,
            layer,
            weight,
            turned,
            x: gpu.buffer(&x),
            dy: gpu.buffer(&dy),
            seen: Seen {
                weight: weight_values,
                weight_turned,
                x: of_x(&x_seen),
                x_turned,
                dy: of_dy(&dy_seen),
                dy_turned,
            },
        })
    }

    /// The three products one by one, or the gradients together.
    pub(crate) fn run(&mut self, gpu: &Gpu, together: bool) -> Results {
        let LinearSpec { tokens, weight: Shape { rows, cols }, output, weight_gradient, .. } = self.spec;
        let handles = handles(gpu);
        let results = [tokens * rows, tokens * cols].map(|len| Room::new(gpu, output, len));
        let dw = Room::new(gpu, weight_gradient, rows * cols);
        let (x, dy) = (lend(&self.x, tokens * cols), lend(&self.dy, tokens * rows));
        let turned = if self.spec.dgrad == Orientation::Columnwise { &self.turned } else { &self.weight };
        let (forward, backward) = (self.weight.weight(Orientation::Rowwise), turned.weight(self.spec.dgrad));
        self.layer.forward(&handles, x, &forward, results[0].lend()).unwrap();
        let into = dw.lend();
        if together {
            let operands = BackwardOperands { dy, weight: &backward, x, dx: results[1].lend(), dw: into };
            self.layer.backward(&handles, operands).unwrap();
        } else {
            self.layer.dgrad(&handles, dy, &backward, results[1].lend()).unwrap();
            self.layer.wgrad(&handles, dy, x, into).unwrap();
        }
        result::ctx::synchronize().unwrap();
        Results { y: results[0].read(), dx: results[1].read(), dw: dw.read() }
    }
}

/// Room for a result.
enum Room {
    Bf16(Buffer<bf16>, usize),
    F32(Buffer<f32>, usize),
}

impl Room {
    fn new(gpu: &Gpu, element: ElementType, len: usize) -> Self {
        match element {
            ElementType::Bf16 => Self::Bf16(gpu.buffer(&vec![bf16::NAN; len]), len),
            _ => Self::F32(gpu.buffer(&vec![f32::NAN; len]), len),
        }
    }

    fn lend(&self) -> Output<'_> {
        match self {
            Self::Bf16(buffer, len) => lend_mut(buffer, *len).into(),
            Self::F32(buffer, len) => lend_mut(buffer, *len).into(),
        }
    }

    /// The values; panics if a guard byte around them changed.
    fn read(&self) -> Vec<f32> {
        match self {
            Self::Bf16(buffer, _) => widen(&buffer.read()),
            Self::F32(buffer, _) => buffer.read(),
        }
    }
}
