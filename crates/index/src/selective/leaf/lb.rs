//! LB+-Tree: as few line writes as possible (Liu, Chen and Wang, "LB+-Trees: Optimizing Persistent Index Performance on 3DXPoint Memory", PVLDB 13(7)).
//!
//! ```text
//! block     unit 0   | units 1 ..                                      | last unit             a unit is 16 bytes, a line four units
//! first     header   | 4 LINES - 2 slots, each { head, value }         | siblings: two links
//! others    header   | as above                                        | back header
//!
//! header    bits 0-13 occupied slots | 14 parity | 15 alt, of the first block only | a byte of fingerprint for each slot, 14 of them
//! ```
//!
//! A leaf is BLOCKS blocks of LINES lines: 1 to 4 times 256 bytes in the paper. The alt bit chooses the sibling that is the next leaf, and for the other blocks
//! the header that counts: front or back. The chosen header and the slots of its line are *near*: an entry there and the word that publishes it are written
//! back together. The latch is in DRAM, so bit 14, the paper's lock, is free to make the number of set bits in the first two bytes even. The paper's bytes have
//! no room for more: this detects one bit that is flipped there, or three, but not two.
//!
//! Invariants, when the leaf's latch is free:
//! 1. an entry counts if the header that counts says that its slot is occupied; everything in other slots, in headers and siblings that do not count, and in
//!    fingerprints of free slots, is left over and means nothing;
//! 2. the fingerprint of an occupied slot is that of its key, its value is not 0, and no key is in two occupied slots.
//!
//! # Writing
//!
//! A header is copied out, changed, and written back by two stores: first the word with fingerprints alone, if it has changed, then the word with the bits,
//! which is the commit point. A line keeps a prefix of its stores, so a crash between the two leaves fingerprints of free slots.
//!
//! Insert into the first block that is not full:
//! - if a near slot is free, 1 flush and 1 fence: the entry, the header; persist the line. A crash before the last store: the slot is free.
//! - else, 2 flushes and 2 fences: 1. the entry into the lowest free slot. Its line is written back anyway, so the other free slots of that line take copies of
//!   near entries, and later insertions find room there. Persist the line: all of it is in free slots. 2. The header, in which the copies are occupied and the
//!   originals are free; persist. The commit point is one word, and before it nothing has moved.
//!
//! Remove: the header without the slot, persist. Update: the value, persist. 1 flush and 1 fence each.
//!
//! Split of a full leaf X, 4 + 2 flushes and 2 fences with one block:
//! 1. the new leaf N takes copies of the upper half, and the pending key if it belongs there, in the last slots of its blocks, so that there is room near its
//!    headers. N's next is X's.
//! 2. what does not count in X: the other sibling := N; in the other blocks, the other header := this one without the moved slots. Flush N and these, and the
//!    lines of the headers that count in the other blocks, where a batch may have written whose caller has not fenced yet. Fence. A crash: nobody reads any of
//!    it.
//! 3. the first header: without the moved slots, and alt flipped; persist. One word makes N the next leaf and takes the moved entries out of all blocks. It is
//!    the commit point.
//!
//! A pending key that stays in X is inserted afterwards, into a leaf that has room. The paper's Algorithm 3 inserts it between 2 and 3, by the header to come:
//! it overwrites entries that are still X's by the durable header, and a crash then has lost them.
//!
//! The paper's released code stores the cleared lock together with the header's bits, before they are flushed. Then a reader returns what a crash takes back,
//! and a writer reuses a slot that is free by a bit that is not durable. Here the latch is free only after the fence.
//!
//! Recovery has nothing to repair: the list, and the entries of each leaf, are what the words say.

use super::{Birth, Change, Divisible, Division, Entry, LeafLayout, Written, each};
use crate::record::Record;
use crate::selective::structure::{Divided, Room};
use crate::{Error, Key};
use everleaf_pmem::{Medium, Off, Pm, Word, resident, vector};
use std::borrow::Borrow;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::Release;

resident! {
    /// An LB+-Tree leaf of `BLOCKS` blocks of `LINES` lines. See the module documentation.
    pub struct LbLeaf<const LINES: usize, const BLOCKS: usize> {
        blocks: [Block<LINES>; BLOCKS],
    }
}

