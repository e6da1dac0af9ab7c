//! An event loop: a thread and the connections it serves.
//!
//! The first loop also accepts, and hands each connection to the loop that has the fewest. Sockets are registered once, edge-triggered, for both directions.
//! Each turn of the loop asks the kernel what is ready, gives every ready connection one turn, and then one to each that wanted another: so no pipeline,
//! however long, keeps its neighbours waiting for more than a slice. At the end of the turn the loop runs the commands that connections have held for it, those
//! of many clients at once.

use crate::client::Session;
use crate::connection::{Buffers, Connection, Turn};
use crate::conversation::Dialect;
use crate::group::{Part, run_for_clients};
use crate::listener::Bound;
use crate::shared::Shared;
use crate::socket::{Address, Socket};
use mio::event::Event;
use mio::{Events, Interest, Poll, Token};
use parking_lot::Mutex;
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(crate) const WAKE: Token = Token(usize::MAX);
/// Token of the first listener; those of the others are below it.
const LISTENER: usize = usize::MAX - 1;
/// Events requested at a time.
const EVENT_COUNT: usize = 1024;
/// Largest number of connections whose commands are run together: that many single SETs share a wait for a device.
const CLIENTS_AT_ONCE: usize = 256;
/// Connections accepted in a turn, so that a storm of them leaves the others their turns.
const ACCEPT_COUNT_MAX: usize = 64;
/// How long to wait after the process ran out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often a stopping loop checks whether its patience has ended.
const STOP_TICK: Duration = Duration::from_millis(10);

/// Connections that the first loop accepted for another loop.
#[derive(Default)]
pub(crate) struct Inbox {
    arrived: Mutex<Vec<(Socket, Address, Dialect)>>,
    /// Number of the loop's connections, including those in the inbox.
    count: AtomicUsize,
}

/// An event loop.
pub(crate) struct EventLoop {
    index: usize,
    poll: Poll,
    server: Arc<Shared>,
    inboxes: Arc<[Inbox]>,
    listeners: Vec<Door>,
    connections: Slab<Connection>,
    /// Connections that wanted another turn.
    queue: VecDeque<usize>,
    /// Connections with commands to be run at the end of this turn; some may have been closed since.
    held: Vec<usize>,
    /// When the patience with a TLS client's handshake ends, in this order, with its key and its number.
    handshakes: VecDeque<(Instant, usize, u64)>,
    buffers: Buffers,
}

/// A listening socket.
struct Door {
    listener: Bound,
    /// Whether there may be connections to accept.
    acceptable: bool,
    /// Whether descriptors or memory for a connection were lacking.
    lacks_room: bool,
}

impl Door {
    fn new(listener: Bound) -> Self {
        Self { listener, acceptable: false, lacks_room: false }
    }
}

impl EventLoop {
    pub(crate) fn new(index: usize, poll: Poll, server: Arc<Shared>, inboxes: Arc<[Inbox]>, listeners: Vec<Bound>) -> io::Result<Self> {
        let mut listeners: Vec<_> = listeners.into_iter().map(Door::new).collect();
        for (number, door) in listeners.iter_mut().enumerate() {
            poll.registry().register(door.listener.source(), Token(LISTENER - number), Interest::READABLE)?;
        }
        let (connections, queue, held, handshakes, buffers) = (Slab::new(), VecDeque::new(), Vec::new(), VecDeque::new(), Buffers::default());
        Ok(Self { index, poll, server, inboxes, listeners, connections, queue, held, handshakes, buffers })
    }

