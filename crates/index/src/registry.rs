//! The list of every index.

use crate::bz::Bz;
use crate::ever::Ever;
use crate::fair::{Circular, Fair, Fast, Logged, Node, Versioned};
use crate::gated::Gated;
use crate::pf::{self, Pf};
use crate::selective::leaf::LeafLayout;
use crate::selective::router::{Build, FANOUT};
use crate::selective::{AnyRouter, FpLeaf, IsleLeaf, LbLeaf, NvLeaf, Selective, WbLeaf};
use crate::skip::Skip;
use crate::{Cause, Error, Key, OrderedIndex, volatile};
use everleaf_pmem::{Medium, Pool, Reach, schedule};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread::Builder;

/// How to open an existing index.
pub struct Recovery<'a, M: Medium> {
    /// Where to mark every block of the index; `None` after a clean shutdown, when the allocator knows already.
    pub reach: Option<&'a Reach<'a, M>>,
    /// Called once for each value word, by several threads: the owner of the values marks what the word links, and returns whether it is sound. `None` if
    /// values link nothing: then an index that need not look at values may serve before it has read all of its leaves. Also `None` for a salvage: then a
    /// damaged record is found when it is read, and if it is unknown whether a leaf counts, the likelier case is assumed; [`OrderedIndex::blocks`] and
    /// [`OrderedIndex::check`] report it.
    pub trace: Option<&'a Trace<'a>>,
    /// Number of threads to use, including the caller's. Threads that continue when the index serves already end when it is dropped, or sooner.
    pub threads: usize,
}

/// Fewer leaves than this are not worth a thread. In builds that check, one leaf is: there several threads recover trees of two leaves, too.
pub(crate) const SHARE_MIN: usize = if schedule::IS_BUILT_IN { 1 } else { 256 };

/// What [`Recovery`] calls for each value word.
pub type Trace<'a> = dyn Fn(NonZeroU64) -> Result<(), Error> + Sync + 'a;

/// An index of the registry, for keys `K` on medium `M`.
pub struct Entry<K: Key + ?Sized, M: Medium> {
    /// Name by which the store, the command line and the benchmark choose it.
    pub name: &'static str,
    /// One line for people.
    pub summary: &'static str,
    /// Whether it outlives the process.
    pub persistent: bool,
    /// Number of entries of a leaf.
    pub leaf_capacity: usize,
    /// What [`Entry::create`] does.
    pub creator: Create<K, M>,
    /// What [`Entry::open`] does.
    pub opener: Open<K, M>,
}

