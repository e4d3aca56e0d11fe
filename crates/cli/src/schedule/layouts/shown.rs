//! What was found: a table, the configuration of the best layout, the same as JSON, and a picture.
//!
//! Law: numbers are laid out here and made elsewhere.

use std::fmt;

use serde::Serialize;
use warpweft_base::errors::shown;
use warpweft_session::config::MeshAxes;
use warpweft_session::trace::{LineChart, Mark, Series};

use super::super::super::text::{Align, Table, duration};
use super::super::text::size;
use super::Found;
use super::layout::{Simulated, Unfit};

/// Exposed communication of a smaller share of the step binds nothing.
const BINDING: f64 = 0.01;

/// The axes as they stand on a command line.
pub(super) fn mesh(axes: &MeshAxes) -> String {
    let MeshAxes { dp_replicate, dp_shard, cp, tp, ep, ep_shard, optimizer_instances, .. } = *axes;
    let named = [
        ("tp", tp),
        ("cp", cp),
        ("ep", ep),
        ("ep_shard", ep_shard.unwrap_or(1)),
        ("dp_shard", dp_shard.unwrap_or(1)),
        ("dp_replicate", dp_replicate.unwrap_or(1)),
        ("optimizer_instances", optimizer_instances),
    ];
    let more: Vec<String> = named
        .into_iter()
        .filter(|(name, ranks)| *ranks > 1 || *name == "dp_shard")
        .map(|(name, ranks)| format!("{name}={ranks}"))
        .collect();
    more.join(",")
}

impl Simulated {
    /// The link that most of the exposed communication waits for.
    fn binding_link(&self) -> Option<&'static str> {
        let link = if self.between >= 0.5 { "between nodes" } else { "inside nodes" };
        (self.exposed >= BINDING).then_some(link)
    }

    fn tokens_per_second(&self, tokens: u64) -> f64 {
        tokens as f64 / self.step.as_secs_f64()
    }
}

impl fmt::Display for Found {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new([
            ("mesh", Align::Left),
            ("step", Align::Right),
            ("tokens/s a GPU", Align::Right),
            ("exposed", Align::Right),
            ("binding link", Align::Left),
            ("memory", Align::Right),
            ("transient", Align::Right),
        ]);
        for layout in &self.layouts {
            let rate = self
                .tokens
                .map_or_else(String::new, |tokens| format!("{:.0}", layout.tokens_per_second(tokens)));
            table.row([
                mesh(&layout.axes),
                duration(layout.step),
                rate,
                format!("{:.1} %", 100.0 * layout.exposed),
                layout.binding_link().unwrap_or("none").to_owned(),
                size(layout.memory.0),
                size(layout.memory.1),
            ]);
        }
        write!(formatter, "{table}")?;
        if self.slower > 0 {
            writeln!(formatter, "{} more may fit, and are expected to be slower", self.slower)?;
        }
        let (memory, refused): (Vec<_>, Vec<_>) =
            self.unfit.iter().partition(|(_, reason)| matches!(reason, Unfit::Memory { .. }));
        for (out, what) in [(memory, "fit no GPU"), (refused, "cannot be")] {
            if let Some((axes, reason)) = out.first() {
                writeln!(formatter, "{} {what}, such as {}: {reason}", out.len(), mesh(axes))?;
            }
        }
        let Some(best) = self.layouts.first() else { return Ok(()) };
        writeln!(
            formatter,
            "\n# {}: {} a step, {} of memory per rank",
            mesh(&best.axes),
            duration(best.step),
            size(best.memory.0)
        )?;
        let (MeshAxes { cp, tp, .. }, micro_batch) =
            (best.axes, self.tokens.unwrap_or(0) / u64::from(best.micro_batches.max(1)));
        if let ranks @ 2.. = cp * tp {
            let tokens = micro_batch * u64::from(ranks);
            writeln!(
                formatter,
                "# tokens of the {ranks} ranks that share texts, as the model's file names them for this mesh: {tokens}"
            )?;
        }
        for key in best.config.taken_away() {
            writeln!(formatter, "# in place of {key}")?;
        }
        writeln!(formatter, "{}", best.config.changes().trim_end())
    }
}

#[derive(Serialize)]
struct Row<'a> {
    mesh: &'a MeshAxes,
    step_ms: f64,
    tokens_per_second_and_gpu: Option<f64>,
    exposed: f64,
    binding_link: Option<&'static str>,
    memory_bytes: usize,
    transient_bytes: usize,
    /// As TOML.
    config: String,
}

impl<'a> Row<'a> {
    fn of(layout: &'a Simulated, tokens: Option<u64>) -> Self {
        let Simulated { axes, config, step, exposed, memory, .. } = layout;
        Self {
            mesh: axes,
            step_ms: step.as_secs_f64() * 1e3,
            tokens_per_second_and_gpu: tokens.map(|tokens| layout.tokens_per_second(tokens)),
            exposed: *exposed,
            binding_link: layout.binding_link(),
            memory_bytes: memory.0,
            transient_bytes: memory.1,
            config: config.changes(),
        }
    }
}

#[derive(Serialize)]
struct Out {
    mesh: MeshAxes,
    reason: String,
}

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    cluster: &'a str,
    layouts: Vec<Row<'a>>,
    expected_slower: usize,
    out: Vec<Out>,
}

impl Found {
    /// The same for programs; the best layout is the first.
    pub(super) fn json(&self) -> String {
        let out = |(mesh, reason): &(MeshAxes, Unfit)| Out { mesh: *mesh, reason: reason.to_string() };
        let report = Report {
            model: &self.name,
            cluster: &self.cluster,
            layouts: self.layouts.iter().map(|layout| Row::of(layout, self.tokens)).collect(),
            expected_slower: self.slower,
            out: self.unfit.iter().map(out).collect(),
        };
        serde_json::to_string_pretty(&report).unwrap_or_default() + "\n"
    }

    /// Step time against memory, a series for every number of ranks that compute parts of layers.
    pub(super) fn picture(&self) -> String {
        let at = |layout: &Simulated| {
            (layout.memory.0 as f64 / f64::from(1u32 << 30), layout.step.as_secs_f64() * 1e3)
        };
        let mut widths: Vec<u32> = self.layouts.iter().map(|layout| layout.axes.tp).collect();
        widths.sort_unstable();
        widths.dedup();
        let series = widths.into_iter().map(|tp| Series {
            name: format!("tp = {tp}"),
            points: self.layouts.iter().filter(|layout| layout.axes.tp == tp).map(at).collect(),
        });
        LineChart {
            title: format!("{} on {}: step time against memory", shown(&self.name), shown(&self.cluster)),
            x_label: "memory per rank, GiB".to_owned(),
            y_label: "time of a step, ms".to_owned(),
            series: series.collect(),
            references: Vec::new(),
            scattered: true,
            mark: self.layouts.first().map(|best| Mark { name: mesh(&best.axes), point: at(best) }),
        }
        .render()
    }
}
