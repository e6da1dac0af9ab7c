//! Scans, see [`crate::scan`].

use super::Ever;
use super::directory::Number;
use super::leaf::{Descriptor, Leaf, Place};
use super::order::Sorted;
use super::structure::differ;
use crate::latch::{Appending, OUTRUN, Restart, until_done};
use crate::record::Record;
use crate::scan::{AHEAD, Behind, LeafRead, scan_leaves, scan_target};
use crate::selective::leaf::{self, Placed};
use crate::selective::router::{Fences, Route, Router, Target};
use crate::{Direction, Error, Key};
use everleaf_pmem::vector::Wide;
use everleaf_pmem::{Medium, probe};
use std::borrow::Borrow;
use std::cell::Cell;
use std::num::NonZeroU64;
use std::ops::{Bound, ControlFlow};

/// What a scan collects of a leaf.
pub(super) trait Gathered: Sized {
    /// For a slot whose head is not needed, because its key is in the record.
    fn of(slot: usize, value: NonZeroU64) -> Self;

    /// Moves sorted entries to `to`, which is empty.
    fn take(sorted: &mut Vec<Placed>, to: &mut Vec<Self>);

    fn entry(&self) -> leaf::Entry;
}

impl Gathered for Placed {
    #[inline(always)]
    fn of(slot: usize, value: NonZeroU64) -> Self {
        Self { entry: leaf::Entry { head: 0, value }, slot }
    }

    fn take(sorted: &mut Vec<Placed>, to: &mut Vec<Self>) {
        std::mem::swap(sorted, to);
    }

    #[inline(always)]
    fn entry(&self) -> leaf::Entry {
        self.entry
    }
}

/// The value alone, for callers that read keys themselves, if keys are in records.
impl Gathered for NonZeroU64 {
    #[inline(always)]
    fn of(_: usize, value: NonZeroU64) -> Self {
        value
    }

    fn take(sorted: &mut Vec<Placed>, to: &mut Vec<Self>) {
        to.extend(sorted.iter().map(|placed| placed.entry.value));
    }

    #[inline(always)]
    fn entry(&self) -> leaf::Entry {
        leaf::Entry { head: 0, value: *self }
    }
}

impl<K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize, const FANOUT: usize> Ever<K, M, LINES, LEAVES, FANOUT> {
    /// Calls `visit` for the entries from a bound on, as [`scan_leaves`] does.
    pub(super) fn scan_entries<T: Gathered>(
        &self,
        from: Bound<&K>,
        direction: Direction,
        visit: impl FnMut(&[T], usize, &mut K::Owned) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        // The way to the next leaf, as long as that is under the same node, and the node has not changed.
        let next = Cell::new(None);
        let mut sorted = Vec::new();
        let read = |from: &Bound<K::Owned>, found: &mut Vec<T>| {
            let (mut start, mut failures) = (next.take(), 0);
            let (leaf, beside) = until_done(|| {
                let outcome = self.read_leaf(scan_target(from, direction), start, direction, failures >= OUTRUN, &mut sorted, found);
                if outcome.is_err() {
                    failures += 1;
                    // The leaf may have changed without the way: a leaf is given up after its node has changed.
                    start = start.filter(|route| self.router.validate(route).is_ok());
                }
                outcome
            });
            next.set(beside);
            leaf
        };
        let ask = |left| match next.get() {
            Some(next) if left > AHEAD => self.prefetch_leaf(&next),
            Some(next) => self.prefetch_records(&next, direction),
            None => {}
        };
        scan_leaves(&self.pool, from, direction, T::entry, read, ask, visit)
    }

