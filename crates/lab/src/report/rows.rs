//! Figures with a row for each system: bars, stacks, percentiles. As many panels as fit stand beside each other, and share the names at their left.
//!
//! ```text
//!            lookup                        insert
//!   isle     ############ 1.98  1.2x       ######### 1.07  1.1x
//!   volatile ########## 1.66  1.0x         ####### 0.98  1.0x
//!            0        1        2           0    0.5     1.0
//!            million operations a second
//! ```
//!
//! Bars and stacks begin at zero. Percentiles have a logarithmic axis, and marks instead of bars.

use super::figure::{Form, Kind, Panel, Row, Rows};
use super::font::{Weight, fit, width};
use super::layout::{Columns, paint_nothing};
use super::scale::{Linear, Logarithmic, plain, short, time};
use super::style;
use super::svg::{Anchor, Svg};
use crate::Spread;

const ROW: f64 = 21.0;
const BAR: f64 = 13.0;
const TITLE: f64 = 24.0;
const AXIS: f64 = 22.0;
const AXIS_LABEL: f64 = 18.0;
const GAP: f64 = 26.0;
const KEY: f64 = 22.0;
/// Minimum width of a panel, unless the page is narrower.
const PANEL_MIN: f64 = 190.0;

/// The differences between kinds of figures with rows.
struct Painter<'a> {
    rows: &'a Rows,
    form: Form,
    /// Space at the right of the axis, for labels behind the longest bar.
    room: f64,
}

enum Scale {
    Linear(Linear),
    Logarithmic(Logarithmic),
}

/// Paints rows below `top`. Returns where they end.
pub(super) fn paint(svg: &mut Svg, form: Form, rows: &Rows, width_all: f64, top: f64) -> f64 {
    if rows.panels.iter().all(|panel| panel.rows.is_empty()) {
        return paint_nothing(svg, top);
    }
    let mut painter = Painter { rows, form, room: 0.0 };
    painter.room = painter.label_room();
    painter.paint(svg, width_all, top)
}

