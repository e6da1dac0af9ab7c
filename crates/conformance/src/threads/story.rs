//! The story of a schedule that went wrong.

use super::history::{Operation, Returned, payload};
use crate::Broken;
use everleaf_pmem::schedule::Step;
use std::fmt;
use std::panic::Location;

/// A place in the source.
pub(super) type Place = &'static Location<'static>;

/// Something that happened in a schedule.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    /// A thread begins a call.
    Begin { thread: usize, operation: Operation },
    /// It returns.
    End { thread: usize, returned: Returned },
    /// A thread takes a step that the pool sees: store, flush, fence.
    Step { thread: usize, at: usize, step: Step, place: Place },
    /// The oldest store to the pool in the buffer of a thread becomes visible.
    Leave { thread: usize, at: usize },
    /// A thread has read a store of another one that is not durable.
    Dirty { thread: usize, at: usize, place: Place },
    /// Another thread goes on.
    Switch { from: usize, to: usize },
    /// The images of this moment are examined.
    Crash,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin { thread, operation } => write!(f, "{}: {operation}", name(*thread)),
            Self::End { thread, returned } => write!(f, "{}: returns {returned}", name(*thread)),
            Self::Step { thread, at, step, place } => {
                match step {
                    Step::Store(_, value) => write!(f, "{}:   stores {value:#x} at {at:#x}", name(*thread)),
                    Step::Exchange(_, value) => write!(f, "{}:   exchanges {at:#x} for {value:#x}", name(*thread)),
                    Step::Flush(_, size) => write!(f, "{}:   flushes {size} bytes at {at:#x}", name(*thread)),
                    _ => write!(f, "{}:   fences", name(*thread)),
                }?;
                write!(f, " ({place})")
            }
            Self::Dirty { thread, at, place } => write!(f, "{}:   reads {at:#x}, where another thread's store is not durable ({place})", name(*thread)),
            Self::Leave { thread, at } => write!(f, "       the store of {} at {at:#x} leaves its buffer", name(*thread)),
            Self::Switch { from, to } => write!(f, "       {} is held up, {} goes on", name(*from), name(*to)),
            Self::Crash => write!(f, "       a crash here is examined"),
        }
    }
}

/// Threads are named by letters, and their payloads after them: `b3` is the third value of thread b.
pub(super) fn name(thread: usize) -> char {
    char::from(b'a' + thread as u8 % 26)
}

/// A broken rule and how to get there.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The rule.
    pub broken: Broken,
    /// What was under test, and its start.
    pub subject: String,
    /// The initial content: keys by number, and payloads.
    pub initial: Vec<(usize, u64)>,
    /// What was done before the threads started.
    pub prelude: String,
    /// The operations of each thread.
    pub plan: Vec<String>,
    /// How the schedule was chosen.
    pub strategy: String,
    /// The events up to the violation.
    pub events: Vec<String>,
    /// The recovered image, if there was one.
    pub image: Option<String>,
    /// The command that reproduces it.
    pub replay: String,
}

impl Violation {
    pub(super) fn before_any_thread(subject: String, broken: Broken) -> Self {
        let none = String::new;
        let (initial, plan, events) = (Vec::new(), Vec::new(), Vec::new());
        Self { broken, subject, initial, prelude: none(), plan, strategy: none(), events, image: None, replay: "any run does".into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "broken rule: {}", self.broken)?;
        writeln!(f, "subject: {}", self.subject)?;
        let initial: Vec<String> = self.initial.iter().map(|(key, value)| format!("{key}={}", payload(*value))).collect();
        writeln!(f, "before: {}", if initial.is_empty() { "nothing".to_owned() } else { initial.join(" ") })?;
        if !self.prelude.is_empty() {
            writeln!(f, "first: {}", self.prelude)?;
        }
        for (thread, operations) in self.plan.iter().enumerate() {
            writeln!(f, "thread {}: {operations}", name(thread))?;
        }
        writeln!(f, "schedule: {}", self.strategy)?;
        for event in &self.events {
            writeln!(f, "  {event}")?;
        }
        if let Some(image) = &self.image {
            writeln!(f, "the crash: {image}")?;
        }
        write!(f, "again: {}", self.replay)
    }
}
