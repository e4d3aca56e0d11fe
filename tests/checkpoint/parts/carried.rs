//! Carried buffers in sharded checkpoints: they fit only the ranks that saved them.

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::RankId;
use warpweft_format::{ElementType, Format};
use warpweft_plan::compute::ComputeContext;
use warpweft_plan::model::{Call, Model, Phase, StepProgram};
use warpweft_session::checkpoint::{Carried, PartFiles};
use warpweft_session::session::{Session, initial};
use warpweft_testing::trainer::within_a_minute;

use super::{notes, replicated};

/// A session that counts, from every rank's number on, in a buffer of three.
pub(crate) async fn counting(ranks: u32, replicas: u32, name: &str) -> Session {
    let mut model = Model::builder();
    let weight = model.sharded("w", 32, 16, Format::NVFP4_2D).unwrap();
    let mut program = StepProgram::builder("train", &model.build());
    let counts = program.carried(name, 3, ElementType::F32).unwrap();
    program.call("count", Phase::Backward).updates(counts).gradient(weight).add().unwrap();
    let closures = move |_: RankId| {
        move |_: &Call, context: &ComputeContext<'_, CpuSurface>| {
            let mut counts = context.write::<f32>(counts)?;
            counts.iter_mut().for_each(|count| *count += 1.0 + context.rank().number() as f32);
            context.gradient(weight)?.fill(0.5);
            Ok(())
        }
    };
    let builder = Session::builder(replicated(replicas), closures).program(program.build_training().unwrap());
    builder.initialize(initial::zeros()).start_cpu(ranks).await.unwrap()
}

async fn held(session: &mut Session) -> Vec<Vec<u8>> {
    let Carried::Buffers(buffers) = session.export().await.unwrap().carried else {
        panic!("an export has them")
    };
    buffers[0].ranks.clone()
}

/// Those of every replica: they are no copies of each other.
#[test]
fn every_rank_gets_its_own_carried_buffers_back() {
    within_a_minute(async {
        for (ranks, replicas) in [(1, 1), (3, 1), (4, 2)] {
            let folder = tempfile::tempdir().unwrap();
            let files = PartFiles::new(folder.path());
            let mut first = counting(ranks, replicas, "counts").await;
            first.step("train").await.unwrap();
            first.step("train").await.unwrap();
            first.save_parts(&files, &notes(&[])).await.unwrap();
            let expected = held(&mut first).await;
            assert_eq!(expected[ranks as usize - 1], [2.0 * ranks as f32; 3].map(f32::to_le_bytes).concat());
            let mut second = counting(ranks, 1, "counts").await;
            second.step("train").await.unwrap();
            second.import_parts(&files).await.unwrap();
            assert_eq!(held(&mut second).await, expected);
            second.import_parts(&files.clone().carried_zeros()).await.unwrap();
            assert_eq!(held(&mut second).await, vec![vec![0; 12]; ranks as usize]);
        }
    });
}

#[test]
fn carried_buffers_of_other_ranks_or_of_another_name_are_refused_until_zeros_are_asked_for() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let files = PartFiles::new(folder.path());
        let mut first = counting(2, 1, "counts").await;
        first.step("train").await.unwrap();
        first.save_parts(&files, &notes(&[])).await.unwrap();
        for (ranks, name, words) in [
            (3, "counts", "`counts` is of 2 ranks and the session has 3"),
            (2, "others", "the checkpoint has no carried buffer `others`"),
        ] {
            let mut other = counting(ranks, 1, name).await;
            other.step("train").await.unwrap();
            let before = other.export().await.unwrap();
            let said = other.import_parts(&files).await.unwrap_err().to_string();
            assert!(said.contains(words) && said.contains("PartFiles::carried_zeros"), "{said}");
            assert!(other.export().await.unwrap() == before);
            other.import_parts(&files.clone().carried_zeros()).await.unwrap();
            assert_eq!(held(&mut other).await, vec![vec![0; 12]; ranks as usize]);
        }
    });
}
