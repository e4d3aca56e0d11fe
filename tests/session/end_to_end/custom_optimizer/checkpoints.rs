//! States of custom optimizers in checkpoints: which rule they are of, and who may go on from them.

use warpweft_format::{ElementType, Format};
use warpweft_session::checkpoint::{Checkpoint, CheckpointStore, FileStore, OptimizerIdentity, PartFiles};
use warpweft_session::config::Capture;
use warpweft_testing::custom_adamw::adamw;
use warpweft_testing::custom_optimizer::Called;
use warpweft_testing::trainer::{Mischief, Trainer, losses, within_a_minute};

use super::super::config;
use super::{descent, own, start};

/// A checkpoint is independent of the number of ranks, whole or in parts, in a file or in memory.
#[test]
fn training_by_a_custom_optimizer_goes_on_from_its_checkpoints_bit_for_bit_on_any_number_of_ranks() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        for lists in [0, 1, 2, 3] {
            let made = || own(lists, config(1, Capture::Off, true));
            let folder = tempfile::tempdir().unwrap();
            let parts = PartFiles::new(folder.path().join("parts"));
            let store = FileStore::new(folder.path().join("whole.safetensors"));
            let mut first = start(&trainer, made(), 2, descent).await;
            losses(&mut first, 2, 0..3).await;
            let checkpoint = first.export().await.unwrap();
            store.save(&checkpoint).await.unwrap();
            first.save_parts(&parts, &Default::default()).await.unwrap();
            let expected = losses(&mut first, 2, 3..6).await;
            let left = first.export().await.unwrap();

            let mut loaded = start(&trainer, made(), 2, descent).await;
            loaded.import(&store.load().await.unwrap()).await.unwrap();
            assert_eq!(losses(&mut loaded, 2, 3..6).await, expected, "{lists} lists");
            let mut parted = start(&trainer, made(), 2, descent).await;
            parted.import_parts(&parts).await.unwrap();
            assert_eq!(losses(&mut parted, 2, 3..6).await, expected, "{lists} lists");
            assert!(parted.export().await.unwrap() == left);
            let whole = parts.load().unwrap();
            for ranks in [1, 5] {
                let mut other = start(&trainer, made(), ranks, descent).await;
                other.import_parts(&parts).await.unwrap();
                assert!(other.export().await.unwrap() == checkpoint, "{lists} lists, {ranks} ranks");
                other.import(&whole).await.unwrap();
                assert!(other.export().await.unwrap() == checkpoint, "{lists} lists, {ranks} ranks");
            }
        }
    });
}

#[test]
fn state_of_another_rule_is_refused_by_its_count_and_may_begin_anew() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::Bf16);
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFiles::new(folder.path());
        let mut adam = trainer.start(config(1, Capture::Off, true), 2).await.unwrap();
        losses(&mut adam, 2, 0..2).await;
        let checkpoint = adam.export().await.unwrap();
        adam.save_parts(&parts, &Default::default()).await.unwrap();
        for lists in [0_u8, 1] {
            let mut session = start(&trainer, own(lists, config(1, Capture::Off, true)), 2, descent).await;
            let before = session.export().await.unwrap();
            let checkpoint = Checkpoint { optimizer_identity: None, ..checkpoint.clone() };
            let words = format!("the checkpoint has 2 lists of state, and the session keeps {lists}");
            let error = session.import(&checkpoint).await.unwrap_err().to_string();
            assert!(error.contains(&words) && error.contains("restart_optimizer"), "{error}");
            let checkpoint = Checkpoint { optimizer_identity: Some(OptimizerIdentity::Adam), ..checkpoint };
            let words = "of the checkpoint is of Adam, and here weights are updated by `by rows`";
            for refused in [session.import(&checkpoint).await, session.import_parts(&parts).await.map(drop)] {
                let error = refused.unwrap_err().to_string();
                assert!(error.contains(words) && error.contains("restart_optimizer"), "{error}");
            }
            assert!(session.export().await.unwrap() == before);
            session.import(&checkpoint.clone().restart_optimizer()).await.unwrap();
            let anew = session.export().await.unwrap();
            assert_eq!(anew.weights[0].master, checkpoint.weights[0].master);
            assert!(
                anew.weights[0].states.iter().flatten().all(|value| *value == 0.0)
                    && anew.optimizer_step == 0
            );
            session.import_parts(&parts.clone().restart_optimizer()).await.unwrap();
            assert!(session.export().await.unwrap() == anew);
        }
    });
}

