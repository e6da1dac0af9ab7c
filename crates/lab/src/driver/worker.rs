//! A thread of a phase.
//!
//! ```text
//! script: the next block of operations, with their keys and values -> clock -> player: the calls of the system, and a look at each answer -> clock -> ...
//! ```
//!
//! A processor looks some hundreds of instructions ahead. Choosing a key takes as many as a search of a good index. Between two searches these instructions
//! would keep the second from starting while the first waits for memory, and the figure would be that of the driver. Checking each answer would do the same. So
//! a block of operations of one kind that are not observed separately is one call of the system, which executes them one after the other; answers
//! are checked when the clock has stopped.

use super::{Kind, Outcome, Work, shares};
use crate::choice::Chooser;
use crate::keys::{ABSENT, DENSE, append_value, is_whole, version_of};
use crate::plan::{Access, Distribution, KeyKind, Lengths, Measure};
use crate::{Error, Handle, Instance};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::hint::black_box;
use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

/// Maximum operations of a block, and bytes of their keys and values, which should stay in the nearest cache.
const BLOCK: usize = 256;
const BLOCK_BYTES: usize = 16 << 10;

/// A future operation.
struct Operation {
    kind: Kind,
    /// The number of its key.
    number: u64,
    /// Entries that a scan visits.
    length: u32,
}

/// A block of future operations.
#[derive(Default)]
struct Block {
    operations: Vec<Operation>,
    /// The kind of all operations, if they have only one.
    kind: Option<Kind>,
    /// One more key than there are operations, see [`Player::bend`].
    keys: Vec<u8>,
    values: Vec<u8>,
}

/// The keys of a thread that alone adds and removes them, and so knows which exist.
struct Share {
    /// Numbers of the keys that exist; `absent` has those that did.
    present: Vec<u64>,
    absent: Vec<u64>,
}

/// Generates the blocks of a thread.
struct Script<'a> {
    work: &'a Work<'a>,
    /// The remaining operations.
    part: Range<u64>,
    /// The number of the first key that this thread inserts. Each thread has a run of numbers, so each inserts in order if keys ascend.
    first: u64,
    inserted: u64,
    /// Its own keys, if it has such; else all threads share the keys that existed before.
    share: Option<Share>,
    chooser: Chooser,
    random: SmallRng,
    /// Kinds that occur, with the cumulative shares.
    kinds: Vec<(Kind, f64)>,
}

