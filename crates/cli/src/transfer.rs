//! Common parts of the commands that read or write streams, or a whole pool: progress, the stream's file, and the last line.

use crate::failure::Failure;
use crate::interrupt;
use crate::output::Output;
use crate::text;
use everleaf::{Passed, Store, StreamError};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Progress of a stream, or of reading everything, on standard error if that is a terminal.
pub(crate) struct Transfer {
    start: Instant,
    bar: ProgressBar,
}

impl Transfer {
    pub(crate) fn begin() -> Self {
        let style = ProgressStyle::with_template("{bar:40} {percent:>3} %  {msg}, {eta} left").unwrap_or_else(|_| ProgressStyle::default_bar());
        Self { start: Instant::now(), bar: ProgressBar::new(0).with_style(style) }
    }

    /// Shows it.
    pub(crate) fn show(&self, passed: Passed, entries_expected: u64) {
        self.show_entries(passed.entries, entries_expected);
        self.bar.set_message(format!("{} entries, {}", text::count(passed.entries), text::size(passed.content_bytes as usize)));
    }

    /// Shows how many entries of how many are done, where their sizes are unknown.
    pub(crate) fn show_entries(&self, entries: u64, entries_expected: u64) {
        self.bar.set_length(entries_expected.max(entries));
        self.bar.set_position(entries);
        self.bar.set_message(format!("{} entries", text::count(entries)));
    }

    /// Removes the bar; returns the time since the beginning.
    pub(crate) fn end(self) -> Duration {
        self.bar.finish_and_clear();
        self.start.elapsed()
    }
}

/// Prints the result: `done` is the verb.
pub(crate) fn print(done: &str, passed: Passed, time: Duration, as_json: bool) -> Result<(), Failure> {
    let mut out = Output::new();
    let Passed { namespaces, entries, content_bytes, stream_bytes } = passed;
    if as_json {
        out.json(&json!({
            "namespaces": namespaces, "entries": entries, "content_bytes": content_bytes, "stream_bytes": stream_bytes, "seconds": time.as_secs_f64(),
        }))?;
    } else {
        out.line(format!(
            "{done} {} entries of {} namespaces, {} of keys and values, in {time:.2?} ({})",
            text::count(entries),
            text::count(namespaces),
            text::size(content_bytes as usize),
            text::rate(entries, time)
        ))?;
    }
    out.flush()
}

/// Writes the namespaces `only` of a store, or all if none is named, into a file that gets its name when it is complete; or to standard output, a pipe or a
/// device.
pub(crate) fn write(store: &Store, only: &[&str], file: &Path, transfer: &Transfer) -> Result<Passed, Failure> {
    if is_standard(file) {
        return write_to(store, only, file, std::io::stdout().lock(), transfer);
    }
    // A pipe or a device takes the stream directly.
    if std::fs::metadata(file).is_ok_and(|metadata| !metadata.is_file()) {
        let out = File::options().write(true).open(file).map_err(|source| Failure::io("open", file, source))?;
        return write_to(store, only, file, out, transfer);
    }
    let mut backup = store.snapshot()?.backup_of(only, file).map_err(failure(file))?;
    while backup.advance().map_err(failure(file))? {
        interrupt::check()?;
        transfer.show(backup.passed(), backup.entries_expected());
    }
    backup.finish().map_err(failure(file))
}

fn write_to(store: &Store, only: &[&str], file: &Path, out: impl Write, transfer: &Transfer) -> Result<Passed, Failure> {
    let mut export = store.snapshot()?.export(only, out).map_err(failure(file))?;
    while export.advance().map_err(failure(file))? {
        interrupt::check()?;
        transfer.show(export.passed(), export.entries_expected());
    }
    Ok(export.finish().map_err(failure(file))?.1)
}

/// [`print`] for what was written, unless that went to standard output, which has the stream.
pub(crate) fn print_written(done: &str, passed: Passed, transfer: Transfer, file: &Path, as_json: bool) -> Result<(), Failure> {
    let time = transfer.end();
    if is_standard(file) { Ok(()) } else { print(done, passed, time, as_json) }
}

/// The file of a stream; `-` is standard input.
pub(crate) fn open(path: &Path) -> Result<Box<dyn Read>, Failure> {
    if is_standard(path) {
        return Ok(Box::new(interrupt::StandardInput));
    }
    let file = File::open(path).map_err(|source| Failure::io("open", path, source))?;
    // It could be opened, but not read, which would be noticed only after a pool has been made for it.
    if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
        return Err(Failure::io("read", path, std::io::ErrorKind::IsADirectory.into()));
    }
    Ok(Box::new(file))
}

/// Whether a path means standard input or output.
pub(crate) fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// An error of the stream at `path`.
pub(crate) fn failure(path: &Path) -> impl Fn(StreamError) -> Failure + use<'_> {
    |error| match error {
        StreamError::Stopped => Failure::Interrupted,
        // Of input that a signal has ended.
        StreamError::Io { .. } if interrupt::check().is_err() => Failure::Interrupted,
        error => Failure::Stream { path: path.to_owned(), error },
    }
}
