//! The server: what listens, and the threads behind it.

use crate::config::Config;
use crate::conversation::Dialect;
use crate::event_loop::{EventLoop, Inbox, WAKE};
use crate::executor::backup::begin_scheduled;
use crate::listener::Listener;
use crate::shared::Shared;
use everleaf::Store;
use mio::{Poll, Waker};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Why a server did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another program listens there, or the address is not this machine's.
    #[error("cannot listen on {address}: {source}; stop what listens there, or choose another --bind or another port")]
    Listen {
        /// Where it was to listen.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// No Unix socket can be there.
    #[error("cannot listen on {}: {what}", path.display())]
    UnixSocket {
        /// Where it was to listen.
        path: PathBuf,
        /// What is wrong, and what to do.
        what: String,
    },
    /// A file for TLS cannot be used.
    #[error("TLS: {} {what}", path.display())]
    Tls {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        what: String,
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

/// A server that listens.
pub struct Server {
    local: Option<SocketAddr>,
    tls: Option<SocketAddr>,
    memcached: Option<SocketAddr>,
    memcached_tls: Option<SocketAddr>,
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
    /// It cannot listen there, a file for TLS cannot be used, or the store cannot give the databases.
    pub fn bind(config: Config, store: Arc<Store>) -> Result<Self, Error> {
        Self::on(Listener::bind(&config)?, config, store)
    }

    /// The same, on sockets that listen already, whatever address `config` has.
    ///
    /// # Errors
    /// The store cannot give the databases.
    pub fn on(listener: Listener, mut config: Config, store: Arc<Store>) -> Result<Self, Error> {
        let [local, tls] = [false, true].map(|tls| listener.tcp_address(Dialect::Redis, tls));
        let [memcached, memcached_tls] = [false, true].map(|tls| listener.tcp_address(Dialect::Memcached, tls));
        // INFO and CONFIG GET show the ports that the system chose.
        config.port = local.map(|address| address.port());
        if let Some(config) = &mut config.tls {
            config.port = tls.map(|address| address.port());
        }
        let mut sockets = listener.0;
        let polls = (0..config.threads.max(1)).map(|_| Poll::new()).collect::<Result<Vec<_>, _>>()?;
        let wakers = polls.iter().map(|poll| Waker::new(poll.registry(), WAKE)).collect::<Result<Vec<_>, _>>()?;
        let inboxes: Arc<[Inbox]> = polls.iter().map(|_| Inbox::default()).collect();
        let shared = Arc::new(Shared::new(config, store, wakers)?);
        let loops = polls
            .into_iter()
            .enumerate()
            .map(|(index, poll)| EventLoop::new(index, poll, shared.clone(), inboxes.clone(), std::mem::take(&mut sockets)))
            .collect::<Result<_, _>>()?;
        Ok(Self { local, tls, memcached, memcached_tls, shared, loops })
    }

    /// The address of the port without TLS, if there is one: with port 0, the port is the one that the system chose.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }

    /// The address of the port with TLS, if there is one.
    pub fn tls_addr(&self) -> Option<SocketAddr> {
        self.tls
    }

    /// The address of the port without TLS for clients of memcached, if there is one.
    pub fn memcached_addr(&self) -> Option<SocketAddr> {
        self.memcached
    }

    /// The address of the port with TLS for clients of memcached, if there is one.
    pub fn memcached_tls_addr(&self) -> Option<SocketAddr> {
        self.memcached_tls
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
            // Before the backups: it begins those that are scheduled.
            outcome = outcome.and(sweeper.join().map_err(|_| Error::Panicked));
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
        let listener = Listener::bind(&Config { port: Some(0), memcached_port: Some(0), ..Config::default() }).unwrap();
        let addresses = [Dialect::Redis, Dialect::Memcached].map(|dialect| listener.tcp_address(dialect, false).unwrap());
        // The system may allow fewer.
        let room = std::fs::read_to_string("/proc/sys/net/core/somaxconn").map_or(128, |text| text.trim().parse().unwrap());
        for address in addresses {
            let connect = |_| TcpStream::connect_timeout(&address, Duration::from_millis(900)).unwrap();
            let clients: Vec<_> = (0..400.min(room)).map(connect).collect();
            assert_eq!(clients.len(), 400.min(room));
        }
    }
}
