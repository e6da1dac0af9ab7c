//! Every verb on persistent memory.
//!
//! `store`, `flush`, `fence`, `persist` (flush and fence), `seal` (make a new block durable), `link` (store its offset) and `publish` (store after what was
//! flushed, and make both durable) are the only words for these acts in Everleaf. [`Pm<M>`] is the one way from an offset to memory: [`Pm::get`] checks bounds
//! and alignment, so for whatever number a damaged pool holds, the answer is `None`.

use crate::medium::{LINE, Lines, Medium};
use crate::schedule::{self, Step};
use crate::word::{self, Resident, WORD, Word};
use crate::{Error, Off, probe};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Mapped persistent memory and the medium under it.
pub struct Pm<M> {
    medium: M,
    /// Invariant: as many bytes from here as `length` has ever been are mapped, readable and writable, for as long as `self` lives, are only ever accessed as
    /// words, and `base` is aligned to a page.
    base: NonNull<u8>,
    length: AtomicUsize,
}

// SAFETY: the memory behind `base` is accessed as atomic words only.
unsafe impl<M: Send> Send for Pm<M> {}
// SAFETY: as above.
unsafe impl<M: Sync> Sync for Pm<M> {}

impl<M: Medium> Pm<M> {
    /// Takes mapped memory into use.
    ///
    /// # Safety
    /// `length` bytes from `base` are mapped, readable and writable, and stay so for the life of the value; nothing else in this process accesses them but
    /// through 64-bit atomics; `base` is aligned to at least [`LINE`].
    pub(crate) unsafe fn new(medium: M, base: NonNull<u8>, length: usize) -> Self {
        assert!(base.as_ptr().addr().is_multiple_of(LINE) && length.is_multiple_of(LINE));
        Self { medium, base, length: AtomicUsize::new(length) }
    }

    /// Sets the length of the pool to `length` bytes. One thread at a time.
    ///
    /// # Safety
    /// As for [`Pm::new`], with the new length. What lay within an earlier length stays mapped: references to it may be left.
    pub(crate) unsafe fn resize(&self, length: usize) {
        assert!(length.is_multiple_of(LINE));
        self.length.store(length, Ordering::Release);
    }

    /// The medium.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// Size of the mapped pool in bytes.
    #[inline]
    pub fn length(&self) -> usize {
        self.length.load(Ordering::Acquire)
    }

    /// The `T` at the beginning of the pool. No offset names it, because 0 means none.
    pub(crate) fn head<T: Resident>(&self) -> &T {
        const { T::LAYOUT };
        const { assert!(align_of::<T>() <= LINE) };
        assert!(size_of::<T>() <= self.length());
        // SAFETY: as in `get`.
        unsafe { self.base.cast::<T>().as_ref() }
    }

    /// The `T` at `off`; `None` when it does not lie in the pool, is misaligned, or `off` is null.
    #[inline(always)]
    pub fn get<T: Resident>(&self, off: Off<T>) -> Option<&T> {
        const { T::LAYOUT };
        const { assert!(align_of::<T>() <= LINE) };
        let at = off.bytes() as usize;
        let end = at.checked_add(size_of::<T>())?;
        if at == 0 || end > self.length() || !at.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: in bounds and aligned (checked above; `base` is aligned to a line and no resident type asks for more); `T: Resident`, so a shared reference
        // to memory that others write as atomic words is sound; the mapping outlives `self`.
        Some(unsafe { self.base.add(at).cast::<T>().as_ref() })
    }

    /// Like [`Pm::get`], for a place that can be wrong only if the pool is damaged.
    ///
    /// # Errors
    /// [`Error::Corrupt`] naming `what`.
    #[inline(always)]
    pub fn at<T: Resident>(&self, off: Off<T>, what: &'static str) -> Result<&T, Error> {
        self.get(off).ok_or_else(|| Error::corrupt(off.bytes(), what))
    }

    /// `count` words from `off`; `None` when they do not lie in the pool.
    #[inline(always)]
    pub fn words<T: ?Sized>(&self, off: Off<T>, count: usize) -> Option<&[Word]> {
        let at = off.bytes() as usize;
        let end = count.checked_mul(WORD)?.checked_add(at)?;
        if at == 0 || end > self.length() || !at.is_multiple_of(WORD) {
            return None;
        }
        // SAFETY: in bounds and aligned; words may be shared; the mapping outlives `self`.
        Some(unsafe { std::slice::from_raw_parts(self.base.add(at).cast::<Word>().as_ptr(), count) })
    }

