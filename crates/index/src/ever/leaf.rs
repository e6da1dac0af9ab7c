//! Leaves: entries in persistent memory, and for each leaf a line in DRAM that says which of them count.
//!
//! ```text
//! leaf         line 0 .. LINES - 1: 4 x { token, value }                          persistent memory; at most 56 slots
//! descriptor   latch | a fingerprint for each slot, 56 bytes                      DRAM, one line
//! ```
//!
//! The *token* of a key is the key itself, or its hash if keys are in records ([`Key::token`]). The token's hash gives the key a home line and a fingerprint of
//! seven bits. A key is in its home line if there was room; its fingerprint says where it is:
//!
//! | byte | the slot |
//! |---|---|
//! | 0 | does not count |
//! | 1 to 127 | holds a key of that hash, whose home is this line |
//! | 129 to 255 | holds a key of the hash without the highest bit, whose home is another line |
//!
//! So a search compares all bytes with two values: one of them is valid in the four slots at home, the other one in the rest. The fingerprint is made of what
//! remains of the hash without the home, so keys with the same home differ in their fingerprints as often as any others. A search for a present key reads
//! another one first once in seventy times; a search for an absent key reads any key once in sixteen times.

use super::{Error, Key};
use crate::key::SPREAD;
use crate::latch::Latch;
use crate::selective::leaf::each;
use bytemuck::Zeroable;
use everleaf_pmem::vector::{self, Tagged, Wide};
use everleaf_pmem::{Medium, Pm, Word, resident};
use std::borrow::Borrow;
use std::hint::select_unpredictable;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Entries of a line.
pub(super) const SLOTS: usize = 4;
/// Fingerprints of a descriptor.
pub(super) const SLOTS_MAX: usize = 56;

const TOKEN: usize = 0;
const VALUE: usize = 1;

/// A key whose home is another line.
const AWAY: u8 = 0x80;

resident! {
    /// A leaf of `LINES` lines of entries. See the module documentation.
    pub(super) struct Leaf<const LINES: usize> {
        lines: [Line; LINES],
    }
}

pub(super) type Line = [[Word; 2]; SLOTS];

/// An entry as a leaf keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) token: u64,
    pub(super) value: NonZeroU64,
}

/// Where a key belongs in a leaf.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) token: u64,
    home: usize,
    fingerprint: u8,
}

impl Place {
    #[inline(always)]
    pub(super) fn of<const LINES: usize>(token: u64) -> Self {
        let hash = token.wrapping_mul(SPREAD);
        let scaled = (hash >> 32) * LINES as u64;
        // The fraction says nothing about the home. From 1 to 127.
        let fingerprint = ((u64::from(scaled as u32) * 127) >> 32) as u8 + 1;
        Self { token, home: (scaled >> 32) as usize, fingerprint }
    }

    /// The first slot of the line in which the key is most often found.
    #[inline(always)]
    pub(super) fn home(self) -> usize {
        self.home * SLOTS
    }

    /// The fingerprint that the key has in that slot.
    #[inline(always)]
    pub(super) fn fingerprint_at(self, slot: usize) -> u8 {
        if slot / SLOTS == self.home { self.fingerprint } else { self.fingerprint | AWAY }
    }
}

impl<const LINES: usize> Leaf<LINES> {
    pub(super) const CAPACITY: usize = {
        assert!(LINES * SLOTS <= SLOTS_MAX);
        LINES * SLOTS
    };
    /// The capacity that merging reckons with. A merge fences as often however few entries it moves, and each of them may take a line. So leaves merge late,
    /// when two together fill half of one.
    pub(super) const MERGED: usize = if LINES < 3 { Self::CAPACITY } else { Self::CAPACITY * 2 / 3 };

    #[inline(always)]
    fn slot(&self, slot: usize) -> &[Word; 2] {
        &self.lines.as_flattened()[slot]
    }

