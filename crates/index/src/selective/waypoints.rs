//! Waypoints: leaves here and there in the list. With them recovery has many ways into it and waits for many leaves at once.
//!
//! ```text
//! block    link of a leaf | link of a leaf | ...                        0 where there is none yet
//! ```
//!
//! A waypoint is a hint. The leaf that it names may have been taken out of the list since, and its block may be anything by now: whoever takes a leaf out does
//! not check whether it is one. So a waypoint costs a line that is flushed when a leaf becomes one, and nobody waits for that: a crash leaves the old word or
//! the new one, and either will do for [`list`].
//!
//! [`list`] follows the links from the head of the list and from all waypoints, a step of each in turn, each until it comes to a place where another began. It
//! puts together what was found from the head, from the place where that has ended, and so on, until it comes to the end; what was found from anywhere else is
//! forgotten. Every piece is what the links say, so the whole is what a walk from the head alone would find, whatever waypoints say. Until it is known, nothing
//! on the way is marked, repaired or believed. A waypoint that leads into another tree costs no more steps than there are leaves on the longest way between two
//! that do not. (LB+-Tree believes its waypoints: there, one that names a leaf which has been freed and used again spoils the tree that is rebuilt, and taking
//! a leaf out of the list takes one write more, to be ordered before it.)
//!
//! Of the leaves that lie where one may be, the n-th that comes becomes one with the probability that is its share, in the place of any other (Vitter, "Random
//! Sampling with a Reservoir"). So if leaves stay where they were made, all are waypoints with the same probability, however the tree has grown, and the
//! longest way between two of 64 is about a fourteenth of the list. If splits replace one leaf by two, half of the new ones are considered, and waypoints are
//! lost with their leaves; so they are with leaves that merge or move.

use super::Selective;
use super::leaf::LeafLayout;
use super::router::Router;
use crate::key::SPREAD;
use crate::{Error, Key};
use everleaf_pmem::{Fresh, Medium, Off, Pool, Word, probe};
use std::sync::atomic::Ordering::Relaxed;

/// Where the block of waypoints of a tree lies.
#[derive(Clone, Copy)]
pub(super) struct Waypoints {
    /// Null if there is none.
    off: Off<Word>,
    /// Number of words, the same in all trees of a kind: part of the format.
    count: usize,
    /// One of this many leaves lies where a waypoint may be.
    share: u64,
}

impl Waypoints {
    /// Trees of small leaves, most of which are for exhaustive checking, have few words, and every leaf lies where a waypoint may be.
    const fn none<K: Key + ?Sized, L: LeafLayout<K>>() -> Self {
        let (count, share) = if L::CAPACITY < 14 { (8, 1) } else { (64, 16) };
        Self { off: Off::NULL, count, share }
    }

    /// A block in which there are none yet, to be made durable and linked.
    ///
    /// # Errors
    /// A full pool.
    pub(super) fn alloc<K: Key + ?Sized, L: LeafLayout<K>, M: Medium>(pool: &Pool<M>) -> Result<Fresh<'_, [Word], M>, Error> {
        let block = pool.alloc_words(const { Self::none::<K, L>().count })?;
        // persist-equivalent(store late): what comes later is a waypoint as good as any.
        block.iter().for_each(|word| pool.store(word, 0, Relaxed));
        Ok(block)
    }

    /// Those to which `link`, a word of the root block, leads.
    ///
    /// # Errors
    /// Damage.
    pub(super) fn at<K: Key + ?Sized, L: LeafLayout<K>, M: Medium>(pool: &Pool<M>, link: &Word) -> Result<Self, Error> {
        let waypoints = Self { off: Off::from_link(link.get())?, ..Self::none::<K, L>() };
        if !waypoints.off.is_null() && pool.words(waypoints.off, waypoints.count).is_none() {
            return Err(everleaf_pmem::Error::corrupt(waypoints.off.bytes(), "waypoints of a tree that do not lie in the pool").into());
        }
        Ok(waypoints)
    }

    /// Where the block lies, and its size in bytes, if there is one.
    pub(super) fn block(self) -> Option<(Off<Word>, usize)> {
        (!self.off.is_null()).then_some((self.off, self.count * size_of::<Word>()))
    }

    /// The words; none if there is no block.
    pub(super) fn words<M: Medium>(self, pool: &Pool<M>) -> &[Word] {
        pool.words(self.off, self.count).unwrap_or_default()
    }
}

impl<K: Key + ?Sized, L: LeafLayout<K>, R: Router<K>, M: Medium> Selective<K, L, R, M> {
    /// Makes a leaf that has just been added to the list a waypoint, by chance.
    pub(super) fn pass_by(&self, leaf: u64) {
        let Waypoints { share, .. } = self.waypoints;
        // The upper bits of a product depend on all bits of the factor.
        let mix = |word: u64| (word ^ word >> 32).wrapping_mul(SPREAD);
        let chance = mix(mix(leaf));
        if (chance >> 32) % share != 0 {
            return;
        }
        let slot = (u128::from(chance) * u128::from(self.leaves.get().div_ceil(share))) >> 64;
        if let Some(word) = self.waypoints.words(&self.pool).get(slot as usize) {
            // persist-equivalent(store late): a waypoint from before is as good.
            self.pool.store(word, Off::<L>::new(leaf).link(), Relaxed);
            // persist-equivalent: as for the store.
            self.pool.flush(word);
        }
    }
}

