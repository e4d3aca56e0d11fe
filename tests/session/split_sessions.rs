//! Sessions that own a part of the ranks, each as the session of a process of its own would: ranks meet over
//! TCP, devices are the CPU's lanes of one process, which is the only place where they can reach each other.

use std::sync::Arc;
use std::time::Duration;

use warpweft_backend::cpu::{CpuOptions, CpuWorld};
use warpweft_base::id::RankId;
use warpweft_format::Format;
use warpweft_session::checkpoint::{Checkpoint, PartFiles};
use warpweft_session::config::Config;
use warpweft_session::session::{Session, SessionError};
use warpweft_testing::port::Port;
use warpweft_testing::split::{config, feed, in_processes, in_processes_with, join, train};
use warpweft_testing::trainer::{Mischief, SIZE, Shaped, Trainer, losses, within_a_minute};

fn trainer() -> Trainer {
    Trainer::new(2, Format::NVFP4_2D)
}

/// The losses of one process, and its checkpoint after some of them.
fn alone(ranks: u32, steps: u32, exported_after: u32) -> (Vec<u32>, Checkpoint) {
    alone_with(config(), ranks, steps, exported_after)
}

fn alone_with(config: Config, ranks: u32, steps: u32, exported_after: u32) -> (Vec<u32>, Checkpoint) {
    within_a_minute(async move {
        let mut session = trainer().start(config, ranks).await.unwrap();
        let mut found = losses(&mut session, ranks, 0..exported_after).await;
        let checkpoint = session.export().await.unwrap();
        found.extend(losses(&mut session, ranks, exported_after..steps).await);
        (found, checkpoint)
    })
}

/// EX-2: the same bits, on every process, however ranks are split.
#[test]
fn losses_do_not_depend_on_how_ranks_are_split_over_processes() {
    let (expected, _) = alone(4, 5, 1);
    for ranks in [&[2, 2][..], &[1, 3], &[1, 1, 1, 1]] {
        let found = in_processes(&trainer(), ranks, &Mischief::default(), |_, mut session| async move {
            let found = train(&mut session, 0..5).await;
            session.close().await.unwrap();
            found
        });
        for found in found {
            assert_eq!(found, expected, "{ranks:?}");
        }
    }
}

/// EX-2, for outputs that are staged once per micro-batch.
#[test]
fn losses_of_micro_batches_do_not_depend_on_how_ranks_are_split_over_processes() {
    let shaped = Shaped { layers: 2, weights: 2, micro_batches: 2, ..Shaped::default() };
    let trainer = Trainer::shaped(shaped, Format::NVFP4_2D, &Config::default());
    let one = trainer.clone();
    let expected = within_a_minute(async move {
        let mut session = one.start(config(), 2).await.unwrap();
        losses(&mut session, 2, 0..3).await
    });
    let found = in_processes(&trainer, &[1, 1], &Mischief::default(), |_, mut session| async move {
        let found = train(&mut session, 0..3).await;
        session.close().await.unwrap();
        found
    });
    for found in found {
        assert_eq!(found, expected);
    }
}

#[test]
fn a_checkpoint_is_gathered_where_rank_0_is_and_goes_back_into_every_process() {
    let (expected, checkpoint) = alone(3, 6, 3);
    let given = checkpoint.clone();
    let found = in_processes(&trainer(), &[1, 2], &Mischief::default(), move |process, mut session| {
        let given = given.clone();
        async move {
            let mut found = train(&mut session, 0..3).await;
            assert!(matches!(session.export().await, Err(SessionError::Partial)));
            let exported = session.export_to_first().await.unwrap();
            assert_eq!(exported.is_some(), process == 0);
            assert!(exported.is_none_or(|exported| exported == given));
            train(&mut session, 7..9).await;
            session.import(&given).await.unwrap();
            found.extend(train(&mut session, 3..6).await);
            found
        }
    });
    for found in found {
        assert_eq!(found, expected);
    }
}

