//! What a run leaves: lines of JSON.
//!
//! ```text
//! {"line":"header", ...}        first: what was run, on what machine
//! {"line":"memory", ...}        one for each round of an experiment in which time is measured: what memory cost then
//! {"line":"measurement", ...}   one for each phase of each round, in the order in which they were taken
//! {"line":"skipped", ...}       one for each case that a system cannot do
//! {"line":"claim", ...}         one for each claim that was to be judged
//! {"line":"end", ...}           last: whether all of it was done; without it the run was cut short, and what stands there still counts
//! ```
//!
//! Each line is written as a whole as soon as it is known, so a file is good at any moment.

use crate::Error;
use crate::plan::{Parameters, Plan};
use crate::samples::Rounds;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, Write};

/// The version of the lines; a file with another one is refused.
pub const FORMAT: u32 = 1;

/// A line of a result file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "kebab-case")]
pub enum Line {
    /// The first.
    Header(Box<Header>),
    /// What memory costs.
    Memory(MemoryCosts),
    /// Figures of one phase of one round.
    Measurement(Box<Measurement>),
    /// Something that a system cannot do.
    Skipped(Box<Skipped>),
    /// A claim, judged.
    Claim(Claim),
    /// The last.
    End(End),
}

/// What was run, and on what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub format: u32,
    /// Version of Everleaf, and, if it was built in its repository, `+` and the commit, and `.changed` if that was not all.
    pub version: String,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// Seconds since 1970.
    pub started: u64,
    /// The machine.
    pub machine: Machine,
    /// What was to be done.
    pub plan: Plan,
}

/// A machine, as far as it tells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processor.
    pub processor: String,
    /// Processors that may be used.
    pub cores: u32,
    /// Sizes of the caches in bytes, by level and kind: `L1 data`, `L2`, `L3`.
    pub caches: BTreeMap<String, u64>,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Name and version of the kernel.
    pub kernel: String,
    /// Size of a page in bytes.
    pub page_bytes: u64,
    /// When the kernel takes huge pages for anonymous memory, and for shared memory.
    pub huge_pages: String,
    /// The instruction that writes lines back.
    pub flush_instruction: String,
    /// Whether the processor has transactions (RTM).
    #[serde(default)]
    pub has_transactions: bool,
    /// What memory itself costs here, in nanoseconds: `random store`, `random store, write-back, fence`, `dependent random read of 64 B`; at the beginning, on
    /// an area about as large as the largest index. [`MemoryCosts`] stand beside the rounds.
    pub raw_ns: BTreeMap<String, f64>,
}

/// Figures of one phase of one round of one case of one system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// [`Experiment::id`](crate::plan::Experiment::id).
    pub experiment: String,
    /// Name of the system.
    pub system: String,
    /// When a write of it counts as done, in words: `each write, to memory (adr)`, `none`, `fsync of each commit`.
    pub durability: String,
    /// Size of its leaves in bytes, if it has such.
    pub leaf_bytes: Option<u32>,
    /// [`Workload::name`](crate::plan::Workload::name).
    pub workload: String,
    /// [`Phase::name`](crate::plan::Phase::name).
    pub phase: String,
    /// With what it was done.
    pub parameters: Parameters,
    /// The round, from 0.
    pub round: u32,
    /// The figures, by name. The same name has the same unit everywhere.
    pub metrics: BTreeMap<String, Metric>,
}

