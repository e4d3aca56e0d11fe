//! The weights of a random program.

use warpweft_base::id::WeightId;
use warpweft_format::Format;
use warpweft_plan::model::{Model, NonNegative, ParameterGroup, Reuse};

use super::Draw;

pub(super) const FORMATS: [Format; 6] = [
    Format::F32,
    Format::Bf16,
    Format::NVFP4_2D,
    Format::Mxfp8,
    Format::FP8_BLOCK128_POW2,
    Format::FP8_TENSOR_E4M3,
];

/// Weights in blocks have `short` rows less than whole blocks.
pub(super) fn model(draw: &mut Draw, frozen: &mut Draw, short: usize) -> Model {
    let mut model = Model::builder();
    let mut ids = Vec::new();
    let (one, other) = (draw.among(&FORMATS), draw.among(&FORMATS));
    for number in 0..1 + draw.below(5) {
        let name = format!("w{number}");
        let format = if draw.one_in(3) { other } else { one };
        let (rows, cols) = (1 + draw.below(4), 1 + draw.below(3));
        let (rows, cols) = match format {
            Format::Nvfp4(_) | Format::Mxfp8 => (rows * 32 - short, cols * 32),
            _ => (rows * 7, cols * 5),
        };
        let replicated = draw.one_in(4);
        let id = if replicated {
            model.replicated(&name, rows, cols).unwrap()
        } else {
            model.sharded(&name, rows, cols, format).unwrap()
        };
        ids.push((id, replicated));
    }
    let sharded: Vec<WeightId> =
        ids.iter().filter(|(_, replicated)| !replicated).map(|(id, _)| *id).collect();
    for weight in &sharded {
        if draw.one_in(6) {
            model.reuse(*weight, draw.among(&[Reuse::Keep, Reuse::Regather])).unwrap();
        }
    }
    for weight in ids.iter().map(|(id, _)| *id) {
        if draw.one_in(4) {
            let value = |draw: &mut Draw| NonNegative::new(draw.among(&[0.0, 0.1, 3.0]));
            let weight_decay = if draw.one_in(2) { value(draw) } else { None };
            let learning_rate_scale = if draw.one_in(2) { value(draw) } else { None };
            let group = ParameterGroup { weight_decay, learning_rate_scale, ..ParameterGroup::default() };
            model.parameters(weight, group).unwrap();
        }
    }
    if frozen.one_in(4) {
        // Never all of them: some program trains.
        for (weight, _) in &ids[1..] {
            if frozen.one_in(2) {
                model.freeze(*weight).unwrap();
            }
        }
    }
    if draw.one_in(2) {
        // Groups of up to three, and weights of none.
        for (number, members) in sharded.chunks(1 + draw.below(3)).take(2).enumerate() {
            model.group(&format!("experts {number}"), members).unwrap();
        }
    }
    model.build()
}
