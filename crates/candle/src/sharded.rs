//! The builder: blocks, the loss, where weights begin, and what is declared of them.
//!
//! Law: nothing runs before [`Sharded::shard`], which tries every block on a sample first. Patterns are those of the
//! configuration: `*` stands for any characters, dots too, and `?` for one.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use candle_core::{DType, Tensor};
use candle_nn::{VarBuilder, VarMap};
use warpweft::compute::{ComputeError, Seat};
use warpweft::config::{Config, WeightRule};
use warpweft::format::{ElementType, Format, Orientation};
use warpweft::id::WeightId;
use warpweft::model::Model;
use warpweft::session::Session;
use warpweft_blocks::{Block as Declared, Blocks, Flow, Jobs};

use crate::batch::{Batch, Part};
use crate::blocks::{Block, Loss, LossOf};
use crate::entry::Entry;
use crate::model::ShardedModel;
use crate::probe::{Found, Trial};
use crate::rank::Rank;
use crate::record::{Requested, first_values};
use crate::settings::Settings;
use crate::shared::{Shape, Shared};
use crate::source::{Source, Start};
use crate::{EVALUATE, Error, PREDICT, TRAIN, dropout};

/// Where ranks compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Devices {
    /// On this machine's CPU.
    #[non_exhaustive]
    Cpu {
        /// How many ranks.
        ranks: u32,
    },
}

impl Devices {
    /// So many ranks on this machine's CPU.
    #[must_use]
    pub const fn cpu(ranks: u32) -> Self {
        Self::Cpu { ranks }
    }
}

/// A model to be sharded, block by block.
#[must_use = "a model is sharded by `shard`"]
pub struct Sharded {
    config: Config,
    blocks: Vec<Block>,
    numbered: usize,
    loss: Option<LossOf>,
    dtype: DType,
    seed: u64,
    from: Start,
    buffers: Vec<String>,
    drawn: Vec<String>,
    unused: Vec<String>,
    recompute: Vec<String>,
    micro_batches: u32,
    accumulates: bool,
    evaluation: Option<(Tensor, Tensor)>,
    prediction: Option<Tensor>,
}

impl std::fmt::Debug for Sharded {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let blocks: Vec<&str> = self.blocks.iter().map(|block| block.name.as_str()).collect();
        formatter.debug_struct("Sharded").field("blocks", &blocks).finish_non_exhaustive()
    }
}

impl Sharded {
    /// A model without blocks, trained as a [`Config`] or candle's `ParamsAdamW` says.
    pub fn new(settings: impl Into<Settings>) -> Self {
        Self {
            config: settings.into().config,
            blocks: Vec::new(),
            numbered: 0,
            loss: None,
            dtype: DType::F32,
            seed: 0,
            from: Start::Draws,
            buffers: Vec::new(),
            drawn: Vec::new(),
            unused: Vec::new(),
            recompute: Vec::new(),
            micro_batches: 1,
            accumulates: false,
            evaluation: None,
            prediction: None,
        }
    }

