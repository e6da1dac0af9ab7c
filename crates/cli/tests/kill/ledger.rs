//! The expected state, and the check that a server that was killed and restarted has it.
//!
//! 1. Every key of a writer holds what its last acknowledged request left, or what one of the requests in flight after that would have left.
//! 2. All keys of a group hold the same value: an MSET happens completely or not at all. The value was written, and no MSET was acknowledged that began after
//!    the acknowledgement of the one found.
//! 3. A counter holds its previous value, plus one for each acknowledged INCR, plus at most one for each in flight. No two replies are the same.
//! 4. There are no other keys, and DBSIZE is the number of keys: nothing is resurrected.
//! 5. Keys of redis-benchmark, which deletes none, do not vanish, and hold its value.

use crate::client::{Client, Reply};
use crate::server::Server;
use crate::workload::{Known, Version, Writer};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const GROUPS: usize = 8;
pub(crate) const COUNTERS: usize = 8;
const KEYS_PER_GROUP: usize = 4;

pub(crate) fn group_keys(group: usize) -> [String; KEYS_PER_GROUP] {
    std::array::from_fn(|member| format!("group {group} member {member}"))
}

pub(crate) fn counter_key(counter: usize) -> String {
    format!("counter {counter}")
}

/// State that all writers share.
#[derive(Default)]
pub(crate) struct Shared {
    clock: AtomicU64,
    pub(crate) groups: [Mutex<Group>; GROUPS],
    pub(crate) counters: [Counter; COUNTERS],
}

impl Shared {
    /// The current time: about twice the number of acknowledged MSETs.
    pub(crate) fn clock(&self) -> u64 {
        self.clock.load(Ordering::SeqCst)
    }

    /// A number greater than all before.
    pub(crate) fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// The log of a group.
#[derive(Default)]
pub(crate) struct Group {
    /// Its value when the server started; `None` is absent.
    base: Option<Vec<u8>>,
    writes: Vec<GroupWrite>,
}

struct GroupWrite {
    value: Vec<u8>,
    began: u64,
    acknowledged: Option<u64>,
}

impl Group {
    /// Notes a write that is about to be sent, and returns its place in the log.
    pub(crate) fn issue(&mut self, value: Vec<u8>, now: u64) -> usize {
        self.writes.push(GroupWrite { value, began: now, acknowledged: None });
        self.writes.len() - 1
    }

    pub(crate) fn acknowledge(&mut self, entry: usize, now: u64) {
        self.writes[entry].acknowledged = Some(now);
    }

