//! Large arrays in DRAM, on huge pages where the system has them: a random access to such an array costs one miss, not two.

use bytemuck::Zeroable;

/// The size of a huge page in bytes.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// `count` zeroes. Large arrays take memory only where they are touched.
pub fn zeroed_box<T: Zeroable>(count: usize) -> Box<[T]> {
    let memory = bytemuck::allocation::zeroed_slice_box::<T>(count);
    advise(&memory);
    memory
}

/// Asks for huge pages under `memory`. A hint: nothing depends on it.
fn advise<T>(memory: &[T]) {
    let address = memory.as_ptr().addr();
    let first = address.next_multiple_of(HUGE_PAGE);
    let end = (address + size_of_val(memory)) & !(HUGE_PAGE - 1);
    if cfg!(miri) || end <= first {
        return;
    }
    let start = memory.as_ptr().cast::<u8>().wrapping_add(first - address).cast_mut();
    // SAFETY: the range lies within the slice, which is mapped anonymous memory of this process; the advice changes neither its content nor its protection.
    let advised = unsafe { rustix::mm::madvise(start.cast(), end - first, rustix::mm::Advice::LinuxHugepage) };
    // Refused where the kernel has no huge pages; then the pages are small.
    let _ = advised;
}

#[cfg(test)]
mod tests {
    #[test]
    fn large_arrays_are_zeroed_and_writable() {
        for count in [0, 1, 1000, 3 << 20] {
            let mut memory = super::zeroed_box::<u64>(count);
            assert!(memory.len() == count && memory.iter().all(|word| *word == 0));
            memory.fill(7);
            assert!(memory.iter().all(|word| *word == 7));
        }
    }
}
