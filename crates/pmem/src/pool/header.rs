//! The header of a pool: its identity, its size, and the state in which it was left.
//!
//! ```text
//!    0 +-------+--------+---------------------------+
//!      | magic | switch | zero                      |  one line
//!  512 +-------+--------+---------------------------+
//!      | superblock 0: 16 words, the last a checksum|  two lines
//! 1024 +--------------------------------------------+
//!      | superblock 1                               |
//! 2048 +--------------------------------------------+
//!      | first block of the root directory          |  see roots.rs
//! 4096 +--------------------------------------------+
//!      | zero, up to the end of the first slab      |
//!      +--------------------------------------------+
//! ```
//!
//! Invariants, whatever image a crash leaves, once the magic is there:
//! 1. `switch` holds the sequence number of the active superblock, with check bits as in a link (`off.rs`). That superblock is number sequence % 2.
//! 2. The active superblock carries that sequence number and its own checksum, and is never written.
//! 3. If it says that the pool is clean, nothing has been stored in the pool since, except in the inactive superblock.
//!
//! Changing the superblock ([`Header::commit`]; at creation, opening, shrinking and closing, and as a pool with a journal grows, the device has step 1 before
//! step 2):
//! 1. Store the inactive superblock with the next sequence number, flush, fence. A crash leaves it torn, and nobody reads it.
//! 2. Store `switch`, flush, fence: the commit point, one word.
//!
//! Creating:
//! 1. Store superblock 1, flush, fence. A crash leaves no magic: the creation did not finish, the file holds nothing, and creating it anew stores all of this
//!    again.
//! 2. Store `switch`, then the magic, in one line, flush, fence: the magic is the commit point, and a line keeps the order of its stores.
//!
//! Only the process that holds the lock on the file writes here, one thread at a time.

use super::roots::Directory;
use crate::alloc::Snapshot;
use crate::word::{self, Word};
use crate::{Domain, Error, Medium, Off, Pm};
use std::path::Path;
use std::sync::atomic::Ordering;

/// "EVERLEAF".
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"EVERLEAF");
/// The version of the format. A change that older libraries cannot handle raises it.
pub(crate) const VERSION: u64 = 1;
/// Feature bits that a library must know to open the pool.
pub(crate) const FEATURES: u64 = JOURNAL | SPANS;
/// The compatible feature bit of a pool that was opened although it may be torn.
pub(crate) const ACCEPTED: u64 = 1;
/// The feature bit of a pool that is incomplete without its journal (`journal.rs`).
pub(crate) const JOURNAL: u64 = 1;
/// The feature bit of a pool whose blocks may share spans of slabs (`alloc.rs`). Without it, none does.
pub(crate) const SPANS: u64 = 2;
/// The smallest slab, and so the smallest header.
pub(crate) const SLAB_SIZE_MIN: usize = 4096;
/// The largest slab.
pub(crate) const SLAB_SIZE_MAX: usize = 64 << 10;

crate::resident! {
    /// The first bytes of a pool. See the module documentation.
    pub(crate) struct Header {
        magic: Word,
        switch: Word,
        zero: [Word; 62],
        slots: [Slot; 2],
        zero_too: [Word; 64],
        pub(super) directory: Directory,
    }
}

crate::resident! {
    /// Room for a superblock.
    struct Slot {
        words: [Word; SUPERBLOCK_WORDS],
        zero: [Word; 64 - SUPERBLOCK_WORDS],
    }
}

const SUPERBLOCK_WORDS: usize = 16;
/// A value that matches no boot of any machine.
pub(super) const NO_BOOT: u64 = u64::MAX;
const _: () = assert!(size_of::<Header>() == SLAB_SIZE_MIN);
const _: () = assert!(std::mem::offset_of!(Header, slots) == 512 && size_of::<Slot>() == 512);
const _: () = assert!(std::mem::offset_of!(Header, directory) == 2048);

