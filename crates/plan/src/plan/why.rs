//! Explanations: why a task stands where it stands.
//!
//! Law: everything said here is read off the finished plan: its dependences, its fences, its slots and, if
//! costs are given, its forecast. Whoever doubts a schedule asks here first.

use std::fmt::Write;

use super::{Costs, Edge, EdgeKind, Forecast, StepPlan};
use crate::layout::Residency;
use crate::model::Access;
use warpweft_base::id::TaskId;

impl StepPlan {
    /// The tasks that `wanted` means: a number in issue order, or part of what [`StepPlan::describe`] says of
    /// them.
    #[must_use]
    pub fn find_tasks(&self, wanted: &str) -> Vec<TaskId> {
        if let Ok(number) = wanted.parse::<u32>() {
            let task = TaskId::new(number);
            return if task.index() < self.tasks.len() { vec![task] } else { Vec::new() };
        }
        let named = |task: &TaskId| self.describe(*task).contains(wanted);
        (0..self.tasks.len()).map(TaskId::at).filter(named).collect()
    }

    /// Why a task stands where it stands, in words: what must come before it and what covers that, the memory
    /// it was given and who had it before, and, with costs, what it waits for and what it has to spare.
    ///
    /// # Panics
    /// When the id belongs to another plan.
    #[must_use]
    pub fn why(&self, task: TaskId, costs: Option<&Costs>) -> String {
        self.why_each(&[task], costs).concat()
    }

    /// [`StepPlan::why`] of each of several tasks. What concerns the whole plan is computed once.
    ///
    /// # Panics
    /// As [`StepPlan::why`].
    #[must_use]
    pub fn why_each(&self, tasks: &[TaskId], costs: Option<&Costs>) -> Vec<String> {
        let edges = self.edges();
        let forecast = costs.map(|costs| self.forecast(costs));
        let why = |task: &TaskId| {
            let from = edges.partition_point(|edge| edge.to < *task);
            let own = edges[from..].partition_point(|edge| edge.to == *task);
            self.why_by(*task, &edges[from..from + own], forecast.as_ref())
        };
        tasks.iter().map(why).collect()
    }

    fn why_by(&self, task: TaskId, edges: &[Edge], forecast: Option<&Forecast>) -> String {
        let mut text = format!("{}\n", self.describe(task));
        self.say_place(task, &mut text);
        self.say_edges(task, edges, &mut text);
        self.say_memory(task, edges, &mut text);
        if let Some(forecast) = forecast {
            self.say_times(task, forecast, &mut text);
        }
        text
    }

    fn before_on_lane(&self, task: TaskId) -> Option<TaskId> {
        let lane = self.task(task).lane;
        (0..task.index()).rev().map(TaskId::at).find(|other| self.task(*other).lane == lane)
    }

    fn say_place(&self, task: TaskId, text: &mut String) {
        let lane = self
            .lanes
            .get(self.task(task).lane.index())
            .map_or_else(String::new, |lane| lane.kind.to_string());
        let after = match self.before_on_lane(task) {
            Some(before) => format!("after {}", self.describe(before)),
            None => "the first there".to_owned(),
        };
        let _ = writeln!(text, "  lane      {lane}, {after}");
        if let Some(release) = self.task(task).release {
            let _ = writeln!(text, "  requested after {} ({})", self.describe(release), self.policy.prefetch);
        } else if self.is_gather(task) {
            let _ = writeln!(text, "  requested at the beginning of the step ({})", self.policy.prefetch);
        }
    }

    fn is_gather(&self, task: TaskId) -> bool {
        self.task(task).op.is_gather()
    }

    fn say_edges(&self, task: TaskId, edges: &[Edge], text: &mut String) {
        let mut said: Vec<String> = Vec::new();
        for edge in edges {
            let slot = &self.arena.slot(edge.slot).name;
            let why = match edge.kind {
                EdgeKind::Lease => format!("it makes `{slot}`, which is read here"),
                EdgeKind::Credit => format!("`{slot}` must be done with before its bytes are written here"),
                EdgeKind::Release => "no prefetch before its end".to_owned(),
            };
            let line =
                format!("  after     {}: {why}; {}\n", self.describe(edge.from), self.cover(edge.from, task));
            // Slots of a weight's planes may have one name.
            if !said.contains(&line) {
                text.push_str(&line);
                said.push(line);
            }
        }
        if edges.is_empty() {
            let _ =
                writeln!(text, "  after     nothing in this step: its operands are there from the beginning");
        }
    }

    /// What makes `task` wait for `from`.
    fn cover(&self, from: TaskId, task: TaskId) -> String {
        if self.task(task).waits.contains(&from) {
            return "a fence of its own".to_owned();
        }
        if self.task(from).lane == self.task(task).lane {
            return "the lane's order".to_owned();
        }
        let lane = self.task(from).lane;
        let later = self.task(task).waits.iter().find(|wait| self.task(**wait).lane == lane && **wait > from);
        match later {
            Some(wait) => format!("the fence on {}, which is later on that lane", wait),
            None => "fences before it on this lane, or on what it waits for".to_owned(),
        }
    }

    fn say_memory(&self, task: TaskId, edges: &[Edge], text: &mut String) {
        for (slot, access) in self.task(task).op.accesses() {
            let place = self.arena.slot(slot);
            if access != Access::Write || place.residency != Residency::Transient {
                continue;
            }
            let region = place.region;
            let mut before: Vec<&str> = edges
                .iter()
                .filter(|edge| edge.kind == EdgeKind::Credit && edge.slot != slot)
                .map(|edge| self.arena.slot(edge.slot))
                .filter(|other| other.region.overlaps(region))
                .map(|other| other.name.as_str())
                .collect();
            before.dedup();
            let had = match before.len() {
                0 => "nobody before it in this step".to_owned(),
                1..=3 => format!("before it: {}", before.join(", ")),
                more => format!("before it: {} and {} more", before[..3].join(", "), more - 3),
            };
            let _ = writeln!(
                text,
                "  writes    `{}`, bytes {} to {}; {had}",
                place.name,
                region.offset,
                region.end()
            );
        }
    }

    fn say_times(&self, task: TaskId, forecast: &Forecast, text: &mut String) {
        let us = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        let span = forecast.spans[task.index()];
        let _ = writeln!(
            text,
            "  runs      from {:.1} to {:.1} of {:.1} µs",
            us(span.begin),
            us(span.end),
            us(forecast.step)
        );
        let held_up = self.task(task).waits.iter().copied().chain(self.before_on_lane(task));
        let last = held_up.max_by_key(|other| forecast.spans[other.index()].end);
        match last.filter(|other| forecast.spans[other.index()].end == span.begin) {
            Some(other) => drop(writeln!(text, "  begins    when {} ends", self.describe(other))),
            None => drop(writeln!(text, "  begins    when the host has issued it")),
        }
        if let Some(slack) = forecast.gathers.iter().find(|slack| slack.gather == task) {
            let time = us(slack.nanoseconds.unsigned_abs());
            let said = if slack.nanoseconds < 0 { "late by" } else { "to spare" };
            let _ = writeln!(text, "  slack     {said} {time:.1} µs for {}", self.describe(slack.reader));
        }
    }
}
