//! Salvage: what can be read of a damaged pool, written into another store.
//!
//! A flaw that keeps a pool from being opened is a loss, since something acknowledged may be missing, but no reason to give up: a damaged root is skipped; for
//! a damaged header see [`Pool::inspect_damaged`].
//!
//! 1. Each namespace whose index opens is walked forward and, if damage is in the way, from its end backward to where the first walk ended. A record is taken
//!    if its checksums match and its key is the index's. For a batch that was not committed, the versions before it are taken. Only keys that their records
//!    prove show how far a walk has come; any other entry is a loss, and the walk goes on. A leaf of Ever with a damaged state is read in its most likely
//!    state, and is a loss: one damaged byte there does not cost the index. In other indexes it does if it is in a bitmap or a count: then the contents of the
//!    namespace are among what step 2 finds.
//! 2. Records that no walk has met are searched: a record that matches its checksums, 64 bits of them, is no coincidence. If damage kept the walks from such a
//!    record, but an index leads to it by its key, it goes to its own namespace. (Trees without low fences read keys when they are opened, which one such
//!    record prevents: then there is no index to ask.) The others go to the namespace [`LOST_AND_FOUND`], for people to look at: a record does not say which
//!    namespace it belongs to. If the pool was closed and its list of free blocks is intact, every block in use is looked at. A record found there was some
//!    key's when the pool was closed, and an index hides it: that is a loss like others. Several records of one key then belong to as many namespaces, or are
//!    versions kept in a pool that was closed without its store; sixteen are taken: the newest goes to the first namespace, the next ones to namespaces with a
//!    number after the name. If the pool was not closed or the list is damaged, it is unknown which blocks were in use, and a record that no index leads to may
//!    well have been replaced or removed, or belong to a write that was refused. Then the whole pool is searched, but only if something else was lost; the
//!    newest record of each key, as far as that can be told, is taken, and the others are counted. The names of the new namespaces are ones that the pool does
//!    not have. So in such a pool, and in no other, an entry that an index hides without any sign of damage goes unnoticed, here as by `verify`, for which such
//!    a block is free. The words by which an index hides or shows an entry have check bits, so that no single damaged byte does that, except for some words
//!    that are full: see `LbLeaf`, `FpLeaf` and `WbLeaf`.
//! 3. An index may hide a record whose key is damaged, taking it for one that a split left in a leaf to which it no longer belongs, and step 2 does not find
//!    it. So for a closed pool in which nothing else was lost, the blocks that nothing leads to are counted.
//!
//! The pool is only read: stores made by opening an index go to private pages of this process. Memory use: a link for each record taken, and the keys of those
//! that step 2 finds.

use crate::block::{StoreBlock, read_log};
use crate::error::STORE_ROOT;
use crate::recovery::entry_of;
use crate::scan::place_of;
use crate::slots::{DRAFT, PENDING, UNSTAMPED, generation};
use crate::stream::StreamError;
use crate::verify::Damage;
use crate::{Direction, Error, Namespace, Store};
use everleaf_index::record::Record;
use everleaf_index::{Listed, OrderedIndex, Recovery};
use everleaf_pmem::{Error as Flaw, Off, Pool, Reach, Root, Usage, WORD, Word};
use std::collections::{BTreeMap, HashSet};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// Namespace for records that no index leads to; if that name is taken, a number is appended.
pub const LOST_AND_FOUND: &str = "lost+found";
/// Number of such namespaces: of more records of one key only the newest are taken, and the others are counted.
const FOUND_NAMESPACES_MAX: usize = 16;
/// Words of a pool that are searched between two questions whether to go on.
const WORDS_AT_ONCE: usize = 1 << 20;

/// The result of a salvage.
#[derive(Clone, Debug, Default)]
pub struct Salvaged {
    /// Number of entries by namespace.
    pub namespaces: Vec<(String, u64)>,
    /// Every loss and every possible loss.
    pub losses: Vec<Damage>,
    /// Number of entries in [`LOST_AND_FOUND`] and the like.
    pub found: u64,
    /// Those namespaces, with their numbers of entries.
    pub found_in: Vec<(String, u64)>,
    /// Number of records that were found but not taken: others of their key are newer, as far as that can be told, and have replaced them, or belong to another
    /// namespace.
    pub passed_over: u64,
}

