//! Torn, damaged and hostile files: a typed error, nothing left behind, no panic. The same bodies as in `fuzz/`,
//! over seeded mutations.

use warpweft_cli::{QuantizeOptions, ToolError, quantize_checkpoint};
use warpweft_format::{Format, Shape};
use warpweft_session::checkpoint::safetensors::{Header, Invalid};
use warpweft_testing::random_weight::{bits, normal};

use super::checkpoint::{Contents, Folder, Tensor};
use crate::hostile;

/// A small checkpoint, and the same quantized.
fn seeds() -> [Vec<u8>; 3] {
    let contents = Contents::default()
        .with("w", Tensor::f32s(&[16, 32], &normal(Shape::new(16, 32), 5)))
        .with("b", Tensor::f32s(&[3], &[1.0, 2.0, 3.0]))
        .with("e", Tensor::f32s(&[0, 2], &[]))
        .with_metadata("format", "pt");
    let folder = Folder::with(&contents.to_bytes());
    let mut quantized = Vec::new();
    for format in [Format::NVFP4_2D, Format::FP8_TENSOR_E4M3] {
        folder.quantize(&QuantizeOptions { replace: true, ..QuantizeOptions::new(format) }).unwrap();
        quantized.push(std::fs::read(folder.output()).unwrap());
    }
    let [nvfp4, fp8] = quantized.try_into().unwrap();
    [contents.to_bytes(), nvfp4, fp8]
}

/// Bytes in front of the data.
fn head(bytes: &[u8]) -> usize {
    8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize
}

fn complaint(bytes: &[u8]) -> ToolError {
    let folder = Folder::with(bytes);
    let error = folder.quantize(&QuantizeOptions::new(Format::NVFP4_2D)).unwrap_err();
    assert_eq!(folder.files(), ["in.safetensors"], "{error}");
    error
}

#[test]
fn a_file_cut_off_at_any_byte_is_refused() {
    let [plain, quantized, _] = seeds();
    let folder = tempfile::tempdir().unwrap();
    for bytes in [plain, quantized] {
        assert!(hostile::checkpoint(&bytes, folder.path()));
        let data = head(&bytes);
        // Every byte of the header and around it; of the data every 61st, and the last ones.
        let cuts = (0..data + 16).chain((data..bytes.len()).step_by(61)).chain(bytes.len() - 16..bytes.len());
        for cut in cuts {
            assert!(!hostile::checkpoint(&bytes[..cut], folder.path()), "cut at {cut}");
        }
        let longer = [&bytes[..], b"\0"].concat();
        assert!(!hostile::checkpoint(&longer, folder.path()));
    }
}

#[test]
fn what_is_wrong_with_a_torn_file_is_named() {
    let [plain, ..] = seeds();
    let data = head(&plain);
    let at = |cut: usize| match complaint(&plain[..cut]) {
        ToolError::Checkpoint { path, source } => {
            assert!(path.ends_with("in.safetensors"));
            source.to_string()
        }
        other => panic!("{other}"),
    };
    let no_length = |bytes| {
        format!("it has {bytes} bytes, and the length of the header alone takes 8; it is empty or cut off")
    };
    assert_eq!([at(0), at(7)], [no_length(0), no_length(7)]);
    let bytes = data as u64 - 8;
    let header = |available| {
        format!(
            "byte 0: the header has {bytes} bytes, but only {available} follow; the file is cut off or not safetensors"
        )
    };
    assert_eq!([at(8), at(data - 1)], [header(0), header(bytes - 1)]);
    // The data is "b", 12 bytes; "e", none; "w", 2048.
    let tensor = |name: &str, end: u64, available: u64| {
        format!(
            "tensor `{name}` reaches to byte {end}, but only {available} follow the header; the file is cut off"
        )
    };
    assert_eq!(at(data + 11), tensor("b", 12, 11));
    let end = 12 + 2048;
    assert_eq!(at(plain.len() - 1), tensor("w", end, end - 1));
}

