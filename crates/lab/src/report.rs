//! The reporting half of the lab: from a result file to pictures, and to one page with all of them.
//!
//! ```text
//! DIRECTORY/report.html          everything, in one file that needs nothing else
//! DIRECTORY/figures/NAME.svg     each figure, as it is in the page
//!                   NAME.png     the same in pixels
//!                   NAME.csv     its data: medians, smallest, largest, number of rounds
//! ```
//!
//! The same results give the same bytes. Nothing in a result file is trusted: text is escaped where it is written (`svg.rs`), file names consist of letters and
//! digits, and numbers that cannot be drawn are left out (`Spread::drawable`).
//!
//! Read `figure` (what is shown), then `gather` (from measurements to figures), then `rows` and `lines` (how they are drawn).

mod figure;
mod font;
mod gather;
mod layout;
mod lines;
mod page;
mod picture;
mod rows;
mod scale;
mod style;
mod svg;
#[cfg(test)]
mod tests;

use crate::Error;
use crate::result::Results;
use std::fs;
use std::path::{Path, PathBuf};

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The page.
    pub page: PathBuf,
    /// Number of figures.
    pub figures: usize,
}

/// Writes the report of a complete or interrupted run into `directory`, which is created if necessary.
///
/// # Errors
/// Those of the file system; a figure too large for a picture.
pub fn write(results: &Results, directory: &Path) -> Result<Written, Error> {
    let figures = gather::figures(results);
    let folder = directory.join("figures");
    fs::create_dir_all(&folder).map_err(|source| Error::io("create", &folder, source))?;
    for figure in &figures {
        let path = |extension: &str| folder.join(format!("{}.{extension}", figure.name));
        save(&path("svg"), picture::svg(figure).as_bytes())?;
        save(&path("csv"), figure.csv().as_bytes())?;
        save(&path("png"), &picture::png(figure).map_err(|source| Error::io("draw", &path("png"), source))?)?;
    }
    let page = directory.join("report.html");
    save(&page, page::page(results, &figures).as_bytes())?;
    Ok(Written { page, figures: figures.len() })
}

fn save(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    fs::write(path, bytes).map_err(|source| Error::io("write", path, source))
}
