//! A dispatch between the calls of a random program, with what follows it by its counts.
//!
//! Law: a call writes rows and how many of them are filled, and whoever reads rows reads their counts. What lies after
//! the counts is undefined: calls compute nothing of it ([`filled`]), and no count is above the capacity
//! ([`bound_counts`]).

use warpweft_base::id::BufferId;
use warpweft_format::ElementType;
use warpweft_plan::model::{
    Access, BufferSpec, CollectiveKind, Counts, Group, Lifetime, Mesh, Role, StepProgram,
};

use super::collective_calls::{Additions, Between};
use super::{Draw, Ending, groups};

/// The same program with one dispatch and up to two collectives that follow it.
pub(super) fn with_dispatch(
    program: &StepProgram,
    ending: Ending,
    mesh: Mesh,
    draw: &mut Draw,
) -> StepProgram {
    let mut additions = Additions::none(program);
    // Where ranks share the experts, mostly to whose these are.
    let to_experts = mesh.expert() > 1 && !draw.one_in(3);
    let group = if to_experts { Group::Expert } else { draw.among(groups(mesh)) };
    let calls = program.calls();
    let closures: Vec<usize> = (0..calls.len()).filter(|call| calls[*call].collective.is_none()).collect();
    // Collectives of the program stay where they are, and none of them may go between a writer and its reader.
    if closures.len() != calls.len() || calls.len() < 2 {
        return program.clone();
    }
    let slots = mesh.size(group) as usize * (1 + draw.below(2));
    let capacity = 1 + draw.below(4);
    let rows = slots * capacity * (1 + draw.below(3));
    let element = draw.among(&[ElementType::F32, ElementType::Bf16, ElementType::U8]);
    let mut buffer = |name: &str, element: ElementType, elements: usize| {
        let (role, lifetime) = (Role::Internal, Lifetime::Step);
        additions.buffer(BufferSpec { name: name.into(), elements, element, role, lifetime })
    };
    let [given, taken] =
        ["row counts", "counts of got rows"].map(|name| buffer(name, ElementType::U32, slots));
    let [from, to] = ["rows", "got rows"].map(|name| buffer(name, element, rows));
    let fill = draw.among(&[1, 50, 100]);
    let counts = |given: usize, taken: usize, known: bool| {
        let [given, taken] = [given, taken].map(BufferId::at);
        Some(Counts { given, taken, capacity, fill, known })
    };
    let mut writer = draw.below(calls.len() - 1);
    additions.accesses.extend([(writer, from, Access::Write), (writer, given, Access::Write)]);
    let kind = CollectiveKind::AllToAll;
    // Collectives stand before a call, so one after the last has none to read of it.
    let after = |writer: usize, draw: &mut Draw| writer + 1 + draw.below(calls.len() - writer - 1);
    let mut sides = (given, taken);
    let mut last = (from, to);
    for number in 0..1 + draw.below(3) {
        if writer + 1 >= calls.len() {
            break;
        }
        let reader = after(writer, draw);
        let before = writer + 1 + draw.below(reader - writer);
        let known = number > 0;
        if known {
            // There again, or back.
            if draw.one_in(2) {
                sides = (sides.1, sides.0);
            }
            let name = |what: &str| format!("{what} {number}");
            let [from, to] = ["rows", "got rows"].map(|what| {
                let (role, lifetime) = (Role::Internal, Lifetime::Step);
                let name = name(what);
                additions.buffer(BufferSpec { name, elements: rows, element, role, lifetime })
            });
            additions.accesses.push((writer, from, Access::Write));
            last = (from, to);
        }
        let ((from, to), (given, taken)) = (last, sides);
        let counts = counts(given, taken, known);
        let name = format!("rows {number}");
        additions.collectives.push(Between { name, before, kind, group, from, to, counts });
        additions.accesses.extend([(reader, to, Access::Read), (reader, taken, Access::Read)]);
        writer = reader;
    }
    additions.added_to(program, program.model(), ending)
}

/// The counts by which rows came into a buffer, if any did.
fn counts_of(program: &StepProgram, buffer: BufferId) -> Option<Counts> {
    let mut collectives = program.calls().iter().filter_map(|call| call.collective);
    collectives.find(|collective| collective.to == buffer)?.counts
}

/// The counts beside a buffer of rows.
pub fn counts_beside(program: &StepProgram, buffer: BufferId) -> Option<BufferId> {
    counts_of(program, buffer).map(|counts| counts.taken)
}

/// Of a buffer of rows what is filled, given their counts.
pub fn filled(program: &StepProgram, buffer: BufferId, rows: &[u8], counts: &[u8]) -> Vec<u8> {
    let capacity = counts_of(program, buffer).map_or(1, |counts| counts.capacity);
    let counts: Vec<u32> = words(counts).collect();
    let slot = rows.len() / counts.len();
    let of = |(count, rows): (u32, &[u8])| rows[..slot / capacity * capacity.min(count as usize)].to_vec();
    counts.into_iter().zip(rows.chunks(slot)).flat_map(of).collect()
}

/// What a call writes into a buffer, given any bytes: where it counts rows, no count is above the capacity.
pub fn bound_counts(program: &StepProgram, buffer: BufferId, bytes: Vec<u8>) -> Vec<u8> {
    let of = program.calls().iter().filter_map(|call| call.collective?.counts);
    let Some(counts) = of.into_iter().find(|counts| counts.given == buffer && !counts.known) else {
        return bytes;
    };
    // Of an f32 that is made of noise the lowest bits may be zeros.
    words(&bytes).flat_map(|value| ((value >> 9) % (counts.capacity as u32 + 1)).to_ne_bytes()).collect()
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
}
