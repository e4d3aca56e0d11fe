//! The start of a sharded model: from declared blocks to a session whose calls run them.
//!
//! Law: every block is tried on a sample before anything starts, and what the sample does not bear starts nothing. What
//! a program is comes from `warpweft-blocks`; this file says which weights, flows and programs there are.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use warpweft::format::{ElementType, Format, Orientation};
use warpweft::id::WeightId;
use warpweft::model::{Form, Model};
use warpweft_base::pattern::pattern_matches;
use warpweft_blocks::{Block as Declared, Blocks, Flow, Jobs, Part};

use crate::batch::Batch;
use crate::blocks::LossOf;
use crate::entry::Entry;
use crate::model::ShardedModel;
use crate::place::Place;
use crate::probe::{Found, Trial};
use crate::record::{Requested, first_values};
use crate::sharded::{Devices, Sharded};
use crate::shared::{Shape, Shared};
use crate::source::Source;
use crate::{EVALUATE, Error, PREDICT, TRAIN, dropout};

/// What programs are declared by.
#[derive(Clone, Copy)]
struct Declarations<'a> {
    found: &'a Found,
    in_bf16: &'a [bool],
    batches: &'a [Batch],
}

impl Sharded {
    /// Tries all blocks on a sample of the whole batch, over all ranks and micro-batches, and starts the ranks.
    ///
    /// # Errors
    /// [`Error`], with the block and the tensor: what a constructor or a closure says, a gradient that does not arrive,
    /// outputs and batches of other forms; and what the library says of configuration, formats and ranks.
    pub async fn shard(self, devices: Devices, (x, y): (&Tensor, &Tensor)) -> Result<ShardedModel, Error> {
        let (place, ranks) = (Place::open(devices, &self.config)?, devices.ranks());
        let micro_batches = self.micro_batches;
        if ranks == 0 || micro_batches == 0 {
            return Err(Error::Undeclared {
                what: format!("a model on {ranks} ranks in {micro_batches} micro-batches"),
                advice: "give at least one of each",
            });
        }
        if self.config.mesh.tp > 1 {
            return Err(Error::Undeclared {
                what: format!("mesh.tp = {} for blocks, which compute whole layers", self.config.mesh.tp),
                advice: "leave it at 1: each rank has samples of its own",
            });
        }
        let cut = (ranks as usize, micro_batches as usize);
        let (evaluated_x, evaluated_y) = self.evaluation.as_ref().map_or((x, y), |(x, y)| (x, y));
        let mut batches = vec![
            Batch::of(TRAIN, (x, Some(y)), cut)?,
            Batch::of(EVALUATE, (evaluated_x, Some(evaluated_y)), (cut.0, 1))?,
        ];
        let mut samples = vec![first(x, &batches[0])?, first(evaluated_x, &batches[1])?];
        if let Some(predicted) = &self.prediction {
            batches.push(Batch::of(PREDICT, (predicted, None), (cut.0, 1))?);
            samples.push(first(predicted, &batches[2])?);
        }
        let targets = first_targets(y, &batches[0])?;
        let source = Arc::new(Source::open(self.seed, self.from.clone())?);
        let loss = self.loss.clone().ok_or_else(|| Error::Undeclared {
            what: "the model has no loss".to_owned(),
            advice: "say what it is by `Sharded::loss`",
        })?;
        let found = self.trial(&source, &loss, place.device()).run(&samples, &targets)?;
        self.every_pattern_matches(&found)?;
        let (model, ids) = self.model(&found.entries)?;
        let in_bf16 = found.requested.iter().map(|requested| {
            let mut matrices = requested.tensors.iter().map(|number| &found.entries[*number]);
            place.lends_bf16() && matrices.all(|entry| entry.is_buffer() || entry.is_bf16_matrix())
        });
        let in_bf16: Vec<bool> = in_bf16.collect();
        let declared = Declarations { found: &found, in_bf16: &in_bf16, batches: &batches };
        let (programs, jobs) = self.programs(&model, &ids, &declared, micro_batches)?;
        let (sums, shared) = (found.sums, Arc::new(self.shared(&source, loss, (found, in_bf16), &batches)?));

        let entries: HashMap<String, Entry> =
            shared.entries.iter().map(|entry| (entry.name.clone(), entry.clone())).collect();
        let fill = move |rows: warpweft::session::initial::MasterRows<'_>, values: &mut [f32]| {
            let Some(entry) = entries.get(rows.weight) else {
                return Err(format!("no block requests `{}`", rows.weight));
            };
            source.fill(entry, rows.first_row, values).map_err(|error| error.to_string())
        };
        let session = place.start((self.config, programs, jobs), Arc::clone(&shared), fill).await?;
        Ok(ShardedModel::new(session, shared, batches, sums))
    }

    /// A pattern for nothing is a name that was misspelt.
    fn every_pattern_matches(&self, found: &Found) -> Result<(), Error> {
        let tensors: Vec<&str> = found.entries.iter().map(|entry| entry.name.as_str()).collect();
        let blocks: Vec<&str> = self.blocks.iter().map(|block| block.name.as_str()).collect();
        let both = [tensors.as_slice(), blocks.as_slice()].concat();
        for (patterns, names, call) in [
            (&self.buffers, &tensors, "buffer"),
            (&self.drawn, &tensors, "drawn"),
            (&self.unused, &both, "may_be_unused"),
            (&self.recompute, &blocks, "recompute"),
        ] {
            let is_for_nothing = |pattern: &&String| !names.iter().any(|name| pattern_matches(pattern, name));
            if let Some(pattern) = patterns.iter().find(is_for_nothing) {
                return Err(Error::Undeclared {
                    what: format!(
                        "`{call}(\"{pattern}\")` matches nothing; there are `{}`",
                        names.join("`, `")
                    ),
                    advice: "write a name as it is there; `*` stands for any characters",
                });
            }
        }
        Ok(())
    }

    fn trial<'a>(&'a self, source: &Arc<Source>, loss: &'a LossOf, device: &'a Device) -> Trial<'a> {
        Trial {
            blocks: &self.blocks,
            loss,
            dtype: self.dtype,
            device,
            source: Arc::clone(source),
            config: &self.config,
            buffers: &self.buffers,
            drawn: &self.drawn,
            unused: &self.unused,
            recompute: &self.recompute,
            seed: self.seed,
        }
    }

    /// Matrices are sharded, vectors replicated, unless a rule says otherwise.
    fn model(&self, entries: &[Entry]) -> Result<(Model, HashMap<usize, WeightId>), Error> {
        let (mut model, mut ids) = (Model::builder(), HashMap::new());
        for (number, entry) in entries.iter().enumerate().filter(|(_, entry)| !entry.is_buffer()) {
            let (rows, columns) = entry.matrix();
            let weight = match entry.shape.len() {
                0 | 1 => model.replicated(&entry.name, rows, columns)?,
                _ => model.sharded(&entry.name, rows, columns, Format::F32)?,
            };
            ids.insert(number, weight);
        }
        Ok((self.config.apply_weight_rules(&model.build())?, ids))
    }

    /// All programs, and what their calls do.
    fn programs(
        &self,
        model: &Model,
        ids: &HashMap<usize, WeightId>,
        declared: &Declarations<'_>,
        micro_batches: u32,
    ) -> Result<(Vec<warpweft::model::StepProgram>, Vec<Jobs>), Error> {
        let (mut programs, mut jobs) = (Vec::new(), Vec::new());
        let Declarations { found, in_bf16, batches } = *declared;
        for (batch, forms) in batches.iter().zip(&found.forms) {
            let (input, targets) = batch.of_part();
            let targets =
                targets.as_ref().map_or(Ok(Flow::f32(1)), |targets| flow(targets, "the targets"))?;
            let mut blocks = Blocks::new(flow(&input, "the input")?, targets);
            blocks.every("part", Flow { elements: Part::WORDS, element: ElementType::U32 });
            let scalar = |name: &str| (name.to_owned(), Flow::f32(1));
            blocks.outputs(vec![scalar("loss_sum"), scalar("loss_weight")]);
            let blocks_found = found.requested.iter().zip(&found.blocks).zip(in_bf16);
            for ((block, ((requested, info), in_bf16)), form) in
                self.blocks.iter().zip(blocks_found).zip(&forms[1..])
            {
                let weights = weights_of(requested, ids);
                let mut declared = Declared::new(&block.name, weights, flow(form, &block.name)?);
                declared.keeps = !info.recomputes;
                declared.form = if *in_bf16 { Form::DenseBf16 } else { Form::Dense };
                // Autograd wants the operand that forward had.
                declared.backward = Orientation::Rowwise;
                blocks.block(declared);
            }
            let declared = match batch.program {
                TRAIN => blocks.training(TRAIN, model, micro_batches)?,
                EVALUATE => blocks.evaluation(EVALUATE, model)?,
                other => blocks.prediction(other, model)?,
            };
            jobs.push(declared.jobs);
            programs.push(match batch.program {
                TRAIN if self.accumulates => declared.program.accumulating()?,
                _ => declared.program,
            });
        }
        Ok((programs, jobs))
    }

    fn shared(
        &self,
        source: &Source,
        loss: LossOf,
        (found, in_bf16): (Found, Vec<bool>),
        batches: &[Batch],
    ) -> Result<Shared, Error> {
        let mut buffers = HashMap::new();
        for (number, entry) in found.entries.iter().enumerate() {
            if entry.is_buffer() && !dropout::is_state(&entry.name) {
                let first = first_values(entry, source, &Device::Cpu).map_err(Error::candle(&entry.name))?;
                buffers.insert(number, first.tensor().clone());
            }
        }
        let shape = |(batch, forms): (&Batch, Vec<_>)| {
            let (input, targets) = batch.of_part();
            let shape = Shape { samples: batch.cut.most(), forms, targets: targets.unwrap_or(input) };
            (batch.program, shape)
        };
        Ok(Shared {
            blocks: self.blocks.clone(),
            found: found.blocks,
            requested: found.requested,
            entries: found.entries,
            buffers,
            loss,
            dtype: self.dtype,
            seed: self.seed,
            unused: self.unused.clone(),
            in_bf16,
            programs: batches.iter().zip(found.forms).map(shape).collect(),
        })
    }
}

fn weights_of(requested: &Requested, ids: &HashMap<usize, WeightId>) -> Vec<WeightId> {
    requested.tensors.iter().filter_map(|number| ids.get(number).copied()).collect()
}

fn flow(form: &crate::values::Form, what: &str) -> Result<Flow, Error> {
    let advice = "use F32, BF16, F16, F64, or integers of 8, 16, 32 or 64 bits";
    form.flow().ok_or_else(|| Error::Dtype { what: what.to_owned(), dtype: form.dtype, advice })
}

/// The first part of a sample.
fn first(x: &Tensor, batch: &Batch) -> Result<Tensor, Error> {
    x.narrow(0, 0, batch.cut.most()).map_err(Error::candle("the sample"))
}

fn first_targets(y: &Tensor, batch: &Batch) -> Result<Tensor, Error> {
    let rows = batch.of_part().1.and_then(|targets| targets.dims.first().copied()).unwrap_or(0);
    y.narrow(0, 0, rows).map_err(Error::candle("the sample's targets"))
}
