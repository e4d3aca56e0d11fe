//! Files that `warpweft bench` would write over, and folders that are none: what is refused.

use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(subcommand)]
    what: What,
}

/// What a line of arguments requests.
fn options(arguments: &str) -> (Option<PathBuf>, StackOptions) {
    let words = ["bench", "stack"].into_iter().chain(arguments.split_whitespace());
    let What::Stack(stack) = Line::try_parse_from(words).unwrap().what;
    stack.options()
}

#[test]
fn no_trace_and_no_table_is_replaced_without_force() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("bf16-block-depth1-graph-peer-training.json");
    let line = |only: &str| {
        let there = folder.path().display();
        options(&format!("--traces {there} --json {there}/table.json --only {only}"))
    };
    let check = |(json, options): (Option<PathBuf>, StackOptions), replace| {
        check_outputs(json.as_deref(), &options, replace)
    };
    check(line("*"), false).unwrap();
    std::fs::write(&trace, "kept").unwrap();
    let said = check(line("*"), false).unwrap_err();
    assert!(matches!(&said, MeasureError::Exists { path, .. } if *path == trace), "{said}");
    check(line("*"), true).unwrap();
    // That of a variant that is not measured is in nobody's way.
    check(line("*/gradients"), false).unwrap();
    assert_eq!(std::fs::read_to_string(&trace).unwrap(), "kept");
    let table = folder.path().join("table.json");
    std::fs::write(&table, "kept").unwrap();
    let said = check(line("*/gradients"), false).unwrap_err();
    assert!(matches!(&said, MeasureError::Exists { path, .. } if *path == table), "{said}");
}

#[test]
fn a_file_in_the_place_of_the_folder_of_traces_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("traces");
    std::fs::write(&file, "kept").unwrap();
    let (_, options) = options(&format!("--traces {}", file.display()));
    for replace in [false, true] {
        let said = check_outputs(None, &options, replace).unwrap_err().to_string();
        assert!(said.contains("write traces to") && said.contains("not a directory"), "{said}");
    }
}

#[test]
fn a_folder_of_traces_need_not_be_there() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let (_, options) = options(&format!("--traces {}", missing.display()));
    check_outputs(None, &options, false).unwrap();
    assert!(!missing.exists());
}
