//! A small writer of self-contained SVG: shapes, text, tooltips.
//!
//! Every text is escaped here and nowhere else, so callers may pass any string. No scripts, no
//! style sheets, no links and no fonts but the reader's own: the file looks the same on a page, in
//! a mail and in a browser. Coordinates are pixels from the upper left corner, written with two
//! decimals.

use std::fmt::Write;

/// The tones in which pictures shade exposed communication and waiting for the last rank.
pub(super) const EXPOSED: &str = "#f9c6c9";
pub(super) const SKEW: &str = "#e2e7ee";

/// Darker colours, for lines on white.
pub(super) const INK: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#8e44ad", "#b8860b", "#111111", "#56a0d3", "#c2255c"];

/// What most text is drawn in.
pub(super) const TEXT: &str = "#1f2933";
/// Labels that should not be read first.
pub(super) const MUTED: &str = "#52606d";
/// Grid lines.
pub(super) const GRID: &str = "#e4e7eb";
/// Axes and frames.
pub(super) const FRAME: &str = "#9aa5b1";

/// Where a text hangs on its point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// How a text looks.
#[derive(Clone, Copy)]
pub(super) struct Font {
    pub(super) size: f64,
    pub(super) colour: &'static str,
    pub(super) bold: bool,
    pub(super) anchor: Anchor,
}

impl Font {
    pub(super) const fn new(size: f64, colour: &'static str, anchor: Anchor) -> Self {
        Self { size, colour, bold: false, anchor }
    }

    pub(super) const fn bold(self) -> Self {
        Self { bold: true, ..self }
    }

    /// About how wide a text will be; fonts differ, so this errs on the wide side.
    pub(super) fn width(&self, text: &str) -> f64 {
        let factor = if self.bold { 0.64 } else { 0.59 };
        text.chars().count() as f64 * self.size * factor
    }

    /// The text, with an ellipsis for its end where it is too wide; empty where little would be
    /// left.
    pub(super) fn fit(&self, text: &str, width: f64) -> String {
        match self.room(text, width) {
            Room::All => text.to_owned(),
            Room::None => String::new(),
            Room::Letters(kept) => text.chars().take(kept).chain(['…']).collect(),
        }
    }

    /// The same with an ellipsis for the middle, for names that differ at both ends.
    pub(super) fn fit_middle(&self, text: &str, width: f64) -> String {
        match self.room(text, width) {
            Room::All => text.to_owned(),
            Room::None => String::new(),
            Room::Letters(kept) => {
                let (head, all) = (kept.div_ceil(2), text.chars().count());
                let tail = text.chars().skip(all - (kept - head));
                text.chars().take(head).chain(['…']).chain(tail).collect()
            }
        }
    }

    fn room(&self, text: &str, width: f64) -> Room {
        let letters = (width / self.width("m")).floor().max(0.0) as usize;
        if letters >= text.chars().count() {
            Room::All
        } else if letters < 6 {
            Room::None
        } else {
            Room::Letters(letters - 1)
        }
    }
}

/// How much of a text fits, the ellipsis already subtracted.
enum Room {
    All,
    Letters(usize),
    None,
}

/// A rectangle.
#[derive(Clone, Copy)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Rect {
    pub(super) const fn new(x: f64, y: f64, width: f64, height: f64) -> Self {
        Self { x, y, width, height }
    }
}

/// A picture in the making.
pub(super) struct Svg {
    text: String,
}

