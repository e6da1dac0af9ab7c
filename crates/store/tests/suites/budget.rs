//! The cost of writes: lines flushed and fences. The figures do not depend on the machine.

use everleaf::{Act, Batch, Isolation, Namespace, Options, Store};
use everleaf_pmem::{Domain, Hardware, Pool, PoolOptions};
use std::ops::ControlFlow::{Break, Continue};
use std::sync::Arc;

struct Bench {
    pool: Arc<Pool<Hardware>>,
    store: Store<Hardware>,
    space: Namespace<Hardware>,
}

/// Lines flushed and fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    lines: u64,
    fences: u64,
}

impl Bench {
    /// A store with 64 keys of 8 bytes and values of 20 bytes. A record takes 64 bytes, in one or two lines.
    fn new(index: &str) -> Self {
        Self::in_domain(Domain::Adr, index)
    }

    fn in_domain(domain: Domain, index: &str) -> Self {
        let pool = Pool::anonymous(Hardware::new(domain).with_counters(None), PoolOptions { size_max: 64 << 20, ..PoolOptions::default() }).unwrap();
        let store = Store::on(pool.clone(), &Options { index: index.into(), ..Options::default() }).unwrap();
        let space = store.namespace("space").unwrap();
        (0..64u64).for_each(|n| space.put(&n.to_be_bytes(), &[1; 20]).unwrap());
        Self { pool, store, space }
    }

    fn cost(&self, act: impl FnOnce()) -> Cost {
        let before = self.pool.medium().counters().unwrap().totals();
        act();
        let after = self.pool.medium().counters().unwrap().totals();
        Cost { lines: after.lines_flushed - before.lines_flushed, fences: after.fences - before.fences }
    }

    /// Puts keys together: in a batch, or in a transaction.
    fn write(&self, isolation: Option<Isolation>, keys: impl Iterator<Item = u64>) {
        match isolation {
            None => {
                let mut batch = Batch::default();
                keys.for_each(|n| batch.put(&self.space, &n.to_be_bytes(), &[3; 20]));
                self.store.write(batch).unwrap();
            }
            Some(isolation) => {
                let mut transaction = self.store.begin(isolation).unwrap();
                keys.for_each(|n| transaction.put(&self.space, &n.to_be_bytes(), &[3; 20]).unwrap());
                transaction.commit().unwrap();
            }
        }
    }

    /// The average cost of overwriting the value of each key separately.
    fn put(&self) -> (f64, u64) {
        let costs: Vec<_> = (0..64u64).map(|n| self.cost(|| self.space.put(&n.to_be_bytes(), &[2; 20]).unwrap())).collect();
        assert!(costs.iter().all(|cost| cost.fences == costs[0].fences), "{costs:?}");
        (costs.iter().map(|cost| cost.lines).sum::<u64>() as f64 / 64.0, costs[0].fences)
    }
}

#[test]
fn a_put_costs_its_record_and_the_index_with_snapshots_and_without() {
    for index in ["ever", "isle"] {
        let bench = Bench::new(index);
        let plain = bench.put();
        let snapshot = bench.store.snapshot().unwrap();
        let versioned = bench.put();
        drop(snapshot);
        assert_eq!((plain.1, versioned.1), (2, 2), "{index}");
        assert!(plain.0 <= 3.0 && (versioned.0 - plain.0).abs() <= 0.5, "{index}: {plain:?} {versioned:?} lines");
        let delete = bench.cost(|| assert!(bench.space.delete(&5u64.to_be_bytes()).unwrap()));
        assert!(delete.fences <= 3, "{index}: {delete:?}: a tombstone, and its removal");
    }
}

