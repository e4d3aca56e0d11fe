//! A chart as SVG: curves over steps such as the loss, or points that trade one quantity for another.
//!
//! Every finite point is drawn; a value that is not finite breaks its line, so a skipped step shows
//! as a gap. Where points are denser than pixels, each pixel column keeps its first, lowest,
//! highest and last point, so spikes survive.

use super::axis::Axis;
use super::svg::{Anchor, FRAME, Font, GRID, INK, MUTED, Rect, Svg, TEXT};

const MARGIN: f64 = 24.0;
const LEGEND_ROW: f64 = 18.0;
const TITLE_FONT: Font = Font::new(17.0, TEXT, Anchor::Start).bold();
const LABEL_FONT: Font = Font::new(12.0, MUTED, Anchor::Middle);
const X_FONT: Font = Font::new(11.0, MUTED, Anchor::Middle);
const Y_FONT: Font = Font::new(11.0, MUTED, Anchor::End);
const LEGEND_FONT: Font = Font::new(12.0, TEXT, Anchor::Start);
const MARK_FONT: Font = Font::new(12.0, TEXT, Anchor::Start).bold();
const REFERENCE_FONT: Font = Font::new(11.0, MUTED, Anchor::End);
/// Dashes of the first, second, third … round through the colours.
const DASHES: [&str; 4] = ["", "6 3", "2 3", "8 3 2 3"];
const MOST_MARKED: usize = 24;

/// One line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// Its points, in drawing order.
    pub points: Vec<(f64, f64)>,
}

/// A level to compare with, drawn across the chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// What stands on it.
    pub name: String,
    /// Its height.
    pub value: f64,
}

/// One point of a chart that stands out.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// What stands beside it.
    pub name: String,
    /// Where it is.
    pub point: (f64, f64),
}

/// A chart of any number of lines over one pair of axes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LineChart {
    /// What stands above it.
    pub title: String,
    /// The quantity along the horizontal axis, with its unit.
    pub x_label: String,
    /// The quantity along the vertical axis, with its unit.
    pub y_label: String,
    /// The lines.
    pub series: Vec<Series>,
    /// Levels to compare with.
    pub references: Vec<Reference>,
    /// Are points left unjoined? They then have no order, and the legend names no last one.
    pub scattered: bool,
    /// A point with a ring around it and its name beside it.
    pub mark: Option<Mark>,
}

impl LineChart {
    /// Draws the chart and returns the text of a self-contained SVG file of 860 by 480 pixels,
    /// taller by one row for each row of the legend past the first.
    pub fn render(&self) -> String {
        let (width, plot_height) = (860.0, 380.0);
        let legend = self.lay_out_legend(width - MARGIN);
        let top = MARGIN + 22.0 + legend.len() as f64 * LEGEND_ROW;
        let left = MARGIN + 58.0;
        let plot = Rect::new(left, top, width - MARGIN - left, plot_height);
        let mut svg = Svg::new(width, top + plot_height + 56.0, &self.title);
        svg.text((MARGIN, MARGIN + 8.0), TITLE_FONT, &self.title);
        for (row, entries) in legend.iter().enumerate() {
            let y = MARGIN + 30.0 + row as f64 * LEGEND_ROW;
            for &(x, number) in entries {
                let (colour, dashes) = style(number);
                match self.scattered {
                    true => svg.disc((x + 12.0, y - 4.0), colour),
                    false => svg.polyline(&[(x, y - 4.0), (x + 20.0, y - 4.0)], colour, dashes),
                }
                svg.text((x + 26.0, y), LEGEND_FONT, &self.legend_text(number));
            }
        }
        let (x_axis, y_axis) = self.axes(plot);
        self.draw_axes(&mut svg, plot, &x_axis, &y_axis);
        for reference in self.references.iter().filter(|r| r.value.is_finite()) {
            let y = y_axis.at(reference.value);
            svg.line((plot.x, y), (plot.x + plot.width, y), MUTED, "5 4");
            let mark = self.mark.as_ref().filter(|mark| finite(&mark.point));
            let mark =
                mark.map(|mark| mark_box(mark, plot, (x_axis.at(mark.point.0), y_axis.at(mark.point.1))));
            let (at, font) = reference_place(&reference.name, y, plot, mark);
            svg.text(at, font, &reference.name);
        }
        for (number, series) in self.series.iter().enumerate() {
            draw_series(&mut svg, series, number, self.scattered, &x_axis, &y_axis);
        }
        if let Some(mark) = self.mark.as_ref().filter(|mark| finite(&mark.point)) {
            draw_mark(&mut svg, mark, plot, (x_axis.at(mark.point.0), y_axis.at(mark.point.1)));
        }
        svg.finish()
    }

