//! A tied embedding with rows that end within a block, as a vocabulary of 50257 does, in sessions of all formats.

use std::sync::{Arc, Mutex};

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::RankId;
use warpweft_format::{Directions, Format, Orientation, Quantized, Shape, Via, quantize};
use warpweft_plan::compute::{ComputeContext, ComputeError, PrepareContext, TransformContext, UpdateContext};
use warpweft_plan::model::{Call, Form, Model, Phase, StepProgram};
use warpweft_plan::policy::{Columnwise, ReduceDtype};
use warpweft_session::checkpoint::{Checkpoint, CheckpointStore, FileStore};
use warpweft_session::config::Config;
use warpweft_session::session::{Session, SessionBuilder};
use warpweft_testing::custom_optimizer::ByMatrices;
use warpweft_testing::products::dot;
use warpweft_testing::reference::{Parameter, RATE, mean_over_replicas};
use warpweft_testing::trainer::{initial, within_a_minute};

/// Columns of both weights.
const WIDTH: usize = 32;
const STEPS: u32 = 5;
const WEIGHTS: [&str; 2] = ["embedding", "base"];

fn formats() -> impl Iterator<Item = Format> {
    Format::CANONICAL.into_iter().filter(|format| format.check_weight().is_ok())
}

/// The token of a rank in a step; the last one of the vocabulary comes up.
fn token(step: u32, rank: u32, rows: usize) -> usize {
    rows - 1 - (step as usize * 7 + rank as usize * 3) % rows
}

/// What is wanted of the logit of a row.
fn target(row: usize, token: usize) -> f32 {
    if row == token { 1.0 } else { (row as f32 * 0.1).sin() * 0.05 }
}

/// Loss, gradient of the head and of its input. `rows` and `columns` are those of embedding and base.
fn head(rows: [&[f32]; 2], columns: [&[f32]; 2], x: &[f32], token: usize) -> (f32, Vec<f32>, Vec<f32>) {
    let count = rows[0].len() / WIDTH;
    let logit = |row: usize| rows.iter().map(|of| dot(&of[row * WIDTH..][..WIDTH], x)).sum::<f32>();
    let errors: Vec<f32> = (0..count).map(|row| logit(row) - target(row, token)).collect();
    let gradient = errors.iter().flat_map(|error| x.iter().map(move |x| 2.0 * error * x)).collect();
    let below =
        |column: usize| columns.iter().map(|of| 2.0 * dot(&of[column * count..][..count], &errors)).sum();
    (errors.iter().map(|error| error * error).sum(), gradient, (0..WIDTH).map(below).collect())
}

/// The gradient of the rows that were looked up.
fn looked_up(count: usize, token: usize, below: &[f32]) -> Vec<f32> {
    let mut gradient = vec![0.0; count * WIDTH];
    gradient[token * WIDTH..][..WIDTH].copy_from_slice(below);
    gradient
}

/// An embedding that is also the head, beside a frozen base of the same shape.
fn model(rows: usize, format: Format) -> Model {
    let mut model = Model::builder();
    let [_, base] = WEIGHTS.map(|name| model.sharded(name, rows, WIDTH, format).unwrap());
    model.freeze(base).unwrap();
    model.build()
}

fn program(model: &Model, rows: usize) -> StepProgram {
    use warpweft_format::ElementType::F32;
    let [embedding, base] = WEIGHTS.map(|name| model.find(name).unwrap());
    let (rowwise, columnwise) = (Orientation::Rowwise, Orientation::Columnwise);
    let mut program = StepProgram::builder("train", model);
    let token = program.input("token", 1, F32).unwrap();
    let loss = program.output("loss", 1, F32).unwrap();
    let seen = program.output("seen", rows * WIDTH, F32).unwrap();
    let [x, below] = ["x", "below"].map(|name| program.activation(name, WIDTH).unwrap());
    let embed = program.call("embed", Phase::Forward).uses(embedding, rowwise, Form::Dense);
    embed.reads(token).writes(x).writes(seen).add().unwrap();
    let mut head = program.call("head", Phase::Backward).reads(token).reads(x).writes(loss).writes(below);
    for weight in [embedding, base] {
        head = head.uses(weight, rowwise, Form::Dense).uses(weight, columnwise, Form::Dense);
    }
    head.gradient(embedding).add().unwrap();
    let back = program.call("embed again", Phase::Backward).reads(token).reads(below);
    back.gradient(embedding).add().unwrap();
    program.build_training().unwrap()
}

