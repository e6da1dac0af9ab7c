//! One worker of a crash run: runs operations, and examines every image that their crash points show.

use super::report::{Report, Violation};
use super::{Options, Shape};
use crate::subject::{Content, Model, apply_to_model};
use crate::{Broken, Change, Class, ROOT, Subject};
use everleaf_index::Entry;
use everleaf_pmem::{Crash, CrashOptions, Image, Life, Memory, Pool, PoolOptions, Seen};
use parking_lot::Mutex;
use std::any::Any;
use std::borrow::Borrow;
use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a recovered index may hold.
pub(super) struct Expected<K: Class + ?Sized> {
    /// What was acknowledged.
    before: Content<K>,
    /// That, with the operation under way applied.
    after: Option<Content<K>>,
    /// Whether there may be no index yet.
    absent: bool,
    hash: u64,
}

impl<K: Class + ?Sized> Expected<K> {
    pub(super) fn new(before: Content<K>, after: Option<Content<K>>) -> Arc<Self> {
        let mut hasher = DefaultHasher::new();
        (&before, &after).hash(&mut hasher);
        Arc::new(Self { before, after, absent: false, hash: hasher.finish() })
    }

    /// No index, or an empty one.
    fn unborn() -> Arc<Self> {
        Arc::new(Self { before: Vec::new(), after: None, absent: true, hash: u64::MAX })
    }

    fn allows(&self, content: &Content<K>) -> bool {
        *content == self.before || self.after.as_ref() == Some(content)
    }
}

/// By how much images that had to be repaired are likelier to get a second life: a repair that is not durable shows only there.
const REPAIRED: u64 = 8;

/// A worker, its memory, and the shape it starts from.
pub(super) struct Checker<K: Class + ?Sized> {
    entry: Arc<Entry<K, Crash>>,
    options: Arc<Options>,
    shape: Shape,
    model: Model<K>,
    follow_up: Vec<Change>,
    memory: Arc<Memory>,
    ground: Crash,
    /// Grows while there is progress.
    steps: Arc<AtomicU64>,
    notes: Mutex<Notes>,
}

/// What a worker remembers.
#[derive(Default)]
struct Notes {
    report: Report,
    /// Images examined, by hash of the image and of what is expected of it, and what was seen. An equal image with equal expectations is not examined again:
    /// recovery is a function of the image.
    seen: HashMap<u64, Seen, BuildHasherDefault<Identity>>,
    operations: Vec<Change>,
    broken: Option<Broken>,
    images: Vec<String>,
}

/// Keys of `seen` are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("only u64 keys are hashed");
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

impl<K: Class + ?Sized> Checker<K> {
    /// Builds the shape in a pool of its own.
    ///
    /// # Errors
    /// A rule that breaks before anything has crashed.
    pub(super) fn new(entry: Arc<Entry<K, Crash>>, options: Arc<Options>, shape: Shape, steps: Arc<AtomicU64>) -> Result<Arc<Self>, Broken> {
        const RULE: &str = "building the shape";
        let memory = Memory::new(options.memory).map_err(Broken::by(RULE))?;
        let ground = Crash::new(&memory);
        let mut model = Model::<K>::new();
        let pool = Pool::create_in(Arc::clone(&memory), ground.clone(), pool_options(&options)).map_err(Broken::by(RULE))?;
        if shape.created {
            let subject = Subject::create(&entry, Arc::clone(&pool)).map_err(Broken::by(RULE))?;
            for change in &shape.changes {
                apply_to_model::<K>(&mut model, *change);
                subject.apply(*change).map_err(Broken::by(RULE))?;
            }
        }
        if shape.closed {
            pool.close().map_err(Broken::by(RULE))?;
        }
        drop(pool);
        let follow_up = shape.follow_up(entry.leaf_capacity);
        let notes = Mutex::default();
        Ok(Arc::new(Self { entry, options, shape, model, follow_up, memory, ground, steps, notes }))
    }

    /// The shape started from.
    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Longest sequence of operations.
    pub(super) fn operations(&self) -> usize {
        self.options.operations
    }

    /// Takes the counts, and the story of the violation if there is one.
    pub(super) fn report(&self) -> Report {
        let mut notes = self.notes.lock();
        let mut report = std::mem::take(&mut notes.report);
        if let Some(broken) = notes.broken.take() {
            report.violation = Some(self.violation(broken, &notes));
        }
        report
    }

    /// The story so far, for when there is no end to it.
    pub(super) fn stuck(&self) -> Violation {
        let broken = Broken::new("bounded steps", "no progress; the last operation, or the recovery from a crash in it, does not end");
        self.violation(broken, &self.notes.lock())
    }

