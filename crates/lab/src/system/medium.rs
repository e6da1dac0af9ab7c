//! The media that the lab measures on.

use super::Setting;
use everleaf_pmem::{Count, Counts, Hardware, Medium, WriteBuffer};

/// A medium that the lab can make over the hardware.
pub(super) trait Measured: Medium + Sized {
    /// Over `hardware`, as the setting asks for it.
    fn over(hardware: Hardware, setting: &Setting) -> Self;

    /// What has passed, if that is counted.
    fn counts(&self) -> Option<Counts> {
        None
    }

    /// Starts counting anew.
    fn reset(&self) {}

    /// Lines flushed and fences; zeroes if they are not counted.
    fn flushed_and_fenced(&self) -> (u64, u64) {
        (0, 0)
    }
}

impl Measured for Hardware {
    fn over(hardware: Hardware, setting: &Setting) -> Self {
        hardware.with_write_latency(setting.write_latency_ns)
    }
}

impl Measured for Count<Hardware> {
    fn over(hardware: Hardware, _: &Setting) -> Self {
        Self::new(hardware).with_buffer(WriteBuffer::new(WriteBuffer::UNIT_COUNT))
    }

    fn counts(&self) -> Option<Counts> {
        Some(self.totals())
    }

    fn reset(&self) {
        Self::reset(self);
    }

    fn flushed_and_fenced(&self) -> (u64, u64) {
        Self::flushed_and_fenced(self)
    }
}
