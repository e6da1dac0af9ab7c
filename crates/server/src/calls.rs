//! How long commands take: the counts of `INFO commandstats`, and the last slow commands, which SLOWLOG shows.
//!
//! Each event loop has counts of its own. The time of a command is that of all its slices, without the turns of others in between. What a transaction runs
//! again counts again. Commands that are run together share their time equally. If that is long, the first of them stands in the slow log for all.

use crate::client::Client;
use crate::command::{Arguments, Flags, Spec, TABLE};
use crate::shared::Counter;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};

/// Arguments of a command that the slow log keeps, and bytes of each, as in Redis.
const KEPT_COUNT: usize = 32;
const KEPT_SIZE: usize = 128;

/// Every command that can be called: those of [`TABLE`], in its order, then all subcommands.
static CALLED: LazyLock<Vec<&'static Spec>> = LazyLock::new(|| TABLE.iter().chain(TABLE.iter().flat_map(|spec| spec.subcommands)).collect());

/// The place of a command in [`CALLED`].
fn place_of(spec: &'static Spec) -> usize {
    let at = std::ptr::from_ref(spec).addr().wrapping_sub(TABLE.as_ptr().addr()) / size_of::<Spec>();
    let is_at = |at: usize| CALLED.get(at).is_some_and(|called| std::ptr::eq(*called, spec));
    if is_at(at) { at } else { (TABLE.len()..CALLED.len()).find(|at| is_at(*at)).expect("every command is in the table") }
}

/// What an event loop counts of a command.
#[derive(Default)]
struct Tally {
    calls: Counter,
    failed: Counter,
    nanoseconds: Counter,
}

/// Sums of tallies of a command.
#[derive(Clone, Copy, Default)]
struct Sum {
    calls: u64,
    failed: u64,
    nanoseconds: u64,
}

impl Sum {
    fn since(self, then: Self) -> Self {
        Self {
            calls: self.calls.wrapping_sub(then.calls),
            failed: self.failed.wrapping_sub(then.failed),
            nanoseconds: self.nanoseconds.wrapping_sub(then.nanoseconds),
        }
    }
}

/// See the module documentation.
pub(crate) struct Calls {
    /// Of each event loop, for each command.
    tallies: Vec<Box<[Tally]>>,
    /// The sums at the last CONFIG RESETSTAT.
    baseline: Mutex<Vec<Sum>>,
    pub(crate) slow: SlowLog,
}

impl Calls {
    pub(crate) fn new(thread_count: usize) -> Self {
        let none = || (0..CALLED.len()).map(|_| Tally::default()).collect();
        Self { tallies: (0..thread_count).map(|_| none()).collect(), baseline: Mutex::new(vec![Sum::default(); CALLED.len()]), slow: SlowLog::default() }
    }

    /// Counts calls of a command by an event loop, which took so long together.
    pub(crate) fn count(&self, thread: usize, spec: &'static Spec, calls: u64, took: Duration) {
        let tally = &self.tallies[thread][place_of(spec)];
        tally.calls.add(calls);
        tally.nanoseconds.add(took.as_nanos() as u64);
    }

    /// Counts a call that failed.
    pub(crate) fn fail(&self, thread: usize, spec: &'static Spec) {
        self.tallies[thread][place_of(spec)].failed.add(1);
    }

    /// The sums of all event loops, in the order of [`CALLED`].
    fn sums(&self) -> Vec<Sum> {
        let sum = |at: usize| {
            self.tallies.iter().map(|tallies| &tallies[at]).fold(Sum::default(), |sum, tally| Sum {
                calls: sum.calls.wrapping_add(tally.calls.get()),
                failed: sum.failed.wrapping_add(tally.failed.get()),
                nanoseconds: sum.nanoseconds.wrapping_add(tally.nanoseconds.get()),
            })
        };
        (0..CALLED.len()).map(sum).collect()
    }

    /// Counts from zero again. The counts of the loops stay, since their owners might be counting.
    pub(crate) fn reset(&self) {
        *self.baseline.lock() = self.sums();
    }

    /// The lines of `INFO commandstats`.
    pub(crate) fn describe(&self, text: &mut String) -> fmt::Result {
        // In this order: a baseline set by another loop in between would exceed the sums.
        let baseline = self.baseline.lock().clone();
        let sums = self.sums().into_iter().zip(baseline).map(|(sum, then)| sum.since(then));
        for (spec, Sum { calls, failed, nanoseconds }) in CALLED.iter().zip(sums).filter(|(_, sum)| sum.calls > 0) {
            let each = nanoseconds as f64 / 1e3 / calls as f64;
            write!(text, "cmdstat_{}:calls={calls},usec={},usec_per_call={each:.2},failed_calls={failed}\r\n", spec.name, nanoseconds / 1000)?;
        }
        Ok(())
    }
}

