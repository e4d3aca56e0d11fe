//! Amax, scale and cast of row shards: many shapes in one launch, against the CPU's stages.

use warpweft_cuda::DeviceAddress;
use warpweft_cuda::kernels::{AmaxOperand, CastOperand, MasterFragment, ScaleOperand, ScaleRows};
use warpweft_format::{
    FlatShard, Format, Orientation, PlaneSpec, Shape, Via, fused_scale, partial_amax, partial_cast,
};
use warpweft_testing::golden_file::{assert_bytes, assert_f32s};

use super::values::{Kind, formats, scaled_formats, shapes, values};
use crate::gpu::{Buffer, Gpu};

const NULL: DeviceAddress = DeviceAddress::NULL;

fn bits(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The kinds of values a format's stages take: an infinite NVFP4 amax has no scale.
fn kinds(format: Format) -> &'static [Kind] {
    match format {
        Format::Nvfp4(_) => &[Kind::Weights, Kind::Wide, Kind::Nan],
        _ => &[Kind::Weights, Kind::Wide, Kind::Special],
    }
}

/// One master on the host and on the device.
struct Master {
    shape: Shape,
    values: Vec<f32>,
    buffer: Buffer<f32>,
}

/// Every shape of a format, and an empty shard. Every other one lies where 16-byte loads are impossible.
fn masters(gpu: &Gpu, format: Format, kind: Kind) -> Vec<Master> {
    let empty = Shape::new(0, 64);
    let all = shapes(format).into_iter().chain([empty]);
    let master = |(at, shape): (usize, Shape)| {
        let values = values(shape.elements(), kind, at as u64 + 1);
        let buffer = gpu.buffer_at(&values, at % 2 * 4);
        Master { shape, values, buffer }
    };
    all.enumerate().map(master).collect()
}

fn fragment(master: &Master) -> MasterFragment {
    MasterFragment::whole(master.buffer.address(), master.shape)
}

fn orientations(format: Format) -> &'static [Orientation] {
    format.stored_orientations()
}

#[test]
fn amaxes_are_the_cpus_and_blocks_beyond_the_real_rows_are_zero() {
    let Some(gpu) = Gpu::open("amaxes of row shards") else { return };
    for format in scaled_formats() {
        for (via, kind) in [Via::Bf16, Via::None]
            .into_iter()
            .flat_map(|via| kinds(format).iter().map(move |kind| (via, *kind)))
        {
            let masters = masters(&gpu, format, kind);
            amaxes_beside(&gpu, format, via, &masters, 0);
            // A large launch, whose blocks make several passes, and launches of one master each.
            amaxes_beside(&gpu, format, via, &masters, 600);
            masters.chunks(1).for_each(|one| amaxes_beside(&gpu, format, via, one, 0));
        }
    }
}

#[test]
fn amaxes_do_not_depend_on_how_many_passes_a_block_makes() {
    let Some(gpu) = Gpu::open("amaxes by one pass and by two") else { return };
    // About 100 thread blocks of one pass, in blocks of rows 195: beside 600 others, every format makes two.
    let shape = Shape::new(4128, 384);
    for format in scaled_formats() {
        let values = values(shape.elements(), Kind::Wide, 3);
        let buffer = gpu.buffer(&values);
        let tall = [Master { shape, values, buffer }];
        for others in [0, 600] {
            amaxes_beside(&gpu, format, Via::Bf16, &tall, others);
        }
    }
}

