//! Candidates for quantization: the tensors of a model under their new names.
//!
//! Law: what engines fuse is quantized alike or not at all, and so are the experts of a layer (EN-2). What is said for
//! no tensor is refused.

use std::collections::{BTreeMap, HashSet};

use warpweft_base::errors::shown;
use warpweft_format::{Format, Shape};

use super::EngineOptions;
use super::encoding::Encoding;
use super::linears::{LeftAlone, Linears, is_for, layer_of, layers, quoted};
use super::scale_groups::{ScaleGroups, experts};
use super::weights::{PlainTensor, PlainWeights};
use crate::checkpoint::CheckpointError;

/// Rows of a tensor of the input.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) tensor: String,
    /// The first of them in the input, of columns as the input has them.
    pub(super) first_row: usize,
    /// The matrix as the output has it.
    pub(super) shape: Shape,
    pub(super) transpose: bool,
    /// Bytes of an element of the input.
    pub(super) width: usize,
}

/// A tensor under its new name, and what becomes of it.
pub(super) struct Candidate {
    pub(super) tensor: PlainTensor,
    pub(super) source: Source,
    pub(super) fate: Result<Linears, LeftAlone>,
}

/// All tensors of the output, in the order of the input.
pub(super) fn candidates(
    weights: &dyn PlainWeights,
    options: &EngineOptions,
    groups: &ScaleGroups,
) -> Result<Vec<Candidate>, CheckpointError> {
    let (mut candidates, mut tied) = (Vec::new(), Vec::new());
    for tensor in weights.tensors()? {
        candidates.extend(renamed(tensor, options, &mut tied)?);
    }
    check_used(&candidates, options)?;
    keep_groups_whole(&mut candidates, groups)?;
    let written: HashSet<&str> = candidates.iter().map(|candidate| candidate.tensor.name.as_str()).collect();
    match tied.iter().find(|(_, to)| !written.contains(to.as_str())) {
        None => Ok(candidates),
        Some((from, to)) => {
            let (from, to) = (quoted(from), quoted(to));
            let reason =
                format!("the name map ties {from} to {to}, which is not written; name a tensor that is");
            Err(CheckpointError::Unfit { reason })
        }
    }
}

/// The tensors that one of the input becomes, by the name map, and what becomes of each by its new name.
fn renamed(
    tensor: PlainTensor,
    options: &EngineOptions,
    tied: &mut Vec<(String, String)>,
) -> Result<Vec<Candidate>, CheckpointError> {
    let PlainTensor { name, dtype, shape } = tensor;
    if !dtype.bitsize().is_multiple_of(8) {
        let reason =
            format!("{} is of {dtype}, whose elements are no whole bytes; convert it first", quoted(&name));
        return Err(CheckpointError::Unfit { reason });
    }
    let mut candidates = Vec::new();
    for mapped in options.names.of(&name)? {
        if mapped.is_tied {
            tied.push((name.clone(), mapped.name));
            continue;
        }
        let is_changed = mapped.transpose || mapped.rows.is_some();
        let new_shape = match shape[..] {
            _ if !is_changed => shape.clone(),
            [rows, cols]
                if mapped.rows.is_none_or(|taken| mapped.first_row.saturating_add(taken) <= rows) =>
            {
                let rows = mapped.rows.unwrap_or(rows);
                if mapped.transpose { vec![cols, rows] } else { vec![rows, cols] }
            }
            _ => return Err(cannot_cut(&name, &shape)),
        };
        let (rows, cols) = match new_shape[..] {
            [] => (1, 1),
            [length] => (1, length),
            [ref rows @ .., cols] => (rows.iter().product(), cols),
        };
        let source = Source {
            tensor: name.clone(),
            first_row: mapped.first_row,
            shape: Shape { rows, cols },
            transpose: mapped.transpose,
            width: dtype.bitsize() / 8,
        };
        let fate = Linears::of(&mapped.name, dtype, &new_shape, options.format, &options.rules);
        let tensor = PlainTensor { name: mapped.name, dtype, shape: new_shape };
        candidates.push(Candidate { tensor, source, fate });
    }
    let rows =
        |one: &Candidate| if one.source.transpose { one.source.shape.cols } else { one.source.shape.rows };
    let taken = candidates.iter().map(rows).fold(0, usize::saturating_add);
    if candidates.len() > 1 && shape.first() != Some(&taken) {
        return Err(cannot_cut(&name, &shape));
    }
    Ok(candidates)
}

