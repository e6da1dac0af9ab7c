//! Things in DRAM that are found by *handle* and never move. Between a handle and its thing there is only one table to wait for.
//!
//! A handle is the number of a chunk and a place in it. Optimistic readers may follow a handle that is out of date or never was one: it leads to some other
//! thing of the same type, never to freed memory, and the version check after it notices.
//!
//! Places are masked to the size of their chunk, and chunks that were never made stand for the first one: every handle leads somewhere, without a branch.

use crate::huge::Zeroes;
use bytemuck::Zeroable;
use parking_lot::Mutex;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

const CHUNK_BITS: u32 = 5;
const PLACE_BITS: u32 = 24;
/// Bits of a handle.
pub const HANDLE_BITS: u32 = CHUNK_BITS + PLACE_BITS;

/// Grows by chunks: the first has `FIRST` things, a power of two; each later one has twice as many as the one before, up to a limit, from which on all have
/// equally many. See the module documentation.
pub struct Handles<T, const FIRST: usize> {
    /// Chunks that were never made are the first.
    chunks: [Chunk<T>; 1 << CHUNK_BITS],
    growing: Mutex<()>,
}

/// Invariant: `last` is below 2 to the power of [`PLACE_BITS`]; `last` + 1 things or more lie from `first` on, and do so until all are dropped.
struct Chunk<T> {
    first: AtomicPtr<T>,
    last: AtomicUsize,
}

impl<T: Zeroable + Send + Sync, const FIRST: usize> Handles<T, FIRST> {
    const SHIFT: u32 = {
        assert!(FIRST.is_power_of_two() && FIRST.ilog2() <= PLACE_BITS);
        FIRST.ilog2()
    };
    /// Number of chunks up to and including the first of those with equally many things.
    const DOUBLED: usize = (PLACE_BITS - Self::SHIFT) as usize + 1;

    /// With the first chunk.
    pub fn new() -> Self {
        const { _ = Self::SHIFT };
        let first = Zeroes::<T>::new(FIRST).into_raw().as_ptr();
        let chunk = |_| Chunk { first: AtomicPtr::new(first), last: AtomicUsize::new(FIRST - 1) };
        Self { chunks: std::array::from_fn(chunk), growing: Mutex::new(()) }
    }

    /// The handle of thing `number`, if there can be that many.
    pub fn handle(number: usize) -> Option<u32> {
        let number = number.checked_add(FIRST)?;
        let (chunk, place) = match number.checked_sub(2 << PLACE_BITS) {
            None => ((number.ilog2() - Self::SHIFT) as usize, number ^ 1 << number.ilog2()),
            Some(rest) => (Self::DOUBLED + (rest >> PLACE_BITS), rest & ((1 << PLACE_BITS) - 1)),
        };
        (chunk < 1 << CHUNK_BITS).then_some((chunk << PLACE_BITS | place) as u32)
    }

    /// The number of the thing that `handle` leads to.
    pub fn number(handle: u32) -> usize {
        let (chunk, place) = Self::place(handle);
        let before = if chunk < Self::DOUBLED { FIRST << chunk } else { (chunk - Self::DOUBLED + 2) << PLACE_BITS };
        before + place - FIRST
    }

    #[inline(always)]
    fn place(handle: u32) -> (usize, usize) {
        ((handle >> PLACE_BITS) as usize % (1 << CHUNK_BITS), handle as usize % (1 << PLACE_BITS))
    }

    /// Number of things in a chunk.
    fn size(chunk: usize) -> usize {
        FIRST << chunk.min(Self::DOUBLED - 1)
    }

    /// The thing of `handle`; some thing, if it was never made.
    #[inline(always)]
    pub fn get(&self, handle: u32) -> &T {
        let chunk = &self.chunks[Self::place(handle).0];
        // A thread that sees the last place of a new chunk also sees where the chunk lies; one that does not finds enough things there, too, zeroed.
        let last = chunk.last.load(Ordering::Acquire);
        // SAFETY: by the invariant; a bit mask makes nothing larger.
        unsafe { &*chunk.first.load(Ordering::Acquire).add(handle as usize & last) }
    }

