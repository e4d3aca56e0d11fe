//! A report as people read it: a row per tensor, what was not converted and why, totals.

use std::fmt;

use super::checkpoint::shown;
use super::report::{Converted, Lost, Report};
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
                tensor.shape.to_string(),
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
        let copied = bytes(self.copied_bytes);
        table.row([
            format!("{} copied", self.copied),
            String::new(),
            copied.clone(),
            copied,
            ratio(self.copied_bytes, self.copied_bytes),
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
        if !self.refused.is_empty() {
            writeln!(f, "\nCopied as they are, because of their shape:")?;
        }
        for refused in &self.refused {
            writeln!(f, "  {}: {}", shown(&refused.name), refused.reason)?;
        }
        if !self.passed_over.is_empty() {
            writeln!(
                f,
                "\nSelected by --only and copied as they are, for only matrices of F32, BF16 or F16 are quantized:"
            )?;
        }
        for passed in &self.passed_over {
            writeln!(f, "  {}: {}", shown(&passed.name), passed.what)?;
        }
        if !self.lost.is_empty() {
            writeln!(
                f,
                "\nLOST: values too large for the format do not come back; leave these tensors out with --only, or \
                 choose another format:"
            )?;
        }
        for Lost { name, row, column, value, back } in &self.lost {
            writeln!(f, "  {}: {value:e} at [{row}, {column}] comes back as {back}", shown(name))?;
        }
        Ok(())
    }
}

/// How many times smaller.
fn ratio(before: u64, after: u64) -> String {
    if after == 0 { "–".to_owned() } else { format!("{:.2}×", before as f64 / after as f64) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::report::{PassedOver, Refused};
    use super::*;
    use crate::format::{Format, Shape};

    #[test]
    fn a_report_lists_every_tensor_then_totals_then_what_was_refused() {
        let mut report = Report::new(4096, 2048);
        report.tensors.push(Converted {
            name: "up\n".to_owned(),
            shape: Shape::new(16, 32),
            bytes_before: 2048,
            bytes_after: 1024,
            relative_error: Some(0.0625),
            time: Duration::from_millis(2),
        });
        report.count_copy(512);
        let shape = Shape::new(16, 40);
        let reason = Format::NVFP4_2D.check_shape(shape).unwrap_err();
        report.refused.push(Refused { name: "odd".to_owned(), reason });
        report
            .passed_over
            .push(PassedOver { name: "norm".to_owned(), what: "F32 of shape [4096]".to_owned() });
        let (name, back) = ("up".to_owned(), f32::INFINITY);
        report.lost.push(Lost { name, row: 0, column: 5, value: 3e38, back });
        report.elapsed = Duration::from_millis(5);
        assert_eq!(
            report.to_string(),
            "\
tensor       shape    before     after  ratio  rel. error    time
up\\n         16×32  2.00 KiB  1.00 KiB  2.00×     6.25e-2  2.0 ms
1 converted         2.00 KiB  1.00 KiB  2.00×              2.0 ms
1 copied               512 B     512 B  1.00×
file                4.00 KiB  2.00 KiB  2.00×              5.0 ms

Copied as they are, because of their shape:
  odd: nvfp4_2d needs columns in multiples of 16, but the shape is 16×40; pad the columns to 48, or choose another format

Selected by --only and copied as they are, for only matrices of F32, BF16 or F16 are quantized:
  norm: F32 of shape [4096]

LOST: values too large for the format do not come back; leave these tensors out with --only, or choose another format:
  up: 3e38 at [0, 5] comes back as inf
"
        );
    }
}
