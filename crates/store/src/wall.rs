//! The time of day, by which keys expire.
//!
//! There are two clocks: the wall clock, which tells the time and may be set, and a monotonic clock, which counts from the start of the process. The time at
//! which the monotonic clock was 0, as the wall clock claims it, is a *beginning*. The store's time is the latest beginning claimed while the store was open,
//! plus the monotonic clock. So it does not stand still, and small corrections of the wall clock do not move it back: what has expired stays expired, and what
//! lives for a minute lives no longer. When the wall clock is set forward, the store's time follows at once. When it is set back by up to [`TOLERANCE_MS`], the
//! store's time runs on, ahead of it. A larger step back corrects a mistake, or is one: the store follows, since keys expire by the wall clock of those who set
//! them, and of the store's next life.
//!
//! Then a key that expired in the time taken back, and was not removed yet, is there again; and a key that was set to expire while the wall clock was ahead
//! lives that much longer. The same holds when the wall clock is set back, by however little, while the store is not open: the pool keeps no time.
//!
//! A thread may hold the time: then it is the same for all, and nothing expires. A reader of the time looks at the clocks first, and then at whether the time
//! is held; a holder announces itself first, and then looks at the clocks. So no reader has seen a later time than the one held: a reader that missed the
//! announcement had looked at the clocks before.
//!
//! A commit holds the time, too, from its check of what it depends on until its writes are visible to all ([`Wall::hold_for_commit`]). Several commits may do
//! so at once: then the time is that of the first of them for all, and moves on to that of the next one when the first has ended.
//!
//! A write of one key does not: it judges the key at the moment when it looks. If the key expires before the answer is visible, the answer counts all the same,
//! and may show again what others have found gone in between.

use crate::Store;
use everleaf_index::Listed;
use everleaf_pmem::schedule;
use parking_lot::Mutex;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// By how much the wall clock may be set back, in milliseconds, before the store's time follows.
const TOLERANCE_MS: u64 = 10_000;

/// What the clocks say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Milliseconds since 1970, by the wall clock.
    pub wall_ms: u64,
    /// Milliseconds since some moment of this process, by the monotonic clock.
    pub passed_ms: u64,
}

impl Times {
    /// What the clocks of the system say.
    pub fn of_system() -> Self {
        static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);
        let wall = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        Self::read(wall, || STARTED.elapsed().as_millis() as u64)
    }

    /// Reads the wall clock first. A thread delayed between the two reads then claims a beginning that is too early, which is merely an old claim: the latest
    /// counts. In the other order the claim would be too late, and all keys would expire that much too early for as long as the store is open.
    fn read(wall: impl FnOnce() -> u64, passed: impl FnOnce() -> u64) -> Self {
        let wall_ms = wall();
        Self { wall_ms, passed_ms: passed() }
    }
}

/// The time of an open store.
pub(crate) struct Wall {
    look: fn() -> Times,
    /// The latest beginning of `passed_ms` that the wall clock has claimed, in milliseconds since 1970.
    beginning_ms: AtomicU64,
    is_held: AtomicBool,
    held: Mutex<Vec<Hold>>,
    /// Number of holds so far.
    holds: AtomicU64,
}

/// The time that is held, and until when, in milliseconds since 1970.
#[derive(Clone, Copy)]
struct Hold {
    /// Serial number among all holds.
    number: u64,
    at_ms: u64,
    /// `None`: until the commit ends.
    until_ms: Option<u64>,
}

impl Hold {
    fn is_over(&self, now_ms: u64) -> bool {
        self.until_ms.is_some_and(|until_ms| now_ms >= until_ms)
    }

    /// Whether this is a hold other than a commit's, and not over yet.
    fn lasts(&self, now_ms: u64) -> bool {
        self.until_ms.is_some() && !self.is_over(now_ms)
    }
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
        held.retain(|other| other.number != hold.number);
        if held.is_empty() {
            wall.is_held.store(false, Ordering::SeqCst);
        }
    }
}

impl HeldTime<'_> {
    /// No reader sees a later time than this while the time is held.
    pub(crate) fn at_ms(&self) -> u64 {
        self.hold.at_ms
    }
}

impl<M: Listed> Store<M> {
    /// Stops the store's time until the returned value is dropped, for at most `at_most`. Nothing expires meanwhile for any thread; then all that is due
    /// expires at once, and a key that was given a lifetime meanwhile lives that much shorter. A serializable transaction begun and committed within the hold
    /// is not overtaken by the time. `None` if another hold exists whose `at_most` is not over.
    pub fn hold_time(&self, at_most: Duration) -> Option<HeldTime<'_>> {
        self.shared.wall.hold(at_most.as_millis().try_into().unwrap_or(u64::MAX))
    }
}

impl Wall {
    pub(crate) fn new(look: fn() -> Times) -> Self {
        Self { look, beginning_ms: AtomicU64::new(0), is_held: AtomicBool::new(false), held: Mutex::default(), holds: AtomicU64::new(0) }
    }

