//! The check that a program was declared over the session's weights.
//!
//! Law: all that a weight is declared with is compared, and the first difference is named.

use std::cmp::Ordering;

use super::PlanError;
use crate::layout::{WeightLayout, Weights};
use crate::model::{StepProgram, WeightSpec};

pub(super) fn check_model(program: &StepProgram, weights: &Weights) -> Result<(), PlanError> {
    let specs = program.model().weights();
    let has_experts = weights.mesh.has_experts();
    let differs = |(spec, layout)| difference(spec, layout, has_experts);
    let differing = specs.iter().zip(&weights.layouts).find_map(differs);
    let difference = differing.or_else(|| match specs.len().cmp(&weights.layouts.len()) {
        Ordering::Equal => None,
        Ordering::Less => Some(format!("it has no `{}`", weights.layouts[specs.len()].name)),
        Ordering::Greater => Some(format!("the session has no `{}`", specs[weights.layouts.len()].name)),
    });
    let other = |difference| PlanError::OtherModel { program: program.name().to_owned(), difference };
    difference.map_or(Ok(()), |difference| Err(other(difference)))
}

/// In what a weight of a program is not the session's of that number, on a mesh where experts have axes or have none.
fn difference(spec: &WeightSpec, layout: &WeightLayout, has_experts: bool) -> Option<String> {
    // Taken apart, so that what is declared anew is compared as well.
    let WeightSpec {
        name,
        shape,
        format,
        placement,
        reuse,
        group,
        parameters,
        frozen,
        tensor,
        segments,
        expert,
        scale_group,
    } = spec;
    if *name != layout.name {
        return Some(format!("it has `{name}` where the session has `{}`", layout.name));
    }
    let valued = [
        ("shape", shape.to_string(), layout.shard.whole().to_string()),
        ("format", format.to_string(), layout.format.to_string()),
        ("placement", format!("{placement:?}"), format!("{:?}", layout.placement)),
    ];
    let valued = valued.into_iter().find(|(_, own, other)| own != other);
    let valued = valued
        .map(|(what, own, other)| format!("`{name}` has {what} {own} there, and {other} in the session"));
    let named = [
        ("group", *group != layout.group),
        ("reuse", *reuse != layout.reuse),
        ("parameter group", *parameters != layout.parameters),
        ("choice whether it is frozen", *frozen != layout.frozen),
        ("expert parallelism", layout.shard.expert.is_some() != (*expert && has_experts)),
        ("scale group", *scale_group != layout.scale_group),
        (
            "tensor parallelism",
            layout.shard.tensor.is_some_and(|cut| (cut.how, cut.segments) != (*tensor, *segments)),
        ),
    ];
    valued.or_else(|| {
        let (what, _) = named.into_iter().find(|(_, differs)| *differs)?;
        Some(format!("`{name}` has another {what} there than in the session"))
    })
}
