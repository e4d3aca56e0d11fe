//! A rank on the CPU.

use warpweft::prelude::*;
use warpweft::session::block_on;

const LAYERS: usize = 4;
const SIZE: usize = 1024;
/// Rows of a batch.
const ROWS: usize = 64;

/// Its description, and the session.
pub(crate) fn start() -> (String, Session) {
    let mut model = Model::builder();
    let weights: Vec<_> = (0..LAYERS)
        .map(|layer| model.sharded(&format!("layer{layer}"), SIZE, SIZE, Format::Bf16).unwrap())
        .collect();
    let mut program = StepProgram::builder("train", &model.build());
    for (layer, weight) in weights.iter().enumerate() {
        program.call(&format!("forward {layer}"), Phase::Forward).uses_dense(*weight).add().unwrap();
    }
    for (layer, weight) in weights.iter().enumerate().rev() {
        let call = program.call(&format!("backward {layer}"), Phase::Backward).uses_dense(*weight);
        call.gradient(*weight).add().unwrap();
    }
    let program = program.build_training().unwrap();
    let closure = on_cpu(move |call: &Call, context: &ComputeContext<'_, CpuSurface>| {
        for usage in &call.uses {
            let values = context.dense(usage.weight, Orientation::Rowwise)?;
            let row = products(&values);
            if let Some(gradient) = call.gradients.first() {
                let mut gradient = context.gradient(gradient.weight)?;
                for (to, from) in gradient.chunks_mut(SIZE).zip(values.chunks(SIZE)) {
                    to.iter_mut().zip(from).zip(&row).for_each(|((to, from), row)| *to = from + 1e-6 * row);
                }
            }
        }
        Ok(())
    });
    let builder = Session::builder(Config::default(), move |_| closure).program(program);
    let session = block_on(builder.initialize(initial::normal(17, 0.02)).start_cpu(1)).unwrap();
    (format!("{LAYERS} layers of {SIZE} x {SIZE} on the CPU"), session)
}

/// As much work as a batch of rows is by a matrix.
fn products(matrix: &[f32]) -> Vec<f32> {
    let mut sums = vec![0.0f32; SIZE];
    for row in 0..ROWS {
        let factor = 1.0 / (1 + row) as f32;
        for line in matrix.chunks(SIZE) {
            sums.iter_mut().zip(line).for_each(|(sum, value)| *sum = 0.5 * *sum + factor * value);
        }
    }
    sums
}
