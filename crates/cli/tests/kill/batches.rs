//! Large batches, of MSET or of MULTI and EXEC; the server is killed in the middle of one.
//!
//! Each batch of a client changes all its keys. The resulting values depend only on the client's number and the number of batches so far, which is the batch's
//! version, and contain it. So after a kill the keys show which batches have happened:
//! 1. all keys of a client show the same batch: the last acknowledged one, or the one in flight, if it was sent completely;
//! 2. there are no other keys;
//! 3. the pool, before it is opened again, names at most as many batches undecided as there are batches in flight that have not happened.
//!
//! Clients with even numbers send an MSET, in one database; the others a transaction over all databases, which sets, deletes, counts and appends.

use crate::client::{Client, Reply};
use crate::ledger::{get_many, keys, select};
use crate::server::{Ending, Server};
use crate::transfers::mix;
use crate::workload::Version;
use everleaf_pmem::Pool;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Keys of a client.
const KEYS: u64 = 2000;
/// Databases that contain the keys.
const DATABASES: u64 = 3;
/// Databases that the server has.
const DATABASES_MAX: u64 = 16;
/// Size in bytes of a commit slot, and of all slots; in the store block, one line precedes them.
const SLOT: usize = 64;
const SLOTS_SIZE: usize = 31 * SLOT;

/// The content of databases: number, key, value.
pub(crate) type Held = BTreeMap<(u64, Vec<u8>), Vec<u8>>;

/// A connection that sends batches.
pub(crate) struct Sender {
    number: u64,
    /// Version of the last batch that was acknowledged, or found after a kill.
    pub(crate) version: u64,
    /// Whether the next batch was sent completely.
    is_sent: bool,
    /// How long the last one took, measured from that moment.
    took: Duration,
}

/// Statistics of kills.
#[derive(Default)]
pub(crate) struct Tally {
    /// Kills while a batch was in flight: sent completely, but not answered.
    pub(crate) hits: u64,
    /// Such batches that are there, and those that are not.
    pub(crate) there: u64,
    pub(crate) absent: u64,
    /// Of the latter, those that were being written: the next opening had to undo them.
    pub(crate) undone: u64,
}

fn is_mset(client: u64) -> bool {
    client.is_multiple_of(2)
}

fn name(client: u64, key: u64) -> Vec<u8> {
    format!("client {client} key {key}").into_bytes()
}

fn place(client: u64, key: u64) -> (u64, Vec<u8>) {
    (if is_mset(client) { client } else { key } % DATABASES, name(client, key))
}

/// Most values are short; some fill several blocks.
fn value(key: u64, version: u64) -> Vec<u8> {
    let chance = mix(key, version);
    let size = match chance % 1000 {
        0 => 4096 + chance / 1000 % 60_000,
        1..50 => 512 + chance / 1000 % 3500,
        _ => chance / 1000 % 100,
    };
    Version { number: version, size: size as usize }.bytes()
}

/// The change of a key by batch `version` of a client: the command, and its value if it has one.
fn change(client: u64, key: u64, version: u64) -> (&'static str, Option<Vec<u8>>) {
    match key % 8 {
        0 if !is_mset(client) => ("INCR", None),
        // Occasionally it starts over.
        1 if !is_mset(client) && !version.is_multiple_of(8) => ("APPEND", Some(value(key, version))),
        2 | 3 if !is_mset(client) && (key + version).is_multiple_of(2) => ("DEL", None),
        _ => ("SET", Some(value(key, version))),
    }
}

/// The content after a client's batches up to `version`, which is 0 before the first.
fn state(client: u64, version: u64) -> Held {
    let left = |key| match change(client, key, version) {
        ("INCR", _) => Some(version.to_string().into_bytes()),
        ("APPEND", _) => Some((version / 8 * 8..=version).filter(|&version| version > 0).flat_map(|version| value(key, version)).collect()),
        (_, value) => value,
    };
    let keys = if version > 0 { 0..KEYS } else { 0..0 };
    keys.filter_map(|key| Some((place(client, key), left(key)?))).collect()
}

