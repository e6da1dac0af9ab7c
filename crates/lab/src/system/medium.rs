//! The media that the lab measures on, and the pools that lie on them.

use super::Setting;
use crate::plan::KeyKind;
use everleaf_pmem::{Count, Counts, Error, Hardware, Medium, Pool, PoolOptions, WriteBuffer};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What an entry and its share of everything above it may take of a pool, beside its record.
const ENTRY_BYTES_MAX: u64 = 512;
/// What it takes where leaves are filled as they come.
const ENTRY_BYTES: u64 = 48;

/// A medium that the lab can make over the hardware.
pub(super) trait Measured: Medium + Sized {
    /// Over `hardware`, as the setting asks for it.
    fn over(hardware: Hardware, setting: &Setting) -> Self;

    /// What has passed, if that is counted.
    fn counts(&self) -> Option<Counts> {
        None
    }

    /// Starts counting anew.
    fn reset(&self) {}

    /// Lines flushed and fences; zeroes if they are not counted.
    fn flushed_and_fenced(&self) -> (u64, u64) {
        (0, 0)
    }
}

impl Measured for Hardware {
    fn over(hardware: Hardware, setting: &Setting) -> Self {
        hardware.with_write_latency(setting.write_latency_ns)
    }
}

impl Measured for Count<Hardware> {
    fn over(hardware: Hardware, _: &Setting) -> Self {
        Self::new(hardware).with_buffer(WriteBuffer::new(WriteBuffer::UNIT_COUNT))
    }

    fn counts(&self) -> Option<Counts> {
        Some(self.totals())
    }

    fn reset(&self) {
        Self::reset(self);
    }

    fn flushed_and_fenced(&self) -> (u64, u64) {
        Self::flushed_and_fenced(self)
    }
}

/// An empty pool with room for all that the setting says, and its path if it lies in a file.
pub(super) fn create_pool<M: Measured>(setting: &Setting) -> Result<(Arc<Pool<M>>, Option<PathBuf>), Error> {
    match &setting.directory {
        None => Ok((Pool::anonymous(M::over(Hardware::new(setting.domain), setting), pool_options(setting))?, None)),
        Some(directory) => {
            let path = directory.join("lab.pool");
            Ok((Pool::create_with(&path, &pool_options(setting), |hardware| M::over(hardware, setting))?, Some(path)))
        }
    }
}

/// The pool at a path, as it was left there.
pub(super) fn open_pool<M: Measured>(path: &Path, setting: &Setting) -> Result<Arc<Pool<M>>, Error> {
    Pool::open_with(path, &pool_options(setting), |hardware| M::over(hardware, setting))
}

fn pool_options(setting: &Setting) -> PoolOptions {
    let key_bytes = if let KeyKind::Bytes(size) = setting.key { u64::from(size) } else { 8 };
    // Twice, because blocks come in classes of sizes, and what is replaced is given back later.
    let size = setting.keys_max * (ENTRY_BYTES_MAX + 2 * (key_bytes + u64::from(setting.value_bytes)));
    let record_bytes = if setting.key == KeyKind::Integer && setting.value_bytes == 8 { 0 } else { 32 + key_bytes + u64::from(setting.value_bytes) };
    let prefault = if setting.prefault { setting.keys_max * (ENTRY_BYTES + record_bytes) } else { 0 };
    let (size_max, domain) = ((size as usize).max(1 << 28), Some(setting.domain));
    PoolOptions { size_max, domain, huge_pages: setting.huge_pages, prefault: prefault as usize, ..PoolOptions::default() }
}

/// When a write to such a pool counts as done.
pub(super) fn durability(setting: &Setting) -> String {
    format!("each write, against {}", setting.domain.survives())
}
