//! The image ([`crate::image`]) of an index: what it knows of leaves whose keys are in records, so that the next opening need not read those.
//!
//! ```text
//! keys | leaves | of each leaf, in order: { where it lies, 7 words of fingerprints }
//! ```
//!
//! Which leaves live, and where their ranges begin, is in the directory. The image counts if its leaves are those, in their order. An index of integers has
//! none: it serves before its leaves are read.

use super::directory::{Directory, Number, handle};
use super::leaf::{Fingerprints, SLOTS_MAX};
use super::{Ever, Known};
use crate::selective::router::Router;
use crate::{Error, Key, image};
use everleaf_pmem::{Medium, Pool, WORD};
use std::sync::atomic::Ordering::Relaxed;

/// Words of fingerprints.
const TAGS: usize = SLOTS_MAX / WORD;

impl<K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize, const FANOUT: usize> Ever<K, M, LINES, LEAVES, FANOUT> {
    /// See [`OrderedIndex::close`](crate::OrderedIndex::close).
    pub(super) fn leave_image(&self) -> Result<(), Error> {
        let mut content = vec![self.known.keys.get(), self.leaves.get()];
        let checked = self.router.check(&mut |_, number| {
            let at = Directory::<LINES, LEAVES>::leaf(&self.pool, number).map_or(0, |leaf| self.pool.offset_of(leaf).bytes());
            let descriptor = self.known.descriptors.get(handle(number));
            content.push(at);
            content.extend((0..TAGS).map(|tag| u64::from_le_bytes(std::array::from_fn(|slot| descriptor.fingerprint(tag * WORD + slot)))));
        });
        checked.map_err(|what| everleaf_pmem::Error::corrupt(self.root.bytes(), what))?;
        self.is_closed.store(true, Relaxed);
        if K::WHOLE { Ok(()) } else { image::leave(&self.pool, &self.root().image, &content) }
    }
}

impl Known {
    /// Takes from an image what there is to know of these leaves, in order, which nobody has read; nothing, if it is of others.
    pub(super) fn recall<T, M: Medium, const LINES: usize, const LEAVES: usize>(&self, pool: &Pool<M>, leaves: &[(T, Number)], content: &[u64]) -> Option<()> {
        let [keys, count, rest @ ..] = content else { return None };
        let (parts, []) = rest.as_chunks::<{ 1 + TAGS }>() else { return None };
        let lies_at = |number| Some(pool.offset_of(Directory::<LINES, LEAVES>::leaf(pool, number)?).bytes());
        let are_those = parts.iter().zip(leaves).all(|([at, ..], (_, number))| lies_at(*number) == Some(*at));
        if *count != leaves.len() as u64 || parts.len() != leaves.len() || !are_those {
            return None;
        }
        for ([_, tags @ ..], (_, number)) in parts.iter().zip(leaves) {
            let mut fingerprints = Fingerprints::default();
            fingerprints.0.iter_mut().zip(tags.iter().flat_map(|tag| tag.to_le_bytes())).for_each(|(slot, tag)| *slot = tag);
            let descriptor = self.descriptors.get(handle(*number));
            let _lock = descriptor.latch().begin_locked().expect("nobody else knows of the index yet");
            descriptor.fill(&fingerprints);
        }
        self.keys.add(i64::try_from(*keys).ok()?);
        Some(())
    }
}
