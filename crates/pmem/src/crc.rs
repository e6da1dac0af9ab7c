//! CRC-32C of short strings of bytes, by the processor's own instruction where there is one.
//!
//! What has a key and a hundred bytes is checked in 16 steps. A library that is made for megabytes takes longer to find out that there are none.

use crate::{WORD, Word};
use std::mem::MaybeUninit;

/// From this length on, several checksums at once, which are combined at the end, are faster.
const LONG: usize = 768;

/// The CRC-32C of what had `crc` so far, 0 at the beginning, followed by `bytes`.
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

/// Copies the first bytes of `words` to all of `to`, and goes on with a CRC-32C over them, in one pass; `None` where that would take longer than two.
///
/// # Panics
/// When the words are too few.
#[inline(always)]
pub(crate) fn copy(crc: u32, words: &[Word], to: &mut [MaybeUninit<u8>]) -> Option<u32> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if to.len() < LONG
        && let Some(unit) = machine::Unit::get()
    {
        let (eights, rest) = to.as_chunks_mut();
        let (whole, last) = words.split_at(eights.len());
        let mut crc = u64::from(!crc);
        for (word, eight) in whole.iter().zip(eights) {
            let word = word.get();
            *eight = word.to_le_bytes().map(MaybeUninit::new);
            crc = unit.add_eight(crc, word);
        }
        if rest.is_empty() {
            return Some(!(crc as u32));
        }
        let last = last[0].get();
        let crc = unit.add_few(crc as u32, last, rest.len());
        copy_few(last, rest);
        return Some(!crc);
    }
    let _ = (crc, words, to);
    None
}

/// Copies the lower bytes of a word, less than eight.
#[inline(always)]
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn copy_few(mut bytes: u64, to: &mut [MaybeUninit<u8>]) {
    let (fours, rest) = to.as_chunks_mut();
    for four in fours {
        *four = (bytes as u32).to_le_bytes().map(MaybeUninit::new);
        bytes >>= 32;
    }
    let (twos, ones) = rest.as_chunks_mut();
    for two in twos {
        *two = (bytes as u16).to_le_bytes().map(MaybeUninit::new);
        bytes >>= 16;
    }
    for one in ones {
        one.write(bytes as u8);
    }
}

/// The instructions, in assembly: as intrinsics they could not become part of what calls them.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod machine {
    use std::arch::asm;

    /// Proof that they are there.
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

        /// Adds the lower bytes, less than eight.
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
