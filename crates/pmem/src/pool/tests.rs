//! Tests that look inside: forged superblocks, forged directories, damage.

use super::header::{Header, MAGIC};
use super::*;
use crate::{Off, Word};
use proptest::prelude::*;

fn small() -> PoolOptions {
    PoolOptions { size_max: 256 << 10, slab_size: 4096, ..PoolOptions::default() }
}

fn memory_pool() -> (Arc<Memory>, Arc<Pool>) {
    let memory = Memory::new(256 << 10).unwrap();
    let pool = Pool::create_in(memory.clone(), Hardware::page_cache(), small()).unwrap();
    (memory, pool)
}

/// Memory that begins as a file does.
#[cfg(not(miri))]
fn memory_with(bytes: &[u8]) -> Arc<Memory> {
    let memory = Memory::new(256 << 10).unwrap();
    for (word, bytes) in memory.words().iter().zip(bytes.as_chunks().0) {
        word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
    }
    memory
}

/// The active superblock of a file.
#[cfg(not(miri))]
fn superblock_in(bytes: &[u8]) -> Option<Superblock> {
    let memory = memory_with(bytes);
    // SAFETY: the memory outlives `pm`.
    let pm = unsafe { Pm::new(Hardware::page_cache(), memory.base(), memory.size()) };
    pm.head::<Header>().read(Path::new("test"), u64::MAX).ok()
}

fn put<M: Medium>(pool: &Pool<M>, name: &str, value: u64) -> Result<Off<[Word]>, Error> {
    let block = pool.alloc_words(1)?;
    pool.store(&block[0], value, Ordering::Relaxed);
    let block = pool.seal(block);
    pool.link_root(name, value, block)
}

fn reopen(memory: &Arc<Memory>) -> Result<Arc<Pool>, Error> {
    Pool::open_in(memory.clone(), Hardware::page_cache(), small())
}

/// Recovers a pool whose roots are blocks of one word.
fn adopt<M: Medium>(pool: &Pool<M>) -> Result<(), Error> {
    let reach = pool.reach();
    for (_, root) in pool.roots()? {
        reach.mark(Off::<Word>::new(root.off), 8)?;
    }
    pool.adopt(reach)
}

/// Mends the header of a copy, as if the file had half of it; a mended header must be readable.
fn mend_copy(memory: &Memory) {
    let copy = Memory::new(256 << 10).unwrap();
    copy.words().iter().zip(memory.words()).take(512).for_each(|(to, word)| to.store(word.load(Ordering::Relaxed), Ordering::Relaxed));
    // SAFETY: the memory outlives `pm`.
    let pm = unsafe { Pm::new(Hardware::page_cache(), copy.base(), copy.size()) };
    let (header, path) = (pm.head::<Header>(), Path::new("test"));
    match header.mend(&pm, path, 128 << 10, 256 << 10) {
        Ok(wrong) => assert!(header.read(path, 256 << 10).is_ok(), "{wrong:?}"),
        Err(_) => assert!(header.read(path, 256 << 10).is_err()),
    }
}

/// Replaces the superblock of the pool in `memory`.
fn forge(memory: &Arc<Memory>, change: impl FnOnce(&mut Superblock)) {
    // SAFETY: the memory outlives `pm`, which is dropped at the end of the block.
    let pm = unsafe { Pm::new(Hardware::page_cache(), memory.base(), memory.size()) };
    let header = pm.head::<Header>();
    let mut superblock = header.read(Path::new("test"), memory.size() as u64).unwrap();
    superblock.sequence = superblock.next();
    change(&mut superblock);
    header.commit(&pm, &superblock);
}

#[test]
fn a_directory_of_many_blocks_finds_and_reuses() {
    let (memory, pool) = memory_pool();
    let name = |number: u64| format!("root number {number}");
    for number in 1..=100 {
        put(&pool, &name(number), number).unwrap();
    }
    assert_eq!(pool.directory_blocks().unwrap().len(), 3, "31 entries in each block");
    assert!(matches!(put(&pool, &name(50), 50), Err(Error::RootExists { .. })));
    for number in (1..=100).step_by(2) {
        assert_eq!(pool.unlink_root(&name(number)).unwrap().kind, number);
    }
    assert!(matches!(pool.unlink_root(&name(1)), Err(Error::NoSuchRoot { .. })));
    for number in 101..=150 {
        put(&pool, &name(number), number).unwrap();
    }
    assert_eq!(pool.directory_blocks().unwrap().len(), 3, "free entries are reused");
    let block = pool.alloc_words(1).unwrap();
    let new = block.off().bytes();
    let old = pool.replace_root(&name(2), pool.seal(block)).unwrap();
    assert_eq!(old.kind, 2);
    drop(pool);

    let pool = reopen(&memory).unwrap();
    assert_eq!(pool.root(&name(2)).unwrap().unwrap(), Root { kind: 2, off: new });
    let mut kinds: Vec<_> = pool.roots().unwrap().into_iter().map(|(text, root)| (text == name(root.kind)).then_some(root.kind).unwrap()).collect();
    kinds.sort();
    adopt(&pool).unwrap();
    let usage = pool.audit(&{
        let reach = pool.reach();
        kinds.iter().for_each(|kind| reach.mark(Off::<Word>::new(pool.root(&name(*kind)).unwrap().unwrap().off), 8).unwrap());
        reach
    });
    assert_eq!(usage.unwrap().reachable, 100 + 3, "roots, and blocks of the directory: neither are given away after a crash");
    assert_eq!(kinds, (2..=100).step_by(2).chain(101..=150).collect::<Vec<_>>());
}

