//! Data that a closed index leaves, so that the next opening need not read everything: words under a checksum.
//!
//! ```text
//! check | words | content
//! ```
//!
//! `words` is the number of words of the whole image, `check` a checksum of all that follows it. Each index defines its content: [`crate::selective`],
//! [`crate::ever`], [`crate::fair`] and [`crate::skip`] have one each.
//!
//! Closing:
//! 1. The image goes to an unreachable block: flush. A crash forgets it. In a pool without room there is none, and the next opening reads the leaves.
//! 2. `image` in the root block := the block, flush; one fence for both. The commit point is the closing of the pool. A crash before that leaves a pool that is
//!    to be recovered, and recovery ignores images. The index refuses writes, which the image would not include.
//!
//! Opening:
//! 1. In a pool that has been closed, the image is copied and checked. A damaged one is ignored.
//! 2. `image` := 0, persist, before anything changes: no later opening finds outdated data.
//! 3. The block is given back; if the pool is recovered, it is free because it is unreachable.
//!
//! A sound image that contradicts the pool is an error of the opening that has taken it, and of no later one that writes: whoever only reads a pool takes the
//! image from a copy. One of the two is damaged, and it is unknown which. A user that has seen this error, and opens the pool again nonetheless, to write, gets
//! what the leaves say, as after a crash: the leaves hold the data.

use crate::Error;
use everleaf_pmem::{Medium, Off, Pool, WORD, Word};
use std::sync::atomic::Ordering::{Relaxed, Release};

const CHECK: usize = 0;
const WORDS: usize = 1;
const HEADER: usize = 2;
/// Words that are checked at once.
const PIECE: usize = 512;

/// Writes an image to a new block and links it in `slot`, durably. In a pool without room there is none.
///
/// # Errors
/// A pool that cannot be written.
pub(crate) fn leave<M: Medium>(pool: &Pool<M>, slot: &Word, content: &[u64]) -> Result<(), Error> {
    let words = seal(content);
    let block = match pool.alloc_words(words.len()) {
        Err(everleaf_pmem::Error::NoSpace { .. }) => return Ok(()),
        block => block?,
    };
    for (word, value) in block.iter().zip(&words) {
        pool.store(word, *value, Relaxed);
    }
    pool.store(slot, block.flush().release().link(), Release);
    // persist-equivalent(fence drop): closing the pool fences before it says that it was closed.
    pool.persist(slot);
    Ok(())
}

/// Returns the content of the image that `slot` links, if there is one and it is sound, and gives the image up, durably. It counts only if the pool has been
/// closed since it was written.
pub(crate) fn take<M: Medium>(pool: &Pool<M>, slot: &Word, has_been_closed: bool) -> Option<Vec<u64>> {
    // Who looks at a pool changes nothing.
    if slot.get() == 0 || pool.writable().is_err() {
        return None;
    }
    let block = Off::<Word>::from_link(slot.get()).ok();
    let content = block.filter(|_| has_been_closed).and_then(|block| read(pool, block));
    // The worlds of the checker have room for another image, which takes its place. Where there is none, this is what keeps it from being found: see the tests.
    // persist-equivalent(store late): as above.
    pool.store(slot, 0, Relaxed);
    // persist-equivalent(flush drop, flush neighbour, fence drop): as above.
    pool.persist(slot);
    // The end of a damaged image is unknown, and it may not even be a block: the next recovery finds it free.
    pool.retire(block.filter(|_| content.is_some())?, &pool.pin());
    content
}

/// Offset and size in bytes of the image that `slot` links, if there is one and it is sound. Only who looks at a pool finds one, without taking it.
pub(crate) fn block<M: Medium>(pool: &Pool<M>, slot: &Word) -> Option<(u64, usize)> {
    let block = Off::<Word>::from_link(slot.get()).ok()?;
    let content = read(pool, block)?;
    Some((block.bytes(), (HEADER + content.len()) * WORD))
}