    /// The contents of a slot, whether it counts or not.
    #[inline(always)]
    pub(super) fn read(&self, slot: usize) -> Option<Slot> {
        let [token, value] = self.slot(slot);
        Some(Slot { value: NonZeroU64::new(value.get())?, token: token.get() })
    }

    /// Its value alone.
    #[inline(always)]
    pub(super) fn value(&self, slot: usize) -> Option<NonZeroU64> {
        NonZeroU64::new(self.slot(slot)[VALUE].get())
    }

    /// The line in which a key is most often found.
    #[inline(always)]
    pub(super) fn home(&self, place: Place) -> &Line {
        &self.lines[place.home]
    }

    /// Writes a slot that does not count, in an order in which it never holds a new token with an old value. The caller flushes, and publishes behind a fence.
    #[inline(always)]
    #[track_caller]
    pub(super) fn write<M: Medium>(&self, pm: &Pm<M>, slot: usize, Slot { token, value }: Slot) {
        let words = self.slot(slot);
        pm.store(&words[VALUE], 0, Release);
        pm.store(&words[TOKEN], token, Release);
        pm.store(&words[VALUE], value.get(), Release);
    }

    #[inline(always)]
    #[track_caller]
    pub(super) fn set_value<M: Medium>(&self, pm: &Pm<M>, slot: usize, value: Option<NonZeroU64>) {
        pm.store(&self.slot(slot)[VALUE], value.map_or(0, NonZeroU64::get), Release);
    }

    /// A word of the line of a slot, to be flushed or prefetched. It is known to lie in one line.
    #[inline(always)]
    pub(super) fn line(&self, slot: usize) -> &Word {
        &self.slot(slot)[VALUE]
    }

    /// The lines of several slots, each once.
    pub(super) fn lines_of(&self, slots: u64) -> impl Iterator<Item = &Line> {
        self.lines.iter().enumerate().filter(move |(line, _)| slots >> (line * SLOTS) & 0xf != 0).map(|(_, line)| line)
    }

    /// Writes a leaf in which nothing counts: all of it, or only what must change if its contents are known to be durable. The caller flushes what was written.
    #[track_caller]
    pub(super) fn build<M: Medium>(&self, pm: &Pm<M>, entries: &[Slot], is_known: bool) -> Built {
        assert!(entries.len() <= Self::CAPACITY);
        let mut fingerprints = Fingerprints::default();
        let mut words = [[0; 2]; SLOTS_MAX];
        // How many slots of each line are filled. Whether one more fits is an easily predicted branch.
        let mut filled = [0; LINES];
        let mut slots = [0; SLOTS_MAX];
        let mut put = |slot: usize, number: usize, place: Place| {
            words[slot] = [entries[number].token, entries[number].value.get()];
            fingerprints.0[slot] = place.fingerprint_at(slot);
            slots[number] = slot as u8;
        };
        let (mut away, mut away_count) = ([0; SLOTS_MAX], 0);
        for (number, entry) in entries.iter().enumerate() {
            let place = Place::of::<LINES>(entry.token);
            let count = &mut filled[place.home];
            if *count < SLOTS {
                put(place.home * SLOTS + *count, number, place);
                *count += 1;
            } else {
                away[away_count] = number;
                away_count += 1;
            }
        }
        let mut line = 0;
        for &number in &away[..away_count] {
            line += filled[line..].iter().position(|count| *count < SLOTS).expect("no more entries than slots");
            put(line * SLOTS + filled[line], number, Place::of::<LINES>(entries[number].token));
            filled[line] += 1;
        }
        let mut written = 0;
        for (line, (words, count)) in words.as_chunks::<SLOTS>().0.iter().zip(filled).enumerate() {
            let slots = line * SLOTS..(line + 1) * SLOTS;
            if is_known && count == 0 && slots.clone().all(|slot| self.read(slot).is_none()) {
                continue;
            }
            written |= 0xf << slots.start;
            for (slot, [token, value]) in slots.zip(words) {
                let to = self.slot(slot);
                pm.store(&to[TOKEN], *token, Relaxed);
                pm.store(&to[VALUE], *value, Relaxed);
            }
        }
        Built { fingerprints, slots, written }
    }
}

