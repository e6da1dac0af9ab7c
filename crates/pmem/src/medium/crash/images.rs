//! Walking through the images of one crash point, each made in place from the one before.

use super::log::{self, Log};
use super::site::{Site, Verb};
use super::{CrashOptions, Done, Level, Life, Observer, Profile, State, rehash};
use crate::WORD;
use crate::medium::LINE;
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What happens just after a crash point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A fence that makes something durable.
    Fence,
    /// A compare-and-exchange that makes something durable.
    Exchange,
    /// A store, where stores are durable at once.
    Store,
    /// The end of an operation.
    End,
}

/// The observer's answer to an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Whether recovery reached a block that was not linked when the crash came ([`Image::is_hidden`]): then its bytes matter, and all their states are shown.
    pub reached_hidden: bool,
}

/// One legal image of one crash point, lying in the memory while the observer runs.
pub struct Image<'a> {
    level: &'a Arc<Level>,
    log: &'a Log,
    hidden: &'a [(usize, usize)],
    lines: &'a [Kept],
    hash: u64,
    profile: Option<&'a Profile>,
    /// Who is about to do what happens next, unless that is the end.
    pub place: Option<&'static Location<'static>>,
    /// Number of the crash point in its life, from 1.
    pub point: u64,
    /// What was about to happen.
    pub event: Event,
    /// What the operation under way had done, the event included.
    pub done: Done,
}

impl Image<'_> {
    /// Starts a life on the image.
    pub fn live(&self, options: CrashOptions) -> Life {
        self.level.live(self.hash, options)
    }

    /// Hash of the whole memory.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Notes in the profile of the life, if there is one, that the image has been examined.
    pub fn examined(&self) {
        if let Some(profile) = self.profile {
            let verb = match self.event {
                Event::Fence => Verb::Fence,
                Event::Exchange => Verb::Exchange,
                Event::Store | Event::End => Verb::Store,
            };
            profile.examined(self.place.map(|place| Site { place, verb }).into_iter().chain(self.log.cut()));
        }
    }

    /// Whether the block at `at` was allocated and not yet linked.
    pub fn is_hidden(&self, at: usize) -> bool {
        self.hidden.iter().any(|(start, length)| (*start..start + length).contains(&at))
    }

    /// Whether any states of hidden blocks were left out.
    pub fn hides(&self) -> bool {
        !self.hidden.is_empty()
    }
}

/// What an image keeps of a line.
#[derive(Clone, Debug)]
pub struct Balance {
    /// Offset of the line in bytes.
    pub line: usize,
    /// The stores that were in the balance, in order.
    pub stores: Vec<Store>,
}

/// A store that a crash may lose.
#[derive(Clone, Copy, Debug)]
pub struct Store {
    /// Offset of the word in bytes.
    pub at: usize,
    /// What it held.
    pub old: u64,
    /// What it was to hold.
    pub new: u64,
    /// Who stored.
    pub place: &'static Location<'static>,
    /// Whether the image has it.
    pub is_kept: bool,
}

impl Image<'_> {
    /// When the crash came.
    pub fn moment(&self) -> Moment {
        Moment { point: self.point, event: self.event, place: self.place, done: self.done }
    }

    /// What the image keeps of each line that had something to lose.
    pub fn balance(&self) -> Vec<Balance> {
        let store = |&log::Store { at, old, new, place, .. }: &log::Store, is_kept| Store { at, old, new, place, is_kept };
        let stores = |kept: &Kept| {
            let stores = self.log.stores(kept.line).iter().enumerate();
            stores.map(|(number, told)| store(told, number < kept.count as usize)).collect()
        };
        self.lines.iter().map(|kept| Balance { line: kept.line as usize * LINE, stores: stores(kept) }).collect()
    }
}

/// The moment of a crash, for people.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Number of the crash point in its life, from 1.
    pub point: u64,
    /// What was about to happen.
    pub event: Event,
    /// Where, unless that is the end.
    pub place: Option<&'static Location<'static>>,
    /// What the operation under way had done, the event included.
    pub done: Done,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { point, done: Done { stores, flushes, fences }, .. } = self;
        match self.event {
            Event::Fence => write!(f, "crash point {point}, before fence {fences} of the operation, after flush {flushes}"),
            Event::Exchange => write!(f, "crash point {point}, before an exchange, after flush {flushes} and fence {fences} of the operation"),
            Event::Store => write!(f, "crash point {point}, before store {} of the operation", stores + 1),
            Event::End => write!(f, "crash point {point}, at the end of the operation, after flush {flushes} and fence {fences}"),
        }
    }
}

