//! The allocator's state as preserved by a clean shutdown.
//!
//! ```text
//! word  0       1            2              3...
//!      +-------+------------+--------------+---------+-----
//!      | magic | slab size  | slab count   | entries | ...
//!      +-------+------------+--------------+---------+-----
//! entry     bits 0-31 slab, 32-39 kind, 40-63 size of the blocks in bytes; in ascending order of slabs; slabs without entry, and that are not of the span or
//!           the run of one before, are free
//!   PARTLY  the slab, or the span that begins there, holds blocks; words with one bit per block follow, set for those in use
//!   FULL    it holds blocks, all in use
//!   RUN     a run of slabs begins here; a word with their number follows
//! ```
//!
//! A snapshot lies in free slabs, which are free again as soon as it has been read. Its place, length and CRC-32C are in the superblock. A snapshot that
//! deviates from this description in any detail is not believed; the pool is then recovered by reachability.

use super::class::STEP;
use super::heap::{Found, Heap};
use crate::word::WORD;
use crate::{Medium, Off, Pm, Word};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Where the allocator's state lies after a clean shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Where it begins, in bytes.
    pub(crate) off: u64,
    /// Its length in bytes.
    pub(crate) length: u64,
    /// CRC-32C of its bytes.
    pub(crate) crc: u32,
}

const MAGIC: u64 = u64::from_be_bytes(*b"everfre1");
const PARTLY: u8 = 1;
const FULL: u8 = 2;
const RUN: u8 = 3;

fn entry(slab: u32, kind: u8, size: u32) -> u64 {
    u64::from(slab) | u64::from(kind) << 32 | u64::from(size) << 40
}

/// Writes the state of `heap` into free slabs, flushed but not fenced: the fence that makes the superblock count comes after both. `None` when there are not
/// enough slabs in a row, or `back` (by offset and length in bytes) finds no space for them, or the state is not sound. `retired` blocks count as free.
pub(super) fn write<M: Medium>(pm: &Pm<M>, heap: &Heap, retired: &[u64], back: impl FnOnce(u64, usize) -> bool) -> Option<Snapshot> {
    let (words, (count, first)) = describe(heap, retired)?;
    let length = words.len() * WORD;
    if length > count as usize * heap.slab_size() {
        return None;
    }
    let off = heap.offset(first);
    if !back(off, length) {
        return None;
    }
    let target = pm.words(Off::<Word>::new(off), words.len())?;
    for (word, value) in target.iter().zip(&words) {
        pm.store(word, *value, Ordering::Relaxed);
    }
    pm.flush(target);
    Some(Snapshot { off, length: length as u64, crc: checksum(words.into_iter()) })
}

/// Number of bytes that a snapshot needs in consecutive free slabs, if no free run is that long.
pub(super) fn missing(heap: &Heap, retired: &[u64]) -> Option<usize> {
    // A bit for each of the smallest blocks, and two words besides. Most pools have that much, and need no second pass.
    let most = 3 * WORD + heap.slab_count() as usize * (heap.slab_size() / 8 / STEP + 2 * WORD);
    if heap.longest_run() as usize * heap.slab_size() >= most {
        return None;
    }
    let (words, (count, _)) = describe(heap, retired)?;
    let length = words.len() * WORD;
    (length > count as usize * heap.slab_size()).then_some(length)
}

/// The words of a snapshot, if the state is sound, and the longest row of free slabs: its length and its first slab. `retired` blocks are free in the words;
/// but readers may still be in them, so a snapshot cannot be written there.
fn describe(heap: &Heap, retired: &[u64]) -> Option<(Vec<u64>, (u32, u32))> {
    let mut words = vec![MAGIC, heap.slab_size() as u64, u64::from(heap.slab_count())];
    let held = heap.inventory(retired).ok()?;
    let longest = match retired.is_empty() {
        true => longest_free(heap, &held),
        false => longest_free(heap, &heap.inventory(&[]).ok()?),
    };
    for (slab, held) in held {
        match held {
            Found::Run { count } => words.extend([entry(slab, RUN, 0), u64::from(count)]),
            Found::Blocks { used, .. } if is_unused(&used) => {}
            Found::Blocks { class, used } => {
                let shape = heap.classes.get(class);
                match used == shape.all() {
                    true => words.push(entry(slab, FULL, shape.size)),
                    false => {
                        words.push(entry(slab, PARTLY, shape.size));
                        words.extend(used);
                    }
                }
            }
        }
    }
    Some((words, longest))
}

