//! Boxed futures, whose code is generated in this library and not in every user's.

use std::pin::Pin;

use super::SessionError;

/// What a public `async fn` awaits in place of a body of its own, made by a function that is neither async nor
/// generic: the body of an `async fn` is compiled anew in every crate that awaits it.
pub(super) type CompiledHere<'a, T> = Pin<Box<dyn Future<Output = Result<T, SessionError>> + Send + 'a>>;
