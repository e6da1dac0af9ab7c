//! Figures with a line for each system over a parameter. The name of a system stands at the end of its line; dashes and marks distinguish lines where colours
//! do not. The vertical axis begins at zero, and the ticks of the horizontal one are the measured values.

use super::figure::{LinePanel, Lines, Series, ascending};
use super::font::{Weight, fit, width};
use super::layout::{Columns, paint_nothing};
use super::scale::{Linear, plain};
use super::style;
use super::svg::{Anchor, Svg};
use crate::Spread;

const TITLE: f64 = 26.0;
const HEIGHT_MIN: f64 = 190.0;
const AXIS: f64 = 40.0;
const GAP: f64 = 30.0;
/// Minimum width of a panel, unless the page is narrower.
const PANEL_MIN: f64 = 300.0;
/// Minimum distance of names at the ends of lines.
const NAME: f64 = 14.0;

/// Paints the chart below `top`. Returns where it ends. The position of a system in `names` determines the look of its lines, the same in every panel.
pub(super) fn paint(svg: &mut Svg, lines: &Lines, names: &[&str], width_all: f64, top: f64) -> f64 {
    if names.is_empty() || lines.panels.is_empty() {
        return paint_nothing(svg, top);
    }
    let columns = Columns::fit(lines.panels.len(), width_all, PANEL_MIN, GAP);
    let mut y = top;
    svg.text("muted", [0.0, y + 11.0], Anchor::Start, &fit(&lines.vertical, 11.0, Weight::Regular, width_all));
    y += 22.0;
    for panels in lines.panels.chunks(columns.count) {
        let most = panels.iter().map(|panel| panel.series.len()).max().unwrap_or(0);
        let height = HEIGHT_MIN.max(NAME * (most as f64 + 1.0));
        for (column, panel) in panels.iter().enumerate() {
            paint_panel(svg, lines, panel, names, [(columns.width + GAP) * column as f64, y, columns.width, height]);
        }
        y += TITLE + height + AXIS + GAP * 0.4;
    }
    y - GAP * 0.4
}

fn paint_panel(svg: &mut Svg, lines: &Lines, panel: &LinePanel, names: &[&str], [left, top, panel_width, height]: [f64; 4]) {
    let points = || panel.series.iter().flat_map(|series| &series.points);
    let scale = Linear::new(points().map(|(_, value)| value.max).fold(0.0, f64::max), 4);
    let labels = scale.labels();
    let gutter = labels.iter().map(|label| width(label, 11.0, Weight::Regular)).fold(0.0, f64::max) + 8.0;
    let room = panel.series.iter().map(|series| width(&series.name, 11.5, Weight::Bold)).fold(0.0, f64::max).min(panel_width * 0.34) + 16.0;
    let (from, to) = (left + gutter + 8.0, left + panel_width - room);
    let (first, last) = (top + TITLE, top + TITLE + height);

    svg.text("panel", [left, top + 11.0], Anchor::Start, &fit(&panel.title, 12.5, Weight::Bold, panel_width));
    let row = |value: f64| last - (last - first) * scale.part(value);
    for (tick, label) in scale.ticks.iter().zip(&labels) {
        let y = row(*tick);
        svg.line(if *tick == 0.0 { "axis" } else { "grid" }, [left + gutter, y], [to + 6.0, y]);
        svg.text("tick", [left + gutter - 6.0, y + 4.0], Anchor::End, label);
    }
    let column = horizontal(lines, panel, from, to);
    let mut free = f64::NEG_INFINITY;
    for at in ascending(points().map(|(at, _)| *at)) {
        let (x, label) = (column(at), plain(at));
        let half = width(&label, 11.0, Weight::Regular) / 2.0;
        svg.line("axis", [x, last], [x, last + 4.0]);
        if x - half > free {
            svg.text("tick", [x, last + 17.0], Anchor::Middle, &label);
            free = x + half + 6.0;
        }
    }
    svg.text("muted", [left + gutter, last + 33.0], Anchor::Start, &fit(&lines.horizontal, 11.0, Weight::Regular, panel_width - gutter));

    let mut ends = Vec::new();
    for series in &panel.series {
        let look = names.iter().position(|name| *name == series.name).unwrap_or(0) % style::SERIES;
        paint_series(svg, series, look, &column, &row);
        if let Some((at, value)) = series.points.last() {
            ends.push((series.name.as_str(), look, [column(*at), row(value.median)]));
        }
    }
    paint_names(svg, ends, to, [first, last], room);
}

