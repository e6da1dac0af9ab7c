//! Words: the only unit in which published persistent memory is read and written.
//!
//! A [`Word`] is eight bytes, aligned, accessed as one 64-bit atomic for ever: the unit that a crash cannot tear, and the unit that Rust's memory model lets
//! many threads share. Anyone may [`Word::load`]; storing goes through [`Pm`](crate::Pm), which tells the medium. Bytes, counters and fingerprints are
//! extracted from words loaded whole: no other access width ever touches a pool, so accesses never partially overlap. The exception is
//! [`Pool::glimpse`](crate::Pool::glimpse), where nobody writes what it reads, or a word of it may be out of date.

use crate::schedule::{self, Step};
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of a word in bytes.
pub const WORD: usize = 8;

/// Eight bytes of persistent memory. Reading is public; writing is [`Pm::store`](crate::Pm::store) and its siblings.
#[repr(transparent)]
pub struct Word(AtomicU64);

impl Word {
    /// Loads the word.
    #[inline(always)]
    #[track_caller]
    pub fn load(&self, order: Ordering) -> u64 {
        if schedule::is_scheduled() { self.load_scheduled(order) } else { self.0.load(order) }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn load_scheduled(&self, order: Ordering) -> u64 {
        let address = std::ptr::from_ref(self).addr();
        schedule::before(Step::Load(address));
        schedule::held_back(address).unwrap_or_else(|| self.0.load(order))
    }

    /// Loads the word for a purpose that needs no ordering of its own: under a lock, or before a version check that fences.
    #[inline(always)]
    #[track_caller]
    pub fn get(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn atomic(&self) -> &AtomicU64 {
        &self.0
    }
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.get())
    }
}

/// The words that `bytes` fill, little end first, the last one padded with zeroes.
#[inline(always)]
pub(crate) fn values(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let (chunks, rest) = bytes.as_chunks::<WORD>();
    chunks.iter().map(|chunk| u64::from_le_bytes(*chunk)).chain((!rest.is_empty()).then(|| padded(rest)))
}

/// The word that begins with `bytes`, which do not fill it.
pub(crate) fn padded(bytes: &[u8]) -> u64 {
    let mut word = [0; WORD];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// CRC-32C of the bytes of `words`, as they lie in memory: little end first on the machines that Everleaf runs on.
pub(crate) fn checksum(words: &[u64]) -> u32 {
    crc32c::crc32c(bytemuck::cast_slice(words))
}

/// Types that may be laid over pool memory.
///
/// Implement it with [`resident!`](crate::resident), which checks the contract.
///
/// # Safety
/// Every byte of the type lies inside a [`Word`] (no padding), so that a shared reference to memory that others write atomically is sound, and every bit
/// pattern is a valid value. The alignment is that of a word, or more.
pub unsafe trait Resident {
    /// Compile-time proof that the layout has no padding; [`Pm`](crate::Pm) evaluates it for every type it hands out.
    const LAYOUT: () = ();
}

// SAFETY: a word is a word.
unsafe impl Resident for Word {}
// SAFETY: elements follow each other without padding.
unsafe impl<T: Resident> Resident for [T] {
    const LAYOUT: () = T::LAYOUT;
}
// SAFETY: elements follow each other without padding.
unsafe impl<T: Resident, const N: usize> Resident for [T; N] {
    const LAYOUT: () = T::LAYOUT;
}

/// Declares a struct of words that can be laid over pool memory.
///
/// The fields must be [`Resident`] themselves, and fill the struct without padding; both are checked at compile time. Fields may be private: the bytes of a
/// layout belong to the file that defines it.
///
/// ```
/// everleaf_pmem::resident! {
///     /// A node of a list.
///     pub struct Node {
///         next: Word,
///         payload: [Word; 7],
///     }
/// }
/// # use everleaf_pmem::Word;
/// assert_eq!(size_of::<Node>(), 64);
/// ```
///
/// Padding, at whatever depth, does not compile where the type is used:
///
/// ```compile_fail
/// everleaf_pmem::resident! {
///     #[repr(align(64))]
///     pub struct Padded {
///         word: Word,
///     }
/// }
/// # use everleaf_pmem::{Off, Pool, Word};
/// fn get(pool: &Pool, off: Off<[Padded; 2]>) {
///     pool.get(off);
/// }
/// # std::hint::black_box(get as fn(&Pool, Off<[Padded; 2]>));
/// ```
#[macro_export]
macro_rules! resident {
    ($(#[$meta:meta])* $vis:vis struct $name:ident $(<$(const $param:ident: usize),+>)? { $($(#[$fmeta:meta])* $fvis:vis $field:ident: $ty:ty),* $(,)? }) => {
        $(#[$meta])*
        #[repr(C)]
        $vis struct $name $(<$(const $param: usize),+>)? { $($(#[$fmeta])* $fvis $field: $ty),* }

        // SAFETY: every field is `Resident` (checked by `all_resident`), and the sizes of the fields add up to the size of the struct (checked by `LAYOUT`,
        // which `Pm` evaluates for every type it hands out), so no byte lies outside a word.
        unsafe impl $(<$(const $param: usize),+>)? $crate::Resident for $name $(<$($param),+>)? {
            const LAYOUT: () = {
                $(let () = <$ty as $crate::Resident>::LAYOUT;)*
                assert!(::core::mem::size_of::<Self>() == 0 $(+ ::core::mem::size_of::<$ty>())*);
            };
        }

        const _: () = {
            #[allow(dead_code)]
            fn all_resident $(<$(const $param: usize),+>)? () {
                fn resident<T: $crate::Resident>() {}
                $(resident::<$ty>();)*
            }
        };
    };
}
