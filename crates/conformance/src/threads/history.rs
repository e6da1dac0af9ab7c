//! The calls, their results, and what may be left of them after a crash.
//!
//! The state of a structure under test is a row of *registers*, one for each key, each a payload or 0 for "absent". Each payload is written once in a run, so
//! it identifies the write that a reader has seen. The condition of durable linearizability is then that the calls so far can be put in an order which
//! 1. respects time: a call that returned before another began comes first, and so does an earlier call of the same thread, even if its return was not known
//!    yet (stores may wait in a buffer);
//! 2. explains every result,
//! 3. ends in the registers that recovery finds. A call that had not returned at the crash may have a place in the order, or none.
//!
//! Registers that no call touches together are independent, so each such group is searched separately. A call that reads many registers without promising a
//! single moment (a scan) reads each of them at a moment of its own.

use everleaf_index::Direction;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::hash::{Hash, Hasher};

/// A call; its keys are numbers of registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads a register.
    Get(usize),
    /// Reads several registers, each at some moment.
    GetMany(Vec<usize>),
    /// Sets a register that is absent.
    Insert(usize, u64),
    /// Sets a register.
    Upsert(usize, u64),
    /// Sets a register that is present.
    Update(usize, u64),
    /// Makes a register absent.
    Remove(usize),
    /// The same, by a caller that watches the register.
    RemoveWatched(usize),
    /// Changes a register to a given value, 0 for absent, and returns the previous one.
    Merge(usize, u64),
    /// Sets a register, to 0 for absent, if it has the expected value.
    Swap(usize, u64, u64),
    /// Sets several registers, to 0 for absent, atomically.
    Batch(Vec<(usize, u64)>),
    /// Sets several registers, to 0 for absent, each at some moment.
    Many(Vec<(usize, u64)>),
    /// Reads registers (`None`), or sets them, to 0 for absent: each at its own moment, and those of the same register in this order.
    Acts(Vec<(usize, Option<u64>)>),
    /// Makes all registers absent, atomically.
    Clear,
    /// If all registers are absent, sets those of a half-open range, atomically.
    Load(usize, usize, u64),
    /// Reads all registers, each at some moment.
    Scan(Direction),
    /// Reads all registers, each at some moment, a few at a time.
    Walk(Direction),
    /// Reads all registers as of one moment.
    Look(Direction),
    /// Reads some registers and sets others, to 0 for absent, atomically; or sets none, because of a conflict.
    Transact(Vec<usize>, Vec<(usize, u64)>),
    /// Relocates whatever can be moved.
    Compact,
}

impl Operation {
    /// Whether it may make a present register absent.
    fn may_empty(&self) -> bool {
        match self {
            Self::Remove(_) | Self::RemoveWatched(_) | Self::Clear => true,
            Self::Merge(_, to) | Self::Swap(_, _, to) => *to == 0,
            Self::Batch(changes) | Self::Many(changes) | Self::Transact(_, changes) => changes.iter().any(|(_, to)| *to == 0),
            Self::Acts(acts) => acts.iter().any(|(_, to)| *to == Some(0)),
            _ => false,
        }
    }
}

/// What a call has returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Returned {
    /// Nothing informative.
    Done,
    /// The previous value of the register, 0 for absent.
    Was(u64),
    /// The values of several registers, 0 for absent. For acts: 0 for one that sets, and not 0 for one that removes a present register. Acts missing at the end
    /// were not done.
    Were(Vec<u64>),
    /// Whether anything has changed.
    Changed(bool),
    /// All registers that are present.
    Entries(Vec<(usize, u64)>),
    /// The values of the registers, 0 for absent, and whether anything was set.
    Transacted(Vec<u64>, bool),
    /// Nothing was done, because of other threads.
    Refused,
}

/// A call of a thread.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) thread: usize,
    pub(super) operation: Operation,
    pub(super) begun: u64,
    /// When it returned, and its result.
    pub(super) ended: Option<(u64, Returned)>,
}

/// All calls of a run.
#[derive(Default)]
pub(super) struct History {
    clock: u64,
    calls: Vec<Call>,
}

impl History {
    /// Begins a call of a thread, and returns its number.
    pub(super) fn begin(&mut self, thread: usize, operation: &Operation) -> usize {
        self.clock += 1;
        self.calls.push(Call { thread, operation: operation.clone(), begun: self.clock, ended: None });
        // Each of them begins separately.
        self.clock += match operation {
            Operation::Acts(acts) => acts.len() as u64,
            Operation::Many(changes) => changes.len() as u64,
            _ => 0,
        };
        self.calls.len() - 1
    }

