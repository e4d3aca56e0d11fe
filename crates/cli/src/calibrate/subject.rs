//! The subject of a calibration: runs programs and gives the times of every task.
//!
//! Law: nothing above this file knows whether time is real. An observation holds steps that are warm, with
//! the times of all tasks as the backend measured them. A collective is counted from the arrival of its last
//! rank, as far as this process sees it.

use std::sync::Arc;

use warpweft_backend::TaskInterval;
use warpweft_format::{Format, Shape};
use warpweft_plan::cluster::{Algorithm, Cluster, Contention, Flops, Gpu, Jitter, Link, Prices, Work};
use warpweft_plan::op::Op;
use warpweft_plan::plan::{StepPlan, Task};

use super::MeasureError;
use super::programs::{Arithmetic, Experiment};

/// How large programs are, so that what is measured stands out of what is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scale {
    /// The largest weight of the ladder, elements.
    pub(super) largest: usize,
    /// Weight of products.
    pub(super) product: Shape,
    /// Tokens of the smallest product.
    pub(super) tokens: usize,
}

/// Runs experiments.
pub(super) trait Subject {
    /// One line for people.
    fn describe(&self) -> String;

    /// The cores that the ranks share, if they are threads of a CPU.
    fn cores(&self) -> Option<usize> {
        None
    }

    /// Ranks of one node.
    fn ranks(&self) -> u32;

    /// Memory of one rank, and where the number comes from, if it is known.
    fn memory(&self) -> Option<(u64, String)>;

    /// How products of weights in `format` multiply.
    fn arithmetic(&self, format: Format) -> Arithmetic;

    /// Every kind of product there is.
    fn products(&self) -> Vec<Arithmetic>;

    /// How large programs are.
    fn scale(&self) -> Scale;

    /// Runs so many warm steps.
    ///
    /// # Errors
    /// What the session refuses; [`MeasureError::Untimed`] where an issued step came without times.
    fn observe(&mut self, experiment: &Experiment, steps: usize) -> Result<Observation, MeasureError>;
}

/// What makes one unit take one nanosecond: bytes or operations per second, and microseconds.
const ONE: f64 = 1e9;
const ONE_US: f64 = 1e-3;

/// Share of a task that may run beside another without a word.
const BESIDE: f64 = 0.02;

/// One step.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// From command to reply, nanoseconds.
    pub(super) duration: u64,
    /// The host's part, where it is known apart from the rest, nanoseconds.
    pub(super) issue: Option<u64>,
    /// Per rank, per task; no tasks where the backend did not time them.
    pub(super) ranks: Vec<Vec<TaskInterval>>,
}

/// Warm steps of one program.
#[derive(Clone, Debug)]
pub(super) struct Observation {
    pub(super) plan: Arc<StepPlan>,
    pub(super) steps: Vec<Step>,
}

/// How often a task's price contains each of the cluster's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Share {
    /// Latencies of the link.
    pub(super) latencies: f64,
    /// Bytes over the link.
    pub(super) link_bytes: f64,
    /// Bytes of device memory.
    pub(super) memory_bytes: f64,
    /// Floating-point operations.
    pub(super) flops: f64,
    /// Kernels.
    pub(super) kernels: f64,
}

impl Step {
    /// When a task began to do its work, a collective when the last of these ranks was there; and when it was
    /// over on `rank`.
    pub(super) fn span(&self, rank: usize, task: usize, collective: bool) -> (u64, u64) {
        let own = self.ranks[rank][task];
        let begin = match collective {
            true => self.ranks.iter().map(|tasks| tasks[task].joined).max().unwrap_or(own.joined),
            false => own.begin,
        };
        (begin.min(own.end), own.end)
    }
}

impl Observation {
    /// Nanoseconds of a task, of every step and rank; a collective once per step, until its last rank is done.
    pub(super) fn times(&self, task: usize) -> Vec<f64> {
        self.times_in(task, |_| true)
    }

