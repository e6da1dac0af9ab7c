//! Litmus tests of the scheduler itself: what threads may see of each other's stores, with and without store buffers. The names are those of the literature.

use super::baton::{Alone, Baton, Lag, Limits, Order, Seat, Strategy, random_of};
use super::crew::Crew;
use everleaf_pmem::schedule::{self, atomic::AtomicU64};
use everleaf_pmem::{Crash, CrashOptions, Life, Memory, Off, Pool, PoolOptions, Word};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// Where the words of a test are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Dram,
    Pool,
    /// Word 0 in DRAM, word 1 in the pool.
    Both,
}

const PLACES: [Place; 3] = [Place::Dram, Place::Pool, Place::Both];

/// Two words, zero at first.
struct Words {
    place: Place,
    dram: [AtomicU64; 2],
    pool: Arc<Pool<Crash>>,
    /// Two words, each in its own line.
    block: Off<[Word; 16]>,
    lock: Mutex<()>,
}

impl Words {
    fn in_dram(&self, number: usize) -> bool {
        self.place == Place::Dram || self.place == Place::Both && number == 0
    }

    fn word(&self, number: usize) -> &Word {
        &self.pool.get(self.block).unwrap()[number * 8]
    }

    fn store(&self, number: usize, value: u64) {
        self.store_ordered(number, value, Release);
    }

    fn store_ordered(&self, number: usize, value: u64, order: std::sync::atomic::Ordering) {
        match self.in_dram(number) {
            true => self.dram[number].store(value, order),
            false => self.pool.store(self.word(number), value, order),
        }
    }

    fn load(&self, number: usize) -> u64 {
        if self.in_dram(number) { self.dram[number].load(Acquire) } else { self.word(number).load(Acquire) }
    }

    fn exchange(&self, number: usize, value: u64) {
        match self.in_dram(number) {
            true => drop(self.dram[number].swap(value, SeqCst)),
            false => drop(self.pool.compare_exchange(self.word(number), 0, value)),
        }
    }
}

/// Runs threads that call `act` with their numbers in many orders. Returns all results of the threads together with the final words.
fn outcomes(place: Place, buffered: bool, threads: usize, act: fn(&Words, usize) -> u64) -> BTreeSet<(Vec<u64>, [u64; 2])> {
    let memory = Memory::new(256 << 10).unwrap();
    let ground = Crash::new(&memory);
    let options = PoolOptions { size_max: 256 << 10, slab_size: 4 << 10, ..PoolOptions::default() };
    Pool::create_in(Arc::clone(&memory), ground.clone(), options.clone()).unwrap().close().unwrap();
    let crew = Crew::new(threads);
    let run = |seed: u64| {
        let life: Life = ground.live(CrashOptions::default());
        let pool = Pool::open_in(Arc::clone(&memory), life.medium(), options.clone()).unwrap();
        let block = pool.seal(pool.alloc_zeroed::<[Word; 16]>().unwrap()).release();
        let words = Arc::new(Words { place, dram: Default::default(), pool: Arc::clone(&pool), block, lock: Mutex::new(()) });
        let mut random = random_of(seed);
        let strategy = Strategy::draw(&mut random, threads);
        let lag = buffered.then(|| Lag::draw(&mut random, threads));
        let baton = Baton::new(threads, Order { strategy, lag, sleep: None }, random, Limits { steps_max: 10_000, ..Limits::default() }, false);
        let returned = Arc::new(Mutex::new(vec![0; threads]));
        let task = |thread| {
            let (words, baton, returned) = (Arc::clone(&words), Arc::clone(&baton), Arc::clone(&returned));
            Box::new(move || {
                baton.take_seat(thread);
                let scheduled = schedule::enter(Arc::new(Seat { baton: Arc::clone(&baton), thread, watch: |_, _| {} }));
                let value = act(&words, thread);
                // The end of a thread empties its buffer. `rest` lets other threads act before that.
                schedule::rest();
                returned.lock()[thread] = value;
                drop((scheduled, words));
                baton.leave(thread);
            }) as Box<dyn FnOnce() + Send>
        };
        baton.run(crew.start((0..threads).map(task).collect()));
        crew.finish(threads);
        assert!(baton.broken().is_none());
        let alone = schedule::enter(Alone::after(&baton));
        let held = [words.load(0), words.load(1)];
        drop((alone, words, pool));
        (Arc::into_inner(returned).unwrap().into_inner(), held)
    };
    (0..600).map(run).collect()
}

/// Whether some order of two threads makes them return this.
fn can_return(place: Place, buffered: bool, returned: [u64; 2], act: fn(&Words, usize) -> u64) -> bool {
    outcomes(place, buffered, 2, act).iter().any(|(found, _)| *found == returned)
}

