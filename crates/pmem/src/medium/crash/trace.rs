//! What lives do, in order, recorded on demand: the story of a violation.
//!
//! Lives are nested: a recovery is a life on an image of the life that crashed. So their deeds are recorded on a stack: code that starts a life notes the
//! length of the record, and takes what was added since when the life is over, or when something in it is found wrong.

use super::site::{Act, Fault, Site, Verb};
use crate::WORD;
use crate::medium::LINE;
use parking_lot::Mutex;
use std::fmt;
use std::panic::Location;

/// Something that a life did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Deed {
    /// A remark on what follows.
    Said(String),
    /// A store or an exchange that changed the word at `at`.
    Stored {
        /// Where, in bytes from the start of the memory.
        at: usize,
        /// The old value.
        old: u64,
        /// The new value.
        new: u64,
        /// The site that did it.
        site: Site,
        /// The mistake planted there.
        mistake: Option<Act>,
    },
    /// This many lines, from the one at `at` on, were flushed.
    Flushed {
        /// Where the first line begins, in bytes from the start of the memory.
        at: usize,
        /// How many.
        lines: usize,
        /// The site that did it.
        site: Site,
        /// The mistake planted there.
        mistake: Option<Act>,
    },
    /// A fence completed earlier flushes.
    Fenced {
        /// The site that did it.
        site: Site,
        /// The mistake planted there.
        mistake: Option<Act>,
    },
}

impl Deed {
    /// Where it was done, and what.
    pub fn site(&self) -> Option<Site> {
        match self {
            Self::Said(_) => None,
            Self::Stored { site, .. } | Self::Flushed { site, .. } | Self::Fenced { site, .. } => Some(*site),
        }
    }

    /// The mistake planted there.
    pub fn mistake(&self) -> Option<Act> {
        match self {
            Self::Said(_) => None,
            Self::Stored { mistake, .. } | Self::Flushed { mistake, .. } | Self::Fenced { mistake, .. } => *mistake,
        }
    }
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Said(text) => f.write_str(text),
            Self::Stored { at, old, new, site, .. } => write!(f, "{} {}: {old:#x} -> {new:#x}", site.verb, Spot(*at)),
            Self::Flushed { at, lines: 1, .. } => write!(f, "flush line {at:#x}"),
            Self::Flushed { at, lines, .. } => write!(f, "flush {lines} lines from {at:#x} on"),
            Self::Fenced { .. } => f.write_str("fence"),
        }
    }
}

/// The offset of a word, as its line and its byte within that.
pub(super) struct Spot(pub(super) usize);

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{}", self.0 / LINE * LINE, self.0 % LINE / WORD * WORD)
    }
}

/// Where lives of one thread record what they do ([`super::CrashOptions::trace`]).
#[derive(Debug, Default)]
pub struct Trace(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    deeds: Vec<Deed>,
    is_closed: bool,
}

impl Trace {
    /// Adds a remark on what follows.
    pub fn say(&self, text: impl Into<String>) {
        self.tell(Deed::Said(text.into()));
    }

    /// Length of the record.
    pub fn length(&self) -> usize {
        self.0.lock().deeds.len()
    }

    /// Takes what has been recorded since [`Trace::length`] was `from`.
    pub fn take(&self, from: usize) -> Vec<Deed> {
        let mut told = self.0.lock();
        let from = from.min(told.deeds.len());
        told.deeds.split_off(from)
    }

    /// From now on, nothing that lives do is recorded.
    pub fn close(&self) {
        self.0.lock().is_closed = true;
    }

    pub(super) fn tell(&self, deed: Deed) {
        let mut told = self.0.lock();
        if !told.is_closed {
            told.deeds.push(deed);
        }
    }
}

/// The mistake of `fault`, if it is made at this place.
pub(super) fn mistake(fault: Option<Fault>, place: &'static Location<'static>, verb: Verb) -> Option<Act> {
    fault.filter(|fault| fault.site == Site { place, verb }).map(|fault| fault.act)
}
