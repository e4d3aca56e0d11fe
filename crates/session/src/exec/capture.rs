//! Recording a step and replaying it, as one state machine.
//!
//! **EX-3** A plan is recorded only after a step of it has completed on all ranks and no closure failed in
//! it. Its first step runs eagerly (*cold*: caches fill, lazy handles are made), and so do later ones until
//! then: closures after one that failed have not run yet. The next step is recorded without running anything
//! and then launched; later ones are launched. Every one of them is a real step; there is no warm-up that
//! would touch main grads. A step is recorded whole, or in segments where some of its calls are dynamic. If
//! any rank could not make some segment of a recording, all ranks discard it before its first launch.

use super::Recorded;

/// Whether steps are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// Every step is issued anew.
    Off,
    /// The step is recorded once, in as few segments as its dynamic calls allow, and replayed. Where it must
    /// be a single one, the session refuses programs with such calls.
    Recorded,
}

/// What to do for the coming step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Issue it.
    Issue,
    /// Record it, then launch.
    Record,
    /// Launch the recording.
    Launch,
}

/// The state of one plan on one rank.
#[derive(Debug)]
pub enum Capture<G> {
    /// Not to be recorded, or given up.
    Eager,
    /// To be recorded; no step has completed so far.
    Cold,
    /// A step has completed.
    Warm,
    /// Recorded, piece by piece.
    Ready(Vec<Recorded<G>>),
}

impl<G> Capture<G> {
    /// The state before the first step.
    #[must_use]
    pub const fn new(mode: CaptureMode) -> Self {
        match mode {
            CaptureMode::Off => Self::Eager,
            CaptureMode::Recorded => Self::Cold,
        }
    }

    /// What the coming step does.
    #[must_use]
    pub const fn action(&self) -> Action {
        match self {
            Self::Eager | Self::Cold => Action::Issue,
            Self::Warm => Action::Record,
            Self::Ready(_) => Action::Launch,
        }
    }

    /// Notes that a step that was issued has completed on all ranks, and that no closure failed in it.
    pub fn warmed(&mut self) {
        if matches!(self, Self::Cold) {
            *self = Self::Warm;
        }
    }

    /// The vote over a recording: all ranks keep one, or none does.
    pub fn recorded(&mut self, pieces: Option<Vec<Recorded<G>>>) {
        *self = pieces.map_or(Self::Eager, Self::Ready);
    }

    /// The pieces of the step, if they are recorded.
    #[must_use]
    pub fn pieces(&self) -> Option<&[Recorded<G>]> {
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
    fn a_step_is_issued_once_then_recorded_then_launched() {
        let mut capture: Capture<u8> = Capture::new(CaptureMode::Recorded);
        assert_eq!(capture.action(), Action::Issue);
        capture.warmed();
        assert_eq!(capture.action(), Action::Record);
        capture.recorded(Some(vec![Recorded::Segment(1)]));
        assert_eq!(capture.action(), Action::Launch);
        assert_eq!(capture.pieces(), Some(&[Recorded::Segment(1)][..]));
    }

    #[test]
    fn a_recording_some_rank_could_not_make_is_given_up_for_good() {
        let mut capture: Capture<u8> = Capture::new(CaptureMode::Recorded);
        capture.warmed();
        capture.recorded(None);
        assert_eq!(capture.action(), Action::Issue);
        capture.warmed();
        assert_eq!(capture.action(), Action::Issue);
    }
}
