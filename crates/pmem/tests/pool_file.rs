//! Pools in files: which files open, which do not, and how the errors say so.

#![cfg(not(miri))]

use everleaf_pmem::{Domain, Error, Found, Limit, Memory, Off, Pool, PoolOptions, Word};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

fn small() -> PoolOptions {
    PoolOptions { size_max: 64 << 20, slab_size: 4096, ..PoolOptions::default() }
}

fn temporary() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("test.pool");
    (dir, path)
}

/// Links a block of one word under `name`.
fn put(pool: &Pool, name: &str, value: u64) {
    let block = pool.alloc_words(1).unwrap();
    pool.store(&block[0], value, Ordering::Relaxed);
    let block = pool.seal(block);
    pool.link_root(name, 1, block).unwrap();
}

fn value(pool: &Pool, name: &str) -> Option<u64> {
    let root = pool.root(name).unwrap()?;
    Some(pool.get(Off::<Word>::new(root.off)).unwrap().get())
}

#[test]
fn what_is_linked_is_there_after_reopening_elsewhere() {
    let (_dir, path) = temporary();
    let uuid = {
        let pool = Pool::create(&path, &small()).unwrap();
        assert_eq!(pool.info().found, Found::Absent);
        put(&pool, "first", 11);
        put(&pool, "second", 22);
        pool.close().unwrap();
        pool.info().uuid
    };
    // Something else occupies the address range where the pool was mapped.
    let first = Pool::open(&path, &small()).unwrap();
    let before = first.get(Off::<Word>::new(4096)).unwrap() as *const Word;
    assert_eq!(first.info().found, Found::Clean);
    drop(first);
    let _other = Memory::new(64 << 20).unwrap();
    let pool = Pool::open(&path, &small()).unwrap();
    let after = pool.get(Off::<Word>::new(4096)).unwrap() as *const Word;
    println!("mapped at {before:?}, then at {after:?}");
    assert_eq!(pool.info().found, Found::Unclean, "it was dropped without being closed");
    assert_eq!(pool.info().uuid, uuid);
    assert_eq!((value(&pool, "first"), value(&pool, "second"), value(&pool, "third")), (Some(11), Some(22), None));
}

/// Waits until nothing has a pool locked. Until it executes its program, a child that another test starts holds copies of all locks of this process.
fn await_lock(path: &Path) {
    File::open(path).unwrap().lock_shared().unwrap();
}

#[test]
fn a_second_opener_is_told_who_has_the_lock() {
    let (_dir, path) = temporary();
    let pool = Pool::create(&path, &small()).unwrap();
    match Pool::open(&path, &small()).err() {
        Some(Error::Locked { owner, .. }) => assert_eq!(owner, Some(std::process::id())),
        other => panic!("{other:?}"),
    }
    put(&pool, "name", 5);
    let seen = Pool::inspect(&path).unwrap();
    assert_eq!(seen.info().found, Found::InUse { owner: Some(std::process::id()) });
    assert_eq!(value(&seen, "name"), Some(5));
    assert!(matches!(seen.writable(), Err(Error::OnlyRead { .. })));
    drop((pool, seen));
    await_lock(&path);
    assert_eq!(Pool::inspect(&path).unwrap().info().found, Found::Unclean);
    Pool::open(&path, &small()).unwrap().close().unwrap();
    await_lock(&path);
    assert_eq!(Pool::inspect(&path).unwrap().info().found, Found::Clean);
}

/// Regression: after waiting for the lock of a file that lost its name meanwhile, writes would go to a file that cannot be found.
#[test]
fn whoever_waits_for_a_pool_that_is_replaced_opens_the_new_one() {
    let (dir, path) = temporary();
    for round in 0..20 {
        let old = Pool::open_or_create(&path, &small()).unwrap();
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || Pool::open(&path, &small()).map(|pool| value(&pool, &format!("{round}")))
        });
        let new = dir.path().join("new.pool");
        let pool = Pool::create(&new, &small()).unwrap();
        put(&pool, &format!("{round}"), 7);
        drop(pool);
        fs::rename(&new, &path).unwrap();
        drop(old);
        assert_eq!(waiting.join().unwrap().unwrap(), Some(7), "round {round}");
    }
}

