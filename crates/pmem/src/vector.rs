//! Searching many words or bytes at once: words with AVX2 where the processor has it, bytes with SSE2, which every x86-64 has; elsewhere, under miri and under
//! a scheduler, one after the other.
//!
//! The loads are assembly for the reason that `probe.rs` gives. A lane of a vector is a word, read whole, as the processor does for aligned lanes within a
//! line: for words that hold still both ways give the same answer, and for others some answer, which the caller finds out by a version.

use crate::Word;
use crate::schedule::{atomic::AtomicU64, is_scheduled};
use std::sync::atomic::Ordering::Relaxed;

/// The largest number of words, or pairs, that are searched at once.
pub const WIDTH: usize = 64;

/// The first of the first `count` words that is above `key`; `count` if none is.
///
/// # Panics
/// When `count` is above the number of words, or there are more than [`WIDTH`].
#[inline(always)]
pub fn first_above(words: &[AtomicU64], count: usize, key: u64) -> usize {
    assert!(count <= words.len() && words.len() <= WIDTH);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if words.len().is_multiple_of(4) && is_x86_feature_detected!("avx2") && !is_scheduled() {
        // SAFETY: AVX2 is there; the words are readable, and four at a time they come out even.
        return unsafe { avx2::first_above(words, count, key) };
    }
    words[..count].iter().position(|word| word.load(Relaxed) > key).unwrap_or(count)
}

/// A bit for each pair whose first word is `head`: bit i for pair i.
///
/// # Panics
/// When there are more than [`WIDTH`] pairs.
#[inline(always)]
pub fn equal_heads(lines: &[[[Word; 2]; 4]], head: u64) -> u64 {
    assert!(lines.len() <= WIDTH / 4);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if is_x86_feature_detected!("avx2") && !is_scheduled() {
        // SAFETY: AVX2 is there; the lines are readable.
        return unsafe { avx2::equal_heads(lines, head) };
    }
    equal_heads_one_by_one(lines, head)
}

fn equal_heads_one_by_one(lines: &[[[Word; 2]; 4]], head: u64) -> u64 {
    lines.as_flattened().iter().enumerate().map(|(at, pair)| u64::from(pair[0].get() == head) << at).sum()
}

/// A bit for each of the sixteen bytes that is `byte`: bit 0 for the lowest byte of the first word.
#[inline(always)]
pub fn equal_bytes(words: &[Word; 2], byte: u8) -> u16 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if !is_scheduled() {
        return sse2::equal_bytes(words, byte);
    }
    equal_bytes_one_by_one(words, byte)
}

