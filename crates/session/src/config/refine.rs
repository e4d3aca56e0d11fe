//! Applies the rules of `[[weights]]` to a declared model.
//!
//! A rule that matches no weight is an error: it is a misspelt pattern, and the weights it was meant
//! for would silently keep their format. Programs are declared over the refined model, so whatever a
//! rule makes impossible (a columnwise use of a replicated weight, a shape the format cannot take) is
//! refused where it is declared. Applying the rules to a refined model changes nothing: so whoever starts
//! programs can ask whether their model was refined ([`Config::unrefined`]).

use super::weights::{RuleIndex, scale_group, settings};
use super::{Config, ConfigError, WeightRule, keys};
use warpweft_base::near::near;
use warpweft_format::Format;
use warpweft_plan::model::{
    Model, ModelBuilder, ParameterGroup, Placement, Segments, TensorParallel, WeightSpec,
};

impl Config {
    /// The model with formats, placements, reuse, parameter and scale groups and what is frozen as the rules
    /// say; ids stay as they are. A format is for sharded weights: norms and biases that a pattern such as
    /// `blocks.*.mlp.*` also matches stay replicated, in f32. Applied to what it gave, it changes nothing.
    /// Sessions refuse programs over a model that is not as it says.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] for a rule that matches nothing, [`ConfigError::Weights`] when a weight
    /// cannot be what a rule wants.
    pub fn apply_weight_rules(&self, model: &Model) -> Result<Model, ConfigError> {
        let index = RuleIndex::new(&self.weights);
        let mut matches_any = vec![false; self.weights.len()];
        let mut settings_of = |spec: &WeightSpec| {
            let matching = index.matching(&spec.name);
            matching.iter().for_each(|rule| matches_any[*rule] = true);
            let rules = || matching.iter().map(|rule| &self.weights[*rule]);
            (settings(rules()), replicated_format(rules()), scale_group(rules(), &spec.name))
        };
        let settings: Vec<_> = model.weights().iter().map(&mut settings_of).collect();
        for (number, rule) in self.weights.iter().enumerate() {
            if !matches_any[number] {
                return Err(self.refuse(
                    format!("weights.{number}.match"),
                    format!("is {:?}, which matches no weight", rule.pattern),
                    format!(
                        "a pattern that matches at least one weight's name, such as {}",
                        patterns_like(&rule.pattern, model)
                    ),
                ));
            }
        }
        let mut refined = ModelBuilder::with_groups_of(model);
        for (spec, (settings, replicated_format, scale_group)) in model.weights().iter().zip(settings) {
            let placement = settings.placement.unwrap_or(spec.placement);
            let format = match placement {
                Placement::Sharded => settings.format.unwrap_or(spec.format),
                Placement::Replicated => replicated_format,
            };
            let group = spec.group.filter(|_| placement == Placement::Sharded);
            let reuse = settings.reuse.or(spec.reuse);
            let parameters = ParameterGroup {
                weight_decay: settings.weight_decay.or(spec.parameters.weight_decay),
                learning_rate_scale: settings.learning_rate_scale.or(spec.parameters.learning_rate_scale),
                whole_matrix: settings.whole_matrix.unwrap_or(spec.parameters.whole_matrix),
            };
            let frozen = settings.frozen.unwrap_or(spec.frozen);
            let mut changed = spec.clone();
            (changed.placement, changed.format, changed.reuse) = (placement, format, reuse);
            (changed.group, changed.parameters, changed.frozen) = (group, parameters, frozen);
            changed.tensor = settings.tensor_parallel.or(spec.tensor);
            // What a rule makes of another kind is fused no more, but where a rule says so.
            let is_column_parallel = changed.tensor == Some(TensorParallel::ColumnParallel);
            let declared = if is_column_parallel { spec.segments } else { Segments::NONE };
            changed.segments = settings.segments.unwrap_or(declared);
            changed.expert = settings.expert_parallel.unwrap_or(spec.expert);
            changed.scale_group =
                scale_group.or_else(|| spec.scale_group.clone()).filter(|group| !group.is_empty());
            refined.add(changed).map_err(ConfigError::Weights)?;
        }
        Ok(refined.build())
    }

    /// The first weight of `model` that the rules would have otherwise, with what they say about it: each rule
    /// as it is written, and where. `None` if programs may be declared over the model as it is.
    ///
    /// # Errors
    /// As [`Config::apply_weight_rules`].
    pub(crate) fn unrefined(&self, model: &Model) -> Result<Option<(String, String)>, ConfigError> {
        if self.weights.is_empty() {
            return Ok(None);
        }
        let refined = self.apply_weight_rules(model)?;
        let found = model.weights().iter().zip(refined.weights()).find(|(own, wanted)| own != wanted);
        Ok(found.map(|(own, _)| (own.name.clone(), self.rules_about(&own.name))))
    }

