//! Size classes: the sizes of blocks.
//!
//! Steps of 16 bytes up to 128, then eight steps per doubling up to 1 KiB, then four, up to an eighth of a slab. Above that: the sizes of which exactly 7, 6,
//! .. 2 fit in a slab, and those of which a few fit in a *span* of a few slabs ([`SPANS`]). The powers of two up to 4 KiB are always among them. A block that
//! would take no less of a span than of slabs of its own gets a run, and has no class. For blocks of 64 bytes or more in slabs of 64 KiB, at most a quarter of
//! the space is wasted, and a tenth on average (a seventh from 4 to 8 KiB). Also:
//!
//! 1. Every multiple of 64 up to 512 is a class of its own, in slabs that hold eight or more of it.
//! 2. A size that is a multiple of a power of two up to 64 has a class that is one, too, so blocks are as aligned as their size implies.
//! 3. A power of two from 256 to 4096 is aligned to 256, the unit in which some memory writes.
//! 4. If the class of a block is known, where it begins determines where its span does: blocks of two overlapping spans never begin at the same place.
//! 5. Nor does a block in a later slab of a span begin where a block of its size may begin that is there because no span was available
//!    ([`Classes::fits_alone`]): the header of the slab in which a block begins tells which of the two kinds it is.

use crate::medium::LINE;
use std::ops::Range;
use std::sync::OnceLock;

/// Granularity of [`Classes::of`] in bytes.
pub(super) const STEP: usize = 16;
/// Blocks start at least this far into a slab: its first line is the header.
pub(super) const FIRST: usize = LINE;
/// Alignment that blocks get when their size allows.
const ALIGN_MAX: usize = 256;
/// Most classes that slabs of one size have.
const CLASSES_MAX: usize = 64;
/// No block that shares one slab with others is larger than half the largest slab.
const SIZE_MAX: usize = 32 << 10;
/// Numbers of slabs and of blocks that share them, in order of block size. Pools from before spans existed have none.
const SPANS: [(usize, usize); 12] = [(2, 7), (2, 5), (3, 5), (2, 3), (3, 4), (5, 6), (6, 5), (4, 3), (3, 2), (5, 3), (5, 2), (7, 2)];
/// Maximum number of blocks of a class that a thread keeps.
pub(super) const CACHED_MAX: usize = 64;

/// One size of blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    /// Size of a block in bytes.
    pub(super) size: u32,
    /// Number of slabs that blocks of the class share: 1, or the length of a span.
    pub(super) slabs: u32,
    /// Where the first block begins in these slabs, in bytes.
    pub(super) first: u32,
    /// Number of blocks in these slabs.
    pub(super) count: u32,
    /// Maximum number of blocks that a thread keeps.
    pub(super) cached: u32,
    /// Where the class's part of a thread's cache begins. See [`Cache`](super::cache::Cache).
    pub(super) slot: u32,
    /// 2^32 / `size`, rounded up: multiplying by it divides multiples of `size` exactly, within the slabs of a span.
    inverse: u64,
}

impl Class {
    fn new(size: usize, slabs: usize, slab_size: usize) -> Self {
        let align = 1 << size.trailing_zeros().min(ALIGN_MAX.trailing_zeros());
        let first = FIRST.max(align);
        // The owner of such a block copies so much to it that it makes no difference where the block comes from.
        let cached = if slabs == 1 { (slab_size / 2 / size).clamp(2, CACHED_MAX) } else { 0 };
        Self {
            size: size as u32,
            slabs: slabs as u32,
            first: first as u32,
            count: ((slabs * slab_size - first) / size) as u32,
            cached: cached as u32,
            slot: 0,
            inverse: (1u64 << 32).div_ceil(size as u64),
        }
    }

