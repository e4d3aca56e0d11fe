//! The index of a sharded checkpoint: the file that makes one of the parts in a folder.
//!
//! Law: it is written last and never replaced. It says how every weight is cut, so what a rank needs is found
//! without opening the parts that it does not need: those with its rows, and, for delayed scaling, that of rank 0.
//! (Whoever completes a save opens all of them.) What was read is what was written, by the digest at its end (CK-4).
//! It is valid: every name is there once, and the parts of a weight are all of it, each value once.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::block_digests;
use super::indexed_cut::{IndexedCut, IndexedExpert};
use crate::checkpoint::listed::once;
use crate::checkpoint::ranks::SaveId;
use crate::checkpoint::{CheckpointError, FileTask, FrozenDigest, OptimizerIdentity, hexadecimal};
use warpweft_base::digest::Digest;
use warpweft_base::errors::shown;
use warpweft_base::id::RankId;
use warpweft_base::whole_file::regular;
use warpweft_format::{Format, Shape};
use warpweft_plan::model::{Mesh, ShardLayout};

/// The name of the file.
pub(super) const NAME: &str = "checkpoint.json";

/// What is said of an index without a byte. Where files have one name only, it takes its name before its content.
pub(super) const EMPTY: &str = "it is empty, as a save leaves it that was killed at its end, and so no checkpoint; \
                                remove this file to save there, or name another folder";

/// More than an index takes: 300 bytes for each of 600,000 weights, and what a user notes beside them.
pub(super) const MOST_BYTES: u64 = 1 << 28;

/// What is said of a larger one.
pub(super) const TOO_LARGE: &str =
    "an index has at most 256 MiB; load another checkpoint, or keep shorter notes with the one that is saved";

/// The latest version. Earlier ones are read:
///
/// - 1: parts do not say of which optimizer step they are, and nothing has a digest.
/// - 2: parts have the masters of frozen weights.
/// - 3: no weight is cut by tensor parallelism. It is written where none is.
/// - 4: none is cut segment by segment. It is written where none is.
/// - 5: replicas have no slices of shards, and none is of an expert that some ranks alone have. It is written where
///   that is so.
pub(super) const VERSION: u32 = 6;

/// The version that is written of these weights.
pub(super) fn version_of<'a>(layouts: impl Iterator<Item = &'a ShardLayout>) -> u32 {
    let version = |shard: &ShardLayout| match shard.tensor {
        _ if shard.slices > 1 || shard.expert.is_some() => VERSION,
        Some(cut) if !cut.segments.is_none() => 5,
        _ if shard.owners() > shard.ranks => 4,
        _ => 3,
    };
    layouts.map(version).max().unwrap_or(3)
}

/// What the file says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Index {
    /// The version.
    pub(super) warpweft_parts: u32,
    pub(super) save: SaveId,
    pub(super) optimizer_step: u32,
    /// What updated the weights; not said by every index of version 2, nor by those before.
    #[serde(default, alias = "updated_by", skip_serializing_if = "Option::is_none")]
    pub(super) optimizer_identity: Option<OptimizerIdentity>,
    /// Ranks that saved, one part each.
    pub(super) ranks: u32,
    /// Replicas of the model that they held; not said by indices of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) replicas: Option<u32>,
    /// Ranks of their tensor-parallel groups, where they had some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tensor: Option<u32>,
    /// Optimizer instances that kept slices of state, where there were several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) optimizer_instances: Option<u32>,
    /// Ranks of the blocks in which they summed gradients; none where they summed in rank order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) levels: Vec<u32>,
    pub(super) weights: Vec<IndexedWeight>,
    pub(super) carried: Vec<IndexedBuffer>,
    pub(super) notes: BTreeMap<String, String>,
    /// Those of the headers of all parts, in rank order; none in version 1.
    #[serde(default)]
    pub(super) digests: String,
}

