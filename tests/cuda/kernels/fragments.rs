//! Flat fragments: amax and cast of slices that begin and end anywhere. Conformance C10.

use warpweft_cuda::DeviceAddress;
use warpweft_cuda::kernels::{AmaxOperand, CastOperand, MasterFragment};
use warpweft_format::{FlatShard, Format, Orientation, Shape, Via, flat_amax, flat_cast};
use warpweft_testing::golden_file::assert_bytes;

use super::values::{Kind, Random, formats, shapes, values};
use crate::gpu::{Buffer, Gpu};

/// Cuts of a weight: even, ragged, with empty parts, of single elements.
fn cuts(shape: Shape, seed: u64) -> Vec<Vec<FlatShard>> {
    let elements = shape.elements();
    let mut random = Random::new(seed);
    let cut = |inner: Vec<usize>| {
        let mut bounds = inner;
        bounds.extend([0, elements]);
        bounds.sort_unstable();
        bounds.windows(2).map(|pair| FlatShard { start: pair[0], len: pair[1] - pair[0] }).collect()
    };
    let quarter = elements.div_ceil(4);
    let even = cut((1..4).map(|part| (part * quarter).min(elements)).collect());
    let ragged = cut((0..5).map(|_| random.below(elements + 1)).collect());
    let middle = elements / 2;
    let single = cut([middle, middle + 1, middle + 1, middle + 2].map(|at| at.min(elements)).to_vec());
    vec![even, ragged, single]
}

struct Part {
    shape: Shape,
    shard: FlatShard,
    values: Vec<f32>,
    master: Buffer<f32>,
}

fn parts(gpu: &Gpu, format: Format, kind: Kind) -> Vec<Part> {
    let mut parts = Vec::new();
    for (seed, shape) in (1..).zip(shapes(format)) {
        let all = values(shape.elements(), kind, seed);
        for shard in cuts(shape, seed).into_iter().flatten() {
            let values = all[shard.start..][..shard.len].to_vec();
            let master = gpu.buffer_at(&values, parts.len() % 4 * 4);
            parts.push(Part { shape, shard, values, master });
        }
    }
    parts
}

fn fragment(part: &Part) -> MasterFragment {
    MasterFragment { master: part.master.address(), shape: part.shape, shard: part.shard }
}

#[test]
fn c10_amaxes_of_any_slice_are_the_cpus() {
    let Some(gpu) = Gpu::open("amaxes of slices") else { return };
    for format in formats().into_iter().filter(|format| !matches!(format, Format::F32 | Format::Bf16)) {
        let parts = parts(&gpu, format, Kind::Wide);
        let blocks = |orientation: Orientation, shape: Shape| {
            let wanted = format.stored_orientations().contains(&orientation);
            gpu.buffer(&vec![f32::NAN; if wanted { format.amax_blocks(orientation, shape) } else { 0 }])
        };
        let rowwise: Vec<_> = parts.iter().map(|part| blocks(Orientation::Rowwise, part.shape)).collect();
        let columnwise: Vec<_> =
            parts.iter().map(|part| blocks(Orientation::Columnwise, part.shape)).collect();
        let tensor = gpu.buffer(&vec![f32::NAN; parts.len()]);
        let operands: Vec<_> = (0..parts.len())
            .map(|at| AmaxOperand {
                fragment: fragment(&parts[at]),
                stored_rows: parts[at].shape.rows,
                rowwise: rowwise[at].address(),
                columnwise: columnwise[at].address(),
                tensor_amax: tensor.address().plus(4 * at),
            })
            .collect();
        gpu.run(gpu.kernels.partial_amax(format, Via::Bf16, &operands, DeviceAddress::NULL));
        let tensor = tensor.read();
        for (at, part) in parts.iter().enumerate() {
            let what = format!("{format} {} {:?}", part.shape, part.shard);
            for orientation in format.stored_orientations() {
                let mut expected = vec![0.0; format.amax_blocks(*orientation, part.shape)];
                let amax = flat_amax(
                    format,
                    *orientation,
                    Via::Bf16,
                    part.shape,
                    part.shard,
                    &part.values,
                    &mut expected,
                );
                let found = match orientation {
                    Orientation::Rowwise => rowwise[at].read(),
                    Orientation::Columnwise => columnwise[at].read(),
                };
                assert_bytes(&what, bytemuck::cast_slice(&found), bytemuck::cast_slice(&expected));
                assert_eq!(tensor[at].to_bits(), amax.unwrap().to_bits(), "{what}: tensor");
            }
        }
    }
}

/// FS-1.
#[test]
fn c10_codes_of_any_slice_are_the_cpus_and_foreign_nibbles_stay() {
    let Some(gpu) = Gpu::open("codes of slices") else { return };
    for format in formats() {
        for via in [Via::Bf16, Via::None] {
            let parts = parts(&gpu, format, Kind::Special);
            cast(&gpu, format, via, &parts);
        }
    }
}

fn cast(gpu: &Gpu, format: Format, via: Via, parts: &[Part]) {
    let orientations = format.stored_orientations();
    // Factors of every block, of all magnitudes: which block an element belongs to must matter.
    let factors = |orientation: Orientation, shape: Shape| {
        let mut random = Random::new(9);
        let count = format.encode_blocks(orientation, shape);
        (0..count).map(|_| 2f32.powi(random.below(12) as i32) * (1.5 + random.unit())).collect::<Vec<f32>>()
    };
    let element = match format {
        Format::F32 => 4,
        Format::Bf16 => 2,
        _ => 1,
    };
    let data = |part: &Part, at: usize| {
        gpu.buffer_at(&vec![0xA5_u8; part.shard.fragment(format).len()], at % 5 * element)
    };
    let encodes: Vec<Vec<_>> = parts
        .iter()
        .map(|part| orientations.iter().map(|way| gpu.buffer(&factors(*way, part.shape))).collect())
        .collect();
    let datas: Vec<Vec<_>> = parts
        .iter()
        .enumerate()
        .map(|(at, part)| orientations.iter().map(|_| data(part, at)).collect())
        .collect();
    let second = |list: &[Buffer<u8>]| list.get(1).map_or(DeviceAddress::NULL, Buffer::address);
    let operands: Vec<_> = (0..parts.len())
        .map(|at| CastOperand {
            fragment: fragment(&parts[at]),
            encode: encodes[at][0].address(),
            columnwise_encode: encodes[at].get(1).map_or(DeviceAddress::NULL, Buffer::address),
            data: datas[at][0].address(),
            columnwise_data: second(&datas[at]),
        })
        .collect();
    gpu.run(gpu.kernels.partial_cast(format, via, &operands, DeviceAddress::NULL));
    for (part, datas) in parts.iter().zip(&datas) {
        for (orientation, data) in orientations.iter().zip(datas) {
            let mut expected = vec![0xA5; part.shard.fragment(format).len()];
            let factors = factors(*orientation, part.shape);
            flat_cast(
                format,
                *orientation,
                via,
                part.shape,
                part.shard,
                &part.values,
                &factors,
                &mut expected,
            )
            .unwrap();
            let what = format!("{format} {orientation} {via:?} {} {:?}", part.shape, part.shard);
            assert_bytes(&what, &data.read(), &expected);
        }
    }
}
