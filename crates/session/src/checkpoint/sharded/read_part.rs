//! Reads one file of a sharded checkpoint and checks its digests.
//!
//! Law: a part that was opened is the one that was requested, of this save, this optimizer step and this rank, with all
//! of its bytes and the header that was saved. A tensor of it is read only if it has the type and shape that the index
//! says; so nothing is read twice or beyond its end. What was read is what was saved: blocks are compared with their
//! digests before anybody sees them (CK-4). Its file is open only while something of it is read, so a checkpoint may
//! have more parts than a process may open files. Parts of version 1 have no digests.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::PathBuf;

use safetensors::tensor::Dtype;

use super::block_digests::{self, BLOCK};
use super::index::Index;
use super::write_part::DIGESTS;
use crate::checkpoint::ranks::Alive;
use crate::checkpoint::safetensors::{TensorEntry, TensorFile, TensorFileError};
use crate::checkpoint::{CheckpointError, FileTask};
use warpweft_base::errors::shown;
use warpweft_base::id::RankId;
use warpweft_base::whole_file::regular;

/// A part whose header was read.
#[derive(Debug)]
pub(super) struct Part {
    path: PathBuf,
    tensors: HashMap<String, Held>,
    /// Of the blocks of all tensors in the order of the file. Parts of version 1 have none.
    digests: Option<Vec<u64>>,
}

/// A tensor of a part.
#[derive(Debug)]
struct Held {
    entry: TensorEntry,
    /// Its first byte in the file.
    begin: u64,
    /// Blocks of the tensors before it.
    first_block: usize,
}

/// A tensor that has the type and shape that it should have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'part> {
    part: &'part Part,
    held: &'part Held,
}

impl Part {
    /// Opens the file `path`, which must be the rank's part of this index, with the header that it has a digest of.
    ///
    /// # Errors
    /// [`CheckpointError`] when it is missing, torn, or another.
    pub(super) fn open(path: PathBuf, index: &Index, rank: RankId) -> Result<Self, CheckpointError> {
        let digest = index.digest(rank);
        let damaged = |what: &str| {
            CheckpointError::damaged(&path, format!("{what}; copy it again, or load another checkpoint"))
        };
        let (header, file, text) = TensorFile::open(&path).map_err(|error| match error {
            TensorFileError::File(source) if source.kind() == ErrorKind::NotFound => {
                let reason =
                    format!("the part of {rank} is missing; copy it there, or load another checkpoint");
                CheckpointError::Missing { path: path.clone(), reason }
            }
            TensorFileError::File(source) if source.kind() != ErrorKind::InvalidInput => {
                CheckpointError::file(&path, FileTask::Read, source)
            }
            error => damaged(&format!("the part of {rank} is not whole: {error}")),
        })?;
        let about = header.metadata();
        let other = |(key, expected): &(&str, String)| about.get(*key) != Some(expected);
        if let Some((key, expected)) = index.about(rank).into_iter().find(other) {
            let found = about.get(key);
            let found = found.map_or_else(|| "nothing".to_owned(), |text| format!("`{}`", shown(text)));
            let reason = format!(
                "it is not the part of {rank} of this checkpoint: its `{key}` is {found}, and `{expected}` in the index; \
                 put back the file that was saved with it, or load another checkpoint"
            );
            return Err(CheckpointError::Foreign { path, reason });
        }
        if digest.is_some_and(|digest| digest != block_digests::digest(&text)) {
            return Err(damaged(&format!("the header of the part of {rank} is not the one that was saved")));
        }
        let (mut tensors, mut count) = (HashMap::new(), 0);
        for entry in header.tensors() {
            let held = Held { entry: entry.clone(), begin: file.begin(entry), first_block: count };
            count += block_digests::count(entry.bytes() as usize);
            tensors.insert(entry.name.clone(), held);
        }
        let listed = about.get(DIGESTS).and_then(|listed| block_digests::digests(listed, count));
        if digest.is_some() && listed.is_none() {
            return Err(damaged(&format!("its `{DIGESTS}` are not those of {count} blocks")));
        }
        let digests = listed.filter(|_| digest.is_some());
        Ok(Self { path, tensors, digests })
    }

    /// A tensor, which must be of this type and shape.
    pub(super) fn tensor(
        &self,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
    ) -> Result<Found<'_>, CheckpointError> {
        match self.tensors.get(name) {
            Some(held) if held.entry.dtype == dtype && held.entry.shape == shape => {
                Ok(Found { part: self, held })
            }
            found => {
                let what = found.map_or_else(
                    || "is not there".to_owned(),
                    |held| format!("is {} {:?}", held.entry.dtype, held.entry.shape),
                );
                Err(self.damaged(format!(
                    "`{}` {what} and should be {dtype} {shape:?}; load a checkpoint that is not damaged",
                    shown(name)
                )))
            }
        }
    }

    /// The extent of a list in f32, which is no longer than `most`.
    pub(super) fn length(&self, name: &str, most: usize) -> Result<usize, CheckpointError> {
        match self.tensors.get(name).map(|held| (held.entry.dtype, &held.entry.shape[..])) {
            Some((Dtype::F32, [length])) if *length <= most => Ok(*length),
            _ => Err(self.damaged(format!(
                "`{name}` is no list of up to {most} F32; load a checkpoint that is not damaged"
            ))),
        }
    }

    /// Why reading it ended.
    pub(super) fn unread(&self, source: io::Error) -> CheckpointError {
        CheckpointError::file(&self.path, FileTask::Read, source)
    }

    fn damaged(&self, reason: String) -> CheckpointError {
        CheckpointError::damaged(&self.path, reason)
    }
}

