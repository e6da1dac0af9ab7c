//! wB+-Tree's leaves: unsorted entries, switched by one word, with or without a slot array that has their order (Chen and Jin, "Persistent B+-Trees in
//! Non-Volatile Main Memory", PVLDB 8(7), 2015). Inner nodes are in DRAM, as in LB+-Tree's study of them.
//!
//! ```text
//! unit 0          | 1 .. CAPACITY            | the last ARRAY units                                            a unit is 16 bytes
//! bitmap | next   | { head, value } each     | slot array: their number, and their units in the order of keys, a byte each
//! ```
//!
//! | leaf of | with a slot array | without |
//! |---|---|---|
//! | 128 B, for exhaustive checking | 6 entries | 7 |
//! | 256 B | 14 | 15 |
//! | 512 B | 29 | 31 |
//! | 1 KiB | 59 | 63 |
//!
//! Bit i of the bitmap says that unit i holds an entry; bit 0, that the slot array lists just those. The last byte of the bitmap has [check
//! bits](super::with_check), so that no byte of it can change unnoticed. In leaves of 1 KiB there is room for four of them; with bitmaps only, for one, which
//! is bit 0.
//!
//! Invariants, when the leaf's latch is free:
//! 1. an entry counts if the bit of its unit is set; its value is not 0, and no key is in two of them;
//! 2. in a leaf with a slot array, bit 0 is set; in others it means nothing of that kind.
//!
//! # Writing, with a slot array
//!
//! Insert, 4 flushes and 3 fences:
//! 1. bit 0 := 0, persist. The array is in another line than the bitmap, so without this flush a crash could leave the new array, or a part of it, under a
//!    bitmap that calls it valid and does not know the entry.
//! 2. the entry, into a unit whose bit is not set, and the array; flush both, fence. A crash since 1: the bitmap still has the old entries, and recovery
//!    rebuilds the array.
//! 3. the bitmap with the bit of the entry, and bit 0: one word; persist: the commit point.
//!
//! Remove, 3 flushes and 3 fences: the same without an entry. Update, 1 flush and 1 fence: the value, in place.
//!
//! # Writing, with the bitmap only
//!
//! Insert, 2 flushes and 2 fences: the entry, persist; the bitmap, persist. Remove and update, 1 flush and 1 fence.
//!
//! # Split of a full leaf X
//!
//! LINES + 4 flushes with a slot array, LINES + 3 without, and 4 fences:
//! 1. the new leaf Y gets the upper half, in order, and X's link; flush all of it; fence. A crash: nobody reaches Y.
//! 2. a log of the tree says that X's bitmap will be the rest, bit 0 not set, and its next Y; persist: the commit point. See [`log`](crate::selective::log).
//!    The paper logs the slot array as well. Recovery can rebuild it, so the record is one line whatever the size of the leaf.
//! 3. X's array, next, and bitmap, with bit 0; flush both lines, fence. A crash: recovery stores next and the bitmap of the log, and then makes the array.
//! 4. the log is cleared, persist.
//!
//! The pending change is made the ordinary way afterwards.
//!
//! # Reading
//!
//! If bit 0 is set, and keys are in records, by binary search through the slot array. If it is not set, because there is no array or somebody is at work, or if
//! keys are integers, all heads are compared. The version check of a reader discards what it finds while somebody is at work.
//!
//! Recovery of a leaf with a slot array and without bit 0: the array of the entries that count, persist; bit 0, persist. A crash within: the same again.

use super::{Birth, Change, Divisible, Division, Entry, LeafLayout, Written, each};
use crate::record::Record;
use crate::selective::log::{self, Log};
use crate::selective::structure::{Divided, Room};
use crate::{Error, Key};
use everleaf_pmem::{Medium, Off, Pm, Word, resident, vector};
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

resident! {
    /// A wB+-Tree leaf of `LINES` lines, the last `ARRAY` units of which are its slot array. See the module documentation.
    pub(crate) struct WbLeaf<const LINES: usize, const ARRAY: usize> {
        lines: [[Unit; UNITS]; LINES],
    }
}

/// Sixteen bytes: an entry, the header, or a part of the slot array.
type Unit = [Word; 2];
/// Units of a line.
const UNITS: usize = 4;

const HEAD: usize = 0;
const VALUE: usize = 1;

/// The bit of the bitmap that says that the slot array is valid.
const VALID: u64 = 1;

/// What a batch will make of a leaf.
pub(crate) struct Plan {
    /// A bit for each unit that is to hold an entry.
    occupied: u64,
    /// In a leaf with a slot array: those units, in the order of their keys.
    order: Vec<u8>,
}

