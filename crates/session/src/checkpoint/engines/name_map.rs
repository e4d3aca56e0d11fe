//! A name map: what the tensors of one model are called, and how they lie, in another.
//!
//! ```toml
//! [[tensor]]                     # the first rule that matches a name counts
//! from = "blocks.*.attn.qkv"
//! to = ["model.layers.*.self_attn.q_proj.weight", "model.layers.*.self_attn.k_proj.weight",
//!       "model.layers.*.self_attn.v_proj.weight"]
//! rows = [4096, 1024, 1024]      # where one becomes several: the rows of each
//!
//! [[tensor]]
//! from = "embedding"
//! to = "model.embed_tokens.weight"
//! transpose = true
//!
//! [[tensor]]                     # tied: it is left out of the folder, and read from there
//! from = "head"
//! tied = "model.embed_tokens.weight"
//! ```
//!
//! Law: one map serves both ways, from a session's weights to a model's folder and back. What no rule matches is
//! refused by its name; nothing is left out in silence.

use serde::Deserialize;

use crate::checkpoint::CheckpointError;
use warpweft_base::errors::shown;
use warpweft_base::pattern::{captures, filled};

/// Rules by which tensors are renamed, cut into several, transposed or left out.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameMap {
    #[serde(default)]
    tensor: Vec<TensorRule>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorRule {
    from: String,
    #[serde(default)]
    to: Names,
    #[serde(default)]
    rows: Vec<usize>,
    #[serde(default)]
    transpose: bool,
    tied: Option<String>,
}

/// One name, or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Names {
    One(String),
    Several(Vec<String>),
}

impl Default for Names {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

impl Names {
    fn as_slice(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Several(names) => names,
        }
    }
}

/// A tensor of the other model: which rows of ours it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(crate) name: String,
    /// The first row of ours, before it is transposed.
    pub(crate) first_row: usize,
    /// Rows of ours; `None` for all of them.
    pub(crate) rows: Option<usize>,
    pub(crate) transpose: bool,
    /// Another weight is written under this name, and this one is only read from it.
    pub(crate) is_tied: bool,
}

impl NameMap {
    /// The rules of a file of TOML.
    ///
    /// # Errors
    /// [`CheckpointError::Unfit`] with the place, for a key that there is not, and for a rule that says neither or both
    /// of `to` and `tied`, other `rows` than names, or more `*` after than in front.
    pub fn read(toml: &str) -> Result<Self, CheckpointError> {
        let unfit = |reason: String| CheckpointError::Unfit { reason: format!("the name map: {reason}") };
        let map: Self = toml::from_str(toml).map_err(|error| unfit(shown(error)))?;
        map.tensor.iter().try_for_each(|rule| rule.check()).map_err(unfit)?;
        Ok(map)
    }

    /// What `tensor` becomes. Without rules every tensor keeps its name.
    ///
    /// # Errors
    /// [`CheckpointError::Unfit`] where no rule matches it.
    pub(crate) fn of(&self, tensor: &str) -> Result<Vec<Mapped>, CheckpointError> {
        if self.tensor.is_empty() {
            let (name, rows, transpose) = (tensor.to_owned(), None, false);
            return Ok(vec![Mapped { name, first_row: 0, rows, transpose, is_tied: false }]);
        }
        let found = self.tensor.iter().find_map(|rule| Some((rule, captures(&rule.from, tensor)?)));
        let Some((rule, taken)) = found else {
            let reason = format!(
                "the name map has no rule for `{}`; add one, with `tied` if it is written under another name",
                shown(tensor)
            );
            return Err(CheckpointError::Unfit { reason });
        };
        let tied = rule.tied.iter();
        let names = rule.to.as_slice().iter().chain(tied.clone());
        let mut first_row = 0;
        let mapped = names.enumerate().map(|(number, name)| {
            let rows = rule.rows.get(number).copied();
            let name = filled(name, &taken);
            let (transpose, is_tied) = (rule.transpose, rule.tied.is_some());
            let mapped = Mapped { name, first_row, rows, transpose, is_tied };
            first_row = first_row.saturating_add(rows.unwrap_or(0));
            mapped
        });
        Ok(mapped.collect())
    }
}

impl TensorRule {
    fn check(&self) -> Result<(), String> {
        let names = self.to.as_slice();
        let wrong = |what: &str| Err(format!("the rule for `{}` {what}", shown(&self.from)));
        if names.is_empty() == self.tied.is_none() {
            return wrong("needs either `to` or `tied`");
        }
        if names.len() > 1 && self.rows.len() != names.len() {
            return wrong("makes several tensors of one, and needs `rows` with the rows of each");
        }
        if names.len() <= 1 && !self.rows.is_empty() {
            return wrong("has `rows`, which are for a tensor that becomes several");
        }
        let stars = |name: &str| name.matches('*').count();
        let most = stars(&self.from);
        if names.iter().chain(&self.tied).any(|name| stars(name) > most) {
            return wrong("has more `*` in a new name than in `from`");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = r#"
        [[tensor]]
        from = "blocks.*.qkv"
        to = ["layers.*.q.weight", "layers.*.k.weight"]
        rows = [4, 2]
        [[tensor]]
        from = "head"
        tied = "embed.weight"
        [[tensor]]
        from = "*"
        to = "other.*"
        transpose = true
    "#;

    #[test]
    fn names_are_filled_with_what_the_stars_took_and_rows_are_counted_on() {
        let map = NameMap::read(MAP).unwrap();
        let [q, k] = &map.of("blocks.12.qkv").unwrap()[..] else { panic!("two") };
        assert_eq!((&q.name[..], q.first_row, q.rows), ("layers.12.q.weight", 0, Some(4)));
        assert_eq!((&k.name[..], k.first_row, k.rows), ("layers.12.k.weight", 4, Some(2)));
        assert!(map.of("head").unwrap()[0].is_tied);
        let other = &map.of("up").unwrap()[0];
        assert_eq!((&other.name[..], other.transpose), ("other.up", true));
    }

    #[test]
    fn a_rule_that_cannot_be_meant_and_a_name_without_a_rule_are_refused() {
        for wrong in [
            "[[tensor]]\nfrom = 'a'",
            "[[tensor]]\nfrom = 'a'\nto = 'b'\ntied = 'c'",
            "[[tensor]]\nfrom = 'a'\nto = ['b', 'c']",
            "[[tensor]]\nfrom = 'a'\nto = 'b'\nrows = [1]",
            "[[tensor]]\nfrom = 'a'\nto = 'b.*'",
            "[[tensor]]\nfrom = 'a'\nto = 'b'\nrow = 1",
        ] {
            assert!(NameMap::read(wrong).is_err(), "{wrong}");
        }
        let error = NameMap::read("[[tensor]]\nfrom = 'a'\nto = 'b'").unwrap().of("c").unwrap_err();
        assert!(error.to_string().contains("no rule for `c`"), "{error}");
    }
}
