//! The allocator as a whole, over pools in anonymous memory.

use super::*;
use crate::epoch::Epochs;
use crate::medium::Lines;
use crate::{LINE, PoolOptions, WORD};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Barrier, mpsc};

/// A medium that counts.
#[derive(Default)]
struct Tally {
    flushes: AtomicUsize,
    fences: AtomicUsize,
}

impl Medium for Tally {
    fn flush(&self, lines: Lines<'_>) {
        self.flushes.fetch_add(lines.count(), Ordering::Relaxed);
    }
    fn fence(&self) {
        self.fences.fetch_add(1, Ordering::Relaxed);
    }
}

type TestPool = Arc<Pool<Tally>>;

fn pool(slab_size: usize, slabs: usize) -> TestPool {
    Pool::anonymous(Tally::default(), PoolOptions { size_max: slab_size * slabs, slab_size, ..PoolOptions::default() }).unwrap()
}

/// The pool as if it had been closed and opened again.
fn reopened(mut pool: TestPool, start: Start) -> TestPool {
    let classes = pool.alloc.heap.classes;
    let has_spans = std::ptr::eq(classes, Classes::of_slab(classes.slab_size, true));
    let alloc = Allocator::new(&pool, classes.slab_size, has_spans, start, false);
    let pool_mut = Arc::get_mut(&mut pool).unwrap();
    pool_mut.alloc = alloc;
    pool_mut.epochs = Epochs::new();
    pool
}

fn mark_all<'p>(pool: &'p TestPool, blocks: &BTreeMap<u64, usize>) -> Reach<'p, Tally> {
    let reach = pool.reach();
    for (&at, &size) in blocks {
        reach.mark(Off::<u8>::new(at), size).unwrap();
    }
    reach
}

