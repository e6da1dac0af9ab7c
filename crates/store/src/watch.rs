//! Whether a key has changed between a snapshot and a transaction that began later.
//!
//! The snapshot keeps in place everything that shows a change: newer versions stand before the one that it sees, and a removal has left a tombstone. So nothing
//! has changed if the transaction, which reads from a snapshot of its own, finds that very version; and it checks what it has read again when it commits. So if
//! it commits, the key stayed the same from one moment to the other. A version that was bulk-loaded is as old as its index.

use crate::store::Index;
use crate::version::{CUT_OUT, is_surely_shown};
use crate::{Error, Namespace, Snapshot, Transaction};
use everleaf_index::Listed;
use std::sync::atomic::Ordering;

impl<M: Listed> Transaction<M> {
    /// Whether `key` has been left alone since `before`: not written, even with the same value, not removed, and not expired. A key that had expired before
    /// then may have been removed since.
    ///
    /// # Errors
    /// A damaged pool; [`Error::TransactionTooLarge`].
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn is_unchanged_since(&self, before: &Snapshot<M>, namespace: &Namespace<M>, key: &[u8]) -> Result<bool, Error> {
        self.note_key(namespace, key)?;
        let was_shown = before.value_size(namespace, key)?.is_some();
        let (now, shared) = (self.snapshot().moment(), &before.shared);
        let _pinned = shared.pool.pin();
        let was_left_alone = |index: Option<&Index>, until| self.is_unchanged_in(index, until, before, was_shown, key);
        // An absent key may have come and gone with an index.
        let former = if was_shown { Vec::new() } else { namespace.space.cleared_between(before.timestamp(), now.at, &shared.clock) };
        for (index, ended) in &former {
            // The last write before the clear may have its timestamp.
            if !was_left_alone(Some(index), *ended + 1)? {
                return Ok(false);
            }
        }
        was_left_alone(namespace.space.index_at(now, &shared.clock).as_deref(), now.at)
    }

    /// [`Transaction::is_unchanged_since`], as far as one index shows, which had nothing newer than `until`.
    fn is_unchanged_in(&self, index: Option<&Index>, until: u64, before: &Snapshot<M>, was_shown: bool, key: &[u8]) -> Result<bool, Error> {
        let (now, shared) = (self.snapshot().moment(), &before.shared);
        let Some(link) = index.map_or(Ok(None), |index| index.tree.get(key))? else { return Ok(!was_shown) };
        let mut newest = shared.version_at(link.get(), until)?;
        // Removing what is not shown changes nothing: then the version that was removed decides. It is held back as long as `before` lives, or was cut out.
        while let Some((record, at)) = &newest
            && !was_shown
            && *at >= before.timestamp()
            && record.is_tombstone()
        {
            // Read once: what is behind it may be cut out at any time, and stays readable for threads that have the pool pinned.
            let behind = record.previous().load(Ordering::Acquire);
            if behind & CUT_OUT != 0 {
                return Ok(false);
            }
            newest = if behind == 0 { None } else { shared.version_at(behind, *at)? };
        }
        let Some((record, at)) = newest else { return Ok(!was_shown) };
        // A loaded version has no timestamp of its own.
        let begun = index.map_or(0, |index| index.begun.get(&shared.clock));
        Ok(at.max(begun) < before.timestamp() && is_surely_shown(&record, now.time_ms)? == was_shown)
    }
}
