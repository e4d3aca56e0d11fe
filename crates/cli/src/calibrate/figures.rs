//! The numbers of a cluster, derived from observations, each with a sentence about its origin.
//!
//! Law: a number is read from times alone, by the formulas that will be charged with it ([`Share`]); what is
//! not seen is said to be not seen. Times of local tasks are lower quartiles, brought down to what they would
//! be without delays, because delays have a number of their own.

use std::collections::BTreeMap;

use warpweft_plan::cluster::Algorithm;
use warpweft_plan::model::Math;
use warpweft_plan::op::Op;

use super::MeasureError;
use super::figure::{Figure, lower_quartile, middle, percent};
use super::fit::{Fit, FitError, Point, fit};
use super::jitter::Delays;
use super::subject::{Observation, Share};

/// What one kind of task takes: `a` each and `b` per byte, nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    /// The op.
    pub(super) what: &'static str,
    /// `None` where its times follow no line.
    pub(super) fit: Option<Fit>,
    /// The least and the most bytes that count.
    pub(super) bytes: (u64, u64),
}

/// The link between the ranks of a node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LinkFigures {
    pub(super) latency_us: Figure,
    pub(super) bytes_per_s: Figure,
    /// Every kind of collective by itself.
    pub(super) lines: Vec<Line>,
}

/// One point for every op and size, of the tasks that `wanted` picks.
fn points(
    observations: &[Observation],
    algorithm: Algorithm,
    wanted: impl Fn(&Op) -> bool,
    size: impl Fn(&Share) -> (f64, f64),
    pick: fn(Vec<f64>) -> Option<f64>,
) -> BTreeMap<&'static str, Vec<Point>> {
    let mut times: BTreeMap<(&'static str, u64, u64), Vec<f64>> = BTreeMap::new();
    for observation in observations {
        let tasks = observation.plan.tasks.iter().zip(observation.shares(algorithm)).enumerate();
        for (number, (task, share)) in tasks.filter(|(_, (task, _))| wanted(&task.op)) {
            let (x, y) = size(&share);
            let key = (task.op.name(), y.to_bits(), x.to_bits());
            times.entry(key).or_default().extend(observation.times_apart(number));
        }
    }
    let mut points: BTreeMap<&'static str, Vec<Point>> = BTreeMap::new();
    for ((name, y, x), times) in times {
        if let Some(time) = pick(times) {
            let point = Point { x: f64::from_bits(x), y: f64::from_bits(y), time };
            points.entry(name).or_default().push(point);
        }
    }
    points
}

fn lines(points: &BTreeMap<&'static str, Vec<Point>>) -> Vec<Line> {
    let line = |(what, points): (&&'static str, &Vec<Point>)| {
        let sizes = || points.iter().map(|point| point.y);
        let bytes = (sizes().fold(f64::INFINITY, f64::min) as u64, sizes().fold(0.0, f64::max) as u64);
        Line { what, fit: fit(points).ok(), bytes }
    };
    points.iter().map(line).collect()
}

/// α and β of the link.
///
/// One pair serves all collectives, so both come from gathers and reductions together. All-reduces are shown
/// and not used: large ones take two turns.
///
/// # Errors
/// [`MeasureError::Fit`].
pub(super) fn link(observations: &[Observation], algorithm: Algorithm) -> Result<LinkFigures, MeasureError> {
    let size = |share: &Share| (share.latencies, share.link_bytes);
    let by_kind = points(observations, algorithm, Op::is_collective, size, middle);
    let used = by_kind.iter().filter(|(name, _)| **name != "all-reduce");
    let used: Vec<Point> = used.flat_map(|(_, points)| points).copied().collect();
    let both = fit(&used).map_err(MeasureError::of("the link between ranks"))?;
    let largest = used.iter().map(|point| point.y).fold(0.0, f64::max) as u64;
    let how = format!(
        "measured: gathers and reductions of up to {} received, {} sizes; median {} off the line, at most {}",
        super::super::text::bytes(largest),
        both.points,
        percent(both.residual),
        percent(both.worst),
    );
    Ok(LinkFigures {
        latency_us: Figure::new(both.a * 1e-3, how.clone()),
        bytes_per_s: Figure::new(1e9 / both.b, how),
        lines: lines(&by_kind),
    })
}

/// What is known of a GPU before its products are measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    pub(super) delays: &'a Delays,
    pub(super) kernel_us: f64,
    pub(super) hbm_bytes_per_s: Option<f64>,
}

impl Known<'_> {
    /// What of a lower quartile is neither delay nor kernels.
    fn without_kernels(&self, lower_quartile: f64, share: &Share) -> f64 {
        self.delays.without(lower_quartile) - share.kernels * self.kernel_us * 1e3
    }
}

/// What a kernel takes beside its operations and bytes: from calls of so many small ones each, whatever else
/// a call takes.
pub(super) fn kernel(observation: &Observation, delays: &Delays, algorithm: Algorithm) -> Figure {
    let tasks = observation.plan.tasks.iter().zip(observation.shares(algorithm)).enumerate();
    let small = tasks.filter(|(_, (task, share))| {
        matches!(task.op, Op::Compute(_)) && share.kernels > 0.0 && share.flops <= 0.0
    });
    let point = |(number, (_, share)): (usize, (_, Share))| {
        let time = delays.without(lower_quartile(observation.times_apart(number))?);
        Some(Point { x: 1.0, y: share.kernels, time })
    };
    let points: Vec<Point> = small.filter_map(point).collect();
    match fit(&points) {
        Ok(found) => {
            let counts = || points.iter().map(|point| point.y);
            let (least, most) = (counts().fold(f64::INFINITY, f64::min), counts().fold(0.0, f64::max));
            let how = format!(
                "measured: calls of {least} to {most} small kernels one after the other, for each; median {} off the line, at most {}",
                percent(found.residual),
                percent(found.worst)
            );
            Figure::new(found.b * 1e-3, how)
        }
        Err(FitError::Flat | FitError::TooFew { points: 0 }) => {
            Figure::new(0.0, "not seen: no call took longer for the kernels in it")
        }
        Err(error) => Figure::new(0.0, format!("not measured: {error}")),
    }
}

