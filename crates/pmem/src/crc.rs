//! CRC-32C of short byte strings, by the processor's own instruction where it has one.
//!
//! A key and a hundred bytes are checked in 16 steps. A library made for megabytes takes longer just to find out that its input is short.

#[cfg(all(target_arch = "x86_64", not(miri)))]
use crate::schedule::is_scheduled;
use crate::{WORD, Word};
#[cfg(all(target_arch = "x86_64", not(miri)))]
use std::mem::MaybeUninit;

/// From this length on, it is faster to compute several checksums at once and combine them at the end.
pub(crate) const LONG: usize = 768;

/// Continues the CRC-32C `crc`, 0 at the beginning, over `bytes`.
#[inline(always)]
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes.len() < LONG
        && let Some(unit) = machine::Unit::get()
    {
        let (eights, rest) = bytes.as_chunks();
        let crc = eights.iter().fold(u64::from(!crc), |crc, eight| unit.add_eight(crc, u64::from_le_bytes(*eight)));
        let mut last = [0; WORD];
        if !rest.is_empty() {
            last[..rest.len()].copy_from_slice(rest);
        }
        return !unit.add_few(crc as u32, u64::from_le_bytes(last), rest.len());
    }
    crc32c::crc32c_append(crc, bytes)
}

/// Appends the first `length` bytes of `words`, and continues a CRC-32C over them, in one pass; `None` where that would take longer than two passes. Reserves
/// room for whole words.
///
/// # Panics
/// If there are too few words.
#[inline(always)]
pub(crate) fn append(crc: u32, words: &[Word], length: usize, out: &mut Vec<u8>) -> Option<u32> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if length < LONG
        && let Some(unit) = machine::Unit::get()
    {
        return Some(copy_both(unit, crc, words, [0, length], out));
    }
    let _ = (crc, words, length, out);
    None
}

/// The same for two byte strings in a row, each padded to a word, with a checksum over `first` and over them.
///
/// # Panics
/// If there are too few words.
#[inline(always)]
pub(crate) fn append_padded(first: u64, words: &[Word], sizes: [usize; 2], out: &mut Vec<u8>) -> Option<u32> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if sizes[0] + sizes[1] < LONG
        && let Some(unit) = machine::Unit::get()
    {
        return Some(copy_both(unit, !(unit.add_eight(u32::MAX.into(), first) as u32), words, sizes, out));
    }
    let _ = (first, words, sizes, out);
    None
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn copy_both(unit: machine::Unit, crc: u32, words: &[Word], sizes: [usize; 2], out: &mut Vec<u8>) -> u32 {
    let counts = sizes.map(|size| size.div_ceil(WORD));
    let words = &words[..counts[0] + counts[1]];
    out.reserve(size_of_val(words));
    // The last word is copied whole, too; what is beyond the length does not count.
    let (eights, _) = out.spare_capacity_mut()[..size_of_val(words)].as_chunks_mut();
    let rests = sizes.map(|size| size % WORD);
    let crc = if rests[0] == 0 {
        copy(unit, crc, words, rests[1], eights)
    } else {
        let (words, eights) = (words.split_at(counts[0]), eights.split_at_mut(counts[0]));
        let crc = copy(unit, crc, words.0, rests[0], eights.0);
        copy(unit, crc, words.1, rests[1], eights.1)
    };
    // SAFETY: so many bytes, or more, were written behind the last one.
    unsafe { out.set_len(out.len() + counts[0] * WORD + sizes[1]) };
    crc
}

/// Copies words and continues a checksum over them; of the last word, over `rest` bytes alone unless that is 0.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn copy(unit: machine::Unit, crc: u32, words: &[Word], rest: usize, to: &mut [[MaybeUninit<u8>; WORD]]) -> u32 {
    let whole = words.len() - usize::from(rest != 0);
    let ((words, last), (to, last_to)) = (words.split_at(whole), to.split_at_mut(whole));
    let crc = u64::from(!crc);
    let mut crc = if is_scheduled() {
        // Each load is a step of the schedule.
        words.iter().zip(to).fold(crc, |crc, (word, to)| {
            let word = word.get();
            *to = word.to_le_bytes().map(MaybeUninit::new);
            unit.add_eight(crc, word)
        })
    } else {
        unit.copy_eights(crc, words, to)
    } as u32;
    if let ([last], [to]) = (last, last_to) {
        let last = last.get();
        *to = last.to_le_bytes().map(MaybeUninit::new);
        crc = unit.add_few(crc, last, rest);
    }
    !crc
}

