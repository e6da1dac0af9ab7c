//! The image ([`crate::image`]) of an index: what it knows of leaves whose keys are in records, so that the next opening need not read those.
//!
//! ```text
//! form | keys | leaves | of each leaf, in order: { where it lies, 7 words of fingerprints }
//! ```
//!
//! The form says how fingerprints are made (`leaf.rs`). The directory says which leaves live, and where their ranges begin. The image counts if its leaves are
//! those, in their order. An index of integers has none: it serves before its leaves are read.

use super::directory::{Directory, Number, handle};
use super::leaf::SLOTS_MAX;
use super::{Ever, Known};
use crate::selective::router::Router;
use crate::{Error, Key, image};
use everleaf_pmem::{Medium, Pool, WORD};

/// Words of fingerprints.
const TAGS: usize = SLOTS_MAX / WORD;
/// See the module documentation. In form 1, home and fingerprint were made of the same bits.
const FORM: u64 = 2;

impl<K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize, const FANOUT: usize> Ever<K, M, LINES, LEAVES, FANOUT> {
    /// See [`OrderedIndex::close`](crate::OrderedIndex::close).
    pub(super) fn leave_image(&self) -> Result<(), Error> {
        // Reading a leaf may clear slots of it, which must not happen in a closed pool.
        self.read_rest();
        let mut content = vec![FORM, self.known.keys.get(), self.leaves.get()];
        let checked = self.router.check(&mut |_, number| {
            if !K::WHOLE {
                content.push(Directory::<LINES, LEAVES>::leaf(&self.pool, number).map_or(0, |leaf| self.pool.offset_of(leaf).bytes()));
                content.extend(self.known.descriptors.get(handle(number)).tags());
            }
        });
        checked.map_err(|what| everleaf_pmem::Error::corrupt(self.root.bytes(), what))?;
        if K::WHOLE { Ok(()) } else { image::leave(&self.pool, &self.root().image, &content) }
    }
}

impl Known {
    /// Takes from an image what is known of these leaves, in order, which no thread has read. Returns false if its form is no longer read.
    ///
    /// # Errors
    /// The image is of other leaves. Nothing has changed since it was left, so one of the two is damaged, and an image has a checksum.
    pub(super) fn recall<T, M: Medium, const LINES: usize, const LEAVES: usize>(
        &self,
        pool: &Pool<M>,
        root: u64,
        leaves: &[(T, Number)],
        content: &[u64],
    ) -> Result<bool, Error> {
        let [FORM, keys, count, rest @ ..] = content else { return Ok(false) };
        let (parts, []) = rest.as_chunks::<{ 1 + TAGS }>() else { return Ok(false) };
        let lies_at = |number| Some(pool.offset_of(Directory::<LINES, LEAVES>::leaf(pool, number)?).bytes());
        let are_those = parts.iter().zip(leaves).all(|([at, ..], (_, number))| lies_at(*number) == Some(*at));
        if *count != leaves.len() as u64 || parts.len() != leaves.len() || !are_those {
            return Err(everleaf_pmem::Error::corrupt(root, "a directory of leaves that are not those which the index had when it was closed").into());
        }
        for ([_, tags @ ..], (_, number)) in parts.iter().zip(leaves) {
            let descriptor = self.descriptors.get(handle(*number));
            let _lock = descriptor.latch().begin_locked().expect("nobody else knows of the index yet");
            descriptor.fill_tags(tags.iter().copied());
        }
        self.keys.add(keys.cast_signed());
        Ok(true)
    }
}
