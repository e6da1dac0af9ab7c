//! Shared by all kinds of figures: how panels divide the width, and what is shown without panels.

use super::svg::{Anchor, Svg};

/// Panels beside each other.
pub(super) struct Columns {
    pub(super) count: usize,
    /// Width of each.
    pub(super) width: f64,
}

impl Columns {
    /// As many of `panels`, at least one, as fit into `room` with `gap` between them; none is narrower than `width_min`, unless `room` is.
    pub(super) fn fit(panels: usize, room: f64, width_min: f64, gap: f64) -> Self {
        let fitting = ((room + gap) / (width_min + gap)).floor().max(1.0) as usize;
        // Equally many in each line, if possible.
        let count = panels.div_ceil(panels.div_ceil(fitting));
        Self { count, width: (room - gap * (count - 1) as f64) / count as f64 }
    }
}

/// Writes below `top` that there is nothing to show. Returns where that ends.
pub(super) fn paint_nothing(svg: &mut Svg, top: f64) -> f64 {
    svg.text("muted", [0.0, top + 14.0], Anchor::Start, "nothing was measured");
    top + 20.0
}
