//! The start of a sharded model: from declared blocks to a session whose calls run them.
//!
//! Law: every block is tried on a sample before anything starts, and what the sample does not bear starts nothing. What
//! a program is comes from `warpweft-blocks`; this file says which weights, flows and programs there are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::tensor::TensorData;
use warpweft::compute::Seat;
use warpweft::config::{Config, WeightRule};
use warpweft::format::{ElementType, Format, Orientation};
use warpweft::id::WeightId;
use warpweft::model::{Model, StepProgram};
use warpweft::session::Session;
use warpweft::session::initial::MasterRows;
use warpweft_base::pattern::pattern_matches;
use warpweft_blocks::{Block as Declared, Blocks, Flow, Jobs, Part};

use crate::batch::{Batch, Shape};
use crate::entry::{Entry, Kind};
use crate::model::ShardedModel;
use crate::module::{Shell, locked, taken};
use crate::probe::{Forms, Found, Trial};
use crate::rank::Rank;
use crate::sharded::{Devices, Sharded};
use crate::shared::{Parts, Shared, beside};
use crate::values::{Form, elements, in_f32, narrowed};
use crate::{EVALUATE, Error, PREDICT, TRAIN};

impl<M: Module + 'static> Sharded<M> {
    /// Tries all blocks on a sample of the whole batch, over all ranks and micro-batches, and starts the ranks.
    ///
    /// # Errors
    /// [`Error`], with the block and the tensor: what a closure says, a gradient that does not arrive, a weight that no
    /// block reads, outputs and batches of other forms; and what the library says of configuration, formats and ranks.
    pub async fn shard(self, devices: Devices, sample: impl Into<Batch>) -> Result<ShardedModel<M>, Error> {
        let Devices::Cpu { ranks } = devices;
        let (sample, config) = (sample.into(), self.config()?);
        if ranks == 0 || self.micro_batches == 0 {
            return Err(Error::Undeclared {
                what: format!("a model on {ranks} ranks in {} micro-batches", self.micro_batches),
                advice: "give at least one of each",
            });
        }
        if config.mesh.tp > 1 {
            return Err(Error::Undeclared {
                what: format!("mesh.tp = {} for blocks, which compute whole layers", config.mesh.tp),
                advice: "leave it at 1: each rank has samples of its own",
            });
        }
        let loss = self.loss.clone().ok_or_else(|| Error::Undeclared {
            what: "the model has no loss".to_owned(),
            advice: "say what it is by `Sharded::loss`",
        })?;
        let (shapes, samples, targets) = self.samples(&sample, ranks as usize)?;
        let Self {
            settings: _, module, blocks, unused, recompute, buffers, micro_batches, accumulates, ..
        } = self;
        let Shell { module, known, first, device, autodiff } = taken(module, &config, &buffers)?;
        let paths: Vec<String> = known.entries.iter().map(|entry| entry.name.clone()).collect();
        let names: Vec<String> = blocks.iter().map(|block| block.name.clone()).collect();
        let both = [paths.clone(), names.clone()].concat();
        every_pattern_matches("buffer", &buffers, &paths)?;
        every_pattern_matches("may_be_unused", &unused, &both)?;
        every_pattern_matches("recompute", &recompute, &names)?;

        let first = Arc::new(first);
        let trained = module.valid().train();
        let trial = Trial {
            blocks: &blocks,
            loss: &loss,
            module: &trained,
            device: &device,
            first: Arc::clone(&first),
            unused: &unused,
            recompute: &recompute,
        };
        let mut found = trial.run(known, &samples, &targets)?;
        drop(trained);
        leave_unread(&mut found, &unused)?;
        let (model, ids, config) = declared(&found.known.entries, config)?;
        let (programs, jobs) = programs((&model, &ids), &found, &shapes, (micro_batches, accumulates))?;
        let sums = found.sums;
        let unread = |(number, _): &(&usize, &TensorData)| found.known.entries[**number].blocks.is_empty();
        let unread = first.iter().filter(unread).map(|(number, data)| (*number, data.clone())).collect();
        let programs_of_parts = shapes.iter().zip(found.forms).map(parts).collect();
        let shared = Arc::new(Shared {
            blocks,
            found: found.blocks,
            reads: found.reads,
            known: found.known,
            unread,
            shell: Mutex::new(module),
            device,
            autodiff,
            loss,
            unused,
            programs: programs_of_parts,
        });

        let for_ranks = Arc::clone(&shared);
        let compute =
            move |_: Seat| Ok(warpweft_blocks::compute(jobs.clone(), Rank::new(Arc::clone(&for_ranks))));
        let builder = Session::try_builder(config, compute);
        let builder = programs.into_iter().fold(builder, |builder, program| builder.program(program));
        // Not after the start: the session keeps the closure.
        let source = Arc::new(Mutex::new(Some(Source::new(&shared.known.entries, first))));
        let of_closure = Arc::clone(&source);
        let fill = move |rows: MasterRows<'_>, values: &mut [f32]| match locked(&of_closure).as_ref() {
            Some(source) => source.fill(rows, values),
            None => Err(format!("the first values of `{}` were given up", rows.weight)),
        };
        let session = builder.try_initialize(fill).start_cpu(ranks).await?;
        locked(&source).take();
        Ok(ShardedModel::new(session, shared, shapes, sums))
    }

    /// The configuration, if nothing of burn's was refused.
    fn config(&self) -> Result<Config, Error> {
        if let Some(refused) = self.settings.refused {
            return Err(Error::Undeclared {
                what: format!("burn's optimizer is set to `{refused}`, which nothing here does"),
                advice: "leave it away; `Config`'s `optimizer.max_norm` clips by the norm of the whole gradient, and a \
                         custom optimizer of the library's does anything else",
            });
        }
        match self.settings.has_rate {
            true => Ok(self.settings.config.clone()),
            false => Err(Error::Undeclared {
                what: "burn's optimizers have no learning rate of their own".to_owned(),
                advice: "say it by `Sharded::learning_rate`",
            }),
        }
    }

    /// The shapes of all programs' batches, the first part of a sample of each, and its targets in training.
    #[expect(clippy::type_complexity, reason = "three lists, taken apart at once")]
    fn samples(
        &self,
        sample: &Batch,
        ranks: usize,
    ) -> Result<(Vec<Shape>, Vec<Vec<TensorData>>, TensorData), Error> {
        let evaluated = self.evaluation.as_ref().unwrap_or(sample);
        let mut shapes = vec![
            (Shape::of(TRAIN, sample, (ranks, self.micro_batches as usize))?, sample),
            (Shape::of(EVALUATE, evaluated, (ranks, 1))?, evaluated),
        ];
        if let Some(predicted) = &self.prediction {
            shapes.push((Shape::of(PREDICT, predicted, (ranks, 1))?, predicted));
        }
        let first = |shape: &Shape, data: &TensorData| {
            let rows = shape.of_part(&Form::of(data)).dims.first().copied().unwrap_or(0);
            narrowed(data, (0, rows)).map_err(Error::burn("the sample"))
        };
        let mut samples = Vec::new();
        for (shape, batch) in &shapes {
            let part = batch.inputs.iter().map(|data| first(shape, data));
            samples.push(part.collect::<Result<Vec<_>, Error>>()?);
        }
        let targets = sample.targets.as_ref().ok_or_else(|| Error::Undeclared {
            what: "the sample has no targets".to_owned(),
            advice: "give `(x, y)`",
        })?;
        let targets = first(&shapes[0].0, targets)?;
        Ok((shapes.into_iter().map(|(shape, _)| shape).collect(), samples, targets))
    }
}

