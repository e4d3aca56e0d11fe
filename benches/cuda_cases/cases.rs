//! The measured kernel launches, each with the fewest bytes it must read and write per element of the weights.

use warpweft_backend::local::Combination;
use warpweft_cuda::DeviceAddress;
use warpweft_cuda::kernels::{
    AccumulateOperand, AdamOperand, AmaxOperand, Bounds, CastOperand, CombineOperand, CopyOperand,
    DequantizeOperand, ExpandOperand, FiniteCheckOperand, KernelLaunch, MasterCast, MasterFragment,
    MasterState, NormFrom, NormOperand, ScaleOperand, ScaleRows, SlicesOperand, SwizzleOperand,
    TransposeOperand, ZeroOperand,
};
use warpweft_format::{ElementType, Format, Orientation, PlaneSpec, Shape, Via};
use warpweft_plan::layout::OptimizerSettings;
use warpweft_plan::model::Hyperparameters;
use warpweft_plan::op::{Reduction, SQUARED_TOGETHER, SumTarget, Vote, WireType};
use warpweft_plan::policy::{AdamMode, Moments};

use super::Size;
use crate::cuda_device::Device;

const NULL: DeviceAddress = DeviceAddress::NULL;
/// Bytes of squares for each element.
const SQUARES: f64 = 8.0 / SQUARED_TOGETHER as f64;
/// Bytes of an element in MXFP8.
const MXFP8: f64 = 33.0 / 32.0;

type Launches = fn(&Device, &Size) -> Option<Vec<KernelLaunch>>;

pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Bytes read and written per element.
    pub(crate) moves: [f64; 2],
    pub(crate) launches: Launches,
    /// Percent of a copy that TransformerEngine's kernel reaches: 4096×1024, 4096², 16384×4096, 64 weights; 0 if
    /// unknown.
    pub(crate) transformer_engine: &'static [u32],
}

const fn case(
    name: &'static str,
    moves: [f64; 2],
    transformer_engine: &'static [u32],
    launches: Launches,
) -> Case {
    Case { name, moves, launches, transformer_engine }
}

