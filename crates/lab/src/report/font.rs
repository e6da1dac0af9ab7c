//! The typeface of figures and pages, and the width of text in it.
//!
//! Labels stand at what they name, so the layout of a figure needs their widths. The typeface is Inter, reduced to the letters that figures use (see
//! `fonts/README.md`). It is part of the program, so that a figure looks the same everywhere, and of the page, which needs no other file.

use std::sync::LazyLock;
use ttf_parser::Face;

/// The typeface in its two weights.
pub(super) const REGULAR: &[u8] = include_bytes!("../../fonts/Inter-Regular.otf");
pub(super) const BOLD: &[u8] = include_bytes!("../../fonts/Inter-SemiBold.otf");

/// The weight of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    Regular,
    Bold,
}

static FACES: LazyLock<[Face<'static>; 2]> = LazyLock::new(|| [REGULAR, BOLD].map(|bytes| Face::parse(bytes, 0).expect("the embedded typeface is sound")));

/// The width of `text` at a size, in pixels.
pub(super) fn width(text: &str, size: f64, weight: Weight) -> f64 {
    let face = &FACES[usize::from(weight == Weight::Bold)];
    // A letter that is not in the typeface comes from another one, and is rarely wider than this.
    let advance = |letter| face.glyph_index(letter).and_then(|glyph| face.glyph_hor_advance(glyph)).unwrap_or(face.units_per_em());
    let units: f64 = text.chars().map(|letter| f64::from(advance(letter))).sum();
    units * size / f64::from(face.units_per_em())
}

/// `text`, or as much of its beginning as fits, with an ellipsis.
pub(super) fn fit(text: &str, size: f64, weight: Weight, width_max: f64) -> String {
    if width(text, size, weight) <= width_max {
        return text.into();
    }
    let mut shortened = String::new();
    for letter in text.chars() {
        let longer = format!("{shortened}{letter}\u{2026}");
        if width(&longer, size, weight) > width_max {
            break;
        }
        shortened.push(letter);
    }
    shortened.truncate(shortened.trim_end().len());
    shortened.push('\u{2026}');
    shortened
}

/// Breaks `text` into lines of this maximum width.
pub(super) fn wrap(text: &str, size: f64, weight: Weight, width_max: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(&format!("{line} {word}"), size, weight) <= width_max => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(fit(word, size, weight, width_max)),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_add_up_and_scale() {
        let (one, two) = (width("mm", 10.0, Weight::Regular), width("mmmm", 10.0, Weight::Regular));
        assert!(one > 10.0 && (two - 2.0 * one).abs() < 1e-9 && (width("mm", 20.0, Weight::Regular) - two).abs() < 1e-9);
        assert!(width("lookup", 12.0, Weight::Bold) > width("lookup", 12.0, Weight::Regular));
    }

    #[test]
    fn what_is_fitted_and_wrapped_fits() {
        let text = "the quick brown fox jumps over the lazy dog, and incomprehensibilities stay outside";
        for limit in [30.0, 60.0, 200.0, 2000.0] {
            assert!(width(&fit(text, 12.0, Weight::Regular, limit), 12.0, Weight::Regular) <= limit);
            let lines = wrap(text, 12.0, Weight::Regular, limit);
            assert!(lines.iter().all(|line| width(line, 12.0, Weight::Regular) <= limit), "{lines:?}");
            assert!(limit < 200.0 || lines.join(" ") == text);
        }
        assert_eq!(fit("short", 12.0, Weight::Regular, 100.0), "short");
    }
}
