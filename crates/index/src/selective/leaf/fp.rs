//! FPTree: unsorted leaves, and a byte of fingerprint for each key (Oukid, Lasperas, Nica, Willhalm and Lehner, "FPTree: A Hybrid SCM-DRAM Persistent and
//! Concurrent B-Tree for Storage Class Memory", SIGMOD 2016).
//!
//! ```text
//! leaf of     header units                                         slots      next            a unit is 16 bytes, a line four units
//! 256 B       0      bitmap, 2 bytes | 14 fingerprints             1 .. 14    unit 15         LB+-Tree's study
//! 512 B       0-3    bitmap, 8 bytes | 28 fingerprints             4 .. 31    unit 3
//! 1 KiB       0-3    bitmap, 8 bytes | 56 fingerprints: one line   4 .. 59    unit 63         the paper's
//! 192 B       0-3    bitmap, 8 bytes | 8 fingerprints              4 .. 11    unit 3          for exhaustive checking
//! ```
//!
//! A slot is { head, value }. Bitmap and fingerprints are in one line. Above the bits of the slots the bitmap has [check bits](super::with_check): its last
//! byte, so that no byte of it can change unnoticed; or, in two bytes with fourteen slots, the last two bits, all that there is room for.
//!
//! Invariants, when the leaf's latch is free:
//! 1. an entry counts if the bit of its slot is set; everything in other slots, and their fingerprints, is left over and means nothing;
//! 2. the fingerprint of a slot that counts is that of its key, its value is not 0, and no key is in two of them.
//!
//! # Writing
//!
//! Insert, 2 flushes and 2 fences:
//! 1. the entry, into a slot whose bit is not set; persist. A crash: the slot is free.
//! 2. its fingerprint, which means nothing yet; then the bitmap with the bit, one word; persist: the commit point. The paper flushes and fences between the
//!    two, which makes 3 of each; so does this with `FENCES` = 3. Both are in one line, which keeps a prefix of its stores, so even without that a crash leaves
//!    no bit without its fingerprint.
//!
//! Update, 2 flushes and 2 fences: as an insert into another slot; the one store to the bitmap sets its bit and clears that of the old one. So a full leaf is
//! split first. Remove, 1 flush and 1 fence: the bitmap without the bit.
//!
//! Split of a full leaf L, LINES + 4 flushes (one more if next is not in the header's line) and 4 fences:
//! 1. the new leaf N is a copy of L, link and all, except for its bitmap, which has the bits of the upper half; flush all of it, and L's header, where a batch
//!    may have fingerprints that are not durable yet; fence. A crash: nobody reaches N.
//! 2. a log of the tree says that L's bitmap will be the rest, and its next N; persist: the commit point. See [`log`](crate::selective::log).
//! 3. both words of L; persist. Without the log, a crash between them would leave the upper half in both leaves, or in none that the list leads to.
//! 4. the log is cleared, persist.
//!
//! The pending change is made the ordinary way afterwards.
//!
//! The paper logs more. It enters the new leaf in the log before it is filled, so that a crash does not leak it: here recovery finds what nobody reaches. The
//! same holds for a leaf that becomes empty: the paper's log of deletions names the leaf and the one before it; here one store to the word that links the leaf
//! unlinks it. The paper's lock in the leaf, which recovery has to clear, is a latch in DRAM here.
//!
//! Recovery has nothing to repair but what logs say.

use super::{Birth, Change, Divisible, Division, Entry, LeafLayout, Written, each};
use crate::record::Record;
use crate::selective::log::{self, Log};
use crate::selective::structure::{Divided, Room};
use crate::{Error, Key};
use everleaf_pmem::{Medium, Off, Pm, Word, resident, vector};
use std::borrow::Borrow;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

resident! {
    /// An FPTree leaf of `LINES` lines: `HEADER` units before the slots, `TAIL` behind them. An insert fences `FENCES` times: 2 or, as published, 3. See the
    /// module documentation.
    pub struct FpLeaf<const LINES: usize, const HEADER: usize, const TAIL: usize, const FENCES: usize> {
        lines: [[Unit; UNITS]; LINES],
    }
}

/// Sixteen bytes: an entry, or a part of the header.
type Unit = [Word; 2];
/// Units of a line.
const UNITS: usize = 4;

const HEAD: usize = 0;
const VALUE: usize = 1;