/// The objection to a mark; empty if there is none.
fn refusal(reach: &Reach<'_, Tally>, off: u64, size: usize) -> &'static str {
    match reach.mark(Off::<u8>::new(off), size) {
        Ok(()) => "",
        Err(Error::Corrupt { what, .. }) => what,
        Err(error) => panic!("{error}"),
    }
}

/// Flushes and fences so far.
fn costs(pool: &TestPool) -> (usize, usize) {
    (pool.medium().flushes.load(Ordering::Relaxed), pool.medium().fences.load(Ordering::Relaxed))
}

/// Checks that exactly `blocks` are allocated.
fn expect_exactly(pool: &TestPool, blocks: &BTreeMap<u64, usize>) {
    let usage = pool.audit(&mark_all(pool, blocks)).unwrap();
    assert_eq!((usage.reachable, usage.leaked, usage.leaked_at), (blocks.len(), 0, None));
}

/// Allocates blocks of `size` until there is no space.
fn fill(pool: &TestPool, size: usize) -> Vec<u64> {
    let blocks = std::iter::from_fn(|| match pool.allocate(size) {
        Ok(off) => Some(off.bytes()),
        Err(Error::NoSpace { .. }) => None,
        Err(error) => panic!("{error}"),
    });
    blocks.collect()
}

fn free(pool: &TestPool, block: u64) {
    pool.free(Off::<u8>::new(block));
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(usize),
    Free(prop::sample::Index),
    Retire(prop::sample::Index),
    Collect,
    /// Moves what an evacuation wants moved, except one block.
    Evacuate(Evacuation, prop::sample::Index),
    /// Moves what an evacuation for so many bytes wants moved, except one block, and does not settle it.
    EvacuateFew(usize, prop::sample::Index),
    GiveBack,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![4 => 1usize..600, 2 => prop::sample::select(vec![64, 256, 512, 1024, 2048, 4096]), 2 => 1usize..9000, 2 => 1usize..200_000];
    let step = prop_oneof![
        6 => size.prop_map(Step::Allocate),
        3 => any::<prop::sample::Index>().prop_map(Step::Free),
        2 => any::<prop::sample::Index>().prop_map(Step::Retire),
        1 => Just(Step::Collect),
        1 => (prop::sample::select(vec![Evacuation::Sparse, Evacuation::All]), any::<prop::sample::Index>()).prop_map(|(what, but)| Step::Evacuate(what, but)),
        1 => (prop::sample::select(vec![100, 9000, 100_000]), any::<prop::sample::Index>()).prop_map(|(wanted, but)| Step::EvacuateFew(wanted, but)),
        1 => Just(Step::GiveBack),
    ];
    prop::collection::vec(step, 0..if cfg!(miri) { 20 } else { 300 })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 300 }, failure_persistence: None, ..ProptestConfig::default() })]

    /// Blocks handed out are disjoint, aligned and inside the pool; allocated blocks survive a clean shutdown and a crash.
    #[test]
    fn blocks_agree_with_a_set_of_intervals(steps in steps(), small in any::<bool>(), has_spans in any::<bool>()) {
        let slab_size: usize = if small { 4 << 10 } else { 64 << 10 };
        let mut pool = pool(slab_size, 40);
        if !has_spans {
            Arc::get_mut(&mut pool).unwrap().alloc = Allocator::new(&pool, slab_size, false, Start::Created, false);
        }
        let mut blocks: BTreeMap<u64, usize> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Allocate(size) => match pool.allocate(size) {
                    Ok(off) => {
                        let at = off.bytes();
                        prop_assert!(at.is_multiple_of(1 << size.trailing_zeros().clamp(3, 6)));
                        prop_assert!(at >= (slab_size + LINE) as u64 && at + size as u64 <= pool.length() as u64);
                        let before = blocks.range(..at).next_back();
                        prop_assert!(before.is_none_or(|(other, size)| other + *size as u64 <= at));
                        let after = blocks.range(at..).next();
                        prop_assert!(after.is_none_or(|(other, _)| at + size as u64 <= *other));
                        blocks.insert(at, size);
                    }
                    Err(Error::NoSpace { .. }) => {}
                    Err(error) => return Err(TestCaseError::fail(error.to_string())),
                },
                Step::Collect => pool.collect(),
                Step::GiveBack => _ = pool.give_back().unwrap(),
                Step::Evacuate(what, but) => {
                    pool.evacuate(what);
                    let leaving: Vec<_> = blocks.iter().map(|(at, size)| (*at, *size)).filter(|(at, _)| pool.is_leaving(Off::<u8>::new(*at))).collect();
                    let but = if leaving.is_empty() { 0 } else { but.index(leaving.len()) };
                    for (number, (at, size)) in leaving.into_iter().enumerate() {
                        if number != but
                            && let Ok(new) = pool.allocate(size)
                        {
                            // A pool that was full has ended the evacuation.
                            blocks.insert(new.bytes(), size);
                            blocks.remove(&at);
                            free(&pool, at);
                        }
                    }
                    pool.settle();
                    prop_assert!(!blocks.keys().any(|at| pool.is_leaving(Off::<u8>::new(*at))));
                }
                Step::EvacuateFew(wanted, but) => {
                    for piece in pool.evacuate_few(wanted) {
                        let but = but.index(piece.len() + 1);
                        for (number, off) in piece.iter().enumerate() {
                            prop_assert!(blocks.contains_key(&off.bytes()) && pool.is_leaving(*off));
                            if number != but
                                && let Ok(new) = pool.allocate(blocks[&off.bytes()])
                            {
                                prop_assert!(!pool.is_leaving(new));
                                let size = blocks.remove(&off.bytes()).unwrap();
                                blocks.insert(new.bytes(), size);
                                pool.free(*off);
                            }
                        }
                        let is_moved = |off: &Off<Word>| !blocks.contains_key(&off.bytes());
                        prop_assert!(!piece.iter().all(is_moved) || piece.iter().all(|off| !pool.is_leaving(*off)));
                    }
                }
                Step::Free(index) | Step::Retire(index) if blocks.is_empty() => _ = index,
                Step::Free(index) => {
                    let at = *blocks.keys().nth(index.index(blocks.len())).unwrap();
                    blocks.remove(&at);
                    free(&pool, at);
                }
                Step::Retire(index) => {
                    let at = *blocks.keys().nth(index.index(blocks.len())).unwrap();
                    blocks.remove(&at);
                    pool.retire(Off::<u8>::new(at), &pool.pin());
                }
            }
        }
        expect_exactly(&pool, &blocks);

        let snapshot = pool.snapshot();
        let start = snapshot.map_or(Start::Unclean, Start::Clean);
        let pool = reopened(pool, start);
        if pool.needs_recovery() {
            prop_assert!(snapshot.is_none());
            pool.adopt(mark_all(&pool, &blocks)).unwrap();
        }
        expect_exactly(&pool, &blocks);

        let pool = reopened(pool, Start::Unclean);
        pool.adopt(mark_all(&pool, &blocks)).unwrap();
        expect_exactly(&pool, &blocks);

        // What is free can be handed out, and does not overlap what is not.
        let more = fill(&pool, 64);
        for at in &more {
            prop_assert!(blocks.range(..=*at).next_back().is_none_or(|(other, size)| other + *size as u64 <= *at));
            prop_assert!(blocks.range(*at..).next().is_none_or(|(other, _)| at + 64 <= *other));
        }
        blocks.extend(more.iter().map(|at| (*at, 64)));
        expect_exactly(&pool, &blocks);
    }

    /// A snapshot that lies, even with a sound checksum, is refused, or read as some state that is sound in itself.
    #[test]
    fn a_hostile_snapshot_is_refused_or_sound(
        changes in prop::collection::vec((any::<prop::sample::Index>(), word()), 1..4),
        fix_checksum in prop::bool::weighted(0.9),
    ) {
        let pool = pool(4 << 10, 24);
        for size in [32, 64, 64, 300, 1000, 5000, 9000] {
            pool.allocate(size).unwrap();
        }
        fill(&pool, 256).into_iter().step_by(2).for_each(|at| free(&pool, at));
        pool.free(pool.allocate(8000).unwrap_or(Off::NULL));
        let runs: Vec<u64> = fill(&pool, 4000);
        runs.iter().for_each(|at| free(&pool, *at));
        let mut snapshot = pool.snapshot();
        if let Some(snapshot) = &mut snapshot {
            let words = pool.words(Off::<Word>::new(snapshot.off), snapshot.length as usize / WORD).unwrap();
            for (index, value) in &changes {
                pool.store(&words[index.index(words.len())], *value, Ordering::Relaxed);
            }
            if fix_checksum {
                snapshot.crc = snapshot::checksum(words.iter().map(Word::get));
            }
        }
        let pool = reopened(pool, snapshot.map_or(Start::Unclean, Start::Clean));
        if pool.needs_recovery() {
            pool.adopt(pool.reach()).unwrap();
        }
        let usage = pool.audit(&pool.reach()).unwrap();
        let more = fill(&pool, 64);
        prop_assert_eq!(pool.audit(&pool.reach()).unwrap().leaked, usage.leaked + more.len());
    }

    /// Neither the place nor the length nor the checksum of a snapshot is believed.
    #[test]
    fn a_snapshot_anywhere_is_refused(off in word(), length in word(), crc in any::<u32>()) {
        let pool = reopened(pool(4 << 10, 8), Start::Clean(Snapshot { off, length, crc }));
        prop_assert!(pool.needs_recovery());
    }

    /// Whatever an index claims to reach causes at most an error.
    #[test]
    fn hostile_marks_are_refused_or_sound(
        marks in prop::collection::vec((word(), prop_oneof![word(), 0u64..5000]), 0..40),
        headers in prop::collection::vec((1u32..12, any::<bool>(), any::<u16>()), 0..12),
    ) {
        let pool = pool(4 << 10, 12);
        for (slab, run, extent) in headers {
            let classes = pool.alloc.heap.classes;
            let size = classes.get((extent % classes.count() as u16) as u8).size;
            pool.write_header(slab, if run { Header::Run(u32::from(extent) % 14) } else { Header::Blocks(size) });
        }
        let pool = reopened(pool, Start::Unclean);
        let reach = pool.reach();
        let mut reached = 0;
        for (at, size) in marks {
            reached += usize::from(reach.mark(Off::<u8>::new(at), size as usize).is_ok());
        }
        for slab in 1..12 {
            for (within, size) in [(64, 4032), (64, 40), (64, 8000), (256, 256), (64, 64)] {
                reached += usize::from(reach.mark(Off::<u8>::new(slab * 4096 + within), size).is_ok());
            }
        }
        pool.adopt(reach).unwrap();
        prop_assert_eq!(pool.audit(&pool.reach()).unwrap().leaked, reached);
    }
}

