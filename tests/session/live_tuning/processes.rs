//! TU-8: the same trials and decisions on every rank, in however many processes.

use warpweft_format::Format;
use warpweft_session::session::Session;
use warpweft_session::tune::{Choice, Decision};
use warpweft_testing::split::in_processes_on;
use warpweft_testing::trainer::{Mischief, Trainer, ended, input, losses, within_a_minute};

use super::dictated::{Watch, config, dictated, start};

/// Losses, decisions, choice and the fingerprint of the plan that stays.
type Found = (Vec<u32>, Vec<Decision>, Option<Choice>, u64);

fn faster(bytes: usize) -> u64 {
    20_000_000_000 / bytes as u64
}

async fn train(mut session: Session) -> Found {
    let mut losses = Vec::new();
    for step in 0..24 {
        for rank in session.own_ranks() {
            session.write_input("train", rank, "input", &input(step, rank.number(), 0)).unwrap();
        }
        losses.push(session.step("train").await.unwrap().mean_output("loss").unwrap().to_bits());
    }
    let tuning = session.tuning().unwrap();
    assert!(tuning.is_frozen());
    let (log, choice) = (tuning.log().to_vec(), tuning.choice());
    let plan = session.plan("train").unwrap().fingerprint();
    session.close().await.unwrap();
    (losses, log, choice, plan)
}

fn in_processes(trainer: &Trainer, ranks: &[u32]) -> Vec<Found> {
    let dictated = |backend| dictated(backend, faster, &Watch::default());
    let (config, mischief) = (config(1, None), Mischief::default());
    in_processes_on(dictated, &config, trainer, ranks, &mischief, |_, session| train(session))
}

/// TU-6, TU-8
#[test]
fn trials_choice_and_losses_are_the_same_however_ranks_are_split_over_processes() {
    let trainer = Trainer::new(3, Format::NVFP4_2D);
    let alone = trainer.clone();
    let (expected, untuned) = within_a_minute(async move {
        let (session, _) = start(&alone, config(1, None), 4, faster, &Mischief::default()).await;
        let expected = train(session).await;
        let mut plain = config(1, None);
        plain.tune.steps = 0;
        let mut session = alone.start(plain, 4).await.unwrap();
        (expected, losses(&mut session, 4, 0..24).await)
    });
    assert_eq!(expected.0, untuned);
    for ranks in [&[2, 2][..], &[1, 3], &[1, 1, 1, 1]] {
        let trainer = trainer.clone();
        for found in ended(move || in_processes(&trainer, ranks)) {
            assert_eq!(found, expected, "{ranks:?}");
        }
    }
}
