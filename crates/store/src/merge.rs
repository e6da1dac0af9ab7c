//! Merges: writes that say how to change a value, not what it is to be.
//!
//! A merge is applied to the value that the key holds at the moment of the write, under its stripe, and the result is written like any other value, durably and
//! atomically, as by a put. The key keeps its expiry.
//!
//! In a batch or a transaction a merge waits for the commit. Since it does not depend on the previous value, it conflicts with nothing: two transactions that
//! add to one counter both commit, unless one has also *read* it. Consecutive merges of one key are combined where that is possible without the value.

use crate::draft::Draft;
use crate::store::check_sizes;
use crate::{Entry, Error};
use everleaf_index::Listed;
use std::fmt;
use std::sync::Arc;

/// A change to a value.
#[derive(Clone)]
#[non_exhaustive]
pub enum Merge {
    /// Adds to a counter, which is eight bytes: an `i64`, little-endian. An absent one is 0.
    Add(i64),
    /// Appends to a value. An absent one is empty.
    Append(Vec<u8>),
    /// The operator's result replaces the value (`None`: absent); its error says why it cannot. It must not touch the store, and may be called more than once.
    With(Arc<Operator>),
}

/// See [`Merge::With`].
pub type Operator = dyn Fn(Option<&[u8]>) -> Result<Option<Vec<u8>>, String> + Send + Sync;

impl fmt::Debug for Merge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add(number) => f.debug_tuple("Add").field(number).finish(),
            Self::Append(tail) => f.debug_tuple("Append").field(tail).finish(),
            Self::With(_) => f.write_str("With(..)"),
        }
    }
}

impl Merge {
    /// Applies it to a value.
    fn apply(&self, value: Option<Vec<u8>>) -> Result<Option<Vec<u8>>, String> {
        match self {
            Self::Add(number) => {
                let old = value.as_deref().map_or(Ok([0; 8]), <[u8; 8]>::try_from).map_err(|_| "it is no counter, which has eight bytes")?;
                let sum = i64::from_le_bytes(old).checked_add(*number).ok_or("the counter would overflow")?;
                Ok(Some(sum.to_le_bytes().to_vec()))
            }
            Self::Append(tail) => {
                let mut value = value.unwrap_or_default();
                value.extend_from_slice(tail);
                Ok(Some(value))
            }
            Self::With(operator) => operator(value.as_deref()),
        }
    }

    /// Approximate size in DRAM in bytes. What an operator refers to is unknown.
    fn size(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Add(_) => 0,
                Self::Append(tail) => tail.len(),
                Self::With(operator) => size_of_val(&**operator),
            }
    }

    /// Combines itself with the merge after it, if that is possible.
    fn absorb(&mut self, next: &Self) -> bool {
        match (self, next) {
            (Self::Add(number), Self::Add(more)) => number.checked_add(*more).map(|sum| *number = sum).is_some(),
            (Self::Append(tail), Self::Append(more)) => {
                tail.extend_from_slice(more);
                true
            }
            _ => false,
        }
    }
}

/// The effect of a write on a key.
pub(crate) enum Goal<M: Listed> {
    /// Set it to this, whatever it holds; `None`: absent.
    Be(Option<Entry>),
    /// Set it to what a transaction has written to the pool, whatever it holds.
    BeDraft(Arc<Draft<M>>),
    /// Apply these to what it holds, one after the other.
    Become(Vec<Merge>),
}

impl<M: Listed> Clone for Goal<M> {
    fn clone(&self) -> Self {
        match self {
            Self::Be(entry) => Self::Be(entry.clone()),
            Self::BeDraft(draft) => Self::BeDraft(draft.clone()),
            Self::Become(merges) => Self::Become(merges.clone()),
        }
    }
}

impl<M: Listed> Goal<M> {
    /// Does `next` after it; `failed` turns the reason of a failed merge into an error, and then nothing is left of `self`.
    pub(crate) fn then(&mut self, next: Self, failed: impl FnOnce(String) -> Error) -> Result<(), Error> {
        match (&mut *self, next) {
            (_, next @ (Self::Be(_) | Self::BeDraft(_))) => *self = next,
            (Self::Be(entry), Self::Become(merges)) => *entry = apply(entry.take(), &merges).map_err(failed)?,
            (Self::BeDraft(draft), Self::Become(merges)) => *self = Self::Be(apply(Some(draft.entry()?), &merges).map_err(failed)?),
            (Self::Become(merges), Self::Become(more)) => {
                for merge in more {
                    if !merges.last_mut().is_some_and(|last| last.absorb(&merge)) {
                        merges.push(merge);
                    }
                }
            }
        }
        Ok(())
    }