impl Sender {
    pub(crate) fn new(number: u64) -> Self {
        Self { number, version: 0, is_sent: false, took: Duration::from_millis(10) }
    }

    /// Sends batches until the server ends. For each that is sent completely, reports how long the previous one took.
    pub(crate) fn run(&mut self, port: u16, ending: &Ending, sent: &mpsc::Sender<Duration>) {
        let outcome: io::Result<()> = Client::connect(port).and_then(|mut client| {
            loop {
                // The killing thread may have stopped listening.
                self.deliver(&mut client, |took| sent.send(took).unwrap_or_default())?;
            }
        });
        if let Err(error) = outcome {
            ending.must_explain(format_args!("client {}", self.number), &error);
        }
    }

    /// Sends a batch, and waits for its reply.
    pub(crate) fn deliver(&mut self, client: &mut Client, sent: impl FnOnce(Duration)) -> io::Result<()> {
        let replies_before = self.push(client);
        client.send()?;
        self.is_sent = true;
        sent(self.took);
        let start = Instant::now();
        for _ in 0..replies_before {
            let reply = client.receive()?;
            assert!(matches!(&reply, Reply::Status(status) if status == "OK" || status == "QUEUED"), "client {}: {reply:?}", self.number);
        }
        match client.receive()? {
            Reply::Status(status) if is_mset(self.number) && status == "OK" => {}
            Reply::Array(replies) if replies.len() as u64 == KEYS + DATABASES && !replies.iter().any(|reply| matches!(reply, Reply::Error(_))) => {}
            other => panic!("client {}: {other:?}", self.number),
        }
        self.took = start.elapsed();
        (self.version, self.is_sent) = (self.version + 1, false);
        Ok(())
    }

    /// Pushes the next batch, and returns the number of replies before the one that acknowledges it.
    fn push(&self, client: &mut Client) -> u64 {
        let version = self.version + 1;
        if is_mset(self.number) {
            let (names, values): (Vec<_>, Vec<_>) = (0..KEYS).map(|key| (name(self.number, key), value(key, version))).unzip();
            let pairs = names.iter().zip(&values).flat_map(|(name, value)| [name.as_slice(), value]);
            client.push(&[b"SELECT", place(self.number, 0).0.to_string().as_bytes()]);
            client.push(&std::iter::once(&b"MSET"[..]).chain(pairs).collect::<Vec<_>>());
            return 1;
        }
        client.push(&[b"MULTI"]);
        for database in 0..DATABASES {
            client.push(&[b"SELECT", database.to_string().as_bytes()]);
            for key in (database..KEYS).step_by(DATABASES as usize) {
                let (name, (command, value)) = (name(self.number, key), change(self.number, key, version));
                let words = [command.as_bytes(), &name].into_iter().chain(value.as_deref());
                client.push(&words.collect::<Vec<_>>());
            }
        }
        client.push(&[b"EXEC"]);
        1 + DATABASES + KEYS
    }
}

/// Number of batches that a pool, which must not be open, names undecided: neither happened nor undone until it is opened. `block.rs` of the store describes
/// the bytes.
pub(crate) fn undecided(pool: &Path) -> u64 {
    let roots = Pool::inspect(pool).and_then(|pool| pool.roots()).expect("the pool can be looked at");
    let (_, root) = roots.into_iter().find(|(name, _)| name == everleaf::STORE_ROOT).expect("a server that listens has a store");
    let mut slots = [0; SLOTS_SIZE];
    File::open(pool).and_then(|file| file.read_exact_at(&mut slots, root.off + SLOT as u64)).expect("the pool can be read");
    // Word 0 is the log of a batch, word 1 is 0 until it is committed.
    slots.chunks(SLOT).filter(|slot| slot[..8] != [0; 8] && slot[8..16] == [0; 8]).count() as u64
}

/// All content of a server.
pub(crate) fn look(server: &Server) -> Result<Held, String> {
    let mut client = Client::connect(server.port).map_err(|error| error.to_string())?;
    let mut held = Held::new();
    for database in 0..DATABASES_MAX {
        select(&mut client, &database.to_string())?;
        let names = keys(&mut client)?;
        let values = get_many(&mut client, names.iter().map(Vec::as_slice))?;
        for (name, value) in names.into_iter().zip(values) {
            held.insert((database, name), value.ok_or("KEYS lists a key that MGET does not find")?);
        }
    }
    Ok(held)
}

