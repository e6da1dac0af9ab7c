//! What a figure shows, before it is known how it is drawn: the same data become a picture, a table and a file.

use super::scale;
use crate::{Samples, Spread};
use std::fmt::Write;

/// A figure, with its data.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figure {
    /// Stem of the names of its files, unique in a report.
    pub(super) name: String,
    /// What is to be seen.
    pub(super) title: String,
    /// Under which conditions, and how to read it.
    pub(super) note: String,
    /// What is drawn.
    pub(super) chart: Chart,
}

/// The kinds of figures.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Chart {
    /// Numbers of a system.
    Rows(Form, Rows),
    /// Numbers of a system over a parameter.
    Lines(Lines),
}

/// What the numbers of a row are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// One alone.
    Bars,
    /// They add up.
    Stacks,
    /// Ascending, such as percentiles, on a logarithmic axis.
    Percentiles,
}

/// Systems below each other, in one panel for each thing they do.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rows {
    /// What the axis shows, with its unit.
    pub(super) axis: String,
    /// Unit of the values, for tables and data.
    pub(super) unit: String,
    /// What the values of a row are, in order.
    pub(super) parts: Vec<String>,
    /// Name of the row that others are compared with.
    pub(super) baseline: Option<String>,
    /// The panels.
    pub(super) panels: Vec<Panel>,
}

/// One thing that systems do.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Panel {
    /// What they do.
    pub(super) title: String,
    /// The systems.
    pub(super) rows: Vec<Row>,
}

/// A system.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    /// Its name.
    pub(super) name: String,
    /// What it is.
    pub(super) kind: Kind,
    /// Its numbers, one for each of [`Rows::parts`].
    pub(super) values: Vec<Spread>,
    /// How many times that of [`Rows::baseline`] the first of them is, round by round; `None` if there is none, or that is nothing.
    pub(super) ratio: Option<f64>,
}

/// Lines over a parameter, in one panel for each thing that systems do.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Lines {
    /// What the horizontal axis shows, with its unit.
    pub(super) horizontal: String,
    /// Whether the parameter doubles rather than grows.
    pub(super) is_logarithmic: bool,
    /// What the vertical axis shows, with its unit.
    pub(super) vertical: String,
    /// Unit of the values, for tables and data.
    pub(super) unit: String,
    /// The panels.
    pub(super) panels: Vec<LinePanel>,
}

/// One thing that systems do.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LinePanel {
    /// What they do.
    pub(super) title: String,
    /// The systems.
    pub(super) series: Vec<Series>,
}

/// A system.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series {
    /// Its name.
    pub(super) name: String,
    /// Parameters, ascending, and numbers.
    pub(super) points: Vec<(f64, Spread)>,
}

/// What a system is, as far as figures tell it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A part of Everleaf that does what it takes to outlive the process, be it in memory that does not.
    Everleaf,
    /// Another engine that does.
    Peer,
    /// Something that does not.
    Volatile,
}

impl Kind {
    /// For the key of a figure.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Everleaf => "Everleaf",
            Self::Peer => "other engines",
            Self::Volatile => "volatile by design",
        }
    }
}

/// Numbers beyond this are none that anything measures, and places computed from them would not be finite.
const MAGNITUDE_MAX: f64 = 1e18;
/// And below this, they are nothing.
const MAGNITUDE_MIN: f64 = 1e-18;

impl Spread {
    /// Of numbers from rounds; `None` if there are none that can be drawn.
    pub(super) fn drawable(numbers: impl IntoIterator<Item = f64>) -> Option<Self> {
        let drawable = numbers.into_iter().filter(|number| (0.0..=MAGNITUDE_MAX).contains(number));
        let spread = drawable.map(|number| if number < MAGNITUDE_MIN { 0.0 } else { number }).collect::<Samples>().spread();
        (spread.rounds > 0).then_some(spread)
    }

    /// In a unit that is so many times as large.
    pub(super) fn per(self, factor: f64) -> Self {
        Self { median: self.median / factor, min: self.min / factor, max: self.max / factor, ..self }
    }
}

impl Rows {
    /// Names of systems, in the order in which they first appear.
    pub(super) fn systems(&self) -> Vec<&str> {
        unique(self.panels.iter().flat_map(|panel| &panel.rows).map(|row| row.name.as_str()))
    }
}

