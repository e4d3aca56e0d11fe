//! The CPU backend as the subject of a calibration.
//!
//! Law: products are those of `ndarray`, in f32 and on the thread that runs a rank's calls. What a user's closures
//! reach on a CPU is the user's; the file says whose products its number is of.

use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2, ShapeError};
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
                    multiply(&left[..tokens * rows], &right[..tokens * cols], cols, target)?;
                }
            }
            Work::Gradient(_) => {
                let mut gradient = context.gradient(part.weight)?;
                multiply(&left[..tokens * rows], &right[..tokens * cols], cols, &mut gradient)?;
            }
        }
        Ok(())
    }
}

/// `target[r, c] = Σ over t of left[t, r] · right[t, c]`, as many operations as a product over `t` tokens has.
fn multiply(left: &[f32], right: &[f32], cols: usize, target: &mut [f32]) -> Result<(), ComputeError> {
    let (rows, tokens) = (target.len() / cols, right.len() / cols);
    let unfit = |error: ShapeError| ComputeError::closure(error.to_string());
    let left = ArrayView2::from_shape((tokens, rows), left).map_err(unfit)?;
    let right = ArrayView2::from_shape((tokens, cols), right).map_err(unfit)?;
    let mut target = ArrayViewMut2::from_shape((rows, cols), target).map_err(unfit)?;
    general_mat_mul(1.0, &left.t(), &right, 0.0, &mut target);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_what_it_is_by_hand() {
        let (left, right) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0, 9.0, 10.0]);
        let mut target = [0.5; 6];
        multiply(&left, &right, 3, &mut target).unwrap();
        assert_eq!(target, [29.0, 33.0, 37.0, 42.0, 48.0, 54.0]);
    }
}
