//! Arbitrary configurations: refused with an error, or valid and printed as text that loads back. The same body as in
//! `fuzz/`, over seeded mutations of a file with every key.

use warpweft_plan::model::TensorParallel;
use warpweft_session::config::{Config, WeightRule};
use warpweft_testing::random_weight::bits;

use crate::hostile;

/// A file that sets every key.
fn every_key() -> String {
    let rule = WeightRule {
        pattern: "*.mlp.*".to_owned(),
        format: Some("mxfp8".parse().unwrap()),
        placement: None,
        reuse: None,
        weight_decay: Some(0.1),
        lr_scale: Some(0.5),
        whole_matrix: Some(false),
        frozen: Some(true),
        tensor_parallel: Some(TensorParallel::ColumnParallel),
        segments: Some(vec![64, 32, 32]),
        expert_parallel: Some(true),
        scale_group: Some("*.both".to_owned()),
    };
    let text = Config { weights: vec![rule.clone(), rule], ..Config::default() }.effective();
    text.replace("# budget is not set", "budget = \"1.5 GiB\"")
}

#[test]
fn the_seed_is_accepted_before_it_is_damaged() {
    assert!(hostile::configuration(&every_key()));
    assert!(hostile::configuration(""));
}

#[test]
fn cf1_a_damaged_configuration_is_refused_or_valid() {
    const PIECES: [&str; 16] = [
        "[",
        "]",
        "{",
        "}",
        "\"",
        "'''",
        "=",
        "\n",
        ".",
        "[[weights]]",
        "nan",
        "-9223372036854775808",
        "1e999",
        "\\u",
        "\u{0}",
        "ü",
    ];
    let seed = every_key();
    let mut accepted = 0;
    for round in 0..4_000 {
        let mut text: Vec<char> = seed.chars().collect();
        for change in 0..1 + bits(round, 0) % 3 {
            let random = |n: u64| bits(round, 8 * change + n) as usize;
            let at = random(1) % text.len();
            let until = (at + 1 + random(2) % 24).min(text.len());
            match random(3) % 4 {
                0 => drop(text.splice(at..at, PIECES[random(4) % PIECES.len()].chars())),
                1 => drop(text.drain(at..until)),
                2 => {
                    let copy = text[at..until].to_vec();
                    let to = random(4) % text.len();
                    drop(text.splice(to..to, copy));
                }
                _ => text[at] = char::from(random(4) as u8 & 0x7F),
            }
        }
        accepted += usize::from(hostile::configuration(&text.into_iter().collect::<String>()));
    }
    assert!(accepted > 100, "mutations that leave nothing to accept test half of it");
}

#[test]
fn nesting_without_end_is_an_error_and_no_overflow_of_the_stack() {
    let deep = 100_000;
    for text in [
        format!("check = {}", "[".repeat(deep)),
        format!("check = {}", "{a=".repeat(deep)),
        format!("{}a = 1", "a.".repeat(deep)),
        format!("[{}a]", "a.".repeat(deep)),
        format!("[[{}a]]", "a.".repeat(deep)),
        format!("weights = {}{}", "[".repeat(deep), "]".repeat(deep)),
    ] {
        assert!(!hostile::configuration(&text));
    }
}
