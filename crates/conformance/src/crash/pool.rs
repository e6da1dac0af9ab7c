//! The pool itself in a crash run: its superblocks, its directory of roots, its allocator.
//!
//! A root links a block whose size depends on the root, and whose first and last word hold a payload: small blocks, blocks of a span, runs of slabs.

use super::checker::SLAB;
use super::world::{Applied, Promise, Start, World};
use crate::Broken;
use everleaf_pmem::{Crash, Error, Fresh, Off, Pool, Reach, Word};
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Pools.
pub struct Pools;

/// What can happen to a root of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolChange {
    /// Links the root of this number, with this payload.
    Link(u32, u64),
    /// Replaces its block.
    Replace(u32, u64),
    /// Unlinks it, and frees its block.
    Unlink(u32),
}

impl fmt::Display for PoolChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(root, payload) => write!(f, "link root {root}={payload}"),
            Self::Replace(root, payload) => write!(f, "replace root {root}={payload}"),
            Self::Unlink(root) => write!(f, "unlink root {root}"),
        }
    }
}

/// Roots in the first block of the directory.
const DIRECTORY: u32 = 31;

/// Size in words of the block of a root: of some size classes, of three classes of spans, nearly two slabs, and nearly one.
fn size(root: u32) -> usize {
    [3, 8, 140, 250, 700, 1000, 500, 300][root as usize % 8]
}

fn name(root: u32) -> String {
    format!("root {root}, with a name of some length")
}

fn block(pool: &Pool<Crash>, root: u32, payload: u64) -> Result<Fresh<'_, [Word], Crash>, Error> {
    let block = pool.alloc_words(size(root))?;
    // The words in between are never read, so they are not written.
    for word in [&block[0], &block[size(root) - 1]] {
        pool.store(word, payload, Ordering::Relaxed);
    }
    Ok(block)
}

impl World for Pools {
    type Live = Arc<Pool<Crash>>;
    type Content = BTreeMap<u32, u64>;
    type Change = PoolChange;

    fn name(&self) -> String {
        "pool".to_owned()
    }

    fn starts(&self) -> Vec<Start<PoolChange>> {
        let linked = |roots: std::ops::Range<u32>| roots.map(|root| PoolChange::Link(root, u64::from(root) + 1)).collect::<Vec<_>>();
        let mut holes = linked(0..DIRECTORY);
        holes.extend([PoolChange::Unlink(5), PoolChange::Unlink(17)]);
        // Three slabs are free again, and no two of them are adjacent. No span fits, so one block has a run of its own, and one a share of a slab. A shutdown
        // needs the third slab.
        let mut singly: Vec<_> = (0..6).map(|run| PoolChange::Link(8 * run + 6, 1)).collect();
        singly.extend([PoolChange::Unlink(6), PoolChange::Unlink(22), PoolChange::Unlink(38), PoolChange::Link(7, 2), PoolChange::Link(2, 3)]);
        vec![
            Start::new("new", Vec::new(), [0, 3, 4, 5]),
            Start { closed: true, ..Start::new("closed", linked(0..8), [0, 6, 4, 5]) },
            Start::new("directory with holes", holes, [5, 17, 0, 40]),
            Start::new("full directory", linked(0..DIRECTORY), [0, 40, 41, 5]),
            Start { closed: true, ..Start::new("two directories", linked(0..DIRECTORY + 1), [0, 31, 40, 5]) },
            // Header, three slabs of blocks, a span of two and two of three, a run of two and one of one. One slab is left for the shutdown. The next run makes
            // the pool grow.
            Start { size: Some(16 * SLAB), ..Start::new("full pool", linked(0..8), [11, 12, 15, 5]) },
            Start { closed: true, size: Some(7 * SLAB), ..Start::new("free slabs stand singly", singly, [7, 14, 2, 4]) },
            Start { pool: false, ..Start::new("no pool", Vec::new(), [0, 1, 2, 5]) },
        ]
    }

    fn nothing(&self) -> BTreeMap<u32, u64> {
        BTreeMap::new()
    }

    fn open(&self, pool: Arc<Pool<Crash>>, _threads: usize) -> Result<Arc<Pool<Crash>>, Broken> {
        if pool.needs_recovery() {
            let reach = mark(&pool)?;
            pool.adopt(reach).map_err(Broken::by("opening after a crash succeeds"))?;
        }
        Ok(pool)
    }

