//! The transformer: its sizes, its weights with what tensor parallelism does with them, and the calls of its step.
//!
//! Law: this file alone says what is cut. A tensor-parallel group works on the same texts. Of the residual stream each
//! rank has its share of the tokens (sequence parallelism); it is gathered before a column-parallel layer, and what the
//! row-parallel layer after it leaves is summed and scattered to the same shares. Backward does the same in reverse:
//! gradients of inputs (dgrad) are on their way to the other ranks while gradients of weights (wgrad) are computed.

use warpweft::model::{Collective, CollectiveKind, Group, ProgramBuilder, TensorParallel};
use warpweft::prelude::*;

/// One token for each value of a byte.
pub(crate) const VOCABULARY: usize = 256;

/// The sizes of the model, and of one tensor-parallel group's batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Features of the residual stream.
    pub(crate) width: usize,
    /// Blocks.
    pub(crate) layers: usize,
    /// Attention heads of all ranks of a group.
    pub(crate) heads: usize,
    /// Features inside of the MLP, of all ranks of a group.
    pub(crate) hidden: usize,
    /// Tokens of a text.
    pub(crate) sequence: usize,
    /// Texts of a group.
    pub(crate) texts: usize,
    /// Ranks of a group.
    pub(crate) tensor: usize,
}

impl Sizes {
    /// Tokens of a group.
    pub(crate) const fn tokens(self) -> usize {
        self.texts * self.sequence
    }

    /// Tokens of a rank's share.
    pub(crate) const fn own_tokens(self) -> usize {
        self.tokens() / self.tensor
    }

    /// Features of a rank's heads.
    pub(crate) const fn own_heads_width(self) -> usize {
        self.width / self.tensor
    }

    /// Features of a rank's part of an MLP.
    pub(crate) const fn own_hidden(self) -> usize {
        self.hidden / self.tensor
    }
}

/// The weights. Without tensor parallelism in the mesh nothing is cut. With `scale_groups` query, key and
/// value of a block share a scale of the tensor, as inference engines want it.
pub(crate) fn model(sizes: Sizes, format: Format, scale_groups: bool) -> Result<Model, DeclareError> {
    let Sizes { width, layers, hidden, .. } = sizes;
    // What is looked up by rows, or is the last layer, keeps more bits.
    let outer = if format == Format::F32 { Format::F32 } else { Format::Bf16 };
    let mut model = Model::builder();
    let mut add = |name: String, rows, cols, format, how| {
        let weight = model.sharded(&name, rows, cols, format)?;
        model.tensor_parallel(weight, how)?;
        Ok::<_, DeclareError>(weight)
    };
    add("embedding".into(), VOCABULARY, width, outer, TensorParallel::SplitTokens)?;
    let mut served_as_one = Vec::new();
    for layer in 0..layers {
        for name in ["query", "key", "value"] {
            let weight =
                add(format!("{layer}.{name}"), width, width, format, TensorParallel::ColumnParallel)?;
            served_as_one.push(weight);
        }
        add(format!("{layer}.out"), width, width, format, TensorParallel::RowParallel)?;
        add(format!("{layer}.up"), hidden, width, format, TensorParallel::ColumnParallel)?;
        add(format!("{layer}.down"), width, hidden, format, TensorParallel::RowParallel)?;
    }
    add("head".into(), VOCABULARY, width, outer, TensorParallel::SplitTokens)?;
    if scale_groups {
        for (layer, qkv) in served_as_one.chunks(3).enumerate() {
            model.scale_group(&format!("{layer}.qkv"), qkv)?;
        }
    }
    let gain = model.replicated("gain", 1, width)?;
    model.tensor_parallel(gain, TensorParallel::SplitTokens)?;
    Ok(model.build())
}

/// The two halves of a block: what they are called, and their weights.
pub(crate) const HALVES: [(&str, &[&str], &str); 2] =
    [("attention", &["query", "key", "value"], "out"), ("mlp", &["up"], "down")];

