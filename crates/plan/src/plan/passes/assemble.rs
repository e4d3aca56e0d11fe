//! Makes gathered planes whole: the rank's own part, padding, scale rows that stand several times.
//!
//! Law (PL-2): every gather, or the last chunk of one, has exactly one assemble after it, of those parts that
//! somebody reads whole and before the first reader of any of them; none, if all are dequantized beside the
//! rank's own shards. It is a task of its own and on no communicator: what of a gather needs a multiprocessor
//! would wait on that lane until a matrix product gives one up, and hold up the collectives after it. On which
//! lane it runs instead, and when, is said in [`Reader::assembles`] alone.

use std::collections::{HashMap, HashSet};

use super::super::draft::{Carrier, Draft, DraftTask, Place, Section, ahead_of};
use super::{of_group, weights_of};
use crate::layout::Content;
use crate::op::{AllGather, Assemble, Dequantize, GatherChunk, GatherPart, Op};
use warpweft_base::id::SlotId;

/// A gather whose planes nobody has read so far.
struct Gathered {
    /// The stage of the gather, or of its last chunk.
    stage: usize,
    /// Those that somebody reads whole.
    parts: Vec<GatherPart>,
}

/// The first task that reads planes of a gather which somebody reads whole.
struct Reader {
    place: Place,
    carrier: Carrier,
    of: Gathered,
}

impl Reader {
    /// Who makes the planes whole, and where: right before the reader and on its own lane, so nobody waits
    /// for another lane because of it. Before a call, where the policy derives ahead: beside the call before,
    /// on the quantize lane. On four H200 that is faster where calls are short and makes no difference
    /// elsewhere.
    fn assembles(&self, ahead: bool) -> (Carrier, Place) {
        if !ahead || self.carrier != Carrier::Compute {
            return (self.carrier, self.place);
        }
        let stage = ahead_of(self.place.stage, self.of.stage);
        (Carrier::Quantize, Place { stage, section: Section::Transposes, position: 0 })
    }
}

/// Runs after all passes that read planes.
pub(in super::super) fn assemble(draft: &mut Draft<'_>) {
    let mut added = Vec::new();
    for reader in first_readers(draft) {
        let (carrier, place) = reader.assembles(draft.derives_ahead());
        let parts = reader.of.parts;
        let subject = parts
            .first()
            .map_or_else(String::new, |first| of_group(draft.name(first.weight), weights_of(&parts)));
        added.push((place, DraftTask::local(Op::Assemble(Assemble { parts }), subject, carrier)));
    }
    draft.insert(added);
}

/// Of every gather of which somebody reads planes whole, the first task that reads some of these; in issue order.
fn first_readers(draft: &Draft<'_>) -> Vec<Reader> {
    let arrived = read_as_they_arrived(draft);
    let mut open: Vec<Option<Gathered>> = Vec::new();
    let mut gather_of: HashMap<SlotId, usize> = HashMap::new();
    let mut readers = Vec::new();
    for (place, task) in draft.tasks() {
        let parts = match &task.op {
            Op::AllGather(AllGather { parts, .. }) => parts.as_slice(),
            Op::GatherChunk(GatherChunk { part, .. }) => std::slice::from_ref(part),
            other => {
                let read = other.accesses().into_iter().filter(|(_, access)| access.reads());
                for gather in read.filter_map(|(slot, _)| gather_of.get(&slot)) {
                    if let Some(of) = open[*gather].take() {
                        readers.push(Reader { place, carrier: task.carrier, of });
                    }
                }
                continue;
            }
        };
        // What publishes a shard brought its own assemble.
        let is_whole = |part: &&GatherPart| {
            let published = matches!(draft.content(part.to), Some(Content::Published(..)));
            !arrived.contains(&part.to) && !published
        };
        let parts: Vec<_> = parts.iter().filter(is_whole).copied().collect();
        if parts.is_empty() {
            continue;
        }
        let begun = parts.first().and_then(|part| gather_of.get(&part.to));
        match begun.and_then(|gather| open[*gather].as_mut()) {
            // A chunk after others goes on with what they began.
            Some(chunked) => chunked.stage = place.stage,
            None => {
                gather_of.extend(parts.iter().map(|part| (part.to, open.len())));
                open.push(Some(Gathered { stage: place.stage, parts }));
            }
        }
    }
    readers
}

/// Slots that a gather fills and that are only dequantized, beside the rank's own shards.
fn read_as_they_arrived(draft: &Draft<'_>) -> HashSet<SlotId> {
    let mut slots = HashSet::new();
    for (_, task) in draft.tasks() {
        if let Op::Dequantize(Dequantize { parts }) = &task.op {
            slots.extend(parts.iter().filter(|part| part.own.is_some()).map(|part| part.from));
        }
    }
    slots
}
