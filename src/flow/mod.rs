//! Flow control: who may issue what, when, on the strength of which right.
//!
//! Rights are values. A [`ReadLease`] is the right to read a slot's content; a [`Credit`] is one accessor's
//! consent to overwrite it. Both carry the [`Point`] after which the device has done what they stand for.
//! Rights travel in messages along the plan's dependences; a task may be issued once all its rights are in
//! and its lane's turn is at it.
//!
//! - **FL-1** A lease is built from a point, and a point only by issuing a task.
//! - **FL-2** A slot is written only when every lease on it is spent.
//! - **FL-3** A right is spent once, in the step that granted it; it cannot be copied.
//! - **FL-4** A right dropped unspent poisons the rank.
//!
//! Each question has one source of truth: fences are the only device waits; rights decide when the host may
//! issue. They meet at issue: every point must be covered by lane order or a fence, otherwise both tasks are
//! named in a [`FlowError`]. Nothing here waits, and nothing allocates once a plan is wired.

mod clocks;
mod error;
mod issue;
mod mailbox;
mod point;
mod poison;
mod register;
mod rights;
mod wiring;

pub use error::FlowError;
pub use issue::Issuer;
pub use mailbox::{Mailbox, Message, Post};
pub use point::Point;
pub use poison::Poison;
pub use register::Registers;
pub use rights::{Credit, ReadLease, Right};
pub use wiring::{Fence, TaskWiring, Wiring};
