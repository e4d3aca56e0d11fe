//! `warpweft calibrate`: this machine as a cluster file.
//!
//! Laws:
//! - **CL-1** a number is read from the steps of small sessions, as an embedder's would run them: what a task takes there is what a step
//!   pays for it. No backend is asked behind the session's back.
//! - **CL-2** the same programs and the same arithmetic calibrate a simulated cluster, and give back the numbers of its file. That is the
//!   instrument's test, and depends on no clock.
//! - **CL-3** every number of the file says how it came about; what was not measured says so.
//! - **CL-4** the file is checked at once by a program that none of its numbers was read from.
//!
//! | file | idea |
//! |---|---|
//! | `programs` | the step programs |
//! | `subject` | what runs them, and what is seen of a step |
//! | `simulated`, `world`, `cpu`, `cuda` | in virtual time, and in sessions of this machine |
//! | `fit` | two numbers out of many times |
//! | `figure`, `figures`, `jitter`, `contention` | the numbers, from what was seen |
//! | `file` | the cluster file |
//! | `check` | predicted against measured |
//!
//! One node is measured, of which all ranks are alike. Deliberately absent: links between nodes, which `between` may take from another cluster, and
//! what an embedder's own closures reach.

mod check;
mod contention;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod error;
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
pub use error::CalibrateError;
pub use fit::FitError;

use self::contention::{Alone, Side};
use self::cpu::Cpu;
use self::figure::{Figure, percent};
use self::figures::Line;
use self::file::{Figures, MATHS};
use self::jitter::Delays;
use self::programs::{Arithmetic, Experiment};
use self::simulated::Simulated;
use self::subject::{Observation, Subject};
use super::text::{Align, Table, bytes};
use crate::cluster::{Algorithm, Cluster, PRESETS, named};
use crate::config::Config;
use crate::format::{Format, Orientation, Shape};
use crate::model::Math;

/// What is measured.
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

/// How to measure.
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
    /// What was asked for, in words, for the head of the file.
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

/// A machine that was measured.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Calibration {
    /// The cluster file.
    pub file: String,
    /// The cluster it declares.
    pub cluster: Cluster,
    /// What it predicts of a program that it was not made of.
    pub check: Check,
    figures: Figures,
    collectives: Vec<Line>,
    kernels: Vec<Line>,
}

/// Watches the measuring: how much is done, of how much, and what comes next.
type Watch<'a> = dyn FnMut(usize, usize, &str) + 'a;

/// Measures a machine. `stop` ends the work before the next program.
///
/// # Errors
/// [`CalibrateError`].
pub fn calibrate_machine(
    options: &CalibrateOptions,
    stop: &AtomicBool,
    watch: &mut Watch<'_>,
) -> Result<Calibration, CalibrateError> {
    if options.ranks < 2 {
        return Err(CalibrateError::Ranks { ranks: options.ranks });
    }
    let base = Config::load(options.config.as_deref())?;
    let between = options.between.as_deref().map(links_between).transpose()?;
    let subject = subject(options, &base)?;
    let mut bench = Bench { options, subject, done: 0, stop, watch };
    let measured = bench.measure()?;
    let mut figures = measured.figures;
    figures.between = between;
    let (file, cluster) = figures.declared()?;
    let held_out = bench.held_out(&cluster)?;
    bench.tell("a step that no number was read from")?;
    let check = check::check(&mut *bench.subject, &held_out, &cluster, &base, options.repeats)?;
    let (collectives, kernels) = (measured.collectives, measured.kernels);
    Ok(Calibration { file, cluster, check, figures, collectives, kernels })
}

