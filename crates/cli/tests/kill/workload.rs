//! The writes of a connection, and what it remembers of them.
//!
//! Each writer has its own keys, in its own database, where its replies determine exactly what must be there. In database 0 all writers write the same groups,
//! by MSET, and the same counters.

use crate::client::{Client, Reply};
use crate::ledger::{self, COUNTERS, GROUPS, Shared};
use crate::server::Ending;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::Ordering;

/// Keys of a writer.
const KEYS: u64 = 200;
/// Most requests in flight together.
const PIPELINE_MAX: usize = 32;

/// A value that a writer has written: its number and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) number: u64,
    pub(crate) size: usize,
}

impl Version {
    /// Its bytes: its number, then filler that depends on it, so that a mix of two values differs from both.
    pub(crate) fn bytes(self) -> Vec<u8> {
        let mut bytes = format!("{}.", self.number).into_bytes();
        let start = bytes.len() as u64;
        bytes.extend((start..self.size as u64).map(|at| (self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(at * at) >> 7) as u8));
        bytes
    }
}

/// The knowledge about a key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// Its value after the last acknowledged request; `None` is absent.
    pub(crate) acknowledged: Option<Version>,
    /// Its values after each request that was in flight at the kill, in order.
    pub(crate) in_flight: Vec<Option<Version>>,
}

/// A request in flight, and the meaning of its reply.
enum Request {
    Select,
    Set {
        key: u64,
        version: Version,
    },
    /// Knows whether the key is there.
    Delete {
        key: u64,
        present: bool,
    },
    /// Knows what the reply must be.
    Get {
        version: Option<Version>,
    },
    Flush,
    /// Its place in the group's log.
    SetGroup {
        group: usize,
        entry: usize,
    },
    Increment {
        counter: usize,
    },
}

