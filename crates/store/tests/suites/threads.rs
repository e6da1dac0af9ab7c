//! Many threads on one store. Bounded numbers of operations, no clocks; seeds are fixed and differ per thread.

use everleaf::{Act, Batch, Change, Direction, Domain, Error, Found, Isolation, Namespace, Options, Snapshot, Store};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::cell::RefCell;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, mpsc};
use std::time::Duration;

const INDEXES: [&str; 2] = ["ever", "isle-128"];
const THREADS: u64 = 4;

fn store(index: &str) -> Store {
    Store::anonymous(Options { index: index.into(), size_max: 512 << 20, ..Options::default() }).unwrap()
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

fn read(space: &Namespace, key: &[u8]) -> Option<u64> {
    space.get(key).unwrap().as_deref().map(number)
}

#[test]
fn no_increment_is_lost() {
    const PER_THREAD: u64 = 5_000;
    for index in INDEXES {
        let store = store(index);
        let space = store.namespace("counters").unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let space = &space;
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(thread);
                    for _ in 0..PER_THREAD {
                        let key = [random.random_range(0..5u8)];
                        let add = |old: Option<&[u8]>| Change::Put((old.map_or(0, number) + 1).to_le_bytes().to_vec());
                        space.modify(&key, add).unwrap();
                    }
                });
            }
        });
        let sum: u64 = (0..5u8).map(|key| read(&space, &[key]).unwrap_or(0)).sum();
        assert_eq!(sum, THREADS * PER_THREAD, "{index}");
        assert!(store.verify().unwrap().is_sound());
    }
}

/// A group that writes and then reads, and one that reads and then writes, must not miss each other; and a group that reads and then writes must not see its
/// own later writes. All keys differ, so each group reads before it writes anything.
#[test]
fn what_a_group_reads_is_read_in_its_place() {
    const ROUNDS: u32 = 5_000;
    for index in INDEXES {
        let store = store(index);
        let space = store.namespace("space").unwrap();
        let barrier = Barrier::new(2);
        let play = |own: [u8; 2], others: [u8; 2]| {
            let round = |round: u32| {
                let key = |letter: u8| [&[letter][..], &round.to_be_bytes()].concat();
                let [early, late, earlier, later] = [own[0], own[1], others[0], others[1]].map(key);
                let acts = [(&later[..], Act::Get), (&early[..], Act::Put(b"x")), (&earlier[..], Act::Get), (&late[..], Act::Put(b"x"))];
                let mut found = Vec::new();
                barrier.wait();
                space.act_many(&acts, &mut found, |_, _| Ok(ControlFlow::Continue(()))).unwrap();
                (*found[0].as_ref().unwrap(), *found[2].as_ref().unwrap())
            };
            (0..ROUNDS).map(round).collect::<Vec<_>>()
        };
        let (ours, theirs) = std::thread::scope(|scope| {
            let theirs = scope.spawn(|| play(*b"bd", *b"ac"));
            (play(*b"ac", *b"bd"), theirs.join().unwrap())
        });
        for (round, ((our_late, our_early), (their_late, their_early))) in ours.into_iter().zip(theirs).enumerate() {
            assert!(our_early || their_early, "{index}: neither has seen what the other wrote before, in round {round}");
            assert!(!(our_late && their_late), "{index}: both have seen what the other wrote after, in round {round}");
        }
    }
}

/// Regression: they waited, from before the read until their writes were durable.
#[test]
fn groups_that_read_the_same_key_do_not_wait_for_each_other() {
    let store = store("ever");
    let space = store.namespace("space").unwrap();
    let (told, met) = mpsc::channel();
    let both_have = std::thread::scope(|scope| {
        let begin = |own: &'static [u8]| {
            let (let_go, go) = mpsc::channel::<()>();
            let (space, told) = (&space, told.clone());
            scope.spawn(move || {
                let visit = |_, _: Option<Found<'_>>| {
                    told.send(()).unwrap();
                    // Until all senders are gone.
                    go.recv().unwrap_err();
                    Ok(ControlFlow::Continue(()))
                };
                space.act_many(&[(b"config", Act::Get), (own, Act::Put(b"x"))], &mut Vec::new(), visit).unwrap();
            });
            let_go
        };
        let _both = [begin(b"a"), begin(b"b")];
        [(); 2].iter().all(|()| met.recv_timeout(Duration::from_secs(30)).is_ok())
    });
    assert!(both_have, "one has waited for the other");
}

