//! Threads that sleep for long at chosen places, while others complete whole calls.
//!
//! Random switches seldom leave a thread at one place for long, and priorities do so at few of the hundreds of steps of a schedule. Some defects show only when
//! a thread has found something, and continues with it after others have changed it several times. This takes a certain place and a long time. There are few
//! places, whatever the number of steps, so sleeping places are drawn from those: each time that a thread reaches one it may fall asleep there. It wakes after
//! some steps of the others, when one of them reaches a certain place, or when all others are done or asleep. It then runs first.
//!
//! If a part of a protocol is left out, the places are known: the lines around it, and the steps after it, which the missing part should have protected.

use super::baton::Omission;
use super::story::Place;
use everleaf_pmem::schedule::Step;
use rand::Rng;
use rand::rngs::StdRng;
use std::fmt;

/// Where threads fall asleep, and what wakes them early.
#[derive(Clone, Debug)]
pub(super) struct Sleep {
    /// Places at which they fall asleep.
    beds: Option<Choice>,
    /// Whether they do so close to the part of a protocol that is left out.
    at_omission: bool,
    /// Places at which others wake them.
    alarms: Option<Choice>,
}

/// Some places, and some of the times that threads reach them.
#[derive(Clone, Debug)]
struct Choice {
    salt: u64,
    place_one_in: u64,
    time_one_in: u32,
}

impl Choice {
    fn draw(random: &mut StdRng) -> Self {
        Self { salt: random.random(), place_one_in: 4 << random.random_range(0..4u32), time_one_in: 1 << random.random_range(0..4u32) }
    }

    fn has(&self, at: Place, random: &mut StdRng) -> bool {
        // The same in each run of a program, independent of addresses.
        let place = u64::from(at.line()) << 32 | u64::from(at.column()) << 8 | at.file().len() as u64;
        let product = u128::from(place ^ self.salt) * u128::from(self.salt | 1);
        ((product >> 64) as u64 ^ product as u64).is_multiple_of(self.place_one_in) && random.random_ratio(1, self.time_one_in)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "one in {} places, one in {} times", self.place_one_in, self.time_one_in)
    }
}

impl Sleep {
    /// Draws where threads sleep: in a quarter of the schedules, or in three quarters if something is left out.
    pub(super) fn draw(random: &mut StdRng, omits: bool) -> Option<Self> {
        let (has_beds, at_omission) = match omits {
            true => (random.random(), random.random()),
            false => (random.random_ratio(1, 4), false),
        };
        (has_beds || at_omission).then(|| {
            let (beds, alarms) = (Choice::draw(random), Choice::draw(random));
            Self { beds: has_beds.then_some(beds), at_omission, alarms: random.random::<bool>().then_some(alarms) }
        })
    }
}

impl fmt::Display for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "threads sleep")?;
        self.beds.iter().try_for_each(|beds| write!(f, " at {beds}"))?;
        write!(f, "{}", if self.at_omission { " close to what is left out" } else { "" })?;
        self.alarms.iter().try_for_each(|alarms| write!(f, ", and wake when others come to {alarms}"))
    }
}

/// Ticks for one round of a waiting loop: the thread may be waiting for one that sleeps.
const WAIT_TICKS: u64 = 16;
/// The minimum of a long sleep in ticks, and how often it may be doubled.
const TICKS: u64 = 16;
const DOUBLINGS: u32 = 10;
/// How many lines away from the omission threads fall asleep, and at one in how many steps there.
const LINES: u32 = 8;
const STEP_ONE_IN: u32 = 4;

/// The sleeping threads of a run.
pub(super) struct Sleepers {
    sleep: Option<Sleep>,
    omission: Option<Omission>,
    /// Time: the steps of all threads.
    ticks: u64,
    /// For each thread, when it wakes, if it sleeps.
    until: Vec<Option<u64>>,
    /// For each thread that has left something out, in how many steps it falls asleep.
    drowsy: Vec<Option<u32>>,
}

impl Sleepers {
    /// This many threads, all awake.
    pub(super) fn new(threads: usize, sleep: Option<Sleep>, omission: Option<Omission>) -> Self {
        Self { sleep, omission, ticks: 0, until: vec![None; threads], drowsy: vec![None; threads] }
    }

    pub(super) fn is_asleep(&self, thread: usize) -> bool {
        self.until[thread].is_some()
    }

    /// Wakes `thread`, if it sleeps.
    pub(super) fn wake(&mut self, thread: usize) {
        self.until[thread] = None;
    }

    /// Before a step of `thread`: a thread that has slept long enough, and wakes.
    pub(super) fn next_awake(&mut self, thread: usize, step: Step, at: Place, random: &mut StdRng) -> Option<usize> {
        self.ticks += if step == Step::Wait { WAIT_TICKS } else { 1 };
        let mut asleep = (0..self.until.len()).filter(|other| *other != thread).filter_map(|other| Some((other, self.until[other]?)));
        let first = asleep.clone().next()?.0;
        let alarm = self.sleep.as_ref().and_then(|sleep| sleep.alarms.as_ref());
        let woken = asleep.find(|(_, until)| *until <= self.ticks).map(|(other, _)| other);
        let woken = woken.or_else(|| alarm.is_some_and(|alarm| alarm.has(at, random)).then_some(first))?;
        self.wake(woken);
        Some(woken)
    }

    /// Whether `thread` falls asleep instead of taking its step.
    pub(super) fn falls_asleep(&mut self, thread: usize, at: Place, random: &mut StdRng) -> bool {
        let Some(Sleep { beds, at_omission, .. }) = &self.sleep else { return false };
        let is_near = || self.omission.as_ref().is_some_and(|omission| omission.is_near(at, LINES));
        let falls = self.drowsy[thread] == Some(0)
            || *at_omission && self.drowsy[thread].is_none() && is_near() && random.random_ratio(1, STEP_ONE_IN)
            || beds.as_ref().is_some_and(|beds| beds.has(at, random));
        self.drowsy[thread] = self.drowsy[thread].and_then(|steps| steps.checked_sub(1));
        if falls {
            let longest = TICKS << random.random_range(0..DOUBLINGS);
            self.until[thread] = Some(self.ticks + random.random_range(1..=longest));
        }
        falls
    }

    /// `thread` has left out what it was told to.
    pub(super) fn has_left_out(&mut self, thread: usize, random: &mut StdRng) {
        if self.sleep.as_ref().is_some_and(|sleep| sleep.at_omission) && random.random() {
            let bound = 1 << random.random_range(0..8u32);
            self.drowsy[thread] = Some(random.random_range(0..bound));
        }
    }
}