/// Words that are likely to get further than random ones.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0u64..64,
        (0u64..100_000).prop_map(|at| at & !7),
        (0u64..30, 0u64..4, prop::sample::select(vec![0u64, 32, 64, 256, 320, 1024, 4096])).prop_map(|(slab, kind, size)| slab | kind << 32 | size << 40),
    ]
}

/// A few slabs leave, those with the least in use; for a block larger than a slab, neighbours. One with an immovable block is chosen again when another block
/// there was freed. A pool that becomes full does not end it.
#[test]
fn a_few_slabs_leave() {
    let pool = pool(4 << 10, 256);
    let slab_of = |block: u64| block >> 12;
    let mut slabs: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    fill(&pool, 500).into_iter().for_each(|block| slabs.entry(slab_of(block)).or_default().push(block));
    assert!(pool.evacuate_few(100).is_empty(), "no block in use can do without its slab");
    // Of eight blocks in a slab, three stay; one in the tenth slab, two in five others.
    let kept = |number: u64| {
        if number == 10 {
            1
        } else if (20..25).contains(&number) {
            2
        } else {
            3
        }
    };
    slabs.iter().for_each(|(number, blocks)| blocks[kept(*number)..].iter().for_each(|block| free(&pool, *block)));
    let chosen = |wanted: usize| {
        let mut pieces = pool.evacuate_few(wanted);
        let slabs = pieces.iter_mut().map(|piece| {
            piece.dedup_by_key(|block| slab_of(block.bytes()));
            piece.iter().map(|block| slab_of(block.bytes())).collect::<Vec<_>>()
        });
        slabs.collect::<Vec<_>>()
    };
    let first = chosen(100);
    assert_eq!(first, [10, 20, 21, 22].map(|number| vec![number]));
    let leaves = |number: u64| pool.is_leaving(Off::<u8>::new(slabs[&number][0]));
    assert!(pool.allocate(1 << 20).is_err());
    assert!(leaves(10) && leaves(22) && !leaves(23));
    pool.settle();
    assert!(!leaves(10));
    // Behind the last slab in use there are free ones, too few for a block.
    let last = *slabs.keys().last().unwrap();
    assert_eq!(chosen(5 * (4 << 10)), [vec![last], vec![20, 21, 22, 23, 24]]);
    assert_eq!(chosen(5000), [vec![last], vec![9, 10], vec![20, 21]]);
    pool.keep(Off::new(slabs[&22][0]));
    assert_eq!(chosen(100).concat(), [10, 20, 21, 23]);
    let piece = chosen(5 * (4 << 10)).concat();
    assert!(piece.len() >= 5 && !piece.contains(&22), "{piece:?}");
    free(&pool, slabs[&22][1]);
    pool.empty_cache();
    assert_eq!(chosen(100).concat(), [10, 22, 20, 21]);
}

#[test]
fn a_slab_costs_one_flush_and_one_fence_and_a_block_none() {
    let pool = pool(64 << 10, 64);
    let before = costs(&pool);
    let per_slab = (64 << 10) / 64 - 1;
    let blocks: Vec<u64> = (0..10 * per_slab).map(|_| pool.allocate(64).unwrap().bytes()).collect();
    pool.allocate(1 << 20).unwrap();
    for at in blocks {
        free(&pool, at);
    }
    for _ in 0..per_slab {
        pool.allocate(64).unwrap();
    }
    let after = costs(&pool);
    assert_eq!((after.0 - before.0, after.1 - before.1), (11, 11));
}

#[test]
fn a_full_pool_can_be_emptied_and_filled_again() {
    let pool = pool(4 << 10, 24);
    let sizes: &[usize] = if cfg!(miri) { &[1024, 4032] } else { &[64, 1024, 40, 480, 4032] };
    for round in 0..if cfg!(miri) { 1 } else { 3 } {
        for &size in sizes {
            let blocks = fill(&pool, size);
            let shape = pool.alloc.heap.classes.of(size).map_or(1, |class| pool.alloc.heap.classes.get(class).count as usize);
            assert_eq!(blocks.len(), 23 * shape, "{size} in round {round}");
            blocks.iter().for_each(|at| free(&pool, *at));
        }
        // All of it in one piece.
        let whole = pool.allocate(23 * (4 << 10) - LINE).unwrap();
        assert!(matches!(pool.allocate(8), Err(Error::NoSpace { .. })));
        pool.free(whole);
    }
    assert!(matches!(pool.allocate(usize::MAX), Err(Error::TooLarge { .. })));
    assert!(matches!(pool.allocate(1 << 40), Err(Error::NoSpace { .. })));
}

