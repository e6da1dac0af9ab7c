//! The allocator under test: a table of links to blocks. Each thread replaces its own links and reads all.
//!
//! ```text
//! root block   link | link | ...                       one for each register
//! block        number of words | payload | payload ...
//! ```
//!
//! One thread allocates blocks of several sizes, others read them under an epoch, and any thread may reuse retired blocks. A reader finds a block through a
//! mirror of the link in DRAM, which its owner sets when the link is durable. All words it reads must hold one payload, or the block was reused meanwhile.
//! Protocol of a change: 1. fill and seal a block; 2. store its link, persist: the commit point; 3. set the mirror; 4. retire the old block.

use super::history::{Operation, Returned};
use super::target::{Mood, Target, World};
use crate::Broken;
use everleaf_pmem::schedule::atomic::AtomicU64;
use everleaf_pmem::{Crash, Error, Off, Pool, Reach, Word};
use rand::rngs::StdRng;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// See the module documentation.
pub struct Table;

/// Links in a root block; each thread owns a share of them.
const REGISTERS: usize = 16;
const OWNERS: usize = 4;
const ROOT: &str = "table";
const KIND: u64 = 0x7461_626c;

type Links = [Word; REGISTERS];

/// An open table.
pub struct Live {
    pool: Arc<Pool<Crash>>,
    root: Off<Links>,
    mirrors: Vec<AtomicU64>,
}

/// Sizes of blocks in words, by payload: several classes of the allocator, one of them of spans, and a run of slabs.
fn word_count(payload: u64) -> usize {
    [4, 8, 8, 30, 60, 100, 600, 1000][(payload.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) as usize]
}

const RULE: &str = "an operation succeeds";

impl Live {
    fn new(pool: Arc<Pool<Crash>>, root: Off<Links>) -> Result<Self, Error> {
        let links: Vec<u64> = pool.at(root, "the table")?.iter().map(Word::get).collect();
        Ok(Self { mirrors: links.into_iter().map(AtomicU64::new).collect(), pool, root })
    }

    fn links(&self) -> Result<&Links, Error> {
        self.pool.at(self.root, "the table")
    }

    /// The block that a link names.
    fn block(&self, link: u64) -> Result<Option<&[Word]>, Error> {
        block(&self.pool, link)
    }

    /// The payload of a block; all its words hold it.
    fn payload(&self, link: u64) -> Result<u64, Broken> {
        let Some(words) = self.block(link).map_err(Broken::by(RULE))? else { return Ok(0) };
        let held: Vec<u64> = words[1..].iter().map(Word::get).collect();
        match held.iter().all(|word| *word == held[0]) {
            true => Ok(held[0]),
            false => Err(Broken::new("a block that a reader holds is not reused", format_args!("{held:x?}"))),
        }
    }

    fn set(&self, register: usize, payload: u64) -> Result<Returned, Broken> {
        let word = &self.links().map_err(Broken::by(RULE))?[register];
        let old = word.load(Ordering::Acquire);
        let was = self.payload(old)?;
        let link = match payload {
            0 => {
                self.pool.store(word, 0, Ordering::Release);
                self.pool.persist(word);
                0
            }
            _ => {
                let block = self.pool.alloc_words(word_count(payload)).map_err(Broken::by(RULE))?;
                self.pool.store(&block[0], block.len() as u64, Ordering::Relaxed);
                block[1..].iter().for_each(|word| self.pool.store(word, payload, Ordering::Relaxed));
                let sealed = self.pool.seal(block);
                self.pool.link(word, sealed).link()
            }
        };
        self.mirrors[register].store(link, Ordering::Release);
        if old != 0 {
            let off = Off::<Word>::from_link(old).map_err(Broken::by(RULE))?;
            self.pool.retire(off, &self.pool.pin());
        }
        Ok(Returned::Was(was))
    }

    fn mark(&self, reach: &Reach<'_, Crash>) -> Result<(), Error> {
        reach.mark(self.root, size_of::<Links>())?;
        for word in self.links()? {
            if let Some(words) = self.block(word.get())? {
                reach.mark(self.pool.offset_of(words), size_of_val(words))?;
            }
        }
        Ok(())
    }
}

