//! Scans: keys in order, from a bound on.
//!
//! A scan of a namespace is no snapshot: each entry is what a get of its key would return when the scan reaches it. That of a [`Snapshot`](crate::Snapshot) is.

use crate::range::cursor_of;
use crate::store::{Index, Shared};
use crate::view::ENTRIES_PER_EPOCH;
use crate::{Cursor, Direction, Error, Namespace};
use everleaf_index::Listed;
use everleaf_index::record::Record;
use everleaf_pmem::{Off, Word};
use std::num::NonZeroU64;
use std::ops::{Bound, ControlFlow, RangeBounds};

impl<M: Listed> Namespace<M> {
    /// Visits keys and values in order from a bound on, until `visit` breaks. Forward, the bound is a lower bound; in reverse, an upper one.
    ///
    /// This is not a snapshot: each entry is what a get of its key would return when the scan reaches it. A scan of a [`Snapshot`](crate::Snapshot) is. While
    /// `visit` runs, the whole store reclaims no replaced or removed data, so `visit` should neither wait nor write. To do either, visit some entries at a time
    /// with [`Namespace::walk`].
    ///
    /// # Errors
    /// A damaged pool.
    pub fn scan(&self, from: Bound<&[u8]>, direction: Direction, visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        self.walk(&mut Cursor::new(from, direction), visit)
    }

    /// Visits keys in order from a bound on, without reading values.
    ///
    /// # Errors
    /// A damaged pool.
    pub fn scan_keys(&self, from: Bound<&[u8]>, direction: Direction, visit: impl FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        self.walk_keys(&mut Cursor::new(from, direction), visit)
    }

    /// Visits all keys that begin with `prefix`, and their values, in order, until `visit` breaks.
    ///
    /// # Errors
    /// A damaged pool.
    pub fn prefix(&self, prefix: &[u8], direction: Direction, visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        self.walk(&mut Cursor::prefix(prefix, direction), visit)
    }

    /// Visits the remaining keys and values of a range, until `visit` breaks. `cursor` then continues after the last one visited.
    ///
    /// # Errors
    /// A damaged pool. The cursor may then continue before the last key visited, or after the damage, if its key is not damaged.
    pub fn walk(&self, cursor: &mut Cursor, visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        self.view().walk_values(cursor, visit)
    }

    /// [`Namespace::walk`], with the expiry time of each entry in milliseconds since 1970, if any.
    ///
    /// # Errors
    /// See [`Namespace::walk`].
    pub fn walk_entries(&self, cursor: &mut Cursor, visit: impl FnMut(&[u8], &[u8], Option<u64>) -> ControlFlow<()>) -> Result<(), Error> {
        self.view().walk_entries(cursor, visit)
    }

    /// [`Namespace::walk`] without reading values.
    ///
    /// # Errors
    /// See [`Namespace::walk`].
    pub fn walk_keys(&self, cursor: &mut Cursor, visit: impl FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        self.view().walk_keys(cursor, visit)
    }

    /// Removes all keys within `bounds`, without reading values, and returns their number. Each is removed by itself: a crash or an error
    /// may leave any. To remove them at once, use [`Transaction::delete_range`](crate::Transaction::delete_range).
    ///
    /// # Errors
    /// See [`Namespace::delete`].
    pub fn delete_range<'k, K: AsRef<[u8]> + ?Sized + 'k>(&self, bounds: impl RangeBounds<&'k K>) -> Result<u64, Error> {
        let mut cursor = cursor_of(&bounds);
        let (mut removed, mut keys) = (0, Vec::with_capacity(ENTRIES_PER_EPOCH));
        while !cursor.is_over() {
            self.walk_keys(&mut cursor, |key| {
                keys.push(key.to_vec());
                if keys.len() < ENTRIES_PER_EPOCH { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            removed += self.delete_many(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
            keys.clear();
        }
        Ok(removed)
    }
}

/// Largest number of keys that a step visits beyond its length while none of them is proved by its record.
const DAMAGED_MAX: usize = 1 << 16;

impl<M: Listed> Shared<M> {
    /// Visits the next `length` keys of an index after `after` or, if the last of them is damaged, continues to the next one that its record proves; returns
    /// that one, unless there are no more. A damaged key may sort anywhere: a step that began after it could skip keys, or go round for ever. The caller is
    /// pinned.
    ///
    /// # Errors
    /// A damaged pool, in which there may be more.
    pub(crate) fn step(&self, index: &Index, after: Option<&[u8]>, length: usize, mut visit: impl FnMut(&[u8], NonZeroU64)) -> Result<Option<Vec<u8>>, Error> {
        let (mut count, mut outcome) = (0, Ok(None));
        index.tree.scan(after.map_or(Bound::Unbounded, Bound::Excluded), Direction::Forward, &mut |key, link| {
            visit(key, link);
            count += 1;
            let proves = |record: Record<'_>| record.proves(key) && after.is_none_or(|after| key > after);
            if count < length {
                return ControlFlow::Continue(());
            }
            if Record::read(&self.pool, link.get()).is_ok_and(proves) {
                outcome = Ok(Some(key.to_vec()));
            } else if count < length + DAMAGED_MAX {
                return ControlFlow::Continue(());
            } else {
                outcome = Err(everleaf_pmem::Error::corrupt(place_of(link), "one damaged key after the other").into());
            }
            ControlFlow::Break(())
        })?;
        outcome
    }
}

/// The offset in bytes to which a link refers, to name damage there; 0 if that cannot be told.
pub(crate) fn place_of(link: NonZeroU64) -> u64 {
    Off::<Word>::from_link(link.get()).map_or(0, Off::bytes)
}

/// The smallest key above all that begin with `prefix`, if there is one.
pub(crate) fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut after = prefix[..=kept].to_vec();
    after[kept] += 1;
    Some(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_successor_of_a_prefix_ends_it() {
        assert_eq!(successor(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(successor(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(successor(b"\xff"), None);
        assert_eq!(successor(b""), None);
    }
}
