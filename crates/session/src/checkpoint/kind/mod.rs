//! The kind of a file of weights, by its content.
//!
//! Laws:
//! - **FK-1** The tool and [`PretrainedFiles`](crate::checkpoint::PretrainedFiles) both ask here and add no opinion of
//!   their own, so both say the same of a file.
//! - **FK-2** Dtypes, shapes and companions decide: codes beside scales that are smaller, an average beside another of
//!   the same shape. Names give a method its name and never decide alone. A `config.json` that speaks of quantization
//!   decides only about codes without scales, and about scales without codes that are named for weights, for it often
//!   stays behind when a model is dequantized.
//! - **FK-3** Time and memory are in proportion to the header, whatever stands in it.
//!
//! Deliberately absent: reading codes by their scales. What is here says why a file is refused, and what to do.
//!
//! | file | idea |
//! |---|---|
//! | `start` | what is no safetensors file, by its first bytes |
//! | `stated` | what metadata and a `config.json` beside the file say |
//! | `quantized`, `scheme` | codes beside scales; what their shapes say of them |
//! | `optimizer` | averages that an optimizer keeps |

mod optimizer;
mod quantized;
mod scheme;
mod start;
mod stated;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use safetensors::Dtype;

pub use start::of_start;
pub use stated::Stated;

use warpweft_base::errors::{LONGEST_NAME, shown};

/// A tensor, as a header lists it.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a> {
    name: &'a str,
    dtype: Dtype,
    shape: &'a [usize],
    /// The last part of its name; nothing where that is longer than any that means something.
    last: &'a str,
    /// At most `usize::MAX`.
    elements: usize,
}

impl<'a> Listed<'a> {
    pub fn new(name: &'a str, dtype: Dtype, shape: &'a [usize]) -> Self {
        let last = name.rsplit_once('.').map_or(name, |(_, last)| last);
        let last = if last.len() <= LONGEST_NAME { last } else { "" };
        let elements = shape.iter().fold(1, |elements: usize, extent| elements.saturating_mul(*extent));
        Self { name, dtype, shape, last, elements }
    }

    /// Rows and columns, of which the rows are all dimensions but the last.
    fn matrix(&self) -> (usize, usize) {
        let cols = self.shape.last().copied().unwrap_or(1);
        (self.elements.checked_div(cols).unwrap_or(0), cols)
    }

    const fn is_plain_float(&self) -> bool {
        matches!(self.dtype, Dtype::F64 | Dtype::F32 | Dtype::BF16 | Dtype::F16)
    }

    /// As messages name it: with dtype and shape.
    fn described(&self) -> String {
        format!("`{}` ({} {})", shown(self.name), self.dtype, shown(format_args!("{:?}", self.shape)))
    }
}

/// The tensors of a file or a model that are no weights.
#[derive(Debug, Default)]
pub struct NotWeights {
    /// Such tensors by name, with what the file *is* for having them.
    tensors: BTreeMap<String, Arc<str>>,
}

impl NotWeights {
    /// Those among `tensors`, of files about which this is `stated`.
    pub fn of<'a>(tensors: impl IntoIterator<Item = Listed<'a>>, stated: &Stated) -> Self {
        let tensors: Vec<Listed<'a>> = tensors.into_iter().collect();
        let mut found = Self::default();
        if let Some(what) = stated.part() {
            found.add(&Arc::from(what), tensors);
            return found;
        }
        // First, for what an optimizer keeps may be quantized too.
        optimizer::find_everywhere(&tensors, &mut found);
        for module in modules(&tensors) {
            optimizer::find(&module, &mut found);
            quantized::find(&module, stated, &mut found);
        }
        found
    }

    /// What the file is, if it holds `tensor`, which is no weight: a phrase after "is".
    pub fn what(&self, tensor: &str) -> Option<&str> {
        self.tensors.get(tensor).map(|what| &**what)
    }

    /// What the file is for the first of its tensors that is no weight.
    pub fn first(&self) -> Option<&str> {
        self.tensors.values().next().map(|what| &**what)
    }

    fn add<'a>(&mut self, what: &Arc<str>, tensors: impl IntoIterator<Item = Listed<'a>>) {
        for tensor in tensors {
            self.tensors.entry(tensor.name.to_owned()).or_insert_with(|| Arc::clone(what));
        }
    }
}

/// The tensors of each module: names that are alike up to the last dot. What is named below a tensor, as
/// `up.weight.absmax` is below `up.weight`, belongs to the module of that tensor, and a part of a part, as
/// `up.weight._data._data` is below `up.weight._data`, to that of the whole.
fn modules<'a>(tensors: &[Listed<'a>]) -> Vec<Vec<Listed<'a>>> {
    let parent = |name: &'a str| name.rsplit_once('.').map_or("", |(parent, _)| parent);
    let names: HashSet<&str> = tensors.iter().map(|tensor| tensor.name).collect();
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut modules: Vec<Vec<Listed<'a>>> = Vec::new();
    for tensor in tensors {
        let above = parent(tensor.name);
        let above = if above.ends_with("._data") { parent(above) } else { above };
        let module = if names.contains(above) { parent(above) } else { above };
        let place = *places.entry(module).or_insert(modules.len());
        match modules.get_mut(place) {
            Some(module) => module.push(*tensor),
            None => modules.push(vec![*tensor]),
        }
    }
    modules
}

#[cfg(test)]
mod tests;