#[test]
#[cfg_attr(miri, ignore = "pools grow in steps of 16 MiB")]
fn a_pool_grows_until_it_may_not() {
    let pool = pool(64 << 10, 1024);
    let before = pool.length();
    assert!(before < 64 << 20);
    let sizes = [64 << 10, 5 << 20, 100, 20 << 20, 12 << 20];
    let blocks: BTreeMap<u64, usize> = sizes.into_iter().map(|size| (pool.allocate(size).unwrap().bytes(), size)).collect();
    assert_eq!(pool.length(), 64 << 20);
    expect_exactly(&pool, &blocks);
    assert!(matches!(pool.allocate(40 << 20), Err(Error::NoSpace { .. })));
    expect_exactly(&pool, &blocks);
}

/// The pool does not grow by what is already free at its end.
#[test]
#[cfg_attr(miri, ignore = "pools grow in steps of 16 MiB")]
fn a_pool_grows_by_what_is_missing() {
    let pool = pool(64 << 10, 1024);
    let reserved = 4 << 20;
    let free_size = pool.room() - reserved;
    assert!(pool.length() < free_size / 2, "some is free as it is");
    let large = pool.allocate(free_size - LINE).unwrap();
    assert!(matches!(pool.allocate(100), Err(Error::NoSpace { .. })));
    pool.free(large);
}

/// Ordinary allocations leave the reserve; work that gives back a block for each that it takes goes on for ever, whatever others try to get meanwhile.
#[test]
fn the_reserve_is_for_urgent_work() {
    let (pool, slabs) = (pool(4 << 10, 64), 4);
    let mut blocks = fill(&pool, 64);
    assert_eq!(blocks.len(), (63 - slabs) * 63);
    assert!(fill(&pool, 400).is_empty() && fill(&pool, 5_000).is_empty());
    let removals = with_reserve(Reserve::Half, || fill(&pool, 64));
    assert_eq!(removals.len(), slabs / 2 * 63);
    for _ in 0..1_000 {
        let urgent = with_reserve(Reserve::All, || pool.allocate(64)).unwrap().bytes();
        free(&pool, std::mem::replace(&mut blocks[0], urgent));
        assert!(fill(&pool, 64).is_empty() && fill(&pool, 400).is_empty());
    }
    let last = with_reserve(Reserve::All, || fill(&pool, 400));
    assert_eq!(last.len(), 9 * (slabs / 2), "none of that took a slab in the end");
    // Freed blocks replenish the reserve before others get anything.
    [removals, last].concat().into_iter().for_each(|at| free(&pool, at));
    assert!(fill(&pool, 64).is_empty());
    free(&pool, blocks.pop().unwrap());
    assert_eq!(fill(&pool, 64).len(), 1);
}

/// Of each class, as many slabs stay as are needed, plus one.
#[test]
fn sparse_slabs_become_few() {
    let pool = pool(4 << 10, 64);
    let mut blocks: BTreeSet<u64> = fill(&pool, 64).into_iter().collect();
    let kept: BTreeSet<u64> = blocks.iter().copied().step_by(5).collect();
    blocks.difference(&kept).for_each(|at| free(&pool, *at));
    blocks = kept;
    assert_eq!(pool.length(), 64 * (4 << 10));
    assert!(pool.evacuate(Evacuation::Sparse) > 45);
    for at in blocks.clone().into_iter().filter(|at| pool.is_leaving(Off::<u8>::new(*at))) {
        let new = pool.allocate(64).unwrap();
        assert!(!pool.is_leaving(new));
        blocks.remove(&at);
        blocks.insert(new.bytes());
        free(&pool, at);
        // Neither this thread's cache nor any other may hand it out.
        assert!(pool.allocate(64).is_ok_and(|other| {
            pool.free(other);
            !pool.is_leaving(other)
        }));
    }
    pool.settle();
    assert_eq!(pool.give_back().unwrap(), 0, "memory is not given back");
    assert!(pool.length() <= 15 * (4 << 10), "{} slabs", pool.length() >> 12);
    expect_exactly(&pool, &blocks.iter().map(|at| (*at, 64)).collect());
    assert_eq!(fill(&pool, 64).len() + blocks.len(), (63 - 4) * 63, "it grows again, but for the reserve");
}

/// Blocks in another thread's cache when an evacuation begins are not used afterwards.
#[test]
fn what_threads_have_at_hand_leaves_too() {
    let pool = pool(4 << 10, 64);
    let blocks = fill(&pool, 64);
    let ((begun, has_begun), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel());
    std::thread::scope(|scope| {
        let (pool, blocks) = (&pool, &blocks);
        let other = scope.spawn(move || {
            blocks[..3].iter().for_each(|at| free(pool, *at));
            begun.send(()).unwrap();
            may_go_on.recv().ok().map(|()| pool.allocate(64).map(|new| pool.is_leaving(new)))
        });
        has_begun.recv().unwrap();
        // Four slabs are left, the first with the fewest blocks in use. Three would do.
        [3..60, 146..189, 209..blocks.len()].into_iter().flat_map(|range| &blocks[range]).for_each(|at| free(pool, *at));
        let leaving = pool.evacuate(Evacuation::Sparse);
        go_on.send(()).unwrap();
        assert!(matches!(other.join().unwrap(), Some(Ok(false))));
        assert_eq!(leaving, 1);
    });
}

