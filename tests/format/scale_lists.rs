//! Scales of many amaxes, alone and in lists: conformance D1, and the same for the powers of two of MXFP8.
//!
//! The list's tensors of amaxes are the block amaxes of weights. Their data is not needed: a rank that owns no
//! slice computes every scale from the amaxes that the collective brings. There are no chunks to choose, for a
//! call takes a list of any length; what a GPU makes of a list is compared with the CPU in `tests/backend_bodies`.

use std::convert::Infallible;

use warpweft_format::{
    Epsilon, FlatShard, Format, Fp8Block, Fp8Element, Fp8Scale, Fp8Tensor, Fp8Tile, MasterWeight,
    Orientation, OwnedPlanes, PlanesMut, ScaleRule, Shape, Via, Workspace, fused_scale,
    quantize_master_weights, reference,
};
use warpweft_testing::random_weight::bits;

/// Every exponent with many mantissas, and what has no scale.
fn amaxes() -> Vec<f32> {
    let mut amaxes = vec![0.0, f32::MAX, f32::INFINITY, f32::from_bits(1), f32::MIN_POSITIVE];
    for exponent in 0..255_u32 {
        let mantissas = (0..40).map(|n| bits(8, u64::from(exponent) * 40 + n) as u32 & 0x007F_FFFF);
        amaxes.extend(mantissas.chain([0, 1]).map(|mantissa| f32::from_bits(exponent << 23 | mantissa)));
    }
    amaxes
}

/// Element, rule and epsilon of every row of the case.
fn settings() -> impl Iterator<Item = (Fp8Element, ScaleRule, Epsilon)> {
    [Fp8Element::E4m3, Fp8Element::E5m2].into_iter().flat_map(|element| {
        [ScaleRule::PowerOfTwo, ScaleRule::Float32]
            .into_iter()
            .flat_map(move |rule| [0.0, 100.0].map(|epsilon| (element, rule, Epsilon::new(epsilon).unwrap())))
    })
}

/// Amaxes in an order of their own for every weight of a list, with what the reference makes of them.
struct Known {
    amaxes: Vec<f32>,
    encode: Vec<f32>,
}

impl Known {
    fn new(element: Fp8Element, rule: ScaleRule, epsilon: Epsilon) -> Self {
        let amaxes = amaxes();
        let encode = amaxes.iter().map(|amax| reference::fp8_scale(element, rule, epsilon, *amax)).collect();
        Self { amaxes, encode }
    }

    fn place(&self, weight: usize, block: usize) -> usize {
        (block * 7919 + weight * 104_729) % self.amaxes.len()
    }
}

#[test]
fn d1_a_scale_and_its_reciprocal_equal_the_reference_for_every_kind_of_amax() {
    for (element, rule, epsilon) in settings() {
        let known = Known::new(element, rule, epsilon);
        for (amax, encode) in known.amaxes.iter().zip(&known.encode) {
            let scale = Fp8Scale::new(element, rule, epsilon, *amax);
            assert_eq!(scale.encode.to_bits(), encode.to_bits(), "{element:?} {rule:?} {amax:e}");
            assert_eq!(scale.decode.to_bits(), (1.0 / encode).to_bits(), "{element:?} {rule:?} {amax:e}");

            let format = Format::Fp8Tensor(Fp8Tensor { element, scale: rule, epsilon });
            let (mut factor, rowwise) = ([f32::NAN], Orientation::Rowwise);
            let decode = fused_scale(format, rowwise, Shape::new(3, 5), &[], *amax, &mut factor, &mut []);
            assert_eq!(factor[0].to_bits(), encode.to_bits(), "{format} {amax:e}");
            assert_eq!(decode.unwrap().to_bits(), scale.decode.to_bits(), "{format} {amax:e}");
        }
    }
}

/// A weight with so many 128×128 tiles, side by side.
fn tiles(count: usize) -> Shape {
    Shape::new(128, 128 * count)
}

/// The sizes, each alone, by the stage.
#[test]
fn d1_scales_of_one_to_599_thousand_blocks_equal_the_reference_in_one_call() {
    let sizes = [1, 2, 555, 777, 33_333, 65_536, 65_537, 308_025, 598_829];
    for (element, rule, epsilon) in settings() {
        let known = Known::new(element, rule, epsilon);
        let block = Fp8Block { tile: Fp8Tile::Tile128x128, element, scale: rule, epsilon };
        for (number, size) in sizes.into_iter().enumerate() {
            let format = Format::Fp8Block(block);
            let blocks: Vec<f32> = (0..size).map(|at| known.amaxes[known.place(number, at)]).collect();
            let mut encode = vec![f32::NAN; size];
            let mut plane = vec![0xEE; format.planes(Orientation::Rowwise, tiles(size))[1].bytes()];
            fused_scale(format, Orientation::Rowwise, tiles(size), &blocks, 0.0, &mut encode, &mut plane)
                .unwrap();
            check_scales(&known, number, size, &plane);
            for (at, found) in encode.iter().enumerate() {
                let expected = known.encode[known.place(number, at)];
                assert_eq!(found.to_bits(), expected.to_bits(), "{format}, block {at} of {size}");
            }
        }
    }
}