    /// Notes the return of a call.
    pub(super) fn end(&mut self, call: usize, returned: Returned) {
        self.clock += 1;
        self.calls[call].ended = Some((self.clock, returned));
    }

    /// Grows with each call that begins or returns.
    pub(super) fn clock(&self) -> u64 {
        self.clock
    }

    /// What may be left if everything stopped now.
    pub(super) fn outcomes(&self, initial: &[u64]) -> Outcomes {
        let mut atoms = Vec::new();
        for call in &self.calls {
            // A register that was emptied may count as full for a while.
            let is_over = |other: &Call| call.ended.as_ref().is_some_and(|(end, _)| other.begun > *end);
            let emptied = self.calls.iter().any(|other| other.operation.may_empty() && !is_over(other));
            Atom::split(call, initial.len(), emptied, &mut atoms);
        }
        Outcomes::search(&atoms, initial)
    }
}

/// The part of a call that happens at one moment.
#[derive(Debug)]
struct Atom {
    thread: usize,
    /// The call that it belongs to, identified by its beginning.
    call: u64,
    begun: u64,
    ended: Option<u64>,
    effect: Effect,
}

#[derive(Debug)]
enum Effect {
    /// Needs a register that fits.
    Read(usize, Before),
    /// Needs a register that fits, and sets it.
    Write(usize, Before, u64),
    /// Needs all registers absent, and sets some of them.
    Load(usize, usize, u64),
    /// Needs one of all registers present.
    Full,
    /// Needs these registers to have these values, and sets others.
    Atomic(Vec<(usize, u64)>, Vec<(usize, u64)>),
    /// An operation whose effect does not depend on what it finds.
    Blind(Operation),
}

/// What a call has told about the register that it found.
#[derive(Clone, Copy, Debug)]
enum Before {
    Is(u64),
    IsNot(u64),
}

impl Before {
    fn fits(self, value: u64) -> bool {
        match self {
            Self::Is(expected) => value == expected,
            Self::IsNot(other) => value != other,
        }
    }
}

