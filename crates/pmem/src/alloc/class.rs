//! Size classes: which sizes blocks come in.
//!
//! Steps of 16 bytes up to 128, then eight steps per doubling up to 1 KiB, then four, up to an eighth of a slab; above, the sizes of which exactly 7, 6, .. 2
//! fit in a slab. The powers of two up to 4 KiB are always among them. Of a block of up to a tenth of a slab, at most a fifth is wasted (from 64 bytes on;
//! a tenth on average), and
//!
//! 1. every multiple of 64 up to 512 is a class of its own, in slabs that hold eight or more of it;
//! 2. a size that is a multiple of a power of two up to 64 has a class that is one, too, so blocks are as aligned as their size says;
//! 3. a power of two from 256 to 4096 is aligned to 256, the unit in which some memory writes.

use crate::medium::LINE;
use std::sync::OnceLock;

/// Granularity of [`Classes::of`] in bytes.
const STEP: usize = 16;
/// Blocks start at least this far into a slab: its first line is the header.
pub(super) const FIRST: usize = LINE;
/// Alignment that blocks get when their size allows.
const ALIGN_MAX: usize = 256;
/// Most classes that slabs of one size have.
const CLASSES_MAX: usize = 64;
/// No block is larger than half the largest slab.
const SIZE_MAX: usize = 32 << 10;
/// Most blocks of a class that a thread keeps for itself.
pub(super) const CACHED_MAX: usize = 64;

/// One size of blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    /// Size of a block in bytes.
    pub(super) size: u32,
    /// Where in a slab the first block begins, in bytes.
    pub(super) first: u32,
    /// Number of blocks in a slab.
    pub(super) count: u32,
    /// Number of blocks that a thread keeps at most.
    pub(super) cached: u32,
    /// Where its part of a thread's cache begins. See [`Cache`](super::cache::Cache).
    pub(super) slot: u32,
    /// 2^32 / `size`, rounded up: multiplying by it divides exactly, for offsets within a slab.
    inverse: u64,
}

impl Class {
    fn new(size: usize, slab_size: usize) -> Self {
        let align = 1 << size.trailing_zeros().min(ALIGN_MAX.trailing_zeros());
        let first = FIRST.max(align);
        let cached = (slab_size / 2 / size).clamp(2, CACHED_MAX);
        Self {
            size: size as u32,
            first: first as u32,
            count: ((slab_size - first) / size) as u32,
            cached: cached as u32,
            slot: 0,
            inverse: (1u64 << 32).div_ceil(size as u64),
        }
    }

    /// The number of the block that begins `within` bytes into a slab.
    #[inline]
    pub(super) fn index(&self, within: usize) -> Option<usize> {
        let distance = within.checked_sub(self.first as usize)? as u64;
        let index = (distance * self.inverse) >> 32;
        (index * u64::from(self.size) == distance && index < u64::from(self.count)).then_some(index as usize)
    }

    /// Where in a slab block `index` begins, in bytes.
    pub(super) fn within(&self, index: usize) -> usize {
        self.first as usize + index * self.size as usize
    }

    /// Number of 64-bit words that hold one bit for each block of a slab.
    pub(super) fn bitmap_words(&self) -> usize {
        (self.count as usize).div_ceil(64)
    }

    /// A bitmap of a slab with the bit of every block set.
    pub(super) fn all(&self) -> Box<[u64]> {
        (0..self.bitmap_words()).map(|word| self.all_in(word)).collect()
    }

    /// Word `word` of [`Class::all`].
    pub(super) fn all_in(&self, word: usize) -> u64 {
        match self.count as usize - word * 64 {
            rest if rest < 64 => (1 << rest) - 1,
            _ => u64::MAX,
        }
    }
}

/// All classes of slabs of one size.
pub(super) struct Classes {
    list: [Class; CLASSES_MAX],
    count: usize,
    /// Classes by size in units of [`STEP`], rounded up.
    by_size: [u8; SIZE_MAX / STEP],
    /// The largest size of a block.
    size_max: usize,
    /// Length of a thread's cache, in words.
    pub(super) cache_words: usize,
}

