//! The printed table of trials.
//!
//! Law: one row a trial with what decided; below it lines that load as a configuration and make the same plan
//! again.

use std::fmt;

use super::Tuning;
use crate::config::{self, ByteSize};
use crate::tune::{Decision, Verdict, why_kept};
use warpweft_plan::plan::GatherStart;

impl Tuning {
    /// The fastest that was tried of what a configuration can say, as it says it: the choice, unless its plan
    /// was made of measured durations, which no configuration holds.
    #[must_use]
    pub fn to_configure(&self) -> Option<config::Prefetch> {
        let ran = |decision: &&Decision| {
            !decision.candidate.by_measurement
                && matches!(decision.verdict, Verdict::Chosen { .. } | Verdict::Kept { .. })
        };
        let choice = self.choice().map(|choice| choice.candidate).filter(|chosen| !chosen.by_measurement);
        let fastest = || self.log().iter().filter(ran).min_by_key(|decision| decision.step);
        let candidate = choice.or_else(|| fastest().map(|decision| decision.candidate))?;
        Some(as_configured(candidate.prefetch, &self.settings.prefetch))
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = |step: u64| format!("{:.3} ms", step as f64 / 1e6);
        let rows: Vec<[String; 4]> = self.log().iter().map(row).collect();
        let widest = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let (policies, steps, bytes) = (widest(0), widest(1), widest(2));
        writeln!(out, "# trials of program `{}`", self.program())?;
        for [policy, step, transient, verdict] in &rows {
            writeln!(out, "# {policy:<policies$}  {step:>steps$}  {transient:>bytes$}  {verdict}")?;
        }
        match self.choice() {
            None => return writeln!(out, "# no trial was measured; the configuration stands"),
            Some(choice) => {
                let state = if self.is_frozen() { "chosen" } else { "best so far" };
                let (step, bytes) = (milliseconds(choice.step), ByteSize::of(choice.bytes).rounded());
                writeln!(
                    out,
                    "# {state}: {}; {step} a step, {bytes} of transient memory per rank",
                    choice.candidate
                )?;
                if choice.candidate.by_measurement {
                    writeln!(
                        out,
                        "# no configuration makes a plan of measured durations again; the fastest that one makes:"
                    )?;
                }
            }
        }
        let Some(prefetch) = self.to_configure() else { return Ok(()) };
        writeln!(out, "{prefetch}")?;
        if prefetch.policy.is_some() {
            writeln!(out, "prefetch.cluster = {}", toml::Value::from(prefetch.cluster))?;
        }
        if let Some(chunk) = prefetch.chunk {
            writeln!(out, "prefetch.chunk = \"{chunk}\"")?;
        }
        if let Some(budget) = self.settings.memory.budget {
            writeln!(out, "memory.budget = \"{budget}\"")?;
        }
        writeln!(out, "tune.steps = 0")
    }
}

/// Policy, step, transient bytes, verdict.
fn row(decision: &Decision) -> [String; 4] {
    let bytes = |bytes: usize| ByteSize::of(bytes).rounded();
    let (transient, verdict) = match &decision.verdict {
        Verdict::Chosen { bytes: needed, before: None } => (bytes(*needed), "the first choice".to_owned()),
        Verdict::Chosen { bytes: needed, .. } => (bytes(*needed), "chosen over the one before".to_owned()),
        Verdict::Kept { bytes: needed, choice } => (bytes(*needed), why_kept(decision.step, *choice)),
        Verdict::OverBudget { bytes: needed, budget } => {
            let budget = ByteSize::of(*budget).in_full();
            (bytes(*needed), format!("more than the budget of {budget}, not run"))
        }
        Verdict::Refused { reason } => (String::new(), format!("refused: {}", reason.replace('\n', " "))),
    };
    let step = decision.step.map_or_else(String::new, |step| format!("{:.3} ms", step as f64 / 1e6));
    [decision.candidate.to_string(), step, transient, verdict]
}

fn as_configured(prefetch: GatherStart, settings: &config::Prefetch) -> config::Prefetch {
    let chosen = match prefetch {
        GatherStart::Depth(depth) => config::Prefetch::depth(depth),
        GatherStart::Bytes(bytes) => config::Prefetch::bytes(config::ByteSize::new(bytes as u64)),
        GatherStart::Auto => config::Prefetch::auto(),
    };
    settings.started_as(chosen)
}
