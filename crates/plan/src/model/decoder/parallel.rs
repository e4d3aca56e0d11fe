//! The program of a decoder whose ranks compute parts of layers, or share the tokens of a text.
//!
//! Law: the ranks of a tensor-parallel group, and those of a context, work on the same texts. Between layers each rank
//! has the residual stream of its own tokens alone (sequence parallelism), which norms and sums of the stream are
//! computed with. A block is two halves, attention and MLP, of a column-parallel and a row-parallel product each:
//!
//! | forward | backward |
//! |---|---|
//! | `qkv.norm.forward`: adds what the half before gave, norm | all-gather of the stream's gradient |
//! | all-gather of tokens | `attention.dgrad` |
//! | `qkv.forward` | all-gather of tokens again; `attention.wgrad` beside it |
//! | `attention.forward` | `qkv.dgrad` |
//! | reduce-scatter of what ranks give each token | reduce-scatter of the gradient; `qkv.wgrad` beside it |
//! | | `qkv.norm.backward` |
//!
//! and likewise `up` and `down`. In a context, keys and values are gathered before attention, and their gradients
//! reduce-scattered after its dgrad. Embedding and head are cut by tokens of the vocabulary: a rank looks up those that
//! it has, and of a loss ranks give each other maximum, sum and the target's logit of every token. What ranks exchange
//! is bf16, f32 where `math` is; what stays on a rank is f32. Exchanges of a rank with itself are left out.
//!
//! Experts that ranks share are the second half of a block: in the place of the gathers and reduce-scatters of the
//! table a call brings each token's copies into the order of their experts (`up.route`), and an all-to-all brings
//! them there; another brings back what they give, which the next norm adds up. What arrived is kept for `up.wgrad`.
//!
//! Costs are those of [`Decoder`], divided among the ranks; backward is split into the gradient of a layer's input
//! (dgrad) and that of its weight (wgrad), which cost as much as forward, the first with twice its attention.

mod halves;
mod vocabulary;

use super::super::{
    CallBuilder, Collective, CollectiveKind, DeclareError, Group, Math, Mesh, Model, Phase, ProgramBuilder,
    StepProgram,
};
use super::{Decoder, Part};
use warpweft_base::id::BufferId;
use warpweft_format::ElementType;

pub(super) fn program(decoder: &Decoder, model: &Model, mesh: Mesh) -> Result<StepProgram, DeclareError> {
    check(decoder, mesh)?;
    let mut draft = Draft::new(decoder, model, mesh)?;
    let text = draft.program.input("tokens", draft.tokens, ElementType::U32)?;
    let (mut stream, mut delta) = (draft.embed(text)?, None);
    let parts = decoder.parts(mesh.expert() as usize);
    let mut halves = Vec::new();
    for pair in parts.chunks_exact(2) {
        let [column, row] = pair else { continue };
        let half = draft.half(column, row, (stream, delta))?;
        (stream, delta) = (half.normed.stream, Some(half.output));
        halves.push(half);
    }
    let mut slope = draft.head((stream, delta))?;
    for half in halves.into_iter().rev() {
        slope = draft.half_backward(&half, slope)?;
    }
    draft.embed_backward(text, slope)?;
    draft.program.build_training()
}

/// Do the ranks of the mesh divide the sizes? Blocks of formats are checked where weights are planned.
fn check(decoder: &Decoder, mesh: Mesh) -> Result<(), DeclareError> {
    let (tensor, context) = (mesh.tensor() as usize, mesh.context() as usize);
    let kv_heads = decoder.kv_heads.unwrap_or(decoder.heads);
    let sizes = [
        ("kv_heads", kv_heads, tensor, "mesh.tp"),
        ("vocabulary", decoder.vocabulary, tensor, "mesh.tp"),
        ("ffn", decoder.ffn, tensor, "mesh.tp"),
        ("tokens", decoder.tokens, tensor * context, "mesh.tp · mesh.cp"),
    ];
    let refuse = |size, is, needs| Err(DeclareError::Size { decoder: decoder.name.clone(), size, is, needs });
    if let Some((size, is, ranks, axis)) = sizes.into_iter().find(|(_, is, ranks, _)| is % ranks > 0) {
        return refuse(size, is, format!("a multiple of {axis}, {ranks}"));
    }
    match decoder.experts {
        Some(experts) if experts > 1 && tensor > 1 => {
            refuse("experts", experts, "1 with mesh.tp: experts are not cut".to_owned())
        }
        _ => Ok(()),
    }
}

/// The stream of a rank's own tokens after what was added to it, and the same normalized.
#[derive(Clone, Copy)]
struct Normed {
    stream: BufferId,
    normed: BufferId,
}

/// The program in the making.
struct Draft<'d> {
    decoder: &'d Decoder,
    model: &'d Model,
    mesh: Mesh,
    program: ProgramBuilder,
    /// Tokens of a tensor-parallel group.
    tokens: usize,
    /// Values of the stream of a rank's own tokens.
    stream: usize,
    /// In what ranks exchange.
    wire: ElementType,
}

impl<'d> Draft<'d> {
    fn new(decoder: &'d Decoder, model: &'d Model, mesh: Mesh) -> Result<Self, DeclareError> {
        let mut program = StepProgram::builder("train", model);
        program.micro_batches(decoder.micro_batches.unwrap_or(1))?;
        let tokens = decoder.tokens / mesh.context() as usize;
        let stream = (tokens / mesh.tensor() as usize).saturating_mul(decoder.hidden);
        let wire = if decoder.math == Math::F32 { ElementType::F32 } else { ElementType::Bf16 };
        Ok(Self { decoder, model, mesh, program, tokens, stream, wire })
    }