impl<'a> Script<'a> {
    fn new(work: &'a Work<'a>, thread: u64, part: Range<u64>) -> Result<Self, Error> {
        let phase = work.phase;
        let (count, threads) = (work.population.count(), usize::from(work.parameters.threads));
        let share = super::is_shared_out(&phase.mix).then(|| {
            let present = (thread..count).step_by(threads).map(|place| work.population.number(place)).collect();
            Share { present, absent: Vec::new() }
        });
        let count = share.as_ref().map_or(count, |share| share.present.len() as u64);
        // In a mix with inserts the number of keys grows, so uniform draws may repeat keys.
        let draws = if phase.mix.insert > 0.0 || share.is_some() { u64::MAX } else { work.operations };
        let chooser = Chooser::new(phase.distribution, count, draws, part.start)?;
        let random = SmallRng::seed_from_u64(work.context.seed ^ (thread + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let shares = shares(&phase.mix);
        let (sum, mut below) = (shares.iter().sum::<f64>(), 0.0);
        let mut kinds = Vec::new();
        for ((kind, _), share) in super::KINDS.into_iter().zip(shares).filter(|(_, share)| *share > 0.0) {
            below += share / sum;
            kinds.push((kind, below));
        }
        Ok(Self { work, first: work.insert_base + part.start, part, inserted: 0, share, chooser, random, kinds })
    }

    /// Writes the next block. Returns whether there is one.
    ///
    /// # Errors
    /// A mix that has removed every key of this thread.
    fn write(&mut self, block: &mut Block) -> Result<bool, Error> {
        let (keys, value_bytes) = (self.work.keys, self.work.parameters.value_bytes);
        let count = match self.work.phase.access {
            Access::Batch(size) => size.into(),
            Access::Independent | Access::Dependent => (BLOCK_BYTES / (keys.size() + value_bytes as usize)).clamp(1, BLOCK) as u64,
        };
        let count = count.min(self.part.end - self.part.start);
        self.part.start += count;
        block.kind = if let [(kind, _)] = self.kinds[..] { Some(kind) } else { None };
        block.operations.clear();
        block.keys.clear();
        block.values.clear();
        for _ in 0..count {
            let kind = self.kind();
            let number = match kind {
                Kind::Insert => self.add(),
                Kind::Miss => ABSENT | self.random.random_range(0..DENSE >> 2),
                Kind::Search | Kind::Update | Kind::Modify | Kind::Delete | Kind::Scan => self.choose(kind)?,
            };
            keys.append(number, &mut block.keys);
            match kind {
                Kind::Insert => append_value(number, 0, value_bytes, &mut block.values),
                Kind::Update => append_value(number, self.random.random::<u16>() | 1, value_bytes, &mut block.values),
                _ => block.values.resize(block.values.len() + value_bytes as usize, 0),
            }
            let length = match (kind, self.work.phase.lengths) {
                (Kind::Scan, Lengths::Uniform) => self.random.random_range(1..=self.work.parameters.scan_length.max(1)),
                _ => self.work.parameters.scan_length,
            };
            block.operations.push(Operation { kind, number, length });
        }
        keys.append(0, &mut block.keys);
        Ok(count > 0)
    }

    fn kind(&mut self) -> Kind {
        match self.kinds.as_slice() {
            [(kind, _)] => *kind,
            kinds => {
                let at = self.random.random::<f64>();
                kinds.iter().find(|(_, below)| at < *below).unwrap_or(&kinds[kinds.len() - 1]).0
            }
        }
    }

    /// The number of a key that does not exist yet: one of its own that existed before, or a new one.
    fn add(&mut self) -> u64 {
        let again = self.share.as_mut().filter(|share| !share.absent.is_empty()).map(|share| {
            let place = self.random.random_range(0..share.absent.len());
            share.absent.swap_remove(place)
        });
        let number = again.unwrap_or_else(|| {
            self.inserted += 1;
            self.first + self.inserted - 1
        });
        if let Some(share) = &mut self.share {
            share.present.push(number);
        }
        number
    }

    /// The number of a key that will exist: one of its own, if it has such, or one from before the phase, or one that this thread will have inserted.
    fn choose(&mut self, kind: Kind) -> Result<u64, Error> {
        if let Some(share) = &mut self.share {
            if share.present.is_empty() {
                let name = &self.work.phase.name;
                let message =
                    format!("phase {name} has removed all keys; let it insert as many as it deletes, or do fewer operations, or begin with more keys");
                return Err(Error::Usage(message));
            }
            let place = self.chooser.next(share.present.len() as u64, &mut self.random) as usize % share.present.len();
            if kind != Kind::Delete {
                return Ok(share.present[place]);
            }
            let number = share.present.swap_remove(place);
            share.absent.push(number);
            return Ok(number);
        }
        let before = self.work.population.count();
        let place = self.chooser.next(before + self.inserted, &mut self.random);
        Ok(if place < before { self.work.population.number(place) } else { self.first + place - before })
    }
}

/// Executes the blocks.
struct Player<'a> {
    work: &'a Work<'a>,
    instance: &'a dyn Instance,
    handle: Box<dyn Handle + 'a>,
    /// Derived from the last value found, for dependent lookups: always 0, but only the lab knows. The next key is taken this many places further on.
    bend: usize,
    /// The bits of a value that go into `bend`: none, which the compiler does not know.
    bent_by: usize,
    value: Vec<u8>,
    /// How many keys a block of lookups has found by one call, and the values, with zeroes for missing ones; none once they have been checked.
    count: Option<u64>,
    found: Vec<u8>,
    /// Where a sequential scan continues.
    cursor: Option<Vec<u8>>,
    /// The last key that a scan visited.
    last: Vec<u8>,
    /// Time spent asking the system what has happened, between timed operations: it belongs to none of them.
    aside: Duration,
    outcome: Outcome,
}

impl Player<'_> {
    /// Executes a block. Instruction counts of a run cover only this function, which is found by its name.
    #[inline(never)]
    fn play(&mut self, block: &Block) -> Result<(), Error> {
        if let Access::Batch(_) = self.work.phase.access {
            return self.batch(block);
        }
        let (key_size, value_size) = (self.work.keys.size(), self.work.parameters.value_bytes as usize);
        let timed = self.work.parameters.measure == Measure::Latency;
        if let Some(kind) = block.kind.filter(|_| !timed && !self.work.marked)
            && self.play_alike(kind, block)?
        {
            return Ok(());
        }
        for (at, Operation { kind, number, length }) in block.operations.iter().enumerate() {
            let key = &block.keys[(at + self.bend) * key_size..][..key_size];
            let value = &block.values[at * value_size..][..value_size];
            // Each operation reads the clock twice, besides the reads for what is set aside.
            let marked = self.work.marked && *kind == Kind::Insert;
            let came = (timed && marked).then(Instant::now);
            let before = if marked { self.instance.marks() } else { None };
            let start = timed.then(Instant::now);
            let right = self.operate(*kind, *number, *length, key, value)?;
            let end = timed.then(Instant::now);
            let after = if marked { self.instance.marks() } else { None };
            if let (Some(came), Some(start), Some(end)) = (came, start, end) {
                self.aside += start - came + end.elapsed();
            }
            let nanoseconds = start.zip(end).map_or(0, |(start, end)| (end - start).as_nanos() as u64);
            self.outcome.wrong += u64::from(!right);
            if timed {
                self.outcome.record(*kind, nanoseconds, 1);
            }
            if let (Some(before), Some(after)) = (before, after) {
                let group = if after.splits > before.splits { &mut self.outcome.dividing } else { &mut self.outcome.common };
                let (lines, fences) = (after.lines_flushed - before.lines_flushed, after.fences - before.fences);
                group.add(super::Group { count: 1, lines, lines_max: lines, fences, nanoseconds });
            }
        }
        Ok(())
    }