/// A rule, a scale group or a scale of inputs that is for nothing is misspelt.
fn check_used(candidates: &[Candidate], options: &EngineOptions) -> Result<(), CheckpointError> {
    let unused = |what: String| Err(CheckpointError::Unfit { reason: format!("{what}; check its spelling") });
    let tensors = || candidates.iter().map(|candidate| candidate.tensor.name.as_str());
    let is_idle = |pattern: &str| !tensors().any(|tensor| is_for(pattern, tensor));
    if let Some((pattern, _)) = options.rules.iter().find(|(pattern, _)| is_idle(pattern)) {
        return unused(format!("the rule for {} matches no tensor", quoted(pattern)));
    }
    let layers =
        || candidates.iter().filter_map(|one| one.fate.as_ref().ok()).flat_map(|linears| &linears.layers);
    let names: Vec<&str> = layers().map(String::as_str).collect();
    if let Some(parts) = ScaleGroups::idle(&options.scale_groups, &names) {
        return unused(format!("no layer is a part of the scale group {}", quoted(&parts.join(","))));
    }
    let Some(amaxes) = &options.input_amaxes else { return Ok(()) };
    if options.dialect.input_scale().is_none() {
        return unused(format!("`{}` has no scales of inputs", options.dialect));
    }
    let known: HashSet<&str> = names.into_iter().collect();
    match amaxes.keys().find(|layer| !known.contains(layer.as_str())) {
        Some(layer) => {
            unused(format!("the scale of inputs for {} is of no layer that is quantized", quoted(layer)))
        }
        None => Ok(()),
    }
}

fn cannot_cut(tensor: &str, shape: &[usize]) -> CheckpointError {
    let reason = format!(
        "the name map cuts or transposes `{}`, which has the shape {shape:?}: only a matrix can be, into `rows` that add up to \
         its own",
        shown(tensor)
    );
    CheckpointError::Unfit { reason }
}

/// Leaves alone what is fused with what is left alone (EN-2).
fn keep_groups_whole(candidates: &mut [Candidate], groups: &ScaleGroups) -> Result<(), CheckpointError> {
    let mut of_layer: BTreeMap<String, usize> = BTreeMap::new();
    for (number, candidate) in candidates.iter().enumerate() {
        let PlainTensor { name, shape, .. } = &candidate.tensor;
        let names = layers(name, shape).map(|(layers, _)| layers);
        // A part that is no matrix is a part all the same, and so is a stack that is not taken apart; a bias is none.
        let is_part = layer_of(name).is_some() || shape.len() > 1;
        let names = names.or_else(|| is_part.then(|| vec![layer_of(name).unwrap_or(name).to_owned()]));
        of_layer.extend(names.into_iter().flatten().map(|layer| (layer, number)));
    }
    let names = || of_layer.keys().map(String::as_str);
    let mut together: Vec<(String, Vec<&str>, bool)> =
        groups.among(names()).into_iter().map(|(group, layers)| (group, layers, true)).collect();
    // One kernel computes all experts of a layer; their scales are their own.
    let mut kernels: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for layer in names() {
        if let Some(kernel) = experts(layer) {
            kernels.entry(kernel).or_default().push(layer);
        }
    }
    together.extend(kernels.into_iter().map(|(kernel, layers)| (kernel.to_owned(), layers, false)));
    let mut seen = HashSet::new();
    for (group, layers, is_one_product) in together {
        let mut members: Vec<usize> =
            layers.iter().filter_map(|layer| of_layer.get(*layer)).copied().collect();
        members.dedup();
        if !seen.insert(members.clone()) {
            continue;
        }
        let fates = || members.iter().map(|&member| &candidates[member]);
        let formats: HashSet<Format> =
            fates().filter_map(|one| Some(one.fate.as_ref().ok()?.format)).collect();
        if formats.len() > 1 {
            let mut named: Vec<String> = formats.iter().map(Format::to_string).collect();
            named.sort_unstable();
            let (group, named) = (quoted(&group), named.join(" and "));
            let reason =
                format!("engines compute {group} together, and rules give it {named}; give it one format");
            return Err(CheckpointError::Unfit { reason });
        }
        // The last part of a product may end within a block.
        let last = members.last().copied().filter(|_| is_one_product);
        let because = members.iter().find_map(|&member| {
            let one = &candidates[member];
            let name = quoted(&one.tensor.name);
            match &one.fate {
                Err(reason) => Some((member, format!("{name}, which stays: {reason}"))),
                Ok(Linears { format, shape, .. }) => {
                    let multiple = Encoding::of(*format).map_or(1, Encoding::rows_of_a_part);
                    let is_cut =
                        is_one_product && last != Some(member) && !shape.rows.is_multiple_of(multiple);
                    is_cut.then(|| {
                        (member, format!("{name}, whose {} rows are no multiple of {multiple}", shape.rows))
                    })
                }
            }
        });
        if let Some((culprit, because)) = because {
            for member in members {
                let fate = &mut candidates[member].fate;
                if fate.is_ok() {
                    let own = format!(
                        "others, and its rows are no multiple of {}",
                        Encoding::Fp8Block.rows_of_a_part()
                    );
                    let because = if member == culprit { own } else { because.clone() };
                    *fate = Err(LeftAlone::Fused { because });
                }
            }
        }
    }
    Ok(())
}
