//! Failed starts: the cause is reported with its rank, or with the key that is at fault.

use super::{traced, trainer};
use warpweft_backend::BackendError;
use warpweft_backend::Transport;
use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::RankId;
use warpweft_plan::compute::{ComputeContext, ComputeError, Seat};
use warpweft_plan::model::{Call, Mesh};
use warpweft_plan::policy::Reduce;
use warpweft_session::config::{Capture, Config};
use warpweft_session::exec::ExecError;
use warpweft_session::session::initial::{MasterRows, zeros};
use warpweft_session::session::{Session, SessionError};
use warpweft_testing::meddler::{Switch, backends, failing_at, with_one_too_slow};
use warpweft_testing::trainer::{Mischief, feed, initial, losses, within_a_minute};
use warpweft_testing::wrapped::Moment;

#[test]
fn too_few_too_many_or_mixed_backends_are_refused() {
    within_a_minute(async {
        let mut mixed = backends(2);
        mixed.truncate(1);
        mixed.extend(backends(3).into_iter().nth(1));
        let mut swapped = backends(2);
        swapped.reverse();
        let mut many = backends(2);
        many.extend(backends(3).into_iter().nth(2));
        let cases = [
            (backends(3).into_iter().take(2).collect(), "3 ranks and 2 backends"),
            (many, "backend 2 speaks for rank 2 of 3"),
            (mixed, "backend 1 speaks for rank 1 of 3"),
            (swapped, "backend 0 speaks for rank 1 of 2"),
        ];
        for (ranks, expected) in cases {
            let builder = trainer().builder(Config::default(), &Mischief::default());
            let error = builder.start::<_>(ranks).await.unwrap_err();
            assert!(matches!(&error, SessionError::Backends { .. }), "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        }
    });
}

#[test]
fn a_rank_that_cannot_be_set_up_is_reported_with_its_own_words_whoever_replies_first() {
    within_a_minute(async {
        for victim in [0, 2] {
            let switch = Switch::default();
            switch.on();
            let ranks = failing_at(Moment::Reserve, RankId::new(victim), 3, &switch);
            let builder = trainer().builder(Config::default(), &Mischief::default());
            let error = builder.start(ranks).await.unwrap_err();
            let cause =
                BackendError::Host { rank: RankId::new(victim), bytes: 0, reason: "the cable is out".into() };
            assert!(
                matches!(&error, SessionError::Exec(ExecError::Backend(found)) if *found == cause),
                "{error:?}"
            );
        }
    });
}

/// RV-2. Whoever reads it knows which key to raise, and gets once what to do.
#[test]
fn a_rank_that_is_too_slow_is_named_with_the_key_of_the_deadline_and_one_advice() {
    within_a_minute(async {
        let config = Config { deadline_s: 2.0, capture: Capture::Step, ..Config::default() };
        let (ranks, gate) = with_one_too_slow(|_, _| {});
        let slow = move |rank: RankId| {
            if rank == RankId::new(1) {
                gate.wait();
            }
            |_: &Call, _: &ComputeContext<'_, CpuSurface>| Ok::<_, ComputeError>(())
        };
        let builder = Session::builder(config.clone(), slow).program(trainer().train).initialize(initial);
        let error = builder.start(ranks).await.unwrap_err().to_string();
        assert!(error.contains("rank 1 did not come within 2s (deadline_s)"), "{error}");
        assert!(error.contains("rank 1: it makes its closures"), "{error}");
        assert!(!error.contains("import"), "there is nothing to import at the start: {error}");

        let (ranks, _) = with_one_too_slow(|moment, gate| {
            if moment == Moment::Captured {
                gate.wait();
            }
        });
        let mut session = trainer().builder(config, &Mischief::default()).start(ranks).await.unwrap();
        losses(&mut session, 2, 0..1).await;
        feed(&mut session, "train", 2, 1);
        let error = session.step("train").await.unwrap_err();
        assert!(matches!(&error, SessionError::Poisoned { exports: false, .. }), "{error}");
        let said = error.to_string();
        assert!(said.contains("rank 1 did not come within 2s (deadline_s)"), "{said}");
        assert_eq!((said.matches("import").count(), said.matches("start a new").count()), (1, 1), "{said}");
    });
}

/// RV-2.
#[test]
fn a_rank_whose_initializer_is_too_slow_is_named_with_what_it_was_doing() {
    within_a_minute(async {
        let config = Config { deadline_s: 2.0, ..Config::default() };
        let builder = trainer().builder(config, &Mischief::default());
        let (ranks, gate) = with_one_too_slow(|_, _| {});
        let builder = builder.initialize(move |MasterRows { first_row, .. }, values| {
            values.fill(0.5);
            if first_row > 0 {
                gate.wait();
            }
        });
        let error = builder.start(ranks).await.unwrap_err().to_string();
        assert!(
            error.contains("rank 1 did not come within 2s (deadline_s); rank 1: it fills its masters"),
            "{error}"
        );
        assert!(error.contains("raise deadline_s"), "{error}");
    });
}

#[test]
fn an_initializer_that_panics_fails_the_start_with_its_words() {
    within_a_minute(async {
        let builder = trainer().builder(Config::default(), &Mischief::default());
        let builder = builder.initialize(|MasterRows { weight, first_row, .. }, _| {
            assert!(weight != "layer1" || first_row == 0, "no masters for row {first_row}");
        });
        let error = builder.start_cpu(2).await.unwrap_err();
        let SessionError::Exec(ExecError::Panicked { rank, words }) = &error else { panic!("{error:?}") };
        assert_eq!((*rank, words.as_str()), (RankId::new(1), "no masters for row 48"));
    });
}

#[test]
fn a_factory_that_fails_on_one_rank_fails_the_start_with_its_words_and_the_rank() {
    within_a_minute(async {
        let factory = |seat: Seat| {
            if seat.rank == RankId::new(1) {
                return Err(ComputeError::closure("no tokenizer in /data"));
            }
            Ok(|_: &Call, _: &ComputeContext<'_, CpuSurface>| Ok::<_, ComputeError>(()))
        };
        let builder =
            Session::try_builder(Config::default(), factory).program(trainer().train).initialize(initial);
        let error = builder.start_cpu(3).await.unwrap_err();
        let SessionError::Exec(ExecError::Backend(BackendError::Lane { rank, reason, .. })) = &error else {
            panic!("{error:?}")
        };
        assert_eq!(*rank, RankId::new(1));
        assert!(reason.contains("no tokenizer in /data"), "{reason}");
        assert!(error.to_string().contains("rank 1"), "{error}");
    });
}

/// The trace of the run that failed before is what somebody who starts it again may want to see.
#[test]
fn a_start_that_fails_leaves_the_last_trace_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    std::fs::write(&path, "old").unwrap();
    let config = traced(&path);
    within_a_minute(async move {
        let fails = |seat: Seat| {
            if seat.rank == RankId::new(1) {
                return Err(ComputeError::closure("no data"));
            }
            Ok(|_: &Call, _: &ComputeContext<'_, CpuSurface>| Ok::<_, ComputeError>(()))
        };
        let builder = Session::try_builder(config, fails).program(trainer().train).initialize(initial);
        let error = builder.start_cpu(2).await.unwrap_err();
        assert!(error.to_string().contains("no data"), "{error}");
    });
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(folder.path().read_dir().unwrap().count(), 1, "and nothing beside it");
}

#[test]
fn a_reduction_in_the_order_of_nccl_is_refused_at_the_start() {
    within_a_minute(async {
        let config = Config { reduce: Reduce::Nccl, ..Config::default() };
        let error = trainer().start(config, 1).await.unwrap_err();
        assert!(matches!(error, SessionError::Unsupported { key: "reduce", .. }), "{error}");
        assert!(error.to_string().contains("use \"ordered\""), "{error}");
    });
}

#[test]
fn a_transport_that_only_gpus_have_is_refused_on_the_cpu_with_where_it_came_from() {
    within_a_minute(async {
        for (transport, config) in [
            ("\"nccl\"", Config { transport: Transport::Nccl, ..Config::default() }),
            ("\"peer\"", Config::from_toml_str("transport = 'peer'", "run.toml").unwrap()),
        ] {
            let origin = if transport.contains("peer") { "run.toml:1" } else { "set by the program" };
            let error = trainer().start(config, 1).await.unwrap_err().to_string();
            assert!(error.starts_with(&format!("{origin}: `transport` is {transport}")), "{error}");
            assert!(error.contains("remove it"), "{error}");
        }
    });
}

#[test]
fn a_trace_that_cannot_be_written_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let config = traced(&folder.path().join("missing").join("trace.json"));
    within_a_minute(async move {
        let error = trainer().start(config, 1).await.unwrap_err();
        assert!(matches!(error, SessionError::Trace { .. }), "{error}");
        assert!(error.to_string().contains("check the path, and that its folder is there"), "{error}");
    });
}

#[test]
fn a_start_on_no_ranks_or_no_devices_says_how_many_there_must_be() {
    within_a_minute(async {
        let silent = |_: RankId| |_: &Call, _: &ComputeContext<'_, CpuSurface>| Ok::<_, ComputeError>(());
        let builder =
            Session::builder(Config::default(), silent).program(trainer().train).initialize(initial);
        let error = builder.start_cpu(0).await.unwrap_err().to_string();
        assert!(error.contains("start at least one") && error.contains("start_cpu(1)"), "{error}");
    });
}

/// Zeros are a choice like any other: two layers that both begin with them learn nothing, and every step is a success.
#[test]
fn a_session_does_not_start_before_somebody_says_what_its_weights_begin_with() {
    within_a_minute(async {
        let silent = |_: RankId| |_: &Call, _: &ComputeContext<'_, CpuSurface>| Ok::<_, ComputeError>(());
        let builder = || Session::builder(Config::default(), silent).program(trainer().train);
        let error = builder().start_cpu(2).await.unwrap_err();
        assert!(matches!(&error, SessionError::NotInitialized { weight } if weight == "layer0"), "{error}");
        let said = error.to_string();
        for choice in ["initial::normal", "closure", "PretrainedFiles", "checkpoint", "initial::zeros"] {
            assert!(said.contains(choice), "{choice}: {said}");
        }
        let mut session = builder().initialize(zeros()).start_cpu(2).await.unwrap();
        let weights = session.export().await.unwrap().weights;
        assert!(weights.iter().flat_map(|weight| &weight.master).all(|value| *value == 0.0));
    });
}

/// The most ranks of a mesh are 65,536, and each takes several threads.
#[test]
fn more_ranks_than_the_system_has_threads_for_are_refused_with_what_they_take_and_what_there_is() {
    let maps = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    let maps: Option<u64> = maps.and_then(|maps| maps.trim().parse().ok());
    if maps.is_none_or(|maps| maps > 1 << 19) {
        println!("this system may have room for them");
        return;
    }
    within_a_minute(async {
        let builder = trainer().builder(Config::default(), &Mischief::default());
        let error = builder.start_cpu(Mesh::MAX_RANKS).await.unwrap_err();
        let found = matches!(
            &error,
            SessionError::Exec(ExecError::Backend(BackendError::Room { ranks: 65_536, .. }))
        );
        let said = error.to_string();
        assert!(found && said.contains("threads and") && said.contains("the system allows"), "{said}");
    });
}