/// Two lists of a rule have the shape of two moments, and mean something else.
#[test]
fn state_of_another_optimizer_is_refused_where_there_is_as_much_of_it() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::Bf16);
        let folder = tempfile::tempdir().unwrap();
        let made = || config(1, Capture::Off, true);
        let mut adam = trainer.start(made(), 2).await.unwrap();
        let mut rule = start(&trainer, own(2, made()), 2, adamw).await;
        for (session, name) in [(&mut adam, "adam"), (&mut rule, "rule")] {
            let unused = session.export().await.unwrap();
            losses(session, 2, 0..2).await;
            let store = FileStore::new(folder.path().join(name));
            store.save(&session.export().await.unwrap()).await.unwrap();
            session
                .save_parts(&PartFiles::new(folder.path().join("parts").join(name)), &Default::default())
                .await
                .unwrap();
            // What no step has made is of nobody.
            session.import(&Checkpoint { optimizer_identity: None, ..unused }).await.unwrap();
        }
        for (session, name, words) in [
            (
                &mut adam,
                "rule",
                "is of `by rows` with state `first`, `second`, and here weights are updated by Adam",
            ),
            (
                &mut rule,
                "adam",
                "is of Adam, and here weights are updated by `by rows` with state `first`, `second`",
            ),
        ] {
            let whole = FileStore::new(folder.path().join(name)).load().await.unwrap();
            let parts = PartFiles::new(folder.path().join("parts").join(name));
            assert!(
                parts.load().unwrap()
                    == Checkpoint { weights: parts.load().unwrap().weights, ..whole.clone() }
            );
            let before = session.export().await.unwrap();
            for refused in [session.import(&whole).await, session.import_parts(&parts).await.map(drop)] {
                let error = refused.unwrap_err().to_string();
                assert!(error.contains(words) && error.contains("restart_optimizer"), "{error}");
            }
            assert!(session.export().await.unwrap() == before);
            // A caller may restart the optimizer; a checkpoint that names none is checked by its lists alone.
            session.import(&Checkpoint { optimizer_identity: None, ..whole.clone() }).await.unwrap();
            session.import(&whole.restart_optimizer()).await.unwrap();
            session.import_parts(&parts.restart_optimizer()).await.unwrap();
            assert_eq!(session.export().await.unwrap().optimizer_step, 0);
        }
    });
}

