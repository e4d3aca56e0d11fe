//! A sharded model: steps, evaluation, prediction, and its weights as a module of burn.
//!
//! Law: whole batches go in, one loss comes out, whatever the number of ranks, micro-batches and accumulated steps:
//! Σ sum / Σ weight over all of them. The session below is the user's to use, between steps.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Tensor, TensorData};
use warpweft::id::RankId;
use warpweft::session::{Session, StepReport};
use warpweft_blocks::{Part, padded};

use crate::batch::{Batch, Shape};
use crate::blocks::{Logits, Loss, guarded};
use crate::entry::{Entry, Kind};
use crate::module::{locked, put};
use crate::probe::BlockInfo;
use crate::rank::scalar;
use crate::shared::{Shared, beside};
use crate::tensors::sealed::Place;
use crate::tensors::{Inputs, one};
use crate::values::{self, narrowed};
use crate::{EVALUATE, Error, PREDICT, TRAIN};

/// A module whose weights are sharded over ranks.
#[derive(Debug)]
pub struct ShardedModel<M> {
    session: Session,
    shared: Arc<Shared<M>>,
    shapes: Vec<Shape>,
    /// Does the loss give a sum with its weight?
    sums: bool,
    /// Batches trained on so far.
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
    /// What the session reports; of several batches, of the last.
    pub session: StepReport,
}