#[test]
fn different_checkpoints_are_refused_by_every_process_and_change_nothing() {
    let (expected, checkpoint) = alone(2, 4, 2);
    let found = in_processes(&trainer(), &[1, 1], &Mischief::default(), move |process, mut session| {
        let mut given = checkpoint.clone();
        async move {
            let mut found = train(&mut session, 0..2).await;
            given.optimizer_step += process as u32;
            let error = session.import(&given).await.unwrap_err();
            assert!(error.to_string().contains("different checkpoints"), "{error}");
            // One process has a checkpoint that fits nobody: the other gets word of it.
            if process == 1 {
                given.weights.pop();
            }
            let error = session.import(&given).await.unwrap_err().to_string();
            let word = ["rank 1 refused", "weights"][process];
            assert!(error.contains(word), "{error}");
            found.extend(train(&mut session, 2..4).await);
            found
        }
    });
    for found in found {
        assert_eq!(found, expected);
    }
}

/// One process drops the future of its import. Training must not go on from old weights there.
#[test]
fn an_import_whose_future_was_dropped_tells_its_refusal_to_whoever_asks_next() {
    let (expected, checkpoint) = alone(2, 4, 2);
    let found = in_processes(&trainer(), &[1, 1], &Mischief::default(), move |process, mut session| {
        let good = checkpoint.clone();
        async move {
            let mut found = train(&mut session, 0..2).await;
            let mut others = good.clone();
            others.optimizer_step += process as u32;
            let mut broken = good.clone();
            if process == 1 {
                broken.weights.pop();
            }
            for (given, words) in
                [(others, ["different checkpoints"; 2]), (broken, ["rank 1 refused", "weights"])]
            {
                let error = if process == 0 {
                    session.import(&given).await.unwrap_err()
                } else {
                    let polled = std::future::poll_fn(|context| {
                        let mut import = std::pin::pin!(session.import(&given));
                        // The other process may have been quicker, and then it gets the error at once.
                        std::task::Poll::Ready(match import.as_mut().poll(context) {
                            std::task::Poll::Ready(told) => told,
                            std::task::Poll::Pending => Ok(()),
                        })
                    });
                    match polled.await {
                        Err(error) => error,
                        Ok(()) => session.step("train").await.unwrap_err(),
                    }
                };
                assert!(matches!(&error, SessionError::Import { .. }), "{error}");
                assert!(error.to_string().contains(words[process]), "{error}");
            }
            found.extend(train(&mut session, 2..4).await);
            found
        }
    });
    for found in found {
        assert_eq!(found, expected);
    }
}

/// EX-2.
#[test]
fn a_closure_that_fails_in_one_process_is_named_in_all_and_the_sessions_go_on() {
    let mischief = Mischief::default();
    mischief.set(1);
    let shared = mischief.clone();
    let found = in_processes(&trainer(), &[1, 1], &mischief, move |_, mut session| {
        let mischief = shared.clone();
        async move {
            feed(&mut session, 0);
            let error = session.step("train").await.unwrap_err();
            assert!(
                matches!(error, SessionError::Closure { rank, panicked: None, .. } if rank == RankId::new(1)),
                "{error}"
            );
            // Both have seen it before either goes on: an evaluation is a meeting.
            for rank in session.own_ranks() {
                session.write_input("evaluate", rank, "input", &[0_f32; SIZE]).unwrap();
            }
            session.step("evaluate").await.unwrap_or_else(|error| panic!("{error}"));
            mischief.set(0);
            train(&mut session, 0..2).await;
            error.to_string()
        }
    });
    assert_eq!(found[0], found[1]);
}

