//! The example `train`: plans of its configurations at full size, and losses in small.
//!
//! Law: its own modules declare and compute; what `main.rs` does between them is done here once more, on a
//! text that stays as it is. A loss is recorded with all its bits.

use std::error::Error;
use std::iter::once;
use std::path::{Path, PathBuf};

use warpweft::prelude::*;
use warpweft_plan::model::Accumulation;
use warpweft_plan::plan::{ResidentLayout, StepPlan};
use warpweft_session::config::Config as Settings;
use warpweft_session::session::{SessionBuilder, block_on, plan_program};
use warpweft_testing::custom_optimizer::{ByMatrices, by_rows};

use crate::closure::Transformer;
use crate::data::{Corpus, Draw, Split};
use crate::host::Host;
use crate::model::{Config, parameters};
use crate::optimizers::{lion, prepare, transform, update};
use crate::program::{self, Declared};
use crate::record::Entry;
use crate::{init, planned, schedule};

const STEPS: u32 = 20;
const SEED: u64 = 1;

/// The steps of a sum that is made in several.
const PARTS: [Accumulation; 3] = [Accumulation::First, Accumulation::Next, Accumulation::Last];

/// Of the example, but small: every matrix still has several blocks of every format.
const SMALL: Config = Config { width: 64, layers: 2, heads: 4, hidden: 256, sequence: 32, batch: 2 };

/// Keys of the configuration, as variables without their prefix, and values.
type Keys = &'static [(&'static str, &'static str)];

/// Who updates the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Optimizer {
    Adam,
    Lion,
    Matrices,
}

/// A run of the job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) name: &'static str,
    format: &'static str,
    ranks: u32,
    micro_batches: u32,
    accumulate: u32,
    optimizer: Optimizer,
    keys: Keys,
}

const NVFP4: Run = Run {
    name: "nvfp4_2d",
    format: "nvfp4_2d",
    ranks: 2,
    micro_batches: 1,
    accumulate: 1,
    optimizer: Optimizer::Adam,
    keys: &[],
};

