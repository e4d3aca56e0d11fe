//! A decoder declared by its sizes.
//!
//! Law: this is sugar over [`Model`] and [`LayerStack`](super::LayerStack); every weight and call could have been
//! declared by hand. Costs are those of the matrix products and of attention, no more:
//!
//! | call | weights | FLOPs, T tokens per rank |
//! |---|---|---|
//! | `embed.forward` | `embedding [vocabulary, hidden]` | 0 |
//! | `blocks.N.qkv` | `norm`, `weight [hidden + 2·kv, hidden]` | 2·T·hidden·(hidden + 2·kv) |
//! | `blocks.N.attention` | `weight [hidden, hidden]` | 2·T·hidden² + 2·T·sequence·hidden |
//! | `blocks.N.up` | `norm`, `weight [2·ffn, hidden]` | 4·T·hidden·ffn |
//! | `blocks.N.down` | `weight [hidden, ffn]` | 2·T·hidden·ffn |
//! | `head`, and the loss | `norm`, `weight [vocabulary, hidden]` | 2·T·hidden·vocabulary |
//!
//! with kv = hidden · kv_heads / heads. The attention term is 4·T·sequence·hidden for scores and values,
//! halved because a token sees only those before it. Backward calls cost twice their forward, or once where
//! their matrix is frozen; a frozen embedding has none. Bytes of a call: its weights and its activations at
//! the width of `math`, read or written once. Activations are f32 buffers, as layer stacks declare them; tokens are
//! u32 ids.
//!
//! With `experts`, the matrices of a block's experts are stacked by rows into one weight, gathered and
//! reduced as one, and every token costs `experts_per_token` of them, of width `expert_ffn`; the first `dense_layers`
//! blocks have none. With `expert_groups` as well, each is a
//! weight of its own, `blocks.N.up.experts.E.weight`, and the members of a group, `blocks.N.up.experts.G`,
//! travel as one collective; calls and costs are the same. With `tied`, head and embedding are one weight.
//! With `replays`, the last block runs that many more times; the calls of replay r are `blocks.N.replay.r.…`,
//! and their gradients are added.
//!
//! On a mesh with tensor or context parallelism ranks compute parts of that ([`Decoder::program_on`]): inner widths
//! and the vocabulary are cut, and norms see a rank's own tokens. With expert parallelism each rank has some of the
//! experts ([`Decoder::model_on`]), and tokens go to them and back by all-to-alls of `experts_per_token` times the
//! stream, as if all experts got as many.
//!
//! | file | idea |
//! |---|---|
//! | `part` | one layer: its weights and what it computes of a token |
//! | `whole` | the program of a rank with texts of its own |
//! | `parallel` | that of ranks that compute parts of layers, or share texts |
//!
//! The router of the experts and recompute are deliberately absent.

mod parallel;
mod part;
mod whole;

use serde::{Deserialize, Serialize};

use self::part::Part;
use super::{CostHint, DeclareError, Form, Math, Mesh, Model, Placement, StepProgram, TensorParallel};
use warpweft_base::id::WeightId;
use warpweft_format::{Format, Orientation};

/// The sizes of a decoder. Whether they fit each other is checked when something is declared of them
/// ([`Decoder::check`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decoder {
    /// Its name.
    pub name: String,
    /// Blocks of attention and MLP.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width inside the MLP, gate and up each.
    pub ffn: usize,
    /// Query heads; they divide `hidden`.
    pub heads: usize,
    /// Key and value heads, which divide `heads`; as many as these when left out.
    pub kv_heads: Option<usize>,
    /// Rows of embedding and head.
    pub vocabulary: usize,
    /// Tokens of one micro-batch of a rank; with tensor or context parallelism, of the ranks that share texts.
    pub tokens: usize,
    /// Micro-batches of a step; 1 when left out.
    pub micro_batches: Option<u32>,
    /// Tokens that attend to each other; all of a rank's when left out.
    pub sequence: Option<usize>,
    /// What matrix products are computed in.
    pub math: Math,
    /// Format of the blocks' matrices.
    pub format: Format,
    /// Format of embedding and head; bf16 when left out.
    pub embedding_format: Option<Format>,
    /// Experts of an MLP; 1 when left out.
    pub experts: Option<usize>,
    /// Width inside each expert, gate and up each; `ffn` when left out.
    pub expert_ffn: Option<usize>,
    /// The first blocks whose MLPs are no experts, but one of width `ffn`; 0 when left out.
    pub dense_layers: Option<usize>,
    /// Experts that a token passes through; 1 when left out.
    pub experts_per_token: Option<usize>,
    /// Groups that the experts of a matrix travel in, with the same number in each; it divides `experts`.
    /// Then every expert is a weight of its own, with its own tensor scale, and the experts of a group are
    /// gathered and reduced as one collective. When left out, the experts of a matrix are the rows of one
    /// weight, one below the other.
    pub expert_groups: Option<usize>,
    /// Whether the head is the embedding.
    #[serde(default)]
    pub tied: bool,
    /// How often the last block runs again; 0 when left out.
    pub replays: Option<usize>,
}

