//! Checkpoint files: their contents by name, and the leftovers of a failed save.

mod digests;

use std::collections::{BTreeMap, HashMap};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use warpweft_format::{Directions, Format, quantize};
use warpweft_session::checkpoint::{
    Carried, CarriedBuffer, Checkpoint, CheckpointError, CheckpointStore, FileStore, WeightState,
};
use warpweft_session::config::Config;
use warpweft_session::session::block_on;
use warpweft_testing::trainer::{Trainer, losses, within_a_minute};

/// What a reader of the files of `warpweft quantize` looks for, with the same numbers in it.
#[test]
fn planes_in_a_checkpoint_are_those_of_quantize_by_name_type_shape_and_content() {
    within_a_minute(async {
        let formats = [
            (Format::NVFP4_2D, Some("amax")),
            (Format::FP8_TENSOR_E4M3, Some("rowwise_scale")),
            (Format::FP8_BLOCK128_POW2, None),
            (Format::Mxfp8, None),
        ];
        for (format, tensor_scale) in formats {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("run.safetensors");
            let mut session = Trainer::new(1, format).start(Config::default(), 2).await.unwrap();
            losses(&mut session, 2, 0..2).await;
            let checkpoint = session.export().await.unwrap();
            FileStore::new(&path).save(&checkpoint).await.unwrap();
            let bytes = std::fs::read(&path).unwrap();
            let file = SafeTensors::deserialize(&bytes).unwrap();
            let weight = &checkpoint.weights[0];
            let via = Config::default().quantize.via;
            let expected = quantize(format, Directions::Rowwise, via, weight.shape, &weight.master).unwrap();
            let planes = expected.rowwise.unwrap();
            let data = file.tensor("layer0.rowwise_data").unwrap();
            assert_eq!(data.data(), planes.data, "{format}");
            match tensor_scale {
                Some(suffix) => {
                    let scale = file.tensor(&format!("layer0.{suffix}")).unwrap();
                    assert_eq!((scale.dtype(), scale.shape()), (Dtype::F32, &[1][..]), "{format}");
                    assert_eq!(scale.data(), expected.tensor_scale.to_le_bytes(), "{format}");
                    assert_eq!(suffix == "amax", expected.tensor_scale == expected.amax, "{format}");
                }
                None => {
                    let scale = file.tensor("layer0.rowwise_scale").unwrap();
                    let is_f32 = matches!(format, Format::Fp8Block(_));
                    assert_eq!(scale.dtype(), if is_f32 { Dtype::F32 } else { Dtype::U8 }, "{format}");
                    assert_eq!(scale.data(), planes.scale, "{format}");
                }
            }
            let names = file.names();
            assert!(!names.iter().any(|name| name.ends_with("tensor_scale")), "{names:?}");
        }
    });
}

#[test]
fn a_save_that_fails_leaves_nothing_beside_what_was_there() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let mut session = Trainer::new(1, Format::F32).start(Config::default(), 1).await.unwrap();
        let checkpoint = session.export().await.unwrap();
        let target = folder.path().join("taken");
        std::fs::create_dir_all(target.join("full")).unwrap();
        let error = FileStore::new(&target).save(&checkpoint).await.unwrap_err();
        assert!(matches!(&error, CheckpointError::File { .. }), "{error}");
        assert_eq!(folder.path().read_dir().unwrap().count(), 1, "the folder that was there");
        let nowhere = FileStore::new(folder.path().join("missing").join("run.safetensors"));
        assert!(matches!(nowhere.save(&checkpoint).await, Err(CheckpointError::File { .. })));
        let good = FileStore::new(folder.path().join("run.safetensors"));
        good.save(&checkpoint).await.unwrap();
        good.save(&checkpoint).await.unwrap();
        assert_eq!(good.load().await.unwrap().weights[0].master, checkpoint.weights[0].master);
        assert_eq!(folder.path().read_dir().unwrap().count(), 2);
    });
}

/// A file of two weights of one element and of two ranks' carried bytes, with `listed` in its metadata.
pub(crate) fn listing(weights: &str, carried: &str, exp_avg: &[usize]) -> Vec<u8> {
    let zeros = [0; 8];
    let view = |dtype, shape: &[usize]| {
        let bytes = shape.iter().product::<usize>() * if dtype == Dtype::F32 { 4 } else { 1 };
        TensorView::new(dtype, shape.to_vec(), &zeros[..bytes]).unwrap()
    };
    let mut tensors = Vec::new();
    for weight in ["w", "v"] {
        let parts = [("master", &[1, 1][..]), ("exp_avg", exp_avg), ("exp_avg_sq", &[1, 1])];
        tensors.extend(parts.map(|(part, shape)| (format!("{weight}.{part}"), view(Dtype::F32, shape))));
    }
    tensors.extend((0..2).map(|rank| (format!("carried.c.rank{rank}"), view(Dtype::U8, &[4]))));
    let about =
        [("warpweft_checkpoint", "2"), ("optimizer_step", "1"), ("weights", weights), ("carried", carried)];
    let about: HashMap<_, _> =
        about.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().collect();
    safetensors::serialize(tensors, Some(about)).unwrap()
}

