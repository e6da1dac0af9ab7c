//! The budget suite: how many lines an operation flushes, and how often it fences. The figures do not depend on the machine.

use crate::Class;
use everleaf_index::{Direction, Entry, Error, OrderedIndex};
use everleaf_pmem::schedule::{self, Scheduler, Step};
use everleaf_pmem::{Counters, Counts, Domain, Hardware, LINE, Off, Pool, PoolOptions, Word};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::borrow::Borrow;
use std::collections::{BTreeSet, HashSet};
use std::num::NonZeroU64;
use std::ops::{Bound, ControlFlow, Range};
use std::panic::Location;
use std::sync::{Arc, Mutex};

/// Lines flushed and fences of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Lines flushed.
    pub lines: u64,
    /// Fences.
    pub fences: u64,
}

/// The costs that the operations of an index may have. Lookups and scans cost nothing, in every index.
#[derive(Clone, Debug)]
pub struct Budget {
    /// An insert into a leaf with room costs exactly one of these. Empty if each insert makes a leaf.
    pub insert: Vec<Cost>,
    /// The most lines that inserts into leaves with room, in random order, flush on average.
    pub insert_lines: f64,
    /// An update that finds room costs exactly one of these.
    pub update: Vec<Cost>,
    /// A removal that finds room costs exactly one of these. Empty if each removal takes a leaf away.
    pub remove: Vec<Cost>,
    /// The most that an update costs if it finds no room, so that blocks come or go. `None` if every update finds room.
    pub update_without_room: Option<Cost>,
    /// The same for a removal, though no leaf comes or goes.
    pub remove_without_room: Option<Cost>,
    /// The cheapest insert that splits a leaf costs exactly one of these.
    pub cheapest_split: Vec<Cost>,
    /// The most that an insert that splits a leaf costs.
    pub split: Cost,
    /// The most that a removal that merges leaves costs.
    pub merge: Cost,
}

