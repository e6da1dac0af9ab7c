//! fjall, a log-structured merge tree.

use crate::embedded::{Durability, Embedded, Engine, PERSISTENT, Result};
use everleaf_lab::{Setting, System, Visit};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::path::Path;

pub(crate) struct Fjall {
    database: Database,
    data: Keyspace,
    sync: Durability,
}

/// fjall with its journal synchronised at each write, and as it is by default.
pub(crate) fn systems() -> Vec<Box<dyn System>> {
    vec![
        Box::new(Embedded::<Fjall>::new(
            "fjall-durable",
            "fjall, its journal synchronised at each write; removes without looking",
            "each write: fsync of the journal",
            Durability::Each,
            PERSISTENT,
        )),
        Box::new(Embedded::<Fjall>::new(
            "fjall-nosync",
            "fjall as it is by default; removes without looking",
            "each write, against kill -9 only",
            Durability::Later,
            PERSISTENT,
        )),
    ]
}

impl Fjall {
    fn persist(&self) -> Result<()> {
        if self.sync == Durability::Each {
            self.database.persist(PersistMode::SyncAll)?;
        }
        Ok(())
    }
}

impl Engine for Fjall {
    fn open(directory: &Path, _setting: &Setting, sync: Durability) -> Result<Self> {
        let database = Database::builder(directory).open()?;
        let data = database.keyspace("data", KeyspaceCreateOptions::default)?;
        Ok(Self { database, data, sync })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.data.insert(key, value)?;
        self.persist()
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.data.get(key)?;
        value.extend_from_slice(found.as_deref().unwrap_or_default());
        Ok(found.is_some())
    }

    fn delete(&self, key: &[u8]) -> Result<bool> {
        self.data.remove(key)?;
        self.persist()?;
        Ok(true)
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        for entry in self.data.range(from..) {
            let (key, value) = entry.into_inner()?;
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn put_many(&self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        let mut batch = self.database.batch();
        for (key, value) in entries {
            batch.insert(&self.data, *key, *value);
        }
        batch.commit()?;
        self.persist()
    }
}
