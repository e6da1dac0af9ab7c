//! Readers of Ever do not wait for inserts, including splits. Whenever an insert is about to store to the pool, to flush or to fence, a reader looks up all
//! keys, and scans all of them in order, and must not be blocked.
//!
//! The only waits left are for stores to DRAM under latches of a leaf and of router nodes, under which nothing stores to the pool, flushes or fences.
//!
//! Where writers wait for a device, readers do not wait for updates and removals either, alone or in batches. Nowhere do they wait for merges of leaves.

use everleaf_conformance::Class;
use everleaf_index::{Direction, Listed, OrderedIndex, Write, registry};
use everleaf_pmem::schedule::{self, Scheduler, Step};
use everleaf_pmem::{Crash, CrashOptions, Hardware, Memory, Off, Pool, PoolOptions, Word};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::borrow::Borrow;
use std::num::NonZeroU64;
use std::ops::{Bound, ControlFlow, Range};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

const SIZE_MAX: usize = 8 << 20;

fn options() -> PoolOptions {
    PoolOptions { size_max: SIZE_MAX, ..PoolOptions::default() }
}

/// Keys, with the value of each before and after a change.
type Changes<K> = Vec<(<K as ToOwned>::Owned, [Option<NonZeroU64>; 2])>;

/// Reads while its thread writes.
struct Onlooker<K: Class + ?Sized> {
    index: Arc<dyn OrderedIndex<K>>,
    /// Addresses of the pool's words.
    pool: Range<usize>,
    /// Entries that are there, and stay.
    there: Mutex<Vec<(K::Owned, NonZeroU64)>>,
    /// The keys of the current change, with their values before and after.
    changing: Mutex<Changes<K>>,
    is_looking: AtomicBool,
    looks: AtomicU32,
    /// How many readings have found all new values of a change.
    foresights: AtomicU32,
}

impl<K: Class + ?Sized> Onlooker<K> {
    fn look(&self) {
        let mut expected = self.there.lock().unwrap().clone();
        let get = |key: &K::Owned| self.index.get(key.borrow()).unwrap();
        assert!(expected.iter().all(|(key, value)| get(key) == Some(*value)), "a key is not found");
        let mut is_done = true;
        for (key, sides) in self.changing.lock().unwrap().iter() {
            let found = get(key);
            assert!(sides.contains(&found), "{found:?} is found, of {sides:?}");
            is_done &= found == sides[1];
            expected.extend(found.map(|value| (key.clone(), value)));
        }
        self.foresights.fetch_add(is_done.into(), Relaxed);
        expected.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for direction in [Direction::Forward, Direction::Reverse] {
            let mut found = Vec::new();
            let scanned = self.index.scan(Bound::Unbounded, direction, &mut |key, value| {
                found.push((key.to_owned(), value));
                ControlFlow::Continue(())
            });
            scanned.unwrap();
            if direction == Direction::Reverse {
                found.reverse();
            }
            assert!(found == expected, "a scan shows {found:?}, not {expected:?}");
        }
    }
}

impl<K: Class + ?Sized> Scheduler for Onlooker<K> {
    fn before(&self, step: Step, at: &'static Location<'static>) {
        if self.is_looking.load(Relaxed) {
            assert!(step != Step::Wait, "a reader waits at {at} for an insert");
            return;
        }
        let concerns_the_pool = match step {
            Step::Store(address, _) => self.pool.contains(&address),
            Step::Flush(..) | Step::Fence => true,
            _ => false,
        };
        if concerns_the_pool {
            self.is_looking.store(true, Relaxed);
            self.look();
            self.is_looking.store(false, Relaxed);
            self.looks.fetch_add(1, Relaxed);
        }
    }
}