impl Budget {
    /// The budget of an index of the registry, as `docs/papers.md` gives it.
    ///
    /// # Panics
    /// If the index has none yet: add it here.
    pub fn of<K: Class + ?Sized, M: everleaf_pmem::Medium>(entry: &Entry<K, M>) -> Self {
        let cost = |lines, fences| Cost { lines, fences };
        if !entry.persistent {
            let none = cost(0, 0);
            return Self {
                insert: vec![none],
                insert_lines: 0.0,
                update: vec![none],
                remove: vec![none],
                update_without_room: None,
                remove_without_room: None,
                cheapest_split: vec![none],
                split: none,
                merge: none,
            };
        }
        if entry.name.starts_with("ever") {
            // A split writes the new leaf, for byte strings the record of its fence, and its directory entry; where keys are in records, also the lines that
            // have moved. If the key stays, it is inserted afterwards. The split may take a new extent, of a line and the directory, in a new slab.
            let lines = entry.leaf_capacity as u64 / 4;
            let (leaves, records) = (if lines == 1 { 4 } else { 68 }, if K::WHOLE { 0 } else { 1 });
            let extents = cost(16 * (1 + leaves / 4 + 1) + 1, 2 + 16);
            // Half of the entries are in nearly all lines. The other entries of the new leaf are known to be empty.
            let moved = if K::WHOLE { 0 } else { 1 + lines - lines / 7 };
            let cheapest_split = (0..=lines / 3).map(|empty| cost(lines - empty + 1 + moved, 2 + records)).collect();
            let split = cost(lines + 2 * records + 1 + records * lines + 1 + extents.lines, 3 + 2 * records + extents.fences);
            // A merge moves the entries of one leaf into lines of the other, and changes two directory entries.
            let merge = cost(1 + lines + 2, 1 + 3);
            let (insert, update, remove) = (vec![cost(1, 1)], vec![cost(1, 1)], vec![cost(1, 1)]);
            let (update_without_room, remove_without_room) = (None, None);
            return Self { insert, insert_lines: 1.0, update, remove, update_without_room, remove_without_room, cheapest_split, split, merge };
        }
        // The last entry of a leaf that is divided in place goes with the leaf, by one store. Under NV-Tree's router, where a leaf may be the only child of its
        // parent, such leaves may be removed after the entry.
        let unlink = |remove: Cost| if entry.name.ends_with("packed") { cost(remove.lines + 1, remove.fences + 1) } else { cost(1, 1) };
        if entry.name.starts_with("isle") {
            // A leaf is its header line, and one line for four entries. A split builds two leaves, and for byte strings the record of a fence, and links them.
            // Like any split in the trees below, it may take a new slab for each of these, and make a leaf a waypoint.
            let leaf = 1 + entry.leaf_capacity as u64 / 4;
            let (fence, slabs) = (if K::WHOLE { 0 } else { 1 }, if K::WHOLE { 1 } else { 2 });
            let cheapest_split = cost(2 * leaf + fence + 1, 1 + 1);
            let split = cost(cheapest_split.lines + fence + slabs + 1, cheapest_split.fences + slabs);
            let merge = cost(2 + leaf + 1 + slabs, 1 + 1 + 1 + slabs);
            return Self {
                insert: vec![cost(2, 1)],
                insert_lines: 2.0,
                update: vec![cost(1, 1)],
                remove: vec![cost(2, 1)],
                update_without_room: None,
                remove_without_room: None,
                cheapest_split: vec![cheapest_split],
                split,
                merge,
            };
        }
        if entry.name.starts_with("nv") {
            // The used part of a leaf is half a line of header and a line for four elements. A split builds two leaves, and for byte strings the record of a
            // fence, and links them. It may take a new slab for each of these.
            let capacity = entry.leaf_capacity as u64;
            let lines = |elements: u64| (2 + elements).div_ceil(4);
            let (fence, slabs) = (if K::WHOLE { 0 } else { 1 }, if K::WHOLE { 1 } else { 2 });
            let halves = lines(capacity.div_ceil(2)) + lines(capacity / 2 + 1);
            let split = cost(halves + 2 * fence + 1 + slabs + 1, 1 + 1 + slabs);
            let change = vec![cost(1, 1), cost(2, 2)];
            return Self {
                insert: change.clone(),
                insert_lines: 2.0,
                update: [change.clone(), vec![cost(3, 2)]].concat(),
                remove: change,
                update_without_room: Some(split),
                remove_without_room: Some(split),
                cheapest_split: vec![cost(halves + fence + 1, 1 + 1)],
                split,
                // A removal may find no room, and the leaf that replaces its own may then be merged.
                merge: cost(lines(capacity / 2) + 1 + lines(capacity) + 1 + 2 * slabs, 2 + 2 + 2 * slabs),
            };
        }
        if entry.name.starts_with("lb") {
            // Blocks have 14 slots and four lines, or 6 and two. A split builds the new leaf, with the new key if it belongs there. It then writes the sibling
            // and the headers that do not count yet, beside those that do, then the first header. A key that stays is inserted afterwards. It may take a new
            // slab.
            let (lines, blocks) =
                if entry.leaf_capacity.is_multiple_of(14) { (4, entry.leaf_capacity as u64 / 14) } else { (2, entry.leaf_capacity as u64 / 6) };
            let cheapest_split = cost(lines * blocks + 2 * (blocks - 1) + 1 + 1, 2);
            let split = cost(cheapest_split.lines + 2 + 1 + 1, cheapest_split.fences + 2 + 1);
            // Theorems 3.5 and 3.6, whose proof counts three near slots of 14.
            let insert_lines = if lines == 4 { 1.31 } else { 2.0 };
            return Self {
                insert: vec![cost(1, 1), cost(2, 2)],
                insert_lines,
                update: vec![cost(1, 1)],
                remove: vec![cost(1, 1)],
                update_without_room: None,
                remove_without_room: None,
                cheapest_split: vec![cheapest_split],
                split,
                merge: unlink(cost(1, 1)),
            };
        }
        if entry.name.starts_with("fp") {
            // Leaves as in the paper, as in LB+-Tree's study, and ours: their lines, and whether the link of the next leaf and the bitmap are in different
            // lines. A split writes the new leaf and the old header, a log, the old leaf, and the log again; then the change continues. It may have to make the
            // log, and take a slab for each.
            let (lines, apart) = match entry.leaf_capacity {
                8 => (3, 0),
                14 => (4, 1),
                28 => (8, 0),
                _ => (16, 1),
            };
            // As published, fingerprint and bitmap become durable one after the other.
            let write = if entry.name.ends_with("published") { cost(3, 3) } else { cost(2, 2) };
            let cheapest_split = cost(lines + 1 + 1 + (1 + apart) + 1 + write.lines, 4 + write.fences);
            let split = cost(cheapest_split.lines + 2 + 2 + 1, cheapest_split.fences + 2 + 2);
            return Self {
                insert: vec![write],
                insert_lines: write.lines as f64,
                update: vec![write],
                remove: vec![cost(1, 1)],
                update_without_room: None,
                remove_without_room: None,
                cheapest_split: vec![cheapest_split],
                split,
                merge: unlink(cost(1, 1)),
            };
        }
        if entry.name.starts_with("wb") {
            // A header unit, one unit for each entry, and up to a line of slot array. A split is as in FPTree, but also writes the slot array.
            let lines = (entry.leaf_capacity as u64 + 1).div_ceil(4).next_power_of_two();
            let (array, write, remove) = if entry.name.starts_with("wb-bitmap") { (0, cost(2, 2), cost(1, 1)) } else { (1, cost(4, 3), cost(3, 3)) };
            let cheapest_split = cost(lines + 1 + (1 + array) + 1 + write.lines, 4 + write.fences);
            let split = cost(cheapest_split.lines + 2 + 2 + 1, cheapest_split.fences + 2 + 2);
            return Self {
                insert: vec![write],
                insert_lines: write.lines as f64,
                update: vec![cost(1, 1)],
                remove: vec![remove],
                update_without_room: None,
                remove_without_room: None,
                cheapest_split: vec![cheapest_split],
                split,
                merge: unlink(remove),
            };
        }
        let (is_circular, is_logged) = (entry.name.starts_with("circ"), entry.name.starts_with("lcb"));
        if is_circular || is_logged || entry.name.starts_with("fast-fair") {
            // A change of FAST-FAIR writes the lines from its slot to the last, each with a fence. Circ-Tree writes those of the shorter side, and the header.
            // LCB+-Tree first writes the image of the node, then its log, then, with one fence, the lines from its slot to the last and the header, then the
            // log. A split writes a new node, for byte strings the record of its fence, the link, and the old node's end: in Circ-Tree the header and all lines
            // that the split empties. Then the node above has an insert, and the leaf. Nodes above may be split too, each of which may take a slab, or joined:
            // these trees grow to this many levels here.
            let (lines, record) = ((entry.leaf_capacity as u64).div_ceil(4), if K::WHOLE { 0 } else { 1 });
            // The half may begin anywhere in its first line.
            let half = (2 * lines + 3).div_ceil(4).min(lines);
            let (shifted, header) = if is_circular { (half, 1) } else { (lines, u64::from(is_logged)) };
            let change = |shifted: u64| if is_logged { cost(lines + 2 + shifted + 1, 4) } else { cost(shifted + header, shifted) };
            let node = if is_logged { lines + 2 } else { lines + 1 };
            let (ends, emptied) = match (is_circular, is_logged) {
                (true, _) => (cost(1 + lines.div_ceil(2), 1), 1 + half),
                (_, true) => (change(0), change(0).lines),
                _ => (cost(1, 1), 1),
            };
            let levels = match (is_circular, lines) {
                (true, ..=3) => 6,
                (false, ..=2) => 7,
                _ => 3,
            };
            let changes: Vec<Cost> = (1..=shifted).map(change).collect();
            let (least, most) = (change(1), change(shifted));
            // The position of the new entry decides how much of the node above is shifted.
            let to_split = |above: &Cost| cost(node + record + 1 + ends.lines + above.lines + least.lines, 2 + ends.fences + above.fences + least.fences);
            // If the old node was the top, a new top is written, and the word that links it; one of them may take a slab.
            let under_new_top = cost(2 * node + record + 1 + ends.lines + 1 + least.lines, 3 + ends.fences + least.fences);
            let new_tops = (0..if is_logged { 2 } else { 0 }).map(|slab| cost(under_new_top.lines + slab, under_new_top.fences + slab));
            let split = cost(levels * (node + 1 + emptied + most.lines + 2 * record + 2) + most.lines, levels * (ends.fences + most.fences + 4) + most.fences);
            let merge = cost(levels * (lines + 2 + most.lines) + most.lines, levels * (most.fences + 2) + most.fences);
            return Self {
                insert: changes.clone(),
                insert_lines: match (is_circular, is_logged) {
                    (true, _) => 2.5 + lines as f64 / 4.0,
                    (_, true) => 4.0 + 1.5 * lines as f64,
                    _ => 1.0 + lines as f64 / 2.0,
                },
                update: vec![if is_logged { change(0) } else { cost(1, 1) }],
                // After the last entry of a node with a log nothing is shifted.
                remove: if is_logged { (0..=shifted).map(change).collect() } else { changes.clone() },
                update_without_room: None,
                // Nodes above may be joined, but no leaves.
                remove_without_room: Some(merge),
                cheapest_split: changes.iter().map(to_split).chain(new_tops).collect(),
                split,
                merge,
            };
        }
        if entry.name.starts_with("cdds") {
            // A change writes each entry that it shifts, the new one, and the version, each with a fence; an update also the end of the old entry. A split
            // writes a new node, for byte strings the record of its fence, the link, the end of each entry that the new node has, and the version. Then the
            // node above has an insert, and the leaf. A join skips dead entries, at two lines and fences each, and adds the others.
            let (slots, record) = (entry.leaf_capacity as u64 + 1, if K::WHOLE { 0 } else { 1 });
            let (node, levels) = (slots / 2 + 1, if slots == 6 { 7 } else { 3 });
            let change = |lines: u64| (0..slots).map(move |shifted| cost(shifted + lines, shifted + 2));
            let most = slots + 2;
            let divided = cost(node + record + 1 + slots.div_ceil(2) + 1, 2 + 2);
            let leaf = 2;
            let merge = cost(levels * (3 * slots + 6), levels * (2 * slots + 6));
            return Self {
                insert: change(2).collect(),
                insert_lines: 2.0 + slots as f64 / 2.0,
                update: change(3).collect(),
                remove: vec![cost(2, 2)],
                update_without_room: None,
                remove_without_room: Some(merge),
                cheapest_split: change(2).map(|above| cost(divided.lines + above.lines + leaf, divided.fences + above.fences + leaf)).collect(),
                split: cost(levels * (divided.lines + node + most + 3) + most, levels * (divided.fences + most + 4) + most),
                merge,
            };
        }
        if entry.name.starts_with("pf") {
            // A record is flushed behind what it is in other lines with, the word of 0 behind it among them. Where an array is full, a larger one is written,
            // and its word above; where there is none for a digit, one of a record. Blocks may take a slab each. A node is of 33 lines at most.
            let (node, slab) = (33, 1);
            let records = entry.leaf_capacity as u64;
            // The longest key here has five words.
            let record = if K::WHOLE { 3 } else { 2 + 5 };
            let appended = (1..=(record + 1u64).div_ceil(8) + 1).map(|lines| cost(lines, lines.min(2)));
            let grown = (1..=(1 + records * record).div_ceil(8)).flat_map(|lines| [cost(lines + 1, 2), cost(lines + 1 + slab, 2 + slab)]);
            let split = cost(2 + node + 1 + 2 * slab, 2 + 2 * slab);
            return Self {
                insert: appended.chain(grown).collect(),
                insert_lines: if K::WHOLE { 2.0 } else { 2.5 },
                update: vec![cost(1, 1)],
                remove: vec![cost(1, 1)],
                update_without_room: None,
                remove_without_room: None,
                cheapest_split: vec![cost(2, 2)],
                split,
                // The word of the array, and perhaps of the node; a smaller node.
                merge: cost(2 + node + 1 + slab, 2 + 2 + slab),
            };
        }
        if entry.name == "p-art" {
            // Each key has a leaf, of one line here, and a word that links it, perhaps with a node of at most 33 lines. Each block may take a slab.
            let node = 33;
            // A removal changes the word that links the leaf, and perhaps makes a smaller node.
            return Self::of_single_entries(cost(1 + node + 1 + 2, 2 + 2), cost(1 + node + 1 + 1, 1 + 2 + 1));
        }
        if entry.name.starts_with("roart") {
            // The record of an integer, then a word in an array: a fence for each. Or both with all of a new array, or of several below a node of at most 33
            // lines, and the word that leads there. Each block may take a slab.
            let (record, node) = (if K::WHOLE { 1 } else { 0 }, 33);
            let array = (1 + entry.leaf_capacity as u64).div_ceil(8);
            let with_slabs = |lines: u64, fences: u64, slabs: u64| (0..=slabs).map(move |slabs| cost(lines + slabs, fences + slabs));
            let written = (1..=array).flat_map(|lines| with_slabs(record + lines + 1, 2, record + 1));
            return Self {
                insert: with_slabs(record + 1, record + 1, record).chain(written).collect(),
                insert_lines: if K::WHOLE { 4.0 } else { 3.0 },
                update: with_slabs(record + 1, record + 1, record).collect(),
                remove: vec![cost(1, 1)],
                update_without_room: None,
                remove_without_room: None,
                cheapest_split: vec![cost(record + 2, 2)],
                split: cost(record + 2 * array + node + 1 + 3, 2 + 3),
                merge: cost(1 + node + 1 + 1, 1 + 2 + 1),
            };
        }
        if entry.name.starts_with("bztree") {
            // An exchange flushes its descriptor (two lines if it has more than two words), these words twice, and its head in between, with a fence each. A
            // record is flushed with the descriptor. All words of a small leaf are in one line; status and meta words of others are in up to three.
            let (is_small, capacity) = (entry.leaf_capacity == 4, entry.leaf_capacity as u64);
            let exchange = |descriptor: u64, lines: u64| cost(descriptor + 2 * lines + 1, 4);
            let and = |a: Cost, b: Cost| cost(a.lines + b.lines, a.fences + b.fences);
            let at_once = |lines: std::ops::RangeInclusive<u64>, descriptor, record| {
                // The descriptor may take a slab.
                let written = lines.map(|lines| and(exchange(descriptor, lines), cost(record, 0)));
                written.flat_map(|written| [written, and(written, cost(1, 1))]).collect::<Vec<_>>()
            };
            // A node is its words and its counted entries. A leaf is copied after its status is frozen, and the word and the status above are changed.
            let node = (2 + 3 * capacity).div_ceil(8);
            let (slabs, fence) = (cost(4, 4), 2);
            let copy = and(cost(node, 1), and(exchange(2, 3), slabs));
            // A split makes two nodes, a copy of the one above and the record of a fence; a merge makes two nodes. Either may affect this many levels at once.
            let levels = if is_small { 7 } else { 3 };
            let of_levels = |nodes: u64| {
                let level = and(cost(nodes * node + fence, 1), and(exchange(2, 5), slabs));
                cost(levels * level.lines, levels * level.fences)
            };
            let change = and(exchange(2, 3), cost(2, 1));
            // The split of a top that is a leaf into halves below a new top.
            let (half, top) = ((2 + capacity + capacity / 2 * 2).div_ceil(8), (2 + capacity + 2 * 2).div_ceil(8));
            let divided = and(cost(2 * half + top + if K::WHOLE { 0 } else { 1 }, 1), exchange(1, 2));
            let cheapest_split = at_once(if is_small { 1..=1 } else { 2..=2 }, 1, 1).into_iter().map(|insert| and(divided, insert)).collect();
            return Self {
                insert: at_once(1..=if is_small { 1 } else { 2 }, 1, 1),
                insert_lines: if is_small { 5.5 } else { 7.0 },
                update: at_once(1..=if is_small { 1 } else { 3 }, 2, 1),
                remove: at_once(1..=if is_small { 1 } else { 2 }, 1, 0),
                update_without_room: Some(and(of_levels(2), and(copy, change))),
                remove_without_room: Some(and(of_levels(2), and(copy, change))),
                cheapest_split,
                split: and(of_levels(3), change),
                merge: and(of_levels(2), change),
            };
        }
        if entry.name.starts_with("skip") {
            // A node, and the word that links it. The node may take a slab.
            return Self::of_single_entries(cost(2 + 1, 2 + 1), cost(1, 1));
        }
        panic!("no budget for {}", entry.name);
    }

