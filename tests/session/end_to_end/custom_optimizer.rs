//! Custom optimizers in place of Adam: their inputs, their states, and their failures.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::RankId;
use warpweft_format::{ElementType, Format};
use warpweft_plan::compute::{ComputeError, Optimizer, UpdateContext};
use warpweft_plan::layout::aligned;
use warpweft_session::checkpoint::{Checkpoint, CheckpointStore, FileStore, OptimizerIdentity, PartFiles};
use warpweft_session::config::{Capture, Config, Scaling};
use warpweft_session::session::{Outcome, Session, SessionError};
use warpweft_testing::custom_adamw::adamw;
use warpweft_testing::custom_optimizer::{self, ByRows};
use warpweft_testing::trainer::{Mischief, SIZE, Shaped, Trainer, feed, losses, within_a_minute};

use super::config;

type Context<'a, 'b> = &'a UpdateContext<'b, CpuSurface>;

/// Descent along the gradient, with what is kept of earlier ones where there is a list for it.
fn descent(context: Context<'_, '_>) -> Result<(), ComputeError> {
    let factor = context.vote()?[0].factor();
    for weight in context.weights() {
        let rate = context.hyperparameters(weight.id)?[0].learning_rate;
        let (mut master, gradient) = (context.master(weight.id)?, context.main_grad(weight.id)?);
        let mut momentum = context.state(weight.id, "first").ok();
        for at in 0..master.len() {
            let mut step = factor * gradient[at];
            if let Some(momentum) = &mut momentum {
                step += 0.5 * momentum[at];
                momentum[at] = step;
            }
            master[at] -= 3.0 * rate * step;
        }
    }
    Ok(())
}

fn own(lists: u8, mut config: Config) -> Config {
    config.optimizer.custom_states = Some(lists);
    config
}

/// What checkpoints say of the optimizers here.
fn by_rows(lists: usize) -> OptimizerIdentity {
    let states = custom_optimizer::states(lists).iter().map(|state| (*state).to_owned());
    OptimizerIdentity::Custom { name: "by rows".to_owned(), states: states.collect() }
}

/// The same values, whatever made them.
fn alike(own: &Checkpoint, library: &Checkpoint) -> bool {
    let states = own.weights.first().map_or(0, |weight| weight.states.len());
    assert_eq!(
        [own, library].map(|of| of.optimizer_identity.clone()),
        [Some(by_rows(states)), Some(OptimizerIdentity::Adam)]
    );
    (own.optimizer_step, &own.weights) == (library.optimizer_step, &library.weights)
}

async fn start(
    trainer: &Trainer,
    config: Config,
    ranks: u32,
    rule: fn(Context<'_, '_>) -> Result<(), ComputeError>,
) -> Session {
    trainer.builder_with_optimizer(config, &Mischief::default(), rule).start_cpu(ranks).await.unwrap()
}

/// EX-1: the same masters, moments, planes and losses, so everything that Adam gets a rule gets: the factor with its
/// clipping, the rate, the decay of every parameter group, and gradients of all ranks and replicas.
#[test]
fn a_custom_optimizer_that_computes_adamw_leaves_the_bits_of_the_library_s_own() {
    within_a_minute(async {
        let groups = "[[weights]]\nmatch = 'layer1'\nweight_decay = 0.25\nlr_scale = 0.5\n\
                      [[weights]]\nmatch = 'layer2'\nplacement = 'replicated'";
        for (format, replicas) in
            [(Format::NVFP4_2D, 1), (Format::Bf16, 2), (Format::Mxfp8, 1), (Format::F32, 1)]
        {
            for (depth, capture) in [(0, Capture::Off), (2, Capture::Step)] {
                let mut config = config(depth, capture, true);
                config.weights = Config::from_toml_str(groups, "groups").unwrap().weights;
                config.mesh.dp_replicate = Some(replicas);
                config.optimizer.weight_decay = 0.01;
                let trainer = Trainer::refined(3, format, &config);
                let mut library = trainer.start(config.clone(), 4).await.unwrap();
                let expected = losses(&mut library, 4, 0..5).await;
                let mut session = start(&trainer, own(2, config), 4, adamw).await;
                assert_eq!(losses(&mut session, 4, 0..5).await, expected, "{format}, depth {depth}");
                assert!(
                    alike(&session.export().await.unwrap(), &library.export().await.unwrap()),
                    "{format}"
                );
            }
        }
    });
}