impl Atom {
    fn split(call: &Call, registers: usize, emptied: bool, atoms: &mut Vec<Self>) {
        let ended = call.ended.as_ref().map(|(at, _)| *at);
        if let Operation::Acts(acts) = &call.operation {
            for (number, &(register, to)) in acts.iter().enumerate() {
                let begun = call.begun + number as u64;
                let effect = match (&call.ended, to) {
                    (None, None) | (Some((_, Returned::Refused)), _) => continue,
                    (None, Some(to)) => Effect::Blind(Operation::Upsert(register, to)),
                    (Some((_, Returned::Were(were))), to) => match (were.get(number), to) {
                        (None, _) => break,
                        (Some(was), None) => Effect::Read(register, Before::Is(*was)),
                        (Some(0), Some(0)) => Effect::Read(register, Before::Is(0)),
                        (Some(_), Some(0)) => Effect::Write(register, Before::IsNot(0), 0),
                        (Some(_), Some(to)) => Effect::Blind(Operation::Upsert(register, to)),
                    },
                    (Some((_, returned)), _) => panic!("{} cannot return {returned}", call.operation),
                };
                atoms.push(Self { thread: call.thread, call: call.begun, begun, ended, effect });
            }
            return;
        }
        if let Operation::Many(changes) = &call.operation {
            let were = match &call.ended {
                Some((_, Returned::Refused)) => return,
                Some((_, Returned::Were(were))) => Some(were),
                Some((_, Returned::Done)) | None => None,
                Some((_, returned)) => panic!("{} cannot return {returned}", call.operation),
            };
            assert!(were.is_none_or(|were| were.len() == changes.len()), "an answer for each key");
            for (number, &(register, to)) in changes.iter().enumerate() {
                let blind = Effect::Blind(Operation::Upsert(register, to));
                let effect = were.map_or(blind, |were| Effect::Write(register, Before::Is(were[number]), to));
                atoms.push(Self { thread: call.thread, call: call.begun, begun: call.begun + number as u64, ended, effect });
            }
            return;
        }
        let mut add = |effect| atoms.push(Self { thread: call.thread, call: call.begun, begun: call.begun, ended, effect });
        let Some((_, returned)) = &call.ended else {
            // What an unfinished call would have read constrains nothing.
            match &call.operation {
                Operation::Get(_) | Operation::GetMany(_) | Operation::Scan(_) | Operation::Walk(_) | Operation::Look(_) | Operation::Compact => {}
                Operation::Merge(register, to) => add(Effect::Blind(Operation::Upsert(*register, *to))),
                Operation::Transact(_, changes) => add(Effect::Atomic(Vec::new(), changes.clone())),
                operation => add(Effect::Blind(operation.clone())),
            }
            return;
        };
        match (&call.operation, returned) {
            (_, Returned::Refused) | (Operation::Compact, Returned::Done) => {}
            (Operation::Get(register) | Operation::Insert(register, _), Returned::Was(was)) if *was != 0 => add(Effect::Read(*register, Before::Is(*was))),
            (Operation::Get(register) | Operation::Update(register, _), Returned::Was(0)) => add(Effect::Read(*register, Before::Is(0))),
            (Operation::GetMany(registers), Returned::Were(were)) => {
                assert_eq!(registers.len(), were.len(), "an answer for each key");
                registers.iter().zip(were).for_each(|(register, was)| add(Effect::Read(*register, Before::Is(*was))));
            }
            (
                Operation::Insert(register, to) | Operation::Upsert(register, to) | Operation::Update(register, to) | Operation::Merge(register, to),
                Returned::Was(was),
            ) => {
                add(Effect::Write(*register, Before::Is(*was), *to));
            }
            (Operation::Remove(register), Returned::Was(was)) => add(Effect::Write(*register, Before::Is(*was), 0)),
            (Operation::Remove(register) | Operation::RemoveWatched(register), Returned::Changed(true)) => add(Effect::Write(*register, Before::IsNot(0), 0)),
            (Operation::Remove(register) | Operation::RemoveWatched(register), Returned::Changed(false)) => add(Effect::Read(*register, Before::Is(0))),
            (Operation::Insert(register, to), Returned::Changed(true)) => add(Effect::Write(*register, Before::Is(0), *to)),
            (Operation::Insert(register, _), Returned::Changed(false)) => add(Effect::Read(*register, Before::IsNot(0))),
            (Operation::Swap(register, expected, to), Returned::Changed(true)) => add(Effect::Write(*register, Before::Is(*expected), *to)),
            (Operation::Swap(register, expected, _), Returned::Changed(false)) => add(Effect::Read(*register, Before::IsNot(*expected))),
            (Operation::Scan(_) | Operation::Walk(_), Returned::Entries(entries)) => {
                all_of(registers, entries).for_each(|(register, found)| add(Effect::Read(register, Before::Is(found))));
            }
            (Operation::Look(_), Returned::Entries(entries)) => add(Effect::Atomic(all_of(registers, entries).collect(), Vec::new())),
            (Operation::Transact(reads, changes), Returned::Transacted(found, committed)) => {
                let found = reads.iter().copied().zip(found.iter().copied()).collect();
                add(Effect::Atomic(found, if *committed { changes.clone() } else { Vec::new() }));
            }
            (Operation::Load(from, to, payload), Returned::Changed(true)) => add(Effect::Load(*from, *to, *payload)),
            (Operation::Load(..), Returned::Changed(false)) if emptied => {}
            (Operation::Load(..), Returned::Changed(false)) => add(Effect::Full),
            // The result says nothing about what it found, and the effect does not depend on that.
            (Operation::Upsert(..) | Operation::Batch(_) | Operation::Clear, Returned::Done) => add(Effect::Blind(call.operation.clone())),
            (operation, returned) => panic!("{operation} cannot return {returned}"),
        }
    }

    /// The registers that it touches atomically.
    fn registers(&self, all: usize) -> Vec<usize> {
        match &self.effect {
            Effect::Read(register, _) | Effect::Write(register, ..) => vec![*register],
            Effect::Blind(Operation::Batch(changes) | Operation::Many(changes)) => changes.iter().map(|(register, _)| *register).collect(),
            Effect::Atomic(reads, changes) => reads.iter().chain(changes).map(|(register, _)| *register).collect(),
            Effect::Load(..)
            | Effect::Full
            | Effect::Blind(
                Operation::Clear
                | Operation::Load(..)
                | Operation::GetMany(_)
                | Operation::Acts(_)
                | Operation::Scan(_)
                | Operation::Walk(_)
                | Operation::Look(_)
                | Operation::Transact(..)
                | Operation::Compact,
            ) => (0..all).collect(),
            Effect::Blind(
                Operation::Get(register)
                | Operation::Merge(register, _)
                | Operation::Insert(register, _)
                | Operation::Upsert(register, _)
                | Operation::Update(register, _)
                | Operation::Remove(register)
                | Operation::RemoveWatched(register)
                | Operation::Swap(register, ..),
            ) => vec![*register],
        }
    }

