//! The report of the stack benchmark: as data, as a table and as JSON.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use warpweft_format::ElementType;
use warpweft_plan::policy::ReduceDtype;
use warpweft_session::session::{HostTime, SessionError};

use super::super::text::{Align, Table, bytes};
use super::{MeasureError, StackOptions};

/// A step as it was simulated.
pub(super) type Prediction = Result<Duration, SessionError>;

/// One row: a variant and an ending.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Format, unit, prefetch, mode, transport, ending.
    pub name: String,
    /// In what numbers products were computed.
    pub products: String,
    /// Median step, milliseconds; `None` for a variant that could not run.
    pub step_ms: Option<f64>,
    /// Its step simulated on the cluster that was named, milliseconds.
    pub predicted_ms: Option<f64>,
    /// Median time of the host to issue a step on the slowest rank, milliseconds.
    pub host_ms: Option<f64>,
    /// What that went to, milliseconds, in a step that was asked (a step of the warm-up): calls of the driver
    /// and its libraries.
    pub driver_ms: Option<f64>,
    /// How many calls these were.
    pub driver_calls: Option<u64>,
    /// Code of the closures, without such calls, milliseconds.
    pub closures_ms: Option<f64>,
    /// This library's own code, milliseconds.
    pub own_ms: Option<f64>,
    /// The same for each task, or of a captured step for all of it, microseconds.
    pub own_each_us: Option<f64>,
    /// Before and after issuing: the driver's copies in and out, and this library's own code, milliseconds.
    pub edges_ms: Option<f64>,
    /// Step over the resident stack's of the same mode, without optimizer.
    pub ratio: Option<f64>,
    /// Median step of a session whose tasks are timed for a trace, milliseconds; only with traces.
    pub traced_ms: Option<f64>,
    /// Exposed communication over step time, of that session.
    pub exposed: Option<f64>,
    /// Bytes received by a rank in a step.
    pub wire_bytes: Option<u64>,
    /// The arena of a rank.
    pub arena_bytes: Option<u64>,
    /// The part of it that is planes in flight, gradients on their way, activations.
    pub transient_bytes: Option<u64>,
    /// Sum of the last output.
    pub loss: Option<f32>,
    /// Norm of all weight gradients, where one is computed: by the resident stack and by the ending `training`.
    pub norm: Option<f32>,
    /// Every step of a session in order, those of the warm-up among them, milliseconds: do they still change?
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub all_steps_ms: Vec<f64>,
    /// What went otherwise than requested; several things with a semicolon between them.
    pub note: Option<String>,
}

impl Measured {
    pub(super) fn new(name: String, products: String, step: Duration, host: Duration) -> Self {
        let milliseconds = |time: Duration| Some(time.as_secs_f64() * 1e3);
        Self { step_ms: milliseconds(step), host_ms: milliseconds(host), products, ..Self::empty(name) }
    }

    pub(super) fn failed(name: String, error: &MeasureError) -> Self {
        Self { note: Some(error.to_string()), ..Self::empty(name) }
    }

    fn empty(name: String) -> Self {
        Self {
            name,
            products: String::new(),
            step_ms: None,
            predicted_ms: None,
            host_ms: None,
            driver_ms: None,
            driver_calls: None,
            closures_ms: None,
            own_ms: None,
            own_each_us: None,
            edges_ms: None,
            ratio: None,
            traced_ms: None,
            exposed: None,
            wire_bytes: None,
            arena_bytes: None,
            transient_bytes: None,
            loss: None,
            norm: None,
            all_steps_ms: Vec::new(),
            note: None,
        }
    }

    /// Says what the host's time went to.
    pub(super) fn split(&mut self, host: &HostTime) {
        let milliseconds = |time: Duration| Some(time.as_secs_f64() * 1e3);
        self.driver_ms = milliseconds(host.issue.driver);
        self.driver_calls = Some(host.issue.calls);
        self.closures_ms = milliseconds(host.issue.closures);
        self.own_ms = milliseconds(host.issue.own);
        self.own_each_us = Some(host.own_each().as_secs_f64() * 1e6);
        self.edges_ms = milliseconds(host.edges.busy());
    }

