//! `warpweft calibrate`: measures this machine and writes it as a cluster file.
//!
//! Laws:
//! - **CL-1** a number is read from the steps of small sessions, as a user's would run them: what a task
//!   takes there is what a step pays for it. No backend is asked behind the session's back.
//! - **CL-2** the same programs and the same arithmetic calibrate a simulated cluster, and give back the
//!   numbers of its file. That is the instrument's test, and depends on no clock.
//! - **CL-3** every number of the file says how it came about; what was not measured says so.
//! - **CL-4** the file is checked at once by a program that none of its numbers was read from.
//!
//! | file | idea |
//! |---|---|
//! | `bench` | what is measured, in which order |
//! | `programs` | the step programs |
//! | `subject` | what runs them, and what is seen of a step |
//! | `simulated`, `world`, `cpu`, `cuda` | in virtual time, and in sessions of this machine |
//! | `fit` | two numbers out of many times |
//! | `figure`, `figures`, `jitter`, `contention` | the numbers, from what was seen |
//! | `file` | the cluster file |
//! | `check` | predicted against measured |
//!
//! One node is measured, of which all ranks are alike. Deliberately absent: links between nodes, which
//! `between` may take from another cluster, and what a user's own closures reach.

mod bench;
mod check;
mod contention;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod figure;
mod figures;
mod file;
mod fit;
mod jitter;
mod programs;
mod simulated;
mod subject;
mod world;

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

pub use check::{Check, Compared};
pub use fit::FitError;
use warpweft_plan::cluster::{Algorithm, Cluster, Link};
use warpweft_plan::model::Math;
use warpweft_session::cluster::named;
use warpweft_session::config::Config;

use self::bench::{Bench, Measured};
use self::cpu::Cpu;
use self::figure::percent;
use self::figures::Line;
use self::file::Figures;
use self::simulated::Simulated;
use self::subject::Subject;
use super::text::{Align, Table, bytes};
use super::{MeasureError, Measuring};

/// The device to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CalibrateDevice {
    /// GPUs if there are enough of them, else the CPU.
    Auto,
    /// Threads of this machine.
    Cpu,
    /// One GPU for each rank.
    Cuda,
    /// A cluster in virtual time: a preset or a file.
    Simulated(String),
}

/// Options of a calibration.
#[derive(Clone, Debug)]
pub struct CalibrateOptions {
    /// What is measured.
    pub device: CalibrateDevice,
    /// Ranks of the node, at least 2.
    pub ranks: u32,
    /// Steps of each program that count.
    pub repeats: usize,
    /// What the cluster is called.
    pub name: String,
    /// The formula that latency and speed of the link are fitted to.
    pub algorithm: Algorithm,
    /// Bytes of the largest gradient; by the device if not given.
    pub largest: Option<u64>,
    /// The configuration: pacing, transport, order of sums and deadline are its.
    pub config: Option<PathBuf>,
    /// A preset or file whose links between nodes are taken over.
    pub between: Option<String>,
    /// Operations per second that are known better than by measuring.
    pub flops: Vec<(Math, f64)>,
    /// Memory of one rank, bytes, in place of what the device says.
    pub memory: Option<u64>,
    /// What was requested, in words, for the head of the file.
    pub command: String,
}

impl CalibrateOptions {
    /// So many ranks of a device, everything else as usual.
    #[must_use]
    pub fn new(device: CalibrateDevice, ranks: u32) -> Self {
        Self {
            device,
            ranks,
            repeats: 12,
            name: "measured".to_owned(),
            algorithm: Algorithm::Direct,
            largest: None,
            config: None,
            between: None,
            flops: Vec::new(),
            memory: None,
            command: "warpweft calibrate".to_owned(),
        }
    }
}

/// The result of a calibration.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Calibration {
    /// The cluster file.
    pub file: String,
    /// The cluster it declares.
    pub cluster: Cluster,
    /// What it predicts of a program that it was not made of.
    pub check: Check,
    /// Why the file should not be planned with, or with care.
    pub warnings: Vec<String>,
    figures: Figures,
    collectives: Vec<Line>,
    kernels: Vec<Line>,
}

/// Watches the measuring: how much is done, of how much, and what comes next.
type Watch<'a> = dyn FnMut(usize, usize, &str) + 'a;

