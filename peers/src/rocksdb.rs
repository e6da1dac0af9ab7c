//! RocksDB, a log-structured merge tree, without compression.

use crate::embedded::{Durability, Embedded, Engine, PERSISTENT, Result};
use everleaf_lab::{Setting, System, Visit};
use rocksdb::{DB, Options, WriteBatch, WriteOptions};
use std::path::Path;

pub(crate) struct Rocks {
    database: DB,
    sync: Durability,
}

/// RocksDB with its log synchronised at each write, and as it is by default.
pub(crate) fn systems() -> Vec<Box<dyn System>> {
    vec![
        Box::new(Embedded::<Rocks>::new(
            "rocksdb-durable",
            "RocksDB, its log synchronised at each write; removes without looking",
            "each write: fdatasync of the log",
            Durability::Each,
            PERSISTENT,
        )),
        Box::new(Embedded::<Rocks>::new(
            "rocksdb-nosync",
            "RocksDB as it is by default; removes without looking",
            "each write, against kill -9 only",
            Durability::Later,
            PERSISTENT,
        )),
    ]
}

impl Rocks {
    fn options(&self) -> WriteOptions {
        let mut options = WriteOptions::default();
        options.set_sync(self.sync == Durability::Each);
        options
    }
}

impl Engine for Rocks {
    fn open(directory: &Path, _setting: &Setting, sync: Durability) -> Result<Self> {
        let mut options = Options::default();
        options.create_if_missing(true);
        Ok(Self { database: DB::open(&options, directory)?, sync })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.database.put_opt(key, value, &self.options())?)
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.database.get_pinned(key)?;
        value.extend_from_slice(found.as_deref().unwrap_or_default());
        Ok(found.is_some())
    }

    fn delete(&self, key: &[u8]) -> Result<bool> {
        self.database.delete_opt(key, &self.options())?;
        Ok(true)
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        // The other iterator makes copies of each key and value.
        let mut raw = self.database.raw_iterator();
        raw.seek(from);
        while let (Some(key), Some(value)) = (raw.key(), raw.value()) {
            if visit(key, value).is_break() {
                return Ok(());
            }
            raw.next();
        }
        // It is valid no more at the end, and where it has failed.
        Ok(raw.status()?)
    }

    fn put_many(&self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        let mut batch = WriteBatch::default();
        for (key, value) in entries {
            batch.put(key, value);
        }
        Ok(self.database.write_opt(batch, &self.options())?)
    }
}
