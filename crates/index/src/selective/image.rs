//! The image ([`crate::image`]) of a tree.
//!
//! NV-Tree writes its inner nodes when it is shut down, and has them at once when it is opened again. Inner nodes say where the range of each leaf begins. So
//! this is written here, in one form for all routers and all leaves, and any router is built from it.
//!
//! ```text
//! keys | leaves | place of each leaf | low of each leaf
//!
//! low: an integer is a word; a byte string is its length and its bytes, in whole words
//! ```

use crate::Key;
use crate::record::KEY_SIZE_MAX;
use everleaf_pmem::WORD;
use std::borrow::Borrow;

/// See the module documentation.
pub(super) struct Image<K: Key + ?Sized> {
    /// Number of keys.
    pub(super) keys: u64,
    /// The low of each leaf and where it lies, in order.
    pub(super) leaves: Vec<(K::Owned, u64)>,
}

const KEYS: usize = 0;
const LEAVES: usize = 1;
const HEADER: usize = 2;

impl<K: Key + ?Sized> Image<K> {
    pub(super) fn encode(&self) -> Vec<u64> {
        let mut words = vec![self.keys, self.leaves.len() as u64];
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
        words
    }

    /// The image in `words`, whose checksum is right.
    pub(super) fn decode(words: &[u64]) -> Option<Self> {
        let (header, rest) = words.split_at_checked(HEADER)?;
        let (places, mut lows) = rest.split_at_checked(usize::try_from(header[LEAVES]).ok()?)?;
        let mut leaves = Vec::with_capacity(places.len());
        for place in places {
            let (first, after) = lows.split_first()?;
            let (low, after) = match K::WHOLE {
                true => (K::restore(*first, &[]), after),
                false => {
                    let length = usize::try_from(*first).ok().filter(|length| *length <= KEY_SIZE_MAX)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn comes_back<K: Key + ?Sized>(lows: Vec<K::Owned>) {
        let leaves: Vec<_> = lows.into_iter().zip((1..).map(|number| number * 512)).collect();
        let words = Image::<K> { keys: 7, leaves: leaves.clone() }.encode();
        let image = Image::<K>::decode(&words).unwrap();
        assert_eq!((image.keys, image.leaves), (7, leaves));
        // Any words must get an answer, even if their checksum were right.
        for at in 0..words.len() {
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
