//! Scales of many weights in one launch: conformance D1 as it reaches a backend, and the scales of MXFP8.
//!
//! What a stage makes of every size in the list is tested in `tests/format/scale_lists.rs`. A backend's list is a
//! bucket, and how it is cut into launches is the backend's own: so lists are long, and their weights have
//! from one block to thousands.

use warpweft_backend::Backend;
use warpweft_base::id::{BucketId, SlotId, WeightId};
use warpweft_format::{
    Epsilon, Format, Fp8Block, Fp8Element, Fp8Tensor, Fp8Tile, Orientation, ScaleRule, reference,
};
use warpweft_plan::layout::{Content, PlaneRegions};
use warpweft_plan::model::WeightSpec;
use warpweft_plan::op::{FusedScale, Op, ShardOperand};

use super::harness::{Plan, QUANTIZE, Rank, run, sharded};
use crate::device::Device;

/// A plan that scales a list of weights, in one launch.
struct Scaled {
    plan: Plan,
    block_amax: SlotId,
    tensor_amax: SlotId,
    encode: SlotId,
    tensor_scale: SlotId,
    shards: Vec<ShardOperand>,
}

fn scaled(weights: &[WeightSpec]) -> Scaled {
    let mut plan = Plan::new(1, weights);
    let (bucket, vote) = (BucketId::new(0), None);
    let block_amax = plan.resident("block amax", Content::BlockAmax(bucket));
    let tensor_amax = plan.resident("amax", Content::LocalAmax(bucket));
    let encode = plan.resident("encode", Content::Encode(bucket));
    let tensor_scale = plan.resident("tensor scale", Content::TensorScale(bucket));
    let mut shards = Vec::new();
    for (number, spec) in weights.iter().enumerate() {
        for &orientation in spec.format.stored_orientations() {
            let weight = WeightId::at(number);
            let slot = plan.resident("shard", Content::Shard(weight, orientation));
            shards.push(ShardOperand { weight, orientation, slot });
        }
    }
    let written = shards.clone();
    let op = Op::FusedScale(FusedScale {
        bucket,
        block_amax,
        tensor_amax,
        encode,
        tensor_scale,
        shards: written,
        vote,
    });
    plan.op(QUANTIZE, op);
    Scaled { plan, block_amax, tensor_amax, encode, tensor_scale, shards }
}

/// The stored rows of a shard's scale plane, without what lies after them.
fn scale_plane(rank: &Rank<Device>, shard: &ShardOperand) -> Vec<u8> {
    let planes = rank.plan.weights.layout(shard.weight).shard_planes(shard.orientation);
    let region = PlaneRegions::within(rank.plan.region(shard.slot), &planes).scale;
    let mut bytes = vec![0xA5; region.bytes];
    rank.backend.download(&rank.memory, region, &mut bytes).unwrap();
    bytes
}

/// Element, rule and epsilon.
fn settings() -> Vec<(Fp8Element, ScaleRule, Epsilon)> {
    let mut settings = Vec::new();
    for element in [Fp8Element::E4m3, Fp8Element::E5m2] {
        for rule in [ScaleRule::PowerOfTwo, ScaleRule::Float32] {
            settings.extend([0.0, 100.0].map(|epsilon| (element, rule, Epsilon::new(epsilon).unwrap())));
        }
    }
    settings
}

/// Any amax that there may be: every exponent, subnormal ones, 0 and infinity.
fn amax(at: usize) -> f32 {
    match at % 1021 {
        0 => 0.0,
        1 => f32::INFINITY,
        2 => f32::MAX,
        _ => f32::from_bits((at as u32).wrapping_mul(0x9E37_79B1) % 0x7F80_0000),
    }
}

