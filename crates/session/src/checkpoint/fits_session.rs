//! The check that a checkpoint fits a session, and whether training can resume from it.
//!
//! Law: everything is judged before anything is changed. Weights and carried buffers are found by name; what the
//! session has must be there, in its shape, and nothing else. What a checkpoint claims is judged alike, whether it
//! is one file or sharded; values are judged where they are ([`state_validation`](super::state_validation)).

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::gather_and_scatter::{Taken, goes_as_planes};
use super::state_validation::{self, ValuesOf};
use super::{Carried, Checkpoint, OptimizerIdentity, WeightState};
use warpweft_base::errors::shown;
use warpweft_format::{PlaneSpec, Shape, Via};
use warpweft_plan::layout::{WeightLayout, Weights};
use warpweft_plan::plan::{StepPlan, carried};

/// The most optimizer steps an import may count: half of what can be counted. No training gets there, and one
/// that goes on from there has as many left.
const MOST_STEPS: u32 = u32::MAX / 2;

/// What a checkpoint says that it holds.
#[derive(Clone, Debug)]
pub(super) struct Claims<'a> {
    /// Optimizer steps taken.
    pub(super) optimizer_step: u32,
    /// What updated the weights, if it says so.
    pub(super) optimizer_identity: Option<&'a OptimizerIdentity>,
    /// The weights.
    pub(super) weights: Vec<WeightClaim<'a>>,
    /// The carried buffers; `None` where all of them are to begin anew.
    pub(super) carried: Option<Vec<CarriedClaim<'a>>>,
}

/// What it says of a weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct WeightClaim<'a> {
    pub(super) name: &'a str,
    pub(super) shape: Shape,
    /// Lists of state beside the master: two moments, none of a frozen weight, or what a custom optimizer kept.
    pub(super) lists: usize,
    /// Was it frozen? Then it has no state, and maybe a digest of its values in their place.
    pub(super) frozen: bool,
}

/// What it says of a carried buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct CarriedClaim<'a> {
    pub(super) name: &'a str,
    /// Ranks that have one.
    pub(super) ranks: usize,
    /// Bytes on each of them; `None` where they differ.
    pub(super) bytes: Option<usize>,
}

