//! Walking through the images of one crash point, each made in place from the one before.

use super::dependence::first_lost;
use super::lazy::{Content, Lazy};
use super::log::{self, Log};
use super::site::{Site, Verb};
use super::states::{Cut, Order};
use super::{CrashOptions, Done, Level, Life, Observer, Profile, State, rehash};
use crate::medium::LINE;
use crate::{WORD, schedule};
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Whether recovery reached a block that was not linked at the crash ([`Image::is_hidden`]): then its bytes matter, and all their states are shown.
    pub reached_hidden: bool,
    /// Whether the image breaks a rule, for a life with [`CrashOptions::dependences`].
    pub is_broken: bool,
}

/// One legal image of one crash point, lying in the memory while the observer runs.
pub struct Image<'a> {
    level: &'a Arc<Level>,
    log: &'a Log,
    hidden: &'a [(usize, usize)],
    images: &'a Buffers,
    hash: u64,
    /// Decides what is read of it, or of the image with which its life began.
    lazy: Option<&'a Arc<Lazy>>,
    /// Whether this image is the undecided one.
    is_undecided: bool,
    hides: bool,
    profile: Option<&'a Profile>,
    /// Whether each line keeps what the processor's order allows: always, except in a life with [`CrashOptions::dependences`].
    pub is_in_order: bool,
    /// The source location of what happens next, unless that is the end.
    pub place: Option<&'static Location<'static>>,
    /// Number of the crash point in its life, from 1.
    pub point: u64,
    /// What was about to happen.
    pub event: Event,
    /// What the operation under way had done, including the event.
    pub done: Done,
}

impl Image<'_> {
    /// Starts a life on the image.
    pub fn live(&self, options: CrashOptions) -> Life {
        self.level.live(self.hash, options, self.lazy.cloned())
    }

    /// Hash of the whole memory, and of its undecided part ([`CrashOptions::lazy_runs_max`]). If it has changed when the observer is done, then something has
    /// been decided, and the observer will be called again with the same image for the other possibilities.
    pub fn hash(&self) -> u64 {
        Lazy::hash_with(self.lazy, self.hash)
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
        self.hides
    }
}

/// What an image keeps of a line.
#[derive(Clone, Debug)]
pub struct Balance {
    /// Offset of the line in bytes.
    pub line: usize,
    /// The stores that the crash could lose, in order.
    pub stores: Vec<Store>,
}

/// A store that a crash may lose.
#[derive(Clone, Copy, Debug)]
pub struct Store {
    /// Offset of the word in bytes.
    pub at: usize,
    /// The old value.
    pub old: u64,
    /// The value stored.
    pub new: u64,
    /// The location of the store.
    pub place: &'static Location<'static>,
    /// Whether the image has it.
    pub fate: Fate,
}

/// What became of a store in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is there.
    Kept,
    /// It is not there.
    Lost,
    /// Nothing that would tell has been read.
    Unread,
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kept => "kept",
            Self::Lost => "lost",
            Self::Unread => "unread",
        })
    }
}

impl Image<'_> {
    /// The moment of the crash.
    pub fn moment(&self) -> Moment {
        Moment { point: self.point, event: self.event, place: self.place, done: self.done }
    }

    /// What the image keeps of each line that had something to lose.
    pub fn balance(&self) -> Vec<Balance> {
        let fate = |index: usize, kept: &Kept, number: usize, store: &log::Store| {
            let keeps = |state: &u32| kept.keeps_in(*state, self.images, number, store);
            match self.lazy.filter(|_| self.is_undecided).map(|lazy| lazy.open(index)) {
                Some(open) if open.iter().all(keeps) => Fate::Kept,
                Some(open) if open.iter().any(keeps) => Fate::Unread,
                None if kept.keeps(number, store) => Fate::Kept,
                _ => Fate::Lost,
            }
        };
        let stores = |index: usize, kept: &Kept| {
            let told = |(number, store): (usize, &log::Store)| {
                let &log::Store { at, old, new, place, .. } = store;
                Store { at, old, new, place, fate: fate(index, kept, number, store) }
            };
            self.log.stores(kept.line).iter().enumerate().map(told).collect()
        };
        let lines = self.images.lines.iter().enumerate();
        lines.map(|(index, kept)| Balance { line: kept.line as usize * LINE, stores: stores(index, kept) }).collect()
    }
}