/// One launch for the masters and so many empty shards, each of which has a thread block.
fn amaxes_beside(gpu: &Gpu, format: Format, via: Via, masters: &[Master], empty: usize) {
    let stored = |shape: Shape| Shape::new(shape.rows + 2 * format.row_tile(), shape.cols);
    let blocks = |orientation, shape: Shape| match orientations(format).contains(&orientation) {
        true => gpu.buffer(&vec![f32::NAN; format.amax_blocks(orientation, stored(shape))]),
        false => gpu.buffer(&[]),
    };
    let rowwise: Vec<_> = masters.iter().map(|m| blocks(Orientation::Rowwise, m.shape)).collect();
    let columnwise: Vec<_> = masters.iter().map(|m| blocks(Orientation::Columnwise, m.shape)).collect();
    let tensor_amax = gpu.buffer(&vec![f32::NAN; masters.len() + empty]);
    let of_master = |(at, master): (usize, &Master)| AmaxOperand {
        fragment: fragment(master),
        stored_rows: stored(master.shape).rows,
        rowwise: rowwise[at].address(),
        columnwise: columnwise[at].address(),
        tensor_amax: tensor_amax.address().plus(4 * at),
    };
    let of_nothing = |at: usize| AmaxOperand {
        fragment: MasterFragment::whole(tensor_amax.address(), Shape::new(0, 64)),
        stored_rows: 0,
        rowwise: NULL,
        columnwise: NULL,
        tensor_amax: tensor_amax.address().plus(4 * at),
    };
    let operands: Vec<_> = masters
        .iter()
        .enumerate()
        .map(of_master)
        .chain((masters.len()..masters.len() + empty).map(of_nothing))
        .collect();
    // Several times: a launch leaves its workspace as it found it, and clears what it raises.
    let launch = gpu.kernels.partial_amax(format, via, &operands, NULL).unwrap();
    for _ in 0..3 {
        tensor_amax.write(&vec![f32::NAN; operands.len()]);
        gpu.run(Ok(launch.clone()));
    }
    let tensor_amax = tensor_amax.read();
    for (at, master) in masters.iter().enumerate() {
        let what = format!("{format} {} {via:?} beside {empty}", master.shape);
        let mut largest = 0.0_f32;
        for orientation in orientations(format) {
            let mut expected = vec![0.0; format.amax_blocks(*orientation, stored(master.shape))];
            let real = format.amax_blocks(*orientation, master.shape);
            let amax =
                partial_amax(format, *orientation, via, master.shape, &master.values, &mut expected[..real]);
            largest = largest.max(amax.unwrap());
            let found = match orientation {
                Orientation::Rowwise => rowwise[at].read(),
                Orientation::Columnwise => columnwise[at].read(),
            };
            assert_bytes(&format!("{what} {orientation} blocks"), &bits(&found), &bits(&expected));
        }
        assert_eq!(tensor_amax[at].to_bits(), largest.to_bits(), "{what}: tensor");
    }
    assert!(tensor_amax[masters.len()..].iter().all(|amax| amax.to_bits() == 0), "{format} beside {empty}");
}

/// Block amaxes of one orientation of a master, and the tensor's.
fn amaxes(format: Format, orientation: Orientation, via: Via, master: &Master) -> (Vec<f32>, f32) {
    let mut blocks = vec![0.0; format.amax_blocks(orientation, master.shape)];
    let amax = partial_amax(format, orientation, via, master.shape, &master.values, &mut blocks).unwrap();
    (blocks, amax)
}

fn scale_bytes(planes: &[PlaneSpec]) -> usize {
    planes.get(1).map_or(0, PlaneSpec::bytes)
}

#[test]
fn scales_are_the_cpus_in_planes_of_every_kind() {
    let Some(gpu) = Gpu::open("scales of row shards") else { return };
    for format in scaled_formats() {
        for kind in kinds(format) {
            let masters = masters(&gpu, format, *kind);
            for rows in [ScaleRows::Compact, ScaleRows::Shard, ScaleRows::Padded] {
                for orientation in orientations(format) {
                    scales_beside(&gpu, format, *orientation, rows, &masters, 0);
                }
            }
            for (one, orientation) in masters
                .chunks(1)
                .flat_map(|one| orientations(format).iter().map(move |orientation| (one, *orientation)))
            {
                scales_beside(&gpu, format, orientation, ScaleRows::Compact, one, 0);
            }
        }
    }
}

#[test]
fn scales_of_a_large_launch_are_those_of_a_small_one() {
    let Some(gpu) = Gpu::open("scales of a large launch") else { return };
    for format in scaled_formats() {
        let masters = masters(&gpu, format, Kind::Wide);
        for orientation in orientations(format) {
            scales_beside(&gpu, format, *orientation, ScaleRows::Padded, &masters, 4100);
        }
    }
}

