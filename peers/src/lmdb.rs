//! LMDB, by heed: one transaction for each operation.

use crate::embedded::{Durability, Embedded, Engine, PERSISTENT, Result};
use everleaf_lab::{Setting, System, Visit};
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions};
use std::ops::Bound;
use std::path::Path;

/// The address space that a file may grow into.
const MAP_SIZE: usize = 64 << 30;

pub(crate) struct Lmdb {
    env: Env,
    data: Database<Bytes, Bytes>,
}

/// LMDB as it is by default, without waiting for the device, and without a call of the system at a commit.
pub(crate) fn systems() -> Vec<Box<dyn System>> {
    vec![
        Box::new(Embedded::<Lmdb>::new("lmdb-durable", "LMDB, synchronised at each commit", "each commit: fdatasync", Durability::Each, PERSISTENT)),
        Box::new(Embedded::<Lmdb>::new("lmdb-nosync", "LMDB with MDB_NOSYNC", "each commit, against kill -9 only", Durability::Later, PERSISTENT)),
        Box::new(Embedded::<Lmdb>::new(
            "lmdb-writemap",
            "LMDB with MDB_WRITEMAP and MDB_NOSYNC: no call of the system at a commit",
            "each commit, against kill -9 only",
            Durability::Mapped,
            PERSISTENT,
        )),
    ]
}

impl Engine for Lmdb {
    fn open(directory: &Path, setting: &Setting, sync: Durability) -> Result<Self> {
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_SIZE).max_readers(u32::from(setting.threads) + 8);
        #[expect(unsafe_code, reason = "heed leaves to its user what nobody else may do to the file")]
        // SAFETY: the directory belongs to this instance alone: no other process writes its files, and this one opens them once.
        let env = unsafe {
            match sync {
                Durability::Each => {}
                Durability::Later => _ = options.flags(EnvFlags::NO_SYNC),
                Durability::Mapped => _ = options.flags(EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP),
            }
            options.open(directory)?
        };
        let mut write = env.write_txn()?;
        let data = env.create_database(&mut write, None)?;
        write.commit()?;
        Ok(Self { env, data })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut write = self.env.write_txn()?;
        self.data.put(&mut write, key, value)?;
        Ok(write.commit()?)
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let read = self.env.read_txn()?;
        let found = self.data.get(&read, key)?;
        value.extend_from_slice(found.unwrap_or_default());
        Ok(found.is_some())
    }

    fn delete(&self, key: &[u8]) -> Result<bool> {
        let mut write = self.env.write_txn()?;
        let was_there = self.data.delete(&mut write, key)?;
        write.commit()?;
        Ok(was_there)
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        let read = self.env.read_txn()?;
        for entry in self.data.range(&read, &(Bound::Included(from), Bound::Unbounded))? {
            let (key, value) = entry?;
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn put_many(&self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        let mut write = self.env.write_txn()?;
        for (key, value) in entries {
            self.data.put(&mut write, key, value)?;
        }
        Ok(write.commit()?)
    }
}
