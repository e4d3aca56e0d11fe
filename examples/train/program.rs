//! The model declared to warpweft: weights, buffers, and the calls of a training step and of an
//! evaluation.
//!
//! Law: this file says what is computed from what, never when or where. Both programs declare the
//! same buffers in the same order, so an id means the same in both. A frozen weight has no gradient, and a
//! call that would have nothing else to write is left out.

use std::collections::{HashMap, HashSet};

use warpweft::format::{ElementType, Format, Orientation};
use warpweft::id::{BufferId, WeightId};
use warpweft::model::{CallBuilder, CostHint, DeclareError, Form, Model, Phase, ProgramBuilder, StepProgram};

use crate::model::{Config, Initial, buffers, parameters};

/// What a call does; the closure looks its name up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Tokens to the first residual.
    Embed,
    /// Attention of one layer.
    Attention(usize),
    /// MLP of one layer.
    Mlp(usize),
    /// Loss, its gradient, and the head's contribution to the table's gradient.
    Head,
    /// Loss alone.
    Evaluate,
    /// Backward of one layer's MLP.
    MlpBackward(usize),
    /// Backward of one layer's attention.
    AttentionBackward(usize),
    /// The embedding's contribution to the table's gradient.
    EmbedBackward,
}

/// Everything declared.
#[derive(Clone, Debug)]
pub(crate) struct Declared {
    /// The training step.
    pub(crate) train: StepProgram,
    /// The evaluation.
    pub(crate) evaluate: StepProgram,
    /// What each call does, by name.
    pub(crate) parts: HashMap<String, Part>,
    /// Blocks of the network.
    pub(crate) layers: usize,
    weights: HashMap<String, WeightId>,
    frozen: HashSet<WeightId>,
    buffers: HashMap<String, BufferId>,
}

impl Declared {
    /// Whether calls write the gradient of `weight`; none does of a frozen one.
    pub(crate) fn trains(&self, weight: WeightId) -> bool {
        !self.frozen.contains(&weight)
    }

    /// A weight by name.
    pub(crate) fn weight(&self, name: &str) -> WeightId {
        self.weights[name]
    }

    /// A buffer by name.
    pub(crate) fn buffer(&self, name: &str) -> BufferId {
        self.buffers[name]
    }
}

/// The weights of the network, all matrices in `format`; norms are replicated.
pub(crate) fn weights(config: &Config, format: Format) -> Result<Model, DeclareError> {
    let mut model = Model::builder();
    for parameter in parameters(config) {
        match parameter.initial {
            Initial::Uniform { .. } => {
                model.sharded(&parameter.name, parameter.rows, parameter.cols, format)?
            }
            Initial::Ones => model.replicated(&parameter.name, parameter.rows, parameter.cols)?,
        };
    }
    Ok(model.build())
}

/// Both programs over `model`.
pub(crate) fn declare(config: &Config, model: &Model) -> Result<Declared, DeclareError> {
    let weights = model.entries().map(|(id, spec)| (spec.name.clone(), id)).collect();
    let (mut train, buffers) = begin("train", config, model)?;
    let (mut evaluate, _) = begin("evaluate", config, model)?;
    let mut sketch = Sketch { config, model, weights, buffers, parts: HashMap::new() };
    sketch.forward(&mut train)?;
    sketch.backward(&mut train)?;
    sketch.forward(&mut evaluate)?;
    sketch.add(&mut evaluate, "head.evaluate", Phase::Forward, Part::Evaluate, 0, |call, names| {
        names.head(call).writes(names.buffer("loss"))
    })?;
    let Sketch { weights, buffers, parts, .. } = sketch;
    Ok(Declared {
        train: train.build_training()?,
        evaluate: evaluate.build_evaluation()?,
        parts,
        layers: config.layers,
        weights,
        frozen: model.entries().filter(|(_, spec)| spec.frozen).map(|(id, _)| id).collect(),
        buffers,
    })
}

