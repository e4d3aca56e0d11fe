//! Futures that are dropped before they are ready.

use std::pin::pin;
use std::task::{Context, Poll};

/// What a future has after its first poll, and then it is dropped. Work that was begun may have been quicker, so a test
/// accepts either.
pub async fn polled_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let poll = |context: &mut Context<'_>| match future.as_mut().poll(context) {
        Poll::Ready(told) => Poll::Ready(Some(told)),
        Poll::Pending => Poll::Ready(None),
    };
    std::future::poll_fn(poll).await
}
