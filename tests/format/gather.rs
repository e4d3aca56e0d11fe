//! Gathering and viewing quantized weights: conformance E1, E2, E4, E5, E7, E8, A8, F7.

use warpweft_format::{
    Directions, Format, FormatError, Orientation, OwnedPlanes, Planes, Quantized, ScaleLayout, Shape, Via,
    quantize,
};
use warpweft_testing::random_weight::{self, normal};
use warpweft_testing::staged;

fn whole(format: Format, shape: Shape) -> Quantized {
    quantize(format, Directions::Both, Via::Bf16, shape, &normal(shape, 3)).unwrap()
}

/// The row shards of [`whole`], each with its padded planes, as a rank holds them.
fn shards(format: Format, shape: Shape, ranks: usize) -> Vec<Quantized> {
    shards_of(&whole(format, shape), &normal(shape, 3), ranks)
}

/// Those of `weight`, of which `whole` was made.
fn shards_of(whole: &Quantized, weight: &[f32], ranks: usize) -> Vec<Quantized> {
    let (format, shape) = (whole.format, whole.shape);
    let rows = Shape::new(shape.rows / ranks, shape.cols);
    let shard = |master: &[f32]| {
        let planes = |orientation| {
            let mut planes = OwnedPlanes::zeroed(format, orientation, rows);
            let (amax, target) = (Some(whole.amax), planes.as_planes_mut());
            staged::quantize(format, orientation, Via::Bf16, rows, master, amax, target);
            planes
        };
        let stores = |orientation| format.stored_orientations().contains(&orientation);
        Quantized {
            shape: rows,
            rowwise: Some(planes(Orientation::Rowwise)),
            columnwise: stores(Orientation::Columnwise).then(|| planes(Orientation::Columnwise)),
            ..whole.clone()
        }
    };
    weight.chunks_exact(rows.elements()).map(shard).collect()
}

fn empty_like(weight: &Quantized) -> Quantized {
    let mut empty = weight.clone();
    for planes in [&mut empty.rowwise, &mut empty.columnwise].into_iter().flatten() {
        planes.data.fill(0xEE);
        planes.scale.fill(0xEE);
    }
    (empty.amax, empty.tensor_scale) = (f32::NAN, f32::NAN);
    empty
}

/// What shards send in a gather of rows.
fn sent(shards: &[Quantized]) -> Vec<Planes<'_>> {
    shards.iter().map(|shard| shard.sent_planes(Orientation::Rowwise).unwrap()).collect()
}

/// The case's shapes.
const GATHERED: [(usize, usize); 3] = [(512, 256), (640, 128), (256, 1024)];

/// GA-1, PN-1, PN-2.
#[test]
fn e1_nvfp4_gathers_two_planes_and_derives_the_rest() {
    for (rows, cols) in GATHERED {
        for ranks in [2, 4] {
            let shape = Shape::new(rows, cols);
            let expected = whole(Format::NVFP4_2D, shape);
            let shards = shards(Format::NVFP4_2D, shape, ranks);
            for Planes { data, scale } in sent(&shards) {
                assert_eq!(data.len(), rows / ranks * cols / 2);
                assert_eq!(scale.len(), rows / ranks * (cols / 16), "no padding rows are sent");
            }
            let mut gathered = empty_like(&expected);
            gathered
                .receive(Orientation::Rowwise, expected.amax, expected.tensor_scale, &sent(&shards))
                .unwrap();
            let planes = [gathered.rowwise.as_ref().unwrap(), gathered.columnwise.as_ref().unwrap()];
            let padded = |count: usize, multiple: usize| count.next_multiple_of(multiple);
            for (planes, along, across) in [(planes[0], rows, cols), (planes[1], cols, rows)] {
                assert_eq!(planes.data.len(), along * across / 2);
                assert_eq!(planes.scale.len(), padded(along, 128) * padded(across / 16, 4));
            }
            assert_eq!(gathered, expected);
        }
    }
}

