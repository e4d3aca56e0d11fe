//! Errors that `main` returns, which are printed by `Debug`.

use std::error::Error;

use warpweft_cli::ToolError;
use warpweft_session::checkpoint::safetensors::Invalid;

#[test]
fn an_error_that_main_returns_is_printed_with_what_to_do() {
    let errors: [(Box<dyn Error>, &str); 2] = [
        (Box::new(ToolError::Exists { path: "x".into() }), "--force"),
        (Box::new(Invalid::CutOff("it has 3 bytes; it is empty or cut off".into())), "empty or cut off"),
    ];
    for (error, advice) in errors {
        let (message, printed) = (error.to_string(), format!("{error:?}"));
        assert!(printed.starts_with(&message) && printed.contains(advice), "{printed}");
        assert!(!printed.contains(" { "), "names of fields: {printed}");
    }
}
