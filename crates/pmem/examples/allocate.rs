//! What allocation and copying cost: nanoseconds per operation, the best of many short rounds.
//!
//! `cargo run --release -p everleaf-pmem --example allocate`

use everleaf_pmem::{Domain, Error, Hardware, Memory, Off, Pool, PoolOptions, Word, probe};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

type Flat = Arc<Pool<Hardware>>;

/// Nanoseconds per operation of the fastest of a few rounds of `count` operations.
fn fastest(count: usize, mut round: impl FnMut()) -> f64 {
    let rounds = (0..100).map(|_| {
        let start = Instant::now();
        round();
        start.elapsed().as_nanos() as f64 / count as f64
    });
    rounds.fold(f64::INFINITY, f64::min)
}

fn pool(size_max: usize, slab_size: usize) -> Result<Flat, Error> {
    Pool::anonymous(Hardware::new(Domain::PageCache), PoolOptions { size_max, slab_size, ..PoolOptions::default() })
}

/// Allocates `count` blocks of 64 bytes and gives them back, on this thread.
fn churn(pool: &Flat, count: usize) {
    let mut held: Vec<_> = (0..16).map(|_| pool.alloc_words(8).ok()).collect();
    for step in 0..count {
        held[step % 16] = None;
        held[step % 16] = pool.alloc_words(8).ok();
    }
}

fn main() -> Result<(), Error> {
    let flat = pool(1 << 30, 64 << 10)?;
    const COUNT: usize = 20_000;
    println!("allocate and free, 64 B, one of 16 held       {:8.1} ns", fastest(COUNT, || churn(&flat, COUNT)));
    for threads in [2, 4] {
        let both = fastest(COUNT, || std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(|| churn(&flat, COUNT)))));
        println!("the same on each of {threads} threads                  {both:8.1} ns");
    }
    for size in [64, 1024] {
        let held = fastest(20_000, || {
            let blocks: Vec<_> = (0..20_000).map(|_| flat.alloc_words(size / 8).ok()).collect();
            black_box(blocks);
        });
        println!("allocate 20,000 of {size:4} B, then free all      {held:8.1} ns");
    }
    println!("pin and unpin                                 {:8.1} ns", fastest(COUNT, || (0..COUNT).for_each(|_| drop(black_box(flat.pin())))));
    let retire = fastest(COUNT, || {
        for _ in 0..COUNT {
            if let Ok(block) = flat.alloc_words(8) {
                let guard = flat.pin();
                flat.retire(flat.seal(block).release(), &guard);
            }
        }
    });
    println!("allocate, seal, pin, retire, 64 B             {retire:8.1} ns");

    let memory = Memory::new(64 << 10)?;
    let options = PoolOptions { size_max: 64 << 10, slab_size: 4 << 10, ..PoolOptions::default() };
    let small = Pool::create_in(memory.clone(), Hardware::new(Domain::PageCache), options.clone())?;
    let blocks = (0..20).map(|_| Ok(small.seal(small.alloc_words(32)?).release())).collect::<Result<Vec<Off<[Word]>>, Error>>()?;
    drop(small);
    let reopen = |pin: bool| -> Result<(), Error> {
        let pool = Pool::open_in(memory.clone(), Hardware::new(Domain::PageCache), options.clone())?;
        let reach = pool.reach();
        blocks.iter().try_for_each(|block| reach.mark(*block, 256))?;
        pool.adopt(reach)?;
        if pin {
            drop(pool.pin());
            drop(pool.alloc_words(32)?);
        }
        Ok(())
    };
    println!("open 64 KiB, mark 20 blocks, adopt             {:8.1} ns", fastest(50, || (0..50).for_each(|_| reopen(false).unwrap())));
    println!("the same, then pin and allocate                {:8.1} ns", fastest(50, || (0..50).for_each(|_| reopen(true).unwrap())));

    let block = flat.alloc_words(1 << 17)?;
    let block = flat.seal(block);
    let mut out = Vec::with_capacity(1 << 20);
    for (skip, length) in [(0, 8), (3, 8), (0, 40), (5, 40), (0, 200), (5, 200), (0, 4096), (0, 1 << 20), (5, 1 << 19)] {
        let repeat = (1 << 20) / (length + 64) + 1;
        let copy = fastest(repeat, || {
            for round in 0..repeat {
                out.clear();
                probe::copy_out(&block[round % 4..], skip, length.min((1 << 20) - 64), &mut out);
                black_box(&out);
            }
        });
        println!("copy out {length:7} B from byte {skip}                {copy:8.1} ns");
    }
    for length in [8, 16, 40, 200, 4096] {
        out.clear();
        probe::copy_out(&block, 0, length, &mut out);
        let repeat = (1 << 20) / (length + 64) + 1;
        let compare = fastest(repeat, || (0..repeat).for_each(|_| _ = black_box(probe::compare(black_box(&out), &block, length, 0))));
        println!("compare  {length:7} B                            {compare:8.1} ns");
    }
    Ok(())
}
