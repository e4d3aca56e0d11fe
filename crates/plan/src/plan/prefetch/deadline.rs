//! Deadline order in time: each gather as late as is safe.
//!
//! Law: first forwards, without looking at memory: the link always serves what is due first, gathers by the
//! call that reads them, reductions by the call after which their gradient slot is wanted again; calls begin
//! when what they need is there. That is the course to keep. Then backwards along it: whatever stands last on
//! the link ends when it is due, each before it ends when the next must begin, and no reduction begins before
//! its gradient is there. A gather is requested after the last call that ends before its latest beginning,
//! less a margin. So an early gather never takes the link from a reduction that is due before it.

use super::Demand;
use super::together::{Pick, together};

/// What the calls, gathers and reductions of a program take, nanoseconds.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Pace {
    /// The compute lane, per stage.
    pub(in super::super) calls: Vec<f64>,
    /// The gather of every demand.
    pub(in super::super) gathers: Vec<f64>,
    /// From the end of every demand's gather to the moment its call can begin.
    pub(in super::super) leads: Vec<f64>,
    /// All reductions of the gradients of each stage.
    pub(in super::super) reductions: Vec<f64>,
    /// Do gathers and reductions share one link?
    pub(in super::super) one_link: bool,
}

/// One piece of work for the link.
#[derive(Clone, Copy, Debug)]
struct Job {
    /// The demand; none for a reduction.
    demand: Option<usize>,
    length: f64,
    /// The earliest it may begin.
    ready: f64,
    /// When it must be over.
    due: f64,
}

/// The stage at which each demand is requested: `margin` nanoseconds before its latest safe beginning.
/// Gradient slots are wanted again `ring` calls after theirs. What is `kept` takes nothing of the link.
pub(super) fn issues(
    demands: &[Demand<'_>],
    pace: &Pace,
    kept: &[bool],
    ring: usize,
    margin: f64,
) -> Vec<usize> {
    let gathers = pace.gathers.iter().zip(kept).map(|(time, kept)| if *kept { 0.0 } else { *time }).collect();
    let Course { mut jobs, ends } = course(demands, &Pace { gathers, ..pace.clone() }, ring);
    let mut issues: Vec<usize> = demands.iter().map(|demand| demand.stage).collect();
    let mut next = f64::INFINITY;
    for job in jobs.iter_mut().rev() {
        let latest = (job.due.min(next) - job.length).max(job.ready);
        next = latest;
        if let Some(demand) = job.demand {
            // Requested at stage s, it may begin when call s−1 is over.
            let over = ends.partition_point(|end| *end <= latest - margin);
            issues[demand] =
                if kept[demand] { demands[demand].stage } else { over.min(demands[demand].stage) };
        }
    }
    for number in (1..issues.len()).rev() {
        issues[number - 1] = issues[number - 1].min(issues[number]);
    }
    together(demands, &mut issues, Pick::Earliest);
    issues
}

/// How a step goes whose gathers wait for nothing but the link.
struct Course {
    /// In the order in which the link serves them.
    jobs: Vec<Job>,
    /// When each call ends.
    ends: Vec<f64>,
}

fn course(demands: &[Demand<'_>], pace: &Pace, ring: usize) -> Course {
    let stages = pace.calls.len();
    let mut served = Served { link: 0.0, ready: vec![0.0; stages + 1], jobs: Vec::new() };
    let (mut begins, mut ends): (Vec<f64>, Vec<f64>) =
        (Vec::with_capacity(stages), Vec::with_capacity(stages));
    let mut reduced = 0;
    let mut next = 0;
    for stage in 0..stages {
        // What is due at this stage, and gathers of later stages in the gaps of reductions that are not ready.
        while next < demands.len() && demands[next].stage <= stage {
            served.gather(demands, pace, next);
            next += 1;
        }
        while pace.one_link && reduced + ring <= stage {
            let ready = ends.get(reduced).copied().unwrap_or(0.0);
            while next < demands.len() && served.link + pace.gathers[next] <= ready {
                served.gather(demands, pace, next);
                next += 1;
            }
            served.reduce(pace.reductions[reduced], ready, stage);
            reduced += 1;
        }
        let before = ends.last().copied().unwrap_or(0.0);
        let begin = served.ready[stage].max(before);
        begins.push(begin);
        ends.push(begin + pace.calls[stage]);
    }
    let end = ends.last().copied().unwrap_or(0.0);
    let mut jobs = served.jobs;
    for (job, stage) in &mut jobs {
        job.due = begins.get(*stage).copied().unwrap_or(end) - job.due;
    }
    Course { jobs: jobs.into_iter().map(|(job, _)| job).collect(), ends }
}

/// The link while the course is made.
struct Served {
    /// When it is free.
    link: f64,
    /// Per stage, when everything it waits for is there.
    ready: Vec<f64>,
    /// What was served, and the stage it is due at; `due` is still the lead before that stage.
    jobs: Vec<(Job, usize)>,
}

impl Served {
    fn gather(&mut self, demands: &[Demand<'_>], pace: &Pace, number: usize) {
        let (stage, length, lead) = (demands[number].stage, pace.gathers[number], pace.leads[number]);
        self.link += length;
        self.ready[stage] = self.ready[stage].max(self.link + lead);
        self.jobs.push((Job { demand: Some(number), length, ready: 0.0, due: lead }, stage));
    }

    fn reduce(&mut self, length: f64, ready: f64, stage: usize) {
        if length > 0.0 {
            self.link = self.link.max(ready) + length;
            self.ready[stage] = self.ready[stage].max(self.link);
            self.jobs.push((Job { demand: None, length, ready, due: 0.0 }, stage));
        }
    }
}