/// The moment of a crash, for printing.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Number of the crash point in its life, from 1.
    pub point: u64,
    /// What was about to happen.
    pub event: Event,
    /// Where, unless that is the end.
    pub place: Option<&'static Location<'static>>,
    /// What the operation under way had done, including the event.
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
            write!(f, "\n  line {line:#x} keeps {} of {} stores:", stores.iter().filter(|store| store.fate == Fate::Kept).count(), stores.len())?;
            for Store { at, old, new, place, fate } in stores {
                write!(f, "\n    {fate} {at:#x}: {old:#x} -> {new:#x}, stored at {place}")?;
            }
        }
        Ok(())
    }
}

/// Lines that are not in order and have more states than this are sampled.
const LISTED_MAX: u64 = 4096;

/// What a line keeps of its stores: one of its states, of which the first keeps nothing and the last everything.
struct Kept {
    line: u32,
    /// Number of the state. For a line in order, the number of stores kept.
    state: u32,
    /// Number of the last state.
    last: u32,
    /// The direction in which the Gray code moves it next.
    up: bool,
    /// For a line that is not in order.
    cuts: Option<Cuts>,
}

/// The states of a line that is not in order.
struct Cuts {
    now: Cut,
    /// Where they begin in the buffer.
    first: usize,
    /// Whether all are there: otherwise there are three, nothing, a random set, everything.
    is_complete: bool,
}

impl Kept {
    fn keeps(&self, place: usize, store: &log::Store) -> bool {
        self.cuts.as_ref().map_or(place < self.state as usize, |cuts| cuts.now.keeps(place, store))
    }

    /// Whether the line keeps the store in its n-th state.
    fn keeps_in(&self, state: u32, images: &Buffers, place: usize, store: &log::Store) -> bool {
        self.cuts.as_ref().map_or(place < state as usize, |cuts| images.cuts[cuts.first + state as usize].keeps(place, store))
    }

    fn is_listed(&self) -> bool {
        self.cuts.as_ref().is_none_or(|cuts| cuts.is_complete)
    }
}

/// Memory for the walk, kept from one crash point to the next.
#[derive(Default)]
pub(super) struct Buffers {
    lines: Vec<Kept>,
    cuts: Vec<Cut>,
}

impl Buffers {
    /// Adds a line that keeps everything.
    fn add(&mut self, log: &Log, line: u32) {
        let stores = log.stores(line);
        let cuts = (!log.is_in_order(line)).then(|| {
            let (now, first) = (Cut::all(stores), self.cuts.len());
            self.cuts.extend([Cut::NONE, now, now]);
            Cuts { now, first, is_complete: false }
        });
        let last = if cuts.is_some() { 2 } else { stores.len() as u32 };
        self.lines.push(Kept { line, state: last, last, up: false, cuts });
    }
}

/// Shows the images of this moment. Afterwards the memory is as before.
pub(super) fn enumerate(level: &Arc<Level>, state: &mut State, event: Event, place: Option<&'static Location<'static>>, observer: &mut Observer) {
    set_late(level, state, |store| (store.new, store.old));
    while walk_through(level, state, event, place, observer) {}
    set_late(level, state, |store| (store.old, store.new));
}

/// Shows the images; returns whether that must be repeated, because more is known of what they may be.
fn walk_through(level: &Arc<Level>, state: &mut State, event: Event, place: Option<&'static Location<'static>>, observer: &mut Observer) -> bool {
    let mut images = std::mem::take(&mut state.images);
    images.lines.clear();
    images.cuts.clear();
    let is_hidden = |at: usize| !state.options.hidden_in_full && state.hidden.iter().any(|(start, length)| (*start..start + length).contains(&at));
    let is_hidden = |stores: &[log::Store]| stores.iter().all(|store| is_hidden(store.at));
    state.log.dirty().filter(|(_, stores)| !is_hidden(stores)).for_each(|(line, _)| images.add(&state.log, line));
    let split = images.lines.len();
    state.log.dirty().filter(|(_, stores)| is_hidden(stores)).for_each(|(line, _)| images.add(&state.log, line));

    let done = state.done();
    let seed = state.options.seed ^ state.hash ^ state.points;
    let lazy = state.lazy.clone();
    let random = Random(seed);
    let mut walk =
        Walk { level, state, images, hash: state.hash, lazy, is_undecided: false, is_sampled: false, event, place, done, random, is_explained: false };
    let count = walk.images.lines.len();
    let is_lazy = walk.may_be_lazy(split) && walk.show_undecided(observer);
    if !is_lazy {
        walk.vary(0..split, &mut |walk| walk.show_hidden(split..count, observer));
    }
    if let Some(points) = &state.options.points {
        points.count(is_lazy, walk.is_sampled);
    }
    walk.reset(0..count);
    debug_assert_eq!(walk.hash, walk.state.hash);
    let (images, is_explained) = (walk.images, walk.is_explained);
    state.images = images;
    is_explained
}