/// A command in progress.
pub(crate) struct Ongoing {
    pub(crate) spec: &'static Spec,
    pub(crate) arguments: Kept,
    /// The time of its slices so far.
    pub(crate) took: Duration,
}

impl Ongoing {
    /// Counts more slices, which took so long.
    pub(crate) fn go_on(&mut self, calls: &Calls, client: &Client, took: Duration) {
        self.took += took;
        calls.count(client.thread, self.spec, 0, took);
    }

    /// Notes it if it took long.
    pub(crate) fn end(self, calls: &Calls, client: &Client) {
        calls.slow.note(client, self.spec, self.took, || self.arguments);
    }
}

/// The last commands that took long.
pub(crate) struct SlowLog {
    /// In microseconds; of a negative number, none is slow.
    pub(crate) slower_than_us: AtomicI64,
    /// Most entries that are kept.
    pub(crate) length_max: AtomicUsize,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    /// The number of the next entry. It never goes back, so that who asks again can tell what is new.
    next: u64,
    /// The latest first.
    entries: VecDeque<Entry>,
}

/// A command that took long.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    /// Seconds since 1970, at its end.
    pub(crate) at_s: u64,
    pub(crate) took: Duration,
    pub(crate) arguments: Kept,
    pub(crate) address: String,
    /// Of the connection.
    pub(crate) name: Vec<u8>,
}

/// The arguments of a command, as far as the slow log keeps them.
pub(crate) type Kept = Vec<Vec<u8>>;

/// Commands with passwords among their arguments.
const SECRET: [&str; 3] = ["auth", "config|set", "hello"];

/// The first arguments of a command, and what is said of the others.
pub(crate) fn keep(spec: &Spec, arguments: Arguments<'_>) -> Kept {
    let count = arguments.len();
    if SECRET.contains(&spec.name) {
        return vec![spec.name.replace('|', " ").into_bytes(), format!("... ({} more arguments, which may be secret)", count - 1).into_bytes()];
    }
    let whole = if count > KEPT_COUNT { KEPT_COUNT - 1 } else { count };
    let mut kept: Kept = arguments.from(0).take(whole).map(clip).collect();
    if count > whole {
        kept.push(format!("... ({} more arguments)", count - whole).into_bytes());
    }
    kept
}

/// The beginning of an argument, and what is said of the rest.
pub(crate) fn clip(argument: &[u8]) -> Vec<u8> {
    match argument.split_at_checked(KEPT_SIZE) {
        Some((start, rest)) if !rest.is_empty() => [start, format!("... ({} more bytes)", rest.len()).as_bytes()].concat(),
        _ => argument.to_vec(),
    }
}

impl Default for SlowLog {
    fn default() -> Self {
        Self { slower_than_us: AtomicI64::new(10_000), length_max: AtomicUsize::new(128), log: Mutex::default() }
    }
}

impl SlowLog {
    /// Notes a command of a client if it took long; `arguments` is called only then.
    pub(crate) fn note(&self, client: &Client, spec: &Spec, took: Duration, arguments: impl FnOnce() -> Kept) {
        let slower_than = u64::try_from(self.slower_than_us.load(Ordering::Relaxed)).map(Duration::from_micros);
        if slower_than.is_ok_and(|slower_than| took >= slower_than) && !spec.flags.contains(Flags::SKIP_SLOWLOG) {
            self.add(client, took, arguments());
        }
    }

    #[cold]
    fn add(&self, client: &Client, took: Duration, arguments: Kept) {
        let at_s = UNIX_EPOCH.elapsed().map_or(0, |now| now.as_secs());
        let (address, name) = (client.address.to_string(), clip(&client.seen.lock().name));
        let Log { next, entries } = &mut *self.log.lock();
        entries.push_front(Entry { number: *next, at_s, took, arguments, address, name });
        *next += 1;
        entries.truncate(self.length_max.load(Ordering::Relaxed));
    }

    /// The last `count` entries, the latest first.
    pub(crate) fn last(&self, count: usize) -> Vec<Entry> {
        self.log.lock().entries.iter().take(count).cloned().collect()
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.log.lock().entries.len()
    }

    /// Forgets all entries.
    pub(crate) fn clear(&self) {
        self.log.lock().entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_place_of_its_own() {
        assert!(CALLED.iter().enumerate().all(|(at, spec)| place_of(spec) == at));
    }

    #[test]
    fn long_arguments_are_cut_short() {
        assert_eq!(clip(&[b'x'; KEPT_SIZE]), [b'x'; KEPT_SIZE]);
        assert_eq!(clip(&[b'x'; KEPT_SIZE + 5]), [&[b'x'; KEPT_SIZE][..], b"... (5 more bytes)"].concat());
    }
}