    /// Applies it to `state`, if it is possible at this moment.
    fn apply(&self, state: &mut [u64]) -> bool {
        match &self.effect {
            Effect::Read(register, before) => before.fits(state[*register]),
            Effect::Write(register, before, to) => {
                let fits = before.fits(state[*register]);
                if fits {
                    state[*register] = *to;
                }
                fits
            }
            Effect::Atomic(reads, changes) => {
                let fits = reads.iter().all(|(register, was)| state[*register] == *was);
                if fits {
                    changes.iter().for_each(|(register, to)| state[*register] = *to);
                }
                fits
            }
            Effect::Load(from, to, payload) => {
                let fits = state.iter().all(|held| *held == 0);
                if fits {
                    state[*from..*to].fill(*payload);
                }
                fits
            }
            Effect::Full => state.iter().any(|held| *held != 0),
            Effect::Blind(Operation::Load(from, to, payload)) => {
                if state.iter().all(|held| *held == 0) {
                    state[*from..*to].fill(*payload);
                }
                true
            }
            Effect::Blind(Operation::Batch(changes) | Operation::Many(changes)) => {
                changes.iter().for_each(|(register, to)| state[*register] = *to);
                true
            }
            Effect::Blind(Operation::Clear) => {
                state.fill(0);
                true
            }
            Effect::Blind(Operation::Insert(register, to)) => {
                if state[*register] == 0 {
                    state[*register] = *to;
                }
                true
            }
            Effect::Blind(Operation::Update(register, to)) => {
                if state[*register] != 0 {
                    state[*register] = *to;
                }
                true
            }
            Effect::Blind(Operation::Upsert(register, to) | Operation::Merge(register, to)) => {
                state[*register] = *to;
                true
            }
            Effect::Blind(Operation::Remove(register) | Operation::RemoveWatched(register)) => {
                state[*register] = 0;
                true
            }
            Effect::Blind(Operation::Swap(register, expected, to)) => {
                if state[*register] == *expected {
                    state[*register] = *to;
                }
                true
            }
            Effect::Blind(
                Operation::Get(_)
                | Operation::GetMany(_)
                | Operation::Acts(_)
                | Operation::Scan(_)
                | Operation::Walk(_)
                | Operation::Look(_)
                | Operation::Transact(..)
                | Operation::Compact,
            ) => true,
        }
    }

    fn is_read(&self) -> bool {
        match &self.effect {
            Effect::Read(..) | Effect::Full => true,
            Effect::Atomic(_, changes) => changes.is_empty(),
            _ => false,
        }
    }
}

/// The values of all registers, given those that are present.
fn all_of(registers: usize, entries: &[(usize, u64)]) -> impl Iterator<Item = (usize, u64)> {
    (0..registers).map(|register| (register, entries.iter().find(|(other, _)| *other == register).map_or(0, |(_, payload)| *payload)))
}

/// Everything that registers may hold after a crash.
pub(super) struct Outcomes {
    groups: Vec<Group>,
    /// The values of registers that no call touches.
    initial: Vec<u64>,
    is_touched: Vec<bool>,
    hash: u64,
}

/// Registers that some call touches atomically, and their possible joint values. If there are none, no order of the calls explains their results.
struct Group {
    registers: Vec<usize>,
    outcomes: Vec<Vec<u64>>,
}

impl Outcomes {
    fn search(atoms: &[Atom], initial: &[u64]) -> Self {
        // Unites registers that are touched atomically.
        let mut group: Vec<usize> = (0..initial.len()).collect();
        let mut is_touched = vec![false; initial.len()];
        let mut firsts = Vec::with_capacity(atoms.len());
        for atom in atoms {
            let touched = atom.registers(initial.len());
            let [first, rest @ ..] = &touched[..] else { continue };
            touched.iter().for_each(|register| is_touched[*register] = true);
            for other in rest {
                let (from, to) = (group[*other], group[*first]);
                if from != to {
                    group.iter_mut().filter(|number| **number == from).for_each(|number| *number = to);
                }
            }
            firsts.push((*first, atom));
        }
        let mut found: BTreeMap<usize, (Vec<usize>, Vec<&Atom>)> = BTreeMap::new();
        for register in (0..initial.len()).filter(|register| is_touched[*register]) {
            found.entry(group[register]).or_default().0.push(register);
        }
        for (first, atom) in firsts {
            found.entry(group[first]).or_default().1.push(atom);
        }
        let mut groups = Vec::with_capacity(found.len());
        let mut hasher = DefaultHasher::new();
        for (registers, own) in found.into_values() {
            assert!(own.len() <= 128, "a history too long to be searched");
            // Of the acts or writes of one call, only those of the same register are in order, even if the call has not returned.
            let is_ordered = |other: &Atom, atom: &Atom| match other.call == atom.call {
                true => other.registers(initial.len()) == atom.registers(initial.len()),
                false => other.ended.is_some(),
            };
            let is_earlier = |other: &Atom, atom: &Atom| other.thread == atom.thread && other.begun < atom.begun && is_ordered(other, atom);
            let bits = |atom: &Atom| (0..own.len()).filter(|other| is_earlier(own[*other], atom)).fold(0, |bits, other| bits | 1u128 << other);
            let earlier = own.iter().map(|atom| bits(atom)).collect();
            let mut search = Search { atoms: own, earlier, registers: &registers, seen: HashSet::new(), outcomes: HashSet::new() };
            search.go(0, initial.to_vec());
            let mut outcomes: Vec<Vec<u64>> = search.outcomes.into_iter().collect();
            outcomes.sort_unstable();
            (&registers, &outcomes).hash(&mut hasher);
            groups.push(Group { registers, outcomes });
        }
        Self { groups, initial: initial.to_vec(), is_touched, hash: hasher.finish() }
    }

