//! The model: the weights of all programs of a session.
//!
//! Law: an ordered list of weights, addressed by [`WeightId`], and of the groups that they travel in. It was checked
//! when it was built ([`ModelBuilder`]) and never changes.

mod builder;

pub use builder::ModelBuilder;

use serde::Serialize;

use super::names::{NameIndex, names};
use super::{DeclareError, WeightSpec};
use warpweft_base::id::{GroupId, WeightId};

/// The weights of one model, in declaration order.
///
/// ```
/// use warpweft::{format::Format, model::Model};
///
/// let mut model = Model::builder();
/// let up = model.sharded("up", 256, 64, Format::NVFP4_2D)?; // [rows, columns]: rows are split over ranks
/// let down = model.sharded("down", 64, 256, Format::NVFP4_2D)?;
/// model.replicated("norm", 1, 64)?; // in f32, whole on every rank
/// model.group("mlp", &[up, down])?; // they travel together
/// let model = model.build();
/// assert_eq!((model.find("down")?, model.weight(up)?.shape.rows), (down, 256));
/// # Ok::<(), warpweft::model::DeclareError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Model {
    weights: Vec<WeightSpec>,
    groups: Vec<String>,
    #[serde(skip)]
    weight_names: NameIndex,
    #[serde(skip)]
    group_names: NameIndex,
}

impl Model {
    /// Starts an empty declaration.
    #[must_use]
    pub fn builder() -> ModelBuilder {
        ModelBuilder::default()
    }

    /// All weights, in the order of their ids.
    #[must_use]
    pub fn weights(&self) -> &[WeightSpec] {
        &self.weights
    }

    /// Every weight with its id.
    pub fn entries(&self) -> impl Iterator<Item = (WeightId, &WeightSpec)> {
        self.weights.iter().enumerate().map(|(position, spec)| (WeightId::named(&spec.name, position), spec))
    }

    /// The names of all groups, in the order of their ids.
    #[must_use]
    pub fn groups(&self) -> &[String] {
        &self.groups
    }

    /// The weight that an id of this model names.
    ///
    /// # Errors
    /// [`DeclareError::Unknown`] for a number that no weight has, [`DeclareError::OtherOwner`] for the id of another
    /// model.
    pub fn weight(&self, weight: WeightId) -> Result<&WeightSpec, DeclareError> {
        self.weight_of(weight, || "Model::weight".to_owned())
    }

    /// As [`Model::weight`], with the words `by` for who names it.
    pub(super) fn weight_of(
        &self,
        weight: WeightId,
        by: impl FnOnce() -> String,
    ) -> Result<&WeightSpec, DeclareError> {
        match self.weights.get(weight.index()) {
            Some(spec) if weight.is_named(&spec.name) => Ok(spec),
            Some(spec) => Err(DeclareError::OtherOwner {
                by: by(),
                id: weight.to_string(),
                owner: "model",
                named: spec.name.clone(),
            }),
            None => Err(DeclareError::Unknown {
                kind: "weight",
                name: weight.to_string(),
                declared: names(self.weights.iter().map(|spec| spec.name.as_str())),
            }),
        }
    }

    /// The name of the group that an id of this model names, if it is of this model.
    fn group_of(&self, group: GroupId, by: impl FnOnce() -> String) -> Result<&str, DeclareError> {
        match self.groups.get(group.index()) {
            Some(name) if group.is_named(name) => Ok(name),
            Some(name) => Err(DeclareError::OtherOwner {
                by: by(),
                id: group.to_string(),
                owner: "model",
                named: name.clone(),
            }),
            None => Err(DeclareError::Unknown {
                kind: "group",
                name: group.to_string(),
                declared: names(self.groups.iter().map(String::as_str)),
            }),
        }
    }

    /// The id of the weight called `name`.
    ///
    /// # Errors
    /// [`DeclareError::Unknown`] lists the names that exist.
    pub fn find(&self, name: &str) -> Result<WeightId, DeclareError> {
        let found = self.weight_names.find(name).map(|position| WeightId::named(name, position));
        found.ok_or_else(|| DeclareError::Unknown {
            kind: "weight",
            name: name.to_owned(),
            declared: names(self.weights.iter().map(|spec| spec.name.as_str())),
        })
    }
}