/// Speed of device memory as the library's own kernels use it in the steps of the `largest` weights, and what
/// each kind takes by itself.
///
/// # Errors
/// [`MeasureError::Fit`] when no kernel took longer than any launch does.
pub(super) fn memory(
    observations: &[Observation],
    largest: &[Observation],
    known: Known<'_>,
    algorithm: Algorithm,
) -> Result<(Figure, Vec<Line>), MeasureError> {
    let is_kernel = |op: &Op| !op.is_collective() && !matches!(op, Op::Compute(_));
    let size = |share: &Share| (1.0, share.memory_bytes);
    let by_kind = points(observations, algorithm, is_kernel, size, lower_quartile);
    // What one number has to get right is the sum over a step whose weights are large.
    let volume = |observation: &Observation| {
        let shares = observation.shares(algorithm);
        let tasks = observation.plan.tasks.iter().enumerate().zip(shares);
        let own = tasks.filter(|((_, task), share)| is_kernel(&task.op) && share.memory_bytes > 0.0);
        own.fold((0.0, 0.0), |(bytes, time), ((number, _), share)| {
            match lower_quartile(observation.times_apart(number)) {
                Some(taken) => {
                    (bytes + share.memory_bytes, time + known.without_kernels(taken, &share).max(0.0))
                }
                None => (bytes, time),
            }
        })
    };
    let (bytes, time) =
        largest.iter().map(volume).fold((0.0, 0.0), |sum, more| (sum.0 + more.0, sum.1 + more.1));
    if time <= 0.0 {
        return Err(MeasureError::of("device memory")(FitError::Flat));
    }
    let how = format!(
        "measured: bytes over time, less kernel_us for each, of all kernels of steps with the largest weights, one in each format, {} in {} kinds",
        super::super::text::bytes(bytes as u64),
        by_kind.len(),
    );
    Ok((Figure::new(bytes / time * 1e9, how), lines(&by_kind)))
}

/// Operations per second of one kind of products: operations over what is left of their calls when kernels
/// and the bytes that are moved after no product are taken away, the middle of all sizes. No line through them: what
/// a product takes beyond its operations, such as tiles that fill the device badly, belongs to its speed.
///
/// # Errors
/// [`MeasureError::Fit`].
pub(super) fn flops(
    observation: &Observation,
    known: Known<'_>,
    algorithm: Algorithm,
    math: Math,
    whose: &str,
) -> Result<Figure, MeasureError> {
    let tasks = observation.plan.tasks.iter().zip(observation.shares(algorithm)).enumerate();
    let products = tasks.filter(|(_, (task, _))| matches!(task.op, Op::Compute(_)));
    let speed = |(number, (_, share)): (usize, (_, Share))| {
        let time = known.without_kernels(lower_quartile(observation.times_apart(number))?, &share);
        let moved = known.hbm_bytes_per_s.map_or(0.0, |speed| share.memory_bytes / speed * 1e9);
        (time > moved && share.flops > 0.0).then(|| share.flops / (time - moved) * 1e9)
    };
    let all: Vec<f64> = products.filter_map(speed).collect();
    let sizes = all.len();
    let (least, most) = all
        .iter()
        .fold((f64::INFINITY, 0.0_f64), |(least, most), speed| (least.min(*speed), most.max(*speed)));
    let refused = MeasureError::of("the speed of products");
    let speed = middle(all).ok_or_else(|| refused(FitError::TooFew { points: 0 }))?;
    let how = format!(
        "measured: {whose} in {math:?}, the middle of {sizes} sizes, which reach {:.3e} to {:.3e}",
        least, most
    );
    Ok(Figure::new(speed, how))
}

/// What the host takes: for a task, from two steps of many small ones that differ in their number; for a
/// captured step, from what is left of it when its tasks are taken away.
pub(super) fn host(few: &Observation, many: &Observation, captured: &Observation) -> (Figure, Figure) {
    let step = |observation: &Observation| {
        middle(observation.steps.iter().map(|step| step.duration as f64).collect()).unwrap_or(0.0)
    };
    let tasks = |observation: &Observation| observation.plan.tasks.len();
    let launch = (step(many) - step(few)).max(0.0) / (tasks(many).saturating_sub(tasks(few)).max(1)) as f64;
    let how = format!(
        "measured: what a step of {} small tasks takes longer than one of {}, for each; host or lane, whichever is slower",
        tasks(many),
        tasks(few)
    );
    let rest = |step: &super::subject::Step| {
        let intervals = || step.ranks.iter().flatten().filter(|interval| interval.ran());
        let begin = intervals().map(|interval| interval.begin).min();
        let end = intervals().map(|interval| interval.end).max();
        match (begin, end) {
            (Some(begin), Some(end)) => step.duration.saturating_sub(end - begin),
            _ => step.issue.unwrap_or(0),
        }
    };
    let replay = middle(captured.steps.iter().map(|step| rest(step) as f64).collect()).unwrap_or(0.0);
    let replayed =
        format!("measured: a captured step of {} tasks, less the time in which they ran", tasks(captured));
    (Figure::new(launch * 1e-3, how), Figure::new(replay * 1e-3, replayed))
}
