//! Scans: keys in order, from a bound on.
//!
//! A scan of a namespace is no snapshot: each entry is what a get of its key would return when the scan comes by. One of a [`Snapshot`](crate::Snapshot) is.

use crate::view::ENTRIES_PER_EPOCH;
use crate::{Cursor, Direction, Error, Namespace};
use everleaf_index::Listed;
use std::ops::{Bound, ControlFlow};

impl<M: Listed> Namespace<M> {
    /// Visits keys and values in order from a bound on, until `visit` breaks. Forward, the bound is a lower bound; in reverse, an upper one.
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

    /// Visits the keys and values that are left of a range, until `visit` breaks; `cursor` goes on behind the last one that was visited.
    ///
    /// # Errors
    /// A damaged pool. The cursor may then go on before what was visited last.
    pub fn walk(&self, cursor: &mut Cursor, visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        self.view().walk_values(cursor, visit)
    }

    /// [`Namespace::walk`], with when each entry expires, in milliseconds since 1970, if it does.
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

    /// Removes all keys between a lower and an upper bound, each by itself (a crash or an error may leave any), without reading values; how many there were.
    /// To remove them at once, use [`Transaction::delete_range`](crate::Transaction::delete_range).
    ///
    /// # Errors
    /// See [`Namespace::delete`].
    pub fn delete_range(&self, low: Bound<&[u8]>, high: Bound<&[u8]>) -> Result<u64, Error> {
        let mut cursor = Cursor::new(low, Direction::Forward).until(high);
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