/// A superblock, as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Increases by one with every change.
    pub(crate) sequence: u64,
    /// [`VERSION`] at creation.
    pub(crate) version: u64,
    /// Feature bits that a library may ignore.
    pub(crate) features_compatible: u64,
    /// Feature bits that a library must know.
    pub(crate) features_incompatible: u64,
    /// Random at creation; nil for pools in memory.
    pub(crate) uuid: u128,
    /// Size of the pool in bytes; a multiple of the slab size. The file may be longer.
    pub(crate) size: u64,
    /// Size of a slab in bytes.
    pub(crate) slab_size: u64,
    /// Whether the pool was closed, and not opened since.
    pub(crate) clean: bool,
    /// The number of the domain in which it was opened last; 0 for pools in memory.
    pub(crate) domain: u64,
    /// The boot of the machine in which it was opened last; 0 if unknown, or if the device has all of it; [`NO_BOOT`] if the device has refused to write since.
    pub(crate) boot: u64,
    /// The dirty-shutdown count of the platform when it was opened last; 0 if there is none. With [`JOURNAL`], the journal's id.
    pub(crate) dirty_shutdowns: u64,
    /// The allocator's snapshot, after a clean shutdown.
    pub(crate) snapshot: Option<Snapshot>,
}

impl Superblock {
    /// The domain in which it was opened last; `None` for pools in memory.
    pub(crate) fn left_in(&self) -> Option<Domain> {
        Domain::ALL.into_iter().find(|domain| domain.number() == self.domain)
    }

    /// The sequence number of the superblock after this one.
    pub(crate) fn next(&self) -> u64 {
        (self.sequence + 1) % crate::off::SIZE_MAX
    }

    fn encode(&self) -> [u64; SUPERBLOCK_WORDS] {
        let snapshot = self.snapshot.unwrap_or(Snapshot { off: 0, length: 0, crc: 0 });
        let mut words = [
            self.sequence,
            self.version,
            self.features_compatible,
            self.features_incompatible,
            self.uuid as u64,
            (self.uuid >> 64) as u64,
            self.size,
            self.slab_size,
            u64::from(self.clean),
            self.domain,
            self.boot,
            self.dirty_shutdowns,
            snapshot.off,
            snapshot.length,
            u64::from(snapshot.crc),
            0,
        ];
        words[SUPERBLOCK_WORDS - 1] = u64::from(checksum(&words));
        words
    }

    fn decode(words: &[u64; SUPERBLOCK_WORDS]) -> Self {
        let [
            sequence,
            version,
            features_compatible,
            features_incompatible,
            uuid_low,
            uuid_high,
            size,
            slab_size,
            clean,
            domain,
            boot,
            dirty_shutdowns,
            off,
            length,
            crc,
            _,
        ] = *words;
        Self {
            sequence,
            version,
            features_compatible,
            features_incompatible,
            uuid: u128::from(uuid_high) << 64 | u128::from(uuid_low),
            size,
            slab_size,
            clean: clean == 1,
            domain,
            boot,
            dirty_shutdowns,
            snapshot: (off != 0).then_some(Snapshot { off, length, crc: crc as u32 }),
        }
    }
}

/// The switch word that names the superblock with this sequence number.
fn switch_to(sequence: u64) -> u64 {
    Off::<()>::new(sequence).link()
}

/// The checksum of all words but the last.
fn checksum(words: &[u64; SUPERBLOCK_WORDS]) -> u32 {
    word::checksum(&words[..SUPERBLOCK_WORDS - 1])
}

impl Header {
    /// Reads the active superblock. `path` and `length`, the size of the file in bytes, are for error messages.
    ///
    /// # Errors
    /// Whatever keeps the pool from being used; see [`Error`].
    pub(crate) fn read(&self, path: &Path, length: u64) -> Result<Superblock, Error> {
        let magic = self.magic.load(Ordering::Acquire);
        if magic != MAGIC {
            let path = path.to_owned();
            return Err(if magic == 0 && self.is_unfinished() { Error::Unfinished { path } } else { Error::NotAPool { path, magic } });
        }
        let superblock = self.superblock(path, self.active()?)?;
        if superblock.size > length {
            return Err(Error::Truncated { path: path.to_owned(), size: superblock.size, length });
        }
        Ok(superblock)
    }