/// EX-2, EX-5: only the last rank, of the last process, holds what cannot be trained on.
#[test]
fn a_master_that_overflows_in_one_process_is_named_in_all_and_an_import_heals_all() {
    for format in [Format::NVFP4_2D, Format::Bf16] {
        let trainer = Trainer::new(2, format);
        let (expected, checkpoint) = within_a_minute({
            let trainer = trainer.clone();
            async move {
                let mut session = trainer.start(config(), 3).await.unwrap();
                losses(&mut session, 3, 0..2).await;
                let checkpoint = session.export().await.unwrap();
                (losses(&mut session, 3, 2..4).await, checkpoint)
            }
        });
        let name = checkpoint.weights[0].name.clone();
        let found = in_processes(&trainer, &[1, 2], &Mischief::default(), move |_, mut session| {
            let (good, mut near) = (checkpoint.clone(), checkpoint.clone());
            // An update by this moment is infinite, and its gradients are those of any other step.
            *near.weights[0].states[0].last_mut().unwrap() = 3e38;
            *near.weights[0].states[1].last_mut().unwrap() = 0.0;
            async move {
                session.import(&near).await.unwrap();
                feed(&mut session, 2);
                let error = session.step("train").await.unwrap_err();
                let again = session.step("train").await.unwrap_err();
                assert_eq!(again.to_string(), error.to_string());
                assert_eq!(session.export_to_first().await.unwrap_err().to_string(), error.to_string());
                let SessionError::Diverged { step: 0, rank, value: Some(value) } = error else {
                    panic!("{error}")
                };
                session.import(&good).await.unwrap();
                (rank, value, train(&mut session, 2..4).await)
            }
        });
        let (rank, value, _) = &found[0];
        assert_eq!(
            (*rank, value.weight.as_str(), value.row, value.column),
            (RankId::new(2), &*name, SIZE - 1, SIZE - 1)
        );
        assert!(value.value.is_infinite(), "{value:?}");
        for (other, same, losses) in &found {
            assert_eq!((other, same, losses), (rank, value, &expected), "{format}");
        }
    }
}

#[test]
fn a_closure_that_panics_in_one_process_poisons_the_sessions_of_all() {
    let mischief = Mischief::default();
    mischief.set(2);
    let found = in_processes(&trainer(), &[1, 1], &mischief, |_, mut session| async move {
        feed(&mut session, 0);
        let first = session.step("train").await.unwrap_err().to_string();
        let second = session.step("train").await.unwrap_err().to_string();
        let kept = session.export_to_first().await.unwrap();
        assert!(kept.is_none_or(|kept| kept.optimizer_step == 0 && kept.weights.len() == 3));
        [first, second]
    });
    for [first, second] in &found {
        assert!(first.contains("rank 1 panicked"), "{first}");
        assert!(second.contains("poisoned") && second.contains("rank 1 panicked"), "{second}");
    }
}

#[test]
fn inputs_and_times_of_ranks_elsewhere_are_refused_by_name() {
    in_processes(&trainer(), &[1, 1], &Mischief::default(), |process, mut session| async move {
        let other = RankId::at(1 - process);
        let error = session.write_input("train", other, "input", &[0_f32; SIZE]).unwrap_err();
        assert!(matches!(error, SessionError::Elsewhere { rank, .. } if rank == other), "{error}");
        let none = session.write_input("train", RankId::new(2), "input", &[0_f32; SIZE]).unwrap_err();
        assert!(matches!(none, SessionError::NoRank { ranks: 2, .. }), "{none}");
        let error = session.intervals(other).unwrap_err();
        assert!(matches!(error, SessionError::Elsewhere { rank, .. } if rank == other), "{error}");
        let none = session.intervals(RankId::new(2)).unwrap_err();
        assert!(matches!(none, SessionError::NoRank { ranks: 2, .. }), "{none}");
        assert!(session.intervals(RankId::at(process)).unwrap().is_empty(), "no step has run");
    });
}

/// RV-3: who closes while others go on is named by them, at once.
#[test]
fn a_process_that_closes_its_session_is_named_by_the_others() {
    let found = in_processes(&trainer(), &[1, 1], &Mischief::default(), |process, mut session| async move {
        train(&mut session, 0..2).await;
        if process == 0 {
            return session.close().await.map_err(|error| error.to_string());
        }
        session.export_to_first().await.map(drop).map_err(|error| error.to_string())
    });
    assert_eq!(found[0], Ok(()));
    let error = found[1].clone().unwrap_err();
    assert!(error.contains("rank 0 was closed"), "{error}");
}

