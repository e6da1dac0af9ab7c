//! Listening sockets, and the files of those that have one.
//!
//! The file of a Unix socket outlives a server that was killed. It is replaced if it is a socket and nobody listens there any more; anything else in its place
//! is left alone, and refused. It has its permissions before anyone can connect, and is removed when the server stops listening, unless another file has taken
//! its place. Of two servers that find the same dead socket at the same moment, one may remove the socket of the other.

use crate::config::Config;
use crate::conversation::Dialect;
use crate::server::Error;
use crate::socket::{Address, Socket};
use crate::tls::{Credentials, Session};
use mio::event::Source;
use mio::net::{TcpListener, UnixListener};
use socket2::{Domain, SockAddr, Type};
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

/// Clients that may connect before they are accepted. A client that exceeds this tries again after a second. The system may allow fewer.
const BACKLOG: i32 = 4096;
/// Longest path of a Unix socket in bytes: the system has room for 108, one of which ends it.
const PATH_SIZE_MAX: usize = 107;

/// Sockets that listen, before there is a store to serve.
pub struct Listener(pub(crate) Vec<Bound>);

/// A listening socket.
pub(crate) struct Bound {
    socket: Listening,
    pub(crate) dialect: Dialect,
    pub(crate) address: Address,
    /// What the sessions of its clients share, if it is for TLS.
    tls: Option<Arc<Credentials>>,
}

enum Listening {
    Tcp(TcpListener),
    Unix { socket: UnixListener, _file: SocketFile },
}

impl Listener {
    /// Listens as `config` says. Clients can connect from now on; they are served when [`Server::run`](crate::Server::run) is called.
    ///
    /// # Errors
    /// It cannot listen there, or a file for TLS cannot be used.
    pub fn bind(config: &Config) -> Result<Self, Error> {
        let mut bound = Vec::new();
        let sessions = config.tls.as_ref().map(|tls| Credentials::new(tls, config.log)).transpose()?.map(Arc::new);
        let (tls_port, memcached_tls_port) = config.tls.as_ref().map_or((None, None), |tls| (tls.port, tls.memcached_port));
        let ports = [
            (config.port, Dialect::Redis, None),
            (config.memcached_port, Dialect::Memcached, None),
            (tls_port, Dialect::Redis, sessions.clone()),
            (memcached_tls_port, Dialect::Memcached, sessions),
        ];
        for (port, dialect, tls) in ports {
            let Some(port) = port else { continue };
            let address = SocketAddr::new(config.address, port);
            bound.push(Bound::to(address, dialect, tls).map_err(|source| Error::Listen { address, source })?);
        }
        for (path, dialect) in [(&config.unix_socket, Dialect::Redis), (&config.memcached_unix_socket, Dialect::Memcached)] {
            let Some(path) = path else { continue };
            let (socket, file) = listen_at(path, config.unix_socket_mode).map_err(|what| Error::UnixSocket { path: path.clone(), what })?;
            let address = Address::Unix(file.path.clone());
            bound.push(Bound { socket: Listening::Unix { socket, _file: file }, dialect, address, tls: None });
        }
        Ok(Self(bound))
    }

    /// The TCP address for clients of `dialect`, with TLS or without, if there is one.
    pub(crate) fn tcp_address(&self, dialect: Dialect, tls: bool) -> Option<SocketAddr> {
        self.0.iter().filter(|bound| bound.dialect == dialect && bound.tls.is_some() == tls).find_map(|bound| match bound.address {
            Address::Ip(address) => Some(address),
            Address::Unix(_) => None,
        })
    }
}

impl Bound {
    /// Like [`TcpListener::bind`], which lets only few clients wait.
    pub(crate) fn to(address: SocketAddr, dialect: Dialect, tls: Option<Arc<Credentials>>) -> io::Result<Self> {
        let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let socket = TcpListener::from_std(socket.into());
        let address = Address::Ip(socket.local_addr()?);
        Ok(Self { socket: Listening::Tcp(socket), dialect, address, tls })
    }

    /// What a poll watches.
    pub(crate) fn source(&mut self) -> &mut dyn Source {
        match &mut self.socket {
            Listening::Tcp(socket) => socket,
            Listening::Unix { socket, .. } => socket,
        }
    }

    /// A client that waits, and its address.
    pub(crate) fn accept(&self) -> io::Result<(Socket, Address)> {
        Ok(match &self.socket {
            Listening::Unix { socket, .. } => (Socket::Unix(socket.accept()?.0), self.address.clone()),
            Listening::Tcp(socket) => {
                let (socket, address) = socket.accept()?;
                let socket = match &self.tls {
                    None => Socket::Tcp(socket),
                    Some(credentials) => Socket::Tls(Box::new(Session::new(socket, credentials.current())?)),
                };
                (socket, Address::Ip(address))
            }
        })
    }
}

/// Listens at a path; an error says what is wrong with it, and what to do.
fn listen_at(path: &Path, mode: u32) -> Result<(UnixListener, SocketFile), String> {
    let size = path.as_os_str().len();
    if !(1..=PATH_SIZE_MAX).contains(&size) {
        return Err(format!("the path has {size} bytes, and that of a socket has 1 to {PATH_SIZE_MAX}; choose a shorter one, such as a relative one"));
    }
    let failed = |error: io::Error| format!("{error}; choose a path in a directory that exists and that the server may write to");
    let address = SockAddr::unix(path).map_err(failed)?;
    let new_socket = || socket2::Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).map_err(failed);
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => return Err("what is there is no socket, and was left alone; choose another path".into()),
        Ok(_) => match new_socket()?.connect(&address) {
            // Nobody listens: its server was killed.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path).map_err(failed)?,
            Ok(()) => return Err("a server listens there; stop it, or choose another path".into()),
            // One that has no room for another client is a server, too.
            Err(error) => return Err(format!("a server may listen there ({error}); stop it, or choose another path")),
        },
    }
    let socket = new_socket()?;
    socket.bind(&address).map_err(failed)?;
    let file = SocketFile::of(path).map_err(failed)?;
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)?;
    socket.listen(BACKLOG).map_err(failed)?;
    Ok((UnixListener::from_std(socket.into()), file))
}

/// The file of a Unix socket, which goes when this is dropped.
struct SocketFile {
    path: Arc<Path>,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        let found = fs::symlink_metadata(path)?;
        Ok(Self { path: path.into(), device: found.dev(), inode: found.ino() })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode)) {
            // One that stays is replaced by the next server.
            let _ = fs::remove_file(&self.path);
        }
    }
}