/// The instructions, in assembly: intrinsics could not be inlined into the callers.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod machine {
    use crate::{WORD, Word};
    use std::arch::asm;
    use std::mem::MaybeUninit;

    /// Proof that the processor has them.
    #[derive(Clone, Copy)]
    pub(super) struct Unit(());

    impl Unit {
        #[inline(always)]
        pub(super) fn get() -> Option<Self> {
            is_x86_feature_detected!("sse4.2").then_some(Self(()))
        }

        #[inline(always)]
        pub(super) fn add_eight(self, mut crc: u64, bytes: u64) -> u64 {
            // SAFETY: the instruction is there, and computes.
            unsafe { asm!("crc32 {crc}, {bytes}", crc = inout(reg) crc, bytes = in(reg) bytes, options(pure, nomem, nostack, preserves_flags)) };
            crc
        }

        /// Adds words, and copies them.
        ///
        /// # Panics
        /// If there is too little room.
        #[inline(always)]
        pub(super) fn copy_eights(self, mut crc: u64, words: &[Word], to: &mut [[MaybeUninit<u8>; WORD]]) -> u64 {
            assert_eq!(words.len(), to.len());
            // SAFETY: the instruction is there. As many words are read as there are, each once and whole, as atomic loads do it, and so many are written, to
            // which nobody else has a reference.
            unsafe {
                asm!(
                    "sub {left}, 4",
                    "jb 3f",
                    "2:",
                    "mov {one}, [{from}]",
                    "mov {other}, [{from} + 8]",
                    "crc32 {crc}, {one}",
                    "mov [{to}], {one}",
                    "mov [{to} + 8], {other}",
                    "crc32 {crc}, {other}",
                    "mov {one}, [{from} + 16]",
                    "mov {other}, [{from} + 24]",
                    "crc32 {crc}, {one}",
                    "mov [{to} + 16], {one}",
                    "mov [{to} + 24], {other}",
                    "crc32 {crc}, {other}",
                    "add {from}, 32",
                    "add {to}, 32",
                    "sub {left}, 4",
                    "jae 2b",
                    // The remaining count is negative by now; its two lowest bits are unchanged.
                    "3:",
                    "test {left}, 2",
                    "jz 4f",
                    "mov {one}, [{from}]",
                    "mov {other}, [{from} + 8]",
                    "crc32 {crc}, {one}",
                    "mov [{to}], {one}",
                    "mov [{to} + 8], {other}",
                    "crc32 {crc}, {other}",
                    "add {from}, 16",
                    "add {to}, 16",
                    "4:",
                    "test {left}, 1",
                    "jz 5f",
                    "mov {one}, [{from}]",
                    "crc32 {crc}, {one}",
                    "mov [{to}], {one}",
                    "5:",
                    crc = inout(reg) crc,
                    from = inout(reg) words.as_ptr() => _,
                    to = inout(reg) to.as_mut_ptr() => _,
                    left = inout(reg) words.len() => _,
                    one = out(reg) _,
                    other = out(reg) _,
                    options(nostack),
                );
            }
            crc
        }

        /// Adds the lower bytes, fewer than eight.
        #[inline(always)]
        pub(super) fn add_few(self, mut crc: u32, mut bytes: u64, count: usize) -> u32 {
            if count & 4 != 0 {
                // SAFETY: as above.
                unsafe { asm!("crc32 {crc:e}, {bytes:e}", crc = inout(reg) crc, bytes = in(reg) bytes, options(pure, nomem, nostack, preserves_flags)) };
                bytes >>= 32;
            }
            if count & 2 != 0 {
                // SAFETY: as above.
                unsafe { asm!("crc32 {crc:e}, {bytes:x}", crc = inout(reg) crc, bytes = in(reg) bytes, options(pure, nomem, nostack, preserves_flags)) };
                bytes >>= 16;
            }
            if count & 1 != 0 {
                let byte = bytes as u8;
                // SAFETY: as above.
                unsafe { asm!("crc32 {crc:e}, {byte}", crc = inout(reg) crc, byte = in(reg_byte) byte, options(pure, nomem, nostack, preserves_flags)) };
            }
            crc
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_the_library_says() {
        let bytes: Vec<u8> = (0..2 * LONG).map(|at| (at * 31 + at / 256) as u8).collect();
        for length in (0..40).chain([100, LONG - 1, LONG, LONG + 1, 2 * LONG]) {
            for start in 0..3.min(bytes.len() - length + 1) {
                let part = &bytes[start..start + length];
                for crc in [0, 1, u32::MAX] {
                    assert_eq!(crc32c(crc, part), crc32c::crc32c_append(crc, part), "{length} bytes from {start}");
                }
            }
        }
        assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
    }
}
