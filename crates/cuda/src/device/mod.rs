//! One GPU as the driver gives it: its context, its memory and its streams.
//!
//! Law: nothing here knows plans, ranks or collectives. What the driver gives is freed by the value that owns it.

pub(crate) mod address;
pub(crate) mod context;
pub(crate) mod ipc;
pub(crate) mod libraries;
pub(crate) mod memory;
pub(crate) mod pinned;
pub(crate) mod stream;