/// Consecutive leaves.
struct Way<L> {
    leaves: Vec<Off<L>>,
    /// What is behind the last of them, when that is known: a place where another way begins; null at the end of the list; damage.
    end: Option<Result<Off<L>, Error>>,
}

/// All leaves of the list that begins with `first`, in order.
///
/// # Errors
/// Damage.
pub(super) fn list<K: Key + ?Sized, L: LeafLayout<K>, M: Medium>(pool: &Pool<M>, first: u64, waypoints: &[Word]) -> Result<Vec<Off<L>>, Error> {
    let first = Off::<L>::from_link(first)?;
    if first.is_null() {
        return Err(everleaf_pmem::Error::corrupt(0, "a tree without leaves").into());
    }
    pool.at(first, "a leaf does not lie in the pool")?;
    let named = waypoints.iter().filter_map(|word| Off::<L>::from_link(word.get()).ok()).filter(|leaf| pool.get(*leaf).is_some());
    let mut starts: Vec<u64> = named.chain([first]).map(Off::bytes).collect();
    starts.sort_unstable();
    starts.dedup();
    let mut ways: Vec<Way<L>> = starts.iter().map(|start| Way { leaves: vec![Off::new(*start)], end: None }).collect();
    let mut under_way: Vec<usize> = (0..ways.len()).collect();
    let mut left = pool.length() / size_of::<L>();
    let number_of = |start: Off<L>| starts.partition_point(|other| *other < start.bytes());
    let (mut leaves, mut at) = (Vec::new(), number_of(first));
    loop {
        while let Some(end) = ways[at].end.take() {
            leaves.append(&mut ways[at].leaves);
            let next = end?;
            if next.is_null() {
                return Ok(leaves);
            }
            at = number_of(next);
        }
        // A way that was passed has neither end nor leaves any more: a list that comes there again runs in circles.
        if ways[at].leaves.is_empty() {
            return Err(everleaf_pmem::Error::corrupt(starts[at], "a list of leaves that does not end").into());
        }
        if left < under_way.len() {
            // Perhaps only the links from a waypoint run in circles.
            return match waypoints {
                [] => Err(everleaf_pmem::Error::corrupt(first.bytes(), "a list of leaves that does not end").into()),
                _ => list::<K, L, M>(pool, first.link(), &[]),
            };
        }
        left -= under_way.len();
        under_way.retain(|&number| {
            let Way { leaves, end } = &mut ways[number];
            match next_of::<K, L, M>(pool, leaves[leaves.len() - 1]) {
                Ok(next) if !next.is_null() && starts.binary_search(&next.bytes()).is_err() => leaves.push(next),
                over => *end = Some(over),
            }
            end.is_none()
        });
    }
}