impl Found<'_> {
    /// Fills `bytes` from the tensor's byte `from` on, once the blocks that they lie in were compared with their
    /// digests.
    ///
    /// # Errors
    /// [`CheckpointError::File`]; [`CheckpointError::Damaged`] for a block that is not as it was saved.
    pub(super) fn read(
        self,
        from: usize,
        bytes: &mut [u8],
        alive: &Alive<'_>,
    ) -> Result<(), CheckpointError> {
        let failed = |source| self.part.unread(source);
        let held = self.held.entry.bytes() as usize;
        if held.checked_sub(from).is_none_or(|held| held < bytes.len()) {
            return Err(self.part.damaged(format!(
                "`{}` ends before its rows; load a checkpoint that is not damaged",
                shown(&self.held.entry.name)
            )));
        }
        let mut file = regular::open(&self.part.path).map_err(failed)?;
        let first = from / BLOCK;
        file.seek(SeekFrom::Start(self.held.begin + (first * BLOCK) as u64)).map_err(failed)?;
        let (mut rest, mut skipped, mut edge) = (bytes, from % BLOCK, Vec::new());
        for number in first..block_digests::count(held) {
            if rest.is_empty() {
                break;
            }
            let length = (held - number * BLOCK).min(BLOCK);
            let wanted = (length - skipped).min(rest.len());
            let (piece, more) = rest.split_at_mut(wanted);
            if wanted == length {
                file.read_exact(piece).map_err(failed)?;
                self.check(number, piece)?;
            } else {
                edge.resize(length, 0);
                file.read_exact(&mut edge).map_err(failed)?;
                self.check(number, &edge)?;
                piece.copy_from_slice(&edge[skipped..skipped + wanted]);
            }
            alive().map_err(failed)?;
            (rest, skipped) = (more, 0);
        }
        Ok(())
    }

    fn check(self, number: usize, block: &[u8]) -> Result<(), CheckpointError> {
        let Some(digests) = &self.part.digests else { return Ok(()) };
        if digests.get(self.held.first_block + number) == Some(&block_digests::digest(block)) {
            return Ok(());
        }
        let begin = number * BLOCK;
        Err(self.part.damaged(format!(
            "bytes {begin} to {} of `{}` are not those that were saved, so the disk or a copy changed them; copy it \
             again, or load another checkpoint",
            begin + block.len(),
            shown(&self.held.entry.name)
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::ranks::SaveId;
    use crate::checkpoint::safetensors::tensor::{Content, Tensor};
    use crate::checkpoint::sharded::write_part;

    fn open(path: &std::path::Path, digest: Option<u64>) -> Part {
        let mut index = Index::bare(SaveId::of(&[1]), 1);
        index.digests = block_digests::text(digest.as_slice());
        Part::open(path.to_owned(), &index, RankId::new(0)).unwrap()
    }

    /// CK-4: rows are read by the blocks that they lie in, and by no others.
    #[test]
    fn any_bytes_of_a_tensor_are_read_and_a_block_that_changed_is_refused_by_who_reads_of_it_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("part");
        let bytes: Vec<u8> = (0..2 * BLOCK + BLOCK / 2).map(|at| ((at * at) >> 9) as u8).collect();
        let tensor = |name: &str, bytes: &[u8]| Tensor {
            name: name.to_owned(),
            dtype: Dtype::U8,
            shape: vec![bytes.len()],
            content: Content::Bytes(bytes.to_vec().into()),
        };
        // The tensor before it ends within a block of its own.
        let tensors = vec![tensor("a", &bytes[..BLOCK + 9]), tensor("b", &bytes)];
        let mut file = std::fs::File::create(&path).unwrap();
        let digest =
            write_part::write(&tensors, Index::bare(SaveId::of(&[1]), 1).about(RankId::new(0)), &mut file)
                .unwrap();

        let edges =
            [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, bytes.len() - 1, bytes.len()];
        let ranges =
            || edges.into_iter().flat_map(|from| edges.map(|to| (from, to))).filter(|(from, to)| from < to);
        let read = |part: &Part, (from, to): (usize, usize)| {
            let mut read = vec![0; to - from];
            let tensor = part.tensor("b", Dtype::U8, &[bytes.len()]).unwrap();
            tensor.read(from, &mut read, &|| Ok(())).map(|()| read)
        };
        let part = open(&path, Some(digest));
        ranges().for_each(|(from, to)| assert!(read(&part, (from, to)).unwrap() == bytes[from..to]));

        let mut changed = std::fs::read(&path).unwrap();
        let end = changed.len();
        changed[end - bytes.len() + BLOCK + 7] ^= 16;
        std::fs::write(&path, changed).unwrap();
        let part = open(&path, Some(digest));
        for (from, to) in ranges() {
            match read(&part, (from, to)) {
                Ok(read) => assert!((to <= BLOCK || from >= 2 * BLOCK) && read == bytes[from..to]),
                Err(error) => {
                    let said = error.to_string();
                    assert!(from < 2 * BLOCK && to > BLOCK, "{said}");
                    assert!(matches!(error, CheckpointError::Damaged { .. }), "{said}");
                    assert!(said.contains("bytes 1048576 to 2097152 of `b`"), "{said}");
                }
            }
        }
        // Without digests, as in version 1, it is not noticed.
        let part = open(&path, None);
        assert!(ranges().all(|range| read(&part, range).is_ok()));
        assert!(
            read(&part, (0, bytes.len() + 1)).is_err()
                && read(&part, (bytes.len() + 1, bytes.len() + 2)).is_err()
        );
    }
}
