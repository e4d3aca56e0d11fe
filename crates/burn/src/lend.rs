//! The weights of a module for one call: each becomes a tensor when a closure first reads it.
//!
//! Law: what a closure reads is known, so a block's weights need no list of the user's. A weight that was not lent is
//! noticed, and the call fails; it computes with zeros until then. Every tensor is made once, also of a weight that
//! stands in two places of the module: what is there afterwards has the gradients.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Tensor, TensorData};

use crate::module::{Known, locked};
use crate::tensors::AnyRank;

/// Weights that are lent, and the tensors that were made of them.
#[derive(Default)]
pub(crate) struct Lent {
    /// Values by the number of their entry.
    values: HashMap<usize, TensorData>,
    /// Where others come from; a sample step has all.
    first: Option<Arc<HashMap<usize, TensorData>>>,
    made: HashMap<usize, Box<dyn AnyRank>>,
    /// Numbers of those that were read, in that order.
    read: Vec<usize>,
    /// Numbers of those that were read without being lent.
    strays: Vec<usize>,
}

/// What a call's closures did with the weights.
pub(crate) struct Used {
    /// The tensors, by the number of their entry.
    pub(crate) tensors: HashMap<usize, Box<dyn AnyRank>>,
    pub(crate) read: Vec<usize>,
    pub(crate) strays: Vec<usize>,
}

impl Lent {
    /// Nothing but these values.
    pub(crate) fn values(values: HashMap<usize, TensorData>) -> Self {
        Self { values, ..Self::default() }
    }

    /// All first values.
    pub(crate) fn all(first: &Arc<HashMap<usize, TensorData>>) -> Self {
        Self { first: Some(Arc::clone(first)), ..Self::default() }
    }

    fn tensor<const D: usize>(
        &mut self,
        number: usize,
        (device, tracks): (&Device, bool),
        of: &Of,
    ) -> Tensor<D> {
        if let Some(tensor) = self.made.get(&number).and_then(|made| made.any().downcast_ref::<Tensor<D>>()) {
            return tensor.clone();
        }
        let first = || self.first.as_ref().and_then(|first| first.get(&number).cloned());
        let tensor = match self.values.remove(&number).or_else(first) {
            Some(data) => Tensor::from_data(data, (device, of.dtype)),
            None => {
                self.strays.push(number);
                Tensor::zeros(of.shape.clone(), (device, of.dtype))
            }
        };
        let tensor = tensor.set_require_grad(tracks);
        self.read.push(number);
        self.made.insert(number, Box::new(tensor.clone()));
        tensor
    }
}

/// The form of a weight.
struct Of {
    shape: Vec<usize>,
    dtype: burn::tensor::DType,
}

/// Calls `with` with the module whose weights are lent.
pub(crate) fn with_weights<M: Module, R>(
    module: M,
    (known, device): (&Known, &Device),
    lent: Lent,
    with: impl FnOnce(&M) -> R,
) -> (R, Used) {
    let lent = Arc::new(Mutex::new(lent));
    let module = module.map(&mut Lender { known, device, lent: Arc::clone(&lent) });
    let result = with(&module);
    drop(module);
    let mut lent = locked(&lent);
    let (tensors, read) = (std::mem::take(&mut lent.made), std::mem::take(&mut lent.read));
    let strays = std::mem::take(&mut lent.strays);
    (result, Used { tensors, read, strays })
}

struct Lender<'a> {
    known: &'a Known,
    device: &'a Device,
    lent: Arc<Mutex<Lent>>,
}

impl ModuleMapper for Lender<'_> {
    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let number = self.known.numbers.get(&parameter.id).copied();
        let Some(number) = number.filter(|number| !self.known.entries[*number].is_buffer()) else {
            return parameter;
        };
        let entry = &self.known.entries[number];
        let (lent, of) = (Arc::clone(&self.lent), Of { shape: entry.shape.clone(), dtype: entry.dtype });
        let shape = entry.shape.clone();
        let tensor = move |device: &Device, tracks| locked(&lent).tensor(number, (device, tracks), &of);
        Param::uninitialized(parameter.id, tensor, self.device.clone(), entry.trains(), shape.into())
    }
}
