#![forbid(unsafe_code)]
//! The test suites that every index of Everleaf must pass.
//!
//! Each suite is a function over an [`Entry`](everleaf_index::Entry) of the registry. The tests of this crate call each suite for every entry, in sizes that
//! fit a test run. `cargo xtask crash` runs the crash suites for any length of time and replays what they find. The tests also plant defects, and fail if a
//! suite does not notice them.

pub mod budget;
mod class;
pub mod command;
pub mod corruption;
pub mod crash;
pub mod model;
pub mod race;
pub mod reopen;
mod subject;
pub mod threads;

pub use class::Class;
pub use subject::{Broken, Change, Content, Model, ROOT, Subject};