    /// Distinguishes different outcomes.
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// Registers whose calls no order explains.
    pub(super) fn unexplained(&self) -> Option<&[usize]> {
        self.groups.iter().find(|group| group.outcomes.is_empty()).map(|group| &group.registers[..])
    }

    /// The first group of registers with values that are not allowed, with the found and the allowed values.
    pub(super) fn refuse(&self, found: &[u64]) -> Option<Refused> {
        let untouched = (0..self.initial.len()).find(|register| !self.is_touched[*register] && found[*register] != self.initial[*register]);
        if let Some(register) = untouched {
            return Some(Refused { registers: vec![register], found: vec![found[register]], allowed: vec![vec![self.initial[register]]] });
        }
        self.groups.iter().find_map(|group| {
            let held: Vec<u64> = group.registers.iter().map(|register| found[*register]).collect();
            (!group.outcomes.contains(&held)).then(|| Refused { registers: group.registers.clone(), found: held, allowed: group.outcomes.clone() })
        })
    }
}

/// A recovered content that no order of the calls explains.
pub(super) struct Refused {
    pub(super) registers: Vec<usize>,
    found: Vec<u64>,
    allowed: Vec<Vec<u64>>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |values: &[u64]| values.iter().map(|value| payload(*value)).collect::<Vec<_>>().join(", ");
        let allowed: Vec<String> = self.allowed.iter().map(|values| show(values)).collect();
        write!(f, "keys {:?} hold {} and may hold {}", self.registers, show(&self.found), allowed.join(" or "))
    }
}

/// A search for all orders of some calls.
struct Search<'a> {
    atoms: Vec<&'a Atom>,
    /// For each call, a bit for each call that its thread made before it and that has returned.
    earlier: Vec<u128>,
    registers: &'a [usize],
    seen: HashSet<(u128, Vec<u64>)>,
    outcomes: HashSet<Vec<u64>>,
}

impl Search<'_> {
    fn go(&mut self, done: u128, mut state: Vec<u64>) {
        let held: Vec<u64> = self.registers.iter().map(|register| state[*register]).collect();
        if !self.seen.insert((done, held.clone())) {
            return;
        }
        let open = |number: &usize| done >> number & 1 == 0;
        let first_end = (0..self.atoms.len()).filter(open).filter_map(|number| self.atoms[number].ended).min();
        if first_end.is_none() {
            self.outcomes.insert(held);
        }
        let is_next = |number: &usize| self.earlier[*number] & !done == 0 && first_end.is_none_or(|end| self.atoms[*number].begun < end);
        let next: Vec<usize> = (0..self.atoms.len()).filter(open).filter(is_next).collect();
        // A read that can come now may as well: it does not affect the others.
        if let Some(read) = next.iter().find(|number| self.atoms[**number].is_read() && self.atoms[**number].apply(&mut state)) {
            return self.go(done | 1 << read, state);
        }
        for number in next {
            let mut after = state.clone();
            if !self.atoms[number].is_read() && self.atoms[number].apply(&mut after) {
                self.go(done | 1 << number, after);
            }
        }
    }
}

