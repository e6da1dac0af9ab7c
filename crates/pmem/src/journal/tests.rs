//! Power failures: the device's copy of a pool is anything between its last synchronised state and the page cache, sector by sector; its copy of the journal
//! ends after a whole frame, or within one.

use super::*;
use crate::{Domain, Off, Pool, PoolOptions, Word};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const SECTOR: usize = 512;
const LINES: usize = 2048;

fn options() -> PoolOptions {
    PoolOptions { size_max: 512 << 10, slab_size: 4096, domain: Some(Domain::Msync), ..PoolOptions::default() }
}

/// Every state that a line has had.
struct History {
    states: Vec<[u64; LINE_WORDS]>,
    /// Which of them the last fence made durable, and the one before.
    fenced: [usize; 2],
}

/// The pool's file before something is published; and what that is: lines, and which of their states.
type Published = (Vec<u8>, Vec<(usize, usize)>);

/// A pool with a block of lines, to which stores and fences are made at random.
struct World {
    directory: tempfile::TempDir,
    pool: Arc<Pool>,
    block: Off<[Word]>,
    lines: Vec<History>,
    /// What the device has of the pool at least.
    base: Vec<u8>,
    /// What it has at most, if the last frame is torn and published something.
    published: Option<Published>,
    random: SmallRng,
}

impl World {
    fn new(seed: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let pool = Pool::create(&directory.path().join("pool"), &options()).unwrap();
        let words = pool.alloc_words(LINES * LINE_WORDS).unwrap();
        words.iter().for_each(|word| pool.store(word, 0, Ordering::Relaxed));
        let block = pool.seal(words);
        let block = pool.link_root("lines", 1, block).unwrap();
        let lines = (0..LINES).map(|_| History { states: vec![[0; LINE_WORDS]], fenced: [0; 2] }).collect();
        let base = std::fs::read(directory.path().join("pool")).unwrap();
        Self { directory, pool, block, lines, base, published: None, random: SmallRng::seed_from_u64(seed) }
    }

    fn journal(&self) -> &Journal {
        self.pool.journal().unwrap()
    }

    fn file(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.directory.path().join(name)).unwrap()
    }

    fn words(&self, line: usize) -> &[Word] {
        &self.pool.words(self.block, LINES * LINE_WORDS).unwrap()[line * LINE_WORDS..][..LINE_WORDS]
    }

    /// Stores a word of a line.
    fn store(&mut self, line: usize) {
        let (word, value) = (self.random.random_range(0..LINE_WORDS), self.random.random());
        self.pool.store(&self.words(line)[word], value, Ordering::Relaxed);
        let mut state = *self.lines[line].states.last().unwrap();
        state[word] = value;
        self.lines[line].states.push(state);
    }

    /// Stores to a line and flushes it.
    fn write(&mut self, line: usize) {
        (0..self.random.random_range(1..4)).for_each(|_| self.store(line));
        self.pool.flush(self.words(line));
    }

    /// Changes up to `most` adjacent lines, flushes them and fences, or publishes some of them behind the others.
    fn change(&mut self, most: usize) {
        let (first, count) = (self.random.random_range(0..LINES), self.random.random_range(1..=most));
        let run = first..(first + count).min(LINES);
        let ahead = if self.random.random() { run.end } else { self.random.random_range(run.clone()) };
        (first..ahead).for_each(|line| self.write(line));
        self.published = None;
        if ahead < run.end {
            let (image, pool) = (self.file("pool"), Arc::clone(&self.pool));
            let states = (ahead..run.end).map(|line| (line, self.lines[line].states.len())).collect();
            pool.publish(|| {
                for line in ahead..run.end {
                    let now = |world: &Self| world.words(line).iter().map(Word::get).collect::<Vec<_>>();
                    let before = now(self);
                    self.write(line);
                    assert!(before == now(self), "the kernel would have found it");
                }
            });
            for line in ahead..run.end {
                let now: Vec<_> = self.words(line).iter().map(Word::get).collect();
                assert!(self.lines[line].states.last().unwrap()[..] == now, "what was published is stored");
            }
            self.published = Some((image, states));
        } else {
            self.pool.fence();
        }
        self.lines.iter_mut().for_each(|line| line.fenced[1] = line.fenced[0]);
        for line in run {
            self.lines[line].fenced[0] = self.lines[line].states.len() - 1;
        }
    }

    /// Lets checkpoints finish; the device has the pool's former state.
    fn checkpoint(&mut self) {
        self.base = self.file("pool");
        self.journal().quiesce();
    }

    /// The machine fails, within the last frame if it is torn. What is found then must be a permitted state.
    fn fail(&mut self, is_torn: bool) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        let published = self.published.as_ref().filter(|_| is_torn);
        let mut image = published.map_or_else(|| self.file("pool"), |(image, _)| image.clone());
        for (sector, base) in image.chunks_mut(SECTOR).zip(self.base.chunks(SECTOR)) {
            if self.random.random() {
                sector.copy_from_slice(base);
            }
        }
        std::fs::write(&path, image).unwrap();
        for number in 0..2 {
            let name = format!("pool.journal{number}");
            let mut journal = self.file(&name);
            let (generation, end) = self.journal().position();
            if is_torn && file_of(generation) == number {
                // The device lacks the end of the last frame, and has something else there.
                journal[end as usize - WORD * self.random.random_range(1..9)..].fill(0xa5);
            }
            std::fs::write(directory.path().join(name), journal).unwrap();
        }
        let check = |pool: &Pool, how| {
            let words = pool.words(Off::<Word>::new(pool.root("lines").unwrap().unwrap().off), LINES * LINE_WORDS).unwrap();
            for (line, history) in self.lines.iter().enumerate() {
                let found: [u64; LINE_WORDS] = std::array::from_fn(|word| words[line * LINE_WORDS + word].get());
                let least = history.fenced[usize::from(is_torn)];
                assert!(history.states[least..].contains(&found), "{how}: line {line} is {found:?}, at least {:?}", history.states[least]);
                let after = published.and_then(|(_, states)| states.iter().find(|(published, _)| *published == line));
                assert!(after.is_none_or(|(_, state)| !history.states[*state..].contains(&found)), "{how}: line {line} was published by no whole frame");
            }
        };
        check(&Pool::inspect(&path).unwrap(), "looked at");
        // The superblock that names the journal is damaged.
        let sound = std::fs::read(&path).unwrap();
        let mut damaged = sound.clone();
        damaged[512 + 512 * usize::from(sound[8] % 2) + 20] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        let pool = Pool::inspect_damaged(&path).unwrap();
        assert!(!pool.flaws().is_empty());
        check(&pool, "salvaged");
        drop(pool);
        std::fs::write(&path, sound).unwrap();
        // Recovery may itself be interrupted.
        let pool = Pool::open(&path, &options()).unwrap();
        check(&pool, "opened");
        drop(pool);
        let other = PoolOptions { domain: Some(Domain::PageCache), ..options() };
        check(&Pool::open(&path, &other).unwrap(), "opened again, elsewhere");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nobody needs a journal any more");
    }
}