#[test]
fn names_have_1_to_40_bytes() {
    let (_memory, pool) = memory_pool();
    for name in ["", &"x".repeat(41)] {
        assert!(matches!(put(&pool, name, 1), Err(Error::RootName { .. })));
        assert!(matches!(pool.root(name), Err(Error::RootName { .. })));
    }
    for name in ["x", &"x".repeat(40), "\u{1f333}"] {
        put(&pool, name, 1).unwrap();
        assert!(pool.root(name).unwrap().is_some());
    }
}

#[test]
fn a_chain_that_runs_into_itself_is_recognised() {
    let (_memory, pool) = memory_pool();
    for number in 0..64 {
        put(&pool, &number.to_string(), number).unwrap();
    }
    let blocks = pool.directory_blocks().unwrap();
    // The words `next` of the first block and of the last: each linked to the first block of the chain, to itself, into the header, and beyond the end.
    let nexts = [Off::<Word>::new(2048), blocks[1].0.cast()];
    for next in nexts.map(|off| pool.get(off).unwrap()) {
        let good = next.get();
        for target in [blocks[0].0.bytes(), blocks[1].0.bytes(), 2048, 64, pool.length() as u64, 1 << 40, 4097] {
            if Off::<Word>::new(target).link() == good {
                continue;
            }
            pool.store(next, Off::<Word>::new(target).link(), Ordering::Relaxed);
            assert!(matches!(pool.roots(), Err(Error::Corrupt { .. })), "{target:#x}");
            assert!(matches!(put(&pool, "new", 1), Err(Error::Corrupt { .. })), "{target:#x}");
        }
        pool.store(next, good, Ordering::Relaxed);
    }
    assert_eq!(pool.roots().unwrap().len(), 64);
}

#[test]
fn every_flipped_bit_of_a_superblock_is_noticed() {
    let (memory, pool) = memory_pool();
    put(&pool, "name", 1).unwrap();
    drop(pool);
    let words = memory.words();
    let good: Vec<u64> = words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    // Only the second superblock has been written, in words 128 to 143.
    for at in [0, 1].into_iter().chain(128..144) {
        for bit in (0..64).step_by(if cfg!(miri) { 21 } else { 1 }) {
            words[at].store(good[at] ^ 1 << bit, Ordering::Relaxed);
            assert!(reopen(&memory).is_err(), "bit {bit} of word {at}");
            words[at].store(good[at], Ordering::Relaxed);
        }
    }
    reopen(&memory).unwrap();
}

#[test]
fn a_stale_superblock_is_noticed() {
    let (memory, pool) = memory_pool();
    pool.close().unwrap();
    drop(pool);
    memory.words()[1].store(Off::<()>::new(4).link(), Ordering::Relaxed);
    assert!(matches!(reopen(&memory), Err(Error::Corrupt { at: 512, .. })));
}

#[test]
fn features_and_versions_of_the_future_are_refused() {
    for (change, version, features) in [((|it| it.version = 2) as fn(&mut Superblock), 2, SPANS), (|it| it.features_incompatible = 4, 1, 4)] {
        let (memory, _) = memory_pool();
        forge(&memory, change);
        match reopen(&memory) {
            Err(Error::NewerVersion { version: v, features: f, .. }) => assert_eq!((v, f), (version, features)),
            other => panic!("{:?}", other.err()),
        }
    }
    let (memory, _) = memory_pool();
    forge(&memory, |it| it.features_compatible = 4);
    assert_eq!(reopen(&memory).unwrap().info().features_compatible, 4);
}

#[test]
fn impossible_sizes_are_refused() {
    for size in [0, 4095, 4097, 100, 1 << 60, u64::MAX] {
        let (memory, _) = memory_pool();
        forge(&memory, |it| it.size = size);
        assert!(matches!(reopen(&memory), Err(Error::Corrupt { .. })), "size {size}");
    }
    for slab_size in [0, 1, 2048, 5000, 128 << 10, 1 << 63] {
        let (memory, _) = memory_pool();
        forge(&memory, |it| it.slab_size = slab_size);
        assert!(matches!(reopen(&memory), Err(Error::Corrupt { .. })), "slab size {slab_size}");
    }
    let (memory, _) = memory_pool();
    forge(&memory, |it| it.size = 512 << 10);
    assert!(matches!(reopen(&memory), Err(Error::Truncated { size: 524288, length: 262144, .. })));
}