/// Opening a pipe waits for its other end.
#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let (dir, pipe) = temporary();
    // Not created by a child process, which would hold the locks of other tests until it executes another program.
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    for path in [pipe.as_path(), Path::new("/dev/zero"), dir.path()] {
        for result in [Pool::inspect(path), Pool::open(path, &small()), Pool::create(path, &small()), Pool::open_or_create(path, &small())] {
            assert!(matches!(result.err(), Some(Error::Io { action: "open", .. })), "{}", path.display());
        }
    }
}

/// Regression: the file was mapped while it was short, and then the superblock named a larger size.
#[test]
fn a_pool_that_grows_can_be_looked_at() {
    let (_dir, path) = temporary();
    let pool = Pool::create(&path, &PoolOptions { size_max: 512 << 20, ..small() }).unwrap();
    put(&pool, "name", 5);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Large blocks, so that the pool grows repeatedly.
            while let Ok(block) = pool.alloc_words((16 << 20) / 8) {
                std::mem::forget(block);
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            assert_eq!(value(&Pool::inspect(&path).unwrap(), "name"), Some(5));
        }
    });
}

#[test]
fn a_pool_counts_if_its_hardware_is_made_to() {
    let (_dir, path) = temporary();
    let options = PoolOptions { domain: Some(Domain::Adr), ..small() };
    let pool = Pool::create_with(&path, &options, |hardware| hardware.with_write_latency(100).with_counters(None)).unwrap();
    let counters = pool.medium().counters().unwrap();
    counters.reset();
    let block = pool.alloc_words(8).unwrap();
    let block = pool.seal(block);
    pool.link_root("name", 1, block).unwrap();
    let counts = counters.totals();
    assert_eq!((counts.flushes, counts.fences), (3, 3), "a slab's header, seal, then one line of the directory");
}

/// Publishing takes one wait, and no other thread sees the data before.
#[test]
fn what_is_published_to_a_device_is_counted_as_one_wait() {
    let (_dir, path) = temporary();
    let options = PoolOptions { domain: Some(Domain::Msync), ..small() };
    let pool = Pool::create_with(&path, &options, |hardware| hardware.with_counters(None)).unwrap();
    let block = pool.alloc_words(8).unwrap();
    let block = pool.seal(block);
    let word = &block[0];
    let counters = pool.medium().counters().unwrap();
    counters.reset();
    pool.publish(|| {
        pool.store(word, 7, Ordering::Release);
        pool.flush(word);
        assert_eq!(word.get(), 0, "held back");
    });
    let counts = counters.totals();
    assert_eq!((word.get(), counts.stores, counts.flushes, counts.fences), (7, 1, 1, 1));
}

/// Tests run as root can write files without write permission; a read-only file system refuses everyone.
#[test]
fn a_file_that_cannot_be_written_is_looked_at() {
    let (_dir, path) = temporary();
    let pool = Pool::create(&path, &small()).unwrap();
    put(&pool, "name", 7);
    pool.close().unwrap();
    drop(pool);
    let mut permissions = fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&path, permissions).unwrap();
    match Pool::open(&path, &small()) {
        Err(Error::ReadOnly { .. }) => {}
        Ok(_) => println!("skipped: this user may write read-only files"),
        Err(other) => panic!("{other:?}"),
    }
    assert_eq!(value(&Pool::inspect(&path).unwrap(), "name"), Some(7));
}

fn error_of(path: &Path) -> Error {
    Pool::open(path, &small()).err().expect("must not open")
}

#[test]
fn what_is_not_a_pool_is_left_alone() {
    let (_dir, path) = temporary();
    assert!(matches!(error_of(&path), Error::NoPool { .. }), "nothing there");
    let mut late = vec![0; 70_000];
    late[65_600] = b'_';
    for content in [&b"PK\x03\x04"[..], &[b'x'; 5000], &[b'x'; 4096], &late] {
        fs::write(&path, content).unwrap();
        assert!(matches!(error_of(&path), Error::NotAPool { .. } | Error::Unfinished { .. }));
        assert!(matches!(Pool::create(&path, &small()), Err(Error::NotAPool { .. })));
        assert!(matches!(Pool::open_or_create(&path, &small()), Err(Error::NotAPool { .. })));
        assert_eq!(fs::read(&path).unwrap(), content);
    }
    assert!(matches!(Pool::create(Path::new("/dev/null"), &small()), Err(Error::Io { .. })));
}

