//! The server over real sockets.

mod commands;
mod differential;
mod expiry;
mod hostility;
mod info;
mod memcached;
mod peer;
mod programs;
mod scripts;
mod sockets;
mod threads;
mod tls;