/// The units that a slot array lists.
fn listed(array: &[Unit]) -> Vec<u8> {
    let mut bytes = array.iter().flatten().flat_map(|word| word.get().to_le_bytes());
    let count = bytes.next().unwrap_or(0);
    bytes.take(count.into()).collect()
}

/// Writes a slot array that lists these units. The caller flushes it.
fn list<M: Medium>(pm: &Pm<M>, array: &[Unit], units: &[u8]) {
    let mut bytes = [0; 64];
    bytes[0] = units.len() as u8;
    bytes[1..=units.len()].copy_from_slice(units);
    for (word, bytes) in array.iter().flatten().zip(bytes.as_chunks().0) {
        let value = u64::from_le_bytes(*bytes);
        if word.get() != value {
            // In any order: bit 0 is durably not set, or nobody can reach the leaf.
            pm.store(word, value, Relaxed);
        }
    }
}

/// A bit for each of these units.
fn bits(units: &[u8]) -> u64 {
    units.iter().fold(0, |bits, unit| bits | 1_u64.checked_shl(u32::from(*unit)).unwrap_or(0))
}

impl<const LINES: usize, const ARRAY: usize> WbLeaf<LINES, ARRAY> {
    const SLOTS: usize = UNITS * LINES - 1 - ARRAY;
    /// A bit for each unit that can hold an entry.
    const ALL: u64 = u64::MAX >> (63 - Self::SLOTS) & !VALID;
    /// Bit 0, in a leaf with a slot array.
    const SORTED: u64 = if ARRAY > 0 { VALID } else { 0 };
    /// The number of check bits in the bitmap, and the first of them.
    const CHECK: (u32, u32) = match Self::SLOTS {
        ..56 => (8, 56),
        56..60 => (4, 60),
        _ => (1, 0),
    };
    const CHECKED: () = {
        assert!(UNITS * LINES <= 64, "a bit for each unit");
        assert!(ARRAY == 0 || Self::CHECK.1 > 0, "bit 0 is for one thing");
        assert!(ARRAY == 0 || ARRAY <= UNITS && ARRAY * size_of::<Unit>() > Self::SLOTS, "the slot array has a byte for each entry, and is in one line");
    };

    #[inline(always)]
    fn unit(&self, number: usize) -> &Unit {
        &self.lines[number / UNITS][number % UNITS]
    }

    fn array(&self) -> &[Unit] {
        &self.lines[LINES - 1][UNITS - ARRAY..]
    }

    #[inline(always)]
    fn bitmap(&self) -> &Word {
        &self.lines[0][0][0]
    }

    fn next_word(&self) -> &Word {
        &self.lines[0][0][1]
    }

    /// A bitmap as it is stored.
    #[inline(always)]
    const fn checked(bits: u64) -> u64 {
        super::with_check(bits, Self::CHECK.0, Self::CHECK.1)
    }

    /// The bits of a bitmap as it is stored; `None` if it is damaged.
    fn bits_of(bitmap: u64) -> Option<u64> {
        let bits = bitmap & (Self::ALL | Self::SORTED);
        (Self::checked(bits) == bitmap).then_some(bits)
    }

    /// A bit for each unit that holds an entry.
    #[inline(always)]
    fn occupied(&self) -> u64 {
        self.bitmap().get() & Self::ALL
    }

    /// The units of the entries in the order of their keys, for a writer.
    fn order<M: Medium>(&self, pm: &Pm<M>) -> Result<Vec<u8>, Error> {
        let order = listed(self.array());
        let wanted = self.occupied();
        if order.len() == wanted.count_ones() as usize && bits(&order) == wanted {
            Ok(order)
        } else {
            Err(self.damage(pm, "a slot array of a leaf with other entries than its bitmap has"))
        }
    }

