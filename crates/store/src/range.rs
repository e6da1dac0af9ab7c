//! Iterators: the entries of a range, from both ends.
//!
//! A [`Range`] reads pages of entries with a [`Cursor`] into memory of its own. Between two calls it holds no lock and pins no epoch: its user may write, or
//! wait. What is left between the pages of both ends is one cursor, which is turned to the end that is asked. So the ends cannot meet in the same entry: a
//! page ends where the rest of the range begins, and an end that finds nothing left there takes from the page of the other one.
//!
//! The first page of an end is small, so that looking at one entry costs little more than a scan that ends there. Each further one is twice as large, up to a
//! bound at which the cost of beginning a scan no longer counts.

use crate::view::View;
use crate::{Cursor, Direction, Error, Namespace, Snapshot, Transaction};
use everleaf_index::Listed;
use everleaf_pmem::Hardware;
use std::collections::VecDeque;
use std::fmt;
use std::iter::FusedIterator;
use std::ops::{ControlFlow, RangeBounds};

/// Entries of the first page of each end.
const LENGTH_MIN: usize = 4;
/// Entries of its largest pages.
const LENGTH_MAX: usize = 256;
/// A page ends with the entry by which it exceeds this size in bytes for each entry of its length: the largest with more than 64 KiB.
const ENTRY_SIZE: usize = 256;

/// A key, and its value.
type Pair = (Vec<u8>, Vec<u8>);

/// An iterator over the entries of a range, in the order of their keys, from both ends. An error is its last item: neither end shows what lies beyond it.
///
/// It reads some entries at a time, at first up to four, then up to twice as many each time, up to 256; fewer if they are large. Between two calls it neither
/// holds a lock nor, by itself, keeps data from being reclaimed.
///
/// See [`Namespace::range`], [`Snapshot::range`] and [`Transaction::range`].
#[must_use = "an iterator reads nothing until it is used"]
pub struct Range<'r, M: Listed = Hardware> {
    source: Source<'r, M>,
    front: Page,
    back: Page,
    between: Between,
}

/// Where the entries are read.
enum Source<'r, M: Listed> {
    View(View<'r, M>),
    Transaction(&'r Transaction<M>, &'r Namespace<M>),
}

/// Entries that an end has read ahead. The first is the next one of that end.
struct Page {
    entries: VecDeque<Pair>,
    /// Largest number of entries to read the next time.
    length: usize,
}

/// What lies between the pages of both ends.
enum Between {
    /// The rest of the range.
    Unread(Cursor),
    Nothing,
    /// What kept an end from reading it.
    Failed(Error),
}

impl<'r, M: Listed> Range<'r, M> {
    fn new(source: Source<'r, M>, rest: Cursor) -> Self {
        let page = || Page { entries: VecDeque::new(), length: LENGTH_MIN };
        Self { source, front: page(), back: page(), between: Between::Unread(rest) }
    }

    #[inline]
    fn advance(&mut self, direction: Direction) -> Option<Result<Pair, Error>> {
        let Self { front, back, .. } = self;
        let near = if direction == Direction::Forward { front } else { back };
        near.entries.pop_front().map(Ok).or_else(|| self.read(direction))
    }

    /// [`Range::advance`] to an entry that this end has not read yet.
    #[inline(never)]
    fn read(&mut self, direction: Direction) -> Option<Result<Pair, Error>> {
        let Self { source, front, back, between } = self;
        let (near, far) = if direction == Direction::Forward { (front, back) } else { (back, front) };
        *between = match std::mem::replace(between, Between::Nothing) {
            Between::Unread(rest) => near.fill(source, rest.turned(direction)),
            read => read,
        };
        if let Some(entry) = near.entries.pop_front() {
            return Some(Ok(entry));
        }
        match std::mem::replace(between, Between::Nothing) {
            Between::Failed(error) => {
                far.entries.clear();
                Some(Err(error))
            }
            // A page without entries has come to the other end.
            Between::Unread(_) | Between::Nothing => far.entries.pop_back().map(Ok),
        }
    }
}

impl Page {
    /// Reads the next entries; returns what is left behind them.
    fn fill<M: Listed>(&mut self, source: &Source<'_, M>, mut rest: Cursor) -> Between {
        let Self { entries, length } = self;
        let mut size = 0;
        let outcome = source.walk(&mut rest, |key, value| {
            size += key.len() + value.len();
            entries.push_back((key.to_vec(), value.to_vec()));
            if entries.len() < *length && size <= *length * ENTRY_SIZE { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        *length = (*length * 2).min(LENGTH_MAX);
        match outcome {
            Err(error) => Between::Failed(error),
            Ok(()) if rest.is_over() => Between::Nothing,
            Ok(()) => Between::Unread(rest),
        }
    }
}

impl<M: Listed> Source<'_, M> {
    fn walk(&self, cursor: &mut Cursor, visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        match self {
            Self::View(view) => view.walk_values(cursor, visit),
            Self::Transaction(transaction, namespace) => transaction.walk(namespace, cursor, visit),
        }
    }
}

impl<M: Listed> Iterator for Range<'_, M> {
    type Item = Result<(Vec<u8>, Vec<u8>), Error>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.advance(Direction::Forward)
    }
}