/// Names of metrics. Mixes of several operations have the latencies of each, too, after the name of the operation: `search p99`. Inserts by one thread, where
/// latencies or counts are asked for, have `common mean`, `common lines flushed`, `common lines flushed at most` and `common fences` of those that found room
/// in a leaf, and the same with `split` of those that divided one; `common share` and `split share` are their shares of the time.
pub mod metric {
    /// Operations of all threads per second: `op/s`.
    pub const THROUGHPUT: &str = "throughput";
    /// Time of an operation in its thread: `ns`.
    pub const MEAN: &str = "mean";
    /// Half of the operations took at most so long, each in a batch as long as the whole batch: `ns`.
    pub const P50: &str = "p50";
    /// 99 of 100 took at most so long: `ns`.
    pub const P99: &str = "p99";
    /// 999 of 1,000 took at most so long: `ns`.
    pub const P999: &str = "p99.9";
    /// Calls that write lines back, one or more: `1/op`.
    pub const FLUSHES: &str = "flushes";
    /// Lines flushed: `1/op`.
    pub const LINES_FLUSHED: &str = "lines flushed";
    /// Of the operation that has flushed the most of them: `1/op`.
    pub const LINES_MAX: &str = "lines flushed at most";
    /// Fences: `1/op`.
    pub const FENCES: &str = "fences";
    /// Different lines stored to during the phase: `1/op`.
    pub const LINES_WRITTEN: &str = "lines written";
    /// Different units of 256 bytes stored to during the phase: `1/op`.
    pub const UNITS_WRITTEN: &str = "units written";
    /// Units of 256 bytes that a modelled device writes to its medium: `1/op`.
    pub const MEDIA_UNITS: &str = "media units";
    /// Bytes that a modelled device writes to its medium, by bytes flushed: `x`.
    pub const MEDIA_AMPLIFICATION: &str = "media amplification";
    /// Leaves that were divided: `1/op`.
    pub const SPLITS: &str = "splits";
    /// Time in inserts that divided a leaf, by that in all inserts: `x`.
    pub const SPLIT_SHARE: &str = "split share";
    /// Leaves that there are after the phase: a count.
    pub const LEAVES: &str = "leaves";
    /// Entries that scans visited per second: `1/s`.
    pub const ENTRIES: &str = "entries";
    /// Times that inner nodes were built anew: a count.
    pub const REBUILDS: &str = "rebuilds";
    /// Size of the inner nodes that the first of these has built, and the last: `B`.
    pub const FIRST_REBUILD: &str = "first rebuild";
    /// See [`FIRST_REBUILD`].
    pub const LAST_REBUILD: &str = "last rebuild";
    /// Time that the last of these took, by leaves under what it has built: `ns`.
    pub const REBUILD_PER_LEAF: &str = "last rebuild per leaf";
    /// Time in which an opening after a crash has followed the list of leaves and built inner nodes over them, by leaves: `ns`.
    pub const REBUILD_FROM_LEAVES: &str = "rebuild from leaves per leaf";
    /// Attempts at a transaction of the processor that have not taken place: `1/op`. By reason: [`aborts`].
    pub const ABORTS: &str = "aborts";
    /// Operations that have gone another way, because no attempt took place: `1/op`.
    pub const FALLBACKS: &str = "fallbacks";
    /// Time in which inner nodes were built anew, by that of all operations: `x`.
    pub const REBUILD_SHARE: &str = "rebuild share";
    /// Private memory of the process: `B/key`.
    pub const DRAM: &str = "dram";
    /// Persistent memory in use: `B/key`.
    pub const POOL: &str = "pool";
    /// From the call that opens it until the first operation, a lookup, was served, after a crash: `s`.
    pub const RECOVERY: &str = "recovery";
    /// From the same call until nothing is left to be read behind operations: `s`.
    pub const RECOVERY_IN_FULL: &str = "recovery in full";
    /// From the call that opens it until the first operation, a lookup, was served, after a clean shutdown: `s`.
    pub const REOPENING: &str = "reopening";
    /// From the same call until nothing is left to be read behind operations: `s`.
    pub const REOPENING_IN_FULL: &str = "reopening in full";
    /// The 99th percentile of lookups alone, in a mix: `ns`.
    pub const SEARCH_P99: &str = "search p99";
    /// The same of updates: `ns`.
    pub const UPDATE_P99: &str = "update p99";
    /// Operations of the phases of a workload up to the end of this one: a count.
    pub const OPERATIONS: &str = "operations";
    /// Instructions of the phase: `1/op`.
    pub const INSTRUCTIONS: &str = "instructions";
    /// Reads of memory by these instructions: `1/op`.
    pub const DATA_READS: &str = "data reads";
    /// Reads and writes of data that a simulated cache, as large as the last level of the machine's, does not have: `1/op`. Nothing is written back meanwhile,
    /// so no line leaves it by that.
    pub const LAST_LEVEL_MISSES: &str = "last-level misses";