/// Takes stores that no image may show out of the memory, or puts them back.
fn set_late(level: &Arc<Level>, state: &mut State, change: impl Fn(&log::Store) -> (u64, u64)) {
    for store in state.log.late() {
        let (from, to) = change(store);
        level.memory.words()[store.at / WORD].store(to, Ordering::Relaxed);
        state.hash = rehash(state.hash, store.at / WORD, from, to);
    }
}

/// Shows the image that loses only the store at `place` of the log of `line` and those that need it, and the one that keeps nothing. Afterwards the memory is
/// as before.
pub(super) fn without(level: &Arc<Level>, state: &mut State, line: u32, place: usize, event: Event, observer: &mut Observer) {
    let mut images = Buffers::default();
    state.log.dirty().for_each(|(line, _)| images.add(&state.log, line));
    let mut walk = Walk {
        level,
        state,
        images,
        hash: state.hash,
        lazy: None,
        is_undecided: false,
        is_sampled: false,
        event,
        place: None,
        done: state.done(),
        random: Random(0),
        is_explained: false,
    };
    let count = walk.images.lines.len();
    if let Some(index) = walk.images.lines.iter().position(|other| other.line == line) {
        let cut = walk.order(line).keep(|other| other != place);
        walk.set_cut(index, place as u32, cut);
        walk.show(observer);
        (0..count).for_each(|index| walk.set(index, 0));
        walk.show(observer);
        walk.reset(0..count);
    }
    debug_assert_eq!(walk.hash, walk.state.hash);
}

/// Number of combined states of the lines.
fn states(lines: &[Kept]) -> Option<u64> {
    lines.iter().try_fold(1u64, |product, kept| product.checked_mul(u64::from(kept.last) + 1))
}

/// How the crash points of a run were shown.
#[derive(Debug, Default)]
pub struct Points {
    /// With every image.
    pub eager: AtomicU64,
    /// Undecided, in every way to read them.
    pub lazy: AtomicU64,
    /// As a sample.
    pub sampled: AtomicU64,
}

