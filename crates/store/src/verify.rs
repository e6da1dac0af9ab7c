//! Verification: the search for damage.
//!
//! 1. Every index is walked, and the records that it leads to are read. A leaf with an unreadable record may stop the walk: then a second walk runs backward
//!    from the end, up to the next such leaf.
//! 2. The part between two such leaves is found by the blocks that are in use and that nothing has led to so far: those that are sound records give keys which
//!    the index may have there. The index is walked again from the first of these keys, and from the next one where that walk stops; so every leaf is walked
//!    except those that stop walks, whose damage is named, and in these every key that has a record is looked up.
//! 3. The allocated blocks are compared with those that were met.
//!
//! The progress and the end of a walk go by keys that their records prove: a damaged key may sort anywhere in its leaf.
//!
//! Memory use: a bit for each block, and the keys between two damaged leaves.

use crate::store::{Index, Space};
use crate::version::{Age, damaged, untimely};
use crate::{Direction, Error, Store};
use everleaf_index::Listed;
use everleaf_index::record::Record;
use everleaf_pmem::{DAMAGE_ADVICE, Off, Reach, Usage, Word, schedule};
use std::collections::{BTreeSet, HashSet};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// Keys read between two calls of `watch`.
const KEYS_PER_LOOK: u64 = 1024;

/// The result of [`Store::verify`].
#[must_use = "it says whether anything is damaged"]
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Its findings in each namespace.
    pub namespaces: Vec<NamespaceReport>,
    /// How the space of the pool is used.
    pub usage: Usage,
    /// Every damage that was found.
    pub damages: Vec<Damage>,
}

/// The findings of [`Store::verify`] in a namespace.
#[derive(Clone, Debug, Default)]
pub struct NamespaceReport {
    /// Its name.
    pub name: String,
    /// Name of its index.
    pub index: &'static str,
    /// Number of keys whose records are intact.
    pub keys: u64,
    /// Their total size in bytes, keys and values.
    pub bytes: u64,
}

/// One damage.
#[derive(Clone, Debug)]
pub struct Damage {
    /// The namespace, if it is in one.
    pub namespace: Option<String>,
    /// What is wrong.
    pub what: String,
}

impl Damage {
    pub(crate) fn new(namespace: Option<&str>, what: impl ToString) -> Self {
        Self { namespace: namespace.map(str::to_owned), what: what.to_string().replace(DAMAGE_ADVICE, "") }
    }
}

impl Stopped {
    /// Whether `key` lies in the part that no walk has met.
    fn spans(&self, key: &[u8]) -> bool {
        self.end.as_deref().is_none_or(|end| key > end) && self.start.as_deref().is_none_or(|start| key < start)
    }
}

impl NamespaceReport {
    fn add(&mut self, other: &Self) {
        self.keys += other.keys;
        self.bytes += other.bytes;
    }
}

impl Report {
    /// Returns whether there is no damage.
    pub fn is_sound(&self) -> bool {
        self.damages.is_empty()
    }

    fn note(&mut self, namespace: Option<&str>, what: impl ToString) {
        self.damages.push(Damage::new(namespace, what));
    }
}

/// An index that damage kept the walks from seeing in full.
struct Stopped {
    index: Arc<Index>,
    /// Its place in [`Report::namespaces`]; a cleared index has none.
    number: Option<usize>,
    name: String,
    /// The index was walked up to `end` and from `start` on; `None`: not at all on that side.
    end: Option<Vec<u8>>,
    start: Option<Vec<u8>>,
    /// Errors that have stopped walks, as reported.
    stops: HashSet<String>,
}

/// The result of a walk.
struct Walked {
    found: NamespaceReport,
    /// The last key that its record proves.
    last: Option<Vec<u8>>,
    /// The error that stopped it.
    stop: Option<String>,
}

/// A verification in progress.
struct Verification<'v, M: Listed> {
    store: &'v Store<M>,
    reach: &'v Reach<'v, M>,
    report: Report,
    stopped: Vec<Stopped>,
    /// Whether damage has stopped any walk.
    was_stopped: bool,
    step: &'v mut dyn FnMut() -> ControlFlow<()>,
    is_broken_off: bool,
    /// Buffer for the key of a record.
    key: Vec<u8>,
}

impl<M: Listed> Store<M> {
    /// Reads everything: every index, and every record with its checksum; and checks that no block has two owners. Writers wait meanwhile; readers do not.
    ///
    /// # Errors
    /// None today: damage is in the report.
    pub fn verify(&self) -> Result<Report, Error> {
        self.verify_with(|_, _| ControlFlow::Continue(())).map(Option::unwrap_or_default)
    }

