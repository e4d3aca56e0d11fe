//! Conformance I1 on the GPU: every case of every quantizer file and of the partial casts, bit for bit.

use warpweft_backend::local::Combination;
use warpweft_cuda::DeviceAddress;
use warpweft_cuda::kernels::{
    AmaxOperand, CastOperand, CombineOperand, DequantizeOperand, MasterFragment, ScaleOperand, ScaleRows,
    SwizzleOperand, TransposeOperand,
};
use warpweft_format::{ElementType, FlatShard, Format, Orientation, PlaneSpec, Shape, Via, place_fragment};
use warpweft_plan::op::Reduction;
use warpweft_testing::golden_file::{Case, GoldenFile, assert_bytes, assert_f32s};

use crate::gpu::{Buffer, Gpu};

const NULL: DeviceAddress = DeviceAddress::NULL;

/// Planes that the kernels made.
struct Made {
    data: Buffer<u8>,
    scale: Buffer<u8>,
    tensor_scale: Buffer<f32>,
    amax: f32,
}

fn scale_bytes(format: Format, orientation: Orientation, shape: Shape) -> usize {
    format.planes(orientation, shape).get(1).map_or(0, PlaneSpec::bytes)
}

/// Amax, scale and cast of a whole weight.
fn quantize(gpu: &Gpu, format: Format, orientation: Orientation, shape: Shape, values: &[f32]) -> Made {
    let is_columnwise = orientation == Orientation::Columnwise;
    let pair = |address: DeviceAddress| if is_columnwise { (NULL, address) } else { (address, NULL) };
    let master = gpu.buffer(values);
    let fragment = MasterFragment::whole(master.address(), shape);
    let blocks = gpu.buffer(&vec![f32::NAN; format.amax_blocks(orientation, shape)]);
    let amax = gpu.buffer(&[f32::NAN]);
    let (rowwise, columnwise) = pair(blocks.address());
    let operand =
        AmaxOperand { fragment, stored_rows: shape.rows, rowwise, columnwise, tensor_amax: amax.address() };
    gpu.run(gpu.kernels.partial_amax(format, Via::None, &[operand], NULL));

    let encode = gpu.buffer(&vec![f32::NAN; format.encode_blocks(orientation, shape)]);
    let scale = gpu.buffer(&vec![0xEE_u8; scale_bytes(format, orientation, shape)]);
    let tensor_scale = gpu.buffer(&[f32::NAN]);
    let operand = ScaleOperand {
        orientation,
        shape,
        block_amax: blocks.address(),
        tensor_amax: amax.address(),
        scaled_with: 1,
        encode: encode.address(),
        scale_plane: scale.address(),
        scale_rows: ScaleRows::Padded,
        tensor_scale: tensor_scale.address(),
    };
    gpu.run(gpu.kernels.fused_scale(format, &[operand], NULL, NULL));

    let data = gpu.buffer(&vec![0xEE_u8; format.planes(orientation, shape)[0].bytes()]);
    let ((encode_rows, encode_columns), (rows, columns)) = (pair(encode.address()), pair(data.address()));
    let operand = CastOperand {
        fragment,
        encode: encode_rows,
        columnwise_encode: encode_columns,
        data: rows,
        columnwise_data: columns,
    };
    gpu.run(gpu.kernels.partial_cast(format, Via::None, &[operand], NULL));
    // The guards of what is dropped here are checked, too.
    blocks.read();
    encode.read();
    master.read();
    let amax = amax.read()[0];
    Made { data, scale, tensor_scale, amax }
}

fn turned(shape: Shape, values: &[f32]) -> Vec<f32> {
    (0..shape.cols).flat_map(|k| (0..shape.rows).map(move |m| values[m * shape.cols + k])).collect()
}

/// Columnwise planes: derived, quantized beside the rowwise ones, or quantized from the transposed weight.
fn columnwise(gpu: &Gpu, format: Format, shape: Shape, values: &[f32], rowwise: &Made) -> Made {
    if format.stored_orientations().contains(&Orientation::Columnwise) {
        return quantize(gpu, format, Orientation::Columnwise, shape, values);
    }
    if format.derives_columnwise().is_err() {
        return quantize(gpu, format, Orientation::Rowwise, shape.transposed(), &turned(shape, values));
    }
    let planes = format.planes(Orientation::Columnwise, shape);
    let data = gpu.buffer(&vec![0xEE_u8; planes[0].bytes()]);
    let scale = gpu.buffer(&vec![0xEE_u8; planes.get(1).map_or(0, PlaneSpec::bytes)]);
    let operand = TransposeOperand {
        shape,
        data: rowwise.data.address(),
        scale: rowwise.scale.address(),
        columnwise_data: data.address(),
        columnwise_scale: scale.address(),
    };
    gpu.run(gpu.kernels.transpose(format, &[operand]));
    Made { data, scale, tensor_scale: gpu.buffer(&rowwise.tensor_scale.read()), amax: rowwise.amax }
}

fn stored_scale(format: Format, made: &Made) -> Vec<u8> {
    match format {
        Format::Fp8Tensor(_) => made.tensor_scale.read()[0].to_le_bytes().to_vec(),
        _ => made.scale.read(),
    }
}

