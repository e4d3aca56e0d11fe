//! The multi-tensor API, run by ranks on threads: conformance C1, C9, C10 and the laws MW-1..MW-3.

use std::convert::Infallible;
use std::sync::{Barrier, Mutex};

use warpweft_format::{
    AmaxChoice, DelayedScaling, Directions, FlatShard, Format, FormatError, MasterWeight, MasterWeightsError,
    Orientation, OwnedPlanes, PlanesMut, Shape, Via, Workspace, place_fragment, quantize,
    quantize_master_weights,
};
use warpweft_testing::random_weight::normal;

/// A maximum over threads.
struct MaxOverRanks {
    largest: Mutex<Vec<f32>>,
    arrived: Barrier,
}

impl MaxOverRanks {
    fn new(ranks: usize) -> Self {
        Self { largest: Mutex::default(), arrived: Barrier::new(ranks) }
    }

    fn reduce(&self, values: &mut [f32]) {
        {
            let mut largest = self.largest.lock().unwrap();
            largest.resize(values.len(), 0.0);
            for (largest, value) in largest.iter_mut().zip(values.iter()) {
                *largest = largest.max(*value);
            }
        }
        self.arrived.wait();
        values.copy_from_slice(&self.largest.lock().unwrap());
    }
}

/// The memory of one rank for one weight.
#[derive(Clone, PartialEq, Debug)]
struct Target {
    rowwise: OwnedPlanes,
    columnwise: Option<OwnedPlanes>,
    tensor_scale: f32,
}

impl Target {
    fn new(format: Format, shape: Shape, shard: FlatShard) -> Self {
        let planes = |orientation| {
            let mut planes = OwnedPlanes::zeroed(format, orientation, shape);
            planes.data = vec![0xA5; shard.fragment(format).len()];
            planes.scale.fill(0xA5);
            planes
        };
        let columnwise = (format == Format::Mxfp8).then(|| planes(Orientation::Columnwise));
        Self { rowwise: planes(Orientation::Rowwise), columnwise, tensor_scale: f32::NAN }
    }

    fn weight<'a>(
        &'a mut self,
        format: Format,
        shape: Shape,
        shard: FlatShard,
        master: &'a [f32],
    ) -> MasterWeight<'a> {
        MasterWeight {
            format,
            shape,
            shard,
            master,
            rowwise: self.rowwise.as_planes_mut(),
            columnwise: self.columnwise.as_mut().map(OwnedPlanes::as_planes_mut),
            tensor_scale: &mut self.tensor_scale,
            delayed: None,
        }
    }
}

/// Cuts `elements` into one slice per weight of `portions`, in order.
fn cut(elements: usize, portions: &[usize]) -> Vec<FlatShard> {
    let total: usize = portions.iter().sum();
    let mut before = 0;
    let bounds: Vec<usize> = portions
        .iter()
        .map(|portion| {
            before += portion;
            elements * before / total
        })
        .collect();
    let starts = std::iter::once(&0).chain(&bounds);
    starts.zip(&bounds).map(|(&start, &end)| FlatShard { start, len: end - start }).collect()
}

/// Runs all ranks over a list of weights; returns the targets by rank and weight.
fn run(list: &[(Format, Shape, Vec<f32>)], portions: &[usize], via: Via) -> Vec<Vec<Target>> {
    let reduction = MaxOverRanks::new(portions.len());
    std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let reduction = &reduction;
            scope.spawn(move || {
                let shard = |shape: Shape| cut(shape.elements(), portions)[rank];
                let mut targets: Vec<Target> =
                    list.iter().map(|&(format, shape, _)| Target::new(format, shape, shard(shape))).collect();
                let mut weights: Vec<MasterWeight<'_>> = list
                    .iter()
                    .zip(&mut targets)
                    .map(|((format, shape, weight), target)| {
                        let shard = shard(*shape);
                        target.weight(*format, *shape, shard, &weight[shard.start..][..shard.len])
                    })
                    .collect();
                let reduce = |amaxes: &mut [f32]| {
                    reduction.reduce(amaxes);
                    Ok::<(), Infallible>(())
                };
                quantize_master_weights(&mut weights, via, &mut Workspace::default(), reduce).unwrap();
                targets
            })
        };
        let ranks: Vec<_> = (0..portions.len()).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Merges the fragments of all ranks and compares with the weight quantized whole.