/// PL-6: what a rule does not keep takes no memory.
#[test]
fn a_custom_optimizer_has_as_many_lists_as_it_asks_for_and_memory_for_no_others() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let mut resident = Vec::new();
        for lists in [0, 1, 2, 3] {
            let mut session = start(&trainer, own(lists, config(1, Capture::Step, true)), 2, descent).await;
            resident.push(session.plan("train").unwrap().arena.resident_bytes);
            let losses = losses(&mut session, 2, 0..6).await;
            assert!(f32::from_bits(losses[5]) < f32::from_bits(losses[0]), "{lists} lists: it learns");
            let checkpoint = session.export().await.unwrap();
            assert_eq!(checkpoint.optimizer_step, 6);
            for weight in &checkpoint.weights {
                assert_eq!(weight.states.len(), usize::from(lists), "{}", weight.name);
                assert_eq!(
                    weight.states.iter().take(1).flatten().any(|value| *value != 0.0),
                    lists > 0,
                    "{}",
                    weight.name
                );
            }
        }
        // Half of two layers each, and a bias.
        let list = 2 * aligned(4 * SIZE * SIZE / 2) + aligned(4 * SIZE);
        let steps: Vec<usize> = resident.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(steps, [list; 3]);
    });
}

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
            // Whoever knows better may say so, and a file that does not say whose it is counts lists alone.
            session.import(&Checkpoint { optimizer_identity: None, ..whole.clone() }).await.unwrap();
            session.import(&whole.restart_optimizer()).await.unwrap();
            session.import_parts(&parts.restart_optimizer()).await.unwrap();
            assert_eq!(session.export().await.unwrap().optimizer_step, 0);
        }
    });
}

/// A step that is skipped calls no rule, on no rank; the next one goes on as if it had not been.
#[test]
fn a_skipped_step_changes_nothing_that_a_custom_optimizer_keeps() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        for capture in [Capture::Off, Capture::Step] {
            let (mischief, runs) = (Mischief::default(), Arc::new(AtomicU32::new(0)));
            let counted = Arc::clone(&runs);
            let rule = move |context: Context<'_, '_>| {
                counted.fetch_add(1, Ordering::SeqCst);
                descent(context)
            };
            let builder = trainer.builder_with_optimizer(own(1, config(1, capture, false)), &mischief, rule);
            let mut session = builder.start_cpu(2).await.unwrap();
            losses(&mut session, 2, 0..2).await;
            // Two ranks, two steps, sharded weights and the bias.
            assert_eq!(runs.load(Ordering::SeqCst), 8);
            let before = session.export().await.unwrap();
            mischief.set(3);
            feed(&mut session, "train", 2, 2);
            let report = session.step("train").await.unwrap();
            assert!(matches!(report.outcome, Outcome::Skipped { .. }), "{:?}", report.outcome);
            mischief.set(1);
            assert!(matches!(session.step("train").await, Err(SessionError::Closure { .. })));
            assert_eq!(runs.load(Ordering::SeqCst), 8);
            assert!(session.export().await.unwrap() == before);
            mischief.set(0);
            losses(&mut session, 2, 3..4).await;
            assert!(session.export().await.unwrap() != before);
        }
    });
}

/// EX-1: accumulated steps are one update by the mean of their gradients.
#[test]
fn steps_that_are_added_up_give_a_custom_optimizer_the_gradient_of_all_of_them() {
    within_a_minute(async {
        // One layer and one rank: nothing else is added up, so every sum is exact.
        let mut trainer = Trainer::new(1, Format::Bf16);
        trainer.train = trainer.train.accumulating().unwrap();
        let mut left = Vec::new();
        for accumulates in [false, true] {
            let mut session = start(&trainer, own(1, config(1, Capture::Off, true)), 1, descent).await;
            for step in 0..3 {
                feed(&mut session, "train", 1, step);
                if accumulates {
                    session.accumulate("train").await.unwrap();
                }
                session.step("train").await.unwrap();
            }
            left.push(session.export().await.unwrap());
        }
        assert!(left[0] == left[1], "the mean of a gradient and itself is the gradient");
    });
}