fn check_file(file: &str) {
    let Some(gpu) = Gpu::open(&format!("golden file {file}")) else { return };
    let format: Format = file.parse().unwrap();
    for case in GoldenFile::open(file).cases() {
        check_case(&gpu, file, format, &case);
    }
}

fn check_case(gpu: &Gpu, file: &str, format: Format, case: &Case<'_>) {
    let name = |field: &str| format!("{file}: {}/{field}", case.name);
    let shape = Shape::new(case.dimension("M"), case.dimension("K"));
    let values = case.f32s("input");
    let rowwise = quantize(gpu, format, Orientation::Rowwise, shape, &values);
    let columnwise = columnwise(gpu, format, shape, &values, &rowwise);
    assert_f32s(&name("amax"), &[rowwise.amax], &case.f32s("amax"));
    for (orientation, made) in [("rowwise", &rowwise), ("columnwise", &columnwise)] {
        let field = format!("{orientation}_data");
        assert_bytes(&name(&field), &made.data.read(), case.bytes(&field));
        let field = format!("{orientation}_scale");
        assert_bytes(&name(&field), &stored_scale(format, made), case.bytes(&field));
    }

    let out = gpu.buffer(&vec![0.0_f32; shape.elements()]);
    let operand = DequantizeOperand {
        shape,
        data: rowwise.data.address(),
        scale: rowwise.scale.address(),
        scale_rows: ScaleRows::Padded,
        tensor_scale: rowwise.tensor_scale.address(),
        out: out.address(),
    };
    gpu.run(gpu.kernels.dequantize(format, Orientation::Rowwise, ElementType::F32, &[operand]));
    assert_f32s(&name("dequantized"), &out.read(), &case.f32s("dequantized"));

    for (orientation, made, field) in [
        (Orientation::Rowwise, &rowwise, "rowwise_scale_swizzled"),
        (Orientation::Columnwise, &columnwise, "columnwise_scale_swizzled"),
    ] {
        if !case.has(field) {
            continue;
        }
        let swizzled = gpu.buffer(&vec![0xEE_u8; scale_bytes(format, orientation, shape)]);
        let operand = SwizzleOperand { shape, scale: made.scale.address(), swizzled: swizzled.address() };
        gpu.run(gpu.kernels.swizzle_scale(format, orientation, &[operand]));
        assert_bytes(&name(field), &swizzled.read(), case.bytes(field));
    }
}

#[test]
fn i1_nvfp4_2d() {
    check_file("nvfp4_2d");
}

#[test]
fn i1_nvfp4_1d() {
    check_file("nvfp4_1d");
}

#[test]
fn i1_fp8_block128_pow2() {
    check_file("fp8_block128_pow2");
}

#[test]
fn i1_fp8_block128_f32scale() {
    check_file("fp8_block128_f32scale");
}

#[test]
fn i1_fp8_block1x128_pow2() {
    check_file("fp8_block1x128_pow2");
}

#[test]
fn i1_mxfp8() {
    check_file("mxfp8");
}

#[test]
fn i1_fp8_tensor_e4m3() {
    check_file("fp8_tensor_e4m3");
}

#[test]
fn i1_fp8_tensor_e5m2_pow2() {
    check_file("fp8_tensor_e5m2_pow2");
}

/// One partial-cast case.
struct Setup<'a> {
    case: &'a Case<'a>,
    format: Format,
    via: Via,
    shape: Shape,
    master: Vec<f32>,
}

impl<'a> Setup<'a> {
    fn new(case: &'a Case<'a>) -> Self {
        let format = match case.text("format") {
            "nvfp4" => Format::NVFP4_2D,
            "fp8block" => Format::FP8_BLOCK128_POW2,
            "fp8blockf32" => Format::FP8_BLOCK128_F32SCALE,
            "mxfp8" => Format::Mxfp8,
            "fp8tensor" => Format::FP8_TENSOR_E4M3,
            other => panic!("unknown format {other}"),
        };
        let via = if case.text("cast_via") == "bf16" { Via::Bf16 } else { Via::None };
        let shape = Shape::new(case.dimension("M"), case.dimension("K"));
        Self { case, format, via, shape, master: case.f32s("master") }
    }

    fn shards(&self, layout: &str) -> Vec<FlatShard> {
        let shards = self.case.i64s(&format!("{layout}/shards"));
        let shard = |pair: &[i64; 2]| FlatShard { start: pair[0] as usize, len: pair[1] as usize };
        shards.as_chunks().0.iter().map(shard).collect()
    }

