//! CRC-32C of short strings of bytes, by the processor's own instruction where there is one.
//!
//! What has a key and a hundred bytes is checked in 16 steps. A library that is made for megabytes takes longer to find out that there are none.

/// From this length on, several checksums at once, which are combined at the end, are faster.
const LONG: usize = 768;

/// The CRC-32C of what had `crc` so far, 0 at the beginning, followed by `bytes`.
#[inline]
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes.len() < LONG && is_x86_feature_detected!("sse4.2") {
        // SAFETY: the instructions are there.
        return unsafe { short(crc, bytes) };
    }
    crc32c::crc32c_append(crc, bytes)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "sse4.2")]
fn short(crc: u32, bytes: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64};
    let (eights, rest) = bytes.as_chunks();
    let crc = eights.iter().fold(u64::from(!crc), |crc, eight| _mm_crc32_u64(crc, u64::from_le_bytes(*eight))) as u32;
    let (fours, rest) = rest.as_chunks();
    let crc = fours.iter().fold(crc, |crc, four| _mm_crc32_u32(crc, u32::from_le_bytes(*four)));
    !rest.iter().fold(crc, |crc, byte| _mm_crc32_u8(crc, *byte))
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