type Block<const LINES: usize> = [[Unit; UNITS]; LINES];
/// Sixteen bytes: a header, an entry, or two siblings.
type Unit = [Word; 2];
/// Units of a line.
const UNITS: usize = 4;

const HEAD: usize = 0;
const VALUE: usize = 1;

/// A header, copied out.
#[derive(Clone, Copy)]
pub struct Header(u128);

impl Header {
    /// The bits of all slots that it could tell of.
    const BITS: u128 = (1 << 14) - 1;
    const ALT: u16 = 1 << 15;
    /// The bit that makes the number of set bits before the fingerprints even.
    const PARITY: u32 = 14;
    /// Where fingerprints begin, in bits and in bytes.
    const FINGERPRINTS: usize = 16;
    const FINGERPRINTS_BYTE: usize = Self::FINGERPRINTS / 8;

    #[inline(always)]
    fn read(unit: &Unit) -> Self {
        Self(u128::from(unit[0].get()) | u128::from(unit[1].get()) << 64)
    }

    /// Writes it back. The caller flushes the line.
    #[inline(always)]
    #[track_caller]
    fn write<M: Medium>(self, pm: &Pm<M>, unit: &Unit) {
        if unit[1].get() != (self.0 >> 64) as u64 {
            pm.store(&unit[1], (self.0 >> 64) as u64, Release);
        }
        pm.store(&unit[0], self.0 as u64, Release);
    }

    /// A bit for each occupied slot.
    fn occupied(self) -> u16 {
        (self.0 & Self::BITS) as u16
    }

    fn fingerprint(self, slot: usize) -> u8 {
        (self.0 >> (Self::FINGERPRINTS + slot * 8)) as u8
    }

    /// Takes a free slot.
    fn put(&mut self, slot: usize, fingerprint: u8) {
        let at = Self::FINGERPRINTS + slot * 8;
        self.0 = self.0 & !(0xff << at) | u128::from(fingerprint) << at;
        self.turn(1 << slot);
    }

    fn free(&mut self, slots: u16) {
        self.turn(slots & self.occupied());
    }

    /// Flips bits, and the parity with them.
    fn turn(&mut self, bits: u16) {
        self.0 ^= u128::from(Self::even(bits));
    }

    /// Bits, and the parity that makes their number even.
    const fn even(bits: u16) -> u16 {
        bits | (bits.count_ones() as u16 & 1) << Self::PARITY
    }

    /// Whether only these bits are set, and the parity is theirs.
    fn is_sound(self, possible: u16) -> bool {
        self.0 as u16 == Self::even(self.0 as u16 & possible)
    }
}

/// An entry on its way to another leaf.
#[derive(Clone, Copy)]
struct Packed {
    head: u64,
    value: u64,
    fingerprint: u8,
}

/// The unit of a slot.
#[inline(always)]
fn unit<const LINES: usize>(block: &Block<LINES>, slot: usize) -> &Unit {
    &block[(slot + 1) / UNITS][(slot + 1) % UNITS]
}

/// Writes words that nobody reads before a header says so. They are ordered behind what is in their line: the slot may have been freed by a header that is not
/// durable yet.
#[inline(always)]
#[track_caller]
fn write<M: Medium>(pm: &Pm<M>, unit: &Unit, head: u64, value: u64) {
    pm.store(&unit[HEAD], head, Release);
    pm.store(&unit[VALUE], value, Release);
}

impl<const LINES: usize, const BLOCKS: usize> LbLeaf<LINES, BLOCKS> {
    const CHECKED: () = assert!(LINES >= 2 && LINES <= 4 && BLOCKS >= 1, "a header tells of 14 slots, and is in another line than the siblings");
    /// Slots of a block.
    const SLOTS: usize = UNITS * LINES - 2;
    /// A bit for each slot of a block.
    const ALL: u16 = (1 << Self::SLOTS) - 1;

    /// The slots in a line of a block, a bit for each.
    fn slots_of(line: usize) -> u16 {
        let slots_before = |line: usize| (line * UNITS).saturating_sub(1).min(Self::SLOTS);
        (1 << slots_before(line + 1)) - (1 << slots_before(line))
    }

    fn alt(&self) -> bool {
        self.blocks[0][0][0][0].get() as u16 & Header::ALT != 0
    }

    fn siblings(&self) -> &Unit {
        &self.blocks[0][LINES - 1][UNITS - 1]
    }