    fn violation(&self, broken: Broken, notes: &Notes) -> Violation {
        let operations: Vec<String> = notes.operations.iter().map(Change::to_string).collect();
        let subject = format!("{}, {} keys, from shape {:?}", self.entry.name, K::NAME, self.shape.name);
        if !self.shape.created {
            let replay = "cargo test --release -p everleaf-conformance creation_and_bulk_load".to_owned();
            return Violation { broken, subject, operations, images: notes.images.clone(), replay };
        }
        let mut replay = format!(
            "cargo run --release -p everleaf-conformance --example crash -- --index {} --keys {} --shape {:?}",
            self.entry.name,
            K::NAME,
            self.shape.name
        );
        replay += &match self.options.random {
            Some(random) => {
                format!(
                    " --random {} --sequences {} --keys-count {} --images-max {} --seed {}",
                    random.operations, random.sequences, random.keys, self.options.life.images_max, self.options.seed
                )
            }
            None => format!(" --only {:?}", operations.join(", ")),
        };
        Violation { broken, subject, operations, images: notes.images.clone(), replay }
    }

    /// Whether a rule is broken already.
    pub(super) fn is_broken(&self) -> bool {
        self.notes.lock().broken.is_some()
    }

    /// Runs `changes` from the shape on, crashing the last one at every point; no changes at all crash the opening of the pool.
    pub(super) fn run(self: &Arc<Self>, changes: &[Change]) {
        self.guarded(|| {
            self.note(changes);
            let life = self.ground.live(self.life_options(self.options.seed));
            if changes.is_empty() {
                self.watch(&life, &Expected::new(content::<K>(&self.model), None), self.options.depth);
            }
            let subject = self.open(&life)?;
            if changes.is_empty() {
                life.end();
            }
            let mut model = self.model.clone();
            for (number, change) in changes.iter().enumerate() {
                let depth = (number + 1 == changes.len()).then_some(self.options.depth);
                self.step(&life, &subject, &mut model, *change, depth)?;
            }
            if subject.content(self.limit())? != content::<K>(&model) {
                return Err(Broken::new("the index is as the model", format_args!("{:?} without any crash", subject.content(self.limit())?)));
            }
            Ok(())
        });
    }

    /// Creates the index, and fills it by a bulk load of `count` keys, each crashed at every point.
    pub(super) fn run_birth(self: &Arc<Self>, count: u32) {
        self.guarded(|| {
            const RULE: &str = "an operation succeeds";
            self.note(&[]);
            let life = self.ground.live(self.life_options(self.options.seed));
            let pool = self.open_pool(&life)?;
            pool.adopt(pool.reach()).map_err(Broken::by(RULE))?;
            self.watch(&life, &Expected::unborn(), self.options.depth);
            life.begin();
            let subject = Subject::create(&self.entry, pool).map_err(Broken::by(RULE))?;
            self.watch(&life, &Expected::new(Vec::new(), None), self.options.depth);
            life.end();
            life.look_away();

            let loaded: Content<K> = (1..=count).map(|number| (K::numbered(number), u64::from(number) + 1)).collect();
            let value = |(key, payload): &(K::Owned, u64)| Ok((key.clone(), K::value(&subject.pool, key.borrow(), *payload)?));
            let values: Vec<_> = loaded.iter().map(value).collect::<Result<_, everleaf_index::Error>>().map_err(Broken::by(RULE))?;
            self.watch(&life, &Expected::new(Vec::new(), Some(loaded.clone())), self.options.depth);
            life.begin();
            subject.index.bulk_load(&mut values.into_iter()).map_err(Broken::by(RULE))?;
            self.watch(&life, &Expected::new(loaded, None), self.options.depth);
            life.end();
            Ok(())
        });
    }

    /// Runs one long sequence that `next` makes up, every operation crashed at every point.
    pub(super) fn run_long(self: &Arc<Self>, count: usize, mut next: impl FnMut(&Model<K>) -> Change) {
        self.guarded(|| {
            self.note(&[]);
            let life = self.ground.live(self.life_options(self.options.seed));
            let subject = self.open(&life)?;
            let mut model = self.model.clone();
            for _ in 0..count {
                let change = next(&model);
                self.notes.lock().operations.push(change);
                self.step(&life, &subject, &mut model, change, Some(self.options.depth))?;
                if self.is_broken() {
                    break;
                }
            }
            Ok(())
        });
    }

    fn note(&self, changes: &[Change]) {
        let mut notes = self.notes.lock();
        notes.operations = changes.to_vec();
        notes.report.sequences += 1;
    }