#[test]
fn creation_that_did_not_finish_begins_anew() {
    let (_dir, path) = temporary();
    for length in [0, 4096, 1 << 20] {
        let file = File::create(&path).unwrap();
        file.set_len(length).unwrap();
        assert!(matches!(error_of(&path), Error::Unfinished { .. }));
        let pool = Pool::open_or_create(&path, &small()).unwrap();
        put(&pool, "name", 1);
        drop(pool);
        assert!(matches!(Pool::create(&path, &small()), Err(Error::Exists { .. })));
        assert_eq!(value(&Pool::open_or_create(&path, &small()).unwrap(), "name"), Some(1));
    }
}

#[test]
fn damage_is_named() {
    let (_dir, path) = temporary();
    Pool::create(&path, &small()).unwrap().close().unwrap();
    let good = fs::read(&path).unwrap();
    let change = |at: usize, bytes: &[u8]| {
        fs::write(&path, &good).unwrap();
        File::options().write(true).open(&path).unwrap().write_all_at(bytes, at as u64).unwrap();
    };
    // After creation and close the active superblock is the second one, at 512.
    change(512 + 20, &[0xff]);
    assert!(matches!(error_of(&path), Error::Checksum { at: 512, .. }));
    for switch in [0, 1, 4] {
        change(8, &[switch]);
        assert!(matches!(error_of(&path), Error::Corrupt { at: 8, .. }), "the switch word without its check");
    }
    change(512 + 8, &[9]);
    match error_of(&path) {
        Error::NewerVersion { version: 9, .. } => {}
        other => panic!("{other:?}"),
    }
    fs::write(&path, &good[..good.len() / 2]).unwrap();
    match error_of(&path) {
        Error::Truncated { size, length, .. } => assert_eq!((size, length), (good.len() as u64, good.len() as u64 / 2)),
        other => panic!("{other:?}"),
    }
    fs::write(&path, &good[..100]).unwrap();
    assert!(matches!(error_of(&path), Error::Headless { length: 100, .. }));
}

