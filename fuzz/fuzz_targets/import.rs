//! Imports arbitrary bytes as a stream: must fail or import everything, without a panic, an endless loop, or more memory than the bytes justify.
//!
//! The first byte says whether the rest is the stream itself, or a list of pieces (block kind and content). The target makes blocks of these with valid numbers
//! and checksums, which random changes rarely produce. A complete import must export the same content.
//!
//! Run it with `cargo +nightly fuzz run import`.

#![no_main]

use everleaf::{Options, Part, Store, StreamReader};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;

/// Values and expiry times by namespace and key.
type Content = BTreeMap<(String, Vec<u8>), (Vec<u8>, Option<u64>)>;

fn store() -> Store {
    Store::anonymous(Options { size_max: 8 << 20, recovery_threads: 1, ..Options::default() }).expect("8 MiB")
}

/// Makes blocks of the pieces: kind, size, content.
fn forge(mut pieces: &[u8]) -> Vec<u8> {
    let mut stream = b"\x89EVS\r\n\x1a\n\x01\0\0\0".to_vec();
    let crc = crc32c::crc32c(&stream);
    stream.extend_from_slice(&crc.to_le_bytes());
    let mut block = |kind: u32, number: u32, content: &[u8]| {
        let mut header: Vec<u8> = [kind, content.len() as u32, number, crc32c::crc32c(content)].iter().flat_map(|word| word.to_le_bytes()).collect();
        let crc = crc32c::crc32c(&header);
        header.extend_from_slice(&crc.to_le_bytes());
        stream.extend_from_slice(&header);
        stream.extend_from_slice(content);
    };
    block(1, 0, &[0; 16]);
    let mut number = 1;
    while let Some(([kind, size], rest)) = pieces.split_first_chunk() {
        let (content, rest) = rest.split_at(usize::from(*size).min(rest.len()));
        block(u32::from(kind % 6), number, content);
        (number, pieces) = (number + 1, rest);
    }
    stream
}

/// The content of the stream, if all of it is sound.
fn read(stream: &[u8], now_ms: u64) -> Option<Content> {
    let mut reader = StreamReader::begin(stream).ok()?;
    let (mut content, mut namespace) = (Content::new(), String::new());
    loop {
        match reader.next_part().ok()? {
            Part::Namespace { name, .. } => namespace = name.into(),
            Part::Entries(entries) => {
                let alive = entries.iter().filter(|entry| entry.expiry_ms.is_none_or(|expiry| expiry > now_ms));
                content.extend(alive.map(|entry| ((namespace.clone(), entry.key.to_vec()), (entry.value.to_vec(), entry.expiry_ms))));
            }
            Part::End => return Some(content),
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((mode, rest)) = bytes.split_first() else { return };
    let stream = if mode & 1 == 0 { rest.to_vec() } else { forge(rest) };
    let store = store();
    let imported = store.import(stream.as_slice()).and_then(|import| import.finish());
    if imported.is_ok() {
        // The expiry time is long past or far ahead, except for extremely rare inputs.
        let now_ms = store.time_ms();
        let export = store.snapshot().expect("an open store").export(&[], Vec::new()).expect("a vector takes everything");
        let (out, _) = export.finish().expect("a sound store");
        assert_eq!(read(&out, now_ms), read(&stream, now_ms));
    }
    assert!(store.verify().expect("a report").is_sound());
});
