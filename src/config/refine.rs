//! Applies the rules of `[[weights]]` to a declared model.
//!
//! A rule that matches no weight is an error: it is a misspelt pattern, and the weights it was meant
//! for would silently keep their format. Programs are declared over the refined model, so whatever a
//! rule makes impossible (a columnwise use of a replicated weight, a shape the format cannot take) is
//! refused where it is declared.

use super::{Config, ConfigError, WeightRule, keys, pattern_matches};
use crate::format::Format;
use crate::model::{Model, ModelBuilder, Placement, WeightSpec};

impl Config {
    /// The model with formats and placements as the rules say; ids stay as they are. A format is for
    /// sharded weights: norms and biases that a pattern such as `blocks.*.mlp.*` also matches stay
    /// replicated, in f32.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] for a rule that matches nothing, [`ConfigError::Weights`] when a weight
    /// cannot be what a rule wants.
    pub fn apply_weight_rules(&self, model: &Model) -> Result<Model, ConfigError> {
        let matches_none =
            |pattern: &str| !model.weights().iter().any(|spec| pattern_matches(pattern, &spec.name));
        for (number, rule) in self.weights.iter().enumerate() {
            if matches_none(&rule.pattern) {
                let path = format!("weights.{number}.match");
                let entry = keys::entries(self).into_iter().find(|entry| entry.path == path);
                return Err(ConfigError::Invalid {
                    origin: entry.map_or(super::Origin::Program, |entry| self.origins.of(&entry)),
                    problem: format!("is {:?}, which matches no weight", rule.pattern),
                    expected: "a pattern that matches at least one weight's name".to_owned(),
                    key: path,
                });
            }
        }
        let mut refined = ModelBuilder::with_groups_of(model);
        for spec in model.weights() {
            let settings = self.weight_settings(&spec.name);
            let placement = settings.placement.unwrap_or(spec.placement);
            let format = match placement {
                Placement::Sharded => settings.format.unwrap_or(spec.format),
                Placement::Replicated => self.replicated_format(&spec.name),
            };
            let group = spec.group.filter(|_| placement == Placement::Sharded);
            let reuse = settings.reuse.or(spec.reuse);
            let changed = WeightSpec { placement, format, reuse, group, ..spec.clone() };
            refined.add(changed).map_err(ConfigError::Weights)?;
        }
        Ok(refined.build())
    }

    /// f32, unless one rule asks for a replicated weight in another format, which is then refused.
    fn replicated_format(&self, name: &str) -> Format {
        let asked = |rule: &&WeightRule| {
            rule.placement == Some(Placement::Replicated) && pattern_matches(&rule.pattern, name)
        };
        self.weights.iter().filter(asked).filter_map(|rule| rule.format).next_back().unwrap_or(Format::F32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        let mut model = Model::builder();
        model.sharded("blocks.0.mlp.up", 128, 128, Format::NVFP4_2D).unwrap();
        model.sharded("blocks.0.attention", 128, 128, Format::NVFP4_2D).unwrap();
        model.build()
    }

    fn config(text: &str) -> Config {
        Config::from_toml_str(text, "rules.toml").unwrap()
    }

    #[test]
    fn rules_mix_formats_in_one_model_and_leave_other_weights_alone() {
        let text = "[[weights]]\nmatch = \"blocks.*.mlp.*\"\nformat = \"fp8_block\"";
        let refined = config(text).apply_weight_rules(&model()).unwrap();
        assert_eq!(refined.weights()[0].format, Format::FP8_BLOCK128_POW2);
        assert_eq!(refined.weights()[1], model().weights()[1]);
    }

    #[test]
    fn a_replicated_weight_is_kept_in_f32() {
        let text = "[[weights]]\nmatch = \"*.attention\"\nplacement = \"replicated\"";
        let refined = config(text).apply_weight_rules(&model()).unwrap();
        assert_eq!(
            (refined.weights()[1].placement, refined.weights()[1].format),
            (Placement::Replicated, Format::F32)
        );
    }

    #[test]
    fn a_format_for_a_pattern_leaves_the_norms_it_matches_replicated() {
        let mut model = Model::builder();
        model.sharded("blocks.0.mlp.up", 128, 128, Format::NVFP4_2D).unwrap();
        model.replicated("blocks.0.mlp.gain", 128, 1).unwrap();
        let model = model.build();
        let text = "[[weights]]\nmatch = \"blocks.*.mlp.*\"\nformat = \"fp8_block\"";
        let refined = config(text).apply_weight_rules(&model).unwrap();
        assert_eq!(refined.weights()[0].format, Format::FP8_BLOCK128_POW2);
        assert_eq!(refined.weights()[1], model.weights()[1]);
        let both = "[[weights]]\nmatch = \"*.gain\"\nplacement = \"replicated\"\nformat = \"bf16\"";
        assert!(config(both).apply_weight_rules(&model).is_err());
    }

    #[test]
    fn a_rule_that_matches_nothing_is_refused_with_its_line() {
        let error = config("[[weights]]\nmatch = \"block.*\"\nformat = \"bf16\"")
            .apply_weight_rules(&model())
            .unwrap_err()
            .to_string();
        assert!(error.contains("rules.toml:2") && error.contains("matches no weight"), "{error}");
    }

    #[test]
    fn an_activation_format_is_refused_for_a_weight() {
        let text = "[[weights]]\nmatch = \"*\"\nformat = \"nvfp4_1d\"";
        let error = config(text).apply_weight_rules(&model()).unwrap_err().to_string();
        assert!(error.contains("blocks.0.mlp.up"), "{error}");
    }
}
