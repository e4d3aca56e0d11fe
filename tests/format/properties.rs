//! Laws of the formats over random weights, shapes and cuts.

use proptest::prelude::*;
use warpweft_format::{
    Directions, Epsilon, FlatShard, Format, Fp8Block, Fp8Element, Fp8Tile, Nvfp4Block, Orientation,
    OwnedPlanes, Planes, Quantized, ScaleRule, Shape, Via, dequantize, expand_scale, flat_amax, flat_cast,
    fused_scale, partial_amax, place_fragment, quantize,
};
use warpweft_testing::random_weight::{self, bits, normal, wild};
use warpweft_testing::staged;

/// Formats a weight can have.
fn weight_format() -> impl Strategy<Value = Format> {
    let formats: Vec<Format> =
        Format::CANONICAL.into_iter().filter(|format| format.check_weight().is_ok()).collect();
    prop::sample::select(formats)
}

fn via() -> impl Strategy<Value = Via> {
    prop_oneof![Just(Via::Bf16), Just(Via::None)]
}

/// A shape `format` accepts, ragged where it may be: about square with up to `tiles` alignment units per
/// side, or of few long rows, which the kernels cut into pieces. Rows may end within a block.
fn shape(format: Format, tiles: usize) -> impl Strategy<Value = Shape> {
    let (unit, largest, longest): (usize, usize, usize) = match format {
        Format::Nvfp4(_) => (16, tiles, 100),
        Format::Mxfp8 => (32, tiles, 50),
        _ => (1, tiles * 40, 1600),
    };
    (prop_oneof![(1..=largest, 1..=largest), (1..=2usize, 1..=longest)], prop_oneof![Just(0), 0..unit])
        .prop_map(move |((rows, cols), short)| Shape::new(rows * unit - short, cols * unit))
}

/// Weights as training has them, or with any exponent at all.
fn weight(shape: Shape, seed: u64) -> Vec<f32> {
    if seed.is_multiple_of(3) { wild(shape, seed) } else { normal(shape, seed) }
}

/// The largest of the amaxes every rank contributes, as the all-reduce gives it.
fn raise(into: &mut [f32], from: &[f32]) {
    for (into, from) in into.iter_mut().zip(from) {
        *into = into.max(*from);
    }
}

fn whole(format: Format, via: Via, shape: Shape, weight: &[f32]) -> Quantized {
    quantize(format, Directions::Both, via, shape, weight).unwrap()
}

fn planes_of(quantized: &Quantized, orientation: Orientation) -> &OwnedPlanes {
    match orientation {
        Orientation::Rowwise => quantized.rowwise.as_ref().unwrap(),
        Orientation::Columnwise => quantized.columnwise.as_ref().unwrap(),
    }
}

