//! Byte strings in DRAM that optimistic readers may read while they change.
//!
//! A string is its length and its bytes, in atomic words of an [`Arena`], named by the number of its first word. A late reader finds another string there, or a
//! mixture, and its version check detects that. Number 0 is the empty string.
//!
//! A string takes a power of two of words, or one and a quarter, a half or three quarters of it. Strings of equal size reuse each other's place when they are
//! given back.

use crate::arena::Arena;
use everleaf_pmem::schedule::{self, atomic::AtomicU64};
use parking_lot::Mutex;
use std::cmp::Ordering as Order;
use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};

pub(crate) struct Strings {
    words: Arena<AtomicU64, 64>,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    /// First word that was never used.
    next: usize,
    /// Freed strings by their size in words.
    by_size: HashMap<usize, Vec<u32>>,
}

/// The size of a string of `length` bytes.
fn size_in_words(length: usize) -> usize {
    let size = 1 + length.div_ceil(8);
    size.next_multiple_of(1 << size.ilog2().saturating_sub(2))
}

impl Strings {
    pub(crate) fn new() -> Self {
        Self { words: Arena::new(), free: Mutex::new(Free { next: 1, by_size: HashMap::new() }) }
    }

    /// Keeps a copy of `bytes`.
    pub(crate) fn add(&self, bytes: &[u8]) -> u32 {
        if bytes.is_empty() {
            return 0;
        }
        let size = size_in_words(bytes.len());
        let number = self.take(size);
        let words = self.rest(number);
        // A thread that sees what is stored from here on also sees that the node which named these words before has changed.
        fence(Ordering::Release);
        words[0].store(bytes.len() as u64, Ordering::Relaxed);
        for (word, chunk) in words[1..].iter().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_be_bytes(padded), Ordering::Relaxed);
        }
        number
    }

    fn take(&self, size: usize) -> u32 {
        let mut free = self.free.lock();
        if let Some(number) = free.by_size.get_mut(&size).and_then(Vec::pop) {
            return number;
        }
        while self.words.left_in_chunk(free.next) < size {
            free.next += self.words.left_in_chunk(free.next);
        }
        let number = free.next;
        free.next += size;
        self.words.get_or_make(number);
        u32::try_from(number).expect("separators of a router take less than 32 GiB")
    }

    /// Gives a string back. Its number may name another string at once.
    pub(crate) fn remove(&self, number: u32) {
        if number != 0 {
            let size = size_in_words(self.rest(number)[0].load(Ordering::Relaxed) as usize);
            schedule::drain();
            self.free.lock().by_size.entry(size).or_default().push(number);
        }
    }

    fn rest(&self, number: u32) -> &[AtomicU64] {
        self.words.rest_of_chunk(number as usize).unwrap_or(&[])
    }

    /// Length and words of a string; for any number, no more words than there are.
    fn string(&self, number: u32) -> (usize, &[AtomicU64]) {
        match self.rest(number) {
            [length, words @ ..] if number != 0 => ((length.load(Ordering::Relaxed) as usize).min(words.len() * 8), words),
            _ => (0, &[]),
        }
    }

    /// Copies a string to `out`.
    pub(crate) fn read(&self, number: u32, out: &mut Vec<u8>) {
        let (length, words) = self.string(number);
        out.clear();
        for word in &words[..length.div_ceil(8)] {
            out.extend_from_slice(&word.load(Ordering::Relaxed).to_be_bytes());
        }
        out.truncate(length);
    }

    /// Compares the first `size` bytes of `bytes` and of a string, or as many as there are.
    #[inline]
    pub(crate) fn compare_up_to(&self, bytes: &[u8], number: u32, size: usize) -> Order {
        let (length, words) = self.string(number);
        let (length, bytes) = (length.min(size), &bytes[..bytes.len().min(size)]);
        let (chunks, rest) = bytes[..length.min(bytes.len())].as_chunks();
        for (chunk, word) in chunks.iter().zip(words) {
            let (ours, other) = (u64::from_be_bytes(*chunk), word.load(Ordering::Relaxed));
            if ours != other {
                return ours.cmp(&other);
            }
        }
        if !rest.is_empty() {
            let mut padded = [0; 8];
            padded[..rest.len()].copy_from_slice(rest);
            let other = words[chunks.len()].load(Ordering::Relaxed) & !(u64::MAX >> (rest.len() * 8));
            let order = u64::from_be_bytes(padded).cmp(&other);
            if order.is_ne() {
                return order;
            }
        }
        bytes.len().cmp(&length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_come_back_and_compare() {
        let strings = Strings::new();
        let samples: Vec<Vec<u8>> = (0..200).map(|n: usize| (0..n * 3 % 97).map(|i| (i * n % 5) as u8).collect()).collect();
        let numbers: Vec<u32> = samples.iter().map(|sample| strings.add(sample)).collect();
        let mut out = Vec::new();
        for (sample, &number) in samples.iter().zip(&numbers) {
            strings.read(number, &mut out);
            assert_eq!(&out, sample);
            for other in &samples {
                for size in [0, 1, 7, 8, 9, 40, usize::MAX] {
                    let [other, sample] = [other, sample].map(|bytes| &bytes[..bytes.len().min(size)]);
                    assert_eq!(strings.compare_up_to(other, number, size), other.cmp(sample));
                }
            }
        }
        strings.remove(numbers[7]);
        assert_eq!(strings.add(&vec![9; samples[7].len()]), numbers[7], "freed space is used again");
        strings.read(u32::MAX, &mut out);
        assert!(out.is_empty());
    }

    /// Prefixes of growing length, never more than two at a time.
    #[test]
    fn strings_of_ever_new_sizes_take_the_place_of_others() {
        let strings = Strings::new();
        let kept = |length: usize| strings.add(&vec![length as u8; length]);
        let mut before = kept(1);
        for length in 2..8_000 {
            let number = kept(length);
            let mut out = Vec::new();
            strings.read(number, &mut out);
            assert_eq!(out, vec![length as u8; length]);
            strings.remove(std::mem::replace(&mut before, number));
        }
        let used = strings.free.lock().next;
        assert!(used < 20_000, "two of each of forty sizes, up to a thousand words: {used}");
    }
}
