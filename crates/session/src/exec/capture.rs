//! The state machine of captures: whether a step is issued, captured or replayed.
//!
//! **EX-3** A plan is captured only after a step of it has completed on all ranks and no closure failed in
//! it. Its first step runs eagerly (*cold*: caches fill, lazy handles are made), and so do later ones until
//! then: closures after one that failed have not run yet. The next step is captured without running anything
//! and then launched; later ones are launched. Every one of them is a real step; there is no warm-up that
//! would touch main grads. A step is captured whole, or in segments where some of its calls are dynamic. If
//! any rank could not make some segment of a capture, all ranks discard it before its first launch.

use super::Captured;

/// The mode of captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// Every step is issued anew.
    Off,
    /// The step is captured once, in as few segments as its dynamic calls allow, and replayed. Where it must
    /// be a single one, the session refuses programs with such calls.
    Captured,
}

/// The action for the coming step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Issue it.
    Issue,
    /// Capture it, then launch.
    Capture,
    /// Launch the capture.
    Launch,
}

/// The state of one plan on one rank.
#[derive(Debug)]
pub enum Capture<G> {
    /// Not to be captured, or given up.
    Eager,
    /// To be captured; no step has completed so far.
    Cold,
    /// A step has completed.
    Warm,
    /// Captured, piece by piece.
    Ready(Vec<Captured<G>>),
}

impl<G> Capture<G> {
    /// The state before the first step.
    #[must_use]
    pub const fn new(mode: CaptureMode) -> Self {
        match mode {
            CaptureMode::Off => Self::Eager,
            CaptureMode::Captured => Self::Cold,
        }
    }

    /// The action for the coming step.
    #[must_use]
    pub const fn action(&self) -> Action {
        match self {
            Self::Eager | Self::Cold => Action::Issue,
            Self::Warm => Action::Capture,
            Self::Ready(_) => Action::Launch,
        }
    }

    /// Notes that a step that was issued has completed on all ranks, and that no closure failed in it.
    pub fn warmed(&mut self) {
        if matches!(self, Self::Cold) {
            *self = Self::Warm;
        }
    }

    /// The vote over a capture: all ranks keep one, or none does.
    pub fn captured(&mut self, pieces: Option<Vec<Captured<G>>>) {
        *self = pieces.map_or(Self::Eager, Self::Ready);
    }

    /// The pieces of the step, if they are captured.
    #[must_use]
    pub fn pieces(&self) -> Option<&[Captured<G>]> {
        match self {
            Self::Ready(pieces) => Some(pieces),
            Self::Eager | Self::Cold | Self::Warm => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_issued_once_then_captured_then_launched() {
        let mut capture: Capture<u8> = Capture::new(CaptureMode::Captured);
        assert_eq!(capture.action(), Action::Issue);
        capture.warmed();
        assert_eq!(capture.action(), Action::Capture);
        capture.captured(Some(vec![Captured::Segment(1)]));
        assert_eq!(capture.action(), Action::Launch);
        assert_eq!(capture.pieces(), Some(&[Captured::Segment(1)][..]));
    }

    #[test]
    fn a_capture_some_rank_could_not_make_is_given_up_for_good() {
        let mut capture: Capture<u8> = Capture::new(CaptureMode::Captured);
        capture.warmed();
        capture.captured(None);
        assert_eq!(capture.action(), Action::Issue);
        capture.warmed();
        assert_eq!(capture.action(), Action::Issue);
    }
}
