//! Which stores rely on others having reached their line before them: an advisory mode, in which they need not have.
//!
//! That a line holds a prefix of its stores is what the processor promises, and what the compiler keeps to as far as stores are ordered. Much rests on it, and
//! nothing in the source shows where. So, with [`CrashOptions::dependences`](super::CrashOptions::dependences), the words of a line are independent of each
//! other: a crash keeps any set of the line's stores, in order only to the same word. Where an image breaks a rule which it does not break with a prefix of
//! the line's stores, it is varied until one store is known that is kept, and one that is lost before it, without which nothing breaks. That pair of places in
//! the source is noted as a [`Dependence`], and no image that goes against it is shown from then on. When nothing breaks any more, the list is what our stores
//! rely on.

use super::log::{Store, Way};
use super::states::{Cut, Order};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;

/// A pair of places: the one relies on it that what was stored at the other, before, in the same line, is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependence {
    /// What is stored later.
    pub later: &'static Location<'static>,
    /// What must be there then.
    pub earlier: &'static Location<'static>,
    /// Whether the later store is ordered: else the compiler may move it to before the other, and the dependence is a mistake.
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
    /// Every dependence, in the order of the source.
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

    /// Of a line of `stores` that keeps `cut`, so that a rule is broken, which no prefix of them does: finds which store it is that is kept, and which lost, by
    /// trying what else `breaks` the rule; notes the pair.
    pub(super) fn explain(&self, stores: &[Store], mut cut: Cut, breaks: &mut dyn FnMut(Cut) -> bool) {
        let order = self.order(stores);
        // What is lost and need not be: put back with all before it, or alone.
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
        // With the stores that are kept behind it put back one after the other, as each may need those before it: the first that breaks the rule.
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

/// The first store that is lost although a later one of the line is kept that should come after it.
pub(super) fn first_lost(stores: &[Store], cut: &Cut) -> Option<usize> {
    let lost = |place: &usize| !cut.keeps(*place, &stores[*place]) && !kept_after(stores, cut, *place).is_empty();
    (0..stores.len()).find(lost)
}

/// The stores that are kept and should come after this one.
fn kept_after(stores: &[Store], cut: &Cut, place: usize) -> Vec<usize> {
    let kept = |later: &usize| cut.keeps(*later, &stores[*later]) && stores[*later].needs(&stores[place]);
    (place + 1..stores.len()).filter(kept).collect()
}