    /// The unit and value of `key`, by the slot array; or the position in it where the key would be.
    #[inline(always)]
    fn search<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, key: &K) -> Result<Result<(usize, NonZeroU64), usize>, Error> {
        let byte = |at: usize| (self.array()[at / 16][at % 16 / 8].get() >> (at % 8 * 8)) as u8;
        self.search_in(pm, key, self.occupied(), usize::from(byte(0)).min(Self::SLOTS), |at| byte(at + 1))
    }

    /// [`Self::search`] by any list of this many units, all of which must be `occupied`.
    #[inline(always)]
    fn search_in<K: Key + ?Sized, M: Medium>(
        &self,
        pm: &Pm<M>,
        key: &K,
        occupied: u64,
        count: usize,
        unit_at: impl Fn(usize) -> u8,
    ) -> Result<Result<(usize, NonZeroU64), usize>, Error> {
        let head = key.head(0);
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low.midpoint(high);
            let unit = usize::from(unit_at(middle));
            let is_there = (1..=Self::SLOTS).contains(&unit) && occupied >> unit & 1 == 1;
            let entry = if is_there { self.unit(unit) } else { return Err(self.damage(pm, "a slot array of a leaf")) };
            let mut order = head.cmp(&entry[HEAD].get());
            if order.is_eq() {
                let Some(value) = NonZeroU64::new(entry[VALUE].get()) else { return Err(self.damage(pm, "an entry of a leaf without a value")) };
                order = key.compare(pm, 0, head, value)?;
                if order.is_eq() {
                    return Ok(Ok((unit, value)));
                }
            }
            if order.is_lt() { high = middle } else { low = middle + 1 }
        }
        Ok(Err(low))
    }

    /// Stores the bits of the bitmap. The caller flushes it.
    #[inline]
    #[track_caller]
    fn set<M: Medium>(&self, pm: &Pm<M>, bits: u64) {
        let bitmap = self.bitmap();
        pm.store(bitmap, bitmap.get() ^ Self::checked(bitmap.get() & (Self::ALL | Self::SORTED) ^ bits), Release);
    }

    /// Step 1 of a change in a leaf with a slot array, without the fence.
    #[track_caller]
    fn invalidate<M: Medium>(&self, pm: &Pm<M>) {
        self.set(pm, self.occupied());
        pm.flush(self.bitmap());
    }

    #[inline]
    fn put<M: Medium>(&self, pm: &Pm<M>, unit: usize, head: u64, value: NonZeroU64) {
        let entry = self.unit(unit);
        pm.store(&entry[HEAD], head, Release);
        // persist-equivalent(store early): nobody reads either word before the bitmap has the bit.
        pm.store(&entry[VALUE], value.get(), Release);
        pm.flush(entry);
    }

    /// Sets, durably, which units hold entries, and that the slot array, if there is one, lists them.
    #[inline]
    fn switch<M: Medium>(&self, pm: &Pm<M>, occupied: u64) {
        self.set(pm, occupied | Self::SORTED);
        pm.persist(self.bitmap());
    }

    /// The two words of step 3 of a split.
    fn shrink<M: Medium>(&self, pm: &Pm<M>, next: u64, bitmap: u64) {
        pm.store(self.next_word(), next, Release);
        // persist-equivalent(store early): the log has both words.
        self.set(pm, bitmap);
        pm.persist(self.bitmap());
    }

    /// Writes all of a leaf that nobody can reach. `entries` ascend.
    fn fill<M: Medium>(&self, pm: &Pm<M>, next: u64, entries: &[Entry]) {
        const { Self::CHECKED };
        assert!(entries.len() <= Self::SLOTS);
        for (number, unit) in self.lines.iter().flatten().enumerate().skip(1) {
            let entry = entries.get(number - 1);
            pm.store(&unit[HEAD], entry.map_or(0, |entry| entry.head), Relaxed);
            pm.store(&unit[VALUE], entry.map_or(0, |entry| entry.value.get()), Relaxed);
        }
        let units: Vec<u8> = (1..=entries.len() as u8).collect();
        list(pm, self.array(), &units);
        pm.store(self.bitmap(), Self::checked(bits(&units) | Self::SORTED), Relaxed);
        pm.store(self.next_word(), next, Relaxed);
    }

    fn damage<M: Medium>(&self, pm: &Pm<M>, what: &'static str) -> Error {
        everleaf_pmem::Error::corrupt(pm.offset_of(self).bytes(), what).into()
    }
}

impl<K: Key + ?Sized, const LINES: usize, const ARRAY: usize> LeafLayout<K> for WbLeaf<LINES, ARRAY> {
    const CAPACITY: usize = Self::SLOTS;

    type Structure = Divided;

    type Plan = Plan;

    const ARRANGES: bool = ARRAY > 0;

    #[inline(always)]
    fn find<M: Medium>(&self, pm: &Pm<M>, key: &K) -> Result<Option<(usize, NonZeroU64)>, Error> {
        // For integers, whose heads are the keys, all heads are compared at once, which leaves nothing to mispredict.
        if !K::WHOLE && ARRAY > 0 && self.bitmap().get() & VALID != 0 {
            return Ok(self.search(pm, key)?.ok());
        }
        let head = key.head(0);
        for unit in each(vector::equal_heads(&self.lines, head) & self.occupied()) {
            if let Some(value) = NonZeroU64::new(self.unit(unit)[VALUE].get())
                && key.compare(pm, 0, head, value)?.is_eq()
            {
                return Ok(Some((unit, value)));
            }
        }
        Ok(None)
    }