fn run(call: &Call, context: &ComputeContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    let [embedding, base] = WEIGHTS.map(|name| context.weight_named(name));
    let (embedding, base) = (embedding?, base?);
    let buffer = |name| context.buffer_named(name);
    let token = context.read::<f32>(buffer("token")?)?[0] as usize;
    let dense = |weight, orientation| context.dense(weight, orientation);
    match call.name.as_str() {
        "embed" => {
            let rows = dense(embedding, Orientation::Rowwise)?;
            context.write::<f32>(buffer("x")?)?.copy_from_slice(&rows[token * WIDTH..][..WIDTH]);
            context.write::<f32>(buffer("seen")?)?.copy_from_slice(&rows);
        }
        "head" => {
            let (a, b) = (dense(embedding, Orientation::Rowwise)?, dense(base, Orientation::Rowwise)?);
            let (c, d) = (dense(embedding, Orientation::Columnwise)?, dense(base, Orientation::Columnwise)?);
            let x = context.read::<f32>(buffer("x")?)?;
            let (loss, gradient, below) = head([&a, &b], [&c, &d], &x, token);
            context.write::<f32>(buffer("loss")?)?[0] = loss;
            context.gradient(embedding)?.copy_from_slice(&gradient);
            context.write::<f32>(buffer("below")?)?.copy_from_slice(&below);
        }
        _ => {
            let below = context.read::<f32>(buffer("below")?)?;
            let mut gradient = context.gradient(embedding)?;
            let count = gradient.len() / WIDTH;
            gradient.copy_from_slice(&looked_up(count, token, &below));
        }
    }
    Ok(())
}

fn config(replicas: u32, columnwise: Columnwise) -> Config {
    let mut config = Config { check: true, columnwise, ..Config::default() };
    config.optimizer.lr = f64::from(RATE);
    config.mesh.dp_replicate = Some(replicas);
    config
}

fn builder(rows: usize, format: Format, config: Config) -> SessionBuilder<CpuSurface> {
    let program = program(&model(rows, format), rows);
    Session::builder(config, |_: RankId| run).program(program).initialize(initial)
}

async fn step(session: &mut Session, rows: usize, ranks: u32, step: u32) -> u32 {
    for rank in 0..ranks {
        let token = token(step, rank, rows) as f32;
        session.write_input("train", RankId::new(rank), "token", &[token]).unwrap();
    }
    session.step("train").await.unwrap().mean_output("loss").unwrap().to_bits()
}

async fn losses(session: &mut Session, rows: usize, ranks: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for number in 0..STEPS {
        found.push(step(session, rows, ranks, number).await);
    }
    found
}

/// A weight of whole blocks: below its own rows there are zeros.
fn quantized(format: Format, rows: usize, master: &[f32]) -> Quantized {
    let whole = format.whole_blocks(Shape::new(rows, WIDTH));
    let mut filled = master.to_vec();
    filled.resize(whole.elements(), 0.0);
    quantize(format, Directions::Both, Via::Bf16, whole, &filled).unwrap()
}

/// What is read of it rowwise and columnwise.
fn values(format: Format, rows: usize, master: &[f32]) -> [Vec<f32>; 2] {
    let whole = quantized(format, rows, master);
    let mut rowwise = whole.dequantize(Orientation::Rowwise).unwrap();
    rowwise.truncate(rows * WIDTH);
    let columnwise = whole.dequantize(Orientation::Columnwise).unwrap();
    let columnwise =
        columnwise.chunks(whole.shape.rows).flat_map(|column| &column[..rows]).copied().collect();
    [rowwise, columnwise]
}

