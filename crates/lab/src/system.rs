//! What is measured: anything that keeps values by key.
//!
//! The driver speaks bytes. A key is [`KeyKind::Integer`](crate::plan::KeyKind) (8 bytes, big-endian, so that bytes are ordered as the integers are) or a
//! string; a value is bytes, never empty. A system that keeps integers decodes them, which costs one instruction.
//!
//! ```text
//! System   what there is to choose from, by name        one per variant
//! Instance one store with data in it                    created for every case of every round
//! Handle   what one thread does with it                 made by that thread
//! ```

mod index;
mod medium;
mod server;
mod store;

use crate::Error;
use crate::plan::{KeyKind, Measure};
use everleaf_index::Rebuilds;
use everleaf_pmem::htm::Statistics;
use everleaf_pmem::{Counters, Domain, Pool};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::slice::ChunksExact;
use std::sync::Arc;
use std::time::Duration;

/// Something that can be measured.
pub trait System: Send + Sync {
    /// Name by which it is chosen: unique, short, without blanks.
    fn name(&self) -> &str;

    /// One line for people.
    fn summary(&self) -> String;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// When a write counts as done under `setting`, in words: what a crash can take back.
    fn durability(&self, setting: &Setting) -> String;

    /// Creates an empty instance.
    ///
    /// # Errors
    /// A setting that it cannot serve; no space; whatever else hinders it.
    fn create(&self, setting: &Setting) -> Result<Box<dyn Instance>, Error>;
}

/// What a system can do. A case that needs more is not run, and the results say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// It has scans in order of keys.
    pub scans: bool,
    /// It outlives the process.
    pub persistent: bool,
    /// Several threads may write at once.
    pub threads: bool,
    /// It counts flushes, fences and lines.
    pub counts: bool,
    /// It can be slowed down by a latency of writes.
    pub write_latency: bool,
    /// It takes keys that are not 8 bytes, and values that are not.
    pub any_size: bool,
    /// Size of its leaves in bytes, if it has such; then it can be loaded in bulk.
    pub leaf_bytes: Option<u32>,
    /// All that it does is done by the thread that calls it.
    pub alone: bool,
    /// Each operation is a request through a socket.
    pub by_requests: bool,
    /// It is about transactions of the processor, and this one has none.
    pub lacks_transactions: bool,
    /// It is created in a directory only.
    pub needs_files: bool,
}

impl Capabilities {
    /// Lookups and changes by one thread, in memory, of keys and values of 8 bytes.
    pub const NONE: Self = Self {
        scans: false,
        persistent: false,
        threads: false,
        counts: false,
        write_latency: false,
        any_size: false,
        leaf_bytes: None,
        alone: false,
        by_requests: false,
        lacks_transactions: false,
        needs_files: false,
    };
}

/// What an instance is created for.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Keys that it will hold at most.
    pub keys_max: u64,
    /// The shape of keys.
    pub key: KeyKind,
    /// Size of values in bytes.
    pub value_bytes: u32,
    /// Threads that will use it.
    pub threads: u16,
    /// Persistence domain, for those that know such.
    pub domain: Domain,
    /// Nanoseconds added to every line written back, for those that can.
    pub write_latency_ns: u64,
    /// An empty directory of its own, which lives longer than the instance; `None`: memory without a file, for those that do not need any.
    pub directory: Option<PathBuf>,
    /// Whether its files are to lie on pages of 2 MiB, for those that know of such.
    pub huge_pages: bool,
    /// Whether it is to have memory for all keys before it is used, for those that can.
    pub prefault: bool,
    /// What is found out.
    pub measure: Measure,
}

impl Default for Setting {
    /// One thread, and memory without a file.
    fn default() -> Self {
        Self {
            keys_max: 1_000_000,
            key: KeyKind::Integer,
            value_bytes: 8,
            threads: 1,
            domain: Domain::Adr,
            write_latency_ns: 0,
            directory: None,
            huge_pages: false,
            prefault: false,
            measure: Measure::Time,
        }
    }
}

/// A store with data in it.
pub trait Instance: Send + Sync {
    /// What the calling thread uses it by.
    ///
    /// # Errors
    /// Whatever hinders it.
    fn handle(&self) -> Result<Box<dyn Handle + '_>, Error>;

    /// Fills it, empty as it is, with entries in ascending order, and its leaves to the share `fill`.
    ///
    /// # Errors
    /// [`Error::Missing`] if it has no leaves.
    fn bulk_load(&self, _entries: &mut Entries<'_>, _fill: f64) -> Result<(), Error> {
        Err(Error::Missing { system: "what has no leaves".into(), operation: "filling them" })
    }

