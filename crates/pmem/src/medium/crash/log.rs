//! What is not durable yet: a log of stores per line, and what each thread has flushed of it.
//!
//! A thread's steps between two of its flushes, fences and exchanges are a *stretch*. Within one the compiler may move a relaxed store before any other to
//! another word, so relaxed stores are a set, in no order.

use super::site::{Site, Verb};
use super::states::Cut;
use crate::medium::LINE;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

/// A store of eight bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Store {
    pub(super) at: usize,
    pub(super) old: u64,
    pub(super) new: u64,
    /// The location of the store.
    pub(super) place: &'static Location<'static>,
    /// Number of the thread that stored.
    pub(super) by: u64,
    pub(super) way: Way,
    /// Whether a fence of its thread makes it durable without a flush.
    pub(super) is_unflushed: bool,
    /// Number of the thread's stretch; the log sets it.
    pub(super) stretch: u64,
    /// The store is the n-th in the log; the log sets it.
    pub(super) number: u64,
}

/// What a store claims about its order among those of its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It comes after all before it.
    Ordered,
    /// No order within its stretch.
    Relaxed,
    /// No order at all, except to its own word. A flush does not make it durable; a fence of its thread does.
    Streamed,
}

impl Way {
    pub(super) fn of(order: Ordering) -> Self {
        if order == Ordering::Relaxed { Self::Relaxed } else { Self::Ordered }
    }
}

impl Store {
    /// Whether a crash that keeps this store also keeps `earlier`, which precedes it in the log of their line.
    pub(super) fn needs(&self, earlier: &Self) -> bool {
        earlier.at == self.at
            || match (earlier.way, self.way) {
                (Way::Streamed, _) | (_, Way::Streamed) => false,
                (_, Way::Relaxed) => (earlier.by, earlier.stretch) != (self.by, self.stretch),
                (_, Way::Ordered) => true,
            }
    }
}

/// A flush of a line that no fence has followed.
#[derive(Clone, Copy)]
struct Flushed {
    line: u32,
    /// Number of the last store before it, to whatever line.
    number: u64,
    /// The location of the flush.
    place: &'static Location<'static>,
}

impl Flushed {
    fn covers(&self, store: &Store) -> bool {
        store.number <= self.number && store.way != Way::Streamed
    }
}

/// The stores to one line that may be lost.
#[derive(Default)]
struct Line {
    stores: Vec<Store>,
    /// Whether some store does not need the one before it: then not everything that a crash may keep is a prefix.
    is_loose: bool,
}

impl Line {
    fn push(&mut self, store: Store, by_word: bool) {
        self.is_loose |= self.stores.last().is_some_and(|last| !store.needs(last) || by_word && store.at != last.at);
        self.stores.push(store);
    }

    /// Stores that are `durable` leave the log, and with them all earlier stores to the same words.
    fn settle(&mut self, durable: impl Fn(&Store) -> bool) {
        if self.stores.iter().all(&durable) {
            self.stores.clear();
            self.is_loose = false;
        } else {
            let settled = Cut::up_to(&self.stores, durable);
            let mut place = 0..;
            self.stores.retain(|store| !place.next().is_some_and(|place| settled.keeps(place, store)));
        }
    }
}

/// What a thread has begun and none of its fences has completed.
struct Thread {
    number: u64,
    stretch: u64,
    flushed: Vec<Flushed>,
    /// Lines in which it has made stores that need no flush to become durable.
    unflushed: Vec<u32>,
}

/// All lines, and all threads.
pub(super) struct Log {
    lines: Vec<Line>,
    /// Numbers of the lines with stores, in no particular order.
    dirty: Vec<u32>,
    threads: Vec<Thread>,
    /// Stores that the memory shows and no image may, because a planted mistake makes them late ([`super::Act::Late`]).
    late: Vec<Store>,
    /// Number of stores ever logged.
    number: u64,
    /// Whether stores to different words of a line are assumed to be unordered.
    pub(super) is_by_word: bool,
}

