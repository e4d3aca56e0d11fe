//! The user's module as its tensors: listed by their paths, taken out, and put back.
//!
//! Law: a tensor is known by burn's `ParamId`, so one that stands in two places of a module is one tensor, and a copy
//! of the module has the same ones. A shell is the module without the values of its weights: all ranks begin with it,
//! and what was trained comes back in it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
use warpweft::config::Config;
use warpweft_base::pattern::pattern_matches;

use crate::entry::{Entry, Kind};
use crate::error::Error;

/// All tensors of a module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub(crate) entries: Vec<Entry>,
    /// The numbers of floats; of several places, one.
    pub(crate) numbers: HashMap<ParamId, usize>,
}

/// A module without its weights, and their first values by number.
pub(crate) struct Shell<M> {
    pub(crate) module: M,
    pub(crate) known: Known,
    pub(crate) first: HashMap<usize, TensorData>,
    /// Where burn computes, without autodiff.
    pub(crate) device: Device,
    /// Was it on a device for autodiff?
    pub(crate) autodiff: bool,
}

/// Takes a module apart. `buffers` are patterns of paths.
pub(crate) fn taken<M: Module>(module: M, config: &Config, buffers: &[String]) -> Result<Shell<M>, Error> {
    let device = module.devices().into_iter().next().unwrap_or_default();
    let autodiff = device.is_autodiff();
    // A module on a plain device does not show which of its parameters train.
    let module = if autodiff { module } else { module.train() };
    let mut running = Running::default();
    // Not of the module itself: it shares running statistics with its copies, but for this one.
    drop(module.valid().map(&mut running));
    let running = locked(&running.begun).clone();
    let mut list = List { path: Vec::new(), known: Known::default(), running, config, buffers };
    module.visit(&mut list);
    let known = list.known;
    let plain = module.valid();
    drop(module); // so that values are moved, where nobody else has them
    let mut take = Take { known: &known, first: HashMap::new(), failed: None };
    let module = plain.map(&mut take);
    let (first, failed) = (take.first, take.failed);
    match failed {
        Some(reason) => Err(Error::Burn { what: "the module's values".to_owned(), reason }),
        None => Ok(Shell { module, known, first, device: device.without_autodiff(), autodiff }),
    }
}

/// The module with these values, for all of its weights, on the device that it came from.
pub(crate) fn put<M: Module>(
    shell: &M,
    (known, device, autodiff): (&Known, &Device, bool),
    values: HashMap<usize, TensorData>,
) -> M {
    let module = shell.valid().map(&mut Put { known, device, values });
    if autodiff { module.train() } else { module }
}

/// Lists tensors by their paths.
struct List<'a> {
    path: Vec<String>,
    known: Known,
    running: HashSet<ParamId>,
    config: &'a Config,
    buffers: &'a [String],
}

impl List<'_> {
    fn add(&mut self, shape: Vec<usize>, dtype: DType, kind: Kind) -> usize {
        let name = self.path.join(".");
        self.known.entries.push(Entry { name, shape, dtype, kind, blocks: Vec::new() });
        self.known.entries.len() - 1
    }
}

impl ModuleVisitor for List<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        if self.known.numbers.contains_key(&parameter.id) {
            return;
        }
        let (value, name) = (parameter.base(), self.path.join("."));
        let frozen = self.config.weight_settings(&name).frozen;
        let kind = if self.running.contains(&parameter.id)
            || matches!(value.dtype(), DType::QFloat(_))
            || self.buffers.iter().any(|pattern| pattern_matches(pattern, &name))
        {
            Kind::Buffer
        } else if frozen.unwrap_or(!value.is_require_grad()) {
            Kind::Frozen
        } else {
            Kind::Trained
        };
        let number = self.add(value.dims().to_vec(), value.dtype(), kind);
        self.known.numbers.insert(parameter.id, number);
    }

    fn visit_int<const D: usize>(&mut self, parameter: &Param<Tensor<D, Int>>) {
        let value = parameter.val();
        self.add(value.dims().to_vec(), value.dtype(), Kind::Buffer);
    }

    fn visit_bool<const D: usize>(&mut self, parameter: &Param<Tensor<D, Bool>>) {
        let value = parameter.val();
        self.add(value.dims().to_vec(), value.dtype(), Kind::Buffer);
    }
}

/// Finds running statistics: what is there as soon as it is mapped is no parameter that waits for its first use.
#[derive(Default)]
struct Running {
    begun: Arc<Mutex<HashSet<ParamId>>>,
}

impl ModuleMapper for Running {
    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, begun, value) = (parameter.id, Arc::clone(&self.begun), parameter.base());
        let (device, shape) = (value.device(), value.shape());
        let begin = move |_: &Device, _| {
            locked(&begun).insert(id);
            value
        };
        Param::uninitialized(id, begin, device, false, shape)
    }
}

/// Takes values out, and leaves one number in the place of each.
struct Take<'a> {
    known: &'a Known,
    first: HashMap<usize, TensorData>,
    failed: Option<String>,
}

impl ModuleMapper for Take<'_> {
    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(number) = self.known.numbers.get(&parameter.id).copied() else { return parameter };
        if self.known.entries[number].is_buffer() {
            return parameter.set_require_grad(false);
        }
        let (id, value, mapper) = parameter.consume();
        let nothing = Tensor::zeros([1; D], (&value.device(), value.dtype()));
        match value.try_into_data() {
            Ok(data) => drop(self.first.entry(number).or_insert(data)),
            Err(error) => self.failed = Some(error.to_string()),
        }
        Param::from_mapped_value(id, nothing, mapper)
    }
}

/// Puts values in.
struct Put<'a> {
    known: &'a Known,
    device: &'a Device,
    values: HashMap<usize, TensorData>,
}

impl ModuleMapper for Put<'_> {
    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let number = self.known.numbers.get(&parameter.id);
        let Some(data) = number.and_then(|number| self.values.get(number)) else { return parameter };
        let (id, value, mapper) = parameter.consume();
        let value = Tensor::from_data(data.clone(), (self.device, value.dtype()));
        Param::from_mapped_value(id, value, mapper)
    }
}

pub(crate) fn locked<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