    /// The same of the steps in which the rank's other lanes stood still meanwhile.
    pub(super) fn times_apart(&self, task: usize) -> Vec<f64> {
        self.times_in(task, |step| (0..step.ranks.len()).all(|rank| self.is_apart(step, rank, task)))
    }

    fn is_apart(&self, step: &Step, rank: usize, number: usize) -> bool {
        let (begin, end) = step.span(rank, number, self.plan.tasks[number].op.is_collective());
        let beside = |(other, task): (usize, &Task)| {
            let (from, to) = step.span(rank, other, task.op.is_collective());
            let differs = task.lane != self.plan.tasks[number].lane;
            differs && to.min(end).saturating_sub(from.max(begin)) as f64 > BESIDE * (end - begin) as f64
        };
        !self.plan.tasks.iter().enumerate().any(beside)
    }

    fn times_in(&self, task: usize, wanted: impl Fn(&Step) -> bool) -> Vec<f64> {
        let collective = self.plan.tasks[task].op.is_collective();
        let mut times = Vec::new();
        for step in self.steps.iter().filter(|step| wanted(step)) {
            let of_rank = |rank| {
                let (begin, end) = step.span(rank, task, collective);
                (end - begin) as f64
            };
            let all = (0..step.ranks.len()).map(of_rank);
            match collective {
                true => times.push(all.fold(0.0, f64::max)),
                false => times.extend(all),
            }
        }
        times
    }

    /// What every task's price is made of, in task order: prices are linear in the cluster's numbers, so a
    /// cluster in which one number is 1 and the others cost nothing shows its share.
    pub(super) fn shares(&self, algorithm: Algorithm) -> Vec<Share> {
        let plan = &self.plan;
        let work = Work { calls: &plan.calls, slots: &plan.arena.slots, weights: &plan.weights };
        let mesh = plan.weights.mesh;
        let priced = |change: fn(&mut Cluster)| {
            let mut cluster = free(mesh.ranks(), algorithm);
            change(&mut cluster);
            Prices::new(&cluster, mesh)
        };
        let latencies = priced(|cluster| cluster.inside.latency_us = ONE_US);
        let link = priced(|cluster| cluster.inside.bytes_per_s = ONE);
        let memory = priced(|cluster| cluster.gpu.hbm_bytes_per_s = ONE);
        let flops = priced(|cluster| {
            cluster.gpu.flops_per_s = Flops { f32: ONE, bf16: ONE, fp8: ONE, fp4: ONE };
        });
        let kernels = priced(|cluster| cluster.gpu.kernel_us = ONE_US);
        let price = |prices: &Option<Prices>, op: &Op| {
            prices.as_ref().and_then(|prices| prices.of(&work, op)).unwrap_or(0.0)
        };
        let share = |task: &Task| Share {
            latencies: price(&latencies, &task.op),
            link_bytes: price(&link, &task.op),
            memory_bytes: price(&memory, &task.op),
            flops: price(&flops, &task.op),
            kernels: price(&kernels, &task.op),
        };
        plan.tasks.iter().map(share).collect()
    }
}

/// A node on which nothing takes time.
fn free(ranks: u32, algorithm: Algorithm) -> Cluster {
    let free = f64::MAX;
    Cluster {
        name: "free".to_owned(),
        gpus_per_node: ranks,
        ranks_per_node: None,
        gpu: Gpu {
            memory_bytes: 1,
            hbm_bytes_per_s: free,
            kernel_us: 0.0,
            launch_us: 0.0,
            replay_us: 0.0,
            flops_per_s: Flops { f32: free, bf16: free, fp8: free, fp4: free },
        },
        inside: Link { latency_us: 0.0, bytes_per_s: free, message_us: 0.0 },
        between: None,
        algorithm,
        contention: Contention::default(),
        jitter: Jitter::default(),
    }
}

pub(super) fn nanoseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
