//! Errors that `main` returns, which are printed by `Debug`.

use std::error::Error;

use warpweft_backend::BackendError;
use warpweft_backend::rendezvous::RendezvousError;
use warpweft_base::id::RankId;
use warpweft_cuda::CudaFailure;
use warpweft_format::{FormatError, MasterWeightsError};
use warpweft_plan::compute::ComputeError;
use warpweft_plan::model::DeclareError;
use warpweft_plan::plan::{PlanError, VerifyError};
use warpweft_plan::policy::ByteSize;
use warpweft_session::checkpoint::{CheckpointError, FileTask};
use warpweft_session::config::ConfigError;
use warpweft_session::exec::ExecError;
use warpweft_session::session::SessionError;
use warpweft_session::trace::TraceError;

const RANK: RankId = RankId::new(1);

/// Public errors, and a piece of what each says to do or of why it came to be.
fn one_of_each() -> Vec<(Box<dyn Error>, &'static str)> {
    let declared = DeclareError::Unnamed { kind: "weight" };
    let (place, named, present) = ("task 3".into(), "lane 9".into(), "there are 4 lanes".into());
    let malformed = VerifyError::Malformed { place, named, present };
    let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
    let mut errors: Vec<(Box<dyn Error>, &str)> = vec![
        (Box::new(declared.clone()), "give it one"),
        (Box::new(ConfigError::Weights(declared)), "give it one"),
        (Box::new("a lot".parse::<ByteSize>().unwrap_err()), "write a number"),
        (Box::new(ComputeError::NotWritten { call: "fit".into(), what: "`x`".into() }), "take it out"),
        (Box::new(FormatError::BadEpsilon { value: -1.0 }), "use 0 to switch it off"),
        (Box::new(MasterWeightsError::Collective(missing())), "not found"),
        (
            Box::new(PlanError::Policy { key: "prefetch.depth", value: "9".into(), advice: "take 8" }),
            "take 8",
        ),
        (Box::new(malformed), "do not edit it"),
        (Box::new(CheckpointError::file("x", FileTask::Keep, missing())), "its folder is there"),
        (Box::new(RendezvousError::WrongSecret { address: "a:1".into() }), "the same value"),
        (Box::new(BackendError::Poisoned { reason: "rank 2 is gone".into() }), "rank 2 is gone"),
        (Box::new(BackendError::Taken { rank: RANK }), "one for each rank"),
        (Box::new(BackendError::SimulatorTaken), "one rank stands for all"),
        (
            Box::new(ExecError::Poisoned { rank: RANK, what: "a right was dropped".into() }),
            "a right was dropped",
        ),
        (Box::new(ExecError::Thread { rank: RANK, reason: "EAGAIN".into() }), "use fewer ranks"),
        (Box::new(ConfigError::Hysteresis { value: 2.0 }), "such as 0.01"),
        (Box::new(TraceError::NoAnchor), "max_level_off"),
        (Box::new(SessionError::NoGradients), "run one, then ask again"),
        (Box::new(CheckpointError::file("x", FileTask::Write, missing())), "its folder is there"),
        (Box::new(CheckpointError::other("the bucket is gone")), "the bucket is gone"),
        (Box::new(CheckpointError::NoName { weight: "w".into() }), "name one for it"),
    ];
    let program = "train".to_owned();
    let unknown = SessionError::NoInput { program, buffer: "y".into(), declared: vec!["x".into()] };
    errors.push((
        Box::new(SessionError::DroppedStep(Box::new(unknown))),
        "declare it by `ProgramBuilder::input`",
    ));
    let failure = || CudaFailure::Library { library: "NCCL", advice: "install it" };
    errors.push((Box::new(failure()), "install it"));
    errors.push((Box::new(ComputeError::from(failure())), "install it"));
    errors
}

#[test]
fn an_error_that_main_returns_is_printed_with_what_to_do() {
    for (error, advice) in one_of_each() {
        let (message, printed) = (error.to_string(), format!("{error:?}"));
        assert!(printed.starts_with(&message) && printed.contains(advice), "{printed}");
        assert!(!printed.contains(" { "), "names of fields: {printed}");
    }
}

/// The list above need not have every one.
#[test]
fn no_public_error_derives_debug() {
    let root = crate::sources::root();
    let mut files = vec![root.join("src"), root.join("crates")];
    let mut public = 0;
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for derived in text.split("#[derive(").skip(1) {
            let (derives, rest) = derived.split_once(")]").unwrap();
            let item = rest.lines().find(|line| line.contains("enum ") || line.contains("struct "));
            let item = item.unwrap_or_default();
            if !derives.contains("thiserror::Error") || !item.starts_with("pub ") {
                continue;
            }
            public += 1;
            assert!(!derives.contains("Debug"), "{}: `{item}`: use debug_in_words!", path.display());
        }
    }
    assert!(public >= 10, "{public}");
}
