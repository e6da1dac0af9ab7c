//! Shortcuts: for integers, a table from the upper bits of a key to the lowest node that the last search for such a key came to.
//!
//! An entry is a hint, which any thread stores and reads at any time. It may name a node that has been split since, that serves another purpose, or that never
//! existed. The node itself tells whether it is the right one. So only the searches that the table has not helped keep it up to date.
//!
//! An entry also names the part of the node in which the search found its slot. If there are so many nodes that their first lines are not in a near cache, a
//! search prefetches that part along with the first line, which would have named it. (Searches for several keys wait for the first lines together.)
//!
//! The table has several entries for each node, and covers the keys up to the largest low of a leaf. If keys are spread so unevenly that entries name few of
//! the nodes, the table does not pay, and is not used until there are more nodes.

use crate::key::SPREAD;
use crossbeam_utils::CachePadded;
use everleaf_pmem::schedule::atomic::{AtomicU32, AtomicU64};
use everleaf_pmem::{HANDLE_BITS, Handles};
use std::sync::atomic::Ordering::Relaxed;

/// Entries for a node, at least, where nodes are near and where they are far. The more there are, the fewer of them name the wrong one of two neighbours; but a
/// table that is not in a near cache itself loses by them.
const SHARE: usize = 16;
const FAR_SHARE: usize = 8;
const SIZE_MIN: usize = 64;
/// The bits of an entry that hold the handle of a node. Those above hold the part.
const NODE: u32 = (1 << HANDLE_BITS) - 1;
/// Notes between two looks at whether the table is large enough.
const FITTING: u64 = 16;
/// Notes between two looks at what it is worth.
const TRIAL: u64 = 1 << 16;
/// The bit of a state that says: a table is in use.
const IN_USE: u64 = 1 << 8;
/// The bit of a state that says: nodes are far.
const IS_FAR: u64 = 1 << 9;
/// The number of nodes from which they are far: their first lines are not in a near cache.
const FAR: u32 = 1 << 12;

/// See the module documentation.
pub(super) struct Shortcuts {
    /// Each chunk of this arena is a table.
    entries: Handles<AtomicU32, SIZE_MIN>,
    /// The chunk in use, and how far a key is shifted to find its place there. 0 if none is in use: before the first note, after a trial,
    /// and for ever once tables are refused.
    state: AtomicU64,
    /// In lines of its own, since all searches read the state.
    account: CachePadded<Account>,
}

/// What determines the state.
#[derive(Default)]
struct Account {
    /// At least as large as the largest low.
    reach: AtomicU64,
    notes: AtomicU64,
    /// The number of the chunk that was chosen last, plus one; 0 for none, [`NEVER`] if there is to be no table.
    chosen: AtomicU32,
}

/// No chunk is chosen or will be.
const NEVER: u32 = u32::MAX;

/// Whether searches for a key are counted while there is no table: one key in 64.
#[inline(always)]
fn is_of_the_few(key: u64) -> bool {
    key.wrapping_mul(SPREAD) >> 58 == 0
}

/// A table of shortcuts.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    entries: &'a Handles<AtomicU32, SIZE_MIN>,
    state: u64,
}

/// What a shortcut names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    /// The node that a key may belong to.
    pub(super) node: u32,
    /// The part of it to prefetch at once.
    pub(super) part: Option<usize>,
}

impl Table<'_> {
    #[inline(always)]
    pub(super) fn find(self, key: u64) -> Named {
        let entry = self.entry(key).load(Relaxed);
        Named { node: entry & NODE, part: (self.state & IS_FAR != 0).then_some((entry >> HANDLE_BITS) as usize) }
    }

    #[inline(always)]
    fn entry(&self, key: u64) -> &AtomicU32 {
        // Keys beyond the reach get any entry.
        self.entries.get((self.state >> 32) as u32 | (key >> (self.state % u64::from(u64::BITS))) as u32)
    }
}

impl Shortcuts {
    pub(super) fn new() -> Self {
        Self { entries: Handles::new(), state: AtomicU64::new(0), account: CachePadded::default() }
    }