impl Svg {
    /// An empty picture of this size on white; the title is what screen readers read.
    pub(super) fn new(width: f64, height: f64, title: &str) -> Self {
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\" \
             font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif\">\n\
             <title>"
        );
        escape(title, &mut text);
        text.push_str("</title>\n");
        let mut svg = Self { text };
        svg.rect(Rect::new(0.0, 0.0, width, height), "#ffffff", None);
        svg
    }

    /// A filled rectangle with slightly round corners, and a tooltip if there is one.
    pub(super) fn rect(&mut self, rect: Rect, fill: &str, tooltip: Option<&str>) {
        let Rect { x, y, width, height } = rect;
        let round = if width > 6.0 && tooltip.is_some() { " rx=\"2\"" } else { "" };
        self.push(format_args!(
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\" \
             fill=\"{fill}\"{round}"
        ));
        match tooltip {
            None => self.text.push_str("/>\n"),
            Some(tooltip) => {
                self.text.push_str("><title>");
                escape(tooltip, &mut self.text);
                self.text.push_str("</title></rect>\n");
            }
        }
    }

    /// A straight line, `dashed` like `4 3` or solid when that is empty.
    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, dashed: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let dashes = dash(dashed);
        self.push(format_args!(
            "<line x1=\"{x1:.2}\" y1=\"{y1:.2}\" x2=\"{x2:.2}\" y2=\"{y2:.2}\" \
             stroke=\"{colour}\"{dashes}/>\n"
        ));
    }

    /// A line through points.
    pub(super) fn polyline(&mut self, points: &[(f64, f64)], colour: &str, dashed: &str) {
        self.text.push_str("<polyline points=\"");
        for (x, y) in points {
            self.push(format_args!("{x:.2},{y:.2} "));
        }
        let dashes = dash(dashed);
        self.push(format_args!(
            "\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-linejoin=\"round\" \
             stroke-linecap=\"round\"{dashes}/>\n"
        ));
    }

    /// A small disc.
    pub(super) fn disc(&mut self, (x, y): (f64, f64), colour: &str) {
        self.push(format_args!("<circle cx=\"{x:.2}\" cy=\"{y:.2}\" r=\"2.6\" fill=\"{colour}\"/>\n"));
    }

    /// A ring around a disc.
    pub(super) fn ring(&mut self, (x, y): (f64, f64), colour: &str) {
        self.push(format_args!(
            "<circle cx=\"{x:.2}\" cy=\"{y:.2}\" r=\"6\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\n"
        ));
    }

    /// A text whose base line starts, centres or ends at a point.
    pub(super) fn text(&mut self, at: (f64, f64), font: Font, content: &str) {
        self.turned_text(at, font, content, false);
    }

    /// A text, turned to read upwards if asked.
    pub(super) fn turned_text(&mut self, (x, y): (f64, f64), font: Font, content: &str, up: bool) {
        let anchor = match font.anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (size, colour) = (font.size, font.colour);
        let weight = if font.bold { " font-weight=\"600\"" } else { "" };
        self.push(format_args!(
            "<text x=\"{x:.2}\" y=\"{y:.2}\" font-size=\"{size}\" fill=\"{colour}\" \
             text-anchor=\"{anchor}\"{weight}"
        ));
        if up {
            self.push(format_args!(" transform=\"rotate(-90 {x:.2} {y:.2})\""));
        }
        self.text.push('>');
        escape(content, &mut self.text);
        self.text.push_str("</text>\n");
    }

    /// The finished file.
    pub(super) fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }

    fn push(&mut self, piece: std::fmt::Arguments<'_>) {
        // Writing into a `String` cannot fail.
        let _ = self.text.write_fmt(piece);
    }
}

fn dash(dashed: &str) -> String {
    if dashed.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dashed}\"") }
}

/// Appends text with what XML reserves escaped, and what XML forbids replaced.
fn escape(text: &str, into: &mut String) {
    for character in text.chars() {
        match character {
            '&' => into.push_str("&amp;"),
            '<' => into.push_str("&lt;"),
            '>' => into.push_str("&gt;"),
            '"' => into.push_str("&quot;"),
            '\n' | '\t' => into.push(character),
            control if control.is_control() => into.push('\u{fffd}'),
            '\u{fffe}' | '\u{ffff}' => into.push('\u{fffd}'),
            other => into.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_forbidden_characters_are_replaced() {
        let mut out = String::new();
        escape("a<b & \"c\">\0\u{1b}\nü", &mut out);
        assert_eq!(out, "a&lt;b &amp; &quot;c&quot;&gt;\u{fffd}\u{fffd}\nü");
    }

    #[test]
    fn a_text_too_long_for_its_place_is_shortened_or_left_out() {
        let font = Font::new(10.0, TEXT, Anchor::Start);
        let name = "gather blocks.3.mlp.up";
        assert_eq!(font.fit(name, 1000.0), name);
        let short = font.fit(name, 60.0);
        assert!(short.ends_with('…') && font.width(&short) <= 60.0, "{short}");
        let both = font.fit_middle(name, 60.0);
        assert_eq!(both, "gathe…p.up");
        assert!(font.width(&both) <= 60.0);
        assert_eq!(font.fit_middle(name, 1000.0), name);
        assert_eq!(font.fit(name, 8.0), "");
        assert_eq!(font.fit(name, -5.0), "");
    }
}
