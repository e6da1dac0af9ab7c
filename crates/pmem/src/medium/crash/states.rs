//! What a crash may leave of one line.
//!
//! The stores of a line are a log, in the order in which they reached memory. A crash keeps a set of them, together with all that they need ([`Store::needs`]).
//! Stores to the same word need each other in order, so such a set is a [`Cut`]: for each word, the last store kept.
//!
//! ```text
//! line in order       s1 < s2 < s3 < s4        a prefix: one number says it all, and the next image is one store away
//! stores in a set     s1 < {s2, s3} , s4       any set with s1 below s2 and s3: the cuts are listed, neighbours in the list being near each other
//! ```
//!
//! Nearly all lines are in order, and images of those are made without a list.

use super::images::Random;
use super::log::Store;
use crate::WORD;
use crate::medium::LINE;

const WORDS: usize = LINE / WORD;

/// For each word of a line, the last store kept, as its number in the line's log, counted from 1; 0 if there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut([u32; WORDS]);

fn word(store: &Store) -> usize {
    store.at / WORD % WORDS
}

impl Cut {
    /// Keeps nothing.
    pub(super) const NONE: Self = Self([0; WORDS]);

    /// Keeps all of `stores`.
    pub(super) fn all(stores: &[Store]) -> Self {
        Self::up_to(stores, |_| true)
    }

    /// Keeps the `wanted` stores, and earlier ones to the same words.
    pub(super) fn up_to(stores: &[Store], wanted: impl Fn(&Store) -> bool) -> Self {
        let mut cut = Self::NONE;
        stores.iter().enumerate().filter(|(_, store)| wanted(store)).for_each(|(place, store)| cut.keep(place, store));
        cut
    }

    fn keep(&mut self, place: usize, store: &Store) {
        self.0[word(store)] = place as u32 + 1;
    }

    /// Whether the store at this place of the log is kept.
    pub(super) fn keeps(&self, place: usize, store: &Store) -> bool {
        self.0[word(store)] as usize > place
    }

    fn contains(&self, needed: &Self) -> bool {
        self.0.iter().zip(needed.0).all(|(kept, needed)| *kept >= needed)
    }

    /// Goes from here to `to`: calls `change` for each word that differs, with its number in the line, its value, and its new value.
    pub(super) fn go(&self, to: &Self, stores: &[Store], mut change: impl FnMut(usize, u64, u64)) {
        for index in 0..WORDS {
            let value = |cut: &Self| match cut.0[index] {
                0 => stores.iter().find(|store| word(store) == index).map_or(0, |store| store.old),
                kept => stores[kept as usize - 1].new,
            };
            if self.0[index] != to.0[index] {
                change(index, value(self), value(to));
            }
        }
    }
}

/// The stores of a line, and what each of them needs.
pub(super) struct Order<'a> {
    stores: &'a [Store],
    needs: Vec<Cut>,
}

impl<'a> Order<'a> {
    /// The order in which a later store needs an earlier one if `needs` says so.
    pub(super) fn new(stores: &'a [Store], needs: impl Fn(&Store, &Store) -> bool) -> Self {
        let needed = |later: usize| Cut::up_to(&stores[..later], |earlier| needs(&stores[later], earlier));
        Self { stores, needs: (0..stores.len()).map(needed).collect() }
    }

    /// `cut` with the store at `place` added, if it keeps what that needs.
    fn with(&self, mut cut: Cut, place: usize) -> Option<Cut> {
        if !cut.contains(&self.needs[place]) {
            return None;
        }
        cut.keep(place, &self.stores[place]);
        Some(cut)
    }

    /// Keeps the stores whose places are `wanted`, as far as what they need is kept.
    pub(super) fn keep(&self, mut wanted: impl FnMut(usize) -> bool) -> Cut {
        let places = (0..self.stores.len()).filter(|place| wanted(*place));
        places.fold(Cut::NONE, |cut, place| self.with(cut, place).unwrap_or(cut))
    }

    /// A random cut: all stores up to some place, and some of those behind.
    pub(super) fn at_random(&self, random: &mut Random) -> Cut {
        let count = self.stores.len() as u64;
        let (all, share) = (random.below(count + 1), random.below(count + 1));
        self.keep(|place| (place as u64) < all || random.below(count) < share)
    }

