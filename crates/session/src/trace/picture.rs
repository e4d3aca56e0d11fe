//! A timeline as an SVG picture: ranks below each other, lanes as rows, slices coloured by
//! category.
//!
//! Behind the lanes of a rank, the parts of a step in which communication is exposed are shaded,
//! and those in which the rank waits for others in a paler tone; both follow TR-1 and TR-2, so the
//! shaded width is the reported figure. That holds of a picture of one rank too: when the others arrived is
//! computed over the whole timeline, and only then is it cut. Figures are those of whole steps, also where a
//! window shows a part. Of slices too thin to see, the first stands for all that fall on its mark, so the
//! picture of a long run stays small. Arrows are left to the trace viewers.

use std::collections::{BTreeMap, HashMap};

use super::arrival::{Activity, StepExposure, steps_of};
use super::axis::Axis;
use super::colours::coloured;
use super::error::TraceError;
use super::exposure::Exposure;
use super::svg::{Anchor, EXPOSED, FRAME, Font, GRID, MUTED, Rect, SKEW, Svg, TEXT};
use super::timeline::{LaneInfo, Slice, Timeline};
use warpweft_base::id::{LaneId, RankId};
use warpweft_base::time::{Interval, Nanoseconds, coalesce, subtract};

const MARGIN: f64 = 24.0;
const ROW: f64 = 22.0;
const SLICE: f64 = 18.0;
const RANK_HEADER: f64 = 24.0;
const RANK_GAP: f64 = 10.0;
const LEGEND_ROW: f64 = 20.0;
/// Ranks of a picture: more make it so high that no viewer shows it.
const MOST_RANKS: usize = 1024;
/// The least width of a mark in pixels; slices below it share marks.
const THIN: f64 = 0.6;

const TITLE_FONT: Font = Font::new(17.0, TEXT, Anchor::Start).bold();
const RANK_FONT: Font = Font::new(13.0, TEXT, Anchor::Start).bold();
const FIGURE_FONT: Font = Font::new(11.0, MUTED, Anchor::End);
const LANE_FONT: Font = Font::new(11.0, MUTED, Anchor::End);
const SLICE_FONT: Font = Font::new(10.0, TEXT, Anchor::Middle);
const STEP_FONT: Font = Font::new(10.0, MUTED, Anchor::Start);
const TICK_FONT: Font = Font::new(11.0, MUTED, Anchor::Middle);
const LEGEND_FONT: Font = Font::new(11.0, TEXT, Anchor::Start);

/// A picture of a timeline: options of drawing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelinePicture {
    /// What stands above it.
    pub title: String,
    /// Its width in pixels, at least 400.
    pub width: u32,
    /// The part to show, on the clock of the timeline; all of it when `None`.
    pub window: Option<Interval>,
    /// The one rank to show; all of them when `None`. The timeline should hold the others too: when they
    /// arrived tells waiting from communication (TR-2).
    pub rank: Option<RankId>,
}

impl Default for TimelinePicture {
    /// 1200 pixels wide, everything shown.
    fn default() -> Self {
        Self { title: "Timeline".to_owned(), width: 1200, window: None, rank: None }
    }
}

impl TimelinePicture {
    /// Draws the timeline and returns the text of a self-contained SVG file.
    ///
    /// # Errors
    /// What [`Timeline::validate`] says; [`TraceError::Ranks`] for more ranks than one picture shows.
    pub fn render(&self, timeline: &Timeline) -> Result<String, TraceError> {
        timeline.validate()?;
        let drawing = Drawing::new(self, timeline);
        match drawing.ranks.len() {
            ranks if ranks > MOST_RANKS => Err(TraceError::Ranks { ranks, most: MOST_RANKS }),
            _ => Ok(drawing.draw()),
        }
    }
}

