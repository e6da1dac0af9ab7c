//! Adding and removing blocks. New ones are written, and made durable, before the one word that leads to them; see the head of the tree's module.

use super::block::{self, Shape};
use super::form::{Brought, Form};
use super::seek::Parted;
use super::{Array, Child, Inner, Pf, Step, Stop, Way};
use crate::latch::{Latch, Locked};
use crate::{Error, Key};
use everleaf_pmem::{Fresh, Medium, Off, Pool, Word};
use std::borrow::Borrow;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Blocks that nobody can reach yet.
pub(super) struct Built<'p, M: Medium> {
    pool: &'p Pool<M>,
    records_max: usize,
    blocks: Vec<Fresh<'p, [Word], M>>,
    /// How many words of each must be durable.
    lengths: Vec<usize>,
    /// The blocks of records that arrays lead to.
    records: Vec<Fresh<'p, [Word], M>>,
}

impl<'p, M: Medium> Built<'p, M> {
    pub(super) fn new(pool: &'p Pool<M>, records_max: usize) -> Self {
        Self { pool, records_max, blocks: Vec::new(), lengths: Vec::new(), records: Vec::new() }
    }

    /// Takes in the block of a record, if it has one. Returns the payload for the array.
    pub(super) fn take(&mut self, Brought { payload, block }: Brought<'p, M>) -> NonZeroU64 {
        self.records.extend(block);
        payload
    }

    fn add(&mut self, block: Fresh<'p, [Word], M>, length: usize) -> Off<Word> {
        let off = Off::new(block.off().bytes());
        self.blocks.push(block);
        self.lengths.push(length);
        off
    }

    /// A copy of a block.
    pub(super) fn copy(&mut self, words: &[Word]) -> Result<Off<Word>, Error> {
        let copy = self.pool.alloc_words(words.len())?;
        copy.iter().zip(words).for_each(|(to, from)| self.pool.store(to, from.get(), Relaxed));
        Ok(self.add(copy, words.len()))
    }

    /// An inner node of a level with these children.
    pub(super) fn inner(&mut self, level: usize, capacity: usize, children: impl Iterator<Item = (usize, Off<Word>)>) -> Result<Off<Word>, Error> {
        let shape = Shape::Inner { level, capacity };
        let node = self.pool.alloc_words(shape.words())?;
        self.pool.store(&node[0], shape.header(), Relaxed);
        node[1..].iter().for_each(|word| self.pool.store(word, 0, Relaxed));
        for (number, (digit, child)) in children.enumerate() {
            let at = if capacity == block::DIGITS { digit } else { number };
            self.pool.store(&node[1 + at], block::child_word(child, digit), Relaxed);
        }
        Ok(self.add(node, shape.words()))
    }

    /// An array of some entries, with room for as many more, up to the limit.
    pub(super) fn array<K: Key + ?Sized, F: Form>(&mut self, entries: &[(K::Owned, NonZeroU64)]) -> Result<Off<Word>, Error> {
        let array = self.pool.alloc_words(room_for::<K, F>(entries, self.records_max))?;
        let length = F::write::<K, M>(self.pool, &array, entries);
        Ok(self.add(array, length))
    }

