//! The printed form of a plan and of a simulation.
//!
//! Law: numbers are laid out here and made elsewhere.

use std::collections::BTreeMap;
use std::fmt::Write;

use warpweft_base::errors::shown;
use warpweft_plan::cluster::Cluster;
use warpweft_plan::model::Group;
use warpweft_plan::plan::{Forecast, StepPlan};
use warpweft_session::config::{Prefetch, PrefetchPolicy};
use warpweft_session::session::Simulation;

use super::super::text::{Align, Table, bytes, duration};
use super::Declaration;

pub(super) fn size(count: usize) -> String {
    bytes(count as u64)
}

/// When gathers start, and of a policy that counts also with which machine.
pub(super) fn policy(prefetch: &Prefetch, machine: &str) -> String {
    match prefetch.policy {
        None => prefetch.to_string(),
        Some(PrefetchPolicy::Auto) => format!("{prefetch}, counted with `{}`", shown(machine)),
    }
}

pub(super) fn totals(plan: &StepPlan) -> String {
    let mesh = plan.weights.mesh;
    let mut ops: BTreeMap<(String, String), (usize, usize)> = BTreeMap::new();
    for task in &plan.tasks {
        let lane = plan.lanes.get(task.lane.index()).map_or_else(String::new, |lane| lane.kind.to_string());
        let op = match task.op.group().filter(|_| {
            mesh.replicas() > 1 || mesh.tensor() > 1 || mesh.has_experts() || mesh.depth(Group::Shard) > 1
        }) {
            Some(group) => format!("{} ({group})", task.op.name()),
            None => task.op.name().to_owned(),
        };
        let (tasks, wire) = ops.entry((lane, op)).or_default();
        *tasks += 1;
        *wire = wire.saturating_add(task.wire_bytes);
    }
    let mut table = Table::new([
        ("lane", Align::Left),
        ("op", Align::Left),
        ("tasks", Align::Right),
        ("received", Align::Right),
    ]);
    for ((lane, op), (tasks, wire)) in ops {
        let wire = if wire == 0 { String::new() } else { size(wire) };
        table.row([lane, op, tasks.to_string(), wire]);
    }
    let bounds = &plan.bounds;
    let collectives = plan.tasks.iter().filter(|task| task.collective.is_some()).count();
    let fences: usize = plan.tasks.iter().map(|task| task.waits.len()).sum();
    let mut text = table.to_string();
    let over = bounds.transient_bytes as f64 / bounds.live_bytes.max(1) as f64;
    let rows = [
        ("tasks", format!("{}, of which {collectives} collectives; {fences} fences", plan.tasks.len())),
        ("arena", format!("{} per rank", size(plan.arena.bytes()))),
        ("  resident", format!("{}: optimizer state, shards, staging", size(bounds.resident_bytes))),
        ("  transient", format!("{}, {over:.3} times the bound below", size(bounds.transient_bytes))),
        ("  live bound", format!("{} at {}", size(bounds.live_bytes), plan.describe(bounds.live_peak))),
        ("wire", format!("{} received per rank and step", size(bounds.wire_bytes))),
        ("fingerprint", format!("{:016x}, {mesh}", plan.fingerprint())),
    ];
    text.push('\n');
    for (name, value) in rows {
        let _ = writeln!(text, "{name:<13} {value}");
    }
    text
}

/// What is said of planes that are derived on demand.
pub(super) fn columnwise(saving: Option<usize>) -> String {
    let on_demand = match saving {
        Some(0) => return String::new(),
        Some(bytes) => format!("on demand saves {} of transient memory over keeping them", size(bytes)),
        None => "on demand; keeping them would not fit the budget".to_owned(),
    };
    format!("{:<13} {on_demand}\n", "columnwise")
}