impl Painter<'_> {
    fn paint(&self, svg: &mut Svg, width_all: f64, top: f64) -> f64 {
        let names = self.rows.systems();
        let widest = names.iter().map(|name| width(name, 12.0, Weight::Regular)).fold(0.0, f64::max);
        let gutter = (widest + 12.0).min(width_all * 0.42);
        let columns = Columns::fit(self.rows.panels.len(), width_all - gutter, PANEL_MIN, GAP);

        let mut y = top + self.paint_key(svg, top, width_all);
        for panels in self.rows.panels.chunks(columns.count) {
            let present: Vec<&str> = names.iter().copied().filter(|name| panels.iter().any(|panel| find(panel, name).is_some())).collect();
            let first = y + TITLE + if self.form == Form::Percentiles { 14.0 } else { 0.0 };
            for (number, name) in present.iter().enumerate() {
                svg.text("ink", [gutter - 10.0, first + ROW * (number as f64 + 0.5) + 4.0], Anchor::End, &fit(name, 12.0, Weight::Regular, gutter - 12.0));
            }
            for (column, panel) in panels.iter().enumerate() {
                let left = gutter + (columns.width + GAP) * column as f64;
                svg.text("panel", [left, y + 13.0], Anchor::Start, &fit(&panel.title, 12.5, Weight::Bold, columns.width));
                self.paint_panel(svg, panel, &present, [left, first, columns.width]);
            }
            y = first + ROW * present.len() as f64 + AXIS;
            svg.text("muted", [gutter, y + 10.0], Anchor::Start, &fit(&self.rows.axis, 11.0, Weight::Regular, width_all - gutter));
            y += AXIS_LABEL + GAP * 0.6;
        }
        y - GAP * 0.6
    }

    fn paint_panel(&self, svg: &mut Svg, panel: &Panel, names: &[&str], [left, top, panel_width]: [f64; 3]) {
        let length = (panel_width - self.room).max(40.0);
        let bottom = top + ROW * names.len() as f64;
        let scale = self.scale(panel, length);
        let (ticks, labels) = match &scale {
            Scale::Linear(scale) => (scale.ticks.clone(), scale.labels()),
            Scale::Logarithmic(scale) => (scale.ticks.clone(), scale.ticks.iter().map(|tick| time(*tick)).collect()),
        };
        let place = |value: f64| {
            left + length
                * match &scale {
                    Scale::Linear(scale) => scale.part(value),
                    Scale::Logarithmic(scale) => scale.part(value),
                }
        };
        let mut free = f64::NEG_INFINITY;
        for (tick, label) in ticks.iter().zip(&labels) {
            let x = place(*tick);
            svg.line(if *tick == 0.0 { "axis" } else { "grid" }, [x, top - 3.0], [x, bottom + 3.0]);
            let half = width(label, 11.0, Weight::Regular) / 2.0;
            if x - half > free {
                svg.text("tick", [x, bottom + 16.0], Anchor::Middle, label);
                free = x + half + 5.0;
            }
        }
        if let Some(baseline) = self.baseline(panel) {
            let x = place(baseline);
            svg.line("base", [x, top - 3.0], [x, bottom + 3.0]);
        }
        let mut is_first = true;
        for (number, name) in names.iter().enumerate() {
            let middle = top + ROW * (number as f64 + 0.5);
            match find(panel, name) {
                None => svg.text("muted", [left + 5.0, middle + 4.0], Anchor::Start, "\u{2013}"),
                Some(row) => {
                    match self.form {
                        Form::Bars => paint_bar(svg, row, middle, &place),
                        Form::Stacks => paint_stack(svg, row, middle, &place),
                        Form::Percentiles => {
                            if is_first {
                                paint_part_names(svg, &self.rows.parts, row, top - 4.0, &place);
                            }
                            paint_percentiles(svg, row, middle, &place);
                        }
                    }
                    is_first = false;
                }
            }
        }
    }

    /// The baseline's median, if there is one and it is not zero.
    fn baseline(&self, panel: &Panel) -> Option<f64> {
        let row = find(panel, self.rows.baseline.as_deref()?)?;
        row.values.first().map(|value| value.median).filter(|median| *median > 0.0 && self.form == Form::Bars)
    }

    /// The maximum width of labels behind the bars.
    fn label_room(&self) -> f64 {
        let room_of = |row: &Row| {
            let text = match self.form {
                Form::Bars => short(row.values.first().map_or(0.0, |value| value.median)),
                Form::Stacks => short(total(row)),
                Form::Percentiles => time(row.values.last().map_or(0.0, |value| value.median)),
            };
            width(&text, 11.5, Weight::Regular) + row.ratio.map_or(0.0, |ratio| 6.0 + width(&times(ratio), 11.0, Weight::Regular)) + 10.0
        };
        self.rows.panels.iter().flat_map(|panel| &panel.rows).map(room_of).fold(0.0, f64::max)
    }

    fn scale(&self, panel: &Panel, length: f64) -> Scale {
        let largest = |of: &dyn Fn(&Row) -> f64| panel.rows.iter().map(of).fold(0.0, f64::max);
        let count = (length / 48.0).floor().clamp(1.0, 5.0) as usize;
        match self.form {
            Form::Bars => linear(largest(&|row| row.values.first().map_or(0.0, |value| value.max)), count),
            Form::Stacks => linear(largest(&total), count),
            Form::Percentiles => {
                let values = || self.rows.panels.iter().flat_map(|panel| &panel.rows).flat_map(|row| &row.values);
                let low = values().map(|value| value.min).filter(|low| *low > 0.0).fold(f64::INFINITY, f64::min);
                let high = values().map(|value| value.max).fold(0.0, f64::max);
                Scale::Logarithmic(Logarithmic::new(if low.is_finite() { low } else { 1.0 }, high))
            }
        }
    }

    /// The legend, if colours have a meaning. Returns its height.
    fn paint_key(&self, svg: &mut Svg, top: f64, width_all: f64) -> f64 {
        let entries: Vec<(String, String)> = match self.form {
            Form::Percentiles => return 0.0,
            Form::Stacks => self.rows.parts.iter().enumerate().map(|(part, name)| (part_class(part), name.clone())).collect(),
            Form::Bars => {
                let mut kinds: Vec<Kind> = self.rows.panels.iter().flat_map(|panel| &panel.rows).map(|row| row.kind).collect();
                kinds.sort();
                kinds.dedup();
                if kinds.len() < 2 {
                    return 0.0;
                }
                kinds.into_iter().map(|kind| (class_of(kind).into(), kind.name().into())).collect()
            }
        };
        let (mut x, mut y) = (0.0, top);
        for (class, name) in entries {
            let needed = 16.0 + width(&name, 11.0, Weight::Regular);
            if x > 0.0 && x + needed > width_all {
                (x, y) = (0.0, y + KEY - 4.0);
            }
            svg.rect(&class, [x, y + 1.0, 11.0, 11.0]);
            svg.text("muted", [x + 16.0, y + 10.5], Anchor::Start, &fit(&name, 11.0, Weight::Regular, width_all - 16.0));
            x += needed + 18.0;
        }
        y + KEY - top
    }
}

