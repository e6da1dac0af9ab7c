//! Which stores rely on others having reached their line before them: an advisory mode in which they need not have.
//!
//! That a line holds a prefix of its stores is what the processor promises, and what the compiler respects as far as stores are ordered. Much rests on it, and
//! nothing in the source shows where. So, with [`CrashOptions::dependences`](super::CrashOptions::dependences), the words of a line are independent of each
//! other: a crash keeps any set of the line's stores, in order only to the same word. If an image breaks a rule that holds with every prefix of the line's
//! stores, the image is varied until a kept store and an earlier lost one are found without which nothing breaks. That pair of source locations is noted as a
//! [`Dependence`], and no image that violates it is shown from then on. When nothing breaks any more, the list is what our stores rely on.

use super::log::{Store, Way};
use super::states::{Cut, Order};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;

/// A pair of source locations: a store at the later one relies on an earlier store at the other, in the same line, being there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependence {
    /// The later store.
    pub later: &'static Location<'static>,
    /// The store that must be there then.
    pub earlier: &'static Location<'static>,
    /// Whether the later store is ordered; otherwise the compiler may move it before the other, and the dependence is a mistake.
    pub is_ordered: bool,
}

impl fmt::Display for Dependence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { later, earlier, is_ordered } = self;
        write!(f, "{later} ({}) after {earlier}", if *is_ordered { "ordered" } else { "RELAXED" })
    }
}

type Pair = (&'static Location<'static>, &'static Location<'static>);

/// The dependences found so far. Shared by the lives of a run.
#[derive(Default)]
pub struct Dependences(Mutex<BTreeMap<Pair, Dependence>>);

impl Dependences {
    /// Every dependence, in source order.
    pub fn all(&self) -> Vec<Dependence> {
        self.0.lock().values().copied().collect()
    }

    /// What each of `stores`, those of a line, needs.
    pub(super) fn order<'a>(&self, stores: &'a [Store]) -> Order<'a> {
        let noted = self.0.lock();
        Order::new(stores, |later, earlier| later.at == earlier.at || noted.contains_key(&(later.place, earlier.place)))
    }

    /// Notes that `later` relies on `earlier`.
    fn note(&self, later: &Store, earlier: &Store) {
        let found = Dependence { later: later.place, earlier: earlier.place, is_ordered: later.way == Way::Ordered };
        let mut noted = self.0.lock();
        noted.entry((later.place, earlier.place)).or_insert(found).is_ordered &= found.is_ordered;
    }

    /// For a line of `stores` that keeps `cut` and so breaks a rule that no prefix of them breaks: finds which kept store and which lost one are responsible,
    /// by trying what else `breaks` the rule; notes the pair.
    pub(super) fn explain(&self, stores: &[Store], mut cut: Cut, breaks: &mut dyn FnMut(Cut) -> bool) {
        let order = self.order(stores);
        // Stores that are lost and need not be: put back with all before them, or alone.
        for place in 0..stores.len() {
            let with_all = order.keep(|other| other <= place || cut.keeps(other, &stores[other]));
            let alone = order.keep(|other| other == place || cut.keeps(other, &stores[other]));
            for fuller in [with_all, alone] {
                if !cut.keeps(place, &stores[place]) && fuller != cut && first_lost(stores, &fuller).is_some() && breaks(fuller) {
                    cut = fuller;
                }
            }
        }
        let Some(lost) = first_lost(stores, &cut) else { return };
        // The stores kept behind it are put back one after the other, as each may need those before it; the first that breaks the rule is it.
        let kept = kept_after(stores, &cut, lost);
        let up_to = |place| order.keep(|other| cut.keeps(other, &stores[other]) && (other <= place || !kept.contains(&other)));
        let found = kept.iter().find(|place| breaks(up_to(**place))).or(kept.last());
        self.note(&stores[*found.expect("something is kept behind what is lost")], &stores[lost]);
    }
}

impl fmt::Debug for Dependences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all()).finish()
    }
}

/// The first lost store for which a later one of the line is kept that should come after it.
pub(super) fn first_lost(stores: &[Store], cut: &Cut) -> Option<usize> {
    let lost = |place: &usize| !cut.keeps(*place, &stores[*place]) && !kept_after(stores, cut, *place).is_empty();
    (0..stores.len()).find(lost)
}

/// The kept stores that should come after this one.
fn kept_after(stores: &[Store], cut: &Cut, place: usize) -> Vec<usize> {
    let kept = |later: &usize| cut.keeps(*later, &stores[*later]) && stores[*later].needs(&stores[place]);
    (place + 1..stores.len()).filter(kept).collect()
}
