//! Opens arbitrary bytes as a pool, and uses what opens.
//!
//! The input is a list of changes to a small pool that was closed cleanly: 2 bytes for the word's number, 8 for its new value. Random changes of a superblock
//! rarely have a valid checksum, so the first byte says whether the target corrects it. The result must be an error or an answer, without a panic, an endless
//! loop, or an access out of bounds.
//!
//! Run it with `cargo +nightly fuzz run open_pool`.

#![no_main]

use everleaf_pmem::{Error, Hardware, Memory, Off, Pool, PoolOptions, Reach, Word};
use libfuzzer_sys::fuzz_target;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

const SIZE: usize = 64 << 10;

fn options() -> PoolOptions {
    PoolOptions { size_max: SIZE, slab_size: 4096, ..PoolOptions::default() }
}

/// The words of a pool with 40 roots: more than fit in one block of the directory.
static SEED: LazyLock<Vec<u64>> = LazyLock::new(|| {
    let memory = Memory::new(SIZE).expect("64 KiB");
    let pool = Pool::create_in(memory.clone(), Hardware::page_cache(), options()).expect("new memory");
    for number in 0..40 {
        link(&pool, &number.to_string()).expect("room for 40");
    }
    pool.close().expect("nothing fails in memory");
    memory.words().iter().map(|word| word.load(Ordering::Relaxed)).collect()
});

fn link(pool: &Arc<Pool>, name: &str) -> Result<(), Error> {
    let block = pool.seal(pool.alloc_words(1)?);
    pool.link_root(name, 1, block).map(drop)
}

fn mark(pool: &Pool) -> Result<Reach<'_, Hardware>, Error> {
    let reach = pool.reach();
    for (_, root) in pool.roots()? {
        reach.mark(Off::<Word>::new(root.off), 8)?;
    }
    Ok(reach)
}

fn live(pool: &Arc<Pool>) -> Result<(), Error> {
    pool.adopt(mark(pool)?)?;
    link(pool, "new")?;
    pool.unlink_root("7")?;
    while pool.alloc_words(100).map(std::mem::forget).is_ok() {}
    pool.audit(&mark(pool)?).map(drop)
}

fuzz_target!(|bytes: &[u8]| {
    let Some((mend, changes)) = bytes.split_first() else { return };
    let memory = Memory::new(SIZE).expect("64 KiB");
    for (word, value) in memory.words().iter().zip(SEED.iter()) {
        word.store(*value, Ordering::Relaxed);
    }
    for change in changes.chunks_exact(10) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % (SIZE / 8);
        memory.words()[at].store(u64::from_le_bytes(change[2..].try_into().expect("8 of 10 bytes")), Ordering::Relaxed);
    }
    if mend & 1 == 1 {
        for slot in [64, 128] {
            let words = &memory.words()[slot..slot + 16];
            let content: Vec<u8> = words[..15].iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
            words[15].store(u64::from(crc32c::crc32c(&content)), Ordering::Relaxed);
        }
    }
    for _ in 0..2 {
        if let Ok(pool) = Pool::open_in(memory.clone(), Hardware::page_cache(), options()) {
            let _ = (pool.root("7"), live(&pool), pool.close());
        }
    }
});