    /// Executes a block of one kind, if the system has a call for that. Returns whether it has. [`Player::look_back`] checks lookups.
    #[inline(always)]
    fn play_alike(&mut self, kind: Kind, block: &Block) -> Result<bool, Error> {
        let (size, value_size, count) = (self.work.keys.size(), self.work.parameters.value_bytes as usize, block.operations.len());
        let (keys, values) = (block.keys[..count * size].chunks_exact(size), block.values.chunks_exact(value_size));
        match kind {
            Kind::Insert => self.handle.insert_each(keys, values)?,
            Kind::Update => self.handle.update_each(keys, values)?,
            Kind::Delete => self.outcome.wrong += count as u64 - self.handle.delete_each(keys)?,
            Kind::Search if self.work.phase.access == Access::Dependent => {
                self.count = Some(self.handle.get_in_turn(keys, value_size, &mut self.found, self.bent_by)?);
            }
            Kind::Search => self.count = Some(self.handle.get_each(keys, value_size, &mut self.found)?),
            Kind::Miss => {
                self.outcome.wrong += self.handle.get_each(keys, value_size, &mut self.found)?;
                self.found.clear();
            }
            Kind::Scan | Kind::Modify => return Ok(false),
        }
        Ok(true)
    }

    /// Checks that lookups have found what they should; that the last update of a block took effect, as no inserted value has its version (others may have
    /// updated the key since, but never to version 0); that the last removed key does not exist (only this thread could have restored it, or removed what it
    /// had updated); and, where keys do not change, that the last scan, repeated, visits exactly what exists.
    fn look_back(&mut self, block: &Block) -> Result<(), Error> {
        let (key_size, operations) = (self.work.keys.size(), &block.operations);
        if let Some(count) = self.count.take() {
            let found = self.found.chunks_exact(self.work.parameters.value_bytes as usize);
            let is_right = |(operation, value): &(&Operation, &[u8])| version_of(value, operation.number).is_some();
            let right = operations.iter().zip(found).filter(is_right).count() as u64;
            // The zeroes of a missing key may be a value, if values are short.
            self.outcome.wrong += operations.len() as u64 - right.min(count);
        }
        self.found.clear();
        let last = |kind, undone: Kind| {
            let at = operations.iter().rposition(|operation| operation.kind == kind)?;
            let number = operations[at].number;
            let stands = operations[at + 1..].iter().all(|later| later.kind != undone || later.number != number);
            stands.then(|| (number, &block.keys[at * key_size..][..key_size]))
        };
        if let Some((number, key)) = last(Kind::Update, Kind::Delete) {
            let version = self.find(number, key)?;
            self.outcome.wrong += u64::from(version.is_none_or(|version| version == 0));
        }
        if let Some((_, key)) = last(Kind::Delete, Kind::Insert) {
            self.value.clear();
            self.outcome.wrong += u64::from(self.handle.get(key, &mut self.value)?);
        }
        if let (Some(sorted), Some(at)) = (&self.work.sorted, operations.iter().rposition(|operation| operation.kind == Kind::Scan)) {
            let key = &block.keys[at * key_size..][..key_size];
            self.outcome.wrong += u64::from(!self.scans_all(sorted, &operations[at], key)?);
        }
        Ok(())
    }

