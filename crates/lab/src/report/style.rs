//! Colours, twice: for light and for dark backgrounds. They differ in lightness, so they survive a grey print.

use std::fmt::Write;

/// A class, what it sets besides the colour, the property that takes the colour, and the colour on light and on dark backgrounds.
type Class = (&'static str, &'static str, &'static str, &'static str, &'static str);

/// The series of line charts, in order: how many there are, and their dashes beside their colours.
pub(super) const SERIES: usize = 8;
const SERIES_COLOURS: [(&str, &str); SERIES] = [
    ("#12664f", "#5fd3ac"),
    ("#c2571a", "#f2a069"),
    ("#2b4c9b", "#8fb0ff"),
    ("#8f2d56", "#f089b4"),
    ("#b8860b", "#e6c35c"),
    ("#4d96b8", "#7cc6e6"),
    ("#555b61", "#c3c9cf"),
    ("#8a6bbf", "#bfa6ee"),
];
const SERIES_DASHES: [&str; SERIES] = ["none", "7 3", "2 3", "9 3 2 3", "12 4", "5 2 1 2", "4 4", "1 2"];

const CLASSES: [Class; 25] = [
    ("paper", "", "fill", "#ffffff", "#14171a"),
    ("ink", "font-size:12px", "fill", "#16191c", "#eceff1"),
    ("head", "font-size:16px;font-weight:600", "fill", "#16191c", "#f4f6f7"),
    ("panel", "font-size:12.5px;font-weight:600", "fill", "#16191c", "#eceff1"),
    ("muted", "font-size:11px", "fill", "#5d656c", "#a4adb5"),
    ("tick", "font-size:11px", "fill", "#5d656c", "#a4adb5"),
    ("value", "font-size:11.5px", "fill", "#16191c", "#eceff1"),
    ("inside", "font-size:11px", "fill", "#ffffff", "#101214"),
    ("inside-light", "font-size:11px", "fill", "#16191c", "#101214"),
    ("halo", "paint-order:stroke;stroke-width:3.5;stroke-linejoin:round", "stroke", "#ffffff", "#14171a"),
    ("grid", "stroke-width:1", "stroke", "#e3e6e8", "#2b3136"),
    ("axis", "stroke-width:1", "stroke", "#8b949b", "#6c757d"),
    ("base", "stroke-width:1;stroke-dasharray:3 3", "stroke", "#8b949b", "#8b949b"),
    ("whisker", "stroke-width:1.25", "stroke", "#16191c", "#f4f6f7"),
    ("leader", "stroke-width:.75", "stroke", "#a9b1b7", "#59626a"),
    ("everleaf", "", "fill", "#1c7a5d", "#3fae88"),
    ("peer", "", "fill", "#6f9bc4", "#5b86ad"),
    ("volatile", "stroke:#8b949b;stroke-width:.75", "fill", "#d9dee2", "#3a4248"),
    ("part0", "", "fill", "#14573f", "#2f9a75"),
    ("part1", "", "fill", "#6bb296", "#8fd6bb"),
    ("part2", "", "fill", "#c6e3d7", "#d9f2e7"),
    ("part3", "stroke:#8b949b;stroke-width:.75", "fill", "#eef3f0", "#56615c"),
    ("dot", "stroke-width:1.5;stroke:#1c7a5d", "fill", "#1c7a5d", "#3fae88"),
    ("span", "stroke-width:2", "stroke", "#a9c9bd", "#2f5a4a"),
    ("hollow", "stroke-width:1.75;stroke:#1c7a5d", "fill", "#ffffff", "#14171a"),
];

/// Distinguishable parts of a stack.
pub(super) const PARTS: usize = 4;

/// The text style of figures. Digits are as wide as `font` measures them, so not all the same.
pub(super) const TEXT: &str = "text{font-family:Inter,system-ui,sans-serif}";

/// The rules for one background.
fn rules(pick: fn(&(&'static str, &'static str)) -> &'static str, with_form: bool) -> String {
    let mut css = String::new();
    for (class, form, property, light, dark) in CLASSES {
        let form = if with_form && !form.is_empty() { format!("{form};") } else { String::new() };
        write!(css, ".{class}{{{form}{property}:{}}}", pick(&(light, dark))).expect("a string takes everything");
    }
    for (number, colours) in SERIES_COLOURS.iter().enumerate() {
        let (colour, dash) = (pick(colours), SERIES_DASHES[number]);
        let form = if with_form { format!("fill:none;stroke-width:2;stroke-linejoin:round;stroke-dasharray:{dash};") } else { String::new() };
        write!(css, ".line{number}{{{form}stroke:{colour}}}.mark{number}{{fill:{colour};stroke:{colour}}}").expect("a string takes everything");
        let form = if with_form { "stroke-width:1.25;" } else { "" };
        write!(css, ".error{number}{{{form}stroke:{colour}}}.name{number}{{font-size:11.5px;font-weight:600;fill:{colour}}}")
            .expect("a string takes everything");
    }
    css
}

/// Colours on a light background, and all rules that are not colours.
pub(super) fn light() -> String {
    format!("{TEXT}{}", rules(|(light, _)| light, true))
}

/// Colours on a dark background, to follow those.
pub(super) fn dark() -> String {
    rules(|(_, dark)| dark, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Perceived lightness, 0 to 100.
    fn lightness(colour: &str) -> f64 {
        let part = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        let luminance = 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
        if luminance <= 0.008856 { luminance * 903.3 } else { 116.0 * luminance.cbrt() - 16.0 }
    }

    fn colours(class: &str) -> [f64; 2] {
        let (.., light, dark) = *CLASSES.iter().find(|(name, ..)| *name == class).unwrap();
        [light, dark].map(lightness)
    }

    #[test]
    fn what_is_told_apart_by_colour_differs_in_lightness() {
        for groups in [vec!["everleaf", "peer", "volatile"], vec!["part0", "part1", "part2"]] {
            for (at, one) in groups.iter().enumerate() {
                for other in &groups[at + 1..] {
                    let (one, other) = (colours(one), colours(other));
                    assert!((one[0] - other[0]).abs() > 12.0, "{groups:?} on light ground: {one:?}, {other:?}");
                    assert!((one[1] - other[1]).abs() > 8.0, "{groups:?} on dark ground: {one:?}, {other:?}");
                }
            }
        }
    }

    #[test]
    fn text_and_lines_stand_out_from_their_ground() {
        let paper = colours("paper");
        for class in ["ink", "muted", "tick", "value", "head"] {
            let text = colours(class);
            assert!(paper[0] - text[0] > 50.0 && text[1] - paper[1] > 50.0, "{class}");
        }
        for (light, dark) in SERIES_COLOURS {
            assert!(paper[0] - lightness(light) > 38.0 && lightness(dark) - paper[1] > 50.0, "{light} {dark}");
        }
    }
}