impl Figure {
    /// Names of systems, in the order in which they first appear.
    pub(super) fn systems(&self) -> Vec<&str> {
        match &self.chart {
            Chart::Rows(_, rows) => rows.systems(),
            Chart::Lines(lines) => unique(lines.panels.iter().flat_map(|panel| &panel.series).map(|series| series.name.as_str())),
        }
    }

    /// The data, a line each. What is not part of the kind of figure is empty.
    pub(super) fn table(&self) -> Table {
        let mut cells = Vec::new();
        let (panel, system, value) = match &self.chart {
            Chart::Rows(_, rows) => {
                for panel in &rows.panels {
                    for row in &panel.rows {
                        for (part, spread) in rows.parts.iter().zip(&row.values) {
                            cells.push(([panel.title.clone(), row.name.clone(), part.clone()], *spread));
                        }
                    }
                }
                ("what", "system", "measure")
            }
            Chart::Lines(lines) => {
                for panel in &lines.panels {
                    for series in &panel.series {
                        for (at, spread) in &series.points {
                            cells.push(([panel.title.clone(), series.name.clone(), scale::plain(*at)], *spread));
                        }
                    }
                }
                ("what", "system", lines.horizontal.as_str())
            }
        };
        Table { columns: [panel, system, value].map(String::from), unit: self.unit().into(), cells }
    }

    /// The data as CSV, with the unit in the head.
    pub(super) fn csv(&self) -> String {
        let table = self.table();
        let unit = if table.unit.is_empty() { String::new() } else { format!(" ({})", table.unit) };
        let mut text = String::new();
        let head = [table.columns.to_vec(), ["median", "min", "max"].map(|name| format!("{name}{unit}")).to_vec(), vec!["rounds".into()]].concat();
        text.push_str(&head.iter().map(|cell| csv_cell(cell)).collect::<Vec<_>>().join(","));
        text.push('\n');
        for (labels, spread) in &table.cells {
            let labels: Vec<String> = labels.iter().map(|cell| csv_cell(&cell.replace('\u{202f}', ""))).collect();
            writeln!(text, "{},{},{},{},{}", labels.join(","), spread.median, spread.min, spread.max, spread.rounds).expect("a string takes everything");
        }
        text
    }

    fn unit(&self) -> &str {
        match &self.chart {
            Chart::Rows(_, rows) => &rows.unit,
            Chart::Lines(lines) => &lines.unit,
        }
    }
}

/// Each once, in the order in which they first appear.
pub(super) fn unique<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut unique = Vec::new();
    for one in all {
        if !unique.contains(&one) {
            unique.push(one);
        }
    }
    unique
}

/// Each once, from the least on.
pub(super) fn ascending(all: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut ascending: Vec<f64> = all.into_iter().collect();
    ascending.sort_by(f64::total_cmp);
    ascending.dedup();
    ascending
}

/// The data of a figure, for people.
pub(super) struct Table {
    pub(super) columns: [String; 3],
    pub(super) unit: String,
    pub(super) cells: Vec<([String; 3], Spread)>,
}

/// A cell of CSV, quoted where it must be. A spreadsheet takes what begins with certain letters for a formula; a quote keeps it text.
fn csv_cell(text: &str) -> String {
    let text = if text.starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text.into() };
    if text.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spreads_leave_out_what_cannot_be_drawn() {
        assert_eq!(Spread::drawable([3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0, rounds: 3 }));
        assert_eq!(Spread::drawable([4.0, 1.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0, rounds: 2 }));
        assert_eq!(Spread::drawable([f64::NAN, f64::INFINITY, -1.0, 1e300, 7.0]).map(|spread| (spread.median, spread.rounds)), Some((7.0, 1)));
        assert_eq!(Spread::drawable([f64::NAN]), None);
    }

    #[test]
    fn cells_stay_cells() {
        assert_eq!(["a", "a,b", "a\"b", "=1+1", "a\nb"].map(csv_cell), ["a", "\"a,b\"", "\"a\"\"b\"", "'=1+1", "\"a\nb\""]);
    }
}
