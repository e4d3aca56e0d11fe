//! The choice of linear layers: which tensors of a model are quantized for an engine, and why others are left alone.
//!
//! Law: engines keep embeddings, the head, norms and routers in bf16, whatever a tool did with them; so these are left
//! alone by their names, unless a rule ends in the same word. What is quantized is a matrix called `X.weight`, or a
//! stack of them called `….experts.NAME` or `….experts.NAME.weight`, of shape `[experts, rows, columns]`, with a NAME
//! that engines know.

use std::fmt;

use safetensors::Dtype;
use warpweft_format::{Format, FormatError, Shape};

use warpweft_base::errors::shown;
use warpweft_base::pattern::pattern_matches;

/// Layers by the last part of their names that engines do not take quantized.
const KEPT: [(&str, &str); 15] = [
    ("lm_head", HEAD),
    ("head", HEAD),
    ("embed_out", HEAD),
    ("output", HEAD),
    ("classifier", HEAD),
    ("score", HEAD),
    ("wte", EMBEDDING),
    ("wpe", EMBEDDING),
    ("relative_attention_bias", EMBEDDING),
    ("shared_expert_gate", ROUTER),
    ("weights_proj", "the weights of an indexer"),
    ("eh_proj", "the projection of a predicted token"),
    ("c_attn", CONV1D),
    ("c_fc", CONV1D),
    ("c_proj", CONV1D),
];

const HEAD: &str = "a head";
pub(super) const EMBEDDING: &str = "an embedding";
const ROUTER: &str = "a router";
const CONV1D: &str = "a Conv1D as GPT-2 has it, which is transposed,";

/// Last parts of names of stacks of experts that engines know one by one.
const STACKS: [&str; 6] = ["w1", "w2", "w3", "gate_proj", "up_proj", "down_proj"];

/// The reason why a tensor is not quantized.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LeftAlone {
    /// A rule says so.
    Rule,
    /// Engines keep it in bf16: `what` it is by its name.
    Kept {
        /// What it is: "a router".
        what: &'static str,
    },
    /// It is no matrix called `X.weight`, and no stack of experts.
    NoLinear,
    /// Its elements are no plain numbers.
    Dtype {
        /// The dtype.
        dtype: Dtype,
    },
    /// The format refuses its shape.
    Shape(FormatError),
    /// An engine fuses it with others, one of which cannot be quantized.
    Fused {
        /// That one, and why.
        because: String,
    },
}

impl fmt::Display for LeftAlone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule => f.write_str("a rule keeps it"),
            Self::Kept { what } => {
                write!(f, "it is {what} by its name, which engines keep in bf16; a rule can name it")
            }
            Self::NoLinear => f.write_str(
                "it is no matrix named X.weight, and no stack of w1, w2, w3 or gate_proj, up_proj, down_proj",
            ),
            Self::Dtype { dtype } => write!(f, "{dtype}, and F32, BF16 and F16 are quantized"),
            Self::Shape(error) => error.fmt(f),
            Self::Fused { because } => write!(f, "engines fuse it with {because}"),
        }
    }
}

/// A rule for the tensors that its pattern matches: a format, or `None` to keep them.
pub type LayerRule = (String, Option<Format>);

/// The weights of linear layers in one tensor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Linears {
    /// The name of each layer, in the order of their rows.
    pub(crate) layers: Vec<String>,
    /// The shape of each.
    pub(crate) shape: Shape,
    pub(crate) format: Format,
}

impl Linears {
    /// Those of a tensor: in the format of the last rule that matches it, and otherwise in `format`.
    pub(crate) fn of(
        tensor: &str,
        dtype: Dtype,
        shape: &[usize],
        format: Format,
        rules: &[LayerRule],
    ) -> Result<Self, LeftAlone> {
        let rule = rules.iter().rev().find(|(pattern, _)| is_for(pattern, tensor));
        let format = match rule {
            Some((_, None)) => return Err(LeftAlone::Rule),
            Some((_, Some(format))) => *format,
            None => format,
        };
        let (layers, shape) = layers(tensor, shape).ok_or(LeftAlone::NoLinear)?;
        let is_named = rule.is_some_and(|(pattern, _)| names_its_last_part(pattern, tensor));
        if let (false, Some(what)) = (is_named, kept(tensor)) {
            return Err(LeftAlone::Kept { what });
        }
        if !matches!(dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16) {
            return Err(LeftAlone::Dtype { dtype });
        }
        format.check_shape(shape).map_err(LeftAlone::Shape)?;
        Ok(Self { layers, shape, format })
    }
}

/// The name of the layer whose weight this is: `X` of `X.weight`.
pub(crate) fn layer_of(tensor: &str) -> Option<&str> {
    tensor.strip_suffix(".weight").filter(|layer| !layer.is_empty())
}

/// Does a rule speak of a tensor, by its own name or by that of its layer?
pub(super) fn is_for(pattern: &str, tensor: &str) -> bool {
    pattern_matches(pattern, tensor) || layer_of(tensor).is_some_and(|layer| pattern_matches(pattern, layer))
}

