//! Searching many words or bytes at once, by the widest vectors of the processor; elsewhere, under miri and under a scheduler, one after the other.
//!
//! The loads are assembly for the reason given in `probe.rs`. A lane of a vector is a word, read whole, as the processor does for aligned lanes within a line.
//! For words that do not change both ways give the same answer, and for others some answer, which the caller detects by a version.

use crate::Word;
use crate::schedule::{atomic::AtomicU64, is_scheduled};
use bytemuck::Zeroable;
use std::sync::atomic::Ordering::Relaxed;

/// Instructions beyond SSE2, which every x86-64 has.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum Width {
    Sse2 = 1,
    /// AVX2 and `popcnt`.
    Avx2,
    /// The foundation of AVX-512 with its instructions for bytes, words and shorter vectors.
    Avx512,
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
static KNOWN: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

#[cfg(all(target_arch = "x86_64", not(miri)))]
impl Width {
    #[inline(always)]
    fn of_this_processor() -> Self {
        #[cold]
        fn ask() -> Width {
            let has_avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt");
            let has_avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl");
            let width = if has_avx2 && has_avx512 {
                Width::Avx512
            } else if has_avx2 {
                Width::Avx2
            } else {
                Width::Sse2
            };
            KNOWN.store(width as u8, Relaxed);
            width
        }
        match KNOWN.load(Relaxed) {
            3 => Self::Avx512,
            2 => Self::Avx2,
            1 => Self::Sse2,
            _ => ask(),
        }
    }
}

/// Proof that the processor has AVX-512, and popcnt with it: for code that would otherwise check again and again.
#[derive(Clone, Copy)]
pub struct Wide(());

impl Wide {
    /// `None` where it has not, and under a scheduler.
    #[inline(always)]
    pub fn get() -> Option<Self> {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if KNOWN.load(Relaxed) == Width::Avx512 as u8 && !is_scheduled() || Self::ask() {
            return Some(Self(()));
        }
        None
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
impl Wide {
    #[cold]
    fn ask() -> bool {
        Width::of_this_processor() == Width::Avx512 && !is_scheduled()
    }
}

/// Number of ones. Without a proof that there is an instruction for it, it takes a dozen.
#[inline(always)]
pub fn count_ones(wide: Option<Wide>, bits: u64) -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if wide.is_some() {
        // SAFETY: a processor with AVX-512 has the instruction.
        return unsafe { avx512::count_ones(bits) };
    }
    let _ = wide;
    bits.count_ones() as usize
}

/// Hints of [`Parted`].
pub const HINTS: usize = 6;

/// Words in ascending order, as signed integers, that are searched in two steps. Hint i is the first word of part i + 1, or the maximum. So the first line,
/// which also has room for 16 bytes of another kind, tells which part to search.
#[repr(C, align(64))]
pub struct Parted<H, const N: usize> {
    /// The rest of the first line.
    pub header: H,
    /// See [`Parted`].
    pub hints: [AtomicU64; HINTS],
    /// The words. Unused ones have the maximum value.
    pub words: [AtomicU64; N],
}

// SAFETY: arrays of words that may be zero follow one another, and what may be zero between them.
unsafe impl<H: Zeroable, const N: usize> Zeroable for Parted<H, N> {}

/// What [`Parted::not_above`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// The first word of the part that was searched.
    pub part: usize,
    /// Number of words that are not above the key.
    pub count: usize,
}

impl<H, const N: usize> Parted<H, N> {
    /// Words of a part.
    pub const PART: usize = if N > 2 * (HINTS + 1) { N / (HINTS + 1) } else { 2 };
    const CHECKED: () = {
        assert!(N.is_multiple_of(Self::PART) && N / Self::PART <= HINTS + 1, "all parts are equal, and each but the first has a hint");
        assert!(size_of::<H>() == 16 && align_of::<H>() <= 8, "hints and header are a line");
    };

