//! What a crash run did, and what it found.

use super::Case;
use super::story::Crashed;
use crate::Broken;
use everleaf_pmem::Deed;
use std::fmt;
use std::time::Duration;

/// The counts of a run, and the first violation.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Sequences of operations run.
    pub sequences: u64,
    /// Images shown, including those of crashes in recovery and second lives.
    pub images: u64,
    /// Images recovered and checked: those that did not equal an earlier one with the same promises.
    pub checked: u64,
    /// Of these, images of a crash inside a recovery.
    pub nested: u64,
    /// Number of recovered images that were used further, and crashed again.
    pub second_lives: u64,
    /// Operations that were refused.
    pub refused: u64,
    /// Crash points with every image shown.
    pub eager_points: u64,
    /// Crash points that were shown undecided, in every way that they can be read.
    pub lazy_points: u64,
    /// Crash points with a sample shown.
    pub sampled_points: u64,
    /// Whether the run ended before its work was done.
    pub is_cut: bool,
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
    /// Name of what was examined.
    pub subject: String,
    /// Name of the start.
    pub start: String,
    /// Steps from there to the state in which the crash is looked for; all their effects are durable.
    pub setup: Vec<String>,
    /// The steps; the crash came in the last.
    pub steps: Vec<String>,
    /// The crash. If it was in a recovery or in a second life, the later crashes follow.
    pub crashes: Vec<Crashed>,
    /// What was done after the last crash, until the rule broke. Empty if no story was asked for.
    pub end: Vec<Deed>,
    /// The case as a number.
    pub case: Case,
    /// How to reproduce it.
    pub replay: String,
}

impl Report {
    /// Adds what another worker did.
    pub fn add(&mut self, other: Self) {
        self.sequences += other.sequences;
        self.images += other.images;
        self.checked += other.checked;
        self.nested += other.nested;
        self.second_lives += other.second_lives;
        self.refused += other.refused;
        self.eager_points += other.eager_points;
        self.lazy_points += other.lazy_points;
        self.sampled_points += other.sampled_points;
        self.is_cut |= other.is_cut;
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
    pub(super) fn before_any_crash(subject: String, start: &str, broken: Broken) -> Self {
        let (start, case, replay) = (start.to_owned(), Case::default(), "any run does".to_owned());
        Self { broken, subject, start, setup: Vec::new(), steps: Vec::new(), crashes: Vec::new(), end: Vec::new(), case, replay }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sequences, images, checked, nested, second_lives, refused, eager_points, lazy_points, sampled_points, is_cut, took, violation } = self;
        let rate = |count: u64| count as f64 / took.as_secs_f64() * 60.0 / 1e6;
        write!(f, "{sequences} sequences, {images} images, {checked} checked ({nested} in recoveries), {second_lives} second lives, ")?;
        if *refused > 0 {
            write!(f, "{refused} operations refused, ")?;
        }
        write!(f, "{} crash points ({lazy_points} undecided, {sampled_points} sampled), ", eager_points + lazy_points + sampled_points)?;
        write!(
            f,
            "{} violations, {}{:.1} s; a minute {:.2} M images, {:.2} M checked",
            u32::from(violation.is_some()),
            if *is_cut { "ended early after " } else { "" },
            took.as_secs_f64(),
            rate(*images),
            rate(*checked)
        )
    }
}
