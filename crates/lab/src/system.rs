//! What is measured: anything that stores values by key.
//!
//! The driver uses bytes. A key is [`KeyKind::Integer`](crate::plan::KeyKind) (8 bytes, big-endian, so that bytes sort like the integers) or a string; a value
//! is bytes, never empty. A system that stores integers decodes them, which costs one instruction.
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
    /// Name by which it is selected: unique, short, without blanks.
    fn name(&self) -> &str;

    /// One line for readers.
    fn summary(&self) -> String;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// When a write counts as done under `setting`, in words: what a crash can take back.
    fn durability(&self, setting: &Setting) -> String;

    /// Creates an empty instance.
    ///
    /// # Errors
    /// A setting that it does not support; no space; any other failure.
    fn create(&self, setting: &Setting) -> Result<Box<dyn Instance>, Error>;
}

/// What a system can do. A case that needs more is not run, and the results say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// It has scans in key order.
    pub scans: bool,
    /// It outlives the process.
    pub persistent: bool,
    /// Several threads may write at once.
    pub threads: bool,
    /// It counts flushes, fences and lines.
    pub counts: bool,
    /// Write latency can be added to it.
    pub write_latency: bool,
    /// It accepts keys and values of sizes other than 8 bytes.
    pub any_size: bool,
    /// Size of its leaves in bytes, if it has leaves; then it can be loaded in bulk.
    pub leaf_bytes: Option<u32>,
    /// All its work is done by the calling thread.
    pub alone: bool,
    /// Each operation is a request through a socket.
    pub by_requests: bool,
    /// It exists to use the processor's transactions, and this processor has none.
    pub lacks_transactions: bool,
    /// It can only be created in a directory.
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
    /// Maximum number of keys that it will hold.
    pub keys_max: u64,
    /// The shape of keys.
    pub key: KeyKind,
    /// Size of values in bytes.
    pub value_bytes: u32,
    /// Threads that will use it.
    pub threads: u16,
    /// Persistence domain, for systems that have them.
    pub domain: Domain,
    /// Nanoseconds added to every line written back, for systems that support it.
    pub write_latency_ns: u64,
    /// An empty directory of its own, which outlives the instance; `None`: memory without a file, for systems that need no files.
    pub directory: Option<PathBuf>,
    /// Whether its files should lie on pages of 2 MiB, for systems that support it.
    pub huge_pages: bool,
    /// Whether it should have memory for all keys before it is used, for systems that support it.
    pub prefault: bool,
    /// What is measured.
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
    /// The calling thread's access to it.
    ///
    /// # Errors
    /// Any failure of the system.
    fn handle(&self) -> Result<Box<dyn Handle + '_>, Error>;

    /// Fills an empty instance with entries in ascending order, and its leaves to the share `fill`.
    ///
    /// # Errors
    /// [`Error::Missing`] if it has no leaves.
    fn bulk_load(&self, _entries: &mut Entries<'_>, _fill: f64) -> Result<(), Error> {
        Err(Error::Missing { system: "what has no leaves".into(), operation: "filling them" })
    }

    /// Its memory use.
    ///
    /// # Errors
    /// Any failure of the system.
    fn space(&self) -> Result<Space, Error>;

    /// Counters of the writes to persistent memory; `None` unless it was created for [`Measure::Counts`].
    fn counters(&self) -> Option<&Counters> {
        None
    }

    /// Touches the persistent memory for this many new leaves, if it has leaves, so that no operation waits for page faults.
    ///
    /// # Errors
    /// Any failure of the system.
    fn touch_ahead(&self, _leaves: u64) -> Result<(), Error> {
        Ok(())
    }

    /// What has happened so far. Cheap enough to be called after every operation, to tell operations that divide a leaf from others. `None` if the system does
    /// not know. Lines and fences are counted only with [`Measure::Counts`].
    fn marks(&self) -> Option<Marks> {
        None
    }

    /// Returns when no work that opening has deferred is left.
    fn settle(&self) {}

    /// Ends it as `shutdown` says, when no handle is left, and opens it again for this many threads. Its data must be in a directory.
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
    /// Like a crash of the process: nothing more is written.
    Crash,
    /// A clean shutdown.
    Close,
}