    /// The budget of an index with a leaf for each entry: at least the leaf and the word that links it. Inserts and removals cost at most `split` and `merge`.
    fn of_single_entries(split: Cost, merge: Cost) -> Self {
        let cost = |lines, fences| Cost { lines, fences };
        Self {
            insert: Vec::new(),
            insert_lines: 0.0,
            update: vec![cost(1, 1)],
            remove: Vec::new(),
            update_without_room: None,
            remove_without_room: None,
            cheapest_split: vec![cost(2, 2)],
            split,
            merge,
        }
    }
}

/// An empty pool in memory that counts flushes and fences.
fn counted_pool(size_max: usize) -> Arc<Pool<Hardware>> {
    Pool::anonymous(Hardware::new(Domain::Adr).with_counters(None), PoolOptions { size_max, ..PoolOptions::default() }).expect("memory")
}

fn counters(pool: &Pool<Hardware>) -> &Counters {
    pool.medium().counters().expect("the pool was made with counters")
}

struct Meter<K: Class + ?Sized> {
    pool: Arc<Pool<Hardware>>,
    index: Box<dyn OrderedIndex<K>>,
}

impl<K: Class + ?Sized> Meter<K> {
    /// The cost of `act`, and the number of leaves that it makes.
    fn measure(&self, act: impl FnOnce(&dyn OrderedIndex<K>) -> Result<(), Error>) -> (Cost, i64) {
        let leaves = self.index.stats().leaves as i64;
        let counters = counters(&self.pool);
        counters.reset();
        act(&*self.index).expect("a pool with room");
        let Counts { lines_flushed: lines, fences, .. } = counters.totals();
        (Cost { lines, fences }, self.index.stats().leaves as i64 - leaves)
    }