/// Every kind of failure ends with its cause, and none leaves a session that would train on.
#[test]
fn a_custom_optimizer_that_fails_or_panics_or_leaves_a_weight_out_ends_the_session_with_its_words() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::Bf16);
        type Rule = fn(Context<'_, '_>) -> Result<(), ComputeError>;
        let runs = Arc::new(AtomicU32::new(0));
        let cases: [(Rule, &[&str]); 3] = [
            (
                |context| match context.rank().number() {
                    1 => Err(ComputeError::closure("too steep")),
                    _ => descent(context),
                },
                &["rank 1", "too steep", "import the last checkpoint"],
            ),
            (
                |context| match context.rank().number() {
                    1 => panic!("over the edge"),
                    _ => descent(context),
                },
                &["rank 1", "panicked: over the edge"],
            ),
            (|_| Ok(()), &["without requesting the master of `", "UpdateContext::weights"]),
        ];
        for (number, (rule, words)) in cases.into_iter().enumerate() {
            let counted = Arc::clone(&runs);
            let counting = move |context: Context<'_, '_>| {
                counted.fetch_add(u32::from(context.rank().number() == 1), Ordering::SeqCst);
                rule(context)
            };
            runs.store(0, Ordering::SeqCst);
            let config = own(1, config(1, Capture::Off, true));
            let builder = trainer.builder_with_optimizer(config, &Mischief::default(), counting);
            let mut session = builder.start_cpu(2).await.unwrap();
            feed(&mut session, "train", 2, 0);
            let error = session.step("train").await.unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
            let again = session.step("train").await.unwrap_err().to_string();
            assert!(again.contains(words[0]), "{again}");
            drop(session);
            // There are two sets of weights; one that has panicked is not run for the second.
            assert!(number != 1 || runs.load(Ordering::SeqCst) == 1);
        }
    });
}

/// Where rows are fewer than ranks have tiles for, some rank has none, and nothing of it is left out.
#[test]
fn a_custom_optimizer_may_pass_over_weights_of_which_its_rank_has_no_rows() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let ranks = (SIZE / 16 + 1) as u32;
        let mut left = Vec::new();
        for passes_over in [false, true] {
            let without = Arc::new(AtomicU32::new(0));
            let counted = Arc::clone(&without);
            let rule = move |context: Context<'_, '_>| {
                let none = context.weights().all(|weight| weight.rows == 0);
                counted.fetch_add(u32::from(none), Ordering::SeqCst);
                if none && passes_over { Ok(()) } else { descent(context) }
            };
            let config = own(1, config(1, Capture::Off, true));
            let builder = trainer.builder_with_optimizer(config, &Mischief::default(), rule);
            let mut session = builder.start_cpu(ranks).await.unwrap();
            losses(&mut session, ranks, 0..3).await;
            assert!(without.load(Ordering::SeqCst) >= 3, "a rank has no rows");
            left.push(session.export().await.unwrap());
        }
        assert!(left[0] == left[1]);
    });
}

/// A session neither plans for an optimizer that nobody gives it, nor lacks memory for what one keeps.
#[test]
fn a_custom_optimizer_that_is_missing_or_names_other_states_is_refused_before_the_start() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::Bf16);
        let made = || config(1, Capture::Off, true);
        let error = trainer.start(own(1, made()), 2).await.unwrap_err().to_string();
        assert!(
            error.contains("the plan was made for a custom optimizer, and this rank has none"),
            "{error}"
        );
        let builder = trainer.builder(made(), &Mischief::default());
        let builder = builder.try_optimizer(2, |_| Ok(ByRows(1, descent)));
        let error = builder.start_cpu(2).await.unwrap_err().to_string();
        assert!(error.contains("names 1 states, and SessionBuilder::try_optimizer was given 2"), "{error}");
        let builder =
            trainer.builder(made(), &Mischief::default()).try_optimizer(9, |_| Ok(ByRows(2, descent)));
        let error = builder.start_cpu(2).await.unwrap_err().to_string();
        assert!(error.contains("keep at most 8 lists for a custom optimizer"), "{error}");
    });
}

