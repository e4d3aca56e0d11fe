//! Rules for weights by name: format, placement, reuse, parameter group, tensor parallelism, scale group, and
//! whether they are frozen.
//!
//! Every rule whose pattern matches the whole name applies, in the order of the file, each for the
//! keys it sets; so later rules refine earlier ones. In a pattern `*` stands for any run of
//! characters, dots included, and `?` for any one character. All else stands for itself.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::Config;
use warpweft_base::pattern::{captures, filled, pattern_matches};
use warpweft_format::Format;
use warpweft_plan::model::{NonNegative, Placement, Reuse, Segments, TensorParallel};

/// A rule for the weights whose names match a pattern.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightRule {
    /// Which weights it is for, by their whole name: `blocks.*.mlp.*`. `*` stands for any characters, dots too,
    /// and `?` for one. The key is `match`.
    #[serde(rename = "match")]
    pub pattern: String,
    /// Their format, if the rule is to change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// Whether their uses find planes kept from the use before, if the rule is to decide it: in backward and
    /// in the next micro-batch alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reuse: Option<Reuse>,
    /// Their placement, if the rule is to change it.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "placement")]
    pub placement: Option<Placement>,
    /// Their weight decay λ, in place of `optimizer.weight_decay`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// A factor on their learning rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lr_scale: Option<f64>,
    /// Whether the custom optimizer gets their matrices whole, if the rule is to decide it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole_matrix: Option<bool>,
    /// Whether they stay what they are, if the rule is to decide it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<bool>,
    /// What tensor parallelism does with them, if the rule is to decide it.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "tensor_parallel")]
    pub tensor_parallel: Option<TensorParallel>,
    /// The rows of the matrices that they stack, such as query, key and value, each of which is cut by itself, if they
    /// are column parallel and the rule is to say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segments: Option<Vec<usize>>,
    /// Whether they are of experts, of which other ranks of an expert-parallel group have others, if the rule is to
    /// decide it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert_parallel: Option<bool>,
    /// Their scale group, if the rule is to decide it: empty for none. What a `*` of the pattern stands for
    /// takes the place of the same `*` here, so that `*.q_proj` is of `*.qkv` in every layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_group: Option<String>,
}

/// The settings of one weight by the rules; `None` leaves its declaration as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightSettings {
    /// Its format.
    pub format: Option<Format>,
    /// Its placement.
    pub placement: Option<Placement>,
    /// Whether its uses find planes kept from earlier uses.
    pub reuse: Option<Reuse>,
    /// Its weight decay.
    pub weight_decay: Option<NonNegative>,
    /// A factor on its learning rate.
    pub learning_rate_scale: Option<NonNegative>,
    /// Whether the custom optimizer gets its matrix whole.
    pub whole_matrix: Option<bool>,
    /// Whether it stays what it is.
    pub frozen: Option<bool>,
    /// What tensor parallelism does with it.
    pub tensor_parallel: Option<TensorParallel>,
    /// The segments that are cut each by itself.
    pub segments: Option<Segments>,
    /// Whether it is of an expert, of which other ranks have others.
    pub expert_parallel: Option<bool>,
}

impl Config {
    /// The settings of the weight of this name, by the rules.
    pub fn weight_settings(&self, name: &str) -> WeightSettings {
        settings(self.weights.iter().filter(|rule| pattern_matches(&rule.pattern, name)))
    }
}

/// What `rules` say about a weight that all of them match.
pub(super) fn settings<'r>(rules: impl Iterator<Item = &'r WeightRule>) -> WeightSettings {
    let apply = |settings: WeightSettings, rule: &WeightRule| WeightSettings {
        format: rule.format.or(settings.format),
        placement: rule.placement.or(settings.placement),
        reuse: rule.reuse.or(settings.reuse),
        weight_decay: number(rule.weight_decay).or(settings.weight_decay),
        learning_rate_scale: number(rule.lr_scale).or(settings.learning_rate_scale),
        whole_matrix: rule.whole_matrix.or(settings.whole_matrix),
        frozen: rule.frozen.or(settings.frozen),
        tensor_parallel: rule.tensor_parallel.or(settings.tensor_parallel),
        segments: rule.segments.as_deref().and_then(Segments::new).or(settings.segments),
        expert_parallel: rule.expert_parallel.or(settings.expert_parallel),
    };
    rules.fold(WeightSettings::default(), apply)
}

