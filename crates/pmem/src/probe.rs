//! Searching and copying words at full machine speed, behind safe functions.
//!
//! Others may store to the words meanwhile. A plain load that races with a store is undefined behaviour, and eight bytes at a time are slow. So on x86-64 the
//! loads are in inline assembly, where the machine's rules hold: whatever is read is some mixture of old and new bytes, which the caller detects by a version
//! or a checksum. Elsewhere, and under miri, the words are loaded one by one; so are the last few bytes anywhere.

use crate::schedule::is_scheduled;
use crate::{Word, crc};
use std::cmp::Ordering;
use std::mem::MaybeUninit;

#[cfg(all(target_arch = "x86_64", not(miri)))]
use machine as chosen;
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use portable as chosen;

/// Prefetches the line of an address. A hint: it never faults.
#[inline(always)]
pub(crate) fn prefetch_address<T: ?Sized>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no architectural effect, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Prefetches the line of `what`.
#[inline(always)]
pub fn prefetch<T: ?Sized>(what: &T) {
    prefetch_address(what);
}

/// Prefetches the line of one of several things; if that one does not exist, some other line.
#[inline(always)]
pub fn prefetch_one<T>(things: &[T], at: usize) {
    prefetch_address(things.as_ptr().wrapping_add(at));
}

/// Prefetches every line of `what`.
#[inline(always)]
pub fn prefetch_lines<T>(what: &T) {
    prefetch_bytes(std::ptr::from_ref(what).cast(), size_of::<T>());
}

/// Prefetches the lines of `bytes` bytes from `first`, which begins a line.
#[inline(always)]
pub(crate) fn prefetch_bytes(first: *const u8, bytes: usize) {
    (0..bytes.div_ceil(crate::LINE)).for_each(|line| prefetch_address(first.wrapping_add(line * crate::LINE)));
}

/// Appends `length` bytes that begin `skip` bytes into `words`.
///
/// The words may change meanwhile; then the copy is some mixture, which the caller detects by a version or a checksum.
///
/// # Panics
/// If there are too few words.
#[inline]
pub fn copy_out(words: &[Word], skip: usize, length: usize, out: &mut Vec<u8>) {
    assert!(skip.checked_add(length).is_some_and(|end| end <= size_of_val(words)));
    out.reserve(length);
    let to = &mut out.spare_capacity_mut()[..length];
    if is_scheduled() {
        portable::copy(words, skip, to)
    } else {
        chosen::copy(words, skip, to)
    }
    // SAFETY: `copy` has written so many bytes after the last one.
    unsafe { out.set_len(out.len() + length) };
}

/// Appends the first `length` bytes of `words`, and continues the CRC-32C `crc` over what was appended. For a short string it writes whole words, and so
/// reserves up to seven bytes more than needed. As [`copy_out`] and [`crc32c`](crate::crc32c).
///
/// # Panics
/// If there are too few words.
#[inline(always)]
pub fn copy_out_checked(words: &[Word], length: usize, out: &mut Vec<u8>, crc: u32) -> u32 {
    let start = out.len();
    if let Some(crc) = crc::append(crc, words, length, out) {
        return crc;
    }
    copy_out(words, 0, length, out);
    crc::crc32c(crc, &out[start..])
}

/// Strings with this total length or more are not for [`copy_out_padded`].
pub const PADDED_SIZE_END: usize = crc::LONG;

/// Appends two byte strings that are side by side in `words`, each padded to a word, as they are except for the padding of the second; with a CRC-32C over
/// `first` and over them. `None` where that is no faster than one by one.
///
/// # Panics
/// If there are too few words.
#[inline(always)]
pub fn copy_out_padded(first: u64, words: &[Word], sizes: [usize; 2], out: &mut Vec<u8>) -> Option<u32> {
    crc::append_padded(first, words, sizes, out)
}

/// Compares `key` with `size` bytes of `words` (big end first, as byte strings order), both from byte `skip` on.
///
/// # Panics
/// If there are too few words.
#[inline]
pub fn compare(key: &[u8], words: &[Word], size: usize, skip: usize) -> Ordering {
    assert!(size <= size_of_val(words));
    let common = key.len().min(size);
    let (part, skip) = (&key[..common], skip.min(common));
    let order = if is_scheduled() { portable::compare(part, words, skip) } else { chosen::compare(part, words, skip) };
    order.then(key.len().cmp(&size))
}

/// Word by word.
mod portable {
    use super::*;
    use crate::WORD;