/// The cost of an entry that is changed, and of one that is removed, in an index whose name begins so: the index's own budget.
const ENTRIES: [(&str, Cost, Cost); 19] = [
    ("ever", Cost { lines: 1, fences: 1 }, Cost { lines: 1, fences: 1 }),
    ("isle", Cost { lines: 1, fences: 1 }, Cost { lines: 2, fences: 1 }),
    ("fp", Cost { lines: 2, fences: 2 }, Cost { lines: 1, fences: 1 }),
    // A node, its log and its header, besides the change.
    ("lcb-128", Cost { lines: 4, fences: 4 }, Cost { lines: 4, fences: 4 }),
    ("lcb", Cost { lines: 10, fences: 4 }, Cost { lines: 10, fences: 4 }),
    // The end of the old entry, a new one, the version.
    ("cdds", Cost { lines: 3, fences: 2 }, Cost { lines: 2, fences: 2 }),
    ("lb", Cost { lines: 1, fences: 1 }, Cost { lines: 1, fences: 1 }),
    ("nv", Cost { lines: 2, fences: 2 }, Cost { lines: 2, fences: 2 }),
    ("wb-bitmap", Cost { lines: 1, fences: 1 }, Cost { lines: 1, fences: 1 }),
    ("wb", Cost { lines: 1, fences: 1 }, Cost { lines: 3, fences: 3 }),
    ("fast-fair", Cost { lines: 1, fences: 1 }, Cost { lines: 1, fences: 1 }),
    ("circ", Cost { lines: 1, fences: 1 }, Cost { lines: 2, fences: 1 }),
    // Each key has an array of its own, which is removed with it.
    ("pf-4", Cost { lines: 1, fences: 1 }, Cost { lines: 2, fences: 2 }),
    ("pf", Cost { lines: 1, fences: 1 }, Cost { lines: 1, fences: 1 }),
    ("p-art", Cost { lines: 1, fences: 1 }, Cost { lines: 1, fences: 1 }),
    ("roart", Cost { lines: 1, fences: 1 }, Cost { lines: 1, fences: 1 }),
    // A record, flushed with a descriptor of two lines, its words twice, and its head; for a removal, no record and a descriptor of one line.
    ("bztree-4", Cost { lines: 6, fences: 4 }, Cost { lines: 4, fences: 4 }),
    ("bztree", Cost { lines: 8, fences: 4 }, Cost { lines: 6, fences: 4 }),
    ("skip", Cost { lines: 1, fences: 1 }, Cost { lines: 1, fences: 1 }),
];

/// Each structure, in the sizes for checking and in its own. Others differ in when they divide leaves; the conformance suites check their costs.
fn indexes() -> impl Iterator<Item = (&'static str, Cost, Cost)> {
    const OTHERS: [&str; 10] = ["-256", "-512", "-768", "-1k", "-2k", "-4k", "-published", "-htm", "-packed", "-olc"];
    let is_chosen = |name: &str| ["-128", "-192", "cdds-256"].iter().any(|small| name.contains(small)) || !OTHERS.iter().any(|other| name.ends_with(other));
    everleaf_index::registry::<[u8], Hardware>().into_iter().filter(move |entry| entry.persistent && is_chosen(entry.name)).map(|entry| {
        let (_, change, removal) = ENTRIES.into_iter().find(|(name, ..)| entry.name.starts_with(name)).expect("every index has a budget");
        (entry.name, change, removal)
    })
}

/// A put costs its record (a line and a fence) plus its entry, with and without snapshots. A plain delete costs only the entry.
#[test]
fn a_put_costs_its_record_and_the_entry_on_every_index() {
    for (index, change, removal) in indexes() {
        let bench = Bench::new(index);
        let put = Cost { lines: 1 + change.lines, fences: 1 + change.fences };
        // An index that appends changes may also span lines, and divides leaves that are full of them. Small leaves may have no room.
        let usual = |cost: &Cost| if index.starts_with("nv") { cost.fences == put.fences && cost.lines >= put.lines } else { *cost == put };
        let puts = || (0..64u64).map(|n| bench.cost(|| bench.space.put(&n.to_be_bytes(), &[2; 20]).unwrap())).collect::<Vec<_>>();
        for is_versioned in [false, true] {
            let snapshot = is_versioned.then(|| bench.store.snapshot().unwrap());
            let costs = puts();
            drop(snapshot);
            let unusual: Vec<_> = costs.iter().filter(|cost| !usual(cost)).collect();
            // A change takes room until a leaf is copied, or the later entries are moved.
            if !index.starts_with("bztree") && !index.starts_with("cdds") {
                assert!(unusual.len() <= usize::from(index.starts_with("fp-192")), "{index}, {is_versioned}: {unusual:?}, not {put:?}");
                assert!(costs.iter().filter(|cost| cost.lines <= put.lines + 1).count() >= 56, "{index}, {is_versioned}: {costs:?}, about {put:?}");
            }
            assert_eq!(costs.iter().map(|cost| cost.lines).min(), Some(put.lines), "{index}, {is_versioned}");
        }
        // Without a snapshot, or soon after one. Some indexes move the rest of a leaf to the next one, or the later entries.
        let bench = Bench::new(index);
        let deletes = [5u64, 40, 63].map(|n| bench.cost(|| assert!(bench.space.delete(&n.to_be_bytes()).unwrap())));
        assert!(deletes.contains(&removal), "{index}: {deletes:?}, not {removal:?}");
        let differ = ["isle-128", "fast-fair", "circ", "lcb", "cdds", "bztree"].iter().any(|name| index.starts_with(name));
        assert!(differ || deletes.iter().all(|cost| *cost == removal), "{index}: {deletes:?}, not {removal:?}");
    }
}

