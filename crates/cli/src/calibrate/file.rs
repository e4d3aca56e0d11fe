//! The cluster file of a calibration: every number with a sentence about its origin.
//!
//! Law: what is written is read back by the reader of every cluster file before anybody gets it, so the
//! cluster of a calibration is the cluster of its file, rounded as the file is.

use std::fmt::Write;

use warpweft_plan::cluster::{Algorithm, Cluster, Link};
use warpweft_plan::model::Math;
use warpweft_session::config::Declared;

use super::MeasureError;
use super::figure::Figure;

/// All numbers of a file.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    pub(super) name: String,
    pub(super) device: String,
    pub(super) command: String,
    pub(super) ranks: u32,
    pub(super) algorithm: Algorithm,
    pub(super) memory_bytes: (u64, String),
    pub(super) hbm: Figure,
    pub(super) kernel_us: Figure,
    pub(super) launch_us: Figure,
    pub(super) replay_us: Figure,
    /// In the order of [`MATHS`].
    pub(super) flops: [Figure; 4],
    pub(super) latency_us: Figure,
    pub(super) bytes_per_s: Figure,
    /// Latency, bytes per second, and where they were taken from.
    pub(super) between: Option<(Link, String)>,
    /// By the names of their keys.
    pub(super) contention: Vec<(&'static str, Figure)>,
    pub(super) delay: Figure,
}

/// What products are computed in, in the file's order.
pub(super) const MATHS: [(Math, &str); 4] =
    [(Math::F32, "f32"), (Math::Bf16, "bf16"), (Math::Fp8, "fp8"), (Math::Fp4, "fp4")];

impl Figures {
    /// The file.
    pub(super) fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut line = |line: String| {
            text.push_str(&line);
            text.push('\n');
        };
        let speed = |key: &str, figure: &Figure| format!("{key} = {:.3e}  # {}", figure.value, figure.how);
        let micros = |key: &str, figure: &Figure| format!("{key} = {:.4}  # {}", figure.value, figure.how);
        line(format!("# Measured by `{}`:", self.command));
        line(format!("# {}.", self.device));
        line(
            "# Times of small tasks drift with load and clocks; calibrate again when the machine changes."
                .to_owned(),
        );
        line(format!("name = {}", toml::Value::from(self.name.as_str())));
        line(format!("gpus_per_node = {}  # ranks that were measured", self.ranks));
        let algorithm = format!("{:?}", self.algorithm).to_lowercase();
        line(format!(
            "algorithm = \"{algorithm}\"  # as declared; the numbers of `inside` are fitted to its formula"
        ));
        line("\n[gpu]".to_owned());
        let (memory, how) = &self.memory_bytes;
        line(format!("memory_bytes = {memory}  # {how}"));
        line(speed("hbm_bytes_per_s", &self.hbm));
        line(micros("kernel_us", &self.kernel_us));
        line(micros("launch_us", &self.launch_us));
        line(micros("replay_us", &self.replay_us));
        line("\n[gpu.flops_per_s]".to_owned());
        for ((_, key), figure) in MATHS.iter().zip(&self.flops) {
            line(speed(key, figure));
        }
        line("\n[inside]".to_owned());
        line(micros("latency_us", &self.latency_us));
        line(speed("bytes_per_s", &self.bytes_per_s));
        match &self.between {
            None => line("\n# No table `between`: the links between nodes were not measured. --between takes them from another cluster.".to_owned()),
            Some((Link { latency_us, bytes_per_s, message_us }, from)) => {
                line("\n[between]".to_owned());
                line(format!("latency_us = {latency_us}  # not measured: that of {from}"));
                line(format!("bytes_per_s = {bytes_per_s:e}  # not measured: that of {from}"));
                line(format!("message_us = {message_us}  # not measured: that of {from}"));
            }
        }
        line("\n[contention]".to_owned());
        for (key, figure) in &self.contention {
            line(micros(key, figure));
        }
        line("\n[jitter]".to_owned());
        line("seed = 1  # any".to_owned());
        line(micros("mean", &self.delay));
        line("straggler_share = 0  # not measured".to_owned());
        line("straggler_factor = 1  # not measured".to_owned());
        text
    }

    /// The file, and the cluster it declares.
    ///
    /// # Errors
    /// [`MeasureError::Config`] when a number is none that a cluster takes.
    pub(super) fn declared(&self) -> Result<(String, Cluster), MeasureError> {
        let text = self.to_toml();
        let cluster = Cluster::from_toml(&text, "what was measured")?;
        Ok((text, cluster))
    }

    /// What people look at first: the numbers, without where they come from.
    pub(super) fn summary(&self) -> String {
        let mut text = String::new();
        let mut row = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<12} {value}");
        };
        row("device", self.device.clone());
        row("link", format!("{:.1} µs and {} a second", self.latency_us.value, size(self.bytes_per_s.value)));
        row("memory", format!("{} a second", size(self.hbm.value)));
        let products = MATHS.iter().zip(&self.flops).map(|((_, key), figure)| {
            let mark = if figure.how.starts_with("measured") { "" } else { "*" };
            format!("{key} {:.4}{mark}", figure.value * 1e-9)
        });
        row("products", format!("{} GFLOP/s", products.collect::<Vec<_>>().join(", ")));
        row(
            "host",
            format!("{:.1} µs a task, {:.1} µs a captured step", self.launch_us.value, self.replay_us.value),
        );
        row("kernels", format!("{:.1} µs each beside what they do", self.kernel_us.value));
        let factors = self.contention.iter().map(|(key, figure)| {
            let mark = if figure.how.starts_with("measured") { "" } else { "*" };
            format!("{} {:.2}{mark}", key.replace('_', " "), figure.value)
        });
        row("contention", factors.collect::<Vec<_>>().join(", "));
        row("delays", format!("{:.1} % of a local task on average", 100.0 * self.delay.value));
        text.push_str("             * was not measured; the file says what stands in\n");
        text
    }
}

fn size(bytes: f64) -> String {
    super::super::text::bytes(bytes as u64)
}
