//! Digests of checkpoint files: a changed file is refused, wherever it changed; files of earlier versions are read by
//! the digests they have.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use sha2::{Digest as _, Sha256};
use warpweft_format::{Format, Shape};
use warpweft_session::checkpoint::{
    Carried, CarriedBuffer, Checkpoint, CheckpointStore, FileStore, OptimizerIdentity, WeightState,
};
use warpweft_session::config::Config;
use warpweft_session::session::block_on;
use warpweft_testing::trainer::{Trainer, within_a_minute};

use super::listing;

/// A checkpoint in which everything that a file can say is said: a weight with moments, a frozen one, one of a rule
/// that keeps one list, a carried buffer and notes.
fn checkpoint() -> Checkpoint {
    let weight = |name: &str, lists: usize| WeightState {
        name: name.into(),
        shape: Shape { rows: 1, cols: 2 },
        format: Format::F32,
        master: vec![1.0, 2.0],
        states: vec![vec![0.5, -2.0]; lists],
        planes: Vec::new(),
        tensor_scale: 1.0,
        delayed: None,
        frozen: None,
    };
    Checkpoint {
        optimizer_step: 7,
        optimizer_identity: Some(OptimizerIdentity::Unnamed),
        weights: vec![weight("a", 2), weight("b", 0), weight("c", 1)],
        carried: Carried::Buffers(vec![CarriedBuffer {
            name: "d".into(),
            ranks: vec![vec![1, 2], vec![3, 4]],
        }]),
        notes: BTreeMap::from([("seed".into(), "17".into())]),
    }
}

/// Element type, shape and bytes.
type Held = (Dtype, Vec<usize>, Vec<u8>);

/// A file as it is written, and as the test changes it.
struct Content {
    tensors: BTreeMap<String, Held>,
    about: HashMap<String, String>,
}

impl Content {
    fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let about = SafeTensors::read_metadata(&bytes).unwrap().1.metadata().clone().unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensor = |(name, view): (String, TensorView<'_>)| {
            (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
        };
        Self { tensors: file.tensors().into_iter().map(tensor).collect(), about }
    }

    fn write(&self, path: &Path) {
        let views = self.tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        std::fs::write(path, safetensors::serialize(views, Some(self.about.clone())).unwrap()).unwrap();
    }
}

/// What `FileStore` says of `path`, once it was changed.
fn refused(path: &Path, change: impl FnOnce(&mut Content)) -> String {
    block_on(FileStore::new(path).save(&checkpoint())).unwrap();
    let mut content = Content::read(path);
    content.write(path);
    assert_eq!(block_on(FileStore::new(path).load()).unwrap(), checkpoint(), "written by another's hand");
    change(&mut content);
    content.write(path);
    let said = block_on(FileStore::new(path).load()).unwrap_err().to_string();
    assert!(said.contains("load another checkpoint") && said.contains("run.safetensors"), "{said}");
    said
}

/// Of the length of the header, of the header and of all tensors.
#[test]
fn every_bit_that_changes_in_the_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let store = FileStore::new(&path);
    block_on(store.save(&checkpoint())).unwrap();
    assert_eq!(block_on(store.load()).unwrap(), checkpoint());
    let valid = std::fs::read(&path).unwrap();
    for at in 0..valid.len() {
        for bit in 0..8 {
            let mut damaged = valid.clone();
            damaged[at] ^= 1 << bit;
            std::fs::write(&path, &damaged).unwrap();
            let read = block_on(store.load());
            assert!(read.is_err(), "bit {bit} of byte {at}: {}", String::from_utf8_lossy(&damaged));
        }
    }
}

/// Of planes too, which nobody reads back.
#[test]
fn a_byte_that_changed_in_a_tensor_is_reported_with_its_name() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.safetensors");
        let mut session = Trainer::new(1, Format::NVFP4_2D).start(Config::default(), 2).await.unwrap();
        let store = FileStore::new(&path);
        store.save(&session.export().await.unwrap()).await.unwrap();
        let valid = std::fs::read(&path).unwrap();
        let (length, header) = SafeTensors::read_metadata(&valid).unwrap();
        let tensors: Vec<_> =
            header.tensors().into_iter().map(|(name, info)| (name, info.data_offsets)).collect();
        assert!(tensors.len() >= 4, "{tensors:?}");
        for (name, (begin, end)) in tensors {
            for place in [begin, end - 1] {
                let mut damaged = valid.clone();
                damaged[8 + length + place] ^= 1;
                std::fs::write(&path, damaged).unwrap();
                let error = store.load().await.unwrap_err().to_string();
                assert!(error.contains(&format!("`{name}` is not as it was saved")), "{error}");
            }
        }
    });
}