/// As many lists of another custom optimizer are no state of this one.
#[test]
fn a_checkpoint_says_which_custom_optimizer_wrote_it_and_another_refuses_its_state_by_both_names() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::Bf16);
        let start = async |name: &'static str, states: &'static [&'static str]| {
            let builder = trainer.builder(config(1, Capture::Off, true), &Mischief::default());
            let builder = builder.try_optimizer(states.len(), move |_| Ok(Called(name, states, descent)));
            builder.start_cpu(2).await.unwrap()
        };
        let folder = tempfile::tempdir().unwrap();
        let (parts, path) = (PartFiles::new(folder.path().join("parts")), folder.path().join("whole"));
        let mut lion = start("Lion", &["momentum"]).await;
        losses(&mut lion, 2, 0..2).await;
        let exported = lion.export().await.unwrap();
        lion.save_parts(&parts, &Default::default()).await.unwrap();
        FileStore::new(&path).save(&exported).await.unwrap();
        let by = OptimizerIdentity::Custom { name: "Lion".to_owned(), states: vec!["momentum".to_owned()] };
        let loaded = FileStore::new(&path).load().await.unwrap();
        for said in [
            &exported.optimizer_identity,
            &loaded.optimizer_identity,
            &parts.saved().unwrap().optimizer_identity,
        ] {
            assert_eq!(*said, Some(by.clone()));
        }
        lion.import(&loaded).await.unwrap();

        for (name, states, words) in [
            ("Tiger", &["momentum"][..], "`Tiger` with state `momentum`"),
            ("Lion", &["velocity"], "`Lion` with state `velocity`"),
            ("Lion", &["momentum", "average"], "`Lion` with state `momentum`, `average`"),
            ("descent", &[], "`descent`, which keeps no state"),
        ] {
            let kept = states.len();
            let mut session = start(name, states).await;
            let before = session.export().await.unwrap();
            for refused in [session.import(&loaded).await, session.import_parts(&parts).await.map(drop)] {
                let error = refused.unwrap_err().to_string();
                let both = format!(
                    "is of `Lion` with state `momentum`, and here weights are updated by {words}; update them by the \
                     same, or import `checkpoint.restart_optimizer()`"
                );
                assert!(error.contains(&both), "{error}");
            }
            assert!(session.export().await.unwrap() == before);
            // The weights alone, and a file of before files said which optimizer it was.
            session.import_weights(&loaded, |_| true).await.unwrap();
            session.import_parts(&parts.clone().restart_optimizer()).await.unwrap();
            let unnamed =
                Checkpoint { optimizer_identity: Some(OptimizerIdentity::Unnamed), ..loaded.clone() };
            assert_eq!(session.import(&unnamed).await.is_ok(), kept == 1);
        }
    });
}

/// An average of the weights is a state like any other, and becomes weights: in memory, in parts, in files of weights.
#[test]
fn weights_of_a_state_are_evaluated_and_published_and_training_goes_on() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::Bf16);
        let made = || own(2, config(1, Capture::Off, true));
        let mut session = start(&trainer, made(), 2, adamw).await;
        losses(&mut session, 2, 0..3).await;
        let (folder, none) = (tempfile::tempdir().unwrap(), std::collections::BTreeMap::new());
        let parts = PartFiles::new(folder.path().join("parts"));
        session.save_parts(&parts, &none).await.unwrap();
        let trained = session.export().await.unwrap();
        let expected = losses(&mut session, 2, 3..5).await;

        let average = trained.weights_of_state("second").unwrap();
        for (average, trained) in average.weights.iter().zip(&trained.weights) {
            assert_eq!((&average.master, average.states.len()), (&trained.states[1], 0));
        }
        let of_parts = parts.clone().weights_of_state("second");
        assert!(of_parts.load().unwrap() == average);
        let files = ["whole", "parts"].map(|name| folder.path().join(name).with_extension("safetensors"));
        let name = |weight: &str| Some(weight.to_owned());
        average.save_weights(&files[0], ElementType::F32, name).unwrap();
        of_parts.save_weights(&files[1], ElementType::F32, name).unwrap();
        let [whole, published] = files.map(|file| std::fs::read(file).unwrap());
        assert!(whole == published);

        // Into a session that is updated by something else, and into this one and out of it.
        let mut evaluating = trainer.start(config(1, Capture::Off, true), 3).await.unwrap();
        evaluating.import_parts(&of_parts).await.unwrap();
        session.import(&average).await.unwrap();
        for found in [evaluating.export().await.unwrap(), session.export().await.unwrap()] {
            for (found, average) in found.weights.iter().zip(&average.weights) {
                assert_eq!(found.master, average.master);
            }
        }
        session.import_parts(&parts).await.unwrap();
        assert!(session.export().await.unwrap() == trained);
        assert_eq!(losses(&mut session, 2, 3..5).await, expected);

        let words = "names no state `third`; those that it names are: `first`, `second`";
        let third = parts.weights_of_state("third");
        let name = |_: &str| None;
        for refused in [
            trained.weights_of_state("third").unwrap_err().to_string(),
            third.load().unwrap_err().to_string(),
            third.save_weights("nowhere", ElementType::F32, name).unwrap_err().to_string(),
            session.import_parts(&third).await.unwrap_err().to_string(),
        ] {
            assert!(refused.contains(words), "{refused}");
        }
    });
}