    /// The first word of the part in which the words not above `key` end.
    #[inline(always)]
    pub fn part(&self, wide: Option<Wide>, key: u64) -> usize {
        const { Self::CHECKED };
        // The search may meet words that were never in order, whose hints match no part.
        (self.hints_not_above(wide, key) * Self::PART).min(N - Self::PART)
    }

    #[inline(always)]
    fn hints_not_above(&self, wide: Option<Wide>, key: u64) -> usize {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if wide.is_some() {
            // SAFETY: AVX-512 is there. The first 64 bytes are header and hints.
            return unsafe { avx512::hints_not_above(std::ptr::from_ref(self).cast(), key) };
        }
        let _ = wide;
        not_above(&self.hints, key)
    }

    /// Number of words that are not above `key`. Unused words count if the key is the maximum.
    #[inline(always)]
    pub fn not_above(&self, wide: Option<Wide>, key: u64) -> Rank {
        const { Self::CHECKED };
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if const { Self::PART == 16 && N == 16 * (HINTS + 1) } && wide.is_some() {
            // SAFETY: AVX-512 is there. The first 64 bytes are header and hints, and the words behind them are seven times sixteen.
            let (part, count) = unsafe { avx512::not_above(std::ptr::from_ref(self).cast(), key) };
            return Rank { part, count: part + count };
        }
        let _ = wide;
        self.not_above_narrowly(key)
    }

    #[inline(never)]
    fn not_above_narrowly(&self, key: u64) -> Rank {
        let part = self.part(None, key);
        Rank { part, count: part + not_above(&self.words[part..part + Self::PART], key) }
    }
}

/// A line: eight bytes of another kind, and 56 bytes to search.
#[repr(C, align(64))]
pub struct Tagged<H> {
    /// The rest of the line.
    pub header: H,
    /// The bytes, as words.
    pub tags: [AtomicU64; 7],
}

// SAFETY: words that may be zero follow what may be zero.
unsafe impl<H: Zeroable> Zeroable for Tagged<H> {}

impl<H> Tagged<H> {
    const CHECKED: () = assert!(size_of::<H>() == 8 && align_of::<H>() <= 8, "header and tags are a line");

    /// A bit for each tag equal to the first of these bytes, and for each equal to the second: bit 0 for the lowest byte of the first word.
    #[inline(always)]
    pub fn equal(&self, wide: Option<Wide>, bytes: [u8; 2]) -> [u64; 2] {
        const { Self::CHECKED };
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if wide.is_some() {
            // SAFETY: AVX-512 is there, and this is a line.
            return unsafe { avx512::equal_tags(std::ptr::from_ref(self).cast(), bytes) };
        }
        let _ = wide;
        bytes.map(|byte| equal_bytes_of_seven(&self.tags, byte))
    }

    /// A bit for each tag that is 0, as in [`Tagged::equal`].
    #[inline(always)]
    pub fn zeroes(&self, wide: Option<Wide>) -> u64 {
        const { Self::CHECKED };
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if wide.is_some() {
            // SAFETY: AVX-512 is there, and this is a line.
            return unsafe { avx512::zero_tags(std::ptr::from_ref(self).cast()) };
        }
        let _ = wide;
        equal_bytes_of_seven(&self.tags, 0)
    }
}

/// The largest number of keys that [`ranks`] ranks.
pub const RANKED: usize = 56;

/// For each of the first `count` keys the number of those that are below it.
///
/// # Panics
/// If there are fewer keys.
#[inline]
pub fn ranks(keys: &[u64; RANKED], count: usize) -> [u64; RANKED] {
    assert!(count <= RANKED);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if Width::of_this_processor() == Width::Avx512 {
        // SAFETY: AVX-512 is there.
        return unsafe {
            match count.div_ceil(8) {
                0..=4 => avx512::ranks::<4>(keys, count),
                5 => avx512::ranks::<5>(keys, count),
                6 => avx512::ranks::<6>(keys, count),
                _ => avx512::ranks::<7>(keys, count),
            }
        };
    }
    let mut ranks = [0; RANKED];
    for key in &keys[..count] {
        for (rank, other) in ranks.iter_mut().zip(keys) {
            *rank += u64::from(key < other);
        }
    }
    ranks
}