fn check_against_whole(list: &[(Format, Shape, Vec<f32>)], portions: &[usize], via: Via) {
    let ranks = run(list, portions, via);
    for (index, (format, shape, weight)) in list.iter().enumerate() {
        let (format, shape) = (*format, *shape);
        let expected = quantize(format, Directions::Both, via, shape, weight).unwrap();
        for &orientation in format.stored_orientations() {
            let of = |target: &Target| match orientation {
                Orientation::Rowwise => target.rowwise.clone(),
                Orientation::Columnwise => target.columnwise.clone().unwrap(),
            };
            let expected_planes = match orientation {
                Orientation::Rowwise => expected.rowwise.as_ref().unwrap(),
                Orientation::Columnwise => expected.columnwise.as_ref().unwrap(),
            };
            let mut data = vec![0x3C; expected_planes.data.len()];
            for (targets, shard) in ranks.iter().zip(cut(shape.elements(), portions)) {
                let target = &targets[index];
                assert_eq!(of(target).scale, expected_planes.scale, "{format} {orientation} scale");
                assert_eq!(target.tensor_scale.to_bits(), expected.tensor_scale.to_bits(), "{format}");
                place_fragment(format, shape, shard, &of(target).data, &mut data).unwrap();
            }
            assert_eq!(data, expected_planes.data, "{format} {orientation} data, portions {portions:?}");
        }
    }
}

/// One weight per format, of different shapes.
fn mixed_list() -> Vec<(Format, Shape, Vec<f32>)> {
    let weight_formats = Format::CANONICAL.into_iter().filter(|format| format.check_weight().is_ok());
    weight_formats
        .zip([(32, 96), (64, 64), (96, 160), (144, 272), (160, 33), (128, 64), (96, 48), (64, 80), (32, 32)])
        .map(|(format, (rows, cols))| {
            let shape = match format {
                Format::Nvfp4(_) => Shape::new(48, 80),
                Format::Mxfp8 => Shape::new(64, 96),
                _ => Shape::new(rows, cols),
            };
            (format, shape, normal(shape, rows as u64))
        })
        .collect()
}

#[test]
fn c1_nvfp4_from_two_even_shards_equals_the_full_quantize() {
    let shape = Shape::new(4096, 4096);
    check_against_whole(&[(Format::NVFP4_2D, shape, normal(shape, 1))], &[1, 1], Via::Bf16);
}

#[test]
fn c10_a_mixed_list_gives_the_bytes_of_the_whole_for_any_number_of_ranks_and_any_cut() {
    for portions in [&[1][..], &[1, 1], &[3, 5, 2], &[1, 0, 7, 11], &[0, 0, 1, 0], &[5, 1, 1, 1, 9]] {
        check_against_whole(&mixed_list(), portions, Via::Bf16);
        check_against_whole(&mixed_list(), portions, Via::None);
    }
}

/// Weights of more rows and columns than any kernel works on at once, in a list, cut unevenly: in the middle of
/// tiles, rows and bytes.
#[test]
fn large_weights_cut_unevenly_give_the_bytes_of_the_whole_in_every_format() {
    let formats = Format::CANONICAL.into_iter().filter(|format| format.check_weight().is_ok());
    let shape = Shape::new(608, 1120);
    let list: Vec<_> =
        (1..).zip(formats).map(|(seed, format)| (format, shape, normal(shape, seed))).collect();
    for portions in [&[7, 4, 6][..], &[1, 0, 41]] {
        assert!(cut(shape.elements(), portions).iter().any(|shard| shard.start % 2 == 1));
        check_against_whole(&list, portions, Via::Bf16);
    }
}

#[test]
fn c9_a_rank_without_a_slice_joins_the_collective_and_gets_the_same_scales() {
    let shape = Shape::new(128, 128);
    let list = [(Format::Mxfp8, shape, normal(shape, 9))];
    for portions in [[1, 0, 0], [0, 1, 0], [0, 0, 1]] {
        check_against_whole(&list, &portions, Via::Bf16);
    }
}

