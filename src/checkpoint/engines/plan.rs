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
use super::linears::{LeftAlone, Linears, layer_of, layers, quoted};
use super::quantization_config::Layers;
use super::scale_groups::ScaleGroups;
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
        let mut candidates = Vec::new();
        for tensor in weights.tensors()? {
            candidates.extend(renamed(tensor, options)?);
        }
        let groups = ScaleGroups::new(&options.scale_groups);
        keep_groups_whole(&mut candidates, &groups)?;

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
                        let layer = plan.layer(name, source, linears.format, options)?;
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
        Ok(Layer { name: name.to_owned(), source, format, stored })
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
        let is_embedding = matches!(reason, LeftAlone::Kept { what: "an embedding" });
        if let (Some((layers, _)), false) = (layers(name, shape), is_embedding) {
            self.layers.left_out.extend(layers);
        }
        self.left.push((tensor, reason));
        Ok(())
    }
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
fn renamed(tensor: PlainTensor, options: &EngineOptions) -> Result<Vec<Candidate>, CheckpointError> {
    let PlainTensor { name, dtype, shape } = tensor;
    let mut candidates = Vec::new();
    for mapped in options.names.of(&name)?.into_iter().filter(|mapped| !mapped.is_tied) {
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
    let taken: usize = candidates
        .iter()
        .map(|one| if one.source.transpose { one.source.shape.cols } else { one.source.shape.rows })
        .sum();
    if candidates.len() > 1 && taken != shape[0] {
        return Err(cannot_cut(&name, &shape));
    }
    Ok(candidates)
}

fn cannot_cut(tensor: &str, shape: &[usize]) -> CheckpointError {
    let reason = format!(
        "the name map cuts or transposes `{}`, which has the shape {shape:?}: give `rows` that add up to those of a matrix",
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
        // A part that is no matrix cannot be quantized, and is a part all the same.
        let names = names.or_else(|| layer_of(name).map(|layer| vec![layer.to_owned()]));
        of_layer.extend(names.into_iter().flatten().map(|layer| (layer, number)));
    }
    let mut seen = HashSet::new();
    for (group, layers) in groups.among(of_layer.keys().map(String::as_str)) {
        let members: Vec<usize> = layers.iter().filter_map(|layer| of_layer.get(*layer)).copied().collect();
        if !seen.insert(members.clone()) {
            continue;
        }
        let fates = || members.iter().map(|&member| &candidates[member]);
        let formats: HashSet<Format> =
            fates().filter_map(|one| Some(one.fate.as_ref().ok()?.format)).collect();
        if formats.len() > 1 {
            let named: Vec<String> = formats.iter().map(Format::to_string).collect();
            let reason = format!(
                "engines fuse {}, and rules give them {}; give them one format",
                quoted(&group),
                named.join(" and ")
            );
            return Err(CheckpointError::Unfit { reason });
        }
        let because = fates().find_map(|one| match &one.fate {
            Err(reason) => Some(format!("{}: {reason}", quoted(&one.tensor.name))),
            Ok(Linears { format, shape, .. }) => {
                let multiple = Encoding::of(*format).map_or(1, Encoding::rows_of_a_part);
                let rows = shape.rows;
                (!rows.is_multiple_of(multiple)).then(|| {
                    format!("{}, whose {rows} rows are no multiple of {multiple}", quoted(&one.tensor.name))
                })
            }
        });
        if let Some(because) = because {
            for member in members {
                let fate = &mut candidates[member].fate;
                if fate.is_ok() {
                    *fate = Err(LeftAlone::Fused { because: because.clone() });
                }
            }
        }
    }
    Ok(())
}