    fn pool<'a>(&self, live: &'a Arc<Pool<Crash>>) -> &'a Arc<Pool<Crash>> {
        live
    }

    fn changes(&self, start: &Start<PoolChange>, content: &BTreeMap<u32, u64>) -> Vec<PoolChange> {
        let of = |root: u32| match content.get(&root) {
            None => vec![PoolChange::Link(root, u64::from(root) + 1)],
            Some(payload) => vec![PoolChange::Replace(root, payload ^ 64), PoolChange::Unlink(root)],
        };
        start.keys.into_iter().flat_map(of).collect()
    }

    fn random(&self, _step: u64, _count: u64, content: &BTreeMap<u32, u64>, choice: &mut StdRng) -> PoolChange {
        let (root, payload) = (choice.random_range(0..2 * DIRECTORY), choice.random_range(1..1 << 20));
        match content.contains_key(&root) {
            false => PoolChange::Link(root, payload),
            true if choice.random_ratio(1, 3) => PoolChange::Replace(root, payload),
            true => PoolChange::Unlink(root),
        }
    }

    fn follow_up(&self, start: &Start<PoolChange>, content: &BTreeMap<u32, u64>) -> Vec<PoolChange> {
        let mut changes: Vec<_> = content.keys().take(3).map(|root| PoolChange::Replace(*root, 77)).collect();
        changes.extend(content.keys().take(2).map(|root| PoolChange::Unlink(*root)));
        let fresh = start.keys.into_iter().chain([60, 61]).filter(|root| !content.contains_key(root));
        changes.extend(fresh.map(|root| PoolChange::Link(root, 88)));
        changes
    }

    fn model(&self, content: &mut BTreeMap<u32, u64>, change: &PoolChange) {
        match *change {
            PoolChange::Link(root, payload) | PoolChange::Replace(root, payload) => content.insert(root, payload),
            PoolChange::Unlink(root) => content.remove(&root),
        };
    }

    fn apply(
        &self,
        pool: &mut Arc<Pool<Crash>>,
        _before: &BTreeMap<u32, u64>,
        change: &PoolChange,
        _: Promise<'_, BTreeMap<u32, u64>>,
    ) -> Result<Applied, Broken> {
        let apply = || {
            match *change {
                PoolChange::Link(root, payload) => drop(pool.link_root(&name(root), size(root) as u64, pool.seal(block(pool, root, payload)?))?),
                PoolChange::Replace(root, payload) => {
                    let old = pool.replace_root(&name(root), pool.seal(block(pool, root, payload)?))?;
                    pool.retire(Off::<Word>::new(old.off), &pool.pin());
                }
                PoolChange::Unlink(root) => {
                    let old = pool.unlink_root(&name(root))?;
                    pool.retire(Off::<Word>::new(old.off), &pool.pin());
                }
            }
            Ok::<_, Error>(Applied::Done)
        };
        apply().map_err(|error| Broken::new("an operation succeeds", format_args!("{change}: {error}")))
    }

    fn content(&self, pool: &Arc<Pool<Crash>>, _limit: usize) -> Result<BTreeMap<u32, u64>, Broken> {
        const RULE: &str = "a root leads to what was sealed";
        let mut content = BTreeMap::new();
        for (text, root) in pool.roots().map_err(Broken::by("the root directory is sound"))? {
            let number = text.split(&[' ', ','][..]).nth(1).and_then(|number| number.parse().ok());
            let number: u32 = number.filter(|number| name(*number) == text).ok_or_else(|| Broken::new(RULE, format_args!("a root named {text:?}")))?;
            let words = pool.words(Off::<Word>::new(root.off), size(number)).ok_or_else(|| Broken::new(RULE, format_args!("{root:?} out of the pool")))?;
            let (first, last) = (words[0].get(), words[size(number) - 1].get());
            if first != last || root.kind != size(number) as u64 {
                return Err(Broken::new(RULE, format_args!("{text}: {root:?}, payload {first} at the start and {last} at the end")));
            }
            if content.insert(number, first).is_some() {
                return Err(Broken::new("no name is in use twice", text));
            }
        }
        Ok(content)
    }

    fn audit(&self, pool: &Arc<Pool<Crash>>) -> Result<(), Broken> {
        const RULE: &str = "allocated is what is reachable";
        pool.collect();
        let usage = pool.audit(&mark(pool)?).map_err(Broken::by(RULE))?;
        if usage.leaked == 0 && usage.retired == 0 { Ok(()) } else { Err(Broken::new(RULE, format_args!("{usage:?}"))) }
    }

    fn blocks(&self, pool: &Arc<Pool<Crash>>, visit: &mut dyn FnMut(usize, usize)) -> Result<(), Broken> {
        for (_, root) in pool.roots().map_err(Broken::by("the root directory is sound"))? {
            visit(root.off as usize, root.kind as usize * 8);
        }
        Ok(())
    }
}

/// Marks the block of every root.
fn mark(pool: &Pool<Crash>) -> Result<Reach<'_, Crash>, Broken> {
    const RULE: &str = "roots lead to blocks";
    let reach = pool.reach();
    for (_, root) in pool.roots().map_err(Broken::by("the root directory is sound"))? {
        reach.mark(Off::<Word>::new(root.off), root.kind as usize * 8).map_err(Broken::by(RULE))?;
    }
    Ok(reach)
}
