//! Whole-matrix optimizers: who gets which matrix, what comes back, and failures.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use warpweft_backend::cpu::CpuSurface;
use warpweft_format::Format;
use warpweft_plan::compute::{ComputeError, PrepareContext, TransformContext, UpdateContext, UpdatedWeight};
use warpweft_session::checkpoint::{CheckpointStore, FileStore};
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{Session, SessionError};
use warpweft_testing::trainer::{Mischief, SIZE, Shaped, Trainer, feed, losses, within_a_minute};

use super::config;
use super::optimizers::{lost_steps_change_nothing, the_first_step_ends_with};

type Prepare<'a, 'b> = &'a PrepareContext<'b, CpuSurface>;
type Transform<'a, 'b> = &'a TransformContext<'b, CpuSurface>;
type Update<'a, 'b> = &'a UpdateContext<'b, CpuSurface>;
type Done = Result<(), ComputeError>;

/// Momentum, where a list is kept for it.
fn momentum(context: Prepare<'_, '_>) -> Done {
    let factor = context.vote()?[0].factor();
    for weight in context.weights() {
        let (gradient, mut rows) = (context.main_grad(weight.id)?, context.prepared(weight.id)?);
        let mut momentum = context.state(weight.id, "first").ok();
        for at in 0..rows.len() {
            rows[at] = factor * gradient[at];
            if let Some(momentum) = &mut momentum {
                rows[at] += 0.5 * momentum[at];
                momentum[at] = rows[at];
            }
        }
    }
    Ok(())
}

/// Each row by the norm of the matrix and by that of the row after it: every row depends on its place and on all.
fn mix(context: Transform<'_, '_>) -> Done {
    let (matrix, mut transformed) = (context.matrix()?, context.transformed()?);
    let columns = context.weight().columns;
    let norm = |values: &[f32]| values.iter().map(|value| value * value).sum::<f32>().sqrt() + 1e-12;
    let (all, rows) = (norm(&matrix), matrix.chunks_exact(columns));
    let after = rows.clone().cycle().skip(1);
    for ((to, row), next) in transformed.chunks_exact_mut(columns).zip(rows).zip(after) {
        for ((to, value), next) in to.iter_mut().zip(row).zip(next) {
            *to = (value + 0.125 * next) / all;
        }
    }
    Ok(())
}

/// By what was transformed, or by the gradient where nothing was.
fn descend(context: Update<'_, '_>) -> Done {
    let factor = context.vote()?[0].factor();
    for weight in context.weights() {
        let rate = context.hyperparameters(weight.id)?[0].learning_rate;
        let mut master = context.master(weight.id)?;
        if weight.whole_matrix {
            let rows = context.transformed(weight.id)?;
            master.iter_mut().zip(rows.iter()).for_each(|(p, row)| *p -= 30.0 * rate * row);
        } else {
            let gradient = context.main_grad(weight.id)?;
            master.iter_mut().zip(gradient.iter()).for_each(|(p, g)| *p -= 3.0 * rate * factor * g);
        }
    }
    Ok(())
}

const RULES: &str = "[[weights]]\nmatch = 'layer*'\nwhole_matrix = true\n";

fn by_matrices(lists: u8, rules: &str, mut config: Config) -> Config {
    config.optimizer.custom_states = Some(lists);
    config.weights = Config::from_toml_str(&format!("{RULES}{rules}"), "rules").unwrap().weights;
    config
}

async fn start(layers: usize, format: Format, config: Config, ranks: u32) -> Session {
    let trainer = Trainer::refined(layers, format, &config);
    let parts = (momentum, mix, descend);
    trainer.builder_by_matrices(config, &Mischief::default(), parts).start_cpu(ranks).await.unwrap()
}

/// A value that says which weight's it is, and where it stands.
fn mark(weight: &UpdatedWeight, row: usize, column: usize) -> f32 {
    ((weight.id.number() as usize * SIZE + row) * SIZE + column) as f32
}

