//! `warpweft trace`: the summary and the picture of a written trace.
//!
//! Law: the picture shows a part, the figures in it are those of whole steps. So a step is picked before
//! anything is measured, a rank and a window only when it is drawn: what a rank waits for is known from the
//! others alone (TR-2).

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use warpweft_base::id::RankId;
use warpweft_base::time::{Interval, Nanoseconds};
use warpweft_session::trace::{Summary, Timeline, TimelinePicture, read_trace};

use super::outputs::refused;
use super::{MeasureError, Outputs};

/// The part of a trace to draw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TracePart {
    /// The step; the first of the trace when `None`.
    pub step: Option<u64>,
    /// The one rank to draw; all of them when `None`.
    pub rank: Option<RankId>,
    /// Where the picture begins, since the step began; there when `None`.
    pub from: Option<Nanoseconds>,
    /// Where it ends, since the step began; with the step when `None`.
    pub to: Option<Nanoseconds>,
}

/// Sums up a trace; draws a part of it if a picture is requested.
///
/// # Errors
/// [`MeasureError::File`], [`MeasureError::Exists`], [`MeasureError::Trace`], [`MeasureError::Empty`],
/// [`MeasureError::NoStep`], [`MeasureError::NoRank`], [`MeasureError::NoWindow`].
pub fn show_trace(trace: &Path, outputs: &Outputs, part: &TracePart) -> Result<String, MeasureError> {
    outputs.check(&[trace])?;
    let file = File::open(trace).map_err(refused("read", trace))?;
    let wrong = |source| MeasureError::Trace { path: trace.to_owned(), source };
    let read = read_trace(BufReader::new(file)).map_err(wrong)?;
    if read.timeline.slices.is_empty() {
        return Err(MeasureError::Empty { path: trace.to_owned(), notes: read.timeline.notes });
    }
    let mut summary = Summary::of(&read.timeline);
    summary.host = read.host;
    if outputs.picture.is_some() {
        let mut timeline = read.timeline;
        let picture = cut(&mut timeline, trace, part)?;
        outputs.draw(&timeline, picture)?;
    }
    Ok(summary.to_string())
}

/// Leaves of the timeline the step that is drawn, and says which part of that.
fn cut(timeline: &mut Timeline, trace: &Path, part: &TracePart) -> Result<TimelinePicture, MeasureError> {
    let path = || trace.to_owned();
    let mut steps: Vec<u64> = timeline.slices.iter().map(|slice| slice.step).collect();
    steps.sort_unstable();
    steps.dedup();
    let step = part.step.or_else(|| steps.first().copied()).unwrap_or(0);
    if !steps.contains(&step) {
        return Err(MeasureError::NoStep { path: path(), step, has: listed(&steps) });
    }
    timeline.slices.retain(|slice| slice.step == step);
    timeline.arrows.clear();
    let ranks: Vec<usize> = timeline.ranks().iter().map(|rank| rank.index()).collect();
    if let Some(rank) = part.rank.filter(|rank| !ranks.contains(&rank.index())) {
        return Err(MeasureError::NoRank { path: path(), rank, has: listed(&ranks) });
    }
    let whole = timeline.extent().unwrap_or_default();
    let at = |since: Nanoseconds| whole.begin.saturating_add(since);
    let window = Interval { begin: part.from.map_or(whole.begin, at), end: part.to.map_or(whole.end, at) };
    if window.clipped(whole).is_empty() {
        return Err(MeasureError::NoWindow { step, length: whole.length() });
    }
    let mut title = format!("Step {step} of {}", trace.file_name().unwrap_or_default().to_string_lossy());
    if let Some(rank) = part.rank {
        title.push_str(&format!(", {rank}"));
    }
    if window != whole {
        let [begin, end] = [window.begin, window.end].map(|at| at.saturating_sub(whole.begin).milliseconds());
        title.push_str(&format!(", from {} to {} ms", rounded(begin), rounded(end)));
    }
    Ok(TimelinePicture { title, window: Some(window), rank: part.rank, ..TimelinePicture::default() })
}

/// A number of milliseconds to the microsecond, without zeros at its end.
fn rounded(milliseconds: f64) -> f64 {
    (milliseconds * 1e3).round() / 1e3
}

fn listed(numbers: &[impl ToString]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweft_session::trace::write_trace;

    #[test]
    fn an_empty_trace_says_why_it_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let timeline =
            Timeline { notes: vec!["requested steps 500 to 503\u{1b}[2J".to_owned()], ..Default::default() };
        write_trace(&timeline, None, File::create(&path).unwrap()).unwrap();
        let said = show_trace(&path, &Outputs::default(), &TracePart::default()).unwrap_err().to_string();
        assert!(
            said.contains("holds no slice") && said.contains("note: requested steps 500 to 503\\u{1b}[2J"),
            "{said}"
        );
        let timeline = Timeline { notes: vec!["x".repeat(1 << 16); 1 << 8], ..Default::default() };
        write_trace(&timeline, None, File::create(&path).unwrap()).unwrap();
        let said = show_trace(&path, &Outputs::default(), &TracePart::default()).unwrap_err().to_string();
        assert!(said.matches("note: ").count() == 10 && said.len() < 1 << 14, "{}", said.len());
    }

    #[test]
    fn a_part_that_the_trace_lacks_is_refused_with_what_it_has() {
        let trace = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/train_depth_1.json"));
        let folder = tempfile::tempdir().unwrap();
        let outputs = Outputs { picture: Some(folder.path().join("part.svg")), ..Outputs::default() };
        let refused = |part: TracePart| show_trace(trace, &outputs, &part).unwrap_err().to_string();
        let rank = refused(TracePart { rank: Some(RankId::new(7)), ..TracePart::default() });
        assert!(rank.contains("has no rank 7; it has 0, 1"), "{rank}");
        let window = |from, to| TracePart {
            from: Some(Nanoseconds::new(from)),
            to: Some(Nanoseconds::new(to)),
            ..TracePart::default()
        };
        for (from, to) in [(2_000_000, 1_000_000), (u64::MAX / 2, u64::MAX)] {
            let said = refused(window(from, to));
            assert!(
                said.contains("nothing of step 4 lies between") && said.contains("which takes"),
                "{said}"
            );
        }
        show_trace(
            trace,
            &outputs,
            &TracePart { rank: Some(RankId::new(1)), ..window(1_000_000, 2_000_000) },
        )
        .unwrap();
        let drawn = std::fs::read_to_string(folder.path().join("part.svg")).unwrap();
        assert!(drawn.contains("rank 1, from 1 to 2 ms") && !drawn.contains(">rank 0<"), "{drawn}");
    }
}
