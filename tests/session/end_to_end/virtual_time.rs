//! Sessions in virtual time: one rank is driven for all, and there are no values.

use std::collections::BTreeMap;

use tracing::Dispatch;
use warpweft_base::id::RankId;
use warpweft_format::Format;
use warpweft_plan::model::Decoder;
use warpweft_session::checkpoint::PartFiles;
use warpweft_session::cluster::named;
use warpweft_session::config::{Config, Declared, Prefetch};
use warpweft_session::session::{Session, SessionError};
use warpweft_testing::heard::{Heard, field};
use warpweft_testing::trainer::{Trainer, ended, within_a_minute};

const RANKS: u32 = 8;

async fn simulated(trainer: &Trainer) -> Session {
    let builder = Session::simulated(Config::default()).program(trainer.train.clone());
    builder.start_simulated(&named("h100x8-ib").unwrap(), RANKS).await.unwrap()
}

/// One rank's rows would pass for a whole checkpoint, and what is imported would go nowhere.
#[test]
fn weights_are_neither_taken_out_of_virtual_time_nor_put_into_it() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let real = trainer.start(Config::default(), RANKS).await.unwrap().export().await.unwrap();
        let mut session = simulated(&trainer).await;
        session.step("train").await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let files = PartFiles::new(folder.path().join("parts"));
        for (does, error) in [
            ("exports", session.export().await.unwrap_err()),
            ("exports", session.export_to_first().await.unwrap_err()),
            ("saves", session.save_parts(&files, &BTreeMap::new()).await.unwrap_err()),
            ("compares", session.compare_replicas().await.unwrap_err()),
            ("imports", session.import(&real).await.unwrap_err()),
            ("imports", session.import_parts(&files).await.unwrap_err()),
        ] {
            assert!(matches!(error, SessionError::VirtualTime { .. }), "{error}");
            let said = error.to_string();
            assert!(said.contains(does) && said.contains("on the CPU or on GPUs"), "{said}");
        }
        assert_eq!(folder.path().read_dir().unwrap().count(), 0, "nothing was written");
        assert_eq!(session.step("train").await.unwrap().step, 1, "it goes on");
    });
}

#[test]
fn a_session_in_virtual_time_has_the_ranks_that_are_simulated_and_owns_the_one_that_is_driven() {
    within_a_minute(async {
        let mut session = simulated(&Trainer::new(2, Format::NVFP4_2D)).await;
        assert_eq!(session.ranks(), RANKS);
        assert_eq!(session.own_ranks().collect::<Vec<_>>(), [RankId::new(0)]);
        let other = session.write_input("train", RankId::new(3), "input", &[0.0_f32]).unwrap_err();
        assert!(matches!(other, SessionError::Elsewhere { .. }), "{other}");
        assert!(other.to_string().contains("rank 0 stands for all"), "{other}");
        let error = session.intervals(RankId::new(RANKS)).unwrap_err();
        assert!(matches!(error, SessionError::NoRank { ranks: RANKS, .. }), "{error}");
        session.step("train").await.unwrap();
        let grads = session.main_grads().await.unwrap();
        assert!(grads.iter().all(|grad| grad.rank == RankId::new(0)), "those of its own rank");
        assert!(grads.iter().flat_map(|grad| &grad.values).all(|value| *value == 0.0));
    });
}

/// On 64 hosts of eight GPUs, of a decoder that gathers on demand. The rest is said of it where it is computed.
#[test]
fn a_session_on_several_hosts_says_which_setting_is_much_faster() {
    let sizes = "layers = 2\nhidden = 4096\nffn = 14336\nheads = 32\nkv_heads = 8\nvocabulary = 128256";
    let text = format!("name = \"8b\"\n{sizes}\ntokens = 1024\nmath = \"fp8\"\nformat = \"nvfp4_2d\"\n");
    let decoder = Decoder::from_toml(&text, "8b.toml").unwrap();
    let program = decoder.program(&decoder.model().unwrap()).unwrap();
    let heard = Heard::default();
    let config = Config { prefetch: Prefetch::depth(0), ..Config::default() };
    let own = Dispatch::new(heard.clone());
    let said = ended(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        tracing::dispatcher::with_default(&own, || {
            let builder = Session::simulated(config).program(program);
            runtime.block_on(builder.start_simulated(&named("h100x8-ib").unwrap(), 512)).unwrap()
        });
        // It is looked for on another thread.
        loop {
            match heard.events().pop() {
                Some(said) => return said,
                None => std::thread::yield_now(),
            }
        }
    });
    assert_eq!(field(&said, "program"), Some("\"train\""));
    let [step, other] =
        ["step_ms", "other_ms"].map(|name| field(&said, name).unwrap().parse::<f64>().unwrap());
    assert!(step > 1.1 * other, "{said:?}");
    assert!(field(&said, "settings").unwrap().contains("prefetch.policy"), "{said:?}");
    assert!(field(&said, "message").unwrap().contains("is expected to take"), "{said:?}");
}