    /// Reads a whole leaf in the order of its keys. Returns what a scan learns of it, and the way to the leaf beside it. `keeps_out`: keeps writers out
    /// meanwhile.
    #[expect(clippy::type_complexity, reason = "an attempt, and what it has found")]
    fn read_leaf<T: Gathered>(
        &self,
        target: Target<'_, K>,
        start: Option<Route>,
        direction: Direction,
        keeps_out: bool,
        sorted: &mut Vec<Placed>,
        found: &mut Vec<T>,
    ) -> Result<(Result<LeafRead<K>, Error>, Option<Route>), Restart> {
        let is_first = start.is_none();
        let route = match (start, target) {
            (Some(route), _) => route,
            (None, Target::At(key)) => self.router.seek(Wide::get(), key)?.route(),
            (None, beside) => self.router.find(beside)?,
        };
        let (leaf, descriptor) = self.leaf(route.leaf)?;
        let next = self.router.beside(&route, direction);
        // Most scans go on.
        if is_first {
            self.prefetch(&route);
        }
        if let Some(next) = &next {
            if K::WHOLE {
                // Reading a leaf of integers takes less time than fetching the next one, so each is prefetched two leaves ahead.
                if is_first {
                    self.prefetch(next);
                }
                self.router.beside(next, direction).iter().for_each(|after| self.prefetch(after));
            } else if let Ok((_, descriptor)) = self.leaf(next.leaf) {
                // The rest is prefetched when the scan comes closer.
                probe::prefetch(descriptor);
                self.known.orders.prefetch_order(next.leaf);
            }
        }
        let version = if keeps_out { descriptor.latch().read_idle() } else { descriptor.latch().read() };
        let Ok(version) = version else {
            // Not on a way that was stale when the latch was read.
            self.router.validate(&route)?;
            return Err(self.wake(route.leaf));
        };
        let held = if keeps_out {
            self.router.validate(&route)?;
            Some(descriptor.latch().append_from(version)?)
        } else {
            None
        };
        found.clear();
        let wide = Wide::get();
        // Integers are in the leaf: sorting them takes less time than reading an order.
        let order = if K::WHOLE { None } else { self.order_of(&route, leaf, descriptor, version) };
        // Found by its hash. Damage is met in the search by order.
        let sought = match target {
            Target::At(key) | Target::Below(key) if is_first && !K::WHOLE => Some((key, Place::of::<LINES>(key.token()))),
            _ => None,
        };
        let outcome = match order {
            Some(order) => {
                found.extend(order.slots().filter_map(|slot| Some(T::of(slot, leaf.value(slot)?))));
                // Prefetches all the first records at once, rather than that of the sought key before the others.
                if let (Target::At(_), Some((_, place))) = (target, sought)
                    && let Some(slot) = descriptor.likely::<LINES>(wide, place)
                {
                    self.prefetch_in_order(leaf, &order, direction, |before| before != slot);
                }
                Ok(())
            }
            None => {
                // Of integers, no byte is skipped.
                let fences = if K::WHOLE { None } else { Some(self.router.fences(&route)?) };
                let outcome = self.sort(leaf, descriptor.occupied::<LINES>(wide), fences.as_ref().map_or(0, Fences::skip), sorted);
                if let Some(fences) = fences.filter(|_| outcome.is_ok()) {
                    self.teach(route.leaf, descriptor, version, &fences, sorted);
                }
                T::take(sorted, found);
                outcome
            }
        };
        let behind = match next {
            Some(_) => {
                self.router.validate(&route)?;
                Behind::Known
            }
            None => self.router.bound_behind(&route, direction)?.into(),
        };
        let sought = sought.and_then(|(key, place)| descriptor.find(wide, &self.pool, leaf, key, place).ok()?).map(|(_, value)| value);
        descriptor.latch().validate(version)?;
        held.into_iter().for_each(Appending::release_unchanged);
        Ok((outcome.map(|()| LeafRead { is_beside: !is_first, behind, sought }), next))
    }