/// The scale group that `rules`, which all match a weight, put it in; empty for none, and `None` where they
/// leave it as it is.
pub(super) fn scale_group<'r>(
    rules: impl DoubleEndedIterator<Item = &'r WeightRule>,
    name: &str,
) -> Option<String> {
    let mut rules = rules.rev();
    rules.find_map(|rule| Some(filled(rule.scale_group.as_deref()?, &captures(&rule.pattern, name)?)))
}

/// Rules by how their patterns begin, before the first `*` or `?`, and end, after the last: a name is compared with
/// those alone that begin and end as it does. Rules that differ only in between are compared with every such name.
pub(super) struct RuleIndex<'r> {
    rules: &'r [WeightRule],
    by_ends: HashMap<(&'r str, &'r str), Vec<usize>>,
    /// The lengths of all beginnings with those of their endings.
    lengths: BTreeSet<(usize, usize)>,
}

impl<'r> RuleIndex<'r> {
    pub(super) fn new(rules: &'r [WeightRule]) -> Self {
        let mut by_ends: HashMap<(&str, &str), Vec<usize>> = HashMap::new();
        for (number, rule) in rules.iter().enumerate() {
            by_ends.entry(literal_ends(&rule.pattern)).or_default().push(number);
        }
        let lengths = by_ends.keys().map(|(beginning, ending)| (beginning.len(), ending.len())).collect();
        Self { rules, by_ends, lengths }
    }

    /// The numbers of the rules that match a name, in the order of the file.
    pub(super) fn matching(&self, name: &str) -> Vec<usize> {
        let ends = |(beginning, ending): &(usize, usize)| {
            let end = name.len().checked_sub(*ending).filter(|end| beginning <= end)?;
            Some((name.get(..*beginning)?, name.get(end..)?))
        };
        let candidates =
            self.lengths.iter().filter_map(ends).filter_map(|ends| self.by_ends.get(&ends)).flatten();
        let mut matching: Vec<usize> =
            candidates.copied().filter(|rule| pattern_matches(&self.rules[*rule].pattern, name)).collect();
        matching.sort_unstable();
        matching
    }
}

/// How every name that a pattern matches begins and ends.
fn literal_ends(pattern: &str) -> (&str, &str) {
    const WILDCARDS: [char; 2] = ['*', '?'];
    match pattern.split_once(WILDCARDS) {
        Some((beginning, rest)) => (beginning, rest.rsplit(WILDCARDS).next().unwrap_or(rest)),
        None => (pattern, ""),
    }
}

/// What a key of a rule says, in the precision of the optimizer; whatever is out of range was refused when the
/// configuration was read.
fn number(value: Option<f64>) -> Option<NonNegative> {
    value.and_then(|value| NonNegative::new(value as f32))
}

/// `sharded` and `replicated` in files.
mod placement {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use warpweft_plan::model::Placement;

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Word {
        Sharded,
        Replicated,
    }

    // The signature is serde's.
    #[allow(clippy::ref_option)]
    pub(super) fn serialize<S: Serializer>(
        value: &Option<Placement>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let word = value.map(|placement| match placement {
            Placement::Sharded => Word::Sharded,
            Placement::Replicated => Word::Replicated,
        });
        word.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Placement>, D::Error> {
        let word = Option::<Word>::deserialize(deserializer)?;
        Ok(word.map(|word| match word {
            Word::Sharded => Placement::Sharded,
            Word::Replicated => Placement::Replicated,
        }))
    }
}

/// `column`, `row`, `split_tokens` and `alike_tokens` in files.
mod tensor_parallel {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use warpweft_plan::model::TensorParallel;

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Word {
        Column,
        Row,
        SplitTokens,
        AlikeTokens,
    }

