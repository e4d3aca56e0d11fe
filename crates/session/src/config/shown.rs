//! A value as a message shows it.

use toml::Value;

/// A value as TOML, numbers of many digits with a power of ten.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Float(number) if is_long(*number) => format!("{number:e}"),
        value => value.to_string(),
    }
}

fn is_long(number: f64) -> bool {
    number.is_finite() && number != 0.0 && !(1e-16..1e16).contains(&number.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_many_digits_have_a_power_of_ten() {
        let shown = [1e300, -2.5e-200, 0.25, 0.0, 3e15].map(|number| shown(&Value::Float(number)));
        assert_eq!(shown, ["1e300", "-2.5e-200", "0.25", "0.0", "3000000000000000.0"]);
    }
}
