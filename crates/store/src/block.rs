//! The store block: what the store itself keeps in the pool, beside its namespaces.
//!
//! ```text
//! line 0       +--------+-------------+--------------------------+
//!              | format | clock limit | reserved, 0              |
//! lines 1-31   +--------+-------------+--------------------------+
//! (a slot each)| log    | commit      | reserved, 0              |
//!              +--------+-------------+--------------------------+
//! format       FORMAT
//! clock limit  no commit timestamp at or above it was ever given out: in steps, and with check bits, as `clock.rs` has it
//! log          link of the log block of the batch that holds the slot, 0 = free
//! commit       0 = undecided; else the link of the log once more: the batch is committed, and the log means nothing any more
//! ```
//!
//! The block is the root named "everleaf". The log block of a batch is words as well:
//!
//! ```text
//! word  0       1             2          3                4
//!      +-------+-------------+----------+----------------+-----
//!      | token | entry count | checksum | namespace root | record link | namespace root | record link | ...
//!      +-------+-------------+----------+----------------+-----
//! token           the word that stands in `commit` of every record of the batch until it is stamped
//! checksum        CRC-32C of all other words
//! namespace root  offset of the root block of the namespace's index
//! ```
//!
//! Log and commit of a slot share a line and are freed in that order, so a crash leaves one of (log, 0), (log, commit), (0, commit), (0, 0), and only the first
//! of them, with the log of a batch that was not committed, requires action. Anything else is damage: changing one byte turns no link, and no absent link, into
//! another link or an absent one. So no single byte of a slot decides about a batch, nor does one of the clock.
//!
//! Formats 1 and 2 were never released and are not opened: in format 2, words of leaves had no check bits, and a commit was a timestamp.

use crate::{Error, clock};
use everleaf_pmem::{Medium, Off, Pm, Pool, Word, resident};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of commit slots: that many batches can run at once.
pub(crate) const SLOT_COUNT: usize = 31;
/// "ever" and the version of this format.
pub(crate) const FORMAT: u64 = 0x6576_6572_0000_0003;
const LOG_HEADER_WORDS: usize = 3;

resident! {
    /// See the module documentation.
    #[repr(align(64))]
    pub(crate) struct Slot {
        log: Word,
        commit: Word,
        reserved: [Word; 6],
    }
}

resident! {
    /// See the module documentation.
    #[repr(align(64))]
    pub(crate) struct StoreBlock {
        format: Word,
        pub(crate) clock_limit: Word,
        reserved: [Word; 6],
        pub(crate) slots: [Slot; SLOT_COUNT],
    }
}

impl StoreBlock {
    /// Creates the block and links it as the store's root.
    pub(crate) fn create<M: Medium>(pool: &Pool<M>) -> Result<Off<Self>, Error> {
        let block = pool.alloc_zeroed::<Self>()?;
        pool.store(&block.format, FORMAT, Ordering::Relaxed);
        pool.store(&block.clock_limit, clock::limit_of(clock::START), Ordering::Relaxed);
        Ok(pool.link_root(crate::error::STORE_ROOT, FORMAT, pool.seal(block))?)
    }

    /// The block at `off`, the offset in the root.
    pub(crate) fn open<M: Medium>(pm: &Pm<M>, off: Off<Self>) -> Result<&Self, Error> {
        let block = pm.at(off, "a store block that does not lie in the pool")?;
        match block.format.get() {
            FORMAT => Ok(block),
            // No version writes that: the block is lost, like the end of a file that was cut off.
            0 => Err(everleaf_pmem::Error::corrupt(off.bytes(), "a store block without a format").into()),
            found => Err(Error::UnknownFormat { found, known: FORMAT }),
        }
    }
}

/// Access to the store block of an open store, whose offset was checked when it was opened.
pub(crate) struct Header<M: Medium> {
    pool: Arc<Pool<M>>,
    off: Off<StoreBlock>,
}

impl<M: Medium> Header<M> {
    pub(crate) fn new(pool: Arc<Pool<M>>, off: Off<StoreBlock>) -> Self {
        Self { pool, off }
    }

    pub(crate) fn off(&self) -> Off<StoreBlock> {
        self.off
    }

    pub(crate) fn get(&self) -> &StoreBlock {
        self.pool.get(self.off).expect("the store block was found in the pool when it was opened, and pools do not shrink")
    }
}

impl Slot {
    /// The link of the log of a batch that was not committed; `None` if there is no batch, or it is committed.
    pub(crate) fn undecided<M: Medium>(&self, pm: &Pm<M>) -> Result<Option<u64>, Error> {
        match (self.log.get(), self.commit.get()) {
            (0, _) => Ok(None),
            (log, 0) => Ok(Some(log)),
            (log, commit) if log == commit => Ok(None),
            _ => Err(everleaf_pmem::Error::corrupt(pm.offset_of(&self.commit).bytes(), "a slot of a batch that commits another one").into()),
        }
    }

    /// Names the log, and flushes that: to be [published](Pm::publish) behind the log. `commit` was set to 0 before, in the same line.
    pub(crate) fn begin<M: Medium>(&self, pm: &Pm<M>, log: u64) {
        pm.store(&self.log, log, Ordering::Release);
        pm.flush(&self.log);
    }

