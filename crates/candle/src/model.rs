//! A sharded model: steps, evaluation, prediction, and its tensors as candle has them.
//!
//! Law: whole batches go in, one loss comes out, whatever the number of ranks, micro-batches and accumulated steps:
//! Σ sum / Σ weight over all of them. The session below is the user's to use, between steps.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use candle_core::{Device, Tensor, Var};
use candle_nn::VarMap;
use warpweft::id::RankId;
use warpweft::session::{Session, StepReport};
use warpweft_blocks::{Part, padded};

use crate::batch::Batch;
use crate::blocks::{Loss, guarded};
use crate::entry::{Entry, Kind};
use crate::probe::BlockInfo;
use crate::shared::Shared;
use crate::values::{self, Form, with_bytes};
use crate::{EVALUATE, Error, PREDICT, TRAIN};

/// A model whose weights are sharded over ranks.
#[derive(Debug)]
pub struct ShardedModel {
    session: Session,
    shared: Arc<Shared>,
    batches: Vec<Batch>,
    /// Does the loss give a sum with its weight?
    sums: bool,
    /// Batches trained on so far, which the masks of dropouts follow.
    calls: u32,
    /// How many times the gradient of the last step's loss its main grads are: batches, times the loss scale.
    of_main_grads: f32,
}

/// The report of a step.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The loss of all batches of the step, before its update.
    pub loss: f32,
    /// Blocks that are built anew for every call ([`BlockInfo::rebuilt`]).
    pub rebuilt: Vec<String>,
    /// What the session reports; of several batches, of the last.
    pub session: StepReport,
}

/// A batch and its targets.
pub(crate) type Pair<'a> = (&'a Tensor, &'a Tensor);

impl ShardedModel {
    pub(crate) const fn new(session: Session, shared: Arc<Shared>, batches: Vec<Batch>, sums: bool) -> Self {
        Self { session, shared, batches, sums, calls: 0, of_main_grads: 1.0 }
    }

    /// Trains on a batch, cut along dimension 0 over ranks and micro-batches. It may be on any device and have fewer
    /// samples than the sample's, and otherwise has its form.
    ///
    /// # Errors
    /// [`Error::Batch`] for another form; [`Error::Session`] with the block's name when a block failed or the loss is
    /// not finite: no weight changed then, and the model goes on.
    pub async fn step(&mut self, batch: Pair<'_>) -> Result<Report, Error> {
        self.step_over(&[batch]).await
    }

