//! The crash checker's medium: every image that a crash may leave, and a place to recover each of them.
//!
//! **The model** is that of the module above, per line and per thread:
//!
//! ```text
//!   store     appends (old, new) to the log of its line                      line:    s1 s2 s3 s4 s5 ...   stores since the last durable one
//!   flush     notes, for this thread, how long the line's log is                            ^ flushed: at most this far after the next fence
//!   fence     this thread's noted prefixes become durable and leave the log  crash:   s1 .. sk  for any k, each line for itself
//!   exchange  as fence, even if it fails; then stores. Its own store is not durable
//! ```
//!
//! A crash keeps some prefix of the log of every line. So the number of images of one moment is the product of (stores in the log + 1) over the lines.
//!
//! *Sets.* A relaxed store claims no order, and the compiler gives it none: between two flushes, fences or exchanges of a thread, its relaxed stores may reach
//! memory before any other of its stores to other words, and in any order among themselves, as in a copy of many bytes ([`Pm::fill`](crate::Pm::fill)). An
//! ordered store comes after all before it. So any subset of the relaxed stores that the crash cuts into may be there. A line's images are the sets of stores
//! that contain, with a store, whatever it comes after (`states.rs`); for lines without such stores, its prefixes.
//!
//! *Streams* go past the caches ([`Medium::stream`]): each word is there or not, whatever else was stored before or after, and however much it was flushed,
//! until a fence or an exchange of the thread, which makes all of them durable. They are lost even where caches are durable. Where the kernel writes pages back
//! ([`Domain::Msync`](crate::Domain::Msync)) nothing goes past the caches: there they are relaxed stores ([`CrashOptions::awaits_device`]).
//!
//! *A cache in the persistence domain* ([`CrashOptions::stores_are_durable`]): a store is durable at once, and a flush means nothing. So there is one image per
//! moment, except for relaxed stores, which are undecided until the thread's next ordered store, fence or exchange.
//!
//! **Crash points** are the moments just before a fence or exchange that makes something durable, and the end of an operation. Between two such moments the set
//! of images only grows and the promises only become stricter, so looking in between would find nothing more (for one thread; for several, the same holds for
//! one schedule). Where stores are durable at once every ordered store is such a moment.
//!
//! **Lives.** At a crash point the observer is called, *inside* the fence of the suspended operation, once for each image. The image lies in the memory itself;
//! the observer starts a new [`Life`] on it: opens a pool over the same memory, recovers, looks around, changes what it likes. When that life is dropped, all
//! of it is undone from its log; the next image follows; finally the suspended operation goes on as if nothing had happened. A life has crash points of its
//! own, so a recovery can be crashed too, to any depth. Consecutive images differ by one store (reflected Gray code), so making an image costs one store.
//!
//! **Undecided images.** For a crash point with too many images, an image can be shown that is decided only as far as it is read, once for each way to read it
//! (`lazy.rs`, [`CrashOptions::lazy_runs_max`]).
//!
//! **Blocks that nobody can reach.** A block that was allocated and is not linked yet ([`Medium::allocated`], [`Medium::released`]) is reached by no recovery
//! unless a link to it is already in the image. So images that differ only there are equal to any recovery, and of all states of such blocks only {all, none,
//! some random ones} are shown, *unless* the observer answers that it reached one ([`Seen::reached_hidden`]): then, for that state of everything else, they are
//! enumerated in full. This could miss a recovery that depends on unreachable bytes in some states of them, but in neither none, all nor the random ones;
//! [`CrashOptions::hidden_in_full`] turns the shortcut off, and a test compares both.
//!
//! Lives, not threads, own this state, but flush sets are kept by thread, so that several threads under a scheduler are supported. Observers run under the
//! life's lock. What a scheduler holds back in store buffers ([`crate::schedule`]) has not reached the medium: it is in no image, whatever the domain. A fence
//! waits in the buffer of its thread, so the crash point before it is the moment when it leaves; an exchange finds the buffer of its thread empty.

mod debt;
mod dependence;
mod images;
mod lazy;
mod log;
mod site;
mod states;
mod trace;

