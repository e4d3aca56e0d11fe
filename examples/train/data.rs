//! Real text as bytes: where it comes from, what is held out, which windows make a batch.
//!
//! Law: the same files give the same corpus (they are read in the order of their paths), and a batch is
//! a function of seed, step and the row of the global batch, so four ranks of two rows see what two
//! ranks of four rows see. The last tenth of every file is held out and never trained on.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::init::Stream;
use crate::model::{Config, VOCABULARY};

/// The files taken from a directory; a path given by itself is taken whatever its name.
const EXTENSIONS: [&str; 3] = ["md", "rs", "toml"];

/// A corpus that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DataError {
    /// A file or directory could not be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The repository is not where the program was built.
    #[error(
        "this program was built in {path}, whose text it trains on unless other text is named, and that folder is not here; name text files or folders to train on", path = path.display()
    )]
    NoRepository {
        /// Where it was.
        path: PathBuf,
    },
    /// A directory without a text file.
    #[error("no .md, .rs or .toml file below {path}; name text files, or another folder", path = path.display())]
    NoText {
        /// Which.
        path: PathBuf,
    },
    /// Too little text for one window of training or of evaluation.
    #[error(
        "{found} bytes of {split} text, at least {needed} needed: name more or longer text files, or shorten the sequence"
    )]
    TooShort {
        /// `training` or `held-out`.
        split: &'static str,
        /// Bytes there are.
        found: usize,
        /// Bytes of one window.
        needed: usize,
    },
}

/// Which part of the text a batch is drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// The first nine tenths of every file.
    Training,
    /// The rest.
    HeldOut,
}

/// Which batch: the same draw gives the same windows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw {
    /// The part of the text.
    pub(crate) split: Split,
    /// The run's seed.
    pub(crate) seed: u64,
    /// The step of the run, or the number of the evaluation batch.
    pub(crate) step: u64,
    /// The rank whose batch it is.
    pub(crate) rank: usize,
}

/// The text.
#[derive(Debug)]
pub(crate) struct Corpus {
    files: Vec<PathBuf>,
    training: Vec<u8>,
    held_out: Vec<u8>,
}

impl Corpus {
    /// Reads the repository that was at `root` when the program was built.
    pub(crate) fn of_repository(root: &Path, sequence: usize) -> Result<Self, DataError> {
        if !root.is_dir() {
            return Err(DataError::NoRepository { path: root.to_owned() });
        }
        Self::read(&[root.to_owned()], sequence)
    }

    /// Reads files, and the `.md`, `.rs` and `.toml` files below directories (hidden directories, build
    /// directories and symbolic links are passed by). `sequence` is the length of a window.
    pub(crate) fn read(paths: &[PathBuf], sequence: usize) -> Result<Self, DataError> {
        let mut files = Vec::new();
        for path in paths {
            if !path.is_dir() {
                files.push(path.clone());
                continue;
            }
            let before = files.len();
            collect(path, &mut files)?;
            if files.len() == before {
                return Err(DataError::NoText { path: path.clone() });
            }
        }
        files.sort();
        files.dedup();
        let mut corpus = Corpus { files: Vec::new(), training: Vec::new(), held_out: Vec::new() };
        for path in &files {
            let text = fs::read(path).map_err(|source| DataError::Read { path: path.clone(), source })?;
            let (training, held_out) = text.split_at(text.len() - text.len() / 10);
            corpus.training.extend_from_slice(training);
            corpus.held_out.extend_from_slice(held_out);
        }
        let needed = sequence + 1;
        for (split, text) in [("training", &corpus.training), ("held-out", &corpus.held_out)] {
            if text.len() < needed {
                return Err(DataError::TooShort { split, found: text.len(), needed });
            }
        }
        corpus.files = files;
        Ok(corpus)
    }

    /// Files read.
    pub(crate) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Bytes read.
    pub(crate) fn len(&self) -> usize {
        self.training.len() + self.held_out.len()
    }

    /// `-Σ p·ln p` over the byte values, in nats: the loss of a model that knows only how often each
    /// byte occurs.
    pub(crate) fn unigram_entropy(&self) -> f64 {
        let mut counts = [0u64; VOCABULARY];
        self.training.iter().chain(&self.held_out).for_each(|&byte| counts[usize::from(byte)] += 1);
        let total = self.len() as f64;
        let share = |&count: &u64| count as f64 / total;
        counts.iter().filter(|count| **count > 0).map(share).map(|p| -p * p.ln()).sum()
    }