impl<const LINES: usize, const HEADER: usize, const TAIL: usize, const FENCES: usize> FpLeaf<LINES, HEADER, TAIL, FENCES> {
    const SLOTS: usize = UNITS * LINES - HEADER - TAIL;
    /// A bit for each slot.
    const ALL: u64 = (1 << Self::SLOTS) - 1;
    /// The bits before the fingerprints.
    const BITS: u64 = if HEADER == 1 { 0xffff } else { u64::MAX };
    /// The number of check bits, and the first of them.
    const CHECK: (u32, u32) = match HEADER {
        1 if Self::SLOTS <= 8 => (8, 8),
        1 => (2, 14),
        _ => (8, 56),
    };
    /// The byte of the header where fingerprints begin.
    const FINGERPRINTS: usize = if HEADER == 1 { 2 } else { 8 };
    /// Units of the header that hold fingerprints.
    const SEARCHED: usize = (Self::FINGERPRINTS + Self::SLOTS).div_ceil(size_of::<Unit>());
    /// The unit whose first word links the next leaf.
    const NEXT: usize = if TAIL > 0 { UNITS * LINES - 1 } else { HEADER - 1 };
    const CHECKED: () = {
        assert!(FENCES == 2 || FENCES == 3, "no other protocol is known");
        assert!(HEADER <= UNITS && Self::SLOTS <= Self::CHECK.1 as usize, "bitmap and fingerprints are in one line, and there is a bit for each slot");
        assert!(Self::SEARCHED <= HEADER && (TAIL > 0 || Self::SEARCHED < HEADER), "the header holds fingerprints, and the link if nothing else does");
    };

    #[inline(always)]
    fn unit(&self, number: usize) -> &Unit {
        &self.lines[number / UNITS][number % UNITS]
    }

    #[inline(always)]
    fn entry(&self, slot: usize) -> &Unit {
        self.unit(HEADER + slot)
    }

    /// The word that holds the bitmap, and in small leaves fingerprints.
    #[inline(always)]
    fn word(&self) -> &Word {
        &self.lines[0][0][0]
    }

    #[inline(always)]
    fn bitmap(&self) -> u64 {
        self.word().get() & Self::ALL
    }

    /// The bitmap of these slots as it is stored, with its check bits.
    #[inline(always)]
    pub const fn checked(slots: u64) -> u64 {
        super::with_check(slots, Self::CHECK.0, Self::CHECK.1)
    }

    /// The slots of a bitmap as it is stored; `None` if it is damaged.
    fn slots_of(bitmap: u64) -> Option<u64> {
        let slots = bitmap & Self::ALL;
        (Self::checked(slots) == bitmap).then_some(slots)
    }

    /// The word that holds the fingerprint of a slot, and how far to the left in it.
    fn place(&self, slot: usize) -> (&Word, usize) {
        let byte = Self::FINGERPRINTS + slot;
        (&self.lines[0][byte / 16][byte % 16 / 8], byte % 8 * 8)
    }

    fn fingerprint(&self, slot: usize) -> u8 {
        let (word, shift) = self.place(slot);
        (word.get() >> shift) as u8
    }

    /// The occupied slots with this fingerprint.
    #[inline(always)]
    fn candidates(&self, fingerprint: u8) -> u64 {
        let header = self.lines[0][..Self::SEARCHED].iter().enumerate();
        let equal = header.map(|(number, unit)| u64::from(vector::equal_bytes(unit, fingerprint)) << (16 * number)).sum::<u64>();
        equal >> Self::FINGERPRINTS & self.bitmap()
    }

    #[inline]
    fn put<M: Medium>(&self, pm: &Pm<M>, slot: usize, head: u64, value: NonZeroU64) {
        let entry = self.entry(slot);
        pm.store(&entry[HEAD], head, Release);
        // persist-equivalent(store early): nobody reads either word before the bitmap has the bit.
        pm.store(&entry[VALUE], value.get(), Release);
        pm.flush(entry);
    }

    #[inline]
    #[track_caller]
    fn set_fingerprint<M: Medium>(&self, pm: &Pm<M>, slot: usize, fingerprint: u8) {
        let (word, shift) = self.place(slot);
        pm.store(word, word.get() & !(0xff << shift) | u64::from(fingerprint) << shift, Release);
    }

    /// Step 1 of an insert, and the part of step 2 that means nothing yet.
    #[inline]
    fn prepare<M: Medium>(&self, pm: &Pm<M>, slot: usize, head: u64, value: NonZeroU64, fingerprint: u8) {
        self.put(pm, slot, head, value);
        pm.fence();
        self.set_fingerprint(pm, slot, fingerprint);
        let (word, _) = self.place(slot);
        if FENCES == 3 {
            // persist-equivalent: the bitmap is stored to the same line, and after it.
            pm.persist(word);
        }
    }