/// EX-2, and a checkpoint that only the first replica sends.
#[test]
fn replicas_may_be_processes_or_lie_across_them() {
    let mut replicated = config();
    replicated.mesh.dp_replicate = Some(2);
    let (expected, checkpoint) = alone_with(replicated.clone(), 4, 6, 3);
    for ranks in [&[2, 2][..], &[1, 3], &[3, 1]] {
        let given = checkpoint.clone();
        let work = move |process, mut session: Session| {
            let given = given.clone();
            async move {
                let mut found = train(&mut session, 0..3).await;
                let exported = session.export_to_first().await.unwrap();
                assert_eq!(exported.is_some(), process == 0);
                assert!(exported.is_none_or(|exported| exported == given));
                train(&mut session, 7..9).await;
                session.import(&given).await.unwrap();
                found.extend(train(&mut session, 3..6).await);
                found
            }
        };
        let found = in_processes_with(&replicated, &trainer(), ranks, &Mischief::default(), work);
        for found in found {
            assert_eq!(found, expected, "{ranks:?}");
        }
    }
}

/// EX-2: every process gets the same verdict on replicas, wherever they lie, and who does something else is named.
#[test]
fn replicas_are_compared_across_processes() {
    let mut replicated = config();
    replicated.mesh.dp_replicate = Some(2);
    let folder = tempfile::tempdir().unwrap();
    for ranks in [&[2, 2][..], &[1, 3]] {
        let files = PartFiles::new(folder.path());
        let work = move |process, mut session: Session| {
            let files = files.clone();
            async move {
                train(&mut session, 0..2).await;
                session.compare_replicas().await.unwrap();
                train(&mut session, 2..3).await;
                let ended = match process {
                    0 => session.compare_replicas().await,
                    _ => session.save_parts(&files, &Default::default()).await.map(drop),
                };
                ended.unwrap_err().to_string()
            }
        };
        let found = in_processes_with(&replicated, &trainer(), ranks, &Mischief::default(), work);
        assert!(found.iter().all(|error| error.contains("call the same in every process")), "{found:?}");
        assert!(found[0].contains("saves parts where another rank compares replicas"), "{found:?}");
    }
}

/// RV-2: who has nothing to copy waits for who has, and whoever requested something else is named.
#[test]
fn an_export_that_other_processes_did_not_ask_for_ends_with_the_names_of_both() {
    let folder = tempfile::tempdir().unwrap();
    let files = PartFiles::new(folder.path());
    let found = in_processes(&trainer(), &[1, 1], &Mischief::default(), move |process, mut session| {
        let files = files.clone();
        async move {
            train(&mut session, 0..2).await;
            let ended = match process {
                0 => session.export_to_first().await.map(drop),
                _ => session.save_parts(&files, &Default::default()).await.map(drop),
            };
            ended.unwrap_err().to_string()
        }
    });
    // Whoever finds it first ends the world for both.
    let names = ["saves parts", "exports a checkpoint", "call the same in every process"];
    for said in &found {
        assert!(names.iter().all(|name| said.contains(name)), "{found:?}");
    }
}

/// Ranks of a start that nobody waits for any more wait for no other process.
#[test]
fn a_start_whose_future_is_dropped_ends_the_start_of_the_other_processes() {
    within_a_minute(async {
        let device = Arc::new(CpuWorld::new(config().mesh_of(2).unwrap(), CpuOptions::default()).unwrap());
        let claimed = Port::claim();
        let (port, (dropped, is_dropped)) = (claimed.number(), std::sync::mpsc::channel());
        let start = move |process: u32, device: Arc<CpuWorld>| {
            let world = join(port, (process, 2), 1);
            let backends = world.own().map(|rank| device.backend(rank).unwrap()).collect();
            trainer().builder(config(), &Mischief::default()).start_in(world, backends)
        };
        let other = {
            let device = Arc::clone(&device);
            std::thread::spawn(move || {
                let starting = start(1, device);
                is_dropped.recv().unwrap();
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(starting).unwrap_err().to_string()
            })
        };
        let starting = start(0, device);
        // Long enough for its rank to wait for the other one; dropping it must end, whenever it comes.
        let given_up = tokio::time::timeout(Duration::from_millis(100), starting).await;
        assert!(given_up.is_err(), "the other process has not begun to start");
        dropped.send(()).unwrap();
        let error = other.join().unwrap();
        assert!(error.contains("given up while it started"), "{error}");
    });
}
