//! The order of measurements.
//!
//! Law: a number is measured before those that are read with its help: kernels and delays before memory,
//! memory before products, products before what lanes take from each other. Every program is run once and
//! foreseen.

use std::sync::atomic::{AtomicBool, Ordering};

use warpweft_format::{Format, Orientation, Shape};
use warpweft_plan::cluster::Cluster;
use warpweft_plan::model::Math;

use super::contention::{self, Alone, Side};
use super::figure::Figure;
use super::figures::{self, Known, Line};
use super::file::{Figures, MATHS};
use super::jitter::Delays;
use super::programs::{self, Arithmetic, Experiment};
use super::subject::{Observation, Subject};
use super::{CalibrateOptions, MeasureError, Measuring, Watch};

/// Formats of the ladder: plain, and with every kernel there is.
const LADDER: [Format; 2] = [Format::Bf16, Format::NVFP4_2D];

/// Weights of the programs in which lanes run beside each other.
const BESIDE: usize = 8;

/// Blocks of the held-out step, of two weights each.
const BLOCKS: usize = 4;

/// Tokens of products, as multiples of the smallest.
const TOKENS: [usize; 6] = [1, 2, 3, 4, 6, 8];

/// How many times as many steps measure products: a GPU that begins cool multiplies faster than one that goes
/// on, and trainers go on.
const LONGER: usize = 6;

/// Kernels of calls that do nothing else.
const KERNELS: [usize; 5] = [4, 8, 16, 32, 64];

/// Calls of the steps that the host's time is read from.
const CALLS: [usize; 2] = [16, 144];

/// What was measured.
pub(super) struct Measured {
    /// All of them measured.
    pub(super) figures: Figures,
    pub(super) collectives: Vec<Line>,
    pub(super) kernels: Vec<Line>,
    products: Vec<(Math, Figure)>,
}

impl Measured {
    /// Speeds of products as they are known better: of whatever the trainer runs, which is not what ran here.
    pub(super) fn declared(mut self, flops: &[(Math, f64)]) -> Self {
        for (math, value) in flops {
            self.products.retain(|(known, _)| known != math);
            self.products.push((*math, Figure::new(*value, "as declared by --flops")));
        }
        self.figures.flops = of_all(&self.products);
        self
    }
}

/// The speed of every kind of product, in the order of [`MATHS`]. What was not measured gets that of the next that was.
fn of_all(known: &[(Math, Figure)]) -> [Figure; 4] {
    let figure = |position: usize| {
        let of = |place: usize| known.iter().find(|(math, _)| *math == MATHS[place].0);
        if let Some((_, figure)) = of(position) {
            return figure.clone();
        }
        // The next slower kind first: what has no products of its own runs in it.
        let mut others = (0..position).rev().chain(position + 1..MATHS.len());
        let stand_in = others.find_map(|place| of(place).map(|(_, figure)| (MATHS[place].1, figure.value)));
        let (whose, value) = stand_in.unwrap_or(("nothing", 1.0));
        Figure::new(
            value,
            format!("not measured: no such products here, so that of {whose}; --flops knows better"),
        )
    };
    std::array::from_fn(figure)
}

/// Measures one subject.
pub(super) struct Bench<'a, 'w> {
    options: &'a CalibrateOptions,
    pub(super) subject: Box<dyn Subject>,
    done: usize,
    stop: &'a AtomicBool,
    watch: &'a mut Watch<'w>,
}

impl<'a, 'w> Bench<'a, 'w> {
    pub(super) fn new(
        options: &'a CalibrateOptions,
        subject: Box<dyn Subject>,
        stop: &'a AtomicBool,
        watch: &'a mut Watch<'w>,
    ) -> Self {
        Self { options, subject, done: 0, stop, watch }
    }

    /// Programs in all.
    fn total(&self) -> usize {
        self.ladder().len() * LADDER.len() + 1 + self.subject.products().len() + CALLS.len() + 1 + 9 + 1
    }