/// The last sequence number is followed by the first.
#[test]
fn sequence_numbers_wrap() {
    let (memory, _) = memory_pool();
    forge(&memory, |it| it.sequence = crate::off::SIZE_MAX - 1);
    reopen(&memory).unwrap().close().unwrap();
    assert_eq!(reopen(&memory).unwrap().info().found, Found::Clean);
}

#[test]
fn opening_twice_stores_nothing_the_second_time() {
    let (memory, pool) = memory_pool();
    put(&pool, "name", 1).unwrap();
    pool.close().unwrap();
    drop(pool);
    let content = || memory.words().iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>();
    assert_eq!(reopen(&memory).unwrap().info().found, Found::Clean);
    let first = content();
    assert_eq!(reopen(&memory).unwrap().info().found, Found::Unclean);
    assert!(content() == first);
}

/// A crash at any moment of: a creation, a link, an open, an unlink, a close. Every image must open with what is linked, or be an unfinished creation.
#[test]
#[cfg(not(miri))]
fn a_crash_at_any_moment_leaves_a_pool_or_nothing() {
    use crate::{Crash, CrashOptions, Seen};
    let memory = Memory::new(64 << 10).unwrap();
    let options = || PoolOptions { size_max: 64 << 10, slab_size: 4096, ..PoolOptions::default() };
    let ground = Crash::new(&memory);
    let crash_options = CrashOptions { images_max: 1 << 16, ..CrashOptions::default() };
    let life = ground.live(crash_options.clone());
    /// How many images opened, and how many were taken for an unfinished creation.
    static SEEN: [std::sync::atomic::AtomicUsize; 2] = [const { std::sync::atomic::AtomicUsize::new(0) }; 2];
    // The acknowledged roots, and the one that may or may not be there yet.
    let expected = Arc::new(Mutex::new((false, Vec::<String>::new(), None::<String>)));
    let (shared, again, deep) = (expected.clone(), memory.clone(), crash_options);
    life.observe(move |image| {
        let (created, sure, pending) = &*shared.lock();
        let life = image.live(deep.clone());
        let pool = match Pool::open_in(again.clone(), life.medium(), options()) {
            Ok(pool) => {
                SEEN[0].fetch_add(1, Ordering::Relaxed);
                pool
            }
            Err(Error::Unfinished { .. }) if !*created => {
                SEEN[1].fetch_add(1, Ordering::Relaxed);
                Pool::create_in(again.clone(), life.medium(), options()).expect("created anew")
            }
            Err(error) => panic!("{error}"),
        };
        let mut names: Vec<_> = pool.roots().unwrap().into_iter().map(|(name, _)| name).collect();
        names.retain(|name| Some(name) != pending.as_ref());
        names.sort();
        assert_eq!(&names, sure);
        adopt(&pool).unwrap();
        put(&pool, "after", 1).unwrap();
        pool.close().unwrap();
        drop(pool);
        assert_eq!(Pool::open_in(again.clone(), life.medium(), options()).unwrap().info().found, Found::Clean);
        Seen::default()
    });
    let pool = Pool::create_in(memory.clone(), life.medium(), options()).unwrap();
    expected.lock().0 = true;
    life.end();
    let change = |name: &str, change: &dyn Fn(&Pool<Crash>), there: bool| {
        expected.lock().1.retain(|other| other != name);
        expected.lock().2 = Some(name.into());
        change(&pool);
        expected.lock().2 = None;
        if there {
            expected.lock().1.push(name.into());
            expected.lock().1.sort();
        }
        life.end();
    };
    // More than a block of the directory holds.
    for number in 0..33 {
        let name = number.to_string();
        change(&name, &|pool| _ = put(pool, &name, 1).unwrap(), true);
    }
    change("7", &|pool| _ = pool.unlink_root("7").unwrap(), false);
    change("other", &|pool| _ = put(pool, "other", 1).unwrap(), true);
    change("other", &|pool| _ = pool.replace_root("other", pool.seal(pool.alloc_words(1).unwrap())).unwrap(), true);
    pool.close().unwrap();
    life.end();
    drop(pool);
    Pool::open_in(memory.clone(), life.medium(), options()).unwrap();
    life.end();
    println!("images: {SEEN:?}");
    assert!(SEEN.iter().all(|count| count.load(Ordering::Relaxed) > 10));
}

/// A medium that fails at a fence on demand, and forgets the failure on demand.
#[derive(Default)]
struct Failing {
    armed: std::sync::atomic::AtomicBool,
    failed: std::sync::atomic::AtomicBool,
}