/// A payload for display: the thread that wrote it, and in which of its calls.
pub(super) fn payload(value: u64) -> String {
    match (value >> 32, value & 0xffff_ffff) {
        (0, 0) => "nothing".to_owned(),
        (0, initial) => format!("{initial}"),
        (thread, number) => format!("{}{number}", char::from(b'a' + (thread as u8 - 1) % 26)),
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Get(register) => write!(f, "get {register}"),
            Self::GetMany(registers) => write!(f, "get many {registers:?}"),
            Self::Insert(register, to) => write!(f, "insert {register}={}", payload(*to)),
            Self::Upsert(register, to) => write!(f, "upsert {register}={}", payload(*to)),
            Self::Update(register, to) => write!(f, "update {register}={}", payload(*to)),
            Self::Remove(register) => write!(f, "remove {register}"),
            Self::RemoveWatched(register) => write!(f, "watch {register} and remove it"),
            Self::Merge(register, to) => write!(f, "merge {register}={}", payload(*to)),
            Self::Swap(register, expected, to) => write!(f, "swap {register} from {} to {}", payload(*expected), payload(*to)),
            Self::Batch(changes) | Self::Many(changes) => {
                let kind = if matches!(self, Self::Batch(_)) { "batch" } else { "many" };
                let changes: Vec<String> = changes.iter().map(|(register, to)| format!("{register}={}", payload(*to))).collect();
                write!(f, "{kind} {}", changes.join(" "))
            }
            Self::Acts(acts) => {
                let show = |to: &Option<u64>| to.map_or_else(String::new, |to| format!("={}", payload(to)));
                let acts: Vec<String> = acts.iter().map(|(register, to)| format!("{register}{}", show(to))).collect();
                write!(f, "acts {}", acts.join(" "))
            }
            Self::Clear => write!(f, "clear"),
            Self::Load(from, to, loaded) => write!(f, "load {from}..{to}={}", payload(*loaded)),
            Self::Scan(Direction::Forward) => write!(f, "scan"),
            Self::Scan(Direction::Reverse) => write!(f, "scan in reverse"),
            Self::Walk(Direction::Forward) => write!(f, "walk"),
            Self::Walk(Direction::Reverse) => write!(f, "walk in reverse"),
            Self::Compact => write!(f, "compact"),
            Self::Look(Direction::Forward) => write!(f, "look"),
            Self::Look(Direction::Reverse) => write!(f, "look in reverse"),
            Self::Transact(reads, changes) => {
                let changes: Vec<String> = changes.iter().map(|(register, to)| format!("{register}={}", payload(*to))).collect();
                write!(f, "transact reading {reads:?} {}", changes.join(" "))
            }
        }
    }
}

