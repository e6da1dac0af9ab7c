//! Executes requests on the store, and replies.
//!
//! 1. A reply is written when the store has returned, so when what it acknowledges is durable.
//! 2. A command that reads an item in order to write it does so in one step of the store.
//! 3. `get` with many keys shows each as it is at some moment, and runs in slices, between which other connections of the thread have their turn.

use super::MEMCACHED_VERSION;
use super::item::{FLAGS_SIZE, expiry_ms, make, parts, refuse, show, unique};
use super::request::{Request, Storing, TOO_LARGE, unsigned, words};
use crate::client::{Closing, Session};
use crate::database::{Database, Databases};
use crate::executor::{Failure, SLICE_KEY_COUNT, SLICE_SIZE, Slice, Unfinished};
use crate::reply::Reply;
use crate::shared::{Counters, Shared};
use everleaf::{Change, Entry, Error, VALUE_SIZE_MAX};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Largest number of keys whose expiry time a slice sets: each is a write of its own.
const SLICE_TOUCHED_COUNT: usize = 16;

/// A request and everything that it may use.
pub(crate) struct Asked<'a> {
    pub(crate) server: &'a Shared,
    pub(crate) counters: &'a Counters,
    pub(crate) session: &'a mut Session,
    pub(crate) out: &'a mut Vec<u8>,
    /// The bytes of the request.
    pub(crate) frame: &'a [u8],
}

/// Executes a request, and replies, unless it is `quiet`.
pub(crate) fn execute(asked: &mut Asked<'_>, request: &Request, quiet: bool) {
    let start = asked.out.len();
    asked.counters.commands.add(1);
    if let Err(error) = asked.act(request) {
        asked.counters.fail_with(&error);
        asked.out.truncate(start);
        refuse(asked.out, &error);
    }
    if quiet {
        asked.out.truncate(start);
    }
}

/// Sets the expiry time of an item, and passes it to `show` as it was; returns whether it is there.
pub(super) fn touched(items: Database<'_>, counters: &Counters, key: &[u8], expiry_ms: Option<u64>, mut show: impl FnMut(&Entry)) -> Result<bool, Error> {
    let mut found = false;
    items.modify_entry(key, |entry| {
        found = entry.is_some();
        entry.into_iter().for_each(&mut show);
        if found { Change::Expire(expiry_ms) } else { Change::Keep }
    })?;
    counters.touch(found);
    Ok(found)
}

const NOT_A_NUMBER: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";

/// Parameters of counting.
#[derive(Clone, Copy)]
pub(super) struct Counting {
    pub(super) delta: u64,
    pub(super) down: bool,
    /// The unique number that the version must have.
    pub(super) wanted: Option<u64>,
    /// Initial number for an absent item, and its expiry time.
    pub(super) initial: Option<(u64, Option<u64>)>,
    /// The item's new expiry time, if given.
    pub(super) expiry_ms: Option<Option<u64>>,
}

/// An item as it is after a command.
pub(super) struct Shown {
    pub(super) value: Vec<u8>,
    pub(super) expiry_ms: Option<u64>,
}

/// The outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// The item is absent, or present, against the condition.
    NotStored,
    /// The item has another version.
    Exists,
    NotFound,
    /// It cannot be done, for this reason.
    Refused(&'static str),
}

impl Outcome {
    /// Whether the item was there; `None` if something else kept the command from being done.
    pub(super) fn found(self) -> Option<bool> {
        match self {
            Self::Done => Some(true),
            Self::NotFound => Some(false),
            Self::NotStored | Self::Exists | Self::Refused(_) => None,
        }
    }
}

/// An item to store.
#[derive(Clone, Copy)]
pub(super) struct Stored<'r> {
    pub(super) how: Storing,
    /// The unique number that the current version must have.
    pub(super) wanted: Option<u64>,
    pub(super) key: &'r [u8],
    pub(super) flags: u32,
    pub(super) data: &'r [u8],
    pub(super) expiry_ms: Option<u64>,
    /// Whether the unique number of the new version is needed.
    pub(super) tells_unique: bool,
}

/// Largest size of an item's data in bytes.
pub(crate) fn data_size_max(server: &Shared) -> usize {
    server.config.limits.bulk_size_max.min(VALUE_SIZE_MAX - FLAGS_SIZE)
}

