//! PMwCAS: words of a pool that change together, without locks, and survive a crash together (T. Wang, J. Levandoski and P.-A. Larson, "Easy Lock-Free Indexing
//! in Non-Volatile Memory", ICDE 2018).
//!
//! ```text
//! word         value | bit 63: a descriptor is there instead: bits 0-47 its offset, 48-62 check bits
//! descriptor   head | its targets, by ascending offset
//! head         bits 0-31 CRC-32C of the targets, 32-39 how many, 40-63 undecided, succeeded or failed: a byte, three times
//! target       offset of the word | old value | new value
//! ```
//!
//! 1. The descriptor is written and made durable. A crash: the descriptor is unreachable, hence free memory.
//! 2. The targets, in order: old value -> the descriptor, by an exchange. Another descriptor that is there is helped first; if there is another value, this
//!    descriptor has failed. Then all targets are made durable. A crash: recovery finds the descriptor, undecided, in some of the words, and restores their old
//!    values.
//! 3. Undecided -> succeeded: the commit point; persist. No thread sees a new value before that, so a crash takes back none that was seen. The head of a failed
//!    descriptor need not be durable: undecided means the same.
//! 4. The targets: the descriptor -> new values, or the old ones; flush; a fence. A crash: recovery puts the value into each word that still has the
//!    descriptor.
//! 5. The descriptor is given up.
//!
//! A thread that meets a descriptor does the same steps for it, and need not know how far another has come. A thread that has taken a descriptor out of a word,
//! or may have, stays in its epoch until that is durable. So the descriptor's memory is not reused while a crash could bring it back.
//!
//! # Without dirty bits
//!
//! The paper marks a value that may not be durable yet, and readers make it durable. Here a value that is seen before its flush is the one that recovery would
//! put in place of the descriptor. That value was durable in the word before the decision, or the decision for it is durable, and the descriptor stays as long.
//! So what is read is what recovery would find (durable linearizability), and a reader flushes only what it helps.
//!
//! # Without conditional exchanges
//!
//! The paper installs a descriptor by a second one, which checks whether the first is still undecided: otherwise a late thread would install it in a word whose
//! old value has come back. Here no value comes back: each target of a successful exchange changes, and no earlier value is ever stored again (statuses count
//! up; a record becomes visible, then deleted; a child is a block that is not reused while a late thread is pinned). So a late thread finds another value; or
//! the old one, if the descriptor has failed, and then it restores that itself, as in 4.
//!
//! A late thread may still lead others to a descriptor that has been given up, and to the nodes of its targets: those wait for two epochs
//! ([`Pool::retire_twice`]). A thread that finds a decided descriptor touches only the word where it found it.

use crate::Error;
use everleaf_pmem::{LINE, Medium, Off, Pool, WORD, Word, crc32c};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const DESCRIPTOR: u64 = 1 << 63;
/// The bits of a value.
const VALUE: u64 = DESCRIPTOR - 1;
const OFFSET: u64 = (1 << 48) - 1;

/// The most words that change together.
pub(super) const TARGETS_MAX: usize = 5;
/// Size of a target in words.
const TARGET: usize = 3;
/// Most descriptors met one in another. If they are sound, each belongs to another thread.
const DEPTH_MAX: usize = 512;

const COUNT_SHIFT: u32 = 32;
const STATE_SHIFT: u32 = 40;
const UNDECIDED: u64 = 0x11_1111 << STATE_SHIFT;
const SUCCEEDED: u64 = 0x22_2222 << STATE_SHIFT;
const FAILED: u64 = 0x44_4444 << STATE_SHIFT;
const STATE: u64 = 0xff_ffff << STATE_SHIFT;

/// A word that is to change from one value to another.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) word: &'a Word,
    pub(super) old: u64,
    pub(super) new: u64,
}

struct Descriptor<'a> {
    head: &'a Word,
    /// The head, undecided.
    undecided: u64,
    /// The word that stands where a descriptor is installed.
    reference: u64,
    targets: Vec<Target<'a>>,
}

/// A word that leads to a block, with as many bits as a value: it keeps some of the check bits.
#[inline(always)]
pub(super) fn link(off: Off<Word>) -> u64 {
    off.link() & VALUE
}