/// A slot links a record whose key has another hash.
pub(super) fn record_of_another_key<M: Medium, const LINES: usize>(pm: &Pm<M>, leaf: &Leaf<LINES>) -> Error {
    everleaf_pmem::Error::corrupt(pm.offset_of(leaf).bytes(), "a leaf with a record of another key").into()
}

/// The result of [`Leaf::build`].
pub(super) struct Built {
    /// The fingerprints of the entries, which will count.
    pub(super) fingerprints: Fingerprints,
    /// The slot of each entry.
    pub(super) slots: [u8; SLOTS_MAX],
    /// A bit for each slot in a line that was written.
    pub(super) written: u64,
}

/// The fingerprints of a leaf, one for each slot.
pub(super) struct Fingerprints(pub(super) [u8; SLOTS_MAX]);

impl Default for Fingerprints {
    fn default() -> Self {
        Self([0; SLOTS_MAX])
    }
}

/// What DRAM knows of a leaf. See the module documentation.
#[derive(Zeroable)]
#[repr(transparent)]
pub(super) struct Descriptor(Tagged<Latch>);

/// The likeliest of the slots that may hold a key. Whether it is at home decides no branch, since that is unpredictable.
#[inline(always)]
fn likeliest([home, away]: [u64; 2]) -> Option<usize> {
    let slots = select_unpredictable(home != 0, home, away);
    (slots != 0).then_some(slots.trailing_zeros() as usize)
}

impl Descriptor {
    #[inline(always)]
    pub(super) fn latch(&self) -> &Latch {
        &self.0.header
    }

    /// The slot and value of a key. Reliable only while the leaf does not change.
    #[inline(always)]
    pub(super) fn find<K: Key + ?Sized, M: Medium, const LINES: usize>(
        &self,
        wide: Option<Wide>,
        pm: &Pm<M>,
        leaf: &Leaf<LINES>,
        key: &K,
        place: Place,
    ) -> Result<Option<(usize, NonZeroU64)>, Error> {
        let candidates = self.candidates::<LINES>(wide, place);
        let Some(slot) = likeliest(candidates) else { return Ok(None) };
        match Self::holds(pm, leaf, slot, key, place)? {
            Some(value) => Ok(Some((slot, value))),
            None => Self::find_behind(pm, leaf, key, place, slot, candidates),
        }
    }

    /// The slot that a key is most likely in, if it is there at all.
    #[inline(always)]
    pub(super) fn likely<const LINES: usize>(&self, wide: Option<Wide>, place: Place) -> Option<usize> {
        likeliest(self.candidates::<LINES>(wide, place))
    }

    /// Continues if the likeliest slot holds something else.
    #[cold]
    #[inline(never)]
    fn find_behind<K: Key + ?Sized, M: Medium, const LINES: usize>(
        pm: &Pm<M>,
        leaf: &Leaf<LINES>,
        key: &K,
        place: Place,
        seen: usize,
        [home, away]: [u64; 2],
    ) -> Result<Option<(usize, NonZeroU64)>, Error> {
        for slot in each(home & !(1 << seen)).chain(each(away & !(1 << seen))) {
            if let Some(value) = Self::holds(pm, leaf, slot, key, place)? {
                return Ok(Some((slot, value)));
            }
        }
        Ok(None)
    }