impl<M: Listed> DoubleEndedIterator for Range<'_, M> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        self.advance(Direction::Reverse)
    }
}

impl<M: Listed> FusedIterator for Range<'_, M> {}

impl<M: Listed> fmt::Debug for Range<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { front, back, .. } = self;
        f.debug_struct("Range").field("front", &front.entries.len()).field("back", &back.entries.len()).finish_non_exhaustive()
    }
}

pub(crate) fn cursor_of<'k, K: AsRef<[u8]> + ?Sized + 'k>(bounds: &impl RangeBounds<&'k K>) -> Cursor {
    Cursor::new(bounds.start_bound().map(|low| low.as_ref()), Direction::Forward).until(bounds.end_bound().map(|high| high.as_ref()))
}

impl<M: Listed> Namespace<M> {
    /// Returns an iterator over the keys within `bounds` and their values, in order, from both ends. Bounds of which the lower one is above the upper one have
    /// nothing between them.
    ///
    /// This is not a snapshot: each entry is what a get of its key would have returned when the iterator read it, some entries ahead (see [`Range`]). That of a
    /// [`Snapshot`] is. To visit entries without copying them, use [`Namespace::scan`].
    ///
    /// ```
    /// # let store = everleaf::Store::anonymous(everleaf::Options::default())?;
    /// # let fruit = store.namespace("fruit")?;
    /// for key in ["apple", "banana", "cherry"] {
    ///     fruit.put(key.as_bytes(), b"sweet")?;
    /// }
    /// for entry in fruit.range("apple".."cherry").rev() {
    ///     let (key, value) = entry?;
    ///     println!("{} is {}", key.escape_ascii(), value.escape_ascii());
    /// }
    /// # assert_eq!(fruit.range("apple".."cherry").rev().map(|entry| Ok(entry?.0)).collect::<Result<Vec<_>, everleaf::Error>>()?, [&b"banana"[..], b"apple"]);
    /// # Ok::<_, everleaf::Error>(())
    /// ```
    ///
    /// Bounds are references to slices, arrays, vectors or strings, both of one type: where they are not, write `a.as_slice()..b`. For all keys, use
    /// [`Namespace::iter`].
    ///
    /// While a snapshot or a transaction is open, keys that were deleted since are passed one by one. So whoever takes entries from the front of a range, as
    /// from a queue, should begin behind the last one taken:
    ///
    /// ```
    /// # use std::ops::Bound::{Excluded, Unbounded};
    /// # let store = everleaf::Store::anonymous(everleaf::Options::default())?;
    /// # let fruit = store.namespace("fruit")?;
    /// # fruit.put(b"banana", b"yellow")?;
    /// let after = fruit.range((Excluded(b"apple"), Unbounded)).next().transpose()?;
    /// # assert_eq!(after, Some((b"banana".to_vec(), b"yellow".to_vec())));
    /// # Ok::<_, everleaf::Error>(())
    /// ```
    pub fn range<'k, K: AsRef<[u8]> + ?Sized + 'k>(&self, bounds: impl RangeBounds<&'k K>) -> Range<'_, M> {
        Range::new(Source::View(self.view()), cursor_of(&bounds))
    }

    /// [`Namespace::range`] over all keys. The first and the last entry are `iter().next()` and `iter().next_back()`. To count keys, use [`Namespace::count`].
    ///
    /// ```
    /// # let store = everleaf::Store::anonymous(everleaf::Options::default())?;
    /// # let events = store.namespace("events")?;
    /// for n in 1..=9u32 {
    ///     events.put(&n.to_be_bytes(), b"")?;
    /// }
    /// let last = events.iter().next_back().transpose()?;
    /// assert_eq!(last.map(|(key, _)| key), Some(9u32.to_be_bytes().to_vec()));
    /// # Ok::<_, everleaf::Error>(())
    /// ```
    pub fn iter(&self) -> Range<'_, M> {
        self.range::<[u8]>(..)
    }

