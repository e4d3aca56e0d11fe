//! Builds weights and calls from a file of calls.
//!
//! Law: items are declared in the order of the file. Whatever is refused is reported with the key of the item,
//! and nothing is kept. Gradients of frozen weights are left out, and nothing else.

use std::collections::{BTreeMap, HashMap};

use super::CallList;
use super::file::{BufferItem, CallItem, PartItem, WeightItem};
use super::numbers::{numbered, numbers};
use crate::config::ConfigError;
use warpweft_base::errors::listed;
use warpweft_base::id::{BufferId, WeightId};
use warpweft_format::{ElementType, Format};
use warpweft_plan::model::{
    Access, BufferSpec, Collective, CostHint, DeclareError, Model, ModelBuilder, Placement, ProgramBuilder,
    StepProgram, WeightSpec,
};

/// What calls of a list name.
#[derive(Default)]
pub(super) struct Named {
    buffers: BTreeMap<String, BufferId>,
    /// All-to-alls that brought counts.
    pub(super) dispatches: BTreeMap<String, Collective>,
}

impl CallList {
    /// The weights, in the formats that the file names.
    ///
    /// # Errors
    /// [`ConfigError::Declaration`]: what [`ModelBuilder`] refuses.
    pub fn model(&self) -> Result<Model, ConfigError> {
        let mut model = Model::builder();
        let mut groups: Vec<(String, Vec<WeightId>, usize)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        for (item, weight) in self.file.weights.iter().enumerate() {
            for number in numbers(weight.numbers) {
                let id = self.weight(&mut model, item, weight, number)?;
                let Some(group) = &weight.group else { continue };
                let group = numbered(group, number);
                let place = *places.entry(group.clone()).or_insert(groups.len());
                match groups.get_mut(place) {
                    Some((_, members, _)) => members.push(id),
                    None => groups.push((group, vec![id], item)),
                }
            }
        }
        for (name, members, item) in groups {
            model.group(&name, &members).map_err(self.at(format!("weight.{item}.group")))?;
        }
        Ok(model.build())
    }

    /// The program of a step over `model`, which has the weights of [`CallList::model`].
    ///
    /// # Errors
    /// [`ConfigError::Declaration`]: a name that nobody declared, and what [`ProgramBuilder`] refuses.
    pub fn program(&self, model: &Model) -> Result<StepProgram, ConfigError> {
        let mut program = StepProgram::builder(self.name(), model);
        program
            .micro_batches(self.file.micro_batches.unwrap_or(1))
            .map_err(self.at("micro_batches".to_owned()))?;
        let mut named = Named::default();
        for (item, buffer) in self.file.buffers.iter().enumerate() {
            for number in numbers(buffer.numbers) {
                let spec = spec(buffer, number);
                let name = spec.name.clone();
                named.buffers.insert(name, program.buffer(spec).map_err(self.at(format!("buffer.{item}")))?);
            }
        }
        for (item, call) in self.file.calls.iter().enumerate() {
            for number in numbers(call.numbers) {
                self.call(&mut program, &mut named, item, call, number)?;
            }
        }
        let writes = |call: &CallItem| !call.gradients.is_empty() || !call.gradients_bf16.is_empty();
        let trains = self.file.calls.iter().any(writes);
        let built = if trains { program.build_training() } else { program.build_evaluation() };
        built.map_err(self.at("call".to_owned()))
    }

    fn weight(
        &self,
        model: &mut ModelBuilder,
        item: usize,
        weight: &WeightItem,
        number: Option<u32>,
    ) -> Result<WeightId, ConfigError> {
        let placement = weight.placement.into();
        let format = weight.format.unwrap_or(match placement {
            Placement::Sharded => Format::Bf16,
            Placement::Replicated => Format::F32,
        });
        let name = numbered(&weight.name, number);
        let mut spec = WeightSpec::sharded(&name, weight.rows, weight.cols, format);
        (spec.placement, spec.reuse, spec.frozen) = (placement, weight.reuse, weight.frozen);
        spec.expert = weight.expert_parallel;
        model.add(spec).map_err(self.at(format!("weight.{item}")))
    }