/// Every byte of the gathered weight is a byte of a shard.
#[test]
fn e2_gathered_bytes_are_those_of_the_shards_one_after_the_other_and_so_are_the_values() {
    for (rows, cols) in GATHERED {
        for ranks in [2, 4] {
            let shape = Shape::new(rows, cols);
            let shards = shards(Format::NVFP4_2D, shape, ranks);
            let (amax, scale) = (shards[0].amax, shards[0].tensor_scale);
            assert!(shards.iter().all(|shard| (shard.amax, shard.tensor_scale) == (amax, scale)));
            let mut gathered = empty_like(&whole(Format::NVFP4_2D, shape));
            gathered.receive(Orientation::Rowwise, amax, scale, &sent(&shards)).unwrap();
            assert_eq!((gathered.amax, gathered.tensor_scale), (amax, scale), "they are preserved");

            let rowwise = gathered.rowwise.as_ref().unwrap();
            let own = |shard: &Quantized| shard.rowwise.clone().unwrap();
            let data: Vec<u8> = shards.iter().flat_map(|shard| own(shard).data).collect();
            assert_eq!(rowwise.data, data);
            let pitch = (cols / 16).next_multiple_of(4);
            let valid = |shard: &Quantized| own(shard).scale[..shard.shape.rows * pitch].to_vec();
            let scales: Vec<u8> = shards.iter().flat_map(valid).collect();
            assert_eq!(rowwise.scale, scales, "no shape of the case has padding rows");

            let values: Vec<f32> =
                shards.iter().flat_map(|shard| shard.dequantize(Orientation::Rowwise).unwrap()).collect();
            assert_eq!(gathered.dequantize(Orientation::Rowwise).unwrap(), values);
            let columnwise = gathered.dequantize(Orientation::Columnwise).unwrap();
            assert!(columnwise == random_weight::transposed(Shape::new(rows, cols), &values));
        }
    }
}

/// GA-2, QW-2. The list keeps such a case back: what was gathered before is overwritten where it lies.
#[test]
fn a_second_gather_of_other_values_updates_the_same_planes_at_the_same_addresses() {
    for format in Format::CANONICAL.into_iter().filter(|format| format.check_weight().is_ok()) {
        let shape = Shape::new(768, 192);
        let mut gathered = empty_like(&whole(format, shape));
        let addresses = |weight: &Quantized| {
            let all = [&weight.rowwise, &weight.columnwise];
            all.map(|planes| planes.as_ref().map(|planes| (planes.data.as_ptr(), planes.scale.as_ptr())))
        };
        let before = addresses(&gathered);
        for (seed, factor) in [(41, 1.0), (42, 0.03), (43, 70.0)] {
            let weight: Vec<f32> = normal(shape, seed).iter().map(|value| value * factor).collect();
            let expected = quantize(format, Directions::Both, Via::Bf16, shape, &weight).unwrap();
            assert_ne!(gathered, expected);
            let shards = shards_of(&expected, &weight, 3);
            for &orientation in format.stored_orientations() {
                let sent: Vec<_> =
                    shards.iter().map(|shard| shard.sent_planes(orientation).unwrap()).collect();
                gathered.receive(orientation, expected.amax, expected.tensor_scale, &sent).unwrap();
            }
            assert_eq!(gathered, expected, "{format}, nothing is left of the gather before");
            assert_eq!(addresses(&gathered), before, "{format}");
        }
    }
}

/// Shards of an odd number of tiles, whose scale rows the padded planes of a rank are not made of; widths for which
/// columnwise scales, too, have more rows than the padded rowwise ones would give.
#[test]
fn nvfp4_shards_of_three_tiles_gather_and_derive_at_widths_that_pad_either_direction() {
    for cols in [16, 64, 80, 272, 320] {
        for ranks in [1, 3, 5] {
            let shape = Shape::new(48 * ranks, cols);
            let (expected, weight) = (whole(Format::NVFP4_2D, shape), normal(shape, 3));
            let mut gathered = empty_like(&expected);
            let shards = shards(Format::NVFP4_2D, shape, ranks);
            let (amax, scale) = (expected.amax, expected.tensor_scale);
            gathered.receive(Orientation::Rowwise, amax, scale, &sent(&shards)).unwrap();
            let turned = random_weight::transposed(shape, &weight);
            let direct =
                quantize(Format::NVFP4_2D, Directions::Rowwise, Via::Bf16, shape.transposed(), &turned);
            assert_eq!(gathered.columnwise, direct.unwrap().rowwise, "{shape}");
            assert_eq!(gathered, expected, "{shape}");
        }
    }
}

