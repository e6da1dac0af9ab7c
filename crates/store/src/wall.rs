//! The time of day, by which keys expire.
//!
//! Two clocks: that of the wall, which says what time it is and may be set, and one that runs on since the process began, and says how much time has passed.
//! The store's time is what has passed since the store was opened, counted from the latest beginning that the wall has claimed. So it does not stand still, and
//! does not go back by what a clock is corrected now and then: what has expired stays so, and what lives for a minute lives no longer than that. It follows the
//! wall when that is set forward, at once. When the wall is set back by up to [`TOLERANCE_MS`], it goes on as it was, ahead of the wall. By more, somebody has
//! corrected a mistake, or made one: the store follows, for keys expire by the wall of those who have set them, and of the next life of the store.
//!
//! Then what has expired since the wall said so, and was not removed yet, is there again; and a key that was set to expire while the wall was ahead lives
//! longer by as much. So it is, too, after a wall was set back, by however little, while the store was not open: the pool keeps no time.
//!
//! Somebody may hold the time for a while: then it is the same for all, and nothing expires. Whoever reads the time looks at the clocks first, and then whether
//! somebody holds it; whoever holds it says so first, and then looks at the clocks. So nobody has seen a later time than the one that is held: one who was not
//! told of it had looked at the clocks before.

use crate::Store;
use everleaf_index::Listed;
use parking_lot::Mutex;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// By how much the wall may be set back without the store's time following, in milliseconds.
const TOLERANCE_MS: u64 = 10_000;

/// What the clocks say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Milliseconds since 1970, by the wall.
    pub wall_ms: u64,
    /// Milliseconds since some moment of this process.
    pub passed_ms: u64,
}

impl Times {
    /// What the clocks of the system say.
    pub fn of_system() -> Self {
        static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);
        let wall = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        Self::read(wall, || STARTED.elapsed().as_millis() as u64)
    }

    /// Reads the wall first. Who is held up before he has read the other clock, too, claims a beginning that is too early, which is nothing but an old claim:
    /// the latest counts. After the other clock, it would be too late, and all keys would expire early by so much for as long as the store is open.
    fn read(wall: impl FnOnce() -> u64, passed: impl FnOnce() -> u64) -> Self {
        let wall_ms = wall();
        Self { wall_ms, passed_ms: passed() }
    }
}

/// The time of an open store.
pub(crate) struct Wall {
    look: fn() -> Times,
    /// The latest beginning of `passed_ms` that the wall has claimed, in milliseconds since 1970.
    beginning_ms: AtomicU64,
    is_held: AtomicBool,
    held: Mutex<Option<Hold>>,
    /// How many have held it.
    holds: AtomicU64,
}

/// The time that is held, and until when, in milliseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Hold {
    /// Which of all that there have been.
    number: u64,
    at_ms: u64,
    until_ms: u64,
}

/// The store's time stands still as long as this lives. See [`Store::hold_time`].
#[must_use = "the time goes on when this is dropped"]
pub struct HeldTime<'s> {
    wall: &'s Wall,
    hold: Hold,
}

impl Drop for HeldTime<'_> {
    fn drop(&mut self) {
        let Self { wall, hold } = self;
        let mut held = wall.held.lock();
        // Somebody else's, if this one has run out.
        if *held == Some(*hold) {
            wall.is_held.store(false, Ordering::SeqCst);
            *held = None;
        }
    }
}

impl<M: Listed> Store<M> {
    /// Has the store's time stand still until what is returned is dropped, for `at_most` that long: nothing expires meanwhile, for anybody, and then all that
    /// is due at once: what is set meanwhile to live for a while lives so much shorter. A serializable transaction that is begun and committed within it is not
    /// overtaken by the time. `None` if somebody else holds it, whose `at_most` is not over.
    pub fn hold_time(&self, at_most: Duration) -> Option<HeldTime<'_>> {
        self.shared.wall.hold(at_most.as_millis().try_into().unwrap_or(u64::MAX))
    }
}

impl Wall {
    pub(crate) fn new(look: fn() -> Times) -> Self {
        Self { look, beginning_ms: AtomicU64::new(0), is_held: AtomicBool::new(false), held: Mutex::new(None), holds: AtomicU64::new(0) }
    }

