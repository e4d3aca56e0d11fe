//! The printed table: microseconds, and percent of the copy.

use super::Size;
use super::cases::Case;

pub(crate) struct Row<'a> {
    pub(crate) case: &'a Case,
    /// Per size: microseconds of the kernel, of the copy, and bytes.
    pub(crate) times: Vec<Option<(f64, f64, f64)>>,
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
                Some((kernel, copy, _)) => {
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
        "\nbelow 90 % where 200 MB move, over 2 microseconds behind the copy elsewhere, quarter over 30 %:"
    );
    for row in rows {
        for (size, time) in sizes.iter().zip(&row.times) {
            let Some((kernel, copy, bytes)) = *time else { continue };
            let (large, slow) = (bytes >= 200e6, copy / kernel < 0.9);
            if (large && slow) || (!large && kernel > copy + 2.0) {
                let name = row.case.name;
                println!(
                    "  {name} {}: {kernel:.1} us, the copy {copy:.1} us ({:.0} MB)",
                    size.name,
                    bytes / 1e6
                );
            }
        }
        if let (Some((whole, ..)), Some((quarter, ..))) = (row.times[whole], row.times[quarter])
            && quarter > 0.3 * whole
        {
            println!("  {}: a quarter takes {:.1} % of the whole", row.case.name, 100.0 * quarter / whole);
        }
    }
}
