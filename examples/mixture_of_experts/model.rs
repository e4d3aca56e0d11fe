//! The model: its sizes, its weights and the calls of its step.
//!
//! Law: this file alone says who exchanges what. Ranks of an expert-parallel group have other experts each. A token
//! goes to the ranks of its experts and comes back, and in backward its gradient goes the same way. Only filled rows
//! travel.

use warpweft::model::{CallBuilder, Collective, CollectiveKind, Counts, Group, ProgramBuilder};
use warpweft::prelude::*;

/// One token for each value of a byte.
pub(crate) const VOCABULARY: usize = 256;
/// Experts of the layer.
pub(crate) const EXPERTS: usize = 4;
/// Experts that a token goes to.
pub(crate) const CHOSEN: usize = 2;
/// Features of a token.
pub(crate) const WIDTH: usize = 32;
/// Features inside of an expert.
pub(crate) const HIDDEN: usize = 64;

/// What depends on the mesh.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Ranks of an expert-parallel group.
    pub(crate) ep: usize,
    /// Tokens of a rank.
    pub(crate) tokens: usize,
    /// Rows of a slot: tokens of one rank for one expert.
    pub(crate) capacity: usize,
}

impl Sizes {
    /// Experts of a rank.
    pub(crate) const fn own_experts(self) -> usize {
        EXPERTS / self.ep
    }

    /// Rows of all slots of a rank: those that it fills, one for each expert, or those that it gets.
    pub(crate) const fn rows(self) -> usize {
        EXPERTS * self.capacity
    }

    /// Elements of them.
    pub(crate) const fn slots(self) -> usize {
        self.rows() * WIDTH
    }
}

/// The weights: of experts those of one rank.
pub(crate) fn model(sizes: Sizes) -> Result<Model, DeclareError> {
    let mut model = Model::builder();
    model.sharded("embedding", VOCABULARY, WIDTH, Format::F32)?;
    model.sharded("router", EXPERTS, WIDTH, Format::F32)?;
    for expert in 0..sizes.own_experts() {
        for (name, rows, cols) in [("up", HIDDEN, WIDTH), ("down", WIDTH, HIDDEN)] {
            let weight = model.sharded(&format!("experts.{expert}.{name}"), rows, cols, Format::F32)?;
            model.expert_parallel(weight)?;
        }
    }
    model.sharded("head", VOCABULARY, WIDTH, Format::F32)?;
    Ok(model.build())
}

/// The step that trains.
pub(crate) fn step(sizes: Sizes, model: &Model) -> Result<StepProgram, DeclareError> {
    let (forward, backward) = (Phase::Forward, Phase::Backward);
    let weight = |name: &str| model.find(name);
    let mut program = StepProgram::builder("train", model);
    let tokens = program.input("tokens", sizes.tokens, ElementType::U8)?;
    let targets = program.input("targets", sizes.tokens, ElementType::U8)?;
    let loss = program.output("loss", 1, ElementType::F32)?;
    let balance = program.output("balance", 1, ElementType::F32)?;
    let all = sizes.tokens * WIDTH;

    let x = program.activation("x", all)?;
    let embed = program.call("embed", forward).reads(tokens).writes(x);
    embed.uses_dense(weight("embedding")?).add()?;

    // Which experts a token goes to, by what probability, and its features in their slots: in which rows.
    let probabilities = program.activation("probabilities", sizes.tokens * EXPERTS)?;
    let chosen = program.activation_in("chosen", sizes.tokens * CHOSEN, ElementType::U32)?;
    let places = program.activation_in("places", sizes.tokens * CHOSEN, ElementType::U32)?;
    let picks = program.activation("picks", EXPERTS)?;
    let given = program.activation_in("given", EXPERTS, ElementType::U32)?;
    let taken = program.activation_in("taken", EXPERTS, ElementType::U32)?;
    let [sent, inputs, made, back] = slots(&mut program, sizes, ["sent", "inputs", "made", "back"])?;
    let route = program.call("route", forward).reads(x).writes(probabilities).writes(chosen).writes(places);
    route.writes(picks).writes(sent).writes(given).uses_dense(weight("router")?).add()?;
    let counts = Counts::new(given, taken, sizes.capacity).filled(50);
    let dispatch = Collective::dispatch(sent, inputs, counts).among(Group::Expert);
    program.collective("dispatch", forward, dispatch)?;
    // How busy the experts are is asked of all ranks, so that the loss that balances them is that of the batch.
    let load = program.activation("load", EXPERTS)?;
    program.collective("share the load", forward, Collective::new(CollectiveKind::Sum, picks, load))?;
    let experts = program.call("experts", forward).reads(inputs).reads(taken).writes(made);
    uses_experts(experts, sizes, model)?.add()?;
    program.collective("combine", forward, dispatch.back(made, back))?;

    let slope = program.activation("slope", all)?;
    let pulls = program.activation("pulls on probabilities", sizes.tokens * EXPERTS)?;
    let [sent_slopes, slopes, made_slopes, slopes_back] =
        slots(&mut program, sizes, ["sent slopes", "slopes", "made slopes", "slopes back"])?;
    let head = program.call("head", backward).reads(x).reads(probabilities).reads(chosen).reads(places);
    let head =
        head.reads(targets).reads(load).reads(back).reads(given).writes(loss).writes(balance).writes(slope);
    let head = head.writes(pulls).writes(sent_slopes).uses_dense(weight("head")?);
    head.gradient(weight("head")?).add()?;
    program.collective("dispatch slopes", backward, dispatch.again(sent_slopes, slopes))?;
    let experts = program.call("experts backward", backward).reads(inputs).reads(slopes).reads(taken);
    let mut experts = uses_experts(experts.writes(made_slopes), sizes, model)?;
    for expert in 0..sizes.own_experts() {
        let [up, down] = ["up", "down"].map(|name| weight(&format!("experts.{expert}.{name}")));
        experts = experts.gradient(up?).gradient(down?);
    }
    experts.add()?;
    program.collective("combine slopes", backward, dispatch.back(made_slopes, slopes_back))?;
    let x_slope = program.activation("x slope", all)?;
    let route = program.call("route backward", backward).reads(x).reads(probabilities).reads(pulls);
    let route = route.reads(places).reads(slopes_back).reads(given).reads(slope).writes(x_slope);
    route.uses_dense(weight("router")?).gradient(weight("router")?).add()?;
    let embed = program.call("embed backward", backward).reads(x_slope).reads(tokens);
    embed.gradient(weight("embedding")?).add()?;
    program.build_training()
}

/// Buffers of slots.
fn slots<const N: usize>(
    program: &mut ProgramBuilder,
    sizes: Sizes,
    names: [&str; N],
) -> Result<[BufferId; N], DeclareError> {
    let mut ids = [BufferId::new(0); N];
    for (id, name) in ids.iter_mut().zip(names) {
        *id = program.activation(name, sizes.slots())?;
    }
    Ok(ids)
}

/// The weights of the rank's experts.
fn uses_experts<'p>(
    mut call: CallBuilder<'p>,
    sizes: Sizes,
    model: &Model,
) -> Result<CallBuilder<'p>, DeclareError> {
    for expert in 0..sizes.own_experts() {
        for name in ["up", "down"] {
            call = call.uses_dense(model.find(&format!("experts.{expert}.{name}"))?);
        }
    }
    Ok(call)
}