impl Points {
    fn count(&self, is_lazy: bool, is_sampled: bool) {
        let counter = match (is_lazy, is_sampled) {
            (true, _) => &self.lazy,
            (false, true) => &self.sampled,
            (false, false) => &self.eager,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

struct Walk<'a> {
    level: &'a Arc<Level>,
    state: &'a State,
    /// Ordinary lines, then those of hidden blocks.
    images: Buffers,
    hash: u64,
    /// Decides what is read of the image, or of the one with which this life began.
    lazy: Option<Arc<Lazy>>,
    /// Whether this image is the undecided one.
    is_undecided: bool,
    /// Whether states were left out because there are too many.
    is_sampled: bool,
    event: Event,
    place: Option<&'static Location<'static>>,
    done: Done,
    random: Random,
    /// Whether a dependence has been noted: then the list of possible images is out of date.
    is_explained: bool,
}

impl<'a> Walk<'a> {
    fn show(&mut self, observer: &mut Observer) -> Seen {
        if self.is_explained {
            return Seen::default();
        }
        let seen = self.look(observer);
        if seen.is_broken && self.lines_out_of_order().next().is_some() {
            self.explain(observer);
        }
        seen
    }

    /// What the stores of a line need.
    fn order(&self, line: u32) -> Order<'a> {
        let stores = self.state.log.stores(line);
        self.state.options.dependences.as_ref().map_or_else(|| Order::new(stores, log::Store::needs), |dependences| dependences.order(stores))
    }

    /// Lines that keep what no crash leaves; none, unless that is the purpose.
    fn lines_out_of_order(&self) -> impl Iterator<Item = usize> {
        let lines = self.images.lines.iter().enumerate().filter(|_| self.state.options.dependences.is_some());
        let cuts = lines.filter_map(|(index, kept)| Some((index, self.state.log.stores(kept.line), kept.cuts.as_ref()?)));
        cuts.filter(|(_, stores, cuts)| first_lost(stores, &cuts.now).is_some()).map(|(index, ..)| index)
    }

    /// Notes on which order of stores it depends that a rule is broken.
    fn explain(&mut self, observer: &mut Observer) {
        // First, lines with which the rule also breaks in a legal order are put in order.
        for index in self.lines_out_of_order().collect::<Vec<_>>() {
            let (line, now) = (self.images.lines[index].line, self.cut(index));
            let (order, count) = (self.order(line), self.state.log.stores(line).len());
            let breaks = (0..=count).rev().any(|kept| {
                self.set_cut(index, 0, order.keep(|place| place < kept));
                self.look(observer).is_broken
            });
            if !breaks {
                self.set_cut(index, 0, now);
            }
        }
        let first = self.lines_out_of_order().next();
        if let (Some(index), Some(dependences)) = (first, self.state.options.dependences.clone()) {
            let stores = self.state.log.stores(self.images.lines[index].line);
            dependences.explain(stores, self.cut(index), &mut |cut| {
                self.set_cut(index, 0, cut);
                self.look(observer).is_broken
            });
            self.is_explained = true;
        }
    }

    fn cut(&self, index: usize) -> Cut {
        self.images.lines[index].cuts.as_ref().expect("a line that is not in order").now
    }

    fn look(&self, observer: &mut Observer) -> Seen {
        observer(&Image {
            level: self.level,
            log: &self.state.log,
            hidden: &self.state.hidden,
            images: &self.images,
            hash: self.hash,
            lazy: self.lazy.as_ref(),
            is_undecided: self.is_undecided,
            hides: !self.state.hidden.is_empty() && (!self.is_undecided || self.images.lines.iter().any(|kept| !kept.is_listed())),
            profile: self.state.options.profile.as_deref(),
            is_in_order: self.lines_out_of_order().next().is_none(),
            place: self.place,
            point: self.state.points,
            event: self.event,
            done: self.done,
        })
    }

    /// Whether there are too many states to show each of them, and loads of this thread can be watched. In lives on an undecided image nothing is left
    /// undecided: their own crashes are many and small.
    fn may_be_lazy(&mut self, split: usize) -> bool {
        let options = &self.state.options;
        let is_free = schedule::IS_BUILT_IN && self.lazy.is_none() && !schedule::is_scheduled() && options.dependences.is_none();
        let is_wanted = options.lazy_runs_max > 0 && is_free;
        is_wanted && (0..split).all(|index| self.list(index)) && states(&self.images.lines).is_none_or(|states| states > self.state.options.images_max)
    }

    /// Shows the image undecided, once for each way to read it. Returns whether these were all.
    ///
    /// Sets of stores in hidden blocks have too many states, so three of them are used to establish that nothing hidden is reached.
    fn show_undecided(&mut self, observer: &mut Observer) -> bool {
        let all = 0..self.images.lines.len();
        self.shuffle(all.clone());
        all.clone().for_each(|index| self.set(index, 0));
        let contents: Vec<_> = all.clone().map(|index| (self.images.lines[index].line as usize, self.contents(index))).collect();
        let lazy = Arc::new(Lazy::new(&self.level.memory, contents.into_iter()));
        self.lazy = Some(Arc::clone(&lazy));
        self.is_undecided = true;
        let scheduled = schedule::enter(Arc::clone(&lazy) as Arc<dyn schedule::Scheduler>);
        let mut runs = 0;
        let is_whole = loop {
            let reached_hidden = self.show(observer).reached_hidden;
            runs += 1;
            match lazy.again() {
                _ if reached_hidden => break false,
                false => break true,
                true if runs == self.state.options.lazy_runs_max => break false,
                true => {}
            }
        };
        drop(scheduled);
        (self.lazy, self.is_undecided) = (None, false);
        self.reset(all);
        is_whole
    }

    /// The content of the line, of which all is lost, in each of its states.
    fn contents(&mut self, index: usize) -> Vec<Content> {
        let (first, last) = (self.images.lines[index].line as usize * LINE / WORD, self.images.lines[index].last);
        let level = Arc::clone(self.level);
        let content = |count| {
            self.set(index, count);
            std::array::from_fn(|word| level.memory.words()[first + word].load(Ordering::Relaxed))
        };
        let contents = (0..=last).map(content).collect();
        self.set(index, 0);
        contents
    }

    /// Shows this state of the ordinary lines with the hidden ones all kept, all lost, and mixed; with every state of them if one is reached.
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
        let are_listed = range.clone().all(|index| self.list(index));
        match states(&self.images.lines[range.clone()]) {
            Some(states) if are_listed && states <= self.state.options.images_max => self.every_state(range, visit),
            _ => self.some_states(range, visit),
        }
    }

