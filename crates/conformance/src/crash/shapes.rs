//! Where crash runs start from.

use crate::Change::{self, Delete, Put};

/// A state of an index to start from, and the keys that the operations then speak of.
#[derive(Clone, Debug)]
pub struct Shape {
    /// For people, and to choose it by.
    pub name: &'static str,
    /// How to get there from an empty index.
    pub changes: Vec<Change>,
    /// The keys of the operations, by number.
    pub keys: [u32; 4],
    /// Whether all payloads are the same, so that no two entries differ by value.
    pub equal_payloads: bool,
    /// Whether there is an index at all.
    pub created: bool,
    /// Whether the pool is closed cleanly, so that the first life starts with the way open after a shutdown.
    pub closed: bool,
}

/// The payload of everything in a shape with equal payloads.
const EQUAL: u64 = 8;

impl Shape {
    fn new(name: &'static str, changes: Vec<Change>, keys: [u32; 4]) -> Self {
        Self { name, changes, keys, equal_payloads: false, created: true, closed: false }
    }

    /// A pool without an index.
    pub fn unborn() -> Self {
        Self { created: false, ..Self::new("unborn", Vec::new(), [10, 20, 30, 40]) }
    }

    /// Every shape, for leaves of `capacity` entries. The keys that make the shape are multiples of 10; those of the operations are some of them, and some
    /// between.
    pub fn all(capacity: usize) -> Vec<Self> {
        let full = capacity as u32;
        let ascending = |count: u32| (1..=count).map(|number| Put(number * 10, payload(number * 10))).collect::<Vec<_>>();
        let descending = |count: u32| ascending(count).into_iter().rev().collect::<Vec<_>>();
        let equal = (1..=2 * full).map(|number| Put(number * 10, EQUAL)).collect();
        let without = |mut changes: Vec<Change>, deleted: &mut dyn Iterator<Item = u32>| {
            changes.extend(deleted.map(|number| Delete(number * 10)));
            changes
        };
        let mut edges = ascending(full - 1);
        edges.extend([Put(u32::MAX, payload(1)), Put(0, payload(2))]);
        let mut shapes = vec![
            Self::new("empty", Vec::new(), [10, 20, 30, 40]),
            Self::new("one below split", descending(full - 1), [5, 20, 25, full * 10]),
            Self::new("at split", ascending(full), [5, 10, 25, full * 10 + 5]),
            Self::new("several leaves", ascending(3 * full), [10, full * 10, full * 10 + 5, full * 30]),
            Self::new("one above merge", without(ascending(2 * full), &mut (1..2 * full).step_by(2)), [20, 40, 45, full * 20]),
            Self::new("many leaves", descending(8 * full), [5, full * 10, full * 40 + 5, full * 80 + 5]),
            Self::new("equal values", equal, [5, 20, full * 10, full * 20]),
            Self::new("edge keys", edges, [0, 10, 15, u32::MAX]),
        ];
        for (number, shape) in shapes.iter_mut().enumerate() {
            shape.equal_payloads = shape.name == "equal values";
            shape.closed = number % 2 == 1;
        }
        shapes
    }

    /// A put of `key` where `present` is its payload: one that changes something, unless all payloads are equal.
    ///
    /// A key has two payloads that alternate, so that different histories meet again in the same state.
    pub fn put(&self, key: u32, present: Option<u64>) -> Change {
        let fresh = payload(key);
        Put(
            key,
            match present {
                _ if self.equal_payloads => EQUAL,
                Some(old) if old == fresh => fresh + 1,
                _ => fresh,
            },
        )
    }

    /// What every recovered index must still be able to do: fill a leaf until it splits, update, and empty it again until it merges.
    pub fn follow_up(&self, capacity: usize) -> Vec<Change> {
        let first = self.keys[1];
        let new: Vec<u32> = (1..=capacity as u32 + 1).map(|step| first + step % 5 + step / 5 * 10).collect();
        let mut changes: Vec<Change> = new.iter().map(|key| Put(*key, payload(*key))).collect();
        changes.push(Put(first, payload(first) + 2));
        changes.extend(new.iter().map(|key| Delete(*key)));
        changes.extend(self.keys.map(Delete));
        changes
    }
}

fn payload(key: u32) -> u64 {
    (u64::from(key) + 1) * 2
}
