//! A picture as text: the few elements of SVG that figures need. Text from a result file is escaped here, and nowhere else.

use std::fmt::Write;

/// The position of text relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Elements, in painting order.
#[derive(Default)]
pub(super) struct Svg(String);

impl Svg {
    pub(super) fn rect(&mut self, class: &str, [x, y, width, height]: [f64; 4]) {
        let [x, y, width, height] = [x, y, width.max(0.0), height.max(0.0)].map(number);
        self.push(format_args!("<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>"));
    }

    pub(super) fn line(&mut self, class: &str, from: [f64; 2], to: [f64; 2]) {
        let ([x1, y1], [x2, y2]) = (from.map(number), to.map(number));
        self.push(format_args!("<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>"));
    }

    pub(super) fn polyline(&mut self, class: &str, points: &[[f64; 2]]) {
        let points: Vec<String> = points.iter().map(|[x, y]| format!("{},{}", number(*x), number(*y))).collect();
        self.push(format_args!("<polyline class=\"{class}\" points=\"{}\"/>", points.join(" ")));
    }

    pub(super) fn polygon(&mut self, class: &str, points: &[[f64; 2]]) {
        let points: Vec<String> = points.iter().map(|[x, y]| format!("{},{}", number(*x), number(*y))).collect();
        self.push(format_args!("<polygon class=\"{class}\" points=\"{}\"/>", points.join(" ")));
    }

    pub(super) fn circle(&mut self, class: &str, [x, y]: [f64; 2], radius: f64) {
        let [x, y, radius] = [x, y, radius].map(number);
        self.push(format_args!("<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"{radius}\"/>"));
    }

    pub(super) fn text(&mut self, class: &str, [x, y]: [f64; 2], anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let [x, y] = [x, y].map(number);
        self.push(format_args!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\"{anchor}>{}</text>", escape(text)));
    }

    /// The elements.
    pub(super) fn into_string(self) -> String {
        self.0
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        self.0.write_fmt(element).expect("a string takes all that is written to it");
        self.0.push('\n');
    }
}

/// Text for an element or an attribute of XML or HTML. Characters that XML forbids are replaced by visible ones.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\t' | '\n' | '\r' => escaped.push(' '),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            letter if letter.is_control() => escaped.push('\u{fffd}'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// A coordinate, to a tenth of a pixel.
fn number(value: f64) -> String {
    assert!(value.is_finite(), "a place in a figure is {value}");
    let text = format!("{value:.1}");
    let text = text.strip_suffix(".0").unwrap_or(&text);
    if text == "-0" { "0".into() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escape("a<b>&\"c'\u{0}\n"), "a&lt;b&gt;&amp;&quot;c&#39;\u{fffd} ");
    }

    #[test]
    fn coordinates_are_short() {
        assert_eq!([0.0, -0.01, 1.25, 10.0, -3.06].map(number), ["0", "0", "1.2", "10", "-3.1"]);
    }
}
