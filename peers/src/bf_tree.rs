//! Bf-Tree in memory. It takes entries up to a size that is set when it is created, and its scans copy each entry.

use crate::embedded::{Durability, Embedded, Engine, Result, VOLATILE};
use bf_tree::{BfTree, Config, LeafInsertResult, LeafReadResult, ScanReturnField};
use everleaf_lab::{Setting, System, Visit};
use std::path::Path;

/// Sizes of its buffer, a power of two: room for twice the data within these.
const BUFFER_MIN: u64 = 32 << 20;
const BUFFER_MAX: u64 = 4 << 30;
/// Keys may not be longer than it has been told.
const KEY_MIN: usize = 16;
/// Size of its pages as it chooses them; larger ones only for larger entries.
const PAGE: usize = 4096;
const PAGE_MAX: usize = 32 << 10;

pub(crate) struct Bf {
    tree: BfTree,
    entry_size: usize,
}

/// The tree.
pub(crate) fn systems() -> Vec<Box<dyn System>> {
    vec![Box::new(Embedded::<Bf>::new("bf-tree", "Bf-Tree in memory; removes without looking", "none", Durability::Later, VOLATILE))]
}

impl Engine for Bf {
    fn open(_directory: &Path, setting: &Setting, _sync: Durability) -> Result<Self> {
        let key_size = usize::from(setting.key.bytes()).max(KEY_MIN);
        let entry_size = key_size + usize::try_from(setting.value_bytes)?;
        let buffer = (2 * setting.keys_max.saturating_mul(entry_size as u64)).clamp(BUFFER_MIN, BUFFER_MAX).next_power_of_two();
        let page = (4 * entry_size).next_power_of_two().clamp(PAGE, PAGE_MAX);
        let mut config = Config::new(":memory:", usize::try_from(buffer)?);
        config.cb_max_key_len(key_size).max_fence_len(2 * key_size).cb_min_record_size(8).cb_max_record_size(entry_size).leaf_page_size(page);
        let tree = BfTree::with_config(config, None).map_err(|error| format!("{error:?}"))?;
        Ok(Self { tree, entry_size })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        match self.tree.insert(key, value) {
            LeafInsertResult::Success => Ok(()),
            LeafInsertResult::InvalidKV(why) => Err(why.into()),
        }
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let start = value.len();
        value.resize(start + self.entry_size, 0);
        let found = self.tree.read(key, &mut value[start..]);
        let size = if let LeafReadResult::Found(size) = found { size as usize } else { 0 };
        value.truncate(start + size);
        match found {
            LeafReadResult::Found(_) => Ok(true),
            LeafReadResult::NotFound | LeafReadResult::Deleted => Ok(false),
            LeafReadResult::InvalidKey => Err("a key that Bf-Tree does not take".into()),
        }
    }

    fn delete(&self, key: &[u8]) -> Result<bool> {
        self.tree.delete(key);
        Ok(true)
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        let mut entries = self.tree.scan_with_count(from, usize::MAX, ScanReturnField::KeyAndValue).map_err(|error| format!("{error:?}"))?;
        let mut entry = vec![0; 2 * self.entry_size];
        while let Some((key, value)) = entries.next(&mut entry) {
            if visit(&entry[..key], &entry[key..key + value]).is_break() {
                break;
            }
        }
        Ok(())
    }
}