/// PL-7: a rule is in the last segment, or beside it, whatever calls are dynamic.
#[test]
fn a_step_in_segments_is_updated_by_a_custom_optimizer_with_the_same_bits() {
    within_a_minute(async {
        let dynamic = ["f1", "b1"];
        let trainer = |config: &Config| {
            Trainer::with_dynamic(
                &dynamic,
                Shaped { layers: 3, weights: 3, ..Shaped::default() },
                Format::NVFP4_2D,
                config,
            )
        };
        let mut left = Vec::new();
        for capture in [Capture::Off, Capture::Segments] {
            let config = own(1, config(1, capture, true));
            let mut session = start(&trainer(&config), config, 4, descent).await;
            let losses = losses(&mut session, 4, 0..4).await;
            left.push((losses, session.export().await.unwrap()));
        }
        assert!(left[0] == left[1]);
    });
}

/// DS-1: scales follow the masters that a rule leaves.
#[test]
fn a_custom_optimizer_that_computes_adamw_leaves_the_bits_of_the_library_s_own_under_delayed_scales() {
    within_a_minute(async {
        let mut config = config(1, Capture::Step, true);
        config.quantize.scaling = Scaling::Delayed;
        config.quantize.amax_history = 3;
        let trainer = Trainer::new(2, Format::FP8_TENSOR_E4M3);
        let mut library = trainer.start(config.clone(), 3).await.unwrap();
        let expected = losses(&mut library, 3, 0..5).await;
        let mut session = start(&trainer, own(2, config), 3, adamw).await;
        assert_eq!(losses(&mut session, 3, 0..5).await, expected);
        assert!(alike(&session.export().await.unwrap(), &library.export().await.unwrap()));
    });
}

/// EX-5, for what a rule leaves.
#[test]
fn a_custom_optimizer_that_leaves_a_value_that_is_not_finite_is_reported_by_weight_row_and_column() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        type Rule = fn(Context<'_, '_>) -> Result<(), ComputeError>;
        let cases: [(Rule, &str); 2] = [
            (
                |context| {
                    descent(context)?;
                    for weight in context.weights().filter(|weight| weight.name == "layer1") {
                        context.master(weight.id)?
                            [(SIZE - 1 - weight.first_row).min(weight.rows - 1) * SIZE + 3] = f32::NAN;
                    }
                    Ok(())
                },
                "the master NaN of `layer1` in row ",
            ),
            (
                |context| {
                    descent(context)?;
                    for weight in context.weights().filter(|weight| weight.name == "bias") {
                        context.state(weight.id, "first")?[7] = f32::INFINITY;
                    }
                    Ok(())
                },
                "the first state inf of `bias` in row 0, column 7",
            ),
        ];
        for (rule, words) in cases {
            let mut session = start(&trainer, own(1, config(1, Capture::Off, true)), 2, rule).await;
            feed(&mut session, "train", 2, 0);
            let error = session.step("train").await.unwrap_err();
            assert!(matches!(error, SessionError::Diverged { .. }), "{error}");
            let said = error.to_string();
            assert!(said.contains(words), "{said}");
        }
    });
}