/// The longest row of free slabs. It does not look for a shorter one that is long enough.
fn longest_free(heap: &Heap, held: &BTreeMap<u32, Found>) -> (u32, u32) {
    let (mut used_until, mut longest) = (1, (0, 0));
    for (&slab, held) in held {
        let count = match held {
            Found::Run { count } => *count,
            Found::Blocks { used, .. } if is_unused(used) => continue,
            Found::Blocks { class, .. } => heap.classes.get(*class).slabs,
        };
        longest = longest.max((slab - used_until, used_until));
        used_until = slab + count;
    }
    longest.max((heap.slab_count().saturating_sub(used_until), used_until))
}

fn is_unused(used: &[u64]) -> bool {
    used.iter().all(|bits| *bits == 0)
}

/// Takes over the state in `snapshot`; `None`, with `heap` unchanged, when it is not sound.
pub(super) fn restore<M: Medium>(pm: &Pm<M>, heap: &Heap, snapshot: &Snapshot) -> Option<()> {
    let length = usize::try_from(snapshot.length).ok().filter(|length| length.is_multiple_of(WORD))?;
    let words = pm.words(Off::<Word>::new(snapshot.off), length / WORD)?;
    if checksum(words.iter().map(Word::get)) != snapshot.crc {
        return None;
    }
    // The entries are read twice: to check every one, and to take them over. Nobody else writes the pool while it is opened; and if somebody does, that harms
    // the heap no more than a snapshot that lies.
    let entries = Entries::new(words, heap)?;
    let mut sound = entries.clone();
    while sound.next().is_some() {}
    if !sound.rest.is_empty() {
        return None;
    }
    heap.restore(entries);
    Some(())
}

/// Reads the entries of a snapshot, up to the first that is not sound.
#[derive(Clone)]
struct Entries<'p> {
    heap: &'p Heap,
    rest: &'p [Word],
    /// The next entry must be of this slab or a later one.
    next: u32,
    slab_count: u32,
}

impl<'p> Entries<'p> {
    fn new(words: &'p [Word], heap: &'p Heap) -> Option<Self> {
        let (head, rest) = words.split_first_chunk::<3>()?;
        let [magic, slab_size, slab_count] = head.each_ref().map(Word::get);
        let slab_count = u32::try_from(slab_count).ok()?;
        let fits = magic == MAGIC && slab_size == heap.slab_size() as u64 && slab_count <= heap.slab_count();
        fits.then_some(Self { heap, rest, next: 1, slab_count })
    }

    fn entry(&self) -> Option<(&'p [Word], u32, u32, Found)> {
        let (head, rest) = self.rest.split_first()?;
        let head = head.get();
        let slab = head as u32;
        let room = self.slab_count.checked_sub(slab).filter(|room| *room > 0 && slab >= self.next)?;
        if (head >> 32) as u8 == RUN {
            let (count, rest) = rest.split_first()?;
            let count = u32::try_from(count.get()).ok().filter(|count| (1..=room).contains(count))?;
            return Some((rest, slab, count, Found::Run { count }));
        }
        let class = self.heap.classes.exact((head >> 40) as usize)?;
        let shape = self.heap.classes.get(class);
        if shape.slabs > room {
            return None;
        }
        match (head >> 32) as u8 {
            FULL => Some((rest, slab, shape.slabs, Found::Blocks { class, used: shape.all() })),
            PARTLY => {
                let (used, rest) = rest.split_at_checked(shape.bitmap_words())?;
                let used: Box<[u64]> = used.iter().map(Word::get).collect();
                let sound = used.iter().enumerate().all(|(word, bits)| bits & !shape.all_in(word) == 0);
                sound.then_some((rest, slab, shape.slabs, Found::Blocks { class, used }))
            }
            _ => None,
        }
    }
}

impl Iterator for Entries<'_> {
    type Item = (u32, Found);

    fn next(&mut self) -> Option<(u32, Found)> {
        let (rest, slab, count, found) = self.entry()?;
        self.rest = rest;
        self.next = slab + count;
        Some((slab, found))
    }
}

pub(super) fn checksum(words: impl Iterator<Item = u64>) -> u32 {
    words.fold(0, |crc, word| crate::crc32c(crc, &word.to_le_bytes()))
}