/// Regression: one damaged byte made the whole pool unreadable.
#[test]
fn whatever_byte_of_the_header_is_damaged_the_pool_can_be_looked_at() {
    let (_dir, path) = temporary();
    let pool = Pool::create(&path, &small()).unwrap();
    put(&pool, "first", 11);
    put(&pool, "second", 22);
    pool.close().unwrap();
    drop(pool);
    let good = fs::read(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    let values = |pool: &Pool| {
        let (roots, damages) = pool.sound_roots();
        let found: Vec<_> = roots.into_iter().map(|(name, root)| (name, pool.get(Off::<Word>::new(root.off)).unwrap().get())).collect();
        (found, damages.len())
    };
    let all = vec![("first".to_owned(), 11), ("second".to_owned(), 22)];
    let (mut mended, mut without) = (0, 0);
    for (at, byte) in good.iter().enumerate().take(4096) {
        file.write_all_at(&[byte ^ 1 << (at % 8)], at as u64).unwrap();
        let pool = Pool::inspect_damaged(&path).unwrap();
        let (found, damages) = values(&pool);
        let is_open = Pool::inspect(&path).is_ok_and(|pool| pool.roots().is_ok());
        assert_eq!(is_open, pool.flaws().is_empty() && damages == 0, "byte {at:#x}: {:?}", pool.flaws());
        assert!(found == all || damages == 1 && found.len() == 1 && all.contains(&found[0]), "byte {at:#x}: {found:?}");
        mended += usize::from(!pool.flaws().is_empty());
        without += usize::from(found != all);
        file.write_all_at(&[*byte], at as u64).unwrap();
    }
    assert_eq!((mended, without), (16 + 128, 2 * 64), "magic, switch and the active superblock; the lines of two roots");
    // No other process may change a pool while it is being salvaged.
    let salvaged = Pool::inspect_damaged(&path).unwrap();
    assert!(matches!(Pool::open(&path, &PoolOptions::default()), Err(Error::Locked { .. })));
    assert!(Pool::inspect_damaged(&path).is_ok_and(|pool| pool.info().found == salvaged.info().found));
    drop(salvaged);
    drop(Pool::open(&path, &PoolOptions::default()).unwrap());
    // Both superblocks: nothing gives the size any more.
    [512 + 20, 1024 + 20].iter().for_each(|at| file.write_all_at(&[0xff], *at).unwrap());
    assert!(matches!(Pool::inspect_damaged(&path), Err(Error::Headless { .. })));
}

/// Reads beyond the end of the file must not end the process.
#[test]
fn behind_the_end_of_a_file_that_is_cut_off_there_are_zeroes() {
    let (_dir, path) = temporary();
    let pool = Pool::create(&path, &small()).unwrap();
    put(&pool, "name", 7);
    pool.close().unwrap();
    let size = pool.info().size;
    drop(pool);
    let file = File::options().write(true).open(&path).unwrap();
    for length in [size as u64 - 1, 1_000_000, 4096 * 3 + 5, 8192, 4200, 4096] {
        file.set_len(length).unwrap();
        assert!(matches!(error_of(&path), Error::Truncated { .. }));
        let pool = Pool::inspect_damaged(&path).unwrap();
        assert!(matches!(pool.flaws(), [Error::Truncated { length: found, .. }] if *found == length), "{:?}", pool.flaws());
        assert_eq!((pool.info().size, value(&pool, "name")), (size, Some(if length > 4096 { 7 } else { 0 })), "{length} bytes");
        let last = pool.get(Off::<Word>::new(size as u64 - 8)).unwrap();
        assert_eq!(last.get(), 0);
        pool.store(last, 1, Ordering::Relaxed);
        assert_eq!(fs::metadata(&path).unwrap().len(), length, "the file is only looked at");
    }
    file.set_len(4095).unwrap();
    assert!(matches!(Pool::inspect_damaged(&path), Err(Error::Headless { length: 4095, .. })));
}

#[test]
fn options_out_of_range_are_refused() {
    let (_dir, path) = temporary();
    // For the last one a file of 4 KiB was created first, which then held no pool.
    for options in [
        PoolOptions { slab_size: 5000, ..small() },
        PoolOptions { slab_size: 128 << 10, ..small() },
        PoolOptions { size_max: 1 << 50, ..small() },
        PoolOptions { size_max: 0, ..small() },
        PoolOptions { size_max: 4096, ..small() },
    ] {
        assert!(matches!(Pool::create(&path, &options), Err(Error::BadOption { .. })));
    }
    assert!(!path.exists());
}

#[test]
fn a_pool_grows_to_its_limit_and_says_so() {
    let (_dir, path) = temporary();
    // With huge pages it grows by the same step each time.
    let pool = Pool::create(&path, &PoolOptions { huge_pages: false, ..small() }).unwrap();
    let first = pool.get(Off::<Word>::new(4096)).unwrap();
    let mut sizes = vec![pool.info().size];
    let mut blocks = 0;
    let error = loop {
        match pool.alloc_words(1 << 17) {
            Ok(block) => {
                pool.store(&block[0], 1, Ordering::Relaxed);
                pool.store(&block[block.len() - 1], 1, Ordering::Relaxed);
                std::mem::forget(block);
                blocks += 1;
            }
            Err(error) => break error,
        }
        let size = pool.info().size;
        if sizes.last() != Some(&size) {
            sizes.push(size);
        }
    };
    assert_eq!(sizes, [16 << 20, 32 << 20, 64 << 20]);
    // Except the reserve, of 4 MiB.
    assert!((56..=59).contains(&blocks), "{blocks} MiB of 64");
    assert!(matches!(error, Error::NoSpace { size_max: 67108864, limit: Limit::SizeMax, .. }), "{error:?}");
    assert!(std::ptr::eq(first, pool.get(Off::<Word>::new(4096)).unwrap()), "growth moves nothing");
    drop(pool);
    assert_eq!(
        Pool::open(&path, &PoolOptions { size_max: 1 << 20, ..small() }).unwrap().info().size,
        64 << 20,
        "a smaller size_max only keeps it from growing"
    );
}

/// The other process of the test below: it links a root, reports that, and waits to be killed. On its own it does nothing.
#[test]
fn child() {
    let Some(path) = std::env::var_os("EVERLEAF_TEST_POOL") else { return };
    let pool = Pool::create(Path::new(&path), &small()).unwrap();
    put(&pool, "from the other process", 77);
    println!("linked");
    std::thread::sleep(std::time::Duration::from_secs(600));
}

#[test]
fn what_a_killed_process_linked_is_there() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let (_dir, path) = temporary();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child = command.args(["--exact", "child", "--nocapture"]).env("EVERLEAF_TEST_POOL", &path).stdout(Stdio::piped()).spawn().unwrap();
    assert!(BufReader::new(child.stdout.take().unwrap()).lines().any(|line| line.unwrap().ends_with("linked")));
    match Pool::open(&path, &small()).err() {
        Some(Error::Locked { owner, .. }) => assert_eq!(owner, Some(child.id())),
        other => panic!("{other:?}"),
    }
    assert_eq!(value(&Pool::inspect(&path).unwrap(), "from the other process"), Some(77));
    child.kill().unwrap();
    child.wait().unwrap();
    let pool = Pool::open(&path, &small()).unwrap();
    assert_eq!(pool.info().found, Found::Unclean);
    assert_eq!(value(&pool, "from the other process"), Some(77));
}

