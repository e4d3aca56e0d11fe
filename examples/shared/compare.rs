//! Losses of one model, trained by another library alone and by sessions: the table, and what must hold.

use std::error::Error;

use warpweft::prelude::*;

use crate::print::println;

/// Largest difference of a step's loss that is put down to the order of sums, in f32.
const SAME: f32 = 1e-3;
/// How much larger quantized weights may leave the mean loss of the last steps.
const QUANTIZED: f32 = 1.05;
/// How many steps these are.
const LAST: usize = 10;
/// Steps from one line of the table to the next.
const EVERY: usize = 10;

/// The losses of a run: of every step, and at the end on the text that no batch has.
pub(crate) struct Losses {
    pub(crate) steps: Vec<f32>,
    pub(crate) held_out: f32,
}

impl Losses {
    fn last(&self) -> f32 {
        let last = &self.steps[self.steps.len().saturating_sub(LAST)..];
        last.iter().sum::<f32>() / last.len() as f32
    }
}

/// Prints the losses of `library` alone beside `ours`.
///
/// # Errors
/// If weights in f32 do not give the library's losses, or weights in another format not nearly.
pub(crate) fn compare(
    library: &str,
    alone: &Losses,
    ours: &[(Format, Losses)],
) -> Result<(), Box<dyn Error>> {
    let head: String = ours.iter().map(|(format, _)| format!("  {format:>20}")).collect();
    println!("\n{:>14}  {library:>10}{head}", "loss at step");
    let steps = alone.steps.len();
    for step in (0..steps).step_by(EVERY).chain(steps.checked_sub(1)) {
        let row: String = ours.iter().map(|(_, run)| format!("  {:20.5}", run.steps[step])).collect();
        println!("{:14}  {:10.5}{row}", step + 1, alone.steps[step]);
    }
    let row: String = ours.iter().map(|(_, run)| format!("  {:20.5}", run.held_out)).collect();
    println!("{:>14}  {:10.5}{row}\n", "held-out", alone.held_out);

    for (format, run) in ours {
        if *format == Format::F32 {
            let differences = run.steps.iter().zip(&alone.steps).map(|(ours, alone)| (ours - alone).abs());
            // The greatest of all numbers, in this order, is NaN.
            let apart = differences.max_by(f32::total_cmp).unwrap_or(f32::NAN);
            println!(
                "in f32 the losses of a step differ from {library}'s by at most {apart:.1e} (allowed: {SAME:.0e})"
            );
            if apart.is_nan() || apart >= SAME {
                return Err(format!("weights in f32 do not give {library}'s losses").into());
            }
        }
        let times = run.last() / alone.last();
        println!(
            "{format}: the mean loss of the last {LAST} steps is {times:.4} times {library}'s (allowed: {QUANTIZED})"
        );
        let learns = times < QUANTIZED && run.last() < 0.8 * run.steps[0];
        if !learns {
            return Err(format!("{format} does not learn").into());
        }
    }
    Ok(())
}
