//! Arenas: things in DRAM that are found by number and never move.
//!
//! Optimistic readers may follow a number that is out of date. In an arena that leads to some other thing of the same type, never to freed memory, and the
//! version check behind it finds out: this is what lets trees with optimistic readers be written without unsafe code.

use bytemuck::Zeroable;
use everleaf_pmem::huge;
use std::sync::OnceLock;

/// Grows by chunks, each as large as all before it together.
pub(crate) struct Arena<T> {
    chunks: [OnceLock<Box<[T]>>; 32],
    first: usize,
}

impl<T: Zeroable> Arena<T> {
    /// `first` is the size of the first chunk, a power of two.
    pub(crate) fn new(first: usize) -> Self {
        assert!(first.is_power_of_two());
        Self { chunks: [const { OnceLock::new() }; 32], first }
    }

    #[inline(always)]
    fn place(&self, number: usize) -> (usize, usize) {
        let shift = self.first.trailing_zeros();
        let chunk = (usize::BITS - (number >> shift).leading_zeros()) as usize;
        let start = if chunk == 0 { 0 } else { self.first << (chunk - 1) };
        (chunk, number - start)
    }

    /// Number of things in a chunk.
    fn chunk_len(&self, chunk: usize) -> usize {
        if chunk == 0 { self.first } else { self.first << (chunk - 1) }
    }

    /// The thing of that number, if its chunk was ever made.
    #[inline(always)]
    pub(crate) fn get(&self, number: usize) -> Option<&T> {
        let (chunk, at) = self.place(number);
        self.chunks.get(chunk)?.get()?.get(at)
    }

    /// The thing of that number, all zeroes at first.
    pub(crate) fn get_or_make(&self, number: usize) -> &T {
        let (chunk, at) = self.place(number);
        &self.chunks[chunk].get_or_init(|| huge::zeroed_box(self.chunk_len(chunk)))[at]
    }

    /// The things from `number` to the end of its chunk.
    #[inline(always)]
    pub(crate) fn rest_of_chunk(&self, number: usize) -> Option<&[T]> {
        let (chunk, at) = self.place(number);
        self.chunks.get(chunk)?.get()?.get(at..)
    }

    /// Number of things from `number` to the end of its chunk, made or not.
    pub(crate) fn left_in_chunk(&self, number: usize) -> usize {
        let (chunk, at) = self.place(number);
        self.chunk_len(chunk) - at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_own_place() {
        let arena = Arena::<std::sync::atomic::AtomicU64>::new(4);
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