/// The block to which such a word leads.
#[inline(always)]
pub(super) fn linked(word: u64) -> Option<Off<Word>> {
    let off = Off::new(word & OFFSET);
    (link(off) == word && !off.is_null() && off.bytes().is_multiple_of(LINE as u64)).then_some(off)
}

fn damage(at: u64) -> Error {
    everleaf_pmem::Error::corrupt(at, "a word with a descriptor that is none").into()
}

/// The head of a descriptor with these targets, before it is decided.
fn head_of(targets: &[u64]) -> u64 {
    UNDECIDED | ((targets.len() / TARGET) as u64) << COUNT_SHIFT | u64::from(crc32c(0, bytemuck::cast_slice(targets)))
}

impl<'a> Descriptor<'a> {
    /// The descriptor that a word refers to, and its state; `None` if there is none.
    fn find<M: Medium>(pool: &'a Pool<M>, reference: u64) -> Option<(Self, u64)> {
        let off = linked(reference ^ DESCRIPTOR)?;
        let head = pool.get(off)?;
        let found = head.load(Acquire);
        let count = (found >> COUNT_SHIFT) as u8 as usize;
        if !(1..=TARGETS_MAX).contains(&count) {
            return None;
        }
        let words: Vec<u64> = pool.words(off, 1 + TARGET * count)?[1..].iter().map(Word::get).collect();
        let undecided = found & !STATE | UNDECIDED;
        let state = found & STATE;
        let is_ascending = words.chunks(TARGET).is_sorted_by(|a, b| a[0] < b[0]) && words.chunks(TARGET).all(|target| target[1] | target[2] <= VALUE);
        if head_of(&words) != undecided || ![UNDECIDED, SUCCEEDED, FAILED].contains(&state) || !is_ascending {
            return None;
        }
        let target = |words: &[u64]| Some(Target { word: pool.get(Off::new(words[0]))?, old: words[1], new: words[2] });
        let targets = words.chunks(TARGET).map(target).collect::<Option<_>>()?;
        Some((Self { head, undecided, reference, targets }, state))
    }

    /// The value of a word once the descriptor is removed from it.
    fn value(target: &Target<'_>, state: u64) -> u64 {
        if state == SUCCEEDED { target.new } else { target.old }
    }

    /// Installs the descriptor where the old values are. Returns whether it was in all words, as long as it was undecided.
    fn install<M: Medium>(&self, pool: &Pool<M>, depth: usize) -> Result<bool, Error> {
        for target in &self.targets {
            // persist-equivalent(exchange early): they may come in any order.
            while let Err(found) = pool.compare_exchange(target.word, target.old, self.reference) {
                match found {
                    _ if found == self.reference => break,
                    _ if found & DESCRIPTOR != 0 => settle(pool, target.word, found, depth)?,
                    _ => return Ok(false),
                }
            }
        }
        Ok(true)
    }

    /// The target that is this word, if any.
    fn target(&self, word: &Word) -> Option<&Target<'a>> {
        self.targets.iter().find(|target| std::ptr::eq(target.word, word))
    }

    /// Steps 2 to 4. Returns whether it has succeeded.
    fn run<M: Medium>(&self, pool: &Pool<M>, depth: usize) -> Result<bool, Error> {
        if depth > DEPTH_MAX {
            return Err(damage(pool.offset_of(self.head).bytes()));
        }
        let is_installed = self.install(pool, depth)?;
        if is_installed {
            flush_all(pool, &self.targets);
            // persist-equivalent(fence drop): the exchange is a fence, too.
            pool.fence();
        }
        let decided = self.undecided & !STATE | if is_installed { SUCCEEDED } else { FAILED };
        let state = STATE & pool.compare_exchange(self.head, self.undecided, decided).map_or_else(|found| found, |_| decided);
        self.finish(pool, &self.targets, state);
        Ok(state == SUCCEEDED)
    }

    /// Step 4, and the rest of 3, for some of the targets.
    fn finish<M: Medium>(&self, pool: &Pool<M>, targets: &[Target<'_>], state: u64) {
        if state == SUCCEEDED {
            // persist-equivalent(fence drop): the exchange is a fence, too.
            pool.persist(self.head);
        }
        for target in targets {
            // persist-equivalent(exchange early): they may come in any order, as the head is durable.
            _ = pool.compare_exchange(target.word, self.reference, Self::value(target, state));
        }
        flush_all(pool, targets);
        pool.fence();
    }
}

