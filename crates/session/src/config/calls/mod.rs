//! A model as a file that lists its weights, buffers and calls.
//!
//! Law: this is [`Model`](warpweft_plan::model::Model) and
//! [`StepProgram`](warpweft_plan::model::StepProgram) written down,
//! nothing more: what could be declared by hand can be listed, and nothing is added. What the declaration
//! refuses is reported with the key of the item that requested it.
//!
//! One thing is left out instead of refused: the gradient that a call lists of a weight that is frozen, by
//! the file or by a rule of the configuration. A list describes a model for planning, and one list does for
//! every choice of what trains. What its calls cost stays what the list says.
//!
//! | key | of each | meaning |
//! |---|---|---|
//! | `name`, `tokens`, `micro_batches`, `math` | | what it is called; tokens of one rank in one micro-batch, for rates; as for a decoder |
//! | `[[weight]]` | `name`, `rows`, `cols` | its shape; sharded over the ranks |
//! | | `format`, `placement`, `reuse` | `bf16`; or replicated, then f32; whether its planes are kept |
//! | | `group` | weights of one group travel together |
//! | | `frozen` | `true`: it does not train, and gradients that calls list of it are left out |
//! | | `expert_parallel` | `true`: it is of one of a rank's own experts |
//! | `[[buffer]]` | `name`, `elements`, `element` | f32 when left out |
//! | | `role`, `lifetime` | `internal` and `step` when left out |
//! | `[[call]]` | `name`, `phase` | in program order |
//! | | `uses` | `{ weight, orientation, form, reuse }`, rowwise planes when left out |
//! | | `gradients`, `gradients_bf16` | names of weights; those whose gradients the call writes in bf16 |
//! | | `reads`, `writes`, `updates` | names of buffers |
//! | | `flops`, `bytes`, `math`, `kernels` | its cost, or the first part of it |
//! | | `parts` | `{ flops, bytes, math, kernels }`, further parts: what they take adds up |
//! | | `dynamic` | `true`: it is issued anew in every step, also where steps are recorded |
//! | | `collective`, `among` | in the place of a closure, ranks give each other the one buffer it reads: `all_gather`, `reduce_scatter`, `all_to_all`, `sum` or `max`, into the one it writes; among the `world` when left out, or `shard`, `replicate`, `replica`, `context`, `tensor`, `expert`, `expert_shard`, `expert_replica`, `expert_rows` |
//! | | `capacity`, `filled` | an all-to-all with counts: it reads rows and how many of each slot are filled, and writes the same; rows for which a slot has room, and of a hundred how many prices take to be filled, 100 when left out |
//! | | `back`, `again` | the name of such a call: rows go back by its counts, or the same way again |
//!
//! **Numbers.** An item with `numbers = [first, last]` is repeated for every number from first to last,
//! downwards if the last is smaller. In each text of the item `#` is the number, `#-1` and `#+1` are its
//! neighbours. So a chain of any length is a few lines, and its backward is `numbers = [31, 0]`.
//!
//! A program in which some call lists a gradient trains; one without evaluates.
//!
//! | file | idea |
//! |---|---|
//! | `file` | what such a file may say |
//! | `build` | a file to weights and calls |
//! | `collective` | a call that is a collective |
//! | `numbers` | items that are repeated |

mod build;
mod collective;
mod file;
mod numbers;

use self::file::File;
use super::document::Document;
use super::{ConfigError, Declared};

/// A model and the program of its step, as a file lists them.
#[derive(Clone, Debug)]
pub struct CallList {
    file: File,
    document: Document,
}

impl CallList {
    /// All keys of such a file, dotted; `#` is the number of any item of a list.
    #[doc(hidden)]
    pub fn keys() -> impl Iterator<Item = &'static str> {
        <File as super::Rules>::RULES.iter().map(|rule| rule.key)
    }

    /// Does a text list calls, rather than declare a decoder by its sizes?
    #[must_use]
    pub fn is_meant_by(text: &str) -> bool {
        let lists =
            |table: toml::Table| ["call", "weight", "buffer"].iter().any(|key| table.contains_key(*key));
        text.parse::<toml::Table>().is_ok_and(lists)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.file.name
    }

    /// Tokens of one rank in one micro-batch, if the file says so.
    #[must_use]
    pub const fn tokens(&self) -> Option<usize> {
        self.file.tokens
    }
}

impl Declared for CallList {
    /// Names are looked up later, by [`CallList::program`].
    fn from_toml(text: &str, source_name: &str) -> Result<Self, ConfigError> {
        let file = File::from_toml(text, source_name)?;
        Ok(Self { file, document: Document::parse(source_name, text)? })
    }
}

#[cfg(test)]
mod tests;
