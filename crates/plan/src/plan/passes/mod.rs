//! The passes that fill a draft, one decision each, in this order.
//!
//! Law: a pass reads what earlier passes left in the draft and adds tasks and slots of its own
//! kind only. Order between tasks is expressed by where they stand in T and by what they access;
//! no pass writes a fence.

mod assemble;
mod buffers;
mod columnwise;
mod compute;
mod dense;
mod gather;
mod joined;
mod latest;
mod matrices;
mod optimize;
mod publish;
mod quantize;
mod reduce;

use std::collections::HashSet;

use crate::model::{Group, Mesh};
use crate::op::{self, GatherPart, WireType};
use warpweft_format::ElementType;

pub(super) use assemble::assemble;
pub(super) use buffers::buffers;
pub(super) use columnwise::columnwise;
pub(super) use compute::compute;
pub(super) use dense::dense;
pub(super) use gather::gather;
pub(super) use optimize::optimize;
use publish::sent;
pub(super) use quantize::quantize;
pub(super) use reduce::reduce;

/// What a task of several weights concerns, of which `name` is the first.
fn of_group(name: &str, weights: usize) -> String {
    match weights {
        0 | 1 => name.to_owned(),
        _ => format!("{name} and {} more", weights - 1),
    }
}

/// How many weights have planes among these; those of one weight in two orientations are two parts.
fn weights_of(parts: &[GatherPart]) -> usize {
    parts.iter().map(|part| part.weight).collect::<HashSet<_>>().len()
}

/// Bytes a rank receives when every other one of its group sends it `elements` values. Saturates.
fn wire_bytes(elements: usize, wire: WireType, mesh: Mesh, group: Group) -> usize {
    wire.bytes(elements).saturating_mul(peers(mesh, group))
}

/// Bytes a rank receives when the ranks of its group combine f32 slots of so many values each. Saturates.
fn combined_bytes(values: impl Iterator<Item = usize> + Clone, mesh: Mesh, group: Group) -> usize {
    let bytes = values.map(|values| values.saturating_mul(ElementType::F32.bytes()));
    op::given_to_each(bytes, mesh.size(group)).saturating_mul(peers(mesh, group))
}

/// How many other ranks a group has.
fn peers(mesh: Mesh, group: Group) -> usize {
    mesh.size(group) as usize - 1
}
