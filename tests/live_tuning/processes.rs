//! TU-8: the same trials and decisions on every rank, in however many processes.

use std::sync::Arc;
use std::time::Duration;

use warpweft::backend::cpu::{CpuOptions, CpuWorld};
use warpweft::format::Format;
use warpweft::id::ProcessId;
use warpweft::model::Mesh;
use warpweft::rendezvous::{Launcher, ProcessEnvironment, Rendezvous, Secret};
use warpweft::session::Session;
use warpweft::tune::{Choice, Decision};

use crate::dictated::{Watch, config, dictated, start};
use crate::port::Port;
use crate::trainer::{Mischief, Trainer, ended, input, losses, within_a_minute};

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
    let device = CpuWorld::new(Mesh::new(ranks.iter().sum()).unwrap(), CpuOptions::default()).unwrap();
    let device = Arc::new(device);
    let claimed = Port::claim();
    let port = claimed.number();
    let processes = ranks.len() as u32;
    let threads: Vec<_> = (0..processes)
        .zip(ranks.to_vec())
        .map(|(process, ranks)| {
            let (device, builder) =
                (Arc::clone(&device), trainer.builder(config(1, None), &Mischief::default()));
            std::thread::spawn(move || {
                let environment = ProcessEnvironment {
                    process: ProcessId::new(process),
                    processes,
                    local: process,
                    locals: Some(processes),
                    address: "127.0.0.1".into(),
                    port,
                    launcher: Launcher::Torchrun,
                };
                let secret = Secret::new("a secret of trials").unwrap();
                let deadline = Duration::from_secs(60);
                let world = Rendezvous::of_processes(&environment, ranks, Some(&secret), deadline).unwrap();
                let backend = |rank| dictated(device.backend(rank).unwrap(), faster, &Watch::default());
                let backends = world.own().map(backend).collect();
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(async {
                    train(builder.start_in(Arc::new(world), backends).await.unwrap()).await
                })
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
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