/// Flushes the lines of targets, each once.
fn flush_all<M: Medium>(pool: &Pool<M>, targets: &[Target<'_>]) {
    let line = |target: &Target<'_>| pool.offset_of(target.word).bytes() / LINE as u64;
    for same in targets.chunk_by(|a, b| line(a) == line(b)) {
        pool.flush(same[0].word);
    }
}

/// The value of a word; no crash takes it back.
#[inline(always)]
pub(super) fn read<M: Medium>(pool: &Pool<M>, word: &Word) -> Result<u64, Error> {
    loop {
        let found = word.load(Acquire);
        if found & DESCRIPTOR == 0 {
            return Ok(found);
        }
        settle(pool, word, found, 0)?;
    }
}

/// Helps a descriptor that was found in a word: afterwards the word holds something else.
#[cold]
fn settle<M: Medium>(pool: &Pool<M>, word: &Word, found: u64, depth: usize) -> Result<(), Error> {
    let descriptor = Descriptor::find(pool, found);
    match descriptor.as_ref().and_then(|(descriptor, state)| Some((descriptor, *state, descriptor.target(word)?))) {
        Some((descriptor, UNDECIDED, _)) => descriptor.run(pool, depth + 1).map(drop),
        Some((descriptor, state, target)) => {
            descriptor.finish(pool, std::slice::from_ref(target), state);
            Ok(())
        }
        // No damage if it has gone meanwhile.
        None if word.load(Acquire) == found => Err(damage(pool.offset_of(word).bytes())),
        None => Ok(()),
    }
}

/// Changes all targets, or none, durably. Returns whether it has; it has not if one had another value than the old one. The caller is pinned, and was when it
/// read the old values.
///
/// # Errors
/// A full pool; or damage: then nothing may reuse what the new values lead to.
pub(super) fn exchange<M: Medium>(pool: &Pool<M>, targets: &mut [Target<'_>]) -> Result<bool, Failed> {
    targets.sort_unstable_by_key(|target| pool.offset_of(target.word).bytes());
    let words: Vec<u64> = targets.iter().flat_map(|target| [pool.offset_of(target.word).bytes(), target.old, target.new]).collect();
    let block = pool.alloc_words((1 + words.len()).next_multiple_of(LINE / WORD)).map_err(|error| Failed::Unseen(error.into()))?;
    let undecided = head_of(&words);
    block.iter().zip(std::iter::once(&undecided).chain(&words)).for_each(|(word, value)| pool.store(word, *value, Relaxed));
    // persist-equivalent(fence drop): the first exchange is a fence, too.
    let block = pool.fence_all(block.flush_first((1 + words.len()) * WORD));
    let head = pool.get(block.off().cast()).expect("a block lies in the pool");
    let descriptor = Descriptor { head, undecided, reference: DESCRIPTOR | link(block.off().cast()), targets: targets.to_vec() };
    let has_succeeded = descriptor.run(pool, 0);
    let off = block.release();
    let has_succeeded = has_succeeded.map_err(Failed::Seen)?;
    pool.retire_twice(off, &pool.pin());
    Ok(has_succeeded)
}

/// Why words have not been changed.
pub(super) enum Failed {
    /// No other thread has seen any of it.
    Unseen(Error),
    /// Other threads may still change them.
    Seen(Error),
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Unseen(error) | Failed::Seen(error) => error,
        }
    }
}

/// The value of a word in which a crash may have left a descriptor. Stores and flushes that value; no other thread uses the tree.
///
/// # Errors
/// Damage.
pub(super) fn recover<M: Medium>(pool: &Pool<M>, word: &Word) -> Result<u64, Error> {
    let found = word.get();
    if found & DESCRIPTOR == 0 {
        return Ok(found);
    }
    let value = Descriptor::find(pool, found).and_then(|(descriptor, state)| Some(Descriptor::value(descriptor.target(word)?, state)));
    let value = value.ok_or_else(|| damage(pool.offset_of(word).bytes()))?;
    pool.store(word, value, Release);
    pool.flush(word);
    Ok(value)
}