/// A reopened instance.
pub struct Reopened {
    /// The instance.
    pub instance: Box<dyn Instance>,
    /// Time until the first operation can be served. The caller adds the time to serve it.
    pub time: Duration,
}

/// Memory use of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes of persistent memory or files in use, not reserved.
    pub pool_bytes: Option<u64>,
    /// Leaves, if it has leaves.
    pub leaves: Option<u64>,
}

/// What [`Handle::scan`] calls for each entry: key and value.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Events in an instance so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Lines flushed.
    pub lines_flushed: u64,
    /// Fences.
    pub fences: u64,
    /// Current number of leaves.
    pub leaves: u64,
    /// Leaves that were divided.
    pub splits: u64,
    /// How inner nodes were rebuilt.
    pub rebuilds: Rebuilds,
    /// Statistics of processor transactions, for a system that exists to use them.
    pub transactions: Option<Statistics>,
}

/// A thread's access to an instance.
pub trait Handle {
    /// Adds a key that does not exist.
    ///
    /// # Errors
    /// Any failure of the system.
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error>;

    /// Appends the value of a key to `value`. Returns whether the key exists.
    ///
    /// # Errors
    /// Any failure of the system.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error>;

    /// Sets the value of a key that exists.
    ///
    /// # Errors
    /// Any failure of the system.
    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error>;

    /// Removes a key that exists. Returns whether it did.
    ///
    /// # Errors
    /// Any failure of the system.
    fn delete(&mut self, key: &[u8]) -> Result<bool, Error>;

    /// Visits entries in ascending order, from a key on, until `visit` breaks or there are no more.
    ///
    /// # Errors
    /// [`Error::Missing`] if it keeps no order; any other failure of the system.
    fn scan(&mut self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), Error>;

    /// Calls [`Handle::insert`] for one key after the other, as a program with nothing else to do would. The loop is within the system, so nothing comes
    /// between two calls.
    ///
    /// # Errors
    /// Those of each call.
    fn insert_each(&mut self, keys: ChunksExact<'_, u8>, values: ChunksExact<'_, u8>) -> Result<(), Error> {
        insert_one_by_one(self, keys, values)
    }

    /// The same with [`Handle::get`]. Returns how many keys exist. Appends `value_size` bytes for each key: its value, or zeroes if it does not exist or its
    /// value is of another size.
    ///
    /// # Errors
    /// Those of each call.
    fn get_each(&mut self, keys: ChunksExact<'_, u8>, value_size: usize, values: &mut Vec<u8>) -> Result<u64, Error> {
        get_one_by_one(self, keys, value_size, values)
    }

    /// [`Handle::get_each`], but which key is next depends on the value before: as many keys are skipped as that value's first byte says, of which only the
    /// bits of `mask` count. The caller knows that none do, so no key is skipped; the system must not know.
    ///
    /// # Errors
    /// Those of each call.
    fn get_in_turn(&mut self, keys: ChunksExact<'_, u8>, value_size: usize, values: &mut Vec<u8>, mask: usize) -> Result<u64, Error> {
        get_one_in_turn(self, keys, value_size, values, mask)
    }

    /// [`Handle::insert_each`] with [`Handle::update`].
    ///
    /// # Errors
    /// Those of each call.
    fn update_each(&mut self, keys: ChunksExact<'_, u8>, values: ChunksExact<'_, u8>) -> Result<(), Error> {
        update_one_by_one(self, keys, values)
    }

