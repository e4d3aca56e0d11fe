//! Refused folders: anything that is no whole checkpoint of this model is refused by name, on all ranks, and nothing
//! changes.

use std::path::Path;

use safetensors::Dtype;
use warpweft_format::Format;
use warpweft_session::checkpoint::{CheckpointError, PartFiles};
use warpweft_session::config::Scaling;
use warpweft_session::session::{Session, SessionError};
use warpweft_testing::trainer::{SIZE, Trainer, losses, within_a_minute};

use super::by_hand::{copy, edit, edit_index, outdate_index, outdate_part};
use super::carried::counting;
use super::{config, notes, part};

use Kind::{Damaged, File, Foreign, Missing, Unfit, Version};

const RANKS: u32 = 3;

/// Rows of a weight in each part.
const ROWS: usize = SIZE / RANKS as usize;

/// One file in place of another.
fn put(from: &Path, to: &Path) {
    std::fs::copy(from, to).unwrap();
}

/// Is refused in these words, and the session is as it was.
async fn refused(session: &mut Session, files: &PartFiles, words: &[&str]) -> Kind {
    let before = session.export().await.unwrap();
    let error = session.import_parts(files).await.unwrap_err();
    let said = error.to_string();
    let SessionError::Import { source: Some(source), .. } = &error else { panic!("{said}") };
    assert!(words.iter().all(|word| said.contains(word)), "{said} instead of {words:?}");
    assert!(said.ends_with("nothing was changed"), "{said}");
    assert!(session.export().await.unwrap() == before, "{said}");
    kind(source)
}

type Damage = fn(&Path, &Path);

/// A kind of [`CheckpointError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    Missing,
    Damaged,
    Foreign,
    Version,
    Unfit,
}

fn kind(error: &CheckpointError) -> Kind {
    match error {
        CheckpointError::File { .. } => Kind::File,
        CheckpointError::Missing { .. } => Kind::Missing,
        CheckpointError::Damaged { .. } => Kind::Damaged,
        CheckpointError::Foreign { .. } => Kind::Foreign,
        CheckpointError::Version { .. } => Kind::Version,
        CheckpointError::Unfit { .. } => Kind::Unfit,
        other => panic!("{other}"),
    }
}