    /// Says what comes next.
    ///
    /// # Errors
    /// [`MeasureError::Interrupted`].
    pub(super) fn tell(&mut self, what: &str) -> Result<(), MeasureError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(MeasureError::Interrupted(Measuring::Machine));
        }
        let total = self.total();
        (self.watch)(self.done.min(total), total, what);
        self.done += 1;
        Ok(())
    }

    fn observe(&mut self, what: &str, experiment: &Experiment) -> Result<Observation, MeasureError> {
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

    /// All numbers.
    ///
    /// # Errors
    /// As [`Subject::observe`], and what no number can be read from.
    pub(super) fn measure(&mut self) -> Result<Measured, MeasureError> {
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
        let kernel_us = self.kernels(&delays)?;
        let known = Known { delays: &delays, kernel_us: kernel_us.value, hbm_bytes_per_s: None };
        let (hbm, kernels) = figures::memory(&ladders, largest, known, algorithm)?;
        let known = Known { hbm_bytes_per_s: Some(hbm.value), ..known };
        drop(ladders);
        let products = self.flops(known)?;
        let flops = of_all(&products);
        let [few, many] = CALLS;
        let mut launches = |calls, captured| {
            let experiment = programs::launches(calls, Format::Bf16, captured)?;
            self.observe(&format!("{calls} small calls"), &experiment)
        };
        let (few, many, captured) = (launches(few, false)?, launches(many, false)?, launches(few, true)?);
        let (launch_us, replay_us) = figures::host(&few, &many, &captured);
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
            kernel_us,
            launch_us,
            replay_us,
            flops,
            latency_us: link.latency_us,
            bytes_per_s: link.bytes_per_s,
            between: None,
            contention,
            delay: delays.mean,
        };
        Ok(Measured { figures, collectives: link.lines, kernels, products })
    }

    fn kernels(&mut self, delays: &Delays) -> Result<Figure, MeasureError> {
        let (scale, plain) = (self.subject.scale(), self.subject.arithmetic(Format::Bf16));
        let longest = TOKENS.map(|times| times * scale.tokens).into_iter().max().unwrap_or(scale.tokens);
        let experiment = programs::kernels(scale.product, plain, longest, &KERNELS)?;
        let observation = self.observe("small kernels", &experiment)?;
        Ok(figures::kernel(&observation, delays, self.options.algorithm))
    }

    /// Speeds of the products that there are here.
    fn flops(&mut self, known_so_far: Known<'_>) -> Result<Vec<(Math, Figure)>, MeasureError> {
        let mut known: Vec<(Math, Figure)> = Vec::new();
        let scale = self.subject.scale();
        for arithmetic in self.subject.products() {
            let tokens = TOKENS.map(|times| times * scale.tokens);
            let experiment = programs::layers(scale.product, arithmetic, &tokens)?;
            let what = format!("products in {:?}", arithmetic.math);
            self.tell(&what)?;
            let observation = self.subject.observe(&experiment, LONGER * self.options.repeats)?;
            let whose = format!("forward and both gradients of {} by so many tokens", scale.product);
            let figure =
                figures::flops(&observation, known_so_far, self.options.algorithm, arithmetic.math, &whose)?;
            known.push((arithmetic.math, figure));
        }
        Ok(known)
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
    ) -> Result<Vec<(&'static str, Figure)>, MeasureError> {
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

        let two = self.observe("gathers beside reductions", &programs::beside(BESIDE, shape, plain, 8)?)?;
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

    /// Lanes beside each other, on one rank alone kernels beside calls, and what their tasks take by themselves.
    fn beside(
        &mut self,
        what: &str,
        shape: Shape,
        arithmetic: Arithmetic,
        tokens: usize,
        alone: bool,
    ) -> Result<(Observation, Alone), MeasureError> {
        let mut run = |experiment: Experiment| self.observe(what, &Experiment { alone, ..experiment });
        let steady = run(programs::steady(2 * BESIDE, shape, arithmetic, tokens)?)?;
        let beside = match alone {
            true => run(programs::transposed(BESIDE, shape, arithmetic, tokens)?)?,
            false => run(programs::after(BESIDE, shape, arithmetic, tokens)?)?,
        };
        Ok((beside, Alone::of(&[&steady])))
    }

    /// A stack whose products take about as long as its communication.
    ///
    /// # Errors
    /// What the program's declaration refuses.
    pub(super) fn held_out(&mut self, cluster: &Cluster) -> Result<Experiment, MeasureError> {
        let shape = self.large();
        let arithmetic = self.subject.arithmetic(Format::NVFP4_2D);
        let flops = &cluster.gpu.flops_per_s;
        let speed = MATHS.map(|(math, _)| Figure::new(flops.of(math), ""));
        let gradient = (4 * shape.rows * shape.cols) as f64 / cluster.inside.bytes_per_s * 1e9;
        let tokens = Self::tokens(shape, &speed, arithmetic, gradient + cluster.inside.latency_us * 1e3);
        Ok(programs::held_out(BLOCKS, shape, arithmetic, tokens)?)
    }
}