    /// The first two bytes of a header with these bits, as they are stored.
    pub const fn checked(bits: u16) -> u16 {
        Header::even(bits)
    }

    /// The line in which block `number` has the header that counts under `alt`, and the header.
    #[inline(always)]
    fn header(&self, number: usize, alt: bool) -> (usize, &Unit) {
        let block = &self.blocks[number];
        if alt && number > 0 { (LINES - 1, &block[LINES - 1][UNITS - 1]) } else { (0, &block[0][0]) }
    }

    /// The headers that count, in the order of blocks.
    fn headers(&self) -> impl Iterator<Item = Header> {
        let alt = self.alt();
        (0..BLOCKS).map(move |number| Header::read(self.header(number, alt).1))
    }

    /// The slots whose fingerprint is this one, in the block of a header.
    #[inline(always)]
    fn candidates(header: &Unit, fingerprint: u8) -> u16 {
        vector::equal_bytes(header, fingerprint) >> Header::FINGERPRINTS_BYTE & header[0].get() as u16 & Self::ALL
    }

    /// The part of a set of slots of the leaf that belongs to block `number`.
    fn part(slots: u64, number: usize) -> u16 {
        (slots >> (number * Self::SLOTS)) as u16 & Self::ALL
    }

    /// Writes all of a leaf that nobody can reach: an equal part of the entries into the last slots of each block.
    fn fill<M: Medium>(&self, pm: &Pm<M>, next: u64, entries: &[Packed]) {
        const { Self::CHECKED };
        let mut rest = entries;
        for (number, block) in self.blocks.iter().enumerate() {
            let (part, others) = rest.split_at(rest.len().div_ceil(BLOCKS - number));
            rest = others;
            let first = Self::SLOTS - part.len();
            let mut header = Header(0);
            for slot in 0..Self::SLOTS {
                let entry = slot.checked_sub(first).map(|at| part[at]);
                write(pm, unit(block, slot), entry.map_or(0, |entry| entry.head), entry.map_or(0, |entry| entry.value));
                if let Some(entry) = entry {
                    header.put(slot, entry.fingerprint);
                }
            }
            write(pm, &block[0][0], header.0 as u64, (header.0 >> 64) as u64);
            write(pm, &block[LINES - 1][UNITS - 1], if number == 0 { next } else { 0 }, 0);
        }
    }

    fn value(&self, slot: usize) -> &Word {
        &unit(&self.blocks[slot / Self::SLOTS], slot % Self::SLOTS)[VALUE]
    }

    fn damage<M: Medium>(&self, pm: &Pm<M>, number: usize, what: &'static str) -> Error {
        everleaf_pmem::Error::corrupt(pm.offset_of(&self.blocks[number]).bytes(), what).into()
    }
}

impl<K: Key + ?Sized, const LINES: usize, const BLOCKS: usize> LeafLayout<K> for LbLeaf<LINES, BLOCKS> {
    const CAPACITY: usize = BLOCKS * Self::SLOTS;

    type Structure = Divided;

    /// The new headers.
    type Plan = [Header; BLOCKS];

    #[inline(always)]
    fn find<M: Medium>(&self, pm: &Pm<M>, key: &K) -> Result<Option<(usize, NonZeroU64)>, Error> {
        let (head, fingerprint, alt) = (key.head(0), super::fingerprint(key), self.alt());
        for (number, block) in self.blocks.iter().enumerate() {
            let mut candidates = Self::candidates(self.header(number, alt).1, fingerprint);
            while candidates != 0 {
                let slot = candidates.trailing_zeros() as usize;
                let entry = unit(block, slot);
                if entry[HEAD].get() == head
                    && let Some(value) = NonZeroU64::new(entry[VALUE].get())
                    && key.compare(pm, 0, head, value)?.is_eq()
                {
                    return Ok(Some((number * Self::SLOTS + slot, value)));
                }
                candidates &= candidates - 1;
            }
        }
        Ok(None)
    }

    #[inline(always)]
    fn prefetch<M: Medium>(&self, pm: &Pm<M>, key: &K) {
        if K::WHOLE {
            return;
        }
        let (fingerprint, alt) = (super::fingerprint(key), self.alt());
        for (number, block) in self.blocks.iter().enumerate() {
            if let Some(slot) = each(Self::candidates(self.header(number, alt).1, fingerprint)).next() {
                Record::prefetch(pm, unit(block, slot)[VALUE].get());
            }
        }
    }