impl Salvaged {
    fn lose(&mut self, namespace: Option<&str>, what: impl ToString) {
        self.losses.push(Damage::new(namespace, what));
    }
}

/// An index that damage kept a walk from seeing in full.
struct Broken {
    index: Box<dyn OrderedIndex<[u8]>>,
    to: Namespace,
}

/// The last key met by a walk that its record proves, and whether the walk reached its end.
type Walked = (Option<Vec<u8>>, Result<(), Error>);

/// A record that no walk has met: when it was committed, and where it lies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Orphan {
    age: u64,
    at: u64,
}

/// A salvage in progress.
struct Salvage<'s, M: Listed> {
    pool: &'s Arc<Pool<M>>,
    to: &'s Store,
    /// Links of records of batches that were not committed.
    undecided: HashSet<u64>,
    /// Offsets of records that walks have met.
    seen: HashSet<u64>,
    /// The other blocks of a closed pool that are known to be in use.
    reach: Option<Reach<'s, M>>,
    broken: Vec<Broken>,
    salvaged: Salvaged,
    taken: u64,
}

/// See the module's head. `watch` is called with the number of entries taken so far, and says whether to go on.
pub(crate) fn salvage<M: Listed>(pool: &Arc<Pool<M>>, to: &Store, mut watch: impl FnMut(u64) -> ControlFlow<()>) -> Result<Salvaged, StreamError> {
    let mut watch = |taken| if watch(taken).is_continue() { Ok(()) } else { Err(StreamError::Stopped) };
    let mut salvage =
        Salvage { pool, to, undecided: HashSet::new(), seen: HashSet::new(), reach: None, broken: Vec::new(), salvaged: Salvaged::default(), taken: 0 };
    salvage.reach = (!pool.needs_recovery()).then(|| pool.reach());
    pool.flaws().iter().for_each(|flaw| salvage.salvaged.lose(None, meaning(flaw)));
    let (roots, damages) = pool.sound_roots();
    damages.iter().for_each(|error| salvage.salvaged.lose(None, format!("a namespace may be left out: {error}")));
    salvage.read_slots(&roots);
    for (name, root) in roots.iter().filter(|(name, _)| name != STORE_ROOT) {
        salvage.namespace(name, *root, &mut watch)?;
    }
    salvage.search(&roots, &mut watch)?;
    Ok(salvage.salvaged)
}