pub(crate) const CASES: &[Case] = &[
    case("nvfp4 partial amax", [4.0, 4.0 / 256.0], &[23, 25, 25, 25], |d, s| amax(d, s, Format::NVFP4_2D)),
    case("nvfp4 fused scale", [4.0 / 256.0, 5.0 / 256.0], &[4, 6, 8, 0], |d, s| {
        scale(d, s, Format::NVFP4_2D)
    }),
    case("nvfp4 partial cast", [4.0 + 4.0 / 256.0, 0.5], &[4, 4, 4, 4], |d, s| cast(d, s, Format::NVFP4_2D)),
    // Against reading the masters twice.
    case("nvfp4 requantize", [8.0, 0.0], &[], |d, s| requantize(d, s, Format::NVFP4_2D)),
    case("nvfp4 expand scale", [1.0 / 256.0, 16.0 / 256.0], &[5, 7, 9, 0], expand),
    case("nvfp4 swizzle scale", [1.0 / 16.0, 1.0 / 16.0], &[], |d, s| swizzle(d, s, Format::NVFP4_2D)),
    case("nvfp4 transpose", [0.5 + 1.0 / 256.0, 0.5 + 16.0 / 256.0], &[23, 32, 36, 34], |d, s| {
        transpose(d, s, Format::NVFP4_2D)
    }),
    case("nvfp4 dequantize f32", [0.5625, 4.0], &[], |d, s| {
        dequantize(d, s, Format::NVFP4_2D, Orientation::Rowwise, ElementType::F32)
    }),
    case("nvfp4 dequantize bf16", [0.5625, 2.0], &[], |d, s| {
        dequantize(d, s, Format::NVFP4_2D, Orientation::Rowwise, ElementType::Bf16)
    }),
    case("nvfp4 1x16 amax", [4.0, 0.25], &[], |d, s| amax(d, s, Format::NVFP4_1D)),
    case("nvfp4 1x16 cast", [4.25, 0.5], &[], |d, s| cast(d, s, Format::NVFP4_1D)),
    case("fp8 block partial amax", [4.0, 0.0], &[32, 75, 90, 0], |d, s| {
        amax(d, s, Format::FP8_BLOCK128_POW2)
    }),
    case("fp8 block partial cast", [4.0, 1.0], &[33, 71, 81, 0], |d, s| {
        cast(d, s, Format::FP8_BLOCK128_POW2)
    }),
    case("fp8 transpose", [1.0, 1.0], &[32, 79, 88, 0], |d, s| transpose(d, s, Format::FP8_BLOCK128_POW2)),
    case("fp8 block dequantize f32", [1.0, 4.0], &[], |d, s| {
        dequantize(d, s, Format::FP8_BLOCK128_POW2, Orientation::Rowwise, ElementType::F32)
    }),
    case("fp8 block dequantize bf16", [1.0, 2.0], &[], |d, s| {
        dequantize(d, s, Format::FP8_BLOCK128_POW2, Orientation::Rowwise, ElementType::Bf16)
    }),
    case("fp8 1x128 amax", [4.0, 4.0 / 128.0], &[], |d, s| amax(d, s, Format::FP8_BLOCK1X128_POW2)),
    case("fp8 1x128 cast", [4.0 + 4.0 / 128.0, 1.0], &[], |d, s| cast(d, s, Format::FP8_BLOCK1X128_POW2)),
    case("mxfp8 partial amax, both", [4.0, 0.25], &[32, 69, 72, 0], |d, s| amax(d, s, Format::Mxfp8)),
    case("mxfp8 fused scale, both", [0.25, 0.25 + 2.0 / 32.0], &[], |d, s| scale(d, s, Format::Mxfp8)),
    case("mxfp8 partial cast, both", [4.25, 2.0], &[32, 57, 62, 0], |d, s| cast(d, s, Format::Mxfp8)),
    case("mxfp8 dequantize rowwise f32", [1.0 + 1.0 / 32.0, 4.0], &[], |d, s| {
        dequantize(d, s, Format::Mxfp8, Orientation::Rowwise, ElementType::F32)
    }),
    case("mxfp8 dequantize columnwise f32", [1.0 + 1.0 / 32.0, 4.0], &[], |d, s| {
        dequantize(d, s, Format::Mxfp8, Orientation::Columnwise, ElementType::F32)
    }),
    case("mxfp8 dequantize rowwise bf16", [1.0 + 1.0 / 32.0, 2.0], &[], |d, s| {
        dequantize(d, s, Format::Mxfp8, Orientation::Rowwise, ElementType::Bf16)
    }),
    case("fp8 tensor amax", [4.0, 0.0], &[], |d, s| amax(d, s, Format::FP8_TENSOR_E4M3)),
    case("fp8 tensor cast", [4.0, 1.0], &[], |d, s| cast(d, s, Format::FP8_TENSOR_E4M3)),
    case("bf16 cast", [4.0, 2.0], &[], |d, s| cast(d, s, Format::Bf16)),
    case("bf16 transpose", [2.0, 2.0], &[], |d, s| transpose(d, s, Format::Bf16)),
    case("f32 transpose", [4.0, 4.0], &[], |d, s| transpose(d, s, Format::F32)),
    case("accumulate, first", [4.0, 4.0], &[], |d, s| accumulate(d, s, true)),
    case("accumulate", [8.0, 4.0], &[], |d, s| accumulate(d, s, false)),
    case("sum of 4 ranks", [16.0, 4.0], &[], combine),
    case("sum of 4 slices, f32, accumulated", [20.0, 4.0], &[], |d, s| {
        sum_slices(d, s, WireType::F32, false)
    }),
    case("sum of 4 slices, bf16, accumulated", [12.0, 4.0], &[], |d, s| {
        sum_slices(d, s, WireType::Bf16, false)
    }),
    case("sum of 4 slices, f32, and squares", [20.0, 4.0 + SQUARES], &[], |d, s| {
        sum_slices(d, s, WireType::F32, true)
    }),
    case("sum of 4 slices, bf16, and squares", [12.0, 4.0 + SQUARES], &[], |d, s| {
        sum_slices(d, s, WireType::Bf16, true)
    }),
    case("sum of 4 slices, MXFP8, accumulated", [4.0 * MXFP8 + 4.0, 4.0], &[], |d, s| {
        sum_slices(d, s, WireType::Mxfp8, false)
    }),
    case("gradient to MXFP8", [4.0, MXFP8], &[], quantized_gradient),
    case("grad norm", [4.0, 0.0], &[], |d, s| norm(d, s, false)),
    case("grad norm of squares", [SQUARES, 0.0], &[], |d, s| norm(d, s, true)),
    case("zero", [0.0, 4.0], &[], zero),
    case("copy kernel", [4.0, 4.0], &[], copy),
    case("look for values that are not finite", [4.0, 0.0], &[], finite_check),
    case("adamw", [16.0, 12.0], &[64, 82, 76, 0], |d, s| adam(d, s, Masters::Whole, Moments::F32)),
    case("adamw, bf16 moments", [12.0, 8.0], &[], |d, s| adam(d, s, Masters::Whole, Moments::Bf16)),
    case("adamw, split masters", [16.0, 12.0], &[], |d, s| adam(d, s, Masters::Split, Moments::F32)),
    case("adamw, cast to bf16", [16.0, 14.0], &[], |d, s| {
        adam(d, s, Masters::Cast(Format::Bf16), Moments::F32)
    }),
    case("adamw, cast to fp8 block", [16.0, 13.0], &[], |d, s| {
        adam(d, s, Masters::Cast(Format::FP8_BLOCK128_POW2), Moments::F32)
    }),
];

