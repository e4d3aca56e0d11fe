//! Comparison of replicas on request.

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::RankId;
use warpweft_format::Format;
use warpweft_plan::compute::{ComputeError, UpdateContext};
use warpweft_plan::policy::{Masters, Moments, OptimizerShard};
use warpweft_session::checkpoint::StatePart;
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{Session, SessionError};
use warpweft_testing::trainer::{Mischief, Trainer, losses, within_a_minute};

use super::config;

/// Four ranks in two replicas, with a replicated weight beside sharded ones.
fn mesh(mut config: Config) -> Config {
    config.mesh.dp_replicate = Some(2);
    config
}

async fn compared(session: &mut Session) -> Result<(), (String, StatePart, RankId, RankId)> {
    let before = session.export().await.unwrap();
    let found = session.compare_replicas().await;
    assert!(session.export().await.unwrap() == before, "it only looks");
    match found {
        Ok(()) => Ok(()),
        Err(SessionError::ReplicasDiffer { weight, part, rank, other, .. }) => {
            Err((weight, part, rank, other))
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn training_leaves_all_copies_alike_however_state_is_kept() {
    within_a_minute(async {
        for (format, moments, masters) in [
            (Format::NVFP4_2D, Moments::F32, Masters::F32),
            (Format::Bf16, Moments::Bf16, Masters::Bf16Remainder),
        ] {
            for capture in [Capture::Off, Capture::Step] {
                let mut config = mesh(config(1, capture, true));
                (config.optimizer.moments, config.optimizer.masters) = (moments, masters);
                config.optimizer.beta2 = 0.95;
                let trainer = Trainer::refined(2, format, &config);
                let mut session = trainer.start(config, 4).await.unwrap();
                assert_eq!(compared(&mut session).await, Ok(()));
                losses(&mut session, 4, 0..3).await;
                assert_eq!(compared(&mut session).await, Ok(()), "{format}");
                losses(&mut session, 4, 3..4).await;
            }
        }
    });
}

/// Of slices the other optimizer instances have copies, and no other replica.
#[test]
fn slices_are_compared_over_optimizer_instances() {
    within_a_minute(async {
        for (part, rank, pair) in [(StatePart::Master, 2, (2, 6)), (StatePart::FIRST_MOMENT, 5, (1, 5))] {
            let mut config = config(1, Capture::Off, true);
            (config.mesh.dp_replicate, config.mesh.optimizer_instances) = (Some(4), 2);
            config.optimizer.shard = OptimizerShard::Replicas;
            config.optimizer.custom_states = Some(2);
            let trainer = Trainer::refined(2, Format::NVFP4_2D, &config);
            let rule = parting("layer1", part, rank);
            let builder = trainer.builder_with_optimizer(config, &Mischief::default(), rule);
            let mut session = builder.start_cpu(8).await.unwrap();
            assert_eq!(compared(&mut session).await, Ok(()));
            losses(&mut session, 8, 0..1).await;
            let (first, other) = (RankId::new(pair.0), RankId::new(pair.1));
            assert_eq!(compared(&mut session).await, Err(("layer1".to_owned(), part, first, other)));
        }
    });
}

/// A custom optimizer that leaves one value of one weight otherwise on one rank.
fn parting(
    weight: &'static str,
    part: StatePart,
    rank: u32,
) -> impl Fn(&UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> + Clone + Send + Sync + 'static {
    move |context| {
        for updated in context.weights() {
            let mut master = context.master(updated.id)?;
            let (mut first, mut second) =
                (context.state(updated.id, "first")?, context.state(updated.id, "second")?);
            if updated.name == weight && context.rank() == RankId::new(rank) {
                match part {
                    StatePart::Master => master[3] += 0.25,
                    StatePart::FIRST_MOMENT => first[3] += 0.25,
                    _ => second[3] += 0.25,
                }
            }
        }
        Ok(())
    }
}

/// Sharded weights are compared over the replicas, replicated ones over all ranks.
#[test]
fn what_one_rank_holds_otherwise_is_reported_by_weight_list_and_two_ranks() {
    within_a_minute(async {
        for (weight, part, rank, pair) in [
            ("layer1", StatePart::Master, 2, (0, 2)),
            ("layer0", StatePart::FIRST_MOMENT, 1, (1, 3)),
            ("layer1", StatePart::SECOND_MOMENT, 3, (1, 3)),
            ("bias", StatePart::Master, 1, (0, 1)),
            ("bias", StatePart::SECOND_MOMENT, 0, (0, 1)),
        ] {
            let mut config = mesh(config(1, Capture::Off, true));
            config.optimizer.custom_states = Some(2);
            let trainer = Trainer::refined(2, Format::NVFP4_2D, &config);
            let rule = parting(weight, part, rank);
            let builder = trainer.builder_with_optimizer(config, &Mischief::default(), rule);
            let mut session = builder.start_cpu(4).await.unwrap();
            assert_eq!(compared(&mut session).await, Ok(()));
            losses(&mut session, 4, 0..1).await;
            let (first, other) = (RankId::new(pair.0), RankId::new(pair.1));
            assert_eq!(compared(&mut session).await, Err((weight.to_owned(), part, first, other)));
            let words = session.compare_replicas().await.unwrap_err().to_string();
            let list = match part {
                StatePart::Master => "different masters of",
                StatePart::FIRST_MOMENT => "different first states of",
                _ => "different second states of",
            };
            assert!(words.contains(list) && words.contains("after 1 step, rank"), "{words}");
            assert!(!words.contains("moment"), "{words}");
            // It goes on, and an import makes them one model again: of the first replica.
            losses(&mut session, 4, 1..2).await;
            let checkpoint = session.export().await.unwrap();
            session.import(&checkpoint).await.unwrap();
            assert_eq!(compared(&mut session).await, Ok(()));
        }
    });
}

#[test]
fn ranks_that_share_nothing_have_nothing_to_compare() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::Bf16);
        let mut session = trainer.start(config(1, Capture::Off, true), 1).await.unwrap();
        losses(&mut session, 1, 0..1).await;
        assert_eq!(compared(&mut session).await, Ok(()));
    });
}