    /// Axes that show every finite point and reference, with some air above and below.
    fn axes(&self, plot: Rect) -> (Axis, Axis) {
        let marked = self.mark.iter().map(|mark| &mark.point);
        let points =
            || self.series.iter().flat_map(|s| &s.points).chain(marked.clone()).copied().filter(finite);
        let levels = self.references.iter().map(|r| r.value).filter(|v| v.is_finite());
        let (left, right) = ends(points().map(|(x, _)| x));
        let (low, high) = ends(points().map(|(_, y)| y).chain(levels));
        // Each end for itself, because the difference of two huge values is none.
        let air = 0.05 * high - 0.05 * low;
        // A curve of positive values should not seem to reach below zero.
        let low = if low >= 0.0 { (low - air).max(0.0) } else { low - air };
        // Points at the edges of a plot would be half outside of it.
        let margin = if self.scattered { 0.03 * right - 0.03 * left } else { 0.0 };
        let x_axis = Axis::new(left - margin, right + margin, plot.x, plot.x + plot.width);
        (x_axis, Axis::new(low, high + air, plot.y + plot.height, plot.y))
    }

    fn draw_axes(&self, svg: &mut Svg, plot: Rect, x_axis: &Axis, y_axis: &Axis) {
        let (right, bottom) = (plot.x + plot.width, plot.y + plot.height);
        let ticks = x_axis.ticks(80.0);
        for &value in &ticks.values {
            let x = x_axis.at(value);
            svg.line((x, plot.y), (x, bottom), GRID, "");
            svg.text((x, bottom + 17.0), X_FONT, &ticks.label(value));
        }
        let ticks = y_axis.ticks(44.0);
        for &value in &ticks.values {
            let y = y_axis.at(value);
            svg.line((plot.x, y), (right, y), GRID, "");
            svg.text((plot.x - 8.0, y + 4.0), Y_FONT, &ticks.label(value));
        }
        svg.line((plot.x, bottom), (right, bottom), FRAME, "");
        svg.line((plot.x, plot.y), (plot.x, bottom), FRAME, "");
        svg.text((plot.x + plot.width / 2.0, bottom + 40.0), LABEL_FONT, &self.x_label);
        let middle = plot.y + plot.height / 2.0;
        svg.turned_text((MARGIN, middle), LABEL_FONT, &self.y_label, true);
        if self.series.iter().all(|series| !series.points.iter().any(finite)) {
            svg.text((plot.x + plot.width / 2.0, middle), LABEL_FONT, "no data");
        }
    }

    /// Rows of the legend: where each entry begins, and the number of its series.
    fn lay_out_legend(&self, right: f64) -> Vec<Vec<(f64, usize)>> {
        let mut rows = vec![Vec::new()];
        let mut x = MARGIN;
        for number in 0..self.series.len() {
            let width = 26.0 + LEGEND_FONT.width(&self.legend_text(number)) + 18.0;
            if x + width > right && x > MARGIN {
                rows.push(Vec::new());
                x = MARGIN;
            }
            if let Some(row) = rows.last_mut() {
                row.push((x, number));
            }
            x += width;
        }
        rows
    }

    /// The name of a series, and where it ended.
    fn legend_text(&self, number: usize) -> String {
        let Some(series) = self.series.get(number) else {
            return String::new();
        };
        match series.points.iter().rev().find(|point| finite(point)) {
            Some((_, last)) if !self.scattered => format!("{} (last {})", series.name, four_digits(*last)),
            _ => series.name.clone(),
        }
    }
}

