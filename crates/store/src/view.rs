//! Reading a namespace, now or as of a moment: what [`Namespace`](crate::Namespace) and [`Snapshot`](crate::Snapshot) have in common.
//!
//! Readers pin an epoch, look up links, and read the visible records (`version.rs`), which stay in place meanwhile. A walk through many entries pins an epoch
//! for a few hundred of them at a time, so that it does not keep retired records from being reused.

use crate::group::GROUP;
use crate::namespace::{Found, check_key, copy_value_of};
use crate::store::{Index, Shared, Space};
use crate::version::{Moment, plain_end};
use crate::{Cursor, Error};
use arc_swap::Guard as Loaded;
use everleaf_index::record::{KeySum, Plain, Record};
use everleaf_index::{AHEAD, Listed};
use everleaf_pmem::Medium;
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Number of entries visited under one pinned epoch.
pub(crate) const ENTRIES_PER_EPOCH: usize = 256;

/// The purpose of a walk: values are read together with keys where that is faster, or not before they are asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    Values,
    Keys,
}

/// An entry that a walk meets, as its reader sees it.
pub(crate) struct Met<'w> {
    key_size: usize,
    /// The key, followed by the value or room for it.
    bytes: &'w mut Vec<u8>,
    value: Value<'w>,
}

/// Where the value of an entry is.
enum Value<'w> {
    /// It was read, and begins there; all checksums match.
    Read(usize),
    Unread(Record<'w>, KeySum),
}

impl<'w> Met<'w> {
    /// The key as it was found.
    #[inline(always)]
    pub(crate) fn key(&self) -> &[u8] {
        &self.bytes[..self.key_size]
    }

    /// The key, if it and the sizes match the checksum.
    pub(crate) fn checked_key(&self) -> Result<&[u8], Error> {
        if let Value::Unread(record, sum) = &self.value {
            check_key(record, *sum)?;
        }
        Ok(self.key())
    }

    /// Its expiry time in milliseconds since 1970.
    pub(crate) fn expiry_ms(&self) -> Option<u64> {
        match &self.value {
            Value::Read(_) => None,
            Value::Unread(record, _) => record.expiry_ms(),
        }
    }

    /// Appends the value to `out`, if it and the key match the checksums.
    pub(crate) fn copy_value(&self, out: &mut Vec<u8>) -> Result<usize, Error> {
        match &self.value {
            Value::Read(at) => {
                out.extend_from_slice(&self.bytes[*at..]);
                Ok(self.bytes.len() - at)
            }
            Value::Unread(record, sum) => copy_value_of(record, *sum, out),
        }
    }

    /// Key and value, if they match the checksums.
    #[inline(always)]
    pub(crate) fn entry(self) -> Result<(&'w [u8], &'w [u8]), Error> {
        let Self { key_size, bytes, value } = self;
        let value_at = match value {
            Value::Read(at) => at,
            Value::Unread(record, sum) => {
                copy_value_of(&record, sum, bytes)?;
                key_size
            }
        };
        Ok((&bytes[..key_size], &bytes[value_at..]))
    }
}

