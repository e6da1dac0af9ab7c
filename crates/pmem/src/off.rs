//! Typed offsets: how pool memory refers to pool memory.
//!
//! An [`Off<T>`] counts bytes from the start of the pool, so a pool may be mapped anywhere. What is *stored* in a pool is a link: the offset in the low 48 bits
//! and a 16-bit check of it above, so that a damaged word is recognised before it is followed.
//!
//! ```text
//! 63            48 47                                             0
//! +---------------+-----------------------------------------------+
//! | check(offset) | offset in bytes, 0 = none                     |
//! +---------------+-----------------------------------------------+
//! ```

use crate::Error;
use std::marker::PhantomData;

const OFFSET_BITS: u32 = 48;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;

/// Bytes that offsets can tell apart: no pool is larger.
pub(crate) const SIZE_MAX: u64 = 1 << OFFSET_BITS;

/// Offset of a `T` in a pool, in bytes; 0 means none.
#[repr(transparent)]
pub struct Off<T: ?Sized>(u64, PhantomData<fn() -> *const T>);

impl<T: ?Sized> Off<T> {
    /// No block: the header of the pool is never a target.
    pub const NULL: Self = Self(0, PhantomData);

    /// An offset from a number of bytes. Nothing is assumed of it: [`Pm::get`](crate::Pm::get) checks.
    #[inline]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes, PhantomData)
    }

    /// The number of bytes from the start of the pool.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Whether this is [`Off::NULL`].
    #[inline]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The same place, seen as another type.
    #[inline]
    pub const fn cast<U: ?Sized>(self) -> Off<U> {
        Off::new(self.0)
    }

    /// The word that is stored in a pool to refer to this place. [`Off::NULL`] is 0.
    #[inline]
    pub const fn link(self) -> u64 {
        debug_assert!(self.0 <= OFFSET_MASK);
        self.0 | check(self.0) << OFFSET_BITS
    }

    /// Where a link refers to, if it is one.
    #[inline(always)]
    pub(crate) const fn unchecked(word: u64) -> Self {
        Self::new(word & OFFSET_MASK)
    }

    /// Reads a link back.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when the check does not match.
    #[inline]
    pub fn from_link(word: u64) -> Result<Self, Error> {
        Self::of_link(word).ok_or_else(|| Error::corrupt(word & OFFSET_MASK, "a link whose check bits do not match its offset"))
    }

    /// [`Off::from_link`]; `None` where that is an error.
    #[inline(always)]
    pub const fn of_link(word: u64) -> Option<Self> {
        let off = Self::unchecked(word);
        if off.link() == word { Some(off) } else { None }
    }
}

/// 16 bits that change whenever one bit of `off` changes: a flip of bit k adds or subtracts the multiplier shifted by k, whose top 16 bits are never all equal.
const fn check(off: u64) -> u64 {
    off.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> OFFSET_BITS
}

impl<T: ?Sized> Clone for Off<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: ?Sized> Copy for Off<T> {}
impl<T: ?Sized> PartialEq for Off<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<T: ?Sized> Eq for Off<T> {}
impl<T: ?Sized> std::hash::Hash for Off<T> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl<T: ?Sized> std::fmt::Debug for Off<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "@{:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_bit_in_a_link_is_noticed() {
        for off in [64u64, 0x1_0000, 0x7fff_ffff_ffc0, OFFSET_MASK & !7] {
            let link = Off::<u64>::new(off).link();
            assert_eq!(Off::<u64>::from_link(link).unwrap().bytes(), off);
            for bit in 0..64 {
                assert!(Off::<u64>::from_link(link ^ (1 << bit)).is_err(), "bit {bit} of {off:#x}");
            }
        }
        assert_eq!(Off::<u64>::NULL.link(), 0);
    }
}
