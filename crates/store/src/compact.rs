//! Compact: writes a pool anew, as small as its contents. Repair: makes a new pool of what can be read of a damaged one (`salvage.rs`).
//!
//! A compaction verifies the old pool first: an index that has been damaged while it was closed may have lost keys without a trace, and nobody could look for
//! them in the new pool.
//!
//! Both make a new pool beside the old one, and give it its name when they close it. Compaction gives it the name of the old pool, which is closed first, since
//! its journal would be in the way of the new one, and stays locked until the end: *a crash before leaves the old pool, and the next attempt removes what is
//! left of the new one; a crash after leaves the new one.*

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

/// The result of [`compact`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Size of the pool in bytes before.
    pub size_before: usize,
    /// Size in bytes now.
    pub size: usize,
    /// What the pool holds.
    pub passed: Passed,
}

/// Writes the pool at `path` anew. No one else may use it meanwhile. Takes as much space beside the pool as its contents need. All namespaces keep their
/// indexes; the file keeps its permissions, and its owner where the system allows that.
///
/// # Errors
/// A pool in use, damaged, or marked as one that may be torn ([`Pool::flaws`](everleaf_pmem::Pool::flaws)); no space for the new one; an error of the system;
/// [`StreamError::Stopped`] if `watch` stops it. The pool is then as before.
pub fn compact(path: &Path, options: Options, watch: impl FnMut(Passed, u64) -> ControlFlow<()>) -> Result<Compacted, StreamError> {
    compact_as(path, options, watch, Unfinished::replace)
}

/// [`compact`], with `name` giving the new pool its name.
fn compact_as(
    path: &Path,
    options: Options,
    watch: impl FnMut(Passed, u64) -> ControlFlow<()>,
    name: impl FnOnce(Unfinished) -> io::Result<()>,
) -> Result<Compacted, StreamError> {
    let old = Store::open_existing(path, options.clone())?;
    // Keeps the lock until the end.
    let pool = Arc::clone(old.pool());
    let size_before = pool.info().size;
    let written = write_anew(&old, path, options, watch);
    // Close it in any case: a pool left open is refused after a restart of the machine. Of two failures the first is reported, unless it is only a stop.
    let closed = old.close().map_err(crate::Error::from);
    let (new, passed) = match written {
        Err(error) if !matches!(error, StreamError::Stopped) => return Err(error),
        written => closed.map_err(StreamError::from).and(written)?,
    };
    let size = new.close_as(name)?;
    Ok(Compacted { size_before, size, passed })
}

/// Copies the contents of `old` into a new pool.
fn write_anew(old: &Store, path: &Path, options: Options, mut watch: impl FnMut(Passed, u64) -> ControlFlow<()>) -> Result<(NewPool, Passed), StreamError> {
    // The new pool would not say so.
    if !old.pool().flaws().is_empty() {
        return Err(crate::Error::from(everleaf_pmem::Error::Accepted { path: path.to_owned() }).into());
    }
    let verified = old.verify_with(|_, _| watch(Passed::default(), 0))?.ok_or(StreamError::Stopped)?;
    if !verified.is_sound() {
        return Err(crate::Error::Unsound { count: verified.damages.len() }.into());
    }
    let new = NewPool::create(path, Some(path), Options { domain: old.pool().info().domain, ..options })?;
    let io = |source| StreamError::Io { action: "make a pipe", source };
    let (input, out) = std::io::pipe().map_err(io)?;
    let export = old.snapshot()?;
    let passed = thread::scope(|scope| {
        // The writer ends when all is written or the reader is gone; either way the reader knows, too.
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
            // The writer knows why the stream was cut off.
            (Ok(Err(error)), Err(StreamError::CutOff { .. } | StreamError::NotAStream)) => Err(error),
            (_, Err(error)) => Err(error),
        }
    })?;
    Ok((new, passed))
}

/// Makes a pool at `to`, where nothing may exist, of what can be read of the damaged pool at `path`, which is not changed. If that pool was left in the domain
/// `msync`, the new one is made in it, too, unless [`Options::domain`] says otherwise.
///
/// # Errors
/// A pool of which no superblock can be read; a pool in use; no space; an error of the system; [`StreamError::Stopped`] if `watch`, which is called with the
/// number of entries taken so far, stops it. Then there is no new pool.
pub fn repair(path: &Path, to: &Path, options: Options, watch: impl FnMut(u64) -> ControlFlow<()>) -> Result<Salvaged, StreamError> {
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

    /// Journals left by a crash were taken for another pool's by the next program: no pool was made in place of an unfinished one, and one that had been given
    /// the name of another was not opened.
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
        // Images that a crash leaves at some moments, the last two before and after the new pool gets its name.
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
            // Before that, the old pool is verified.
            if place.join("pool.unfinished").exists() {
                crash();
            }
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
            // As after a restore that was interrupted.
            let other = directory.path().join(format!("{number} of a restore"));
            fs::create_dir(&other).unwrap();
            for part in ["", ".journal0", ".journal1"] {
                let _ = fs::copy(image.join(format!("pool.unfinished{part}")), other.join(format!("pool.unfinished{part}")));
            }
            restore(&other.join("pool"), options(), stream.as_slice(), |_, _| ControlFlow::Continue(())).unwrap();
            is_whole(&other.join("pool"));
            compact(&path, options(), |_, _| ControlFlow::Continue(())).unwrap_or_else(|error| panic!("{number} of {}: {error}", images.len()));
            is_whole(&path);
        }
    }
}