/// A small tmpfs that is removed when dropped; `None` where this process may not mount one.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn new(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = std::process::Command::new("mount").args(["-t", "tmpfs", "-o", size, "tmpfs"]).arg(dir.path()).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self(dir))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        std::process::Command::new("umount").arg(self.0.path()).status().unwrap();
    }
}

#[test]
fn a_full_disk_is_an_error_and_every_byte_of_it_is_used() {
    let Some(disk) = Tmpfs::new("size=20m") else {
        println!("skipped: this process may not mount a tmpfs");
        return;
    };
    let path = disk.0.path().join("test.pool");
    let pool = Pool::create(&path, &PoolOptions { size_max: 1 << 30, ..small() }).unwrap();
    let grows_by = pool.room();
    assert!((18 << 20..20 << 20).contains(&grows_by), "{grows_by}: what the disk has, not what the pool may have");
    let mut blocks = 0;
    let error = loop {
        match pool.alloc_words(1 << 10) {
            Ok(block) => {
                // Stores to every page: a missing one would end the process here.
                (0..block.len()).step_by(256).for_each(|word| pool.store(&block[word], 1, Ordering::Relaxed));
                std::mem::forget(block);
                blocks += 1;
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::NoSpace { size_max: 1073741824, limit: Limit::FileSystem, .. }), "{error:?}");
    let size = pool.info().size;
    assert!(size > 19 << 20, "{size} bytes of 20 MiB, by ever smaller steps");
    assert_eq!(fs::metadata(&path).unwrap().len(), size as u64, "nothing is left of steps that were too large");
    assert!(blocks > 1500, "{blocks} blocks of 8 KiB");
    assert!(pool.room() < 1 << 20 && (pool.used() + pool.room()).abs_diff(grows_by) < 1 << 20, "{} used, {} left", pool.used(), pool.room());
    let other = disk.0.path().join("other.pool");
    assert!(matches!(Pool::create(&other, &small()), Err(Error::NoSpace { .. })));
    drop(pool);
    assert_eq!(Pool::open(&path, &small()).unwrap().info().size, size);
}

/// Bytes that a file occupies.
fn space(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).unwrap().blocks() * 512
}

/// Makes a file with these bytes, and with holes where they are zero.
fn write_sparse(path: &Path, bytes: &[u8]) {
    let file = File::create(path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (at, page) in bytes.chunks(4096).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0)) {
        file.write_all_at(page, at as u64 * 4096).unwrap();
    }
}

/// Uses up all free space of a disk.
fn fill(disk: &Tmpfs) {
    use std::io::Write;
    let mut file = File::create(disk.0.path().join("rest")).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
}

/// Reading a hole in a tmpfs allocates a page. Regression: reading every word of a damaged pool filled the disk, or ended with SIGBUS where it was full.
#[test]
fn to_look_at_holes_takes_no_space() {
    let Some(disk) = Tmpfs::new("size=24m") else {
        println!("skipped: this process may not mount a tmpfs");
        return;
    };
    let path = disk.0.path().join("test.pool");
    let pool = Pool::create(&path, &small()).unwrap();
    put(&pool, "name", 5);
    pool.close().unwrap();
    let size = pool.info().size;
    drop(pool);
    let mut bytes = fs::read(&path).unwrap();
    // The page before the last is a hole.
    let at = size as u64 - 8192;
    bytes[at as usize] = 9;
    write_sparse(&path, &bytes);
    let before = space(&path);
    let look = |what| {
        let pool = Pool::inspect_damaged(&path).unwrap();
        let sum: u64 = pool.words(Off::<Word>::new(4096), (size - 4096) / 8).unwrap().iter().map(Word::get).fold(0, u64::wrapping_add);
        let last = pool.get(Off::<Word>::new(size as u64 - 8)).unwrap();
        pool.store(last, 3, Ordering::Relaxed);
        assert_eq!((value(&pool, "name"), last.get(), pool.get(Off::<Word>::new(at)).unwrap().get()), (Some(5), 3, 9), "{what}");
        assert_eq!(space(&path), before, "{what}");
        sum
    };
    let sum = look("there is room");
    fill(&disk);
    assert_eq!(look("there is none"), sum);
    File::options().write(true).open(&path).unwrap().write_all_at(&[bytes[512 + 20] ^ 1], 512 + 20).unwrap();
    assert_eq!(look("the header is damaged"), sum);
}