/// The largest number of pairs that are searched at once.
pub const WIDTH: usize = 64;

/// Number of words that are not above `key`.
#[inline(always)]
fn not_above(words: &[AtomicU64], key: u64) -> usize {
    (key as i64).checked_add(1).map_or(words.len(), |next| below(words, next as u64))
}

/// Number of words that are below `key`, all of them signed integers. Six and sixteen words are compared at once.
#[inline(always)]
fn below(words: &[AtomicU64], key: u64) -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if Width::of_this_processor() >= Width::Avx2 && !is_scheduled() {
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
/// If there are more than [`WIDTH`] pairs.
#[inline(always)]
pub fn equal_heads(lines: &[[[Word; 2]; 4]], head: u64) -> u64 {
    assert!(lines.len() <= WIDTH / 4);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if Width::of_this_processor() >= Width::Avx2 && !is_scheduled() {
        // SAFETY: AVX2 is there; the lines are readable.
        return unsafe { avx2::equal_heads(lines, head) };
    }
    equal_heads_one_by_one(lines, head)
}

fn equal_heads_one_by_one(lines: &[[[Word; 2]; 4]], head: u64) -> u64 {
    lines.as_flattened().iter().enumerate().map(|(at, pair)| u64::from(pair[0].get() == head) << at).sum()
}

/// A bit for each of the sixteen bytes equal to `byte`: bit 0 for the lowest byte of the first word.
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

/// A bit for each of 56 bytes equal to `byte`: bit 0 for the lowest byte of the first word.
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
        // The upper half of the last vector is zeroes, which are not part of the bytes.
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

    /// What the lines of assembly leave in `count`, for words at `words` and a key in all lanes of `ymm0`. They may use the vector registers up to `ymm4`.
    ///
    /// The registers are named, so that functions not compiled for AVX2 can inline it. All are clobbered: the last line clears their upper halves, because
    /// otherwise code that knows nothing of them is slow on some processors.
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

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod avx512 {
    use super::{HINTS, RANKED};
    use std::arch::asm;

    /// For a header and hints of 64 bytes at `at` and parts of sixteen words behind them: the first word of the part, and the number of words there that are
    /// not above the key.
    ///
    /// The vector register is one that code for older processors does not know; its content slows down nothing.
    ///
    /// # Safety
    /// AVX-512 is there, and with it `popcnt`; 64 bytes and [`HINTS`] + 1 parts of words are readable at `at`.
    #[inline(always)]
    pub(super) unsafe fn not_above(at: *const u8, key: u64) -> (usize, usize) {
        let (part, count): (usize, usize);
        // SAFETY: the lines read what the caller says, since no more than six hints are counted, and nothing else, and write nothing.
        unsafe {
            asm!(
                "vpbroadcastq zmm16, {key}",
                // The comparison is: the key is not less than the word.
                "vpcmpq k1, zmm16, zmmword ptr [{at}], 5",
                "kmovb {part:e}, k1",
                "shr {part:e}, {header}",
                "popcnt {part:e}, {part:e}",
                "shl {part:e}, 7",
                "vpcmpq k1, zmm16, zmmword ptr [{at} + {part} + 64], 5",
                "vpcmpq k2, zmm16, zmmword ptr [{at} + {part} + 128], 5",
                "shr {part:e}, 3",
                "kunpckbw k1, k1, k2",
                "kmovw {count:e}, k1",
                "popcnt {count:e}, {count:e}",
                at = in(reg) at,
                key = in(reg) key,
                header = const 8 - HINTS,
                part = out(reg) part,
                count = lateout(reg) count,
                out("xmm16") _, out("k1") _, out("k2") _,
                options(nostack, readonly),
            );
        }
        (part, count)
    }

    /// For a header and hints of 64 bytes at `at`: the number of hints that are not above the key.
    ///
    /// # Safety
    /// AVX-512 is there, and with it `popcnt`; 64 bytes are readable at `at`.
    #[inline(always)]
    pub(super) unsafe fn hints_not_above(at: *const u8, key: u64) -> usize {
        let count: usize;
        // SAFETY: the lines read what the caller says, and write nothing.
        unsafe {
            asm!(
                "vpbroadcastq zmm16, {key}",
                "vpcmpq k1, zmm16, zmmword ptr [{at}], 5",
                "kmovb {count:e}, k1",
                "shr {count:e}, {header}",
                "popcnt {count:e}, {count:e}",
                at = in(reg) at,
                key = in(reg) key,
                header = const 8 - HINTS,
                count = lateout(reg) count,
                out("xmm16") _, out("k1") _,
                options(nostack, readonly),
            );
        }
        count
    }

    /// The ranks of the first eight times `VECTORS` keys among the first `count`.
    #[target_feature(enable = "avx512f")]
    pub(super) fn ranks<const VECTORS: usize>(keys: &[u64; RANKED], count: usize) -> [u64; RANKED] {
        use std::arch::x86_64::{
            _mm512_cmplt_epu64_mask, _mm512_loadu_si512, _mm512_mask_add_epi64, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_storeu_si512,
        };
        let (one, zero) = (_mm512_set1_epi64(1), _mm512_setzero_si512());
        let (mut lanes, mut ranks) = ([zero; VECTORS], [zero; VECTORS]);
        for (lane, keys) in lanes.iter_mut().zip(keys.as_chunks::<8>().0) {
            // SAFETY: eight words are 64 bytes.
            *lane = unsafe { _mm512_loadu_si512(keys.as_ptr().cast()) };
        }
        for key in &keys[..count] {
            let key = _mm512_set1_epi64(*key as i64);
            for (rank, lane) in ranks.iter_mut().zip(lanes) {
                *rank = _mm512_mask_add_epi64(*rank, _mm512_cmplt_epu64_mask(key, lane), *rank, one);
            }
        }
        let mut all = [0; RANKED];
        for (to, rank) in all.as_chunks_mut::<8>().0.iter_mut().zip(ranks) {
            // SAFETY: eight words are 64 bytes.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), rank) };
        }
        all
    }

    /// A bit for each of the last 56 bytes of a line equal to the first byte, and for each equal to the second.
    ///
    /// # Safety
    /// AVX-512 is there; a line is readable at `at`.
    #[inline(always)]
    pub(super) unsafe fn equal_tags(at: *const u8, [first, second]: [u8; 2]) -> [u64; 2] {
        let (firsts, seconds): (u64, u64);
        // SAFETY: the lines read a line, and write nothing.
        unsafe {
            asm!(
                "vpbroadcastb zmm16, {first:e}",
                "vpbroadcastb zmm17, {second:e}",
                "vpcmpeqb k1, zmm16, zmmword ptr [{at}]",
                "vpcmpeqb k2, zmm17, zmmword ptr [{at}]",
                "kmovq {firsts}, k1",
                "kmovq {seconds}, k2",
                at = in(reg) at,
                first = in(reg) u32::from(first),
                second = in(reg) u32::from(second),
                firsts = lateout(reg) firsts,
                seconds = lateout(reg) seconds,
                out("xmm16") _, out("xmm17") _, out("k1") _, out("k2") _,
                options(nostack, preserves_flags, readonly),
            );
        }
        [firsts >> 8, seconds >> 8]
    }

    /// See [`Tagged::zeroes`](super::Tagged::zeroes).
    ///
    /// # Safety
    /// AVX-512 is there; a line is readable at `at`.
    #[inline(always)]
    pub(super) unsafe fn zero_tags(at: *const u8) -> u64 {
        let zeroes: u64;
        // SAFETY: the lines read a line, and write nothing.
        unsafe {
            asm!(
                "vmovdqu64 zmm16, zmmword ptr [{at}]",
                "vptestnmb k1, zmm16, zmm16",
                "kmovq {zeroes}, k1",
                at = in(reg) at,
                zeroes = lateout(reg) zeroes,
                out("xmm16") _, out("k1") _,
                options(nostack, preserves_flags, readonly),
            );
        }
        zeroes >> 8
    }

    /// See [`count_ones`](super::count_ones).
    ///
    /// # Safety
    /// The processor has popcnt.
    #[inline(always)]
    pub(super) unsafe fn count_ones(bits: u64) -> usize {
        let count: usize;
        // SAFETY: this touches no memory.
        unsafe { asm!("popcnt {count}, {bits}", bits = in(reg) bits, count = lateout(reg) count, options(nostack, nomem, pure)) };
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_above_is_what_a_loop_finds() {
        not_above_in::<112>();
        not_above_in::<4>();
    }

    fn not_above_in<const N: usize>() {
        let mut state = 1u64;
        let mut next = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            if state >> 60 < 8 { state } else { state >> 55 }
        };
        for round in 0..if cfg!(miri) { 20 } else { 2000 } {
            let parted = Parted::<[u64; 2], N> { header: [round; 2], ..Parted::zeroed() };
            let mut words: Vec<u64> = (0..round as usize % (N + 1)).map(|_| next()).collect();
            words.sort_unstable_by_key(|word| *word as i64);
            for at in 0..N {
                let word = words.get(at).copied().unwrap_or(i64::MAX as u64);
                parted.words[at].store(word, Relaxed);
                if at > 0 && at % Parted::<[u64; 2], N>::PART == 0 {
                    parted.hints[at / Parted::<[u64; 2], N>::PART - 1].store(word, Relaxed);
                }
            }
            parted.hints[N / Parted::<[u64; 2], N>::PART - 1..].iter().for_each(|hint| hint.store(i64::MAX as u64, Relaxed));
            for key in [0, 1 << 63, next(), i64::MAX as u64 - 1, i64::MAX as u64].into_iter().chain(words.iter().copied()) {
                let expected = parted.words.iter().filter(|word| word.load(Relaxed) as i64 <= key as i64).count();
                for wide in [None, Wide::get()] {
                    let found = parted.not_above(wide, key);
                    assert_eq!((found.count, found.part), (expected, parted.part(wide, key)), "{words:?} {key}");
                    assert!(found.count >= found.part && found.count <= found.part + Parted::<[u64; 2], N>::PART);
                }
            }
        }
    }

    #[test]
    fn ranks_are_places_in_order() {
        let mut state = 1u64;
        for round in 0..500 {
            let keys: [u64; RANKED] = std::array::from_fn(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                state >> (round % 62)
            });
            let count = round % (RANKED + 1);
            let ranks = ranks(&keys, count);
            for (key, rank) in keys[..count].iter().zip(ranks) {
                assert_eq!(rank, keys[..count].iter().filter(|other| *other < key).count() as u64);
            }
        }
    }

    #[test]
    fn equal_tags_are_what_a_loop_finds() {
        let mut state = 1u64;
        for _ in 0..2000 {
            let mut next = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 7) & 0x8101_0081_0100_8181
            };
            let tagged = Tagged { header: next(), tags: std::array::from_fn(|_| AtomicU64::new(next())) };
            for bytes in [[0, 1], [1, 0x81], [0x80, 0xff]] {
                let expected = bytes.map(|byte| equal_bytes_one_by_one(tagged.tags.iter().map(|word| word.load(Relaxed)), byte));
                assert_eq!([None, Wide::get()].map(|wide| tagged.equal(wide, bytes)), [expected; 2]);
            }
            let [zeroes, _] = tagged.equal(None, [0, 0]);
            assert_eq!([None, Wide::get()].map(|wide| (tagged.zeroes(wide), count_ones(wide, zeroes))), [(zeroes, zeroes.count_ones() as usize); 2]);
        }
    }

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