/// What is done to a checkpoint's folder, with that of another save at hand; what is said of it, and by which kind;
/// and whether it is said of files, which no whole checkpoint is made of either.
const CASES: &[(&str, Damage, &[&str], Kind, bool)] = &[
    (
        "no index",
        |folder, _| std::fs::remove_file(folder.join("checkpoint.json")).unwrap(),
        &["the folder has no checkpoint.json", "did not come to its end"],
        Missing,
        true,
    ),
    (
        "no folder",
        |folder, _| std::fs::remove_dir_all(folder).unwrap(),
        &["checkpoint.json", "check the path"],
        File,
        true,
    ),
    (
        "a torn index",
        |folder, _| edit_index(folder, "\n}", ""),
        &["checkpoint.json: it is no index"],
        Damaged,
        true,
    ),
    (
        "an empty index",
        |folder, _| std::fs::write(folder.join("checkpoint.json"), "").unwrap(),
        &["checkpoint.json: it is empty", "remove this file"],
        Damaged,
        true,
    ),
    (
        "a later version",
        |folder, _| edit_index(folder, "\"warpweft_parts\": 3", "\"warpweft_parts\": 9"),
        &["version 9, and versions 1 to 6 are known", "newer build"],
        Version,
        true,
    ),
    (
        "a name twice",
        |folder, _| edit_index(folder, "\"layer1\"", "\"layer0\""),
        &["lists the weight `layer0` twice"],
        Damaged,
        true,
    ),
    (
        "rows that no part has",
        |folder, _| edit_index(folder, "\"rows_per_part\": 32", "\"rows_per_part\": 31"),
        &["3 parts of 31 rows are not `layer0`"],
        Damaged,
        true,
    ),
    (
        "parts of no rows",
        |folder, _| edit_index(folder, "\"rows_per_part\": 32", "\"rows_per_part\": 0"),
        &["3 parts of 0 rows"],
        Damaged,
        true,
    ),
    (
        "no ranks",
        |folder, _| edit_index(folder, "\"ranks\": 3", "\"ranks\": 0"),
        &["it is of 0 ranks"],
        Damaged,
        true,
    ),
    (
        "more rows in a part than can be counted",
        |folder, _| edit_index(folder, "\"rows_per_part\": 32", "\"rows_per_part\": 18446744073709551615"),
        &["`layer0.master` is F32 [32, 96] and should be F32 [96, 96]"],
        Damaged,
        true,
    ),
    (
        "no such save",
        |folder, _| edit_index(folder, "\"save\": \"", "\"save\": \"x"),
        &["is no number of sixteen hexadecimal digits"],
        Damaged,
        true,
    ),
    (
        "a part that is missing",
        |folder, _| std::fs::remove_file(part(folder, 1)).unwrap(),
        &["rank 1: ", "rank-00001-of-00003-", "the part of rank 1 is missing; copy it there"],
        Missing,
        true,
    ),
    (
        "a part that is torn",
        |folder, _| {
            let bytes = std::fs::read(part(folder, 2)).unwrap();
            std::fs::write(part(folder, 2), &bytes[..bytes.len() - 1]).unwrap();
        },
        &["rank-00002-of-00003-", "the part of rank 2 is not whole: ", "the file is cut off"],
        Damaged,
        true,
    ),
    (
        "a part that is empty",
        |folder, _| std::fs::write(part(folder, 0), "").unwrap(),
        &["the part of rank 0 is not whole", "0 bytes"],
        Damaged,
        true,
    ),
    (
        "a part with more after it",
        |folder, _| {
            let bytes = std::fs::read(part(folder, 0)).unwrap();
            std::fs::write(part(folder, 0), [bytes, vec![0]].concat()).unwrap();
        },
        &["the part of rank 0 is not whole: the last tensor ends at byte", "but 1 more follow"],
        Damaged,
        true,
    ),
    (
        "a file of somebody else",
        |folder, _| edit(&part(folder, 1), |content| content.about.clear()),
        &["it is not the part of rank 1", "`warpweft_part` is nothing"],
        Foreign,
        true,
    ),
    (
        "a part of another save",
        |folder, other| put(&part(other, 1), &part(folder, 1)),
        &["rank-00001-of-00003-", "it is not the part of rank 1 of this checkpoint: its `save` is"],
        Foreign,
        true,
    ),
    (
        "an index of another save",
        |folder, other| put(&other.join("checkpoint.json"), &folder.join("checkpoint.json")),
        &["rank-0000", "is missing; copy it there"],
        Missing,
        true,
    ),
    (
        "a part of another rank",
        |folder, _| put(&part(folder, 0), &part(folder, 2)),
        &["it is not the part of rank 2", "its `rank` is `0`, and `2` in the index"],
        Foreign,
        true,
    ),
    (
        "an index edited to another step",
        |folder, _| edit_index(folder, "\"optimizer_step\": 2", "\"optimizer_step\": 1"),
        &["it is not the part of rank 0", "its `optimizer_step` is `2`, and `1` in the index"],
        Foreign,
        true,
    ),
    (
        "a part of another step",
        |folder, _| {
            edit(&part(folder, 1), |content| {
                content.about.insert("optimizer_step".to_owned(), "7".to_owned());
            });
        },
        &["rank 1: ", "rank-00001-of-00003-", "its `optimizer_step` is `7`, and `2` in the index"],
        Foreign,
        true,
    ),
    (
        "a part of an earlier version",
        |folder, _| edit(&part(folder, 1), outdate_part),
        &["rank 1: ", "it is not the part of rank 1", "its `warpweft_part` is `1`, and `3` in the index"],
        Foreign,
        true,
    ),
    (
        "an index of an earlier version",
        |folder, _| outdate_index(folder),
        &["it is not the part of rank 0", "its `warpweft_part` is `3`, and `1` in the index"],
        Foreign,
        true,
    ),
    (
        "digests of other parts",
        |folder, _| edit_index(folder, "\"digests\": \"", "\"digests\": \"0123456789abcdef"),
        &["checkpoint.json: its `digests` are not those of 3 parts"],
        Damaged,
        true,
    ),
    (
        "a header that is valid and was not saved",
        |folder, _| {
            let path = part(folder, 1);
            let bytes = std::fs::read(&path).unwrap();
            let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
            // Two weights that are as large change places.
            let told = String::from_utf8(bytes[8..8 + header].to_vec()).unwrap();
            let told = told
                .replace("layer0.", "layerX.")
                .replace("layer1.", "layer0.")
                .replace("layerX.", "layer1.");
            std::fs::write(&path, [&bytes[..8], told.as_bytes(), &bytes[8 + header..]].concat()).unwrap();
        },
        &[
            "rank-00001-of-00003-",
            "the header of the part of rank 1 is not the one that was saved",
            "copy it again",
        ],
        Damaged,
        true,
    ),
    (
        "a weight that a part lacks",
        |folder, _| edit(&part(folder, 1), |content| drop(content.tensors.remove("layer0.exp_avg"))),
        &["rank-00001-of-00003-", "`layer0.exp_avg` is not there"],
        Damaged,
        true,
    ),
    (
        "a wrong shape",
        |folder, _| {
            edit(&part(folder, 1), |content| {
                content.tensors.get_mut("layer1.master").unwrap().1 = vec![SIZE, ROWS]
            })
        },
        &["`layer1.master` is F32 [96, 32] and should be F32 [32, 96]"],
        Damaged,
        true,
    ),
    (
        "a wrong type",
        |folder, _| {
            edit(&part(folder, 0), |content| content.tensors.get_mut("bias.master").unwrap().0 = Dtype::I32)
        },
        &["`bias.master` is I32 [1, 96] and should be F32"],
        Damaged,
        true,
    ),
    (
        "a master that is no number",
        |folder, _| edit(&part(folder, 2), |content| content.set("layer1.master", 5 * SIZE + 7, f32::NAN)),
        &["rank 2: `layer1` holds NaN in row 69, column 7"],
        Unfit,
        false,
    ),
    (
        "a moment that is no number",
        |folder, _| edit(&part(folder, 1), |content| content.set("layer0.exp_avg", 3, f32::INFINITY)),
        &[
            "rank 1: the first moment of `layer0` is inf in row 32, column 3",
            "`PartFiles::restart_optimizer`",
        ],
        Unfit,
        false,
    ),
    (
        "a mean of squares below 0",
        |folder, _| edit(&part(folder, 0), |content| content.set("bias.exp_avg_sq", 9, -1.0)),
        &["the second moment of `bias` is -1.0 in row 0, column 9"],
        Unfit,
        false,
    ),
    (
        "too many steps",
        |folder, _| edit_index(folder, "\"optimizer_step\": 2", "\"optimizer_step\": 3000000000"),
        &["counts 3000000000 optimizer steps", "`PartFiles::restart_optimizer`"],
        Unfit,
        true,
    ),
    (
        "another model",
        |folder, _| edit_index(folder, "\"layer1\"", "\"layer9\""),
        &["`layer1` is not in the checkpoint, and the session has no `layer9`"],
        Unfit,
        true,
    ),
    (
        "another shape",
        |folder, _| edit_index(folder, "\"rows\": 96", "\"rows\": 95"),
        &["`layer0` is 95×96 in the checkpoint and 96×96 here"],
        Unfit,
        true,
    ),
];

