//! Sizes near the end of what can be addressed: each is planned or refused by name, none overflows.

use proptest::prelude::*;
use warpweft_base::id::RankId;
use warpweft_format::{
    ElementType, FlatShard, Format, FormatError, Orientation, Shape, Via, flat_amax, flat_cast, reference,
};
use warpweft_plan::layout::{Content, MAX_ARENA, Weights, aligned};
use warpweft_plan::model::{
    BufferSpec, DeclareError, Form, Lifetime, Mesh, Model, Phase, Placement, Role, ShardLayout, StepProgram,
    WeightSpec,
};
use warpweft_plan::plan::{PlanError, Policy, StepPlan};
use warpweft_plan::policy::{Backward, Columnwise};
use warpweft_session::config::Config;

fn buffer(name: &str, elements: usize, lifetime: Lifetime, role: Role) -> BufferSpec {
    BufferSpec { name: name.into(), elements, element: ElementType::F32, role, lifetime }
}

/// A program that trains one weight and writes one buffer.
fn program(spec: WeightSpec, buffer: BufferSpec) -> Result<StepProgram, DeclareError> {
    let mut model = Model::builder();
    let weight = model.add(spec)?;
    let mut program = StepProgram::builder("train", &model.build());
    let buffer = program.buffer(buffer)?;
    let call = program.call("fit", Phase::Backward).uses(weight, Orientation::Rowwise, Form::Dense);
    call.gradient(weight).writes(buffer).add()?;
    program.build_training()
}

fn weight(shape: Shape, format: Format, placement: Placement) -> WeightSpec {
    let mut spec = WeightSpec::sharded("w", shape.rows, shape.cols, format);
    spec.placement = placement;
    spec
}

fn plan(program: &StepProgram, ranks: u32, policy: &Policy) -> Result<StepPlan, PlanError> {
    StepPlan::build(program, policy, Mesh::new(ranks).unwrap())
}

#[test]
fn a_weight_that_cannot_be_addressed_is_refused_at_its_declaration() {
    for placement in [Placement::Sharded, Placement::Replicated] {
        for shape in [Shape::new(usize::MAX, 1), Shape::new(1 << 40, 1 << 40), Shape::new(1, usize::MAX)] {
            let error = Model::builder().add(weight(shape, Format::F32, placement)).unwrap_err();
            let DeclareError::Format { weight, reason } = error else { panic!("{error}") };
            assert_eq!(weight, "w");
            assert!(matches!(reason, FormatError::ShapeTooLarge { .. }), "{reason}");
        }
    }
}

#[test]
fn a_buffer_that_cannot_be_addressed_is_refused_at_its_declaration() {
    let mut program = StepProgram::builder("train", &Model::builder().build());
    for elements in [usize::MAX, usize::MAX / 4, MAX_ARENA / 4 + 1] {
        let spec = buffer("activations", elements, Lifetime::Step, Role::Output);
        let error = program.buffer(spec).unwrap_err();
        assert!(matches!(error, DeclareError::TooLarge { .. }), "{error}");
        assert!(error.to_string().contains("`activations`"), "{error}");
    }
    program.buffer(buffer("activations", MAX_ARENA / 4, Lifetime::Step, Role::Output)).unwrap();
}

#[test]
fn slots_that_fit_alone_but_not_together_are_refused_with_the_one_that_was_too_much() {
    let policy = Policy::from(&Config::default());
    let small = weight(Shape::new(16, 16), Format::F32, Placement::Sharded);
    let half = MAX_ARENA / 8 + 1;
    for (lifetime, role, expected) in [
        (Lifetime::Step, Role::Output, "slot `x`"),
        (Lifetime::Carried, Role::Output, "slot `x staging`"),
        (Lifetime::Carried, Role::Internal, ""),
    ] {
        let declared = program(small.clone(), buffer("x", half, lifetime, role)).unwrap();
        match plan(&declared, 2, &policy) {
            Ok(made) => assert!(expected.is_empty() && made.arena.bytes() > half * 4),
            Err(error) => {
                assert!(matches!(&error, PlanError::TooLarge { limit: MAX_ARENA, .. }), "{error}");
                assert!(!expected.is_empty() && error.to_string().contains(expected), "{error}");
            }
        }
    }
}

/// The padding of every rank's rows to whole tiles, times the ranks, is what overflows first.
#[test]
fn a_mesh_that_pads_a_weight_beyond_memory_is_refused() {
    let policy = Policy::from(&Config::default());
    let wide = weight(Shape::new(16, 1 << 50), Format::NVFP4_2D, Placement::Sharded);
    let declared = program(wide, buffer("x", 4, Lifetime::Step, Role::Output)).unwrap();
    assert!(plan(&declared, 1, &policy).is_ok());
    let error = plan(&declared, Mesh::MAX_RANKS, &policy).unwrap_err();
    assert!(matches!(&error, PlanError::TooLarge { what, .. } if what.contains('w')), "{error}");
}

#[test]
fn alignment_saturates_at_the_end_of_memory() {
    assert_eq!((aligned(0), aligned(1), aligned(256)), (0, 256, 256));
    assert_eq!((aligned(usize::MAX - 255), aligned(usize::MAX)), (usize::MAX - 255, usize::MAX));
}

/// Sizes of every magnitude, and those around the ends of the word.
fn size() -> impl Strategy<Value = usize> {
    let magnitude = (0..usize::BITS).prop_flat_map(|bit| 0..=usize::MAX >> bit);
    let edge =
        (0..usize::BITS, 0usize..3).prop_map(|(bit, off)| (usize::MAX >> bit).saturating_sub(off).max(1));
    prop_oneof![magnitude, edge]
}

