//! What a crash run did, and the story of what it found.

use crate::Broken;
use everleaf_index::{Entry, Key};
use everleaf_pmem::Medium;
use std::fmt;
use std::time::Duration;

/// The counts of a run, and the first violation.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Sequences of operations run.
    pub sequences: u64,
    /// Images shown, crashes in recovery and second lives included.
    pub images: u64,
    /// Images recovered and checked: those that were not the same as an earlier one, with the same promises.
    pub checked: u64,
    /// Of these, images of a crash inside a recovery.
    pub nested: u64,
    /// Times that an index was recovered, used on, and crashed again.
    pub second_lives: u64,
    /// How long it took.
    pub took: Duration,
    /// The first violation found.
    pub violation: Option<Violation>,
}

/// A broken rule and how to get there.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The rule.
    pub broken: Broken,
    /// Name of the index, class of its keys, and shape started from.
    pub subject: String,
    /// The operations; the crash came in the last.
    pub operations: Vec<String>,
    /// The image recovered; before it, if the crash was in a recovery or in a second life, what that one recovered from.
    pub images: Vec<String>,
    /// How to see it again.
    pub replay: String,
}

impl Report {
    /// Adds what another worker did.
    pub(super) fn add(&mut self, other: Self) {
        self.sequences += other.sequences;
        self.images += other.images;
        self.checked += other.checked;
        self.nested += other.nested;
        self.second_lives += other.second_lives;
        if self.violation.is_none() {
            self.violation = other.violation;
        }
    }

    /// Panics with the story if a rule was broken.
    ///
    /// # Panics
    /// If a rule was broken.
    pub fn assert_clean(&self) {
        if let Some(violation) = &self.violation {
            panic!("{violation}");
        }
    }
}

impl Violation {
    pub(super) fn before_any_crash<K: Key + ?Sized, M: Medium>(entry: &Entry<K, M>, broken: Broken) -> Self {
        Self { broken, subject: entry.name.to_owned(), operations: Vec::new(), images: Vec::new(), replay: "any run does".to_owned() }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sequences, images, checked, nested, second_lives, took, violation } = self;
        let rate = |count: u64| count as f64 / took.as_secs_f64() * 60.0 / 1e6;
        write!(f, "{sequences} sequences, {images} images, {checked} checked ({nested} in recoveries), {second_lives} second lives, ")?;
        write!(
            f,
            "{} violations, {:.1} s; a minute {:.2} M images, {:.2} M checked",
            u32::from(violation.is_some()),
            took.as_secs_f64(),
            rate(*images),
            rate(*checked)
        )
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "broken rule: {}", self.broken)?;
        writeln!(f, "index: {}", self.subject)?;
        writeln!(f, "operations: {}", self.operations.join(", "))?;
        for (number, image) in self.images.iter().enumerate() {
            writeln!(f, "{}: {image}", if number == 0 { "the crash" } else { "a crash in the life after it" })?;
        }
        write!(f, "again: {}", self.replay)
    }
}