#[test]
fn what_was_fenced_outlives_the_machine() {
    let (mut turns, mut between, mut grown) = (0, 0, 0);
    for seed in 0..4 {
        let mut world = World::new(seed);
        for _ in 0..40 {
            let pool = Arc::clone(&world.pool);
            let journal = pool.journal().unwrap();
            let held = journal.held.lock();
            let generation = journal.position().0;
            for _ in 0..world.random.random_range(1..12) {
                world.change(24);
                let line = world.random.random_range(0..LINES);
                world.store(line);
                if journal.state.lock().checkpoints {
                    break;
                }
            }
            turns += journal.position().0 - generation;
            let has_turned = journal.state.lock().checkpoints;
            if has_turned || world.random.random_ratio(1, 4) {
                let is_torn = world.random.random_bool(0.5);
                between += u64::from(has_turned && !is_torn);
                world.fail(is_torn);
            }
            drop(held);
            if has_turned {
                world.checkpoint();
            }
            if world.random.random_ratio(1, 8) {
                // More than a frame takes.
                for line in 0..200 {
                    world.store(line);
                    world.pool.flush(world.words(line));
                }
                world.base = world.file("pool");
                if world.random.random() {
                    world.pool.fence();
                } else {
                    let pool = Arc::clone(&world.pool);
                    pool.publish(|| (150..200).for_each(|line| world.write(line)));
                }
                world.published = None;
                world.lines.iter_mut().for_each(|line| line.fenced[1] = line.fenced[0]);
                world.lines[..200].iter_mut().for_each(|line| line.fenced = [line.states.len() - 1; 2]);
                world.fail(false);
            }
        }
        grown += usize::from(world.journal().state.lock().sizes > [SIZE_MIN; 2]);
    }
    assert!(turns > 5 && between > 2 && grown > 2, "{turns} turns, {between} failures between a turn and its checkpoint, {grown} worlds whose files grew");
}

