//! Optimizer states in a file: moments of gradients.
//!
//! Law: an average and that of the squares are floats of one module and of one shape, and the name of the second is
//! that of the first with `_sq` after. Short names that a model may have too (`m` and `v`) are taken for averages
//! only where every tensor of the file that is no number is one of such a pair. Beside a `master` of the same shape,
//! they are what this library's sessions save.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Listed, NotWeights};

/// What pairs of averages are called where nothing else is in the file.
const PAIRS: [[&str; 2]; 4] = [["m", "v"], ["mu", "nu"], ["state1", "state2"], ["moment1", "moment2"]];

/// What an average without squares is called where nothing else is in the file.
const ALONE: [&str; 3] = ["momentum_buffer", "momentum", "exp_avg"];

const MASTER: &str = "master";

const ADVICE: &str = "name the file of the model's weights";

/// Adds the averages of a module.
pub(super) fn find(module: &[Listed<'_>], found: &mut NotWeights) {
    let by_name: HashMap<&str, &Listed<'_>> = module.iter().map(|tensor| (tensor.last, tensor)).collect();
    if let Some(master) = by_name.get(MASTER) {
        let kept = module.iter().filter(|tensor| {
            tensor.is_plain_float() && tensor.shape == master.shape && tensor.last != MASTER
        });
        for tensor in kept {
            let (tensor_described, master) = (tensor.described(), master.described());
            let what = format!(
                "a checkpoint with the state of an optimizer: {tensor_described} is kept beside {master}, which is the weight; read that"
            );
            found.add(&Arc::from(what), [*tensor]);
        }
    }
    for squares in module {
        let average = squares.last.strip_suffix("_sq").and_then(|name| by_name.get(name));
        let are_averages = |average: &&&Listed<'_>| {
            average.is_plain_float() && squares.is_plain_float() && average.shape == squares.shape
        };
        if let Some(average) = average.filter(are_averages) {
            add(average, squares, found);
        }
    }
}

/// Adds averages of short names, if nothing else is there.
pub(super) fn find_everywhere(tensors: &[Listed<'_>], found: &mut NotWeights) {
    let tensors: Vec<Listed<'_>> = tensors.iter().copied().filter(|tensor| tensor.elements > 1).collect();
    let named: HashMap<&str, &Listed<'_>> = tensors.iter().map(|tensor| (tensor.name, tensor)).collect();
    let names: HashSet<&str> = tensors.iter().map(|tensor| tensor.last).collect();
    if let Some(name) = ALONE.iter().find(|name| names.len() == 1 && names.contains(*name)) {
        if let Some(first) = tensors.first() {
            let first = first.described();
            let what = format!("the state of an optimizer: {first} and all others are `{name}`; {ADVICE}");
            found.add(&Arc::from(what), tensors.iter().copied());
        }
        return;
    }
    for [first, second] in PAIRS {
        let pair = |squares: &Listed<'_>| {
            let module = squares.name.strip_suffix(second)?;
            let average = named.get(format!("{module}{first}").as_str())?;
            (squares.last == second && average.shape == squares.shape).then_some(**average)
        };
        let pairs: Vec<[Listed<'_>; 2]> =
            tensors.iter().filter_map(|squares| Some([pair(squares)?, *squares])).collect();
        // Of 8-bit states there are scales and tables too, which are smaller.
        let covered: HashSet<&str> = pairs.iter().flatten().map(|tensor| tensor.name).collect();
        let all = |tensor: &Listed<'_>| covered.contains(tensor.name) || is_of_a_state(tensor, first);
        if !pairs.is_empty() && tensors.iter().all(all) {
            pairs.iter().for_each(|[average, squares]| add(average, squares, found));
        }
    }
}

/// Is it a scale or a table of an optimizer's state in 8 bits?
fn is_of_a_state(tensor: &Listed<'_>, pair: &str) -> bool {
    pair == "state1" && tensor.shape.len() == 1
}

fn add(average: &Listed<'_>, squares: &Listed<'_>, found: &mut NotWeights) {
    let (average_described, squares_described) = (average.described(), squares.described());
    let what = format!(
        "the state of an optimizer: {average_described} and {squares_described} are averages of gradients and of their squares; {ADVICE}"
    );
    found.add(&Arc::from(what), [*average, *squares]);
}
