//! Searching and copying words at the machine's own pace, behind safe functions.

use crate::Word;

/// Asks the processor to bring the line of `what` closer. A hint: it never faults.
#[inline(always)]
pub fn prefetch<T: ?Sized>(what: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no architectural effect, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(what).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = what;
}

/// Asks for every line of `what` at once.
#[inline(always)]
pub fn prefetch_lines<T>(what: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in 0..size_of::<T>().div_ceil(crate::LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no architectural effect, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(what).cast::<i8>().wrapping_add(line * crate::LINE)) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = what;
}

/// Appends `length` bytes that begin `skip` bytes into `words`.
///
/// The words may change meanwhile; then the copy is some mixture of words, which the caller finds out by a version or a checksum.
///
/// # Panics
/// When the words are too few.
pub fn copy_out(words: &[Word], skip: usize, length: usize, out: &mut Vec<u8>) {
    assert!(skip.checked_add(length).is_some_and(|end| end <= words.len() * 8));
    let target = out.len() + length;
    out.reserve(length + 8);
    let mut at = skip / 8;
    let mut head = skip % 8;
    while out.len() < target {
        let bytes = words[at].get().to_le_bytes();
        let take = (8 - head).min(target - out.len());
        out.extend_from_slice(&bytes[head..head + take]);
        head = 0;
        at += 1;
    }
}

/// Compares `key` with `size` bytes of `words` (big end first, as byte strings order), both from byte `skip` on.
///
/// # Panics
/// When the words are too few.
pub fn compare(key: &[u8], words: &[Word], size: usize, skip: usize) -> std::cmp::Ordering {
    let common = key.len().min(size);
    let mut at = skip.min(common);
    while at < common {
        let bytes = words[at / 8].get().to_le_bytes();
        let end = (at / 8 * 8 + 8).min(common);
        let order = key[at..end].cmp(&bytes[at % 8..at % 8 + (end - at)]);
        if order.is_ne() {
            return order;
        }
        at = end;
    }
    key.len().cmp(&size)
}
