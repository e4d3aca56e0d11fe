//! QLoRA: trains low-rank adapters beside a frozen base in NVFP4, which is its planes alone.
//!
//! `cargo run --example 11_adapters_beside_a_frozen_weight`
//!
//! The base comes from a file that `warpweft quantize --format nvfp4_2d` wrote, codes and scales as they are. It is
//! sharded, gathered like any other weight, and has no master, gradient, main grad or moments. The adapters are
//! replicated, in f32. They train on one rank, are saved without the base, go on on two ranks and on four, and are
//! merged with the base into one weight. A configuration can freeze weights too:
//!
//! ```toml
//! [[weights]]
//! match = "base.*"
//! frozen = true
//! ```

#[path = "../../../examples/shared/print.rs"]
mod print;

use std::error::Error;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use warpweft::bf16;
use warpweft::prelude::*;
use warpweft_cli::{QuantizeOptions, quantize_checkpoint};
use warpweft_plan::layout::Residency;
use warpweft_session::checkpoint::{Checkpoint, PretrainedFiles};

use print::println;

const SIZE: usize = 256;
const RANK: usize = 4;
const STEPS: usize = 40;

fn declare() -> Result<(Model, StepProgram), DeclareError> {
    let mut model = Model::builder();
    let base = model.sharded("base.map", SIZE, SIZE, Format::NVFP4_2D)?;
    model.freeze(base)?;
    let down = model.replicated("adapter.down", RANK, SIZE)?;
    let up = model.replicated("adapter.up", SIZE, RANK)?;
    let model = model.build();
    let mut program = StepProgram::builder("train", &model);
    let input = program.input("input", SIZE, ElementType::F32)?;
    let loss = program.output("loss", 1, ElementType::F32)?;
    let call = program.call("fit", Phase::Backward).uses_dense(base);
    let call = call.uses_dense(down).uses_dense(up);
    call.gradient(down).gradient(up).reads(input).writes(loss).add()?;
    Ok((model, program.build_training()?))
}

/// y = (W + U·D) x is to be W x with every 64th row doubled: a change of four rows, so adapters of rank four do.
fn fit(call: &Call, context: &ComputeContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    let [base, down, up] = [call.uses[0].weight, call.uses[1].weight, call.uses[2].weight];
    let (input, loss) = (call.buffers[0].buffer, call.buffers[1].buffer);
    let w = context.dense(base, Orientation::Rowwise)?;
    let (d, u) = (context.dense(down, Orientation::Rowwise)?, context.dense(up, Orientation::Rowwise)?);
    let x = context.read::<f32>(input)?;
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let through: Vec<f32> = d.chunks(SIZE).map(|row| dot(row, &x)).collect();
    let error = |row: usize| {
        let wanted = if row.is_multiple_of(SIZE / RANK) { dot(&w[row * SIZE..][..SIZE], &x) } else { 0.0 };
        dot(&u[row * RANK..][..RANK], &through) - wanted
    };
    let errors: Vec<f32> = (0..SIZE).map(error).collect();
    let (mut of_down, mut of_up) = (context.gradient(down)?, context.gradient(up)?);
    for rank in 0..RANK {
        let back: f32 = (0..SIZE).map(|row| errors[row] * u[row * RANK + rank]).sum();
        (0..SIZE).for_each(|col| of_down[rank * SIZE + col] = 2.0 * back * x[col]);
        (0..SIZE).for_each(|row| of_up[row * RANK + rank] = 2.0 * errors[row] * through[rank]);
    }
    context.write::<f32>(loss)?[0] = errors.iter().map(|error| error * error).sum();
    Ok(())
}

/// A pretrained model in bf16, and the same as `warpweft quantize` writes it.
fn quantized(folder: &Path) -> Result<std::path::PathBuf, Box<dyn Error>> {
    let (model, quantized) = (folder.join("model.safetensors"), folder.join("model-nvfp4.safetensors"));
    let value = |at: usize| bf16::from_f32(0.1 * (at as f32 * 1.7).sin());
    let bytes: Vec<u8> = (0..SIZE * SIZE).flat_map(|at| value(at).to_le_bytes()).collect();
    let tensor = TensorView::new(Dtype::BF16, vec![SIZE, SIZE], &bytes)?;
    safetensors::serialize_to_file([("map.weight", tensor)], None, &model)?;
    quantize_checkpoint(&model, &quantized, &QuantizeOptions::new(Format::NVFP4_2D), &mut ())?;
    Ok(quantized)
}

