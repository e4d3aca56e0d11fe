//! The program alone: exit codes, output streams, signals.

use std::process::{Command, Output};

use super::checkpoint::{Contents, Folder, Tensor};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warpweft")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn exit_codes_tell_what_went_wrong_and_streams_do_not_mix() {
    let usage = run(&["quantize", "--format", "fp3", "in", "out"]);
    assert_eq!((usage.status.code(), text(&usage.stdout)), (Some(2), ""));
    assert!(text(&usage.stderr).contains("choose one of nvfp4_2d"), "{}", text(&usage.stderr));

    let failure = run(&["quantize", "--format", "nvfp4", "/nowhere/in", "/nowhere/out"]);
    assert_eq!((failure.status.code(), text(&failure.stdout)), (Some(1), ""));
    assert!(
        text(&failure.stderr).starts_with("error: cannot read `/nowhere/in`: "),
        "{}",
        text(&failure.stderr)
    );

    for arguments in [["formats"].as_slice(), &["--help"], &["quantize", "--help"], &["--version"]] {
        let help = run(arguments);
        assert_eq!((help.status.code(), text(&help.stderr)), (Some(0), ""), "{arguments:?}");
        assert!(!help.stdout.is_empty());
    }
    assert_eq!(run(&[]).status.code(), Some(2));
}

#[test]
fn every_option_reaches_the_library() {
    let contents = Contents::default()
        .with("a.w", Tensor::f32s(&[32, 32], &[1.0 + f32::EPSILON; 1024]))
        .with("b.w", Tensor::f32s(&[32, 32], &[1.0; 1024]))
        .with("a.odd", Tensor::f32s(&[3, 3], &[1.0; 9]));
    let folder = Folder::with(&contents.to_bytes());
    let (input, output) = (folder.input(), folder.output());
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
    let run = |options: &[&str]| run(&[&["quantize"], options, &[input, output]].concat());
    let amax = |name: &str| folder.read("out.safetensors").tensor(name).values()[0];

    let strict = run(&["--format", "nvfp4_2d", "--strict"]);
    assert_eq!((strict.status.code(), folder.files().len()), (Some(1), 1));
    assert!(run(&["--format", "nvfp4_2d", "--only", "*.w"]).status.success());
    assert_eq!(amax("a.w.amax"), 1.0 + f32::EPSILON);
    assert_eq!(run(&["--format", "nvfp4_2d"]).status.code(), Some(1), "it exists");
    let all = ["--format", "mxfp8", "--force", "--via", "bf16", "--shards", "3", "--only", "a.w"];
    assert!(run(&all).status.success());
    assert_eq!(amax("a.w.amax"), 1.0);
    assert!(folder.read("out.safetensors").tensors.contains_key("b.w"));
}

/// What was converted wrongly, or not at all, is no success to a script.
#[test]
fn what_is_not_converted_as_it_was_asked_ends_the_program_by_another_code_than_zero() {
    let scales: Vec<f32> = (0..512).map(|at| (-6.0 - (at % 9) as f32).exp2()).collect();
    let codes = Tensor::new(safetensors::Dtype::F8_E4M3, &[4096, 2048], vec![0x38; 4096 * 2048]);
    let quantized = Contents::default()
        .with("up.weight", codes)
        .with("up.weight_scale_inv", Tensor::f32s(&[32, 16], &scales));
    let lost = Contents::default().with("w", Tensor::f32s(&[16, 16], &[3e38; 256]));
    let nothing = Contents::default().with("norm", Tensor::f32s(&[16], &[1.0; 16]));
    for (contents, said, files_after) in [
        (quantized, "is quantized: `up.weight` (F8_E4M3 [4096, 2048]) holds FP8 codes", 1),
        (lost, "1 matrix holds values that do not come back", 2),
        (nothing, "nothing in", 1),
    ] {
        for strict in [&[][..], &["--strict"]] {
            let folder = Folder::with(&contents.to_bytes());
            let (input, output) = (folder.input(), folder.output());
            let files = [input.to_str().unwrap(), output.to_str().unwrap()];
            let ended = run(&[&["quantize", "--format", "nvfp4"], strict, &files].concat());
            assert_eq!(ended.status.code(), Some(1), "{said}");
            assert!(text(&ended.stderr).contains(said), "{said}: {}", text(&ended.stderr));
            assert_eq!(folder.files().len(), files_after, "{said}");
        }
    }
    let folder =
        Folder::with(&Contents::default().with("w", Tensor::f32s(&[16, 16], &[3e38; 256])).to_bytes());
    folder.quantize(&warpweft_cli::QuantizeOptions::new(warpweft_format::Format::NVFP4_2D)).unwrap();
    let (output, back) = (folder.output(), folder.path("back"));
    let ended = run(&["quantize", "--dequantize", output.to_str().unwrap(), back.to_str().unwrap()]);
    assert_eq!(ended.status.code(), Some(1));
    assert!(text(&ended.stdout).contains("LOST: "), "{}", text(&ended.stdout));
}

#[cfg(unix)]
#[test]
fn an_interrupted_program_removes_what_it_was_writing() {
    use std::io::{Seek, SeekFrom, Write};
    use std::time::Duration;

    // A thousand matrices of 4 MiB, none of which is on the disk: minutes of work.
    let folder = Folder::with(&[]);
    let tensor = |at: u64| {
        let (name, begin) = (format!("w{at}"), at << 22);
        format!(
            r#""{name}":{{"dtype":"F32","shape":[1024,1024],"data_offsets":[{begin},{}]}}"#,
            begin + (1 << 22)
        )
    };
    let header = format!("{{{}}}", (0..1000).map(tensor).collect::<Vec<_>>().join(","));
    let mut file = std::fs::File::create(folder.input()).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.seek(SeekFrom::Current((1000 << 22) - 1)).unwrap();
    file.write_all(&[0]).unwrap();

    let mut program = Command::new(env!("CARGO_BIN_EXE_warpweft"))
        .args(["quantize", "--format", "nvfp4_2d"])
        .args([folder.input(), folder.output()])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    while folder.files().len() == 1 {
        assert!(program.try_wait().unwrap().is_none(), "it ended before it wrote");
        std::thread::sleep(Duration::from_millis(1));
    }
    let pid = program.id().to_string();
    assert!(Command::new("sh").args(["-c", &format!("kill -INT {pid}")]).status().unwrap().success());
    let ended = program.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130));
    assert_eq!(text(&ended.stderr), "error: interrupted; no output was written\n");
    assert_eq!(folder.files(), ["in.safetensors"]);
}