    fn insert<M: Medium>(&self, pm: &Pm<M>, key: &K, value: NonZeroU64) -> Result<Written, Error> {
        let (head, fingerprint) = (key.head(0), super::fingerprint(key));
        let Some((number, mut header)) = self.headers().enumerate().find(|(_, header)| header.occupied() & Self::ALL != Self::ALL) else {
            return Ok(Written::NoRoom);
        };
        let (block, (near, place)) = (&self.blocks[number], self.header(number, self.alt()));
        let free = !header.occupied() & Self::ALL;
        let near_slots = Self::slots_of(near);
        if free & near_slots != 0 {
            let slot = (free & near_slots).trailing_zeros() as usize;
            write(pm, unit(block, slot), head, value.get());
            header.put(slot, fingerprint);
        } else {
            let slot = free.trailing_zeros() as usize;
            let line = (slot + 1) / UNITS;
            write(pm, unit(block, slot), head, value.get());
            header.put(slot, fingerprint);
            let others = free & Self::slots_of(line) & !(1 << slot);
            for (to, from) in each(others).zip(each(near_slots)) {
                write(pm, unit(block, to), unit(block, from)[HEAD].get(), unit(block, from)[VALUE].get());
                header.put(to, header.fingerprint(from));
                header.free(1 << from);
            }
            pm.persist(&block[line]);
        }
        header.write(pm, place);
        pm.persist(&block[near]);
        Ok(Written::Done)
    }

    fn update<M: Medium>(&self, pm: &Pm<M>, slot: usize, value: NonZeroU64) -> Result<Written, Error> {
        super::set_value(pm, self.value(slot), value);
        pm.fence();
        Ok(Written::Done)
    }

    fn remove<M: Medium>(&self, pm: &Pm<M>, slot: usize) -> Result<Written, Error> {
        let (_, place) = self.header(slot / Self::SLOTS, self.alt());
        let mut header = Header::read(place);
        header.free(1 << (slot % Self::SLOTS));
        // persist-equivalent(store early): only this word changes, and what came before it in its line is durable.
        header.write(pm, place);
        pm.persist(place);
        Ok(Written::Done)
    }

    /// No entry takes the slot of one that is removed: until the plan is published, that one is there.
    fn stage<M: Medium>(&self, pm: &Pm<M>, plan: &mut Option<[Header; BLOCKS]>, key: &K, slot: usize, change: Change) -> Result<Written, Error> {
        if let Change::Update(value) = change {
            // persist-equivalent(store early): before it in its line may be in the balance entries that do not count yet, other keys' values, and, if a caller
            // has yet to fence, a header that says of this key what it said before, or that it is new: each pair of them, in either order, is a state without
            // a fence.
            super::set_value(pm, self.value(slot), value);
            return Ok(Written::Done);
        }
        let alt = self.alt();
        let now = |number| Header::read(self.header(number, alt).1);
        let headers = plan.get_or_insert_with(|| std::array::from_fn(now));
        let Change::Insert(value) = change else {
            headers[slot / Self::SLOTS].free(1 << (slot % Self::SLOTS));
            return Ok(Written::Done);
        };
        let free = |number: usize, header: &Header| !(header.occupied() | now(number).occupied()) & Self::ALL;
        let Some((number, header)) = headers.iter_mut().enumerate().find(|(number, header)| free(*number, header) != 0) else {
            return Ok(Written::NoRoom);
        };
        let (block, free, near) = (&self.blocks[number], free(number, header), Self::slots_of(self.header(number, alt).0));
        let slot = if free & near != 0 { free & near } else { free }.trailing_zeros() as usize;
        write(pm, unit(block, slot), key.head(0), value.get());
        if near >> slot & 1 == 0 {
            pm.flush(unit(block, slot));
        }
        header.put(slot, super::fingerprint(key));
        Ok(Written::Done)
    }

    fn publish<M: Medium>(&self, pm: &Pm<M>, headers: &[Header; BLOCKS]) {
        let alt = self.alt();
        for (number, header) in headers.iter().enumerate() {
            let place = self.header(number, alt).1;
            if Header::read(place).0 != header.0 {
                header.write(pm, place);
                pm.flush(place);
            }
        }
    }