    /// Those of [`ABORTS`] that have this reason: `1/op`.
    pub fn aborts(reason: everleaf_pmem::htm::Abort) -> String {
        format!("{ABORTS}: {}", reason.name())
    }
}

/// A number and its unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// The number.
    pub value: f64,
    /// Its unit: `op/s`, `ns`, `1/op`, `B`, `B/key`, `s`, `x` for a ratio, nothing for a count.
    pub unit: String,
}

/// A case that was not run on a system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Skipped {
    /// [`Experiment::id`](crate::plan::Experiment::id).
    pub experiment: String,
    /// Name of the system.
    pub system: String,
    /// [`Workload::name`](crate::plan::Workload::name).
    pub workload: String,
    /// With what it would have been done.
    pub parameters: Parameters,
    /// Why it was not.
    pub why: String,
}

/// What a paper says, and what came out here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// Its id, such as `A3`.
    pub id: String,
    /// Where the paper says it.
    pub place: String,
    /// What it is about.
    pub what: String,
    /// The paper's figure.
    pub paper: String,
    /// Ours, or nothing.
    pub ours: String,
    /// Whether they agree.
    pub verdict: Verdict,
    /// Why.
    pub why: String,
    /// The experiments that it was judged by.
    pub experiments: Vec<String>,
}

/// Whether a claim holds here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It does.
    Agree,
    /// It does not.
    Differ,
    /// It was measured, but what is behind it is not the same here.
    CannotCompare,
    /// Something that it needs is missing.
    NotYetPossible,
}

impl Verdict {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agree => "agree",
            Self::Differ => "differ",
            Self::CannotCompare => "cannot compare",
            Self::NotYetPossible => "not yet possible",
        }
    }
}

/// How the run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Whether everything was done; false after Ctrl-C, and after a failure.
    pub complete: bool,
    /// How long it took.
    pub seconds: f64,
}

/// What memory cost at the beginning of a round, where the largest index of the experiment lies, and on an area about as large.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryCosts {
    /// [`Experiment::id`](crate::plan::Experiment::id).
    pub experiment: String,
    /// The round, from 0.
    pub round: u32,
    /// As [`Machine::raw_ns`].
    pub raw_ns: BTreeMap<String, f64>,
}

/// A whole result file.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// The header.
    pub header: Header,
    /// What memory cost, in order.
    pub memory: Vec<MemoryCosts>,
    /// All measurements, in order.
    pub measurements: Vec<Measurement>,
    /// What was left out.
    pub skipped: Vec<Skipped>,
    /// All claims, in order.
    pub claims: Vec<Claim>,
    /// The end, if the run came that far.
    pub end: Option<End>,
}

impl Line {
    /// Writes the line.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut dyn Write) -> Result<(), Error> {
        let failed = |source| Error::Io { action: "write a result".into(), source };
        let mut text = serde_json::to_vec(self).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        out.write_all(&text).and_then(|()| out.flush()).map_err(failed)
    }
}

impl Results {
    /// Those of which nothing is there yet but the header.
    pub fn new(header: Header) -> Self {
        Self { header, memory: Vec::new(), measurements: Vec::new(), skipped: Vec::new(), claims: Vec::new(), end: None }
    }

    /// Adds what a line tells, which is none of another header.
    pub fn add(&mut self, line: Line) {
        match line {
            Line::Header(header) => self.header = *header,
            Line::Memory(costs) => self.memory.push(costs),
            Line::Measurement(measurement) => self.measurements.push(*measurement),
            Line::Skipped(skipped) => self.skipped.push(*skipped),
            Line::Claim(claim) => self.claims.push(claim),
            Line::End(end) => self.end = Some(end),
        }
    }