    #[inline(always)]
    fn prefetch<M: Medium>(&self, pm: &Pm<M>, key: &K) {
        if !K::WHOLE
            && let Some(unit) = each(vector::equal_heads(&self.lines, key.head(0)) & self.occupied()).next()
        {
            Record::prefetch(pm, self.unit(unit)[VALUE].get());
        }
    }

    fn insert<M: Medium>(&self, pm: &Pm<M>, key: &K, value: NonZeroU64) -> Result<Written, Error> {
        let (occupied, head) = (self.occupied(), key.head(0));
        let free = each(!occupied & Self::ALL).next();
        if ARRAY == 0 {
            let Some(unit) = free else { return Ok(Written::NoRoom) };
            self.put(pm, unit, head, value);
            pm.fence();
            self.switch(pm, occupied | 1 << unit);
            return Ok(Written::Done);
        }
        // Checked whether there is room or not: what divides the leaf relies on its order.
        let mut order = self.order(pm)?;
        let Some(unit) = free else { return Ok(Written::NoRoom) };
        let Err(position) = self.search(pm, key)? else { return Err(self.damage(pm, "a key of a leaf that was not there")) };
        order.insert(position, unit as u8);
        self.invalidate(pm);
        pm.fence();
        self.put(pm, unit, head, value);
        list(pm, self.array(), &order);
        pm.persist(self.array());
        self.switch(pm, occupied | 1 << unit);
        Ok(Written::Done)
    }

    fn update<M: Medium>(&self, pm: &Pm<M>, slot: usize, value: NonZeroU64) -> Result<Written, Error> {
        super::set_value(pm, &self.unit(slot)[VALUE], value);
        pm.fence();
        Ok(Written::Done)
    }

    fn remove<M: Medium>(&self, pm: &Pm<M>, slot: usize) -> Result<Written, Error> {
        if ARRAY > 0 {
            let mut order = self.order(pm)?;
            order.retain(|unit| usize::from(*unit) != slot);
            self.invalidate(pm);
            pm.fence();
            list(pm, self.array(), &order);
            pm.persist(self.array());
        }
        self.switch(pm, self.occupied() & !(1 << slot));
        Ok(Written::Done)
    }

    /// No entry takes the unit of one that is removed: until the plan is published, that one is there.
    fn stage<M: Medium>(&self, pm: &Pm<M>, plan: &mut Option<Plan>, key: &K, slot: usize, change: Change) -> Result<Written, Error> {
        if let Change::Update(value) = change {
            super::set_value(pm, &self.unit(slot)[VALUE], value);
            return Ok(Written::Done);
        }
        let order = if ARRAY > 0 && plan.is_none() { self.order(pm)? } else { Vec::new() };
        let plan = plan.get_or_insert_with(|| Plan { occupied: self.occupied(), order });
        if let Change::Insert(value) = change {
            let Some(unit) = each(!(plan.occupied | self.occupied()) & Self::ALL).next() else { return Ok(Written::NoRoom) };
            if ARRAY > 0 {
                let Err(position) = self.search_in(pm, key, plan.occupied, plan.order.len(), |at| plan.order[at])? else {
                    return Err(self.damage(pm, "a key of a leaf that was not there"));
                };
                plan.order.insert(position, unit as u8);
            }
            self.put(pm, unit, key.head(0), value);
            plan.occupied |= 1 << unit;
        } else {
            plan.occupied &= !(1 << slot);
            plan.order.retain(|unit| usize::from(*unit) != slot);
        }
        if self.bitmap().get() & Self::SORTED != 0 {
            self.invalidate(pm);
        }
        Ok(Written::Done)
    }

    fn arrange<M: Medium>(&self, pm: &Pm<M>, plan: &Plan) {
        list(pm, self.array(), &plan.order);
        pm.flush(self.array());
    }

    fn publish<M: Medium>(&self, pm: &Pm<M>, plan: &Plan) {
        self.set(pm, plan.occupied | Self::SORTED);
        pm.flush(self.bitmap());
    }

    #[inline(always)]
    fn count(&self) -> usize {
        self.occupied().count_ones() as usize
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.extend(each(self.occupied()).filter_map(|unit| Entry::read(self.unit(unit))));
    }

