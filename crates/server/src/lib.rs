#![forbid(unsafe_code)]
//! The server of Everleaf: a store behind the protocol of Redis, and that of memcached.
//!
//! ```text
//! socket -> connection -> conversation: resp -> command -> executor ---------.
//!                                       reply <--------------'               store
//!                                       memcached::request -> memcached::execute
//! ```
//!
//! `event_loop` shares the connections among threads, `connection` moves bytes, `conversation` turns them into commands and those into replies, `executor` runs
//! them. A reply leaves when what it acknowledges is durable.

mod background;
mod backups;
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
pub mod memcached;
mod queue;
mod reply;
pub mod resp;
mod server;
mod shared;

pub use config::{Config, Limits};
pub use server::{Error, Listener, Server, Stop};

/// The version of Redis whose commands, texts and protocol are spoken here; clients decide by it what they may ask.
pub const REDIS_VERSION: &str = "7.0.15";