    /// Checks whether the group may hold `value`; if so, the log restarts from there.
    fn accept(&mut self, value: Option<&Vec<u8>>) -> Result<(), String> {
        let ended = match value.and_then(|value| self.writes.iter().find(|write| write.value == *value)) {
            Some(write) => write.acknowledged,
            None if value == self.base.as_ref() => Some(0),
            None => return Err(format!("it holds {}, which nobody has written in this round", show(value))),
        };
        if let Some(later) = self.writes.iter().find(|write| write.acknowledged.is_some() && ended.is_some_and(|ended| ended < write.began)) {
            return Err(format!("it holds {}, but {} was acknowledged after that", show(value), show(Some(&later.value))));
        }
        self.base = value.cloned();
        self.writes.clear();
        Ok(())
    }
}

/// The log of a counter.
#[derive(Default)]
pub(crate) struct Counter {
    base: AtomicU64,
    pub(crate) in_flight: AtomicU64,
    pub(crate) replies: Mutex<Vec<i64>>,
}

impl Counter {
    fn accept(&self, value: u64) -> Result<(), String> {
        let mut replies = std::mem::take(&mut *self.replies.lock().map_err(|_| "a writer panicked")?);
        let (count, base, in_flight) = (replies.len() as u64, self.base.load(Ordering::Relaxed), self.in_flight.swap(0, Ordering::Relaxed));
        if !(base + count..=base + count + in_flight).contains(&value) {
            return Err(format!("it holds {value}; it held {base}, {count} increments were acknowledged and {in_flight} in flight"));
        }
        replies.sort_unstable();
        let distinct = replies.windows(2).all(|pair| pair[0] != pair[1]);
        let highest = replies.last().copied().unwrap_or(0);
        if !distinct || highest > value as i64 {
            return Err(format!("it holds {value}, and two replies were the same, or one was above: {highest}"));
        }
        self.base.store(value, Ordering::Relaxed);
        Ok(())
    }
}

/// Verifies everything, and makes the found state the expected state of the next round. Returns the number of keys checked.
pub(crate) fn verify(server: &Server, writers: &mut [Writer<'_>], shared: &Shared, benchmark_keys: &mut usize) -> Result<u64, String> {
    let mut client = Client::connect(server.port).map_err(|error| error.to_string())?;
    let mut verified = 0;
    for writer in writers {
        verified += verify_writer(&mut client, writer)?;
    }
    select(&mut client, "0")?;
    let mut present = keys(&mut client)?;
    for (number, group) in shared.groups.iter().enumerate() {
        let names = group_keys(number);
        let values = get_many(&mut client, names.iter().map(String::as_bytes))?;
        if values.iter().any(|value| *value != values[0]) {
            return Err(format!("group {number} holds only part of an MSET: {:?}", values.iter().map(|value| show(value.as_ref())).collect::<Vec<_>>()));
        }
        group.lock().map_err(|_| "a writer panicked")?.accept(values[0].as_ref()).map_err(|what| format!("group {number}: {what}"))?;
        verified += names.iter().filter(|name| present.remove(name.as_bytes())).count() as u64;
    }
    for (number, counter) in shared.counters.iter().enumerate() {
        let name = counter_key(number);
        let value = get_many(&mut client, [name.as_bytes()])?.pop().flatten();
        let value = value.map_or(Ok(0), |value| String::from_utf8_lossy(&value).parse::<u64>().map_err(|_| format!("counter {number} holds no number")))?;
        counter.accept(value).map_err(|what| format!("counter {number}: {what}"))?;
        verified += u64::from(present.remove(name.as_bytes()));
    }
    verify_benchmark(&mut client, &present, benchmark_keys)?;
    Ok(verified + present.len() as u64)
}

fn verify_writer(client: &mut Client, writer: &mut Writer<'_>) -> Result<u64, String> {
    select(client, &writer.database())?;
    let mut present = keys(client)?;
    let numbers: Vec<u64> = writer.keys.keys().copied().collect();
    let names: Vec<Vec<u8>> = numbers.iter().map(|&key| writer.key(key)).collect();
    let values = get_many(client, names.iter().map(Vec::as_slice))?;
    for ((key, name), value) in numbers.into_iter().zip(names).zip(values) {
        let Known { acknowledged, in_flight } = writer.keys.remove(&key).unwrap_or_default();
        let allowed = std::iter::once(acknowledged).chain(in_flight.iter().copied());
        let Some(found) = allowed.into_iter().find(|version| version.map(Version::bytes) == value) else {
            return Err(format!(
                "key {:?} holds {}; acknowledged was {acknowledged:?}, in flight {in_flight:?}",
                name.escape_ascii().to_string(),
                show(value.as_ref())
            ));
        };
        if found.is_some() != present.remove(&name) {
            return Err(format!("GET and KEYS do not agree about key {:?}", name.escape_ascii().to_string()));
        }
        if found.is_some() {
            writer.keys.insert(key, Known { acknowledged: found, in_flight: Vec::new() });
        }
    }
    match present.first() {
        Some(key) => Err(format!("{} keys are there that should not be, such as {:?}", present.len(), key.escape_ascii().to_string())),
        None => Ok(writer.keys.len() as u64),
    }
}

/// The remaining keys in database 0 must be redis-benchmark's.
fn verify_benchmark(client: &mut Client, present: &BTreeSet<Vec<u8>>, benchmark_keys: &mut usize) -> Result<(), String> {
    if let Some(key) = present.iter().find(|key| !key.starts_with(b"key:")) {
        return Err(format!("a key is there that should not be: {:?}", key.escape_ascii().to_string()));
    }
    if present.len() < *benchmark_keys {
        return Err(format!("redis-benchmark had {benchmark_keys} keys, of which {} are left", present.len()));
    }
    *benchmark_keys = present.len();
    let values = get_many(client, present.iter().map(Vec::as_slice))?;
    match values.iter().find(|value| **value != values[0] || value.as_ref().is_none_or(|value| value.len() != 100)) {
        Some(value) => Err(format!("a key of redis-benchmark holds {}", show(value.as_ref()))),
        None => Ok(()),
    }
}

fn call(client: &mut Client, words: &[&[u8]]) -> Result<Reply, String> {
    client.call(words).map_err(|error| format!("{}: {error}", words[0].escape_ascii()))
}

pub(crate) fn select(client: &mut Client, database: &str) -> Result<(), String> {
    match call(client, &[b"SELECT", database.as_bytes()])? {
        Reply::Status(_) => Ok(()),
        other => Err(format!("SELECT {database} replies {other:?}")),
    }
}

/// All keys of the database, counted twice.
pub(crate) fn keys(client: &mut Client) -> Result<BTreeSet<Vec<u8>>, String> {
    let Reply::Array(replies) = call(client, &[b"KEYS", b"*"])? else { return Err("KEYS replies no array".into()) };
    let keys: BTreeSet<_> = replies.into_iter().filter_map(|reply| if let Reply::Bulk(key) = reply { key } else { None }).collect();
    match call(client, &[b"DBSIZE"])? {
        Reply::Integer(count) if count == keys.len() as i64 => Ok(keys),
        other => Err(format!("DBSIZE replies {other:?}, KEYS lists {}", keys.len())),
    }
}

pub(crate) fn get_many<'a>(client: &mut Client, keys: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<Option<Vec<u8>>>, String> {
    let words: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain(keys).collect();
    if words.len() == 1 {
        return Ok(Vec::new());
    }
    let Reply::Array(replies) = call(client, &words)? else { return Err("MGET replies no array".into()) };
    let value = |reply| if let Reply::Bulk(value) = reply { Ok(value) } else { Err(format!("MGET replies {reply:?} for a key")) };
    replies.into_iter().map(value).collect()
}

/// The beginning of a value, for a message.
fn show(value: Option<&Vec<u8>>) -> String {
    value.map_or_else(|| "nothing".into(), |value| format!("{} bytes {:?}", value.len(), value[..value.len().min(24)].escape_ascii().to_string()))
}