fn plane_bytes(planes: &[PlaneSpec], plane: usize) -> usize {
    planes.get(plane).map_or(0, PlaneSpec::bytes)
}

/// One operand per weight; `None` when memory runs out.
fn operands<T>(size: &Size, operand: impl Fn(Shape) -> Option<T>) -> Option<Vec<T>> {
    size.shapes.iter().map(|shape| operand(*shape)).collect()
}

fn is_both(format: Format) -> bool {
    format.stored_orientations().len() == 2
}

/// Everything that requantizing a weight needs.
struct Weight {
    shape: Shape,
    master: DeviceAddress,
    block_amax: [DeviceAddress; 2],
    tensor_amax: DeviceAddress,
    encode: [DeviceAddress; 2],
    data: [DeviceAddress; 2],
    scale: [DeviceAddress; 2],
    tensor_scale: DeviceAddress,
}

fn weight(device: &Device, format: Format, shape: Shape) -> Option<Weight> {
    let both = |bytes: &dyn Fn(Orientation) -> usize| -> Option<[DeviceAddress; 2]> {
        let columnwise = if is_both(format) { device.take(bytes(Orientation::Columnwise))? } else { NULL };
        Some([device.take(bytes(Orientation::Rowwise))?, columnwise])
    };
    Some(Weight {
        shape,
        master: device.take(shape.elements() * 4)?,
        block_amax: both(&|way| format.amax_blocks(way, shape) * 4)?,
        tensor_amax: device.take(4)?,
        encode: both(&|way| format.encode_blocks(way, shape) * 4)?,
        data: both(&|way| plane_bytes(&format.compact_planes(way, shape), 0))?,
        scale: both(&|way| plane_bytes(&format.compact_planes(way, shape), 1))?,
        tensor_scale: device.take(4)?,
    })
}

impl Weight {
    fn fragment(&self) -> MasterFragment {
        MasterFragment::whole(self.master, self.shape)
    }

    fn amax(&self) -> AmaxOperand {
        AmaxOperand {
            fragment: self.fragment(),
            stored_rows: self.shape.rows,
            rowwise: self.block_amax[0],
            columnwise: self.block_amax[1],
            tensor_amax: self.tensor_amax,
        }
    }