    /// What it takes.
    ///
    /// # Errors
    /// Whatever hinders it.
    fn space(&self) -> Result<Space, Error>;

    /// What passes to persistent memory; `None` unless it was created for [`Measure::Counts`].
    fn counters(&self) -> Option<&Counters> {
        None
    }

    /// Touches the persistent memory that so many new leaves will take, if it has leaves, so that nobody waits for the system to find pages for them.
    ///
    /// # Errors
    /// Whatever hinders it.
    fn touch_ahead(&self, _leaves: u64) -> Result<(), Error> {
        Ok(())
    }

    /// What has happened so far, cheap enough to be asked after every operation, so that operations that divide a leaf can be told from others. `None` if that
    /// cannot be told. Without [`Measure::Counts`] neither lines nor fences are counted.
    fn marks(&self) -> Option<Marks> {
        None
    }

    /// Returns when nothing is left to be done of what opening has left for later.
    fn settle(&self) {}

    /// Ends it in this way, without any handle left, and opens it again with so many threads. Its data must be in a directory.
    ///
    /// # Errors
    /// [`Error::Missing`] if it does not outlive the process.
    fn reopen(self: Box<Self>, shutdown: Shutdown, threads: u16) -> Result<Reopened, Error>;
}

/// Entries for [`Instance::bulk_load`].
pub type Entries<'a> = dyn Iterator<Item = (Vec<u8>, Vec<u8>)> + 'a;

/// How an instance ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// As by a crash of the process: nothing is written any more.
    Crash,
    /// In good order.
    Close,
}

/// An instance that was opened again.
pub struct Reopened {
    /// It.
    pub instance: Box<dyn Instance>,
    /// How long opening took, until the first operation can be served. To serve it is added by whoever opens it.
    pub time: Duration,
}

/// What an instance takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Persistent memory, or file, in bytes: what is in use, not what is reserved.
    pub pool_bytes: Option<u64>,
    /// Leaves, if it has such.
    pub leaves: Option<u64>,
}

/// What [`Handle::scan`] calls for each entry: key and value.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// What has happened in an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Lines flushed.
    pub lines_flushed: u64,
    /// Fences.
    pub fences: u64,
    /// Leaves that there are.
    pub leaves: u64,
    /// Leaves that were divided.
    pub splits: u64,
    /// How inner nodes were built anew.
    pub rebuilds: Rebuilds,
    /// How transactions of the processor have fared, of a system that is about them.
    pub transactions: Option<Statistics>,
}

/// What one thread uses an instance by.
pub trait Handle {
    /// Adds a key that is not there.
    ///
    /// # Errors
    /// Whatever hinders it.
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error>;

    /// Appends the value of a key to `value`; whether it is there.
    ///
    /// # Errors
    /// Whatever hinders it.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error>;

    /// Sets the value of a key that is there.
    ///
    /// # Errors
    /// Whatever hinders it.
    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error>;

    /// Removes a key that is there; whether it was.
    ///
    /// # Errors
    /// Whatever hinders it.
    fn delete(&mut self, key: &[u8]) -> Result<bool, Error>;

    /// Visits entries in ascending order, from a key on, until `visit` breaks or there are no more.
    ///
    /// # Errors
    /// [`Error::Missing`] if it keeps no order; whatever else hinders it.
    fn scan(&mut self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), Error>;

    /// Calls [`Handle::insert`] for one key after the other, as a program does that has nothing else to do: within the system, so that nothing stands between
    /// two calls.
    ///
    /// # Errors
    /// Those of each.
    fn insert_each(&mut self, keys: ChunksExact<'_, u8>, values: ChunksExact<'_, u8>) -> Result<(), Error> {
        insert_one_by_one(self, keys, values)
    }

    /// The same with [`Handle::get`]; how many keys are there. Of each so many bytes are appended: its value, or zeroes if it is not there, or if its value is
    /// of another size.
    ///
    /// # Errors
    /// Those of each.
    fn get_each(&mut self, keys: ChunksExact<'_, u8>, value_size: usize, values: &mut Vec<u8>) -> Result<u64, Error> {
        get_one_by_one(self, keys, value_size, values)
    }

    /// The same with [`Handle::update`].
    ///
    /// # Errors
    /// Those of each.
    fn update_each(&mut self, keys: ChunksExact<'_, u8>, values: ChunksExact<'_, u8>) -> Result<(), Error> {
        keys.zip(values).try_for_each(|(key, value)| self.update(key, value))
    }