impl Medium for Failing {
    fn flush(&self, _: crate::medium::Lines<'_>) {}
    fn fence(&self) {
        self.failed.fetch_or(self.armed.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    fn failure(&self) -> Option<&str> {
        self.failed.load(Ordering::Relaxed).then_some("told to")
    }
}

/// The snapshot overwrites slabs that hold no block, so a pool that went on handing out blocks from them after closing failed could not be recovered. And a
/// second attempt that succeeds does not complete a file that could not be synchronised.
#[test]
fn closing_that_failed_is_the_end_nonetheless() {
    let pool = Pool::anonymous(Failing::default(), small()).unwrap();
    drop(pool.alloc_words(1).unwrap());
    pool.medium().armed.store(true, Ordering::Relaxed);
    assert!(matches!(pool.close(), Err(Error::WriteBack { .. })));
    pool.medium().failed.store(false, Ordering::Relaxed);
    assert!(matches!(pool.alloc_words(1), Err(Error::Closed)));
    assert!(matches!(pool.close(), Err(Error::Closed)));
}

#[test]
fn a_file_that_could_not_be_synchronised_accepts_no_more() {
    let (_memory, pool) = memory_pool();
    pool.latch(Ok(())).unwrap();
    pool.writable().unwrap();
    let failure = || Err(Error::Io { action: "synchronise", path: "test".into(), source: std::io::ErrorKind::Other.into() });
    assert!(matches!(pool.latch(failure()), Err(Error::Io { .. })));
    for refused in [pool.writable(), pool.alloc_words(1).map(drop), pool.unlink_root("name").map(drop), pool.close()] {
        assert!(matches!(refused, Err(Error::WriteBack { .. })), "{refused:?}");
    }
}

/// Names of what is synchronised, each with the size and cleanliness in the file's header just before.
#[cfg(not(miri))]
fn synchronised() -> Vec<(&'static str, Option<(u64, bool)>)> {
    let said = |header: Vec<u8>| superblock_in(&header).map(|superblock| (superblock.size, superblock.clean));
    backing::synchronised::take().into_iter().map(|(what, header)| (what, said(header))).collect()
}

/// The device has a file, and its length, before the header knows of it, and all of a pool before the header says that it was closed. No image shows that,
/// because the crash checker's worlds lie in memory.
#[test]
#[cfg(not(miri))]
fn the_device_has_what_a_header_says() {
    const STEP: u64 = 16 << 20;
    for domain in [Domain::PageCache, Domain::Msync] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        let options = PoolOptions { size_max: 4 * STEP as usize, domain: Some(domain), ..small() };
        let (open, closed, grown) = (Some((STEP, false)), Some((2 * STEP, true)), Some((2 * STEP, false)));
        let headers = |said: &[_]| said.iter().map(|said| ("header", *said)).collect::<Vec<_>>();
        // With a journal, fences do not write the header in place.
        let journaled = |notes: Vec<_>| if domain == Domain::Msync { notes } else { Vec::new() };
        synchronised();
        let pool = Pool::create(&path, &options).unwrap();
        let has_device = domain == Domain::Msync || !pool.backing.is_in_memory();
        let created = [vec![("file", None), ("header", None), ("header", open), ("directory", open)], journaled(headers(&[open, open]))].concat();
        assert_eq!(synchronised(), created, "created, {domain:?}");
        pool.grow(1).unwrap();
        assert_eq!(synchronised(), journaled(headers(&[open, grown])), "grown, {domain:?}");
        pool.close().unwrap();
        assert_eq!(synchronised(), [("file", grown), ("header", grown), ("header", closed)], "closed, {domain:?}");
        drop(pool);
        let pool = Pool::open(&path, &options).unwrap();
        let begun = |said| [journaled(vec![("file", said)]), if has_device { headers(&[said, said]) } else { Vec::new() }].concat();
        assert_eq!(synchronised(), [begun(closed), headers(&[closed, grown])].concat(), "opened, {domain:?}");
        drop(pool);
        let kept = if domain == Domain::PageCache && has_device { ["file", "header", "header"].map(|what| (what, grown)).to_vec() } else { Vec::new() };
        assert_eq!(synchronised(), kept, "dropped, {domain:?}");
        let _pool = Pool::open(&path, &options).unwrap();
        let recovered = journaled(["file", "header", "file", "header", "header"].map(|what| (what, grown)).to_vec());
        let again = [recovered, begun(grown), if has_device { headers(&[grown, grown]) } else { Vec::new() }].concat();
        assert_eq!(synchronised(), again, "opened, though it was not closed, {domain:?}");
    }
}

/// A thread in the middle of an operation goes on to its commit point, which must not outlive what it refers to.
#[test]
#[cfg(not(miri))]
fn nothing_that_is_stored_behind_a_failed_msync_gets_into_the_file() {
    [false, true].into_iter().for_each(fail_to_write);
}

/// The device fails a write, or a publication.
#[cfg(not(miri))]
fn fail_to_write(publishes: bool) {
    use std::os::unix::fs::FileExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let pool = Pool::create(&path, &PoolOptions { domain: Some(Domain::Msync), ..small() }).unwrap();
    let block = pool.alloc_words(1).unwrap();
    let store = |value| {
        pool.store(&block[0], value, Ordering::Relaxed);
        pool.persist(&block[0]);
    };
    let in_file = || {
        let mut bytes = [0; 8];
        std::fs::File::open(&path).unwrap().read_exact_at(&mut bytes, block.off().bytes()).unwrap();
        u64::from_le_bytes(bytes)
    };
    store(1);
    assert_eq!(in_file(), 1);
    pool.journal().unwrap().fail_next();
    if publishes {
        pool.publish(|| {
            pool.store(&block[0], 2, Ordering::Relaxed);
            pool.flush(&block[0]);
        });
        assert_eq!((block[0].get(), in_file()), (2, 1), "whoever goes on finds it, and nobody else");
    } else {
        store(2);
    }
    store(3);
    let before = if publishes { 1 } else { 2 };
    assert_eq!((block[0].get(), in_file()), (3, before), "what was stored before the failure may get there");
    assert!(matches!(pool.writable(), Err(Error::WriteBack { .. })));
    // Another failure does not take away what this process has stored meanwhile, either.
    pool.journal().unwrap().fail_next();
    store(4);
    assert_eq!((block[0].get(), in_file()), (4, before));
    assert!(matches!(pool.close(), Err(Error::WriteBack { .. })));
}

/// The file was cut off while the device might still say that the pool is longer.
#[test]
#[cfg(not(miri))]
fn a_pool_whose_shrinking_fails_keeps_its_file() {
    const STEP: usize = 16 << 20;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let options = PoolOptions { size_max: 4 * STEP, domain: Some(Domain::Msync), ..small() };
    let pool = Pool::create(&path, &options).unwrap();
    pool.grow(1).unwrap();
    let size = pool.info().size;
    pool.journal().unwrap().fail_next();
    assert!(matches!(pool.shrink(STEP), Err(Error::WriteBack { .. })));
    drop(pool);
    assert_eq!(Pool::open(&path, &options).unwrap().info().size, size);
}

#[test]
fn a_block_of_another_pool_is_refused() {
    let ((_memory, pool), (_other_memory, other)) = (memory_pool(), memory_pool());
    let slot = pool.alloc_words(1).unwrap();
    let refused = |act: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err();
    let block = || other.alloc_words(1).unwrap();
    assert!(refused(&|| drop(pool.seal(block()))));
    assert!(refused(&|| _ = pool.link(&slot[0], other.seal(block()))));
    assert!(refused(&|| _ = pool.link_root("name", 1, other.seal(block()))));
    assert!(pool.roots().unwrap().is_empty());
}

/// A file may grow after it was mapped, and a superblock may say so; what lies behind the mapping is still out of reach.
#[test]
#[cfg(not(miri))]
fn a_file_that_grows_under_an_inspection_is_seen_as_it_was_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("test.pool");
    drop(Pool::create(&path, &small()).unwrap());
    let backing = Backing::File(Arc::new(map_file(&path, &PoolOptions { size_max: 0, ..small() }, Mode::Inspect).unwrap()));
    std::fs::File::options().write(true).open(&path).unwrap().set_len(64 << 20).unwrap();
    assert_eq!(backing.length().unwrap(), 2 << 20, "a huge page of address space");
}

/// Mapped pages, at least the header's and its neighbours, stayed in the page cache, whatever the device had of them.
#[test]
#[cfg(not(miri))]
fn what_is_mapped_is_dropped_from_the_page_cache_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("test.pool");
    let options = PoolOptions { size_max: 16 << 20, ..small() };
    let pool = Pool::create(&path, &options).unwrap();
    put(&pool, "name", 7).unwrap();
    drop(pool);
    let mapping = Arc::new(map_file(&path, &options, Mode::Open).unwrap());
    let backing = Backing::File(Arc::clone(&mapping));
    if backing.is_in_memory() {
        println!("skipped: a tmpfs has no device");
        return;
    }
    let length = backing.length().unwrap() as usize;
    let content = || mapping.words(0, length / 8).iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let cached = || {
        let mut pages = vec![0u8; length / 4096];
        // SAFETY: the call writes a byte for each page of the mapping, which has so many.
        assert_eq!(unsafe { libc::mincore(mapping.base().as_ptr().cast(), length, pages.as_mut_ptr()) }, 0);
        pages.iter().filter(|page| **page & 1 != 0).count()
    };
    let before = content();
    // The last pages are changed, and written.
    mapping.words(length - 8, 1)[0].store(3, Ordering::Relaxed);
    assert_eq!(cached(), length / 4096);
    backing.synchronise().unwrap();
    backing.drop_cached().unwrap();
    assert_eq!(cached(), 0, "of {} pages", length / 4096);
    let after = content();
    assert!(before[..length / 8 - 1] == after[..length / 8 - 1] && after[length / 8 - 1] == 3, "nothing is lost");
}