    /// Says how long a step takes that was simulated; where the simulation was refused, why.
    pub(super) fn predict(&mut self, predicted: Option<Prediction>) {
        match predicted {
            Some(Ok(step)) => self.predicted_ms = Some(step.as_secs_f64() * 1e3),
            Some(Err(error)) => self.remark(format!("not predicted: {error}")),
            None => {}
        }
    }

    /// Notes one thing more.
    pub(super) fn remark(&mut self, remark: String) {
        self.note = Some(match self.note.take() {
            None => remark,
            Some(note) => format!("{note}; {remark}"),
        });
    }

    /// The row in one line, for people who wait.
    #[must_use]
    pub fn line(&self) -> String {
        let note = self.note.as_ref().map_or_else(String::new, |note| format!("  ({note})"));
        match (self.step_ms, self.ratio) {
            (Some(step), Some(ratio)) => format!("  {}: {step:.3} ms, {ratio:.3}×{note}", self.name),
            (Some(step), None) => format!("  {}: {step:.3} ms{note}", self.name),
            (None, _) => format!("  {}: not measured{note}", self.name),
        }
    }
}

/// All rows, the resident stack's first.
#[derive(Clone, Debug, Serialize)]
pub struct StackReport {
    hidden: usize,
    ffn: usize,
    layers: usize,
    tokens: usize,
    gpus: usize,
    steps: usize,
    warm: usize,
    gradients: &'static str,
    reduce_dtype: ReduceDtype,
    rows: Vec<Measured>,
}

impl StackReport {
    pub(super) fn new(options: &StackOptions, resident: [Measured; 2]) -> Self {
        let shape = options.shape;
        let mut report = Self {
            hidden: shape.hidden,
            ffn: shape.ffn,
            layers: shape.layers,
            tokens: shape.tokens,
            gpus: options.gpus,
            steps: options.steps,
            warm: options.warm,
            gradients: match options.gradients {
                ElementType::Bf16 => "bf16",
                _ => "f32",
            },
            reduce_dtype: options.reduce_dtype,
            rows: Vec::new(),
        };
        for row in resident {
            report.rows.push(Measured { ratio: Some(1.0), ..row });
        }
        report
    }

    /// The rows so far.
    #[must_use]
    pub fn rows(&self) -> &[Measured] {
        &self.rows
    }

    /// Adds a row, in proportion to the resident stack of its mode.
    pub(super) fn add(&mut self, mut row: Measured) -> Measured {
        let mode = usize::from(row.name.split('/').any(|part| part == "graph"));
        let resident = self.rows.get(mode).and_then(|resident| resident.step_ms);
        row.ratio = row.step_ms.zip(resident).map(|(step, resident)| step / resident);
        self.rows.push(row.clone());
        row
    }

    /// Refuses a report with rows that could not be measured.
    ///
    /// # Errors
    /// [`MeasureError::Failed`].
    pub fn check(&self) -> Result<(), MeasureError> {
        let failed = self.rows.iter().filter(|row| row.step_ms.is_none()).count();
        if failed == 0 { Ok(()) } else { Err(MeasureError::Failed { failed, all: self.rows.len() }) }
    }

    /// How far `value` of a row is from the resident stack's.
    fn apart(&self, row: &Measured, value: fn(&Measured) -> Option<f32>) -> String {
        match (value(row), self.rows.first().and_then(value)) {
            (Some(own), Some(resident)) if resident != 0.0 => {
                format!("{:+.1e}", (own - resident) / resident.abs())
            }
            _ => "-".to_owned(),
        }
    }
}

/// Another time of a step, and how far it is from the step's.
fn beside_step(row: &Measured, other: Option<f64>) -> String {
    other.zip(row.step_ms).map_or_else(
        || "-".to_owned(),
        |(other, step)| format!("{other:.3} ({:+.1} %)", 100.0 * (other / step - 1.0)),
    )
}