    /// Approximate size in DRAM, in bytes, of what it keeps there.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Be(entry) => entry.as_ref().map_or(0, |entry| entry.value.len()),
            Self::BeDraft(_) => 0,
            Self::Become(merges) => merges.iter().map(Merge::size).sum(),
        }
    }

    /// Checks the sizes of the key and of the value, as far as they are known: a merge may make a value of any size, and any key can be absent.
    pub(crate) fn check_size(&self, key: &[u8]) -> Result<(), Error> {
        match self {
            Self::Be(None) => Ok(()),
            Self::Be(Some(entry)) => check_sizes(key, &entry.value),
            Self::BeDraft(_) | Self::Become(_) => check_sizes(key, &[]),
        }
    }
}

/// Applies `merges` to what a key holds.
pub(crate) fn apply(mut entry: Option<Entry>, merges: &[Merge]) -> Result<Option<Entry>, String> {
    for merge in merges {
        let (value, expiry_ms) = entry.map_or((None, None), |Entry { value, expiry_ms }| (Some(value), expiry_ms));
        entry = merge.apply(value)?.map(|value| Entry { value, expiry_ms });
    }
    Ok(entry)
}

/// Turns the reason of a failed merge into an error.
pub(crate) fn failed(namespace: &str, key: &[u8]) -> impl FnOnce(String) -> Error {
    move |reason| Error::Merge { namespace: namespace.into(), key: key.into(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everleaf_pmem::Hardware;

    type Goal = super::Goal<Hardware>;

    fn then(goal: &mut Goal, merges: &[Merge]) {
        goal.then(Goal::Become(merges.to_vec()), failed("space", b"key")).unwrap();
    }

    fn value(entry: Option<Entry>) -> Option<Vec<u8>> {
        entry.map(|entry| entry.value)
    }

    #[test]
    fn merges_that_follow_each_other_do_what_they_do_one_by_one() {
        let double: Arc<Operator> = Arc::new(|value| Ok(Some(value.unwrap_or(b"x").repeat(2))));
        let vanish: Arc<Operator> = Arc::new(|_| Ok(None));
        let append = |tail: &[u8]| Merge::Append(tail.to_vec());
        let merges =
            [append(b"a"), append(b"b"), Merge::With(double.clone()), append(b"c"), Merge::With(vanish), Merge::With(double), append(b"d"), append(b"")];
        for end in 0..=merges.len() {
            let mut goal = Goal::Become(Vec::new());
            merges[..end].iter().for_each(|merge| then(&mut goal, std::slice::from_ref(merge)));
            let Goal::Become(together) = &goal else { panic!("merges make a value of nothing") };
            assert!(together.len() < end || end < 2);
            for start in [None, Some(Entry { value: b"0".to_vec(), expiry_ms: Some(7) })] {
                let expected = apply(start.clone(), &merges[..end]).unwrap();
                assert_eq!(apply(start.clone(), together).unwrap(), expected);
                let mut known = Goal::Be(start);
                then(&mut known, together);
                assert!(matches!(known, Goal::Be(entry) if entry == expected));
            }
        }
        assert_eq!(value(apply(None, &merges).unwrap()), Some(b"xxd".to_vec()));
    }

    /// The value was copied twice for each, so that many of them after a large value in one batch took for ever.
    #[test]
    fn what_is_appended_goes_where_the_value_is() {
        let mut value = Vec::with_capacity(1 << 10);
        value.push(b'v');
        let at = value.as_ptr();
        let mut goal = Goal::Be(Some(Entry { value, expiry_ms: None }));
        (0..100).for_each(|_| then(&mut goal, &[Merge::Append(vec![b'm'; 10])]));
        let Goal::Be(Some(Entry { value, .. })) = goal else { panic!() };
        assert_eq!((value.as_ptr(), value.len()), (at, 1 + 100 * 10));
    }

    #[test]
    fn counters_count_and_say_when_they_cannot() {
        let counter = |number: i64| Some(Entry { value: number.to_le_bytes().to_vec(), expiry_ms: None });
        assert_eq!(apply(None, &[Merge::Add(-5)]), Ok(counter(-5)));
        assert_eq!(apply(counter(7), &[Merge::Add(i64::MIN)]), Ok(counter(7 + i64::MIN)));
        assert!(apply(counter(i64::MAX), &[Merge::Add(1)]).unwrap_err().contains("overflow"));
        assert!(apply(Some(Entry { value: b"seven".to_vec(), expiry_ms: None }), &[Merge::Add(1)]).unwrap_err().contains("eight bytes"));
        // Sums that overflow on the way overflow only if they are computed one by one.
        let mut goal = Goal::Become(vec![Merge::Add(i64::MAX)]);
        then(&mut goal, &[Merge::Add(1), Merge::Add(-2)]);
        let Goal::Become(merges) = goal else { panic!() };
        assert_eq!(merges.len(), 2);
        assert_eq!(apply(counter(-9), &merges), Ok(counter(i64::MAX - 10)));
    }
}
