//! Adam through whole sessions, at settings where a step moves a weight by about 1: conformance H5 and H6, and what
//! lies beside them.
//!
//! H6 also requests f16 masters, f16 moments and FP8 moments. This library stores masters as f32 or as bf16 and
//! remainder, and moments as f32 or bf16, so those rows cannot be requested.

use half::bf16;
use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::{RankId, WeightId};
use warpweft_format::{ElementType, Format};
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Model, Phase, StepProgram};
use warpweft_plan::policy::{Masters, Moments, ReduceDtype};
use warpweft_session::checkpoint::{Checkpoint, CheckpointStore, FileStore};
use warpweft_session::config::Config;
use warpweft_session::session::Session;
use warpweft_session::session::initial::MasterRows;
use warpweft_testing::trainer::within_a_minute;

/// Shapes of a small attention layer, and one of a single element.
const SHAPES: [(usize, usize); 5] = [(96, 32), (32, 32), (32, 128), (41, 7), (1, 1)];
const STEPS: u32 = 7;

/// Values without a pattern, from 0 on to below 1.
fn noise(weight: usize, at: usize, seed: u64) -> f32 {
    let mixed = (at as u64 ^ (weight as u64) << 20 ^ seed << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40) as f32 / (1 << 24) as f32
}

/// What a rank writes. Gradients are from 0 on to below 1, so that masters drift.
fn gradient(weight: usize, at: usize, step: u32, rank: usize) -> f32 {
    noise(weight, at, 10 + 4 * u64::from(step) + rank as u64)
}

/// A master before the first step.
fn beginning(weight: usize, at: usize) -> f32 {
    noise(weight, at, 1) * 0.2 - 0.1
}

fn initial(rows: MasterRows<'_>, values: &mut [f32]) {
    let weight = rows.weight[1..].parse().unwrap();
    for (at, value) in values.iter_mut().enumerate() {
        *value = beginning(weight, rows.first_element() + at);
    }
}

/// How a session differs from the plainest.
#[derive(Clone, Copy, Debug)]
struct Settings {
    format: Format,
    /// What closures write.
    gradients: ElementType,
    /// What is sent.
    reduced: ReduceDtype,
    moments: Moments,
    masters: Masters,
    rate: f32,
    betas: [f32; 2],
    epsilon: f32,
}

/// Those of H5: bf16 weights, f32 masters and gradients, and nothing remembered for long.
const H5: Settings = Settings {
    format: Format::Bf16,
    gradients: ElementType::F32,
    reduced: ReduceDtype::F32,
    moments: Moments::F32,
    masters: Masters::F32,
    rate: 1.0,
    betas: [0.1, 0.25],
    epsilon: 1e-8,
};

