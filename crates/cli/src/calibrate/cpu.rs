//! The CPU backend as the subject of a calibration.
//!
//! Law: products are the tool's own, plain f32 loops on the thread that runs a rank's calls. What an
//! user's closures reach on a CPU is the user's; the file says whose products its number is of.

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::RankId;
use warpweft_format::{Format, Orientation, Shape};
use warpweft_plan::compute::{Compute, ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Form, Math};
use warpweft_session::config::Config;
use warpweft_session::session::{Session, block_on, initial};

use super::MeasureError;
use super::programs::{Arithmetic, Experiment, Part, Work};
use super::subject::{Observation, Scale, Subject};
use super::world::{configuration, observe};

/// Threads of this machine as ranks.
pub(super) struct Cpu {
    pub(super) ranks: u32,
    pub(super) base: Config,
    pub(super) largest: Option<u64>,
}

/// Bytes of the ladder's largest gradient, unless set otherwise.
const LARGEST: u64 = 4 << 20;

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

impl Subject for Cpu {
    fn describe(&self) -> String {
        let link = &self.base.cpu.link;
        let pace = link.bytes_per_s.map_or_else(
            || "links as fast as memory".to_owned(),
            |speed| format!("links paced to {:.4} MB/s and {} µs", speed * 1e-6, link.latency_us),
        );
        format!("cpu backend, {} ranks in one process on {} cores, {pace}", self.ranks, cores())
    }

    fn cores(&self) -> Option<usize> {
        Some(cores())
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn memory(&self) -> Option<(u64, String)> {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let kibibytes: u64 = text.lines().find_map(|line| {
            line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse().ok()
        })?;
        let each = kibibytes * 1024 / u64::from(self.ranks.max(1));
        Some((each, format!("this machine's memory over {} ranks", self.ranks)))
    }

    fn arithmetic(&self, format: Format) -> Arithmetic {
        let (math, form, backward) = (Math::F32, Form::Dense, Orientation::Rowwise);
        Arithmetic { format, math, form, backward, activations: None }
    }

    fn products(&self) -> Vec<Arithmetic> {
        vec![self.arithmetic(Format::F32)]
    }

    fn scale(&self) -> Scale {
        let largest = usize::try_from(self.largest.unwrap_or(LARGEST) / 4).unwrap_or(usize::MAX);
        Scale { largest, product: Shape { rows: 512, cols: 512 }, tokens: 16 }
    }

    fn observe(&mut self, experiment: &Experiment, steps: usize) -> Result<Observation, MeasureError> {
        let ranks = if experiment.alone { 1 } else { self.ranks };
        let config = configuration(&self.base, experiment);
        let parts = experiment.parts.clone();
        let closure = move |_: RankId| Products::new(parts.clone());
        let builder = Session::builder(config, closure).program(experiment.program.clone());
        let builder = builder.initialize(initial::zeros());
        block_on(async { observe(builder.start_cpu(ranks).await?, experiment, steps).await })
    }
}

/// Carries out the calls of one program on one rank.
struct Products {
    parts: std::sync::Arc<[Part]>,
    /// Factors, and where products go that are nobody's.
    left: Vec<f32>,
    right: Vec<f32>,
    target: Vec<f32>,
}

impl Products {
    fn new(parts: std::sync::Arc<[Part]>) -> Self {
        let most = |size: fn(&Part) -> usize| parts.iter().map(size).max().unwrap_or(0);
        let values =
            |elements: usize| (0..elements).map(|place| ((place % 17) as f32 - 8.0) * 0.01).collect();
        Self {
            left: values(most(|part| part.tokens() * part.shape.rows)),
            right: values(most(|part| part.tokens() * part.shape.cols)),
            target: vec![0.0; most(|part| part.shape.rows * part.shape.cols)],
            parts,
        }
    }
}

impl Compute<CpuSurface> for Products {
    fn run(&mut self, _call: &Call, context: &ComputeContext<'_, CpuSurface>) -> Result<(), ComputeError> {
        let Self { parts, left, right, target } = self;
        let Some(part) = parts.get(context.call().index()) else { return Ok(()) };
        let (tokens, Shape { rows, cols }) = (part.tokens(), part.shape);
        match part.work {
            // A thread has no kernels: what a call does it does one after the other.
            Work::Nothing | Work::Kernels(_) => {}
            Work::Product(_) | Work::Layer(_) => {
                let products = if matches!(part.work, Work::Layer(_)) { 3 } else { 1 };
                for _ in 0..products {
                    let target = &mut target[..rows * cols];
                    multiply(&left[..tokens * rows], &right[..tokens * cols], cols, target);
                }
            }
            Work::Gradient(_) => {
                let mut gradient = context.gradient(part.weight)?;
                multiply(&left[..tokens * rows], &right[..tokens * cols], cols, &mut gradient);
            }
        }
        Ok(())
    }
}

/// Columns and tokens of a block: 64 KiB of factors, which stay near the core whatever the shape.
const COLUMNS: usize = 256;
const TOKENS: usize = 64;

/// `target[r, c] = Σ over t of left[t, r] · right[t, c]`, as many operations as a product over `t` tokens has.
fn multiply(left: &[f32], right: &[f32], cols: usize, target: &mut [f32]) {
    let rows = target.len() / cols;
    target.fill(0.0);
    for (left, right) in left.chunks(TOKENS * rows).zip(right.chunks(TOKENS * cols)) {
        for column in (0..cols).step_by(COLUMNS) {
            let columns = column..cols.min(column + COLUMNS);
            for (row, target) in target.chunks_exact_mut(cols).enumerate() {
                let sums = &mut target[columns.clone()];
                for (factors, values) in left.chunks_exact(rows).zip(right.chunks_exact(cols)) {
                    let factor = factors[row];
                    sums.iter_mut()
                        .zip(&values[columns.clone()])
                        .for_each(|(sum, value)| *sum += factor * value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_what_it_is_by_hand() {
        let (left, right) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0, 9.0, 10.0]);
        let mut target = [0.5; 6];
        multiply(&left, &right, 3, &mut target);
        assert_eq!(target, [29.0, 33.0, 37.0, 42.0, 48.0, 54.0]);
    }

    #[test]
    fn blocks_change_nothing() {
        let (tokens, rows, cols) = (TOKENS + 3, 3, COLUMNS + 5);
        let whole = |count: usize, of: usize| (0..count).map(|place| (place % of) as f32).collect::<Vec<_>>();
        let (left, right) = (whole(tokens * rows, 7), whole(tokens * cols, 5));
        let mut target = vec![0.0; rows * cols];
        multiply(&left, &right, cols, &mut target);
        for (place, found) in target.iter().enumerate() {
            let (row, col) = (place / cols, place % cols);
            let expected: f32 = (0..tokens).map(|t| left[t * rows + row] * right[t * cols + col]).sum();
            assert_eq!(*found, expected, "{row}, {col}");
        }
    }
}
