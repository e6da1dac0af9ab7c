//! Sockets: the ways in which a client can be connected.
//!
//! A connection sees one kind of socket, which does not block, and whose readiness is reported at edges: a read that comes back short has emptied it, and a
//! write that would block is followed by a report. [`Session`] explains how TLS keeps both promises. Those of the system are passed through, with neither a
//! pointer nor a copy in between.

use crate::tls::Session;
use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use socket2::{SockRef, TcpKeepalive};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Where an end of a connection is.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    Ip(SocketAddr),
    /// The path on which the server listens, for both ends: a client has none.
    Unix(Arc<Path>),
}

/// As Redis writes it: a path has port 0.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{}:0", path.display()),
        }
    }
}

/// A connected socket.
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// In a box, as it is many times larger than the others.
    Tls(Box<Session>),
}

impl Socket {
    /// What a poll watches.
    pub(crate) fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(socket) => socket,
            Self::Unix(socket) => socket,
            Self::Tls(session) => &mut session.socket,
        }
    }

    /// Sets the options of every TCP connection: small replies are sent at once, vanished peers are detected. Returns the local address.
    pub(crate) fn prepare(&self, peer: &Address, keepalive_seconds: u32) -> io::Result<Address> {
        let socket = match self {
            Self::Tcp(socket) => socket,
            Self::Tls(session) => &session.socket,
            Self::Unix(_) => return Ok(peer.clone()),
        };
        socket.set_nodelay(true)?;
        if keepalive_seconds > 0 {
            let time = Duration::from_secs(u64::from(keepalive_seconds));
            SockRef::from(socket).set_tcp_keepalive(&TcpKeepalive::new().with_time(time).with_interval(time / 3).with_retries(3))?;
        }
        socket.local_addr().map(Address::Ip)
    }

    /// Whether there may be more after a short read, as there is not in a socket of the system.
    pub(crate) fn has_more(&self) -> bool {
        matches!(self, Self::Tls(session) if session.has_more())
    }

    /// Whether the client is not connected yet, as TLS sees it.
    pub(crate) fn is_handshaking(&self) -> bool {
        matches!(self, Self::Tls(session) if session.is_handshaking())
    }

    /// Tells the client that nothing follows.
    pub(crate) fn end_writing(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.shutdown(Shutdown::Write),
            Self::Unix(socket) => socket.shutdown(Shutdown::Write),
            Self::Tls(session) => session.end_writing(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read(bytes),
            Self::Unix(socket) => socket.read(bytes),
            Self::Tls(session) => session.read(bytes),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.write(bytes),
            Self::Unix(socket) => socket.write(bytes),
            Self::Tls(session) => session.write(bytes),
        }
    }

    /// What a session has to say besides the bytes that were written; other sockets keep nothing.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Ok(()),
            Self::Tls(session) => session.flush(),
        }
    }
}