impl Decoder {
    /// The most layers, and the most replays.
    pub const MAX_LAYERS: usize = 4096;
    /// The most experts of an MLP.
    pub const MAX_EXPERTS: usize = 65_536;
    /// The most experts of all layers that are weights of their own, counted again for each replay, so that declaring
    /// and using them ends.
    pub const MAX_EXPERT_WEIGHTS: usize = 1 << 18;

    /// Are all sizes at least 1, and do they fit each other? [`Decoder::model`] and [`Decoder::program`] ask
    /// first.
    ///
    /// # Errors
    /// [`DeclareError::Size`] names the first that does not fit, and what would.
    pub fn check(&self) -> Result<(), DeclareError> {
        let Self { layers, hidden, ffn, heads, vocabulary, tokens, .. } = *self;
        let kv_heads = self.kv_heads.unwrap_or(heads);
        let sequence = self.sequence.unwrap_or(tokens);
        let (experts, chosen) = (self.experts.unwrap_or(1), self.experts_per_token.unwrap_or(1));
        let groups = self.expert_groups.unwrap_or(1);
        let divides = |of: usize| format!("a number that divides {of}");
        let refuse =
            |size, is, needs| Err(DeclareError::Size { decoder: self.name.clone(), size, is, needs });
        let counts = [
            ("layers", layers),
            ("hidden", hidden),
            ("ffn", ffn),
            ("heads", heads),
            ("kv_heads", kv_heads),
            ("vocabulary", vocabulary),
            ("tokens", tokens),
            ("sequence", sequence),
            ("experts", experts),
            ("experts_per_token", chosen),
            ("expert_groups", groups),
            ("expert_ffn", self.expert_ffn.unwrap_or(ffn)),
        ];
        if let Some((size, _)) = counts.into_iter().find(|(_, is)| *is == 0) {
            return refuse(size, 0, "at least 1".to_owned());
        }
        let replays = self.replays.unwrap_or(0);
        let bounds = [
            ("layers", layers, Self::MAX_LAYERS),
            ("replays", replays, Self::MAX_LAYERS),
            ("experts", experts, Self::MAX_EXPERTS),
        ];
        if let Some((size, is, most)) = bounds.into_iter().find(|(_, is, most)| is > most) {
            return refuse(size, is, format!("at most {most}"));
        }
        let most = Self::MAX_EXPERT_WEIGHTS / (layers + replays);
        if self.expert_groups.is_some() && experts > most {
            let replayed = if replays == 0 { String::new() } else { format!(" and {replays} replays") };
            let needs =
                format!("at most {most} in each of {layers} layers{replayed}, or leave `expert_groups` out");
            return refuse("experts", experts, needs);
        }
        if !hidden.is_multiple_of(heads) {
            return refuse("heads", heads, divides(hidden));
        }
        if !heads.is_multiple_of(kv_heads) {
            return refuse("kv_heads", kv_heads, divides(heads));
        }
        if chosen > experts {
            return refuse("experts_per_token", chosen, format!("at most `experts`, {experts}"));
        }
        if !experts.is_multiple_of(groups) {
            return refuse("expert_groups", groups, divides(experts));
        }
        let of_experts = [("expert_ffn", self.expert_ffn), ("dense_layers", self.dense_layers)];
        for (size, is) in of_experts.into_iter().filter(|_| experts == 1) {
            if let Some(is) = is {
                return refuse(size, is, "that of a decoder with `experts`, or leave it out".to_owned());
            }
        }
        let dense = self.dense_layers.unwrap_or(0);
        if dense > layers {
            return refuse("dense_layers", dense, format!("at most `layers`, {layers}"));
        }
        if sequence > tokens {
            return refuse("sequence", sequence, format!("at most `tokens`, {tokens}"));
        }
        Ok(())
    }

    /// The weights, in the formats that the sizes name.
    ///
    /// # Errors
    /// As [`Decoder::check`]; what [`super::ModelBuilder`] refuses, such as a size that the format cannot split.
    pub fn model(&self) -> Result<Model, DeclareError> {
        self.check()?;
        self.declared(1)
    }

