//! `everleaf bench index`: indexes on uniform random, unique keys of 8 bytes, beside the raw costs of memory and the volatile baseline.

use super::raw::Raw;
use super::report::{Aim, Limit, Samples, file_system, machine};
use crate::failure::Failure;
use crate::output::Output;
use crate::text;
use clap::Args;
use everleaf_index::{Direction, Entry, OrderedIndex, registry};
use everleaf_pmem::{Domain, Hardware, Pool, PoolOptions};
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};
use std::num::NonZeroU64;
use std::ops::{Bound, ControlFlow, Range};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// Name of the baseline in the registry.
const BASELINE: &str = "volatile";
/// Entries that a scan visits.
const SCAN_COUNT: usize = 100;
/// The largest area on which the memory is measured, in lines: 512 MiB.
const RAW_LINES_MAX: usize = 8 << 20;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Number of keys
    #[arg(long, default_value_t = 10_000_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
    keys: u64,
    /// Rounds, of which the median is printed
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Numbers of threads
    #[arg(long, default_value = "1,2", value_delimiter = ',', value_name = "N,...", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Vec<u16>,
    /// Indexes of the registry; the volatile baseline is always measured
    #[arg(long, default_value = "isle", value_delimiter = ',', value_name = "NAME,...")]
    indexes: Vec<String>,
    /// Persistence domains
    #[arg(long, default_value = "page-cache,adr", value_delimiter = ',', value_name = "NAME,...")]
    domains: Vec<Domain>,
    /// Put the pools in files of this directory instead of anonymous memory
    #[arg(long, value_name = "PATH")]
    directory: Option<PathBuf>,
    /// Seed of the keys
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Insert,
    Lookup,
    Scan,
    Update,
    Delete,
}

const PHASES: [(Phase, &str); 5] =
    [(Phase::Insert, "insert"), (Phase::Lookup, "lookup"), (Phase::Scan, "scan-100"), (Phase::Update, "update"), (Phase::Delete, "delete")];

/// An index in a domain, with a number of threads.
struct Candidate {
    entry: Entry<u64, Hardware>,
    domain: Domain,
    threads: u16,
    /// Nanoseconds of an operation, by phase.
    times: [Samples; PHASES.len()],
}

impl Candidate {
    fn name(&self) -> String {
        if self.entry.persistent { format!("{} {}", self.entry.name, self.domain) } else { self.entry.name.to_owned() }
    }