/// GA-3: nothing is sent of planes that are not there or not those of the shard's shape.
#[test]
fn a_shard_without_the_planes_of_its_shape_sends_nothing_and_says_what_is_wrong() {
    let whole = whole(Format::NVFP4_2D, Shape::new(64, 96));
    let refusal = |spoil: fn(&mut Quantized)| {
        let mut shard = whole.clone();
        spoil(&mut shard);
        shard.sent_planes(Orientation::Rowwise).unwrap_err()
    };
    let missing = FormatError::MissingPlanes { orientation: Orientation::Rowwise };
    assert_eq!(refusal(|shard| shard.rowwise = None), missing);
    let error = refusal(|shard| shard.shape.rows = 72);
    assert!(matches!(error, FormatError::RowsNotAligned { multiple: 16, .. }), "{error}");
    assert!(error.to_string().contains("pad the rows to 80"), "{error}");
    let error = refusal(|shard| shard.shape.rows = 80);
    assert!(matches!(error, FormatError::Length { what: "the data plane", .. }), "{error}");
    let error = refusal(|shard| shard.rowwise.as_mut().unwrap().scale.truncate(32 * 8));
    assert!(matches!(error, FormatError::ScaleLength { .. }), "{error}");
}

/// QW-1.
#[test]
fn e4_swizzled_scales_are_refused_before_anything_else() {
    let mut weight = whole(Format::NVFP4_2D, Shape::new(512, 256));
    weight.swizzle().unwrap();
    // Also wrong in every other way: the layout is what the error is about.
    weight.rowwise = None;
    let error = weight.sent_planes(Orientation::Rowwise).unwrap_err();
    assert!(matches!(error, FormatError::Swizzled { .. }));
    assert!(error.to_string().contains("swizzled"), "{error}");
    assert!(matches!(weight.derive_columnwise(), Err(FormatError::Swizzled { .. })));
    assert!(matches!(weight.dequantize(Orientation::Columnwise), Err(FormatError::Swizzled { .. })));
    assert!(matches!(weight.receive(Orientation::Rowwise, 1.0, 1.0, &[]), Err(FormatError::Swizzled { .. })));
    assert!(matches!(weight.view(&[2, 256, 256]), Err(FormatError::Swizzled { .. })));
}

#[test]
fn a8_swizzling_sets_the_flag_for_aligned_and_unaligned_shapes() {
    for (rows, cols) in [(128, 128), (256, 512), (128, 192), (64, 128)] {
        let mut weight = whole(Format::NVFP4_2D, Shape::new(rows, cols));
        weight.swizzle().unwrap();
        assert_eq!(weight.scale_layout, ScaleLayout::Swizzled);
        let once = weight.clone();
        weight.swizzle().unwrap();
        assert_eq!(weight, once, "swizzling twice is swizzling once");
    }
}

/// GA-2, PN-3, FO-4: the planes that receive are full of litter, padding rows too.
#[test]
fn e7_mxfp8_shards_of_96_rows_gather_without_their_padding() {
    for ranks in [1, 2, 3, 5] {
        let shape = Shape::new(96 * ranks, 128);
        let expected = whole(Format::Mxfp8, shape);
        let shards = shards(Format::Mxfp8, shape, ranks);
        let mut gathered = empty_like(&expected);
        for orientation in [Orientation::Rowwise, Orientation::Columnwise] {
            let sent: Vec<Planes<'_>> =
                shards.iter().map(|shard| shard.sent_planes(orientation).unwrap()).collect();
            gathered.receive(orientation, expected.amax, 1.0, &sent).unwrap();
        }
        assert_eq!(gathered, expected);
    }
}

