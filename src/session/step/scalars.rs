//! Learning rate and loss scale of the coming steps.
//!
//! Law: a scalar that is refused stays as it was. Both reach the ranks with the next step, recorded or not, and nothing
//! else: no plan and no recording depends on them.

use crate::session::{Session, SessionError};

impl Session {
    /// Sets the learning rate of the coming steps, at first `optimizer.lr` of the configuration.
    ///
    /// # Errors
    /// [`SessionError::LearningRate`] unless it is a finite number from 0 on; it stays as it was.
    pub fn set_learning_rate(&mut self, learning_rate: f32) -> Result<(), SessionError> {
        if learning_rate.is_finite() && learning_rate >= 0.0 {
            self.learning_rate = learning_rate;
            return Ok(());
        }
        Err(SessionError::LearningRate { given: learning_rate })
    }

    /// The learning rate of the coming steps.
    #[must_use]
    pub const fn learning_rate(&self) -> f32 {
        self.learning_rate
    }

    /// The factor by which the closures multiply the loss of the coming steps, 1 at first. They read it by
    /// [`ComputeContext::loss_scale`](crate::compute::ComputeContext::loss_scale).
    ///
    /// Gradients are divided by it before norm, clip and update. A step whose scaled gradients overflow is
    /// skipped ([`Outcome::Skipped`](super::Outcome::Skipped)): the trainer lowers the scale and goes on. A power
    /// of two changes no bit of a step that does not overflow or underflow. While gradients are added up over steps
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