    fn scales(&self, format: Format) -> Vec<ScaleOperand> {
        let ways = format.stored_orientations().iter().enumerate();
        let operand = |(at, orientation): (usize, &Orientation)| ScaleOperand {
            orientation: *orientation,
            shape: self.shape,
            block_amax: self.block_amax[at],
            tensor_amax: self.tensor_amax,
            scaled_with: 1,
            encode: self.encode[at],
            scale_plane: self.scale[at],
            scale_rows: ScaleRows::Compact,
            tensor_scale: self.tensor_scale,
        };
        ways.map(operand).collect()
    }

    fn cast(&self, format: Format) -> CastOperand {
        let has_factors = !matches!(format, Format::F32 | Format::Bf16);
        CastOperand {
            fragment: self.fragment(),
            encode: if has_factors { self.encode[0] } else { NULL },
            columnwise_encode: self.encode[1],
            data: self.data[0],
            columnwise_data: self.data[1],
        }
    }
}

fn amax_launch(device: &Device, weights: &[Weight], format: Format) -> KernelLaunch {
    let operands: Vec<_> = weights.iter().map(Weight::amax).collect();
    device.kernels.partial_amax(format, Via::Bf16, &operands, NULL).unwrap()
}

fn scale_launch(device: &Device, weights: &[Weight], format: Format) -> KernelLaunch {
    let operands: Vec<_> = weights.iter().flat_map(|weight| weight.scales(format)).collect();
    device.kernels.fused_scale(format, &operands, NULL, NULL).unwrap()
}

fn cast_launch(device: &Device, weights: &[Weight], format: Format) -> KernelLaunch {
    let operands: Vec<_> = weights.iter().map(|weight| weight.cast(format)).collect();
    device.kernels.partial_cast(format, Via::Bf16, &operands, NULL).unwrap()
}

fn weights(device: &Device, size: &Size, format: Format) -> Option<Vec<Weight>> {
    operands(size, |shape| weight(device, format, shape))
}

fn amax(device: &Device, size: &Size, format: Format) -> Option<Vec<KernelLaunch>> {
    Some(vec![amax_launch(device, &weights(device, size, format)?, format)])
}

fn scale(device: &Device, size: &Size, format: Format) -> Option<Vec<KernelLaunch>> {
    Some(vec![scale_launch(device, &weights(device, size, format)?, format)])
}

fn cast(device: &Device, size: &Size, format: Format) -> Option<Vec<KernelLaunch>> {
    let weights = weights(device, size, format)?;
    // Real factors: what a factor of noise would make of the values is not what a cast sees.
    if !matches!(format, Format::F32 | Format::Bf16) {
        device.time(&[amax_launch(device, &weights, format), scale_launch(device, &weights, format)], 1);
    }
    Some(vec![cast_launch(device, &weights, format)])
}

fn requantize(device: &Device, size: &Size, format: Format) -> Option<Vec<KernelLaunch>> {
    let weights = weights(device, size, format)?;
    Some(vec![
        amax_launch(device, &weights, format),
        scale_launch(device, &weights, format),
        cast_launch(device, &weights, format),
    ])
}

/// Both planes of an orientation.
fn planes(device: &Device, format: Format, way: Orientation, shape: Shape) -> Option<[DeviceAddress; 2]> {
    let planes = format.planes(way, shape);
    let scale = if planes.len() > 1 { device.take(plane_bytes(&planes, 1))? } else { NULL };
    Some([device.take(plane_bytes(&planes, 0))?, scale])
}

fn expand(device: &Device, size: &Size) -> Option<Vec<KernelLaunch>> {
    let operands = operands(size, |shape| {
        let [_, plane] = planes(device, Format::NVFP4_2D, Orientation::Rowwise, shape)?;
        Some(ExpandOperand { shape, compact: plane, plane })
    })?;
    Some(vec![device.kernels.expand_scale(Format::NVFP4_2D, Orientation::Rowwise, &operands).unwrap()])
}