#[test]
fn retired_blocks_are_found_when_space_runs_out() {
    // Small ones, five in three slabs, seven in two, and runs; in a pool that keeps a reserve, and in one that does not.
    for (slabs, sizes) in [(24, [if cfg!(miri) { 1024 } else { 64 }, 2400, 1100, 4000]), (64, [1024, 2400, 1100, 4000])] {
        for size in sizes {
            let pool = pool(4 << 10, slabs);
            let blocks = fill(&pool, size);
            // One of those that share slabs, and all.
            for every in [7, 1] {
                let retired: Vec<_> = blocks.iter().step_by(every).collect();
                for at in &retired {
                    pool.retire(Off::<u8>::new(**at), &pool.pin());
                }
                assert_eq!(fill(&pool, size).len(), retired.len(), "of {size} bytes in {slabs} slabs");
            }
        }
    }
}

#[test]
fn a_freed_block_is_reused_first() {
    let pool = pool(64 << 10, 4);
    let first = pool.allocate(100).unwrap();
    let second = pool.allocate(100).unwrap();
    assert_eq!(second.bytes(), first.bytes() + 112);
    pool.free(first);
    assert_eq!(pool.allocate(100).unwrap(), first);
}

#[test]
fn what_is_no_block_cannot_be_freed() {
    let pool = pool(4 << 10, 8);
    let block = pool.allocate(200).unwrap().bytes();
    let run = pool.allocate(6000).unwrap().bytes();
    for at in [0, 8, 64, 4096, block + 8, block - 64, run + 64, run + 4096, 7 * 4096 + 64, 8 * 4096 + 64, u64::MAX, 1 << 47] {
        free(&pool, at);
    }
    expect_exactly(&pool, &BTreeMap::from([(block, 200), (run, 6000)]));
    free(&pool, run);
    free(&pool, run);
    expect_exactly(&pool, &BTreeMap::from([(block, 200)]));
}

#[test]
fn marks_are_checked() {
    let pool = pool(4 << 10, 16);
    let small = pool.allocate(100).unwrap();
    let large = pool.allocate(12_000).unwrap();
    let pool = reopened(pool, Start::Unclean);
    let reach = pool.reach();
    let what = |off: u64, size: usize| refusal(&reach, off, size);
    assert_eq!(what(0, 100), "a block outside the pool's slabs");
    assert_eq!(what(16 << 12, 100), "a block outside the pool's slabs");
    assert_eq!(what(u64::MAX - 63, 100), "a block outside the pool's slabs");
    assert_eq!(what(small.bytes() + 8, 100), "a block that begins inside another");
    assert_eq!(what(small.bytes(), 60), "a slab header that does not fit a block in the slab");
    assert_eq!(what(small.bytes(), 100), "");
    assert_eq!(what(small.bytes(), 100), "a block that is reachable twice");
    assert_eq!(what(small.bytes(), 60), "a slab with blocks of two sizes, or of two spans");
    assert_eq!(what(large.bytes(), 100), "a slab header that does not fit a block in the slab");
    assert_eq!(what(large.bytes(), 5000), "a slab header that does not fit a block in the slab");
    assert_eq!(what(large.bytes(), 100_000), "a large block that reaches beyond the pool");
    assert_eq!(what(large.bytes(), usize::MAX), "a block outside the pool's slabs");
    assert_eq!(what(large.bytes() + 8, 12_000), "a large block that does not begin a slab");
    assert_eq!(what(large.bytes(), 12_000), "");
    assert_eq!(what(large.bytes(), 12_000), "a large block that overlaps another block");
    pool.adopt(reach).unwrap();
    expect_exactly(&pool, &BTreeMap::from([(small.bytes(), 100), (large.bytes(), 12_000)]));
}

/// A span is what its header says, and only that: not a span that begins within it or in which it begins, nor a slab or a run within.
#[test]
fn spans_are_checked() {
    let pool = pool(4 << 10, 32);
    let first = pool.allocate(5000).unwrap().bytes();
    let second = pool.allocate(5000).unwrap().bytes();
    // Three in four slabs, one behind the other.
    let size = pool.alloc.heap.classes.get(pool.alloc.heap.classes.of(5000).unwrap()).size as usize;
    assert_eq!(second, first + size as u64);
    let slab = (first >> 12) as u32;
    let within = |place: u32| (u64::from(slab + place) << 12) + 64;
    let end = pool.length() as u64 - 2 * 4096 + 64;
    for (place, header) in [(1, Header::Blocks(112)), (2, Header::Run(1)), (3, Header::Blocks(size as u32))] {
        pool.write_header(slab + place, header);
    }
    pool.write_header((end >> 12) as u32, Header::Blocks(size as u32));
    let pool = reopened(pool, Start::Unclean);
    for (other, other_size) in [(within(1), 112), (within(2), 4032), (within(3), 5000), (first, 112)] {
        for other_comes_first in [false, true] {
            let mut marks = [(first, 5000), (second, 5000), (other, other_size)];
            marks.rotate_right(usize::from(other_comes_first));
            let reach = pool.reach();
            let refused: Vec<_> = marks.into_iter().filter(|(at, size)| reach.mark(Off::<u8>::new(*at), *size).is_err()).map(|(at, _)| at).collect();
            let expected = if other_comes_first && other != first { vec![first, second] } else { vec![other] };
            assert_eq!(refused, expected, "{other_size} at {other}");
        }
    }
    let reach = pool.reach();
    let what = |off: u64, size: usize| refusal(&reach, off, size);
    assert_eq!(what(end, 5000), "blocks that reach beyond the pool");
    assert_eq!(what(second + 64, 5000), "a block that begins inside another");
    assert_eq!(what(64 + size as u64, 5000), "a block outside the pool's slabs");
    assert_eq!(what(second, 5000), "");
    assert_eq!(what(second, 5000), "a block that is reachable twice");
    pool.adopt(reach).unwrap();
    expect_exactly(&pool, &BTreeMap::from([(second, 5000)]));
    assert_eq!(pool.allocate(5000).unwrap().bytes(), first);
    assert!(pool.allocate(3000).unwrap().bytes() >= within(4) - 64, "what is free in a span is free for its blocks alone");
}