    // The signature is serde's.
    #[allow(clippy::ref_option)]
    pub(super) fn serialize<S: Serializer>(
        value: &Option<TensorParallel>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let word = value.map(|how| match how {
            TensorParallel::ColumnParallel => Word::Column,
            TensorParallel::RowParallel => Word::Row,
            TensorParallel::SplitTokens => Word::SplitTokens,
            TensorParallel::AlikeTokens => Word::AlikeTokens,
        });
        word.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<TensorParallel>, D::Error> {
        let word = Option::<Word>::deserialize(deserializer)?;
        Ok(word.map(|word| match word {
            Word::Column => TensorParallel::ColumnParallel,
            Word::Row => TensorParallel::RowParallel,
            Word::SplitTokens => TensorParallel::SplitTokens,
            Word::AlikeTokens => TensorParallel::AlikeTokens,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition of a match, without thought for time.
    fn by_definition(pattern: &[char], name: &[char]) -> bool {
        match (pattern, name) {
            ([], rest) => rest.is_empty(),
            (['*', after @ ..], _) => (0..=name.len()).any(|taken| by_definition(after, &name[taken..])),
            (['?', after @ ..], [_, rest @ ..]) => by_definition(after, rest),
            ([own, after @ ..], [first, rest @ ..]) => own == first && by_definition(after, rest),
            _ => false,
        }
    }

    #[test]
    fn stars_take_dots_and_marks_take_one_character() {
        assert!(pattern_matches("blocks.*.mlp.*", "blocks.12.mlp.up"));
        assert!(pattern_matches("*", ""));
        assert!(pattern_matches("blocks.?", "blocks.ü"));
        assert!(!pattern_matches("blocks.?", "blocks.12"));
        assert!(!pattern_matches("blocks", "blocks.0"));
        assert!(!pattern_matches("", "x"));
    }

    #[test]
    fn a_hostile_pattern_takes_no_time_to_speak_of() {
        let (pattern, name) = ("*a".repeat(500) + "b", "a".repeat(5_000));
        assert!(!pattern_matches(&pattern, &name));
    }

    #[test]
    fn later_rules_refine_earlier_ones_key_by_key() {
        let rule = |pattern: &str, format, placement| WeightRule {
            pattern: pattern.to_owned(),
            format,
            placement,
            ..WeightRule::default()
        };
        let weights = vec![
            rule("*", Some(Format::Bf16), None),
            rule("*.norm", None, Some(Placement::Replicated)),
            rule("head.*", Some(Format::F32), None),
        ];
        let config = Config { weights, ..Config::default() };
        let settings = config.weight_settings("head.norm");
        assert_eq!(settings.format, Some(Format::F32));
        assert_eq!(settings.placement, Some(Placement::Replicated));
        assert_eq!(config.weight_settings("head").format, Some(Format::Bf16));
        assert_eq!(Config::default().weight_settings("head"), WeightSettings::default());
    }

    proptest! {
        #[test]
        fn the_index_finds_the_rules_that_match_in_the_order_of_the_file(
            patterns in prop::collection::vec("[abü*?.]{0,4}|[abü]{1,2}[*?][bü.*?]{0,2}[abü]{1,2}", 0..8), name in "[abü.]{0,6}"
        ) {
            let rule = |pattern: String| WeightRule { pattern, ..WeightRule::default() };
            let rules: Vec<_> = patterns.into_iter().map(rule).collect();
            let letters = |text: &str| text.chars().collect::<Vec<_>>();
            let matches = |&rule: &usize| by_definition(&letters(&rules[rule].pattern), &letters(&name));
            let expected: Vec<_> = (0..rules.len()).filter(matches).collect();
            prop_assert_eq!(RuleIndex::new(&rules).matching(&name), expected);
        }

        #[test]
        fn matching_agrees_with_its_definition(pattern in "[ab*?.]{0,8}", name in "[ab.]{0,10}") {
            let letters = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(
                pattern_matches(&pattern, &name),
                by_definition(&letters(&pattern), &letters(&name))
            );
        }
    }
}
