//! What is not durable yet: a log of stores per line, and what each thread has flushed of it.

use crate::medium::LINE;
use std::sync::atomic::{AtomicU64, Ordering};

/// A store of eight bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Store {
    pub(super) at: usize,
    pub(super) old: u64,
    pub(super) new: u64,
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
    /// What each thread flushed since its last fence: (line, number of stores that the line had seen).
    flushed: Vec<(u64, Vec<(u32, u64)>)>,
}

impl Log {
    pub(super) fn new(line_count: usize) -> Self {
        Self { lines: std::iter::repeat_with(Line::default).take(line_count).collect(), dirty: Vec::new(), flushed: Vec::new() }
    }

    #[inline]
    pub(super) fn store(&mut self, at: usize, old: u64, new: u64) {
        let line = &mut self.lines[at / LINE];
        if line.stores.is_empty() {
            self.dirty.push((at / LINE) as u32);
        }
        line.stores.push(Store { at, old, new });
    }

    pub(super) fn flush(&mut self, first: usize, count: usize) {
        let flushed = of_this_thread(&mut self.flushed);
        for number in first..first + count {
            let line = &self.lines[number];
            if !line.stores.is_empty() {
                flushed.push((number as u32, line.durable + line.stores.len() as u64));
            }
        }
    }

    /// Whether a fence by this thread would make anything durable.
    pub(super) fn retires(&mut self) -> bool {
        of_this_thread(&mut self.flushed).iter().any(|(line, count)| *count > self.lines[*line as usize].durable)
    }

    /// A fence by this thread.
    pub(super) fn retire(&mut self) {
        for (number, count) in of_this_thread(&mut self.flushed).drain(..) {
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

    pub(super) fn clear(&mut self) {
        for number in self.dirty.drain(..) {
            self.lines[number as usize].stores.clear();
        }
        for (_, flushed) in &mut self.flushed {
            flushed.clear();
        }
    }
}

fn of_this_thread(flushed: &mut Vec<(u64, Vec<(u32, u64)>)>) -> &mut Vec<(u32, u64)> {
    let thread = this_thread();
    let found = flushed.iter().position(|(owner, _)| *owner == thread);
    let index = found.unwrap_or_else(|| {
        flushed.push((thread, Vec::new()));
        flushed.len() - 1
    });
    &mut flushed[index].1
}

/// A number for this thread that no other thread of the process has ever had.
fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}