fn format() -> impl Strategy<Value = Format> {
    proptest::sample::select(
        Format::CANONICAL.into_iter().filter(|format| format.check_weight().is_ok()).collect::<Vec<_>>(),
    )
}

proptest! {
    /// PL-6: whoever gets a plan can address its arena; everybody else gets an error.
    #[test]
    fn any_size_is_planned_within_what_can_be_addressed_or_refused(
        rows in size(), cols in size(), elements in size(),
        format in format(), replicated: bool, carried: bool,
        ranks in prop_oneof![1u32..9, Just(Mesh::MAX_RANKS), 1..=Mesh::MAX_RANKS],
        keep: bool,
    ) {
        let shape = Shape::new(rows, cols / 32 * 32);
        let spec = if replicated {
            weight(Shape::new(rows, cols), Format::F32, Placement::Replicated)
        } else {
            weight(shape, format, Placement::Sharded)
        };
        let lifetime = if carried { Lifetime::Carried } else { Lifetime::Step };
        let Ok(declared) = program(spec, buffer("x", elements, lifetime, Role::Output)) else { return Ok(()) };
        let mut policy = Policy::from(&Config::default());
        if keep {
            (policy.backward, policy.columnwise) = (Backward::Keep, Columnwise::Keep);
        }
        if let Ok(made) = plan(&declared, ranks, &policy) {
            prop_assert!(made.arena.bytes() <= MAX_ARENA);
            for slot in &made.arena.slots {
                prop_assert!(slot.region.end() <= made.arena.bytes());
            }
        }
    }

    #[test]
    fn shards_and_contents_saturate_instead_of_wrapping_around(
        rows in size(), cols in size(), format in format(), ranks in 1..=Mesh::MAX_RANKS, rank: u32,
    ) {
        let spec = weight(Shape::new(rows, cols), format, Placement::Sharded);
        let mesh = Mesh::new(ranks).unwrap();
        let shard = ShardLayout::new(&spec, mesh);
        prop_assert!(shard.padded_rows() >= rows);
        let part = shard.rows_of(RankId::new(rank));
        prop_assert!(part.begin + part.rows <= rows);
        let weights = Weights::new(&[spec], mesh);
        let id = warpweft_base::id::WeightId::new(0);
        let elements = rows as u128 * cols as u128;
        let dense = Content::Dense(id, Orientation::Rowwise, ElementType::F32).bytes(&weights, |_| 0);
        prop_assert_eq!(dense as u128, elements.saturating_mul(4).min(usize::MAX as u128));
        let gathered = Content::Gathered(id, Orientation::Rowwise).bytes(&weights, |_| 0);
        prop_assert!(gathered as u128 >= (elements / 2).min(usize::MAX as u128));
    }
}

/// Conformance H12 for masters on their way into a quantized weight: slices across 2^31 elements and at the end, odd
/// and even, have the amaxes of their own blocks and the codes of their own factors. What is needed of so large a
/// weight are its blocks alone; MXFP8 has too many of them.
#[test]
fn h12_slices_beyond_two_to_the_thirty_one_elements_are_quantized_in_their_own_blocks() {
    let shape = Shape::new(64_016, 36_864);
    let elements = shape.elements();
    assert!(elements > 2_359_332_864);
    let shards = [((1 << 31) - 4097, 80_000), (elements - 70_000, 70_000), (elements, 0)];
    for format in [Format::NVFP4_2D, Format::FP8_BLOCK128_POW2, Format::FP8_TENSOR_E4M3] {
        let side = format.row_tile();
        let block_of = |element: usize| match format {
            Format::Fp8Tensor(_) => 0,
            _ => element / shape.cols / side * (shape.cols / side) + element % shape.cols / side,
        };
        let rowwise = Orientation::Rowwise;
        let mut found = vec![f32::NAN; format.amax_blocks(rowwise, shape)];
        let mut encode = vec![f32::NAN; format.encode_blocks(rowwise, shape)];
        for (block, encode) in encode.iter_mut().enumerate() {
            *encode = 1.0 + (block % 13) as f32 / 4.0;
        }
        for (start, len) in shards {
            let shard = FlatShard { start, len };
            let value = |at: usize| ((start + at) as f32 * 0.7).sin() * 3.0 + (at % 64) as f32 / 64.0;
            let master: Vec<f32> = (0..len).map(value).collect();
            let amax = flat_amax(format, rowwise, Via::None, shape, shard, &master, &mut found).unwrap();
            assert_eq!(amax, master.iter().fold(0.0, |amax: f32, value| amax.max(value.abs())), "{format}");
            let mut expected = vec![0.0_f32; found.len()];
            for (at, value) in master.iter().enumerate().filter(|_| !found.is_empty()) {
                let amax = &mut expected[block_of(start + at)];
                *amax = amax.max(value.abs());
            }
            assert!(found == expected, "{format} {shard:?}");

            let mut fragment = vec![0xA5; shard.fragment(format).len()];
            flat_cast(format, rowwise, Via::None, shape, shard, &master, &encode, &mut fragment).unwrap();
            for (at, value) in master.iter().enumerate() {
                let scaled = value * encode[block_of(start + at)];
                let (found, expected) = match format {
                    Format::Nvfp4(_) => {
                        let byte = fragment[(start + at) / 2 - start / 2];
                        (byte >> ((start + at) % 2 * 4) & 15, reference::e2m1(scaled))
                    }
                    _ => (fragment[at], reference::e4m3(scaled)),
                };
                assert_eq!(found, expected, "{format} {shard:?}, element {at}");
            }
        }
    }
}