    /// The rules that match a weight's name, in words.
    fn rules_about(&self, name: &str) -> String {
        let in_words = |number: usize| {
            let entries = keys::entries_of_rule(number, &self.weights[number]);
            let set: Vec<String> = (entries.iter())
                .filter_map(|entry| {
                    let (_, key) = entry.path.rsplit_once('.')?;
                    Some(format!("{key} = {}", entry.value.as_ref()?))
                })
                .collect();
            let origin = entries.first().map(|entry| self.origins.of(entry))?;
            Some(format!("`{}` ({origin})", set.join(", ")))
        };
        let matching = RuleIndex::new(&self.weights).matching(name);
        matching.into_iter().filter_map(in_words).collect::<Vec<_>>().join(" and ")
    }
}

/// f32, unless one of the rules about a weight requests a replicated one in another format, which is then refused.
fn replicated_format<'r>(rules: impl DoubleEndedIterator<Item = &'r WeightRule>) -> Format {
    let mut requested = rules.filter(|rule| rule.placement == Some(Placement::Replicated));
    requested.rfind(|rule| rule.format.is_some()).and_then(|rule| rule.format).unwrap_or(Format::F32)
}

/// Patterns that match weights: those close to the one that does not, else the first.
fn patterns_like(pattern: &str, model: &Model) -> String {
    /// So many are listed.
    const TOLD: usize = 4;
    let numberless = |name: &str| {
        let is_number = |word: &&str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
        name.split('.')
            .map(|word| Some(word).filter(|word| !is_number(word)).unwrap_or("*"))
            .collect::<Vec<_>>()
            .join(".")
    };
    let mut patterns: Vec<String> = Vec::new();
    for spec in model.weights() {
        let own = numberless(&spec.name);
        if !patterns.contains(&own) {
            patterns.push(own);
        }
    }
    let close = near(pattern, patterns.iter().map(String::as_str));
    let all = || patterns.iter().map(String::as_str).collect();
    let told: Vec<&str> = if close.is_empty() { all() } else { close };
    let quoted: Vec<String> = told.iter().take(TOLD).map(|pattern| format!("{pattern:?}")).collect();
    quoted.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweft_plan::model::{NonNegative, TensorParallel};

    fn model() -> Model {
        let mut model = Model::builder();
        model.sharded("blocks.0.mlp.up", 128, 128, Format::NVFP4_2D).unwrap();
        model.sharded("blocks.0.attention", 128, 128, Format::NVFP4_2D).unwrap();
        model.build()
    }

    fn config(text: &str) -> Config {
        Config::from_toml_str(text, "rules.toml").unwrap()
    }

    /// The limit is there to end a search that grows with their square: that one takes several minutes.
    #[test]
    fn tens_of_thousands_of_rules_are_read_and_applied_in_time_that_grows_with_their_number() {
        const RULES: usize = 30_000;
        let begun = std::time::Instant::now();
        let mut text = String::new();
        let mut model = Model::builder();
        for number in 0..RULES {
            let pattern = match number % 3 {
                0 => format!("blocks.{number}.*"),
                1 => format!("*.{number}.w"),
                _ => format!("blocks*.{number}.w"),
            };
            text += &format!("[[weights]]\nmatch = \"{pattern}\"\nfrozen = true\n");
            model.sharded(&format!("blocks.{number}.w"), 16, 16, Format::Bf16).unwrap();
        }
        let refined = config(&text).apply_weight_rules(&model.build()).unwrap();
        assert!(refined.weights().iter().all(|weight| weight.frozen));
        assert!(begun.elapsed() < std::time::Duration::from_secs(100), "{:?}", begun.elapsed());
    }

    #[test]
    fn rules_mix_formats_in_one_model_and_leave_other_weights_alone() {
        let text = "[[weights]]\nmatch = \"blocks.*.mlp.*\"\nformat = \"fp8_block\"";
        let refined = config(text).apply_weight_rules(&model()).unwrap();
        assert_eq!(refined.weights()[0].format, Format::FP8_BLOCK128_POW2);
        assert_eq!(refined.weights()[1], model().weights()[1]);
    }

    /// Every key a rule may set, on weights of either placement, of a group and of none.
    #[test]
    fn applying_the_rules_twice_is_the_same_as_once() {
        let mut model = Model::builder();
        let up = model.sharded("blocks.0.mlp.up", 128, 128, Format::NVFP4_2D).unwrap();
        let down = model.sharded("blocks.0.mlp.down", 128, 128, Format::NVFP4_2D).unwrap();
        model.replicated("blocks.0.mlp.gain", 128, 1).unwrap();
        model.replicated("blocks.0.mlp.gate", 128, 128).unwrap();
        model.group("mlp", &[up, down]).unwrap();
        let model = model.build();
        for text in [
            "match = '*'\nformat = 'fp8_block'",
            "match = '*'\nformat = 'bf16'\nreuse = 'keep'\n[[weights]]\nmatch = '*.up'\nplacement = 'replicated'\nformat = 'f32'",
            "match = '*.down'\nplacement = 'replicated'",
            "match = '*'\nweight_decay = 0.1\n[[weights]]\nmatch = '*.gain'\nweight_decay = 0\nlr_scale = 0.5",
            "match = '*'\nwhole_matrix = true\n[[weights]]\nmatch = '*.gain'\nwhole_matrix = false",
            "match = '*'\nfrozen = true\n[[weights]]\nmatch = '*.gain'\nfrozen = false",
            "match = '*'\ntensor_parallel = 'split_tokens'\n[[weights]]\nmatch = '*.up'\ntensor_parallel = 'column'",
            "match = '*.gate'\nplacement = 'sharded'\nformat = 'nvfp4'",
            "match = '*.up'\nscale_group = '*.both'\n[[weights]]\nmatch = '*.down'\nscale_group = '*.both'",
            "match = '*.up'\nformat = 'bf16'\n[[weights]]\nmatch = '*'\nformat = 'fp8_block'\nreuse = 'regather'",
        ] {
            let config = config(&format!("[[weights]]\n{text}"));
            let once = config.apply_weight_rules(&model).unwrap();
            assert_ne!(once, model, "{text}");
            assert_eq!(config.apply_weight_rules(&once).unwrap(), once, "{text}");
            assert!(config.unrefined(&model).unwrap().is_some(), "{text}");
            assert_eq!(config.unrefined(&once).unwrap(), None, "{text}");
        }
    }

    #[test]
    fn an_unrefined_weight_is_reported_with_every_rule_about_it_and_its_line() {
        let text = "[[weights]]\nmatch = \"*.mlp.*\"\nformat = \"bf16\"\n[[weights]]\nmatch = \"*.up\"\nreuse = \"keep\"";
        let found = config(text).unrefined(&model()).unwrap();
        let (weight, rules) = found.unwrap();
        assert_eq!(weight, "blocks.0.mlp.up");
        assert_eq!(
            rules,
            "`match = \"*.mlp.*\", format = \"bf16\"` (rules.toml:2) and `match = \"*.up\", reuse = \"keep\"` (rules.toml:5)"
        );
        assert_eq!(Config::default().unrefined(&model()).unwrap(), None);
    }

    #[test]
    fn rules_say_what_tensor_parallelism_does_with_weights_and_words_that_are_none_are_refused() {
        for (word, how) in [
            ("column", TensorParallel::ColumnParallel),
            ("row", TensorParallel::RowParallel),
            ("split_tokens", TensorParallel::SplitTokens),
            ("alike_tokens", TensorParallel::AlikeTokens),
        ] {
            let text = format!("[[weights]]\nmatch = \"*.up\"\ntensor_parallel = \"{word}\"");
            let rules = config(&text);
            assert!(rules.effective().contains(&format!("tensor_parallel = \"{word}\"")), "{word}");
            let refined = rules.apply_weight_rules(&model()).unwrap();
            assert_eq!([0, 1].map(|number| refined.weights()[number].tensor), [Some(how), None]);
        }
        let text = "[[weights]]\nmatch = \"*\"\ntensor_parallel = \"columns\"";
        let refused = Config::from_toml_str(text, "rules.toml").unwrap_err().to_string();
        assert!(refused.contains("rules.toml:3") && refused.contains("\"alike_tokens\""), "{refused}");
    }

    #[test]
    fn rules_say_which_segments_of_a_fused_weight_are_cut_and_what_is_no_segment_is_refused() {
        let column = "[[weights]]\nmatch = \"*.up\"\ntensor_parallel = \"column\"\n";
        let rules = config(&format!("{column}segments = [96, 32]"));
        assert!(rules.effective().contains("segments = [96, 32]"), "{}", rules.effective());
        let fused = rules.apply_weight_rules(&model()).unwrap();
        let segments = |model: &Model| model.weights()[0].segments;
        assert_eq!(segments(&fused), Segments::new(&[96, 32]).unwrap());
        // A rule that says the same of how keeps them, and one that says another does not.
        assert_eq!(segments(&config(column).apply_weight_rules(&fused).unwrap()), segments(&fused));
        let row = config("[[weights]]\nmatch = \"*.up\"\ntensor_parallel = \"row\"");
        assert!(segments(&row.apply_weight_rules(&fused).unwrap()).is_none());
        for (text, says) in [
            (format!("{column}segments = [96, 16]"), "has 128 rows, and segments of [96, 16]"),
            (
                "[[weights]]\nmatch = \"*.up\"\nsegments = [96, 32]".to_owned(),
                "has 128 rows and is not column parallel",
            ),
        ] {
            let refused = config(&text).apply_weight_rules(&model()).unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
        }
        for given in ["[]", "[96, 0]", "[1, 1, 1, 1, 1, 1, 1, 1, 1]", "\"96\""] {
            let text = format!("{column}segments = {given}");
            let refused = Config::from_toml_str(&text, "rules.toml").unwrap_err().to_string();
            assert!(refused.contains("rules.toml:4") && refused.contains("1 to 8"), "{refused}");
        }
    }

    #[test]
    fn a_star_of_a_scale_group_is_what_the_star_of_the_pattern_stands_for_and_the_last_rule_decides() {
        let mut model = Model::builder();
        for layer in 0..2 {
            for part in ["q_proj", "k_proj", "v_proj", "o_proj"] {
                model.sharded(&format!("layers.{layer}.{part}"), 16, 16, Format::NVFP4_2D).unwrap();
            }
        }
        let model = model.build();
        let rules: String = ["q_proj", "k_proj", "v_proj"]
            .map(|part| format!("[[weights]]\nmatch = '*.{part}'\nscale_group = '*.qkv'\n"))
            .concat();
        let groups = |text: &str| -> Vec<Option<String>> {
            let refined = config(text).apply_weight_rules(&model).unwrap();
            refined.weights().iter().map(|weight| weight.scale_group.clone()).collect()
        };
        let of = |layer: usize| Some(format!("layers.{layer}.qkv"));
        let all = [of(0), of(0), of(0), None, of(1), of(1), of(1), None];
        assert_eq!(groups(&rules), all);
        let without = format!("{rules}[[weights]]\nmatch = 'layers.1.*'\nscale_group = ''\n");
        assert_eq!(groups(&without), [&all[..4], &[None, None, None, None]].concat());
        let refused = Config::from_toml_str(
            "[[weights]]\nmatch = 'layers.0.q_proj'\nscale_group = '*.qkv'",
            "rules.toml",
        );
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("rules.toml:3") && refused.contains("as many * as `match`"), "{refused}");
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
        let names = "such as \"blocks.*.mlp.up\", \"blocks.*.attention\"";
        assert!(error.contains(names), "{error}");
    }

    #[test]
    fn rules_set_weight_decay_and_learning_rate_key_by_key() {
        let text = "[[weights]]\nmatch = \"*\"\nweight_decay = 0.1\nlr_scale = 0.5\n\
                    [[weights]]\nmatch = \"*.attention\"\nweight_decay = 0";
        let refined = config(text).apply_weight_rules(&model()).unwrap();
        let of = |number: usize| {
            let ParameterGroup { weight_decay, learning_rate_scale, .. } =
                refined.weights()[number].parameters;
            [weight_decay, learning_rate_scale].map(|value| value.map(NonNegative::value))
        };
        assert_eq!(of(0), [Some(0.1), Some(0.5)]);
        assert_eq!(of(1), [Some(0.0), Some(0.5)]);
        let mut declared = Model::builder();
        let weight = declared.sharded("w", 128, 128, Format::Bf16).unwrap();
        let decay = NonNegative::new(0.25);
        let own = ParameterGroup { weight_decay: decay, whole_matrix: true, ..ParameterGroup::default() };
        declared.parameters(weight, own).unwrap();
        let text = "[[weights]]\nmatch = \"w\"\nlr_scale = 2";
        let refined = config(text).apply_weight_rules(&declared.build()).unwrap();
        let expected = ParameterGroup { learning_rate_scale: NonNegative::new(2.0), ..own };
        assert_eq!(refined.weights()[0].parameters, expected);
    }

    #[test]
    fn an_activation_format_is_refused_for_a_weight() {
        let text = "[[weights]]\nmatch = \"*\"\nformat = \"nvfp4_1d\"";
        let error = config(text).apply_weight_rules(&model()).unwrap_err().to_string();
        assert!(error.contains("blocks.0.mlp.up"), "{error}");
    }
}