    /// The same with [`Handle::delete`]; how many keys were there.
    ///
    /// # Errors
    /// Those of each.
    fn delete_each(&mut self, keys: ChunksExact<'_, u8>) -> Result<u64, Error> {
        let mut deleted = 0;
        for key in keys {
            deleted += u64::from(self.delete(key)?);
        }
        Ok(deleted)
    }

    /// Looks up several keys at once: calls `visit` with the number of each and its value, in any order.
    ///
    /// # Errors
    /// Whatever hinders it.
    fn get_many(&mut self, keys: &[&[u8]], visit: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<(), Error> {
        let mut value = Vec::new();
        for (number, key) in keys.iter().enumerate() {
            value.clear();
            let found = self.get(key, &mut value)?;
            visit(number, found.then_some(&value));
        }
        Ok(())
    }

    /// Adds several keys that are not there, each of them as [`Handle::insert`] does.
    ///
    /// # Errors
    /// Whatever hinders it.
    fn insert_many(&mut self, entries: &[(&[u8], &[u8])]) -> Result<(), Error> {
        entries.iter().try_for_each(|(key, value)| self.insert(key, value))
    }
}

/// See [`Handle::insert_each`].
fn insert_one_by_one(handle: &mut (impl Handle + ?Sized), keys: ChunksExact<'_, u8>, values: ChunksExact<'_, u8>) -> Result<(), Error> {
    let mut pairs = keys.zip(values);
    pairs.try_for_each(|(key, value)| handle.insert(key, value))
}

/// See [`Handle::get_each`].
fn get_one_by_one(handle: &mut (impl Handle + ?Sized), keys: ChunksExact<'_, u8>, value_size: usize, values: &mut Vec<u8>) -> Result<u64, Error> {
    let mut found = 0;
    for key in keys {
        let start = values.len();
        let is_there = handle.get(key, values)?;
        found += u64::from(is_there);
        if !is_there || values.len() != start + value_size {
            values.truncate(start);
            values.resize(start + value_size, 0);
        }
    }
    Ok(found)
}

/// An empty pool as systems have them, with room for so many small entries.
pub(crate) fn pool(keys_max: u64, domain: Domain, directory: Option<PathBuf>, huge_pages: bool) -> Result<Arc<Pool>, Error> {
    let setting = Setting { keys_max, domain, directory, huge_pages, ..Setting::default() };
    medium::create_pool(&setting).map(|(pool, _)| pool).map_err(|error| Error::system("memory", error))
}

/// All systems of this crate: every index of the registry, the store on its default index, the server.
pub fn systems() -> Vec<Box<dyn System>> {
    let mut systems = index::all();
    systems.extend(ON_INDEXES.iter().filter_map(|what| on(what, &everleaf::Options::default().index)));
    systems
}

/// Their names.
pub fn names(systems: &[Box<dyn System>]) -> Vec<String> {
    systems.iter().map(|system| system.name().to_owned()).collect()
}

/// What is there on every persistent index. Its name is followed by `:` and that of the index, so that results tell it whatever the default is when they are
/// read.
pub(crate) const ON_INDEXES: [&str; 3] = ["store", "store-snapshots", "server"];

/// One of [`ON_INDEXES`] on an index.
fn on(what: &str, index: &str) -> Option<Box<dyn System>> {
    let (name, index) = (format!("{what}:{index}"), index.to_owned());
    Some(match what {
        "store" => Box::new(store::Stores { name, index, by_snapshots: false }),
        "store-snapshots" => Box::new(store::Stores { name, index, by_snapshots: true }),
        "server" => Box::new(server::Servers { name, index }),
        _ => return None,
    })
}

/// The system of that name: one of `systems`, to which stores and servers on other indexes are added when they are asked for. Without an index they are those
/// on the default one.
///
/// # Errors
/// [`Error::Usage`], which tells the names that there are.
pub fn find<'a>(systems: &'a mut Vec<Box<dyn System>>, name: &str) -> Result<&'a dyn System, Error> {
    let place = |systems: &[Box<dyn System>], name: &str| systems.iter().position(|system| system.name() == name);
    let name = if ON_INDEXES.contains(&name) { format!("{name}:{}", everleaf::Options::default().index) } else { name.to_owned() };
    if place(systems, &name).is_none()
        && let Some((what, index)) = name.split_once(':')
        && place(systems, index).is_some_and(|at| systems[at].capabilities().leaf_bytes.is_some())
    {
        systems.extend(on(what, index));
    }
    let Some(at) = place(systems, &name) else {
        let others = "and store:INDEX, store-snapshots:INDEX and server:INDEX for each persistent index";
        return Err(Error::Usage(format!("no system is called {name:?}; there are: {}, {others}", names(systems).join(", "))));
    };
    Ok(systems[at].as_ref())
}
