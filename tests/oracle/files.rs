//! Model files and decoders by policies, as `warpweft plan --cluster` plans them and `warpweft simulate` runs
//! them.
//!
//! Beside a plan stands what a step of it takes in nanoseconds: by its forecast, and for files also
//! simulated.

use std::error::Error;
use std::path::Path;

use warpweft_plan::cluster::Cluster;
use warpweft_plan::model::{Decoder, StepProgram};
use warpweft_session::cluster::preset;
use warpweft_session::config::{CallList, Config, Declared};
use warpweft_session::session::{costs_of, plan_program_on, simulate_program};

use crate::planned;
use crate::record::Entry;
use crate::shapes::{SHAPES, TOKENS, program};

/// Of `two-towers.toml` the buffers have the sizes of so many.
const RANKS: u32 = 8;

const POLICIES: [(&str, &str); 10] = [
    ("gathers on demand", "prefetch.depth = 0"),
    ("one call ahead", "prefetch.depth = 1"),
    ("four calls ahead", "prefetch.depth = 4"),
    ("a limit in bytes", "prefetch.bytes = \"6GiB\""),
    ("auto", "prefetch.policy = \"auto\""),
    ("everything kept", "backward = \"keep\"\ncolumnwise = \"keep\"\nacross_micro_batches = \"keep\""),
    ("gradients in bf16", "reduce_dtype = \"bf16\"\nreduce_delay = 7\nreduce_every = \"step\""),
    ("replicas", "mesh.dp_replicate = 2\ncommunicators = 3"),
    ("collectives that sum", "reduce = \"nccl\"\ncommunicators = 1\nreduce_every = \"micro_batch\""),
    ("chunks", "prefetch.chunk = \"32MiB\"\nprefetch.depth = 2\nderive_ahead = true"),
];

/// Plans of all of them.
pub(crate) fn plans() -> Result<Vec<Entry>, Box<dyn Error>> {
    let mut cluster = preset("h100x8-ib").ok_or("a preset")??;
    // Room for models that are meant for more ranks.
    cluster.gpu.memory_bytes = 1 << 42;
    let mut all = Vec::new();
    for (name, program) in model_files()? {
        for (policy, text) in POLICIES {
            let config = Config::from_toml_str(text, policy)?;
            let simulation = simulate_program(&program, &config, &cluster, RANKS, 1)?;
            let forecast = simulation.plan.forecast(&costs_of(&config, &cluster, RANKS)?);
            let entry = planned(format!("{name}, {policy}"), &simulation.plan);
            all.push(entry.and(forecast.step).and(simulation.step.as_nanos()));
        }
    }
    for (name, ranks, sizes) in SHAPES {
        let program = program(name, sizes, TOKENS[1]);
        for (policy, text) in POLICIES {
            let config = Config::from_toml_str(text, policy)?;
            let plan = plan_program_on(&program, &config, &cluster, ranks)?;
            let forecast = plan.forecast(&costs_of(&config, &cluster, ranks)?);
            all.push(planned(format!("decoder {name}, {policy}"), &plan).and(forecast.step));
        }
    }
    all.extend(weak_scaling()?);
    Ok(all)
}

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/simulate")
}

/// Every model file of the examples: a decoder by its sizes, or a list of calls.
fn model_files() -> Result<Vec<(String, StepProgram)>, Box<dyn Error>> {
    let files: Result<Vec<_>, _> =
        std::fs::read_dir(folder())?.map(|entry| entry.map(|e| e.path())).collect();
    let mut paths: Vec<_> = files?.into_iter().filter(|path| path.extension().is_some()).collect();
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        let (name, text) =
            (path.file_name().unwrap_or_default().to_string_lossy(), std::fs::read_to_string(&path)?);
        let program = if CallList::is_meant_by(&text) {
            let calls = CallList::from_toml(&text, &name)?;
            calls.program(&calls.model()?)?
        } else {
            let decoder = Decoder::from_toml(&text, &name)?;
            decoder.program(&decoder.model()?)?
        };
        found.push((name.into_owned(), program));
    }
    Ok(found)
}

/// Example 09: one rail of so many ranks, whose replicas are pairs or one.
fn weak_scaling() -> Result<Vec<Entry>, Box<dyn Error>> {
    let folder = folder().join("weak-scaling");
    let text = |file: &str| std::fs::read_to_string(folder.join(file));
    let calls = CallList::from_toml(&text("model.toml")?, "model.toml")?;
    let program = calls.program(&calls.model()?)?;
    let fast = Cluster::from_toml(&text("cluster.toml")?, "cluster.toml")?;
    let mut slow = fast.clone();
    let speeds = &mut slow.gpu.flops_per_s;
    for speed in [&mut speeds.f32, &mut speeds.bf16, &mut speeds.fp8, &mut speeds.fp4] {
        *speed /= 2.0;
    }
    let mut all = Vec::new();
    for (speed, cluster) in [("", fast), (", half the speed", slow)] {
        for ranks in [2, 4, 8, 16, 32, 48] {
            for (layout, replicas) in [("pairs", ranks / 2), ("sharded", 1)] {
                let mut config = Config::from_toml_str(&text("config.toml")?, "config.toml")?;
                config.mesh.dp_replicate = Some(replicas);
                let simulation = simulate_program(&program, &config, &cluster, ranks, 5)?;
                let entry = planned(format!("09_weak_scaling on {ranks}, {layout}{speed}"), &simulation.plan);
                all.push(entry.and(simulation.step.as_nanos()));
            }
        }
    }
    Ok(all)
}