    /// The offsets of the index's blocks.
    fn blocks(&self) -> BTreeSet<u64> {
        let mut blocks = BTreeSet::new();
        let mut visit = |at, _| Ok(_ = blocks.insert(at));
        self.index.blocks(&mut visit).expect("a sound index");
        blocks
    }
}

/// Inserts, updates and removes `keys` keys in random order, and compares each operation with its budget.
///
/// # Panics
/// If an operation costs more or less than its budget; the message names it.
pub fn budget<K: Class + ?Sized>(entry: &Entry<K, Hardware>, keys: u32) {
    let pool = counted_pool(if cfg!(miri) { 4 << 20 } else { 256 << 20 });
    let meter = Meter { index: entry.create(&pool, crate::ROOT).expect("an empty pool"), pool };
    let budget = Budget::of(entry);
    let mut numbers: Vec<u32> = (1..=keys).collect();
    numbers.shuffle(&mut StdRng::seed_from_u64(0x5eed));
    let value = |key: &K, payload: u64| -> NonZeroU64 { K::value(&meter.pool, key, payload).expect("a pool with room") };
    let exactly = |what: &str, cost: Cost, wanted: Cost| assert_eq!(cost, wanted, "{}, {} keys: {what}", entry.name, K::NAME);
    let at_most = |what: &str, cost: Cost, limit: Cost| {
        assert!(cost.lines <= limit.lines && cost.fences <= limit.fences, "{}, {} keys: {what} costs {cost:?}, at most {limit:?}", entry.name, K::NAME);
    };
    let changed = |what: &str, (cost, leaves): (Cost, i64), (wanted, without_room): (&[Cost], Option<Cost>), blocks: &mut BTreeSet<u64>| match leaves {
        0 if wanted.contains(&cost) => {}
        0 => {
            at_most(what, cost, without_room.unwrap_or_else(|| panic!("{}, {} keys: {what} costs {cost:?}, not one of {wanted:?}", entry.name, K::NAME)));
            let before = std::mem::replace(blocks, meter.blocks());
            assert!(*blocks != before, "{}, {} keys: {what} costs {cost:?}, and no block has come or gone", entry.name, K::NAME);
        }
        _ => {
            at_most("a change that splits", cost, budget.split);
            *blocks = meter.blocks();
        }
    };
    let (mut splits, mut merges) = (0, 0);
    let (mut inserts, mut lines, mut cheapest_split) = (0, 0, None::<Cost>);
    for number in &numbers {
        let key = K::numbered(*number);
        let value = value(key.borrow(), 1);
        let (cost, leaves) = meter.measure(|index| index.insert(key.borrow(), value).map(|_| ()));
        match leaves {
            0 => {
                assert!(budget.insert.contains(&cost), "{}, {} keys: an insert costs {cost:?}, not one of {:?}", entry.name, K::NAME, budget.insert);
                (inserts, lines) = (inserts + 1, lines + cost.lines);
            }
            1 => {
                at_most("an insert that splits", cost, budget.split);
                cheapest_split = cheapest_split.filter(|least| least.lines <= cost.lines).or(Some(cost));
            }
            // Several splits in one operation cost at most as much as separate ones.
            _ => at_most("an insert that splits", cost, Cost { lines: budget.split.lines * leaves as u64, fences: budget.split.fences * leaves as u64 }),
        }
        splits += u32::from(leaves > 0);
        let (cost, _) = meter.measure(|index| index.insert(key.borrow(), value).map(|_| ()));
        exactly("an insert of a key that is there", cost, Cost { lines: 0, fences: 0 });
    }
    let average = lines as f64 / f64::from(inserts.max(1));
    let beside = if entry.name.starts_with("lb") { "; LB+-Tree's theorems: at most 1.31, at least 1.77 without entry moving" } else { "" };
    println!("{}, {} keys: {average:.3} lines of an insert into a leaf with room{beside}; the cheapest split {cheapest_split:?}", entry.name, K::NAME);
    assert!(average <= budget.insert_lines, "{}, {} keys: an insert costs {average} lines, at most {}", entry.name, K::NAME, budget.insert_lines);
    if let Some(cost) = cheapest_split {
        let wanted = &budget.cheapest_split;
        assert!(wanted.contains(&cost), "{}, {} keys: the cheapest split costs {cost:?}, not one of {wanted:?}", entry.name, K::NAME);
    }
    let mut blocks = meter.blocks();
    let update = (&budget.update[..], budget.update_without_room);
    for number in &numbers {
        let key = K::numbered(*number);
        let (second, third) = (value(key.borrow(), 2), value(key.borrow(), 3));
        changed("an update", meter.measure(|index| index.update(key.borrow(), second).map(|_| ())), update, &mut blocks);
        changed("an upsert of a key that is there", meter.measure(|index| index.upsert(key.borrow(), third).map(|_| ())), update, &mut blocks);
        exactly("a lookup", meter.measure(|index| index.get(key.borrow()).map(|_| ())).0, Cost { lines: 0, fences: 0 });
    }
    for direction in [Direction::Forward, Direction::Reverse] {
        let mut found = 0;
        let (cost, _) = meter.measure(|index| {
            index.scan(Bound::Unbounded, direction, &mut |_, _| {
                found += 1;
                ControlFlow::Continue(())
            })
        });
        assert_eq!(found, keys);
        exactly("a scan", cost, Cost { lines: 0, fences: 0 });
    }
    for number in &numbers {
        let key = K::numbered(*number);
        let (cost, leaves) = meter.measure(|index| index.remove(key.borrow()).map(|_| ()));
        if leaves == 0 {
            changed("a removal", (cost, leaves), (&budget.remove, budget.remove_without_room), &mut blocks);
        } else {
            // If the router is rebuilt, several leaves go at once, for at most the cost of this many merges.
            let merged = leaves.unsigned_abs();
            at_most("a removal that merges", cost, Cost { lines: budget.merge.lines * merged, fences: budget.merge.fences * merged });
            blocks = meter.blocks();
        }
        merges += u32::from(leaves < 0);
        exactly("a removal of a key that is not there", meter.measure(|index| index.remove(key.borrow()).map(|_| ())).0, Cost { lines: 0, fences: 0 });
    }
    println!("{}, {} keys: {splits} splits, {merges} merges of {keys} keys", entry.name, K::NAME);
    assert!(!entry.persistent || (splits > 0 && merges > 0), "too few keys to split and merge");
}

