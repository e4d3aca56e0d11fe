//! Texts as tokens, and back.

/// The token that fills a sequence up.
pub const PAD: usize = 0;

/// A vocabulary.
pub trait Tokenizer: Send + Sync {
    /// The tokens of a text, between those of start and end where `special` says so.
    fn encode(&self, text: &str, special: bool) -> Vec<usize>;

    /// The text of tokens; start, end and padding are left out.
    fn decode(&self, tokens: &[usize]) -> String;

    /// How many tokens there are.
    fn vocab_size(&self) -> usize;

    /// The token that fills a sequence up.
    fn pad_token(&self) -> usize;
}

/// Bytes, after three tokens for padding, start and end.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByteTokenizer;

const START: usize = 1;
const END: usize = 2;
const FIRST: usize = 3;

impl Tokenizer for ByteTokenizer {
    fn encode(&self, text: &str, special: bool) -> Vec<usize> {
        let bytes = text.bytes().map(|byte| FIRST + usize::from(byte));
        let (start, end) = (special.then_some(START), special.then_some(END));
        start.into_iter().chain(bytes).chain(end).collect()
    }

    fn decode(&self, tokens: &[usize]) -> String {
        let byte = |token: &usize| token.checked_sub(FIRST).and_then(|byte| u8::try_from(byte).ok());
        String::from_utf8_lossy(&tokens.iter().filter_map(byte).collect::<Vec<u8>>()).into_owned()
    }

    fn vocab_size(&self) -> usize {
        FIRST + 256
    }

    fn pad_token(&self) -> usize {
        PAD
    }
}