/// Does a rule mean this layer and not many? So a rule for all of an MLP does not quantize its router.
fn names_its_last_part(pattern: &str, tensor: &str) -> bool {
    let last = |name: &'_ str| -> String {
        let layer = layer_of(name).unwrap_or(name);
        layer.rsplit('.').next().unwrap_or(layer).to_owned()
    };
    last(pattern) == last(tensor)
}

/// The layers of a tensor, and the shape of each.
pub(super) fn layers(tensor: &str, shape: &[usize]) -> Option<(Vec<String>, Shape)> {
    if shape.contains(&0) {
        return None;
    }
    match *shape {
        [rows, cols] => Some((vec![layer_of(tensor)?.to_owned()], Shape { rows, cols })),
        [experts, rows, cols] => {
            let (before, name) = layer_of(tensor).unwrap_or(tensor).rsplit_once('.')?;
            let is_stack = (before == "experts" || before.ends_with(".experts")) && STACKS.contains(&name);
            let layers = |()| (0..experts).map(|expert| format!("{before}.{expert}.{name}")).collect();
            is_stack.then_some(()).map(layers).map(|layers| (layers, Shape { rows, cols }))
        }
        _ => None,
    }
}

/// What a tensor is that engines keep in bf16, by its name.
fn kept(tensor: &str) -> Option<&'static str> {
    let layer = layer_of(tensor).unwrap_or(tensor);
    let last = layer.rsplit('.').next().unwrap_or(layer);
    if layer.split('.').any(|part| part == "gate" || part == "router") {
        return Some(ROUTER);
    }
    if last.contains("embed") && last != "embed_out" {
        return Some(EMBEDDING);
    }
    if last.contains("norm") || last.starts_with("ln_") {
        return Some("a norm");
    }
    KEPT.iter().find(|(name, _)| *name == last).map(|(_, what)| *what)
}

/// A name, as messages show it.
pub(crate) fn quoted(name: &str) -> String {
    format!("`{}`", shown(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tensor: &str, shape: &[usize], rules: &[LayerRule]) -> Result<Linears, LeftAlone> {
        Linears::of(tensor, Dtype::BF16, shape, Format::NVFP4_2D, rules)
    }

    #[test]
    fn embeddings_heads_norms_and_routers_stay_unless_a_rule_names_them() {
        let kept = [
            "lm_head",
            "model.embed_tokens",
            "model.embed_tokens_per_layer",
            "visual.pos_embed",
            "tok_embeddings",
            "transformer.wte",
            "layers.0.mlp.gate",
            "layers.0.mlp.gate.wg",
            "model.layers.1.block_sparse_moe.gate",
            "layers.0.block_sparse_moe.router.layer",
            "layers.0.mlp.shared_expert_gate",
            "layers.61.shared_head.head",
            "layers.61.eh_proj",
            "layers.0.self_attn.indexer.weights_proj",
            "h.0.attn.c_attn",
            "output",
        ];
        for kept in kept {
            let tensor = format!("{kept}.weight");
            assert!(matches!(of(&tensor, &[64, 64], &[]), Err(LeftAlone::Kept { .. })), "{kept}");
            // Not by a rule for many.
            let many = [("*".to_owned(), Some(Format::Mxfp8))];
            assert!(matches!(of(&tensor, &[64, 64], &many), Err(LeftAlone::Kept { .. })), "{kept}");
            for named in [kept.to_owned(), tensor.clone()] {
                let named = [(named, Some(Format::Mxfp8))];
                assert_eq!(of(&tensor, &[64, 64], &named).unwrap().format, Format::Mxfp8);
            }
        }
        for quantized in
            ["self_attn.kv_a_proj_with_mqa", "mlp.gate_proj", "attention.output.dense", "mlp.experts.3.w2"]
        {
            let layer = of(&format!("model.layers.0.{quantized}.weight"), &[64, 32], &[]).unwrap();
            assert_eq!(layer.layers, [format!("model.layers.0.{quantized}")]);
        }
        let keep = [("*gate_proj*".to_owned(), None)];
        assert_eq!(of("model.layers.0.mlp.gate_proj.weight", &[64, 32], &keep), Err(LeftAlone::Rule));
        assert_eq!(of("model.norm.weight", &[64], &[]), Err(LeftAlone::NoLinear));
        assert_eq!(of("blocks.0.up", &[64, 64], &[]), Err(LeftAlone::NoLinear));
        assert!(matches!(of("up.weight", &[64, 40], &[]), Err(LeftAlone::Shape(_))));
    }

    #[test]
    fn a_stack_of_experts_is_a_layer_for_each() {
        let stack = of("model.layers.0.mlp.experts.w1.weight", &[2, 32, 64], &[]).unwrap();
        let layers = ["model.layers.0.mlp.experts.0.w1", "model.layers.0.mlp.experts.1.w1"];
        assert_eq!((stack.layers, stack.shape), (layers.map(str::to_owned).to_vec(), Shape::new(32, 64)));
        assert_eq!(of("conv.weight", &[2, 32, 64], &[]), Err(LeftAlone::NoLinear));
        // Gate and up in one, which some models have transposed; and what would be too many names.
        assert_eq!(of("mlp.experts.gate_up_proj", &[2, 32, 64], &[]), Err(LeftAlone::NoLinear));
        assert_eq!(of("mlp.experts.w1", &[1 << 40, 0, 16], &[]), Err(LeftAlone::NoLinear));
    }
}
