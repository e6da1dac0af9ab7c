//! Items: how they are stored and shown.
//!
//! ```text
//! value of the namespace    flags, 4 bytes, the least significant first | data
//! ```
//!
//! The store itself knows when an item expires. The unique number of a version, which `gets` shows and `cas` takes, is a hash of flags and data: it takes no
//! space, and survives a restart, a restored backup, and `touch`. Setting an item to what it already is goes unnoticed.

use arrayvec::ArrayString;
use everleaf::Error;
use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hasher};

/// Size of the flags in front of the data, in bytes.
pub(crate) const FLAGS_SIZE: usize = 4;

/// Longest text between an item's key and its data: three numbers, each after a space, and the end of the line.
const HEAD_SIZE_MAX: usize = 3 * 21 + 2;

/// Seconds up to which an exptime counts from now; a greater one counts from 1970.
const RELATIVE_MAX: i64 = 30 * 24 * 60 * 60;

/// Appends the stored form of an item.
pub(crate) fn make(flags: u32, data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(data);
}

/// Flags and data of a value. A value too short for flags was not stored by a client of memcached.
pub(crate) fn parts(value: &[u8]) -> (u32, &[u8]) {
    value.split_first_chunk().map_or((0, value), |(flags, data)| (u32::from_le_bytes(*flags), data))
}

/// The unique number of a version.
pub(crate) fn unique(value: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(value);
    // Some clients read it as a signed number.
    hasher.finish() >> 1
}

/// The expiry time of an item in milliseconds since 1970, if any: 0 if it has expired from the start.
pub(crate) fn expiry_ms(exptime: i64, now_ms: u64) -> Option<u64> {
    let ms = |seconds: i64| u64::try_from(seconds).unwrap_or(0).saturating_mul(1000);
    let at = match exptime {
        0 => return None,
        ..0 => 0,
        1..=RELATIVE_MAX => now_ms.saturating_add(ms(exptime)),
        _ => ms(exptime),
    };
    Some(if at > now_ms { at } else { crate::database::OVER })
}

/// Shows an item whose value `append` appends, if there is one; returns whether there is.
pub(crate) fn show<E>(out: &mut Vec<u8>, key: &[u8], with_unique: bool, append: impl FnOnce(&mut Vec<u8>) -> Result<Option<usize>, E>) -> Result<bool, E> {
    let start = out.len();
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    let at = out.len();
    let Some(size) = append(out).inspect_err(|_| out.truncate(start))? else {
        out.truncate(start);
        return Ok(false);
    };
    let value = &out[at..at + size];
    let (flags, data) = parts(value);
    // The text in front of the data replaces the flags, and is longer: the data move.
    let (old, mut head) = (size - data.len(), ArrayString::<HEAD_SIZE_MAX>::new());
    // It has enough room.
    let _ = write!(head, " {flags} {}", data.len());
    if with_unique {
        let _ = write!(head, " {}", unique(value));
    }
    head.push_str("\r\n");
    let more = head.len() - old;
    out.resize(out.len() + more, 0);
    out.copy_within(at + old..at + size, at + old + more);
    out[at..at + head.len()].copy_from_slice(head.as_bytes());
    out.extend_from_slice(b"\r\n");
    Ok(true)
}

/// Replies why something was not done.
pub(crate) fn refuse(out: &mut Vec<u8>, error: &Error) {
    match error {
        _ if error.is_no_space() => out.extend_from_slice(b"SERVER_ERROR out of memory storing object\r\n"),
        Error::ValueTooLong { .. } => out.extend_from_slice(b"SERVER_ERROR object too large for cache\r\n"),
        error => fail(out, error),
    }
}

/// Replies with an error in one line.
pub(crate) fn fail(out: &mut Vec<u8>, error: impl fmt::Display) {
    out.extend_from_slice(b"SERVER_ERROR ");
    out.extend(error.to_string().bytes().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }));
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn shown(value: Option<&[u8]>, with_unique: bool) -> String {
        let mut out = b"before".to_vec();
        let append = |out: &mut Vec<u8>| {
            out.extend_from_slice(value.unwrap_or_default());
            Ok::<_, Infallible>(value.map(<[u8]>::len))
        };
        let Ok(is_there) = show(&mut out, b"key", with_unique, append);
        assert_eq!(is_there, value.is_some());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn items_of_any_size_are_shown() {
        for (flags, size) in [(0, 0), (7, 1), (u32::MAX, 3), (1 << 20, 12_345)] {
            let (mut value, data) = (Vec::new(), "d".repeat(size));
            make(flags, data.as_bytes(), &mut value);
            assert_eq!(parts(&value), (flags, data.as_bytes()));
            assert_eq!(shown(Some(&value), false), format!("beforeVALUE key {flags} {size}\r\n{data}\r\n"));
            assert_eq!(shown(Some(&value), true), format!("beforeVALUE key {flags} {size} {}\r\n{data}\r\n", unique(&value)));
        }
        assert_eq!(shown(None, false), "before");
        assert_eq!(shown(Some(b"abc"), false), "beforeVALUE key 0 3\r\nabc\r\n", "by somebody else");
    }

    #[test]
    fn versions_differ_in_flags_and_data() {
        let values: Vec<_> = [(0, ""), (1, ""), (0, "a"), (1, "a"), (0, "aa")]
            .map(|(flags, data)| {
                let mut value = Vec::new();
                make(flags, data.as_bytes(), &mut value);
                unique(&value)
            })
            .into();
        assert!((0..5).all(|at| !values[..at].contains(&values[at])));
    }

    #[test]
    fn exptimes_count_from_now_up_to_thirty_days() {
        const NOW: u64 = 1_800_000_000_000;
        let expected = [(0, None), (-1, Some(0)), (1, Some(NOW + 1000)), (2_592_000, Some(NOW + 2_592_000_000)), (2_592_001, Some(0))];
        expected.into_iter().for_each(|(exptime, expiry)| assert_eq!(expiry_ms(exptime, NOW), expiry, "{exptime}"));
        assert_eq!((expiry_ms(1_800_000_001, NOW), expiry_ms(i64::MAX, NOW)), (Some(NOW + 1000), Some(u64::MAX)));
    }
}