/// One launch for the masters and so many empty shards, each of which has a thread block.
fn scales_beside(
    gpu: &Gpu,
    format: Format,
    orientation: Orientation,
    rows: ScaleRows,
    masters: &[Master],
    empty: usize,
) {
    struct Part {
        blocks: Buffer<f32>,
        amax: Buffer<f32>,
        encode: Buffer<f32>,
        plane: Buffer<u8>,
        tensor_scale: Buffer<f32>,
    }
    let parts: Vec<Part> = masters
        .iter()
        .map(|master| {
            let (blocks, amax) = amaxes(format, orientation, Via::None, master);
            let planes = match rows {
                ScaleRows::Compact => format.compact_planes(orientation, master.shape),
                ScaleRows::Shard => format.shard_planes(orientation, master.shape),
                ScaleRows::Padded => format.planes(orientation, master.shape),
            };
            Part {
                blocks: gpu.buffer(&blocks),
                amax: gpu.buffer(&[amax]),
                encode: gpu.buffer(&vec![f32::NAN; format.encode_blocks(orientation, master.shape)]),
                plane: gpu.buffer(&vec![0xEE_u8; scale_bytes(&planes)]),
                tensor_scale: gpu.buffer(&[f32::NAN]),
            }
        })
        .collect();
    let operand = |(part, master): (&Part, &Master)| ScaleOperand {
        orientation,
        shape: master.shape,
        block_amax: part.blocks.address(),
        tensor_amax: part.amax.address(),
        scaled_with: 1,
        encode: part.encode.address(),
        scale_plane: part.plane.address(),
        scale_rows: rows,
        tensor_scale: part.tensor_scale.address(),
    };
    // Amaxes, then scales; an amax of 0 has a scale.
    let others = gpu.buffer(&vec![0.0_f32; 2 * empty]);
    let of_nothing = |at: usize| ScaleOperand {
        orientation,
        shape: Shape::new(0, 64),
        block_amax: others.address(),
        tensor_amax: others.address().plus(4 * at),
        scaled_with: 1,
        encode: others.address().plus(4 * (empty + at)),
        scale_plane: others.address(),
        scale_rows: ScaleRows::Compact,
        tensor_scale: others.address().plus(4 * (empty + at)),
    };
    let operands: Vec<_> = parts.iter().zip(masters).map(operand).chain((0..empty).map(of_nothing)).collect();
    let diverged = gpu.buffer(&[0_u32]);
    gpu.run(gpu.kernels.fused_scale(format, &operands, NULL, diverged.address()));
    assert_eq!(diverged.read(), [0]);
    for (part, master) in parts.iter().zip(masters) {
        let what = format!("{format} {orientation} {} {rows:?}", master.shape);
        let mut encode = part.encode.read();
        let mut plane = part.plane.read();
        let (found_encode, found_plane) = (encode.clone(), plane.clone());
        let (blocks, amax) = (part.blocks.read(), part.amax.read()[0]);
        plane.fill(0xEE);
        encode.fill(f32::NAN);
        let tensor = fused_scale(format, orientation, master.shape, &blocks, amax, &mut encode, &mut plane);
        assert_bytes(&format!("{what} encode"), &bits(&found_encode), &bits(&encode));
        assert_bytes(&format!("{what} plane"), &found_plane, &plane);
        assert_f32s(&format!("{what} tensor scale"), &part.tensor_scale.read(), &[tensor.unwrap()]);
    }
}

#[test]
fn an_nvfp4_amax_without_a_scale_is_reported_and_writes_nothing() {
    let Some(gpu) = Gpu::open("an amax without a scale") else { return };
    let (shape, format) = (Shape::new(32, 64), Format::NVFP4_2D);
    let blocks = gpu.buffer(&[1.0_f32; 8]);
    let amaxes = gpu.buffer(&[2.0_f32, f32::NAN, f32::INFINITY]);
    let planes: Vec<_> = (0..3).map(|_| gpu.buffer(&[0xEE_u8; 128])).collect();
    let encode: Vec<_> = (0..3).map(|_| gpu.buffer(&[-1.0_f32; 8])).collect();
    let tensor_scale = gpu.buffer(&[-1.0_f32; 3]);
    let operand = |at: usize| ScaleOperand {
        orientation: Orientation::Rowwise,
        shape,
        block_amax: blocks.address(),
        tensor_amax: amaxes.address().plus(4 * at),
        scaled_with: 1,
        encode: encode[at].address(),
        scale_plane: planes[at].address(),
        scale_rows: ScaleRows::Shard,
        tensor_scale: tensor_scale.address().plus(4 * at),
    };
    let diverged = gpu.buffer(&[0_u32]);
    let operands = [operand(0), operand(1), operand(2)];
    gpu.run(gpu.kernels.fused_scale(format, &operands, NULL, diverged.address()));
    assert_eq!(diverged.read(), [1]);
    assert_eq!(tensor_scale.read(), [2.0, -1.0, -1.0]);
    for at in [1, 2] {
        assert_eq!((planes[at].read(), encode[at].read()), (vec![0xEE; 128], vec![-1.0; 8]));
    }
}

#[test]
fn codes_are_the_cpus() {
    let Some(gpu) = Gpu::open("codes of row shards") else { return };
    for format in formats() {
        for via in [Via::Bf16, Via::None] {
            for kind in kinds(format) {
                codes(&gpu, format, via, &masters(&gpu, format, *kind));
            }
        }
    }
}