/// A ring, and the name on the side of it that has more room.
fn draw_mark(svg: &mut Svg, mark: &Mark, plot: Rect, (x, y): (f64, f64)) {
    svg.ring((x, y), TEXT);
    let (x, font) = match is_left(x, plot) {
        true => (x + 12.0, MARK_FONT),
        false => (x - 12.0, Font { anchor: Anchor::End, ..MARK_FONT }),
    };
    svg.text((x, y - 8.0), font, &mark.name);
}

fn is_left(x: f64, plot: Rect) -> bool {
    x < plot.x + plot.width / 2.0
}

/// What a mark's ring and its name cover.
fn mark_box(mark: &Mark, plot: Rect, (x, y): (f64, f64)) -> Rect {
    let name = 12.0 + MARK_FONT.width(&mark.name);
    let left = if is_left(x, plot) { x - 7.0 } else { x - name };
    Rect::new(left, y - 20.0, name + 7.0, 28.0)
}

/// Where a reference at height `y` has its name: above its line or below it, at the right or at the left,
/// wherever the mark is not.
fn reference_place(name: &str, y: f64, plot: Rect, mark: Option<Rect>) -> ((f64, f64), Font) {
    let width = REFERENCE_FONT.width(name);
    let (right, left) = (plot.x + plot.width - 6.0, plot.x + 6.0);
    let begin = Font { anchor: Anchor::Start, ..REFERENCE_FONT };
    let places = [
        (right, y - 5.0, REFERENCE_FONT),
        (left, y - 5.0, begin),
        (right, y + 14.0, REFERENCE_FONT),
        (left, y + 14.0, begin),
    ];
    let is_free = |&(x, base, font): &(f64, f64, Font)| {
        let from = if matches!(font.anchor, Anchor::End) { x - width } else { x };
        let apart = |mark: Rect| {
            from + width < mark.x
                || from > mark.x + mark.width
                || base < mark.y
                || base - 10.0 > mark.y + mark.height
        };
        mark.is_none_or(apart) && base < plot.y + plot.height
    };
    let (x, base, font) = places.into_iter().find(is_free).unwrap_or(places[0]);
    ((x, base), font)
}

fn draw_series(svg: &mut Svg, series: &Series, number: usize, scattered: bool, x_axis: &Axis, y_axis: &Axis) {
    let (colour, dashes) = style(number);
    let marked = scattered || series.points.len() <= MOST_MARKED;
    for run in series.points.split(|point| !finite(point)) {
        let pixels: Vec<_> = run.iter().map(|&(x, y)| (x_axis.at(x), y_axis.at(y))).collect();
        if !scattered {
            svg.polyline(&thinned(&pixels), colour, dashes);
        }
        if marked || pixels.len() == 1 {
            for &pixel in &pixels {
                svg.disc(pixel, colour);
            }
        }
    }
}

fn style(number: usize) -> (&'static str, &'static str) {
    (INK[number % INK.len()], DASHES[number / INK.len() % DASHES.len()])
}

fn finite(point: &(f64, f64)) -> bool {
    point.0.is_finite() && point.1.is_finite()
}

/// A value with about four digits that count.
fn four_digits(value: f64) -> String {
    let whole = value.abs().max(1e-3).log10().floor();
    if value.fract() == 0.0 || whole >= 6.0 {
        return format!("{value}");
    }
    format!("{value:.*}", (3.0 - whole).max(0.0) as usize)
}

/// The least and the largest value; 0 and 1 when there are none.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let both = values.map(|value| (value, value));
    both.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1))).unwrap_or((0.0, 1.0))
}

