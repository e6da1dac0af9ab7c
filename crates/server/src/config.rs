//! The configuration of a server.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address to listen on. Default 127.0.0.1; another one lets the network in, so set a password too.
    pub address: IpAddr,
    /// TCP port; 0 takes a free one, `None` is for servers that are reached otherwise. Default 6379.
    pub port: Option<u16>,
    /// TCP port for clients of memcached, on the same address; 0 takes a free one. Default: none.
    pub memcached_port: Option<u16>,
    /// Ports with TLS, on the same address. Default: none.
    pub tls: Option<Tls>,
    /// Path of a Unix socket. Default: none.
    pub unix_socket: Option<PathBuf>,
    /// Path of a Unix socket for clients of memcached. Default: none.
    pub memcached_unix_socket: Option<PathBuf>,
    /// Permissions of the Unix sockets: whoever may write can connect. Default 0o700, so only the user that the server runs as.
    pub unix_socket_mode: u32,
    /// Event loops, each a thread. Default: as many as the machine has cores.
    pub threads: usize,
    /// Databases for SELECT: the namespaces "0", "1" and so on. Default 16.
    pub databases: usize,
    /// Password that clients must send with AUTH or HELLO. Default: none.
    pub password: Option<Vec<u8>>,
    /// The file to which SAVE and BGSAVE write. Default: the pool's name with `.backup` appended.
    pub backup: Option<PathBuf>,
    /// Bounds on what clients may use.
    pub limits: Limits,
    /// Seconds after which a silent peer is asked for a sign of life, and dropped if it gives none. Default 300; 0 never asks.
    pub keepalive_seconds: u32,
    /// How long a client of a port with TLS may take for its handshake, before it is dropped. Default 30 s.
    pub handshake_patience: Duration,
    /// How long a graceful stop waits for clients to take their replies. Default 5 s.
    pub stop_patience: Duration,
    /// Called with a line of text for what no client is told of: errors of background backups and compactions, new files for TLS. Default: does nothing.
    pub log: fn(&str),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: Some(6379),
            memcached_port: None,
            tls: None,
            unix_socket: None,
            memcached_unix_socket: None,
            unix_socket_mode: 0o700,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            databases: 16,
            password: None,
            backup: None,
            limits: Limits::default(),
            keepalive_seconds: 300,
            handshake_patience: Duration::from_secs(30),
            stop_patience: Duration::from_secs(5),
            log: |_| (),
        }
    }
}

/// Ports with TLS, and what it needs. The files, all in PEM, are read when the server begins to listen, and again when they have changed.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// TCP port; 0 takes a free one. Default: none.
    pub port: Option<u16>,
    /// TCP port for clients of memcached; 0 takes a free one. Default: none.
    pub memcached_port: Option<u16>,
    /// File with the server's certificate, followed by those between it and the authority that clients trust.
    pub certificate: PathBuf,
    /// File with the private key of the certificate.
    pub key: PathBuf,
    /// File with the authorities one of which must have signed a client's certificate. Default: none, and clients need no certificate.
    pub authority: Option<PathBuf>,
}

/// Bounds on what clients may use.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at a time. Default 10 000. CONFIG SET maxclients changes it.
    pub connection_count_max: usize,
    /// Connections that the system has room for: CONFIG SET refuses to promise more. Default: not known, so it promises any number.
    pub connection_room: usize,
    /// Longest argument in bytes. Default 512 MiB, the longest value of the store.
    pub bulk_size_max: usize,
    /// Longest request in bytes, and size of the requests that wait while their client takes no replies; a client that sends more is dropped. Default 1 GiB;
    /// one request has at most 4 GiB.
    pub query_buffer_size_max: usize,
    /// Bytes of replies that may wait for a client, not counting those of the last commands that are run together, or of a transaction or script. A client that
    /// leaves more waiting is dropped, its transaction refused. Default 1 GiB: a reply with one value of 512 MiB must fit.
    pub output_buffer_size_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connection_count_max: 10_000,
            connection_room: usize::MAX,
            bulk_size_max: 512 << 20,
            query_buffer_size_max: 1 << 30,
            output_buffer_size_max: 1 << 30,
        }
    }
}