impl<K: Class + ?Sized> Onlooker<K> {
    /// An onlooker at an empty index of that pool.
    fn of<M: Listed>(name: &str, pool: &Arc<Pool<M>>) -> Arc<Self> {
        let entry = registry::<K, M>().into_iter().find(|entry| entry.name == name).unwrap();
        let index: Arc<dyn OrderedIndex<K>> = entry.create(pool, "index").unwrap().into();
        let first = std::ptr::from_ref(pool.words(Off::<Word>::new(64), 1).unwrap()).addr() - 64;
        let (there, changing, pool_words) = (Mutex::default(), Mutex::default(), first..first + SIZE_MAX);
        let (is_looking, looks, foresights) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
        Arc::new(Self { index, pool: pool_words, there, changing, is_looking, looks, foresights })
    }

    /// Runs `write` and reads during it; `changing` says what it changes. Returns the number of readings.
    fn watch(self: &Arc<Self>, changing: Changes<K>, write: impl FnOnce(&dyn OrderedIndex<K>)) -> u32 {
        let before = self.looks.load(Relaxed);
        self.there.lock().unwrap().retain(|(key, _)| changing.iter().all(|(other, _)| other != key));
        *self.changing.lock().unwrap() = changing;
        let scheduled = schedule::enter(Arc::clone(self) as Arc<dyn Scheduler>);
        write(&*self.index);
        drop(scheduled);
        let changed = std::mem::take(&mut *self.changing.lock().unwrap());
        self.there.lock().unwrap().extend(changed.into_iter().filter_map(|(key, [_, value])| Some((key, value?))));
        self.looks.load(Relaxed) - before
    }
}

/// Inserts this many keys in random order while an onlooker reads.
fn look_on<K: Class + ?Sized>(name: &str, keys: u32) {
    let pool = Pool::anonymous(Hardware::page_cache(), options()).unwrap();
    let onlooker = Onlooker::<K>::of(name, &pool);
    let mut numbers: Vec<u32> = (1..=keys).collect();
    numbers.shuffle(&mut StdRng::seed_from_u64(0x5eed));
    let (mut splits, mut looks) = (0, 0);
    for number in numbers {
        let key = K::numbered(number);
        let value = K::value(&pool, key.borrow(), u64::from(number)).unwrap();
        let leaves = onlooker.index.stats().leaves;
        let looked = onlooker.watch(vec![(key.clone(), [None, Some(value)])], |index| assert_eq!(index.insert(key.borrow(), value).unwrap(), None));
        if onlooker.index.stats().leaves > leaves {
            splits += 1;
            looks += looked;
        }
    }
    onlooker.index.check().unwrap();
    println!("{name}, {} keys: {looks} looks in {splits} splits, {} in all", K::NAME, onlooker.looks.load(Relaxed));
    assert!(splits >= 3 && looks > splits * 8, "{looks} looks in {splits} splits");
}