/// Runs one rank on `spoil`ed weights and asserts that it fails without having changed anything.
fn assert_unchanged(
    spoil: impl FnOnce(&mut Vec<MasterWeight<'_>>),
    reduce: impl FnOnce(&mut [f32]) -> Result<(), &'static str>,
) -> MasterWeightsError<&'static str> {
    let list = mixed_list();
    let whole = |shape: Shape| FlatShard { start: 0, len: shape.elements() };
    let fresh = || -> Vec<Target> {
        list.iter().map(|&(format, shape, _)| Target::new(format, shape, whole(shape))).collect()
    };
    let (mut targets, untouched) = (fresh(), fresh());
    let mut weights: Vec<MasterWeight<'_>> = list
        .iter()
        .zip(&mut targets)
        .map(|((format, shape, weight), target)| target.weight(*format, *shape, whole(*shape), weight))
        .collect();
    spoil(&mut weights);
    let result = quantize_master_weights(&mut weights, Via::Bf16, &mut Workspace::default(), reduce);
    for (target, untouched) in targets.iter().zip(untouched) {
        assert_eq!(target.rowwise, untouched.rowwise);
        assert_eq!(target.columnwise, untouched.columnwise);
        assert!(target.tensor_scale.is_nan());
    }
    result.unwrap_err()
}

fn must_not_be_called(_: &mut [f32]) -> Result<(), &'static str> {
    panic!("the collective ran although validation failed")
}

fn source(error: MasterWeightsError<&'static str>) -> (usize, FormatError) {
    match error {
        MasterWeightsError::Weight { index, source } => (index, source),
        other => panic!("{other}"),
    }
}

#[test]
fn mw1_a_bad_weight_at_the_end_of_the_list_leaves_all_others_unchanged() {
    let last = mixed_list().len() - 1;
    let spoiled = |spoil: fn(&mut MasterWeight<'_>)| {
        let error = assert_unchanged(|weights| spoil(weights.last_mut().unwrap()), must_not_be_called);
        let (index, error) = source(error);
        assert_eq!(index, last);
        error
    };
    let error = spoiled(|weight| weight.shard.start = 1);
    assert!(matches!(error, FormatError::FlatShardOutOfRange { .. }), "{error}");
    let error = spoiled(|weight| weight.master = &weight.master[1..]);
    assert!(matches!(error, FormatError::Length { what: "master", .. }), "{error}");
    let error = spoiled(|weight| weight.format = Format::NVFP4_1D);
    assert!(matches!(error, FormatError::NotAWeightFormat { .. }), "{error}");
    let error = spoiled(|weight| weight.shape = Shape::new(0, 4));
    assert!(matches!(error, FormatError::EmptyShape { .. }), "{error}");
    let error = spoiled(|weight| weight.rowwise = PlanesMut { data: &mut [], scale: &mut [] });
    assert!(matches!(error, FormatError::Length { what: "the fragment", .. }), "{error}");
    let error = spoiled(|weight| weight.columnwise = Some(PlanesMut { data: &mut [], scale: &mut [] }));
    assert!(matches!(error, FormatError::OrientationNotStored { .. }), "{error}");
}

#[test]
fn mw1_mxfp8_without_a_columnwise_target_is_refused() {
    let drop_columnwise = |weights: &mut Vec<MasterWeight<'_>>| {
        weights.iter_mut().for_each(|weight| weight.columnwise = None);
    };
    let (_, error) = source(assert_unchanged(drop_columnwise, must_not_be_called));
    assert_eq!(error, FormatError::MissingPlanes { orientation: Orientation::Columnwise });
}

#[test]
fn mw1_a_failed_collective_changes_nothing() {
    let error = assert_unchanged(|_| {}, |_| Err("a peer died"));
    assert!(matches!(error, MasterWeightsError::Collective("a peer died")));
}