/// One weight. Its first `parts` ranks have its rows, `rows_per_part` each, the last ones fewer or none. Where tensor
/// parallelism cuts it, that is so of each part of its [`IndexedCut`]. Where replicas have `slices` of these rows, so
/// many ranks have them, one of each replica, in the order of the replicas.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct IndexedWeight {
    pub(super) name: String,
    pub(super) format: Format,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) parts: u32,
    pub(super) rows_per_part: usize,
    /// How tensor parallelism cut it before its rows were, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cut: Option<IndexedCut>,
    /// How many replicas had slices of the rows of a part.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(super) slices: u32,
    /// Which of the ranks have it, of an expert that not all have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expert: Option<IndexedExpert>,
    /// Lists of state beside the master: two moments, none of a frozen weight, or what a custom optimizer kept.
    #[serde(rename = "moments", with = "lists")]
    pub(super) lists: u8,
    /// Has it a delayed scale and an amax history? They are in the part of rank 0.
    pub(super) delayed: bool,
    /// The scale group that it was quantized with, if others shared its scale of the tensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) scale_group: Option<String>,
    /// Of a frozen weight, the digest of its values, which are in no part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) frozen: Option<FrozenDigest>,
}

/// One carried buffer, of which every rank has as many bytes of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct IndexedBuffer {
    pub(super) name: String,
    pub(super) bytes: usize,
}

impl IndexedWeight {
    /// Its shape.
    pub(super) const fn shape(&self) -> Shape {
        Shape { rows: self.rows, cols: self.cols }
    }

    /// Which block is in the part of which rank.
    pub(super) fn layout(&self) -> ShardLayout {
        let whole = self.shape();
        let shape = self.cut.map_or(whole, |cut| cut.part(whole));
        let (rows_per_rank, ranks, slices) = (self.rows_per_part, self.parts, self.slices);
        let tensor = self.cut.map(|cut| cut.tensor(whole));
        ShardLayout { shape, rows_per_rank, ranks, tensor, expert: None, slices }
    }

    /// The rank that has what the layout gives to `rank`.
    pub(super) fn rank(&self, rank: RankId) -> RankId {
        let among = |expert: IndexedExpert| {
            RankId::new(rank.number().saturating_mul(expert.ranks).saturating_add(expert.place))
        };
        self.expert.map_or(rank, among)
    }

    /// Of how many ranks some have it; none where a place is beyond them.
    fn owners(&self) -> u32 {
        let ranks =
            self.expert.map_or(1, |IndexedExpert { ranks, place }| if place < ranks { ranks } else { 0 });
        self.layout().owners().saturating_mul(ranks)
    }
}

impl Index {
    /// An index without weights, of a save by `ranks` ranks.
    pub(super) const fn bare(save: SaveId, ranks: u32) -> Self {
        Self {
            warpweft_parts: VERSION,
            save,
            optimizer_step: 0,
            optimizer_identity: None,
            ranks,
            replicas: None,
            tensor: None,
            optimizer_instances: None,
            levels: Vec::new(),
            weights: Vec::new(),
            carried: Vec::new(),
            notes: BTreeMap::new(),
            digests: String::new(),
        }
    }

    /// Where it is kept.
    pub(super) fn path(folder: &Path) -> PathBuf {
        folder.join(NAME)
    }

    /// Is its name taken? A link that leads nowhere, and what is no valid index, is in the way as well.
    pub(super) fn is_there(folder: &Path) -> bool {
        std::fs::symlink_metadata(Self::path(folder)).is_ok()
    }