/// GA-3, QW-2.
#[test]
fn e8_scales_of_another_geometry_than_the_data_leave_the_weight_unchanged() {
    let shape = Shape::new(256, 256);
    let mut weight = whole(Format::FP8_BLOCK128_POW2, shape);
    let before = weight.clone();
    let data = vec![0; shape.elements()];
    // 3×2 scales, padded to 3×4, for data of 2×2 tiles.
    let sent = Planes { data: &data, scale: &[0; 3 * 4 * 4] };
    let error = weight.receive(Orientation::Rowwise, 1.0, 1.0, &[sent]).unwrap_err();
    assert!(matches!(error, FormatError::ShardMismatch { shard: 0, .. }), "{error}");
    assert_eq!(weight, before);
}

/// GA-3, QW-2.
#[test]
fn shards_that_do_not_add_up_or_split_a_block_leave_the_weight_unchanged() {
    let shape = Shape::new(256, 256);
    for format in [Format::NVFP4_2D, Format::FP8_BLOCK128_POW2, Format::Mxfp8, Format::FP8_TENSOR_E4M3] {
        let mut weight = whole(format, shape);
        let before = weight.clone();
        let shards = shards(format, shape, 2);
        let sent = shards[0].sent_planes(Orientation::Rowwise).unwrap();
        for wrong in [vec![sent], vec![sent; 3], vec![]] {
            let error = weight.receive(Orientation::Rowwise, 1.0, 1.0, &wrong).unwrap_err();
            assert!(matches!(error, FormatError::ShardMismatch { .. }), "{format}: {error}");
        }
        let torn = Planes { data: &sent.data[1..], ..sent };
        assert!(weight.receive(Orientation::Rowwise, 1.0, 1.0, &[torn, sent]).is_err());
        assert_eq!(weight, before);
    }
}

#[test]
fn a_shard_whose_rows_cut_a_block_cannot_be_sent() {
    let weight = whole(Format::FP8_BLOCK128_POW2, Shape::new(64, 128));
    let error = weight.sent_planes(Orientation::Rowwise).unwrap_err();
    assert!(matches!(error, FormatError::RowsNotAligned { multiple: 128, .. }), "{error}");
    let weight = whole(Format::FP8_BLOCK1X128_POW2, Shape::new(128, 128));
    let error = weight.sent_planes(Orientation::Rowwise).unwrap_err();
    assert!(matches!(error, FormatError::NotAWeightFormat { .. }), "{error}");
}

#[test]
fn e5_identity_views_and_whole_slices_alias_the_weight() {
    for format in Format::CANONICAL {
        let weight = whole(format, Shape::new(256, 128));
        let same = |view: warpweft_format::View<'_>| {
            std::ptr::eq(view.weight(), &raw const weight) && view.dimensions() == [256, 128]
        };
        assert!(same(weight.view(&[256, 128]).unwrap()));
        assert!(same(weight.as_strided([256, 128], [128, 1], 0).unwrap()));
        assert!(same(weight.slice(0, 0..256).unwrap()));
        assert!(same(weight.slice(1, 0..128).unwrap()));
        for refused in [
            weight.as_strided([256, 128], [128, 1], 1),
            weight.as_strided([128, 256], [1, 128], 0),
            weight.slice(0, 0..128),
            weight.slice(1, 16..128),
            weight.slice(2, 0..1),
            weight.view(&[256, 64]),
            weight.view(&[]),
        ] {
            assert!(matches!(refused, Err(FormatError::ViewRefused { .. })), "{format}");
        }
    }
}