/// A put waits for the device once, for record and entry; in an index that does not publish them together, once for each.
#[test]
fn a_put_waits_for_a_device_once() {
    // BzTree also waits for the descriptor, twice for its words, and sometimes for the copy of a leaf; CDDS waits for each entry that it moves.
    for (index, ..) in indexes().filter(|(index, ..)| !index.starts_with("bztree") && !index.starts_with("cdds")) {
        let waits = match index {
            index if index.starts_with("ever") => 1,
            // This index makes an entry durable before counting it.
            index if index.starts_with("nv") => 3,
            // This one does so with image, log and end of the log.
            index if index.starts_with("lcb") => 5,
            _ => 2,
        };
        let bench = Bench::in_domain(Domain::Msync, index);
        let plain = bench.put();
        let snapshot = bench.store.snapshot().unwrap();
        let versioned = bench.put();
        drop(snapshot);
        assert_eq!((plain.1, versioned.1), (waits, waits), "{index}");
    }
}

#[test]
fn a_plain_delete_writes_no_record() {
    for (index, lines) in [("ever", 1), ("isle", 2)] {
        let bench = Bench::new(index);
        let delete = bench.cost(|| assert!(bench.space.delete(&5u64.to_be_bytes()).unwrap()));
        assert_eq!(delete.fences, 1, "{index}");
        assert!(delete.lines <= lines, "{index}: {delete:?}: those of the index");
    }
}

/// Batches of keys that exist. NV-Tree, which appends new entries, has its own budget.
#[test]
fn a_batch_has_four_fences_however_long_it_is() {
    for index in ["ever", "isle", "lb", "wb", "wb-bitmap", "fp"] {
        for count in [2u64, 10, 33, 1_000] {
            for isolation in [None, Some(Isolation::Snapshot), Some(Isolation::Serializable)] {
                let bench = Bench::new(index);
                let (lines, _) = bench.put();
                let log_lines = (3 + 2 * count).div_ceil(8) + 1;
                let write = || bench.write(isolation, 0..count);
                // The first write needs leaves for its keys and a slab for its log; the second a slab for records, while the replaced ones are being freed.
                (0..2).for_each(|_| write());
                bench.pool.collect();
                let cost = bench.cost(write);
                assert_eq!(cost.fences, 4, "{index}: {count} {isolation:?}");
                // The slot counts twice: for the log, and for the commit.
                let bound = count as f64 * (lines + 0.5) + (log_lines + 2) as f64;
                assert!(cost.lines as f64 <= bound, "{index}: {count} {isolation:?}: {cost:?}, at most {bound} lines");
            }
        }
        let bench = Bench::new(index);
        let one = bench.cost(|| bench.write(None, 5..6));
        assert_eq!(one.fences, if index == "fp" { 3 } else { 2 }, "{index}: one write is a write");
    }
}

/// Number of writes whose leaves an index holds together.
const STAGED_MAX: u64 = 256;

/// Indexes, and how often they fence for a stage of new keys before publishing them.
const STAGES: [(&str, u64); 7] = [("ever", 0), ("isle", 0), ("lb", 1), ("fp", 1), ("nv", 1), ("wb", 2), ("wb-bitmap", 1)];

/// If the keys find room in their leaves.
#[test]
fn a_batch_of_new_keys_fences_as_often_as_one_of_them() {
    for (index, stage) in STAGES {
        for count in [2u64, 5] {
            let bench = Bench::new(index);
            let keys = || (0..count).map(|n| n * 13);
            let delete = || keys().for_each(|n| assert!(bench.space.delete(&n.to_be_bytes()).unwrap()));
            // As below: warms up slabs.
            for _ in 0..2 {
                delete();
                bench.write(None, keys());
            }
            delete();
            bench.pool.collect();
            let cost = bench.cost(|| bench.write(None, keys()));
            assert_eq!(cost.fences, 4 + stage, "{index}: {count}: {cost:?}");
        }
    }
}