impl Log {
    pub(super) fn new(line_count: usize) -> Self {
        let lines = std::iter::repeat_with(Line::default).take(line_count).collect();
        Self { lines, dirty: Vec::new(), threads: Vec::new(), late: Vec::new(), number: 0, is_by_word: false }
    }

    pub(super) fn line_count(&self) -> usize {
        self.lines.len()
    }

    /// Whether there is a store before `store` in its line that could as well have come after it, given what this thread has waited for.
    pub(super) fn may_be_early(&self, store: &Store) -> bool {
        let number = store.at / LINE;
        let flushed = self.threads.iter().flat_map(|thread| &thread.flushed).filter(|flushed| flushed.line as usize == number);
        let covered = flushed.map(|flushed| flushed.number).max().unwrap_or(0);
        self.lines[number].stores.last().is_some_and(|last| last.at != store.at && last.number > covered)
    }

    /// Appends a store to the log of its line; before the last one there, if it is to be `early` and can be.
    #[inline]
    pub(super) fn store(&mut self, mut store: Store, early: bool) {
        let early = early && self.may_be_early(&store);
        if !self.late.is_empty() {
            self.supersede(&mut store);
        }
        self.number += 1;
        let by = self.thread(store.by);
        let thread = &mut self.threads[by];
        store.stretch = thread.stretch;
        if store.is_unflushed {
            thread.unflushed.push((store.at / LINE) as u32);
        }
        store.number = self.number;
        let line = &mut self.lines[store.at / LINE];
        if line.stores.is_empty() {
            self.dirty.push((store.at / LINE) as u32);
        }
        let behind = line.stores.pop_if(|_| early);
        line.push(store, self.is_by_word);
        if let Some(behind) = behind {
            line.push(behind, self.is_by_word);
        }
    }

    /// Keeps a store back until the next fence.
    pub(super) fn store_late(&mut self, mut store: Store) {
        self.supersede(&mut store);
        self.late.push(store);
    }

    /// A late store is superseded when its word is stored to again: then the images go from the value before it to the new store.
    fn supersede(&mut self, store: &mut Store) {
        if let Some(late) = self.late.iter().position(|late| late.at == store.at) {
            store.old = self.late.swap_remove(late).old;
        }
    }

    /// The fence for which stores were kept back has passed.
    pub(super) fn store_what_is_late(&mut self) {
        for store in std::mem::take(&mut self.late) {
            self.store(store, false);
        }
    }

    /// The stores that no image may show yet.
    pub(super) fn late(&self) -> &[Store] {
        &self.late
    }

    pub(super) fn is_dirty(&self, first: usize, count: usize) -> bool {
        self.lines[first..first + count].iter().any(|line| !line.stores.is_empty())
    }

    /// A flush of `count` lines by thread number `by`.
    pub(super) fn flush(&mut self, first: usize, count: usize, place: &'static Location<'static>, by: u64) {
        let (this, number) = (self.thread(by), self.number);
        let dirty = (first..first + count).filter(|line| !self.lines[*line].stores.is_empty());
        self.threads[this].stretch += 1;
        self.threads[this].flushed.extend(dirty.map(|line| Flushed { line: line as u32, number, place }));
    }

    /// The sites that a crash now would interrupt: flushes that wait for a fence, and stores that may be lost.
    pub(super) fn cut(&self) -> impl Iterator<Item = Site> {
        let flushes = self.threads.iter().flat_map(|thread| &thread.flushed).map(|flushed| Site { place: flushed.place, verb: Verb::Flush });
        let stores = self.dirty.iter().flat_map(|line| &self.lines[*line as usize].stores).map(|store| Site { place: store.place, verb: Verb::Store });
        flushes.chain(stores)
    }