    /// The largest class of which `count` blocks fit in `slabs` slabs.
    fn filling(slabs: usize, count: usize, slab_size: usize) -> Self {
        let largest = (slabs * slab_size - FIRST) / count / LINE * LINE;
        let mut classes = (0..).map(|lines| Self::new(largest - lines * LINE, slabs, slab_size));
        classes.find(|class| class.count as usize >= count).expect("a smaller one fits")
    }

    /// The number of the block that begins `within` bytes into the slabs of its group.
    #[inline]
    pub(super) fn index(&self, within: usize) -> Option<usize> {
        let distance = within.checked_sub(self.first as usize)? as u64;
        let index = (distance * self.inverse) >> 32;
        (index * u64::from(self.size) == distance && index < u64::from(self.count)).then_some(index as usize)
    }

    /// Where block `index` begins, in bytes from the start of the first slab.
    pub(super) fn within(&self, index: usize) -> usize {
        self.first as usize + index * self.size as usize
    }

    /// Number of 64-bit words that hold one bit for each of these blocks.
    pub(super) fn bitmap_words(&self) -> usize {
        (self.count as usize).div_ceil(64)
    }

    /// A bitmap with the bit of every block set.
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

/// All classes of slabs of one size. Recovery depends on them: other classes are another format.
pub(super) struct Classes {
    list: [Class; CLASSES_MAX],
    count: usize,
    /// The first class whose blocks share a span.
    spans: usize,
    /// Size of a slab in bytes.
    pub(super) slab_size: usize,
    /// Classes by size in units of [`STEP`], rounded up.
    by_size: [u8; SIZE_MAX / STEP],
    /// The largest size of a block that shares one slab.
    size_max: usize,
    /// Length of a thread's cache, in words.
    pub(super) cache_words: usize,
}

impl Classes {
    /// The classes of slabs of `slab_size` bytes, including those of spans if the pool `has_spans`.
    ///
    /// # Panics
    /// If `slab_size` is not a power of two from 4 KiB to 64 KiB: pools check it when they are created and opened.
    pub(super) fn of_slab(slab_size: usize, has_spans: bool) -> &'static Self {
        static CLASSES: [[OnceLock<Classes>; 2]; 5] = [const { [const { OnceLock::new() }; 2] }; 5];
        assert!(slab_size.is_power_of_two() && (4 << 10..=64 << 10).contains(&slab_size), "slabs of {slab_size} bytes");
        CLASSES[slab_size.trailing_zeros() as usize - 12][usize::from(has_spans)].get_or_init(|| Self::new(slab_size, has_spans))
    }

    fn new(slab_size: usize, has_spans: bool) -> Self {
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
        sizes.extend((2..8).map(|count| Class::filling(1, count, slab_size).size as usize));
        sizes.extend([256, 512, 1024, 2048, 4096].into_iter().filter(|size| ALIGN_MAX + size <= slab_size));
        sizes.sort_unstable();
        sizes.dedup();

        let spans = SPANS.iter().filter(|_| has_spans).map(|(slabs, count)| Class::filling(*slabs, *count, slab_size));
        let all: Vec<_> = sizes.iter().map(|size| Class::new(*size, 1, slab_size)).chain(spans).collect();
        assert!(all.len() <= CLASSES_MAX, "{} classes", all.len());
        let mut classes = Self {
            list: [all[0]; CLASSES_MAX],
            count: all.len(),
            spans: sizes.len(),
            slab_size,
            by_size: std::array::from_fn(|units| {
                let holding = (0..all.len()).filter(|class| all[*class].size as usize >= units * STEP);
                holding.min_by_key(|class| all[*class].size).unwrap_or(0) as u8
            }),
            size_max: sizes[sizes.len() - 1],
            cache_words: 0,
        };
        for (class, new) in classes.list.iter_mut().zip(all) {
            *class = Class { slot: classes.cache_words as u32, ..new };
            classes.cache_words += 1 + class.cached as usize;
        }
        classes
    }

