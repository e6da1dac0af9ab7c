//! `everleaf load`: keys and values from a file or standard input.
//!
//! One thread reads and parses (`input.rs`), the others write (`writer.rs`). A line that cannot be loaded is reported by its number; the rest is loaded
//! nevertheless, unless `--strict` asks to stop there. A line that has expired already is not bad: afterwards its key is absent, as if the line had been loaded
//! in time.

mod input;
mod line_starts;
mod writer;

use crate::entry::Entry;
use crate::failure::Failure;
use crate::interrupt;
use crate::options::{DEFAULT_NAMESPACE, IndexArgument, PoolArguments, namespace_name};
use crate::output::{Output, say};
use crate::text;
use crate::transfer;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use input::{Columns, Input, check};
use serde_json::json;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use writer::{Writers, Written};

/// Number of bad lines that are reported individually; all are counted.
const REPORTED_COUNT_MAX: u64 = 20;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: PoolArguments,
    #[command(flatten)]
    index: IndexArgument,
    /// Namespace of all lines, whatever they name; without it, each line's own, or "0" if it names none
    #[arg(long, short, value_name = "NAME", value_parser = namespace_name)]
    namespace: Option<String>,
    /// The file; - is standard input
    file: PathBuf,
    /// Format of the lines; by default that of the file name's extension, else tsv. tsv: fields separated by tabs, no quoting. csv: as in RFC 4180. ndjson: as
    /// printed by dump
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// The first line of TSV or CSV names the columns
    #[arg(long)]
    header: bool,
    /// Column of the keys: its number from 1, or its name in the header
    #[arg(long, default_value = "1", value_name = "COLUMN")]
    key_column: String,
    /// Column of the values
    #[arg(long, default_value = "2", value_name = "COLUMN")]
    value_column: String,
    /// Stop at the first bad line; lines before it have been loaded
    #[arg(long)]
    strict: bool,
    /// Number of writing threads
    #[arg(long, default_value_t = default_threads(), value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

fn default_threads() -> u16 {
    thread::available_parallelism().map_or(1, |count| count.get().min(4) as u16)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Tsv,
    Csv,
    Ndjson,
}

/// Counts of what has been read so far.
#[derive(Default)]
struct Tally {
    loaded: u64,
    bad: u64,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let progress = progress_bar(&self.file);
        let source = progress.wrap_read(transfer::open(&self.file)?);
        let mut input = self.input(source)?;
        let mut tally = Tally::default();
        let written = Written::default();
        let time = self.pool.with_store_or_new(&self.index, |store| {
            let start = Instant::now();
            let outcome = thread::scope(|scope| {
                let mut writers = Writers::start(scope, store, usize::from(self.threads), &written);
                let read = self.read(&mut input, &mut writers, &mut tally, &progress);
                // What the writers have received is written in any case.
                writers.finish().and(read)
            });
            progress.finish_and_clear();
            if let Err(Failure::Store(_) | Failure::Interrupted) = outcome {
                // Parts of a batch that failed may be there, too.
                let (written, read) = (text::count(written.entries()), text::count(tally.loaded));
                say(format_args!("{}: at least {written} of the first {read} good lines are loaded", self.file.display()));
            }
            match outcome {
                // It was asked to stop there.
                Ok(()) | Err(Failure::No) => Ok(start.elapsed()),
                Err(failure) => Err(failure),
            }
        })?;
        self.print(&tally, written.expired(), time)?;
        if tally.bad == 0 { Ok(()) } else { Err(Failure::No) }
    }

    fn input<R: Read>(&self, source: R) -> Result<Input<BufReader<R>>, Failure> {
        let source = BufReader::with_capacity(1 << 20, source);
        let format = self.format.unwrap_or_else(|| match self.file.extension().and_then(|extension| extension.to_str()) {
            Some("csv") => Format::Csv,
            Some("ndjson" | "jsonl" | "json") => Format::Ndjson,
            _ => Format::Tsv,
        });
        let columns = Columns { header: self.header, key: &self.key_column, value: &self.value_column };
        match format {
            Format::Ndjson if self.header || self.key_column != "1" || self.value_column != "2" => {
                Err(Failure::Usage("NDJSON has no columns: leave out --header, --key-column and --value-column, or say what the lines are by --format".into()))
            }
            Format::Ndjson => Ok(Input::ndjson(source)),
            Format::Tsv => Input::separated(source, b'\t', false, columns),
            Format::Csv => Input::separated(source, b',', true, columns),
        }
    }

    /// Reads to the end, or to the first bad line with `--strict`.
    fn read<R: Read>(&self, input: &mut Input<BufReader<R>>, writers: &mut Writers<'_>, tally: &mut Tally, progress: &ProgressBar) -> Result<(), Failure> {
        loop {
            let next = input.next(&self.file);
            interrupt::check()?;
            let Some((number, line)) = next? else { break };
            let of_this = |line: Entry| Entry { namespace: line.namespace.filter(|_| self.namespace.is_none()), ..line };
            let expect_namespace = |line: Entry| match &line.namespace {
                Some(name) => writers.expect_namespace(name).map(|()| line).map_err(|error| error.to_string()),
                None => Ok(line),
            };
            let line = match line.map(of_this).and_then(check).and_then(expect_namespace) {
                Ok(line) => line,
                Err(what) => {
                    tally.bad += 1;
                    if tally.bad <= REPORTED_COUNT_MAX {
                        progress.suspend(|| say(format_args!("{}:{number}: {what}", self.file.display())));
                    }
                    if self.strict {
                        let (file, loaded) = (self.file.display(), text::count(tally.loaded));
                        progress.suspend(|| say(format_args!("{file}: stopped there; the {loaded} lines before it are loaded")));
                        return Err(Failure::No);
                    }
                    continue;
                }
            };
            writers.write(line, self.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE))?;
            tally.loaded += 1;
            if tally.loaded.is_multiple_of(1 << 12) {
                progress.set_message(format!("{} lines, {}", text::count(tally.loaded), text::rate(tally.loaded, progress.elapsed())));
            }
        }
        Ok(())
    }

    fn print(&self, tally: &Tally, expired: u64, time: Duration) -> Result<(), Failure> {
        if tally.bad > REPORTED_COUNT_MAX {
            say(format_args!("{}: {} more bad lines", self.file.display(), text::count(tally.bad - REPORTED_COUNT_MAX)));
        }
        let mut out = Output::new();
        if self.json {
            out.json(&json!({ "loaded": tally.loaded, "expired": expired, "bad": tally.bad, "seconds": time.as_secs_f64() }))?;
        } else {
            let besides = |count, what| if count == 0 { String::new() } else { format!(", {} {what}", text::count(count)) };
            let (expired, bad) = (besides(expired, "of them have expired"), besides(tally.bad, "bad lines left out"));
            let lines = if tally.loaded == 1 { "line" } else { "lines" };
            out.line(format!("loaded {} {lines} in {time:.2?} ({}){expired}{bad}", text::count(tally.loaded), text::rate(tally.loaded, time)))?;
        }
        out.flush()
    }
}

/// A bar for a file, whose length is known; a spinner for a stream. Neither shows when standard error is not a terminal.
fn progress_bar(path: &Path) -> ProgressBar {
    let length = std::fs::metadata(path).ok().filter(|metadata| metadata.is_file()).map(|metadata| metadata.len());
    let (progress, template) = match length {
        Some(length) => (ProgressBar::new(length), "{bar:40} {percent:>3} %  {bytes} of {total_bytes}, {msg}, {eta} left"),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes}, {msg}"),
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    progress.with_style(style)
}
