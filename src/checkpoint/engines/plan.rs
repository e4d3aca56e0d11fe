//! What becomes of every tensor of a model, and in which file: decided from names, dtypes and shapes, before a value is
//! read.
//!
//! Laws: what engines fuse is quantized alike or not at all (EN-2). No two tensors of the output have one name.

use std::collections::{BTreeMap, HashMap, HashSet};

use safetensors::Dtype;
use warpweft_base::errors::shown;
use warpweft_format::{Format, Shape};

use super::EngineOptions;
use super::convert::MOST_ELEMENTS;
use super::dialect::{Dialect, StoredTensor};
use super::encoding::Encoding;
use super::linears::{EMBEDDING, LeftAlone, Linears, is_for, layer_of, layers, quoted};
use super::quantization_config::Layers;
use super::scale_groups::{ScaleGroups, experts};
use super::weights::{PlainTensor, PlainWeights};
use crate::checkpoint::CheckpointError;
use crate::checkpoint::safetensors::{Outline, TensorId};

/// What becomes of a model.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// In the order in which they are read.
    pub(super) units: Vec<Unit>,
    /// The files, each with its tensors.
    pub(super) files: Vec<Outline>,
    /// The file of every tensor.
    pub(super) index: BTreeMap<String, usize>,
    /// Bytes of tensors in all files.
    pub(super) bytes: u64,
    bytes_of_file: u64,
    pub(super) layers: Layers,
    /// Why the others are left as they are.
    pub(super) left: Vec<(PlainTensor, LeftAlone)>,
}

/// What is read and written together.
#[derive(Debug)]
pub(super) enum Unit {
    /// Layers of one scale group, or one layer.
    Group(Vec<Layer>),
    /// A tensor that is left as it is.
    Copy { name: String, source: Source, dtype: Dtype, place: Place },
}

/// A layer that is quantized.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) name: String,
    pub(super) source: Source,
    pub(super) format: Format,
    pub(super) stored: Vec<(StoredTensor, Place)>,
    /// The largest magnitude of its inputs, or of those of all layers that are fused with it, where they are quantized.
    pub(super) input_amax: f32,
}

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

/// A tensor of the output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) file: usize,
    pub(super) tensor: TensorId,
}

/// A tensor under its new name, and what becomes of it.
struct Candidate {
    tensor: PlainTensor,
    source: Source,
    fate: Result<Linears, LeftAlone>,
}

impl Plan {
    pub(super) fn of(weights: &dyn PlainWeights, options: &EngineOptions) -> Result<Self, CheckpointError> {
        check_formats(options)?;
        let (mut candidates, mut tied) = (Vec::new(), Vec::new());
        for tensor in weights.tensors()? {
            candidates.extend(renamed(tensor, options, &mut tied)?);
        }
        check_used(&candidates, options)?;
        let groups = ScaleGroups::new(&options.scale_groups);
        keep_groups_whole(&mut candidates, &groups)?;
        let written: HashSet<&str> =
            candidates.iter().map(|candidate| candidate.tensor.name.as_str()).collect();
        if let Some((from, to)) = tied.iter().find(|(_, to)| !written.contains(to.as_str())) {
            let (from, to) = (quoted(from), quoted(to));
            let reason =
                format!("the name map ties {from} to {to}, which is not written; name a tensor that is");
            return Err(CheckpointError::Unfit { reason });
        }

        let mut plan = Self {
            layers: Layers { inputs_are_quantized: options.inputs_are_quantized(), ..Layers::default() },
            ..Self::default()
        };
        // By group, the unit that has its first layer.
        let mut units: HashMap<String, usize> = HashMap::new();
        for Candidate { tensor, source, fate } in candidates {
            match fate {
                Ok(linears) => {
                    for (number, name) in linears.layers.iter().enumerate() {
                        let mut source = source.clone();
                        source.first_row += number * linears.shape.rows;
                        source.shape = linears.shape;
                        let layer = plan.layer(name, source, linears.format, options, &groups)?;
                        let own = || plan.units.len();
                        let group = groups
                            .of(name)
                            .filter(|_| Encoding::of(linears.format).is_some_and(Encoding::shares_a_scale));
                        let unit = group.map_or_else(own, |group| *units.entry(group).or_insert_with(own));
                        match plan.units.get_mut(unit) {
                            Some(Unit::Group(layers)) => layers.push(layer),
                            Some(Unit::Copy { .. }) | None => plan.units.push(Unit::Group(vec![layer])),
                        }
                    }
                }
                Err(reason) => plan.copy(tensor, source, reason, options)?,
            }
        }
        if plan.layers.quantized.is_empty() {
            let reasons =
                plan.left.first().map(|(tensor, reason)| format!("{}: {reason}", quoted(&tensor.name)));
            let reason = format!(
                "nothing would be quantized; the first tensor is {}; name layers by rules, or rename tensors by a name map",
                reasons.unwrap_or_else(|| "not there: the input has none".to_owned())
            );
            return Err(CheckpointError::Unfit { reason });
        }
        Ok(plan)
    }

    /// Bytes that are read of the input: twice where a scale is of the whole tensor.
    pub(super) fn bytes_to_read(&self) -> u64 {
        let bytes = |source: &Source| (source.shape.elements() * source.width) as u64;
        let of_unit = |unit: &Unit| match unit {
            Unit::Group(layers) => {
                layers.iter().map(|layer| bytes(&layer.source)).sum::<u64>() * reads(layers)
            }
            Unit::Copy { source, .. } => bytes(source),
        };
        self.units.iter().map(of_unit).sum()
    }