/// Threads share frames, and each waits for its own.
#[test]
fn threads_that_share_frames_find_what_each_has_fenced() {
    const THREADS: usize = 4;
    let mut world = World::new(1);
    let (pool, block) = (&*world.pool, world.block);
    let last: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let words = pool.words(block, LINES * LINE_WORDS).unwrap();
                    // Each has two words of every line, so that lines are copied while others store to them.
                    let mut last = vec![0; LINES];
                    for round in 1..200u64 {
                        for line in (0..LINES).skip(round as usize * 37 % 64).step_by(64) {
                            let own = &words[line * LINE_WORDS + thread * 2..][..2];
                            // The order of a line's stores is kept: the second is never found without the first.
                            own.iter().for_each(|word| pool.store(word, round, Ordering::Release));
                            pool.flush(own);
                            last[line] = round;
                        }
                        pool.fence();
                    }
                    last
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (number, line) in world.lines.iter_mut().enumerate() {
        *line = History { states: vec![std::array::from_fn(|word| last[word / 2][number])], fenced: [0; 2] };
    }
    world.journal().quiesce();
    // It is unknown what is written to the device meanwhile, so the pool is taken as it is; only the journal may add to it.
    world.base = world.file("pool");
    world.fail(false);
}

/// A thread may flush a line long after storing to it, while others publish words of it: its frame may be the last that has the line.
#[test]
fn what_is_published_is_not_undone_by_who_flushes_its_line() {
    let mut world = World::new(2);
    for round in 1..=100 {
        world.base = world.file("pool");
        let words = world.pool.words(world.block, 16 * LINE_WORDS).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while world.journal().state.lock().published.is_empty() && words[0].get() < round {
                    std::hint::spin_loop();
                }
                world.pool.persist(words);
            });
            world.pool.publish(|| {
                for line in words.chunks(LINE_WORDS) {
                    world.pool.store(&line[1], round, Ordering::Release);
                    world.pool.store(&line[0], round, Ordering::Release);
                    world.pool.flush(line);
                }
            });
        });
        for line in &mut world.lines[..16] {
            *line = History { states: vec![[round, round, 0, 0, 0, 0, 0, 0]], fenced: [0; 2] };
        }
        world.fail(false);
    }
}

/// Many threads that fence all the time do not starve one with a large fence.
#[test]
fn a_large_fence_gets_its_turn() {
    let world = World::new(1);
    let words = || world.pool.words(world.block, LINES * LINE_WORDS).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (done, words) = (&done, words());
            let pool = &world.pool;
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    pool.persist(&words[thread * LINE_WORDS]);
                }
            });
        }
        for _ in 0..20 {
            world.pool.persist(&words()[8 * LINE_WORDS..][..2 * LARGE / WORD]);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(world.journal().position().0 > 20, "a turn for each");
}

/// A journal is readable only for users who can read the pool, and a journal in use is not removed.
#[test]
fn a_journal_is_its_pools() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let mode = |name: &str| std::fs::metadata(directory.path().join(name)).unwrap().permissions().mode() & 0o777;
    Pool::create(&path, &options()).unwrap().close().unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let pool = Pool::open(&path, &options()).unwrap();
    assert_eq!((mode("pool.journal0"), mode("pool.journal1")), (0o640, 0o640));
    let renamed = directory.path().join("renamed");
    std::fs::rename(&path, &renamed).unwrap();
    let refused = Pool::create(&path, &options()).err().expect("another pool has a journal of this name").to_string();
    assert!(refused.contains("pool.journal0") && refused.contains("in use"), "{refused}");
    drop(pool);
    let refused = Pool::open_or_create(&path, &options()).err().expect("another pool needs a journal of this name").to_string();
    assert!(refused.contains("another pool's journal"), "{refused}");
    let other = PoolOptions { domain: Some(Domain::PageCache), ..options() };
    Pool::open_or_create(&path, &other).unwrap().close().unwrap();
    assert!(matches!(Pool::open(&renamed, &options()), Err(Error::NoJournal { .. })), "it was renamed without it");
    std::fs::rename(&renamed, &path).unwrap();
    Pool::open(&path, &options()).expect("back where its journal is, which nobody has taken away");
}

/// If the device has not taken the pool, that is final, and its journal is needed for what was acknowledged.
#[test]
fn a_checkpoint_that_fails_retires_nothing() {
    let world = World::new(1);
    let words = world.pool.words(world.block, LINES * LINE_WORDS).unwrap();
    let store = |value| {
        world.pool.store(&words[0], value, Ordering::Relaxed);
        world.pool.persist(&words[0]);
    };
    store(1);
    world.journal().checkpoint_fails.store(true, Ordering::Relaxed);
    world.pool.persist(&words[LINE_WORDS..][..2 * LARGE / WORD]);
    assert!(matches!(world.pool.writable(), Err(Error::WriteBack { .. })));
    store(2);
    assert!(matches!(world.pool.close(), Err(Error::WriteBack { .. })));
    // Nothing of the pool got to the device.
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("pool"), &world.base).unwrap();
    for name in ["pool.journal0", "pool.journal1"] {
        std::fs::write(directory.path().join(name), world.file(name)).unwrap();
    }
    let pool = Pool::open(&directory.path().join("pool"), &options()).unwrap();
    assert_eq!(pool.words(world.block, 1).unwrap()[0].get(), 1);
}

