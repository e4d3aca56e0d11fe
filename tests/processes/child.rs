//! A child process: joins the world of its environment, lets its ranks meet, and reports how it ended.

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use warpweft_backend::rendezvous::{ProcessEnvironment, Rendezvous, RendezvousError, Secret, Topic};
use warpweft_base::id::RankId;

use crate::optimizers;

/// Set in children: what to do once all have come.
pub(crate) const ROLE: &str = "PROCESSES_TEST_ROLE";
/// Ranks of the child.
pub(crate) const RANKS: &str = "PROCESSES_TEST_RANKS";
/// Milliseconds.
pub(crate) const DEADLINE: &str = "PROCESSES_TEST_DEADLINE";

pub(crate) fn run(role: &str) {
    match play(role) {
        Ok(()) => say("done"),
        Err(error) => {
            say(&format!("error {error}"));
            std::process::exit(1);
        }
    }
}

/// A line, at once: stdout is a pipe.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // A parent that does not listen any more has failed already.
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

fn number(name: &str) -> u32 {
    std::env::var(name).unwrap().parse().unwrap()
}

fn play(role: &str) -> Result<(), Box<dyn Error>> {
    let environment = ProcessEnvironment::of_this_process()?.expect("a launcher's variables");
    let deadline = Duration::from_millis(number(DEADLINE).into());
    let secret = Secret::of_environment()?;
    say("begins");
    let world = Rendezvous::of_processes(&environment, number(RANKS), secret.as_ref(), deadline)?;
    let world = Arc::new(world);
    say(&format!("joined as {:?} of {}", world.range(), world.ranks()));
    if let Some(optimizer) = role.strip_prefix(optimizers::ROLE) {
        return Ok(optimizers::start(optimizer, world)?);
    }
    let first = environment.process.number() == 0;
    let threads: Vec<_> = world
        .own()
        .map(|rank| {
            let (world, role) = (Arc::clone(&world), role.to_owned());
            std::thread::spawn(move || match role.as_str() {
                "agree" => agree(&world, rank),
                "join" => Ok(()),
                "quit early" if first => Ok(()),
                "fail" if rank == RankId::new(1) => {
                    Err(RendezvousError::Ended { reason: world.end("rank 1, task 7: no such kernel") })
                }
                "silent rank" if rank == RankId::new(1) => {
                    world.stand(rank, "last finished task 2");
                    world.stand(rank, "last finished task 3");
                    while world.ended().is_none() {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    Err(RendezvousError::Ended { reason: world.ended().unwrap_or_default().to_owned() })
                }
                _ => meet_forever(&world, rank),
            })
        })
        .collect();
    let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    for (rank, text) in world.standings() {
        say(&format!("standing {rank}: {text}"));
    }
    Ok(outcomes.into_iter().collect::<Result<(), RendezvousError>>()?)
}

/// Meets until something ends the world.
fn meet_forever(world: &Rendezvous, rank: RankId) -> Result<(), RendezvousError> {
    let mut met = 0;
    loop {
        world.exchange(rank, Topic::Meeting, &[])?;
        met += 1;
        if met == 10 {
            say("meeting");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What a rank says in a round; long in some, so that it goes in parts.
fn words(rank: usize, round: usize) -> Vec<u8> {
    let length = if round % 10 == 3 { (3 << 20) + rank } else { 5 + rank };
    let seed = rank * 31 + round * 17;
    (0..length).map(|place| (place * 7 + seed) as u8).collect()
}

fn agree(world: &Rendezvous, rank: RankId) -> Result<(), RendezvousError> {
    let ranks = world.ranks() as usize;
    for round in 0..30 {
        let all = world.exchange(rank, Topic::Agreement, &words(rank.index(), round))?;
        let expected: Vec<_> = (0..ranks).map(|rank| words(rank, round)).collect();
        assert!(all.iter().zip(&expected).all(|(found, expected)| **found == **expected), "round {round}");
        assert_eq!(all.len(), ranks);
    }
    for size in [0, 1, 17 << 20] {
        // Every rank has another amount, and one has none.
        let own: Vec<u8> = (0..size * rank.index()).map(|place| (place + rank.index()) as u8).collect();
        let gathered = world.gather_to_first(rank, &own)?;
        assert_eq!(gathered.is_some(), rank == RankId::new(0));
        for (rank, bytes) in gathered.iter().flatten().enumerate() {
            assert_eq!(bytes.len(), size * rank);
            assert!(bytes.iter().enumerate().all(|(place, byte)| *byte == (place + rank) as u8));
        }
    }
    world.leave(rank, &format!("{rank} has finished"));
    Ok(())
}