fn seal(content: &[u64]) -> Vec<u64> {
    let mut words = vec![0, (HEADER + content.len()) as u64];
    words.extend(content);
    words[CHECK] = append(0, &words[WORDS..]).into();
    words
}

fn read<M: Medium>(pool: &Pool<M>, block: Off<Word>) -> Option<Vec<u64>> {
    let header = pool.words(block, HEADER)?;
    let words = pool.words(block, usize::try_from(header[WORDS].get()).ok()?)?;
    let (_, content) = words.split_at_checked(HEADER)?;
    // Checked before it is copied, since its length may be what is damaged.
    let check = words[WORDS..].chunks(PIECE).fold(0, |check, piece| append(check, &piece.iter().map(Word::get).collect::<Vec<_>>()));
    (words[CHECK].get() == check.into()).then(|| content.iter().map(Word::get).collect())
}

fn append(check: u32, words: &[u64]) -> u32 {
    crc32c::crc32c_append(check, bytemuck::cast_slice(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use everleaf_pmem::{Crash, CrashOptions, Hardware, Life, Memory, PoolOptions, Seen, resident};
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    resident! {
        struct Root {
            image: Word,
        }
    }

    #[test]
    fn what_is_left_is_taken_once_and_only_if_it_is_sound_and_the_pool_was_closed() {
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 4 << 20, ..PoolOptions::default() }).unwrap();
        let root = pool.seal(pool.alloc::<Root>().inspect(|root| pool.store(&root.image, 0, Relaxed)).unwrap()).release();
        let slot = &pool.get(root).unwrap().image;
        let content = [7, 1 << 40, 0];
        assert_eq!(take(&pool, slot, true), None);
        leave(&pool, slot, &content).unwrap();
        assert_eq!((take(&pool, slot, true), take(&pool, slot, true)), (Some(content.to_vec()), None));
        leave(&pool, slot, &content).unwrap();
        assert_eq!((take(&pool, slot, false), slot.get()), (None, 0));
        leave(&pool, slot, &content).unwrap();
        let word = &pool.words(Off::<Word>::from_link(slot.get()).unwrap(), 4).unwrap()[3];
        pool.store(word, word.get() ^ 1, Relaxed);
        assert_eq!((take(&pool, slot, true), slot.get()), (None, 0));
    }

    /// An image that was taken, and is still linked when the pool is closed again without room for another, would describe old leaves.
    #[test]
    fn what_was_taken_is_not_found_again() {
        let memory = Memory::new(256 << 10).unwrap();
        let life = Crash::new(&memory).live(CrashOptions::default());
        let pool = Pool::create_in(Arc::clone(&memory), life.medium(), PoolOptions { size_max: memory.size(), ..PoolOptions::default() }).unwrap();
        let root = pool.seal(pool.alloc::<Root>().inspect(|root| pool.store(&root.image, 0, Relaxed)).unwrap()).release();
        let slot = &pool.get(root).unwrap().image;
        let at = root.bytes() as usize / WORD;
        // Number of crash images with a link, and number without.
        let left = |life: &Life| {
            let (seen, watched) = (Arc::new([const { AtomicUsize::new(0) }; 2]), Arc::clone(&memory));
            let sink = Arc::clone(&seen);
            life.observe(move |_| {
                sink[usize::from(watched.words()[at].load(Relaxed) == 0)].fetch_add(1, Relaxed);
                Seen::default()
            });
            life.end();
            life.look_away();
            (seen[0].load(Relaxed), seen[1].load(Relaxed))
        };
        leave(&pool, slot, &[7]).unwrap();
        assert!(matches!(left(&life), (1.., 0)));
        assert_eq!(take(&pool, slot, true), Some(vec![7]));
        assert!(matches!(left(&life), (0, 1..)));
        leave(&pool, slot, &[7]).unwrap();
        assert_eq!(take(&pool, slot, false), None);
        assert!(matches!(left(&life), (0, 1..)));
        drop(pool);
    }
}