#[test]
fn mw1_an_infinite_amax_from_another_rank_changes_nothing() {
    let reduce = |amaxes: &mut [f32]| {
        amaxes.fill(f32::INFINITY);
        Ok(())
    };
    let (index, error) = source(assert_unchanged(|_| {}, reduce));
    assert_eq!(mixed_list()[index].0, Format::NVFP4_2D);
    assert!(matches!(error, FormatError::NonFiniteAmax { .. }));
}

/// MW-2: one call, its length the same for a rank that owns everything and one that owns nothing.
#[test]
fn mw2_the_packed_buffer_has_the_same_length_on_every_rank() {
    let list = mixed_list();
    let lengths = [true, false].map(|owner| {
        let shard = |shape: Shape| FlatShard { start: 0, len: if owner { shape.elements() } else { 0 } };
        let mut targets: Vec<Target> =
            list.iter().map(|&(format, shape, _)| Target::new(format, shape, shard(shape))).collect();
        let mut weights: Vec<MasterWeight<'_>> = list
            .iter()
            .zip(&mut targets)
            .map(|((format, shape, weight), target)| {
                target.weight(*format, *shape, shard(*shape), &weight[..shard(*shape).len])
            })
            .collect();
        let mut lengths = vec![];
        let count = |amaxes: &mut [f32]| {
            lengths.push((amaxes.len(), amaxes.iter().any(|&amax| amax != 0.0)));
            Ok::<(), Infallible>(())
        };
        quantize_master_weights(&mut weights, Via::Bf16, &mut Workspace::default(), count).unwrap();
        lengths
    });
    assert_eq!(lengths[0].len(), 1);
    assert_eq!(lengths[0][0].0, lengths[1][0].0);
    assert_eq!((lengths[0][0].1, lengths[1][0].1), (true, false), "a rank without a slice sends zeros");
}

#[test]
fn a_delayed_scale_casts_with_the_scale_of_earlier_steps_and_records_the_reduced_amax() {
    let Format::Fp8Tensor(tensor) = Format::FP8_TENSOR_E4M3 else { panic!("a per-tensor format") };
    let shape = Shape::new(8, 8);
    let shard = FlatShard { start: 0, len: 64 };
    let mut delayed = DelayedScaling::new(tensor, AmaxChoice::Latest, 4).unwrap();
    let mut step = |value: f32, reduced: f32| {
        let master = [value; 64];
        let mut target = Target::new(Format::FP8_TENSOR_E4M3, shape, shard);
        let mut weight = target.weight(Format::FP8_TENSOR_E4M3, shape, shard, &master);
        weight.delayed = Some(&mut delayed);
        let reduce = |amaxes: &mut [f32]| {
            assert_eq!(*amaxes, [value], "one amax, of this rank");
            amaxes.fill(reduced);
            Ok::<(), Infallible>(())
        };
        quantize_master_weights(&mut [weight], Via::None, &mut Workspace::default(), reduce).unwrap();
        (target.rowwise.data[0], target.tensor_scale)
    };
    // Scale 1 at first: 2.0 is E4M3 code 0x40. Then the amax 4.0 of the slowest rank gives scale 112.
    assert_eq!(step(2.0, 4.0), (0x40, 1.0));
    assert_eq!(step(2.0, 2.0), (0x76, 1.0 / 112.0));
    // 8.0 · 224 saturates at 448.
    assert_eq!(step(8.0, 8.0), (0x7E, 1.0 / 224.0));
}

#[test]
fn a_delayed_scale_of_another_format_is_refused() {
    let Format::Fp8Tensor(tensor) = Format::FP8_TENSOR_E5M2_POW2 else { panic!("a per-tensor format") };
    let mut delayed = DelayedScaling::new(tensor, AmaxChoice::Latest, 4).unwrap();
    let shape = Shape::new(8, 8);
    let shard = FlatShard::EMPTY;
    let mut target = Target::new(Format::FP8_TENSOR_E4M3, shape, shard);
    let mut weight = target.weight(Format::FP8_TENSOR_E4M3, shape, shard, &[]);
    weight.delayed = Some(&mut delayed);
    let result =
        quantize_master_weights(&mut [weight], Via::None, &mut Workspace::default(), must_not_be_called);
    assert!(matches!(source(result.unwrap_err()).1, FormatError::DelayedMismatch { .. }));
}
