//! The keys of a file of calls.

use serde::Deserialize;

use crate::config::{Rule, Rules, Takes};
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::model::{CollectiveKind, Form, Group, Lifetime, Math, Phase, ProgramBuilder, Reuse, Role};

/// Largest number of rows, columns or elements.
const LARGEST: u64 = 1 << 48;

/// A file of calls; what was left out is `None`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct File {
    pub(super) name: String,
    pub(super) tokens: Option<usize>,
    pub(super) micro_batches: Option<u32>,
    #[serde(default)]
    pub(super) math: Math,
    #[serde(rename = "weight", default)]
    pub(super) weights: Vec<WeightItem>,
    #[serde(rename = "buffer", default)]
    pub(super) buffers: Vec<BufferItem>,
    #[serde(rename = "call", default)]
    pub(super) calls: Vec<CallItem>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct WeightItem {
    pub(super) name: String,
    pub(super) numbers: Option<[u32; 2]>,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) format: Option<Format>,
    #[serde(default)]
    pub(super) placement: Place,
    pub(super) reuse: Option<Reuse>,
    pub(super) group: Option<String>,
    #[serde(default)]
    pub(super) frozen: bool,
    #[serde(default)]
    pub(super) expert_parallel: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct BufferItem {
    pub(super) name: String,
    pub(super) numbers: Option<[u32; 2]>,
    pub(super) elements: usize,
    #[serde(default)]
    pub(super) element: Element,
    #[serde(default)]
    pub(super) role: For,
    #[serde(default)]
    pub(super) lifetime: Lasts,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct CallItem {
    pub(super) name: String,
    pub(super) numbers: Option<[u32; 2]>,
    pub(super) phase: Part,
    #[serde(default)]
    pub(super) uses: Vec<UseItem>,
    #[serde(default)]
    pub(super) gradients: Vec<String>,
    #[serde(default)]
    pub(super) gradients_bf16: Vec<String>,
    #[serde(default)]
    pub(super) reads: Vec<String>,
    #[serde(default)]
    pub(super) writes: Vec<String>,
    #[serde(default)]
    pub(super) updates: Vec<String>,
    /// The first part of its cost.
    #[serde(flatten)]
    pub(super) part: PartItem,
    #[serde(default)]
    pub(super) parts: Vec<PartItem>,
    #[serde(default)]
    pub(super) dynamic: bool,
    pub(super) collective: Option<Given>,
    pub(super) among: Option<Ranks>,
    pub(super) capacity: Option<usize>,
    pub(super) filled: Option<u8>,
    pub(super) back: Option<String>,
    pub(super) again: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct UseItem {
    pub(super) weight: String,
    #[serde(default)]
    pub(super) orientation: Side,
    #[serde(default)]
    pub(super) form: Shown,
    pub(super) reuse: Option<Reuse>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct PartItem {
    #[serde(default)]
    pub(super) flops: u64,
    #[serde(default)]
    pub(super) bytes: u64,
    #[serde(default)]
    pub(super) kernels: u32,
    pub(super) math: Option<Math>,
}

/// Words of a file, and what they mean; the first is what is meant when the key is left out.
macro_rules! words {
    ($(#[$about:meta] $name:ident: $meaning:ty { $first:ident = $first_means:expr, $($word:ident = $means:expr),* $(,)? })*) => {$(
        #[$about]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub(super) enum $name { #[default] $first, $($word),* }

        impl From<$name> for $meaning {
            fn from(word: $name) -> Self {
                match word { $name::$first => $first_means, $($name::$word => $means),* }
            }
        }
    )*};
}

words! {
    /// Placement of a weight.
    Place: warpweft_plan::model::Placement {
        Sharded = Self::Sharded, Replicated = Self::Replicated,
    }
    /// Element type of a buffer.
    Element: ElementType {
        F32 = Self::F32, Bf16 = Self::Bf16, U8 = Self::U8, U32 = Self::U32,
    }
    /// Role of a buffer.
    For: Role {
        Internal = Self::Internal, Input = Self::Input, Output = Self::Output,
    }
    /// Lifetime of a buffer.
    Lasts: Lifetime {
        Step = Self::Step, Call = Self::Call, Carried = Self::Carried,
    }
    /// Phase of a call.
    Part: Phase {
        Forward = Self::Forward, Backward = Self::Backward,
    }
    /// Orientation of a use.
    Side: Orientation {
        Rowwise = Self::Rowwise, Columnwise = Self::Columnwise,
    }
    /// Kind of a collective.
    Given: CollectiveKind {
        AllGather = Self::AllGather, ReduceScatter = Self::ReduceScatter, AllToAll = Self::AllToAll,
        Sum = Self::Sum, Max = Self::Max,
    }
    /// The ranks among which a collective is.
    Ranks: Group {
        World = Self::World, Shard = Self::Shard, Replicate = Self::Replicate, Replica = Self::Replica,
        Context = Self::Context, Tensor = Self::Tensor, Expert = Self::Expert, ExpertShard = Self::ExpertShard,
        ExpertReplica = Self::ExpertReplica, ExpertRows = Self::ExpertRows,
    }
    /// Form of a use.
    Shown: Form {
        Planes = Self::Planes, Dense = Self::Dense, DenseBf16 = Self::DenseBf16,
    }
}

const fn needed(key: &'static str, takes: Takes) -> Rule {
    Rule { key, takes, needed_in: Some("") }
}

const fn of_each(key: &'static str, takes: Takes) -> Rule {
    Rule { key, takes, needed_in: Some("list.#") }
}

const fn optional(key: &'static str, takes: Takes) -> Rule {
    Rule { key, takes, needed_in: None }
}

const MATH: Takes = Takes::OneOf(&["f32", "bf16", "fp8", "fp4"]);
const KERNELS: Takes = Takes::Count(0, 1 << 30);
const REUSE: Takes = Takes::OneOf(&["regather", "keep"]);

impl Rules for File {
    const RULES: &'static [Rule] = &[
        needed("name", Takes::Text),
        optional("tokens", Takes::Count(1, LARGEST)),
        optional("micro_batches", Takes::Count(1, ProgramBuilder::MAX_MICRO_BATCHES as u64)),
        optional("math", MATH),
        needed("weight", Takes::Tables),
        of_each("weight.#.name", Takes::Text),
        optional("weight.#.numbers", Takes::FirstAndLast),
        of_each("weight.#.rows", Takes::Count(1, LARGEST)),
        of_each("weight.#.cols", Takes::Count(1, LARGEST)),
        optional("weight.#.format", Takes::Format),
        optional("weight.#.placement", Takes::OneOf(&["sharded", "replicated"])),
        optional("weight.#.reuse", REUSE),
        optional("weight.#.group", Takes::Text),
        optional("weight.#.frozen", Takes::Switch),
        optional("weight.#.expert_parallel", Takes::Switch),
        optional("buffer", Takes::Tables),
        of_each("buffer.#.name", Takes::Text),
        optional("buffer.#.numbers", Takes::FirstAndLast),
        of_each("buffer.#.elements", Takes::Count(1, LARGEST)),
        optional("buffer.#.element", Takes::OneOf(&["f32", "bf16", "u8", "u32"])),
        optional("buffer.#.role", Takes::OneOf(&["internal", "input", "output"])),
        optional("buffer.#.lifetime", Takes::OneOf(&["step", "call", "carried"])),
        needed("call", Takes::Tables),
        of_each("call.#.name", Takes::Text),
        optional("call.#.numbers", Takes::FirstAndLast),
        of_each("call.#.phase", Takes::OneOf(&["forward", "backward"])),
        optional("call.#.uses", Takes::Tables),
        of_each("call.#.uses.#.weight", Takes::Text),
        optional("call.#.uses.#.orientation", Takes::OneOf(&["rowwise", "columnwise"])),
        optional("call.#.uses.#.form", Takes::OneOf(&["planes", "dense", "dense_bf16"])),
        optional("call.#.uses.#.reuse", REUSE),
        optional("call.#.gradients", Takes::Names),
        optional("call.#.gradients_bf16", Takes::Names),
        optional("call.#.reads", Takes::Names),
        optional("call.#.writes", Takes::Names),
        optional("call.#.updates", Takes::Names),
        optional("call.#.flops", Takes::Count(0, 1 << 62)),
        optional("call.#.bytes", Takes::Count(0, 1 << 62)),
        optional("call.#.kernels", KERNELS),
        optional("call.#.parts", Takes::Tables),
        optional("call.#.parts.#.flops", Takes::Count(0, 1 << 62)),
        optional("call.#.parts.#.bytes", Takes::Count(0, 1 << 62)),
        optional("call.#.parts.#.kernels", KERNELS),
        optional("call.#.parts.#.math", MATH),
        optional("call.#.math", MATH),
        optional("call.#.dynamic", Takes::Switch),
        optional(
            "call.#.collective",
            Takes::OneOf(&["all_gather", "reduce_scatter", "all_to_all", "sum", "max"]),
        ),
        optional(
            "call.#.among",
            Takes::OneOf(&[
                "world",
                "shard",
                "replicate",
                "replica",
                "context",
                "tensor",
                "expert",
                "expert_shard",
                "expert_replica",
                "expert_rows",
            ]),
        ),
        optional("call.#.capacity", Takes::Count(1, LARGEST)),
        optional("call.#.filled", Takes::Count(1, 100)),
        optional("call.#.back", Takes::Text),
        optional("call.#.again", Takes::Text),
    ];
}