    fn median(&self, phase: Phase) -> f64 {
        PHASES.iter().position(|(other, _)| *other == phase).map_or(f64::NAN, |at| self.times[at].median())
    }
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut candidates = self.candidates()?;
        let mut raw = Raw::default();
        let progress = ProgressBar::new(u64::from(self.rounds) * (candidates.len() as u64 + 1));
        for round in 0..self.rounds {
            raw.measure(&self.pool(Domain::Adr)?.1, self.raw_lines(), self.keys.min(2_000_000) as usize, self.seed + u64::from(round))?;
            progress.inc(1);
            for candidate in &mut candidates {
                self.measure(candidate)?;
                progress.inc(1);
            }
        }
        progress.finish_and_clear();
        let aims = aims(&candidates, &raw);
        let mut out = Output::new();
        if self.json {
            out.json(&self.as_json(&candidates, &raw, &aims))?
        } else {
            self.print(&candidates, &raw, &aims, &mut out)?
        }
        out.flush()
    }

    /// The baseline and the chosen indexes, with each number of threads.
    fn candidates(&self) -> Result<Vec<Candidate>, Failure> {
        let mut candidates = Vec::new();
        for &threads in &self.threads {
            let mut add = |name: &str, domain| {
                candidates.push(Candidate { entry: find(name)?, domain, threads, times: Default::default() });
                Ok::<_, Failure>(())
            };
            add(BASELINE, Domain::PageCache)?;
            for name in self.indexes.iter().filter(|name| *name != BASELINE) {
                for &domain in &self.domains {
                    add(name, domain)?;
                }
            }
        }
        Ok(candidates)
    }

    /// About as much memory as an index takes, so that the caches of the processor help as little.
    fn raw_lines(&self) -> usize {
        (self.keys as usize / 2).clamp(1 << 10, RAW_LINES_MAX)
    }

    /// An empty pool, and the directory that must live as long, if it is in one.
    fn pool(&self, domain: Domain) -> Result<(Option<tempfile::TempDir>, Arc<Pool>), Failure> {
        let size_max = (self.keys as usize * 256).max(self.raw_lines() * 2 * everleaf_pmem::LINE).max(1 << 28);
        let options = PoolOptions { size_max, domain: Some(domain), ..PoolOptions::default() };
        let Some(directory) = &self.directory else { return Ok((None, Pool::anonymous(Hardware::new(domain), options)?)) };
        let directory = tempfile::tempdir_in(directory).map_err(|source| Failure::io("create a directory in", directory, source))?;
        let pool = Pool::create(&directory.path().join("bench.pool"), &options)?;
        Ok((Some(directory), pool))
    }

    /// One round of a candidate: all phases on a new index.
    fn measure(&self, candidate: &mut Candidate) -> Result<(), Failure> {
        let (_directory, pool) = self.pool(candidate.domain)?;
        let index = candidate.entry.create(&pool, "bench")?;
        let keys = Keys { count: self.keys, seed: self.seed };
        for (at, (phase, _)) in PHASES.into_iter().enumerate() {
            let operations = if phase == Phase::Scan { (self.keys / SCAN_COUNT as u64).max(100) } else { self.keys };
            let threads = u64::from(candidate.threads);
            let start = Instant::now();
            thread::scope(|scope| {
                let part = |thread: u64| operations * thread / threads..operations * (thread + 1) / threads;
                let run = |thread| (part(thread), index.as_ref());
                let others: Vec<_> = (1..threads).map(run).map(|(part, index)| scope.spawn(move || run_phase(phase, index, keys, part))).collect();
                let (own, index) = run(0);
                let outcome = run_phase(phase, index, keys, own);
                others.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).fold(outcome, Result::and)
            })?;
            candidate.times[at].push(start.elapsed().as_nanos() as f64 * threads as f64 / operations as f64);
        }
        match index.stats().keys {
            0 => Ok(()),
            left => Err(Failure::Usage(format!("{} has {left} keys after all were deleted: it is broken, so its figures mean nothing", candidate.name()))),
        }
    }

    fn setting(&self) -> String {
        let memory = self.directory.as_ref().map_or_else(|| "anonymous memory".into(), |path| format!("files on {}", file_system(path)));
        format!("{}; {} random unique keys of 8 B, values of 8 B; {memory}; medians of {} rounds", machine(), text::count(self.keys), self.rounds)
    }

    fn print(&self, candidates: &[Candidate], raw: &Raw, aims: &[Aim], out: &mut Output) -> Result<(), Failure> {
        out.line(self.setting())?;
        out.line("")?;
        out.line("raw cost, ns")?;
        for (name, samples) in raw.rows() {
            out.line(format!("{:32} {:8.1}", name, samples.median()))?;
        }
        out.line("")?;
        let heads: String = PHASES.iter().map(|(_, name)| format!("{name:>10}")).collect();
        out.line(format!("{:24}{:>8}{heads}", "ns per operation and thread", "threads"))?;
        for candidate in candidates {
            let times: String = candidate.times.iter().map(|samples| format!("{:10.1}", samples.median())).collect();
            out.line(format!("{:27} {:>7}{times}", candidate.name(), candidate.threads))?;
        }
        out.line("")?;
        aims.iter().try_for_each(|aim| aim.print(out))
    }

    fn as_json(&self, candidates: &[Candidate], raw: &Raw, aims: &[Aim]) -> Value {
        let results: Vec<_> = candidates
            .iter()
            .map(|candidate| {
                let times: Map<_, _> = PHASES.iter().zip(&candidate.times).map(|((_, name), samples)| ((*name).to_owned(), samples.json())).collect();
                let domain = candidate.entry.persistent.then(|| candidate.domain.name());
                json!({ "index": candidate.entry.name, "domain": domain, "threads": candidate.threads, "ns_per_operation_and_thread": times })
            })
            .collect();
        let aims: Vec<_> = aims.iter().map(Aim::json).collect();
        json!({ "setting": self.setting(), "keys": self.keys, "rounds": self.rounds, "raw": raw.json(), "results": results, "aims": aims })
    }
}