/// The step that trains.
pub(crate) fn step(sizes: Sizes, model: &Model) -> Result<StepProgram, DeclareError> {
    let (own, all) = (sizes.own_tokens() * sizes.width, sizes.tokens() * sizes.width);
    let mut program = StepProgram::builder("train", model);
    let tokens = program.input("tokens", sizes.own_tokens(), ElementType::U32)?;
    let targets = program.input("targets", sizes.own_tokens(), ElementType::U32)?;
    let loss = program.output("loss", 1, ElementType::F32)?;
    let weight = |name: &str| model.find(name);

    let mut x = program.activation("x.0", own)?;
    let mut normed = program.activation("normed.0", own)?;
    let embed = program.call("embed", Phase::Forward).reads(tokens).writes(x).writes(normed);
    embed.uses_dense(weight("embedding")?).add()?;
    // Of each half: what it read, as share and whole.
    let mut halves = Vec::new();
    for layer in 0..sizes.layers {
        for (half, columns, row) in HALVES {
            let name = format!("{layer}.{half}");
            let whole = program.activation(&format!("{name}.input"), all)?;
            exchange(
                &mut program,
                &format!("{name}.gather"),
                Phase::Forward,
                CollectiveKind::AllGather,
                (normed, whole),
            )?;
            let parts = program.activation(&format!("{name}.parts"), all)?;
            let mut call =
                program.call(&format!("{name}.forward"), Phase::Forward).reads(whole).writes(parts);
            for column in columns {
                call = call.uses_dense(weight(&format!("{layer}.{column}"))?);
            }
            call.uses_dense(weight(&format!("{layer}.{row}"))?).add()?;
            let got = program.activation(&format!("{name}.got"), own)?;
            exchange(
                &mut program,
                &format!("{name}.scatter"),
                Phase::Forward,
                CollectiveKind::ReduceScatter,
                (parts, got),
            )?;
            halves.push((layer, half, columns, row, x, whole));
            let number = halves.len();
            let before = x;
            x = program.activation(&format!("x.{number}"), own)?;
            // The head has a norm of its own.
            let next = match number == HALVES.len() * sizes.layers {
                true => None,
                false => Some(program.activation(&format!("normed.{number}"), own)?),
            };
            let join =
                program.call(&format!("{name}.join"), Phase::Forward).reads(before).reads(got).writes(x);
            match next {
                None => join.add()?,
                Some(next) => join.writes(next).add()?,
            };
            normed = next.unwrap_or(normed);
        }
    }
    let mut slope = program.activation("slope.head", own)?;
    let (head, gain) = (weight("head")?, weight("gain")?);
    let call = program.call("head", Phase::Backward).reads(x).reads(targets).writes(loss).writes(slope);
    call.uses_dense(head).uses_dense(gain).gradient(head).gradient(gain).add()?;
    for (layer, half, columns, row, before, input) in halves.into_iter().rev() {
        let name = format!("{layer}.{half}");
        let slopes = program.activation(&format!("{name}.slopes"), all)?;
        let gathered = format!("{name}.gather slopes");
        exchange(&mut program, &gathered, Phase::Backward, CollectiveKind::AllGather, (slope, slopes))?;
        let parts = program.activation(&format!("{name}.slope parts"), all)?;
        let kept = program.activation(&format!("{name}.kept"), sizes.tokens() * kept_width(sizes, half))?;
        let mut call = program.call(&format!("{name}.dgrad"), Phase::Backward).reads(input).reads(slopes);
        call = call.writes(parts).writes(kept);
        for column in columns {
            call = call.uses_dense(weight(&format!("{layer}.{column}"))?);
        }
        call.uses_dense(weight(&format!("{layer}.{row}"))?).add()?;
        let got = program.activation(&format!("{name}.slopes got"), own)?;
        let scattered = format!("{name}.scatter slopes");
        exchange(&mut program, &scattered, Phase::Backward, CollectiveKind::ReduceScatter, (parts, got))?;
        // While the parts are on their way.
        let mut call = program.call(&format!("{name}.wgrad"), Phase::Backward).reads(input).reads(slopes);
        call = call.reads(kept);
        for column in columns {
            call = call.gradient(weight(&format!("{layer}.{column}"))?);
        }
        call.gradient(weight(&format!("{layer}.{row}"))?).add()?;
        let after = slope;
        slope = program.activation(&format!("{name}.slope"), own)?;
        let join = program.call(&format!("{name}.join slopes"), Phase::Backward);
        join.reads(before).reads(after).reads(got).writes(slope).add()?;
    }
    let embed = program.call("embed slopes", Phase::Backward).reads(tokens).reads(slope);
    embed.gradient(weight("embedding")?).add()?;
    program.build_training()
}

/// Features of a token that backward's first call keeps for its second: of the attention what its heads mixed and the
/// slopes of query, key and value; of the MLP its hidden features and their slopes.
pub(crate) fn kept_width(sizes: Sizes, half: &str) -> usize {
    if half == "attention" { 4 * sizes.own_heads_width() } else { 2 * sizes.own_hidden() }
}

/// What the ranks of a group do together: each gets the shares of all, or the sum of what all have for its own share.
fn exchange(
    program: &mut ProgramBuilder,
    name: &str,
    phase: Phase,
    kind: CollectiveKind,
    (from, to): (BufferId, BufferId),
) -> Result<(), DeclareError> {
    program.collective(name, phase, Collective::new(kind, from, to).among(Group::Tensor)).map(drop)
}