/// The owner of a pool fills its holes, so a process that inspects it meanwhile may need their content.
#[test]
fn what_a_hole_gets_is_seen_by_who_looks_at_a_pool_in_use() {
    let Some(disk) = Tmpfs::new("size=64m") else {
        println!("skipped: this process may not mount a tmpfs");
        return;
    };
    let path = disk.0.path().join("test.pool");
    let pool = Pool::create(&path, &small()).unwrap();
    pool.close().unwrap();
    drop(pool);
    write_sparse(&path, &fs::read(&path).unwrap());
    let pool = Pool::open(&path, &small()).unwrap();
    let seen = Pool::inspect(&path).unwrap();
    assert!(space(&path) < 1 << 20);
    let block = pool.alloc_words(1 << 17).unwrap();
    pool.store(&block[1 << 16], 7, Ordering::Relaxed);
    assert_eq!(seen.words(block.off(), 1 << 17).unwrap()[1 << 16].get(), 7);
}

/// Regression: space given back was still in the journal, whose recovery allocated it again, and failed each time on a full disk.
#[test]
fn a_pool_that_gave_space_back_is_recovered_on_a_full_disk() {
    let Some(disk) = Tmpfs::new("size=48m") else {
        println!("skipped: this process may not mount a tmpfs");
        return;
    };
    let path = disk.0.path().join("test.pool");
    let options = PoolOptions { domain: Some(Domain::Msync), ..small() };
    let pool = Pool::create(&path, &options).unwrap();
    let blocks: Vec<_> = (0..8)
        .map(|_| {
            let block = pool.alloc_words((256 << 10) / 8).unwrap();
            block.iter().for_each(|word| pool.store(word, 1, Ordering::Relaxed));
            pool.seal(block).release()
        })
        .collect();
    pool.fence();
    // The last block stays, so that the pool keeps its length.
    blocks[..7].iter().for_each(|block| pool.retire(*block, &pool.pin()));
    pool.collect();
    assert!(pool.give_back().unwrap() >= 7 << 18);
    let before = space(&path);
    fill(&disk);
    drop(pool);
    let pool = Pool::open(&path, &options).unwrap();
    assert_eq!(pool.words(blocks[7], (256 << 10) / 8).unwrap()[0].get(), 1);
    assert!(space(&path) <= before, "{} after {before}", space(&path));
}

/// A copy may have holes where the pool had zeroes. Opening fills those in slabs that are in use, or reports that there is no room.
#[test]
fn holes_of_a_copied_file_are_filled_where_blocks_are() {
    let (_dir, path) = temporary();
    let pool = Pool::create(&path, &small()).unwrap();
    // A run of slabs, a hundred spans, and a slab of blocks.
    let large = pool.seal(pool.alloc_words(10 << 17).unwrap()).release();
    (0..300).for_each(|_| _ = pool.seal(pool.alloc_words(5000 / 8).unwrap()).release());
    put(&pool, "name", 3);
    pool.close().unwrap();
    drop(pool);
    let bytes = fs::read(&path).unwrap();
    let spans = 400 * 4096;
    // Space allocated beyond the end of the file counts like space within it.
    write_sparse(&path, &bytes);
    let file = File::options().write(true).open(&path).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, bytes.len() as u64, bytes.len() as u64).unwrap();
    let before = space(&path);
    assert!(before > bytes.len() as u64, "{before}");
    drop(Pool::open(&path, &small()).unwrap());
    assert!(space(&path) >= before + (10 << 20) + spans, "{} after {before}", space(&path));
    write_sparse(&path, &bytes);
    assert!(space(&path) < 1 << 20);
    let pool = Pool::open(&path, &small()).unwrap();
    assert!(((10 << 20) + spans..(12 << 20) + spans).contains(&space(&path)), "{}", space(&path));
    assert_eq!((value(&pool, "name"), pool.needs_recovery()), (Some(3), false));
    // Free slabs get space when they are used.
    let before = space(&path);
    let more = pool.alloc_words(1 << 17).unwrap();
    assert!((1 << 20..2 << 20).contains(&(space(&path) - before)));
    drop(more);
    pool.retire(large, &pool.pin());
    pool.collect();
    drop(pool);
    let Some(disk) = Tmpfs::new("size=8m") else {
        println!("skipped in part: this process may not mount a tmpfs");
        return;
    };
    let path = disk.0.path().join("test.pool");
    write_sparse(&path, &bytes);
    assert!(matches!(Pool::open(&path, &small()), Err(Error::NoSpace { .. })));
}