fn equal_bytes_one_by_one(words: &[Word; 2], byte: u8) -> u16 {
    let bytes = words.iter().flat_map(|word| word.get().to_le_bytes());
    bytes.enumerate().map(|(at, found)| u16::from(found == byte) << at).sum()
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod sse2 {
    use crate::Word;
    use std::arch::asm;
    use std::arch::x86_64::_mm_set1_epi8;

    #[inline(always)]
    pub(super) fn equal_bytes(words: &[Word; 2], byte: u8) -> u16 {
        let mask: u32;
        // SAFETY: two words are sixteen readable bytes; the assembly only reads them.
        unsafe {
            asm!(
                "movdqu {lanes}, xmmword ptr [{words}]",
                "pcmpeqb {lanes}, {bytes}",
                "pmovmskb {mask:e}, {lanes}",
                words = in(reg) words.as_ptr(),
                bytes = in(xmm_reg) _mm_set1_epi8(byte as i8),
                lanes = out(xmm_reg) _,
                mask = out(reg) mask,
                options(nostack, preserves_flags, readonly),
            );
        }
        mask as u16
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod avx2 {
    use crate::Word;
    use crate::schedule::atomic::AtomicU64;
    use std::arch::asm;
    use std::arch::x86_64::{__m256i, _mm256_set1_epi64x};
    use std::sync::atomic::Ordering::Relaxed;

    /// # Safety
    /// AVX2 is there, and the number of words is a multiple of 4, at most 64.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(super) unsafe fn first_above(words: &[AtomicU64], count: usize, key: u64) -> usize {
        // Halved without branches until four vectors are left; starts stay multiples of 4, so that no vector reaches beyond the slice.
        let (mut start, mut rest) = (0, count);
        while rest > 16 {
            let half = (rest / 2) & !3;
            start += if words[start + half - 1].load(Relaxed) <= key { half } else { 0 };
            rest -= half;
        }
        // Signed comparison of words with their top bits flipped is unsigned comparison.
        let flip = _mm256_set1_epi64x(i64::MIN);
        let key = _mm256_set1_epi64x((key ^ (1 << 63)) as i64);
        let mut above = 1u64 << rest;
        for at in (0..rest).step_by(4) {
            let mask: u64;
            // SAFETY: four words from `start + at` lie within the slice, since both are multiples of 4, as its length is; the assembly only reads them.
            unsafe {
                asm!(
                    "vpxor {lanes}, {flip}, ymmword ptr [{words}]",
                    "vpcmpgtq {lanes}, {lanes}, {key}",
                    "vmovmskpd {mask:e}, {lanes}",
                    words = in(reg) words.as_ptr().add(start + at),
                    flip = in(ymm_reg) flip,
                    key = in(ymm_reg) key,
                    lanes = out(ymm_reg) _,
                    mask = out(reg) mask,
                    options(nostack, preserves_flags, readonly),
                );
            }
            above |= mask << at;
        }
        start + above.trailing_zeros() as usize
    }

    /// # Safety
    /// AVX2 is there, and there are at most 16 lines.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(super) unsafe fn equal_heads(lines: &[[[Word; 2]; 4]], head: u64) -> u64 {
        /// The heads of a line come as pairs 0, 2, 1, 3.
        const ORDER: u64 = 0xfeba_dc98_7632_5410;
        let head: __m256i = _mm256_set1_epi64x(head as i64);
        let mut equal = 0u64;
        for (number, line) in lines.iter().enumerate() {
            let mask: u64;
            // SAFETY: a line is 64 readable bytes; the assembly only reads them.
            unsafe {
                asm!(
                    "vmovdqu {lanes}, ymmword ptr [{line}]",
                    "vunpcklpd {lanes}, {lanes}, ymmword ptr [{line} + 32]",
                    "vpcmpeqq {lanes}, {lanes}, {head}",
                    "vmovmskpd {mask:e}, {lanes}",
                    line = in(reg) line.as_ptr(),
                    head = in(ymm_reg) head,
                    lanes = out(ymm_reg) _,
                    mask = out(reg) mask,
                    options(nostack, preserves_flags, readonly),
                );
            }
            equal |= (ORDER >> (mask * 4) & 0xf) << (number * 4);
        }
        equal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_above_is_what_a_loop_finds() {
        let mut state = 1u64;
        for round in 0..3000usize {
            let length = round % (WIDTH + 1);
            let mut values: Vec<u64> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    if state >> 60 < 4 { state } else { state >> 55 }
                })
                .collect();
            values.sort_unstable();
            let words: Vec<AtomicU64> = values.iter().map(|value| AtomicU64::new(*value)).collect();
            for count in [0, length / 2, length] {
                for key in [0, u64::MAX, 1 << 63, (1 << 63) - 1, state >> 55, state].into_iter().chain(values.iter().copied().take(4)) {
                    let expected = values[..count].iter().position(|value| *value > key).unwrap_or(count);
                    assert_eq!(first_above(&words, count, key), expected, "{values:?} {count} {key}");
                }
            }
        }
    }

    #[test]
    fn equal_heads_is_what_a_loop_finds() {
        use crate::{Hardware, Pool, PoolOptions};
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 1 << 20, ..PoolOptions::default() }).unwrap();
        let lines = pool.alloc::<[[[Word; 2]; 4]; 16]>().unwrap();
        let mut state = 1u64;
        for _ in 0..500 {
            for word in lines.as_flattened().as_flattened() {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                pool.store(word, state >> 61, Relaxed);
            }
            for count in 0..=16 {
                for head in 0..8 {
                    assert_eq!(equal_heads(&lines[..count], head), equal_heads_one_by_one(&lines[..count], head));
                }
            }
        }
    }
    #[test]
    fn equal_bytes_is_what_a_loop_finds() {
        use crate::{Hardware, Pool, PoolOptions};
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 1 << 20, ..PoolOptions::default() }).unwrap();
        let words = pool.alloc::<[Word; 2]>().unwrap();
        for at in 0..16 {
            let bytes = |byte: u64| u128::from(byte) << (at * 8);
            for (word, value) in words.iter().zip([bytes(0x9c) as u64, (bytes(0x9c) >> 64) as u64]) {
                pool.store(word, value, Relaxed);
            }
            assert_eq!((equal_bytes(&words, 0x9c), equal_bytes(&words, 0), equal_bytes(&words, 1)), (1 << at, !(1 << at), 0));
        }
        let mut state = 1u64;
        for _ in 0..2000 {
            for word in words.iter() {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                pool.store(word, (state >> 7) & 0x8101_0081_0100_8181, Relaxed);
            }
            for byte in [0, 1, 0x80, 0x81, 0xff] {
                assert_eq!(equal_bytes(&words, byte), equal_bytes_one_by_one(&words, byte));
            }
        }
    }
}