/// The layout of one picture, and what is needed to fill it.
struct Drawing<'a> {
    picture: &'a TimelinePicture,
    timeline: &'a Timeline,
    colours: BTreeMap<&'a str, String>,
    /// The ranks that are shown.
    ranks: Vec<RankId>,
    lanes: BTreeMap<RankId, Vec<&'a LaneInfo>>,
    slices: HashMap<(RankId, LaneId), Vec<&'a Slice>>,
    /// The steps that the window shows any of, of these ranks.
    steps: Vec<StepExposure>,
    window: Interval,
    /// What the axis calls zero: the begin of the step, if there is only one.
    zero: Nanoseconds,
    time: Axis,
    left: f64,
    right: f64,
    legend: Vec<Vec<(f64, String, String)>>,
}

impl<'a> Drawing<'a> {
    fn new(picture: &'a TimelinePicture, timeline: &'a Timeline) -> Self {
        let is_shown = |rank: RankId| picture.rank.is_none_or(|only| only == rank);
        let ranks = timeline.ranks().into_iter().filter(|rank| is_shown(*rank)).collect();
        let names = timeline.lanes.iter().filter(|lane| is_shown(lane.rank));
        let names = names.map(|lane| LANE_FONT.width(&lane.name));
        let left = MARGIN + names.fold(150.0, f64::max).min(240.0) + 10.0;
        let right = f64::from(picture.width.max(400)) - MARGIN;
        let window = picture.window.or(timeline.extent()).unwrap_or_default();
        let is_drawn = |slice: &&Slice| is_shown(slice.rank) && !slice.interval().clipped(window).is_empty();
        let drawn = timeline.slices.iter().filter(is_drawn);
        let colours = coloured(drawn.map(|slice| slice.category.as_str()).collect());
        let mut steps = timeline.exposures();
        steps.retain(|step| is_shown(step.rank) && !step.window.clipped(window).is_empty());
        let zero = only_step(timeline).unwrap_or_default();
        let [low, high] = [window.begin, window.end].map(|at| since(at, zero));
        let mut drawing = Self {
            picture,
            timeline,
            colours,
            ranks,
            lanes: timeline.lanes_by_rank(),
            slices: timeline.slices_by_lane(),
            steps,
            window,
            zero,
            time: Axis::new(low, high, left, right),
            left,
            right,
            legend: Vec::new(),
        };
        drawing.legend = drawing.lay_out_legend();
        drawing
    }

    fn draw(&self) -> String {
        let title = &self.picture.title;
        let top = MARGIN + 26.0 + self.legend.len() as f64 * LEGEND_ROW;
        let heights = self.ranks.iter().map(|&rank| self.height(rank) + RANK_GAP);
        let bottom = top + heights.sum::<f64>();
        let mut svg = Svg::new(self.right + MARGIN, bottom + 46.0, title);
        svg.text((MARGIN, MARGIN + 8.0), TITLE_FONT, title);
        self.draw_legend(&mut svg);
        self.draw_grid(&mut svg, top, bottom);
        let activities = self.timeline.activities();
        let mut y = top;
        let mut steps_left = self.steps.as_slice();
        for &rank in &self.ranks {
            let steps = steps_of(rank, &mut steps_left);
            for (_, activity) in activities.range((rank, 0)..=(rank, u64::MAX)) {
                self.draw_shades(&mut svg, activity, y + RANK_HEADER, self.height(rank) - RANK_HEADER);
            }
            self.draw_steps(&mut svg, steps, y, self.height(rank));
            self.draw_header(&mut svg, rank, steps, y);
            for (row, lane) in self.lanes_of(rank).iter().enumerate() {
                self.draw_lane(&mut svg, lane, y + RANK_HEADER + row as f64 * ROW);
            }
            y += self.height(rank) + RANK_GAP;
        }
        svg.finish()
    }

    fn lanes_of(&self, rank: RankId) -> &[&LaneInfo] {
        self.lanes.get(&rank).map_or(&[], Vec::as_slice)
    }

    fn height(&self, rank: RankId) -> f64 {
        RANK_HEADER + self.lanes_of(rank).len() as f64 * ROW
    }

    /// Where the part of an interval inside the window lies, left edge and width; `None` outside.
    fn span(&self, interval: Interval) -> Option<(f64, f64)> {
        let shown = interval.clipped(self.window);
        (!shown.is_empty()).then(|| {
            let [begin, end] = [shown.begin, shown.end].map(|at| self.time.at(since(at, self.zero)));
            (begin, end - begin)
        })
    }