pub use debt::Debt;
pub use dependence::{Dependence, Dependences};
pub use images::{Balance, Event, Fate, Image, Moment, Points, Seen, Store};
pub use site::{Act, Fault, Profile, Site, Tally, Verb};
pub use trace::{Deed, Trace};

use super::holding::{self, Holding};
use super::{LINE, Lines, Medium};
use crate::schedule::Step;
use crate::{Memory, WORD, Word, schedule, word};
use log::{Log, Way};
use parking_lot::Mutex;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a life is watched.
#[derive(Clone, Debug)]
pub struct CrashOptions {
    /// Whether the cache is in the persistence domain: a store is durable at once, and flushes mean nothing. Default no.
    pub stores_are_durable: bool,
    /// Show every image of a crash point that has at most this many, and samples of one that has more. Default 4096.
    pub images_max: u64,
    /// Number of random images in a sample, besides none, all, each line alone, and all but one line. Default 32.
    pub sample_count: u32,
    /// For a crash point with more images than that, leave the content of an image undecided, and show it once for each way in which the observer reads it, if
    /// that takes at most this many runs. Only in builds with debug assertions ([`IS_BUILT_IN`](crate::schedule::IS_BUILT_IN)), and for observers that recover
    /// in their own thread. Default 0: never.
    pub lazy_runs_max: u64,
    /// Show all states of unreachable blocks, too. Default no; see the module documentation.
    pub hidden_in_full: bool,
    /// Seed of every random choice. Default 0.
    pub seed: u64,
    /// A life with more stores than this panics: it would never end. Default 1 M.
    pub stores_max: u64,
    /// A defect planted in operations and recoveries alike. Default none.
    pub fault: Option<Fault>,
    /// Whether the medium is one of [`Domain::Msync`](crate::Domain::Msync): what is streamed goes into the caches and needs a flush, and what is published
    /// ([`Medium::publish`]) is held back until it is durable. Default no.
    pub awaits_device: bool,
    /// Whether flushes do nothing, as is correct where stores are durable at once. Default no.
    pub drops_flushes: bool,
    /// Where to record the sites that are reached. Default nowhere.
    pub profile: Option<Arc<Profile>>,
    /// Where to count how crash points were shown. Default nowhere.
    pub points: Option<Arc<Points>>,
    /// Where to record what is done. Default nowhere.
    pub trace: Option<Arc<Trace>>,
    /// Assume that the words of a line are independent of each other except for these dependences, and record those that show ([`Seen::is_broken`]). Default
    /// no.
    pub dependences: Option<Arc<Dependences>>,
}

impl Default for CrashOptions {
    fn default() -> Self {
        Self {
            stores_are_durable: false,
            images_max: 4096,
            sample_count: 32,
            lazy_runs_max: 0,
            hidden_in_full: false,
            seed: 0,
            stores_max: 1 << 20,
            fault: None,
            awaits_device: false,
            drops_flushes: false,
            profile: None,
            points: None,
            trace: None,
            dependences: None,
        }
    }
}

/// How much a life has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Number of stores, successful exchanges included.
    pub stores: u64,
    /// Number of flushes, each of any number of lines.
    pub flushes: u64,
    /// Number of fences.
    pub fences: u64,
}

impl Done {
    fn since(self, earlier: Self) -> Self {
        Self { stores: self.stores - earlier.stores, flushes: self.flushes - earlier.flushes, fences: self.fences - earlier.fences }
    }
}

/// The medium. A handle: clones are the same medium, on the same memory.
#[derive(Clone)]
pub struct Crash {
    level: Arc<Level>,
}

/// One life, or the ground under the first.
struct Level {
    memory: Arc<Memory>,
    state: Mutex<State>,
    /// The buffers of ended lives, for the next: lives are many and short.
    spare: Arc<Mutex<Vec<State>>>,
}

