//! The names that calls of one program share.
//!
//! Law: names are those of the program's declaration. They are kept once for each plan, and a lookup
//! allocates only the error that it may return.

use super::error::ComputeError;
use crate::model::BufferSpec;
use warpweft_base::id::{BufferId, WeightId};
use warpweft_base::near::near;

/// A program's name and buffers, and the names of the model's weights.
#[derive(Clone, Debug)]
pub struct BoundProgram {
    name: String,
    buffers: Vec<BufferSpec>,
    /// In the order of their names.
    by_name: Vec<BufferId>,
    weights: Vec<String>,
    /// In the order of their names.
    weights_by_name: Vec<WeightId>,
}

impl BoundProgram {
    /// The program of this name, with its buffers and the names of the model's weights in the order of their
    /// ids.
    #[must_use]
    pub fn new(name: &str, buffers: &[BufferSpec], weights: Vec<String>) -> Self {
        let mut by_name: Vec<BufferId> =
            buffers.iter().enumerate().map(|(at, spec)| BufferId::named(&spec.name, at)).collect();
        by_name.sort_by_key(|buffer| &buffers[buffer.index()].name);
        let mut weights_by_name: Vec<WeightId> =
            weights.iter().enumerate().map(|(at, name)| WeightId::named(name, at)).collect();
        weights_by_name.sort_by_key(|weight| &weights[weight.index()]);
        Self { name: name.to_owned(), buffers: buffers.to_vec(), by_name, weights, weights_by_name }
    }

    /// The program's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How the buffer of this number was declared.
    pub(super) fn spec(&self, buffer: BufferId) -> Option<&BufferSpec> {
        self.buffers.get(buffer.index())
    }

    /// The id of the buffer called `name`, for the call called `call`.
    pub(super) fn buffer(&self, name: &str, call: &str) -> Result<BufferId, ComputeError> {
        let own_name = |buffer: &BufferId| self.spec(*buffer).map_or("", |spec| spec.name.as_str());
        let position = self.by_name.binary_search_by(|buffer| own_name(buffer).cmp(name));
        let found = position.ok().and_then(|position| self.by_name.get(position));
        found.copied().ok_or_else(|| {
            let near = nearest(name, self.buffers.iter().map(|spec| spec.name.as_str()));
            let (call, buffer) = (call.to_owned(), name.to_owned());
            ComputeError::NoBuffer { call, program: self.name.clone(), buffer, near }
        })
    }

    /// The name of a weight, or `None` for another model's.
    pub(super) fn weight_name(&self, weight: WeightId) -> Option<&str> {
        self.weights.get(weight.index()).map(String::as_str)
    }

    /// The id of the weight called `name`, for the call called `call`.
    pub(super) fn weight(&self, name: &str, call: &str) -> Result<WeightId, ComputeError> {
        let position =
            self.weights_by_name.binary_search_by(|weight| self.weight_name(*weight).cmp(&Some(name)));
        let found = position.ok().and_then(|position| self.weights_by_name.get(position));
        found.copied().ok_or_else(|| ComputeError::NoWeight {
            call: call.to_owned(),
            weight: name.to_owned(),
            near: nearest(name, self.weights.iter().map(String::as_str)),
        })
    }
}

/// The most names that an error proposes.
const MOST_NAMES: usize = 3;

fn nearest<'names>(name: &str, names: impl Iterator<Item = &'names str>) -> Vec<String> {
    near(name, names).into_iter().take(MOST_NAMES).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Model, Phase, StepProgram};
    use warpweft_format::ElementType;

    fn program() -> StepProgram {
        let mut program = StepProgram::builder("train", &Model::builder().build());
        let input = program.input("input", 4, ElementType::F32).unwrap();
        let loss = program.output("loss", 1, ElementType::F32).unwrap();
        program.call("fit", Phase::Forward).reads(input).writes(loss).add().unwrap();
        program.build_evaluation().unwrap()
    }

    fn bound(program: &StepProgram) -> BoundProgram {
        let weights = ["up", "down"].map(str::to_owned);
        BoundProgram::new(program.name(), program.buffers(), weights.to_vec())
    }

    #[test]
    fn a_weight_is_found_by_its_name_and_a_misspelt_one_is_refused_with_the_names_near_it() {
        let bound = bound(&program());
        for (at, name) in ["up", "down"].iter().enumerate() {
            assert_eq!(bound.weight(name, "fit").unwrap(), WeightId::at(at));
            assert_eq!(bound.weight_name(WeightId::at(at)), Some(*name));
        }
        let (call, weight, near) = ("fit".to_owned(), "dwn".to_owned(), vec!["down".to_owned()]);
        assert_eq!(bound.weight("dwn", "fit").unwrap_err(), ComputeError::NoWeight { call, weight, near });
    }

    #[test]
    fn a_buffer_is_found_by_the_name_it_was_declared_with() {
        let program = program();
        let bound = bound(&program);
        assert_eq!(bound.name(), "train");
        for name in ["input", "loss"] {
            assert_eq!(bound.buffer(name, "fit").unwrap(), program.buffer(name).unwrap());
        }
    }

    #[test]
    fn a_misspelt_buffer_is_refused_with_the_names_near_it() {
        let program = program();
        let bound = bound(&program);
        let error = bound.buffer("los", "fit").unwrap_err();
        let near = vec!["loss".to_owned()];
        let (call, program, buffer) = ("fit".to_owned(), "train".to_owned(), "los".to_owned());
        assert_eq!(error, ComputeError::NoBuffer { call, program, buffer, near });
        assert!(error.to_string().contains("names near it: `loss`"), "{error}");
        let far = bound.buffer("frobnicate", "fit").unwrap_err().to_string();
        assert!(far.contains("none of its buffers has a name like it"), "{far}");
    }
}
