//! Lent values as burn's tensors and parameters, and back.
//!
//! A tensor owns its memory, so lent values are copied into it. Parameters are met in the order in which burn visits
//! them, which is that of a layer's weights.

use std::error::Error;
use std::vec::IntoIter;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Int, Tensor, TensorData};

/// A copy of lent values.
pub(crate) fn tensor<const D: usize>(lent: &[f32], shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(lent.to_vec(), shape), device)
}

/// A copy of lent numbers.
pub(crate) fn numbers<const D: usize>(lent: &[u32], shape: [usize; D], device: &Device) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(lent.to_vec(), shape), device)
}

/// Copies a tensor's values into lent memory.
pub(crate) fn store(values: &TensorData, lent: &mut [f32]) -> Result<(), Box<dyn Error>> {
    let values = values.as_slice::<f32>()?;
    if values.len() != lent.len() {
        return Err(format!("{} values for {} elements", values.len(), lent.len()).into());
    }
    lent.copy_from_slice(values);
    Ok(())
}

/// The module with other values, one entry for each parameter, on `device`.
pub(crate) fn with_values<M: Module>(
    module: M,
    values: Vec<Vec<f32>>,
    device: &Device,
) -> Result<M, Box<dyn Error>> {
    let mut set = Set { values: values.into_iter(), device, unmatched: 0 };
    let module = module.map(&mut set);
    match set.unmatched + set.values.len() {
        0 => Ok(module),
        count => Err(format!("{count} parameters and values do not match").into()),
    }
}

/// The values of all parameters.
pub(crate) fn values<M: Module>(module: &M) -> Vec<TensorData> {
    let mut found = Values(Vec::new());
    module.visit(&mut found);
    found.0
}

/// The gradients of all parameters, taken out of `gradients`.
pub(crate) fn gradients<M: Module>(
    module: &M,
    gradients: &mut Gradients,
) -> Result<Vec<TensorData>, Box<dyn Error>> {
    let mut found = Taken { gradients, taken: Vec::new() };
    module.visit(&mut found);
    let taken: Option<_> = found.taken.into_iter().collect();
    Ok(taken.ok_or("autodiff has no gradient of a parameter")?)
}

struct Set<'a> {
    values: IntoIter<Vec<f32>>,
    device: &'a Device,
    unmatched: usize,
}

impl ModuleMapper for Set<'_> {
    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let shape = parameter.lazy_shape();
        match self.values.next() {
            // The memory of `values` becomes the tensor's. It requires gradients if the device is one for autodiff.
            Some(values) if values.len() == shape.num_elements() => {
                Param::from_data(TensorData::new(values, shape), self.device)
            }
            _ => {
                self.unmatched += 1;
                parameter
            }
        }
    }
}

struct Values(Vec<TensorData>);

impl ModuleVisitor for Values {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        self.0.push(parameter.val().into_data());
    }
}

struct Taken<'a> {
    gradients: &'a mut Gradients,
    taken: Vec<Option<TensorData>>,
}

impl ModuleVisitor for Taken<'_> {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        let gradient = parameter.val().grad_remove(self.gradients);
        self.taken.push(gradient.map(Tensor::into_data));
    }
}
