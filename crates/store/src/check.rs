//! Numbers, and the search for damage.

use crate::store::{Index, Space};
use crate::version::{Age, damaged, untimely};
use crate::{Direction, Error, Store};
use everleaf_index::Listed;
use everleaf_index::record::Record;
use everleaf_pmem::{Info, Off, Reach, Usage, Word, schedule};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// Keys that are read before whoever watches a verification is told how many it were.
const KEYS_PER_LOOK: u64 = 1024;

/// Numbers of a store, taken without stopping anybody.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Every namespace of the pool, by name.
    pub namespaces: Vec<NamespaceStats>,
    /// What the pool says of itself: sizes in bytes, persistence domain, how it was found.
    pub pool: Info,
}

/// How full a pool is. See [`Store::fill`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Number of bytes in use, or kept at hand.
    pub used: usize,
    /// Number of bytes to which the pool may grow.
    pub limit: usize,
}

impl Fill {
    /// Whether less than a tenth is left: time to make room, or to open the pool with a higher [`Options::size_max`](crate::Options::size_max). A pool that is
    /// full refuses writes; reads, deletes and clears go on. While a snapshot is open, or a transaction, which has one, a delete leaves a tombstone: for these
    /// there is half of the reserve (a thirty-second of [`Fill::limit`], 2 MiB at most), and when that is used up, deletes are refused, too, until it ends.
    pub fn is_near_limit(&self) -> bool {
        self.used > self.limit - self.limit / 10
    }
}

/// Numbers of a namespace.
#[derive(Clone, Debug)]
pub struct NamespaceStats {
    /// Its name.
    pub name: String,
    /// Name of its index.
    pub index: &'static str,
    /// Number of keys.
    pub keys: u64,
    /// Number of leaves of the index.
    pub leaves: u64,
    /// Leaves that were divided since the index was opened or cleared.
    pub splits: u64,
    /// Size of all leaves in bytes.
    pub leaf_bytes: u64,
    /// Levels of the index, leaves included.
    pub depth: u32,
}

/// What [`Store::verify`] found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What it read of each namespace.
    pub namespaces: Vec<NamespaceReport>,
    /// How the space of the pool is used.
    pub usage: Usage,
    /// Every damage that was found; and what was not looked at, as damage was in the way.
    pub damages: Vec<Damage>,
    /// Whether something was not.
    is_partial: bool,
}

/// What [`Store::verify`] read of a namespace.
#[derive(Clone, Debug, Default)]
pub struct NamespaceReport {
    /// Its name.
    pub name: String,
    /// Name of its index.
    pub index: &'static str,
    /// Number of keys whose records are intact.
    pub keys: u64,
    /// Their size in bytes, keys and values.
    pub bytes: u64,
}

/// One damage.
#[derive(Clone, Debug)]
pub struct Damage {
    /// In which namespace, if in one.
    pub namespace: Option<String>,
    /// What is wrong.
    pub what: String,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.damages.is_empty()
    }

    fn note(&mut self, namespace: Option<&str>, what: impl ToString) {
        self.damages.push(Damage { namespace: namespace.map(str::to_owned), what: what.to_string() });
    }
}

impl<M: Listed> Store<M> {
    /// Numbers of the store, taken without stopping anybody.
    pub fn stats(&self) -> Stats {
        let namespaces = self.existing().into_iter().filter_map(|space| {
            let index = space.index.load_full()?;
            let everleaf_index::Stats { leaves, splits, leaf_bytes, depth, .. } = index.tree.stats();
            Some(NamespaceStats { name: space.name.clone(), index: index.kind, keys: space.count.get(), leaves, splits, leaf_bytes, depth })
        });
        Stats { namespaces: namespaces.collect(), pool: self.shared.pool.info() }
    }

    /// How full the pool is: in a moment, without reading it.
    pub fn fill(&self) -> Fill {
        let pool = &self.shared.pool;
        let limit = pool.size_max();
        Fill { used: limit.saturating_sub(pool.room()), limit }
    }

    /// Reads everything: every index, every record and its checksum, and that no block serves two masters. Writers wait meanwhile; readers do not.
    ///
    /// # Errors
    /// None yet that is not in the report.
    pub fn verify(&self) -> Result<Report, Error> {
        self.verify_with(|_, _| ())
    }

    /// [`Store::verify`], which tells `watch` now and then how many keys it has read, and about how many there are.
    ///
    /// # Errors
    /// See [`Store::verify`].
    pub fn verify_with(&self, mut watch: impl FnMut(u64, u64)) -> Result<Report, Error> {
        let _loading = schedule::lock(&self.shared.loading);
        let _compacting = schedule::lock(&self.shared.compacting);
        let _paused = self.shared.garbage.pause();
        let _all = self.shared.stripes.lock_all();
        let reach = self.shared.pool.reach();
        let mut report = Report::default();
        let existing = self.existing();
        let expected = existing.iter().map(|space| space.count.get()).sum();
        let mut read = 0_u64;
        let mut step = || {
            read += 1;
            if read.is_multiple_of(KEYS_PER_LOOK) {
                watch(read, expected);
            }
        };
        if let Err(error) = reach.mark(self.shared.header.off(), size_of_val(self.shared.header.get())) {
            report.note(None, error);
        }
        for space in existing {
            self.verify_space(&space, &reach, &mut report, &mut step);
        }
        self.verify_held(&reach, &mut report, &mut step);
        // Blocks on their way back are no leaks.
        self.shared.pool.collect();
        match self.shared.pool.audit(&reach) {
            Ok(usage) => {
                if usage.leaked > 0 && !report.is_partial {
                    report.note(None, format!("{} blocks are allocated, yet nothing reaches them, one at {:#x}", usage.leaked, usage.leaked_at.unwrap_or(0)));
                }
                report.usage = usage;
            }
            Err(error) => report.note(None, error),
        }
        Ok(report)
    }

