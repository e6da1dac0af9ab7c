//! What a tree leaves behind when it is closed, so that the next opening need not read the leaves.
//!
//! NV-Tree writes its inner nodes when it is shut down, and has them at once when it is opened again. What inner nodes say is where the range of each leaf
//! begins; so this is what is written here, once for all routers and all leaves, and any router is built from it.
//!
//! ```text
//! check | words | keys | leaves | place of each leaf | low of each leaf
//!
//! low: of integers, a word; of byte strings, their length and their bytes, in whole words
//! ```
//!
//! `check` is a checksum of all that follows, of which there are so many `words`.
//!
//! Closing:
//! 1. the image goes to a block that nobody can reach: flush, fence. A crash forgets it. In a pool without room there is none, and the next opening reads the
//!    leaves.
//! 2. `image` in the root block := the block, persist: the commit point. From here on the tree refuses writes, of which the image would not tell. A crash after
//!    it, but before the pool has been closed, leaves a pool that is to be recovered, which takes no notice of images.
//!
//! Opening:
//! 1. in a pool that has been closed, the image is copied and checked. One that is damaged is none.
//! 2. `image` := 0, persist, before anything changes: no opening to come finds what is no longer true.
//! 3. the block is given back; where the pool is recovered, it is free because nobody reaches it.

use crate::{Error, Key};
use everleaf_pmem::{Medium, Off, Pool, WORD, Word};
use std::borrow::Borrow;
use std::sync::atomic::Ordering::Relaxed;

/// See the module documentation.
pub(super) struct Image<K: Key + ?Sized> {
    /// Number of keys.
    pub(super) keys: u64,
    /// The low of each leaf and where it lies, in order.
    pub(super) leaves: Vec<(K::Owned, u64)>,
}

const CHECK: usize = 0;
const WORDS: usize = 1;
const KEYS: usize = 2;
const LEAVES: usize = 3;
const HEADER: usize = 4;

impl<K: Key + ?Sized> Image<K> {
    /// Writes the image to a new block and links it in `slot`, durably.
    ///
    /// # Errors
    /// A full pool; then nothing has changed.
    pub(super) fn write<M: Medium>(&self, pool: &Pool<M>, slot: &Word) -> Result<(), Error> {
        let words = self.encode();
        let block = pool.alloc_words(words.len())?;
        for (word, value) in block.iter().zip(&words) {
            pool.store(word, *value, Relaxed);
        }
        let block = pool.seal(block);
        pool.link(slot, block);
        Ok(())
    }

    /// Reads the image that `slot` links, if there is one and it is sound, and gives it up, durably. It counts only if the pool has been closed since it was
    /// written.
    pub(super) fn take<M: Medium>(pool: &Pool<M>, slot: &Word, has_been_closed: bool) -> Option<Self> {
        // Who only looks at a pool changes nothing.
        if slot.get() == 0 || pool.writable().is_err() {
            return None;
        }
        let block = Off::<Word>::from_link(slot.get()).ok();
        let words = block.filter(|_| has_been_closed).and_then(|block| read(pool, block));
        pool.store(slot, 0, Relaxed);
        pool.persist(slot);
        // Of one that is damaged nobody knows where it ends, or whether it is a block at all: the next recovery finds it free.
        pool.retire(block.filter(|_| words.is_some())?, &pool.pin());
        Self::decode(&words?)
    }

    fn encode(&self) -> Vec<u64> {
        let mut words = vec![0, 0, self.keys, self.leaves.len() as u64];
        words.extend(self.leaves.iter().map(|(_, place)| place));
        for (low, _) in &self.leaves {
            let low: &K = low.borrow();
            match K::WHOLE {
                true => words.push(low.head(0)),
                false => {
                    let bytes = low.bytes();
                    words.push(bytes.len() as u64);
                    words.extend(bytes.chunks(WORD).map(|chunk| {
                        let mut word = [0; WORD];
                        word[..chunk.len()].copy_from_slice(chunk);
                        u64::from_le_bytes(word)
                    }));
                }
            }
        }
        words[WORDS] = words.len() as u64;
        words[CHECK] = check_of(&words);
        words
    }

    /// What `words` say, whose checksum is right.
    fn decode(words: &[u64]) -> Option<Self> {
        let (header, rest) = words.split_at_checked(HEADER)?;
        let (places, mut lows) = rest.split_at_checked(usize::try_from(header[LEAVES]).ok()?)?;
        let mut leaves = Vec::with_capacity(places.len());
        for place in places {
            let (first, after) = lows.split_first()?;
            let (low, after) = match K::WHOLE {
                true => (K::restore(*first, &[]), after),
                false => {
                    let length = usize::try_from(*first).ok()?;
                    let (low, after) = after.split_at_checked(length.div_ceil(WORD))?;
                    (K::restore(0, bytemuck::cast_slice::<u64, u8>(low).get(..length)?), after)
                }
            };
            leaves.push((low, *place));
            lows = after;
        }
        let ascend = leaves.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let is_sound = leaves.first().is_some_and(|(low, _)| *low.borrow() == *K::LOWEST) && ascend && lows.is_empty();
        is_sound.then_some(Self { keys: header[KEYS], leaves })
    }
}

/// The words of an image, if they are as they were written.
fn read<M: Medium>(pool: &Pool<M>, block: Off<Word>) -> Option<Vec<u64>> {
    let header = pool.words(block, HEADER)?;
    let words = pool.words(block, usize::try_from(header[WORDS].get()).ok()?)?;
    let words: Vec<u64> = words.iter().map(Word::get).collect();
    (words.len() >= HEADER && words[CHECK] == check_of(&words)).then_some(words)
}

fn check_of(words: &[u64]) -> u64 {
    crc32c::crc32c(bytemuck::cast_slice(&words[WORDS..])).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comes_back<K: Key + ?Sized>(lows: Vec<K::Owned>) {
        let leaves: Vec<_> = lows.into_iter().zip((1..).map(|number| number * 512)).collect();
        let words = Image::<K> { keys: 7, leaves: leaves.clone() }.encode();
        assert_eq!(words[CHECK], check_of(&words));
        let image = Image::<K>::decode(&words).unwrap();
        assert_eq!((image.keys, image.leaves), (7, leaves));
        // Whatever stands there, there is an answer, also if the checksum were right.
        for at in WORDS..words.len() {
            for value in [0, 1, words[at].wrapping_add(1), u64::MAX] {
                let mut words = words.clone();
                words[at] = value;
                let _ = Image::<K>::decode(&words);
                let _ = Image::<K>::decode(&words[..at]);
            }
        }
    }

    #[test]
    fn what_is_written_is_read() {
        comes_back::<u64>(vec![0]);
        comes_back::<u64>((0..100).map(|low| low * low).collect());
        comes_back::<[u8]>(vec![Vec::new()]);
        comes_back::<[u8]>((0..40).map(|length| vec![b'x'; length]).collect());
    }

    #[test]
    fn lows_that_do_not_ascend_are_refused() {
        let words = |lows: [u64; 3]| Image::<u64> { keys: 0, leaves: lows.map(|low| (low, 512)).to_vec() }.encode();
        assert!(Image::<u64>::decode(&words([0, 1, 2])).is_some());
        assert!(Image::<u64>::decode(&words([0, 2, 1])).is_none());
        assert!(Image::<u64>::decode(&words([1, 2, 3])).is_none());
    }
}