    /// Adds a block: `constructor` takes weights from the builder, by their whole names, and returns the closure that
    /// computes. It is called on every rank, and must request the same tensors each time. A block is at most one layer
    /// of the model, because all its weights are gathered together.
    pub fn block<C, F>(mut self, name: &str, constructor: C) -> Self
    where
        C: Fn(VarBuilder<'static>) -> candle_core::Result<F> + Send + Sync + 'static,
        F: Fn(&Tensor) -> candle_core::Result<Tensor> + 'static,
    {
        self.blocks.push(Block::new(name.to_owned(), constructor));
        self
    }

    /// Adds `count` blocks called `blocks.0`, `blocks.1` and so on, whose constructor is told which it makes, from 0
    /// on. A second call goes on counting names where the first ended.
    pub fn blocks<C, F>(mut self, count: usize, constructor: C) -> Self
    where
        C: Fn(usize, VarBuilder<'static>) -> candle_core::Result<F> + Send + Sync + 'static,
        F: Fn(&Tensor) -> candle_core::Result<Tensor> + 'static,
    {
        let constructor = Arc::new(constructor);
        for number in 0..count {
            let constructor = Arc::clone(&constructor);
            let name = format!("blocks.{}", self.numbered);
            self.blocks.push(Block::new(name, move |vb: VarBuilder<'static>| constructor(number, vb)));
            self.numbered += 1;
        }
        self
    }

    /// The loss of the last block's output against the targets: a scalar mean, or a scalar sum and its weight.
    pub fn loss<L, R>(mut self, loss: L) -> Self
    where
        L: Fn(&Tensor, &Tensor) -> candle_core::Result<R> + Send + Sync + 'static,
        R: Into<Loss>,
    {
        self.loss = Some(Arc::new(move |logits, targets| loss(logits, targets).map(Into::into)));
        self
    }

    /// The dtype of the builder that constructors get, F32 unless said.
    pub const fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// The seed of draws and dropouts, 0 unless said.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Weights begin as those of a `VarMap`; what it does not have begins as its `Init` says.
    pub fn from_var_map(mut self, map: &VarMap) -> Self {
        let vars = map.data().lock().unwrap_or_else(PoisonError::into_inner);
        let tensors = vars.iter().map(|(name, var)| (name.clone(), var.as_detached_tensor()));
        self.from = Start::Tensors(tensors.collect());
        drop(vars);
        self
    }

    /// Weights begin as those of a model's folder, as the Hugging Face hub lays it out, by the same names. One that is
    /// not there is an error, unless it is to be [drawn](Sharded::drawn).
    pub fn from_folder(mut self, folder: impl AsRef<Path>) -> Self {
        self.from = Start::Folder(folder.as_ref().to_owned());
        self
    }

    /// Weights that the folder need not have begin as their `Init` says: adapters, a new head.
    pub fn drawn(mut self, pattern: &str) -> Self {
        self.drawn.push(pattern.to_owned());
        self
    }

    /// Matrices of these names are gathered in `format`, F32 unless said. A later call refines an earlier one.
    pub fn format(self, pattern: &str, format: Format) -> Self {
        self.rule(WeightRule { pattern: pattern.to_owned(), format: Some(format), ..WeightRule::default() })
    }

    /// Weights of these names stay as they are.
    pub fn freeze(self, pattern: &str) -> Self {
        self.rule(WeightRule { pattern: pattern.to_owned(), frozen: Some(true), ..WeightRule::default() })
    }

    fn rule(mut self, rule: WeightRule) -> Self {
        self.config.weights.push(rule);
        self
    }

    /// Tensors of these names are no weights: every rank has all of them, and they stay as they are. Integers are
    /// buffers by themselves.
    pub fn buffer(mut self, pattern: &str) -> Self {
        self.buffers.push(pattern.to_owned());
        self
    }

    /// Weights of these names, or inputs of blocks of these names, need not get a gradient in every step.
    pub fn may_be_unused(mut self, pattern: &str) -> Self {
        self.unused.push(pattern.to_owned());
        self
    }

    /// Blocks of these names do not keep their graph; backward computes them again from their input.
    pub fn recompute(mut self, pattern: &str) -> Self {
        self.recompute.push(pattern.to_owned());
        self
    }

    /// Each rank computes its part of a batch in so many parts, one after the other.
    pub const fn micro_batches(mut self, count: u32) -> Self {
        self.micro_batches = count;
        self
    }

    /// Allows [`ShardedModel::step_over`] several batches.
    pub const fn accumulating(mut self) -> Self {
        self.accumulates = true;
        self
    }

    /// The form of batches that are evaluated, if it is not that of those that train.
    pub fn evaluation(mut self, (x, y): (&Tensor, &Tensor)) -> Self {
        self.evaluation = Some((x.clone(), y.clone()));
        self
    }

    /// Allows [`ShardedModel::predict`] of inputs of this form.
    pub fn prediction(mut self, x: &Tensor) -> Self {
        self.prediction = Some(x.clone());
        self
    }

    /// Tries all blocks on a sample of the whole batch, over all ranks and micro-batches, and starts the ranks.
    ///
    /// # Errors
    /// [`Error`], with the block and the tensor: what a constructor or a closure says, a gradient that does not arrive,
    /// outputs and batches of other forms; and what the library says of configuration, formats and ranks.
    pub async fn shard(self, devices: Devices, (x, y): (&Tensor, &Tensor)) -> Result<ShardedModel, Error> {
        let Devices::Cpu { ranks } = devices;
        let micro_batches = self.micro_batches.max(1);
        let cut = (ranks.max(1) as usize, micro_batches as usize);
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
        let found = self.trial(&source, &loss).run(&samples, &targets)?;
        let (model, ids) = self.model(&found.entries)?;
        let (programs, jobs) = self.programs(&model, &ids, &found, &batches, micro_batches)?;
        let (sums, shared) = (found.sums, Arc::new(self.shared(&source, loss, found, &batches)?));

        let for_ranks = Arc::clone(&shared);
        let compute = move |seat: Seat| {
            let rank = Rank::new(Arc::clone(&for_ranks), seat.rank).map_err(ComputeError::closure)?;
            Ok(warpweft_blocks::compute(jobs.clone(), rank))
        };
        let builder = Session::try_builder(self.config, compute);
        let builder = programs.into_iter().fold(builder, |builder, program| builder.program(program));
        let entries: HashMap<String, Entry> =
            shared.entries.iter().map(|entry| (entry.name.clone(), entry.clone())).collect();
        let fill = move |rows: warpweft::session::initial::MasterRows<'_>, values: &mut [f32]| {
            let Some(entry) = entries.get(rows.weight) else {
                return Err(format!("no block requests `{}`", rows.weight));
            };
            source.fill(entry, rows.first_row, values).map_err(|error| error.to_string())
        };
        let session = builder.try_initialize(fill).start_cpu(ranks).await?;
        Ok(ShardedModel::new(session, shared, batches, sums))
    }

    fn trial<'a>(&'a self, source: &Arc<Source>, loss: &'a LossOf) -> Trial<'a> {
        Trial {
            blocks: &self.blocks,
            loss,
            dtype: self.dtype,
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
        found: &Found,
        batches: &[Batch],
        micro_batches: u32,
    ) -> Result<(Vec<warpweft::model::StepProgram>, Vec<Jobs>), Error> {
        let (mut programs, mut jobs) = (Vec::new(), Vec::new());
        for (batch, forms) in batches.iter().zip(&found.forms) {
            let (input, targets) = batch.of_part();
            let targets =
                targets.as_ref().map_or(Ok(Flow::f32(1)), |targets| flow(targets, "the targets"))?;
            let mut blocks = Blocks::new(flow(&input, "the input")?, targets);
            blocks.every("part", Flow { elements: Part::WORDS, element: ElementType::U32 });
            let scalar = |name: &str| (name.to_owned(), Flow::f32(1));
            blocks.outputs(vec![scalar("loss_sum"), scalar("loss_weight")]);
            for (((block, requested), info), form) in
                self.blocks.iter().zip(&found.requested).zip(&found.blocks).zip(&forms[1..])
            {
                let weights = weights_of(requested, ids);
                let mut declared = Declared::new(&block.name, weights, flow(form, &block.name)?);
                declared.keeps = !info.recomputes;
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
        found: Found,
        batches: &[Batch],
    ) -> Result<Shared, Error> {
        let mut buffers = HashMap::new();
        for (number, entry) in found.entries.iter().enumerate() {
            if entry.is_buffer() && !dropout::is_state(&entry.name) {
                let first = first_values(entry, source).map_err(Error::candle(&entry.name))?;
                buffers.insert(number, first.tensor().clone());
            }
        }
        let shape = |(batch, forms): (&Batch, Vec<_>)| {
            let (input, targets) = batch.of_part();
            let shape = Shape { samples: batch.most(), forms, targets: targets.unwrap_or(input) };
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
    x.narrow(0, 0, batch.most()).map_err(Error::candle("the sample"))
}

fn first_targets(y: &Tensor, batch: &Batch) -> Result<Tensor, Error> {
    let rows = batch.of_part().1.and_then(|targets| targets.dims.first().copied()).unwrap_or(0);
    y.narrow(0, 0, rows).map_err(Error::candle("the sample's targets"))
}