impl<M: Module + 'static> ShardedModel<M> {
    pub(crate) const fn new(
        session: Session,
        shared: Arc<Shared<M>>,
        shapes: Vec<Shape>,
        sums: bool,
    ) -> Self {
        Self { session, shared, shapes, sums, calls: 0, of_main_grads: 1.0 }
    }

    /// Trains on a batch, cut along dimension 0 over ranks and micro-batches. It may have fewer samples than the
    /// sample's, and otherwise has its form.
    ///
    /// # Errors
    /// [`Error::Batch`] for another form; [`Error::Session`] with the block's name when a block failed or the loss is
    /// not finite: no weight changed then, and the model goes on.
    pub async fn step(&mut self, batch: impl Into<Batch>) -> Result<Report, Error> {
        self.step_of(vec![batch.into()]).await
    }

    /// Trains on several batches in one step of the optimizer.
    ///
    /// # Errors
    /// As [`ShardedModel::step`]; [`Error::Undeclared`] for several batches unless the model is
    /// [accumulating](crate::Sharded::accumulating), and for none.
    pub async fn step_over(
        &mut self,
        batches: impl IntoIterator<Item: Into<Batch>>,
    ) -> Result<Report, Error> {
        self.step_of(batches.into_iter().map(Into::into).collect()).await
    }

    async fn step_of(&mut self, batches: Vec<Batch>) -> Result<Report, Error> {
        let mut weights = Vec::new();
        for batch in &batches {
            weights.push(self.weights(batch)?);
        }
        let total = weights.iter().flatten().map(|weight| f64::from(*weight)).sum();
        counts(total)?;
        // What a step that failed or was dropped left of its sum.
        self.session.discard_gradients().await?;
        self.of_main_grads = batches.len() as f32 * self.session.loss_scale();
        let (mut sum, mut last) = (0.0, None);
        for (number, (batch, weights)) in batches.iter().zip(&weights).enumerate() {
            let scale = (self.shape(TRAIN)?.cut.parts() * batches.len()) as f64 / total;
            self.write(TRAIN, batch, weights, scale)?;
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
        Ok(Report { loss: (sum / total) as f32, session })
    }

    /// The loss of a batch; nothing is trained, and nothing is dropped out.
    ///
    /// # Errors
    /// As [`ShardedModel::step`].
    pub async fn evaluate(&mut self, batch: impl Into<Batch>) -> Result<f32, Error> {
        let parts = self.shape(EVALUATE)?.cut.parts();
        self.write(EVALUATE, &batch.into(), &vec![1.0; parts], 1.0)?;
        let report = self.session.step(EVALUATE).await?;
        let (sum, weight) = self.sums_of(&report)?;
        counts(weight)?;
        Ok((sum / weight) as f32)
    }

    /// The last block's output for an input of at most as many samples as that of
    /// [`Sharded::prediction`](crate::Sharded::prediction), of rank `D`.
    ///
    /// # Errors
    /// As [`ShardedModel::step`]; [`Error::Undeclared`] without such an input, and for another rank.
    pub async fn predict<const D: usize>(&mut self, x: impl Inputs) -> Result<Tensor<D>, Error> {
        let (cut, batch) = (self.shape(PREDICT)?.cut, Batch::inputs(x));
        self.write(PREDICT, &batch, &vec![1.0; cut.parts()], 1.0)?;
        let report = self.session.step(PREDICT).await?;
        let samples = self.shape(PREDICT)?.check(&batch)?;
        let in_burn = |reason| Error::burn("the prediction")(reason);
        let name =
            self.shared.blocks.last().map_or_else(String::new, |block| format!("{}.output", block.name));
        let whole = self.shared.programs.get(PREDICT).and_then(|parts| parts.forms.last().cloned());
        let mut outputs = Vec::new();
        for (rank, (_, samples)) in cut.of(samples).into_iter().enumerate() {
            let form = whole.as_ref().and_then(|whole| match samples == cut.most() {
                true => Some(whole.clone()),
                false => whole.part(samples, cut.most()),
            });
            let Some(form) = form.filter(|_| samples > 0) else { continue };
            let data = values::data(report.output_bytes(RankId::at(rank), &name)?, &form).map_err(in_burn)?;
            let place = Place { device: &self.shared.device, tracks: false };
            outputs.push(one::<Tensor<D>>(Some(data), "a prediction", place).map_err(in_burn)?.0);
        }
        Ok(Tensor::cat(outputs, 0))
    }

    /// All tensors of the module, in its order.
    #[must_use]
    pub fn tensors(&self) -> &[Entry] {
        &self.shared.known.entries
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

    /// The module with its weights as they are now, on one rank and on the device that it came from. burn writes it to
    /// files, as any. Values of a frozen weight in a quantized format are what its blocks computed with.
    ///
    /// # Errors
    /// What the session says of its export.
    pub async fn module(&mut self) -> Result<M, Error> {
        let checkpoint = self.session.export().await?;
        let mut all: HashMap<usize, TensorData> = self.shared.unread.clone();
        for (number, entry) in self.shared.known.entries.iter().enumerate() {
            let Some(weight) = checkpoint.weight(&entry.name) else { continue };
            let values = weight.values().map_err(|error| Error::Undeclared {
                what: format!("`{}`: {error}", entry.name),
                advice: "its values are in the files that it came from",
            })?;
            all.insert(number, TensorData::new(values.to_vec(), entry.shape.clone()));
        }
        let Shared { shell, known, device, autodiff, .. } = &*self.shared;
        Ok(put(&*locked(shell), (known, device, *autodiff), all))
    }

    /// The gradient of a weight in the last step: that of its report's loss, not clipped.
    ///
    /// # Errors
    /// [`Error::NoGradient`] for a frozen weight, a buffer, or a path that the module does not have; what the session
    /// says.
    pub async fn gradient(&mut self, name: &str) -> Result<TensorData, Error> {
        let refuse = |reason: String| Error::NoGradient { tensor: name.to_owned(), reason };
        let entry = self.shared.known.entries.iter().find(|entry| entry.name == name);
        let entry = entry
            .ok_or_else(|| refuse("the module has none; `ShardedModel::tensors` lists all".to_owned()))?;
        match entry.kind {
            Kind::Trained => {}
            Kind::Frozen if entry.blocks.is_empty() => return Err(refuse("no block reads it".to_owned())),
            Kind::Frozen => {
                let blocks = entry.blocks.join("`, `");
                return Err(refuse(format!("it is frozen, so block `{blocks}` computes no gradient of it")));
            }
            Kind::Buffer => return Err(refuse("it is a buffer, which has no gradient".to_owned())),
        }
        let (_, columns) = entry.matrix();
        let mut values = vec![0.0; entry.elements()];
        for part in self.session.main_grads().await?.into_iter().filter(|part| part.weight == name) {
            let begin = part.rows.begin * columns;
            if let Some(rows) = values.get_mut(begin..begin + part.values.len()) {
                rows.iter_mut().zip(&part.values).for_each(|(row, value)| *row = value / self.of_main_grads);
            }
        }
        Ok(TensorData::new(values, entry.shape.clone()))
    }

    /// Ends the session.
    ///
    /// # Errors
    /// What the session says.
    pub async fn close(self) -> Result<(), Error> {
        Ok(self.session.close().await?)
    }

    fn shape(&self, program: &str) -> Result<&Shape, Error> {
        self.shapes.iter().find(|shape| shape.program == program).ok_or_else(|| Error::Undeclared {
            what: format!("the model has no program `{program}`"),
            advice: "declare a sample of its input by `Sharded::prediction`",
        })
    }

    /// What the loss of each part of a batch is divided by.
    fn weights(&self, batch: &Batch) -> Result<Vec<f32>, Error> {
        let shape = self.shape(TRAIN)?;
        let samples = shape.check(batch)?;
        let parts = shape.cut.of(samples);
        let of_loss = batch.targets.as_ref().zip(self.shared.programs.get(TRAIN)).filter(|_| self.sums);
        let Some((y, programs)) = of_loss else {
            return Ok(parts.into_iter().map(|(_, count)| count as f32).collect());
        };
        // It follows from the targets alone, so any logits will do; a rank compares.
        let each = y.shape().to_vec().first().copied().unwrap_or(0) / samples;
        let weight = |(begin, count): (usize, usize)| {
            let whole = programs.forms.last();
            let form = match count == shape.cut.most() {
                true => whole.cloned(),
                false => whole.and_then(|form| form.part(count, shape.cut.most())),
            };
            let Some(form) = form.filter(|_| count > 0) else { return Ok(0.0) };
            let loss = guarded("loss", || {
                let place = Place { device: &self.shared.device, tracks: false };
                let y = narrowed(y, (begin * each, (begin + count) * each))?;
                Ok((self.shared.loss)(Logits::Values(form.zeros()?, place), y)?.loss)
            })?;
            match loss {
                Loss::Mean(_) => Ok(count as f32),
                Loss::Sum { weight, .. } => scalar(&weight).map_err(Error::burn("the loss's weight")),
            }
        };
        parts.into_iter().map(weight).collect()
    }

    /// Writes the inputs of a program. The loss of a part counts `weight × scale` of a mean, and `scale` of a sum.
    fn write(
        &mut self,
        program: &'static str,
        batch: &Batch,
        weights: &[f32],
        scale: f64,
    ) -> Result<(), Error> {
        let shape = self.shape(program)?.clone();
        let samples = shape.check(batch)?;
        let parts = shape.cut.of(samples);
        for rank in self.session.own_ranks() {
            let first = rank.index() * shape.cut.micro_batches;
            let of_rank = &parts[first..first + shape.cut.micro_batches];
            let mut words = Vec::new();
            for ((_, count), weight) in of_rank.iter().zip(&weights[first..]) {
                let scale = if self.sums { scale } else { scale * f64::from(*weight) };
                let (scale, weight, step) = (scale as f32, *weight, self.calls);
                words.extend(Part { samples: *count, scale, weight, step }.words());
            }
            self.session.write_input(program, rank, "part", &words)?;
            let names = ["input".to_owned()].into_iter().chain((0..).map(beside));
            let inputs = shape.inputs.iter().zip(&batch.inputs).zip(names);
            let targets = shape.targets.iter().zip(&batch.targets).zip(["targets".to_owned()]);
            for ((form, data), name) in inputs.chain(targets) {
                let bytes = padded(data.as_bytes(), samples, of_rank, shape.of_part(form).bytes());
                self.session.write_input_bytes(program, rank, &name, &bytes)?;
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
