//! Atomic words in DRAM for structures that threads share without a lock. They are those of the standard library, except that a [`Scheduler`](super::Scheduler)
//! is asked before each access, and may hold stores back.

use super::{Step, before, drain, held_back, is_scheduled, with_buffer};
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

            /// Updates the word with what has left the store buffers.
            fn settle(&self) {
                if let Some(value) = with_buffer(|buffer| buffer.settle(self.address())).flatten() {
                    self.0.store(value as $value, Ordering::Release);
                }
            }

            /// What precedes an exchange.
            #[inline(always)]
            #[track_caller]
            fn before_exchange(&self, value: u64) {
                if is_scheduled() {
                    self.prepare(value);
                }
            }

            #[cold]
            #[inline(never)]
            #[track_caller]
            fn prepare(&self, value: u64) {
                before(Step::Exchange(self.address(), value));
                self.settle();
            }

            #[cold]
            #[inline(never)]
            #[track_caller]
            fn load_scheduled(&self, order: Ordering) -> $value {
                before(Step::Load(self.address()));
                if let Some(own) = held_back(self.address()) {
                    return own as $value;
                }
                self.settle();
                self.0.load(order)
            }

            #[cold]
            #[inline(never)]
            #[track_caller]
            fn store_scheduled(&self, value: $value, order: Ordering) {
                before(Step::Store(self.address(), u64::from(value)));
                if with_buffer(|buffer| buffer.store(self.address(), u64::from(value))).is_none() {
                    self.0.store(value, order);
                } else if order == Ordering::SeqCst {
                    drain();
                }
            }

            /// Loads the word.
            #[inline(always)]
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                if is_scheduled() { self.load_scheduled(order) } else { self.0.load(order) }
            }

            /// Stores a value. From then on the word must not move: the buffer that holds the store back identifies it by its address. See [`Self::set`].
            #[inline(always)]
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                if is_scheduled() { self.store_scheduled(value, order) } else { self.0.store(value, order) }
            }

            /// Stores a value in a word that no other thread has yet, and that may still be moved to its place.
            pub fn set(&mut self, value: $value) {
                *self = Self::new(value);
            }

            /// Stores a value; returns the former one.
            #[inline(always)]
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.before_exchange(u64::from(value));
                self.0.swap(value, order)
            }

            /// Stores `new` if the word is `current`.
            ///
            /// # Errors
            /// The word's actual value.
            #[inline(always)]
            #[track_caller]
            pub fn compare_exchange(&self, current: $value, new: $value, success: Ordering, failure: Ordering) -> Result<$value, $value> {
                self.before_exchange(u64::from(new));
                self.0.compare_exchange(current, new, success, failure)
            }
        }
    };
}

// Reused memory must not inherit what was stored there before. Builds without a scheduler have nothing to forget.
#[cfg(debug_assertions)]
macro_rules! forget {
    ($name:ident) => {
        impl Drop for $name {
            #[inline(always)]
            fn drop(&mut self) {
                if is_scheduled() {
                    with_buffer(|buffer| buffer.forget(self.address()));
                }
            }
        }
    };
}
#[cfg(debug_assertions)]
forget!(AtomicU64);
#[cfg(debug_assertions)]
forget!(AtomicU32);

atomic!(AtomicU64, u64);
atomic!(AtomicU32, u32);

impl AtomicU64 {
    /// Sets bits; returns the former word.
    #[inline(always)]
    #[track_caller]
    pub fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        self.before_exchange(bits);
        self.0.fetch_or(bits, order)
    }

    /// Keeps only these bits; returns the former word.
    #[inline(always)]
    #[track_caller]
    pub fn fetch_and(&self, bits: u64, order: Ordering) -> u64 {
        self.before_exchange(bits);
        self.0.fetch_and(bits, order)
    }

    /// Adds to the word; returns its former value.
    #[inline(always)]
    #[track_caller]
    pub fn fetch_add(&self, summand: u64, order: Ordering) -> u64 {
        self.before_exchange(summand);
        self.0.fetch_add(summand, order)
    }
}
