//! Peak memory of getting a session's weights in and out, beside the arena: a start takes one weight, from files too,
//! an export the checkpoint and one weight, a save next to nothing, a sharded save one list of values of each rank, and
//! a sharded import the rows of the ranks.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use warpweft::prelude::*;
use warpweft_session::checkpoint::{Checkpoint, PretrainedFiles, WeightState};
use warpweft_session::session::initial::normal;
use warpweft_session::session::{SessionBuilder, block_on};
use warpweft_testing::peak::{ALONE, MIB, peak_of};

warpweft_testing::alone! {
    a_start_takes_the_arena_and_the_masters_of_one_weight,
    a_frozen_base_takes_its_planes_and_a_start_the_values_of_one_weight,
    an_export_takes_the_checkpoint_and_one_weight,
    a_save_takes_no_memory_in_proportion_to_the_checkpoint,
    a_save_in_parts_takes_one_list_of_values_of_each_rank_and_an_import_the_rows_of_the_ranks,
    weights_that_are_saved_alone_and_begun_with_take_no_memory_in_proportion_to_the_file,
}

const RANKS: usize = 2;
const WEIGHTS: usize = 12;
const ROWS: usize = 512;
const COLS: usize = 1024;

/// Bytes of one weight's master.
const MASTER: usize = 4 * ROWS * COLS;

/// A session of twelve weights of 2 MiB, which takes no step.
fn start() -> Session {
    block_on(builder().1.initialize(normal(7, 0.1)).start_cpu(RANKS as u32)).unwrap()
}

fn builder() -> (Model, SessionBuilder<CpuSurface>) {
    let mut model = Model::builder();
    let weights: Vec<_> = (0..WEIGHTS)
        .map(|number| model.sharded(&format!("w{number}"), ROWS, COLS, Format::NVFP4_2D).unwrap())
        .collect();
    let model = model.build();
    let mut program = StepProgram::builder("train", &model);
    for (number, weight) in weights.into_iter().enumerate() {
        let call = program.call(&format!("call {number}"), Phase::Backward);
        call.uses(weight, Orientation::Rowwise, Form::Dense).gradient(weight).add().unwrap();
    }
    let builder = Session::builder(Config::default(), |_rank| on_cpu(|_, _| Ok(())));
    (model, builder.program(program.build_training().unwrap()))
}

/// Bytes of a weight's values and planes.
fn bytes(weight: &WeightState) -> usize {
    let values = weight.master.len() + weight.states.iter().map(Vec::len).sum::<usize>();
    4 * values + weight.planes.iter().flat_map(|stored| &stored.planes).map(Vec::len).sum::<usize>()
}

fn all_bytes(checkpoint: &Checkpoint) -> usize {
    checkpoint.weights.iter().map(bytes).sum()
}

fn a_start_takes_the_arena_and_the_masters_of_one_weight() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut arenas = 0;
    let peak = peak_of(|| {
        let session = start();
        arenas = RANKS * session.plan("train").unwrap().arena.bytes();
    });
    assert!(peak > arenas, "{peak} is too little to be true beside arenas of {arenas}");
    println!("start: {} beyond arenas of {arenas}", peak - arenas);
    assert!(peak < arenas + MASTER + 2 * MIB, "{} beyond arenas of {arenas}", peak - arenas);
}