    fn existing(&self) -> Vec<Arc<Space>> {
        self.shared.spaces.read().values().cloned().collect()
    }

    fn verify_space(&self, space: &Space, reach: &Reach<'_, M>, report: &mut Report, step: &mut dyn FnMut()) {
        let Some(index) = space.index.load_full() else { return };
        let name = Some(space.name.as_str());
        let found = self.verify_index(&space.name, &index, reach, report, step);
        let counted = space.count.get();
        if found.keys != counted && report.is_sound() {
            report.note(name, format!("{counted} keys are counted, {} are found", found.keys));
        }
        report.namespaces.push(found);
    }

    /// Verifies an index; `step` is called for each of its keys.
    fn verify_index(&self, name: &str, index: &Index, reach: &Reach<'_, M>, report: &mut Report, step: &mut dyn FnMut()) -> NamespaceReport {
        if let Err(error) = index.tree.check() {
            report.note(Some(name), error);
        }
        let marked = index.tree.blocks(&mut |off, size| Ok(reach.mark(Off::<Word>::new(off), size)?));
        if let Err(error) = marked {
            report.note(Some(name), error);
        }
        let mut found = NamespaceReport { name: name.to_owned(), index: index.kind, ..NamespaceReport::default() };
        let mut bare_key = Vec::new();
        // Up to the last key of the walk before, if there was one; the last key that this one comes by.
        let mut walk = |direction, until: Option<&[u8]>, report: &mut Report| {
            let mut last_key = Vec::new();
            let scanned = index.tree.scan(Bound::Unbounded, direction, &mut |key, link| {
                if until.is_some_and(|until| key <= until) {
                    return ControlFlow::Break(());
                }
                step();
                match self.verify_record(key, link.get(), reach, &mut bare_key) {
                    Ok(None) => {}
                    Ok(Some(bytes)) => {
                        found.keys += 1;
                        found.bytes += bytes;
                    }
                    Err(error) => report.note(Some(name), format!("key \"{}\": {error}", key.escape_ascii())),
                }
                last_key.clear();
                last_key.extend_from_slice(key);
                ControlFlow::Continue(())
            });
            (last_key, scanned)
        };
        if let (end, Err(error)) = walk(Direction::Forward, None, report) {
            report.is_partial = true;
            report.note(Some(name), format!("behind the key \"{}\": {error}", end.escape_ascii()));
            if let (start, Err(error)) = walk(Direction::Reverse, Some(&end), report) {
                let (end, start) = (end.escape_ascii(), start.escape_ascii());
                report.note(Some(name), format!("before the key \"{start}\": {error}; what is between \"{end}\" and this was not looked at"));
            }
        }
        found
    }

    /// What snapshots hold back is in use, too, and what transactions have written.
    fn verify_held(&self, reach: &Reach<'_, M>, report: &mut Report, step: &mut dyn FnMut()) {
        let (mut links, mut indexes, mut blocks) = (self.shared.drafts.links(), Vec::new(), Vec::new());
        if let Err(error) = self.shared.visit_held(|link| links.push(link), |index| indexes.push(index.clone()), |off, size| blocks.push((off, size))) {
            report.note(None, error);
        }
        for link in links {
            let marked = Record::read(&self.shared.pool, link).and_then(|record| Ok(reach.mark(record.off, record.size())?));
            if let Err(error) = marked {
                report.note(None, error);
            }
        }
        for (off, size) in blocks {
            if let Err(error) = reach.mark(Off::<Word>::new(off), size) {
                report.note(None, error);
            }
        }
        for index in indexes {
            self.verify_index("(cleared)", &index, reach, report, step);
        }
    }

    /// Checks the record of `key`; its size in bytes, key and value, unless it is a tombstone.
    fn verify_record(&self, key: &[u8], link: u64, reach: &Reach<'_, M>, bare_key: &mut Vec<u8>) -> Result<Option<u64>, Error> {
        let record = Record::read(&self.shared.pool, link)?;
        reach.mark(record.off, record.size())?;
        if !record.is_intact() {
            return Err(damaged(&record, "a record that does not match its checksum"));
        }
        bare_key.clear();
        record.copy_key(bare_key);
        if key != bare_key.as_slice() {
            return Err(damaged(&record, "a record of another key"));
        }
        match self.shared.age(&record)? {
            Age::Open => Err(damaged(&record, "a pending record, and no batch is under way")),
            Age::At(at) if at > self.shared.clock.now() => Err(untimely(&record)),
            Age::At(_) => Ok((!record.is_tombstone()).then(|| (record.key_size() + record.value_size()) as u64)),
        }
    }
}