/// The most that operations of Ever cost on average: lines that an insert writes, without and with those of leaves that splits make, and lines of leaves that a
/// lookup reads.
const INSERT_LINES: f64 = 1.03;
const INSERT_LINES_WITH_LEAVES: f64 = 1.35;
const LOOKUP_LINES: f64 = 1.05;

/// Inserts `keys` random integers, then as many again, which splits each leaf once on average. Compares the cost of the second half with Ever's promises: the
/// averages, and one fence, or two or three with a split. Then looks up some of the keys.
///
/// # Panics
/// If anything costs more; the message names it.
pub fn averages(entry: &Entry<u64, Hardware>, keys: u32) {
    let pool = counted_pool(256 << 20);
    let index = entry.create(&pool, crate::ROOT).expect("an empty pool");
    let mut random = StdRng::seed_from_u64(0x5eed);
    let mut insert = || {
        let key: u64 = random.random();
        let (lines, fences) = counters(&pool).flushed_and_fenced();
        assert_eq!(index.insert(&key, NonZeroU64::MIN).expect("a pool with room"), None);
        let (lines_after, fences_after) = counters(&pool).flushed_and_fenced();
        (key, Cost { lines: lines_after - lines, fences: fences_after - fences })
    };
    (0..keys).for_each(|_| _ = insert());
    let (mut inserted, mut lines, mut of_leaves, mut splits) = (Vec::new(), 0, 0, 0);
    let leaves = index.stats().leaves;
    for _ in 0..keys {
        let (key, cost) = insert();
        inserted.push(key);
        lines += cost.lines;
        match cost {
            Cost { lines: 1, fences: 1 } => {}
            // The directory entry, and the slot of a key that does not go to the new leaf.
            Cost { lines, fences: 2..=3 } => {
                of_leaves += lines - (cost.fences - 1);
                splits += 1;
            }
            // A split that also takes an extent, whose lines count in full.
            _ => splits += 1,
        }
    }
    assert_eq!(splits, index.stats().leaves - leaves, "a split has the fences of one, and nothing else has");
    let average = |lines: u64| lines as f64 / f64::from(keys);
    let (without, with) = (average(lines - of_leaves), average(lines));
    let looked_up = &inserted[..inserted.len().min(10_000)];
    let read = looked_up.iter().map(|key| lines_read(&pool, || _ = index.get(key))).sum::<usize>() as f64 / looked_up.len() as f64;
    println!("{}: {without:.4} lines an insert, {with:.4} with the {splits} leaves of {keys}; {read:.4} lines a lookup", entry.name);
    assert!(without <= INSERT_LINES, "{}: an insert writes {without} lines besides new leaves, at most {INSERT_LINES}", entry.name);
    assert!(with <= INSERT_LINES_WITH_LEAVES, "{}: an insert writes {with} lines, at most {INSERT_LINES_WITH_LEAVES}", entry.name);
    assert!(!schedule::IS_BUILT_IN || (1.0..=LOOKUP_LINES).contains(&read), "{}: a lookup reads {read} lines, at most {LOOKUP_LINES}", entry.name);
}

/// Notes from which lines of a pool its thread loads words.
struct Reads {
    /// Addresses of the pool's words.
    pool: Range<usize>,
    lines: Mutex<HashSet<usize>>,
}

impl Scheduler for Reads {
    fn before(&self, step: Step, _at: &'static Location<'static>) {
        if let Step::Load(address) = step
            && self.pool.contains(&address)
        {
            self.lines.lock().expect("one thread").insert(address / LINE);
        }
    }
}

/// The number of lines of the pool that `act` reads; 0 in builds that do not record loads.
fn lines_read(pool: &Pool<Hardware>, act: impl FnOnce()) -> usize {
    let first = std::ptr::from_ref(pool.words(Off::<Word>::new(LINE as u64), 1).expect("a header")).addr() - LINE;
    let reads = Arc::new(Reads { pool: first..first + pool.length(), lines: Mutex::default() });
    let scheduled = schedule::enter(Arc::clone(&reads) as Arc<dyn Scheduler>);
    act();
    drop(scheduled);
    reads.lines.lock().expect("one thread").len()
}
