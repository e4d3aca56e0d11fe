//! Aligned tables and rounded numbers, for people.

use std::fmt;
use std::time::Duration;

use warpweft_plan::policy::ByteSize;

/// Which side of a column is straight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// A table of `N` columns under their names.
#[derive(Debug)]
pub(super) struct Table<const N: usize> {
    align: [Align; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// A table with a head and no rows.
    pub(super) fn new(columns: [(&str, Align); N]) -> Self {
        Self { align: columns.map(|(_, align)| align), rows: vec![columns.map(|(name, _)| name.to_owned())] }
    }

    /// Adds a row.
    pub(super) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }
}

impl<const N: usize> fmt::Display for Table<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; N] = std::array::from_fn(width);
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, width), align) in row.iter().zip(widths).zip(self.align) {
                match align {
                    Align::Left => line += &format!("{cell:<width$}  "),
                    Align::Right => line += &format!("{cell:>width$}  "),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A number of bytes, rounded for a table.
pub(super) fn bytes(count: u64) -> String {
    ByteSize::new(count).rounded()
}

/// A duration with three digits or so: `1.24 ms`.
pub(super) fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        ..1e-3 => format!("{:.0} µs", seconds * 1e6),
        ..1.0 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_in_characters() {
        let mut table = Table::new([("name", Align::Left), ("size", Align::Right), ("note", Align::Left)]);
        table.row(["ü".to_owned(), "12 345".to_owned(), "a".to_owned()]);
        table.row(["longer".to_owned(), "7".to_owned(), String::new()]);
        assert_eq!(table.to_string(), "name      size  note\nü       12 345  a\nlonger       7\n");
    }

    #[test]
    fn numbers_are_rounded_into_the_unit_that_suits_them() {
        let times = [3, 999_400, 1_240_000, 2_000_000_000].map(|ns| duration(Duration::from_nanos(ns)));
        assert_eq!(times, ["0 µs", "999 µs", "1.2 ms", "2.00 s"]);
    }
}