/// What a pool has grown by exists, though the device has nothing of it but the header and the file's length.
#[test]
fn what_a_pool_has_grown_by_is_recovered() {
    const STEP: usize = 16 << 20;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let options = PoolOptions { size_max: 4 * STEP, slab_size: 4096, domain: Some(Domain::Msync), ..PoolOptions::default() };
    let pool = Pool::create(&path, &options).unwrap();
    let at_first = std::fs::read(&path).unwrap();
    pool.grow(1).unwrap();
    let word = &pool.words(Off::<Word>::new(STEP as u64 + 8192), 1).unwrap()[0];
    pool.store(word, 77, Ordering::Relaxed);
    pool.persist(word);
    let header = std::fs::read(&path).unwrap()[..4096].to_vec();
    drop(pool);
    let mut image = at_first;
    image[..4096].copy_from_slice(&header);
    image.resize(2 * STEP, 0);
    std::fs::write(&path, image).unwrap();
    let pool = Pool::open(&path, &options).unwrap();
    assert_eq!((pool.info().size, pool.words(Off::<Word>::new(STEP as u64 + 8192), 1).unwrap()[0].get()), (2 * STEP, 77));
}

/// Something in the journal's place while the pool is in use is an error that says so, and not final for callers that accept it.
#[test]
fn a_journal_that_is_not_as_it_was_left_is_missed() {
    let world = World::new(1);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let copy = |names: &[&str]| {
        for name in ["pool", "pool.journal0", "pool.journal1"] {
            let _ = std::fs::remove_file(directory.path().join(name));
        }
        names.iter().for_each(|name| std::fs::write(directory.path().join(name), world.file(name)).unwrap());
    };
    let why = |result: Result<Arc<Pool>, Error>| match result {
        Err(Error::NoJournal { what, .. }) => what,
        other => panic!("{:?}", other.map(|pool| pool.info())),
    };
    let journals = |change: &dyn Fn(&mut Vec<u8>)| {
        for number in 0..2 {
            let path = directory.path().join(format!("pool.journal{number}"));
            let mut bytes = std::fs::read(&path).unwrap();
            change(&mut bytes);
            std::fs::write(&path, bytes).unwrap();
        }
    };
    copy(&["pool", "pool.journal1"]);
    assert_eq!(why(Pool::open(&path, &options())), "is not there");
    let seen = Pool::inspect(&path).unwrap();
    assert!(seen.root("lines").unwrap().is_some(), "who only looks sees what there is");
    assert!(matches!(seen.flaws(), [Error::NoJournal { what: "is not there", .. }]), "{:?}", seen.flaws());
    copy(&["pool", "pool.journal0", "pool.journal1"]);
    journals(&|bytes| bytes[40] ^= 1);
    assert_eq!(why(Pool::open(&path, &options())), "is damaged");
    let accepting = PoolOptions { accept_dirty_shutdown: true, ..options() };
    let pool = Pool::open(&path, &accepting).unwrap();
    assert!(pool.root("lines").unwrap().is_some() && matches!(pool.flaws(), [Error::NoJournal { .. }]));
    pool.close().unwrap();
    drop(pool);
    let later = Pool::inspect(&path).unwrap();
    assert!(matches!(later.flaws(), [Error::Accepted { .. }]), "{:?}", later.flaws());
    drop(later);
    for aside in ["pool.journal0.damaged", "pool.journal1.damaged"] {
        std::fs::remove_file(directory.path().join(aside)).unwrap();
    }
    // One that the system cannot read.
    copy(&["pool", "pool.journal1"]);
    std::fs::create_dir(directory.path().join("pool.journal0")).unwrap();
    assert!(matches!(Pool::open(&path, &options()).err(), Some(Error::Io { action: "read the journal", .. })));
    drop(Pool::open(&path, &accepting).unwrap());
    std::fs::remove_dir(directory.path().join("pool.journal0.damaged")).unwrap();
    assert_eq!(std::fs::read(directory.path().join("pool.journal1.damaged")).unwrap(), world.file("pool.journal1"), "nothing of a pool's own is lost");
    copy(&["pool", "pool.journal0", "pool.journal1"]);
    journals(&|bytes| {
        let words: [u64; HEAD_WORDS] = std::array::from_fn(|word| u64::from_le_bytes(bytes[word * WORD..][..WORD].try_into().unwrap()));
        let head = Head::decode(&words).unwrap();
        bytes[..HEAD_WORDS * WORD].copy_from_slice(bytemuck::cast_slice(&Head { id: head.id + 2, ..head }.encode()));
    });
    assert_eq!(why(Pool::open(&path, &options())), "belongs to another pool, or to another time");
    journals(&|bytes| bytes.truncate(100));
    let pool = Pool::open(&path, &accepting).unwrap();
    assert!(pool.root("lines").unwrap().is_some() && matches!(pool.flaws(), [Error::NoJournal { .. }]));
    pool.close().unwrap();
    drop(pool);
    let left = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let left: Vec<_> = left.filter(|name| !name.contains(".damaged")).collect();
    assert_eq!(left, ["pool"], "closed, it needs none");
}

