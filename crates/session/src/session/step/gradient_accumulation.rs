//! Gradient accumulation.
//!
//! Law: a sum belongs to the session, not to a program: any program that accumulates may begin, continue or end it,
//! and programs without gradients may run in between. What would lose it or mix two loss scales is refused before
//! anything runs, and so is a step after which nothing could end it. A step with gradients that fails, one that ends
//! it, an import, and whoever requests it drop it whole. Processes count it each for itself, and compare after every
//! step which plan they ran and by what main grads are multiplied.

use std::sync::Arc;

use crate::session::{CompiledHere, Session, SessionError, StepReport};
use warpweft_base::id::ProgramId;
use warpweft_plan::plan::StepPlan;

/// A plan for one part of a sum.
#[derive(Debug)]
pub(in crate::session) struct SumPlan {
    /// The program whose calls it runs.
    pub(in crate::session) program: ProgramId,
    pub(in crate::session) plan: Arc<StepPlan>,
}

/// What is added up so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::session) struct Sum {
    /// Of how many steps; of none, there is no sum.
    pub(in crate::session) steps: u32,
    /// By what their closures multiplied the loss.
    pub(in crate::session) loss_scale: f32,
}

impl Sum {
    /// What a step by `plan` leaves of it, whose closures multiplied the loss by `loss_scale`.
    pub(in crate::session) fn after(self, plan: &StepPlan, failed: bool, loss_scale: f32) -> Self {
        if !plan.writes_gradients() {
            return self;
        }
        if failed || !plan.accumulation.stays_open() {
            return Self::default();
        }
        let before = if plan.accumulation.continues() { self.steps } else { 0 };
        Self { steps: before.saturating_add(1), loss_scale }
    }
}

impl Session {
    /// The most steps whose gradients are accumulated: f32 represents every number up to it.
    pub const MOST_ACCUMULATED: u32 = 1 << 24;

    /// Runs one step of the program called `program` up to its gradients, and adds these to those of the calls
    /// of this method before it. No weight changes. The next [`Session::step`] of a program that accumulates
    /// adds its own gradients, divides the sum by the number of steps, and runs norm, clip and optimizer on this mean:
    ///
    /// ```
    /// use warpweft::{prelude::*, session::block_on};
    ///
    /// let mut model = Model::builder();
    /// let w = model.sharded("w", 16, 16, Format::Bf16)?;
    /// let mut program = StepProgram::builder("train", &model.build());
    /// let x = program.input("x", 1, ElementType::F32)?;
    /// program.call("fit", Phase::Backward).reads(x).gradient(w).add()?;
    /// let program = program.build_training()?.accumulating()?;
    /// let fit = on_cpu(move |_, context| {
    ///     let x = context.read::<f32>(x)?[0];
    ///     context.gradient(w)?.fill(x);
    ///     Ok(())
    /// });
    /// let builder = Session::builder(Config::default(), move |_| fit).program(program);
    /// let mut session = block_on(builder.initialize(initial::zeros()).start_cpu(1))?;
    /// for x in [1.0_f32, 2.0, 6.0] {
    ///     session.write_input("train", RankId::new(0), "x", &[x])?;
    ///     if x < 6.0 {
    ///         block_on(session.accumulate("train"))?; // two steps without the optimizer
    ///     } else {
    ///         let report = block_on(session.step("train"))?; // and the one that ends the sum
    ///         let Outcome::Updated { norm, .. } = report.outcome else { panic!() };
    ///         assert_eq!(norm, 3.0 * 16.0); // of 16 × 16 gradients of (1 + 2 + 6) / 3
    ///     }
    /// }
    /// block_on(session.close())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Every step counts the same, whatever its micro-batches. Steps of other programs that accumulate may
    /// take part, and steps without gradients may come in between. A sum of a power of two of steps has the bits of
    /// one step with as many micro-batches, where these are reduced call by call or by the micro-batch. The sum is
    /// in no checkpoint. A step with gradients that fails drops it, and the next one begins anew; so do
    /// [`Outcome::Skipped`], an import, and [`Session::discard_gradients`].
    ///
    /// Dropping the future does what it does in [`Session::step`]. With several processes all call it.
    ///
    /// [`Outcome::Skipped`]: crate::session::Outcome::Skipped
    ///
    /// # Errors
    /// [`SessionError::NotAccumulating`] unless the program was declared by
    /// [`StepProgram::accumulating`](warpweft_plan::model::StepProgram::accumulating);
    /// [`SessionError::Accumulating`] where the loss scale is not the one the sum began with, and where no step
    /// could end the sum after this one: of [`Session::MOST_ACCUMULATED`] steps, or because f32 cannot undo their
    /// number times the loss scale; otherwise as [`Session::step`].
    pub async fn accumulate(&mut self, program: &str) -> Result<StepReport, SessionError> {
        self.accumulate_here(program).await
    }

