//! Learning rate schedules and other hyperparameters of coming steps: for all weights, and for some of their own.
//!
//! Law: what is refused changes nothing. The values reach the ranks with the next step, captured or not; no plan, no
//! capture and no checkpoint has them, so a loop that sets them sets them again when it resumes.

use std::sync::Arc;

use crate::config::{Config, pattern_matches, stands_still};
use crate::session::{Session, SessionError};
use warpweft_base::errors::{listed, shown};
use warpweft_plan::layout::{WeightLayout, Weights};
use warpweft_plan::model::Hyperparameters;

/// Those of a session.
#[derive(Debug, Default)]
pub(in crate::session) struct Scheduled {
    all: Hyperparameters,
    /// Of every weight that has them, those of its own.
    own: Vec<Option<Hyperparameters>>,
    /// What every weight goes by, as ranks get it.
    by_weight: Arc<[Hyperparameters]>,
}

impl Scheduled {
    /// As the configuration says.
    pub(in crate::session) fn configured(config: &Config, weights: &Weights) -> Self {
        let optimizer = &config.optimizer;
        let all = Hyperparameters {
            learning_rate: optimizer.lr as f32,
            weight_decay: optimizer.weight_decay as f32,
            beta1: optimizer.beta1 as f32,
            beta2: optimizer.beta2 as f32,
        };
        let mut scheduled = Self { all, own: vec![None; weights.layouts.len()], ..Self::default() };
        scheduled.apply(weights);
        scheduled
    }

    pub(in crate::session) fn by_weight(&self) -> Arc<[Hyperparameters]> {
        Arc::clone(&self.by_weight)
    }

    fn apply(&mut self, weights: &Weights) {
        let of = |(layout, own): (&WeightLayout, &Option<Hyperparameters>)| {
            own.unwrap_or_else(|| self.all.of_group(&layout.parameters))
        };
        self.by_weight = weights.layouts.iter().zip(&self.own).map(of).collect();
    }
}

impl Session {
    /// Sets the learning rate of the coming steps, at first `optimizer.lr` of the configuration, as
    /// [`Session::set_hyperparameters`] does.
    ///
    /// # Errors
    /// [`SessionError::Hyperparameter`] unless it is a finite number from 0 on; it stays as it was.
    pub fn set_learning_rate(&mut self, learning_rate: f32) -> Result<(), SessionError> {
        self.set_hyperparameters(Hyperparameters { learning_rate, ..self.hyperparameters() })
    }

    /// The learning rate of the coming steps.
    #[must_use]
    pub const fn learning_rate(&self) -> f32 {
        self.scheduled.all.learning_rate
    }

    /// Sets what the optimizer goes by in the coming steps, at first that of the configuration: learning rate, weight
    /// decay and betas, for Adam and for custom optimizers. A weight whose parameter group scales the learning rate or
    /// has a weight decay of its own keeps to it; one of [`Session::set_hyperparameters_of`] keeps what it was given.
    ///
    /// They are read when the step runs, so a captured one sees them too. Bias correction is by the betas of the step:
    /// `1 − β^t`, as if they had been the same in all steps before. Checkpoints do not have them: a loop that
    /// changes them sets them again when it resumes.
    ///
    /// ```
    /// use warpweft::prelude::*;
    ///
    /// fn schedule(session: &mut Session, step: u32) -> Result<(), SessionError> {
    ///     let warm = (step as f32 / 1000.0).min(1.0);
    ///     let (learning_rate, beta2) = (3e-4 * warm, 0.9 + 0.09 * warm);
    ///     let all = Hyperparameters { learning_rate, beta2, ..session.hyperparameters() };
    ///     session.set_hyperparameters(all)?;
    ///     // The head stands still for 100 steps.
    ///     let still = Hyperparameters { learning_rate: 0.0, ..all };
    ///     session.set_hyperparameters_of("head.*", (step < 100).then_some(still))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`SessionError::Hyperparameter`] for the first that is out of its range; all stay as they were.
    pub fn set_hyperparameters(&mut self, all: Hyperparameters) -> Result<(), SessionError> {
        self.check_hyperparameters(all)?;
        self.scheduled.all = all;
        self.apply_hyperparameters();
        Ok(())
    }

    /// The hyperparameters of all weights.
    #[must_use]
    pub const fn hyperparameters(&self) -> Hyperparameters {
        self.scheduled.all
    }

    /// Sets what the weights go by in the coming steps whose names `weights` matches, as a rule of the configuration
    /// does (`blocks.*.mlp.*`): `own`, as it is, whatever their parameter group or [`Session::set_hyperparameters`]
    /// say, so a weight decay and a scale that rules give them do not count then; with `None` what all others go by, as
    /// at first. Of two patterns that match a weight the one that was set last counts.
    ///
    /// # Errors
    /// [`SessionError::Hyperparameter`] as of [`Session::set_hyperparameters`]; [`SessionError::NoWeight`] if it
    /// matches no weight that trains.
    pub fn set_hyperparameters_of(
        &mut self,
        weights: &str,
        own: Option<Hyperparameters>,
    ) -> Result<(), SessionError> {
        own.map_or(Ok(()), |own| self.check_hyperparameters(own))?;
        let layouts = self.programs.first().map_or(&[][..], |program| &program.plan.weights.layouts);
        let mut matches = false;
        for (layout, place) in
            layouts.iter().zip(&mut self.scheduled.own).filter(|(layout, _)| !layout.frozen)
        {
            if pattern_matches(weights, &layout.name) {
                (*place, matches) = (own, true);
            }
        }
        if !matches {
            let trains = layouts.iter().filter(|layout| !layout.frozen).map(|layout| &layout.name);
            return Err(SessionError::NoWeight { pattern: shown(weights), trains: listed("`", trains) });
        }
        self.apply_hyperparameters();
        Ok(())
    }

    fn apply_hyperparameters(&mut self) {
        if let Some(program) = self.programs.first() {
            self.scheduled.apply(&program.plan.weights);
        }
    }

    fn check_hyperparameters(&self, given: Hyperparameters) -> Result<(), SessionError> {
        if let Some((name, given, range)) = given.out_of_range() {
            return Err(SessionError::Hyperparameter { name, given, range });
        }
        let moments = self.programs.first().map(|program| program.plan.weights.state.moments);
        let slow = |beta: f32| moments.is_some_and(|moments| stands_still(moments, f64::from(beta)));
        for (name, beta) in [("beta1", given.beta1), ("beta2", given.beta2)] {
            if slow(beta) {
                let range =
                    "0.996 or less where optimizer.moments is bf16, which rounds away smaller changes";
                return Err(SessionError::Hyperparameter { name, given: beta, range });
            }
        }
        Ok(())
    }
}