fn paint_series(svg: &mut Svg, series: &Series, look: usize, column: &dyn Fn(f64) -> f64, row: &dyn Fn(f64) -> f64) {
    let places: Vec<[f64; 2]> = series.points.iter().map(|(at, value)| [column(*at), row(value.median)]).collect();
    for ((_, Spread { min, max, .. }), [x, _]) in series.points.iter().zip(&places) {
        let (low, high) = (row(*min), row(*max));
        if low - high > 1.5 {
            svg.line(&format!("error{look}"), [*x, low], [*x, high]);
            for y in [low, high] {
                svg.line(&format!("error{look}"), [x - 3.0, y], [x + 3.0, y]);
            }
        }
    }
    svg.polyline(&format!("line{look}"), &places);
    for place in places {
        paint_mark(svg, look, place);
    }
}

/// A distinct mark for each of the first series.
fn paint_mark(svg: &mut Svg, look: usize, [x, y]: [f64; 2]) {
    let class = format!("mark{look}");
    match look % 4 {
        0 => svg.circle(&class, [x, y], 3.2),
        1 => svg.rect(&class, [x - 2.9, y - 2.9, 5.8, 5.8]),
        2 => svg.polygon(&class, &[[x, y - 4.2], [x + 3.9, y + 3.0], [x - 3.9, y + 3.0]]),
        _ => svg.polygon(&class, &[[x, y - 4.2], [x + 4.2, y], [x, y + 4.2], [x - 4.2, y]]),
    }
}

/// Names beside the ends of their lines, pushed apart where they would overlap. A thin line connects a moved name to its end.
fn paint_names(svg: &mut Svg, mut ends: Vec<(&str, usize, [f64; 2])>, right: f64, [first, last]: [f64; 2], room: f64) {
    ends.sort_by(|one, other| one.2[1].total_cmp(&other.2[1]));
    let mut places: Vec<f64> = ends.iter().map(|(_, _, [_, y])| *y).collect();
    // Down from the top, then up from the bottom: the order is kept, and all fit.
    for at in 1..places.len() {
        places[at] = places[at].max(places[at - 1] + NAME);
    }
    let mut limit = last;
    for place in places.iter_mut().rev() {
        *place = place.min(limit).max(first - NAME);
        limit = *place - NAME;
    }
    for ((name, look, [x, y]), place) in ends.into_iter().zip(places) {
        if (place - y).abs() > 3.0 || right - x > 8.0 {
            svg.line("leader", [x + 5.0, y], [right + 9.0, place]);
        }
        svg.text(&format!("name{look}"), [right + 11.0, place + 4.0], Anchor::Start, &fit(name, 11.5, Weight::Bold, room - 11.0));
    }
}

/// Maps a parameter to its position: by its logarithm where it grows by factors.
fn horizontal(lines: &Lines, panel: &LinePanel, from: f64, to: f64) -> impl Fn(f64) -> f64 {
    let is_logarithmic = lines.is_logarithmic;
    let bend = move |at: f64| if is_logarithmic { at.max(f64::MIN_POSITIVE).ln() } else { at };
    let all = panel.series.iter().flat_map(|series| &series.points).map(|(at, _)| bend(*at));
    let (low, high) = all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), at| (low.min(at), high.max(at)));
    move |at| if high > low { from + (to - from) * (bend(at) - low) / (high - low) } else { f64::midpoint(from, to) }
}
