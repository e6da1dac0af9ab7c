//! The machine's own memory. The domain is data, fixed when the pool is mapped.

use super::{Lines, Medium};

/// The machine's memory, with the persistence domain that was found or chosen when the pool was mapped.
pub struct Hardware {}

impl Hardware {
    /// Memory that outlives the process but not the machine: nothing to flush.
    pub fn page_cache() -> Self {
        Self {}
    }
}

impl Medium for Hardware {
    #[inline(always)]
    fn flush(&self, _lines: Lines<'_>) {}

    #[inline(always)]
    fn fence(&self) {
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    }
}