/// KiB of the mapping at `base`, according to the system: all that have been touched, or those on huge pages of a tmpfs.
#[cfg(not(miri))]
fn kib(base: std::ptr::NonNull<u8>, what: &str) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let own = format!("{:x}-", base.addr());
    let line = maps.lines().skip_while(|line| !line.starts_with(&own)).find(|line| line.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
#[cfg(not(miri))]
fn a_pool_has_memory_behind_what_is_prefaulted() {
    const PREFAULTED: usize = 40 << 20;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("test.pool");
    let options = |prefault| PoolOptions { size_max: 64 << 20, prefault, ..PoolOptions::default() };
    let populated = |pool: &Pool<Hardware>| {
        let base = pool.backing.base();
        crate::map::can_populate().then(|| kib(base, "Rss:") as usize * 1024)
    };
    let pool = Pool::create(&path, &options(0)).unwrap();
    put(&pool, "first", 7).unwrap();
    assert!(pool.info().size < PREFAULTED);
    drop(pool);
    // Also a pool that was not closed, before it is recovered.
    let pool = Pool::open(&path, &options(PREFAULTED)).unwrap();
    assert_eq!(pool.info().size, PREFAULTED);
    assert!(populated(&pool).is_none_or(|bytes| bytes >= PREFAULTED), "{:?}", populated(&pool));
    adopt(&pool).unwrap();
    assert_eq!(pool.root("first").unwrap().unwrap().kind, 7);
    pool.alloc_words(3 << 20).unwrap();
    assert_eq!(pool.info().size, PREFAULTED, "there was room");
    pool.close().unwrap();
    drop(pool);
    // Never more than the pool may have.
    let pool = Pool::open(&path, &options(1 << 40)).unwrap();
    assert_eq!(pool.info().size, 64 << 20);
    drop(pool);
    let pool = Pool::anonymous(Hardware::page_cache(), options(PREFAULTED)).unwrap();
    assert!(populated(&pool).is_none_or(|bytes| bytes >= PREFAULTED), "{:?}", populated(&pool));
}

/// Older systems and other file systems cannot: then the pool is like any other.
#[test]
#[cfg(not(miri))]
fn what_a_pool_grows_by_lies_on_huge_pages() {
    const HUGE: usize = 2 << 20;
    let shared = Path::new("/dev/shm");
    let parent = if shared.is_dir() { shared } else { Path::new(".") };
    for (directory, huge_pages) in [(tempfile::tempdir(), true), (tempfile::tempdir_in(parent), false), (tempfile::tempdir_in(parent), true)] {
        let path = directory.as_ref().unwrap().path().join("test.pool");
        let options = PoolOptions { size_max: 256 << 20, huge_pages, ..PoolOptions::default() };
        let pool = Pool::create(&path, &options).unwrap();
        put(&pool, "first", 7).unwrap();
        // With so little room, this is not what is tested.
        let Ok(run) = pool.alloc_words(3 << 20) else { continue };
        pool.store(&run[2 << 20], 8, Ordering::Relaxed);
        let Backing::File(mapping) = &pool.backing else { unreachable!() };
        assert_eq!(mapping.base().addr().get() % HUGE, 0);
        let size = pool.info().size;
        assert!(size > 24 << 20);
        assert_eq!(mapping.has_huge_pages(), huge_pages && mapping.is_tmpfs());
        let is_pmd = || std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").is_ok_and(|size| size.trim() == HUGE.to_string());
        // Also those that only the search for room has touched, except for pages in use in some way at that moment.
        if mapping.has_huge_pages() && is_pmd() && mapping.collapse(0, size / HUGE) {
            assert!(kib(mapping.base(), "ShmemPmdMapped:") as usize >= (size >> 10) / 2, "{size}");
        }
        assert_eq!(run[2 << 20].load(Ordering::Relaxed), 8);
        drop(run);
        drop(pool);
        let pool = Pool::open(&path, &PoolOptions { huge_pages: false, ..options }).unwrap();
        adopt(&pool).unwrap();
        assert_eq!(pool.root("first").unwrap().unwrap().kind, 7);
    }
}

/// Measuring what persistent memory would cost does not make a file outlive the machine.
#[test]
#[cfg(not(miri))]
fn a_domain_of_persistent_memory_is_not_believed_of_the_page_cache() {
    let dir = tempfile::tempdir().unwrap();
    for (number, domain) in [Domain::Adr, Domain::Eadr, Domain::Msync].into_iter().enumerate() {
        let pool = Pool::create(&dir.path().join(number.to_string()), &PoolOptions { domain: Some(domain), ..small() }).unwrap();
        let Backing::File(mapping) = &pool.backing else { unreachable!() };
        let remembered = if domain == Domain::Msync || mapping.sharing() == Sharing::Direct { domain } else { Domain::PageCache };
        assert_eq!((pool.info().domain, pool.superblock.lock().domain), (Some(domain), remembered.number()));
    }
}

/// Opening a pool that was to survive power failures, without naming a domain, keeps that promise.
#[test]
#[cfg(not(miri))]
fn msync_is_kept_until_another_domain_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let open = |domain| {
        let pool = Pool::open_or_create(&path, &PoolOptions { domain, ..small() }).unwrap();
        pool.close().unwrap();
        pool.info().domain
    };
    let found = open(None);
    assert_ne!(found, Some(Domain::Msync));
    assert_eq!([Some(Domain::Msync), None, None].map(open), [Some(Domain::Msync); 3]);
    assert_eq!([Some(Domain::PageCache), None].map(open), [Some(Domain::PageCache), found]);
}