#[test]
fn a_length_without_measure_is_refused_before_memory_is_asked_for_it() {
    let [plain, ..] = seeds();
    for length in [u64::MAX, u64::MAX - 7, 1 << 63, 100_000_001] {
        let torn = [&length.to_le_bytes(), &plain[8..]].concat();
        let expected = Invalid::HeaderTooLarge { bytes: length, limit: 100_000_000 };
        assert!(matches!(complaint(&torn), ToolError::Checkpoint { source, .. } if source == expected));
    }
    let torn = [&100_000_000u64.to_le_bytes(), &plain[8..]].concat();
    assert!(complaint(&torn).to_string().contains("only"), "{}", complaint(&torn));
}

/// One to four changes of a kind that parsers trip over.
fn mutate(bytes: &mut Vec<u8>, within: usize, seed: u64) {
    const WORDS: [&[u8]; 16] = [
        b"18446744073709551615",
        b"-1",
        b"1e308",
        b"NaN",
        b"null",
        b"[",
        b"{",
        b"\"",
        b"\\u0000",
        b"0",
        b",",
        b"\"F64\"",
        b"\"shape\"",
        b"__metadata__",
        b"9223372036854775807",
        b"\xff\xfe",
    ];
    let random = |n: u64| bits(seed, n) as usize;
    for change in 0..1 + random(0) as u64 % 4 {
        let random = |n: u64| random(8 * change + n);
        let within = within.min(bytes.len()).max(1);
        let at = random(1) % within;
        match random(2) % 6 {
            0 => bytes[at] = random(3) as u8,
            1 => bytes[at] ^= 1 << (random(3) % 8),
            2 => drop(bytes.splice(at..at, WORDS[random(3) % WORDS.len()].iter().copied())),
            3 => drop(bytes.drain(at..(at + 1 + random(3) % 8).min(bytes.len()))),
            4 => {
                let copy = bytes[at..(at + 1 + random(3) % 64).min(bytes.len())].to_vec();
                drop(bytes.splice(at..at, copy));
            }
            _ => {
                // One digit for another: the way to sizes and offsets that nearly fit.
                let digit = (at..within.min(bytes.len())).find(|&at| bytes[at].is_ascii_digit());
                if let Some(at) = digit {
                    bytes[at] = b'0' + (random(3) % 10) as u8;
                }
            }
        }
        if bytes.is_empty() {
            bytes.push(0);
        }
    }
}

#[test]
fn a_damaged_header_is_an_error_or_a_sound_header() {
    let mut accepted = 0;
    for (number, bytes) in seeds().into_iter().enumerate() {
        let data = head(&bytes);
        for round in 0..40_000 {
            let mut json = bytes[8..data].to_vec();
            let within = json.len();
            mutate(&mut json, within, round + ((number as u64) << 32));
            if let Ok(header) = Header::parse(&json, (bytes.len() - data) as u64) {
                // SF-1.
                let mut reached = 0;
                for entry in header.tensors() {
                    assert_eq!(entry.begin, reached);
                    reached = entry.end;
                }
                assert_eq!(reached, (bytes.len() - data) as u64);
                accepted += 1;
            }
        }
    }
    assert!(accepted > 100, "mutations that leave nothing to accept test half of it");
}

#[test]
fn a_damaged_file_is_converted_whole_or_refused_without_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let mut converted = 0;
    for (number, bytes) in seeds().into_iter().enumerate() {
        let data = head(&bytes);
        for round in 0..700 {
            let mut damaged = bytes.clone();
            // The length in one of eight, the data in another, else the header with a length that fits.
            let seed = round + ((number as u64) << 32) + (1 << 40);
            match round % 8 {
                0 => mutate(&mut damaged, 8, seed),
                1 => mutate(&mut damaged, usize::MAX, seed),
                _ => {
                    let mut json = bytes[8..data].to_vec();
                    let within = json.len();
                    mutate(&mut json, within, seed);
                    damaged = [&(json.len() as u64).to_le_bytes(), &json[..], &bytes[data..]].concat();
                }
            }
            converted += usize::from(hostile::checkpoint(&damaged, folder.path()));
        }
    }
    assert!(converted > 20, "mutations that leave nothing to convert test half of it");
}

#[test]
fn a_sound_file_beside_it_does_not_help_a_missing_one() {
    let folder = Folder::with(&seeds()[0]);
    let options = QuantizeOptions::new(Format::NVFP4_2D);
    assert!(quantize_checkpoint(&folder.path("in"), &folder.output(), &options, &mut ()).is_err());
    assert_eq!(folder.files(), ["in.safetensors"]);
}
