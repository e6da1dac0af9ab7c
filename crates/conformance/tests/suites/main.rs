#![forbid(unsafe_code)]
//! The suites over the registry, in sizes for a test run. They are one program, so that every index is compiled once for each medium.

mod budget;
mod checker;
mod corruption;
mod crash;
mod model;
mod race;
mod readers;
mod reopen;
mod threads;

/// Whether an index has the leaves of another one and differs only in the router. Routers are in DRAM.
fn is_on_another_router(name: &str) -> bool {
    ["-htm", "-packed", "-olc"].iter().any(|router| name.contains(router))
}