    /// [`Store::verify`], which tells `watch` now and then how many keys it has read, and about how many there are. Returns `None` if `watch` breaks it off.
    /// Writers wait for `watch`, too. So `watch` must not write to the store, load, verify or compact it, or drop a transaction that has written: that panics,
    /// or waits for ever.
    ///
    /// # Errors
    /// See [`Store::verify`].
    pub fn verify_with(&self, mut watch: impl FnMut(u64, u64) -> ControlFlow<()>) -> Result<Option<Report>, Error> {
        let _loading = schedule::lock(&self.shared.loading);
        let _compacting = schedule::lock(&self.shared.compacting);
        let _paused = self.shared.garbage.pause();
        let _all = self.shared.stripes.lock_all();
        let existing = self.existing();
        let expected = existing.iter().map(|space| space.count()).sum();
        let mut read = 0_u64;
        let mut step = || {
            read += 1;
            if read.is_multiple_of(KEYS_PER_LOOK) { watch(read, expected) } else { ControlFlow::Continue(()) }
        };
        let reach = self.shared.pool.reach();
        let verification = Verification {
            store: self,
            reach: &reach,
            report: Report::default(),
            stopped: Vec::new(),
            was_stopped: false,
            step: &mut step,
            is_broken_off: false,
            key: Vec::new(),
        };
        Ok(verification.run(&existing))
    }

    pub(crate) fn existing(&self) -> Vec<Arc<Space>> {
        self.shared.spaces.read().values().cloned().collect()
    }
}

