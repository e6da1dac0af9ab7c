//! Pools of earlier versions are read and written like new ones; those of later versions are refused.
//!
//! `pools` holds one pool of each format, closed and not closed, as text: the size in bytes, then each nonzero line of 64 bytes, preceded by its offset,
//! without the zeroes at its end.

use crate::fixture::{Content, FAR_MS, bytes_of, content, store_in_memory};
use everleaf::{Batch, Error, Options, Store};
use everleaf_pmem::{Hardware, Memory, Pool, PoolOptions};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SIZE: usize = 512 << 10;
const LINE: usize = 64;
/// Each in a namespace of its name.
const INDEXES: [&str; 6] = ["isle", "ever", "nv", "fp", "lb", "wb"];
/// In the current format: pool format 1 with spans, store format 3.
const CLOSED: &str = include_str!("pools/pool-1-spans-store-3-closed.txt");
const OPEN: &str = include_str!("pools/pool-1-spans-store-3-open.txt");
/// From before the introduction of spans.
const CLOSED_WITHOUT_SPANS: &str = include_str!("pools/pool-1-store-3-closed.txt");
const OPEN_WITHOUT_SPANS: &str = include_str!("pools/pool-1-store-3-open.txt");
/// Values of more than half a slab, in the first of the namespaces.
const LARGE: [(&[u8], usize); 2] = [(b"large", 2500), (b"larger", 5000)];

fn pool_options() -> PoolOptions {
    PoolOptions { size_max: SIZE, slab_size: 4096, ..PoolOptions::default() }
}

fn options() -> Options {
    Options { recovery_threads: 1, ..Options::default() }
}

/// Fills a store, and returns its content.
fn fill(store: &Store) -> Content {
    let mut content = Content::new();
    for index in INDEXES {
        let space = store.namespace(index).unwrap();
        assert!(space.prefer_index(index).unwrap());
        let mut batch = Batch::default();
        for n in 0..18_u8 {
            let (key, value, expiry_ms) = (vec![b'k', n * 13], vec![n; 1 + usize::from(n)], (n % 5 == 0).then_some(FAR_MS + u64::from(n)));
            match n % 3 {
                0 => batch.put_until(&space, &key, &value, expiry_ms),
                _ => space.put_until(&key, &value, expiry_ms.unwrap_or(FAR_MS)).unwrap(),
            }
            let expiry_ms = if n % 3 == 0 { expiry_ms } else { Some(expiry_ms.unwrap_or(FAR_MS)) };
            content.insert((index.to_owned(), key), (value, expiry_ms));
        }
        store.write(batch).unwrap();
        space.put(b"a key that is longer than eight bytes", b"over").unwrap();
        let snapshot = store.snapshot().unwrap();
        space.put(b"a key that is longer than eight bytes", b"and over").unwrap();
        drop(snapshot);
        content.insert((index.to_owned(), b"a key that is longer than eight bytes".to_vec()), (b"and over".to_vec(), None));
        assert!(space.delete(&[b'k', 13]).unwrap());
        content.remove(&(index.to_owned(), vec![b'k', 13]));
    }
    for (key, size) in LARGE {
        store.namespace(INDEXES[0]).unwrap().put(key, &vec![7; size]).unwrap();
        content.insert((INDEXES[0].to_owned(), key.to_vec()), (vec![7; size], None));
    }
    content
}

fn encode(memory: &Memory) -> String {
    let bytes = bytes_of(memory);
    let mut text = format!("{}\n", bytes.len());
    for (number, line) in bytes.chunks(LINE).enumerate() {
        if let Some(last) = line.iter().rposition(|byte| *byte != 0) {
            write!(text, "{:x} ", number * LINE).unwrap();
            line[..=last].iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
            text.push('\n');
        }
    }
    text
}

fn decode(text: &str) -> Arc<Memory> {
    let mut lines = text.lines();
    let memory = Memory::new(lines.next().unwrap().parse().unwrap()).unwrap();
    for line in lines {
        let (at, digits) = line.split_once(' ').unwrap();
        let at = usize::from_str_radix(at, 16).unwrap();
        let mut bytes = [0; LINE];
        for (byte, digits) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
        }
        for (word, bytes) in memory.words()[at / 8..].iter().zip(bytes.chunks_exact(8)) {
            word.store(u64::from_le_bytes(bytes.try_into().unwrap()), Ordering::Relaxed);
        }
    }
    memory
}

fn open(memory: Arc<Memory>) -> Result<Store, Error> {
    Store::on(Pool::open_in(memory, Hardware::page_cache(), pool_options())?, &options())
}

#[test]
#[ignore = "writes the files of a new format"]
fn write_pools() {
    for (name, closes) in [("closed", true), ("open", false)] {
        let (memory, store) = store_in_memory(pool_options(), &options());
        fill(&store);
        if closes {
            store.close().unwrap();
        } else {
            drop(store);
        }
        let path = format!("{}/tests/suites/pools/pool-1-spans-store-3-{name}.txt", env!("CARGO_MANIFEST_DIR"));
        std::fs::write(path, encode(&memory)).unwrap();
    }
}

#[test]
fn pools_of_every_format_are_read_and_written() {
    let expected = fill(&store_in_memory(pool_options(), &options()).1);
    let pools = [("closed", CLOSED), ("open", OPEN), ("closed, without spans", CLOSED_WITHOUT_SPANS), ("open, without spans", OPEN_WITHOUT_SPANS)];
    for (name, text) in pools {
        let memory = decode(text);
        let store = open(memory.clone()).unwrap();
        assert_eq!(store.namespaces().len(), INDEXES.len(), "{name}");
        assert!(content(&store) == expected, "{name}");
        let report = store.verify().unwrap();
        assert!(report.is_sound(), "{name}: {report:?}");
        for index in INDEXES {
            let space = store.namespace(index).unwrap();
            (0..40_u8).for_each(|n| space.put(&[b'n', n], &[n; 20]).unwrap());
            (0..40_u8).for_each(|n| assert!(space.delete(&[b'n', n]).unwrap()));
            for (_, size) in LARGE {
                space.put(b"new", &vec![8; size]).unwrap();
                assert_eq!(space.value_size(b"new").unwrap(), Some(size), "{name}");
            }
            assert!(space.delete(b"new").unwrap());
        }
        assert!(content(&store) == expected && store.verify().unwrap().is_sound(), "{name}");
        store.close().unwrap();
        assert!(content(&open(memory).unwrap()) == expected, "{name}");
    }
}

#[test]
fn a_store_of_a_format_to_come_or_never_released_is_refused() {
    let format = u64::from_le_bytes(*b"\x03\0\0\0reve");
    for other in [format + 1, format - 1] {
        let memory = decode(OPEN);
        // In the entry of the root directory, which has a checksum, and in the block after the header, which that entry links.
        let words: Vec<_> = memory.words().iter().filter(|word| word.load(Ordering::Relaxed) == format).collect();
        assert_eq!(words.len(), 2);
        words[1].store(other, Ordering::Relaxed);
        let refused = open(memory).err().unwrap();
        assert!(matches!(refused, Error::UnknownFormat { found, known } if (found, known) == (other, format)), "{refused}");
        println!("{refused}");
    }
}
