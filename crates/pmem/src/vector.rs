//! Searching many words or bytes at once: words with AVX2 where the processor has it, bytes with SSE2, which every x86-64 has; elsewhere, under miri and under
//! a scheduler, one after the other.
//!
//! The loads are assembly for the reason that `probe.rs` gives. A lane of a vector is a word, read whole, as the processor does for aligned lanes within a
//! line: for words that hold still both ways give the same answer, and for others some answer, which the caller finds out by a version.

use crate::Word;
use crate::schedule::{atomic::AtomicU64, is_scheduled};
use std::sync::atomic::Ordering::Relaxed;

/// The largest number of pairs that are searched at once.
pub const WIDTH: usize = 64;

/// Number of words that are below `key`, all of them signed integers. Six and sixteen words are compared at once.
#[inline(always)]
pub fn below(words: &[AtomicU64], key: u64) -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if is_x86_feature_detected!("avx2") && !is_scheduled() {
        if let Ok(words) = words.try_into() {
            // SAFETY: AVX2 is there.
            return unsafe { avx2::below_6(words, key) };
        }
        if let Ok(words) = words.try_into() {
            // SAFETY: AVX2 is there.
            return unsafe { avx2::below_16(words, key) };
        }
    }
    below_one_by_one(words, key)
}

fn below_one_by_one(words: &[AtomicU64], key: u64) -> usize {
    words.iter().map(|word| usize::from((word.load(Relaxed) as i64) < key as i64)).sum()
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
    equal_bytes_one_by_one(words.iter().map(Word::get), byte) as u16
}

fn equal_bytes_one_by_one(words: impl Iterator<Item = u64>, byte: u8) -> u64 {
    words.flat_map(u64::to_le_bytes).enumerate().map(|(at, found)| u64::from(found == byte) << at).sum()
}

