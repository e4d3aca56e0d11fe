//! The decoders that policies are compared on, by their sizes.

use warpweft_plan::model::{Decoder, StepProgram};
use warpweft_session::config::{Config, Declared};

/// Tokens of one rank in one step.
pub(crate) const TOKENS: [usize; 4] = [1024, 2048, 4096, 8192];

/// Name, ranks, and sizes without tokens.
pub(crate) const SHAPES: [(&str, u32, &str); 5] = [
    (
        "8B dense",
        64,
        "layers = 32\nhidden = 4096\nffn = 14336\nheads = 32\nkv_heads = 8\nvocabulary = 128256",
    ),
    (
        "70B dense",
        64,
        "layers = 80\nhidden = 8192\nffn = 28672\nheads = 64\nkv_heads = 8\nvocabulary = 128256",
    ),
    (
        "64 experts",
        64,
        "layers = 28\nhidden = 2048\nffn = 1408\nheads = 16\nvocabulary = 102400\nexperts = 64\nexperts_per_token = 6\nexpert_groups = 1",
    ),
    ("uneven", 12, "layers = 30\nhidden = 4608\nffn = 12304\nheads = 36\nkv_heads = 4\nvocabulary = 50257"),
    (
        "tied, recomputed",
        16,
        "layers = 24\nhidden = 2048\nffn = 8192\nheads = 16\nvocabulary = 151936\ntied = true\nreplays = 8",
    ),
];

/// The step of a decoder of these sizes.
pub(crate) fn program(name: &str, sizes: &str, tokens: usize) -> StepProgram {
    let decoder = decoder(name, sizes, tokens);
    decoder.program(&decoder.model().unwrap()).unwrap()
}

/// What the program is declared by.
pub(crate) fn decoder(name: &str, sizes: &str, tokens: usize) -> Decoder {
    let text =
        format!("name = \"{name}\"\n{sizes}\ntokens = {tokens}\nmath = \"fp8\"\nformat = \"nvfp4_2d\"\n");
    Decoder::from_toml(&text, name).unwrap()
}

/// What everything is planned with, apart from the policy.
pub(crate) fn config() -> Config {
    Config::default()
}