    /// Builds a tree of entries in ascending order, with a top of its own or without. Returns its outermost block. `fits` says whether entries may be in one
    /// array, and is told whether these are all of them.
    pub(super) fn tree<K: Key + ?Sized, F: Form>(
        &mut self,
        entries: &[(K::Owned, NonZeroU64)],
        has_top: bool,
        fits: impl Fn(&[(K::Owned, NonZeroU64)], bool) -> bool,
    ) -> Result<Off<Word>, Error> {
        // Entries, and the block, the word and the digit that lead to what is made of them. Made from above, and without recursion.
        let mut pending = vec![(entries, None::<(usize, usize, usize)>)];
        let mut outermost = Off::NULL;
        while let Some((entries, above)) = pending.pop() {
            let is_top = has_top && above.is_none();
            let off = if !is_top && (entries.len() == 1 || F::words_of::<K>(entries) < block::SHARED_WORDS_MAX && fits(entries, above.is_none())) {
                self.array::<K, F>(entries)?
            } else {
                let (first, last) = (entries[0].0.borrow(), entries[entries.len() - 1].0.borrow());
                let level = if is_top { 0 } else { block::shared::<K>(first, last) };
                let digit = |(key, _): &(K::Owned, NonZeroU64)| block::digit::<K>(key.borrow(), level);
                let groups: Vec<_> = entries.chunk_by(|a, b| digit(a) == digit(b)).collect();
                let capacity = if is_top { block::DIGITS } else { capacity_for(groups.len(), self.records_max) };
                let off = self.inner(level, capacity, std::iter::empty())?;
                let node = self.blocks.len() - 1;
                // The last group pushed is taken first, so arrays are made in the order of their keys.
                pending.extend(groups.into_iter().enumerate().rev().map(|(number, group)| {
                    let digit = digit(&group[0]);
                    (group, Some((node, 1 + if capacity == block::DIGITS { digit } else { number }, digit)))
                }));
                off
            };
            match above {
                Some((node, at, digit)) => self.pool.store(&self.blocks[node][at], block::child_word(off, digit), Relaxed),
                None => outermost = off,
            }
        }
        Ok(outermost)
    }
}

/// The smallest inner node with room for this many children. With their headers, all kinds but the largest fill whole lines; that one has a word for each
/// digit. In trees for exhaustive checking, whose arrays are small, nodes are full sooner.
fn capacity_for(children: usize, records_max: usize) -> usize {
    let capacities = if (2..super::RECORDS).contains(&records_max) { [3, 4, 15, block::DIGITS] } else { [7, 15, 47, block::DIGITS] };
    capacities.into_iter().find(|capacity| children <= *capacity).expect("no more children than digits")
}

/// Size in words of an array of these entries, with room for as many more, up to the limit.
fn room_for<K: Key + ?Sized, F: Form>(entries: &[(K::Owned, NonZeroU64)], records_max: usize) -> usize {
    let whole_lines = |records: usize| (1 + records).next_multiple_of(block::LINE_WORDS);
    let records = F::words_of::<K>(entries);
    let with_more = whole_lines(records * (2 * entries.len()).min(records_max).max(entries.len()) / entries.len());
    with_more.min(block::SHARED_WORDS_MAX).max(whole_lines(records))
}

impl<K: Key + ?Sized, M: Medium, F: Form> Pf<K, M, F> {
    /// Builds blocks, and makes them durable and known: nobody reaches them yet. Returns the outermost. After an error nothing has changed.
    fn make<'p>(&'p self, build: impl FnOnce(&mut Built<'p, M>) -> Result<Off<Word>, Error>) -> Result<Off<Word>, Error> {
        let mut built = Built::new(&self.pool, self.records_max);
        let outermost = build(&mut built)?;
        self.publish(built)?;
        Ok(outermost)
    }

    /// Makes what was built durable and known.
    pub(super) fn publish(&self, built: Built<'_, M>) -> Result<(), Error> {
        let pool = &*self.pool;
        let flushed: Vec<_> = built.blocks.into_iter().zip(built.lengths).map(|(block, length)| block.flush_first(length * size_of::<Word>())).collect();
        let records: Vec<_> = built.records.into_iter().map(Fresh::flush).collect();
        let (durable, records) = pool.fence_all((flushed, records));
        let offs: Vec<u64> = durable.iter().map(|block| block.off().bytes()).collect();
        self.lines.begin(&offs)?;
        let sizes = offs.iter().map(|off| Ok(self.tell(Off::new(*off))?.map(|(words, _)| words.len()))).collect::<Result<Vec<_>, Error>>();
        let sizes = sizes.inspect_err(|_| offs.iter().flat_map(|off| self.lines.of(*off)).for_each(Latch::give_up))?;
        sizes.into_iter().flatten().for_each(|words| self.count_array(words));
        durable.into_iter().chain(records).for_each(|block| _ = block.release());
        Ok(())
    }

