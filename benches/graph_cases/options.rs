//! What is asked for on the command line.

pub(crate) const HELP: &str = "\
cargo bench --bench graphs -- [options]
  --gpus N         the first N GPUs, 2 to 8 (all that are visible, at most 8)
  --rounds N       rounds of a step (32)
  --bytes A,B,..   bytes that a rank pulls from each peer in a round, such as 64KiB,4MiB (64KiB,1MiB,4MiB)
  --kernel-us N    microseconds that a kernel takes, about (20)
  --repeats N      replays that are measured, behind 5 warm ones (30)
  --quick          9 replays
  --help           these lines
";

/// Ranks at most.
const RANKS: usize = 8;
/// Replays before the measured ones.
pub(crate) const WARM: usize = 5;

pub(crate) struct Options {
    /// `None`: all that are visible.
    pub(crate) gpus: Option<usize>,
    pub(crate) rounds: usize,
    pub(crate) bytes: Vec<usize>,
    pub(crate) kernel_us: usize,
    pub(crate) repeats: usize,
}

pub(crate) enum Asked {
    Measure(Options),
    Help,
}

impl Options {
    /// # Errors
    /// An option that is unknown, or a value that is no such.
    pub(crate) fn of_the_command_line() -> Result<Asked, String> {
        let mut options = Self {
            gpus: None,
            rounds: 32,
            bytes: vec![64 << 10, 1 << 20, 4 << 20],
            kernel_us: 20,
            repeats: 30,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--help" | "-h" => return Ok(Asked::Help),
                "--gpus" => options.gpus = Some(number(&value()?, 2..=RANKS)?),
                "--rounds" => options.rounds = number(&value()?, 1..=1024)?,
                "--kernel-us" => options.kernel_us = number(&value()?, 1..=100_000)?,
                "--repeats" => options.repeats = number(&value()?, 1..=100_000)?,
                "--bytes" => options.bytes = value()?.split(',').map(bytes).collect::<Result<_, _>>()?,
                "--quick" => options.repeats = 9,
                // Of cargo itself; and names of benchmarks, which are for the others.
                "--bench" => {}
                other if other.starts_with('-') => return Err(format!("unknown option {other}")),
                _ => {}
            }
        }
        Ok(Asked::Measure(options))
    }

    /// How many of `visible` GPUs.
    pub(crate) fn ranks(&self, visible: usize) -> Result<usize, String> {
        match self.gpus {
            Some(gpus) if gpus > visible => Err(format!("{gpus} GPUs are asked for, {visible} visible")),
            _ if visible < 2 => Err(format!("two GPUs are needed, {visible} visible")),
            _ => Ok(self.gpus.unwrap_or(visible.min(RANKS))),
        }
    }

    /// Of one way, the warm ones among them.
    pub(crate) fn replays(&self) -> usize {
        WARM + self.repeats
    }
}

fn number(text: &str, range: std::ops::RangeInclusive<usize>) -> Result<usize, String> {
    let value = text.parse().ok().filter(|value| range.contains(value));
    value.ok_or_else(|| format!("{text} is no number from {} to {}", range.start(), range.end()))
}

/// A multiple of 16, up to 1 GiB.
fn bytes(text: &str) -> Result<usize, String> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("B", 1)];
    let unit = units.into_iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)));
    let (digits, unit) = unit.unwrap_or((text, 1));
    let bytes = number(digits, 1..=1 << 30)?.saturating_mul(unit);
    if bytes > 1 << 30 || !bytes.is_multiple_of(16) {
        return Err(format!("{text} is no multiple of 16 bytes up to 1024MiB"));
    }
    Ok(bytes)
}
