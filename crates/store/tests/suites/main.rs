//! All suites of the store, in one program, so that the store is compiled once for each medium.

mod budget;
mod churn;
mod clearing;
mod closing;
mod damage;
mod drafts;
mod expiry;
mod fixture;
mod full;
mod histories;
mod large;
mod model;
mod operations;
mod proof;
mod ranges;
mod read_only;
mod shrink;
mod stream;
mod threads;
mod transactions;
mod upgrade;
mod verify;
mod world;

/// The indexes that a store is most likely to use, each with its own kind of leaves.
const INDEXES: [&str; 7] = ["ever", "isle", "lb", "fp", "wb", "nv", "fast-fair"];