/// With all formats a matrix can have; what else there is with one.
pub(crate) const RUNS: [Run; 40] = [
    NVFP4,
    of("f32"),
    of("bf16"),
    of("mxfp8"),
    of("fp8_block128_pow2"),
    of("fp8_block128_f32scale"),
    of("fp8_block128_e5m2_pow2"),
    of("fp8_block128_e5m2_f32scale"),
    of("fp8_block128_f32scale_eps0.25"),
    of("fp8_tensor_e4m3"),
    of("fp8_tensor_e4m3_pow2"),
    of("fp8_tensor_e5m2"),
    of("fp8_tensor_e5m2_pow2"),
    Run {
        name: "fp8_tensor_e4m3, delayed",
        keys: &[("QUANTIZE__SCALING", "delayed")],
        ..of("fp8_tensor_e4m3")
    },
    Run {
        name: "three formats",
        keys: &[(
            "WEIGHTS",
            r#"[{ match = "*.mlp.*", format = "fp8_block" }, { match = "embedding*", format = "bf16" }]"#,
        )],
        ..NVFP4
    },
    Run {
        name: "bf16 with masters in bf16 and remainders",
        keys: &[("OPTIMIZER__MASTERS", "bf16_remainder")],
        ..of("bf16")
    },
    Run { name: "moments in bf16", keys: &[("OPTIMIZER__MOMENTS", "bf16")], ..NVFP4 },
    Run { name: "weight decay", keys: &[("OPTIMIZER__WEIGHT_DECAY", "0.1")], ..NVFP4 },
    Run {
        name: "frozen mlps",
        keys: &[("WEIGHTS", r#"[{ match = "blocks.*.mlp.*", frozen = true }]"#)],
        ..NVFP4
    },
    Run { name: "one rank", ranks: 1, ..NVFP4 },
    Run { name: "three ranks", ranks: 3, ..NVFP4 },
    Run { name: "on demand", keys: &[("PREFETCH__DEPTH", "0")], ..NVFP4 },
    Run { name: "three calls ahead, checked", keys: &[("PREFETCH__DEPTH", "3"), ("CHECK", "true")], ..NVFP4 },
    Run { name: "chunks", keys: &[("PREFETCH__CHUNK", "4KiB"), ("DERIVE_AHEAD", "true")], ..NVFP4 },
    Run { name: "kept", keys: &[("BACKWARD", "keep"), ("COLUMNWISE", "keep")], ..NVFP4 },
    Run { name: "gradients in bf16", keys: &[("REDUCE_DTYPE", "bf16")], ..NVFP4 },
    Run { name: "captured", keys: &[("CAPTURE", "step")], ..NVFP4 },
    Run { name: "micro-batches", micro_batches: 3, ..NVFP4 },
    Run {
        name: "micro-batches, reduced once, captured",
        micro_batches: 3,
        keys: &[("REDUCE_EVERY", "step"), ("ACROSS_MICRO_BATCHES", "keep"), ("CAPTURE", "step")],
        ..NVFP4
    },
    Run { name: "replicas", ranks: 4, keys: &[("MESH__DP_REPLICATE", "2")], ..NVFP4 },
    Run {
        name: "replicas, micro-batches, captured",
        ranks: 4,
        micro_batches: 2,
        keys: &[("MESH__DP_REPLICATE", "2"), ("CAPTURE", "step"), ("COMMUNICATORS", "3")],
        ..NVFP4
    },
    Run {
        name: "state over replicas, micro-batches, captured",
        ranks: 4,
        micro_batches: 2,
        keys: &[
            ("MESH__DP_REPLICATE", "2"),
            ("OPTIMIZER__SHARD", "replicas"),
            ("CAPTURE", "step"),
            ("COMMUNICATORS", "3"),
        ],
        ..NVFP4
    },
    Run { name: "accumulated", accumulate: 3, ..NVFP4 },
    Run { name: "accumulated, captured", accumulate: 3, keys: &[("CAPTURE", "step")], ..NVFP4 },
    Run {
        name: "accumulated, micro-batches, replicas",
        ranks: 4,
        micro_batches: 2,
        accumulate: 2,
        keys: &[("MESH__DP_REPLICATE", "2")],
        ..NVFP4
    },
    LION,
    Run { name: "Lion, captured, replicas", ranks: 4, keys: LION_OF_REPLICAS, ..LION },
    Run { name: "Lion, accumulated, micro-batches", accumulate: 2, micro_batches: 2, ..LION },
    MATRICES,
    Run { name: "matrices, accumulated, three ranks", accumulate: 2, ranks: 3, ..MATRICES },
];

const LION: Run =
    Run { name: "Lion", optimizer: Optimizer::Lion, keys: &[("OPTIMIZER__LR", "3e-4")], ..NVFP4 };

const LION_OF_REPLICAS: Keys = &[("OPTIMIZER__LR", "3e-4"), ("MESH__DP_REPLICATE", "2"), ("CAPTURE", "step")];

const MATRICES: Run = Run {
    name: "matrices",
    optimizer: Optimizer::Matrices,
    keys: &[(
        "WEIGHTS",
        r#"[{ match = "blocks.*", whole_matrix = true }, { match = "*.gain", whole_matrix = false }]"#,
    )],
    ..NVFP4
};

const fn of(format: &'static str) -> Run {
    Run { name: format, format, ..NVFP4 }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/train")
}

/// The usual configuration of the example with these keys on top.
fn settings(keys: Keys) -> Result<Settings, Box<dyn Error>> {
    let variables = keys.iter().map(|(key, value)| (format!("WARPWEFT_{key}"), (*value).to_owned()));
    Ok(Settings::load_with(Some(&folder().join("train.toml")), variables)?)
}

/// The training step of a run, which the example has without micro-batches.
fn with_micro_batches(mut declared: Declared, micro_batches: u32) -> Result<Declared, DeclareError> {
    let old = &declared.train;
    let mut program = StepProgram::builder(old.name(), old.model());
    program.micro_batches(micro_batches)?;
    for spec in old.buffers() {
        program.buffer(spec.clone())?;
    }
    for call in old.calls() {
        let mut added = program.call(&call.name, call.phase);
        for used in &call.uses {
            added = added.uses(used.weight, used.orientation, used.form);
        }
        for gradient in &call.gradients {
            added = added.gradient(gradient.weight);
        }
        for access in &call.buffers {
            added = added.accesses(access.buffer, access.access);
        }
        call.cost.iter().fold(added, |added, part| added.cost(*part)).add()?;
    }
    declared.train = program.build_training()?;
    Ok(declared)
}

impl Run {
    /// The custom optimizers keep one state.
    fn settings(&self) -> Result<Settings, Box<dyn Error>> {
        let mut settings = settings(self.keys)?;
        settings.optimizer.custom_states = (self.optimizer != Optimizer::Adam).then_some(1);
        Ok(settings)
    }

    fn declared(&self, config: &Config, settings: &Settings) -> Result<Declared, Box<dyn Error>> {
        let model = settings.apply_weight_rules(&program::weights(config, self.format.parse()?)?)?;
        let mut declared = program::declare(config, &model)?;
        if self.micro_batches > 1 {
            declared = with_micro_batches(declared, self.micro_batches)?;
        }
        if self.accumulate > 1 {
            declared.train = declared.train.accumulating()?;
        }
        Ok(declared)
    }

    async fn start(&self, settings: &Settings) -> Result<Session, Box<dyn Error>> {
        let declared = self.declared(&SMALL, settings)?;
        let builder = self.closures(settings.clone(), declared.clone());
        let masters: Vec<_> = parameters(&SMALL)
            .into_iter()
            .map(|parameter| (parameter.name.clone(), init::initial(&parameter, SEED)))
            .collect();
        let builder = builder.program(declared.train).program(declared.evaluate);
        let builder = builder.initialize(move |rows, own| {
            if let Some((_, values)) = masters.iter().find(|(name, _)| name == rows.weight) {
                own.copy_from_slice(&values[rows.first_element()..][..own.len()]);
            }
        });
        Ok(builder.start_cpu(self.ranks).await?)
    }

    fn closures(&self, settings: Settings, declared: Declared) -> SessionBuilder<CpuSurface> {
        let transformer = move || Transformer::new(&declared, Host::new(&SMALL));
        let builder = Session::builder(settings, move |_: RankId| transformer());
        match self.optimizer {
            Optimizer::Adam => builder,
            Optimizer::Lion => builder.optimizer(by_rows(1, lion)),
            Optimizer::Matrices => builder.optimizer(ByMatrices(1, prepare, transform, update)),
        }
    }

    async fn session_plans(&self) -> Result<Vec<Entry>, Box<dyn Error>> {
        let session = self.start(&self.settings()?).await?;
        let entry = |program: &str| {
            let name = format!("session of `{}`, {program}", self.name);
            Ok::<_, SessionError>(planned(name, session.plan(program)?))
        };
        let entries = vec![entry("train")?, entry("evaluate")?];
        session.close().await?;
        Ok(entries)
    }

    async fn losses(&self, corpus: &Corpus) -> Result<Entry, Box<dyn Error>> {
        let settings = self.settings()?;
        let mut session = self.start(&settings).await?;
        let mut losses = Vec::new();
        for step in 0..STEPS {
            session.set_learning_rate(settings.optimizer.lr as f32 * schedule::factor(step, STEPS))?;
            let mut sum = 0.0;
            for batch in 0..self.accumulate {
                let number = step * self.accumulate + batch;
                write(&mut session, corpus, ("train", Split::Training), number, self.micro_batches)?;
                let is_last = batch + 1 == self.accumulate;
                let report =
                    if is_last { session.step("train").await? } else { session.accumulate("train").await? };
                assert!(!matches!(report.outcome, Outcome::Skipped { .. }), "{}: {report:?}", self.name);
                sum += report.mean_output("loss")?;
            }
            losses.push(sum / self.accumulate as f32);
        }
        write(&mut session, corpus, ("evaluate", Split::HeldOut), 0, 1)?;
        let held_out = session.step("evaluate").await?.mean_output("loss")?;
        let trained = digest(&session.export().await?);
        session.close().await?;
        let bits: Vec<String> = losses.iter().map(|loss| format!("{:08x}", loss.to_bits())).collect();
        let (first, last) = (losses[0], losses[losses.len() - 1]);
        let held_out = format!("held-out {:08x}", held_out.to_bits());
        let losses = format!("{first:.4} to {last:.4}: {}", bits.join(" "));
        Ok(Entry::new(self.name, format!("{losses}; {held_out}; checkpoint {trained:016x}")))
    }
}

/// The batch of every rank; of a program with micro-batches one for each of them.
fn write(
    session: &mut Session,
    corpus: &Corpus,
    (program, split): (&str, Split),
    number: u32,
    micro_batches: u32,
) -> Result<(), SessionError> {
    let own = SMALL.tokens();
    let (mut tokens, mut targets) = (vec![0; own], vec![0; own]);
    for rank in session.own_ranks() {
        let (mut all_tokens, mut all_targets) = (Vec::new(), Vec::new());
        for micro_batch in 0..micro_batches {
            let step = u64::from(number * micro_batches + micro_batch);
            let draw = Draw { split, seed: SEED, step, rank: rank.index() };
            corpus.batch(&SMALL, draw, &mut tokens, &mut targets);
            all_tokens.extend_from_slice(&tokens);
            all_targets.extend_from_slice(&targets);
        }
        session.write_input(program, rank, "tokens", &all_tokens)?;
        session.write_input(program, rank, "targets", &all_targets)?;
    }
    Ok(())
}

/// FNV-1a over all that training left: masters, lists of state and planes.
fn digest(checkpoint: &Checkpoint) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    for weight in &checkpoint.weights {
        let scale = vec![weight.tensor_scale];
        for values in once(&weight.master).chain(&weight.states).chain(once(&scale)) {
            values.iter().for_each(|value| add(&value.to_bits().to_le_bytes()));
        }
        weight.planes.iter().flat_map(|planes| &planes.planes).for_each(|plane| add(plane));
    }
    hash
}

/// What `train --plan` prints, with what is of each run; of a step in several parts all of them. Then the
/// plans that the sessions of the runs begin with, which share their addresses with an evaluation.
pub(crate) fn plans() -> Result<Vec<Entry>, Box<dyn Error>> {
    let (full, mut all) = (Config::default(), Vec::new());
    for run in &RUNS {
        let settings = run.settings()?;
        let (train, name) = (run.declared(&full, &settings)?.train, format!("train, {}", run.name));
        let whole = plan_program(&train, &settings, run.ranks)?;
        all.push(planned(&name, &whole));
        let resident = ResidentLayout::new(&whole.weights, &[&train])?;
        for part in PARTS.into_iter().filter(|_| run.accumulate > 1) {
            let plan = StepPlan::within(&train.part(part), &whole.weights, &resident, &whole.policy)?;
            all.push(planned(format!("{name}, {part} of a sum"), &plan));
        }
    }
    for file in ["mixed.toml", "paced.toml"] {
        let settings = Settings::load_with(Some(&folder().join(file)), [])?;
        let plan = plan_program(&NVFP4.declared(&full, &settings)?.train, &settings, 4)?;
        all.push(planned(format!("train --config {file}"), &plan));
    }
    let settings = settings(&[])?;
    for ranks in [4, 65_536] {
        let plan = plan_program(&NVFP4.declared(&full, &settings)?.train, &settings, ranks)?;
        all.push(planned(format!("train --ranks {ranks}"), &plan));
    }
    for run in &RUNS {
        all.extend(block_on(run.session_plans())?);
    }
    Ok(all)
}

/// Losses of all runs.
pub(crate) fn losses() -> Result<Vec<Entry>, Box<dyn Error>> {
    let text: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("LICENSE-APACHE");
    let corpus = Corpus::read(&[text], SMALL.sequence)?;
    RUNS.iter().map(|run| block_on(run.losses(&corpus))).collect()
}
