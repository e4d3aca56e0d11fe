//! Ranks on GPUs: the losses of ranks on CPUs, a rank that is late or panics, and mistakes that only a GPU has.
//!
//! `WARPWEFT_STEPS=2000` trains as many steps beside a late rank, where it takes 50 otherwise.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use warpweft::backend::cuda::DeviceOrdinal;
use warpweft::config::{Capture, Config};
use warpweft::format::Format;
use warpweft_candle::{Devices, Settings, Sharded, ShardedModel};

use crate::model::{apart, batch, rates, sharded};

const SAMPLES: usize = 8;

/// Whether this machine has so many GPUs; says so if not.
fn are_there(gpus: usize) -> bool {
    let found = DeviceOrdinal::all().map_or(0, |all| all.len());
    if found < gpus {
        eprintln!("skipped: {gpus} GPUs, because there are {found}");
    }
    found >= gpus
}

async fn start(builder: Sharded, devices: Devices) -> ShardedModel {
    let (x, y) = batch(0, SAMPLES);
    builder.shard(devices, (&x, &y)).await.unwrap()
}

async fn train(model: &mut ShardedModel, steps: usize) -> Vec<f32> {
    let mut losses = Vec::new();
    for step in 0..steps {
        let (x, y) = batch(step, SAMPLES);
        losses.push(model.step((&x, &y)).await.unwrap().loss);
    }
    losses
}

#[tokio::test]
async fn losses_on_gpus_are_those_on_cpus_with_graphs_kept_and_computed_again() {
    for ranks in [1, 2] {
        if !are_there(ranks as usize) {
            return;
        }
        for builder in [
            || sharded(rates()),
            || sharded(rates()).recompute("blocks.*"),
            || sharded(rates()).micro_batches(2),
        ] {
            let expected = train(&mut start(builder(), Devices::cpu(ranks)).await, 20).await;
            let mut model = start(builder(), Devices::gpus(ranks)).await;
            let found = train(&mut model, 20).await;
            let difference = apart(&found, &expected);
            println!("{ranks} GPUs: {difference:.2e}; losses {} to {}", found[0], found[19]);
            assert!(difference <= 1e-4, "{ranks} GPUs: {difference:e}");
            let (x, y) = batch(20, SAMPLES);
            assert!(model.evaluate((&x, &y)).await.unwrap() < found[0]);
            model.close().await.unwrap();
        }
    }
}

/// Quantized weights, and blocks whose weights are bf16, which are lent so, beside blocks of f32.
#[tokio::test]
async fn quantized_and_bf16_blocks_learn_on_gpus_as_on_cpus() {
    if !are_there(1) {
        return;
    }
    let quantized = || sharded(rates()).format("model.layers.*", "fp8_block".parse::<Format>().unwrap());
    for (beside, builder, tolerance) in
        [(quantized(), quantized(), 1e-3), (sharded(rates()), sharded(rates()).dtype(DType::BF16), 3e-2)]
    {
        let expected = train(&mut start(beside, Devices::cpu(1)).await, 20).await;
        let found = train(&mut start(builder, Devices::gpus(1)).await, 20).await;
        let difference = apart(&found, &expected);
        println!("{difference:.2e}; losses {} to {}", found[0], found[19]);
        assert!(difference <= tolerance, "{difference:e}");
    }
}

/// Candle allocates in every call, while gathers of other layers wait for the rank.
#[tokio::test]
async fn two_gpus_go_on_beside_a_rank_that_is_late_and_name_the_one_that_panics() {
    if !are_there(2) {
        return;
    }
    let steps = std::env::var("WARPWEFT_STEPS").map_or(50, |steps| steps.parse().unwrap());
    let mut settings = Settings::from(rates());
    settings.config.prefetch.depth = Some(4);
    let dies = Arc::new(OnceLock::new());
    let told = Arc::clone(&dies);
    let late = move |x: &Tensor| {
        let Device::Cuda(device) = x.device() else { return };
        if device.cuda_stream().context().ordinal() == 1 {
            assert!(told.get().is_none(), "the dog ate it");
            let noise = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |now| now.subsec_nanos());
            std::thread::sleep(Duration::from_micros(u64::from(noise / 7 % 3000)));
        }
    };
    let builder = sharded(settings).loss(move |logits, y| {
        late(logits);
        candle_nn::loss::cross_entropy(logits, y)
    });
    let mut model = start(builder, Devices::gpus(2)).await;
    let losses = train(&mut model, steps).await;
    println!("{steps} steps: {} to {}", losses[0], losses[steps - 1]);
    assert!(losses[steps - 1] < losses[0]);
    dies.set(()).unwrap();
    let (x, y) = batch(steps, SAMPLES);
    let error = model.step((&x, &y)).await.unwrap_err().to_string();
    assert!(error.contains("rank 1") && error.contains("the dog ate it"), "{error}");
}