fn swizzle(device: &Device, size: &Size, format: Format) -> Option<Vec<KernelLaunch>> {
    let operands = operands(size, |shape| {
        let [_, scale] = planes(device, format, Orientation::Rowwise, shape)?;
        let [_, swizzled] = planes(device, format, Orientation::Rowwise, shape)?;
        Some(SwizzleOperand { shape, scale, swizzled })
    })?;
    Some(vec![device.kernels.swizzle_scale(format, Orientation::Rowwise, &operands).unwrap()])
}

fn transpose(device: &Device, size: &Size, format: Format) -> Option<Vec<KernelLaunch>> {
    let operands = operands(size, |shape| {
        let [data, scale] = planes(device, format, Orientation::Rowwise, shape)?;
        let [columnwise_data, columnwise_scale] = planes(device, format, Orientation::Columnwise, shape)?;
        Some(TransposeOperand { shape, data, scale, columnwise_data, columnwise_scale })
    })?;
    Some(vec![device.kernels.transpose(format, &operands).unwrap()])
}

fn dequantize(
    device: &Device,
    size: &Size,
    format: Format,
    way: Orientation,
    values: ElementType,
) -> Option<Vec<KernelLaunch>> {
    let operands = operands(size, |shape| {
        let [data, scale] = planes(device, format, way, shape)?;
        let out = device.take(shape.elements() * values.bytes())?;
        let (scale_rows, tensor_scale) = (ScaleRows::Padded, device.take(4)?);
        Some(DequantizeOperand { shape, data, scale, scale_rows, tensor_scale, out })
    })?;
    Some(vec![device.kernels.dequantize(format, way, values, &operands).unwrap()])
}

fn accumulate(device: &Device, size: &Size, first: bool) -> Option<Vec<KernelLaunch>> {
    let operands = operands(size, |shape| {
        let elements = shape.elements();
        Some(AccumulateOperand {
            from: device.take(elements * 4)?,
            into: device.take(elements * 4)?,
            elements,
            squares: None,
        })
    })?;
    Some(vec![device.kernels.accumulate(&operands, 0.25, first).unwrap()])
}

fn combine(device: &Device, size: &Size) -> Option<Vec<KernelLaunch>> {
    let operands = operands(size, |shape| {
        let elements = shape.elements();
        let sources: Option<Vec<_>> = (0..4).map(|_| device.take(elements * 4)).collect();
        Some(CombineOperand { sources: sources?, to: device.take(elements * 4)?, elements })
    })?;
    Some(vec![device.kernels.combine(Combination::of_f32(Reduction::Sum), &operands).unwrap()])
}

fn sum_slices(device: &Device, size: &Size, wire: WireType, squared: bool) -> Option<Vec<KernelLaunch>> {
    let operands = operands(size, |shape| {
        let elements = shape.elements();
        let slices: Option<Vec<_>> = (0..4).map(|_| device.take(wire.bytes(elements))).collect();
        let (into, target) = (device.take(elements * 4)?, SumTarget::More);
        let taken = squared.then(|| device.take(elements.div_ceil(SQUARED_TOGETHER) * 8));
        let squares = match taken {
            Some(taken) => Some((taken?, elements)),
            None => None,
        };
        Some(SlicesOperand { slices: slices?, into, elements, target, squares })
    })?;
    Some(vec![device.kernels.sum_slices(wire, &operands, 0.25).unwrap()])
}

/// A gradient as a rank begins to send it.
fn quantized_gradient(device: &Device, size: &Size) -> Option<Vec<KernelLaunch>> {
    let operands = operands(size, |shape| {
        let (elements, target) = (shape.elements(), SumTarget::Quantized);
        let slices = vec![device.take(elements * 4)?];
        let into = device.take(target.wire().bytes(elements))?;
        Some(SlicesOperand { slices, into, elements, target, squares: None })
    })?;
    Some(vec![device.kernels.sum_slices(WireType::F32, &operands, 1.0).unwrap()])
}