    /// The smallest class that holds `size` bytes; `None` when that takes a run.
    #[inline]
    pub(super) fn of(&self, size: usize) -> Option<u8> {
        if size <= self.size_max { Some(self.by_size[size.div_ceil(STEP)]) } else { self.of_span(size) }
    }

    /// The smallest class that holds `size` bytes and whose blocks share one slab; `None` when that takes a run. Blocks for which there is no span use it.
    pub(super) fn alone(&self, size: usize) -> Option<u8> {
        self.smallest(0..self.spans, size)
    }

    /// Whether a block of `size` bytes that is in no span can begin `within` bytes into a slab.
    pub(super) fn fits_alone(&self, size: usize, within: usize) -> bool {
        self.alone(size).map_or(within == FIRST, |class| self.get(class).index(within).is_some())
    }

    #[cold]
    fn of_span(&self, size: usize) -> Option<u8> {
        let number = self.smallest(self.spans..self.count, size)?;
        let class = self.get(number);
        ((class.slabs as usize) < self.run_of(size)? * class.count as usize).then_some(number)
    }

    /// The smallest of these classes that holds `size` bytes; they are in order.
    fn smallest(&self, mut classes: Range<usize>, size: usize) -> Option<u8> {
        classes.find(|class| self.list[*class].size as usize >= size).map(|class| class as u8)
    }