/// CK-2: as if nothing had happened, training goes on.
#[test]
fn what_is_no_whole_checkpoint_is_refused_by_name_and_changes_nothing() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::F32);
        let [good, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let mut session = trainer.start(config(), RANKS).await.unwrap();
        losses(&mut session, RANKS, 0..2).await;
        session.save_parts(&PartFiles::new(good.path()), &notes(&[])).await.unwrap();
        session.save_parts(&PartFiles::new(other.path()), &notes(&[])).await.unwrap();
        losses(&mut session, RANKS, 2..3).await;
        for (name, damage, words, kind, of_files) in CASES {
            let folder = tempfile::tempdir().unwrap();
            copy(good.path(), folder.path());
            damage(folder.path(), other.path());
            let damaged = PartFiles::new(folder.path());
            assert_eq!(refused(&mut session, &damaged, words).await, *kind, "{name}");
            let whole = damaged.load();
            assert_eq!(whole.is_err(), *of_files, "{name}");
            if let Err(error) = whole {
                assert!(matches!(error, CheckpointError::Parts { .. }), "{error}");
            }
        }
        let mut undisturbed = trainer.start(config(), RANKS).await.unwrap();
        let expected = losses(&mut undisturbed, RANKS, 0..5).await;
        assert_eq!(losses(&mut session, RANKS, 3..5).await, expected[3..]);
        session.import_parts(&PartFiles::new(good.path())).await.unwrap();
        assert_eq!(losses(&mut session, RANKS, 2..5).await, expected[2..]);
    });
}