/// A connection that writes.
pub(crate) struct Writer<'a> {
    number: usize,
    shared: &'a Shared,
    random: StdRng,
    next_version: u64,
    /// Keys that may be there.
    pub(crate) keys: BTreeMap<u64, Known>,
    /// The values after all requests that have been sent.
    latest: BTreeMap<u64, Version>,
    acknowledged_count: u64,
    in_flight_count: u64,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(number: usize, shared: &'a Shared, seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed);
        Self { number, shared, random, next_version: 1, keys: BTreeMap::new(), latest: BTreeMap::new(), acknowledged_count: 0, in_flight_count: 0 }
    }

    /// The database with its own keys.
    pub(crate) fn database(&self) -> String {
        (self.number + 1).to_string()
    }

    pub(crate) fn key(&self, key: u64) -> Vec<u8> {
        format!("writer {} key {key}", self.number).into_bytes()
    }

    /// Writes until the server ends.
    pub(crate) fn run(&mut self, port: u16, ending: &Ending) {
        self.latest = self.keys.iter().filter_map(|(&key, known)| Some((key, known.acknowledged?))).collect();
        let mut requests = VecDeque::new();
        if let Err(error) = self.write(port, &mut requests) {
            ending.must_explain(format_args!("writer {}", self.number), &error);
        }
        for request in requests {
            self.leave_in_flight(&request);
        }
    }

    /// Numbers of acknowledged requests and of those in flight at the kill, since the last call.
    pub(crate) fn take_counts(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.acknowledged_count), std::mem::take(&mut self.in_flight_count))
    }

    fn write(&mut self, port: u16, requests: &mut VecDeque<Request>) -> io::Result<()> {
        let mut client = Client::connect(port)?;
        loop {
            let own = self.random.random_ratio(3, 4);
            let database = if own { self.database() } else { "0".into() };
            client.push(&[b"SELECT", database.as_bytes()]);
            requests.push_back(Request::Select);
            for _ in 0..self.random.random_range(1..=PIPELINE_MAX) {
                requests.push_back(if own { self.push_own(&mut client) } else { self.push_shared(&mut client) });
            }
            client.send()?;
            while !requests.is_empty() {
                let reply = client.receive()?;
                if let Some(request) = requests.pop_front() {
                    self.acknowledge(&request, &reply);
                }
            }
        }
    }

    fn new_version(&mut self) -> Version {
        let number = self.next_version;
        self.next_version += 1;
        // Most values are short; some fill several blocks.
        let size = match self.random.random_range(0..100) {
            0 => self.random.random_range(4096..100_000),
            1..10 => self.random.random_range(200..4096),
            _ => self.random.random_range(0..200),
        };
        Version { number, size }
    }

    fn push_own(&mut self, client: &mut Client) -> Request {
        let key = self.random.random_range(0..KEYS);
        let name = self.key(key);
        match self.random.random_range(0..1000) {
            0 => {
                client.push(&[b"FLUSHDB"]);
                self.latest.clear();
                Request::Flush
            }
            1..250 => {
                client.push(&[b"DEL", &name]);
                Request::Delete { key, present: self.latest.remove(&key).is_some() }
            }
            250..350 => {
                client.push(&[b"GET", &name]);
                Request::Get { version: self.latest.get(&key).copied() }
            }
            _ => {
                let version = self.new_version();
                client.push(&[b"SET", &name, &version.bytes()]);
                self.latest.insert(key, version);
                Request::Set { key, version }
            }
        }
    }

    fn push_shared(&mut self, client: &mut Client) -> Request {
        if self.random.random_ratio(1, 2) {
            let counter = self.random.random_range(0..COUNTERS);
            client.push(&[b"INCR", ledger::counter_key(counter).as_bytes()]);
            return Request::Increment { counter };
        }
        let group = self.random.random_range(0..GROUPS);
        let mut value = format!("writer {} ", self.number).into_bytes();
        value.extend(self.new_version().bytes());
        let keys = ledger::group_keys(group);
        let mut words: Vec<&[u8]> = vec![b"MSET"];
        for key in &keys {
            words.extend([key.as_bytes(), &value]);
        }
        client.push(&words);
        let entry = self.shared.groups[group].lock().expect("no writer panics with it").issue(value, self.shared.now());
        Request::SetGroup { group, entry }
    }

    fn acknowledge(&mut self, request: &Request, reply: &Reply) {
        let number = self.number;
        self.acknowledged_count += 1;
        match request {
            Request::Select => assert_eq!(*reply, Reply::Status("OK".into()), "writer {number}: SELECT"),
            Request::Set { key, version } => {
                assert_eq!(*reply, Reply::Status("OK".into()), "writer {number}: SET");
                self.keys.entry(*key).or_default().acknowledged = Some(*version);
            }
            Request::Delete { key, present } => {
                assert_eq!(*reply, Reply::Integer((*present).into()), "writer {number}: DEL of key {key}");
                self.keys.entry(*key).or_default().acknowledged = None;
            }
            Request::Get { version } => {
                let expected = version.map(Version::bytes);
                assert!(*reply == Reply::Bulk(expected), "writer {number}: GET does not return version {version:?}, which it has written");
            }
            Request::Flush => {
                assert_eq!(*reply, Reply::Status("OK".into()), "writer {number}: FLUSHDB");
                self.keys.clear();
            }
            Request::SetGroup { group, entry } => {
                assert_eq!(*reply, Reply::Status("OK".into()), "writer {number}: MSET");
                self.shared.groups[*group].lock().expect("no writer panics with it").acknowledge(*entry, self.shared.now());
            }
            Request::Increment { counter } => {
                let Reply::Integer(value) = reply else { panic!("writer {number}: INCR replies {reply:?}") };
                self.shared.counters[*counter].replies.lock().expect("no writer panics with it").push(*value);
            }
        }
    }

    fn leave_in_flight(&mut self, request: &Request) {
        self.in_flight_count += 1;
        match request {
            Request::Set { key, version } => self.keys.entry(*key).or_default().in_flight.push(Some(*version)),
            Request::Delete { key, .. } => self.keys.entry(*key).or_default().in_flight.push(None),
            Request::Flush => self.keys.values_mut().for_each(|known| known.in_flight.push(None)),
            Request::Increment { counter } => drop(self.shared.counters[*counter].in_flight.fetch_add(1, Ordering::Relaxed)),
            // Its log entry remains without an end.
            Request::SetGroup { .. } | Request::Select | Request::Get { .. } => {}
        }
    }
}