/// A list in the header is free, and every entry would be read again: 3 MB that list one weight a thousand times
/// would take 3 GB.
#[test]
fn a_file_whose_header_lists_more_than_it_holds_is_refused() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hostile.safetensors");
        let store = FileStore::new(&path);
        let both = r#"[["w","f32"],["v","f32"]]"#;
        std::fs::write(&path, listing(both, r#"[["c",2]]"#, &[1, 1])).unwrap();
        assert_eq!(store.load().await.unwrap().weights.len(), 2);
        let thousand = format!("[{}]", [r#"["w","f32"]"#; 1000].join(","));
        let cases = [
            (thousand.as_str(), "[]", [1, 1], "lists the weight `w` twice"),
            (r#"[["w","f32"],["v","f32"],["w","bf16"]]"#, "[]", [1, 1], "lists the weight `w` twice"),
            (both, r#"[["c",2],["c",1]]"#, [1, 1], "lists the carried buffer `c` twice"),
            (both, r#"[["c",18446744073709551615]]"#, [1, 1], "`carried.c.rank2`"),
            (both, "[]", [2, 1], "`w.exp_avg` is 2×1 and its master 1×1"),
        ];
        for (weights, carried, exp_avg, expected) in cases {
            std::fs::write(&path, listing(weights, carried, &exp_avg)).unwrap();
            let error = store.load().await.unwrap_err();
            assert!(matches!(error, CheckpointError::Content { .. }), "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        }
    });
}

#[test]
fn a_file_that_is_empty_cut_off_or_missing_is_told_so() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.safetensors");
        let store = FileStore::new(&path);
        let missing = store.load().await.unwrap_err().to_string();
        assert!(missing.contains("run.safetensors") && missing.contains("check the path"), "{missing}");
        let whole = listing(r#"[["w","f32"],["v","f32"]]"#, "[]", &[1, 1]);
        for (bytes, expected) in [
            (0, "it has 0 bytes, and the length of the header alone takes 8; it is empty or cut off"),
            (3, "it has 3 bytes, and the length of the header alone takes 8"),
            (20, "but only 12 follow; the file is cut off"),
            (whole.len() - 1, "reaches to byte 32, but only 31 follow the header; the file is cut off"),
        ] {
            std::fs::write(&path, &whole[..bytes]).unwrap();
            let said = store.load().await.unwrap_err().to_string();
            assert!(said.contains(expected) && said.contains("load another checkpoint"), "{said}");
        }
    });
}

/// A terabyte of a version to come, which takes no room on the disk: no memory is asked for it.
#[test]
fn a_file_of_an_unknown_version_is_refused_before_its_tensors_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("later.safetensors");
    let bytes = 1u64 << 40;
    let tensor = format!(r#"{{"dtype":"F32","shape":[{},1],"data_offsets":[0,{bytes}]}}"#, bytes / 4);
    let header = format!(r#"{{"__metadata__":{{"warpweft_checkpoint":"9"}},"w.master":{tensor}}}"#);
    let length = header.len() as u64;
    std::fs::write(&path, [&length.to_le_bytes(), header.as_bytes()].concat()).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(8 + length + bytes).unwrap();
    let error = block_on(FileStore::new(&path).load()).unwrap_err();
    assert!(matches!(error, CheckpointError::Content { .. }), "{error}");
    assert!(error.to_string().contains("it has version 9, and this build knows versions 1 to 4"), "{error}");
}

#[test]
fn a_file_of_another_kind_is_told_to_be_no_safetensors_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    std::fs::write(&path, "these are the notes of a trainer, and not its weights").unwrap();
    let error = block_on(FileStore::new(&path).load()).unwrap_err().to_string();
    assert!(error.contains("it is no safetensors file") && error.contains("notes.txt"), "{error}");
}

#[test]
fn notes_of_the_trainer_are_kept_with_the_weights_and_no_session_reads_them() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::new(folder.path().join("run.safetensors"));
        let mut session = Trainer::new(1, Format::F32).start(Config::default(), 2).await.unwrap();
        let mut checkpoint = session.export().await.unwrap();
        assert!(checkpoint.notes.is_empty());
        let notes = [("step", "17"), ("data", "shard 3, line \"9\"\n"), ("", "")];
        checkpoint.notes = notes.map(|(name, note)| (name.to_owned(), note.to_owned())).into();
        store.save(&checkpoint).await.unwrap();
        let loaded = store.load().await.unwrap();
        assert_eq!(loaded.notes, checkpoint.notes);
        session.import(&loaded).await.unwrap();
        assert!(session.export().await.unwrap().notes.is_empty());
    });
}

#[test]
fn an_import_that_does_not_fit_names_the_weight() {
    within_a_minute(async {
        let mut one = Trainer::new(1, Format::F32).start(Config::default(), 1).await.unwrap();
        let mut two = Trainer::new(2, Format::F32).start(Config::default(), 1).await.unwrap();
        let of_one = one.export().await.unwrap();
        let said = two.import(&of_one).await.unwrap_err().to_string();
        assert!(said.contains("`layer1` is not in the checkpoint; import"), "{said}");
        let mut more = two.export().await.unwrap();
        more.weights.push(WeightState { name: "layer9".to_owned(), ..more.weights[0].clone() });
        let said = two.import(&more).await.unwrap_err().to_string();
        assert!(said.contains("the session has no `layer9`"), "{said}");
        let mut wide = two.export().await.unwrap();
        let shape = wide.weights[0].shape;
        wide.weights[0].shape.rows += 1;
        let said = two.import(&wide).await.unwrap_err().to_string();
        assert!(said.contains(&format!("in the checkpoint and {shape} here")), "{said}");
    });
}

#[cfg(unix)]
#[test]
fn a_save_over_no_plain_file_is_refused_and_one_over_a_link_follows_it() {
    let empty = Checkpoint {
        optimizer_step: 0,
        optimizer_identity: None,
        weights: Vec::new(),
        carried: Carried::Zeros,
        notes: BTreeMap::new(),
    };
    within_a_minute(async move {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let said = FileStore::new(&socket).save(&empty).await.unwrap_err().to_string();
        assert!(said.contains("no plain file"), "{said}");
        let (file, link) = (folder.path().join("run.safetensors"), folder.path().join("latest"));
        FileStore::new(&file).save(&empty).await.unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let later = Checkpoint { optimizer_step: 7, ..empty };
        FileStore::new(&link).save(&later).await.unwrap();
        assert!(link.is_symlink());
        assert_eq!(FileStore::new(&file).load().await.unwrap().optimizer_step, 7);
    });
}

/// What could not be loaded again does not take the place of what can.
#[test]
fn a_weight_without_all_of_its_values_is_not_saved() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::new(folder.path().join("run.safetensors"));
        let mut session = Trainer::new(2, Format::F32).start(Config::default(), 1).await.unwrap();
        let good = session.export().await.unwrap();
        store.save(&good).await.unwrap();
        let spoils: [fn(&mut WeightState); 3] = [
            |state| state.master.clear(),
            |state| state.states[0].clear(),
            |state| state.states[1].truncate(3),
        ];
        for spoil in spoils {
            let mut checkpoint = good.clone();
            spoil(&mut checkpoint.weights[1]);
            let error = store.save(&checkpoint).await.unwrap_err().to_string();
            assert!(error.contains("`layer1` does not hold"), "{error}");
            assert_eq!(store.load().await.unwrap().weights[1].master, good.weights[1].master);
        }
    });
}

