//! Declares a model, weight by weight.
//!
//! Law: names, shapes, formats and placements are checked here, once. What is refused changes nothing.

use std::collections::HashSet;

use super::Model;
use crate::model::names::check_name;
use crate::model::{DeclareError, ParameterGroup, Placement, Reuse, Segments, TensorParallel, WeightSpec};
use warpweft_base::id::{GroupId, WeightId};
use warpweft_format::Format;

/// Collects weights; every call checks what it is given.
#[derive(Clone, Debug, Default)]
pub struct ModelBuilder {
    model: Model,
}

impl ModelBuilder {
    /// An empty declaration with the groups of `model`.
    #[doc(hidden)]
    pub fn with_groups_of(model: &Model) -> Self {
        let (groups, group_names) = (model.groups.clone(), model.group_names.clone());
        Self { model: Model { groups, group_names, ..Model::default() } }
    }

    /// Declares a sharded weight `[rows, cols]` in `format`. Any number of rows will do: planes complete the last
    /// block with zeros ([`Format::whole_blocks`]), and everything else has the rows of the declaration.
    ///
    /// # Errors
    /// A repeated, empty or unprintable name, an empty shape, columns that the format cannot split into whole
    /// blocks, or more elements than can be addressed.
    pub fn sharded(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
        format: Format,
    ) -> Result<WeightId, DeclareError> {
        self.add(WeightSpec::sharded(name, rows, cols, format))
    }

    /// Declares a replicated f32 weight of any shape.
    ///
    /// # Errors
    /// A repeated, empty or unprintable name, an empty shape, or one of more elements than can be addressed.
    pub fn replicated(&mut self, name: &str, rows: usize, cols: usize) -> Result<WeightId, DeclareError> {
        self.add(WeightSpec::replicated(name, rows, cols))
    }

    /// Declares a weight from its parts.
    ///
    /// # Errors
    /// As [`ModelBuilder::sharded`], [`DeclareError::ReplicatedFormat`] for a replicated weight that is not
    /// f32, [`DeclareError::ReplicatedGroup`] for one in a group, an unknown group, an empty or unprintable
    /// name of a scale group, and [`DeclareError::Segments`].
    pub fn add(&mut self, spec: WeightSpec) -> Result<WeightId, DeclareError> {
        check_name("weight", &spec.name)?;
        spec.scale_group.as_deref().map_or(Ok(()), |group| check_name("scale group", group))?;
        if self.model.weight_names.contains(&spec.name) {
            return Err(DeclareError::Duplicate { kind: "weight", name: spec.name });
        }
        if spec.shape.rows == 0 || spec.shape.cols == 0 {
            return Err(DeclareError::Empty { kind: "weight", name: spec.name });
        }
        if spec.placement == Placement::Replicated && spec.format != Format::F32 {
            return Err(DeclareError::ReplicatedFormat {
                weight: spec.name,
                format: spec.format.to_string(),
            });
        }
        if let Some(group) = spec.group {
            let name = self.model.group_of(group, || format!("weight `{}`", spec.name))?.to_owned();
            if spec.placement == Placement::Replicated {
                return Err(DeclareError::ReplicatedGroup { weight: spec.name, group: name });
            }
        }
        check_segments(&spec)?;
        let fits = match spec.placement {
            Placement::Replicated => Ok(()),
            Placement::Sharded => spec.format.check_weight(),
        };
        if let Err(reason) = fits.and_then(|()| spec.format.check_shape(spec.shape)) {
            return Err(DeclareError::Format { weight: spec.name, reason });
        }
        let weight = WeightId::named(&spec.name, self.model.weights.len());
        self.model.weight_names.push(&spec.name);
        self.model.weights.push(spec);
        Ok(weight)
    }

    /// Declares a group of sharded weights, such as the experts of a layer: the members that one call uses travel
    /// as one collective, apart from the call's other weights, and so do the gradients of members that one call
    /// writes. A group of one weight travels alone.
    ///
    /// # Errors
    /// A repeated, empty or unprintable name, no members, a number that no weight has, a weight of another model, a
    /// weight named twice or already in a group, and [`DeclareError::ReplicatedGroup`] for a replicated weight. The
    /// model is unchanged then.
    pub fn group(&mut self, name: &str, members: &[WeightId]) -> Result<GroupId, DeclareError> {
        let model = &self.model;
        check_name("group", name)?;
        if model.group_names.contains(name) {
            return Err(DeclareError::Duplicate { kind: "group", name: name.to_owned() });
        }
        if members.is_empty() {
            return Err(DeclareError::NoMembers { group: name.to_owned() });
        }
        let mut seen = HashSet::new();
        for member in members {
            let spec = model.weight_of(*member, || format!("group `{name}`"))?;
            let (weight, group) = (spec.name.clone(), name.to_owned());
            if spec.placement == Placement::Replicated {
                return Err(DeclareError::ReplicatedGroup { weight, group });
            }
            if let Some(other) = spec.group {
                let other = model.groups[other.index()].clone();
                return Err(DeclareError::TwoGroups { weight, first: other, second: group });
            }
            if !seen.insert(*member) {
                return Err(DeclareError::TwoGroups { weight, first: group.clone(), second: group });
            }
        }
        let Model { weights, groups, group_names, .. } = &mut self.model;
        let group = GroupId::named(name, groups.len());
        group_names.push(name);
        groups.push(name.to_owned());
        for member in members {
            weights[member.index()].group = Some(group);
        }
        Ok(group)
    }