/// Updates and removes keys, one by one and several at once, on a medium that waits for a device.
fn look_on_changes<K: Class + ?Sized>() {
    let memory = Memory::new(SIZE_MAX).unwrap();
    let life = Crash::new(&memory).live(CrashOptions { awaits_device: true, ..CrashOptions::default() });
    life.unwatch();
    let pool = Pool::create_in(Arc::clone(&memory), life.medium(), options()).unwrap();
    let onlooker = Onlooker::<K>::of("ever", &pool);
    let value = |number: u32, round: u32| K::value(&pool, K::numbered(number).borrow(), u64::from(round << 16 | number)).unwrap();
    let insert = |number: u32| (K::numbered(number), value(number, 1));
    let all: Vec<_> = (1..=120).map(insert).collect();
    let writes: Vec<(&K, Write)> = all.iter().map(|(key, value)| (key.borrow(), Write::Insert(*value))).collect();
    onlooker.index.apply(&writes, &mut Vec::new()).unwrap();
    onlooker.there.lock().unwrap().clone_from(&all);
    let change = |number: u32, new: Option<NonZeroU64>| (K::numbered(number), [Some(all[number as usize - 1].1), new]);
    let mut looks = Vec::new();
    for number in [7, 60, 101] {
        let (key, new) = (K::numbered(number), value(number, 2));
        looks.push(onlooker.watch(vec![change(number, Some(new))], |index| assert!(index.upsert(key.borrow(), new).unwrap().is_some())));
        let key = K::numbered(number + 1);
        looks.push(onlooker.watch(vec![change(number + 1, None)], |index| assert!(index.remove(key.borrow()).unwrap().is_some())));
    }
    for numbers in [[10, 11, 12, 90], [20, 50, 80, 110]] {
        let changing: Vec<_> = numbers.iter().map(|number| change(*number, (number % 4 != 0).then(|| value(*number, 3)))).collect();
        let write = |(_, [_, new]): &(_, [Option<NonZeroU64>; 2])| new.map_or(Write::Remove, Write::Update);
        let keys: Vec<_> = changing.iter().map(|(key, _)| key.clone()).collect();
        let writes: Vec<(&K, Write)> = keys.iter().map(Borrow::borrow).zip(changing.iter().map(write)).collect();
        let mut returned = Vec::new();
        looks.push(onlooker.watch(changing, |index| index.apply(&writes, &mut returned).unwrap()));
        assert!(returned.iter().all(Option::is_some));
    }
    let foresights = onlooker.foresights.load(Relaxed);
    assert!(foresights as usize >= looks.len(), "not each change is seen as a whole before its leaf is latched: {foresights}");
    onlooker.look();
    onlooker.index.check().unwrap();
    println!("changes of {} keys: looks {looks:?}", K::NAME);
    assert!(looks.iter().all(|looks| *looks >= 3), "{looks:?}");
}

/// Removes all keys in their order on a medium that waits for a device, so that leaves merge.
fn look_on_merges<K: Class + ?Sized>(name: &str, keys: u32) {
    let memory = Memory::new(SIZE_MAX).unwrap();
    let life = Crash::new(&memory).live(CrashOptions { awaits_device: true, ..CrashOptions::default() });
    life.unwatch();
    let pool = Pool::create_in(Arc::clone(&memory), life.medium(), options()).unwrap();
    let onlooker = Onlooker::<K>::of(name, &pool);
    let all: Vec<_> = (1..=keys).map(|number| (K::numbered(number), K::value(&pool, K::numbered(number).borrow(), number.into()).unwrap())).collect();
    all.iter().for_each(|(key, value)| assert_eq!(onlooker.index.insert(key.borrow(), *value).unwrap(), None));
    onlooker.there.lock().unwrap().clone_from(&all);
    let (mut merges, mut looks) = (0, 0);
    for (key, value) in &all {
        let leaves = onlooker.index.stats().leaves;
        let looked = onlooker.watch(vec![(key.clone(), [Some(*value), None])], |index| assert!(index.remove(key.borrow()).unwrap().is_some()));
        if onlooker.index.stats().leaves < leaves {
            merges += 1;
            looks += looked;
        }
    }
    onlooker.index.check().unwrap();
    println!("{name}, {} keys: {looks} looks in {merges} merges", K::NAME);
    assert!(merges >= 3 && looks > merges * 4 && onlooker.index.stats().leaves == 1, "{looks} looks in {merges} merges");
}

#[test]
fn readers_of_ever_do_not_wait_for_merges() {
    if schedule::IS_BUILT_IN {
        look_on_merges::<u64>("ever-64", 40);
        look_on_merges::<[u8]>("ever-64", 40);
        look_on_merges::<u64>("ever", 400);
        look_on_merges::<[u8]>("ever", 400);
    }
}

#[test]
fn readers_of_ever_do_not_wait_for_inserts() {
    if !schedule::IS_BUILT_IN {
        return;
    }
    look_on::<u64>("ever-64", 40);
    look_on::<[u8]>("ever-64", 40);
    if !cfg!(miri) {
        look_on::<u64>("ever", 240);
        look_on::<[u8]>("ever", 240);
    }
}

#[test]
fn readers_of_ever_do_not_wait_for_who_waits_for_a_device() {
    if schedule::IS_BUILT_IN {
        look_on_changes::<u64>();
        look_on_changes::<[u8]>();
    }
}
