//! The printed report of `quantize --to`: a row for each kind of tensor, and the tensors that were left alone, with
//! reasons.
//!
//! Tensors are of one kind whose names differ in indices alone: `model.layers.*.mlp.up_proj`.

use std::collections::BTreeMap;
use std::fmt::Write;

use warpweft_base::errors::shown;
use warpweft_session::checkpoint::engines::{ConvertedLayer, EngineReport};

use super::table::ratio;
use super::text::{Align, Table, bytes, duration};

/// Bytes of an element of the model as it was, which is served in bf16.
const BEFORE: u64 = 2;

/// The report as text. `inputs_are_quantized` says whether engines quantize the inputs of NVFP4 layers
/// too, `has_description` whether config.json came from a model's folder.
pub(crate) fn describe(report: &EngineReport, inputs_are_quantized: bool, has_description: bool) -> String {
    let mut table = Table::new([
        ("layers", Align::Left),
        ("count", Align::Right),
        ("format", Align::Left),
        ("in bf16", Align::Right),
        ("now", Align::Right),
        ("ratio", Align::Right),
        ("rel. error", Align::Right),
        ("worst", Align::Right),
    ]);
    let mut kinds: BTreeMap<(String, String), Vec<&ConvertedLayer>> = BTreeMap::new();
    for layer in &report.layers {
        kinds.entry((without_indices(&layer.name), layer.format.to_string())).or_default().push(layer);
    }
    for ((name, format), layers) in &kinds {
        let (before, after) = sizes(layers.iter().copied());
        let errors = || layers.iter().map(|layer| layer.relative_error);
        let mean = errors().sum::<f64>() / layers.len() as f64;
        table.row([
            shown(name),
            layers.len().to_string(),
            format.clone(),
            bytes(before),
            bytes(after),
            ratio(before, after),
            format!("{mean:.2e}"),
            format!("{:.2e}", errors().fold(0.0, f64::max)),
        ]);
    }
    let (before, after) = sizes(&report.layers);
    let left = report.bytes.saturating_sub(after);
    let mut total = |name: &str, count: usize, before: u64, after: u64| {
        let (format, error, worst) = (String::new(), String::new(), String::new());
        table.row([
            name.to_owned(),
            count.to_string(),
            format,
            bytes(before),
            bytes(after),
            ratio(before, after),
            error,
            worst,
        ]);
    };
    total("quantized", report.layers.len(), before, after);
    total("left alone", report.left.len(), left, left);
    total("all", report.layers.len() + report.left.len(), before + left, report.bytes);
    let files = if report.files == 1 { "one file".to_owned() } else { format!("{} files", report.files) };
    let mut text = format!("{table}\n{files} of tensors in {}", duration(report.elapsed));
    text += &match (&report.copied[..], has_description) {
        (_, false) => {
            "; there is no description of the model and no tokenizer, which engines need: --model-folder \
                       names them\n"
                .to_owned()
        }
        ([], true) => "; beside them config.json\n".to_owned(),
        (copied, true) => format!("; beside them config.json, {}\n", copied.join(", ")),
    };
    if !report.not_copied.is_empty() {
        text += &format!("not copied: {}\n", report.not_copied.join(", "));
    }
    text += &groups(report);
    text += &rescaled(report);
    if report.layers.iter().any(|layer| layer.format.needs_tensor_amax()) && !inputs_are_quantized {
        text += "Weights alone are quantized (W4A16 for NVFP4): scales of inputs need calibration data, and come by \
                 --input-scales.\n";
    }
    text += &left_alone(report);
    text
}

fn sizes<'a>(layers: impl IntoIterator<Item = &'a ConvertedLayer>) -> (u64, u64) {
    layers.into_iter().fold((0, 0), |(before, after), layer| {
        (before + layer.shape.elements() as u64 * BEFORE, after + layer.bytes_after)
    })
}

/// How much one scale for a group changed.
fn groups(report: &EngineReport) -> String {
    let Some(worst) = report.groups.iter().max_by(|left, right| left.ratio.total_cmp(&right.ratio)) else {
        return String::new();
    };
    let differing = report.groups.iter().filter(|group| group.ratio != 1.0).count();
    format!(
        "scale groups: {}, 0 mismatch: each has one scale, as engines fuse its layers. With scales of their own {differing} \
         would, by up to {:.2}× ({}).\n",
        report.groups.len(),
        worst.ratio,
        worst.layers.join(", ")
    )
}

/// Which layers are served with other codes than they were trained with.
fn rescaled(report: &EngineReport) -> String {
    let Some(first) = report.rescaled.first() else { return String::new() };
    format!(
        "{} of {} layers were trained with another scale of the tensor, so their codes are others: {} is the first. \
         Training with scale groups, and --via as in training, keeps them.\n",
        report.rescaled.len(),
        report.layers.len(),
        shown(first)
    )
}

/// What was left alone: kinds of tensors by the reason.
fn left_alone(report: &EngineReport) -> String {
    // By the name and the reason without indices: the first reason as it is, and how many there are.
    let mut kinds: Vec<((String, String), String, usize)> = Vec::new();
    for (tensor, reason) in &report.left {
        let reason = reason.to_string();
        let kind = (without_indices(&tensor.name), without_indices(&reason));
        match kinds.iter_mut().find(|(known, ..)| *known == kind) {
            Some((.., count)) => *count += 1,
            None => kinds.push((kind, reason, 1)),
        }
    }
    let mut text = String::new();
    if !kinds.is_empty() {
        text += "\nLeft alone (`*` stands for numbers):\n";
    }
    for ((name, _), reason, count) in kinds {
        let count = if count == 1 { String::new() } else { format!(" ({count} tensors)") };
        // Writing to a text does not fail.
        let _ = writeln!(text, "  {}{count}: {reason}", shown(&name));
    }
    text
}

/// A name with `*` in the place of each part that is a number.
fn without_indices(name: &str) -> String {
    let is_index = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = name.split('.').map(|part| if is_index(part) { "*" } else { part }).collect();
    parts.join(".")
}