pub(super) fn outcome(declared: &Declaration, cluster: &Cluster, simulation: &Simulation) -> String {
    let Declaration { name, tokens, config, .. } = declared;
    let Simulation { plan, step, exposure, busy, device, .. } = simulation;
    let share =
        |part: warpweft_base::time::Nanoseconds| format!("{:.1} %", 100.0 * part.fraction_of(exposure.step));
    let micro_batches = plan.micro_batches;
    let (tokens, rate) = tokens.map_or_else(Default::default, |tokens| {
        let rate = tokens as f64 * f64::from(micro_batches) / step.as_secs_f64();
        // A machine without latencies and as fast as can be takes less than a nanosecond.
        let rate = rate.is_finite().then(|| format!("; {rate:.0} tokens per second and GPU"));
        (
            format!("{tokens} tokens per rank and micro-batch, {micro_batches} a step, "),
            rate.unwrap_or_default(),
        )
    });
    let arena = plan.arena.bytes();
    let of_gpu = 100.0 * arena as f64 / cluster.gpu.memory_bytes as f64;
    let overlap =
        exposure.overlap().map_or_else(String::new, |part| format!("; {:.1} % of it hidden", 100.0 * part));
    let rows = [
        ("model", format!("{}, {tokens}{}", shown(name), policy(&config.prefetch, &cluster.name))),
        ("machine", device.clone()),
        ("step", format!("{}{rate}", duration(*step))),
        ("  compute", share(exposure.compute)),
        (
            "  exposed",
            format!("{} (communication {}{overlap})", share(exposure.exposed), share(exposure.communication)),
        ),
        ("  skew", share(exposure.skew)),
        ("  idle", share(exposure.idle)),
        (
            "memory",
            format!(
                "{} per rank, {of_gpu:.1} % of the GPU's; {} of it transient",
                size(arena),
                size(plan.bounds.transient_bytes)
            ),
        ),
        ("wire", format!("{} received per rank and step", size(plan.bounds.wire_bytes))),
    ];
    let mut text = String::new();
    for (name, value) in rows {
        let _ = writeln!(text, "{name:<10} {value}");
    }
    text.push('\n');
    let mut table = Table::new([("lane", Align::Left), ("busy", Align::Right), ("share", Align::Right)]);
    for (lane, time) in busy {
        let busy = duration(std::time::Duration::from_nanos(time.count()));
        table.row([lane.to_string(), busy, share(*time)]);
    }
    text + &table.to_string()
}

/// What a simulation would refuse: an arena beyond the memory of the cluster's GPUs.
pub(super) fn too_large(plan: &StepPlan, cluster: &Cluster) -> Option<String> {
    let (arena, memory) = (plan.arena.bytes(), cluster.gpu.memory_bytes);
    (arena as u64 > memory).then(|| {
        format!(
            "a rank's arena of {} does not fit a GPU of `{}`, which has {}; {}",
            size(arena),
            shown(&cluster.name),
            bytes(memory),
            match plan.bounds.resident_bytes as u64 > memory {
                true => "what is resident alone is more, so use more ranks to a replica",
                false => "set a lower memory.budget (--budget) or prefetch.depth, use more ranks, or take fewer tokens a micro-batch",
            }
        )
    })
}

/// What a step is expected to take.
pub(super) fn forecast(forecast: &Forecast) -> String {
    let time = |nanoseconds: u64| duration(std::time::Duration::from_nanos(nanoseconds));
    let late = forecast.gathers.iter().filter(|slack| slack.nanoseconds < 0).count();
    let least = forecast.gathers.iter().map(|slack| slack.nanoseconds).min();
    let least = least.map_or_else(
        || "none".to_owned(),
        |least| match least < 0 {
            true => format!("least −{}", time(least.unsigned_abs())),
            false => format!("least {}", time(least.unsigned_abs())),
        },
    );
    let over = forecast.step as f64 / forecast.step_bound.max(1) as f64;
    let rows = [
        ("step", format!("{} expected, {over:.3} times the bound below", time(forecast.step))),
        ("  bound", format!("{}: no schedule of this plan's tasks takes less", time(forecast.step_bound))),
        ("  compute", time(forecast.compute)),
        (
            "  exposed",
            format!(
                "{}; without contention no schedule exposes less than {}{}",
                time(forecast.exposed),
                time(forecast.exposed_bound),
                // Else the two seem to contradict each other.
                match forecast.exposed < forecast.exposed_bound {
                    true => "; calls that contention slows hide more",
                    false => "",
                }
            ),
        ),
        ("gathers", format!("{}, of which {late} hold a call up; slack {least}", forecast.gathers.len())),
    ];
    let mut text = String::new();
    for (name, value) in rows {
        let _ = writeln!(text, "{name:<13} {value}");
    }
    text
}