    /// Sets which slots count. The caller flushes the line.
    #[inline]
    #[track_caller]
    fn switch<M: Medium>(&self, pm: &Pm<M>, slots: u64) {
        pm.store(self.word(), self.word().get() ^ Self::checked(self.bitmap() ^ slots), Release);
    }

    fn next_word(&self) -> &Word {
        &self.unit(Self::NEXT)[0]
    }

    /// Step 3 of a split.
    fn shrink<M: Medium>(&self, pm: &Pm<M>, next: u64, bitmap: u64) {
        pm.store(self.next_word(), next, Release);
        if TAIL > 0 {
            pm.flush(self.next_word());
        }
        // persist-equivalent(store early): the log has both words.
        self.switch(pm, bitmap);
        pm.persist(self.word());
    }

    fn damage<M: Medium>(&self, pm: &Pm<M>, what: &'static str) -> Error {
        everleaf_pmem::Error::corrupt(pm.offset_of(self).bytes(), what).into()
    }
}

impl<K: Key + ?Sized, const LINES: usize, const HEADER: usize, const TAIL: usize, const FENCES: usize> LeafLayout<K> for FpLeaf<LINES, HEADER, TAIL, FENCES> {
    const CAPACITY: usize = Self::SLOTS;

    type Structure = Divided;

    /// The new bitmap.
    type Plan = u64;

    #[inline(always)]
    fn find<M: Medium>(&self, pm: &Pm<M>, key: &K) -> Result<Option<(usize, NonZeroU64)>, Error> {
        let head = key.head(0);
        let mut candidates = self.candidates(super::fingerprint(key));
        while candidates != 0 {
            let slot = candidates.trailing_zeros() as usize;
            let entry = self.entry(slot);
            if entry[HEAD].get() == head
                && let Some(value) = NonZeroU64::new(entry[VALUE].get())
                && key.compare(pm, 0, head, value)?.is_eq()
            {
                return Ok(Some((slot, value)));
            }
            candidates &= candidates - 1;
        }
        Ok(None)
    }

    #[inline(always)]
    fn prefetch<M: Medium>(&self, pm: &Pm<M>, key: &K) {
        if !K::WHOLE
            && let Some(slot) = each(self.candidates(super::fingerprint(key))).next()
        {
            Record::prefetch(pm, self.entry(slot)[VALUE].get());
        }
    }

    fn insert<M: Medium>(&self, pm: &Pm<M>, key: &K, value: NonZeroU64) -> Result<Written, Error> {
        let bitmap = self.bitmap();
        let Some(slot) = each(!bitmap & Self::ALL).next() else { return Ok(Written::NoRoom) };
        self.prepare(pm, slot, key.head(0), value, super::fingerprint(key));
        self.switch(pm, bitmap | 1 << slot);
        pm.persist(self.word());
        Ok(Written::Done)
    }

    fn update<M: Medium>(&self, pm: &Pm<M>, slot: usize, value: NonZeroU64) -> Result<Written, Error> {
        let bitmap = self.bitmap();
        let Some(new) = each(!bitmap & Self::ALL).next() else { return Ok(Written::NoRoom) };
        self.prepare(pm, new, self.entry(slot)[HEAD].get(), value, self.fingerprint(slot));
        self.switch(pm, bitmap & !(1 << slot) | 1 << new);
        pm.persist(self.word());
        Ok(Written::Done)
    }

    fn remove<M: Medium>(&self, pm: &Pm<M>, slot: usize) -> Result<Written, Error> {
        self.switch(pm, self.bitmap() & !(1 << slot));
        pm.persist(self.word());
        Ok(Written::Done)
    }

    /// A value is set in place. No entry takes the slot of one that is removed: until the plan is published, that one is there.
    fn stage<M: Medium>(&self, pm: &Pm<M>, plan: &mut Option<u64>, key: &K, slot: usize, change: Change) -> Result<Written, Error> {
        if let Change::Update(value) = change {
            super::set_value(pm, &self.entry(slot)[VALUE], value);
            return Ok(Written::Done);
        }
        let bitmap = plan.get_or_insert_with(|| self.bitmap());
        if let Change::Insert(value) = change {
            let Some(slot) = each(!(*bitmap | self.bitmap()) & Self::ALL).next() else { return Ok(Written::NoRoom) };
            self.put(pm, slot, key.head(0), value);
            // persist-equivalent(store late): the bitmap is stored to the same line behind the next fence, and after it.
            self.set_fingerprint(pm, slot, super::fingerprint(key));
            *bitmap |= 1 << slot;
        } else {
            *bitmap &= !(1 << slot);
        }
        Ok(Written::Done)
    }

