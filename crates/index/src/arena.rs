//! Arenas: objects in DRAM that are found by number and never move.
//!
//! Optimistic readers may follow a stale number. In an arena it leads to another object of the same type, never to freed memory, and the subsequent version
//! check detects that. So trees with optimistic readers can be written without unsafe code.

use bytemuck::Zeroable;
use everleaf_pmem::huge::Zeroes;
use parking_lot::Mutex;
use std::sync::OnceLock;

/// Grows by chunks: the first has `FIRST` objects, a power of two, each other one twice as many as the one before it.
pub(crate) struct Arena<T, const FIRST: usize> {
    /// Indexed by the highest bit of the number plus `FIRST`: the chunk has as many objects as that bit's value. Chunks below that of `FIRST` are never made.
    chunks: [OnceLock<Zeroes<T>>; usize::BITS as usize],
}

impl<T: Zeroable, const FIRST: usize> Arena<T, FIRST> {
    pub(crate) fn new() -> Self {
        const { assert!(FIRST.is_power_of_two()) };
        Self { chunks: [const { OnceLock::new() }; usize::BITS as usize] }
    }

    /// The chunk of a number, and the place in it: the highest bit of the number plus `FIRST` gives the chunk, the other bits the place. Numbers that are too
    /// large have a chunk that is never made.
    #[inline(always)]
    fn place(number: usize) -> (usize, usize) {
        let number = number.wrapping_add(FIRST);
        let highest = (number | 1).ilog2();
        (highest as usize, number ^ 1 << highest)
    }

    /// The chunk of a number, if it was ever made, and the place in it.
    #[inline(always)]
    fn find(&self, number: usize) -> Option<(&[T], usize)> {
        let (chunk, at) = Self::place(number);
        Some((self.chunks[chunk].get()?, at))
    }

    /// The object of that number, if its chunk was ever made.
    #[inline(always)]
    pub(crate) fn get(&self, number: usize) -> Option<&T> {
        let (chunk, at) = self.find(number)?;
        chunk.get(at)
    }

    /// The object of that number, all zeroes at first.
    pub(crate) fn get_or_make(&self, number: usize) -> &T {
        let (chunk, at) = Self::place(number);
        assert!(1 << chunk >= FIRST, "a number that is no address");
        &self.chunks[chunk].get_or_init(|| Zeroes::new(1 << chunk))[at]
    }

    /// The objects from `number` to the end of its chunk.
    #[inline(always)]
    pub(crate) fn rest_of_chunk(&self, number: usize) -> Option<&[T]> {
        let (chunk, at) = self.find(number)?;
        chunk.get(at..)
    }

    /// Number of objects from `number` to the end of its chunk, made or not.
    pub(crate) fn left_in_chunk(&self, number: usize) -> usize {
        let (chunk, at) = Self::place(number);
        (1 << chunk) - at
    }
}

/// Free numbers of an arena; those that were given back are reused first.
pub(crate) struct Numbers(Mutex<(u32, Vec<u32>)>);

impl Numbers {
    /// `first`: the lowest number that is given out.
    pub(crate) fn from(first: u32) -> Self {
        Self(Mutex::new((first, Vec::new())))
    }

    pub(crate) fn take(&self) -> u32 {
        let (next, free) = &mut *self.0.lock();
        free.pop().unwrap_or_else(|| {
            *next += 1;
            *next - 1
        })
    }

    pub(crate) fn give(&self, number: u32) {
        self.0.lock().1.push(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_own_place() {
        let arena = Arena::<std::sync::atomic::AtomicU64, 4>::new();
        for number in 0..1000 {
            let cell = arena.get_or_make(number);
            assert_eq!(cell.swap(number as u64 + 1, std::sync::atomic::Ordering::Relaxed), 0);
        }
        for number in 0..1000 {
            assert_eq!(arena.get(number).unwrap().load(std::sync::atomic::Ordering::Relaxed), number as u64 + 1);
            assert_eq!(arena.left_in_chunk(number), arena.rest_of_chunk(number).unwrap().len());
        }
        assert!(arena.get(1 << 20).is_none() && arena.get(usize::MAX).is_none());
    }
}
