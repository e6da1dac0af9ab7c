//! What a run is to do. A plan stands in the header of every result file, so that the run can be done again from it.

use clap::ValueEnum;
use everleaf_pmem::Domain;
use serde::{Deserialize, Deserializer, Serialize};
use std::path::{Path, PathBuf};

/// All of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What to measure, in this order.
    pub experiments: Vec<Experiment>,
    /// Ids of the claims that are judged by what was measured.
    pub claims: Vec<String>,
    /// Rounds of each experiment; in each, all its systems take their turn.
    pub rounds: u32,
    /// Seed of keys and choices.
    pub seed: u64,
}

/// Systems that do the same work and are compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// Unique in its plan, and stable: results refer to it.
    pub id: String,
    /// One line for people: what is compared.
    pub title: String,
    /// Names of the systems.
    pub systems: Vec<String>,
    /// The system that ratios refer to; the first if not given.
    pub baseline: Option<String>,
    /// What each of them does: one or more cases, which differ in one parameter if they are to be drawn.
    pub cases: Vec<Case>,
    /// How to draw it; if that is not given, bars of throughput.
    #[serde(default, alias = "figure", deserialize_with = "one_or_more")]
    pub figures: Vec<Figure>,
}

/// Older files have one figure, or `null`.
fn one_or_more<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Figure>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Figures {
        More(Vec<Figure>),
        One(Option<Figure>),
    }
    Ok(match Figures::deserialize(from)? {
        Figures::More(figures) => figures,
        Figures::One(figure) => figure.into_iter().collect(),
    })
}

/// A workload under some parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// What is done.
    pub workload: Workload,
    /// With what.
    pub parameters: Parameters,
}

/// A sequence of phases on one instance. Every phase but an unmeasured one gives a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Name for people, and for the results.
    pub name: String,
    /// How the instance is filled before the first phase, with [`Parameters::keys`] keys; `None` if it starts empty.
    pub load: Option<Load>,
    /// What is done then, in order.
    pub phases: Vec<Phase>,
}

/// How an instance is filled before anything is measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// In what order keys come.
    pub order: Order,
    /// Share of each leaf that is full afterwards, rounded down to entries; `None`: whatever comes of inserting one after the other.
    pub fill: Option<f64>,
}

/// In what order keys are inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// By random keys.
    Random,
    /// Ascending.
    Dense,
}

/// Operations of one mix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Unique in its workload.
    pub name: String,
    /// Which operations, in which ratio.
    pub mix: Mix,
    /// Which of the keys that are there an operation takes.
    pub distribution: Distribution,
    /// How the keys look that are inserted.
    pub order: Order,
    /// Operations of all threads together; `None`: as many as there are keys, or, of scans, so many that they visit about as many.
    pub operations: Option<u64>,
    /// How operations follow each other.
    pub access: Access,
    /// How many entries a scan visits.
    #[serde(default)]
    pub lengths: Lengths,
    /// Whether memory for a new leaf of each operation is touched before: a huge page that is touched first takes as long as thousands of inserts.
    #[serde(default)]
    pub touches_ahead: bool,
    /// Whether it gives a measurement; a warm-up does not.
    pub measured: bool,
}

/// Shares of the kinds of operation, in any unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mix {
    /// Looking up a key that is there.
    pub search: f64,
    /// Looking up a key that is not there.
    pub miss: f64,
    /// Adding a key that is not there.
    pub insert: f64,
    /// Setting the value of a key that is there.
    pub update: f64,
    /// Removing a key that is there. Among other operations each thread works on a share of the keys that is its own, so that it knows which are left, and
    /// inserts bring back what it has removed.
    pub delete: f64,
    /// Visiting entries from a key on, by [`Phase::lengths`].
    pub scan: f64,
    /// Looking up a key, and setting its value to something that follows from what it was.
    pub modify: f64,
}

/// Which keys are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// All with equal chance; each once at most, in random order, if there are no more operations than keys.
    Uniform,
    /// All with equal chance in every draw, so that some come several times and others never: db_bench's.
    Random,
    /// In the order in which they came, each thread its part; of scans: one behind the other, each thread from the first key on.
    Sequential,
    /// Few very often, spread over all keys that were there before the phase, by Zipf's law over them with this exponent, 0.99 for YCSB's mixes. (YCSB itself
    /// draws from ten thousand million places and takes them modulo the number of keys, so that its first keys come less often.) In a mix with deletes each
    /// thread has its own few, and the last of its keys takes the place of one that is deleted.
    Zipfian(f64),
    /// The keys inserted last most often, by Zipf's law with this exponent.
    Latest(f64),
}

/// How many entries scans visit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lengths {
    /// [`Parameters::scan_length`].
    #[default]
    Fixed,
    /// From one to [`Parameters::scan_length`] with equal chance: YCSB's.
    Uniform,
}

/// How operations follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// The processor may begin one before the last is done.
    Independent,
    /// The key of a lookup depends on the value that the last one found.
    Dependent,
    /// So many at once, by the system's own operation for batches.
    Batch(u32),
}

/// What a workload is done with. All of it stands beside each measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// Keys that are loaded, or that the first phase inserts.
    pub keys: u64,
    /// How long a key is.
    pub key: KeyKind,
    /// Size of a value in bytes.
    pub value_bytes: u32,
    /// Threads that do the phases; loading is done by one.
    pub threads: u16,
    /// Nanoseconds added to every line written back.
    pub write_latency_ns: u64,
    /// Persistence domain, by its name; those that know none ignore it.
    pub domain: String,
    /// Where persistent data lie.
    pub memory: Memory,
    /// Entries of a scan, or the most of them.
    pub scan_length: u32,
    /// Whether pools have memory for all keys before any is inserted.
    #[serde(default)]
    pub prefault: bool,
    /// What is found out.
    pub measure: Measure,
}