impl fmt::Display for Returned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => write!(f, "done"),
            Self::Refused => write!(f, "refused"),
            Self::Was(value) => write!(f, "{}", payload(*value)),
            Self::Were(values) => write!(f, "{}", values.iter().map(|value| payload(*value)).collect::<Vec<_>>().join(" ")),
            Self::Changed(changed) => write!(f, "{changed}"),
            Self::Entries(entries) => {
                let entries: Vec<String> = entries.iter().map(|(register, value)| format!("{register}={}", payload(*value))).collect();
                write!(f, "{}", entries.join(" "))
            }
            Self::Transacted(found, committed) => {
                let found: Vec<String> = found.iter().map(|value| payload(*value)).collect();
                write!(f, "{}, {}", found.join(" "), if *committed { "committed" } else { "in conflict" })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u64 = 1 << 32 | 1;
    const B: u64 = 2 << 32 | 1;

    fn allowed(outcomes: &Outcomes, states: &[[u64; 2]]) -> Vec<bool> {
        states.iter().map(|state| outcomes.refuse(state).is_none()).collect()
    }

    #[test]
    fn a_call_under_way_may_be_lost_unless_its_write_was_read() {
        let mut history = History::default();
        history.begin(1, &Operation::Upsert(0, A));
        assert_eq!(allowed(&history.outcomes(&[5, 6]), &[[5, 6], [A, 6], [0, 6], [A, 7]]), [true, true, false, false]);
        let read = history.begin(2, &Operation::Get(0));
        history.end(read, Returned::Was(A));
        assert_eq!(allowed(&history.outcomes(&[5, 6]), &[[5, 6], [A, 6]]), [false, true]);
    }

    #[test]
    fn what_was_returned_tells_the_order() {
        let mut history = History::default();
        let first = history.begin(3, &Operation::Upsert(0, A));
        let second = history.begin(4, &Operation::Upsert(0, B));
        history.end(first, Returned::Was(5));
        assert_eq!(allowed(&history.outcomes(&[5, 6]), &[[5, 6], [A, 6], [B, 6]]), [false, true, true]);
        history.end(second, Returned::Was(A));
        assert_eq!(allowed(&history.outcomes(&[5, 6]), &[[A, 6], [B, 6]]), [false, true]);
        // Both say that they have replaced the same value: one update is lost.
        let mut history = History::default();
        let (first, second) = (history.begin(5, &Operation::Upsert(0, A)), history.begin(6, &Operation::Upsert(0, B)));
        history.end(first, Returned::Was(5));
        history.end(second, Returned::Was(5));
        assert_eq!(history.outcomes(&[5, 6]).unexplained(), Some(&[0][..]));
    }

    #[test]
    fn a_batch_is_there_as_a_whole_and_a_scan_reads_each_key_for_itself() {
        let mut history = History::default();
        history.begin(7, &Operation::Batch(vec![(0, A), (1, 0)]));
        assert_eq!(allowed(&history.outcomes(&[5, 6]), &[[5, 6], [A, 0], [A, 6], [5, 0]]), [true, true, false, false]);
        let scan = history.begin(8, &Operation::Scan(Direction::Forward));
        history.end(scan, Returned::Entries(vec![(0, 5)]));
        assert_eq!(allowed(&history.outcomes(&[5, 6]), &[[5, 6], [A, 0]]), [false, true]);
        let scan = history.begin(9, &Operation::Scan(Direction::Forward));
        history.end(scan, Returned::Entries(vec![(0, 5)]));
        assert!(history.outcomes(&[5, 6]).unexplained().is_some(), "key 0 is 5 after the batch took key 1 away");
    }

    #[test]
    fn of_many_puts_each_is_there_or_not() {
        let mut history = History::default();
        let many = history.begin(1, &Operation::Many(vec![(0, A), (1, B)]));
        let states = [[5, 6], [A, 6], [5, B], [A, B], [B, A]];
        assert_eq!(allowed(&history.outcomes(&[5, 6]), &states), [true, true, true, true, false]);
        let look = history.begin(2, &Operation::Look(Direction::Forward));
        history.end(look, Returned::Entries(vec![(0, A), (1, 6)]));
        assert_eq!(allowed(&history.outcomes(&[5, 6]), &states), [false, true, false, true, false]);
        history.end(many, Returned::Done);
        assert_eq!(allowed(&history.outcomes(&[5, 6]), &states), [false, false, false, true, false]);
        // Those of a key are in order, even while the call is under way.
        for operation in [Operation::Many(vec![(0, A), (0, B)]), Operation::Acts(vec![(0, Some(A)), (0, Some(B))])] {
            let mut history = History::default();
            history.begin(1, &operation);
            let read = history.begin(2, &Operation::Get(0));
            assert_eq!(allowed(&history.outcomes(&[5, 6]), &[[5, 6], [A, 6], [B, 6]]), [true, true, true]);
            history.end(read, Returned::Was(B));
            assert_eq!(allowed(&history.outcomes(&[5, 6]), &[[5, 6], [A, 6], [B, 6]]), [false, false, true], "{operation}");
        }
        let is_explained = |were: &[u64]| {
            let mut history = History::default();
            let many = history.begin(1, &Operation::Many(vec![(0, A), (0, 0)]));
            history.end(many, Returned::Were(were.to_vec()));
            history.outcomes(&[5, 6]).unexplained().is_none()
        };
        assert!(is_explained(&[5, A]) && !is_explained(&[0, 5]), "those of a key are in order");
    }

    #[test]
    fn acts_tell_what_each_has_found_and_those_of_a_key_are_in_order() {
        let outcome = |acts: &[(usize, Option<u64>)], were: &[u64]| {
            let mut history = History::default();
            let call = history.begin(1, &Operation::Acts(acts.to_vec()));
            history.end(call, Returned::Were(were.to_vec()));
            let outcomes = history.outcomes(&[5, 6]);
            outcomes.unexplained().is_none().then(|| allowed(&outcomes, &[[5, 6], [A, 6], [0, 6], [0, B], [A, B]]))
        };
        assert_eq!(outcome(&[(0, Some(A)), (0, None), (1, None)], &[0, A, 6]), Some(vec![false, true, false, false, false]));
        assert_eq!(outcome(&[(0, Some(A)), (0, None)], &[0, 5]), None, "what was there before it was set");
        assert_eq!(outcome(&[(0, None), (0, Some(A))], &[A, 0]), None, "what is set later");
        assert_eq!(outcome(&[(0, Some(0)), (1, Some(B)), (0, Some(0))], &[1, 0, 0]), Some(vec![false, false, false, true, false]));
        assert_eq!(outcome(&[(0, Some(0)), (0, Some(0))], &[1, 1]), None, "removed twice");
        assert_eq!(outcome(&[(0, Some(0))], &[0]), None, "it was there");
        assert_eq!(outcome(&[(0, Some(A)), (1, Some(B))], &[0]), Some(vec![false, true, false, false, false]), "the other one was not done");
        let mut history = History::default();
        history.begin(1, &Operation::Acts(vec![(0, Some(A)), (1, None), (1, Some(B))]));
        assert_eq!(allowed(&history.outcomes(&[5, 6]), &[[5, 6], [A, 6], [0, 6], [5, B], [A, B]]), [true, true, false, true, true]);
    }

    #[test]
    fn a_look_and_a_transaction_read_as_of_one_moment() {
        let mut history = History::default();
        history.begin(1, &Operation::Batch(vec![(0, A), (1, A)]));
        let look = history.begin(2, &Operation::Look(Direction::Forward));
        history.end(look, Returned::Entries(vec![(0, A), (1, 6)]));
        assert!(history.outcomes(&[5, 6]).unexplained().is_some(), "half a batch");
        let mut history = History::default();
        history.begin(1, &Operation::Batch(vec![(0, A), (1, A)]));
        let look = history.begin(2, &Operation::Look(Direction::Forward));
        history.end(look, Returned::Entries(vec![(0, A), (1, A)]));
        assert_eq!(allowed(&history.outcomes(&[5, 6]), &[[5, 6], [A, A]]), [false, true]);
        // Write skew: each has read what the other writes.
        let transact = |read: usize, write: usize, payload| Operation::Transact(vec![read], vec![(write, payload)]);
        let mut history = History::default();
        let (first, second) = (history.begin(1, &transact(0, 1, A)), history.begin(2, &transact(1, 0, B)));
        history.end(first, Returned::Transacted(vec![5], true));
        history.end(second, Returned::Transacted(vec![6], true));
        assert!(history.outcomes(&[5, 6]).unexplained().is_some());
        let mut history = History::default();
        let (first, second) = (history.begin(1, &transact(0, 1, A)), history.begin(2, &transact(1, 0, B)));
        history.end(first, Returned::Transacted(vec![5], true));
        history.end(second, Returned::Transacted(vec![6], false));
        assert_eq!(allowed(&history.outcomes(&[5, 6]), &[[5, A], [5, 6], [B, A]]), [true, false, false]);
    }

    #[test]
    fn what_is_loaded_was_empty() {
        let mut history = History::default();
        history.begin(1, &Operation::Load(0, 2, A));
        assert_eq!(allowed(&history.outcomes(&[0, 0]), &[[0, 0], [A, A], [A, 0]]), [true, true, false]);
        assert_eq!(allowed(&history.outcomes(&[5, 0]), &[[5, 0], [A, A], [5, A]]), [true, false, false]);
        history.end(0, Returned::Changed(true));
        assert_eq!(allowed(&history.outcomes(&[0, 0]), &[[0, 0], [A, A]]), [false, true]);
        assert!(history.outcomes(&[5, 0]).unexplained().is_some());
        for other in [Operation::Get(0), Operation::Upsert(1, B), Operation::Clear] {
            let mut history = History::default();
            history.begin(1, &other);
            let load = history.begin(2, &Operation::Load(0, 2, A));
            history.end(load, Returned::Changed(false));
            assert!(history.outcomes(&[5, 0]).unexplained().is_none());
            assert_eq!(history.outcomes(&[0, 0]).unexplained().is_some(), other == Operation::Get(0), "{other}");
        }
    }

    /// To other threads, a call whose stores wait in a buffer has not returned yet, but it comes before the next call of its thread.
    #[test]
    fn the_calls_of_a_thread_are_in_order() {
        let mut history = History::default();
        let (first, second) = (history.begin(1, &Operation::Upsert(0, A)), history.begin(1, &Operation::Upsert(0, B)));
        history.end(first, Returned::Done);
        history.end(second, Returned::Done);
        assert_eq!(allowed(&history.outcomes(&[0, 0]), &[[A, 0], [B, 0]]), [false, true]);
        let mut history = History::default();
        let (first, second) = (history.begin(1, &Operation::Upsert(0, A)), history.begin(2, &Operation::Upsert(0, B)));
        history.end(first, Returned::Done);
        history.end(second, Returned::Done);
        assert_eq!(allowed(&history.outcomes(&[0, 0]), &[[A, 0], [B, 0]]), [true, true]);
    }

    #[test]
    fn a_swap_that_failed_saw_something_else() {
        let mut history = History::default();
        let swap = history.begin(10, &Operation::Swap(0, 5, A));
        history.end(swap, Returned::Changed(false));
        assert!(history.outcomes(&[5, 6]).unexplained().is_some());
        assert!(history.outcomes(&[0, 6]).unexplained().is_none());
    }
}