/// Whether the content is correct after a kill that left this many batches undecided. The clients continue from there.
pub(crate) fn judge(mut held: Held, senders: &mut [Sender], undecided: u64, tally: &mut Tally) -> Result<(), String> {
    let (mut there, mut absent) = (0, 0);
    for Sender { number, version, is_sent, .. } in senders {
        let own;
        (own, held) = held.into_iter().partition(|((_, name), _)| name.starts_with(format!("client {number} ").as_bytes()));
        let sent = *version + u64::from(*is_sent);
        let Some(found) = (*version..=sent).find(|&version| state(*number, version) == own) else {
            let alike = |version| state(*number, version).iter().filter(|&(place, value)| own.get(place) == Some(value)).count();
            let [of_version, of_next] = [*version, *version + 1].map(alike);
            let count = own.len();
            return Err(format!(
                "client {number} has {count} keys: {of_version} as batch {version} left them, which was acknowledged, and {of_next} as the next does; \
                 sent were {sent}"
            ));
        };
        there += found - *version;
        absent += sent - found;
        (*version, *is_sent) = (found, false);
    }
    if let Some((database, name)) = held.keys().next() {
        return Err(format!("{} keys are there that should not be, such as {:?} in {database}", held.len(), name.escape_ascii().to_string()));
    }
    if undecided > absent {
        return Err(format!("{undecided} batches were undecided, and only {absent} of those under way have not happened"));
    }
    tally.hits += u64::from(there + absent > 0);
    tally.there += there;
    tally.absent += absent;
    tally.undone += undecided;
    Ok(())
}

/// The check must notice defects: this simulates what they would leave.
#[test]
fn a_torn_batch_would_be_noticed() {
    let all = |versions: [u64; 4]| (0..4).flat_map(|client| state(client, versions[client as usize])).collect::<Held>();
    let judge_of = |held: Held, undecided| {
        let mut senders: Vec<_> = (0..4).map(|number| Sender { version: 8, is_sent: number < 2, ..Sender::new(number) }).collect();
        judge(held, &mut senders, undecided, &mut Tally::default())
    };
    for (versions, undecided) in [([8, 8, 8, 8], 2), ([9, 8, 8, 8], 1), ([8, 9, 8, 8], 0), ([9, 9, 8, 8], 0)] {
        assert_eq!(judge_of(all(versions), undecided), Ok(()), "{versions:?}");
    }
    // An acknowledged batch is gone, one that was not sent completely is there, one was undecided although none is missing.
    for (versions, undecided) in [([8, 7, 8, 8], 0), ([8, 8, 7, 8], 0), ([8, 8, 9, 8], 0), ([10, 8, 8, 8], 0), ([9, 9, 8, 8], 1), ([0; 4], 0)] {
        assert!(judge_of(all(versions), undecided).is_err(), "{versions:?}, {undecided} undecided");
    }
    // Part of a batch: a single key has its old value, or its new one.
    for (client, key) in (0..2).flat_map(|client| (0..KEYS).step_by(199).map(move |key| (client, key))) {
        for (whole, other) in [(8, 9), (9, 8)] {
            let (mut held, place) = (all([8, 8, 8, 8]), place(client, key));
            held.retain(|(_, name), _| !name.starts_with(format!("client {client} ").as_bytes()));
            held.extend(state(client, whole));
            held.remove(&place);
            held.extend(state(client, other).remove_entry(&place));
            let what = judge_of(held, 0).expect_err("a torn batch");
            assert!(what.contains(&format!("client {client} has")), "key {key}: {what}");
        }
    }
    // Keys and values that no batch has ever set.
    for place in [(0, name(0, KEYS)), (5, name(3, 1)), (1, b"a key".to_vec())] {
        let mut held = all([8, 8, 8, 8]);
        held.insert(place, b"8.".to_vec());
        assert!(judge_of(held, 0).is_err());
    }
}
