//! The time of day, by which keys expire.
//!
//! Two clocks: that of the wall, which says what time it is and may be set, and one that runs on since the process began, and says how much time has passed.
//! The store's time is what has passed since the store was opened, counted from the latest beginning that the wall has ever claimed. So it never stands still
//! and never goes back: what has expired stays so, and what lives for a minute lives no longer than that. It follows the wall when that is set forward, at
//! once. When the wall is set back, it goes on as it was, ahead of the wall, until the store is opened again.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

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
        let passed_ms = STARTED.elapsed().as_millis() as u64;
        let wall_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        Self { wall_ms, passed_ms }
    }
}

/// The time of an open store.
pub(crate) struct Wall {
    look: fn() -> Times,
    /// The latest beginning of `passed_ms` that the wall has claimed, in milliseconds since 1970.
    beginning_ms: AtomicU64,
}

impl Wall {
    pub(crate) fn new(look: fn() -> Times) -> Self {
        Self { look, beginning_ms: AtomicU64::new(0) }
    }

    /// Milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> u64 {
        let Times { wall_ms, passed_ms } = (self.look)();
        let claimed = wall_ms.saturating_sub(passed_ms);
        let known = self.beginning_ms.load(Ordering::Relaxed);
        let beginning = if claimed > known { self.beginning_ms.fetch_max(claimed, Ordering::Relaxed).max(claimed) } else { known };
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
    fn time_goes_on_and_follows_the_wall_forward_only() {
        let wall = Wall::new(|| TIMES.get());
        let at = |wall_ms, passed_ms| {
            TIMES.set(Times { wall_ms, passed_ms });
            wall.now_ms()
        };
        assert_eq!(at(1_000_000, 5), 1_000_000);
        assert_eq!(at(1_000_010, 15), 1_000_010);
        assert_eq!(at(900_000, 25), 1_000_020, "set back: it goes on");
        assert_eq!(at(900_100, 125), 1_000_120);
        assert_eq!(at(2_000_000, 130), 2_000_000, "set forward: it follows");
        assert_eq!(at(1_000_200, 140), 2_000_010);
        assert_eq!(at(0, 150), 2_000_020);
        assert_eq!(at(u64::MAX, u64::MAX), u64::MAX);
    }
}
