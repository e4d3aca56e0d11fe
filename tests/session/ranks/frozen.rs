//! Ranks that begin with the planes of a frozen base, driven without a session.

use std::sync::Arc;
use std::time::Duration;

use warpweft_backend::cpu::CpuBackend;
use warpweft_base::id::RankId;
use warpweft_format::{ElementType, Format, Orientation, OwnedPlanes};
use warpweft_plan::layout::Weights;
use warpweft_plan::model::{Form, Mesh, Model, Phase, StepProgram};
use warpweft_plan::plan::{Policy, ResidentLayout, StepPlan};
use warpweft_session::config::Config;
use warpweft_session::exec::{CaptureMode, ExecError, FirstPlanes, Handover, Initializer, Rank, World};
use warpweft_testing::meddler::backends;
use warpweft_testing::trainer::ended;

use super::closures;

const RANKS: u32 = 2;
/// Rank 1 has 19 of them, and 45 rows of padding in formats of 32 rows a block.
const ROWS: usize = 83;
const COLS: usize = 96;

type Planes = (Vec<OwnedPlanes>, f32);

/// What becomes of ranks with a frozen weight in `format` that begin with what `base` gives, and do `work` then.
fn begun<T: Send>(
    format: Format,
    base: Option<&FirstPlanes>,
    work: impl Fn(&mut Rank<CpuBackend>) -> T + Sync,
) -> Vec<Result<T, ExecError>> {
    let mut model = Model::builder();
    let frozen = model.sharded("base", ROWS, COLS, format).unwrap();
    model.freeze(frozen).unwrap();
    let adapter = model.replicated("adapter", 1, COLS).unwrap();
    let model = model.build();
    let mut program = StepProgram::builder("train", &model);
    let loss = program.output("loss", 1, ElementType::F32).unwrap();
    let call = program.call("fit", Phase::Backward).uses(frozen, Orientation::Rowwise, Form::Dense);
    call.writes(loss).gradient(adapter).add().unwrap();
    let program = program.build_training().unwrap();
    let weights = Weights::new(model.weights(), Mesh::new(RANKS).unwrap());
    let resident = ResidentLayout::new(&weights, &[&program]).unwrap();
    let policy = Policy::from(&Config::default());
    let prologue = Arc::new(StepPlan::prologue(&weights, &resident, &policy).unwrap());
    let plan = Arc::new(StepPlan::within(&program, &weights, &resident, &policy).unwrap());
    let world = Arc::new(World::new(RANKS, Duration::from_secs(60)));
    let initializer: Initializer = Arc::new(|rows, values| {
        for (value, at) in values.iter_mut().zip(rows.first_element()..) {
            *value = (at * 37 % 1009) as f32 - 500.0;
        }
        Ok(())
    });
    std::thread::scope(|scope| {
        let begin = |backend: CpuBackend| {
            let (world, prologue, plans) =
                (Arc::clone(&world), Arc::clone(&prologue), vec![Arc::clone(&plan)]);
            let (initializer, work) = (&initializer, &work);
            scope.spawn(move || {
                let meets = Arc::clone(&world);
                let mut rank = Rank::new(backend, world, prologue, plans, CaptureMode::Off, &closures())?;
                let done = rank.initialize(initializer, base).map(|()| work(&mut rank));
                if let Err(error) = &done {
                    meets.end(&error.to_string());
                }
                done
            })
        };
        let ranks: Vec<_> = backends(RANKS).into_iter().map(begin).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The planes of every rank that its values are quantized to.
fn planes(format: Format) -> Vec<Planes> {
    let exported = begun(format, None, |rank| {
        let mut handover = Handover::default();
        rank.export(&mut handover).unwrap();
        let shard = handover.transfer.own.shards.swap_remove(0);
        (shard.planes, shard.tensor_scale)
    });
    exported.into_iter().map(Result::unwrap).collect()
}

fn base(planes: Vec<Option<Planes>>) -> FirstPlanes {
    Arc::new(move |_, rank: RankId| Ok(planes[rank.index()].clone()))
}

/// What the ranks say of a base that they do not begin with.
fn refused(format: Format, planes: Vec<Option<Planes>>) -> Vec<ExecError> {
    begun(format, Some(&base(planes)), |_| ()).into_iter().filter_map(Result::err).collect()
}

/// FW-1: a weight in NVFP4 and its double have the same codes and block scales, and half of each is no weight.
#[test]
fn bases_that_differ_in_the_tensor_scale_alone_are_refused_with_weight_and_ranks() {
    ended(|| {
        for format in [Format::NVFP4_2D, Format::FP8_TENSOR_E4M3] {
            let mut planes: Vec<_> = planes(format).into_iter().map(Some).collect();
            assert!(refused(format, planes.clone()).is_empty());
            planes[1].as_mut().unwrap().1 *= 2.0;
            let [first, other] = [0, 1].map(RankId::new);
            let expected = [(first, other), (other, first)];
            let expected =
                expected.map(|(rank, other)| ExecError::BasesDiffer { weight: "base".into(), rank, other });
            assert_eq!(refused(format, planes), expected, "{format}");
        }
    });
}

/// FW-1: no rank waits for the other's amax, and none takes a number of another kind for one.
#[test]
fn a_rank_with_a_base_beside_one_without_is_refused_in_every_format() {
    ended(|| {
        for format in [Format::NVFP4_2D, Format::FP8_TENSOR_E4M3, Format::Mxfp8, Format::Bf16] {
            let mut planes: Vec<_> = planes(format).into_iter().map(Some).collect();
            planes[1] = None;
            let found = refused(format, planes);
            let all = found.iter().all(|error| matches!(error, ExecError::BasesDiffer { .. }));
            assert!(all && found.len() == 2, "{format}: {found:?}");
        }
    });
}

/// What columnwise planes are dequantized to has columns one after the other, and rows of padding in each.
#[test]
fn a_value_of_columnwise_planes_that_is_not_finite_is_named_at_its_row_and_column() {
    ended(|| {
        let whole = planes(Format::Mxfp8);
        for (row, column, is_padding) in [(5, 7, false), (18, 95, false), (19, 7, true), (63, 95, true)] {
            let mut spoiled: Vec<_> = whole.iter().cloned().map(Some).collect();
            let (planes, _) = spoiled[1].as_mut().unwrap();
            assert_eq!(planes[1].data.len(), 64 * COLS);
            // No number in E4M3.
            planes[1].data[row * COLS + column] = 0x7F;
            let found = refused(Format::Mxfp8, spoiled);
            let named = found.iter().find_map(|error| match error {
                ExecError::Master { row, column, .. } => Some((*row, *column)),
                _ => None,
            });
            let expected = (!is_padding).then_some((64 + row, column));
            assert_eq!((named, found.is_empty()), (expected, is_padding), "{found:?}");
        }
    });
}

/// Nothing is half-changed: bytes that are missing in one plane and too many in the other are refused.
#[test]
fn planes_of_other_lengths_than_a_rank_has_are_refused_though_their_sum_is_right() {
    ended(|| {
        let found = begun(Format::NVFP4_2D, None, |rank| {
            let mut handover = Handover::default();
            rank.export(&mut handover).unwrap();
            let shards = handover.transfer.own.shards.clone();
            let moved = handover.transfer.own.shards[0].planes[0].scale.pop().unwrap();
            handover.transfer.own.shards[0].planes[0].data.push(moved);
            let refused = rank.import(&mut handover).unwrap_err();
            rank.export(&mut handover).unwrap();
            (refused, handover.transfer.own.shards[0].planes == shards[0].planes)
        });
        for found in found {
            let (error, is_unchanged) = found.unwrap();
            assert!(matches!(error, ExecError::Misfit { .. }) && is_unchanged, "{error}");
            assert!(error.to_string().contains("plane of `base`"), "{error}");
        }
    });
}