/// A division on the way ends a stage. The key that needed the room is inserted alone, unless the division includes it: this many fences each.
#[test]
fn a_batch_of_new_keys_fences_for_stages_and_divisions() {
    for ((index, stage), division) in STAGES.into_iter().zip([2, 2, 3, 7, 3, 9, 7]) {
        for count in [33u64, 300, 1_000] {
            let bench = Bench::new(index);
            let leaves = || bench.space.stats().unwrap().leaves;
            let before = leaves();
            let cost = bench.cost(|| bench.write(None, (0..count).map(|n| n << 32 | 7)));
            // Slabs for the log, for records and for leaves.
            let bound = 4 + stage * count.div_ceil(STAGED_MAX) + division * (leaves() - before) + 4;
            assert!(cost.fences <= bound, "{index}: {count}: {cost:?}, at most {bound} fences");
        }
    }
}

/// A batch pays as much for the leaves that it divides as single puts of the same keys, apart from two fences for each put: one for the record and one for the
/// entry. The latter is missing where the new leaf contains the entry from the start.
#[test]
fn a_batch_of_new_keys_pays_for_the_leaves_that_it_divides() {
    for count in [33u64, 1_000] {
        // Between the existing keys, and after them.
        let keys = || (0..count).map(|n| n << 32 | 7);
        let alone = Bench::new("ever");
        let together = Bench::new("ever");
        let leaves = |bench: &Bench| bench.space.stats().unwrap().leaves;
        let before = leaves(&alone);
        let structure = alone.cost(|| keys().for_each(|n| alone.space.put(&n.to_be_bytes(), &[3; 20]).unwrap())).fences - 2 * count;
        let cost = together.cost(|| together.write(None, keys()));
        let divided = leaves(&together) - before;
        assert!(leaves(&alone) == leaves(&together) && divided >= count / 56, "{} and {} leaves", leaves(&alone), leaves(&together));
        // The log may take a slab.
        assert!((4 + structure..=5 + structure + divided).contains(&cost.fences), "{count}: {cost:?}, {structure} for {divided} leaves");
    }
}

/// Repeated keys, and new keys beside existing ones, must not cause another wait for the device.
#[test]
fn writes_that_wait_for_a_device_share_more_fences() {
    for (domain, fences) in [(Domain::Adr, 8 + 16), (Domain::Msync, 2)] {
        let bench = Bench::in_domain(domain, "ever");
        let keys: Vec<_> = (0..512u64).map(|n| (n * 37 % 70).to_be_bytes()).collect();
        let pairs: Vec<_> = keys.iter().map(|key| (key.as_slice(), &[4; 20][..])).collect();
        // Six are new. The first round takes slabs for the records.
        bench.space.put_many(&pairs).unwrap();
        (64..70u64).for_each(|n| assert!(bench.space.delete(&n.to_be_bytes()).unwrap()));
        bench.pool.collect();
        let cost = bench.cost(|| bench.space.put_many(&pairs).unwrap());
        assert_eq!((cost.fences, bench.space.count()), (fences, 70), "{domain}: {cost:?}");
        let keys: Vec<_> = keys.iter().map(<[u8; 8]>::as_slice).collect();
        assert!(keys.iter().all(|key| bench.space.get(key).unwrap().as_deref() == Some(&[4; 20])));
        let merges = 3;
        let cost = bench.cost(|| assert_eq!(bench.space.delete_many(&keys[..70]).unwrap(), 70));
        assert!(cost.fences <= fences + 2 * merges, "{domain}: {cost:?}");
    }
}

/// Regression: each expiring entry waited for the device separately.
#[test]
fn an_import_of_what_expires_waits_for_a_device_as_often_as_any_other() {
    let [lasting, expiring] = [None, Some(u64::MAX)].map(|expiry_ms| {
        let source = Bench::in_domain(Domain::Adr, "ever");
        (0..64u64).for_each(|n| match expiry_ms {
            Some(expiry_ms) => source.space.put_until(&n.to_be_bytes(), &[2; 20], expiry_ms).unwrap(),
            None => source.space.put(&n.to_be_bytes(), &[2; 20]).unwrap(),
        });
        let (stream, _) = source.store.snapshot().unwrap().export(&[], Vec::new()).unwrap().finish().unwrap();
        let to = Bench::in_domain(Domain::Msync, "ever");
        to.cost(|| _ = to.store.import(stream.as_slice()).unwrap().finish().unwrap()).fences
    });
    assert!(expiring <= lasting + 2, "{expiring} fences, not {lasting}");
}