/// Every batch writes its number to all keys of all namespaces, or removes them. If a reader reads one key and then another, the second must be at least as
/// new.
#[test]
fn a_reader_never_sees_half_a_batch() {
    const BATCHES: u64 = 10_000;
    for index in INDEXES {
        let store = store(index);
        let spaces: Vec<_> = (0..2).map(|i| store.namespace(&format!("space {i}")).unwrap()).collect();
        let places: Vec<_> = spaces.iter().flat_map(|space| [&b"a"[..], b"b"].map(|key| (space, key))).collect();
        let write = |n: u64| {
            let mut batch = Batch::default();
            places.iter().for_each(|(space, key)| batch.put(space, key, &n.to_le_bytes()));
            store.write(batch).unwrap();
        };
        write(0);
        let done = AtomicBool::new(false);
        let reads = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (places, done, reads) = (&places, &done, &reads);
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(thread);
                    let mut newest = 0;
                    while !done.load(Ordering::Relaxed) {
                        let (space, key) = places[random.random_range(0..places.len())];
                        let mut seen = read(space, key).expect("the key is always there");
                        if random.random_bool(0.1) {
                            space
                                .scan(Bound::Included(key), Direction::Forward, |_, value| {
                                    seen = number(value);
                                    ControlFlow::Break(())
                                })
                                .unwrap();
                        }
                        assert!(seen >= newest, "{seen} in {} {key:?} after {newest} was seen elsewhere", space.name());
                        newest = seen;
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            (1..=BATCHES).for_each(write);
            done.store(true, Ordering::Relaxed);
        });
        assert!(places.iter().all(|(space, key)| read(space, key) == Some(BATCHES)), "{index}");
        assert!(reads.into_inner() > 0);
    }
}

/// Batches of two keys each remove one half of a pair and write the other: at any time exactly one of the two is there. Readers use single reads: a reader that
/// finds the left key absent must find the right one if no batch came between, which the number in the third key shows.
#[test]
fn a_batch_moves_a_key_without_losing_it() {
    const MOVES: u64 = 5_000;
    for index in INDEXES {
        let store = store(index);
        let (left, right) = (store.namespace("left").unwrap(), store.namespace("right").unwrap());
        left.put(b"key", b"treasure").unwrap();
        right.put(b"moves", &0u64.to_le_bytes()).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut undisturbed = 0;
                while !done.load(Ordering::Relaxed) || undisturbed == 0 {
                    let before = read(&right, b"moves");
                    let found = [left.get(b"key").unwrap(), right.get(b"key").unwrap()];
                    let after = read(&right, b"moves");
                    if before == after {
                        undisturbed += 1;
                        assert_eq!(found.iter().flatten().count(), 1, "{found:?} between moves {before:?} and {after:?}");
                    }
                }
            });
            for n in 1..=MOVES {
                let (from, to) = if n % 2 == 1 { (&left, &right) } else { (&right, &left) };
                let mut batch = Batch::default();
                batch.delete(from, b"key");
                batch.put(to, b"key", b"treasure");
                batch.put(&right, b"moves", &n.to_le_bytes());
                store.write(batch).unwrap();
            }
            done.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        assert_eq!((left.count(), right.count()), (1, 1), "{index}");
        assert!(store.verify().unwrap().is_sound());
    }
}

#[test]
fn transfers_between_accounts_keep_the_sum() {
    const ACCOUNTS: u64 = 8;
    const PER_THREAD: u64 = 3_000;
    const START: u64 = 1_000;
    for index in INDEXES {
        let store = store(index);
        let spaces = [store.namespace("even").unwrap(), store.namespace("odd").unwrap()];
        let space = |account: u64| &spaces[account as usize % 2];
        for account in 0..ACCOUNTS {
            space(account).put(&account.to_le_bytes(), &START.to_le_bytes()).unwrap();
        }
        let conflicts = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (store, space, conflicts) = (&store, &space, &conflicts);
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(thread);
                    for _ in 0..PER_THREAD {
                        let (from, to) = (random.random_range(0..ACCOUNTS), random.random_range(0..ACCOUNTS));
                        if from == to {
                            continue;
                        }
                        loop {
                            let balance = |account: u64| read(space(account), &account.to_le_bytes()).unwrap();
                            let (old_from, old_to) = (balance(from), balance(to));
                            let amount = random.random_range(0..=old_from.min(10));
                            let mut batch = Batch::default();
                            for (account, old, new) in [(from, old_from, old_from - amount), (to, old_to, old_to + amount)] {
                                batch.expect(space(account), &account.to_le_bytes(), Some(&old.to_le_bytes()));
                                batch.put(space(account), &account.to_le_bytes(), &new.to_le_bytes());
                            }
                            match store.write(batch) {
                                Ok(()) => break,
                                Err(Error::Conflict { .. }) => conflicts.fetch_add(1, Ordering::Relaxed),
                                Err(error) => panic!("{error}"),
                            };
                        }
                    }
                });
            }
        });
        let sum: u64 = (0..ACCOUNTS).map(|account| read(space(account), &account.to_le_bytes()).unwrap()).sum();
        assert_eq!(sum, ACCOUNTS * START, "{index}, {} conflicts", conflicts.into_inner());
    }
}