/// Losses, and the master after the last, of whole weights in one place.
fn unsharded(rows: usize, format: Format, ranks: u32, replicas: u32) -> (Vec<u32>, Vec<f32>) {
    let [mut embedding, base] = WEIGHTS.map(|name| Parameter::new(name, WIDTH, rows * WIDTH));
    let base = values(format, rows, &base.master);
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let own = values(format, rows, &embedding.master);
        let of_rank = |rank| {
            let token = token(step, rank, rows);
            let x = &own[0][token * WIDTH..][..WIDTH];
            let (loss, gradient, below) = head([&own[0], &base[0]], [&own[1], &base[1]], x, token);
            (loss, vec![gradient, looked_up(rows, token, &below)])
        };
        let (each, gradients): (Vec<f32>, Vec<Vec<Vec<f32>>>) = (0..ranks).map(of_rank).unzip();
        let sum: f64 = each.iter().map(|loss| f64::from(*loss)).sum();
        losses.push(((sum / f64::from(ranks)) as f32).to_bits());
        embedding.update(&mean_over_replicas(&gradients, replicas, 1, ReduceDtype::F32), step as i32 + 1);
    }
    (losses, embedding.master)
}

fn master<'a>(state: &'a Checkpoint, name: &str) -> &'a [f32] {
    &state.weight(name).unwrap().master
}

/// FO-6, PL-4. Rows that end within a block, fewer rows than ranks, one row more than whole blocks; the weight is used
/// by two calls, in both orientations.
#[test]
fn an_embedding_of_any_number_of_rows_learns_as_an_unsharded_one_does_on_any_number_of_ranks() {
    within_a_minute(async {
        for format in formats() {
            for rows in [83, 33, 3] {
                for (ranks, replicas) in [(1, 1), (2, 1), (3, 1), (4, 2), (4, 1), (5, 1)] {
                    let (expected, learned) = unsharded(rows, format, ranks, replicas);
                    for columnwise in [Columnwise::OnDemand, Columnwise::Keep] {
                        let builder = builder(rows, format, config(replicas, columnwise));
                        let mut session = builder.start_cpu(ranks).await.unwrap();
                        let what = format!("{format}, {rows} rows on {ranks} ranks, {columnwise:?}");
                        assert_eq!(losses(&mut session, rows, ranks).await, expected, "{what}");
                        let state = session.export().await.unwrap();
                        assert!(master(&state, "embedding") == learned, "{what}");
                    }
                }
            }
        }
    });
}

/// A checkpoint has the rows of the declaration; only planes are of whole blocks, as they would be of zeros below.
#[test]
fn a_checkpoint_has_the_declared_rows_and_any_number_of_ranks_reads_it_from_a_file() {
    const ROWS: usize = 83;
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        for format in formats() {
            let start = |ranks| builder(ROWS, format, config(1, Columnwise::OnDemand)).start_cpu(ranks);
            let mut session = start(3).await.unwrap();
            losses(&mut session, ROWS, 3).await;
            let written = session.export().await.unwrap();
            let state = written.weight("embedding").unwrap();
            let elements = ROWS * WIDTH;
            assert_eq!(state.shape, Shape::new(ROWS, WIDTH), "{format}");
            let lists = [state.master.len(), state.states[0].len(), state.states[1].len()];
            assert_eq!(lists, [elements; 3], "{format}");
            let whole = quantized(format, ROWS, &state.master);
            for stored in &state.planes {
                let planes = match stored.orientation {
                    Orientation::Rowwise => whole.rowwise.as_ref().unwrap(),
                    Orientation::Columnwise => whole.columnwise.as_ref().unwrap(),
                };
                assert!(stored.planes[0] == planes.data, "{format} {}", stored.orientation);
                assert!(stored.planes.get(1).is_none_or(|scale| *scale == planes.scale), "{format}");
            }
            let store = FileStore::new(folder.path().join(format!("{format}.safetensors")));
            store.save(&written).await.unwrap();
            let read = store.load().await.unwrap();
            for ranks in [1, 2, 5] {
                let mut other = start(ranks).await.unwrap();
                other.import(&read).await.unwrap();
                let again = other.export().await.unwrap();
                assert!(again.weights == written.weights, "{format} on {ranks} ranks");
            }
        }
    });
}

