//! The CPU backend as what is measured.
//!
//! Law: products are the tool's own, plain f32 loops on the thread that runs a rank's calls. What an embedder's closures reach on a CPU is
//! the embedder's; the file says whose products its number is of.

use super::CalibrateError;
use super::programs::{Arithmetic, Experiment, Part, Work};
use super::subject::{Observation, Scale, Subject};
use super::world::{configuration, observe};
use crate::backend::cpu::CpuSurface;
use crate::compute::{Compute, ComputeContext, ComputeError};
use crate::config::Config;
use crate::format::{Format, Orientation, Shape};
use crate::id::RankId;
use crate::model::{Call, Form, Math};
use crate::session::Session;

/// Threads of this machine as ranks.
pub(super) struct Cpu {
    pub(super) ranks: u32,
    pub(super) base: Config,
    pub(super) largest: Option<u64>,
}

/// Bytes of the ladder's largest gradient, unless told otherwise.
const LARGEST: u64 = 4 << 20;

impl Subject for Cpu {
    fn describe(&self) -> String {
        let link = &self.base.cpu.link;
        let pace = link.bytes_per_s.map_or_else(
            || "links as fast as memory".to_owned(),
            |speed| format!("links paced to {:.4} MB/s and {} µs", speed * 1e-6, link.latency_us),
        );
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        format!("cpu backend, {} ranks in one process on {cores} cores, {pace}", self.ranks)
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
        Arithmetic { format, math: Math::F32, form: Form::Dense, backward: Orientation::Rowwise }
    }

    fn products(&self) -> Vec<Arithmetic> {
        vec![self.arithmetic(Format::F32)]
    }

    fn scale(&self) -> Scale {
        let largest = usize::try_from(self.largest.unwrap_or(LARGEST) / 4).unwrap_or(usize::MAX);
        Scale { largest, product: Shape { rows: 512, cols: 512 }, tokens: 16 }
    }

    fn observe(&mut self, experiment: &Experiment, steps: usize) -> Result<Observation, CalibrateError> {
        let ranks = if experiment.alone { 1 } else { self.ranks };
        let config = configuration(&self.base, experiment);
        let parts = experiment.parts.clone();
        let closure = move |_: RankId| Products::new(parts.clone());
        let builder = Session::builder(config, closure).program(experiment.program.clone());
        let runtime = super::runtime()?;
        runtime.block_on(async { observe(builder.start_cpu(ranks).await?, experiment, steps).await })
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
        let values = |elements: usize| (0..elements).map(|place| ((place % 17) as f32 - 8.0) * 0.01).collect();
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
            Work::Nothing => {}
            Work::Product(_) => {
                multiply(&left[..tokens * rows], &right[..tokens * cols], cols, &mut target[..rows * cols]);
            }
            Work::Gradient(_) => {
                let mut gradient = context.gradient(part.weight)?;
                multiply(&left[..tokens * rows], &right[..tokens * cols], cols, &mut gradient);
            }
        }
        Ok(())
    }
}

/// `target[r, c] = Σ over t of left[r, t] · right[t, c]`, as many operations as a product over `t` tokens has.
fn multiply(left: &[f32], right: &[f32], cols: usize, target: &mut [f32]) {
    let tokens = right.len() / cols.max(1);
    for (row, factors) in target.chunks_exact_mut(cols).zip(left.chunks_exact(tokens.max(1))) {
        row.fill(0.0);
        for (values, factor) in right.chunks_exact(cols).zip(factors) {
            row.iter_mut().zip(values).for_each(|(sum, value)| *sum += factor * value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_what_it_is_by_hand() {
        let (left, right) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0, 9.0, 10.0]);
        let mut target = [0.0; 6];
        multiply(&left, &right, 3, &mut target);
        assert_eq!(target, [21.0, 24.0, 27.0, 47.0, 54.0, 61.0]);
    }
}