    /// The slots of a leaf in the order of its keys, which are in records, if that can be told without reading those.
    fn order_of(&self, route: &Route, leaf: &Leaf<LINES>, descriptor: &Descriptor, version: u64) -> Option<Sorted> {
        self.known.orders.at(route.leaf, version).or_else(|| {
            let (sorted, has_ties) = self.sort_by_heads(route.leaf, leaf, descriptor.occupied::<LINES>(Wide::get()))?;
            // On a stale way the leaf may be one that is just being made, at the version with which it will live.
            if self.router.validate(route).is_ok() && descriptor.latch().validate_idle(version).is_ok() {
                self.known.orders.leave(route.leaf, version, &sorted);
                if has_ties {
                    self.frame_anew(route, leaf, descriptor, version, &sorted);
                }
            }
            Some(sorted)
        })
    }

    /// Makes a new frame for a leaf that has equal heads, if that tells its keys apart, and nothing has changed since they were sorted. The reader of the leaf
    /// then starts again, and finds the order.
    #[cold]
    fn frame_anew(&self, route: &Route, leaf: &Leaf<LINES>, descriptor: &Descriptor, version: u64, sorted: &Sorted) {
        let placed = sorted.slots().filter_map(|slot| Some(Placed { entry: leaf::Entry { head: 0, value: leaf.value(slot)? }, slot }));
        let placed: Vec<Placed> = placed.collect();
        let Ok(fences) = self.router.fences(route) else { return };
        let found = self.frame_of(fences.low.borrow(), fences.high.as_ref().map(Borrow::borrow), &placed);
        if let Ok((frame, heads)) = found
            && differ(&heads)
            && let Ok(lock) = descriptor.latch().lock_from(version)
        {
            self.known.orders.set(route.leaf, &frame, heads.into_iter());
            self.known.orders.leave(route.leaf, lock.change().to, sorted);
        }
    }

    /// Sorts slots of a leaf, which count, by their keys, if it has heads. Keys are read where heads are equal. Also returns whether any are.
    pub(super) fn sort_by_heads(&self, number: Number, leaf: &Leaf<LINES>, slots: u64) -> Option<(Sorted, bool)> {
        let found = self.known.orders.by_heads(number, slots)?;
        let tied = found.ties();
        if tied == 0 {
            return Some((Sorted::of(found.slots().map(|(_, slot)| slot)), false));
        }
        self.prefetch_heads(leaf, tied, 0);
        let placed = found.slots().filter_map(|(head, slot)| Some(Placed { entry: leaf::Entry { head: head.into(), value: leaf.value(slot)? }, slot }));
        let mut placed: Vec<Placed> = placed.collect();
        leaf::sort_by_entry::<K, M, _>(&self.pool, &mut placed, |placed| placed.entry).ok()?;
        Some((Sorted::of(placed.iter().map(|placed| placed.slot)), true))
    }

    /// Leaves to other threads what was learnt from the keys of a leaf, found on a valid way, if nothing has changed since.
    fn teach(&self, number: Number, descriptor: &Descriptor, version: u64, fences: &Fences<K>, sorted: &[Placed]) {
        let orders = &self.known.orders;
        if descriptor.latch().validate_idle(version).is_ok() {
            orders.leave(number, version, &Sorted::of(sorted.iter().map(|placed| placed.slot)));
        }
        if !orders.is_framed(number)
            && let Ok((frame, heads)) = self.frame_of(fences.low.borrow(), fences.high.as_ref().map(Borrow::borrow), sorted)
            && let Ok(appending) = descriptor.latch().append_from(version)
        {
            orders.set(number, &frame, heads.into_iter());
            appending.release_unchanged();
        }
    }

    /// Prefetches a leaf to which a scan will come, and the heads of its keys if its order is not known.
    fn prefetch_leaf(&self, route: &Route) {
        if !K::WHOLE
            && let Ok((leaf, descriptor)) = self.leaf(route.leaf)
        {
            probe::prefetch_lines(leaf);
            if descriptor.latch().try_read().is_ok_and(|version| !self.known.orders.is_at(route.leaf, version)) {
                self.known.orders.prefetch(route.leaf);
            }
        }
    }