/// SB: each stores to one word and loads the other. Only buffers let both loads miss the other's store.
#[test]
fn stores_are_held_back_past_loads_with_buffers_only() {
    for place in PLACES {
        let act = |words: &Words, thread: usize| {
            words.store(thread, 1);
            words.load(1 - thread)
        };
        assert!(can_return(place, true, [0, 0], act), "{place:?}");
        assert!(!can_return(place, false, [0, 0], act), "{place:?}");
        for returned in [[0, 1], [1, 0], [1, 1]] {
            assert!(can_return(place, true, returned, act) && can_return(place, false, returned, act), "{place:?} {returned:?}");
        }
    }
}

/// SB with an `sfence` in between, which orders stores among themselves only.
#[test]
fn a_fence_does_not_order_stores_before_loads() {
    for place in PLACES {
        let act = |words: &Words, thread: usize| {
            words.store(thread, 1);
            words.pool.fence();
            words.load(1 - thread)
        };
        for returned in [[0, 0], [0, 1], [1, 0], [1, 1]] {
            assert!(can_return(place, true, returned, act), "{place:?} {returned:?}");
        }
        assert!(!can_return(place, false, [0, 0], act), "{place:?}");
    }
}

/// SB with something in between that empties the buffer.
#[test]
fn what_empties_a_buffer_orders_stores_before_loads() {
    let acts: [fn(&Words, usize) -> u64; 4] = [
        |words, thread| {
            words.exchange(thread, 1);
            words.load(1 - thread)
        },
        |words, thread| {
            words.store_ordered(thread, 1, SeqCst);
            words.load(1 - thread)
        },
        |words, thread| {
            let held = schedule::lock(&words.lock);
            words.store(thread, 1);
            drop(held);
            words.load(1 - thread)
        },
        |words, thread| {
            words.store(thread, 1);
            drop(words.pool.pin());
            words.load(1 - thread)
        },
    ];
    for place in PLACES {
        for (number, act) in acts.into_iter().enumerate() {
            assert!(!can_return(place, true, [0, 0], act), "{place:?}, act {number}");
            assert!(can_return(place, true, [0, 1], act), "{place:?}, act {number}");
        }
    }
}

/// MP: a thread that sees the second store of another sees the first.
#[test]
fn messages_are_passed() {
    for place in PLACES {
        for order in [[0, 1], [1, 0]] {
            let act: fn(&Words, usize) -> u64 = match (order, ()) {
                ([0, 1], ()) => |words, thread| pass(words, thread, [0, 1]),
                _ => |words, thread| pass(words, thread, [1, 0]),
            };
            let returned: Vec<u64> = outcomes(place, true, 2, act).iter().map(|(returned, _)| returned[1]).collect();
            assert!(!returned.contains(&0b10) && returned.contains(&0b11) && returned.contains(&0b01) && returned.contains(&0), "{place:?} {returned:?}");
        }
    }
}

/// Thread 0 stores data and a flag; thread 1 returns which of them it sees, flag first.
fn pass(words: &Words, thread: usize, [data, flag]: [usize; 2]) -> u64 {
    if thread == 0 {
        words.store_ordered(data, 1, Relaxed);
        words.store(flag, 1);
        return 0;
    }
    let is_there = words.load(flag);
    is_there << 1 | words.load(data)
}

/// n6: a thread sees its own store at once, and all stores to a word have one final order.
#[test]
fn a_thread_sees_its_own_stores() {
    for place in PLACES {
        let act = |words: &Words, thread: usize| {
            words.store(0, thread as u64 + 1);
            words.store(0, thread as u64 + 11);
            words.store(1, 5);
            words.load(0) << 8 | words.load(1)
        };
        for (returned, held) in outcomes(place, true, 2, act) {
            for (thread, value) in returned.iter().enumerate() {
                let (own, older) = (thread as u64 + 11, [0, thread as u64 + 1]);
                assert!(value & 0xff == 5 && !older.contains(&(value >> 8)), "{place:?} {returned:?}: {own} is newer");
            }
            assert!(held == [11, 5] || held == [12, 5], "{place:?} {held:?}");
        }
    }
}

/// IRIW: two readers do not see two stores in different orders.
#[test]
fn readers_agree_on_the_order_of_stores() {
    for place in PLACES {
        let act = |words: &Words, thread: usize| match thread {
            0 | 1 => {
                words.store(thread, 1);
                0
            }
            _ => words.load(thread - 2) << 1 | words.load(3 - thread),
        };
        let found = outcomes(place, true, 4, act);
        assert!(!found.iter().any(|(returned, _)| returned[2..] == [0b10, 0b10]), "{place:?}");
        assert!(found.iter().any(|(returned, _)| returned[2..] == [0b10, 0b01]), "{place:?}");
    }
}