/// The reciprocals of a weight of a list, and padding of zeros after them.
fn check_scales(known: &Known, weight: usize, size: usize, plane: &[u8]) {
    assert_eq!(plane.len(), size.next_multiple_of(4) * 4);
    for (at, found) in plane.as_chunks::<4>().0.iter().enumerate() {
        let expected = if at < size { 1.0 / known.encode[known.place(weight, at)] } else { 0.0 };
        assert_eq!(*found, expected.to_le_bytes(), "weight {weight}, block {at} of {size}");
    }
}

/// Scales of a list whose slices other ranks own. `amax` is that of a block of a weight.
fn scales_of_list(
    format: Format,
    shapes: &[Shape],
    amax: impl Fn(usize, usize) -> f32,
) -> Vec<Vec<OwnedPlanes>> {
    let litter = |orientation, shape| OwnedPlanes {
        data: Vec::new(),
        scale: vec![0xEE; format.planes(orientation, shape)[1].bytes()],
    };
    let stored = format.stored_orientations();
    let planes = |shape: &Shape| stored.iter().map(|orientation| litter(*orientation, *shape)).collect();
    let mut all: Vec<Vec<OwnedPlanes>> = shapes.iter().map(planes).collect();
    let mut scales = vec![f32::NAN; shapes.len()];
    let mut weights = Vec::new();
    for ((planes, tensor_scale), shape) in all.iter_mut().zip(&mut scales).zip(shapes) {
        let mut targets = planes.iter_mut().map(OwnedPlanes::as_planes_mut);
        let (shape, shard) = (*shape, FlatShard::EMPTY);
        let (rowwise, columnwise): (PlanesMut<'_>, _) = (targets.next().unwrap(), targets.next());
        let (master, delayed) = (&[][..], None);
        weights.push(MasterWeight {
            format,
            shape,
            shard,
            master,
            rowwise,
            columnwise,
            tensor_scale,
            delayed,
        });
    }
    let bring = |packed: &mut [f32]| {
        assert!(packed.iter().all(|amax| *amax == 0.0), "what is not owned has no amax");
        let mut rest = packed.iter_mut();
        for (number, shape) in shapes.iter().enumerate() {
            for orientation in stored {
                for (block, into) in rest.by_ref().take(format.amax_blocks(*orientation, *shape)).enumerate()
                {
                    *into = amax(number, block);
                }
            }
        }
        assert!(rest.next().is_none());
        Ok::<(), Infallible>(())
    };
    quantize_master_weights(&mut weights, Via::Bf16, &mut Workspace::default(), bring).unwrap();
    assert!(scales.iter().all(|scale| *scale == 1.0));
    all
}

/// The pairs of sizes, in one call of a list once and 55 times over; the largest pair once.
#[test]
fn d1_scales_of_a_list_of_weights_equal_the_reference_in_one_call() {
    let pairs = [(1, 777), (777, 555), (555, 33_333), (65_537, 555), (598_829, 308_025)];
    for (element, rule, epsilon) in settings() {
        let known = Known::new(element, rule, epsilon);
        let format = Format::Fp8Block(Fp8Block { tile: Fp8Tile::Tile128x128, element, scale: rule, epsilon });
        for ((first, second), times) in pairs
            .iter()
            .flat_map(|pair| [(*pair, 1), (*pair, 55)])
            .filter(|((first, _), times)| first * times < 4_000_000)
        {
            let sizes = [first, second].repeat(times);
            let shapes: Vec<Shape> = sizes.iter().copied().map(tiles).collect();
            let amax = |weight, block| known.amaxes[known.place(weight, block)];
            let all = scales_of_list(format, &shapes, amax);
            for (number, (planes, size)) in all.iter().zip(&sizes).enumerate() {
                check_scales(&known, number, *size, &planes[0].scale);
            }
        }
    }
}

/// Every bf16 value that is not negative, as amaxes of both orientations of two MXFP8 weights, 1 and 55 times over.
#[test]
fn mxfp8_scales_of_a_list_of_weights_are_those_of_the_reference_for_every_bf16_amax() {
    const BLOCKS: usize = 1 << 15;
    let value = |at: usize| f32::from_bits(((at % BLOCKS) as u32) << 16);
    let codes: Vec<u8> = (0..BLOCKS).map(|at| reference::e8m0(value(at) * (1.0 / 448.0))).collect();
    assert_eq!((codes[0], codes[0x7F80], codes[0x7FFF]), (0, 254, 255), "zero, infinity and NaN");
    for times in [1, 55] {
        // 32 rows of 1024 blocks, 32 768 columns of one block; and 64 rows of a block each.
        let shapes = [Shape::new(32, BLOCKS), Shape::new(64, 32)].repeat(times);
        let all = scales_of_list(Format::Mxfp8, &shapes, |weight, block| value(block + weight * 977));
        for (number, (planes, shape)) in all.iter().zip(&shapes).enumerate() {
            for (orientation, planes) in
                [Orientation::Rowwise, Orientation::Columnwise].into_iter().zip(planes)
            {
                let plane = Format::Mxfp8.planes(orientation, *shape)[1];
                let (rows, cols) = match orientation {
                    Orientation::Rowwise => (shape.rows, shape.cols / 32),
                    Orientation::Columnwise => (shape.rows / 32, shape.cols),
                };
                for (at, found) in planes.scale.iter().enumerate() {
                    let (row, col) = (at / plane.cols, at % plane.cols);
                    let expected = match row < rows && col < cols {
                        true => codes[(row * cols + col + number * 977) % BLOCKS],
                        false => 0,
                    };
                    assert_eq!(*found, expected, "weight {number} {orientation}, row {row}, column {col}");
                }
            }
        }
    }
}