/// One rank's row shard, quantized with the tensor amax of all ranks.
fn row_shard(
    format: Format,
    orientation: Orientation,
    via: Via,
    shape: Shape,
    master: &[f32],
    tensor_amax: f32,
) -> (OwnedPlanes, f32) {
    let bytes =
        |kind: usize| format.shard_planes(orientation, shape).get(kind).map_or(0, |plane| plane.bytes());
    let mut planes = OwnedPlanes { data: vec![0xA5; bytes(0)], scale: vec![0xA5; bytes(1)] };
    let target = planes.as_planes_mut();
    let (_, scale) = staged::quantize(format, orientation, via, shape, master, Some(tensor_amax), target);
    (planes, scale)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// ST-3 and FO-3 for row shards: any cut at tile boundaries, empty shards included.
    #[test]
    fn any_cut_into_row_shards_gathers_to_the_bytes_of_the_whole(
        (format, via) in (weight_format(), via()),
        cols in 1usize..9,
        cuts in prop::collection::vec(0usize..4, 1..6),
        short in prop_oneof![Just(0), 0usize..32],
        seed in any::<u64>(),
    ) {
        let tile = format.row_tile();
let unit = [7, 16, 32].into_iter().find(|&unit| format.check_shape(Shape::new(tile, unit)).is_ok()).unwrap();
        let cols = cols * unit;
        let mut rows: Vec<usize> = cuts.iter().map(|tiles| tiles * tile).collect();
        // The last shard may end within a block, of formats whose planes hold whole blocks.
        if let Some(last) = rows.last_mut().filter(|_| format.whole_blocks(Shape::new(1, cols)).rows == tile) {
            *last = last.saturating_sub(short % tile);
        }
        let shape = Shape::new(rows.iter().sum(), cols);
        prop_assume!(shape.rows > 0);
        let weight = weight(shape, seed);
        let expected = whole(format, via, shape, &weight);

        let mut start = 0;
        let shards: Vec<(Shape, &[f32])> = rows.iter().map(|&rows| {
            let shard = Shape::new(rows, cols);
            let master = &weight[start..start + shard.elements()];
            start += shard.elements();
            (shard, master)
        }).collect();
        for &orientation in format.stored_orientations() {
            let tensor_amax = shards.iter().map(|&(shape, master)| {
                let mut blocks = vec![0.0; format.amax_blocks(orientation, shape)];
                partial_amax(format, orientation, via, shape, master, &mut blocks).unwrap()
            }).fold(0.0, f32::max);
            let sent: Vec<(OwnedPlanes, f32)> = shards.iter().map(|&(shape, master)| {
                row_shard(format, orientation, via, shape, master, tensor_amax)
            }).collect();
            for (_, scale) in &sent {
                prop_assert_eq!(scale.to_bits(), expected.tensor_scale.to_bits());
            }

            // The compact wire: one scale row per tile lands in the first rows and is expanded there.
            let mut compact = vec![0xEE; planes_of(&expected, orientation).scale.len()];
            let mut landed = 0;
            for &(shape, master) in &shards {
                let mut blocks = vec![0.0; format.amax_blocks(orientation, shape)];
                let mut encode = vec![0.0; format.encode_blocks(orientation, shape)];
                partial_amax(format, orientation, via, shape, master, &mut blocks).unwrap();
                let bytes = format.compact_planes(orientation, shape).get(1).map_or(0, |plane| plane.bytes());
                let rows = &mut compact[landed..landed + bytes];
                fused_scale(format, orientation, shape, &blocks, tensor_amax, &mut encode, rows).unwrap();
                landed += bytes;
            }
            if orientation == Orientation::Rowwise {
                // Whoever wants values reads these rows as they landed.
                let of = |scale: &[u8]| {
                    let (data, mut values) = (&planes_of(&expected, orientation).data, vec![0.0; shape.elements()]);
                    let planes = Planes { data, scale };
                    dequantize(format, orientation, shape, planes, expected.tensor_scale, &mut values).unwrap();
                    values.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
                };
                prop_assert_eq!(of(&compact[..landed]), of(&planes_of(&expected, orientation).scale));
            }
            expand_scale(format, orientation, shape, &mut compact).unwrap();
            prop_assert_eq!(&compact, &planes_of(&expected, orientation).scale);

            // Gather into planes full of garbage, at fixed addresses.
            let mut gathered = expected.clone();
            for planes in [&mut gathered.rowwise, &mut gathered.columnwise].into_iter().flatten() {
                planes.data.fill(0xEE);
                planes.scale.fill(0xEE);
            }
            let address = planes_of(&gathered, orientation).scale.as_ptr();
            let sent: Vec<Planes<'_>> = sent.iter().map(|(planes, _)| planes.as_planes()).collect();
            gathered.receive(orientation, expected.amax, expected.tensor_scale, &sent).unwrap();
            prop_assert_eq!(planes_of(&gathered, orientation), planes_of(&expected, orientation));
            prop_assert_eq!(planes_of(&gathered, orientation).scale.as_ptr(), address);
            if format.derives_columnwise().is_ok() {
                prop_assert_eq!(&gathered.columnwise, &expected.columnwise);
            }
        }
    }

    /// FS-1, FS-2, FS-3 and FO-2, FO-3 for flat shards: any offsets, odd ones and empty ones included. CA-1,
    /// FO-4: guard bytes around every fragment, and the neighbours' nibbles in it, stay as they are.
    #[test]
    fn any_cut_into_flat_shards_merges_to_the_bytes_of_the_whole(
        (format, via, shape) in (weight_format(), via())
            .prop_flat_map(|(format, via)| (Just(format), Just(via), shape(format, 5))),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        seed in any::<u64>(),
    ) {
        const GUARD: usize = 8;
        let weight = weight(shape, seed);
        let expected = whole(format, via, shape, &weight);
        let mut bounds: Vec<usize> = cuts.iter().map(|cut| cut.index(shape.elements() + 1)).collect();
        bounds.extend([0, shape.elements()]);
        bounds.sort_unstable();
        let shards: Vec<FlatShard> = bounds.windows(2)
            .map(|pair| FlatShard { start: pair[0], len: pair[1] - pair[0] })
            .collect();
        let slice = |shard: &FlatShard| &weight[shard.start..][..shard.len];

        for &orientation in format.stored_orientations() {
            let mut blocks = vec![0.0; format.amax_blocks(orientation, shape)];
            let mut partial = vec![f32::NAN; blocks.len()];
            let mut amax = 0.0f32;
            for shard in &shards {
                let own = flat_amax(format, orientation, via, shape, *shard, slice(shard), &mut partial).unwrap();
                amax = amax.max(own);
                raise(&mut blocks, &partial);
            }
            let mut merged = OwnedPlanes::zeroed(format, orientation, shape);
            merged.data.fill(0xEE);
            let mut encode = vec![0.0; format.encode_blocks(orientation, shape)];
            let scale =
                fused_scale(format, orientation, shape, &blocks, amax, &mut encode, &mut merged.scale).unwrap();
            prop_assert_eq!(scale.to_bits(), expected.tensor_scale.to_bits());
            for shard in &shards {
                let len = shard.fragment(format).len();
                let mut guarded: Vec<u8> = (0..len + 2 * GUARD).map(|at| bits(seed, at as u64) as u8).collect();
                let before = guarded.clone();
                let fragment = &mut guarded[GUARD..GUARD + len];
                flat_cast(format, orientation, via, shape, *shard, slice(shard), &encode, fragment).unwrap();
                place_fragment(format, shape, *shard, &guarded[GUARD..GUARD + len], &mut merged.data).unwrap();
                for at in 0..guarded.len() {
                    let inside = (GUARD..GUARD + len).contains(&at);
                    let mask = if inside { shard.owned_mask(format, at - GUARD) } else { 0 };
                    prop_assert_eq!(guarded[at] & !mask, before[at] & !mask, "byte {} of {:?}", at, shard);
                }
            }
            prop_assert_eq!(&merged, planes_of(&expected, orientation));
        }
    }

    /// Conformance B1, B2: lossless where the format allows.
    #[test]
    fn derived_columnwise_planes_equal_quantizing_the_transpose(
        (format, via, shape) in (weight_format(), via())
            .prop_flat_map(|(format, via)| (Just(format), Just(via), shape(format, 9))),
        seed in any::<u64>(),
    ) {
        prop_assume!(format.derives_columnwise().is_ok());
        let weight = weight(shape, seed);
        let filled = format.whole_blocks(shape);
        let mut turned = Vec::with_capacity(filled.elements());
        for column in 0..shape.cols {
            turned.extend((0..filled.rows).map(|row| weight.get(row * shape.cols + column).copied().unwrap_or(0.0)));
        }
        let derived = whole(format, via, shape, &weight);
        let direct = quantize(format, Directions::Rowwise, via, filled.transposed(), &turned).unwrap();
        prop_assert_eq!(&derived.columnwise, &direct.rowwise);
        prop_assert_eq!(derived.tensor_scale.to_bits(), direct.tensor_scale.to_bits());

        // And derived again in place, over garbage.
        let mut again = derived.clone();
        let planes = again.columnwise.as_mut().unwrap();
        planes.data.fill(0xEE);
        planes.scale.fill(0xEE);
        again.derive_columnwise().unwrap();
        prop_assert_eq!(again, derived);
    }

    /// Conformance F4, and the bound of every other format.
    #[test]
    fn the_error_of_a_round_trip_is_within_the_bound_of_the_format(
        (format, shape) in prop::sample::select(Format::CANONICAL.to_vec())
            .prop_flat_map(|format| (Just(format), shape(format, 9))),
        seed in any::<u64>(),
    ) {
        let weight = normal(shape, seed);
        let quantized = whole(format, Via::None, shape, &weight);
        for (orientation, values) in [
            (Orientation::Rowwise, weight.clone()),
            (Orientation::Columnwise, random_weight::transposed(shape, &weight)),
        ] {
            let restored = quantized.dequantize(orientation).unwrap();
            let stored = if orientation == Orientation::Rowwise { shape } else { shape.transposed() };
            let bound = ErrorBound::new(format, stored, &values);
            for (at, (&restored, &value)) in restored.iter().zip(&values).enumerate() {
                let bound = bound.of(at, value);
                let error = (f64::from(restored) - f64::from(value)).abs();
                prop_assert!(error <= bound, "{format} {orientation} {at}: {value} → {restored}, bound {bound:e}");
            }
        }
    }
}