fn paint_bar(svg: &mut Svg, row: &Row, middle: f64, place: &dyn Fn(f64) -> f64) {
    let Some(value) = row.values.first() else { return };
    let zero = place(0.0);
    svg.rect(class_of(row.kind), [zero, middle - BAR / 2.0, place(value.median) - zero, BAR]);
    paint_whisker(svg, value, middle, place);
    let text = short(value.median);
    let x = place(value.max.max(value.median)) + 6.0;
    svg.text("value halo", [x, middle + 4.0], Anchor::Start, &text);
    if let Some(ratio) = row.ratio {
        svg.text("muted halo", [x + width(&text, 11.5, Weight::Regular) + 6.0, middle + 4.0], Anchor::Start, &times(ratio));
    }
}

fn paint_stack(svg: &mut Svg, row: &Row, middle: f64, place: &dyn Fn(f64) -> f64) {
    let mut sum = 0.0;
    for (part, value) in row.values.iter().enumerate() {
        let (from, to) = (place(sum), place(sum + value.median));
        svg.rect(&part_class(part), [from, middle - BAR / 2.0, to - from, BAR]);
        let text = short(value.median);
        if width(&text, 11.0, Weight::Regular) + 6.0 < to - from {
            svg.text(if part == 0 { "inside" } else { "inside-light" }, [f64::midpoint(from, to), middle + 4.0], Anchor::Middle, &text);
        }
        sum += value.median;
    }
    svg.text("value halo", [place(sum) + 6.0, middle + 4.0], Anchor::Start, &short(sum));
}

fn paint_percentiles(svg: &mut Svg, row: &Row, middle: f64, place: &dyn Fn(f64) -> f64) {
    let (Some(first), Some(last)) = (row.values.first(), row.values.last()) else { return };
    svg.line("span", [place(first.median), middle], [place(last.median), middle]);
    for (part, value) in row.values.iter().enumerate() {
        paint_whisker(svg, value, middle, place);
        let x = place(value.median);
        match part {
            0 => svg.circle("dot", [x, middle], 4.5),
            1 => svg.circle("hollow", [x, middle], 4.0),
            _ => svg.polygon("dot", &[[x - 1.5, middle - 6.0], [x + 1.5, middle - 6.0], [x + 1.5, middle + 6.0], [x - 1.5, middle + 6.0]]),
        }
    }
    svg.text("value halo", [place(last.max.max(last.median)) + 8.0, middle + 4.0], Anchor::Start, &time(last.median));
}

/// Names of the marks, above those of the first row, pushed apart where they would touch.
fn paint_part_names(svg: &mut Svg, parts: &[String], row: &Row, y: f64, place: &dyn Fn(f64) -> f64) {
    let mut free = f64::NEG_INFINITY;
    for (name, value) in parts.iter().zip(&row.values) {
        let text_width = width(name, 11.0, Weight::Regular);
        let start = (place(value.median) - text_width / 2.0).max(free);
        svg.text("muted", [start, y], Anchor::Start, name);
        free = start + text_width + 7.0;
    }
}

/// From the smallest to the largest round, if they differ visibly.
fn paint_whisker(svg: &mut Svg, value: &Spread, middle: f64, place: &dyn Fn(f64) -> f64) {
    let (from, to) = (place(value.min), place(value.max));
    if to - from > 1.5 {
        svg.line("whisker", [from, middle], [to, middle]);
        for x in [from, to] {
            svg.line("whisker", [x, middle - 3.0], [x, middle + 3.0]);
        }
    }
}

fn linear(max: f64, count: usize) -> Scale {
    Scale::Linear(Linear::new(max, count).cut(max))
}

fn find<'a>(panel: &'a Panel, name: &str) -> Option<&'a Row> {
    panel.rows.iter().find(|row| row.name == name)
}

fn total(row: &Row) -> f64 {
    row.values.iter().map(|value| value.median).sum()
}

fn times(ratio: f64) -> String {
    if ratio >= 9.95 { format!("{}\u{d7}", plain(ratio.round())) } else { format!("{ratio:.2}\u{d7}") }
}

fn class_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Everleaf => "everleaf",
        Kind::Peer => "peer",
        Kind::Volatile => "volatile",
    }
}

fn part_class(part: usize) -> String {
    format!("part{}", part % style::PARTS)
}
