#![forbid(unsafe_code)]
//! The lab: the same work for every structure of the registry, for the store, and for whatever else implements [`System`].
//!
//! Start with [`result`] (the lines of JSON that a run leaves, and all that is known of it afterwards), then [`plan`] (what a run is to do), then [`System`]
//! (what is measured).

mod error;
pub mod plan;
pub mod report;
pub mod result;
mod system;

pub use error::Error;
pub use system::{Capabilities, Entries, Handle, Instance, Reopened, Setting, Shutdown, Space, System, Visit};
