//! Simulated weak scaling against a published curve: a table, and both in one picture.
//!
//! `cargo run --release --example 09_weak_scaling -- PICTURE.svg`
//!
//! The model, the machine and what is assumed about both are in `examples/simulate/weak-scaling/`. No number of the machine was
//! chosen by the outcome; one shape of the model was, and says so. What the published run does not tell, and what matters most, is how fast its GPUs compute; so there are two
//! simulated curves, one with the speed of the preset and one with half of it.

use std::path::{Path, PathBuf};

use warpweft::cluster::Cluster;
use warpweft::config::{CallList, Config, Declared};
use warpweft::session::{Session, SessionError};
use warpweft::trace::{LineChart, Series};

/// GPUs of one group that holds every weight once, and so of one rail each.
const GROUP: u32 = 64;

/// GPUs, and throughput per GPU as a share of that of the first, in percent: Megatron-LM,
/// docs/api-guide/core/generalized_tensor_parallel.md, §1.7. Its text gives 100 % at the first number of GPUs and at least 93 % out
/// to the last; the points between are its figure's at second hand, taken as doublings.
const PUBLISHED: [(u32, f64); 6] =
    [(128, 100.0), (256, 98.0), (512, 97.0), (1024, 93.0), (2048, 94.0), (3072, 93.0)];

/// Steps to take the mean of: delays are drawn anew in each.
const STEPS: u32 = 5;

/// What a number of GPUs comes to.
struct Point {
    gpus: u32,
    milliseconds: f64,
    exposed: f64,
    /// Bytes of a rank's arena.
    arena: usize,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let picture = std::env::args().nth(1).map(PathBuf::from);
    let picture = picture.unwrap_or_else(|| std::env::temp_dir().join("weak_scaling.svg"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/simulate/weak-scaling");
    let calls = CallList::load(&folder.join("model.toml"))?;
    let program = calls.program(&calls.model()?)?;
    let config = Config::load(Some(&folder.join("config.toml")))?;
    let fast = Cluster::load(&folder.join("cluster.toml"))?;

    let mut slow = fast.clone();
    let speeds = &mut slow.gpu.flops_per_s;
    for speed in [&mut speeds.f32, &mut speeds.bf16, &mut speeds.fp8, &mut speeds.fp4] {
        *speed /= 2.0;
    }
    let scaled = |cluster: &Cluster| -> Result<Vec<Point>, SessionError> {
        let point = |(gpus, _): (u32, f64)| {
            let simulation = Session::simulate(&program, &config, cluster, gpus / GROUP, STEPS)?;
            Ok(Point {
                gpus,
                milliseconds: simulation.step.as_secs_f64() * 1e3,
                exposed: 100.0 * simulation.exposure.fraction(),
                arena: simulation.plan.arena.bytes(),
            })
        };
        PUBLISHED.into_iter().map(point).collect()
    };
    let (fast, slow) = (scaled(&fast)?, scaled(&slow)?);

    println!("GPUs   published   simulated                          at half the speed        memory");
    for ((published, fast_point), slow_point) in PUBLISHED.iter().zip(&fast).zip(&slow) {
        println!(
            "{:>4}   {:>7.0} %   {:>5.1} %  {:>6.1} ms, {:>4.1} % exposed   {:>5.1} %  {:>6.1} ms, {:>4.1} %   {:>5.1} GiB",
            published.0,
            published.1,
            efficiency(&fast, fast_point),
            fast_point.milliseconds,
            fast_point.exposed,
            efficiency(&slow, slow_point),
            slow_point.milliseconds,
            slow_point.exposed,
            fast_point.arena as f64 / f64::from(1u32 << 30),
        );
    }
    let published = PUBLISHED.map(|(gpus, share)| (f64::from(gpus), share)).to_vec();
    let chart = LineChart {
        title: "Weak scaling: throughput per GPU against 128 GPUs".to_owned(),
        x_label: "GPUs".to_owned(),
        y_label: "efficiency, %".to_owned(),
        series: vec![
            Series { name: "published for GTP".to_owned(), points: published },
            Series { name: "simulated".to_owned(), points: curve(&fast) },
            Series { name: "simulated, half the speed".to_owned(), points: curve(&slow) },
        ],
        ..LineChart::default()
    };
    std::fs::write(&picture, chart.render())?;
    println!("picture: {}", picture.display());
    Ok(())
}

/// Work per GPU is the same for any number of them, so throughput goes as one over time.
fn efficiency(all: &[Point], point: &Point) -> f64 {
    all.first().map_or(0.0, |first| 100.0 * first.milliseconds / point.milliseconds)
}

fn curve(all: &[Point]) -> Vec<(f64, f64)> {
    all.iter().map(|point| (f64::from(point.gpus), efficiency(all, point))).collect()
}
