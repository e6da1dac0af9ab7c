//! The content of a figure, independent of drawing: the same data become a picture, a table and a file.

use super::scale;
use crate::{Samples, Spread};
use std::fmt::Write;

/// A figure, with its data.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figure {
    /// Stem of the names of its files, unique in a report.
    pub(super) name: String,
    /// What it shows.
    pub(super) title: String,
    /// The conditions, and how to read it.
    pub(super) note: String,
    /// The chart.
    pub(super) chart: Chart,
}

/// The kinds of figures.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Chart {
    /// Values of each system.
    Rows(Form, Rows),
    /// Values of each system over a parameter.
    Lines(Lines),
}

/// The meaning of the values in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A single value.
    Bars,
    /// Parts of a sum.
    Stacks,
    /// Ascending, such as percentiles, on a logarithmic axis.
    Percentiles,
}

/// Systems in rows, in one panel for each task.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rows {
    /// What the axis shows, with its unit.
    pub(super) axis: String,
    /// Unit of the values, for tables and data.
    pub(super) unit: String,
    /// Names of the values in a row, in order.
    pub(super) parts: Vec<String>,
    /// Name of the row that the others are compared with.
    pub(super) baseline: Option<String>,
    /// The panels.
    pub(super) panels: Vec<Panel>,
}

/// One task of the systems.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Panel {
    /// The task.
    pub(super) title: String,
    /// The systems.
    pub(super) rows: Vec<Row>,
}

/// A system.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    /// Its name.
    pub(super) name: String,
    /// Its kind.
    pub(super) kind: Kind,
    /// Its values, one for each of [`Rows::parts`].
    pub(super) values: Vec<Spread>,
    /// Ratio of the first value to that of [`Rows::baseline`], round by round; `None` if there is no baseline, or its value is zero.
    pub(super) ratio: Option<f64>,
}

/// Lines over a parameter, in one panel for each task.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Lines {
    /// What the horizontal axis shows, with its unit.
    pub(super) horizontal: String,
    /// Whether the parameter grows by factors rather than by steps.
    pub(super) is_logarithmic: bool,
    /// What the vertical axis shows, with its unit.
    pub(super) vertical: String,
    /// Unit of the values, for tables and data.
    pub(super) unit: String,
    /// The panels.
    pub(super) panels: Vec<LinePanel>,
}

/// One task of the systems.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LinePanel {
    /// The task.
    pub(super) title: String,
    /// The systems.
    pub(super) series: Vec<Series>,
}

/// A system.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series {
    /// Its name.
    pub(super) name: String,
    /// Parameters, ascending, with their values.
    pub(super) points: Vec<(f64, Spread)>,
}

/// The kinds of systems that figures distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A part of Everleaf that persists data, even if it lies in memory that does not outlive the process.
    Everleaf,
    /// Another engine that persists data.
    Peer,
    /// A system that does not persist data.
    Volatile,
}

impl Kind {
    /// For the legend.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Everleaf => "Everleaf",
            Self::Peer => "other engines",
            Self::Volatile => "volatile by design",
        }
    }
}

/// Larger numbers are no measurements, and positions computed from them might not be finite.
const MAGNITUDE_MAX: f64 = 1e18;
/// Smaller numbers count as zero.
const MAGNITUDE_MIN: f64 = 1e-18;

impl Spread {
    /// From the numbers of the rounds; `None` if none can be drawn.
    pub(super) fn drawable(numbers: impl IntoIterator<Item = f64>) -> Option<Self> {
        let drawable = numbers.into_iter().filter(|number| (0.0..=MAGNITUDE_MAX).contains(number));
        let spread = drawable.map(|number| if number < MAGNITUDE_MIN { 0.0 } else { number }).collect::<Samples>().spread();
        (spread.rounds > 0).then_some(spread)
    }

    /// In a unit `factor` times as large.
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

    /// The data, one line each. Columns that do not apply to this kind of figure are empty.
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

    /// The data as CSV, with the unit in the header.
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

/// Without duplicates, in the order of first appearance.
pub(super) fn unique<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut unique = Vec::new();
    for one in all {
        if !unique.contains(&one) {
            unique.push(one);
        }
    }
    unique
}

/// Without duplicates, ascending.
pub(super) fn ascending(all: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut ascending: Vec<f64> = all.into_iter().collect();
    ascending.sort_by(f64::total_cmp);
    ascending.dedup();
    ascending
}

/// The data of a figure, for readers.
pub(super) struct Table {
    pub(super) columns: [String; 3],
    pub(super) unit: String,
    pub(super) cells: Vec<([String; 3], Spread)>,
}

/// A cell of CSV, quoted where necessary. Spreadsheets interpret certain initial characters as a formula; a quote keeps it text.
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
