//! Hyperparameters, set from step to step, for all weights and for some.

use warpweft_format::Format;
use warpweft_plan::model::Hyperparameters;
use warpweft_plan::policy::Moments;
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{Session, SessionError};
use warpweft_testing::custom_adamw::adamw;
use warpweft_testing::trainer::{Mischief, Trainer, losses, within_a_minute};

const STEPS: u32 = 6;

fn config(capture: Capture) -> Config {
    Config { capture, ..Config::default() }
}

async fn start(config: &Config) -> Session {
    Trainer::refined(3, Format::Bf16, config).start(config.clone(), 2).await.unwrap()
}

/// Everything changes, one layer goes its own way for a while, and one stands still at first.
fn schedule(session: &mut Session, step: u32) {
    let of = step as f32 / STEPS as f32;
    let all = Hyperparameters {
        learning_rate: 2e-3 * (1.0 - 0.5 * of),
        weight_decay: 0.1 * of,
        beta1: 0.5 + 0.4 * of,
        beta2: 0.9 + 0.05 * of,
    };
    session.set_hyperparameters(all).unwrap();
    let own = Hyperparameters { learning_rate: 5e-3, beta1: 0.0, ..all };
    session.set_hyperparameters_of("layer1", (step < 4).then_some(own)).unwrap();
    let still = Hyperparameters { learning_rate: 0.0, ..all };
    session.set_hyperparameters_of("*2", (step < 2).then_some(still)).unwrap();
}

async fn scheduled(session: &mut Session) -> Vec<u32> {
    let mut all = Vec::new();
    for step in 0..STEPS {
        schedule(session, step);
        all.extend(losses(session, 2, step..step + 1).await);
    }
    all
}

/// EX-1: a captured step reads what was set after its capture, and a custom optimizer what Adam does.
#[test]
fn a_schedule_is_seen_by_steps_that_were_captured_and_by_custom_optimizers() {
    within_a_minute(async {
        let mut expected = start(&config(Capture::Off)).await;
        let told = scheduled(&mut expected).await;
        let left = expected.export().await.unwrap().weights;
        let mut captured = start(&config(Capture::Step)).await;
        assert_eq!(scheduled(&mut captured).await, told);
        assert!(captured.export().await.unwrap().weights == left);
        let mut own = config(Capture::Step);
        own.optimizer.custom_states = Some(2);
        let builder = Trainer::new(3, Format::Bf16).builder_with_optimizer(own, &Mischief::default(), adamw);
        let mut own = builder.start_cpu(2).await.unwrap();
        assert_eq!(scheduled(&mut own).await, told);
        assert!(own.export().await.unwrap().weights == left);
        let mut constant = start(&config(Capture::Off)).await;
        assert_ne!(losses(&mut constant, 2, 0..STEPS).await, told);
    });
}

/// What is set before the first step is what a configuration says, and what is set for weights what rules say.
#[test]
fn what_is_set_for_all_and_for_some_is_what_configuration_and_rules_would_have_been() {
    within_a_minute(async {
        let rules = "[optimizer]\nlr = 0.002\nbeta1 = 0.5\nbeta2 = 0.75\nweight_decay = 0.25\n\
                     [[weights]]\nmatch = 'layer*'\nlr_scale = 0.5\n\
                     [[weights]]\nmatch = 'bias'\nweight_decay = 0";
        let config = Config::from_toml_str(rules, "rules").unwrap();
        let mut expected = start(&config).await;
        let told = losses(&mut expected, 2, 0..3).await;
        let all = expected.hyperparameters();
        let left = expected.export().await.unwrap().weights;

        let mut session = start(&Config::default()).await;
        session.set_hyperparameters(all).unwrap();
        let layers = Hyperparameters { learning_rate: 0.5 * all.learning_rate, ..all };
        session.set_hyperparameters_of("layer*", Some(layers)).unwrap();
        session.set_hyperparameters_of("bias", Some(Hyperparameters { weight_decay: 0.0, ..all })).unwrap();
        assert_eq!(losses(&mut session, 2, 0..3).await, told);
        assert!(session.export().await.unwrap().weights == left);

        // Rules hold for what is set for all, also after what was set for weights themselves.
        let mut config = config;
        config.optimizer = Config::default().optimizer;
        let mut session = start(&config).await;
        session.set_hyperparameters_of("*", Some(layers)).unwrap();
        session.set_hyperparameters(all).unwrap();
        session.set_hyperparameters_of("*", None).unwrap();
        assert_eq!(losses(&mut session, 2, 0..3).await, told);
        assert!(session.export().await.unwrap().weights == left);
    });
}

#[test]
fn what_is_out_of_range_or_of_no_weight_is_refused_and_changes_nothing() {
    within_a_minute(async {
        let rules = "[[weights]]\nmatch = 'layer0'\nfrozen = true";
        let config = Config::from_toml_str(rules, "rules").unwrap();
        let (mut session, mut expected) = (start(&config).await, start(&config).await);
        let all = session.hyperparameters();
        for (refused, words) in [
            (Hyperparameters { learning_rate: f32::NAN, ..all }, "NaN is no learning rate"),
            (
                Hyperparameters { weight_decay: -0.5, ..all },
                "-0.5 is no weight decay; it must be a finite number",
            ),
            (Hyperparameters { beta1: 1.0, ..all }, "1 is no beta1; it must be from 0 to below 1"),
            (Hyperparameters { learning_rate: 1.0, beta2: -0.1, ..all }, "-0.1 is no beta2"),
        ] {
            for error in
                [session.set_hyperparameters(refused), session.set_hyperparameters_of("bias", Some(refused))]
            {
                let error = error.unwrap_err();
                assert!(matches!(error, SessionError::Hyperparameter { .. }), "{error}");
                assert!(error.to_string().contains(words), "{error}");
            }
        }
        for pattern in ["layer0", "head.*"] {
            let error = session.set_hyperparameters_of(pattern, Some(all)).unwrap_err().to_string();
            let words =
                format!("`{pattern}` matches no weight that trains, which are `layer1`, `layer2`, `bias`");
            assert!(error.contains(&words), "{error}");
        }
        assert_eq!(session.hyperparameters(), all);
        assert_eq!(losses(&mut session, 2, 0..3).await, losses(&mut expected, 2, 0..3).await);
        assert!(session.export().await.unwrap() == expected.export().await.unwrap());

        let mut config = Config::default();
        (config.optimizer.moments, config.optimizer.beta2) = (Moments::Bf16, 0.99);
        let mut session = start(&config).await;
        let all = session.hyperparameters();
        let error =
            session.set_hyperparameters(Hyperparameters { beta2: 0.999, ..all }).unwrap_err().to_string();
        assert!(error.contains("0.999 is no beta2; it must be 0.996 or less"), "{error}");
        session.set_hyperparameters(Hyperparameters { beta2: 0.995, ..all }).unwrap();
    });
}
