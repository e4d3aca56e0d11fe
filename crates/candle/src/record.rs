//! The record of a constructor's requests to its `VarBuilder`: names, shapes, dtypes, first values.
//!
//! Law: the first build of a block records what it requests, and every later one, on whichever rank, must request the
//! same and is served the same tensors. One name is one tensor: requested again with the same shape it is the same
//! weight, used twice; with another shape it is an error.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Device, Error, Result, Shape, Tensor, bail};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use warpweft::config::Config;
use warpweft_base::pattern::pattern_matches;

use crate::dropout;
use crate::entry::{Entry, Kind};
use crate::slot::{Pool, Slot};
use crate::source::Source;

/// All tensors so far, and what decides of new ones.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    pub(crate) entries: Vec<Entry>,
    numbers: HashMap<String, usize>,
    /// Its rules say which weights are frozen.
    config: Config,
    buffers: Vec<String>,
    drawn: Vec<String>,
}

/// What one block requested.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requested {
    /// Numbers of the entries, in the order in which they were first requested.
    pub(crate) tensors: Vec<usize>,
    /// The answers to `contains_tensor`.
    pub(crate) contains: HashMap<String, bool>,
}

impl Registry {
    /// Without tensors; `buffers` and `drawn` are patterns of names.
    pub(crate) fn new(config: &Config, buffers: &[String], drawn: &[String]) -> Self {
        let (config, buffers, drawn) = (config.clone(), buffers.to_vec(), drawn.to_vec());
        Self { config, buffers, drawn, ..Self::default() }
    }
}

/// The backend of the first build of one block.
struct Recorder(Arc<Mutex<Recording>>);

struct Recording {
    block: String,
    device: Device,
    registry: Registry,
    source: Arc<Source>,
    requested: Requested,
    slots: HashMap<usize, Slot>,
}

