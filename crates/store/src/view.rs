//! Reading a namespace, now or as of a moment: what [`Namespace`](crate::Namespace) and [`Snapshot`](crate::Snapshot) have in common.
//!
//! Readers pin an epoch, look links up, and read what is visible of the records (`version.rs`), which stay in place meanwhile. One that goes through many
//! entries pins an epoch for some hundred of them at a time, so that it does not keep retired records from being reused.

use crate::namespace::{Found, GROUP, copy_value};
use crate::store::{Index, Shared, Space};
use crate::version::Moment;
use crate::{Cursor, Error};
use arc_swap::Guard as Loaded;
use everleaf_index::Listed;
use everleaf_index::record::Record;
use everleaf_pmem::Medium;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Number of entries visited under one pinned epoch.
pub(crate) const ENTRIES_PER_EPOCH: usize = 256;

/// A namespace, now or as of a moment.
pub(crate) struct View<'s, M: Medium> {
    pub(crate) shared: &'s Shared<M>,
    pub(crate) space: &'s Space,
    /// That of a snapshot, which is held; `None`: now.
    pub(crate) moment: Option<Moment>,
}

impl<M: Listed> View<'_, M> {
    #[inline(always)]
    fn index(&self) -> Loaded<Option<Arc<Index>>> {
        match self.moment {
            Some(moment) => self.space.index_at(moment, &self.shared.clock),
            None => self.space.current(&self.shared.clock),
        }
    }

    /// What `read` makes of what `key` has, if it is present.
    #[inline(always)]
    pub(crate) fn find<T>(&self, key: &[u8], read: impl FnOnce(Found<'_>) -> Result<T, Error>) -> Result<Option<T>, Error> {
        let _pinned = self.shared.pool.pin();
        let index = self.index();
        let Some(index) = index.as_deref() else { return Ok(None) };
        let Some(link) = index.tree.get(key)? else { return Ok(None) };
        match self.shared.visible(link.get(), self.moment)? {
            Some(record) => read(Found { record, key }).map(Some),
            None => Ok(None),
        }
    }

    /// Calls `visit` for each of `keys`, in their order, with what was found of it.
    pub(crate) fn visit_many<E: From<Error>>(&self, keys: &[&[u8]], mut visit: impl FnMut(Option<Found<'_>>) -> Result<(), E>) -> Result<(), E> {
        let mut links = Vec::with_capacity(keys.len().min(GROUP));
        for keys in keys.chunks(GROUP) {
            let _pinned = self.shared.pool.pin();
            let index = self.index();
            links.clear();
            match index.as_deref() {
                Some(index) => index.tree.get_many(keys, &mut links).map_err(Error::from)?,
                None => links.resize(keys.len(), None),
            }
            for (&key, link) in keys.iter().zip(&links) {
                let record = link.map_or(Ok(None), |link| self.shared.visible(link.get(), self.moment))?;
                visit(record.map(|record| Found { record, key }))?;
            }
        }
        Ok(())
    }

    /// The values of several keys, in their order.
    pub(crate) fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let mut values = Vec::with_capacity(keys.len());
        self.visit_many(keys, |found| {
            let mut value = Vec::new();
            let size = found.map(|found| found.copy_to(&mut value)).transpose()?;
            values.push(size.map(|_| value));
            Ok::<_, Error>(())
        })?;
        Ok(values)
    }

    /// Visits the keys and values that a reader sees.
    pub(crate) fn walk_values(&self, cursor: &mut Cursor, mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        let mut value = Vec::new();
        self.walk(cursor, &mut |key, record| {
            value.clear();
            copy_value(record, key, &mut value)?;
            Ok(visit(key, &value))
        })
    }

    /// Visits the records that a reader sees, pinned.
    pub(crate) fn walk(&self, cursor: &mut Cursor, visit: &mut impl FnMut(&[u8], &Record<'_>) -> Result<ControlFlow<()>, Error>) -> Result<(), Error> {
        while !cursor.is_over() {
            let _pinned = self.shared.pool.pin();
            let index = self.index();
            let Some(index) = index.as_deref() else {
                cursor.end();
                break;
            };
            let mut outcome = Ok(ControlFlow::Continue(()));
            let mut left = ENTRIES_PER_EPOCH;
            let mut last = None;
            index.tree.scan(cursor.position(), cursor.direction(), &mut |key, link| {
                if cursor.is_beyond(key) {
                    return ControlFlow::Break(());
                }
                left -= 1;
                let visited = match self.shared.visible(link.get(), self.moment) {
                    Ok(Some(record)) => visit(key, &record),
                    Ok(None) => Ok(ControlFlow::Continue(())),
                    Err(error) => Err(error),
                };
                if left > 0 && matches!(visited, Ok(ControlFlow::Continue(()))) {
                    return ControlFlow::Continue(());
                }
                (outcome, last) = (visited, Some(key.to_vec()));
                ControlFlow::Break(())
            })?;
            match last {
                Some(last) => cursor.advance(last),
                None => cursor.end(),
            }
            if outcome?.is_break() {
                break;
            }
        }
        Ok(())
    }
}
