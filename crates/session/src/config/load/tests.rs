//! Loads of files and environments, and what is refused of them.

use super::*;
use crate::config::{Backward, ByteSize, Capture, DeviceTimes, Reduce, Scaling, Transport};
use proptest::prelude::*;
use warpweft_format::{AmaxChoice, Format, Via};
use warpweft_plan::model::Placement;

fn from_text(text: &str) -> Result<Config, ConfigError> {
    Config::from_toml_str(text, "run.toml")
}

fn from_environment(text: &str, pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let pairs = pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
    let document = Some(Document::parse("run.toml", text)?);
    Sources { document, environment: Environment::collect(pairs)? }.merge()
}

#[test]
fn an_empty_file_is_the_defaults() {
    assert_eq!(from_text("").unwrap(), Config::default());
    assert_eq!(Config::load_with(None, []).unwrap(), Config::default());
}

#[test]
fn exactly_one_of_the_ways_to_prefetch_is_set_and_the_later_source_wins() {
    let chosen = |text: &str, pairs: &[(&str, &str)]| from_environment(text, pairs).unwrap().prefetch;
    assert_eq!(chosen("", &[]), Prefetch::depth(1));
    assert_eq!(chosen("prefetch.bytes = '1 GiB'", &[]), Prefetch::bytes(ByteSize::new(1 << 30)));
    assert_eq!(chosen("prefetch.depth = 4", &[("WARPWEFT_PREFETCH__POLICY", "auto")]), Prefetch::auto());
    assert_eq!(chosen("prefetch.policy = 'auto'", &[("WARPWEFT_PREFETCH__DEPTH", "3")]), Prefetch::depth(3));
    let error = from_text("[prefetch]\ndepth = 2\npolicy = 'auto'").unwrap_err().to_string();
    assert!(
        error.starts_with(
            "run.toml:3: `prefetch.policy` is \"auto\" and stands beside `prefetch.depth` = 2 (run.toml:2)"
        ),
        "{error}"
    );
    let pairs = [("WARPWEFT_PREFETCH__POLICY", "auto"), ("WARPWEFT_PREFETCH__DEPTH", "1")];
    let error = from_environment("", &pairs).unwrap_err().to_string();
    assert!(
        error.ends_with("= 1 (environment variable WARPWEFT_PREFETCH__DEPTH); remove one of them"),
        "{error}"
    );
    let pair = [("WARPWEFT_TRANSPORT", "peer"), ("WARPWEFT_REDUCE", "nccl")];
    let error = from_environment("", &pair).unwrap_err().to_string();
    assert!(error.contains("`reduce` is \"nccl\", and `transport` is \"peer\""), "{error}");
    assert!(from_environment("", &pair[1..]).is_ok());
    let machine = chosen("prefetch.cluster = 'ours.toml'", &[]);
    assert_eq!((machine.depth, machine.cluster.as_str()), (Some(1), "ours.toml"));
}