/// For rows that divide and rows that do not, ranks without rows, more matrices than ranks and fewer.
#[test]
fn the_rows_of_every_rank_come_together_as_one_matrix_and_go_back_where_they_came_from() {
    within_a_minute(async {
        for (ranks, replicas, format) in [
            (1, 1, Format::F32),
            (2, 1, Format::NVFP4_2D),
            (3, 1, Format::Bf16),
            (4, 2, Format::Bf16),
            (7, 1, Format::NVFP4_2D),
        ] {
            for (depth, capture, check) in [(0, Capture::Off, true), (2, Capture::Step, false)] {
                let layers = 5;
                let mut config = by_matrices(0, "", config(depth, capture, check));
                config.mesh.dp_replicate = Some(replicas);
                let trainer = Trainer::refined(layers, format, &config);
                let seen = Arc::new(Mutex::new(Vec::new()));
                let seeing = Arc::clone(&seen);
                let prepare = |context: Prepare<'_, '_>| {
                    for weight in context.weights() {
                        let mut rows = context.prepared(weight.id)?;
                        for at in 0..rows.len() {
                            rows[at] =
                                mark(weight, weight.first_row + at / weight.columns, at % weight.columns);
                        }
                    }
                    Ok(())
                };
                let transform = move |context: Transform<'_, '_>| {
                    let (matrix, mut transformed) = (context.matrix()?, context.transformed()?);
                    let weight = context.weight();
                    assert_eq!((weight.first_row, weight.rows, matrix.len()), (0, SIZE, SIZE * SIZE));
                    for at in 0..matrix.len() {
                        assert_eq!(matrix[at], mark(weight, at / SIZE, at % SIZE), "{}", weight.name);
                        transformed[at] = -matrix[at];
                    }
                    seeing.lock().unwrap().push((weight.name.clone(), context.rank().number()));
                    Ok(())
                };
                let update = |context: Update<'_, '_>| {
                    for weight in context.weights() {
                        drop(context.master(weight.id)?);
                        if !weight.whole_matrix {
                            let refused = context.transformed(weight.id).map(drop).unwrap_err().to_string();
                            assert!(refused.contains("`bias`, whose matrix is not made whole"), "{refused}");
                            continue;
                        }
                        let rows = context.transformed(weight.id)?;
                        assert_eq!(rows.len(), weight.rows * weight.columns);
                        for at in 0..rows.len() {
                            let (row, column) = (weight.first_row + at / SIZE, at % SIZE);
                            assert_eq!(rows[at], -mark(weight, row, column), "{}", weight.name);
                        }
                    }
                    Ok(())
                };
                let parts = (prepare, transform, update);
                let builder = trainer.builder_by_matrices(config, &Mischief::default(), parts);
                let mut session = builder.start_cpu(ranks).await.unwrap();
                losses(&mut session, ranks, 0..3).await;
                let mut seen = seen.lock().unwrap().clone();
                seen.sort();
                // Every matrix on one rank of each replica, in each step; the ranks take turns.
                let shards = ranks / replicas;
                let expected = (0..layers as u32).flat_map(|layer| {
                    (0..replicas).flat_map(move |replica| {
                        vec![(format!("layer{layer}"), replica * shards + layer % shards); 3]
                    })
                });
                assert_eq!(seen, expected.collect::<Vec<_>>(), "{ranks} ranks");
            }
        }
    });
}

/// EX-1. A rank that has all rows of a weight needs nobody: what it makes of the matrix is what all make together.
#[test]
fn sharded_weights_are_updated_with_the_bits_of_replicated_ones() {
    within_a_minute(async {
        for ranks in [1, 2, 4] {
            let mut left = Vec::new();
            for rules in ["", "placement = 'replicated'"] {
                let config = by_matrices(1, rules, config(1, Capture::Off, true));
                let mut session = start(3, Format::F32, config, ranks).await;
                let losses = losses(&mut session, ranks, 0..5).await;
                assert!(f32::from_bits(losses[4]) < f32::from_bits(losses[0]), "it learns");
                let checkpoint = session.export().await.unwrap();
                session.compare_replicas().await.unwrap();
                let values = checkpoint.weights.into_iter().map(|weight| (weight.master, weight.states));
                left.push((losses, values.collect::<Vec<_>>()));
            }
            assert!(left[0] == left[1], "{ranks} ranks");
        }
    });
}