impl fmt::Display for StackReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hidden, ffn, layers, tokens, gpus, steps, warm, gradients, reduce_dtype, rows } = self;
        writeln!(
            formatter,
            "hidden {hidden}, ffn {ffn}, {layers} layers, {tokens} tokens per rank, {gpus} GPUs; medians of {steps} steps \
             after {warm}; weight gradients are written in {gradients} and travel in {reduce_dtype}"
        )?;
        if let Some(Measured { loss: Some(loss), norm: Some(norm), .. }) = rows.first() {
            writeln!(
                formatter,
                "resident: loss {loss:.6e}, gradient norm {norm:.6e}; others relative to it"
            )?;
        }
        let mut table = Table::new([
            ("variant", Align::Left),
            ("step ms", Align::Right),
            ("×", Align::Right),
            ("predicted", Align::Right),
            ("host ms", Align::Right),
            ("driver (calls)", Align::Right),
            ("closures", Align::Right),
            ("own (µs a task)", Align::Right),
            ("in, out", Align::Right),
            ("traced", Align::Right),
            ("exposed", Align::Right),
            ("wire", Align::Right),
            ("arena", Align::Right),
            ("transient", Align::Right),
            ("loss", Align::Right),
            ("norm", Align::Right),
            ("products", Align::Left),
        ]);
        for row in rows {
            let number =
                |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
            let size = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), bytes);
            table.row([
                row.name.clone(),
                number(row.step_ms),
                number(row.ratio),
                beside_step(row, row.predicted_ms),
                number(row.host_ms),
                row.driver_ms
                    .zip(row.driver_calls)
                    .map_or_else(|| "-".to_owned(), |(time, calls)| format!("{time:.3} ({calls})")),
                number(row.closures_ms),
                row.own_ms
                    .zip(row.own_each_us)
                    .map_or_else(|| "-".to_owned(), |(time, each)| format!("{time:.3} ({each:.2})")),
                number(row.edges_ms),
                beside_step(row, row.traced_ms),
                row.exposed.map_or_else(|| "-".to_owned(), |exposed| format!("{:.1} %", 100.0 * exposed)),
                size(row.wire_bytes),
                size(row.arena_bytes),
                size(row.transient_bytes),
                self.apart(row, |row| row.loss),
                self.apart(row, |row| row.norm),
                row.products.clone(),
            ]);
        }
        write!(formatter, "{table}")?;
        if rows.iter().any(|row| row.driver_ms.is_some()) {
            writeln!(
                formatter,
                "of the host's ms: in calls of the driver (how many), in closures but for these, in this library (µs for each task; for all of \
                 a captured step); beside it, what copying in and out takes before and after"
            )?;
        }
        for row in rows {
            if let Some(note) = &row.note {
                writeln!(formatter, "{}: {note}", row.name)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_time_is_split_in_milliseconds_and_microseconds_for_each_task() {
        let mut host = HostTime::default();
        host.tasks = 1200;
        (host.issue.own, host.issue.driver) = (Duration::from_micros(600), Duration::from_micros(7900));
        (host.issue.closures, host.issue.calls) = (Duration::from_micros(500), 3456);
        (host.edges.own, host.edges.driver) = (Duration::from_micros(20), Duration::from_micros(80));
        let mut row = Measured::empty("bf16/depth2/eager/peer/gradients".to_owned());
        row.split(&host);
        assert_eq!((row.driver_ms, row.driver_calls, row.closures_ms), (Some(7.9), Some(3456), Some(0.5)));
        assert_eq!((row.own_ms, row.own_each_us, row.edges_ms), (Some(0.6), Some(0.5), Some(0.1)));
        host.segments = 1;
        row.split(&host);
        assert_eq!(row.own_each_us, Some(600.0), "a captured step is launched at once");
    }

    #[test]
    fn what_timing_every_task_costs_stands_beside_the_step_without() {
        let named = Measured::empty("bf16/block/depth2/graph/peer/gradients".to_owned());
        let row = Measured { step_ms: Some(16.0), ..named };
        assert_eq!(beside_step(&row, row.traced_ms), "-");
        let row = Measured { traced_ms: Some(16.4), ..row };
        assert_eq!(beside_step(&row, row.traced_ms), "16.400 (+2.5 %)");
    }

    #[test]
    fn every_note_of_a_row_is_kept() {
        let mut row = Measured::empty("bf16/block/depth2/graph/peer/training".to_owned());
        row.remark("issued anew: no memory".to_owned());
        row.remark("the last step was skipped".to_owned());
        assert_eq!(row.note.as_deref(), Some("issued anew: no memory; the last step was skipped"));
    }
}
