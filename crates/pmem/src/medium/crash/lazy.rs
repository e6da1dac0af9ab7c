//! Images that are decided as they are read.
//!
//! A recovery reads only some of the words that a crash left undecided. So the image stays undecided: each line may be in any of its states. Just before a load
//! of a word to which these states give different values, one value is chosen, which leaves fewer states; and the same is run again with each other value
//! (Jaaru's idea). What nobody reads costs nothing.
//!
//! ```text
//!   a line          stores a=1, b=1, a=2                   states 0 to 3, by how many of them are kept
//!   load of a       is it 0, 1 or 2?                       {0} {1,2} {3}: three runs
//!   then load of b  in the run of {1,2}: is it 0 or 1?     {1} {2}: two runs instead of that one
//! ```
//!
//! 1. Memory always shows the first state of each line that is still possible. So a word that has not been read may hold another value than in an image that
//!    the run stands for; a word that has been read holds the value of all of them.
//! 2. A line is decided in full before it is stored to. So what a life has to undo, and what its own crashes may lose, never changes under it.
//! 3. Choices are made depth first, and replayed: a run repeats the choices of the run before it, up to the last that has another value to try. That requires
//!    only that a run is a function of what it reads, which it must be anyway.
//! 4. Each image belongs to exactly one run, and the run is what it would be on that image: all its loads, including those of lives inside it, had these
//!    values. So nothing is missed, whatever a run does: crash the recovery, use what was recovered, crash again.
//!
//! Loads are observed through [`schedule`](crate::schedule), so only in builds with debug assertions, and only those of one thread.

use super::{rehash, word_hash};
use crate::medium::LINE;
use crate::schedule::{Scheduler, Step};
use crate::{Memory, WORD};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The content of a line.
pub(super) type Content = [u64; LINE / WORD];

/// A crash point of which only what has been read is decided.
pub(super) struct Lazy {
    memory: Arc<Memory>,
    undecided: Mutex<Undecided>,
}

struct Undecided {
    lines: Vec<Line>,
    /// Position of each line in `lines`, by number.
    places: HashMap<usize, usize>,
    choices: Vec<Choice>,
    /// How many of the choices this run has made.
    made: usize,
    /// By how much decisions have changed the hash of the memory.
    hash: u64,
}

struct Line {
    number: usize,
    states: Vec<Content>,
    /// The states that are still possible.
    open: Vec<u32>,
    /// The choices made for it.
    chosen: u64,
}

/// A choice of this run.
struct Choice {
    taken: usize,
    of: usize,
}

impl Lazy {
    /// For lines, by number, with their states; `memory` has each in its first.
    pub(super) fn new(memory: &Arc<Memory>, lines: impl Iterator<Item = (usize, Vec<Content>)>) -> Self {
        let lines: Vec<_> = lines.map(|(number, states)| Line { number, open: (0..states.len() as u32).collect(), states, chosen: 0 }).collect();
        let places = lines.iter().enumerate().map(|(place, line)| (line.number, place)).collect();
        Self { memory: Arc::clone(memory), undecided: Mutex::new(Undecided { lines, places, choices: Vec::new(), made: 0, hash: 0 }) }
    }

    /// What to add to the hash of a memory in which all lines are in their first states: the decisions since, and what is still open.
    fn hash(&self) -> u64 {
        let undecided = self.undecided.lock();
        let open = undecided.lines.iter().filter(|line| line.open.len() > 1);
        // As if there were a word for each line, far behind the memory.
        open.fold(undecided.hash, |hash, line| hash.wrapping_add(word_hash(usize::MAX / 2 + line.number, line.chosen << 1 | 1)))
    }

    /// The hash of a memory whose hash is `hash` without the decisions of `lazy`, and of what that has not decided.
    pub(super) fn hash_with(lazy: Option<&Arc<Self>>, hash: u64) -> u64 {
        lazy.map_or(hash, |lazy| hash.wrapping_add(lazy.hash()))
    }

    /// The states that the n-th line may be in.
    pub(super) fn open(&self, line: usize) -> Vec<u32> {
        self.undecided.lock().lines[line].open.clone()
    }

    /// A run is over. Memory is as before it. Returns whether there are other choices to make in another run.
    pub(super) fn again(&self) -> bool {
        let undecided = &mut *self.undecided.lock();
        for line in &mut undecided.lines {
            line.show(&self.memory, 0, &mut undecided.hash);
            (line.open, line.chosen) = ((0..line.states.len() as u32).collect(), 0);
        }
        debug_assert_eq!(undecided.hash, 0);
        // Fewer than were made before, if the run looked for nothing more.
        undecided.choices.truncate(undecided.made);
        undecided.made = 0;
        while let Some(last) = undecided.choices.last_mut() {
            last.taken += 1;
            if last.taken < last.of {
                return true;
            }
            undecided.choices.pop();
        }
        false
    }
}

impl Undecided {
    /// Decides the word at `at`, or all of its line.
    fn decide(&mut self, memory: &Memory, at: usize, whole: bool) {
        let Some(place) = self.places.get(&(at / LINE)).copied() else { return };
        let line = &self.lines[place];
        if line.open.len() == 1 {
            return;
        }
        let word = at % LINE / WORD;
        let same = |one: &Content, other: &Content| if whole { one == other } else { one[word] == other[word] };
        let mut values: Vec<u32> = Vec::new();
        for state in &line.open {
            if !values.iter().any(|value| same(&line.states[*value as usize], &line.states[*state as usize])) {
                values.push(*state);
            }
        }
        let taken = if values.len() == 1 { 0 } else { self.choose(values.len()) };
        let line = &mut self.lines[place];
        let value = line.states[values[taken] as usize];
        line.open.retain(|state| same(&line.states[*state as usize], &value));
        if values.len() > 1 {
            line.chosen = word_hash(at / WORD, line.chosen ^ (taken as u64 + 1) << 1 ^ u64::from(whole));
            let first = line.open[0] as usize;
            line.show(memory, first, &mut self.hash);
        }
    }

    fn choose(&mut self, of: usize) -> usize {
        if self.made == self.choices.len() {
            self.choices.push(Choice { taken: 0, of });
        }
        let choice = &self.choices[self.made];
        assert_eq!(choice.of, of, "a recovery that is no function of what it reads");
        self.made += 1;
        choice.taken
    }
}

impl Line {
    /// Puts the line into a state.
    fn show(&self, memory: &Memory, state: usize, hash: &mut u64) {
        for (word, value) in self.states[state].iter().enumerate() {
            let number = self.number * LINE / WORD + word;
            let old = memory.words()[number].swap(*value, Ordering::Relaxed);
            if old != *value {
                *hash = rehash(*hash, number, old, *value);
            }
        }
    }
}

impl Scheduler for Lazy {
    fn before(&self, step: Step, _at: &'static Location<'static>) {
        let (Step::Load(address) | Step::Store(address, _) | Step::Exchange(address, _)) = step else { return };
        let at = address.wrapping_sub(self.memory.words().as_ptr().addr());
        if at < self.memory.size() {
            self.undecided.lock().decide(&self.memory, at, !matches!(step, Step::Load(_)));
        }
    }
}