impl Settings {
    async fn start(self, ranks: u32) -> Session {
        let mut config = Config { check: true, reduce_dtype: self.reduced, ..Config::default() };
        let optimizer = &mut config.optimizer;
        (optimizer.lr, optimizer.eps) = (f64::from(self.rate), f64::from(self.epsilon));
        (optimizer.beta1, optimizer.beta2) = (f64::from(self.betas[0]), f64::from(self.betas[1]));
        (optimizer.moments, optimizer.masters) = (self.moments, self.masters);
        let mut model = Model::builder();
        let declare = |(weight, (rows, cols)): (usize, &(usize, usize))| {
            model.sharded(&format!("w{weight}"), *rows, *cols, self.format).unwrap()
        };
        let weights: Vec<WeightId> = SHAPES.iter().enumerate().map(declare).collect();
        let mut program = StepProgram::builder("train", &model.build());
        let step = program.input("step", 1, ElementType::F32).unwrap();
        let mut call = program.call("fit", Phase::Backward).reads(step);
        for weight in &weights {
            call = call.gradient_in(*weight, self.gradients);
        }
        call.add().unwrap();
        let closures = move |rank: RankId| {
            let weights = weights.clone();
            move |_: &Call, context: &ComputeContext<'_, CpuSurface>| -> Result<(), ComputeError> {
                let step = context.read::<f32>(step)?[0] as u32;
                for (number, weight) in weights.iter().enumerate() {
                    // Ranks beyond the second write what the first two do, so that the mean stays.
                    let value = |at| gradient(number, at, step, rank.index() % 2);
                    if self.gradients == ElementType::Bf16 {
                        let mut into = context.gradient_bf16(*weight)?;
                        into.iter_mut().enumerate().for_each(|(at, into)| *into = bf16::from_f32(value(at)));
                    } else {
                        let mut into = context.gradient(*weight)?;
                        into.iter_mut().enumerate().for_each(|(at, into)| *into = value(at));
                    }
                }
                Ok(())
            }
        };
        let builder = Session::builder(config, closures).program(program.build_training().unwrap());
        builder.initialize(initial).start_cpu(ranks).await.unwrap()
    }

    /// Adam by its paper, in f64, of one element and the first `steps` mean gradients.
    fn textbook(&self, weight: usize, at: usize, steps: u32) -> f64 {
        let [b1, b2] = self.betas.map(f64::from);
        let (mut p, mut m, mut v) = (f64::from(beginning(weight, at)), 0.0, 0.0);
        for step in 1..=steps {
            let gradient = [0, 1].map(|rank| f64::from(gradient(weight, at, step, rank)));
            let g = (gradient[0] + gradient[1]) / 2.0;
            m = b1 * m + (1.0 - b1) * g;
            v = b2 * v + (1.0 - b2) * g * g;
            let t = step as i32;
            let update =
                (m / (1.0 - b1.powi(t))) / ((v / (1.0 - b2.powi(t))).sqrt() + f64::from(self.epsilon));
            p -= f64::from(self.rate) * update;
        }
        p
    }

    /// Masters by the textbook within the tolerance, weights by their masters to the bit.
    fn check(&self, checkpoint: &Checkpoint, steps: u32, relative: f64, absolute: f64) {
        assert_eq!(checkpoint.optimizer_step, steps);
        for (number, state) in checkpoint.weights.iter().enumerate() {
            for (at, found) in state.master.iter().enumerate() {
                let expected = self.textbook(number, at, steps);
                let error = (f64::from(*found) - expected).abs();
                assert!(
                    error <= absolute + relative * expected.abs(),
                    "{self:?}, step {steps}, weight {number}, element {at}: {found} instead of {expected}"
                );
            }
            let stored = state.planes[0].planes[0].as_chunks::<2>().0;
            assert!(self.format != Format::Bf16 || stored.len() == state.master.len(), "{self:?}");
            for (found, master) in stored.iter().zip(&state.master).filter(|_| self.format == Format::Bf16) {
                let (found, tie) = (u16::from_le_bytes(*found), master.to_bits() & 0xFFFF == 0x8000);
                let split = self.masters == Masters::Bf16Remainder;
                // Where a cast goes to the even neighbour, split masters go away from zero.
                let even = bf16::from_f32(*master).to_bits();
                let expected = if split && tie { (master.to_bits() >> 16) as u16 + 1 } else { even };
                assert_eq!(found, expected, "{self:?}, step {steps}, weight {number}: {master}");
            }
        }
    }

    /// Seven steps, into a file and out of it, seven more on another number of ranks; compared after each.
    async fn follows_the_textbook(self, relative: f64, absolute: f64) -> Checkpoint {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::new(folder.path().join("state.safetensors"));
        let mut session = self.start(2).await;
        for step in 1..=2 * STEPS {
            // Ranks of an even number have the mean of the first two.
            let ranks = if step <= STEPS { 2 } else { 4 };
            if step == STEPS + 1 {
                let state = session.export().await.unwrap();
                store.save(&state).await.unwrap();
                session.close().await.unwrap();
                session = self.start(ranks).await;
                session.import(&store.load().await.unwrap()).await.unwrap();
                let again = session.export().await.unwrap();
                assert_eq!(again, state, "{self:?}: the state survives");
            }
            for rank in 0..ranks {
                session.write_input("train", RankId::new(rank), "step", &[step as f32]).unwrap();
            }
            session.step("train").await.unwrap();
            self.check(&session.export().await.unwrap(), step, relative, absolute);
        }
        session.export().await.unwrap()
    }
}

/// The default tolerance of an f32 comparison, for the masters; the weights are their casts exactly.
#[test]
fn h5_masters_and_bf16_weights_follow_the_textbook_at_a_rate_of_one_and_survive_a_file() {
    within_a_minute(async {
        H5.follows_the_textbook(1.3e-6, 1e-5).await;
    });
}

/// The same where a weight is the upper half of its master: no row of the list, but the tolerance of one.
#[test]
fn split_masters_and_their_bf16_weights_follow_the_textbook_at_a_rate_of_one_and_survive_a_file() {
    within_a_minute(async {
        let split = Settings { masters: Masters::Bf16Remainder, ..H5 };
        split.follows_the_textbook(1.3e-6, 1e-5).await;
    });
}

/// Gradients written in bf16, written in f32 and sent in bf16, moments in bf16, and all of it at once.
#[test]
fn h6_bf16_gradients_and_moments_stay_close_to_the_textbook_at_a_rate_of_one_and_survive_a_file() {
    within_a_minute(async {
        let plain = H5.follows_the_textbook(1.3e-6, 1e-5).await;
        let written = Settings { gradients: ElementType::Bf16, ..H5 };
        let sent = Settings { reduced: ReduceDtype::Bf16, ..H5 };
        let remembered = Settings { moments: Moments::Bf16, ..H5 };
        let split = Settings { masters: Masters::Bf16Remainder, ..remembered };
        let all = Settings { moments: Moments::Bf16, masters: Masters::Bf16Remainder, ..written };
        for settings in [written, sent, remembered, split, all] {
            let found = settings.follows_the_textbook(2e-3, 2e-3).await;
            assert_ne!(
                found.weights[0].master, plain.weights[0].master,
                "{settings:?}: something is rounded"
            );
        }
    });
}

/// Other options of Adam, which the list may keep back: short memories and a large epsilon, on f32 weights too.
#[test]
fn masters_follow_the_textbook_at_other_betas_and_epsilon() {
    within_a_minute(async {
        let options = Settings { rate: 1e-2, betas: [0.6, 0.9], epsilon: 3e-6, ..H5 };
        options.follows_the_textbook(1.3e-6, 1e-5).await;
        Settings { format: Format::F32, ..options }.follows_the_textbook(1.3e-6, 1e-5).await;
    });
}