/// Creates an empty index and links it as a root.
pub type Create<K, M> = fn(&Entry<K, M>, &Arc<Pool<M>>, &str) -> Result<Box<dyn OrderedIndex<K>>, Error>;
/// Opens the index at a root.
pub type Open<K, M> = fn(&Entry<K, M>, &Arc<Pool<M>>, &str, &Recovery<'_, M>) -> Result<Box<dyn OrderedIndex<K>>, Error>;

impl<K: Key + ?Sized, M: Medium> Entry<K, M> {
    /// The kind word of roots of this index.
    pub fn kind(&self) -> u64 {
        kind_of::<K>(self.name)
    }

    /// Creates an empty index and links it as the root `name` of the pool.
    ///
    /// # Errors
    /// A full pool; a root of that name.
    pub fn create(&self, pool: &Arc<Pool<M>>, name: &str) -> Result<Box<dyn OrderedIndex<K>>, Error> {
        (self.creator)(self, pool, name)
    }

    /// Opens the existing index at the root `name`, and repairs what a crash has left.
    ///
    /// # Errors
    /// [`Cause::NoSuchIndex`], [`Cause::Volatile`], damage.
    pub fn open(&self, pool: &Arc<Pool<M>>, name: &str, recovery: &Recovery<'_, M>) -> Result<Box<dyn OrderedIndex<K>>, Error> {
        (self.opener)(self, pool, name, recovery)
    }
}

/// The kind word of a root: which index, for which keys.
pub(crate) fn kind_of<K: Key + ?Sized>(name: &str) -> u64 {
    u64::from(crc32c::crc32c(name.as_bytes())) << 32 | u64::from(K::WHOLE)
}

/// The offset of the root block of an index.
///
/// # Errors
/// [`Cause::NoSuchIndex`]; damage.
pub(crate) fn find_root<K: Key + ?Sized, M: Medium>(pool: &Pool<M>, name: &str, kind: &'static str) -> Result<u64, Error> {
    let root = pool.root(name)?.filter(|root| root.kind == kind_of::<K>(kind));
    root.map(|root| root.off).ok_or_else(|| Cause::NoSuchIndex { name: name.to_owned(), kind }.into())
}

/// Lets threads work at all of `items`, each at an equal share of them. Returns the results of the shares, in their order.
///
/// # Errors
/// The first error of a share.
pub(crate) fn in_shares<T: Sync, R: Send>(items: &[T], threads: usize, work: impl Fn(&[T]) -> Result<R, Error> + Sync) -> Result<Vec<R>, Error> {
    let share = items.len().div_ceil(threads.max(1)).max(SHARE_MIN).min(items.len());
    let (mine, others) = items.split_at(share);
    let work = &work;
    std::thread::scope(|scope| {
        let begin = |share| Builder::new().spawn_scoped(scope, move || work(share)).map_err(|_| share);
        let workers: Vec<_> = others.chunks(share.max(1)).map(begin).collect();
        let mut done = vec![work(mine)?];
        for worker in workers {
            done.push(match worker {
                Ok(worker) => worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?,
                // The system gives no thread.
                Err(share) => work(share)?,
            });
        }
        Ok(done)
    })
}

/// A medium for which indexes are compiled here, once, and not again in each program: they are most of the code of a program that uses [`registry`]. With the
/// feature `crash`, [`Crash`](everleaf_pmem::Crash) is among them.
pub trait Listed: Medium + Sized {
    /// Every index of integers.
    fn integers() -> Vec<Entry<u64, Self>>;
    /// Every index of byte strings.
    fn strings() -> Vec<Entry<[u8], Self>>;
}

// Unit tests of this crate need no lists, and would compile all of them again.
#[cfg(not(test))]
mod lists {
    #[cfg(feature = "crash")]
    use super::small_variants;
    use super::{Entry, Listed, instances};
    #[cfg(not(fuzzing))]
    use super::{more_sizes, node_sizes};
    use everleaf_pmem::Hardware;

    macro_rules! listed {
        ($medium:ty, integers: $($integers:ident),*; strings: $($strings:ident),*) => {
            impl Listed for $medium {
                #[inline(never)]
                fn integers() -> Vec<Entry<u64, Self>> {
                    [$($integers()),*].into_iter().flatten().collect()
                }

                #[inline(never)]
                fn strings() -> Vec<Entry<[u8], Self>> {
                    [$($strings()),*].into_iter().flatten().collect()
                }
            }
        };
    }

    // The product has all sizes, except sizes of nodes with string keys: papers compare nodes by the cost of integers. Fuzzing needs none of them.
    #[cfg(not(fuzzing))]
    listed!(Hardware, integers: instances, more_sizes, node_sizes; strings: instances, more_sizes);
    #[cfg(fuzzing)]
    listed!(Hardware, integers: instances; strings: instances);
    #[cfg(feature = "crash")]
    listed!(everleaf_pmem::Crash, integers: instances, small_variants; strings: instances, small_variants);
}

/// Every index.
pub fn registry<K: Key + ?Sized, M: Listed>() -> Vec<Entry<K, M>> {
    K::indexes()
}

/// The smallest Isle-Tree, for classes of keys that [`registry`] does not have; compiled where this is called.
pub fn smallest<K: Key + ?Sized, M: Medium>() -> Entry<K, M> {
    olc::<K, M, IsleLeaf<1>, 4>("isle-128", "Isle-Tree with leaves of 128 B and nodes of 4: for exhaustive checking")
}

/// Every structure, in sizes for exhaustive checking and in its default size. Compiled where this is called, for classes of keys and media that [`registry`]
/// does not have.
pub fn instances<K: Key + ?Sized, M: Medium>() -> Vec<Entry<K, M>> {
    vec![
        ever::<K, M, 1, 4, 4>("ever-64", "Ever with leaves of 64 B, extents of 4 leaves and nodes of 4: for exhaustive checking"),
        ever::<K, M, 14, 68, FANOUT>("ever", "Ever with leaves of 896 B"),
        smallest(),
        olc::<K, M, IsleLeaf<7>, FANOUT>("isle", "Isle-Tree with leaves of 512 B"),
        olc::<K, M, FpLeaf<3, 4, 0, 2>, 4>("fp-192", "FPTree with leaves of 192 B and nodes of 4: for exhaustive checking"),
        olc::<K, M, FpLeaf<8, 4, 0, 2>, FANOUT>("fp", "FPTree with leaves of 512 B"),
        olc::<K, M, LbLeaf<2, 1>, 4>("lb-128", "LB+-Tree with leaves of 128 B and nodes of 4: for exhaustive checking"),
        olc::<K, M, LbLeaf<2, 2>, 4>("lb-2x128", "LB+-Tree with leaves of 2 x 128 B and nodes of 4: for exhaustive checking"),
        olc::<K, M, LbLeaf<4, 1>, FANOUT>("lb", "LB+-Tree with leaves of 256 B"),
        packed::<K, M, NvLeaf<2>, 4>("nv-128", "NV-Tree with leaves of 128 B and nodes of 4: for exhaustive checking"),
        packed::<K, M, NvLeaf<8>, FANOUT>("nv", "NV-Tree with leaves of 512 B"),
        olc::<K, M, WbLeaf<2, 1>, 4>("wb-128", "wB+-Tree with slot arrays in leaves of 128 B and nodes of 4: for exhaustive checking"),
        olc::<K, M, WbLeaf<8, 2>, FANOUT>("wb", "wB+-Tree with slot arrays in leaves of 512 B"),
        olc::<K, M, WbLeaf<2, 0>, 4>("wb-bitmap-128", "wB+-Tree with bitmaps only in leaves of 128 B and nodes of 4: for exhaustive checking"),
        olc::<K, M, WbLeaf<8, 0>, FANOUT>("wb-bitmap", "wB+-Tree with bitmaps only in leaves of 512 B"),
        htm::<K, M, LbLeaf<2, 1>, 4>("lb-128-htm", "LB+-Tree with leaves of 128 B, transactions and nodes of 4: for exhaustive checking"),
        htm::<K, M, IsleLeaf<1>, 4>("isle-128-htm", "Isle-Tree with leaves of 128 B, transactions and nodes of 4: for exhaustive checking"),
        packed::<K, M, IsleLeaf<1>, 4>("isle-128-packed", "Isle-Tree with leaves of 128 B on NV-Tree's router with nodes of 4: for exhaustive checking"),
        packed::<K, M, LbLeaf<2, 1>, 4>("lb-128-packed", "LB+-Tree with leaves of 128 B on NV-Tree's router with nodes of 4: for exhaustive checking"),
        olc::<K, M, NvLeaf<2>, 4>("nv-128-olc", "NV-Tree with leaves of 128 B on the default router with nodes of 4: for exhaustive checking"),
        htm::<K, M, FpLeaf<3, 4, 0, 2>, 4>("fp-192-htm", "FPTree with leaves of 192 B, transactions and nodes of 4: for exhaustive checking"),
        htm::<K, M, WbLeaf<2, 1>, 4>("wb-128-htm", "wB+-Tree with slot arrays in leaves of 128 B, transactions and nodes of 4: for exhaustive checking"),
        htm::<K, M, NvLeaf<2>, 4>("nv-128-htm", "NV-Tree with leaves of 128 B, transactions and nodes of 4: for exhaustive checking"),
        packed::<K, M, FpLeaf<3, 4, 0, 2>, 4>("fp-192-packed", "FPTree with leaves of 192 B on NV-Tree's router with nodes of 4: for exhaustive checking"),
        packed::<K, M, WbLeaf<2, 1>, 4>("wb-128-packed", "wB+-Tree in leaves of 128 B on NV-Tree's router with nodes of 4: for exhaustive checking"),
        htm::<K, M, WbLeaf<2, 0>, 4>("wb-bitmap-128-htm", "wB+-Tree with bitmaps only, leaves of 128 B, transactions, nodes of 4: for exhaustive checking"),
        packed::<K, M, WbLeaf<2, 0>, 4>("wb-bitmap-128-packed", "wB+-Tree with bitmaps only, leaves of 128 B on NV-Tree's router: for exhaustive checking"),
        fair::<K, M, Fast<1>, 0>("fast-fair-128", "FAST-FAIR with nodes of 128 B: for exhaustive checking"),
        fair::<K, M, Fast<7>, 0>("fast-fair", "FAST-FAIR with nodes of 512 B"),
        fair::<K, M, Circular<2>, 0>("circ-192", "Circ-Tree with nodes of 192 B: for exhaustive checking"),
        fair::<K, M, Circular<7>, 0>("circ", "Circ-Tree with nodes of 512 B"),
        fair::<K, M, Logged<1>, 0>("lcb-128", "LCB+-Tree with nodes of 128 B and their logs: for exhaustive checking"),
        fair::<K, M, Logged<7>, 0>("lcb", "LCB+-Tree with nodes of 512 B and their logs"),
        fair::<K, M, Versioned<3>, 0>("cdds-256", "CDDS with nodes of 256 B: for exhaustive checking"),
        fair::<K, M, Versioned<7>, 0>("cdds", "CDDS with nodes of 512 B"),
        pf::<K, M, pf::Direct>("pf-4", "PFtree with arrays of up to 4 records: for exhaustive checking", 4),
        pf::<K, M, pf::Direct>("pf", "PFtree with arrays of up to 64 records", pf::RECORDS),
        pf::<K, M, pf::Direct>("p-art", "P-ART: a leaf for each key", 1),
        pf::<K, M, pf::Pointers>("roart-4", "ROART with arrays of up to 4 words: for exhaustive checking", 4),
        pf::<K, M, pf::Pointers>("roart", "ROART with arrays of up to 64 words", pf::RECORDS),
        bz::<K, M>("bztree-4", "BzTree with nodes of 4 entries: for exhaustive checking", 4),
        bz::<K, M>("bztree", "BzTree with nodes of 1 KiB", 42),
        skip::<K, M, 1>("skip-2", "a skip list with a tower for every second node: for exhaustive checking"),
        skip::<K, M, 2>("skip", "a divided skip list, its towers in DRAM"),
        Entry {
            name: "volatile",
            summary: "B+-tree in DRAM, the baseline",
            persistent: false,
            leaf_capacity: volatile::CAPACITY,
            creator: |_, pool, _| Ok(Box::new(volatile::Tree::<K, M>::new(pool))),
            opener: |_, _, _, _| Err(Cause::Volatile("volatile").into()),
        },
    ]
}

/// What larger sizes of the same leaves have and the smallest do not, in small: several lines of slots, links in lines of their own, back headers, headers of
/// two words. Compiled where this is called.
pub fn small_variants<K: Key + ?Sized, M: Medium>() -> Vec<Entry<K, M>> {
    vec![
        ever::<K, M, 2, 4, 4>("ever-128", "Ever with leaves of 128 B, extents of 4 leaves and nodes of 4: for exhaustive checking"),
        olc::<K, M, FpLeaf<2, 1, 1, 2>, 4>("fp-128", "FPTree with leaves of 128 B, as LB+-Tree's paper has them, and nodes of 4: for exhaustive checking"),
        olc::<K, M, FpLeaf<3, 4, 1, 2>, 4>("fp-192-tail", "FPTree with leaves of 192 B, the link behind the slots, and nodes of 4: for exhaustive checking"),
        olc::<K, M, FpLeaf<3, 4, 0, 3>, 4>("fp-192-published", "FPTree with leaves of 192 B, three fences an insert, and nodes of 4: for exhaustive checking"),
        olc::<K, M, LbLeaf<2, 3>, 4>("lb-3x128", "LB+-Tree with leaves of 3 x 128 B and nodes of 4: for exhaustive checking"),
        olc::<K, M, LbLeaf<3, 2>, 4>("lb-2x192", "LB+-Tree with leaves of 2 x 192 B and nodes of 4: for exhaustive checking"),
        fair::<K, M, Fast<3>, 3>("fast-fair-s-256", "FAST-FAIR with sentinels and nodes of 256 B: for exhaustive checking"),
        fair::<K, M, Circular<3>, 3>("circ-s-256", "Circ-Tree with sentinels and nodes of 256 B: for exhaustive checking"),
        packed::<K, M, NvLeaf<3>, 4>("nv-192", "NV-Tree with leaves of 192 B and nodes of 4: for exhaustive checking"),
    ]
}

/// Other sizes of the same leaves, by the same code. Compiled where this is called.
pub fn more_sizes<K: Key + ?Sized, M: Medium>() -> Vec<Entry<K, M>> {
    let mut entries = vec![
        olc::<K, M, IsleLeaf<3>, FANOUT>("isle-256", "Isle-Tree with leaves of 256 B"),
        olc::<K, M, IsleLeaf<15>, FANOUT>("isle-1k", "Isle-Tree with leaves of 1 KiB"),
        olc::<K, M, IsleLeaf<31>, FANOUT>("isle-2k", "Isle-Tree with leaves of 2 KiB"),
        olc::<K, M, FpLeaf<4, 1, 1, 2>, FANOUT>("fp-256", "FPTree with leaves of 256 B, as LB+-Tree's paper has them"),
        olc::<K, M, FpLeaf<16, 4, 4, 2>, FANOUT>("fp-1k", "FPTree with leaves of 1 KiB, as its paper has them"),
        olc::<K, M, FpLeaf<8, 4, 0, 3>, FANOUT>("fp-published", "FPTree with leaves of 512 B and three fences an insert, as its paper has them"),
        olc::<K, M, LbLeaf<4, 2>, FANOUT>("lb-512", "LB+-Tree with leaves of 2 x 256 B"),
        olc::<K, M, LbLeaf<4, 3>, FANOUT>("lb-768", "LB+-Tree with leaves of 3 x 256 B"),
        olc::<K, M, LbLeaf<4, 4>, FANOUT>("lb-1k", "LB+-Tree with leaves of 4 x 256 B"),
        packed::<K, M, NvLeaf<4>, FANOUT>("nv-256", "NV-Tree with leaves of 256 B"),
        packed::<K, M, NvLeaf<16>, FANOUT>("nv-1k", "NV-Tree with leaves of 1 KiB"),
        packed::<K, M, NvLeaf<32>, FANOUT>("nv-2k", "NV-Tree with leaves of 2 KiB"),
        packed::<K, M, NvLeaf<64>, FANOUT>("nv-4k", "NV-Tree with leaves of 4 KiB"),
        olc::<K, M, WbLeaf<4, 1>, FANOUT>("wb-256", "wB+-Tree with slot arrays in leaves of 256 B"),
        olc::<K, M, WbLeaf<16, 4>, FANOUT>("wb-1k", "wB+-Tree with slot arrays in leaves of 1 KiB"),
        olc::<K, M, WbLeaf<4, 0>, FANOUT>("wb-bitmap-256", "wB+-Tree with bitmaps only in leaves of 256 B"),
        olc::<K, M, WbLeaf<16, 0>, FANOUT>("wb-bitmap-1k", "wB+-Tree with bitmaps only in leaves of 1 KiB"),
        htm::<K, M, WbLeaf<8, 0>, FANOUT>("wb-bitmap-htm", "wB+-Tree with bitmaps only in leaves of 512 B and transactions of the processor"),
        packed::<K, M, WbLeaf<8, 0>, FANOUT>("wb-bitmap-packed", "wB+-Tree with bitmaps only in leaves of 512 B on NV-Tree's router"),
        htm::<K, M, IsleLeaf<7>, FANOUT>("isle-htm", "Isle-Tree with leaves of 512 B and transactions of the processor"),
        htm::<K, M, FpLeaf<8, 4, 0, 2>, FANOUT>("fp-htm", "FPTree with leaves of 512 B and transactions of the processor, as its paper has it"),
        htm::<K, M, LbLeaf<4, 1>, FANOUT>("lb-htm", "LB+-Tree with leaves of 256 B and transactions of the processor, as its paper has it"),
        htm::<K, M, NvLeaf<8>, FANOUT>("nv-htm", "NV-Tree with leaves of 512 B, the default router's nodes, and transactions of the processor"),
        htm::<K, M, WbLeaf<8, 2>, FANOUT>("wb-htm", "wB+-Tree with slot arrays in leaves of 512 B and transactions of the processor"),
        packed::<K, M, IsleLeaf<7>, FANOUT>("isle-packed", "Isle-Tree with leaves of 512 B on NV-Tree's router"),
        packed::<K, M, FpLeaf<8, 4, 0, 2>, FANOUT>("fp-packed", "FPTree with leaves of 512 B on NV-Tree's router"),
        packed::<K, M, LbLeaf<4, 1>, FANOUT>("lb-packed", "LB+-Tree with leaves of 256 B on NV-Tree's router"),
        packed::<K, M, WbLeaf<8, 2>, FANOUT>("wb-packed", "wB+-Tree with slot arrays in leaves of 512 B on NV-Tree's router"),
        olc::<K, M, NvLeaf<8>, FANOUT>("nv-olc", "NV-Tree with leaves of 512 B on the default router"),
    ];
    // Without what they have adopted from Ever, for comparisons with what papers measured. Strings have no shortcuts.
    if K::WHOLE {
        entries.extend([
            plain::<K, M, IsleLeaf<7>, FANOUT>("isle-plain", "Isle-Tree with leaves of 512 B, searched from the root on"),
            plain::<K, M, FpLeaf<8, 4, 0, 2>, FANOUT>("fp-plain", "FPTree with leaves of 512 B, searched from the root on"),
            plain::<K, M, LbLeaf<4, 1>, FANOUT>("lb-plain", "LB+-Tree with leaves of 256 B, searched from the root on"),
            plain::<K, M, WbLeaf<8, 2>, FANOUT>("wb-plain", "wB+-Tree with slot arrays in leaves of 512 B, searched from the root on"),
        ]);
    }
    entries
}

/// Other sizes of the trees whose nodes are all persistent, and the same with sentinels. Compiled where this is called.
pub fn node_sizes<K: Key + ?Sized, M: Medium>() -> Vec<Entry<K, M>> {
    vec![
        fair::<K, M, Fast<15>, 0>("fast-fair-1k", "FAST-FAIR with nodes of 1 KiB"),
        fair::<K, M, Fast<31>, 0>("fast-fair-2k", "FAST-FAIR with nodes of 2 KiB"),
        fair::<K, M, Fast<63>, 0>("fast-fair-4k", "FAST-FAIR with nodes of 4 KiB"),
        fair::<K, M, Fast<7>, 7>("fast-fair-s", "FAST-FAIR with sentinels and nodes of 512 B"),
        fair::<K, M, Fast<15>, 15>("fast-fair-s-1k", "FAST-FAIR with sentinels and nodes of 1 KiB"),
        fair::<K, M, Fast<31>, 31>("fast-fair-s-2k", "FAST-FAIR with sentinels and nodes of 2 KiB"),
        fair::<K, M, Fast<63>, 63>("fast-fair-s-4k", "FAST-FAIR with sentinels and nodes of 4 KiB"),
        fair::<K, M, Circular<15>, 0>("circ-1k", "Circ-Tree with nodes of 1 KiB"),
        fair::<K, M, Circular<31>, 0>("circ-2k", "Circ-Tree with nodes of 2 KiB"),
        fair::<K, M, Circular<63>, 0>("circ-4k", "Circ-Tree with nodes of 4 KiB"),
        fair::<K, M, Logged<15>, 0>("lcb-1k", "LCB+-Tree with nodes of 1 KiB and their logs"),
        fair::<K, M, Logged<31>, 0>("lcb-2k", "LCB+-Tree with nodes of 2 KiB and their logs"),
        fair::<K, M, Logged<63>, 0>("lcb-4k", "LCB+-Tree with nodes of 4 KiB and their logs"),
        fair::<K, M, Versioned<15>, 0>("cdds-1k", "CDDS with nodes of 1 KiB"),
        fair::<K, M, Versioned<31>, 0>("cdds-2k", "CDDS with nodes of 2 KiB"),
        fair::<K, M, Versioned<63>, 0>("cdds-4k", "CDDS with nodes of 4 KiB"),
        fair::<K, M, Circular<7>, 7>("circ-s", "Circ-Tree with sentinels and nodes of 512 B"),
        fair::<K, M, Circular<15>, 15>("circ-s-1k", "Circ-Tree with sentinels and nodes of 1 KiB"),
        fair::<K, M, Circular<31>, 31>("circ-s-2k", "Circ-Tree with sentinels and nodes of 2 KiB"),
        fair::<K, M, Circular<63>, 63>("circ-s-4k", "Circ-Tree with sentinels and nodes of 4 KiB"),
    ]
}

/// Our own index.
fn ever<K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize, const FANOUT: usize>(name: &'static str, summary: &'static str) -> Entry<K, M> {
    let creator: Create<K, M> = |entry, pool, root| gated(pool, Ever::<K, M, LINES, LEAVES, FANOUT>::create(pool, root, entry.name)?);
    let opener: Open<K, M> = |entry, pool, root, recovery| gated(pool, Ever::<K, M, LINES, LEAVES, FANOUT>::open(pool, root, entry.name, recovery)?);
    Entry { name, summary, persistent: true, leaf_capacity: LINES * 4, creator, opener }
}

/// The tree whose nodes are all persistent.
fn fair<K: Key + ?Sized, M: Medium, N: Node, const SENTINELS: usize>(name: &'static str, summary: &'static str) -> Entry<K, M> {
    let creator: Create<K, M> = |entry, pool, root| gated(pool, Fair::<K, M, N, SENTINELS>::create(pool, root, entry.name)?);
    let opener: Open<K, M> = |entry, pool, root, recovery| gated(pool, Fair::<K, M, N, SENTINELS>::open(pool, root, entry.name, recovery)?);
    Entry { name, summary, persistent: true, leaf_capacity: N::CAPACITY, creator, opener }
}

/// The radix tree.
fn pf<K: Key + ?Sized, M: Medium, F: pf::Form>(name: &'static str, summary: &'static str, records_max: usize) -> Entry<K, M> {
    let creator: Create<K, M> = |entry, pool, root| gated(pool, Pf::<K, M, F>::create(pool, root, entry.name, entry.leaf_capacity)?);
    let opener: Open<K, M> = |entry, pool, root, recovery| gated(pool, Pf::<K, M, F>::open(pool, root, entry.name, recovery, entry.leaf_capacity)?);
    Entry { name, summary, persistent: true, leaf_capacity: records_max, creator, opener }
}

/// The latch-free tree.
fn bz<K: Key + ?Sized, M: Medium>(name: &'static str, summary: &'static str, capacity: usize) -> Entry<K, M> {
    let creator: Create<K, M> = |entry, pool, root| gated(pool, Bz::<K, M>::create(pool, root, entry.name, entry.leaf_capacity)?);
    let opener: Open<K, M> = |entry, pool, root, recovery| gated(pool, Bz::<K, M>::open(pool, root, entry.name, recovery, entry.leaf_capacity)?);
    Entry { name, summary, persistent: true, leaf_capacity: capacity, creator, opener }
}

/// The skip list.
fn skip<K: Key + ?Sized, M: Medium, const RARE: u32>(name: &'static str, summary: &'static str) -> Entry<K, M> {
    let creator: Create<K, M> = |entry, pool, root| gated(pool, Skip::<K, M, RARE>::create(pool, root, entry.name)?);
    let opener: Open<K, M> = |entry, pool, root, recovery| gated(pool, Skip::<K, M, RARE>::open(pool, root, entry.name, recovery)?);
    Entry { name, summary, persistent: true, leaf_capacity: 1, creator, opener }
}

/// A tree on the default router.
fn olc<K: Key + ?Sized, M: Medium, L: LeafLayout<K>, const FANOUT: usize>(name: &'static str, summary: &'static str) -> Entry<K, M> {
    let creator: Create<K, M> = |entry, pool, root| create::<K, M, L, FANOUT>(entry, pool, root, AnyRouter::olc);
    let opener: Open<K, M> = |entry, pool, root, recovery| open::<K, M, L, FANOUT>(entry, pool, root, recovery, AnyRouter::olc);
    Entry { name, summary, persistent: true, leaf_capacity: L::CAPACITY, creator, opener }
}

/// The same leaves, without shortcuts past the upper nodes.
fn plain<K: Key + ?Sized, M: Medium, L: LeafLayout<K>, const FANOUT: usize>(name: &'static str, summary: &'static str) -> Entry<K, M> {
    Entry {
        creator: |entry, pool, root| create::<K, M, L, FANOUT>(entry, pool, root, AnyRouter::plain),
        opener: |entry, pool, root, recovery| open::<K, M, L, FANOUT>(entry, pool, root, recovery, AnyRouter::plain),
        ..olc::<K, M, L, FANOUT>(name, summary)
    }
}

/// The same leaves with transactions of the processor.
fn htm<K: Key + ?Sized, M: Medium, L: LeafLayout<K>, const FANOUT: usize>(name: &'static str, summary: &'static str) -> Entry<K, M> {
    Entry {
        creator: |entry, pool, root| create::<K, M, L, FANOUT>(entry, pool, root, AnyRouter::htm),
        opener: |entry, pool, root, recovery| open::<K, M, L, FANOUT>(entry, pool, root, recovery, AnyRouter::htm),
        ..olc::<K, M, L, FANOUT>(name, summary)
    }
}

/// The same leaves on NV-Tree's router.
fn packed<K: Key + ?Sized, M: Medium, L: LeafLayout<K>, const FANOUT: usize>(name: &'static str, summary: &'static str) -> Entry<K, M> {
    Entry {
        creator: |entry, pool, root| create::<K, M, L, FANOUT>(entry, pool, root, AnyRouter::packed),
        opener: |entry, pool, root, recovery| open::<K, M, L, FANOUT>(entry, pool, root, recovery, AnyRouter::packed),
        ..olc::<K, M, L, FANOUT>(name, summary)
    }
}

/// An index behind its gate.
fn gated<K: Key + ?Sized, I: OrderedIndex<K> + 'static, M: Medium>(pool: &Arc<Pool<M>>, index: I) -> Result<Box<dyn OrderedIndex<K>>, Error> {
    Ok(Box::new(Gated::new(pool, index)))
}

/// A tree on any router, compiled once for all.
type Tree<K, M, L, const FANOUT: usize> = Selective<K, L, AnyRouter<K, FANOUT>, M>;

fn create<K: Key + ?Sized, M: Medium, L: LeafLayout<K>, const FANOUT: usize>(
    entry: &Entry<K, M>,
    pool: &Arc<Pool<M>>,
    root: &str,
    router: Build<K, AnyRouter<K, FANOUT>>,
) -> Result<Box<dyn OrderedIndex<K>>, Error> {
    gated(pool, Tree::<K, M, L, FANOUT>::create(pool, root, entry.name, router)?)
}

fn open<K: Key + ?Sized, M: Medium, L: LeafLayout<K>, const FANOUT: usize>(
    entry: &Entry<K, M>,
    pool: &Arc<Pool<M>>,
    root: &str,
    recovery: &Recovery<'_, M>,
    router: Build<K, AnyRouter<K, FANOUT>>,
) -> Result<Box<dyn OrderedIndex<K>>, Error> {
    gated(pool, Tree::<K, M, L, FANOUT>::open(pool, root, entry.name, recovery, router)?)
}
