//! Sources of the first values of tensors: draws, a `VarMap`, or a folder of files.
//!
//! Law: a value follows from the seed, the tensor's name and its place in the whole tensor, or from what was given, and
//! from nothing else; so any number of ranks begins with the same weights.

use std::collections::HashMap;
use std::path::PathBuf;

use candle_core::{DType, Result, Tensor, bail};
use candle_nn::Init;
use candle_nn::init::NormalOrUniform;
use warpweft::checkpoint::PretrainedFiles;
use warpweft::session::initial::{self, MasterRows};
use warpweft_base::noise::{mixed, unit};

use crate::entry::Entry;

/// What was given beside the draws.
#[derive(Debug)]
pub(crate) enum Given {
    Nothing,
    /// Tensors by name; what is not there is drawn.
    Tensors(HashMap<String, Tensor>),
    /// Files; what is not there is an error, unless it is declared to be drawn.
    Files(Box<PretrainedFiles>),
}

/// How the user names it.
#[derive(Clone, Debug)]
pub(crate) enum Start {
    Draws,
    Tensors(HashMap<String, Tensor>),
    Folder(PathBuf),
}

/// The first values of all tensors.
#[derive(Debug)]
pub(crate) struct Source {
    seed: u64,
    given: Given,
}

impl Source {
    pub(crate) fn open(seed: u64, from: Start) -> std::result::Result<Self, crate::Error> {
        let given = match from {
            Start::Draws => Given::Nothing,
            Start::Tensors(tensors) => Given::Tensors(tensors),
            Start::Folder(folder) => Given::Files(Box::new(PretrainedFiles::open_model(folder)?)),
        };
        Ok(Self { seed, given })
    }

    /// Must a tensor be in what was given?
    pub(crate) const fn is_strict(&self) -> bool {
        matches!(self.given, Given::Files(_))
    }

    /// The shape of a tensor that was given.
    pub(crate) fn shape(&self, name: &str) -> Option<Vec<usize>> {
        match &self.given {
            Given::Nothing => None,
            Given::Tensors(tensors) => tensors.get(name).map(|tensor| tensor.dims().to_vec()),
            Given::Files(files) => files.shape(name).ok().map(<[usize]>::to_vec),
        }
    }

    /// All values of a tensor.
    pub(crate) fn values(&self, entry: &Entry) -> Result<Vec<f32>> {
        let mut values = vec![0.0; entry.elements()];
        self.fill(entry, 0, &mut values)?;
        Ok(values)
    }

    /// The values of the rows of a tensor from `first_row` on.
    pub(crate) fn fill(&self, entry: &Entry, first_row: usize, values: &mut [f32]) -> Result<()> {
        let (rows, columns) = entry.matrix();
        match &self.given {
            Given::Tensors(tensors) if tensors.contains_key(&entry.name) => {
                let tensor = tensors[&entry.name].reshape((rows, columns))?;
                let part = tensor.narrow(0, first_row, values.len() / columns)?;
                values.copy_from_slice(&part.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?);
                Ok(())
            }
            Given::Files(files) if files.shape(&entry.name).is_ok() => {
                // A file's columns are the last dimension.
                let last = entry.shape.last().copied().unwrap_or(1);
                let done = files.rows(&entry.name, first_row * columns / last, last, values);
                done.map_err(candle_core::Error::wrap)
            }
            Given::Nothing | Given::Tensors(_) | Given::Files(_) => {
                let rows = MasterRows { weight: &entry.name, first_row, columns };
                self.draw(entry, rows, values)
            }
        }
    }

    fn draw(&self, entry: &Entry, rows: MasterRows<'_>, values: &mut [f32]) -> Result<()> {
        match entry.init {
            Init::Const(value) => values.fill(value as f32),
            Init::Randn { mean, stdev } => self.normal((mean, stdev), rows, values),
            Init::Uniform { lo, up } => self.uniform((lo, up), rows, values),
            Init::Kaiming { dist, fan, non_linearity } => {
                let fan = fan.for_shape(&entry.shape.clone().into());
                if fan == 0 {
                    bail!("tensor `{}` has an empty dimension", entry.name);
                }
                let deviation = non_linearity.gain() / (fan as f64).sqrt();
                let bound = 3_f64.sqrt() * deviation;
                match dist {
                    NormalOrUniform::Normal => self.normal((0.0, deviation), rows, values),
                    NormalOrUniform::Uniform => self.uniform((-bound, bound), rows, values),
                }
            }
        }
        Ok(())
    }

    fn normal(&self, (mean, deviation): (f64, f64), rows: MasterRows<'_>, values: &mut [f32]) {
        initial::normal(self.seed, deviation as f32)(rows, values);
        values.iter_mut().for_each(|value| *value += mean as f32);
    }

    fn uniform(&self, (low, high): (f64, f64), rows: MasterRows<'_>, values: &mut [f32]) {
        let name = rows.weight.bytes().fold(mixed(self.seed), |hash, byte| mixed(hash ^ u64::from(byte)));
        for (place, value) in (rows.first_element() as u64..).zip(values) {
            *value = (low + (high - low) * unit(mixed(name ^ place))) as f32;
        }
    }
}