    const fn tensor(&self) -> usize {
        self.mesh.tensor() as usize
    }

    /// Values of all tokens of the group, so many of each.
    const fn of_tokens(&self, width: usize) -> usize {
        self.tokens.saturating_mul(width)
    }

    /// What ranks of a group get of what each has; with one rank what it has.
    fn exchange(
        &mut self,
        name: &str,
        phase: Phase,
        (kind, group): (CollectiveKind, Group),
        from: BufferId,
        (elements, element): (usize, ElementType),
    ) -> Result<BufferId, DeclareError> {
        if self.mesh.size(group) == 1 {
            return Ok(from);
        }
        let to = self.program.activation_in(&format!("{name}.received"), elements, element)?;
        self.program.collective(name, phase, Collective::new(kind, from, to).among(group))?;
        Ok(to)
    }

    /// The tokens of all ranks of the group.
    fn gather(&mut self, name: &str, phase: Phase, from: BufferId) -> Result<BufferId, DeclareError> {
        let all = (self.of_tokens(self.decoder.hidden), self.wire);
        self.exchange(name, phase, (CollectiveKind::AllGather, Group::Tensor), from, all)
    }

    /// What all ranks of the group give the rank's own tokens.
    fn scatter(&mut self, name: &str, phase: Phase, from: BufferId) -> Result<BufferId, DeclareError> {
        let own = (self.stream, self.wire);
        self.exchange(name, phase, (CollectiveKind::ReduceScatter, Group::Tensor), from, own)
    }

    /// What a rank computes of every token and gives to those that have the tokens.
    fn parts(&mut self, name: &str, width: usize) -> Result<BufferId, DeclareError> {
        self.program.activation_in(name, self.of_tokens(width), self.wire)
    }

    /// Values of the stream that a part gets and gives for a token.
    fn width(&self, part: &Part) -> usize {
        self.decoder.hidden.saturating_mul(part.sent.unwrap_or(1))
    }

    /// Brings tokens to a part: all of the group's, or copies of a rank's own to their experts.
    fn bring(
        &mut self,
        (name, phase): (&str, Phase),
        part: &Part,
        from: BufferId,
    ) -> Result<BufferId, DeclareError> {
        if part.sent.is_none() {
            return self.gather(&format!("{name}.all-gather"), phase, from);
        }
        let routed = self.parts(&format!("{name}.routed"), self.width(part))?;
        let cost = self.decoder.cost(0, 0, self.of_tokens(self.width(part).saturating_mul(2)));
        self.program.call(&format!("{name}.route"), phase).reads(from).writes(routed).cost(cost).add()?;
        self.all_to_all(&format!("{name}.dispatch"), phase, part, routed)
    }

    /// Brings what a part gives to the ranks that have the tokens.
    fn give(
        &mut self,
        (name, phase): (&str, Phase),
        part: &Part,
        from: BufferId,
    ) -> Result<BufferId, DeclareError> {
        match part.sent {
            None => self.scatter(&format!("{name}.reduce-scatter"), phase, from),
            Some(_) => self.all_to_all(&format!("{name}.combine"), phase, part, from),
        }
    }

    fn all_to_all(
        &mut self,
        name: &str,
        phase: Phase,
        part: &Part,
        from: BufferId,
    ) -> Result<BufferId, DeclareError> {
        let copies = (self.of_tokens(self.width(part)), self.wire);
        self.exchange(name, phase, (CollectiveKind::AllToAll, Group::Expert), from, copies)
    }

    /// Adds what the half before gave to the stream, and normalizes it. Calls and weight have stems of their own:
    /// replays share weights.
    fn norm(
        &mut self,
        (stem, weights): (&str, &str),
        (before, delta): (BufferId, Option<BufferId>),
    ) -> Result<Normed, DeclareError> {
        let normed = self.program.activation_in(&format!("{stem}.normed"), self.stream, self.wire)?;
        let stream = match delta {
            None => before,
            Some(_) => self.program.activation(&format!("{stem}.stream"), self.stream)?,
        };
        let gain = self.model.find(&format!("{weights}.norm"))?;
        let cost = self.decoder.cost(0, 0, self.stream.saturating_mul(2));
        let call = self.program.call(&format!("{stem}.norm.forward"), Phase::Forward);
        let mut call = call.uses_dense(gain).reads(before).writes(normed).cost(cost);
        if let Some(delta) = delta {
            call = call.reads(delta).writes(stream);
        }
        call.add()?;
        Ok(Normed { stream, normed })
    }

    /// The gradient of the stream before a norm, of that behind it and of what it was added to.
    fn norm_backward(
        &mut self,
        (stem, weights): (&str, &str),
        stream: BufferId,
        (of_normed, behind): (BufferId, Option<BufferId>),
    ) -> Result<BufferId, DeclareError> {
        let slope = self.program.activation_in(&format!("{stem}.gradient"), self.stream, self.wire)?;
        let gain = self.model.find(&format!("{weights}.norm"))?;
        let cost = self.decoder.cost(0, 0, self.stream.saturating_mul(3));
        let call = self.program.call(&format!("{stem}.norm.backward"), Phase::Backward).uses_dense(gain);
        let call = call.reads(stream).reads(of_normed).writes(slope).cost(cost);
        let call = behind.into_iter().fold(call, CallBuilder::reads);
        call.gradient_if_trained(gain, ElementType::F32).add()?;
        Ok(slope)
    }
}