    /// Commits the batch of that log, and flushes that: to be published behind the entries.
    pub(crate) fn commit<M: Medium>(&self, pm: &Pm<M>, log: u64) {
        pm.store(&self.commit, log, Ordering::Release);
        pm.flush(&self.commit);
    }

    /// Frees the slot of a committed batch. Not flushed: the slot requires no action before or after, and the next batch's log is stored to the line after
    /// this.
    #[track_caller]
    pub(crate) fn clear<M: Medium>(&self, pm: &Pm<M>) {
        pm.store(&self.log, 0, Ordering::Release);
        pm.store(&self.commit, 0, Ordering::Release);
    }

    /// [`Slot::clear`] for what a crash may have left in a free slot.
    #[track_caller]
    pub(crate) fn clear_remnant<M: Medium>(&self, pm: &Pm<M>) {
        if self.log.get() != 0 || self.commit.get() != 0 {
            self.clear(pm);
        }
    }

    /// Frees the slot of a batch that was undone, durably, so that its log block may be reused.
    #[track_caller]
    pub(crate) fn free<M: Medium>(&self, pm: &Pm<M>) {
        pm.store(&self.log, 0, Ordering::Release);
        pm.persist(self);
    }
}

/// A record of a batch: the root of its namespace's index, and its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogEntry {
    pub(crate) root: u64,
    pub(crate) link: u64,
}

/// Number of words of a log block.
pub(crate) fn log_word_count(entry_count: usize) -> usize {
    LOG_HEADER_WORDS + 2 * entry_count
}

/// Writes a log into a new block.
pub(crate) fn write_log<M: Medium>(pm: &Pm<M>, words: &[Word], token: u64, entries: &[LogEntry]) {
    let body = || entries.iter().flat_map(|entry| [entry.root, entry.link]);
    let header = [token, entries.len() as u64, log_checksum(token, entries.len(), body())];
    for (word, value) in words.iter().zip(header.into_iter().chain(body())) {
        pm.store(word, value, Ordering::Relaxed);
    }
}

/// Reads a log back: its offset, its size in bytes, the token and the entries.
pub(crate) fn read_log<M: Medium>(pm: &Pm<M>, link: u64) -> Result<(Off<Word>, usize, u64, Vec<LogEntry>), Error> {
    let off = Off::<Word>::from_link(link)?;
    let damaged = |what| everleaf_pmem::Error::corrupt(off.bytes(), what);
    let header = pm.words(off, LOG_HEADER_WORDS).ok_or_else(|| damaged("the log of a batch does not lie in the pool"))?;
    let (token, count) = (header[0].get(), header[1].get() as usize);
    let words = count.checked_mul(2).and_then(|words| words.checked_add(LOG_HEADER_WORDS)).and_then(|words| pm.words(off, words));
    let words = words.ok_or_else(|| damaged("the log of a batch claims more entries than the pool holds"))?;
    let body = &words[LOG_HEADER_WORDS..];
    // Checked before it is copied: the count may be what is damaged.
    if header[2].get() != log_checksum(token, count, body.iter().map(Word::get)) {
        return Err(damaged("the log of a batch does not match its checksum").into());
    }
    let entries = body.chunks_exact(2).map(|pair| LogEntry { root: pair[0].get(), link: pair[1].get() }).collect();
    Ok((off, size_of_val(words), token, entries))
}

fn log_checksum(token: u64, count: usize, body: impl Iterator<Item = u64>) -> u64 {
    let words = [token, count as u64].into_iter().chain(body);
    u64::from(words.fold(0, |crc, word| crc32c::crc32c_append(crc, &word.to_le_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use everleaf_pmem::{Hardware, PoolOptions};

    /// A changed byte of the commit word turned an unfinished batch into a committed one.
    #[test]
    fn no_byte_of_a_slot_decides_about_a_batch() {
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 1 << 20, ..PoolOptions::default() }).unwrap();
        let block = pool.alloc_zeroed::<StoreBlock>().unwrap();
        let slot = &block.slots[0];
        let log = Off::<[Word]>::new(0x1_2340).link();
        let each_byte_changed = |word: &Word, check: &dyn Fn(u64)| {
            let sound = word.get();
            for (shift, by) in (0..64).step_by(8).flat_map(|shift| (1..=255).map(move |by: u64| (shift, by))) {
                pool.store(word, sound ^ by << shift, Ordering::Relaxed);
                check(word.get());
            }
            pool.store(word, sound, Ordering::Relaxed);
        };
        slot.begin(&pool, log);
        assert_eq!(slot.undecided(&pool).unwrap(), Some(log));
        each_byte_changed(&slot.commit, &|commit| assert!(slot.undecided(&pool).is_err(), "{commit:#x}"));
        // A link to no log is refused when the log is read.
        each_byte_changed(&slot.log, &|log| assert!(slot.undecided(&pool).unwrap() == Some(log) && read_log(&pool, log).is_err(), "{log:#x}"));
        slot.commit(&pool, log);
        assert_eq!(slot.undecided(&pool).unwrap(), None);
        for word in [&slot.log, &slot.commit] {
            each_byte_changed(word, &|changed| assert!(slot.undecided(&pool).is_err(), "{changed:#x}"));
        }
        slot.clear(&pool);
        assert_eq!(slot.undecided(&pool).unwrap(), None);
    }
}