fn norm(device: &Device, size: &Size, taken: bool) -> Option<Vec<KernelLaunch>> {
    let operands = operands(size, |shape| {
        let elements = shape.elements();
        let from = match taken {
            true => NormFrom::Squares(device.take(elements.div_ceil(SQUARED_TOGETHER) * 8)?),
            false => NormFrom::Values(device.take(elements * 4)?),
        };
        Some(NormOperand { from, elements })
    })?;
    let (fault, record) = (device.take(4)?, device.take(16)?);
    Some(vec![device.kernels.grad_norm(&operands, fault, record).unwrap()])
}

fn finite_check(device: &Device, size: &Size) -> Option<Vec<KernelLaunch>> {
    let operands = operands(size, |shape| {
        let (values, elements) = (device.take(shape.elements() * 4)?, shape.elements());
        Some(FiniteCheckOperand { values, elements, largest: f32::MAX })
    })?;
    let (vote, diverged) = (device.take(size_of::<Vote>())?, device.take(4)?);
    device.put(vote, Vote::default());
    Some(vec![device.kernels.finite_check(ElementType::F32, &operands, vote, (diverged, 1)).unwrap()])
}

fn zero(device: &Device, size: &Size) -> Option<Vec<KernelLaunch>> {
    let operands = operands(size, |shape| {
        let bytes = shape.elements() * 4;
        Some(ZeroOperand { to: device.take(bytes)?, bytes })
    })?;
    Some(vec![device.kernels.zero(&operands).unwrap()])
}

fn copy(device: &Device, size: &Size) -> Option<Vec<KernelLaunch>> {
    let operands = operands(size, |shape| {
        let bytes = shape.elements() * 4;
        Some(CopyOperand { from: device.take(bytes)?, to: device.take(bytes)?, bytes })
    })?;
    Some(vec![device.kernels.copy(&operands).unwrap()])
}

enum Masters {
    Whole,
    Split,
    Cast(Format),
}

fn adam(device: &Device, size: &Size, masters: Masters, moments: Moments) -> Option<Vec<KernelLaunch>> {
    let settings =
        OptimizerSettings { mode: AdamMode::AdamW, epsilon: 1e-8, bias_correction: true, max_norm: 1.0 };
    let hyperparameters = device.take(size_of::<Hyperparameters>())?;
    let by = Hyperparameters { learning_rate: 1e-4, weight_decay: 0.1, beta1: 0.9, beta2: 0.95 };
    device.put(hyperparameters, by);
    let moment_bytes = if moments == Moments::Bf16 { 2 } else { 4 };
    let operands = operands(size, |shape| {
        let elements = shape.elements();
        let master = match masters {
            Masters::Whole => MasterState::Whole(device.take(elements * 4)?),
            Masters::Split => MasterState::Split {
                shard: device.take(elements * 2)?,
                remainder: device.take(elements * 2)?,
            },
            Masters::Cast(format) => {
                let (master, tensor_scale) = (device.take(elements * 4)?, device.take(4)?);
                let [data, scale] = planes(device, format, Orientation::Rowwise, shape)?;
                let via = Via::Bf16;
                MasterState::Cast(MasterCast { master, shape, format, via, data, scale, tensor_scale })
            }
        };
        Some(AdamOperand {
            master,
            exp_avg: device.take(elements * moment_bytes)?,
            exp_avg_sq: device.take_positive(elements * moment_bytes)?,
            main_grad: device.take(elements * 4)?,
            hyperparameters,
            elements,
        })
    })?;
    let vote = device.take(size_of::<Vote>())?;
    device.put(vote, Vote { clip: 1.0, unscale: 1.0, step: 100, ..Vote::default() });
    let bounds = Bounds { master: f32::MAX, moment: f32::MAX, diverged: device.take(4)? };
    Some(vec![device.kernels.adam(&settings, moments, &operands, vote, bounds).unwrap()])
}
