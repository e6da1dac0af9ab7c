//! Scans: keys in order, from a bound on.
//!
//! A scan of a namespace is no snapshot: each entry is what a get of its key would return when the scan comes by. One of a [`Snapshot`](crate::Snapshot) is.
//! Either pins an epoch for some hundred entries at a time, so that a long one does not keep retired records from being reused.

use crate::namespace::{check_key, copy_value};
use crate::store::{Index, Shared, Space};
use crate::version::Moment;
use crate::{Direction, Error, Namespace};
use arc_swap::Guard as Loaded;
use everleaf_index::Listed;
use everleaf_index::record::Record;
use everleaf_pmem::Medium;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// Number of entries visited under one pinned epoch.
const ENTRIES_PER_EPOCH: usize = 256;

impl<M: Listed> Namespace<M> {
    /// Visits keys and values in order from a bound on, until `visit` breaks. Forward, the bound is a lower bound; in reverse, an upper one.
    ///
    /// # Errors
    /// A damaged pool.
    pub fn scan(&self, from: Bound<&[u8]>, direction: Direction, visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        self.place().scan_values(from, direction, visit)
    }

    /// Visits keys in order from a bound on, without reading values.
    ///
    /// # Errors
    /// A damaged pool.
    pub fn scan_keys(&self, from: Bound<&[u8]>, direction: Direction, mut visit: impl FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        self.place().scan(from, direction, &mut |key, record| {
            check_key(record, key)?;
            Ok(visit(key))
        })
    }

    /// Visits all keys that begin with `prefix`, and their values, in order, until `visit` breaks.
    ///
    /// # Errors
    /// A damaged pool.
    pub fn prefix(&self, prefix: &[u8], direction: Direction, visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        within_prefix(prefix, direction, visit, |from, visit| self.scan(from, direction, visit))
    }

    fn place(&self) -> Place<'_, M> {
        Place { shared: &self.shared, space: &self.space, moment: None }
    }
}

/// A namespace, now or as of a moment.
pub(crate) struct Place<'s, M: Medium> {
    pub(crate) shared: &'s Shared<M>,
    pub(crate) space: &'s Space,
    /// That of a snapshot, which is held; `None`: now.
    pub(crate) moment: Option<Moment>,
}

impl<M: Listed> Place<'_, M> {
    fn index(&self) -> Loaded<Option<Arc<Index>>> {
        match self.moment {
            Some(moment) => self.space.index_at(moment, &self.shared.clock),
            None => self.space.current(&self.shared.clock),
        }
    }

    fn visible(&self, link: u64) -> Result<Option<Record<'_>>, Error> {
        match self.moment {
            Some(moment) => self.shared.visible_at(link, moment),
            None => self.shared.visible(link),
        }
    }

    /// Visits the keys and values that a reader sees.
    pub(crate) fn scan_values(
        &self,
        from: Bound<&[u8]>,
        direction: Direction,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let mut value = Vec::new();
        self.scan(from, direction, &mut |key, record| {
            value.clear();
            copy_value(record, key, &mut value)?;
            Ok(visit(key, &value))
        })
    }

    /// Visits the records that a reader sees, pinned.
    fn scan(&self, from: Bound<&[u8]>, direction: Direction, visit: &mut Visit<'_>) -> Result<(), Error> {
        let mut position = from.map(<[u8]>::to_vec);
        loop {
            let _pinned = self.shared.pool.pin();
            let index = self.index();
            let Some(index) = index.as_deref() else { return Ok(()) };
            let mut outcome = Ok(ControlFlow::Continue(()));
            let mut left = ENTRIES_PER_EPOCH;
            let mut last = Vec::new();
            index.tree.scan(position.as_ref().map(Vec::as_slice), direction, &mut |key, link| {
                left -= 1;
                outcome = match self.visible(link.get()) {
                    Ok(Some(record)) => visit(key, &record),
                    Ok(None) => Ok(ControlFlow::Continue(())),
                    Err(error) => Err(error),
                };
                if left == 0 {
                    last.extend_from_slice(key);
                }
                match outcome {
                    Ok(ControlFlow::Continue(())) if left > 0 => ControlFlow::Continue(()),
                    _ => ControlFlow::Break(()),
                }
            })?;
            if outcome?.is_break() || left > 0 {
                return Ok(());
            }
            position = Bound::Excluded(last);
        }
    }
}

/// Visits what `scan` shows of the keys that begin with `prefix`. `scan` goes in the same direction.
pub(crate) fn within_prefix<T>(
    prefix: &[u8],
    direction: Direction,
    mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    scan: impl FnOnce(Bound<&[u8]>, &mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> T,
) -> T {
    let after = successor(prefix);
    let from = match (direction, &after) {
        (Direction::Forward, _) => Bound::Included(prefix),
        (Direction::Reverse, Some(after)) => Bound::Excluded(after.as_slice()),
        (Direction::Reverse, None) => Bound::Unbounded,
    };
    scan(from, &mut |key, value| match key.starts_with(prefix) {
        true => visit(key, value),
        false => ControlFlow::Break(()),
    })
}

type Visit<'a> = dyn FnMut(&[u8], &Record<'_>) -> Result<ControlFlow<()>, Error> + 'a;

/// The smallest key above all that begin with `prefix`, if there is one.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
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