/// A tensor that a closure keeps holds nothing between calls, so reading it is an error and no read out of bounds.
#[tokio::test]
async fn a_weight_that_is_kept_beyond_its_call_is_refused() {
    for devices in [Devices::cpu(1), Devices::gpus(1)] {
        if devices == Devices::gpus(1) && !are_there(1) {
            return;
        }
        kept_beyond_its_call(devices).await;
    }
}

async fn kept_beyond_its_call(devices: Devices) {
    let kept: Arc<Mutex<Option<Tensor>>> = Arc::default();
    let (keeps, reads) = (Arc::clone(&kept), kept);
    let builder = Sharded::new(rates())
        .block("first", move |vb| {
            let w = vb.get((64, 64), "first")?;
            *keeps.lock().unwrap() = Some(w.clone());
            Ok(move |x: &Tensor| x.matmul(&w))
        })
        .block("second", move |vb| {
            let w = vb.get((64, 64), "second")?;
            let reads = Arc::clone(&reads);
            Ok(move |x: &Tensor| {
                let other = reads.lock().unwrap().clone().unwrap();
                x.matmul(&w)? + x.matmul(&other.detach())?
            })
        })
        .loss(|y, target| (y - target)?.sqr()?.mean_all());
    let x = Tensor::ones((4, 64), DType::F32, &Device::Cpu).unwrap();
    let mut model = builder.shard(devices, (&x, &x)).await.unwrap();
    let error = model.step((&x, &x)).await.unwrap_err().to_string();
    println!("{error}");
    assert!(error.contains("block `second` reads a weight outside of the calls"), "{error}");
}

#[tokio::test]
async fn a_block_that_leaves_its_device_or_finds_no_memory_is_named_and_the_next_step_is_as_ever() {
    if !are_there(1) {
        return;
    }
    let x = Tensor::ones((4, 64), DType::F32, &Device::Cpu).unwrap();
    let layer = |misbehaves: fn(&Tensor) -> candle_core::Result<Tensor>, from: usize| {
        let calls = Arc::new(Mutex::new(0));
        Sharded::new(rates())
            .block("maps", move |vb| {
                let (w, calls) = (vb.get((64, 64), "w")?, Arc::clone(&calls));
                Ok(move |x: &Tensor| {
                    let y = x.matmul(&w)?;
                    let mut calls = calls.lock().unwrap();
                    *calls += 1;
                    if *calls == from { misbehaves(&y) } else { Ok(y) }
                })
            })
            .block("ends", |vb| {
                let w = vb.get((64, 64), "v")?;
                Ok(move |x: &Tensor| x.matmul(&w))
            })
            .loss(|y, target| (y - target)?.sqr()?.mean_all())
    };
    let moves = |y: &Tensor| y.to_device(&Device::Cpu);
    let error = layer(moves, 1).shard(Devices::gpus(1), (&x, &x)).await.unwrap_err().to_string();
    assert!(error.contains("block `maps` gives a tensor on Cpu") && error.contains("vb.device()"), "{error}");

    // The sample step runs it five times.
    let takes = |y: &Tensor| Tensor::zeros(1 << 40, DType::F32, y.device());
    for (misbehaves, words) in [(moves as fn(&Tensor) -> _, "a tensor on Cpu"), (takes, "OUT_OF_MEMORY")] {
        let mut model = layer(misbehaves, 6).shard(Devices::gpus(1), (&x, &x)).await.unwrap();
        let error = model.step((&x, &x)).await.unwrap_err().to_string();
        println!("{error}");
        assert!(error.contains("block `maps`") && error.contains(words), "{error}");
        let loss = model.step((&x, &x)).await.unwrap().loss;
        assert!(loss.is_finite(), "{loss}");
        model.close().await.unwrap();
    }
}

#[tokio::test]
async fn captures_and_gpus_that_are_not_there_are_refused() {
    let (x, y) = batch(0, SAMPLES);
    let config = Config { capture: Capture::Step, ..Config::default() };
    let error = sharded(config).shard(Devices::gpus(1), (&x, &y)).await.unwrap_err().to_string();
    assert!(error.contains("candle allocates in every call"), "{error}");
    let error = sharded(rates()).shard(Devices::gpus(1000), (&x, &y)).await.unwrap_err().to_string();
    assert!(error.contains("1000 ranks on GPUs") || error.contains("libcuda"), "{error}");
}
