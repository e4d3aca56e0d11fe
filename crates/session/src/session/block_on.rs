//! Waiting for a session without an executor.
//!
//! Law: the calling thread sleeps until the future wakes it; nothing is started for it and nothing is shared
//! between two calls. The parker is the call's own: a wake that comes before the thread sleeps is not lost, and
//! nobody else's unparking wakes it.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crossbeam::sync::{Parker, Unparker};

/// Runs a future of this crate to its end on the calling thread: for trainers without an async runtime.
///
/// Sessions need no particular executor, and this is the smallest there is. It serves every `async` method
/// alike, from [`SessionBuilder::start_cpu`](super::SessionBuilder::start_cpu) to
/// [`Session::close`](super::Session::close). Do not call it on a thread of an async runtime: it would hold
/// up whatever else runs there. A future that needs a runtime of its own, such as a timer of tokio, needs
/// that one.
///
/// ```
/// use warpweft::{prelude::*, session::block_on};
/// # let mut model = Model::builder();
/// # let weight = model.sharded("w", 32, 32, Format::F32)?;
/// # let mut program = StepProgram::builder("train", &model.build());
/// # program.call("fit", Phase::Backward).gradient(weight).add()?;
/// # let program = program.build_training()?;
/// # let fit = on_cpu(move |_, context| Ok(context.gradient(weight)?.fill(0.0)));
///
/// let builder = Session::builder(Config::default(), move |_| fit).program(program);
/// let mut session = block_on(builder.initialize(initial::zeros()).start_cpu(2))?;
/// for _ in 0..3 {
///     let report = block_on(session.step("train"))?;
///     println!("{:?}", report.outcome);
/// }
/// block_on(session.close())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn block_on<F: Future>(future: F) -> F::Output {
    let parker = Parker::new();
    let waker = Waker::from(Arc::new(Sleeper(parker.unparker().clone())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        parker.park();
    }
}

/// Wakes the thread of one call.
struct Sleeper(Unparker);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn a_wake_that_comes_before_the_thread_sleeps_is_not_lost() {
        let mut polls = 0;
        let answer = block_on(poll_fn(|context| {
            polls += 1;
            if polls == 3 {
                return Poll::Ready(7);
            }
            context.waker().wake_by_ref();
            Poll::Pending
        }));
        assert_eq!((answer, polls), (7, 3));
    }

    /// The future is polled again when it was woken, and not because somebody else unparked the thread.
    #[test]
    fn a_thread_that_was_unparked_by_somebody_else_sleeps_on() {
        let mut polls = 0;
        let (tell, told) = std::sync::mpsc::channel::<Waker>();
        let sleeper = thread::current();
        let other = thread::spawn(move || {
            let waker = told.recv().unwrap();
            for _ in 0..3 {
                sleeper.unpark();
                thread::sleep(Duration::from_millis(1));
            }
            waker.wake();
        });
        block_on(poll_fn(|context| {
            polls += 1;
            if polls == 2 {
                return Poll::Ready(());
            }
            tell.send(context.waker().clone()).unwrap();
            Poll::Pending
        }));
        other.join().unwrap();
        assert_eq!(polls, 2);
    }
}
