//! Measures a variant of the sharded stack: one session, with a program for each ending.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use warpweft_base::id::RankId;
use warpweft_base::median::median;
use warpweft_cuda::DeviceOrdinal;
use warpweft_cuda::linear::Recipe;
use warpweft_plan::cluster::Cluster;
use warpweft_plan::model::StepProgram;
use warpweft_session::config::Config;
use warpweft_session::session::initial::MasterRows;
use warpweft_session::session::{HostTime, Outcome, Session, StepReport, block_on, simulate_program};

use super::closure::Closure;
use super::program::{LOSS, declare};
use super::report::{Measured, Prediction};
use super::shape::{Projection, StackShape};
use super::variant::Selected;
use super::{MeasureError, Measuring, Setting, middle, values};

/// Steps that are simulated, so that their delays even out.
const SIMULATED: u32 = 8;

/// Measures the endings in turn; rows come as they are measured. If traces are requested, each ending has one
/// more session, of its steps alone, that is traced: what timing its tasks costs stands beside the step
/// without.
pub(super) fn measure(
    setting: &Setting<'_>,
    selected: &Selected,
    rows: &mut Vec<Measured>,
) -> Result<(), MeasureError> {
    let Setting { options, base, .. } = setting;
    let Selected { variant, endings } = selected;
    let config = variant.config(base, options);
    run(setting, selected, config.clone(), &mut |_, row| rows.push(row))?;
    for (ending, row) in endings.iter().zip(rows) {
        let Some(trace) = variant.trace(base, options, *ending) else { continue };
        let alone = Selected { variant: *variant, endings: vec![*ending] };
        let traced = run(setting, &alone, Config { trace, ..config.clone() }, &mut |_, traced| {
            (row.traced_ms, row.exposed) = (traced.step_ms, traced.exposed);
        });
        match traced {
            Err(MeasureError::Interrupted(of)) => return Err(MeasureError::Interrupted(of)),
            // What was measured without a trace stands.
            Err(error) => row.remark(format!("no trace: {error}")),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Runs a session of the endings in turn, and hands on the row of each with its place.
fn run(
    setting: &Setting<'_>,
    selected: &Selected,
    config: Config,
    row: &mut dyn FnMut(usize, Measured),
) -> Result<(), MeasureError> {
    let Setting { options, machine, gpus, pace, stop, .. } = setting;
    block_on(async {
        let Selected { variant, endings } = selected;
        let shape = options.shape;
        let format = variant.format.format();
        let Some(first) = gpus.first() else {
            return Err(MeasureError::Gpus { requested: options.gpus, found: 0, of: Measuring::Stack });
        };
        let recipe = Recipe::best_for(format, first.compute_capability()?);
        let computed = (recipe, options.gradients);
        let (declaration, programs) = declare(&shape, format, computed, variant.unit, endings)?;
        let devices = gpus.to_vec();
        let closure = move |rank: RankId| {
            Closure::new(Arc::clone(&declaration), &shape, computed, devices[rank.index()])
        };
        let timed = config.trace.enabled;
        // The row of a traced session lends its times to the one before.
        let machine = machine.as_ref().filter(|_| !timed);
        let predictions = predict(&programs, &config, machine, ranks(gpus));
        let builder = Session::builder(config, closure).initialize(initialize(shape));
        let builder = programs.into_iter().fold(builder, |builder, program| builder.program(program));
        let mut session = builder.start_cuda(gpus.to_vec()).await?;
        for (place, (ending, predicted)) in endings.iter().zip(predictions).enumerate() {
            let mut times = Times::default();
            for step in 0..pace.warm + pace.steps {
                if stop.load(Ordering::Relaxed) {
                    return Err(MeasureError::Interrupted(Measuring::Stack));
                }
                // After the first step and the one that captures.
                session.split_host_time((2..pace.warm).contains(&step));
                let begin = Instant::now();
                let report = session.step(ending.name()).await?;
                times.add(begin.elapsed(), step < pace.warm, report)?;
            }
            let plan = session.plan(ending.name())?;
            let mut measured = times.row(variant.name(*ending), recipe, plan.arena.bytes(), timed);
            measured.predict(predicted);
            row(place, measured);
        }
        Ok(session.close().await?)
    })
}

fn ranks(gpus: &[DeviceOrdinal]) -> u32 {
    u32::try_from(gpus.len()).unwrap_or(u32::MAX)
}

/// Simulates a step of each program on the machine that was named, if one was. What is refused here may run
/// on GPUs all the same: it is the row that says so.
fn predict(
    programs: &[StepProgram],
    config: &Config,
    machine: Option<&Cluster>,
    ranks: u32,
) -> Vec<Option<Prediction>> {
    let simulated = |program, machine| simulate_program(program, config, machine, ranks, SIMULATED);
    let step = |program| machine.map(|machine| Ok(simulated(program, machine)?.step));
    programs.iter().map(step).collect()
}

/// Rows of masters are those that the resident stack draws.
fn initialize(shape: StackShape) -> impl Fn(MasterRows<'_>, &mut [f32]) + Send + Sync + 'static {
    let numbers = (0..shape.layers).flat_map(|block| {
        Projection::ALL.map(|projection| {
            let number = block * Projection::ALL.len() + projection as usize;
            (format!("blocks.{block}.{}", projection.name()), number)
        })
    });
    let numbers: HashMap<String, usize> = numbers.collect();
    move |rows, masters| {
        if let Some(number) = numbers.get(rows.weight) {
            let seed = values::seed(*number);
            values::fill(seed, values::amplitude(rows.columns), rows.first_element(), masters);
        }
    }
}

/// What the steps of one program said.
#[derive(Default)]
struct Times {
    steps: Vec<Duration>,
    /// Those of the warm-up among them.
    all_ms: Vec<f64>,
    hosts: Vec<Duration>,
    exposed: Vec<f64>,
    splits: Vec<HostTime>,
    last: Option<(StepReport, f32)>,
    uncaptured: Option<String>,
}

impl Times {
    fn add(&mut self, time: Duration, warms: bool, report: StepReport) -> Result<(), MeasureError> {
        for not in &report.not_captured {
            self.uncaptured = Some(format!("issued anew: {}", not.reason));
        }
        self.splits.extend(report.host);
        self.all_ms.push(time.as_secs_f64() * 1e3);
        if !warms {
            self.steps.push(time);
            self.hosts.push(report.issue);
            self.exposed.push(report.exposed());
        }
        let loss = report.mean_output(LOSS)?;
        self.last = Some((report, loss));
        Ok(())
    }

    /// The row; `timed` says whether tasks were timed on the devices.
    fn row(mut self, name: String, recipe: Recipe, arena_bytes: usize, timed: bool) -> Measured {
        let mut row = Measured::new(name, recipe.to_string(), middle(self.steps), middle(self.hosts));
        row.exposed = median(self.exposed).filter(|_| timed);
        row.all_steps_ms = self.all_ms;
        row.arena_bytes = Some(arena_bytes as u64);
        self.splits.sort_by_key(|host| host.issue.busy());
        if let Some(host) = self.splits.get(self.splits.len() / 2) {
            row.split(host);
        }
        if let Some(reason) = self.uncaptured {
            row.remark(reason);
        }
        if let Some((report, loss)) = self.last {
            row.wire_bytes = Some(report.bounds.wire_bytes as u64);
            row.transient_bytes = Some(report.bounds.transient_bytes as u64);
            row.loss = Some(loss);
            row.norm = match report.outcome {
                Outcome::Updated { norm, .. } | Outcome::Skipped { norm, .. } => Some(norm),
                Outcome::Evaluated | Outcome::Accumulated { .. } => None,
            };
            if matches!(report.outcome, Outcome::Skipped { .. }) {
                row.remark("the last step was skipped: a gradient is not finite".to_owned());
            }
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ending, Unit};
    use warpweft_format::{ElementType, Format};
    use warpweft_session::cluster::named;
    use warpweft_session::config::Prefetch;

    const SHAPE: StackShape = StackShape { hidden: 128, ffn: 256, layers: 2, tokens: 32 };

    /// A measured row of each ending, with what was predicted for so many GPUs on one host of four.
    fn rows(ranks: u32, machine: Option<&Cluster>) -> Vec<Measured> {
        let computed = (Recipe::Bf16, ElementType::Bf16);
        let endings = [Ending::Gradients, Ending::Training];
        let (_, programs) = declare(&SHAPE, Format::Bf16, computed, Unit::Block, &endings).unwrap();
        let config = Config { prefetch: Prefetch::depth(1), ..Config::default() };
        let predicted = predict(&programs, &config, machine, ranks);
        let row = |predicted| {
            let time = Duration::from_millis(2);
            let mut row = Measured::new("row".to_owned(), "bf16".to_owned(), time, time);
            row.predict(predicted);
            row
        };
        predicted.into_iter().map(row).collect()
    }

    /// SK-1.
    #[test]
    fn every_declared_weight_begins_with_the_numbers_of_its_place_in_the_resident_stack() {
        let computed = (Recipe::Bf16, ElementType::Bf16);
        let (_, programs) =
            declare(&SHAPE, Format::Bf16, computed, Unit::Weight, &[Ending::Gradients]).unwrap();
        let weights = programs[0].model().weights();
        assert_eq!(weights.len(), 4 * SHAPE.layers);
        let initialize = initialize(SHAPE);
        for (number, weight) in weights.iter().enumerate() {
            let columns = weight.shape.cols;
            let (mut found, mut resident) = (vec![0.0; 2 * columns], vec![0.0; 2 * columns]);
            initialize(MasterRows { weight: &weight.name, first_row: 3, columns }, &mut found);
            values::fill(values::seed(number), values::amplitude(columns), 3 * columns, &mut resident);
            assert_eq!(found, resident, "{}", weight.name);
        }
    }

    #[test]
    fn a_prediction_that_is_refused_leaves_the_row_measured_and_says_why() {
        let machine = named("h200x4").unwrap();
        let refused = rows(8, Some(&machine));
        assert_eq!(refused.len(), 2);
        for row in refused {
            assert_eq!((row.step_ms, row.predicted_ms), (Some(2.0), None));
            assert!(row.note.as_ref().is_some_and(|note| note.starts_with("not predicted: ")), "{row:?}");
        }
    }

    #[test]
    fn every_ending_is_predicted_for_the_machine_that_was_named_and_for_none_otherwise() {
        let machine = named("h200x4").unwrap();
        let predicted = rows(4, Some(&machine));
        assert!(predicted.iter().all(|row| row.predicted_ms.is_some_and(|step| step > 0.0)), "{predicted:?}");
        for row in predicted.iter().chain(&rows(4, None)) {
            assert_eq!(row.note, None);
        }
        assert!(rows(8, None).iter().all(|row| row.predicted_ms.is_none()));
    }
}