    /// The sequence number of the active superblock.
    fn active(&self) -> Result<u64, Error> {
        let active = Off::<()>::from_link(self.switch.load(Ordering::Acquire));
        Ok(active.map_err(|_| Error::corrupt(8, "a switch word whose check bits do not match"))?.bytes())
    }

    /// The superblock with this sequence number.
    fn superblock(&self, path: &Path, sequence: u64) -> Result<Superblock, Error> {
        let slot = &self.slots[sequence as usize % 2];
        let at = 512 + 512 * (sequence % 2);
        let words = slot.words.each_ref().map(Word::get);
        let (stored, computed) = (words[SUPERBLOCK_WORDS - 1], checksum(&words));
        let superblock = Superblock::decode(&words);
        // The version comes first even in a format with another checksum.
        if superblock.sequence == sequence && superblock.version > VERSION {
            return Err(newer(path, &superblock));
        }
        if stored != u64::from(computed) {
            return Err(Error::Checksum { path: path.to_owned(), at, stored: stored as u32, computed });
        }
        if superblock.sequence != sequence {
            return Err(Error::corrupt(at, "the active superblock is a stale one"));
        }
        if superblock.version == 0 {
            return Err(Error::corrupt(at, "a format version of 0"));
        }
        if superblock.features_incompatible & !FEATURES != 0 {
            return Err(newer(path, &superblock));
        }
        if !superblock.slab_size.is_power_of_two() || !(SLAB_SIZE_MIN as u64..=SLAB_SIZE_MAX as u64).contains(&superblock.slab_size) {
            return Err(Error::corrupt(at, "an impossible slab size"));
        }
        if superblock.size < superblock.slab_size || !superblock.size.is_multiple_of(superblock.slab_size) || superblock.size > crate::off::SIZE_MAX {
            return Err(Error::corrupt(at, "an impossible pool size"));
        }
        Ok(superblock)
    }

    /// Makes the header of a damaged pool say what can be believed, in a copy that nobody else sees, and tells what was wrong with it. `length` is that of the
    /// file in bytes; behind it there are zeroes, up to `room`.
    ///
    /// The magic does not matter if a superblock is sound. If the switch is damaged, and both superblocks are sound, the later counts: when it is written,
    /// everything that it says is true. If the active one is damaged, the other is usually older: what it says of the pool's state is not believed, nor that
    /// the pool is no longer than that.
    ///
    /// # Errors
    /// Neither superblock is sound, or the active one is of a later version.
    pub(crate) fn mend<M: Medium>(&self, pm: &Pm<M>, path: &Path, length: u64, room: u64) -> Result<Vec<Error>, Error> {
        let mut wrong = Vec::new();
        let active = self.active();
        let is_switch_lost = active.is_err();
        let mut superblock = match active.and_then(|active| self.superblock(path, active)) {
            Ok(superblock) => superblock,
            Err(error) => {
                let later = self.later_superblock(path);
                // A version in a superblock that matches its checksum is not damage.
                let is_newer = matches!(error, Error::NewerVersion { .. }) && self.active().is_ok_and(|active| self.is_intact(active));
                let Some((superblock, is_alone)) = later.filter(|_| !is_newer) else {
                    return Err(match self.read(path, room).err().unwrap_or(error) {
                        Error::Checksum { .. } | Error::Corrupt { .. } => {
                            Error::Headless { path: path.to_owned(), length, what: "both superblocks are damaged" }
                        }
                        other => other,
                    });
                };
                wrong.push(error);
                if is_switch_lost && !is_alone {
                    superblock
                } else {
                    let size = superblock.size.max(length / superblock.slab_size * superblock.slab_size);
                    Superblock { clean: false, snapshot: None, size, ..superblock }
                }
            }
        };
        let magic = self.magic.get();
        if magic != MAGIC {
            if magic == 0 && self.is_unfinished() {
                return Err(Error::Unfinished { path: path.to_owned() });
            }
            wrong.push(Error::NotAPool { path: path.to_owned(), magic });
        }
        if superblock.size > length {
            wrong.push(Error::Truncated { path: path.to_owned(), size: superblock.size, length });
            superblock.size = superblock.size.min(room / superblock.slab_size * superblock.slab_size);
        }
        if !wrong.is_empty() {
            pm.store(&self.magic, MAGIC, Ordering::Release);
            self.commit(pm, &superblock);
        }
        Ok(wrong)
    }