/// A program with all its buffers and no calls.
fn begin(
    name: &str,
    config: &Config,
    model: &Model,
) -> Result<(ProgramBuilder, HashMap<String, BufferId>), DeclareError> {
    let mut program = StepProgram::builder(name, model);
    let mut ids = HashMap::new();
    for input in ["tokens", "targets"] {
        ids.insert(input.to_owned(), program.input(input, config.tokens(), ElementType::U8)?);
    }
    for buffer in buffers(config) {
        let id = match buffer.name.as_str() {
            "loss" => program.output("loss", buffer.elements, ElementType::F32)?,
            _ => program.activation(&buffer.name, buffer.elements)?,
        };
        ids.insert(buffer.name, id);
    }
    Ok((program, ids))
}

/// Names of the model while its calls are declared.
struct Sketch<'a> {
    config: &'a Config,
    model: &'a Model,
    weights: HashMap<String, WeightId>,
    buffers: HashMap<String, BufferId>,
    parts: HashMap<String, Part>,
}

impl Sketch<'_> {
    fn weight(&self, name: &str) -> WeightId {
        self.weights[name]
    }

    fn buffer(&self, name: &str) -> BufferId {
        self.buffers[name]
    }

    fn add<'p>(
        &mut self,
        program: &'p mut ProgramBuilder,
        name: &str,
        phase: Phase,
        part: Part,
        flops: u64,
        declare: impl FnOnce(CallBuilder<'p>, &Self) -> CallBuilder<'p>,
    ) -> Result<(), DeclareError> {
        let call = declare(program.call(name, phase), self);
        call.cost(CostHint { flops, ..CostHint::default() }).add()?;
        self.parts.insert(name.to_owned(), part);
        Ok(())
    }

    fn forward(&mut self, program: &mut ProgramBuilder) -> Result<(), DeclareError> {
        self.add(program, "embed.forward", Phase::Forward, Part::Embed, 0, |call, names| {
            call.uses(names.weight("embedding.table"), Orientation::Rowwise, Form::Dense)
                .reads(names.buffer("tokens"))
                .writes(names.buffer("residual.0"))
        })?;
        for layer in 0..self.config.layers {
            let flops = self.config.attention_flops();
            let name = format!("blocks.{layer}.attention.forward");
            self.add(program, &name, Phase::Forward, Part::Attention(layer), flops, |call, names| {
                names
                    .attention(call, layer, Orientation::Rowwise)
                    .writes(names.buffer(&format!("blocks.{layer}.attention.rotated")))
                    .writes(names.buffer(&format!("blocks.{layer}.attention.logsumexp")))
                    .writes(names.buffer(&format!("blocks.{layer}.attention.mixed")))
                    .writes(names.buffer(&format!("residual.{}", 2 * layer + 1)))
            })?;
            let flops = self.config.mlp_flops();
            let name = format!("blocks.{layer}.mlp.forward");
            self.add(program, &name, Phase::Forward, Part::Mlp(layer), flops, |call, names| {
                names
                    .mlp(call, layer, Orientation::Rowwise)
                    .writes(names.buffer(&format!("blocks.{layer}.mlp.hidden")))
                    .writes(names.buffer(&format!("residual.{}", 2 * layer + 2)))
            })?;
        }
        Ok(())
    }

    fn backward(&mut self, program: &mut ProgramBuilder) -> Result<(), DeclareError> {
        let flops = self.config.head_flops() - self.spared_flops(&["embedding.table"]);
        self.add(program, "head", Phase::Backward, Part::Head, flops, |call, names| {
            let call =
                names.head(call).writes(names.buffer("loss")).writes(names.buffer("residual.gradient"));
            names.gradients(call, &["head.gain", "embedding.table"])
        })?;
        for layer in (0..self.config.layers).rev() {
            let [gain, up, down] = ["gain", "up", "down"].map(|part| format!("blocks.{layer}.mlp.{part}"));
            let flops = 2 * self.config.mlp_flops() - self.spared_flops(&[&up, &down]);
            let name = format!("blocks.{layer}.mlp.backward");
            self.add(program, &name, Phase::Backward, Part::MlpBackward(layer), flops, |call, names| {
                let call = names
                    .mlp(call, layer, Orientation::Columnwise)
                    .reads(names.buffer(&format!("blocks.{layer}.mlp.hidden")))
                    .updates(names.buffer("residual.gradient"));
                names.gradients(call, &[&gain, &up, &down])
            })?;
            let [gain, qkv, output] =
                ["gain", "qkv", "output"].map(|part| format!("blocks.{layer}.attention.{part}"));
            let flops = self.config.attention_flops() * 5 / 2 - self.spared_flops(&[&qkv, &output]);
            let name = format!("blocks.{layer}.attention.backward");
            self.add(
                program,
                &name,
                Phase::Backward,
                Part::AttentionBackward(layer),
                flops,
                |call, names| {
                    let call = names
                        .attention(call, layer, Orientation::Columnwise)
                        .reads(names.buffer(&format!("blocks.{layer}.attention.rotated")))
                        .reads(names.buffer(&format!("blocks.{layer}.attention.logsumexp")))
                        .reads(names.buffer(&format!("blocks.{layer}.attention.mixed")))
                        .updates(names.buffer("residual.gradient"));
                    names.gradients(call, &[&gain, &qkv, &output])
                },
            )?;
        }
        if self.is_frozen("embedding.table") {
            return Ok(());
        }
        self.add(program, "embed.backward", Phase::Backward, Part::EmbedBackward, 0, |call, names| {
            call.gradient(names.weight("embedding.table"))
                .reads(names.buffer("tokens"))
                .reads(names.buffer("residual.gradient"))
        })
    }

    fn attention<'p>(&self, call: CallBuilder<'p>, layer: usize, matrices: Orientation) -> CallBuilder<'p> {
        self.uses(call, layer, ["attention.gain", "attention.qkv", "attention.output"], matrices)
            .reads(self.buffer(&format!("residual.{}", 2 * layer)))
    }

    fn mlp<'p>(&self, call: CallBuilder<'p>, layer: usize, matrices: Orientation) -> CallBuilder<'p> {
        self.uses(call, layer, ["mlp.gain", "mlp.up", "mlp.down"], matrices)
            .reads(self.buffer(&format!("residual.{}", 2 * layer + 1)))
    }

    fn head<'p>(&self, call: CallBuilder<'p>) -> CallBuilder<'p> {
        call.uses(self.weight("head.gain"), Orientation::Rowwise, Form::Dense)
            .uses(self.weight("embedding.table"), Orientation::Rowwise, Form::Dense)
            .reads(self.buffer(&format!("residual.{}", 2 * self.config.layers)))
            .reads(self.buffer("targets"))
    }

    fn uses<'p>(
        &self,
        call: CallBuilder<'p>,
        layer: usize,
        [gain, first, second]: [&str; 3],
        matrices: Orientation,
    ) -> CallBuilder<'p> {
        let weight = |name: &str| self.weight(&format!("blocks.{layer}.{name}"));
        call.uses(weight(gain), Orientation::Rowwise, Form::Dense)
            .uses(weight(first), matrices, Form::Dense)
            .uses(weight(second), matrices, Form::Dense)
    }

    /// Those of the weights that train.
    fn gradients<'p>(&self, call: CallBuilder<'p>, names: &[&str]) -> CallBuilder<'p> {
        let trained = names.iter().filter(|name| !self.is_frozen(name));
        trained.fold(call, |call, name| call.gradient(self.weight(name)))
    }

    fn is_frozen(&self, name: &str) -> bool {
        self.model.weight(self.weight(name)).is_ok_and(|spec| spec.frozen)
    }

    /// Floating-point operations of the products that the frozen ones among these matrices need not.
    fn spared_flops(&self, matrices: &[&str]) -> u64 {
        let frozen = matrices.iter().filter(|name| self.is_frozen(name));
        let specs = frozen.filter_map(|name| self.model.weight(self.weight(name)).ok());
        let elements: usize = specs.map(|spec| spec.shape.elements()).sum();
        (2 * self.config.tokens() * elements) as u64
    }
}
