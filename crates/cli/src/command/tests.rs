//! Command lines that are accepted, and command lines that are refused.

use super::quantize::EXAMPLES;
use super::schedule::{PLAN_EXAMPLES, SIMULATE_EXAMPLES};
use super::tune::TUNE_EXAMPLES;
use super::*;
use crate::formats;

/// How a command goes on in the next line.
const CONTINUED: &str = "\\\n      ";

fn parse(line: &str) -> Result<Arguments, clap::Error> {
    Arguments::read(line.split(' ').map(OsString::from))
}

#[test]
fn the_arguments_are_consistent() {
    Arguments::command().debug_assert();
}

#[test]
fn the_help_of_quantize_explains_every_format_it_takes() {
    let help = parse("warpweft quantize --help").unwrap_err().to_string();
    for name in formats::quantizing_names().split(", ") {
        assert!(help.contains(name), "{name}: {help}");
    }
    assert!(help.contains("X.columnwise_scale") && help.contains("Examples:"), "{help}");
}

#[test]
fn the_examples_of_the_help_parse() {
    let all = [EXAMPLES, PLAN_EXAMPLES, SIMULATE_EXAMPLES, TUNE_EXAMPLES].join("\n").replace(CONTINUED, "");
    let examples: Vec<&str> =
        all.lines().map(str::trim).filter(|line| line.starts_with("warpweft ")).collect();
    assert_eq!(examples.len(), 14);
    for example in examples {
        let typed = example.replace('\'', "");
        let typed = typed.split(" > ").next().unwrap();
        parse(typed).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[cfg(feature = "cuda")]
#[test]
fn the_examples_of_the_bench_parse_and_its_help_names_what_units_there_are() {
    let examples = super::bench::STACK_EXAMPLES.replace(CONTINUED, "");
    let examples = examples.lines().map(str::trim);
    let examples: Vec<&str> = examples.filter(|line| line.starts_with("warpweft ")).collect();
    assert_eq!(examples.len(), 5);
    for example in examples {
        parse(&example.replace('\'', "")).unwrap_or_else(|error| panic!("{error}"));
    }
    parse("warpweft bench stack --unit block --depths 1,2 --reduce-delay 16")
        .unwrap_or_else(|error| panic!("{error}"));
    for line in ["warpweft bench stack --unit layer", "warpweft bench stack --reduce-delay 0"] {
        assert!(parse(line).is_err(), "{line}");
    }
    let help = parse("warpweft bench stack --help").unwrap_err().to_string();
    assert!(
        help.contains("[possible values: weight, block]")
            && help.contains("depthN gathers N units ahead")
            && help.contains("configuration's reduce_delay, unless --reduce-delay says how many"),
        "{help}"
    );
}

/// As of devices: a rename would take the place of what is there.
#[cfg(unix)]
#[test]
fn calibrate_refuses_to_replace_what_is_no_plain_file_before_it_measures() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let line = format!("warpweft calibrate {} --device cpu --force", socket.display());
    let Command::Calibrate(calibrate) = parse(&line).unwrap().command else {
        panic!("another command");
    };
    let stopped = std::sync::atomic::AtomicBool::new(true);
    let said = calibrate.run(&stopped).unwrap_err().to_string();
    assert!(said.contains("no plain file") && said.contains("name another file"), "{said}");
}

#[test]
fn no_line_of_a_help_text_is_wider_than_a_page() {
    for command in ["quantize", "plan", "simulate", "tune", "trace", "calibrate"] {
        let help = parse(&format!("warpweft {command} --help")).unwrap_err().to_string();
        let wide = help.lines().find(|line| line.chars().count() > 100);
        assert_eq!(wide, None, "{command}");
    }
}

#[test]
fn the_help_of_plan_names_every_key_of_a_list_of_calls() {
    let help = parse("warpweft plan --help").unwrap_err().to_string();
    for key in warpweft_session::config::CallList::keys() {
        let word = key.rsplit('.').next().unwrap();
        assert!(help.contains(word), "{key}: {help}");
    }
}

#[test]
fn the_help_of_simulate_names_every_preset() {
    let help = parse("warpweft simulate --help").unwrap_err().to_string();
    for (name, _) in warpweft_plan::cluster::PRESETS {
        assert!(help.contains(name), "{name}: {help}");
    }
    let help = parse("warpweft plan --help").unwrap_err().to_string();
    for rule in <warpweft_plan::model::Decoder as warpweft_session::config::Rules>::RULES {
        assert!(help.contains(&format!("\n  {} = ", rule.key)), "{}: {help}", rule.key);
    }
}

#[test]
fn what_makes_no_sense_together_is_refused() {
    for (line, complaint) in [
        ("warpweft quantize in out", "--format <FORMAT>"),
        ("warpweft quantize --format nvfp4 --dequantize in out", "cannot be used with"),
        ("warpweft quantize --dequantize --only x in out", "cannot be used with"),
        ("warpweft quantize --format fp3 in out", "choose one of nvfp4_2d, "),
        ("warpweft quantize --format bf16 in out", "bf16 does not quantize; choose one of nvfp4_2d, "),
        ("warpweft quantize --format fp8_tensor_e4m3_eps-1 in out", "epsilon -1"),
        ("warpweft quantize --format nvfp4 --shards 0 in out", "0 is not in 1..=1024"),
        ("warpweft quantize --format nvfp4 in", "<OUT>"),
        ("warpweft plan m.toml --dot --tasks", "cannot be used with"),
        ("warpweft simulate m.toml --ranks 4", "--cluster"),
        ("warpweft simulate m.toml --cluster h200x4 --ranks 0", "0 is not in 1..=65536"),
        ("warpweft simulate m.toml --cluster h200x4 --ranks 4 --depth 65", "65 is not in 0..=64"),
        ("warpweft plan m.toml --ranks 99999999", "99999999 is not in 1..=65536"),
        ("warpweft trace t.json --step 3", "--picture"),
        ("warpweft trace t.json --rank 1", "--picture"),
        ("warpweft trace t.json --picture p.svg --from -1", "milliseconds from 0 on"),
        ("warpweft plan m.toml --depth 2 --auto", "cannot be used with"),
        ("warpweft plan m.toml --bytes 2gigs", "the unit is unknown"),
        ("warpweft plan m.toml --bytes -1", "its number is not digits"),
        ("warpweft plan m.toml --ranks -1", "-1 is not in 1..=65536"),
        ("warpweft simulate m.toml --cluster h200x4 --ranks 4 --depth -1", "-1 is not in 0..=64"),
        ("warpweft calibrate o.toml --memory 0", "a size above zero"),
        ("warpweft calibrate o.toml --largest 0", "a size above zero"),
        ("warpweft calibrate o.toml --name ", "text that is not empty"),
        ("warpweft calibrate o.toml --flops bf16=715", "did you mean 715e12?"),
        ("warpweft plan m.toml --why 3 --dot", "cannot be used with"),
        ("warpweft tune m.toml --cluster h200x4", "--ranks"),
    ] {
        let message = parse(line).unwrap_err().to_string();
        assert!(message.contains(complaint), "{line}: {message}");
    }
}

#[test]
fn a_repeated_pattern_adds_to_the_selection() {
    let Command::Quantize(quantize) =
        parse("warpweft quantize --format nvfp4 --only a* --only b in out").unwrap().command
    else {
        panic!("another command");
    };
    assert_eq!(quantize.only, ["a*", "b"]);
}

/// Whoever finds a cluster file can make it again.
#[test]
fn the_head_of_a_cluster_file_is_the_command_that_measured_it() {
    let head = |line: &str| {
        let Command::Calibrate(calibrate) = parse(line).unwrap().command else { panic!("{line}") };
        calibrate.options().1.command
    };
    for options in [
        "--device cpu --ranks 2 --repeats 12",
        "--simulated h200x4 --ranks 4 --repeats 3 --name ours --algorithm ring --largest 1048576B --config a.toml \
         --between h100x8-ib --flops bf16=7.15e14 --flops fp8=1e15 --memory 1024B",
    ] {
        let expected = format!("warpweft calibrate {options}");
        assert_eq!(head(&expected.replace("calibrate", "calibrate out.toml")), expected);
    }
}
