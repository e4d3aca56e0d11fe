//! Errors of gradients that do not arrive.
//!
//! Law: burn cuts its graph silently at `detach` and the like, so an error of a cut names the usual causes.

use crate::Error;
use crate::entry::Entry;
use crate::error::form;
use crate::values::Form;

const CAUSES: &str = "the usual causes are `detach`, `inner`, `without_autodiff`, values that went through `into_data` \
    or integers, and a branch that the sample does not take";

/// No gradient reaches a weight.
pub(crate) fn of_weight(block: &str, entry: &Entry) -> Error {
    let name = &entry.name;
    Error::Cut {
        block: block.to_owned(),
        what: format!("weight `{name}`, {}", form(&entry.shape, entry.dtype)),
        cause: format!(
            "The block reads it, so {CAUSES}. If it is meant, `freeze(\"{name}\")` it, or let it be a `buffer`; if \
             other batches use it, `may_be_unused(\"{name}\")`"
        ),
    }
}

/// No gradient reaches what goes into a block.
pub(crate) fn of_input(block: &str, input: &Form) -> Error {
    let (first, rest) = CAUSES.split_at(1);
    Error::Cut {
        block: block.to_owned(),
        what: format!("its input, {}, so no block before it trains", form(&input.dims, input.dtype)),
        cause: format!("{}{rest}. If it is meant, `may_be_unused(\"{block}\")`", first.to_uppercase()),
    }
}
