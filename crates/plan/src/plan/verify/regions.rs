//! PL-6: where slots lie, before anything is known about time.
//!
//! Law: a slot is aligned, inside its own region of the arena, and large enough for its content;
//! resident slots share no byte with any other slot, and each resident content has one slot.
//! Together with `contents`, which lets an op write only into a slot declared for what it writes,
//! this proves that no op reaches beyond its slot.

use super::{Verdict, VerifyError};
use crate::layout::{ALIGNMENT, Content, Region, Residency, Slot};
use crate::plan::StepPlan;

pub(super) fn check(plan: &StepPlan) -> Verdict<()> {
    let arena = &plan.arena;
    let resident = Region { offset: 0, bytes: arena.resident_bytes };
    if arena.resident_bytes.checked_add(arena.transient_bytes).is_none() {
        return refuse(
            "the arena",
            "is larger than memory can be".into(),
            "declare smaller weights and buffers",
        );
    }
    let transient = Region { offset: arena.resident_bytes, bytes: arena.transient_bytes };
    for slot in &arena.slots {
        let home = match slot.residency {
            Residency::Resident => resident,
            Residency::Transient => transient,
        };
        check_slot(plan, slot, home)?;
    }
    check_residents(plan)
}

fn check_slot(plan: &StepPlan, slot: &Slot, home: Region) -> Verdict<()> {
    let Region { offset, bytes } = slot.region;
    if !offset.is_multiple_of(ALIGNMENT) {
        return refuse(
            &format!("slot `{}`", slot.name),
            format!("begins at byte {offset}, which is no multiple of {ALIGNMENT}"),
            "align every slot",
        );
    }
    let needed = slot.content.bytes(&plan.weights, |buffer| plan.buffers[buffer.index()].bytes());
    if bytes < needed {
        return refuse(
            &format!("slot `{}`", slot.name),
            format!(
                "has {bytes} bytes, but its content{} takes {needed}; the rest would lie in other slots",
                format_of(plan, slot.content)
            ),
            "size slots by `Content::bytes`, in the format the weight declares",
        );
    }
    let inside = offset >= home.offset && offset.checked_add(bytes).is_some_and(|end| end <= home.end());
    if !inside {
        return refuse(
            &format!("slot `{}`", slot.name),
            format!(
                "has {bytes} bytes from byte {offset} on, outside its region {}..{}",
                home.offset,
                home.end()
            ),
            "place it inside, or enlarge the region",
        );
    }
    Ok(())
}

/// The format that decides the size of a shard or plane, to stand after the word content.
fn format_of(plan: &StepPlan, content: Content) -> String {
    match content {
        Content::Shard(weight, _)
        | Content::Published(weight, _)
        | Content::Gathered(weight, _)
        | Content::Transposed(weight) => {
            let layout = plan.weights.layout(weight);
            format!(" (`{}` in {})", layout.name, layout.format)
        }
        _ => String::new(),
    }
}

/// Resident slots are disjoint and found by their content. Transient ones cannot meet them,
/// because their regions are disjoint.
fn check_residents(plan: &StepPlan) -> Verdict<()> {
    let mut residents: Vec<&Slot> =
        plan.arena.slots.iter().filter(|slot| slot.residency == Residency::Resident).collect();
    residents.sort_by_key(|slot| slot.content);
    if let Some([first, second]) =
        residents.array_windows().find(|[first, second]| first.content == second.content)
    {
        return refuse(
            &format!("slot `{}`", second.name),
            format!(
                "holds the same resident content as slot `{}`, and only one of them can be found",
                first.name
            ),
            "keep one slot for each resident content",
        );
    }
    residents.retain(|slot| slot.region.bytes > 0);
    residents.sort_by_key(|slot| slot.region.offset);
    if let Some([first, second]) =
        residents.array_windows().find(|[first, second]| first.region.overlaps(second.region))
    {
        return refuse(
            &format!("resident slot `{}`", second.name),
            format!("begins at byte {}, inside slot `{}`", second.region.offset, first.name),
            "resident slots keep their content for ever and must lie apart",
        );
    }
    Ok(())
}

fn refuse(subject: &str, problem: String, remedy: &str) -> Verdict<()> {
    Err(Box::new(VerifyError::Bytes { subject: subject.into(), problem, remedy: remedy.into() }))
}