    /// Whether a fence by thread number `by` would make anything durable.
    pub(super) fn retires(&mut self, by: u64) -> bool {
        let this = self.thread(by);
        let Thread { number, flushed, unflushed, .. } = &self.threads[this];
        let stores = |line: u32| self.lines[line as usize].stores.iter();
        flushed.iter().any(|flushed| stores(flushed.line).any(|store| flushed.covers(store)))
            || unflushed.iter().any(|line| stores(*line).any(|store| store.by == *number && store.is_unflushed))
    }

    /// A fence by thread number `by`.
    pub(super) fn retire(&mut self, by: u64) {
        let this = self.thread(by);
        let thread = &mut self.threads[this];
        thread.stretch += 1;
        let (number, mut flushed) = (thread.number, std::mem::take(&mut thread.flushed));
        for flushed in &flushed {
            self.settle(flushed.line, |store| flushed.covers(store));
        }
        flushed.clear();
        self.threads[this].flushed = flushed;
        for line in std::mem::take(&mut self.threads[this].unflushed) {
            self.settle(line, |store| store.by == number && store.is_unflushed);
        }
    }

    /// A store to `at` by thread number `number`, durable at once: what it comes after is durable, too, and nothing else that was stored there will ever be
    /// seen.
    pub(super) fn order(&mut self, at: usize, number: u64) {
        let this = self.thread(number);
        let lines = std::mem::take(&mut self.threads[this].unflushed);
        for line in lines {
            self.settle(line, |store| store.by == number && store.way == Way::Relaxed);
            if self.lines[line as usize].stores.iter().any(|store| store.by == number) {
                self.threads[this].unflushed.push(line);
            }
        }
        self.settle((at / LINE) as u32, |store| store.at == at);
    }

    fn settle(&mut self, number: u32, durable: impl Fn(&Store) -> bool) {
        let line = &mut self.lines[number as usize];
        if !line.stores.is_empty() {
            line.settle(durable);
            if line.stores.is_empty() {
                self.dirty.retain(|dirty| *dirty != number);
            }
        }
    }

    /// The lines with stores, and what was stored in each.
    pub(super) fn dirty(&self) -> impl Iterator<Item = (u32, &[Store])> {
        self.dirty.iter().map(|number| (*number, &self.lines[*number as usize].stores[..]))
    }

    pub(super) fn stores(&self, line: u32) -> &[Store] {
        &self.lines[line as usize].stores
    }

    /// Whether a crash may keep only prefixes of the stores to the line.
    pub(super) fn is_in_order(&self, line: u32) -> bool {
        !self.lines[line as usize].is_loose
    }

    /// The place of a store in the log of its line, if it is not durable.
    pub(super) fn find(&self, at: usize, number: u64) -> Option<usize> {
        self.lines[at / LINE].stores.iter().position(|store| store.number == number)
    }

    /// The number of the latest store to the word at `at`, if it is not durable and another thread has made it.
    pub(super) fn owed(&self, at: usize) -> Option<u64> {
        let store = self.lines.get(at / LINE)?.stores.iter().rfind(|store| store.at == at)?;
        (store.by != this_thread()).then_some(store.number)
    }

    pub(super) fn clear(&mut self) {
        for number in self.dirty.drain(..) {
            let line = &mut self.lines[number as usize];
            line.stores.clear();
            line.is_loose = false;
        }
        // Threads come and go, and never return.
        self.threads.retain(|thread| thread.number == this_thread());
        for thread in &mut self.threads {
            thread.flushed.clear();
            thread.unflushed.clear();
        }
        self.late.clear();
    }

    /// Position of the thread with this number in the list of threads.
    fn thread(&mut self, number: u64) -> usize {
        self.threads.iter().position(|thread| thread.number == number).unwrap_or_else(|| {
            self.threads.push(Thread { number, stretch: 0, flushed: Vec::new(), unflushed: Vec::new() });
            self.threads.len() - 1
        })
    }
}

/// A number for this thread that no other thread of the process has ever had.
pub(super) fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}