    fn build<M: Medium>(&self, pm: &Pm<M>, birth: &Birth, entries: &[Entry]) -> Result<(), Error> {
        self.fill(pm, birth.next, entries);
        Ok(())
    }

    fn next(&self) -> &Word {
        self.next_word()
    }

    fn replay<M: Medium>(pm: &Pm<M>, log: &Log) -> Result<(), Error> {
        let Some(log::Record { leaf, next, bitmap }) = log.read::<Self, M>(pm)? else { return Ok(()) };
        let bits = Self::bits_of(bitmap).ok_or_else(|| log::damage(pm, log))?;
        pm.at(leaf, "a leaf that a log tells of does not lie in the pool")?.shrink(pm, next, bits & Self::ALL);
        // persist-equivalent(fence drop): to one thread, which fences before anything else is acknowledged. Others change leaves as soon as the tree is open.
        log.clear(pm);
        Ok(())
    }

    fn recover<M: Medium>(&self, pm: &Pm<M>) -> Result<(), Error> {
        if Self::bits_of(self.bitmap().get()).is_none() {
            return Err(self.damage(pm, "a bitmap of a leaf whose check bits do not match"));
        }
        if each(self.occupied()).any(|unit| self.unit(unit)[VALUE].get() == 0) {
            return Err(self.damage(pm, "an occupied unit of a leaf without a value"));
        }
        if self.bitmap().get() & Self::SORTED != Self::SORTED {
            let mut entries = Vec::with_capacity(Self::SLOTS);
            LeafLayout::<K>::entries(self, &mut entries);
            super::sort::<K, M>(pm, &mut entries)?;
            let unit_of = |entry: &Entry| each(self.occupied()).find(|unit| self.unit(*unit).each_ref().map(Word::get) == [entry.head, entry.value.get()]);
            let units: Vec<u8> = entries.iter().filter_map(unit_of).map(|unit| unit as u8).collect();
            list(pm, self.array(), &units);
            pm.persist(self.array());
            self.switch(pm, self.occupied());
        }
        if ARRAY > 0 { self.order(pm).map(|_| ()) } else { Ok(()) }
    }

    fn check<M: Medium>(&self, pm: &Pm<M>) -> Result<(), Error> {
        if self.bitmap().get() & Self::SORTED != Self::SORTED {
            return Err(self.damage(pm, "a slot array of a leaf that is not valid"));
        }
        LeafLayout::<K>::recover(self, pm)?;
        let mut keys = [const { None }; 2];
        for unit in listed(self.array()) {
            let Some(entry) = Entry::read(self.unit(usize::from(unit))) else { continue };
            keys = [keys[1].take(), Some(super::read::<K, M>(pm, &entry)?)];
            if keys[0].is_some() && keys[0] >= keys[1] {
                return Err(self.damage(pm, "a slot array of a leaf out of order"));
            }
        }
        Ok(())
    }
}

impl<K: Key + ?Sized, const LINES: usize, const ARRAY: usize> Divisible<K> for WbLeaf<LINES, ARRAY> {
    const LOGGED: bool = true;

    fn divide<M: Medium>(&self, division: Division<'_, K, Self, M>) -> (Off<Self>, Room) {
        let Division { pool, right, moved, log, .. } = division;
        let log = log.expect("a layout that says so is given a log");
        // The leaf is full, so slot i is unit i + 1.
        let (moved, rest) = (moved << 1, Self::ALL & !(moved << 1));
        // Whoever found the leaf full has checked that the array lists what is there.
        let (gone, kept) = match ARRAY {
            0 => (each(moved).map(|unit| unit as u8).collect(), Vec::new()),
            _ => listed(self.array()).into_iter().partition::<Vec<u8>, _>(|unit| bits(&[*unit]) & moved != 0),
        };
        let upper: Vec<Entry> = gone.iter().filter_map(|unit| Entry::read(self.unit(usize::from(*unit)))).collect();
        right.fill(pool, LeafLayout::<K>::next(self).get(), &upper);
        let right = pool.fence_all(right.flush()).release();
        log.record(pool, log::Record { leaf: pool.offset_of(self), next: right.link(), bitmap: Self::checked(rest) });
        if ARRAY > 0 {
            list(pool, self.array(), &kept);
            pool.flush(self.array());
        }
        self.shrink(pool, right.link(), rest | Self::SORTED);
        // persist-equivalent(fence drop): to one thread, whose next change fences before it is acknowledged. Others change the leaf as soon as it is unlatched.
        log.clear(pool);
        (right, Room::Made)
    }
}
