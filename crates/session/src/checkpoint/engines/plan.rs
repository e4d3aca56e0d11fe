//! The plan of a conversion: what becomes of every tensor, and in which file, from names, dtypes and shapes alone.
//!
//! Law: no two tensors of the output have one name.

use std::collections::{BTreeMap, HashMap};

use safetensors::Dtype;
use warpweft_format::Format;

use super::EngineOptions;
use super::candidates::{Candidate, Source, candidates};
use super::dialect::{Dialect, StoredTensor};
use super::encoding::Encoding;
use super::linears::{EMBEDDING, LeftAlone, layers, quoted};
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
    /// The largest magnitude of its inputs, or of those of all layers that are fused with it, where they are quantized.
    pub(super) input_amax: f32,
}

/// A tensor of the output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) file: usize,
    pub(super) tensor: TensorId,
}

impl Plan {
    pub(super) fn of(weights: &dyn PlainWeights, options: &EngineOptions) -> Result<Self, CheckpointError> {
        check_formats(options)?;
        let groups = ScaleGroups::new(&options.scale_groups);
        let candidates = candidates(weights, options, &groups)?;
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
    let is_valid = |amax: &&f32| amax.is_finite() && **amax >= 0.0;
    let Some(own) = amaxes.get(layer).filter(is_valid) else {
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
    Ok(fused.map(|(_, amax)| amax).filter(is_valid).copied().fold(*own, f32::max))
}

/// Elements that are converted at once, 16 MiB of f32, which the allocator takes again instead of asking the system.
pub(super) const MOST_ELEMENTS: usize = 4 << 20;

/// How often the values of these layers are read: once where all of them are kept, or no scale is of the whole.
pub(super) fn reads(layers: &[Layer]) -> u64 {
    let elements: usize = layers.iter().map(|layer| layer.source.shape.elements()).sum();
    let needs_amax = layers.iter().any(|layer| layer.format.needs_tensor_amax());
    if needs_amax && elements > MOST_ELEMENTS { 2 } else { 1 }
}

/// Every format that is requested must be one that the dialect has.
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