/// A bit for each of 56 bytes that is `byte`: bit 0 for the lowest byte of the first word.
#[inline(always)]
pub fn equal_bytes_of_seven(words: &[AtomicU64; 7], byte: u8) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if !is_scheduled() {
        return sse2::equal_bytes_of_seven(words, byte);
    }
    equal_bytes_one_by_one(words.iter().map(|word| word.load(Relaxed)), byte)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod sse2 {
    use crate::Word;
    use crate::schedule::atomic::AtomicU64;
    use std::arch::asm;
    use std::arch::x86_64::_mm_set1_epi8;

    #[inline(always)]
    pub(super) fn equal_bytes_of_seven(words: &[AtomicU64; 7], byte: u8) -> u64 {
        let mask: u64;
        // SAFETY: seven words are 56 readable bytes; the assembly only reads them.
        unsafe {
            asm!(
                "movdqu {a}, xmmword ptr [{words}]",
                "movdqu {b}, xmmword ptr [{words} + 16]",
                "movdqu {c}, xmmword ptr [{words} + 32]",
                "movq {d}, qword ptr [{words} + 48]",
                "pcmpeqb {a}, {bytes}",
                "pcmpeqb {b}, {bytes}",
                "pcmpeqb {c}, {bytes}",
                "pcmpeqb {d}, {bytes}",
                "pmovmskb {mask:e}, {a}",
                "pmovmskb {part:e}, {b}",
                "shl {part}, 16",
                "or {mask}, {part}",
                "pmovmskb {part:e}, {c}",
                "shl {part}, 32",
                "or {mask}, {part}",
                "pmovmskb {part:e}, {d}",
                "shl {part}, 48",
                "or {mask}, {part}",
                words = in(reg) words.as_ptr(),
                bytes = in(xmm_reg) _mm_set1_epi8(byte as i8),
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                part = out(reg) _,
                mask = out(reg) mask,
                options(nostack, readonly),
            );
        }
        // The upper half of the last vector is zeroes, which are no bytes.
        mask & (u64::MAX >> 8)
    }

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

    /// What the lines of assembly leave in `count`, of words at `words` and a key in all lanes of `ymm0`. They may use the vector registers up to `ymm4`.
    ///
    /// The registers are named, so that functions which are not compiled for AVX2 can have it inline. All are given up: the last line clears their upper
    /// halves, without which code that knows nothing of them is slow on some processors.
    macro_rules! count {
        ($words:ident, $key:ident, $($line:literal),+) => {{
            let count: u64;
            // SAFETY: the caller says that AVX2 is there, and with it `popcnt`; the lines read `words` and nothing else, and write nothing.
            unsafe {
                asm!(
                    "vmovq xmm0, {key}",
                    "vpbroadcastq ymm0, xmm0",
                    $($line,)+
                    "vzeroupper",
                    words = in(reg) $words.as_ptr(),
                    key = in(reg) $key,
                    count = lateout(reg) count,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                    out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                    options(nostack, readonly),
                );
            }
            count as usize
        }};
    }

    /// # Safety
    /// AVX2 is there.
    #[inline(always)]
    pub(super) unsafe fn below_6(words: &[AtomicU64; 6], key: u64) -> usize {
        count!(
            words,
            key,
            "vpcmpgtq ymm1, ymm0, ymmword ptr [{words}]",
            "vpcmpgtq xmm2, xmm0, xmmword ptr [{words} + 32]",
            "vpackssdw ymm1, ymm1, ymm2",
            "vmovmskps {count:e}, ymm1",
            "popcnt {count:e}, {count:e}"
        )
    }

    /// # Safety
    /// AVX2 is there.
    #[inline(always)]
    pub(super) unsafe fn below_16(words: &[AtomicU64; 16], key: u64) -> usize {
        count!(
            words,
            key,
            "vpcmpgtq ymm1, ymm0, ymmword ptr [{words}]",
            "vpcmpgtq ymm2, ymm0, ymmword ptr [{words} + 32]",
            "vpcmpgtq ymm3, ymm0, ymmword ptr [{words} + 64]",
            "vpcmpgtq ymm4, ymm0, ymmword ptr [{words} + 96]",
            "vpackssdw ymm1, ymm1, ymm2",
            "vpackssdw ymm3, ymm3, ymm4",
            "vpacksswb ymm1, ymm1, ymm3",
            "vpmovmskb {count:e}, ymm1",
            "popcnt {count:e}, {count:e}",
            "shr {count:e}, 1"
        )
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
    fn below_is_what_a_loop_finds() {
        let mut state = 1u64;
        for round in 0..3000usize {
            let length = [0, 2, 6, 16, 17][round % 5];
            let mut values: Vec<u64> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    if state >> 60 < 8 { state } else { state >> 55 }
                })
                .collect();
            values.sort_unstable_by_key(|value| *value as i64);
            let words: Vec<AtomicU64> = values.iter().map(|value| AtomicU64::new(*value)).collect();
            for key in [0, u64::MAX, 1 << 63, (1 << 63) - 1, state >> 55, state].into_iter().chain(values.iter().copied()) {
                let expected = values.iter().position(|value| *value as i64 >= key as i64).unwrap_or(length);
                assert_eq!((below(&words, key), below_one_by_one(&words, key)), (expected, expected), "{values:?} {key}");
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
    fn equal_bytes_of_seven_is_what_a_loop_finds() {
        let mut state = 1u64;
        for _ in 0..2000 {
            let words: [AtomicU64; 7] = std::array::from_fn(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                AtomicU64::new((state >> 7) & 0x8101_0081_0100_8181)
            });
            for byte in [0, 1, 0x80, 0x81, 0xff] {
                assert_eq!(equal_bytes_of_seven(&words, byte), equal_bytes_one_by_one(words.iter().map(|word| word.load(Relaxed)), byte));
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
                assert_eq!(u64::from(equal_bytes(&words, byte)), equal_bytes_one_by_one(words.iter().map(Word::get), byte));
            }
        }
    }
}