    /// See [`Store::hold_time`].
    fn hold(&self, at_most_ms: u64) -> Option<HeldTime<'_>> {
        let time = {
            let mut held = self.held.lock();
            let now_ms = self.look_ms();
            if held.iter().any(|hold| hold.lasts(now_ms)) {
                return None;
            }
            self.begin(&mut held, Some(at_most_ms))
        };
        // A reader that begins now must not see the time move once more when a commit that began before ends. A commit that begins now has an earlier time only
        // if the wall clock was set back, in which case the time moves for all.
        let is_due = |hold: &Hold| hold.until_ms.is_none() && hold.at_ms < time.at_ms() && hold.number < time.hold.number;
        while self.held.lock().iter().any(is_due) {
            schedule::rest();
        }
        Some(time)
    }

    /// Holds the time for a commit, which judges what it depends on by [`HeldTime::at_ms`]: what is there at that time is there for all until the hold ends,
    /// and what had expired for an earlier reader stays expired. Such holds are short, do not wait for each other, and the time moves on as each ends.
    pub(crate) fn hold_for_commit(&self) -> HeldTime<'_> {
        self.begin(&mut self.held.lock(), None)
    }

    fn begin(&self, held: &mut Vec<Hold>, at_most_ms: Option<u64>) -> HeldTime<'_> {
        self.is_held.store(true, Ordering::SeqCst);
        let now_ms = self.look_ms();
        // Not earlier, if only commits hold the time: overlapping commits would otherwise hand on the first one's time for ever.
        let at_ms = held.iter().filter(|hold| hold.lasts(now_ms)).map(|hold| hold.at_ms).fold(now_ms, u64::min);
        let until_ms = at_most_ms.map(|at_most_ms| now_ms.saturating_add(at_most_ms));
        let hold = Hold { number: self.holds.fetch_add(1, Ordering::Relaxed), at_ms, until_ms };
        held.push(hold);
        HeldTime { wall: self, hold }
    }

    /// Milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> u64 {
        let now_ms = self.look_ms();
        if self.is_held.load(Ordering::SeqCst) { self.while_held(now_ms) } else { now_ms }
    }

    #[cold]
    fn while_held(&self, now_ms: u64) -> u64 {
        self.held.lock().iter().filter(|hold| !hold.is_over(now_ms)).map(|hold| hold.at_ms).fold(now_ms, u64::min)
    }

    /// What the clocks say.
    fn look_ms(&self) -> u64 {
        let Times { wall_ms, passed_ms } = (self.look)();
        let claimed = wall_ms.saturating_sub(passed_ms);
        let known = self.beginning_ms.load(Ordering::Relaxed);
        let beginning = match claimed > known {
            true => self.beginning_ms.fetch_max(claimed, Ordering::Relaxed).max(claimed),
            false if known - claimed <= TOLERANCE_MS => known,
            // A slower thread has looked at the clocks earlier, or will notice the step itself.
            false => self.beginning_ms.compare_exchange(known, claimed, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|other| other, |_| claimed),
        };
        beginning.saturating_add(passed_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// What takes longer does not end.
    const PATIENCE: Duration = Duration::from_secs(60);

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

    #[test]
    fn commits_hold_the_time_side_by_side() {
        let wall = Wall::new(|| TIMES.get());
        let at = |ms| {
            TIMES.set(Times { wall_ms: 1_000_000 + ms, passed_ms: ms });
            wall.now_ms()
        };
        at(0);
        let first = wall.hold_for_commit();
        assert_eq!(at(5), 1_000_000);
        let second = wall.hold_for_commit();
        assert_eq!((first.at_ms(), second.at_ms(), at(9)), (1_000_000, 1_000_005, 1_000_000));
        drop(first);
        assert_eq!(at(9), 1_000_005);
        drop(second);
        assert_eq!(at(9), 1_000_009);
        let held = wall.hold(100).unwrap();
        at(50);
        let commit = wall.hold_for_commit();
        assert_eq!((commit.at_ms(), at(60)), (1_000_009, 1_000_009), "what is held for long is what a commit judges by");
        drop(held);
        assert_eq!(at(60), 1_000_009);
        drop(commit);
        assert_eq!(at(60), 1_000_060);
    }

    /// While the wall was set back, and commits followed each other, it waited for them all.
    #[test]
    fn who_holds_the_time_waits_for_no_commit_that_begins_later() {
        let wall = &Wall::new(|| TIMES.get());
        let set = |ms| TIMES.set(Times { wall_ms: 1_000_000 + ms, passed_ms: ms });
        std::thread::scope(|scope| {
            set(0);
            let first = wall.hold_for_commit();
            let (sender, holds) = std::sync::mpsc::channel();
            scope.spawn(move || {
                set(5);
                sender.send(wall.hold(100).map(|held| held.at_ms())).unwrap();
            });
            while wall.held.lock().len() < 2 {
                std::thread::yield_now();
            }
            TIMES.set(Times { wall_ms: 500_000, passed_ms: 10 });
            let later = wall.hold_for_commit();
            assert!(later.at_ms() < first.at_ms());
            assert!(holds.try_recv().is_err(), "one that had begun before is waited for");
            drop(first);
            assert_eq!(holds.recv_timeout(PATIENCE), Ok(Some(1_000_005)));
            drop(later);
        });
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