#[test]
fn memory_with_something_else_in_it_is_left_alone() {
    let (memory, _) = memory_pool();
    let create = || Pool::create_in(memory.clone(), Hardware::page_cache(), small()).map(drop);
    assert!(matches!(create(), Err(Error::Exists { .. })));
    memory.words()[0].store(0, Ordering::Relaxed);
    create().expect("what a creation leaves that did not get as far as the magic");
    memory.words()[0].store(0, Ordering::Relaxed);
    memory.words()[300].store(1, Ordering::Relaxed);
    assert!(matches!(create(), Err(Error::NotAPool { magic: 0, .. })));
    memory.words()[0].store(MAGIC + 1, Ordering::Relaxed);
    assert!(matches!(create(), Err(Error::NotAPool { .. })));
}

#[test]
fn what_a_domain_does_not_survive_is_refused() {
    let (memory, _) = memory_pool();
    // SAFETY: the memory outlives `pm`.
    let pm = unsafe { Pm::new(Hardware::page_cache(), memory.base(), memory.size()) };
    let found = pm.head::<Header>().read(Path::new("test"), memory.size() as u64).unwrap();
    let check = |domain: Domain, change: fn(&mut Superblock)| {
        let found = Superblock { domain: domain.number(), boot: 17, dirty_shutdowns: 2, ..found };
        let mut now = found;
        change(&mut now);
        check_survival(&found, &now, Path::new("test"))
    };
    for domain in Domain::ALL {
        let direct = matches!(domain, Domain::Adr | Domain::Eadr);
        assert!(check(domain, |_| {}).is_ok());
        assert_eq!(matches!(check(domain, |now| now.boot = 18), Err(Error::MachineFailed { .. })), domain == Domain::PageCache);
        assert!(check(domain, |now| now.boot = 0).is_ok(), "a boot that is not known proves nothing");
        assert_eq!(matches!(check(domain, |now| now.dirty_shutdowns = 3), Err(Error::DirtyShutdown { before: 2, after: 3, .. })), direct);
    }
}

