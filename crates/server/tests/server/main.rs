//! The server over real sockets.

mod commands;
mod hostility;
mod peer;
mod threads;
