//! Split sessions: each owns a part of the ranks, as a process does, on a thread of its own.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use warpweft_backend::Backend;
use warpweft_backend::cpu::{CpuBackend, CpuOptions, CpuSurface, CpuWorld};
use warpweft_backend::rendezvous::{Launcher, ProcessEnvironment, Rendezvous, Secret};
use warpweft_base::id::ProcessId;
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::Session;

use crate::port::Port;
use crate::trainer::{Mischief, Trainer, input};

/// The usual configuration of such sessions.
pub fn config() -> Config {
    let mut config = Config { capture: Capture::Step, deadline_s: 60.0, ..Config::default() };
    config.prefetch.depth = Some(2);
    config.optimizer.lr = 3e-3;
    config
}

/// As [`in_processes_with`], with the usual configuration.
pub fn in_processes<T: Send + 'static, F: Future<Output = T> + 'static>(
    trainer: &Trainer,
    ranks: &[u32],
    mischief: &Mischief,
    work: impl Fn(usize, Session) -> F + Clone + Send + 'static,
) -> Vec<T> {
    in_processes_with(&config(), trainer, ranks, mischief, work)
}

/// As [`in_processes_on`], on the backends as they are.
pub fn in_processes_with<T: Send + 'static, F: Future<Output = T> + 'static>(
    config: &Config,
    trainer: &Trainer,
    ranks: &[u32],
    mischief: &Mischief,
    work: impl Fn(usize, Session) -> F + Clone + Send + 'static,
) -> Vec<T> {
    in_processes_on(|backend| backend, config, trainer, ranks, mischief, work)
}

/// Runs `work` once for each of the processes, which own `ranks` ranks; each has a thread and a runtime. `wrap` makes
/// of a rank's backend what it runs on.
pub fn in_processes_on<
    T: Send + 'static,
    F: Future<Output = T> + 'static,
    B: Backend<Surface = CpuSurface>,
>(
    wrap: impl Fn(CpuBackend) -> B + Clone + Send + 'static,
    config: &Config,
    trainer: &Trainer,
    ranks: &[u32],
    mischief: &Mischief,
    work: impl Fn(usize, Session) -> F + Clone + Send + 'static,
) -> Vec<T> {
    let works = (0..ranks.len()).map(|process| {
        let work = work.clone();
        Box::new(move |session| Box::pin(work(process, session)) as Pin<Box<dyn Future<Output = T>>>)
            as Work<T>
    });
    run(wrap, config, trainer, ranks, mischief, works.collect())
}

/// What one process does, boxed: so that its thread and runtime are not compiled anew for every test.
type Work<T> = Box<dyn FnOnce(Session) -> Pin<Box<dyn Future<Output = T>>> + Send>;

fn run<T: Send + 'static, B: Backend<Surface = CpuSurface>>(
    wrap: impl Fn(CpuBackend) -> B + Clone + Send + 'static,
    config: &Config,
    trainer: &Trainer,
    ranks: &[u32],
    mischief: &Mischief,
    works: Vec<Work<T>>,
) -> Vec<T> {
    let all: u32 = ranks.iter().sum();
    let device = Arc::new(CpuWorld::new(config.mesh_of(all).unwrap(), CpuOptions::default()).unwrap());
    let claimed = Port::claim();
    let port = claimed.number();
    let processes = ranks.len() as u32;
    let threads: Vec<_> = (0..processes)
        .zip(ranks.to_vec())
        .zip(works)
        .map(|((process, ranks), work)| {
            let (device, builder) = (Arc::clone(&device), trainer.builder(config.clone(), mischief));
            let wrap = wrap.clone();
            std::thread::spawn(move || {
                let world = join(port, (process, processes), ranks);
                let backends = world.own().map(|rank| wrap(device.backend(rank).unwrap())).collect();
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(async {
                    let session = builder.start_in(world, backends).await.unwrap();
                    work(session).await
                })
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// The world as one of several processes of this host joins it.
pub fn join(port: u16, (process, processes): (u32, u32), ranks: u32) -> Arc<Rendezvous> {
    let environment = ProcessEnvironment {
        process: ProcessId::new(process),
        processes,
        local: process,
        locals: Some(processes),
        address: "127.0.0.1".into(),
        port,
        launcher: Launcher::Torchrun,
    };
    let secret = Secret::new("a secret of sessions").unwrap();
    let deadline = Duration::from_secs(60);
    Arc::new(Rendezvous::of_processes(&environment, ranks, Some(&secret), deadline).unwrap())
}

/// As `trainer::feed`, for the ranks of this session.
pub fn feed(session: &mut Session, step: u32) {
    let micro_batches = session.plan("train").unwrap().micro_batches;
    for rank in session.own_ranks() {
        let values: Vec<f32> =
            (0..micro_batches).flat_map(|batch| input(step, rank.number(), batch)).collect();
        session.write_input("train", rank, "input", &values).unwrap();
    }
}

/// Bits of the mean loss of each of `steps` training steps.
pub async fn train(session: &mut Session, steps: Range<u32>) -> Vec<u32> {
    let mut losses = Vec::new();
    for step in steps {
        feed(session, step);
        losses.push(session.step("train").await.unwrap().mean_output("loss").unwrap().to_bits());
    }
    losses
}