    /// The thing of `handle`, all zeroes at first.
    pub fn get_or_make(&self, handle: u32) -> &T {
        let (chunk, _) = Self::place(handle);
        if chunk > 0 && self.chunks[chunk].last.load(Ordering::Acquire) == FIRST - 1 {
            let _growing = self.growing.lock();
            let Chunk { first, last } = &self.chunks[chunk];
            // The first chunk is the only one of its size, unless all are equal; so its place identifies it.
            if first.load(Ordering::Relaxed) == self.chunks[0].first.load(Ordering::Relaxed) {
                first.store(Zeroes::<T>::new(Self::size(chunk)).into_raw().as_ptr(), Ordering::Release);
                last.store(Self::size(chunk) - 1, Ordering::Release);
            }
        }
        self.get(handle)
    }
}

impl<T: Zeroable + Send + Sync, const FIRST: usize> Default for Handles<T, FIRST> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const FIRST: usize> Drop for Handles<T, FIRST> {
    fn drop(&mut self) {
        let shared = self.chunks[0].first.load(Ordering::Relaxed);
        for (number, Chunk { first, last }) in self.chunks.iter().enumerate() {
            let first = first.load(Ordering::Relaxed);
            if let Some(first) = NonNull::new(first).filter(|_| number == 0 || first != shared) {
                // SAFETY: so many things were taken apart for this chunk alone.
                drop(unsafe { Zeroes::from_raw(first, last.load(Ordering::Relaxed) + 1) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    type Words = Handles<AtomicU64, 4>;

    #[test]
    fn every_handle_names_its_own_place() {
        let words = Words::new();
        let handle = |number| Words::handle(number).unwrap();
        for number in 0..1000 {
            assert_eq!(words.get_or_make(handle(number)).swap(number as u64 + 1, Relaxed), 0);
        }
        for number in 0..1000 {
            assert_eq!(words.get(handle(number)).load(Relaxed), number as u64 + 1);
        }
        for stray in [handle(1 << 20), u32::MAX, 1 << 31 | 77, 5 << PLACE_BITS | 0xff_ffff] {
            assert!((1..=1000).contains(&words.get(stray).load(Relaxed)) || words.get(stray).load(Relaxed) == 0, "some word");
        }
    }

    #[test]
    fn handles_and_numbers_are_each_others() {
        let limit = (0..usize::BITS).map(|bit| 1 << bit).find(|&number| Words::handle(number).is_none()).unwrap();
        assert!(limit >= 1 << 27 && Words::handle(usize::MAX).is_none());
        let chunk = 1 << PLACE_BITS;
        for number in [0, 1, 3, 4, 5, 11, 12, chunk, 2 * chunk - 5, 2 * chunk - 4, 2 * chunk - 3, 3 * chunk - 5, 3 * chunk - 4, limit / 2, limit - 1] {
            if let Some(handle) = Words::handle(number) {
                assert!(handle < 1 << HANDLE_BITS && Words::number(handle) == number, "{number}");
            }
        }
    }

    /// Readers follow handles while chunks are made.
    #[test]
    fn handles_are_followed_while_it_grows() {
        let words = Words::new();
        let count = if cfg!(miri) { 200 } else { 100_000 };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..count).for_each(|number| assert_eq!(words.get(Words::handle(number).unwrap()).load(Relaxed) >> 32, 0)));
                scope.spawn(|| (0..count).for_each(|number| words.get_or_make(Words::handle(number).unwrap()).store(7, Relaxed)));
            }
        });
        assert!((0..count).all(|number| words.get(Words::handle(number).unwrap()).load(Relaxed) == 7));
    }
}
