//! CK-4: flipped bits on the disk are noticed, wherever they are.

use std::os::unix::fs::FileExt;
use std::path::Path;

use safetensors::SafeTensors;
use warpweft_format::Format;
use warpweft_session::checkpoint::{CheckpointError, PartFiles};
use warpweft_session::session::{SessionError, block_on};

use super::carried::counting;
use super::cuts::start;
use super::{files, notes, part, without_planes};

/// Writes a byte of a file.
fn put(path: &Path, at: usize, byte: u8) {
    std::fs::File::options().write(true).open(path).unwrap().write_all_at(&[byte], at as u64).unwrap();
}

/// The name of the tensor that has a byte of a file; none has those of its header.
fn tensor_at(bytes: &[u8], at: usize) -> Option<String> {
    let (length, header) = SafeTensors::read_metadata(bytes).unwrap();
    let at = at.checked_sub(8 + length)?;
    let tensors = header.tensors();
    let found = tensors.iter().find(|(_, about)| (about.data_offsets.0..about.data_offsets.1).contains(&at));
    found.map(|(name, _)| name.clone())
}

/// CK-4. Of the index, of headers and of tensors; no change of one bit is without meaning.
#[test]
fn every_bit_that_changes_in_a_part_or_in_the_index_is_refused_with_its_file_and_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let parts = PartFiles::new(folder.path());
    let mut session = start(&[(3, 2, Format::F32, true), (1, 2, Format::F32, false)], (2, 1));
    block_on(session.step("train")).unwrap();
    block_on(session.save_parts(&parts, &notes(&[("seed", "17")]))).unwrap();
    let whole = parts.load().unwrap();
    for path in [folder.path().join("checkpoint.json"), part(folder.path(), 0)] {
        let (name, bytes) = (path.file_name().unwrap().to_str().unwrap(), std::fs::read(&path).unwrap());
        for (at, byte) in bytes.iter().enumerate() {
            let tensor = if name.ends_with(".json") { None } else { tensor_at(&bytes, at) };
            for bit in 0..8 {
                put(&path, at, byte ^ 1 << bit);
                let Err(error) = parts.load() else { panic!("bit {bit} of byte {at} of {name}") };
                let said = error.to_string();
                let CheckpointError::Parts { source } = error else { panic!("{said}") };
                assert!(said.contains(name), "{said}");
                if let Some(tensor) = &tensor {
                    assert!(matches!(*source, CheckpointError::Damaged { .. }), "{said}");
                    assert!(
                        said.contains(&format!("`{tensor}`")) && said.contains("copy it again"),
                        "{said}"
                    );
                }
            }
            put(&path, at, *byte);
        }
    }
    assert!(parts.load().unwrap() == whole);
}

/// CK-4, CK-2. One bit of every tensor of every part, carried buffers among them.
#[test]
fn a_bit_that_changed_in_any_tensor_is_refused_by_an_import_which_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let parts = PartFiles::new(folder.path());
    let mut session = block_on(counting(2, 1, "counts"));
    block_on(session.step("train")).unwrap();
    block_on(session.save_parts(&parts, &notes(&[]))).unwrap();
    block_on(session.step("train")).unwrap();
    let before = block_on(session.export()).unwrap();
    let mut names = Vec::new();
    for rank in 0..2 {
        let path = part(folder.path(), rank);
        let bytes = std::fs::read(&path).unwrap();
        let (length, header) = SafeTensors::read_metadata(&bytes).unwrap();
        for (name, about) in header.tensors() {
            let at = 8 + length + (about.data_offsets.0 + about.data_offsets.1) / 2;
            put(&path, at, bytes[at] ^ 1);
            let error = block_on(session.import_parts(&parts)).unwrap_err();
            let said = error.to_string();
            let SessionError::Import { source: Some(CheckpointError::Damaged { path: found, .. }), .. } =
                &error
            else {
                panic!("{said}")
            };
            assert!(*found == path && said.contains(&format!("rank {rank}: ")), "{said}");
            assert!(said.contains(&format!("`{name}` are not those that were saved")), "{said}");
            assert!(block_on(session.export()).unwrap() == before, "{said}");
            put(&path, at, bytes[at]);
            names.push(name);
        }
    }
    names.sort();
    names.dedup();
    let expected = ["carried.counts.rank0", "carried.counts.rank1", "w.exp_avg", "w.exp_avg_sq", "w.master"];
    assert_eq!(names, expected);
    block_on(session.import_parts(&parts)).unwrap();
    assert!(without_planes(block_on(session.export()).unwrap()) == parts.load().unwrap());
}

/// CK-4: a rank compares what it reads, and is not kept by what it does not need.
#[test]
fn what_nobody_reads_is_in_nobodys_way() {
    let folder = tempfile::tempdir().unwrap();
    let parts = PartFiles::new(folder.path());
    let mut session = block_on(counting(1, 1, "counts"));
    block_on(session.step("train")).unwrap();
    block_on(session.save_parts(&parts, &notes(&[]))).unwrap();
    let path = files(folder.path()).pop().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    // Carried bytes come last.
    put(&path, bytes.len() - 1, bytes[bytes.len() - 1] ^ 1);
    assert!(block_on(session.import_parts(&parts)).is_err() && parts.load().is_err());
    block_on(session.import_parts(&parts.clone().carried_zeros())).unwrap();
    assert!(parts.carried_zeros().load().is_ok());
}