    #[inline(always)]
    fn holds<K: Key + ?Sized, M: Medium, const LINES: usize>(
        pm: &Pm<M>,
        leaf: &Leaf<LINES>,
        slot: usize,
        key: &K,
        place: Place,
    ) -> Result<Option<NonZeroU64>, Error> {
        match leaf.read(slot) {
            Some(Slot { token, value }) if token == place.token => match key.compare(pm, 0, key.head(0), value)?.is_eq() {
                true => Ok(Some(value)),
                false => Self::other::<K, M, LINES>(pm, leaf, token, value),
            },
            _ => Ok(None),
        }
    }

    /// Nothing, for the record of another key of the same hash.
    ///
    /// # Errors
    /// The record is of a key of another hash, so it, or the slot, is damaged: the key that was looked for may be the one that was there.
    #[cold]
    #[inline(never)]
    fn other<K: Key + ?Sized, M: Medium, const LINES: usize>(
        pm: &Pm<M>,
        leaf: &Leaf<LINES>,
        token: u64,
        value: NonZeroU64,
    ) -> Result<Option<NonZeroU64>, Error> {
        let mut found = K::Owned::default();
        K::read(pm, token, value, &mut found)?;
        let found: &K = found.borrow();
        if found.token() == token { Ok(None) } else { Err(record_of_another_key(pm, leaf)) }
    }

    /// A bit for each slot that may hold a key, in its home line and elsewhere.
    #[inline(always)]
    fn candidates<const LINES: usize>(&self, wide: Option<Wide>, place: Place) -> [u64; 2] {
        let [home, away] = self.0.equal(wide, [place.fingerprint, place.fingerprint | AWAY]);
        // An optimistic search must not see fingerprints before the entries that they stand for.
        std::sync::atomic::fence(Acquire);
        [home & 0xf << (place.home * SLOTS), away & Self::all::<LINES>()]
    }

    const fn all<const LINES: usize>() -> u64 {
        u64::MAX >> (64 - Leaf::<LINES>::CAPACITY)
    }

    /// A bit for each slot that does not count.
    #[inline(always)]
    pub(super) fn vacant<const LINES: usize>(&self, wide: Option<Wide>) -> u64 {
        self.0.zeroes(wide) & Self::all::<LINES>()
    }

    /// Number of slots that count.
    #[inline(always)]
    pub(super) fn count<const LINES: usize>(&self, wide: Option<Wide>) -> usize {
        vector::count_ones(wide, self.occupied::<LINES>(wide))
    }

    /// A bit for each slot that counts.
    #[inline(always)]
    pub(super) fn occupied<const LINES: usize>(&self, wide: Option<Wide>) -> u64 {
        let vacant = self.vacant::<LINES>(wide);
        std::sync::atomic::fence(Acquire);
        !vacant & Self::all::<LINES>()
    }

    /// A slot for a new key, none of those that are `taken`: at home if there is room.
    #[inline(always)]
    pub(super) fn room<const LINES: usize>(&self, wide: Option<Wide>, place: Place, taken: u64) -> Option<usize> {
        let vacant = self.vacant::<LINES>(wide) & !taken;
        let at_home = vacant & 0xf << (place.home * SLOTS);
        let choice = if at_home != 0 { at_home } else { vacant };
        (choice != 0).then_some(choice.trailing_zeros() as usize)
    }

    pub(super) fn fingerprint(&self, slot: usize) -> u8 {
        (self.0.tags[slot / 8].load(Relaxed) >> (slot % 8 * 8)) as u8
    }

    /// Makes a slot count, or no longer. The caller has the latch, or the right to append.
    #[inline(always)]
    pub(super) fn set(&self, slot: usize, fingerprint: u8) {
        let (word, shift) = (&self.0.tags[slot / 8], slot % 8 * 8);
        word.store(word.load(Relaxed) & !(0xff << shift) | u64::from(fingerprint) << shift, Release);
    }