    /// Appends every cut to `list`, the one that keeps nothing first and the one that keeps everything last; or nothing, if there are more than `max`.
    pub(super) fn list(&self, max: u64, list: &mut Vec<Cut>) -> bool {
        let start = list.len();
        let mut listing = Listing { order: self, up: vec![false; self.stores.len()], list, end: start.saturating_add(max as usize) };
        if !listing.descend(0, Cut::NONE) {
            list.truncate(start);
            return false;
        }
        let all = Cut::all(self.stores);
        let place = list[start..].iter().position(|cut| *cut == all).expect("all of it is a cut");
        list.remove(start + place);
        list.push(all);
        true
    }
}

/// The list under construction.
struct Listing<'a> {
    order: &'a Order<'a>,
    /// Whether the store was kept last, when it was kept and lost in turn. The next turn begins with that, so that neighbours in the list differ little.
    up: Vec<bool>,
    list: &'a mut Vec<Cut>,
    end: usize,
}

impl Listing<'_> {
    /// Lists the cuts that begin like `cut` before the store at `place`; stops when the list is too long.
    fn descend(&mut self, place: usize, cut: Cut) -> bool {
        if place == self.order.stores.len() {
            self.list.push(cut);
            return self.list.len() <= self.end;
        }
        let Some(kept) = self.order.with(cut, place) else { return self.descend(place + 1, cut) };
        let up = self.up[place];
        self.up[place] = !up;
        let [first, second] = if up { [kept, cut] } else { [cut, kept] };
        self.descend(place + 1, first) && self.descend(place + 1, second)
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::Way;
    use super::*;
    use std::collections::BTreeSet;

    /// A log of up to seven stores to four words by two threads.
    fn log(random: &mut Random) -> Vec<Store> {
        let place = std::panic::Location::caller();
        let mut store = |number: u64| {
            let (at, by, stretch) = (random.below(4) as usize * WORD, random.below(5) / 4, number / 4 + random.below(2) * 2);
            let way = [Way::Ordered, Way::Relaxed, Way::Streamed][random.below(3) as usize];
            Store { at, old: 0, new: number + 1, place, by, way, is_unflushed: false, stretch, number }
        };
        (0..7).map(&mut store).collect()
    }

    /// The sets of stores that contain what each of their stores needs, by brute force.
    fn closed_sets(stores: &[Store]) -> BTreeSet<u32> {
        let has = |set: u32, place: usize| set & 1 << place != 0;
        let is_closed = |set: &u32| {
            let whole = |later: usize| (0..later).all(|earlier| has(*set, earlier) || !stores[later].needs(&stores[earlier]));
            (0..stores.len()).all(|place| !has(*set, place) || whole(place))
        };
        (0..1 << stores.len()).filter(is_closed).collect()
    }

    fn kept(cut: &Cut, stores: &[Store]) -> u32 {
        stores.iter().enumerate().filter(|(place, store)| cut.keeps(*place, store)).map(|(place, _)| 1 << place).sum()
    }

    #[test]
    fn every_closed_set_is_listed_once_and_no_other() {
        let mut random = Random(1);
        for _ in 0..1000 {
            let stores = log(&mut random);
            let (order, wanted) = (Order::new(&stores, Store::needs), closed_sets(&stores));
            let mut list = vec![Cut::NONE];
            assert!(order.list(1000, &mut list));
            assert_eq!((list[1], *list.last().unwrap()), (Cut::NONE, Cut::all(&stores)));
            assert_eq!(list.len() - 1, wanted.len(), "none twice");
            assert_eq!(list[1..].iter().map(|cut| kept(cut, &stores)).collect::<BTreeSet<_>>(), wanted);
            assert!(!order.list(wanted.len() as u64 - 1, &mut list), "too many");
            assert_eq!(list.len() - 1, wanted.len());
            assert!(wanted.contains(&kept(&order.at_random(&mut random), &stores)));
            let largest = wanted.iter().filter(|set| **set & 4 == 0).max_by_key(|set| set.count_ones()).unwrap();
            assert_eq!(kept(&order.keep(|place| place != 2), &stores), *largest);
        }
    }
}