impl<M: Listed> Salvage<'_, M> {
    /// Finds the batches that were in progress.
    fn read_slots(&mut self, roots: &[(String, Root)]) {
        let Some((_, root)) = roots.iter().find(|(name, _)| name == STORE_ROOT) else {
            return self.salvaged.lose(None, "the pool has no root of a store: batches that were under way may show in part");
        };
        let block = match StoreBlock::open(self.pool, Off::new(root.off)) {
            Ok(block) => block,
            Err(error) => return self.salvaged.lose(None, format!("{error}: batches that were under way may show in part")),
        };
        self.mark(root.off, size_of::<StoreBlock>());
        for slot in &block.slots {
            let log = slot.undecided(self.pool).and_then(|link| link.map(|link| read_log(self.pool, link)).transpose());
            match log {
                Ok(log) => self.undecided.extend(log.iter().flat_map(|(_, _, _, entries)| entries).map(|entry| entry.link)),
                Err(error) => self.salvaged.lose(None, format!("{error}: a batch that was under way may show in part")),
            }
        }
    }

    fn namespace(&mut self, name: &str, root: Root, watch: &mut impl FnMut(u64) -> Result<(), StreamError>) -> Result<(), StreamError> {
        let entry = match entry_of::<M>(name, root) {
            Ok(entry) => entry,
            Err(error) => {
                self.salvaged.lose(Some(name), error);
                return Ok(());
            }
        };
        // A reach for each index: what one index reaches wrongly must not be in the way of another.
        let reach = self.pool.needs_recovery().then(|| self.pool.reach());
        let index = match entry.open(self.pool, name, &Recovery { reach: reach.as_ref(), trace: None, threads: 1 }) {
            Ok(index) => index,
            Err(error) => {
                self.salvaged.lose(Some(name), format!("its index cannot be opened: {error}"));
                return Ok(());
            }
        };
        let namespace = self.to.namespace(name)?;
        namespace.prefer_index(entry.name)?;
        namespace.create()?;
        let before = self.taken;
        let (end, outcome) = self.walk(&*index, Direction::Forward, None, &namespace, watch)?;
        let is_broken = outcome.is_err();
        if let Err(error) = outcome {
            self.salvaged.lose(Some(name), format!("behind the key \"{}\": {error}", end.as_deref().unwrap_or_default().escape_ascii()));
            let (start, outcome) = self.walk(&*index, Direction::Reverse, end, &namespace, watch)?;
            if let Err(error) = outcome {
                self.salvaged.lose(Some(name), format!("before the key \"{}\": {error}", start.unwrap_or_default().escape_ascii()));
            }
        }
        let marked = index.blocks(&mut |off, size| {
            self.mark(off, size);
            Ok(())
        });
        if let Err(error) = marked {
            self.salvaged.lose(Some(name), error);
        }
        self.salvaged.namespaces.push((name.to_owned(), self.taken - before));
        if is_broken {
            self.broken.push(Broken { index, to: namespace });
        }
        Ok(())
    }

    /// Notes a block in use. Damage may cause a block to be noted twice, or a free one to be noted; then another block goes unnoted.
    fn mark(&self, off: u64, size: usize) {
        if let Some(reach) = &self.reach {
            let _ = reach.mark(Off::<Word>::new(off), size);
        }
    }

    /// Takes what an index has, up to `until`; returns the last key met, and whether the walk reached its end. A damaged key may sort anywhere: it does not
    /// show how far the walk has come, and [`Salvage::take`] reports it.
    fn walk(
        &mut self,
        index: &dyn OrderedIndex<[u8]>,
        direction: Direction,
        until: Option<Vec<u8>>,
        to: &Namespace,
        watch: &mut impl FnMut(u64) -> Result<(), StreamError>,
    ) -> Result<Walked, StreamError> {
        // No index has more entries than the pool has words; a damaged one may lead in circles.
        let mut left = self.pool.length() / WORD;
        let (mut last, mut stop, mut failure): (Option<Vec<u8>>, _, _) = (None, None, None);
        let walked = index.scan(Bound::Unbounded, direction, &mut |key, link| {
            let is_on = |last: &Vec<u8>| if direction == Direction::Forward { key > last.as_slice() } else { key < last.as_slice() };
            let is_proved = Record::read(self.pool, link.get()).is_ok_and(|record| record.proves(key));
            if is_proved && until.as_ref().is_some_and(|until| key <= until.as_slice()) {
                return ControlFlow::Break(());
            }
            left -= 1;
            if left == 0 || is_proved && !last.as_ref().is_none_or(is_on) {
                stop = Some(Flaw::corrupt(place_of(link), "an index that leads back to where it has been").into());
                return ControlFlow::Break(());
            }
            if is_proved {
                last = Some(key.to_vec());
            }
            let taken = self.standing(link.get()).map_or(Ok(()), |link| self.take(key, link, to)).map_err(StreamError::from);
            match taken.and_then(|()| if self.taken.is_multiple_of(1 << 12) { watch(self.taken) } else { Ok(()) }) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        match failure {
            Some(error) => Err(error),
            None => Ok((last, stop.map_or_else(|| walked.map_err(Error::from), Err))),
        }
    }

    /// Takes the record of `key` at `link`, which is committed.
    ///
    /// # Errors
    /// Errors of the destination store; damage is noted.
    fn take(&mut self, key: &[u8], link: u64, to: &Namespace) -> Result<(), Error> {
        match Record::read(self.pool, link) {
            Ok(record) if record.is_intact() && record.proves(key) => {
                self.seen.insert(record.off.bytes());
                if record.is_tombstone() { Ok(()) } else { self.write(to, key, &record) }
            }
            Ok(record) => {
                let what = if record.is_intact() { "a record of another key" } else { "a record that does not match its checksum" };
                self.salvaged.lose(Some(to.name()), format!("key \"{}\": {what} at {:#x}", key.escape_ascii(), record.off.bytes()));
                Ok(())
            }
            Err(error) => {
                self.salvaged.lose(Some(to.name()), format!("key \"{}\": {error}", key.escape_ascii()));
                Ok(())
            }
        }
    }

    /// The committed link where an index has `link`: that itself or, if its batch was not committed, the one it replaced, if any.
    fn standing(&mut self, link: u64) -> Option<u64> {
        if !self.undecided.contains(&link) {
            return Some(link);
        }
        self.note(link);
        Record::read(self.pool, link).map_or(Some(link), |record| Some(record.previous().get()).filter(|previous| *previous != 0))
    }

    /// Takes those of `orphans`, all with this key, to which an index leads that was not walked completely.
    fn take_by_key(&mut self, broken: &[Broken], key: &[u8], orphans: &mut Vec<Orphan>) -> Result<(), Error> {
        for Broken { index, to } in broken {
            let Ok(Some(link)) = index.get(key) else { continue };
            let Some(link) = self.standing(link.get()) else { continue };
            let Some(found) = orphans.iter().position(|orphan| Off::<Word>::new(orphan.at).link() == link) else { continue };
            orphans.remove(found);
            let before = self.taken;
            self.take(key, link, to)?;
            let count = self.salvaged.namespaces.iter_mut().find(|(name, _)| name == to.name());
            count.expect("it was walked").1 += self.taken - before;
        }
        Ok(())
    }

    fn note(&mut self, link: u64) {
        if let Ok(off) = Off::<Word>::from_link(link) {
            self.seen.insert(off.bytes());
        }
    }

    /// The key of the record at `at` and when it was committed, if there is a record that no walk has met.
    fn orphan(&self, at: u64) -> Option<(Vec<u8>, Orphan)> {
        let off = Off::<Word>::new(at);
        let record = Record::read(self.pool, off.link()).ok()?;
        // Looking at the key alone is cheap, whatever size a word that is no header claims for the value.
        let mut key = Vec::new();
        record.copy_key(&mut key);
        if !record.proves(&key) || !record.is_intact() || self.seen.contains(&at) || self.undecided.contains(&off.link()) {
            return None;
        }
        let age = match record.commit().get() {
            // An index keeps such records for its own keys, of leaves that are empty or were split. A load stores keys without values alike: they are not
            // found.
            0 if record.value_size() == 0 => return None,
            // A value set by a transaction that has not tried to commit.
            DRAFT => return None,
            token if token & PENDING != 0 => generation(token),
            word => word & !UNSTAMPED,
        };
        Some((key, Orphan { age, at }))
    }

    fn write(&mut self, to: &Namespace, key: &[u8], record: &Record<'_>) -> Result<(), Error> {
        let mut value = Vec::with_capacity(record.value_size());
        record.copy_value(0, record.value_size(), &mut value);
        match record.expiry_ms() {
            Some(expiry_ms) => to.put_until(key, &value, expiry_ms)?,
            None => to.put(key, &value)?,
        }
        self.taken += 1;
        Ok(())
    }

    /// Step 2.
    fn search(&mut self, roots: &[(String, Root)], watch: &mut impl FnMut(u64) -> Result<(), StreamError>) -> Result<(), StreamError> {
        let mut found: BTreeMap<Vec<u8>, Vec<Orphan>> = BTreeMap::new();
        let mut note = |at: u64| {
            if let Some((key, orphan)) = self.orphan(at) {
                found.entry(key).or_default().push(orphan);
            }
        };
        let are_known = self.pool.visit_blocks(&mut note).is_ok_and(|are_known| are_known);
        if !are_known && !self.salvaged.losses.is_empty() {
            let slab_size = self.pool.info().slab_size;
            for (count, at) in (slab_size as u64..self.pool.length() as u64).step_by(WORD).enumerate() {
                if count.is_multiple_of(WORDS_AT_ONCE) {
                    watch(self.taken)?;
                }
                note(at);
            }
        }
        if are_known && found.is_empty() {
            self.find_leaks();
        }
        let mut targets: Vec<(Namespace, u64)> = Vec::new();
        let broken = std::mem::take(&mut self.broken);
        for (key, mut orphans) in found {
            self.take_by_key(&broken, &key, &mut orphans)?;
            if orphans.is_empty() {
                continue;
            }
            orphans.sort_unstable_by(|a, b| b.cmp(a));
            if are_known {
                for Orphan { at, .. } in &orphans {
                    self.salvaged.lose(None, format!("key \"{}\": no index leads to its record at {at:#x}", key.escape_ascii()));
                }
            } else {
                self.salvaged.passed_over += orphans.len() as u64 - 1;
                orphans.truncate(1);
            }
            let records =
                orphans.iter().map(|orphan| Record::read(self.pool, Off::<Word>::new(orphan.at).link())).collect::<Result<Vec<_>, _>>().map_err(Error::from)?;
            for (number, record) in records.iter().filter(|record| !record.is_tombstone()).enumerate() {
                if number == FOUND_NAMESPACES_MAX {
                    self.salvaged.passed_over += (records.iter().filter(|record| !record.is_tombstone()).count() - number) as u64;
                    break;
                }
                if number == targets.len() {
                    targets.push((self.to.namespace(&next_name(roots, &targets))?, 0));
                }
                self.write(&targets[number].0, &key, record)?;
                targets[number].1 += 1;
                self.salvaged.found += 1;
                watch(self.taken)?;
            }
        }
        self.salvaged.found_in = targets.into_iter().map(|(namespace, count)| (namespace.name().to_owned(), count)).collect();
        Ok(())
    }

    /// Step 3.
    fn find_leaks(&mut self) {
        let Some(reach) = self.reach.as_ref().filter(|_| self.salvaged.losses.is_empty()) else { return };
        let records = self.seen.iter().filter_map(|at| Record::read(self.pool, Off::<Word>::new(*at).link()).ok());
        records.for_each(|record| self.mark(record.off.bytes(), record.size()));
        match self.pool.audit(reach) {
            Ok(Usage { leaked: 0, .. }) => {}
            Ok(Usage { leaked, leaked_at, .. }) => {
                let at = leaked_at.unwrap_or(0);
                self.salvaged.lose(None, format!("{leaked} blocks are in use, yet nothing leads to them, and none is a sound record, one at {at:#x}"));
            }
            Err(error) => self.salvaged.lose(None, error),
        }
    }
}

/// What may be lost in a pool that cannot be opened because of `flaw`.
fn meaning(flaw: &Flaw) -> String {
    const TORN: &str = "acknowledged writes may be lost, and others be there in part";
    match flaw {
        Flaw::NoJournal { journal, what, .. } => {
            format!("{TORN}: the pool was in use in domain msync, and what its device may lack is in a journal, of which {} {what}", journal.display())
        }
        Flaw::MachineFailed { .. } => format!("{TORN}: the pool was in use in domain page-cache when the machine went down or the device refused to write"),
        Flaw::Accepted { .. } => format!("{TORN}: the pool was opened although a failure may have torn it"),
        Flaw::DirtyShutdown { before, after, .. } => {
            format!("{TORN}: the pool was in use when its persistent memory failed to save data (dirty shutdowns: {before} before, {after} now)")
        }
        Flaw::Truncated { size, length, .. } => format!("whatever lay behind byte {length} is lost: the pool has {size} bytes, the file ends there"),
        Flaw::NotAPool { magic, .. } => format!("the header is damaged: it begins with {magic:#018x}, and is a pool's for the rest"),
        other => {
            let what = match other {
                Flaw::Checksum { at, .. } => format!("the superblock at byte {at:#x} does not match its checksum"),
                Flaw::Corrupt { at, what } => format!("{what}, at byte {at:#x}"),
                other => other.to_string(),
            };
            format!("{TORN}: the header is damaged, and was read as it may have been earlier ({what})")
        }
    }
}

/// A name for found records, used neither by the pool nor by an earlier such namespace.
fn next_name(roots: &[(String, Root)], taken: &[(Namespace, u64)]) -> String {
    let names = (2..).map(|number| format!("{LOST_AND_FOUND}-{number}"));
    let is_free = |name: &String| roots.iter().all(|(root, _)| root != name) && taken.iter().all(|(namespace, _)| namespace.name() != name);
    std::iter::once(LOST_AND_FOUND.to_owned()).chain(names).find(is_free).expect("there are more numbers than roots")
}