#[test]
fn what_a_file_says_of_itself_is_refused_when_it_is_not_what_was_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let other = "its metadata are not as they were saved";
    let sets = [
        ("optimizer_step", "8"),
        ("notes", r#"{"seed":"18"}"#),
        ("optimizer_identity", "adam"),
        ("carried", "zeros"),
        ("frozen", "[]"),
        ("one_state", "[]"),
        ("weights", "[]"),
        ("digests", "{}"),
        // As it would be read then, the file has no such digest.
        ("warpweft_checkpoint", "2"),
        ("warpweft_checkpoint", "1"),
        ("added", "by somebody"),
    ];
    for (key, text) in sets {
        let said = refused(&path, |content| {
            content.about.insert(key.into(), text.into());
        });
        assert!(said.contains(other), "{key}: {said}");
    }
    for key in ["notes", "optimizer_identity", "frozen", "one_state", "digests"] {
        let said = refused(&path, |content| drop(content.about.remove(key).unwrap()));
        assert!(said.contains(other), "{key}: {said}");
    }
    let said = refused(&path, |content| drop(content.about.remove("metadata_digest").unwrap()));
    assert!(said.contains("it has no `metadata_digest`"), "{said}");
}

#[test]
fn a_tensor_that_is_missing_too_many_or_of_another_type_or_shape_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let said = refused(&path, |content| drop(content.tensors.remove("a.exp_avg").unwrap()));
    assert!(said.contains("`a.exp_avg` is missing"), "{said}");
    let said = refused(&path, |content| {
        let copy = content.tensors["a.exp_avg"].clone();
        content.tensors.insert("b.exp_avg".into(), copy);
    });
    assert!(said.contains("`b.exp_avg` was not saved with the others"), "{said}");
    let changes: [fn(&mut Held); 2] = [|tensor| tensor.0 = Dtype::U32, |tensor| tensor.1.reverse()];
    for change in changes {
        let said = refused(&path, |content| change(content.tensors.get_mut("a.master").unwrap()));
        assert!(said.contains("`a.master` is not as it was saved"), "{said}");
    }
}

/// Version 2, by the definition that it had: a digest of the bytes of tensors, if any.
#[test]
fn a_file_of_before_is_read_and_compared_by_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    std::fs::write(&path, listing(r#"[["w","f32"],["v","f32"]]"#, "[]", &[1, 1])).unwrap();
    let store = FileStore::new(&path);
    let without = block_on(store.load()).unwrap();
    let mut content = Content::read(&path);
    let digest = |bytes: &[u8]| {
        let first = Sha256::digest(bytes).first_chunk().copied().unwrap();
        format!("{:016x}", u64::from_le_bytes(first))
    };
    let digests: BTreeMap<_, _> =
        content.tensors.iter().map(|(name, (_, _, bytes))| (name, digest(bytes))).collect();
    content.about.insert("digests".into(), serde_json::to_string(&digests).unwrap());
    content.write(&path);
    assert_eq!(block_on(store.load()).unwrap(), without);
    // What the key of the optimizer and a word for one were.
    content.about.insert("updated_by".into(), "own_rule".into());
    content.write(&path);
    assert_eq!(block_on(store.load()).unwrap().optimizer_identity, Some(OptimizerIdentity::Unnamed));
    content.about.remove("updated_by");
    content.tensors.get_mut("v.exp_avg").unwrap().2[1] ^= 1;
    content.write(&path);
    let said = block_on(store.load()).unwrap_err().to_string();
    assert!(said.contains("`v.exp_avg` is not as it was saved"), "{said}");
}

/// Version 3, by its definition: files are kept for years, and must be read by what comes after this build. Of a
/// tensor, the words of its element type and its shape, each with its length, and its bytes; of the metadata, all other
/// keys and texts in the order of keys, each with its length.
#[test]
fn digests_of_now_are_those_of_their_definition() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    block_on(FileStore::new(&path).save(&checkpoint())).unwrap();
    let content = Content::read(&path);
    let number = |hash: Sha256| {
        let first = hash.finalize().first_chunk().copied().unwrap();
        format!("{:016x}", u64::from_le_bytes(first))
    };
    let add = |hash: &mut Sha256, part: &str| {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    };
    let saved: BTreeMap<String, String> = serde_json::from_str(&content.about["digests"]).unwrap();
    assert_eq!(saved.len(), content.tensors.len());
    for (name, (dtype, shape, bytes)) in &content.tensors {
        let word = match dtype {
            Dtype::F32 => "F32",
            Dtype::U8 => "U8",
            other => panic!("{name} is {other:?}"),
        };
        let sizes = match shape[..] {
            [rows, cols] => format!("[{rows}, {cols}]"),
            [all] => format!("[{all}]"),
            _ => panic!("{name} is {shape:?}"),
        };
        let mut hash = Sha256::new();
        add(&mut hash, word);
        add(&mut hash, &sizes);
        hash.update(bytes);
        assert_eq!(saved[name], number(hash), "{name}");
    }
    let mut hash = Sha256::new();
    for (key, text) in content.about.iter().collect::<BTreeMap<_, _>>() {
        if key != "metadata_digest" {
            add(&mut hash, key);
            add(&mut hash, text);
        }
    }
    assert_eq!(content.about["metadata_digest"], number(hash));
}
