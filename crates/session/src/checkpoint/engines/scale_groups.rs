//! Scale groups: which layers an engine fuses into one, so that they need one scale.
//!
//! vLLM, SGLang and TensorRT-LLM compute queries, keys and values in one product, and gate and up in another, and take
//! the scale of the tensor of one part for all. Where the parts have scales of their own, the others are decoded by a
//! wrong number, in silence. So whoever writes gives one scale to a group, in NVFP4 and in FP8 by tensors.
//!
//! Law **EN-2**: the layers of a group, and the experts of a layer, are quantized alike or not at all, and those of a
//! group whose encoding has a scale of the tensor have one that is the same to the bit.

use std::collections::BTreeMap;

/// Last parts of the names of layers that engines fuse, in Llama, Qwen, Mistral, Mixtral and DeepSeek.
const FUSED: [&[&str]; 4] = [
    &["q_proj", "k_proj", "v_proj"],
    &["gate_proj", "up_proj"],
    &["w1", "w3"],
    &["q_a_proj", "kv_a_proj_with_mqa"],
];

/// Names of layers that share a scale where what stands before them is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScaleGroups {
    /// Endings of names, from the most telling on.
    fused: Vec<Vec<String>>,
}

impl ScaleGroups {
    /// Those of `own`, which come first, and those of the models that engines know.
    pub(crate) fn new(own: &[Vec<String>]) -> Self {
        let known = FUSED.iter().map(|parts| parts.iter().map(|&part| part.to_owned()).collect());
        Self { fused: own.iter().cloned().chain(known).collect() }
    }

    /// The group of a layer, as its name with the endings of all its parts: `model.layers.0.mlp.{gate_proj,up_proj}`.
    pub(crate) fn of(&self, layer: &str) -> Option<String> {
        self.fused.iter().find_map(|parts| {
            let before = parts.iter().find_map(|part| prefix(layer, part))?;
            Some(format!("{before}{{{}}}", parts.join(",")))
        })
    }

    /// The layers of each group that has several of them, by its name.
    pub(crate) fn among<'a>(
        &self,
        layers: impl IntoIterator<Item = &'a str>,
    ) -> BTreeMap<String, Vec<&'a str>> {
        let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for layer in layers {
            if let Some(group) = self.of(layer) {
                groups.entry(group).or_default().push(layer);
            }
        }
        groups.retain(|_, layers| layers.len() > 1);
        for layers in groups.values_mut() {
            layers.sort_by_key(|layer| self.place(layer));
        }
        groups
    }

    /// Which part of its group a layer is: engines lay them one after the other in this order.
    fn place(&self, layer: &str) -> usize {
        let place = |parts: &Vec<String>| parts.iter().position(|part| prefix(layer, part).is_some());
        self.fused.iter().find_map(place).unwrap_or(0)
    }

    /// Own groups of which no layer is a part.
    pub(crate) fn idle<'g>(own: &'g [Vec<String>], layers: &[&str]) -> Option<&'g Vec<String>> {
        own.iter()
            .find(|parts| !layers.iter().any(|layer| parts.iter().any(|part| prefix(layer, part).is_some())))
    }
}

/// The experts that one kernel of an engine computes: those of a layer, by what stands before their numbers.
pub(crate) fn experts(layer: &str) -> Option<&str> {
    let end = layer.find(".experts.")?;
    Some(&layer[..end + ".experts".len()])
}

/// What stands before `part` at the end of a name, whole between dots.
fn prefix<'a>(layer: &'a str, part: &str) -> Option<&'a str> {
    let before = layer.strip_suffix(part)?;
    (before.is_empty() || before.ends_with('.')).then_some(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EN-2.
    #[test]
    fn layers_that_engines_fuse_are_one_group_and_no_others() {
        let groups = ScaleGroups::new(&[vec!["attn.wq".to_owned(), "attn.wk".to_owned()]]);
        let layers = [
            "model.layers.0.self_attn.q_proj",
            "model.layers.0.self_attn.k_proj",
            "model.layers.0.self_attn.o_proj",
            "model.layers.1.self_attn.q_proj",
            "model.layers.0.block_sparse_moe.experts.3.w1",
            "model.layers.0.block_sparse_moe.experts.3.w2",
            "model.layers.0.block_sparse_moe.experts.3.w3",
            "model.layers.0.block_sparse_moe.experts.4.w3",
            "model.layers.0.self_attn.q_a_proj",
            "model.layers.0.self_attn.kv_a_proj_with_mqa",
            "blocks.0.attn.wq",
            "blocks.0.attn.wk",
            "blocks.0.mlp.xw1",
            "blocks.0.mlp.w3",
        ];
        let found: Vec<Vec<&str>> = groups.among(layers).into_values().collect();
        let expected: [&[&str]; 4] =
            [&layers[10..12], &[layers[4], layers[6]], &layers[8..10], &layers[0..2]];
        assert_eq!(found, expected);
    }
}
