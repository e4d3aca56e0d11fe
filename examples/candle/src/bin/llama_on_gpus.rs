//! Trains a Llama of 303 million parameters on GPUs, and measures it: by candle alone on one, or sharded.
//!
//! `llama_on_gpus alone STEPS`, or `llama_on_gpus RANKS FORMAT STEPS [TRACE]`, built with the feature `cuda` as
//! docs/interop.md says. It prints the losses, the median time of a step after the first ones, and the memory that the
//! first GPU has in use at the end.

use std::error::Error;
use std::time::Instant;

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_example::llama::{Block, Cache, Config, Embed, Head, Llama};
use candle_example::text;
use candle_nn::{AdamW, Optimizer, ParamsAdamW, VarBuilder, VarMap, loss};
use warpweft::backend::cuda::cudarc::driver::CudaContext;
use warpweft_candle::{Devices, Settings, Sharded};

/// Of a GPU.
const SAMPLES: usize = 8;
const WARM: usize = 5;

fn rates() -> ParamsAdamW {
    ParamsAdamW { lr: 3e-4, beta2: 0.99, ..ParamsAdamW::default() }
}

fn cross_entropy(logits: &Tensor, y: &Tensor) -> Result<Tensor> {
    loss::cross_entropy(&logits.flatten_to(1)?, &y.flatten_to(1)?)
}

/// Milliseconds of all steps, and their losses.
#[derive(Default)]
struct Measured {
    milliseconds: Vec<f64>,
    losses: Vec<f32>,
}

impl Measured {
    fn add(&mut self, begun: Instant, loss: f32) {
        self.milliseconds.push(begun.elapsed().as_secs_f64() * 1e3);
        self.losses.push(loss);
    }

    fn print(self, what: &str, samples: usize) -> std::result::Result<(), Box<dyn Error>> {
        let Self { milliseconds, losses } = self;
        let mut warm = milliseconds[WARM.min(milliseconds.len() - 1)..].to_vec();
        warm.sort_by(f64::total_cmp);
        let step = warm[warm.len() / 2];
        let (free, all) = CudaContext::new(0)?.mem_get_info()?;
        println!(
            "{what}: {step:.1} ms a step of {samples} samples ({:.1} to {:.1}), {:.2} ms a sample and GPU; first GPU \
             {:.2} GiB; losses {:?} to {:?}",
            warm[0],
            warm[warm.len() - 1],
            step / SAMPLES as f64,
            (all - free) as f64 / f64::from(1 << 30),
            &losses[..2.min(losses.len())],
            losses.last()
        );
        Ok(())
    }
}

fn alone(steps: usize) -> std::result::Result<(), Box<dyn Error>> {
    let (config, device) = (Config::WIDE, Device::new_cuda(0)?);
    let weights = VarMap::new();
    let vb = VarBuilder::from_varmap(&weights, DType::F32, &device);
    let cache = Cache::new(&config, vb.pp("rot"))?;
    let model = Llama::load(vb, &config)?;
    let mut optimizer = AdamW::new(weights.all_vars(), rates())?;
    let mut measured = Measured::default();
    for step in 0..steps {
        let (x, y) = text::windows(step, SAMPLES, config.length)?;
        let begun = Instant::now();
        let (x, y) = (x.to_device(&device)?, y.to_device(&device)?);
        let loss = cross_entropy(&model.forward(&x, &cache)?, &y)?;
        optimizer.backward_step(&loss)?;
        let loss = loss.to_scalar()?;
        device.synchronize()?;
        measured.add(begun, loss);
    }
    measured.print("candle alone", SAMPLES)
}

async fn sharded(
    (ranks, format, steps): (u32, &str, usize),
    trace: Option<&String>,
) -> std::result::Result<(), Box<dyn Error>> {
    let (config, samples) = (Config::WIDE, SAMPLES * ranks as usize);
    let mut settings = Settings::from(rates());
    if let Some(path) = trace {
        settings.config.trace.enabled = true;
        settings.config.trace.path.clone_from(path);
    }
    let (x, y) = text::windows(0, samples, config.length)?;
    let mut model = Sharded::new(settings)
        .block("embed", move |vb| Embed::load(vb, &config).map(|embed| move |x: &Tensor| embed.forward(x)))
        .blocks(config.layers, move |layer, vb| {
            let cache = Cache::new(&config, vb.pp("rot"))?;
            let block = Block::load(vb.pp(format!("model.layers.{layer}")), &config)?;
            Ok(move |x: &Tensor| block.forward(x, &cache))
        })
        .block("head", move |vb| Head::load(vb, &config).map(|head| move |x: &Tensor| head.forward(x)))
        .loss(cross_entropy)
        .format("model.layers.*", format.parse()?)
        .shard(Devices::gpus(ranks), (&x, &y))
        .await?;
    let mut measured = Measured::default();
    for step in 0..steps {
        let (x, y) = text::windows(step, samples, config.length)?;
        let begun = Instant::now();
        let loss = model.step((&x, &y)).await?.loss;
        measured.add(begun, loss);
    }
    let arena = model.session().plan("train")?.arena.bytes() as f64 / f64::from(1 << 30);
    measured.print(&format!("{ranks} GPUs, {format}, arena {arena:.2} GiB"), samples)?;
    Ok(model.close().await?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::result::Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.as_slice() {
        [alone_, steps] if alone_ == "alone" => alone(steps.parse()?),
        [ranks, format, steps, trace @ ..] => {
            sharded((ranks.parse()?, format, steps.parse()?), trace.first()).await
        }
        _ => Err("`llama_on_gpus alone STEPS`, or `llama_on_gpus RANKS FORMAT STEPS [TRACE]`".into()),
    }
}