    /// [`Namespace::range`] over all keys that begin with `prefix`.
    ///
    /// ```
    /// # let store = everleaf::Store::anonymous(everleaf::Options::default())?;
    /// # let users = store.namespace("users")?;
    /// # users.put(b"ada/born", b"1815")?;
    /// # users.put(b"adam/born", b"1723")?;
    /// let ada = users.iter_prefix(b"ada/").collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(ada, [(b"ada/born".to_vec(), b"1815".to_vec())]);
    /// # Ok::<_, everleaf::Error>(())
    /// ```
    pub fn iter_prefix(&self, prefix: &[u8]) -> Range<'_, M> {
        Range::new(Source::View(self.view()), Cursor::prefix(prefix, Direction::Forward))
    }
}

impl<M: Listed> Snapshot<M> {
    /// Returns an iterator over the keys within `bounds` and their values, in order, from both ends, as of the moment of the snapshot. Bounds are those of
    /// [`Namespace::range`].
    ///
    /// ```
    /// # let store = everleaf::Store::anonymous(everleaf::Options::default())?;
    /// # let queue = store.namespace("queue")?;
    /// # (1..=9u8).try_for_each(|n| queue.put(&[n], b"job"))?;
    /// let snapshot = store.snapshot()?;
    /// for entry in snapshot.range(&queue, &[3]..=&[6]) {
    ///     queue.delete(&entry?.0)?;
    /// }
    /// assert_eq!((snapshot.iter(&queue).count(), queue.iter().count()), (9, 5));
    /// # Ok::<_, everleaf::Error>(())
    /// ```
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn range<'r, 'k, K: AsRef<[u8]> + ?Sized + 'k>(&'r self, namespace: &'r Namespace<M>, bounds: impl RangeBounds<&'k K>) -> Range<'r, M> {
        Range::new(Source::View(self.view(namespace)), cursor_of(&bounds))
    }

    /// [`Snapshot::range`] over all keys. The first and the last entry are `iter(..).next()` and `iter(..).next_back()`.
    ///
    /// ```
    /// # let store = everleaf::Store::anonymous(everleaf::Options::default())?;
    /// # let fruit = store.namespace("fruit")?;
    /// # fruit.put(b"apple", b"red")?;
    /// let snapshot = store.snapshot()?;
    /// fruit.clear()?;
    /// assert_eq!(snapshot.iter(&fruit).next().transpose()?, Some((b"apple".to_vec(), b"red".to_vec())));
    /// # Ok::<_, everleaf::Error>(())
    /// ```
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn iter<'r>(&'r self, namespace: &'r Namespace<M>) -> Range<'r, M> {
        self.range::<[u8]>(namespace, ..)
    }

    /// [`Snapshot::range`] over all keys that begin with `prefix`.
    ///
    /// ```
    /// # let store = everleaf::Store::anonymous(everleaf::Options::default())?;
    /// # let users = store.namespace("users")?;
    /// # users.put(b"ada/born", b"1815")?;
    /// let snapshot = store.snapshot()?;
    /// assert_eq!(snapshot.iter_prefix(&users, b"ada/").count(), 1);
    /// # Ok::<_, everleaf::Error>(())
    /// ```
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn iter_prefix<'r>(&'r self, namespace: &'r Namespace<M>, prefix: &[u8]) -> Range<'r, M> {
        Range::new(Source::View(self.view(namespace)), Cursor::prefix(prefix, Direction::Forward))
    }
}

