//! A decoder's sizes as a file.

use super::{Rule, Rules, Takes};
use warpweft_plan::model::{DeclareError, Decoder, ProgramBuilder};

/// Largest size: two of them multiplied fit 64 bits; products of more saturate, and what saturated is refused
/// as too large or takes the longest price.
const LARGEST: u64 = 1 << 32;

const fn needed(key: &'static str, takes: Takes) -> Rule {
    Rule { key, takes, needed_in: Some("") }
}

const fn optional(key: &'static str, takes: Takes) -> Rule {
    Rule { key, takes, needed_in: None }
}

impl Rules for Decoder {
    const RULES: &'static [Rule] = &[
        needed("name", Takes::Text),
        needed("layers", Takes::Count(1, Self::MAX_LAYERS as u64)),
        needed("hidden", Takes::Count(1, LARGEST)),
        needed("ffn", Takes::Count(1, LARGEST)),
        needed("heads", Takes::Count(1, LARGEST)),
        optional("kv_heads", Takes::Count(1, LARGEST)),
        needed("vocabulary", Takes::Count(1, LARGEST)),
        needed("tokens", Takes::Count(1, LARGEST)),
        optional("micro_batches", Takes::Count(1, ProgramBuilder::MAX_MICRO_BATCHES as u64)),
        optional("sequence", Takes::Count(1, LARGEST)),
        needed("math", Takes::OneOf(&["f32", "bf16", "fp8", "fp4"])),
        needed("format", Takes::Format),
        optional("embedding_format", Takes::Format),
        optional("experts", Takes::Count(1, Self::MAX_EXPERTS as u64)),
        optional("expert_ffn", Takes::Count(1, LARGEST)),
        optional("dense_layers", Takes::Count(0, Self::MAX_LAYERS as u64)),
        optional("experts_per_token", Takes::Count(1, Self::MAX_EXPERTS as u64)),
        optional("expert_groups", Takes::Count(1, Self::MAX_EXPERTS as u64)),
        optional("tied", Takes::Switch),
        optional("replays", Takes::Count(0, Self::MAX_LAYERS as u64)),
    ];

    fn disagreement(&self) -> Option<(&'static str, String, String)> {
        match self.check() {
            Err(DeclareError::Size { size, is, needs, .. }) => Some((size, format!("is {is}"), needs)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Declared;
    use warpweft_plan::model::Model;

    const VALID: &str = "name = 'small'\nlayers = 2\nhidden = 64\nffn = 128\nheads = 4\nvocabulary = 256\ntokens = 32\nmath = 'bf16'\nformat = 'bf16'\n";

    #[test]
    fn a_decoder_file_declares_a_program_whose_calls_cost_what_the_sizes_say() {
        let decoder = Decoder::from_toml(VALID, "small.toml").unwrap();
        let program = decoder.program(&decoder.model().unwrap()).unwrap();
        let call = |name: &str| program.calls()[program.call(name).unwrap().index()].cost[0];
        assert_eq!(call("blocks.1.down.forward").flops, 2 * 32 * 64 * 128);
        assert_eq!(call("blocks.1.up.backward").flops, 2 * 2 * 32 * 64 * 256);
        assert_eq!(call("blocks.0.attention.forward").flops, 2 * 32 * 64 * 64 + 2 * 32 * 32 * 64);
        assert_eq!(call("blocks.0.qkv.forward").bytes, 2 * (64 * 192 + 32 * (64 + 192)));
        assert_eq!(program.calls().len(), 2 * (1 + 2 * 4 + 1));
    }

    #[test]
    fn sizes_that_do_not_fit_each_other_are_refused_with_their_line() {
        for (from, to, complaint) in [
            ("heads = 4", "heads = 5", "small.toml:5: `heads` is 5; set it to a number that divides 64"),
            (
                "heads = 4",
                "heads = 4\nkv_heads = 3",
                "small.toml:6: `kv_heads` is 3; set it to a number that divides 4",
            ),
            (
                "tokens = 32",
                "tokens = 32\nsequence = 64",
                "small.toml:8: `sequence` is 64; set it to at most `tokens`, 32",
            ),
            (
                "layers = 2",
                "layers = 0",
                "small.toml:2: `layers` is 0; set it to a whole number from 1 to 4096",
            ),
            ("layers = 2", "layers = 2.5", "small.toml:2: `layers` is 2.5"),
            ("format = 'bf16'", "format = 'nvfp4_1d'", "small.toml:9: `format` is \"nvfp4_1d\""),
            (
                "tokens = 32",
                "tokens = 32\nexperts = 6\nexpert_groups = 4",
                "small.toml:9: `expert_groups` is 4; set it to a number that divides 6",
            ),
            ("layers", "layer", "small.toml:2: unknown key `layer`; did you mean `layers`?"),
        ] {
            let error = Decoder::from_toml(&VALID.replace(from, to), "small.toml").unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}\n{complaint}");
        }
    }

    #[test]
    fn experts_in_groups_are_weights_of_their_own_and_cost_what_they_cost_as_one() {
        let stacked = format!("{VALID}experts = 6\nexperts_per_token = 2\n");
        let grouped = format!("{stacked}expert_groups = 2\n");
        let declared = |text: &str| {
            let decoder = Decoder::from_toml(text, "small.toml").unwrap();
            let model = decoder.model().unwrap();
            (decoder.program(&model).unwrap(), model)
        };
        let ((one, stacked), (several, grouped)) = (declared(&stacked), declared(&grouped));
        assert_eq!((stacked.groups().len(), grouped.groups().len()), (0, 2 * 2 * 2));
        let spec = |name: &str| grouped.weight(grouped.find(name).unwrap()).unwrap();
        let expert = |number: usize| spec(&format!("blocks.1.down.experts.{number}.weight"));
        assert_eq!((expert(0).shape.rows, expert(5).shape.cols), (64, 128));
        assert!(expert(0).group == expert(2).group && expert(2).group != expert(3).group);
        assert!(spec("blocks.1.qkv.weight").group.is_none());
        let elements = |model: &Model| {
            model.weights().iter().map(|spec| spec.shape.rows * spec.shape.cols).sum::<usize>()
        };
        assert_eq!(elements(&stacked), elements(&grouped));
        for (one, other) in one.calls().iter().zip(several.calls()) {
            assert_eq!((&one.name, &one.cost), (&other.name, &other.cost));
        }
    }

    #[test]
    fn a_decoder_file_may_repeat_its_step_for_micro_batches() {
        let text = format!("{VALID}micro_batches = 3\n");
        let decoder = Decoder::from_toml(&text, "small.toml").unwrap();
        let program = decoder.program(&decoder.model().unwrap()).unwrap();
        assert_eq!((program.micro_batches(), program.runs().len()), (3, 3 * program.calls().len()));
        assert!(Decoder::from_toml(&format!("{VALID}micro_batches = 0\n"), "small.toml").is_err());
    }
}
