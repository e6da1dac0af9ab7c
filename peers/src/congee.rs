//! congee, an adaptive radix tree in memory. Its keys and values are words; it has no scan without an end, so one asks for pieces.

use crate::embedded::{Durability, Embedded, Engine, Result, VOLATILE};
use congee::{U64Congee, epoch};
use everleaf_lab::plan::KeyKind;
use everleaf_lab::{Capabilities, Setting, System, Visit};
use std::path::Path;

/// Entries that a scan asks for at once.
const PIECE: usize = 128;

pub(crate) struct Art(U64Congee<usize>);

/// The tree.
pub(crate) fn systems() -> Vec<Box<dyn System>> {
    vec![Box::new(Embedded::<Art>::new(
        "congee",
        "congee, an adaptive radix tree; integers only",
        "none",
        Durability::Later,
        Capabilities { any_size: false, ..VOLATILE },
    ))]
}

fn word(bytes: &[u8]) -> Result<u64> {
    Ok(u64::from_be_bytes(bytes.try_into()?))
}

impl Engine for Art {
    fn open(_directory: &Path, setting: &Setting, _sync: Durability) -> Result<Self> {
        if setting.key != KeyKind::Integer || setting.value_bytes != 8 {
            return Err("congee takes integer keys and values of 8 bytes only".into());
        }
        Ok(Self(U64Congee::new()))
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let value = usize::try_from(word(value)?)?;
        self.0.insert(word(key)?, value, &epoch::pin()).map_err(|_| "no memory is left")?;
        Ok(())
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.0.get(word(key)?, &epoch::pin());
        if let Some(found) = found {
            value.extend_from_slice(&found.to_be_bytes());
        }
        Ok(found.is_some())
    }

    fn delete(&self, key: &[u8]) -> Result<bool> {
        Ok(self.0.remove(word(key)?, &epoch::pin()).is_some())
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        let guard = epoch::pin();
        let mut from = word(from)?;
        let mut piece = [([0; 8], 0); PIECE];
        loop {
            let count = self.0.range(from, u64::MAX, &mut piece, &guard);
            for (key, value) in &piece[..count] {
                if visit(key, &value.to_be_bytes()).is_break() {
                    return Ok(());
                }
            }
            let last = u64::from_be_bytes(piece[count.saturating_sub(1)].0);
            if count < PIECE || last == u64::MAX {
                return Ok(());
            }
            from = last + 1;
        }
    }
}
