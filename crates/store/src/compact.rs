//! Compact: a pool written anew, as small as what it holds; repair: what can be read of a damaged one (`salvage.rs`).
//!
//! Either makes a new pool beside the old one and gives it a name when it is closed. Compacting, that is the name of the old one, which is closed before, for
//! its journal would be in the way of the new one, and kept locked until then: *a crash before leaves the old pool, and what it leaves of the new one is
//! removed by the next attempt; a crash after leaves the new one.*

use crate::import::{NewPool, expect_nothing_at};
use crate::salvage::{Salvaged, salvage};
use crate::stream::{Passed, StreamError};
use crate::unfinished::Unfinished;
use crate::{Options, Store};
use everleaf_pmem::{Domain, Found, Pool};
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
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
/// A pool in use, or damaged; no space for the new one; what the system says; [`StreamError::Stopped`] if `watch` breaks it off. The pool is as before then.
pub fn compact(path: &Path, options: Options, watch: impl FnMut(Passed, u64) -> ControlFlow<()>) -> Result<Compacted, StreamError> {
    compact_as(path, options, watch, Unfinished::replace)
}

/// [`compact`], whose new pool gets its name from `name`.
fn compact_as(
    path: &Path,
    options: Options,
    watch: impl FnMut(Passed, u64) -> ControlFlow<()>,
    name: impl FnOnce(Unfinished) -> io::Result<()>,
) -> Result<Compacted, StreamError> {
    let old = Store::open_existing(path, options.clone())?;
    // Its lock ends with this.
    let pool = Arc::clone(old.pool());
    let size_before = pool.info().size;
    let written = write_anew(&old, path, options, watch);
    // In any case: what is left open is refused once the machine has been started again. Of two failures the first is told, unless it is none.
    let closed = old.close().map_err(crate::Error::from);
    let (new, passed) = match written {
        Err(error) if !matches!(error, StreamError::Stopped) => return Err(error),
        written => closed.map_err(StreamError::from).and(written)?,
    };
    let size = new.close_as(name)?;
    Ok(Compacted { size_before, size, passed })
}

/// Writes what `old` holds into a new pool.
fn write_anew(old: &Store, path: &Path, options: Options, mut watch: impl FnMut(Passed, u64) -> ControlFlow<()>) -> Result<(NewPool, Passed), StreamError> {
    let new = NewPool::create(path, Some(path), Options { domain: old.pool().info().domain, ..options })?;
    let io = |source| StreamError::Io { action: "make a pipe", source };
    let (input, out) = std::io::pipe().map_err(io)?;
    let export = old.snapshot()?;
    let passed = thread::scope(|scope| {
        // It ends when all is written, or when nobody reads any more; either way the reader knows, too.
        let writer = scope.spawn(move || export.export(&[], out)?.finish().map(drop));
        let read = (|| {
            let mut import = new.store().import(input)?;
            while import.advance()? {
                if watch(import.passed(), import.origin().entries_expected).is_break() {
                    return Err(StreamError::Stopped);
                }
            }
            Ok(import.passed())
        })();
        match (writer.join(), read) {
            (_, Ok(passed)) => Ok(passed),
            // Why the stream was cut off is known to who wrote it.
            (Ok(Err(error)), Err(StreamError::CutOff { .. } | StreamError::NotAStream)) => Err(error),
            (_, Err(error)) => Err(error),
        }
    })?;
    Ok((new, passed))
}

/// Makes a pool at `to`, where there must be none, of what can be read of the damaged one at `path`, in which nothing is changed. One that was left in the
/// domain `msync` is made anew in that, unless [`Options::domain`] says another.
///
/// # Errors
/// A pool of which no superblock can be read; one that is in use; no space; what the system says. There is no new pool then.
pub fn repair(path: &Path, to: &Path, options: Options, watch: impl FnMut(u64)) -> Result<Salvaged, StreamError> {
    expect_nothing_at(to)?;
    let damaged = Pool::inspect_damaged(path).map_err(crate::Error::from)?;
    if let Found::InUse { owner } = damaged.info().found {
        return Err(crate::Error::from(everleaf_pmem::Error::Locked { path: path.to_owned(), owner }).into());
    }
    let domain = options.domain.or(damaged.left_in().filter(|domain| *domain == Domain::Msync));
    let new = NewPool::create(to, Some(path), Options { domain, ..options })?;
    let salvaged = salvage(&damaged, new.store(), watch)?;
    new.close_as(Unfinished::appear)?;
    Ok(salvaged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::restore;
    use std::cell::RefCell;
    use std::fs;
    use std::path::PathBuf;

    fn options() -> Options {
        Options { size_max: 64 << 20, domain: Some(Domain::Msync), recovery_threads: 1, ..Options::default() }
    }

    /// The journals that a crash left were another pool's for whoever came next: no pool was made in the place of one that was not done, and one that had the
    /// name of another was not opened.
    #[test]
    fn a_crash_of_a_compaction_leaves_no_journal_in_the_way() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("place");
        fs::create_dir(&place).unwrap();
        let path = place.join("pool");
        let store = Store::open(&path, options()).unwrap();
        let space = store.namespace("space").unwrap();
        (0..3_000_u32).for_each(|n| space.put(&n.to_be_bytes(), &[7; 100]).unwrap());
        let stream = store.snapshot().unwrap().export(&[], Vec::new()).unwrap().finish().unwrap().0;
        drop(space);
        store.close().unwrap();
        // What a crash leaves at some moments, the last two before and after the new pool gets its name.
        let images: RefCell<Vec<PathBuf>> = RefCell::default();
        let crash = || {
            let image = directory.path().join(images.borrow().len().to_string());
            fs::create_dir(&image).unwrap();
            for file in fs::read_dir(&place).unwrap() {
                let file = file.unwrap();
                fs::copy(file.path(), image.join(file.file_name())).unwrap();
            }
            images.borrow_mut().push(image);
        };
        let name = |unfinished: Unfinished| {
            crash();
            unfinished.replace()?;
            crash();
            Ok(())
        };
        let watch = |_, _| {
            crash();
            ControlFlow::Continue(())
        };
        compact_as(&path, options(), watch, name).unwrap();
        let images = images.into_inner();
        assert!(images.len() > 3);
        let is_whole = |path: &Path| {
            let store = Store::open(path, options()).unwrap();
            assert_eq!(store.namespace("space").unwrap().count(), 3_000);
            store.close().unwrap();
            assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "{}", path.display());
        };
        for (number, image) in images.iter().enumerate() {
            let path = image.join("pool");
            assert_eq!(image.join("pool.unfinished.journal0").exists(), number < images.len() - 2);
            // Of a restore that was interrupted.
            let other = directory.path().join(format!("{number} of a restore"));
            fs::create_dir(&other).unwrap();
            for part in ["", ".journal0", ".journal1"] {
                let _ = fs::copy(image.join(format!("pool.unfinished{part}")), other.join(format!("pool.unfinished{part}")));
            }
            restore(&other.join("pool"), options(), stream.as_slice(), |_, _| ()).unwrap();
            is_whole(&other.join("pool"));
            compact(&path, options(), |_, _| ControlFlow::Continue(())).unwrap_or_else(|error| panic!("{number} of {}: {error}", images.len()));
            is_whole(&path);
        }
    }
}