/// The first values of weights, by their names.
struct Source {
    numbers: HashMap<String, usize>,
    first: Arc<HashMap<usize, TensorData>>,
}

impl Source {
    fn new(entries: &[Entry], first: Arc<HashMap<usize, TensorData>>) -> Self {
        let numbered = entries.iter().enumerate().map(|(number, entry)| (entry.name.clone(), number));
        Self { numbers: numbered.collect(), first }
    }

    fn fill(&self, rows: MasterRows<'_>, values: &mut [f32]) -> Result<(), String> {
        let found = self.numbers.get(rows.weight).and_then(|number| self.first.get(number));
        let whole = found.ok_or_else(|| format!("the module has no weight `{}`", rows.weight))?;
        let begin = rows.first_element();
        let part = in_f32(elements(whole, (begin, begin + values.len()))?)?;
        values.copy_from_slice(part.as_slice().map_err(|error| format!("{error:?}"))?);
        Ok(())
    }
}

/// A pattern for nothing is a name that was misspelt.
fn every_pattern_matches(call: &str, patterns: &[String], names: &[String]) -> Result<(), Error> {
    let is_for_nothing = |pattern: &&String| !names.iter().any(|name| pattern_matches(pattern, name));
    match patterns.iter().find(is_for_nothing) {
        None => Ok(()),
        Some(pattern) => Err(Error::Undeclared {
            what: format!("`{call}(\"{pattern}\")` matches nothing; there are `{}`", names.join("`, `")),
            advice: "write a name as it is there; `*` stands for any characters",
        }),
    }
}