    /// Prefetches the records with which a scan of a leaf begins, if no thread holds it; or the beginnings of all, if their order cannot be told.
    fn prefetch_records(&self, route: &Route, direction: Direction) {
        if !K::WHOLE
            && let Ok((leaf, descriptor)) = self.leaf(route.leaf)
            && let Ok(version) = descriptor.latch().try_read()
        {
            let Some(order) = self.order_of(route, leaf, descriptor, version) else {
                return self.prefetch_heads(leaf, descriptor.occupied::<LINES>(Wide::get()), 0);
            };
            self.prefetch_in_order(leaf, &order, direction, |_| false);
        }
    }

    /// Prefetches the first records of a leaf, after skipping the slots that come before.
    #[inline(always)]
    fn prefetch_in_order(&self, leaf: &Leaf<LINES>, order: &Sorted, direction: Direction, is_before: impl Fn(usize) -> bool) {
        let ask = |slot| leaf.value(slot).iter().for_each(|value| Record::prefetch(&self.pool, value.get()));
        match direction {
            Direction::Forward => order.slots().skip_while(|slot| is_before(*slot)).take(AHEAD).for_each(ask),
            Direction::Reverse => order.slots().rev().skip_while(|slot| is_before(*slot)).take(AHEAD).for_each(ask),
        }
    }

