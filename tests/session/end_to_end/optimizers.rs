//! What custom optimizers of both kinds, of rows and of whole matrices, are held to alike.

use std::sync::atomic::{AtomicU32, Ordering};

use warpweft_session::session::{Outcome, Session, SessionError};
use warpweft_testing::trainer::{Mischief, feed, losses};

/// On two ranks that trained two steps: one that is skipped and one whose closure fails add nothing to `runs` and
/// change nothing, and the next step does.
pub(super) async fn lost_steps_change_nothing(session: &mut Session, mischief: &Mischief, runs: &AtomicU32) {
    let before = (session.export().await.unwrap(), runs.load(Ordering::SeqCst));
    mischief.set(3);
    feed(session, "train", 2, 2);
    let report = session.step("train").await.unwrap();
    assert!(matches!(report.outcome, Outcome::Skipped { .. }), "{:?}", report.outcome);
    mischief.set(1);
    assert!(matches!(session.step("train").await, Err(SessionError::Closure { .. })));
    assert_eq!(runs.load(Ordering::SeqCst), before.1);
    assert!(session.export().await.unwrap() == before.0);
    mischief.set(0);
    losses(session, 2, 3..4).await;
    assert!(session.export().await.unwrap() != before.0);
}

/// The first step of a session of two ranks ends with these words, and so does every call after it.
pub(super) async fn the_first_step_ends_with(session: &mut Session, words: &[&str]) {
    feed(session, "train", 2, 0);
    let error = session.step("train").await.unwrap_err().to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
    let again = session.step("train").await.unwrap_err().to_string();
    assert!(again.contains(words[0]), "{again}");
}