#[test]
#[cfg(not(miri))]
fn a_file_left_open_by_a_dead_machine_needs_consent() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("test.pool");
    put(&Pool::create(&path, &small()).unwrap(), "name", 1).unwrap();
    // Makes the superblock say that another boot of the machine had it open.
    let memory = memory_with(&std::fs::read(&path).unwrap());
    forge(&memory, |it| it.boot ^= 1);
    let bytes: Vec<u8> = memory.words()[..512].iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
    std::fs::File::options().write(true).open(&path).unwrap().write_all_at(&bytes, 0).unwrap();

    let error = Pool::open(&path, &small()).err().unwrap();
    assert!(matches!(error, Error::MachineFailed { .. }));
    println!("{error}");
    let accepting = PoolOptions { accept_dirty_shutdown: true, ..small() };
    let pool = Pool::open(&path, &accepting).unwrap();
    assert!(pool.root("name").unwrap().is_some());
    drop(pool);
    // Accepted once, it is a pool of this boot; but it stays one that may be torn.
    let pool = Pool::open(&path, &small()).unwrap();
    assert!(matches!(pool.flaws(), [Error::Accepted { .. }]), "{:?}", pool.flaws());
    pool.close().unwrap();
    drop(pool);
    assert!(matches!(Pool::inspect(&path).unwrap().flaws(), [Error::Accepted { .. }]));
}

/// A child that wrote to the pool of its parent made it unreadable.
#[test]
#[cfg(not(miri))]
fn a_forked_child_does_not_have_the_pool() {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(&directory.path().join("pool"), &small()).unwrap();
    let word: &Word = pool.get(Off::new(8)).unwrap();
    // SAFETY: the child reads one word, which ends it.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let word = std::hint::black_box(word.get());
        // SAFETY: this ends the child at once.
        unsafe { libc::_exit(i32::from(word == 0)) };
    }
    let mut status = 0;
    // SAFETY: the child is this process's, and `status` is alive.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status), "{status:#x}");
    put(&pool, "name", 1).unwrap();
    assert!(pool.root("name").unwrap().is_some());
}

