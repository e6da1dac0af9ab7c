//! A figure as a picture: a file of its own, SVG or PNG, or part of a page, without its title, which the page has above it.

use super::figure::{Chart, Figure, Form};
use super::font::{BOLD, REGULAR, Weight, wrap};
use super::svg::{Anchor, Svg, escape};
use super::{lines, rows, style};
use resvg::{tiny_skia, usvg};
use std::io;
use std::sync::{Arc, LazyLock};

/// Width for a screen or a page, in pixels.
pub(super) const WIDE: f64 = 760.0;
/// Width for a phone.
pub(super) const NARROW: f64 = 350.0;
/// Pixels of a PNG per pixel of the figure, for print quality.
const DENSITY: f32 = 2.0;
const MARGIN: f64 = 24.0;

/// A picture in a page, as wide as given. `id` is unique in the page.
pub(super) fn inline(figure: &Figure, width: f64, id: &str) -> String {
    let mut svg = Svg::default();
    let height = paint(&mut svg, figure, width, 4.0) + 6.0;
    let head = format!("<svg viewBox=\"0 0 {width} {height:.0}\" width=\"{width}\" height=\"{height:.0}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">");
    format!("{head}\n{}{}</svg>\n", description(figure, id), svg.into_string())
}

/// A separate picture, which adapts to a light or dark background.
pub(super) fn svg(figure: &Figure) -> String {
    alone(figure, &format!("{}@media (prefers-color-scheme:dark){{{}}}", style::light(), style::dark()))
}

/// A picture in pixels, on a light background.
///
/// # Errors
/// A figure that is too large for a picture.
pub(super) fn png(figure: &Figure) -> io::Result<Vec<u8>> {
    static OPTIONS: LazyLock<usvg::Options<'static>> = LazyLock::new(|| {
        // Only the typeface of the layout: the picture is the same on every machine.
        let mut fonts = usvg::fontdb::Database::new();
        fonts.load_font_data(REGULAR.into());
        fonts.load_font_data(BOLD.into());
        usvg::Options { fontdb: Arc::new(fonts), font_family: "Inter".into(), ..usvg::Options::default() }
    });
    let tree = usvg::Tree::from_str(&alone(figure, &style::light()), &OPTIONS).map_err(io::Error::other)?;
    let size = tree.size().to_int_size().scale_by(DENSITY).ok_or_else(|| io::Error::other("the figure is too large for a picture"))?;
    let mut pixels = tiny_skia::Pixmap::new(size.width(), size.height()).ok_or_else(|| io::Error::other("the figure is too large for a picture"))?;
    resvg::render(&tree, tiny_skia::Transform::from_scale(DENSITY, DENSITY), &mut pixels.as_mut());
    pixels.encode_png().map_err(io::Error::other)
}

fn alone(figure: &Figure, css: &str) -> String {
    let mut body = Svg::default();
    let mut y = MARGIN;
    for line in wrap(&figure.title, 16.0, Weight::Bold, WIDE) {
        body.text("head", [0.0, y + 14.0], Anchor::Start, &line);
        y += 21.0;
    }
    y = paint(&mut body, figure, WIDE, y + 14.0) + 8.0;
    for line in wrap(&figure.note, 11.0, Weight::Regular, WIDE) {
        body.text("muted", [0.0, y + 12.0], Anchor::Start, &line);
        y += 15.0;
    }
    let (width, height) = (WIDE + 2.0 * MARGIN, (y + MARGIN).ceil());
    let mut paper = Svg::default();
    paper.rect("paper", [0.0, 0.0, width, height]);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" \
         aria-labelledby=\"f-t f-d\">\n{}<style>{css}</style>\n{}<g transform=\"translate({MARGIN} 0)\">\n{}</g>\n</svg>\n",
        description(figure, "f"),
        paper.into_string(),
        body.into_string(),
    )
}

fn paint(svg: &mut Svg, figure: &Figure, width: f64, top: f64) -> f64 {
    match &figure.chart {
        Chart::Lines(chart) => lines::paint(svg, chart, &figure.systems(), width, top),
        Chart::Rows(form, rows) => rows::paint(svg, *form, rows, width, top),
    }
}

/// A description for readers who do not see the picture.
fn description(figure: &Figure, id: &str) -> String {
    let kind = match &figure.chart {
        Chart::Rows(Form::Bars, rows) => format!("Bars: {}.", rows.axis),
        Chart::Rows(Form::Stacks, rows) => format!("Stacked bars: {}.", rows.axis),
        Chart::Rows(Form::Percentiles, rows) => format!("{} on a logarithmic axis: {}.", rows.parts.join(", "), rows.axis),
        Chart::Lines(lines) => format!("Lines: {} over {}.", lines.vertical, lines.horizontal),
    };
    let text = format!("{kind} {} The numbers are in the table.", figure.note);
    format!("<title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>\n", escape(&figure.title), escape(&text))
}