/// What a custom optimizer gets of its weights, and that it gets those that train, each once.
#[test]
fn a_custom_optimizer_gets_every_weight_that_trains_once_with_its_rows_and_parameters() {
    within_a_minute(async {
        let rules = "[[weights]]\nmatch = 'layer0'\nfrozen = true\n\
                     [[weights]]\nmatch = 'layer2'\nweight_decay = 0.25\nlr_scale = 0.5";
        let mut config = own(0, config(1, Capture::Off, true));
        config.weights = Config::from_toml_str(rules, "rules").unwrap().weights;
        config.optimizer.weight_decay = 0.125;
        let trainer = Trainer::refined(3, Format::NVFP4_2D, &config);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let seeing = Arc::clone(&seen);
        let rule = move |context: Context<'_, '_>| {
            for weight in context.weights() {
                let by = context.hyperparameters(weight.id)?[0];
                let parameters = (by.weight_decay, by.learning_rate);
                let rows = (weight.first_row, weight.rows, weight.columns);
                seeing.lock().unwrap().push((context.rank().number(), weight.name.clone(), rows, parameters));
                let refused = context.state(weight.id, "first").unwrap_err().to_string();
                assert!(refused.contains("name every state in Optimizer::states"), "{refused}");
            }
            descent(context)
        };
        let builder = trainer.builder_with_optimizer(config, &Mischief::default(), rule);
        let mut session = builder.start_cpu(2).await.unwrap();
        losses(&mut session, 2, 0..1).await;
        let mut seen = seen.lock().unwrap().clone();
        seen.sort_by(|one, other| (one.0, &one.1).cmp(&(other.0, &other.1)));
        let half = SIZE / 2;
        let expected: Vec<_> = (0..2_u32)
            .flat_map(|rank| {
                let first = rank as usize * half;
                [
                    (rank, "bias".to_owned(), (0, 1, SIZE), (0.125, 3e-3)),
                    (rank, "layer1".to_owned(), (first, half, SIZE), (0.125, 3e-3)),
                    (rank, "layer2".to_owned(), (first, half, SIZE), (0.25, 3e-3 * 0.5)),
                ]
            })
            .collect();
        assert_eq!(seen, expected);
    });
}

/// An optimizer of this name, with these states.
#[derive(Clone)]
struct Called(&'static str, &'static [&'static str]);

impl Optimizer<CpuSurface> for Called {
    fn name(&self) -> &'static str {
        self.0
    }

    fn states(&self) -> &'static [&'static str] {
        self.1
    }

    fn update(&mut self, context: Context<'_, '_>) -> Result<(), ComputeError> {
        descent(context)
    }
}

#[test]
fn ranks_that_make_different_optimizers_do_not_start() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::Bf16);
        let builder = trainer.builder(config(1, Capture::Off, true), &Mischief::default());
        let of = |rank: RankId| if rank.index() == 0 { "Lion" } else { "Tiger" };
        let builder = builder.try_optimizer(1, move |seat| Ok(Called(of(seat.rank), &["momentum"])));
        let error = builder.start_cpu(2).await.unwrap_err().to_string();
        assert!(error.contains("`Lion` with state `momentum`"), "{error}");
        assert!(error.contains("`Tiger` with state `momentum`"), "{error}");
        assert!(error.contains("return the same optimizer on every rank"), "{error}");
    });
}

/// As many lists of another custom optimizer are no state of this one.
#[test]
fn a_checkpoint_says_which_custom_optimizer_wrote_it_and_another_refuses_its_state_by_both_names() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::Bf16);
        let start = async |of: Called| {
            let builder = trainer.builder(config(1, Capture::Off, true), &Mischief::default());
            builder.try_optimizer(of.1.len(), move |_| Ok(of.clone())).start_cpu(2).await.unwrap()
        };
        let folder = tempfile::tempdir().unwrap();
        let (parts, path) = (PartFiles::new(folder.path().join("parts")), folder.path().join("whole"));
        let mut lion = start(Called("Lion", &["momentum"])).await;
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

        for (other, words) in [
            (Called("Tiger", &["momentum"]), "`Tiger` with state `momentum`"),
            (Called("Lion", &["velocity"]), "`Lion` with state `velocity`"),
            (Called("Lion", &["momentum", "average"]), "`Lion` with state `momentum`, `average`"),
            (Called("descent", &[]), "`descent`, which keeps no state"),
        ] {
            let kept = other.1.len();
            let mut session = start(other).await;
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
