//! Loss scaling: the loss scale of coming steps.
//!
//! Law: one that is refused leaves the scale as it was. It reaches the ranks with the next step, captured or not, and
//! nothing else: no plan and no capture depends on it.

use crate::session::{Session, SessionError};

impl Session {
    /// The factor by which the closures multiply the loss of the coming steps, 1 at first. They read it by
    /// [`ComputeContext::loss_scale`](warpweft_plan::compute::ComputeContext::loss_scale).
    ///
    /// Gradients are divided by it before norm, clip and update. A step whose scaled gradients overflow is
    /// skipped ([`Outcome::Skipped`](super::Outcome::Skipped)): the user lowers the scale and goes on. A power
    /// of two changes no bit of a step that does not overflow or underflow. While gradients are accumulated over steps
    /// ([`Session::accumulate`]) the next one is refused under another scale than theirs.
    ///
    /// # Errors
    /// [`SessionError::LossScale`] unless it and its reciprocal are positive normal numbers; the scale stays
    /// as it was.
    pub fn set_loss_scale(&mut self, loss_scale: f32) -> Result<(), SessionError> {
        if loss_scale > 0.0 && loss_scale.is_normal() && (1.0 / loss_scale).is_normal() {
            self.loss_scale = loss_scale;
            return Ok(());
        }
        Err(SessionError::LossScale { given: loss_scale })
    }

    /// The loss scale of the coming steps.
    #[must_use]
    pub const fn loss_scale(&self) -> f32 {
        self.loss_scale
    }
}
