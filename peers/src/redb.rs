//! redb: one transaction for each operation.

use crate::embedded::{Durability, Embedded, Engine, PERSISTENT, Result};
use everleaf_lab::{Setting, System, Visit};
use redb::{Database, Durability as Commit, ReadableDatabase, TableDefinition, WriteTransaction};
use std::path::Path;

const DATA: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("data");

pub(crate) struct Redb {
    database: Database,
    commit: Commit,
}

/// redb as it is by default, and with commits that wait for the next durable one.
pub(crate) fn systems() -> Vec<Box<dyn System>> {
    vec![
        Box::new(Embedded::<Redb>::new("redb-durable", "redb, synchronised at each commit", "each commit: fsync", Durability::Each, PERSISTENT)),
        Box::new(Embedded::<Redb>::new(
            "redb-nosync",
            "redb with Durability::None: lost even at kill -9, unless closed",
            "nothing before it is closed",
            Durability::Later,
            PERSISTENT,
        )),
    ]
}

impl Redb {
    fn write(&self) -> Result<WriteTransaction> {
        let mut write = self.database.begin_write()?;
        write.set_durability(self.commit)?;
        Ok(write)
    }
}

impl Engine for Redb {
    fn open(directory: &Path, _setting: &Setting, sync: Durability) -> Result<Self> {
        let database = Database::create(directory.join("data.redb"))?;
        let commit = if sync == Durability::Each { Commit::Immediate } else { Commit::None };
        let write = database.begin_write()?;
        write.open_table(DATA)?;
        write.commit()?;
        Ok(Self { database, commit })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_many(&[(key, value)])
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.database.begin_read()?.open_table(DATA)?.get(key)?;
        value.extend_from_slice(found.as_ref().map_or(&[], |found| found.value()));
        Ok(found.is_some())
    }

    fn delete(&self, key: &[u8]) -> Result<bool> {
        let write = self.write()?;
        let was_there = write.open_table(DATA)?.remove(key)?.is_some();
        write.commit()?;
        Ok(was_there)
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        for entry in self.database.begin_read()?.open_table(DATA)?.range(from..)? {
            let (key, value) = entry?;
            if visit(key.value(), value.value()).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn put_many(&self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        let write = self.write()?;
        let mut data = write.open_table(DATA)?;
        for (key, value) in entries {
            data.insert(*key, *value)?;
        }
        drop(data);
        Ok(write.commit()?)
    }
}
