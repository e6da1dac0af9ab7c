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

/// The range of offsets in bytes: no pool is larger.
pub(crate) const SIZE_MAX: u64 = 1 << OFFSET_BITS;

/// Offset of a `T` in a pool, in bytes; 0 means none.
#[repr(transparent)]
pub struct Off<T: ?Sized>(u64, PhantomData<fn() -> *const T>);

impl<T: ?Sized> Off<T> {
    /// No block: the header of the pool is never a target.
    pub const NULL: Self = Self(0, PhantomData);

    /// An offset from a number of bytes. The number may be anything: [`Pm::get`](crate::Pm::get) checks it.
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

    /// The target of a link, if it is one.
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

/// 16 bits that change whenever one byte of `off` changes: such a change adds or subtracts a multiple of the multiplier, at most 255 of it shifted by whole
/// bytes, and the top 16 bits of none of these are all equal. So whichever byte of a link, or of 0, is changed to whatever, the word is no link, and not 0
/// either.
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
    fn a_byte_of_a_link_that_is_changed_is_noticed() {
        for shift in (0..OFFSET_BITS).step_by(8) {
            for by in 1..=255 {
                assert!(!matches!(check(by << shift), 0 | 0xffff), "{by} at bit {shift}");
            }
        }
        for off in [0, 1, 64u64, 0x1_0000, 0x7fff_ffff_ffc0, OFFSET_MASK & !7, OFFSET_MASK] {
            let link = Off::<u64>::new(off).link();
            assert_eq!(Off::<u64>::from_link(link).unwrap().bytes(), off);
            for (shift, by) in (0..64).step_by(8).flat_map(|shift| (1..=255).map(move |by: u64| (shift, by))) {
                assert!(Off::<u64>::from_link(link ^ by << shift).is_err(), "{by:#x} at bit {shift} of {off:#x}");
            }
        }
        assert_eq!(Off::<u64>::NULL.link(), 0);
    }
}