    /// The table in use, if there is one.
    #[inline(always)]
    pub(super) fn table(&self) -> Option<Table<'_>> {
        let state = self.state.load(Relaxed);
        (state != 0).then_some(Table { entries: &self.entries, state })
    }

    /// There is to be no table.
    pub(super) fn refuse(&mut self) {
        self.account.chosen.set(NEVER);
    }

    /// A low as large as this exists, or is about to.
    pub(super) fn reach(&self, low: u64) {
        let mut reach = self.account.reach.load(Relaxed);
        while low > reach {
            reach = self.account.reach.compare_exchange(reach, low, Relaxed, Relaxed).map_or_else(|found| found, |_| low);
        }
    }

    /// Notes that a search without help has come to this part of this node, one of `nodes`.
    #[inline]
    pub(super) fn note(&self, key: u64, node: u32, part: usize, nodes: impl FnOnce() -> u32) {
        let node = node | (part as u32) << HANDLE_BITS;
        let table = self.table();
        if let Some(table) = table {
            let entry = table.entry(key);
            if entry.load(Relaxed) != node {
                entry.store(node, Relaxed);
            }
        } else {
            // No search has help: only a few of them may write to shared memory.
            let chosen = self.account.chosen.load(Relaxed);
            if chosen == NEVER || chosen != 0 && !is_of_the_few(key) {
                return;
            }
        }
        // Threads may lose each other's notes: only their approximate number matters.
        let notes = self.account.notes.load(Relaxed);
        self.account.notes.store(notes + 1, Relaxed);
        if notes.is_multiple_of(FITTING) {
            self.fit(table.map_or(0, |table| table.state), nodes(), notes % TRIAL == TRIAL - FITTING);
        }
    }

    /// Chooses a table for so many nodes, or gives up the one in use, on trial, if it names less than half of them.
    #[cold]
    fn fit(&self, state: u64, nodes: u32, is_trial: bool) {
        let is_far = nodes >= FAR;
        let chunk = (nodes as usize * if is_far { FAR_SHARE } else { SHARE }).div_ceil(SIZE_MIN).next_power_of_two().ilog2();
        let Some(first) = Handles::<AtomicU32, SIZE_MIN>::handle((SIZE_MIN << chunk) - SIZE_MIN) else { return };
        if state == 0 && self.account.chosen.load(Relaxed) == chunk + 1 {
            return;
        }
        let (reach, size) = (u64::BITS - self.account.reach.load(Relaxed).leading_zeros(), SIZE_MIN.ilog2() + chunk);
        let distance = if is_far { IS_FAR } else { 0 };
        let wanted = u64::from(first) << 32 | distance | IN_USE | u64::from(reach.saturating_sub(size));
        if wanted != state {
            self.entries.get_or_make(first);
            self.account.chosen.store(chunk + 1, Relaxed);
            self.state.store(wanted, Relaxed);
        } else if is_trial {
            let entries = (0..(SIZE_MIN as u32) << chunk).map(|at| self.entries.get(first | at).load(Relaxed) & NODE);
            let mut before = None;
            let named = entries.filter(|node| before.replace(*node) != Some(*node)).count();
            if named < nodes as usize / 2 {
                self.state.store(0, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_found() {
        let shortcuts = Shortcuts::new();
        assert!(shortcuts.table().is_none());
        let nodes = 1000;
        shortcuts.reach(u64::MAX);
        for round in 0..3 {
            for node in 0..nodes {
                shortcuts.note(u64::from(node) << 54 | round, node, 3, || nodes);
            }
        }
        let find = |shortcuts: &Shortcuts, key| shortcuts.table().unwrap().find(key);
        assert!((0..nodes).all(|node| find(&shortcuts, u64::from(node) << 54) == Named { node, part: None }));
        // Small keys get a finer table, but no place out of bounds.
        let shortcuts = Shortcuts::new();
        shortcuts.reach(5000);
        for round in 0..3 {
            (0..100).for_each(|node| shortcuts.note(node * 50 + round, node as u32, 0, || 100));
        }
        assert!((0..100).all(|node| find(&shortcuts, u64::from(node) * 50) == Named { node, part: None }));
        assert!(find(&shortcuts, u64::MAX).node < 100);
    }

    #[test]
    fn parts_are_told_where_there_are_many_nodes() {
        let shortcuts = Shortcuts::new();
        shortcuts.reach(u64::MAX);
        for round in 0..2 {
            (0..64).for_each(|node| shortcuts.note(u64::from(node) << 58 | round, node, node as usize % 7, || FAR));
        }
        let table = shortcuts.table().unwrap();
        assert!((0..64).all(|node| table.find(u64::from(node) << 58) == Named { node, part: Some(node as usize % 7) }));
    }

    #[test]
    fn a_table_that_is_worth_nothing_is_given_up() {
        let shortcuts = Shortcuts::new();
        shortcuts.reach(u64::MAX);
        for note in 0..2 * TRIAL {
            shortcuts.note(note % 1000, (note % 1000) as u32, 0, || 1000);
        }
        assert!(shortcuts.table().is_none());
        let others = (0..2 * TRIAL).filter(|key| !is_of_the_few(*key));
        let notes = shortcuts.account.notes.load(Relaxed);
        others.for_each(|key| shortcuts.note(key, 0, 0, || unreachable!("nobody counts nodes")));
        assert_eq!(shortcuts.account.notes.load(Relaxed), notes, "most searches write nothing that others read");
        for key in (0..2 * TRIAL).filter(|key| is_of_the_few(*key)) {
            shortcuts.note(key, 0, 0, || 3000);
        }
        assert!(shortcuts.table().is_some(), "with more nodes it may be worth something");
    }

    #[test]
    fn a_table_that_is_refused_is_never_made() {
        let mut shortcuts = Shortcuts::new();
        shortcuts.refuse();
        shortcuts.reach(u64::MAX);
        for nodes in [50, 5000] {
            (0..2 * TRIAL).for_each(|note| shortcuts.note(note << 40, note as u32 % nodes, 0, || nodes));
            assert!(shortcuts.table().is_none());
        }
    }
}