    /// Reads a result file. A last line that was cut off is left out.
    ///
    /// # Errors
    /// [`Error::Result`] for what is no result file, or one of another format.
    pub fn read(mut from: impl BufRead) -> Result<Self, Error> {
        let (mut results, mut text) = (None::<Self>, Vec::new());
        for number in 1.. {
            text.clear();
            from.read_until(b'\n', &mut text).map_err(|source| Error::Io { action: "read a result file".into(), source })?;
            let wrong = |message: String| Error::Result { line: number, message };
            if text.is_empty() {
                break;
            }
            let line = match serde_json::from_slice(&text) {
                Ok(line) => line,
                // Whoever wrote it was stopped in its middle.
                Err(_) if results.is_some() && text.last() != Some(&b'\n') => break,
                Err(error) => return Err(wrong(told(&error))),
            };
            match (&mut results, line) {
                (None, Line::Header(found)) if found.format == FORMAT => results = Some(Self::new(*found)),
                (None, Line::Header(found)) => return Err(wrong(format!("format {} instead of {FORMAT}", found.format))),
                (None, _) => return Err(wrong("the first line is not a header".into())),
                (Some(_), Line::Header(_)) => return Err(wrong("a second header".into())),
                (Some(results), line) => results.add(line),
            }
        }
        results.ok_or(Error::Result { line: 1, message: "the file is empty".into() })
    }

    /// What memory cost by that name in each round of an experiment; or, if that has none, at the beginning, as if in each. `None` if it was not measured.
    pub(crate) fn memory_costs(&self, experiment: &str, name: &str) -> Option<Rounds> {
        let of = self.memory.iter().filter(|costs| costs.experiment == experiment);
        let measured: Rounds = of.filter_map(|costs| Some((costs.round, *costs.raw_ns.get(name)?))).collect();
        if measured != Rounds::default() {
            return Some(measured);
        }
        let first = *self.header.machine.raw_ns.get(name)?;
        Some((0..self.header.plan.rounds).map(|round| (round, first)).collect())
    }
}