/// At most four points for each pixel column: first, lowest, highest, last, in their order.
fn thinned(pixels: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut kept = Vec::new();
    for column in pixels.chunk_by(|a, b| a.0.floor() == b.0.floor()) {
        if column.len() <= 4 {
            kept.extend_from_slice(column);
            continue;
        }
        let places = || column.iter().enumerate();
        let lowest = places().min_by(|a, b| a.1.1.total_cmp(&b.1.1)).map_or(0, |(place, _)| place);
        let highest = places().max_by(|a, b| a.1.1.total_cmp(&b.1.1)).map_or(0, |(place, _)| place);
        let mut chosen = [0, lowest, highest, column.len() - 1];
        chosen.sort_unstable();
        kept.extend(chosen.map(|place| column[place]));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chart(points: Vec<(f64, f64)>) -> LineChart {
        LineChart {
            title: "Loss <of> & \"it\"".to_owned(),
            series: vec![Series { name: "nvfp4".to_owned(), points }],
            ..LineChart::default()
        }
    }

    /// The lines of a chart, legend left out.
    fn lines(svg: &str) -> usize {
        svg.matches("<polyline").count() - 1
    }

    #[test]
    fn a_value_that_is_not_finite_breaks_the_line() {
        let whole = vec![(0.0, 5.5), (1.0, 4.0), (2.0, 3.5), (3.0, 3.25)];
        let mut broken = whole.clone();
        broken[1].1 = f64::NAN;
        assert_eq!(lines(&chart(whole).render()), 1);
        assert_eq!(lines(&chart(broken).render()), 2);
    }

    #[test]
    fn the_legend_says_where_a_series_ended_and_references_are_named() {
        let mut chart = chart(vec![(0.0, 5.5), (1.0, 1.234_56), (2.0, f64::INFINITY)]);
        chart.references.push(Reference { name: "ln 256".to_owned(), value: 256f64.ln() });
        let svg = chart.render();
        assert!(svg.contains("nvfp4 (last 1.235)") && svg.contains(">ln 256<"), "{svg}");
        assert!(svg.contains("Loss &lt;of&gt; &amp; &quot;it&quot;"), "{svg}");
    }

    #[test]
    fn scattered_points_are_not_joined_and_one_of_them_may_be_named() {
        let mut chart = chart(vec![(3.0, 5.0), (1.0, 7.0)]);
        let joined = chart.render();
        chart.scattered = true;
        chart.mark = Some(Mark { name: "best".to_owned(), point: (1.0, 4.0) });
        let svg = chart.render();
        assert!(joined.contains("(last 7)") && !svg.contains("(last"), "{svg}");
        assert!(!svg.contains("<polyline") && svg.contains(">best<"), "{svg}");
    }

    #[test]
    fn the_name_of_a_reference_keeps_away_from_a_mark() {
        let mut chart = LineChart { scattered: true, ..chart(vec![(1.0, 5.0), (9.0, 7.0)]) };
        chart.references.push(Reference { name: "the bound".to_owned(), value: 5.0 });
        let place = |chart: &LineChart| {
            let svg = chart.render();
            let line = svg.lines().find(|line| line.contains(">the bound<")).unwrap().to_owned();
            line.split("x=\"").nth(1).unwrap().split('"').next().unwrap().parse::<f64>().unwrap()
        };
        chart.mark = Some(Mark { name: "chosen".to_owned(), point: (1.0, 5.0) });
        assert!(place(&chart) > 800.0, "at the right, away from a mark at the left");
        chart.mark = Some(Mark { name: "chosen".to_owned(), point: (9.0, 5.05) });
        assert!(place(&chart) < 100.0, "at the left, away from a mark at the right");
    }

    #[test]
    fn a_chart_without_points_says_so() {
        assert!(LineChart::default().render().contains("no data"));
        assert!(chart(vec![(f64::NAN, 1.0)]).render().contains("no data"));
        assert!(!chart(vec![(1.0, 1.0)]).render().contains("no data"));
    }

    #[test]
    fn a_spike_among_many_points_survives() {
        let mut points: Vec<_> = (0..100_000).map(|n| (f64::from(n), 1.0)).collect();
        points[54_321].1 = 9.0;
        let pixels: Vec<_> = points.iter().map(|&(x, y)| (x / 150.0, y)).collect();
        let kept = thinned(&pixels);
        assert!(kept.len() <= 4 * 667, "{}", kept.len());
        assert!(kept.iter().any(|&(_, y)| y == 9.0));
        assert!(chart(points).render().len() < 100_000);
    }

    proptest! {
        #[test]
        fn any_numbers_make_a_chart_without_any_that_are_not(
            points in prop::collection::vec((any::<f64>(), any::<f64>()), 0..20)
        ) {
            let svg = chart(points).render();
            prop_assert!(!svg.contains("\"NaN") && !svg.contains("\"inf"), "{}", svg);
        }
    }
}
