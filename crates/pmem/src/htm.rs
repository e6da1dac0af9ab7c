//! Hardware transactions (Intel's RTM), behind one safe function.
//!
//! [`Transactions::run`] runs a closure so that, for all other threads, either everything that it loads and stores happens at one moment, or nothing has
//! happened. Each attempt may abort: another thread stores to a line that was read, the lines are too many for the cache, a page is missing, an interrupt
//! comes. So attempts are bounded, and every caller has a fallback that uses latches. For the two to work together:
//! 1. A transaction loads each latch that the fallback would take, and refuses to go on where one is held. If one is taken later, that store is a conflict.
//! 2. What a transaction stores is a latch, so that the fallback sees it held.
//!
//! A transaction must not contain flushes, fences and system calls, which abort every attempt. An abort for which the processor gives no reason, such as a
//! missing page, would recur, because the repair that was begun is undone with everything else. In that case the fallback is taken at once, and touches the
//! page for real.
//!
//! Whether there are transactions is determined at run time; most processors have none, or have them switched off. Under a scheduler of threads ([`schedule`])
//! they are simulated, whatever the processor: no other thread takes a step during one, and the scheduler decides which of them abort. So everything except the
//! four instructions is tested everywhere.

use crate::schedule::{self, Step};
use std::array;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Maximum attempts of a transaction that conflicts with others.
const ATTEMPTS_MAX: u32 = 8;

/// Why an attempt has aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// The closure has refused to go on.
    Refused,
    /// Another thread wanted the same lines.
    Conflict,
    /// More lines than the cache can keep.
    Capacity,
    /// The processor gives no reason: a missing page, an interrupt, an instruction that it does not accept here, a debugger.
    Unknown,
}

impl Abort {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Refused, Self::Conflict, Self::Capacity, Self::Unknown];

    /// A one-word name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Conflict => "conflict",
            Self::Capacity => "capacity",
            Self::Unknown => "unknown",
        }
    }

    /// Whether the next attempt may succeed.
    fn passes(self) -> bool {
        matches!(self, Self::Refused | Self::Conflict)
    }
}

/// Statistics of transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Aborted attempts, in the order of [`Abort::ALL`].
    pub aborts: [u64; Abort::ALL.len()],
    /// Calls for which every attempt aborted, so that the fallback was taken.
    pub fallbacks: u64,
}

/// Transactions of one kind, counted. See the module documentation.
#[derive(Default)]
pub struct Transactions {
    aborts: [AtomicU64; Abort::ALL.len()],
    fallbacks: AtomicU64,
}

/// Whether this processor has transactions.
pub fn is_available() -> bool {
    static IS_AVAILABLE: LazyLock<bool> = LazyLock::new(machine::is_available);
    *IS_AVAILABLE
}

impl Transactions {
    /// Runs `act` as one transaction. `None` if it did not commit, for whatever reason, including that there are no transactions here: then nothing has
    /// happened. If `act` refuses, nothing has happened either; it must not have stored anything by then.
    #[inline(always)]
    #[track_caller]
    pub fn run<T, E>(&self, mut act: impl FnMut() -> Result<T, E>) -> Option<T> {
        if !schedule::is_scheduled() && !is_available() {
            return None;
        }
        for _ in 0..ATTEMPTS_MAX {
            let attempt = if schedule::is_scheduled() { simulate(&mut act) } else { machine::attempt(&mut act) };
            match attempt {
                Ok(result) => return Some(result),
                Err(abort) => {
                    self.aborts[abort as usize].fetch_add(1, Relaxed);
                    if !abort.passes() {
                        break;
                    }
                    schedule::spin();
                }
            }
        }
        self.fallbacks.fetch_add(1, Relaxed);
        None
    }

    /// The statistics so far.
    pub fn statistics(&self) -> Statistics {
        Statistics { aborts: array::from_fn(|cause| self.aborts[cause].load(Relaxed)), fallbacks: self.fallbacks.load(Relaxed) }
    }
}

