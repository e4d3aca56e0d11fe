//! Resharding: models of random shapes over random meshes.

use proptest::prelude::*;
use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::RankId;
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::compute::ComputeContext;
use warpweft_plan::model::{Call, Form, Model, Phase, StepProgram};
use warpweft_session::checkpoint::PartFiles;
use warpweft_session::config::Config;
use warpweft_session::session::{Session, block_on};
use warpweft_testing::trainer::initial;

use super::{notes, replicated, without_planes};

/// A weight: rows, columns, format, sharded or replicated.
pub(crate) type Drawn = (usize, usize, Format, bool);

/// A session whose gradients are its weights.
pub(crate) fn start(weights: &[Drawn], (shards, replicas): (u32, u32)) -> Session {
    start_with(replicated(replicas), weights, shards * replicas)
}

/// The same on `ranks` ranks, as configured. A frozen weight is used and has no gradient.
pub(crate) fn start_with(config: Config, weights: &[Drawn], ranks: u32) -> Session {
    let mut model = Model::builder();
    let ids: Vec<_> = (weights.iter().enumerate())
        .map(|(number, (rows, cols, format, sharded))| {
            let name = format!("w{number}");
            match sharded {
                true => model.sharded(&name, *rows, *cols, *format).unwrap(),
                false => model.replicated(&name, *rows, *cols).unwrap(),
            }
        })
        .collect();
    let model = config.apply_weight_rules(&model.build()).unwrap();
    let trained: Vec<_> =
        ids.iter().copied().filter(|weight| !model.weight(*weight).unwrap().frozen).collect();
    let mut program = StepProgram::builder("train", &model);
    let loss = program.output("loss", 1, ElementType::F32).unwrap();
    let mut call = program.call("shrink", Phase::Backward).writes(loss);
    for weight in &ids {
        call = call.uses(*weight, Orientation::Rowwise, Form::Dense);
    }
    for weight in &trained {
        call = call.gradient(*weight);
    }
    call.add().unwrap();
    let closures = move |_: RankId| {
        let trained = trained.clone();
        move |_: &Call, context: &ComputeContext<'_, CpuSurface>| {
            for weight in &trained {
                let values = context.dense(*weight, Orientation::Rowwise)?;
                context.gradient(*weight)?.copy_from_slice(&values);
            }
            context.write::<f32>(loss)?[0] = 0.0;
            Ok(())
        }
    };
    let builder = Session::builder(config, closures).program(program.build_training().unwrap());
    block_on(builder.initialize(initial).start_cpu(ranks)).unwrap()
}

fn weight() -> impl Strategy<Value = Drawn> {
    let ragged = prop::sample::select(vec![
        Format::F32,
        Format::Bf16,
        Format::FP8_BLOCK128_POW2,
        Format::FP8_TENSOR_E4M3,
    ]);
    let ragged = (1..200_usize, 1..40_usize, ragged, any::<bool>());
    let in_blocks = prop::sample::select(vec![Format::NVFP4_2D, Format::Mxfp8]);
    let in_blocks = (1..200_usize, 1..4_usize, in_blocks);
    prop_oneof![ragged, in_blocks.prop_map(|(rows, cols, format)| (rows, 32 * cols, format, true))]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// CK-2: whoever wrote them and whoever reads them, the rows are the same, each once.
    #[test]
    fn whatever_the_shapes_and_meshes_parts_hold_what_an_export_holds(
        weights in prop::collection::vec(weight(), 1..5),
        wrote in (1..7_u32, 1..3_u32),
        reads in (1..7_u32, 1..3_u32),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFiles::new(folder.path());
        let mut first = start(&weights, wrote);
        for _ in 0..2 {
            block_on(first.step("train")).unwrap();
        }
        block_on(first.save_parts(&parts, &notes(&[]))).unwrap();
        let expected = without_planes(block_on(first.export()).unwrap());
        let mut second = start(&weights, reads);
        block_on(second.import_parts(&parts)).unwrap();
        prop_assert!(without_planes(block_on(second.export()).unwrap()) == expected);
        prop_assert!(parts.load().unwrap() == expected);
    }
}
