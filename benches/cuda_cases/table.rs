//! The printed table: microseconds, and percent of the copy.

use super::cases::Case;
use super::{Size, Times};

pub(crate) struct Row<'a> {
    pub(crate) case: &'a Case,
    /// Per size.
    pub(crate) times: Vec<Option<Times>>,
}

pub(crate) fn print(device: &str, sizes: &[Size], rows: &[Row<'_>]) {
    println!(
        "{device}: microseconds, percent of a copy of the same bytes, and [TransformerEngine's percent]"
    );
    print!("{:<34}", "");
    for size in sizes {
        print!("{:>24}", size.name);
    }
    println!();
    for row in rows {
        print!("{:<34}", row.case.name);
        for (at, time) in row.times.iter().enumerate() {
            let theirs = row.case.transformer_engine.get(at).copied().filter(|percent| *percent > 0);
            let theirs = theirs.map_or(String::new(), |percent| format!("[{percent}]"));
            match time {
                None => print!("{:>24}", "no memory"),
                Some(Times { kernel, copy, .. }) => {
                    print!("{:>11.1} {:>5.1}%{:>5} ", kernel, 100.0 * copy / kernel, theirs);
                }
            }
        }
        println!();
    }
    summary(sizes, rows);
}

/// What the figures are held against.
fn summary(sizes: &[Size], rows: &[Row<'_>]) {
    let (Some(whole), Some(quarter)) = (
        sizes.iter().position(|size| size.name == "64 weights"),
        sizes.iter().position(|size| size.name == "quarter"),
    ) else {
        return;
    };
    println!(
        "\nbelow 90 % of the copy where 200 MB move, over 2 microseconds slower elsewhere, quarter over 30 %;\n\
         plain: a kernel that reads and writes the same bytes and computes nothing:"
    );
    for row in rows {
        let name = row.case.name;
        for (size, time) in sizes.iter().zip(&row.times) {
            let Some(Times { kernel, copy, plain, bytes }) = time else { continue };
            let large = *bytes >= 200_000_000;
            if (large && copy / kernel < 0.9) || (!large && *kernel > copy + 2.0) {
                let megabytes = *bytes as f64 / 1e6;
                println!(
                    "  {name} {}: {kernel:.1} us, the copy {copy:.1}, plain {plain:.1} us ({megabytes:.0} MB)",
                    size.name,
                );
            }
        }
        let of = |at: usize| row.times[at].as_ref();
        if let (Some(whole), Some(quarter)) = (of(whole), of(quarter))
            && quarter.kernel > 0.3 * whole.kernel
        {
            println!(
                "  {name}: a quarter takes {:.1} % of the whole, {:.1} us; plain {:.1} %, {:.1} us",
                100.0 * quarter.kernel / whole.kernel,
                quarter.kernel,
                100.0 * quarter.plain / whole.plain,
                quarter.plain
            );
        }
    }
}
