//! The identity of a checkpoint, as a number.
//!
//! Law: processes with the same checkpoint have the same number, and others do not ([`Digest`]). It covers what an
//! import reads: planes where there is no master that they follow from, and no notes, which are the
//! user's. An import finds weights and carried buffers by name, so their order is nothing that checkpoints
//! differ in. Before every list stands its length, and before what may be missing whether it is there, so no two
//! checkpoints are added alike.

use std::collections::BTreeSet;

use super::{Carried, Checkpoint, OptimizerIdentity, PlanesState, Taken, WeightState};
use warpweft_base::digest::Digest;

/// A number for a choice of weights.
pub(super) fn of_taken(taken: &Taken) -> u64 {
    let names: BTreeSet<&str> = taken.iter().map(String::as_str).collect();
    names.into_iter().map(str::as_bytes).collect::<Digest>().short()
}

impl Checkpoint {
    /// The number where all of it is imported, or the weights in `taken`; never 0.
    pub(crate) fn digest_of(&self, taken: Option<&Taken>) -> u64 {
        (self.digest() ^ taken.map_or(0, of_taken)).max(1)
    }

    /// The number; never 0.
    pub(crate) fn digest(&self) -> u64 {
        let mut digest = Digest::default();
        digest.add(&self.optimizer_step.to_le_bytes());
        digest.add(
            self.optimizer_identity
                .as_ref()
                .map_or_else(String::new, OptimizerIdentity::to_string)
                .as_bytes(),
        );
        let mut weights: Vec<&WeightState> = self.weights.iter().collect();
        weights.sort_by_key(|weight| &weight.name);
        count(&mut digest, weights.len());
        weights.into_iter().for_each(|weight| add_weight(&mut digest, weight));
        match &self.carried {
            Carried::Zeros => digest.add(b"zeros"),
            Carried::Buffers(buffers) => {
                let mut buffers: Vec<_> = buffers.iter().collect();
                buffers.sort_by_key(|buffer| &buffer.name);
                count(&mut digest, buffers.len());
                for buffer in buffers {
                    digest.add(buffer.name.as_bytes());
                    count(&mut digest, buffer.ranks.len());
                    buffer.ranks.iter().for_each(|rank| digest.add(rank));
                }
            }
        }
        digest.short().max(1)
    }
}

fn add_weight(digest: &mut Digest, weight: &WeightState) {
    digest.add(weight.name.as_bytes());
    digest.add(weight.format.to_string().as_bytes());
    digest.add(weight.shape.to_string().as_bytes());
    digest.add(bytemuck::cast_slice(&weight.master));
    // Two lists at least, which may be empty.
    for list in 0..weight.states.len().max(2) {
        digest.add(weight.states.get(list).map_or(&[][..], |values| bytemuck::cast_slice(values)));
    }
    count(digest, usize::from(weight.frozen.is_some()));
    if let Some(frozen) = weight.frozen {
        digest.add(&frozen.number().to_le_bytes());
    }
    // Without a master an import reads the planes.
    let planes = if weight.master.is_empty() { &weight.planes[..] } else { &[] };
    count(digest, planes.len());
    if !planes.is_empty() {
        digest.add(&weight.tensor_scale.to_le_bytes());
    }
    for PlanesState { orientation, planes, .. } in planes {
        digest.add(&[*orientation as u8]);
        count(digest, planes.len());
        planes.iter().for_each(|plane| digest.add(plane));
    }
    count(digest, usize::from(weight.delayed.is_some()));
    if let Some(delayed) = &weight.delayed {
        digest.add(&delayed.scale.to_le_bytes());
        digest.add(bytemuck::cast_slice(&delayed.history));
    }
}