/// FW-1: no master of a frozen weight is kept, and none of two is made at once.
fn a_frozen_base_takes_its_planes_and_a_start_the_values_of_one_weight() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut model = Model::builder();
    let bases: Vec<_> = (0..WEIGHTS)
        .map(|number| model.sharded(&format!("w{number}"), ROWS, COLS, Format::NVFP4_2D).unwrap())
        .collect();
    bases.iter().for_each(|base| model.freeze(*base).unwrap());
    let adapter = model.replicated("adapter", 1, COLS).unwrap();
    let mut program = StepProgram::builder("train", &model.build());
    program.call("fit", Phase::Backward).gradient(adapter).add().unwrap();
    let program = program.build_training().unwrap();
    let mut session = None;
    let elements = (WEIGHTS * ROWS * COLS) as f64;
    let start = || {
        let builder = Session::builder(Config::default(), |_rank| on_cpu(|_, _| Ok(())));
        let builder = builder.program(program.clone()).initialize(normal(7, 0.1));
        session = Some(block_on(builder.start_cpu(RANKS as u32)).unwrap());
    };
    let peak = peak_of(start);
    let session = session.unwrap();
    let held = RANKS * session.plan("train").unwrap().arena.bytes();
    println!(
        "a frozen base: {} bytes an element held, {} at the peak",
        held as f64 / elements,
        peak as f64 / elements
    );
    assert!(held as f64 <= 0.6 * elements, "{held} bytes for {elements} elements");
    assert!(peak < held + MASTER + MASTER / 2 + 2 * MIB, "{} beyond {held}", peak - held);
}

fn an_export_takes_the_checkpoint_and_one_weight() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut session = start();
    // The first one quantizes.
    let (all, one) = {
        let checkpoint = block_on(session.export()).unwrap();
        (all_bytes(&checkpoint), bytes(&checkpoint.weights[0]))
    };
    let peak = peak_of(|| drop(block_on(session.export()).unwrap()));
    println!("export: {peak} for a checkpoint of {all}");
    assert!(peak >= all, "{peak} is too little to be true");
    assert!(peak < all + one + MIB, "{peak} for a checkpoint of {all}");
}

fn a_save_takes_no_memory_in_proportion_to_the_checkpoint() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let checkpoint = block_on(start().export()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let peak = peak_of(|| block_on(FileStore::new(&path).save(&checkpoint)).unwrap());
    println!("save: {peak} for a checkpoint of {}", all_bytes(&checkpoint));
    assert!(path.metadata().unwrap().len() as usize > all_bytes(&checkpoint));
    assert!(peak < MIB, "{peak}");
}

/// CK-3.
fn a_save_in_parts_takes_one_list_of_values_of_each_rank_and_an_import_the_rows_of_the_ranks() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let parts = PartFiles::new(folder.path());
    let mut session = start();
    // The first command quantizes.
    drop(block_on(session.export()).unwrap());
    let peak = peak_of(|| block_on(session.save_parts(&parts, &BTreeMap::new())).unwrap());
    println!("save in parts: {peak}");
    // The rows of one weight on all ranks.
    assert!(peak < MASTER + MIB, "{peak}");
    let rows = 3 * WEIGHTS * MASTER;
    let peak = peak_of(|| drop(block_on(session.import_parts(&parts)).unwrap()));
    println!("import of parts: {peak} for rows of {rows}");
    assert!(peak >= rows, "{peak} is too little to be true");
    assert!(peak < rows + MIB, "{peak} for rows of {rows}");
}

fn weights_that_are_saved_alone_and_begun_with_take_no_memory_in_proportion_to_the_file() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let checkpoint = block_on(start().export()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    for element in [ElementType::F32, ElementType::Bf16] {
        let name = |weight: &str| Some(weight.to_owned());
        let peak = peak_of(|| checkpoint.save_weights(&path, element, name).unwrap());
        println!("weights alone in {element}: {peak}");
        assert!(peak < MIB, "{peak}");
        let mut arenas = 0;
        let peak = peak_of(|| {
            let (model, builder) = builder();
            let pretrained = PretrainedFiles::open([&path]).unwrap().initializer(&model, name).unwrap();
            let session = block_on(builder.try_initialize(pretrained).start_cpu(RANKS as u32)).unwrap();
            arenas = RANKS * session.plan("train").unwrap().arena.bytes();
        });
        println!("start from {element}: {} beyond arenas of {arenas}", peak - arenas);
        assert!(peak < arenas + MASTER + 2 * MIB, "{} beyond arenas of {arenas}", peak - arenas);
    }
}