    /// Prefetches `LINES` lines from the target of `link`, if it has one. A hint.
    #[inline(always)]
    pub fn prefetch<const LINES: usize>(&self, link: u64) {
        self.prefetch_bytes(Off::<Word>::unchecked(link).bytes(), LINES * LINE);
    }

    /// Prefetches the lines of `size` bytes from `at` on. A hint.
    #[inline(always)]
    pub(crate) fn prefetch_bytes(&self, at: u64, size: usize) {
        probe::prefetch_bytes(self.base.as_ptr().wrapping_add(at as usize), size);
    }

    /// Where `what` lies in the pool, in bytes from its start.
    #[inline(always)]
    pub fn offset_of<T: Resident + ?Sized>(&self, what: &T) -> Off<T> {
        let at = std::ptr::from_ref(what).addr().wrapping_sub(self.base.as_ptr().addr());
        debug_assert!(at.checked_add(size_of_val(what)).is_some_and(|end| end <= self.length()), "memory of another pool");
        Off::new(at as u64)
    }

    /// Stores `value` in `word`. Durable only after a flush of its line and a fence.
    #[inline(always)]
    #[track_caller]
    pub fn store(&self, word: &Word, value: u64, order: Ordering) {
        schedule::before(Step::Store(std::ptr::from_ref(word).addr(), value));
        self.medium.store(self.offset_of(word).bytes() as usize, word.atomic(), value, order);
        if order == Ordering::SeqCst {
            schedule::drain();
        }
    }

    /// Stores `new` if the word holds `current`. A locked operation: this thread's earlier flushes are durable after it; its own store is not.
    ///
    /// # Errors
    /// The word's actual value.
    #[inline(always)]
    #[track_caller]
    pub fn compare_exchange(&self, word: &Word, current: u64, new: u64) -> Result<u64, u64> {
        schedule::before(Step::Exchange(std::ptr::from_ref(word).addr(), new));
        self.medium.compare_exchange(self.offset_of(word).bytes() as usize, word.atomic(), current, new)
    }

    /// Starts the write-back of every line that `what` touches.
    #[inline(always)]
    #[track_caller]
    pub fn flush<T: Resident + ?Sized>(&self, what: &T) {
        schedule::before(Step::Flush(std::ptr::from_ref(what).addr(), size_of_val(what)));
        self.medium.flush(Lines::of(what, self.offset_of(what).bytes() as usize));
    }

    /// Waits until this thread's earlier flushes are durable.
    #[inline(always)]
    #[track_caller]
    pub fn fence(&self) {
        schedule::before(Step::Fence);
        self.medium.fence();
    }

    /// Stores and flushes after what was flushed before, and makes both durable; see [`Medium::publish`] for the requirements on `act`.
    #[track_caller]
    pub fn publish(&self, act: impl FnOnce()) {
        self.medium.publish(act);
    }

    /// Flush and fence.
    #[inline(always)]
    #[track_caller]
    pub fn persist<T: Resident + ?Sized>(&self, what: &T) {
        self.flush(what);
        self.fence();
    }

    /// Fills `words` with `bytes`, the last word padded with zeroes. For blocks nobody can reach yet: the order of the stores is unspecified.
    ///
    /// # Panics
    /// If `bytes` do not fill exactly these words.
    pub fn fill(&self, words: &[Word], bytes: &[u8]) {
        assert_eq!(words.len(), bytes.len().div_ceil(WORD));
        let (chunks, rest) = bytes.as_chunks::<WORD>();
        for (word, chunk) in words.iter().zip(chunks) {
            self.store(word, u64::from_le_bytes(*chunk), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            self.store(&words[chunks.len()], word::padded(rest), Ordering::Relaxed);
        }
    }

    /// As [`Pm::fill`], but past the caches where that is faster: from some kilobytes on, if nobody reads them at once. As for a fill, the words are durable
    /// after a flush and a fence; they may be shown to others only after a fence.
    ///
    /// # Panics
    /// If `bytes` do not fill exactly these words.
    #[track_caller]
    pub fn stream(&self, words: &[Word], bytes: &[u8]) {
        assert_eq!(words.len(), bytes.len().div_ceil(WORD));
        // One step for a scheduler: nobody can reach the words.
        self.medium.stream(self.offset_of(words).bytes() as usize, words, bytes);
    }
}