    /// The same of a rank of a mesh: with expert parallelism it has some of the experts.
    ///
    /// # Errors
    /// As [`Decoder::model`]; [`DeclareError::Size`] for experts that the mesh does not divide, or that are not weights
    /// of their own.
    pub fn model_on(&self, mesh: Mesh) -> Result<Model, DeclareError> {
        self.check()?;
        self.check_experts(mesh)?;
        self.declared(mesh.expert() as usize)
    }

    /// Do the ranks that share the experts divide them?
    fn check_experts(&self, mesh: Mesh) -> Result<(), DeclareError> {
        let (ranks, experts) = (mesh.expert() as usize, self.experts.unwrap_or(1));
        let refuse =
            |size, is, needs| Err(DeclareError::Size { decoder: self.name.clone(), size, is, needs });
        if ranks == 1 {
            return Ok(());
        }
        if !experts.is_multiple_of(ranks) {
            return refuse("experts", experts, format!("a multiple of mesh.ep, {ranks}"));
        }
        let groups = self.expert_groups.unwrap_or(0);
        if groups == 0 || !(experts / ranks).is_multiple_of((groups / ranks).max(1)) {
            let needs =
                format!("1 with mesh.ep, or mesh.ep ({ranks}) times a number that divides experts / mesh.ep");
            return refuse("expert_groups", groups, needs);
        }
        Ok(())
    }

    fn declared(&self, ep: usize) -> Result<Model, DeclareError> {
        let mut model = Model::builder();
        let outer = self.embedding_format.unwrap_or(Format::Bf16);
        let embedding = model.sharded("embedding", self.vocabulary, self.hidden, outer)?;
        model.tensor_parallel(embedding, TensorParallel::ColumnParallel)?;
        for part in (0..self.layers).flat_map(|block| self.block(block, None, ep)) {
            part.declare(&mut model, self.hidden, self.format)?;
        }
        let norm = model.replicated("head.norm", 1, self.hidden)?;
        model.tensor_parallel(norm, TensorParallel::SplitTokens)?;
        if !self.tied {
            let head = model.sharded("head.weight", self.vocabulary, self.hidden, outer)?;
            model.tensor_parallel(head, TensorParallel::ColumnParallel)?;
        }
        Ok(model.build())
    }

    /// One training step over `model`, which is [`Decoder::model`] or the same with other formats and placements.
    ///
    /// # Errors
    /// As [`Decoder::check`]; [`DeclareError::Unknown`] for another model; what [`super::ProgramBuilder`] refuses.
    pub fn program(&self, model: &Model) -> Result<StepProgram, DeclareError> {
        self.check()?;
        whole::program(self, model)
    }

    /// The same on a rank of a mesh, over [`Decoder::model_on`]: without tensor, context and expert parallelism
    /// [`Decoder::program`].
    ///
    /// # Errors
    /// As [`Decoder::program`]; [`DeclareError::Size`] for a size that the mesh does not divide.
    pub fn program_on(&self, model: &Model, mesh: Mesh) -> Result<StepProgram, DeclareError> {
        match (mesh.tensor(), mesh.context(), mesh.expert()) {
            (1, 1, 1) => self.program(model),
            _ => {
                self.check()?;
                self.check_experts(mesh)?;
                parallel::program(self, model, mesh)
            }
        }
    }

    fn cost(&self, flops: u64, weights: usize, activations: usize) -> CostHint {
        let elements = weights.saturating_add(activations) as u64;
        let bytes = match self.math {
            Math::F32 => elements.saturating_mul(4),
            Math::Bf16 => elements.saturating_mul(2),
            Math::Fp8 => elements,
            Math::Fp4 => elements / 2,
        };
        CostHint { flops, bytes, math: self.math, kernels: 1 }
    }
}

fn product(factors: &[usize]) -> u64 {
    factors.iter().fold(1, |product: u64, factor| product.saturating_mul(*factor as u64))
}

/// Planes where the weight has any, otherwise the replicated values.
fn form(model: &Model, weight: WeightId) -> Result<Form, DeclareError> {
    Ok(match model.weight(weight)?.placement {
        Placement::Sharded => Form::Planes,
        Placement::Replicated => Form::Dense,
    })
}

fn backward(model: &Model, weight: WeightId) -> Result<Orientation, DeclareError> {
    Ok(match model.weight(weight)?.placement {
        Placement::Sharded => Orientation::Columnwise,
        Placement::Replicated => Orientation::Rowwise,
    })
}