impl fmt::Display for Image<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.moment().fmt(f)?;
        self.place.map_or(Ok(()), |place| write!(f, ", at {place}"))?;
        for Balance { line, stores } in self.balance() {
            write!(f, "\n  line {line:#x} keeps {} of {} stores:", stores.iter().filter(|store| store.is_kept).count(), stores.len())?;
            for Store { at, old, new, place, is_kept } in stores {
                write!(f, "\n    {} {at:#x}: {old:#x} -> {new:#x}, stored at {place}", if is_kept { "kept" } else { "lost" })?;
            }
        }
        Ok(())
    }
}

/// How many of its stores a line keeps.
struct Kept {
    line: u32,
    count: u32,
    of: u32,
    /// The way the Gray code moves it next.
    up: bool,
}

/// Memory for the walk, kept from one crash point to the next.
#[derive(Default)]
pub(super) struct Buffers {
    lines: Vec<Kept>,
}

/// Shows the images of this moment. Afterwards the memory is as before.
pub(super) fn enumerate(level: &Arc<Level>, state: &mut State, event: Event, place: Option<&'static Location<'static>>, observer: &mut Observer) {
    set_late(level, state, |store| (store.new, store.old));
    let mut lines = std::mem::take(&mut state.images.lines);
    lines.clear();
    let is_hidden = |at: usize| !state.options.hidden_in_full && state.hidden.iter().any(|(start, length)| (*start..start + length).contains(&at));
    let all = |pass: bool| {
        let wanted = state.log.dirty().filter(move |(_, stores)| stores.iter().all(|store| is_hidden(store.at)) == pass);
        wanted.map(|(line, stores)| Kept { line, count: stores.len() as u32, of: stores.len() as u32, up: false })
    };
    lines.extend(all(false));
    let split = lines.len();
    lines.extend(all(true));

    let done = state.done();
    let seed = state.options.seed ^ state.hash ^ state.points;
    let mut walk = Walk { level, state, lines, hash: state.hash, event, place, done, random: Random(seed) };
    let count = walk.lines.len();
    walk.vary(0..split, &mut |walk| walk.show_hidden(split..count, observer));
    debug_assert_eq!(walk.hash, walk.state.hash);
    let lines = walk.lines;
    state.images.lines = lines;
    set_late(level, state, |store| (store.old, store.new));
}

/// Takes the stores that no image may show out of the memory, or puts them back.
fn set_late(level: &Arc<Level>, state: &mut State, change: impl Fn(&log::Store) -> (u64, u64)) {
    for store in state.log.late() {
        let (from, to) = change(store);
        level.memory.words()[store.at / WORD].store(to, Ordering::Relaxed);
        state.hash = rehash(state.hash, store.at / WORD, from, to);
    }
}

/// Shows the image in which `line` keeps only its first `kept` stores and nothing else is lost, and the one in which nothing is kept. Afterwards the memory is
/// as before.
pub(super) fn without(level: &Arc<Level>, state: &mut State, line: u32, kept: u32, event: Event, observer: &mut Observer) {
    let all = |(line, stores): (u32, &[log::Store])| Kept { line, count: stores.len() as u32, of: stores.len() as u32, up: false };
    let lines: Vec<Kept> = state.log.dirty().map(all).collect();
    let mut walk = Walk { level, state, lines, hash: state.hash, event, place: None, done: state.done(), random: Random(0) };
    let count = walk.lines.len();
    if let Some(index) = walk.lines.iter().position(|other| other.line == line) {
        walk.set(index, kept);
        walk.show(observer);
        (0..count).for_each(|index| walk.set(index, 0));
        walk.show(observer);
        walk.reset(0..count);
    }
    debug_assert_eq!(walk.hash, walk.state.hash);
}