    /// Prefetches all of a leaf.
    fn prefetch(&self, route: &Route) {
        if let Ok((leaf, descriptor)) = self.leaf(route.leaf) {
            probe::prefetch(descriptor);
            probe::prefetch_lines(leaf);
            if !K::WHOLE {
                self.known.orders.prefetch(route.leaf);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Version;
    use crate::registry::Recovery;
    use crate::{OrderedIndex, Write};
    use everleaf_pmem::{Hardware, Pool, PoolOptions};
    use std::collections::BTreeMap;

    type Index = Ever<[u8], Hardware, 14, 68, 112>;

    /// The value word in an index for a record of this key.
    fn written(pool: &Pool<Hardware>, key: &[u8]) -> NonZeroU64 {
        let record = pool.seal(Record::write(pool, key, b"", Version::default()).unwrap());
        NonZeroU64::new(record.release().link()).unwrap()
    }

    /// From present and absent keys, in leaves whose order is not known, and again when it is known.
    #[test]
    fn a_scan_begins_where_its_bound_is() {
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 8 << 20, ..PoolOptions::default() }).unwrap();
        let index = Index::create(&pool, "index", "ever").unwrap();
        let key = |number: u32| number.to_be_bytes();
        let count = if cfg!(miri) { 70 } else { 1_000 };
        let mut model = BTreeMap::new();
        for number in (0..count).map(|at| at * 619 % count * 2 + 1) {
            let value = written(&pool, &key(number));
            assert_eq!(index.insert(&key(number), value).unwrap(), None);
            model.insert(key(number), value);
        }
        let first = |direction, from: Bound<&[u8]>| {
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            index.scan(from, direction, &mut |key, _| {
                keys.push(<[u8; 4]>::try_from(key).unwrap());
                if keys.len() < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            index.scan_values(from, direction, &mut |links, count| {
                values.extend_from_slice(&links[..count.min(3 - values.len())]);
                if values.len() < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            Ok::<_, Error>((keys, values))
        };
        for _ in 0..2 {
            for bound in (0..=count * 2).map(key) {
                for from in [Bound::Included(bound), Bound::Excluded(bound)] {
                    let ascending = model.range((from, Bound::Unbounded)).take(3).map(|(key, value)| (*key, *value)).unzip();
                    let descending = model.range((Bound::Unbounded, from)).rev().take(3).map(|(key, value)| (*key, *value)).unzip();
                    let from = from.as_ref().map(|key| &key[..]);
                    assert_eq!(first(Direction::Forward, from).unwrap(), ascending, "{from:?}");
                    assert_eq!(first(Direction::Reverse, from).unwrap(), descending, "{from:?}");
                }
            }
        }
    }

    /// From a bound behind all keys of a leaf, which is divided before the next one is read.
    #[test]
    fn a_scan_whose_way_is_lost_keeps_to_its_bound() {
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 32 << 20, ..PoolOptions::default() }).unwrap();
        let index = Index::create(&pool, "index", "ever").unwrap();
        let put = |key: &[u8]| _ = index.insert(key, written(&pool, key)).unwrap();
        let key = |number: u32| number.to_be_bytes();
        let count = if cfg!(miri) { 100 } else { 1_000 };
        (0..count).for_each(|number| put(&key(2 * number)));
        let mut lost = 0;
        for direction in [Direction::Forward, Direction::Reverse] {
            for number in (0..2 * count).skip(1).step_by(2) {
                let (bound, mut is_added, mut visited) = (key(number), false, Vec::new());
                let visit = &mut |links: &[NonZeroU64], to_visit: usize| {
                    if links.is_empty() && !is_added {
                        is_added = true;
                        lost += 1;
                        // Not beyond the bound, and so many that leaves are divided.
                        let before = if direction == Direction::Forward { key(number - 1) } else { bound };
                        (0..60).for_each(|more| put(&[&before[..], &[more]].concat()));
                    }
                    for link in &links[..to_visit] {
                        let mut found = Vec::new();
                        Record::read(&pool, link.get()).unwrap().copy_key(&mut found);
                        visited.push(found);
                    }
                    if visited.len() < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                };
                index.scan_values(Bound::Excluded(&bound[..]), direction, visit).unwrap();
                let is_beyond = |found: &Vec<u8>| if direction == Direction::Forward { found[..] > bound[..] } else { found[..] < bound[..] };
                assert!(visited.iter().all(is_beyond), "{direction:?} from {bound:?}: {visited:?}");
            }
        }
        assert!(lost > 0 || cfg!(miri));
    }

    /// The damaged key, sorted behind all others of its leaf, is above all keys of the next one.
    #[test]
    fn a_damaged_key_hides_no_leaf() {
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 32 << 20, ..PoolOptions::default() }).unwrap();
        let count: u32 = if cfg!(miri) { 200 } else { 1_000 };
        let put = |index: &Index, key: [u8; 4], in_record: [u8; 4]| _ = index.upsert(&key, written(&pool, &in_record)).unwrap();
        let index = Index::create(&pool, "index", "ever").unwrap();
        (0..count).map(u32::to_be_bytes).for_each(|key| put(&index, key, key));
        index.close().unwrap();
        drop(index);
        let index = Index::open(&pool, "index", "ever", &Recovery { reach: None, trace: None, threads: 1 }).unwrap();
        put(&index, (count / 3).to_be_bytes(), [0xff; 4]);
        index.get(&(count / 3).to_be_bytes()).expect_err("a key whose record is another's");
        index.remove(&(count / 3).to_be_bytes()).expect_err("likewise");
        for direction in [Direction::Forward, Direction::Reverse] {
            let mut found = 0;
            let visit = &mut |_: &[u8], _| {
                found += 1;
                ControlFlow::Continue(())
            };
            index.scan(Bound::Unbounded, direction, visit).unwrap();
            assert_eq!(found, count, "{direction:?}");
        }
    }

    /// By heads, and by keys where there are no heads or equal ones, while leaves are divided, merged and opened again.
    #[test]
    fn leaves_are_in_order_however_much_heads_tell() {
        let count: u64 = if cfg!(miri) { 200 } else { 4_000 };
        let mixed = |number: u64| (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        type Family<'a> = (&'a str, &'a dyn Fn(u64) -> Vec<u8>);
        let families: [Family<'_>; 5] = [
            ("random", &|number| mixed(number).to_be_bytes().to_vec()),
            ("decimal", &|number| format!("user{:019}", mixed(number)).into_bytes()),
            ("ascending", &|number| format!("{number:012}").into_bytes()),
            ("of one head", &|number| [&b"many"[..], &[0; 13], &mixed(number).to_be_bytes()[..]].concat()),
            ("of all lengths", &|number| mixed(number).to_be_bytes()[..(1 + number % 8) as usize].to_vec()),
        ];
        for (name, key) in families {
            let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 32 << 20, ..PoolOptions::default() }).unwrap();
            let mut index = Index::create(&pool, "index", "ever").unwrap();
            let mut model = BTreeMap::new();
            let put = |index: &Index, model: &mut BTreeMap<Vec<u8>, NonZeroU64>, number| {
                let key = key(number);
                let value = written(&pool, &key);
                assert_eq!(index.upsert(&key, value).unwrap(), model.insert(key, value), "{name}");
            };
            let expect = |index: &Index, model: &BTreeMap<Vec<u8>, NonZeroU64>| {
                index.check().unwrap();
                let mut found = Vec::new();
                index.scan(Bound::Unbounded, Direction::Forward, &mut |key, value| {
                    found.push((key.to_vec(), value));
                    ControlFlow::Continue(())
                })?;
                assert!(found.iter().map(|(key, value)| (key, value)).eq(model), "{name}");
                Ok::<_, Error>(())
            };
            let framed = |index: &Index| {
                let (mut told, mut all) = (0, 0);
                index.router.check(&mut |_, leaf| {
                    let (_, descriptor) = index.leaf(leaf).unwrap();
                    let heads = index.known.orders.by_heads(leaf, descriptor.occupied::<14>(Wide::get()));
                    told += usize::from(heads.is_some_and(|heads| heads.ties() == 0));
                    all += 1;
                })?;
                Ok::<_, &str>((told, all))
            };
            (0..count).for_each(|number| put(&index, &mut model, number));
            let (told, all) = framed(&index).unwrap();
            assert!(told * 4 >= all * 3, "{name}: nobody has scanned, and heads tell keys apart in {told} of {all} leaves");
            expect(&index, &model).unwrap();
            (0..count).step_by(3).for_each(|number| put(&index, &mut model, number));
            for number in (0..count).filter(|number| number % 7 > 0) {
                assert_eq!(index.remove(&key(number)).unwrap(), model.remove(&key(number)), "{name}");
            }
            expect(&index, &model).unwrap();
            (count..count * 3 / 2).for_each(|number| put(&index, &mut model, number));
            expect(&index, &model).unwrap();
            drop(index);
            index = Index::open(&pool, "index", "ever", &Recovery { reach: None, trace: None, threads: 1 }).unwrap();
            assert_eq!(framed(&index).unwrap().0, 0, "{name}: nobody knows");
            expect(&index, &model).unwrap();
            let (told, all) = framed(&index).unwrap();
            assert!(told * 4 >= all * 3, "{name}: scanned once, and heads tell keys apart in {told} of {all} leaves");
            (0..count).for_each(|number| put(&index, &mut model, number));
            expect(&index, &model).unwrap();
        }
    }