    /// Stores what counts in a leaf that no other thread looks at yet.
    pub(super) fn fill(&self, fingerprints: &Fingerprints) {
        self.fill_tags(fingerprints.0.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)));
    }

    /// The same by words, in the order of [`Descriptor::tags`].
    pub(super) fn fill_tags(&self, tags: impl Iterator<Item = u64>) {
        self.0.tags.iter().zip(tags).for_each(|(word, tag)| word.store(tag, Release));
    }

    /// All fingerprints, eight a word.
    pub(super) fn tags(&self) -> impl Iterator<Item = u64> {
        self.0.tags.iter().map(|word| word.load(Relaxed))
    }

    /// Makes several slots count no longer. The caller has the latch.
    pub(super) fn clear(&self, slots: u64) {
        each(slots).for_each(|slot| self.set(slot, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everleaf_pmem::{Hardware, Pool, PoolOptions};
    use std::sync::Arc;

    const LINES: usize = 14;

    fn pool() -> Arc<Pool<Hardware>> {
        Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 1 << 20, ..PoolOptions::default() }).unwrap()
    }

    fn slots(seed: u64) -> Vec<Slot> {
        let value = |number: u64| NonZeroU64::new(number + 1).unwrap();
        (0..Leaf::<LINES>::CAPACITY as u64).map(|number| Slot { token: (number * number + 7).wrapping_mul(seed), value: value(number) }).collect()
    }

    /// Looks up all keys, and some absent ones.
    fn expect(pool: &Pool<Hardware>, descriptor: &Descriptor, leaf: &Leaf<LINES>, slots: &[Slot], absent: &[Slot]) {
        let find = |key: u64| descriptor.find(Wide::get(), pool, leaf, &key, Place::of::<LINES>(key)).unwrap();
        for slot in slots {
            assert_eq!(find(slot.token).map(|(_, value)| value), Some(slot.value));
        }
        assert!(absent.iter().all(|slot| find(slot.token).is_none()));
    }

    #[test]
    fn a_leaf_takes_entries_until_every_slot_is_full_and_finds_them() {
        let pool = pool();
        let leaf = pool.alloc::<Leaf<LINES>>().unwrap();
        for seed in [1, 3, 0x9e37_79b9_7f4a_7c15, u64::MAX] {
            let descriptor = Descriptor::zeroed();
            descriptor.fill(&leaf.build(&*pool, &[], false).fingerprints);
            let slots = slots(seed);
            for (count, entry) in slots.iter().enumerate() {
                let place = Place::of::<LINES>(entry.token);
                let slot = descriptor.room::<LINES>(Wide::get(), place, 0).expect("a leaf with room");
                leaf.write(&*pool, slot, *entry);
                expect(&pool, &descriptor, &leaf, &slots[..count], &slots[count..]);
                descriptor.set(slot, place.fingerprint_at(slot));
                assert_eq!(descriptor.occupied::<LINES>(None).count_ones() as usize, count + 1);
            }
            assert_eq!(descriptor.room::<LINES>(Wide::get(), Place::of::<LINES>(0), 0), None);
            descriptor.clear(0x00ff_00ff);
            assert_eq!(descriptor.vacant::<LINES>(None), 0x00ff_00ff);
            let left: Vec<Slot> = each(descriptor.occupied::<LINES>(None)).filter_map(|slot| leaf.read(slot)).collect();
            expect(&pool, &descriptor, &leaf, &left, &[]);
        }
    }

    #[test]
    fn a_leaf_that_is_built_holds_what_it_was_given() {
        let pool = pool();
        let leaf = pool.alloc::<Leaf<LINES>>().unwrap();
        for (seed, count) in [(1, 0), (3, 1), (5, 28), (7, 55), (11, 56)] {
            let (descriptor, slots) = (Descriptor::zeroed(), slots(seed));
            descriptor.fill(&leaf.build(&*pool, &slots[..count], false).fingerprints);
            expect(&pool, &descriptor, &leaf, &slots[..count], &slots[count..]);
            assert_eq!(descriptor.occupied::<LINES>(None).count_ones() as usize, count);
        }
    }
}