/// Measures a machine. `stop` ends the work before the next program.
///
/// # Errors
/// [`MeasureError`].
pub fn calibrate_machine(
    options: &CalibrateOptions,
    stop: &AtomicBool,
    watch: &mut Watch<'_>,
) -> Result<Calibration, MeasureError> {
    if options.ranks < 2 {
        return Err(MeasureError::Ranks { ranks: options.ranks });
    }
    let base = Config::load(options.config.as_deref())?;
    let between = options.between.as_deref().map(links_between).transpose()?;
    let subject = subject(options, &base)?;
    let mut bench = Bench::new(options, subject, stop, watch);
    let mut measured = bench.measure()?;
    measured.figures.between = between;
    // The products of the held-out step are those that were measured, whatever a trainer's own reach.
    let (_, as_measured) = measured.figures.declared()?;
    let held_out = bench.held_out(&as_measured)?;
    bench.tell("a step that no number was read from")?;
    let check = check::check(&mut *bench.subject, &held_out, &as_measured, &base, options.repeats)?;
    let measured = measured.declared(&options.flops);
    let (file, cluster) = measured.figures.declared()?;
    if stop.load(Ordering::Relaxed) {
        return Err(MeasureError::Interrupted(Measuring::Machine));
    }
    let Measured { figures, collectives, kernels, .. } = measured;
    let cores = bench.subject.cores().and_then(|cores| check::warning_of_cores(options.ranks, cores));
    let warnings = cores.into_iter().chain(check.warning()).collect();
    Ok(Calibration { file, cluster, check, warnings, figures, collectives, kernels })
}

fn subject(options: &CalibrateOptions, base: &Config) -> Result<Box<dyn Subject>, MeasureError> {
    let (ranks, largest) = (options.ranks, options.largest);
    let cpu = || Box::new(Cpu { ranks, base: base.clone(), largest }) as Box<dyn Subject>;
    match &options.device {
        CalibrateDevice::Cpu => Ok(cpu()),
        CalibrateDevice::Simulated(name) => {
            let cluster = named(name)?;
            if ranks > cluster.ranks_of_node() {
                let (found, cluster) = (cluster.ranks_of_node(), cluster.name);
                return Err(MeasureError::Node { cluster, ranks, found });
            }
            Ok(Box::new(Simulated { cluster, ranks, base: base.clone(), largest }))
        }
        #[cfg(feature = "cuda")]
        CalibrateDevice::Cuda => Ok(Box::new(cuda::Cuda::open(ranks, base.clone(), largest)?)),
        #[cfg(feature = "cuda")]
        CalibrateDevice::Auto => match cuda::Cuda::open(ranks, base.clone(), largest) {
            Ok(gpus) => Ok(Box::new(gpus)),
            Err(_) => Ok(cpu()),
        },
        #[cfg(not(feature = "cuda"))]
        CalibrateDevice::Cuda => Err(MeasureError::NoCuda),
        #[cfg(not(feature = "cuda"))]
        CalibrateDevice::Auto => Ok(cpu()),
    }
}

fn links_between(name: &str) -> Result<(Link, String), MeasureError> {
    let missing = || MeasureError::NoLinksBetween { name: name.to_owned() };
    let link = named(name)?.between.ok_or_else(missing)?;
    Ok((link, format!("`{}`", name.escape_debug())))
}

impl fmt::Display for Calibration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.figures.summary())?;
        let mut table = Table::new([
            ("op by itself", Align::Left),
            ("bytes", Align::Left),
            ("each", Align::Right),
            ("a second", Align::Right),
            ("off the line", Align::Right),
        ]);
        for line in self.collectives.iter().chain(&self.kernels) {
            let (least, most) = line.bytes;
            let range = format!("{} to {}", bytes(least), bytes(most));
            let cells = match &line.fit {
                Some(fit) => [
                    format!("{:.1} µs", fit.a * 1e-3),
                    bytes((1e9 / fit.b) as u64),
                    format!("{}, at most {}", percent(fit.residual), percent(fit.worst)),
                ],
                None => ["".to_owned(), "".to_owned(), "no line".to_owned()],
            };
            let [each, speed, residual] = cells;
            table.row([line.what.to_owned(), range, each, speed, residual]);
        }
        write!(formatter, "\n{table}\n{}", self.check)
    }
}