/// A weight that no block reads stays as it is, if it is meant.
fn leave_unread(found: &mut Found, unused: &[String]) -> Result<(), Error> {
    for entry in &mut found.known.entries {
        if !entry.is_buffer() && entry.blocks.is_empty() {
            if !unused.iter().any(|pattern| pattern_matches(pattern, &entry.name)) {
                return Err(Error::Unread { weight: entry.name.clone() });
            }
            entry.kind = Kind::Frozen;
        }
    }
    Ok(())
}

/// Matrices are sharded, vectors replicated, unless a rule says otherwise. What the module has frozen is.
fn declared(
    entries: &[Entry],
    mut config: Config,
) -> Result<(Model, HashMap<usize, WeightId>, Config), Error> {
    let (mut model, mut ids) = (Model::builder(), HashMap::new());
    for (number, entry) in entries.iter().enumerate().filter(|(_, entry)| !entry.blocks.is_empty()) {
        let (rows, columns) = entry.matrix();
        let weight = match entry.shape.len() {
            0 | 1 => model.replicated(&entry.name, rows, columns)?,
            _ => model.sharded(&entry.name, rows, columns, Format::F32)?,
        };
        ids.insert(number, weight);
        if entry.kind == Kind::Frozen && config.weight_settings(&entry.name).frozen != Some(true) {
            let (pattern, frozen) = (entry.name.clone(), Some(true));
            config.weights.push(WeightRule { pattern, frozen, ..WeightRule::default() });
        }
    }
    Ok((config.apply_weight_rules(&model.build())?, ids, config))
}

/// All programs, and what their calls do.
fn programs(
    (model, ids): (&Model, &HashMap<usize, WeightId>),
    found: &Found,
    shapes: &[Shape],
    (micro_batches, accumulates): (u32, bool),
) -> Result<(Vec<StepProgram>, Vec<Jobs>), Error> {
    let (mut programs, mut jobs) = (Vec::new(), Vec::new());
    for (shape, forms) in shapes.iter().zip(&found.forms) {
        let of_part = |form: &Form, what: &str| flow(&shape.of_part(form), what);
        let targets = shape.targets.as_ref();
        let targets = targets.map_or(Ok(Flow::f32(1)), |targets| of_part(targets, "the targets"))?;
        let mut inputs = shape.inputs.iter();
        let input = inputs.next().map_or(Ok(Flow::f32(1)), |input| of_part(input, "the input"))?;
        let mut blocks = Blocks::new(input, targets);
        blocks.every("part", Flow { elements: Part::WORDS, element: ElementType::U32 });
        for (number, form) in inputs.enumerate() {
            let name = beside(number);
            blocks.every(&name, of_part(form, &name)?);
        }
        let scalar = |name: &str| (name.to_owned(), Flow::f32(1));
        blocks.outputs(vec![scalar("loss_sum"), scalar("loss_weight")]);
        for ((info, reads), form) in found.blocks.iter().zip(&found.reads).zip(&forms[1..]) {
            let weights = reads.iter().filter_map(|number| ids.get(number).copied()).collect();
            let mut declared = Declared::new(&info.name, weights, flow(form, &info.name)?);
            declared.keeps = !info.recomputes;
            // Autodiff wants the operand that forward had.
            declared.backward = Orientation::Rowwise;
            blocks.block(declared);
        }
        let declared = match shape.program {
            TRAIN => blocks.training(TRAIN, model, micro_batches)?,
            EVALUATE => blocks.evaluation(EVALUATE, model)?,
            other => blocks.prediction(other, model)?,
        };
        jobs.push(declared.jobs);
        programs.push(match shape.program {
            TRAIN if accumulates => declared.program.accumulating()?,
            _ => declared.program,
        });
    }
    Ok((programs, jobs))
}

fn parts((shape, forms): (&Shape, Forms)) -> (&'static str, Parts) {
    let every = shape.inputs.iter().skip(1).map(|form| shape.of_part(form)).collect();
    let targets = shape.targets.as_ref().map(|targets| shape.of_part(targets));
    (shape.program, Parts { samples: shape.cut.most(), forms, every, targets })
}

fn flow(form: &Form, what: &str) -> Result<Flow, Error> {
    let advice = "use F32, BF16, F16, F64, booleans of one byte, or integers of 8, 16, 32 or 64 bits";
    form.flow().ok_or_else(|| Error::Dtype { what: what.to_owned(), dtype: form.dtype, advice })
}
