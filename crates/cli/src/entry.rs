//! Entries as JSON objects: what `dump`, `scan` and `get` print, and `load` reads back.
//!
//! ```text
//! {"expires_ms":1893456000000,"key":"k","namespace":"0","value":"v"}
//! ```
//!
//! Bytes that are not UTF-8 are in Base64, in a field `key_base64` or `value_base64` instead. `expires_ms`, in milliseconds since 1970, is present if the entry
//! expires; `namespace`, if the namespace could be any.

use crate::text;
use serde_json::{Map, Value};

const NAMESPACE: &str = "namespace";
const KEY: &str = "key";
const VALUE: &str = "value";
const EXPIRY: &str = "expires_ms";

/// An entry, as given by a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its namespace, if the line names one.
    pub(crate) namespace: Option<String>,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    /// Its expiry time in milliseconds since 1970, if any.
    pub(crate) expiry_ms: Option<u64>,
}

/// The object of a key alone.
pub(crate) fn of_key(key: &[u8]) -> Map<String, Value> {
    let mut object = Map::new();
    text::insert_bytes(&mut object, KEY, key);
    object
}

/// The object of a key, its value and its expiry time.
pub(crate) fn of_entry(key: &[u8], value: &[u8], expiry_ms: Option<u64>) -> Map<String, Value> {
    let mut object = of_key(key);
    text::insert_bytes(&mut object, VALUE, value);
    object.extend(expiry_ms.map(|expiry_ms| (EXPIRY.to_owned(), expiry_ms.into())));
    object
}

/// Adds the namespace to an object.
pub(crate) fn insert_namespace(object: &mut Map<String, Value>, name: &str) {
    object.insert(NAMESPACE.into(), name.into());
}

/// Reads an object.
///
/// # Errors
/// A sentence about what is wrong with it.
pub(crate) fn parse(mut object: Map<String, Value>) -> Result<Entry, String> {
    let (key, value) = (text::remove_bytes(&mut object, KEY)?, text::remove_bytes(&mut object, VALUE)?);
    let namespace = match object.remove(NAMESPACE) {
        Some(Value::String(name)) => Some(name),
        Some(other) => return Err(format!("field {NAMESPACE:?} is not a string but {other}")),
        None => None,
    };
    let expiry_ms = match object.remove(EXPIRY) {
        Some(time) => Some(time.as_u64().ok_or_else(|| format!("field {EXPIRY:?} is not a time in milliseconds since 1970 but {time}"))?),
        None => None,
    };
    // Ignoring it would lose whatever it means.
    if let Some(name) = object.keys().next() {
        return Err(format!("unknown field {name:?}; there are: {KEY}, {VALUE} (or {KEY}_base64, {VALUE}_base64), {NAMESPACE}, {EXPIRY}"));
    }
    let missing = |name| format!("no field {name:?}");
    Ok(Entry { namespace, key: key.ok_or_else(|| missing(KEY))?, value: value.ok_or_else(|| missing(VALUE))?, expiry_ms })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(object: Value) -> Result<Entry, String> {
        parse(object.as_object().cloned().unwrap())
    }

    #[test]
    fn what_is_printed_is_read() {
        for (key, value, expiry_ms) in [(&b"k"[..], &b"v"[..], None), (b"\xff", b"", Some(0)), (b"", b"\0\xfe", Some(u64::MAX))] {
            let mut object = of_entry(key, value, expiry_ms);
            insert_namespace(&mut object, "n");
            let line = serde_json::to_vec(&object).unwrap();
            let entry = parse(serde_json::from_slice(&line).unwrap()).unwrap();
            assert_eq!(entry, Entry { namespace: Some("n".into()), key: key.into(), value: value.into(), expiry_ms });
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (object, what) in [
            (json!({ "key": "k" }), "no field \"value\""),
            (json!({ "key": 7, "value": "" }), "field \"key\" is not a string but 7"),
            (json!({ "key": "k", "value": "v", "namespace": 0 }), "field \"namespace\" is not a string but 0"),
            (json!({ "key": "k", "value": "v", "expires_ms": -1 }), "field \"expires_ms\" is not a time in milliseconds since 1970 but -1"),
            (json!({ "key": "k", "value": "v", "expires_ms": 1.5 }), "field \"expires_ms\" is not a time in milliseconds since 1970 but 1.5"),
            (json!({ "key": "k", "value": "v", "expires_ms": "1" }), "field \"expires_ms\" is not a time in milliseconds since 1970 but \"1\""),
            (json!({ "key": "k", "value": "v", "value_base64": "" }), "both \"value\" and \"value_base64\", where one is to be"),
            (json!({ "key": "k", "key_base64": "aw==", "value": "v" }), "both \"key\" and \"key_base64\", where one is to be"),
        ] {
            assert_eq!(read(object), Err(what.to_owned()));
        }
        assert!(read(json!({ "key": "k", "value": "v", "ttl": 10 })).is_err_and(|what| what.starts_with("unknown field \"ttl\"; ")));
    }
}