impl Classes {
    /// The classes of slabs of `slab_size` bytes.
    ///
    /// # Panics
    /// When that is not a power of two from 4 KiB to 64 KiB: pools check it when they are created and opened.
    pub(super) fn of_slab(slab_size: usize) -> &'static Self {
        static CLASSES: [OnceLock<Classes>; 5] = [const { OnceLock::new() }; 5];
        assert!(slab_size.is_power_of_two() && (4 << 10..=64 << 10).contains(&slab_size), "slabs of {slab_size} bytes");
        CLASSES[slab_size.trailing_zeros() as usize - 12].get_or_init(|| Self::new(slab_size))
    }

    fn new(slab_size: usize) -> Self {
        let usable = slab_size - FIRST;
        let mut sizes: Vec<usize> = (32..=128).step_by(STEP).collect();
        let mut size = 128usize;
        loop {
            let doubling: usize = 1 << size.ilog2();
            size += if doubling < 1024 { doubling / 8 } else { doubling / 4 };
            if size > usable / 8 {
                break;
            }
            sizes.push(size);
        }
        for count in 2..8 {
            let mut size = usable / count / LINE * LINE;
            while (Class::new(size, slab_size).count as usize) < count {
                size -= LINE;
            }
            sizes.push(size);
        }
        sizes.extend([256, 512, 1024, 2048, 4096].into_iter().filter(|size| ALIGN_MAX + size <= slab_size));
        sizes.sort_unstable();
        sizes.dedup();

        let mut classes = Self {
            list: [Class::new(sizes[0], slab_size); CLASSES_MAX],
            count: sizes.len(),
            by_size: std::array::from_fn(|units| sizes.partition_point(|size| *size < units * STEP) as u8),
            size_max: sizes[sizes.len() - 1],
            cache_words: 0,
        };
        for (class, size) in classes.list.iter_mut().zip(sizes) {
            *class = Class { slot: classes.cache_words as u32, ..Class::new(size, slab_size) };
            classes.cache_words += 1 + class.cached as usize;
        }
        classes
    }

    /// The smallest class that holds `size` bytes; `None` when that takes whole slabs.
    #[inline]
    pub(super) fn of(&self, size: usize) -> Option<u8> {
        if size <= self.size_max { Some(self.by_size[size.div_ceil(STEP)]) } else { None }
    }

    /// A class by its number.
    #[inline]
    pub(super) fn get(&self, class: u8) -> &Class {
        &self.list[class as usize % CLASSES_MAX]
    }

    /// Number of classes.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The class of exactly `size` bytes.
    pub(super) fn exact(&self, size: usize) -> Option<u8> {
        self.of(size).filter(|class| self.get(*class).size as usize == size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "plain arithmetic, a lot of it")]
    fn classes_keep_what_the_module_promises() {
        for slab_size in (12..=16).map(|bits| 1usize << bits) {
            let classes = Classes::of_slab(slab_size);
            for size in 1..=slab_size {
                let Some(number) = classes.of(size) else {
                    assert!(size > slab_size / 2 - 3 * LINE, "{size} in slabs of {slab_size}");
                    continue;
                };
                let class = classes.get(number);
                assert!(class.size as usize >= size && class.count > 0);
                assert!(number == 0 || (classes.get(number - 1).size as usize) < size);
                assert_eq!(class.within(class.count as usize - 1) + class.size as usize, class.within(class.count as usize));
                assert!(class.within(class.count as usize) <= slab_size);
                let align = 1 << size.trailing_zeros().min(6);
                assert!(size < 32 || (class.size.is_multiple_of(align) && class.first.is_multiple_of(align)), "{size} in {class:?}");
                if size.is_power_of_two() && (256..=4096).contains(&size) {
                    assert!(class.size as usize == size && class.first.is_multiple_of(256));
                }
                assert!(size > 512 || !size.is_multiple_of(64) || class.size as usize == size || size * 8 > slab_size - FIRST);
                assert!(size <= 64 || size * 10 > slab_size - FIRST || class.size as usize * 4 <= size * 5, "{size} in {class:?}");
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "plain arithmetic, a lot of it")]
    fn an_index_is_found_for_block_boundaries_only() {
        for slab_size in [4 << 10, 64 << 10] {
            let classes = Classes::of_slab(slab_size);
            for class in &classes.list[..classes.count] {
                let mut boundaries = (0..class.count as usize).map(|index| (class.within(index), index)).peekable();
                for within in 0..slab_size {
                    let expected = boundaries.next_if(|(boundary, _)| *boundary == within).map(|(_, index)| index);
                    assert_eq!(class.index(within), expected);
                }
            }
        }
    }
}