    /// Fills one rank's batch, `[batch, sequence]` each: windows at random places; `targets` are the
    /// bytes that follow `tokens`. The corpus was read for windows of this config's sequence.
    pub(crate) fn batch(&self, config: &Config, draw: Draw, tokens: &mut [u8], targets: &mut [u8]) {
        let Draw { split, seed, step, rank } = draw;
        let text = match split {
            Split::Training => &self.training,
            Split::HeldOut => &self.held_out,
        };
        let sequence = config.sequence;
        let texts = tokens.chunks_exact_mut(sequence).zip(targets.chunks_exact_mut(sequence));
        for (index, (tokens, targets)) in texts.enumerate() {
            let row = rank * config.batch + index;
            let place = Stream::keyed(seed, [split as u64, step, row as u64]).below(text.len() - sequence);
            tokens.copy_from_slice(&text[place..][..sequence]);
            targets.copy_from_slice(&text[place + 1..][..sequence]);
        }
    }
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let unreadable = |source| DataError::Read { path: directory.to_owned(), source };
    for entry in fs::read_dir(directory).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let (kind, path) = (entry.file_type().map_err(unreadable)?, entry.path());
        // Build tools mark what they can make again (https://bford.info/cachedir/).
        let skipped =
            || entry.file_name().as_encoded_bytes().starts_with(b".") || path.join("CACHEDIR.TAG").exists();
        if kind.is_dir() && !skipped() {
            collect(&path, files)?;
        } else if kind.is_file()
            && path.extension().and_then(OsStr::to_str).is_some_and(|e| EXTENSIONS.contains(&e))
        {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn repository() -> Vec<PathBuf> {
        vec![PathBuf::from(env!("CARGO_MANIFEST_DIR"))]
    }

    fn draw(corpus: &Corpus, config: &Config, split: Split, step: u64, rank: usize) -> (Vec<u8>, Vec<u8>) {
        let (mut tokens, mut targets) = (vec![0; config.tokens()], vec![0; config.tokens()]);
        corpus.batch(config, Draw { split, seed: 7, step, rank }, &mut tokens, &mut targets);
        (tokens, targets)
    }

    #[test]
    fn a_batch_follows_from_seed_step_and_global_row_and_targets_are_the_next_bytes() {
        let four = Config { batch: 4, sequence: 16, ..Config::default() };
        let two = Config { batch: 2, ..four.clone() };
        let corpus = Corpus::read(&repository(), 16).unwrap();
        let (tokens, targets) = draw(&corpus, &four, Split::Training, 3, 0);
        for (tokens, targets) in tokens.chunks(16).zip(targets.chunks(16)) {
            assert_eq!(tokens[1..], targets[..15]);
        }
        let halves = [0, 1].map(|rank| draw(&corpus, &two, Split::Training, 3, rank).0);
        assert_eq!(tokens, halves.concat());
        assert_ne!(tokens, draw(&corpus, &four, Split::Training, 4, 0).0);
        assert_ne!(tokens, draw(&corpus, &four, Split::HeldOut, 3, 0).0);
    }

    #[test]
    fn text_files_are_read_in_order_past_hidden_and_build_directories_and_each_gives_its_tail() {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("b.md", "0123456789".repeat(2)),
            ("a/x.rs", "abcdefghij".to_owned()),
            ("a/x.png", "no text".to_owned()),
            (".hidden/y.md", "hidden".to_owned()),
            ("build/CACHEDIR.TAG", String::new()),
            ("build/z.rs", "generated".to_owned()),
        ] {
            fs::create_dir_all(root.path().join(path).parent().unwrap()).unwrap();
            fs::write(root.path().join(path), text).unwrap();
        }
        // A file named twice counts once.
        let corpus = Corpus::read(&[root.path().to_owned(), root.path().join("b.md")], 2).unwrap();
        assert_eq!(corpus.training, b"abcdefghi012345678901234567");
        assert_eq!(corpus.held_out, b"j89");
        assert_eq!((corpus.files().len(), corpus.len()), (2, 30));
    }

    #[test]
    fn the_entropy_of_two_equally_frequent_bytes_is_ln_two() {
        let corpus = Corpus { files: Vec::new(), training: b"abab".to_vec(), held_out: b"ab".to_vec() };
        assert!((corpus.unigram_entropy() - 2f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn a_program_away_from_its_repository_asks_for_text() {
        let away = Corpus::of_repository(Path::new("no/such/folder"), 16).unwrap_err().to_string();
        assert!(away.contains("no/such/folder") && away.contains("name text files"), "{away}");
        assert!(Corpus::of_repository(&repository()[0], 16).is_ok());
    }

    #[test]
    fn a_missing_file_and_a_short_text_are_errors_that_name_what_is_wrong() {
        let missing = Corpus::read(&[PathBuf::from("no/such/file")], 16).unwrap_err();
        assert!(missing.to_string().contains("no/such/file"), "{missing}");
        let short = Corpus::read(&repository(), 1 << 40).unwrap_err();
        assert!(matches!(short, DataError::TooShort { split: "training", .. }), "{short}");
    }
}