impl<'a> Asked<'a> {
    pub(super) fn items(&self) -> Database<'a> {
        self.server.databases(self.counters).items()
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.server.store.time_ms()
    }

    pub(super) fn bytes(&self, range: &Range<usize>) -> &'a [u8] {
        &self.frame[range.clone()]
    }

    pub(super) fn say(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    fn act(&mut self, request: &Request) -> Result<(), Error> {
        if self.session.owes_password(self.server) {
            self.authenticate(request);
            return Ok(());
        }
        let now_ms = self.now_ms();
        let expiry_ms = |exptime| expiry_ms(exptime, now_ms);
        match request {
            Request::Get { keys, with_unique, exptime } => {
                let (keys, expiry_ms) = (self.bytes(keys), exptime.map(expiry_ms));
                return self.get(Show { with_unique: *with_unique, expiry_ms }, keys);
            }
            Request::Store { how, unique, key, flags, exptime, data } => {
                let (key, data, expiry_ms) = (self.bytes(key), self.bytes(data), expiry_ms(*exptime));
                let (outcome, _) = self.store(&Stored { how: *how, wanted: *unique, key, flags: *flags, data, expiry_ms, tells_unique: false })?;
                self.say(match outcome {
                    Outcome::Done => "STORED",
                    Outcome::NotStored => "NOT_STORED",
                    Outcome::Exists => "EXISTS",
                    Outcome::NotFound => "NOT_FOUND",
                    Outcome::Refused(why) => why,
                });
            }
            Request::Delete { key } => {
                let is_deleted = self.items().delete(self.bytes(key))?;
                self.counters.delete(is_deleted);
                self.say(if is_deleted { "DELETED" } else { "NOT_FOUND" });
            }
            Request::Count { key, delta, down } => {
                let counting = Counting { delta: *delta, down: *down, wanted: None, initial: None, expiry_ms: None };
                match self.count(self.bytes(key), &counting)? {
                    (_, Some(shown)) => self.say(&String::from_utf8_lossy(parts(&shown.value).1)),
                    (Outcome::Refused(why), None) => self.say(why),
                    (_, None) => self.say("NOT_FOUND"),
                }
            }
            Request::Touch { key, exptime } => {
                let found = touched(self.items(), self.counters, self.bytes(key), expiry_ms(*exptime), |_| ())?;
                self.say(if found { "TOUCHED" } else { "NOT_FOUND" });
            }
            Request::FlushAll => {
                self.items().clear()?;
                self.counters.flushes.add(1);
                self.say("OK");
            }
            Request::Stats { what } => self.stats(self.bytes(what)),
            Request::Version => self.say(&format!("VERSION {MEMCACHED_VERSION}")),
            Request::Verbosity => self.say("OK"),
            Request::Meta(meta) => return self.meta(meta),
            Request::Nothing => self.say("MN"),
            Request::Quit => self.session.closing = Closing::AfterReplies,
            Request::Wrong { reply, is_last, .. } => {
                self.counters.errors.add(1);
                self.say(reply);
                if *is_last {
                    self.session.closing = Closing::AfterReplies;
                }
            }
        }
        Ok(())
    }

    /// A client that owes a password sends it by a `set` of any key, whose data are a user, a space, and the password. There is one user, so any name will do.
    fn authenticate(&mut self, request: &Request) {
        match request {
            Request::Store { how: Storing::Set, data, .. } => {
                let data = self.bytes(data);
                let password = memchr::memchr(b' ', data).map_or(data, |space| &data[space + 1..]);
                self.session.authenticated = self.server.is_password(password);
                self.say(if self.session.authenticated { "STORED" } else { "CLIENT_ERROR authentication failure" });
            }
            Request::Quit => self.session.closing = Closing::AfterReplies,
            Request::Wrong { is_last: true, .. } => {
                self.say("CLIENT_ERROR unauthenticated");
                self.session.closing = Closing::AfterReplies;
            }
            _ => self.say("CLIENT_ERROR unauthenticated"),
        }
    }

    /// Runs the first slice, which is usually the only one.
    fn get(&mut self, show: Show, keys: &[u8]) -> Result<(), Error> {
        let rest = show.some(self.items(), self.counters, keys, self.out)?;
        if rest == keys.len() {
            self.say("END");
        } else {
            self.session.unfinished = Some(Box::new(Gets { show, keys: keys[rest..].to_vec(), done: 0, out: Vec::new() }));
        }
        Ok(())
    }

    /// Stores an item, subject to its conditions; returns the unique number of its version if it is stored and the number is needed.
    pub(super) fn store(&self, stored: &Stored<'_>) -> Result<(Outcome, Option<u64>), Error> {
        let Stored { how, wanted, key, flags, data, expiry_ms, tells_unique } = *stored;
        self.counters.stores.add(1);
        let size_max = data_size_max(self.server) + FLAGS_SIZE;
        let mut value = Vec::with_capacity(FLAGS_SIZE + data.len());
        make(flags, data, &mut value);
        if (how, wanted) == (Storing::Set, None) {
            self.items().put_until(key, &value, expiry_ms)?;
            return Ok((Outcome::Done, tells_unique.then(|| unique(&value))));
        }
        let mut done = (Outcome::Done, None);
        self.items().modify_entry(key, |entry| {
            let old = entry.map(|entry| entry.value.as_slice());
            let (lasts, new) = match (how, wanted, old) {
                (Storing::Set | Storing::Replace, Some(_), None) => (false, Err(Outcome::NotFound)),
                // Any existing item is in the way, whatever its version.
                (Storing::Add, _, Some(_)) => (false, Err(Outcome::NotStored)),
                (_, Some(wanted), Some(old)) if unique(old) != wanted => (false, Err(Outcome::Exists)),
                (Storing::Replace | Storing::Append | Storing::Prepend, _, None) => (false, Err(Outcome::NotStored)),
                (Storing::Append | Storing::Prepend, _, Some(old)) if old.len() + data.len() > size_max => (false, Err(Outcome::Refused(TOO_LARGE))),
                // Appended or prepended data keep the flags and the expiry time of the item.
                (Storing::Append, _, Some(old)) => (true, Ok([old, data].concat())),
                (Storing::Prepend, _, Some(old)) => (true, Ok([&old[..old.len() - parts(old).1.len()], data, parts(old).1].concat())),
                (Storing::Set | Storing::Add | Storing::Replace, ..) => (false, Ok(value.clone())),
            };
            done = match &new {
                Ok(new) => (Outcome::Done, tells_unique.then(|| unique(new))),
                Err(outcome) => (*outcome, None),
            };
            match new {
                Ok(new) if lasts => Change::Put(new),
                Ok(new) => Change::PutUntil(new, expiry_ms),
                Err(_) => Change::Keep,
            }
        })?;
        match done.0 {
            _ if wanted.is_none() => {}
            Outcome::Done => self.counters.cas_hits.add(1),
            Outcome::NotFound => self.counters.cas_misses.add(1),
            Outcome::Exists => self.counters.cas_others.add(1),
            Outcome::NotStored | Outcome::Refused(_) => {}
        }
        Ok(done)
    }

    /// Counts with the number of an item; returns the item, if that was done. Counting up wraps around to 0, counting down stops at 0.
    pub(super) fn count(&self, key: &[u8], counting: &Counting) -> Result<(Outcome, Option<Shown>), Error> {
        let Counting { delta, down, wanted, initial, expiry_ms } = *counting;
        let mut counted = (Outcome::Done, None);
        self.items().modify_entry(key, |entry| {
            let next = match (entry, initial) {
                (None, None) => Err(Outcome::NotFound),
                (None, Some((number, expiry_ms))) => Ok((0, number, expiry_ms)),
                (Some(entry), _) if wanted.is_some_and(|wanted| unique(&entry.value) != wanted) => Err(Outcome::Exists),
                (Some(entry), _) => {
                    let (flags, data) = parts(&entry.value);
                    let count = |number: u64| if down { number.saturating_sub(delta) } else { number.wrapping_add(delta) };
                    let number = unsigned(data.trim_ascii_end()).map(count).ok_or(Outcome::Refused(NOT_A_NUMBER));
                    number.map(|number| (flags, number, expiry_ms.unwrap_or(entry.expiry_ms)))
                }
            };
            match next {
                Ok((flags, number, expiry_ms)) => {
                    let mut value = Vec::new();
                    make(flags, number.to_string().as_bytes(), &mut value);
                    counted = (Outcome::Done, Some(Shown { value: value.clone(), expiry_ms }));
                    Change::PutUntil(value, expiry_ms)
                }
                Err(outcome) => {
                    counted = (outcome, None);
                    Change::Keep
                }
            }
        })?;
        if let Some(found) = counted.0.found() {
            self.counters.count(down, found);
        }
        Ok(counted)
    }

    fn stats(&mut self, what: &[u8]) {
        if what == b"reset" {
            self.server.reset_totals();
            return self.say("RESET");
        }
        // The corresponding facts do not exist here, or there is nothing to report.
        if !matches!(what, b"" | b"items" | b"slabs" | b"sizes" | b"settings" | b"conns") {
            return self.say("ERROR");
        }
        if what.is_empty() {
            let (server, totals) = (self.server, self.server.totals());
            let fill = server.store.fill();
            let stat = |name: &str, value: u64| format!("STAT {name} {value}");
            let lines = [
                stat("pid", std::process::id().into()),
                stat("uptime", server.started.elapsed().as_secs()),
                stat("time", server.store.time_ms() / 1000),
                format!("STAT version {MEMCACHED_VERSION}"),
                stat("pointer_size", usize::BITS.into()),
                stat("curr_connections", server.clients.count() as u64),
                stat("total_connections", totals.connections),
                stat("max_connections", server.connection_count_max.load(Ordering::Relaxed) as u64),
                stat("rejected_connections", totals.rejected),
                stat("cmd_get", totals.hits + totals.misses),
                stat("get_hits", totals.hits),
                stat("get_misses", totals.misses),
                stat("cmd_set", totals.stores),
                stat("store_no_memory", totals.full),
                stat("cmd_flush", totals.flushes),
                stat("cmd_touch", totals.touch_hits + totals.touch_misses),
                stat("delete_hits", totals.delete_hits),
                stat("delete_misses", totals.delete_misses),
                stat("incr_hits", totals.incr_hits),
                stat("incr_misses", totals.incr_misses),
                stat("decr_hits", totals.decr_hits),
                stat("decr_misses", totals.decr_misses),
                stat("touch_hits", totals.touch_hits),
                stat("touch_misses", totals.touch_misses),
                stat("cas_hits", totals.cas_hits),
                stat("cas_misses", totals.cas_misses),
                stat("cas_badval", totals.cas_others),
                stat("bytes_read", totals.input_size),
                stat("bytes_written", totals.output_size),
                stat("limit_maxbytes", fill.limit as u64),
                stat("threads", server.thread_count() as u64),
                stat("curr_items", server.items.count()),
                stat("bytes", fill.used as u64),
                stat("reclaimed", totals.expired),
                stat("evictions", 0),
            ];
            lines.iter().for_each(|line| self.say(line));
        }
        self.say("END");
    }
}