/// Largest error an element may have after quantizing and dequantizing.
struct ErrorBound {
    format: Format,
    shape: Shape,
    block: (usize, usize),
    block_amax: Vec<f32>,
    tensor_amax: f32,
}

impl ErrorBound {
    /// For `values`, a matrix of `shape` stored row-major.
    fn new(format: Format, shape: Shape, values: &[f32]) -> Self {
        let block = match format {
            Format::Nvfp4(Nvfp4Block::Tile16x16) => (16, 16),
            Format::Nvfp4(Nvfp4Block::Row1x16) => (1, 16),
            Format::Fp8Block(block) if block.tile == Fp8Tile::Tile128x128 => (128, 128),
            Format::Fp8Block(_) => (1, 128),
            Format::Mxfp8 => (1, 32),
            Format::F32 | Format::Bf16 | Format::Fp8Tensor(_) => (shape.rows, shape.cols),
        };
        let blocks = shape.rows.div_ceil(block.0) * shape.cols.div_ceil(block.1);
        let mut bound = Self { format, shape, block, block_amax: vec![0.0; blocks], tensor_amax: 0.0 };
        for (at, value) in values.iter().enumerate() {
            let block = bound.block_of(at);
            bound.block_amax[block] = bound.block_amax[block].max(value.abs());
            bound.tensor_amax = bound.tensor_amax.max(value.abs());
        }
        bound
    }