    /// Lists the states of a line, if they are not too many.
    fn list(&mut self, index: usize) -> bool {
        let kept = &self.images.lines[index];
        if kept.is_listed() {
            return true;
        }
        let order = self.order(kept.line);
        let Buffers { lines, cuts: list } = &mut self.images;
        let (kept, first) = (&mut lines[index], list.len());
        let Some(cuts) = &mut kept.cuts else { return true };
        if order.list(LISTED_MAX, list) {
            (cuts.first, cuts.is_complete) = (first, true);
            kept.last = (list.len() - first - 1) as u32;
            kept.state = kept.last;
        }
        cuts.is_complete
    }

    /// Reflected mixed-radix Gray code: from state to state, one store, or a few, is applied or taken back. It ends far from where it began.
    fn every_state(&mut self, range: Range<usize>, visit: &mut dyn FnMut(&mut Self)) {
        'states: loop {
            visit(self);
            for index in range.clone() {
                let Kept { state, last, up, .. } = self.images.lines[index];
                if up && state < last {
                    self.set(index, state + 1);
                    continue 'states;
                }
                if !up && state > 0 {
                    self.set(index, state - 1);
                    continue 'states;
                }
                self.images.lines[index].up = !up;
            }
            break;
        }
        self.reset(range);
    }

    fn some_states(&mut self, range: Range<usize>, visit: &mut dyn FnMut(&mut Self)) {
        self.is_sampled = true;
        visit(self);
        for index in range.clone() {
            self.set(index, 0);
            visit(self);
            self.set(index, self.images.lines[index].last);
        }
        range.clone().for_each(|index| self.set(index, 0));
        visit(self);
        for index in range.clone() {
            self.set(index, self.images.lines[index].last);
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
            let kept = &self.images.lines[index];
            if !kept.is_listed() {
                let cut = self.order(kept.line).at_random(&mut self.random);
                if let Some(cuts) = &self.images.lines[index].cuts {
                    self.images.cuts[cuts.first + 1] = cut;
                }
                self.set(index, 1);
            } else {
                let state = self.random.below(u64::from(kept.last) + 1);
                self.set(index, state as u32);
            }
        }
    }

    fn reset(&mut self, range: Range<usize>) {
        for index in range {
            self.set(index, self.images.lines[index].last);
            self.images.lines[index].up = false;
        }
    }

    /// Puts the line into its n-th state.
    fn set(&mut self, index: usize, state: u32) {
        let kept = &mut self.images.lines[index];
        if let Some(cuts) = &kept.cuts {
            let cut = self.images.cuts[cuts.first + state as usize];
            return self.set_cut(index, state, cut);
        }
        let stores = self.state.log.stores(kept.line);
        let words = self.level.memory.words();
        while kept.state < state {
            let store = &stores[kept.state as usize];
            words[store.at / WORD].store(store.new, Ordering::Relaxed);
            self.hash = rehash(self.hash, store.at / WORD, store.old, store.new);
            kept.state += 1;
        }
        while kept.state > state {
            kept.state -= 1;
            let store = &stores[kept.state as usize];
            words[store.at / WORD].store(store.old, Ordering::Relaxed);
            self.hash = rehash(self.hash, store.at / WORD, store.new, store.old);
        }
    }

    /// Makes the line keep `cut`, which is its n-th state or none of them; a line in order keeps its first n stores.
    fn set_cut(&mut self, index: usize, state: u32, cut: Cut) {
        let kept = &mut self.images.lines[index];
        let Some(cuts) = &mut kept.cuts else { return self.set(index, state) };
        let (words, first, hash) = (self.level.memory.words(), kept.line as usize * LINE / WORD, &mut self.hash);
        cuts.now.go(&cut, self.state.log.stores(kept.line), |word, from, to| {
            words[first + word].store(to, Ordering::Relaxed);
            *hash = rehash(*hash, first + word, from, to);
        });
        (cuts.now, kept.state) = (cut, state);
    }
}

/// SplitMix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(mixed ^ mixed >> 31) * u128::from(bound)) >> 64) as u64
    }
}