    /// Runs `act`; a broken rule or a panic in it is noted.
    fn guarded(&self, act: impl FnOnce() -> Result<(), Broken>) {
        let result = catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| Err(panicked(&*panic)));
        if let Err(broken) = result {
            self.notes.lock().broken.get_or_insert(broken);
        }
    }

    /// Applies one change; if `depth` is given, everything is examined that a crash in it, or just after it, can leave.
    fn step(self: &Arc<Self>, life: &Life, subject: &Subject<K, Crash>, model: &mut Model<K>, change: Change, depth: Option<u32>) -> Result<(), Broken> {
        let before = depth.map(|_| content::<K>(model));
        let was = apply_to_model::<K>(model, change);
        let after = depth.map(|_| content::<K>(model));
        if let (Some(depth), Some(before)) = (depth, before) {
            self.watch(life, &Expected::new(before, after.clone()), depth);
        }
        life.begin();
        let returned = subject.apply(change);
        if let (Some(depth), Some(after)) = (depth, after) {
            self.watch(life, &Expected::new(after, None), depth);
            life.end();
            life.look_away();
        }
        self.steps.fetch_add(1, Ordering::Relaxed);
        match returned {
            Ok(returned) if returned == was => Ok(()),
            Ok(returned) => Err(Broken::new("an operation returns what was there", format_args!("{change}: {returned:?} instead of {was:?}"))),
            Err(error) => Err(Broken::new("an operation succeeds", format_args!("{change}: {error}"))),
        }
    }

    fn watch(self: &Arc<Self>, life: &Life, expected: &Arc<Expected<K>>, depth: u32) {
        let (checker, expected) = (Arc::clone(self), Arc::clone(expected));
        life.observe(move |image| checker.examine(image, &expected, depth));
    }

    /// Examines one image, to be recovered with crashes in `depth` recoveries, each in the one before.
    fn examine(self: &Arc<Self>, image: &Image<'_>, expected: &Arc<Expected<K>>, depth: u32) -> Seen {
        let key = image.hash() ^ expected.hash.rotate_left(depth);
        {
            let mut notes = self.notes.lock();
            if notes.broken.is_some() {
                return Seen::default();
            }
            notes.report.images += 1;
            match notes.seen.entry(key) {
                Occupied(seen) => return *seen.get(),
                Vacant(place) => place.insert(Seen::default()),
            };
            notes.report.checked += 1;
            image.examined();
            notes.report.nested += u64::from(depth < self.options.depth);
        }
        self.steps.fetch_add(1, Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(|| self.recover(image, expected, depth))).unwrap_or_else(|panic| Err(panicked(&*panic)));
        let mut notes = self.notes.lock();
        let seen = match result {
            Ok(seen) => seen,
            Err(broken) => {
                notes.broken.get_or_insert(broken);
                Seen::default()
            }
        };
        notes.seen.insert(key, seen);
        if notes.broken.is_some() {
            // The innermost image comes first; those around it are on their way out and add themselves.
            notes.images.insert(0, image.to_string());
        }
        seen
    }

    /// The oracle.
    fn recover(self: &Arc<Self>, image: &Image<'_>, expected: &Arc<Expected<K>>, depth: u32) -> Result<Seen, Broken> {
        let life = image.live(self.life_options(image.hash()));
        if depth > 0 {
            self.watch(&life, expected, depth - 1);
        } else {
            life.unwatch();
        }
        life.begin();
        let pool = self.open_pool(&life)?;
        if expected.absent && pool.root(ROOT).map_err(Broken::by("the root directory is sound"))?.is_none() {
            if depth > 0 {
                life.end();
                life.unwatch();
            }
            return self.bear(pool);
        }
        let subject = self.open_index(pool)?;
        let content = subject.content(self.limit())?;
        if !expected.allows(&content) {
            let Expected { before, after, .. } = &**expected;
            return Err(Broken::new("what was acknowledged is there, and nothing else", format_args!("{content:?} instead of {before:?} or {after:?}")));
        }
        if depth > 0 {
            // What has been read from the recovered index must stay, even if the operation that wrote it was never acknowledged.
            self.watch(&life, &Expected::new(content.clone(), None), depth - 1);
            life.end();
            life.unwatch();
        }
        subject.audit()?;
        let repaired = life.changes().into_iter().any(|at| at >= self.options.slab);
        let seen = Seen { reached_hidden: image.hides() && self.reaches_hidden(image, &subject)? };
        self.recover_again(&life, &content)?;
        if image.hash().is_multiple_of(self.options.follow_up_every) {
            self.use_on(&subject, content)?;
        }
        drop(subject);
        drop(life);
        let every = if repaired { self.options.second_life_every.div_ceil(REPAIRED) } else { self.options.second_life_every };
        if depth == self.options.depth && image.hash().rotate_left(32).is_multiple_of(every) {
            self.second_life(image)?;
        }
        Ok(seen)
    }

    /// There is no index yet: nothing is allocated, and one can be created.
    fn bear(&self, pool: Arc<Pool<Crash>>) -> Result<Seen, Broken> {
        const RULE: &str = "a pool without an index is empty";
        if pool.needs_recovery() {
            pool.adopt(pool.reach()).map_err(Broken::by(RULE))?;
        }
        let usage = pool.audit(&pool.reach()).map_err(Broken::by(RULE))?;
        if usage.leaked != 0 {
            return Err(Broken::new(RULE, format_args!("{usage:?}")));
        }
        self.use_on(&Subject::create(&self.entry, pool).map_err(Broken::by(RULE))?, Vec::new())?;
        Ok(Seen::default())
    }

    /// Whether the index reaches a block that was not linked when the crash came.
    fn reaches_hidden(&self, image: &Image<'_>, subject: &Subject<K, Crash>) -> Result<bool, Broken> {
        let mut reached = false;
        subject.each_block(&mut |at, _| reached |= image.is_hidden(at)).map_err(Broken::by("the blocks of a recovered index"))?;
        Ok(reached)
    }

    /// A second recovery finds the same, and has nothing left to repair.
    fn recover_again(&self, below: &Life, content: &Content<K>) -> Result<(), Broken> {
        let life = below.live(CrashOptions::default());
        life.unwatch();
        let subject = self.open(&life)?;
        let again = subject.content(self.limit())?;
        if again != *content {
            return Err(Broken::new("a second recovery finds the same", format_args!("{again:?} after {content:?}")));
        }
        // The first slab is the pool's own: superblocks and root directory.
        match life.changes().into_iter().find(|at| *at >= self.options.slab) {
            Some(at) => Err(Broken::new("a second recovery has nothing to repair", format_args!("it changed the word at {at:#x}"))),
            None => Ok(()),
        }
    }

    /// A recovered index works: leaves split and merge, and all is as the model says.
    fn use_on(&self, subject: &Subject<K, Crash>, found: Content<K>) -> Result<(), Broken> {
        const RULE: &str = "a recovered index works";
        let mut model: Model<K> = found.into_iter().collect();
        for change in &self.follow_up {
            let was = apply_to_model::<K>(&mut model, *change);
            let returned = subject.apply(*change).map_err(Broken::by(RULE))?;
            if returned != was {
                return Err(Broken::new(RULE, format_args!("{change} returns {returned:?} instead of {was:?}")));
            }
        }
        let used = subject.content(self.limit())?;
        if used != content::<K>(&model) {
            return Err(Broken::new(RULE, format_args!("it holds {used:?} instead of {model:?}")));
        }
        subject.audit()
    }

    /// Recovers, goes on, and crashes again: repairs that are not durable show only here.
    fn second_life(self: &Arc<Self>, image: &Image<'_>) -> Result<(), Broken> {
        self.notes.lock().report.second_lives += 1;
        let life = image.live(self.life_options(image.hash()));
        let subject = self.open(&life)?;
        let mut model: Model<K> = subject.content(self.limit())?.into_iter().collect();
        let mut random = image.hash() ^ self.options.seed;
        for _ in 0..3 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let key = self.shape.keys[(random >> 60) as usize % 4];
            let put = random >> 50 & 3 != 0;
            let change = if put { self.shape.put(key, model.get::<K>(K::numbered(key).borrow()).copied()) } else { Change::Delete(key) };
            self.step(&life, &subject, &mut model, change, Some(0))?;
        }
        Ok(())
    }

    fn open(&self, life: &Life) -> Result<Subject<K, Crash>, Broken> {
        self.open_index(self.open_pool(life)?)
    }

    fn open_pool(&self, life: &Life) -> Result<Arc<Pool<Crash>>, Broken> {
        Pool::open_in(Arc::clone(&self.memory), life.medium(), pool_options(&self.options)).map_err(Broken::by("opening after a crash succeeds"))
    }

    fn open_index(&self, pool: Arc<Pool<Crash>>) -> Result<Subject<K, Crash>, Broken> {
        Subject::open(&self.entry, pool, 1).map_err(Broken::by("opening after a crash succeeds"))
    }

    fn life_options(&self, seed: u64) -> CrashOptions {
        CrashOptions { seed, ..self.options.life.clone() }
    }

    /// More entries than any index of this run can hold.
    fn limit(&self) -> usize {
        self.model.len() + 4 * self.entry.leaf_capacity + self.options.random.map_or(64, |random| random.keys as usize + 64)
    }
}

fn pool_options(options: &Options) -> PoolOptions {
    PoolOptions { size_max: options.memory, slab_size: options.slab, ..PoolOptions::default() }
}

fn content<K: Class + ?Sized>(model: &Model<K>) -> Content<K> {
    model.iter().map(|(key, payload)| (key.clone(), *payload)).collect()
}

fn panicked(panic: &(dyn Any + Send)) -> Broken {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    Broken::new("no panic", text.unwrap_or("a panic without a message"))
}