struct Walk<'a> {
    level: &'a Arc<Level>,
    state: &'a State,
    /// Ordinary lines, then those of hidden blocks.
    lines: Vec<Kept>,
    hash: u64,
    event: Event,
    place: Option<&'static Location<'static>>,
    done: Done,
    random: Random,
}

impl Walk<'_> {
    fn show(&self, observer: &mut Observer) -> Seen {
        observer(&Image {
            level: self.level,
            log: &self.state.log,
            hidden: &self.state.hidden,
            lines: &self.lines,
            hash: self.hash,
            profile: self.state.options.profile.as_deref(),
            place: self.place,
            point: self.state.points,
            event: self.event,
            done: self.done,
        })
    }

    /// Shows this state of the ordinary lines with the hidden ones all there, gone, and mixed; with every state of them if one is reached.
    fn show_hidden(&mut self, hidden: Range<usize>, observer: &mut Observer) {
        let mut seen = self.show(observer);
        if hidden.is_empty() {
            return;
        }
        hidden.clone().for_each(|index| self.set(index, 0));
        seen.reached_hidden |= self.show(observer).reached_hidden;
        self.shuffle(hidden.clone());
        seen.reached_hidden |= self.show(observer).reached_hidden;
        self.reset(hidden.clone());
        if seen.reached_hidden {
            self.vary(hidden, &mut |walk| _ = walk.show(observer));
        }
    }

    /// Takes the lines of `range` through all their states, or a sample of them, and back to where nothing is lost.
    fn vary(&mut self, range: Range<usize>, visit: &mut dyn FnMut(&mut Self)) {
        let states = self.lines[range.clone()].iter().try_fold(1u64, |product, kept| product.checked_mul(u64::from(kept.of) + 1));
        match states {
            Some(states) if states <= self.state.options.images_max => self.every_state(range, visit),
            _ => self.some_states(range, visit),
        }
    }

    /// Reflected mixed-radix Gray code: one store applied or taken back from state to state. It ends far from where it began.
    fn every_state(&mut self, range: Range<usize>, visit: &mut dyn FnMut(&mut Self)) {
        'states: loop {
            visit(self);
            for index in range.clone() {
                let Kept { count, of, up, .. } = self.lines[index];
                if up && count < of {
                    self.set(index, count + 1);
                    continue 'states;
                }
                if !up && count > 0 {
                    self.set(index, count - 1);
                    continue 'states;
                }
                self.lines[index].up = !up;
            }
            break;
        }
        self.reset(range);
    }

    fn some_states(&mut self, range: Range<usize>, visit: &mut dyn FnMut(&mut Self)) {
        visit(self);
        for index in range.clone() {
            self.set(index, 0);
            visit(self);
            self.set(index, self.lines[index].of);
        }
        range.clone().for_each(|index| self.set(index, 0));
        visit(self);
        for index in range.clone() {
            self.set(index, self.lines[index].of);
            visit(self);
            self.set(index, 0);
        }
        for _ in 0..self.state.options.sample_count {
            self.shuffle(range.clone());
            visit(self);
        }
        self.reset(range);
    }

    fn shuffle(&mut self, range: Range<usize>) {
        for index in range {
            let count = self.random.below(u64::from(self.lines[index].of) + 1);
            self.set(index, count as u32);
        }
    }

    fn reset(&mut self, range: Range<usize>) {
        for index in range {
            self.set(index, self.lines[index].of);
            self.lines[index].up = false;
        }
    }

    /// Makes the line keep its first `count` stores.
    fn set(&mut self, index: usize, count: u32) {
        let kept = &mut self.lines[index];
        let stores = self.state.log.stores(kept.line);
        let words = self.level.memory.words();
        while kept.count < count {
            let store = stores[kept.count as usize];
            words[store.at / WORD].store(store.new, Ordering::Relaxed);
            self.hash = rehash(self.hash, store.at / WORD, store.old, store.new);
            kept.count += 1;
        }
        while kept.count > count {
            kept.count -= 1;
            let store = stores[kept.count as usize];
            words[store.at / WORD].store(store.old, Ordering::Relaxed);
            self.hash = rehash(self.hash, store.at / WORD, store.new, store.old);
        }
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(mixed ^ mixed >> 31) * u128::from(bound)) >> 64) as u64
    }
}