    #[inline(always)]
    fn count(&self) -> usize {
        self.headers().map(|header| (header.occupied() & Self::ALL).count_ones() as usize).sum()
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        for (block, header) in self.blocks.iter().zip(self.headers()) {
            out.extend(each(header.occupied() & Self::ALL).filter_map(|slot| Entry::read(unit(block, slot))));
        }
    }

    fn build<M: Medium>(&self, pm: &Pm<M>, birth: &Birth, entries: &[Entry]) -> Result<(), Error> {
        let pack = |entry: &Entry| {
            let key = super::read::<K, M>(pm, entry)?;
            Ok(Packed { head: entry.head, value: entry.value.get(), fingerprint: super::fingerprint::<K>(key.borrow()) })
        };
        let packed = entries.iter().map(pack).collect::<Result<Vec<_>, Error>>()?;
        self.fill(pm, birth.next, &packed);
        Ok(())
    }

    fn next(&self) -> &Word {
        &self.siblings()[usize::from(self.alt())]
    }

    fn recover<M: Medium>(&self, pm: &Pm<M>) -> Result<(), Error> {
        for (number, header) in self.headers().enumerate() {
            if !header.is_sound(if number == 0 { Self::ALL | Header::ALT } else { Self::ALL }) {
                return Err(self.damage(pm, number, "a header of a leaf with bits that mean nothing, or an odd number of them"));
            }
            if each(header.occupied()).any(|slot| unit(&self.blocks[number], slot)[VALUE].get() == 0) {
                return Err(self.damage(pm, number, "an occupied slot of a leaf without a value"));
            }
        }
        Ok(())
    }

    fn check<M: Medium>(&self, pm: &Pm<M>) -> Result<(), Error> {
        LeafLayout::<K>::recover(self, pm)?;
        for (number, header) in self.headers().enumerate() {
            for slot in each(header.occupied()) {
                let key = super::read::<K, M>(pm, &Entry::read(unit(&self.blocks[number], slot)).expect("looked at before"))?;
                if super::fingerprint::<K>(key.borrow()) != header.fingerprint(slot) {
                    return Err(self.damage(pm, number, "a slot of a leaf with the fingerprint of another key"));
                }
            }
        }
        Ok(())
    }
}

impl<K: Key + ?Sized, const LINES: usize, const BLOCKS: usize> Divisible<K> for LbLeaf<LINES, BLOCKS> {
    fn divide<M: Medium>(&self, division: Division<'_, K, Self, M>) -> (Off<Self>, Room) {
        let Division { pool, right, moved, pending, goes_right, .. } = division;
        let (alt, next) = (self.alt(), LeafLayout::<K>::next(self).get());
        let mut upper = Vec::with_capacity(<Self as LeafLayout<K>>::CAPACITY);
        let mut room = Room::Made;
        if let (true, Change::Insert(value)) = (goes_right, pending.change) {
            upper.push(Packed { head: pending.key.head(0), value: value.get(), fingerprint: super::fingerprint(pending.key) });
            room = Room::Applied;
        }
        for (number, header) in self.headers().enumerate() {
            upper.extend(each(Self::part(moved, number)).map(|slot| {
                let [head, value] = [HEAD, VALUE].map(|word| unit(&self.blocks[number], slot)[word].get());
                Packed { head, value, fingerprint: header.fingerprint(slot) }
            }));
        }
        right.fill(pool, next, &upper);
        let sibling = &self.siblings()[usize::from(!alt)];
        pool.store(sibling, right.off().link(), Release);
        pool.flush(sibling);
        for number in 1..BLOCKS {
            let (now, place) = (self.header(number, alt).1, self.header(number, !alt).1);
            let mut header = Header::read(now);
            header.free(Self::part(moved, number));
            // persist-equivalent(store early): nobody reads this header before the switch, which comes behind the fence.
            header.write(pool, place);
            pool.flush(place);
            // The header that counts so far, and its line, may not be durable: a batch of another thread may have written them whose caller has not fenced.
            // persist-equivalent: to one thread, of which the next fence makes durable whatever it has flushed before.
            pool.flush(now);
        }
        let right = pool.fence_all(right.flush()).release();
        let (_, place) = self.header(0, alt);
        let mut header = Header::read(place);
        header.free(Self::part(moved, 0));
        header.turn(Header::ALT);
        header.write(pool, place);
        pool.persist(place);
        (right, room)
    }
}