/// A namespace, now or as of a moment.
pub(crate) struct View<'s, M: Medium> {
    pub(crate) shared: &'s Shared<M>,
    pub(crate) space: &'s Arc<Space>,
    /// The moment of a snapshot, which is held; `None`: now.
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

    /// Applies `read` to the content of `key`, if it is present.
    #[inline(always)]
    pub(crate) fn find<T>(&self, key: &[u8], read: impl FnOnce(Found<'_>) -> Result<T, Error>) -> Result<Option<T>, Error> {
        let _pinned = self.shared.pool.pin();
        let index = self.index();
        let Some(index) = index.as_deref() else { return Ok(None) };
        let Some(link) = index.tree.get(key)? else { return Ok(None) };
        match self.visible(key, link)? {
            Some(record) => read(Found { record, key }).map(Some),
            None => Ok(None),
        }
    }

    /// The version that this view sees of `key`, given the index's link.
    #[inline(always)]
    fn visible(&self, key: &[u8], link: NonZeroU64) -> Result<Option<Record<'_>>, Error> {
        let record = self.shared.visible(link.get(), self.moment)?;
        if record.is_none() && self.moment.is_none() {
            self.shared.touch(self.space, key, link.get());
        }
        Ok(record)
    }

    /// Calls `visit` for each of `keys`, in order, with what was found for it.
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
                let record = link.map_or(Ok(None), |link| self.visible(key, link))?;
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

    /// Visits keys, values and expiry times.
    pub(crate) fn walk_entries(&self, cursor: &mut Cursor, mut visit: impl FnMut(&[u8], &[u8], Option<u64>) -> ControlFlow<()>) -> Result<(), Error> {
        self.walk(cursor, Reading::Values, &mut |met| {
            let expiry_ms = met.expiry_ms();
            met.entry().map(|(key, value)| visit(key, value, expiry_ms))
        })
    }

    /// Visits the keys that a reader sees, without reading values.
    pub(crate) fn walk_keys(&self, cursor: &mut Cursor, mut visit: impl FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        self.walk(cursor, Reading::Keys, &mut |met| met.checked_key().map(&mut visit))
    }

    /// Visits the entries that a reader sees, pinned.
    pub(crate) fn walk(&self, cursor: &mut Cursor, reading: Reading, visit: &mut impl FnMut(Met<'_>) -> Result<ControlFlow<()>, Error>) -> Result<(), Error> {
        let (mut bytes, mut hidden) = (Vec::new(), 0);
        while !cursor.is_over() {
            let _pinned = self.shared.pool.pin();
            let index = self.index();
            let Some(index) = index.as_deref() else {
                cursor.end();
                break;
            };
            // Length of the key at the start of `bytes` after which the walk continues if the scan is interrupted.
            let (mut left, mut last_size) = (ENTRIES_PER_EPOCH, None);
            // The result of the last visit under this epoch; `Ok(None)` if all has been visited.
            let mut outcome = Ok(None);
            let pool = &*self.shared.pool;
            // Plain records with timestamps below this are visible. Walks without values take the slow path.
            let end = (reading == Reading::Values).then(|| plain_end(self.moment));
            index.tree.scan_values(cursor.position(), cursor.direction(), &mut |links, count| {
                for at in 0..count {
                    if let Some(ahead) = links.get(at + AHEAD) {
                        Record::prefetch(pool, ahead.get());
                    }
                    bytes.clear();
                    left -= 1;
                    // Most records are read here; the others take the slow path, which reports any damage.
                    let seen = match end.and_then(|end| Record::copy_plain(pool, links[at].get(), end, &mut bytes)) {
                        Some(Plain { key_size, .. }) if cursor.is_beyond(&bytes[..key_size]) => Ok(Seen::Beyond),
                        Some(Plain { key_size, value_at }) => Ok(Seen::Shown(key_size, Value::Read(value_at))),
                        None => self.look(links[at], cursor, &mut bytes, &mut last_size),
                    };
                    let visited = match seen {
                        Ok(Seen::Shown(size, value)) => {
                            let visited = visit(Met { key_size: size, bytes: &mut bytes, value });
                            if left > 0 && matches!(visited, Ok(ControlFlow::Continue(()))) {
                                continue;
                            }
                            last_size = Some(size);
                            visited.map(Some)
                        }
                        Ok(Seen::Hidden) => {
                            hidden += 1;
                            let goes_on = hidden < cursor.hidden_max();
                            if goes_on && left > 0 {
                                continue;
                            }
                            Ok(Some(if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }))
                        }
                        Ok(Seen::Beyond) => Ok(None),
                        Err(error) => Err(error),
                    };
                    outcome = visited;
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            })?;
            // Even after an error the walk continues after the entry, if its key matches its checksum.
            if let Some(size) = last_size.filter(|_| !matches!(outcome, Ok(None))) {
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

    /// Reads the key of the record at a link, and finds out what a reader sees of it.
    #[inline(never)]
    fn look(&self, link: NonZeroU64, cursor: &Cursor, bytes: &mut Vec<u8>, key_size: &mut Option<usize>) -> Result<Seen<'_>, Error> {
        bytes.clear();
        *key_size = None;
        let newest = Record::read(&self.shared.pool, link.get())?;
        let sum = newest.copy_key_summed(bytes);
        // A damaged key may sort anywhere: no walk ends at it or continues after it.
        check_key(&newest, sum)?;
        *key_size = Some(bytes.len());
        if cursor.is_beyond(bytes) {
            return Ok(Seen::Beyond);
        }
        let Some(record) = self.shared.visible(link.get(), self.moment)? else { return Ok(Seen::Hidden) };
        let sum = if record.off == newest.off { sum } else { record.key_sum(bytes) };
        Ok(Seen::Shown(bytes.len(), Value::Unread(record, sum)))
    }
}

/// What a reader sees of a key.
enum Seen<'w> {
    /// An entry: length of the key, and the value.
    Shown(usize, Value<'w>),
    /// Nothing.
    Hidden,
    /// The key is beyond the end of the cursor.
    Beyond,
}