/// What is wrong with a line. Its number in the file is told beside; serde counts lines from the start of what it was given, which is one line.
fn told(error: &serde_json::Error) -> String {
    let message = error.to_string();
    match message.strip_suffix(&format!(" at line {} column {}", error.line(), error.column())) {
        Some(what) => format!("{what}, at column {}", error.column()),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Access, Case, Distribution, Experiment, KeyKind, Lengths, Load, Memory, Mix, Order, Phase, Workload};

    fn parameters() -> Parameters {
        let (key, memory) = (KeyKind::Bytes(20), Memory::Directory("/dev/shm".into()));
        Parameters { keys: 1000, key, threads: 2, write_latency_ns: 300, memory, ..Parameters::default() }
    }

    fn lines() -> Vec<Line> {
        let phase = Phase {
            name: "insert".into(),
            mix: Mix { insert: 1.0, ..Mix::default() },
            distribution: Distribution::Zipfian(0.99),
            order: Order::Random,
            operations: Some(7),
            access: Access::Batch(16),
            lengths: Lengths::Uniform,
            touches_ahead: true,
            measured: true,
        };
        let workload = Workload { name: "micro".into(), load: Some(Load { order: Order::Dense, fill: Some(0.7) }), phases: vec![phase] };
        let cases = vec![Case { workload, parameters: parameters() }];
        let experiment = Experiment { id: "one".into(), title: "One".into(), systems: vec!["isle".into()], baseline: None, cases, figures: Vec::new() };
        let plan = Plan { experiments: vec![experiment], claims: vec!["A1".into()], rounds: 5, seed: 1 };
        let header = Header { format: FORMAT, version: "0".into(), command: vec!["lab".into()], started: 1, machine: Machine::default(), plan };
        let measurement = Measurement {
            experiment: "one".into(),
            system: "isle".into(),
            durability: "none".into(),
            leaf_bytes: Some(512),
            workload: "micro".into(),
            phase: "insert".into(),
            parameters: parameters(),
            round: 0,
            metrics: BTreeMap::from([(metric::MEAN.into(), Metric { value: 0.1 + 0.2, unit: "ns".into() })]),
        };
        let claim = Claim {
            id: "A1".into(),
            place: "Fig. 7a".into(),
            what: "insert".into(),
            paper: "1".into(),
            ours: "2".into(),
            verdict: Verdict::CannotCompare,
            why: "so".into(),
            experiments: vec!["one".into()],
        };
        let skipped = Skipped { experiment: "one".into(), system: "lb".into(), workload: "micro".into(), parameters: parameters(), why: "so".into() };
        let end = End { complete: false, seconds: 0.5 };
        let costs = MemoryCosts { experiment: "one".into(), round: 0, raw_ns: BTreeMap::from([("random store".into(), 10.5)]) };
        vec![
            Line::Header(Box::new(header)),
            Line::Memory(costs),
            Line::Measurement(Box::new(measurement)),
            Line::Skipped(Box::new(skipped)),
            Line::Claim(claim),
            Line::End(end),
        ]
    }

    fn written(lines: &[Line]) -> Vec<u8> {
        let mut text = Vec::new();
        lines.iter().for_each(|line| line.write(&mut text).unwrap());
        text
    }

    #[test]
    fn lines_come_back_as_they_were() {
        let lines = lines();
        let Results { header, memory, measurements, skipped, claims, end } = Results::read(written(&lines).as_slice()).unwrap();
        let mut read = vec![Line::Header(Box::new(header))];
        read.extend(memory.into_iter().map(Line::Memory));
        read.extend(measurements.into_iter().map(|measurement| Line::Measurement(Box::new(measurement))));
        read.extend(skipped.into_iter().map(|skipped| Line::Skipped(Box::new(skipped))));
        read.extend(claims.into_iter().map(Line::Claim));
        read.extend(end.map(Line::End));
        assert_eq!(read, lines);
    }

    #[test]
    fn a_file_that_was_cut_off_is_read_up_to_there() {
        let lines = lines();
        let (whole, first) = (written(&lines), written(&lines[..1]).len());
        for length in 0..whole.len() {
            match Results::read(&whole[..length]) {
                Ok(results) => {
                    assert!(length + 1 >= first, "{length} bytes are less than a header");
                    let ends = whole[..length].iter().filter(|byte| **byte == b'\n').count();
                    // A line that lacks only its end is whole.
                    let read = 1
                        + results.memory.len()
                        + results.measurements.len()
                        + results.skipped.len()
                        + results.claims.len()
                        + usize::from(results.end.is_some());
                    assert!(read == ends || (read == ends + 1 && whole[length] == b'\n'), "{read} lines of {ends}");
                }
                Err(Error::Result { line: 1, .. }) => assert!(length < first, "{length} bytes"),
                Err(other) => panic!("{length} bytes: {other}"),
            }
        }
    }

    #[test]
    fn other_formats_and_other_files_are_refused() {
        let mut lines = lines();
        let damaged = [written(&lines[..2]), b"{\"line\":\"end\"}\n".to_vec()].concat();
        let refused = Results::read(damaged.as_slice()).unwrap_err();
        assert!(matches!(refused, Error::Result { line: 3, .. }) && !refused.to_string().contains("line 1"), "{refused}");
        assert!(matches!(Results::read(written(&lines[1..]).as_slice()), Err(Error::Result { line: 1, .. })));
        if let Line::Header(header) = &mut lines[0] {
            header.format += 1;
        }
        assert!(matches!(Results::read(written(&lines).as_slice()), Err(Error::Result { line: 1, .. })));
    }
}