    /// See [`Store::hold_time`].
    fn hold(&self, at_most_ms: u64) -> Option<HeldTime<'_>> {
        let mut held = self.held.lock();
        if held.is_some_and(|hold| self.look_ms() < hold.until_ms) {
            return None;
        }
        self.is_held.store(true, Ordering::SeqCst);
        let at_ms = self.look_ms();
        let hold = Hold { number: self.holds.fetch_add(1, Ordering::Relaxed), at_ms, until_ms: at_ms.saturating_add(at_most_ms) };
        *held = Some(hold);
        Some(HeldTime { wall: self, hold })
    }

    /// Milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> u64 {
        let now_ms = self.look_ms();
        if self.is_held.load(Ordering::SeqCst) { self.while_held(now_ms) } else { now_ms }
    }

    #[cold]
    fn while_held(&self, now_ms: u64) -> u64 {
        match *self.held.lock() {
            Some(Hold { at_ms, until_ms, .. }) if now_ms < until_ms => now_ms.min(at_ms),
            _ => now_ms,
        }
    }

    /// What the clocks say.
    fn look_ms(&self) -> u64 {
        let Times { wall_ms, passed_ms } = (self.look)();
        let claimed = wall_ms.saturating_sub(passed_ms);
        let known = self.beginning_ms.load(Ordering::Relaxed);
        let beginning = match claimed > known {
            true => self.beginning_ms.fetch_max(claimed, Ordering::Relaxed).max(claimed),
            false if known - claimed <= TOLERANCE_MS => known,
            // Who is slower has looked at the clocks before, or will see for himself.
            false => self.beginning_ms.compare_exchange(known, claimed, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|other| other, |_| claimed),
        };
        beginning.saturating_add(passed_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static TIMES: Cell<Times> = const { Cell::new(Times { wall_ms: 0, passed_ms: 0 }) };
    }

    #[test]
    fn time_goes_on_and_follows_the_wall_back_only_if_it_must() {
        let wall = Wall::new(|| TIMES.get());
        let at = |wall_ms, passed_ms| {
            TIMES.set(Times { wall_ms, passed_ms });
            wall.now_ms()
        };
        assert_eq!(at(1_000_000, 5), 1_000_000);
        assert_eq!(at(1_000_010, 15), 1_000_010);
        assert_eq!(at(999_000, 25), 1_000_020, "set back a little: it goes on");
        assert_eq!(at(990_120, 125), 1_000_120);
        assert_eq!(at(2_000_000, 130), 2_000_000, "set forward: it follows");
        assert_eq!(at(1_000_200, 140), 1_000_200, "set back by much: it follows");
        assert_eq!(at(1_000_210, 150), 1_000_210);
        assert_eq!(at(u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn held_time_is_the_same_for_all_but_not_for_ever() {
        let wall = Wall::new(|| TIMES.get());
        let at = |ms| {
            TIMES.set(Times { wall_ms: 1_000_000 + ms, passed_ms: ms });
            wall.now_ms()
        };
        assert_eq!(at(5), 1_000_005);
        let held = wall.hold(100).unwrap();
        assert!(wall.hold(100).is_none());
        assert_eq!([at(6), at(104), at(105), at(200)], [1_000_005, 1_000_005, 1_000_105, 1_000_200]);
        let next = wall.hold(100).expect("the other has run out");
        drop(held);
        assert_eq!([at(250), at(300)], [1_000_200, 1_000_300], "and does not end this one");
        drop(next);
        TIMES.set(Times { wall_ms: 1_000_200, passed_ms: 200 });
        let _held = wall.hold(u64::MAX).unwrap();
        assert_eq!([at(201), at(1 << 40)], [1_000_200; 2]);
    }

    /// A thread that slept for five seconds between its looks at the two clocks used to leave the store five seconds ahead.
    #[test]
    fn who_sleeps_between_the_clocks_does_not_change_the_time() {
        for nap_ms in [0, 5_000, 50_000] {
            let wall = Wall::new(|| TIMES.get());
            let clock = Cell::new(1_000);
            let look = |nap_ms| {
                let wall_ms = || {
                    let now = clock.get();
                    clock.set(now + nap_ms);
                    now + 1_000_000
                };
                let passed_ms = || {
                    let now = clock.get();
                    clock.set(now + nap_ms);
                    now
                };
                TIMES.set(Times::read(wall_ms, passed_ms));
                wall.now_ms()
            };
            let before = look(0);
            let slept = look(nap_ms);
            assert!((before..=clock.get() + 1_000_000).contains(&slept), "{nap_ms}: {slept}");
            assert_eq!(look(0), clock.get() + 1_000_000, "{nap_ms}");
        }
    }
}