    /// Serves until the server stops.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENT_COUNT);
        while !self.server.is_stopping() {
            self.turn(&mut events, self.patience())?;
        }
        self.finish(&mut events)
    }

    /// How long to wait until something is ready.
    fn patience(&self) -> Option<Duration> {
        let mut knocked_at = self.listeners.iter().filter(|door| door.acceptable).peekable();
        match self.queue.is_empty() {
            true if knocked_at.peek().is_none() => self.handshakes.front().map(|(end, ..)| end.saturating_duration_since(self.server.now())),
            true if knocked_at.all(|door| door.lacks_room) => Some(ACCEPT_PAUSE),
            _ => Some(Duration::ZERO),
        }
    }

    fn turn(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(events, timeout) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            _ => self.server.look_at_clock(),
        }
        // The connections queued now have waited longest; those that this turn adds wait for the next.
        let queued_count = self.queue.len();
        for event in events.iter() {
            match event.token() {
                WAKE => self.look_around(),
                token => match self.listeners.get_mut(LISTENER - token.0) {
                    Some(door) => door.acceptable = true,
                    None => self.ready(token.0, event),
                },
            }
        }
        for _ in 0..queued_count {
            let Some(key) = self.queue.pop_front() else { break };
            // Held commands are answered once, by the turn that they belong to.
            if self.connections.get(key).is_some_and(|connection| connection.held_database().is_none()) {
                self.give_turn(key);
            }
        }
        self.settle();
        self.drop_late_handshakes();
        (0..self.listeners.len()).for_each(|door| self.accept(door));
        Ok(())
    }

    /// Closes TLS connections whose clients have not finished their handshakes in time.
    fn drop_late_handshakes(&mut self) {
        while let Some(&(end, key, id)) = self.handshakes.front()
            && end <= self.server.now()
        {
            self.handshakes.pop_front();
            // Most have finished, and some are gone, with another in their place.
            if self.connections.get(key).is_some_and(|connection| connection.socket.is_handshaking() && connection.session().client.id == id) {
                self.close(key);
            }
        }
    }

    fn ready(&mut self, key: usize, event: &Event) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.note(event);
        if !connection.queued {
            self.give_turn(key);
        }
    }

    fn give_turn(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let turn = connection.turn(&self.server, self.server.counters(self.index), &mut self.buffers);
        self.follow(key, turn);
    }

    fn follow(&mut self, key: usize, turn: Turn) {
        self.connections[key].queued = matches!(turn, Turn::Again | Turn::Held);
        match turn {
            Turn::Wait => {}
            Turn::Again => self.queue.push_back(key),
            Turn::Held => self.held.push(key),
            Turn::Close => self.close(key),
        }
    }

    /// Runs the held commands, those of a database together, and answers them. If there are many clients, or much to answer, some are answered before others
    /// are run. A connection occurs once: it gets no other turn before. A connection in the slot of one that was closed since holds nothing, because it gets no
    /// turn in this one.
    fn settle(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let mut of_databases = BTreeMap::<usize, Vec<usize>>::new();
        for key in std::mem::take(&mut self.held) {
            if let Some(database) = self.connections.get(key).and_then(Connection::held_database) {
                of_databases.entry(database).or_default().push(key);
            }
        }
        let server = Arc::clone(&self.server);
        let counters = server.counters(self.index);
        for (database, keys) in of_databases {
            let mut keys = keys.into_iter();
            let mut held = VecDeque::with_capacity(keys.len().min(CLIENTS_AT_ONCE));
            loop {
                let others = keys.by_ref().take(CLIENTS_AT_ONCE - held.len());
                held.extend(others.map(|key| (key, self.connections[key].take_reply(&mut self.buffers))));
                if held.is_empty() {
                    break;
                }
                let done: Vec<usize> = {
                    let mut parts: Vec<_> = held.iter_mut().map(|(key, reply)| self.connections[*key].held_part(reply)).collect();
                    let _working = server.gate.enter(self.index);
                    let count = run_for_clients(&server, database, counters, &mut parts);
                    parts[..count].iter().map(Part::done).collect()
                };
                for ((key, reply), done) in held.drain(..done.len()).zip(done) {
                    let turn = self.connections[key].settle(&server, counters, &mut self.buffers, reply, done);
                    self.follow(key, turn);
                }
            }
        }
    }

    /// Dropping the socket closes it and removes it from the poll. Its place in the queue, if any, must go, too: it would become that of the next connection
    /// with this key, which may hold commands when this unrequested turn comes.
    fn close(&mut self, key: usize) {
        if let Some(connection) = self.connections.try_remove(key) {
            self.server.counters(self.index).failed_handshakes.add(connection.socket.is_handshaking().into());
            if connection.queued {
                self.queue.retain(|&queued| queued != key);
            }
            self.server.clients.remove(&connection.session().client);
            self.inboxes[self.index].count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Another thread woke this loop: connections arrived, or some are to be closed.
    fn look_around(&mut self) {
        let arrived = std::mem::take(&mut *self.inboxes[self.index].arrived.lock());
        for (socket, address, dialect) in arrived {
            self.adopt(socket, address, dialect);
        }
        let killed: Vec<usize> = self.connections.iter().filter(|(_, connection)| connection.session().client.is_killed()).map(|(key, _)| key).collect();
        killed.into_iter().for_each(|key| self.close(key));
    }

    fn accept(&mut self, door: usize) {
        for _ in 0..ACCEPT_COUNT_MAX {
            let Some(Door { listener, acceptable, lacks_room }) = self.listeners.get_mut(door).filter(|door| door.acceptable) else { break };
            *lacks_room = false;
            match listener.accept() {
                Ok((socket, address)) => {
                    let dialect = listener.dialect;
                    self.welcome(socket, address, dialect);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => *acceptable = false,
                // A peer that gave up while it waited needs nothing.
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                // `acceptable` stays set, so this is retried after a pause.
                Err(_) => {
                    *lacks_room = true;
                    break;
                }
            }
        }
    }

    /// Gives a new connection to the loop that has the fewest.
    fn welcome(&mut self, mut socket: Socket, address: Address, dialect: Dialect) {
        let counters = self.server.counters(self.index);
        let total: usize = self.inboxes.iter().map(|inbox| inbox.count.load(Ordering::Relaxed)).sum();
        if total >= self.server.connection_count_max.load(Ordering::Relaxed) {
            counters.rejected.add(1);
            // It is not worth waiting to tell the peer the reason.
            let _ = socket.write(match dialect {
                Dialect::Redis => b"-ERR max number of clients reached\r\n",
                Dialect::Memcached => b"ERROR Too many open connections\r\n",
            });
            return;
        }
        counters.connections.add(1);
        let load = |index: &usize| self.inboxes[*index].count.load(Ordering::Relaxed);
        let chosen = (0..self.inboxes.len()).min_by_key(load).unwrap_or(self.index);
        self.inboxes[chosen].count.fetch_add(1, Ordering::Relaxed);
        if chosen == self.index {
            self.adopt(socket, address, dialect);
        } else {
            self.inboxes[chosen].arrived.lock().push((socket, address, dialect));
            self.server.wake(chosen);
        }
    }

    fn adopt(&mut self, mut socket: Socket, address: Address, dialect: Dialect) {
        let entry = self.connections.vacant_entry();
        let prepared = socket
            .prepare(&address, self.server.config.keepalive_seconds)
            .and_then(|local| self.poll.registry().register(socket.source(), Token(entry.key()), Interest::READABLE | Interest::WRITABLE).map(|()| local));
        match prepared {
            Ok(local) => {
                let client = self.server.clients.add(address, local, self.index);
                if socket.is_handshaking() {
                    self.handshakes.push_back((self.server.now() + self.server.config.handshake_patience, entry.key(), client.id));
                }
                let mut session = Session::new(client, !self.server.has_password());
                if dialect == Dialect::Memcached {
                    session.database = self.server.databases.len();
                }
                entry.insert(Connection::new(socket, session, dialect));
            }
            // It broke while it was handed over.
            Err(_) => drop(self.inboxes[self.index].count.fetch_sub(1, Ordering::Relaxed)),
        }
    }

    /// Answers what was read, sends the replies, and closes. Does not wait longer than configured for clients that do not take their replies.
    fn finish(&mut self, events: &mut Events) -> io::Result<()> {
        self.listeners.clear();
        let deadline = Instant::now() + self.server.config.stop_patience;
        let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
        self.queue.clear();
        keys.into_iter().for_each(|key| self.give_turn(key));
        self.settle();
        while !self.connections.is_empty() && Instant::now() < deadline {
            let timeout = if self.queue.is_empty() { STOP_TICK } else { Duration::ZERO };
            self.turn(events, Some(timeout))?;
        }
        let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.close(key));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use everleaf::{Domain, Options, Store};
    use mio::Waker;
    use mio::net::TcpStream;
    use socket2::SockRef;
    use std::io::Read;
    use std::net;
    use std::thread;

    fn loop_over(store: Store) -> (Arc<Shared>, EventLoop) {
        let poll = Poll::new().unwrap();
        let waker = Waker::new(poll.registry(), WAKE).unwrap();
        let server = Arc::new(Shared::new(Config::default(), Arc::new(store), vec![waker]).unwrap());
        let event_loop = EventLoop::new(0, poll, server.clone(), [Inbox::default()].into(), Vec::new()).unwrap();
        (server, event_loop)
    }

    /// A client that has sent `text`, and the accepted socket.
    fn client_of(text: &str) -> (net::TcpStream, Socket, Address) {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, address) = listener.accept().unwrap();
        SockRef::from(&socket).set_send_buffer_size(16 * 1024).unwrap();
        socket.set_nonblocking(true).unwrap();
        client.write_all(text.as_bytes()).unwrap();
        while !matches!(socket.peek(&mut vec![0; text.len()]), Ok(size) if size == text.len()) {
            thread::yield_now();
        }
        (client, Socket::Tcp(TcpStream::from_std(socket)), Address::Ip(address))
    }

    /// Further connections waited for a while as if descriptors had run out.
    #[test]
    fn more_who_knock_than_a_turn_accepts_are_not_kept_waiting() {
        let (_server, mut event_loop) = loop_over(Store::anonymous(Options { size_max: 64 << 20, ..Options::default() }).unwrap());
        let mut listener = Bound::to("127.0.0.1:0".parse().unwrap(), Dialect::Redis, None).unwrap();
        let Address::Ip(address) = listener.address else { unreachable!("it is bound to one") };
        event_loop.poll.registry().register(listener.source(), Token(LISTENER), Interest::READABLE).unwrap();
        event_loop.listeners.push(Door::new(listener));
        let clients: Vec<_> = (0..ACCEPT_COUNT_MAX + 1).map(|_| net::TcpStream::connect(address).unwrap()).collect();
        let mut events = Events::with_capacity(EVENT_COUNT);
        while event_loop.connections.len() < ACCEPT_COUNT_MAX {
            event_loop.turn(&mut events, None).unwrap();
        }
        assert_eq!((event_loop.connections.len(), event_loop.patience()), (ACCEPT_COUNT_MAX, Some(Duration::ZERO)));
        while event_loop.connections.len() < clients.len() {
            event_loop.turn(&mut events, None).unwrap();
        }
    }

    /// Earlier replies are sent first; a client that is gone at the end of the turn has set nothing.
    #[test]
    fn commands_are_held_where_a_write_waits_for_a_device() {
        let directory = tempfile::tempdir().unwrap();
        let options = Options { domain: Some(Domain::Msync), ..Options::default() };
        let (server, mut event_loop) = loop_over(Store::open(directory.path().join("test.pool"), options).unwrap());
        let set = |key: &str, value: u32| format!("*3\r\n$3\r\nSET\r\n$1\r\n{key}\r\n$1\r\n{value}\r\n");
        let mut clients = Vec::new();
        let of_key = |name: &str, key: &str| format!("*2\r\n$3\r\n{name}\r\n$1\r\n{key}\r\n");
        let mixed = [of_key("GET", "d"), set("a", 0), of_key("DEL", "d"), of_key("GET", "a"), of_key("DEL", "a"), set("a", 1)].concat();
        for text in [mixed, ["PING\r\n", &set("b", 2), &set("b", 3), "*3\r\n$3\r\nSET"].concat(), set("c", 4)] {
            let (client, socket, address) = client_of(&text);
            event_loop.welcome(socket, address, Dialect::Redis);
            clients.push(client);
        }
        let mut events = Events::with_capacity(EVENT_COUNT);
        while event_loop.held.len() < clients.len() {
            event_loop.poll.poll(&mut events, None).unwrap();
            events.iter().for_each(|event| event_loop.ready(event.token().0, event));
        }
        let expect = |client: &mut net::TcpStream, reply: &str| {
            let mut got = vec![0; reply.len()];
            client.read_exact(&mut got).unwrap();
            assert_eq!(String::from_utf8(got).unwrap(), reply);
        };
        expect(&mut clients[1], "+PONG\r\n");
        let keys = || ["a", "b", "c"].map(|key| server.databases[0].get(key.as_bytes()).unwrap().map(|value| value[0]));
        assert_eq!(keys(), [None; 3]);
        event_loop.close(2);
        event_loop.settle();
        assert_eq!(keys(), [Some(b'1'), Some(b'3'), None]);
        expect(&mut clients[0], "$-1\r\n+OK\r\n:0\r\n$1\r\n0\r\n:1\r\n+OK\r\n");
        expect(&mut clients[1], "+OK\r\n+OK\r\n");
        clients[1].write_all(b"\r\n$1\r\nb\r\n$1\r\n5\r\nGET b\r\n").unwrap();
        clients[0].write_all(set("a", 6).as_bytes()).unwrap();
        while keys() != [Some(b'6'), Some(b'5'), None] {
            event_loop.turn(&mut events, None).unwrap();
        }
        expect(&mut clients[0], "+OK\r\n");
        expect(&mut clients[1], "+OK\r\n$1\r\n5\r\n");
        server.stop();
        event_loop.finish(&mut events).unwrap();
    }

    /// The queue entry of a closed connection was taken for its successor's, in the middle of the successor's turn: its commands were run and answered twice,
    /// or the loop panicked.
    #[test]
    fn the_place_in_the_queue_of_a_connection_that_is_gone_is_not_its_successors() {
        // As much as one read takes, so that there may be more to read.
        const INPUT_SIZE: usize = 32 * 1024;
        let directory = tempfile::tempdir().unwrap();
        let options = Options { domain: Some(Domain::Msync), ..Options::default() };
        let (server, mut event_loop) = loop_over(Store::open(directory.path().join("test.pool"), options).unwrap());
        let (_gone, socket, address) = client_of(&format!("ECHO {}\r\n", "x".repeat(INPUT_SIZE - "ECHO \r\n".len())));
        event_loop.welcome(socket, address, Dialect::Redis);
        let mut events = Events::with_capacity(EVENT_COUNT);
        event_loop.turn(&mut events, None).unwrap();
        assert_eq!(event_loop.queue, [0]);
        event_loop.close(0);

        let sets = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\n1\r\n*2\r\n$3\r\nDEL\r\n$1\r\nk\r\n";
        let (mut client, socket, address) = client_of(sets);
        client.shutdown(net::Shutdown::Write).unwrap();
        event_loop.welcome(socket, address, Dialect::Redis);
        assert!(event_loop.connections.contains(0));
        while !event_loop.connections.is_empty() {
            let timeout = if event_loop.queue.is_empty() { None } else { Some(Duration::ZERO) };
            event_loop.turn(&mut events, timeout).unwrap();
        }
        let mut replies = String::new();
        client.read_to_string(&mut replies).unwrap();
        assert_eq!(replies, "+OK\r\n:1\r\n");
        server.stop();
        event_loop.finish(&mut events).unwrap();
    }

    /// It was in the queue, which a stop clears, and counted as queued for ever after: events of its socket were ignored, and the rest of its replies was lost.
    #[test]
    fn a_stop_sends_all_that_a_connection_was_answered_which_wanted_another_turn() {
        // More than the sockets buffer.
        const VALUE_SIZE: usize = 512 * 1024;
        // As much as one read takes, so that there may be more to read.
        const INPUT_SIZE: usize = 32 * 1024;
        let store = Store::anonymous(Options { size_max: 64 << 20, ..Options::default() }).unwrap();
        store.namespace("0").unwrap().put(b"k", &vec![b'v'; VALUE_SIZE]).unwrap();
        let (server, mut event_loop) = loop_over(store);
        let echo = "x".repeat(INPUT_SIZE - "GET k\r\nECHO \r\n".len());
        let (mut client, socket, address) = client_of(&format!("GET k\r\nECHO {echo}\r\n"));
        event_loop.welcome(socket, address, Dialect::Redis);
        let mut events = Events::with_capacity(EVENT_COUNT);
        event_loop.turn(&mut events, None).unwrap();
        assert_eq!(event_loop.queue.len(), 1);

        server.stop();
        let reader = thread::spawn(move || {
            let mut replies = Vec::new();
            client.read_to_end(&mut replies).map(|_| replies)
        });
        event_loop.finish(&mut events).unwrap();
        let replies = reader.join().unwrap().unwrap();
        assert_eq!(replies.len(), format!("${VALUE_SIZE}\r\n\r\n${}\r\n{echo}\r\n", echo.len()).len() + VALUE_SIZE);
    }
}
