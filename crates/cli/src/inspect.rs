//! `warpweft inspect`: the contents of a checkpoint, ours or an engine's.
//!
//! Law: what is said of a file comes from its headers, its metadata and its scales of tensors; digests are compared
//! only where that is requested, since it reads every byte.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::path::Path;

use serde::Serialize;
use warpweft_base::errors::{shown, shown_path};
use warpweft_session::checkpoint::engines::{PlainTensor, PlainWeights};
use warpweft_session::checkpoint::{CheckpointError, PartFiles, PretrainedFiles};

use super::input::{Input, manifest_of};
use super::source::Source;
use super::text::{Align, Table};
use super::{Progress, ToolError};

/// The result of inspecting a checkpoint.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Inspection {
    /// The file or folder.
    pub path: String,
    /// What it is, in words.
    pub what: String,
    /// How many tensors there are, by how they are stored, with their bytes.
    pub stored: Vec<Stored>,
    /// Layers that engines fuse and that have scales of the tensor.
    pub scale_groups: usize,
    /// Those of them whose scales differ: engines decode some of their layers wrongly.
    pub mismatches: Vec<Mismatch>,
    /// What a session noted, and what it says of the training.
    pub about: BTreeMap<String, String>,
    /// How many tensors were compared with their digests, all of which were as they were saved.
    pub compared: Option<usize>,
}

/// Tensors that are stored alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stored {
    /// How: a dtype, or an encoding.
    pub stored_as: String,
    /// How many.
    pub count: usize,
    /// Elements of all of them.
    pub elements: u64,
}

/// Layers with scales that differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mismatch {
    /// The layers.
    pub layers: Vec<String>,
    /// The largest of their scales over the smallest.
    pub ratio: f32,
}

/// Looks at a safetensors file, a model's folder or the folder of a sharded checkpoint. `digests` also compares the
/// masters that a session saved with their digests.
///
/// # Errors
/// [`ToolError`] for what cannot be read.
pub fn inspect_checkpoint(
    path: &Path,
    digests: bool,
    progress: &mut dyn Progress,
) -> Result<Inspection, ToolError> {
    let mut found = Inspection {
        path: shown_path(path),
        what: String::new(),
        stored: Vec::new(),
        scale_groups: 0,
        mismatches: Vec::new(),
        about: BTreeMap::new(),
        compared: None,
    };
    if path.is_dir() && PartFiles::new(path).is_taken() {
        let parts = PartFiles::new(path);
        let saved = parts.saved()?;
        found.what = format!("a sharded checkpoint of {} ranks", saved.ranks);
        found.about = saved.notes.into_iter().collect();
        found.about.insert("optimizer step".to_owned(), saved.optimizer_step.to_string());
        let (masters, frozen) = parts.trained_weights()?;
        found.frozen(frozen.len());
        let weights = masters.tensors()?;
        let elements_of = weights.iter().map(|weight| elements(&weight.shape));
        let (count, elements_of) = (weights.len(), elements_of.sum());
        found.stored.push(Stored { stored_as: "masters in F32".to_owned(), count, elements: elements_of });
        if digests {
            progress.start(elements_of * size_of::<f32>() as u64);
            weights.iter().try_for_each(|weight| read_all(&masters, weight, progress))?;
            progress.finish();
            found.compared = Some(count);
        }
    } else if path.is_dir() {
        if digests {
            let reason = "a model's folder has no digests; compare the checkpoint of a session".to_owned();
            return Err(CheckpointError::Engine { path: path.to_owned(), reason }.into());
        }
        folder(path, &mut found)?;
    } else {
        file(path, digests, progress, &mut found)?;
    }
    Ok(found)
}

/// Reads all of a weight, whose blocks are compared with their digests.
fn read_all(
    masters: &dyn PlainWeights,
    weight: &PlainTensor,
    progress: &mut dyn Progress,
) -> Result<(), ToolError> {
    let cols = weight.shape.last().copied().unwrap_or(1);
    let rows = weight.shape.iter().rev().skip(1).product::<usize>();
    let at_once = (ELEMENTS / cols.max(1)).max(1);
    for first in (0..rows).step_by(at_once) {
        let mut values = vec![0.0; at_once.min(rows - first) * cols];
        progress.tensor(&weight.name);
        masters.rows(&weight.name, first, cols, &mut values)?;
        if progress.advance((values.len() * size_of::<f32>()) as u64).is_break() {
            return Err(ToolError::Interrupted);
        }
    }
    Ok(())
}

/// Elements that are read at once.
const ELEMENTS: usize = 4 << 20;