fn codes(gpu: &Gpu, format: Format, via: Via, masters: &[Master]) {
    struct Part {
        orientation: Orientation,
        factors: Vec<f32>,
        encode: Buffer<f32>,
        data: Buffer<u8>,
    }
    let part = |orientation: Orientation, master: &Master, shift: usize| {
        let mut factors = vec![0.0; format.encode_blocks(orientation, master.shape)];
        let (blocks, amax) = amaxes(format, orientation, via, master);
        let mut plane = vec![0; scale_bytes(&format.shard_planes(orientation, master.shape))];
        fused_scale(format, orientation, master.shape, &blocks, amax, &mut factors, &mut plane).unwrap();
        let data = vec![0x5A_u8; format.planes(orientation, master.shape)[0].bytes()];
        Part { orientation, encode: gpu.buffer(&factors), factors, data: gpu.buffer_at(&data, shift) }
    };
    // Data planes, too, lie on odd addresses now and then.
    let parts: Vec<Vec<Part>> = masters
        .iter()
        .enumerate()
        .map(|(at, master)| {
            let element = format.planes(Orientation::Rowwise, master.shape)[0].element.bytes();
            orientations(format).iter().map(|way| part(*way, master, at % 3 * element)).collect()
        })
        .collect();
    let operand = |(parts, master): (&Vec<Part>, &Master)| CastOperand {
        fragment: fragment(master),
        encode: parts[0].encode.address(),
        columnwise_encode: parts.get(1).map_or(NULL, |part| part.encode.address()),
        data: parts[0].data.address(),
        columnwise_data: parts.get(1).map_or(NULL, |part| part.data.address()),
    };
    let operands: Vec<_> = parts.iter().zip(masters).map(operand).collect();
    gpu.run(gpu.kernels.partial_cast(format, via, &operands, NULL));
    for (parts, master) in parts.iter().zip(masters) {
        for part in parts {
            let found = part.data.read();
            let mut expected = vec![0; found.len()];
            let Part { orientation, factors, .. } = part;
            partial_cast(format, *orientation, via, master.shape, &master.values, factors, &mut expected)
                .unwrap();
            // A launch writes the codes of the master's own rows.
            let own = FlatShard { start: 0, len: master.values.len() }.fragment(format);
            expected[own.end..].fill(0x5A);
            assert_bytes(&format!("{format} {orientation} {via:?} {}", master.shape), &found, &expected);
        }
    }
}

#[test]
fn a_vote_that_skips_leaves_everything_as_it_is() {
    let Some(gpu) = Gpu::open("a vote that skips") else { return };
    let vote = gpu.buffer(&[warpweft_plan::op::Vote {
        verdict: warpweft_plan::op::Vote::NON_FINITE,
        ..Default::default()
    }]);
    for format in scaled_formats() {
        let shape = Shape::new(128, 128);
        let master = gpu.buffer(&values(shape.elements(), Kind::Weights, 1));
        let fragment = MasterFragment::whole(master.address(), shape);
        let (blocks, amax) = (gpu.buffer(&vec![-7.0_f32; 128 * 128]), gpu.buffer(&[-7.0_f32]));
        let (plane, data) = (gpu.buffer(&vec![0x77_u8; 128 * 128]), gpu.buffer(&vec![0x77_u8; 128 * 128]));
        let encode = gpu.buffer(&vec![-7.0_f32; 128 * 128]);
        let amax_of = AmaxOperand {
            fragment,
            stored_rows: shape.rows,
            rowwise: blocks.address(),
            columnwise: NULL,
            tensor_amax: amax.address(),
        };
        gpu.run(gpu.kernels.partial_amax(format, Via::Bf16, &[amax_of], vote.address()));
        let scale_of = ScaleOperand {
            orientation: Orientation::Rowwise,
            shape,
            block_amax: blocks.address(),
            tensor_amax: amax.address(),
            scaled_with: 1,
            encode: encode.address(),
            scale_plane: plane.address(),
            scale_rows: ScaleRows::Padded,
            tensor_scale: amax.address(),
        };
        gpu.run(gpu.kernels.fused_scale(format, &[scale_of], vote.address(), NULL));
        let cast_of = CastOperand {
            fragment,
            encode: encode.address(),
            columnwise_encode: NULL,
            data: data.address(),
            columnwise_data: NULL,
        };
        gpu.run(gpu.kernels.partial_cast(format, Via::Bf16, &[cast_of], vote.address()));
        assert!(blocks.read().iter().chain(&amax.read()).chain(&encode.read()).all(|value| *value == -7.0));
        assert!(plane.read().iter().chain(&data.read()).all(|byte| *byte == 0x77), "{format}");
    }
}
