//! Weights whose rows end within a block, such as a vocabulary of 50257: law FO-6.

use warpweft_format::{
    Directions, FlatShard, Format, Orientation, OwnedPlanes, Quantized, Shape, Via, dequantize,
    dequantize_bf16, partial_amax, quantize, transpose,
};
use warpweft_testing::random_weight::{normal, transposed};
use warpweft_testing::staged;

const COLS: usize = 96;
/// Around the edges of blocks of 16, 32 and 128 rows.
const ROWS: [usize; 11] = [1, 15, 17, 31, 33, 48, 100, 127, 129, 145, 257];

/// Every format over every number of rows.
fn cases() -> impl Iterator<Item = (Format, Shape)> {
    Format::CANONICAL.into_iter().flat_map(|format| ROWS.map(|rows| (format, Shape::new(rows, COLS))))
}

/// The weight, and rows of zeros up to the end of the last block.
fn filled(format: Format, shape: Shape, weight: &[f32]) -> (Shape, Vec<f32>) {
    let whole = format.whole_blocks(shape);
    let mut filled = weight.to_vec();
    filled.resize(whole.elements(), 0.0);
    (whole, filled)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn planes_hold_whole_blocks_of_16_rows_in_nvfp4_of_32_in_mxfp8_and_the_rows_there_are_elsewhere() {
    let rows = |format: Format| format.whole_blocks(Shape::new(50_257, COLS)).rows;
    for format in Format::CANONICAL {
        let expected = match format {
            Format::Nvfp4(_) => 50_272,
            Format::Mxfp8 => 50_272,
            _ => 50_257,
        };
        assert_eq!(
            (rows(format), format.planes(Orientation::Rowwise, Shape::new(50_257, COLS))[0].rows),
            (expected, expected)
        );
    }
    assert_eq!(Format::NVFP4_2D.whole_blocks(Shape::new(50_241, COLS)).rows, 50_256);
    assert_eq!(Format::Mxfp8.whole_blocks(Shape::new(50_241, COLS)).rows, 50_272);
    // A row of a columnwise plane is as long as the rows are many.
    let columnwise = Format::NVFP4_2D.planes(Orientation::Columnwise, Shape::new(50_257, COLS));
    assert_eq!((columnwise[0].rows, columnwise[0].cols), (COLS, 50_272 / 2));
    assert_eq!((columnwise[1].rows, columnwise[1].cols), (128, 3144));
}

/// FO-6.
#[test]
fn planes_and_amax_are_those_of_the_weight_with_rows_of_zeros_and_values_are_its_own_rows() {
    for (format, shape) in cases() {
        for via in [Via::None, Via::Bf16] {
            let weight = normal(shape, shape.rows as u64);
            let (whole, filled) = filled(format, shape, &weight);
            let found = quantize(format, Directions::Both, via, shape, &weight).unwrap();
            let expected = quantize(format, Directions::Both, via, whole, &filled).unwrap();
            assert!(found == Quantized { shape, ..expected.clone() }, "{format} {shape} {via:?}");

            let rows = expected.dequantize(Orientation::Rowwise).unwrap();
            let own = &rows[..shape.elements()];
            assert!(bits(&found.dequantize(Orientation::Rowwise).unwrap()) == bits(own), "{format} {shape}");
            // Back to rows, of which those of the weight are the first.
            let columns = expected.dequantize(Orientation::Columnwise).unwrap();
            let columns = transposed(whole.transposed(), &columns)[..shape.elements()].to_vec();
            let columns = bits(&transposed(shape, &columns));
            assert!(bits(&found.dequantize(Orientation::Columnwise).unwrap()) == columns, "{format} {shape}");
        }
    }
}

/// FO-4, FO-6: what memory held where no row of the weight is reaches no byte, and what planes hold there no value.
#[test]
fn nothing_past_the_last_row_reaches_a_byte_or_a_value() {
    for (format, shape) in cases() {
        let weight = normal(shape, 5);
        let expected = quantize(format, Directions::Both, Via::None, shape, &weight).unwrap();
        for &orientation in format.stored_orientations() {
            let mut planes = OwnedPlanes::zeroed(format, orientation, shape);
            planes.data.fill(0xEE);
            planes.scale.fill(0xEE);
            let target = planes.as_planes_mut();
            staged::quantize(format, orientation, Via::None, shape, &weight, None, target);
            let known = match orientation {
                Orientation::Rowwise => &expected.rowwise,
                Orientation::Columnwise => &expected.columnwise,
            };
            assert!(known.as_ref() == Some(&planes), "{format} {orientation} {shape}");

            // Codes of rows that are not there.
            let values = |planes: &OwnedPlanes| {
                let mut values = vec![0.0; shape.elements()];
                let (planes, scale) = (planes.as_planes(), expected.tensor_scale);
                dequantize(format, orientation, shape, planes, scale, &mut values).unwrap();
                let mut rounded = vec![half::bf16::ZERO; shape.elements()];
                dequantize_bf16(format, orientation, shape, planes, scale, &mut rounded).unwrap();
                assert!(
                    values
                        .iter()
                        .zip(&rounded)
                        .all(|(value, rounded)| half::bf16::from_f32(*value) == *rounded)
                );
                bits(&values)
            };
            let before = values(&planes);
            let own = FlatShard { start: 0, len: shape.elements() }.fragment(format).end;
            planes.data[own..].fill(0x77);
            assert!(values(&planes) == before, "{format} {orientation} {shape}");
        }
        if format.derives_columnwise().is_ok() {
            let mut planes = OwnedPlanes::zeroed(format, Orientation::Columnwise, shape);
            planes.data.fill(0xEE);
            planes.scale.fill(0xEE);
            let rowwise = expected.rowwise.as_ref().unwrap().as_planes();
            transpose(format, shape, rowwise, planes.as_planes_mut()).unwrap();
            assert!(expected.columnwise.as_ref() == Some(&planes), "{format} {shape}");
        }
    }
}

/// FO-6: an amax is that of the rows there are, also where every value is below the one it would have of others.
#[test]
fn rows_that_complete_a_block_raise_no_amax_and_lower_none() {
    for (format, shape) in cases().filter(|(format, _)| format.check_weight().is_ok()) {
        let (weight, rowwise) = (normal(shape, 6), Orientation::Rowwise);
        let (whole, filled) = filled(format, shape, &weight);
        let amaxes = |shape, weight: &[f32]| {
            let mut blocks = vec![f32::NAN; format.amax_blocks(rowwise, shape)];
            let amax = partial_amax(format, rowwise, Via::None, shape, weight, &mut blocks).unwrap();
            (amax, blocks)
        };
        let ((found, own), (expected, all)) = (amaxes(shape, &weight), amaxes(whole, &filled));
        assert_eq!(found, expected, "{format} {shape}");
        assert_eq!(own, all[..own.len()], "{format} {shape}");
        assert!(all[own.len()..].iter().all(|amax| *amax == 0.0), "{format} {shape}");
    }
}

/// FO-3, GA-2: the last shard of a weight is completed with zeros, as its owner stores it.
#[test]
fn a_gathered_weight_takes_the_completed_rows_of_its_last_shard() {
    for format in [Format::NVFP4_2D, Format::Mxfp8] {
        let (shape, tile) = (Shape::new(113, COLS), format.row_tile());
        let weight = normal(shape, 7);
        let expected = quantize(format, Directions::Both, Via::None, shape, &weight).unwrap();
        let (_, filled) = filled(format, shape, &weight);
        for &orientation in format.stored_orientations() {
            let shards: Vec<Quantized> = filled
                .chunks(2 * tile * COLS)
                .map(|master| {
                    let rows = Shape::new(master.len() / COLS, COLS);
                    let mut planes = OwnedPlanes::zeroed(format, orientation, rows);
                    let (amax, target) = (Some(expected.amax), planes.as_planes_mut());
                    staged::quantize(format, orientation, Via::None, rows, master, amax, target);
                    let mut shard =
                        Quantized { shape: rows, rowwise: None, columnwise: None, ..expected.clone() };
                    match orientation {
                        Orientation::Rowwise => shard.rowwise = Some(planes),
                        Orientation::Columnwise => shard.columnwise = Some(planes),
                    }
                    shard
                })
                .collect();
            let sent: Vec<_> = shards.iter().map(|shard| shard.sent_planes(orientation).unwrap()).collect();
            let mut gathered = expected.clone();
            for planes in [&mut gathered.rowwise, &mut gathered.columnwise].into_iter().flatten() {
                planes.data.fill(0xEE);
            }
            gathered.receive(orientation, expected.amax, expected.tensor_scale, &sent).unwrap();
            match orientation {
                Orientation::Rowwise => assert_eq!(gathered.rowwise, expected.rowwise),
                Orientation::Columnwise => assert_eq!(gathered.columnwise, expected.columnwise),
            }
        }
    }
}
