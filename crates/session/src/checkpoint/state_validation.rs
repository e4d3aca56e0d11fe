//! State validation: values from which training can resume.
//!
//! Law: a value from which no step could go on, as it is or as the session keeps or casts it, is refused with its
//! weight, row and column, and with what to do. Rows are judged where they are, so it does not matter whether a
//! checkpoint is one file or sharded.

use crate::checkpoint::StatePart;
use warpweft_base::id::RankId;
use warpweft_format::{DelayedState, Format, Shape, Via};
use warpweft_plan::layout::{StateLayout, WeightLayout, Weights};
use warpweft_plan::model::ShardLayout;

/// Which values of a weight are judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValuesOf<'a> {
    /// Its name.
    pub(super) weight: &'a str,
    /// How many columns of it they have.
    pub(super) columns: usize,
    /// Whose they are; all of the weight if nobody's.
    pub(super) of_rank: Option<(&'a ShardLayout, RankId)>,
}

impl<'a> ValuesOf<'a> {
    /// All values of a weight.
    pub(super) const fn whole(weight: &'a str, shape: Shape) -> Self {
        Self { weight, columns: shape.cols, of_rank: None }
    }

    /// Where a value stands in the whole weight, in words.
    fn place(self, position: usize) -> String {
        let (row, column) = (position / self.columns, position % self.columns);
        let (row, column) = match self.of_rank {
            None => (row, column),
            Some((shard, rank)) => (shard.row_of(rank, row), shard.columns_of(rank).start + column),
        };
        format!("in row {row}, column {column}")
    }
}

/// Can training go on from these values of one weight in the session's? There may be no master, where there is a digest
/// of it alone, and no states of one that is frozen here. A session without delayed scaling ignores `delayed`.
pub(super) fn check(
    of: ValuesOf<'_>,
    (weights, layout): (&Weights, &WeightLayout),
    via: Via,
    master: &[f32],
    states: &[Vec<f32>],
    delayed: Option<&DelayedState>,
) -> Result<(), String> {
    check_master(of, master, layout.format, via)?;
    check_beside_master(of, (weights, layout), states, delayed)
}

/// The same of what stands beside a master that was found valid.
pub(super) fn check_beside_master(
    of: ValuesOf<'_>,
    (weights, layout): (&Weights, &WeightLayout),
    states: &[Vec<f32>],
    delayed: Option<&DelayedState>,
) -> Result<(), String> {
    check_states(of, states, weights.state)?;
    let delayed = delayed.filter(|_| weights.delayed(layout.bucket).is_some());
    delayed.map_or(Ok(()), |delayed| check_delayed(of.weight, delayed))
}

/// Masters must be finite, also as the cast to `format` gets them.
pub(super) fn check_master(of: ValuesOf<'_>, values: &[f32], format: Format, via: Via) -> Result<(), String> {
    let cast = |value: f32| via.round(format, value);
    let Some(position) = values.iter().position(|value| !cast(*value).is_finite()) else {
        return Ok(());
    };
    let (name, value, at) = (of.weight, values[position], of.place(position));
    let what = match cast(value) {
        back if value.is_finite() => format!("which bf16 rounds to {back} and "),
        _ => String::new(),
    };
    Err(format!(
        "`{name}` holds {value:?} {at}, {what}from which no training goes on; import a checkpoint of before it \
         diverged"
    ))
}

/// Moments must be what Adam makes, and finite as they are kept. What a custom optimizer keeps must be finite.
fn check_states(of: ValuesOf<'_>, states: &[Vec<f32>], layout: StateLayout) -> Result<(), String> {
    for (list, values) in layout.states().zip(states) {
        let (least, what) = match (layout.custom_states, StatePart::State(list)) {
            (None, StatePart::SECOND_MOMENT) => (0.0, "is no mean of squares"),
            _ => (f32::NEG_INFINITY, "is not finite"),
        };
        let which = layout.in_words(list);
        let is_valid = |value: f32| value >= least && layout.moment(value).is_finite();
        let Some(position) = values.iter().position(|value| !is_valid(*value)) else { continue };
        let (name, value, at) = (of.weight, values[position], of.place(position));
        let (what, instead) = if value >= least && value.is_finite() {
            let kept = layout.moment(value);
            (format!("bf16 rounds to {kept}"), "set optimizer.moments = \"f32\"")
        } else {
            (what.to_owned(), "import a checkpoint that is not damaged and of before it diverged")
        };
        return Err(format!(
            "the {which} of `{name}` is {value:?} {at}, which {what} and from which no training goes on; \
             {instead}, or import `checkpoint.restart_optimizer()`, or of parts `PartFiles::restart_optimizer`"
        ));
    }
    Ok(())
}

/// The delayed scale of `weight` must be one that a cast can use, and its history one of amaxes.
fn check_delayed(weight: &str, delayed: &DelayedState) -> Result<(), String> {
    if delayed.is_usable() {
        return Ok(());
    }
    let what = match delayed.no_amax() {
        Some(amax) => {
            format!("the amax history of `{weight}` has {amax}, which is the magnitude of no master")
        }
        None => format!("`{weight}` has the delayed scale {}, which no cast can use", delayed.scale),
    };
    Err(format!(
        "{what}; import a checkpoint that is not damaged, or set the weight's `delayed` to `None`, by which its \
         scale and history begin anew (of parts, in what `PartFiles::load` gives, and import that)"
    ))
}