/// Mixed reads, writes and removals in one group cost the same as the writes alone: a fence for records, and one for every 32 entries.
#[test]
fn acts_of_all_kinds_share_their_fences() {
    for (domain, fences, fences_of_one) in [(Domain::Adr, 1 + 2, 2), (Domain::Msync, 1, 1)] {
        let bench = Bench::in_domain(domain, "ever");
        let keys: Vec<_> = (0..64u64).map(u64::to_be_bytes).collect();
        let acts = |count: usize| {
            let act = |n: usize| if n.is_multiple_of(3) { Act::Get } else { Act::Put(&[5; 20]) };
            keys[..count].iter().enumerate().map(|(n, key)| (key.as_slice(), if n % 16 == 4 { Act::Delete } else { act(n) })).collect::<Vec<_>>()
        };
        let run = |acts: &[(&[u8], Act<'_>)]| {
            let mut found = Vec::new();
            bench.space.act_many(acts, &mut found, |_, met| Ok(if met.is_some() { Continue(()) } else { Break(()) })).unwrap();
            assert_eq!(found.len(), acts.len(), "{domain}");
            found.into_iter().filter(|found| *found.as_ref().unwrap()).count()
        };
        // Takes slabs for the records. Removed keys are set again, so that no leaf gets sparse.
        run(&acts(60));
        keys.iter().for_each(|key| bench.space.put(key, &[1; 20]).unwrap());
        bench.pool.collect();
        let cost = bench.cost(|| assert_eq!(run(&acts(60)), 19 + 4, "{domain}"));
        assert_eq!((cost.fences, bench.space.count()), (fences, 64 - 4), "{domain}: {cost:?}");
        // A key written in one group is read in another one, and found.
        let key = keys[7].as_slice();
        let cost = bench.cost(|| assert_eq!(run(&[(key, Act::Put(b"1")), (key, Act::Get), (key, Act::Put(b"2")), (key, Act::Get)]), 2));
        assert_eq!((cost.fences, bench.space.get(key).unwrap().as_deref()), (2 * fences_of_one, Some(&b"2"[..])), "{domain}: {cost:?}");
        let cost = bench.cost(|| assert_eq!(run(&[(key, Act::Get), (keys[8].as_slice(), Act::Get)]), 2));
        assert_eq!(cost, Cost { lines: 0, fences: 0 }, "{domain}");
        // A long read must not block concurrent writers for its whole duration.
        bench.space.put(b"large", &[6; 150 << 10]).unwrap();
        let large = (&b"large"[..], Act::Get);
        let put = |n: usize| (keys[n].as_slice(), Act::Put(&[7; 20][..]));
        let cost = bench.cost(|| assert_eq!(run(&[large, put(9), large, put(10)]), 2));
        assert_eq!(cost.fences, 2 * fences_of_one, "{domain}: {cost:?}");
    }
}

/// One fence covers all tombstones that are removed from the index; in indexes other than Ever, a fence per removal.
#[test]
fn deletes_share_their_fences() {
    for (index, stage) in [("ever", 0), ("isle", 1), ("lb", 2), ("fp", 2), ("wb", 3), ("wb-bitmap", 2)] {
        let keys: Vec<_> = (0..64u64).map(u64::to_be_bytes).collect();
        let keys: Vec<_> = keys.iter().map(<[u8; 8]>::as_slice).collect();
        let bench = Bench::new(index);
        let mut batch = Batch::default();
        keys[..20].iter().for_each(|key| batch.delete(&bench.space, key));
        let cost = bench.cost(|| bench.store.write(batch).unwrap());
        // A slab for the log, one for tombstones; merges of leaves.
        assert!((5 + stage..=10 + stage).contains(&cost.fences), "{index}: {cost:?}");
        let cost = bench.cost(|| assert_eq!(bench.space.delete_many(&keys[20..40]).unwrap(), 20));
        assert!((1..=4 + stage).contains(&cost.fences), "{index}: {cost:?}");
        let snapshot = bench.store.snapshot().unwrap();
        let cost = bench.cost(|| assert_eq!(bench.space.delete_many(&keys[10..60]).unwrap(), 20));
        assert!((2..=4 + stage).contains(&cost.fences), "{index}: {cost:?}: tombstones");
        assert_eq!((bench.space.count(), snapshot.get(&bench.space, keys[45]).unwrap().is_some()), (4, true));
    }
}