/// An attempt under a scheduler.
#[track_caller]
fn simulate<T, E>(act: &mut impl FnMut() -> Result<T, E>) -> Result<T, Abort> {
    schedule::before(Step::Transaction);
    match schedule::aborts() {
        Some(abort) => Err(abort),
        None => schedule::as_transaction(act).map_err(|_| Abort::Refused),
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod machine {
    use super::Abort;
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count};

    /// What a transaction that has begun finds in place of an abort reason.
    const STARTED: u32 = !0;

    pub(super) fn is_available() -> bool {
        let features = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0) } else { return false };
        let (has_transactions, always_abort) = (features.ebx >> 11 & 1 == 1, features.edx >> 11 & 1 == 1);
        has_transactions && !always_abort
    }

    impl Abort {
        /// From the bits that the processor sets: 0 refused, 2 conflict, 3 capacity.
        fn of(status: u32) -> Self {
            match status {
                _ if status & 1 != 0 => Self::Refused,
                _ if status & 1 << 3 != 0 => Self::Capacity,
                _ if status & 1 << 2 != 0 => Self::Conflict,
                _ => Self::Unknown,
            }
        }
    }

    /// The transaction under way. It is dropped even when `act` panics, which commits what has been done so far, as if there were no transaction.
    struct Open;

    impl Drop for Open {
        #[inline(always)]
        fn drop(&mut self) {
            // SAFETY: a transaction is under way: only `attempt` makes the value, behind `xbegin`, and it does not leave that function.
            unsafe { asm!("xend", options(nostack)) };
        }
    }

    #[inline(always)]
    pub(super) fn attempt<T, E>(act: &mut impl FnMut() -> Result<T, E>) -> Result<T, Abort> {
        assert!(super::is_available());
        let mut status = STARTED;
        // SAFETY: the processor has the instruction. Where the transaction aborts, it brings all registers and all memory back to what they were here, and goes
        // on here with the reason: as if what is below had not run.
        unsafe { asm!("xbegin 2f", "2:", inout("eax") status, options(nostack)) };
        if status != STARTED {
            return Err(Abort::of(status));
        }
        let open = Open;
        let result = act();
        if result.is_err() {
            // SAFETY: a transaction is under way, so this goes back to `xbegin`.
            unsafe { asm!("xabort 1", options(nostack)) };
        }
        drop(open);
        result.map_err(|_| Abort::Refused)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_bits_of_an_abort_tell_its_cause() {
            let causes = [1 | 1 << 24, 1 << 1 | 1 << 2, 1 << 3, 0, 1 << 4].map(Abort::of);
            assert_eq!(causes, [Abort::Refused, Abort::Conflict, Abort::Capacity, Abort::Unknown, Abort::Unknown]);
        }
    }
}

/// Without transactions.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod machine {
    use super::Abort;

    pub(super) fn is_available() -> bool {
        false
    }

    pub(super) fn attempt<T, E>(_act: &mut impl FnMut() -> Result<T, E>) -> Result<T, Abort> {
        Err(Abort::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Scheduler, atomic};
    use parking_lot::Mutex;
    use std::collections::VecDeque;
    use std::panic::Location;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::{Acquire, Release};

    /// Makes attempts abort for these reasons, one after the other, and then none.
    struct Script(Mutex<VecDeque<Abort>>);

    impl Scheduler for Script {
        fn before(&self, _: Step, _: &'static Location<'static>) {}

        fn aborts(&self) -> Option<Abort> {
            self.0.lock().pop_front()
        }
    }

    /// How often `act` is run, whether its transaction commits, and how that is counted.
    fn scripted(script: &[Abort], mut act: impl FnMut() -> Result<(), ()>) -> (u32, bool, Statistics) {
        let _scheduled = schedule::enter(Arc::new(Script(Mutex::new(script.iter().copied().collect()))));
        let (transactions, mut runs) = (Transactions::default(), 0);
        let done = transactions.run(|| {
            runs += 1;
            act()
        });
        (runs, done.is_some(), transactions.statistics())
    }

    #[test]
    fn attempts_are_bounded_and_counted_by_what_aborts_them() {
        use Abort::{Capacity, Conflict, Refused, Unknown};
        if !schedule::IS_BUILT_IN {
            return;
        }
        let counted = |aborts, fallbacks| Statistics { aborts, fallbacks };
        let may = || Ok(());
        assert_eq!(scripted(&[], may), (1, true, counted([0; 4], 0)));
        assert_eq!(scripted(&[Conflict; 7], may), (1, true, counted([0, 7, 0, 0], 0)));
        assert_eq!(scripted(&[Conflict; 8], may), (0, false, counted([0, 8, 0, 0], 1)), "the last of eight attempts");
        assert_eq!(scripted(&[Capacity], may), (0, false, counted([0, 0, 1, 0], 1)), "it would come again");
        assert_eq!(scripted(&[Refused, Conflict, Unknown], may), (0, false, counted([1, 1, 0, 1], 1)));
        assert_eq!(scripted(&[Conflict; 3], || Err(())), (5, false, counted([5, 3, 0, 0], 1)), "refused by what it reads");
    }

    /// Where there are transactions, most commit; where there are none, nothing is run.
    #[test]
    fn what_takes_place_has_happened_once() {
        let (transactions, word) = (Transactions::default(), atomic::AtomicU64::new(0));
        let mut committed = 0;
        for _ in 0..1000 {
            let next = transactions.run(|| {
                let next = word.load(Relaxed) + 1;
                word.store(next, Relaxed);
                Ok::<_, ()>(next)
            });
            committed += u64::from(next.is_some());
            assert!(next.is_none_or(|next| next == committed));
            assert_eq!(word.load(Acquire), committed);
        }
        let Statistics { fallbacks, .. } = transactions.statistics();
        assert_eq!(committed + fallbacks, if is_available() { 1000 } else { 0 });
        assert!(!is_available() || committed > 0, "{:?}", transactions.statistics());
    }

    #[test]
    fn what_is_refused_has_not_happened() {
        let (transactions, word) = (Transactions::default(), atomic::AtomicU64::new(0));
        let result: Option<()> = transactions.run(|| match word.load(Relaxed) {
            0 => Err("refused"),
            _ => Ok(()),
        });
        assert_eq!(result, None);
        word.store(1, Release);
        let Statistics { aborts, fallbacks } = transactions.statistics();
        assert_eq!(fallbacks, u64::from(is_available()));
        assert!(!is_available() || aborts[Abort::Refused as usize] > 0 || aborts[Abort::Unknown as usize] > 0);
    }
}