/// The leaf behind `leaf`, which is prefetched.
fn next_of<K: Key + ?Sized, L: LeafLayout<K>, M: Medium>(pool: &Pool<M>, leaf: Off<L>) -> Result<Off<L>, Error> {
    let next = Off::<L>::from_link(pool.at(leaf, "a leaf does not lie in the pool")?.next().get())?;
    if !next.is_null() {
        // In all layouts, what leads on lies in these two.
        let words = pool.words(next, size_of::<L>() / size_of::<Word>()).filter(|_| pool.get(next).is_some());
        let words = words.ok_or_else(|| everleaf_pmem::Error::corrupt(next.bytes(), "a leaf does not lie in the pool"))?;
        [words.first(), words.last()].into_iter().flatten().for_each(probe::prefetch);
    }
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::super::router::FANOUT;
    use super::super::{IsleLeaf, LbLeaf, Olc};
    use super::*;
    use crate::OrderedIndex;
    use crate::registry::Recovery;
    use everleaf_pmem::{Hardware, PoolOptions};
    use std::num::NonZeroU64;
    use std::sync::Arc;

    const NAME: &str = "tree";

    type Tree<L> = Selective<u64, L, Olc<u64, FANOUT>, Hardware>;

    fn pool() -> Arc<Pool<Hardware>> {
        Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 16 << 20, ..PoolOptions::default() }).unwrap()
    }

    fn tree<L: LeafLayout<u64>>(pool: &Arc<Pool<Hardware>>, keys: impl Iterator<Item = u64>) -> Tree<L> {
        let tree = Tree::<L>::create(pool, NAME, "tree", Olc::build).unwrap();
        keys.for_each(|key| assert!(tree.insert(&key, NonZeroU64::MIN).unwrap().is_none()));
        tree
    }

    fn shuffled(keys: u64) -> impl Iterator<Item = u64> {
        (0..keys).map(|key| key.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    impl<L: LeafLayout<u64>> Tree<L> {
        fn list(&self, waypoints: &[Word]) -> Result<Vec<Off<L>>, Error> {
            list::<u64, L, Hardware>(&self.pool, self.root().first.get(), waypoints)
        }
    }

    /// Numbers of the leaves that are waypoints.
    fn passed<L: LeafLayout<u64>>(tree: &Tree<L>) -> Vec<usize> {
        let named: Vec<u64> = tree.waypoints.words(&tree.pool).iter().map(Word::get).collect();
        tree.list(&[]).unwrap().iter().enumerate().filter(|(_, leaf)| named.contains(&leaf.link())).map(|(number, _)| number).collect()
    }

    #[test]
    fn they_are_spread_over_the_list_however_the_tree_has_grown() {
        let spread = |tree: &Tree<LbLeaf<4, 1>>| {
            let (leaves, passed) = (tree.leaves.get() as usize, passed(tree));
            let longest = [0].iter().chain(&passed).zip(passed.iter().chain([&leaves])).map(|(from, to)| to - from).max().unwrap();
            assert!(passed.len() > 48 && longest < leaves / 6, "{} of 64 in {leaves} leaves, the longest way {longest}", passed.len());
        };
        spread(&tree(&pool(), shuffled(40_000)));
        spread(&tree(&pool(), 0..40_000));
        spread(&tree(&pool(), (0..40_000).rev()));
        let loaded = tree::<LbLeaf<4, 1>>(&pool(), 0..0);
        loaded.bulk_load(&mut (0..40_000).map(|key| (key, NonZeroU64::MIN)), 0.7).unwrap();
        spread(&loaded);
        // If leaves are replaced, waypoints are lost with them, but not at once.
        for keys in [&mut (0..100_000u64) as &mut dyn Iterator<Item = u64>, &mut (0..100_000).rev(), &mut shuffled(100_000)] {
            let tree = tree::<IsleLeaf<7>>(&pool(), keys);
            assert_eq!(tree.list(tree.waypoints.words(&tree.pool)).unwrap(), tree.list(&[]).unwrap());
            assert!(passed(&tree).len() > 24, "{} of 64", passed(&tree).len());
        }
    }

    /// Freed leaves, places that never were leaves, and what others have written there: the list is what its links say.
    #[test]
    fn whatever_they_name_the_list_is_the_same() {
        let pool = pool();
        let tree = tree::<IsleLeaf<1>>(&pool, shuffled(2000));
        let alone = tree.list(&[]).unwrap();
        assert_eq!(tree.list(tree.waypoints.words(&pool)).unwrap(), alone);
        let forged = |next: u64| {
            let leaf = pool.seal(pool.alloc_zeroed::<IsleLeaf<1>>().unwrap()).release();
            let own = if next == u64::MAX { leaf.link() } else { next };
            pool.store(LeafLayout::<u64>::next(pool.get(leaf).unwrap()), own, Relaxed);
            leaf.link()
        };
        let (middle, last) = (alone[alone.len() / 2], alone[alone.len() - 1]);
        let dangling = [
            u64::MAX,
            forged(0),
            forged(1),
            forged(u64::MAX),
            forged(forged(middle.link())),
            forged(Off::<Word>::new(1 << 40).link()),
            tree.root.link(),
            Off::<Word>::new(middle.bytes() + 64).link(),
            Off::<Word>::new(pool.length() as u64 - 64).link(),
            last.link(),
            middle.link(),
        ];
        let block = pool.alloc_words(dangling.len()).unwrap();
        for (word, link) in block.iter().zip(dangling) {
            pool.store(word, link, Relaxed);
        }
        for from in 0..dangling.len() {
            for to in from..=dangling.len() {
                assert_eq!(tree.list(&block[from..to]).unwrap(), alone, "{from} to {to}");
            }
        }
        // Damage of the list itself is reported, and so is a circle.
        let next = LeafLayout::<u64>::next(pool.get(middle).unwrap());
        for link in [1, tree.root().first.get(), middle.link(), alone[3].link()] {
            pool.store(next, link, Relaxed);
            assert!(tree.list(&block).is_err() && tree.list(&[]).is_err() && tree.list(tree.waypoints.words(&pool)).is_err(), "{link:#x}");
        }
    }

    #[test]
    fn a_tree_without_is_opened_and_goes_without() {
        let pool = pool();
        let made = tree::<LbLeaf<4, 1>>(&pool, shuffled(5000));
        pool.store(&made.root().waypoints, 0, Relaxed);
        drop(made);
        let recovery = Recovery { reach: None, trace: None, threads: 2 };
        let opened = Tree::<LbLeaf<4, 1>>::open(&pool, NAME, "tree", &recovery, Olc::build).unwrap();
        assert!((5000..6000).all(|key| opened.insert(&key, NonZeroU64::MIN).unwrap().is_none()));
        assert_eq!(opened.check().unwrap().keys, 6000);
        assert!(passed(&opened).is_empty());
    }
}
