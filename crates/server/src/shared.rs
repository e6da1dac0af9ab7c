//! The state that all event loops of a server share.

use crate::backups::Backups;
use crate::calls::Calls;
use crate::client::{Client, Clients};
use crate::compactions::Compactions;
use crate::config::Config;
use crate::database::Databases;
use crate::executor::Failure;
use crate::executor::scan::Cursors;
use crate::gate::Gate;
use crate::memcached;
use crate::script::Scripts;
use everleaf::{Domain, Error, Namespace, Store};
use mio::Waker;
use parking_lot::{Mutex, RwLock};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A number that one thread increments and any thread may read.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Only the owning thread calls this, so it needs no read-modify-write instruction.
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Likewise.
    pub(crate) fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }
}

macro_rules! counted {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// The counters of an event loop, on cache lines of their own.
        #[derive(Default)]
        #[repr(align(128))]
        pub(crate) struct Counters {
            $($(#[$about])* pub(crate) $name: Counter,)*
        }

        /// Sums of [`Counters`].
        #[derive(Clone, Copy, Default)]
        pub(crate) struct Totals {
            $($(#[$about])* pub(crate) $name: u64,)*
            /// Keys that had already expired when they were removed or overwritten.
            pub(crate) expired: u64,
        }

        impl Counters {
            /// Adds the counts of other counters.
            pub(crate) fn add_all(&self, others: &Self) {
                $(self.$name.add(others.$name.get());)*
            }
        }

        impl Totals {
            fn add(&mut self, counters: &Counters) {
                $(self.$name = self.$name.wrapping_add(counters.$name.get());)*
            }

            fn since(self, then: Self) -> Self {
                Self { $($name: self.$name.wrapping_sub(then.$name),)* expired: self.expired.wrapping_sub(then.expired) }
            }
        }
    };
}

counted! {
    commands,
    /// Changes of keys.
    changes,
    /// Bytes of keys and values that commands have looked at without replying with them, and steps of matching keys against patterns.
    looked_at,
    errors,
    /// Those with the codes of [`CODES`]. Where a full pool has refused something, a client of memcached gets another text, which counts all the same.
    aborted,
    denied,
    unknown_scripts,
    full,
    wrong_passwords,
    hits,
    misses,
    /// Storage commands of memcached.
    stores,
    /// Those with a unique number that matched.
    cas_hits,
    /// Those with a unique number but no such key.
    cas_misses,
    /// Those with a unique number that did not match.
    cas_others,
    /// Deletions, countings up and down, and settings of expiry times of memcached, where the item was there, or was not.
    delete_hits,
    delete_misses,
    incr_hits,
    incr_misses,
    decr_hits,
    decr_misses,
    touch_hits,
    touch_misses,
    /// Clearings by clients of memcached.
    flushes,
    input_size,
    output_size,
    connections,
    rejected,
    /// Connections closed because the client sent more than it may in one command, or did not take its replies, or ended before its TLS handshake did.
    query_overflows,
    output_overflows,
    failed_handshakes,
}

/// A code of errors, with its counter, and its sum.
type Code = (&'static str, fn(&Counters) -> &Counter, fn(&Totals) -> u64);

/// Codes of errors that are counted by themselves, in alphabetical order.
pub(crate) const CODES: [Code; 5] = [
    ("EXECABORT", |counters| &counters.aborted, |totals| totals.aborted),
    ("NOAUTH", |counters| &counters.denied, |totals| totals.denied),
    ("NOSCRIPT", |counters| &counters.unknown_scripts, |totals| totals.unknown_scripts),
    ("OOM", |counters| &counters.full, |totals| totals.full),
    ("WRONGPASS", |counters| &counters.wrong_passwords, |totals| totals.wrong_passwords),
];

impl Counters {
    /// Notes whether a key that was read was there.
    pub(crate) fn lookup(&self, found: bool) {
        if found { self.hits.add(1) } else { self.misses.add(1) }
    }

    /// Notes a reply with an error.
    pub(crate) fn fail(&self, failure: &Failure) {
        self.errors.add(1);
        if let Some((_, counter, _)) = CODES.iter().find(|(code, ..)| code.as_bytes() == failure.code()) {
            counter(self).add(1);
        }
    }

    /// Notes a reply with an error of the store.
    pub(crate) fn fail_with(&self, error: &Error) {
        self.errors.add(1);
        self.full.add(error.is_no_space().into());
    }

    /// [`Counters::lookup`] for an item that a client of memcached has deleted.
    pub(crate) fn delete(&self, found: bool) {
        if found { self.delete_hits.add(1) } else { self.delete_misses.add(1) }
    }

    /// The same for one whose expiry time it has set.
    pub(crate) fn touch(&self, found: bool) {
        if found { self.touch_hits.add(1) } else { self.touch_misses.add(1) }
    }

    /// The same for one with whose number it has counted.
    pub(crate) fn count(&self, down: bool, found: bool) {
        let of_kind = if down { [&self.decr_misses, &self.decr_hits] } else { [&self.incr_misses, &self.incr_hits] };
        of_kind[usize::from(found)].add(1);
    }
}

/// The rate of commands.
struct Rate {
    /// When the last sample was taken.
    since: Instant,
    /// Number of commands until then.
    commands: u64,
    per_second: u64,
}

/// The state that all event loops of a server share.
pub(crate) struct Shared {
    pub(crate) store: Arc<Store>,
    pub(crate) databases: Vec<Namespace>,
    /// The namespace of memcached.
    pub(crate) items: Namespace,
    /// With the ports that the system chose.
    pub(crate) config: Config,
    pub(crate) connection_count_max: AtomicUsize,
    pub(crate) clients: Clients,
    pub(crate) cursors: Mutex<Cursors>,
    pub(crate) gate: Gate,
    /// Whether a write waits for a device, so that SETs of several clients are better run together.
    pub(crate) shares_waits: bool,
    pub(crate) backups: Arc<Backups>,
    pub(crate) compactions: Arc<Compactions>,
    pub(crate) started: Instant,
    /// Identifies a run of the server, so that clients can tell one from the next.
    pub(crate) run_id: String,
    pub(crate) calls: Calls,
    pub(crate) scripts: Scripts,
    rate: Mutex<Rate>,
    counters: Vec<Counters>,
    /// The totals at the last CONFIG RESETSTAT: counters are never reset, since their owner might be counting.
    baseline: Mutex<Totals>,
    password: RwLock<Option<Vec<u8>>>,
    wakers: Vec<Waker>,
    /// Background tasks check it, too.
    pub(crate) stopping: Arc<AtomicBool>,
    /// Milliseconds from `started` to the last reading of the clock.
    clock_ms: AtomicU64,
}

impl Shared {
    /// # Errors
    /// The store cannot give a namespace.
    pub(crate) fn new(config: Config, store: Arc<Store>, wakers: Vec<Waker>) -> Result<Self, Error> {
        let databases = (0..config.databases.max(1)).map(|index| store.namespace(&index.to_string())).collect::<Result<_, _>>()?;
        let backup = config.backup.clone().unwrap_or_else(|| beside(store.path()));
        Ok(Self {
            shares_waits: store.pool().info().domain.is_some_and(Domain::awaits_device),
            items: store.namespace(memcached::NAMESPACE)?,
            store,
            databases,
            connection_count_max: AtomicUsize::new(config.limits.connection_count_max),
            clients: Clients::default(),
            cursors: Mutex::new(Cursors::new()),
            gate: Gate::new(wakers.len()),
            backups: Arc::new(Backups::new(backup, config.log)),
            compactions: Arc::new(Compactions::new(config.log)),
            started: Instant::now(),
            run_id: format!("{:032x}{:08x}", rand::random::<u128>(), rand::random::<u32>()),
            rate: Mutex::new(Rate { since: Instant::now(), commands: 0, per_second: 0 }),
            calls: Calls::new(wakers.len()),
            scripts: Scripts::default(),
            counters: wakers.iter().map(|_| Counters::default()).collect(),
            baseline: Mutex::new(Totals::default()),
            password: RwLock::new(config.password.clone()),
            wakers,
            stopping: Arc::default(),
            clock_ms: AtomicU64::new(0),
            config,
        })
    }

    /// The databases without a transaction.
    pub(crate) fn databases<'a>(&'a self, counters: &'a Counters) -> Databases<'a> {
        let (namespaces, items) = (&self.databases, &self.items);
        Databases { store: &self.store, namespaces, items, transaction: None, changes: &counters.changes, looked_at: &counters.looked_at }
    }

    /// The database with that number; the number after the last is memcached's.
    pub(crate) fn namespace(&self, number: usize) -> &Namespace {
        self.databases.get(number).unwrap_or(&self.items)
    }

    pub(crate) fn thread_count(&self) -> usize {
        self.wakers.len()
    }

    pub(crate) fn counters(&self, thread: usize) -> &Counters {
        &self.counters[thread]
    }

    /// Number of changes of keys since the start: all that it counts are done.
    pub(crate) fn change_count(&self) -> u64 {
        self.sum().changes
    }

    fn sum(&self) -> Totals {
        let mut sum = Totals { expired: self.store.expired_count(), ..Totals::default() };
        self.counters.iter().for_each(|counters| sum.add(counters));
        sum
    }

    /// Counts since the start or the last reset.
    pub(crate) fn totals(&self) -> Totals {
        // In this order: a baseline set by another loop in between would exceed the sum.
        let then = *self.baseline.lock();
        self.sum().since(then)
    }

    /// Commands per second, over the last second or so.
    pub(crate) fn commands_per_second(&self) -> u64 {
        self.rate.lock().per_second
    }

    /// Takes a sample of the rate if a second has passed.
    pub(crate) fn sample_rate(&self) {
        let mut rate = self.rate.lock();
        let passed = rate.since.elapsed();
        if passed >= Duration::from_secs(1) {
            let commands = self.sum().commands;
            let done = commands.wrapping_sub(rate.commands);
            *rate = Rate { since: Instant::now(), commands, per_second: (done as f64 / passed.as_secs_f64()) as u64 };
        }
    }

    pub(crate) fn reset_totals(&self) {
        *self.baseline.lock() = self.sum();
        self.calls.reset();
    }

    pub(crate) fn has_password(&self) -> bool {
        self.password.read().is_some()
    }

    pub(crate) fn password(&self) -> Option<Vec<u8>> {
        self.password.read().clone()
    }

    pub(crate) fn set_password(&self, password: Option<Vec<u8>>) {
        *self.password.write() = password;
    }

    /// Whether `shown` is the password, or none is needed. The time does not depend on where the two differ.
    pub(crate) fn is_password(&self, shown: &[u8]) -> bool {
        match self.password.read().as_deref() {
            None => true,
            Some(password) => password.len() == shown.len() && password.iter().zip(shown).fold(0, |difference, (left, right)| difference | (left ^ right)) == 0,
        }
    }

    /// The time of the last [`Shared::look_at_clock`].
    pub(crate) fn now(&self) -> Instant {
        self.started + Duration::from_millis(self.clock_ms.load(Ordering::Relaxed))
    }

    /// Called once in a turn of an event loop.
    pub(crate) fn look_at_clock(&self) {
        let now_ms = self.started.elapsed().as_millis() as u64;
        // Most turns are shorter than a millisecond; a store would take the cache line from the other threads.
        if self.clock_ms.load(Ordering::Relaxed) < now_ms {
            self.clock_ms.store(now_ms, Ordering::Relaxed);
        }
    }

    /// Asks the thread that serves `client` to close it.
    pub(crate) fn kill(&self, client: &Client) {
        client.killed.store(true, Ordering::Release);
        self.wake(client.thread);
    }

    pub(crate) fn wake(&self, thread: usize) {
        if let Err(error) = self.wakers[thread].wake() {
            // A full pipe or counter means that the thread has been woken already; no other failure is known here.
            debug_assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        }
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        (0..self.wakers.len()).for_each(|thread| self.wake(thread));
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

/// The default file for the backups of a pool.
fn beside(pool: &Path) -> PathBuf {
    let mut path = pool.as_os_str().to_owned();
    path.push(".backup");
    path.into()
}