    /// Number of slabs in a run for a block of `size` bytes; `None` on overflow.
    pub(super) fn run_of(&self, size: usize) -> Option<usize> {
        Some(size.checked_add(FIRST)?.div_ceil(self.slab_size))
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

    /// Where a block of `class` lies that begins `within` bytes into a slab: how many slabs of its span come before that slab, and the block's number.
    #[inline]
    pub(super) fn place(&self, class: u8, within: usize) -> Option<(u32, usize)> {
        let shape = self.get(class);
        match shape.slabs {
            1 => Some((0, shape.index(within)?)),
            slabs => (0..slabs).find_map(|before| Some((before, shape.index(before as usize * self.slab_size + within)?))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = &'static Classes> {
        (12..=16).flat_map(|bits| [false, true].map(|has_spans| Classes::of_slab(1 << bits, has_spans)))
    }

    #[test]
    #[cfg_attr(miri, ignore = "plain arithmetic, a lot of it")]
    fn classes_keep_what_the_module_promises() {
        for classes in all() {
            let slab_size = classes.slab_size;
            for size in 1..=slab_size / 2 {
                let Some(number) = classes.alone(size) else {
                    assert!(size > slab_size / 2 - 3 * LINE, "{size} in slabs of {slab_size}");
                    continue;
                };
                let class = classes.get(number);
                assert!(class.size as usize >= size && class.count > 0);
                assert!(number == 0 || (classes.get(number - 1).size as usize) < size);
                assert!(classes.of(size) == Some(number) || classes.get(classes.of(size).unwrap()).slabs > 1);
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

    /// Bytes of slabs that a block takes, as its share of them.
    fn taken(classes: &Classes, size: usize) -> f64 {
        match classes.of(size).map(|number| classes.get(number)) {
            Some(class) => {
                assert!(class.size as usize >= size);
                (class.slabs as usize * classes.slab_size) as f64 / f64::from(class.count)
            }
            None => (size + FIRST).next_multiple_of(classes.slab_size) as f64,
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "plain arithmetic, a lot of it")]
    fn large_blocks_take_little_more_than_they_hold() {
        for classes in all().filter(|classes| classes.spans < classes.count) {
            let slab_size = classes.slab_size;
            for size in slab_size / 2 + LINE..5 * slab_size {
                assert!(classes.of(size).is_none_or(|number| classes.get(number).slabs > 1 && classes.get(number).size.is_multiple_of(LINE as u32)));
                // A header and undivided lines take a larger part of a small slab.
                let most = if slab_size < 16 << 10 { 1.29 } else { 1.27 };
                let taken = taken(classes, size);
                assert!(taken <= size as f64 * most, "{taken} for {size} in slabs of {slab_size}");
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "plain arithmetic, a lot of it")]
    fn blocks_take_little_more_than_they_hold() {
        let classes = Classes::of_slab(64 << 10, true);
        let waste = |size: usize| taken(classes, size) / size as f64;
        for size in 64..5 * classes.slab_size {
            assert!(waste(size) <= 1.34, "{} for {size}", taken(classes, size));
        }
        for from in (6..18).map(|bits| 1 << bits) {
            let mean = (from..2 * from).map(waste).sum::<f64>() / from as f64;
            assert!(mean <= 1.17, "{mean} from {from} on");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "plain arithmetic, a lot of it")]
    fn an_index_is_found_for_block_boundaries_only() {
        for classes in all() {
            for class in &classes.list[..classes.count] {
                let end = class.slabs as usize * classes.slab_size;
                assert!(class.within(class.count as usize) <= end);
                let mut boundaries = (0..class.count as usize).map(|index| (class.within(index), index)).peekable();
                for within in 0..end {
                    let expected = boundaries.next_if(|(boundary, _)| *boundary == within).map(|(_, index)| index);
                    assert_eq!(class.index(within), expected);
                }
            }
        }
    }

    #[test]
    fn where_a_block_begins_says_where_its_span_does() {
        for classes in all() {
            for number in 0..classes.count as u8 {
                let class = classes.get(number);
                for index in 0..class.count as usize {
                    let (before, within) = (class.within(index) / classes.slab_size, class.within(index) % classes.slab_size);
                    assert_eq!(classes.place(number, within), Some((before as u32, index)));
                    let places = (0..class.slabs as usize).filter(|before| class.index(before * classes.slab_size + within).is_some());
                    assert_eq!(places.count(), 1, "{within} in {class:?}");
                }
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "plain arithmetic, a lot of it")]
    fn a_block_in_a_later_slab_of_a_span_lies_where_none_is_alone() {
        for classes in all() {
            for number in classes.spans..classes.count {
                let class = classes.get(number as u8);
                assert!(class.size.is_multiple_of(LINE as u32));
                let sizes = classes.list[..number].iter().map(|smaller| smaller.size).filter(|size| *size < class.size).max().unwrap() + 1..=class.size;
                let later = (0..class.count as usize).map(|index| class.within(index)).filter(|within| *within >= classes.slab_size);
                for within in later.map(|within| within % classes.slab_size) {
                    assert!(sizes.clone().all(|size| !classes.fits_alone(size as usize, within)), "{within} in {class:?}");
                }
            }
        }
    }

    /// Recovery depends on these numbers: other numbers are another format (docs/pool-format.md).
    #[test]
    fn the_classes_are_those_of_the_format() {
        let list = |slab_size| {
            let classes = Classes::of_slab(slab_size, true);
            let of = |class: &Class| (class.slabs, class.count, class.size, class.first);
            classes.list[..classes.count].iter().map(of).collect::<Vec<_>>()
        };
        #[rustfmt::skip]
        let of_4_kib = [
            (1, 126, 32, 64), (1, 84, 48, 64), (1, 63, 64, 64), (1, 50, 80, 64), (1, 42, 96, 64), (1, 36, 112, 64), (1, 31, 128, 128), (1, 28, 144, 64),
            (1, 25, 160, 64), (1, 22, 176, 64), (1, 21, 192, 64), (1, 19, 208, 64), (1, 18, 224, 64), (1, 16, 240, 64), (1, 15, 256, 256), (1, 14, 288, 64),
            (1, 12, 320, 64), (1, 11, 352, 64), (1, 10, 384, 128), (1, 9, 416, 64), (1, 9, 448, 64), (1, 8, 480, 64), (1, 7, 512, 256), (1, 7, 576, 64),
            (1, 6, 640, 128), (1, 5, 768, 256), (1, 4, 960, 64), (1, 3, 1024, 256), (1, 3, 1344, 64), (1, 2, 1984, 64), (1, 1, 2048, 256),
            (2, 7, 1152, 128), (2, 5, 1600, 64), (3, 5, 2432, 128), (2, 3, 2688, 128), (3, 4, 3008, 64), (5, 6, 3392, 64), (6, 5, 4864, 256),
            (4, 3, 5440, 64), (3, 2, 6080, 64), (5, 3, 6784, 128), (5, 2, 10176, 64), (7, 2, 14272, 64),
        ];
        #[rustfmt::skip]
        let of_64_kib = [
            (1, 2046, 32, 64), (1, 1364, 48, 64), (1, 1023, 64, 64), (1, 818, 80, 64), (1, 682, 96, 64), (1, 584, 112, 64), (1, 511, 128, 128),
            (1, 454, 144, 64), (1, 409, 160, 64), (1, 372, 176, 64), (1, 341, 192, 64), (1, 314, 208, 64), (1, 292, 224, 64), (1, 272, 240, 64),
            (1, 255, 256, 256), (1, 227, 288, 64), (1, 204, 320, 64), (1, 186, 352, 64), (1, 170, 384, 128), (1, 157, 416, 64), (1, 146, 448, 64),
            (1, 136, 480, 64), (1, 127, 512, 256), (1, 113, 576, 64), (1, 102, 640, 128), (1, 93, 704, 64), (1, 85, 768, 256), (1, 78, 832, 64),
            (1, 73, 896, 128), (1, 68, 960, 64), (1, 63, 1024, 256), (1, 51, 1280, 256), (1, 42, 1536, 256), (1, 36, 1792, 256), (1, 31, 2048, 256),
            (1, 25, 2560, 256), (1, 21, 3072, 256), (1, 18, 3584, 256), (1, 15, 4096, 256), (1, 12, 5120, 256), (1, 10, 6144, 256), (1, 9, 7168, 256),
            (1, 7, 9344, 128), (1, 6, 10880, 128), (1, 5, 13056, 256), (1, 4, 16320, 64), (1, 3, 21824, 64), (1, 2, 32704, 64),
            (2, 7, 18688, 256), (2, 5, 26176, 64), (3, 5, 39296, 128), (2, 3, 43648, 128), (3, 4, 49088, 64), (5, 6, 54592, 64), (6, 5, 78592, 256),
            (4, 3, 87360, 64), (3, 2, 98240, 64), (5, 3, 109184, 128), (5, 2, 163776, 64), (7, 2, 229312, 64),
        ];
        assert_eq!(list(4 << 10), of_4_kib);
        assert_eq!(list(64 << 10), of_64_kib);
        // For the sizes between: the number of classes and checksums over them.
        let sum = |slab_size| {
            let words: Vec<u64> = list(slab_size).into_iter().flat_map(|(slabs, count, size, first)| [slabs, count, size, first].map(u64::from)).collect();
            (words.len() / 4, crate::word::checksum(&words))
        };
        assert_eq!([8 << 10, 16 << 10, 32 << 10].map(sum), [(51, 1_869_058_423), (54, 3_783_861_535), (57, 1_547_516_062)]);
        // The sizes that take a run.
        let runs_of = |slab_size, range: Range<usize>| {
            let classes = Classes::of_slab(slab_size, true);
            let runs: Vec<_> = range.filter(|size| classes.of(*size).is_none()).collect();
            runs.chunk_by(|one, next| one + 1 == *next).map(|run| (run[0], run[run.len() - 1])).collect::<Vec<_>>()
        };
        assert_eq!(runs_of(64 << 10, 0..1 << 20), [(54_593, 65_472), (109_185, 131_008), (163_777, 196_544), (229_313, (1 << 20) - 1)]);
        // An extent of Ever. Ever asks whether anybody has stored to it (`Pool::is_untouched`), and that is known of runs alone.
        assert!((14..=16).all(|bits| Classes::of_slab(1 << bits, true).of(62_080).is_none()));
    }
}