    fn publish<M: Medium>(&self, pm: &Pm<M>, bitmap: &u64) {
        self.switch(pm, *bitmap);
        pm.flush(self.word());
    }

    #[inline(always)]
    fn count(&self) -> usize {
        self.bitmap().count_ones() as usize
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.extend(each(self.bitmap()).filter_map(|slot| Entry::read(self.entry(slot))));
    }

    fn build<M: Medium>(&self, pm: &Pm<M>, birth: &Birth, entries: &[Entry]) -> Result<(), Error> {
        const { Self::CHECKED };
        assert!(entries.len() <= Self::SLOTS);
        for word in self.lines.iter().flatten().flatten() {
            pm.store(word, 0, Relaxed);
        }
        for (slot, entry) in entries.iter().enumerate() {
            let key = super::read::<K, M>(pm, entry)?;
            let (word, shift) = self.place(slot);
            pm.store(word, word.get() | u64::from(super::fingerprint::<K>(key.borrow())) << shift, Relaxed);
            pm.store(&self.entry(slot)[HEAD], entry.head, Relaxed);
            pm.store(&self.entry(slot)[VALUE], entry.value.get(), Relaxed);
        }
        // persist-equivalent(store early): nobody can reach the leaf before all of it is durable.
        self.switch(pm, (1 << entries.len()) - 1);
        pm.store(self.next_word(), birth.next, Relaxed);
        Ok(())
    }

    fn next(&self) -> &Word {
        self.next_word()
    }

    fn replay<M: Medium>(pm: &Pm<M>, log: &Log) -> Result<(), Error> {
        let Some(log::Record { leaf, next, bitmap }) = log.read::<Self, M>(pm)? else { return Ok(()) };
        let slots = Self::slots_of(bitmap).ok_or_else(|| log::damage(pm, log))?;
        pm.at(leaf, "a leaf that a log tells of does not lie in the pool")?.shrink(pm, next, slots);
        // This fences: others change leaves as soon as the tree is open.
        log.clear(pm);
        Ok(())
    }

    fn recover<M: Medium>(&self, pm: &Pm<M>) -> Result<(), Error> {
        let Some(slots) = Self::slots_of(self.word().get() & Self::BITS) else {
            return Err(self.damage(pm, "a bitmap of a leaf whose check bits do not match"));
        };
        if each(slots).any(|slot| self.entry(slot)[VALUE].get() == 0) {
            return Err(self.damage(pm, "an occupied slot of a leaf without a value"));
        }
        Ok(())
    }

    fn check<M: Medium>(&self, pm: &Pm<M>) -> Result<(), Error> {
        LeafLayout::<K>::recover(self, pm)?;
        for slot in each(self.bitmap()) {
            let key = super::read::<K, M>(pm, &Entry::read(self.entry(slot)).expect("looked at before"))?;
            if super::fingerprint::<K>(key.borrow()) != self.fingerprint(slot) {
                return Err(self.damage(pm, "a slot of a leaf with the fingerprint of another key"));
            }
        }
        Ok(())
    }
}

impl<K: Key + ?Sized, const LINES: usize, const HEADER: usize, const TAIL: usize, const FENCES: usize> Divisible<K> for FpLeaf<LINES, HEADER, TAIL, FENCES> {
    const LOGGED: bool = true;

    fn divide<M: Medium>(&self, division: Division<'_, K, Self, M>) -> (Off<Self>, Room) {
        let Division { pool, right, moved, log, .. } = division;
        let log = log.expect("a layout that says so is given a log");
        for (to, from) in right.lines.iter().flatten().flatten().zip(self.lines.iter().flatten().flatten()) {
            pool.store(to, from.get(), Relaxed);
        }
        // persist-equivalent(store early): nobody can reach the leaf before all of it is durable.
        right.switch(pool, moved);
        // The log says nothing of fingerprints. They may not be durable, if another thread's batch has written them whose caller has not fenced yet.
        pool.flush(self.word());
        let right = pool.fence_all(right.flush()).release();
        let rest = self.bitmap() & !moved;
        log.record(pool, log::Record { leaf: pool.offset_of(self), next: right.link(), bitmap: Self::checked(rest) });
        self.shrink(pool, right.link(), rest);
        // persist-equivalent(fence drop): to one thread, whose next change fences before it is acknowledged. Others change the leaf as soon as it is unlatched.
        log.clear(pool);
        (right, Room::Made)
    }
}