/// Free slabs lose their space, in the middle of the file and at its end, and get it again.
#[test]
fn space_is_given_back_and_taken_again() {
    let (_dir, path) = temporary();
    let pool = Pool::create(&path, &small()).unwrap();
    let large: Vec<_> = (0..40).map(|_| pool.seal(pool.alloc_words(1 << 17).unwrap()).release()).collect();
    put(&pool, "name", 5);
    let before = (pool.length(), space(&path));
    assert!(before.0 > 40 << 20 && before.1 >= before.0 as u64);
    // All but the tenth.
    for (_, large) in large.iter().enumerate().filter(|(number, _)| *number != 10) {
        pool.retire(*large, &pool.pin());
    }
    pool.collect();
    let given = pool.give_back().unwrap();
    assert!(given > 38 << 20, "{given}");
    assert!(space(&path) < 3 << 20, "{}", space(&path));
    assert!(pool.length() < before.0 && pool.info().size == pool.length());
    assert_eq!(fs::metadata(&path).unwrap().len(), before.0 as u64, "as long as it is mapped");
    assert_eq!(pool.give_back().unwrap(), 0);
    let room = pool.room();
    // Simulates a crash; later a clean shutdown, whose snapshot may lie where there was no space.
    drop(pool);
    let pool = Pool::open(&path, &small()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), pool.length() as u64);
    let reach = pool.reach();
    reach.mark(large[10], 1 << 20).unwrap();
    reach.mark(Off::<()>::new(pool.root("name").unwrap().unwrap().off), 8).unwrap();
    pool.adopt(reach).unwrap();
    assert!(space(&path) < 3 << 20, "{}", space(&path));
    assert!(pool.room().abs_diff(room) < 1 << 20);
    pool.close().unwrap();
    drop(pool);
    let pool = Pool::open(&path, &small()).unwrap();
    assert_eq!((value(&pool, "name"), pool.needs_recovery()), (Some(5), false));
    assert!(space(&path) < 3 << 20, "{}", space(&path));
    let again: Vec<_> = (0..39).map(|_| pool.seal(pool.alloc_words(1 << 17).unwrap()).release()).collect();
    for (at, block) in again.iter().enumerate() {
        let words = pool.words(*block, 1 << 17).unwrap();
        pool.store(&words[at], 7, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(words[(1 << 17) - 1].get(), 0);
    }
    assert!(space(&path) > 40 << 20);
}

#[test]
fn a_closed_pool_refuses_writes() {
    let (_dir, path) = temporary();
    let pool = Pool::create(&path, &small()).unwrap();
    put(&pool, "name", 3);
    pool.close().unwrap();
    assert!(matches!(pool.unlink_root("name"), Err(Error::Closed)));
    assert!(matches!(pool.close(), Err(Error::Closed)));
    assert_eq!(value(&pool, "name"), Some(3));
}

#[test]
fn every_domain_works_on_an_ordinary_file() {
    for domain in Domain::ALL {
        let (_dir, path) = temporary();
        let options = PoolOptions { domain: Some(domain), ..small() };
        let pool = Pool::create(&path, &options).unwrap();
        put(&pool, "name", 9);
        assert_eq!(pool.info().domain, Some(domain));
        drop(pool);
        assert_eq!(value(&Pool::open(&path, &options).unwrap(), "name"), Some(9));
    }
}
