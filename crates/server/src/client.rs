//! Clients: a connection as the executor and other connections see it.

use crate::calls::Ongoing;
use crate::command::Spec;
use crate::executor::Unfinished;
use crate::queue::Queue;
use crate::reply::{Protocol, Reply};
use crate::shared::Shared;
use crate::socket::Address;
use everleaf::Snapshot;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Whether a client wants replies, as CLIENT REPLY says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replies {
    On,
    Off,
    /// Not after the next command.
    SkipNext,
    /// Not to the command that is running.
    Skip,
}

/// Whether a connection is about to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    No,
    /// No further command is run; replies are still sent.
    AfterReplies,
}

/// Keys that a client watches.
#[derive(Default)]
pub(crate) struct Watched {
    /// By the number of the database and the key, with the snapshot that shows the key as it was then.
    pub(crate) keys: BTreeMap<(usize, Vec<u8>), Arc<Snapshot>>,
    /// Their size in bytes.
    pub(crate) size: usize,
}

/// A connection as its commands see it.
pub(crate) struct Session {
    pub(crate) client: Arc<Client>,
    /// Whether the client has sent the password, or there was none.
    pub(crate) authenticated: bool,
    /// Selected database.
    pub(crate) database: usize,
    /// The last command run.
    pub(crate) command: Option<&'static Spec>,
    pub(crate) replies: Replies,
    pub(crate) closing: Closing,
    /// A command in progress. Until it is done, no other runs.
    pub(crate) unfinished: Option<Box<dyn Unfinished>>,
    /// What the slow log is to say of it, if it is one of Redis.
    pub(crate) ongoing: Option<Ongoing>,
    /// Commands queued since MULTI.
    pub(crate) queue: Option<Queue>,
    pub(crate) watched: Watched,
    /// Whether a command of the current transaction wants a backup to begin when it has been committed.
    pub(crate) wants_backup: bool,
}

impl Session {
    pub(crate) fn new(client: Arc<Client>, authenticated: bool) -> Self {
        Self {
            client,
            authenticated,
            database: 0,
            command: None,
            replies: Replies::On,
            closing: Closing::No,
            unfinished: None,
            ongoing: None,
            queue: None,
            watched: Watched::default(),
            wants_backup: false,
        }
    }

    /// Whether the client must send a password before anything else: not if none is required any more, whatever was required when it connected.
    pub(crate) fn owes_password(&self, server: &Shared) -> bool {
        !self.authenticated && server.has_password()
    }

    /// Resets it to the initial state; a reply to be skipped is still skipped.
    pub(crate) fn reset(&mut self, authenticated: bool) {
        self.client.seen.lock().name.clear();
        self.authenticated = authenticated;
        self.database = 0;
        if self.replies != Replies::Skip {
            self.replies = Replies::On;
        }
        self.end_transaction();
    }

    /// Forgets queued commands and watched keys.
    pub(crate) fn end_transaction(&mut self) {
        self.queue = None;
        self.watched = Watched::default();
    }

    /// Publishes what CLIENT LIST shows to other connections, which see only [`Client`].
    pub(crate) fn publish(&self, server: &Shared, input_size: usize, reply: &Reply) {
        let mut seen = self.client.seen.lock();
        seen.active = server.now();
        seen.command = self.command;
        seen.database = self.database;
        seen.queued = self.queue.as_ref().map(Queue::len);
        seen.is_watching = !self.watched.keys.is_empty();
        seen.protocol = reply.protocol;
        seen.input_size = input_size;
        seen.output_size = reply.waiting();
    }
}

/// A connection as other connections see it.
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) address: Address,
    pub(crate) local: Address,
    /// The event loop that serves it.
    pub(crate) thread: usize,
    pub(crate) since: Instant,
    pub(crate) killed: AtomicBool,
    pub(crate) seen: Mutex<Seen>,
}

/// The part of a client that changes.
pub(crate) struct Seen {
    pub(crate) name: Vec<u8>,
    pub(crate) library: Vec<u8>,
    pub(crate) library_version: Vec<u8>,
    active: Instant,
    command: Option<&'static Spec>,
    database: usize,
    /// Number of commands since MULTI.
    queued: Option<usize>,
    is_watching: bool,
    protocol: Protocol,
    input_size: usize,
    output_size: usize,
}

impl Client {
    /// The line of CLIENT LIST, without its line end. Fields without meaning here have the value that clients expect of an ordinary connection.
    pub(crate) fn describe(&self, server: &Shared) -> Vec<u8> {
        let seen = self.seen.lock();
        let seconds = |since: Instant| server.now().saturating_duration_since(since).as_secs();
        let flags = match (seen.queued, &self.address) {
            (Some(_), Address::Unix(_)) => "xU",
            (Some(_), Address::Ip(_)) => "x",
            (None, Address::Unix(_)) => "U",
            (None, Address::Ip(_)) => "N",
        };
        let mut line = format!("id={} addr={} laddr={} name=", self.id, self.address, self.local).into_bytes();
        line.extend_from_slice(&seen.name);
        let rest = format!(
            " age={} idle={} flags={} db={} sub=0 psub=0 ssub=0 multi={} qbuf={} obl={} oll=0 omem={} events=r cmd={} user=default redir=-1 resp={} lib-name=",
            seconds(self.since),
            seconds(seen.active),
            flags,
            seen.database,
            seen.queued.map_or(-1, |count| count as i64),
            seen.input_size,
            seen.output_size,
            seen.output_size,
            seen.command.map_or("NULL", |command| command.name),
            seen.protocol.version(),
        );
        line.extend_from_slice(rest.as_bytes());
        line.extend_from_slice(&seen.library);
        line.extend_from_slice(b" lib-ver=");
        line.extend_from_slice(&seen.library_version);
        line
    }
}

/// All connections, by number.
#[derive(Default)]
pub(crate) struct Clients {
    last: Mutex<u64>,
    by_id: Mutex<BTreeMap<u64, Arc<Client>>>,
}

impl Clients {
    pub(crate) fn add(&self, address: Address, local: Address, thread: usize) -> Arc<Client> {
        let id = {
            let mut last = self.last.lock();
            *last += 1;
            *last
        };
        let now = Instant::now();
        let seen = Seen {
            name: Vec::new(),
            library: Vec::new(),
            library_version: Vec::new(),
            active: now,
            command: None,
            database: 0,
            queued: None,
            is_watching: false,
            protocol: Protocol::Resp2,
            input_size: 0,
            output_size: 0,
        };
        let client = Arc::new(Client { id, address, local, thread, since: now, killed: AtomicBool::new(false), seen: Mutex::new(seen) });
        self.by_id.lock().insert(id, client.clone());
        client
    }

    pub(crate) fn remove(&self, client: &Client) {
        self.by_id.lock().remove(&client.id);
    }

    pub(crate) fn get(&self, id: u64) -> Option<Arc<Client>> {
        self.by_id.lock().get(&id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Client>> {
        self.by_id.lock().values().cloned().collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.by_id.lock().len()
    }
}

impl Client {
    /// Whether it has sent WATCH, and nothing that ended it.
    pub(crate) fn is_watching(&self) -> bool {
        self.seen.lock().is_watching
    }

    pub(crate) fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }
}

/// Whether `name` may name a connection: printable ASCII without spaces.
pub(crate) fn is_name(name: &[u8]) -> bool {
    name.iter().all(|byte| (b'!'..=b'~').contains(byte))
}
