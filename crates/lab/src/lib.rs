#![forbid(unsafe_code)]
//! The lab: the same work for every structure of the registry, for the store, and for anything else that implements [`System`].
//!
//! Start with [`result`] (the lines of JSON that a run leaves, and everything known about it afterwards), then [`plan`] (what a run is to do), then [`System`]
//! (what is measured).

pub mod child;
mod choice;
pub mod claims;
pub mod command;
pub mod driver;
mod error;
mod keys;
pub mod machine;
pub mod plan;
mod raw;
pub mod report;
pub mod result;
pub mod run;
mod samples;
pub mod summary;
mod system;
pub mod workload;

pub use error::Error;
pub use samples::{Samples, Spread};
pub use system::{Capabilities, Entries, Handle, Instance, Marks, Reopened, Setting, Shutdown, Space, System, Visit, append_found, find, names, systems};
