//! sled.

use crate::embedded::{Durability, Embedded, Engine, PERSISTENT, Result};
use everleaf_lab::{Setting, System, Visit};
use std::path::Path;

pub(crate) struct Sled {
    database: sled::Db,
    sync: Durability,
}

/// sled flushed at each write, and as it is by default.
pub(crate) fn systems() -> Vec<Box<dyn System>> {
    vec![
        Box::new(Embedded::<Sled>::new("sled-durable", "sled, flushed at each write", "each write: flush of the log", Durability::Each, PERSISTENT)),
        Box::new(Embedded::<Sled>::new("sled-nosync", "sled as it is by default", "half a second later", Durability::Later, PERSISTENT)),
    ]
}

impl Sled {
    fn persist(&self) -> Result<()> {
        if self.sync == Durability::Each {
            self.database.flush()?;
        }
        Ok(())
    }
}

impl Engine for Sled {
    fn open(directory: &Path, _setting: &Setting, sync: Durability) -> Result<Self> {
        Ok(Self { database: sled::open(directory)?, sync })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.database.insert(key, value)?;
        self.persist()
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.database.get(key)?;
        value.extend_from_slice(found.as_deref().unwrap_or_default());
        Ok(found.is_some())
    }

    fn delete(&self, key: &[u8]) -> Result<bool> {
        let was_there = self.database.remove(key)?.is_some();
        self.persist()?;
        Ok(was_there)
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        for entry in self.database.range(from..) {
            let (key, value) = entry?;
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn put_many(&self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        let mut batch = sled::Batch::default();
        for (key, value) in entries {
            batch.insert(*key, *value);
        }
        self.database.apply_batch(batch)?;
        self.persist()
    }
}
