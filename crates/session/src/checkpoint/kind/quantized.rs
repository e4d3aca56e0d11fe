//! Quantized tensors in a file: codes beside their scales.
//!
//! Law: *codes* are of a dtype in which no weight is kept as it is, 8-bit floats or integers. *Scales* are of the
//! same module, are called so, and are fewer than the codes. A single one belongs to codes whose name it has, or to the
//! `weight` of a layer if it is called a scale of that, or `scale` and nothing else. Codes without scales, and scales
//! named for a weight without codes, count only where it is stated that the model is quantized.

use std::sync::Arc;

use safetensors::Dtype;

use super::scheme::{TABLE, scheme};
use super::{Listed, NotWeights, Stated};

/// What names of scales have in them, in lower case.
const SCALES: [&str; 6] = ["scal", "absmax", "scb", "zero", TABLE, "codebook"];

/// Scales of a module that are compared with its codes; a layer has few, a hostile header may have any number.
const MOST_SCALES: usize = 64;

const ADVICE: &str =
    "dequantize the model to bf16 or f32 first, by what quantized it, or take the files from before";

/// Adds what is quantized of a module.
pub(super) fn find(module: &[Listed<'_>], stated: &Stated, found: &mut NotWeights) {
    let (scales, others): (Vec<Listed<'_>>, Vec<Listed<'_>>) =
        module.iter().copied().partition(is_called_scale);
    let scales: Vec<Listed<'_>> = scales.into_iter().take(MOST_SCALES).collect();
    let mut first = None;
    for codes in others.into_iter().filter(is_code) {
        if found.what(codes.name).is_some() {
            continue;
        }
        // Of several the one of most values, but not the table that codes point into.
        let near =
            |scale: &&Listed<'_>| (is_named_for(scale, &codes), !scale.last.contains(TABLE), scale.elements);
        let scale = scales.iter().filter(|scale| is_scale_of(scale, &codes)).max_by_key(near);
        let Some(what) = what(&codes, scale, &scales, stated) else { continue };
        found.add(&what, [codes].into_iter().chain(scale.copied()));
        first.get_or_insert(what);
    }
    match (first, stated.quantized()) {
        (Some(what), _) => found.add(&what, scales),
        (None, Some(says)) => {
            for scale in scales.into_iter().filter(|scale| scale.shape.len() >= 2 && is_for_a_weight(scale)) {
                let holds = format!("{} holds scales of codes that are elsewhere", scale.described());
                found.add(&Arc::from(format!("quantized: {holds}; {says}; {ADVICE}")), [scale]);
            }
        }
        (None, None) => {}
    }
}

/// What a file with these codes is; `None` for codes that nothing shows to be of a quantized weight.
fn what(
    codes: &Listed<'_>,
    scale: Option<&Listed<'_>>,
    scales: &[Listed<'_>],
    stated: &Stated,
) -> Option<Arc<str>> {
    let says = stated.quantized();
    let codes_described = codes.described();
    let what = match (scale, says) {
        (Some(scale), says) => {
            let says = says.map(|says| format!("; {says}")).unwrap_or_default();
            let (scheme, scale) = (scheme(codes, scale, scales), scale.described());
            format!("quantized: {codes_described} holds {scheme} in {scale}{says}; {ADVICE}")
        }
        (None, Some(says)) if codes.shape.len() >= 2 => {
            format!("quantized: {codes_described} holds codes whose scales are elsewhere; {says}; {ADVICE}")
        }
        (None, _) => return None,
    };
    Some(Arc::from(what))
}

fn is_called_scale(tensor: &Listed<'_>) -> bool {
    let last = tensor.last.to_ascii_lowercase();
    SCALES.iter().any(|scale| last.contains(scale))
}

fn is_code(tensor: &Listed<'_>) -> bool {
    match tensor.dtype {
        Dtype::F4 | Dtype::F6_E2M3 | Dtype::F6_E3M2 => true,
        Dtype::F8_E4M3 | Dtype::F8_E5M2 | Dtype::F8_E4M3FNUZ | Dtype::F8_E5M2FNUZ => true,
        Dtype::U8 | Dtype::I8 | Dtype::I16 | Dtype::U16 | Dtype::I32 | Dtype::U32 => tensor.shape.len() >= 2,
        _ => false,
    }
}

fn is_scale_of(scale: &Listed<'_>, codes: &Listed<'_>) -> bool {
    let of_scales =
        scale.is_plain_float() || matches!(scale.dtype, Dtype::F8_E4M3 | Dtype::F8_E8M0 | Dtype::U8);
    let of_the_weight = || codes.last == "weight" && (scale.last == "scale" || scale.last.contains("weight"));
    let belongs = scale.elements > 1 || is_named_for(scale, codes) || of_the_weight();
    of_scales && belongs && scale.elements < codes.elements
}

/// Does the name say that the scale is one of a weight, and not of what a layer computes? It may stand in the name of
/// a part, as in `up.weight._scale`.
fn is_for_a_weight(scale: &Listed<'_>) -> bool {
    scale.name.rsplit('.').take(2).any(|part| part.contains("weight") || part.contains("quant"))
}

/// Does the name of `scale` begin as that of `codes`, up to what says what each is: `up_packed` and `up_scale`?
fn is_named_for(scale: &Listed<'_>, codes: &Listed<'_>) -> bool {
    let stem = codes.last.rsplit_once(['_', ':']).map_or("", |(stem, _)| stem);
    let of_stem = !stem.is_empty() && scale.last.starts_with(stem);
    of_stem || scale.name.starts_with(codes.name)
}