/// EX-1, PL-7.
#[test]
fn a_custom_optimizer_by_matrices_gives_the_same_bits_for_every_depth_capture_and_number_of_communicators() {
    within_a_minute(async {
        let mut all = Vec::new();
        for (depth, capture, communicators) in
            [(0, Capture::Off, 1), (1, Capture::Step, 2), (2, Capture::Segments, 3), (4, Capture::Step, 3)]
        {
            let mut config = by_matrices(2, "", config(depth, capture, true));
            config.communicators = Some(communicators);
            let trainer = Trainer::with_dynamic(
                if capture == Capture::Segments { &["f1"] } else { &[] },
                Shaped { layers: 3, weights: 3, ..Shaped::default() },
                Format::NVFP4_2D,
                &config,
            );
            let parts = (momentum, mix, descend);
            let builder = trainer.builder_by_matrices(config, &Mischief::default(), parts);
            let mut session = builder.start_cpu(3).await.unwrap();
            let losses = losses(&mut session, 3, 0..5).await;
            all.push((losses, session.export().await.unwrap()));
        }
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
    });
}

/// What is kept of rows is all that there is to save, so any number of ranks goes on from it.
#[test]
fn training_by_matrices_goes_on_from_its_checkpoint_bit_for_bit() {
    within_a_minute(async {
        let made = || by_matrices(1, "", config(1, Capture::Off, true));
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::new(folder.path().join("whole.safetensors"));
        let mut first = start(2, Format::NVFP4_2D, made(), 2).await;
        losses(&mut first, 2, 0..3).await;
        let checkpoint = first.export().await.unwrap();
        store.save(&checkpoint).await.unwrap();
        let expected = losses(&mut first, 2, 3..6).await;
        let mut second = start(2, Format::NVFP4_2D, made(), 2).await;
        second.import(&store.load().await.unwrap()).await.unwrap();
        assert_eq!(losses(&mut second, 2, 3..6).await, expected);
        let mut third = start(2, Format::NVFP4_2D, made(), 5).await;
        third.import(&store.load().await.unwrap()).await.unwrap();
        assert!(third.export().await.unwrap() == checkpoint);
    });
}

/// A step that is skipped calls no part of a rule, on no rank.
#[test]
fn a_skipped_step_changes_nothing_that_a_custom_optimizer_by_matrices_keeps() {
    within_a_minute(async {
        for capture in [Capture::Off, Capture::Step] {
            let config = by_matrices(1, "", config(1, capture, false));
            let trainer = Trainer::refined(2, Format::NVFP4_2D, &config);
            let (mischief, runs) = (Mischief::default(), Arc::new(AtomicU32::new(0)));
            let [prepared, transformed] = [(); 2].map(|()| Arc::clone(&runs));
            let parts = (
                move |context: Prepare<'_, '_>| {
                    prepared.fetch_add(1, Ordering::SeqCst);
                    momentum(context)
                },
                move |context: Transform<'_, '_>| {
                    transformed.fetch_add(100, Ordering::SeqCst);
                    mix(context)
                },
                descend,
            );
            let mut session =
                trainer.builder_by_matrices(config, &mischief, parts).start_cpu(2).await.unwrap();
            losses(&mut session, 2, 0..2).await;
            // Two ranks prepare one round in each of two steps, and each has a matrix.
            assert_eq!(runs.load(Ordering::SeqCst), 404);
            lost_steps_change_nothing(&mut session, &mischief, &runs).await;
        }
    });
}