fn subject(options: &CalibrateOptions, base: &Config) -> Result<Box<dyn Subject>, CalibrateError> {
    let (ranks, largest) = (options.ranks, options.largest);
    let cpu = || Box::new(Cpu { ranks, base: base.clone(), largest }) as Box<dyn Subject>;
    match &options.device {
        CalibrateDevice::Cpu => Ok(cpu()),
        CalibrateDevice::Simulated(name) => {
            let cluster = cluster(name)?;
            if ranks > cluster.gpus_per_node {
                return Err(CalibrateError::Gpus { ranks, found: cluster.gpus_per_node as usize });
            }
            Ok(Box::new(Simulated { cluster, ranks, base: base.clone() }))
        }
        #[cfg(feature = "cuda")]
        CalibrateDevice::Cuda => Ok(Box::new(cuda::Cuda::open(ranks, base.clone(), largest)?)),
        #[cfg(feature = "cuda")]
        CalibrateDevice::Auto => match cuda::Cuda::open(ranks, base.clone(), largest) {
            Ok(gpus) => Ok(Box::new(gpus)),
            Err(_) => Ok(cpu()),
        },
        #[cfg(not(feature = "cuda"))]
        CalibrateDevice::Cuda => Err(CalibrateError::NoCuda),
        #[cfg(not(feature = "cuda"))]
        CalibrateDevice::Auto => Ok(cpu()),
    }
}

fn cluster(name: &str) -> Result<Cluster, CalibrateError> {
    let presets = || PRESETS.map(|(name, _)| name).join(", ");
    let missing = || CalibrateError::NoCluster { name: name.to_owned(), presets: presets() };
    Ok(named(name).ok_or_else(missing)??)
}

fn links_between(name: &str) -> Result<(f64, f64, String), CalibrateError> {
    let missing = || CalibrateError::NoLinksBetween { name: name.to_owned() };
    let link = cluster(name)?.between.ok_or_else(missing)?;
    Ok((link.latency_us, link.bytes_per_s, format!("`{}`", name.escape_debug())))
}

/// A runtime for the sessions of one experiment.
fn runtime() -> Result<tokio::runtime::Runtime, CalibrateError> {
    let refused = |source| CalibrateError::File { action: "start", path: "a runtime".into(), source };
    tokio::runtime::Builder::new_current_thread().build().map_err(refused)
}

/// Formats of the ladder: plain, and with every kernel there is.
const LADDER: [Format; 2] = [Format::Bf16, Format::NVFP4_2D];

/// Weights of the programs in which lanes run beside each other.
const BESIDE: usize = 8;

/// Blocks of the held-out step, of two weights each.
const BLOCKS: usize = 4;

/// Tokens of products, as multiples of the smallest.
const TOKENS: [usize; 6] = [1, 2, 3, 4, 6, 8];

/// Calls of the steps that the host's time is read from.
const CALLS: [usize; 2] = [16, 144];

struct Measured {
    figures: Figures,
    collectives: Vec<Line>,
    kernels: Vec<Line>,
}

struct Bench<'a, 'w> {
    options: &'a CalibrateOptions,
    subject: Box<dyn Subject>,
    done: usize,
    stop: &'a AtomicBool,
    watch: &'a mut Watch<'w>,
}

impl Bench<'_, '_> {
    /// Programs in all.
    fn total(&self) -> usize {
        self.ladder().len() * LADDER.len() + self.subject.products().len() + CALLS.len() + 1 + 12 + 1
    }

