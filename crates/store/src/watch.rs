//! Whether a key has changed between a snapshot and a transaction that began later.
//!
//! The snapshot keeps in place whatever tells of a change: newer versions stand before the one that it sees, and what was removed has left a tombstone. So
//! nothing has changed if the transaction, which reads from a snapshot of its own, finds that very version; and what it has looked at it looks at again when it
//! commits. So, if it commits, the key was the same from the one moment to the other. A version that was loaded is as old as its index.

use crate::version::{CUT_OUT, is_surely_shown};
use crate::{Error, Namespace, Snapshot, Transaction};
use everleaf_index::Listed;

impl<M: Listed> Transaction<M> {
    /// Whether `key` has been left alone since `before`: neither written, be it with the same value, nor removed, nor expired. One that had expired before then
    /// may have been removed since; and a key that both find absent, in a namespace that was cleared between them, counts as left alone.
    ///
    /// # Errors
    /// A damaged pool.
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn is_unchanged_since(&self, before: &Snapshot<M>, namespace: &Namespace<M>, key: &[u8]) -> Result<bool, Error> {
        self.note_key(namespace, key);
        let was_shown = before.value_size(namespace, key)?.is_some();
        let (now, shared) = (self.snapshot().moment(), &before.shared);
        let _pinned = shared.pool.pin();
        let index = namespace.space.index_at(now, &shared.clock);
        let Some(link) = index.as_deref().map_or(Ok(None), |index| index.tree.get(key))? else { return Ok(!was_shown) };
        let mut newest = shared.version_at(link.get(), now.at)?;
        // Whoever removes what is not shown changes nothing: then what was removed tells. It is held back as long as `before` lives, or was cut out.
        while let Some((record, at)) = &newest
            && !was_shown
            && *at >= before.timestamp()
            && record.is_tombstone()
        {
            if record.previous().get() & CUT_OUT != 0 {
                return Ok(false);
            }
            newest = shared.version_at(link.get(), *at)?;
        }
        let Some((record, at)) = newest else { return Ok(!was_shown) };
        // What was loaded has no timestamp of its own.
        let begun = index.as_deref().map_or(0, |index| index.begun.get(&shared.clock));
        Ok(at.max(begun) < before.timestamp() && is_surely_shown(&record, now.time_ms)? == was_shown)
    }
}