/// How items are shown.
#[derive(Clone, Copy)]
struct Show {
    with_unique: bool,
    /// Their new expiry time, if one is given: `gat`.
    expiry_ms: Option<Option<u64>>,
}

impl Show {
    /// Shows the items of `keys`, until a slice is full; returns how many bytes of `keys` are done.
    fn some(self, items: Database<'_>, counters: &Counters, keys: &[u8], out: &mut Vec<u8>) -> Result<usize, Error> {
        let size_max = out.len() + SLICE_SIZE;
        let count_max = if self.expiry_ms.is_some() { SLICE_TOUCHED_COUNT } else { SLICE_KEY_COUNT };
        let mut rest = words(keys);
        let some: Vec<&[u8]> = rest.by_ref().take(count_max).collect();
        let mut done = 0;
        let mut visit = |is_found: bool| {
            // Otherwise it is counted as touched, as memcached does.
            if self.expiry_ms.is_none() {
                counters.lookup(is_found);
            }
            done += 1;
        };
        match self.expiry_ms {
            None => {
                let mut keys = some.iter();
                let outcome = items.visit_many(None, &some, |found| {
                    if out.len() >= size_max {
                        return Err(End::Enough);
                    }
                    let key = keys.next().copied().unwrap_or_default();
                    visit(show(out, key, self.with_unique, |out| found.map(|found| found.copy_to(out)).transpose())?);
                    Ok(())
                });
                match outcome {
                    Ok(()) | Err(End::Enough) => {}
                    Err(End::Failed(error)) => return Err(error),
                }
            }
            Some(expiry_ms) => {
                for key in &some {
                    if out.len() >= size_max {
                        break;
                    }
                    let mut value = Vec::new();
                    let is_found = touched(items, counters, key, expiry_ms, |old| value = old.value.to_vec())?;
                    let append = |out: &mut Vec<u8>| {
                        out.extend_from_slice(&value);
                        Ok::<_, Error>(is_found.then_some(value.len()))
                    };
                    visit(show(out, key, self.with_unique, append)?);
                }
            }
        }
        // Where the first key begins that is not done.
        Ok(some.get(done).copied().or_else(|| rest.next()).map_or(keys.len(), |key| key.as_ptr().addr() - keys.as_ptr().addr()))
    }
}

/// Why a slice ended before all of its keys were visited.
enum End {
    Enough,
    Failed(Error),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A `get` in progress.
struct Gets {
    show: Show,
    /// The keys left by the first slice.
    keys: Vec<u8>,
    /// How many bytes of them are done.
    done: usize,
    /// What the last slice has found.
    out: Vec<u8>,
}

impl Unfinished for Gets {
    fn advance(&mut self, databases: Databases<'_>, counters: &Counters) -> Result<Slice, Failure> {
        self.done += self.show.some(databases.items(), counters, &self.keys[self.done..], &mut self.out)?;
        Ok(if self.done == self.keys.len() { Slice::Last } else { Slice::More })
    }

    fn hand_out(&mut self, reply: &mut Reply) {
        reply.raw(&self.out);
        self.out.clear();
    }

    fn finish(&self, reply: &mut Reply) {
        reply.raw(b"END\r\n");
    }

    fn size(&self) -> usize {
        self.out.len()
    }
}
