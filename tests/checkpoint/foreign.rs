//! Hostile input: files that are no files, and text that would flood or steer a terminal.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use warpweft::prelude::*;
use warpweft_plan::cluster::Cluster;
use warpweft_plan::model::DeclareError;
use warpweft_session::checkpoint::{Checkpoint, CheckpointError, PretrainedFiles, WeightState};
use warpweft_session::config::{CallList, Config, Declared};
use warpweft_session::session::{block_on, initial};
use warpweft_testing::terminal::{STEERING, check};

/// Names that no message may show as they are.
fn hostile() -> [String; 3] {
    [format!("up{STEERING}"), "x".repeat(1 << 20), STEERING.repeat(1 << 16)]
}

/// A FIFO, a device without an end, and a folder.
fn no_files(folder: &Path) -> [PathBuf; 3] {
    let fifo = folder.join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    [fifo, PathBuf::from("/dev/zero"), folder.to_owned()]
}

#[test]
fn what_is_no_regular_file_is_refused_by_every_reader_and_never_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    for path in no_files(folder.path()) {
        let begun = Instant::now();
        let read = [
            block_on(FileStore::new(&path).load()).unwrap_err().to_string(),
            PretrainedFiles::open([&path]).unwrap_err().to_string(),
        ];
        for said in read {
            assert!(said.contains("it is no plain file") || said.contains("is a folder"), "{said}");
        }
        // As an index.
        let parts = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(&path, parts.path().join("checkpoint.json")).unwrap();
        let said = PartFiles::new(parts.path()).saved().unwrap_err().to_string();
        assert!(said.contains("it is no plain file"), "{said}");
        let model = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(&path, model.path().join("model.safetensors.index.json")).unwrap();
        let said = PretrainedFiles::open_model(model.path()).unwrap_err().to_string();
        assert!(said.contains("it is no plain file"), "{said}");
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}

/// A shell makes a pipe of `<(command)`, so a text may come out of one; a device is read to a bound.
#[test]
fn a_text_without_an_end_is_refused() {
    let endless = Path::new("/dev/zero");
    for said in [
        Config::load(Some(endless)).unwrap_err().to_string(),
        CallList::load(endless).err().unwrap().to_string(),
        Cluster::load(endless).unwrap_err().to_string(),
    ] {
        assert!(said.contains("it has more than 64 MiB"), "{said}");
    }
}