    /// Reads it, with a number that says which it is.
    ///
    /// # Errors
    /// [`CheckpointError`] when it is not there or not valid.
    pub(super) fn read(folder: &Path) -> Result<(Self, u64), CheckpointError> {
        let path = Self::path(folder);
        let bytes = regular::read(&path, MOST_BYTES).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound if folder.is_dir() => CheckpointError::Missing {
                path: folder.to_owned(),
                reason: format!(
                    "the folder has no {NAME}, with which every save into parts ends: it is no such checkpoint, or its \
                     save did not come to its end; load another one"
                ),
            },
            _ => CheckpointError::file(&path, FileTask::Read, source),
        })?;
        let index = Self::parsed(&path, &bytes)?;
        index.check().map_err(|reason| CheckpointError::damaged(path, reason))?;
        Ok((index, Digest::from_iter([bytes.as_slice()]).short()))
    }

    fn parsed(path: &Path, bytes: &[u8]) -> Result<Self, CheckpointError> {
        if bytes.is_empty() {
            return Err(CheckpointError::damaged(path, EMPTY));
        }
        #[derive(Deserialize)]
        struct Version {
            warpweft_parts: u32,
        }
        let wrong = |error: serde_json::Error| {
            let what = shown(error);
            let what = format!("it is no index of a sharded checkpoint ({what})");
            CheckpointError::damaged(path, format!("{what}; load one that `Session::save_parts` wrote"))
        };
        let Version { warpweft_parts: version } = serde_json::from_slice(bytes).map_err(wrong)?;
        if !(1..=VERSION).contains(&version) {
            return Err(CheckpointError::Version { path: path.to_owned(), version, known: VERSION });
        }
        // None without a digest has the words before one.
        let is_unsound = if version > 1 { !is_sealed(bytes) } else { seal(bytes).is_some() };
        if is_unsound {
            let what = "it is not as it was saved, for the digest at its end is not that of what stands before it; \
                        copy it again, or load another checkpoint";
            return Err(CheckpointError::damaged(path, what));
        }
        serde_json::from_slice(bytes).map_err(wrong)
    }

    /// Does it describe a checkpoint?
    fn check(&self) -> Result<(), String> {
        if !(1..=Mesh::MAX_RANKS).contains(&self.ranks) {
            return Err(format!(
                "it is of {} ranks, and 1 to {} can be; load a checkpoint that is not damaged",
                self.ranks,
                Mesh::MAX_RANKS
            ));
        }
        if self.warpweft_parts > 1 && block_digests::digests(&self.digests, self.ranks as usize).is_none() {
            return Err(format!(
                "its `digests` are not those of {} parts; load a checkpoint that is not damaged",
                self.ranks
            ));
        }
        once("weight", self.weights.iter().map(|weight| &weight.name))
            .and_then(|()| once("carried buffer", self.carried.iter().map(|buffer| &buffer.name)))
            .map_err(|reason| format!("{reason}; load a checkpoint that is not damaged"))?;
        let is_covered = |weight: &&IndexedWeight| {
            let layout = weight.layout();
            let is_even = weight.cut.is_none_or(|cut| cut.is_even(weight.shape()));
            let is_sharded = weight.rows_per_part > 0 && (1..=self.ranks).contains(&weight.owners());
            let is_sharded = is_sharded && weight.rows_per_part.is_multiple_of(layout.slices.max(1) as usize);
            let Shape { rows, cols } = layout.shape;
            is_even && is_sharded && layout.padded_rows() >= rows && rows > 0 && cols > 0
        };
        match self.weights.iter().find(|weight| !is_covered(weight)) {
            None => Ok(()),
            Some(weight) => Err(format!(
                "{} parts of {} rows{} are not `{}`, which is {}; load a checkpoint that is not damaged",
                weight.parts,
                weight.rows_per_part,
                weight.cut.map_or_else(String::new, |cut| format!(
                    ", for each of {} cuts of its {},",
                    cut.ranks, cut.of
                )),
                shown(&weight.name),
                weight.shape()
            )),
        }
    }

    /// The content of its file.
    ///
    /// # Errors
    /// It has no JSON.
    pub(super) fn text(&self) -> serde_json::Result<Vec<u8>> {
        let text = serde_json::to_vec_pretty(self)?;
        Ok(sealed(text.strip_suffix(END).unwrap_or(&text)))
    }

    /// That of the header of a rank's part; `None` in version 1.
    pub(super) fn digest(&self, rank: RankId) -> Option<u64> {
        if self.warpweft_parts > 1 { block_digests::digest_at(&self.digests, rank.index()) } else { None }
    }

    /// The metadata of a rank's part. Those of version 1 do not know their step.
    pub(super) fn about(&self, rank: RankId) -> Vec<(&'static str, String)> {
        let mut about = vec![
            ("warpweft_part", self.warpweft_parts.to_string()),
            ("save", self.save.to_string()),
            ("rank", rank.number().to_string()),
            ("ranks", self.ranks.to_string()),
        ];
        if self.warpweft_parts > 1 {
            about.push(("optimizer_step", self.optimizer_step.to_string()));
        }
        about
    }

    /// The file of a rank's part.
    pub(super) fn part(&self, folder: &Path, rank: RankId) -> PathBuf {
        part(folder, self.save, rank, self.ranks)
    }
}

