//! How far a run has come, for a display, and when it ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The whole work.
pub(super) const WHOLE: u64 = 1 << 48;

/// How far a run has come. Its threads share this.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    images: AtomicU64,
    checked: AtomicU64,
    deadline: Option<Instant>,
    checked_max: Option<u64>,
}

impl Progress {
    /// For a run that ends at `deadline`, or after this many checked images, even with work left.
    pub fn until(deadline: Option<Instant>, checked_max: Option<u64>) -> Self {
        Self { deadline, checked_max, ..Self::default() }
    }

    /// The share of the work that is done, from 0 to 1. For a run that ends earlier: the share of the time, or of the images, if that is larger.
    pub fn share(&self, begun: Instant) -> f64 {
        let work = self.done.load(Ordering::Relaxed) as f64 / WHOLE as f64;
        let time = self.deadline.map_or(0.0, |deadline| begun.elapsed().as_secs_f64() / (deadline - begun).as_secs_f64().max(1e-9));
        let images = self.checked_max.map_or(0.0, |max| self.checked() as f64 / max.max(1) as f64);
        work.max(time).max(images).min(1.0)
    }

    /// Number of images shown.
    pub fn images(&self) -> u64 {
        self.images.load(Ordering::Relaxed)
    }

    /// Number of images recovered and checked.
    pub fn checked(&self) -> u64 {
        self.checked.load(Ordering::Relaxed)
    }

    /// Whether the run should end now.
    pub fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline) || self.checked_max.is_some_and(|max| self.checked() >= max)
    }

    /// Adds a share of the work that is done.
    pub(super) fn advance(&self, share: u64) {
        self.done.fetch_add(share, Ordering::Relaxed);
    }

    /// Counts an image that was shown, and perhaps checked.
    pub(super) fn count(&self, is_checked: bool) {
        self.images.fetch_add(1, Ordering::Relaxed);
        self.checked.fetch_add(u64::from(is_checked), Ordering::Relaxed);
    }
}
