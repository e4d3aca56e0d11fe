//! Errors of gradients that do not arrive, and counts of tensors that a block derives from its weights.
//!
//! Law: candle cuts its graph without a word where an operation has no backward, so an error of a cut names these
//! operations and their replacements.

use std::collections::BTreeSet;

use candle_core::{Storage, Tensor};

use crate::Error;
use crate::entry::Entry;
use crate::error::form;
use crate::slot::Slot;

const NORMS: &str = "the usual cause is `RmsNorm::forward`, or `LayerNorm::forward` with a bias, which have no \
    backward; call `forward_diff`, `candle_nn::ops::rms_norm_slow` or `candle_nn::ops::layer_norm_slow`";

const ATTENTION: &str = "the usual causes are `candle_nn::ops::softmax_last_dim`, `candle_nn::rotary_emb::rope`, \
    `rope_i` or `rope_thd`, and `candle_nn::ops::sdpa`, which have no backward; call `candle_nn::ops::softmax(…, \
    D::Minus1)`, `rope_slow` or `rope_i_slow`, and matrix products with a softmax";

const ANY: &str = "the usual causes are operations without a backward: `RmsNorm::forward` (call `forward_diff`), \
    `LayerNorm::forward` with a bias (`candle_nn::ops::layer_norm_slow`), `softmax_last_dim` (`softmax(…, \
    D::Minus1)`), `rope*` (`rope_slow`, `rope_i_slow`), `sdpa` (matrix products with a softmax), `detach`, and integers";

/// No gradient reaches a weight.
pub(crate) fn of_weight(block: &str, entry: &Entry) -> Error {
    let usual = match entry.shape.len() {
        0 | 1 => NORMS,
        _ => ATTENTION,
    };
    let name = &entry.name;
    let freeze = if entry.trains() { format!("`freeze(\"{name}\")` it, or ") } else { String::new() };
    Error::Cut {
        block: block.to_owned(),
        what: format!("weight `{name}`, {}", form(&entry.shape, entry.dtype)),
        cause: format!(
            "If the block uses it, {usual}. If it is meant, {freeze}let it be a `buffer`; if other batches use it, \
             `may_be_unused(\"{name}\")`"
        ),
    }
}

/// No gradient reaches what goes into a block.
pub(crate) fn of_input(block: &str, input: &Tensor) -> Error {
    Error::Cut {
        block: block.to_owned(),
        what: format!("its input, {}, so no block before it trains", form(input.dims(), input.dtype())),
        cause: format!(
            "{}{}. If it is meant, `may_be_unused(\"{block}\")`",
            ANY[..1].to_uppercase(),
            &ANY[1..]
        ),
    }
}

/// How many tensors of the graph of `output` are made of weights alone, and are no views of them; and their bytes. Of a
/// block whose input is no variable, as the first one's, that cannot be told: none.
pub(crate) fn derived(output: &Tensor, input: &Tensor, weights: &[Slot]) -> (usize, usize) {
    if !input.is_variable() {
        return (0, 0);
    }
    let place = |tensor: &Tensor| std::ptr::from_ref::<Storage>(&tensor.storage_and_layout().0).addr();
    let places: BTreeSet<usize> = weights.iter().map(|slot| place(slot.tensor())).collect();
    let of_weights_alone =
        |node: &&&Tensor| !node.sorted_nodes().iter().any(|other| other.id() == input.id());
    let mut found: BTreeSet<usize> = BTreeSet::new();
    let nodes = output.sorted_nodes();
    let copies = nodes.iter().filter(|node| !node.is_variable() && !places.contains(&place(node)));
    let bytes = copies.filter(of_weights_alone).map(|node| {
        let is_new = found.insert(place(node));
        if is_new { node.elem_count() * node.dtype().size_in_bytes() } else { 0 }
    });
    let bytes = bytes.sum();
    (found.len(), bytes)
}
