//! The server: listening sockets and the threads behind them.

use crate::config::Config;
use crate::conversation::Dialect;
use crate::event_loop::{EventLoop, Inbox, WAKE};
use crate::executor::backup::begin_scheduled;
use crate::shared::Shared;
use everleaf::Store;
use mio::net::TcpListener;
use mio::{Poll, Waker};
use socket2::{Domain, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Why a server did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another program listens there, or the address is not this machine's.
    #[error("cannot listen on {address}: {source}; stop what listens there, or choose another --bind, --port or --memcached-port")]
    Listen {
        /// Where it was to listen.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused something, and no configuration can help.
    #[error("event loop: {0}")]
    EventLoop(#[from] io::Error),
    /// An error of the store.
    #[error(transparent)]
    Store(#[from] everleaf::Error),
    /// A thread panicked, which only a bug can cause. The store is as after a crash: nothing that was acknowledged is lost.
    #[error("a server thread panicked; its message is above, please report it")]
    Panicked,
}

/// Sockets that listen, before there is a store to serve.
pub struct Listener {
    redis: Bound,
    memcached: Option<Bound>,
}

/// A listening socket and its address.
struct Bound {
    socket: TcpListener,
    local: SocketAddr,
}

/// Clients that may connect before they are accepted. A client that exceeds this tries again after a second. The system may allow fewer.
const BACKLOG: i32 = 4096;

impl Bound {
    fn to(address: SocketAddr) -> Result<Self, Error> {
        let socket = listen(address).map_err(|source| Error::Listen { address, source })?;
        let local = socket.local_addr()?;
        Ok(Self { socket, local })
    }
}

/// Like [`TcpListener::bind`], which lets only few clients wait.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(TcpListener::from_std(socket.into()))
}

impl Listener {
    /// Listens as `config` says. Clients can connect from now on; they are served when [`Server::run`] is called.
    ///
    /// # Errors
    /// It cannot listen there.
    pub fn bind(config: &Config) -> Result<Self, Error> {
        let bind = |port| Bound::to(SocketAddr::new(config.address, port));
        Ok(Self { redis: bind(config.port)?, memcached: config.memcached_port.map(bind).transpose()? })
    }
}

/// A server that listens.
pub struct Server {
    local: SocketAddr,
    memcached: Option<SocketAddr>,
    shared: Arc<Shared>,
    loops: Vec<EventLoop>,
}

/// Stops a server, from any thread. Cheap to clone.
#[derive(Clone)]
pub struct Stop(Arc<Shared>);

impl Stop {
    /// Asks the server to stop: it accepts no more connections, answers what it has read, sends the replies, closes the connections, and [`Server::run`] ends.
    pub fn stop(&self) {
        self.0.stop();
    }
}

impl Server {
    /// Listens as `config` says. Clients can connect from now on; they are served when [`Server::run`] is called.
    ///
    /// # Errors
    /// It cannot listen there, or the store cannot give the databases.
    pub fn bind(config: Config, store: Arc<Store>) -> Result<Self, Error> {
        Self::on(Listener::bind(&config)?, config, store)
    }

    /// The same, on sockets that listen already, whatever address `config` has.
    ///
    /// # Errors
    /// The store cannot give the databases.
    pub fn on(listener: Listener, config: Config, store: Arc<Store>) -> Result<Self, Error> {
        let Listener { redis: Bound { socket, local }, memcached } = listener;
        let mut sockets = vec![(socket, Dialect::Redis)];
        let memcached = memcached.map(|Bound { socket, local }| {
            sockets.push((socket, Dialect::Memcached));
            local
        });
        let polls = (0..config.threads.max(1)).map(|_| Poll::new()).collect::<Result<Vec<_>, _>>()?;
        let wakers = polls.iter().map(|poll| Waker::new(poll.registry(), WAKE)).collect::<Result<Vec<_>, _>>()?;
        let inboxes: Arc<[Inbox]> = polls.iter().map(|_| Inbox::default()).collect();
        let shared = Arc::new(Shared::new(config, local.port(), store, wakers)?);
        let loops = polls
            .into_iter()
            .enumerate()
            .map(|(index, poll)| EventLoop::new(index, poll, shared.clone(), inboxes.clone(), std::mem::take(&mut sockets)))
            .collect::<Result<_, _>>()?;
        Ok(Self { local, memcached, shared, loops })
    }

    /// The address on which it listens: with port 0, the port is the one that the system chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The address on which it listens for clients of memcached, if it does.
    pub fn memcached_addr(&self) -> Option<SocketAddr> {
        self.memcached
    }

    /// A handle to stop it.
    pub fn stop_handle(&self) -> Stop {
        Stop(self.shared.clone())
    }

    /// Serves until it is stopped, by [`Stop`] or by a client's SHUTDOWN. Uses the calling thread for the first event loop.
    ///
    /// # Errors
    /// The kernel refuses to report events, or a thread panicked. The other threads are then stopped.
    pub fn run(self) -> Result<(), Error> {
        let shared = &self.shared;
        let run = |mut event_loop: EventLoop| {
            // However this thread ends, the others must not continue without it.
            let _stop = StopOnDrop(shared);
            event_loop.run()
        };
        let mut loops = self.loops.into_iter();
        thread::scope(|scope| {
            let first = loops.next();
            let others: Vec<_> = loops
                .enumerate()
                .map(|(index, event_loop)| thread::Builder::new().name(format!("everleaf-{}", index + 1)).spawn_scoped(scope, move || run(event_loop)))
                .collect::<Result<_, _>>()
                .inspect_err(|_| shared.stop())?;
            let sweeper = thread::Builder::new().name("everleaf-sweep".into()).spawn_scoped(scope, || sweep(shared)).inspect_err(|_| shared.stop())?;
            let mut outcome = first.map_or(Ok(()), run).map_err(Error::from);
            sweeper.thread().unpark();
            for thread in others {
                let ended = thread.join().map_or(Err(Error::Panicked), |ended| ended.map_err(Error::from));
                outcome = outcome.and(ended);
            }
            shared.backups.join();
            shared.compactions.join();
            outcome
        })
    }
}

/// Pause between turns of the sweep when there is little to do.
pub(crate) const SWEEP_PAUSE: Duration = Duration::from_millis(100);

/// Removes expired keys, gives back what snapshots have held back, and begins scheduled backups, until the server stops.
fn sweep(server: &Shared) {
    // However this thread ends, the server must not run without it.
    let _stop = StopOnDrop(server);
    while !server.is_stopping() {
        server.sample_rate();
        begin_scheduled(server);
        if !server.store.keep_house() {
            thread::park_timeout(SWEEP_PAUSE);
        }
    }
}

struct StopOnDrop<'a>(&'a Shared);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    /// Clients beyond the first hundred or so had to try again, seconds later.
    #[test]
    fn many_may_connect_before_one_is_accepted() {
        let listener = Listener::bind(&Config { port: 0, memcached_port: Some(0), ..Config::default() }).unwrap();
        let addresses = [Some(&listener.redis), listener.memcached.as_ref()].map(|bound| bound.unwrap().local);
        // The system may allow fewer.
        let room = std::fs::read_to_string("/proc/sys/net/core/somaxconn").map_or(128, |text| text.trim().parse().unwrap());
        for address in addresses {
            let connect = |_| TcpStream::connect_timeout(&address, Duration::from_millis(900)).unwrap();
            let clients: Vec<_> = (0..400.min(room)).map(connect).collect();
            assert_eq!(clients.len(), 400.min(room));
        }
    }
}
