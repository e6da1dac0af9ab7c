#![forbid(unsafe_code)]
//! The server of Everleaf: a store behind the protocols of Redis and memcached.
//!
//! ```text
//! socket -> connection -> conversation: resp -> command -> executor ---------.
//!                                       reply <--------------'               store
//!                                       memcached::request -> memcached::execute
//! ```
//!
//! `listener` is where clients connect, by TCP, TLS or a Unix socket; `event_loop` distributes the connections among threads, `connection` moves bytes,
//! `conversation` turns them into commands and results into replies, `executor` runs the commands. A reply leaves when what it acknowledges is durable.

mod background;
mod backups;
mod calls;
mod client;
mod command;
mod compactions;
mod config;
mod connection;
mod conversation;
mod database;
mod event_loop;
mod executor;
mod gate;
mod glob;
mod group;
mod listener;
pub mod memcached;
mod queue;
mod reply;
pub mod resp;
mod script;
mod server;
mod shared;
mod socket;
mod tls;

pub use config::{Config, Limits, Tls};
pub use listener::Listener;
pub use server::{Error, Server, Stop};

/// The version of Redis whose commands, texts and protocol are implemented; clients decide by it which features to use.
pub const REDIS_VERSION: &str = "7.0.15";