impl<M: Listed> Verification<'_, M> {
    fn run(mut self, spaces: &[Arc<Space>]) -> Option<Report> {
        let shared = &self.store.shared;
        self.mark(None, shared.header.off().bytes(), size_of_val(shared.header.get()));
        for space in spaces {
            self.space(space);
            if self.is_broken_off {
                return None;
            }
        }
        self.held();
        // Blocks about to be freed are no leaks.
        shared.pool.collect();
        self.between();
        match shared.pool.audit(self.reach) {
            Ok(usage) => {
                if let Some(at) = usage.leaked_at {
                    let which = if self.was_stopped { ", what cannot be read among them" } else { "" };
                    self.report.note(None, format!("{} blocks are allocated, yet nothing reaches them{which}, one at {at:#x}", usage.leaked));
                }
                self.report.usage = usage;
            }
            Err(error) => self.report.note(None, error),
        }
        (!self.is_broken_off).then_some(self.report)
    }

    fn mark(&mut self, namespace: Option<&str>, off: u64, size: usize) {
        if let Err(error) = self.reach.mark(Off::<Word>::new(off), size) {
            self.report.note(namespace, error);
        }
    }

    fn space(&mut self, space: &Space) {
        let Some(index) = space.index.load_full() else { return };
        let found = self.index(&space.name, &index, Some(self.report.namespaces.len()));
        let counted = space.count();
        if found.keys != counted && self.report.is_sound() {
            self.report.note(Some(&space.name), format!("{counted} keys are counted, {} are found", found.keys));
        }
        self.report.namespaces.push(found);
    }

    /// What snapshots hold back is in use, too, and so are the drafts of transactions.
    fn held(&mut self) {
        let shared = &self.store.shared;
        let (mut links, mut indexes, mut blocks) = (shared.drafts.links(), Vec::new(), Vec::new());
        shared.visit_held(|link| links.push(link), |index| indexes.push(index.clone()), |off, size| blocks.push((off, size)));
        for link in links {
            match Record::read(&shared.pool, link) {
                Ok(record) => {
                    if !record.is_intact() {
                        self.report.note(None, format!("the record at {:#x} of what is held back is not what was written", record.off.bytes()));
                    }
                    self.mark(None, record.off.bytes(), record.size());
                }
                Err(error) => self.report.note(None, error),
            }
        }
        for (off, size) in blocks {
            self.mark(None, off, size);
        }
        for index in indexes {
            self.index("(cleared)", &index, None);
        }
    }

    /// Step 1 for an index.
    fn index(&mut self, name: &str, index: &Arc<Index>, number: Option<usize>) -> NamespaceReport {
        if let Err(error) = index.tree.check() {
            self.report.note(Some(name), error);
        }
        let marked = index.tree.blocks(&mut |off, size| Ok(self.reach.mark(Off::<Word>::new(off), size)?));
        if let Err(error) = marked {
            self.report.note(Some(name), error);
        }
        let Walked { mut found, last, stop } = self.walk(name, index, Bound::Unbounded, Direction::Forward, None);
        if let Some(stop) = stop {
            self.was_stopped = true;
            self.report.note(Some(name), format!("behind the key \"{}\": {stop}", last.as_deref().unwrap_or_default().escape_ascii()));
            let back = self.walk(name, index, Bound::Unbounded, Direction::Reverse, last.as_deref());
            found.add(&back.found);
            if let Some(again) = back.stop {
                if again != stop {
                    self.report.note(Some(name), format!("before the key \"{}\": {again}", back.last.as_deref().unwrap_or_default().escape_ascii()));
                }
                let stops = HashSet::from([stop, again]);
                self.stopped.push(Stopped { index: index.clone(), number, name: name.to_owned(), end: last, start: back.last, stops });
            }
        }
        found
    }

    /// Step 2.
    fn between(&mut self) {
        if self.stopped.is_empty() {
            return;
        }
        let pool = &self.store.shared.pool;
        let (mut keys, mut key) = (BTreeSet::new(), Vec::new());
        let audited = pool.audit_with(self.reach, &mut |at| {
            let Ok(record) = Record::read(pool, Off::<Word>::new(at).link()) else { return };
            key.clear();
            record.copy_key(&mut key);
            if record.proves(&key) && self.stopped.iter().any(|stopped| stopped.spans(&key)) {
                keys.insert(key.clone());
            }
        });
        for stopped in std::mem::take(&mut self.stopped) {
            // Then only a part of the blocks in use is known: the audit that follows reports the cause.
            if audited.is_err() {
                let [end, start] = [&stopped.end, &stopped.start].map(|key| key.as_deref().unwrap_or_default().escape_ascii());
                self.report.note(Some(&stopped.name), format!("not all that is between the keys \"{end}\" and \"{start}\" may have been looked at"));
            }
            self.between_two(stopped, &keys);
        }
    }

    /// Step 2 for an index. `keys` are those of records that nothing has led to.
    fn between_two(&mut self, stopped: Stopped, keys: &BTreeSet<Vec<u8>>) {
        let Stopped { index, number, name, end, start, mut stops } = stopped;
        let mut found = NamespaceReport::default();
        let (lower, upper) = (end.map_or(Bound::Unbounded, Bound::Excluded), start.clone().map_or(Bound::Unbounded, Bound::Excluded));
        let mut last: Option<Vec<u8>> = None;
        for key in keys.range::<Vec<u8>, _>((lower, upper)) {
            if last.as_ref().is_some_and(|last| key <= last) {
                continue;
            }
            let walked = self.walk(&name, &index, Bound::Included(key), Direction::Forward, start.as_deref());
            found.add(&walked.found);
            let Some(stop) = walked.stop else { break };
            if stops.insert(stop.clone()) {
                let behind = walked.last.as_ref().unwrap_or(key);
                self.report.note(Some(&name), format!("behind the key \"{}\": {stop}", behind.escape_ascii()));
            }
            if walked.last.is_some() {
                last = walked.last;
                continue;
            }
            // The key is in a leaf that stops walks.
            match index.tree.get(key) {
                Ok(Some(link)) => self.entry(&name, key, link.get(), &mut found),
                Ok(None) => {}
                Err(error) => {
                    if stops.insert(error.to_string()) {
                        self.report.note(Some(&name), format!("key \"{}\": {error}", key.escape_ascii()));
                    }
                }
            }
        }
        if let Some(number) = number {
            self.report.namespaces[number].add(&found);
        }
    }

    /// Reads an index and its records from a bound on, up to but not including the key `until`, if given.
    fn walk(&mut self, name: &str, index: &Index, from: Bound<&Vec<u8>>, direction: Direction, until: Option<&[u8]>) -> Walked {
        let mut walked = Walked { found: NamespaceReport { name: name.to_owned(), index: index.kind, ..NamespaceReport::default() }, last: None, stop: None };
        let Walked { found, last, .. } = &mut walked;
        let scanned = index.tree.scan(from.map(Vec::as_slice), direction, &mut |key, link| {
            let is_proved = Record::read(&self.store.shared.pool, link.get()).is_ok_and(|record| record.proves(key));
            if is_proved && until.is_some_and(|until| if direction == Direction::Forward { key >= until } else { key <= until }) {
                return ControlFlow::Break(());
            }
            self.is_broken_off |= (self.step)().is_break();
            if self.is_broken_off {
                return ControlFlow::Break(());
            }
            self.entry(name, key, link.get(), found);
            if is_proved {
                let last = last.get_or_insert_default();
                last.clear();
                last.extend_from_slice(key);
            }
            ControlFlow::Continue(())
        });
        if let Err(error) = scanned {
            walked.stop = Some(error.to_string());
        }
        walked
    }

    /// Reads the record of `key` at `link`.
    fn entry(&mut self, name: &str, key: &[u8], link: u64, found: &mut NamespaceReport) {
        match self.record(key, link) {
            Ok(None) => {}
            Ok(Some(bytes)) => {
                found.keys += 1;
                found.bytes += bytes;
            }
            Err(error) => self.report.note(Some(name), format!("key \"{}\": {error}", key.escape_ascii())),
        }
    }

    /// Checks the record of `key`; returns its size in bytes, key and value, unless it is a tombstone.
    fn record(&mut self, key: &[u8], link: u64) -> Result<Option<u64>, Error> {
        let shared = &self.store.shared;
        let record = Record::read(&shared.pool, link)?;
        self.reach.mark(record.off, record.size())?;
        if !record.is_intact() {
            return Err(damaged(&record, "a record that does not match its checksum"));
        }
        self.key.clear();
        record.copy_key(&mut self.key);
        if key != self.key.as_slice() {
            return Err(damaged(&record, "a record of another key"));
        }
        match shared.age(&record)? {
            Age::Open => Err(damaged(&record, "a pending record, and no batch is under way")),
            Age::At(at) if at > shared.clock.now() => Err(untimely(&record)),
            Age::At(_) => Ok((!record.is_tombstone()).then(|| (record.key_size() + record.value_size()) as u64)),
        }
    }
}
