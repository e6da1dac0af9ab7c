//! Large arrays in DRAM, on huge pages where the system has them: a random access to such an array costs one miss, not two.

use crate::map;
use bytemuck::Zeroable;
use std::alloc::{Layout, handle_alloc_error};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;

/// The size of a huge page in bytes.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Things that are all zeroes at first and never move. A large array takes memory only where it is touched, in huge pages: the system is asked for these before
/// anything is touched, whereas an allocator that clears what it returns would touch it first.
pub struct Zeroes<T> {
    /// Invariant: `count` things lie from here on. Their memory comes from the system if it is as large as a huge page, otherwise from the allocator.
    first: NonNull<T>,
    count: usize,
}

// SAFETY: it owns what it leads to, as a box does.
unsafe impl<T: Send> Send for Zeroes<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Zeroes<T> {}

impl<T: Zeroable> Zeroes<T> {
    /// `count` of them.
    pub fn new(count: usize) -> Self {
        const { assert!(align_of::<T>() <= 4096) };
        let first = match Self::layout(count) {
            layout if is_mapped(layout) => map::take(layout.size()).unwrap_or_else(|_| handle_alloc_error(layout)).cast(),
            _ => NonNull::from(Box::leak(bytemuck::allocation::zeroed_slice_box::<T>(count))).cast(),
        };
        Self { first, count }
    }
}

impl<T> Zeroes<T> {
    fn layout(count: usize) -> Layout {
        Layout::array::<T>(count).expect("an array that fits into memory")
    }

    /// Where they lie, for [`Zeroes::from_raw`].
    pub(crate) fn into_raw(self) -> NonNull<T> {
        ManuallyDrop::new(self).first
    }

    /// Rebuilds what [`Zeroes::into_raw`] took apart.
    ///
    /// # Safety
    /// `first` is from [`Zeroes::into_raw`], of as many, and not used for another.
    pub(crate) unsafe fn from_raw(first: NonNull<T>, count: usize) -> Self {
        Self { first, count }
    }
}

/// Whether memory is taken directly from the system.
fn is_mapped(layout: Layout) -> bool {
    layout.size() >= HUGE_PAGE && !cfg!(miri)
}

impl<T> Deref for Zeroes<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: by the invariant; zeroes are valid things.
        unsafe { NonNull::slice_from_raw_parts(self.first, self.count).as_ref() }
    }
}

impl<T> Drop for Zeroes<T> {
    fn drop(&mut self) {
        let (things, layout) = (NonNull::slice_from_raw_parts(self.first, self.count), Self::layout(self.count));
        if is_mapped(layout) {
            // SAFETY: by the invariant, and whoever borrowed them is gone.
            unsafe { things.drop_in_place() };
            // SAFETY: by the invariant it was taken with that size.
            unsafe { map::give_back(self.first.cast(), layout.size()) };
        } else {
            // SAFETY: by the invariant it was a box of so many things.
            drop(unsafe { Box::from_raw(things.as_ptr()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Zeroes;
    use crate::schedule::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn arrays_of_all_sizes_are_zeroed_and_writable() {
        for count in [0, 1, 1000, 3 << 18] {
            let words = Zeroes::<AtomicU64>::new(count);
            assert!(words.len() == count && words.iter().all(|word| word.swap(7, Relaxed) == 0));
            assert!(words.iter().all(|word| word.load(Relaxed) == 7));
            let first = words.into_raw();
            // SAFETY: it was just taken apart.
            drop(unsafe { Zeroes::from_raw(first, count) });
        }
    }
}
