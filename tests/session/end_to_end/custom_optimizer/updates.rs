//! What a custom optimizer gets, and what it leaves: as Adam would, whenever it runs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use warpweft_format::Format;
use warpweft_plan::layout::aligned;
use warpweft_session::config::{Capture, Config, Scaling};
use warpweft_testing::custom_adamw::adamw;
use warpweft_testing::trainer::{Mischief, SIZE, Shaped, Trainer, feed, losses, within_a_minute};

use super::super::config;
use super::super::optimizers::lost_steps_change_nothing;
use super::{Context, alike, descent, own, start};

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
            lost_steps_change_nothing(&mut session, &mischief, &runs).await;
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