    /// Whether a scan visits exactly the expected keys, given all keys in order.
    fn scans_all(&mut self, sorted: &[u64], scan: &Operation, from: &[u8]) -> Result<bool, Error> {
        let (keys, size) = (self.work.keys, self.work.parameters.value_bytes as usize);
        let first = sorted.partition_point(|number| keys.integer(*number) < keys.integer(scan.number));
        let (mut left, mut right, mut expected) = (sorted[first..].iter().take(scan.length.max(1) as usize), true, Vec::new());
        self.handle.scan(from, &mut |key, value| {
            right &= left.next().is_some_and(|number| {
                expected.clear();
                keys.append(*number, &mut expected);
                key == expected && value.len() == size && version_of(value, *number).is_some() && is_whole(value)
            });
            if right && left.len() > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(right && left.len() == 0)
    }

    /// Executes a block by one call. [`Player::look_back`] checks lookups.
    fn batch(&mut self, block: &Block) -> Result<(), Error> {
        let (key_size, value_size, count) = (self.work.keys.size(), self.work.parameters.value_bytes as usize, block.operations.len());
        let start = Instant::now();
        let keys = block.keys[..count * key_size].chunks_exact(key_size);
        let kind = if self.work.phase.mix.insert > 0.0 { Kind::Insert } else { Kind::Search };
        match kind {
            Kind::Insert => self.handle.insert_many(keys, block.values.chunks_exact(value_size))?,
            _ => self.count = Some(self.handle.get_many(keys, value_size, &mut self.found)?),
        }
        if self.work.parameters.measure == Measure::Latency {
            // Each operation counts as long as the whole batch, as a caller waits for all of it.
            self.outcome.record(kind, start.elapsed().as_nanos() as u64, count as u64);
        }
        Ok(())
    }

    /// Executes one operation. Returns whether the answer was right.
    #[inline(always)]
    fn operate(&mut self, kind: Kind, number: u64, length: u32, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        match kind {
            Kind::Insert => self.handle.insert(key, value).map(|()| true),
            Kind::Search => Ok(self.find(number, key)?.is_some()),
            Kind::Miss => {
                self.value.clear();
                Ok(!self.handle.get(key, &mut self.value)?)
            }
            Kind::Update => self.handle.update(key, value).map(|()| true),
            Kind::Modify => {
                let Some(version) = self.find(number, key)? else { return Ok(false) };
                self.value.clear();
                append_value(number, version.wrapping_add(1).max(1), self.work.parameters.value_bytes, &mut self.value);
                self.handle.update(key, &self.value).map(|()| true)
            }
            Kind::Delete => self.handle.delete(key),
            Kind::Scan => self.scan(key, length.into()),
        }
    }

    /// The version of the value of a key, if the key exists and the value is right.
    #[inline(always)]
    fn find(&mut self, number: u64, key: &[u8]) -> Result<Option<u16>, Error> {
        self.value.clear();
        let found = self.handle.get(key, &mut self.value)?;
        let has_size = found && self.value.len() == self.work.parameters.value_bytes as usize;
        let version = if has_size { version_of(&self.value, number) } else { None };
        if self.work.phase.access == Access::Dependent {
            // Always 0, but the processor cannot know that before it has the value. A comparison could become a branch, which would be predicted.
            self.bend = usize::from(self.value.first().copied().unwrap_or(0)) & self.bent_by;
        }
        Ok(version)
    }

    fn scan(&mut self, from: &[u8], length: u64) -> Result<bool, Error> {
        let sequential = self.work.phase.distribution == Distribution::Sequential;
        let cursor = sequential.then(|| self.cursor.take().unwrap_or_else(|| vec![0; 8]));
        let (mut visited, mut right, mut before) = (0, true, None);
        let (size, last) = (self.work.parameters.value_bytes as usize, &mut self.last);
        self.handle.scan(cursor.as_deref().unwrap_or(from), &mut |key, value| {
            let words = words_of(key);
            let ascends = if words.is_some() { std::mem::replace(&mut before, words) < words } else { key > last.as_slice() };
            // A random scan begins with an existing key. Values are read, as a scan's user reads them: not every engine reads what it hands out.
            right &= value.len() == size && is_whole(value) && if visited == 0 { sequential || key == from } else { ascends };
            visited += 1;
            if visited == length || words.is_none() {
                last.clear();
                last.extend_from_slice(key);
            }
            if visited < length { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        self.outcome.visited += visited;
        if sequential && visited == length {
            // The smallest key above the last one.
            self.cursor = Some(match self.work.parameters.key {
                KeyKind::Integer => last.first_chunk().map_or(0, |word| u64::from_be_bytes(*word) + 1).to_be_bytes().to_vec(),
                KeyKind::Bytes(_) => [last.as_slice(), &[0]].concat(),
            });
        }
        Ok(right && (sequential || visited > 0))
    }
}

/// Words that order keys of one size as their bytes do, without a call. The words may overlap. `None` for keys of more than 24 bytes, or fewer than 8.
#[inline(always)]
fn words_of(key: &[u8]) -> Option<[u64; 3]> {
    let (first, last, middle) = (key.first_chunk()?, key.last_chunk()?, key.len() - 8);
    let middle = key.get(middle.min(8)..)?.first_chunk()?;
    (key.len() <= 24).then(|| [first, middle, last].map(|word| u64::from_be_bytes(*word)))
}

/// A thread of a phase.
pub(super) struct Worker<'a> {
    script: Script<'a>,
    player: Player<'a>,
}

impl<'a> Worker<'a> {
    /// For the operations of `part`.
    ///
    /// # Errors
    /// An invalid distribution.
    pub(super) fn new(work: &'a Work<'a>, thread: u64, part: Range<u64>, handle: Box<dyn Handle + 'a>, instance: &'a dyn Instance) -> Result<Self, Error> {
        let (value, last, aside, outcome) = (Vec::new(), Vec::new(), Duration::ZERO, Outcome::default());
        let player =
            Player { work, instance, handle, bend: 0, bent_by: black_box(0), value, count: None, found: Vec::new(), cursor: None, last, aside, outcome };
        Ok(Self { script: Script::new(work, thread, part)?, player })
    }

    /// Executes all operations, or as many as there is time for.
    ///
    /// # Errors
    /// Any failure of the system.
    pub(super) fn run(self) -> Result<Outcome, Error> {
        let (Self { mut script, mut player }, mut block) = (self, Block::default());
        while !script.work.context.stopped() && script.write(&mut block)? {
            let start = Instant::now();
            player.play(&block)?;
            let aside = std::mem::take(&mut player.aside);
            player.outcome.busy += start.elapsed() - aside;
            player.outcome.aside += aside;
            player.outcome.operations += block.operations.len() as u64;
            player.look_back(&block)?;
        }
        let mut outcome = player.outcome;
        if script.inserted > 0 {
            outcome.inserted.push((script.first, script.inserted));
        }
        outcome.left = script.share.map_or_else(Vec::new, |share| share.present);
        Ok(outcome)
    }
}
