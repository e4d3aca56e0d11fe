//! Simulated weak scaling against a published curve: a table, and both in one picture.
//!
//! `cargo run --release --example 09_weak_scaling -- PICTURE.svg`
//!
//! The model, the machine and what is assumed about both are in `examples/simulate/weak-scaling/`. No number
//! of the machine was chosen by the outcome; one shape of the model was, and says so. What the published run
//! does not tell, and what matters most, is how fast its GPUs compute; so each layout of the weights is
//! simulated twice, with the speed of the preset and with half of it.

#[path = "shared/print.rs"]
mod print;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use warpweft::cluster::Cluster;
use warpweft::config::{CallList, Config, Declared, OptimizerShard};
use warpweft::session::{SessionError, simulate_program};
use warpweft::trace::{LineChart, Series};

use print::println;

/// GPUs of one NVLink domain that share the work of a group, and so rails: a GPU of a rail stands for its domain.
const GROUP: u32 = 64;

/// How the GPUs of a rail hold the 64th of the weights that is theirs.
#[derive(Clone, Copy)]
enum Layout {
    /// Each has its share of one copy.
    Sharded,
    /// Two share a copy, as GTP's experts do (`EGTP2`), and gradients are summed over the copies, each of which keeps
    /// the optimizer's state of all or, as GTP's do, of a slice.
    Pairs(OptimizerShard),
}

/// GPUs, and throughput per GPU as a share of that of the first, in percent: Megatron-LM,
/// docs/api-guide/core/generalized_tensor_parallel.md, §1.7. Its text gives 100 % at the first number of GPUs
/// and at least 93 % out to the last; the points between are its figure's at second hand, taken as doublings.
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

/// What is simulated, for every number of GPUs.
struct Scaled {
    name: &'static str,
    points: Vec<Point>,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("09_weak_scaling: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
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
    let scaled = |name, layout, cluster: &Cluster| -> Result<Scaled, SessionError> {
        let point = |(gpus, _): (u32, f64)| {
            let ranks = gpus / GROUP;
            let mut config = config.clone();
            if let Layout::Pairs(state) = layout {
                (config.mesh.dp_shard, config.optimizer.shard) = (Some(2), state);
            }
            let simulation = simulate_program(&program, &config, cluster, ranks, STEPS)?;
            Ok::<_, SessionError>(Point {
                gpus,
                milliseconds: simulation.step.as_secs_f64() * 1e3,
                exposed: 100.0 * simulation.exposure.fraction(),
                arena: simulation.plan.arena.bytes(),
            })
        };
        Ok(Scaled { name, points: PUBLISHED.into_iter().map(point).collect::<Result<_, _>>()? })
    };
    let [sliced, whole] = [OptimizerShard::Replicas, OptimizerShard::DpShard].map(Layout::Pairs);
    let all = [
        scaled("state over replicas", sliced, &fast)?,
        scaled("state over replicas, half the speed", sliced, &slow)?,
        scaled("pairs × replicas", whole, &fast)?,
        scaled("pairs × replicas, half the speed", whole, &slow)?,
        scaled("sharded over all", Layout::Sharded, &fast)?,
        scaled("sharded over all, half the speed", Layout::Sharded, &slow)?,
    ];

    for scaled in &all {
        println!("{}\nGPUs   published   simulated                    exposed     memory", scaled.name);
        for ((_, published), point) in PUBLISHED.iter().zip(&scaled.points) {
            println!(
                "{:>4}   {published:>7.0} %   {:>7.1} %   {:>8.1} ms   {:>9.1} %   {:>5.1} GB",
                point.gpus,
                efficiency(&scaled.points, point),
                point.milliseconds,
                point.exposed,
                point.arena as f64 / 1e9,
            );
        }
        println!();
    }
    let published = PUBLISHED.map(|(gpus, share)| (f64::from(gpus), share)).to_vec();
    let mut series = vec![Series { name: "published for GTP".to_owned(), points: published }];
    series.extend(
        all.iter().map(|scaled| Series { name: scaled.name.to_owned(), points: curve(&scaled.points) }),
    );
    let chart = LineChart {
        title: "Weak scaling: throughput per GPU against 128 GPUs".to_owned(),
        x_label: "GPUs".to_owned(),
        y_label: "efficiency, %".to_owned(),
        series,
        ..LineChart::default()
    };
    std::fs::write(&picture, chart.render()).map_err(|error| {
        let path = picture.display();
        format!("the picture `{path}` cannot be written ({error}); name a file that you may write")
    })?;
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