    /// All ranks of a layout on this one GPU, one operand per rank; the maximum over them as ranks take it.
    fn check(&self, gpu: &Gpu, layout: &str) {
        let Self { case, format, via, shape, ref master } = *self;
        let label = |field: &str| format!("{}/{layout}/{field}", case.name);
        let shards = self.shards(layout);
        let orientations = format.stored_orientations();
        let masters: Vec<_> = shards
            .iter()
            .enumerate()
            .map(|(at, s)| gpu.buffer_at(&master[s.start..][..s.len], at % 4 * 4))
            .collect();
        let fragment =
            |rank: usize| MasterFragment { master: masters[rank].address(), shape, shard: shards[rank] };

        let blocks: Vec<Vec<_>> = orientations
            .iter()
            .map(|way| {
                let count = format.amax_blocks(*way, shape);
                shards.iter().map(|_| gpu.buffer(&vec![f32::NAN; count])).collect()
            })
            .collect();
        let amaxes: Vec<_> = shards.iter().map(|_| gpu.buffer(&[f32::NAN])).collect();
        let operands: Vec<_> = (0..shards.len())
            .map(|rank| AmaxOperand {
                fragment: fragment(rank),
                stored_rows: shape.rows,
                rowwise: blocks[0][rank].address(),
                columnwise: blocks.get(1).map_or(NULL, |blocks| blocks[rank].address()),
                tensor_amax: amaxes[rank].address(),
            })
            .collect();
        gpu.run(gpu.kernels.partial_amax(format, via, &operands, NULL));
        let suffix = |way: usize| if way == 0 { "" } else { "_columnwise" };
        for (way, blocks) in blocks.iter().enumerate() {
            for (rank, blocks) in blocks.iter().enumerate() {
                let field = format!("{layout}/partial_block_amax{}_{rank}", suffix(way));
                if case.has(&field) {
                    assert_f32s(&label(&field), &blocks.read(), &case.f32s(&field));
                }
            }
        }

        let max = |buffers: &[Buffer<f32>], count: usize| {
            let to = gpu.buffer(&vec![f32::NAN; count]);
            let sources = buffers.iter().map(Buffer::address).collect();
            let operand = CombineOperand { sources, to: to.address(), elements: count };
            gpu.run(gpu.kernels.combine(Combination::of_f32(Reduction::Max), &[operand]));
            to
        };
        let amax = max(&amaxes, 1);
        let encodes: Vec<_> = orientations
            .iter()
            .enumerate()
            .map(|(way, orientation)| {
                let reduced = max(&blocks[way], format.amax_blocks(*orientation, shape));
                let encode = gpu.buffer(&vec![f32::NAN; format.encode_blocks(*orientation, shape)]);
                let plane = gpu.buffer(&vec![0xEE_u8; scale_bytes(format, *orientation, shape)]);
                let tensor_scale = gpu.buffer(&[f32::NAN]);
                let operand = ScaleOperand {
                    orientation: *orientation,
                    shape,
                    block_amax: reduced.address(),
                    tensor_amax: amax.address(),
                    scaled_with: 1,
                    encode: encode.address(),
                    scale_plane: plane.address(),
                    scale_rows: ScaleRows::Padded,
                    tensor_scale: tensor_scale.address(),
                };
                gpu.run(gpu.kernels.fused_scale(format, &[operand], NULL, NULL));
                let scale = match format {
                    Format::Fp8Tensor(_) => tensor_scale.read()[0].to_le_bytes().to_vec(),
                    _ => plane.read(),
                };
                assert_bytes(&case.name, &scale, case.bytes(&format!("{orientation}_scale")));
                encode
            })
            .collect();

        let fragments: Vec<Vec<_>> = orientations
            .iter()
            .map(|_| {
                let fragment = |(at, shard): (usize, &FlatShard)| {
                    gpu.buffer_at(&vec![0xA5_u8; shard.fragment(format).len()], at % 3)
                };
                shards.iter().enumerate().map(fragment).collect()
            })
            .collect();
        let operands: Vec<_> = (0..shards.len())
            .map(|rank| CastOperand {
                fragment: fragment(rank),
                encode: encodes[0].address(),
                columnwise_encode: encodes.get(1).map_or(NULL, Buffer::address),
                data: fragments[0][rank].address(),
                columnwise_data: fragments.get(1).map_or(NULL, |fragments| fragments[rank].address()),
            })
            .collect();
        gpu.run(gpu.kernels.partial_cast(format, via, &operands, NULL));
        for (way, (fragments, orientation)) in fragments.iter().zip(orientations).enumerate() {
            let mut data = vec![0x5A; format.planes(*orientation, shape)[0].bytes()];
            for (rank, fragment) in fragments.iter().enumerate() {
                let field = format!("{layout}/fragment{}_{rank}", suffix(way));
                let fragment = fragment.read();
                assert_bytes(&label(&field), &fragment, case.bytes(&field));
                place_fragment(format, shape, shards[rank], &fragment, &mut data).unwrap();
            }
            assert_bytes(&case.name, &data, case.bytes(&format!("{orientation}_data")));
        }
    }
}

#[test]
fn i1_c10_every_layout_of_every_partial_cast() {
    let Some(gpu) = Gpu::open("golden partial casts") else { return };
    for case in GoldenFile::open("partial_cast").cases() {
        let setup = Setup::new(&case);
        let layouts = case.entry["layouts"].as_array().unwrap();
        assert!(!layouts.is_empty());
        for layout in layouts {
            setup.check(&gpu, layout.as_str().unwrap());
        }
    }
}
