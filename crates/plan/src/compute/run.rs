//! Runs a bound call: the one place where closures are called.
//!
//! Law: **EX-4** What a call overwrites is spoiled first if the plan is bound so, and afterwards the closure must have
//! requested all of it, and left nothing of it as it was where the host can see that.

use super::bound::BoundCall;
use super::context::ComputeContext;
use super::error::ComputeError;
use super::{Compute, Surface};
use warpweft_base::id::RankId;

impl BoundCall {
    /// Carries out the call on `rank` by its closures, which get their memory from `surface`. Every backend runs
    /// calls through here (EX-4).
    ///
    /// # Errors
    /// What the closure or the surface says, [`ComputeError::NotWritten`] for what the closure forgot,
    /// [`ComputeError::PartlyWritten`] for what it left out.
    pub fn run<S: Surface>(
        &self,
        rank: RankId,
        surface: &S,
        closures: &mut dyn Compute<S>,
    ) -> Result<(), ComputeError> {
        self.begin();
        let mut spoiled = self.overwritten().filter(|_| self.spoiled);
        spoiled.try_for_each(|region| surface.spoil(region))?;
        closures.run(&self.call, &ComputeContext::new(rank, self, surface))?;
        self.check_written()?;
        if self.spoiled { self.check_filled(surface) } else { Ok(()) }
    }
}