    fn lay_out_legend(&self) -> Vec<Vec<(f64, String, String)>> {
        let mut entries: Vec<(String, String)> = Vec::new();
        entries.extend(self.colours.iter().map(|(&name, colour)| (colour.clone(), name.to_owned())));
        let total: Exposure = self.steps.iter().map(|step| step.exposure).sum();
        let is_cut = self.steps.iter().any(|step| step.window.clipped(self.window) != step.window);
        let whole = if is_cut { "the whole step's" } else { "step" };
        let exposed = format!("exposed communication ({:.1} % of {whole} time)", 100.0 * total.fraction());
        entries.push((EXPOSED.to_owned(), exposed));
        if total.skew.count() > 0 {
            entries.push((SKEW.to_owned(), "waiting for the last rank".to_owned()));
        }
        let mut rows = vec![Vec::new()];
        let mut x = MARGIN;
        for (colour, name) in entries {
            let width = 18.0 + LEGEND_FONT.width(&name) + 14.0;
            if x + width > self.right && x > MARGIN {
                rows.push(Vec::new());
                x = MARGIN;
            }
            if let Some(row) = rows.last_mut() {
                row.push((x, colour, name));
            }
            x += width;
        }
        rows
    }

    fn draw_legend(&self, svg: &mut Svg) {
        let mut y = MARGIN + 20.0;
        for row in &self.legend {
            for (x, colour, name) in row {
                svg.rect(Rect::new(*x, y, 12.0, 12.0), colour, None);
                svg.text((x + 18.0, y + 10.0), LEGEND_FONT, name);
            }
            y += LEGEND_ROW;
        }
    }

    fn draw_grid(&self, svg: &mut Svg, top: f64, bottom: f64) {
        let ticks = self.time.ticks(90.0);
        for &value in &ticks.values {
            let x = self.time.at(value);
            svg.line((x, top), (x, bottom), GRID, "");
            svg.text((x, bottom + 16.0), TICK_FONT, &ticks.label(value));
        }
        svg.line((self.left, bottom), (self.right, bottom), FRAME, "");
        let middle = (self.left + self.right) / 2.0;
        let from = if self.zero == Nanoseconds::ZERO { "the origin" } else { "the step began" };
        svg.text((middle, bottom + 34.0), TICK_FONT, &format!("time since {from}, ms"));
    }

    fn draw_header(&self, svg: &mut Svg, rank: RankId, steps: &[StepExposure], y: f64) {
        svg.text((MARGIN, y + 16.0), RANK_FONT, &rank.to_string());
        let total: Exposure = steps.iter().map(|step| step.exposure).sum();
        let percent = 100.0 * total.fraction();
        svg.text((self.left - 10.0, y + 16.0), FIGURE_FONT, &format!("{percent:.1} % exposed"));
        svg.line((MARGIN, y), (self.right, y), FRAME, "");
    }

    fn draw_steps(&self, svg: &mut Svg, steps: &[StepExposure], y: f64, height: f64) {
        for step in steps {
            let Some((x, width)) = self.span(step.window) else {
                continue;
            };
            svg.line((x, y), (x, y + height), FRAME, "3 3");
            let (name, length) = (self.timeline.step_name(step.step), step.window.length());
            let is_whole = step.window.clipped(self.window) == step.window;
            let figures =
                if is_whole { format!("{name}, {length}") } else { format!("part of {name} ({length})") };
            let label = STEP_FONT.fit(&figures, width - 8.0);
            svg.text((x + 4.0, y + 16.0), STEP_FONT, &label);
        }
    }

    fn draw_shades(&self, svg: &mut Svg, activity: &Activity, y: f64, height: f64) {
        let coalesced = |list: &[Interval]| {
            let mut list = list.to_vec();
            coalesce(&mut list);
            list
        };
        let [compute, communication, waiting] =
            [&activity.compute, &activity.communication, &activity.waiting].map(|l| coalesced(l));
        let busy = coalesced(&[compute.as_slice(), &communication].concat());
        let shades = [(SKEW, subtract(&waiting, &busy)), (EXPOSED, subtract(&communication, &compute))];
        for (colour, parts) in shades {
            let places = parts.into_iter().filter_map(|part| self.span(part));
            for (x, width) in sharing_marks(places) {
                svg.rect(Rect::new(x, y, width, height), colour, None);
            }
        }
    }

