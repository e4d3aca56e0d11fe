//! Saves the weights of a session and goes on from them, on another number of ranks.
//!
//! `cargo run --example 07_export_and_import`
//!
//! A checkpoint holds every weight whole: master, moments, step count, and the quantized planes for
//! whoever serves the model. It does not know how many ranks wrote it. Where it is kept is a
//! `CheckpointStore`, an async trait; the one that comes with the library is a safetensors file.

#[path = "shared/print.rs"]
mod print;

use warpweft::prelude::*;

use print::println;

const SIZE: usize = 32;

async fn start(ranks: u32) -> Result<Session, SessionError> {
    let mut model = Model::builder();
    let weight = model.sharded("map", SIZE, SIZE, Format::NVFP4_2D)?;
    let model = model.build();
    let mut program = StepProgram::builder("train", &model);
    let loss = program.output("loss", 1, ElementType::F32)?;
    let call = program.call("shrink", Phase::Backward).uses_dense(weight);
    call.gradient(weight).writes(loss).add()?;

    // The loss is half the squared length of the weight, so its gradient is the weight itself.
    let shrink = on_cpu(|_, context| {
        let w = context.dense_named("map")?;
        context.gradient_named("map")?.copy_from_slice(&w);
        context.write_named::<f32>("loss")?[0] = 0.5 * w.iter().map(|w| w * w).sum::<f32>();
        Ok(())
    });
    Session::builder(Config::default(), move |_| shrink)
        .program(program.build_training()?)
        .initialize(|rows, masters| {
            for (at, value) in masters.iter_mut().enumerate() {
                *value = ((rows.first_element() + at) as f32).sin();
            }
        })
        .start_cpu(ranks)
        .await
}

async fn losses(session: &mut Session, steps: u32) -> Result<Vec<f32>, SessionError> {
    let mut losses = Vec::new();
    for step in 0..steps {
        let report = session.step("train").await?;
        assert!(matches!(report.outcome, Outcome::Updated { .. }), "step {step} was skipped: {report:?}");
        losses.push(report.mean_output("loss")?);
    }
    Ok(losses)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("warpweft_example_{}.safetensors", std::process::id()));
    let store = FileStore::new(&path);

    let mut first = start(2).await?;
    println!("two ranks:            {:?}", losses(&mut first, 4).await?);
    let checkpoint = first.export().await?;
    store.save(&checkpoint).await?;
    let expected = losses(&mut first, 4).await?;
    println!("two ranks go on:      {expected:?}");
    first.close().await?;

    let saved = &checkpoint.weights[0];
    let planes = &saved.planes[0];
    println!(
        "checkpoint: step {}, `{}` {} as {}, data plane of {} bytes, amax {}",
        checkpoint.optimizer_step,
        saved.name,
        saved.shape,
        saved.format,
        planes.planes[0].len(),
        saved.tensor_scale,
    );

    let mut second = start(1).await?;
    second.import(&store.load().await?).await?;
    let found = losses(&mut second, 4).await?;
    println!("one rank goes on:     {found:?}");
    assert_eq!(found, expected, "every rank sees the same batch here, so even the bits agree");
    second.close().await?;
    std::fs::remove_file(&path)?;
    Ok(())
}