/// A file of a weight `w` of one element, with this metadata.
fn saved(changed: &[(&str, String)]) -> Vec<u8> {
    let mut about: HashMap<String, String> = [
        ("warpweft_checkpoint", "2"),
        ("optimizer_step", "0"),
        ("weights", r#"[["w","f32"]]"#),
        ("carried", "[]"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    about.extend(changed.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    let one = |name: &str| (name.to_owned(), TensorView::new(Dtype::F32, vec![1, 1], &[0; 4]).unwrap());
    let tensors = ["w.master", "w.exp_avg", "w.exp_avg_sq"].map(one);
    safetensors::serialize(tensors, Some(about)).unwrap()
}

#[test]
fn what_a_hostile_checkpoint_says_of_itself_is_shown_escaped_and_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.safetensors");
    std::fs::write(&path, saved(&[])).unwrap();
    block_on(FileStore::new(&path).load()).unwrap();
    for name in hostile() {
        let listed = |formats: &[(&str, &str)]| serde_json::to_string(formats).unwrap();
        let text = serde_json::to_string(&name).unwrap();
        for changed in [
            ("warpweft_checkpoint", name.clone()),
            ("optimizer_step", name.clone()),
            ("optimizer_identity", name.clone()),
            ("weights", name.clone()),
            ("weights", text.clone()),
            ("weights", listed(&[(&name, "f32")])),
            ("weights", listed(&[(&name, "f32"), (&name, "f32")])),
            ("weights", listed(&[("w", &name)])),
            ("carried", text.clone()),
            ("carried", format!("[[{text},1]]")),
            ("carried", format!("[[{text},1],[{text},1]]")),
            ("notes", text.clone()),
            ("notes", format!("{{{text}:1}}")),
            ("frozen", text.clone()),
        ] {
            std::fs::write(&path, saved(&[changed])).unwrap();
            check(&block_on(FileStore::new(&path).load()).unwrap_err().to_string());
        }
        // A header that describes no tensor.
        let header = format!("{{{text}:{{\"dtype\":{text},\"shape\":[1],\"data_offsets\":[0,4]}}}}");
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 4]].concat();
        std::fs::write(&path, file).unwrap();
        check(&block_on(FileStore::new(&path).load()).unwrap_err().to_string());
        // Names of files are foreign as well.
        check(&block_on(FileStore::new(&name).load()).unwrap_err().to_string());
        check(&Config::load(Some(Path::new(&name))).unwrap_err().to_string());
        check(&PretrainedFiles::open([&name]).unwrap_err().to_string());
        check(&PartFiles::new(&name).saved().unwrap_err().to_string());
    }
}

/// A session of one weight that does not train.
async fn session() -> Session {
    let mut model = Model::builder();
    let weight = model.sharded("w", 1, 1, Format::F32).unwrap();
    let mut program = StepProgram::builder("look", &model.build());
    program.call("look", Phase::Forward).uses(weight, Orientation::Rowwise, Form::Dense).add().unwrap();
    let program = program.build_evaluation().unwrap();
    Session::builder(Config::default(), move |_| on_cpu(|_, _| Ok(())))
        .program(program)
        .initialize(initial::normal(1, 0.1))
        .start_cpu(1)
        .await
        .unwrap()
}

#[test]
fn names_of_an_imported_checkpoint_and_names_that_are_asked_for_are_shown_escaped_and_cut() {
    block_on(async {
        let mut session = session().await;
        let checkpoint = session.export().await.unwrap();
        for name in hostile() {
            let state = WeightState { name: name.clone(), ..checkpoint.weights[0].clone() };
            let other = Checkpoint { weights: vec![state], ..checkpoint.clone() };
            check(&session.import(&other).await.unwrap_err().to_string());
            check(&session.step(&name).await.unwrap_err().to_string());
            check(&other.save_weights("x", ElementType::U8, |_| Some(name.clone())).unwrap_err().to_string());
        }
    });
}

#[test]
fn a_declaration_takes_no_name_that_a_message_could_not_show() {
    for name in hostile() {
        let mut model = Model::builder();
        let weight = model.sharded("w", 1, 1, Format::F32).unwrap();
        let refused = |error: DeclareError| {
            check(&error.to_string());
            assert!(matches!(error, DeclareError::Name { .. }), "{error}");
        };
        refused(model.sharded(&name, 1, 1, Format::F32).unwrap_err());
        refused(model.group(&name, &[weight]).unwrap_err());
        let model = model.build();
        check(&model.find(&name).unwrap_err().to_string());
        let mut program = StepProgram::builder("p", &model);
        refused(program.activation(&name, 1).unwrap_err());
        refused(program.call(&name, Phase::Forward).add().unwrap_err());
        let mut program = StepProgram::builder(&name, &model);
        program.call("c", Phase::Forward).uses(weight, Orientation::Rowwise, Form::Dense).add().unwrap();
        refused(program.build_evaluation().unwrap_err());
    }
    let mut model = Model::builder();
    for number in 0..10_000 {
        model.sharded(&format!("blocks.{number}.up"), 1, 1, Format::F32).unwrap();
    }
    let said = model.build().find("down").unwrap_err().to_string();
    assert!(said.contains("blocks.9.up and 9990 more"), "{said}");
    check(&said);
}

#[test]
fn a_hostile_configuration_is_refused_at_once_and_in_few_words() {
    let long = "x".repeat(10_000_000);
    let begun = Instant::now();
    let said = Config::from_toml_str(&format!("{long} = 1"), "run.toml").unwrap_err().to_string();
    check(&said);
    assert!(said.contains("unknown key `xxx"), "{said}");
    // On the machine on which it took 29 s; a test build is slower.
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    for name in hostile() {
        let quoted = toml::Value::String(name.clone()).to_string();
        let key = serde_json::to_string(&name).unwrap();
        for text in [
            format!("{key} = 1"),
            format!("[{key}]\n{key} = 1"),
            format!("check = {quoted}"),
            format!("[prefetch]\npolicy = {quoted}"),
            format!("[cpu]\n{key} = {quoted}"),
            format!("[[weights]]\nmatch = '*'\nformat = {quoted}"),
            format!("[[weights]]\n{key} = 1"),
            format!("= {name}"),
        ] {
            check(&Config::from_toml_str(&text, "run.toml").unwrap_err().to_string());
        }
        check(&Config::from_toml_str("x = 1", &name).unwrap_err().to_string());
        let variable =
            |name: &str, value: &str| Config::load_with(None, [(name.to_owned(), value.to_owned())]);
        check(&variable(&format!("WARPWEFT_{name}"), "1").unwrap_err().to_string());
        check(&variable("WARPWEFT_CHECK", &name).unwrap_err().to_string());
        check(&warpweft_session::cluster::named(&name).unwrap_err().to_string());
    }
}

#[test]
fn a_file_of_no_weights_is_refused_and_what_was_there_stays() {
    block_on(async {
        let mut session = session().await;
        let checkpoint = session.export().await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, "old").unwrap();
        let parts = PartFiles::new(folder.path().join("parts"));
        session.save_parts(&parts, &BTreeMap::new()).await.unwrap();
        for error in [
            checkpoint.save_weights(&path, ElementType::F32, |_| None).unwrap_err(),
            parts.save_weights(&path, ElementType::F32, |_| None).unwrap_err(),
        ] {
            assert!(matches!(&error, CheckpointError::Content { .. }), "{error}");
            assert!(error.to_string().contains("no weight was given a name"), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), b"old");
        }
    });
}
