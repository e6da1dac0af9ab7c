//! What each slab of a pool is used for, readable without a lock.
//!
//! One word per slab, in chunks of doubling length, so that the table grows with the pool and never moves.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of slabs in the first chunk.
const FIRST: u32 = 16;
const CHUNKS: usize = (u32::BITS - FIRST.trailing_zeros() + 1) as usize;

/// What a slab is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Nothing; or it is the second or a later slab of a run.
    None,
    /// Blocks of a class. The state of the slab, or of the span that it belongs to, is number `place` of that class's list. If it `leaves`, its blocks are not
    /// handed out.
    Blocks { class: u8, place: u32, leaves: bool },
    /// It was taken, together with those behind it, and is about to be used: nobody has had any of them since the pool was opened.
    Untouched,
    /// It is the first of a run of `count` slabs. `is_untouched` if they were taken as [`Use::Untouched`], or were in use when the pool was opened.
    Run { count: u32, is_untouched: bool },
}

impl Use {
    fn pack(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Blocks { class, place, leaves } => 1 | u64::from(class) << 8 | u64::from(leaves) << 16 | u64::from(place) << 32,
            Self::Run { count, is_untouched } => 2 | u64::from(is_untouched) << 8 | u64::from(count) << 32,
            Self::Untouched => 3,
        }
    }

    #[inline]
    fn unpack(word: u64) -> Self {
        match word & 0xff {
            1 => Self::Blocks { class: (word >> 8) as u8, place: (word >> 32) as u32, leaves: word & 1 << 16 != 0 },
            2 => Self::Run { count: (word >> 32) as u32, is_untouched: word & 1 << 8 != 0 },
            3 => Self::Untouched,
            _ => Self::None,
        }
    }
}

/// The uses of all slabs.
pub(super) struct Table([OnceLock<Box<[AtomicU64]>>; CHUNKS]);

impl Table {
    pub(super) fn new() -> Self {
        Self([const { OnceLock::new() }; CHUNKS])
    }

    /// Chunk, and place in it. Chunk 0 holds the slabs below [`FIRST`], chunk n those from `FIRST` << (n - 1) on.
    #[inline]
    fn place(slab: u32) -> (usize, usize) {
        match (slab / FIRST).checked_ilog2() {
            None => (0, slab as usize),
            Some(power) => (power as usize + 1, (slab - (FIRST << power)) as usize),
        }
    }

    /// What `slab` is used for.
    #[inline]
    pub(super) fn get(&self, slab: u32) -> Use {
        let (chunk, place) = Self::place(slab);
        self.0[chunk].get().map_or(Use::None, |chunk| Use::unpack(chunk[place].load(Ordering::Acquire)))
    }

    /// The class of the blocks in `slab`, the place of the slab or its span in the list of that class, and whether it leaves.
    pub(super) fn group(&self, slab: u32) -> Option<(u8, u32, bool)> {
        match self.get(slab) {
            Use::Blocks { class, place, leaves } => Some((class, place, leaves)),
            _ => None,
        }
    }

    /// Sets what `slab` is used for.
    pub(super) fn set(&self, slab: u32, used: Use) {
        self.word(slab).store(used.pack(), Ordering::Release);
    }

    /// Sets what `count` neighbouring slabs from `slab` on are used for, together.
    pub(super) fn set_all(&self, slab: u32, count: u32, used: Use) {
        (slab..slab + count).for_each(|slab| self.set(slab, used));
    }

    /// Sets `slab` unused if it is used as `current`; returns whether it was.
    pub(super) fn clear(&self, slab: u32, current: Use) -> bool {
        self.word(slab).compare_exchange(current.pack(), Use::None.pack(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn word(&self, slab: u32) -> &AtomicU64 {
        let (chunk, place) = Self::place(slab);
        let length = FIRST << chunk.saturating_sub(1);
        &self.0[chunk].get_or_init(|| (0..length).map(|_| AtomicU64::new(0)).collect())[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slab_has_a_word_of_its_own() {
        let table = Table::new();
        let run = |slab: u32| Use::Run { count: slab, is_untouched: slab.is_multiple_of(2) };
        for slab in 0..1000 {
            assert_eq!(table.get(slab), Use::None);
            table.set(slab, Use::Untouched);
            assert_eq!(table.get(slab), Use::Untouched);
            table.set(slab, run(slab));
        }
        for slab in 0..1000 {
            assert_eq!(table.get(slab), run(slab));
            table.set(slab, Use::Blocks { class: slab as u8, place: slab, leaves: slab % 3 == 0 });
            assert!(!table.clear(slab, run(slab)));
            assert!(table.clear(slab, Use::Blocks { class: slab as u8, place: slab, leaves: slab % 3 == 0 }));
        }
        assert_eq!(Table::place(u32::MAX).0, CHUNKS - 1);
    }
}