/// A file has one tensor of a name.
#[test]
fn a_checkpoint_with_two_of_one_name_is_not_saved() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::new(folder.path().join("run.safetensors"));
        let mut session = Trainer::new(2, Format::NVFP4_2D).start(Config::default(), 1).await.unwrap();
        let good = session.export().await.unwrap();
        let spoils: [fn(&mut Checkpoint); 3] = [
            |checkpoint| checkpoint.weights[1].name = "layer0".into(),
            |checkpoint| {
                let first = &mut checkpoint.weights[0];
                first.planes = [&first.planes[..1], &first.planes[..1]].concat();
            },
            |checkpoint| {
                let buffer = CarriedBuffer { name: "c".into(), ranks: Vec::new() };
                checkpoint.carried = Carried::Buffers(vec![buffer; 2]);
            },
        ];
        for (spoil, name) in spoils.into_iter().zip(["`layer0.master`", "`layer0.rowwise_data`", "`c`"]) {
            let mut checkpoint = good.clone();
            spoil(&mut checkpoint);
            let error = store.save(&checkpoint).await.unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("twice"), "{error}");
        }
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    });
}

#[test]
fn saves_at_the_same_time_all_succeed_and_one_is_kept_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let save = &|step: u32| {
        let checkpoint = Checkpoint {
            optimizer_step: step,
            optimizer_identity: None,
            weights: Vec::new(),
            carried: Carried::Buffers(vec![CarriedBuffer {
                name: "c".into(),
                ranks: vec![vec![step as u8; 1 << 16]],
            }]),
            notes: BTreeMap::new(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for _ in 0..20 {
            runtime.block_on(FileStore::new(&path).save(&checkpoint)).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for step in 1..5 {
            scope.spawn(move || save(step));
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let kept = runtime.block_on(FileStore::new(&path).load()).unwrap();
    let Carried::Buffers(buffers) = kept.carried else { panic!("they were saved") };
    assert_eq!(buffers[0].ranks, [vec![kept.optimizer_step as u8; 1 << 16]]);
    assert_eq!(folder.path().read_dir().unwrap().count(), 1);
}