    fn accumulate_here<'a>(&'a mut self, program: &'a str) -> CompiledHere<'a, StepReport> {
        Box::pin(async move {
            self.settle().await?;
            self.check_usable()?;
            let number = self.position(program)?;
            let Some([first, next, _]) = self.programs[number.index()].sums else {
                return Err(SessionError::NotAccumulating { program: program.to_owned() });
            };
            self.run(if self.sum.steps == 0 { first } else { next }).await
        })
    }

    /// The number of steps whose gradients are accumulated, and not used by the optimizer yet.
    #[must_use]
    pub const fn accumulated(&self) -> u32 {
        self.sum.steps
    }

    /// Drops the gradients that are added up: the next step begins anew. Main grads keep their values until then.
    /// With several processes all call it.
    ///
    /// # Errors
    /// What a step left whose future was dropped, as [`Session::step`]; the sum is as that step left it then.
    pub async fn discard_gradients(&mut self) -> Result<(), SessionError> {
        self.discard_gradients_here().await
    }

    fn discard_gradients_here(&mut self) -> CompiledHere<'_, ()> {
        Box::pin(async move {
            self.settle().await?;
            self.sum = Sum::default();
            Ok(())
        })
    }

    /// The plan by which a step of program number `number` with its optimizer runs now.
    pub(in crate::session) fn ending(&self, number: ProgramId) -> Result<ProgramId, SessionError> {
        let program = &self.programs[number.index()];
        match program.sums {
            _ if self.sum.steps == 0 || !program.plan.writes_gradients() => Ok(number),
            Some([.., last]) => Ok(last),
            None => Err(self.accumulating(
                "a program that does not accumulate would begin main grads anew; end the sum by `step` of one that \
                 does, or drop it by `discard_gradients`",
            )),
        }
    }

    /// May a step by this plan add its gradients, and can a step end the sum then?
    pub(in crate::session) fn check_sum(&self, plan: &StepPlan) -> Result<(), SessionError> {
        let Sum { steps, loss_scale } = self.sum;
        if plan.accumulation.is_whole() {
            return Ok(());
        }
        if plan.accumulation.continues() && loss_scale != self.loss_scale {
            return Err(self.accumulating(
                "the loss scale is not the one that the sum began with; set that one again, or drop the sum by \
                 `discard_gradients`",
            ));
        }
        let whole = steps.saturating_add(1 + u32::from(plan.accumulation.stays_open()));
        let scale = self.loss_scale * whole as f32;
        if whole > Self::MOST_ACCUMULATED {
            return Err(self.accumulating("no more can be; end the sum by `step`"));
        }
        if !scale.is_normal() || !(1.0 / scale).is_normal() {
            return Err(self.accumulating(
                "f32 cannot undo the loss scale times their number with another one; end the sum by `step`, or begin \
                 it under a smaller loss scale",
            ));
        }
        Ok(())
    }

    /// What main grads are a multiple of after the coming step, if it adds to them.
    pub(in crate::session) fn gradient_scale(&self) -> f32 {
        self.loss_scale * self.sum.steps.saturating_add(1) as f32
    }

    /// The plan numbered `number`: that of a program, or of a part of one.
    pub(in crate::session) fn plan_of(&self, number: ProgramId) -> &Arc<StepPlan> {
        match self.sum_plan(number) {
            Some(of_sum) => &of_sum.plan,
            None => &self.programs[number.index()].plan,
        }
    }

    /// The plan by which the last step ran, which was that of the plan numbered `number`: this one, or the same with a
    /// snapshot.
    pub(in crate::session) fn plan_that_ran(&self, number: ProgramId) -> &Arc<StepPlan> {
        self.saves.taken_by(number).unwrap_or_else(|| self.plan_of(number))
    }

    /// The program whose calls the plan numbered `number` runs.
    pub(in crate::session) fn program_of(&self, number: ProgramId) -> ProgramId {
        self.sum_plan(number).map_or(number, |of_sum| of_sum.program)
    }

    fn sum_plan(&self, number: ProgramId) -> Option<&SumPlan> {
        number.index().checked_sub(self.programs.len()).and_then(|place| self.sum_plans.get(place))
    }

    fn accumulating(&self, refused: &'static str) -> SessionError {
        SessionError::Accumulating { steps: self.sum.steps, refused }
    }
}