    fn tell(&mut self, what: &str) -> Result<(), CalibrateError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(CalibrateError::Interrupted);
        }
        let total = self.total();
        (self.watch)(self.done.min(total), total, what);
        self.done += 1;
        Ok(())
    }

    fn observe(&mut self, what: &str, experiment: &Experiment) -> Result<Observation, CalibrateError> {
        self.tell(what)?;
        self.subject.observe(experiment, self.options.repeats)
    }

    /// Shapes from 128×128 on, each twice the one before.
    fn ladder(&self) -> Vec<Shape> {
        let mut shapes = vec![Shape { rows: 128, cols: 128 }];
        while let Some(Shape { rows, cols }) = shapes.last().copied() {
            let next =
                if rows > cols { Shape { rows, cols: 2 * cols } } else { Shape { rows: 2 * rows, cols } };
            if next.rows * next.cols > self.subject.scale().largest {
                break;
            }
            shapes.push(next);
        }
        shapes
    }

    /// The shape of weights whose lanes run beside each other.
    fn large(&self) -> Shape {
        let ladder = self.ladder();
        ladder.last().copied().unwrap_or(Shape { rows: 128, cols: 128 })
    }

    fn measure(&mut self) -> Result<Measured, CalibrateError> {
        let Self { options, .. } = *self;
        let algorithm = options.algorithm;
        let mut ladders = Vec::new();
        for shape in self.ladder() {
            for format in LADDER {
                let experiment = programs::ladder(shape, format)?;
                ladders.push(self.observe(&format!("every op on {shape} in {format}"), &experiment)?);
            }
        }
        let delays = Delays::of(&ladders);
        let link = figures::link(&ladders, algorithm)?;
        let largest = &ladders[ladders.len() - LADDER.len()..];
        let (hbm, kernels) = figures::memory(&ladders, largest, &delays, algorithm)?;
        drop(ladders);
        let flops = self.flops(&delays)?;
        let [few, many] = CALLS;
        let mut launches = |calls, recorded| {
            let experiment = programs::launches(calls, Format::Bf16, recorded)?;
            self.observe(&format!("{calls} small calls"), &experiment)
        };
        let (few, many, recorded) = (launches(few, false)?, launches(many, false)?, launches(few, true)?);
        let (launch_us, replay_us) = figures::host(&few, &many, &recorded);
        let contention = self.contention(&flops, &delays)?;
        let memory_bytes = match options.memory {
            Some(bytes) => (bytes, "as declared by --memory".to_owned()),
            None => {
                self.subject.memory().unwrap_or((1 << 40, "not known: no limit worth the name".to_owned()))
            }
        };
        let figures = Figures {
            name: options.name.clone(),
            device: self.subject.describe(),
            command: options.command.clone(),
            ranks: options.ranks,
            algorithm,
            memory_bytes,
            hbm,
            launch_us,
            replay_us,
            flops,
            latency_us: link.latency_us,
            bytes_per_s: link.bytes_per_s,
            between: None,
            contention,
            delay: delays.mean,
        };
        Ok(Measured { figures, collectives: link.lines, kernels })
    }

    /// Speeds of products, in the order of [`MATHS`]. Formats without products get the speed of the next that has some.
    fn flops(&mut self, delays: &Delays) -> Result<[Figure; 4], CalibrateError> {
        let mut known: Vec<(Math, Figure)> = Vec::new();
        let scale = self.subject.scale();
        for arithmetic in self.subject.products() {
            let tokens = TOKENS.map(|times| times * scale.tokens);
            let experiment = programs::products(scale.product, arithmetic, &tokens)?;
            let what = format!("products in {:?}", arithmetic.math);
            let observation = self.observe(&what, &experiment)?;
            let whose = format!("products of {} by so many tokens", scale.product);
            let figure =
                figures::flops(&observation, delays, self.options.algorithm, arithmetic.math, &whose)?;
            known.push((arithmetic.math, figure));
        }
        for (math, value) in &self.options.flops {
            known.retain(|(known, _)| known != math);
            known.push((*math, Figure::new(*value, "as declared by --flops")));
        }
        let figure = |position: usize| {
            let of = |place: usize| known.iter().find(|(math, _)| *math == MATHS[place].0);
            if let Some((_, figure)) = of(position) {
                return figure.clone();
            }
            // The next slower kind first: what has no products of its own runs in it.
            let mut others = (0..position).rev().chain(position + 1..MATHS.len());
            let stand_in =
                others.find_map(|place| of(place).map(|(_, figure)| (MATHS[place].1, figure.value)));
            let (whose, value) = stand_in.unwrap_or(("nothing", 1.0));
            Figure::new(
                value,
                format!("not measured: no such products here, so that of {whose}; --flops knows better"),
            )
        };
        Ok(std::array::from_fn(figure))
    }

    /// Tokens over which a product of `shape` takes about so long.
    fn tokens(shape: Shape, flops: &[Figure; 4], arithmetic: Arithmetic, nanoseconds: f64) -> usize {
        let speed = MATHS.iter().zip(flops).find(|((math, _), _)| *math == arithmetic.math);
        let speed = speed.map_or(1.0, |(_, figure)| figure.value);
        let each = 2.0 * (shape.rows * shape.cols) as f64 / speed * 1e9;
        ((nanoseconds / each).round() as usize).clamp(1, 1 << 15)
    }

    fn contention(
        &mut self,
        flops: &[Figure; 4],
        delays: &Delays,
    ) -> Result<Vec<(&'static str, Figure)>, CalibrateError> {
        let shape = self.large();
        let plain = self.subject.arithmetic(Format::Bf16);
        let what = "collectives beside products";
        // How long collectives take decides how long products should.
        let short = self.observe(what, &programs::chain(shape, plain, 8)?)?;
        let short = Alone::of(&[&short]);
        let collectives = ["exchange gradient", "reduce-scatter", "all-gather"];
        let wanted = 2.0 * collectives.map(|op| short.longest(op)).into_iter().fold(0.0, f64::max);
        let tokens = Self::tokens(shape, flops, plain, wanted);
        let run = [self.beside(what, shape, plain, tokens, false)?];
        let compute = contention::factor(&run, delays, Side::Compute, Side::Collective);
        let collective = contention::factor(&run, delays, Side::Collective, Side::Compute);

        let two =
            self.observe("gathers beside reductions", &programs::beside(BESIDE, shape, plain, 8, 2)?)?;
        let collectives = contention::collectives(&two, &short);

        // Products that are longer than sums of gradients, and such as these fall behind.
        let what = "kernels beside products, on one rank";
        let format = Format::NVFP4_2D;
        let quantized = Arithmetic { backward: Orientation::Columnwise, ..self.subject.arithmetic(format) };
        let short = Experiment { alone: true, ..programs::chain(shape, quantized, 8)? };
        let short = self.observe(what, &short)?;
        let short = Alone::of(&[&short]);
        let longest = short.longest("sum gradient").max(short.longest("accumulate"));
        let tokens = [3.0, 0.5].map(|times| Self::tokens(shape, flops, quantized, times * longest));
        let [long, short] = tokens.map(|tokens| self.beside(what, shape, quantized, tokens, true));
        let runs = [long?, short?];
        let slowed = contention::factor(&runs, delays, Side::Compute, Side::Quantize);
        let slows = contention::factor(&runs, delays, Side::Quantize, Side::Compute);
        Ok(vec![
            ("compute_beside_collective", compute),
            ("collective_beside_compute", collective),
            ("collective_beside_collective", collectives),
            ("compute_beside_quantize", slowed),
            ("quantize_beside_compute", slows),
        ])
    }

    /// Weights gathered ahead, and what their tasks take by themselves.
    fn beside(
        &mut self,
        what: &str,
        shape: Shape,
        arithmetic: Arithmetic,
        tokens: usize,
        alone: bool,
    ) -> Result<(Observation, Alone), CalibrateError> {
        let mut run = |experiment: Experiment| self.observe(what, &Experiment { alone, ..experiment });
        let chain = run(programs::chain(shape, arithmetic, tokens)?)?;
        let products = run(programs::products(shape, arithmetic, &[tokens, tokens])?)?;
        let beside = match alone {
            true => run(programs::beside(BESIDE, shape, arithmetic, tokens, 1)?)?,
            false => run(programs::behind(BESIDE, shape, arithmetic, tokens)?)?,
        };
        Ok((beside, Alone::of(&[&chain, &products])))
    }

    /// A stack whose products take about as long as its communication.
    fn held_out(&mut self, cluster: &Cluster) -> Result<Experiment, CalibrateError> {
        let shape = self.large();
        let arithmetic = self.subject.arithmetic(Format::NVFP4_2D);
        let speed = MATHS.map(|(math, _)| {
            let flops = &cluster.gpu.flops_per_s;
            let value = match math {
                Math::F32 => flops.f32,
                Math::Bf16 => flops.bf16,
                Math::Fp8 => flops.fp8,
                Math::Fp4 => flops.fp4,
            };
            Figure::new(value, "")
        });
        let gradient = (4 * shape.rows * shape.cols) as f64 / cluster.inside.bytes_per_s * 1e9;
        let tokens = Self::tokens(shape, &speed, arithmetic, gradient + cluster.inside.latency_us * 1e3);
        Ok(programs::held_out(BLOCKS, shape, arithmetic, tokens)?)
    }
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