    fn call(
        &self,
        program: &mut ProgramBuilder,
        named: &mut Named,
        item: usize,
        call: &CallItem,
        number: Option<u32>,
    ) -> Result<(), ConfigError> {
        let key = |of: &str| format!("call.{item}.{of}");
        let weight = |program: &ProgramBuilder, name: &str, key: String| {
            program.model().find(&numbered(name, number)).map_err(self.at(key))
        };
        let mut uses = Vec::new();
        for (place, usage) in call.uses.iter().enumerate() {
            uses.push(weight(program, &usage.weight, key(&format!("uses.{place}.weight")))?);
        }
        let mut gradients = Vec::new();
        let lists = [
            ("gradients", &call.gradients, ElementType::F32),
            ("gradients_bf16", &call.gradients_bf16, ElementType::Bf16),
        ];
        for (of, names, element) in lists {
            for name in names {
                gradients.push((weight(program, name, key(of))?, element));
            }
        }
        let mut accesses = Vec::new();
        let lists = [
            ("reads", &call.reads, Access::Read),
            ("writes", &call.writes, Access::Write),
            ("updates", &call.updates, Access::Update),
        ];
        for (of, names, access) in lists {
            for name in names {
                let name = numbered(name, number);
                let buffer = named.buffers.get(&name).copied();
                let refused = || unknown("buffer", name, named.buffers.keys());
                let buffer = buffer.ok_or_else(refused).map_err(self.at(key(of)))?;
                accesses.push((buffer, access));
            }
        }
        if let Some(collective) = self.collective(item, (call, number), &accesses, named)? {
            let name = numbered(&call.name, number);
            let added = program.collective(&name, call.phase.into(), collective);
            added.map_err(self.at(format!("call.{item}")))?;
            if collective.counts.is_some_and(|counts| !counts.known) {
                named.dispatches.insert(name, collective);
            }
            return Ok(());
        }
        let usual = call.part.math.unwrap_or(self.file.math);
        let cost = |part: &PartItem| {
            let PartItem { flops, bytes, kernels, math } = *part;
            CostHint { flops, bytes, math: math.unwrap_or(usual), kernels }
        };
        let builder = program.call(&numbered(&call.name, number), call.phase.into());
        let parts = std::iter::once(&call.part).chain(&call.parts);
        let mut builder = parts.fold(builder, |builder, part| builder.cost(cost(part)));
        for (weight, usage) in uses.into_iter().zip(&call.uses) {
            builder = builder.uses(weight, usage.orientation.into(), usage.form.into());
            if let Some(reuse) = usage.reuse {
                builder = builder.reuse(reuse);
            }
        }
        if call.dynamic {
            builder = builder.dynamic();
        }
        builder = gradients
            .into_iter()
            .fold(builder, |builder, (weight, element)| builder.gradient_if_trained(weight, element));
        let builder =
            accesses.into_iter().fold(builder, |builder, (buffer, access)| builder.accesses(buffer, access));
        builder.add().map(drop).map_err(self.at(format!("call.{item}")))
    }

    /// What the declaration refused, with the key that requested it.
    pub(super) fn at(&self, key: String) -> impl Fn(DeclareError) -> ConfigError {
        let origin = self.document.origin_near(&key);
        move |source| ConfigError::Declaration {
            key: key.clone(),
            origin: origin.clone(),
            source: Box::new(source),
        }
    }
}

fn spec(buffer: &BufferItem, number: Option<u32>) -> BufferSpec {
    BufferSpec {
        name: numbered(&buffer.name, number),
        elements: buffer.elements,
        element: buffer.element.into(),
        role: buffer.role.into(),
        lifetime: buffer.lifetime.into(),
    }
}

/// Nothing of this name was declared before.
pub(super) fn unknown<'n>(
    kind: &'static str,
    name: String,
    declared: impl Iterator<Item = &'n String>,
) -> DeclareError {
    DeclareError::Unknown { kind, name, declared: listed("", declared) }
}
