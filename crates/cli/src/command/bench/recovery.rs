//! `everleaf bench recovery`: how long it takes to open an index again after a crash, by the number of keys and of threads, and after a clean shutdown.
//!
//! A pool that is dropped without being closed is what a crash leaves that came between two operations. Opening it is: mapping the file, walking all leaves,
//! building the router, and finding out which blocks are in use. The pages of the file are in memory.

use super::index::{Keys, find};
use super::report::{Samples, file_system, machine};
use crate::failure::Failure;
use crate::output::Output;
use crate::text;
use clap::Args;
use everleaf_conformance::Subject;
use everleaf_index::Entry;
use everleaf_pmem::{Domain, Hardware, Pool, PoolOptions};
use indicatif::ProgressBar;
use serde_json::json;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Numbers of keys
    #[arg(long, default_value = "1000000,4000000", value_delimiter = ',', value_name = "N,...", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    keys: Vec<u64>,
    /// Rounds, of which the median is printed
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Numbers of threads
    #[arg(long, default_value = "1,2", value_delimiter = ',', value_name = "N,...", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Vec<u16>,
    /// Indexes of the registry
    #[arg(long, default_value = "isle", value_delimiter = ',', value_name = "NAME,...")]
    indexes: Vec<String>,
    /// Where to put the pools; the directory for temporary files if not given
    #[arg(long, value_name = "PATH")]
    directory: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// An index with so many keys in it.
struct Row {
    name: &'static str,
    keys: u64,
    leaves: u64,
    /// Milliseconds after a crash, by number of threads.
    crashed: Vec<Samples>,
    /// Milliseconds after a clean shutdown, with one thread.
    closed: Samples,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let directory = self.directory.clone().unwrap_or_else(std::env::temp_dir);
        let mut rows = Vec::new();
        let progress = ProgressBar::new((self.indexes.len() * self.keys.len()) as u64 * u64::from(self.rounds + 1));
        for name in &self.indexes {
            let entry = find(name)?;
            if !entry.persistent {
                return Err(Failure::Usage(format!("{name} is volatile: there is nothing to recover")));
            }
            for &keys in &self.keys {
                rows.push(self.measure(&entry, keys, &directory, &progress)?);
            }
        }
        progress.finish_and_clear();
        let mut out = Output::new();
        if self.json {
            out.json(&self.as_json(&rows))?
        } else {
            self.print(&rows, &directory, &mut out)?
        }
        out.flush()
    }

    fn measure(&self, entry: &Entry<u64, Hardware>, count: u64, directory: &Path, progress: &ProgressBar) -> Result<Row, Failure> {
        let directory = tempfile::tempdir_in(directory).map_err(|source| Failure::io("create a directory in", directory, source))?;
        let path = directory.path().join("bench.pool");
        let options = PoolOptions { size_max: (count as usize * 256).max(1 << 28), domain: Some(Domain::PageCache), ..PoolOptions::default() };
        let pool = Pool::create(&path, &options)?;
        let subject = Subject::create(entry, pool)?;
        let keys = Keys { count, seed: 1 };
        for number in 0..count {
            subject.index.insert(&keys.key(number), NonZeroU64::MIN.saturating_add(number))?;
        }
        let leaves = subject.index.stats().leaves;
        drop(subject);
        progress.inc(1);

        let open = |threads: u16| {
            let start = Instant::now();
            let Subject { index, pool } = Subject::open(entry, Pool::open(&path, &options)?, threads.into())?;
            let milliseconds = start.elapsed().as_secs_f64() * 1e3;
            match index.stats().keys {
                found if found == count => Ok((pool, milliseconds)),
                found => Err(Failure::Usage(format!(
                    "{} has {found} keys instead of {count} after it was opened: it is broken, so its figures mean nothing",
                    entry.name
                ))),
            }
        };
        let mut row = Row { name: entry.name, keys: count, leaves, crashed: vec![Samples::default(); self.threads.len()], closed: Samples::default() };
        for _ in 0..self.rounds {
            for (threads, samples) in self.threads.iter().zip(&mut row.crashed) {
                // Dropped without being closed: the next one finds it crashed, too.
                samples.push(open(*threads)?.1);
            }
            open(1)?.0.close()?;
            row.closed.push(open(1)?.1);
            progress.inc(1);
        }
        Ok(row)
    }

    fn print(&self, rows: &[Row], directory: &Path, out: &mut Output) -> Result<(), Failure> {
        out.line(format!("{}; keys of 8 B, inserted at random; files on {}; medians of {} rounds", machine(), file_system(directory), self.rounds))?;
        out.line("")?;
        let heads: String = self.threads.iter().map(|threads| format!("{:>12}", format!("{threads} threads"))).collect();
        out.line(format!("{:16}{:>14}{:>12}{heads}{:>12}", "ms to open", "keys", "leaves", "closed"))?;
        for row in rows {
            let crashed: String = row.crashed.iter().map(|samples| format!("{:12.1}", samples.median())).collect();
            out.line(format!("{:16}{:>14}{:>12}{crashed}{:12.1}", row.name, text::count(row.keys), text::count(row.leaves), row.closed.median()))?;
        }
        Ok(())
    }

    fn as_json(&self, rows: &[Row]) -> serde_json::Value {
        let row = |row: &Row| {
            let crashed: Vec<_> = self.threads.iter().zip(&row.crashed).map(|(threads, samples)| json!({ "threads": threads, "ms": samples.json() })).collect();
            json!({ "index": row.name, "keys": row.keys, "leaves": row.leaves, "crashed": crashed, "closed_ms": row.closed.json() })
        };
        json!({ "machine": machine(), "rounds": self.rounds, "results": rows.iter().map(row).collect::<Vec<_>>() })
    }
}