impl<M: Listed> Transaction<M> {
    /// Returns an iterator over the keys within `bounds` and their values, in order, from both ends: as the transaction has set them, or as of its beginning.
    /// Bounds are those of [`Namespace::range`].
    ///
    /// In a serializable transaction, what the iterator has read counts as scanned, even if it was not asked for: a change of another writer there is a
    /// conflict. It reads some entries ahead (see [`Range`]), of the first ones up to four. Its errors are those of [`Transaction::walk`].
    ///
    /// ```
    /// # let store = everleaf::Store::anonymous(everleaf::Options::default())?;
    /// # let queue = store.namespace("queue")?;
    /// # (1..=9u8).try_for_each(|n| queue.put(&[n], b"job"))?;
    /// let job = store.transact(everleaf::Isolation::Serializable, |transaction| {
    ///     let first = transaction.range(&queue, &[5]..).next().transpose()?;
    ///     if let Some((key, _)) = &first {
    ///         transaction.delete(&queue, key)?;
    ///     }
    ///     Ok::<_, everleaf::Error>(first)
    /// })?;
    /// assert_eq!(job, Some((vec![5], b"job".to_vec())));
    /// # Ok::<_, everleaf::Error>(())
    /// ```
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn range<'r, 'k, K: AsRef<[u8]> + ?Sized + 'k>(&'r self, namespace: &'r Namespace<M>, bounds: impl RangeBounds<&'k K>) -> Range<'r, M> {
        Range::new(self.source(namespace), cursor_of(&bounds))
    }

    /// [`Transaction::range`] over all keys. The first and the last entry are `iter(..).next()` and `iter(..).next_back()`.
    ///
    /// ```
    /// # let store = everleaf::Store::anonymous(everleaf::Options::default())?;
    /// # let fruit = store.namespace("fruit")?;
    /// # fruit.put(b"apple", b"red")?;
    /// let mut transaction = store.begin(everleaf::Isolation::Snapshot)?;
    /// transaction.put(&fruit, b"banana", b"yellow")?;
    /// assert_eq!(transaction.iter(&fruit).next_back().transpose()?, Some((b"banana".to_vec(), b"yellow".to_vec())));
    /// # Ok::<_, everleaf::Error>(())
    /// ```
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn iter<'r>(&'r self, namespace: &'r Namespace<M>) -> Range<'r, M> {
        self.range::<[u8]>(namespace, ..)
    }

    /// [`Transaction::range`] over all keys that begin with `prefix`.
    ///
    /// ```
    /// # let store = everleaf::Store::anonymous(everleaf::Options::default())?;
    /// # let users = store.namespace("users")?;
    /// let mut transaction = store.begin(everleaf::Isolation::Snapshot)?;
    /// transaction.put(&users, b"ada/born", b"1815")?;
    /// assert_eq!(transaction.iter_prefix(&users, b"ada/").count(), 1);
    /// # Ok::<_, everleaf::Error>(())
    /// ```
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn iter_prefix<'r>(&'r self, namespace: &'r Namespace<M>, prefix: &[u8]) -> Range<'r, M> {
        Range::new(self.source(namespace), Cursor::prefix(prefix, Direction::Forward))
    }

    fn source<'r>(&'r self, namespace: &'r Namespace<M>) -> Source<'r, M> {
        namespace.check_belongs_to(&self.snapshot().shared);
        Source::Transaction(self, namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Store};

    fn store() -> (Store, Namespace) {
        let store = Store::anonymous(Options { size_max: 64 << 20, ..Options::default() }).unwrap();
        let space = store.namespace("space").unwrap();
        (store, space)
    }

    /// How many entries are read whenever there is none left of those read before.
    fn lengths(mut range: Range<'_>, direction: Direction) -> Vec<usize> {
        let mut lengths = Vec::new();
        while let Some(entry) = range.advance(direction) {
            entry.unwrap();
            let page = if direction == Direction::Forward { &mut range.front } else { &mut range.back };
            lengths.push(1 + page.entries.len());
            page.entries.clear();
        }
        lengths
    }

    #[test]
    fn pages_grow_and_are_bounded_in_entries_and_bytes() {
        let (store, space) = store();
        let transaction = store.begin(crate::Isolation::Serializable).unwrap();
        (0..1_000u32).for_each(|n| space.put(&n.to_be_bytes(), b"small").unwrap());
        let snapshot = store.snapshot().unwrap();
        for direction in [Direction::Forward, Direction::Reverse] {
            let expected = [4, 8, 16, 32, 64, 128, 256, 256, 236];
            assert_eq!(lengths(space.iter(), direction), expected);
            assert_eq!(lengths(snapshot.iter(&space), direction), expected);
            assert!(lengths(transaction.iter(&space), direction).is_empty());
        }
        (0..1_000u32).for_each(|n| space.put(&n.to_be_bytes(), &[7; 2_000]).unwrap());
        // The first page of 1 KiB, the next of 2 KiB, and so on.
        let read = lengths(space.iter(), Direction::Forward);
        assert_eq!(read[..8], [1, 2, 3, 5, 9, 17, 33, 33]);
        (0..10u32).for_each(|n| space.put(&n.to_be_bytes(), &vec![7; 1 << 20]).unwrap());
        assert_eq!(lengths(space.range(..&10u32.to_be_bytes()), Direction::Reverse), [1; 10]);
        // Those of a snapshot are not what was written since.
        assert_eq!(lengths(snapshot.iter(&space), Direction::Forward)[..3], [4, 8, 16]);
    }

    #[test]
    fn a_range_can_be_sent_and_kept() {
        struct Kept<'r>(std::iter::Peekable<Range<'r>>);
        fn sent<T: Send>(value: T) -> T {
            value
        }
        let (_store, space) = store();
        space.put(b"key", b"value").unwrap();
        let mut kept = sent(Kept(space.iter().peekable()));
        assert!(kept.0.peek().is_some_and(Result::is_ok));
        assert_eq!(format!("{:?}", space.iter()), "Range { front: 0, back: 0, .. }");
    }
}