#[test]
fn clearing_under_writers_leaves_what_is_counted() {
    const PER_THREAD: u32 = 5_000;
    for index in INDEXES {
        let store = store(index);
        let space = store.namespace("busy").unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let space = &space;
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(thread);
                    for i in 0..PER_THREAD {
                        let key = random.random_range(0..1_000u32).to_be_bytes();
                        match random.random_range(0..4) {
                            0 => drop(space.delete(&key).unwrap()),
                            1 => drop(space.get(&key).unwrap()),
                            _ => space.put(&key, &i.to_le_bytes()).unwrap(),
                        }
                    }
                });
            }
            for _ in 0..20 {
                space.clear().unwrap();
                std::thread::yield_now();
            }
        });
        let mut keys = 0;
        space
            .scan_keys(Bound::Unbounded, Direction::Forward, |_| {
                keys += 1;
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(keys, space.count(), "{index}");
        let report = store.verify().unwrap();
        assert!(report.is_sound(), "{index}: {report:?}");
    }
}

/// Every scan visits permanent keys exactly once and in order, whatever is written between them.
#[test]
fn a_scan_visits_what_stays_exactly_once() {
    const STAYING: u32 = 2_000;
    for index in INDEXES {
        let store = store(index);
        let space = store.namespace("scanned").unwrap();
        let key = |n: u32| n.to_be_bytes();
        for n in 0..STAYING {
            space.put(&key(n * 2), b"stays").unwrap();
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = StdRng::seed_from_u64(1);
                while !done.load(Ordering::Relaxed) {
                    let n = random.random_range(0..STAYING) * 2 + 1;
                    if random.random_bool(0.5) {
                        space.put(&key(n), b"comes").unwrap();
                    } else {
                        space.delete(&key(n)).unwrap();
                    }
                    let n = random.random_range(0..STAYING) * 2;
                    space.put(&key(n), b"stays").unwrap();
                }
            });
            for round in 0..40 {
                let direction = if round % 2 == 0 { Direction::Forward } else { Direction::Reverse };
                let mut seen = Vec::new();
                space
                    .scan(Bound::Unbounded, direction, |key, value| {
                        let n = u32::from_be_bytes(key.try_into().unwrap());
                        assert_eq!(value, if n % 2 == 0 { b"stays" } else { b"comes" });
                        seen.push(n);
                        ControlFlow::Continue(())
                    })
                    .unwrap();
                if direction == Direction::Reverse {
                    seen.reverse();
                }
                assert!(seen.is_sorted_by(|a, b| a < b), "{index}: out of order");
                assert!(seen.iter().filter(|n| *n % 2 == 0).copied().eq((0..STAYING).map(|n| n * 2)), "{index}: a key was missed");
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}

/// Regression: groups waited for each other's devices.
#[test]
fn who_depends_on_a_key_does_not_wait_for_others_who_do() {
    let store = &Store::anonymous(Options { size_max: 1 << 20, ..Options::default() }).unwrap();
    let space = &store.namespace("space").unwrap();
    space.put(b"hot", b"1").unwrap();
    let (sender, done) = mpsc::channel();
    std::thread::scope(|scope| {
        // The key is read while it is held, since the group writes another one.
        let acts = [(&b"hot"[..], Act::Get), (b"own", Act::Put(b"1"))];
        let shown = space.act_many(&acts, &mut Vec::new(), |_, _| {
            let sender = sender.clone();
            scope.spawn(move || {
                let mut batch = Batch::default();
                batch.expect(space, b"hot", Some(b"1"));
                batch.put(space, b"of a batch", b"2");
                store.write(batch).unwrap();
                let mut transaction = store.begin(Isolation::Serializable).unwrap();
                assert_eq!(transaction.get(space, b"hot").unwrap().unwrap(), b"1");
                transaction.put(space, b"of a transaction", b"3").unwrap();
                transaction.commit().unwrap();
                sender.send(()).unwrap();
            });
            assert_eq!(done.recv_timeout(Duration::from_secs(30)), Ok(()));
            Ok(ControlFlow::Continue(()))
        });
        shown.unwrap();
    });
    assert_eq!(space.count(), 4);
}

/// Dropping the snapshot frees what it held back.
#[test]
fn a_thread_that_ends_may_still_drop_a_snapshot_and_write() {
    struct Last(Namespace);
    impl Drop for Last {
        fn drop(&mut self) {
            self.0.put(b"last", b"words").unwrap();
        }
    }
    thread_local! {
        static KEPT: RefCell<Option<Snapshot>> = const { RefCell::new(None) };
        static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
    }
    let directory = tempfile::tempdir().unwrap();
    for domain in [Domain::PageCache, Domain::Msync] {
        let store = Store::open(directory.path().join(domain.name()), Options { domain: Some(domain), ..Options::default() }).unwrap();
        let space = store.namespace("space").unwrap();
        space.put(b"key", b"value").unwrap();
        let (snapshot, writer) = (store.snapshot().unwrap(), space.clone());
        let work = move || {
            // Destructors run in the order in which these are first used, or the reverse of it: the library's come between.
            KEPT.with_borrow(|kept| assert!(kept.is_none()));
            writer.delete(b"key").unwrap();
            KEPT.set(Some(snapshot));
            LAST.set(Some(Last(writer)));
        };
        // The end of a scope would not wait for destructors.
        std::thread::spawn(work).join().unwrap();
        assert_eq!(space.get(b"last").unwrap().unwrap(), b"words");
        assert!(store.verify().unwrap().is_sound());
    }
}
