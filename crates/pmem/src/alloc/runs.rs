//! Free runs of whole slabs: best fit, neighbours merged at once.

use std::collections::{BTreeMap, BTreeSet};

/// Neighbouring slabs that were taken.
#[derive(Clone, Copy)]
pub(super) struct Taken {
    /// The first of them.
    pub(super) start: u32,
    /// Whether nobody has had any of them, or any slab behind them, since the pool was opened.
    pub(super) is_untouched: bool,
}

/// The free runs of a pool. No two of them touch.
pub(super) struct Runs {
    /// Length by number of the first slab.
    by_start: BTreeMap<u32, u32>,
    /// The same, as (length, first slab).
    by_count: BTreeSet<(u32, u32)>,
    /// Number of slabs in all of them.
    total: u32,
    /// Number of slabs in the pool.
    end: u32,
    /// Nobody has had a slab from here on since the pool was opened.
    untaken: u32,
}

impl Runs {
    /// The runs of a pool that has only the header's slab.
    pub(super) fn new() -> Self {
        Self { by_start: BTreeMap::new(), by_count: BTreeSet::new(), total: 0, end: 1, untaken: 1 }
    }

    /// Number of slabs in the pool, free or not.
    pub(super) fn end(&self) -> u32 {
        self.end
    }

    /// Number of free slabs.
    pub(super) fn total(&self) -> u32 {
        self.total
    }

    /// Number of free slabs at the end of the pool.
    pub(super) fn tail(&self) -> u32 {
        self.by_start.last_key_value().filter(|(start, count)| *start + *count == self.end).map_or(0, |(_, count)| *count)
    }

    /// The pool now has `end` slabs; the new ones are free.
    pub(super) fn extend(&mut self, end: u32) {
        if end > self.end {
            self.give(self.end, end - self.end);
            self.end = end;
        }
    }

    /// The pool has `end` slabs; [`Runs::give`] tells, or has told, which of them are free.
    pub(super) fn end_at(&mut self, end: u32) {
        self.end = end;
    }

    /// Takes the first run that begins at `from` or later.
    pub(super) fn take_from(&mut self, from: u32) -> Option<(u32, u32)> {
        let (&start, &count) = self.by_start.range(from..).next()?;
        self.remove(start, count);
        self.untaken = self.untaken.max(start + count);
        Some((start, count))
    }

    /// Takes the run that reaches up to `end`, if there is one; returns its first slab.
    pub(super) fn take_before(&mut self, end: u32) -> Option<u32> {
        let (&start, &count) = self.by_start.range(..end).next_back()?;
        (start + count == end).then(|| self.remove(start, count))?;
        self.untaken = self.untaken.max(end);
        Some(start)
    }

    /// Takes `count` slabs: from the shortest run that is long enough, the first of that length.
    pub(super) fn take(&mut self, count: u32) -> Option<Taken> {
        let (length, start) = *self.by_count.range((count, 0)..).next()?;
        self.remove(start, length);
        if length > count {
            self.insert(start + count, length - count);
        }
        let is_untouched = start >= self.untaken;
        self.untaken = self.untaken.max(start + count);
        Some(Taken { start, is_untouched })
    }

    /// Gives back `count` slabs from `start`, which are not free.
    pub(super) fn give(&mut self, start: u32, count: u32) {
        let (mut start, mut count) = (start, count);
        if let Some((&before, &length)) = self.by_start.range(..start).next_back()
            && before + length == start
        {
            self.remove(before, length);
            (start, count) = (before, length + count);
        }
        if let Some(&length) = self.by_start.get(&(start + count)) {
            self.remove(start + count, length);
            count += length;
        }
        self.insert(start, count);
    }

    /// The same for slabs that somebody has used.
    pub(super) fn give_used(&mut self, start: u32, count: u32) {
        // They had other owners before they came here, if they were bare, or were in use when the pool was opened.
        self.untaken = self.untaken.max(start + count);
        self.give(start, count);
    }

    /// The runs in order: first slab and length.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.by_start.iter().map(|(start, count)| (*start, *count))
    }

    fn insert(&mut self, start: u32, count: u32) {
        self.by_start.insert(start, count);
        self.by_count.insert((count, start));
        self.total += count;
    }

    fn remove(&mut self, start: u32, count: u32) {
        self.by_start.remove(&start);
        self.by_count.remove(&(count, start));
        self.total -= count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn runs_agree_with_a_plain_map_of_slabs(steps in proptest::collection::vec((any::<bool>(), 1u32..9, any::<proptest::sample::Index>()), 0..80)) {
            let mut runs = Runs::new();
            runs.extend(24);
            let mut free = [true; 24];
            free[0] = false;
            let (mut taken, mut untaken): (Vec<(u32, u32)>, u32) = (Vec::new(), 1);
            for (take, count, which) in steps {
                if take {
                    let longest = free.split(|free| !free).map(<[bool]>::len).max().unwrap_or(0);
                    let found = runs.take(count);
                    prop_assert_eq!(found.is_some(), longest >= count as usize);
                    if let Some(Taken { start, is_untouched }) = found {
                        prop_assert!(free[start as usize..][..count as usize].iter().all(|free| *free));
                        prop_assert_eq!(is_untouched, start >= untaken);
                        untaken = untaken.max(start + count);
                        free[start as usize..][..count as usize].fill(false);
                        taken.push((start, count));
                    }
                } else if !taken.is_empty() {
                    let (start, count) = taken.swap_remove(which.index(taken.len()));
                    runs.give(start, count);
                    free[start as usize..][..count as usize].fill(true);
                }
                let listed: Vec<_> = runs.iter().collect();
                prop_assert!(listed.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0), "runs touch: {:?}", listed);
                prop_assert_eq!(listed.iter().map(|run| run.1).sum::<u32>(), runs.total());
                prop_assert_eq!(runs.total() as usize, free.iter().filter(|free| **free).count());
            }
        }
    }
}