async fn start(ranks: u32, file: &Path) -> Result<Session, Box<dyn Error>> {
    let (model, program) = declare()?;
    let base = PretrainedFiles::open([file])?
        .frozen_base(&model, |weight| (weight == "base.map").then(|| "map.weight".to_owned()))?;
    let mut config = Config::default();
    config.optimizer.lr = 0.003;
    let builder = Session::builder(config, |_: RankId| fit).program(program).frozen_base(base);
    let builder = builder.initialize(|rows, masters| {
        // U begins as zeros, so that at first nothing is changed.
        let height = if rows.weight == "adapter.up" { 0.0 } else { 0.1 };
        for (at, value) in masters.iter_mut().enumerate() {
            *value = height * ((rows.first_element() + at) as f32 * 1.3).sin();
        }
    });
    Ok(builder.start_cpu(ranks).await?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = quantized(folder.path())?;
    let adapters = FileStore::new(folder.path().join("adapters.safetensors"));
    let mut planes = None;
    for ranks in [1, 2, 4] {
        let mut session = start(ranks, &file).await?;
        let resident =
            session.plan("train")?.arena.slots.iter().filter(|slot| slot.name.starts_with("base.map"));
        let bytes: usize =
            resident.filter(|slot| slot.residency == Residency::Resident).map(|slot| slot.region.bytes).sum();
        let share = bytes as f64 * f64::from(ranks) / (SIZE * SIZE) as f64;
        println!("{ranks} ranks: the base takes {share:.3} bytes an element");
        if ranks > 1 {
            session.import(&adapters.load().await?).await?;
        }
        for step in 0..STEPS {
            for rank in 0..ranks {
                let value = |at: usize| ((step * 7 + rank as usize * 13 + at * at) as f32).sin();
                let x: Vec<f32> = (0..SIZE).map(value).collect();
                session.write_input("train", RankId::new(rank), "input", &x)?;
            }
            let report = session.step("train").await?;
            assert!(matches!(report.outcome, Outcome::Updated { .. }), "step {step} was skipped: {report:?}");
            if step % 20 == 0 || step == STEPS - 1 {
                println!("step {step:3}  loss {:.5}", report.mean_output("loss")?);
            }
        }
        let checkpoint = session.export().await?;
        adapters.save(&checkpoint).await?;
        let size = std::fs::metadata(folder.path().join("adapters.safetensors"))?.len();
        println!(
            "adapters saved: {size} bytes with moments, of {} bytes of the base in bf16",
            2 * SIZE * SIZE
        );
        let base = checkpoint.weights[0].planes.clone();
        assert!(planes.get_or_insert(base.clone()) == &base);
        if ranks == 4 {
            merge(checkpoint, &folder.path().join("merged.safetensors"))?;
        }
        session.close().await?;
    }
    println!("the frozen weight is what it was");
    Ok(())
}

/// Writes W + U·D as the one weight of a model without adapters.
fn merge(mut checkpoint: Checkpoint, file: &Path) -> Result<(), Box<dyn Error>> {
    let [base, down, up] = ["base.map", "adapter.down", "adapter.up"].map(|name| checkpoint.weight(name));
    let (Some(base), Some(down), Some(up)) = (base, down, up) else {
        return Err("a weight is missing".into());
    };
    let mut merged = base.values()?.into_owned();
    for (row, values) in merged.chunks_mut(SIZE).enumerate() {
        for rank in 0..RANK {
            let by = up.master[row * RANK + rank];
            values.iter_mut().zip(&down.master[rank * SIZE..]).for_each(|(value, d)| *value += by * d);
        }
    }
    checkpoint.weights[0].master = merged;
    let name = |weight: &str| (weight == "base.map").then(|| "map.weight".to_owned());
    checkpoint.save_weights(file, ElementType::Bf16, name)?;
    println!("merged: {} bytes", std::fs::metadata(file)?.len());
    Ok(())
}
