//! The server over real sockets.

mod commands;
mod differential;
mod hostility;
mod peer;
mod programs;
mod threads;
