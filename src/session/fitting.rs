//! Does a checkpoint fit a session, and can training go on from it?
//!
//! Law: everything is judged before anything is changed. Weights and carried buffers are found by name; what the
//! session has must be there, in its shape, and nothing else. A value from which no step could go on, as it is or
//! as the session keeps or casts it, is refused with its weight, row and column, and with what to do.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Carried, CarriedBuffer, Checkpoint, SessionError, WeightState};
use crate::format::Via;
use crate::layout::{StateLayout, WeightLayout, Weights};
use crate::plan::{StepPlan, carried};

/// The most optimizer steps an import may count: half of what can be counted. No training gets there, and one
/// that goes on from there has as many left.
const MOST_STEPS: u32 = u32::MAX / 2;

impl Checkpoint {
    /// Does it hold exactly the weights and carried buffers of the session?
    pub(super) fn check(&self, programs: &[Arc<StepPlan>], ranks: usize) -> Result<(), SessionError> {
        if let Some(plan) = programs.first() {
            let via = plan.policy.settings.via;
            self.check_weights(&plan.weights, via).map_err(|reason| SessionError::Import { reason })?;
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

    fn check_weights(&self, weights: &Weights, via: Via) -> Result<(), String> {
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
            state.check_master(layout, via)?;
            if !layout.frozen {
                state.check_moments(weights.state)?;
            }
            state.check_delayed()?;
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
        Ok(())
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

impl WeightState {
    /// Masters must be finite, also as the cast gets them.
    fn check_master(&self, layout: &WeightLayout, via: Via) -> Result<(), String> {
        let cast = |value: f32| via.round(layout.format, value);
        let Some(position) = self.master.iter().position(|value| !cast(*value).is_finite()) else {
            return Ok(());
        };
        let (name, value, at) = (&self.name, self.master[position], self.place(position));
        let what = match cast(value) {
            back if value.is_finite() => format!("which bf16 rounds to {back} and "),
            _ => String::new(),
        };
        Err(format!(
            "`{name}` holds {value:?} {at}, {what}from which no training goes on; import a checkpoint of before it \
             diverged"
        ))
    }

    /// Moments must be what Adam makes, and finite as they are kept.
    fn check_moments(&self, layout: StateLayout) -> Result<(), String> {
        let moments = [
            ("first moment", &self.exp_avg, f32::NEG_INFINITY, "is not finite"),
            ("second moment", &self.exp_avg_sq, 0.0, "is no mean of squares"),
        ];
        for (which, values, least, what) in moments {
            let is_sound = |value: f32| value >= least && layout.moment(value).is_finite();
            let Some(position) = values.iter().position(|value| !is_sound(*value)) else { continue };
            let (name, value, at) = (&self.name, values[position], self.place(position));
            let (what, instead) = if value >= least && value.is_finite() {
                let kept = layout.moment(value);
                (format!("bf16 rounds to {kept}"), "set optimizer.moments = \"f32\"")
            } else {
                (what.to_owned(), "import a checkpoint that is not damaged and of before it diverged")
            };
            return Err(format!(
                "the {which} of `{name}` is {value:?} {at}, which {what} and from which no training goes on; \
                 {instead}, or import `checkpoint.restart_optimizer()`"
            ));
        }
        Ok(())
    }

    /// The delayed scale must be one that a cast can use, and its history one of amaxes.
    fn check_delayed(&self) -> Result<(), String> {
        let Some(delayed) = self.delayed.as_ref().filter(|delayed| !delayed.is_usable()) else {
            return Ok(());
        };
        let name = &self.name;
        let what = match delayed.no_amax() {
            Some(amax) => {
                format!("the amax history of `{name}` has {amax}, which is the magnitude of no master")
            }
            None => format!("`{name}` has the delayed scale {}, which no cast can use", delayed.scale),
        };
        Err(format!(
            "{what}; import a checkpoint that is not damaged, or set the weight's `delayed` to `None`, by which its \
             scale and history begin anew"
        ))
    }

    /// Where a value stands, in words.
    fn place(&self, position: usize) -> String {
        format!("in row {}, column {}", position / self.shape.cols, position % self.shape.cols)
    }
}