    /// Decides for all uses of `weight` whether their planes are kept from the previous use, whatever the
    /// configuration says; a use may decide otherwise.
    ///
    /// # Errors
    /// As [`Model::weight`].
    pub fn reuse(&mut self, weight: WeightId, reuse: Reuse) -> Result<(), DeclareError> {
        self.spec_mut(weight, "reuse").map(|spec| spec.reuse = Some(reuse))
    }

    /// Decides what the optimizer does differently for `weight`; a rule of the configuration may override it,
    /// key by key.
    ///
    /// # Errors
    /// As [`Model::weight`].
    pub fn parameters(&mut self, weight: WeightId, parameters: ParameterGroup) -> Result<(), DeclareError> {
        self.spec_mut(weight, "parameters").map(|spec| spec.parameters = parameters)
    }

    /// Decides that `weight` does not train: calls write no gradient of it, and it stays as it was
    /// initialized or imported. A rule of the configuration may decide otherwise, so code that declares calls
    /// asks the model whether a weight is [frozen](WeightSpec::frozen).
    ///
    /// # Errors
    /// As [`Model::weight`].
    pub fn freeze(&mut self, weight: WeightId) -> Result<(), DeclareError> {
        self.spec_mut(weight, "freeze").map(|spec| spec.frozen = true)
    }

    /// Decides what tensor parallelism does with `weight`, where the mesh has it (`mesh.tp`); without, a model runs
    /// as if nothing was said. A mesh with tensor parallelism needs it of every weight.
    ///
    /// # Errors
    /// As [`Model::weight`].
    pub fn tensor_parallel(&mut self, weight: WeightId, how: TensorParallel) -> Result<(), DeclareError> {
        let spec = self.spec_mut(weight, "tensor_parallel")?;
        (spec.tensor, spec.segments) = (Some(how), Segments::NONE);
        Ok(())
    }

    /// Decides that `weight`, which stacks matrices of these numbers of rows, such as query, key and value, or gate and
    /// up, is [column parallel](TensorParallel::ColumnParallel), each of them by itself: a rank has its rows of the
    /// first, then its rows of the second, and so on. Files and initializers know the weight as it is declared.
    ///
    /// # Errors
    /// As [`Model::weight`]; [`DeclareError::Segments`] for rows that do not add up to the weight's, for none, and for
    /// more than eight.
    pub fn column_parallel_of(&mut self, weight: WeightId, rows: &[usize]) -> Result<(), DeclareError> {
        let spec = self.spec_mut(weight, "column_parallel_of")?;
        let segments = Segments::new(rows).filter(|segments| segments.total() == Some(spec.shape.rows));
        let Some(segments) = segments else {
            return Err(DeclareError::segments(spec, rows.to_vec(), Some(TensorParallel::ColumnParallel)));
        };
        (spec.tensor, spec.segments) = (Some(TensorParallel::ColumnParallel), segments);
        Ok(())
    }

    /// Decides that `weight` is of an expert, and that with expert parallelism (`mesh.ep`) each rank of an
    /// expert-parallel group has other experts; without, a model runs as if nothing was said.
    ///
    /// A model declares the experts of one rank. The number after `experts` or `expert` in a weight's name is that of
    /// its expert among these, as 2 in `layers.0.experts.2.w1`. Where a rank has n of them, expert k of the rank at
    /// place e of its group is expert `e · n + k` of the layer: initializers and files know its weight by that number,
    /// as `layers.0.experts.14.w1` at place 3 of 4 experts each.
    ///
    /// # Errors
    /// As [`Model::weight`].
    pub fn expert_parallel(&mut self, weight: WeightId) -> Result<(), DeclareError> {
        self.spec_mut(weight, "expert_parallel").map(|spec| spec.expert = true)
    }

    /// Declares a scale group: weights that an inference engine fuses into one matrix, such as queries, keys
    /// and values. Every step quantizes them by their largest magnitude together, so that what is served in
    /// one scale of the tensor is what was trained, bit for bit. Formats without such a scale (MXFP8, FP8 in
    /// blocks, bf16, f32) need none, and are not changed. A rule of the configuration may decide otherwise.
    ///
    /// # Errors
    /// As [`Model::weight`], an empty or unprintable name. The model is unchanged then.
    pub fn scale_group(&mut self, name: &str, members: &[WeightId]) -> Result<(), DeclareError> {
        check_name("scale group", name)?;
        for member in members {
            self.model.weight_of(*member, || format!("scale group `{name}`"))?;
        }
        for member in members {
            self.model.weights[member.index()].scale_group = Some(name.to_owned());
        }
        Ok(())
    }

    fn spec_mut(&mut self, weight: WeightId, by: &str) -> Result<&mut WeightSpec, DeclareError> {
        self.model.weight_of(weight, || format!("ModelBuilder::{by}"))?;
        Ok(&mut self.model.weights[weight.index()])
    }

    /// The finished model.
    #[must_use]
    pub fn build(self) -> Model {
        self.model
    }
}

/// Segments are those of a column-parallel weight, and all of its rows.
fn check_segments(spec: &WeightSpec) -> Result<(), DeclareError> {
    let are_all = || spec.segments.total() == Some(spec.shape.rows);
    if spec.segments.is_none() || spec.tensor == Some(TensorParallel::ColumnParallel) && are_all() {
        return Ok(());
    }
    Err(DeclareError::segments(spec, spec.segments.into(), spec.tensor))
}