type Observer = Box<dyn FnMut(&Image<'_>) -> Seen + Send>;

/// What a level knows.
struct State {
    options: CrashOptions,
    stage: Stage,
    /// Hash of the whole memory: the sum of the hashes of its words, so a store changes it in O(1).
    hash: u64,
    counts: Done,
    /// The counts when the operation under way began.
    begun: Done,
    /// Number of crash points so far.
    points: u64,
    /// Every change of this life, in order: (number of the word, its former value).
    undo: Vec<(u32, u64)>,
    log: Log,
    /// Blocks handed out and not linked: (offset, length).
    hidden: Vec<(usize, usize)>,
    observer: Option<Observer>,
    images: images::Buffers,
    /// Decides what is read of the image with which the life began.
    lazy: Option<Arc<lazy::Lazy>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Below the first life: everything is durable, nothing is undone.
    Ground,
    /// Stores are logged.
    Watched,
    /// Stores are undone at the end of the life, but it has no more crash points.
    Unwatched,
    /// The life is over; a store is a bug of its caller.
    Over,
}

impl State {
    fn new(line_count: usize, stage: Stage) -> Self {
        Self {
            options: CrashOptions::default(),
            stage,
            hash: 0,
            counts: Done::default(),
            begun: Done::default(),
            points: 0,
            undo: Vec::new(),
            log: Log::new(line_count),
            hidden: Vec::new(),
            observer: None,
            images: images::Buffers::default(),
            lazy: None,
        }
    }

    /// Notes that the word at `at` went from `old` to `new`.
    #[inline]
    fn record(&mut self, at: usize, old: u64, new: u64, way: Way, site: Site, by: u64) {
        assert!(self.stage != Stage::Over, "a store at {at:#x} through a medium whose life is over");
        self.counts.stores += 1;
        // A store that changes nothing leaves the same image as no store.
        if old == new {
            return;
        }
        self.tell(site.place, site.verb, |site, mistake| Deed::Stored { at, old, new, site, mistake });
        self.hash = rehash(self.hash, at / WORD, old, new);
        if self.stage == Stage::Ground {
            return;
        }
        assert!(self.counts.stores <= self.options.stores_max, "more than {} stores: this does not end", self.options.stores_max);
        self.undo.push(((at / WORD) as u32, old));
        if self.stage != Stage::Watched {
            return;
        }
        let Site { place, verb } = site;
        let is_unflushed = self.options.stores_are_durable || way == Way::Streamed;
        let store = log::Store { at, old, new, place, by, way, is_unflushed, stretch: 0, number: 0 };
        if self.options.stores_are_durable {
            return if way == Way::Ordered { self.log.order(at, by) } else { self.log.store(store, false) };
        }
        if let Some(profile) = &self.options.profile {
            // A relaxed store claims no order.
            profile.hit(place, verb, if way == Way::Ordered && self.log.may_be_early(&store) { &[Act::Early, Act::Late] } else { &[Act::Late] });
        }
        if Fault::is(self.options.fault, place, verb, Act::Late) {
            self.log.store_late(store);
        } else {
            self.log.store(store, Fault::is(self.options.fault, place, verb, Act::Early));
        }
    }

    /// Records what is done, if that is wanted.
    #[inline]
    fn tell(&self, place: &'static Location<'static>, verb: Verb, deed: impl FnOnce(Site, Option<Act>) -> Deed) {
        if let Some(trace) = &self.options.trace {
            trace.tell(deed(Site { place, verb }, trace::mistake(self.options.fault, place, verb)));
        }
    }

    /// The n-th flush and the n-th fence of the operation under way.
    fn done(&self) -> Done {
        self.counts.since(self.begun)
    }
}

/// The change of the memory's hash when word number `word` changes from `old` to `new`.
#[inline]
fn rehash(hash: u64, word: usize, old: u64, new: u64) -> u64 {
    hash.wrapping_sub(word_hash(word, old)).wrapping_add(word_hash(word, new))
}

/// A zero word hashes to 0, so that memory never written costs nothing to hash.
#[inline]
fn word_hash(word: usize, value: u64) -> u64 {
    if value == 0 {
        return 0;
    }
    let product = u128::from(value ^ 0xa076_1d64_78bd_642f) * u128::from((word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mixed = (product as u64) ^ ((product >> 64) as u64);
    let product = u128::from(mixed ^ 0xe703_7ed1_a0b4_28db) * u128::from(value | 1 << 63);
    (product as u64) ^ ((product >> 64) as u64)
}

impl Crash {
    /// The ground: a medium over `memory` on which everything is durable at once and nothing is watched. Build here what lives start from.
    pub fn new(memory: &Arc<Memory>) -> Self {
        let words = memory.words();
        assert!(words.len() <= u32::MAX as usize, "the checker is for small memory");
        let mut state = State::new(words.len() * WORD / LINE, Stage::Ground);
        state.hash = words.iter().enumerate().fold(0, |hash, (number, word)| rehash(hash, number, 0, word.load(Ordering::Relaxed)));
        Self { level: Arc::new(Level { memory: Arc::clone(memory), state: Mutex::new(state), spare: Arc::default() }) }
    }

    /// Whether its caches are durable: [`CrashOptions::stores_are_durable`].
    pub fn has_durable_caches(&self) -> bool {
        self.level.state.lock().options.stores_are_durable
    }

    /// Starts a life on the current content of the memory. The level below must rest until the life is dropped.
    pub fn live(&self, options: CrashOptions) -> Life {
        let (hash, lazy) = {
            let state = self.level.state.lock();
            (state.hash, state.lazy.clone())
        };
        self.level.live(hash, options, lazy)
    }

    /// How much this level has done.
    pub fn counts(&self) -> Done {
        self.level.state.lock().counts
    }

    /// Hash of the memory, and of its undecided part.
    pub fn hash(&self) -> u64 {
        let state = self.level.state.lock();
        lazy::Lazy::hash_with(state.lazy.as_ref(), state.hash)
    }
}

impl Level {
    fn live(self: &Arc<Self>, hash: u64, options: CrashOptions, lazy: Option<Arc<lazy::Lazy>>) -> Life {
        let spare = self.spare.lock().pop();
        let mut state = spare.unwrap_or_else(|| State::new(self.memory.words().len() * WORD / LINE, Stage::Over));
        (state.hash, state.options, state.stage, state.lazy) = (hash, options, Stage::Watched, lazy);
        (state.counts, state.begun, state.points) = (Done::default(), Done::default(), 0);
        state.log.is_by_word = state.options.dependences.is_some();
        let level = Level { memory: Arc::clone(&self.memory), state: Mutex::new(state), spare: Arc::clone(&self.spare) };
        Life { crash: Crash { level: Arc::new(level) } }
    }

    /// Shows every image of this moment to the observer, if there is one.
    fn crash_point(self: &Arc<Self>, state: &mut State, event: Event, place: Option<&'static Location<'static>>) {
        if state.stage != Stage::Watched {
            return;
        }
        if let Some(mut observer) = state.observer.take() {
            state.points += 1;
            images::enumerate(self, state, event, place, &mut observer);
            state.observer = Some(observer);
        }
    }

    /// The flushed prefixes of thread number `by` become durable.
    fn retire(self: &Arc<Self>, state: &mut State, event: Event, place: &'static Location<'static>, by: u64) {
        let verb = if event == Event::Exchange { Verb::Exchange } else { Verb::Fence };
        let retires = state.log.retires(by);
        if retires
            && !state.options.stores_are_durable
            && let Some(profile) = &state.options.profile
        {
            profile.hit(place, verb, &[Act::Drop]);
        }
        if Fault::is(state.options.fault, place, verb, Act::Drop) {
            return;
        }
        if retires || event == Event::Exchange && state.options.stores_are_durable {
            self.crash_point(state, event, Some(place));
        }
        state.log.retire(by);
        state.log.store_what_is_late();
    }
}

impl Crash {
    /// Distinguishes this medium from others.
    fn id(&self) -> u64 {
        Arc::as_ptr(&self.level).addr() as u64
    }

    /// A store reaches the memory, and the log.
    fn store_now(&self, at: usize, value: u64, order: Ordering, place: &'static Location<'static>, by: u64) {
        let mut state = self.level.state.lock();
        let way = Way::of(order);
        if state.options.stores_are_durable && way == Way::Ordered {
            self.level.crash_point(&mut state, Event::Store, Some(place));
        }
        let word = &self.level.memory.words()[at / WORD];
        let old = word.load(Ordering::Relaxed);
        word.store(value, order);
        state.record(at, old, value, way, Site { place, verb: Verb::Store }, by);
    }

    /// A fence of thread number `by` is executed.
    fn fence_now(&self, place: &'static Location<'static>, by: u64) {
        let mut state = self.level.state.lock();
        state.counts.fences += 1;
        self.level.retire(&mut state, Event::Fence, place, by);
        state.tell(place, Verb::Fence, |site, mistake| Deed::Fenced { site, mistake });
    }
}

/// The time from opening a pool to a crash. When it is dropped, everything that happened in it is undone.
///
/// Pools on its medium must be dropped before it.
pub struct Life {
    crash: Crash,
}

impl Life {
    /// The medium for pools of this life.
    pub fn medium(&self) -> Crash {
        self.crash.clone()
    }

    /// Calls `observer` for every image of every crash point from now on. It must not use this life, but may start others from the image.
    pub fn observe(&self, observer: impl FnMut(&Image<'_>) -> Seen + Send + 'static) {
        self.crash.level.state.lock().observer = Some(Box::new(observer));
    }

    /// No crash points until the next [`Life::observe`]; stores are still logged.
    pub fn look_away(&self) {
        self.crash.level.state.lock().observer = None;
    }

    /// No more crash points in this life, which makes its stores cheaper.
    pub fn unwatch(&self) {
        let mut state = self.crash.level.state.lock();
        state.observer = None;
        state.stage = Stage::Unwatched;
        state.log.clear();
    }

    /// An operation begins: [`Life::done`] counts from here.
    pub fn begin(&self) {
        let mut state = self.crash.level.state.lock();
        state.begun = state.counts;
    }

    /// The operation has returned: a crash point.
    pub fn end(&self) {
        let level = &self.crash.level;
        level.crash_point(&mut level.state.lock(), Event::End, None);
    }

    /// How much was done since [`Life::begin`].
    pub fn done(&self) -> Done {
        self.crash.level.state.lock().done()
    }

    /// Number of crash points so far.
    pub fn points(&self) -> u64 {
        self.crash.level.state.lock().points
    }

    /// Offsets of the words that this life changed, in order, in bytes.
    pub fn changes(&self) -> Vec<usize> {
        self.crash.level.state.lock().undo.iter().map(|(word, _)| *word as usize * WORD).collect()
    }
}

impl std::ops::Deref for Life {
    type Target = Crash;
    fn deref(&self) -> &Crash {
        &self.crash
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let level = &self.crash.level;
        let mut state = State::take(&mut level.state.lock());
        let words = level.memory.words();
        for (word, old) in state.undo.drain(..).rev() {
            words[word as usize].store(old, Ordering::Relaxed);
        }
        state.log.clear();
        state.hidden.clear();
        (state.observer, state.lazy) = (None, None);
        level.spare.lock().push(state);
    }
}

impl State {
    /// Takes the state of an ended life and leaves one that refuses stores.
    fn take(state: &mut State) -> State {
        std::mem::replace(state, State::new(0, Stage::Over))
    }
}

impl Medium for Crash {
    #[track_caller]
    fn store(&self, at: usize, word: &AtomicU64, value: u64, order: Ordering) {
        if holding::is_held_back(self.id()) {
            return holding::hold_back(at, value);
        }
        let place = Location::caller();
        let by = log::this_thread();
        let is_held_back = schedule::with_buffer(|buffer| {
            let crash = self.clone();
            buffer.store_by(std::ptr::from_ref(word).addr(), value, move || crash.store_now(at, value, order, place, by));
        });
        if is_held_back.is_none() {
            self.store_now(at, value, order, place, by);
        }
    }

    #[track_caller]
    fn stream(&self, at: usize, words: &[Word], bytes: &[u8]) {
        let site = Site { place: Location::caller(), verb: Verb::Store };
        schedule::let_the_pool_catch_up();
        let mut state = self.level.state.lock();
        let way = if state.options.awaits_device { Way::Relaxed } else { Way::Streamed };
        for (number, (word, value)) in words.iter().map(Word::atomic).zip(word::values(bytes)).enumerate() {
            let old = word.swap(value, Ordering::Relaxed);
            state.record(at + number * WORD, old, value, way, site, log::this_thread());
        }
    }

    #[track_caller]
    fn compare_exchange(&self, at: usize, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        let (place, by) = (Location::caller(), log::this_thread());
        let mut state = self.level.state.lock();
        self.level.retire(&mut state, Event::Exchange, place, by);
        let result = word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
        if result.is_ok() {
            state.record(at, current, new, Way::Ordered, Site { place, verb: Verb::Exchange }, by);
        }
        result
    }

    fn awaits_device(&self) -> bool {
        self.level.state.lock().options.awaits_device
    }

    #[track_caller]
    fn flush(&self, lines: Lines<'_>) {
        let place = Location::caller();
        let mut state = self.level.state.lock();
        state.counts.flushes += 1;
        state.tell(place, Verb::Flush, |site, mistake| Deed::Flushed { at: lines.at() / LINE * LINE, lines: lines.count(), site, mistake });
        if state.stage != Stage::Watched || state.options.stores_are_durable || state.options.drops_flushes {
            return;
        }
        let (first, count) = (lines.at() / LINE, lines.count());
        if let Some(profile) = &state.options.profile
            && state.log.is_dirty(first, count)
        {
            profile.hit(place, Verb::Flush, if count > 1 { &[Act::Drop, Act::Neighbour, Act::Short] } else { &[Act::Drop, Act::Neighbour] });
        }
        let planted = |act| Fault::is(state.options.fault, place, Verb::Flush, act);
        let (first, count) = match () {
            () if planted(Act::Drop) => (first, 0),
            () if planted(Act::Short) => (first, count - 1),
            // The lines behind, or before, if there are none behind.
            () if planted(Act::Neighbour) && first + count < state.log.line_count() => (first + 1, count),
            () if planted(Act::Neighbour) => (first - 1, count),
            () => (first, count),
        };
        let by = log::this_thread();
        if schedule::with_buffer(|_| ()).is_none() {
            return state.log.flush(first, count, place, by);
        }
        // What need not wait in a buffer is executed at once, and that takes the lock.
        drop(state);
        schedule::with_buffer(|buffer| {
            for line in first..first + count {
                let crash = self.clone();
                let address = self.level.memory.words()[line * LINE / WORD].as_ptr().addr();
                buffer.flush_by(address, move || crash.level.state.lock().log.flush(line, 1, place, by));
            }
        });
    }

    #[track_caller]
    fn fence(&self) {
        let (place, by) = (Location::caller(), log::this_thread());
        let is_held_back = schedule::with_buffer(|buffer| {
            let crash = self.clone();
            buffer.fence_by(move || crash.fence_now(place, by));
        });
        if is_held_back.is_none() {
            self.fence_now(place, by);
        }
    }

    /// What a device gets as a whole becomes durable here store by store, and what it gets with that becomes durable before: that leaves more images.
    #[track_caller]
    fn publish(&self, act: impl FnOnce()) {
        schedule::before(Step::Fence);
        self.fence();
        if !self.holds_back() {
            act();
            schedule::before(Step::Fence);
            return self.fence();
        }
        schedule::drain();
        let holding = Holding::begin(self.id());
        act();
        let (place, by) = (Location::caller(), log::this_thread());
        for (at, value) in holding.end() {
            schedule::before(Step::Store(self.level.memory.words()[at / WORD].as_ptr().addr(), value));
            self.store_now(at, value, Ordering::Release, place, by);
            self.level.state.lock().log.flush(at / LINE, 1, place, by);
            self.fence_now(place, by);
        }
        // Other threads may look before the caller goes on.
        schedule::before(Step::Fence);
    }

    fn holds_back(&self) -> bool {
        self.awaits_device()
    }

    fn allocated(&self, at: usize, length: usize) {
        let mut state = self.level.state.lock();
        if state.stage == Stage::Watched {
            state.hidden.push((at, length));
        }
    }

    fn released(&self, at: usize, _length: usize) {
        self.level.state.lock().hidden.retain(|(start, _)| *start != at);
    }
}

#[cfg(test)]
mod tests;