/// The words of the block that a link names; the first holds their number.
fn block(pool: &Pool<Crash>, link: u64) -> Result<Option<&[Word]>, Error> {
    if link == 0 {
        return Ok(None);
    }
    let off = Off::<Word>::from_link(link)?;
    let count = pool.at(off, "a block of the table")?.get();
    let count = usize::try_from(count).ok().filter(|count| *count >= 2);
    let damaged = Error::Corrupt { at: off.bytes(), what: "a block of the table that does not lie in the pool" };
    count.and_then(|count| pool.words(off, count)).ok_or(damaged).map(Some)
}

impl Target for Table {
    type Live = Live;

    fn name(&self) -> String {
        "allocator".to_owned()
    }

    fn memory(&self) -> usize {
        512 << 10
    }

    fn worlds(&self) -> Vec<World> {
        let world = |name, count: usize, closed| World {
            name,
            keys: (0..REGISTERS as u32).collect(),
            setup: (0..count).map(|register| Operation::Upsert(register, register as u64 + 1)).collect(),
            closed,
            opening: Vec::new(),
            focus: Vec::new(),
        };
        vec![world("empty", 0, false), world("full", REGISTERS, true), world("half full", REGISTERS / 2, false)]
    }

    fn create(&self, pool: Arc<Pool<Crash>>) -> Result<Live, Broken> {
        let create = || {
            let block = pool.alloc_zeroed::<Links>()?;
            let root = pool.link_root(ROOT, KIND, pool.seal(block))?;
            Live::new(Arc::clone(&pool), root)
        };
        create().map_err(Broken::by("creating succeeds"))
    }

    fn open(&self, pool: Arc<Pool<Crash>>, _threads: usize) -> Result<Live, Broken> {
        let open = || {
            let root = pool.root(ROOT)?.ok_or_else(|| Error::NoSuchRoot { name: ROOT.to_owned() })?;
            let live = Live::new(Arc::clone(&pool), Off::new(root.off))?;
            if pool.needs_recovery() {
                let reach = pool.reach();
                live.mark(&reach)?;
                pool.adopt(reach)?;
            }
            Ok::<_, Error>(live)
        };
        open().map_err(Broken::by("opening after a crash succeeds"))
    }

    fn close(&self, live: Live) -> Result<(), Broken> {
        live.pool.close().map_err(Broken::by("closing succeeds"))
    }

    fn draw(&self, _world: &World, mood: &Mood<'_>, payload: u64, random: &mut StdRng) -> Operation {
        let any = mood.pick(random);
        if mood.reads(random) {
            return Operation::Get(any);
        }
        let own = any / OWNERS * OWNERS + mood.thread % OWNERS;
        if mood.removes(random) { Operation::Remove(own) } else { Operation::Upsert(own, payload) }
    }

    fn apply(&self, live: &Live, _world: &World, operation: &Operation) -> Result<Returned, Broken> {
        match operation {
            Operation::Get(register) => {
                let _guard = live.pool.pin();
                Ok(Returned::Was(live.payload(live.mirrors[*register].load(Ordering::Acquire))?))
            }
            Operation::Upsert(register, payload) => live.set(*register, *payload),
            Operation::Remove(register) => live.set(*register, 0),
            _ => unreachable!("the table has no such operation"),
        }
    }

    fn content(&self, live: &Live, _world: &World) -> Result<Vec<u64>, Broken> {
        let links = live.links().map_err(Broken::by(RULE))?;
        let registers = links.iter().zip(&live.mirrors).map(|(word, mirror)| {
            let (link, mirrored) = (word.get(), mirror.load(Ordering::Acquire));
            if link == mirrored { live.payload(link) } else { Err(Broken::new("a mirror shows its link", format_args!("{mirrored:#x} for {link:#x}"))) }
        });
        registers.collect()
    }

    fn audit(&self, live: &Live) -> Result<(), Broken> {
        const RULE: &str = "allocated is what is reachable";
        live.pool.collect();
        let reach = live.pool.reach();
        live.mark(&reach).map_err(Broken::by(RULE))?;
        let usage = live.pool.audit(&reach).map_err(Broken::by(RULE))?;
        if usage.leaked == 0 && usage.retired == 0 { Ok(()) } else { Err(Broken::new(RULE, format_args!("{usage:?}"))) }
    }
}
