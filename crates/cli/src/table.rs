//! The printed report of a conversion: a row per tensor, the tensors that were copied, with reasons, and totals.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

use warpweft_base::errors::{listed, shown};

use super::report::{Converted, Copied, Lost, Report};
use super::text::{Align, Table, bytes, duration};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new([
            ("tensor", Align::Left),
            ("shape", Align::Right),
            ("before", Align::Right),
            ("after", Align::Right),
            ("ratio", Align::Right),
            ("rel. error", Align::Right),
            ("time", Align::Right),
        ]);
        for tensor in &self.tensors {
            table.row([
                shown(&tensor.name),
                match tensor.matrices {
                    1 => tensor.shape.to_string(),
                    matrices => format!("{matrices} of {}", tensor.shape),
                },
                bytes(tensor.bytes_before),
                bytes(tensor.bytes_after),
                ratio(tensor.bytes_before, tensor.bytes_after),
                tensor.relative_error.map_or_else(|| "–".to_owned(), |error| format!("{error:.2e}")),
                duration(tensor.time),
            ]);
        }
        let sum = |of: fn(&Converted) -> u64| self.tensors.iter().map(of).sum::<u64>();
        let (before, after) = (sum(|tensor| tensor.bytes_before), sum(|tensor| tensor.bytes_after));
        table.row([
            format!("{} converted", self.tensors.len()),
            String::new(),
            bytes(before),
            bytes(after),
            ratio(before, after),
            String::new(),
            duration(self.tensors.iter().map(|tensor| tensor.time).sum()),
        ]);
        let copied_bytes = self.copied.iter().map(|copied| copied.bytes).sum();
        let copied = bytes(copied_bytes);
        table.row([
            format!("{} copied", self.copied.len()),
            String::new(),
            copied.clone(),
            copied,
            ratio(copied_bytes, copied_bytes),
            String::new(),
            String::new(),
        ]);
        table.row([
            "file".to_owned(),
            String::new(),
            bytes(self.input_bytes),
            bytes(self.output_bytes),
            ratio(self.input_bytes, self.output_bytes),
            String::new(),
            duration(self.elapsed),
        ]);
        write!(f, "{table}")?;
        if let Some((tensors, left_out)) = self.left_out {
            writeln!(
                f,
                "\nA session saved this checkpoint: its masters were taken under the names of their weights, and {tensors} \
                 other tensors ({}) were left out. No session resumes from the output.",
                bytes(left_out)
            )?;
        }
        if !self.absent.is_empty() {
            writeln!(
                f,
                "\nFROZEN: a session saves digests alone of weights that do not train, so the output lacks {}; quantize \
                 the files that they came from.",
                listed("`", &self.absent)
            )?;
        }
        if !self.copied.is_empty() {
            writeln!(f, "\nCopied as they are (`*` stands for numbers):")?;
        }
        for (name, reason, count) in alike(&self.copied) {
            let count = if count == 1 { String::new() } else { format!(" ({count} tensors)") };
            writeln!(f, "  {}{count}: {reason}", shown(&name))?;
        }
        if !self.lost.is_empty() {
            writeln!(
                f,
                "\nLOST: values too large for the format do not come back; leave these tensors out with --only, or \
                 choose another format:"
            )?;
        }
        for Lost { name, row, column, value, back } in &self.lost {
            let value = value.map(|value| format!("{value:e} ")).unwrap_or_default();
            writeln!(f, "  {}: {value}at [{row}, {column}] comes back as {back}", shown(name))?;
        }
        Ok(())
    }
}

/// Tensors that were copied for one reason and whose names differ in numbers alone: their name with `*` in the place
/// of numbers, the reason, and how many there are.
fn alike(copied: &[Copied]) -> Vec<(String, String, usize)> {
    let mut places: HashMap<(String, String), usize> = HashMap::new();
    let mut all: Vec<(String, String, usize)> = Vec::new();
    for Copied { name, reason, .. } in copied {
        let reason = reason.to_string();
        match places.entry((without_numbers(name), reason.clone())) {
            Entry::Vacant(entry) => {
                entry.insert(all.len());
                all.push((name.clone(), reason, 1));
            }
            Entry::Occupied(entry) => {
                let (name, _, count) = &mut all[*entry.get()];
                name.clone_from(&entry.key().0);
                *count += 1;
            }
        }
    }
    all
}

fn without_numbers(name: &str) -> String {
    let mut short = String::new();
    for character in name.chars() {
        match character.is_ascii_digit() {
            true if short.ends_with('*') => {}
            true => short.push('*'),
            false => short.push(character),
        }
    }
    short
}

/// How many times smaller.
pub(super) fn ratio(before: u64, after: u64) -> String {
    if after == 0 { "–".to_owned() } else { format!("{:.2}×", before as f64 / after as f64) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use safetensors::Dtype;

    use super::super::report::CopyReason;
    use super::*;
    use warpweft_format::{Format, Shape};

    #[test]
    fn a_report_lists_every_tensor_then_totals_then_what_was_copied_and_why() {
        let mut report = Report::new(4096, 2048);
        let converted = |name: &str, matrices| Converted {
            name: name.to_owned(),
            matrices,
            shape: Shape::new(16, 32),
            bytes_before: 2048,
            bytes_after: 1024,
            relative_error: Some(0.0625),
            time: Duration::from_millis(2),
        };
        report.tensors.extend([converted("up\n", 1), converted("experts", 8)]);
        let mut copied =
            |name: &str, reason| report.copied.push(Copied { name: name.to_owned(), bytes: 128, reason });
        copied("odd", CopyReason::Shape(Format::NVFP4_2D.check_shape(Shape::new(16, 40)).unwrap_err()));
        let (dtype, shape) = (Dtype::F32, vec![4096]);
        for layer in [0, 1, 12] {
            let reason = CopyReason::NoMatrix { dtype, shape: shape.clone() };
            copied(&format!("layers.{layer}.norm"), reason);
        }
        for (name, value) in [("up", Some(3e38)), ("experts[3]", None)] {
            report.lost.push(Lost { name: name.to_owned(), row: 0, column: 5, value, back: f32::INFINITY });
        }
        report.elapsed = Duration::from_millis(5);
        assert_eq!(
            report.to_string(),
            "\
tensor            shape    before     after  ratio  rel. error    time
up\\n              16×32  2.00 KiB  1.00 KiB  2.00×     6.25e-2  2.0 ms
experts      8 of 16×32  2.00 KiB  1.00 KiB  2.00×     6.25e-2  2.0 ms
2 converted              4.00 KiB  2.00 KiB  2.00×              4.0 ms
4 copied                    512 B     512 B  1.00×
file                     4.00 KiB  2.00 KiB  2.00×              5.0 ms

Copied as they are (`*` stands for numbers):
  odd: nvfp4_2d needs columns in multiples of 16, but the shape is 16×40; pad the columns to 48, or choose another format
  layers.*.norm (3 tensors): F32 of shape [4096] is no matrix

LOST: values too large for the format do not come back; leave these tensors out with --only, or choose another format:
  up: 3e38 at [0, 5] comes back as inf
  experts[3]: at [0, 5] comes back as inf
"
        );
    }
}
