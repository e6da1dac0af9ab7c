//! What is not durable yet: a log of stores per line, and what each thread has flushed of it.

use super::site::{Site, Verb};
use crate::medium::LINE;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

/// A store of eight bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Store {
    pub(super) at: usize,
    pub(super) old: u64,
    pub(super) new: u64,
    /// Who stored.
    pub(super) place: &'static Location<'static>,
    /// Number of the thread that stored.
    pub(super) by: u64,
}

/// A flush of a line that no fence has followed.
#[derive(Clone, Copy)]
struct Flushed {
    line: u32,
    /// Number of stores that the line had seen.
    count: u64,
    /// Who flushed.
    place: &'static Location<'static>,
}

/// The stores to one line that may be lost.
#[derive(Default)]
struct Line {
    /// Number of stores to the line that became durable and left the log.
    durable: u64,
    stores: Vec<Store>,
}

/// All lines, and all threads.
pub(super) struct Log {
    lines: Vec<Line>,
    /// Numbers of the lines with stores, in no particular order.
    dirty: Vec<u32>,
    /// What each thread flushed since its last fence.
    flushed: Vec<(u64, Vec<Flushed>)>,
    /// Stores that the memory shows and no image may, because they are late by mistake ([`super::Act::Late`]).
    late: Vec<Store>,
}

impl Log {
    pub(super) fn new(line_count: usize) -> Self {
        Self { lines: std::iter::repeat_with(Line::default).take(line_count).collect(), dirty: Vec::new(), flushed: Vec::new(), late: Vec::new() }
    }

    pub(super) fn line_count(&self) -> usize {
        self.lines.len()
    }

    /// Whether there is a store before `store` in its line that could as well have come after it, as far as this thread has waited for.
    pub(super) fn may_be_early(&self, store: &Store) -> bool {
        let number = store.at / LINE;
        let line = &self.lines[number];
        let covered = self.flushed.iter().flat_map(|(_, flushed)| flushed).filter(|flushed| flushed.line as usize == number).map(|flushed| flushed.count);
        line.stores.last().is_some_and(|last| last.at != store.at) && covered.max().unwrap_or(0) < line.durable + line.stores.len() as u64
    }

    /// Appends a store to the log of its line; before the last one there, if it is to be `early` and can be.
    #[inline]
    pub(super) fn store(&mut self, mut store: Store, early: bool) {
        let early = early && self.may_be_early(&store);
        if !self.late.is_empty() {
            self.supersede(&mut store);
        }
        let line = &mut self.lines[store.at / LINE];
        if line.stores.is_empty() {
            self.dirty.push((store.at / LINE) as u32);
        }
        line.stores.push(store);
        if early {
            let last = line.stores.len() - 1;
            line.stores.swap(last - 1, last);
        }
    }

    /// Keeps a store back until the next fence.
    pub(super) fn store_late(&mut self, mut store: Store) {
        self.supersede(&mut store);
        self.late.push(store);
    }

    /// What is late comes too late when its word is stored to again: then the images go from what was before to the new store.
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
        let flushed = of_thread(&mut self.flushed, by);
        for number in first..first + count {
            let line = &self.lines[number];
            if !line.stores.is_empty() {
                flushed.push(Flushed { line: number as u32, count: line.durable + line.stores.len() as u64, place });
            }
        }
    }

    /// The sites that a crash now would cut short: flushes that wait for a fence, and stores that may be lost.
    pub(super) fn cut(&self) -> impl Iterator<Item = Site> {
        let flushes = self.flushed.iter().flat_map(|(_, flushed)| flushed).map(|flushed| Site { place: flushed.place, verb: Verb::Flush });
        let stores = self.dirty.iter().flat_map(|line| &self.lines[*line as usize].stores).map(|store| Site { place: store.place, verb: Verb::Store });
        flushes.chain(stores)
    }

    /// Whether a fence by this thread would make anything durable.
    pub(super) fn retires(&mut self) -> bool {
        of_thread(&mut self.flushed, this_thread()).iter().any(|flushed| flushed.count > self.lines[flushed.line as usize].durable)
    }

    /// A fence by this thread.
    pub(super) fn retire(&mut self) {
        for Flushed { line: number, count, .. } in of_thread(&mut self.flushed, this_thread()).drain(..) {
            let line = &mut self.lines[number as usize];
            if count > line.durable {
                line.stores.drain(..(count - line.durable) as usize);
                line.durable = count;
                if line.stores.is_empty() {
                    self.dirty.retain(|dirty| *dirty != number);
                }
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

    /// Number of stores to a line that are durable.
    pub(super) fn durable(&self, line: usize) -> u64 {
        self.lines[line].durable
    }

    /// The number in its line of the latest store to the word at `at`, if it is not durable and another thread has made it.
    pub(super) fn owed(&self, at: usize) -> Option<u64> {
        let line = self.lines.get(at / LINE)?;
        let place = line.stores.iter().rposition(|store| store.at == at)?;
        (line.stores[place].by != this_thread()).then_some(line.durable + place as u64 + 1)
    }

    pub(super) fn clear(&mut self) {
        for number in self.dirty.drain(..) {
            self.lines[number as usize].stores.clear();
        }
        for (_, flushed) in &mut self.flushed {
            flushed.clear();
        }
        self.late.clear();
    }
}

fn of_thread(flushed: &mut Vec<(u64, Vec<Flushed>)>, thread: u64) -> &mut Vec<Flushed> {
    let found = flushed.iter().position(|(owner, _)| *owner == thread);
    let index = found.unwrap_or_else(|| {
        flushed.push((thread, Vec::new()));
        flushed.len() - 1
    });
    &mut flushed[index].1
}

/// A number for this thread that no other thread of the process has ever had.
pub(super) fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}