#[test]
fn every_key_is_read_from_a_file() {
    let config = from_text(
        r#"
        communicators = 1
        backward = "keep"
        columnwise = "keep"
        reduce = "nccl"
        transport = "nccl"
        deadline_s = 5
        capture = "segments"
        check = true
        prefetch.depth = 4
        memory.budget = "1.5 GiB"
        quantize = { via = "none", scaling = "delayed", amax_history = 9, amax_choice = "latest" }
        optimizer = { mode = "adam", bias_correction = false, moments = "bf16", masters = "bf16_remainder", lr = 1, beta1 = 0.5, beta2 = 0.75, eps = 1e-6, weight_decay = 0.1, max_norm = 1.0 }
        cpu.link = { bytes_per_s = 2e9, latency_us = 5 }
        trace = { enabled = true, path = "t.json", first_step = 5, steps = 9, device = "cupti" }
        [[weights]]
        match = "blocks.*"
        format = "fp8_block"
        placement = "sharded"
        "#,
    )
    .unwrap();
    let defaults = Config::default();
    assert_eq!((config.communicators, config.prefetch.depth, config.check), (Some(1), Some(4), true));
    assert_eq!((config.backward, config.reduce), (Backward::Keep, Reduce::Nccl));
    assert_eq!((config.transport, config.deadline_s), (Transport::Nccl, 5.0));
    assert_eq!((config.capture, config.quantize.via), (Capture::Segments, Via::None));
    assert_eq!((config.quantize.scaling, config.quantize.amax_history), (Scaling::Delayed, 9));
    assert_eq!(config.quantize.amax_choice, AmaxChoice::Latest);
    assert_ne!(config.columnwise, defaults.columnwise);
    assert_eq!(config.memory.budget, Some(ByteSize::new(3 << 29)));
    assert_eq!((config.optimizer.lr, config.optimizer.max_norm), (1.0, 1.0));
    assert_eq!(config.cpu.link.bytes_per_s, Some(2e9));
    assert_eq!((config.trace.enabled, config.trace.path.as_str()), (true, "t.json"));
    assert_eq!((config.trace.first_step, config.trace.steps), (5, 9));
    assert_eq!(config.trace.device, DeviceTimes::Cupti);
    assert_eq!(config.weights[0].format, Some("fp8_block".parse::<Format>().unwrap()));
    assert_eq!(config.weights[0].placement, Some(Placement::Sharded));
}

#[test]
fn cf1_every_key_set_wrong_is_an_error_with_its_name_its_line_and_what_it_takes() {
    let wrong = [
        ("communicators", "5", "a whole number from 1 to 4"),
        ("backward", "\"later\"", "\"regather\" or \"keep\""),
        ("columnwise", "true", "\"on_demand\" or \"keep\""),
        ("reduce", "\"fast\"", "\"ordered\" or \"nccl\""),
        ("transport", "\"pigeon\"", "\"auto\", \"peer\" or \"nccl\""),
        ("deadline_s", "0", "a number of seconds from 0.1 to 86400"),
        ("capture", "1", "\"off\", \"step\" or \"segments\""),
        ("check", "\"yes\"", "`true` or `false`"),
        ("prefetch.depth", "-1", "from 0 (gather on demand) to 64"),
        ("prefetch.depth", "1.5", "from 0 (gather on demand) to 64"),
        ("prefetch.depth", "65", "from 0 (gather on demand) to 64"),
        ("prefetch.bytes", "0", "above zero"),
        ("prefetch.chunk", "0", "above zero"),
        ("prefetch.policy", "\"manual\"", "\"auto\""),
        ("prefetch.cluster", "7", "a preset"),
        ("prefetch", "3", "a table of `depth`"),
        ("memory.budget", "\"1.2 gigs\"", "TiB, GiB"),
        ("memory.budget", "-5", "above zero"),
        ("memory.budget", "0", "above zero"),
        ("memory.budget", "true", "above zero"),
        ("quantize.via", "\"f16\"", "\"bf16\" or \"none\""),
        ("quantize.scaling", "\"late\"", "\"current\" or \"delayed\""),
        ("quantize.amax_history", "0", "from 1 to 65536"),
        ("quantize.amax_history", "65537", "from 1 to 65536"),
        ("quantize.amax_choice", "\"max\"", "\"largest\" or \"latest\""),
        ("optimizer.mode", "\"sgd\"", "\"adamw\""),
        ("optimizer.bias_correction", "1", "`true`"),
        ("optimizer.moments", "\"f16\"", "\"f32\" or \"bf16\""),
        ("optimizer.masters", "\"bf16\"", "\"bf16_remainder\""),
        ("optimizer.lr", "\"fast\"", "finite number from 0"),
        ("optimizer.lr", "nan", "finite number from 0"),
        ("optimizer.beta1", "1", "below 1"),
        ("optimizer.beta2", "-0.1", "below 1"),
        ("optimizer.eps", "0", "above 0"),
        ("optimizer.weight_decay", "inf", "finite number from 0"),
        ("optimizer.max_norm", "1e39", "no clipping"),
        ("optimizer.max_norm", "1e-60", "from 1e-18 on"),
        ("optimizer.max_norm", "-1", "or 0 for no clipping"),
        ("cpu.link.bytes_per_s", "0", "from 1e3 on"),
        ("cpu.link.bytes_per_s", "1", "from 1e3 on"),
        ("cpu.link.latency_us", "-1", "microseconds from 0"),
        ("trace.enabled", "0", "`true` or `false`"),
        ("trace.path", "\"\"", "name of the file"),
        ("trace.path", "7", "name of the file"),
        ("trace.first_step", "-1", "from 0 to 4294967295"),
        ("trace.first_step", "4294967296", "from 0 to 4294967295"),
        ("trace.steps", "0", "from 1 to 4294967295"),
        ("trace.device", "\"nsight\"", "\"auto\", \"cupti\" or \"events\""),
        ("tune.steps", "5", "from 6 to 20"),
        ("tune.steps", "21", "0 (no tuning)"),
        ("weights", "3", "a list of tables"),
    ];
    for (key, value, takes) in wrong {
        let text = format!("\n{key} = {value}\n");
        let error = from_text(&text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("run.toml:2: `{key}` is ")), "{text}: {error}");
        assert!(error.contains(takes), "{text}: {error}");
    }
}