/// The blocks of a span cost one header, and are in no thread's cache; once free, they are free for all.
#[test]
fn spans_come_and_go_as_a_whole() {
    let pool = pool(64 << 10, 64);
    let (before, free_before) = (costs(&pool), pool.room());
    let blocks: Vec<_> = (0..5).map(|_| pool.allocate(34 << 10).unwrap()).collect();
    assert_eq!(costs(&pool), (before.0 + 1, before.1 + 1));
    assert_eq!(free_before - pool.room(), 3 << 16, "five in three slabs");
    blocks[1..].iter().for_each(|block| pool.free(*block));
    assert_eq!(pool.evacuate(Evacuation::Sparse), 0);
    pool.settle();
    assert_eq!(pool.evacuate(Evacuation::All), 3);
    assert!(pool.is_leaving(blocks[0]));
    let moved = pool.allocate(34 << 10).unwrap();
    assert_ne!(moved, blocks[0]);
    pool.free(blocks[0]);
    pool.settle();
    expect_exactly(&pool, &BTreeMap::from([(moved.bytes(), 34 << 10)]));
    pool.free(moved);
    assert_eq!(pool.room(), free_before);
    assert!(with_reserve(Reserve::All, || pool.allocate((63 << 16) - LINE)).is_ok());
}

/// Where no slabs for a span are neighbours, a block takes what it would take without spans: a run of its own, or a share of a slab.
#[test]
fn a_pool_with_single_free_slabs_has_room_for_what_needs_no_more() {
    let pool = pool(4 << 10, 32);
    let mut blocks: BTreeMap<u64, usize> = with_reserve(Reserve::All, || fill(&pool, 4000)).into_iter().map(|at| (at, 4000)).collect();
    assert_eq!(blocks.len(), 31);
    let single: Vec<_> = blocks.keys().copied().step_by(2).collect();
    for at in single {
        blocks.remove(&at);
        free(&pool, at);
    }
    // Of five in three slabs, five in two, and seven in two.
    for (size, count) in [(2400, 3), (1600, 4), (1152, 3)] {
        blocks.extend((0..count).map(|_| (pool.allocate(size).unwrap().bytes(), size)));
    }
    assert_eq!(pool.alloc.heap.free_slabs(), 16 - 3 - 2 - 1);
    match pool.allocate(5000) {
        Err(Error::NoSpace { wanted, .. }) => assert_eq!(wanted, 2 << 12),
        other => panic!("{other:?}"),
    }
    expect_exactly(&pool, &blocks);
    let snapshot = pool.snapshot().unwrap();
    let pool = reopened(pool, Start::Clean(snapshot));
    expect_exactly(&pool, &blocks);
    let pool = reopened(pool, Start::Unclean);
    pool.adopt(mark_all(&pool, &blocks)).unwrap();
    expect_exactly(&pool, &blocks);

    blocks.keys().for_each(|at| free(&pool, *at));
    pool.settle();
    let spans: Vec<_> = (0..5).map(|_| pool.allocate(2400).unwrap().bytes()).collect();
    assert_eq!(spans[4] - spans[0], 4 * 2432, "there are slabs side by side again");
    // Down to the reserve, by spans and then singly.
    assert_eq!((fill(&pool, 2400).len(), pool.alloc.heap.free_slabs()), (24 / 3 * 5 + 2, 2));
}

/// A run that was refused because a block lay in its middle left a claim on its beginning; whoever went on regardless had the block's slab twice.
#[test]
fn a_run_that_is_refused_claims_nothing() {
    let pool = pool(4 << 10, 16);
    pool.allocate(1000).unwrap();
    let small = pool.allocate(100).unwrap();
    let slab = (small.bytes() >> 12) as u32;
    pool.write_header(slab - 1, Header::Run(3));
    let pool = reopened(pool, Start::Unclean);
    let reach = pool.reach();
    reach.mark(small, 100).unwrap();
    assert!(reach.mark(Off::<u8>::new(pool.alloc.heap.offset(slab - 1) + 64), 3 * 4096 - 64).is_err());
    pool.adopt(reach).unwrap();
    expect_exactly(&pool, &BTreeMap::from([(small.bytes(), 100)]));
}

/// What nobody has had since the pool was opened is durable as it is. A slab that has been given back, or given up to the file system, is not.
#[test]
fn a_run_is_untouched_once() {
    let pool = pool(4 << 10, 16);
    let untouched = |pool: &TestPool, size| pool.allocate(size).map(|run| (run, pool.is_untouched(run))).unwrap();
    assert!(!untouched(&pool, 100).1, "of small blocks it is not known");
    let (first, is_untouched) = untouched(&pool, 8000);
    assert!(is_untouched);
    let (second, is_untouched) = untouched(&pool, 4000);
    assert!(is_untouched);
    pool.free(first);
    let (again, is_untouched) = untouched(&pool, 8000);
    assert!(again == first && !is_untouched);
    pool.free(again);
    pool.free(second);
    pool.give_back().unwrap();
    assert!(!untouched(&pool, 8000).1);
    assert!(!untouched(&pool, (3 << 12) - 64).1, "the pool has become shorter and grown again");

    let pool = reopened(pool, Start::Unclean);
    pool.adopt(pool.reach()).unwrap();
    let (last, is_untouched) = untouched(&pool, (3 << 12) - 64);
    assert!(is_untouched);

    // A run that was in use at opening is its owner's; once freed, it is not untouched for the next owner.
    let pool = reopened(pool, Start::Unclean);
    let reach = pool.reach();
    reach.mark(last, (3 << 12) - 64).unwrap();
    pool.adopt(reach).unwrap();
    assert!(pool.is_untouched(last));
    let rest = std::iter::from_fn(|| pool.allocate(8000).ok()).count();
    assert!(rest > 0);
    pool.free(last);
    let (again, is_untouched) = untouched(&pool, 8000);
    assert!(again.bytes() == last.bytes() && !is_untouched);
}