/// A frame that contradicts itself, and yet has a valid checksum, is somebody's work.
#[test]
fn frames_are_read_up_to_what_is_none() {
    let head = Head { uuid: 1, id: 3, generation: 5, sequence: 7 };
    let frame_of = |sequence, entries: &[u64]| {
        let mut frame = [&[0, sequence], entries].concat();
        frame[0] = frame.len() as u64 | u64::from(frame_checksum(head.id, head.generation, &frame)) << 32;
        frame
    };
    let line = [9; LINE_WORDS];
    let entry = |at: u64, lines: usize| [vec![at | (lines - 1) as u64], line.repeat(lines)].concat();
    let read = |frames: &[Vec<u64>]| {
        let mut replay = Replay { words: [vec![0; FIRST as usize / WORD], Vec::new()], lines: BTreeMap::new() };
        frames.iter().for_each(|frame| replay.words[0].extend(frame));
        let end = replay.read_frames(0, &head);
        (end, replay.lines.keys().copied().collect::<Vec<_>>())
    };
    let good = [frame_of(7, &entry(64, 2)), frame_of(8, &[entry(128, 1), entry(4096, ENTRY_LINES)].concat())];
    let lines: Vec<u64> = [64, 128].into_iter().chain((0..ENTRY_LINES as u64).map(|line| 4096 + line * LINE as u64)).collect();
    assert_eq!(read(&good), (Some(9), lines));
    assert_eq!(read(&[good[0].clone(), good[0].clone()]), (Some(8), vec![64, 128]), "not the next one");
    for word in 0..good[0].len() {
        let mut damaged = good[0].clone();
        damaged[word] ^= 1 << 17;
        assert_eq!(read(&[damaged.clone()]).0, Some(7), "word {word}");
        assert_eq!(read(&[damaged, good[1].clone()]).0, None, "word {word}, and there was one behind it");
    }
    assert_eq!(read(&[frame_of(7, &[64])]).0, None, "an entry without its line");
    assert_eq!(read(&[frame_of(7, &entry(u64::MAX - 63, 2))]).0, None, "a line behind all");
    assert_eq!(read(&[vec![u64::MAX], vec![1]]).0, Some(7));
}

/// A large fence turns only when the frame that others write is written, and the copies in the next one, too: those are older than what it makes durable.
#[test]
fn a_large_fence_is_not_undone_by_a_copy_from_before() {
    let mut world = World::new(1);
    let pool = Arc::clone(&world.pool);
    let (journal, lines) = (pool.journal().unwrap(), 4 * LARGE / LINE);
    let large = pool.words(world.block, lines * LINE_WORDS).unwrap();
    let generation = journal.position().0;
    journal.state.lock().writes = true;
    std::thread::scope(|scope| {
        scope.spawn(|| pool.persist(large));
        let mut state = journal.state.lock();
        while !state.turns && state.generation == generation {
            MutexGuard::unlocked(&mut state, std::thread::yield_now);
        }
        state.writes = false;
        journal.changed.notify_all();
        assert_eq!(state.generation, generation, "who writes a frame counts on where the next one begins");
    });
    // Another thread's copy of a line exists as long as nobody has written it.
    let copied: Vec<_> = std::iter::once(world.block.bytes()).chain(world.words(0).iter().map(Word::get)).collect();
    journal.state.lock().filled.extend(copied);
    (0..lines).for_each(|line| world.store(line));
    pool.persist(large);
    world.lines[..lines].iter_mut().for_each(|line| line.fenced = [line.states.len() - 1; 2]);
    world.base = world.file("pool");
    world.change(1);
    world.fail(false);
}
