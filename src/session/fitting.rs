//! Does a checkpoint fit a session, and can training go on from it?
//!
//! Law: everything is judged before anything is changed. Weights and carried buffers are found by name; what the
//! session has must be there, in its shape, and nothing else. A value from which no step could go on is refused
//! with its weight, row and column, and with what to do.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Carried, CarriedBuffer, Checkpoint, SessionError, WeightState};
use crate::layout::{WeightLayout, Weights};
use crate::plan::{StepPlan, carried};

/// The most optimizer steps an import may count: half of what can be counted. No training gets there, and one
/// that goes on from there has as many left.
const MOST_STEPS: u32 = u32::MAX / 2;

impl Checkpoint {
    /// Does it hold exactly the weights and carried buffers of the session?
    pub(super) fn check(&self, programs: &[Arc<StepPlan>], ranks: usize) -> Result<(), SessionError> {
        if let Some(plan) = programs.first() {
            self.check_weights(&plan.weights).map_err(|reason| SessionError::Import { reason })?;
        }
        self.check_carried(programs, ranks).map_err(|what| SessionError::Import {
            reason: format!(
                "{what}; set `carried` to `Carried::Zeros` to let all carried buffers begin anew"
            ),
        })
    }

    fn check_carried(&self, programs: &[Arc<StepPlan>], ranks: usize) -> Result<(), String> {
        let Carried::Buffers(given) = &self.carried else { return Ok(()) };
        let expected = carried(programs);
        for (name, region) in &expected {
            let Some(buffer) = given.iter().find(|buffer| buffer.name == *name) else {
                return Err(format!("the checkpoint has no carried buffer `{name}`"));
            };
            let (theirs, bytes) = (buffer.ranks.len(), region.bytes);
            if theirs != ranks {
                return Err(format!(
                    "carried buffer `{name}` is of {theirs} ranks and the session has {ranks}"
                ));
            }
            if buffer.ranks.iter().any(|rank| rank.len() != bytes) {
                return Err(format!("carried buffer `{name}` does not hold {bytes} bytes on every rank"));
            }
        }
        let is_known = |buffer: &CarriedBuffer| expected.iter().any(|(name, _)| *name == buffer.name);
        match given.iter().find(|buffer| !is_known(buffer)) {
            Some(buffer) => Err(format!("no program carries buffer `{}` of the checkpoint", buffer.name)),
            None => Ok(()),
        }
    }

    fn check_weights(&self, weights: &Weights) -> Result<(), String> {
        if self.weights.len() != weights.layouts.len() {
            return Err(self.other_weights(weights));
        }
        if self.optimizer_step > MOST_STEPS {
            return Err(format!(
                "the checkpoint counts {} optimizer steps, and {MOST_STEPS} is the most it may, so that steps can \
                 still be counted; import one that is not damaged, or `checkpoint.restart_optimizer()`",
                self.optimizer_step
            ));
        }
        let by_name: HashMap<&str, &WeightState> =
            self.weights.iter().map(|state| (state.name.as_str(), state)).collect();
        for layout in &weights.layouts {
            let Some(state) = by_name.get(layout.name.as_str()) else {
                return Err(self.other_weights(weights));
            };
            self.check_weight(state, layout)?;
        }
        Ok(())
    }

    fn check_weight(&self, state: &WeightState, layout: &WeightLayout) -> Result<(), String> {
        let (name, elements) = (&state.name, layout.shard.shape.elements());
        if state.shape != layout.shard.shape {
            return Err(format!(
                "`{name}` is {} in the checkpoint and {} here; declare it as it was saved, or load another checkpoint",
                state.shape, layout.shard.shape
            ));
        }
        if !state.is_whole() {
            return Err(format!("`{name}` does not hold {elements} values of master and moments"));
        }
        if state.exp_avg.is_empty() && !layout.frozen && self.optimizer_step > 0 {
            return Err(format!(
                "`{name}` trains here, was frozen there and has no moments, after {} optimizer steps; import \
                 `checkpoint.restart_optimizer()`, by which all moments begin anew, or freeze it here too",
                self.optimizer_step
            ));
        }
        let at = |position: usize| {
            format!("in row {}, column {}", position / state.shape.cols, position % state.shape.cols)
        };
        if let Some(position) = state.master.iter().position(|value| !value.is_finite()) {
            return Err(format!(
                "`{name}` holds {} {}, from which no training goes on; import a checkpoint of before it diverged",
                state.master[position],
                at(position)
            ));
        }
        let moments = [
            ("first moment", &state.exp_avg, f32::NEG_INFINITY, "is not finite"),
            ("second moment", &state.exp_avg_sq, 0.0, "is no mean of squares"),
        ];
        for (which, values, least, what) in moments.into_iter().filter(|_| !layout.frozen) {
            let is_sound = |value: &f32| value.is_finite() && *value >= least;
            if let Some(position) = values.iter().position(|value| !is_sound(value)) {
                return Err(format!(
                    "the {which} of `{name}` is {} {}, which {what} and from which no training goes on; import a \
                     checkpoint that is not damaged and of before it diverged, or `checkpoint.restart_optimizer()`",
                    values[position],
                    at(position)
                ));
            }
        }
        match state.delayed.as_ref().filter(|delayed| !delayed.is_usable()) {
            Some(delayed) => {
                Err(format!("`{name}` has the delayed scale {}, which no cast can use", delayed.scale))
            }
            None => Ok(()),
        }
    }

    /// What to say about other weights than the session has.
    fn other_weights(&self, weights: &Weights) -> String {
        let counts = format!(
            "the checkpoint has {} weights, the session {}",
            self.weights.len(),
            weights.layouts.len()
        );
        let (saved, declared): (HashSet<&str>, HashSet<&str>) = (
            self.weights.iter().map(|state| state.name.as_str()).collect(),
            weights.layouts.iter().map(|layout| layout.name.as_str()).collect(),
        );
        let missing = weights.layouts.iter().find(|layout| !saved.contains(layout.name.as_str()));
        let unknown = self.weights.iter().find(|state| !declared.contains(state.name.as_str()));
        let which = match (missing, unknown) {
            (Some(layout), None) => format!("`{}` is not in the checkpoint", layout.name),
            (None, Some(state)) => format!("the session has no `{}`", state.name),
            (Some(layout), Some(state)) => {
                format!("`{}` is not in the checkpoint, and the session has no `{}`", layout.name, state.name)
            }
            (None, None) => "the checkpoint has some of them twice".to_owned(),
        };
        format!("{counts}: {which}; import a checkpoint of the same model")
    }
}