    /// Gives a tensor its place.
    fn place(
        &mut self,
        name: String,
        dtype: Dtype,
        shape: &[usize],
        most: u64,
    ) -> Result<Place, CheckpointError> {
        let bytes = shape
            .iter()
            .fold(dtype.bitsize() as u64 / 8, |bytes, extent| bytes.saturating_mul(*extent as u64));
        if self.files.is_empty()
            || (self.bytes_of_file > 0 && self.bytes_of_file.saturating_add(bytes) > most)
        {
            self.files.push(Outline::default());
            self.bytes_of_file = 0;
        }
        self.bytes_of_file = self.bytes_of_file.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        let file = self.files.len() - 1;
        let tensor = self.files[file].add(name.clone(), dtype, shape.to_vec());
        match self.index.insert(name.clone(), file) {
            None => Ok(Place { file, tensor }),
            Some(_) => {
                let reason = format!(
                    "two tensors of the output would be called {}; rename one by a name map",
                    quoted(&name)
                );
                Err(CheckpointError::Unfit { reason })
            }
        }
    }

    fn layer(
        &mut self,
        name: &str,
        source: Source,
        format: Format,
        options: &EngineOptions,
        groups: &ScaleGroups,
    ) -> Result<Layer, CheckpointError> {
        let dialect = options.dialect;
        let encoding = Encoding::of(format).ok_or_else(|| not_stored(dialect, format))?;
        let tensors = dialect.tensors(encoding, source.shape).ok_or_else(|| not_stored(dialect, format))?;
        let input =
            (encoding == Encoding::Nvfp4 && options.inputs_are_quantized()).then(|| dialect.input_scale());
        let mut stored = Vec::new();
        for tensor in tensors.into_iter().chain(input.flatten()) {
            let full = format!("{name}.{}", tensor.suffix);
            let place = self.place(full, tensor.dtype, &tensor.shape, options.bytes_of_file)?;
            stored.push((tensor, place));
        }
        self.layers.quantized.entry(encoding).or_default().push(name.to_owned());
        let input_amax = match &options.input_amaxes {
            Some(amaxes) if encoding == Encoding::Nvfp4 => input_amax(name, amaxes, groups)?,
            _ => 0.0,
        };
        Ok(Layer { name: name.to_owned(), source, format, stored, input_amax })
    }

    fn copy(
        &mut self,
        tensor: PlainTensor,
        source: Source,
        reason: LeftAlone,
        options: &EngineOptions,
    ) -> Result<(), CheckpointError> {
        let PlainTensor { name, dtype, shape } = &tensor;
        let place = self.place(name.clone(), *dtype, shape, options.bytes_of_file)?;
        self.units.push(Unit::Copy { name: name.clone(), source, dtype: *dtype, place });
        let is_embedding = matches!(reason, LeftAlone::Kept { what } if what == EMBEDDING);
        if let (Some((layers, _)), false) = (layers(name, shape), is_embedding) {
            self.layers.left_out.extend(layers);
        }
        self.left.push((tensor, reason));
        Ok(())
    }
}

/// The largest magnitude of the inputs of a layer, and of all that are fused with it, whose inputs are the same.
fn input_amax(
    layer: &str,
    amaxes: &BTreeMap<String, f32>,
    groups: &ScaleGroups,
) -> Result<f32, CheckpointError> {
    let is_sound = |amax: &&f32| amax.is_finite() && **amax >= 0.0;
    let Some(own) = amaxes.get(layer).filter(is_sound) else {
        let found = amaxes.get(layer).map_or_else(|| "no".to_owned(), |amax| format!("{amax} for a"));
        let reason = format!(
            "there is {found} largest magnitude of the inputs of layer {}; measure it on calibration data, or give no \
             scales of inputs, and only weights are quantized",
            quoted(layer)
        );
        return Err(CheckpointError::Unfit { reason });
    };
    let group = groups.of(layer);
    let fused = amaxes.iter().filter(|(other, _)| group.is_some() && groups.of(other) == group);
    Ok(fused.map(|(_, amax)| amax).filter(is_sound).copied().fold(*own, f32::max))
}

/// How often the values of these layers are read: once where all of them are kept, or no scale is of the whole.
pub(super) fn reads(layers: &[Layer]) -> u64 {
    let elements: usize = layers.iter().map(|layer| layer.source.shape.elements()).sum();
    let needs_amax = layers.iter().any(|layer| layer.format.needs_tensor_amax());
    if needs_amax && elements > MOST_ELEMENTS { 2 } else { 1 }
}

/// Every format that is asked for must be one that the dialect has.
fn check_formats(options: &EngineOptions) -> Result<(), CheckpointError> {
    let EngineOptions { dialect, format, rules, .. } = options;
    let mut named: Vec<Format> = rules.iter().filter_map(|(_, format)| *format).chain([*format]).collect();
    if let Some(format) = named.iter().find(|format| !dialect.takes(**format)) {
        return Err(not_stored(*dialect, *format));
    }
    named.sort_unstable();
    named.dedup_by_key(|format| Encoding::of(*format));
    if named.len() > 1 && *dialect == Dialect::DeepSeekFp8 {
        let reason =
            format!("a model in `{dialect}` has one format; `{}` takes several", Dialect::CompressedTensors);
        return Err(CheckpointError::Unfit { reason });
    }
    Ok(())
}

fn not_stored(dialect: Dialect, format: Format) -> CheckpointError {
    let formats: Vec<String> = dialect.formats().map(|format| format.to_string()).collect();
    let reason = format!("`{dialect}` has no tensors for {format}; choose one of {}", formats.join(", "));
    CheckpointError::Unfit { reason }
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
