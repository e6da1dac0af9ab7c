//! Cursors: places in a range of keys from which to continue.

use crate::Direction;
use crate::scan::successor;
use std::ops::Bound;

/// The rest of a range of keys, to be read in parts. It holds nothing open: it may be kept, sent elsewhere, and used with another snapshot, or without one.
///
/// See [`Namespace::walk`](crate::Namespace::walk), [`Snapshot::walk`](crate::Snapshot::walk) and [`Transaction::walk`](crate::Transaction::walk).
///
/// ```
/// # use everleaf::{Cursor, Direction, Options, Store};
/// # use std::ops::{Bound, ControlFlow};
/// # let store = Store::anonymous(Options::default())?;
/// # let space = store.namespace("space")?;
/// # for n in 0..9u8 {
/// #     space.put(&[n], b"v")?;
/// # }
/// let mut cursor = Cursor::new(Bound::Included(&[2]), Direction::Forward).until(Bound::Excluded(&[7]));
/// let mut page = Vec::new();
/// space.walk(&mut cursor, |key, _| {
///     page.push(key[0]);
///     if page.len() < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
/// })?;
/// assert_eq!(page, [2, 3, 4]);
/// assert_eq!(cursor.position(), Bound::Excluded(&[4][..]));
/// # Ok::<_, everleaf::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
    direction: Direction,
    hidden_max: usize,
    is_over: bool,
}

impl Cursor {
    /// A cursor from a bound to the last key, or, in reverse, to the first. Forward, the bound is a lower bound; in reverse, an upper one.
    pub fn new(from: Bound<&[u8]>, direction: Direction) -> Self {
        Self { from: from.map(<[u8]>::to_vec), to: Bound::Unbounded, direction, hidden_max: usize::MAX, is_over: false }
    }

    /// A cursor over all keys that begin with `prefix`.
    pub fn prefix(prefix: &[u8], direction: Direction) -> Self {
        let (low, high) = (Bound::Included(prefix), successor(prefix));
        let high = high.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        match direction {
            Direction::Forward => Self::new(low, direction).until(high),
            Direction::Reverse => Self::new(high, direction).until(low),
        }
    }

    /// The same, up to a bound. Forward, it is an upper bound; in reverse, a lower one.
    #[must_use]
    pub fn until(self, to: Bound<&[u8]>) -> Self {
        Self { to: to.map(<[u8]>::to_vec), ..self }
    }

    /// The same, but starting at the position of another such cursor, which was not over.
    #[must_use]
    pub fn at(self, position: Bound<&[u8]>) -> Self {
        Self { from: position.map(<[u8]>::to_vec), ..self }
    }

    /// The same, for callers that may not take long: a walk ends, as if its visitor had broken it off, when it has passed `hidden_max` keys that it does not
    /// show, because they have expired or are there for older snapshots only.
    #[must_use]
    pub fn passing(self, hidden_max: usize) -> Self {
        Self { hidden_max, ..self }
    }

    /// Returns where it continues. At the end of the range it stays where the last walk began: whoever keeps positions keeps [`Cursor::is_over`], too.
    pub fn position(&self) -> Bound<&[u8]> {
        self.from.as_ref().map(Vec::as_slice)
    }

    /// Returns its direction.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Returns whether it has reached its end.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether `key`, which lies after its position, lies after its end, too.
    #[inline(always)]
    pub(crate) fn is_beyond(&self, key: &[u8]) -> bool {
        let is_beyond = |to: &[u8]| if self.direction == Direction::Forward { key > to } else { key < to };
        match &self.to {
            Bound::Included(to) => is_beyond(to),
            Bound::Excluded(to) => key == to.as_slice() || is_beyond(to),
            Bound::Unbounded => false,
        }
    }

    /// How many keys a walk passes at most without showing them.
    pub(crate) fn hidden_max(&self) -> usize {
        self.hidden_max
    }

    /// Whether it has passed `key`, which lay ahead of it.
    pub(crate) fn has_passed(&self, key: &[u8]) -> bool {
        self.is_over || matches!(&self.from, Bound::Excluded(last) if key == last || self.is_before(key, last))
    }

    /// Whether it comes to `key` before `other`.
    pub(crate) fn is_before(&self, key: &[u8], other: &[u8]) -> bool {
        if self.direction == Direction::Forward { key < other } else { key > other }
    }

    /// Continues after `key`.
    pub(crate) fn advance(&mut self, key: Vec<u8>) {
        self.from = Bound::Excluded(key);
    }

    /// Ends it.
    pub(crate) fn end(&mut self) {
        self.is_over = true;
    }

    /// The same rest of the range, from the end at which a walk in that direction begins.
    pub(crate) fn turned(self, direction: Direction) -> Self {
        if self.direction == direction { self } else { Self { from: self.to, to: self.from, direction, ..self } }
    }

    /// The rest of the range: a lower and an upper bound.
    pub(crate) fn rest(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        self.between(self.to.clone())
    }

    /// The part of the range between this and `now`, a later position of the same cursor.
    pub(crate) fn passed(&self, now: &Self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        match &now.from {
            Bound::Excluded(last) if !now.is_over => self.between(Bound::Included(last.clone())),
            _ => self.rest(),
        }
    }

    fn between(&self, to: Bound<Vec<u8>>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        if self.direction == Direction::Forward { (self.from.clone(), to) } else { (to, self.from.clone()) }
    }
}
