//! The pools that the lab measures on.

use super::Setting;
use crate::plan::{KeyKind, Measure};
use everleaf_pmem::{Counters, Domain, Error, Hardware, Pool, PoolOptions, WriteBuffer};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What an entry and its share of everything above it may take of a pool, beside its record.
const ENTRY_BYTES_MAX: u64 = 512;
/// What it takes where leaves are filled as they come.
const ENTRY_BYTES: u64 = 48;

/// The hardware, as the setting asks for it.
fn medium(hardware: Hardware, setting: &Setting) -> Hardware {
    match setting.measure {
        Measure::Counts => hardware.with_counters(Some(WriteBuffer::new(WriteBuffer::UNIT_COUNT))),
        _ => hardware.with_write_latency(setting.write_latency_ns),
    }
}

/// An empty pool with room for all that the setting says, and its path if it lies in a file.
pub(super) fn create_pool(setting: &Setting) -> Result<(Arc<Pool>, Option<PathBuf>), Error> {
    match &setting.directory {
        None => Ok((Pool::anonymous(medium(Hardware::new(setting.domain), setting), pool_options(setting))?, None)),
        Some(directory) => {
            let path = directory.join("lab.pool");
            Ok((Pool::create_with(&path, &pool_options(setting), |hardware| medium(hardware, setting))?, Some(path)))
        }
    }
}

/// The pool at a path, as it was left there.
pub(super) fn open_pool(path: &Path, setting: &Setting) -> Result<Arc<Pool>, Error> {
    Pool::open_with(path, &pool_options(setting), |hardware| medium(hardware, setting))
}

/// Lines flushed and fences; zeroes if they are not counted.
pub(super) fn flushed_and_fenced(pool: &Pool) -> (u64, u64) {
    pool.medium().counters().map_or((0, 0), Counters::flushed_and_fenced)
}

fn pool_options(setting: &Setting) -> PoolOptions {
    let key_bytes = u64::from(setting.key.bytes());
    // Twice, because blocks come in classes of sizes, and what is replaced is given back later.
    let size = setting.keys_max * (ENTRY_BYTES_MAX + 2 * (key_bytes + u64::from(setting.value_bytes)));
    let record_bytes = if setting.key == KeyKind::Integer && setting.value_bytes == 8 { 0 } else { 32 + key_bytes + u64::from(setting.value_bytes) };
    let prefault = if setting.prefault { setting.keys_max * (ENTRY_BYTES + record_bytes) } else { 0 };
    let (size_max, domain) = ((size as usize).max(1 << 28), Some(setting.domain));
    PoolOptions { size_max, domain, huge_pages: setting.huge_pages, prefault: prefault as usize, ..PoolOptions::default() }
}

/// When a write to such a pool counts as done: in truth, and not only for what the domain asks.
pub(super) fn durability(setting: &Setting) -> String {
    let domain = setting.domain;
    match (&setting.directory, domain) {
        (None, _) => format!("nothing, as memory without a file goes with the process: measured with what domain {domain} asks for"),
        (Some(_), Domain::Adr | Domain::Eadr) => format!("each write: on persistent memory against power failure, elsewhere against kill -9 (domain {domain})"),
        (Some(_), Domain::PageCache | Domain::Msync) => format!("each write, against {}", domain.survives()),
    }
}