/// This does not apply to a pool that was dropped: its process could still have the device take all of it.
#[test]
#[cfg(not(miri))]
fn a_pool_that_was_dropped_outlives_a_restart_of_the_machine() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let pool = Pool::create(&path, &small()).unwrap();
    if pool.backing.is_in_memory() {
        println!("skipped: a tmpfs does not outlive the machine");
        return;
    }
    put(&pool, "name", 1).unwrap();
    let boot = || {
        let found = superblock_in(&std::fs::read(&path).unwrap()).unwrap();
        assert!(!found.clean);
        found.boot
    };
    assert_eq!(boot(), boot_id());
    backing::synchronised::fail_behind(0);
    drop(pool);
    assert_eq!(boot(), header::NO_BOOT, "the device has refused to write");
    drop(Pool::open(&path, &PoolOptions { accept_dirty_shutdown: true, ..small() }).unwrap());
    assert_eq!(boot(), 0);
    let pool = Pool::open(&path, &small()).unwrap();
    assert_eq!(pool.info().found, Found::Unclean);
    assert!(pool.root("name").unwrap().is_some());
    assert_eq!(boot(), boot_id());
    // By whatever name it is found then.
    let renamed = directory.path().join("renamed");
    std::fs::rename(&path, &renamed).unwrap();
    drop(pool);
    std::fs::rename(&renamed, &path).unwrap();
    assert_eq!(boot(), 0);
}

/// The system says once that a device has refused to write, and then counts the unwritten data as written: whoever asked next was told that all was well.
#[test]
#[cfg(not(miri))]
fn a_pool_whose_device_has_refused_to_write_needs_consent() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let options = |domain, accept_dirty_shutdown| PoolOptions { domain: Some(domain), accept_dirty_shutdown, ..small() };
    let open = |domain| Pool::open(&path, &options(domain, false));
    let pool = Pool::create(&path, &options(Domain::PageCache, false)).unwrap();
    if pool.backing.is_in_memory() {
        println!("skipped: a tmpfs has no device");
        return;
    }
    backing::synchronised::fail_behind(0);
    assert!(matches!(pool.close(), Err(Error::Io { .. })));
    drop(pool);
    for (domain, behind) in [(Domain::PageCache, 0), (Domain::PageCache, 3), (Domain::Msync, 0)] {
        for domain in [Domain::PageCache, Domain::Msync, Domain::PageCache] {
            assert!(matches!(open(domain).err(), Some(Error::MachineFailed { .. })));
        }
        drop(Pool::open(&path, &options(Domain::PageCache, true)).unwrap());
        // It was left in use, and is opened: that may happen in a process that dies.
        drop(open(Domain::PageCache).unwrap());
        backing::synchronised::fail_behind(behind);
        assert!(matches!(open(domain).err(), Some(Error::Io { .. })), "{domain}");
    }
    // A pool that was closed has everything, whatever becomes of its header.
    Pool::open(&path, &options(Domain::PageCache, true)).unwrap().close().unwrap();
    for behind in 0..4 {
        backing::synchronised::fail_behind(behind);
        assert!(matches!(open(Domain::PageCache).err(), Some(Error::Io { .. })));
        open(Domain::PageCache).unwrap().close().unwrap();
    }
}

/// A leftover journal prevented every other pool from having one there.
#[test]
#[cfg(not(miri))]
fn a_creation_that_fails_leaves_no_journal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let options = PoolOptions { domain: Some(Domain::Msync), ..small() };
    // Of the four before, the last is that of the directory.
    backing::synchronised::fail_behind(4);
    assert!(matches!(Pool::create(&path, &options).err(), Some(Error::Io { .. })));
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["pool"]);
    Pool::create(&path, &options).unwrap().close().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 5 } else { 2000 }, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a pool contains: an error or an answer, and no panic.
    #[test]
    fn damage_never_panics(
        changes in prop::collection::vec(
            (
                prop_oneof![0usize..2, 64usize..80, 128usize..144, 256usize..1024],
                prop_oneof![any::<u64>(), 0u64..5000, (0u64..1 << 18).prop_map(|off| Off::<()>::new(off).link())],
            ),
            1..6,
        ),
        sealed in any::<bool>(),
        fields in any::<[u64; 6]>(),
    ) {
        let (memory, pool) = memory_pool();
        for number in 0..40 {
            put(&pool, &number.to_string(), number).unwrap();
        }
        pool.close().unwrap();
        drop(pool);
        if sealed {
            // A superblock with a good checksum, and any content.
            forge(&memory, |it| {
                it.size = (fields[0] % (300 << 10)) & !4095;
                it.features_compatible = fields[1];
                it.domain = fields[2];
                it.snapshot = Some(crate::alloc::Snapshot { off: fields[3] % (300 << 10), length: fields[4] % 10000, crc: fields[5] as u32 });
            });
        } else {
            for (at, value) in changes {
                memory.words()[at].store(value, Ordering::Relaxed);
            }
        }
        mend_copy(&memory);
        if let Ok(pool) = reopen(&memory) {
            let _ = (pool.roots(), pool.root("7"), pool.directory_blocks(), pool.info(), pool.needs_recovery());
            if adopt(&pool).is_ok() {
                let _ = (pool.unlink_root("8"), put(&pool, "new", 1));
            }
            let _ = pool.close();
        }
        let _ = Pool::create_in(memory, Hardware::page_cache(), small());
    }
}