    /// Makes a word of a node lead to a new block, durably. The node is locked for that.
    fn put<'p>(&'p self, node: &Inner<'_>, (at, digit): (usize, usize), build: impl FnOnce(&mut Built<'p, M>) -> Result<Off<Word>, Error>) -> Result<(), Stop> {
        let lock = node.latch.lock_from(node.version)?;
        match self.make(build) {
            Ok(off) => {
                self.lead(node, at, block::child_word(off, digit));
                Ok(())
            }
            Err(error) => {
                lock.release_unchanged();
                Err(error.into())
            }
        }
    }

    /// Sets a word of a locked node, durably.
    #[track_caller]
    fn lead(&self, node: &Inner<'_>, at: usize, word: u64) {
        self.pool.store(&node.words[at], word, Release);
        self.pool.persist(&node.words[at]);
    }

    /// Replaces a child of a node by a new block. Returns the child's lock: the caller gives the child up.
    pub(super) fn replace<'a, 'p>(
        &'p self,
        (latch, version): (&'a Latch, u64),
        (node, step): (&Inner<'_>, Step),
        build: impl FnOnce(&mut Built<'p, M>) -> Result<Off<Word>, Error>,
    ) -> Result<Locked<'a>, Stop> {
        let lock = latch.lock_from(version)?;
        match self.put(node, (step.at, step.digit), build) {
            Ok(()) => Ok(lock),
            Err(stop) => {
                lock.release_unchanged();
                Err(stop)
            }
        }
    }

    /// Gives up a locked array to which, durably, nothing leads any more.
    pub(super) fn give_up_array(&self, array: &Array<'_>, lock: Locked<'_>) {
        lock.release_obsolete();
        self.arrays.add(-1);
        self.array_words.add(-(array.words.len() as i64));
        self.pool.retire(array.off, &self.pool.pin());
    }

    /// Gives up a locked node to which, durably, nothing leads any more.
    pub(super) fn give_up_inner(&self, inner: &Inner<'_>, lock: Locked<'_>) {
        lock.release_obsolete();
        self.pool.retire(inner.off, &self.pool.pin());
    }

    /// Adds a key whose digit no child has.
    #[cold]
    pub(super) fn add_array<'p>(&'p self, way: &Way<'_>, key: &K, value: NonZeroU64) -> Result<Option<NonZeroU64>, Stop> {
        let node = &way.last;
        if node.level > 0 && block::shared(self.sample_below(node)?.borrow(), key) < node.level {
            return self.add_above(key, value);
        }
        let digit = block::digit(key, node.level);
        let brought = F::bring(&self.pool, key, value)?;
        let array = |built: &mut Built<'p, M>| {
            let payload = built.take(brought);
            built.array::<K, F>(&[(key.to_owned(), payload)])
        };
        let vacant = node.children().iter().position(|word| word.get() == 0);
        match if node.capacity == block::DIGITS { Some(digit) } else { vacant } {
            Some(at) => self.put(node, (1 + at, digit), array)?,
            None => {
                let Some((above, step)) = &way.above else { unreachable!("a top has a word for each digit") };
                let lock = self.replace((node.latch, node.version), (above, *step), |built| {
                    let array = array(built)?;
                    self.resized(built, node, Some((digit, array)))
                })?;
                self.give_up_inner(node, lock);
            }
        }
        self.keys.add(1);
        Ok(None)
    }

    /// A copy of a locked node, perhaps with another child, with the room that it needs.
    fn resized(&self, built: &mut Built<'_, M>, node: &Inner<'_>, another: Option<(usize, Off<Word>)>) -> Result<Off<Word>, Error> {
        let mut children = node.steps().map(|step| step.map(|step| (step.digit, step.child))).collect::<Result<Vec<_>, Error>>()?;
        children.extend(another);
        built.inner(node.level, capacity_for(children.len(), self.records_max), children.into_iter())
    }

    /// Adds a key that differs within a prefix from those to which its digits lead, or from the only key of an array that may have no other.
    #[cold]
    pub(super) fn add_above(&self, key: &K, value: NonZeroU64) -> Result<Option<NonZeroU64>, Stop> {
        let trail = self.trail(key, |_| false)?;
        let Parted { sample, shared: level } = self.part(&trail, key)?;
        let last = trail.last().level;
        let alone = trail.array.filter(|_| level > last && self.records_max == 1 && sample.borrow() != key);
        let (node, step) = match (&alone, trail.nodes[trail.nodes.len() - 1]) {
            (Some(_), (node, Some(step))) => (node, step),
            // This is no longer so.
            _ if level > last || level == last && trail.array.is_none() => return Err(Stop::Restart),
            _ => self.above(&trail, level)?,
        };
        let brought = F::bring(&self.pool, key, value)?;
        // Whoever has found it where it was must notice that it is elsewhere.
        let lock = alone.map(|array| array.latch.lock_from(array.version)).transpose()?;
        let put = self.put(&node, (step.at, step.digit), |built| {
            let payload = built.take(brought);
            let array = built.array::<K, F>(&[(key.to_owned(), payload)])?;
            let children = [(block::digit::<K>(sample.borrow(), level), step.child), (block::digit(key, level), array)];
            built.inner(level, capacity_for(children.len(), self.records_max), children.into_iter())
        });
        match (put, lock) {
            (Err(stop), Some(lock)) => {
                lock.release_unchanged();
                return Err(stop);
            }
            (put, _) => put?,
        }
        self.keys.add(1);
        Ok(None)
    }

    /// Adds a key to an array without room: a larger array replaces it, or a node over several.
    #[cold]
    pub(super) fn make_room<'p>(&'p self, node: &Inner<'_>, step: Step, array: &Array<'_>, key: &K, brought: Brought<'p, M>) -> Result<(), Stop> {
        let mut is_divided = false;
        let lock = self.replace((array.latch, array.version), (node, step), |built| {
            let mut entries = vec![(key.to_owned(), built.take(brought))];
            for at in F::live(array.side) {
                entries.push(F::entry::<K, M>(&self.pool, array, at)?);
            }
            entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
            let (first, last) = (entries[0].0.borrow(), entries[entries.len() - 1].0.borrow());
            if block::shared::<K>(first, last) <= node.level || entries.windows(2).any(|pair| pair[0].0 == pair[1].0) {
                return Err(array.damage("an array of keys that do not belong there, or twice"));
            }
            // An array that is no larger must gain more than a few places, or it would soon be replaced, too.
            let is_larger = room_for::<K, F>(&entries, self.records_max) > array.words.len();
            let (all_max, words_max) = if is_larger { (self.records_max, usize::MAX) } else { (self.records_max / 4 * 3, array.words.len() / 4 * 3) };
            let off = built.tree::<K, F>(&entries, false, |entries, is_all| match is_all {
                true => entries.len() <= all_max && F::words_of::<K>(entries) <= words_max,
                false => entries.len() <= self.records_max,
            })?;
            is_divided = built.blocks.len() > 1;
            Ok(off)
        })?;
        self.give_up_array(array, lock);
        self.splits.add(i64::from(is_divided));
        self.keys.add(1);
        Ok(())
    }

    /// Removes the array of a key, if nothing in it counts. Returns whether it did.
    #[cold]
    pub(super) fn drop_array(&self, key: &K) -> Result<bool, Error> {
        let is_empty = |array: &Array<'_>| Ok(F::live(array.side).next().is_none().then_some(()));
        let is_dropped = self.retry(|| self.try_drop(key, is_empty))?.is_some();
        if is_dropped {
            // A node that stays too large is harmless.
            _ = self.retry(|| self.shrink(key));
        }
        Ok(is_dropped)
    }

    /// Removes the array of a key, with all that counts in it, if `why` says so. Returns what it has said.
    pub(super) fn try_drop<T>(&self, key: &K, why: impl Fn(&Array<'_>) -> Result<Option<T>, Error>) -> Result<Option<T>, Stop> {
        let way = self.walk(key)?;
        let Some((step, array)) = &way.end else { return Ok(None) };
        let Some(why) = array.validated(why(array))? else { return Ok(None) };
        let node = &way.last;
        // This waits if somebody has it, so it comes before anything is locked.
        let other = if way.above.is_some() && node.count() <= 2 {
            let other = node.steps().find(|other| other.as_ref().is_ok_and(|other| other.at != step.at));
            let other = node.validated(other.unwrap_or_else(|| Err(node.damage())))?;
            Some((other, self.follow(node, other)?))
        } else {
            None
        };
        let lock = array.latch.lock_from(array.version)?;
        match self.disown(&way, *step, other) {
            Ok(()) => self.give_up_array(array, lock),
            Err(stop) => {
                lock.release_unchanged();
                return Err(stop);
            }
        }
        Ok(Some(why))
    }

    /// Takes the word of a locked child out of the last node on its way, durably; or the whole node, if only one `other` is left.
    fn disown(&self, way: &Way<'_>, step: Step, other: Option<(Step, Child<'_>)>) -> Result<(), Stop> {
        let node = &way.last;
        let lock = node.latch.lock_from(node.version)?;
        let (Some((above, above_step)), Some((other, child))) = (&way.above, other) else {
            // This is durable before the array is given up, whose memory may be reused. For PFtree no world of the checker needs this fence: all records were
            // removed before, and another fence comes before the memory is used. For ROART it acknowledges the removal.
            self.lead(node, step.at, 0);
            return Ok(());
        };
        let lifted = (|| {
            // Whoever has found it where it was must notice that it is elsewhere.
            let _array = if let Child::Array(array) = child { Some(array.latch.lock_from(array.version)?) } else { None };
            let _above = above.latch.lock_from(above.version)?;
            self.lead(above, above_step.at, block::child_word(other.child, above_step.digit));
            Ok(())
        })();
        match lifted {
            Ok(()) => self.give_up_inner(node, lock),
            Err(_) => lock.release_unchanged(),
        }
        lifted
    }

    /// Replaces the last node on the way of a key by a smaller one, if it has become much too large.
    pub(super) fn shrink(&self, key: &K) -> Result<(), Stop> {
        let way = self.walk(key)?;
        let (Some((above, step)), node) = (&way.above, &way.last) else { return Ok(()) };
        let count = node.count();
        if capacity_for((count + count / 4 + 1).min(block::DIGITS), self.records_max) < node.capacity {
            let lock = self.replace((node.latch, node.version), (above, *step), |built| self.resized(built, node, None))?;
            self.give_up_inner(node, lock);
        }
        Ok(())
    }

    /// Replaces the top by a new block. It is latched until that is durable: a crash before could take back what others write below it.
    pub(super) fn replace_top<'p>(&'p self, top: &Inner<'_>, build: impl FnOnce(&mut Built<'p, M>) -> Result<Off<Word>, Error>) -> Result<(), Stop> {
        let lock = top.latch.lock_from(top.version)?;
        match self.make(build) {
            Ok(off) => {
                let new = self.lines.of(off.bytes()).and_then(Latch::try_lock).expect("nobody knows of a new node");
                let slot = &self.root().top;
                self.pool.store(slot, off.link(), Release);
                self.pool.persist(slot);
                // The version changes: whoever has read the old one did so before this was the top, or the top again.
                drop(new);
                self.give_up_inner(top, lock);
                Ok(())
            }
            Err(error) => {
                lock.release_unchanged();
                Err(error.into())
            }
        }
    }
}