/// Conformance D1: three large weights and a pair of small ones 55 times over.
fn d1_scales_of_a_list_of_weights_equal_the_reference_in_one_launch() {
    let mut tiles = vec![777, 555, 2049];
    tiles.extend([1, 7].repeat(55));
    for (element, rule, epsilon) in settings() {
        let tile = Fp8Tile::Tile128x128;
        let format = Format::Fp8Block(Fp8Block { tile, element, scale: rule, epsilon });
        let weights: Vec<_> = tiles.iter().map(|tiles| sharded(1, 128 * tiles, format)).collect();
        let Scaled { plan, block_amax, encode, shards, .. } = scaled(&weights);
        let tiles = tiles.clone();
        run(plan, move |rank| {
            let amaxes: Vec<f32> = (0..tiles.iter().sum()).map(amax).collect();
            let scale = |amax: &f32| reference::fp8_scale(element, rule, epsilon, *amax);
            let expected: Vec<f32> = amaxes.iter().map(scale).collect();
            rank.put(block_amax, &amaxes);
            rank.put(encode, &vec![f32::NAN; amaxes.len()]);
            rank.step().unwrap();
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&rank.get::<f32>(encode)), bits(&expected), "{format}");
            let mut rest = expected.as_slice();
            for (shard, tiles) in shards.iter().zip(&tiles) {
                let (own, others) = rest.split_at(*tiles);
                rest = others;
                let padding = std::iter::repeat_n(0.0, tiles.next_multiple_of(4) - tiles);
                let scales: Vec<u8> =
                    own.iter().map(|encode| 1.0 / encode).chain(padding).flat_map(f32::to_le_bytes).collect();
                assert_eq!(scale_plane(rank, shard), scales, "{format}, {}", shard.weight);
            }
        });
    }
}

/// Conformance D1 for tensors of one scale each, 513 of them.
fn d1_scales_of_a_list_of_tensors_equal_the_reference_in_one_launch() {
    const TENSORS: usize = 513;
    for (element, scale, epsilon) in settings() {
        let format = Format::Fp8Tensor(Fp8Tensor { element, scale, epsilon });
        let weights: Vec<_> = (0..TENSORS).map(|_| sharded(1, 1, format)).collect();
        let Scaled { plan, tensor_amax, encode, tensor_scale, .. } = scaled(&weights);
        run(plan, move |rank| {
            let amaxes: Vec<f32> = (0..TENSORS).map(amax).collect();
            rank.put(tensor_amax, &amaxes);
            rank.step().unwrap();
            let (encode, decode) = (rank.get::<f32>(encode), rank.get::<f32>(tensor_scale));
            for (at, amax) in amaxes.iter().enumerate() {
                let expected = reference::fp8_scale(element, scale, epsilon, *amax);
                assert_eq!(encode[at].to_bits(), expected.to_bits(), "{format} {amax:e}");
                assert_eq!(decode[at].to_bits(), (1.0 / expected).to_bits(), "{format} {amax:e}");
            }
        });
    }
}

/// Every bf16 amax that is not negative, in both orientations of a list of weights.
fn mxfp8_scales_of_a_list_of_weights_are_those_of_the_reference_for_every_bf16_amax() {
    const AMAXES: usize = 1 << 15;
    let mut columns = vec![AMAXES];
    columns.extend([32, 96].repeat(55));
    let weights: Vec<_> = columns.iter().map(|columns| sharded(32, *columns, Format::Mxfp8)).collect();
    let Scaled { plan, block_amax, shards, .. } = scaled(&weights);
    run(plan, move |rank| {
        let value = |at: usize| f32::from_bits(((at % AMAXES) as u32) << 16);
        let code = |at: usize| reference::e8m0(value(at) * (1.0 / 448.0));
        let codes: Vec<u8> = (0..AMAXES).map(code).collect();
        // 32 rows of a 32nd of the columns, and one row of all columns, make as many blocks.
        let blocks: usize = columns.iter().map(|columns| 2 * columns).sum();
        rank.put(block_amax, &(0..blocks).map(value).collect::<Vec<_>>());
        rank.step().unwrap();
        let mut begin = 0;
        for shard in &shards {
            let columns = columns[shard.weight.index()];
            let (rows, across) = match shard.orientation {
                Orientation::Rowwise => (32, columns / 32),
                Orientation::Columnwise => (1, columns),
            };
            let found = scale_plane(rank, shard);
            let pitch = found.len() / rows;
            for (row, found) in found.chunks(pitch).enumerate() {
                let own = (0..across).map(|column| codes[(begin + row * across + column) % AMAXES]);
                let expected: Vec<u8> = own.chain(std::iter::repeat_n(0, pitch - across)).collect();
                assert_eq!(found, expected, "{} {}, row {row}", shard.weight, shard.orientation);
            }
            begin += columns;
        }
    });
}

bodies! {
    d1_scales_of_a_list_of_weights_equal_the_reference_in_one_launch,
    d1_scales_of_a_list_of_tensors_equal_the_reference_in_one_launch,
    mxfp8_scales_of_a_list_of_weights_are_those_of_the_reference_for_every_bf16_amax,
}