    /// Writes all of `to`, from the bytes that begin `skip` bytes into `words`.
    pub(super) fn copy(words: &[Word], skip: usize, to: &mut [MaybeUninit<u8>]) {
        let mut done = 0;
        while done < to.len() {
            let at = skip + done;
            let bytes = words[at / WORD].get().to_le_bytes();
            let part = &bytes[at % WORD..];
            let count = part.len().min(to.len() - done);
            for (to, byte) in to[done..done + count].iter_mut().zip(part) {
                to.write(*byte);
            }
            done += count;
        }
    }

    /// Compares `key` with as many bytes of `words`, both from byte `skip` on.
    pub(super) fn compare(key: &[u8], words: &[Word], skip: usize) -> Ordering {
        let mut at = skip;
        while at < key.len() {
            let bytes = words[at / WORD].get().to_le_bytes();
            let end = (at / WORD * WORD + WORD).min(key.len());
            let order = key[at..end].cmp(&bytes[at % WORD..][..end - at]);
            if order.is_ne() {
                return order;
            }
            at = end;
        }
        Ordering::Equal
    }
}

/// In pieces of 16 bytes, the last one overlapping the one before; shorter strings in pieces of 8.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod machine {
    use super::*;
    use std::arch::asm;
    use std::arch::x86_64::__m128i;

    /// From this length on, the processor's own string move is faster.
    const STRING_MOVE_MIN: usize = 1024;

    /// # Safety
    /// 8 bytes from `from` are mapped and in words.
    #[inline(always)]
    unsafe fn load_8(from: *const u8) -> [u8; 8] {
        let bytes: u64;
        // SAFETY: as promised; that others store to the words meanwhile is no data race for the machine.
        unsafe { asm!("mov {bytes}, [{from}]", bytes = lateout(reg) bytes, from = in(reg) from, options(nostack, preserves_flags, readonly)) };
        bytes.to_le_bytes()
    }

    /// # Safety
    /// 16 bytes from `from` are mapped and in words.
    #[inline(always)]
    unsafe fn load_16(from: *const u8) -> [u8; 16] {
        let bytes: __m128i;
        // SAFETY: as above.
        unsafe { asm!("movdqu {bytes}, [{from}]", bytes = lateout(xmm_reg) bytes, from = in(reg) from, options(nostack, preserves_flags, readonly)) };
        // SAFETY: both are 16 bytes without padding, in the order of memory.
        unsafe { std::mem::transmute(bytes) }
    }

    /// As [`portable::copy`].
    #[inline]
    pub(super) fn copy(words: &[Word], skip: usize, to: &mut [MaybeUninit<u8>]) {
        let length = to.len();
        assert!(skip <= size_of_val(words) && length <= size_of_val(words) - skip);
        if length < 8 {
            return portable::copy(words, skip, to);
        }
        // SAFETY: in bounds of `words` (asserted), and so is every access below in bounds of `words` or of `to`: it begins at most at `length` less its own
        // size, which is not more than `length`.
        unsafe {
            let from = words.as_ptr().cast::<u8>().add(skip);
            let to = to.as_mut_ptr().cast::<u8>();
            if length >= STRING_MOVE_MIN {
                asm!("rep movsb", inout("rcx") length => _, inout("rsi") from => _, inout("rdi") to => _, options(nostack, preserves_flags));
            } else if length >= 16 {
                let mut at = 0;
                while at < length - 16 {
                    to.add(at).cast::<[u8; 16]>().write_unaligned(load_16(from.add(at)));
                    at += 16;
                }
                to.add(length - 16).cast::<[u8; 16]>().write_unaligned(load_16(from.add(length - 16)));
            } else {
                to.cast::<[u8; 8]>().write_unaligned(load_8(from));
                to.add(length - 8).cast::<[u8; 8]>().write_unaligned(load_8(from.add(length - 8)));
            }
        }
    }

    /// As [`portable::compare`].
    #[inline]
    pub(super) fn compare(key: &[u8], words: &[Word], skip: usize) -> Ordering {
        assert!(key.len() <= size_of_val(words));
        let from = words.as_ptr().cast::<u8>();
        let mut at = skip;
        while let Some(piece) = key.get(at..).and_then(<[u8]>::first_chunk) {
            // SAFETY: 16 bytes of `key` begin at `at`, and `words` are as long (asserted).
            let bytes = unsafe { load_16(from.add(at)) };
            if *piece != bytes {
                return u128::from_be_bytes(*piece).cmp(&u128::from_be_bytes(bytes));
            }
            at += 16;
        }
        if let Some(piece) = key.get(at..).and_then(<[u8]>::first_chunk) {
            // SAFETY: 8 bytes of `key` begin at `at`, and `words` are as long (asserted).
            let bytes = unsafe { load_8(from.add(at)) };
            if *piece != bytes {
                return u64::from_be_bytes(*piece).cmp(&u64::from_be_bytes(bytes));
            }
            at += 8;
        }
        portable::compare(key, words, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Domain, Hardware, Pool, PoolOptions};
    use proptest::prelude::*;

    /// Runs `act` on words that hold `bytes`, padded with ones.
    fn with_words(bytes: &[u8], act: impl FnOnce(&[Word])) {
        let pool =
            Pool::anonymous(Hardware::new(Domain::PageCache), PoolOptions { size_max: 256 << 10, slab_size: 4 << 10, ..PoolOptions::default() }).unwrap();
        let words = pool.alloc_words(bytes.len().div_ceil(8) + 1).unwrap();
        for word in words.iter() {
            pool.store(word, u64::MAX, std::sync::atomic::Ordering::Relaxed);
        }
        pool.fill(&words[..bytes.len().div_ceil(8)], bytes);
        act(&words);
    }

    /// Lengths around every change of method.
    fn length() -> impl Strategy<Value = usize> {
        prop_oneof![0usize..70, 0usize..400, 1000usize..1100, Just(20_000)]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 5 } else { 500 }, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_copy_is_what_was_stored(length in length(), skip in 0usize..40, before in 0usize..20, seed in any::<u8>()) {
            let bytes: Vec<u8> = (0..skip + length).map(|at| (at as u8).wrapping_mul(31) ^ seed).collect();
            with_words(&bytes, |words| {
                let mut out = vec![7; before];
                copy_out(words, skip, length, &mut out);
                assert_eq!(out[before..], bytes[skip..]);
                assert_eq!(out[..before], vec![7; before]);
                let mut checked = vec![7; before];
                assert_eq!(copy_out_checked(words, skip + length, &mut checked, seed.into()), crc::crc32c(seed.into(), &bytes));
                assert_eq!((&checked[..before], &checked[before..]), (&vec![7; before][..], &bytes[..]));
                let mut exact = Vec::with_capacity(bytes.len());
                copy_out_checked(words, bytes.len(), &mut exact, 0);
                assert_eq!(&exact, &bytes);
                assert!(exact.capacity() == bytes.len() || bytes.len() < crc::LONG, "a value that is not short needs no more room than its length");
                let mut slow = vec![MaybeUninit::new(0u8); length];
                portable::copy(words, skip, &mut slow);
                // SAFETY: written.
                assert!(slow.iter().zip(&bytes[skip..]).all(|(slow, byte)| unsafe { slow.assume_init() } == *byte));
            });
        }

        #[test]
        fn two_strings_are_copied_with_their_padding(first in length(), second in length(), before in 0usize..20, seed in any::<u8>()) {
            let string = |size: usize, seed: u8| (0..size).map(|at| (at as u8).wrapping_mul(31) ^ seed).collect::<Vec<_>>();
            let (first, second) = (string(first, seed), string(second, !seed));
            let second_at = first.len().next_multiple_of(crate::WORD);
            let bytes = [&first[..], &vec![0; second_at - first.len()], &second].concat();
            with_words(&bytes, |words| {
                let mut out = vec![7; before];
                match copy_out_padded(seed.into(), words, [first.len(), second.len()], &mut out) {
                    Some(crc) => {
                        assert_eq!(crc, crc32c::crc32c(&[&u64::from(seed).to_le_bytes()[..], &first, &second].concat()));
                        assert_eq!((&out[..before], &out[before..]), (&vec![7; before][..], &bytes[..]));
                    }
                    None => assert_eq!(out, vec![7; before]),
                }
            });
        }

        #[test]
        fn keys_order_as_byte_strings(
            length in length(),
            other in length(),
            skip in 0usize..40,
            differ in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        ) {
            let stored: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let mut key: Vec<u8> = (0..other).map(|at| at as u8).collect();
            if let Some((index, value)) = differ && other > skip {
                key[skip + index.index(other - skip)] = value;
            }
            with_words(&stored, |words| {
                assert_eq!(compare(&key, words, length, skip), key.cmp(&stored));
                let common = length.min(other);
                assert_eq!(portable::compare(&key[..common], words, skip.min(common)), key[..common].cmp(&stored[..common]));
            });
        }
    }

    #[test]
    fn too_few_words_are_refused() {
        with_words(&[1; 16], |words| {
            let refused = |act: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err();
            assert!(refused(&|| copy_out(words, 20, 5, &mut Vec::new())));
            assert!(refused(&|| copy_out(words, usize::MAX, 2, &mut Vec::new())));
            assert!(refused(&|| _ = copy_out_checked(words, 25, &mut Vec::new(), 0)));
            assert!(refused(&|| _ = compare(&[1; 40], words, 40, 0)));
        });
    }
}
