//! Reading a namespace, now or as of a moment: what [`Namespace`](crate::Namespace) and [`Snapshot`](crate::Snapshot) have in common.
//!
//! Readers pin an epoch, look links up, and read what is visible of the records (`version.rs`), which stay in place meanwhile. One that goes through many
//! entries pins an epoch for some hundred of them at a time, so that it does not keep retired records from being reused.

use crate::namespace::{Found, GROUP, check_key, copy_value_of};
use crate::store::{Index, Shared, Space};
use crate::version::{Moment, is_plain};
use crate::{Cursor, Error};
use arc_swap::Guard as Loaded;
use everleaf_index::Listed;
use everleaf_index::record::{KeySum, Record, Short};
use everleaf_pmem::Medium;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Number of entries visited under one pinned epoch.
pub(crate) const ENTRIES_PER_EPOCH: usize = 256;

/// What a walk is for: values are read with the keys, where that is sooner done, or not before they are asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    Values,
    Keys,
}

/// An entry that a walk comes by, as its reader sees it.
pub(crate) struct Met<'w> {
    pub(crate) record: Record<'w>,
    sum: KeySum,
    key_size: usize,
    /// Where the value begins, if it was read.
    value_at: Option<usize>,
    /// The key, and the value or room for it.
    bytes: &'w mut Vec<u8>,
}

impl<'w> Met<'w> {
    /// The key as it was found.
    #[inline(always)]
    pub(crate) fn key(&self) -> &[u8] {
        &self.bytes[..self.key_size]
    }

    /// The key, if it and the sizes are what was written.
    pub(crate) fn checked_key(&self) -> Result<&[u8], Error> {
        check_key(&self.record, self.sum)?;
        Ok(self.key())
    }

    /// Appends the value to `out`, if it and the key are what was written.
    pub(crate) fn copy_value(&self, out: &mut Vec<u8>) -> Result<usize, Error> {
        copy_value_of(&self.record, self.sum, out)
    }

    /// Key and value, if they are what was written.
    #[inline(always)]
    pub(crate) fn entry(self) -> Result<(&'w [u8], &'w [u8]), Error> {
        if self.value_at.is_none() {
            copy_value_of(&self.record, self.sum, self.bytes)?;
        }
        let (key, rest) = self.bytes.split_at(self.key_size);
        Ok((key, &rest[self.value_at.map_or(0, |at| at - self.key_size)..]))
    }
}

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
        self.walk(cursor, Reading::Values, &mut |met| met.entry().map(|(key, value)| visit(key, value)))
    }

    /// Visits what a reader sees, pinned.
    pub(crate) fn walk(&self, cursor: &mut Cursor, reading: Reading, visit: &mut impl FnMut(Met<'_>) -> Result<ControlFlow<()>, Error>) -> Result<(), Error> {
        let mut bytes = Vec::new();
        while !cursor.is_over() {
            let _pinned = self.shared.pool.pin();
            let index = self.index();
            let Some(index) = index.as_deref() else {
                cursor.end();
                break;
            };
            let (mut left, mut key_size) = (ENTRIES_PER_EPOCH, None);
            // What the visit says after which there is no other under this epoch; nothing, if all has been visited.
            let mut outcome = Ok(None);
            index.tree.scan_values(cursor.position(), cursor.direction(), &mut |link| {
                let mut step = || {
                    bytes.clear();
                    key_size = None;
                    let newest = Record::read(&self.shared.pool, link.get())?;
                    let reads_all = reading == Reading::Values && is_plain(&newest, self.moment);
                    let short = if reads_all { newest.copy_short(&mut bytes) } else { None };
                    let sum = short.map_or_else(|| newest.copy_key_summed(&mut bytes), |short| short.sum);
                    let size = newest.key_size();
                    key_size = Some(size);
                    if cursor.is_beyond(&bytes[..size]) {
                        return Ok(None);
                    }
                    let met = match short {
                        Some(Short { value_at, .. }) => Met { record: newest, sum, key_size: size, value_at: Some(value_at), bytes: &mut bytes },
                        None => {
                            let Some(record) = self.shared.visible(link.get(), self.moment)? else { return Ok(Some(ControlFlow::Continue(()))) };
                            let sum = if record.off == newest.off { sum } else { record.key_sum(&bytes) };
                            Met { record, sum, key_size: size, value_at: None, bytes: &mut bytes }
                        }
                    };
                    visit(met).map(Some)
                };
                let visited = step();
                left -= 1;
                if left > 0 && matches!(visited, Ok(Some(ControlFlow::Continue(())))) {
                    return ControlFlow::Continue(());
                }
                outcome = visited;
                ControlFlow::Break(())
            })?;
            // After an error, too, it goes on behind the entry, if that had a key.
            if let Some(size) = key_size.filter(|_| !matches!(outcome, Ok(None))) {
                cursor.advance(bytes[..size].to_vec());
            }
            match outcome? {
                None => cursor.end(),
                Some(flow) if flow.is_break() => break,
                Some(_) => {}
            }
        }
        Ok(())
    }
}