    fn draw_lane(&self, svg: &mut Svg, lane: &LaneInfo, y: f64) {
        let name = LANE_FONT.fit(&lane.name, self.left - MARGIN - 10.0);
        svg.text((self.left - 10.0, y + 14.0), LANE_FONT, &name);
        let base = y + ROW - 1.0;
        svg.line((self.left, base), (self.right, base), GRID, "");
        let mut slices = self.slices.get(&(lane.rank, lane.lane)).cloned().unwrap_or_default();
        slices.sort_by_key(|slice| (slice.begin, slice.end));
        let mut drawn_until = f64::MIN;
        for slice in slices {
            let Some((x, width)) = self.span(slice.interval()) else {
                continue;
            };
            let category = slice.category.as_str();
            let colour = self.colours.get(category).map_or(FRAME, String::as_str);
            if width >= THIN {
                self.draw_slice(svg, slice, colour, (x, width), y);
                drawn_until = x + width;
            } else if x + width > drawn_until {
                let mark = Rect::new(x.max(drawn_until), y, THIN, SLICE);
                svg.rect(mark, colour, None);
                drawn_until = mark.x + THIN;
            }
        }
    }

    fn draw_slice(&self, svg: &mut Svg, slice: &Slice, colour: &str, at: (f64, f64), y: f64) {
        let ((x, width), length) = (at, slice.interval().length());
        let Slice { name, category, step, .. } = slice;
        let mut tooltip = format!("{name}\n{category}, {length}, step {step}");
        for (name, value) in &slice.arguments {
            tooltip.push_str(&format!("\n{name}: {value}"));
        }
        let width = width - if width > 3.0 { 0.5 } else { 0.0 };
        svg.rect(Rect::new(x, y, width, SLICE), colour, Some(&tooltip));
        let label = label(name, category, width - 4.0);
        if !label.is_empty() {
            svg.text((x + width / 2.0, y + 13.0), SLICE_FONT, &label);
        }
    }
}

/// The begin of the step, if all slices are of one.
fn only_step(timeline: &Timeline) -> Option<Nanoseconds> {
    let first = timeline.slices.first()?.step;
    let is_only = timeline.slices.iter().all(|slice| slice.step == first);
    timeline.extent().filter(|_| is_only).map(|extent| extent.begin)
}

/// Milliseconds from zero, below it as well.
fn since(at: Nanoseconds, zero: Nanoseconds) -> f64 {
    at.saturating_sub(zero).milliseconds() - zero.saturating_sub(at).milliseconds()
}

/// The most of a slice's name that fits. What its colour says goes first (`dequantize`), then what stands
/// before the first number of a dotted name (`blocks.`), then `forward` and `backward` are abbreviated, and
/// then its middle goes: so what is left of two names differs where they do.
fn label(name: &str, category: &str, width: f64) -> String {
    let subject = name.strip_prefix(category).map_or(name, str::trim_start);
    let after_dots = subject.match_indices('.').map(|(dot, _)| &subject[dot + 1..]);
    let numbered = after_dots.into_iter().find(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let numbered = numbered.unwrap_or(subject);
    let short = numbered.replace("forward", "fwd").replace("backward", "bwd");
    let whole = [name, subject, numbered].into_iter().find(|text| SLICE_FONT.width(text) <= width);
    whole.map_or_else(|| SLICE_FONT.fit_middle(&short, width), str::to_owned)
}

/// Puts parts that begin within one mark into one, as wide as they are together.
fn sharing_marks(places: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut marks: Vec<(f64, f64)> = Vec::new();
    for (x, width) in places {
        match marks.last_mut() {
            Some((begin, joined)) if x - *begin < THIN => *joined += width,
            _ => marks.push((x, width)),
        }
    }
    marks
}

#[cfg(test)]
mod tests;
