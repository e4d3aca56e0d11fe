//! The first losses of whole sessions, on GPUs against those on the CPU.
//!
//! Law: same programs, seeds and inputs; what is left are sums in another order. The first loss is a forward pass
//! and must be close; later ones may drift, because a quantized weight can fall to the other side of a tie.

use std::io::Write;

use warpweft::config::{Capture, Config as Settings, Transport};
use warpweft::format::Format;
use warpweft::id::RankId;
use warpweft::session::Session;

use super::cuda::library::Gpus;
use super::turn::turn;
use crate::init::Stream;
use crate::model::Config;
use crate::placement::Placement;
use crate::program;
use crate::start::{Job, start};

const STEPS: usize = 20;

/// The losses of the first steps, and that of an evaluation after them.
fn losses(format: Format, settings: &Settings, placement: &Placement) -> Vec<f32> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(run(format, settings, placement))
}

async fn run(format: Format, settings: &Settings, placement: &Placement) -> Vec<f32> {
    let config = Config { batch: 1, layers: 2, ..Config::default() }.check().unwrap();
    let model = program::weights(&config, format).unwrap();
    let declared = program::declare(&config, &model).unwrap();
    let job = Job { settings, config: &config, declared: &declared, seed: 1 };
    let mut session = start(job, placement, None).await.unwrap();
    let ranks = session.ranks();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        write(&mut session, &config, "train", step, ranks);
        let report = session.step("train").await.unwrap();
        assert_eq!(report.not_captured, []);
        losses.push(report.mean_output("loss").unwrap());
    }
    write(&mut session, &config, "evaluate", STEPS, ranks);
    losses.push(session.step("evaluate").await.unwrap().mean_output("loss").unwrap());
    session.close().await.unwrap();
    losses
}

/// Text that can be learned: each byte says much about the next.
fn write(session: &mut Session, config: &Config, program: &str, step: usize, ranks: u32) {
    for rank in 0..ranks {
        let mut stream = Stream::keyed(step as u64, [u64::from(rank)]);
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
    settings.prefetch.depth = Some(2);
    settings.capture = capture;
    settings
}

/// The GPUs of so many ranks: their own where there are enough, else all on the first.
fn placement(found: &Gpus, ranks: u32) -> Placement {
    let own = found.count() >= ranks;
    Placement::Cuda { gpus: (0..ranks).map(|rank| if own { rank } else { 0 }).collect() }
}

fn nvfp4() -> Format {
    "nvfp4_2d".parse().unwrap()
}

#[test]
fn the_first_losses_are_those_of_the_cpu() {
    let Some((found, _alone)) = turn("losses") else { return };
    let settings = settings(Capture::Off);
    for (format, ranks) in [(Format::F32, 1), (nvfp4(), 2)] {
        let cpu = losses(format, &settings, &Placement::Cpu { ranks, instead: None });
        let gpu = losses(format, &settings, &placement(&found, ranks));
        assert!((gpu[0] - cpu[0]).abs() < 1e-3, "step 1: {} on the GPU, {} on the CPU", gpu[0], cpu[0]);
        assert!(cpu[STEPS] < cpu[0] - 1.0, "{cpu:?}: a model that learns nothing proves nothing");
        for (step, (gpu, cpu)) in gpu.iter().zip(&cpu).enumerate() {
            assert!((gpu - cpu).abs() < 0.01 * cpu, "step {}: {gpu} on the GPU, {cpu} on the CPU", step + 1);
        }
    }
}

#[test]
fn captured_steps_have_the_bits_of_eager_ones() {
    let Some((found, _alone)) = turn("captured steps") else { return };
    // Ranks that share a GPU are not captured.
    let on_gpus = placement(&found, found.count().min(4));
    let with = |capture, transport| {
        let settings = Settings { transport, ..settings(capture) };
        losses(nvfp4(), &settings, &on_gpus)
    };
    let eager = with(Capture::Off, Transport::Peer);
    assert_eq!(with(Capture::Step, Transport::Peer), eager);
    assert_eq!(with(Capture::Step, Transport::Nccl), eager, "by NCCL");
}

/// `reduce = "ordered"`: the same bits for every depth and way of transport, on as many GPUs as there are, up
/// to four.
#[test]
fn losses_do_not_depend_on_depth_or_transport() {
    let Some((found, _alone)) = turn("depths and transports") else { return };
    let ranks = found.count().clamp(2, 4);
    let on_gpus = placement(&found, ranks);
    let with = |depth, transport| {
        let mut settings = settings(Capture::Off);
        (settings.prefetch.depth, settings.transport) = (Some(depth), transport);
        losses(nvfp4(), &settings, &on_gpus)
    };
    let expected = with(0, Transport::Peer);
    for depth in [1, 2, 4] {
        assert_eq!(with(depth, Transport::Peer), expected, "depth {depth}");
    }
    if found.count() < ranks {
        writeln!(std::io::stderr(), "skipped: NCCL needs a GPU for each rank").unwrap();
        return;
    }
    for depth in [0, 1, 2, 4] {
        assert_eq!(with(depth, Transport::Nccl), expected, "depth {depth} by NCCL");
    }
}
