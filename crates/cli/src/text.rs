//! Bytes as text, and numbers for people.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Suffix of a JSON field whose bytes are in Base64, because they are not UTF-8.
const BASE64_SUFFIX: &str = "_base64";

/// Adds the field `name` to `object`: a string if `bytes` are UTF-8, else in Base64 as `name_base64`.
pub(crate) fn insert_bytes(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.into(), text.into()),
        Err(_) => object.insert(format!("{name}{BASE64_SUFFIX}"), STANDARD.encode(bytes).into()),
    };
}

/// Adds the path of a pool to an object, under the name that all commands use.
pub(crate) fn with_pool(mut object: Value, path: &Path) -> Value {
    if let Value::Object(object) = &mut object {
        insert_bytes(object, "pool", path.as_os_str().as_bytes());
    }
    object
}

/// Takes out of `object` what [`insert_bytes`] has added; `None` if there is no such field.
///
/// # Errors
/// A sentence, if the field holds something else, or occurs in both forms.
pub(crate) fn remove_bytes(object: &mut Map<String, Value>, name: &str) -> Result<Option<Vec<u8>>, String> {
    let name_base64 = format!("{name}{BASE64_SUFFIX}");
    match (object.remove(name), object.remove(&name_base64)) {
        (None, None) => Ok(None),
        (Some(Value::String(text)), None) => Ok(Some(text.into_bytes())),
        (Some(other), None) => Err(format!("field {name:?} is not a string but {other}")),
        (None, Some(Value::String(text))) => STANDARD.decode(&text).map(Some).map_err(|error| format!("field {name_base64:?}: {error}")),
        (None, Some(other)) => Err(format!("field {name_base64:?} is not a string but {other}")),
        (Some(_), Some(_)) => Err(format!("both {name:?} and {name_base64:?}, where one is to be")),
    }
}

/// Bytes for a line of a terminal: anything but printable ASCII or UTF-8 is escaped, and so are tabs, so that lines and columns stay intact.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => text.push_str("\\\\"),
                letter if letter.is_control() => text.extend(letter.escape_default()),
                letter => text.push(letter),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// A size in bytes, with a unit if that is shorter.
pub(crate) fn size(bytes: usize) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let step = (bytes.checked_ilog2().unwrap_or(0) as usize / 10).min(units.len() - 1);
    let scaled = bytes as f64 / (1_u64 << (10 * step)) as f64;
    if scaled.fract() == 0.0 { format!("{scaled} {}", units[step]) } else { format!("{scaled:.1} {}", units[step]) }
}

/// A count with its thousands separated.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A rate per second, in thousands or millions.
pub(crate) fn rate(number: u64, time: Duration) -> String {
    let rate = number as f64 / time.as_secs_f64().max(1e-9);
    if rate >= 1e6 { format!("{:.2} M/s", rate / 1e6) } else { format!("{:.1} k/s", rate / 1e3) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_from_json() {
        for bytes in [&b""[..], b"abc", "\u{fc}\0\n".as_bytes(), b"\xff\xfe", b"a\x80"] {
            let mut object = Map::new();
            insert_bytes(&mut object, "key", bytes);
            assert_eq!(remove_bytes(&mut object, "key"), Ok(Some(bytes.to_vec())));
            assert_eq!(remove_bytes(&mut object, "key"), Ok(None));
        }
        let mut object = Map::from_iter([("key_base64".to_owned(), Value::from("?"))]);
        assert!(remove_bytes(&mut object, "key").is_err());
    }

    #[test]
    fn what_is_escaped_stays_on_its_line() {
        assert_eq!(escape(b"a\tb\nc\\\xff"), "a\\tb\\nc\\\\\\xff");
        assert_eq!(escape("gr\u{fc}n".as_bytes()), "gr\u{fc}n");
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!([size(0), size(1023), size(64 << 20), size(1 << 40), size(1536)], ["0 B", "1023 B", "64 MiB", "1 TiB", "1.5 KiB"]);
        assert_eq!([count(0), count(999), count(1000), count(1_234_567)], ["0", "999", "1 000", "1 234 567"]);
    }
}