    thread_local! {
        /// Called whenever a value has been read.
        static MEANWHILE: Cell<Option<&'static dyn Fn()>> = const { Cell::new(None) };
    }

    struct Disturbed(NonZeroU64);

    impl Gathered for Disturbed {
        fn of(_: usize, value: NonZeroU64) -> Self {
            MEANWHILE.get().into_iter().for_each(|act| act());
            Self(value)
        }

        fn take(sorted: &mut Vec<Placed>, to: &mut Vec<Self>) {
            to.extend(sorted.iter().map(|placed| Self::of(placed.slot, placed.entry.value)));
        }

        fn entry(&self) -> leaf::Entry {
            leaf::Entry { head: 0, value: self.0 }
        }
    }

    /// A writer comes to the leaf whenever it has been read.
    #[test]
    fn a_scan_that_is_outrun_keeps_writers_out() {
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 8 << 20, ..PoolOptions::default() }).unwrap();
        let index: &'static Index = Box::leak(Box::new(Index::create(&pool, "index", "ever").unwrap()));
        index.insert(b"key", written(&pool, b"key")).unwrap();
        let times = Cell::new(0);
        MEANWHILE.set(Some(Box::leak(Box::new(move || {
            times.set(times.get() + 1);
            assert!(times.get() < 1000, "outrun for ever");
            drop(index.leaf(index.router.find(Target::Last).unwrap().leaf).unwrap().1.latch().try_lock());
        }))));
        let mut visited = 0;
        let visit = |_: &[Disturbed], count: usize, _: &mut Vec<u8>| {
            visited += count;
            Ok(ControlFlow::Continue(()))
        };
        index.scan_entries(Bound::Unbounded, Direction::Forward, visit).unwrap();
        MEANWHILE.set(None);
        assert_eq!(visited, 1);
        index.insert(b"other", written(&pool, b"other")).unwrap();
        index.check().unwrap();
    }

    /// The last range has no end, and the first begins with nothing; what is read between two writes, or nothing at all.
    #[test]
    fn an_order_outlasts_what_is_appended() {
        let count: u64 = if cfg!(miri) { 200 } else { 4_000 };
        for (prefix, every) in ["user:", "a-prefix-that-takes-more-words:"].into_iter().flat_map(|prefix| [1, 3, u64::MAX].map(|every| (prefix, every))) {
            let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 32 << 20, ..PoolOptions::default() }).unwrap();
            let index = Index::create(&pool, "index", "ever").unwrap();
            let (mut lost, mut tied) = (0, 0);
            for number in 0..count {
                let key = format!("{prefix}{number:08}").into_bytes();
                index.insert(&key, written(&pool, &key)).unwrap();
                let last = index.router.find(Target::Last).unwrap().leaf;
                let (_, descriptor) = index.leaf(last).unwrap();
                lost += u64::from(!index.known.orders.is_at(last, descriptor.latch().read_idle().unwrap()));
                let heads = index.known.orders.by_heads(last, descriptor.occupied::<14>(Wide::get()));
                tied += u64::from(heads.is_none_or(|heads| heads.ties() != 0));
                if number % every == every - 1 {
                    let latest = &mut |found: &[u8], _| {
                        assert_eq!(found, key);
                        ControlFlow::Break(())
                    };
                    index.scan(Bound::Unbounded, Direction::Reverse, latest).unwrap();
                }
            }
            index.check().unwrap();
            // Until a thread scans the first leaf, or divides it, it has no heads.
            let allowed = 14 * 4 + if every < count { count / 40 } else { count / 10 };
            assert!(lost < allowed && tied < allowed, "{prefix}, scanned every {every}: lost {lost} of {count}, with equal heads {tied}");
        }
    }

    /// Number of leaves whose order is known at the version of their latch, and number of the others.
    fn known(index: &Index) -> (usize, usize) {
        let (mut known, mut unknown) = (0, 0);
        let mut count = |_: &Fences<[u8]>, number| {
            let version = index.leaf(number).unwrap().1.latch().read_idle().unwrap();
            *if index.known.orders.is_at(number, version) { &mut known } else { &mut unknown } += 1;
        };
        index.router.check(&mut count).unwrap();
        // This compares all known orders with the keys.
        index.check().unwrap();
        (known, unknown)
    }

    /// By writes of every kind, singly and in batches.
    #[test]
    fn writers_keep_orders_up_to_date() {
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 64 << 20, ..PoolOptions::default() }).unwrap();
        let index = Index::create(&pool, "index", "ever").unwrap();
        let count: u64 = if cfg!(miri) { 300 } else { 6_000 };
        let key = |number: u64| (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let expect = |what, all_but| {
            let (known, unknown) = known(&index);
            assert!(unknown * all_but <= known, "{what}: {known} of {}", known + unknown);
        };
        (0..count).for_each(|number| _ = index.insert(&key(number), written(&pool, &key(number))).unwrap());
        expect("inserts and divisions", 50);
        (0..count).step_by(3).for_each(|number| _ = index.update(&key(number), written(&pool, &key(number))).unwrap());
        expect("updates", 50);
        (0..count).step_by(5).for_each(|number| _ = index.remove(&key(number)).unwrap());
        expect("removals", 50);
        for (round, numbers) in (0..count * 2).collect::<Vec<_>>().chunks(200).enumerate() {
            let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
            let write = |number: &u64, key| match (number + round as u64) % 4 {
                0 => Write::Remove,
                1 => Write::Update(written(&pool, key)),
                _ => Write::Upsert(written(&pool, key)),
            };
            let writes: Vec<_> = numbers.iter().zip(&keys).map(|(number, key)| (&key[..], write(number, key))).collect();
            index.apply(&writes, &mut Vec::new()).unwrap();
        }
        expect("batches", 50);
        (0..count * 2).for_each(|number| _ = index.upsert(&key(number), written(&pool, &key(number))).unwrap());
        (0..count * 2).filter(|number| number % 8 > 0).for_each(|number| _ = index.remove(&key(number)).unwrap());
        index.check().unwrap();
        (0..count * 2).for_each(|number| _ = index.upsert(&key(number), written(&pool, &key(number))).unwrap());
        expect("and what follows merges", 1);
    }

    /// Each scan finds all keys that are never removed, in order, while others come and go.
    #[test]
    fn scans_among_writers_are_complete_and_in_order() {
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 256 << 20, ..PoolOptions::default() }).unwrap();
        let index = Index::create(&pool, "index", "ever").unwrap();
        let (count, rounds): (u64, u64) = if cfg!(miri) { (100, 1) } else { (3_000, 6) };
        let key = |number: u64| (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let put = |number| _ = index.upsert(&key(number), written(&pool, &key(number))).unwrap();
        (0..count).step_by(3).for_each(put);
        let steady: Vec<[u8; 8]> = BTreeMap::from_iter((0..count).step_by(3).map(|number| (key(number), ()))).into_keys().collect();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers = [1, 2].map(|mine| {
                let (index, pool) = (&index, &pool);
                scope.spawn(move || {
                    for round in 0..rounds {
                        (mine..count).step_by(3).for_each(put);
                        (0..count).step_by(3).filter(|number| number % 2 == mine % 2).for_each(put);
                        let keys: Vec<_> = (mine..count).step_by(3).map(key).collect();
                        if round % 2 == 0 {
                            keys.iter().for_each(|key| _ = index.remove(key).unwrap());
                            continue;
                        }
                        let writes: Vec<_> = keys.iter().map(|key| (&key[..], Write::Upsert(written(pool, key)))).collect();
                        index.apply(&writes, &mut Vec::new()).unwrap();
                        let writes: Vec<_> = keys.iter().map(|key| (&key[..], Write::Remove)).collect();
                        index.apply(&writes, &mut Vec::new()).unwrap();
                    }
                })
            });
            let scanners = [Direction::Forward, Direction::Reverse].map(|direction| {
                let (index, steady, is_over) = (&index, &steady, &is_over);
                scope.spawn(move || {
                    while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                        let mut found = Vec::new();
                        let visit = &mut |key: &[u8], _| {
                            found.push(<[u8; 8]>::try_from(key).unwrap());
                            ControlFlow::Continue(())
                        };
                        index.scan(Bound::Unbounded, direction, visit).unwrap();
                        if direction == Direction::Reverse {
                            found.reverse();
                        }
                        assert!(found.is_sorted_by(|left, right| left < right));
                        let mut found = found.iter();
                        assert!(steady.iter().all(|key| found.any(|other| other == key)), "{direction:?}");
                    }
                })
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            scanners.into_iter().for_each(|scanner| scanner.join().unwrap());
        });
        index.check().unwrap();
    }
}