/// EX-4. Every kind of failure ends with its cause, whichever part of the optimizer it is in.
#[test]
fn a_part_of_a_custom_optimizer_that_fails_or_panics_or_leaves_something_out_ends_the_session_with_its_words()
{
    within_a_minute(async {
        type Parts = (fn(Prepare<'_, '_>) -> Done, fn(Transform<'_, '_>) -> Done);
        let cases: [(Parts, &[&str]); 9] = [
            (
                (|_| Err(ComputeError::closure("too steep")), mix),
                &["too steep", "import the last checkpoint"],
            ),
            (
                (|_| panic!("over the edge"), mix),
                &["preparation of `layer0` and 1 more", "panicked: over the edge"],
            ),
            ((|_| Ok(()), mix), &["without requesting the prepared rows of `layer0`"]),
            (
                (momentum, |_| Err(ComputeError::closure("too flat"))),
                &["too flat", "import the last checkpoint"],
            ),
            (
                (momentum, |context| panic!("no root on {}", context.rank())),
                &["transformation of `layer", "panicked: no root on rank"],
            ),
            ((momentum, |_| Ok(())), &["without requesting the transformed matrix of `layer"]),
            // What lay there before is in none of them.
            (
                (
                    |context| {
                        momentum(context)?;
                        context.weights().try_for_each(|weight| {
                            let left = f32::from_bits(u32::MAX);
                            context.prepared(weight.id).map(|mut rows| rows[3..5].fill(left))
                        })
                    },
                    mix,
                ),
                &[
                    "preparation of `layer0` and 1 more",
                    "the prepared rows of `layer0`",
                    "left 2 of its",
                    "at 3 (",
                ],
            ),
            (
                (
                    |context| {
                        context.weights().try_for_each(|weight| {
                            let gradient = context.main_grad(weight.id)?;
                            let mut rows = context.prepared(weight.id)?;
                            rows.iter_mut().zip(gradient.iter()).for_each(|(row, g)| *row += g);
                            Ok(())
                        })
                    },
                    mix,
                ),
                &["the prepared rows of `layer0`", "the first at 0 ("],
            ),
            (
                (momentum, |context| {
                    let matrix = context.matrix()?;
                    let half = matrix.len() / 2;
                    context.transformed()?[..half].copy_from_slice(&matrix[..half]);
                    Ok(())
                }),
                &["transformation of `layer", "the transformed matrix of `layer", "write every element"],
            ),
        ];
        for ((prepare, transform), words) in cases {
            let config = by_matrices(1, "", config(1, Capture::Off, true));
            let trainer = Trainer::refined(2, Format::Bf16, &config);
            let parts = (prepare, transform, descend);
            let builder = trainer.builder_by_matrices(config, &Mischief::default(), parts);
            let mut session = builder.start_cpu(2).await.unwrap();
            the_first_step_ends_with(&mut session, words).await;
        }
    });
}

/// EX-5. What came of a matrix is checked where it is put into a master.
#[test]
fn a_matrix_that_is_not_finite_is_reported_by_weight_row_and_column_of_the_master() {
    within_a_minute(async {
        let config = by_matrices(1, "", config(1, Capture::Off, true));
        let trainer = Trainer::refined(2, Format::NVFP4_2D, &config);
        let broken = |context: Transform<'_, '_>| {
            mix(context)?;
            if context.weight().name == "layer1" {
                context.transformed()?[(SIZE - 1) * SIZE + 3] = f32::NAN;
            }
            Ok(())
        };
        let parts = (momentum, broken, descend);
        let builder = trainer.builder_by_matrices(config, &Mischief::default(), parts);
        let mut session = builder.start_cpu(2).await.unwrap();
        feed(&mut session, "train", 2, 0);
        let error = session.step("train").await.unwrap_err();
        assert!(matches!(error, SessionError::Diverged { .. }), "{error}");
        let said = error.to_string();
        assert!(
            said.contains(&format!("the master NaN of `layer1` in row {}, column 3", SIZE - 1)),
            "{said}"
        );
    });
}

#[test]
fn whole_matrices_without_a_custom_optimizer_for_them_are_refused_before_the_start() {
    within_a_minute(async {
        let config = by_matrices(1, "", config(1, Capture::Off, true));
        let trainer = Trainer::refined(2, Format::Bf16, &config);
        let builder = trainer.builder_with_optimizer(config.clone(), &Mischief::default(), descend);
        let error = builder.start_cpu(2).await.unwrap_err().to_string();
        assert!(error.contains("`layer0` is to be updated as a whole matrix"), "{error}");
        assert!(error.contains("Optimizer::takes_whole_matrices"), "{error}");
        // Neither are parts of a rule left out without a word, unless what they are for is frozen for a while.
        let without = Config { weights: Vec::new(), ..config.clone() };
        let parts = || (momentum, mix, descend);
        let builder = Trainer::refined(2, Format::Bf16, &without).builder_by_matrices(
            without,
            &Mischief::default(),
            parts(),
        );
        let error = builder.start_cpu(2).await.unwrap_err().to_string();
        assert!(error.contains("no weight is to be updated as a whole matrix"), "{error}");
        let frozen = by_matrices(1, "frozen = true", super::config(1, Capture::Off, true));
        let mut session = start(2, Format::Bf16, frozen, 2).await;
        losses(&mut session, 2, 0..2).await;
        let adam = Config { optimizer: super::config(1, Capture::Off, true).optimizer, ..config };
        let error = trainer.start(adam, 2).await.unwrap_err().to_string();
        assert!(
            error.contains("`layer0` is to be updated as a whole matrix")
                && error.contains("SessionBuilder::optimizer"),
            "{error}"
        );
    });
}