/// The index of that name.
pub(super) fn find(name: &str) -> Result<Entry<u64, Hardware>, Failure> {
    let mut entries = registry::<u64, Hardware>();
    match entries.iter().position(|entry| entry.name == name) {
        Some(at) => Ok(entries.swap_remove(at)),
        None => {
            let names: Vec<_> = entries.iter().map(|entry| entry.name).collect();
            Err(Failure::Usage(format!("no index is called {name:?}; there are: {}", names.join(", "))))
        }
    }
}

/// The keys of a run: `count` of them, each by its number.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    pub(super) count: u64,
    pub(super) seed: u64,
}

impl Keys {
    /// Key number `number`: a bijective mix, so that keys are unique and look uniformly random.
    pub(super) fn key(self, number: u64) -> u64 {
        let mut key = number.wrapping_add(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        key = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        key = (key ^ key >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        key ^ key >> 31
    }

    /// The numbers in another order than they were inserted in: multiplied by a prime, modulo their count.
    fn shuffled(self, number: u64) -> u64 {
        const PRIME: u64 = 2_654_435_761;
        (u128::from(number) * u128::from(PRIME) % u128::from(self.count)) as u64
    }
}

/// Does a thread's part of a phase, and checks the answers.
fn run_phase(phase: Phase, index: &dyn OrderedIndex<u64>, keys: Keys, part: Range<u64>) -> Result<(), Failure> {
    let value = |number: u64| NonZeroU64::MIN.saturating_add(number);
    // Another value: an index may see that nothing changes.
    let updated = |number: u64| value(number).saturating_add(keys.count);
    let mut wrong = 0_u64;
    for number in part {
        let other = keys.shuffled(number % keys.count);
        wrong += u64::from(match phase {
            Phase::Insert => index.insert(&keys.key(number), value(number))?.is_some(),
            Phase::Lookup => index.get(&keys.key(other))? != Some(value(other)),
            Phase::Scan => {
                let mut visited = 0;
                index.scan(Bound::Included(&keys.key(other)), Direction::Forward, &mut |_, _| {
                    visited += 1;
                    if visited < SCAN_COUNT { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                })?;
                visited == 0
            }
            Phase::Update => index.update(&keys.key(other), updated(other))? != Some(value(other)),
            Phase::Delete => index.remove(&keys.key(other))? != Some(updated(other)),
        });
    }
    match wrong {
        0 => Ok(()),
        wrong => Err(Failure::Usage(format!("{wrong} answers to {phase:?} were wrong, so the figures mean nothing"))),
    }
}

/// What one thread is to reach.
fn aims(candidates: &[Candidate], raw: &Raw) -> Vec<Aim> {
    let single: Vec<_> = candidates.iter().filter(|candidate| candidate.threads == 1).collect();
    let Some(baseline) = single.iter().find(|candidate| !candidate.entry.persistent) else { return Vec::new() };
    let (flushed_line, read) = (raw.flushed_line.median(), raw.dependent_read.median());
    let mut aims = Vec::new();
    for candidate in single.iter().filter(|candidate| candidate.entry.persistent) {
        let mut aim = |what: &str, ratio, limit| aims.push(Aim { what: format!("{}: {what}", candidate.name()), ratio, limit });
        let (insert, lookup) = (candidate.median(Phase::Insert), candidate.median(Phase::Lookup));
        aim("lookup / dependent random read of 64 B", lookup / read, Limit::AtMost(1.7));
        match candidate.domain {
            Domain::Adr => {
                let floor = baseline.median(Phase::Insert) + 2.0 * flushed_line;
                aim("insert / (volatile insert + 2 flushed lines)", insert / floor, Limit::AtMost(1.25));
            }
            Domain::PageCache => {
                aim("inserts per second / volatile", baseline.median(Phase::Insert) / insert, Limit::AtLeast(0.8));
                aim("lookups per second / volatile", baseline.median(Phase::Lookup) / lookup, Limit::AtLeast(0.8));
            }
            Domain::Eadr | Domain::Msync => {}
        }
    }
    aims
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_are_unique_in_either_order() {
        let keys = Keys { count: 10_000, seed: 3 };
        assert_eq!((0..keys.count).map(|number| keys.key(number)).collect::<BTreeSet<_>>().len(), 10_000);
        assert_eq!((0..keys.count).map(|number| keys.shuffled(number)).collect::<BTreeSet<_>>().len(), 10_000);
    }
}
