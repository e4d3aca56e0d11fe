//! A bounded queue between two threads that allocates nothing once it is made.
//!
//! Law: sending never waits; receiving waits until there is a message or the sender is gone. Messages
//! sit in a crossbeam array queue; waiting is a condition variable of std, which needs no memory of its
//! own. (A crossbeam channel makes its list of waiters when somebody first waits, so a lane that first
//! runs dry in its hundredth step would allocate there: BK-2.)

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam::queue::ArrayQueue;

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no room.
    Full,
    /// Nobody will receive it.
    Closed,
}

#[derive(Debug)]
struct Shared<T> {
    messages: ArrayQueue<T>,
    /// The receiver is about to sleep, or asleep.
    sleeps: AtomicBool,
    sender_gone: AtomicBool,
    receiver_gone: AtomicBool,
    door: Mutex<()>,
    bell: Condvar,
}

impl<T> Shared<T> {
    fn ring(&self) {
        drop(self.door.lock().unwrap_or_else(PoisonError::into_inner));
        self.bell.notify_one();
    }
}

/// The end that sends. Dropping it lets the receiver finish what is queued and then end.
#[derive(Debug)]
pub struct Sender<T>(Arc<Shared<T>>);

/// The end that receives.
#[derive(Debug)]
pub struct Receiver<T>(Arc<Shared<T>>);

/// A queue for `capacity` messages, at least one.
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        messages: ArrayQueue::new(capacity.max(1)),
        sleeps: AtomicBool::new(false),
        sender_gone: AtomicBool::new(false),
        receiver_gone: AtomicBool::new(false),
        door: Mutex::new(()),
        bell: Condvar::new(),
    });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> Sender<T> {
    /// Queues a message, or says why not; a refused message is dropped.
    ///
    /// # Errors
    /// [`Refused`]: the queue is full, or its receiver is gone.
    pub fn send(&self, message: T) -> Result<(), Refused> {
        if self.0.receiver_gone.load(Ordering::Acquire) {
            return Err(Refused::Closed);
        }
        self.0.messages.push(message).map_err(|_| Refused::Full)?;
        // Pairs with the receiver's exchange: either it sees the message, or we see that it sleeps.
        if self.0.sleeps.swap(false, Ordering::SeqCst) {
            self.0.ring();
        }
        Ok(())
    }

    /// For how many messages there is room in all.
    pub fn capacity(&self) -> usize {
        self.0.messages.capacity()
    }

    /// Would the next message be refused for want of room?
    pub fn is_full(&self) -> bool {
        self.0.messages.is_full()
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.sender_gone.store(true, Ordering::SeqCst);
        self.0.ring();
    }
}

impl<T> Receiver<T> {
    /// The oldest message, as soon as there is one; `None` once the sender is gone and all is received.
    pub fn receive(&self) -> Option<T> {
        loop {
            if let Some(message) = self.0.messages.pop() {
                return Some(message);
            }
            let mut asleep = self.0.door.lock().unwrap_or_else(PoisonError::into_inner);
            self.0.sleeps.store(true, Ordering::SeqCst);
            while self.0.sleeps.load(Ordering::SeqCst) && self.0.messages.is_empty() {
                if self.0.sender_gone.load(Ordering::SeqCst) {
                    return self.0.messages.pop();
                }
                asleep = self.0.bell.wait(asleep).unwrap_or_else(PoisonError::into_inner);
            }
            self.0.sleeps.store(false, Ordering::SeqCst);
        }
    }

    /// As [`Receiver::receive`], but looks for so long before it sleeps. A message that comes meanwhile wakes
    /// nobody: its sender makes no call of the system, and it is seen at once. For threads with a core of
    /// their own.
    pub fn receive_eagerly(&self, patience: Duration) -> Option<T> {
        if !patience.is_zero() {
            let begun = Instant::now();
            while self.0.messages.is_empty()
                && !self.0.sender_gone.load(Ordering::Acquire)
                && begun.elapsed() < patience
            {
                std::hint::spin_loop();
            }
        }
        self.receive()
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.receiver_gone.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_arrives_in_order_and_the_end_is_seen() {
        let micros = Duration::from_micros;
        for (capacity, patience) in
            [(1, micros(0)), (2, micros(0)), (64, micros(0)), (1, micros(5)), (64, micros(50))]
        {
            let (near, far) = bounded(capacity);
            let receive = move || std::iter::from_fn(|| far.receive_eagerly(patience)).collect::<Vec<u32>>();
            let receiver = std::thread::spawn(receive);
            for number in 0..20_000 {
                while near.send(number) == Err(Refused::Full) {
                    std::thread::yield_now();
                }
            }
            drop(near);
            assert_eq!(receiver.join().unwrap(), (0..20_000).collect::<Vec<u32>>());
        }
    }

    #[test]
    fn a_patient_receiver_sees_a_message_and_the_end_while_it_looks() {
        let (near, far) = bounded(1);
        let patience = Duration::from_secs(600);
        let receiver =
            std::thread::spawn(move || [far.receive_eagerly(patience), far.receive_eagerly(patience)]);
        assert_eq!(near.send(7), Ok(()));
        drop(near);
        assert_eq!(receiver.join().unwrap(), [Some(7), None]);
    }

    #[test]
    fn a_full_queue_and_a_lost_receiver_refuse() {
        let (near, far) = bounded(1);
        assert_eq!(near.send(1), Ok(()));
        assert!(near.is_full());
        assert_eq!(near.send(2), Err(Refused::Full));
        assert_eq!(far.receive(), Some(1));
        drop(far);
        assert_eq!(near.send(3), Err(Refused::Closed));
    }
}