impl Default for Parameters {
    /// Those of `lab run`, if nothing else is asked for.
    fn default() -> Self {
        Self {
            keys: 1_000_000,
            key: KeyKind::Integer,
            value_bytes: 8,
            threads: 1,
            write_latency_ns: 0,
            domain: Domain::Adr.name().into(),
            memory: Memory::Anonymous,
            scan_length: 100,
            prefault: false,
            measure: Measure::Time,
        }
    }
}

/// What is found out. Counting takes time, so one pass does not do both. The first paragraph of each is what the command says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Throughput and mean
    Time,
    /// Latency of each operation: mean, p50, p99, p99.9; and throughput meanwhile
    ///
    /// With a look at the clock before and after each.
    Latency,
    /// Flushes, fences, lines, 256 B units, media write amplification, divisions of leaves
    ///
    /// In one round: with one thread the same in every round and on every machine.
    Counts,
    /// Persistent memory and DRAM a key
    ///
    /// In one round, by a process of its own for each.
    Space,
    /// Time to open again after a crash and after a clean shutdown
    Recovery,
    /// Instructions, reads of memory, misses of the last cache, by callgrind, in domain page-cache
    ///
    /// In one round; nothing is written back meanwhile.
    Instructions,
}

impl Parameters {
    /// One of them in words, by its name here; prefaulting is told with the memory.
    pub(crate) fn describe(&self, name: &str) -> String {
        let Self { keys, key, value_bytes, threads, write_latency_ns, domain, memory, prefault, scan_length, .. } = self;
        match name {
            "keys" => format!("{keys} keys"),
            "threads" => format!("{threads} {}", if *threads == 1 { "thread" } else { "threads" }),
            "write_latency_ns" => format!("{write_latency_ns}\u{a0}ns added to each line written back"),
            "value_bytes" => format!("values of {value_bytes}\u{a0}B"),
            "key" => match key {
                KeyKind::Integer => "integer keys of 8\u{a0}B".into(),
                KeyKind::Bytes(bytes) => format!("string keys of {bytes}\u{a0}B"),
            },
            "domain" => format!("domain {domain}"),
            "scan_length" => format!("scans of {scan_length}"),
            _ => {
                let memory = memory.files().unwrap_or_else(|| "memory without a file".into());
                if *prefault { format!("{memory}, touched before") } else { memory }
            }
        }
    }
}

impl Measure {
    /// For people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Latency => "latency of each operation",
            Self::Counts => "counts",
            Self::Space => "space",
            Self::Recovery => "recovery",
            Self::Instructions => "instructions",
        }
    }

    /// Whether it is counted, not timed: one round is enough, as it hardly varies.
    pub(crate) fn is_counted(self) -> bool {
        matches!(self, Self::Counts | Self::Space | Self::Instructions)
    }

    /// Whether a latency of writes changes what is found out; elsewhere none is added.
    pub(crate) fn is_slowed(self) -> bool {
        matches!(self, Self::Time | Self::Latency | Self::Recovery)
    }
}

/// The shape of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyKind {
    /// Integers of 8 bytes.
    Integer,
    /// Strings of so many bytes, at least 8.
    Bytes(u16),
}

impl KeyKind {
    /// Size of a key in bytes.
    pub fn bytes(self) -> u16 {
        match self {
            Self::Integer => 8,
            Self::Bytes(size) => size,
        }
    }
}

/// Where persistent data lie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Memory {
    /// Memory without a file; systems that need files have them on `/dev/shm`.
    Anonymous,
    /// Files in this directory: what is asked for, and all that older files say. A run writes down one of the following instead.
    Directory(PathBuf),
    /// The same, those of pools on pages of 2 MiB, where that can be had.
    HugePages(PathBuf),
    /// The same, those of pools on pages as the file system makes them unasked.
    SmallPages(PathBuf),
}

impl Memory {
    /// Whether pools are to lie on pages of 2 MiB, where that can be had.
    pub(crate) fn has_huge_pages(&self) -> bool {
        !matches!(self, Self::SmallPages(_))
    }

    /// Where files lie, if they do.
    pub(crate) fn directory(&self) -> Option<&Path> {
        match self {
            Self::Anonymous => None,
            Self::Directory(path) | Self::HugePages(path) | Self::SmallPages(path) => Some(path),
        }
    }

    /// The same, for people.
    pub(crate) fn files(&self) -> Option<String> {
        let pages = if self.has_huge_pages() { "" } else { " on small pages" };
        self.directory().map(|path| format!("files in {}{pages}", path.display()))
    }
}

/// How an experiment is drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Bars, or lines.
    pub shape: Shape,
    /// The parameter along the horizontal axis, by its name in [`Parameters`]; `phase` and `system` as well, and `operations`: how many the workload has come
    /// to.
    pub horizontal: String,
    /// The metric along the vertical axis, by its name in the measurements.
    pub vertical: String,
    /// The phases that are drawn; all if empty.
    pub phases: Vec<String>,
}

/// The shape of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// A group of bars for each value of the horizontal axis, a bar for each system.
    Bars,
    /// A line for each system.
    Lines,
}