/// A model's folder.
fn folder(path: &Path, found: &mut Inspection) -> Result<(), ToolError> {
    let files = PretrainedFiles::open_model(path)?;
    let layers = files.stored_layers()?;
    found.what = match files.dialect() {
        Some(dialect) => format!("a model in `{dialect}`, which inference engines load"),
        None => "a model in plain numbers".to_owned(),
    };
    let quantized = layers.iter().map(|layer| (layer.encoding.to_owned(), layer.shape.elements() as u64));
    let plain = files.plain_tensors_by_dtype().map(|(dtype, shape)| (dtype, elements(&shape)));
    found.stored = counted(quantized.chain(plain));
    let groups = PretrainedFiles::scale_groups(&layers);
    found.scale_groups = groups.len();
    let differing = groups.into_iter().filter(|group| group.ratio != 1.0);
    found.mismatches = differing.map(|group| Mismatch { layers: group.layers, ratio: group.ratio }).collect();
    found.mismatches.sort_by(|left, right| right.ratio.total_cmp(&left.ratio));
    Ok(())
}

/// One file.
fn file(
    path: &Path,
    digests: bool,
    progress: &mut dyn Progress,
    found: &mut Inspection,
) -> Result<(), ToolError> {
    let (header, mut data) = Input::open(path)?;
    let tensors = header.tensors().iter();
    found.stored = counted(tensors.map(|entry| (entry.dtype.to_string(), elements(&entry.shape))));
    if let Some(manifest) = manifest_of(&header, path)? {
        let (format, via) = (manifest.format, manifest.via);
        found.what =
            format!("a file that `warpweft quantize` wrote: {} tensors in {format}", manifest.tensors.len());
        found.about.insert("rounded to before".to_owned(), format!("{via:?}").to_lowercase());
        return Ok(());
    }
    let source = match Source::of(&header, path) {
        Err(ToolError::NotWeights { what, .. }) => {
            found.what = what;
            return Ok(());
        }
        source => source?,
    };
    if source.left_out.is_none() {
        "a file of weights in plain numbers".clone_into(&mut found.what);
        return Ok(());
    }
    found.what = format!("a checkpoint that a session saved, of {} weights", source.tensors.len());
    for key in ["optimizer_step", "optimizer_identity", "updated_by"] {
        if let Some(said) = header.metadata().get(key) {
            found.about.insert(key.replace('_', " "), shown(said));
        }
    }
    found.frozen(source.absent.len());
    if digests {
        progress.start(source.compared_bytes());
        source.compare(&mut data, progress)?;
        progress.finish();
        found.compared = Some(source.tensors.len());
    }
    Ok(())
}

/// Tensors by how they are stored, of each its elements.
fn counted(tensors: impl Iterator<Item = (String, u64)>) -> Vec<Stored> {
    let mut stored: BTreeMap<String, Stored> = BTreeMap::new();
    for (stored_as, elements) in tensors {
        let none = || Stored { stored_as: stored_as.clone(), count: 0, elements: 0 };
        let stored = stored.entry(stored_as.clone()).or_insert_with(none);
        (stored.count, stored.elements) = (stored.count + 1, stored.elements + elements);
    }
    stored.into_values().collect()
}

fn elements(shape: &[usize]) -> u64 {
    shape.iter().fold(1, |elements: u64, extent| elements.saturating_mul(*extent as u64))
}

impl Inspection {
    /// Of so many frozen weights there are digests alone.
    fn frozen(&mut self, count: usize) {
        if count > 0 {
            self.about.insert("frozen weights, by digest alone".to_owned(), count.to_string());
        }
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} is {}", self.path, self.what)?;
        let mut table =
            Table::new([("stored as", Align::Left), ("tensors", Align::Right), ("elements", Align::Right)]);
        for Stored { stored_as, count, elements } in &self.stored {
            table.row([stored_as.clone(), count.to_string(), elements.to_string()]);
        }
        write!(f, "\n{table}")?;
        for (name, value) in &self.about {
            writeln!(f, "{name}: {value}")?;
        }
        if let Some(compared) = self.compared {
            writeln!(f, "digests: all {compared} masters are as they were saved")?;
        }
        if self.scale_groups > 0 {
            let mut text =
                format!("\nscale groups: {}, {} mismatch", self.scale_groups, self.mismatches.len());
            if self.mismatches.is_empty() {
                text.push('\n');
            } else {
                text += ": engines fuse these layers and decode all by the scale of one\n";
            }
            for Mismatch { layers, ratio } in self.mismatches.iter().take(MOST) {
                writeln!(text, "  by {ratio:.2}×: {}", shown(layers.join(", ")))?;
            }
            if self.mismatches.len() > MOST {
                writeln!(text, "  and {} more", self.mismatches.len() - MOST)?;
            }
            f.write_str(&text)?;
        }
        Ok(())
    }
}

/// Most mismatches that are listed.
const MOST: usize = 5;
