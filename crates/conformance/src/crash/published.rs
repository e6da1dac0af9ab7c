//! Integers as in Isle-Tree's paper: keys whose *values* distinguish entries. Must be found wrong, because values need not be unique.

use crate::Class;
use everleaf_index::{Entry, Error, FenceBlock, Key, Listed, NewFence, smallest};
use everleaf_pmem::{Medium, Off, Pm, Pool, Word};
use proptest::prelude::*;
use std::cmp::Ordering;
use std::num::NonZeroU64;

/// An integer that does not declare that it is the whole key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Published(u64);

impl Key for Published {
    const WHOLE: bool = false;
    const LOWEST: &'static Self = &Self(0);

    fn head(&self, _skip: usize) -> u64 {
        self.0
    }

    fn token(&self) -> u64 {
        self.0
    }

    fn shared(&self, _other: &Self) -> usize {
        0
    }

    fn compare<M: Medium>(&self, _pm: &Pm<M>, _skip: usize, head: u64, _value: NonZeroU64) -> Result<Ordering, Error> {
        Ok(self.0.cmp(&head))
    }

    fn read<M: Medium>(_pm: &Pm<M>, head: u64, _value: NonZeroU64, out: &mut Self) -> Result<(), Error> {
        *out = Self(head);
        Ok(())
    }

    fn separator(_low: &Self, high: &Self) -> Self {
        *high
    }

    fn bytes(&self) -> &[u8] {
        &[]
    }

    fn restore(head: u64, _bytes: &[u8]) -> Self {
        Self(head)
    }

    fn rehead<M: Medium>(_pm: &Pm<M>, _skip: usize, head: u64, _value: NonZeroU64) -> Result<u64, Error> {
        Ok(head)
    }

    fn fence<'p, M: Medium>(&self, _pool: &'p Pool<M>) -> Result<NewFence<'p, M>, Error> {
        Ok((self.0, None))
    }

    fn read_fence<M: Medium>(_pm: &Pm<M>, word: u64) -> Result<(Self, FenceBlock), Error> {
        Ok((Self(word), None))
    }

    fn indexes<M: Listed>() -> Vec<Entry<Self, M>> {
        vec![smallest()]
    }
}

impl Class for Published {
    const NAME: &'static str = "published";

    fn numbered(number: u32) -> Self {
        Self(u64::numbered(number))
    }

    fn any() -> BoxedStrategy<Self> {
        u64::any().prop_map(Self).boxed()
    }

    fn value<M: Medium>(pool: &Pool<M>, key: &Self, payload: u64) -> Result<NonZeroU64, Error> {
        u64::value(pool, &key.0, payload)
    }

    fn payload<M: Medium>(pm: &Pm<M>, value: NonZeroU64) -> Result<u64, Error> {
        u64::payload(pm, value)
    }

    fn block<M: Medium>(_pm: &Pm<M>, _value: NonZeroU64) -> Result<Option<(Off<Word>, usize)>, Error> {
        Ok(None)
    }
}