/// Runs `build` over a recording builder; gives back the registry, what was requested, and the tensors with their first
/// values, in the same order.
pub(crate) fn record<R>(
    registry: Registry,
    source: &Arc<Source>,
    (block, dtype, device): (&str, DType, &Device),
    build: impl FnOnce(VarBuilder<'static>) -> R,
) -> (Registry, Requested, Vec<Slot>, R) {
    let recording = Recording {
        block: block.to_owned(),
        device: device.clone(),
        registry,
        source: Arc::clone(source),
        requested: Requested::default(),
        slots: HashMap::new(),
    };
    let recording = Arc::new(Mutex::new(recording));
    let backend = Box::new(Recorder(Arc::clone(&recording)));
    let built = build(VarBuilder::from_backend(backend, dtype, device.clone()));
    let mut recording = locked(&recording);
    let (registry, requested) =
        (std::mem::take(&mut recording.registry), std::mem::take(&mut recording.requested));
    let slots = requested.tensors.iter().filter_map(|number| recording.slots.get(number).cloned()).collect();
    (registry, requested, slots, built)
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recording {
    /// The tensor of that name, new or known.
    fn tensor(&mut self, name: &str, shape: &[usize], (init, dtype): (Init, DType)) -> Result<Tensor> {
        let number = match self.registry.numbers.get(name) {
            Some(number) => *number,
            None => self.add(name, shape, (init, dtype))?,
        };
        let entry = &mut self.registry.entries[number];
        if entry.shape != shape || entry.dtype != dtype {
            bail!(
                "tensor `{name}` is {:?} of {:?} in block `{}`, and {shape:?} of {dtype:?} here; one name is one \
                 weight, so give the other a name of its own (`vb.pp(…)`)",
                entry.shape,
                entry.dtype,
                entry.blocks.join("`, `")
            );
        }
        if !entry.blocks.contains(&self.block) {
            entry.blocks.push(self.block.clone());
        }
        if let Some(slot) = self.slots.get(&number) {
            return Ok(slot.tensor().clone());
        }
        let slot = first_values(entry, &self.source, &self.device)?;
        let tensor = slot.tensor().clone();
        self.slots.insert(number, slot);
        self.requested.tensors.push(number);
        Ok(tensor)
    }

    fn add(&mut self, name: &str, shape: &[usize], (init, dtype): (Init, DType)) -> Result<usize> {
        let matches = |patterns: &[String]| patterns.iter().any(|pattern| pattern_matches(pattern, name));
        let registry = &mut self.registry;
        match self.source.shape(name) {
            Some(given) if given != shape => {
                bail!("tensor `{name}` is given in shape {given:?}, and requested in {shape:?}")
            }
            None if self.source.is_strict() && !matches(&registry.drawn) && !dropout::is_state(name) => {
                bail!("the files have no tensor `{name}`; `drawn(\"{name}\")` lets it begin as its Init says")
            }
            Some(_) | None => {}
        }
        let kind = match dtype {
            _ if matches(&registry.buffers) => Kind::Buffer,
            DType::F32 | DType::F64 | DType::BF16 | DType::F16 => {
                match registry.config.weight_settings(name).frozen.unwrap_or(false) {
                    true => Kind::Frozen,
                    false => Kind::Trained,
                }
            }
            _ => Kind::Buffer,
        };
        let number = registry.entries.len();
        let (name, shape, blocks) = (name.to_owned(), shape.to_vec(), Vec::new());
        registry.numbers.insert(name.clone(), number);
        registry.entries.push(Entry { name, shape, dtype, init, kind, blocks });
        Ok(number)
    }
}

/// A tensor with its first values.
pub(crate) fn first_values(entry: &Entry, source: &Source, device: &Device) -> Result<Slot> {
    // Also of a frozen weight: without a gradient in the trial, what trains before it would get none by this way.
    let slot = Slot::zeros(entry.shape.as_slice(), entry.dtype, (!entry.is_buffer(), device))?;
    match entry.dtype {
        DType::F32 | DType::F64 | DType::BF16 | DType::F16 => {
            slot.fill(&source.values(entry)?, &mut Pool::default())?;
            Ok(slot)
        }
        _ if dropout::is_state(&entry.name) => Ok(slot),
        // Integers are exact as f32 up to 2^24; what is larger was not written by a trainer of weights.
        dtype => {
            let values = Tensor::from_vec(source.values(entry)?, entry.shape.as_slice(), &Device::Cpu)?;
            Ok(Slot::of(values.to_dtype(dtype)?.to_device(device)?))
        }
    }
}

impl SimpleBackend for Recorder {
    fn get(&self, shape: Shape, name: &str, init: Init, dtype: DType, _: &Device) -> Result<Tensor> {
        locked(&self.0).tensor(name, shape.dims(), (init, dtype))
    }

    fn get_unchecked(&self, name: &str, dtype: DType, _: &Device) -> Result<Tensor> {
        let mut recording = locked(&self.0);
        let known =
            recording.registry.numbers.get(name).map(|number| recording.registry.entries[*number].clone());
        let shape = known.map(|entry| entry.shape).or_else(|| recording.source.shape(name));
        let Some(shape) = shape else {
            bail!(
                "`get_unchecked` of tensor `{name}`, of which neither files nor a block say the shape; use `get`"
            );
        };
        recording.tensor(name, &shape, (Init::default(), dtype))
    }

    fn contains_tensor(&self, name: &str) -> bool {
        let mut recording = locked(&self.0);
        let found = recording.registry.numbers.contains_key(name) || recording.source.shape(name).is_some();
        recording.requested.contains.insert(name.to_owned(), found);
        found
    }
}

/// The backend of every later build of a block: what the first one requested, and nothing else.
pub(crate) struct Served {
    tensors: HashMap<String, Tensor>,
    contains: HashMap<String, bool>,
    left: Mutex<BTreeSet<String>>,
}

impl Served {
    /// Serves `slots`, which are those of the tensors requested, in their order.
    pub(crate) fn new(entries: &[Entry], requested: &Requested, slots: &[Slot]) -> Self {
        let names = requested.tensors.iter().map(|number| entries[*number].name.clone());
        let left = Mutex::new(names.clone().collect());
        let tensors = names.zip(slots).map(|(name, slot)| (name, slot.tensor().clone())).collect();
        Self { tensors, contains: requested.contains.clone(), left }
    }

    /// Builds over it, and sees that everything was requested.
    pub(crate) fn build<R>(
        self,
        (dtype, device): (DType, &Device),
        build: impl FnOnce(VarBuilder<'static>) -> std::result::Result<R, crate::Error>,
        block: &str,
    ) -> std::result::Result<R, crate::Error> {
        let shared = Arc::new(self);
        let backend = Box::new(SharedServed(Arc::clone(&shared)));
        let built = build(VarBuilder::from_backend(backend, dtype, device.clone()))?;
        match locked(&shared.left).first() {
            None => Ok(built),
            Some(name) => Err(crate::Error::Block {
                block: block.to_owned(),
                source: Error::Msg(format!(
                    "tensor `{name}` was not requested again; a constructor must request the same tensors each time, \
                     on every rank"
                )),
            }),
        }
    }

    fn find(&self, name: &str) -> Result<&Tensor> {
        locked(&self.left).remove(name);
        let found = self.tensors.get(name);
        found.ok_or_else(|| {
            Error::Msg(format!(
                "tensor `{name}` was not requested when the block was recorded; a constructor must request the same \
                 tensors each time, on every rank"
            ))
        })
    }
}

struct SharedServed(Arc<Served>);

impl SimpleBackend for SharedServed {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, _: &Device) -> Result<Tensor> {
        let tensor = self.0.find(name)?;
        if tensor.shape() != &shape || tensor.dtype() != dtype {
            bail!(
                "tensor `{name}` was {:?} of {:?} when the block was recorded, and is requested as {shape:?} of \
                 {dtype:?}",
                tensor.shape(),
                tensor.dtype()
            );
        }
        Ok(tensor.clone())
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        self.0.find(name).cloned()
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.contains.get(name).copied().unwrap_or(false)
    }
}
