//! TL-3: the memory of a conversion is in proportion to the header and the largest tensor; a size that a file claims
//! costs nothing.
//!
//! A program of its own, with an allocator that counts.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use warpweft_cli::{QuantizeOptions, dequantize_checkpoint, quantize_checkpoint};
use warpweft_format::Format;
use warpweft_session::checkpoint::safetensors::Header;
use warpweft_testing::Allocator;
use warpweft_testing::peak::{ALONE, MIB, peak_of};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// A checkpoint of `count` square matrices of zeros in F32, of which the disk holds nothing.
fn sparse(path: &Path, count: usize, side: usize) {
    let bytes = 4 * side * side;
    let tensor = |at: usize| {
        let (begin, end) = (at * bytes, (at + 1) * bytes);
        format!(r#""w{at:03}":{{"dtype":"F32","shape":[{side},{side}],"data_offsets":[{begin},{end}]}}"#)
    };
    let header = format!("{{{}}}", (0..count).map(tensor).collect::<Vec<_>>().join(","));
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.seek(SeekFrom::Current((count * bytes) as i64 - 1)).unwrap();
    file.write_all(&[0]).unwrap();
}

#[test]
fn memory_follows_the_largest_matrix_and_not_the_file() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let (input, output, back) =
        (folder.path().join("in"), folder.path().join("out"), folder.path().join("back"));
    // 120 MiB in matrices of 4 MiB.
    sparse(&input, 30, 1024);
    let options = QuantizeOptions::new(Format::NVFP4_2D);
    let peak = peak_of(|| drop(quantize_checkpoint(&input, &output, &options, &mut ()).unwrap()));
    assert!(peak < 12 * MIB + 2 * MIB, "quantize: {peak}");
    let peak = peak_of(|| drop(dequantize_checkpoint(&output, &back, false, &mut ()).unwrap()));
    assert!(peak < 6 * MIB + 3 * MIB, "dequantize: {peak}");
    assert_eq!(back.metadata().unwrap().len() / MIB as u64, 120);
}

#[test]
fn of_a_stack_one_matrix_is_in_memory_at_a_time() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let (input, output, back) =
        (folder.path().join("in"), folder.path().join("out"), folder.path().join("back"));
    // 24 matrices of 1 MiB.
    let bytes = 24 * MIB;
    let header =
        format!(r#"{{"experts":{{"dtype":"F32","shape":[24,512,512],"data_offsets":[0,{bytes}]}}}}"#);
    let mut file = File::create(&input).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(8 + header.len() as u64 + bytes as u64).unwrap();
    let options = QuantizeOptions::new(Format::NVFP4_2D);
    let peak = peak_of(|| drop(quantize_checkpoint(&input, &output, &options, &mut ()).unwrap()));
    assert!(peak < 3 * MIB + 2 * MIB, "quantize: {peak}");
    let peak = peak_of(|| drop(dequantize_checkpoint(&output, &back, false, &mut ()).unwrap()));
    assert!(peak < 2 * MIB + 3 * MIB, "dequantize: {peak}");
    assert_eq!(back.metadata().unwrap().len() / MIB as u64, 24);
}

#[test]
fn the_documented_bytes_per_element_hold_for_every_format() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in"), folder.path().join("out"));
    sparse(&input, 3, 2048);
    for format in Format::CANONICAL {
        let mut options = QuantizeOptions::new(format);
        options.replace = true;
        for shards in [None, std::num::NonZeroUsize::new(1), std::num::NonZeroUsize::new(5)] {
            options.shards = shards;
            let mut written = false;
            let peak = peak_of(|| {
                written = quantize_checkpoint(&input, &output, &options, &mut ()).is_ok();
            });
            let refused = matches!(format, Format::F32 | Format::Bf16)
                || (shards.is_some() && format.check_weight().is_err());
            assert_eq!(written, !refused, "{format}");
            let elements = 2048 * 2048;
            assert!(peak < 12 * elements + 2 * MIB, "{format} {shards:?}: {peak}");
            assert!(refused || peak > 4 * elements, "{format} {shards:?}: {peak} is too little to be true");
        }
    }
}

#[test]
fn a_size_that_is_only_claimed_costs_nothing() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in"), folder.path().join("out"));
    let refused = || {
        let options = QuantizeOptions::new(Format::NVFP4_2D);
        let error = quantize_checkpoint(&input, &output, &options, &mut ()).unwrap_err();
        assert!(!error.to_string().is_empty());
    };
    // A header of 100 MB in a file of 60 bytes.
    std::fs::write(&input, [&100_000_000u64.to_le_bytes()[..], &[b' '; 52]].concat()).unwrap();
    let peak = peak_of(refused);
    assert!(peak < 64 << 10, "{peak}");
    // A matrix of 4 TiB in a file of 100 bytes.
    let json = br#"{"w":{"dtype":"F32","shape":[1048576,1048576],"data_offsets":[0,4398046511104]}}"#;
    std::fs::write(&input, [&(json.len() as u64).to_le_bytes()[..], json].concat()).unwrap();
    let peak = peak_of(refused);
    assert!(peak < 64 << 10, "{peak}");
}

#[test]
fn a_header_costs_a_small_multiple_of_its_length() {
    let _alone = ALONE.lock();
    let tiny = |at: usize| format!(r#""{at:x}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
    let names = |name: &str| format!("{{{}}}", (0..50_000).map(tiny).collect::<Vec<_>>().join(",")) + name;
    let long = format!(r#"{{"w":{{"shape":[{}0]}}}}"#, "0,".repeat(1_000_000));
    let texts = (0..100_000).map(|at| format!(r#""{at:x}":"""#)).collect::<Vec<_>>().join(",");
    let escapes = format!(r#"{{"{}":{{"dtype":"X"}}}}"#, r"\u0041".repeat(500_000));
    for (json, valid) in [
        (names(""), true),
        (names("}"), false),
        (long, false),
        (format!(r#"{{"__metadata__":{{{texts}}}}}"#), true),
        (escapes, false),
    ] {
        let peak = peak_of(|| assert_eq!(Header::parse(json.as_bytes(), 0).is_ok(), valid));
        assert!(peak < 12 * json.len(), "{peak} for {}: {}", json.len(), &json[..60]);
    }
}