fn count(digest: &mut Digest, count: usize) {
    digest.add(&(count as u64).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::CarriedBuffer;
    use super::*;
    use warpweft_format::{DelayedState, Format, Orientation, Shape};

    fn weight(name: &str) -> WeightState {
        WeightState {
            name: name.into(),
            shape: Shape { rows: 1, cols: 2 },
            format: Format::F32,
            master: vec![1.0, 2.0],
            states: vec![vec![0.5, 0.25], vec![0.125, 0.0]],
            planes: Vec::new(),
            tensor_scale: 1.0,
            delayed: None,
            frozen: None,
        }
    }

    /// A frozen weight of an export, which says the same number of all its planes.
    fn frozen(tensor_scale: f32, scale: &[u8]) -> WeightState {
        let planes = vec![b"1".to_vec(), scale.to_vec()];
        let planes = vec![PlanesState { orientation: Orientation::Rowwise, specs: Vec::new(), planes }];
        let frozen = "00000000000000a7".parse().ok();
        let (master, states) = Default::default();
        WeightState { master, states, planes, tensor_scale, frozen, ..weight("a") }
    }

    fn buffer(name: &str, ranks: &[&[u8]]) -> CarriedBuffer {
        CarriedBuffer { name: name.into(), ranks: ranks.iter().map(|rank| rank.to_vec()).collect() }
    }

    fn checkpoint() -> Checkpoint {
        Checkpoint {
            optimizer_step: 3,
            optimizer_identity: Some(OptimizerIdentity::Adam),
            weights: vec![weight("a"), weight("b")],
            carried: Carried::Buffers(vec![buffer("c", &[b"1", b"2"]), buffer("d", &[b"3"])]),
            notes: [("seed".to_owned(), "17".to_owned())].into(),
        }
    }

    #[test]
    fn what_an_import_does_not_read_and_the_order_of_what_it_finds_by_name_change_no_number() {
        let mut other = checkpoint();
        other.weights.reverse();
        if let Carried::Buffers(buffers) = &mut other.carried {
            buffers.reverse();
        }
        other.notes.clear();
        other.weights[0].tensor_scale = 2.0;
        assert_eq!(other.digest(), checkpoint().digest());
    }

    #[test]
    fn every_change_of_what_an_import_reads_is_another_number() {
        let changes: [fn(&mut Checkpoint); 23] = [
            |_| {},
            |other| other.optimizer_step = 4,
            |other| other.optimizer_identity = None,
            |other| other.optimizer_identity = Some(OptimizerIdentity::Unnamed),
            |other| other.weights.truncate(1),
            |other| other.weights[0].name = "e".into(),
            |other| other.weights[0].format = Format::Bf16,
            |other| other.weights[0].shape = Shape { rows: 2, cols: 1 },
            |other| other.weights[0].master[1] = 3.0,
            |other| other.weights[0].states[0][0] = 3.0,
            |other| other.weights[0].states[1][0] = 3.0,
            // The same values, as another list.
            |other| other.weights[0].states.reverse(),
            |other| drop(other.weights[0].states.pop()),
            |other| other.weights[0].states.push(vec![0.0, 0.0]),
            |other| other.weights[0].delayed = Some(DelayedState { scale: 1.0, history: vec![2.0] }),
            |other| other.weights[0].frozen = "00000000000000a7".parse().ok(),
            |other| other.weights[0] = frozen(1.0, b"2"),
            |other| other.weights[0] = frozen(2.0, b"2"),
            |other| other.weights[0] = frozen(1.0, b"3"),
            |other| other.carried = Carried::Zeros,
            |other| other.carried = Carried::Buffers(Vec::new()),
            |other| {
                other.carried = Carried::Buffers(vec![buffer("c", &[b"1"]), buffer("d", &[b"2", b"3"])]);
            },
            // What would run together if nothing said how many ranks a buffer has.
            |other| other.carried = Carried::Buffers(vec![buffer("c", &[b"1", b"2", b"d", b"3"])]),
        ];
        let numbers = changes.map(|change| {
            let mut other = checkpoint();
            change(&mut other);
            other.digest()
        });
        for (place, number) in numbers.iter().enumerate() {
            assert!(!numbers[..place].contains(number), "change {place}");
        }
    }
}