    /// Trains on several batches in one step of the optimizer.
    ///
    /// # Errors
    /// As [`ShardedModel::step`]; [`Error::Undeclared`] for several batches unless the model is
    /// [accumulating](crate::Sharded::accumulating), and for none.
    pub async fn step_over(&mut self, batches: &[Pair<'_>]) -> Result<Report, Error> {
        let mut weights = Vec::new();
        for batch in batches {
            weights.push(self.weights(*batch)?);
        }
        let total = weights.iter().flatten().map(|weight| f64::from(*weight)).sum();
        counts(total)?;
        // What a step that failed or was dropped left of its sum.
        self.session.discard_gradients().await?;
        self.of_main_grads = batches.len() as f32 * self.session.loss_scale();
        let (mut sum, mut last) = (0.0, None);
        for (number, ((x, y), weights)) in batches.iter().zip(&weights).enumerate() {
            let scale = (self.batch(TRAIN)?.cut.parts() * batches.len()) as f64 / total;
            self.write(TRAIN, (x, Some(y)), weights, scale)?;
            self.calls = self.calls.wrapping_add(1);
            let report = match number + 1 == batches.len() {
                true => self.session.step(TRAIN).await?,
                false => self.session.accumulate(TRAIN).await?,
            };
            sum += self.sums_of(&report)?.0;
            last = Some(report);
        }
        let session = last.ok_or_else(|| Error::Undeclared {
            what: "a step over no batch".to_owned(),
            advice: "give it at least one",
        })?;
        let rebuilt = self.shared.found.iter().filter(|block| block.rebuilt).map(|block| block.name.clone());
        Ok(Report { loss: (sum / total) as f32, rebuilt: rebuilt.collect(), session })
    }

    /// The loss of a batch; nothing is trained.
    ///
    /// # Errors
    /// As [`ShardedModel::step`].
    pub async fn evaluate(&mut self, (x, y): Pair<'_>) -> Result<f32, Error> {
        let parts = self.batch(EVALUATE)?.cut.parts();
        self.write(EVALUATE, (x, Some(y)), &vec![1.0; parts], 1.0)?;
        let report = self.session.step(EVALUATE).await?;
        let (sum, weight) = self.sums_of(&report)?;
        counts(weight)?;
        Ok((sum / weight) as f32)
    }

    /// The last block's output for an input of at most as many samples as that of
    /// [`Sharded::prediction`](crate::Sharded::prediction).
    ///
    /// # Errors
    /// As [`ShardedModel::step`]; [`Error::Undeclared`] without such an input.
    pub async fn predict(&mut self, x: &Tensor) -> Result<Tensor, Error> {
        let parts = self.batch(PREDICT)?.cut.parts();
        self.write(PREDICT, (x, None), &vec![1.0; parts], 1.0)?;
        let report = self.session.step(PREDICT).await?;
        let batch = self.batch(PREDICT)?;
        let name =
            self.shared.blocks.last().map_or_else(String::new, |block| format!("{}.output", block.name));
        let whole = self.shared.programs.get(PREDICT).and_then(|shape| shape.forms.last().cloned());
        let mut outputs = Vec::new();
        for (rank, (_, samples)) in batch.cut.of(x.dim(0).unwrap_or(0)).into_iter().enumerate() {
            let form = whole.as_ref().and_then(|whole| match samples == batch.cut.most() {
                true => Some(whole.clone()),
                false => whole.part(samples, batch.cut.most()),
            });
            let Some(form) = form.filter(|_| samples > 0) else { continue };
            let bytes = report.output_bytes(RankId::at(rank), &name)?;
            outputs.push(values::tensor(bytes, &form, false).map_err(Error::candle("the prediction"))?);
        }
        Tensor::cat(&outputs, 0).map_err(Error::candle("the prediction"))
    }

    /// All tensors that blocks request, in the order in which they first did.
    #[must_use]
    pub fn tensors(&self) -> &[Entry] {
        &self.shared.entries
    }

    /// The blocks, as the sample step found them.
    #[must_use]
    pub fn blocks(&self) -> &[BlockInfo] {
        &self.shared.found
    }

    /// The session, for learning rates, checkpoints, plans and traces. Its programs are `train`, `evaluate` and
    /// `predict`; their inputs are this model's to write.
    pub const fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// The values of all weights and buffers, on one rank, by name.
    ///
    /// # Errors
    /// What the session says of its export.
    pub async fn export(&mut self) -> Result<HashMap<String, Tensor>, Error> {
        let checkpoint = self.session.export().await?;
        let mut all = HashMap::new();
        for (number, entry) in self.shared.entries.iter().enumerate() {
            let in_candle = Error::candle(&entry.name);
            let tensor = match (self.shared.buffers.get(&number), checkpoint.weight(&entry.name)) {
                (Some(buffer), _) => buffer.clone(),
                (None, Some(weight)) => {
                    let values = weight.values().map_err(|error| Error::Undeclared {
                        what: format!("`{}`: {error}", entry.name),
                        advice: "its values are in the files that it came from",
                    })?;
                    let tensor = Tensor::from_slice(&values, entry.shape.as_slice(), &Device::Cpu);
                    tensor.and_then(|tensor| tensor.to_dtype(entry.dtype)).map_err(in_candle)?
                }
                // A dropout's place.
                (None, None) => continue,
            };
            all.insert(entry.name.clone(), tensor);
        }
        Ok(all)
    }

    /// Puts all values into a `VarMap`: into the variables that it has, and else into new ones.
    ///
    /// # Errors
    /// As [`ShardedModel::export`]; candle's, of a variable of another shape.
    pub async fn export_into(&mut self, map: &VarMap) -> Result<(), Error> {
        let all = self.export().await?;
        let mut vars = map.data().lock().unwrap_or_else(PoisonError::into_inner);
        // All or nothing.
        for (name, tensor) in &all {
            if let Some(var) = vars.get(name).filter(|var| var.shape() != tensor.shape()) {
                return Err(Error::Undeclared {
                    what: format!(
                        "variable `{name}` is of shape {:?}, and the weight of {:?}",
                        var.dims(),
                        tensor.dims()
                    ),
                    advice: "give an empty VarMap, or one of the same model; none of its variables changed",
                });
            }
        }
        for (name, tensor) in all {
            let done = match vars.get(&name) {
                Some(var) => tensor.to_dtype(var.dtype()).and_then(|tensor| var.set(&tensor)),
                None => Var::from_tensor(&tensor).map(|var| drop(vars.insert(name.clone(), var))),
            };
            done.map_err(Error::candle(&name))?;
        }
        Ok(())
    }

    /// Writes all values to `model.safetensors` in a folder, which candle alone loads by the same names. Those of a
    /// frozen weight in a quantized format are what its blocks computed with.
    ///
    /// # Errors
    /// As [`ShardedModel::export`]; candle's, of the file.
    pub async fn save(&mut self, folder: impl AsRef<Path>) -> Result<(), Error> {
        let (all, file) = (self.export().await?, folder.as_ref().join("model.safetensors"));
        let index = folder.as_ref().join("model.safetensors.index.json");
        if index.exists() {
            return Err(Error::Undeclared {
                what: format!(
                    "{} lists the files of another model, which loaders would prefer",
                    index.display()
                ),
                advice: "save into an empty folder",
            });
        }
        std::fs::create_dir_all(&folder)
            .map_err(|error| Error::candle(&file.display().to_string())(error.into()))?;
        candle_core::safetensors::save(&all, &file).map_err(Error::candle(&file.display().to_string()))
    }

    /// The gradient of a weight in the last step: that of its report's loss, not clipped.
    ///
    /// # Errors
    /// [`Error::NoGradient`] for a frozen weight, a buffer, or a name that no block requests; what the session says.
    pub async fn gradient(&mut self, name: &str) -> Result<Tensor, Error> {
        let refuse = |reason: String| Error::NoGradient { tensor: name.to_owned(), reason };
        let entry = self.shared.entries.iter().find(|entry| entry.name == name);
        let entry = entry
            .ok_or_else(|| refuse("no block requests it; `ShardedModel::tensors` lists all".to_owned()))?;
        let blocks = entry.blocks.join("`, `");
        match entry.kind {
            Kind::Trained => {}
            Kind::Frozen => {
                return Err(refuse(format!("it is frozen, so block `{blocks}` computes no gradient of it")));
            }
            Kind::Buffer => {
                return Err(refuse(format!("it is a buffer of block `{blocks}`, which has no gradient")));
            }
        }
        let (_, columns) = entry.matrix();
        let mut values = vec![0.0; entry.elements()];
        for part in self.session.main_grads().await?.into_iter().filter(|part| part.weight == name) {
            let begin = part.rows.begin * columns;
            if let Some(rows) = values.get_mut(begin..begin + part.values.len()) {
                rows.iter_mut().zip(&part.values).for_each(|(row, value)| *row = value / self.of_main_grads);
            }
        }
        Tensor::from_vec(values, entry.shape.as_slice(), &Device::Cpu).map_err(Error::candle(name))
    }

    /// Ends the session.
    ///
    /// # Errors
    /// What the session says.
    pub async fn close(self) -> Result<(), Error> {
        Ok(self.session.close().await?)
    }

    fn batch(&self, program: &str) -> Result<&Batch, Error> {
        self.batches.iter().find(|batch| batch.program == program).ok_or_else(|| Error::Undeclared {
            what: format!("the model has no program `{program}`"),
            advice: "declare a sample of its input by `Sharded::prediction`",
        })
    }

    /// What the loss of each part of a batch is divided by.
    fn weights(&self, (x, y): Pair<'_>) -> Result<Vec<f32>, Error> {
        let batch = self.batch(TRAIN)?;
        let samples = batch.check(x, Some(y))?;
        let cut = batch.cut.of(samples);
        if !self.sums {
            return Ok(cut.into_iter().map(|(_, count)| count as f32).collect());
        }
        // It follows from the targets alone, so any logits will do; a rank compares.
        let shape = self.shared.programs.get(TRAIN);
        let logits = shape.and_then(|shape| shape.forms.last()).cloned();
        let each = y.dim(0).map_err(Error::candle("the targets"))? / samples;
        let weight = |(begin, count): (usize, usize)| {
            let form = match count == batch.cut.most() {
                true => logits.clone(),
                false => logits.as_ref().and_then(|form| form.part(count, batch.cut.most())),
            };
            let Some(Form { dims, dtype }) = form.filter(|_| count > 0) else { return Ok(0.0) };
            let loss = guarded("loss", || {
                let logits = Tensor::zeros(dims, dtype, &Device::Cpu)?;
                let y = y.narrow(0, begin * each, count * each)?;
                (self.shared.loss)(&logits, &y.to_device(&Device::Cpu)?)
            })?;
            match loss {
                Loss::Mean(_) => Ok(count as f32),
                Loss::Sum { weight, .. } => {
                    crate::rank::scalar(&weight).map_err(Error::candle("the loss's weight"))
                }
            }
        };
        cut.into_iter().map(weight).collect()
    }

    /// Writes the inputs of a program. The loss of a part counts `weight × scale` of a mean, and `scale` of a sum.
    fn write(
        &mut self,
        program: &'static str,
        (x, y): (&Tensor, Option<&Tensor>),
        weights: &[f32],
        scale: f64,
    ) -> Result<(), Error> {
        let batch = self.batch(program)?.clone();
        let samples = batch.check(x, y)?;
        let cut = batch.cut.of(samples);
        let (input, targets) = batch.of_part();
        for rank in self.session.own_ranks() {
            let first = rank.index() * batch.cut.micro_batches;
            let of_rank = &cut[first..first + batch.cut.micro_batches];
            let mut words = Vec::new();
            for ((_, count), weight) in of_rank.iter().zip(&weights[first..]) {
                let scale = if self.sums { scale } else { scale * f64::from(*weight) };
                let (scale, weight, step) = (scale as f32, *weight, self.calls);
                words.extend(Part { samples: *count, scale, weight, step }.words());
            }
            self.session.write_input(program, rank, "part", &words)?;
            let room =
                |tensor: &Tensor, room| with_bytes(tensor, |bytes| padded(bytes, samples, of_rank, room));
            let bytes = room(x, input.bytes()).map_err(Error::candle("the batch"))?;
            self.session.write_input_bytes(program, rank, "input", &bytes)?;
            if let (Some(y), Some(targets)) = (y, &targets) {
                let bytes = room(y, targets.bytes()).map_err(Error::candle("the batch"))?;
                self.session.write_input_bytes(program, rank, "targets", &bytes)?;
            }
        }
        Ok(())
    }

    /// Sum and weight of the loss over all parts.
    fn sums_of(&self, report: &StepReport) -> Result<(f64, f64), Error> {
        let over_ranks = |buffer: &str| -> Result<f64, Error> {
            let mut sum = 0.0;
            for rank in 0..self.session.ranks() {
                let parts = report.output::<f32>(RankId::new(rank), buffer)?;
                sum += parts.into_iter().map(f64::from).sum::<f64>();
            }
            Ok(sum)
        };
        Ok((over_ranks("loss_sum")?, over_ranks("loss_weight")?))
    }
}

/// A loss is divided by its weight.
fn counts(weight: f64) -> Result<(), Error> {
    if weight > 0.0 {
        return Ok(());
    }
    Err(Error::Undeclared {
        what: format!("the loss has weight {weight}"),
        advice: "give at least one sample that counts",
    })
}
