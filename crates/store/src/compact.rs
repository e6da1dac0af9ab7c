//! Compact: a pool written anew, as small as what it holds; repair: what can be read of a damaged one (`salvage.rs`).
//!
//! Either makes a new pool beside the old one and gives it a name when it is closed. Compacting, that is the name of the old one, which is kept locked until
//! then: *a crash before leaves the old pool, and what it leaves of the new one is overwritten by the next attempt; a crash after leaves the new one.*

use crate::import::{NewPool, expect_nothing_at};
use crate::salvage::{Salvaged, salvage};
use crate::stream::{Passed, StreamError};
use crate::unfinished::Unfinished;
use crate::{Options, Store};
use everleaf_pmem::{Found, Pool};
use std::path::Path;
use std::thread;

/// What [`compact`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Size of the pool in bytes, before.
    pub size_before: usize,
    /// And now.
    pub size: usize,
    /// What it holds.
    pub passed: Passed,
}

/// Writes the pool at `path` anew. Nobody else may use it meanwhile. Takes as much space beside it as it holds; all namespaces keep their indexes, and the file
/// its permissions, and its owner where that is permitted.
///
/// # Errors
/// A pool in use, or damaged; no space for the new one; what the system says. The pool is as before then.
pub fn compact(path: &Path, options: Options, watch: impl FnMut(Passed, u64)) -> Result<Compacted, StreamError> {
    let old = Store::on(Pool::open(path, &options.pool()).map_err(crate::Error::from)?, &options)?;
    let outcome = write_anew(&old, path, options, watch);
    // Its lock ends here. Unless it has lost its name it is closed, too: else it is refused once the machine has been started again. Of two failures the first
    // is told.
    match outcome {
        Err(_) => drop(old.close()),
        Ok(_) => old.pool().drop_journal(),
    }
    outcome
}

/// Writes what `old` holds into a new pool, which takes its name.
fn write_anew(old: &Store, path: &Path, options: Options, mut watch: impl FnMut(Passed, u64)) -> Result<Compacted, StreamError> {
    let new = NewPool::create(path, Some(path), Options { domain: old.pool().info().domain, ..options })?;
    let passed = {
        let io = |source| StreamError::Io { action: "make a pipe", source };
        let (input, out) = std::io::pipe().map_err(io)?;
        let export = old.snapshot()?;
        thread::scope(|scope| {
            // It ends when all is written, or when nobody reads any more; either way the reader knows, too.
            let writer = scope.spawn(move || export.export(&[], out)?.finish().map(drop));
            let read = (|| {
                let mut import = new.store().import(input)?;
                while import.advance()? {
                    watch(import.passed(), import.origin().entries_expected);
                }
                Ok(import.passed())
            })();
            match (writer.join(), read) {
                (_, Ok(passed)) => Ok(passed),
                // Why the stream was cut off is known to who wrote it.
                (Ok(Err(error)), Err(StreamError::CutOff { .. } | StreamError::NotAStream)) => Err(error),
                (_, Err(error)) => Err(error),
            }
        })?
    };
    let size_before = old.pool().info().size;
    let size = new.close_as(Unfinished::replace)?;
    Ok(Compacted { size_before, size, passed })
}

/// Makes a pool at `to`, where there must be none, of what can be read of the damaged one at `path`, in which nothing is changed.
///
/// # Errors
/// A pool of which no superblock can be read; one that is in use; no space; what the system says. There is no new pool then.
pub fn repair(path: &Path, to: &Path, options: Options, watch: impl FnMut(u64)) -> Result<Salvaged, StreamError> {
    expect_nothing_at(to)?;
    let damaged = Pool::inspect_damaged(path).map_err(crate::Error::from)?;
    if let Found::InUse { owner } = damaged.info().found {
        return Err(crate::Error::from(everleaf_pmem::Error::Locked { path: path.to_owned(), owner }).into());
    }
    let new = NewPool::create(to, Some(path), options)?;
    let salvaged = salvage(&damaged, new.store(), watch)?;
    new.close_as(Unfinished::appear)?;
    Ok(salvaged)
}
