//! Sites: the source locations where persistent memory is written, flushed and fenced; the mistakes possible there; and what a run saw of each.
//!
//! A site is the location of a call (`#[track_caller]`), so a helper called by two steps of a protocol is two sites if it is `#[track_caller]` itself. Nothing
//! has to be declared: a run with a [`Profile`] finds every site that it reaches, and which [`Act`]s are meaningful there.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;

/// What is done at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// A word is stored.
    Store,
    /// A word is compared and exchanged.
    Exchange,
    /// Lines are flushed.
    Flush,
    /// It waits for earlier flushes.
    Fence,
}

/// A source location, and what is done there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// Where.
    pub place: &'static Location<'static>,
    /// What.
    pub verb: Verb,
}

/// A mistake that can be made at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Act {
    /// The flush or fence is omitted. For an exchange: it completes no flushes, as if it were not a locked operation.
    Drop,
    /// The flush covers the lines next to the right ones.
    Neighbour,
    /// The flush leaves out the last line.
    Short,
    /// The store comes before the one that it should follow in its line. For relaxed stores, which claim no order, this is no mistake.
    Early,
    /// The store comes after the next fence of its thread, so what should make it durable does not.
    Late,
}

/// A mistake at a site: a seeded defect, to show that a checker would find it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fault {
    /// Where.
    pub site: Site,
    /// What is done wrong.
    pub act: Act,
}

impl Act {
    /// Every mistake.
    pub const ALL: [Self; 5] = [Self::Drop, Self::Neighbour, Self::Short, Self::Early, Self::Late];

    /// Its name in tables and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Neighbour => "neighbour",
            Self::Short => "short",
            Self::Early => "early",
            Self::Late => "late",
        }
    }
}

impl Fault {
    /// Whether this is the mistake made there.
    #[inline]
    pub(super) fn is(fault: Option<Self>, place: &'static Location<'static>, verb: Verb, act: Act) -> bool {
        fault.is_some_and(|fault| fault.site.verb == verb && fault.act == act && fault.site.place == place)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Store => "store",
            Self::Exchange => "exchange",
            Self::Flush => "flush",
            Self::Fence => "fence",
        })
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.place, self.verb)
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.site, self.act)
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Observations about a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How often it was reached.
    pub hits: u64,
    /// Number of images examined of crashes that interrupted it: just before a fence that would have completed it, or, for stores, while they could be lost.
    pub images: u64,
    /// The mistakes that are meaningful there, as bits in the order of [`Act::ALL`].
    acts: u8,
}

impl Tally {
    /// The mistakes that are meaningful there.
    pub fn acts(&self) -> impl Iterator<Item = Act> {
        let acts = self.acts;
        Act::ALL.into_iter().filter(move |act| acts & 1 << *act as u8 != 0)
    }

    fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.images += other.images;
        self.acts |= other.acts;
    }
}

/// What a run saw of every site. Shared by the lives of the run.
#[derive(Default)]
pub struct Profile(Mutex<BTreeMap<Site, Tally>>);

impl Profile {
    /// Every site reached, in source order.
    pub fn sites(&self) -> Vec<(Site, Tally)> {
        self.0.lock().iter().map(|(site, tally)| (*site, *tally)).collect()
    }

    /// Adds what another run saw.
    pub fn add(&self, other: &Self) {
        let other = other.sites();
        let mut sites = self.0.lock();
        for (site, tally) in other {
            sites.entry(site).or_default().add(&tally);
        }
    }

    /// A site was reached where `acts` are meaningful.
    pub(super) fn hit(&self, place: &'static Location<'static>, verb: Verb, acts: &[Act]) {
        let acts = acts.iter().fold(0, |acts, act| acts | 1 << *act as u8);
        self.0.lock().entry(Site { place, verb }).or_default().add(&Tally { hits: 1, images: 0, acts });
    }

    /// An image was examined of a crash that interrupted `sites`.
    pub(super) fn examined(&self, cut: impl Iterator<Item = Site>) {
        let mut sites = self.0.lock();
        for site in cut {
            sites.entry(site).or_default().images += 1;
        }
    }
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.sites()).finish()
    }
}