#[test]
fn every_key_of_a_rule_set_wrong_is_an_error_with_its_line() {
    for (lines, key, place) in [
        ("format = 'bf16'", "weights.1.match", "run.toml:5"),
        ("match = ''\nformat = 'bf16'", "weights.1.match", "run.toml:5"),
        ("match = '*'", "weights.1.format", "run.toml:5"),
        ("match = '*'\nformat = 'fp3'", "weights.1.format", "run.toml:6"),
        ("match = '*'\nplacement = 'here'", "weights.1.placement", "run.toml:6"),
    ] {
        let text = format!("[[weights]]\nmatch = 'a'\nformat = 'f32'\n[[weights]]\n{lines}\n");
        let error = from_text(&text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{place}: `{key}` is ")), "{lines}: {error}");
    }
}

#[test]
fn cf2_an_unknown_key_is_refused_with_its_line_and_the_key_that_was_meant() {
    for (text, expected) in [
        ("chekc = true", "run.toml:1: unknown key `chekc`; did you mean `check`?"),
        ("[prefetch]\ndept = 2", "run.toml:2: unknown key `prefetch.dept`; did you mean `prefetch.depth`?"),
        ("depth = 2", "run.toml:1: unknown key `depth`; did you mean `prefetch.depth`?"),
        (
            "[[weights]]\nmatch = 'a'\nfromat = 'f32'",
            "run.toml:3: unknown key `weights.0.fromat`; did you mean `weights.0.format`?",
        ),
        (
            "[cpu.link]\nqqq = 1",
            "run.toml:2: unknown key `cpu.link.qqq`; remove it; the keys here are `bytes_per_s`, \
             `latency_us`",
        ),
        ("[nonsense]", "run.toml:1: unknown key `nonsense`; remove it; the keys here are `communicators`, "),
        ("\"prefetch.depth\" = 2", "run.toml:1: unknown key `\"prefetch.depth\"`; "),
        ("check.it = true", "run.toml:1: unknown key `check.it`; "),
    ] {
        let error = from_text(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn the_environment_overrides_the_file_and_the_file_the_defaults() {
    let pairs = [("WARPWEFT_PREFETCH__DEPTH", "2"), ("WARPWEFT_MEMORY__BUDGET", "2 MiB"), ("HOME", "x")];
    let config = from_environment("prefetch.depth = 4\ncheck = true", &pairs).unwrap();
    assert_eq!(config.prefetch.depth, Some(2));
    assert_eq!(config.memory.budget, Some(ByteSize::new(2 << 20)));
    assert!(config.check);
}

#[test]
fn rules_from_the_environment_replace_those_of_the_file() {
    let text = "[[weights]]\nmatch = 'a'\nformat = 'f32'\n[[weights]]\nmatch = 'b'\nformat = 'f32'";
    let pair = ("WARPWEFT_WEIGHTS", "[{ match = 'c', format = 'bf16' }]");
    let config = from_environment(text, &[pair]).unwrap();
    assert_eq!(config.weights.len(), 1);
    assert_eq!(config.weights[0].pattern, "c");
}

#[test]
fn what_is_wrong_in_the_environment_is_told_by_its_variable() {
    for (name, value, expected) in [
        ("WARPWEFT_PREFETCH__DEPTH", "two", "`prefetch.depth` is the text \"two\"; set it to"),
        ("WARPWEFT_PREFETCH__DEPTH", "99", "`prefetch.depth` is 99; set it to"),
        ("WARPWEFT_PREFETCH", "9", "`prefetch` is 9; set it to a table"),
        (
            "WARPWEFT_PREFETCH__DEPHT",
            "2",
            "unknown key `prefetch.depht`; did you mean WARPWEFT_PREFETCH__DEPTH?",
        ),
        ("WARPWEFT_PREFETCH", "{ dept = 2 }", "unknown key `prefetch.dept`; did you mean"),
        ("WARPWEFT_WEIGHTS", "[{ match = '*', format = 'f3' }]", "`weights.0.format` is not understood"),
        (
            "WARPWEFT_WEIGHTS__MATCH",
            "x",
            "`weights` is a list, and no variable sets a part of it; set it to all",
        ),
        (
            "WARPWEFT_WEIGHTS__0__MATCH",
            "x",
            "`weights` is a list, and no variable sets a part of it; set it to",
        ),
        ("WARPWEFT_WEIGHTS", "{ match = 'x' }", "`weights` is a list"),
        ("WARPWEFT_WEIGHTS", "[{ format = 'bf16' }]", "`weights.0.match` is missing"),
        (
            "WARPWEFT_WEIGHTS",
            "[{ match = 'x'",
            "`weights` is the text \"[{ match = 'x'\", which is no TOML (",
        ),
        ("WARPWEFT_", "2", "unknown key"),
    ] {
        for file in ["prefetch.depth = 3", "[[weights]]\nmatch = \"*\"\nformat = \"f32\""] {
            let error = from_environment(file, &[(name, value)]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("environment variable {name}: {expected}")), "{error}");
        }
    }
}

#[test]
fn a_text_of_the_program_is_named_as_the_source_of_what_it_sets() {
    let load = |text| Config::load_toml_str(text, "built-in run.toml");
    assert!(load("\ncheck = true").unwrap().effective().contains("built-in run.toml:2"));
    let error = load("chekc = true").unwrap_err().to_string();
    assert!(error.starts_with("built-in run.toml:1: unknown key `chekc`"), "{error}");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = Config::load_with(Some(Path::new("no/such/file.toml")), []).unwrap_err();
    assert!(error.to_string().contains("no/such/file.toml"), "{error}");
}

/// What is loaded prints itself as a file that loads the same.
fn assert_prints_itself(config: Config) {
    let again = from_text(&config.effective()).unwrap();
    assert_eq!(Config { origins: again.origins.clone(), ..config }, again);
}

proptest! {
    #[test]
    fn arbitrary_text_is_an_error_or_a_configuration_that_prints_itself(text in "(?s).{0,80}") {
        if let Ok(config) = from_text(&text) {
            assert_prints_itself(config);
        }
    }

    #[test]
    fn arbitrary_values_of_real_keys_are_errors_or_print_themselves(
        key in prop::sample::select(keys::all_like("")),
        value in "-?[0-9]{1,25}|-?[0-9]{1,3}\\.[0-9]e[0-9]{1,3}|true|inf|-nan|'.{0,8}'|\\[1\\]|\\{a=1\\}",
    ) {
        let key = key.replace(".0.", ".");
        if let Ok(config) = from_text(&format!("{key} = {value}")) {
            assert_prints_itself(config);
        }
        let variable = variable_for(&key);
        if let Ok(config) = from_environment("", &[(&variable, &value)]) {
            assert_prints_itself(config);
        }
    }
}