    fn block_of(&self, at: usize) -> usize {
        let (row, column) = (at / self.shape.cols, at % self.shape.cols);
        row / self.block.0 * self.shape.cols.div_ceil(self.block.1) + column / self.block.1
    }

    fn of(&self, at: usize, value: f32) -> f64 {
        let value = f64::from(value.abs());
        let block = f64::from(self.block_amax[self.block_of(at)]);
        // Half a unit of the mantissa, or half a subnormal step, which a power-of-two scale may double; a
        // hair more for the rounding of the scale.
        let fp8 = |element: Fp8Element| match element {
            Fp8Element::E4m3 => (value / 16.0).max(block / 448.0 * 2.0 / 1024.0) * 1.0001,
            Fp8Element::E5m2 => (value / 8.0).max(block / 57344.0 * 2.0 / 131_072.0) * 1.0001,
        };
        match self.format {
            Format::F32 => 0.0,
            Format::Bf16 => value / 256.0,
            Format::Nvfp4(_) => {
                // Codes 4 and 6 are two units apart, so one unit (block/6); the E4M3 scale is off by 1/16, or
                // by half its subnormal step, which counts six times at the largest code.
                let subnormal_step = f64::from(self.tensor_amax) / 2688.0 / 512.0;
                block / 6.0 * 1.07 + 7.0 * subnormal_step / 2.0
            }
            Format::Fp8Block(block) => fp8(block.element),
            Format::Mxfp8 => fp8(Fp8Element::E4m3),
            Format::Fp8Tensor(tensor) => fp8(tensor.element),
        }
    }
}

/// Values as random ones are, between −5 and 5, most of them larger than the tolerances.
fn uniform(shape: Shape, seed: u64) -> Vec<f32> {
    let value = |at| (bits(seed, at) >> 40) as f32 / (1_u64 << 24) as f32 * 10.0 - 5.0;
    (0..shape.elements() as u64).map(value).collect()
}

/// Conformance F4: the dimensions and tolerances, in planes of both directions and of one alone, and the proof
/// that the check can fail. All dimensions but the last are rows; a scalar is a row of one.
#[test]
fn f4_round_trips_are_close_to_the_value_and_far_from_its_negative() {
    let dimensions: [&[usize]; 8] =
        [&[], &[256], &[311], &[264], &[256, 512], &[250, 500], &[7, 5, 3], &[2, 3, 5, 3]];
    let elements = [(Fp8Element::E4m3, 0.125, 0.08), (Fp8Element::E5m2, 0.25, 0.125)];
    for dimensions in dimensions {
        let cols = dimensions.last().copied().unwrap_or(1);
        let shape = Shape::new(dimensions.iter().product::<usize>() / cols, cols);
        let weight = uniform(shape, 5);
        let turned = random_weight::transposed(shape, &weight);
        for ((element, relative, absolute), tile) in elements
            .into_iter()
            .flat_map(|element| [Fp8Tile::Tile128x128, Fp8Tile::Row1x128].map(|tile| (element, tile)))
        {
            let scale = ScaleRule::PowerOfTwo;
            let format = Format::Fp8Block(Fp8Block { tile, element, scale, epsilon: Epsilon::ZERO });
            for (directions, orientation, values) in [
                (Directions::Both, Orientation::Rowwise, &weight),
                (Directions::Both, Orientation::Columnwise, &turned),
                (Directions::Rowwise, Orientation::Rowwise, &weight),
                (Directions::Columnwise, Orientation::Columnwise, &turned),
            ] {
                let what = format!("{format} {dimensions:?} {directions:?} {orientation}");
                let quantized = quantize(format, directions, Via::None, shape, &weight).unwrap();
                let restored = quantized.dequantize(orientation).unwrap();
                assert_eq!(restored.len(), values.len(), "{what}");
                let close = |sign: f32| {
                    let within = |(y, x): (&f32, &f32)| (y - sign * x).abs() <= absolute + relative * x.abs();
                    restored.iter().zip(values).filter(|pair| within(*pair)).count()
                };
                assert_eq!(close(1.0), values.len(), "{what}");
                // Of values between −5 and 5, fewer than one in 50 is so small that its negative is close to it.
                assert!(close(-1.0) <= values.len() / 20, "{what}: {} of {}", close(-1.0), values.len());
            }
            if let [_, _, ..] = dimensions
                && tile == Fp8Tile::Row1x128
            {
                let quantized = whole(format, Via::None, shape, &weight);
                assert_eq!(quantized.view(dimensions).unwrap().dimensions(), dimensions);
            }
        }
    }
}
