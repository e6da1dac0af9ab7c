#![forbid(unsafe_code)]
//! What every index of Everleaf must pass.
//!
//! Each suite is a function over an [`Entry`](everleaf_index::Entry) of the registry; the tests of this crate call each for every entry, in sizes that fit a
//! test run, and `cargo xtask crash` runs the crash suites for as long as one likes and replays what they find. A suite is worth what it catches: the tests
//! also plant defects, and fail when a suite does not notice.

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