    /// The later of the sound superblocks, wherever the switch points, and whether it is the only one.
    fn later_superblock(&self, path: &Path) -> Option<(Superblock, bool)> {
        let sound = |slot: u64| {
            let sequence = self.slots[slot as usize].words[0].get();
            let is_in_place = sequence % 2 == slot && sequence < crate::off::SIZE_MAX;
            is_in_place.then(|| self.superblock(path, sequence).ok()).flatten()
        };
        match (sound(0), sound(1)) {
            (Some(first), Some(second)) => Some((if first.next() == second.sequence { second } else { first }, false)),
            (first, second) => first.or(second).map(|superblock| (superblock, true)),
        }
    }

    /// Whether the superblock with this sequence number, or whatever is in its place, matches its checksum.
    fn is_intact(&self, sequence: u64) -> bool {
        let words = self.slots[sequence as usize % 2].words.each_ref().map(Word::get);
        words[SUPERBLOCK_WORDS - 1] == u64::from(checksum(&words))
    }

    /// Whether a creation may begin here: everything is zero, or as an interrupted creation leaves it.
    pub(crate) fn is_unfinished(&self) -> bool {
        let zero = |words: &[Word]| words.iter().all(|word| word.get() == 0);
        let [first, second] = &self.slots;
        self.magic.get() == 0
            && [0, switch_to(1)].contains(&self.switch.get())
            && zero(&self.zero)
            && zero(&first.words)
            && zero(&first.zero)
            && second.words[0].get() <= 1
            && zero(&second.zero)
            && zero(&self.zero_too)
            && self.directory.is_empty()
    }

    /// Makes `superblock` the active one; its sequence number must be the next, or 1 in what is not a pool yet. See the module documentation.
    #[track_caller]
    pub(crate) fn commit<M: Medium>(&self, pm: &Pm<M>, superblock: &Superblock) {
        self.write(pm, superblock);
        self.switch(pm, superblock);
    }

    /// Step 2 of a change, and of a creation.
    #[track_caller]
    pub(crate) fn switch<M: Medium>(&self, pm: &Pm<M>, superblock: &Superblock) {
        pm.store(&self.switch, switch_to(superblock.sequence), Ordering::Release);
        if self.magic.get() == 0 {
            pm.store(&self.magic, MAGIC, Ordering::Release);
        }
        pm.persist(&self.switch);
    }

    /// Step 1 of a change, and of a creation.
    #[track_caller]
    pub(crate) fn write<M: Medium>(&self, pm: &Pm<M>, superblock: &Superblock) {
        let slot = &self.slots[superblock.sequence as usize % 2].words;
        for (word, value) in slot.iter().zip(superblock.encode()) {
            pm.store(word, value, Ordering::Relaxed);
        }
        pm.persist(slot);
    }
}

#[cold]
fn newer(path: &Path, superblock: &Superblock) -> Error {
    Error::NewerVersion {
        path: path.to_owned(),
        version: superblock.version,
        features: superblock.features_incompatible,
        version_known: VERSION,
        features_known: FEATURES,
    }
}
