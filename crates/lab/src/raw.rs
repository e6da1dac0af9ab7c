//! The cost of the memory itself, measured in a pool like that of the indexes: the floor under every figure.

use crate::Error;
use everleaf_pmem::{Pool, WORD, Word};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A store to a random line, its write-back, and a fence.
pub(crate) const FLUSHED_LINE: &str = "random store, write-back, fence";
/// A store to a random line.
pub(crate) const STORE: &str = "random store";
/// A read of a random line whose position comes from the read before it.
pub(crate) const DEPENDENT_READ: &str = "dependent random read of 64 B";

const LINE_WORDS: usize = everleaf_pmem::LINE / WORD;

/// Measures `line_count` lines of a block of `pool`, which must flush. Returns nanoseconds, by name.
///
/// # Errors
/// A full pool.
pub(crate) fn measure(pool: &Pool, line_count: usize, operations: usize, seed: u64) -> Result<BTreeMap<String, f64>, Error> {
    // One line more than needed, so that they can be aligned to a line.
    let block = pool.alloc_words((line_count + 1) * LINE_WORDS).map_err(|error| Error::system("memory", error))?;
    let skipped = pool.offset_of(&block[0]).bytes() as usize % everleaf_pmem::LINE / WORD;
    let start = (LINE_WORDS - skipped) % LINE_WORDS;
    // Positions are computed: a table of them would cost another cache miss.
    let (lines, _) = block[start..].as_chunks::<LINE_WORDS>();
    let lines = &lines[..line_count];
    let mut random = SmallRng::seed_from_u64(seed);
    link_cycle(pool, lines, &mut random);

    let mut at = 0;
    let mut sum = 0_u64;
    let dependent_read = time(operations, || {
        let line = &lines[at];
        sum = line.iter().fold(sum, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)));
        at = line[0].load(Ordering::Relaxed) as usize;
    });
    black_box(sum);
    let store = time(operations, || pool.store(&lines[random.random_range(0..line_count)][1], 1, Ordering::Relaxed));
    let flushed_line = time(operations, || {
        let word = &lines[random.random_range(0..line_count)][2];
        pool.store(word, 2, Ordering::Relaxed);
        pool.persist(word);
    });
    Ok([(FLUSHED_LINE, flushed_line), (STORE, store), (DEPENDENT_READ, dependent_read)].map(|(name, cost)| (name.to_owned(), cost)).into())
}

/// Links all lines into one cycle in random order: the first word of each is the number of the next.
fn link_cycle(pool: &Pool, lines: &[[Word; LINE_WORDS]], random: &mut SmallRng) {
    let mut order: Vec<usize> = (0..lines.len()).collect();
    // Sattolo's shuffle, which leaves a single cycle.
    for last in (1..order.len()).rev() {
        order.swap(last, random.random_range(0..last));
    }
    for (line, next) in lines.iter().zip(order) {
        pool.store(&line[0], next as u64, Ordering::Relaxed);
    }
}

/// Nanoseconds of one of `operations`.
fn time(operations: usize, mut operation: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..operations).for_each(|_| operation());
    start.elapsed().as_nanos() as f64 / operations as f64
}