/// What the file ends with.
const END: &[u8] = b"\n}";

/// What stands before the digest at its end. No text in JSON has a line break, so it is there once.
const SEAL: &[u8] = b",\n  \"digest\": \"";

/// An index that lacks its end, with the digest of all before and the end.
fn sealed(body: &[u8]) -> Vec<u8> {
    let digest = block_digests::text(&[block_digests::digest(body)]);
    [body, SEAL, digest.as_bytes(), b"\"", END].concat()
}

/// Is every byte the one that was written?
fn is_sealed(bytes: &[u8]) -> bool {
    seal(bytes).is_some_and(|place| sealed(&bytes[..place]) == bytes)
}

/// Where what stands before the digest begins.
fn seal(bytes: &[u8]) -> Option<usize> {
    bytes.windows(SEAL.len()).rposition(|found| found == SEAL)
}

/// The file of a rank's part. No other save has one of its name, so none is ever written over another.
pub(super) fn part(folder: &Path, save: SaveId, rank: RankId, ranks: u32) -> PathBuf {
    folder.join(format!("rank-{:05}-of-{ranks:05}-{save}.safetensors", rank.number()))
}

/// Is it the name of a part?
pub(super) fn is_part(name: &str) -> bool {
    let fields = || name.strip_prefix("rank-")?.strip_suffix(".safetensors")?.split_once("-of-");
    let Some((rank, (ranks, save))) = fields().and_then(|(rank, rest)| Some((rank, rest.split_once('-')?)))
    else {
        return false;
    };
    let is_number = |digits: &str| digits.parse::<u32>().is_ok();
    is_number(rank) && is_number(ranks) && hexadecimal::number(save).is_some()
}

/// What an index that says nothing of slices means.
const fn one() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_one(slices: &u32) -> bool {
    *slices == 1
}

/// How many lists of state: two are `true` and none `false`, as of Adam's moments, which were all there were; else the
/// number.
mod lists {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;
    use warpweft_plan::policy::CUSTOM_STATES;

    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Lists {
        Moments(bool),
        Number(u8),
    }

    pub(super) fn serialize<S: Serializer>(lists: &u8, serializer: S) -> Result<S::Ok, S::Error> {
        match lists {
            0 => serializer.serialize_bool(false),
            2 => serializer.serialize_bool(true),
            other => serializer.serialize_u8(*other),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
        match Lists::deserialize(deserializer)? {
            Lists::Moments(moments) => Ok(if moments { 2 } else { 0 }),
            Lists::Number(number) if CUSTOM_STATES.contains(&number) => Ok(number),
            Lists::Number(number) => {
                Err(D::Error::custom(format!("{number} lists of state, of at most {}", CUSTOM_STATES.end())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CK-4: what was saved before there were other rules than Adam is read, and what no session keeps is refused.
    #[test]
    fn lists_of_state_are_two_one_or_none_and_moments_as_they_were_before() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Kept(#[serde(with = "lists")] u8);
        for (text, lists) in [("true", 2), ("false", 0), ("1", 1), ("3", 3)] {
            assert_eq!(serde_json::from_str::<Kept>(text).unwrap(), Kept(lists));
            assert_eq!(serde_json::to_string(&Kept(lists)).unwrap(), text);
        }
        let refused = serde_json::from_str::<Kept>("9").unwrap_err().to_string();
        assert!(refused.contains("9 lists of state, of at most 8"), "{refused}");
        assert!(serde_json::from_str::<Kept>("-1").is_err());
    }
}