impl Claims<'_> {
    /// Are these exactly the weights and carried buffers of the session? Or are the weights in `taken` there, for an
    /// optimizer that begins anew?
    pub(super) fn check(
        &self,
        programs: &[Arc<StepPlan>],
        here: &OptimizerIdentity,
        ranks: usize,
        taken: Option<&Taken>,
    ) -> Result<(), String> {
        let weights = programs.first().map(|plan| &plan.weights);
        if let Some(taken) = taken {
            return self.check_taken(weights, taken);
        }
        if let Some(weights) = weights {
            self.check_weights(weights, here)?;
        }
        self.check_carried(programs, ranks).map_err(|what| {
            format!(
                "{what}; set `carried` to `Carried::Zeros`, or import `PartFiles::carried_zeros`, to let all carried \
                 buffers begin anew"
            )
        })
    }

    /// The weights that were frozen and train here, whose moments begin at zero beside a step count that does not; none
    /// where some weights alone are taken, for an optimizer that begins anew.
    pub(super) fn thawed(&self, programs: &[Arc<StepPlan>], taken: Option<&Taken>) -> Vec<String> {
        let Some(plan) = programs.first().filter(|_| taken.is_none()) else { return Vec::new() };
        let weights = &plan.weights;
        let frozen = self.weights.iter().filter(|claim| claim.frozen && self.optimizer_step > 0);
        let frozen: HashSet<&str> = frozen.map(|claim| claim.name).collect();
        let thawed = named(weights).filter(|(layout, _)| !layout.frozen && weights.lists_of(layout) > 0);
        thawed.map(|(_, name)| name.into_owned()).filter(|name| frozen.contains(name.as_str())).collect()
    }

    fn check_taken(&self, weights: Option<&Weights>, taken: &Taken) -> Result<(), String> {
        if taken.is_empty() {
            return Err("no weight of the session is taken; name those that the checkpoint has".to_owned());
        }
        let anew = Self { optimizer_step: 0, optimizer_identity: None, weights: Vec::new(), carried: None };
        let layouts = weights.into_iter().flat_map(named);
        for (layout, name) in layouts.filter(|(_, name)| taken.contains(&**name)) {
            let mut found = self.weights.iter().filter(|claim| claim.name == name);
            match (found.next(), found.next()) {
                (Some(claim), None) => anew.check_weight(WeightClaim { lists: 0, ..*claim }, layout, 0)?,
                (None, _) => {
                    return Err(format!(
                        "`{name}` is to be taken and is not in the checkpoint; leave it out"
                    ));
                }
                _ => return Err(format!("the checkpoint has `{name}` twice")),
            }
        }
        Ok(())
    }

    fn check_carried(&self, programs: &[Arc<StepPlan>], ranks: usize) -> Result<(), String> {
        let Some(given) = &self.carried else { return Ok(()) };
        let mut seen = HashSet::new();
        if let Some(twice) = given.iter().find(|buffer| !seen.insert(buffer.name)) {
            return Err(format!("the checkpoint has carried buffer `{}` twice", shown(twice.name)));
        }
        let expected = carried(programs);
        for (name, region) in &expected {
            let Some(buffer) = given.iter().find(|buffer| buffer.name == *name) else {
                return Err(format!("the checkpoint has no carried buffer `{name}`"));
            };
            let (theirs, bytes) = (buffer.ranks, region.bytes);
            if theirs != ranks {
                return Err(format!(
                    "carried buffer `{name}` is of {theirs} ranks and the session has {ranks}"
                ));
            }
            if buffer.bytes != Some(bytes) {
                return Err(format!("carried buffer `{name}` does not hold {bytes} bytes on every rank"));
            }
        }
        let is_known = |buffer: &CarriedClaim<'_>| expected.iter().any(|(name, _)| *name == buffer.name);
        match given.iter().find(|buffer| !is_known(buffer)) {
            Some(buffer) => {
                Err(format!("no program carries buffer `{}` of the checkpoint", shown(buffer.name)))
            }
            None => Ok(()),
        }
    }

    fn check_weights(&self, weights: &Weights, here: &OptimizerIdentity) -> Result<(), String> {
        if self.weights.len() != named(weights).count() {
            return Err(self.other_weights(weights));
        }
        if self.optimizer_step > MOST_STEPS {
            return Err(format!(
                "the checkpoint counts {} optimizer steps, and {MOST_STEPS} is the most it may, so that steps can \
                 still be counted; import one that is not damaged, or `checkpoint.restart_optimizer()`, or of \
                 parts `PartFiles::restart_optimizer`",
                self.optimizer_step
            ));
        }
        self.check_optimizer(weights, here)?;
        let by_name: HashMap<&str, &WeightClaim<'_>> =
            self.weights.iter().map(|claim| (claim.name, claim)).collect();
        for (layout, name) in named(weights) {
            let Some(claim) = by_name.get(&*name) else {
                return Err(self.other_weights(weights));
            };
            self.check_weight(**claim, layout, weights.lists_of(layout))?;
        }
        Ok(())
    }

    /// State of another optimizer is of another meaning. Where there is none and none is kept, nothing is lost.
    fn check_optimizer(&self, weights: &Weights, here: &OptimizerIdentity) -> Result<(), String> {
        let is_kept = self.weights.iter().any(|claim| claim.lists > 0) || weights.state.states().count() > 0;
        match self.optimizer_identity {
            Some(there) if !there.may_be(here) && is_kept && self.optimizer_step > 0 => Err(format!(
                "the state beside the masters of the checkpoint is of {there}, and here weights are updated by {here}; \
                 update them by the same, or import `checkpoint.restart_optimizer()`, or of parts \
                 `PartFiles::restart_optimizer`, by which all state begins anew"
            )),
            _ => Ok(()),
        }
    }

    fn check_weight(
        &self,
        claim: WeightClaim<'_>,
        layout: &WeightLayout,
        lists: usize,
    ) -> Result<(), String> {
        let name = claim.name;
        if claim.shape != layout.shard.whole() {
            return Err(format!(
                "`{name}` is {} in the checkpoint and {} here; declare it as it was saved, or load another checkpoint",
                claim.shape,
                layout.shard.whole()
            ));
        }
        if claim.frozen && layout.shard.expert.is_some() {
            return Err(format!(
                "`{name}` was frozen in the checkpoint, which has a digest of it, and is here an expert of which other \
                 ranks have others; import it without mesh.ep and mesh.ep_shard and save it anew, or leave it out by \
                 `Session::import_weights`"
            ));
        }
        // One that was frozen and trains here begins without moments.
        let is_other = claim.lists != lists && !layout.frozen && !claim.frozen;
        if is_other && claim.lists > 0 {
            let there = if claim.lists == 1 { "1 list".to_owned() } else { format!("{} lists", claim.lists) };
            return Err(format!(
                "beside the master of `{name}` the checkpoint has {there} of state, and the session keeps {lists} \
                 (Adam keeps 2); train by the same optimizer, or import \
                 `checkpoint.restart_optimizer()`, or of parts `PartFiles::restart_optimizer`, by which all state begins \
                 anew"
            ));
        }
        if is_other && self.optimizer_step > 0 {
            return Err(format!(
                "`{name}` trains here, and the checkpoint has no moments of it after {} optimizer steps, because it was \
                 frozen there or updated by an optimizer that keeps none; import `checkpoint.restart_optimizer()`, or of parts \
                 `PartFiles::restart_optimizer`, by which all moments begin anew, or freeze it here",
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
            named(weights).count()
        );
        let saved: HashSet<&str> = self.weights.iter().map(|claim| claim.name).collect();
        let declared: HashSet<Cow<'_, str>> = named(weights).map(|(_, name)| name).collect();
        let missing = named(weights).find(|(_, name)| !saved.contains(&**name));
        let unknown = self.weights.iter().find(|claim| !declared.contains(claim.name));
        let missing = missing.map(|(_, name)| format!("`{name}` is not in the checkpoint"));
        let unknown = unknown.map(|claim| format!("the session has no `{}`", shown(claim.name)));
        let which: Vec<String> = missing.into_iter().chain(unknown).collect();
        let which = match which.is_empty() {
            true => "the checkpoint has some of them twice".to_owned(),
            false => which.join(", and "),
        };
        format!("{counts}: {which}; import a checkpoint of the same model")
    }
}

/// The weights of a session as files know them, by their names there.
fn named(weights: &Weights) -> impl Iterator<Item = (&WeightLayout, Cow<'_, str>)> {
    weights.in_files().into_iter().map(|(weight, place)| {
        let layout = weights.layout(weight);
        (layout, layout.name_at(place))
    })
}

/// Planes that go in as they are must be those of the weight, in all orientations that its format stores.
fn check_planes(state: &WeightState) -> Result<(), String> {
    let stored = state.format.stored_orientations().iter().all(|orientation| {
        let found = state.planes.iter().find(|planes| planes.orientation == *orientation);
        let expected = state.format.planes(*orientation, state.shape);
        let bytes = expected.iter().map(PlaneSpec::bytes);
        found.is_some_and(|found| found.planes.iter().map(Vec::len).eq(bytes))
    });
    if stored && state.tensor_scale.is_finite() {
        return Ok(());
    }
    Err(format!(
        "the planes of `{}` are not those of {} in {}; import a checkpoint as a session exported it",
        state.name, state.shape, state.format
    ))
}

impl Checkpoint {
    /// Does it hold exactly the weights and carried buffers of the session, or the weights in `taken`, with values that
    /// training goes on from?
    pub(crate) fn check(
        &self,
        programs: &[Arc<StepPlan>],
        here: &OptimizerIdentity,
        ranks: usize,
        taken: Option<&Taken>,
    ) -> Result<(), String> {
        self.claims().check(programs, here, ranks, taken)?;
        programs
            .first()
            .map_or(Ok(()), |plan| self.check_values(&plan.weights, plan.policy.settings.via, taken))
    }

    /// As [`Claims::thawed`].
    pub(crate) fn thawed(&self, programs: &[Arc<StepPlan>], taken: Option<&Taken>) -> Vec<String> {
        self.claims().thawed(programs, taken)
    }

    fn claims(&self) -> Claims<'_> {
        let weights = self.weights.iter().map(|state| WeightClaim {
            name: &state.name,
            shape: state.shape,
            lists: state.states.len(),
            frozen: state.frozen.is_some(),
        });
        let carried = match &self.carried {
            Carried::Zeros => None,
            Carried::Buffers(buffers) => Some(buffers.iter().map(|buffer| {
                let bytes = buffer.ranks.first().map_or(0, Vec::len);
                let is_even = buffer.ranks.iter().all(|rank| rank.len() == bytes);
                CarriedClaim {
                    name: &buffer.name,
                    ranks: buffer.ranks.len(),
                    bytes: is_even.then_some(bytes),
                }
            })),
        };
        Claims {
            optimizer_step: self.optimizer_step,
            optimizer_identity: self.optimizer_identity.as_ref(),
            weights: weights.collect(),
            carried: carried.map(Iterator::collect),
        }
    }

    fn check_values(&self, weights: &Weights, via: Via, taken: Option<&Taken>) -> Result<(), String> {
        let by_name: HashMap<&str, &WeightState> =
            self.weights.iter().map(|state| (state.name.as_str(), state)).collect();
        let is_taken = |name: &str| taken.is_none_or(|taken| taken.contains(name));
        for (layout, name) in named(weights).filter(|(_, name)| is_taken(name)) {
            let Some(state) = by_name.get(&*name) else { continue };
            if !state.is_whole() {
                let (name, elements) = (&state.name, state.shape.elements());
                return Err(format!(
                    "`{name}` does not hold {elements} values of its master and of the lists of state beside it"
                ));
            }
            let values = match state.has_values() {
                true => state.values().map_err(|error| format!("the planes of `{}`: {error}", state.name))?,
                false => Cow::Borrowed(&[][..]),
            };
            let place = ValuesOf::whole(&state.name, state.shape);
            let states = if layout.frozen { &[][..] } else { &state.states };
            state_validation::check(place, (weights, layout), via, &values, states, state.delayed.as_ref())?;
            if goes_as_planes(state, layout) && state.has_values() {
                check_planes(state)?;
            }
        }
        Ok(())
    }
}