/// A call that reads planes gets whole blocks, whose last rows are zero codes; the shape is the declared one.
#[test]
fn planes_that_a_call_reads_are_of_whole_blocks_and_end_in_codes_of_zeros() {
    const ROWS: usize = 83;
    within_a_minute(async {
        for format in formats() {
            let mut model = Model::builder();
            let weight = model.sharded("embedding", ROWS, WIDTH, format).unwrap();
            let mut program = StepProgram::builder("look", &model.build());
            let mut call = program.call("look", Phase::Forward);
            for orientation in [Orientation::Rowwise, Orientation::Columnwise] {
                call = call.uses(weight, orientation, Form::Planes);
            }
            call.add().unwrap();
            let program = program.build_evaluation().unwrap();
            let found = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&found);
            let closures = move |_: RankId| {
                let seen = Arc::clone(&seen);
                move |_: &Call, context: &ComputeContext<'_, CpuSurface>| {
                    for orientation in [Orientation::Rowwise, Orientation::Columnwise] {
                        let planes = context.planes(weight, orientation)?;
                        let bytes = (planes.data.to_vec(), planes.scale.to_vec());
                        seen.lock().unwrap().push((orientation, planes.shape, bytes));
                    }
                    Ok(())
                }
            };
            let config = Config { check: true, ..Config::default() };
            let builder = Session::builder(config, closures).program(program).initialize(initial);
            let mut session = builder.start_cpu(3).await.unwrap();
            session.step("look").await.unwrap();
            let whole = quantized(format, ROWS, &Parameter::new("embedding", WIDTH, ROWS * WIDTH).master);
            let found = found.lock().unwrap();
            assert_eq!(found.len(), 6);
            for (orientation, shape, (data, scale)) in found.iter() {
                let planes = match orientation {
                    Orientation::Rowwise => whole.rowwise.as_ref().unwrap(),
                    Orientation::Columnwise => whole.columnwise.as_ref().unwrap(),
                };
                assert_eq!(*shape, Shape::new(ROWS, WIDTH));
                assert!((data, scale) == (&planes.data, &planes.scale), "{format} {orientation}");
            }
        }
    });
}

type Done = Result<(), ComputeError>;

fn prepare(context: &PrepareContext<'_, CpuSurface>) -> Done {
    for weight in context.weights() {
        let gradient = context.main_grad(weight.id)?;
        context.prepared(weight.id)?.copy_from_slice(&gradient);
    }
    Ok(())
}

/// By the norm of the whole matrix.
fn normalize(context: &TransformContext<'_, CpuSurface>) -> Done {
    let matrix = context.matrix()?;
    if matrix.len() != context.weight().shape.elements() {
        return Err(ComputeError::closure("the matrix has other rows than the weight"));
    }
    let norm = dot(&matrix, &matrix).sqrt() + 1e-12;
    context.transformed()?.iter_mut().zip(matrix.iter()).for_each(|(to, value)| *to = value / norm);
    Ok(())
}

fn descend(context: &UpdateContext<'_, CpuSurface>) -> Done {
    for weight in context.weights() {
        let (mut master, rows) = (context.master(weight.id)?, context.transformed(weight.id)?);
        master.iter_mut().zip(rows.iter()).for_each(|(p, row)| *p -= RATE * row);
    }
    Ok(())
}

/// What was prepared of rows that only complete a block would change the norm.
#[test]
fn a_custom_optimizer_gets_the_matrix_of_the_declared_rows() {
    const ROWS: usize = 83;
    within_a_minute(async {
        for format in formats() {
            let mut found = Vec::new();
            for ranks in [1, 2, 3, 5] {
                let mut config = config(1, Columnwise::OnDemand);
                let rules = "[[weights]]\nmatch = 'embedding'\nwhole_matrix = true";
                config.weights = Config::from_toml_str(rules, "rules").unwrap().weights;
                let model = config.apply_weight_rules(&model(ROWS, format)).unwrap();
                let builder = Session::builder(config, |_: RankId| run).program(program(&model, ROWS));
                let builder = builder.optimizer(ByMatrices(0, prepare, normalize, descend));
                let mut session = builder.initialize(initial).start_cpu(ranks).await.unwrap();
                for rank in 0..ranks {
                    session.write_input("train", RankId::new(rank), "token", &[82.0]).unwrap();
                }
                session.step("train").await.unwrap();
                found.push(master(&session.export().await.unwrap(), "embedding").to_vec());
            }
            // Of equal gradients one rank has the same mean as two; others round.
            assert!(found[1] == found[0], "{format}");
            let close = |other: &Vec<f32>| other.iter().zip(&found[0]).all(|(a, b)| (a - b).abs() < 1e-6);
            assert!(found.iter().all(close), "{format}");
        }
    });
}
