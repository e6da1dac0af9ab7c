//! Atomic words in DRAM for structures that threads share without a lock. They are those of the standard library, but a [`Scheduler`](super::Scheduler) is
//! asked before each access.

use super::{Step, before};
use bytemuck::Zeroable;
use std::sync::atomic::{self, Ordering};

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[doc = concat!("See [`std::sync::atomic::", stringify!($name), "`] and the module documentation.")]
        #[derive(Default)]
        #[repr(transparent)]
        pub struct $name(atomic::$name);

        // SAFETY: the word in it may be zero.
        unsafe impl Zeroable for $name {}

        impl $name {
            /// A new word.
            pub const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            fn address(&self) -> usize {
                std::ptr::from_ref(self).addr()
            }

            /// Loads the word.
            #[inline(always)]
            pub fn load(&self, order: Ordering) -> $value {
                before(Step::Load(self.address()));
                self.0.load(order)
            }

            /// Stores a value.
            #[inline(always)]
            pub fn store(&self, value: $value, order: Ordering) {
                before(Step::Store(self.address(), u64::from(value)));
                self.0.store(value, order);
            }

            /// Stores a value; the one that was there.
            #[inline(always)]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                before(Step::Exchange(self.address(), u64::from(value)));
                self.0.swap(value, order)
            }

            /// Stores `new` if the word is `current`.
            ///
            /// # Errors
            /// What it is instead.
            #[inline(always)]
            pub fn compare_exchange(&self, current: $value, new: $value, success: Ordering, failure: Ordering) -> Result<$value, $value> {
                before(Step::Exchange(self.address(), u64::from(new)));
                self.0.compare_exchange(current, new, success, failure)
            }
        }
    };
}

atomic!(AtomicU64, u64);
atomic!(AtomicU32, u32);

impl AtomicU64 {
    /// Sets bits; the word that was there.
    #[inline(always)]
    pub fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        before(Step::Exchange(self.address(), bits));
        self.0.fetch_or(bits, order)
    }
}