#[test]
fn an_audit_finds_leaks_and_blocks_that_are_free_but_reachable() {
    let pool = pool(4 << 10, 16);
    let kept = pool.allocate(100).unwrap();
    let leaked = pool.allocate(100).unwrap();
    let run = pool.allocate(8000).unwrap();
    let reach = pool.reach();
    reach.mark(kept, 100).unwrap();
    let usage = pool.audit(&reach).unwrap();
    assert_eq!(usage, Usage { reachable: 1, leaked: 2, leaked_at: Some(leaked.bytes()), retired: 0 });

    reach.mark(leaked, 100).unwrap();
    reach.mark(run, 8000).unwrap();
    assert_eq!(pool.audit(&reach).unwrap(), Usage { reachable: 3, ..Usage::default() });
    pool.retire(run, &pool.pin());
    assert!(matches!(pool.audit(&reach), Err(Error::Corrupt { at, .. }) if at == run.bytes() - 64));
    pool.free(kept);
    assert!(matches!(pool.audit(&reach), Err(Error::Corrupt { at, .. }) if at == kept.bytes()));
}

#[test]
fn threads_share_a_pool_without_sharing_blocks() {
    let (threads, rounds, slabs) = if cfg!(miri) { (2, 30, 24) } else { (4, 20_000, 256) };
    let pool = pool(4 << 10, slabs);
    let sum: usize = std::thread::scope(|scope| {
        let mut senders = Vec::new();
        let mut receivers = Vec::new();
        for _ in 0..threads {
            let (sender, receiver) = mpsc::channel::<(u64, usize, u64)>();
            senders.push(sender);
            receivers.push(receiver);
        }
        let workers = receivers.into_iter().enumerate().map(|(me, receiver)| {
            let (pool, senders) = (&pool, senders.clone());
            scope.spawn(move || {
                let mut state = me as u64 + 1;
                let mut done = 0;
                for round in 0..rounds {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let size = if state >> 60 == 0 { 5000 } else { (state >> 33) as usize % 700 + 8 };
                    if let Ok(off) = pool.allocate(size) {
                        let tag = (me as u64) << 32 | round;
                        for word in pool.words(off, size / WORD).unwrap() {
                            pool.store(word, tag, Ordering::Relaxed);
                        }
                        senders[(state >> 40) as usize % threads].send((off.bytes(), size, tag)).unwrap();
                    }
                    for (at, size, tag) in receiver.try_iter().take(2) {
                        assert!(pool.words(Off::<u8>::new(at), size / WORD).unwrap().iter().all(|word| word.get() == tag), "two owners of a block");
                        match tag % 3 {
                            0 => pool.retire(Off::<u8>::new(at), &pool.pin()),
                            _ => free(pool, at),
                        }
                        done += 1;
                    }
                }
                drop(senders);
                for (at, ..) in receiver {
                    free(pool, at);
                    done += 1;
                }
                done
            })
        });
        let workers: Vec<_> = workers.collect();
        drop(senders);
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    assert!(sum > 0);
    // The threads are gone; nothing may have stayed in their caches.
    pool.collect();
    assert_eq!(pool.audit(&pool.reach()).unwrap(), Usage::default());
    assert!(with_reserve(Reserve::All, || pool.allocate((slabs - 1) * (4 << 10) - LINE)).is_ok());
}

#[test]
fn threads_mark_together() {
    let pool = pool(4 << 10, 64);
    let blocks: Vec<u64> = if cfg!(miri) { fill(&pool, 500) } else { fill(&pool, 48) };
    let size = if cfg!(miri) { 500 } else { 48 };
    let pool = reopened(pool, Start::Unclean);
    let reach = pool.reach();
    let refused = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for half in 0..2 {
            let (reach, blocks, refused) = (&reach, &blocks, &refused);
            // The two threads overlap in every third block.
            scope.spawn(move || {
                for (_, at) in blocks.iter().enumerate().filter(|(index, _)| index % 3 == 2 || index % 3 == half) {
                    refused.fetch_add(usize::from(reach.mark(Off::<u8>::new(*at), size).is_err()), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(refused.into_inner(), blocks.len() / 3);
    pool.adopt(reach).unwrap();
    expect_exactly(&pool, &blocks.iter().map(|at| (*at, size)).collect());
}

#[test]
fn a_pinned_reader_keeps_retired_blocks_from_being_reused() {
    let pool = pool(4 << 10, 16);
    let block = pool.allocate(1000).unwrap();
    let (pinned, may_leave, left) = (Barrier::new(2), AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let guard = pool.pin();
            pinned.wait();
            while !may_leave.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            drop(guard);
            left.wait();
        });
        pinned.wait();
        pool.retire(block, &pool.pin());
        pool.collect();
        assert_eq!(pool.audit(&pool.reach()).unwrap().retired, 1);
        let others: BTreeSet<u64> = fill(&pool, 1000).into_iter().collect();
        assert!(!others.contains(&block.bytes()));
        may_leave.store(true, Ordering::Release);
        left.wait();
    });
    pool.collect();
    assert_eq!(pool.audit(&pool.reach()).unwrap().retired, 0);
    assert_eq!(pool.allocate(1000).unwrap(), block);
}

/// A reader that was there when the block was retired may have led a later one to it.
#[test]
fn a_block_that_is_retired_twice_waits_for_who_came_while_it_waited() {
    let pool = pool(4 << 10, 16);
    let block = pool.allocate(1000).unwrap();
    let steps: Vec<_> = (0..6).map(|_| Barrier::new(3)).collect();
    let is_retired = || pool.audit(&pool.reach()).unwrap().retired == 1;
    let stay = |from: usize, to: usize| {
        (0..from).for_each(|step| _ = steps[step].wait());
        let guard = pool.pin();
        (from..to).for_each(|step| _ = steps[step].wait());
        drop(guard);
        (to..steps.len()).for_each(|step| _ = steps[step].wait());
    };
    std::thread::scope(|scope| {
        scope.spawn(|| stay(0, 3));
        // Not before the block begins to wait.
        scope.spawn(|| stay(2, 5));
        steps[0].wait();
        pool.retire_twice(block, &pool.pin());
        pool.collect();
        assert!(is_retired());
        steps[1].wait();
        steps[2].wait();
        steps[3].wait();
        pool.collect();
        assert!(is_retired() && !fill(&pool, 1000).contains(&block.bytes()), "the second reader is still there");
        steps[4].wait();
        steps[5].wait();
    });
    pool.collect();
    assert!(!is_retired());
}

#[test]
fn a_thread_that_ends_leaves_its_blocks_and_its_retired_ones() {
    let pool = pool(64 << 10, 4);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let [kept, retired] = [pool.allocate(64).unwrap(), pool.allocate(64).unwrap()];
            pool.retire(retired, &pool.pin());
            pool.free(kept);
        });
        // Only joining waits for what a thread does as it ends.
        thread.join().unwrap();
    });
    pool.collect();
    assert_eq!(pool.audit(&pool.reach()).unwrap(), Usage::default());
    assert_eq!(pool.alloc.heap.caches.lock().len(), 1, "but for the cache of this thread");
    assert!(pool.allocate(3 * (64 << 10) - LINE).is_ok());
}