#[test]
fn delayed_scales_that_no_cast_can_use_are_refused_where_scaling_is_delayed() {
    within_a_minute(async {
        let mut delayed = config();
        delayed.quantize.scaling = Scaling::Delayed;
        let trainer = Trainer::new(2, Format::FP8_TENSOR_E4M3);
        let good = tempfile::tempdir().unwrap();
        let mut session = trainer.start(delayed, RANKS).await.unwrap();
        losses(&mut session, RANKS, 0..2).await;
        session.save_parts(&PartFiles::new(good.path()), &notes(&[])).await.unwrap();
        let damages: [(Damage, &[&str]); 4] = [
            (
                |folder, _| edit(&part(folder, 0), |content| content.set("layer0.delayed_scale", 0, 0.0)),
                &["delayed scale 0, which no cast can use", "`PartFiles::load`"],
            ),
            (
                |folder, _| edit(&part(folder, 0), |content| content.set("layer1.amax_history", 1, f32::NAN)),
                &["the amax history of `layer1` has NaN"],
            ),
            (
                |folder, _| {
                    edit(&part(folder, 0), |content| drop(content.tensors.remove("layer0.amax_history")))
                },
                &["`layer0.amax_history` is no list of up to 65536 F32"],
            ),
            (
                |folder, _| {
                    let longer = (Dtype::F32, vec![65_537], vec![0; 4 * 65_537]);
                    edit(&part(folder, 0), |content| {
                        drop(content.tensors.insert("layer0.amax_history".to_owned(), longer));
                    });
                },
                &["`layer0.amax_history` is no list of up to 65536 F32"],
            ),
        ];
        for (damage, words) in damages {
            let folder = tempfile::tempdir().unwrap();
            copy(good.path(), folder.path());
            damage(folder.path(), good.path());
            refused(&mut session, &PartFiles::new(folder.path()), words).await;
        }
    });
}

/// Files of version 1 are read; what says of which step a part is, and digests, came later.
#[test]
fn a_checkpoint_that_an_earlier_build_saved_is_read() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::F32);
        let folder = tempfile::tempdir().unwrap();
        let files = PartFiles::new(folder.path());
        let mut session = trainer.start(config(), RANKS).await.unwrap();
        losses(&mut session, RANKS, 0..2).await;
        session.save_parts(&files, &notes(&[("step", "2")])).await.unwrap();
        let (saved, whole) = (files.saved().unwrap(), files.load().unwrap());
        let expected = losses(&mut session, RANKS, 2..4).await;
        (0..RANKS as usize).for_each(|rank| edit(&part(folder.path(), rank), outdate_part));
        outdate_index(folder.path());
        assert!(files.load().unwrap() == whole);
        assert_eq!(session.import_parts(&files).await.unwrap(), saved);
        assert_eq!(losses(&mut session, RANKS, 2..4).await, expected);
    });
}

/// What is no plain file may have no end, or wait for who writes to it.
#[cfg(unix)]
#[test]
fn an_index_larger_than_any_is_refused_without_memory_for_it() {
    let folder = tempfile::tempdir().unwrap();
    // A file of holes, which takes no room.
    std::fs::File::create(folder.path().join("checkpoint.json")).unwrap().set_len(1 << 40).unwrap();
    let error = PartFiles::new(folder.path()).saved().unwrap_err().to_string();
    assert!(error.contains("256 MiB") && error.contains("checkpoint.json"), "{error}");
}

#[test]
fn an_index_that_is_no_plain_file_is_refused_unread() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let files = PartFiles::new(folder.path());
        let mut session = Trainer::new(1, Format::F32).start(config(), 1).await.unwrap();
        for other in ["/dev/null", "/dev/zero"] {
            std::os::unix::fs::symlink(other, folder.path().join("checkpoint.json")).unwrap();
            refused(&mut session, &files, &["checkpoint.json", "it is no plain file"]).await;
            std::fs::remove_file(folder.path().join("checkpoint.json")).unwrap();
        }
    });
}

/// What a file claims costs nothing before it was seen to be there.
#[test]
fn an_index_that_claims_a_huge_weight_is_refused_without_memory_for_it() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let files = PartFiles::new(folder.path());
        let mut session = Trainer::new(1, Format::F32).start(config(), 1).await.unwrap();
        session.save_parts(&files, &notes(&[])).await.unwrap();
        edit_index(folder.path(), "\"rows\": 96", "\"rows\": 9000000000000000000");
        edit_index(folder.path(), "\"rows_per_part\": 96", "\"rows_per_part\": 9000000000000000000");
        let said = files.load().unwrap_err().to_string();
        assert!(said.contains("should be F32 [9000000000000000000, 96]"), "{said}");
        let other = tempfile::tempdir().unwrap();
        let carries = PartFiles::new(other.path());
        let mut counts = counting(1, 1, "counts").await;
        counts.save_parts(&carries, &notes(&[])).await.unwrap();
        edit_index(other.path(), "\"bytes\": 12", "\"bytes\": 9000000000000000000");
        let said = carries.load().unwrap_err().to_string();
        assert!(said.contains("is U8 [12] and should be U8 [9000000000000000000]"), "{said}");
        edit_index(folder.path(), "\"bias\"", "\"\\u001b[2Jbias\"");
        assert!(!files.load().unwrap_err().to_string().contains('\u{1b}'));
    });
}