    /// [`Handle::insert_each`] with [`Handle::delete`]. Returns how many keys existed.
    ///
    /// # Errors
    /// Those of each call.
    fn delete_each(&mut self, keys: ChunksExact<'_, u8>) -> Result<u64, Error> {
        delete_one_by_one(self, keys)
    }

    /// [`Handle::get_each`] by one call of the system, if it has one for that.
    ///
    /// # Errors
    /// Any failure of the system.
    fn get_many(&mut self, keys: ChunksExact<'_, u8>, value_size: usize, values: &mut Vec<u8>) -> Result<u64, Error> {
        self.get_each(keys, value_size, values)
    }

    /// [`Handle::insert_each`] by one call of the system, if it has one for that.
    ///
    /// # Errors
    /// Any failure of the system.
    fn insert_many(&mut self, keys: ChunksExact<'_, u8>, values: ChunksExact<'_, u8>) -> Result<(), Error> {
        self.insert_each(keys, values)
    }
}

/// See [`Handle::insert_each`].
fn insert_one_by_one(handle: &mut (impl Handle + ?Sized), keys: ChunksExact<'_, u8>, values: ChunksExact<'_, u8>) -> Result<(), Error> {
    let mut pairs = keys.zip(values);
    pairs.try_for_each(|(key, value)| handle.insert(key, value))
}

/// See [`Handle::update_each`].
fn update_one_by_one(handle: &mut (impl Handle + ?Sized), keys: ChunksExact<'_, u8>, values: ChunksExact<'_, u8>) -> Result<(), Error> {
    let mut pairs = keys.zip(values);
    pairs.try_for_each(|(key, value)| handle.update(key, value))
}

/// See [`Handle::delete_each`].
fn delete_one_by_one(handle: &mut (impl Handle + ?Sized), keys: ChunksExact<'_, u8>) -> Result<u64, Error> {
    let mut deleted = 0;
    for key in keys {
        deleted += u64::from(handle.delete(key)?);
    }
    Ok(deleted)
}

/// See [`Handle::get_each`].
fn get_one_by_one(handle: &mut (impl Handle + ?Sized), keys: ChunksExact<'_, u8>, value_size: usize, values: &mut Vec<u8>) -> Result<u64, Error> {
    let mut found = 0;
    for key in keys {
        found += append_found(values, value_size, |values| handle.get(key, values))?;
    }
    Ok(found)
}

/// See [`Handle::get_in_turn`].
fn get_one_in_turn(
    handle: &mut (impl Handle + ?Sized),
    mut keys: ChunksExact<'_, u8>,
    value_size: usize,
    values: &mut Vec<u8>,
    mask: usize,
) -> Result<u64, Error> {
    let (mut found, mut bend) = (0, 0);
    while let Some(key) = keys.nth(bend) {
        let start = values.len();
        found += append_found(values, value_size, |values| handle.get(key, values))?;
        // A comparison could become a branch, which would be predicted.
        bend = usize::from(values.get(start).copied().unwrap_or(0)) & mask;
    }
    Ok(found)
}

/// Appends one value, as [`Handle::get_each`] does for each key: what `get` appends if it finds a value of that size, or zeroes. Returns 1 if it finds one of
/// any size, else 0.
///
/// # Errors
/// That of `get`.
pub fn append_found<E>(values: &mut Vec<u8>, value_size: usize, get: impl FnOnce(&mut Vec<u8>) -> Result<bool, E>) -> Result<u64, E> {
    let start = values.len();
    let is_there = get(values)?;
    if !is_there || values.len() != start + value_size {
        values.truncate(start);
        values.resize(start + value_size, 0);
    }
    Ok(is_there.into())
}

/// An empty pool like those of the systems, with room for this many small entries.
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

/// Systems that exist on every persistent index. Their names end with `:` and the index, so results name it even if the default changes later.
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

/// The system of that name: one of `systems`, to which stores and servers on other indexes are added on request. A name without an index means the default one.
///
/// # Errors
/// [`Error::Usage`], which lists the available names.
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