#[test]
fn a_pool_goes_away_with_garbage_pending() {
    let pool = pool(64 << 10, 4);
    let guard = pool.pin();
    for _ in 0..200 {
        pool.retire(pool.allocate(64).unwrap(), &guard);
    }
    let (heap, epochs) = (Arc::downgrade(&pool.alloc.heap), pool.epochs.weak());
    drop(pool);
    assert_eq!((heap.strong_count(), epochs.strong_count()), (0, 0));
    drop(guard);
}

#[test]
fn zeroed_blocks_are_zero_and_flushed_whole() {
    let pool = pool(64 << 10, 4);
    let block = pool.alloc::<[Word; 32]>().unwrap();
    for word in block.iter() {
        pool.store(word, 7, Ordering::Relaxed);
    }
    let at = block.off();
    drop(block);
    let block = pool.alloc_zeroed::<[Word; 32]>().unwrap();
    assert_eq!(block.off(), at);
    assert!(block.iter().all(|word| word.get() == 0));
    let before = pool.medium().flushes.load(Ordering::Relaxed);
    drop(pool.seal(block));
    assert_eq!(pool.medium().flushes.load(Ordering::Relaxed) - before, 4);
}

#[test]
fn a_snapshot_of_a_full_pool_does_not_fit() {
    let pool = pool(4 << 10, 16);
    let blocks = fill(&pool, 4000);
    assert_eq!(pool.snapshot(), None);
    free(&pool, blocks[3]);
    let snapshot = pool.snapshot().unwrap();
    let pool = reopened(pool, Start::Clean(snapshot));
    assert!(!pool.needs_recovery());
    assert_eq!(fill(&pool, 4000), [blocks[3]]);
}

/// Closing a pool waits for no reader, and the snapshot is not written where a reader may still look.
#[test]
fn the_snapshot_is_not_where_readers_may_be() {
    let pool = pool(4096, 64);
    let words = 40 * 512;
    let block = pool.alloc_words(words).unwrap();
    block.iter().for_each(|word| pool.store(word, 7, Ordering::Relaxed));
    let block = pool.seal(block).release();
    let reader = pool.pin();
    pool.retire(block, &pool.pin());
    let snapshot = pool.snapshot().expect("there are free slabs besides");
    assert!(pool.words(block, words).unwrap().iter().all(|word| word.get() == 7));
    drop(reader);
    // The block is free there nevertheless.
    let pool = reopened(pool, Start::Clean(snapshot));
    assert!(pool.alloc_words(words + 16 * 512).is_ok());
}

/// A pool shrunk to the size of its content had no room for the allocator's state, and was recovered when it was opened again, though it had been closed.
#[test]
#[cfg_attr(miri, ignore = "many blocks")]
fn a_pool_that_is_full_of_blocks_grows_to_be_closed() {
    let memory = crate::map::Memory::new(40 << 20).unwrap();
    let options = PoolOptions { size_max: 40 << 20, slab_size: 4096, ..PoolOptions::default() };
    let pool = Pool::create_in(memory.clone(), crate::Hardware::page_cache(), options.clone()).unwrap();
    let reopen = || Pool::open_in(memory.clone(), crate::Hardware::page_cache(), options.clone()).unwrap();
    while pool.alloc.heap.longest_run() > 0 {
        let _ = pool.seal(pool.alloc_words(4096 / 8 - 16).unwrap()).release();
    }
    let size = pool.length();
    assert!(size < pool.size_max());
    pool.close().unwrap();
    drop(pool);
    let pool = reopen();
    assert!(!pool.needs_recovery() && pool.length() > size);
}