/// Where a view is possible it is the weight itself, of other dimensions: nothing is copied.
#[test]
fn f7_a_view_may_split_the_rows_but_not_the_blocks() {
    let check = |format: Format, allowed: &[&[usize]], refused: &[&[usize]]| {
        let weight = whole(format, Shape::new(256, 128));
        let before = weight.clone();
        for dimensions in allowed {
            let view = weight.view(dimensions).unwrap();
            assert_eq!(view.dimensions(), *dimensions, "{format}");
            assert!(std::ptr::eq(view.weight(), &raw const weight), "{format} {dimensions:?}");
        }
        for dimensions in refused {
            let error = weight.view(dimensions).unwrap_err();
            assert!(matches!(error, FormatError::ViewRefused { .. }), "{format} {dimensions:?}: {error}");
        }
        assert_eq!(weight, before, "{format}");
    };
    let rows: &[usize] = &[2, 128, 128];
    let parts: &[usize] = &[2, 4, 32, 128];
    let inner: [&[usize]; 4] = [&[128, 256], &[512, 64], &[256, 2, 64], &[256, 128, 1]];
    for format in [Format::NVFP4_2D, Format::NVFP4_1D, Format::FP8_BLOCK1X128_POW2, Format::Mxfp8] {
        check(format, &[&[256, 128], &[1, 256, 128], rows, parts], &inner);
    }
    let refused = [&inner[..], &[rows, parts]].concat();
    check(Format::FP8_BLOCK128_POW2, &[&[256, 128], &[1, 256, 128]], &refused);
    for format in [Format::FP8_TENSOR_E4M3, Format::F32, Format::Bf16] {
        check(format, &[&inner[..], &[rows, parts]].concat(), &[&[256, 127], &[]]);
    }
}

#[test]
fn mxfp8_splits_into_chunks_with_their_own_padding() {
    let shape = Shape::new(160, 96);
    let weight = whole(Format::Mxfp8, shape);
    let chunks = weight.split_rows(64).unwrap();
    assert_eq!(chunks.iter().map(|chunk| chunk.shape.rows).collect::<Vec<_>>(), [64, 64, 32]);
    for (chunk, values) in chunks.iter().zip(normal(shape, 3).chunks(64 * 96)) {
        let direct = quantize(Format::Mxfp8, Directions::Both, Via::Bf16, chunk.shape, values).unwrap();
        assert_eq!((&chunk.rowwise, &chunk.columnwise), (&direct.rowwise, &direct.columnwise));
    }
    assert!(matches!(weight.split_rows(48), Err(FormatError::ViewRefused { .. })));
    assert!(matches!(weight.split_rows(0), Err(FormatError::ViewRefused { .. })));
    let nvfp4 = whole(Format::NVFP4_2D, Shape::new(160, 96));
    assert!(matches!(nvfp4.split_rows(32), Err(FormatError::ViewRefused { .. })));
}

/// QW-2.
#[test]
fn a_copy_keeps_addresses_and_needs_the_same_shape() {
    let source = whole(Format::NVFP4_2D, Shape::new(64, 64));
    let mut target = empty_like(&source);
    let address = target.rowwise.as_ref().unwrap().data.as_ptr();
    target.copy_from(&source).unwrap();
    assert_eq!(target, source);
    assert_eq!(target.rowwise.as_ref().unwrap().data.as_ptr(), address);
    let other = whole(Format::NVFP4_2D, Shape::new(64, 80));
    assert!(matches!(target.copy_from(&other), Err(FormatError::ViewRefused { .. })));
    assert_eq!(target, source);
}

#[test]
fn a_copy_writes_the_planes_that_both_have_and_makes_none() {
    for format in Format::CANONICAL {
        let source = whole(format, Shape::new(64, 96));
        for (lacks_rowwise, lacks_columnwise) in [(true, false), (false, true)] {
            let strip = |weight: &Quantized| Quantized {
                rowwise: weight.rowwise.clone().filter(|_| !lacks_rowwise),
                columnwise: weight.columnwise.clone().filter(|_| !lacks_columnwise),
                ..weight.clone()
            };
            let mut target = strip(&empty_like(&source));
            target.copy_from(&source).unwrap();
            assert_eq!(target, strip(&source), "{format}: the source has more");
            let mut target = empty_like(&source);
            let litter = target.clone();
            target.copy_from(&strip(&source)).unwrap();
            let kept = Quantized {
                rowwise: if lacks_rowwise { litter.rowwise } else { source.rowwise.clone() },
                columnwise: if lacks_columnwise { litter.columnwise } else { source.columnwise.clone() },
                ..source.clone()
            };
            assert_eq!(target, kept, "{format}: the target has more");
        }
    }
}
