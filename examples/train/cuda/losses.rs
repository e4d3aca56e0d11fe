//! Whole sessions: the first losses on GPUs against those on the CPU.
//!
//! Law: same programs, seeds and inputs; what is left are sums in another order. The first loss is a forward pass
//! and must be close; later ones may drift, because a quantized weight can fall to the other side of a tie.

use std::io::Write as _;

use warpweft::config::{Capture, Config as Settings};
use warpweft::format::Format;
use warpweft::id::RankId;
use warpweft::session::Session;

use super::cuda::gpus;
use crate::init::Stream;
use crate::model::Config;
use crate::placement::Placement;
use crate::program;
use crate::start::{Job, start};

const STEPS: u64 = 20;

/// The losses of the first steps, and that of an evaluation behind them.
async fn losses(format: Format, settings: &Settings, placement: &Placement) -> Vec<f32> {
    let config = Config { batch: 1, layers: 2, ..Config::default() }.check().unwrap();
    let model = program::weights(&config, format).unwrap();
    let declared = program::declare(&config, &model).unwrap();
    let job = Job { settings, config: &config, declared: &declared, seed: 1 };
    let mut session = start(job, placement).await.unwrap();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        write(&mut session, &config, "train", step, placement.ranks());
        losses.push(session.step("train").await.unwrap().mean_output("loss").unwrap());
    }
    write(&mut session, &config, "evaluate", STEPS, placement.ranks());
    losses.push(session.step("evaluate").await.unwrap().mean_output("loss").unwrap());
    session.close().await.unwrap();
    losses
}

/// Text that can be learned: each byte says much about the next.
fn write(session: &mut Session, config: &Config, program: &str, step: u64, ranks: u32) {
    for rank in 0..ranks {
        let mut stream = Stream::keyed(step, [u64::from(rank)]);
        let start = stream.below(64);
        let bytes: Vec<u8> =
            (0..=config.tokens()).map(|i| ((start + i * 5 + stream.below(3)) % 64) as u8).collect();
        session.write_input(program, RankId::new(rank), "tokens", &bytes[..config.tokens()]).unwrap();
        session.write_input(program, RankId::new(rank), "targets", &bytes[1..]).unwrap();
    }
}

fn settings(capture: Capture) -> Settings {
    let mut settings = Settings::default();
    settings.optimizer.lr = 1e-3;
    settings.prefetch.depth = 2;
    settings.capture = capture;
    settings
}

/// The GPUs of so many ranks: their own where there are enough, else all on the first. None without a GPU.
fn placement(test: &str, ranks: u32) -> Option<Placement> {
    let reason = match gpus() {
        Ok(found) if found.count() > 0 => {
            let own = found.count() >= ranks;
            return Some(Placement::Cuda {
                gpus: (0..ranks).map(|rank| if own { rank } else { 0 }).collect(),
            });
        }
        Ok(_) => "this machine shows no GPU".to_owned(),
        Err(failure) => failure.to_string(),
    };
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
    None
}

#[tokio::test]
async fn the_first_losses_are_those_of_the_cpu() {
    for (format, ranks) in [(Format::F32, 1), ("nvfp4_2d".parse().unwrap(), 2)] {
        let Some(on_gpus) = placement("losses", ranks) else { return };
        let settings = settings(Capture::Off);
        let cpu = losses(format, &settings, &Placement::Cpu { ranks, instead: None }).await;
        let gpu = losses(format, &settings, &on_gpus).await;
        assert!((gpu[0] - cpu[0]).abs() < 1e-3, "step 1: {} on the GPU, {} on the CPU", gpu[0], cpu[0]);
        assert!(
            cpu[STEPS as usize - 1] < cpu[0] - 0.2,
            "{cpu:?}: a model that learns nothing proves nothing"
        );
        for (step, (gpu, cpu)) in gpu.iter().zip(&cpu).enumerate() {
            assert!((gpu - cpu).abs() < 0.01 * cpu, "step {}: {gpu} on the GPU, {cpu} on the CPU", step + 1);
        }
    }
}

#[tokio::test]
async fn recorded_steps_have_the_bits_of_eager_ones() {
    let Some(on_gpus) = placement("recorded steps", 2) else { return };
    let format = "nvfp4_2d".parse().unwrap();
    let eager = losses(format, &settings(Capture::Off), &on_gpus).await;
    let recorded = losses(format, &settings(Capture::Step), &on_gpus).await;
    assert_eq!(eager, recorded);
}
