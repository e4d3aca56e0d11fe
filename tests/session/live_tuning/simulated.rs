//! Live tuning of sessions in virtual time.

use warpweft_backend::sim::SimSurface;
use warpweft_plan::cluster::Cluster;
use warpweft_plan::model::Decoder;
use warpweft_plan::plan::GatherStart;
use warpweft_session::cluster::preset;
use warpweft_session::config::{Config, Declared, Tune};
use warpweft_session::session::{Session, SessionBuilder};
use warpweft_testing::trainer::within_a_minute;

fn decoder(config: Config) -> SessionBuilder<SimSurface> {
    let text = include_str!("../../../examples/simulate/4-layers.toml");
    let decoder = Decoder::from_toml(text, "4-layers.toml").unwrap();
    let program = decoder.program(&decoder.model().unwrap()).unwrap();
    Session::simulated(config).program(program)
}

async fn tuned(cluster: &Cluster, config: Config) -> Session {
    let mut session = decoder(config).start_simulated(cluster, 8).await.unwrap();
    let program = session.tuning().unwrap().program().to_owned();
    for _ in 0..Tune::MOST_STEPS + 1 {
        session.step(&program).await.unwrap();
    }
    session
}

/// Virtual times say which policy is the fastest of those that are tried, and say so again.
#[test]
fn a_simulated_session_leaves_a_slow_policy_for_the_fastest_it_tries() {
    within_a_minute(async {
        let cluster = preset("h100x8-ib").unwrap().unwrap();
        let mut config = Config::default();
        config.prefetch.depth = Some(0);
        config.tune.steps = Tune::MOST_STEPS;
        let session = tuned(&cluster, config.clone()).await;
        let tuning = session.tuning().unwrap();
        let (choice, log) = (tuning.choice().unwrap(), tuning.log());
        assert!(tuning.is_frozen() && choice.candidate.prefetch != GatherStart::Depth(0), "{tuning}");
        let on_demand = log[0].step.unwrap();
        let fastest = log.iter().filter_map(|decision| decision.step).min().unwrap();
        assert!(choice.step < on_demand && choice.step as f64 <= 1.01 * fastest as f64 + 1.0, "{tuning}");
        assert!(log.iter().any(|decision| decision.candidate.by_measurement), "{tuning}");
        let again = tuned(&cluster, config).await;
        assert_eq!(again.tuning().unwrap().log(), log);
        assert_eq!(again.plan(tuning.program()).unwrap(), session.plan(tuning.program()).unwrap());
    });
}

/// The one rank that is driven stands for those of all replicas.
#[test]
fn a_simulated_session_of_replicas_tunes_itself_too() {
    within_a_minute(async {
        let cluster = preset("h100x8-ib").unwrap().unwrap();
        let mut config = Config::default();
        config.mesh.dp_replicate = Some(2);
        config.tune.steps = Tune::LEAST_STEPS;
        let session = tuned(&cluster, config).await;
        let tuning = session.tuning().unwrap();
        assert!(tuning.is_frozen(), "{tuning}");
        let mesh = session.plan(tuning.program()).unwrap().weights.mesh;
        assert_eq!((mesh.ranks(), mesh.replicas()), (8, 2));
        assert!(session.device().contains("8 ranks (4 shards × 2 replicas)"), "{}", session.device());
    });
}
